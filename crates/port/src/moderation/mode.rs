//! The modes, and the text that names one.

use std::fmt;
use std::str::FromStr;

use linerate_skb::{Code, Error, Knob, Result};

use super::knob::{CPU, FRAMES, LATENCY, USECS};
use crate::spec::nearest;
use crate::units;

/// A rule that decides when a queue is polled again. In every mode a single packet after a quiet
/// time is received immediately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moderation {
    /// Waits for the descriptor after every poll: an interrupt for each batch.
    Interrupt,
    /// Polls until nothing is left, then waits for the descriptor.
    Napi,
    /// Does not poll for `usecs` after each poll that found packets, or for the time in which
    /// `frames` packets arrive at the measured rate.
    Fixed {
        /// ethtool's rx-usecs.
        usecs: u32,
        /// ethtool's rx-frames. A sleeping owner cannot count packets, so the number is an
        /// estimate.
        frames: u32,
    },
    /// Chooses among five fixed times, by how the last change affected the rate: the kernel's
    /// net_dim.
    Dim,
    /// Computes the time from a goal, the rate, and the measured cost of a wake-up and of a packet.
    Adaptive(Goal),
    /// Polls without sleeping.
    Busy,
}

/// The goal of [`Moderation::Adaptive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Goal {
    /// Takes the least CPU time with which 99 of 100 packets are delayed by at most `p99_usecs`.
    Latency {
        /// The longest added delay.
        p99_usecs: u32,
    },
    /// Takes the least delay with which the queue takes at most `percent` of a CPU. Each queue of a
    /// thread has this limit for itself, because a queue knows only its own packets.
    Cpu {
        /// The limit of CPU time, in per cent of a CPU.
        percent: u32,
    },
}

impl Default for Goal {
    fn default() -> Goal {
        Goal::Latency { p99_usecs: LATENCY.default as u32 }
    }
}

impl Default for Moderation {
    fn default() -> Moderation {
        Moderation::Adaptive(Goal::default())
    }
}

/// Forms of the text, as help and errors print them.
pub const FORMS: &str = "interrupt napi fixed[:usecs=100,frames=32] dim \
                         adaptive[:latency=250us|:cpu=20%] busy";
const WORDS: [&str; 6] = ["interrupt", "napi", "fixed", "dim", "adaptive", "busy"];

impl Moderation {
    /// Returns a warning if a ring of `rx_ring_len` packets is too short for the mode's numbers.
    #[must_use]
    pub fn warning(&self, rx_ring_len: u32) -> Option<String> {
        match *self {
            Moderation::Fixed { frames, .. } if frames > rx_ring_len / 2 => Some(format!(
                "frames={frames}: half of a ring of {rx_ring_len} is {}, and ends the delay earlier",
                rx_ring_len / 2
            )),
            _ => None,
        }
    }

    /// Returns the mode with each number changed to the nearest that its knob allows.
    #[must_use]
    pub fn clamped(self) -> Moderation {
        let clamp = |n: u32, knob: &Knob| knob.clamp(n.into()) as u32;
        match self {
            Moderation::Fixed { usecs, frames } => {
                Moderation::Fixed { usecs: clamp(usecs, &USECS), frames: clamp(frames, &FRAMES) }
            }
            Moderation::Adaptive(Goal::Latency { p99_usecs }) => {
                Moderation::Adaptive(Goal::Latency { p99_usecs: clamp(p99_usecs, &LATENCY) })
            }
            Moderation::Adaptive(Goal::Cpu { percent }) => {
                Moderation::Adaptive(Goal::Cpu { percent: clamp(percent, &CPU) })
            }
            mode => mode,
        }
    }

    fn bad(text: &str, why: String, fix: &str) -> Error {
        Error::new(Code::PortSyntax, format!("moderation '{text}'"), why).fix(fix)
    }
}

