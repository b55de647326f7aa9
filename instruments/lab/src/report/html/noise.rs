//! Differences between identical code, and every pair in order.

use linerate_show::number::{self, change, interval};
use linerate_show::svg::{Anchor, Axis, Svg};
use linerate_show::table::{Cell, Table, quoted};

use super::{figure_of, more};
use crate::record::CellRecord;
use crate::report::tables;
use crate::report::view::View;
use crate::report::view::{Ratio, Shown};

/// Most points of a chart, and most points of all charts of a page together.
const POINTS_MAX: usize = 2000;
const POINTS_IN_ALL: usize = 20_000;

/// Most cells that are drawn.
const CELLS_MAX: usize = 60;

/// Most pairs of a chart that its table lists.
const LISTED_MAX: usize = 60;

/// Number of pairs in a running median.
const RUNNING: usize = 7;

const NO_INTERVAL: &str = "too few pairs, or the experiment's file is not there to say";

/// Returns the strip: the control's change of every pair, a row for each cell.
pub(super) fn strip(view: &View<'_>, metric: &Shown) -> String {
    let mut rows: Vec<(&str, &CellRecord, Vec<Ratio>)> = view
        .named()
        .map(|(name, cell)| (name, cell, metric.control_ratios(&cell.pairs)))
        .filter(|(_, _, ratios)| !ratios.is_empty())
        .collect();
    let left_out = more(rows.len().saturating_sub(CELLS_MAX), ["cell", "cells"]);
    rows.truncate(CELLS_MAX);
    if rows.is_empty() {
        let mut pairs = view.run.cells.iter().flat_map(|cell| &cell.pairs);
        return match pairs.any(|pair| pair.control.is_some()) {
            true => "<p>No pair has a ratio: nothing was counted.</p>".into(),
            false => "<p>No control was measured.</p>".into(),
        };
    }
    let all = || rows.iter().flat_map(|(_, _, ratios)| ratios);
    let (low, high) = bounds(all());
    let axis = Axis::over([low, high, 0.0], 4.0, " %").signed();
    let desc = format!(
        "{}: the first side against itself, set up a second time; a stroke for each pair.",
        metric.basis()
    );
    let said = |cell: &CellRecord| match metric.aa_pct(cell) {
        Some((median, low, high)) => format!("{} % {}", change(median), interval((low, high))),
        None => String::new(),
    };
    let points = points_each(rows.len());
    let head = |(name, cell, _): &(&str, &CellRecord, Vec<Ratio>)| ((*name).to_owned(), said(cell));
    let title = ("A/A strip", desc.as_str());
    let chart = super::rows(title, Some(&axis), 28.0, &rows, head, |svg, (_, cell, ratios), y| {
        if let Some((median, low, high)) = metric.aa_pct(cell) {
            svg.bar((axis.at(low), axis.at(high)), (y, y + 22.0), "floor", "its interval");
            svg.line((axis.at(median), y - 1.0), (axis.at(median), y + 23.0), "median");
        }
        for ratio in thinned(ratios, points) {
            let x = axis.at(ratio.change_pct);
            svg.line((x, y + 2.0), (x, y + 20.0), ratio.class());
        }
    });
    let chart = figure_of(&chart, &format!("{desc} {}", beyond(all(), &axis)));
    chart + &strip_table(metric, &rows, points) + &left_out
}

/// Builds the table of the strip's figures; the strokes themselves are in its file.
fn strip_table(metric: &Shown, rows: &[(&str, &CellRecord, Vec<Ratio>)], points: usize) -> String {
    let columns = tables::columns(
        "cell, median_pct=median [%], ci95_pct=95 % CI [%], admitted=admitted [pairs], \
         elsewhere=other distance [pairs], rejected=rejected [pairs]",
    );
    let title = format!("{}: the first side against itself", metric.basis());
    let mut table = Table::new("aa_strip", title, &columns);
    let mut csv = format!("cell,{HEAD}");
    for (name, cell, ratios) in rows {
        let (median, ends) = match metric.aa_pct(cell) {
            Some((median, low, high)) => {
                (number::change_cell(median), Cell::Text(interval((low, high))))
            }
            None => (Cell::Absent(NO_INTERVAL), Cell::Absent(NO_INTERVAL)),
        };
        let counts = counts(ratios).map(|n| Cell::Count(n as u64));
        table.row([Cell::text(*name), median, ends].into_iter().chain(counts).collect());
        let name = quoted(name);
        csv.extend(thinned(ratios, points).map(|ratio| format!("{name},{}", line_of(ratio))));
    }
    table.html_with(&csv)
}

