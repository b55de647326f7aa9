//! Campaign `machines`: the README's two commands under every setting of a machine.
//!
//! ```text
//!   cargo run --release -- forward ──┐   runner: under SETTING
//!   cargo test --workspace ──────────┼── programs and tests run under the setting, compilers do not
//!   cargo xtask qemu --write ... ────┘   settings of a whole machine: in a guest
//! ```
//!
//! The settings of a process and its children are those of the program `under`
//! (tests/src/setting.rs). A guest has no cargo, so it runs the first command by a scenario, and
//! the tests of the crates that ask the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use linerate_show::grid::Grid;

use crate::steps::{self, Done, FAST};
use crate::tidy::README_COMMANDS;
use crate::{cargo, qemu, skipped, suite};

const USAGE: &str = "\
usage: cargo xtask machines [--only SETTING,..] [--package NAME,..]

  --only SETTING,..    under these settings only; `--only ?` prints all
  --package NAME,..    the tests of these packages instead of all
";

/// Settings of a whole machine: the name, the guest's file, what is written into it, the tests that
/// run, and the scenario of the first command.
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

/// Settings in which the tests cannot run, with the reason. Where memory ends, the kernel kills a
/// whole test program, with the tests in it that take little.
const FIRST_ONLY: [(&str, &str); 2] =
    [("memory-64m", "tests take more: memory-512m"), ("proc-hidden", "tests read /proc")];

/// Tests that cannot run under a setting, by parts of their names, with the reason.
///
/// Where a filter refuses to pin threads, other tests that pin some say so and skip themselves. A
/// side of the lab is a measurement of pinned threads and is refused there as a wrong request
/// (E-CPU), which its tests take for a failure.
const LEFT_OUT: [(&str, &[&str], &str); 5] = [
    (
        NO_AFFINITY,
        &[
            "scenario::engine::tests::",
            "scenario::host::tests::",
            "scenario::churn::tests::a_side_that_is_dropped_without_an_end_leaves_no_thread_behind",
            "scenario::churn::tests::each_cpu_counts_only_its_own_work",
            "scenario::churn::tests::in_every_mode_each_packet_that_was_allocated_is_freed_or_somewhere",
            "scenario::churn::tests::packets_are_freed_elsewhere_all_of_them_or_none",
            "runner::tests::document::a_run_on_this_machine_is_valid_too",
        ],
        "they open a side of the lab, as do all but a few tests of the two modules",
    ),
    (
        NO_AFFINITY,
        &[
            "clean_run_has_no_cause",
            "stage_that_reorders_batches_is_the_core",
            "driver_that_says_it_sent_what_it_lost_is_the_driver",
            "driver_that_reorders_batches_is_told_from_the_device_by_another_device",
            "device_that_loses_packets_is_the_device",
            "programs_that_read_too_slowly_are_the_receiver",
            "two_faults_at_once_are_both_found_whichever_two_parts_have_them",
            "cap_of_two_tells_an_overrun_host_from_a_faulty_driver_and_a_device_that_loses",
            "overrun_host_is_not_told_from_a_device_that_loses_without_a_cap_of_two",
        ],
        "the triage opens a side of the lab for each case",
    ),
    (
        NO_AFFINITY,
        &["senders_are_processes_which_end_with_the_run"],
        "the run of the lab that it starts is refused",
    ),
    (
        NO_AFFINITY,
        &["place::tests::two_cpus_have_a_distance_and_it_ends_in_time"],
        "a distance of CPUs is that of two pinned threads",
    ),
    (
        NO_AFFINITY,
        &["buffers::tests::every_case_of_ours_brings_all_its_packets_home"],
        "a case runs on the CPUs that it is given, or panics",
    ),
];
const NO_AFFINITY: &str = "no-affinity";

/// The end of a command that neither worked nor said what is missing.
const FAILED: &str = "FAILED";

/// Time limit of one command under one setting, in the syntax of timeout(1): far above its usual
/// time.
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
    /// Reasons of skipped tests, and the tests that are left out.
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
    refuse_complaints(&rows, &bench.folder)?;
    Ok(Done::from(format!("{} settings", rows.len())))
}

