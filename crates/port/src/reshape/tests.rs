//! Tests changes of a packet's length: lengths, checksums and tags, and packets that are refused.

use std::net::SocketAddr;

use linerate_skb::{Batch, Pool, Trust};
use linerate_sys::vnet::GSO_UDP_L4;
use linerate_wire::{Mac, ip, udp};

use super::*;
use crate::host::testing::{GENEVE, PARTIAL, SUPERFRAME, VXLAN, bytes, ipv4, over_udp, unfinished};
use crate::{Views, ViewsMut, segment};

const OUTSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];

fn pool() -> Pool {
    Pool::builder().frames(64).build().unwrap()
}

fn tunnel(v6: bool) -> Tunnel {
    let ends = if v6 { ["fd00::a", "fd00::b"] } else { ["192.0.2.1", "192.0.2.2"] };
    let [src, dst] = ends.map(|text| text.parse().unwrap());
    Tunnel { src_mac: Mac([2; 6]), dst_mac: Mac([4; 6]), src, dst, vni: 7, port: None }
}

#[test]
fn checksums_inside_and_outside_a_tunnel_leave_right_whoever_computes_them() {
    let pool = pool();
    for (payload, v6, finished) in [
        (4, false, false),
        (4, true, false),
        (5000, true, false),
        (4, true, true),
        (5000, true, true),
    ] {
        let mut skb = unfinished(&pool, payload);
        if finished {
            skb.complete_checksum().unwrap();
        }
        let inner = skb.len();
        skb.push_vxlan(&tunnel(v6)).unwrap();
        assert_eq!(skb.offload().needs_checksum(), v6 || !finished);
        skb.complete_checksum().unwrap();
        let frame = bytes(&skb);
        assert!(udp(&frame).unwrap().checksum_ok(), "{payload} {v6} {finished}");
        assert!(udp(&frame[frame.len() - inner..]).unwrap().checksum_ok());
    }
}

type Pop = fn(&mut Skb) -> Result<u32, DropReason>;
type Push = fn(&mut Skb, &Tunnel) -> Result<(), DropReason>;
const TUNNELS: [(Push, Pop); 2] =
    [(Reshape::push_vxlan, Reshape::pop_vxlan), (Reshape::push_geneve, Reshape::pop_geneve)];

#[test]
fn a_frame_comes_out_of_a_tunnel_as_it_went_in_with_what_is_left_to_a_device() {
    let pool = pool();
    for (payload, finished) in [(4, false), (5000, false), (4, true), (5000, true)] {
        for ((push, pop), v6) in TUNNELS.into_iter().flat_map(|pair| [(pair, false), (pair, true)])
        {
            let mut plain = unfinished(&pool, payload);
            if finished {
                plain.complete_checksum().unwrap();
            }
            let mut skb = pool.local().alloc_copy(&bytes(&plain)).unwrap();
            skb.set_offload(plain.offload());
            push(&mut skb, &tunnel(v6)).unwrap();
            skb.set_vlan(Some(Vlan { tci: 7, protocol: 0x8100 }));
            if skb.is_linear() {
                assert!(skb.put_slice(b"trailer"));
            }
            assert_eq!(pop(&mut skb), Ok(7));
            assert_eq!((bytes(&skb), skb.vlan()), (bytes(&plain), None), "{payload} {v6}");
            // The outer checksum over IPv6, which was left to the device, is gone.
            assert_eq!(skb.offload(), plain.offload(), "{payload} {v6} {finished}");
        }
    }
}

