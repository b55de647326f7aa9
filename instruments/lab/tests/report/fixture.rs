//! Artificial runs that resemble real ones, generated from a repeatable stream of random numbers.

use std::collections::BTreeMap;

use linerate_lab::random::Random;
use linerate_lab::record::{
    CellRecord, Compared, Effect, Expected, Head, Ledger, Ledgers, Order, OverallRecord,
    PairRecord, ProfileRecord, ProfileRow, Run, SCHEMA, Status, Verdict, Warning, Window,
};
use linerate_lab::window::ThreadTime;
use linerate_prof::profile::Stack;
use serde_json::json;

pub const POOL: &str = include_str!("pool.toml");

/// Returns post 000's experiment: two factors, profiles, one cell that cannot be run.
pub fn pool() -> Run {
    let mut random = Random::new(2002);
    let mut run = run("pool", "000", ["malloc", "frames"]);
    run.run.config_toml = Some(POOL.into());
    for (change, rate, ratio) in [
        ("frames", "fixed", 0.71),
        ("frames", "max", 0.69),
        ("both", "fixed", 0.44),
        ("both", "max", 0.55),
    ] {
        let hits = if change == "both" { (0.871, 0.998) } else { (0.871, 0.874) };
        let pairs: Vec<PairRecord> =
            (0..30).map(|i| pair(&mut random, ratio, hits, i % 11 == 7)).collect();
        let expected = (change == "both").then(|| Expected {
            change_pct: (-100.0, -51.0),
            source: "post 000: rows of buffer functions fell by 51 %".into(),
            met: ratio < 0.49,
            certain: true,
        });
        let at = [("change", change), ("rate", rate)];
        run.cells.push(cell(&at, pairs, ratio, expected));
        let sum = 100.0 * (ratio - 1.0);
        for (side, ticks) in [("a", 1.0), ("b", ratio)] {
            run.profiles.push(profile(side, &format!("change={change} rate={rate}"), ticks));
            let key = |name: &str| format!("change={change} rate={rate}/{side}/{name}");
            run.totals.insert(key("memory_bytes"), 33_554_432.0 * ticks.round().max(1.0));
            run.totals.insert(key("outstanding"), 0.0);
        }
        run.overall.push(overall("buffer_ticks_per_packet", &format!("rate={rate}"), sum));
    }
    run.overall.push(overall("buffer_ticks_per_packet", "all", -40.4));
    run.cells.push(CellRecord {
        at: at(&[("change", "both"), ("rate", "host")]),
        status: Status::Unsupported,
        ..CellRecord::default()
    });
    run.warnings.push(Warning {
        code: "W-UNSUPPORTED".into(),
        text: "change=both rate=host: packet ports need CAP_NET_RAW".into(),
        fix: Some("sudo linerate lab run pool".into()),
    });
    run
}

/// Returns post 004's experiment: one cell, two workers, a free matrix.
pub fn skbinit() -> Run {
    let mut random = Random::new(2004);
    let mut run = run("skbinit", "004", ["at_free", "at_alloc"]);
    let pairs: Vec<PairRecord> =
        (0..15).map(|i| pair(&mut random, 0.72, (0.5, 0.99), i == 3)).collect();
    run.cells.push(cell(&[("free", "remote")], pairs, 0.72, None));
    run.overall.push(overall("buffer_ticks_per_packet", "all", -28.0));
    for (side, remote) in [("a", 1_827_798), ("b", 1_901_113)] {
        let matrix = vec![vec![235_478, remote], vec![12_004, 220_355]];
        run.matrices.insert(format!("free=remote/{side}/free_matrix"), matrix);
    }
    run
}

/// Returns post 001's experiment: two loads with one mode, and the first side does not reach the
/// second load.
pub fn coalesce() -> Run {
    let mut run = run("coalesce", "001", ["napi", "moderated"]);
    for (load, reached) in [("25", 100.0), ("100", 83.0)] {
        let factors = [("port", "xdp"), ("mode", "fixed"), ("load", load)];
        let mut metrics = BTreeMap::new();
        for (name, a, b) in [
            ("cpu_pct", 45.0, 17.0),
            ("packets_per_irq", 2.0, 3.5),
            ("achieved_pct", reached, 99.5),
            ("receipt_p50_us", 40.0, 140.0),
            ("receipt_p99_us", 80.0, 290.0),
            ("all_cpu_pct", 90.0, 60.0),
        ] {
            metrics.insert(name.into(), effect("%", a, b / a, Verdict::Better));
        }
        let cell = CellRecord { at: at(&factors), metrics, ..CellRecord::default() };
        run.cells.push(cell);
    }
    run
}

