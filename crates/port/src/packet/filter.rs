//! The socket's filter, which selects the interface's packets that the port receives.
//!
//! ```text
//!   ── sent by this machine ──► drop              only in a group, whose sockets the kernel may hand it
//!   ── had a VLAN tag ────────► other             it is of the VLAN's own interface
//!   ── has what the filter names ──► matches      taken, or with `not=` dropped
//!   ── has not ────────────────────► other        dropped, or with `not=` taken
//!   ── takes more to tell ─────────► drop
//! ```
//!
//! A filter decides by one packet's first headers. What it takes more to tell (the later fragments
//! of a datagram have no ports, extension headers are a list) is not received, nor is what is cut
//! short: the kernel ends a filter that reads behind the packet's end. The words mean what they
//! mean of `xdp` (xdp/program.rs); host/filter.rs has the values and offsets of both.

use std::net::{IpAddr, Ipv4Addr};

use linerate_sys::cbpf::{DROP_ALL, Insn, PACKET_TYPE, VLAN_TAG_PRESENT, VLAN_TYPE};
use linerate_sys::packet::PKTTYPE_OUTGOING;

use crate::host::filter::{Filter, Match, wire};
use crate::host::flow::{Flow, PORTS_MAX};

// The facts of host/filter.rs, with offsets from the start of the frame.
const TYPE_AT: u32 = wire::ETHERNET_TYPE_AT as u32;
const TYPE_IPV4: u32 = wire::TYPE_IPV4 as u32;
const TYPE_ARP: u32 = wire::TYPE_ARP as u32;
const TYPE_IPV6: u32 = wire::TYPE_IPV6 as u32;
/// Offset of the network header.
const NETWORK_AT: u32 = wire::ETHERNET_BYTES as u32;
const IPV4_LENGTH: u32 = wire::IPV4_LENGTH as u32;
const IPV4_WORDS_MIN: u32 = wire::IPV4_BYTES_MIN as u32 / 4;
const IPV4_FRAGMENT_AT: u32 = NETWORK_AT + wire::IPV4_FRAGMENT_AT as u32;
const IPV4_FRAGMENT: u32 = wire::IPV4_FRAGMENT as u32;
const IPV4_PROTOCOL_AT: u32 = NETWORK_AT + wire::IPV4_PROTOCOL_AT as u32;
const IPV4_TO_AT: u32 = NETWORK_AT + wire::IPV4_TO_AT as u32;
const IPV6_NEXT_AT: u32 = NETWORK_AT + wire::IPV6_NEXT_AT as u32;
const IPV6_TO_AT: u32 = NETWORK_AT + wire::IPV6_TO_AT as u32;
/// Offset of the header after an IPv6 header.
const IPV6_BEHIND: u32 = NETWORK_AT + wire::IPV6_BYTES as u32;
const ICMP: u32 = wire::ICMP as u32;
const ICMPV6: u32 = wire::ICMPV6 as u32;
const ICMPV6_SOLICITATION: u32 = wire::ICMPV6_SOLICITATION as u32;
/// Offset of the requested address in a neighbour solicitation.
const SOLICITED_AT: u32 = IPV6_BEHIND + wire::ICMPV6_TARGET_AT as u32;
const ARP_OP_AT: u32 = NETWORK_AT + wire::ARP_OP_AT as u32;
const ARP_REPLY: u32 = wire::ARP_REPLY as u32;
const ARP_SENDER_AT: u32 = NETWORK_AT + wire::ARP_SENDER_AT as u32;
const ARP_TARGET_AT: u32 = NETWORK_AT + wire::ARP_TARGET_AT as u32;
/// Offset of the destination port in the headers of UDP and TCP.
const TO_PORT_AT: u32 = wire::PORTS_TO_AT as u32;

// Every jump goes forward, and the program is short enough for its distance to fit into a byte.
const _: () = assert!(2 * PORTS_MAX + 64 < u8::MAX as usize);

