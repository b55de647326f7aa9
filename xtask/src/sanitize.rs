//! Campaigns `tsan` and `miri`: the crates with `unsafe` on the data path under tools that detect
//! races and undefined behaviour. Both need a nightly compiler, unlike all other steps.
//!
//! ThreadSanitizer runs the tests on real cores and reports two accesses that no synchronisation
//! orders. Miri interprets them, one thread at a time, and reports undefined behaviour of any kind;
//! it cannot map memory, so there `sys` takes it from the heap.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::steps::{Done, passed};

/// Number of packets in the test `churn`, which takes some seconds on two cores.
const TSAN_COUNT: &str = "5000000";

/// Arguments that select the tests of the buffers in which two threads can race.
const TESTS: [&str; 5] = ["--lib", "--test", "hostile", "--test", "churn"];

/// Tests of ports that need no kernel, by parts of their names: those that parse bytes of a peer, a
/// file or a frame, and those that pass packets by handle.
const PORTS: [&str; 10] = [
    "memif::fuzzing::",
    "memif::ring::",
    "memif::message::",
    "pcap::format::",
    "ring::tests::",
    "txprep::",
    "reshape::",
    "view::",
    "--skip",
    "whatever_is_said_is_answered_or_the_end",
];

/// Tests the buffers under ThreadSanitizer.
pub fn threads(root: &Path) -> Result<Done> {
    let Some(version) = says(root, &["rustc", "--version", "--verbose"]) else {
        return Ok(Done::skipped("no nightly Rust", "rustup toolchain install nightly"));
    };
    let sysroot = says(root, &["rustc", "--print", "sysroot"]);
    let sysroot = sysroot.context("nightly rustc does not say where its libraries are")?;
    if !Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/std").is_dir() {
        // std must be compiled with the sanitizer too, or the sanitizer would not see the ordering
        // by its locks.
        let fix = "rustup component add rust-src --toolchain nightly";
        return Ok(Done::skipped("no source of the standard library", fix));
    }
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not say what machine this is")?;
    let mut command = nightly(root, "tsan");
    command.args(["cargo", "test", "-Zbuild-std", "--target", host, "--package", "linerate-skb"]);
    command.args(TESTS).env("RUSTFLAGS", "-Zsanitizer=thread").env("CHURN_COUNT", TSAN_COUNT);
    run(&mut command, 3)
}

/// Tests rings, buffers and ports under Miri.
pub fn miri(root: &Path) -> Result<Done> {
    if says(root, &["cargo", "miri", "--version"]).is_none() {
        let fix = "rustup toolchain install nightly --component miri";
        return Ok(Done::skipped("no Miri", fix));
    }
    // The tests read the clock and a file, which Miri's isolation refuses.
    const FLAGS: &str = "-Zmiri-disable-isolation";
    let mut rings = nightly(root, "miri");
    rings.args(["cargo", "miri", "test"]).env("MIRIFLAGS", FLAGS);
    rings.args(["--package", "linerate-ring", "--package", "linerate-skb"]).args(TESTS);
    let mut ports = nightly(root, "miri");
    // A peer may write half of a word, which Miri's emulation of weak memory does not support.
    ports.env("MIRIFLAGS", format!("{FLAGS} -Zmiri-disable-weak-memory-emulation"));
    ports.env("PROPTEST_CASES", "4").args(["cargo", "miri", "test", "--package"]);
    ports.args(["linerate-port", "--lib", "--"]).args(PORTS);
    let (rings, ports) = (run(&mut rings, 4)?, run(&mut ports, 1)?);
    Ok(Done::from(format!("rings and buffers: {}; ports: {}", rings.note(), ports.note())))
}

/// Runs a test command of `programs` programs with its output passed through.
fn run(command: &mut Command, programs: usize) -> Result<Done> {
    let closing = cargo::streamed(command, |line| passed(line).is_some())?;
    let tests: Vec<usize> = closing.iter().filter_map(|line| passed(line)).collect();
    judge(&tests, programs).map(Done::from)
}

/// Returns the note about `tests`, the number of each program's; fails unless each of `programs`
/// ran some.
fn judge(tests: &[usize], programs: usize) -> Result<String> {
    if tests.len() != programs || tests.contains(&0) {
        bail!("{programs} programs should have run some tests each: {tests:?}");
    }
    Ok(format!("{} tests, nothing found", tests.iter().sum::<usize>()))
}

/// Returns a command with the nightly toolchain, which builds into a folder of its own.
fn nightly(root: &Path, folder: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]).current_dir(root).stdin(Stdio::null());
    command.env("CARGO_TARGET_DIR", cargo::target_dir(root).join(folder));
    // These variables are of the toolchain that runs us.
    command.env_remove("CARGO").env_remove("RUSTC");
    command
}

/// Returns the output of a nightly command; `None` if it fails.
fn says(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = nightly(root, "nightly").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_ran_no_test_are_an_error() {
        assert_eq!(judge(&[3, 4], 2).unwrap(), "7 tests, nothing found");
        for (tests, programs) in [(&[3][..], 2), (&[3, 0], 2), (&[], 1), (&[3, 4], 1)] {
            assert!(judge(tests, programs).is_err(), "{tests:?}");
        }
    }
}
