//! Pauses of a divided device, after which flows can move that leave no gap themselves.
//!
//! A bucket moves once its packets have left. Under overload, or with a flow that always has a packet under way, that
//! never happens. Then the worker of the device reads nothing from it until all packets that it handed over have left:
//! later ones wait in the device's ring. The next packet of each bucket finds that the bucket may move.
//!
//! ```text
//!   refused ── PATIENCE ─► pause: outputs clear ─► far workers passed all ─► their readers have all ─► reads again
//! ```
//!
//! A pause may cost packets, for which the device's ring has no room. So it begins only after some time, has a longest
//! time, and is followed by a rest of many times its own time.
//!
//! Owner: the worker of the device. Its stage and [`Pause`] exchange [`Signals`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate_port::QueueStats;

use super::Steering;
use super::clear::is_clear;
use super::hand::Far;
use crate::napi::Napi;

/// For how long packets of a bucket that is ordered elsewhere go to its old output before a pause.
const PATIENCE: Duration = Duration::from_millis(10);
/// Longest time of a pause.
const LONGEST: Duration = Duration::from_millis(100);
/// The rest after a pause in which all packets left, in times of the pause's own time.
const REST: u32 = 9;
/// The same after a pause in which not all left.
const REST_IN_VAIN: u32 = 99;

/// Values that the stage of a division and its worker exchange; both are on one thread.
#[derive(Debug)]
pub(crate) struct Signals {
    /// True if the stage has sent a packet to the old output of its bucket.
    pub refused: AtomicBool,
    /// Number of turns after which no packet waited for an output.
    pub clears: AtomicU64,
    /// For each output, the number of packets of its ring that had left at the end of the last pause.
    pub left: Box<[AtomicU64]>,
}

impl Signals {
    pub fn new(outputs: usize) -> Arc<Signals> {
        Arc::new(Signals {
            refused: AtomicBool::new(false),
            clears: AtomicU64::new(0),
            left: (0..outputs).map(|_| AtomicU64::new(0)).collect(),
        })
    }
}

/// The pauses of one divided device.
#[derive(Debug)]
pub(crate) struct Pause {
    /// The index of the device's queue at its worker.
    pub queue: usize,
    /// The begin of the present pause.
    pub begun: Option<Instant>,
    outputs: Vec<Output>,
    signals: Arc<Signals>,
    steering: Steering,
    /// True if the present pause has found no packet waiting for an output.
    has_cleared: bool,
    /// The time at which the stage was first found to send to an old output.
    since: Option<Instant>,
    /// The end of the rest after the last pause.
    rests_until: Option<Instant>,
}

impl Pause {
    /// Creates the pauses of the device at `queue`.
    pub fn new(
        queue: usize,
        outputs: Vec<Output>,
        signals: Arc<Signals>,
        steering: &Steering,
    ) -> Pause {
        Pause {
            queue,
            begun: None,
            outputs,
            signals,
            steering: steering.clone(),
            has_cleared: false,
            since: None,
            rests_until: None,
        }
    }

    /// Begins or ends a pause after a turn.
    pub fn turned(&mut self, napis: &[Napi], now: Instant) {
        let is_clear = self.outputs.iter().all(|o| napis.get(o.queue).is_none_or(is_clear));
        if is_clear {
            self.signals.clears.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(begun) = self.begun {
            let have_left = self.have_left(is_clear);
            let lasted = now.saturating_duration_since(begun);
            if have_left || lasted >= LONGEST {
                self.end(now, lasted, have_left);
            }
        } else if self.signals.refused.load(Ordering::Relaxed) {
            let since = *self.since.get_or_insert(now);
            let is_rested = self.rests_until.is_none_or(|until| now >= until);
            if is_rested && now.saturating_duration_since(since) >= PATIENCE {
                (self.begun, self.has_cleared) = (Some(now), false);
            }
        } else {
            self.since = None;
        }
    }

    fn end(&mut self, now: Instant, lasted: Duration, have_left: bool) {
        if have_left {
            for (left, output) in self.signals.left.iter().zip(&self.outputs) {
                left.store(output.due, Ordering::Relaxed);
            }
        }
        (self.begun, self.since) = (None, None);
        let rest = if have_left { REST } else { REST_IN_VAIN };
        self.rests_until = now.checked_add(lasted * rest);
        self.signals.refused.store(false, Ordering::Relaxed);
        self.steering.count_pause(lasted);
    }

    /// Returns true if all packets handed to the outputs before the pause have left.
    fn have_left(&mut self, is_clear: bool) -> bool {
        if is_clear && !self.has_cleared {
            self.has_cleared = true;
            self.outputs.iter_mut().for_each(Output::begin);
        }
        self.has_cleared && self.outputs.iter_mut().all(Output::left)
    }
}

/// An output as a pause sees it.
#[derive(Debug)]
pub(crate) struct Output {
    /// Its index at the worker.
    queue: usize,
    /// The counters of the ring's near end.
    near: Arc<QueueStats>,
    /// The worker at the ring's far end; `None` if the output is no ring.
    far: Option<Far>,
    /// Packets of the ring that must leave.
    due: u64,
    /// True if they have passed the far worker, and `far` has the packets that its readers must have received.
    has_passed: bool,
}

impl Output {
    pub fn new(queue: usize, near: Arc<QueueStats>, far: Option<Far>) -> Output {
        Output { queue, near, far, due: 0, has_passed: false }
    }

    /// Notes which packets must leave: all that were sent so far.
    fn begin(&mut self) {
        (self.due, self.has_passed) = (self.near.counts().tx_packets, false);
    }

    /// Returns true if these packets have left.
    fn left(&mut self) -> bool {
        let Some(far) = &mut self.far else { return true };
        if !self.has_passed {
            let received = far.mark();
            self.has_passed = received >= self.due;
        }
        self.has_passed && far.is_read()
    }
}