/// Returns the program of `filter`; `grouped` is true if the socket is one of several. The program
/// is empty if none is needed.
pub(super) fn program(filter: &Filter, grouped: bool) -> Vec<Insn> {
    let mut asm = Assembly::default();
    if grouped {
        asm.add(Insn::load_word(PACKET_TYPE));
        asm.test(Insn::jump_if_equal(PKTTYPE_OUTGOING.into(), 0, 0), To::Drop, To::Next);
    }
    let (one, drops_matches) = match filter {
        Filter::All if !grouped => return Vec::new(),
        Filter::Nothing => return DROP_ALL.to_vec(),
        Filter::All => return asm.finish(false),
        Filter::Only(one) => (one, false),
        Filter::Not(one) => (one, true),
    };
    asm.add(Insn::load_word(VLAN_TAG_PRESENT));
    if let Match::Ethertype(n) = one {
        ethertype(&mut asm, u32::from(*n));
        return asm.finish(drops_matches);
    }
    asm.test(Insn::jump_if_equal(0, 0, 0), To::Next, To::Other);
    asm.add(Insn::load_half(TYPE_AT));
    match one {
        Match::Flow(flow) => transport(&mut asm, flow),
        Match::Icmp => echo(&mut asm),
        Match::Answer(addr) => answered(&mut asm, *addr),
        Match::To(IpAddr::V4(addr)) => addressed(&mut asm, *addr),
        Match::To(IpAddr::V6(addr)) => addressed_v6(&mut asm, addr.to_bits()),
        Match::Ethertype(_) => {}
    }
    asm.finish(drops_matches)
}

/// Emits a test for an EtherType; if the kernel has removed a VLAN tag, the test is of the tag's
/// EtherType.
fn ethertype(asm: &mut Assembly, kind: u32) {
    asm.test(Insn::jump_if_equal(0, 0, 0), To::Untagged, To::Next);
    asm.add(Insn::load_word(VLAN_TYPE));
    asm.test(Insn::jump_if_equal(kind, 0, 0), To::Matches, To::Other);
    asm.place(To::Untagged);
    asm.add(Insn::load_half(TYPE_AT));
    asm.test(Insn::jump_if_equal(kind, 0, 0), To::Matches, To::Other);
}

/// Emits a match of the packet's destination port.
fn transport(asm: &mut Assembly, flow: &Flow) {
    let protocol = flow.protocol.number().into();
    asm.test(Insn::jump_if_equal(TYPE_IPV6, 0, 0), To::Ipv6, To::Next);
    asm.test(Insn::jump_if_equal(TYPE_IPV4, 0, 0), To::Next, To::Other);
    whole(asm, protocol, To::Next);
    behind_ipv4(asm);
    asm.add(Insn::load_half_behind(NETWORK_AT + TO_PORT_AT));
    asm.one_of(flow.ports.iter().map(|port| u32::from(*port)));
    asm.place(To::Ipv6);
    unextended(asm, protocol);
    asm.add(Insn::load_half(IPV6_BEHIND + TO_PORT_AT));
    asm.one_of(flow.ports.iter().map(|port| u32::from(*port)));
}

/// Emits a match of echo requests and replies of ICMP.
fn echo(asm: &mut Assembly) {
    asm.test(Insn::jump_if_equal(TYPE_IPV6, 0, 0), To::Ipv6, To::Next);
    asm.test(Insn::jump_if_equal(TYPE_IPV4, 0, 0), To::Next, To::Other);
    whole(asm, ICMP, To::Next);
    behind_ipv4(asm);
    asm.add(Insn::load_byte_behind(NETWORK_AT));
    asm.one_of(wire::ICMP_ECHO.map(u32::from).into_iter());
    asm.place(To::Ipv6);
    unextended(asm, ICMPV6);
    asm.add(Insn::load_byte(IPV6_BEHIND));
    asm.one_of(wire::ICMPV6_ECHO.map(u32::from).into_iter());
}

/// Emits a jump to `to` for IPv4 packets of `protocol` that are not fragments.
fn whole(asm: &mut Assembly, protocol: u32, to: To) {
    asm.add(Insn::load_byte(IPV4_PROTOCOL_AT));
    asm.test(Insn::jump_if_equal(protocol, 0, 0), To::Next, To::Other);
    asm.add(Insn::load_half(IPV4_FRAGMENT_AT));
    asm.test(Insn::jump_if_bits(IPV4_FRAGMENT, 0, 0), To::Drop, to);
}

/// Loads the length of the IPv4 header, and drops packets of which it is too short.
fn behind_ipv4(asm: &mut Assembly) {
    asm.add(Insn::load_byte(NETWORK_AT));
    asm.add(Insn::and(IPV4_LENGTH));
    asm.test(Insn::jump_if_at_least(IPV4_WORDS_MIN, 0, 0), To::Next, To::Drop);
    asm.add(Insn::load_ipv4_length(NETWORK_AT));
}

/// Emits a test that passes IPv6 packets with `protocol` directly after the IPv6 header.
fn unextended(asm: &mut Assembly, protocol: u32) {
    asm.add(Insn::load_byte(IPV6_NEXT_AT));
    for header in wire::IPV6_EXTENSIONS.map(u32::from) {
        asm.test(Insn::jump_if_equal(header, 0, 0), To::Drop, To::Next);
    }
    asm.test(Insn::jump_if_equal(protocol, 0, 0), To::Next, To::Other);
}

