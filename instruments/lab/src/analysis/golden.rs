//! Golden values of each statistic, computed with SciPy and statsmodels by `tests/golden/stats.py`,
//! which documents the method.

use serde_json::Value;

use super::samples::Part;
use super::testing::{experiment, run_of};
use super::{analyse, overall, pct, signs, sums};
use crate::compare::compare;
use crate::experiment::Experiment;
use crate::record::{CellRecord, Effect, PairRecord, Run};
use crate::window::Window;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/golden/stats.json")).unwrap()
}

fn each<'a>(golden: &'a Value, name: &str) -> &'a Vec<Value> {
    golden[name].as_array().filter(|values| !values.is_empty()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Returns the parts of a side's set-ups from its counts and lengths.
fn parts(over: &Value, under: &Value) -> Vec<Part> {
    let each = numbers(over).into_iter().zip(numbers(under));
    each.map(|(over, under)| Part { over, under }).collect()
}

/// Compares an estimate and the ends of its interval with the values of `case` that begin at
/// `from`.
fn all_near(ours: [f64; 3], case: &Value, from: usize) {
    for (i, ours) in ours.into_iter().enumerate() {
        near(ours, number(&case[from + i]), case);
    }
}

fn near(ours: f64, theirs: f64, what: &Value) {
    assert!((ours - theirs).abs() <= 1e-6 * theirs.abs().max(1.0), "{ours}, not {theirs}: {what}");
}

#[test]
fn chances_are_scipys_of_wilcoxons_signed_ranks() {
    for case in each(&golden(), "signed_rank") {
        near(signs::chance(&numbers(&case[0])), case[1].as_f64().unwrap(), case);
    }
}

#[test]
fn quantiles_are_scipys_of_students_t() {
    for case in each(&golden(), "student") {
        let [freedom, level, theirs] = numbers(case)[..] else { panic!("{case}") };
        near(linerate_prof::student(freedom as usize, level), theirs, case);
    }
}

#[test]
fn intervals_of_medians_are_those_of_scipys_binomial() {
    for case in each(&golden(), "median_interval") {
        let [n, level, low] = numbers(case)[..] else { panic!("{case}") };
        let values: Vec<f64> = (1..=n as usize).map(|i| i as f64).collect();
        let interval = signs::median_interval(&values, level).unwrap();
        near(interval.low, low, case);
        near(interval.high, n + 1.0 - low, case);
    }
}

#[test]
fn intervals_of_ratios_of_sums_are_scipys() {
    for case in each(&golden(), "ratio_of_sums") {
        let part = |over: f64| Part { over, under: 1.0 };
        let pairs = numbers(&case[0]).into_iter().zip(numbers(&case[1]));
        let set_ups: Vec<_> = pairs.map(|(a, b)| vec![(part(a), part(b))]).collect();
        let found = sums::change(&set_ups, Some(1.0), 0.95).unwrap();
        near(found.interval.low, case[2].as_f64().unwrap(), case);
        near(found.interval.high, case[3].as_f64().unwrap(), case);
    }
}

#[test]
fn bounds_of_what_was_never_seen_are_scipys_exact_binomial() {
    for case in each(&golden(), "none_of") {
        let [events, level, theirs] = numbers(case)[..] else { panic!("{case}") };
        let part = |over| Part { over, under: 1.0 };
        let set_ups = vec![vec![(part(1.0), part(0.0))]; events as usize];
        let found = sums::change(&set_ups, Some(1.0), level).unwrap();
        near(found.interval.high.exp(), theirs, case);
    }
}

#[test]
fn corrected_chances_are_holms() {
    let holm = &golden()["holm"];
    let ours = signs::holm(&numbers(&holm[0]), holm[1].as_u64().unwrap() as usize);
    ours.into_iter().zip(numbers(&holm[2])).for_each(|(ours, theirs)| near(ours, theirs, holm));
}

#[test]
fn intervals_of_rates_are_those_of_statsmodels_regression() {
    for case in each(&golden(), "rate") {
        let set_ups: Vec<_> = parts(&case[0], &case[1]).into_iter().map(|one| vec![one]).collect();
        let found = sums::value(&set_ups, Some(1.0), number(&case[2])).unwrap();
        all_near([found.value.ln(), found.interval.low, found.interval.high], case, 3);
    }
}

#[test]
fn intervals_of_ratios_of_rates_are_those_of_statsmodels_regression_by_set_up() {
    for case in each(&golden(), "ratio_of_rates") {
        let (a, b) = (parts(&case[0], &case[1]), parts(&case[2], &case[3]));
        let set_ups: Vec<_> = a.into_iter().zip(b).map(|pair| vec![pair]).collect();
        let found = sums::change(&set_ups, Some(1.0), number(&case[4])).unwrap();
        all_near([found.log, found.interval.low, found.interval.high], case, 5);
    }
}

#[test]
fn bounds_of_what_was_never_seen_beside_bursts_are_scipys_binomial_of_fewer_events() {
    for case in each(&golden(), "none_of_bursts") {
        for one in [1.0, 1e6] {
            let a = parts(&case[0], &case[1]);
            let a = a.into_iter().map(|part| Part { over: one * part.over, ..part });
            let b = numbers(&case[2]).into_iter().map(|under| Part { over: 0.0, under });
            let set_ups: Vec<_> = a.zip(b).map(|pair| vec![pair]).collect();
            let found = sums::change(&set_ups, Some(one), number(&case[3])).unwrap();
            near(found.interval.high.exp(), number(&case[4]), case);
        }
    }
}

/// Returns a cell of [`experiment`] with this figure of the first side, and this change in per cent
/// with the ends of its interval.
fn cell(a: f64, [change_pct, low, high]: [f64; 3]) -> CellRecord {
    let b = a * (1.0 + change_pct / 100.0);
    let effect = Effect { a, b, change_pct, ci95_pct: (low, high), ..Effect::default() };
    let metrics = [("cost_ns_per_packet".to_owned(), effect)].into();
    CellRecord { metrics, ..CellRecord::default() }
}

/// Checks the sum of two cells, of which each has its weight, and their geometric mean. The golden
/// interval is of a difference, so that the second cell's rate is negative here.
#[test]
fn intervals_over_cells_are_those_that_statsmodels_recovers_from_two_rates() {
    let line = |cells: [CellRecord; 2]| {
        let mut lines = overall(&experiment(), &cells).into_iter();
        lines.find(|line| line.group == "all").unwrap()
    };
    for case in each(&golden(), "difference") {
        let rate = |side: usize| <[f64; 3]>::try_from(numbers(&case[side])).unwrap();
        let ([one, low, high], [other, its_low, its_high]) = (rate(0), rate(1));
        let terms = [[one, low, high], [-other, -its_high, -its_low]];
        let (low, high) = (number(&case[2]), number(&case[3]));
        for share in [0.3, 0.5] {
            let [rise, fall] = [(share, terms[0]), (1.0 - share, terms[1])]
                .map(|(share, term)| cell(share, term.map(|pct| pct / share)));
            let found = line([rise, fall]).sum_ci95_pct.unwrap();
            near(found.0, low, case);
            near(found.1, high, case);
        }
        let found = line(terms.map(|term| cell(1.0, term.map(|log| pct(2.0 * log / 100.0)))));
        let found = found.geomean_ci95_pct.unwrap();
        near(found.0, pct(low / 100.0), case);
        near(found.1, pct(high / 100.0), case);
    }
}

fn window(over: f64, under: f64) -> Window {
    let figures = [("wakeups".to_owned(), over)].into();
    Window { wall_ns: 50_000_000, packets: under as u64, figures, ..Window::default() }
}

/// Returns a run of the experiment `toml` from the windows of the changed side, by set-up.
fn run(toml: &str, set_ups: &Value) -> Run {
    let mut pairs = Vec::new();
    for (windows, set_up) in set_ups.as_array().unwrap().iter().zip(0..) {
        for part in windows.as_array().unwrap() {
            let [over, under] = numbers(part)[..] else { panic!("{part}") };
            let (a, b) = (window(1.0, 1.0), window(over, under));
            let accepted =
                PairRecord { accepted: true, cost_accepted: true, ..PairRecord::default() };
            pairs.push(PairRecord { a, b, set_up: Some(set_up), ..accepted });
        }
    }
    let mut run = run_of(&[pairs]);
    run.run.config_toml = Some(toml.to_owned());
    analyse(&Experiment::parse(toml, "pool.toml").unwrap(), &mut run);
    run
}

/// Checks what `lab compare` prints of two runs of a grid of two cells.
#[test]
fn intervals_between_runs_are_those_that_statsmodels_recovers_from_each() {
    for case in each(&golden(), "unpaired") {
        let estimate = format!("clock = \"cost\"\nestimate = {}", case[0]);
        let toml = experiment().toml.replace("\"packets\"", "\"wakeups / packets\"");
        let toml = toml.replace("clock = \"cost\"", &estimate);
        let (one, other) = (run(&toml, &case[1]), run(&toml, &case[2]));
        let found = compare(&one, &other, &[], false).unwrap();
        let [row] = &found.rows[..] else { panic!("{found:?}") };
        all_near([row.change_pct, row.ci95_pct.0, row.ci95_pct.1], case, 3);
    }
}
