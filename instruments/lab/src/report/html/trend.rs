//! Several runs of one experiment, in the order in which they were made.

use linerate_show::escape::escape;
use linerate_show::number;
use linerate_show::table::{Cell, Column, Table};

use super::figure_of;
use super::forest::{Line, plot};
use crate::compare::trends;
use crate::record::Run;
use crate::report::view::View;
use crate::report::words::short;

/// Runs that are drawn.
const RUNS_MAX: usize = 40;

/// Cells that have a chart.
const CELLS_MAX: usize = 12;

/// The headline's change in each run, a chart for each cell that the first run has.
pub(super) fn section(told: &[Run]) -> String {
    let Some((first, [_, ..])) = told.split_first() else { return String::new() };
    let view = View::new(first);
    let Some(metric) = view.headline() else { return String::new() };
    let mut runs: Vec<&Run> = told.iter().collect();
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
    let measured = view.named().filter(|(_, cell)| cell.metrics.contains_key(&metric.name));
    let charts: String = measured.take(CELLS_MAX).map(chart).collect();
    format!("<div class=\"charts\">{charts}</div>\n{}", values(told, &metric.name))
}

/// The changed side's value in each run, as far as the runs computed it alike.
fn values(runs: &[Run], metric: &str) -> String {
    let trends = match trends(runs) {
        Ok(trends) => trends,
        Err(error) => {
            return format!("<p class=\"unit\">Values are not shown: {}</p>\n", escape(&error.why));
        }
    };
    let columns = [
        Column::new("cell", "cell", ""),
        Column::new("run", "run", ""),
        Column::new("started", "started", ""),
        Column::new("value", "B", ""),
        Column::new("low", "from", ""),
        Column::new("high", "to", ""),
    ];
    let mut table =
        Table::new("trend", "The changed side in each run, with its 95 % interval", &columns);
    for trend in trends.iter().filter(|trend| trend.metric == metric).take(CELLS_MAX) {
        for point in trend.points.iter().take(RUNS_MAX) {
            let names =
                [&trend.cell, &point.label, &point.started].map(|text| Cell::text(short(text)));
            let figures = [point.value, point.lo, point.hi].map(number::cell);
            table.row(names.into_iter().chain(figures).collect());
        }
        table.title = format!(
            "{} of B in each run, in {}, with its 95 % interval",
            short(metric),
            short(&trend.unit)
        );
    }
    table.html()
}

/// Version of a run, its commit if that is known, and when it was started: `0.1.0 84064f3c 2026-11-21
/// 10:15`.
fn label(run: &Run) -> String {
    let tool = |key: &str| run.run.tool.get(key).map_or("unknown", String::as_str);
    let commit: String = match tool("commit") {
        "unknown" => String::new(),
        commit => commit.chars().take(8).chain([' ']).collect(),
    };
    let started: String = run.run.started.chars().take(16).collect();
    short(&format!("{} {commit}{}", tool("version"), started.replace('T', " ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::run_of;

    #[test]
    fn runs_of_one_day_are_told_apart_and_what_is_unknown_is_left_out() {
        let mut run = run_of(&[]);
        run.run.started = "2026-11-21T10:15:00Z".into();
        run.run.tool.insert("version".into(), "0.1.0".into());
        run.run.tool.insert("commit".into(), "unknown".into());
        assert_eq!(label(&run), "0.1.0 2026-11-21 10:15");
        run.run.tool.insert("commit".into(), "84064f3c1d20".into());
        assert_eq!(label(&run), "0.1.0 84064f3c 2026-11-21 10:15");
    }
}