#[test]
fn a_superframe_comes_out_of_a_tunnel_whole_and_one_of_outer_datagrams_is_refused() {
    let pool = Pool::builder().frames(256).build().unwrap();
    for (push, pop) in TUNNELS {
        let mut skb = pool.local().alloc_copy(&ipv4(6, 4000)).unwrap();
        skb.set_offload(SUPERFRAME);
        push(&mut skb, &tunnel(true)).unwrap();
        assert!(skb.udp().unwrap().checksum_ok());
        assert_eq!(pop(&mut skb), Ok(7));
        assert_eq!((bytes(&skb), skb.offload()), (ipv4(6, 4000), SUPERFRAME));

        push(&mut skb, &tunnel(false)).unwrap();
        assert!(skb.udp().unwrap().checksum_ok());
        let outside =
            Offload { gso_type: GSO_UDP_L4, csum_start: 34, csum_offset: UDP_CHECK, ..SUPERFRAME };
        for outside in [outside, Offload { flags: 0, ..outside }] {
            skb.set_offload(outside);
            let before = bytes(&skb);
            assert_eq!(pop(&mut skb), Err(DropReason::UNSUPPORTED));
            assert_eq!((bytes(&skb), skb.offload()), (before, outside));
        }
        // A chain with bytes after the datagram.
        let mut skb = unfinished(&pool, 5000);
        push(&mut skb, &tunnel(false)).unwrap();
        assert!(skb.append(pool.local().alloc_copy(&[0; 9]).unwrap()).is_ok());
        let before = bytes(&skb);
        assert_eq!((pop(&mut skb), bytes(&skb)), (Err(DropReason::UNSUPPORTED), before));
        let mut other = unfinished(&pool, 4);
        assert_eq!(pop(&mut other), Err(DropReason::UNWANTED));
    }
}

#[test]
fn network_of_a_vxlan_packet_at_any_port_is_read_before_it_is_popped() {
    let pool = pool();
    let mut skb = unfinished(&pool, 4);
    let before = bytes(&skb);
    assert_eq!(skb.vxlan_vni(8472), Err(DropReason::UNWANTED));
    skb.push_vxlan(&Tunnel { port: Some(8472), ..tunnel(false) }).unwrap();
    assert_eq!(skb.pop_vxlan(), Err(DropReason::UNWANTED));
    assert_eq!(skb.vxlan_vni(8472), Ok(7));
    let mut shared = skb.share().into_unique();
    assert_eq!((shared.vxlan_vni(8472), shared.pop_vxlan_at(8472)), (Ok(7), Ok(7)));
    assert!(bytes(&shared) == before && skb.vxlan_vni(8472) == Ok(7));
}

/// Returns a packet of SCTP whose CRC is left to a device.
fn unfinished_sctp(pool: &Pool) -> Skb {
    let mut skb = pool.local().alloc_copy(&ipv4(132, 40)).unwrap();
    skb.set_offload(Offload { csum_offset: 8, ..PARTIAL });
    skb
}

#[test]
fn crc_of_sctp_is_complete_behind_headers_that_ports_do_not_parse() {
    let pool = pool();
    let [src, dst] = OUTSIDE;
    let mut plain = unfinished_sctp(&pool);
    plain.complete_checksum().unwrap();
    let right = bytes(&plain);
    for v6 in [false, true] {
        let mut skb = unfinished_sctp(&pool);
        skb.push_vxlan(&tunnel(v6)).unwrap();
        assert_eq!(skb.offload().needs_checksum(), v6);
        skb.complete_checksum().unwrap();
        let frame = bytes(&skb);
        assert!(udp(&frame).unwrap().checksum_ok() && frame.ends_with(&right), "{v6}");
    }
    // An IP header of a protocol that ports do not parse.
    let mut skb = unfinished_sctp(&pool);
    skb.push_ipv4(src, dst, Protocol(47)).unwrap();
    assert!(skb.offload() == Offload::NONE && bytes(&skb).ends_with(&right[14..]));
    // Deeper than ports parse.
    let mut skb = unfinished_sctp(&pool);
    for depth in 1..4 {
        skb.push_ipv4(src, dst, Protocol::IPIP).unwrap();
        assert_eq!(skb.offload().needs_checksum(), depth < 3, "{depth}");
    }
    assert!(bytes(&skb).ends_with(&right[14..]));
    let mut skb = unfinished_sctp(&pool);
    for tags in 1..4 {
        skb.push_vlan(VlanTag::new(tags, 0)).unwrap();
        assert_eq!(skb.offload().needs_checksum(), tags < 3, "{tags}");
    }
    assert!(bytes(&skb).ends_with(&right[14..]));
}

/// Returns the segments of `skb`.
fn cut(skb: &Skb, pool: &Pool) -> Vec<Skb> {
    let (mut out, mut scratch) = (Batch::with_capacity(64), Vec::new());
    assert!(segment::cut(skb, LONGEST_BYTES, &mut pool.local(), &mut scratch, &mut out));
    out.drain().collect()
}

