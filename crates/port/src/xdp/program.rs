//! The kernel program of a filter.
//!
//! ```text
//!   r6 context · r2 first byte · r3 end · r7 header looked at · r4, r5, r0 in passing
//!
//!   take:  return bpf_redirect_map(sockets, queue, XDP_PASS)      a queue without a socket passes
//!   pass:  return XDP_PASS
//! ```
//!
//! Every read is behind a comparison with the end, as the verifier asks for.

use std::net::{IpAddr, Ipv4Addr};

use linerate_sys::bpf::{
    CONTEXT_DATA, CONTEXT_DATA_END, CONTEXT_RX_QUEUE, HELPER_REDIRECT_MAP, If, Insn, Reg, Size,
    XDP_PASS,
};

use crate::host::filter::wire::{IPV4_FRAGMENT, IPV6_EXTENSIONS, TYPE_ARP, TYPE_IPV4, TYPE_IPV6};
use crate::host::filter::{Filter, Match, wire};
use Reg::{R0, R1, R2, R3, R4, R5, R6, R7};

// The facts of host/filter.rs, as the instructions take them: offsets from the start of a header, and lengths to be
// compared with the packet's end.
const ETHERNET_BYTES: i32 = wire::ETHERNET_BYTES as i32;
const TYPE_AT: i16 = wire::ETHERNET_TYPE_AT as i16;
const IPV4_BYTES_MIN: i32 = wire::IPV4_BYTES_MIN as i32;
const IPV4_FRAGMENT_AT: i16 = wire::IPV4_FRAGMENT_AT as i16;
const IPV4_PROTOCOL_AT: i16 = wire::IPV4_PROTOCOL_AT as i16;
const IPV4_TO_AT: i16 = wire::IPV4_TO_AT as i16;
const IPV6_BYTES: i32 = wire::IPV6_BYTES as i32;
const IPV6_NEXT_AT: i16 = wire::IPV6_NEXT_AT as i16;
const IPV6_TO_AT: i16 = wire::IPV6_TO_AT as i16;
const ICMP: i32 = wire::ICMP as i32;
const ICMPV6: i32 = wire::ICMPV6 as i32;
/// Offset of the type of an ICMPv6 message behind an IPv6 header.
const ICMPV6_TYPE_AT: i16 = wire::IPV6_BYTES as i16;
/// Length of an IPv6 header and the header of an ICMPv6 message.
const ICMPV6_BYTES: i32 = IPV6_BYTES + wire::ICMPV6_BYTES as i32;
const ICMPV6_SOLICITATION: i32 = wire::ICMPV6_SOLICITATION as i32;
/// Offset of the requested address in a neighbour solicitation behind an IPv6 header.
const SOLICITED_AT: i16 = ICMPV6_TYPE_AT + wire::ICMPV6_TARGET_AT as i16;
/// Length of an IPv6 header and a neighbour solicitation.
const SOLICITATION_BYTES: i32 = IPV6_BYTES + wire::ICMPV6_SOLICITATION_BYTES as i32;
const ARP_BYTES: i32 = wire::ARP_BYTES as i32;
const ARP_OP_AT: i16 = wire::ARP_OP_AT as i16;
const ARP_REPLY: [u8; 2] = wire::ARP_REPLY.to_be_bytes();
const ARP_SENDER_AT: i16 = wire::ARP_SENDER_AT as i16;
const ARP_TARGET_AT: i16 = wire::ARP_TARGET_AT as i16;
const PORTS_BYTES: i32 = wire::PORTS_BYTES as i32;
const TO_PORT_AT: i16 = wire::PORTS_TO_AT as i16;

/// Target of a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Take,
    Pass,
    /// The packet matches the filter.
    Matches,
    /// The packet does not match.
    Other,
    Ipv4,
    Ipv6,
    Ports,
    /// The packet may be a request for an address.
    Question,
}

/// Instructions, with jumps whose distances are not known yet.
#[derive(Default)]
struct Assembly {
    insns: Vec<Insn>,
    jumps: Vec<(usize, To)>,
    places: Vec<(To, usize)>,
}

