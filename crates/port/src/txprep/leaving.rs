//! Property test: a sent packet is correct, whatever edits a program made to it and whatever it
//! left to a device.
//!
//! Each packet exists twice, finished and with something left to a device, and is edited alike.
//! What leaves of the two is the same byte for byte, and etherparse, which knows nothing of ours,
//! finds every checksum right; a kernel's socket takes the datagrams.

use std::net::UdpSocket;
use std::time::Duration;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use linerate_skb::{Batch, DropReason, Offload, Pool, Skb};
use linerate_sys::netif::Interface;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::TxPrep;
use super::tests::Device;
use crate::caps::Caps;
use crate::host::headers::IpHeader;
use crate::host::testing::{LONG, VXLAN, bytes, in_netns, ip, queue, wait_running};
use crate::{Views, ViewsMut, Want};

/// An edit that a program makes to a packet.
#[derive(Debug, Clone, Copy)]
enum Edit {
    SetSrc(u8),
    SetDst(u8),
    SwapEnds,
    Ports(u16),
    Fill,
    DecTtl,
    Payload(u8),
    ShareAndWrite,
    Complete,
    PushIp,
    PullIp,
    Trim(u8),
}

/// The work that is left to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Checksum,
    Cut,
}

#[derive(Debug, Clone)]
struct Kind {
    v6: bool,
    tcp: bool,
    vlan: bool,
    payload: usize,
}

fn frame(kind: &Kind) -> Vec<u8> {
    let payload: Vec<u8> = (0..kind.payload).map(|i| (i * 7) as u8).collect();
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let builder = match kind.v6 {
        true => builder.ipv6([7; 16], [8; 16], 64),
        false => builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
    };
    match kind.tcp {
        true => builder.tcp(1000, 2000, 3, 512).write(&mut frame, &payload).unwrap(),
        false => builder.udp(1000, 2000).write(&mut frame, &payload).unwrap(),
    }
    if kind.vlan {
        frame.splice(12..12, [0x81, 0, 0, 5]);
    }
    frame
}

/// Returns the packet of `kind` with `left` to a device.
fn unfinished(pool: &Pool, kind: &Kind, left: Left) -> Skb {
    let mut skb = pool.local().alloc_copy(&frame(kind)).unwrap();
    if left == Left::Nothing {
        return skb;
    }
    let start = 14 + if kind.vlan { 4 } else { 0 } + if kind.v6 { 40 } else { 20 };
    let (offset, header, gso) = if kind.tcp { (16, 20, 1) } else { (6, 8, 5) };
    let gso = if kind.tcp && kind.v6 { 4 } else { gso };
    let mut offload = Offload { flags: 1, csum_start: start, csum_offset: offset, ..Offload::NONE };
    if left == Left::Cut {
        offload = Offload { gso_type: gso, gso_size: 500, hdr_len: start + header, ..offload };
    }
    skb.set_offload(offload);
    // While the offload is set, `fill_checksum` writes the sum of the pseudo header.
    let filled = match kind.tcp {
        true => skb.tcp_mut().unwrap().fill_checksum(),
        false => skb.udp_mut().unwrap().fill_checksum(),
    };
    assert!(filled);
    skb
}

/// Returns the packet of `kind` in VXLAN as the kernel's interface leaves it: the inner packet has
/// the work that is `left`, and its outer checksum is complete, or of a superframe the sum of its
/// pseudo header.
fn in_vxlan(pool: &Pool, kind: &Kind, left: Left, outer_v6: bool) -> Skb {
    let inner = unfinished(pool, kind, left);
    let payload = 8 + inner.len();
    let mut packet = frame(&Kind { v6: outer_v6, tcp: false, vlan: false, payload });
    let at = packet.len() - inner.len();
    packet.truncate(at);
    packet[at - 8..].copy_from_slice(&VXLAN);
    packet.extend(bytes(&inner));
    let mut skb = pool.local().alloc_copy(&packet).unwrap();
    skb.set_offload(inner.offload().pushed(at).unwrap());
    let mut outer = skb.udp_mut().unwrap();
    outer.set_dst_port(4789);
    assert!(outer.fill_checksum());
    if left == Left::Cut {
        let ip = IpHeader::first(&packet).unwrap();
        let pseudo = ip.pseudo(&packet, (packet.len() - ip.end) as u16).unwrap();
        skb.data_mut()[ip.end + 6..ip.end + 8].copy_from_slice(&pseudo.to_be_bytes());
    }
    skb
}

