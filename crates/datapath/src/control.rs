//! Control of workers that run, from any thread: orders that they obey between two turns.
//!
//! A worker never waits for whoever orders. Its answer is stored where the order came from, and the thread
//! that waits for it is unparked, which takes no lock.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::thread::{Thread, current, park_timeout};
use std::time::{Duration, Instant};

use linerate_port::{Code, Error, Moderation, QueueStats, Result};

use crate::mailbox::ORDERS_MAX;
use crate::stats::WorkerSlot;
use crate::tx_batch::TxBatch;

/// Time between two looks for an answer of a thread that is not woken for it.
const LOOK: Duration = Duration::from_millis(10);

/// A handle to workers that run. It is cheap to clone, and any thread may use it.
#[derive(Debug, Clone)]
pub struct Control {
    pub(crate) slots: Arc<[Arc<WorkerSlot>]>,
}

/// A setting of a port's queues that can be changed while packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// When they are looked at again.
    Moderation(Moderation),
    /// The packets that go to their device with one doorbell.
    TxBatch(TxBatch),
}

/// An order to one worker.
#[derive(Debug)]
pub(crate) struct Order {
    /// The queues, as the worker counts them.
    pub queues: Range<usize>,
    pub setting: Setting,
    answer: OnceLock<Applied>,
    asked_at: Instant,
    /// Packets that the queues had received.
    packets: u64,
    waiter: Thread,
}

/// The result of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// The setting that was asked for.
    pub asked: Setting,
    /// The setting that the queues have now.
    pub applied: Setting,
    /// Why it does nothing, or less than it says, if so.
    pub note: Option<String>,
    /// Packets that the queues received between the question and the change.
    pub packets: u64,
    /// Time between the two.
    pub took: Duration,
}

/// An order that was given and may not have been obeyed yet.
#[derive(Debug)]
#[must_use = "the answer says what was applied"]
pub struct Asked {
    order: Arc<Order>,
}

impl Control {
    /// Orders another moderation of a port's queues, or of its queue number `queue`.
    ///
    /// The worker obeys at its next turn, and a sleeping one is woken for it.
    ///
    /// # Errors
    /// `E-TOPOLOGY` if no port is called so or it has no such queue, `E-BUSY` if the worker has not obeyed
    /// 16 orders before this one.
    pub fn set_moderation(
        &self,
        port: &str,
        queue: Option<usize>,
        mode: Moderation,
    ) -> Result<Asked> {
        self.order(port, queue, Setting::Moderation(mode), "moderation")
    }

    /// Orders another number of packets that go to a port's device with one doorbell.
    ///
    /// It is applied between two turns, when the queue is at rest: packets that wait keep their order.
    ///
    /// # Errors
    /// As [`Control::set_moderation`].
    pub fn set_tx_batch(&self, port: &str, queue: Option<usize>, cap: TxBatch) -> Result<Asked> {
        self.order(port, queue, Setting::TxBatch(cap), "tx_batch")
    }

    /// Orders a setting, called `name`, of a port's queues or of one of them.
    fn order(
        &self,
        port: &str,
        queue: Option<usize>,
        setting: Setting,
        name: &str,
    ) -> Result<Asked> {
        let what = || format!("cannot set the {name} of '{port}'");
        let places = |slot: &WorkerSlot| slot.queues_of(port);
        let found = self.slots.iter().find_map(|slot| Some((slot, places(slot)?)));
        let Some((slot, mut queues)) = found else {
            let names: Vec<&str> = self.slots.iter().flat_map(|slot| slot.names()).collect();
            let why = "there is no such port";
            return Err(
                Error::new(Code::Topology, what(), why).fix(format!("ports: {}", names.join(" ")))
            );
        };
        if let Some(queue) = queue {
            if queue >= queues.len() {
                let why = format!("it has no queue {queue}");
                return Err(Error::new(Code::Topology, what(), why)
                    .fix(format!("its queues: 0..{}", queues.len())));
            }
            queues = queues.start + queue..queues.start + queue + 1;
        }
        let order = Arc::new(Order {
            packets: slot.packets(queues.clone()),
            queues,
            setting,
            answer: OnceLock::new(),
            asked_at: Instant::now(),
            waiter: current(),
        });
        slot.order(order.clone()).map_err(|_| {
            let why = format!("its worker has {ORDERS_MAX} orders that it has not obeyed");
            Error::new(Code::Busy, what(), why)
                .fix("wait for the answers; a worker that is not turned obeys none")
        })?;
        Ok(Asked { order })
    }
}

impl Order {
    /// Answers: what the queues have now. Only the worker calls it.
    pub fn answer(&self, applied: Setting, note: Option<String>, stats: &[&QueueStats]) {
        let received: u64 = stats.iter().map(|stats| stats.counts().rx_packets).sum();
        // Never refused: there is one worker.
        let _ = self.answer.set(Applied {
            asked: self.setting,
            applied,
            note,
            packets: received.saturating_sub(self.packets),
            took: self.asked_at.elapsed(),
        });
        self.waiter.unpark();
    }
}

impl Asked {
    /// Returns the answer, if there is one already.
    #[must_use]
    pub fn answer(&self) -> Option<Applied> {
        self.order.answer.get().cloned()
    }

    /// Sleeps until the worker has obeyed, or for `timeout`. Not for the worker's own thread, which cannot
    /// turn meanwhile.
    ///
    /// # Errors
    /// `E-BUSY` if the time passed: the worker is not turned, or has ended.
    pub fn wait(self, timeout: Duration) -> Result<Applied> {
        let start = Instant::now();
        loop {
            if let Some(applied) = self.answer() {
                return Ok(applied);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                let why = format!("its worker did not turn for {timeout:?}");
                return Err(Error::new(Code::Busy, "the order was not obeyed", why)
                    .fix("turn the worker; one that has ended obeys nothing"));
            }
            // The thread that gave the order is woken; another one looks.
            park_timeout(left.min(LOOK));
        }
    }
}
