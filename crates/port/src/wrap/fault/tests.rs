//! Tests of each fault alone, over rings and interfaces: its effect, and that no wake-up is lost.

use std::time::Duration;

use linerate_skb::Offload;

use super::conservation::Bench;
use super::*;
use crate::host::testing::{LONG, stamped};
use crate::{Port, Queue};
use linerate_skb::{Code, Error, Pool};
use linerate_sys::wait::EventFd;

/// Returns a pair of queues connected by rings of `len`; the first queue is faulty.
pub(super) fn pair(len: u32, plan: &Plan) -> (Pool, Queue, Queue, Arc<FaultStats>) {
    let pool = Pool::builder().frames(2048).build().unwrap();
    let (a, b) = Port::pair(len, &pool).unwrap();
    let (a, stats) = faulty(a.into_queues().remove(0), plan);
    (pool, a, b.into_queues().remove(0), stats)
}

fn faulty(queue: Queue, plan: &Plan) -> (Queue, Arc<FaultStats>) {
    let mut stats = None;
    let queue = queue.wrap(|ops| {
        let faulty = Faulty::new(ops, plan)?;
        stats = Some(faulty.stats());
        Ok(Box::new(faulty))
    });
    (queue.unwrap(), stats.unwrap())
}

/// Appends packets numbered from `from` on.
pub(super) fn fill(queue: &mut Queue, batch: &mut Batch, from: &mut u32, n: usize) {
    let before = batch.len();
    let n = queue.alloc(batch, n);
    for skb in batch.iter_mut().skip(before) {
        assert!(skb.put_slice(&from.to_be_bytes()) && skb.put_slice(&[7; 60]));
        *from += 1;
    }
    assert_eq!(batch.len(), before + n);
}

fn numbers(batch: &Batch) -> Vec<u32> {
    batch.iter().map(|skb| u32::from_be_bytes(*skb.data().first_chunk().unwrap())).collect()
}

#[test]
fn the_same_plan_and_the_same_calls_give_the_same_faults() {
    let plan = |seed| {
        let plan = Plan::new(seed).tx(Fault::Drop, 5).tx(Fault::Duplicate, 4);
        plan.tx(Fault::Reorder { behind: 3 }, 6).tx(Fault::Corrupt, 3).rx(Fault::Short, 2)
    };
    let outcome = |seed| {
        let mut bench = Bench::new(64, &plan(seed));
        for _ in 0..20 {
            bench.make(0, 9);
            bench.make(1, 5);
            (0..2).for_each(|end| bench.send(end));
            (0..2).for_each(|end| bench.receive(end, 32));
        }
        (bench.got.clone(), bench.stats.counts())
    };
    assert_eq!(outcome(3), outcome(3));
    assert_ne!(outcome(3), outcome(4));
    let counts = outcome(3).1;
    assert!(counts.dropped > 0 && counts.duplicated > 0 && counts.reordered > 0);
    assert!(counts.corrupted > 0 && counts.shortened > 0);
}

#[test]
fn a_packet_set_aside_comes_behind_so_many_others() {
    let plan = Plan::new(1).tx(Fault::Reorder { behind: 3 }, 4);
    let mut bench = Bench::new(256, &plan);
    bench.make(0, 100);
    bench.settle();
    let got = &bench.got[1];
    assert!(!got.is_sorted() && bench.stats.counts().reordered > 0);
    let before = |i: usize| got[..i].iter().filter(|n| **n > got[i]).count();
    // A packet that was set aside is overtaken by three packets, or fewer at the end; packets in
    // the line are overtaken by none.
    let overtaken: Vec<usize> = (0..got.len()).map(before).filter(|n| *n > 0).collect();
    let most = *overtaken.iter().max().unwrap();
    assert!((3..=3 + 2).contains(&most), "{overtaken:?} in {got:?}");
}