impl Assembly {
    fn add(&mut self, insns: impl IntoIterator<Item = Insn>) {
        self.insns.extend(insns);
    }

    fn jump(&mut self, insn: Insn, to: To) {
        self.jumps.push((self.insns.len(), to));
        self.insns.push(insn);
    }

    fn place(&mut self, here: To) {
        self.places.push((here, self.insns.len()));
    }

    /// Fills in the distances. Every place that is jumped to is there, and ahead: programs here are
    /// shorter than a jump reaches.
    fn finish(mut self) -> Vec<Insn> {
        for (at, to) in self.jumps {
            let place = self.places.iter().find(|(name, _)| *name == to);
            let distance = place.map_or(0, |(_, place)| place - at - 1);
            self.insns[at] = self.insns[at].to(distance as i16);
        }
        self.insns
    }

    /// Emits a jump to `to` unless the bytes at `at` of the network header are `bytes`.
    fn unless(&mut self, at: i16, bytes: &[u8], to: To) {
        let (halves, _) = bytes.as_chunks();
        for (at, half) in (at..).step_by(2).zip(halves) {
            self.add([Insn::load(Size::Half, R5, R7, at)]);
            self.jump(Insn::jump_if(If::Differs, R5, be16(u16::from_be_bytes(*half))), to);
        }
    }

    /// Emits a jump that passes the packet on unless it has `bytes` from `from`.
    fn within(&mut self, from: Reg, bytes: i32) {
        self.add([Insn::copy(R4, from), Insn::add(R4, bytes)]);
        self.jump(Insn::jump_if_reg(If::Above, R4, R3), To::Pass);
    }
}

/// Returns the program of `filter`; a filter that takes nothing has one too, because some drivers
/// send for an AF_XDP socket only while a program is attached. `map` is the descriptor of the map
/// of sockets, by queue.
pub(super) fn assemble(filter: &Filter, map: i32) -> Vec<Insn> {
    let mut asm = Assembly::default();
    asm.add([Insn::copy(R6, R1)]);
    let (one, matches, other) = match filter {
        Filter::Nothing => return vec![Insn::set(R0, XDP_PASS), Insn::exit()],
        Filter::All => (None, To::Take, To::Take),
        Filter::Only(one) => (Some(one), To::Take, To::Pass),
        Filter::Not(one) => (Some(one), To::Pass, To::Take),
    };
    if let Some(one) = one {
        asm.add([
            Insn::load(Size::Word, R2, R6, CONTEXT_DATA),
            Insn::load(Size::Word, R3, R6, CONTEXT_DATA_END),
        ]);
        asm.within(R2, ETHERNET_BYTES);
        asm.add([Insn::load(Size::Half, R5, R2, TYPE_AT)]);
        match one {
            Match::Ethertype(n) => {
                asm.jump(Insn::jump_if(If::Equal, R5, be16(*n)), To::Matches);
                asm.jump(Insn::jump(), To::Other);
            }
            Match::Flow(flow) => transport(&mut asm, flow.protocol.number().into(), &flow.ports),
            Match::Icmp => echo(&mut asm),
            Match::Answer(addr) => answered(&mut asm, *addr),
            Match::To(addr) => addressed(&mut asm, *addr),
        }
        asm.place(To::Matches);
        asm.jump(Insn::jump(), matches);
        asm.place(To::Other);
        asm.jump(Insn::jump(), other);
    }
    asm.place(To::Take);
    asm.add([Insn::load(Size::Word, R2, R6, CONTEXT_RX_QUEUE)]);
    asm.add(Insn::load_map(R1, map));
    asm.add([Insn::set(R3, XDP_PASS), Insn::call(HELPER_REDIRECT_MAP), Insn::exit()]);
    // The verifier refuses unreachable instructions.
    if one.is_some() {
        asm.place(To::Pass);
        asm.add([Insn::set(R0, XDP_PASS), Insn::exit()]);
    }
    asm.finish()
}

