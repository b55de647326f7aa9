//! The model of a series: columns with names and units, and samples with a value for each.
//!
//! On disk it is a line of JSON each, so that a run of any length needs no memory, and a run that
//! was killed keeps what it has:
//!
//! ```text
//! {"schema":"linerate-series/1","period_ns":1000000000,"conditions":{…},"absent":[…]}
//! {"columns":[{"name":"softirqs/NET_RX/cpu0","unit":"softirqs","kind":"counter"},…]}
//! {"sample":{"t_ns":0,"late_ns":52000,"missed":0,"own_ns":310000,"values":[12,…]}}
//! {"end":{"samples":60,"late":0,"missed":0,"own_ns":18600000,"unread":0,"refused":0}}
//! ```
//!
//! Columns that appear later (a new device) are in a later `columns` line, behind those that are
//! there. A value that could not be read is null, and so is that of a device that went.

use linerate_show::words::harmless;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::conditions::Conditions;

/// The schema version of a series.
pub const SCHEMA: &str = "linerate-series/1";

/// Most columns of a series; values without a column are counted. On machines with 512 CPUs, which
/// have about 300,000 interrupt counters, each line of interrupts is one column with their sum.
pub(super) const COLUMNS_MAX: usize = 1 << 16;

/// The description that precedes the samples of a series.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Header {
    /// The schema version, [`SCHEMA`].
    pub schema: String,
    /// Time from one deadline to the next.
    pub period_ns: u64,
    /// Place and time of the series.
    #[serde(default)]
    pub conditions: Conditions,
    /// Requested sources that are absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Absent>,
}

/// A requested file that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// The file's path.
    pub path: String,
    /// The reason, in the kernel's words.
    pub why: String,
}

/// The description of a value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Column {
    /// File and key of the value: `net/dev/eth0/rx_packets`, `stat/cpu0/softirq`.
    pub name: String,
    /// Unit of the value: `packets`, `ns`.
    pub unit: String,
    /// The kind of value: counter or gauge.
    pub kind: Kind,
    /// The text beside the value at its first occurrence, such as an interrupt's device.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
}

/// The kind of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A value that grows until it wraps or restarts, so that its rate is of interest.
    #[default]
    Counter,
    /// A value that rises and falls: the value itself is of interest.
    Gauge,
}

/// The values of all columns at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Time of the sample, since the first deadline.
    pub t_ns: u64,
    /// Delay of the sample after its deadline.
    pub late_ns: u64,
    /// Periods without a sample directly before this one.
    pub missed: u64,
    /// CPU time of taking the sample.
    pub own_ns: u64,
    /// A value for each column that existed at the time; `None` if the column had none.
    pub values: Vec<Option<u64>>,
}

/// The description that follows the last sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct End {
    /// Samples taken.
    pub samples: u64,
    /// Samples that were late by more than a tenth of the period.
    pub late: u64,
    /// Periods without a sample.
    pub missed: u64,
    /// CPU time of all samples, writing included.
    pub own_ns: u64,
    /// Lines of the files that were not understood, summed over the samples.
    pub unread: u64,
    /// Values without a column, because there were too many columns, summed over the samples.
    pub refused: u64,
}

/// A source of samples: the machine, or a file.
pub trait Feed {
    /// Returns the description that precedes the samples.
    fn header(&self) -> &Header;

    /// Returns the columns so far. [`Feed::next`] appends new columns, and never moves one.
    fn columns(&self) -> &[Column];

    /// Stores the next sample in `sample`; returns whether there was one.
    ///
    /// # Errors
    /// Whatever its source failed with. What it gave before is good.
    fn next(&mut self, sample: &mut Sample) -> Result<bool>;

    /// Returns the description that follows the samples: for a machine, up to now; for a file, only
    /// at its end. `None` before the end of a file, and for a file that was cut off.
    fn end(&self) -> Option<End>;
}

/// Most bytes of a column's texts together, four times the size with any known kernel.
const COLUMN_BYTES_MAX: usize = 1024;

impl Column {
    /// Returns true if the column's texts can be stored and printed. The texts come from a file, or
    /// from the name that a user gave to a network device.
    pub(super) fn is_sound(&self) -> bool {
        let texts = [&self.name, &self.unit, &self.about];
        texts.iter().map(|text| text.len()).sum::<usize>() <= COLUMN_BYTES_MAX
            && texts.iter().all(|text| is_plain(text))
    }

    /// Returns the rate of `more` in `span_ns`, in [`Column::rate_unit`].
    #[must_use]
    pub fn rate(&self, more: u64, span_ns: u64) -> f64 {
        let of_time = more as f64 / span_ns as f64;
        if self.unit == "ns" { 100.0 * of_time } else { 1e9 * of_time }
    }

    /// Returns the unit of the printed value: `packets/s`, `%` of time for a counter of
    /// nanoseconds, the unit itself for a gauge.
    #[must_use]
    pub fn rate_unit(&self) -> String {
        match (self.kind, self.unit.as_str()) {
            (Kind::Gauge, unit) => unit.into(),
            (Kind::Counter, "ns") => "%".into(),
            (Kind::Counter, unit) => format!("{unit}/s"),
        }
    }
}

/// Returns true if a text can be shown unchanged on a terminal or in a picture: without escapes,
/// changes of writing direction, and invisible characters.
pub(super) fn is_plain(text: &str) -> bool {
    let hidden = ['\u{ad}', '\u{61c}', '\u{180e}', '\u{fffe}', '\u{ffff}'];
    harmless(text) == text && !text.contains(hidden)
}

impl End {
    /// Counts a sample, with its delay and the missed periods before it.
    pub(super) fn count(&mut self, sample: &Sample, period_ns: u64) {
        self.samples += 1;
        self.late += u64::from(sample.late_ns > period_ns / 10);
        self.missed = self.missed.saturating_add(sample.missed);
        self.own_ns = self.own_ns.saturating_add(sample.own_ns);
    }
}
