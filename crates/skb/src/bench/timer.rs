//! Measurement of one case in one process: short repetitions of a loop, and the median of those
//! during which no thread waited for a CPU.

use std::time::Instant;

use linerate_sys::{thread, tsc};

use super::BURST;

/// Largest share of a repetition's time that a thread may have been ready to run, but without a
/// CPU.
const DELAY_SHARE_MAX: f64 = 0.01;

/// Repetitions of one case.
#[derive(Debug)]
pub struct Timer {
    bursts: u64,
    reps: usize,
    done: Vec<Rep>,
}

/// The result of one repetition.
#[derive(Debug, Clone, Copy)]
struct Rep {
    /// TSC ticks for each packet.
    ticks: f64,
    clean: bool,
}

impl Timer {
    /// Returns a timer for `reps` repetitions of `bursts` bursts each.
    pub(super) fn new(bursts: u64, reps: usize) -> Timer {
        Timer { bursts, reps: reps.max(1), done: Vec::with_capacity(reps) }
    }

    /// Runs `turn(bursts)` once to warm up, and then once a repetition.
    pub(super) fn repeat(&mut self, mut turn: impl FnMut(u64)) {
        self.repeat_timed(|bursts| {
            let watch = Watch::start();
            turn(bursts);
            watch.stop()
        });
    }

    /// Calls `turn` as [`Timer::repeat`] does, but takes the cost of a repetition from the value
    /// that `turn` returns.
    pub(super) fn repeat_timed(&mut self, mut turn: impl FnMut(u64) -> Took) {
        turn(self.bursts);
        for _ in 0..self.reps {
            let took = turn(self.bursts);
            let ticks = took.ticks as f64 / (self.bursts * BURST as u64) as f64;
            let clean = took.delay_ns as f64 <= DELAY_SHARE_MAX * took.elapsed_ns as f64;
            self.done.push(Rep { ticks, clean });
        }
    }

    /// Returns the result: the median of the clean repetitions, or of all of them if none is clean.
    #[must_use]
    pub fn sample(&self) -> Sample {
        let clean = self.done.iter().filter(|rep| rep.clean).count();
        let mut ticks: Vec<f64> =
            self.done.iter().filter(|rep| rep.clean || clean == 0).map(|rep| rep.ticks).collect();
        ticks.sort_by(f64::total_cmp);
        let median = ticks.get(ticks.len() / 2).copied().unwrap_or(f64::NAN);
        Sample { ticks: median, bursts: self.bursts, reps: self.done.len(), clean }
    }
}

/// The measurement of one case by one process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// TSC ticks for each packet: the median over the clean repetitions, if there is one.
    pub ticks: f64,
    /// Bursts of a repetition.
    pub bursts: u64,
    /// Number of repetitions.
    pub reps: usize,
    /// Number of clean repetitions: those during which no thread waited for a CPU.
    pub clean: usize,
}

impl Sample {
    /// Reads the line that a peer's program prints:
    /// `case=bulk ticks=2.75 bursts=32768 reps=15 clean=14`.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(line: &str) -> Result<Sample, String> {
        let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
        let sample = || {
            Some(Sample {
                ticks: field("ticks=")?.parse().ok()?,
                bursts: field("bursts=")?.parse().ok()?,
                reps: field("reps=")?.parse().ok()?,
                clean: field("clean=")?.parse().ok()?,
            })
        };
        sample().ok_or_else(|| format!("a child said {line:?}"))
    }
}

/// The measured times of one part of a repetition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    pub(super) ticks: u64,
    pub(super) elapsed_ns: u64,
    /// Time during which the thread was ready to run, but had no CPU; of two threads, the longer
    /// time.
    pub(super) delay_ns: u64,
}

/// A running clock of the calling thread.
#[derive(Debug)]
pub(super) struct Watch {
    delay_ns: u64,
    instant: Instant,
    start: u64,
}

impl Watch {
    /// Starts a clock. It reads the run delay first, because that takes 10 µs; without schedstat
    /// the delay is always 0.
    pub(super) fn start() -> Watch {
        let delay_ns = thread::run_delay_ns().unwrap_or(0);
        Watch { delay_ns, instant: Instant::now(), start: tsc::ticks() }
    }

    pub(super) fn stop(self) -> Took {
        let ticks = tsc::ticks() - self.start;
        let elapsed_ns = self.instant.elapsed().as_nanos() as u64;
        let delay_ns = thread::run_delay_ns().unwrap_or(0).saturating_sub(self.delay_ns);
        Took { ticks, elapsed_ns, delay_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_line_is_read_whole_or_refused() {
        let sample = Sample { ticks: 2.75, bursts: 32_768, reps: 15, clean: 14 };
        let line = "case=bulk ticks=2.7500 bursts=32768 reps=15 clean=14";
        assert_eq!(Sample::parse(line), Ok(sample));
        assert!(Sample::parse("case=bulk ticks=2.75").is_err());
    }
}
