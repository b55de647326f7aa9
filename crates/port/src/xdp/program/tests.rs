//! Tests the programs of filters in the kernel.

use linerate_skb::Kind;
use linerate_sys::bpf::{Program, SocketMap};
use linerate_sys::xdp::is_refused;
use rustix::thread::CapabilitySet;

use super::*;
use crate::parse;

/// A filter's program, in the kernel.
struct Filtered {
    program: Program,
    _map: SocketMap,
}

impl Filtered {
    /// Returns the program of the filter in `words`, attached; `None` where programs cannot be
    /// loaded.
    fn by(words: &str) -> Option<Filtered> {
        let spec = parse(&format!("xdp:v0{words}")).unwrap();
        let filter = Filter::of(&spec).unwrap().unwrap_or(Filter::All);
        let map = linerate_testing::unless(SocketMap::new(4), |e| {
            e.kind() == Kind::Unsupported && is_refused(&e.why)
        })?;
        // If the map has no socket, the helper returns its last argument, XDP_PASS. The test
        // changes this argument, so that it can distinguish the two results.
        let mut insns = assemble(&filter, map.raw_fd());
        let told = insns.iter().position(|insn| *insn == Insn::set(R3, XDP_PASS)).unwrap();
        insns[told] = Insn::set(R3, TAKEN);
        Some(Filtered { program: Program::load(&insns, false).unwrap(), _map: map })
    }

    fn takes(&self, packet: &[u8]) -> bool {
        match self.program.test(packet).unwrap() {
            said if said == TAKEN as u32 => true,
            said => {
                assert_eq!(said, XDP_PASS as u32);
                false
            }
        }
    }
}

/// XDP_DROP, a result that no filter has.
const TAKEN: i32 = 1;

fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![2; 12];
    packet.extend(kind.to_be_bytes());
    packet.extend(payload);
    packet.resize(packet.len().max(60), 0);
    packet
}

fn v4(protocol: u8, options: usize, fragment: u16, port: u16) -> Vec<u8> {
    let mut ip = vec![0; 20 + options];
    ip[0] = 0x45 + (options / 4) as u8;
    ip[6..8].copy_from_slice(&fragment.to_be_bytes());
    ip[9] = protocol;
    ip.extend(1234u16.to_be_bytes());
    ip.extend(port.to_be_bytes());
    ip.extend([0; 16]);
    ethernet(TYPE_IPV4, &ip)
}

fn v6(next: u8, port: u16) -> Vec<u8> {
    let mut ip = vec![0; 40];
    (ip[0], ip[6]) = (0x60, next);
    ip.extend(1234u16.to_be_bytes());
    ip.extend(port.to_be_bytes());
    ip.extend([0; 16]);
    ethernet(TYPE_IPV6, &ip)
}

#[test]
fn ports_of_udp_are_taken_and_nothing_else() {
    let Some(udp) = Filtered::by(",udp=53+7777") else { return };
    for port in [53, 7777] {
        assert!(udp.takes(&v4(17, 0, 0, port)) && udp.takes(&v6(17, port)));
        let mut options = (0..=40).step_by(4);
        assert!(options.all(|n| udp.takes(&v4(17, n, 0, port))), "with options");
        assert!(udp.takes(&v4(17, 0, 0x4000, port)), "not to be fragmented");
        assert!(!udp.takes(&v4(6, 0, 0, port)) && !udp.takes(&v6(6, port)));
        assert!(!udp.takes(&v4(17, 0, 0x2000, port)), "a first fragment");
        assert!(!udp.takes(&v4(17, 0, 0x0010, port)), "a later fragment");
        assert!(IPV6_EXTENSIONS.iter().all(|next| !udp.takes(&v6(*next, port))));
        assert!(!udp.takes(&v4(17, 0, 0, port + 1)) && !udp.takes(&v6(17, port + 1)));
    }
    assert!(!udp.takes(&ethernet(0x0806, &[0; 46])), "ARP");
    let mut short = v4(17, 0, 0, 53);
    short[14] = 0x44;
    assert!(!udp.takes(&short), "a header of 16 bytes");
    short[14] = 0x4f;
    short.truncate(60);
    assert!(!udp.takes(&short), "a header that ends behind the packet");
    for len in 14..38 {
        assert!(!udp.takes(&v4(17, 0, 0, 53)[..len]), "{len} bytes");
    }
}

#[test]
fn programs_load_with_the_three_capabilities_that_the_port_asks_for() {
    let Some(_) = Filtered::by("") else { return };
    let granted = std::thread::spawn(|| {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective &= CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF;
        // Capabilities belong to a thread.
        rustix::thread::set_capabilities(None, sets).unwrap();
        for words in
            ["", ",udp=53", ",tcp=80+443", ",icmp", ",arp", ",dst=10.0.0.1", ",dst=fd00::1"]
        {
            assert!(Filtered::by(words).is_some(), "{words}");
        }
    });
    granted.join().unwrap();
}

