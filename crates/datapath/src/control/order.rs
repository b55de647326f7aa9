//! An order to workers, and the answers that they store in it.
//!
//! ```text
//!   open ─┬─► taken by its worker, which executes it and stores the answer
//!         └─► withdrawn by its giver, or refused by a worker that has ended: no worker will execute it
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Thread, current, park_timeout};
use std::time::{Duration, Instant};

use linerate_port::{Code, Error, Result};

use super::{Applied, IN_PART, NOT_EXECUTED, Pinned, Setting, ended};

/// Interval at which a waiting thread checks for the answer if the worker does not wake it.
const ANSWER_INTERVAL: Duration = Duration::from_millis(10);

/// An order that neither a worker nor its giver has claimed.
const OPEN: u8 = 0;
/// An order that its worker executes, or has executed.
const TAKEN: u8 = 1;
/// An order that no worker will execute.
const WITHDRAWN: u8 = 2;

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
    /// [`OPEN`], until the worker executes the order or the order is withdrawn: whichever comes
    /// first.
    claimed: AtomicU8,
    pub asked_at: Instant,
    /// Packets that the queues had received when the order was given.
    pub packets: u64,
    waiter: Thread,
}

/// An order that may not have been executed yet.
#[derive(Debug)]
#[must_use = "the answer says what was applied"]
pub struct PendingOrder<A = Applied> {
    /// The answer of each worker that received the order.
    pub(super) answers: Vec<Arc<Answer<A>>>,
    /// Combines the answers of two workers into one.
    pub(super) join: fn(A, A) -> A,
}

/// Taken orders that are not executed yet; dropped after a panic, they are refused.
pub(crate) struct Unexecuted(pub std::vec::IntoIter<Order>);

impl Drop for Unexecuted {
    fn drop(&mut self) {
        self.0.by_ref().for_each(|order| order.refuse());
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

    /// Answers the order with the error that its worker has ended, unless the worker has executed
    /// it.
    pub fn refuse(&self) {
        match self {
            Order::Set { answer, .. } => answer.refuse(),
            Order::Cpus { answer, .. } => answer.refuse(),
        }
    }
}

impl<A> Answer<A> {
    pub(super) fn new(packets: u64) -> Arc<Answer<A>> {
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
    pub(super) fn refuse(&self) {
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

    /// Stores the answer to the order. Only the worker calls it, or the giver of an order that the
    /// worker did not accept.
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

    /// Withdraws the order because a further worker does not accept it. If a worker has executed it
    /// already, the order stays pending, with the answer `in_part` of the further worker.
    ///
    /// # Errors
    /// `nowhere` if no worker has executed it.
    pub(super) fn refused(mut self, nowhere: Error, in_part: Error) -> Result<PendingOrder<A>> {
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

    /// Withdraws the order; returns true if no worker has executed it or will. A worker that
    /// executes it now, or did before, does not undo it.
    pub fn withdraw(&self) -> bool {
        self.withdrawn() == self.answers.len()
    }

    /// Withdraws the order from the workers that have not begun it; returns their number.
    fn withdrawn(&self) -> usize {
        self.answers.iter().filter(|answer| answer.withdraw()).count()
    }

    /// Returns the error of an order that was not answered in time, and was withdrawn from this
    /// number of workers.
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

    /// Sleeps until every worker has executed the order, or for `timeout`; then withdraws the order
    /// from the workers that have not begun it. A worker that has begun it gets a little more time.
    /// A worker's own thread must not call it, because the worker cannot turn meanwhile.
    ///
    /// # Errors
    /// Why it could not be executed; `E-BUSY` if the time passed. The error says what became of the
    /// order: no worker has executed it and none will; some of several workers have, and the others
    /// will not; or it has begun everywhere and will be executed.
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