fn apply(skb: &mut Skb, edit: Edit, depth: &mut usize, v6: bool) -> Result<(), DropReason> {
    match edit {
        Edit::SetSrc(n) => match skb.ipv4_mut() {
            Ok(mut ip) => ip.set_src([10, 0, 0, n].into()),
            Err(_) => skb.ipv6_mut()?.set_src([n; 16].into()),
        },
        Edit::SetDst(n) => match skb.ipv4_mut() {
            Ok(mut ip) => ip.set_dst([n, 0, 0, n].into()),
            Err(_) => skb.ipv6_mut()?.set_dst([n; 16].into()),
        },
        Edit::DecTtl => match skb.ipv4_mut() {
            Ok(mut ip) => drop(ip.dec_ttl()),
            Err(_) => drop(skb.ipv6_mut()?.dec_hop_limit()),
        },
        Edit::ShareAndWrite => {
            let _shared = skb.share();
            skb.eth_mut()?.set_src(linerate_wire::Mac([2, 0, 0, 0, 0, 9]));
        }
        Edit::SwapEnds | Edit::Ports(_) | Edit::Fill | Edit::Payload(_) => transport(skb, edit)?,
        Edit::Complete => drop(skb.complete_checksum()),
        Edit::PushIp if *depth < 2 => {
            let tag = usize::from(skb.data()[12] == 0x81) * 4;
            let mut header = crate::host::testing::ipip(vec![0; skb.len() - tag])[..34].to_vec();
            header[..12].copy_from_slice(&skb.data()[..12]);
            (header[12], header[13]) = (8, 0);
            if *depth == 0 && v6 {
                header[23] = 41;
                let check = linerate_wire::checksum::update16(
                    u16::from_be_bytes([header[24], header[25]]),
                    4,
                    41,
                );
                header[24..26].copy_from_slice(&check.to_be_bytes());
            }
            assert!(skb.pull(14 + tag));
            skb.push(34).unwrap().copy_from_slice(&header);
            *depth += 1;
        }
        Edit::PullIp if *depth > 0 => {
            *depth -= 1;
            let mut header: [u8; 14] = skb.data()[..14].try_into().unwrap();
            if *depth == 0 && v6 {
                (header[12], header[13]) = (0x86, 0xdd);
            }
            assert!(skb.pull(34));
            skb.push(14).unwrap().copy_from_slice(&header);
        }
        Edit::PushIp | Edit::PullIp => {}
        Edit::Trim(keep) => trim(skb, keep.into()),
    }
    Ok(())
}

/// Edits the transport header, or the bytes after it.
fn transport(skb: &mut Skb, edit: Edit) -> Result<(), DropReason> {
    match edit {
        Edit::SwapEnds => match skb.udp_mut() {
            Ok(mut udp) => udp.swap_ends(),
            Err(_) => skb.tcp_mut()?.swap_ends(),
        },
        Edit::Ports(port) => match skb.udp_mut() {
            Ok(mut udp) => (udp.set_src_port(port), udp.set_dst_port(!port)).1,
            Err(_) => {
                let mut tcp = skb.tcp_mut()?;
                tcp.set_src_port(port);
                tcp.set_dst_port(!port);
            }
        },
        // `fill_checksum` returns false, and changes nothing, for a chain whose payload it would
        // have to read.
        Edit::Fill => match skb.udp_mut() {
            Ok(mut udp) => drop(udp.fill_checksum()),
            Err(_) => drop(skb.tcp_mut()?.fill_checksum()),
        },
        Edit::Payload(value) if skb.is_linear() => match skb.udp_mut() {
            Ok(mut udp) => {
                udp.payload_mut().fill(value);
                assert!(udp.fill_checksum());
            }
            Err(_) => {
                let mut tcp = skb.tcp_mut()?;
                tcp.payload_mut().fill(value);
                assert!(tcp.fill_checksum());
            }
        },
        _ => {}
    }
    Ok(())
}

/// Shortens a datagram's payload, as a program with a shorter answer would.
fn trim(skb: &mut Skb, keep: usize) {
    let plain = skb.is_linear() && skb.data()[12..14] == [8, 0] && skb.data()[23] == 17;
    if !plain || skb.offload().is_gso() || skb.len() < 42 + keep {
        return;
    }
    let data = skb.data_mut();
    data[16..18].copy_from_slice(&(28 + keep as u16).to_be_bytes());
    data[38..40].copy_from_slice(&(8 + keep as u16).to_be_bytes());
    data[24..26].fill(0);
    let check = linerate_wire::checksum::finish(linerate_wire::checksum::sum(&data[14..34]));
    data[24..26].copy_from_slice(&check.to_be_bytes());
    assert!(skb.trim(42 + keep) && skb.udp_mut().unwrap().fill_checksum());
}

