//! A worker holds devices whose packets arrive at a high rate, and executes orders during a hold.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, mpsc};

use linerate_port::wait::{EventFd, poll_readable};
use linerate_port::{Caps, Direction, Goal, Moderation, QueueOps};
use linerate_skb::{Batch, Local, Moved, Pool};

use super::*;
use crate::egress::Egress;
use crate::qdisc::{Fifo, Limit, Tbf};
use crate::stage::{Stage, Turn, Xconnect};
use crate::worker::StageAlarms;
use crate::worker_slot::{Phase, WorkerSlot};

mod unpolled;

/// A device that has ten packets at every poll, and no room.
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
        let rx_ring_len = Some(1 << 16);
        Caps { notifies_tx_space: self.notifies_tx_space, rx_ring_len, ..Caps::default() }
    }
}

impl AsFd for Dense {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns a worker that received ten packets often enough to hold for 10 ms, while `waiting`
/// packets wait for room; also returns the end of its hold.
fn dense(notifies_tx_space: bool, waiting: usize) -> (Worker, Arc<WorkerSlot>, Turned) {
    dense_queues(notifies_tx_space, waiting, 1)
}

/// Works as [`dense`], with several queues.
fn dense_queues(
    notifies_tx_space: bool,
    waiting: usize,
    queues: usize,
) -> (Worker, Arc<WorkerSlot>, Turned) {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(waiting));
    let napi = |i| {
        let device = Box::new(Dense { fd: EventFd::new().unwrap(), notifies_tx_space });
        let (egress, tally) = (Egress::new(256, None), pool.tally("backlog"));
        let mut napi = Napi::new(device, Direction::Both, Napi::id(i), egress, tally);
        napi.peer = Some(i);
        let goal = Goal::Latency { p99_usecs: 10_000 };
        assert_eq!(napi.set_moderation(Moderation::Adaptive(goal)), None);
        mem.alloc(&mut batch, waiting);
        napi.enqueue(&mut batch, waiting, Instant::now(), &mut mem);
        napi
    };
    let napis: Vec<Napi> = (0..queues).map(napi).collect();
    let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
    let mut worker = Worker::new(napis, Vec::new(), vec![mem], 64, slot.clone()).unwrap();
    // Ten packets in 3 ms: 32 packets take 9.6 ms.
    let (now, step) = (Instant::now(), Duration::from_millis(3));
    worker.turn(now - 2 * step);
    worker.turn(now - step);
    let turned = worker.turn(now);
    (worker, slot, turned)
}

#[test]
fn packets_that_wait_for_room_prevent_a_hold_where_the_device_tells_of_room() {
    let is_held = |notifies, waiting| matches!(dense(notifies, waiting).2, Turned::Until(_));
    assert_eq!([(true, 0), (true, 1), (false, 1)].map(|(n, w)| is_held(n, w)), [true, false, true]);
}

#[test]
fn packets_that_wait_for_room_shorten_a_hold_to_a_look() {
    let (mut worker, slot, _) = dense(false, 1);
    // The device has just taken a packet, so that it may soon take another one.
    worker.napis[0].readings().0.count_tx(1, 60);
    let turned = worker.turn(Instant::now());
    let Turned::Until(until) = turned else { panic!("{turned:?}") };
    // Compare the end of the hold that was decided: the time actually slept depends on this
    // machine.
    assert!(until.saturating_duration_since(Instant::now()) < Duration::from_millis(1));
    worker.park(turned, None).unwrap();
    assert!(slot.waits().read().hold_offs <= 1, "none if the test took longer than the look");
}

#[test]
fn a_worker_holds_until_the_time_and_counts_one_irq() {
    let (mut worker, slot, turned) = dense(true, 0);
    let Turned::Until(until) = turned else { panic!("{turned:?}") };
    worker.park(turned, None).unwrap();
    assert!(Instant::now() >= until);
    let (waits, counts) = (slot.waits().read(), worker.napis[0].counts());
    assert_eq!((waits.sleeps, waits.hold_offs), (1, 1));
    assert_eq!(waits.hold_off_ns, waits.asleep_ns, "it slept only in the hold");
    assert_eq!((counts.hold_ends, counts.wakeups, counts.irqs()), (1, 0, 1));
}

