//! `linerate ndr`: searches for the highest rate without loss, and prints it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use linerate::{Registry, units};
use linerate_cli::{flood, undo};
use linerate_lab::ndr::{
    Disturbed, Goal, GoalResult, Limits, Outcome, Path, Setup, Step, Trial, search,
};
use linerate_lab::scenario::Place;
use serde::Serialize;

use crate::errors::{Failure, INCONCLUSIVE, RUNTIME, USAGE};
use crate::progress::Line;
use crate::screen::Screen;
use crate::signals::{Signals, status};

/// Most trials of a search: an hour and a half of trials of a second.
const TRIALS_MAX: usize = 5000;
/// Treatment of disturbed trials: a trial is repeated at most five times, and the search gives up
/// when two trials are repeated for each that counts.
const AGAIN: Disturbed = Disturbed::Again { again_max: 5, per_trial_max: 2 };
/// Share of time asleep, in per cent, above which a path's worker did not limit the rate: a worker
/// at its limit sleeps only before the first packet and after the last.
const ASLEEP_PCT: f64 = 10.0;

/// The line about a path that carried nothing at any rate.
const NOTHING: &str = "not a single packet came out of B: see if the device under test joins A and B, and if both are up\n";

/// Find the highest rate that a path forwards without loss
///
/// The generator sends numbered packets into A, and a sink verifies the packets that leave B. NDR
/// is the highest rate without loss, PDR the highest rate with at most 0.5 % loss (--pdr). Packets
/// that the generator could not send in time count as lost. Between two rings the path is a worker
/// of linerate; between two devices it is the device under test that connects them.
///
/// The search measures the generator alone first, because no path can be measured above its rate.
#[derive(Debug, Parser)]
#[command(after_long_help = EXAMPLES)]
pub struct Ndr {
    /// The port that packets enter: driver:arg[,key=value]
    pub a: String,
    /// The port that packets leave
    pub b: String,
    /// Bytes of a frame without FCS
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(60..=1514))]
    pub size: u32,
    /// Number of flows; each has its own sequence numbers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub flows: u32,
    /// Lowest rate to try
    #[arg(long, default_value = "1kpps", value_parser = units::rate)]
    pub min: units::Rate,
    /// Highest rate to try; by default the rate of the generator alone
    ///
    /// Required for an interface that the host itself uses.
    #[arg(long, value_parser = units::rate)]
    pub max: Option<units::Rate>,
    /// Loss that the second goal accepts, as in 0.5%; none = no second goal
    #[arg(long, default_value = "0.5%", value_parser = loss)]
    pub pdr: Loss,
    /// The throughput of RFC 2544: no loss in one trial of 60 s
    #[arg(long, conflicts_with = "pdr")]
    pub rfc2544: bool,
    /// Count trials that other processes disturbed, instead of repeating them
    ///
    /// The result then holds for the busy machine, and is a lower bound for a quiet one.
    #[arg(long)]
    pub as_it_is: bool,
    /// CPUs of the path and of generator and sink, as in 0,1
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = linerate_cli::cpu)]
    pub cpu: Vec<usize>,
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
    /// Print no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// The share of lost packets that the second goal accepts; `None` for no second goal.
#[derive(Debug, Clone, Copy)]
pub struct Loss(Option<f64>);

const EXAMPLES: &str = "\
Examples:
  linerate ndr ring:a ring:b                    the rate of one worker, without privilege
  linerate ndr packet:veth0 packet:veth1        the rate between two interfaces (needs root)
  linerate ndr ring:a ring:b --rfc2544          minutes: each rate is tried for 60 s
  linerate ndr ring:a ring:b --as-it-is         on a virtual machine whose host is never quiet
  linerate ndr ring:a ring:b --pdr none --json

A path carries a rate if more than half of 21 trials of 1 s would meet the loss goal. The search
ends when lower and upper bound differ by 0.5 %. A result that is not such an interval is marked
irregular, with the reason.

