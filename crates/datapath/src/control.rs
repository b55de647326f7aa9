//! Control of running workers from any thread: orders that they execute between two turns.
//!
//! A worker never waits for the thread that orders. Its answer is stored where the order came from,
//! and the thread that waits for it is unparked, which takes no lock.

mod order;

use std::sync::Arc;
use std::time::Duration;

use linerate_port::moderation::DeviceHold;
use linerate_port::{Code, Error, Moderation, Result};

use crate::mailbox::ORDERS_MAX;
use crate::qdisc::BitRate;
use crate::tx_batch::TxBatch;
use crate::worker_slot::{Refusal, WorkerSlot};

pub use order::PendingOrder;
pub(crate) use order::{Answer, Order, Unexecuted};

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
    /// The rate to which a discipline limits packets: the option `shape=`.
    Shape(BitRate),
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

impl Control {
    /// Orders another moderation for all queues of a port, or for its queue number `queue`.
    ///
    /// The workers of the queues execute the order at their next turns; it wakes workers that
    /// sleep. A number that its knob does not allow becomes the nearest one: [`Applied::applied`]
    /// says so.
    ///
    /// # Errors
    /// `E-TOPOLOGY` if there is no port of this name or it has no such queue, `E-BUSY` if a worker
    /// has not executed 16 orders before this one, or has ended. If another worker has executed the
    /// order meanwhile, the answer is `E-BUSY` instead.
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
    /// It is applied between two turns, when the queue is at rest: packets that wait keep their
    /// order.
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

    /// Orders another rate for a port that was opened with `shape=`; its burst is the one of that
    /// text, or the default of the new rate.
    ///
    /// It is applied between two turns. Packets that wait keep their order, tokens and debts stay,
    /// and the time before the change counts at the old rate. The pool keeps its size: if superframes
    /// are cut shorter than before and there are no frames for the segments, they stay whole.
    ///
    /// # Errors
    /// As [`Control::set_moderation`]; the answer is `E-UNSUPPORTED` if a queue has no rate.
    pub fn set_shape(
        &self,
        port: &str,
        queue: Option<usize>,
        rate: BitRate,
    ) -> Result<PendingOrder> {
        self.set(port, queue, Setting::Shape(rate), "shape")
    }

    /// Returns the present hold of a port's device; `None` if it has none that can be changed.
    #[must_use]
    pub fn hold(&self, port: &str) -> Option<DeviceHold> {
        self.slots.iter().flat_map(|slot| slot.holds_of(port)).find_map(|device| device.hold())
    }

    /// Returns the indices of the network interfaces whose holds [`Control::set_hold`] changes for a
    /// port; none for devices that are no interfaces. An index stays when the interface is renamed.
    #[must_use]
    pub fn hold_interfaces(&self, port: &str) -> Vec<u32> {
        let devices = self.slots.iter().flat_map(|slot| slot.holds_of(port));
        let mut indices: Vec<u32> = devices.filter_map(|device| device.interface()).collect();
        indices.sort_unstable();
        indices.dedup();
        indices
    }

    /// Checks that every device of a port can have `hold`; changes nothing. A port without devices
    /// that have a hold passes: [`Control::set_hold`] says why it has none.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for a time out of a device's range, `E-UNSUPPORTED` for `frames` if it
    /// counts no packets.
    pub fn check_hold(&self, port: &str, hold: DeviceHold) -> Result<()> {
        let mut devices = self.slots.iter().flat_map(|slot| slot.holds_of(port));
        devices.try_for_each(|device| device.check(hold))
    }

    /// Changes the hold of a port's device, for all its queues and until the port is closed: for
    /// how long, and for how many packets, the device keeps its irq back.
    ///
    /// The calling thread changes the device. No worker is woken, and packets that wait come by the
    /// new hold.
    ///
    /// # Errors
    /// `E-TOPOLOGY` if there is no port of this name, `E-UNSUPPORTED` if its device has no hold, or
    /// counts no packets and `frames` is given, `E-PORT-SYNTAX` for a time out of the device's
    /// range, `E-PERM` if the process may not change the hold. The error says if some of several
    /// queues have the new hold already.
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

    /// Returns the fix for a setting of all queues of a port, of which a worker has ended: one
    /// queue whose worker runs.
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
    /// [`Stats::workers`](crate::Stats::workers). Returns `None` if there is no such queue, or if
    /// its worker does not belong to the handle.
    #[must_use]
    pub fn worker_of(&self, port: &str, queue: usize) -> Option<usize> {
        let has = |slot: &Arc<WorkerSlot>| !slot.queues_of(port, Some(queue)).is_empty();
        self.slots.iter().position(has).map(|at| self.first + at)
    }

    /// Orders a worker to run on these CPUs only: one CPU pins the worker, several CPUs let it move
    /// among them.
    ///
    /// The thread that turns the worker is moved between two turns, so no packet is on its way
    /// through the stages. Its packet memory stays where it is. [`Pinned::before`] restores the
    /// previous CPUs.
    ///
    /// Errors: the answer is `E-CPU`, and nothing has changed, if it may use none of the CPUs.
    ///
    /// # Errors
    /// `E-TOPOLOGY` if the handle has no worker of this number, `E-BUSY` if the worker has not
    /// executed 16 orders before this one, or has ended.
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

#[cfg(test)]
mod tests;