#[test]
fn each_of_many_holds_in_a_row_is_counted_and_ends_near_its_time() {
    const HOLDS: u64 = 8;
    for sleeps_outside in [false, true] {
        let (mut worker, _slot, _) = dense(true, 0);
        worker.napis[0].set_moderation(Moderation::Fixed { usecs: 4000, frames: 1 << 16 });
        let mut slept = 0;
        for _ in 0..HOLDS {
            let turned = worker.turn(Instant::now());
            let Turned::Until(until) = turned else { panic!("{turned:?}") };
            let hold = until.saturating_duration_since(Instant::now());
            if !sleeps_outside {
                worker.park(turned, None).unwrap();
            } else if worker.arm().unwrap() {
                assert!(poll_readable(&[worker.as_fd()], None).unwrap());
            }
            assert!(Instant::now() + hold / 4 >= until);
            // A thread without its CPU for that long does not sleep any more.
            slept += u64::from(!hold.is_zero());
        }
        worker.turn(Instant::now());
        let ends = worker.napis[0].counts().hold_ends;
        assert!(ends <= slept && (ends + 2 >= slept), "{ends} of {slept}");
    }
}

#[test]
fn time_asleep_for_room_is_not_the_lateness_of_a_timer() {
    let measures = |notifies| {
        let (mut worker, ..) = dense(notifies, 1);
        worker.napis[0].measures_hold(Instant::now() + Duration::from_secs(1))
    };
    assert_eq!([true, false].map(measures), [false, true], "only a hold is slept to its end");
}

#[test]
fn wake_up_of_several_held_queues_is_one_and_each_has_its_part() {
    let (mut worker, slot, turned) = dense_queues(true, 0, 4);
    assert!(matches!(turned, Turned::Until(_)), "{turned:?}");
    worker.park(turned, None).unwrap();
    let hold_ends: Vec<u64> = worker.napis.iter().map(|napi| napi.counts().hold_ends).collect();
    assert_eq!((worker.wakes.number, slot.waits().read().sleeps, hold_ends), (1, 1, vec![1; 4]));
    assert!((worker.wakes.part(4) - 0.25).abs() < 0.01);
}

#[test]
fn part_of_a_wake_up_follows_the_number_of_queues_that_it_is_for() {
    let (mut wakes, mut irqs) = (Wakes::default(), 0);
    assert_eq!(wakes.part(irqs), 1.0, "none yet");
    for (queues, part) in [(1, 1.0), (4, 0.25), (1, 1.0)] {
        for _ in 0..300 {
            wakes.count(true);
            irqs += queues;
            wakes.part(irqs);
        }
        assert!((wakes.part(irqs) - part).abs() < 0.01, "{queues}");
    }
}

/// In `interrupt`, the worker sleeps after each turn, and each turn receives packets.
#[test]
fn figures_are_published_ten_times_a_second_though_every_turn_moves_packets() {
    let (mut worker, _, _) = dense(false, 1);
    worker.napis[0].set_moderation(Moderation::Interrupt);
    let page = worker.napis[0].readings().1;
    let now = Instant::now() + Duration::from_secs(1);
    // Each turn offers the waiting packet to the device; `dense` makes three turns.
    for (after_ms, published) in [(0, 4), (50, 4), (100, 6)] {
        assert_eq!(worker.turn(now + Duration::from_millis(after_ms)), Turned::Idle);
        assert_eq!(page.flushes.read().calls, published, "{after_ms}");
    }
}

#[test]
fn arm_that_finds_work_begins_no_measurement_of_a_sleep() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let fd = EventFd::new().unwrap();
    let nic = Nic { fd, bursts: Vec::new(), here: 1, late: 0, polls: 0, calls: Arc::default() };
    let (egress, tally) = (Egress::new(1, None), pool.tally("backlog"));
    let mut napi = Napi::new(Box::new(nic), Direction::Both, Napi::id(0), egress, tally);
    napi.peer = Some(0);
    let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
    let mut worker = Worker::new(vec![napi], Vec::new(), vec![pool.local()], 4, slot).unwrap();
    assert!(!worker.arm().unwrap() && !worker.meter.is_sample());
    assert_eq!(worker.napis[0].counts().rechecks, 1, "the device was asked");
}

