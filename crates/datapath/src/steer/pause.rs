//! Pauses of a divided device, after which flows can move that leave no gap themselves.
//!
//! A bucket moves once its packets have left. Under overload, or with a flow that always has a
//! packet under way, that never happens. Then the worker of the device reads nothing from it until
//! all packets that it handed over have left: later ones wait in the device's ring. The next packet
//! of each bucket finds that the bucket may move.
//!
//! ```text
//!   refused ── PATIENCE ─► pause: outputs clear ─► far workers passed all ─► their readers have all ─► reads again
//! ```
//!
//! A pause may cost packets, for which the device's ring has no room. So it begins only after some
//! time, has a longest time, and is followed by a rest of many times its own time.
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
    /// True if the stage has sent a packet to the old output of its bucket in the last turn.
    pub refused: AtomicBool,
    /// Number of turns after which no packet waited for an output.
    pub clears: AtomicU64,
    /// The value of `clears` before which packets were handed over that are known to have left, by
    /// the last pause.
    pub gone: AtomicU64,
}

impl Signals {
    pub fn new() -> Arc<Signals> {
        Arc::new(Signals {
            refused: AtomicBool::new(false),
            clears: AtomicU64::new(0),
            gone: AtomicU64::new(0),
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
    /// The value of `clears` at which the present pause first found no packet waiting for an
    /// output.
    cleared: Option<u64>,
    /// The times of the first and of the last turn in which the stage sent to an old output,
    /// without a turn for so long as `PATIENCE` between them.
    refused: Option<[Instant; 2]>,
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
            cleared: None,
            refused: None,
            rests_until: None,
        }
    }

    /// Begins or ends a pause after a turn.
    pub fn turned(&mut self, napis: &[Napi], now: Instant) {
        let is_clear = self.outputs.iter().all(|o| napis.get(o.queue).is_none_or(is_clear));
        let clears = self.signals.clears.load(Ordering::Relaxed) + u64::from(is_clear);
        self.signals.clears.store(clears, Ordering::Relaxed);
        if let Some(begun) = self.begun {
            let gone = self.gone(clears, is_clear);
            let lasted = now.saturating_duration_since(begun);
            if gone.is_some() || lasted >= LONGEST {
                self.end(now, lasted, gone);
            }
        } else if self.signals.refused.load(Ordering::Relaxed) {
            self.signals.refused.store(false, Ordering::Relaxed);
            let recent = self.refused.filter(|[_, last]| now.duration_since(*last) < PATIENCE);
            let first = recent.map_or(now, |[first, _]| first);
            self.refused = Some([first, now]);
            let is_rested = self.rests_until.is_none_or(|until| now >= until);
            if is_rested && now.duration_since(first) >= PATIENCE {
                (self.begun, self.cleared) = (Some(now), None);
            }
        }
    }

    fn end(&mut self, now: Instant, lasted: Duration, gone: Option<u64>) {
        if let Some(gone) = gone {
            self.signals.gone.store(gone, Ordering::Relaxed);
        }
        (self.begun, self.refused) = (None, None);
        let rest = if gone.is_some() { REST } else { REST_IN_VAIN };
        self.rests_until = now.checked_add(lasted.min(LONGEST) * rest);
        self.steering.count_pause(lasted);
    }

    /// Returns the value of `clears` before which all packets were handed over that have left;
    /// `None` until all that were handed over before the pause have.
    fn gone(&mut self, clears: u64, is_clear: bool) -> Option<u64> {
        if is_clear && self.cleared.is_none() {
            self.cleared = Some(clears);
            self.outputs.iter_mut().for_each(Output::begin);
        }
        self.cleared.filter(|_| self.outputs.iter_mut().all(Output::left))
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
    /// True if they have passed the far worker, and `far` has the packets that its readers must
    /// have received.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_does_not_end_by_what_an_earlier_one_found() {
        let (signals, steering) = (Signals::new(), Steering::new("a", &["b"]).unwrap());
        let output = Output::new(0, Arc::default(), None);
        let mut pause = Pause::new(0, vec![output], signals.clone(), &steering);
        let mut now = Instant::now();
        let mut gone_after_pause = || {
            for _ in 0..3 {
                signals.refused.store(true, Ordering::Relaxed);
                pause.turned(&[], now);
                now += PATIENCE - Duration::from_millis(1);
            }
            assert!(pause.begun.is_some());
            pause.turned(&[], now);
            assert!(pause.begun.is_none());
            now += Duration::from_secs(1);
            (signals.gone.load(Ordering::Relaxed), signals.clears.load(Ordering::Relaxed))
        };
        for _ in 0..2 {
            let (gone, clears) = gone_after_pause();
            assert_eq!(gone, clears);
        }
    }
}
