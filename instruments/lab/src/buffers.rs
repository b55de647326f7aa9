//! The benchmark of packet buffers against a peer's: one case for each process, so that an
//! experiment can run the two sides in turn.
//!
//! Ours are the loops of [`linerate_skb::bench`]. The peer is DPDK's mbufs, mempool and ring, in C
//! (`peers/mbench.c`): it is compiled for this machine when it is first asked for, as its users do.

use std::fs;
use std::process::{Command, Output, Stdio};

use linerate_skb::Pages;
use linerate_skb::bench::{BURST, Case, Sample, named, pool, run};
use linerate_sys::thread::allowed_cpus;
use serde_json::json;

use crate::{Code, Error, Result};

/// Number of repetitions in one process.
const REPS: usize = 15;

/// Smallest number of clean repetitions for a result: in a clean one no other thread used the CPUs.
const CLEAN_MIN: usize = 3;

/// The requested case and options.
#[derive(Debug)]
struct Request {
    case: &'static Case,
    bursts: u64,
    reps: usize,
    cpus: Vec<usize>,
}

/// Runs one case, and returns the result as one line of JSON.
///
/// `args` are a side, `linerate` or `dpdk`, then a case or `probe`, then options as they are given
/// on a command line: `--cpus A,B`, `--bursts N`, `--reps N`. A probe only says whether the side
/// can be run here.
///
/// # Errors
/// `E-EXPERIMENT` for arguments that make no sense; `E-UNSUPPORTED` where the peer is not installed
/// or a side has no huge pages, with what to do.
pub fn sample(args: &[String]) -> Result<String> {
    let [side, case, options @ ..] = args else {
        return Err(usage("it takes a side and a case".into()));
    };
    let is_peer = match side.as_str() {
        "linerate" => false,
        "dpdk" => true,
        _ => return Err(usage(format!("{side} is no side"))),
    };
    if case == "probe" {
        match is_peer {
            true => probe_peer()?,
            false => has_huge_pages()?,
        }
        return Ok(json!({ "side": side, "runs": true }).to_string());
    }
    let request = Request::parse(case, options)?;
    let sample = match is_peer {
        true => sample_peer(&request)?,
        false => {
            has_huge_pages()?;
            run(request.case, &request.cpus, request.bursts, request.reps).sample()
        }
    };
    Ok(said(&request, &sample))
}

/// Formats the result of a case. With fewer than [`CLEAN_MIN`] clean repetitions the figure is
/// unknown, because it includes the work of other programs.
fn said(request: &Request, sample: &Sample) -> String {
    let Sample { ticks, bursts, reps, clean } = *sample;
    let is_clean = clean >= CLEAN_MIN.min(reps);
    let disturbed =
        (!is_clean).then(|| format!("{clean} of {reps} repetitions had their CPUs to themselves"));
    json!({
        "case": request.case.name,
        "ticks_per_packet": is_clean.then_some(ticks),
        "packets": bursts.saturating_mul(BURST as u64).saturating_mul(reps as u64),
        "reps": reps,
        "clean": clean,
        "disturbed": disturbed,
    })
    .to_string()
}

impl Request {
    fn parse(case: &str, options: &[String]) -> Result<Request> {
        let case = named(case).map_err(usage)?;
        let cpus = allowed_cpus().unwrap_or_default();
        let mut request = Request { case, bursts: case.bursts, reps: REPS, cpus };
        let mut words = options.iter();
        while let Some(flag) = words.next() {
            let mut value = || {
                let word = words.next();
                word.ok_or_else(|| usage(format!("{flag} needs a value")))
            };
            match flag.as_str() {
                "--bursts" => request.bursts = number(flag, value()?)?,
                "--reps" => request.reps = number(flag, value()?)?,
                "--cpus" => {
                    let cpus = value()?;
                    request.cpus =
                        cpus.split(',').map(|cpu| number(flag, cpu)).collect::<Result<_>>()?;
                }
                _ => return Err(usage(format!("{flag} is not known"))),
            }
        }
        // The peer's program can store at most 99 repetitions; without a repetition there is no
        // median.
        if !(1..=99).contains(&request.reps) || request.bursts == 0 {
            return Err(usage("--reps is 1 to 99, and --bursts at least 1".into()));
        }
        if case.two_cores && request.cpus.len() < 2 {
            let why = format!("{} takes two CPUs", case.name);
            return Err(Error::new(Code::Unsupported, "cannot sample", why)
                .fix("grep Cpus_allowed_list /proc/self/status"));
        }
        Ok(request)
    }
}

/// Checks that a pool can use huge pages on this machine: the peer does, and without them the
/// comparison is unfair.
fn has_huge_pages() -> Result<()> {
    if pool().pages() == Pages::Huge2M {
        return Ok(());
    }
    Err(Error::new(Code::Unsupported, "cannot sample", "there are no huge pages left")
        .fix("sysctl -w vm.nr_hugepages=300"))
}

fn number<T: std::str::FromStr>(flag: &str, word: &str) -> Result<T> {
    word.parse().map_err(|_| usage(format!("{flag} {word}: not a number")))
}

fn usage(why: String) -> Error {
    Error::new(Code::Experiment, "cannot sample", why)
        .fix("linerate lab sample linerate|dpdk CASE|probe [--cpus A,B] [--bursts N] [--reps N]")
}

const SOURCE: &str = include_str!("../peers/mbench.c");

/// The script that compiles the peer's program for this machine once, and runs it.
const SCRIPT: &str = include_str!("../peers/mbench.sh");

