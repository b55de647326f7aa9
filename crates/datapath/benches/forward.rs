//! Cost of the whole path, for each packet.
//!
//! Input: `null → null`, one worker turned by hand: 64 packets allocated and initialised, given a
//! verdict, moved to the other port's backlog, freed, counted, ledger on; the same with one packet
//! a turn, and with a cap of one, which then is to cost nothing; and 64 packets with a cap of one,
//! a call for each, and of 16, four calls. `gen → ring → sink`, two workers
//! turned in turn on one thread: stamped, passed by handle, every byte verified. And `null →
//! memif`, packets of 1514 bytes that a reader sees where they lie, or in a copy; it looks at none
//! of their bytes.
//!
//! Prediction: null → null at most 13 TSC cycles a packet: 1.3 times the rate of DPDK 22.11's
//! testpmd on its null ports (156 to 172 Mpps at 2.6 GHz is 15 to 17 cycles). gen → ring → sink
//! within 100: about 15 to write a 60-byte stamp and 27 to read it, the rest as above, twice.
//! null → memif where they lie: at most 0.7 of the instructions of the copy.

use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Stats, TxBatch, Worker};
use linerate_port::memif::Reader;
use linerate_sys::tsc::ticks;

const REPETITIONS: usize = 9;
const TURNS: u64 = 20_000;
const BUDGET: usize = 64;
const MEET: Duration = Duration::from_secs(5);

fn main() {
    let args: Vec<String> = std::env::args().collect();
    // Runs one case, for an external counter of instructions: two runs of different length give the
    // cost of a turn.
    if let [_, once, case, turns, ..] = args.as_slice()
        && once == "--once"
    {
        let case = CASES.iter().find(|known| known.name == case).expect("--once CASE TURNS");
        return checked(case, turns.parse().expect("--once CASE TURNS"));
    }
    let test = args.iter().any(|a| a == "--test");
    for case in &CASES {
        report(case, if test { 100 } else { case.turns });
    }
}

/// Turns the path, and checks that it moved the packets that the count is divided by.
fn checked(case: &Case, turns: u64) {
    let mut path = (case.make)();
    path.counted(turns);
    path.check(case, turns);
}

struct Case {
    name: &'static str,
    title: &'static str,
    make: fn() -> Path,
    turns: u64,
    /// Packets of one turn; `null → null` passes them in both directions.
    packets_per_turn: usize,
}

const CASES: [Case; 8] = [
    Case {
        name: "null",
        title: "null -> null",
        make: || null(BUDGET, TxBatch::Auto),
        turns: TURNS,
        packets_per_turn: 2 * BUDGET,
    },
    Case {
        name: "alone",
        title: "null -> null, one each",
        make: || null(1, TxBatch::Auto),
        turns: TURNS,
        packets_per_turn: 2,
    },
    Case {
        name: "alone_cap_1",
        title: "the same, tx_batch=1",
        make: || null(1, TxBatch::Packets(1)),
        turns: TURNS,
        packets_per_turn: 2,
    },
    Case {
        name: "null_cap_1",
        title: "null -> null, tx_batch=1",
        make: || null(BUDGET, TxBatch::Packets(1)),
        turns: TURNS,
        packets_per_turn: 2 * BUDGET,
    },
    Case {
        name: "null_cap_16",
        title: "null -> null, tx_batch=16",
        make: || null(BUDGET, TxBatch::Packets(16)),
        turns: TURNS,
        packets_per_turn: 2 * BUDGET,
    },
    Case {
        name: "gen",
        title: "gen -> ring -> sink",
        make: gen_ring_sink,
        turns: TURNS / 4,
        packets_per_turn: BUDGET,
    },
    Case {
        name: "fabric",
        title: "null -> memif, 1514 B",
        make: || fabric("read"),
        turns: TURNS / 4,
        packets_per_turn: BUDGET,
    },
    Case {
        name: "fabric_copy",
        title: "the same, copied",
        make: || fabric("no"),
        turns: TURNS / 4,
        packets_per_turn: BUDGET,
    },
];

