//! The steps of `cargo xtask check`, in the order in which they fail soonest.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::tidy::README_COMMANDS;
use crate::{cargo, instructions, msrv, nocc, packages, skipped, tidy};

/// One thing that must hold.
pub struct Step {
    /// How it is called on the command line.
    pub name: &'static str,
    about: &'static str,
    act: fn(&Path) -> Result<Done>,
}

/// What a step that passed has to say.
#[derive(Default)]
struct Done {
    note: String,
    skipped: Vec<String>,
}

impl From<String> for Done {
    fn from(note: String) -> Done {
        Done { note, skipped: Vec::new() }
    }
}

/// Every step.
pub const STEPS: [Step; 11] = [
    Step { name: "fmt", about: "rustfmt has nothing to change", act: fmt },
    Step { name: "tidy", about: "the rules of the tree that no compiler knows", act: tidy_step },
    Step {
        name: "packages",
        about: "how many foreign packages linerate brings in",
        act: |root| packages::run(root).map(Done::from),
    },
    Step { name: "clippy", about: "clippy on everything, warnings refused", act: clippy },
    Step { name: "doc", about: "rustdoc, warnings refused", act: doc },
    Step {
        name: "msrv",
        about: "the libraries build with the Rust that they promise",
        act: |root| msrv::run(root).map(Done::from),
    },
    Step { name: "test", about: "every test, as the README says it", act: test },
    Step { name: "forward", about: "the README's first command, three seconds", act: forward },
    Step { name: "count", about: "instructions a packet, against the ratchet", act: count },
    Step { name: "loom", about: "the rings under every interleaving, bounded", act: loom },
    Step {
        name: "nocc",
        about: "what we ship builds without C tools",
        act: |root| nocc::run(root).map(Done::from),
    },
];

/// What `cargo xtask` alone prints.
pub fn help() -> String {
    let mut text = String::from("cargo xtask check     all of the following, as CI runs it\n");
    for step in &STEPS {
        text.push_str(&format!("cargo xtask {:<9} {}\n", step.name, step.about));
    }
    text
}

/// Every step, to run in order.
pub fn all() -> Vec<&'static Step> {
    STEPS.iter().collect()
}

/// The step of that name.
pub fn named(name: &str) -> Option<&'static Step> {
    STEPS.iter().find(|step| step.name == name)
}

/// Runs each of `steps`, the later ones also after a failure, and says whether all passed.
pub fn run(root: &Path, steps: &[&Step]) -> Result<bool> {
    let mut rows = Vec::new();
    let mut skipped = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let place = format!("[{}/{}] {:<8}", i + 1, steps.len(), step.name);
        eprintln!("{place} ...");
        let start = Instant::now();
        let done = (step.act)(root);
        let took = start.elapsed();
        let (passed, note) = match done {
            Ok(done) => {
                skipped.extend(done.skipped);
                (true, done.note)
            }
            Err(error) => (false, format!("{error:#}")),
        };
        let row = row(&place, passed, took, &note);
        eprintln!("{row}");
        rows.push((passed, row));
    }
    if steps.len() > 1 {
        eprintln!();
        rows.iter().for_each(|(_, row)| eprintln!("{row}"));
    }
    if steps.iter().any(|step| step.name == "test") {
        eprint!("{}", skipped::summary(&skipped));
    }
    Ok(rows.iter().all(|(passed, _)| *passed))
}

fn row(place: &str, passed: bool, took: Duration, note: &str) -> String {
    let verdict = if passed { "ok" } else { "FAILED" };
    let text = format!("{place} {verdict:<6} {:>6.1} s  {note}", took.as_secs_f64());
    text.trim_end().to_owned()
}

fn fmt(root: &Path) -> Result<Done> {
    cargo::quiet(cargo::cargo(root).args(["fmt", "--all", "--", "--check"]))?;
    Ok(Done::default())
}

fn tidy_step(root: &Path) -> Result<Done> {
    tidy::run(root).map(Done::from)
}

fn clippy(root: &Path) -> Result<Done> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    cargo::quiet(cargo::cargo(root).args(arguments))?;
    Ok(Done::default())
}

fn doc(root: &Path) -> Result<Done> {
    let mut command = cargo::cargo(root);
    command.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    cargo::quiet(&mut command)?;
    Ok(Done::default())
}

fn test(root: &Path) -> Result<Done> {
    let mut command = cargo::cargo(root);
    command.args(words(README_COMMANDS[1]));
    // The harness swallows what a passing test prints, and a skipped test passes.
    command.env("RUST_TEST_NOCAPTURE", "1");
    let skipped = cargo::streamed(&mut command, skipped::says_so)?;
    Ok(Done { note: format!("{} skipped", skipped.len()), skipped })
}

fn forward(root: &Path) -> Result<Done> {
    cargo::quiet(cargo::cargo(root).args(["build", "--release"]))?;
    // It ends by itself after three seconds; a run that does not is a failure, not a wait.
    let mut command = cargo::cargo_within(root, "60s");
    cargo::streamed(command.args(words(README_COMMANDS[0])), |_| false)?;
    Ok(Done::default())
}

fn count(root: &Path) -> Result<Done> {
    let (note, skipped) = instructions::run(root)?;
    Ok(Done { note, skipped: skipped.into_iter().collect() })
}

/// A command of the README, word for word, less the `cargo` at its start.
fn words(command: &str) -> impl Iterator<Item = &str> {
    command.split_whitespace().skip(1)
}

fn loom(root: &Path) -> Result<Done> {
    let mut command = cargo::cargo(root);
    command.args(["test", "--package", "linerate-ring", "--release", "--test", "loom"]);
    // Another cfg recompiles everything: its own folder keeps the others' builds warm.
    command.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3");
    command.env("CARGO_TARGET_DIR", cargo::target_dir(root).join("loom"));
    let n = passed(&cargo::quiet(&mut command)?).context("cargo test printed no result")?;
    if n == 0 {
        bail!("no loom test ran in linerate-ring");
    }
    Ok(Done::from(format!("{n} models")))
}

/// How many tests passed, by cargo's closing line.
fn passed(output: &str) -> Option<usize> {
    let line = output.lines().find(|line| line.starts_with("test result:"))?;
    line.split_whitespace().zip(line.split_whitespace().skip(1)).find_map(|(number, word)| {
        word.starts_with("passed").then(|| number.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_of_cargo_test_is_understood() {
        let line = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; finished in 1s";
        assert_eq!(passed(line), Some(12));
        assert_eq!(passed("running 3 tests"), None);
    }

    #[test]
    fn the_help_names_every_step() {
        let help = help();
        assert!(STEPS.iter().all(|step| help.contains(&format!("cargo xtask {}", step.name))));
    }
}
