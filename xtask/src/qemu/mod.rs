//! Campaign `qemu`, and its part, step `kernels`: the tests that need privileges, on other kernels
//! than this machine's.
//!
//! ```text
//!   apt ── kernel ──┐
//!   cargo ── tests ─┼── root file system ── QEMU ── console ── outcome
//!   this machine's  │   (init.sh, scenarios.sh)
//!   ip, tc, ping … ─┘
//! ```
//!
//! All kernels run at the same time, each on one emulated CPU, about ten times slower than the
//! host. An emulator or a kernel that is not installed is skipped with its reason and never fails
//! the campaign.

mod again;
mod apt;
mod boot;
mod bounce;
pub mod followed;
mod guest;
mod kernel;
mod laps;
mod modules;
mod names;
mod outcome;
mod programs;
mod progress;
mod tables;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::cargo;
use crate::steps::Done;
use crate::{skipped, tidy};
use guest::Load;
use kernel::{Kernel, SERIES, Series};
use outcome::Outcome;
use programs::Programs;
use progress::Progress;

const USAGE: &str = "\
usage: cargo xtask qemu [--kernel 6.1|6.12] [--only NAME,..] [--write FILE=TEXT] [--keep]
       cargo xtask qemu bounce ...   post 003 by a model of caches (bounce --help)
       cargo xtask qemu irqs|batch|shape ...   a table of one guest's figures (irqs --help)

  --kernel 6.1|6.12   on this kernel only
  --only NAME,..      tests and scenarios whose names contain one of these
  --write FILE=TEXT   write this into a file of the guest before its tests: a setting of its kernel
  --keep              keep the guests' file systems, and print the commands that boot them
";

/// Time limit of one test program, or of all scenarios, in a guest. This limit and `BOOT_LIMIT` are
/// far above the usual time: they end a program that hangs, and do not fail a slow one.
const TEST_LIMIT_SECONDS: u32 = 600;
/// Time limit of one guest, in the syntax of timeout(1).
const BOOT_LIMIT: &str = "900s";
/// The same of a guest that prints a table, whose size a setting may multiply.
const TABLE_LIMIT: &str = "2h";
/// Number of slowest tests that are printed.
const LONGEST: usize = 12;

/// The options of the command line.
struct Options {
    series: Vec<&'static Series>,
    only: String,
    write: String,
    keep: bool,
}

/// A guest that has ended, normally or not.
struct Ran {
    kernel: Kernel,
    outcome: Outcome,
    complaints: Vec<String>,
    took: Duration,
}

/// Runs the part of the campaign for every change, if the emulator is installed: tests that need a
/// kernel of their own. They take about four minutes after the kernels are downloaded.
pub fn step(root: &Path) -> Result<Done> {
    run(root, &["--only".into(), "xdp::tests,::xdp_sockets::,scenarios::".into()])
}

/// Runs the tests and scenarios in a guest for each kernel.
pub fn run(root: &Path, args: &[String]) -> Result<Done> {
    let name = args.first().map_or("", String::as_str);
    let subject = tables::named(name);
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        match subject {
            Some(subject) => print!("{}", subject.usage()),
            None => print!("{}", if name == "bounce" { bounce::USAGE } else { USAGE }),
        }
        return Ok(Done::default());
    }
    match subject {
        Some(subject) => return subject.run(root, &args[1..]),
        None if name == "bounce" => return bounce::run(root, &args[1..]),
        None => {}
    }
    let options = Options::read(args)?;
    let scenarios: Vec<&str> = guest::scenarios(&options.only).collect();
    if let Some(skipped) = impossible() {
        print_lost(root, &scenarios, &[])?;
        return Ok(skipped);
    }
    let target = std::path::absolute(cargo::target_dir(root))?;
    let folder = target.join("qemu");
    fs::create_dir_all(&folder)?;
    let (kernels, mut skipped) = kernels(&kernel::cache(&target), &options.series)?;
    if kernels.is_empty() {
        print_lost(root, &scenarios, &[])?;
        return Ok(Done::with(String::new(), skipped));
    }
    let programs = Programs::build(root, &options.only, &folder)?;
    let load = Load { programs: &programs, only: &options.only, write: &options.write };
    let count = |part: &str| -> Result<usize> {
        let programs = programs.narrowed(part)?;
        Ok(Load { programs: &programs, only: part, write: "" }.count())
    };
    let unknown = unknown(&options.only, count)?;
    if !unknown.is_empty() {
        bail!("no test and no scenario has {} in its name", unknown.join(", nor "));
    }
    let rans = side_by_side(kernels, &load, &folder, options.keep)?;
    print!("{}", table(&rans));
    print_lost(root, &scenarios, &rans.iter().map(|ran| &ran.outcome).collect::<Vec<_>>())?;
    rans.iter().for_each(|ran| {
        let all = ran.outcome.skipped.iter();
        skipped.extend(all.map(|(test, why)| skip(ran.kernel.series, test, why)));
    });
    let unstable = again::retried(&rans, &load, &folder, &options)?;
    // The tests that failed have passed alone.
    let passed = |ran: &Ran| ran.outcome.passed() + ran.outcome.failed.len();
    let passed: usize = rans.iter().map(passed).sum();
    Ok(Done::with(format!("{passed} tests under {} kernels{unstable}", rans.len()), skipped))
}

