//! Tests of what a report says of its headline, of quick runs, and of bounds.

use linerate_lab::record::{Ledgers, PlacementRecord, Run, Status, Verdict};
use linerate_lab::report::{html, text};

use crate::fixture::{POOL, pool, skbinit};

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn headline_without_a_better_direction_that_differs_is_a_result() {
    let mut run = skbinit();
    let ticks = run.cells[0].metrics.get_mut("buffer_ticks_per_packet").unwrap();
    (ticks.better_when, ticks.verdict) = (None, Verdict::Unclear);
    assert!(text(&run).starts_with("at_alloc is different from at_free."), "{}", text(&run));
    let ticks = run.cells[0].metrics.get_mut("buffer_ticks_per_packet").unwrap();
    ticks.p_holm = Some(0.2);
    assert!(text(&run).starts_with("at_alloc against at_free: no result (unclear)"));
}

#[test]
fn only_the_mark_of_a_quick_run_in_the_note_makes_it_quick() {
    let mut run = pool();
    run.run.note = Some("quick check of the new kernel; 3 warm-up windows".into());
    assert!(!text(&run).contains("QUICK"), "a user's note is no mark");
    run.run.note = Some("mine; quick: the declared subset, few pairs; 3 warm-up windows".into());
    assert!(text(&run).contains("QUICK"));
}

#[test]
fn bound_is_of_the_side_that_counted_nothing_also_if_the_other_counted_one_event() {
    let row = |ci95_pct: (f64, f64)| {
        let mut run = skbinit();
        let locks = run.cells[0].metrics.get_mut("locks_per_packet").unwrap();
        (locks.a, locks.b, locks.censored_below) = (0.002, 0.002, Some(0.002));
        (locks.change_pct, locks.ci95_pct) = (0.0, ci95_pct);
        let told = text(&run);
        words(told.lines().find(|line| line.contains("0.002000")).unwrap())
    };
    let first = row((-97.4, 0.0));
    assert!(first.contains("< 0.002000 0.002000 ≥"), "A counted nothing: {first}");
    let second = row((-100.0, 3800.0));
    assert!(second.contains("0.002000 < 0.002000 ≤"), "B counted nothing: {second}");
}

#[test]
fn value_that_is_a_lower_bound_is_printed_as_one() {
    let row = |at_least| {
        let mut run = skbinit();
        let locks = run.cells[0].metrics.get_mut("locks_per_packet").unwrap();
        (locks.a, locks.b, locks.censored_below) = (0.002, 0.003, None);
        (locks.change_pct, locks.ci95_pct, locks.at_least) = (50.0, (40.0, 60.0), at_least);
        let told = text(&run);
        words(told.lines().find(|line| line.contains("0.003000")).unwrap())
    };
    assert!(row([false, true]).contains("0.002000 ≥ 0.003000 ≥ 50.0"), "{}", row([false, true]));
    assert!(row([true, false]).contains("≥ 0.002000 0.003000 ≤ 50.0"), "{}", row([true, false]));
}

#[test]
fn sum_over_a_bound_has_the_reason_why_there_is_no_interval() {
    let mut run = pool();
    for line in &mut run.overall {
        (line.censored, line.sum_ci95_pct) = (1, None);
    }
    let sum = "sum -40.4 %, geometric mean -41.1 % (no intervals: in 1 cell the change is \
               a bound)";
    assert!(words(&text(&run)).contains(sum), "{}", text(&run));
    assert!(html(&[run]).contains(sum));
}

/// Returns a run of the experiment `pool` that expects these ranges of its headline over all cells.
fn expecting(sum_pct: &str, geomean_pct: &str) -> Run {
    let mut run = pool();
    let table = format!(
        "[metric.overall]\nsum_pct = {sum_pct}\ngeomean_pct = {geomean_pct}\nsource = \"ours\"\n"
    );
    let next = "[[metric]]\nname = \"cost_ns_per_packet\"";
    run.run.config_toml = Some(POOL.replacen(next, &format!("{table}{next}"), 1));
    for line in run.overall.iter_mut().filter(|line| line.group == "all") {
        (line.sum_ci95_pct, line.geomean_ci95_pct) = (Some((-41.4, -39.4)), Some((-43.0, -40.0)));
    }
    run
}

