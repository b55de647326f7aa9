//! Question: what does a packet buffer cost, from its allocation to its release, in ticks of the
//! TSC, instructions and L1 misses, and how does that compare with DPDK's mbufs on the same machine?
//!
//! Prediction, in DPDK 22.11's ticks: a quarter for a bulk of 32 allocated, initialised and freed,
//! because a free reads nothing (0.45 of them if one in 32 is shared or fragmented, and is looked
//! at); half for 32 single drops; 0.7 without a hot list, when every burst takes the depot's lock;
//! 0.6 across two cores, where the consumer reads one line a packet and the free list is indices;
//! parity for a ring.
//!
//! Inputs: pools of 8191 buffers in huge pages on both sides, bursts of 32, a hot list of 1024
//! against DPDK's cache of 256, rings of 1024. Each sample is a process of its own, ours and the
//! peer's in turn, because results depend on where the stack begins: an environment variable of
//! another length moves it before each pair. Pairs in which a thread waited for its CPU, or between
//! which the two CPUs moved apart, are dropped and counted.
//!
//! `cargo bench -p linerate-skb`; benches/README.md has the options. Without `--bench` among its
//! arguments (`cargo test --benches`) it is a smoke test of few rounds in one process.

#[path = "buffers/args.rs"]
mod args;
#[path = "buffers/counts.rs"]
mod counts;
#[path = "buffers/json.rs"]
mod json;
#[path = "buffers/line.rs"]
mod line;
#[path = "buffers/peer.rs"]
mod peer;
#[path = "buffers/rounds.rs"]
mod rounds;
#[path = "buffers/side.rs"]
mod side;
#[path = "buffers/table.rs"]
mod table;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use linerate_skb::bench::{self, CASES, Case, Options};
use linerate_sys::{thread, tsc};

use args::{Command, Plan};
use counts::Counter;
use peer::Peer;
use side::Side;
use table::Header;

fn main() -> ExitCode {
    let done = match args::parse(std::env::args().skip(1)) {
        Ok(Command::Once(once)) => {
            let timer = bench::run(once.case, &once.options, once.bursts, once.reps);
            println!("{}", timer.sample().line(once.case.name));
            Ok(())
        }
        Ok(Command::About) => {
            println!("{}", side::about());
            Ok(())
        }
        Ok(Command::Smoke) => {
            smoke();
            Ok(())
        }
        Ok(Command::Measure(plan)) => measure(&plan),
        Err(why) => Err(why),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Every case, briefly: each asserts that all its packets came home.
fn smoke() {
    let options = Options::default();
    for case in &CASES {
        if case.two_cores && options.cpus.len() < 2 {
            println!("skipped: {}: it needs two CPUs", case.name);
            continue;
        }
        let timer = bench::run(case, &options, 100, 1);
        println!("{}", timer.sample().line(case.name));
    }
}

fn measure(plan: &Plan) -> Result<(), String> {
    let start = Instant::now();
    let cpus = thread::allowed_cpus().map_err(|e| e.to_string())?;
    let (here, elsewhere): (Vec<&'static Case>, _) =
        plan.cases.iter().partition(|case| !case.two_cores || cpus.len() > 1);
    for case in elsewhere {
        eprintln!("skipped: {}: it needs two CPUs", case.name);
    }
    let peer = Peer::build(&cpus).and_then(|peer| match side::has_huge_pages() {
        true => Ok(peer),
        false => Err("it has huge pages and we have none left (sysctl vm.nr_hugepages)".into()),
    });
    let mut sides = side::ours(plan, &cpus)?;
    sides.extend(peer.iter().cloned().map(Side::Peer));
    let header = Header {
        tsc_hz: tsc::rate_hz(Duration::from_millis(100)),
        sides: sides.iter().map(Side::describe).collect::<Result<_, _>>()?,
        alone: peer.err(),
        rounds: plan.rounds,
        cpus: cpus.iter().copied().take(2).collect(),
        load: table::load(),
    };
    if !plan.json {
        print!("{header}");
    }
    let rows = rounds::run(&here, &sides, plan, &header)?;
    let counter = if plan.counts { Counter::find() } else { Err("not asked for".into()) };
    let counts = counts::count(&here, &sides, &counter, || start.elapsed() < plan.counts_end);
    if plan.json {
        println!("{}", json::document(&header, &rows, &counts));
    } else {
        table::print(&header, &rows, &counts, &counter);
    }
    Ok(())
}