/// Returns the parts of `only` that no name has, by `count`, the number of tests and scenarios with
/// a part. After tests were renamed, a part that finds none would leave them out without a word.
fn unknown(only: &str, count: impl Fn(&str) -> Result<usize>) -> Result<Vec<&str>> {
    let mut unknown = Vec::new();
    for part in only.split(',') {
        if count(part)? == 0 {
            unknown.push(part);
        }
    }
    Ok(unknown)
}

/// Formats the line of a skipped test. It names a scenario; tests with the same reason are counted
/// on one line.
fn skip(series: &str, test: &str, why: &str) -> String {
    match test.starts_with("scenarios::") {
        true => format!("skipped: Linux {series}: {test}: {why}"),
        false => format!("skipped: Linux {series}: {why}"),
    }
}

/// Returns true if one of the lines says that a guest skipped the scenario.
pub fn has_skipped(skips: &[String], scenario: &str) -> bool {
    let named = format!(": scenarios::{scenario}: ");
    skips.iter().any(|line| line.contains(&named))
}

/// Prints the rows of the specification that lose evidence because guests skipped scenarios.
fn print_lost(root: &Path, scenarios: &[&str], outcomes: &[&Outcome]) -> Result<()> {
    let names = skipped_scenarios(scenarios, outcomes);
    let as_str = names.each_ref().map(|names| names.iter().map(String::as_str));
    let [skipped, in_part] = as_str.map(|names| names.collect::<BTreeSet<&str>>());
    if names.iter().any(|names| !names.is_empty()) {
        let specification = fs::read_to_string(root.join(tidy::SPEC))?;
        eprint!("{}", skipped::lost(tidy::rows(&specification), &skipped, &in_part));
    }
    Ok(())
}

/// Returns the scenarios, as evidence, that every guest skipped, or that no guest ran; then those
/// that only some guests skipped.
fn skipped_scenarios(scenarios: &[&str], outcomes: &[&Outcome]) -> [BTreeSet<String>; 2] {
    let (mut skipped, mut in_part) = (BTreeSet::new(), BTreeSet::new());
    for name in scenarios {
        let test = format!("scenarios::{name}");
        let has_skipped = |outcome: &&&Outcome| outcome.skipped.iter().any(|(of, _)| *of == test);
        let n = outcomes.iter().filter(has_skipped).count();
        if n == outcomes.len() {
            skipped.insert(format!("guest: {name}"));
        } else if n > 0 {
            in_part.insert(format!("guest: {name}"));
        }
    }
    [skipped, in_part]
}

/// Runs a guest for each of `kernels`, all at the same time.
fn side_by_side(
    kernels: Vec<Kernel>,
    load: &Load<'_>,
    folder: &Path,
    keep: bool,
) -> Result<Vec<Ran>> {
    let progress = Progress::new(load.count() * kernels.len());
    thread::scope(|scope| {
        let start = |kernel| scope.spawn(|| one(kernel, load, folder, keep, &progress));
        let guests: Vec<_> = kernels.into_iter().map(start).collect();
        let ended = guests.into_iter().map(|guest| guest.join());
        ended.map(|ran| ran.unwrap_or_else(|_| bail!("the guest's thread panicked"))).collect()
    })
}

