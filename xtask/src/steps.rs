//! The steps of `cargo xtask check`, sorted so that the fastest to fail run first; and the
//! campaigns, which are separate because they take long or need another compiler.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::tidy::README_COMMANDS;
use crate::{
    api, cargo, commits, dist, instructions, lines, lint, machines, msrv, nocc, qemu, results,
    sanitize, shipped, skipped, suite, tidy,
};

/// A check.
pub struct Step {
    /// The step's name on the command line.
    pub name: &'static str,
    about: &'static str,
    act: fn(&Path) -> Result<Done>,
}

/// A long run that is started by hand.
pub struct Campaign {
    name: &'static str,
    about: &'static str,
    /// The arguments, as the usage shows them; `None` if the campaign prints its own help.
    arguments: Option<&'static str>,
    act: fn(&Path, &[String]) -> Result<Done>,
}

/// Result of a step or campaign that passed.
#[derive(Default)]
pub struct Done {
    note: String,
    skipped: Vec<String>,
}

impl Done {
    /// Returns the result of a step that cannot run here: `why` names the missing part, and `fix`
    /// how to get it.
    pub fn skipped(why: &str, fix: &str) -> Done {
        Done { note: String::new(), skipped: vec![format!("skipped: {why} ({fix})")] }
    }

    /// Returns the step's note.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Returns a line `skipped: why` for each part that could not run here.
    pub fn skips(&self) -> &[String] {
        &self.skipped
    }

    /// Returns a result with a note, and a line `skipped: why` for each part that could not run
    /// here.
    pub fn with(note: String, skipped: Vec<String>) -> Done {
        Done { note, skipped }
    }
}

impl From<String> for Done {
    fn from(note: String) -> Done {
        Done { note, skipped: Vec::new() }
    }
}

/// All steps of `cargo xtask check`.
pub const STEPS: [Step; 14] = [
    Step { name: "fmt", about: "rustfmt has nothing to change", act: fmt },
    Step { name: "tidy", about: "the rules of the tree that no compiler knows", act: tidy_step },
    Step {
        name: "commits",
        about: "changes say what they are of, and hold nothing unrelated",
        act: commits::run,
    },
    Step {
        name: "packages",
        about: "how many foreign packages linerate brings in",
        act: |root| shipped::packages(root).map(Done::from),
    },
    Step {
        name: "deny",
        about: "licenses, sources and advisories of foreign packages (where cargo-deny is)",
        act: deny,
    },
    Step {
        name: "clippy",
        about: "clippy on everything, warnings refused; the fuzz targets compile",
        act: lint::run,
    },
    Step {
        name: "doc",
        about: "rustdoc, warnings refused; docs/api.txt is the public API",
        act: doc,
    },
    Step {
        name: "msrv",
        about: "the libraries of the workspace's rust-version build with that Rust",
        act: msrv::run,
    },
    Step { name: "test", about: "every test, in two lanes", act: suite::run },
    Step { name: "forward", about: "the README's first command, three seconds", act: forward },
    Step { name: "count", about: "instructions a packet, against the ratchet", act: count },
    Step {
        name: "loom",
        about: "rings, depots and orders, every interleaving, bounded",
        act: loom,
    },
    Step {
        name: "kernels",
        about: "AF_XDP and scenarios on two other kernels, emulated (where QEMU is)",
        act: qemu::step,
    },
    Step {
        name: "nocc",
        about: "what we ship builds without C tools",
        act: |root| nocc::run(root).map(Done::from),
    },
];