#[test]
fn superframe_in_a_tunnel_has_the_segments_that_are_put_into_it_one_by_one() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let tcp = SUPERFRAME;
    let datagrams = Offload { gso_type: GSO_UDP_L4, csum_offset: UDP_CHECK, ..SUPERFRAME };
    for (protocol, offload, v6) in
        [(6, tcp, false), (17, datagrams, false), (6, tcp, true), (17, datagrams, true)]
    {
        for push in [Reshape::push_vxlan, Reshape::push_geneve] {
            let whole = || {
                let mut skb = pool.local().alloc_copy(&ipv4(protocol, 4000)).unwrap();
                skb.set_offload(offload);
                skb
            };
            let mut superframe = whole();
            push(&mut superframe, &tunnel(v6)).unwrap();
            assert!(superframe.offload().is_gso());
            let outer = if v6 { 70 } else { 50 };
            assert_eq!(superframe.offload().csum_start, offload.csum_start + outer);
            let (segments, mut alone) = (cut(&superframe, &pool), cut(&whole(), &pool));
            assert!(segments.len() == alone.len() && segments.len() > 2, "{}", segments.len());
            for (number, (segment, alone)) in segments.iter().zip(&mut alone).enumerate() {
                push(alone, &tunnel(v6)).unwrap();
                if v6 {
                    alone.complete_checksum().unwrap();
                    assert_eq!((bytes(segment), segment.offload()), (bytes(alone), Offload::NONE));
                    continue;
                }
                let (mut one, two) = (bytes(segment), bytes(alone));
                assert!(
                    !segment.offload().is_pending()
                        && linerate_wire::ipv4(&one).unwrap().checksum_ok()
                );
                // The outer headers of segments are numbered; and the checksum covers the number.
                let id = [18, 19].map(|at| one[at]);
                let first = u16::from_be_bytes([two[18], two[19]]);
                assert_eq!(u16::from_be_bytes(id), first.wrapping_add(number as u16));
                for at in [18, 19, 24, 25] {
                    one[at] = two[at];
                }
                assert_eq!(one, two, "{protocol} {number}");
            }
        }
    }
}

#[test]
fn outer_checksum_of_a_superframe_that_was_changed_is_right_before_and_after_the_cut() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let datagrams = Offload { gso_type: GSO_UDP_L4, csum_offset: UDP_CHECK, ..SUPERFRAME };
    for (protocol, offload) in [(6, SUPERFRAME), (17, datagrams)] {
        for (v6, to) in [(false, "198.51.100.77:4789"), (true, "[fd00::77]:4789")] {
            let mut skb = pool.local().alloc_copy(&ipv4(protocol, 4000)).unwrap();
            skb.set_offload(offload);
            skb.push_vxlan(&tunnel(v6)).unwrap();
            let to: SocketAddr = to.parse().unwrap();
            let mut outer = skb.udp_mut().unwrap();
            assert!(outer.fill_checksum());
            outer.set_dst(to).unwrap();
            outer.set_src_port(7);
            let view = skb.udp().unwrap();
            assert!(view.checksum_ok(), "{protocol} {v6}");
            let check_at = view.payload_at() - 2;
            let segments = cut(&skb, &pool);
            assert!(segments.len() > 2);
            for segment in segments {
                let frame = bytes(&segment);
                let outer = udp(&frame).unwrap();
                assert!(outer.checksum_ok() && outer.dst_addr() == to, "{protocol} {v6}");
                assert_ne!(frame[check_at..check_at + 2], [0, 0]);
            }
            skb.data_mut()[check_at] ^= 1;
            assert!(!skb.udp().unwrap().checksum_ok());
        }
    }
}