#[test]
fn every_queue_that_ends_a_sleep_is_counted_whatever_their_number() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let napi = |i| {
        let fd = EventFd::new().unwrap();
        let nic = Nic { fd, bursts: vec![1], here: 0, late: 0, polls: 0, calls: Arc::default() };
        let (egress, tally) = (Egress::new(1, None), pool.tally("backlog"));
        let mut napi = Napi::new(Box::new(nic), Direction::Both, Napi::id(i), egress, tally);
        napi.peer = Some(i);
        napi.set_moderation(Moderation::Napi);
        napi
    };
    let napis: Vec<Napi> = (0..40).map(napi).collect();
    let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
    let mut worker = Worker::new(napis, Vec::new(), vec![pool.local()], 4, slot).unwrap();
    let turned = worker.turn(Instant::now());
    worker.park(turned, Some(Duration::from_secs(20))).unwrap();
    let wakeups: Vec<u64> = worker.napis.iter().map(|napi| napi.counts().wakeups).collect();
    assert_eq!(wakeups, [1; 40]);
}

#[test]
fn order_to_a_worker_ends_its_hold() {
    let (mut worker, slot, _) = dense(true, 0);
    let far = Turned::Until(Instant::now() + Duration::from_secs(100));
    slot.set_phase(Phase::Halt);
    worker.park(far, None).unwrap();
    // The bell ended one hold: it must not keep holds after the order's turn from sleeping.
    worker.turn(Instant::now());
    let start = Instant::now();
    worker.park(far, Some(Duration::from_millis(5))).unwrap();
    assert!((Duration::from_millis(5)..Duration::from_secs(50)).contains(&start.elapsed()));
    assert_eq!(worker.napis[0].counts().hold_ends, 0, "no hold lasted to its end");
}

#[test]
fn worker_does_not_hold_while_it_has_not_got_the_list_of_orders() {
    let (mut worker, slot, _) = dense(true, 0);
    let _pending = worker.control().set_cpus(0, &[0]).unwrap();
    // A turn that finds the list in another thread's hands executes nothing; its bell was drained
    // before.
    slot.begin();
    slot.end(false);
    slot.bell().drain();
    let (start, far) = (Instant::now(), Instant::now() + Duration::from_secs(100));
    worker.park(Turned::Until(far), Some(Duration::from_secs(5))).unwrap();
    assert!(start.elapsed() < Duration::from_secs(4));
    // It does not sleep on the order behind its descriptor either.
    worker.rest = Rest::Device;
    assert!(!worker.arm().unwrap());
}

#[test]
fn worker_with_an_order_does_not_sleep_behind_its_descriptor() {
    let (mut worker, _slot, _) = dense(true, 0);
    worker.rest = Rest::Device;
    let _pending = worker.control().set_cpus(0, &[0]).unwrap();
    assert!(!worker.arm().unwrap());
}

#[test]
fn arm_waits_busily_for_the_end_of_a_hold_that_is_too_short_for_a_sleep() {
    let (mut worker, slot, _) = dense(true, 0);
    let until = Instant::now() + Duration::from_millis(10);
    worker.rest = Rest::Hold { until, spin: true };
    assert!(!worker.arm().unwrap() && Instant::now() >= until);
    assert!(!worker.is_armed && !worker.meter.is_sample());
    let (waits, counts) = (slot.waits().read(), worker.napis[0].counts());
    assert_eq!((waits.sleeps, counts.irqs(), counts.rechecks), (0, 0, 0));
}

/// A stage that wants to be called at a time, once.
struct At(Option<Instant>);

