//! Tests of the tables below those in a post's layout, which come from the windows' figures.

use linerate_lab::record::{Effect, PairRecord, Run, Status, Verdict, Window};
use linerate_lab::report::{html, text};
use linerate_show::words::WIDTH;

use crate::fixture::{batch, coalesce, coalesce_bus, pool, stages};

/// Returns a pair whose windows have these figures on the sides.
fn pair(a: &[(&str, f64)], b: &[(&str, f64)], packets: u64) -> PairRecord {
    let window = |figures: &[(&str, f64)]| Window {
        packets,
        wall_ns: 1_000_000_000,
        run_delay_ns: 20_000_000,
        cpu_ns: figures.iter().find(|(name, _)| *name == "cpu").map(|(_, ns)| *ns as u64),
        figures: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        ..Window::default()
    };
    let (a, b) = (window(a), window(b));
    PairRecord { a, b, accepted: true, cost_accepted: true, ..PairRecord::default() }
}

/// Returns a run with `pairs` in each cell.
fn with(mut run: Run, pairs: &[PairRecord]) -> Run {
    run.cells.iter_mut().for_each(|cell| cell.pairs = pairs.to_vec());
    run
}

/// Returns post 002's run: side B has calls of many sizes, full rings and losses.
fn batches() -> Run {
    let none = [("missed", 0.0), ("dropped", 0.0), ("receiver_lost", 0.0), ("tx_calls_full", 0.0)];
    let one = [("tx_calls", 1000.0), ("tx_calls_1", 1000.0), ("tcp_rcvq_drop", 0.0)];
    let a = [&none[..], &one, &[("receipt_count", 338.0)]].concat();
    let b = [
        ("missed", 20.0),
        ("dropped", 2.0),
        ("receiver_lost", 5.0),
        ("tcp_rcvq_drop", 5.0),
        ("tx_calls", 200.0),
        ("tx_calls_full", 10.0),
        ("tx_calls_1", 20.0),
        ("tx_calls_2", 30.0),
        ("tx_calls_4", 10.0),
        ("tx_calls_8", 10.0),
        ("tx_calls_16", 20.0),
        ("tx_calls_64", 60.0),
        ("tx_calls_128", 40.0),
    ];
    // A disturbed pair does not count, whatever is in it.
    let disturbed = PairRecord { accepted: false, cost_accepted: false, ..pair(&b, &b, 7) };
    with(batch(), &[pair(&a, &b, 2000), pair(&a, &b, 2000), disturbed])
}

fn rows<'a>(text: &'a str, start: &str) -> Vec<Vec<&'a str>> {
    let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with(start));
    lines.next();
    lines.take_while(|line| !line.contains(": ")).map(|l| l.split_whitespace().collect()).collect()
}

