//! The interleaving: for each stack offset and each case, every side once, in turn.
//!
//! What is dropped is dropped for what happened around it, never for its result, and with it the
//! samples of the other sides that it was to be compared with.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use linerate_skb::bench::{Case, Options, Sample};

use crate::args::Plan;
use crate::line;
use crate::side::Side;
use crate::table::Header;

/// Repetitions of a sample that must have been clean.
const CLEAN_MIN: usize = 3;
/// How far the CPUs may move apart, as a line sees it, before it is another placement.
const LINE_RATIO_MAX: f64 = 2.0;

/// All samples of a case.
#[derive(Debug)]
pub struct Row {
    pub case: &'static Case,
    pub turns: Vec<Turn>,
}

/// One sample of each side, close together.
#[derive(Debug)]
pub struct Turn {
    pub round: usize,
    /// As the sides are ordered.
    pub samples: Vec<Sample>,
    /// Round trips of a cache line before, between and after the samples; none on one core.
    pub lines: Vec<f64>,
    /// Why it does not count.
    pub dropped: Option<&'static str>,
}

/// Measures every case `plan.rounds` times on every side.
pub fn run(
    cases: &[&'static Case],
    sides: &[Side],
    plan: &Plan,
    header: &Header,
) -> Result<Vec<Row>, String> {
    let options = Options { cpus: header.cpus.clone(), ..Options::default() };
    let mut rows: Vec<Row> =
        cases.iter().map(|case| Row { case, turns: Vec::with_capacity(plan.rounds) }).collect();
    let mut progress = Progress::new(plan.rounds * cases.len());
    for round in 0..plan.rounds {
        if progress.start.elapsed() > plan.rounds_end {
            eprintln!("out of time after {round} of {} rounds", plan.rounds);
            break;
        }
        for (i, row) in rows.iter_mut().enumerate() {
            progress.show(round, row.case.name, i == 0);
            let turn = turn(row.case, sides, round, plan.reps, &options)?;
            row.turns.push(turn);
        }
    }
    progress.end();
    Ok(rows)
}

fn turn(
    case: &Case,
    sides: &[Side],
    round: usize,
    reps: usize,
    options: &Options,
) -> Result<Turn, String> {
    let mut order: Vec<usize> = (0..sides.len()).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    let mut lines = Vec::new();
    let mut taken: Vec<(usize, Sample)> = Vec::new();
    let mut look = || {
        if case.two_cores {
            lines.push(line::round_trip(options))
        }
    };
    look();
    for side in order {
        taken.push((side, sides[side].sample(case, round, reps)?));
        look();
    }
    taken.sort_by_key(|(side, _)| *side);
    let samples: Vec<Sample> = taken.into_iter().map(|(_, sample)| sample).collect();
    let waited = samples.iter().any(|sample| sample.clean < CLEAN_MIN.min(sample.reps));
    let (near, far) = bounds(&lines);
    let dropped = match (waited, far > LINE_RATIO_MAX * near) {
        (true, _) => Some("waited for a CPU"),
        (_, true) => Some("CPUs moved"),
        _ => None,
    };
    Ok(Turn { round, samples, lines, dropped })
}

/// The smallest and the largest; of none, two that are not far apart.
pub fn bounds(values: &[f64]) -> (f64, f64) {
    let fold = |f: fn(f64, f64) -> f64| values.iter().copied().reduce(f).unwrap_or(0.0);
    (fold(f64::min), fold(f64::max))
}

impl Row {
    /// The turns that count, in groups of one placement each, and what to call each group.
    pub fn groups(&self) -> Vec<(String, Vec<&Turn>)> {
        let kept: Vec<&Turn> = self.turns.iter().filter(|turn| turn.dropped.is_none()).collect();
        if !self.case.two_cores || kept.is_empty() {
            return vec![(String::new(), kept)];
        }
        let line = |turn: &Turn| bounds(&turn.lines).1;
        let nearest = kept.iter().map(|turn| line(turn)).fold(f64::INFINITY, f64::min);
        let (near, far): (Vec<&Turn>, Vec<&Turn>) =
            kept.into_iter().partition(|turn| line(turn) <= LINE_RATIO_MAX * nearest);
        [near, far].into_iter().filter(|turns| !turns.is_empty()).map(named).collect()
    }
}

/// Turns of one placement under what their lines say of it.
fn named(turns: Vec<&Turn>) -> (String, Vec<&Turn>) {
    let lines: Vec<f64> = turns.iter().flat_map(|turn| turn.lines.iter().copied()).collect();
    let (least, most) = bounds(&lines);
    (format!("line round trip {least:.0} to {most:.0} ticks"), turns)
}

/// Where the run is, on standard error: one line rewritten on a terminal, else one a round.
struct Progress {
    start: Instant,
    done: usize,
    total: usize,
    rewrites: bool,
}

impl Progress {
    fn new(total: usize) -> Progress {
        let rewrites = std::io::stderr().is_terminal();
        Progress { start: Instant::now(), done: 0, total, rewrites }
    }

    /// Says which turn comes now.
    fn show(&mut self, round: usize, case: &str, opens_round: bool) {
        let spent = self.start.elapsed().as_secs_f64();
        let left = spent / self.done.max(1) as f64 * (self.total - self.done) as f64;
        let eta = if self.done == 0 { "?".into() } else { format!("{left:.0} s") };
        let line =
            format!("{}/{} done, round {}: {case}, ETA {eta}", self.done, self.total, round + 1);
        let mut err = std::io::stderr().lock();
        // A progress line that cannot be written is no reason to stop.
        let _ = match (self.rewrites, opens_round) {
            (true, _) => write!(err, "\r\x1b[K{line}"),
            (false, true) => writeln!(err, "{line}"),
            (false, false) => Ok(()),
        };
        self.done += 1;
    }

    fn end(&self) {
        let clear = if self.rewrites { "\r\x1b[K" } else { "" };
        let spent = self.start.elapsed().as_secs_f64();
        eprintln!("{clear}{} turns in {spent:.0} s", self.total);
    }
}
