//! Tests segments: their headers and checksums, and superframes that are not cut.

use linerate_skb::Pool;

use super::*;
use crate::host::testing::{
    self, GENEVE, GRE_CHECKED, GRE_STALE, VXLAN, bytes, chains, ipip, ipv4, ipv6, over_gre,
    over_udp, source_routed,
};

const SUPER: Offload = Offload { gso_size: 1000, ..testing::SUPERFRAME };

fn cut(frame: &[u8], offload: Offload, room: usize) -> Result<Vec<Vec<u8>>, DropReason> {
    let pool = Pool::builder().frames(256).build().unwrap();
    let mut mem = pool.local();
    let mut skb = mem.alloc_copy(frame).unwrap();
    skb.set_offload(offload);
    let mut cutter = Cutter::of(&skb)?;
    let (mut out, mut all, mut scratch) = (Batch::with_capacity(room), Vec::new(), Vec::new());
    loop {
        let ended = cutter.cut(&skb, &mut mem, &mut scratch, &mut out);
        all.extend(out.drain().map(|skb| bytes(&skb)));
        if ended {
            break;
        }
    }
    drop((skb, out, mem));
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{}", ledger);
    Ok(all)
}

fn whole(frame: &[u8]) -> bool {
    let ip = checksum::finish(checksum::sum(&frame[14..34])) == 0;
    let len = ((frame.len() - 34) as u16).to_be_bytes();
    let pseudo = checksum::add(
        checksum::sum(&frame[26..34]),
        checksum::sum(&[0, frame[23], len[0], len[1]]),
    );
    ip && checksum::finish(checksum::add(pseudo, checksum::sum(&frame[34..]))) == 0
}

#[test]
fn segments_are_the_stream_in_order_with_their_own_headers() {
    let mut frame = ipv4(6, 4500);
    frame[38..42].copy_from_slice(&0xffff_ff00u32.to_be_bytes());
    frame[47] = 0x10 | FIN_PSH | CWR;
    for room in [1, 3, 64] {
        let all = cut(&frame, Offload { gso_type: GSO_TCPV4 | GSO_ECN, ..SUPER }, room).unwrap();
        let lens: Vec<usize> = all.iter().map(Vec::len).collect();
        assert_eq!(lens, [1054, 1054, 1054, 1054, 554]);
        let stream: Vec<u8> = all.iter().flat_map(|one| one[54..].to_vec()).collect();
        assert_eq!(stream, frame[54..]);
        for (i, one) in all.iter().enumerate() {
            assert!(whole(one), "segment {i}");
            let number = u32::from_be_bytes(one[38..42].try_into().unwrap());
            assert_eq!(number, 0xffff_ff00u32.wrapping_add(1000 * i as u32));
            assert_eq!(be16(one, 18), i as u16);
            assert_eq!(usize::from(be16(one, 16)), one.len() - 14);
            assert_eq!(one[47] & FIN_PSH != 0, i == 4);
            assert_eq!(one[47] & CWR != 0, i == 0);
        }
    }
}

#[test]
fn a_superframe_in_a_tunnel_is_cut_with_outer_headers_of_its_own() {
    let plain = cut(&ipv4(6, 2500), SUPER, 64).unwrap();
    for depth in 1..IP_HEADERS_MAX {
        let frame = (0..depth).fold(ipv4(6, 2500), |frame, _| ipip(frame));
        let offload = SUPER.pushed(20 * depth).unwrap();
        let all = cut(&frame, offload, 2).unwrap();
        assert_eq!(all.len(), plain.len());
        for (i, (one, plain)) in all.iter().zip(&plain).enumerate() {
            let mut inner = one.clone();
            inner.drain(14..14 + 20 * depth);
            assert!(inner == *plain && whole(&inner), "segment {i}");
            for outer in (0..depth).map(|n| &one[14 + 20 * n..]) {
                assert_eq!(checksum::finish(checksum::sum(&outer[..20])), 0);
                assert_eq!(usize::from(be16(outer, 2)), outer.len());
                assert_eq!(usize::from(be16(outer, 4)), 7 + i);
            }
        }
    }
    let deep = (0..IP_HEADERS_MAX).fold(ipv4(6, 2500), |frame, _| ipip(frame));
    let refused = cut(&deep, SUPER.pushed(20 * IP_HEADERS_MAX).unwrap(), 8).unwrap_err();
    assert_eq!(refused, DropReason::UNSUPPORTED);
}