#[test]
fn superframe_that_no_port_could_cut_is_not_made() {
    let pool = pool();
    let [src, dst] = OUTSIDE;
    let superframe = || {
        let mut skb = pool.local().alloc_copy(&ipv4(6, 100)).unwrap();
        skb.set_offload(SUPERFRAME);
        skb
    };
    let mut skb = superframe();
    for _ in 0..2 {
        skb.push_ipv4(src, dst, Protocol::IPIP).unwrap();
    }
    let before = (bytes(&skb), skb.offload());
    assert_eq!(skb.push_ipv4(src, dst, Protocol::IPIP), Err(DropReason::UNSUPPORTED));
    assert_eq!((bytes(&skb), skb.offload()), before);
    let mut skb = superframe();
    skb.push_vlan(VlanTag::new(5, 0)).unwrap();
    skb.push_vlan(VlanTag::new(7, 0).service()).unwrap();
    let before = (bytes(&skb), skb.offload());
    assert_eq!(skb.push_vlan(VlanTag::new(9, 0)), Err(DropReason::UNSUPPORTED));
    assert_eq!((bytes(&skb), skb.offload()), before);
    // So many headers are not found, and without an unfinished checksum the inner header could be
    // another one.
    let mut skb = superframe();
    skb.set_offload(Offload { flags: 0, ..SUPERFRAME });
    let before = (bytes(&skb), skb.offload());
    assert_eq!(skb.push_geneve(&tunnel(true)), Err(DropReason::UNSUPPORTED));
    assert_eq!((bytes(&skb), skb.offload()), before);
    skb.set_offload(SUPERFRAME);
    skb.push_ipv4(src, dst, Protocol::IPIP).unwrap();
    skb.push_ipv4(src, dst, Protocol::IPIP).unwrap();
    let before = (bytes(&skb), skb.offload());
    assert_eq!(skb.push_vxlan(&tunnel(false)), Err(DropReason::UNSUPPORTED));
    assert_eq!((bytes(&skb), skb.offload()), before);
    // The tag of the metadata counts, and stays there.
    let mut skb = superframe();
    skb.push_vlan(VlanTag::new(5, 0)).unwrap();
    let tag = Some(Vlan { tci: 7, protocol: 0x88a8 });
    skb.set_vlan(tag);
    assert_eq!(skb.push_vlan(VlanTag::new(9, 0)), Err(DropReason::UNSUPPORTED));
    assert_eq!(skb.vlan(), tag);
}

#[test]
fn a_tag_of_the_metadata_is_the_outermost_tag() {
    let pool = pool();
    let mut skb = unfinished(&pool, 4);
    let before = bytes(&skb);
    // The drop eligibility (0x1000) stays in a tag that is moved.
    skb.set_vlan(Some(Vlan { tci: 0x7005, protocol: 0x88a8 }));
    skb.push_vlan(VlanTag::new(7, 1)).unwrap();
    assert_eq!((skb.vlan(), skb.offload().csum_start), (None, PARTIAL.csum_start + 8));
    assert_eq!(bytes(&skb)[12..20], [0x81, 0, 0x20, 7, 0x88, 0xa8, 0x70, 5]);
    assert_eq!(skb.pop_vlan().unwrap().vid(), 7);
    skb.set_vlan(Some(Vlan { tci: 0x7006, protocol: 0x88a8 }));
    let tag = skb.pop_vlan().unwrap();
    skb.push_vlan(tag).unwrap();
    assert_eq!(bytes(&skb)[12..16], [0x88, 0xa8, 0x70, 6], "with its drop eligibility");
    assert_eq!(skb.pop_vlan().unwrap().vid(), 6);
    skb.set_vlan(Some(Vlan { tci: 0x6009, protocol: 0x8100 }));
    let tags = [(); 2].map(|()| skb.pop_vlan().unwrap());
    let said = tags.map(|tag| (tag.vid(), tag.pcp(), tag.tpid()));
    assert_eq!(said, [(9, 3, EtherType::VLAN), (5, 3, EtherType::QINQ)]);
    assert_eq!(skb.pop_vlan().unwrap_err(), DropReason::UNWANTED);
    assert!(bytes(&skb) == before && skb.offload() == PARTIAL && skb.vlan().is_none());
    let unknown = Some(Vlan { tci: 1, protocol: 0x9100 });
    skb.set_vlan(unknown);
    assert_eq!(skb.pop_vlan().unwrap_err(), DropReason::UNSUPPORTED);
    assert_eq!(skb.vlan(), unknown);
}

