//! Frames for the tests, written by hand, and the test that no view panics on hostile frames.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use crate::checksum::{add, finish, pseudo_v4, pseudo_v6, sum};
use crate::{
    Head, HeadMut, IcmpError, Mac, Partial, Protocol, TcpFlags, Tunnel, VlanTag, arp, eth, eth_mut,
    icmp, ip, ipv4, ipv4_mut, ipv6, ipv6_mut, tcp, tcp_mut, udp, udp_mut,
};

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

/// Returns a frame with a UDP datagram from port 1000 to 2000 over IPv4, with TTL 64 and right
/// checksums.
pub fn udp4_frame(src: Ipv4Addr, dst: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let segment = udp_segment(payload, |len| pseudo_v4(src, dst, Protocol::UDP, len));
    ipv4_frame(src, dst, Protocol::UDP, &segment)
}

/// Returns a frame with a UDP datagram from port 1000 to 2000 over IPv6, with DSCP 46, ECN 1, hop
/// limit 64 and a right checksum.
pub fn udp6_frame(payload: &[u8]) -> Vec<u8> {
    let [src, dst] = ["2001:db8::1", "2001:db8::2"].map(|a| a.parse().unwrap());
    let segment = udp_segment(payload, |len| pseudo_v6(src, dst, Protocol::UDP, len.into()));
    let mut frame = MACS.to_vec();
    frame.extend([0x86, 0xdd]);
    frame.extend((6 << 28 | 46 << 22 | 1 << 20 | 0xabcde_u32).to_be_bytes());
    frame.extend((segment.len() as u16).to_be_bytes());
    frame.extend([17, 64]);
    frame.extend(src.octets());
    frame.extend(dst.octets());
    frame.extend(segment);
    frame
}

/// Returns a frame with a SYN-ACK from port 1000 to 2000 over IPv4, with right checksums.
pub fn tcp4_frame(options: &[u8], payload: &[u8]) -> Vec<u8> {
    let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let offset = (5 + options.len() as u8 / 4) << 4;
    let mut segment = vec![3, 232, 7, 208, 0, 0, 0, 7, 0, 0, 0, 9, offset, 0x12, 2, 0, 0, 0, 0, 0];
    segment.extend(options);
    segment.extend(payload);
    let pseudo = pseudo_v4(src, dst, Protocol::TCP, segment.len() as u16);
    let check = finish(add(pseudo, sum(&segment)));
    segment[16..18].copy_from_slice(&check.to_be_bytes());
    ipv4_frame(src, dst, Protocol::TCP, &segment)
}

/// Corrects the header checksum after a test has changed the header.
pub fn fix_ipv4(frame: &mut [u8]) {
    let end = 14 + usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let check = finish(sum(&frame[14..end]));
    frame[24..26].copy_from_slice(&check.to_be_bytes());
}

fn ipv4_frame(src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, segment: &[u8]) -> Vec<u8> {
    let mut frame = MACS.to_vec();
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend((20 + segment.len() as u16).to_be_bytes());
    frame.extend([0, 1, 0, 0, 64, protocol.0, 0, 0]);
    frame.extend(src.octets());
    frame.extend(dst.octets());
    fix_ipv4(&mut frame);
    frame.extend(segment);
    frame
}

