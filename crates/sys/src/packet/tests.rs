//! Two packet sockets on the two ends of a veth pair.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::*;
use crate::tun::{Tap, TapOffloads};
use crate::vnet::{F_NEEDS_CSUM, GSO_TCPV4, GSO_UFO, VnetHdr};
use crate::wait::poll_readable;
use linerate_testing::{in_netns, ip, quiet, unless, wait_running};

const WAIT: Duration = Duration::from_secs(5);
const VNET: Options =
    Options { vnet_hdr: true, qdisc_bypass: true, promiscuous: true, send_buffer_bytes: 4 << 20 };
/// Marks the frames of these tests, apart from the neighbour solicitations of an interface coming
/// up.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// The longest that a device takes whole by default (`gso_max_size` - 1, the Ethernet header
/// included).
const SUPERFRAME_BYTES_MAX: usize = 65_535;
/// The offload header of a superframe of TCP over IPv4.
const SUPERFRAME: VnetHdr = VnetHdr {
    flags: F_NEEDS_CSUM,
    gso_type: GSO_TCPV4,
    hdr_len: 54,
    gso_size: 1448,
    csum_start: 34,
    csum_offset: 16,
};

/// Returns a veth pair that is up, with MTU 9000.
fn pair() -> (Interface, Interface) {
    ip("link add v0 mtu 9000 type veth peer name v1 mtu 9000");
    let (a, b) = (Interface::open("v0").unwrap(), Interface::open("v1").unwrap());
    a.set_up().unwrap();
    b.set_up().unwrap();
    wait_running("v0");
    wait_running("v1");
    (a, b)
}

/// Returns a veth pair as `pair` does, whose ends send nothing by themselves.
fn silent_pair() -> (Interface, Interface) {
    quiet();
    pair()
}

/// Returns a broadcast frame of `len` bytes whose payload tells it from others.
fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut f = vec![0xff; 6];
    f.extend([2, 0, 0, 0, 0, 1]);
    f.extend(ETHERTYPE);
    f.extend((f.len()..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(number)));
    f
}