/// All campaigns.
const CAMPAIGNS: [Campaign; 9] = [
    Campaign {
        name: "lines",
        about: "the lines of the tree, and the code of the packet half beside that of the instruments",
        arguments: Some(""),
        act: |root, _| lines::run(root),
    },
    Campaign {
        name: "dist",
        about: "static programs, a .deb, checksums, a list of parts; what registries ask (--help: its steps)",
        arguments: None,
        act: dist::run,
    },
    Campaign {
        name: "aa",
        about: "100 runs of two sides that are the same: how many are told apart, with an exact bound",
        arguments: Some(results::AA_ARGUMENTS),
        act: results::aa,
    },
    Campaign {
        name: "keep",
        about: "puts the document of a run into results/ (RUN MACHINE [PART])",
        arguments: Some(results::KEEP_ARGUMENTS),
        act: results::keep,
    },
    Campaign {
        name: "tables",
        about: "renders every published table from results/ again",
        arguments: Some(""),
        act: results::tables,
    },
    Campaign {
        name: "tsan",
        about: "the buffers under ThreadSanitizer, with nightly Rust",
        arguments: Some(""),
        act: |root, _| sanitize::threads(root),
    },
    Campaign {
        name: "miri",
        about: "rings, buffers and ports under Miri, with nightly Rust",
        arguments: Some(""),
        act: |root, _| sanitize::miri(root),
    },
    Campaign {
        name: "qemu",
        about: "privileged tests on other kernels, emulated (--help: its options)",
        arguments: None,
        act: qemu::run,
    },
    Campaign {
        name: "machines",
        about: "the README's commands under every setting of a machine (--help: its options)",
        arguments: None,
        act: machines::run,
    },
];

/// Returns the text that `cargo xtask` alone prints.
pub fn help() -> String {
    let mut text = String::from("cargo xtask check     all of the following, as CI runs it\n");
    for step in &STEPS {
        text.push_str(&format!("cargo xtask {:<9} {}\n", step.name, step.about));
    }
    text.push_str("\nNo part of the check:\n");
    for campaign in &CAMPAIGNS {
        text.push_str(&format!("cargo xtask {:<9} {}\n", campaign.name, campaign.about));
    }
    text
}

/// Returns every step, to run in order.
pub fn all() -> Vec<&'static Step> {
    STEPS.iter().collect()
}

/// Returns the step of that name.
pub fn named(name: &str) -> Option<&'static Step> {
    STEPS.iter().find(|step| step.name == name)
}

/// Returns the campaign of that name.
pub fn campaign(name: &str) -> Option<&'static Campaign> {
    CAMPAIGNS.iter().find(|campaign| campaign.name == name)
}

/// Runs a campaign with the arguments after its name, and returns whether it passed; prints its
/// usage instead if they ask for help.
pub fn run_campaign(root: &Path, campaign: &Campaign, args: &[String]) -> Result<bool> {
    if let Some(usage) = usage(campaign, args) {
        print!("{usage}");
        return Ok(true);
    }
    let start = Instant::now();
    let done = (campaign.act)(root, args)?;
    if done.skipped.is_empty() || !done.note.is_empty() {
        eprintln!("{}", row(campaign.name, true, start.elapsed(), &done.note));
    }
    done.skipped.iter().for_each(|line| eprintln!("{line}"));
    Ok(true)
}

/// Returns the usage of a campaign without a help of its own if `args` ask for help.
fn usage(campaign: &Campaign, args: &[String]) -> Option<String> {
    let is_asked = args.iter().any(|arg| arg == "--help" || arg == "-h");
    let arguments = campaign.arguments.filter(|_| is_asked)?;
    let line = format!("usage: cargo xtask {} {arguments}", campaign.name);
    Some(format!("{}\n\n  {}\n", line.trim_end(), campaign.about))
}

/// Runs each of `steps`, even after a failure, and returns whether all passed.
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
    if !skipped.is_empty() || steps.iter().any(|step| step.name == "test") {
        eprint!("{}", skipped::summary(&skipped));
    }
    // Repeated because a long output may be kept only in part: its end.
    rows.iter().filter(|(passed, _)| !passed).for_each(|(_, row)| eprintln!("{row}"));
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

