//! A profile: the count of an event in each function, with the conditions needed to judge it.
//!
//! One type for what we sampled ourselves, what `perf` did, and what was posted to a mailing list
//! twenty years ago: readers make it, printers and differences take it. What its maker did not say
//! is `None`, and is printed as unknown; it is never filled in.

use serde::{Deserialize, Serialize};

use crate::agree::Checked;
use crate::bounded::at_most;
use crate::conditions::Conditions;
use crate::proc::head::Head;
use crate::stage::{Stage, stage_in};

/// The schema version of a [`Profile`].
pub const SCHEMA: &str = "linerate-profile/1";

/// The counts of an event by function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The event counted.
    pub event: Event,
    /// The means by which the profile was made.
    pub origin: Origin,
    /// Functions, in the order of the source.
    pub rows: Vec<Row>,
    /// Total according to the profile's source. [`Profile::counted`] is the sum of the rows, which
    /// is smaller if the listing was cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Total>,
    /// Functions with a count below this are not listed. `None` if every function with a count is
    /// listed, so that an absent one has 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cutoff: Option<u64>,
    /// Call chains with their counts; empty if none were recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<Stack>,
    /// Samples that the kernel could not deliver. They are in no row.
    #[serde(default)]
    pub lost: u64,
    /// Place, time and load of the recording.
    #[serde(default)]
    pub conditions: Conditions,
    /// State of the whole machine at the time, as in the first lines of `top`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
    /// Cost of the instrument itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_cost: Option<OwnCost>,
    /// The CPU time by this profile and by a second instrument at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<Checked>,
    /// Remarks for the reader, in sentences.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<10_000, _, _>"
    )]
    pub remarks: Vec<String>,
}

/// The event that a profile counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The name as users type it: `cycles`, `L2_LINES_OUT`, `cpu-clock`; `unknown` if the source
    /// gives no name.
    pub name: String,
    /// Unit of a row's count.
    pub unit: Unit,
    /// Events for each sample, if the counts are [`Unit::Samples`]; nanoseconds of CPU time if the
    /// event is a clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// The raw code given to the CPU, such as `r1643`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
}

named! {
    /// The unit of a count.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Unit {
        /// Clock interrupts that occurred while the CPU ran the function.
        Ticks = "ticks",
        /// Samples of the event.
        Samples = "samples",
        /// Occurrences of the event.
        Events = "events",
        /// A unit that the source does not name.
        Unknown = "counts (of what, is not said)",
    }
}

named! {
    /// The means by which a profile was made. Figures of a model stay marked as such in every
    /// output.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Origin {
        /// A counter of the CPU.
        Counter = "counter of the CPU",
        /// A clock of the kernel.
        Clock = "clock",
        /// A count kept by the kernel, such as page faults.
        Kernel = "count kept by the kernel",
        /// A model of a CPU or of its caches. Never a measurement.
        Model = "model, not a measurement",
        /// A listing by another program, as that program printed it.
        Listing = "listing as found",
    }
}

/// A function, with its count.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The function's name, demangled; an address in hexadecimal if it has none.
    pub symbol: String,
    /// Start address of the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// The function's count, in the profile's unit.
    pub count: u64,
    /// Length of the function's code in bytes, if its object has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_bytes: Option<u64>,
    /// Count for each byte of code, as the source printed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Path of the function's file, or `[kernel]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Kernel or user space.
    #[serde(default)]
    pub space: Space,
    /// Stage, if the source gives it, which may know more than the name: `None` in what is read
    /// from a file. [`Profile::stage_of`] is the stage in both cases.
    #[serde(skip)]
    pub stage: Option<Stage>,
}

/// A normalised load, with the digits with which it was printed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Count for each byte.
    pub value: f64,
    /// Number of digits after the decimal point.
    pub digits: u8,
}

named! {
    /// The address space of a function: kernel or user.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Space {
        /// Code of the kernel.
        Kernel = "kernel",
        /// Code of a program.
        User = "program",
        /// An unknown space.
        #[default]
        Unknown = "n/a",
    }
}

/// The total that the source of a listing gives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// Count of all functions, listed or not.
    pub count: u64,
    /// Count for each byte of all code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// A call chain, with its count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// Names of the frames, from the outermost caller to the sampled function.
    pub frames: Vec<String>,
    /// Count of the stack.
    pub count: u64,
}

