//! Control of running workers from any thread: orders that they execute between two turns.
//!
//! A worker never waits for the thread that orders. Its answer is stored where the order came from, and the thread
//! that waits for it is unparked, which takes no lock.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Thread, current, park_timeout};
use std::time::{Duration, Instant};

use linerate_port::moderation::DeviceHold;
use linerate_port::{Code, Error, Moderation, Result};

use crate::mailbox::ORDERS_MAX;
use crate::tx_batch::TxBatch;
use crate::worker_slot::{Refusal, WorkerSlot};

/// Interval at which a waiting thread checks for the answer if the worker does not wake it.
const ANSWER_INTERVAL: Duration = Duration::from_millis(10);

/// An order that neither a worker nor its giver has claimed.
const OPEN: u8 = 0;
/// An order that its worker executes, or has executed.
const TAKEN: u8 = 1;
/// An order that no worker will execute.
const WITHDRAWN: u8 = 2;

/// A handle to workers that run. It is cheap to clone, and any thread may use it.
#[derive(Debug, Clone)]
pub struct Control {
    /// The number of the first of these workers in the engine; the others follow it.
    pub(crate) first: usize,
    pub(crate) slots: Arc<[Arc<WorkerSlot>]>,
}

/// A setting of a port's queues that can be changed while packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// The moderation: when queues are polled again.
    Moderation(Moderation),
    /// The most packets for one doorbell.
    TxBatch(TxBatch),
}

/// An order to one worker.
#[derive(Debug)]
pub(crate) enum Order {
    /// A new setting for some of the worker's queues, which are given by their index in the worker.
    Set { queues: Range<usize>, setting: Setting, answer: Arc<Answer<Applied>> },
    /// New CPUs for the thread that turns the worker.
    Cpus { cpus: Vec<usize>, answer: Arc<Answer<Pinned>> },
}

/// The slot in which a worker stores its answer to an order.
#[derive(Debug)]
pub(crate) struct Answer<A> {
    given: OnceLock<Result<A>>,
    /// [`OPEN`], until the worker executes the order or the order is withdrawn: whichever comes first.
    claimed: AtomicU8,
    pub asked_at: Instant,
    /// Packets that the queues had received when the order was given.
    pub packets: u64,
    waiter: Thread,
}

/// The result of an order that changes a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// The setting that was requested.
    pub asked: Setting,
    /// The setting that the queues use now.
    pub applied: Setting,
    /// The reason why the setting has no effect, or less than requested; `None` if it has its
    /// effect.
    pub note: Option<String>,
    /// Packets that the queues received between the order and the change.
    pub packets: u64,
    /// Time between the order and the change.
    pub took: Duration,
}

/// The result of an order to run on other CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pinned {
    /// The CPUs on which the worker's thread may run now: the requested CPUs that belong to its
    /// cpuset.
    pub cpus: Vec<usize>,
    /// The CPUs on which the thread could run before; an order for these CPUs undoes the change.
    pub before: Vec<usize>,
    /// Time between the order and the change.
    pub took: Duration,
}

/// An order that may not have been executed yet.
#[derive(Debug)]
#[must_use = "the answer says what was applied"]
pub struct PendingOrder<A = Applied> {
    /// The answer of each worker that received the order.
    answers: Vec<Arc<Answer<A>>>,
    /// Combines the answers of two workers into one.
    join: fn(A, A) -> A,
}

impl Control {
    /// Orders another moderation for all queues of a port, or for its queue number `queue`.
    ///
    /// The workers of the queues execute the order at their next turns; it wakes workers that sleep. A number that its
    /// knob does not allow becomes the nearest one: [`Applied::applied`] says so.
    ///
    /// # Errors
    /// `E-TOPOLOGY` if there is no port of this name or it has no such queue, `E-BUSY` if a worker has not executed
    /// 16 orders before this one, or has ended. If another worker has executed the order meanwhile, the answer is
    /// `E-BUSY` instead.
    pub fn set_moderation(
        &self,
        port: &str,
        queue: Option<usize>,
        mode: Moderation,
    ) -> Result<PendingOrder> {
        self.set(port, queue, Setting::Moderation(mode), "moderation")
    }

    /// Orders another number of packets for one doorbell of a port's device.
    ///
    /// It is applied between two turns, when the queue is at rest: packets that wait keep their order.
    ///
    /// # Errors
    /// As [`Control::set_moderation`].
    pub fn set_tx_batch(
        &self,
        port: &str,
        queue: Option<usize>,
        cap: TxBatch,
    ) -> Result<PendingOrder> {
        self.set(port, queue, Setting::TxBatch(cap), "tx_batch")
    }

    /// Returns the present hold of a port's device; `None` if it has none that can be changed.
    #[must_use]
    pub fn hold(&self, port: &str) -> Option<DeviceHold> {
        self.slots.iter().flat_map(|slot| slot.holds_of(port)).find_map(|device| device.hold())
    }

