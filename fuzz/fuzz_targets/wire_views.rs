//! Views of arbitrary bytes: each view is refused, or reads and writes only within the bytes.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use linerate_wire::{
    Head, HeadMut, IPV4_BYTES, IPV6_BYTES, IcmpError, Inner, Mac, Partial, Protocol, TcpFlags,
    Toeplitz, Tunnel, VLAN_BYTES, VlanTag, arp, arp_mut, eth, eth_mut, icmp, icmp_mut, ip, ipv4,
    ipv4_mut, ipv6, ipv6_mut, mark_ce, nd_mut, stamp, tcp, tcp_mut, transport, transport_mut, udp,
    udp_mut,
};

/// The addresses that packets get; the next constant has those of IPv6.
const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 2)];
const V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 9, 8, 7, 6, 5, 2),
];

fn read(frame: &[u8]) {
    let _ = eth(frame).map(|v| (v.tags().len(), v.ether_type(), v.payload().len(), v.src()));
    let _ = arp(frame).map(|v| (v.op(), v.sender_mac(), v.target_ip()));
    let _ = ip(frame).map(|v| (v.src(), v.dst(), v.protocol(), v.payload().len()));
    let _ =
        ipv4(frame).map(|v| (v.options().len(), v.payload().len(), v.checksum_ok(), v.total_len()));
    let _ = ipv6(frame).map(|v| (v.protocol(), v.fragment(), v.payload().len()));
    let _ = tcp(frame).map(|v| (v.options().len(), v.payload().len(), v.checksum_ok()));
    let _ = udp(frame).map(|v| (v.payload().len(), v.checksum_ok()));
    let _ = transport(frame).map(|v| assert!(frame[v.payload_at()..].starts_with(v.payload())));
    let _ = icmp(frame).map(|v| (v.quoted().map(|ip| ip.ports()), v.checksum_ok()));
    let _ = stamp::read(frame);
    let _ = hashes(frame);
}

/// Returns the hashes of the frame's flow, which are equal for both directions.
fn hashes(frame: &[u8]) -> [u32; 2] {
    let head = Head::new(frame, 0);
    [head.flow_hash(), head.rss_hash(&Toeplitz::SYMMETRIC)]
}

/// Returns which checksums are right: that of IPv4, that of UDP or TCP, and that of ICMP.
fn checks(frame: &[u8]) -> [bool; 3] {
    [
        ipv4(frame).is_ok_and(|v| v.checksum_ok()),
        transport(frame).is_ok_and(|v| v.checksum_ok()),
        icmp(frame).is_ok_and(|v| v.checksum_ok()),
    ]
}

/// Checks that each checksum that was right still is.
fn assert_kept(were: [bool; 3], frame: &[u8]) {
    let are = checks(frame);
    assert!(were.iter().zip(are).all(|(were, are)| !were || are), "{were:?}, then {are:?}");
}

/// Writes through every view; a checksum that was right before must be right after, and a checksum
/// that was filled is right.
fn write(frame: &mut [u8]) {
    let (were, hash) = (checks(frame), hashes(frame));
    if let Ok(mut v) = transport_mut(frame) {
        v.swap_ends();
        assert_eq!(hashes(frame), hash);
    }
    if let Ok(mut v) = eth_mut(frame) {
        v.swap_ends();
        v.set_dst(Mac([2; 6]));
    }
    if let Ok(mut v) = ipv4_mut(frame) {
        v.set_src(V4[0]);
        v.set_dst(V4[1]);
        v.set_dscp(46);
        let _ = v.dec_ttl(); // no hops left is a valid answer, too
    }
    if let Ok(mut v) = ipv6_mut(frame) {
        v.set_dscp(46);
        let _ = v.dec_hop_limit();
    }
    if let Ok(mut v) = tcp_mut(frame) {
        v.set_seq(7);
        v.set_ack(9);
        v.set_window(512);
        v.set_flags(TcpFlags::SYN | TcpFlags::ACK);
    }
    if let Ok(mut v) = icmp_mut(frame) {
        v.set_ident(7);
        v.set_seq(9);
    }
    assert_kept(were, frame);
    if let Ok(mut v) = udp_mut(frame) {
        v.payload_mut().fill(0x5a);
        assert!(v.fill_checksum());
    }
    if let Ok(mut v) = tcp_mut(frame) {
        v.payload_mut().fill(0x5a);
        assert!(v.fill_checksum());
    }
    if let Ok(mut v) = icmp_mut(frame) {
        v.payload_mut().fill(0x5a);
        assert!(v.fill_checksum());
    }
    let [_, of_transport, of_icmp] = checks(frame);
    assert!(of_transport || transport(frame).is_err());
    assert!(of_icmp || icmp(frame).is_err());
}