/// The cost of the instrument itself, from which readers can judge its influence on the figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OwnCost {
    /// CPU time of the recorder, in nanoseconds.
    pub recorder_cpu_ns: u64,
    /// CPU time that one sample takes from the target, calibrated on this machine just before;
    /// `None` if it cannot be distinguished from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_ns: Option<f64>,
    /// CPU time of the target in nanoseconds, including the samples'.
    pub target_cpu_ns: u64,
    /// Samples taken from the target.
    pub samples: u64,
}

impl Event {
    /// Returns the unit of the period, with a leading blank: nanoseconds for the kernel's clocks,
    /// nothing for other events.
    pub(crate) fn period_unit(&self) -> &'static str {
        let is_clock = matches!(self.name.as_str(), "cpu-clock" | "task-clock");
        if is_clock { " ns" } else { "" }
    }
}

impl OwnCost {
    /// Returns the share of the target's CPU time that sampling took, in per cent.
    #[must_use]
    pub fn sampling_pct(&self) -> Option<f64> {
        let target = (self.target_cpu_ns > 0).then_some(self.target_cpu_ns as f64)?;
        Some(100.0 * self.sample_ns? * self.samples as f64 / target)
    }
}

impl Profile {
    /// Returns an empty profile of `event`.
    #[must_use]
    pub fn new(event: Event, origin: Origin) -> Profile {
        Profile {
            event,
            origin,
            rows: Vec::new(),
            total: None,
            cutoff: None,
            stacks: Vec::new(),
            lost: 0,
            conditions: Conditions::default(),
            head: None,
            own_cost: None,
            checked: None,
            remarks: Vec::new(),
        }
    }

    /// Returns the sum of the rows. The sum saturates, because a listing may contain any numbers.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.rows.iter().fold(0, |sum, row| sum.saturating_add(row.count))
    }

    /// Returns the source's total, or the sum of the rows.
    #[must_use]
    pub fn total_count(&self) -> u64 {
        self.total.map_or_else(|| self.counted(), |total| total.count)
    }

    /// Returns the stage of a row of this profile: the one that the source gives, or else that of
    /// the function's name. In a profile of the whole machine, functions of libraries such as
    /// `memcpy` are [`Stage::User`]: any program may have called them.
    #[must_use]
    pub fn stage_of(&self, row: &Row) -> Stage {
        let whole = self.conditions.whole_machine;
        let by_name = || stage_in(whole, &row.symbol, row.object.as_deref(), row.space);
        row.stage.unwrap_or_else(by_name)
    }

    /// Sorts the rows by falling count, and rows with equal counts by name.
    pub fn sort(&mut self) {
        self.rows.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.symbol.cmp(&b.symbol)));
    }
}

impl Row {
    /// Returns a row with a name and a count only.
    #[must_use]
    pub fn new(symbol: impl Into<String>, count: u64) -> Row {
        Row { symbol: symbol.into(), count, ..Row::default() }
    }

    /// Returns the length of the code in bytes: from its object, or the only whole number that
    /// matches the printed load.
    ///
    /// `None` if neither is known, or the load was printed with too few digits to tell.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        if self.code_bytes.is_some() {
            return self.code_bytes;
        }
        let load = self.load?;
        let half = 0.5 * 0.1f64.powi(i32::from(load.digits));
        let (low, high) = (load.value - half, load.value + half);
        if low <= 0.0 {
            return None;
        }
        let count = self.count as f64;
        let (fewest, most) = ((count / high).ceil(), (count / low).floor());
        (fewest == most && fewest >= 1.0).then_some(fewest as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(count: u64, value: f64) -> Row {
        Row { load: Some(Load { value, digits: 4 }), ..Row::new("f", count) }
    }

    #[test]
    fn a_printed_load_gives_the_bytes_of_code_where_it_has_the_digits() {
        assert_eq!(printed(28044, 584.25).bytes(), Some(48));
        assert_eq!(printed(415, 1.3651).bytes(), Some(304));
        // 36324 ticks at 0.0210: anything from 1,725,606 to 1,733,842 bytes.
        assert_eq!(printed(36324, 0.0210).bytes(), None);
        assert_eq!(printed(1, 0.0).bytes(), None);
        assert_eq!(Row::new("f", 7).bytes(), None);
    }

    #[test]
    fn the_share_of_the_samples_is_of_the_target_and_unknown_without_a_calibration() {
        let mut cost = OwnCost {
            recorder_cpu_ns: 1,
            sample_ns: Some(2000.0),
            target_cpu_ns: 1_000_000_000,
            samples: 1000,
        };
        assert!((cost.sampling_pct().unwrap() - 0.2).abs() < 1e-9);
        cost.sample_ns = None;
        assert_eq!(cost.sampling_pct(), None);
    }
}
