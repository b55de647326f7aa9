//! Instructions and L1 misses a buffer: two runs of different length, and the difference.

use std::collections::HashMap;
use std::process::Command;

use linerate_skb::bench::{BURST, Case};

use crate::peer::{self, Peer};
use crate::side::Side;

/// What counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// The CPU's own counters.
    Perf,
    /// A simulator, on a machine that shows no counters.
    Cachegrind,
}

/// What was counted for a case on a side.
#[derive(Debug)]
pub struct Count {
    pub case: &'static str,
    pub side: String,
    pub counted: Result<Counted, String>,
}

/// Events a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    pub instructions: f64,
    /// `None` where the figure would be of another memory layout than the one that is timed.
    pub misses: Option<f64>,
}

impl Counter {
    /// The best there is here.
    pub fn find() -> Result<Counter, String> {
        let perf = Counter::Perf.total(&["true".into()]);
        if perf.is_ok() {
            return Ok(Counter::Perf);
        }
        let cachegrind = peer::run(Command::new("valgrind").arg("--version"));
        let why = |why| format!("no counters ({}), no simulator ({why})", perf.unwrap_err());
        cachegrind.map(|_| Counter::Cachegrind).map_err(why)
    }

    /// How the figures came about.
    pub fn about(self) -> &'static str {
        match self {
            Counter::Perf => "perf stat, user code",
            Counter::Cachegrind => {
                "cachegrind, simulated; its CPU has no AVX-512, so code chosen at run time may be \
                 another than the one that is timed"
            }
        }
    }

    /// Bursts of the shorter run: enough that the difference to the longer one drowns what differs
    /// between any two runs.
    fn bursts(self) -> u64 {
        match self {
            Counter::Perf => 100_000,
            Counter::Cachegrind => 2_000,
        }
    }

    /// Instructions and misses of a whole process.
    fn total(self, words: &[String]) -> Result<[f64; 2], String> {
        match self {
            Counter::Perf => {
                let events = "instructions:u,L1-dcache-load-misses:u";
                let mut command = Command::new("perf");
                command.args(["stat", "-x", ",", "-e", events, "--"]).args(words);
                let text = peer::run(&mut command)?.stderr;
                perf_figures(&String::from_utf8_lossy(&text))
            }
            Counter::Cachegrind => {
                let options = ["--cache-sim=yes", "--cachegrind-out-file=/dev/null"];
                let mut command = Command::new("valgrind");
                command.arg("--tool=cachegrind").args(options).args(words);
                let text = peer::run(&mut command).map_err(unknown_instruction)?.stderr;
                cachegrind_figures(&String::from_utf8_lossy(&text))
            }
        }
    }

    fn case(self, case: &Case, side: &Side) -> Result<Counted, String> {
        if case.two_cores {
            return Err("its threads spin while they wait".into());
        }
        let emulated = self == Counter::Cachegrind && matches!(side, Side::Peer(_));
        let total = |bursts| match emulated {
            true => self.total(&Peer::emulated(case.peer, bursts)?),
            false => self.total(&side.once(case, bursts, 1)),
        };
        let (few, many) = (total(self.bursts())?, total(5 * self.bursts())?);
        // Each run warms up with as many bursts as it measures.
        let buffers = (2 * 4 * self.bursts() * BURST as u64) as f64;
        // What differs between two runs can be less than nothing where there is nothing.
        let [instructions, misses] = [0, 1].map(|i| ((many[i] - few[i]) / buffers).max(0.0));
        Ok(Counted { instructions, misses: (!emulated).then_some(misses) })
    }
}

/// Counts every case on every side, as long as `in_time` says so.
pub fn count(
    cases: &[&'static Case],
    sides: &[Side],
    counter: &Result<Counter, String>,
    in_time: impl Fn() -> bool,
) -> Vec<Count> {
    let Ok(counter) = *counter else { return Vec::new() };
    let mut counts = Vec::new();
    // One case of the peer's is compared with several of ours.
    let mut peers: HashMap<&str, Result<Counted, String>> = HashMap::new();
    for case in cases {
        for side in sides {
            let count = || match in_time() {
                true => counter.case(case, side),
                false => Err("out of time".into()),
            };
            let counted = match side {
                Side::Peer(_) => peers.entry(case.peer).or_insert_with(count).clone(),
                Side::Ours { .. } => count(),
            };
            counts.push(Count { case: case.name, side: side.name(), counted });
        }
        eprintln!("counted {}", case.name);
    }
    counts
}

/// Valgrind 3.19 stops a program with SIGILL at an AVX-512 instruction.
fn unknown_instruction(why: String) -> String {
    if why.contains("SIGILL") {
        return "valgrind does not know an instruction that this build uses".into();
    }
    why
}

/// `perf stat -x,` prints `value,unit,event,…`, among what the program itself says.
fn perf_figures(text: &str) -> Result<[f64; 2], String> {
    let figure = |event: &str| {
        let line = text.lines().find(|line| line.split(',').nth(2) == Some(event));
        let value = line.and_then(|line| line.split(',').next()).unwrap_or("no such line");
        value.parse().map_err(|_| format!("perf stat: {event}: {value}"))
    };
    Ok([figure("instructions:u")?, figure("L1-dcache-load-misses:u")?])
}

/// `==PID== D1  misses:  1,234  (…)`.
fn cachegrind_figures(text: &str) -> Result<[f64; 2], String> {
    let figure = |event: &str| {
        let line = text.lines().find_map(|line| line.split_once(event));
        let value = line.and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or("");
        value.replace(',', "").parse().map_err(|_| format!("cachegrind said nothing of {event}"))
    };
    Ok([figure("I   refs:").or_else(|_| figure("I refs:"))?, figure("D1  misses:")?])
}