/// Finds the port that a packet is to.
fn transport(asm: &mut Assembly, protocol: i32, ports: &[u16]) {
    asm.add([Insn::copy(R7, R2), Insn::add(R7, ETHERNET_BYTES)]);
    asm.jump(Insn::jump_if(If::Equal, R5, be16(TYPE_IPV4)), To::Ipv4);
    asm.jump(Insn::jump_if(If::Equal, R5, be16(TYPE_IPV6)), To::Ipv6);
    asm.jump(Insn::jump(), To::Other);

    asm.place(To::Ipv4);
    asm.within(R7, IPV4_BYTES_MIN);
    asm.add([Insn::load(Size::Byte, R5, R7, IPV4_PROTOCOL_AT)]);
    asm.jump(Insn::jump_if(If::Differs, R5, protocol), To::Other);
    asm.add([Insn::load(Size::Half, R5, R7, IPV4_FRAGMENT_AT)]);
    asm.jump(Insn::jump_if(If::Bits, R5, be16(IPV4_FRAGMENT)), To::Pass);
    // The header's length, in words of four bytes.
    asm.add([
        Insn::load(Size::Byte, R0, R7, 0),
        Insn::and(R0, wire::IPV4_LENGTH.into()),
        Insn::shift_left(R0, 2),
    ]);
    asm.jump(Insn::jump_if(If::Below, R0, IPV4_BYTES_MIN), To::Pass);
    asm.add([Insn::add(R7, IPV4_BYTES_MIN)]);
    asm.jump(Insn::jump_if(If::Equal, R0, IPV4_BYTES_MIN), To::Ports);
    // Options, bit by bit of their length: without CAP_PERFMON, a program may add only constants to a packet
    // pointer.
    asm.add([Insn::add(R0, -IPV4_BYTES_MIN)]);
    for bit in [4, 8, 16, 32] {
        let set = Insn::jump_if(If::Bits, R0, bit).to(1);
        asm.add([set, Insn::jump().to(1), Insn::add(R7, bit)]);
    }
    asm.jump(Insn::jump(), To::Ports);

    asm.place(To::Ipv6);
    asm.within(R7, IPV6_BYTES);
    asm.add([Insn::load(Size::Byte, R5, R7, IPV6_NEXT_AT)]);
    for header in IPV6_EXTENSIONS {
        asm.jump(Insn::jump_if(If::Equal, R5, header.into()), To::Pass);
    }
    asm.jump(Insn::jump_if(If::Differs, R5, protocol), To::Other);
    asm.add([Insn::add(R7, IPV6_BYTES)]);

    asm.place(To::Ports);
    asm.within(R7, PORTS_BYTES);
    asm.add([Insn::load(Size::Half, R5, R7, TO_PORT_AT)]);
    for port in ports {
        asm.jump(Insn::jump_if(If::Equal, R5, be16(*port)), To::Matches);
    }
    asm.jump(Insn::jump(), To::Other);
}

/// Finds ICMP, and echo of ICMPv6.
fn echo(asm: &mut Assembly) {
    asm.add([Insn::copy(R7, R2), Insn::add(R7, ETHERNET_BYTES)]);
    asm.jump(Insn::jump_if(If::Equal, R5, be16(TYPE_IPV6)), To::Ipv6);
    asm.jump(Insn::jump_if(If::Differs, R5, be16(TYPE_IPV4)), To::Other);
    asm.within(R7, IPV4_BYTES_MIN);
    asm.add([Insn::load(Size::Byte, R5, R7, IPV4_PROTOCOL_AT)]);
    asm.jump(Insn::jump_if(If::Differs, R5, ICMP), To::Other);
    asm.add([Insn::load(Size::Half, R5, R7, IPV4_FRAGMENT_AT)]);
    asm.jump(Insn::jump_if(If::Bits, R5, be16(IPV4_FRAGMENT)), To::Pass);
    asm.jump(Insn::jump(), To::Matches);

    asm.place(To::Ipv6);
    asm.within(R7, IPV6_BYTES);
    asm.add([Insn::load(Size::Byte, R5, R7, IPV6_NEXT_AT)]);
    for header in IPV6_EXTENSIONS {
        asm.jump(Insn::jump_if(If::Equal, R5, header.into()), To::Pass);
    }
    asm.jump(Insn::jump_if(If::Differs, R5, ICMPV6), To::Other);
    asm.within(R7, ICMPV6_BYTES);
    asm.add([Insn::load(Size::Byte, R5, R7, ICMPV6_TYPE_AT)]);
    for echo in wire::ICMPV6_ECHO {
        asm.jump(Insn::jump_if(If::Equal, R5, echo.into()), To::Matches);
    }
    asm.jump(Insn::jump(), To::Other);
}

