//! Campaign `memif`: ours and DPDK's testpmd over shared memory, in each role, with testpmd at the
//! other end.
//!
//! ```text
//!   rates      testpmd flowgen ⇄ macswap: ours, testpmd's, in turn       testpmd txonly → sink: likewise
//!   soak       ours, gen ──► testpmd, two ports ──► ours, verifying sink
//!   restarts   the same, where either side is killed under load, again and again
//! ```
//!
//! Everything lies in a folder of the build's; every process is killed with the thread that started it.

mod peers;
mod rates;
mod soak;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use linerate_sys::thread;

use crate::cargo;
use crate::steps::Done;
use crate::veth::programs::{DUT_CPU, GENERATOR_CPU, missing};

/// Usage of the campaign.
const USAGE: &str = "\
usage: cargo xtask memif [--only rates|soak|restarts] [--rounds 5] [--seconds 3] [--soak 60]
                         [--restarts 100] [--programs FOLDER]

  --only PART        one part
  --rounds N         rounds of each comparison, the sides in turn
  --seconds S        what a round measures of each side
  --soak S           seconds of each verified stream
  --restarts N       how often each side is killed
  --programs FOLDER  where linerate and macswap are, instead of target/release
";

/// Command that builds the programs to measure.
const BUILD: &str = "cargo build --release -p linerate-cli -p linerate-examples";

/// The parts, in the order in which they run.
const PARTS: [&str; 3] = ["rates", "soak", "restarts"];

/// The options, and the places of all files.
pub struct Asked {
    only: Option<String>,
    rounds: usize,
    window: Duration,
    soak: Duration,
    restarts: usize,
    programs: PathBuf,
    folder: PathBuf,
}

/// Measures what is asked for.
pub fn run(root: &Path, args: &[String]) -> Result<Done> {
    if matches!(args, [help] if help == "--help" || help == "-h") {
        print!("{USAGE}");
        return Ok(Done::default());
    }
    let target = std::path::absolute(cargo::target_dir(root))?;
    let asked = read(args, &target)?;
    for program in ["linerate", "macswap"] {
        if !asked.programs.join(program).is_file() {
            bail!("there is no {program} in {}: {BUILD}", asked.programs.display());
        }
    }
    if let Some((program, package)) =
        missing(&[("dpdk-testpmd", "dpdk"), ("taskset", "util-linux")])
    {
        return Ok(Done::skipped(&format!("no {program}"), &format!("apt-get install {package}")));
    }
    let cpus = thread::allowed_cpus()?;
    if [DUT_CPU, GENERATOR_CPU].iter().any(|cpu| !cpus.contains(cpu)) {
        let why = format!("CPUs {DUT_CPU} and {GENERATOR_CPU} are not both ours");
        return Ok(Done::skipped(&why, "a machine with two CPUs"));
    }
    fs::create_dir_all(&asked.folder)?;
    let wants = |part: &str| asked.only.as_deref().is_none_or(|only| only == part);
    if wants("rates") {
        rates::run(&asked)?;
    }
    if wants("soak") {
        soak::verified(&asked)?;
    }
    if wants("restarts") {
        soak::restarted(&asked)?;
    }
    Ok(Done::default())
}

fn read(args: &[String], target: &Path) -> Result<Asked> {
    let mut asked = Asked {
        only: None,
        rounds: 5,
        window: Duration::from_secs(3),
        soak: Duration::from_secs(60),
        restarts: 100,
        programs: target.join("release"),
        folder: target.join("memif"),
    };
    for pair in args.chunks(2) {
        let [option, value] = pair else { bail!("{USAGE}") };
        let wrong = || format!("{option} {value}");
        let seconds = || value.parse().map(Duration::from_secs).with_context(wrong);
        match option.as_str() {
            "--only" if PARTS.contains(&value.as_str()) => asked.only = Some(value.clone()),
            "--only" => bail!("--only {value}: there is {}", PARTS.join(", ")),
            "--rounds" => asked.rounds = value.parse().with_context(wrong)?,
            "--seconds" => asked.window = seconds()?,
            "--soak" => asked.soak = seconds()?,
            "--restarts" => asked.restarts = value.parse().with_context(wrong)?,
            "--programs" => asked.programs = value.into(),
            _ => bail!("{USAGE}"),
        }
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read_and_the_rest_refused() {
        let read = |text: &str| {
            let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            read(&args, Path::new("target"))
        };
        let asked = read("--only soak --soak 5 --restarts 3 --rounds 2").unwrap();
        assert_eq!((asked.soak.as_secs(), asked.restarts, asked.rounds), (5, 3, 2));
        assert_eq!(asked.only.as_deref(), Some("soak"));
        for wrong in ["--only all", "--rounds", "--rounds x", "--fast 1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
