//! Tests of tunnels whose outer header ends before the frame does, or does not end here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linerate_wire::{Head, HeadMut, Mac, Malformed, Protocol, Tunnel, UdpEnds, ip};

const SRC: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const DST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

const TUNNEL: Tunnel = Tunnel {
    src_mac: Mac([2; 6]),
    dst_mac: Mac([4; 6]),
    src: IpAddr::V4(SRC),
    dst: IpAddr::V4(DST),
    vni: 1,
    port: None,
};

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
fn options_and_extension_headers_of_the_inner_packet_count_to_its_length() {
    for outer_v6 in [false, true] {
        for inner_v6 in [false, true] {
            let (mut frame, room) = tunnelled(inner_v6, outer_v6);
            HeadMut::new(&mut frame, 0).pop_ip().unwrap();
            if inner_v6 {
                frame.splice(room + 54..room + 54, [17, 0, 1, 4, 0, 0, 0, 0]);
                (frame[room + 19], frame[room + 20]) = (frame[room + 19] + 8, 60);
            } else {
                frame.splice(room + 34..room + 34, [1; 8]);
                (frame[room + 14], frame[room + 17]) = (0x47, frame[room + 17] + 8);
            }
            let inner = frame.len() - room - 14;
            frame.resize(frame.len() + 3, 0);
            let head = HeadMut::new(&mut frame, 0);
            let protocol = if inner_v6 { Protocol::IPV6 } else { Protocol::IPIP };
            match outer_v6 {
                true => head.push_ipv6(SRC.to_ipv6_mapped(), DST.to_ipv6_mapped(), protocol),
                false => head.push_ipv4(SRC, DST, protocol),
            }
            .unwrap();
            assert_eq!(ip(&frame).unwrap().payload().len(), inner, "{inner_v6} {outer_v6}");
        }
    }
}

#[test]
fn a_packet_that_has_the_mark_of_congestion_comes_out_of_a_tunnel_as_it_went_in() {
    let (mut frame, room) = tunnelled(false, false);
    HeadMut::new(&mut frame, 0).pop_ip().unwrap();
    frame[room + 15] |= 3;
    frame[room + 24..room + 26].fill(0xff);
    let before = frame[room..].to_vec();
    HeadMut::new(&mut frame, 0).push_ipv4(SRC, DST, Protocol::IPIP).unwrap();
    assert_eq!(HeadMut::new(&mut frame, 0).pop_ip(), Ok(room));
    assert_eq!(frame[room..], before);
}

#[test]
fn a_popped_tag_is_not_read_from_the_addresses() {
    // The last four bytes of the sender's address would be read as a tag after the pop.
    let mut frame = [2, 0, 0, 0, 0, 1, 2, 0, 0x81, 0, 0x0f, 0xff].to_vec();
    frame.extend([0x81, 0, 0x60, 0x64, 8, 6]);
    let tag = HeadMut::new(&mut frame, 0).pop_vlan().unwrap();
    assert_eq!((tag.vid(), tag.pcp()), (100, 3));
}

#[test]
fn the_longest_tunnelled_frame_fits_the_length_field_of_ipv4() {
    let mut frame = vec![0; 200];
    let inner = frame.len() - TUNNEL.header_bytes();
    let longest = 65_535 - 36 - inner;
    let mut head = HeadMut::new(&mut frame, longest + 1);
    assert_eq!(head.reborrow().push_vxlan(&TUNNEL), Err(Malformed::BadLength));
    assert_eq!(head.reborrow().push_geneve(&TUNNEL), Err(Malformed::BadLength));
    head = HeadMut::new(&mut frame, longest);
    head.push_vxlan(&TUNNEL).unwrap();
    let outer = Head::new(&frame, longest).ip().unwrap();
    assert_eq!((outer.payload().len(), outer.behind()), (186 - 20, longest));
}

#[test]
fn a_packet_of_any_length_is_too_long_and_not_a_panic() {
    for behind in [70_000, usize::MAX] {
        let mut frame = vec![0; 200];
        let mut head = HeadMut::new(&mut frame, behind);
        assert_eq!(head.reborrow().push_vxlan(&TUNNEL), Err(Malformed::BadLength));
        assert_eq!(head.reborrow().push_geneve(&TUNNEL), Err(Malformed::BadLength));
        let gre = Protocol(47);
        assert_eq!(head.reborrow().push_ipv4(SRC, DST, gre), Err(Malformed::BadLength));
        let [src, dst] = [SRC, DST].map(|addr| addr.to_ipv6_mapped());
        assert_eq!(head.push_ipv6(src, dst, gre), Err(Malformed::BadLength));
        assert!(frame.iter().all(|byte| *byte == 0));
    }
}