fn deny(root: &Path) -> Result<Done> {
    if cargo::quiet(cargo::cargo(root).args(["deny", "--version"]).stderr(Stdio::null())).is_err() {
        return Ok(Done::skipped("there is no cargo-deny", "cargo install --locked cargo-deny"));
    }
    let rules = ["deny", "--locked", "check", "bans", "licenses", "sources"];
    cargo::quiet(cargo::cargo(root).args(rules))?;
    let mut command = cargo::cargo_within(root, "5m");
    let output = command.args(["deny", "--locked", "check", "advisories"]).output()?;
    advisories(output.status.code(), &String::from_utf8_lossy(&output.stderr))
}

/// Judges a check against the database of advisories by its exit code and by what cargo-deny
/// `said`. Without the database, which not every machine reaches, the check is skipped.
fn advisories(code: Option<i32>, said: &str) -> Result<Done> {
    let remedy = "run it where that can be reached";
    let no_database = |line: &&str| line.contains("failed to fetch advisory database");
    match (code, said.lines().find(no_database)) {
        (Some(0), _) => Ok(Done::default()),
        (_, Some(why)) => Ok(Done::skipped(why.trim(), remedy)),
        // Those of timeout(1).
        (Some(124 | 137), None) => {
            Ok(Done::skipped("the database of advisories was not fetched in time", remedy))
        }
        (_, None) => bail!("cargo deny check advisories:\n{said}"),
    }
}

fn doc(root: &Path) -> Result<Done> {
    api::forget(root)?;
    let mut command = cargo::cargo(root);
    command
        .args(["doc", "--locked", "--workspace", "--no-deps"])
        .env("RUSTDOCFLAGS", "-D warnings");
    cargo::quiet(&mut command)?;
    api::compare(root).map(Done::from)
}

/// The environment of a release build with little optimisation: full optimisation takes minutes and
/// does not affect the result of a check.
pub const FAST: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];

fn forward(root: &Path) -> Result<Done> {
    cargo::quiet(cargo::cargo(root).args(["build", "--locked", "--release"]).envs(FAST))?;
    // The command ends by itself after three seconds; with this limit, a command that does not end
    // is a failure.
    let mut command = cargo::cargo_within(root, "60s");
    command.envs(FAST);
    let command = command.args(words(README_COMMANDS[0]));
    verify(command)?;
    Ok(Done::default())
}

/// Runs the README's first command; fails if it verified no packet.
fn verify(command: &mut Command) -> Result<()> {
    if cargo::streamed(command, |line| line.starts_with("PASS: "))?.is_empty() {
        bail!("`{}` printed no line `PASS: ...`: it verified no packet", README_COMMANDS[0]);
    }
    Ok(())
}

fn count(root: &Path) -> Result<Done> {
    let (note, skipped) = instructions::run(root)?;
    Ok(Done { note, skipped })
}

/// Returns the words of a command in the README, without the `cargo` at its start.
pub fn words(command: &str) -> impl Iterator<Item = &str> {
    command.split_whitespace().skip(1)
}

fn loom(root: &Path) -> Result<Done> {
    let mut command = cargo::cargo(root);
    let packages = ["linerate-ring", "linerate-skb", "linerate-datapath"];
    command.args(["test", "--locked"]).args(packages.map(|name| ["--package", name]).concat());
    command.args(["--release", "--test", "loom"]);
    // Another cfg recompiles everything, so use a separate folder: other builds keep their compiled
    // crates.
    command.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3");
    command.env("CARGO_TARGET_DIR", cargo::target_dir(root).join("loom"));
    let output = cargo::quiet(&mut command)?;
    Ok(Done::from(format!("{} models", models(&output, &packages)?)))
}

/// Returns the number of models that ran, by the output of a test program for each of `packages`;
/// fails if one ran none.
fn models(output: &str, packages: &[&str]) -> Result<usize> {
    let models: Vec<usize> = output.lines().filter_map(passed).collect();
    if models.len() != packages.len() || models.contains(&0) {
        bail!("loom tests ran in {}: {models:?}", packages.join(", "));
    }
    Ok(models.iter().sum())
}

