//! A worker: the work of one core. [`Worker::turn`] is the walk of a packet; [`Worker::park`] is
//! the only sleep.
//!
//! ```text
//!  device ring ─rx─► batch ─stages─► verdicts ─dispatch─► fifo of the output ─xmit─► device ring
//! ```
//!
//! Owner: the thread that has the Worker, one of the engine's or a program's own. Nothing on the
//! walk locks, allocates, logs or reads a clock for each packet; one flush in 256 is timed.

mod alarms;
mod orders;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::panicking;
use std::time::{Duration, Instant};

use linerate_port::moderation::{CostMeter, Rest, Saving};
use linerate_port::wait::{EventFlags, TimerPair, WaitSet};
use linerate_skb::{Batch, DropReason, Local};

use crate::control::Control;
use crate::mailbox::Word;
use crate::napi::Napi;
use crate::park::{BELL, TIMER, Wakes};
use crate::poll_order::PollOrder;
use crate::stage::{Stage, Turn};
use crate::steer::Clearing;
use crate::waits::Term;
use crate::worker_slot::{Phase, WorkerSlot};
pub(crate) use alarms::StageAlarms;

/// Interval of queries that cost a device a syscall.
const QUERY_INTERVAL: Duration = Duration::from_millis(100);
/// Turns between two checks of the devices' health, while packets move and the worker never sleeps.
const HEALTH_TURNS: u32 = 4096;
/// Turns between two calls of the queues that are not polled, while packets of others move.
const UNPOLLED_TURNS: u32 = 256;
/// Interval of checks whether a device has sent its packets before it is closed.
const SENT_INTERVAL: Duration = Duration::from_millis(1);
/// Interval of calls of a queue that nothing else calls, while its wrappers withhold packets.
const WITHHELD_INTERVAL: Duration = Duration::from_millis(1);
/// Longest time for which a worker that ends waits for its devices, all queues together: shorter
/// than the time after which a halt leaves the worker's thread behind.
pub(crate) const CLOSE_MAX: Duration = Duration::from_millis(1500);

/// The result of a turn: when the worker must turn again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// There was work, and there may be more: turn again immediately.
    Again,
    /// There may be work at this time: sleep until then. Packets gather meanwhile, and no held
    /// device wakes the worker.
    Until(Instant),
    /// There was no work: sleep until a device or a peer signals some.
    Idle,
    /// There was no work, and there will be none: every source has ended, and every packet has left
    /// the worker. Packets that a device or a wrapper was given, and has still to send, have left
    /// it: call [`Worker::drain`], which waits for them.
    Ended,
}

/// The outcome of a poll of one queue.
struct Polled {
    packets: usize,
    /// True if the queue must be polled again, because it may have more.
    goes_on: bool,
}

/// The queues, stages and packet memory of one core.
pub struct Worker {
    pub(crate) napis: Vec<Napi>,
    pub(crate) stages: Vec<Box<dyn Stage>>,
    /// The times at which the program's stages, the first ones, want to be called.
    pub(crate) stage_alarms: StageAlarms,
    order: PollOrder,
    /// Packet memory, one for each pool of the worker's wires.
    mems: Vec<Local>,
    batch: Batch,
    outbox: Batch,
    budget: usize,
    /// Epoll set. At the end of a hold, its alarm wakes a program that sleeps on the worker's
    /// descriptor.
    pub(crate) epoll: WaitSet,
    /// The alarms of [`Worker::park`] that end holds.
    pub(crate) alarms: TimerPair,
    pub(crate) slot: Arc<WorkerSlot>,
    /// The mailbox's word up to which orders were executed.
    pub(crate) executed: Word,
    /// The decision of the last turn: when to poll next.
    pub(crate) rest: Rest,
    /// True if a queue was held at the last decision.
    pub(crate) holds: bool,
    /// True if a queue has a discipline.
    has_qdisc: bool,
    /// The earliest time at which packets that wait in a discipline are to be sent.
    pub(crate) due: Option<Instant>,
    /// The time at which to call queues that are not polled: their wrappers withhold packets, or
    /// their devices have not sent all; or to look whether a pause of a divided device ends.
    pub(crate) unpolled_due: Option<Instant>,
    /// True if a program may be asleep on the worker's descriptor.
    pub(crate) is_armed: bool,
    pub(crate) meter: CostMeter,
    pub(crate) saving: Saving,
    pub(crate) wakes: Wakes,
    turns: u32,
    pub(crate) ask_at: Option<Instant>,
    /// The packets that had passed when the devices' figures were last published.
    pub(crate) published: u64,
    /// True if a device still has packets to send and the path adds no more.
    sending: bool,
    /// True if the last turn moved nothing, and left nothing to send.
    nothing_waits: bool,
    /// Handle for the page that counts the packets that have left; workers that divide flows read
    /// it.
    pub(crate) clearing: Option<Clearing>,
    /// The worker's number in the engine.
    pub(crate) number: usize,
}