    /// Changes the hold of a port's device, for all its queues and until the port is closed: for how long, and for how
    /// many packets, the device keeps its irq back.
    ///
    /// The calling thread changes the device. No worker is woken, and packets that wait come by the new hold.
    ///
    /// # Errors
    /// `E-TOPOLOGY` if there is no port of this name, `E-UNSUPPORTED` if its device has no such hold, `E-PERM` if the
    /// process may not change it. The error says if some of several queues have the new hold already.
    pub fn set_hold(&self, port: &str, hold: DeviceHold) -> Result<()> {
        let what = || format!("cannot set the hold of '{port}'");
        self.numbers(port, what)?;
        let mut devices = self.slots.iter().flat_map(|slot| slot.holds_of(port)).peekable();
        if devices.peek().is_none() {
            let why = "its device has no hold that can be changed";
            return Err(Error::new(Code::Unsupported, what(), why)
                .fix("an xdp port has one; moderation fixed holds any device's packets"));
        }
        for (set, device) in devices.enumerate() {
            device.set_hold(hold).map_err(|mut e| {
                if set > 0 {
                    e.what = format!("the hold of '{port}' was set on some queues only");
                }
                e
            })?;
        }
        Ok(())
    }

    /// Returns the numbers of a port's queues, in order. Handles to one worker may lack some.
    fn numbers(&self, port: &str, what: impl Fn() -> String) -> Result<Vec<usize>> {
        let mut numbers: Vec<usize> =
            self.slots.iter().flat_map(|slot| slot.numbers_of(port)).collect();
        if !numbers.is_empty() {
            numbers.sort_unstable();
            return Ok(numbers);
        }
        let mut names: Vec<&str> = self.slots.iter().flat_map(|slot| slot.names()).collect();
        names.sort_unstable();
        names.dedup();
        let fix = format!("ports: {}", names.join(" "));
        Err(Error::new(Code::Topology, what(), "there is no such port").fix(fix))
    }

    /// Orders the setting `name` for all queues of a port or for one of them.
    fn set(
        &self,
        port: &str,
        queue: Option<usize>,
        setting: Setting,
        name: &str,
    ) -> Result<PendingOrder> {
        let what = || format!("cannot set the {name} of '{port}'");
        let numbers = self.numbers(port, what)?;
        if let Some(queue) = queue.filter(|queue| !numbers.contains(queue)) {
            let fix = match (numbers.len(), numbers.as_slice()) {
                (_, [0]) => format!("{port} has 1 queue, number 0"),
                (_, [one]) => format!("{port} has 1 queue here, number {one}"),
                (n, [.., last]) if last + 1 == n => {
                    format!("{port} has {n} queues, numbers 0 to {last}")
                }
                (n, all) => format!("{port} has {n} queues here, numbers {}", listed(all)),
            };
            let why = format!("it has no queue {queue}");
            return Err(Error::new(Code::Topology, what(), why).fix(fix));
        }
        let mut concerned = self.slots.iter().filter(|s| !s.queues_of(port, queue).is_empty());
        if concerned.any(|slot| slot.is_over()) {
            let fix = queue.is_none().then(|| self.running_queue(port, &numbers)).flatten();
            return Err(match fix {
                Some(fix) => ended(what()).fix(fix),
                None => ended(what()),
            });
        }
        let mut pending = PendingOrder { answers: Vec::new(), join: Applied::join };
        for slot in &*self.slots {
            let queues = slot.queues_of(port, queue);
            if queues.is_empty() {
                continue;
            }
            let answer = Answer::new(slot.packets(queues.clone()));
            if let Err(why) = slot.order(Order::Set { queues, setting, answer: answer.clone() }) {
                let in_part = format!("the {name} of '{port}' was set on some workers only");
                return pending.refused(refused(why, what()), refused(why, in_part));
            }
            pending.answers.push(answer);
        }
        Ok(pending)
    }

    /// Returns the fix for a setting of all queues of a port, of which a worker has ended: one queue whose worker runs.
    fn running_queue(&self, port: &str, numbers: &[usize]) -> Option<String> {
        let runs = |queue: &&usize| {
            let worker = self.worker_of(port, **queue);
            worker.is_some_and(|worker| !self.has_ended(worker))
        };
        let queue = numbers.iter().find(runs)?;
        Some(format!(
            "name a queue whose worker runs, as {port}/{queue}, or start the engine again"
        ))
    }

    /// Returns the slot of worker number `worker`, if the handle has that worker.
    fn slot(&self, worker: usize) -> Option<&Arc<WorkerSlot>> {
        self.slots.get(worker.checked_sub(self.first)?)
    }