/// Returns post 001's model: two prices at one load; at the second price the changed side takes
/// less CPU.
pub fn coalesce_bus() -> Run {
    let mut run = run("coalesce-bus", "001", ["napi", "moderated"]);
    run.run.config_toml = Some(include_str!("../../experiments/coalesce-bus.toml").into());
    for (toll, ratio) in [("none", 1.1), ("1us", 0.9)] {
        let factors = [("mode", "fixed"), ("toll", toll), ("load", "25")];
        let cpu = effect("%", 45.0, ratio, Verdict::Better);
        let metrics = [("cpu_pct".into(), cpu)].into();
        run.cells.push(CellRecord { at: at(&factors), metrics, ..CellRecord::default() });
    }
    run
}

/// Returns post 002's experiment: two tests of one group and one of the other, the last worse.
pub fn batch() -> Run {
    let mut run = run("batch", "002", ["org", "new"]);
    for (test, procs, size, new, verdict) in [
        ("TCP", "1", "32", 1500.0, Verdict::Better),
        ("TCP", "8", "32", 2000.0, Verdict::Better),
        ("NoDelay", "1", "32", 900.0, Verdict::Worse),
    ] {
        let factors = [("device", "xdp"), ("test", test), ("procs", procs), ("size", size)];
        let mut metrics = BTreeMap::new();
        metrics.insert("goodput_kb_s".into(), effect("kB/s", 1000.0, new / 1000.0, verdict));
        let doorbells = effect("doorbells/packet", 1.0, 1.0 / 32.0, Verdict::Better);
        metrics.insert("doorbells_per_packet".into(), doorbells);
        let retransmits = effect("segments/million", 74.0, 91.0 / 74.0, Verdict::Unclear);
        metrics.insert("retransmits_per_million".into(), retransmits);
        let cell = CellRecord { at: at(&factors), metrics, ..CellRecord::default() };
        run.cells.push(cell);
    }
    run
}

fn run(id: &str, post: &str, [a, b]: [&str; 2]) -> Run {
    let tool = [
        ("version", "0.1.0"),
        ("commit", "84064f3c1d20"),
        ("build_id", "5f1c"),
        ("rustc", "1.95.0"),
        ("target_cpu", "x86-64-v3"),
    ];
    Run {
        schema: SCHEMA.into(),
        run: Head {
            id: format!("2026-11-21T101500Z-{id}"),
            started: "2026-11-21T10:15:00Z".into(),
            finished: "2026-11-21T10:17:12Z".into(),
            tool: tool.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            argv: ["linerate", "lab", "run", id].map(String::from).into(),
            seed: 7,
            complete: true,
            note: None,
            config_toml: None,
        },
        env: json!({
            "kernel": "Linux 6.18.44", "cpu": "Intel Xeon Processor", "virt": "kvm",
            "clocksource": "tsc", "mhz": 2596.122,
            "cpus": [{"id": 0, "role": "dut"}, {"id": 1, "role": "gen"}],
            "pmu": {"available": false, "max_unmultiplexed": 0},
            "noise": {"aa_half_width_pct": 0.6, "pairs_accepted": 26, "pairs_attempted": 30}
        }),
        experiment: Compared {
            id: id.into(),
            seed_post: post.into(),
            a: a.into(),
            b: b.into(),
            ..Compared::default()
        },
        verdict: "better".into(),
        warnings: vec![Warning {
            code: "W-NO-PMU".into(),
            text: "this machine lets no events be counted: cycles and instructions are missing"
                .into(),
            fix: Some("run it on the machine itself, or with a virtual PMU".into()),
        }],
        ..Run::default()
    }
}

