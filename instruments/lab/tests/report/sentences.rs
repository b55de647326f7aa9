//! Tests of what a report says of its headline, of quick runs, and of bounds.

use linerate_lab::record::Verdict;
use linerate_lab::report::{html, text};

use crate::fixture::{pool, skbinit};

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
fn sum_over_a_bound_has_the_reason_why_there_is_no_interval() {
    let mut run = pool();
    for line in &mut run.overall {
        (line.censored, line.sum_ci95_pct) = (1, None);
    }
    let sum = "sum -40.4 %, geometric mean -41.1 % (no intervals: in 1 cell a side counted \
               nothing)";
    assert!(words(&text(&run)).contains(sum), "{}", text(&run));
    assert!(html(&[run]).contains(sum));
}