/// Marks congestion and changes the ends: checksums stay right, and the payload stays.
fn change(bytes: &[u8]) {
    let (were, mut frame) = (checks(bytes), bytes.to_vec());
    let marked = mark_ce(&mut frame);
    assert!(marked || frame == bytes);
    assert!(!marked || ip(&frame).map_or(3, |v| v.ecn()) == 3);
    assert_kept(were, &frame);
    for ends in [V4.map(IpAddr::from), V6.map(IpAddr::from)] {
        let [src, dst] = ends.map(|addr| SocketAddr::new(addr, 5));
        let mut frame = bytes.to_vec();
        let view = transport_mut(&mut frame);
        if view.and_then(|mut v| v.set_src(src).and_then(|()| v.set_dst(dst))).is_err() {
            assert_eq!(frame, bytes, "a refused address changes nothing");
            continue;
        }
        let view = transport(&frame).expect("other ends do not change what it is");
        assert_eq!((view.src_addr(), view.dst_addr()), (src, dst));
        assert_eq!(frame[view.payload_at()..], bytes[view.payload_at()..]);
        assert_kept(were, &frame);
    }
}

/// Answers the frame, resizes it, takes it out of tunnels, and makes an ICMP error of it.
fn reshape(bytes: &[u8]) {
    let ours = Mac([2; 6]);
    let _ = arp_mut(&mut bytes.to_vec()).map(|mut v| v.reply(ours));
    let _ = nd_mut(&mut bytes.to_vec()).map(|mut v| v.reply(ours));
    let right = icmp(bytes).is_ok_and(|v| v.checksum_ok());
    let mut frame = bytes.to_vec();
    if icmp_mut(&mut frame).is_ok_and(|mut v| v.reply().is_ok()) {
        assert!(!right || icmp(&frame).is_ok_and(|v| v.checksum_ok()));
    }
    let right = udp(bytes).is_ok_and(|v| v.checksum_ok());
    let mut frame = bytes.to_vec();
    let len = usize::from(bytes.first().copied().unwrap_or(0));
    if HeadMut::new(&mut frame, 0).set_udp_payload_len(len).is_ok() {
        let view = udp(&frame).expect("a resized datagram is one");
        assert!(view.payload().len() == len && (!right || view.checksum_ok()));
    }
    let mut frame = bytes.to_vec();
    assert!(HeadMut::new(&mut frame, 0).pop_ip().is_ok() || frame == bytes);
    for geneve in [false, true] {
        let mut frame = bytes.to_vec();
        let head = HeadMut::new(&mut frame, 0);
        let inner = if geneve { head.pop_geneve() } else { head.pop_vxlan() };
        assert!(inner.is_ok() || frame == bytes);
        assert!(geneve || inner.is_err() || Head::new(bytes, 0).vxlan_vni(4789).is_ok());
        let _ =
            inner.map(|inner| eth(&frame[inner.spare..][..inner.len]).expect("a frame is inside"));
    }
    let mut frame = [&[0; 28], bytes].concat();
    let error =
        HeadMut::new(&mut frame, 0).push_icmp_error([192, 0, 2, 1].into(), IcmpError::TimeExceeded);
    let _ = error.map(|len| assert!(icmp(&frame[..len]).is_ok_and(|v| v.checksum_ok())));
}