/// Returns the numbers of pairs that are in the figures, that were admitted with their CPUs at
/// another distance, and that were rejected.
fn counts(ratios: &[Ratio]) -> [usize; 3] {
    let accepted = ratios.iter().filter(|ratio| ratio.accepted).count();
    let elsewhere = ratios.iter().filter(|ratio| ratio.elsewhere).count();
    [accepted, elsewhere, ratios.len() - accepted - elsewhere]
}

/// The columns of [`line_of`].
const HEAD: &str = "pair,change_pct,admitted,other_distance\n";

/// Formats a pair as a line of the CSV file.
fn line_of(ratio: &Ratio) -> String {
    let Ratio { pair, change_pct, accepted, elsewhere } = ratio;
    format!("{},{change_pct:.4},{accepted},{elsewhere}\n", pair + 1)
}

/// Returns the run charts: the change of every pair over its number, one chart for each cell.
pub(super) fn run_charts(view: &View<'_>, metric: &Shown) -> String {
    let drawn = view.run.cells.len().min(CELLS_MAX);
    let charts: String = view
        .named()
        .take(CELLS_MAX)
        .map(|(name, cell)| {
            let ratios = metric.ratios(&cell.pairs);
            if ratios.is_empty() {
                String::new()
            } else {
                chart(metric, name, cell, &ratios, points_each(drawn))
            }
        })
        .collect();
    let left_out = more(view.run.cells.len() - drawn, ["cell", "cells"]);
    match charts.is_empty() {
        true => charts,
        false => format!("<div class=\"charts\">{charts}</div>\n{left_out}"),
    }
}

fn chart(metric: &Shown, name: &str, cell: &CellRecord, ratios: &[Ratio], points: usize) -> String {
    const TOP: f64 = 14.0;
    const BOTTOM: f64 = 150.0;
    let (low, high) = bounds(ratios);
    let axis = Axis::over([low, high], 3.0, " %").signed();
    let y = |pct: f64| BOTTOM + (TOP - BOTTOM) * axis.at(pct);
    let last = cell.pairs.len().max(2) - 1;
    let x = |pair: usize| 0.02 + 0.96 * pair as f64 / last as f64;
    let title = if name.is_empty() { "Every pair" } else { name };
    let desc = format!("{}: change of each pair, in the order in which they ran.", metric.basis());
    let mut svg = Svg::new(&format!("Run chart, {title}"), &desc);
    if let Some((low, high)) = metric.interval_pct(cell) {
        svg.bar((0.0, 1.0), (y(low), y(high)), "interval", "95 % interval of the median");
    }
    svg.grid_y(&axis, (TOP, BOTTOM));
    for [from, to] in running_median(ratios, points / 4) {
        svg.line((x(from.0), y(from.1)), (x(to.0), y(to.1)), "running");
    }
    for ratio in thinned(ratios, points) {
        svg.dot((x(ratio.pair), y(ratio.change_pct)), 3.0, ratio.class());
    }
    svg.label((0.0, BOTTOM + 15.0), 0.0, Anchor::Start, "tick", "pair 1");
    svg.label((1.0, BOTTOM + 15.0), 0.0, Anchor::End, "tick", &cell.pairs.len().to_string());
    let [admitted, elsewhere, rejected] = counts(ratios);
    let elsewhere = match elsewhere {
        0 => String::new(),
        n => format!("{n} with the CPUs at another distance, "),
    };
    let caption = format!(
        "{title}: {}; {admitted} pairs admitted, {elsewhere}{rejected} not. {}",
        metric.basis(),
        beyond(ratios, &axis)
    );
    let chart = figure_of(&svg.finish(BOTTOM + 22.0), &caption);
    format!("<div>{chart}{}</div>", pairs_table(title, ratios, points))
}

/// Returns the table of pairs, folded; the CSV file has every pair that is drawn.
fn pairs_table(title: &str, ratios: &[Ratio], points: usize) -> String {
    let columns = tables::columns("pair, change_pct=change [%], admitted");
    let mut table = Table::new("pairs", format!("{title}: change of each pair"), &columns);
    for ratio in ratios.iter().take(LISTED_MAX) {
        let said = Cell::text(match (ratio.accepted, ratio.elsewhere) {
            (true, _) => "yes",
            (false, true) => "other distance",
            (false, false) => "no",
        });
        table.row(vec![
            Cell::text((ratio.pair + 1).to_string()),
            number::change_cell(ratio.change_pct),
            said,
        ]);
    }
    if ratios.len() > LISTED_MAX {
        table.note("the pairs after these are in the file");
    }
    let lines: String = thinned(ratios, points).map(line_of).collect();
    let csv = format!("{HEAD}{lines}");
    format!("<details><summary>Table</summary>{}</details>", table.html_with(&csv))
}

