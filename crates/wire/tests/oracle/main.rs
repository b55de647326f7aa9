//! Compares every setter and every new header with a packet that etherparse writes anew, with
//! checksums computed from scratch.

mod edits;

use std::mem::swap;
use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{
    Ethernet2Header, IcmpEchoHeader, Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpNumber,
    Ipv4Header, Ipv6Header, SingleVlanHeader, TcpHeader, TransportHeader, UdpHeader, VlanId,
};
use linerate_wire::{
    EtherType, Head, HeadMut, Mac, Partial, Protocol, Tunnel, VlanTag, checksum, icmp, ip, nd_mut,
    tcp, udp,
};
use proptest::prelude::*;

use edits::{edit_ours, edit_theirs};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// A packet in etherparse's headers.
#[derive(Debug, Clone)]
struct Packet {
    macs: [[u8; 6]; 2],
    vlan: Option<(u16, u8)>,
    net: Net,
    transport: TransportHeader,
    payload: Vec<u8>,
}

#[derive(Debug, Clone)]
enum Net {
    V4(Ipv4Header),
    V6(Ipv6Header),
}

/// Returns a header whose length and checksum are still to be set.
fn udp_header(source_port: u16, destination_port: u16) -> UdpHeader {
    UdpHeader { source_port, destination_port, length: 8, checksum: 0 }
}