/// Emits a match of packets to `addr`, and of ARP requests for it.
fn addressed(asm: &mut Assembly, addr: Ipv4Addr) {
    asm.test(Insn::jump_if_equal(TYPE_ARP, 0, 0), To::Question, To::Next);
    asm.test(Insn::jump_if_equal(TYPE_IPV4, 0, 0), To::Next, To::Other);
    asm.add(Insn::load_word(IPV4_TO_AT));
    asm.test(Insn::jump_if_equal(addr.to_bits(), 0, 0), To::Matches, To::Other);
    asm.place(To::Question);
    asm.add(Insn::load_word(ARP_TARGET_AT));
    asm.test(Insn::jump_if_equal(addr.to_bits(), 0, 0), To::Matches, To::Other);
}

fn addressed_v6(asm: &mut Assembly, addr: u128) {
    asm.test(Insn::jump_if_equal(TYPE_IPV6, 0, 0), To::Next, To::Other);
    asm.unless(IPV6_TO_AT, addr, To::Question);
    asm.place(To::Question);
    asm.add(Insn::load_byte(IPV6_NEXT_AT));
    asm.test(Insn::jump_if_equal(ICMPV6, 0, 0), To::Next, To::Other);
    asm.add(Insn::load_byte(IPV6_BEHIND));
    asm.test(Insn::jump_if_equal(ICMPV6_SOLICITATION, 0, 0), To::Next, To::Other);
    asm.unless(SOLICITED_AT, addr, To::Other);
}

/// Emits a match of ARP replies of `addr` to a probe, whose sender address is zero.
fn answered(asm: &mut Assembly, addr: Ipv4Addr) {
    asm.test(Insn::jump_if_equal(TYPE_ARP, 0, 0), To::Next, To::Other);
    asm.add(Insn::load_half(ARP_OP_AT));
    asm.test(Insn::jump_if_equal(ARP_REPLY, 0, 0), To::Next, To::Other);
    asm.add(Insn::load_word(ARP_SENDER_AT));
    asm.test(Insn::jump_if_equal(addr.to_bits(), 0, 0), To::Next, To::Other);
    asm.add(Insn::load_word(ARP_TARGET_AT));
    asm.test(Insn::jump_if_equal(0, 0, 0), To::Matches, To::Other);
}

/// Target of a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Next,
    Untagged,
    Ipv6,
    /// The packet may be a request for an address (ARP or neighbour solicitation).
    Question,
    /// The packet matches the filter.
    Matches,
    /// The packet does not match.
    Other,
    Drop,
}

/// Instructions with jumps whose distances are not known yet.
#[derive(Default)]
struct Assembly {
    insns: Vec<Insn>,
    jumps: Vec<(usize, To, To)>,
    places: Vec<(To, usize)>,
}

impl Assembly {
    fn add(&mut self, insn: Insn) {
        self.insns.push(insn);
    }

    fn test(&mut self, insn: Insn, yes: To, no: To) {
        self.jumps.push((self.insns.len(), yes, no));
        self.insns.push(insn);
    }

    fn place(&mut self, here: To) {
        self.places.push((here, self.insns.len()));
    }

    /// Ends the program with a match if register A is one of `values`, otherwise with no match.
    fn one_of(&mut self, values: impl ExactSizeIterator<Item = u32>) {
        let last = values.len().saturating_sub(1);
        for (i, value) in values.enumerate() {
            let other = if i < last { To::Next } else { To::Other };
            self.test(Insn::jump_if_equal(value, 0, 0), To::Matches, other);
        }
    }

    /// Emits a match if the 16 bytes at `at` are `addr`, otherwise a jump to `to`.
    fn unless(&mut self, at: u32, addr: u128, to: To) {
        for (i, shift) in [96, 64, 32, 0].into_iter().enumerate() {
            self.add(Insn::load_word(at + 4 * i as u32));
            let yes = if shift == 0 { To::Matches } else { To::Next };
            self.test(Insn::jump_if_equal((addr >> shift) as u32, 0, 0), yes, to);
        }
    }

