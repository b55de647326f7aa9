//! `linerate ndr`.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use clap::Parser;
use linerate::units;
use linerate_lab::ndr::{Found, Goal, Limits, Outcome, Path, Setup, Step, search};
use linerate_lab::scenario::Place;
use serde::Serialize;

use crate::errors::{Failure, RUNTIME, USAGE};
use crate::screen::Screen;
use crate::signals::{Signals, status};

/// Trials after which a search gives up: an hour and a half of trials of a second.
const TRIALS_MAX: usize = 5000;
/// A trial that something took the CPUs from is made again, so often at most.
const AGAIN_MAX: usize = 5;
/// More disturbed trials than this for each that was not, and it gives up.
const DISTURBED_MAX: usize = 2;
/// A search whose trials were mostly disturbed says nothing.
const INCONCLUSIVE: u8 = 4;

/// Search for the highest rate that a path carries
///
/// Numbered packets go in at A, what comes out at B is verified. NDR is the highest rate at which
/// none is lost, PDR the highest at which at most 0.5 % are (--pdr). Packets that the generator
/// could not send in time count as lost. Between two rings the path is a worker of ours; between
/// two devices it is whatever joins them.
///
/// The generator is tried alone first: no path can be found faster than that.
#[derive(Debug, Parser)]
#[command(after_long_help = EXAMPLES)]
pub struct Ndr {
    /// Where packets go in: driver:arg[,key=value]
    pub a: String,
    /// Where they come out
    pub b: String,
    /// Bytes of a frame without FCS
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(60..=1514))]
    pub size: u32,
    /// Flows, numbered apart
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub flows: u32,
    /// Lowest rate of interest
    #[arg(long, default_value = "1kpps", value_parser = units::rate)]
    pub min: units::Rate,
    /// Highest rate to try; what the generator alone can do unless given
    #[arg(long, value_parser = units::rate)]
    pub max: Option<units::Rate>,
    /// Loss that the second goal accepts, as in 0.5%; none = no second goal
    #[arg(long, default_value = "0.5%", value_parser = loss)]
    pub pdr: Loss,
    /// The throughput of RFC 2544: no loss in one trial of 60 s
    #[arg(long, conflicts_with = "pdr")]
    pub rfc2544: bool,
    /// CPUs of the path and of generator and sink, as in 0,1
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub cpu: Vec<usize>,
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// A share of packets, if a goal is to have one.
#[derive(Debug, Clone, Copy)]
pub struct Loss(Option<f64>);

const EXAMPLES: &str = "\
Examples:
  linerate ndr ring:a ring:b                    what a worker carries, without privilege
  linerate ndr packet:veth0 packet:veth1        what joins two interfaces (needs root)
  linerate ndr ring:a ring:b --rfc2544          minutes: each rate is tried for 60 s
  linerate ndr ring:a ring:b --pdr none --json

A rate is said to be carried when more than half of 21 s of trials of 1 s would show it, whatever
the rest of them did; the interval ends at 0.5 %. A result that is no such interval is marked
irregular, with the reason.

Exit status: 0 found, 1 failed while running, 2 wrong request, 4 most trials were disturbed by
others on this machine, 5 not possible here, 130 or 143 ended by SIGINT or SIGTERM.";

/// What is printed as JSON.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    a: &'a str,
    b: &'a str,
    path: &'a str,
    size_bytes: u32,
    generator_alone_pps: f64,
    max_pps: u64,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