#[test]
fn a_tag_of_the_metadata_goes_into_the_tunnel_with_its_packet() {
    let pool = pool();
    let tag = Some(Vlan { tci: 5, protocol: 0x8100 });
    let mut skb = unfinished(&pool, 4);
    let mut inner = bytes(&skb);
    inner.splice(12..12, [0x81, 0, 0, 5]);
    skb.set_vlan(tag);
    skb.push_geneve(&tunnel(false)).unwrap();
    let frame = bytes(&skb);
    assert!(skb.vlan().is_none() && frame.ends_with(&inner) && frame[12..14] == [8, 0]);
    // What is refused leaves the tag where it was.
    let mut skb = unfinished(&pool, 4);
    let before = bytes(&skb);
    skb.set_vlan(tag);
    let mixed = Tunnel { dst: OUTSIDE[0].into(), ..tunnel(true) };
    assert_eq!(skb.push_vxlan(&mixed), Err(DropReason::UNWANTED));
    assert!(bytes(&skb) == before && skb.vlan() == tag && skb.offload() == PARTIAL);
    let mut refused = Ok(());
    while refused.is_ok() {
        skb.set_vlan(tag);
        refused = skb.push_vlan(VlanTag::new(1, 1));
    }
    assert_eq!((refused, skb.vlan()), (Err(DropReason::TOO_LONG), tag));
    while skb.pop_vlan().is_ok() {}
    assert!(bytes(&skb) == before && skb.offload() == PARTIAL);
}

#[test]
fn a_header_that_is_refused_leaves_the_packet_verified() {
    let pool = pool();
    let mut skb = pool.local().alloc_copy(&[0; 60]).unwrap();
    let verified = Offload { flags: 2, ..Offload::NONE };
    skb.set_offload(verified);
    assert!(skb.push_ipv4(OUTSIDE[0], OUTSIDE[1], Protocol::IPIP).is_err());
    assert_eq!((skb.len(), skb.offload()), (60, verified));
}

#[test]
fn a_packet_in_an_ip_header_and_out_again_is_as_it_was() {
    let pool = pool();
    for payload in [4, 5000] {
        let mut skb = unfinished(&pool, payload);
        let before = bytes(&skb);
        let [src, dst] = OUTSIDE;
        skb.push_ipv4(src, dst, Protocol::IPIP).unwrap();
        assert_eq!(skb.offload().csum_start, PARTIAL.csum_start + 20);
        skb.push_vlan(VlanTag::new(5, 1)).unwrap();
        assert_eq!(ip(&bytes(&skb)).unwrap().dst(), dst);
        assert_eq!(skb.pop_vlan().unwrap().vid(), 5);
        assert_eq!(skb.pop_vlan().unwrap_err(), DropReason::UNWANTED);
        skb.pop_ip().unwrap();
        assert_eq!(skb.pop_ip(), Err(DropReason::UNWANTED));
        assert!(bytes(&skb) == before && skb.offload() == PARTIAL);
    }
}

#[test]
fn icmp_error_quotes_the_packet_with_a_complete_checksum() {
    let pool = pool();
    let from = IpAddr::from([192, 0, 2, 254]);
    for (payload, len) in [(4, 14 + 28 + 32), (1000, 14 + 576)] {
        let mut skb = unfinished(&pool, payload);
        let mut plain = unfinished(&pool, payload);
        plain.complete_checksum().unwrap();
        let right = bytes(&plain);
        let tag = Some(Vlan { tci: 5, protocol: 0x8100 });
        skb.set_vlan(tag);
        let shared = skb.share();
        skb.reply_icmp_error(from, IcmpError::TimeExceeded).unwrap();
        let frame = bytes(&skb);
        assert_eq!((frame.len(), skb.offload(), skb.vlan()), (len, Offload::NONE, tag));
        let icmp = linerate_wire::icmp(&frame).unwrap();
        assert!(icmp.checksum_ok() && linerate_wire::ipv4(&frame).unwrap().checksum_ok());
        assert!(right[14..].starts_with(icmp.payload()) && icmp.payload().len() + 42 == len);
        assert_eq!((&frame[..6], &frame[6..12]), (&right[6..12], &right[..6]));
        // The other handle on the packet sees it as it was.
        assert_eq!(shared.offload(), PARTIAL);
        assert!(shared.udp().unwrap().checksum_ok());
    }
}