#[test]
fn packets_to_an_address_and_questions_about_it_are_taken() {
    let Some(v4_only) = Filtered::by(",dst=10.200.0.9") else { return };
    let v6_only = Filtered::by(",dst=fd00::200:9").unwrap();
    let (ours, other) = ([10, 200, 0, 9], [10, 200, 0, 8]);
    let to_v4 = |to: [u8; 4], fragment| {
        let mut packet = v4(17, 0, fragment, 53);
        packet[30..34].copy_from_slice(&to);
        packet
    };
    let arp = |target: [u8; 4]| ethernet(TYPE_ARP, &[&[0; 24][..], &target].concat());
    for fragment in [0, 0x2000, 0x0010] {
        assert!(v4_only.takes(&to_v4(ours, fragment)) && !v4_only.takes(&to_v4(other, 0)));
    }
    assert!(v4_only.takes(&arp(ours)) && !v4_only.takes(&arp(other)));
    assert!(!v4_only.takes(&v6(17, 53)) && !v6_only.takes(&to_v4(ours, 0)));

    let ours: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 9];
    for last in [9, 8] {
        let mut addr = ours;
        addr[15] = last;
        let mut to = v6(17, 53);
        to[38..54].copy_from_slice(&addr);
        assert_eq!(v6_only.takes(&to), last == 9);
        let mut question = v6(58, 53);
        question.resize(54 + 24, 0);
        question[54] = 135;
        question[62..78].copy_from_slice(&addr);
        assert_eq!(v6_only.takes(&question), last == 9);
        question[54] = 136;
        assert!(!v6_only.takes(&question), "an answer");
        assert!(!v6_only.takes(&question[..77]), "cut short");
    }
    let not = Filtered::by(",not=dst:10.200.0.9").unwrap();
    assert!(not.takes(&to_v4(other, 0)) && !not.takes(&to_v4([10, 200, 0, 9], 0)));
}

#[test]
fn only_the_answer_to_a_probe_is_taken() {
    let Some(answer) = Filtered::by(",answer=10.200.0.9") else { return };
    let arp = |op: u8, sender: [u8; 4], target: [u8; 4]| {
        let head = [0, 1, 8, 0, 6, 4, 0, op];
        ethernet(TYPE_ARP, &[&head[..], &[2; 6], &sender, &[2; 6], &target].concat())
    };
    let (of, none) = ([10, 200, 0, 9], [0; 4]);
    assert!(answer.takes(&arp(2, of, none)));
    assert!(!answer.takes(&arp(2, of, [10, 200, 0, 1])), "to the host");
    assert!(!answer.takes(&arp(2, [10, 200, 0, 8], none)) && !answer.takes(&arp(1, of, none)));
    assert!(!answer.takes(&v4(17, 0, 0, 53)));
}

#[test]
fn echo_is_taken_and_all_other_icmp_left() {
    let Some(icmp) = Filtered::by(",icmp") else { return };
    // Without "fragmentation needed", the host's TCP would not learn the path's MTU.
    for (kind, taken) in [(8, true), (0, true), (3, false), (11, false), (12, false)] {
        for options in [0, 4, 40] {
            let mut packet = v4(1, options, 0, 0);
            packet[34 + options] = kind;
            assert_eq!(icmp.takes(&packet), taken, "{kind}, {options} bytes of options");
        }
    }
    assert!(!icmp.takes(&v4(17, 0, 0, 0)));
    assert!(!icmp.takes(&v4(1, 0, 0x2000, 0)), "a fragment");
    for (kind, taken) in [(128, true), (129, true), (135, false), (2, false)] {
        let mut packet = v6(58, 0);
        packet[54] = kind;
        assert_eq!(icmp.takes(&packet), taken, "{kind}");
    }
    assert!(!icmp.takes(&v6(43, 0)) && !icmp.takes(&ethernet(TYPE_ARP, &[])));
    let not = Filtered::by(",not=icmp").unwrap();
    // Nothing is behind the IPv6 header: its protocol tells enough, unless that is ICMPv6.
    let [other, cut] = [59, 58].map(|next| v6(next, 0)[..54].to_vec());
    assert!(not.takes(&other) && !not.takes(&cut) && !icmp.takes(&other));
    let arp = Filtered::by(",arp").unwrap();
    assert!(arp.takes(&ethernet(TYPE_ARP, &[])) && !arp.takes(&v4(1, 0, 0, 0)));
}

#[test]
fn ethertypes_and_negations_are_taken() {
    let Some(own) = Filtered::by(",ethertype=0x88b5") else { return };
    assert!(own.takes(&ethernet(0x88b5, &[])) && !own.takes(&v4(17, 0, 0, 53)));
    let not = Filtered::by(",not=tcp:22").unwrap();
    assert!(!not.takes(&v4(6, 0, 0, 22)) && not.takes(&v4(6, 0, 0, 23)));
    assert!(not.takes(&ethernet(0x0806, &[])) && not.takes(&v4(17, 0, 0, 22)));
    // The kernel keeps packets that the filter cannot classify by their first headers, also here.
    assert!(!not.takes(&v4(6, 0, 0x2000, 23)) && !not.takes(&v6(43, 23)));
    let all = Filtered::by("").unwrap();
    assert!(all.takes(&ethernet(0x0806, &[])) && all.takes(&v6(43, 1)));
}
