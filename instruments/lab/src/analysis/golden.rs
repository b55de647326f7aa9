//! Golden values of each statistic, computed with SciPy by `tests/golden/stats.py`, which documents
//! the method.

use serde_json::Value;

use super::samples::Part;
use super::{signs, sums};

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/golden/stats.json")).unwrap()
}

fn each<'a>(golden: &'a Value, name: &str) -> &'a Vec<Value> {
    golden[name].as_array().filter(|values| !values.is_empty()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
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
