//! Golden values of the noise between runs, computed with SciPy by `tests/golden/runs.py`, which
//! documents the method.

use serde_json::Value;

use super::{By, Diff};
use crate::profile::{Event, Origin, Profile, Row, Unit};

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// Returns the runs of a side from their counts and their lengths in seconds.
fn runs(side: &Value) -> Vec<Profile> {
    let run = |(count, seconds): (f64, f64)| {
        let event = Event { name: "cycles".into(), unit: Unit::Samples, period: None, raw: None };
        let mut run = Profile::new(event, Origin::Counter);
        run.rows = vec![Row::new("f", count as u64)];
        run.conditions.wall_ns = Some((seconds * 1e9) as u64);
        run
    };
    numbers(&side[0]).into_iter().zip(numbers(&side[1])).map(run).collect()
}

#[test]
fn noise_between_runs_is_half_of_scipys_interval_of_two_samples() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../tests/golden/runs.json")).unwrap();
    assert_eq!(cases.len(), 8);
    for case in &cases {
        let by = match case[0].as_str() {
            Some("second") => By::Second,
            Some("as_they_are") => By::AsTheyAre,
            other => panic!("{other:?}"),
        };
        let (without, with) = (runs(&case[1]), runs(&case[2]));
        let (diff, _) = Diff::of_runs(&without, &with, by).unwrap();
        let (ours, theirs) = (diff.rows[0].noise, case[3].as_f64().unwrap());
        assert!((ours - theirs).abs() <= 1e-6 * theirs, "{ours}, not {theirs}: {case}");
    }
}
