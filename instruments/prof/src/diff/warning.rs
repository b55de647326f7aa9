//! Reasons why two profiles may not be comparable.

use std::fmt;

use serde::Serialize;

use super::{By, Scale};
use crate::profile::{Event, Origin, Profile};

/// Difference of two durations, in per cent, above which they count as different.
const DURATION_PCT: f64 = 2.0;

/// A reason why a comparison of two profiles may be invalid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Subject of the warning.
    pub about: About,
    /// The subject's value in the baseline.
    pub without: String,
    /// The subject's value with the change.
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
        /// The means by which the profiles were made.
        Origin = "made by different means",
        /// The versions of the kernels.
        Kernel = "different kernels",
        /// The models of CPU.
        Cpu = "different CPUs",
        /// Number of CPUs, their clock, or the hypervisor.
        Machine = "different machines",
        /// The durations, when counts are not divided by them.
        Duration = "different durations",
        /// The numbers of packets, when counts are not divided by them.
        Load = "different loads",
        /// Samples that the kernel could not deliver.
        Lost = "lost samples",
        /// The counts below which functions are left out.
        Cutoff = "different cut-offs",
        /// The figures are shares.
        Shares = "shares of each side's own total",
    }
}

impl About {
    /// Returns the advice for readers, with a leading blank.
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

/// Returns the warnings about the two profiles, the gravest first.
pub(crate) fn warnings(without: &Profile, with: &Profile, scale: Scale) -> Vec<Warning> {
    // A property that one of the profiles does not state is not reported as a difference.
    let both = |about, of: &dyn Fn(&Profile) -> Option<String>| {
        let (a, b) = of(without).zip(of(with))?;
        (a != b).then(|| warn(about, a, b))
    };
    // Measured clock rates and durations vary a little between readings, so small differences are
    // tolerated.
    let apart = |about, of: &dyn Fn(&Profile) -> Option<f64>, say: &dyn Fn(f64) -> String| {
        let (a, b) = of(without).zip(of(with))?;
        differ(a, b).then(|| warn(about, say(a), say(b)))
    };
    let packets = |of: &Profile| of.conditions.packets.map(|n| n as f64);
    // With equal numbers of packets, a shorter duration is the saving itself and needs no warning.
    let is_same_work = packets(without).is_some() && packets(without) == packets(with);
    let as_they_are = scale.by == By::AsTheyAre;
    let total = |profile: &Profile| format!("100 % = {}", profile.total_count());
    let found = [
        of_names(&without.event, &with.event),
        both(About::Unit, &|of| Some(of.event.unit.to_string())),
        both(About::Period, &|of| of.event.period.map(|n| n.to_string())),
        of_origins(without.origin, with.origin),
        both(About::Kernel, &|of| of.conditions.kernel.clone()),
        both(About::Cpu, &|of| of.conditions.cpu.clone()),
        both(About::Machine, &|of| of.conditions.cpus.map(|n| format!("{n} CPUs"))),
        apart(About::Machine, &|of| of.conditions.mhz, &|mhz| format!("{mhz:.0} MHz")),
        both(About::Machine, &|of| {
            let hypervisor = of.conditions.hypervisor.clone();
            let is_known = of.conditions.kernel.is_some();
            is_known.then(|| hypervisor.unwrap_or_else(|| "no hypervisor".to_owned()))
        }),
        (scale.by == By::Share).then(|| warn(About::Shares, total(without), total(with))),
        apart(About::Duration, &|of| of.conditions.wall_ns.map(|ns| ns as f64), &|ns| {
            format!("{:.3} s", ns / 1e9)
        })
        .filter(|_| as_they_are && !is_same_work),
        apart(About::Load, &packets, &|n| format!("{n} packets")).filter(|_| as_they_are),
        (without.lost > 0 || with.lost > 0).then(|| warn(About::Lost, without.lost, with.lost)),
        both(About::Cutoff, &|of| {
            let cutoff = of.cutoff.filter(|n| *n > 1);
            Some(cutoff.map_or_else(|| "none".to_owned(), |n| n.to_string()))
        }),
    ];
    found.into_iter().flatten().collect()
}

fn warn(about: About, without: impl ToString, with: impl ToString) -> Warning {
    Warning { about, without: without.to_string(), with: with.to_string() }
}

fn of_names(without: &Event, with: &Event) -> Option<Warning> {
    if !without.name.eq_ignore_ascii_case(&with.name) {
        let is_one = spelled(&without.name) == spelled(&with.name);
        let about = if is_one { About::Spelling } else { About::Event };
        return Some(warn(about, &without.name, &with.name));
    }
    let (a, b) = without.raw.as_ref().zip(with.raw.as_ref())?;
    (a != b).then(|| warn(About::Event, a, b))
}

/// Returns the name of a P6 event in the spelling of Intel's manual, because post 003 writes both
/// `L2_LINES_OUT` and `L2_CACHE_LINES_OUT`.
fn spelled(event: &str) -> String {
    event.to_ascii_uppercase().replace("_CACHE_LINES_", "_LINES_")
}

fn of_origins(without: Origin, with: Origin) -> Option<Warning> {
    let is_mixed = (without == Origin::Model) != (with == Origin::Model);
    let about = if is_mixed { About::ModelAgainstMeasurement } else { About::Origin };
    (without != with).then(|| warn(about, without, with))
}

/// Returns true if two figures differ by more than repeated readings do. NaN differs from every
/// number, itself included.
fn differ(x: f64, y: f64) -> bool {
    let within = (x - y).abs() <= x.abs().max(y.abs()) * DURATION_PCT / 100.0;
    !within
}
