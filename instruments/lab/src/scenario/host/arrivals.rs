//! The schedule of a load's datagrams: equal gaps, or shapes for which no controller was tuned.
//!
//! ```text
//!  constant  | | | | | | | | | | | |
//!  poisson   ||   |  | ||    |  | |     gaps drawn at random, each as likely as if none had been before
//!  bursts    |||||||             |||||||  10 ms at five times the rate, 40 ms of nothing
//!  steps     |  |  | ||||||| | | | |||  quarters of a window at 0.4, 1.6, 0.8 and 1.2 times the rate
//!  tcp       || |||||      |||| | ||    the gaps of bulk TCP, captured; or of a capture by its path,
//!                                     again and again, stretched to the rate
//! ```
//!
//! The mean is the rate whatever the shape: of bursts over whole periods, of steps over a window.

use std::path::Path;

use linerate_port::pcap;
use serde::{Deserialize, Serialize};

use crate::random::Random;
use crate::{Code, Error, Result};

/// Number of gaps drawn at random, and most gaps read from a capture; afterwards the gaps repeat.
const GAPS: usize = 8192;
/// The gaps of the built-in capture.
const TCP: &str = include_str!("../../../captures/tcp.txt");
/// Length of a burst; the next is the time between bursts.
const ON_S: f64 = 0.010;
const PERIOD_S: f64 = 0.050;
/// Rates in the quarters of a window, relative to the mean.
const STEPS: [f64; 4] = [0.4, 1.6, 0.8, 1.2];

/// The shape of a load over time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) enum Arrivals {
    #[default]
    Constant,
    Poisson,
    Bursts,
    Steps,
    /// The due time of each arrival in mean gaps, counted from the first; the last entry begins the
    /// next repetition.
    Gaps(Vec<f64>),
}

impl Arrivals {
    /// Returns the shape with that name, or of the capture at that path.
    ///
    /// # Errors
    /// `E-EXPERIMENT` for a name that there is not, or a capture without two moments; those of
    /// reading a capture.
    pub fn named(name: &str) -> Result<Arrivals> {
        Ok(match name {
            "constant" => Arrivals::Constant,
            "poisson" => Arrivals::Poisson,
            "bursts" => Arrivals::Bursts,
            "steps" => Arrivals::Steps,
            "tcp" => {
                let lines = TCP.lines().filter(|line| !line.starts_with('#'));
                let gaps = lines.flat_map(str::split_whitespace).filter_map(|gap| gap.parse().ok());
                Arrivals::of_gaps(gaps.collect()).unwrap_or_default()
            }
            path if path.contains(['.', '/']) => {
                let frames = pcap::read_all(Path::new(path))?;
                let times: Vec<u64> = frames.iter().take(GAPS + 1).map(|f| f.stamp_ns).collect();
                let gap = |pair: &[u64]| pair[1].saturating_sub(pair[0]) as f64;
                Arrivals::of_gaps(times.windows(2).map(gap).collect()).ok_or_else(|| {
                    let why = format!("{path} has no two packets at different times");
                    Error::new(Code::Experiment, "cannot replay arrivals", why)
                        .fix("a capture with times: linerate forward packet:eth0 pcap:a.pcapng")
                })?
            }
            _ => {
                let why = format!("{name} is no shape of a load");
                return Err(Error::new(Code::Experiment, "cannot use the experiment", why)
                    .fix("constant, poisson, bursts, steps, tcp or the path of a capture"));
            }
        })
    }

