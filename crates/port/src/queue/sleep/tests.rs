//! Tests of a queue's sleeps: what ends them, and what is counted and measured.

use std::sync::atomic::{AtomicUsize, Ordering};

use linerate_skb::{Local, Moved, Pool};
use linerate_sys::wait::WaitSet;

use super::*;
use crate::moderation::Holding;
use crate::queue::QueueOps;

/// The hold of the next constant.
const HOLD: Duration = Duration::from_millis(10);
const HELD: Moderation = Moderation::Fixed { usecs: 10_000, frames: 1 << 16 };

/// A device that can be held, and that has this number of packets at each poll.
struct Device(WaitSet, Arc<AtomicUsize>);

impl QueueOps for Device {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let packets = budget.min(self.1.load(Ordering::Relaxed));
        Moved { packets: mem.alloc(out, packets), bytes: 0 }
    }

    fn xmit(&mut self, _: &mut Local, _: &mut Batch) -> Moved {
        Moved::default()
    }

    fn arm(&mut self, _: Want) -> bool {
        self.0.alarm(None).unwrap();
        self.1.load(Ordering::Relaxed) == 0
    }

    fn hold(&mut self, at: Instant) -> bool {
        self.0.near(Instant::now(), at).is_ok()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns a queue of a device, and the number of packets that the device has.
fn open(mode: Moderation) -> (Queue, Arc<AtomicUsize>) {
    let pool = Pool::builder().frames(64).build().unwrap();
    let packets = Arc::new(AtomicUsize::new(1));
    let ops = Device(WaitSet::new(0).unwrap(), Arc::clone(&packets));
    let mut queue = Queue::new(Box::new(ops), pool.local());
    queue.set_moderation(mode);
    // No ring ends a hold.
    queue.ops.moderator().set_ring_len(Some(1 << 16));
    (queue, packets)
}

fn rx(queue: &mut Queue) -> usize {
    queue.rx(&mut Batch::with_capacity(8))
}

/// Lets the moderator measure a rate at which every hold is too short for a sleep.
fn arrive_fast(queue: &mut Queue) {
    let (moderator, step) = (queue.ops.moderator(), Duration::from_micros(10));
    moderator.set_ring_len(Some(64));
    let start = Instant::now() - step * 40;
    for i in 0..40 {
        moderator.received(60, 0, 64);
        let _ = moderator.rest(start + step * i);
    }
}

#[test]
fn the_cpu_waits_busily_for_the_end_of_a_hold_that_is_too_short_for_a_sleep() {
    let (mut queue, _packets) = open(HELD);
    // A thread that is interrupted measures a lower rate, and sleeps: so try several times.
    let spins = (0..100).any(|_| {
        arrive_fast(&mut queue);
        assert_eq!(rx(&mut queue), 1);
        let before = queue.counts().hold_ends;
        assert_eq!(queue.wait(None), Ok(true));
        queue.counts().hold_ends == before
    });
    assert!(spins, "a sleep was used for every hold");
    let looks = (0..100).any(|_| {
        arrive_fast(&mut queue);
        assert_eq!(rx(&mut queue), 1);
        !queue.arm(Want::Frames)
    });
    assert!(looks, "the timer was armed for every hold");
}

#[test]
fn only_a_hold_that_is_over_counts_as_the_end_of_a_hold() {
    let (mut queue, _packets) = open(HELD);
    assert_eq!(rx(&mut queue), 1);
    let start = Instant::now();
    assert_eq!(queue.wait(Some(HOLD / 10)), Ok(true));
    // This thread may have waited for its CPU for the whole hold.
    assert!(start.elapsed() >= HOLD || queue.counts().hold_ends == 0, "the caller's timeout");

    let (mut queue, _packets) = open(HELD);
    assert_eq!((rx(&mut queue), queue.wait(None)), (1, Ok(true)));
    assert_eq!(queue.counts().hold_ends, 1);
    assert!(!queue.ops.moderator().hold_ended(Instant::now()), "the end was not recorded");

    let (mut queue, _packets) = open(HELD);
    assert_eq!(rx(&mut queue), 1);
    let start = Instant::now();
    assert!(queue.arm(Want::Frames));
    assert_eq!(rx(&mut queue), 1);
    let is_over = start.elapsed() >= HOLD * 3 / 4;
    assert!(is_over || queue.counts().hold_ends == 0, "the caller did not wait");

    let (mut queue, _packets) = open(HELD);
    assert_eq!(rx(&mut queue), 1);
    assert!(queue.arm(Want::Frames));
    std::thread::sleep(HOLD);
    assert_eq!((rx(&mut queue), queue.counts().hold_ends), (1, 1));
    assert!(!queue.ops.moderator().hold_ended(Instant::now()), "the end was not recorded");
}

#[test]
fn an_armed_queue_without_packets_has_ended_no_sleep() {
    let (mut queue, packets) = open(Moderation::Napi);
    packets.store(0, Ordering::Relaxed);
    assert!(queue.arm(Want::Frames));
    assert_eq!((rx(&mut queue), queue.counts().wakeups), (0, 0));
    assert!(queue.arm(Want::Frames));
    packets.store(1, Ordering::Relaxed);
    assert_eq!((rx(&mut queue), queue.counts().wakeups), (1, 1));
    assert_eq!((rx(&mut queue), queue.counts().wakeups), (1, 1));
}

#[test]
fn only_a_sleep_is_measured() {
    // The meter does not read a clock twice in a millisecond.
    let arm = |queue: &mut Queue, want| {
        std::thread::sleep(Duration::from_millis(2));
        queue.arm(want)
    };
    let (mut queue, packets) = open(Moderation::Napi);
    assert!(!arm(&mut queue, Want::Frames) && !queue.meter.is_sample(), "a packet is there");
    packets.store(0, Ordering::Relaxed);
    assert!(arm(&mut queue, Want::Frames) && queue.meter.is_sample());
    assert!(arm(&mut queue, Want::Both) && !queue.meter.is_sample(), "begun by the earlier call");
    assert!(arm(&mut queue, Want::Frames) && queue.meter.is_sample());
    queue.stay_awake();
    assert!(!queue.meter.is_sample());
}

#[test]
fn queue_that_is_polled_without_sleeping_begins_no_measurement() {
    let (mut queue, _packets) = open(Moderation::Busy);
    assert_eq!((rx(&mut queue), queue.wait(None)), (1, Ok(true)));
    assert!(!queue.meter.is_sample());
}

#[test]
fn queue_that_is_never_idle_does_not_say_that_no_packets_arrived() {
    for mode in [Moderation::Busy, Moderation::Napi] {
        let (mut queue, _packets) = open(mode);
        assert_eq!(queue.moderated().to_string(), "no packets arrived");
        // A caller that never waits makes no decision.
        assert_eq!(rx(&mut queue), 1);
        assert_eq!(queue.moderated().to_string(), "no irq: no packet woke a worker");
        assert_eq!((queue.wait(None), rx(&mut queue)), (Ok(true), 1));
        assert_eq!(queue.moderated().to_string(), "no irq: no packet woke a worker");
    }
}

/// Returns true if the queue has noted a hold, which it compares with none later.
fn has_noted_holds(queue: &Queue) -> bool {
    format!("{:?}", queue.saving).contains("at: Some")
}

#[test]
fn holds_are_compared_where_the_thread_waits_for_the_queue_alone() {
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut queue, _packets) = open(Moderation::default());
    while !has_noted_holds(&queue) {
        assert!(Instant::now() < deadline, "no hold");
        rx(&mut queue);
        assert_eq!(queue.wait(None), Ok(true));
    }
    let (mut armed, _packets) = open(Moderation::default());
    while armed.ops.moderator().moderated().hold.is_none() {
        assert!(Instant::now() < deadline, "no hold");
        rx(&mut armed);
        let _ = armed.arm(Want::Frames);
    }
    rx(&mut armed);
    let _ = armed.arm(Want::Frames);
    assert!(!has_noted_holds(&armed));
}

