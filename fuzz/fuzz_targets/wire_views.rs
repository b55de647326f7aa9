//! Views of arbitrary bytes: each view is refused, or reads and writes only within the bytes.
#![no_main]

use std::net::Ipv4Addr;

use libfuzzer_sys::fuzz_target;
use linerate_wire::{
    Head, HeadMut, IcmpError, Mac, Protocol, arp, arp_mut, eth, eth_mut, icmp, icmp_mut, ip, ipv4,
    ipv4_mut, ipv6, ipv6_mut, nd_mut, stamp, tcp, transport, transport_mut, udp, udp_mut,
};

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
}

/// Writes through every view; a checksum that was right before must be right after.
fn write(frame: &mut [u8]) {
    if let Ok(mut v) = eth_mut(frame) {
        v.swap_ends();
        v.set_dst(Mac([2; 6]));
    }
    let right = ipv4(frame).is_ok_and(|v| v.checksum_ok());
    if let Ok(mut v) = ipv4_mut(frame) {
        v.set_src(Ipv4Addr::new(192, 0, 2, 1));
        v.set_dst(Ipv4Addr::new(198, 51, 100, 2));
        v.set_dscp(46);
        let _ = v.dec_ttl(); // no hops left is a valid answer, too
        assert!(!right || ipv4(frame).is_ok_and(|v| v.checksum_ok()));
    }
    if let Ok(mut v) = ipv6_mut(frame) {
        v.set_dscp(46);
        let _ = v.dec_hop_limit();
    }
    if let Ok(mut v) = udp_mut(frame) {
        v.swap_ends();
        v.payload_mut().fill(0x5a);
        let filled = v.fill_checksum();
        assert!(!filled || udp(frame).is_ok_and(|v| v.checksum_ok()));
    }
}

/// Answers the frame, resizes it, and removes or adds a header: after a push and a pop the frame is
/// unchanged.
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
    let _ = transport_mut(&mut frame).map(|mut v| v.set_dst(([1, 2, 3, 4], 5).into()));
    let _ = HeadMut::new(&mut frame, 0).pop_ip();
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
    let mut frame = [&[0; 20], bytes].concat();
    let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 2));
    if HeadMut::new(&mut frame, 0).push_ipv4(src, dst, Protocol::IPIP).is_ok() {
        assert_eq!(HeadMut::new(&mut frame, 0).pop_ip(), Ok(20));
        assert_eq!(&frame[20..], bytes);
    }
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    reshape(bytes);
    let mut frame = bytes.to_vec();
    write(&mut frame);
    assert_eq!(frame.len(), bytes.len());
    read(&frame);
});