    /// Returns true if worker number `worker` has ended, so that it executes no orders.
    #[must_use]
    pub fn has_ended(&self, worker: usize) -> bool {
        self.slot(worker).is_some_and(|slot| slot.is_over())
    }

    /// Returns the number of the worker that has queue number `queue` of a port: its index in
    /// [`Stats::workers`](crate::Stats::workers). Returns `None` if there is no such queue, or if its worker does not
    /// belong to the handle.
    #[must_use]
    pub fn worker_of(&self, port: &str, queue: usize) -> Option<usize> {
        let has = |slot: &Arc<WorkerSlot>| !slot.queues_of(port, Some(queue)).is_empty();
        self.slots.iter().position(has).map(|at| self.first + at)
    }

    /// Orders a worker to run on these CPUs only: one CPU pins the worker, several CPUs let it move among them.
    ///
    /// The thread that turns the worker is moved between two turns, so no packet is on its way through the
    /// stages. Its packet memory stays where it is. [`Pinned::before`] restores the previous CPUs.
    ///
    /// Errors: the answer is `E-CPU`, and nothing has changed, if it may use none of the CPUs.
    ///
    /// # Errors
    /// `E-TOPOLOGY` if the handle has no worker of this number, `E-BUSY` if the worker has not executed 16 orders before
    /// this one, or has ended.
    pub fn set_cpus(&self, worker: usize, cpus: &[usize]) -> Result<PendingOrder<Pinned>> {
        let what = || format!("cannot move worker {worker}");
        let slot = self.slot(worker).ok_or_else(|| {
            let (first, end) = (self.first, self.first + self.slots.len());
            Error::new(Code::Topology, what(), "there is no such worker")
                .fix(format!("workers: {first}..{end}"))
        })?;
        let (cpus, answer) = (cpus.to_vec(), Answer::new(0));
        let ordered = slot.order(Order::Cpus { cpus, answer: answer.clone() });
        ordered.map_err(|why| refused(why, what()))?;
        Ok(PendingOrder { answers: vec![answer], join: |one, _| one })
    }
}

/// Returns the numbers as text: `1, 3`.
fn listed(numbers: &[usize]) -> String {
    let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
    numbers.join(", ")
}

/// Headlines of errors: what became of an order.
const NOT_EXECUTED: &str = "the order was not executed";
const IN_PART: &str = "the order was executed in part";

/// Taken orders that are not executed yet; dropped after a panic, they are refused.
pub(crate) struct Unexecuted(pub std::vec::IntoIter<Order>);

impl Drop for Unexecuted {
    fn drop(&mut self) {
        self.0.by_ref().for_each(|order| order.refuse());
    }
}

/// Returns the error of an order that a worker does not accept.
fn refused(why: Refusal, what: String) -> Error {
    match why {
        Refusal::Full => is_full(what),
        Refusal::Over => ended(what),
    }
}

/// Returns the error of an order to a worker that has ended.
fn ended(what: String) -> Error {
    Error::new(Code::Busy, what, "its worker has ended")
        .fix("start the engine again; a worker that has ended executes no orders")
}

fn is_full(what: String) -> Error {
    let why = format!("its worker has {ORDERS_MAX} unfinished orders");
    Error::new(Code::Busy, what, why)
        .fix("wait for the answers; a worker that does not run executes no orders")
}

impl Applied {
    /// Combines the results from the queues of two workers.
    fn join(self, other: Applied) -> Applied {
        Applied {
            note: self.note.or(other.note),
            packets: self.packets + other.packets,
            took: self.took.max(other.took),
            ..other
        }
    }
}

impl Order {
    /// Returns true if the order was neither executed nor withdrawn.
    pub fn is_open(&self) -> bool {
        match self {
            Order::Set { answer, .. } => answer.is_open(),
            Order::Cpus { answer, .. } => answer.is_open(),
        }
    }

    /// Answers the order with the error that its worker has ended, unless the worker has executed it.
    pub fn refuse(&self) {
        match self {
            Order::Set { answer, .. } => answer.refuse(),
            Order::Cpus { answer, .. } => answer.refuse(),
        }
    }
}

impl<A> Answer<A> {
    fn new(packets: u64) -> Arc<Answer<A>> {
        let (given, asked_at) = (OnceLock::new(), Instant::now());
        let claimed = AtomicU8::new(OPEN);
        Arc::new(Answer { given, claimed, asked_at, packets, waiter: current() })
    }

    fn is_open(&self) -> bool {
        self.claimed.load(Ordering::Relaxed) == OPEN
    }

    /// Returns true if the order is to be executed: it was not withdrawn. Only the worker calls it.
    pub fn claim(&self) -> bool {
        self.end_as(TAKEN) == TAKEN
    }

    /// Returns true if the order is withdrawn, now or before.
    fn withdraw(&self) -> bool {
        self.end_as(WITHDRAWN) == WITHDRAWN
    }