impl Ndr {
    /// Runs the command; returns the exit status.
    ///
    /// # Errors
    /// Whatever keeps it from giving a result.
    pub fn run(&self, screen: &Screen) -> Result<u8, Failure> {
        let cpus = Place::of(&self.cpu, 0)?.cpus;
        let setup = Setup {
            a: self.a.clone(),
            b: self.b.clone(),
            size: self.size,
            flows: self.flows,
            cpus,
        };
        let path = setup.check()?;
        let signals = Signals::watch().map_err(|e| {
            Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
        })?;
        let alone = setup.generator_alone_pps()?;
        let limits = self.limits(alone)?;
        screen.preface(&self.preface(&setup, path, alone, limits))?;
        let mut line = Line { shown: false, on: !self.quiet && std::io::stderr().is_terminal() };
        let mut signal = None;
        let mut follow = |step: &Step<'_>| {
            line.show(step);
            signal = signals.wait(Duration::ZERO);
            signal.is_none()
        };
        let outcome = search(&self.goals(), limits, &mut Path::new(&setup, &mut follow))?;
        line.clear();
        let document = Document {
            schema: "linerate-ndr/1",
            a: &self.a,
            b: &self.b,
            path,
            size_bytes: self.size,
            generator_alone_pps: alone,
            max_pps: limits.max_pps,
            outcome: &outcome,
        };
        screen.result(
            || text(&outcome),
            || serde_json::to_string_pretty(&document).unwrap_or_default(),
        )?;
        Ok(match signal {
            Some(signal) => status(signal),
            None if outcome.disturbed > outcome.trials.len() => INCONCLUSIVE,
            None => 0,
        })
    }

    fn goals(&self) -> Vec<Goal> {
        if self.rfc2544 {
            return vec![Goal::RFC_2544];
        }
        let pdr = self.pdr.0.map(|loss_ratio| Goal { loss_ratio, ..Goal::PDR });
        std::iter::once(Goal::NDR).chain(pdr).collect()
    }

    fn limits(&self, alone_pps: f64) -> Result<Limits, Failure> {
        let pps = |rate: units::Rate| rate.pps(f64::from(self.size));
        let max = self.max.map_or(alone_pps, pps).min(alone_pps);
        let (min_pps, max_pps) = (pps(self.min).max(1.0) as u64, max as u64);
        if min_pps >= max_pps {
            let why = format!("from {min_pps} to {max_pps} pps there is nothing to search");
            let fix = "a lower --min, or a higher --max; the generator alone is the limit of both";
            return Err(Failure::new(USAGE, "E-USAGE", "cannot search", why, fix));
        }
        Ok(Limits {
            min_pps,
            max_pps,
            trials_max: TRIALS_MAX,
            again_max: AGAIN_MAX,
            disturbed_per_trial_max: DISTURBED_MAX,
        })
    }

    fn preface(&self, setup: &Setup, path: &str, alone: f64, limits: Limits) -> String {
        let cpus = match setup.cpus.as_slice() {
            [] => "CPUs free".to_owned(),
            [one] => format!("all on CPU {one}"),
            [near, .., far] => format!("path on CPU {near}, generator and sink on CPU {far}"),
        };
        let mut text = format!("{} -> {}  {} B  {path}  {cpus}\n", self.a, self.b, self.size);
        let _ = writeln!(
            text,
            "generator alone {}  search from {} to {}",
            mpps(alone),
            mpps(limits.min_pps as f64),
            mpps(limits.max_pps as f64)
        );
        text
    }
}

/// The line that progress rewrites.
struct Line {
    shown: bool,
    on: bool,
}

impl Line {
    fn show(&mut self, step: &Step<'_>) {
        if !self.on {
            return;
        }
        let bound = |bound: Option<u64>| bound.map_or("-".to_owned(), |pps| mpps(pps as f64));
        let trial = step.trial;
        let lost = 100.0 * trial.loss_ratio();
        let left = Duration::from_secs_f64(step.left_s.clamp(0.0, 1e6));
        let _ = write!(
            std::io::stderr(),
            "\r\x1b[K{} {}/{}  {} lost {lost:.3} %  between {} and {}  trial {}  about {} s left",
            step.goal.name,
            step.phase.0,
            step.phase.1,
            mpps(trial.load_pps as f64),
            bound(step.bounds.0),
            bound(step.bounds.1),
            step.trials,
            left.as_secs()
        );
        self.shown = true;
    }

    fn clear(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    for found in &outcome.found {
        text += &line(found);
    }
    let again = outcome.disturbed;
    let _ =
        writeln!(text, "{} trials, and {again} disturbed ones made again", outcome.trials.len());
    if !outcome.complete {
        text += if again > outcome.trials.len() {
            "ended early: others on this machine disturb most trials; stop them, or name other CPUs \
             by --cpu\n"
        } else {
            "ended early: the bounds are what the trials so far say\n"
        };
    }
    text
}

fn line(found: &Found) -> String {
    let goal = &found.goal;
    let bound = |bound: Option<u64>| bound.map_or("-".to_owned(), |pps| mpps(pps as f64));
    let irregular = found.irregular.map_or("no".to_owned(), |why| format!("yes, {why}"));
    let mut text = format!(
        "{} {}%  {} lower, {} upper (irregular: {irregular})",
        goal.name,
        100.0 * goal.loss_ratio,
        bound(found.lower_pps),
        bound(found.upper_pps)
    );
    if let Some(pps) = found.throughput_pps.filter(|_| goal.loss_ratio > 0.0) {
        let _ = write!(text, "  {} come out at the lower", mpps(pps));
    }
    text + "\n"
}

fn mpps(pps: f64) -> String {
    if pps < 1e5 { format!("{:.2} kpps", pps / 1e3) } else { format!("{:.4} Mpps", pps / 1e6) }
}

fn loss(text: &str) -> Result<Loss, String> {
    if text == "none" {
        return Ok(Loss(None));
    }
    let wrong = || format!("{text} is no share of packets: as in 0.5%, or none");
    let number = text.strip_suffix('%').ok_or_else(wrong)?;
    let pct: f64 = number.trim().parse().map_err(|_| wrong())?;
    if pct > 0.0 && pct < 100.0 { Ok(Loss(Some(pct / 100.0))) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_a_share_in_per_cent() {
        assert_eq!(loss("0.5%").unwrap().0, Some(0.005));
        assert_eq!(loss("none").unwrap().0, None);
        for bad in ["0.5", "0%", "-1%", "100%", "x%", "nan%", ""] {
            assert!(loss(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_are_told_in_four_digits() {
        assert_eq!(mpps(904_000.0), "0.9040 Mpps");
        assert_eq!(mpps(1000.0), "1.00 kpps");
    }
}