/// Workers turned by one thread, with the readers of the packets that they send.
struct Path {
    workers: Vec<Worker>,
    reader: Option<Reader>,
    stats: Stats,
}

impl Path {
    /// Turns each worker `turns` times, alternating between them. `cargo xtask count` counts in
    /// this function alone, by its name.
    #[inline(never)]
    fn counted(&mut self, turns: u64) {
        let now = Instant::now();
        for _ in 0..turns {
            for worker in &mut self.workers {
                let _ = worker.turn(now);
            }
            if let Some(reader) = &mut self.reader {
                reader.frames(BUDGET).for_each(drop);
            }
        }
    }

    /// Returns the number of packets that have left the path.
    fn passed(&self) -> u64 {
        match &self.reader {
            Some(reader) => reader.counts().frames,
            None => self.stats.ledger().sent,
        }
    }

    /// Panics unless all packets of `turns` turns have left the path.
    fn check(&self, case: &Case, turns: u64) {
        // Packets of the last turn may still wait.
        let expected = turns.saturating_sub(1) * case.packets_per_turn as u64;
        let passed = self.passed();
        assert!(passed >= expected, "{}: {passed} packets passed, {expected} expected", case.name);
    }
}

fn null(budget: usize, cap: TxBatch) -> Path {
    let engine = Engine::builder().port("a", "null:").port("b", "null:").wire("a", "b");
    let engine =
        engine.budget(budget).tx_batch(cap).build().expect("null ports can always be opened");
    let stats = engine.stats();
    Path { workers: engine.into_workers(), reader: None, stats }
}

fn gen_ring_sink() -> Path {
    let engine = Engine::builder()
        .port("gen", "gen:")
        .port("r0", "ring:r")
        .port("r1", "ring:r")
        .port("sink", "sink:")
        .wire("gen", "r0")
        .wire("r1", "sink");
    let engine = engine.budget(BUDGET).build().expect("these ports can always be opened");
    let stats = engine.stats();
    Path { workers: engine.into_workers(), reader: None, stats }
}

fn fabric(zerocopy: &str) -> Path {
    let place = format!("memif:@linerate-bench-{}", std::process::id());
    let mut reader = Reader::open(&place).expect("a name of its own");
    let mut engine = Engine::builder()
        .port("null", "null:,size=1514")
        .port("memif", &format!("{place},role=client,zerocopy={zerocopy}"))
        .wire("null", "memif")
        .budget(BUDGET)
        .build()
        .expect("a memif's client can always be opened");
    let until = Instant::now() + MEET;
    while !engine.wait_until_up(Duration::from_millis(1)) {
        // This thread drives both ends: while it waits for one end, it must serve the other.
        let _ = reader.arm();
        assert!(Instant::now() < until, "the two ends do not come to terms");
    }
    let stats = engine.stats();
    Path { workers: engine.into_workers(), reader: Some(reader), stats }
}

/// Turns the path, and checks that it moved all packets; prints the median, minimum and maximum.
fn report(case: &Case, turns: u64) {
    let mut path = (case.make)();
    let mut run = |turns: u64| {
        let start = ticks();
        path.counted(turns);
        ticks() - start
    };
    run(turns / 10);
    let packets = (turns * case.packets_per_turn as u64) as f64;
    let mut cost: Vec<f64> = (0..REPETITIONS).map(|_| run(turns) as f64 / packets).collect();
    path.check(case, turns / 10 + REPETITIONS as u64 * turns);
    cost.sort_by(f64::total_cmp);
    let (low, mid, high) = (cost[0], cost[REPETITIONS / 2], cost[REPETITIONS - 1]);
    let name = case.title;
    println!("{name:<24} {mid:7.2} TSC ticks/packet  [{low:.2}, {high:.2}]  n = {REPETITIONS}");
}
