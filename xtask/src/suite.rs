//! The step `test`: every test that the README's command runs, in two lanes side by side, and those
//! that failed again, alone.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Result, bail};

use crate::cargo::{self, Failure};
use crate::steps::{Done, passed, words};
use crate::tidy::README_COMMANDS;
use crate::{skipped, tidy};

/// Options of cargo for the programs of both lanes, and for the examples in comments, which follow.
/// Together they are all that cargo tests without options. The programs of a lane run one after the
/// other, and most of their tests wait more than they work, so that two lanes take less time.
const UNITS: [&str; 3] = ["--lib", "--bins", "--examples"];
const PROGRAMS: [&str; 2] = ["--test", "*"];
const COMMENTS: [&str; 1] = ["--doc"];

/// Runs all tests.
pub fn run(root: &Path) -> Result<Done> {
    let (mut kept, failure) = all(root)?;
    let unstable = match failure {
        None => String::new(),
        Some((error, code)) => {
            let failed = skipped::failed_tests(&kept).filter(|_| code == TESTS_FAILED);
            let again = |alone: &[&str]| cargo::quiet(cargo_test(root).arg("-q").args(alone));
            if let Err(again) = retry_alone(again, failed.as_deref()) {
                bail!("{error:#}\n{}\n{again:#}", skipped::failures_of(&kept).join("\n"));
            }
            let names = failed.unwrap_or_default().join(", ");
            format!(", UNSTABLE (failed among the others, passed {RETRIES} times alone): {names}")
        }
    };
    let specification = fs::read_to_string(root.join(tidy::SPEC))?;
    let of = |is: fn(&str) -> bool| skipped::tests(&kept, is);
    let rows = tidy::rows(&specification);
    eprint!("{}", skipped::lost(rows, &of(skipped::says_so), &of(skipped::in_part)));
    kept.retain(|line| skipped::says_so(line) || skipped::in_part(line));
    let n = kept.iter().filter(|line| skipped::says_so(line)).count();
    Ok(Done::with(format!("{n} skipped{unstable}"), kept))
}

/// Builds all tests, runs both lanes and then the examples in comments; returns the lines that
/// matter, and the first failure. The output of the second lane follows that of the first.
fn all(root: &Path) -> Result<(Vec<String>, Option<Failure>)> {
    let (mut kept, failure) = cargo::told(cargo_test(root).arg("--no-run"), skipped::matters)?;
    if failure.is_some() {
        return Ok((kept, failure));
    }
    let log = cargo::target_dir(root).join("tests.log");
    let lanes = thread::scope(|scope| {
        let programs =
            scope.spawn(|| cargo::logged(&mut lane(root, &PROGRAMS), &log, skipped::matters));
        let units = cargo::told(&mut lane(root, &UNITS), skipped::matters);
        [units, programs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))]
    });
    // If the terminal is closed, the tests go on.
    let _ = std::io::stdout().write_all(&fs::read(&log)?);
    let comments = cargo::told(&mut lane(root, &COMMENTS), skipped::matters);
    let mut first = None;
    for done in lanes.into_iter().chain([comments]) {
        let (lines, failure) = done?;
        kept.extend(lines);
        first = worse(first, failure);
    }
    Ok((kept, first))
}

/// Returns the failure that decides: one that is not of tests, if there is one, else the first.
fn worse(one: Option<Failure>, other: Option<Failure>) -> Option<Failure> {
    let is_of_tests = |failure: &Failure| failure.1 == TESTS_FAILED;
    match (one, other) {
        (Some(one), Some(other)) if is_of_tests(&one) && !is_of_tests(&other) => Some(other),
        (one, other) => one.or(other),
    }
}

fn lane(root: &Path, which: &[&str]) -> Command {
    let mut command = cargo_test(root);
    // A skipped test passes, and the harness hides the output of tests that pass. With this option
    // it prints each test's output.
    command.args(which).args(["--no-fail-fast", "--", "--show-output"]);
    command
}

fn cargo_test(root: &Path) -> Command {
    let mut command = cargo::cargo(root);
    command.args(words(README_COMMANDS[1])).arg("--locked").envs(test_environment(root));
    command
}