fn at(factors: &[(&str, &str)]) -> BTreeMap<String, String> {
    factors.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn cell(
    factors: &[(&str, &str)],
    pairs: Vec<PairRecord>,
    ratio: f64,
    expected: Option<Expected>,
) -> CellRecord {
    let pct = 100.0 * (ratio - 1.0);
    let mut metrics = BTreeMap::new();
    let ticks = effect("ticks/packet", 212.4, ratio, Verdict::Better);
    metrics.insert("buffer_ticks_per_packet".into(), Effect { expected, ..ticks });
    let cost = effect("ns/packet", 412.7, 0.5 + ratio / 2.0, Verdict::Better);
    metrics.insert("cost_ns_per_packet".into(), cost);
    let mut rate = effect("packets/s", 2_412_700.0, 1.004, Verdict::Same);
    (rate.ci95_pct, rate.better_when) = ((-1.1, 1.9), Some("higher".into()));
    metrics.insert("packets_per_second".into(), rate);
    let mut locks = effect("locks/packet", 0.0312, 0.01, Verdict::Better);
    (locks.b, locks.censored_below) = (0.000_31, Some(0.000_31));
    metrics.insert("locks_per_packet".into(), locks);
    let passed = 8_012_331;
    let ledger = |lost: u64| Ledger {
        offered: Some(passed),
        unsent: Some(0),
        received: passed,
        sent: passed - lost,
        dropped: BTreeMap::from([("tx_ring_full".to_owned(), lost)]),
        reordered: Some(0),
        duplicated: Some(0),
        ..Ledger::default()
    };
    let lost = (-pct * 22_000.0) as u64;
    let ledger = Ledgers { a: ledger(lost), b: ledger(331), ..Ledgers::default() };
    CellRecord {
        at: at(factors),
        status: Status::Ok,
        pairs,
        metrics,
        ledger,
        ..CellRecord::default()
    }
}

fn effect(unit: &str, a: f64, ratio: f64, verdict: Verdict) -> Effect {
    let pct = 100.0 * (ratio - 1.0);
    Effect {
        unit: unit.into(),
        better_when: Some("lower".into()),
        a,
        b: a * ratio,
        change_pct: pct,
        ci95_pct: (pct - 1.3, pct + 0.9),
        n_pairs: 26,
        aa_half_width_pct: Some(0.6),
        aa_pct: Some((0.08, -0.52, 0.6)),
        p_holm: Some(1e-5),
        verdict,
        ..Effect::default()
    }
}

fn pair(random: &mut Random, ratio: f64, hits: (f64, f64), disturbed: bool) -> PairRecord {
    let mut noise = |width: f64| 1.0 + width * (random.below(2001) as f64 / 1000.0 - 1.0);
    let stretch = if disturbed { 3.1 } else { 1.0 };
    let a = window(412.0 * noise(0.01), hits.0, 1.0);
    let b = window(412.0 * ratio * noise(0.015) * stretch, hits.1, ratio);
    let control = window(412.0 * noise(0.012), hits.0, 1.0);
    PairRecord {
        order: if noise(1.0) > 1.0 { Order::AB } else { Order::BA },
        a,
        b,
        control: Some(control),
        accepted: !disturbed,
        cost_accepted: !disturbed,
        reject_reason: disturbed.then(|| "foreign CPU 31 % of the window".into()),
        ..PairRecord::default()
    }
}

fn window(ns_per_packet: f64, hits: f64, ratio: f64) -> Window {
    let packets = 120_000;
    let thread = ThreadTime {
        role: "worker 0".into(),
        cpu: Some(0),
        wall_ns: (ns_per_packet * packets as f64) as u64,
        cpu_ns: (ns_per_packet * packets as f64) as u64,
        measured: true,
        ..ThreadTime::default()
    };
    let mut window = Window { packets, ..Window::of(vec![thread]) };
    let n = packets as f64;
    let scale = ns_per_packet / 412.0;
    for (name, value) in [
        ("hits", hits * n),
        ("allocs", n),
        ("frees", n),
        ("buffer_ticks", 212.4 * n * scale),
        ("alloc_ticks", 90.0 * n * scale),
        ("free_ticks", 122.4 * n * scale),
        ("allocs_w0", 0.1 * n / ratio),
        ("allocs_w1", 0.9 * n),
        ("frees_w0", 0.9 * n),
        ("frees_w1", 0.1 * n),
        ("alloc_ticks_w0", 6.4 * n * scale / ratio),
        ("alloc_ticks_w1", 183.0 * n * scale),
        ("free_ticks_w0", 114.0 * n * scale),
        ("free_ticks_w1", 22.8 * n * scale),
        ("locks", 0.03 * n),
    ] {
        window.figures.insert(name.into(), value);
    }
    window
}

fn overall(metric: &str, group: &str, pct: f64) -> OverallRecord {
    let (sum_ratio_pct, geomean_pct) = (pct, pct - 0.7);
    let (metric, group) = (metric.into(), group.into());
    OverallRecord {
        metric,
        group,
        sum_ratio_pct,
        geomean_pct,
        sum_ci95_pct: Some((pct - 1.0, pct + 1.0)),
        geomean_ci95_pct: None,
        censored: 0,
        nothing: 0,
        better: 4,
        worse: 0,
        same: 0,
        unclear: 0,
    }
}

/// Returns a side's profile of a cell with functions of every column of the table of stages, 1,000
/// samples of side A and 500 of side B without idle time.
pub fn stages(side: &str, cell: &str) -> ProfileRecord {
    let rows = [
        ("linerate_port::xdp::Xdp::rx_burst", [150, 40]),
        ("linerate_datapath::engine::forward", [60, 21]),
        ("handle_irq_event", [15, 33]),
        ("ip_rcv", [45, 18]),
        ("tcp_v4_rcv", [80, 52]),
        ("sock_recvmsg", [35, 47]),
        ("__memmove_avx_unaligned_erms", [125, 26]),
        ("malloc", [170, 71]),
        ("schedule", [60, 20]),
        ("entry_SYSCALL_64", [30, 13]),
        ("native_queued_spin_lock_slowpath", [20, 9]),
        ("USER", [100, 50]),
        // Only its stage tells that it is of a program.
        ("clock_gettime", [40, 34]),
        ("frobnicate", [70, 66]),
        ("default_idle", [5_000, 7_000]),
    ];
    let row = |(symbol, counts): (&str, [u64; 2])| ProfileRow {
        symbol: symbol.into(),
        count: counts[usize::from(side == "b")],
        code_bytes: None,
        stage: (symbol == "clock_gettime").then(|| "user".into()),
    };
    let (rows, stacks) = (rows.map(row).into(), Vec::new());
    ProfileRecord { rows, stacks, cutoff: 0, ..profile(side, cell, 1.0) }
}

/// Returns a side's profile of a cell; `ratio` changes what buffers and locks take.
fn profile(side: &str, cell: &str, ratio: f64) -> ProfileRecord {
    let rows = [
        ("linerate_skb::pool::Pool::alloc", 382, 432, true),
        ("linerate_skb::pool::Pool::free", 241, 128, true),
        ("malloc", 645, 256, true),
        ("free", 638, 160, true),
        ("<linerate_port::ring::Ring as linerate_port::Port>::rx_burst", 927, 208, false),
        ("linerate_datapath::engine::forward", 733, 144, false),
        ("__memmove_avx_unaligned_erms", 233, 64, false),
        ("native_queued_spin_lock_slowpath", 88, 300, true),
        ("ip_rcv", 81, 832, false),
        ("default_idle", 2_804, 48, false),
    ];
    let row = |&(symbol, count, bytes, saved): &(&str, u64, u64, bool)| ProfileRow {
        symbol: symbol.into(),
        count: if saved { (count as f64 * ratio * ratio * ratio) as u64 } else { count },
        code_bytes: Some(bytes),
        stage: None,
    };
    let rows: Vec<ProfileRow> =
        rows.iter().map(row).filter(|row| side == "a" || row.count >= 60).collect();
    let chain = |row: &ProfileRow| Stack {
        frames: ["start_thread", "Worker::turn", &row.symbol].map(String::from).into(),
        count: row.count,
    };
    ProfileRecord {
        remarks: Vec::new(),
        own_cost: None,
        checked: None,
        stacks: rows.iter().map(chain).collect(),
        side: side.into(),
        cell: cell.into(),
        event: "cpu-clock".into(),
        unit: "samples".into(),
        packets: 2_400_000,
        cutoff: if side == "b" { 60 } else { 0 },
        rows,
    }
}
