//! Latencies of a round, each measured from the request's due time.
//!
//! An answer is waited for from the moment at which its request was *due*, whether or not the
//! sender was there by then. A request that has no answer when its round ends is not left out, for
//! that would leave out the slow ones: it counts as the time from when it was due to the end, which
//! is the least that it took. It is not waited for beyond that: after a round the path stands still
//! for a while, and then carries unmeasured, so that a later answer tells nothing of the path.
//!
//! What is due right before the end has no answer yet however fast the path is, and would count as
//! next to nothing. So those of the last tenth of a round are left out, all of them: by when they
//! were due and not by what became of them. Hence
//!
//! - a quantile below a tenth of the round is exact: all that are unanswered took longer;
//! - one above may be of the unanswered, and then it is the least that it can be: the window says
//!   so ([`Window::is_at_least`]), and the analysis takes it for a lower bound.
//!
//! [`Window::is_at_least`]: crate::window::Window::is_at_least
//!
//! Without a rate a request is due when it is sent, which the answer before it decides: such
//! latencies are those of a closed loop, and say nothing of requests that were held back.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::crew::Round;
use crate::percentile::PERCENTILES;
use crate::window::at_least;

/// Number of parts of a round, of which the last one does not count: requests due in it have too
/// little time for an answer.
const EDGE: u32 = 10;
/// Most latencies of a sender's round that are kept; later ones are not recorded.
const KEPT: usize = 1 << 18;

/// Latencies of requests that were due in a round.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Latencies {
    took_ns: Vec<u64>,
    /// Requests without an answer at the end: their latency is a lower bound.
    pending: u64,
    /// The shortest of these bounds; a quantile below it is exact.
    pending_from_ns: Option<u64>,
}

impl Latencies {
    /// Records the latency of a request from `due` to `answered`, or a lower bound if it has no
    /// answer.
    pub fn note(&mut self, round: Round, due: Instant, answered: Option<Instant>) {
        let edge = round.until.saturating_duration_since(round.from) / EDGE;
        let counts = due + edge < round.until;
        if !counts || self.took_ns.len() >= KEPT {
            return;
        }
        let in_time = answered.filter(|at| *at <= round.until);
        let took = in_time.unwrap_or(round.until).saturating_duration_since(due);
        let took_ns = took.as_nanos().try_into().unwrap_or(u64::MAX);
        if in_time.is_none() {
            self.pending += 1;
            self.pending_from(Some(took_ns));
        }
        self.took_ns.push(took_ns);
    }

    /// Adds another sender's latencies in the same round.
    pub fn join(&mut self, other: Latencies) {
        self.took_ns.extend(other.took_ns);
        self.pending += other.pending;
        self.pending_from(other.pending_from_ns);
    }

    fn pending_from(&mut self, ns: Option<u64>) {
        self.pending_from_ns = self.pending_from_ns.into_iter().chain(ns).min();
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.took_ns.len() as u64
    }

    /// Returns the number of requests that were unanswered at the end.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Adds the number of latencies, the number of unanswered requests, and the quantiles to
    /// `figures`.
    pub fn tell(&self, name: &str, figures: &mut BTreeMap<String, f64>) {
        figures.insert(format!("{name}_count"), self.count() as f64);
        figures.insert(format!("{name}_pending"), self.pending as f64);
        self.quantiles(name, figures);
    }

    /// Adds the median, the 99th and the 99.9th percentile, each if there are enough values, and
    /// marks those that are lower bounds.
    pub fn quantiles(&self, name: &str, figures: &mut BTreeMap<String, f64>) {
        let mut values = self.took_ns.clone();
        for percentile in PERCENTILES {
            if let Some(value) = percentile.of(&mut values) {
                let figure = format!("{name}_{}_ns", percentile.name);
                if self.pending_from_ns.is_some_and(|from| value >= from) {
                    figures.insert(at_least(&figure), 1.0);
                }
                figures.insert(figure, value as f64);
            }
        }
    }