/// Returns the environment of a run of all tests.
pub fn test_environment(root: &Path) -> [(&'static str, OsString); 3] {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    [
        // Most tests of devices and programs wait more than they work.
        ("RUST_TEST_THREADS", (2 * cpus).to_string().into()),
        // Cargo builds the program before it runs any test, because the command line's own tests
        // need it. Without this variable, other packages' tests would build the program again, with
        // fewer features.
        ("LINERATE_PROGRAM", cargo::target_dir(root).join("debug/linerate").into()),
        // A panic's message has the file and line. Backtraces of drivers that panic on purpose
        // would hide the important panic.
        ("RUST_BACKTRACE", "0".into()),
    ]
}

/// Number of times that a failed test must pass alone. On a machine that shares its CPUs, tests
/// that wait for each other can be late; a wrong test fails again.
const RETRIES: usize = 3;

/// Exit code of cargo after tests failed, and of no cargo that was stopped.
pub const TESTS_FAILED: Option<i32> = Some(101);

/// Runs the failed tests alone, one after the other, by `again`, which gets the arguments for that
/// and returns the output. Fails if one is skipped, because such a test passes for its harness, and
/// for `None`: then [`skipped::failed_tests`] has no names.
pub fn retry_alone(
    again: impl Fn(&[&str]) -> Result<String>,
    failed: Option<&[String]>,
) -> Result<()> {
    let Some(failed) = failed.filter(|failed| !failed.is_empty()) else {
        bail!(
            "the failed tests cannot be run alone: a test program did not end by itself or did not \
             name each failed test, or one of them is an example in a comment"
        );
    };
    for round in 1..=RETRIES {
        eprintln!("\nalone, {round} of {RETRIES}: {}", failed.join(", "));
        let mut alone = vec!["--", "--exact", "--test-threads=1", "--show-output"];
        alone.extend(failed.iter().map(String::as_str));
        let output = again(&alone)?;
        if let Some(line) = output.lines().find(|line| skipped::says_so(line)) {
            bail!("a failed test did not run alone: {line}");
        }
        let ran: usize = output.lines().filter_map(passed).sum();
        if ran < failed.len() {
            bail!("{ran} of {} failed tests could be run alone, by their names", failed.len());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_failure_that_is_not_of_tests_decides() {
        let of = |code: i32| Some((anyhow!("{code}"), Some(code)));
        let decides = |one, other| worse(one, other).and_then(|(_, code)| code);
        assert_eq!(decides(of(101), of(124)), Some(124));
        assert_eq!(decides(of(124), of(101)), Some(124));
        assert_eq!((decides(None, of(101)), decides(None, None)), (Some(101), None));
    }

    #[test]
    fn failed_test_is_unstable_only_if_it_ran_alone_and_passed() {
        let failed = ["heap::tests::grows".to_owned()];
        let alone = |n: usize, failed: Option<&[String]>| {
            let output = format!("test result: ok. 0 passed;\ntest result: ok. {n} passed;\n");
            retry_alone(|_| Ok(output.clone()), failed)
        };
        assert!(alone(1, Some(&failed[..])).is_ok());
        assert!(alone(0, Some(&failed[..])).is_err(), "no test has this name");
        let two = [&failed[..], &failed[..]].concat();
        assert!(alone(1, Some(&two)).is_err(), "one of the two did not run");
        let rounds = Cell::new(0);
        let again = |alone: &[&str]| {
            assert!(alone.contains(&"--show-output"), "without it no test says that it is skipped");
            rounds.set(rounds.get() + 1);
            Ok("test result: ok. 1 passed;".to_owned())
        };
        assert!(retry_alone(again, Some(&failed[..])).is_ok());
        assert_eq!(rounds.get(), 3);
        let said = "---- heap::tests::grows stdout ----\nskipped: not root\n";
        let skipped = |_: &[&str]| Ok(format!("{said}test result: ok. 1 passed;\n"));
        let why = retry_alone(skipped, Some(&failed[..])).unwrap_err().to_string();
        assert_eq!(why, "a failed test did not run alone: skipped: not root");
        assert!(alone(1, None).is_err() && alone(1, Some(&[])).is_err());
    }
}