/// Runs one guest with `kernel`; stores its console and, on request, its file system in `folder`.
fn one(
    kernel: Kernel,
    load: &Load<'_>,
    folder: &Path,
    keep: bool,
    progress: &Progress,
) -> Result<Ran> {
    let start = Instant::now();
    let of = |extension: &str| folder.join(format!("{}.{extension}", kernel.series));
    let (file_system, log): (PathBuf, PathBuf) = (of("cpio"), of("log"));
    eprintln!(
        "qemu: Linux {}: {} tests, console in {}",
        kernel.version,
        load.count(),
        log.display()
    );
    guest::write(&file_system, &kernel, load)?;
    let mut outcome = Outcome::new();
    let (booted, mut begun) = (Instant::now(), 0);
    let status = boot::run(boot::command(&kernel.image(), &file_system), &log, |line| {
        outcome.line(line, booted.elapsed());
        progress.add(outcome.begun - std::mem::replace(&mut begun, outcome.begun));
    })?;
    if keep {
        eprintln!("qemu: {}", shown(&boot::command(&kernel.image(), &file_system)));
    } else {
        fs::remove_file(&file_system)?;
    }
    let complaints = outcome.complaints(load.ends(), load.count(), status);
    Ok(Ran { kernel, outcome, complaints, took: start.elapsed() })
}

impl Options {
    /// Returns the options that select every kernel and every test.
    fn all() -> Options {
        let series = SERIES.iter().collect();
        Options { series, only: String::new(), write: String::new(), keep: false }
    }

    fn read(args: &[String]) -> Result<Options> {
        let mut options = Options::all();
        let mut args = args.iter();
        while let Some(option) = args.next() {
            match (option.as_str(), args.as_slice().first()) {
                ("--keep", _) => options.keep = true,
                ("--kernel", Some(name)) => {
                    options.series = SERIES.iter().filter(|series| series.name == name).collect();
                    args.next();
                }
                // The names are part of a shell command, so only safe characters are accepted.
                ("--only", Some(only)) if only.split(',').all(is_a_name) => {
                    options.only.clone_from(only);
                    args.next();
                }
                ("--write", Some(write)) if is_a_write(write) => {
                    options.write.clone_from(write);
                    args.next();
                }
                _ => bail!("{option}: cannot be asked for\n{USAGE}"),
            }
        }
        if options.series.is_empty() {
            bail!("there is no such kernel here\n{USAGE}");
        }
        Ok(options)
    }
}

/// Returns true if a part of a test's name is valid: a single shell word of the characters of
/// names.
fn is_a_name(part: &str) -> bool {
    !part.is_empty() && part.chars().all(|c| ":_".contains(c) || c.is_ascii_alphanumeric())
}

/// Returns true if `write` is an absolute path, `=` and a text, of the characters of names and
/// paths.
fn is_a_write(write: &str) -> bool {
    let is_safe = |c: char| "/_.-=".contains(c) || c.is_ascii_alphanumeric();
    write.starts_with('/') && write.contains('=') && write.chars().all(is_safe)
}

/// Returns why no guest can run on this machine: it is not x86-64, or lacks a program.
fn impossible() -> Option<Done> {
    if cfg!(not(target_arch = "x86_64")) {
        let why = "guests are x86-64 and run this machine's programs";
        return Some(Done::skipped(why, "another machine"));
    }
    let needed = [(boot::QEMU, "qemu-system-x86"), ("xz", "xz-utils"), ("ldd", "libc-bin")];
    // The first is not needed if the variable names another emulator.
    let own = usize::from(std::env::var_os(boot::OWN_QEMU).is_some());
    let mut needed = needed.into_iter().skip(own).chain(guest::NEEDED);
    let (program, package) = needed.find(|(program, _)| cargo::located(program).is_none())?;
    Some(Done::skipped(&format!("no {program}"), &format!("apt-get install {package}")))
}

/// Returns the available kernels, and a line for each of the others.
fn kernels(cache: &Path, series: &[&Series]) -> Result<(Vec<Kernel>, Vec<String>)> {
    fs::create_dir_all(cache)?;
    let (mut kernels, mut skipped) = (Vec::new(), Vec::new());
    for series in series {
        match Kernel::obtain(cache, series) {
            Ok(kernel) => kernels.push(kernel),
            Err(e) => skipped.push(format!("skipped: no Linux {}: {e:#}", series.name)),
        }
    }
    Ok((kernels, skipped))
}

