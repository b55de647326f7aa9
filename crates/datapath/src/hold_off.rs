//! Letting packets gather: how long a worker leaves its devices alone before it looks again.
//!
//! ```text
//!  packets    | | |  | | | |  | |  | |              |
//!  at once    t t t  t t t t  t t  t t  a  sleep    t a      t  a turn, with what is there
//!  held off   t─────►t──────►t──────►t  a  sleep    t a      a  armed, woken by the next packet
//! ```
//!
//! A worker that is as fast as its packets come finds one each time it looks: a turn, a doorbell and,
//! where there was none, a sleep for each, and the sender pays for waking it. So where some come in
//! the time of a hold-off anyway, it lets them gather. A packet that comes alone is never held: nothing
//! is dense then. A queue that gave its whole budget has more, and is never held either.
//!
//! Where so many come that a ring would be nearly full before a hold-off ends, half of it is waited for: by
//! a shorter sleep, or, where that is 25 µs or less, on the CPU. The sender need not wake this worker, which
//! does not look meanwhile, because the lines of a ring that both look at go to and fro.
//!
//! Source: post 001, interrupt coalescing; ethtool's rx-usecs; the kernel's `gro_flush_timeout` with
//! `napi_defer_hard_irqs`.

use std::time::{Duration, Instant};

/// Packets in the time of the shortest hold-off that are worth one. Two may be a question and the next;
/// a program that asks one question at a time gives one.
const DENSE: u32 = 3;
/// Packets that a hold-off waits for: half a budget, so that a turn takes them and what comes with
/// them.
const ENOUGH: u32 = 32;
/// The longest hold-off is so many times the shortest, as an e1000's 4,000 interrupts a second are to
/// its 20,000.
const RANGE: u32 = 5;

/// Packets that a ring holds of which nothing is known: the 256 of post 000, and of many a device since.
pub(crate) const DEPTH: u32 = 256;

/// A peer that makes a shorter ring than that, two turns' worth, gets no CPU for it.
const DEPTH_MIN: u32 = 2 * ENOUGH;
/// The longest wait on the CPU: half of the shortest sleep that is worth its wake-up where it need not be
/// (docs/adr/0011).
const SPIN_MAX: Duration = Duration::from_micros(25);

/// Longest time between two looks for room while packets wait for it: memif's shortest wait for
/// room, and therefore the same for rings of any length.
pub(crate) const LOOK_FOR_ROOM: Duration = Duration::from_micros(50);

/// A way to let packets gather.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The devices are left alone for so long.
    Sleep(Duration),
    /// The devices are left alone for so long without a sleep, which would end too late.
    Spin(Duration),
}

/// A worker's record of how densely its packets come, and the hold-off that follows from it.
#[derive(Debug)]
pub(crate) struct HoldOff {
    longest: Duration,
    /// Packets that the shortest ring holds in which they gather.
    depth: u32,
    /// Start of the count of packets, and their number.
    since: Option<Instant>,
    packets: u32,
    /// The hold-off, if packets came densely enough at the last decision.
    hold: Option<Hold>,
    /// True if in this turn a queue gave all it was asked for, or packets came that must not wait.
    more: bool,
    /// True if in this turn a queue was left alone, because there was no room for its packets.
    blocked: bool,
}

impl HoldOff {
    /// Hold-offs up to `longest`; of zero, none.
    pub fn new(longest: Duration) -> HoldOff {
        HoldOff {
            longest,
            depth: DEPTH,
            since: None,
            packets: 0,
            hold: None,
            more: false,
            blocked: false,
        }
    }

    /// Notes how many packets the shortest ring holds in which they gather.
    pub fn set_depth(&mut self, depth: u32) {
        self.depth = depth.max(DEPTH_MIN);
    }

    /// Begins a turn.
    pub fn begin(&mut self) {
        (self.more, self.blocked) = (false, false);
    }

    /// Notes that a queue was not asked in this turn, because there is no room for what it has; whether that
    /// gathers.
    pub fn left_alone(&mut self, gathers: bool) {
        self.blocked |= gathers;
    }

    /// Notes that a queue gave `packets` of at most `budget`; whether they `gather` in its device's
    /// ring if nobody takes them.
    pub fn received(&mut self, packets: usize, budget: usize, gather: bool) {
        self.more |= packets == budget || (packets > 0 && !gather);
        if gather {
            self.packets = self.packets.saturating_add(packets as u32);
        }
    }

