//! Question: what share of its CPU time does a thread that only computes lose to being sampled, by
//! each clock that there is?
//!
//! Prediction: 0.2 % at 1,000 Hz on hardware, 2 us a sample. In a virtual machine ten times that: its
//! host makes the timer, so that arming it and being interrupted by it leave the machine. On the
//! kernel's tick nothing that can be told from 0, as that interrupt comes anyway.
//!
//! Inputs: a loop of shifts in a register, its length the same always, run by turns without and
//! with samples, each clock once in every round. Its time is the wall's without what it waited for a
//! CPU. A difference is of a run and the mean of the two runs without samples around it; median with
//! quartiles.
//!
//! `cargo bench -p linerate-prof --bench sampling [-- CLOCK…]`; any other way of running it is a smoke
//! test.

use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use linerate_prof::sample::{Recorder, Target, Trigger, What};

fn main() {
    let (flags, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|word| word.starts_with('-'));
    let mut clocks: Vec<Clock> = clocks().into_iter().map(Clock::new).collect();
    clocks.retain(|clock| names.is_empty() || names.iter().any(|name| clock.name.contains(name)));
    let measured = flags.iter().any(|flag| flag == "--bench");
    let rounds = if measured { RUNS / clocks.len().max(1) } else { 1 };
    let spin = if measured { SPIN } else { SPIN / 50 };
    let turns = turns(spin);
    println!("share of the CPU time of a loop of {spin:?}, {rounds} rounds: median [quartiles]");
    let mut before = run(turns);
    for _ in 0..rounds {
        for clock in &mut clocks {
            let with = clock.run(turns);
            let after = run(turns);
            if let (Some(with), Some(before), Some(after)) = (with, before, after) {
                let without = (before + after) / 2.0;
                clock.shares.push(100.0 * (with - without) / without);
                clock.with_ns += with;
            }
            before = after;
        }
    }
    clocks.iter_mut().for_each(Clock::report);
}

/// The recorders to compare, by name. The first two are without samples: their difference is the noise.
fn clocks() -> Vec<(&'static str, Option<Recorder>)> {
    let time = |hz| Some(Recorder::new(What::Time { hz }).calibrate(false));
    // A period of 1 ms.
    let task_clock = What::Event {
        trigger: Trigger::new("task-clock", Trigger::SOFTWARE, 1),
        period: 1_000_000,
    };
    vec![
        ("none", None),
        ("cpu-clock, 250 Hz", time(250)),
        ("cpu-clock, 1000 Hz", time(1000)),
        ("cpu-clock, 1000 Hz, call chains", time(1000).map(|recorder| recorder.call_chains(true))),
        ("cpu-clock, 1000 Hz, user only", time(1000).map(|recorder| recorder.kernel(false))),
        ("task-clock, 1000 Hz", Some(Recorder::new(task_clock).calibrate(false))),
    ]
}

struct Clock {
    name: &'static str,
    recorder: Option<Recorder>,
    shares: Vec<f64>,
    samples: u64,
    with_ns: f64,
}

impl Clock {
    fn new((name, recorder): (&'static str, Option<Recorder>)) -> Clock {
        Clock { name, recorder, shares: Vec::new(), samples: 0, with_ns: 0.0 }
    }

    /// The loop's time with samples; `None`, with the reason printed, if this machine takes none.
    fn run(&mut self, turns: u64) -> Option<f64> {
        let Some(recorder) = self.recorder.clone() else { return run(turns) };
        let recording = recorder.start(Target::ThisThread);
        let mut recording =
            recording.inspect_err(|e| println!("{}: skipped: {e}", self.name)).ok()?;
        let time = run(turns);
        self.samples += recording.poll(Duration::ZERO).map_or(0, |progress| progress.samples);
        time
    }

    fn report(&mut self) {
        self.shares.sort_by(f64::total_cmp);
        let at = |part: usize| self.shares.get(self.shares.len() * part / 4).copied();
        let (Some(low), Some(median), Some(high)) = (at(1), at(2), at(3)) else { return };
        let hz = self.samples as f64 * 1e9 / self.with_ns;
        let one = match median / 100.0 * self.with_ns / 1000.0 / self.samples as f64 {
            _ if self.samples == 0 => String::new(),
            _ if low <= 0.0 => ", not to be told from 0".to_owned(),
            sample_us => format!(", {sample_us:.1} us a sample"),
        };
        println!(
            "{:<34}{median:>7.2} % [{low:.2}, {high:.2}]  n = {}, {} samples, {hz:.0} a second{one}",
            self.name,
            self.shares.len(),
            self.samples,
        );
    }
}

/// Turns of the loop that take about so long.
fn turns(spin: Duration) -> u64 {
    const TRIAL: u64 = 1 << 22;
    let trial = |_| {
        let start = Instant::now();
        work(TRIAL);
        start.elapsed()
    };
    let shortest = (0..5).map(trial).min().unwrap_or(spin).max(Duration::from_micros(1));
    (spin.as_nanos() * u128::from(TRIAL) / shortest.as_nanos()).try_into().unwrap_or(TRIAL)
}

/// Nanoseconds in which the loop had a CPU, interrupts included.
fn run(turns: u64) -> Option<f64> {
    let waited = waited_ns()?;
    let start = Instant::now();
    work(turns);
    let wall = start.elapsed().as_nanos() as f64;
    Some(wall - (waited_ns()? - waited) as f64)
}

fn work(turns: u64) {
    let shift = |x: u64, _| {
        let x = x ^ x << 13;
        let x = x ^ x >> 7;
        x ^ x << 17
    };
    black_box((0..black_box(turns)).fold(black_box(1), shift));
}

/// Time that this thread has waited for a CPU: the second number of its schedstat.
fn waited_ns() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

const SPIN: Duration = Duration::from_millis(100);
/// Runs of the loop with samples, for all clocks together.
const RUNS: usize = 280;