impl Stage for At {
    fn run(&mut self, _: &mut Batch, _: &mut Turn<'_>) {}

    fn alarm(&self) -> Option<Instant> {
        self.0
    }

    fn alarmed(&mut self, _: &mut Turn<'_>) {
        self.0 = None;
    }
}

#[test]
fn alarm_of_a_stage_ends_a_hold_exactly() {
    let (mut worker, _slot, _) = dense(true, 0);
    let at = Instant::now() + Duration::from_millis(4);
    worker.stages.push(Box::new(At(Some(at))));
    worker.stage_alarms = StageAlarms::of_first(1);
    let turned = worker.turn(Instant::now());
    assert_eq!(turned, Turned::Until(at), "without it, 32 packets take longer");
    worker.park(turned, None).unwrap();
    let now = Instant::now();
    assert!(now >= at);
    let Turned::Until(until) = worker.turn(now) else { panic!("it holds on") };
    assert!(worker.stage_alarms.next.is_none() && until > now + Duration::from_millis(4));
}

#[test]
fn worker_at_rest_wakes_the_waiters_of_a_stop_before_it_holds() {
    let (mut worker, slot, turned) = dense(true, 0);
    let Turned::Until(until) = turned else { panic!("{turned:?}") };
    slot.set_phase(Phase::Drain);
    let (asks, asked) = mpsc::channel();
    let (rests, rested) = mpsc::channel();
    let waiting = slot.clone();
    std::thread::spawn(move || {
        waiting.notice().wait(None, || {
            let at_rest = waiting.quiet_turns(true);
            asks.send(()).unwrap();
            at_rest
        });
        rests.send(()).unwrap();
    });
    asked.recv().unwrap();
    // The queue is not polled in this turn, and its hold goes on.
    let turned = worker.turn(until);
    assert!(matches!(turned, Turned::Until(_)), "{turned:?}");
    let stopping = std::thread::spawn(move || {
        let is_told = rested.recv_timeout(Duration::from_secs(20)).is_ok();
        slot.set_phase(Phase::Halt);
        is_told
    });
    let far = Turned::Until(Instant::now() + Duration::from_secs(100));
    worker.park(far, None).unwrap();
    assert!(stopping.join().unwrap(), "the stop slept on until the end of the hold");
}

#[test]
fn the_descriptor_is_readable_at_the_end_of_a_hold_and_not_before() {
    let (mut worker, _, turned) = dense(true, 0);
    let Turned::Until(until) = turned else { panic!("{turned:?}") };
    if worker.arm().unwrap() {
        assert!(poll_readable(&[worker.as_fd()], Some(Duration::from_secs(5))).unwrap());
    }
    assert!(Instant::now() >= until, "{turned:?}");
    worker.turn(Instant::now());
    assert!(worker.napis[0].counts().hold_ends <= 1);
}

type Calls = Arc<Mutex<Vec<&'static str>>>;

/// A device with an interrupt: packets arrive once the interrupt is unmasked, and mask it until it
/// is armed again.
struct Nic {
    fd: EventFd,
    /// Bursts that are still to come.
    bursts: Vec<usize>,
    here: usize,
    /// Packets that come, with a signal, in the second poll that finds some.
    late: usize,
    polls: usize,
    calls: Calls,
}

impl QueueOps for Nic {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        self.fd.drain();
        self.polls += usize::from(self.here > 0);
        if self.polls == 2 && self.late > 0 {
            self.here += std::mem::take(&mut self.late);
            self.fd.signal();
        }
        let packets = mem.alloc(out, self.here.min(budget));
        self.here -= packets;
        let names = ["poll 0", "poll 1", "poll 2", "poll 3", "poll 4"];
        self.calls.lock().unwrap().push(names.get(packets).unwrap_or(&"above the budget"));
        Moved { packets, bytes: 0 }
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        if self.here > 0 {
            return false;
        }
        self.calls.lock().unwrap().push("unmask");
        self.here = self.bursts.pop().unwrap_or(0);
        if self.here > 0 {
            self.fd.signal();
        }
        true
    }
}

