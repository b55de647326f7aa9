//! Counts what the tests could not run here: each says so in a line `skipped: why` on stderr.
//! And names those that failed, which stand far up in what the others print.

use std::collections::BTreeMap;

/// Returns true if a line of output says that a test was skipped.
pub fn says_so(line: &str) -> bool {
    line.starts_with("skipped: ")
}

/// Returns true if a line of the harness says that a test failed, or cargo that a program of tests did: by a signal,
/// or its time's end, which no test of it says.
pub fn failed(line: &str) -> bool {
    (line.starts_with("test ") && line.ends_with("FAILED"))
        || line.starts_with("error: test failed")
}

/// Returns one line for each reason, with how many tests gave it.
pub fn summary(lines: &[String]) -> String {
    let mut reasons = BTreeMap::<&str, usize>::new();
    for line in lines.iter().filter(|line| says_so(line)) {
        *reasons.entry(line).or_default() += 1;
    }
    if reasons.is_empty() {
        return "skipped tests: none\n".into();
    }
    let total: usize = reasons.values().sum();
    let mut text = format!("skipped tests: {total}\n");
    for (line, n) in reasons {
        text.push_str(&format!("  {n:>3} x {line}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_reasons_are_counted_on_one_line() {
        let lines = ["skipped: not root", "skipped: no PMU", "skipped: not root", "ok"];
        let text = summary(&lines.map(String::from));
        assert_eq!(text, "skipped tests: 3\n    1 x skipped: no PMU\n    2 x skipped: not root\n");
    }

    #[test]
    fn a_test_that_failed_is_known_by_its_line() {
        assert!(failed("test conformance::tests::rings ... FAILED"));
        assert!(!failed("test conformance::tests::rings ... ok"));
        assert!(!failed("test result: FAILED. 3 passed; 1 failed"));
        assert!(failed("error: test failed, to rerun pass `-p linerate-port --lib`"));
    }

    #[test]
    fn no_skipped_test_is_said_too() {
        assert_eq!(summary(&["test a ... ok".into()]), "skipped tests: none\n");
    }
}