impl Worker {
    pub(crate) fn new(
        napis: Vec<Napi>,
        stages: Vec<Box<dyn Stage>>,
        mems: Vec<Local>,
        budget: usize,
        slot: Arc<WorkerSlot>,
    ) -> linerate_port::Result<Worker> {
        let epoll = WaitSet::new(TIMER)?;
        let has_qdisc = napis.iter().any(Napi::has_qdisc);
        let watch = |fd: BorrowedFd<'_>, tag| {
            epoll.add(fd, tag, EventFlags::IN).map_err(|e| {
                let code = linerate_port::Code::System;
                linerate_port::Error::os(code, "cannot watch a queue", "epoll_ctl", e)
            })
        };
        for (i, napi) in napis.iter().enumerate() {
            watch(napi.as_fd(), i as u64)?;
        }
        watch(slot.bell().as_fd(), BELL)?;
        Ok(Worker {
            order: PollOrder::new(&napis),
            napis,
            stages,
            stage_alarms: StageAlarms::default(),
            mems,
            batch: Batch::with_capacity(budget),
            outbox: Batch::with_capacity(budget),
            budget,
            epoll,
            alarms: TimerPair::default(),
            executed: slot.word(),
            rest: Rest::Device,
            holds: false,
            due: None,
            unpolled_due: None,
            has_qdisc,
            is_armed: false,
            meter: CostMeter::default(),
            saving: Saving::default(),
            wakes: Wakes::default(),
            slot,
            turns: 0,
            ask_at: None,
            published: 0,
            sending: false,
            nothing_waits: false,
            clearing: None,
            number: 0,
        })
    }

    /// Moves every waiting packet one step further; never blocks.
    ///
    /// Shape:  up to `budget` packets a queue, from its device through the stages to the fifo or
    ///         the discipline of their output; then what is due to its device, with as few
    ///         doorbells as its [`TxBatch`](crate::TxBatch) lets.
    /// Errors: none; every packet that is not sent is dropped with a reason, and counted.
    /// Cost:   per batch: one dynamic call a stage and a device call each way; per packet: no lock,
    ///         no allocation, no clock, and no syscall but those of devices that need one for each
    ///         (`tap`).
    pub fn turn(&mut self, now: Instant) -> Turned {
        self.begin(now);
        let (mut received, mut goes_on) = (false, false);
        let is_fixed = self.order.is_fixed();
        for place in 0..self.napis.len() {
            let i = if is_fixed { place } else { self.order.queue(place) };
            let polled = self.poll(i, now);
            received |= polled.packets > 0;
            goes_on |= polled.goes_on;
            if !is_fixed {
                self.order.count(place, polled.packets);
            }
        }
        if !self.stage_alarms.is_empty() {
            self.serve_alarms(now, received);
        }
        let mut sent = false;
        for napi in &mut self.napis {
            sent |= napi.xmit(now, &mut self.mems[napi.mem]);
        }
        if let Some(clearing) = &mut self.clearing {
            clearing.turned(&self.napis, now);
        }
        if self.has_qdisc {
            self.due = self.napis.iter_mut().filter_map(|napi| napi.due(now)).min();
        }
        self.decide(now, received, goes_on);
        self.settle(received, sent, now)
    }

    /// Receives packets from queue `i`, and moves them through the stages to their outputs.
    // Inlined as the functions that it calls for each queue: a turn with one packet takes 14
    // instructions less (`cargo xtask count`, alone, at 6782458c).
    #[inline(always)]
    fn poll(&mut self, i: usize, now: Instant) -> Polled {
        let budget = self.admits(i);
        if budget == 0 {
            self.napis[i].left_alone();
            return Polled { packets: 0, goes_on: false };
        }
        let mem = &mut self.mems[self.napis[i].mem];
        let packets = self.napis[i].rx(&mut self.batch, mem, budget);
        if self.batch.is_empty() {
            return Polled { packets, goes_on: false };
        }
        let goes_on = self.napis[i].goes_on();
        let peer = self.napis[i].peer.map(Napi::id);
        let (port, outbox) = (self.napis[i].port, &mut self.outbox);
        let mut turn = Turn::new(now, port, peer, outbox, mem);
        for stage in &mut self.stages {
            stage.run(&mut self.batch, &mut turn);
        }
        dispatch(&mut self.batch, &mut self.napis, now, mem);
        if !self.outbox.is_empty() {
            dispatch(&mut self.outbox, &mut self.napis, now, mem);
        }
        Polled { packets, goes_on }
    }

    /// Begins a turn: executes orders, if there are new ones.
    fn begin(&mut self, now: Instant) {
        let word = self.slot.begin();
        if word.has_orders_since(self.executed) {
            self.execute(word, now);
        }
        if self.is_armed {
            self.woken_outside();
        }
    }

    /// Returns the number of packets that may be read from queue `i` now.
    ///
    /// Returns 0 if the other end of the queue's wire has no room: then the packets stay in the
    /// device. Its ring is the cheapest place to lose packets, because no work was spent on them.
    #[inline(always)]
    pub(crate) fn admits(&self, i: usize) -> usize {
        let napi = &self.napis[i];
        if !napi.reads() || (self.slot.phase() != Phase::Run && napi.external()) {
            return 0;
        }
        let room = napi.peer.map_or(0, |peer| self.napis[peer].room());
        if napi.fan.is_empty() { room.min(self.budget) } else { self.admits_to_division(i, room) }
    }

    /// Returns the number of packets that may be read from a device that is divided among several
    /// outputs; 0 in a pause.
    #[inline(never)]
    fn admits_to_division(&self, i: usize, room: usize) -> usize {
        if self.is_paused(i) {
            return 0;
        }
        let rooms = self.napis[i].fan.iter().map(|output| self.napis[*output].room());
        rooms.fold(room, usize::min).min(self.budget)
    }

    /// Returns true if queue `i` is not read so that flows can move to another output. A worker
    /// that drains reads on.
    fn is_paused(&self, i: usize) -> bool {
        let is_paused = |clearing: &Clearing| clearing.is_paused(i);
        self.clearing.as_ref().is_some_and(is_paused) && self.slot.phase() == Phase::Run
    }

    /// Returns when to turn next, and publishes the devices' figures from time to time.
    fn settle(&mut self, received: bool, sent: bool, now: Instant) -> Turned {
        self.turns = self.turns.wrapping_add(1);
        let moved = received || sent;
        // In some modes the worker also sleeps after a turn in which packets moved. It makes few
        // turns then, so the time decides when to publish.
        let sleeps = self.rest != Rest::Look;
        let is_due = sleeps && self.ask_at.is_none_or(|at| now >= at);
        // One test in most turns: the second number is a multiple of the first.
        let serves = self.turns.is_multiple_of(UNPOLLED_TURNS);
        let checks = !moved || is_due || (serves && self.turns.is_multiple_of(HEALTH_TURNS));
        if checks || sleeps || serves {
            self.serve_unpolled(now);
        }
        let mut turned = match self.rest {
            Rest::Look => Turned::Again,
            Rest::Hold { until, .. } => Turned::Until(until),
            // Packets that were sent have freed space for which another queue may wait.
            Rest::Device if sent && !received => Turned::Again,
            Rest::Device => Turned::Idle,
        };
        self.nothing_waits = self.finds_nothing(moved);
        if checks {
            turned = self.check(turned, now);
        }
        self.slot.end(self.nothing_waits);
        if self.nothing_waits && turned == Turned::Again {
            // This worker never sleeps, so `park` does not report that it is at rest.
            self.slot.wake_waiters();
        }
        turned
    }

    /// Returns true if no packet moved in this turn and none waits in the worker, in a wrapper or,
    /// once the worker ends, in a device that still has to send it.
    fn finds_nothing(&mut self, moved: bool) -> bool {
        // While packets move, only a worker that ends asks what waits.
        let ends = self.slot.phase() != Phase::Run;
        if moved && !ends {
            return false;
        }
        let mut nothing_waits = self.napis.iter().all(|napi| napi.waiting() == 0);
        if nothing_waits && ends {
            let (napis, mems) = (&mut self.napis, &mut self.mems);
            let sending = |any, napi: &mut Napi| napi.sending(&mut mems[napi.mem]) | any;
            self.sending = napis.iter_mut().fold(false, sending);
            nothing_waits = !self.sending;
        }
        nothing_waits && !moved && !self.napis.iter().any(Napi::withholds_inside)
    }

    /// Publishes changes of the devices' health, and their figures if they are due; returns when to
    /// turn next, which is never if every source has ended.
    fn check(&mut self, turned: Turned, now: Instant) -> Turned {
        let mut turned = turned;
        let mut read = self.napis.iter().filter(|n| n.reads());
        if self.nothing_waits && read.all(Napi::ended) {
            (turned, self.rest) = (Turned::Ended, Rest::Device);
        }
        let mut external = self.napis.iter().filter(|n| n.reads() && n.external());
        // Do not ask queues of rings between workers: a worker between rings ends with the
        // other workers of the engine.
        let ended = self.nothing_waits && external.all(Napi::ended);
        if !self.publish_health() {
            turned = Turned::Again;
        }
        let news = ended != self.slot.ended();
        if news || self.ask_at.is_none_or(|at| now >= at) {
            self.publish();
            self.ask_at = now.checked_add(QUERY_INTERVAL);
        }
        self.slot.publish(ended);
        turned
    }

    /// Serves the queues that are not polled: takes back what their devices have sent, makes the
    /// next turns call those whose wrappers withhold packets, and limits the sleep, because no
    /// event says when such packets leave. A queue is not polled if packets are not read from it,
    /// if they have no room, or if the worker drains. No event says when a pause ends, either.
    ///
    /// A hold is limited by what is withheld alone: after it, the devices are looked at anyway.
    fn serve_unpolled(&mut self, now: Instant) {
        let (mut due, mut withheld_due) = (None::<Instant>, None);
        for i in 0..self.napis.len() {
            let is_polled = self.admits(i) > 0;
            let is_paused = self.is_paused(i);
            let napi = &mut self.napis[i];
            let withholds = napi.note_withheld(is_polled) || is_paused;
            if withholds {
                withheld_due = now.checked_add(WITHHELD_INTERVAL);
            }
            let sends = napi.reap_unpolled(is_polled, now, &mut self.mems[napi.mem]);
            due = due.into_iter().chain(sends).min();
        }
        self.unpolled_due = due.into_iter().chain(withheld_due).min();
        if let (Some(due), Rest::Hold { until, .. }) = (withheld_due, &mut self.rest) {
            *until = due.min(*until);
        }
    }

    /// Returns a handle with which any thread orders changes of this worker; a turn executes them.
    /// The worker has the number that it has in the engine.
    #[must_use]
    pub fn control(&self) -> Control {
        Control { first: self.number, slots: [self.slot.clone()].into() }
    }

    /// Publishes the devices' counts to [`Stats`](crate::Stats) now; turns publish them only from
    /// time to time.
    #[cold]
    pub fn publish(&mut self) {
        self.ask_at = None;
        self.slot.waits().runs();
        self.mems.iter().for_each(Local::see_cpu);
        if self.napis.iter_mut().fold(true, |all, napi| napi.publish() & all) {
            self.published = self.passed();
        }
    }

    /// Returns the number of packets that all queues have received and sent.
    pub(crate) fn passed(&self) -> u64 {
        let counts = self.napis.iter().map(Napi::counts);
        counts.map(|counts| counts.rx_packets + counts.tx_packets).sum()
    }

    /// Publishes each change of a device's health immediately, and wakes the threads that wait for
    /// one. Returns false if a reader's lock delays one; then a later turn publishes it.
    fn publish_health(&mut self) -> bool {
        let (mut changed, mut delayed) = (false, false);
        for published in self.napis.iter_mut().filter_map(Napi::publish_change) {
            changed |= published;
            delayed |= !published;
        }
        if changed {
            self.tell_health();
        }
        !delayed
    }

    /// Wakes the threads that wait for a change of a device's health.
    #[cold]
    fn tell_health(&self) {
        if self.napis.iter().any(Napi::failed) {
            self.slot.notice().tell_port_failed();
        } else {
            self.slot.notice().tell();
        }
    }

    /// Turns and parks until an order stops the worker. The engine's threads call it.
    ///
    /// # Errors
    /// Whatever epoll says.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let term = Term::start();
        loop {
            let turned = self.turn(Instant::now());
            // Check after the turn: `arm` does not report a halt that came before the turn, and the
            // worker would sleep on.
            if self.slot.phase() == Phase::Halt {
                break;
            }
            self.park(turned, self.sending.then_some(SENT_INTERVAL))?;
        }
        self.slot.waits().ran(&term);
        Ok(())
    }

    /// Stops receiving and sends waiting packets, for up to `timeout`; returns true if all were
    /// sent.
    ///
    /// A program's own loop ends with this call; dropping the worker drops the remaining packets as
    /// `stopped`. Drain workers with rings between them at the same time, each on its thread,
    /// because the writer of a ring may wait for room. The reader's call returns true once the ring
    /// is empty, although its writer may still have packets: repeat the reader's call until the
    /// writer's call has returned, and once more after that.
    ///
    /// # Errors
    /// Whatever epoll says.
    pub fn drain(&mut self, timeout: Duration) -> io::Result<bool> {
        self.slot.set_phase(Phase::Drain);
        let until = Instant::now().checked_add(timeout);
        loop {
            let now = Instant::now();
            let turned = self.turn(now);
            if self.nothing_waits {
                return Ok(true);
            }
            let left = until.map_or(timeout, |until| until.saturating_duration_since(now));
            if left.is_zero() {
                return Ok(false);
            }
            self.park(turned, Some(if self.sending { left.min(SENT_INTERVAL) } else { left }))?;
        }
    }
}