Exit status: 0 found, 1 failed while running, 2 wrong request, 4 ended early, because most trials
were disturbed by others on this machine or 5000 trials were made, 5 not possible here, 129, 130 or
143 ended by SIGHUP, SIGINT or SIGTERM.";

/// The JSON output.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    a: &'a str,
    b: &'a str,
    path: &'a str,
    size_bytes: u32,
    generator_alone_pps: f64,
    max_pps: u64,
    /// True if disturbed trials were counted instead of repeated.
    as_it_is: bool,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

impl Ndr {
    /// Runs the command; returns the exit status.
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
        self.check_bounded()?;
        let ports = [self.a.as_str(), self.b.as_str()];
        let _until_the_end = undo::record(ports, &Registry::default(), screen);
        // Before ports are opened: a signal must not end this process while a device is changed.
        let stop = Arc::default();
        let signals = Signals::telling(&stop).map_err(|e| {
            Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
        })?;
        setup.open()?;
        let alone = setup.generator_alone_pps()?;
        let limits = self.limits(alone)?;
        screen.preface(&self.preface(&setup, path, alone, limits))?;
        let mut line = if self.quiet { None } else { Line::new() };
        let mut signal = None;
        let mut follow = |step: &Step<'_>| {
            line.iter_mut().for_each(|line| line.draw(|| drawn(step)));
            signal = signals.wait(Duration::ZERO);
            signal.is_none()
        };
        let outcome = search(&self.goals(), limits, &mut Path::new(&setup, &stop, &mut follow))?;
        let signal = signal.or_else(|| signals.wait(Duration::ZERO));
        drop(line);
        let document = Document {
            schema: "linerate-ndr/1",
            a: &self.a,
            b: &self.b,
            path,
            size_bytes: self.size,
            generator_alone_pps: alone,
            max_pps: limits.max_pps,
            as_it_is: self.as_it_is,
            outcome: &outcome,
        };
        screen.result(
            || text(&outcome, limits),
            || serde_json::to_string_pretty(&document).unwrap_or_default(),
        )?;
        Ok(exit(&outcome, signal))
    }

    /// Refuses to search without a highest rate on an interface that the host itself uses.
    fn check_bounded(&self) -> Result<(), Failure> {
        if self.max.is_some() {
            return Ok(());
        }
        let (drivers, fix) = (Registry::default(), "add a highest rate, as in --max 10kpps");
        // What the far end of B sends may leave by A, and what A gets by B.
        for port in [&self.a, &self.b] {
            flood::refuse(&drivers.parse(port)?, &drivers, fix)?;
        }
        Ok(())
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
            let why = format!("there is no rate between {min_pps} and {max_pps} pps");
            let fix = "use a lower --min or a higher --max; neither can exceed the rate of the generator alone";
            return Err(Failure::new(USAGE, "E-USAGE", "cannot search", why, fix));
        }
        Ok(Limits {
            min_pps,
            max_pps,
            trials_max: TRIALS_MAX,
            disturbed: if self.as_it_is { Disturbed::Counts } else { AGAIN },
        })
    }

    fn preface(&self, setup: &Setup, path: &str, alone: f64, limits: Limits) -> String {
        let cpus = match setup.cpus.as_slice() {
            [] => "CPUs free".to_owned(),
            [one] => format!("all on CPU {one}"),
            [.., far] if !setup.is_ours() => format!("generator and sink on CPU {far}"),
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

/// Formats the progress of a search.
fn drawn(step: &Step<'_>) -> String {
    let bound = |bound: Option<u64>| bound.map_or("-".to_owned(), |pps| mpps(pps as f64));
    let trial = step.trial;
    format!(
        "{} {}/{}  {} lost {:.3} %  between {} and {}  trial {}  about {} s left",
        step.goal.name,
        step.phase.0,
        step.phase.1,
        mpps(trial.load_pps as f64),
        100.0 * trial.loss_ratio(),
        bound(step.bounds.0),
        bound(step.bounds.1),
        step.trials,
        step.left_s.clamp(0.0, 1e6) as u64
    )
}

fn text(outcome: &Outcome, limits: Limits) -> String {
    let mut text = String::new();
    for found in &outcome.found {
        text += &line(found);
    }
    text += &made(outcome, limits);
    if !outcome.trials.is_empty() && outcome.trials.iter().all(|trial| trial.forwarded == 0) {
        text += NOTHING;
    }
    // Only the first goal, the strictest one, gets an explanation of its limit.
    if let Some(why) = outcome.found.first().and_then(|found| limit(outcome, found, limits)) {
        text += &why;
    }
    if !outcome.complete {
        text += if given_up(outcome, limits) {
            "ended early: other processes disturb most trials; stop them, choose other CPUs (--cpu), or \
             count disturbed trials (--as-it-is)\n"
        } else {
            "ended early: the bounds are those of the trials so far\n"
        };
    }
    text
}

/// Returns the exit status of a search that ended with `outcome`, or by a signal.
fn exit(outcome: &Outcome, signal: Option<i32>) -> u8 {
    match signal {
        Some(signal) => status(signal),
        None if outcome.complete => 0,
        None => INCONCLUSIVE,
    }
}

/// Returns true if most trials were disturbed, so that the search has no valid result.
fn given_up(outcome: &Outcome, limits: Limits) -> bool {
    let most = outcome.disturbed > outcome.trials.len();
    !outcome.complete && limits.disturbed != Disturbed::Counts && most
}

/// Formats the number of trials and how disturbed trials were treated.
fn made(outcome: &Outcome, limits: Limits) -> String {
    let mut text = match outcome.found.first() {
        Some(found) => {
            let (trials, each) = (outcome.trials.len(), found.goal.trial_s);
            let became = match limits.disturbed {
                Disturbed::Again { .. } => "made again",
                Disturbed::Counts => "counted as they were",
            };
            format!("{trials} trials of {each} s, {} disturbed and {became}", outcome.disturbed)
        }
        None => String::new(),
    };
    if let Some(why) = &outcome.disturbed_last {
        let _ = write!(text, "; the last: {why}");
    }
    text + "\n"
}

/// Formats the losses at the lowest rate with loss: their number, the place of the loss, and the
/// idle time of the path's worker, which shows whether the worker is the limit.
fn limit(outcome: &Outcome, found: &GoalResult, limits: Limits) -> Option<String> {
    let Some(upper) = found.upper_pps else {
        return found
            .lower_pps
            .map(|_| format!("nothing above {} was offered\n", mpps(limits.max_pps as f64)));
    };
    let lossy =
        |trial: &&Trial| trial.load_pps == upper && trial.loss_ratio() > found.goal.loss_ratio;
    let lossy: Vec<&Trial> = outcome.trials.iter().filter(lossy).collect();
    let sum = |of: fn(&Trial) -> u64| lossy.iter().map(|trial| of(trial)).sum::<u64>();
    let (offered, unsent) = (sum(|trial| trial.offered), sum(|trial| trial.unsent));
    let lost = offered.checked_sub(sum(|trial| trial.forwarded))?;
    let share = |part: u64| 100.0 * part as f64 / offered.max(1) as f64;
    let mut text = format!(
        "at {} {:.4} % was lost in {} trials: {:.4} % never left the generator",
        mpps(upper as f64),
        share(lost),
        lossy.len(),
        share(unsent)
    );
    let asleep: Vec<f64> = lossy.iter().filter_map(|trial| trial.path_asleep_pct).collect();
    if !asleep.is_empty() {
        let mean = asleep.iter().sum::<f64>() / asleep.len() as f64;
        let _ = write!(text, "; the path's worker slept {mean:.0} % of the time");
        if mean > ASLEEP_PCT {
            text += ": generator and sink are the limit; the path carries at least this rate";
        }
    }
    Some(text + "\n")
}

fn line(found: &GoalResult) -> String {
    let goal = &found.goal;
    let bound = |bound: Option<u64>| bound.map_or("-".to_owned(), |pps| mpps(pps as f64));
    let irregular = found.irregular.map_or("no".to_owned(), |why| format!("yes, {why}"));
    let mut text = format!(
        "{} {}%  {} lower, {} upper (irregular: {irregular})",
        goal.name,
        // The ratio is a share in per cent divided by 100: remove the error of that division.
        (1e12 * goal.loss_ratio).round() / 1e10,
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
    let wrong = || format!("{text} is not a share of packets: write 0.5%, or none");
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

    fn outcome(path_asleep_pct: Option<f64>) -> Outcome {
        let trial = |load_pps, unsent| Trial {
            load_pps,
            asked_s: 1.0,
            offered: load_pps,
            unsent,
            forwarded: load_pps - unsent,
            faults: 0,
            late_p99_ns: None,
            path_asleep_pct,
            disturbed: None,
        };
        let found = GoalResult {
            goal: Goal::NDR,
            lower_pps: Some(995_000),
            upper_pps: Some(1_000_000),
            throughput_pps: Some(995_000.0),
            irregular: None,
            trials: 3,
        };
        Outcome {
            found: vec![found],
            trials: vec![trial(995_000, 0), trial(1_000_000, 2000), trial(1_000_000, 0)],
            disturbed: 1,
            disturbed_last: Some("a neighbour".into()),
            complete: true,
        }
    }

    const LIMITS: Limits =
        Limits { min_pps: 1000, max_pps: 2_000_000, trials_max: 9, disturbed: AGAIN };

    #[test]
    fn result_names_the_losses_and_the_limiting_part() {
        let busy = text(&outcome(Some(3.0)), LIMITS);
        assert!(
            busy.contains("3 trials of 1 s, 1 disturbed and made again; the last: a neighbour")
        );
        assert!(busy.contains("0.2000 % was lost in 1 trials: 0.2000 % never left"), "{busy}");
        assert!(busy.ends_with("the path's worker slept 3 % of the time\n"), "{busy}");
        let as_it_is = Limits { disturbed: Disturbed::Counts, ..LIMITS };
        let counted = text(&outcome(None), as_it_is);
        assert!(counted.contains("1 disturbed and counted as they were; the last"), "{counted}");
        let idle = text(&outcome(Some(40.0)), LIMITS);
        assert!(idle.contains("generator and sink are the limit"), "{idle}");
        assert!(!text(&outcome(None), LIMITS).contains("worker"));
        let mut carried = outcome(None);
        carried.found[0].upper_pps = None;
        assert!(text(&carried, LIMITS).contains("nothing above 2.0000 Mpps was offered"));
        assert!(!busy.contains(NOTHING));
        let mut apart = outcome(None);
        apart.trials.iter_mut().for_each(|trial| trial.forwarded = 0);
        assert!(text(&apart, LIMITS).contains(NOTHING));
    }

    #[test]
    fn a_search_that_ended_before_its_goal_is_inconclusive() {
        let mut outcome = outcome(None);
        assert_eq!(exit(&outcome, None), 0);
        outcome.complete = false;
        assert!(text(&outcome, LIMITS).ends_with("bounds are those of the trials so far\n"));
        assert_eq!((exit(&outcome, None), exit(&outcome, Some(2))), (INCONCLUSIVE, 130));
    }

    #[test]
    fn the_loss_of_a_goal_is_printed_as_it_was_asked_for() {
        let mut found = outcome(None).found.remove(0);
        for (asked, printed) in [("7%", " 7%  "), ("0.5%", " 0.5%  "), ("0.0001%", " 0.0001%  ")] {
            found.goal.loss_ratio = loss(asked).unwrap().0.unwrap();
            assert!(line(&found).contains(printed), "{}", line(&found));
        }
        found.goal.loss_ratio = 0.0;
        assert!(line(&found).contains(" 0%  "), "{}", line(&found));
    }

    #[test]
    fn rates_are_told_in_four_digits() {
        assert_eq!(mpps(904_000.0), "0.9040 Mpps");
        assert_eq!(mpps(1000.0), "1.00 kpps");
    }
}