/// Emits a match of packets to `addr`, and of ARP requests and neighbour solicitations for it.
fn addressed(asm: &mut Assembly, addr: IpAddr) {
    asm.add([Insn::copy(R7, R2), Insn::add(R7, ETHERNET_BYTES)]);
    match addr {
        IpAddr::V4(addr) => {
            asm.jump(Insn::jump_if(If::Equal, R5, be16(TYPE_ARP)), To::Question);
            asm.jump(Insn::jump_if(If::Differs, R5, be16(TYPE_IPV4)), To::Other);
            asm.within(R7, IPV4_BYTES_MIN);
            asm.unless(IPV4_TO_AT, &addr.octets(), To::Other);
            asm.jump(Insn::jump(), To::Matches);
            asm.place(To::Question);
            asm.within(R7, ARP_BYTES);
            asm.unless(ARP_TARGET_AT, &addr.octets(), To::Other);
        }
        IpAddr::V6(addr) => {
            asm.jump(Insn::jump_if(If::Differs, R5, be16(TYPE_IPV6)), To::Other);
            asm.within(R7, IPV6_BYTES);
            asm.unless(IPV6_TO_AT, &addr.octets(), To::Question);
            asm.jump(Insn::jump(), To::Matches);
            asm.place(To::Question);
            asm.add([Insn::load(Size::Byte, R5, R7, IPV6_NEXT_AT)]);
            asm.jump(Insn::jump_if(If::Differs, R5, ICMPV6), To::Other);
            asm.within(R7, SOLICITATION_BYTES);
            asm.add([Insn::load(Size::Byte, R5, R7, ICMPV6_TYPE_AT)]);
            asm.jump(Insn::jump_if(If::Differs, R5, ICMPV6_SOLICITATION), To::Other);
            asm.unless(SOLICITED_AT, &addr.octets(), To::Other);
        }
    }
    asm.jump(Insn::jump(), To::Matches);
}

/// Emits a match of replies of `addr` to an ARP probe, whose sender address is zero.
///
/// Source: RFC 5227, section 1.1.
fn answered(asm: &mut Assembly, addr: Ipv4Addr) {
    asm.add([Insn::copy(R7, R2), Insn::add(R7, ETHERNET_BYTES)]);
    asm.jump(Insn::jump_if(If::Differs, R5, be16(TYPE_ARP)), To::Other);
    asm.within(R7, ARP_BYTES);
    asm.unless(ARP_OP_AT, &ARP_REPLY, To::Other);
    asm.unless(ARP_SENDER_AT, &addr.octets(), To::Other);
    asm.unless(ARP_TARGET_AT, &[0; 4], To::Other);
    asm.jump(Insn::jump(), To::Matches);
}

/// Returns a 16-bit number in network byte order, as this CPU loads it from a packet.
fn be16(number: u16) -> i32 {
    i32::from(number.to_be())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use linerate_sys::bpf::{Program, SocketMap};
    use rustix::thread::CapabilitySet;

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
            let map = match SocketMap::new(4) {
                Ok(map) => map,
                Err(e) => {
                    eprintln!("skipped: {e}");
                    return None;
                }
            };
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
            sets.effective &=
                CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF;
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
    fn icmp_is_taken_and_neighbour_discovery_left() {
        let Some(icmp) = Filtered::by(",icmp") else { return };
        assert!(icmp.takes(&v4(1, 0, 0, 0)) && !icmp.takes(&v4(17, 0, 0, 0)));
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
}