impl AsFd for Nic {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[test]
fn quiet_queue_shortens_no_hold_of_a_limit_of_cpu_time_and_its_packet_ends_the_sleep() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let fd = || EventFd::new().unwrap();
    let napi = |ops: Box<dyn QueueOps>, i| {
        let (egress, tally) = (Egress::new(256, None), pool.tally("backlog"));
        let mut napi = Napi::new(ops, Direction::Both, Napi::id(i), egress, tally);
        napi.peer = Some(i);
        let goal = Goal::Cpu { percent: 1 };
        assert_eq!(napi.set_moderation(Moderation::Adaptive(goal)), None);
        napi
    };
    let dense = Dense { fd: fd(), notifies_tx_space: true };
    let quiet =
        Nic { fd: fd(), bursts: vec![3], here: 0, late: 0, polls: 0, calls: Arc::default() };
    let napis = vec![napi(Box::new(dense), 0), napi(Box::new(quiet), 1)];
    let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
    let mut worker = Worker::new(napis, Vec::new(), vec![pool.local()], 64, slot).unwrap();
    // Ten packets in 3 ms leave 0.8 % of a CPU for wake-ups of 12 us: one in 1.4 ms.
    let (now, step) = (Instant::now(), Duration::from_millis(3));
    worker.turn(now - 2 * step);
    worker.turn(now - step);
    let turned = worker.turn(now);
    let Turned::Until(until) = turned else { panic!("{turned:?}") };
    assert!(until.saturating_duration_since(now) > Duration::from_millis(1), "{turned:?}");
    // The device has packets once it is armed, so that the sleep is not as long as the hold.
    let far = Turned::Until(now + Duration::from_secs(100));
    worker.park(far, Some(Duration::from_secs(20))).unwrap();
    let counts = |i: usize| worker.napis[i].counts();
    assert_eq!((counts(0).irqs(), counts(1).wakeups, counts(1).hold_ends), (0, 1, 0));
}

#[test]
fn timer_of_a_shaped_port_waits_for_several_packets_in_a_mode_that_holds() {
    let due = |mode: &str| {
        let pool = Pool::builder().frames(512).build().unwrap();
        let fd = EventFd::new().unwrap();
        let nic = Nic { fd, bursts: Vec::new(), here: 0, late: 0, polls: 0, calls: Arc::default() };
        // A packet every 12 us, after the 165 of a full bucket.
        let tbf = Tbf::new(1_000_000_000, 250_000, Fifo::new(Limit::packets(500)));
        let egress = Egress::new(256, Some(Box::new(tbf)));
        let tally = pool.tally("backlog");
        let mut napi = Napi::new(Box::new(nic), Direction::Both, Napi::id(0), egress, tally);
        napi.peer = Some(0);
        napi.set_moderation(mode.parse().unwrap());
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(200));
        mem.alloc(&mut batch, 200);
        assert!(batch.iter_mut().all(|skb| skb.put(1514).is_some()));
        let now = Instant::now();
        napi.enqueue(&mut batch, 200, now, &mut mem);
        let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
        let mut worker = Worker::new(vec![napi], Vec::new(), vec![mem], 64, slot).unwrap();
        worker.turn(now);
        assert_eq!(worker.napis[0].waiting(), 35);
        worker.due.unwrap() - now
    };
    assert!(due("napi") < Duration::from_micros(13) && due("busy") < Duration::from_micros(13));
    // A wake-up is taken to cost 12 us until one is measured.
    assert_eq!(due("adaptive"), Duration::from_micros(120));
    assert_eq!(due("fixed:usecs=50"), Duration::from_micros(50));
}

/// Returns a worker with a budget of 4 of a device that receives `bursts`, and the device's calls.
fn worker_of_nic(bursts: Vec<usize>) -> (Worker, Calls) {
    worker_with(bursts, 0)
}

