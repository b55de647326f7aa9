//! Campaign `machines`: the README's two commands under every setting of a machine.
//!
//! ```text
//!   cargo run --release -- forward ──┐   runner: under SETTING
//!   cargo test --workspace ──────────┼── programs and tests run under the setting, compilers do not
//!   cargo xtask qemu --write ... ────┘   settings of a whole machine: in a guest
//! ```
//!
//! The settings of a process and its children are those of the program `under` (tests/src/setting.rs). A guest has no
//! cargo, so it runs the first command by a scenario, and the tests of the crates that ask the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use linerate_show::grid::Grid;

use crate::steps::{self, Done, FAST};
use crate::tidy::README_COMMANDS;
use crate::{cargo, qemu, skipped};

const USAGE: &str = "\
usage: cargo xtask machines [--only SETTING,..] [--package NAME,..]

  --only SETTING,..    under these settings only; `--only ?` prints all
  --package NAME,..    the tests of these packages instead of all
";

/// Settings of a whole machine: the name, the guest's file, what is written into it, the tests that run, and the
/// scenario of the first command.
const GUESTS: [(&str, &str, &str, &str, &str); 6] = [
    ("huge-pages-none", HUGE_PAGES, "0", "tests::", "huge_pages"),
    ("huge-pages-few", HUGE_PAGES, "4", "tests::", "huge_pages"),
    ("huge-pages-many", HUGE_PAGES, "64", "tests::", "huge_pages"),
    // Memory of other processes is refused, which memif's tests are about.
    ("overcommit-never", OVERCOMMIT, "2", "packet::,tap::,xdp::", "overcommit_never"),
    ("clock-hpet", CLOCK, "hpet", "tests::", "clock_not_tsc"),
    ("clock-acpi", CLOCK, "acpi_pm", "tests::", "clock_not_tsc"),
];
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Settings in which the tests cannot run, with the reason.
const FIRST_ONLY: [(&str, &str); 2] =
    [("memory-64m", "tests take more: memory-512m"), ("proc-hidden", "tests read /proc")];

/// Packages of which many tests cannot run under a setting, with the reason.
const LEFT_OUT: [(&str, &[&str], &str); 1] =
    [("no-affinity", &["linerate-lab", "linerate-lab-cli"], "the lab pins its threads")];

/// Time limit of one command under one setting, in the syntax of timeout(1): far above its usual time.
const LIMIT: &str = "60m";

/// The programs of the campaign, and where it writes.
struct Bench<'a> {
    root: &'a Path,
    folder: PathBuf,
    under: PathBuf,
    packages: &'a [&'a str],
}

/// The ends of both commands under a setting.
#[derive(Default)]
struct Row {
    first: String,
    second: String,
    /// The line of the first command about its shared memory, or why there is none.
    said: String,
    /// Reasons of skipped tests.
    skipped: BTreeSet<String>,
    /// Complaints: no command may end without having worked or said what is missing.
    failed: Vec<String>,
}

/// Runs both commands under each setting.
pub fn run(root: &Path, args: &[String]) -> Result<Done> {
    if matches!(args, [help] if help == "--help" || help == "-h") {
        print!("{USAGE}");
        return Ok(Done::default());
    }
    let (only, packages) = options(args)?;
    let bench = Bench::new(root, &packages)?;
    let settings = cargo::quiet(&mut Command::new(&bench.under))?;
    let mut settings: Vec<&str> = settings.lines().chain(GUESTS.map(|(name, ..)| name)).collect();
    if let Some(wrong) = only.iter().find(|name| !settings.contains(*name)) {
        bail!("no setting is called {wrong}; there are {}", settings.join(", "));
    }
    settings.retain(|name| only.is_empty() || only.contains(name));
    bench.build()?;
    let start = Instant::now();
    let mut rows = Vec::new();
    for (i, name) in settings.iter().enumerate() {
        let left = settings.len() - i;
        let eta = start.elapsed().as_secs().checked_div(i as u64).map(|each| each * left as u64);
        let eta = eta.map(|s| format!(", about {} min left", s.div_ceil(60))).unwrap_or_default();
        eprintln!("machines: [{}/{}] {name}{eta}", i + 1, settings.len());
        rows.push((*name, bench.row(name)?));
    }
    print!("{}", table(&rows));
    let failed = rows.iter().filter(|(_, row)| !row.failed.is_empty()).count();
    if failed > 0 {
        bail!("{failed} settings with complaints; the output is in {}", bench.folder.display());
    }
    Ok(Done::from(format!("{} settings", rows.len())))
}