/// Formats a row for each guest, with its complaints and skipped tests.
fn table(rans: &[Ran]) -> String {
    let mut text = format!("{:<24} passed failed skipped seconds\n", "kernel");
    for Ran { kernel, outcome, took, .. } in rans {
        text += &format!(
            "{:<24} {:>6} {:>6} {:>7} {:>7.1}\n",
            kernel.version,
            outcome.passed(),
            outcome.failed.len(),
            outcome.skipped.len(),
            took.as_secs_f64()
        );
    }
    for Ran { kernel, outcome, .. } in rans {
        let (parts, longest) = (outcome.parts.all(), outcome.tests.longest(LONGEST));
        text += &format!("  {}: {parts}\n  {0}: longest: {longest}\n", kernel.series);
    }
    for (names, why) in programs::LEFT_OUT {
        text += &format!("  left out: {why}: {}\n", names.join(" "));
    }
    for Ran { kernel, outcome, complaints, .. } in rans {
        for (test, why) in &outcome.skipped {
            text += &format!("  {}: {test} skipped: {why}\n", kernel.series);
        }
        for complaint in complaints.iter().chain(&outcome.reasons) {
            text += &format!("  {}: {complaint}\n", kernel.series);
        }
    }
    text
}

/// Formats a command as typed.
fn shown(command: &std::process::Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words = words.map(|word| word.to_string_lossy());
    let quoted =
        words.map(|word| if word.contains(' ') { format!("'{word}'") } else { word.into() });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &str) -> Result<Options> {
        Options::read(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_kernel_and_a_name_can_be_asked_for() {
        let all = options("").unwrap();
        assert_eq!((all.series.len(), all.only.as_str(), all.keep), (2, "", false));
        let one = options("--kernel 6.12 --keep --only netem,e1000").unwrap();
        assert_eq!(
            (one.series[0].name, one.only.as_str(), one.keep),
            ("6.12", "netem,e1000", true)
        );
        for wrong in [
            "--kernel",
            "--kernel 2.4",
            "--only",
            "--only it's",
            "--only xdp,",
            "6.1",
            "--write x=1",
            "--write /x",
            "--write /x='",
        ] {
            assert!(options(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_part_of_names_that_no_test_has_is_told() {
        let count = |part: &str| Ok(usize::from(part == "xdp::tests"));
        assert_eq!(unknown("xdp::tests,::xdp_socket::", count).unwrap(), ["::xdp_socket::"]);
        assert_eq!(unknown("xdp::tests", count).unwrap(), [""; 0]);
        assert_eq!(unknown("", |_| Ok(0)).unwrap(), [""]);
    }

    #[test]
    fn a_skipped_scenario_is_named_and_a_test_is_not() {
        let scenario = skip("6.12", "scenarios::clock_not_tsc", "no other clock");
        assert_eq!(scenario, "skipped: Linux 6.12: scenarios::clock_not_tsc: no other clock");
        assert_eq!(skip("6.1", "port::xdp::tests::a", "not root"), "skipped: Linux 6.1: not root");
        let skips = [scenario];
        assert!(has_skipped(&skips, "clock_not_tsc") && !has_skipped(&skips, "clock"));
    }

    #[test]
    fn a_scenario_that_every_guest_skipped_gives_no_evidence() {
        let skipping = |names: &[&str]| {
            let mut outcome = Outcome::new();
            let skipped = names.iter().map(|name| (format!("scenarios::{name}"), "why".to_owned()));
            outcome.skipped.extend(skipped);
            outcome
        };
        let (one, other) = (skipping(&["rss", "verbs"]), skipping(&["verbs"]));
        let of = |outcomes: &[&Outcome]| {
            let found = skipped_scenarios(&["rss", "two_cpus", "verbs"], outcomes);
            found.map(|names| Vec::from_iter(names).join(", "))
        };
        assert_eq!(of(&[&one, &other]), ["guest: verbs", "guest: rss"]);
        assert_eq!(of(&[&other]), ["guest: verbs", ""]);
        assert_eq!(of(&[]), ["guest: rss, guest: two_cpus, guest: verbs", ""], "no guest ran");
    }

    #[test]
    fn the_usage_names_every_series() {
        for series in &SERIES {
            assert!(USAGE.contains(series.name));
        }
    }
}