#[test]
fn refused_icmp_error_leaves_the_packet_as_it_was() {
    let pool = pool();
    let from = IpAddr::from([192, 0, 2, 254]);
    let refuse = |skb: &mut Skb, from: IpAddr, reason: DropReason| {
        let before = (bytes(skb), skb.offload(), skb.vlan());
        assert_eq!(skb.reply_icmp_error(from, IcmpError::TimeExceeded), Err(reason));
        assert_eq!((bytes(skb), skb.offload(), skb.vlan()), before);
    };
    let mut group = unfinished(&pool, 4);
    group.data_mut()[0] |= 1;
    refuse(&mut group, from, DropReason::UNWANTED);
    refuse(&mut unfinished(&pool, 4), "fd00::1".parse().unwrap(), DropReason::UNWANTED);
    refuse(&mut unfinished(&pool, 5000), from, DropReason::UNSUPPORTED);
    let mut superframe = pool.local().alloc_copy(&ipv4(6, 400)).unwrap();
    superframe.set_offload(SUPERFRAME);
    refuse(&mut superframe, from, DropReason::UNSUPPORTED);
    let mut error = unfinished(&pool, 4);
    error.reply_icmp_error(from, IcmpError::Unreachable(1)).unwrap();
    refuse(&mut error, from, DropReason::UNWANTED);
    let mut full = unfinished(&pool, 4);
    let room = full.headroom() - 27;
    let packet = bytes(&full);
    full.push(room).unwrap();
    full.data_mut()[..packet.len()].copy_from_slice(&packet);
    full.set_offload(PARTIAL);
    refuse(&mut full, from, DropReason::TOO_LONG);
    let mut beyond = unfinished(&pool, 4);
    beyond.set_offload(Offload { csum_start: 60, ..PARTIAL });
    refuse(&mut beyond, from, DropReason::MALFORMED);
    let exported = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
    refuse(&mut unfinished(&exported, 4), from, DropReason::UNSUPPORTED);
}

#[test]
fn a_resized_payload_has_right_lengths_and_checksums() {
    let pool = pool();
    let mut skb = unfinished(&pool, 40);
    for len in [40, 7, 0, 100, 101] {
        skb.set_udp_payload_len(len).unwrap();
        assert_eq!((skb.len(), skb.udp().unwrap().payload().len()), (42 + len, len));
        let mut copy = pool.local().alloc_copy(&bytes(&skb)).unwrap();
        copy.set_offload(PARTIAL);
        copy.complete_checksum().unwrap();
        assert!(udp(&bytes(&copy)).unwrap().checksum_ok(), "{len}");
    }
    let before = bytes(&skb);
    assert_eq!(skb.set_udp_payload_len(10_000), Err(DropReason::TOO_LONG));
    assert_eq!(skb.set_udp_payload_len(usize::MAX), Err(DropReason::TOO_LONG));
    assert_eq!(bytes(&skb), before);
    let mut chain = unfinished(&pool, 5000);
    assert_eq!(chain.set_udp_payload_len(4), Err(DropReason::UNSUPPORTED));
}

#[test]
fn a_refused_header_leaves_the_packet_as_it_was() {
    let pool = pool();
    let [src, dst] = OUTSIDE;
    let mut skb = unfinished(&pool, 4);
    let before = bytes(&skb);
    assert_eq!(skb.push_ipv4(src, dst, Protocol::IPV6), Err(DropReason::UNWANTED));
    let mixed = Tunnel { dst: src.into(), ..tunnel(true) };
    assert_eq!(skb.push_geneve(&mixed), Err(DropReason::UNWANTED));
    while skb.push_ipv4(src, dst, Protocol::IPIP).is_ok() {}
    assert!(skb.headroom() < 20);
    while skb.pop_ip().is_ok() {}
    assert!(bytes(&skb) == before && skb.offload() == PARTIAL);
    skb.set_offload(Offload { gso_type: 5, gso_size: 2, flags: 0, ..PARTIAL });
    assert_eq!(skb.push_vxlan(&tunnel(true)), Err(DropReason::UNSUPPORTED));
    assert_eq!(skb.push_ipv4(src, dst, Protocol(47)), Err(DropReason::UNSUPPORTED));
    let exported = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
    let mut skb = unfinished(&exported, 4);
    assert_eq!(skb.push_vlan(VlanTag::new(1, 1)), Err(DropReason::UNSUPPORTED));
}