/// Returns the frame behind `spare` unused bytes.
fn behind(spare: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; spare];
    frame.extend_from_slice(bytes);
    frame
}

/// Puts headers around the frame: after they are taken off again, and if they are refused, it is
/// unchanged.
fn push(bytes: &[u8]) {
    let mut frame = bytes.to_vec();
    if let Ok(tag) = HeadMut::new(&mut frame, 0).pop_vlan() {
        assert_eq!(frame[VLAN_BYTES..][..12], bytes[..12], "the addresses move");
        assert_eq!(frame[VLAN_BYTES + 12..], bytes[VLAN_BYTES + 12..]);
        HeadMut::new(&mut frame, 0).push_vlan(tag).expect("its room is there");
    }
    assert_eq!(frame, bytes);
    let (tag, mut frame) = (VlanTag::new(7, 3), behind(VLAN_BYTES, bytes));
    if eth(bytes).is_ok() {
        HeadMut::new(&mut frame, 0).push_vlan(tag).expect("it has an Ethernet header");
        assert_eq!(eth(&frame).map(|v| v.tags().first().copied()), Ok(Some(tag)));
        assert_eq!(HeadMut::new(&mut frame, 0).pop_vlan(), Ok(tag));
    }
    assert_eq!(&frame[VLAN_BYTES..], bytes);
    for protocol in [Protocol::IPIP, Protocol::IPV6] {
        for spare in [IPV4_BYTES, IPV6_BYTES] {
            let mut frame = behind(spare, bytes);
            let head = HeadMut::new(&mut frame, 0);
            let pushed = match spare {
                IPV4_BYTES => head.push_ipv4(V4[0], V4[1], protocol),
                _ => head.push_ipv6(V6[0], V6[1], protocol),
            };
            if pushed.is_ok() {
                assert!(spare == IPV6_BYTES || ipv4(&frame).is_ok_and(|v| v.checksum_ok()));
                assert_eq!(HeadMut::new(&mut frame, 0).pop_ip(), Ok(spare));
            }
            assert_eq!(&frame[spare..], bytes);
        }
    }
    for [src, dst] in [V4.map(IpAddr::from), V6.map(IpAddr::from)] {
        let (src_mac, dst_mac, vni) = (Mac([2; 6]), Mac([4; 6]), 0x00ab_cdef);
        push_tunnels(bytes, &Tunnel { src_mac, dst_mac, src, dst, vni, port: None });
    }
}

/// Puts the frame into both kinds of tunnels, and takes it out again.
fn push_tunnels(bytes: &[u8], tunnel: &Tunnel) {
    let inner = Inner { spare: tunnel.header_bytes(), len: bytes.len(), vni: tunnel.vni };
    for geneve in [false, true] {
        let mut frame = behind(inner.spare, bytes);
        let head = HeadMut::new(&mut frame, 0);
        let pushed = if geneve { head.push_geneve(tunnel) } else { head.push_vxlan(tunnel) };
        if pushed.is_ok() {
            assert!(udp_mut(&mut frame).is_ok_and(|mut v| v.fill_checksum()));
            assert!(udp(&frame).is_ok_and(|v| v.checksum_ok()));
            let head = HeadMut::new(&mut frame, 0);
            let popped = if geneve { head.pop_geneve() } else { head.pop_vxlan() };
            assert_eq!(popped, Ok(inner));
        }
        assert_eq!(&frame[inner.spare..], bytes);
    }
}

/// The work that a packet leaves to a device, and the number of its bytes that are elsewhere.
#[derive(Clone, Copy)]
struct Left {
    behind: usize,
    partial: Partial,
    is_superframe: bool,
}