#[test]
fn expectation_of_the_sum_and_of_the_mean_over_all_cells_is_judged_by_their_intervals() {
    let sum = "buffer_ticks_per_packet, sum over all cells: expected";
    let mean = "buffer_ticks_per_packet, geometric mean over all cells: expected";
    let run = expecting("[-42, -39]", "[-100, -44]");
    for wanted in [
        format!("{sum} -42 to -39 % (ours): met "),
        format!("{mean} -100 to -44 % (ours): NOT met, which is a result"),
    ] {
        assert!(words(&text(&run)).contains(&wanted), "no {wanted:?} in {}", text(&run));
    }
    assert!(html(&[run]).contains("sum over all cells: expected -42 to -39 %"));
    let mut run = expecting("[-100, -40]", "[-39, 1000]");
    let told = words(&text(&run));
    assert!(told.contains(&format!("{sum} -100 to -40 % (ours): open: the interval")), "{told}");
    assert!(told.contains(&format!("{mean} -39 to +1000 % (ours): NOT met")), "{told}");
    // A part of the grid decides nothing, nor do cells of which most pairs were disturbed.
    run.cells[0].pairs.iter_mut().for_each(|pair| pair.cost_accepted = false);
    let (told, open) = (words(&text(&run)), "open: only 3 of 4 cells");
    assert!(told.contains(&format!("{mean} -39 to +1000 % (ours): {open}")), "{told}");
    run.overall.clear();
    assert!(!text(&run).contains("over all cells: expected"), "{}", text(&run));
    assert!(!text(&pool()).contains("over all cells: expected"));
}

#[test]
fn expectation_over_all_cells_of_a_run_without_such_a_line_is_not_judged_for_a_reason() {
    let mut run = expecting("[-42, -39]", "[-100, -44]");
    assert!(!text(&run).contains("not judged"), "{}", text(&run));
    let assert_told = |run: &Run, why: &str| {
        let line =
            format!("buffer_ticks_per_packet, expected overall (ours): not judged, because {why}");
        assert!(words(&text(run)).contains(&line), "no {line:?} in {}", text(run));
        let page = html(std::slice::from_ref(run));
        assert!(page.contains(&format!("not judged, because {why}</span>")), "{why}");
    };
    run.overall.clear();
    assert_told(&run, "the run has no line over all cells");
    let pairs = run.cells.iter_mut().flat_map(|cell| &mut cell.pairs);
    pairs.for_each(|pair| pair.cost_accepted = false);
    assert_told(&run, "each cell was disturbed in most pairs, counted nothing, or is not finished");
    for cell in &mut run.cells {
        cell.metrics.remove("buffer_ticks_per_packet");
    }
    assert_told(&run, "no cell has a value of it");
}

#[test]
fn margin_and_family_are_printed_with_their_origin() {
    let fact = |run: &Run, about: &str| {
        let (told, start) = (text(run), format!("  {about:12}"));
        told.lines().find_map(|line| line.strip_prefix(&start)).unwrap().to_owned()
    };
    let mut run = pool();
    let older = "the noise floor, at least 1 %: the run stores no margin";
    assert_eq!(fact(&run, "margin"), older);
    for effect in run.cells.iter_mut().flat_map(|cell| cell.metrics.values_mut()) {
        effect.same_pct = Some(1.0);
    }
    assert_eq!(fact(&run, "margin"), "1 %, the default");
    assert_eq!(fact(&run, "family"), "4: the cells of each metric, the default");
    let declared = POOL.replacen("clock = \"cost\"", "clock = \"cost\"\nsame_pct = 5", 1).replacen(
        "warmup = 3",
        "warmup = 3\nfamily = \"experiment\"",
        1,
    );
    run.run.config_toml = Some(declared);
    let margin = "5 % of buffer_ticks_per_packet, declared; 1 % of the others, the default";
    assert_eq!(fact(&run, "margin"), margin);
    assert_eq!(fact(&run, "family"), "16: all cells of all metrics, declared");
    assert!(html(&[run]).contains(margin));
}

