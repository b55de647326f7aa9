//! Several runs of one experiment, in the order in which they were made.

use super::figure_of;
use super::forest::{Line, plot};
use crate::record::Run;
use crate::report::view::{View, short};

/// Runs that are drawn.
const RUNS_MAX: usize = 40;

/// Cells that have a chart.
const CELLS_MAX: usize = 12;

/// The headline's change in each run, a chart for each cell that the first run has.
pub(super) fn section(runs: &[Run]) -> String {
    let Some((first, [_, ..])) = runs.split_first() else { return String::new() };
    let view = View::new(first);
    let Some(metric) = view.headline() else { return String::new() };
    let mut runs: Vec<&Run> = runs.iter().collect();
    runs.sort_by(|a, b| a.run.started.cmp(&b.run.started));
    runs.truncate(RUNS_MAX);
    let chart = |(name, cell): (&str, &crate::record::CellRecord)| {
        let lines: Vec<Line<'_>> = runs
            .iter()
            .map(|run| {
                let same = run.cells.iter().find(|other| other.at == cell.at);
                let effect = same.and_then(|cell| cell.metrics.get(&metric.name));
                Line { name: label(run), effect: effect.ok_or_else(|| "not in this run".into()) }
            })
            .collect();
        let at = if name.is_empty() { String::new() } else { format!(", {name}") };
        let desc = format!("{}{at}: change in each run, the oldest first.", metric.label);
        figure_of(&plot(&format!("Trend{at}"), &desc, &lines), &desc)
    };
    let charts: String = view.named().take(CELLS_MAX).map(chart).collect();
    format!("<div class=\"charts\">{charts}</div>\n")
}

/// Version, commit and day of a run.
fn label(run: &Run) -> String {
    let tool = |key: &str| run.run.tool.get(key).map_or("unknown", String::as_str);
    let commit: String = tool("commit").chars().take(8).collect();
    let day: String = run.run.started.chars().take(10).collect();
    short(&format!("{} {commit} {day}", tool("version")))
}
