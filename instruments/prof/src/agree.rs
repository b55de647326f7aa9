//! Comparison of readings of one figure by several instruments: all readings are printed, and a
//! disagreement is marked.
//!
//! A figure that only one tool gives is that tool's word. A second one that measures the same thing
//! in another way either corroborates it or shows that one of the two does not measure what it is
//! taken to. Which, is not for us to say: [`Headline::judge`] names what is known to pull such a
//! pair apart, as *likely*, and keeps both figures.

use std::fmt;

use linerate_show::number;
use serde::{Deserialize, Serialize};

use crate::diff::SIGMAS;

/// Difference of two instruments, in per cent, above which they do not measure the same.
pub const APART_PCT: f64 = 5.0;

/// Number of samples below which a share of one twentieth may be chance, because each thread's
/// first sample comes at a random moment of a period.
const SAMPLES_JUDGED: u64 = 100;

/// A figure, with the readings of all instruments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Headline {
    /// Name of the figure: `CPU busy`.
    pub name: String,
    /// Unit of the figure: `%`, `cycles/packet`.
    pub unit: String,
    /// Number of digits after the decimal point in the output.
    pub digits: u8,
    /// The readings of the figure.
    pub by: Vec<Reading>,
}

/// A figure as measured by one instrument.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Name of the instrument: `readprofile`, `top`.
    pub instrument: String,
    /// Method of measurement.
    pub means: Means,
    /// Measured value; `None` if it could not be measured, with the reason in `measures`.
    pub value: Option<f64>,
    /// The measured quantity, with its count: `8280 of 36324 ticks, all but default_idle`.
    pub measures: String,
}

/// A method of measurement. It decides which causes can make two instruments differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Means {
    /// Samples of the code that the CPU ran at each timer tick: readprofile, and kernprof by time.
    TickProfile,
    /// CPU time by the account that the timer tick charges: `top`, /proc/stat.
    TickAccount,
    /// The scheduler's clock: CPU time of a thread, schedstat.
    CpuTime,
    /// Samples by a clock: ours or perf's, of `cpu-clock`.
    ClockSamples,
}

/// The largest difference allowed between two figures. Two figures agree if they are within either
/// bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tolerance {
    /// Absolute bound, in the headline's unit.
    pub absolute: f64,
    /// Relative bound, in per cent of the larger figure.
    pub relative_pct: f64,
}

/// The difference between the smallest figure and the largest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Absolute difference, in the headline's unit.
    pub absolute: f64,
    /// Relative difference, in per cent of the figure that is larger in magnitude; 0 if all are 0.
    pub relative_pct: f64,
}

/// The result of comparing instruments.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// Fewer than two instruments measured the figure, so that no instrument confirms it.
    Alone,
    /// The instruments agree.
    Agree(Spread),
    /// The instruments disagree.
    Disagree {
        /// The difference between the readings.
        spread: Spread,
        /// Known causes of such a difference, the most likely first.
        likely: Vec<&'static str>,
    },
}

/// A headline that is kept to be compared later, with the difference that is allowed then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    /// The headline with its readings.
    pub headline: Headline,
    /// The allowed difference.
    pub tolerance: Tolerance,
}

/// A headline with the result of its comparison, for printing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judged<'a> {
    /// The headline whose readings were compared.
    #[serde(flatten)]
    pub headline: &'a Headline,
    /// The result of the comparison.
    #[serde(flatten)]
    pub verdict: Verdict,
}

impl Tolerance {
    /// Returns an absolute bound in the headline's unit, such as percentage points.
    #[must_use]
    pub const fn within(absolute: f64) -> Tolerance {
        Tolerance { absolute, relative_pct: 0.0 }
    }

    /// Returns a bound in per cent of the larger figure.
    #[must_use]
    pub const fn pct(relative_pct: f64) -> Tolerance {
        Tolerance { absolute: 0.0, relative_pct }
    }

    /// Returns the bound for CPU time by samples of a clock: 5 %, or two standard deviations of
    /// their number if that is more.
    #[must_use]
    pub fn of_samples(counted: u64) -> Tolerance {
        let counted = counted.max(SAMPLES_JUDGED) as f64;
        Tolerance::pct(APART_PCT.max(100.0 * SIGMAS / counted.sqrt()))
    }

    fn allows(self, spread: Spread) -> bool {
        spread.absolute <= self.absolute || spread.relative_pct <= self.relative_pct
    }
}

impl Reading {
    /// Returns the reading of an instrument; a value that is not finite becomes a missing figure.
    #[must_use]
    pub fn new(
        instrument: impl Into<String>,
        means: Means,
        value: f64,
        measures: impl Into<String>,
    ) -> Reading {
        // A value that is not finite is usually a share of a total of 0.
        if !value.is_finite() {
            let why = format!("{}: not finite, {value}", measures.into());
            return Reading::missing(instrument, means, why);
        }
        let (instrument, measures) = (instrument.into(), measures.into());
        Reading { instrument, means, value: Some(value), measures }
    }