#[test]
fn a_plan_without_faults_leaves_calls_as_they_are() {
    let (pool, mut a, mut b, stats) = pair(8, &Plan::new(1));
    let mut batch = Batch::with_capacity(16);
    fill(&mut a, &mut batch, &mut 0, 12);
    assert_eq!((a.xmit(&mut batch), numbers(&batch)), (8, vec![8, 9, 10, 11]));
    assert!(!a.wait_for(Want::Room, Some(Duration::ZERO)).unwrap());
    let mut got = Batch::with_capacity(16);
    assert_eq!(b.rx(&mut got), 8);
    assert!(a.wait_for(Want::Room, Some(LONG)).unwrap());
    assert_eq!(a.xmit(&mut batch), 4);
    b.xmit(&mut got);
    assert!(a.wait(Some(LONG)).unwrap());
    assert_eq!((a.rx(&mut got), stats.counts()), (8, FaultCounts::default()));
    drop((a, b, got, batch));
    assert_eq!(pool.ledger().in_flight, 0);
}

#[test]
fn a_delayed_packet_wakes_its_reader_and_nothing_else_does() {
    let (_pool, mut a, mut b, _) = pair(8, &Plan::new(1).rx(Fault::Delay(ms(20)), 1));
    let mut batch = Batch::with_capacity(8);
    fill(&mut b, &mut batch, &mut 0, 1);
    let sent_at = Instant::now();
    b.xmit(&mut batch);
    let mut waits = 0;
    while a.rx(&mut batch) == 0 {
        assert!(a.wait(Some(LONG)).unwrap(), "slept on a packet");
        waits += 1;
    }
    assert!(sent_at.elapsed() >= ms(20));
    assert!(waits <= 3, "{waits} wake-ups for one packet");
    assert!(!a.wait(Some(ms(5))).unwrap());
}

#[test]
fn delayed_packets_leave_without_another_send() {
    for fault in [Fault::Delay(ms(3)), Fault::DelayTurns(5), Fault::Reorder { behind: 9 }] {
        let (_pool, mut a, mut b, _) = pair(8, &Plan::new(1).tx(fault, 1));
        let mut batch = Batch::with_capacity(8);
        fill(&mut a, &mut batch, &mut 0, 2);
        assert_eq!((a.xmit(&mut batch), b.rx(&mut batch)), (2, 0));
        let mut none = Batch::with_capacity(8);
        while b.rx(&mut batch) < 2 && batch.len() < 2 {
            // The caller waits only for packets to receive, but is woken for held packets.
            assert!(a.wait(Some(LONG)).unwrap(), "{fault:?}: slept on what is to be sent");
            a.rx(&mut none);
        }
    }
}

#[test]
fn reap_counts_held_packets_and_sends_those_that_are_due() {
    for fault in [Fault::DelayTurns(5), Fault::Reorder { behind: 9 }] {
        let (_pool, mut a, mut b, _) = pair(8, &Plan::new(1).tx(fault, 1));
        let mut batch = Batch::with_capacity(8);
        fill(&mut a, &mut batch, &mut 0, 2);
        assert_eq!((a.xmit(&mut batch), a.reap()), (2, 2), "{fault:?}");
        // A program that closes its port calls nothing else.
        let calls = (0..99).take_while(|_| a.reap() > 0 && b.rx(&mut batch) == 0).count();
        b.rx(&mut batch);
        assert!(batch.len() == 2 && calls > 0 && a.reap() == 0, "{fault:?}");
    }
}

#[test]
fn a_delayed_packet_that_is_set_aside_is_late_all_the_same() {
    let plan = Plan::new(1).tx(Fault::Reorder { behind: 2 }, 1).tx(Fault::Delay(ms(20)), 1);
    let (_pool, mut a, mut b, _) = pair(8, &plan);
    let (mut batch, mut none) = (Batch::with_capacity(8), Batch::with_capacity(8));
    fill(&mut a, &mut batch, &mut 0, 1);
    let sent_at = Instant::now();
    a.xmit(&mut batch);
    // After so many turns it is no longer set aside.
    (0..50).for_each(|_| _ = a.rx(&mut none));
    while b.rx(&mut batch) == 0 {
        assert!(a.wait(Some(LONG)).unwrap(), "slept on what is to be sent");
        a.rx(&mut none);
    }
    assert!(sent_at.elapsed() >= ms(20), "{:?}", sent_at.elapsed());
}