/// Returns the range of the admitted ratios, extended to the other ratios if the plot stays
/// readable.
fn bounds<'r>(ratios: impl IntoIterator<Item = &'r Ratio>) -> (f64, f64) {
    let none = (f64::MAX, f64::MIN);
    let wider = |(low, high): (f64, f64), x: f64| (low.min(x), high.max(x));
    let (mut admitted, mut all) = (none, none);
    for ratio in ratios {
        all = wider(all, ratio.change_pct);
        if ratio.accepted {
            admitted = wider(admitted, ratio.change_pct);
        }
    }
    if admitted.0 > admitted.1 {
        return all;
    }
    let span = (admitted.1 - admitted.0).max(0.1);
    (all.0.max(admitted.0 - span), all.1.min(admitted.1 + span))
}

fn beyond<'r>(ratios: impl IntoIterator<Item = &'r Ratio>, axis: &Axis) -> String {
    match ratios.into_iter().filter(|ratio| !axis.holds(ratio.change_pct)).count() {
        0 => String::new(),
        1 => "One pair lies beyond the end, and is drawn there.".into(),
        n => format!("{n} pairs lie beyond the ends, and are drawn there."),
    }
}

fn points_each(charts: usize) -> usize {
    (POINTS_IN_ALL / charts.max(1)).min(POINTS_MAX)
}

/// Returns at most `points` ratios, evenly spread.
fn thinned(ratios: &[Ratio], points: usize) -> impl Iterator<Item = &Ratio> {
    ratios.iter().step_by(ratios.len().div_ceil(points.max(1)).max(1))
}

/// Returns the median of each admitted pair and its neighbours, as the pieces of a line.
fn running_median(ratios: &[Ratio], points: usize) -> Vec<[(usize, f64); 2]> {
    let admitted: Vec<&Ratio> = ratios.iter().filter(|ratio| ratio.accepted).collect();
    let middle = |window: &[&Ratio]| {
        let mut sorted: Vec<f64> = window.iter().map(|ratio| ratio.change_pct).collect();
        sorted.sort_by(f64::total_cmp);
        let at = window.get(window.len() / 2)?.pair;
        Some((at, *sorted.get(sorted.len() / 2)?))
    };
    let medians: Vec<(usize, f64)> = admitted.windows(RUNNING).filter_map(middle).collect();
    let step = medians.len().div_ceil(points.max(1)).max(1);
    let few: Vec<(usize, f64)> = medians.into_iter().step_by(step).collect();
    few.windows(2).filter_map(|two| two.try_into().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratios(changes: &[(f64, bool)]) -> Vec<Ratio> {
        let each = changes.iter().enumerate();
        let ratio = |(pair, &(change_pct, accepted))| {
            let elsewhere = false;
            Ratio { pair, change_pct, accepted, elsewhere }
        };
        each.map(ratio).collect()
    }

    #[test]
    fn a_rejected_pair_cannot_squeeze_the_chart() {
        let (low, high) = bounds(&ratios(&[(-52.0, true), (-50.0, true), (6500.0, false)]));
        assert_eq!((low, high), (-52.0, -48.0));
        assert_eq!(bounds(&ratios(&[(3.0, false), (9.0, false)])), (3.0, 9.0));
    }

    #[test]
    fn a_running_median_does_not_follow_one_pair() {
        let mut changes = vec![(1.0, true); 15];
        changes[7] = (90.0, true);
        let line = running_median(&ratios(&changes), 500);
        assert!(line.iter().flatten().all(|(_, pct)| *pct == 1.0));
        assert_eq!(line.len(), 15 - RUNNING);
    }

    #[test]
    fn pair_at_another_distance_of_the_cpus_is_neither_admitted_nor_rejected() {
        let mut three = ratios(&[(1.0, true), (2.0, false), (3.0, false)]);
        three[1].elsewhere = true;
        assert_eq!(counts(&three), [1, 1, 1]);
        let classes: Vec<&str> = three.iter().map(Ratio::class).collect();
        assert_eq!(classes, ["pair", "elsewhere", "rejected"]);
        assert_eq!(line_of(&three[1]), "2,2.0000,false,true\n");
    }
}
