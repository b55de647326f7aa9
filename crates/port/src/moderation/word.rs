//! A moderation as one word, which threads exchange without a lock. The code is here because it
//! must know every mode.
//!
//! ```text
//!  63 | 62 … 60 mode | 59 … 30 a number | 29 … 0 a number     bit 63 is the caller's
//! ```

use super::{Goal, Moderation};

/// Number of bits of each of the two numbers.
const NUMBER: u32 = 30;
/// The position of the mode, above the two numbers.
const MODE: u32 = 2 * NUMBER;

/// Encodes a moderation as a word, whose highest bit stays 0; a number that is too large for its
/// bits becomes the greatest that fits.
#[must_use]
pub fn of(mode: Moderation) -> u64 {
    let (mode, a, b) = match mode {
        Moderation::Interrupt => (0, 0, 0),
        Moderation::Napi => (1, 0, 0),
        Moderation::Fixed { usecs, frames } => (2, usecs, frames),
        Moderation::Dim => (3, 0, 0),
        Moderation::Adaptive(Goal::Latency { p99_usecs }) => (4, p99_usecs, 0),
        Moderation::Adaptive(Goal::Cpu { percent }) => (5, percent, 0),
        Moderation::Busy => (6, 0, 0),
    };
    let number = |n: u32| u64::from(n).min((1 << NUMBER) - 1);
    mode << MODE | number(a) << NUMBER | number(b)
}

/// Decodes a moderation from a word, whose highest bit does not matter.
#[must_use]
pub fn mode(bits: u64) -> Moderation {
    let number = |shift: u32| (bits >> shift & ((1 << NUMBER) - 1)) as u32;
    match bits >> MODE & 7 {
        0 => Moderation::Interrupt,
        1 => Moderation::Napi,
        2 => Moderation::Fixed { usecs: number(NUMBER), frames: number(0) },
        3 => Moderation::Dim,
        4 => Moderation::Adaptive(Goal::Latency { p99_usecs: number(NUMBER) }),
        5 => Moderation::Adaptive(Goal::Cpu { percent: number(NUMBER) }),
        _ => Moderation::Busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_read_as_it_was_stored_whatever_the_highest_bit_is() {
        for text in ["interrupt", "napi", "fixed:usecs=10000,frames=65536", "dim", "busy"]
            .into_iter()
            .chain(["adaptive:latency=10000us", "adaptive:cpu=100%", "fixed:usecs=1,frames=1"])
        {
            let stored = text.parse().unwrap();
            assert_eq!([mode(of(stored)), mode(of(stored) | 1 << 63)], [stored; 2]);
            assert_eq!(of(stored) >> 63, 0);
        }
    }

    #[test]
    fn number_that_no_knob_has_leaves_the_mode_as_it_is() {
        let most = (1 << NUMBER) - 1;
        let stored = Moderation::Fixed { usecs: u32::MAX, frames: u32::MAX };
        assert_eq!(mode(of(stored)), Moderation::Fixed { usecs: most, frames: most });
    }
}
