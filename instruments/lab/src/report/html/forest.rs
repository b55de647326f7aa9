//! The forest plot: a change in per cent with its interval, in a row for each cell, or for each of
//! several runs.

use linerate_show::escape::escape;
use linerate_show::number;
use linerate_show::number::{change, interval, range};
use linerate_show::svg::{Axis, Mark, Svg};
use linerate_show::table::{Cell, Table};

use super::{figure_of, more, rows};
use crate::compare::{Known, trends_of, unlike};
use crate::experiment::Experiment;
use crate::record::{CellRecord, Effect, Run, Status, Verdict};
use crate::report::remarks::reason;
use crate::report::tables;
use crate::report::view::{Shown, View};
use crate::report::words::short;

/// A row of the plot.
pub(super) struct Line<'a> {
    /// The name of the cell or group.
    pub name: String,
    /// The effect; an error has the reason why there is none.
    pub effect: Result<&'a Effect, String>,
}

/// Most rows drawn; the table has all.
const LINES_MAX: usize = 60;

/// Returns the plot of one metric in every cell.
pub(super) fn metric(view: &View<'_>, metric: &Shown) -> String {
    let lines: Vec<Line<'_>> = view
        .named()
        // Leave out cells that cannot run on this machine: the page lists them once, above.
        .filter(|(_, cell)| cell.status != Status::Unsupported)
        .map(|(name, cell)| {
            let reason = || reason(view, cell).map_or("not measured here", |r| r.short).to_owned();
            let effect = match cell.metrics.get(&metric.name) {
                Some(effect) if effect.is_of_nothing() => Err("counted nothing".to_owned()),
                effect => effect.ok_or_else(reason),
            };
            Line {
                name: if name.is_empty() { "all of it".into() } else { name.to_owned() },
                effect,
            }
        })
        .collect();
    let [a, b] = view.sides();
    let desc =
        format!("Change of {} from {a} to {b}, in per cent, with its 95 % interval.", metric.label);
    let more = match lines.len().saturating_sub(LINES_MAX) {
        0 => String::new(),
        n => format!(" {n} more cells are in the table."),
    };
    let caption = format!("{desc}{more}");
    figure_of(&plot(&metric.label, &desc, &lines), &caption)
}