#[test]
fn a_superframe_in_a_tunnel_over_udp_is_cut_with_lengths_and_checksums_of_its_own() {
    let inner = ipv4(6, 2500);
    let plain = cut(&inner, SUPER, 64).unwrap();
    for (port, header) in [(4789, &VXLAN[..]), (8472, &VXLAN[..]), (6081, &GENEVE[..])] {
        for is_checked in [true, false] {
            let mut frame = over_udp(false, port, header, &inner);
            if !is_checked {
                frame[40..42].fill(0);
            }
            let at = frame.len() - inner.len();
            let all = cut(&frame, SUPER.pushed(at).unwrap(), 2).unwrap();
            assert_eq!(all.len(), plain.len());
            for (i, (one, plain)) in all.iter().zip(&plain).enumerate() {
                assert!(one[at..] == *plain && one[42..at] == *header, "{port}, segment {i}");
                assert_eq!(usize::from(be16(one, 16)), one.len() - 14);
                assert_eq!((usize::from(be16(one, 18)), be16(one, 36)), (i, port));
                assert_eq!(usize::from(be16(one, 38)), one.len() - 34);
                assert_eq!((whole(one), be16(one, 40) == 0), (is_checked, !is_checked));
            }
        }
    }
    // Over IPv6, and without an Ethernet header in the tunnel.
    let frame = over_udp(true, 6081, &[0, 0, 0x08, 0, 0, 0, 7, 0], &inner[14..]);
    let all = cut(&frame, SUPER.pushed(56).unwrap(), 2).unwrap();
    assert_eq!(all.len(), plain.len());
    for (one, plain) in all.iter().zip(&plain) {
        assert!(one[70..] == plain[14..] && linerate_wire::udp(one).unwrap().checksum_ok());
    }
}

#[test]
fn a_superframe_in_a_tunnel_of_gre_is_cut_with_checksums_of_its_own() {
    let inner = ipv4(6, 2500);
    let plain = cut(&inner, SUPER, 64).unwrap();
    let bare = [0, 0, 0x65, 0x58];
    for header in [&GRE_CHECKED[..], &GRE_STALE[..], &bare[..]] {
        let frame = over_gre(header, &inner);
        let at = 34 + header.len();
        let all = cut(&frame, SUPER.pushed(at).unwrap(), 2).unwrap();
        assert_eq!(all.len(), plain.len());
        for (i, (one, plain)) in all.iter().zip(&plain).enumerate() {
            assert!(one[at..] == *plain, "segment {i}");
            assert_eq!(usize::from(be16(one, 16)), one.len() - 14);
            let is_right = checksum::finish(checksum::sum(&one[34..])) == 0;
            assert!(is_right || one[34..at] == bare, "segment {i}");
            assert!(header == bare || one[40..at] == GRE_CHECKED[6..], "segment {i}");
        }
    }
    let numbered = over_gre(&[0x10, 0, 0x65, 0x58, 0, 0, 0, 1], &inner);
    let refused = cut(&numbered, SUPER.pushed(42).unwrap(), 8).unwrap_err();
    assert_eq!(refused, DropReason::UNSUPPORTED);
}

#[test]
fn a_superframe_in_two_tunnels_is_cut_with_right_checksums_of_both() {
    let inner = ipv4(6, 2500);
    let plain = cut(&inner, SUPER, 64).unwrap();
    let in_udp = over_udp(false, 8472, &VXLAN, &inner);
    for middle in [over_gre(&GRE_STALE, &inner), in_udp] {
        let frame = over_udp(false, 4789, &VXLAN, &middle);
        let at = frame.len() - inner.len();
        let all = cut(&frame, SUPER.pushed(at).unwrap(), 2).unwrap();
        assert_eq!(all.len(), plain.len());
        for (i, (one, plain)) in all.iter().zip(&plain).enumerate() {
            assert!(one[at..] == *plain && whole(one), "segment {i}");
            let is_gre = one[50 + 23] == GRE;
            let is_right = checksum::finish(checksum::sum(&one[84..])) == 0;
            assert!(if is_gre { is_right } else { whole(&one[50..]) }, "segment {i}");
        }
    }
}

#[test]
fn datagrams_of_a_train_that_are_of_a_tunnel_keep_their_boundaries() {
    let frame = over_udp(false, 4789, &VXLAN, &ipv4(17, 1950));
    for flags in [Offload::NEEDS_CHECKSUM, 0] {
        let train = Offload { flags, gso_type: GSO_UDP_L4, hdr_len: 42, csum_offset: 6, ..SUPER };
        let all = cut(&frame, train, 64).unwrap();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [1042, 1042]);
        assert!(all.iter().all(|one| whole(one)));
    }
}

