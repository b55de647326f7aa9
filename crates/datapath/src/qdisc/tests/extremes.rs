//! Tests disciplines with settings at and beyond their limits, and with clocks that jump.

use super::*;

const DAYS: u64 = 86_400_000_000_000;

/// Makes 1 bit/s of a rate of 0: 100 bytes take 800 s, far beyond the horizon of a wheel.
#[test]
fn rate_of_zero_sends_a_bit_a_second() {
    let mut bench = Bench::new(Tbf::new(0, 100, Fifo::new(Limit::packets(9))));
    bench.put([(1, 100); 2]);
    assert_eq!(bench.take_all().len(), 1);
    assert!(bench.wait() && bench.take_all().len() == 1 && !bench.wait());
    assert_eq!(bench.now_ns, 800_000_000_000);
    let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 0, 100, 9));
    bench.put([(1, 100); 2]);
    assert_eq!(bench.take_all().len(), 1);
    while bench.take_all().is_empty() {
        let before = bench.now_ns;
        assert!(bench.wait() && bench.now_ns > before, "a deadline that does not pass");
    }
    let late = bench.now_ns - 800_000_000_000;
    assert!(late < 2 << 14, "{late} ns late");
}

/// Sends 1250 bytes in a nanosecond at the greatest rate; one above it is as fast.
#[test]
fn rate_above_the_greatest_is_the_greatest() {
    for bps in [RATE_MAX_BPS, RATE_MAX_BPS + 1, u64::MAX] {
        let mut bench = Bench::new(Tbf::new(bps, 1250, Fifo::new(Limit::packets(500))));
        bench.put([(1, 1250); 400]);
        let mut sent = 0;
        while bench.wait() {
            sent += bench.take_all().len();
        }
        assert_eq!((sent, bench.now_ns), (400, 399), "{bps}");
        let mut bench =
            Bench::new(FlowTbf::new(Key::SrcIp, bps, 1250, 9).limits(Limit::packets(900), 500));
        bench.put([(1, 1250); 400]);
        let mut sent = 0;
        while bench.wait() {
            sent += bench.take_all().len();
        }
        // Each of the 399 waits may end two slots of the wheel late.
        assert!(sent == 400 && bench.now_ns <= 399 * (2 << 14), "{bps}: {sent}, {}", bench.now_ns);
    }
}

/// Keeps the packets and their order when a running bucket gets the extreme rates.
#[test]
fn extreme_rates_of_a_running_bucket_lose_and_reorder_nothing() {
    let mut bench = Bench::new(Tbf::new(8_000_000, 1250, Fifo::new(Limit::packets(500))));
    bench.put([(1, 1250); 400]);
    assert_eq!(bench.take_all().len(), 1);
    let now = bench.now();
    bench.qdisc.set_rate(0, 0_u64, now);
    assert_eq!(bench.take_all().len(), 0, "a bit a second, and a burst of one byte");
    bench.qdisc.set_rate(u64::MAX, 1250_u64, now);
    let (mut sent, before) = (0, bench.now_ns);
    while bench.wait() {
        sent += bench.take_all().len();
    }
    assert!(bench.now_ns - before <= 399, "{}", bench.now_ns - before);
    assert_eq!((sent, bench.qdisc.counts().dropped.packets), (399, 0));
}

/// Makes a byte of a burst of 0: no packet can leave, and none stays.
#[test]
fn burst_of_zero_drops_every_packet_as_too_long() {
    for which in 0..2 {
        let qdisc: Box<dyn Qdisc> = match which {
            0 => Box::new(Tbf::new(RATE_MAX_BPS, 0, Fifo::new(Limit::packets(9)))),
            _ => Box::new(FlowTbf::new(Key::SrcIp, RATE_MAX_BPS, 0, 0)),
        };
        let mut bench = Bench::new(qdisc);
        bench.put([(1, 60), (2, 60)]);
        assert_eq!((bench.take_all().len(), bench.dropped(DropReason::TOO_LONG)), (0, 2));
    }
}