/// Displays the mode in the syntax of port texts: `fixed:usecs=100,frames=32`.
impl fmt::Display for Moderation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moderation::Interrupt => f.write_str("interrupt"),
            Moderation::Napi => f.write_str("napi"),
            Moderation::Fixed { usecs, frames } => {
                write!(f, "fixed:usecs={usecs},frames={frames}")
            }
            Moderation::Dim => f.write_str("dim"),
            Moderation::Adaptive(Goal::Latency { p99_usecs }) => {
                write!(f, "adaptive:latency={p99_usecs}us")
            }
            Moderation::Adaptive(Goal::Cpu { percent }) => write!(f, "adaptive:cpu={percent}%"),
            Moderation::Busy => f.write_str("busy"),
        }
    }
}

impl FromStr for Moderation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Moderation> {
        let (word, rest) = match text.split_once(':') {
            Some((word, rest)) => (word, Some(rest)),
            None => (text, None),
        };
        let mode = match word {
            "interrupt" => Moderation::Interrupt,
            "napi" => Moderation::Napi,
            "fixed" => {
                Moderation::Fixed { usecs: USECS.default as u32, frames: FRAMES.default as u32 }
            }
            "dim" => Moderation::Dim,
            "adaptive" => Moderation::default(),
            "busy" => Moderation::Busy,
            _ => {
                let fix =
                    nearest(word, WORDS.into_iter()).map(|near| format!("did you mean {near}?"));
                let fix = fix.unwrap_or_else(|| FORMS.to_owned());
                return Err(Moderation::bad(text, format!("there is no mode '{word}'"), &fix));
            }
        };
        let parts: Vec<&str> = rest.into_iter().flat_map(|rest| rest.split(',')).collect();
        check(text, &parts)?;
        parts.into_iter().try_fold(mode, |mode, part| mode.with(text, part))
    }
}

/// Checks that none of the numbers of a mode is empty or given twice.
fn check(text: &str, parts: &[&str]) -> Result<()> {
    for (i, part) in parts.iter().enumerate() {
        if part.is_empty() {
            let why = "a number is empty: one colon or comma too many".to_owned();
            return Err(Moderation::bad(text, why, "leave out the colon or comma"));
        }
        if parts[..i].iter().any(|before| key(before) == key(part)) {
            let why = format!("'{}' is given twice", key(part));
            return Err(Moderation::bad(text, why, "leave out one of them"));
        }
    }
    Ok(())
}

/// Returns the key of `key=value`.
fn key(part: &str) -> &str {
    part.split('=').next().unwrap_or_default()
}

impl Moderation {
    /// Returns the mode with one of its numbers set.
    fn with(self, text: &str, part: &str) -> Result<Moderation> {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let unknown = || {
            let word = text.split(':').next().unwrap_or_default();
            Err(Moderation::bad(text, format!("{word} has no '{key}'"), FORMS))
        };
        match (self, key) {
            (Moderation::Fixed { frames, .. }, "usecs") => {
                Ok(Moderation::Fixed { usecs: number(text, key, value, &USECS)?, frames })
            }
            (Moderation::Fixed { usecs, .. }, "frames") => {
                Ok(Moderation::Fixed { usecs, frames: number(text, key, value, &FRAMES)? })
            }
            (Moderation::Adaptive(_), "latency") => {
                let time = value.strip_prefix("p99 ").unwrap_or(value);
                let time = units::duration(time)
                    .map_err(|e| Moderation::bad(text, e.into(), "latency=250us"))?;
                let usecs = time.as_micros().to_string();
                let p99_usecs = number(text, key, &usecs, &LATENCY)?;
                Ok(Moderation::Adaptive(Goal::Latency { p99_usecs }))
            }
            (Moderation::Adaptive(_), "cpu") => {
                let percent = value.strip_suffix('%').unwrap_or(value);
                Ok(Moderation::Adaptive(Goal::Cpu { percent: number(text, key, percent, &CPU)? }))
            }
            _ => unknown(),
        }
    }
}