#[test]
fn a_superframe_with_vlan_tags_is_cut_with_its_tags_before_each_segment() {
    let plain = cut(&ipv4(6, 2500), SUPER, 64).unwrap();
    let (outer, inner) = ([0x88, 0xa8, 0, 7], [0x81, 0, 0, 5]);
    for tags in [inner.to_vec(), [outer, inner].concat(), [inner, inner].concat()] {
        let mut frame = ipv4(6, 2500);
        frame.splice(12..12, tags.iter().copied());
        let all = cut(&frame, SUPER.pushed(tags.len()).unwrap(), 64).unwrap();
        assert_eq!(all.len(), plain.len());
        for (i, (mut one, plain)) in all.into_iter().zip(&plain).enumerate() {
            let removed: Vec<u8> = one.drain(12..12 + tags.len()).collect();
            assert!(removed == tags && one == *plain, "segment {i}");
        }
    }
}

#[test]
fn superframe_under_way_by_a_source_route_is_cut_with_checksums_for_its_destination() {
    let plain = cut(&ipv4(6, 2500), SUPER, 64).unwrap();
    let all = cut(&source_routed(ipv4(6, 2500)), SUPER.pushed(8).unwrap(), 64).unwrap();
    assert_eq!(all.len(), plain.len());
    for (i, (one, plain)) in all.iter().zip(&plain).enumerate() {
        assert!(one[42..] == plain[34..], "segment {i}");
        assert_eq!(checksum::finish(checksum::sum(&one[14..42])), 0);
    }
}

#[test]
fn superframe_of_udp_in_a_tunnel_over_udp_is_not_cut_at_the_tunnels_header() {
    let inner = ipv4(17, 3000);
    let mut frame = ipv4(17, 8 + inner.len());
    frame.truncate(42 + 8);
    frame.extend(&inner);
    let left = Offload { gso_type: GSO_UDP_L4, hdr_len: 92, csum_offset: 6, ..SUPER };
    let refused = |csum_start| cut(&frame, Offload { csum_start, ..left }, 8).unwrap_err();
    assert_eq!(refused(84), DropReason::UNSUPPORTED);
    assert_eq!(refused(33), DropReason::MALFORMED, "within the IP header");
}

const SUPER6: Offload = Offload { gso_type: GSO_TCPV6, csum_start: 54, hdr_len: 74, ..SUPER };

#[test]
fn superframe_behind_extension_headers_is_cut_with_them_before_each_segment() {
    let plain = cut(&ipv6(6, &[], 6, 2500), SUPER6, 64).unwrap();
    assert!(plain.iter().all(|one| linerate_wire::tcp(one).unwrap().checksum_ok()));
    for (first, chain) in chains(6) {
        let mut frame = ipv6(first, &chain, 6, 2500);
        let routed = (first, chain[3]) == (43, 1);
        // Until the packet has passed its segments, the fixed header has the address of the next
        // one.
        frame[38..54].fill(if routed { 9 } else { 8 });
        let all = cut(&frame, SUPER6.pushed(chain.len()).unwrap(), 2).unwrap();
        assert_eq!(all.len(), plain.len());
        for (i, (mut one, plain)) in all.into_iter().zip(&plain).enumerate() {
            assert_eq!(usize::from(be16(&one, 18)), one.len() - 54, "{first}");
            let removed: Vec<u8> = one.drain(54..54 + chain.len()).collect();
            assert_eq!(removed, chain);
            one[18..21].copy_from_slice(&plain[18..21]);
            one[38..54].fill(8);
            assert!(one == *plain, "segment {i} behind {first}");
        }
    }
}