/// Fails if a setting has complaints; `folder` has the output.
fn refuse_complaints(rows: &[(&str, Row)], folder: &Path) -> Result<()> {
    let failed = rows.iter().filter(|(_, row)| !row.failed.is_empty()).count();
    if failed > 0 {
        bail!("{failed} settings with complaints; the output is in {}", folder.display());
    }
    Ok(())
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
        cargo::quiet(self.tests(&[]).arg("--no-run"))?;
        let mut build = cargo::cargo_within(self.root, LIMIT);
        cargo::quiet(build.args(["build", "--locked", "--release"]).envs(FAST))?;
        Ok(())
    }

    /// Returns the README's second command, or the part of it that was asked for.
    fn tests(&self, more: &[&str]) -> Command {
        let mut command = cargo::cargo_within(self.root, LIMIT);
        let words = steps::words(README_COMMANDS[1]);
        command.args(words.filter(|word| self.packages.is_empty() || *word != "--workspace"));
        command.args(self.packages.iter().flat_map(|name| ["--package", *name]));
        command.args(more).arg("--locked").envs(suite::test_environment(self.root));
        // For who may not write to /tmp.
        command.env("TMPDIR", "/var/tmp");
        command
    }

    fn row(&self, name: &str) -> Result<Row> {
        match GUESTS.iter().find(|(guest, ..)| *guest == name) {
            Some((_, file, text, tests, scenario)) => {
                let only = format!("{tests},scenarios::{scenario}");
                Ok(self.guest(&format!("{file}={text}"), &only, scenario))
            }
            None => self.process(name),
        }
    }

    /// Runs both commands in a guest of which a file was written, the first as a scenario.
    fn guest(&self, write: &str, only: &str, scenario: &str) -> Row {
        let args = ["--kernel", "6.12", "--write", write, "--only", only].map(str::to_owned);
        match qemu::run(self.root, &args) {
            Ok(done) => {
                let ran = !done.note().is_empty() && !qemu::has_skipped(done.skips(), scenario);
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
        self.second(&mut row, &runner, name)?;
        let all = left_out(name);
        row.skipped.extend(all.map(|(tests, why)| format!("left out: {why}: {}", tests.join(" "))));
        Ok(row)
    }

    /// Runs the README's second command: each test passes, or prints why it was skipped.
    fn second(&self, row: &mut Row, runner: &str, name: &str) -> Result<()> {
        let log = |kind: &str| self.folder.join(format!("{name}.{kind}"));
        let all = || self.tests(&["--config", runner, "--no-fail-fast"]);
        let mut command = all();
        command.arg("--").args(of_harness(name));
        let (kept, failure) = cargo::logged(&mut command, &log("log"), |line| {
            skipped::matters(line) || steps::passed(line).is_some()
        })?;
        let skips: Vec<_> = kept.iter().filter(|line| skipped::says_so(line)).cloned().collect();
        let mut unstable = String::new();
        if let Some((error, code)) = failure {
            let failed = skipped::failed_tests(&kept).filter(|_| code == suite::TESTS_FAILED);
            let again = |alone: &[&str]| {
                let (ended, failure) =
                    cargo::logged(all().args(alone), &log("again.log"), |line| {
                        steps::passed(line).is_some() || skipped::says_so(line)
                    })?;
                failure.map_or(Ok(ended.join("\n")), |(error, _)| Err(error))
            };
            if suite::retry_alone(again, failed.as_deref()).is_ok() {
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
        row.first = ended(refusal.is_some(), output.status.success(), &err).into();
        if row.first == FAILED {
            row.failed.push(format!("{}: {err}", output.status));
        }
        Ok(())
    }
}

/// Returns the end of the first command: it worked, or it was refused and said why, or it failed.
fn ended(is_refused: bool, is_success: bool, err: &str) -> &'static str {
    match is_refused {
        false if is_success => "works",
        true if err.contains("\n  why: ") => "refused",
        _ => FAILED,
    }
}

/// Returns the tests that are left out under a setting, with the reasons.
fn left_out(name: &str) -> impl Iterator<Item = (&'static [&'static str], &'static str)> {
    let of_setting = LEFT_OUT.iter().filter(move |(setting, ..)| *setting == name);
    of_setting.map(|(_, tests, why)| (*tests, *why))
}

/// Returns the arguments of test programs under a setting.
fn of_harness(name: &str) -> Vec<&'static str> {
    let tests = left_out(name).flat_map(|(tests, _)| tests);
    ["--show-output"].into_iter().chain(tests.flat_map(|test| ["--skip", *test])).collect()
}

/// Formats a row for each setting, and below it what was skipped there and not under the first
/// setting, `none`.
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

    /// The sources of the tests that are left out one by one.
    const SOURCES: [&str; 6] = [
        include_str!("../../instruments/cli/tests/lab.rs"),
        include_str!("../../instruments/lab/src/buffers.rs"),
        include_str!("../../instruments/lab/src/place.rs"),
        include_str!("../../instruments/lab/src/runner/tests/document.rs"),
        include_str!("../../instruments/lab/src/scenario/churn/tests.rs"),
        include_str!("../../instruments/lab/tests/triage.rs"),
    ];

    #[test]
    fn tests_that_are_left_out_are_there_and_are_skipped_under_their_setting_only() {
        let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../instruments/lab/src");
        for (setting, tests, _) in LEFT_OUT {
            let named = format!("name: {setting:?},");
            assert!(include_str!("../../tests/src/setting.rs").contains(&named), "{setting}");
            for test in tests {
                assert!(of_harness(setting).windows(2).any(|pair| pair == ["--skip", *test]));
                if let Some(module) = test.strip_suffix("::") {
                    let file = lab.join(module.replace("::", "/")).with_extension("rs");
                    assert!(file.is_file(), "{}", file.display());
                    continue;
                }
                let name = test.rsplit("::").next().unwrap();
                let head = format!("#[test]\nfn {name}() {{");
                let inner = head.replace('\n', "\n    ");
                let n = SOURCES.iter().filter(|text| text.contains(&head) || text.contains(&inner));
                assert_eq!(n.count(), 1, "{test}");
            }
        }
        assert_eq!(of_harness("none"), ["--show-output"]);
    }

    #[test]
    fn a_command_that_neither_works_nor_says_why_has_failed() {
        let refusal = "error[E-MEMORY]: cannot map\n  why: the limit\n";
        assert_eq!(ended(false, true, ""), "works");
        assert_eq!(ended(true, false, refusal), "refused");
        for (is_refused, err) in [(true, "error[E-MEMORY]: cannot map\n"), (false, "killed")] {
            assert_eq!(ended(is_refused, false, err), FAILED, "{err}");
        }
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
        let nowhere = Path::new("/nowhere");
        assert!(refuse_complaints(&rows[..1], nowhere).is_ok());
        assert!(refuse_complaints(&rows, nowhere).is_err());
        let text = table(&rows);
        assert_eq!(text.matches("no card").count(), 1, "{text}");
        assert!(text.contains("    skipped: not root\n    FAILED: test a ... FAILED\n"), "{text}");
    }
}