    /// Ends the program and resolves its jumps. Packets that no test has matched or rejected are
    /// accepted.
    fn finish(mut self, drops_matches: bool) -> Vec<Insn> {
        let take = self.insns.len();
        self.insns.extend([Insn::ret(u32::MAX), Insn::ret(0)]);
        let drop = take + 1;
        let (matches, other) = if drops_matches { (drop, take) } else { (take, drop) };
        for (at, yes, no) in self.jumps {
            let distance = |to: To| {
                let place = match to {
                    To::Next => at + 1,
                    To::Matches => matches,
                    To::Other => other,
                    // Every other target exists, and is after its jump.
                    _ => {
                        self.places.iter().find(|(name, _)| *name == to).map_or(drop, |(_, at)| *at)
                    }
                };
                (place - at - 1) as u8
            };
            self.insns[at] = self.insns[at].distances(distance(yes), distance(no));
        }
        self.insns
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use linerate_sys::cbpf;

    use super::*;
    use crate::host::flow::Protocol;

    /// Returns true if the kernel, with the filter of `flow`, accepts all bytes of `frame`.
    fn takes(flow: &Flow, frame: &[u8]) -> bool {
        passes(&Filter::Only(Match::Flow(flow.clone())), frame)
    }

    fn passes(filter: &Filter, frame: &[u8]) -> bool {
        let (a, b) = UnixDatagram::pair().unwrap();
        b.set_nonblocking(true).unwrap();
        cbpf::attach(&b, &program(filter, true)).unwrap();
        a.send(frame).unwrap();
        let mut left = vec![0; frame.len() + 1];
        match b.recv(&mut left) {
            Ok(n) => {
                assert_eq!(left[..n], *frame);
                true
            }
            Err(_) => false,
        }
    }

    fn ipv4(protocol: u8, options: usize, fragment: u16, port: u16) -> Vec<u8> {
        let mut f = vec![2; 12];
        f.extend([0x08, 0x00, 0x45 + options as u8, 0, 0, 0, 0, 0]);
        f.extend(fragment.to_be_bytes());
        f.extend([64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
        f.extend(vec![1; 4 * options]);
        f.extend([0x30, 0x39]);
        f.extend(port.to_be_bytes());
        f.extend([0; 16]);
        f
    }

    fn ipv6(next: u8, port: u16) -> Vec<u8> {
        let mut f = vec![2; 12];
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, next, 64]);
        f.extend([0; 32]);
        f.extend([0x30, 0x39]);
        f.extend(port.to_be_bytes());
        f.extend([0; 16]);
        f
    }

    #[test]
    fn only_its_ports_of_its_protocol_pass() {
        let ports: Vec<u16> = (0..16).map(|i| 1000 + 100 * i).collect();
        let flow = Flow { protocol: Protocol::Udp, ports: ports.clone() };
        for &port in &ports {
            for options in [0, 1, 10] {
                assert!(takes(&flow, &ipv4(17, options, 0, port)), "{port} {options}");
                assert!(takes(&flow, &ipv4(17, options, 0x4000, port)), "do not fragment");
            }
            assert!(takes(&flow, &ipv6(17, port)));
            assert!(!takes(&flow, &ipv4(6, 0, 0, port)) && !takes(&flow, &ipv6(6, port)));
            assert!(!takes(&flow, &ipv4(17, 0, 0, port + 1)) && !takes(&flow, &ipv6(17, port + 1)));
        }
        let flow = Flow { protocol: Protocol::Tcp, ports: vec![80] };
        assert!(takes(&flow, &ipv4(6, 0, 0, 80)) && takes(&flow, &ipv6(6, 80)));
        assert!(!takes(&flow, &ipv4(17, 0, 0, 80)) && !takes(&flow, &ipv6(17, 80)));
    }

    #[test]
    fn fragments_extensions_and_what_is_cut_short_stay_with_the_host() {
        let flow = Flow { protocol: Protocol::Udp, ports: vec![7777] };
        for fragment in [0x2000, 0x2001, 0x0001, 0x1fff] {
            assert!(!takes(&flow, &ipv4(17, 0, fragment, 7777)), "{fragment:#x}");
        }
        for extension in [0, 43, 44, 50, 51, 60, 135] {
            assert!(!takes(&flow, &ipv6(extension, 7777)), "{extension}");
        }
        for whole in [ipv4(17, 0, 0, 7777), ipv4(17, 10, 0, 7777), ipv6(17, 7777)] {
            let ports_end = whole.len() - 16;
            for len in 1..ports_end {
                assert!(!takes(&flow, &whole[..len]), "{len} of {}", whole.len());
            }
            assert!(takes(&flow, &whole[..ports_end]));
        }
        let mut short_header = ipv4(17, 0, 0, 7777);
        short_header[14] = 0x44;
        short_header.copy_within(34..38, 30);
        assert!(!takes(&flow, &short_header));
        let mut arp = ipv4(17, 0, 0, 7777);
        arp[13] = 0x06;
        assert!(!takes(&flow, &arp));
    }

    fn filter(words: &str) -> Filter {
        Filter::of(&crate::parse(&format!("packet:v0,{words}")).unwrap()).unwrap().unwrap()
    }

    fn arp(op: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let head = [&[2; 12][..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, op]].concat();
        [&head[..], &[2; 6], &sender, &[2; 6], &target, &[0; 18]].concat()
    }

    #[test]
    fn packets_to_an_address_and_questions_about_it_pass() {
        let (ours, other) = ([198, 18, 0, 2], [198, 18, 0, 3]);
        let (only, not) = (filter("dst=198.18.0.2"), filter("not=dst:198.18.0.2"));
        for fragment in [0, 0x2000, 0x0010] {
            let mut to = ipv4(17, 0, fragment, 53);
            assert!(passes(&only, &to) && !passes(&not, &to), "{fragment:#x}");
            to[33] = 3;
            assert!(!passes(&only, &to) && passes(&not, &to));
        }
        assert!(passes(&only, &arp(1, other, ours)) && !passes(&only, &arp(1, ours, other)));
        assert!(!passes(&only, &ipv4(17, 0, 0, 53)[..33]), "cut short");
        assert!(!passes(&only, &ipv6(17, 53)) && passes(&not, &ipv6(17, 53)));

        let only = filter("dst=fd00::200:9");
        for last in [9, 8] {
            let mut addr = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 9];
            addr[15] = last;
            let mut to = ipv6(43, 53);
            to[38..54].copy_from_slice(&addr);
            assert_eq!(passes(&only, &to), last == 9, "with extensions, too");
            let mut question = ipv6(58, 53);
            question.resize(54 + 24, 0);
            question[54] = 135;
            question[62..78].copy_from_slice(&addr);
            assert_eq!(passes(&only, &question), last == 9);
            assert!(!passes(&only, &question[..77]), "cut short");
            question[54] = 136;
            assert!(!passes(&only, &question), "an answer");
        }
    }

