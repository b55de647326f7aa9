//! Counts the tests that could not run here: each prints a line `skipped: why`, and the harness
//! prints the test's name. Reports the rows of the specification that lose evidence by these tests,
//! and names failed tests again at the end of the output.

use std::collections::{BTreeMap, BTreeSet};

/// Returns true if a line of output reports a skipped test.
pub fn says_so(line: &str) -> bool {
    line.starts_with("skipped: ")
}

/// Returns true for a line of the harness about a failed test, or a line of cargo about a failed
/// test program, which died by a signal or a time limit.
pub fn failed(line: &str) -> bool {
    (line.starts_with("test ") && line.ends_with("FAILED"))
        || line.starts_with("error: test failed")
}

/// Returns the failed tests, by the harness's names; `None` if a test program died without naming
/// one.
pub fn failed_tests(lines: &[String]) -> Option<Vec<String>> {
    let count = |head: &str| lines.iter().filter(|line| line.starts_with(head)).count();
    let named = |line: &String| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    };
    let is_whole = count("error: test failed") <= count(FAILED_PROGRAM);
    is_whole.then(|| lines.iter().filter_map(named).collect())
}

/// The last line of a test program with failed tests.
const FAILED_PROGRAM: &str = "test result: FAILED";

/// Returns the test whose output follows, for the harness's line `---- tests::name stdout ----`.
fn heads(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Returns true if this module uses the line.
pub fn matters(line: &str) -> bool {
    says_so(line) || failed(line) || line.starts_with(FAILED_PROGRAM) || heads(line).is_some()
}

/// Returns the tests whose output reports that they were skipped.
pub fn tests(lines: &[String]) -> BTreeSet<&str> {
    let mut now = None;
    let mut skipped = BTreeSet::new();
    for line in lines {
        now = heads(line).or(now);
        skipped.extend(now.filter(|_| says_so(line)));
    }
    skipped
}

/// Returns a line for each of `rows` (number and evidence) with skipped tests, with their number.
///
/// A harness says a test's path in its own program only: two tests of one path in different programs pass for one.
pub fn lost<'a>(
    rows: impl Iterator<Item = (&'a str, Vec<&'a str>)>,
    skipped: &BTreeSet<&str>,
) -> String {
    let was_skipped = |named: &&str| {
        let ends = |test: &&str| named.strip_suffix(test).is_some_and(|at| at.ends_with("::"));
        skipped.iter().any(ends)
    };
    let mut text = String::new();
    for (number, evidence) in rows {
        let tests: Vec<&str> = evidence.iter().filter_map(|e| e.strip_prefix("test: ")).collect();
        let gone: Vec<&str> = tests.iter().copied().filter(was_skipped).collect();
        if !gone.is_empty() {
            let (n, of) = (gone.len(), tests.len());
            text.push_str(&format!("  {number:<6} {n} of {of} tests: {}\n", gone.join(", ")));
        }
    }
    match text.is_empty() {
        true => "rows of SPECIFICATION.md whose tests were skipped: none\n".into(),
        false => format!("rows of SPECIFICATION.md whose tests were skipped:\n{text}"),
    }
}

/// Returns a line for each reason, with the number of tests skipped for it.
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
    fn skipped_tests_are_told_with_the_rows_whose_evidence_they_are() {
        let lines = [
            "skipped: on stderr, where no test is named",
            "---- xdp::tests::rings stdout ----",
            "something",
            "skipped: not root",
            "---- ping_crosses stdout ----",
            "skipped in part: no iperf3",
            "---- tap_crosses stdout ----",
            "skipped: no tap",
        ];
        let lines = lines.map(String::from);
        let skipped = tests(&lines);
        assert_eq!(skipped, BTreeSet::from(["tap_crosses", "xdp::tests::rings"]));
        let rows = [
            ("S0.1", vec!["test: linerate_port::xdp::tests::rings", "lab: fabric"]),
            ("S0.2", vec!["test: linerate_tests::netns::ping_crosses"]),
            ("S0.3", vec![]),
            ("S0.4", vec!["test: x::ping_crosses", "test: linerate_tests::netns::tap_crosses"]),
            ("S0.5", vec!["test: linerate_tests::netns::no_tap_crosses"]),
        ];
        let text = lost(rows.into_iter(), &skipped);
        assert_eq!(
            text,
            "rows of SPECIFICATION.md whose tests were skipped:\n\
             \x20 S0.1   1 of 1 tests: linerate_port::xdp::tests::rings\n\
             \x20 S0.4   1 of 2 tests: linerate_tests::netns::tap_crosses\n"
        );
        let none = lost([("S0.1", vec!["test: x::y"])].into_iter(), &skipped);
        assert!(none.ends_with(": none\n"), "{none}");
    }

    #[test]
    fn a_test_that_failed_is_known_by_its_line() {
        assert!(failed("test conformance::tests::rings ... FAILED"));
        assert!(!failed("test conformance::tests::rings ... ok"));
        assert!(!failed("test result: FAILED. 3 passed; 1 failed"));
        assert!(failed("error: test failed, to rerun pass `-p linerate-port --lib`"));
    }

    #[test]
    fn failed_tests_are_named_unless_their_program_died() {
        let program = "error: test failed, to rerun pass `-p linerate-port --lib`".to_owned();
        let mut lines = vec![program.clone(), "test rings::wrap ... FAILED".into()];
        assert_eq!(failed_tests(&lines), None);
        lines.push("test result: FAILED. 3 passed; 1 failed; 0 ignored".into());
        assert_eq!(failed_tests(&lines), Some(vec!["rings::wrap".to_owned()]));
        lines.push(program);
        assert_eq!(failed_tests(&lines), None);
    }

    #[test]
    fn no_skipped_test_is_said_too() {
        assert_eq!(summary(&["test a ... ok".into()]), "skipped tests: none\n");
    }
}