const INSTALL: &str = "apt install libdpdk-dev gcc pkg-config";
const HUGE_PAGES: &str = "sysctl -w vm.nr_hugepages=300";

/// Checks that the peer can run here, without compiling it.
fn probe_peer() -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(unsupported("its clock is another one on this architecture").fix(""));
    }
    ran(Command::new("pkg-config").args(["--exists", "libdpdk"]))?;
    ran(Command::new("cc").arg("--version"))?;
    let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    match free.ok().and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(0) | None => Err(unsupported("there are no huge pages left").fix(HUGE_PAGES)),
        Some(_) => Ok(()),
    }
}

/// Runs the peer's case that corresponds to ours.
fn sample_peer(request: &Request) -> Result<Sample> {
    probe_peer()?;
    let cpus: Vec<String> = request.cpus.iter().take(2).map(usize::to_string).collect();
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "mbench", &cpus.join(","), request.case.peer]);
    command
        .args([request.bursts.to_string(), request.reps.to_string()])
        .env("MBENCH_SOURCE", SOURCE);
    let output = ran(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout);
    // DPDK prints its own messages before the result, so take the last line that starts with
    // `case=`.
    let line = text.lines().rfind(|line| line.starts_with("case=")).unwrap_or_default();
    Sample::parse(line).map_err(unsupported)
}

const WHAT: &str = "cannot run DPDK's side";

fn unsupported(why: impl Into<String>) -> Error {
    Error::new(Code::Unsupported, WHAT, why).fix(INSTALL)
}

/// Runs a command to its end; returns an error with the last line of its stderr if it fails.
fn ran(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| unsupported(format!("{name}: {e}")))?;
    if output.status.success() {
        return Ok(output);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(unsupported(format!("{name}: {}: {}", output.status, last.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_skb::bench::CASES;
    use serde_json::Value;

    use crate::experiment::Experiment;
    use crate::knobs::Reading;
    use crate::scenario;

    /// Beginnings of the reasons where a machine lacks something for a side.
    const LACKS: [&str; 4] =
        ["pkg-config: ", "cc: ", "its clock is another one", "there are no huge pages left"];

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn bad_sample_arguments_are_refused_with_the_valid_ones() {
        let why = |text| sample(&words(text)).unwrap_err().why;
        assert_eq!(why("linerate"), "it takes a side and a case");
        assert_eq!(why("vpp bulk"), "vpp is no side");
        assert!(why("linerate bluk").contains("bulk-shared"));
        assert_eq!(why("dpdk bulk --reps"), "--reps needs a value");
        assert_eq!(why("linerate bulk --reps 0"), "--reps is 1 to 99, and --bursts at least 1");
        assert_eq!(why("linerate cross --cpus 0"), "cross takes two CPUs");
        assert_eq!(why("linerate bulk --fast"), "--fast is not known");
    }

    #[test]
    fn a_figure_of_too_few_clean_repetitions_is_not_known() {
        let request = Request::parse("bulk", &[]).unwrap();
        let of = |clean| {
            let line = said(&request, &Sample { ticks: 2.5, bursts: 10, reps: 15, clean });
            serde_json::from_str::<Value>(&line).unwrap()
        };
        assert_eq!((&of(3)["ticks_per_packet"], &of(3)["packets"]), (&2.5.into(), &4800.into()));
        assert_eq!((&of(2)["ticks_per_packet"], &of(3)["disturbed"]), (&Value::Null, &Value::Null));
        assert_eq!(of(2)["disturbed"], "2 of 15 repetitions had their CPUs to themselves");
    }

    #[test]
    fn the_experiment_asks_each_side_for_the_case_that_its_cell_names() {
        let text = include_str!("../experiments/peers-buffers.toml");
        let experiment = Experiment::parse(text, "peers-buffers.toml").unwrap();
        assert_eq!(experiment.cells.len(), CASES.len());
        for cell in &experiment.cells {
            for (name, side) in [("dpdk", &cell.a), ("linerate", &cell.b)] {
                let knobs = scenario::named("command").unwrap().knobs();
                let told = Reading::new(side, "command", knobs).unwrap();
                let args = told.texts("args").unwrap().unwrap();
                let cpus = args[5].replace("{cpu0}", "0").replace("{cpu1}", "1");
                assert_eq!(args[..4], ["lab", "sample", name, &cell.at[0].1]);
                Request::parse(&args[3], &[args[4].clone(), cpus]).unwrap();
            }
        }
    }

    #[test]
    fn every_case_of_ours_brings_all_its_packets_home() {
        let cpus = allowed_cpus().unwrap();
        for case in &CASES {
            if case.two_cores && cpus.len() < 2 {
                println!("skipped: {}: it needs two CPUs", case.name);
                continue;
            }
            let sample = run(case, &cpus, 100, 1).sample();
            assert_eq!((sample.bursts, sample.reps), (100, 1), "{}", case.name);
            assert!(sample.ticks > 0.0, "{}: {sample:?}", case.name);
        }
    }

    #[test]
    fn one_case_of_each_side_is_sampled_where_it_can_be() {
        for side in ["linerate", "dpdk"] {
            match sample(&words(&format!("{side} bulk --bursts 500 --reps 1"))) {
                Ok(line) => assert!(line.contains("\"packets\":16000"), "{line}"),
                Err(e) => {
                    let lacks = LACKS.iter().any(|why| e.why.starts_with(why));
                    assert!(e.code == Code::Unsupported && lacks, "{e}");
                    assert!(!e.fix.is_empty(), "{e}");
                    println!("skipped: {e}");
                }
            }
        }
    }
}
