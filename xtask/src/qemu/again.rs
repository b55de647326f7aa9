//! The second run of a few failed tests, in a guest that runs alone.

use std::path::Path;

use anyhow::{Result, bail};

use super::guest::Load;
use super::progress::Progress;
use super::{Options, Ran, is_a_name, one, table};

/// Most failed tests of a guest that are run again alone.
const AGAIN_MAX: usize = 3;

/// Runs the failed tests of `rans` again, and returns a note about them. Fails if there are other
/// complaints or many failed tests, or if only one guest ran, whose tests have then run alone.
pub(super) fn retried(
    rans: &[Ran],
    load: &Load<'_>,
    folder: &Path,
    options: &Options,
) -> Result<String> {
    let mut note = String::new();
    let is_few = |ran: &Ran| is_few(&ran.outcome.failed, &ran.complaints);
    if rans.len() < 2 || !rans.iter().all(is_few) {
        let all: Vec<&str> =
            rans.iter().flat_map(|ran| &ran.complaints).map(String::as_str).collect();
        if !all.is_empty() {
            let reasons = rans.iter().flat_map(|ran| &ran.outcome.reasons).map(String::as_str);
            let (n, all) = (all.len(), all.into_iter().chain(reasons).collect::<Vec<_>>());
            bail!("{n} complaints; the consoles are in {}\n{}", folder.display(), all.join("\n"));
        }
        return Ok(note);
    }
    for ran in rans.iter().filter(|ran| !ran.complaints.is_empty()) {
        again(load, ran, folder, options.keep)?;
        note += &format!(
            ", UNSTABLE (failed beside another guest, passed alone): Linux {}: {}",
            ran.kernel.series,
            ran.outcome.failed.join(", ")
        );
    }
    Ok(note)
}

/// Returns true if nothing is wrong but a few tests failed, which can be run again by their names.
fn is_few(failed: &[String], complaints: &[String]) -> bool {
    let by_tests = complaints.iter().all(|complaint| complaint.starts_with("failed: "));
    by_tests && failed.len() <= AGAIN_MAX && failed.iter().all(|test| is_a_name(last(test)))
}

/// Returns the last part of a test's path.
fn last(test: &str) -> &str {
    test.rsplit("::").next().unwrap_or(test)
}

/// Runs the failed tests of `ran` again in a guest that runs alone, because two guests delay each
/// other, as the tests of the step `test` do. Fails unless each of these tests passes.
fn again(load: &Load<'_>, ran: &Ran, folder: &Path, keep: bool) -> Result<()> {
    let failed = &ran.outcome.failed;
    println!("again, alone: {}", failed.join(", "));
    let only = failed.iter().map(|test| last(test)).collect::<Vec<_>>().join(",");
    // A scenario may run a test program, so the guest has the programs of the first run.
    let programs = load.programs.narrowed(&only)?;
    let load = Load { programs: &programs, only: &only, write: load.write };
    let alone = one(ran.kernel.clone(), &load, folder, keep, &Progress::new(load.count()))?;
    print!("{}", table(std::slice::from_ref(&alone)));
    let Ran { mut complaints, outcome, .. } = alone;
    complaints.extend(outcome.unproven(failed));
    if !complaints.is_empty() {
        complaints.extend(outcome.reasons);
        bail!("again, alone: {}; the console is in {}", complaints.join("\n"), folder.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    use super::super::outcome::Outcome;
    use super::*;

    #[test]
    fn only_a_few_named_tests_are_run_again() {
        let few = |lines: &[&str]| {
            let mut outcome = Outcome::new();
            lines.iter().for_each(|line| outcome.line(line, Duration::ZERO));
            let complaints = outcome.complaints(1, 0, ExitStatus::from_raw(3 << 8));
            is_few(&outcome.failed, &complaints)
        };
        let (begin, done) = ("guest: begin port", "guest: done 1");
        let ended = "guest: end port 101";
        assert!(few(&[begin, "test a ... FAILED", ended, done]));
        assert!(!few(&[begin, "test a ... FAILED", done]), "the program did not end");
        assert!(!few(&[begin, "FAILED", ended, done]), "no test has a name");
        let four = [["test a ... FAILED", "test b ... FAILED"]; 2].concat();
        assert!(few(&[&[begin], &four[..3], &[ended, done]].concat()));
        assert!(!few(&[&[begin], &four[..], &[ended, done]].concat()), "four");
        for status in ["139", "143"] {
            let crashed = format!("guest: end port {status}");
            assert!(!few(&[begin, "test a ... ", &crashed, done]), "{status}");
            assert!(!few(&[begin, "test a ... FAILED", &crashed, done]), "{status}");
        }
    }
}
