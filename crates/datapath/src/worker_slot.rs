//! The state that a worker shares with other threads: its phase, its orders, and what it has done.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use linerate_port::moderation::HoldControl;
use linerate_port::wait::EventFd;
use linerate_port::{QueueStats, Result};

use crate::control::Order;
use crate::mailbox::{Mailbox, Word};
use crate::notice::Notice;
use crate::turns::Turns;
use crate::waits::Waits;

/// The phase in which a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Phase {
    /// The worker receives and sends.
    Run,
    /// The worker receives no more packets from outside, and sends waiting ones.
    Drain,
    /// The worker's thread returns.
    Halt,
}

impl Phase {
    /// Returns the phase that a mailbox's word contains.
    fn of(word: Word) -> Phase {
        match word.phase() {
            0 => Phase::Run,
            1 => Phase::Drain,
            _ => Phase::Halt,
        }
    }
}

/// The reason for which a worker does not accept an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many orders wait already.
    Full,
    /// The worker was dropped.
    Over,
}

/// A queue of a worker, as other threads see it.
#[derive(Debug)]
pub(crate) struct QueueOf {
    /// The name of its port.
    pub port: String,
    /// Its number in the port.
    pub number: usize,
    pub stats: Arc<QueueStats>,
    /// The control of its device's hold, if there is one.
    pub hold: Option<Weak<dyn HoldControl>>,
}

/// State that a worker shares with the rest of the program: counters, orders, and a bell. No other
/// worker writes its cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct WorkerSlot {
    /// The mailbox with the phase and the orders.
    mailbox: Mailbox<Order>,
    queues: Vec<QueueOf>,
    turns: Turns,
    /// True while the worker has no work left: its sources have ended and no packet waits. The
    /// worker still turns and executes orders, and may get work again from another worker.
    ended: AtomicBool,
    /// True once the worker was dropped: it never turns again, and executes no more orders.
    over: AtomicBool,
    waits: Arc<Waits>,
    bell: EventFd,
    notice: Arc<Notice>,
}

impl WorkerSlot {
    /// Creates the slot of a worker that has not ended. `notice` is the engine's.
    pub fn new(notice: &Arc<Notice>, queues: Vec<QueueOf>) -> Result<Arc<WorkerSlot>> {
        notice.unended();
        Ok(Arc::new(WorkerSlot {
            mailbox: Mailbox::new(),
            queues,
            turns: Turns::new(),
            ended: AtomicBool::new(false),
            over: AtomicBool::new(false),
            waits: Arc::default(),
            bell: EventFd::new()?,
            notice: notice.clone(),
        }))
    }

    pub fn phase(&self) -> Phase {
        Phase::of(self.mailbox.word())
    }

    /// Changes the phase, and wakes the worker.
    pub fn set_phase(&self, phase: Phase) {
        self.mailbox.set_phase(phase as u32);
        self.bell.signal();
    }

    /// Adds an order, and wakes the worker.
    ///
    /// # Errors
    /// The worker was dropped, or too many orders wait already.
    pub fn order(&self, order: Order) -> std::result::Result<(), Refusal> {
        if self.is_over() {
            return Err(Refusal::Over);
        }
        let posted = self.mailbox.post(order).or_else(|order| {
            // A worker that does not run takes no withdrawn orders out of the mailbox.
            self.mailbox.retain(Order::is_open);
            self.mailbox.post(order)
        });
        if posted.is_err() {
            return Err(Refusal::Full);
        }
        if self.is_over() {
            // The worker was dropped meanwhile, and may have refused its orders before this one
            // came.
            self.refuse_orders();
        }
        self.bell.signal();
        Ok(())
    }

    /// Answers all waiting orders with the error that the worker has ended.
    #[cold]
    fn refuse_orders(&self) {
        self.mailbox.retain(|order| {
            order.refuse();
            false
        });
    }

    /// Takes all orders; returns `None` if another thread is adding one. Only the worker calls it.
    pub fn take_orders(&self) -> Option<Vec<Order>> {
        self.mailbox.take()
    }

    /// Returns the present word of the mailbox.
    pub fn word(&self) -> Word {
        self.mailbox.word()
    }