/// Calls `f` with each received frame that `wanted` accepts, until it was called `count` times.
fn receive(
    socket: &PacketSocket,
    ring: &mut BlockRing,
    count: usize,
    wanted: impl Fn(&[u8]) -> bool,
    mut f: impl FnMut(usize, RxFrame<'_>),
) {
    let (mut n, deadline) = (0, Instant::now() + WAIT);
    while n < count {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(poll_readable(&[socket.as_fd()], Some(left)).unwrap(), "{n} of {count} came");
        while n < count
            && let Some(mut block) = ring.next_block()
        {
            while n < count
                && let Some(frame) = block.next_frame()
            {
                if wanted(frame.data) {
                    f(n, frame);
                    n += 1;
                }
            }
        }
    }
}

/// Returns a sender at one end of a pair, and a receiver at the other, both with `options`.
fn sockets(options: &Options) -> (PacketSocket, PacketSocket, BlockRing) {
    let (a, b) = pair();
    let tx = PacketSocket::open_sender(&a, options).unwrap();
    let (rx, ring) = PacketSocket::open(&b, options, &RingSize::default()).unwrap();
    (tx, rx, ring)
}

/// Sends a frame in parts; returns the number of frames sent, and the error.
fn send_one<'a>(
    tx: &PacketSocket,
    vnet: Option<&VnetHdr>,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> (usize, Option<Errno>) {
    let mut batch = SendBatch::new();
    let mut sending = batch.start();
    assert!(sending.add(vnet, parts));
    sending.flush(tx)
}

fn ours(data: &[u8]) -> bool {
    data[12..14] == ETHERTYPE
}

#[test]
fn a_batch_sent_on_one_end_arrives_on_the_other_in_order_and_whole() {
    in_netns(|| {
        let (tx, rx, mut ring) = sockets(&VNET);
        let frames: Vec<_> = (0..100).map(|i| frame(i, 60 + 13 * usize::from(i))).collect();
        let mut batch = SendBatch::new();
        for part in frames.chunks(MESSAGES_MAX) {
            let mut sending = batch.start();
            for f in part {
                let (head, tail) = f.split_at(14);
                assert!(sending.add(Some(&VnetHdr::NONE), [head, tail]));
            }
            assert_eq!(sending.flush(&tx), (part.len(), None));
        }
        receive(&rx, &mut ring, 100, ours, |i, got| {
            assert_eq!(got.data, frames[i]);
            assert_eq!(got.len as usize, frames[i].len());
            assert_eq!(got.vnet, Some(VnetHdr::NONE));
            assert_eq!(got.pkttype, PKTTYPE_BROADCAST);
            assert_eq!(got.vlan, None);
            assert!(got.sec > 0);
        });
        let stats = rx.take_statistics().unwrap();
        assert!(stats.packets >= 100 && stats.drops == 0, "{stats:?}");
        assert_eq!(rx.take_statistics().unwrap().packets, 0);
        assert_eq!(ring.bad_blocks(), 0);
    });
}

#[test]
fn a_budget_of_one_frame_a_visit_loses_none() {
    in_netns(|| {
        let (tx, rx, mut ring) = sockets(&Options::default());
        let frames: Vec<_> = (0..60).map(|i| frame(i, 100)).collect();
        let mut batch = SendBatch::new();
        let mut sending = batch.start();
        for f in &frames {
            assert!(sending.add(None, [&f[..]]));
        }
        assert_eq!(sending.flush(&tx), (60, None));
        let mut most_left = 0;
        for f in &frames {
            receive(&rx, &mut ring, 1, ours, |_, got| {
                assert_eq!(got.data, f);
                assert_eq!(got.vnet, None);
            });
            most_left = most_left.max(ring.next_block().map_or(0, |block| block.frames_left()));
        }
        assert!(most_left > 0, "no visit ended in the middle of a block");
    });
}

#[test]
fn a_frame_that_was_put_back_is_read_again_even_the_last_of_its_block() {
    in_netns(|| {
        let (tx, rx, mut ring) = sockets(&Options::default());
        let f = frame(3, 100);
        assert_eq!(send_one(&tx, None, [&f[..]]), (1, None));
        assert!(poll_readable(&[rx.as_fd()], Some(WAIT)).unwrap());
        let mut block = ring.next_block().unwrap();
        let mut first = block.next_frame().unwrap().data.to_vec();
        while block.frames_left() > 0 {
            first = block.next_frame().unwrap().data.to_vec();
        }
        block.unread();
        block.unread();
        assert_eq!(block.frames_left(), 1);
        drop(block);
        let mut block = ring.next_block().unwrap();
        assert_eq!(block.next_frame().unwrap().data, first);
        assert_eq!(block.frames_left(), 0);
    });
}

#[test]
fn a_partial_checksum_stays_partial_and_its_place_is_told() {
    in_netns(|| {
        let (tx, rx, mut ring) = sockets(&VNET);
        let f = ipv4_frame(17, 8, 100);
        let sent = VnetHdr { flags: F_NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..VnetHdr::NONE };
        assert_eq!(send_one(&tx, Some(&sent), [&f[..]]), (1, None));
        receive(&rx, &mut ring, 1, is_test_ipv4, |_, got| {
            assert_eq!(got.data, f);
            let vnet = got.vnet.unwrap();
            assert_eq!((vnet.flags, vnet.csum_start, vnet.csum_offset), (F_NEEDS_CSUM, 34, 6));
            assert_ne!(got.status & STATUS_CSUM_NOT_READY, 0);
        });
    });
}

#[test]
fn a_superframe_of_the_greatest_length_crosses_untruncated_and_uncut() {
    in_netns(|| {
        let (tx, rx, mut ring) = sockets(&VNET);
        let f = ipv4_frame(6, 20, SUPERFRAME_BYTES_MAX - 54);
        let mut batch = SendBatch::new();
        for _ in 0..10 {
            let mut sending = batch.start();
            for _ in 0..4 {
                assert!(sending.add(Some(&SUPERFRAME), f.chunks(2048)));
            }
            assert_eq!(sending.flush(&tx), (4, None));
            receive(&rx, &mut ring, 4, is_test_ipv4, |_, got| {
                assert_eq!(got.len as usize, SUPERFRAME_BYTES_MAX);
                assert!(got.data == f, "contents differ");
                let vnet = got.vnet.unwrap();
                assert_eq!((vnet.gso_type, vnet.gso_size), (GSO_TCPV4, 1448));
            });
        }
    });
}

#[test]
fn a_superframe_too_long_for_the_device_is_cut_by_the_qdisc_and_refused_without_it() {
    in_netns(|| {
        let (a, b) = pair();
        let (rx, mut ring) = PacketSocket::open(&b, &VNET, &RingSize::default()).unwrap();
        let f = ipv4_frame(6, 20, SUPERFRAME_BYTES_MAX + 1 - 54);
        let mut batch = SendBatch::new();
        let mut send = |options: &Options| {
            let tx = PacketSocket::open_sender(&a, options).unwrap();
            let mut sending = batch.start();
            assert!(sending.add(Some(&SUPERFRAME), f.chunks(2048)));
            sending.flush(&tx)
        };
        assert_eq!(send(&VNET), (0, Some(Errno::NOBUFS)));
        assert_eq!(send(&Options { qdisc_bypass: false, ..VNET }), (1, None));
        let segments = (f.len() - 54).div_ceil(1448);
        receive(&rx, &mut ring, segments, is_test_ipv4, |i, got| {
            let payload = &f[54 + 1448 * i..];
            assert_eq!(got.data[54..], payload[..payload.len().min(1448)]);
        });
    });
}

#[test]
fn a_vlan_tag_that_the_kernel_took_off_is_told() {
    in_netns(|| {
        let (tx, rx, mut ring) = sockets(&VNET);
        let plain = frame(1, 80);
        let tag = [0x81, 0x00, 0x20, 0x05];
        assert_eq!(
            send_one(&tx, Some(&VnetHdr::NONE), [&plain[..12], &tag, &plain[12..]]),
            (1, None)
        );
        receive(&rx, &mut ring, 1, ours, |_, got| {
            assert_eq!(got.data, plain);
            assert_eq!(got.vlan, Some(Vlan { tpid: 0x8100, tci: 0x2005 }));
        });
    });
}

#[test]
fn without_a_ring_a_batch_has_everything_that_a_block_has() {
    in_netns(|| {
        let (a, b) = silent_pair();
        let tx = PacketSocket::open_sender(&a, &VNET).unwrap();
        let size = BufferSize { frame_bytes: SUPERFRAME_BYTES_MAX, buffer_bytes: 4 << 20 };
        let (rx, mut received) = PacketSocket::open_unringed(&b, &VNET, &size, &[]).unwrap();
        let (plain, tag) = (frame(1, 80), [0x81, 0x00, 0x20, 0x05]);
        let partial = ipv4_frame(17, 8, 100);
        let csum = VnetHdr { flags: F_NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..VnetHdr::NONE };
        let superframe = ipv4_frame(6, 20, SUPERFRAME_BYTES_MAX - 54);
        let mut batch = SendBatch::new();
        let mut sending = batch.start();
        assert!(sending.add(Some(&VnetHdr::NONE), [&plain[..12], &tag, &plain[12..]]));
        assert!(sending.add(Some(&csum), [&partial[..]]));
        assert!(sending.add(Some(&SUPERFRAME), superframe.chunks(2048)));
        assert_eq!(sending.flush(&tx), (3, None));

        let (mut n, deadline) = (0, Instant::now() + WAIT);
        while n < 3 {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(poll_readable(&[rx.as_fd()], Some(left)).unwrap(), "{n} of 3 came");
            assert!(matches!(received.fill(&rx, RECEIVED_MAX), None | Some(Errno::AGAIN)));
            while let Some(got) = received.next_frame() {
                if !ours(got.data) && !is_test_ipv4(got.data) {
                    continue;
                }
                assert!(got.sec > 0 && got.len as usize == got.data.len());
                let vnet = got.vnet.unwrap();
                match n {
                    0 => {
                        assert_eq!((got.data, got.pkttype), (&plain[..], PKTTYPE_BROADCAST));
                        assert_eq!(got.vlan, Some(Vlan { tpid: 0x8100, tci: 0x2005 }));
                    }
                    1 => {
                        assert_eq!((got.data, got.vlan), (&partial[..], None));
                        assert_eq!((vnet.csum_start, vnet.csum_offset), (34, 6));
                        assert_ne!(got.status & STATUS_CSUM_NOT_READY, 0);
                    }
                    _ => {
                        assert!(got.data == superframe, "contents differ");
                        assert_eq!((vnet.gso_type, vnet.gso_size), (GSO_TCPV4, 1448));
                    }
                }
                n += 1;
            }
        }
        received.unread();
        assert_eq!(received.fill(&rx, RECEIVED_MAX), None, "an unread frame stays");
        assert!(received.next_frame().unwrap().data == superframe);
        assert_eq!(received.fill(&rx, RECEIVED_MAX), Some(Errno::AGAIN));
        assert_eq!(received.frames_left(), 0);
    });
}

#[test]
fn without_a_ring_a_frame_that_is_too_long_is_cut_and_its_length_told() {
    in_netns(|| {
        let (a, b) = silent_pair();
        let tx = PacketSocket::open_sender(&a, &Options::default()).unwrap();
        let size = BufferSize { frame_bytes: 100, buffer_bytes: 1 << 20 };
        let opened = PacketSocket::open_unringed(&b, &Options::default(), &size, &[]);
        let (rx, mut received) = opened.unwrap();
        let (long, short) = (frame(1, 3000), frame(2, 60));
        for f in [&long, &short] {
            assert_eq!(send_one(&tx, None, [&f[..]]), (1, None));
        }
        let (mut got, deadline) = (Vec::new(), Instant::now() + WAIT);
        while got.len() < 2 {
            assert!(Instant::now() < deadline);
            let _ = received.fill(&rx, 1);
            while let Some(frame) = received.next_frame().filter(|frame| ours(frame.data)) {
                got.push((frame.data.to_vec(), frame.len, frame.vnet));
            }
        }
        assert_eq!(got, [(long[..100].to_vec(), 3000, None), (short, 60, None)]);
        let stats = rx.take_statistics().unwrap();
        assert!(stats.packets >= 2 && stats.drops == 0, "{stats:?}");
        ip("link set v1 down");
        assert!(poll_readable(&[rx.as_fd()], Some(WAIT)).unwrap());
        assert_eq!(received.fill(&rx, 1), Some(Errno::NETDOWN));
        assert_eq!(rx.take_error(), None);
    });
}

/// Returns a TAP device that is up, and silent; `None` without the driver.
fn tap() -> Option<(Tap, Interface)> {
    quiet();
    let has_none = |e: &crate::Error| {
        e.kind() == crate::Kind::Unsupported && e.why.starts_with("open(/dev/net/tun): ")
    };
    let tap = unless(Tap::open("t0", TapOffloads::ALL), has_none)?;
    ip("link set t0 up");
    Some((tap, Interface::open("t0").unwrap()))
}

/// The header of a datagram that is to be cut into fragments, which the kernel can give to no
/// socket.
const FRAGMENTED: VnetHdr = VnetHdr { gso_type: GSO_UFO, csum_offset: 6, ..SUPERFRAME };

fn send_by(tap: &Tap, header: VnetHdr, f: &[u8]) {
    tap.write_vectored(&[IoSlice::new(&header.to_bytes()), IoSlice::new(f)]).unwrap();
}

/// Returns a frame of 1500 bytes, of which some look like the headers of a frame that begins at 200
/// in a block.
fn forgery() -> Vec<u8> {
    // In a block, the first frame's data begin at 140.
    let (mut f, at) = (frame(1, 1500), 200 - 140);
    f[at..at + 48].fill(0);
    for (field, value) in [(4, 77), (12, 80), (16, 80), (24, 120)] {
        f[at + field..][..4].copy_from_slice(&u32::to_ne_bytes(value));
    }
    f[at + 120..at + 200].fill(b'!');
    f
}

#[test]
fn in_a_ring_a_frame_that_the_kernel_drops_costs_no_other_one_and_shows_nothing_of_former_rounds() {
    in_netns(|| {
        let Some((tap, interface)) = tap() else { return };
        for former in [None, Some(forgery()), Some(frame(9, 1500))] {
            let size = RingSize { block_bytes: 64 << 10, blocks: 2, retire_ms: 1 };
            let (rx, mut ring) = PacketSocket::open(&interface, &VNET, &size).unwrap();
            let mut read = |wanted: usize| {
                let (mut got, deadline) = (Vec::new(), Instant::now() + WAIT);
                while got.len() < wanted {
                    assert!(Instant::now() < deadline, "{got:?}");
                    let Some(mut block) = ring.next_block() else { continue };
                    while let Some(frame) = block.next_frame() {
                        got.push((frame.data.to_vec(), frame.vnet));
                    }
                }
                got
            };
            // One for each block.
            for f in [&former, &former].into_iter().flatten() {
                send_by(&tap, VnetHdr::NONE, f);
                assert_eq!(read(1)[0].0, *f);
            }
            let (first, last) = (frame(3, 60), frame(4, 64));
            send_by(&tap, VnetHdr::NONE, &first);
            send_by(&tap, FRAGMENTED, &ipv4_frame(17, 8, 4000));
            send_by(&tap, VnetHdr::NONE, &last);
            let whole = |f| (f, Some(VnetHdr::NONE));
            assert_eq!(read(2), [whole(first), whole(last)]);
            assert_eq!((ring.bad_blocks(), ring.lost_frames()), (0, 0));
            assert_eq!(rx.take_statistics().unwrap().drops, 1);
        }
    });
}

#[test]
fn without_a_ring_a_frame_that_the_kernel_drops_ends_its_batch_and_is_no_error_of_a_later_call() {
    in_netns(|| {
        let Some((tap, interface)) = tap() else { return };
        let size = BufferSize { frame_bytes: SUPERFRAME_BYTES_MAX, buffer_bytes: 4 << 20 };
        let opened = PacketSocket::open_unringed(&interface, &VNET, &size, &[]);
        let (rx, mut received) = opened.unwrap();
        let (first, last) = (ipv4_frame(17, 8, 100), ipv4_frame(17, 8, 200));
        for (header, f) in [
            (VnetHdr::NONE, &first),
            (FRAGMENTED, &ipv4_frame(17, 8, 4000)),
            (VnetHdr::NONE, &last),
        ] {
            send_by(&tap, header, f);
        }
        assert_eq!(received.fill(&rx, RECEIVED_MAX), Some(Errno::INVAL));
        assert_eq!(received.next_frame().map(|got| got.data), Some(&first[..]));
        assert_eq!(rx.take_error(), None);
        assert_eq!(received.fill(&rx, RECEIVED_MAX), Some(Errno::AGAIN));
        assert_eq!(received.next_frame().map(|got| got.data), Some(&last[..]));
    });
}

#[test]
fn packets_sent_by_the_socket_or_its_host_are_not_received() {
    in_netns(|| {
        let (a, b) = pair();
        let (both, mut ring) =
            PacketSocket::open(&a, &Options::default(), &RingSize::default()).unwrap();
        let other = PacketSocket::open_sender(&a, &Options::default()).unwrap();
        let far = PacketSocket::open_sender(&b, &Options::default()).unwrap();
        let (near, last) = (frame(1, 60), frame(2, 60));
        let mut batch = SendBatch::new();
        for (socket, f) in [(&both, &near), (&other, &near), (&far, &last)] {
            let mut sending = batch.start();
            assert!(sending.add(None, [&f[..]]));
            assert_eq!(sending.flush(socket), (1, None));
        }
        receive(&both, &mut ring, 1, ours, |_, got| assert_eq!(got.data, last));
    });
}

#[test]
fn a_frame_above_the_mtu_is_refused_and_told() {
    in_netns(|| {
        let (a, _b) = pair();
        let tx = PacketSocket::open_sender(&a, &Options::default()).unwrap();
        let f = frame(0, 9100);
        assert_eq!(send_one(&tx, None, [&f[..]]), (0, Some(Errno::MSGSIZE)));
    });
}

#[test]
fn a_full_ring_counts_its_drops_and_receives_again_once_read() {
    in_netns(|| {
        let (a, b) = pair();
        let tx = PacketSocket::open_sender(&a, &Options::default()).unwrap();
        let size = RingSize { block_bytes: 16 << 10, blocks: 2, retire_ms: 1 };
        let (rx, mut ring) = PacketSocket::open(&b, &Options::default(), &size).unwrap();
        let f = frame(0, 1500);
        let mut batch = SendBatch::new();
        let mut send = |count: usize| {
            let mut sending = batch.start();
            for _ in 0..count {
                assert!(sending.add(None, [&f[..]]));
            }
            assert_eq!(sending.flush(&tx), (count, None));
        };
        send(MESSAGES_MAX);
        receive(&rx, &mut ring, 1, ours, |_, _| ());
        let stats = rx.take_statistics().unwrap();
        assert!(stats.drops > 0 && stats.freezes > 0, "{stats:?}");
        while let Some(block) = ring.next_block() {
            block.release();
        }
        send(1);
        receive(&rx, &mut ring, 1, ours, |_, got| assert_eq!(got.data, f));
    });
}

#[test]
fn a_ring_outlives_its_socket_and_an_interface_that_went_down_is_told_once() {
    in_netns(|| {
        let (a, _b) = pair();
        let (rx, mut ring) = PacketSocket::open(&a, &VNET, &RingSize::default()).unwrap();
        assert_eq!(rx.take_error(), None);
        ip("link set v0 down");
        assert!(poll_readable(&[rx.as_fd()], Some(WAIT)).unwrap());
        assert_eq!(rx.take_error(), Some(Errno::NETDOWN));
        assert_eq!(rx.take_error(), None);
        drop(rx);
        while let Some(block) = ring.next_block() {
            block.release();
        }
    });
}

#[test]
fn a_socket_is_bound_to_its_interface_until_that_is_removed() {
    in_netns(|| {
        let (a, b) = pair();
        let (rx, _ring) = PacketSocket::open(&a, &VNET, &RingSize::default()).unwrap();
        ip("link set v0 down");
        assert!(rx.is_bound_to(&a) && !rx.is_bound_to(&b));
        ip("link del v0");
        assert!(!rx.is_bound_to(&a));
    });
}

#[test]
fn an_impossible_ring_is_a_fault_of_the_request() {
    in_netns(|| {
        let (a, _b) = pair();
        let fine = RingSize::default();
        let bad = [
            RingSize { block_bytes: 0, ..fine },
            RingSize { block_bytes: 5000, ..fine },
            RingSize { blocks: 0, ..fine },
            RingSize { block_bytes: 1 << 20, blocks: 4096, ..fine },
            RingSize { retire_ms: 0, ..fine },
        ];
        for size in bad {
            let e = PacketSocket::open(&a, &VNET, &size).unwrap_err();
            assert_eq!(e.code, Code::PoolSize, "{e}");
        }
    });
}

#[test]
fn an_interface_that_is_gone_is_an_error_with_the_remedy() {
    in_netns(|| {
        let (a, _b) = pair();
        ip("link del v0");
        let e = PacketSocket::open(&a, &VNET, &RingSize::default()).unwrap_err();
        assert_eq!((e.code, e.fix.as_str()), (Code::NoDevice, crate::netif::FIND_INTERFACE));
    });
}

/// Source address of the frames below, by which a test knows its own.
const SOURCE: [u8; 4] = [198, 18, 0, 1];

fn is_test_ipv4(data: &[u8]) -> bool {
    data.len() > 34 && data[26..30] == SOURCE
}

/// Returns an IPv4 frame of protocol `protocol`, with a transport header of `header` bytes and
/// `payload` bytes behind it; the transport checksum is arbitrary.
fn ipv4_frame(protocol: u8, header: usize, payload: usize) -> Vec<u8> {
    let len = (20 + header + payload) as u16;
    let mut f = vec![0xff; 6];
    f.extend([2, 0, 0, 0, 0, 1, 0x08, 0x00, 0x45, 0]);
    f.extend(len.to_be_bytes());
    f.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    f.extend(SOURCE);
    f.extend([198, 18, 0, 2]);
    let mut transport = vec![0; header];
    transport[..4].copy_from_slice(&[0x30, 0x39, 0, 9]);
    match protocol {
        6 => transport[12..14].copy_from_slice(&[0x50, 0x10]),
        _ => transport[4..6].copy_from_slice(&((header + payload) as u16).to_be_bytes()),
    }
    f.extend(transport);
    f.extend((0..payload).map(|i| i as u8));
    f
}