    /// Ends a turn at `now`.
    ///
    /// Packets are counted from one time that nothing was left to another: what came meanwhile. In between
    /// it is how fast this worker takes what had gathered.
    pub fn end(&mut self, now: Instant) {
        let left = self.more || self.blocked;
        let Some(since) = self.since else {
            // What the first turn found came in a time that nobody knows.
            (self.since, self.packets) = ((!left).then_some(now), 0);
            return;
        };
        let (passed, shortest) = (now.saturating_duration_since(since), self.longest / RANGE);
        if left {
            if passed > self.longest * RANGE {
                // So long ago that it says nothing of now.
                (self.since, self.hold) = (None, None);
            }
        } else if passed >= shortest {
            self.hold = self.decide(passed, shortest);
            (self.since, self.packets) = (Some(now), 0);
        }
    }

    /// Chooses a hold-off by the packets counted in the time that has `passed`; `None` if they came
    /// too thinly.
    fn decide(&self, passed: Duration, shortest: Duration) -> Option<Hold> {
        if shortest * self.packets <= passed * DENSE {
            return None;
        }
        // A sleep ends somewhat late, and a sender that finds a full ring is slower than it can be.
        if shortest * self.packets < passed * (self.depth / 4 * 3) {
            let enough = passed * ENOUGH / self.packets;
            return Some(Hold::Sleep(enough.clamp(shortest, self.longest)));
        }
        // Half of it, so that the sender finds room.
        let half = passed * (self.depth / 2) / self.packets;
        Some(if half <= SPIN_MAX { Hold::Spin(half) } else { Hold::Sleep(half) })
    }

