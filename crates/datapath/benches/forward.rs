//! What does the path itself cost a packet?
//!
//! Input: `null → null`, one worker turned by hand: 64 packets allocated and initialised, given a
//! verdict, moved to the other port's backlog, freed, counted, ledger on. And `gen → ring → sink`,
//! two workers turned in turn on one thread: stamped, passed by handle, every byte verified.
//!
//! Prediction: null → null at most 13 TSC cycles a packet: 1.3 times the rate of DPDK 22.11's
//! testpmd on its null ports (156 to 172 Mpps at 2.6 GHz is 15 to 17 cycles). gen → ring → sink
//! within 100: about 15 to write a 60-byte stamp and 27 to read it, the rest as above, twice.

use std::time::Instant;

use linerate_datapath::{Engine, Worker};
use linerate_sys::tsc::ticks;

const REPETITIONS: usize = 9;
const TURNS: u64 = 20_000;
const BUDGET: usize = 64;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    // For an instruction counter around the process: two lengths, and the difference.
    if let [_, once, case, turns, ..] = args.as_slice()
        && once == "--once"
    {
        let make = if case == "null" { null } else { gen_ring_sink };
        let mut workers = make();
        let turns = turns.parse().expect("--once CASE TURNS");
        return turn_all(&mut workers, turns);
    }
    if args.iter().any(|a| a == "--test") {
        report("null -> null", 100, null);
        return report("gen -> ring -> sink", 100, gen_ring_sink);
    }
    report("null -> null", TURNS, null);
    report("gen -> ring -> sink", TURNS / 4, gen_ring_sink);
}

fn null() -> Vec<Worker> {
    let engine = Engine::builder().port("a", "null:").port("b", "null:").wire("a", "b");
    engine.budget(BUDGET).build().expect("null ports can always be opened").into_workers()
}

fn gen_ring_sink() -> Vec<Worker> {
    let engine = Engine::builder()
        .port("gen", "gen:")
        .port("r0", "ring:r")
        .port("r1", "ring:r")
        .port("sink", "sink:")
        .wire("gen", "r0")
        .wire("r1", "sink");
    engine.budget(BUDGET).build().expect("these ports can always be opened").into_workers()
}

/// Turns each worker `turns` times, in turn.
fn turn_all(workers: &mut [Worker], turns: u64) {
    let now = Instant::now();
    for _ in 0..turns {
        for worker in &mut *workers {
            let _ = worker.turn(now);
        }
    }
}

/// Turns the workers made by `make` in turn; prints the median, and the smallest and largest.
fn report(name: &str, turns: u64, make: fn() -> Vec<Worker>) {
    let mut workers = make();
    let mut run = |turns: u64| {
        let start = ticks();
        turn_all(&mut workers, turns);
        ticks() - start
    };
    run(turns / 10);
    // null -> null goes both ways in one turn.
    let per_turn = if name.starts_with("null") { 2 * BUDGET } else { BUDGET };
    let packets = (turns * per_turn as u64) as f64;
    let mut cost: Vec<f64> = (0..REPETITIONS).map(|_| run(turns) as f64 / packets).collect();
    cost.sort_by(f64::total_cmp);
    let (low, mid, high) = (cost[0], cost[REPETITIONS / 2], cost[REPETITIONS - 1]);
    println!("{name:<24} {mid:7.2} TSC ticks/packet  [{low:.2}, {high:.2}]  n = {REPETITIONS}");
}
