//! Who is measured: this program, other builds or other options of it, the peer.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use linerate_skb::Pages;
use linerate_skb::bench::{self, Case, Options, Sample};

use crate::args::Plan;
use crate::peer::{self, Peer};
use crate::table::Described;

/// The environment variable whose length moves the stack.
const PAD: &str = "BUFFERS_STACK_PAD";
/// Bytes between two offsets of the stack: 16 of them go once around a page, by whose length loads
/// and stores are mistaken for each other, and through the 4 places in a line that a stack can have.
const PAD_STEP_BYTES: usize = 256 + 16;

/// One side of a comparison.
#[derive(Debug, Clone)]
pub enum Side {
    /// A build of this program with options for its cases; `nth` counts from 0.
    Ours { nth: usize, binary: PathBuf, words: Vec<String> },
    /// DPDK.
    Peer(Peer),
}

/// Our own sides: this program, and what is to be measured beside it.
pub fn ours(plan: &Plan, cpus: &[usize]) -> Result<Vec<Side>, String> {
    let this = std::env::current_exe().map_err(|e| format!("where is this program: {e}"))?;
    let list = cpus.iter().take(2).map(usize::to_string).collect::<Vec<_>>().join(",");
    let pinned = |words: &[String]| {
        let cpus = ["--cpus".to_owned(), list.clone()];
        cpus.into_iter().chain(words.iter().cloned()).collect::<Vec<_>>()
    };
    let mut sides = vec![Side::Ours { nth: 0, binary: this.clone(), words: pinned(&plan.words) }];
    for (i, words) in plan.beside.iter().enumerate() {
        let (binary, words) = match words.split_first() {
            Some((first, rest)) if !first.starts_with("--") => (PathBuf::from(first), rest),
            _ => (this.clone(), &words[..]),
        };
        sides.push(Side::Ours { nth: i + 1, binary, words: pinned(words) });
    }
    Ok(sides)
}

impl Side {
    /// Its name in the table.
    pub fn name(&self) -> String {
        match self {
            Side::Ours { nth: 0, .. } => "ours".into(),
            Side::Ours { nth, .. } => format!("beside {nth}"),
            Side::Peer(_) => "DPDK".into(),
        }
    }

    /// What it is, for the head of the table.
    pub fn describe(&self) -> Result<Described, String> {
        let (about, options) = match self {
            Side::Ours { binary, words, .. } => {
                let about = peer::run(Command::new(binary).arg("--about"))?;
                // The first two say on which CPUs.
                (String::from_utf8_lossy(&about.stdout).trim().to_owned(), words[2..].join(" "))
            }
            Side::Peer(peer) => {
                (format!("{}, -O3 -march=native, huge pages", peer.version), String::new())
            }
        };
        let is_peer = matches!(self, Side::Peer(_));
        Ok(Described { name: self.name(), about, options, is_peer })
    }

    /// The program and arguments of one run of `case`.
    pub fn once(&self, case: &Case, bursts: u64, reps: usize) -> Vec<String> {
        let (binary, words) = match self {
            Side::Ours { binary, words, .. } => (binary.display().to_string(), words),
            Side::Peer(peer) => return peer.once(case.peer, bursts, reps),
        };
        let (bursts, reps) = (bursts.to_string(), reps.to_string());
        let own = [&binary, "--once", case.name, "--bursts", &bursts, "--reps", &reps];
        own.into_iter().map(str::to_owned).chain(words.iter().cloned()).collect()
    }

    /// Runs `case`, with the stack at the offset of `round`.
    pub fn sample(&self, case: &Case, round: usize, reps: usize) -> Result<Sample, String> {
        let words = self.once(case, case.bursts, reps);
        let mut command = match still() {
            true => Command::new("setarch"),
            false => Command::new(&words[0]),
        };
        match still() {
            true => command.arg("--addr-no-randomize").args(&words),
            false => command.args(&words[1..]),
        };
        let output = peer::run(command.env(PAD, "x".repeat(round * PAD_STEP_BYTES)))?;
        Sample::parse(&String::from_utf8_lossy(&output.stdout))
    }
}

/// Whether addresses can be kept from being randomised, so that the offsets are those we set and
/// not 16 random ones.
pub fn still() -> bool {
    static STILL: OnceLock<bool> = OnceLock::new();
    let works = || peer::run(Command::new("setarch").args(["--addr-no-randomize", "true"])).is_ok();
    *STILL.get_or_init(works)
}

/// How this program was built, and the pages that its pool gets.
pub fn about() -> String {
    let known = [
        ("sse2", cfg!(target_feature = "sse2")),
        ("sse4.2", cfg!(target_feature = "sse4.2")),
        ("avx2", cfg!(target_feature = "avx2")),
        ("bmi2", cfg!(target_feature = "bmi2")),
        ("avx512f", cfg!(target_feature = "avx512f")),
        ("avx512vl", cfg!(target_feature = "avx512vl")),
        ("neon", cfg!(target_feature = "neon")),
    ];
    let features: Vec<&str> =
        known.iter().filter(|(_, compiled)| *compiled).map(|(name, _)| *name).collect();
    let pages = if has_huge_pages() { "huge pages" } else { "ordinary pages" };
    let debug = if cfg!(debug_assertions) { ", debug assertions on" } else { "" };
    format!("compiled for {}{debug}, {pages}", features.join(" "))
}

/// Whether a pool gets huge pages here.
pub fn has_huge_pages() -> bool {
    bench::pool(&Options::default()).pages() == Pages::Huge2M
}