/// Returns the worker of a device to which `late` packets come during the second poll.
fn worker_with(bursts: Vec<usize>, late: usize) -> (Worker, Calls) {
    let pool = Pool::builder().frames(256).build().unwrap();
    let calls = Calls::default();
    let fd = EventFd::new().unwrap();
    let nic = Nic { fd, bursts, here: 0, late, polls: 0, calls: calls.clone() };
    let (egress, tally) = (Egress::new(256, None), pool.tally("backlog"));
    let mut napi = Napi::new(Box::new(nic), Direction::Both, Napi::id(0), egress, tally);
    napi.peer = Some(0);
    napi.set_moderation(Moderation::Napi);
    let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
    let worker = Worker::new(vec![napi], Vec::new(), vec![pool.local()], 4, slot).unwrap();
    (worker, calls)
}

/// S1.1. A burst that comes while the worker polls is found by the next poll, and its signal ends
/// no sleep: the interrupt is masked.
#[test]
fn burst_during_polls_is_no_irq() {
    let (mut worker, calls) = worker_with(vec![5], 2);
    for _ in 0..10 {
        let turned = worker.turn(Instant::now());
        worker.park(turned, Some(Duration::from_millis(1))).unwrap();
    }
    let calls = calls.lock().unwrap();
    // The second poll begins with one packet, and two more come.
    let polls = ["poll 0", "unmask", "poll 4", "poll 3", "poll 0", "unmask"];
    assert_eq!(&calls[..6], &polls[..]);
    let counts = worker.napis[0].counts();
    assert_eq!((counts.wakeups, counts.irqs(), counts.rx_packets), (1, 1, 7));
}

/// S1.1: an interrupt masks the device until a poll within the budget finds the ring empty.
#[test]
fn irq_masks_device_until_polls_within_the_budget_have_found_it_empty() {
    let (mut worker, calls) = worker_of_nic(vec![5, 10]);
    for _ in 0..10 {
        let turned = worker.turn(Instant::now());
        worker.park(turned, Some(Duration::from_millis(1))).unwrap();
    }
    let calls = calls.lock().unwrap();
    let first = ["poll 0", "unmask", "poll 4", "poll 4", "poll 2", "poll 0", "unmask"];
    assert_eq!(
        (&calls[..7], &calls[7..11]),
        (&first[..], &["poll 4", "poll 1", "poll 0", "unmask"][..])
    );
    let counts = worker.napis[0].counts();
    assert_eq!((counts.wakeups, counts.irqs(), counts.rx_packets), (2, 2, 15), "7.5 an irq");
}

/// Sleeps as a program's own loop does, on the worker's descriptor.
#[test]
fn wake_up_of_a_program_that_sleeps_on_the_descriptor_is_counted_as_one_in_park_is() {
    let (mut worker, calls) = worker_of_nic(vec![3, 3]);
    for _ in 0..10 {
        if worker.turn(Instant::now()) != Turned::Again && worker.arm().unwrap() {
            poll_readable(&[worker.as_fd()], Some(Duration::from_millis(1))).unwrap();
        }
    }
    // Each burst is one wake-up and arrives whole; the sleeps that end without one count for none.
    assert_eq!(calls.lock().unwrap().iter().filter(|call| **call == "poll 3").count(), 2);
    let counts = worker.napis[0].counts();
    assert_eq!((counts.wakeups, counts.hold_ends, counts.rx_packets), (2, 0, 6));
}

#[test]
fn time_of_a_hold_is_its_length() {
    let (mut worker, slot, turned) = dense(true, 0);
    let Turned::Until(until) = turned else { panic!("{turned:?}") };
    let left = until.saturating_duration_since(Instant::now());
    worker.park(turned, None).unwrap();
    let waits = slot.waits().read();
    assert!(left > Duration::from_millis(1) && waits.hold_off_ns >= (left / 2).as_nanos() as u64);
}

#[test]
fn worker_that_holds_packets_compares_its_cpu_time_with_holds_and_without() {
    let (mut worker, _slot, _) = dense(true, 0);
    let compares = |worker: &Worker| format!("{:?}", worker.saving).contains("comparison: Some");
    let (now, step) = (Instant::now(), Duration::from_millis(3));
    assert!(!compares(&worker));
    let turns = (1..20).take_while(|i| {
        worker.turn(now + step * *i);
        !compares(&worker)
    });
    assert!(turns.count() < 19, "{:?}", worker.saving);
}