#[test]
fn expectation_that_is_open_in_a_cell_is_not_coloured_as_met() {
    let mut run = pool();
    let expected: Vec<_> = run
        .cells
        .iter_mut()
        .filter_map(|cell| cell.metrics.get_mut("buffer_ticks_per_packet")?.expected.as_mut())
        .collect();
    assert_eq!(expected.len(), 2);
    for (one, certain) in expected.into_iter().zip([true, false]) {
        (one.met, one.certain) = (true, certain);
    }
    let page = html(std::slice::from_ref(&run));
    assert!(page.contains("<span class=\"key\">met in 1, open in 1</span>"), "{}", text(&run));
    assert!(!page.contains("<span class=\"key better\">met"));
}

#[test]
fn disturbed_pairs_of_a_cell_are_those_that_the_headlines_clock_does_not_admit() {
    let mut run = pool();
    let cell = &mut run.cells[0];
    (cell.status, cell.ledger) = (Status::Inconclusive, Ledgers::default());
    cell.metrics.clear();
    for (pair, i) in cell.pairs.iter_mut().zip(0..) {
        (pair.accepted, pair.cost_accepted) = (false, i < 7);
        pair.reject_reason = Some("the host took 10 ms, 10.0 % (limit 0.5 %)".into());
    }
    let told = words(&text(&run));
    assert!(told.contains("7 of 30 pairs were undisturbed: the host took 10 ms"), "{told}");
    assert!(told.contains("(limit 0.5 %) in 23"), "{told}");
}

#[test]
fn ledger_is_ok_only_if_its_sums_and_its_mark_are() {
    let unbalanced = |run: &Run| text(run).contains("UNBALANCED");
    assert!(!unbalanced(&pool()));
    let mut run = pool();
    run.cells[0].ledger.b.sent -= 1;
    assert!(run.conserved() && unbalanced(&run), "its mark alone says that it is");
    run.cells[0].ledger.b.in_flight += 1;
    assert!(!unbalanced(&run));
    run.cells[0].ledger.b.balanced = false;
    assert!(unbalanced(&run), "its sums alone say that it is");
}

#[test]
fn noise_floor_of_a_run_is_that_of_its_noisiest_cell() {
    let mut run = pool();
    for (cell, floor) in run.cells.iter_mut().zip([0.6, 2.5, 0.7]) {
        let ticks = cell.metrics.get_mut("buffer_ticks_per_packet").unwrap();
        ticks.aa_half_width_pct = Some(floor);
    }
    assert!(text(&run).contains("±2.50 % at most, for the headline"), "{}", text(&run));
}

#[test]
fn verdict_same_of_a_run_that_stores_no_margin_is_within_its_noise_and_at_least_one_per_cent() {
    let said = |floor: Option<f64>| {
        let mut run = pool();
        for effect in run.cells.iter_mut().flat_map(|cell| cell.metrics.values_mut()) {
            (effect.verdict, effect.aa_half_width_pct) = (Verdict::Same, floor);
        }
        let told = text(&run);
        told.split("  same ±").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    assert_eq!([Some(0.6), Some(2.3), None].map(said), ["1.0", "2.3", "1.0"]);
}

#[test]
fn rejected_pair_is_not_drawn_as_one_at_another_distance() {
    let mut run = skbinit();
    let drawn = |run: &Run, class: &str| {
        html(std::slice::from_ref(run)).matches(&format!("class=\"{class}\"")).count()
    };
    let rejected = drawn(&run, "rejected");
    assert!(rejected > 0 && drawn(&run, "elsewhere") == 0);
    for pair in run.cells[0].pairs.iter_mut().take(2) {
        let class = "near".into();
        pair.placement = Some(PlacementRecord { before_ticks: 50.0, after_ticks: 50.0, class });
    }
    assert!(drawn(&run, "elsewhere") > 0);
    assert_eq!(drawn(&run, "rejected"), rejected);
}