    /// Returns the hold-off to make now, if one pays.
    pub fn due(&self) -> Option<Hold> {
        self.hold.filter(|_| !self.more && !self.longest.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::Arc;

    use linerate_port::wait::EventFd;
    use linerate_port::{Caps, Direction, QueueOps, Want};
    use linerate_skb::{Batch, Local, Moved, Pool};

    use super::*;
    use crate::napi::Napi;
    use crate::stats::{Phase, WorkerSlot};
    use crate::worker::{Turned, Worker};

    /// The shortest, of 250 µs.
    const TIME: Duration = Duration::from_micros(50);

    /// Turns that find so many packets each, `every` apart; whether each ends in a hold_off.
    fn turns(
        hold_off: &mut HoldOff,
        start: Instant,
        every: Duration,
        found: &[usize],
    ) -> Vec<bool> {
        let turn = |(i, &packets): (usize, &usize)| {
            hold_off.begin();
            hold_off.received(packets, 64, true);
            hold_off.end(start + every * i as u32);
            hold_off.due().is_some()
        };
        found.iter().enumerate().map(turn).collect()
    }

    #[test]
    fn packets_that_come_densely_are_let_gather_and_the_first_ones_are_not() {
        let mut hold_off = HoldOff::new(5 * TIME);
        let now = Instant::now();
        // One each 10 µs: after the first 50 µs it is known.
        let told = turns(&mut hold_off, now, TIME / 5, &[1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(told, [false, false, false, false, false, true, true]);
        // Hold-offs of 50 µs find five each, until nothing comes any more.
        let told = turns(&mut hold_off, now + 2 * TIME, TIME, &[5, 5, 0, 0]);
        assert_eq!(told, [true, true, false, false]);
    }

    #[test]
    fn hold_off_shrinks_as_packet_rate_grows() {
        let due = |found: usize| {
            let mut hold_off = HoldOff::new(5 * TIME);
            turns(&mut hold_off, Instant::now(), TIME, &[found; 3]);
            hold_off.due()
        };
        let sleep = |time| Some(Hold::Sleep(time));
        assert_eq!([3, 4, 16, 60].map(due), [None, sleep(5 * TIME), sleep(2 * TIME), sleep(TIME)]);
    }

    /// A device that has ten packets whenever it is looked at, and room for none.
    struct Dense {
        fd: EventFd,
        notifies_tx_space: bool,
    }

    impl QueueOps for Dense {
        fn rx(&mut self, mem: &mut Local, out: &mut Batch, _: usize) -> Moved {
            Moved { packets: mem.alloc(out, 10), bytes: 0 }
        }

        fn xmit(&mut self, _: &mut Local, _: &mut Batch) -> Moved {
            Moved::default()
        }

        fn arm(&mut self, _: Want) -> bool {
            panic!("nothing is armed while packets gather");
        }

        fn caps(&self) -> Caps {
            Caps { notifies_tx_space: self.notifies_tx_space, ..Caps::default() }
        }
    }

    impl AsFd for Dense {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
    }

    /// A worker that has found ten packets often enough, with `waiting` packets that wait for room.
    fn dense(
        notifies_tx_space: bool,
        waiting: usize,
        longest: Duration,
    ) -> (Worker, Arc<WorkerSlot>) {
        let pool = Pool::builder().frames(2048).build().unwrap();
        let device = Box::new(Dense { fd: EventFd::new().unwrap(), notifies_tx_space });
        let tally = pool.tally("backlog");
        let mut napi = Napi::new(device, Direction::Both, Napi::id(0), 64, tally);
        napi.peer = Some(0);
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(waiting));
        mem.alloc(&mut batch, waiting);
        napi.enqueue(&mut batch, waiting, &mut mem);
        let slot = WorkerSlot::new(&Arc::default()).unwrap();
        let hold_off = HoldOff::new(longest);
        let mut worker =
            Worker::new(vec![napi], Vec::new(), mem, 64, hold_off, slot.clone()).unwrap();
        let now = Instant::now();
        worker.turn(now);
        assert_eq!(worker.turn(now + longest / RANGE), Turned::Again);
        (worker, slot)
    }

    #[test]
    fn packets_that_wait_for_room_prevent_it_where_the_device_tells_of_room() {
        let hold_offs = |notifies_tx_space, waiting| {
            let (mut worker, slot) = dense(notifies_tx_space, waiting, Duration::from_secs(100));
            worker.park(Turned::Again, Some(Duration::from_millis(1))).unwrap();
            slot.waits().read().hold_offs
        };
        assert_eq!((hold_offs(true, 0), hold_offs(true, 1), hold_offs(false, 1)), (1, 0, 1));
    }

    #[test]
    fn packets_that_wait_for_room_shorten_it_to_a_look() {
        let shortest = Duration::from_secs(2);
        let (mut worker, slot) = dense(false, 1, shortest * RANGE);
        worker.park(Turned::Again, None).unwrap();
        let stats = slot.waits().read();
        assert_eq!(stats.hold_offs, 1);
        assert!(Duration::from_nanos(stats.asleep_ns) < shortest, "{stats:?}");
    }

    #[test]
    fn a_worker_holds_off_for_as_long_as_it_may_and_hears_that_it_is_to_stop() {
        let long = Duration::from_secs(100);
        let (mut worker, slot) = dense(true, 0, long);
        let now = Instant::now();
        worker.park(Turned::Again, Some(Duration::from_millis(1))).unwrap();
        let stats = || slot.waits().read();
        assert!(stats().hold_offs == 1 && stats().asleep_ns >= 1_000_000, "{:?}", stats());
        slot.set_phase(Phase::Halt);
        worker.park(Turned::Again, None).unwrap();
        assert_eq!((stats().hold_offs, stats().sleeps), (2, 2));
        assert!(now.elapsed() < long / RANGE, "the bell was not heard");
    }

    #[test]
    fn what_would_fill_a_ring_meanwhile_is_waited_for_without_a_sleep() {
        let mut hold_off = HoldOff::new(5 * TIME);
        let start = Instant::now();
        // 60 each 10 us: 300 in the time of the shortest hold-off, 128 in 21 us.
        turns(&mut hold_off, start, TIME / 5, &[60; 12]);
        assert_eq!(hold_off.due(), Some(Hold::Spin(TIME * 128 / 300)));
        turns(&mut hold_off, start + 3 * TIME, TIME / 5, &[38; 12]);
        assert!(matches!(hold_off.due(), Some(Hold::Sleep(_))), "190 of 256: {hold_off:?}");
        turns(&mut hold_off, start + 6 * TIME, TIME / 5, &[60; 12]);
        // Nothing comes any more: the worker sleeps after two times at most.
        let told = turns(&mut hold_off, start + 9 * TIME, TIME / 5, &[0; 12]);
        assert!(told[0] && !told[10], "{told:?}");
    }

    #[test]
    fn a_longer_ring_has_room_for_a_sleep_and_is_waited_for_until_half_of_it_is_full() {
        let due = |found: usize| {
            let mut hold_off = HoldOff::new(5 * TIME);
            hold_off.set_depth(1024);
            turns(&mut hold_off, Instant::now(), TIME / 50, &[found; 120]);
            hold_off.due()
        };
        // 15, 16 and 21 each microsecond: 750, 800 and 1050 in the time of the shortest hold-off.
        assert_eq!(due(15), Some(Hold::Sleep(TIME)));
        assert_eq!(due(16), Some(Hold::Sleep(TIME * 512 / 800)));
        assert_eq!(due(21), Some(Hold::Spin(TIME * 512 / 1050)));
    }

    #[test]
    fn how_fast_packets_come_is_not_how_fast_those_that_gathered_are_taken() {
        let mut hold_off = HoldOff::new(5 * TIME);
        hold_off.set_depth(1024);
        let mut now = Instant::now();
        turns(&mut hold_off, now, TIME, &[1]);
        // 10 in each microsecond: a sleep of 50, and what came is taken in 60 more, 1098 in all.
        for _ in 0..5 {
            now += TIME;
            let mut found = [64; 18];
            found[17] = 10;
            turns(&mut hold_off, now, TIME / 15, &found);
            assert_eq!(hold_off.due(), Some(Hold::Sleep(TIME)), "{hold_off:?}");
            now += TIME / 15 * 17;
        }
    }

    #[test]
    fn a_queue_that_there_is_no_room_for_is_not_an_empty_one() {
        let mut hold_off = HoldOff::new(5 * TIME);
        let now = Instant::now();
        turns(&mut hold_off, now, TIME, &[20, 20]);
        let held = hold_off.due();
        assert!(held.is_some());
        let mut blocked = |at| {
            hold_off.begin();
            hold_off.left_alone(true);
            hold_off.end(at);
            hold_off.due()
        };
        assert_eq!(
            blocked(now + 3 * TIME),
            held,
            "what it has is not known, and still comes densely"
        );
        // Whoever takes nothing for long is slept on.
        assert_eq!(blocked(now + 30 * TIME), None);
    }

    #[test]
    fn old_packet_rate_causes_no_hold_off() {
        let mut hold_off = HoldOff::new(5 * TIME);
        let now = Instant::now();
        turns(&mut hold_off, now, TIME, &[20, 20]);
        assert!(hold_off.due().is_some());
        // Others keep the worker busy for a second, and one packet comes.
        for turn in 0..1000 {
            hold_off.begin();
            hold_off.received(1, 64, false);
            hold_off.end(now + 20 * TIME * turn);
        }
        let told = turns(&mut hold_off, now + 20_000 * TIME, TIME, &[1]);
        assert_eq!(told, [false]);
    }

    #[test]
    fn nobody_spins_for_long_or_for_a_tiny_ring() {
        let due = |longest: Duration, depth: u32, every: Duration, found: usize| {
            let mut hold_off = HoldOff::new(longest);
            hold_off.set_depth(depth);
            turns(&mut hold_off, Instant::now(), every, &[found; 120]);
            hold_off.due()
        };
        // A ring of 1024 in a hold-off of 2 ms: it is slept for half of it.
        let slow = due(200 * TIME, 1024, TIME, 30);
        assert_eq!(slow, Some(Hold::Sleep(40 * TIME * 512 / 1200)));
        // 10 in 50 us fill a ring of 2, and are no reason to keep a CPU busy.
        assert!(matches!(due(5 * TIME, 2, TIME, 10), Some(Hold::Sleep(_))));
    }

    #[test]
    fn one_question_at_a_time_is_never_held() {
        let mut hold_off = HoldOff::new(5 * TIME);
        let told = turns(&mut hold_off, Instant::now(), TIME * 2 / 5, &[1; 100]);
        assert!(told.iter().all(|held| !held));
    }

    #[test]
    fn a_queue_that_has_more_is_never_held() {
        let mut hold_off = HoldOff::new(5 * TIME);
        let told = turns(&mut hold_off, Instant::now(), TIME, &[64; 10]);
        assert!(told.iter().all(|held| !held));
    }

    #[test]
    fn packets_that_wait_for_nobody_are_not_held_up() {
        let mut hold_off = HoldOff::new(5 * TIME);
        let start = Instant::now();
        turns(&mut hold_off, start, TIME, &[10, 10, 10]);
        assert_eq!(hold_off.due(), Some(Hold::Sleep(TIME * 32 / 10)));
        hold_off.begin();
        hold_off.received(10, 64, true);
        hold_off.received(1, 64, false);
        hold_off.end(start + 4 * TIME);
        assert_eq!(hold_off.due(), None);
    }

    #[test]
    fn a_hold_off_of_nothing_is_none() {
        let mut hold_off = HoldOff::new(Duration::ZERO);
        let told = turns(&mut hold_off, Instant::now(), TIME, &[10; 10]);
        assert!(told.iter().all(|held| !held));
    }
}