    /// Returns the reading of samples that a clock took `hz` times in each second of CPU time:
    /// their time in nanoseconds multiplied by `scale`. It is a missing figure if they are too few.
    #[must_use]
    pub fn of_samples(counted: u64, hz: f64, scale: f64) -> Reading {
        let took = format!("{} x {:.3} ms of a clock", number::count(counted), 1e3 / hz);
        if counted < SAMPLES_JUDGED {
            let why = format!("{took}: fewer than {SAMPLES_JUDGED} samples are not significant");
            return Reading::missing("samples", Means::ClockSamples, why);
        }
        Reading::new("samples", Means::ClockSamples, counted as f64 * 1e9 / hz * scale, took)
    }

    /// Returns the reading of an instrument that could not measure the figure, with the reason.
    #[must_use]
    pub fn missing(instrument: impl Into<String>, means: Means, why: impl Into<String>) -> Reading {
        Reading { instrument: instrument.into(), means, value: None, measures: why.into() }
    }
}

impl Headline {
    /// Returns a headline without readings.
    #[must_use]
    pub fn new(name: impl Into<String>, unit: impl Into<String>, digits: u8) -> Headline {
        Headline { name: name.into(), unit: unit.into(), digits, by: Vec::new() }
    }

    /// Returns the headline with one more reading.
    #[must_use]
    pub fn by(mut self, reading: Reading) -> Headline {
        self.by.push(reading);
        self
    }

    /// Compares the readings.
    #[must_use]
    pub fn judge(&self, tolerance: Tolerance) -> Judged<'_> {
        Judged { headline: self, verdict: self.verdict(tolerance) }
    }

    fn verdict(&self, tolerance: Tolerance) -> Verdict {
        let had = self.by.iter().filter_map(|reading| Some((reading.value?, reading.means)));
        let mut had: Vec<(f64, Means)> = had.collect();
        had.sort_by(|a, b| a.0.total_cmp(&b.0));
        let [low, .., high] = had[..] else { return Verdict::Alone };
        let (absolute, largest) = (high.0 - low.0, low.0.abs().max(high.0.abs()));
        let relative_pct = if largest > 0.0 { 100.0 * absolute / largest } else { 0.0 };
        let spread = Spread { absolute, relative_pct };
        if tolerance.allows(spread) {
            return Verdict::Agree(spread);
        }
        let is_pair = |a, b| (a, b) == (low.1, high.1) || (b, a) == (low.1, high.1);
        let known = REASONS.iter().filter(|(a, b, _)| is_pair(*a, *b));
        let mut likely: Vec<&str> = known.map(|(.., reason)| *reason).collect();
        if likely.is_empty() {
            likely.push("they did not look at the same window or at the same threads");
        }
        Verdict::Disagree { spread, likely }
    }
}

impl fmt::Display for Judged<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Headline { name, unit, digits, by } = self.headline;
        let digits = usize::from(*digits);
        let width = by.iter().map(|reading| reading.instrument.chars().count()).max().unwrap_or(0);
        writeln!(f, "{name}, {unit}")?;
        for Reading { instrument, value, measures, .. } in by {
            let value = value.map_or_else(|| "n/a".into(), |value| format!("{value:.digits$}"));
            writeln!(f, "  {value:>8}  {instrument:width$}  {measures}")?;
        }
        // The absolute difference of two percentages is in percentage points; "10 %" would be read
        // as a relative difference.
        let unit = if unit == "%" { "points" } else { unit };
        let apart = |s: &Spread| {
            let Spread { absolute, relative_pct } = s;
            format!("by {absolute:.digits$} {unit}, {relative_pct:.1} % of the larger")
        };
        match &self.verdict {
            Verdict::Alone => write!(f, "  ALONE     no second instrument corroborates it"),
            Verdict::Agree(spread) => write!(f, "  agree     {}", apart(spread)),
            Verdict::Disagree { spread, likely } => {
                write!(f, "  DISAGREE  {}", apart(spread))?;
                likely.iter().try_for_each(|reason| write!(f, "\n    likely: {reason}"))
            }
        }
    }
}

