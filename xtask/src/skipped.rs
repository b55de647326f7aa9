//! Counts the tests that could not run here: each prints a line `skipped: why`, and the harness
//! prints the test's name. Reports the rows of the specification that lose evidence by these tests,
//! and names failed tests again at the end of the output.

use std::collections::{BTreeMap, BTreeSet};

/// Returns true if a line of output reports a skipped test.
pub fn says_so(line: &str) -> bool {
    line.starts_with("skipped: ")
}

/// Returns true if a line of output reports a test that ran without one of its parts.
pub fn in_part(line: &str) -> bool {
    line.starts_with("skipped in part: ")
}

/// Returns true for a line of the harness about a failed test, or a line of cargo about a failed
/// test program, which died by a signal or a time limit.
pub fn failed(line: &str) -> bool {
    (line.starts_with("test ") && line.ends_with("FAILED")) || failed_program(line)
}

/// Returns true for a line of cargo about a failed test program.
fn failed_program(line: &str) -> bool {
    line.starts_with("error: test failed") || line.starts_with("error: doctest failed")
}

/// Returns the failed tests, by the names that run each alone; `None` if a test program died, if
/// the lines do not name as many tests as the programs counted, or if an example failed: its name
/// has blanks, and rustdoc divides its arguments at blanks.
pub fn failed_tests(lines: &[String]) -> Option<Vec<String>> {
    let named = |line: &String| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.strip_suffix(SHOULD_PANIC).unwrap_or(name).to_owned())
    };
    let names: Vec<String> = lines.iter().filter_map(named).collect();
    let counts: Vec<usize> = lines.iter().filter_map(|line| failures(line)).collect();
    let programs = lines.iter().filter(|line| failed_program(line)).count();
    let is_whole = programs <= counts.len() && names.len() == counts.iter().sum::<usize>();
    let has_example = names.iter().any(|name| name.contains(' '));
    (is_whole && !has_example).then_some(names)
}

/// The last line of a test program with failed tests.
const FAILED_PROGRAM: &str = "test result: FAILED";
/// The ending that the harness adds to the name of a test that should panic.
const SHOULD_PANIC: &str = " - should panic";

