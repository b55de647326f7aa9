//! One core's work. [`Worker::turn`] is the walk of a packet; [`Worker::park`] is the only sleep.
//!
//! ```text
//!  device ring ─rx─► batch ─stages─► verdicts ─dispatch─► fifo of the output ─xmit─► device ring
//! ```
//!
//! Owner: the thread that has the Worker, one of the engine's or a program's own. Nothing on the
//! walk locks, allocates, logs or reads a clock; one flush in 256 is timed.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_port::wait::{Epoll, Event, EventFlags, NO_EVENT, poll_readable};
use linerate_port::{Want, thread};
use linerate_skb::{Batch, DropReason, Local};

use crate::hold_off::{DEPTH, Hold, HoldOff, LOOK_FOR_ROOM};
use crate::napi::Napi;
use crate::stage::{Stage, Turn};
use crate::stats::{Phase, WorkerSlot};
use crate::waits::Term;

/// Time between two questions that cost a device a syscall.
const ASK: Duration = Duration::from_millis(100);
/// Turns between two looks at the devices' health, under load.
const LOOK_TURNS: u32 = 4096;
/// Time between two looks at whether a device has done what it was given, before it is closed.
const LOOK: Duration = Duration::from_millis(1);
/// Longest delay with which the kernel may wake a thread of the engine's own.
const SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
/// The bell's tag; queues have their index.
const BELL: u64 = u64::MAX;

/// The result of a turn: when the next one is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// There was work, there may be more: turn again.
    Again,
    /// There was none: sleep until a device or a peer says otherwise.
    Idle,
    /// There was none, and there will be none: every queue that is read has ended, and everything
    /// has left.
    Ended,
}

/// The queues, stages and packet memory of one core.
pub struct Worker {
    pub(crate) napis: Vec<Napi>,
    pub(crate) stages: Vec<Box<dyn Stage>>,
    mem: Local,
    batch: Batch,
    outbox: Batch,
    budget: usize,
    hold_off: HoldOff,
    epoll: Epoll,
    slot: Arc<WorkerSlot>,
    turns: u32,
    ask_at: Option<Instant>,
    /// A device still has to do what it was given, and nothing more will be.
    sending: bool,
}