#[test]
fn a_stall_ends_with_a_wake_up_for_frames_and_for_room() {
    let stall = Fault::Stall(ms(10));
    let (_pool, mut a, mut b, stats) = pair(8, &Plan::new(1).rx(stall, 1).tx(stall, 1));
    let mut batch = Batch::with_capacity(8);
    fill(&mut b, &mut batch, &mut 0, 1);
    b.xmit(&mut batch);
    assert_eq!(a.rx(&mut batch), 0);
    let mut waits = 0;
    while a.rx(&mut batch) == 0 {
        assert!(a.wait(Some(LONG)).unwrap(), "slept through the end of a stall");
        waits += 1;
    }
    assert!(waits <= 3, "{waits} wake-ups for one stall");
    assert_eq!((a.xmit(&mut batch), batch.len()), (0, 1));
    waits = 0;
    while a.xmit(&mut batch) == 0 {
        assert!(a.wait_for(Want::Room, Some(LONG)).unwrap(), "slept through the end of a stall");
        waits += 1;
    }
    assert!(waits <= 3, "{waits} wake-ups for one stall");
    assert!(stats.counts().stalled >= 2);
}

#[test]
fn the_longest_delay_and_the_longest_stall_last() {
    let rx_of = |fault| {
        let (_pool, mut a, mut b, stats) = pair(8, &Plan::new(1).rx(fault, 1));
        let mut batch = Batch::with_capacity(8);
        fill(&mut b, &mut batch, &mut 0, 1);
        b.xmit(&mut batch);
        let got = a.rx(&mut batch) + a.rx(&mut batch);
        assert_eq!(a.wait(Some(ms(1))), Ok(false), "{fault:?}");
        (got + a.rx(&mut batch), stats.counts())
    };
    let (got, counts) = rx_of(Fault::Delay(Duration::MAX));
    assert_eq!((got, counts.delayed), (0, 1));
    let (got, counts) = rx_of(Fault::Stall(Duration::MAX));
    assert_eq!((got, counts.stalled), (0, 1), "one stall that lasts");
}

#[test]
fn a_queue_that_refuses_takes_nothing_for_so_many_calls_and_then_goes_on() {
    let (_pool, mut a, mut b, stats) = pair(8, &Plan::new(1).tx(Fault::Refuse { calls: 3 }, 1));
    let mut batch = Batch::with_capacity(8);
    fill(&mut a, &mut batch, &mut 0, 4);
    let taken: Vec<usize> = (0..4).map(|_| a.xmit(&mut batch)).collect();
    assert_eq!((taken, batch.len()), (vec![0, 0, 0, 4], 0));
    let mut got = Batch::with_capacity(8);
    assert_eq!((b.rx(&mut got), numbers(&got)), (4, vec![0, 1, 2, 3]));
    fill(&mut a, &mut batch, &mut 4, 1);
    assert_eq!(a.xmit(&mut batch), 0);
    // The end of a refusal is not signalled: only further calls reach it.
    for _ in 0..4 {
        assert!(a.wait_for(Want::Room, Some(LONG)).unwrap(), "slept on room");
        a.xmit(&mut batch);
    }
    assert_eq!((batch.len(), stats.counts().refused), (0, 2));
}

#[test]
fn refused_packets_are_held_and_room_in_the_device_wakes() {
    let (_pool, mut a, mut b, _) = pair(4, &Plan::new(1).tx(Fault::Duplicate, 1).hold_packets(8));
    let mut batch = Batch::with_capacity(16);
    fill(&mut a, &mut batch, &mut 0, 10);
    // Four packets are doubled to eight, which count: the ring takes four of them, and four are
    // held.
    assert_eq!((a.xmit(&mut batch), batch.len()), (8, 6));
    assert_eq!(a.xmit(&mut batch), 0);
    assert!(!a.wait_for(Want::Room, Some(Duration::ZERO)).unwrap());
    let mut got = Batch::with_capacity(32);
    while got.len() < 20 {
        assert!(b.rx(&mut got) > 0, "{:?}", numbers(&got));
        assert!(a.wait_for(Want::Frames, Some(LONG)).unwrap(), "slept on room");
        a.rx(&mut Batch::with_capacity(1));
        a.xmit(&mut batch);
        if batch.is_empty() && got.len() >= 16 {
            b.rx(&mut got);
            break;
        }
    }
    let twice: Vec<u32> = (0..10).flat_map(|n| [n, n]).collect();
    assert_eq!(numbers(&got), twice);
}

