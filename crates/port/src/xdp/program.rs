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
use crate::host::flow::Flow;
use Reg::{R0, R1, R2, R3, R4, R5, R6, R7};

// The facts of host/filter.rs, as the instructions take them: offsets from the start of a header,
// and lengths to be compared with the packet's end.
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
/// Length of the header of an ICMP message, which is equal in both versions.
const ICMP_BYTES: i32 = wire::ICMPV6_BYTES as i32;
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
            Match::Flow(flow) => addressed_port(&mut asm, flow),
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
fn addressed_port(asm: &mut Assembly, flow: &Flow) {
    transport(asm, [flow.protocol.number().into(); 2]);
    asm.within(R7, PORTS_BYTES);
    asm.add([Insn::load(Size::Half, R5, R7, TO_PORT_AT)]);
    for port in &flow.ports {
        asm.jump(Insn::jump_if(If::Equal, R5, be16(*port)), To::Matches);
    }
    asm.jump(Insn::jump(), To::Other);
}

/// Moves R7 to the header behind IP, if that is of the protocol `v4` of IPv4 or `v6` of IPv6.
fn transport(asm: &mut Assembly, [v4, v6]: [i32; 2]) {
    asm.add([Insn::copy(R7, R2), Insn::add(R7, ETHERNET_BYTES)]);
    asm.jump(Insn::jump_if(If::Equal, R5, be16(TYPE_IPV4)), To::Ipv4);
    asm.jump(Insn::jump_if(If::Equal, R5, be16(TYPE_IPV6)), To::Ipv6);
    asm.jump(Insn::jump(), To::Other);

    asm.place(To::Ipv4);
    asm.within(R7, IPV4_BYTES_MIN);
    asm.add([Insn::load(Size::Byte, R5, R7, IPV4_PROTOCOL_AT)]);
    asm.jump(Insn::jump_if(If::Differs, R5, v4), To::Other);
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
    // Options, bit by bit of their length: without CAP_PERFMON, a program may add only constants to
    // a packet pointer.
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
    asm.jump(Insn::jump_if(If::Differs, R5, v6), To::Other);
    asm.add([Insn::add(R7, IPV6_BYTES)]);
    asm.place(To::Ports);
}

/// Finds echo requests and replies of ICMP. No type of the one version's echo has a meaning in the
/// other.
fn echo(asm: &mut Assembly) {
    transport(asm, [ICMP, ICMPV6]);
    asm.within(R7, ICMP_BYTES);
    asm.add([Insn::load(Size::Byte, R5, R7, 0)]);
    for echo in wire::ICMP_ECHO.into_iter().chain(wire::ICMPV6_ECHO) {
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
mod tests;