/// Reports that a worker is over, also if a driver panics at its close.
struct Over(Arc<WorkerSlot>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.publish(true);
        self.0.set_over();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _over = Over(self.slot.clone());
        // Packets are left here only if a stage or driver panicked.
        self.batch.discard(DropReason::STOPPED);
        self.outbox.discard(DropReason::STOPPED);
        let now = Instant::now();
        let until = now.checked_add(CLOSE_MAX).unwrap_or(now);
        // A worker that never ran does not close its devices: a close is the end of a run, which
        // replaces the former content of a capture's file. Dropping the queues frees the devices.
        let until = self.slot.has_turned().then_some(until);
        for napi in &mut self.napis {
            napi.purge(&mut self.mems[napi.mem]);
        }
        // The rings first, because the close of a device may take time, and workers wait for room
        // in rings to this one.
        let mut panicked = None;
        for is_ring in [true, false] {
            for napi in self.napis.iter_mut().filter(|napi| napi.is_ring() == is_ring) {
                // The other devices are closed also if one panics.
                let closed = catch_unwind(AssertUnwindSafe(|| napi.conclude(until)));
                panicked = panicked.or(closed.err());
            }
            // Those that wait for this do not wait for the devices.
            if let Some(clearing) = self.clearing.as_ref().filter(|_| is_ring) {
                clearing.ended(&self.napis);
            }
        }
        if let Some(panic) = panicked.filter(|_| !panicking()) {
            resume_unwind(panic);
        }
    }
}

impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("queues", &self.napis.len()).finish_non_exhaustive()
    }
}

/// Moves each packet to the output that its verdict names, a run of equal verdicts at a time.
fn dispatch(batch: &mut Batch, napis: &mut [Napi], now: Instant, mem: &mut Local) {
    while let Some((verdict, n)) = batch.run() {
        match verdict.output().and_then(|output| napis.get_mut(output)) {
            Some(napi) => napi.enqueue(batch, n, now, mem),
            None => batch.discard_first(n, DropReason::NO_ROUTE, mem),
        }
    }
}
