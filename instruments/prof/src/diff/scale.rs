//! Factors by which counts are multiplied before a comparison.

use serde::Serialize;

use super::SIDES;
use crate::profile::Profile;
use crate::{Code, Error, Result};

named! {
    /// The quantity by which two profiles are made comparable.
    #[derive(Default, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum By {
        /// No scaling: the user states that time and load were equal.
        #[default]
        AsTheyAre = "counts as they are",
        /// Counts for each second of wall time.
        Second = "per second",
        /// Counts for each thousand packets.
        KiloPacket = "per thousand packets",
        /// Per cent of each side's own total. This scaling hides a change of the total.
        Share = "as shares of each side's own total",
    }
}

/// The factors of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scale {
    /// The quantity that counts are scaled to.
    pub by: By,
    /// Number by which the counts of the baseline are multiplied.
    pub without_factor: f64,
    /// Number by which the counts of the profile with the change are multiplied.
    pub with_factor: f64,
}

impl Scale {
    /// Returns the scale that leaves counts unchanged.
    #[must_use]
    pub const fn as_they_are() -> Scale {
        Scale { by: By::AsTheyAre, without_factor: 1.0, with_factor: 1.0 }
    }

    /// Returns the factors of two profiles.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if a side does not say by what it would have to be divided.
    pub fn between(by: By, without: &Profile, with: &Profile) -> Result<Scale> {
        let without_factor = by.factor(without, SIDES[0])?;
        Ok(Scale { by, without_factor, with_factor: by.factor(with, SIDES[1])? })
    }

    /// Returns a scaled count of the baseline.
    #[must_use]
    pub fn without(self, count: u64) -> f64 {
        count as f64 * self.without_factor
    }

    /// Returns a scaled count of the profile with the change.
    #[must_use]
    pub fn with(self, count: u64) -> f64 {
        count as f64 * self.with_factor
    }
}

impl By {
    /// Returns the number by which counts of `profile` are multiplied; `side` names the profile in
    /// an error.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if it does not say by what it would have to be divided.
    pub(super) fn factor(self, profile: &Profile, side: &str) -> Result<f64> {
        let positive = |n: u64| (n > 0).then_some(n as f64);
        let conditions = &profile.conditions;
        let factor = match self {
            By::AsTheyAre => Some(1.0),
            By::Second => conditions.wall_ns.and_then(positive).map(|ns| 1e9 / ns),
            By::KiloPacket => conditions.packets.and_then(positive).map(|packets| 1e3 / packets),
            By::Share => positive(profile.total_count()).map(|total| 100.0 / total),
        };
        factor.ok_or_else(|| {
            let (needs, advice) = self.needs();
            let why = format!("the profile {side} does not say {needs}");
            Error::new(Code::Unsupported, format!("cannot compare {self}"), why).fix(advice)
        })
    }

    /// Returns the property that the scaling needs in a profile, and the remedy if it is missing.
    const fn needs(self) -> (&'static str, &'static str) {
        let record = "compare as they are, or record both with `linerate profile record`";
        match self {
            By::AsTheyAre => ("anything", record),
            By::Second => ("how long it lasted", record),
            By::KiloPacket => (
                "how many packets went through meanwhile",
                "compare as they are, or record both with `linerate profile record --packets N`",
            ),
            By::Share => ("a total above 0", "record for longer"),
        }
    }

    /// Returns the suffix of a unit at the head of a column, such as `/s` in `samples/s`; for
    /// shares, the whole unit.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            By::AsTheyAre => "",
            By::Second => "/s",
            By::KiloPacket => "/1000 packets",
            By::Share => "% of total",
        }
    }
}
