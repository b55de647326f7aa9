//! Expected values, their sources and their outcomes, in one list with the headline's first.

use linerate_show::number::range;

use super::metric::Shown;
use super::tables::ROWS_MAX;
use super::view::View;
use super::words::{cells, n, shown};

/// The outcome if the interval lies neither within the range nor entirely outside it.
const OPEN: &str = "open: the interval does not tell";

/// An expectation of one metric, in every cell that has it.
pub(super) struct Expectation {
    /// The metric and the expected value.
    pub what: String,
    /// The outcome, with the cells that disagree. A disagreement is a result.
    pub outcome: String,
    /// The source of the expectation.
    pub source: String,
    /// True if the expected value is met in every cell.
    pub met: bool,
}

/// Returns all expectations of the run.
pub(super) fn expectations(view: &View<'_>) -> Vec<Expectation> {
    view.metrics.iter().flat_map(|metric| of_metric(view, metric)).take(ROWS_MAX).collect()
}

fn of_metric(view: &View<'_>, metric: &Shown) -> Vec<Expectation> {
    struct Cells<'a> {
        expected: (String, String),
        met: Vec<&'a str>,
        not_met: Vec<&'a str>,
        open: usize,
    }
    let mut all: Vec<Cells<'_>> = Vec::new();
    for (name, cell) in view.named().take(ROWS_MAX) {
        let effect = cell.metrics.get(&metric.name);
        let Some(expected) = effect.and_then(|effect| effect.expected.as_ref()) else { continue };
        let of = (range(expected.change_pct), shown(&expected.source));
        let at = all.iter().position(|cells| cells.expected == of).unwrap_or_else(|| {
            all.push(Cells { expected: of, met: Vec::new(), not_met: Vec::new(), open: 0 });
            all.len() - 1
        });
        let Some(cells) = all.get_mut(at) else { continue };
        match (expected.certain, expected.met) {
            (false, _) => cells.open += 1,
            (true, true) => cells.met.push(name),
            (true, false) => cells.not_met.push(name),
        }
    }
    let told = |of: Cells<'_>| {
        let every = of.met.len() + of.not_met.len();
        let (range, source) = of.expected;
        Expectation {
            what: format!("{}: expected {range} %", metric.label),
            outcome: match (of.met.len(), cells(&of.not_met, view.cells.len())) {
                (0, _) if every == 0 => OPEN.into(),
                (met, _) if of.not_met.is_empty() && of.open > 0 => {
                    format!("met in {}, open in {}", n(met), n(of.open))
                }
                (_, _) if of.not_met.is_empty() && every > 1 => format!("met in all {}", n(every)),
                (_, _) if of.not_met.is_empty() => "met".into(),
                (0, at) if every == 1 && at.is_empty() => "NOT met, which is a result".into(),
                (0, at) => format!("NOT met, which is a result, at {at}"),
                (met, at) => format!(
                    "NOT met, which is a result, at {at}; met in {} of {}",
                    n(met),
                    n(every)
                ),
            },
            source,
            met: of.not_met.is_empty() && of.open == 0,
        }
    };
    all.into_iter().map(told).collect()
}