    /// Returns the number of latencies that count of those due at a rate in a window.
    #[cfg(test)]
    pub fn planned(per_second: f64, window: std::time::Duration) -> f64 {
        per_second * window.as_secs_f64() * (1.0 - 1.0 / f64::from(EDGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    use crate::Code;
    use crate::experiment::{BUILTIN, Cell, builtin};
    use crate::percentile::Percentile;
    use crate::scenario::Place;
    use crate::scenario::host::config::{Config, Workload};
    use crate::settings::{Settings, Value};

    const SECOND: Duration = Duration::from_secs(1);

    fn round() -> Round {
        let from = Instant::now();
        Round { number: 1, from, until: from + SECOND }
    }

    fn told(latencies: &Latencies, name: &str) -> Option<f64> {
        let mut figures = BTreeMap::new();
        latencies.tell("x", &mut figures);
        figures.get(name).copied()
    }

    #[test]
    fn a_quantile_of_too_few_is_no_figure() {
        let of = |n: u64| {
            let latencies = Latencies { took_ns: (1..=n).rev().collect(), ..Latencies::default() };
            let told = |name| told(&latencies, name);
            (told("x_count"), told("x_p50_ns"), told("x_p99_ns"))
        };
        assert_eq!(of(0), (Some(0.0), None, None));
        assert_eq!(of(19), (Some(19.0), None, None));
        assert_eq!(of(20), (Some(20.0), Some(10.0), None));
        assert_eq!(of(298), (Some(298.0), Some(149.0), None));
        assert_eq!(of(299), (Some(299.0), Some(150.0), Some(297.0)));
    }

    /// Returns the latencies a second that a side plans under the name `family`; `None` if it has
    /// none, or if their number follows from the answers.
    fn per_second(cell: &Cell, side: &Settings, family: &str) -> Option<f64> {
        if cell.scenario == "engine" {
            let number = |name| match side.get(name)?.value {
                Value::Int(number) => Some(number as f64),
                _ => None,
            };
            return Some(number("rate")? / number("size")?);
        }
        let (cpus, program) = (vec![0, 1, 2], Some("linerate".into()));
        let place = Place { cpus, seed: 1, program, stop: Arc::default() };
        let config = match Config::of(side, &place) {
            // A side that no machine can run has no latencies.
            Err(e) if e.code == Code::Unsupported => return None,
            config => config.unwrap(),
        };
        match (family, config.workload) {
            ("receipt" | "probe_late", _) => Some(config.probes.into()),
            ("load" | "load_late", Workload::Load) => config.rate,
            ("request", Workload::Rpc | Workload::Web) => config.rate,
            _ => None,
        }
    }

    /// The quick plans that have no percentile, as the metric says: `noise-host` has short windows,
    /// which a busy machine disturbs less often.
    const TOO_SHORT: [&str; 1] = ["noise-host"];

    #[test]
    fn built_in_experiments_plan_enough_latencies_for_their_percentiles() {
        let mut planned = 0;
        for (id, _) in BUILTIN {
            let one = builtin(id).unwrap();
            let figures = one.metrics.iter().flat_map(|metric| metric.formula.figures());
            for (figure, quick) in figures.flat_map(|figure| [(figure, false), (figure, true)]) {
                let of =
                    |p: Percentile| Some((figure.strip_suffix(&format!("_{}_ns", p.name))?, p));
                let Some((family, percentile)) = PERCENTILES.into_iter().find_map(of) else {
                    continue;
                };
                let cells = one
                    .cells(quick)
                    .filter(|(_, cell)| ["host", "engine"].contains(&&*cell.scenario));
                let sides = cells.flat_map(|(_, cell)| [(cell, &cell.a), (cell, &cell.b)]);
                for (cell, side) in sides {
                    let Some(rate) = per_second(cell, side, family) else { continue };
                    let window = Duration::from_nanos(cell.window_ns(quick));
                    let n = Latencies::planned(rate, window);
                    let least = percentile.least as f64;
                    let is_planned = !(quick && TOO_SHORT.contains(&id));
                    let at = format!("{id} {}, quick {quick}: {figure} of {n}", cell.name());
                    assert_eq!(n >= least, is_planned, "{at} values, of {least}");
                    planned += 1;
                }
            }
        }
        assert!(planned > 1000, "{planned}");
    }

    /// Returns 1000 requests a second, each answered within 1 ms until the path stalls at
    /// `stall_ms`; later ones are not answered.
    fn stalled_from(stall_ms: u64) -> Latencies {
        let (round, mut latencies) = (round(), Latencies::default());
        for ms in 0..1000 {
            let due = round.from + Duration::from_millis(ms);
            let answer = due + Duration::from_millis(1);
            latencies.note(round, due, (ms < stall_ms).then_some(answer));
        }
        latencies
    }

    #[test]
    fn a_path_that_stalls_until_the_end_is_not_as_fast_as_before_it() {
        let quick = stalled_from(1000);
        assert_eq!((quick.count(), quick.pending()), (900, 0));
        assert_eq!(told(&quick, "x_p50_ns"), Some(1e6));
        // In the last 600 ms, 500 of the 900 counted requests had no answer, and took at least 100
        // ms. The median of the 400 answers alone would still be 1 ms.
        let stalled = stalled_from(400);
        assert_eq!((stalled.count(), stalled.pending()), (900, 500));
        assert_eq!(told(&stalled, "x_pending"), Some(500.0));
        // The 450th of 900 is the 50th shortest of the unanswered requests.
        assert_eq!(told(&stalled, "x_p50_ns"), Some(150e6));
    }

    #[test]
    fn quantile_of_requests_without_an_answer_is_marked_as_a_lower_bound() {
        let marks = |latencies: &Latencies| {
            ["x_p50_ns_at_least", "x_p99_ns_at_least"].map(|name| told(latencies, name))
        };
        assert_eq!(marks(&stalled_from(1000)), [None, None]);
        // Only 9 of 900 values may be above the 99th percentile.
        assert_eq!(marks(&stalled_from(891)), [None, None]);
        assert_eq!(marks(&stalled_from(890)), [None, Some(1.0)]);
        assert_eq!(marks(&stalled_from(400)), [Some(1.0), Some(1.0)]);
        let mut both = stalled_from(1000);
        both.join(stalled_from(880));
        assert_eq!(marks(&both), [None, Some(1.0)], "of two senders");
    }

    #[test]
    fn requests_due_at_the_edge_of_a_round_do_not_count() {
        let (round, mut latencies) = (round(), Latencies::default());
        let late = round.from + Duration::from_millis(901);
        latencies.note(round, late, Some(late));
        latencies.note(round, late, None);
        assert_eq!(latencies, Latencies::default());
        // So every unanswered probe took longer than the last tenth of the round.
        let early = round.from + Duration::from_millis(899);
        latencies.note(round, early, None);
        assert_eq!((latencies.took_ns.as_slice(), latencies.pending), (&[101_000_000][..], 1));
    }

    #[test]
    fn an_answer_after_the_end_is_none_of_the_round() {
        let (round, mut latencies) = (round(), Latencies::default());
        latencies.note(round, round.from, Some(round.until + SECOND));
        latencies.note(round, round.from, Some(round.until));
        assert_eq!(
            (latencies.took_ns.as_slice(), latencies.pending),
            (&[SECOND.as_nanos() as u64; 2][..], 1)
        );
    }
}