/// Draws the plot alone.
pub(super) fn plot(title: &str, desc: &str, lines: &[Line<'_>]) -> String {
    let lines = lines.get(..LINES_MAX).unwrap_or(lines);
    let effects = || lines.iter().filter_map(|line| line.effect.as_ref().ok());
    let ends = effects().flat_map(|effect| {
        let (low, high) = effect.ci95_pct;
        let floor = effect.aa_half_width_pct.unwrap_or(0.0);
        let expected = effect.expected.as_ref().map_or((0.0, 0.0), |e| e.change_pct);
        [low, high, effect.change_pct, floor, -floor, expected.0, expected.1, 0.0]
    });
    let axis = Axis::over(ends, 4.0, " %").signed();
    let head = |line: &Line<'_>| (line.name.clone(), said(line));
    rows((title, desc), Some(&axis), 24.0, lines, head, |svg, line, top| {
        draw(svg, &axis, line, top + 9.0);
    })
}

fn said(line: &Line<'_>) -> String {
    match &line.effect {
        Ok(effect) => {
            let change = tables::changed(effect);
            format!("{change} % {}", interval(effect.ci95_pct))
        }
        Err(why) => format!("– {why}"),
    }
}

fn draw(svg: &mut Svg, axis: &Axis, line: &Line<'_>, y: f64) {
    let Ok(effect) = &line.effect else { return };
    if let Some(floor) = effect.aa_half_width_pct {
        let band = (axis.at(-floor.abs()), axis.at(floor.abs()));
        svg.bar(band, (y - 9.0, y + 9.0), "floor", "A/A: identical code");
    }
    if let Some(expected) = &effect.expected {
        let (low, high) = expected.change_pct;
        let (from, to) = (axis.at(low), axis.at(high));
        let met = match (expected.certain, expected.met) {
            (false, _) => "open",
            (true, true) => "met",
            (true, false) => "not met",
        };
        let tip = format!("expected {} %: {met}", range(expected.change_pct));
        svg.bar((from, to), (y + 6.0, y + 9.0), "expected", &tip);
        svg.line((from, y + 1.0), (from, y + 9.0), "expected");
        svg.line((to, y + 1.0), (to, y + 9.0), "expected");
    }
    let (low, high) = effect.ci95_pct;
    let (class, mark) = marked(effect.verdict);
    svg.line((axis.at(low), y), (axis.at(high), y), class);
    let [a, b] = tables::censored(effect);
    let tip = format!(
        "{}: {} % {}, {}; A {a}, B {b} {}, {} pairs",
        line.name,
        change(effect.change_pct),
        interval(effect.ci95_pct),
        effect.verdict.as_str(),
        effect.unit,
        effect.n_pairs,
    );
    svg.mark((axis.at(effect.change_pct), y), mark, class, &tip);
}

/// Returns the CSS class and the mark of a verdict.
pub(super) fn marked(verdict: Verdict) -> (&'static str, Mark) {
    match verdict {
        Verdict::Better => ("better", Mark::Disc),
        Verdict::Worse => ("worse", Mark::Diamond),
        Verdict::Same => ("same", Mark::Ring),
        Verdict::Unclear => ("unclear", Mark::Cross),
    }
}

/// Most runs that are drawn: the newest ones.
const RUNS_MAX: usize = 40;

/// Most cells that have a chart.
const CELLS_MAX: usize = 12;

/// Returns the headline's change in each run, a chart for each cell that the first run has. A run
/// that cannot be compared with the newest one has a mark, and the caption has the reason.
pub(super) fn section(told: &[Run]) -> String {
    let Some((first, [_, ..])) = told.split_first() else { return String::new() };
    let view = View::new(first);
    let Some(metric) = view.headline() else { return String::new() };
    let mut runs: Vec<&Run> = told.iter().collect();
    runs.sort_by(|a, b| a.run.started.cmp(&b.run.started));
    let older = runs.len().saturating_sub(RUNS_MAX);
    runs.drain(..older);
    let experiments: Vec<Option<Experiment>> = runs.iter().copied().map(experiment_of).collect();
    let known: Vec<Known<'_>> =
        runs.iter().copied().zip(experiments.iter().map(Option::as_ref)).collect();
    let Some(&newest) = known.last() else { return String::new() };
    let chart = |(name, cell): (&str, &CellRecord)| {
        let mut reasons: Vec<String> = Vec::new();
        let lines: Vec<Line<'_>> = known
            .iter()
            .map(|&known| {
                let same = known.0.cells.iter().find(|other| other.at == cell.at);
                let missing = same.map_or("not in this run", |_| "no value in this run");
                let effect = match same.and_then(|cell| cell.metrics.get(&metric.name)) {
                    Some(effect) if effect.is_of_nothing() => Err("counted nothing".to_owned()),
                    effect => effect.ok_or_else(|| missing.to_owned()),
                };
                let why = effect.as_ref().ok().and_then(|_| remark(newest, known, cell, metric));
                let mark = if why.is_some() { " *" } else { "" };
                if let Some(why) = why.filter(|why| !reasons.contains(why)) {
                    reasons.push(why);
                }
                Line { name: label(known.0) + mark, effect }
            })
            .collect();
        let at = if name.is_empty() { String::new() } else { format!(", {name}") };
        let desc = format!("{}{at}: change in each run, the oldest first.", metric.label);
        let caption = format!("{desc}{}{}", left_out(older), marks(&reasons));
        figure_of(&plot(&format!("Trend{at}"), &desc, &lines), &caption)
    };
    let measured: Vec<_> =
        view.named().filter(|(_, cell)| cell.metrics.contains_key(&metric.name)).collect();
    let cells = more(measured.len().saturating_sub(CELLS_MAX), ["cell", "cells"]);
    let charts: String = measured.into_iter().take(CELLS_MAX).map(chart).collect();
    format!("<div class=\"charts\">{charts}</div>\n{cells}{}", values(&runs, &metric.name))
}

/// Returns the reason why the change of `metric` in `cell` of a run cannot be compared with that of
/// the newest run; `None` if it can.
fn remark(
    newest: Known<'_>,
    known: Known<'_>,
    cell: &CellRecord,
    metric: &Shown,
) -> Option<String> {
    let why = unlike(newest, known, &cell.at, metric.clock);
    if std::ptr::eq(known.0, newest.0) {
        return why.map(|why| format!("in the newest run {why}"));
    }
    let formula = another_formula(newest, known, &metric.name).map(str::to_owned);
    let all: Vec<String> = formula.into_iter().chain(why).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Returns the difference between the ways in which two runs compute a metric; `None` if there is
/// none, or if a run does not say how.
fn another_formula(newest: Known<'_>, known: Known<'_>, name: &str) -> Option<&'static str> {
    let [is, was] =
        [newest.1?, known.1?].map(|one| one.metrics.iter().find(|metric| metric.name == name));
    let (is, was) = is.zip(was)?;
    if is.formula != was.formula {
        return Some("another formula");
    }
    (is.clock != was.clock).then_some("another clock")
}

/// Returns a sentence on the mark of runs, with its reasons; empty if no run is marked.
fn marks(reasons: &[String]) -> String {
    match reasons {
        [] => String::new(),
        reasons => format!(" * Not comparable: {}.", reasons.join(", or ")),
    }
}

/// Returns a sentence on the runs that are older than those drawn; empty if there are none.
fn left_out(older: usize) -> String {
    match older {
        0 => String::new(),
        1 => " One older run is left out.".into(),
        n => format!(" {n} older runs are left out."),
    }
}

/// Returns the experiment of a run; `None` if its file is not available.
fn experiment_of(run: &Run) -> Option<Experiment> {
    Experiment::parse(run.run.config_toml.as_deref()?, &run.run.id).ok()
}

/// Returns the values of the changed side in each of the drawn runs; runs with another formula for
/// the metric are left out.
fn values(runs: &[&Run], metric: &str) -> String {
    let trends = match trends_of(runs) {
        Ok(trends) => trends,
        Err(error) => {
            return format!("<p class=\"unit\">Values are not shown: {}</p>\n", escape(&error.why));
        }
    };
    let columns = tables::columns("cell, run, started, value=B, low=from, high=to, remark");
    let mut table =
        Table::new("trend", "The changed side in each run, with its 95 % interval", &columns);
    for trend in trends.iter().filter(|trend| trend.metric == metric).take(CELLS_MAX) {
        for point in &trend.points {
            let names =
                [&trend.cell, &point.label, &point.started].map(|text| Cell::text(short(text)));
            let figures = [point.value, point.lo, point.hi].map(number::cell);
            let remark = point.remark.as_ref().map(|why| Cell::text(short(why)));
            table.row(names.into_iter().chain(figures).chain(remark).collect());
        }
        table.title = format!(
            "{} of B in each run, in {}, with its 95 % interval",
            short(metric),
            short(&trend.unit)
        );
    }
    table.html()
}

/// Returns the label of a run: its version, its commit if known, and its start time: `0.1.0
/// 84064f3c 2026-11-21 10:15`.
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
    use crate::analysis::analyse;
    use crate::analysis::testing::{experiment, pair, run_of};
    use serde_json::json;

    #[test]
    fn a_long_trend_has_its_newest_runs_and_one_of_another_machine_is_marked() {
        let mut runs: Vec<Run> = (10..52).map(run).collect();
        runs[40].env = json!({"kernel": "6.1"});
        runs.reverse();
        let page = section(&runs);
        assert!(page.contains("2 older runs are left out."), "{page}");
        assert!(page.contains("build51") && page.contains("build12"), "{page}");
        assert!(!page.contains("build11"), "{page}");
        assert!(page.contains("build50 2026-01-50 *"), "{page}");
        assert!(!page.contains("build49 2026-01-49 *"), "{page}");
        assert!(page.contains("* Not comparable: another kernel."), "{page}");
        assert_eq!(left_out(1), " One older run is left out.");
    }

    #[test]
    fn a_disturbed_newest_run_is_marked_with_a_reason_of_its_own() {
        let mut runs = [run(10), run(11)];
        runs[1].cells[0].pairs.iter_mut().skip(7).for_each(|pair| pair.cost_accepted = false);
        let page = section(&runs);
        assert!(page.contains("build11 2026-01-11 *"), "{page}");
        let why = "* Not comparable: in the newest run most pairs were disturbed.";
        assert!(page.contains(why), "{page}");
    }

    #[test]
    fn a_run_with_another_formula_or_clock_is_marked() {
        let toml = experiment().toml;
        for (from, to, why) in [
            ("value = \"packets\"", "value = \"2 * packets\"", "another formula"),
            ("clock = \"cost\"", "clock = \"count\"", "another clock"),
        ] {
            let mut runs = [run(10), run(11)];
            runs[0].run.config_toml = Some(toml.replace(from, to));
            runs[1].run.config_toml = Some(toml.clone());
            for run in &mut runs {
                let toml = run.run.config_toml.clone().unwrap();
                analyse(&Experiment::parse(&toml, "pool.toml").unwrap(), run);
            }
            let page = section(&runs);
            assert!(page.contains("build10 2026-01-10 *"), "{page}");
            assert!(page.contains(&format!("* Not comparable: {why}.")), "{page}");
        }
    }

    #[test]
    fn table_of_a_trend_has_no_run_that_the_charts_leave_out() {
        let toml = experiment().toml;
        let known = Experiment::parse(&toml, "pool.toml").unwrap();
        let mut runs: Vec<Run> = (10..52).map(run).collect();
        for run in &mut runs {
            run.run.config_toml = Some(toml.clone());
            analyse(&known, run);
        }
        // This run has no point, so that there are not more points than runs drawn.
        runs[30].cells[0].metrics.clear();
        let page = section(&runs);
        assert!(page.contains("m of B in each run"), "{page}");
        assert!(page.contains("build51") && !page.contains("build11"), "{page}");
    }

    #[test]
    fn a_run_that_counted_nothing_has_neither_a_change_nor_a_value_in_a_trend() {
        let toml = experiment().toml.replace("clock = \"cost\"", "clock = \"count\"");
        let known = Experiment::parse(&toml, "pool.toml").unwrap();
        let mut runs = [run(10), run(11), run(12)];
        for pair in &mut runs[1].cells[0].pairs {
            let windows = [Some(&mut pair.a), Some(&mut pair.b), pair.control.as_mut()];
            windows.into_iter().flatten().for_each(|window| window.packets = 0);
        }
        for run in &mut runs {
            run.run.config_toml = Some(toml.clone());
            analyse(&known, run);
        }
        let page = section(&runs);
        assert!(page.contains("– counted nothing"), "{page}");
        let has_value = |n: usize| page.contains(&format!("<td class=\"t\">build{n}</td>"));
        assert_eq!([10, 11, 12].map(has_value), [true, false, true], "{page}");
    }

    /// Returns a run of the version `buildN`, started on the `N`th day.
    fn run(n: usize) -> Run {
        let mut run = run_of(&[vec![pair(100.0, 90.0, 100.0); 15]]);
        run.run.started = format!("2026-01-{n}");
        run.run.tool.insert("version".into(), format!("build{n}"));
        analyse(&experiment(), &mut run);
        run
    }

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