#[test]
fn arming_again_without_receiving_keeps_a_hold() {
    // A thread that waits for its CPU comes too late: so try several times.
    let is_kept = (0..100).any(|_| {
        let (mut queue, _packets) = open(HELD);
        assert_eq!(rx(&mut queue), 1);
        // The device has a packet, so that its own `arm` would return false.
        let is_kept = queue.arm(Want::Frames) && queue.arm(Want::Frames);
        std::thread::sleep(HOLD);
        assert_eq!((rx(&mut queue), queue.counts().hold_ends), (1, u64::from(is_kept)));
        is_kept
    });
    assert!(is_kept, "the device was armed instead");
}

#[test]
fn arming_ends_a_verdict_on_holds_that_only_waits_renew() {
    let (mut queue, _packets) = open(Moderation::default());
    queue.ops.moderator().set_holding(Holding::Costly);
    let _ = queue.arm(Want::Frames);
    assert!(!queue.ops.moderator().allow_holds(), "the verdict is valid");
}

#[test]
fn hold_that_a_device_refuses_is_not_told() {
    let (mut queue, _packets) = open(HELD);
    assert_eq!(rx(&mut queue), 1);
    assert!(queue.arm(Want::Frames));
    let moderator = queue.ops.moderator();
    assert_eq!(moderator.moderated().hold, Some(HOLD));
    moderator.refuse_hold();
    assert_eq!(moderator.moderated().hold, None);
}
