//! Settings: each is declared once, with its name, unit, range and default.
//!
//! The builders clamp by a knob's range, the command reads its flag and its help from it, the lab
//! its factors, and docs/knobs.md is rendered from [`POOL`] and the engine's list.

use std::fmt;

/// A setting that is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knob {
    /// The name in files and documents; the flag of the command has `-` for `_`.
    pub name: &'static str,
    /// The unit of the setting's values.
    pub unit: &'static str,
    /// The least valid value.
    pub min: u64,
    /// The greatest valid value.
    pub max: u64,
    /// The default; where `or` is not empty, the lower bound of the default.
    pub default: u64,
    /// The quantity that the default grows with; empty if the default is a constant.
    pub or: &'static str,
    /// The effect, in a sentence.
    pub effect: &'static str,
    /// True if the setting can be changed while packets pass.
    pub live: bool,
}

impl Knob {
    /// Returns the value nearest to `value` that the knob can have.
    #[must_use]
    pub const fn clamp(&self, value: u64) -> u64 {
        if value < self.min {
            self.min
        } else if value > self.max {
            self.max
        } else {
            value
        }
    }

    /// Returns true if the knob can have this value.
    #[must_use]
    pub const fn allows(&self, value: u64) -> bool {
        self.min <= value && value <= self.max
    }

    /// Returns the default as text: `1024, or as many as the rings hold`.
    #[must_use]
    pub fn default_text(&self) -> String {
        if self.or.is_empty() {
            self.default.to_string()
        } else {
            format!("{}, or {}", self.default, self.or)
        }
    }
}

/// Displays the setting's range: `0..=65536`.
impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.min, self.max)
    }
}

/// The length of a hot list: free frames that a worker or queue keeps for itself.
///
/// Source: post 000, "increasing the sysctl_hot_list_len from 128 to 1024 by default".
pub const HOT_LIST: Knob = Knob {
    name: "hot_list",
    unit: "frames",
    min: 0,
    max: 1 << 16,
    default: 1024,
    or: "as many as the rings that it serves hold",
    effect: "Free frames that a worker keeps for itself; with 0 each call takes its frames from the shared depot, at most 64 at once",
    live: true,
};

/// The size of a frame in bytes, with the default headroom of 256 bytes. A [`PoolBuilder`] with
/// less headroom can have frames of 256 bytes.
///
/// [`PoolBuilder`]: crate::PoolBuilder
pub const FRAME_SIZE: Knob = Knob {
    name: "frame_size",
    unit: "bytes",
    min: 512,
    max: 1 << 16,
    default: 2048,
    or: "",
    effect: "Bytes of a frame, including 256 bytes of headroom: a power of two",
    live: false,
};

/// The interval, in calls, between two timed calls of allocation or freeing.
pub const SAMPLE: Knob = Knob {
    name: "sample",
    unit: "calls",
    min: 0,
    max: u32::MAX as u64,
    default: 0,
    or: "",
    effect: "Measures the time of every Nth call that allocates or frees packets, and the lifetime of one packet of each such call that allocates in bulk; packets in jumbo frames and those that xdp, verbs or a zero-copy memif receive are not measured when they are allocated; 0 = off",
    live: true,
};

/// The knobs of a pool.
pub const POOL: [&Knob; 3] = [&HOT_LIST, &FRAME_SIZE, &SAMPLE];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_lie_within_their_ranges() {
        for knob in POOL {
            assert!(knob.allows(knob.default), "{}", knob.name);
        }
    }

    #[test]
    fn clamp_returns_the_nearest_value_in_range() {
        assert_eq!([0, 512, 5000, 1 << 20].map(|n| FRAME_SIZE.clamp(n)), [512, 512, 5000, 65_536]);
        assert_eq!(HOT_LIST.to_string(), "0..=65536");
    }
}