/// Returns the packets as they leave through a device without offloads.
fn leave(pool: &Pool, skb: Skb) -> Vec<Vec<u8>> {
    let mut batch = Batch::with_capacity(1);
    batch.push(skb).unwrap();
    let (mut prep, mut device) = (TxPrep::new(&Caps::default()), Device::new(usize::MAX));
    let moved = prep.xmit(&mut device, &mut pool.local(), &mut batch);
    assert!(batch.is_empty() && !prep.is_busy());
    assert_eq!(moved.packets, device.sent.len());
    device.sent
}

/// Asserts that all checksums of a packet are correct; returns its payload.
fn payload_of_right(packet: &[u8]) -> Vec<u8> {
    let mut sliced = SlicedPacket::from_ethernet(packet).unwrap();
    loop {
        let net = sliced.net.as_ref().unwrap();
        let (src, dst, inner) = match net {
            NetSlice::Ipv4(ip) => {
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                let ends = (header.source.to_vec(), header.destination.to_vec());
                (ends.0, ends.1, ip.payload())
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header().to_header();
                (header.source.to_vec(), header.destination.to_vec(), ip.payload())
            }
            NetSlice::Arp(_) => panic!("an ARP packet"),
        };
        let protocol = inner.ip_number.0;
        if matches!(protocol, 4 | 41) {
            sliced = SlicedPacket::from_ip(inner.payload).unwrap();
            continue;
        }
        let segment = inner.payload;
        let length = u32::try_from(segment.len()).unwrap().to_be_bytes();
        let sum = etherparse::checksum::Sum16BitWords::new()
            .add_slice(&src)
            .add_slice(&dst)
            .add_4bytes(length)
            .add_2bytes([0, protocol])
            .add_slice(segment);
        assert_eq!(sum.ones_complement(), 0, "{packet:02x?}");
        return match sliced.transport.unwrap() {
            TransportSlice::Udp(udp) => {
                assert_eq!(usize::from(udp.length()), segment.len());
                udp.payload().to_vec()
            }
            TransportSlice::Tcp(tcp) => tcp.payload().to_vec(),
            other => panic!("{other:?}"),
        };
    }
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        any::<u8>().prop_map(Edit::SetSrc),
        any::<u8>().prop_map(Edit::SetDst),
        Just(Edit::SwapEnds),
        any::<u16>().prop_map(Edit::Ports),
        Just(Edit::Fill),
        Just(Edit::DecTtl),
        any::<u8>().prop_map(Edit::Payload),
        Just(Edit::ShareAndWrite),
        Just(Edit::Complete),
        Just(Edit::PushIp),
        Just(Edit::PullIp),
        any::<u8>().prop_map(Edit::Trim),
    ];
    prop::collection::vec(edit, 0..8)
}

fn kinds() -> impl Strategy<Value = Kind> {
    let payload = prop_oneof![Just(1usize), 2usize..300, 1000usize..6000];
    (any::<bool>(), any::<bool>(), any::<bool>(), payload)
        .prop_map(|(v6, tcp, vlan, payload)| Kind { v6, tcp, vlan, payload })
}

proptest! {
    #![proptest_config(Config { cases: if cfg!(miri) { 4 } else { 512 }, ..Config::default() })]

    #[test]
    fn packets_leave_with_right_checksums_after_any_edits(
        kind in kinds(), edits in edits(),
        left in prop_oneof![Just(Left::Checksum), Just(Left::Cut)],
    ) {
        let pool = Pool::builder().frames(128).build().unwrap();
        // Compare a superframe's segments by their payload: edits need the superframe in one piece.
        let cuts = left == Left::Cut;
        let edits = edits.iter().filter(|edit| !cuts || !matches!(edit, Edit::Trim(_)));
        let (mut whole, mut other) =
            (unfinished(&pool, &kind, Left::Nothing), unfinished(&pool, &kind, left));
        let (mut depth, mut same) = (0, 0);
        for edit in edits {
            let results = (
                apply(&mut whole, *edit, &mut depth, kind.v6),
                apply(&mut other, *edit, &mut same, kind.v6),
            );
            prop_assert_eq!(results.0, results.1);
        }
        let whole = leave(&pool, whole);
        let segments = leave(&pool, other);
        let payload = payload_of_right(&whole[0]);
        let pieces: Vec<u8> = segments.iter().flat_map(|one| payload_of_right(one)).collect();
        prop_assert_eq!(payload, pieces);
        if !cuts {
            prop_assert_eq!(whole, segments);
        }
    }
}