    /// Returns the names of the ports of the worker's queues, without repetition.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let is_first = |i: &usize| *i == 0 || self.queues[i - 1].port != self.queues[*i].port;
        (0..self.queues.len()).filter(is_first).map(|i| &*self.queues[i].port)
    }

    /// Returns the numbers of a port's queues that this worker serves.
    pub fn numbers_of(&self, port: &str) -> impl Iterator<Item = usize> {
        self.queues.iter().filter(move |queue| queue.port == port).map(|queue| queue.number)
    }

    /// Returns the indices of a port's queues in the worker, or the index of one of them; they are
    /// consecutive.
    pub fn queues_of(&self, port: &str, number: Option<usize>) -> Range<usize> {
        let is_meant = |queue: &QueueOf| {
            queue.port == port && number.is_none_or(|number| number == queue.number)
        };
        let first = self.queues.iter().position(is_meant).unwrap_or_default();
        first..first + self.queues[first..].iter().take_while(|queue| is_meant(queue)).count()
    }

    /// Returns the number of packets received by these queues of the worker.
    pub fn packets(&self, queues: Range<usize>) -> u64 {
        self.queues[queues].iter().map(|queue| queue.stats.counts().rx_packets).sum()
    }

    /// Returns the controls of the holds of a port's devices; none once the port is closed.
    pub fn holds_of(&self, port: &str) -> impl Iterator<Item = Arc<dyn HoldControl>> {
        let queues = self.queues.iter().filter(move |queue| queue.port == port);
        queues.filter_map(|queue| queue.hold.as_ref()?.upgrade())
    }

    pub fn bell(&self) -> &EventFd {
        &self.bell
    }

    /// Returns the page on which the worker counts its waits.
    pub fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    /// Marks the beginning of a turn; returns the mailbox's word. Only the worker calls it.
    pub fn begin(&self) -> Word {
        let word = self.mailbox.word();
        self.turns.begin(word.bits());
        word
    }

    /// Marks the end of a turn; `quiet` is true if the turn moved no packet and left none waiting.
    pub fn end(&self, quiet: bool) {
        self.turns.end(quiet);
    }

    /// Returns true if orders arrived since the last turn began, or since the word `executed`, up
    /// to which orders were executed.
    pub fn changed(&self, executed: Word) -> bool {
        let word = self.mailbox.word();
        word.bits() != self.turns.seen() || word.has_orders_since(executed)
    }

    /// Returns a number that changes with every turn. Returns `None` if the worker is in a turn or
    /// has work, or if `draining` and it has not seen the order to drain. If `draining`, a worker
    /// that was dropped is at rest.
    pub fn quiet_turns(&self, draining: bool) -> Option<u64> {
        if draining && self.is_over() {
            // An odd number, which no worker at rest has.
            return Some(u64::MAX);
        }
        let turns = self.turns.at_rest();
        let seen = Word::from_bits(self.turns.seen());
        let knows = !draining || Phase::of(seen) != Phase::Run;
        turns.filter(|_| knows)
    }

    /// Publishes whether the worker's work is done; called by the worker only.
    pub fn publish(&self, ended: bool) {
        if self.ended.load(Ordering::Relaxed) == ended {
            return;
        }
        self.ended.store(ended, Ordering::Release);
        if ended { self.notice.ended() } else { self.notice.unended() }
    }

    /// Wakes the threads that wait for the end, because the worker is about to sleep, for a hold or
    /// until there is work. Only the worker calls it.
    ///
    /// Every worker calls this, so the last one wakes the threads. A working engine takes no lock
    /// here, because one of its sources has not ended and no worker drains.
    pub fn wake_waiters(&self) {
        let may_be_last = self.phase() != Phase::Run || self.notice.all_ended();
        if may_be_last && self.turns.was_quiet() {
            self.notice.tell();
        }
    }

    /// Returns the notice through which the engine's workers report.
    pub fn notice(&self) -> &Arc<Notice> {
        &self.notice
    }

    /// Returns true if every source of the worker has ended and no packet waits to be sent.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Records that the worker was dropped, after a halt or because it failed, and refuses the
    /// orders that it has not executed; only the thread of the worker calls it.
    pub fn set_over(&self) {
        // Store first: the lock of the mailbox then lets a thread that adds an order later see it.
        self.over.store(true, Ordering::Release);
        self.refuse_orders();
    }

    /// Returns true if a turn of the worker has begun.
    pub fn has_turned(&self) -> bool {
        self.turns.have_begun()
    }

    /// Returns true once the worker was dropped.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}
