//! Tests of a port without a ring (`retire=0`): what differs from one with a ring.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Offload, Pool};
use linerate_sys::tun::{Tap, TapOffloads};
use linerate_sys::vnet::{F_NEEDS_CSUM, GSO_UFO, VnetHdr};

use crate::Moderation;
use crate::host::testing::*;

/// Returns the median time from sending a lone frame to a port until it is received.
fn latency(to: &str) -> Duration {
    let (mut a, mut b) = (queue("packet:v0"), queue(to));
    b.set_moderation(Moderation::Interrupt);
    let mut times: Vec<_> = (0..51)
        .map(|i| {
            let start = Instant::now();
            send(&mut a, &[stamped(i, 60)], Offload::NONE);
            let got = receive(&mut b, 1);
            let time = start.elapsed();
            assert_eq!(bytes(got.iter().next().unwrap()), stamped(i, 60));
            time
        })
        .collect();
    times.sort_unstable();
    times[25]
}

#[test]
fn a_lone_frame_comes_in_less_than_half_the_time_that_a_ring_takes() {
    in_netns(|| {
        veth(1500);
        let (with_ring, without) = (latency("packet:v1"), latency("packet:v1,retire=0"));
        assert!(2 * without < with_ring, "{without:?}, with a ring {with_ring:?}");
    });
}

#[test]
fn more_frames_than_a_call_receives_come_in_order_in_visits_of_every_length() {
    in_netns(|| {
        veth(1500);
        let (mut a, mut b) = (queue("packet:v0"), queue("packet:v1,retire=0"));
        let frames: Vec<_> = (0..200).map(|i| stamped(i, 60 + i as usize)).collect();
        for most in [1, 7, 32, 33, 64] {
            send(&mut a, &frames, Offload::NONE);
            let (mut got, mut batch) = (Vec::new(), Batch::with_capacity(most));
            while got.len() < frames.len() {
                assert!(b.wait(Some(LONG)).unwrap(), "{} came in visits of {most}", got.len());
                b.rx(&mut batch);
                got.extend(batch.drain().map(|skb| bytes(&skb)));
            }
            assert!(got == frames, "in visits of {most}");
        }
        assert_eq!(b.counts().rx_missed, 0);
    });
}

#[test]
fn frames_wait_while_the_pool_has_none_and_none_is_lost() {
    in_netns(|| {
        veth(1500);
        let pool = Pool::builder().frames(16).build().unwrap();
        let (mut a, mut b) = (queue("packet:v0"), queue_in("packet:v1,retire=0", &pool));
        let frames: Vec<_> = (0..100).map(|i| stamped(i, 60)).collect();
        send(&mut a, &frames, Offload::NONE);
        let (mut kept, mut got) = (Batch::with_capacity(64), Vec::new());
        let deadline = Instant::now() + LONG;
        while got.len() < frames.len() {
            assert!(Instant::now() < deadline, "{} came", got.len());
            // Without a free frame the port asks again after a time, however often it is waited
            // for.
            b.rx(&mut kept);
            if kept.len() < 16 && got.len() + kept.len() < frames.len() {
                b.wait(Some(LONG)).unwrap();
                continue;
            }
            b.rx(&mut kept);
            got.extend(kept.drain().map(|skb| bytes(&skb)));
        }
        assert!(got == frames);
        let counts = b.counts();
        assert!(counts.rx_nombuf > 0 && counts.rx_missed == 0, "{counts:?}");
    });
}

#[test]
fn a_frame_that_is_longer_than_the_port_s_longest_is_dropped_as_too_long() {
    in_netns(|| {
        veth(9000);
        let mut a = queue("packet:v0");
        ip("link set v1 mtu 1500");
        let mut b = queue("packet:v1,retire=0,vnet=off");
        ip("link set v1 mtu 9000");
        send(&mut a, &[stamped(0, 4000), stamped(1, 60)], Offload::NONE);
        assert_eq!(bytes(receive(&mut b, 1).iter().next().unwrap()), stamped(1, 60));
        assert_eq!(b.pool().ledger().dropped(DropReason::TOO_LONG), 1);
    });
}

/// Tests ports with a ring, too.
#[test]
fn superframe_that_the_offload_header_cannot_express_is_counted_once_and_costs_no_other_frame() {
    in_netns(|| {
        let tap = Tap::open("t0", TapOffloads::ALL);
        let tap = linerate_testing::unless(tap, |e| e.why.starts_with("open(/dev/net/tun): "));
        let Some(tap) = tap else { return };
        ip("link set t0 up");
        let put = |header: VnetHdr, frame: &[u8]| {
            tap.write_vectored(&[IoSlice::new(&header.to_bytes()), IoSlice::new(frame)]).unwrap();
        };
        let fragmented = VnetHdr {
            flags: F_NEEDS_CSUM,
            gso_type: GSO_UFO,
            hdr_len: 42,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 6,
        };
        for text in ["packet:t0", "packet:t0,retire=0"] {
            let mut port = queue(text);
            for (header, frame) in [
                (VnetHdr::NONE, stamped(0, 60)),
                (fragmented, ipv4(17, 4000)),
                (VnetHdr::NONE, stamped(1, 60)),
            ] {
                put(header, &frame);
            }
            let (mut got, mut batch) = (Vec::new(), Batch::with_capacity(64));
            let deadline = Instant::now() + LONG;
            while got.last() != Some(&stamped(1, 60)) || port.counts().rx_missed == 0 {
                assert!(Instant::now() < deadline, "{text}: {got:?} {:?}", port.counts());
                port.rx(&mut batch);
                let all = batch.drain().map(|skb| bytes(&skb));
                // The interface sends frames of its own.
                got.extend(all.filter(|frame| frame[..12] == stamped(0, 60)[..12]));
            }
            assert_eq!(got, [stamped(0, 60), stamped(1, 60)], "{text}");
            assert_eq!(port.counts().rx_missed, 1, "{text}");
        }
    });
}