/// Makes one packet of a limit of no packets; a limit of no bytes is kept.
#[test]
fn limits_of_zero_hold_a_packet_or_no_byte() {
    let of = |limit: Limit| -> [Box<dyn Qdisc>; 5] {
        [
            Box::new(Fifo::new(limit)),
            Box::new(PfifoFast::new(limit)),
            Box::new(codel(limit, 100)),
            Box::new(Tbf::new(RATE_MAX_BPS, 1514, Fifo::new(limit))),
            Box::new(FlowTbf::new(Key::SrcIp, RATE_MAX_BPS, 1514, 4).limits(limit, 0)),
        ]
    };
    for (limit, held) in
        [(Limit { packets: 0, bytes: u64::MAX }, 1), (Limit { packets: 9, bytes: 0 }, 0)]
    {
        for (i, qdisc) in of(limit).into_iter().enumerate() {
            let mut bench = Bench::new(qdisc);
            for _ in 0..3 {
                bench.put([(1, 60), (1, 60)]);
                assert_eq!(bench.qdisc.counts().queued.packets, held, "discipline {i}");
                assert_eq!(bench.take_all().len(), held, "discipline {i}");
                bench.now_ns += DAYS;
            }
        }
    }
}

/// Calls much later, as a worker that had no CPU; a program may also pass an earlier time than
/// before.
#[test]
fn clock_that_jumps_loses_nothing_and_gives_no_more_than_a_burst() {
    for which in 0..2 {
        let limit = Limit::packets(200);
        let qdisc: Box<dyn Qdisc> = match which {
            0 => Box::new(Tbf::new(8_000_000, 1000, Fifo::new(limit))),
            _ => Box::new(FlowTbf::new(Key::SrcIp, 8_000_000, 1000, 9).limits(limit, 200)),
        };
        let mut bench = Bench::new(qdisc);
        bench.put([(1, 500); 100]);
        assert_eq!(bench.take_all().len(), 2);
        for jump in [DAYS, 400 * 365 * DAYS / 4, DAYS] {
            bench.now_ns += jump;
            assert_eq!(bench.take_all().len(), 2, "a burst, however long it was");
            assert_eq!(bench.take_all().len(), 0);
            // Earlier than before: no tokens for the time that comes again.
            bench.now_ns -= DAYS / 2;
            assert_eq!(bench.take_all().len(), 0);
            bench.now_ns += DAYS / 2;
            assert_eq!(bench.take_all().len(), 0);
        }
        while bench.wait() {
            bench.take_all();
        }
        assert_eq!(bench.qdisc.counts().dequeued.packets, 100);
    }
}

/// A stage can trim a packet to nothing: its queue has no bytes, and is still the one to drop from.
#[test]
fn packets_without_a_byte_are_within_every_limit_too() {
    for which in 0..8 {
        let mut bench = Bench::new(any_qdisc(which));
        let mut batch = Batch::with_capacity(64);
        bench.mem.alloc(&mut batch, 64);
        assert!(batch.iter().all(Skb::is_empty));
        bench.qdisc.enqueue(&mut batch, 64, bench.now(), &mut bench.mem);
        bench.check();
        let held = bench.qdisc.counts().queued;
        assert!((1..=20).contains(&held.packets) && held.bytes == 0, "{which}: {held:?}");
        assert_eq!(bench.qdisc.counts().dropped.packets, 64 - held.packets);
        let mut out = Batch::with_capacity(64);
        while bench.wait() {
            bench.qdisc.dequeue(&mut out, ALL, bench.now(), &mut bench.mem);
        }
        assert_eq!(out.len(), held.packets, "{which}");
        out.consume(&mut bench.mem);
        bench.check();
    }
}

#[test]
fn limits_that_change_while_packets_wait_lose_none() {
    for limit in [Limit::packets(1).and_bytes(1), Limit::packets(5000)] {
        let mut bench = Bench::new(FlowTbf::new(Key::SrcIp, 8_000, 1000, 9));
        bench.put([(1, 600); 20]);
        let Bench { qdisc, pool, mem, start, now_ns, numbers } = bench;
        let mut bench = Bench { qdisc: qdisc.limits(limit, 64), pool, mem, start, now_ns, numbers };
        bench.check();
        bench.put([(1, 600), (2, 600)]);
        let (mut sent, room) = (0, if limit.packets == 1 { 0 } else { 2 });
        while bench.wait() {
            sent += bench.take_all().len();
        }
        assert_eq!(sent, 20 + room, "{limit:?}");
    }
}