#[test]
fn a_tag_on_the_longest_packet_is_too_long() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let mut skb = unfinished(&pool, 65_505);
    assert_eq!(skb.len(), LONGEST_BYTES - 2);
    let before = bytes(&skb);
    assert_eq!(skb.push_vlan(VlanTag::new(1, 1)), Err(DropReason::TOO_LONG));
    assert!(bytes(&skb) == before);
}

#[test]
fn a_refused_resize_leaves_the_packet_as_it_was() {
    let pool = pool();
    let mut skb = unfinished(&pool, 4);
    skb.push_vxlan(&tunnel(true)).unwrap();
    let (before, left) = (bytes(&skb), skb.offload());
    assert!(skb.set_udp_payload_len(200).is_err());
    assert!(bytes(&skb) == before && skb.offload() == left);
}

/// Returns a packet whose sender left a checksum at `place`, 2 bytes long, as a device accepts it.
fn left_at(pool: &Pool, frame: &[u8], start: usize, field: u16) -> Skb {
    let (flags, csum_start) = (Offload::NEEDS_CHECKSUM, start as u16);
    let left = Offload { flags, csum_start, csum_offset: field, ..Offload::NONE };
    assert!(place::is_possible(frame, left), "{start} is accepted behind the outer headers");
    let mut skb = pool.local().alloc_copy(frame).unwrap();
    skb.set_offload(left);
    skb
}

#[test]
fn checksum_at_an_address_of_the_frame_in_a_tunnel_is_refused_when_it_is_taken_out() {
    let (pool, inner) = (pool(), ipv4(17, 100));
    for (port, header, pop) in [
        (4789, &VXLAN[..], Reshape::pop_vxlan as fn(&mut Skb) -> Result<u32, DropReason>),
        (6081, &GENEVE[..], Reshape::pop_geneve),
    ] {
        let outer = over_udp(false, port, header, &inner);
        let frame_at = outer.len() - inner.len();
        // At the inner addresses and at the inner port.
        for (start, field) in [(30, 0), (26, 2), (34, 2)] {
            let mut skb = left_at(&pool, &outer, frame_at + start, field);
            assert_eq!(pop(&mut skb), Err(DropReason::MALFORMED), "{start}");
            assert_eq!(skb.data(), outer, "as it was");
        }
        // Another tunnel is none that has a checksum at a wrong place.
        let mut skb = left_at(&pool, &outer, frame_at + 34, UDP_CHECK);
        let other = if port == 4789 { Reshape::pop_geneve } else { Reshape::pop_vxlan };
        assert_eq!(other(&mut skb), Err(DropReason::UNWANTED));
        let mut skb = left_at(&pool, &outer, frame_at + 34, UDP_CHECK);
        assert!(pop(&mut skb).is_ok() && skb.offload().csum_start == 34);
        skb.complete_checksum().unwrap();
        assert_eq!(skb.data()[..40], inner[..40]);
    }
}

#[test]
fn checksum_at_an_address_behind_three_tags_is_refused_when_one_is_removed() {
    let pool = pool();
    let mut frame = ipv4(17, 100);
    for _ in 0..3 {
        frame.splice(12..12, [0x81, 0, 0, 5]);
    }
    let mut skb = left_at(&pool, &frame, 12 + 3 * 4 + 2 + 16, 0);
    assert_eq!(skb.pop_vlan(), Err(DropReason::MALFORMED));
    assert_eq!(skb.data(), frame);
    // The total length of a packet without tags reads as the type of IPv4 where a tag would be.
    let long = Pool::builder().frames(16).frame_size(4096).build().unwrap();
    let mut skb = left_at(&long, &ipv4(17, 2020), 34, UDP_CHECK);
    assert_eq!(skb.data()[16..18], [0x08, 0x00]);
    assert_eq!(skb.pop_vlan(), Err(DropReason::UNWANTED));
    let mut skb = left_at(&pool, &frame, 12 + 3 * 4 + 2 + 20, UDP_CHECK);
    assert!(skb.pop_vlan().is_ok() && skb.complete_checksum().is_ok());
}
