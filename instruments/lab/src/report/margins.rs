//! The margin of *same* and the family of hypotheses, each with its origin: declared by the
//! experiment, or the default.

use super::view::View;
use super::words::{n, short};
use crate::analysis::SAME_PCT;
use crate::experiment::{Experiment, Family, origin};

/// Returns the margin and the family, as pairs of subject and value; nothing if the experiment is
/// not known.
pub(super) fn facts(view: &View<'_>) -> Vec<(&'static str, String)> {
    let Some(experiment) = &view.experiment else { return Vec::new() };
    let effects = || view.run.cells.iter().flat_map(|cell| cell.metrics.values());
    // A run that stores no margin was judged by its noise floor.
    let is_older = effects().next().is_some() && effects().all(|effect| effect.same_pct.is_none());
    let margin = match is_older {
        true => format!("the noise floor, at least {SAME_PCT} %: the run stores no margin"),
        false => margin(experiment),
    };
    let of = match experiment.plan.family() {
        Family::Metric => "the cells of each metric",
        Family::Experiment => "all cells of all metrics",
    };
    let family = n(experiment.family(view.run.experiment.quick));
    let from = origin(experiment.plan.family.is_some());
    vec![("margin", margin), ("family", format!("{family}: {of}, {from}"))]
}

/// Formats the margins: `5 % of ticks, declared; 1 % of the others, the default`.
fn margin(experiment: &Experiment) -> String {
    let declared = experiment.metrics.iter().filter_map(|metric| {
        Some(format!("{} % of {}, {}", metric.same_pct?, short(&metric.name), origin(true)))
    });
    let mut each: Vec<String> = declared.collect();
    if each.len() < experiment.metrics.len() {
        let of = if each.is_empty() { "" } else { " of the others" };
        each.push(format!("{SAME_PCT} %{of}, {}", origin(false)));
    }
    each.join("; ")
}