    /// Returns the shape with its random numbers drawn.
    pub fn drawn(&self, seed: u64) -> Arrivals {
        if *self != Arrivals::Poisson {
            return self.clone();
        }
        let mut random = Random::new(seed);
        // The argument is above 0 and at most 1, so that the logarithm is finite.
        let mut gap = || -(((random.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64).ln();
        Arrivals::of_gaps((0..GAPS).map(|_| gap()).collect()).unwrap_or_default()
    }

    /// Returns the shape of these gaps, in any unit; `None` if their sum is 0.
    fn of_gaps(gaps: Vec<f64>) -> Option<Arrivals> {
        let sum: f64 = gaps.iter().sum();
        let scale = gaps.len() as f64 / sum;
        let mut at = 0.0;
        let ends = gaps.iter().map(|gap| {
            at += gap * scale;
            at
        });
        (sum > 0.0).then(|| Arrivals::Gaps([0.0].into_iter().chain(ends).collect()))
    }

    /// Returns the due time of arrival `i` in mean gaps, for `per_second` arrivals a second and
    /// `all` in a window.
    ///
    /// Cost: a few operations, whatever `i` is.
    pub fn place(&self, i: u64, per_second: f64, all: f64) -> f64 {
        let x = i as f64;
        match self {
            Arrivals::Constant | Arrivals::Poisson => x,
            Arrivals::Bursts => {
                let (on, period) = (ON_S * per_second, PERIOD_S * per_second);
                // First the position in the bursts alone, without pauses; then add the pauses
                // between them.
                let busy = x * ON_S / PERIOD_S;
                (busy / on).floor() * period + busy % on
            }
            Arrivals::Steps => stepped(x / all) * all,
            Arrivals::Gaps(ends) => {
                let len = (ends.len() - 1) as u64;
                (i - i % len) as f64 + ends[(i % len) as usize]
            }
        }
    }
}

/// Returns the elapsed share of a window when the share `due` of its arrivals has occurred.
fn stepped(due: f64) -> f64 {
    let mut before = 0.0;
    for (quarter, rate) in STEPS.iter().enumerate() {
        let of_this = rate / 4.0;
        if due < before + of_this {
            return (quarter as f64 + (due - before) / of_this) / 4.0;
        }
        before += of_this;
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the arrivals in each of `parts` parts of a second, at 10,000 a second.
    fn by_part(arrivals: &Arrivals, parts: usize) -> Vec<usize> {
        let places: Vec<f64> = (0..12_000).map(|i| arrivals.place(i, 1e4, 1e4) / 1e4).collect();
        assert!(places.is_sorted(), "{arrivals:?}");
        let mut counts = vec![0; parts];
        for second in places.into_iter().filter(|second| *second < 1.0) {
            counts[(second * parts as f64) as usize] += 1;
        }
        counts
    }

    #[test]
    fn each_shape_has_the_rate_on_average_and_its_own_way_there() {
        let whole = |arrivals: &Arrivals| by_part(arrivals, 1)[0];
        let poisson = Arrivals::Poisson.drawn(7);
        let tcp = &Arrivals::named("tcp").unwrap();
        let regular = [&Arrivals::Constant, &Arrivals::Bursts, &Arrivals::Steps];
        for arrivals in regular.into_iter().chain([&poisson, tcp]) {
            assert!(
                (9_700..=10_300).contains(&whole(arrivals)),
                "{} {arrivals:?}",
                whole(arrivals)
            );
        }
        assert_eq!(by_part(&Arrivals::Steps, 4), [1000, 4000, 2000, 3000]);
        let bursts = by_part(&Arrivals::Bursts, 100);
        let near = |n: usize, wanted: usize| n.abs_diff(wanted) <= 2;
        assert!(
            bursts.chunks(5).all(|p| near(p[0], 500) && p[1..].iter().all(|n| *n <= 2)),
            "{bursts:?}"
        );
        // A Poisson process has a variance equal to its mean: 100 in each part; a constant load has
        // none.
        let variance = |arrivals: &Arrivals| {
            let parts = by_part(arrivals, 100);
            parts.iter().map(|n| (*n as f64 - 100.0).powi(2)).sum::<f64>() / 100.0
        };
        assert!((50.0..200.0).contains(&variance(&poisson)), "{}", variance(&poisson));
        assert!(variance(&Arrivals::Constant) < 2.0);
        assert_ne!(poisson, Arrivals::Poisson.drawn(8));
        assert_eq!(poisson, Arrivals::Poisson.drawn(7));
    }

    #[test]
    fn a_capture_is_replayed_at_the_rate_and_one_without_times_is_refused() {
        let scratch = linerate_testing::Scratch::new();
        let file = scratch.word("arrivals.pcapng");
        let written = |times: &[u64]| {
            let frame = |stamp_ns: &u64| pcap::Frame { stamp_ns: *stamp_ns, bytes: vec![0; 60] };
            pcap::write_all(&file, &times.iter().map(frame).collect::<Vec<_>>()).unwrap();
            Arrivals::named(&file)
        };
        // Three gaps of 1, 1 and 4: a mean of 2.
        let arrivals = written(&[1000, 2000, 3000, 7000]).unwrap();
        let places = [0, 1, 2, 3, 4].map(|i| arrivals.place(i, 1.0, 1.0));
        assert_eq!(places, [0.0, 0.5, 1.0, 3.0, 3.5]);
        for times in [&[1000, 1000][..], &[1000], &[]] {
            let e = written(times).unwrap_err();
            assert!(e.why.ends_with("has no two packets at different times"), "{e}");
        }
        assert_eq!(Arrivals::named("./none.pcap").unwrap_err().code, Code::File);
        let e = Arrivals::named("fractal").unwrap_err();
        assert!(e.why.contains("fractal is no shape") && e.fix.contains("poisson"), "{e}");
    }
}
