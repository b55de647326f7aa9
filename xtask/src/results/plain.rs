//! The expectation and the result in words, so that a `plain` table needs no legend.

use serde_json::Value;

use super::number::number;

/// The change in per cent from which an upper bound stands for none; −100 is the lower one.
const OPEN_PCT: f64 = 1e5;

/// Formats the expected ratio and the result.
pub fn plain(effect: &Value, disturbed: bool) -> (String, String) {
    let mut outcome = effect["verdict"].as_str().unwrap_or("-").to_owned();
    let expected = &effect["expected"];
    let bound = |i: usize| expected["change_pct"][i].as_f64();
    let range = bound(0).zip(bound(1));
    if disturbed {
        outcome += " (disturbed)";
    } else if let Some(range) = range {
        outcome += match (expected["certain"] == true, expected["met"] == true) {
            (true, true) => ", as expected",
            (true, false) => missed(effect, range),
            (false, _) if is_near(effect, range) => "; too close to the bound to say",
            (false, _) => "; expected: open",
        };
    }
    let ratio = |pct: f64| number(1.0 + pct / 100.0);
    let of = match range {
        Some((low, high)) if low <= -100.0 => format!("at most {}", ratio(high)),
        Some((low, high)) if high >= OPEN_PCT => format!("at least {}", ratio(low)),
        Some((low, high)) => format!("{} to {}", ratio(low), ratio(high)),
        None => "–".to_owned(),
    };
    (of, outcome)
}

/// Returns how a change missed its expected range: with a smaller gain, or with a larger one.
fn missed(effect: &Value, (low, high): (f64, f64)) -> &'static str {
    let change = effect["change_pct"].as_f64().unwrap_or_default();
    let is_of_no_change = low > -100.0 && low < 0.0 && high > 0.0 && high < OPEN_PCT;
    match effect["better_when"].as_str() {
        _ if is_of_no_change => ", **outside what was expected**",
        Some("higher") if change < low => ", **not as expected**",
        Some("lower") if change > high => ", **not as expected**",
        Some(_) => ", **by more**",
        None => ", **outside what was expected**",
    }
}

/// Returns true if the interval of a change contains a bound of the expected range.
fn is_near(effect: &Value, (low, high): (f64, f64)) -> bool {
    let end = |i: usize| effect["ci95_pct"][i].as_f64();
    let Some((from, to)) = end(0).zip(end(1)) else { return false };
    let has = |bound: f64| from <= bound && bound <= to;
    (low > -100.0 && has(low)) || (high < OPEN_PCT && has(high))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns an effect that is better in one direction, and is outside what was expected of it.
    fn effect(better: &str, change: f64, range: [f64; 2]) -> Value {
        let expected = json!({"certain": true, "met": false, "change_pct": range});
        json!({"verdict": "better", "better_when": better, "change_pct": change,
            "ci95_pct": [change - 2.0, change + 2.0], "expected": expected})
    }

    fn words(better: &str, change: f64, range: [f64; 2]) -> (String, String) {
        plain(&effect(better, change, range), false)
    }

    #[test]
    fn result_is_as_expected_or_disturbed_or_without_an_expectation() {
        let mut met = effect("lower", -75.0, [-80.0, -70.0]);
        met["expected"]["met"] = true.into();
        assert_eq!(plain(&met, false), ("0.200 to 0.300".into(), "better, as expected".into()));
        assert_eq!(plain(&met, true).1, "better (disturbed)");
        met["expected"] = Value::Null;
        assert_eq!(plain(&met, false), ("–".into(), "better".into()));
    }

    #[test]
    fn direction_of_a_missed_expectation_is_that_of_the_gain() {
        for (better, change, outcome) in [
            ("lower", -60.0, "better, **not as expected**"),
            ("lower", -90.0, "better, **by more**"),
            ("higher", -90.0, "better, **not as expected**"),
            ("higher", -60.0, "better, **by more**"),
        ] {
            assert_eq!(words(better, change, [-80.0, -70.0]).1, outcome, "{better} {change}");
        }
        let none = words("lower", 3.0, [-1.0, 1.0]).1;
        assert_eq!(none, "better, **outside what was expected**");
    }

    #[test]
    fn range_without_an_end_has_one_bound() {
        assert_eq!(words("lower", 0.0, [-100.0, -75.0]).0, "at most 0.250");
        assert_eq!(words("higher", 0.0, [50.0, 1e6]).0, "at least 1.50");
        assert_eq!(words("higher", 0.0, [50.0, 100.0]).0, "1.50 to 2.00");
    }

    #[test]
    fn open_expectation_is_close_to_a_bound_only_if_the_interval_has_it() {
        let of = |from: f64, to: f64| {
            let expected = json!({"certain": false, "met": false, "change_pct": [-100, -70]});
            let effect = json!({"verdict": "unclear", "better_when": "lower", "change_pct": to,
                "ci95_pct": [from, to], "expected": expected});
            plain(&effect, false).1
        };
        assert_eq!(of(-72.0, -69.0), "unclear; too close to the bound to say");
        assert_eq!(of(-60.0, -50.0), "unclear; expected: open");
        assert_eq!(of(-100.0, -80.0), "unclear; expected: open");
    }
}
