//! Runs steps in rounds: those that do not disturb each other run at the same time, so that a wait of one for a
//! download, a linker or a single crate leaves no CPU idle.
//!
//! ```text
//!   Needs::Tree       fmt, tidy, ... doc, build ───┐
//!                                                  ├─► test ─► forward ─► count ─► kernels   Needs::Machine
//!   Needs::OwnFolder  guests, msrv, loom, nocc ────┘
//! ```
//!
//! Steps of one kind run one after the other. A step prints a line when it begins and one when it ends, and the output
//! of a command that failed in one piece.

use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::Result;

use super::{Needs, Step, row};
use crate::skipped;

/// A step that has ended.
struct Ended {
    number: usize,
    passed: bool,
    row: String,
    skipped: Vec<String>,
}

/// Runs each of `steps`, even after a failure, and returns whether all passed.
pub fn run(root: &Path, steps: &[&Step]) -> Result<bool> {
    let numbered: Vec<(usize, &Step)> = (1..).zip(steps.iter().copied()).collect();
    let one = |(number, step): &(usize, &Step)| one(root, *number, steps.len(), step);
    let shares = |(_, step): &(usize, &Step)| step.needs != Needs::Machine;
    let mut all: Vec<Ended> = Vec::new();
    for round in numbered.chunk_by(|step, next| shares(step) && shares(next)) {
        let is_beside = |(_, step): &&(usize, &Step)| step.needs == Needs::OwnFolder;
        let (beside, others): (Vec<_>, Vec<_>) = round.iter().partition(is_beside);
        thread::scope(|scope| {
            let beside = scope.spawn(|| beside.into_iter().map(one).collect::<Vec<Ended>>());
            all.extend(others.into_iter().map(one));
            let ended = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.extend(ended);
        });
    }
    all.sort_by_key(|ended| ended.number);
    if steps.len() > 1 {
        eprintln!();
        all.iter().for_each(|ended| eprintln!("{}", ended.row));
    }
    let skipped: Vec<String> = all.iter().flat_map(|ended| ended.skipped.iter().cloned()).collect();
    if !skipped.is_empty() || steps.iter().any(|step| step.name == "test") {
        eprint!("{}", skipped::summary(&skipped));
    }
    Ok(all.iter().all(|ended| ended.passed))
}

/// Runs one step, the `number`th of `n`.
fn one(root: &Path, number: usize, n: usize, step: &Step) -> Ended {
    let place = format!("[{number}/{n}] {:<8}", step.name);
    eprintln!("{place} ...");
    let start = Instant::now();
    let done = (step.act)(root);
    let took = start.elapsed();
    let (passed, note, skipped) = match done {
        Ok(done) => (true, done.note, done.skipped),
        Err(error) => (false, format!("{error:#}"), Vec::new()),
    };
    let row = row(&place, passed, took, &note);
    eprintln!("{row}");
    Ended { number, passed, row, skipped }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use anyhow::ensure;

    use super::*;
    use crate::steps::Done;

    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    static ENDED: AtomicUsize = AtomicUsize::new(0);

    /// Ends well if a second step begins before it ends.
    fn in_company(_: &Path) -> Result<Done> {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        let start = Instant::now();
        while BEGUN.load(Ordering::SeqCst) < 2 {
            ensure!(start.elapsed() < Duration::from_secs(60), "no other step began");
            thread::sleep(Duration::from_millis(1));
        }
        ENDED.fetch_add(1, Ordering::SeqCst);
        Ok(Done::default())
    }

    /// Ends well if both of [`in_company`] have ended and no step begins before it ends.
    fn alone(_: &Path) -> Result<Done> {
        ensure!(ENDED.load(Ordering::SeqCst) == 2, "a step of the round before still runs");
        thread::sleep(Duration::from_millis(50));
        ensure!(BEGUN.load(Ordering::SeqCst) == 2, "a step of the next round has begun");
        Ok(Done::default())
    }

    #[test]
    fn steps_that_build_elsewhere_run_beside_the_others_and_none_beside_one_that_needs_the_machine()
    {
        let step = |needs: Needs, act: fn(&Path) -> Result<Done>| {
            let (name, about) = ("step", "");
            Step { name, about, needs, act }
        };
        let steps = [
            step(Needs::Tree, in_company),
            step(Needs::OwnFolder, in_company),
            step(Needs::Machine, alone),
            step(Needs::OwnFolder, in_company),
        ];
        assert!(run(Path::new("."), &steps.each_ref()).unwrap());
        assert_eq!(BEGUN.load(Ordering::SeqCst), 3);
        let fails = step(Needs::OwnFolder, |_| anyhow::bail!("it is wrong"));
        assert!(!run(Path::new("."), &[&fails]).unwrap());
    }
}