/// Reasons for differences, by the pair of instruments; more likely ones first.
const REASONS: &[(Means, Means, &str)] = {
    use Means::{ClockSamples, CpuTime, TickAccount, TickProfile};
    &[
        (
            TickProfile,
            TickAccount,
            "different windows: a profile counts since its reset, top since its last screen",
        ),
        (
            TickProfile,
            TickAccount,
            "time with interrupts disabled: the tick comes late and finds another function, but \
             the same account",
        ),
        (
            ClockSamples,
            CpuTime,
            "threads that sleep often: the scheduler charges a thread from its wake-up on, and its \
             clock of samples starts after the switch to it",
        ),
        (
            ClockSamples,
            CpuTime,
            "time with interrupts disabled: a sample comes late, and those due meanwhile are one",
        ),
        (ClockSamples, CpuTime, "samples were lost or throttled"),
        (
            ClockSamples,
            CpuTime,
            "the host took the CPU: the guest's clock of CPU time may run on, its timer does not",
        ),
        (
            ClockSamples,
            TickAccount,
            "a tick is charged whole to the thread that runs when it comes, and work in step with it escapes",
        ),
        (
            CpuTime,
            TickAccount,
            "a tick is charged whole to the thread that runs when it comes; the scheduler's clock is exact",
        ),
        (
            ClockSamples,
            ClockSamples,
            "different rates or windows: two samplers also sample each other",
        ),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(profile: f64, top: f64) -> Headline {
        Headline::new("CPU busy", "%", 1)
            .by(Reading::new("profile", Means::TickProfile, profile, "8280 of 36324 ticks"))
            .by(Reading::new("top", Means::TickAccount, top, "user + system + nice"))
    }

    #[test]
    fn a_disagreement_prints_both_figures_the_flag_and_a_reason() {
        let headline = busy(22.8, 32.8);
        let judged = headline.judge(Tolerance::within(1.0));
        let text = judged.to_string();
        let Verdict::Disagree { spread, likely } = judged.verdict else { panic!("{text}") };
        assert!((spread.absolute - 10.0).abs() < 1e-9, "{spread:?}");
        assert!((spread.relative_pct - 1000.0 / 32.8).abs() < 1e-9, "{spread:?}");
        assert_eq!(likely.len(), 2, "{likely:?}");
        for part in ["22.8", "32.8", "DISAGREE", "10.0 points", "30.5 %", "interrupts disabled"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn the_reasons_do_not_depend_on_the_order_and_there_is_always_one() {
        let reasons = |a, b| match Headline::new("x", "", 0)
            .by(Reading::new("a", a, 1.0, ""))
            .by(Reading::new("b", b, 2.0, ""))
            .judge(Tolerance::pct(10.0))
            .verdict
        {
            Verdict::Disagree { likely, .. } => likely,
            other => panic!("{other:?}"),
        };
        let (account, time) = (Means::TickAccount, Means::CpuTime);
        assert_eq!(reasons(account, time), reasons(time, account));
        assert!(reasons(account, time)[0].contains("charged whole"));
        assert!(reasons(time, time)[0].contains("same window"));
    }

    #[test]
    fn agreement_is_within_either_bound_and_says_by_how_much() {
        let headline = busy(70.0, 71.0);
        for tolerance in [Tolerance::within(1.0), Tolerance::pct(2.0)] {
            let judged = headline.judge(tolerance);
            assert!(matches!(judged.verdict, Verdict::Agree(_)), "{judged}");
            assert!(judged.to_string().contains("agree     by 1.0 points, 1.4 %"), "{judged}");
        }
        let strict = headline.judge(Tolerance { absolute: 0.9, relative_pct: 1.4 });
        assert!(matches!(strict.verdict, Verdict::Disagree { .. }), "{strict}");
        let zeros = busy(0.0, 0.0);
        assert!(matches!(zeros.judge(Tolerance::pct(0.0)).verdict, Verdict::Agree(_)));
        // The outermost of three are judged.
        let third = Reading::new("perf", Means::ClockSamples, 60.0, "600 samples");
        let verdict = busy(50.0, 51.0).by(third).judge(Tolerance::within(2.0)).verdict;
        assert!(matches!(verdict, Verdict::Disagree { spread, .. } if spread.absolute == 10.0));
    }

    #[test]
    fn few_samples_are_no_figure_and_the_bound_of_samples_is_their_chance() {
        let reading = Reading::of_samples(2_000, 1000.0, 1e-6);
        assert_eq!(
            (reading.value, reading.measures.as_str()),
            (Some(2000.0), "2,000 x 1.000 ms of a clock")
        );
        let few = Reading::of_samples(SAMPLES_JUDGED - 1, 1000.0, 1e-6);
        assert!(few.value.is_none() && few.measures.ends_with("are not significant"), "{few:?}");
        let allowed = [0, 100, 400, 1_000_000].map(|n| Tolerance::of_samples(n).relative_pct);
        assert_eq!(allowed, [20.0, 20.0, 10.0, APART_PCT]);
    }

    #[test]
    fn one_figure_is_not_corroborated_and_what_is_missing_says_why() {
        let headline = Headline::new("CPU busy", "%", 1)
            .by(Reading::new("samples", Means::ClockSamples, 70.0, "700 of 1000"))
            .by(Reading::missing("kernel", Means::CpuTime, "no account on this machine"));
        let judged = headline.judge(Tolerance::within(1.0));
        assert_eq!(judged.verdict, Verdict::Alone);
        let text = judged.to_string();
        assert!(text.contains("n/a  kernel   no account") && text.contains("ALONE"), "{text}");
        // A share of nothing is no figure, and does not poison the others.
        let headline = busy(f64::NAN, 1.0);
        let judged = headline.judge(Tolerance::pct(1.0));
        assert_eq!(judged.verdict, Verdict::Alone);
        assert!(judged.to_string().contains("8280 of 36324 ticks: not finite, NaN"), "{judged}");
    }

    #[test]
    fn a_hundred_samples_are_a_figure() {
        let reading = Reading::of_samples(SAMPLES_JUDGED, 1000.0, 1e-6);
        assert_eq!(reading.value, Some(100.0));
    }
}