    /// Answers an order that was not executed with the error that its worker has ended.
    fn refuse(&self) {
        if self.end_as(WITHDRAWN) == WITHDRAWN {
            self.give(Err(ended(NOT_EXECUTED.into())));
        }
    }

    /// Claims an open order as `state`; returns the state that it has then.
    fn end_as(&self, state: u8) -> u8 {
        // The answer itself is published by `given`.
        let relaxed = Ordering::Relaxed;
        self.claimed
            .compare_exchange(OPEN, state, relaxed, relaxed)
            .map_or_else(|had| had, |_| state)
    }

    /// Stores the answer to the order. Only the worker calls it, or the giver of an order that the worker did not
    /// accept.
    pub fn give(&self, result: Result<A>) {
        // Never refused: only one worker answers an order, and it answers once.
        let _ = self.given.set(result);
        self.waiter.unpark();
    }
}

impl<A: Clone> PendingOrder<A> {
    /// Returns the answer, if it has arrived.
    #[must_use]
    pub fn answer(&self) -> Option<Result<A>> {
        let all: Option<Vec<_>> = self.answers.iter().map(|a| a.given.get().cloned()).collect();
        let all = all?;
        let in_part = all.iter().any(Result::is_ok);
        let join = |one: Result<A>, other: Result<A>| Ok((self.join)(one?, other?));
        let joined = all.into_iter().reduce(join)?;
        Some(joined.map_err(|mut e| {
            if in_part && e.what == NOT_EXECUTED {
                e.what = IN_PART.into();
            }
            e
        }))
    }

    /// Withdraws the order because a further worker does not accept it. If a worker has executed it already, the order
    /// stays pending, with the answer `in_part` of the further worker.
    ///
    /// # Errors
    /// `nowhere` if no worker has executed it.
    fn refused(mut self, nowhere: Error, in_part: Error) -> Result<PendingOrder<A>> {
        self.answers.retain(|answer| !answer.withdraw());
        if self.answers.is_empty() {
            return Err(nowhere);
        }
        let answer = Answer::new(0);
        answer.claim();
        answer.give(Err(in_part));
        self.answers.push(answer);
        Ok(self)
    }

    /// Withdraws the order; returns true if no worker has executed it or will. A worker that executes it now, or did
    /// before, does not undo it.
    pub fn withdraw(&self) -> bool {
        self.withdrawn() == self.answers.len()
    }

    /// Withdraws the order from the workers that have not begun it; returns their number.
    fn withdrawn(&self) -> usize {
        self.answers.iter().filter(|answer| answer.withdraw()).count()
    }

    /// Returns the error of an order that was not answered in time, and was withdrawn from this number of workers.
    fn late(&self, withdrawn: usize, timeout: Duration) -> Error {
        let all = self.answers.len();
        let (what, why, fix) = match withdrawn {
            0 => (
                "the order is not finished",
                format!("a worker began it and did not finish it within {timeout:?}"),
                "read the setting later: the worker finishes the order",
            ),
            n if n < all => (
                IN_PART,
                format!("{n} of its {all} workers did not finish a poll within {timeout:?}"),
                "repeat the order; a worker that does not run, or has ended, executes no orders",
            ),
            _ => (
                NOT_EXECUTED,
                format!("its worker did not finish a poll within {timeout:?}"),
                "run the worker; a worker that has ended executes no orders",
            ),
        };
        Error::new(Code::Busy, what, why).fix(fix)
    }

    /// Sleeps until every worker has executed the order, or for `timeout`; then withdraws the order from the workers
    /// that have not begun it. A worker that has begun it gets a little more time. A worker's own thread must not call
    /// it, because the worker cannot turn meanwhile.
    ///
    /// # Errors
    /// Why it could not be executed; `E-BUSY` if the time passed. The error says what became of the order: no worker has
    /// executed it and none will; some of several workers have, and the others will not; or it has begun everywhere and
    /// will be executed.
    pub fn wait(self, timeout: Duration) -> Result<A> {
        let start = Instant::now();
        loop {
            if let Some(result) = self.answer() {
                return result;
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                let withdrawn = self.withdrawn();
                if withdrawn < self.answers.len()
                    && start.elapsed() < timeout.saturating_add(ANSWER_INTERVAL)
                {
                    // A worker may be executing it at this moment.
                    park_timeout(ANSWER_INTERVAL);
                    continue;
                }
                // A last answer may have arrived since the check above.
                return self.answer().unwrap_or_else(|| Err(self.late(withdrawn, timeout)));
            }
            // The worker wakes only the thread that gave the order; any other thread polls.
            park_timeout(left.min(ANSWER_INTERVAL));
        }
    }
}

#[cfg(test)]
mod tests;