/// Returns the number of tests that passed, if `line` is the last one of a test program.
pub fn passed(line: &str) -> Option<usize> {
    let words = line.strip_prefix("test result:")?.split_whitespace();
    words.clone().zip(words.skip(1)).find_map(|(number, word)| {
        word.starts_with("passed").then(|| number.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_closing_line_of_cargo_test_is_understood() {
        let line = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; finished in 1s";
        assert_eq!(passed(line), Some(12));
        assert_eq!(passed("running 3 tests"), None);
        assert_eq!(passed("test result: FAILED. 7 passed; 1 failed; 0 ignored"), Some(7));
    }

    #[test]
    fn a_failed_step_fails_the_check_and_the_steps_after_it_run() {
        static RAN: AtomicUsize = AtomicUsize::new(0);
        let good = Step {
            name: "good",
            about: "",
            act: |_| {
                RAN.fetch_add(1, Ordering::Relaxed);
                Ok(Done::default())
            },
        };
        let bad = Step { name: "bad", about: "", act: |_| bail!("broken") };
        let nowhere = Path::new("/nowhere");
        assert!(run(nowhere, &[&good]).unwrap());
        assert!(!run(nowhere, &[&bad]).unwrap() && !run(nowhere, &[&bad, &good]).unwrap());
        assert_eq!(RAN.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn programs_that_ran_no_model_or_verified_no_packet_fail_their_step() {
        let ran = |n: usize| format!("test result: ok. {n} passed; 0 failed;\n");
        let packages = ["ring", "skb"];
        assert_eq!(models(&(ran(2) + &ran(3)), &packages).unwrap(), 5);
        for output in [ran(2), ran(2) + &ran(0), String::new()] {
            assert!(models(&output, &packages).is_err(), "{output}");
        }
        let said = |script: &str| verify(Command::new("sh").args(["-c", script]));
        assert!(said("echo 'PASS: 7 packets'").is_ok());
        assert!(said("echo 'no PASS: 7'").is_err() && said("echo 'PASS: 7'; exit 1").is_err());
    }

    #[test]
    fn an_advisory_fails_the_step_and_a_database_that_cannot_be_fetched_skips_it() {
        let absent = "[ERROR] failed to fetch advisory database https://host/db: no route\n";
        let skipped = advisories(Some(1), absent).unwrap().skipped;
        assert!(skipped[0].starts_with("skipped: [ERROR] failed to fetch"), "{skipped:?}");
        assert!(advisories(Some(1), "error[vulnerability]: x\nadvisories FAILED\n").is_err());
        assert!(advisories(Some(1), "").is_err());
        assert!(!advisories(Some(124), "").unwrap().skipped.is_empty());
        assert!(advisories(Some(0), "advisories ok\n").unwrap().skipped.is_empty());
    }

    #[test]
    fn campaign_prints_its_usage_if_asked_for_help() {
        let usage = |name: &str, args: &str| {
            let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
            usage(campaign(name).unwrap(), &args)
        };
        for campaign in &CAMPAIGNS {
            let has_own_help = ["dist", "qemu", "machines"].contains(&campaign.name);
            assert_eq!(usage(campaign.name, "--help").is_none(), has_own_help, "{}", campaign.name);
        }
        let aa = usage("aa", "--runs 2 -h").unwrap();
        assert!(aa.starts_with("usage: cargo xtask aa [--runs N] [--for SECONDS]"), "{aa}");
        assert!(usage("miri", "-h").unwrap().starts_with("usage: cargo xtask miri\n\n  rings"));
        assert_eq!(usage("aa", "--runs 2"), None);
    }

    #[test]
    fn the_help_names_every_step_and_campaign_once() {
        let help = help();
        let mut names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        names.extend(CAMPAIGNS.iter().map(|campaign| campaign.name));
        for name in names {
            assert_eq!(help.matches(&format!("cargo xtask {name} ")).count(), 1, "{name}");
        }
    }
}