/// Parses a number, which the limits of `knob` must allow.
fn number(text: &str, key: &str, value: &str, knob: &Knob) -> Result<u32> {
    let allowed = |n: &u64| knob.allows(*n);
    value.parse().ok().filter(allowed).map(|n: u64| n as u32).ok_or_else(|| {
        let why = format!("{key} is {knob} {}, not '{value}'", knob.unit);
        let default = knob.default;
        Moderation::bad(text, why, &format!("leave it out for {default} {}", knob.unit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_read_as_it_is_displayed() {
        for text in [
            "interrupt",
            "napi",
            "fixed:usecs=100,frames=32",
            "dim",
            "adaptive:latency=250us",
            "adaptive:cpu=20%",
            "busy",
        ] {
            assert_eq!(text.parse::<Moderation>().unwrap().to_string(), text);
        }
        assert_eq!("adaptive".parse(), Ok(Moderation::default()));
        assert_eq!(
            "adaptive:latency=p99 1ms".parse::<Moderation>().unwrap().to_string(),
            "adaptive:latency=1000us"
        );
        let fixed = "fixed:usecs=40".parse();
        assert_eq!(fixed, Ok(Moderation::Fixed { usecs: 40, frames: 32 }));
    }

    #[test]
    fn numbers_outside_a_knob_become_the_nearest_inside() {
        use Moderation::{Adaptive, Dim, Fixed};
        let cpu = |percent| Adaptive(Goal::Cpu { percent });
        let latency = |p99_usecs| Adaptive(Goal::Latency { p99_usecs });
        for (mode, clamped) in [
            (Fixed { usecs: 50_000, frames: 0 }, Fixed { usecs: 10_000, frames: 1 }),
            (Fixed { usecs: 0, frames: u32::MAX }, Fixed { usecs: 1, frames: 1 << 16 }),
            (Fixed { usecs: 70, frames: 5 }, Fixed { usecs: 70, frames: 5 }),
            (latency(0), latency(10)),
            (latency(u32::MAX), latency(10_000)),
            (cpu(0), cpu(1)),
            (cpu(u32::MAX), cpu(100)),
            (Dim, Dim),
        ] {
            assert_eq!(mode.clamped(), clamped);
        }
    }

    #[test]
    fn bad_text_is_refused_with_the_reason_and_what_to_write() {
        for (text, why, fix) in [
            ("", "no mode ''", "interrupt napi fixed"),
            ("adaptiv", "no mode 'adaptiv'", "did you mean adaptive"),
            ("napi:usecs=3", "napi has no 'usecs'", "fixed[:usecs=100"),
            ("fixed:frames=0", "frames is 1..=65536 packets, not '0'", "32 packets"),
            ("fixed:usecs=0", "usecs is 1..=10000 us, not '0'", "100 us"),
            ("fixed:usecs=10001", "not '10001'", "100 us"),
            ("fixed:usecs", "not ''", "100 us"),
            ("adaptive:latency=250", "needs a unit", "latency=250us"),
            ("adaptive:latency=1us", "10..=10000 us, not '1'", "250 us"),
            ("adaptive:cpu=0%", "1..=100 %, not '0'", "20 %"),
            ("adaptive:cpu=101", "not '101'", "20 %"),
            ("adaptive:goal=1", "no 'goal'", "latency=250us"),
            ("fixed:", "a number is empty", "leave out the colon"),
            ("fixed:usecs=1,", "a number is empty", "leave out"),
            ("fixed:usecs=1,,frames=2", "a number is empty", "leave out"),
            ("fixed:usecs=1,frames=2,usecs=1", "'usecs' is given twice", "leave out one"),
            ("adaptive:cpu=1%,cpu=2%", "'cpu' is given twice", "leave out one"),
        ] {
            let e = text.parse::<Moderation>().unwrap_err();
            assert!(e.why.contains(why) && e.fix.contains(fix), "{text}: {e}");
        }
    }

    #[test]
    fn more_frames_than_half_of_a_ring_are_warned_about_with_the_arithmetic() {
        let fixed = Moderation::Fixed { usecs: 100, frames: 200 };
        assert!(fixed.warning(256).unwrap().contains("half of a ring of 256 is 128"));
        assert_eq!(fixed.warning(1024), None);
    }
}