#[test]
fn a_full_hold_leaves_packets_with_the_device_and_with_the_sender() {
    let late = Fault::DelayTurns(3);
    let mut bench = Bench::new(64, &Plan::new(1).rx(late, 1).tx(late, 1).hold_packets(4));
    bench.make(0, 40);
    bench.make(1, 40);
    bench.send(0);
    assert_eq!(bench.unsent[0].len(), 37);
    bench.settle();
    let all: Vec<u32> = (0..40).collect();
    assert_eq!(bench.got, [all.clone(), all]);
}

#[test]
fn held_packets_are_dropped_as_stopped_when_the_queue_ends() {
    let late = Fault::Delay(LONG);
    let plan = Plan::new(1).rx(late, 1).tx(late, 1).tx(Fault::Reorder { behind: 9 }, 2);
    let (pool, mut a, mut b, _) = pair(8, &plan);
    let mut batch = Batch::with_capacity(8);
    fill(&mut a, &mut batch, &mut 0, 5);
    assert_eq!(a.xmit(&mut batch), 5);
    fill(&mut b, &mut batch, &mut 0, 2);
    b.xmit(&mut batch);
    assert_eq!(a.rx(&mut batch), 0);
    let ledger = pool.ledger();
    assert!(ledger.held().contains(&(HELD.to_string(), 7)), "{ledger:#}");
    drop(a);
    let ledger = pool.ledger();
    assert_eq!((ledger.dropped(DropReason::STOPPED), ledger.difference()), (7, 0), "{ledger}");
}

#[test]
fn packets_that_the_device_drops_do_not_count_as_sent() {
    for fault in [Fault::Drop, Fault::Duplicate, Fault::DelayTurns(3)] {
        let (pool, mut a, b, stats) = pair(8, &Plan::new(1).tx(fault, 2));
        let mut batch = Batch::with_capacity(8);
        fill(&mut a, &mut batch, &mut 0, 4);
        drop(b);
        a.xmit(&mut batch);
        let mut none = Batch::with_capacity(1);
        (0..9).for_each(|_| _ = a.rx(&mut none));
        let (counts, ledger) = (stats.counts(), pool.ledger());
        let lost = 4 + counts.duplicated - counts.dropped;
        assert_eq!(ledger.dropped(DropReason::PEER_GONE), lost, "{fault:?}: {ledger}");
        assert_eq!((ledger.sent, a.counts().tx_packets, a.counts().tx_bytes), (0, 0, 0));
        assert!(batch.is_empty() && ledger.difference() == 0, "{ledger}");
    }
}

#[test]
fn the_end_is_told_once_and_after_the_last_packet_that_was_held() {
    let (_pool, mut a, mut b, _) = pair(8, &Plan::new(1).rx(Fault::Delay(ms(5)), 1));
    let mut batch = Batch::with_capacity(8);
    fill(&mut b, &mut batch, &mut 0, 3);
    b.xmit(&mut batch);
    drop(b);
    let mut got = 0;
    loop {
        // Read the health only after a wake-up, as a program that sleeps does.
        assert!(a.wait(Some(LONG)).unwrap(), "not told of the end");
        if a.health() != Health::Up {
            break;
        }
        got += a.rx(&mut batch);
    }
    assert_eq!((got, a.health()), (3, Health::Finished));
    assert!(a.arm(Want::Frames) || a.arm(Want::Frames));
    assert!(!a.wait(Some(Duration::ZERO)).unwrap());
}

#[test]
fn faulty_queues_stand_on_each_other_in_a_wait_set() {
    use linerate_sys::wait::{Epoll, EventFlags, NO_EVENT};
    let late = Plan::new(1).rx(Fault::Delay(ms(1)), 1);
    let (_pool, a, mut b, _) = pair(8, &late);
    let (a, _) = faulty(a, &late);
    let (mut a, _) = faulty(a, &late);
    let set = Epoll::new().unwrap();
    set.add(&a, 0, EventFlags::IN).unwrap();
    let mut batch = Batch::with_capacity(8);
    fill(&mut b, &mut batch, &mut 0, 2);
    b.xmit(&mut batch);
    while a.rx(&mut batch) == 0 {
        let mut events = [NO_EVENT];
        let slept = a.arm(Want::Frames) && set.wait(&mut events, Some(LONG)).unwrap() == 0;
        assert!(!slept, "slept on a packet");
    }
    assert_eq!(numbers(&batch), [0, 1]);
}

/// A device that delivers a packet in each call until it fails.
struct Source(EventFd, usize);