#[test]
fn superframe_behind_headers_that_are_not_stepped_over_is_not_cut() {
    let refused = |first: u8, chain: &[u8]| {
        let frame = ipv6(first, chain, 6, 2500);
        cut(&frame, SUPER6.pushed(chain.len()).unwrap(), 8).unwrap_err()
    };
    let options = |units: u8| {
        let mut header = vec![0; 8 * (usize::from(units) + 1)];
        (header[0], header[1]) = (6, units);
        header
    };
    let nine: Vec<u8> =
        (0..9).flat_map(|i| [if i < 8 { 60 } else { 6 }, 0, 1, 4, 0, 0, 0, 0]).collect();
    for (why, first, chain) in [
        ("too long", 60, options(16)),
        ("too many", 60, nine),
        ("an unknown route", 43, vec![6, 2, 3, 1].into_iter().chain([0; 20]).collect()),
        ("authentication", 51, vec![6, 1, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
    ] {
        assert_eq!(refused(first, &chain), DropReason::UNSUPPORTED, "{why}");
    }
    for (high, low) in [(0, 1), (0, 8), (1, 0)] {
        let fragment = [6, 0, high, low, 0, 0, 0, 1];
        assert_eq!(refused(44, &fragment), DropReason::MALFORMED, "{high} {low}");
    }
    for (first, chain) in chains(6) {
        let frame = ipv6(first, &chain, 6, 2500);
        for len in 1..74 + chain.len() {
            let offload = SUPER6.pushed(chain.len()).unwrap();
            assert!(cut(&frame[..len], offload, 8).is_err(), "{len}");
        }
    }
}

#[test]
fn a_superframe_that_lost_or_outgrew_its_headers_is_not_cut() {
    let pool = Pool::builder().frames(16).build().unwrap();
    let mut mem = pool.local();
    for (pull, push, reason) in [
        (35, 35, DropReason::UNSUPPORTED),
        (34, 0, DropReason::MALFORMED),
        (14, 0, DropReason::MALFORMED),
    ] {
        let mut skb = mem.alloc_copy(&ipv4(6, 1500)).unwrap();
        skb.set_offload(SUPER);
        assert!(skb.pull(pull) && skb.push(push).is_some());
        assert_eq!(Cutter::of(&skb).map(drop), Err(reason), "{pull}");
    }
}

#[test]
fn datagrams_of_a_train_have_lengths_of_their_own() {
    let frame = ipv4(17, 2500);
    let all = cut(&frame, Offload { gso_type: GSO_UDP_L4, csum_offset: 6, ..SUPER }, 64).unwrap();
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [1042, 1042, 542]);
    assert!(all.iter().all(|one| whole(one)));
    assert_eq!(all.iter().map(|one| be16(one, 38)).collect::<Vec<_>>(), [1008, 1008, 508]);
}

#[test]
fn checksum_of_a_datagram_that_comes_out_as_zero_is_written_as_ones() {
    let udp = Offload { gso_type: GSO_UDP_L4, csum_offset: 6, ..SUPER };
    let mut frame = ipv4(17, 2500);
    let first = &cut(&frame, udp, 64).unwrap()[0];
    // Added to the payload, the checksum leaves nothing.
    let word = checksum::add(be16(&frame, 42), be16(first, 40));
    put(&mut frame, 42, word);
    let first = &cut(&frame, udp, 64).unwrap()[0];
    assert!(whole(first) && be16(first, 40) == u16::MAX, "{:x}", be16(first, 40));
}

#[test]
fn superframe_of_headers_alone_leaves_as_one_packet() {
    let mut segment = ipv4(6, 0);
    segment[47] = 0x10 | FIN_PSH;
    let udp = Offload { gso_type: GSO_UDP_L4, csum_offset: 6, ..SUPER };
    for (frame, offload) in [(segment, SUPER), (ipv4(17, 0), udp)] {
        let all = cut(&frame, offload, 1).unwrap();
        assert!(all.len() == 1 && whole(&all[0]), "{all:?}");
        assert_eq!((all[0].len(), all[0].get(47)), (frame.len(), frame.get(47)));
    }
}

#[test]
fn segment_that_is_longer_than_ip_can_state_is_not_made() {
    let frame = |bytes: usize| ipv4(6, bytes - 54);
    // 65,535 bytes behind the Ethernet header, and one more.
    let longest = cut(&frame(65_549), Offload { gso_size: u16::MAX, ..SUPER }, 8).unwrap();
    assert!(longest.len() == 1 && be16(&longest[0], 16) == u16::MAX && whole(&longest[0]));
    let refused = cut(&frame(65_550), Offload { gso_size: u16::MAX, ..SUPER }, 8).unwrap_err();
    assert_eq!(refused, DropReason::MALFORMED);
    let two = cut(&frame(65_550), Offload { gso_size: 65_000, ..SUPER }, 8).unwrap();
    assert!(two.len() == 2 && two.iter().all(|one| whole(one)));
    // The outer header of a tunnel states 20 bytes more.
    let tunnel = ipip(frame(65_549));
    let offload = Offload { gso_size: u16::MAX, ..SUPER }.pushed(20).unwrap();
    assert_eq!(cut(&tunnel, offload, 8).unwrap_err(), DropReason::MALFORMED);
    // IPv6 does not count its own 40 bytes.
    let six = ipv6(6, &[], 6, 65_515);
    let whole_six = cut(&six, Offload { gso_size: u16::MAX, ..SUPER6 }, 8).unwrap();
    assert_eq!((whole_six.len(), be16(&whole_six[0], 18)), (1, u16::MAX));
}

#[test]
fn superframe_of_more_segments_than_a_sender_makes_is_not_cut() {
    let most = cut(&ipv4(6, SEGMENTS_MAX), Offload { gso_size: 1, ..SUPER }, 64).unwrap();
    assert_eq!(most.len(), SEGMENTS_MAX);
    for (payload, gso_size) in [(SEGMENTS_MAX + 1, 1), (65_000, 1), (65_000, 31)] {
        let refused = cut(&ipv4(6, payload), Offload { gso_size, ..SUPER }, 8).unwrap_err();
        assert_eq!(refused, DropReason::MALFORMED, "{payload} in pieces of {gso_size}");
    }
}

#[test]
fn what_contradicts_itself_is_not_cut() {
    let frame = ipv4(6, 3000);
    let refused = |at: usize, value: u8, offload| {
        let mut bad = frame.clone();
        bad[at] = value;
        cut(&bad, offload, 8).unwrap_err()
    };
    assert_eq!(refused(0, 0, Offload { gso_type: 3, ..SUPER }), DropReason::UNSUPPORTED);
    assert_eq!(refused(0, 0, Offload { gso_size: 0, ..SUPER }), DropReason::MALFORMED);
    assert_eq!(refused(0, 0, Offload { gso_type: GSO_TCPV6, ..SUPER }), DropReason::MALFORMED);
    assert_eq!(refused(14, 0x44, SUPER), DropReason::MALFORMED);
    assert_eq!(refused(23, 17, SUPER), DropReason::MALFORMED);
    assert_eq!(refused(46, 0x40, SUPER), DropReason::MALFORMED);
    for len in 0..54 {
        if len > 0 {
            assert!(cut(&frame[..len], SUPER, 8).is_err(), "{len}");
        }
    }
}

#[test]
fn superframe_is_cut_into_all_its_segments_or_none() {
    let pool = Pool::builder().frames(16).build().unwrap();
    let (mut mem, mut scratch) = (pool.local(), Vec::new());
    let mut skb = mem.alloc_copy(&ipv4(6, 2500)).unwrap();
    assert!(skb.set_offload(SUPER) && skb.set_mark(8));
    let (mut short, mut out) = (Batch::with_capacity(2), Batch::with_capacity(4));
    assert!(out.push(mem.alloc_copy(&ipv4(17, 100)).unwrap()).is_ok());
    assert!(!super::cut(&skb, 1054, &mut mem, &mut scratch, &mut short), "room for two of three");
    assert!(!super::cut(&skb, 1053, &mut mem, &mut scratch, &mut out), "longer than was asked for");
    let mut taken = Batch::with_capacity(16);
    mem.alloc(&mut taken, 16);
    taken.truncate_to(taken.len() - 2, &mut mem);
    assert!(!super::cut(&skb, 1054, &mut mem, &mut scratch, &mut out), "frames for two of three");
    let ledger = pool.ledger();
    assert_eq!((short.len(), out.len(), ledger.created), (0, 1, 2 + taken.len() as u64));
    taken.consume(&mut mem);
    assert!(super::cut(&skb, 1054, &mut mem, &mut scratch, &mut out));
    assert!(out.iter().all(|skb| whole(&bytes(skb)) || skb.len() == 142));
    let fields: Vec<_> = out.iter().map(|skb| (skb.len(), skb.mark(), skb.offload())).collect();
    let none = Offload::NONE;
    let segments = [(1054, Some(8), none), (1054, Some(8), none), (554, Some(8), none)];
    assert_eq!(fields[0].0, 142, "the packet before stays");
    assert_eq!(fields[1..], segments);
    drop((skb, out));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn headers_without_payload_are_one_packet_on_the_wire() {
    let pool = Pool::builder().frames(16).build().unwrap();
    let mut skb = pool.local().alloc_copy(&ipv4(6, 0)).unwrap();
    skb.set_offload(SUPER);
    assert_eq!(wire_bytes(&skb), 54);
}
