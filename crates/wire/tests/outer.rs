//! Tests of tunnels whose outer header ends before the frame does, or does not end here.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use linerate_wire::{HeadMut, Mac, Malformed, Protocol, Tunnel, UdpEnds, ip};

const SRC: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const DST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Returns a UDP datagram over IPv4 or IPv6 with an outer IP header, and the room that the header
/// leaves if it is removed.
fn tunnelled(inner_v6: bool, outer_v6: bool) -> (Vec<u8>, usize) {
    let [src, dst] = match inner_v6 {
        true => [Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        false => [SRC.into(), DST.into()],
    }
    .map(|addr| SocketAddr::new(addr, 7));
    let ends = UdpEnds { src_mac: Mac([2; 6]), dst_mac: Mac([4; 6]), src, dst };
    let room = if outer_v6 { 40 } else { 20 };
    let mut frame = vec![0; room + ends.header_bytes()];
    ends.write(&mut frame[room..]).unwrap();
    let protocol = if inner_v6 { Protocol::IPV6 } else { Protocol::IPIP };
    let head = HeadMut::new(&mut frame, 0);
    if outer_v6 {
        head.push_ipv6(SRC.to_ipv6_mapped(), DST.to_ipv6_mapped(), protocol).unwrap();
    } else {
        head.push_ipv4(SRC, DST, protocol).unwrap();
    }
    (frame, room)
}

fn pop(frame: &[u8]) -> Result<usize, Malformed> {
    let mut popped = frame.to_vec();
    let got = HeadMut::new(&mut popped, 0).pop_ip();
    assert!(got.is_ok() || popped == frame, "a refused packet is unchanged");
    got
}

#[test]
fn an_inner_packet_does_not_reach_into_the_padding_of_the_outer_one() {
    for (inner_v6, outer_v6) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut frame, room) = tunnelled(inner_v6, outer_v6);
        assert_eq!(pop(&frame), Ok(room));
        // The low byte of the outer header's length field.
        let len_at = if outer_v6 { 19 } else { 17 };
        frame[len_at] -= 6;
        assert!(ip(&frame).is_ok(), "the last six bytes are padding");
        assert_eq!(pop(&frame), Err(Malformed::BadLength), "{inner_v6} {outer_v6}");
    }
}

#[test]
fn a_tunnel_whose_source_route_has_hops_left_does_not_end_here() {
    for (left, expected) in [(1, Err(Malformed::SourceRoute)), (0, Ok(48))] {
        let (mut frame, _) = tunnelled(false, true);
        frame.splice(54..54, [Protocol::IPIP.0, 0, 4, left, 0, 0, 0, 0]);
        (frame[19], frame[20]) = (frame[19] + 8, 43);
        assert_eq!(pop(&frame), expected);
    }
    // A loose route of one hop, whose pointer is before its end or past it.
    for (pointer, expected) in [(4, Err(Malformed::SourceRoute)), (8, Ok(28))] {
        let (mut frame, _) = tunnelled(true, false);
        frame.splice(34..34, [131, 7, pointer, 10, 0, 0, 9, 0]);
        (frame[14], frame[17]) = (0x47, frame[17] + 8);
        assert_eq!(pop(&frame), expected);
    }
}

#[test]
fn a_packet_of_any_length_is_too_long_and_not_a_panic() {
    let tunnel = Tunnel {
        src_mac: Mac([2; 6]),
        dst_mac: Mac([4; 6]),
        src: SRC.into(),
        dst: DST.into(),
        vni: 1,
    };
    for behind in [70_000, usize::MAX] {
        let mut frame = vec![0; 200];
        let mut head = HeadMut::new(&mut frame, behind);
        assert_eq!(head.reborrow().push_vxlan(&tunnel), Err(Malformed::BadLength));
        assert_eq!(head.reborrow().push_geneve(&tunnel), Err(Malformed::BadLength));
        let gre = Protocol(47);
        assert_eq!(head.reborrow().push_ipv4(SRC, DST, gre), Err(Malformed::BadLength));
        let [src, dst] = [SRC, DST].map(|addr| addr.to_ipv6_mapped());
        assert_eq!(head.push_ipv6(src, dst, gre), Err(Malformed::BadLength));
        assert!(frame.iter().all(|byte| *byte == 0));
    }
}