    #[test]
    fn icmp_arp_and_types_pass_as_they_are_taken_by_xdp() {
        let (icmp, not) = (filter("icmp"), filter("not=icmp"));
        for (kind, is_echo) in [(8, true), (0, true), (3, false), (11, false), (12, false)] {
            for options in [0, 10] {
                let mut packet = ipv4(1, options, 0, 0);
                let at = 34 + 4 * options;
                packet[at..at + 2].copy_from_slice(&[kind, 9]);
                assert_eq!((passes(&icmp, &packet), passes(&not, &packet)), (is_echo, !is_echo));
            }
        }
        assert!(!passes(&icmp, &ipv4(17, 0, 0, 0)) && passes(&not, &ipv4(17, 0, 0, 0)));
        assert!(!passes(&icmp, &ipv4(1, 0, 0x2000, 0)) && !passes(&not, &ipv4(1, 0, 0x2000, 0)));
        for (kind, is_echo) in [(128, true), (129, true), (135, false), (2, false)] {
            let mut packet = ipv6(58, 0);
            packet[54] = kind;
            assert_eq!((passes(&icmp, &packet), passes(&not, &packet)), (is_echo, !is_echo));
        }
        // The kernel keeps packets that the filter cannot classify by their first headers, also
        // here.
        assert!(!passes(&icmp, &ipv6(43, 0)) && !passes(&not, &ipv6(43, 0)));
        let question = arp(1, [198, 18, 0, 1], [198, 18, 0, 2]);
        for words in ["arp", "ethertype=0x0806", "not=icmp", "not=tcp:22", "all"] {
            assert!(passes(&filter(words), &question), "{words}");
        }
        for words in ["icmp", "udp=53", "not=arp", "ethertype=0x88b5", "answer=198.18.0.1"] {
            assert!(!passes(&filter(words), &question), "{words}");
        }
        let answer = filter("answer=198.18.0.1");
        assert!(passes(&answer, &arp(2, [198, 18, 0, 1], [0; 4])));
        assert!(!passes(&answer, &arp(2, [198, 18, 0, 1], [198, 18, 0, 9])), "to the host");
        let not = filter("not=tcp:22+80");
        assert!(!passes(&not, &ipv4(6, 0, 0, 80)) && passes(&not, &ipv4(6, 0, 0, 81)));
    }

    #[test]
    fn a_port_for_everything_needs_no_filter_unless_it_is_of_a_group() {
        assert_eq!(program(&Filter::All, false), []);
        let all = program(&Filter::All, true);
        assert_eq!(all.len(), 4);
        let (a, b) = UnixDatagram::pair().unwrap();
        cbpf::attach(&b, &all).unwrap();
        a.send(&[1; 60]).unwrap();
        assert_eq!(b.recv(&mut [0; 64]).unwrap(), 60);
    }
}
