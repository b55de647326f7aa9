//! Why two profiles may not be comparable.

use std::fmt;

use serde::Serialize;

use super::{By, Scale};
use crate::profile::{Event, Origin, Profile};

/// Two durations that differ by more than this many per cent are not the same time.
const DURATION_PCT: f64 = 2.0;

/// A reason for doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Subject of the warning.
    pub about: About,
    /// Its value in the baseline.
    pub without: String,
    /// Its value with the change.
    pub with: String,
}

named! {
    /// A property that differs or is wrong.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum About {
        /// The event counted.
        Event = "different events",
        /// The event's name.
        Spelling = "two names for one event",
        /// The unit of the counts.
        Unit = "different units",
        /// Events for each sample.
        Period = "different periods",
        /// A model on one side and a measurement on the other.
        ModelAgainstMeasurement = "a model against a measurement",
        /// By what it was seen.
        Origin = "made by different means",
        /// Kernels.
        Kernel = "different kernels",
        /// Models of CPU.
        Cpu = "different CPUs",
        /// Number of CPUs, their clock, or the hypervisor.
        Machine = "different machines",
        /// The durations, while nothing is divided by them.
        Duration = "different durations",
        /// Packets that went through, and nothing is divided by them.
        Load = "different loads",
        /// Samples that the kernel could not deliver.
        Lost = "lost samples",
        /// Below which count functions are left out.
        Cutoff = "different cut-offs",
        /// The figures are shares.
        Shares = "shares of each side's own total",
    }
}

impl About {
    /// Returns what to make of it, with a blank before it.
    const fn advice(self) -> &'static str {
        match self {
            About::Event => " Unless these are two names for one, no difference can be taken.",
            About::Spelling | About::Origin => "",
            About::Unit => " A difference of them means nothing.",
            About::Period => " A sample is not the same number of events.",
            About::ModelAgainstMeasurement => " Their difference is no measurement.",
            About::Kernel => " A change of the kernel is in the figures.",
            About::Cpu => " A change of the CPU is in the figures.",
            About::Machine => " A change of the machine is in the figures.",
            About::Duration => " Compare per second instead.",
            About::Load => " Compare per thousand packets instead.",
            About::Lost => " They are in no row.",
            About::Cutoff => " Absent is fewer than this, and not 0.",
            About::Shares => " That the whole changed cannot be seen in them.",
        }
    }
}

impl Warning {
    /// Returns true if the difference is meaningless.
    #[must_use]
    pub fn is_grave(&self) -> bool {
        use About::{Event, ModelAgainstMeasurement, Period, Unit};
        matches!(self.about, Event | Unit | Period | ModelAgainstMeasurement)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Warning { about, without, with } = self;
        write!(f, "{about}: without {without}, with {with}.{}", about.advice())
    }
}

/// All that is to be said of the two, the gravest first.
pub(crate) fn warnings(without: &Profile, with: &Profile, scale: Scale) -> Vec<Warning> {
    let mut found = Vec::new();
    of_events(&without.event, &with.event, &mut found);
    of_origins(without.origin, with.origin, &mut found);
    of_machines(without, with, &mut found);
    of_load(without, with, scale.by, &mut found);
    if without.lost > 0 || with.lost > 0 {
        found.push(warn(About::Lost, without.lost, with.lost));
    }
    let cutoff = |profile: &Profile| profile.cutoff.filter(|n| *n > 1);
    if cutoff(without) != cutoff(with) {
        let say = |n: Option<u64>| n.map_or_else(|| "none".to_owned(), |n| n.to_string());
        found.push(warn(About::Cutoff, say(cutoff(without)), say(cutoff(with))));
    }
    found
}

fn warn(about: About, without: impl ToString, with: impl ToString) -> Warning {
    Warning { about, without: without.to_string(), with: with.to_string() }
}