fn udp_segment(payload: &[u8], pseudo: impl Fn(u16) -> u16) -> Vec<u8> {
    let len = 8 + payload.len() as u16;
    let mut segment = vec![3, 232, 7, 208];
    segment.extend(len.to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    let check = match finish(add(pseudo(len), sum(&segment))) {
        0 => 0xffff,
        check => check,
    };
    segment[6..8].copy_from_slice(&check.to_be_bytes());
    segment
}

/// Creates every view of `frame` and calls every method that could access bytes out of bounds.
fn view_all(frame: &mut [u8]) {
    let _ = eth(frame).map(|v| (v.tags().len(), v.payload().len()));
    let _ = arp(frame).map(|v| v.target_ip());
    let _ = ip(frame).map(|v| (v.src(), v.hops(), v.payload().len()));
    let _ = ipv4(frame).map(|v| (v.checksum_ok(), v.options().len(), v.payload().len()));
    let _ = ipv6(frame).map(|v| assert!(!v.is_fragment() || v.fragment().is_some()));
    let _ = udp(frame).map(|v| (v.checksum_ok(), v.payload().len()));
    let _ = tcp(frame).map(|v| (v.checksum_ok(), v.options().len(), v.payload().len()));
    let _ = icmp(frame).map(|v| (v.checksum_ok(), v.is_echo_request(), v.quoted().is_ok()));
    let _ = eth_mut(frame).map(|mut v| v.swap_ends());
    if let Ok(mut v) = ipv4_mut(frame) {
        v.set_src([1, 2, 3, 4].into());
        v.set_dscp(255);
        let _ = v.dec_ttl();
    }
    if let Ok(mut v) = ipv6_mut(frame) {
        v.set_dscp(255);
        let _ = v.dec_hop_limit();
        v.set_src([7; 16].into());
    }
    if let Ok(mut v) = tcp_mut(frame) {
        v.swap_ends();
        v.set_src_port(7);
        v.set_flags(TcpFlags::SYN);
        let _ = v.fill_checksum();
    }
    if let Ok(mut v) = udp_mut(frame) {
        v.swap_ends();
        v.set_dst_port(7);
        v.payload_mut().fill(0);
        let _ = v.fill_checksum();
    }
}

/// Makes replies and adds headers wherever the packet allows it.
fn reshape(bytes: &[u8], behind: usize, partial: Partial) {
    let [src, dst] = [[1, 2, 3, 4], [5, 6, 7, 8]].map(Ipv4Addr::from);
    let (src_mac, dst_mac) = (Mac([2; 6]), Mac([4; 6]));
    let tunnel = Tunnel {
        src_mac,
        dst_mac,
        src: src.into(),
        dst: dst.into(),
        vni: behind as u32,
        port: None,
    };
    let try_on = |change: &dyn Fn(HeadMut<'_>) -> bool| {
        let mut copy = bytes.to_vec();
        let changed = change(HeadMut::new(&mut copy, behind).with_partial(partial));
        assert!(changed || copy == bytes);
    };
    try_on(&|head| head.arp().is_ok_and(|mut v| v.reply(src_mac).is_ok()));
    try_on(&|head| head.icmp().is_ok_and(|mut v| v.reply().is_ok()));
    try_on(&|head| head.nd().is_ok_and(|mut v| v.reply(src_mac).is_ok()));
    try_on(&|head| head.transport().is_ok_and(|mut v| v.set_src((src, 7).into()).is_ok()));
    try_on(&|head| head.set_udp_payload_len(behind % 128).is_ok());
    try_on(&|head| head.push_vlan(VlanTag::new(1, 2)).is_ok());
    try_on(&|head| head.pop_vlan().is_ok());
    for protocol in [Protocol::IPIP, Protocol::IPV6, Protocol::UDP] {
        try_on(&|head| head.push_ipv4(src, dst, protocol).is_ok());
        try_on(&|head| head.push_ipv6([7; 16].into(), [8; 16].into(), protocol).is_ok());
    }
    for error in [IcmpError::TimeExceeded, IcmpError::Unreachable(1), IcmpError::TooBig(1400)] {
        try_on(&|head| head.push_icmp_error(src.into(), error).is_ok());
        try_on(&|head| head.push_icmp_error([7; 16].into(), error).is_ok());
    }
    try_on(&|head| head.pop_ip().is_ok());
    try_on(&|head| head.push_vxlan(&tunnel).is_ok());
    try_on(&|head| head.push_geneve(&tunnel).is_ok());
    let head = Head::new(bytes, behind);
    let _ = (head.flow_hash(), head.vxlan_vni(2000));
}

/// Does what `view_all` does, for a packet of which only `bytes` are in the slice and `behind` more
/// bytes follow.
fn view_head(bytes: &mut [u8], behind: usize) {
    let head = Head::new(bytes, behind);
    let _ = (head.eth().is_ok(), head.arp().is_ok());
    let _ = head.ip().map(|v| (v.src(), v.payload().len(), v.behind()));
    let _ = head.ipv4().map(|v| (v.checksum_ok(), v.options().len(), v.behind()));
    let _ = head.ipv6().map(|v| (v.protocol(), v.payload().len(), v.behind()));
    let _ = head.udp().map(|v| (v.checksum_ok(), v.payload().len(), v.behind()));
    let _ = head.tcp().map(|v| (v.checksum_ok(), v.options().len(), v.behind()));
    let partial = Partial { start: behind % 128, offset: behind / 128 };
    let is_superframe = behind % 3 == 1;
    let left = head.with_partial(partial).with_superframe(is_superframe);
    let _ = left.udp().map(|v| v.checksum_ok());
    let _ = left.tcp().map(|v| v.checksum_ok());
    reshape(bytes, behind, partial);
    let write = HeadMut::new(bytes, behind).with_partial(partial);
    let mut write = write.with_superframe(is_superframe);
    let _ = write.reborrow().ipv4().map(|mut v| v.set_dst([1, 2, 3, 4].into()));
    let _ = write.reborrow().ipv6().map(|mut v| v.set_dst([7; 16].into()));
    let _ = write.reborrow().udp().map(|mut v| v.fill_checksum());
    let _ = write.reborrow().tcp().map(|mut v| v.fill_checksum());
    let _ = HeadMut::new(bytes, behind).eth().map(|mut v| v.swap_ends());
    let _ = HeadMut::new(bytes, behind).ipv4().map(|mut v| v.set_src([1, 2, 3, 4].into()));
    let _ = HeadMut::new(bytes, behind).ipv6().map(|mut v| v.dec_hop_limit());
    if let Ok(mut v) = HeadMut::new(bytes, behind).udp() {
        v.swap_ends();
        v.payload_mut().fill(0);
        let _ = v.fill_checksum();
    }
}

proptest! {
    #[test]
    fn no_view_panics_on_any_bytes(
        mut frame in prop::collection::vec(any::<u8>(), 0..120), kind in 0usize..5,
        behind: usize,
    ) {
        // Give four in five frames a known EtherType, because otherwise the test would hardly reach
        // the inner headers.
        if let (Some(field), 1..) = (frame.get_mut(12..16), kind) {
            let kinds = [[8, 0, 0x45], [8, 6, 0], [0x86, 0xdd, 0x60], [0x81, 0, 0]];
            field[..3].copy_from_slice(&kinds[kind - 1]);
        }
        view_all(&mut frame.clone());
        view_head(&mut frame.clone(), behind);
        view_head(&mut frame.clone(), usize::MAX);
        view_head(&mut frame, behind % 200_000);
    }

    #[test]
    fn no_view_panics_on_damaged_frames(
        which in 0usize..3, cut: prop::sample::Index, behind in 0usize..200_000,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut frame = match which {
            0 => udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"payload"),
            1 => udp6_frame(b"payload"),
            _ => tcp4_frame(&[1, 1, 1, 0], b"payload"),
        };
        for (at, value) in damage {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        let whole = frame.len();
        let keep = whole - cut.index(whole) / 4;
        view_all(&mut frame.clone()[..keep]);
        view_head(&mut frame[..keep], behind);
    }

    #[test]
    fn a_read_view_and_a_write_view_agree(
        mut frame in prop::collection::vec(any::<u8>(), 14..120), v6: bool,
    ) {
        let kind: &[u8] = if v6 { &[0x86, 0xdd, 0x60] } else { &[8, 0, 0x45] };
        frame.resize(frame.len().max(54), 0);
        frame[12..15].copy_from_slice(kind);
        frame[if v6 { 20 } else { 23 }] = 17;
        frame[18] = 0;
        frame[16] = 0;
        let read = udp(&frame).map(|v| v.payload().len());
        let written = udp_mut(&mut frame).map(|v| v.payload().len());
        prop_assert_eq!(read, written);
    }
}