#[test]
fn packets_in_a_tunnel_leave_with_right_bytes() {
    let pool = Pool::builder().frames(128).build().unwrap();
    for bits in 0..8 {
        let [v6, tcp, outer_v6] = [1, 2, 4].map(|bit| bits & bit != 0);
        let kind = Kind { v6, tcp, vlan: false, payload: 1200 };
        let sent = |left| leave(&pool, in_vxlan(&pool, &kind, left, outer_v6));
        let whole = sent(Left::Nothing);
        assert_eq!(whole, sent(Left::Checksum), "{kind:?}");
        let payload = payload_of_right(&whole[0]);
        assert_eq!(payload[8..], frame(&kind), "the packet inside");
        let segments = sent(Left::Cut);
        assert_eq!(segments.len(), 3, "{kind:?}");
        let inside = segments.iter().flat_map(|one| payload_of_right(&payload_of_right(one)[8..]));
        let stream: Vec<u8> = inside.collect();
        assert!(stream == payload_of_right(&payload[8..]), "{kind:?}");
    }
}

#[test]
fn a_header_pushed_on_an_unfinished_packet_leaves_the_inner_addresses_alone() {
    let pool = Pool::builder().frames(16).build().unwrap();
    let kind = Kind { v6: false, tcp: true, vlan: false, payload: 100 };
    let mut skb = unfinished(&pool, &kind, Left::Checksum);
    apply(&mut skb, Edit::PushIp, &mut 0, false).unwrap();
    let sent = leave(&pool, skb).remove(0);
    assert_eq!(sent[50..54], [10, 0, 0, 2]);
    let inner = [&sent[..14], &sent[34..]].concat();
    assert_eq!(inner, frame(&kind));
}

#[test]
fn a_kernels_socket_takes_every_datagram_whatever_was_done_to_it() {
    in_netns(|| {
        ip("link add v0 type veth peer name v1");
        ip("link set v1 address 02:00:00:00:00:02");
        ip("addr add 10.0.0.2/24 dev v1");
        for name in ["v0", "v1"] {
            ip(&format!("link set {name} up"));
        }
        wait_running("v0");
        wait_running("v1");
        // Turn the offload off; otherwise the receiver does not check the checksum.
        Interface::open("v0")
            .unwrap()
            .set_offload(linerate_sys::netif::DeviceOffload::Checksums, false)
            .unwrap();
        let socket = UdpSocket::bind("10.0.0.2:2000").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let cases = (1usize..1400, edits(), any::<bool>());
        for text in ["packet:v0", "packet:v0,vnet=off"] {
            let mut queue = queue(text);
            let pool = queue.pool().clone();
            let mut runner = TestRunner::new(Config { cases: 100, ..Config::default() });
            let run = |(payload, edits, left): (usize, Vec<Edit>, bool)| {
                let kind = Kind { v6: false, tcp: false, vlan: false, payload };
                let left = if left { Left::Checksum } else { Left::Nothing };
                let (mut skb, mut depth) = (unfinished(&pool, &kind, left), 0);
                for edit in edits {
                    match edit {
                        // Skip these edits, which would change the destination.
                        Edit::SetDst(_) | Edit::SwapEnds | Edit::Ports(_) => {}
                        Edit::SetSrc(_) if depth == 0 => {
                            skb.ipv4_mut().unwrap().set_src([10, 0, 0, 9].into())
                        }
                        edit => drop(apply(&mut skb, edit, &mut depth, false)),
                    }
                }
                while depth > 0 {
                    apply(&mut skb, Edit::PullIp, &mut depth, false).unwrap();
                }
                let expected = skb.udp().unwrap().payload().to_vec();
                let mut batch = Batch::with_capacity(1);
                batch.push(skb).unwrap();
                while queue.xmit(&mut batch) == 0 {
                    queue.wait_for(Want::Room, Some(LONG)).unwrap();
                }
                let mut got = [0; 2000];
                let n = socket.recv(&mut got).map_err(|e| TestCaseError::fail(e.to_string()))?;
                prop_assert_eq!(&got[..n], &expected[..]);
                Ok(())
            };
            let run = std::cell::RefCell::new(run);
            runner.run(&cases, |case| (run.borrow_mut())(case)).unwrap();
        }
    });
}