fn of_events(without: &Event, with: &Event, found: &mut Vec<Warning>) {
    if !without.name.eq_ignore_ascii_case(&with.name) {
        let is_one = spelled(&without.name) == spelled(&with.name);
        let about = if is_one { About::Spelling } else { About::Event };
        found.push(warn(about, &without.name, &with.name));
    } else if without.raw != with.raw && without.raw.is_some() && with.raw.is_some() {
        let raw = |event: &Event| event.raw.clone().unwrap_or_default();
        found.push(warn(About::Event, raw(without), raw(with)));
    }
    if without.unit != with.unit {
        found.push(warn(About::Unit, without.unit.as_str(), with.unit.as_str()));
    }
    if let (Some(a), Some(b)) = (without.period, with.period)
        && a != b
    {
        found.push(warn(About::Period, a, b));
    }
}

/// A P6's event as its manual spells it: post 003 says `L2_LINES_OUT`, and `L2_CACHE_LINES_OUT` of the
/// same.
fn spelled(event: &str) -> String {
    event.to_ascii_uppercase().replace("_CACHE_LINES_", "_LINES_")
}

fn of_origins(without: Origin, with: Origin, found: &mut Vec<Warning>) {
    if without == with {
        return;
    }
    let is_mixed = (without == Origin::Model) != (with == Origin::Model);
    let about = if is_mixed { About::ModelAgainstMeasurement } else { About::Origin };
    found.push(warn(about, without.as_str(), with.as_str()));
}

fn of_machines(without: &Profile, with: &Profile, found: &mut Vec<Warning>) {
    let (a, b) = (&without.conditions, &with.conditions);
    let mut both = |about, a: Option<String>, b: Option<String>| {
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            found.push(warn(about, a, b));
        }
    };
    both(About::Kernel, a.kernel.clone(), b.kernel.clone());
    both(About::Cpu, a.cpu.clone(), b.cpu.clone());
    let cpus = |n: Option<u32>| n.map(|n| format!("{n} CPUs"));
    both(About::Machine, cpus(a.cpus), cpus(b.cpus));
    // A clock is read off a running machine, and moves by a little.
    if let (Some(x), Some(y)) = (a.mhz, b.mhz)
        && differ(x, y)
    {
        found.push(warn(About::Machine, format!("{x:.0} MHz"), format!("{y:.0} MHz")));
    }
    let is_known = a.kernel.is_some() && b.kernel.is_some();
    if is_known && a.hypervisor != b.hypervisor {
        let say = |h: &Option<String>| h.clone().unwrap_or_else(|| "no hypervisor".to_owned());
        found.push(warn(About::Machine, say(&a.hypervisor), say(&b.hypervisor)));
    }
}

fn of_load(without: &Profile, with: &Profile, by: By, found: &mut Vec<Warning>) {
    let (a, b) = (&without.conditions, &with.conditions);
    if by == By::Share {
        let total = |profile: &Profile| format!("100 % = {}", profile.total_count());
        found.push(warn(About::Shares, total(without), total(with)));
    }
    if by != By::AsTheyAre {
        return;
    }
    // The same packets in less time is what one hoped for, and no reason to divide by it.
    let is_same_work = a.packets.is_some() && a.packets == b.packets;
    if let (Some(x), Some(y)) = (a.wall_ns, b.wall_ns)
        && differ(x as f64, y as f64)
        && !is_same_work
    {
        let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
        found.push(warn(About::Duration, seconds(x), seconds(y)));
    }
    if let (Some(x), Some(y)) = (a.packets, b.packets)
        && differ(x as f64, y as f64)
    {
        found.push(warn(About::Load, format!("{x} packets"), format!("{y} packets")));
    }
}

/// Returns true if two figures differ by more than repeated readings do. NaN differs from every number.
fn differ(x: f64, y: f64) -> bool {
    let within = (x - y).abs() <= x.abs().max(y.abs()) * DURATION_PCT / 100.0;
    !within
}