/// Returns the number of failed tests, if `line` is the last one of a test program that has some.
fn failures(line: &str) -> Option<usize> {
    let (before, _) = line.strip_prefix(FAILED_PROGRAM)?.split_once(" failed")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Returns the test whose output follows, for the harness's line `---- tests::name stdout ----`.
fn heads(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Returns true for a panic's line about its thread, which has the name of its test, and its place
/// in the code.
fn panicked(line: &str) -> bool {
    line.starts_with("thread '") && line.contains(" panicked at ")
}

/// Returns the lines that say which tests failed, each once, and where these panicked.
pub fn failures_of(lines: &[String]) -> Vec<&str> {
    let failed: Vec<&str> = lines.iter().map(String::as_str).filter(|line| failed(line)).collect();
    let is_theirs = |line: &&str| {
        let name = line.split('\'').nth(1).unwrap_or_default();
        panicked(line) && failed.iter().any(|test| test.split(' ').nth(1) == Some(name))
    };
    let panics = lines.iter().map(String::as_str).filter(is_theirs);
    let mut seen = BTreeSet::new();
    failed.iter().copied().chain(panics).filter(|line| seen.insert(*line)).collect()
}

/// Returns true if this module uses the line.
pub fn matters(line: &str) -> bool {
    says_so(line)
        || in_part(line)
        || failed(line)
        || panicked(line)
        || line.starts_with(FAILED_PROGRAM)
        || heads(line).is_some()
}

/// Returns the tests of whose output a line is as `is` says: [`says_so`] or [`in_part`].
pub fn tests(lines: &[String], is: fn(&str) -> bool) -> BTreeSet<&str> {
    let mut now = None;
    let mut tests = BTreeSet::new();
    for line in lines {
        now = heads(line).or(now);
        tests.extend(now.filter(|_| is(line)));
    }
    tests
}

/// Kinds of evidence that a run can skip, each with its plural.
const KINDS: [(&str, &str); 2] = [("test: ", "tests"), ("guest: ", "guests")];

/// Returns a line for each of `rows` (number and evidence) with skipped tests, with their number,
/// and one for each with tests that were skipped in part; the same for guests.
///
/// A harness says a test's path in its own program only: two tests of one path in different
/// programs pass for one. A guest has the name that it has as evidence, `guest: NAME`.
pub fn lost<'a>(
    rows: impl Iterator<Item = (&'a str, Vec<&'a str>)>,
    skipped: &BTreeSet<&str>,
    in_part: &BTreeSet<&str>,
) -> String {
    let is_of = |evidence: &str, names: &BTreeSet<&str>| {
        let ends = |test: &&str| evidence.strip_suffix(*test).is_some_and(|at| at.ends_with("::"));
        names.contains(evidence) || names.iter().any(ends)
    };
    let mut text = String::new();
    for (number, evidence) in rows {
        for (kind, plural) in KINDS {
            let of_kind = evidence.iter().copied().filter(|e| e.starts_with(kind));
            let of = of_kind.clone().count();
            let (gone, rest): (Vec<&str>, Vec<&str>) = of_kind.partition(|e| is_of(e, skipped));
            let partly: Vec<&str> = rest.into_iter().filter(|e| is_of(e, in_part)).collect();
            for (found, how) in [(gone, ""), (partly, " in part")] {
                if !found.is_empty() {
                    let names: Vec<&str> = found.iter().map(|e| &e[kind.len()..]).collect();
                    let (n, names) = (found.len(), names.join(", "));
                    text.push_str(&format!("  {number:<6} {n} of {of} {plural}{how}: {names}\n"));
                }
            }
        }
    }
    match text.is_empty() {
        true => "rows of SPECIFICATION.md whose evidence was skipped: none\n".into(),
        false => format!("rows of SPECIFICATION.md whose evidence was skipped:\n{text}"),
    }
}

/// Returns a line for each reason, with the number of tests skipped for it, whole or in part.
pub fn summary(lines: &[String]) -> String {
    let mut reasons = BTreeMap::<&str, usize>::new();
    for line in lines.iter().filter(|line| says_so(line) || in_part(line)) {
        *reasons.entry(line).or_default() += 1;
    }
    if reasons.is_empty() {
        return "skipped tests: none\n".into();
    }
    let total = lines.iter().filter(|line| says_so(line)).count();
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
        let text = summary(&["skipped in part: no IPv6".into()]);
        assert_eq!(text, "skipped tests: 0\n    1 x skipped in part: no IPv6\n");
    }

    #[test]
    fn failed_tests_are_told_once_with_the_places_of_their_panics() {
        let lines = [
            "test a::falls ... FAILED",
            "test b::stands ... ok",
            "thread 'a::falls' (7) panicked at crates/a/src/lib.rs:3:9:",
            "thread 'b::stands' (8) panicked at crates/b/src/lib.rs:4:9:",
            "thread 'a::falls' (7) panicked at crates/a/src/lib.rs:3:9:",
        ];
        assert!(matters(lines[0]) && matters(lines[2]) && !matters(lines[1]));
        assert_eq!(failures_of(&lines.map(String::from)), [lines[0], lines[2]]);
        assert!(
            failures_of(&lines[1..].iter().map(|l| String::from(*l)).collect::<Vec<_>>())
                .is_empty()
        );
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
        assert!(lines.iter().all(|line| matters(line) || line == "something"));
        let skipped = tests(&lines, says_so);
        assert_eq!(skipped, BTreeSet::from(["tap_crosses", "xdp::tests::rings"]));
        let in_part = tests(&lines, in_part);
        assert_eq!(in_part, BTreeSet::from(["ping_crosses"]));
        let rows = [
            ("S0.1", vec!["test: linerate_port::xdp::tests::rings", "lab: fabric"]),
            ("S0.2", vec!["test: linerate_tests::netns::ping_crosses"]),
            ("S0.3", vec![]),
            ("S0.4", vec!["test: x::ping_crosses", "test: linerate_tests::netns::tap_crosses"]),
            ("S0.5", vec!["test: linerate_tests::netns::no_tap_crosses"]),
        ];
        let text = lost(rows.into_iter(), &skipped, &in_part);
        assert_eq!(
            text,
            "rows of SPECIFICATION.md whose evidence was skipped:\n\
             \x20 S0.1   1 of 1 tests: linerate_port::xdp::tests::rings\n\
             \x20 S0.2   1 of 1 tests in part: linerate_tests::netns::ping_crosses\n\
             \x20 S0.4   1 of 2 tests: linerate_tests::netns::tap_crosses\n\
             \x20 S0.4   1 of 2 tests in part: x::ping_crosses\n"
        );
        let none = lost([("S0.1", vec!["test: x::y"])].into_iter(), &skipped, &in_part);
        assert!(none.ends_with(": none\n"), "{none}");
    }

    #[test]
    fn skipped_guests_are_told_with_the_rows_whose_evidence_they_are() {
        let rows = [
            ("S0.1", vec!["guest: verbs", "guest: rss", "test: x::verbs"]),
            ("S0.2", vec!["guest: irqs", "lab: verbs"]),
            ("S0.3", vec!["test: x::rss", "guest: two_cpus"]),
        ];
        let skipped = BTreeSet::from(["guest: verbs"]);
        let in_part = BTreeSet::from(["guest: two_cpus"]);
        assert_eq!(
            lost(rows.into_iter(), &skipped, &in_part),
            "rows of SPECIFICATION.md whose evidence was skipped:\n\
             \x20 S0.1   1 of 2 guests: verbs\n\
             \x20 S0.3   1 of 1 guests in part: two_cpus\n"
        );
    }

    #[test]
    fn a_test_that_failed_is_known_by_its_line() {
        assert!(failed("test conformance::tests::rings ... FAILED"));
        assert!(!failed("test conformance::tests::rings ... ok"));
        assert!(!failed("test result: FAILED. 3 passed; 1 failed"));
        assert!(failed("error: test failed, to rerun pass `-p linerate-port --lib`"));
        assert!(failed("error: doctest failed, to rerun pass `-p linerate-port --doc`"));
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
        lines.pop();
        lines.push("error: doctest failed, to rerun pass `-p linerate-port --doc`".into());
        assert_eq!(failed_tests(&lines), None, "a program of examples died");
    }

    #[test]
    fn failed_tests_have_the_names_that_run_them_alone() {
        let result = "test result: FAILED. 3 passed; 1 failed; 0 ignored";
        let names = |line: &str| failed_tests(&[line.to_owned(), result.to_owned()]);
        let should_panic = "test heap::tests::x - should panic ... FAILED";
        assert_eq!(names(should_panic), Some(vec!["heap::tests::x".to_owned()]));
        for example in ["x (line 3)", "x (line 3) - compile", "x (line 3) - should panic"] {
            let line = format!("test crates/a/src/lib.rs - {example} ... FAILED");
            assert_eq!(names(&line), None, "{line}");
        }
    }

    #[test]
    fn a_failed_test_whose_line_was_broken_leaves_no_names() {
        let mut lines = vec![
            "test a ... FAILED".to_owned(),
            "test result: FAILED. 3 passed; 2 failed; 0 ignored".to_owned(),
        ];
        assert_eq!(failed_tests(&lines), None);
        lines.push("test b ... FAILED".into());
        assert_eq!(failed_tests(&lines).map(|names| names.len()), Some(2));
    }

    #[test]
    fn no_skipped_test_is_said_too() {
        assert_eq!(summary(&["test a ... ok".into()]), "skipped tests: none\n");
    }
}
