//! What is printed: what was measured, then one line a side of each case.

use std::collections::BTreeMap;
use std::fmt;

use linerate_skb::bench::{FRAMES, FRAMES_AT_MOST, GENERAL};

use crate::counts::{Count, Counter};
use crate::rounds::{Row, Turn};
use crate::side;

/// Pairs that a verdict takes.
const PAIRS_MIN: usize = 3;

/// What holds for the whole table.
#[derive(Debug)]
pub struct Header {
    pub tsc_hz: f64,
    /// What each side is, in the order of the samples.
    pub sides: Vec<Described>,
    /// Why there is no peer.
    pub alone: Option<String>,
    pub rounds: usize,
    pub cpus: Vec<usize>,
    /// Of the last minute, before the first sample.
    pub load: String,
}

/// A side as the table sees it.
#[derive(Debug)]
pub struct Described {
    pub name: String,
    pub about: String,
    /// What it does otherwise than by default; then nothing is promised of it.
    pub options: String,
    /// Whether it is the one that the others are compared with.
    pub is_peer: bool,
}

/// The load average of the last minute.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "packet buffers, ticks of the TSC ({:.3} GHz) a packet, bursts of 32, pools of 8191",
            self.tsc_hz / 1e9
        )?;
        for side in &self.sides {
            let options = match side.options.as_str() {
                "" => String::new(),
                options => format!("; {options}"),
            };
            writeln!(f, "  {}: {}{options}", side.name, side.about)?;
        }
        if let Some(why) = &self.alone {
            writeln!(f, "  our side alone: no DPDK: {why}")?;
        }
        let stack = if side::still() { "stack offsets" } else { "random stack offsets" };
        let cpus: Vec<String> = self.cpus.iter().map(usize::to_string).collect();
        let (rounds, cpus, load) = (self.rounds, cpus.join(" and "), &self.load);
        writeln!(f, "  {rounds} {stack}, the sides in turn, on CPU {cpus}; load before: {load}")
    }
}

/// Median, smallest and largest.
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// Of the samples of one side in `turns`; `None` of none.
    pub fn of(turns: &[&Turn], side: usize) -> Option<Spread> {
        let mut ticks: Vec<f64> = turns.iter().map(|turn| turn.samples[side].ticks).collect();
        ticks.sort_by(f64::total_cmp);
        let (&least, &most) = (ticks.first()?, ticks.last()?);
        let middle = ticks.len() / 2;
        let median = if ticks.len() % 2 == 1 {
            ticks[middle]
        } else {
            f64::midpoint(ticks[middle - 1], ticks[middle])
        };
        Some(Spread { median, least, most })
    }
}

/// Prints every row.
pub fn print(header: &Header, rows: &[Row], counts: &[Count], counter: &Result<Counter, String>) {
    println!(
        "\n{:<16} {:<9} {:>7}  {:<17} {:>5}  {:>6} {:>6}  ratio of the medians",
        "case", "side", "ticks", "[least, most]", "kept", "instr", "L1D"
    );
    for row in rows {
        for (placement, turns) in row.groups() {
            if !placement.is_empty() {
                println!("{:<16} {placement}", row.case.name);
            }
            for side in 0..header.sides.len() {
                println!("{}", line(header, row, &turns, side, counts));
            }
        }
        let dropped = |why| row.turns.iter().filter(|turn| turn.dropped == Some(why)).count();
        for why in ["waited for a CPU", "CPUs moved"] {
            match dropped(why) {
                0 => {}
                n => println!("{:<16} {n} dropped: {why}", ""),
            }
        }
    }
    println!("\nload after: {}", load());
    match counter {
        Ok(counter) => println!("instr, L1D misses a packet: {}", counter.about()),
        Err(why) => println!("instr, L1D: n/a: {why}"),
    }
    if let Some(line) = against_baseline(counts) {
        println!("{line}");
    }
    for (why, whose) in uncounted(counts) {
        println!("not counted: {}: {why}", whose.join(", "));
    }
    for row in rows {
        println!("{:<16} {}", row.case.name, row.case.about);
    }
}

/// Why something was not counted, and what.
fn uncounted(counts: &[Count]) -> BTreeMap<&str, Vec<String>> {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for count in counts {
        if let Err(why) = &count.counted {
            reasons.entry(why).or_default().push(format!("{} {}", count.case, count.side));
        }
    }
    reasons
}

fn line(header: &Header, row: &Row, turns: &[&Turn], side: usize, counts: &[Count]) -> String {
    let described = &header.sides[side];
    let (ticks, range) = match Spread::of(turns, side) {
        Some(s) => (format!("{:.2}", s.median), format!("[{:.2}, {:.2}]", s.least, s.most)),
        None => ("-".into(), String::new()),
    };
    let counted =
        counts.iter().find(|count| count.case == row.case.name && count.side == described.name);
    let (instr, misses) = match counted.map(|count| &count.counted) {
        Some(Ok(c)) => {
            let misses = c.misses.map_or("n/a".into(), |misses| format!("{misses:.3}"));
            (format!("{:.1}", c.instructions), misses)
        }
        _ => ("n/a".into(), "n/a".into()),
    };
    let kept = format!("{}/{}", turns.len(), row.turns.len());
    let ratio = ratio(header, row, turns, side);
    let name = row.case.name;
    let line = format!(
        "{name:<16} {:<9} {ticks:>7}  {range:<17} {kept:>5}  {instr:>6} {misses:>6}  {ratio}",
        described.name
    );
    line.trim_end().to_owned()
}

/// How a side compares with the first one and with the peer, and with what is promised.
fn ratio(header: &Header, row: &Row, turns: &[&Turn], side: usize) -> String {
    let Some(own) = Spread::of(turns, side) else { return String::new() };
    let of = |other: usize| Spread::of(turns, other).map(|other| own.median / other.median);
    let described = &header.sides[side];
    let mut parts = Vec::new();
    if side > 0 && !described.is_peer {
        parts.extend(of(0).map(|ratio| format!("{ratio:.2} of ours")));
    }
    let peer = header.sides.iter().position(|side| side.is_peer).filter(|peer| *peer != side);
    if let Some(ratio) = peer.and_then(of) {
        let promised = row.case.at_most.filter(|_| described.options.is_empty());
        let dropped = row.turns.iter().filter(|turn| turn.dropped.is_some()).count();
        let few = turns.len() < PAIRS_MIN || 2 * dropped > row.turns.len();
        let verdict = match promised {
            None => String::new(),
            Some(at_most) if few => format!(", at most {at_most:.2}: unclear, too few pairs"),
            Some(at_most) => verdict(ratio, at_most),
        };
        parts.push(format!("{ratio:.2} of DPDK{verdict}"));
    }
    parts.join(", ")
}

fn verdict(ratio: f64, at_most: f64) -> String {
    format!(", at most {at_most:.2}: {}", if ratio <= at_most { "ok" } else { "MISSED" })
}

/// Frames against the system's allocator: instructions a packet, which no neighbour disturbs.
fn against_baseline(counts: &[Count]) -> Option<String> {
    let of = |case| {
        let count = counts.iter().find(|count| count.case == case && count.side == "ours");
        count.and_then(|count| count.counted.as_ref().ok()).map(|counted| counted.instructions)
    };
    let (frames, general) = (of(FRAMES)?, of(GENERAL)?);
    let ratio = frames / general;
    let verdict = verdict(ratio, FRAMES_AT_MOST);
    Some(format!(
        "frames against the system's allocator: {frames:.1} of {general:.1} instructions, \
         {ratio:.2}{verdict}"
    ))
}