impl Worker {
    pub(crate) fn new(
        napis: Vec<Napi>,
        stages: Vec<Box<dyn Stage>>,
        mem: Local,
        budget: usize,
        hold_off: HoldOff,
        slot: Arc<WorkerSlot>,
    ) -> linerate_port::Result<Worker> {
        let epoll = Epoll::new()?;
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
            napis,
            stages,
            mem,
            batch: Batch::with_capacity(budget),
            outbox: Batch::with_capacity(budget),
            budget,
            hold_off,
            epoll,
            slot,
            turns: 0,
            ask_at: None,
            sending: false,
        })
    }

    /// Moves every packet that is there one step on; never waits.
    ///
    /// Shape:  up to `budget` packets a queue, from its device through the stages to the fifo of
    ///         their output; then each fifo to its device, with one doorbell.
    /// Errors: none; every packet that is not sent is dropped with a reason, and counted.
    /// Cost:   per batch: one dynamic call a stage and a device call each way; per packet: no lock,
    ///         no allocation, no syscall, no clock.
    pub fn turn(&mut self, now: Instant) -> Turned {
        self.slot.begin();
        self.hold_off.begin();
        let mut moved = false;
        for i in 0..self.napis.len() {
            let budget = self.admits(i);
            if budget == 0 {
                self.hold_off.left_alone(self.napis[i].gathers && self.napis[i].reads());
                continue;
            }
            let packets = self.napis[i].rx(&mut self.batch, &mut self.mem, budget);
            self.hold_off.received(packets, budget, self.napis[i].gathers);
            moved |= packets > 0;
            if self.batch.is_empty() {
                continue;
            }
            let peer = self.napis[i].peer.map(Napi::id);
            let mut turn = Turn::new(now, self.napis[i].port, peer, &mut self.outbox);
            for stage in &mut self.stages {
                stage.run(&mut self.batch, &mut turn);
            }
            dispatch(&mut self.batch, &mut self.napis, &mut self.mem);
            dispatch(&mut self.outbox, &mut self.napis, &mut self.mem);
        }
        for napi in &mut self.napis {
            moved |= napi.xmit(&mut self.mem);
        }
        self.hold_off.end(now);
        self.settle(moved, now)
    }

    /// Packets that may be read from queue `i` now.
    ///
    /// None if its wire's other end has no room: then they are left to its device, whose ring is
    /// the cheapest place to lose them, before any work was spent on them.
    fn admits(&self, i: usize) -> usize {
        let napi = &self.napis[i];
        if !napi.reads() || (self.slot.phase() != Phase::Run && napi.external()) {
            return 0;
        }
        let room = napi.peer.map_or(0, |peer| self.napis[peer].room());
        room.min(self.budget)
    }

    /// Says whether to go on, and now and then publishes what the devices say.
    fn settle(&mut self, moved: bool, now: Instant) -> Turned {
        self.turns = self.turns.wrapping_add(1);
        let mut turned = if moved { Turned::Again } else { Turned::Idle };
        let mut nothing_waits = !moved && self.napis.iter().all(|napi| napi.backlog() == 0);
        if nothing_waits && self.slot.phase() != Phase::Run {
            let (napis, mem) = (&mut self.napis, &mut self.mem);
            self.sending = napis.iter_mut().fold(false, |any, napi| napi.sending(mem) | any);
            nothing_waits = !self.sending;
        }
        if !moved || self.turns.is_multiple_of(LOOK_TURNS) {
            let mut read = self.napis.iter().filter(|n| n.reads());
            if nothing_waits && read.all(Napi::ended) {
                turned = Turned::Ended;
            }
            let mut external = self.napis.iter().filter(|n| n.reads() && n.external());
            // A worker between rings has no end of its own: the engine's ends with the others.
            let ended = nothing_waits && external.all(Napi::ended);
            // Every one is asked, so that none has old news left.
            let changed = self.napis.iter_mut().fold(false, |any, n| n.health_changed() | any);
            if changed {
                self.publish_health();
            }
            let news = ended != self.slot.ended();
            if news || self.ask_at.is_none_or(|at| now >= at) {
                self.publish();
                self.ask_at = now.checked_add(ASK);
            }
            self.slot.publish(ended);
        }
        self.slot.end(nothing_waits);
        turned
    }

    /// Packets that the shortest ring holds in which they gather.
    fn depth(&self) -> u32 {
        let gather = self.napis.iter().filter(|napi| napi.gathers && napi.reads());
        gather.map(Napi::rx_ring_len).min().unwrap_or(DEPTH)
    }

    /// Makes the worker's descriptor readable when there is work; false if there is already.
    ///
    /// Cost: a syscall for each queue whose wish changed.
    ///
    /// # Errors
    /// Whatever epoll_ctl(2) says.
    pub fn arm(&mut self) -> io::Result<bool> {
        // A change of phase is stored before the bell is rung. So one whose ring is drained here is
        // seen below, and one whose ring is not makes the descriptor readable.
        self.slot.bell().drain();
        if self.slot.changed() {
            return Ok(false);
        }
        for i in 0..self.napis.len() {
            let frames = self.admits(i) > 0;
            let room = self.napis[i].backlog() > 0;
            let want = match (frames, room) {
                (true, true) => Some(Want::Both),
                (true, false) => Some(Want::Frames),
                (false, true) => Some(Want::Room),
                (false, false) => None,
            };
            let napi = &mut self.napis[i];
            if napi.watch_changed(want.is_some()) {
                let watch = if want.is_some() { EventFlags::IN } else { EventFlags::empty() };
                self.epoll.modify(napi.as_fd(), i as u64, watch)?;
            }
            if !napi.arm(want) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sleeps until there is work, or for `timeout`; returns at once after [`Turned::Again`].
    ///
    /// # Errors
    /// Whatever epoll says.
    pub fn park(&mut self, turned: Turned, timeout: Option<Duration>) -> io::Result<()> {
        if turned != Turned::Ended && self.hold_off(timeout)? {
            return Ok(());
        }
        if turned == Turned::Again || !self.arm()? {
            return Ok(());
        }
        self.slot.rests();
        let mut events: [Event; 16] = [NO_EVENT; 16];
        let since = Instant::now();
        let n = self.epoll.wait(&mut events, timeout)?;
        self.slot.waits().slept(since.elapsed());
        for event in &events[..n] {
            let tag = { event.data }.u64();
            if let Some(napi) = self.napis.get(tag as usize) {
                napi.woken();
            }
        }
        Ok(())
    }

    /// Leaves the devices alone for a moment, so that packets gather, if that is worth it; whether it
    /// did.
    ///
    /// Nothing is armed meanwhile: no sender pays for waking this worker. What is told by the bell
    /// ends it, unless it is so short that it is spent on the CPU. Packets that wait for room wait until
    /// its end where only a look tells of room, and prevent it where the device does.
    fn hold_off(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let Some(hold) = self.hold_off.due() else { return Ok(false) };
        if self.napis.iter().any(Napi::awaits_tx_space) {
            return Ok(false);
        }
        let mut most = timeout.unwrap_or(Duration::MAX);
        if self.napis.iter().any(|napi| napi.backlog() > 0) {
            most = most.min(LOOK_FOR_ROOM);
        }
        let time = match hold {
            Hold::Sleep(time) => time.min(most),
            Hold::Spin(time) => {
                spin(time.min(most));
                return Ok(true);
            }
        };
        let since = Instant::now();
        poll_readable(&[self.slot.bell().as_fd()], Some(time))?;
        self.slot.waits().held_off(since.elapsed());
        Ok(true)
    }

    /// Tells [`Stats`](crate::Stats) at once what the devices have counted, which a turn does now and then.
    #[cold]
    pub fn publish(&mut self) {
        self.ask_at = None;
        self.napis.iter_mut().for_each(Napi::publish);
        // Devices that have come back may have other rings.
        self.hold_off.set_depth(self.depth());
    }

    /// Tells at once that a device is another way than before, and who waits if one has failed.
    #[cold]
    fn publish_health(&mut self) {
        self.napis.iter_mut().for_each(Napi::conclude);
        self.hold_off.set_depth(self.depth());
        if self.napis.iter().any(Napi::failed) {
            self.slot.notice().tell_port_failed();
        }
    }

    /// Turns and parks until it is told to halt. The engine's threads run this.
    ///
    /// # Errors
    /// Whatever epoll says.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let term = Term::start();
        // A hold-off would last twice as long otherwise. Where it may not be said, it does.
        let _ = thread::set_timer_slack_ns(SLACK_NS);
        while self.slot.phase() != Phase::Halt {
            let turned = self.turn(Instant::now());
            self.park(turned, self.sending.then_some(LOOK))?;
        }
        self.slot.waits().ran(&term);
        Ok(())
    }

    /// Takes nothing in any more and sends what is there, for up to `timeout`; true if all has left.
    ///
    /// It is how a program's own loop ends; dropping the worker drops what is left as `stopped`. Of
    /// several workers with rings between them, drain all at once, each on its thread: a ring's
    /// reader alone ends too soon, its writer alone may wait for room.
    ///
    /// # Errors
    /// Whatever epoll says.
    pub fn drain(&mut self, timeout: Duration) -> io::Result<bool> {
        self.slot.set_phase(Phase::Drain);
        let until = Instant::now().checked_add(timeout);
        loop {
            let now = Instant::now();
            let turned = self.turn(now);
            let all_left = !self.sending && self.napis.iter().all(|n| n.backlog() == 0);
            if turned != Turned::Again && all_left {
                return Ok(true);
            }
            let left = until.map_or(timeout, |until| until.saturating_duration_since(now));
            if left.is_zero() {
                return Ok(false);
            }
            self.park(turned, Some(if self.sending { left.min(LOOK) } else { left }))?;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // In hand only if a stage or driver panicked.
        self.batch.discard(DropReason::STOPPED);
        self.outbox.discard(DropReason::STOPPED);
        for napi in &mut self.napis {
            napi.purge(&mut self.mem);
            napi.conclude();
        }
        self.slot.publish(true);
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

/// Waits on the CPU.
fn spin(time: Duration) {
    let since = Instant::now();
    while since.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Moves each packet to the fifo that its verdict names, a run of equal verdicts at a time.
fn dispatch(batch: &mut Batch, napis: &mut [Napi], mem: &mut Local) {
    while let Some((verdict, n)) = batch.run() {
        match verdict.output().and_then(|output| napis.get_mut(output)) {
            Some(napi) => napi.enqueue(batch, n, mem),
            None => batch.discard_first(n, DropReason::NO_ROUTE, mem),
        }
    }
}