#[test]
fn rows_of_post_002_have_losses_full_rings_and_sizes_of_calls_of_both_sides() {
    let text = text(&batches());
    let rows = rows(&text, "Beside each row:");
    let a = ["TCP", "1", "32", "A", "0", "0", "0.0", "100.0", "0.0", "0.0", "0.0", "0.0", "0.0"];
    let b = ["B", "11,000", "2,500", "5.0", "10.0", "15.0", "10.0", "10.0", "0.0", "50.0"];
    assert!(rows.contains(&a.to_vec()) && rows.contains(&b.to_vec()), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for wanted in [
        "The receivers' counters of drops and errors, A and B: tcp_rcvq_drop 0 and 30.",
        "full: share of the transmit calls in which the device accepted no packet.",
        "p99 is n/a (–): the program that wrote this document asked for more than the 338 probes",
    ] {
        assert!(words.contains(wanted), "no {wanted:?} in\n{text}");
    }
    assert_eq!(words.matches("1 to 64+: share of").count(), 1, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    let page = html(&[batches()]);
    assert!(page.contains("11,000") && page.contains("1 to 64+: share of"), "{page}");
}

#[test]
fn calls_by_packets_are_not_told_of_tap_where_a_write_is_a_packet() {
    let mut run = batches();
    run.cells[0].at.insert("device".into(), "tap".into());
    let text = text(&run);
    let dashes = |row: &Vec<&str>| row.ends_with(&["–"; 6]);
    assert!(rows(&text, "Beside each row:").iter().any(dashes), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let why = "On tap, calls by packets are n/a (–): each packet is a write, so that a cap has no effect.";
    assert_eq!(words.matches(why).count(), 1, "{text}");
}

#[test]
fn losses_are_of_windows_whose_rates_count_and_calls_of_those_whose_costs_count() {
    let mut run = batches();
    let pairs = run.cells.iter_mut().flat_map(|cell| &mut cell.pairs);
    pairs.for_each(|pair| pair.accepted = false);
    let told = text(&run);
    let b = ["B", "–", "–", "–", "10.0", "15.0", "10.0", "10.0", "0.0", "50.0"];
    assert!(rows(&told, "Beside each row:").contains(&b.to_vec()), "{told}");
    assert!(told.contains("p99 is n/a (–): no window's rates count."), "{told}");
    let none = text(&batch());
    assert!(!none.contains("Beside each row"), "{none}");
    run.cells[0].pairs[0] = pair(&[], &[], 1);
    assert!(text(&run).contains("p99 is n/a (–): no window has probes."), "{}", text(&run));
}

#[test]
fn totals_of_post_002_leave_out_rows_of_which_most_pairs_were_disturbed() {
    let mut run = batch();
    run.run.config_toml = Some(include_str!("../../experiments/batch.toml").into());
    run.cells[2].pairs = vec![PairRecord { accepted: false, ..pair(&[], &[], 7) }; 3];
    let words = text(&run).split_whitespace().collect::<Vec<_>>().join(" ");
    for wanted in [
        "Overall: 2000 3500 75.00%",
        "Geometric mean of 2 changes: +73.2 %.",
        "leave out rows of which most pairs were disturbed: 1.",
    ] {
        assert!(words.contains(wanted), "no {wanted:?} in\n{words}");
    }
    let disturbed = run.cells[2].pairs.clone();
    let words = text(&with(run, &disturbed)).split_whitespace().collect::<Vec<_>>().join(" ");
    for wanted in [
        "Overall: n/a n/a n/a%",
        "There are no totals and no mean. Rows of which most pairs were disturbed: 3.",
    ] {
        assert!(words.contains(wanted), "no {wanted:?} in\n{words}");
    }
}

#[test]
fn row_of_post_002_that_missed_its_load_is_named_and_its_p99_is_shown() {
    let mut run = batch();
    run.run.config_toml = Some(include_str!("../../experiments/batch.toml").into());
    let probes = [("receipt_count", 338.0), ("receipt_p99_ns", 91_000.0)];
    let cell = &mut run.cells[0];
    (cell.pairs, cell.status) = (vec![pair(&probes, &probes, 2000); 3], Status::Unreachable);
    cell.metrics.clear();
    let words = text(&run).split_whitespace().collect::<Vec<_>>().join(" ");
    let left_out = "The totals and the mean leave out rows without an effect on goodput_kb_s: \
                    TCP Size:32 Procs:1.";
    assert!(words.contains(left_out), "{words}");
    assert!(!words.contains("p99 is n/a"), "{words}");
    // The windows of the row have a percentile, but nothing says how both sides compare.
    run.cells[0].status = Status::Ok;
    run.cells[0].metrics.insert("doorbells_per_packet".into(), Effect::default());
    let words = text(&run).split_whitespace().collect::<Vec<_>>().join(" ");
    let why = "p99 is n/a (–): windows have it, but no row has an effect on it.";
    assert!(words.contains(why), "{words}");
}

#[test]
fn bounds_beside_the_rows_of_post_002_are_printed_as_bounds() {
    let mut run = batch();
    run.cells.truncate(1);
    let metrics = &mut run.cells[0].metrics;
    let resent = metrics.get_mut("retransmits_per_million").unwrap();
    // Side A counted nothing: its value is that of one event.
    (resent.a, resent.b, resent.censored_below) = (12.0, 60.0, Some(12.0));
    (resent.change_pct, resent.ci95_pct) = (400.0, (30.0, 400.0));
    let at_least = [true, false];
    let p99 = Effect { a: 900.0, b: 400.0, censored_below: None, at_least, ..resent.clone() };
    metrics.insert("receipt_p99_us".into(), p99);
    let words = text(&run).split_whitespace().collect::<Vec<_>>().join(" ");
    let row = "TCP 1 32 1.000 0.031 < 12.00 60 – – ≥ 900 400";
    assert!(words.contains(row), "no {row:?} in\n{words}");
}

/// Checks that a price of which no pair can be used is in the line, as the change could be 0 there.
#[test]
fn no_crossover_is_told_across_a_price_without_figures() {
    for balanced in [true, false] {
        let mut run = coalesce_bus();
        let cell = &mut run.cells[0];
        (cell.status, cell.ledger.b.balanced) = (Status::Inconclusive, balanced);
        cell.metrics.clear();
        let words = text(&run).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("mode=fixed: n/a: at 0 us the load was not reached"), "{words}");
    }
}

/// S1.12.
#[test]
fn cpu_time_of_post_001_has_the_latency_beside_however_many_tables_there_are() {
    let mut run = coalesce();
    run.run.config_toml = Some(include_str!("../../experiments/coalesce.toml").into());
    let cell = run.cells.remove(0);
    run.cells.clear();
    for n in 0_i32..6 {
        let mut cell = cell.clone();
        cell.at.insert("mode".into(), format!("m{n}"));
        for (metric, base) in [("cpu_pct", 50), ("receipt_p50_us", 300), ("receipt_p99_us", 500)] {
            let effect = cell.metrics.get_mut(metric).unwrap();
            (effect.a, effect.b) = (f64::from(base + n), f64::from(base - 10 - n));
        }
        run.cells.push(cell);
    }
    let told = text(&run);
    let words = told.split_whitespace().collect::<Vec<_>>().join(" ");
    for n in 0_i32..6 {
        let (row, title) = (format!("mode=m{n} "), format!("coalescing: mode=m{n}, port=xdp"));
        assert!(told.lines().any(|line| line.trim_start().starts_with(&row)), "{told}");
        let (_, rest) = words.split_once(&title).expect(&title);
        let table = rest.split("In the post's layout").next().unwrap();
        for wanted in [
            format!("25 2.0 3.5 {}.0 {}.0", 50 + n, 40 - n),
            format!("25 100.0 99.5 {}.0 {}.0 {}.0 {}.0", 300 + n, 290 - n, 500 + n, 490 - n),
        ] {
            assert!(table.contains(&wanted), "no {wanted:?} in {table}");
        }
    }
    assert!(!words.contains("more such tables"), "{told}");
}

/// Checks that a cell without effects, because a side missed its load, still has the figures of the
/// side that reached it.
#[test]
fn load_of_post_001_that_one_side_missed_has_the_figures_of_the_other() {
    let mut run = coalesce();
    run.run.config_toml = Some(include_str!("../../experiments/coalesce.toml").into());
    let counts = [("rx_packets", 700.0), ("irqs_device", 100.0), ("irqs_timer", 100.0)];
    let a = [&counts[..], &[("cpu", 450e6)]].concat();
    let b = [&counts[..], &[("cpu", 170e6)]].concat();
    let cell = &mut run.cells[1];
    (cell.pairs, cell.status) = (vec![pair(&a, &b, 2000); 3], Status::Unreachable);
    cell.metrics.retain(|name, _| name == "achieved_pct");
    let told = text(&run);
    let row = "    100            -          3.5       -            17.0\n";
    assert!(told.contains(row), "no {row:?} in\n{told}");
    assert!(told.contains("the load that it names was not reached"), "{told}");
    // Most pairs of the cell may be disturbed as well.
    run.cells[1].status = Status::Inconclusive;
    assert!(text(&run).contains(row), "no {row:?} in\n{}", text(&run));
    run.cells[1].status = Status::Unreachable;
    // If it is unknown which side missed it, neither has figures.
    run.cells[1].metrics.clear();
    let none = text(&run).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(none.contains("100 - - - -"), "{none}");
    // Of a disturbed cell without effects, nothing is known.
    run.cells[1].status = Status::Inconclusive;
    let none = text(&run).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(none.contains("100 n/a n/a n/a n/a"), "{none}");
}

/// CPU time of post 001's cells, in milliseconds of a second: of side A as given, and B half of it.
fn split(more: &[(&'static str, f64)]) -> PairRecord {
    let ms = [
        ("workers_user_ns", 100.0),
        ("workers_system_ns", 300.0),
        ("programs_user_ns", 40.0),
        ("programs_system_ns", 50.0),
        ("interrupts_ns", 10.0),
        ("asleep_ns", 500.0),
    ];
    let ms = ms.iter().chain(more).map(|(name, ms)| (*name, ms * 1e6));
    let a: Vec<_> = ms.chain([("polls", 1000.0), ("polls_empty", 250.0)]).collect();
    let b: Vec<_> = a.iter().map(|(name, value)| (*name, value / 2.0)).collect();
    pair(&a, &b, 1000)
}

#[test]
fn time_of_post_001_is_split_with_hold_and_sleep_apart_and_empty_polls_at_most() {
    let told = text(&with(coalesce(), &[split(&[("hold_ns", 200.0), ("cpu", 400.0)])]));
    let all = rows(&told, "Where the time went");
    let a =
        ["25", "A", "–", "10.0", "≤", "2.5", "30.0", "4.0", "5.0", "1.0", "20.0", "30.0", "2.0"];
    let b = ["B", "–", "5.0", "≤", "1.2", "15.0", "2.0", "2.5", "0.5", "10.0", "15.0", "2.0"];
    assert!(all.contains(&a.to_vec()) && all.contains(&b.to_vec()), "{told}");
    assert!(told.contains("ESTIMATE, at most") && !told.contains("hold is n/a"), "{told}");
    assert!(told.lines().all(|line| line.chars().count() <= WIDTH), "{told}");
    let old = text(&with(coalesce(), &[split(&[("cpu", 400.0)])]));
    let a = ["25", "A", "–", "10.0", "≤", "2.5", "30.0", "4.0", "5.0", "1.0", "–", "50.0", "2.0"];
    assert!(rows(&old, "Where the time went").contains(&a.to_vec()), "{old}");
    assert!(old.contains("hold is n/a (–): this document"), "{old}");
}

#[test]
fn busy_time_of_post_001_is_told_by_stage_where_it_was_sampled() {
    let mut run = coalesce();
    assert!(!text(&run).contains("by stage, by samples"), "nothing was sampled");
    let cell = "load=25 mode=fixed port=xdp";
    run.profiles.extend(["a", "b"].map(|side| stages(side, cell)));
    let told = text(&run);
    let all = rows(&told, "Busy CPU time by stage, by samples");
    // Polling, interrupts, IP, TCP, sockets, copies, memory, kernel, programs and others, in this
    // order; the idle samples are not in it.
    let a = ["21.0", "1.5", "4.5", "8.0", "3.5", "12.5", "17.0", "11.0", "14.0", "7.0"];
    let b = ["12.2", "6.6", "3.6", "10.4", "9.4", "5.2", "14.2", "8.4", "16.8", "13.2"];
    let [a, b] = [[&["25", "A", "1,000"][..], &a].concat(), [&["B", "500"][..], &b].concat()];
    assert!(all.contains(&a) && all.contains(&b), "{told}");
    assert!(told.lines().all(|line| line.chars().count() <= WIDTH), "{told}");
    assert!(html(&[run]).contains("Busy CPU time by stage"));
}

#[test]
fn stage_that_a_document_has_counts_and_not_the_one_of_the_name() {
    let mut run = coalesce();
    run.profiles.extend(["a", "b"].map(|side| stages(side, "load=25 mode=fixed port=xdp")));
    // A function of a module, and libraries' functions in a profile of the whole machine.
    let stored =
        [("frobnicate", "driver"), ("__memmove_avx_unaligned_erms", "user"), ("malloc", "user")];
    for row in run.profiles.iter_mut().flat_map(|profile| &mut profile.rows) {
        if let Some((_, stage)) = stored.iter().find(|(symbol, _)| *symbol == row.symbol) {
            row.stage = Some((*stage).to_owned());
        }
    }
    let told = text(&run);
    let a = ["28.0", "1.5", "4.5", "8.0", "3.5", "0.0", "0.0", "11.0", "43.5", "0.0"];
    let a = [&["25", "A", "1,000"][..], &a].concat();
    assert!(rows(&told, "Busy CPU time by stage, by samples").contains(&a), "{told}");
}

#[test]
fn time_that_exceeds_the_cpu_time_of_the_same_threads_is_not_split() {
    let wrong = text(&with(coalesce(), &[split(&[("cpu", 250.0)])]));
    assert!(!wrong.contains("Where the time went"), "{wrong}");
}

#[test]
fn flushing_reads_have_their_share_of_the_cpu_that_napi_takes_more() {
    let costs = [("flushing_ns", 180.0), ("register_ns", 60.0), ("cpu", 400.0)];
    let mut run = with(coalesce_bus(), &[split(&costs)]);
    run.cells[1].metrics.get_mut("cpu_pct").unwrap().verdict = Verdict::Unclear;
    let line = |run: &Run| text(run).split_whitespace().collect::<Vec<_>>().join(" ");
    let share = "MODEL: share of napi's additional CPU (the difference in cpu_pct) that is flushing \
                 reads, mode=fixed, toll=none: 45 % at load=25";
    let unclear = "toll=1us: n/a at load=25, where its CPU is not clearly more";
    let told = line(&run);
    assert!(told.contains(share) && told.contains(unclear), "{told}");
    let page = html(&[run]);
    assert!(page.contains("mode=fixed, toll=none: 45 % at load=25"), "{page}");
    // Time in registers is no part of polling.
    assert!(told.contains("25 A 6.0 4.0 ≤ 1.0 30.0"), "{told}");
    let free = [("flushing_ns", 0.0), ("cpu", 400.0)];
    assert!(!line(&with(coalesce_bus(), &[split(&free)])).contains("is flushing reads"));
}

#[test]
fn flushing_reads_of_a_side_that_missed_its_load_have_no_share() {
    let costs = [("flushing_ns", 180.0), ("register_ns", 60.0), ("cpu", 400.0)];
    let mut run = with(coalesce_bus(), &[split(&costs)]);
    let share = |run: &Run| text(run).matches("% at load=25").count();
    assert_eq!(share(&run), 2);
    let cpu = run.cells[1].metrics["cpu_pct"].clone();
    let achieved = Effect { a: 83.0, b: 99.0, ..cpu };
    run.cells[1].metrics.insert("achieved_pct".into(), achieved);
    assert_eq!(share(&run), 1);
}

#[test]
fn functions_of_post_003_are_compared_by_packet_because_both_sides_are_sampled_for_equal_times() {
    let mut run = pool();
    run.experiment.seed_post = "003".into();
    let rows = run.profiles[0].rows.clone();
    for profile in &mut run.profiles {
        (profile.rows, profile.cutoff) = (rows.clone(), 0);
        profile.packets = if profile.side == "a" { 1_000_000 } else { 2_000_000 };
    }
    let told = text(&run);
    let total = told.lines().find(|line| line.trim_start().starts_with("total without idle"));
    assert!(total.is_some_and(|line| line.trim_end().ends_with(" 50.0")), "{told}");
}
