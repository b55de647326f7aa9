//! The socket's filter: what of the interface's packets this port receives.
//!
//! ```text
//!   ── sent by this machine ──► drop              only in a group, whose sockets the kernel may hand it
//!   ── had a VLAN tag ────────► drop              it is of the VLAN's own interface
//!   ── IPv4, UDP, no fragment, its port ──► take
//!   ── IPv6, UDP, no extension, its port ─► take
//!   ── else ──────────────────► drop
//! ```
//!
//! A filter decides by one packet's first headers. What it takes more to tell (the later fragments of
//! a datagram have no ports, extension headers are a list) is not received.

use linerate_sys::cbpf::{Insn, PACKET_TYPE, VLAN_TAG_PRESENT};
use linerate_sys::packet::PKTTYPE_OUTGOING;

use crate::host::flow::{Flow, PORTS_MAX};

const TYPE_AT: u32 = 12;
const TYPE_IPV4: u32 = 0x0800;
const TYPE_IPV6: u32 = 0x86dd;
/// Offset of the network header.
const NETWORK_AT: u32 = 14;
const IPV4_LENGTH: u32 = 0x0f;
const IPV4_WORDS_MIN: u32 = 5;
const IPV4_FRAGMENT_AT: u32 = NETWORK_AT + 6;
/// More fragments, or not the first.
const IPV4_FRAGMENT: u32 = 0x3fff;
const IPV4_PROTOCOL_AT: u32 = NETWORK_AT + 9;
const IPV6_NEXT_AT: u32 = NETWORK_AT + 6;
const IPV6_BYTES: u32 = 40;
/// Offset of the destination port in the headers of UDP and TCP.
const TO_PORT_AT: u32 = 2;

// All jumps go ahead, over less than the program: their distance fits.
const _: () = assert!(2 * PORTS_MAX + 32 < u8::MAX as usize);

/// Returns the filter of a port for `flow`, or for everything; `grouped` if its socket is one of several.
/// Without an instruction none is needed.
pub(super) fn program(flow: Option<&Flow>, grouped: bool) -> Vec<Insn> {
    let mut asm = Assembly::default();
    if grouped {
        asm.add(Insn::load_word(PACKET_TYPE));
        asm.test(Insn::jump_if_equal(PKTTYPE_OUTGOING.into(), 0, 0), To::Drop, To::Next);
    }
    match flow {
        Some(flow) => ports_of(&mut asm, flow),
        None if grouped => {}
        None => return Vec::new(),
    }
    asm.finish(flow.is_some())
}

fn ports_of(asm: &mut Assembly, flow: &Flow) {
    let protocol = Insn::jump_if_equal(flow.protocol.number().into(), 0, 0);
    asm.add(Insn::load_word(VLAN_TAG_PRESENT));
    asm.test(Insn::jump_if_equal(0, 0, 0), To::Next, To::Drop);
    asm.add(Insn::load_half(TYPE_AT));
    asm.test(Insn::jump_if_equal(TYPE_IPV6, 0, 0), To::Ipv6, To::Next);
    asm.test(Insn::jump_if_equal(TYPE_IPV4, 0, 0), To::Next, To::Drop);
    asm.add(Insn::load_byte(IPV4_PROTOCOL_AT));
    asm.test(protocol, To::Next, To::Drop);
    asm.add(Insn::load_half(IPV4_FRAGMENT_AT));
    asm.test(Insn::jump_if_bits(IPV4_FRAGMENT, 0, 0), To::Drop, To::Next);
    asm.add(Insn::load_byte(NETWORK_AT));
    asm.add(Insn::and(IPV4_LENGTH));
    asm.test(Insn::jump_if_at_least(IPV4_WORDS_MIN, 0, 0), To::Next, To::Drop);
    asm.add(Insn::load_ipv4_length(NETWORK_AT));
    asm.add(Insn::load_half_behind(NETWORK_AT + TO_PORT_AT));
    one_of(asm, &flow.ports);
    asm.place_ipv6();
    asm.add(Insn::load_byte(IPV6_NEXT_AT));
    asm.test(protocol, To::Next, To::Drop);
    asm.add(Insn::load_half(NETWORK_AT + IPV6_BYTES + TO_PORT_AT));
    one_of(asm, &flow.ports);
}

/// Takes the packet if A is one of `ports`, else drops it.
fn one_of(asm: &mut Assembly, ports: &[u16]) {
    for (i, &port) in ports.iter().enumerate() {
        let other = if i + 1 < ports.len() { To::Next } else { To::Drop };
        asm.test(Insn::jump_if_equal(port.into(), 0, 0), To::Take, other);
    }
}

/// Target of a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Next,
    Ipv6,
    Take,
    Drop,
}

/// Instructions, and the jumps among them whose distances are not known yet.
#[derive(Default)]
struct Assembly {
    insns: Vec<Insn>,
    jumps: Vec<(usize, To, To)>,
    ipv6: usize,
}

impl Assembly {
    fn add(&mut self, insn: Insn) {
        self.insns.push(insn);
    }

    fn test(&mut self, insn: Insn, yes: To, no: To) {
        self.jumps.push((self.insns.len(), yes, no));
        self.insns.push(insn);
    }

    fn place_ipv6(&mut self) {
        self.ipv6 = self.insns.len();
    }

    /// Ends the program; what no test has dropped by then is dropped if it `drops`, else taken.
    fn finish(mut self, drops: bool) -> Vec<Insn> {
        let end = self.insns.len();
        let (all, none) = (Insn::ret(u32::MAX), Insn::ret(0));
        self.insns.extend(if drops { [none, all] } else { [all, none] });
        let (drop, take) = if drops { (end, end + 1) } else { (end + 1, end) };
        for (at, yes, no) in self.jumps {
            let distance = |to: To| {
                let place = match to {
                    To::Next => at + 1,
                    To::Ipv6 => self.ipv6,
                    To::Take => take,
                    To::Drop => drop,
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

    /// Returns true if the kernel, with the filter of `flow`, accepts `frame` in full length.
    fn takes(flow: &Flow, frame: &[u8]) -> bool {
        let (a, b) = UnixDatagram::pair().unwrap();
        b.set_nonblocking(true).unwrap();
        cbpf::attach(&b, &program(Some(flow), true)).unwrap();
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

    #[test]
    fn a_port_for_everything_needs_no_filter_unless_it_is_of_a_group() {
        assert_eq!(program(None, false), []);
        let all = program(None, true);
        assert_eq!(all.len(), 4);
        let (a, b) = UnixDatagram::pair().unwrap();
        cbpf::attach(&b, &all).unwrap();
        a.send(&[1; 60]).unwrap();
        assert_eq!(b.recv(&mut [0; 64]).unwrap(), 60);
    }
}