/// Reads the settings and the packages that were asked for; none stands for all.
fn options(args: &[String]) -> Result<(Vec<&str>, Vec<&str>)> {
    let (mut only, mut packages) = (Vec::new(), Vec::new());
    for pair in args.chunks(2) {
        match pair {
            [option, names] if option == "--only" => only.extend(names.split(',')),
            [option, names] if option == "--package" => packages.extend(names.split(',')),
            _ => bail!("{}: cannot be asked for\n{USAGE}", pair.join(" ")),
        }
    }
    Ok((only, packages))
}

impl<'a> Bench<'a> {
    /// Builds `under`.
    fn new(root: &'a Path, packages: &'a [&'a str]) -> Result<Bench<'a>> {
        let target = std::path::absolute(cargo::target_dir(root))?;
        let folder = target.join("machines");
        fs::create_dir_all(&folder)?;
        let mut build = cargo::cargo_within(root, LIMIT);
        build.args(["build", "--locked", "--package", "linerate-tests", "--bin", "under"]);
        cargo::quiet(&mut build)?;
        Ok(Bench { root, folder, under: target.join("debug/under"), packages })
    }

    /// Builds the programs of both commands.
    fn build(&self) -> Result<()> {
        eprintln!("machines: building");
        cargo::quiet(self.tests(&[], &[]).arg("--no-run"))?;
        let mut build = cargo::cargo_within(self.root, LIMIT);
        cargo::quiet(build.args(["build", "--locked", "--release"]).envs(FAST))?;
        Ok(())
    }

    /// Returns the README's second command, or the part of it that was asked for; in any case
    /// `without` some packages.
    fn tests(&self, without: &[&str], more: &[&str]) -> Command {
        let mut command = cargo::cargo_within(self.root, LIMIT);
        let words = steps::words(README_COMMANDS[1]);
        command.args(words.filter(|word| self.packages.is_empty() || *word != "--workspace"));
        command.args(chosen(self.packages, without));
        command.args(more).arg("--locked").envs(steps::test_environment(self.root));
        // For who may not write to /tmp.
        command.env("TMPDIR", "/var/tmp");
        command
    }

    fn row(&self, name: &str) -> Result<Row> {
        match GUESTS.iter().find(|(guest, ..)| *guest == name) {
            Some((_, file, text, tests, scenario)) => {
                let only = format!("{tests},scenarios::{scenario}");
                Ok(self.guest(&format!("{file}={text}"), &only))
            }
            None => self.process(name),
        }
    }

    /// Runs both commands in a guest of which a file was written.
    fn guest(&self, write: &str, only: &str) -> Row {
        let args = ["--kernel", "6.12", "--write", write, "--only", only].map(str::to_owned);
        match qemu::run(self.root, &args) {
            Ok(done) => {
                let ran = !done.note().is_empty();
                let first = if ran { "works" } else { "skipped" }.into();
                let skipped = done.skips().iter().cloned().collect();
                Row { first, second: done.note().into(), skipped, ..Row::default() }
            }
            Err(error) => Row { failed: vec![format!("{error:#}")], ..Row::default() },
        }
    }

    /// Runs both commands under a setting of `under`, which cargo gets as the runner of programs.
    fn process(&self, name: &str) -> Result<Row> {
        let mut row = Row::default();
        let probe = Command::new(&self.under).args([name, "true"]).output()?;
        if !probe.status.success() {
            row.first = "skipped".into();
            row.skipped.insert(String::from_utf8_lossy(&probe.stderr).trim().to_owned());
            return Ok(row);
        }
        let runner = format!("target.'cfg(all())'.runner = [{:?}, {name:?}]", self.under);
        self.first(&mut row, &runner)?;
        if let Some((_, why)) = FIRST_ONLY.iter().find(|(first, _)| *first == name) {
            row.second = format!("not run: {why}");
            return Ok(row);
        }
        let (without, why) = self.left_out(name);
        if !self.packages.is_empty() && chosen(self.packages, &without).is_empty() {
            row.second = format!("not run: {why}");
            return Ok(row);
        }
        self.second(&mut row, &runner, name, &without)?;
        if !without.is_empty() {
            row.second += &format!("; without {}: {why}", without.join(", "));
        }
        Ok(row)
    }

    /// Returns those of the packages to test that are left out under a setting, with the reason.
    fn left_out(&self, name: &str) -> (Vec<&'static str>, &'static str) {
        let found = LEFT_OUT.iter().find(|(setting, ..)| *setting == name);
        let none: (&[&str], &str) = (&[], "");
        let (packages, why) = found.map_or(none, |(_, packages, why)| (*packages, *why));
        let is_asked = |name: &&str| self.packages.is_empty() || self.packages.contains(name);
        (packages.iter().copied().filter(is_asked).collect(), why)
    }

    /// Runs the README's second command: each test passes, or prints why it was skipped.
    fn second(&self, row: &mut Row, runner: &str, name: &str, without: &[&str]) -> Result<()> {
        let log = |kind: &str| self.folder.join(format!("{name}.{kind}"));
        let all = || self.tests(without, &["--config", runner, "--no-fail-fast"]);
        let mut command = all();
        command.args(["--", "--show-output"]);
        let (kept, failure) = cargo::logged(&mut command, &log("log"), |line| {
            skipped::matters(line) || steps::passed(line).is_some()
        })?;
        let skips: Vec<_> = kept.iter().filter(|line| skipped::says_so(line)).cloned().collect();
        let mut unstable = String::new();
        if let Some((error, code)) = failure {
            let failed = skipped::failed_tests(&kept).filter(|_| code == steps::TESTS_FAILED);
            let again = |alone: &[&str]| {
                let (ended, failure) =
                    cargo::logged(all().args(alone), &log("again.log"), |line| {
                        steps::passed(line).is_some()
                    })?;
                failure.map_or(Ok(ended.join("\n")), |(error, _)| Err(error))
            };
            if steps::retry_alone(again, failed.as_deref()).is_ok() {
                unstable = format!(", {} UNSTABLE", failed.unwrap_or_default().len());
            } else {
                row.failed.extend(kept.iter().filter(|line| skipped::failed(line)).cloned());
                // A program that could not be started named no test.
                if row.failed.is_empty() {
                    row.failed.push(format!("{error:#}"));
                }
            }
        }
        // A skipped test passes, for its harness.
        let passed: usize = kept.iter().filter_map(|line| steps::passed(line)).sum();
        let passed = passed.saturating_sub(skips.len());
        row.second = format!("{passed} passed, {} skipped{unstable}", skips.len());
        row.skipped.extend(skips);
        Ok(())
    }

    /// Runs the README's first command: it works, or says what is missing, why, and what to do.
    fn first(&self, row: &mut Row, runner: &str) -> Result<()> {
        let mut command = cargo::cargo_within(self.root, LIMIT);
        command.args(["--config", runner]).args(steps::words(README_COMMANDS[0])).envs(FAST);
        let output = command.output().context("cannot start cargo")?;
        let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
        let line = |text: &str, head: &str| {
            text.lines().find(|line| line.starts_with(head)).map(|line| line.trim().to_owned())
        };
        let refusal = line(&err, "error[");
        let said = line(&out, "memif").or_else(|| line(&err, "warning: "));
        row.said = said.or(refusal.clone()).unwrap_or_default();
        row.first = match refusal {
            None if output.status.success() => "works".into(),
            Some(_) if err.contains("\n  why: ") => "refused".into(),
            _ => {
                row.failed.push(format!("{}: {err}", output.status));
                "FAILED".into()
            }
        };
        Ok(())
    }
}

/// Returns the options that choose the packages of the tests: those that were asked for, or else all,
/// `without` some.
fn chosen<'a>(packages: &[&'a str], without: &[&'a str]) -> Vec<&'a str> {
    let is_left = |name: &&str| !without.contains(name);
    let (option, names): (_, Vec<&str>) = match packages {
        [] => ("--exclude", without.to_vec()),
        _ => ("--package", packages.iter().copied().filter(is_left).collect()),
    };
    names.into_iter().flat_map(|name| [option, name]).collect()
}

/// Formats a row for each setting, and below it what was skipped there and not under the first setting, `none`.
fn table(rows: &[(&str, Row)]) -> String {
    let mut grid = Grid::new("llll");
    grid.cells(["setting", "first command", "second command", "it said"]);
    let usual = rows.iter().find(|(name, _)| *name == "none").map(|(_, row)| &row.skipped);
    for (name, row) in rows {
        let said = row.said.split_whitespace().collect::<Vec<_>>().join(" ");
        grid.cells([*name, &row.first, &row.second, &said]);
        let is_usual =
            |why: &&String| usual.is_some_and(|usual| *name != "none" && usual.contains(*why));
        row.skipped
            .iter()
            .filter(|why| !is_usual(why))
            .for_each(|why| grid.text(format!("    {why}")));
        row.failed.iter().for_each(|why| grid.text(format!("    FAILED: {why}")));
    }
    grid.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_that_are_left_out_are_excluded_from_all_or_from_those_that_were_asked_for() {
        assert_eq!(chosen(&[], &["a", "b"]), ["--exclude", "a", "--exclude", "b"]);
        assert_eq!(chosen(&["a", "c"], &["a", "b"]), ["--package", "c"]);
        assert!(chosen(&["a"], &["a"]).is_empty() && chosen(&[], &[]).is_empty());
        let bench = |packages: &'static [&'static str]| {
            let (root, folder, under) = (Path::new("."), PathBuf::new(), PathBuf::new());
            Bench { root, folder, under, packages }
        };
        let why = "the lab pins its threads";
        let lab = ["linerate-lab", "linerate-lab-cli"];
        assert_eq!(bench(&[]).left_out("no-affinity"), (lab.to_vec(), why));
        let asked = bench(&["linerate-lab", "linerate-port"]).left_out("no-affinity");
        assert_eq!(asked, (vec!["linerate-lab"], why));
        assert!(bench(&[]).left_out("none").0.is_empty());
    }

    #[test]
    fn a_row_has_what_is_skipped_under_its_setting_alone_and_what_failed() {
        let row = |skipped: &[&str], failed: &[&str]| Row {
            first: "works".into(),
            skipped: skipped.iter().map(|why| (*why).to_owned()).collect(),
            failed: failed.iter().map(|why| (*why).to_owned()).collect(),
            ..Row::default()
        };
        let rows = [
            ("none", row(&["skipped: no card"], &[])),
            ("no-root", row(&["skipped: no card", "skipped: not root"], &["test a ... FAILED"])),
        ];
        let text = table(&rows);
        assert_eq!(text.matches("no card").count(), 1, "{text}");
        assert!(text.contains("    skipped: not root\n    FAILED: test a ... FAILED\n"), "{text}");
    }
}