impl QueueOps for Source {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let packets = mem.alloc(out, budget.min(self.1));
        self.1 -= packets;
        Moved { packets, bytes: 0 }
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        self.0.drain();
        self.1 == 0
    }

    fn health(&self) -> Health {
        match self.1 {
            0 => Health::Failed(Error::new(Code::NoDevice, "told", "it failed")),
            _ => Health::Up,
        }
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
fn lost_packets_of_a_device_count_as_received_and_doubled_ones_as_created() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let source = Queue::new(Box::new(Source(EventFd::new().unwrap(), 100)), pool.local());
    // Two layers of faults: each packet is still received once.
    let (queue, once) = faulty(source, &Plan::new(3).rx(Fault::Drop, 4).rx(Fault::Duplicate, 3));
    let (mut queue, again) = faulty(queue, &Plan::new(4).rx(Fault::Drop, 5));
    let mut batch = Batch::with_capacity(64);
    let mut got = 0;
    while !queue.health().ended() {
        got += queue.rx(&mut batch) as u64;
        batch.clear();
    }
    let (once, again, ledger) = (once.counts(), again.counts(), pool.ledger());
    assert_eq!((ledger.received, ledger.created), (100, once.duplicated), "{ledger}");
    assert_eq!(ledger.dropped(DropReason::INJECTED), once.dropped + again.dropped);
    assert_eq!((ledger.consumed, ledger.difference()), (got, 0), "{ledger}");
    assert!(once.duplicated > 0 && once.dropped > 0 && again.dropped > 0);
}

#[test]
fn a_corrupted_packet_differs_by_one_bit_and_a_short_one_by_its_end() {
    let frame = |pool: &Pool| pool.local().alloc_copy(&stamped(1, 200)).unwrap();
    for (fault, chain) in [(Fault::Corrupt, false), (Fault::Short, false), (Fault::Short, true)] {
        let (pool, mut a, mut b, stats) = pair(8, &Plan::new(9).tx(fault, 1));
        let mut batch = Batch::with_capacity(1);
        let mut skb = frame(&pool);
        if chain {
            skb.append(frame(&pool)).unwrap();
        }
        let before = crate::host::testing::bytes(&skb);
        // A second handle on the bytes keeps them unchanged.
        let shared = if chain { None } else { Some(skb.share()) };
        batch.push(skb).unwrap();
        assert_eq!((a.xmit(&mut batch), b.rx(&mut batch)), (1, 1));
        let after = crate::host::testing::bytes(batch.iter().next().unwrap());
        let bits = |(x, y): (&u8, &u8)| (x ^ y).count_ones();
        let flipped: u32 = before.iter().zip(&after).map(bits).sum();
        match (fault, chain) {
            (Fault::Corrupt, _) => assert_eq!((flipped, after.len()), (1, before.len())),
            (_, false) => assert!(flipped == 0 && (1..before.len()).contains(&after.len())),
            (_, true) => assert_eq!((after, stats.counts().shortened), (before.clone(), 0)),
        }
        assert!(shared.is_none_or(|shared| shared.data() == before));
    }
}

#[test]
fn corrupted_packet_is_not_verified_and_a_superframe_is_left_as_it_is() {
    let superframe = Offload {
        flags: Offload::NEEDS_CHECKSUM,
        gso_type: Offload::GSO_TCPV4,
        gso_size: 100,
        hdr_len: 54,
        csum_start: 34,
        csum_offset: 16,
    };
    let verified = Offload { flags: Offload::VERIFIED, ..Offload::NONE };
    for (offload, is_damaged) in [(verified, true), (superframe, false)] {
        let (pool, mut a, mut b, stats) = pair(8, &Plan::new(9).tx(Fault::Corrupt, 1));
        let mut skb = pool.local().alloc_copy(&stamped(1, 200)).unwrap();
        skb.set_offload(offload);
        let (before, mut batch) = (crate::host::testing::bytes(&skb), Batch::with_capacity(1));
        batch.push(skb).unwrap();
        assert_eq!((a.xmit(&mut batch), b.rx(&mut batch)), (1, 1));
        let after = batch.iter().next().unwrap();
        assert_eq!(crate::host::testing::bytes(after) != before, is_damaged);
        assert_eq!(after.offload().flags & Offload::VERIFIED, 0);
        assert_eq!(stats.counts().corrupted, u64::from(is_damaged));
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