impl Left {
    fn head(self, frame: &[u8]) -> Head<'_> {
        let head = Head::new(frame, self.behind).with_partial(self.partial);
        head.with_superframe(self.is_superframe)
    }

    fn head_mut(self, frame: &mut [u8]) -> HeadMut<'_> {
        let head = HeadMut::new(frame, self.behind).with_partial(self.partial);
        head.with_superframe(self.is_superframe)
    }

    /// Returns true if the checksum of UDP or TCP is right, or will be when the device has done its
    /// work.
    fn is_right(self, frame: &[u8]) -> bool {
        self.head(frame).transport().is_ok_and(|v| v.checksum_ok())
    }

    fn read(self, frame: &[u8]) {
        let head = self.head(frame);
        let _ = head.ip().map(|v| (v.payload().len(), v.behind()));
        let _ = head.transport().map(|v| assert!(frame[v.payload_at()..].starts_with(v.payload())));
        let _ = head.icmp().map(|v| (v.quoted().is_ok(), v.checksum_ok()));
        let _ = (head.flow_hash(), head.rss_hash(&Toeplitz::SYMMETRIC));
    }

    /// Fills the checksums: they are right, or nothing has changed.
    fn fill(self, bytes: &[u8]) {
        let mut frame = bytes.to_vec();
        let filled = self.head_mut(&mut frame).udp().is_ok_and(|mut v| v.fill_checksum())
            || self.head_mut(&mut frame).tcp().is_ok_and(|mut v| v.fill_checksum());
        assert!(if filled { self.is_right(&frame) } else { frame == bytes });
        let mut frame = bytes.to_vec();
        let filled = self.head_mut(&mut frame).icmp().is_ok_and(|mut v| v.fill_checksum());
        let icmp = self.head(&frame).icmp();
        assert!(if filled { icmp.is_ok_and(|v| v.checksum_ok()) } else { frame == bytes });
    }

    /// Changes the ends and the length: a checksum that was right stays right.
    fn change(self, bytes: &[u8]) {
        // No inner packet begins in the middle of TCP's checksum.
        let is_possible = self.partial.start % 2 == 0 || self.head(bytes).udp().is_ok();
        let was_right = is_possible && self.is_right(bytes);
        for ends in [V4.map(IpAddr::from), V6.map(IpAddr::from)] {
            let [src, dst] = ends.map(|addr| SocketAddr::new(addr, 5));
            let mut frame = bytes.to_vec();
            let view = self.head_mut(&mut frame).transport();
            let _ = view.and_then(|mut v| v.set_src(src).and_then(|()| v.set_dst(dst)));
            let _ = self.head_mut(&mut frame).ipv4().map(|mut v| v.set_src(V4[1]));
            let _ = self.head_mut(&mut frame).ipv6().map(|mut v| v.set_dst(V6[0]));
            assert!(!was_right || self.is_right(&frame));
        }
        let (len, mut frame) = (self.partial.start, bytes.to_vec());
        if self.head_mut(&mut frame).set_udp_payload_len(len).is_ok() {
            let view = self.head(&frame).udp().expect("a resized datagram is one");
            assert!(view.payload().len() == len && (!was_right || view.checksum_ok()));
        }
    }
}

/// Reads and changes the frame as one of which a device computes a checksum, whole or in segments.
/// Its first two bytes say which checksum that is.
fn leave(bytes: &[u8]) {
    let [start, kind] = [0_usize, 1].map(|at| bytes.get(at).copied().map_or(0, usize::from));
    let partial = Partial { start, offset: [2, 6, 16, kind][kind % 4] };
    for behind in [0, 1 << 16] {
        for is_superframe in [false, true] {
            let left = Left { behind, partial, is_superframe };
            left.read(bytes);
            left.fill(bytes);
            left.change(bytes);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    change(bytes);
    reshape(bytes);
    push(bytes);
    leave(bytes);
    let mut frame = bytes.to_vec();
    write(&mut frame);
    assert_eq!(frame.len(), bytes.len());
    read(&frame);
});