impl Packet {
    /// Returns a packet of UDP, TCP or ICMP with the given payload.
    fn new(v6: bool, kind: usize, tagged: bool, payload: &[u8]) -> Packet {
        let echo = IcmpEchoHeader { id: 7, seq: 9 };
        let (number, transport) = match (kind, v6) {
            (0, _) => (IpNumber::UDP, TransportHeader::Udp(udp_header(1000, 2000))),
            (1, _) => {
                let mut tcp = TcpHeader::new(1000, 2000, 7, 512);
                tcp.set_options_raw(&[1, 1, 1, 0]).unwrap();
                (IpNumber::TCP, TransportHeader::Tcp(tcp))
            }
            (_, false) => {
                let icmp = Icmpv4Header::new(Icmpv4Type::EchoRequest(echo));
                (IpNumber::ICMP, TransportHeader::Icmpv4(icmp))
            }
            (_, true) => {
                let icmp = Icmpv6Header::new(Icmpv6Type::EchoRequest(echo));
                (IpNumber::IPV6_ICMP, TransportHeader::Icmpv6(icmp))
            }
        };
        let net = if v6 {
            let [source, destination] =
                [1, 2].map(|n| Ipv6Addr::from_bits(0xfd << 120 | n).octets());
            let next_header = number;
            let rest = Ipv6Header { hop_limit: 9, ..Default::default() };
            Net::V6(Ipv6Header { next_header, source, destination, ..rest })
        } else {
            Net::V4(Ipv4Header::new(0, 9, number, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap())
        };
        let vlan = tagged.then_some((100, 3));
        Packet { macs: MACS, vlan, net, transport, payload: payload.to_vec() }
    }

    /// Writes the packet, with all lengths and checksums computed.
    fn bytes(&self) -> Vec<u8> {
        let mut packet = self.clone();
        let ip_type = match packet.net {
            Net::V4(_) => etherparse::EtherType::IPV4,
            Net::V6(_) => etherparse::EtherType::IPV6,
        };
        let tag = packet.vlan.map(|(vid, pcp)| SingleVlanHeader {
            pcp: pcp.try_into().unwrap(),
            drop_eligible_indicator: false,
            vlan_id: VlanId::try_new(vid).unwrap(),
            ether_type: ip_type,
        });
        let ether_type = tag.as_ref().map_or(ip_type, |_| etherparse::EtherType::VLAN_TAGGED_FRAME);
        let [source, destination] = packet.macs;
        let mut out = Ethernet2Header { source, destination, ether_type }.to_bytes().to_vec();
        out.extend(tag.iter().flat_map(|tag| tag.to_bytes()));

        let len = packet.transport.header_len() + packet.payload.len();
        if let TransportHeader::Udp(udp) = &mut packet.transport {
            udp.length = len as u16;
        }
        match &mut packet.net {
            Net::V4(ip) => {
                ip.set_payload_len(len).unwrap();
                packet.transport.update_checksum_ipv4(ip, &packet.payload).unwrap();
                ip.write(&mut out).unwrap();
            }
            Net::V6(ip) => {
                ip.set_payload_length(len).unwrap();
                packet.transport.update_checksum_ipv6(ip, &packet.payload).unwrap();
                ip.write(&mut out).unwrap();
            }
        }
        packet.transport.write(&mut out).unwrap();
        out.extend(&packet.payload);
        out
    }

    /// Returns the place of the transport checksum.
    fn partial(&self) -> Option<Partial> {
        let ip = if matches!(self.net, Net::V4(_)) { 20 } else { 40 };
        let start = 14 + 4 * usize::from(self.vlan.is_some()) + ip;
        let offset = match self.transport {
            TransportHeader::Udp(_) => 6,
            TransportHeader::Tcp(_) => 16,
            TransportHeader::Icmpv6(_) => 2,
            _ => return None,
        };
        Some(Partial { start, offset })
    }

    /// Swaps all addresses, and the ports.
    fn swap(&mut self) {
        self.macs.reverse();
        match &mut self.net {
            Net::V4(ip) => swap(&mut ip.source, &mut ip.destination),
            Net::V6(ip) => swap(&mut ip.source, &mut ip.destination),
        }
        match &mut self.transport {
            TransportHeader::Udp(udp) => swap(&mut udp.source_port, &mut udp.destination_port),
            TransportHeader::Tcp(tcp) => swap(&mut tcp.source_port, &mut tcp.destination_port),
            _ => {}
        }
    }

    fn set_hops(&mut self, hops: u8) {
        match &mut self.net {
            Net::V4(ip) => ip.time_to_live = hops,
            Net::V6(ip) => ip.hop_limit = hops,
        }
    }
}

/// Leaves the checksum of `frame` to a device.
fn leave(frame: &mut [u8], partial: Partial) {
    let ip = ip(frame).unwrap();
    let len = frame.len() - partial.start;
    let pseudo = match (ip.src(), ip.dst()) {
        (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => {
            checksum::pseudo_v4(src, dst, ip.protocol(), len as u16)
        }
        (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => {
            checksum::pseudo_v6(src, dst, ip.protocol(), len as u32)
        }
        _ => unreachable!(),
    };
    let at = partial.start + partial.offset;
    frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
}

/// Completes the checksum as a device does.
fn complete(frame: &mut [u8], partial: Partial) {
    let check = checksum::finish(checksum::sum(&frame[partial.start..]));
    let check = if check == 0 && partial.offset == 6 { 0xffff } else { check };
    let at = partial.start + partial.offset;
    frame[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

fn packets() -> impl Strategy<Value = Packet> {
    (any::<bool>(), 0usize..3, any::<bool>(), prop::collection::vec(any::<u8>(), 0..80))
        .prop_map(|(v6, kind, tagged, payload)| Packet::new(v6, kind, tagged, &payload))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn each_setter_equals_writing_the_packet_anew(
        packet in packets(),
        edits in prop::collection::vec((0..edits::KINDS, any::<u128>()), 1..5),
        left: bool,
    ) {
        let mut expected = packet.clone();
        let partial = packet.partial().filter(|_| left);
        let mut frame = packet.bytes();
        let end = frame.len();
        if let Some(partial) = partial {
            leave(&mut frame, partial);
        }
        // Room to grow, which is Ethernet padding until it is used.
        frame.resize(end + 64, 0xee);
        for edit in edits {
            edit_ours(HeadMut::new(&mut frame, 0).with_partial(partial), edit);
            edit_theirs(&mut expected, edit);
        }
        let head = Head::new(&frame, 0).with_partial(partial);
        let ok = head.udp().map(|v| v.checksum_ok()).or_else(|_| head.tcp().map(|v| v.checksum_ok()));
        prop_assert!(ok.or_else(|_| head.icmp().map(|v| v.checksum_ok())).unwrap());
        frame.truncate(expected.bytes().len());
        if let Some(partial) = partial {
            complete(&mut frame, partial);
        }
        prop_assert_eq!(frame, expected.bytes());
    }

    #[test]
    fn a_pushed_tag_or_ip_header_equals_writing_it_anew_and_is_popped_without_a_trace(
        packet in packets(), outside_v6: bool, padding in 0usize..20, ecn in 0u8..4,
        vid in 0u16..4096, pcp in 0u8..8,
    ) {
        let mut packet = packet;
        match &mut packet.net {
            Net::V4(ip) => ip.ecn = ecn.try_into().unwrap(),
            Net::V6(ip) => ip.traffic_class = ecn,
        }
        let mut original = packet.bytes();
        let eth = if packet.vlan.is_some() { 18 } else { 14 };
        let inner = original[eth..].to_vec();
        original.resize(original.len() + padding, 0);

        let (protocol, number) = match packet.net {
            Net::V4(_) => (Protocol::IPIP, IpNumber::IPV4),
            Net::V6(_) => (Protocol::IPV6, IpNumber::IPV6),
        };
        let (mut expected, ether_type) = (original[..eth - 2].to_vec(), u16::from(outside_v6));
        expected.extend(if ether_type == 1 { [0x86, 0xdd] } else { [8, 0] });
        let new = if outside_v6 { 40 } else { 20 };
        let mut frame = [vec![0xee; new], original.clone()].concat();
        let head = HeadMut::new(&mut frame, 0);
        if outside_v6 {
            let (source, destination) = ([0xfd; 16], [0xfe; 16]);
            let rest = Ipv6Header { hop_limit: 64, next_header: number, ..Default::default() };
            let mut ip = Ipv6Header { source, destination, traffic_class: ecn, ..rest };
            ip.set_payload_length(inner.len()).unwrap();
            ip.write(&mut expected).unwrap();
            head.push_ipv6(source.into(), destination.into(), protocol).unwrap();
        } else {
            let (source, destination) = ([192, 0, 2, 1], [192, 0, 2, 2]);
            let mut ip = Ipv4Header::new(inner.len() as u16, 64, number, source, destination).unwrap();
            ip.ecn = ecn.try_into().unwrap();
            ip.write(&mut expected).unwrap();
            head.push_ipv4(source.into(), destination.into(), protocol).unwrap();
        }
        expected.extend(inner);
        expected.resize(expected.len() + padding, 0);
        prop_assert_eq!(&frame, &expected);
        prop_assert_eq!(HeadMut::new(&mut frame, 0).pop_ip(), Ok(new));
        prop_assert_eq!(&frame[new..], &original[..]);

        let tag = VlanTag::new(vid, pcp).service();
        let mut frame = [vec![0xee; 4], original.clone()].concat();
        HeadMut::new(&mut frame, 0).push_vlan(tag).unwrap();
        let tci = (u16::from(pcp) << 13 | vid).to_be_bytes();
        let expected = [&original[..12], &[0x88, 0xa8], &tci, &original[12..]].concat();
        prop_assert_eq!(&frame, &expected);
        let popped = HeadMut::new(&mut frame, 0).pop_vlan().unwrap();
        prop_assert_eq!((popped.vid(), popped.pcp(), popped.tpid()), (vid, pcp, EtherType::QINQ));
        prop_assert_eq!(&frame[4..], &original[..]);
    }

    #[test]
    fn a_tunnel_equals_writing_its_headers_anew(
        packet in packets(), outside_v6: bool, geneve: bool, left: bool, vni in 0u32..1 << 24,
    ) {
        let mut inner = packet.bytes();
        let partial = packet.partial().filter(|_| left);
        let flow = Head::new(&inner, 0).flow_hash();
        let whole = inner.clone();
        if let Some(partial) = partial {
            leave(&mut inner, partial);
        }
        let [src, dst] = if outside_v6 {
            ["fd00::a", "fd00::b"]
        } else {
            ["192.0.2.1", "192.0.2.2"]
        }.map(|text| text.parse().unwrap());
        let (src_mac, dst_mac) = (Mac([2; 6]), Mac([4; 6]));
        let tunnel = Tunnel { src_mac, dst_mac, src, dst, vni, port: None };
        let new = tunnel.header_bytes();
        let mut frame = [vec![0xee; new], inner].concat();
        let head = HeadMut::new(&mut frame, 0);
        if geneve { head.push_geneve(&tunnel) } else { head.push_vxlan(&tunnel) }.unwrap();
        let partial = partial.map(|p| Partial { start: p.start + new, ..p });
        prop_assert_eq!(&frame[new - 10..new - 8], &[0, 0], "no checksum");
        let mut view = HeadMut::new(&mut frame, 0).with_partial(partial).udp().unwrap();
        prop_assert!(view.fill_checksum());
        if let Some(partial) = partial {
            complete(&mut frame, partial);
        }

        let (port, first) = if geneve { (6081, 0x6558u32) } else { (4789, 8 << 24) };
        let mut expected = Packet::new(outside_v6, 0, false, &[]);
        expected.macs = [src_mac.0, dst_mac.0];
        expected.set_hops(64);
        match (&mut expected.net, src, dst) {
            (Net::V4(ip), std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => {
                (ip.source, ip.destination) = (src.octets(), dst.octets());
            }
            (Net::V6(ip), std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => {
                (ip.source, ip.destination) = (src.octets(), dst.octets());
            }
            _ => unreachable!(),
        }
        let src_port = 0xc000 | flow as u16 >> 2;
        expected.transport = TransportHeader::Udp(udp_header(src_port, port));
        let shim = [first.to_be_bytes(), (vni << 8).to_be_bytes()].concat();
        expected.payload = [shim, whole].concat();
        prop_assert_eq!(frame, expected.bytes());
    }

    #[test]
    fn an_advertisement_equals_writing_it_anew(target: [u8; 16], nonce: bool, asker: [u8; 16]) {
        let asker = if asker == [0; 16] { [1; 16] } else { asker };
        let target = if target[0] == 0xff { [2; 16] } else { target };
        let other = if nonce { vec![14, 1, 1, 2, 3, 4, 5, 6] } else { Vec::new() };
        let body = |option: [u8; 8]| [&target[..], &other, &option].concat();
        let mut packet = Packet::new(true, 2, false, &body([1, 1, 2, 0, 0, 0, 0, 1]));
        packet.transport = TransportHeader::Icmpv6(Icmpv6Header::new(Icmpv6Type::Unknown {
            type_u8: 135, code_u8: 0, bytes5to8: [0; 4],
        }));
        packet.set_hops(255);
        if let Net::V6(ip) = &mut packet.net {
            ip.source = asker;
        }
        let mut frame = packet.bytes();
        frame.resize(frame.len() + 3, 0);
        let ours = Mac([2, 0, 0, 0, 0, 9]);
        let mut nd = nd_mut(&mut frame).unwrap();
        prop_assert_eq!(nd.target(), Ipv6Addr::from(target));
        nd.reply(ours).unwrap();
        prop_assert!(nd.reply(ours).is_err());

        packet.payload = body([2, 1, 2, 0, 0, 0, 0, 9]);
        packet.macs = [ours.0, MACS[0]];
        packet.transport = TransportHeader::Icmpv6(Icmpv6Header::new(Icmpv6Type::Unknown {
            type_u8: 136, code_u8: 0, bytes5to8: [0x60, 0, 0, 0],
        }));
        if let Net::V6(ip) = &mut packet.net {
            (ip.source, ip.destination) = (target, asker);
        }
        prop_assert_eq!(&frame[..frame.len() - 3], &packet.bytes()[..]);
    }
}

#[test]
fn only_what_is_asked_for_is_answered() {
    let echo = Packet::new(true, 2, false, b"ping").bytes();
    assert!(nd_mut(&mut echo.clone()).is_err());
    let option = [&[7; 16][..], &[1, 1, 2, 0, 0, 0, 0, 1]].concat();
    let message = |code_u8| {
        let kind = Icmpv6Type::Unknown { type_u8: 135, code_u8, bytes5to8: [0; 4] };
        TransportHeader::Icmpv6(Icmpv6Header::new(kind))
    };
    let mut packet = Packet::new(true, 2, false, &option);
    packet.transport = message(0);
    packet.set_hops(255);
    let good = packet.bytes();
    assert!(nd_mut(&mut good.clone()).is_ok());
    let mut damaged = good.clone();
    damaged[70] ^= 1;
    assert!(nd_mut(&mut damaged).is_err(), "its checksum is wrong");
    packet.set_hops(254);
    assert!(nd_mut(&mut packet.bytes()).is_err(), "a router forwarded it");
    packet.set_hops(255);
    packet.transport = message(1);
    assert!(nd_mut(&mut packet.bytes()).is_err(), "a code that no solicitation has");
    packet.transport = message(0);
    let mut detection = packet.clone();
    if let Net::V6(ip) = &mut detection.net {
        ip.source = [0; 16];
    }
    assert!(nd_mut(&mut detection.bytes()).is_err(), "there is no address to answer to");
    for (more, why) in [(&[9, 0][..], "no length"), (&[9, 1, 0], "cut off"), (&[9], "one byte")] {
        packet.payload = [&option, more].concat();
        assert!(nd_mut(&mut packet.bytes()).is_err(), "a later option: {why}");
    }
    packet.payload = [&option, &option[16..]].concat();
    let mut two = packet.bytes();
    nd_mut(&mut two).unwrap().reply(Mac([6; 6])).unwrap();
    let kinds = [two[two.len() - 16], two[two.len() - 8]];
    assert_eq!(kinds, [2, 1], "the first of two options with the sender's address has the answer");
    packet.payload = [&[0xff; 16][..], &option[16..]].concat();
    assert!(nd_mut(&mut packet.bytes()).is_err(), "a multicast target");
    packet.payload = option[..18].to_vec();
    assert!(nd_mut(&mut packet.bytes()).is_err(), "an option that is cut off");
    packet.payload.truncate(16);
    assert!(nd_mut(&mut packet.bytes()).is_err(), "the sender says no address");
    packet.payload.extend([9, 0, 1, 1, 2, 0, 0, 0, 0, 1]);
    assert!(nd_mut(&mut packet.bytes()).is_err(), "an option of no length");
}

#[test]
fn congestion_outside_is_marked_inside_or_ends_the_packet() {
    for (outside, inside, expected) in [
        (3, 0, None),
        (3, 1, Some(3)),
        (3, 2, Some(3)),
        (1, 2, Some(1)),
        (2, 1, Some(1)),
        (0, 1, Some(1)),
    ] {
        for v6 in [false, true] {
            let mut packet = Packet::new(v6, 0, false, b"payload");
            match &mut packet.net {
                Net::V4(ip) => ip.ecn = u8::try_into(inside).unwrap(),
                Net::V6(ip) => ip.traffic_class = inside,
            }
            let protocol = if v6 { Protocol::IPV6 } else { Protocol::IPIP };
            let mut frame = [vec![0; 20], packet.bytes()].concat();
            let [src, dst] = [[1, 2, 3, 4], [5, 6, 7, 8]].map(Ipv4Addr::from);
            HeadMut::new(&mut frame, 0).push_ipv4(src, dst, protocol).unwrap();
            HeadMut::new(&mut frame, 0).ipv4().unwrap().set_ecn(outside);
            let before = frame.clone();
            let popped = HeadMut::new(&mut frame, 0).pop_ip();
            assert_eq!(popped.is_ok(), expected.is_some(), "{outside} {inside}");
            match expected {
                Some(ecn) => {
                    let ip = ip(&frame[20..]).unwrap();
                    assert_eq!(ip.ecn(), ecn);
                    assert!(udp(&frame[20..]).unwrap().checksum_ok());
                }
                None => assert_eq!(frame, before),
            }
        }
    }
}

#[test]
fn a_push_that_is_refused_changes_nothing() {
    let packet = Packet::new(false, 1, true, b"payload").bytes();
    let [src, dst] = [[1, 2, 3, 4], [5, 6, 7, 8]].map(Ipv4Addr::from);
    let mut frame = [vec![7; 20], packet].concat();
    let before = frame.clone();
    let mut head = HeadMut::new(&mut frame, 0);
    assert!(head.reborrow().push_ipv4(src, dst, Protocol::IPV6).is_err());
    assert!(head.reborrow().pop_ip().is_err());
    let ends = Tunnel {
        src_mac: Mac([2; 6]),
        dst_mac: Mac([2; 6]),
        src: src.into(),
        dst: Ipv6Addr::LOCALHOST.into(),
        vni: 1,
        port: None,
    };
    assert!(head.reborrow().push_vxlan(&ends).is_err(), "no room, and ends of two versions");
    let mut far = HeadMut::new(&mut frame, 70_000);
    assert!(far.reborrow().push_ipv4(src, dst, Protocol(47)).is_err(), "too long");
    assert_eq!(frame, before);
    assert!(tcp(&frame[20..]).is_ok() && icmp(&frame[20..]).is_err());
}
