//! The forest plot: a change in per cent and where it lies, a row for each cell.

use linerate_show::number::{change, interval, range};
use linerate_show::svg::{Axis, Mark, Svg, head_height};

use super::figure_of;
use crate::record::{Effect, Status, Verdict};
use crate::report::metric::Shown;
use crate::report::reason::reason;
use crate::report::tables;
use crate::report::view::View;

/// A row of it.
pub(super) struct Line<'a> {
    /// The name of the cell or group.
    pub name: String,
    /// The effect, or the reason that there is none.
    pub effect: Result<&'a Effect, String>,
}

/// Rows that are drawn; the table has them all.
const LINES_MAX: usize = 60;

/// One metric in every cell.
pub(super) fn metric(view: &View<'_>, metric: &Shown) -> String {
    let lines: Vec<Line<'_>> = view
        .named()
        // What cannot be run here at all is said once, above.
        .filter(|(_, cell)| cell.status != Status::Unsupported)
        .map(|(name, cell)| {
            let reason = || reason(view, cell).map_or("not measured here", |r| r.short).to_owned();
            let effect = cell.metrics.get(&metric.name).ok_or_else(reason);
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
    let mut svg = Svg::new(title, desc);
    let heights: Vec<f64> = lines.iter().map(|line| height(line)).collect();
    let bottom = 6.0 + heights.iter().sum::<f64>();
    svg.grid_x(&axis, (6.0, bottom));
    let mut top = 6.0;
    for (line, high) in lines.iter().zip(heights) {
        draw(&mut svg, &axis, line, (top, top + high));
        top += high;
    }
    svg.finish(bottom + 22.0)
}

/// A row's head, and its mark below.
fn height(line: &Line<'_>) -> f64 {
    head_height(&line.name, &said(line)) + 24.0
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

fn draw(svg: &mut Svg, axis: &Axis, line: &Line<'_>, (top, bottom): (f64, f64)) {
    svg.head(top, &line.name, &said(line));
    let Ok(effect) = &line.effect else { return };
    let y = bottom - 15.0;
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
    let tip = format!(
        "{}: {} % {}, {}; A {}, B {} {}, {} pairs",
        line.name,
        change(effect.change_pct),
        interval(effect.ci95_pct),
        effect.verdict.as_str(),
        tables::censored(effect.a, effect),
        tables::censored(effect.b, effect),
        effect.unit,
        effect.n_pairs,
    );
    svg.mark((axis.at(effect.change_pct), y), mark, class, &tip);
}

/// Class and form of a verdict.
pub(super) fn marked(verdict: Verdict) -> (&'static str, Mark) {
    match verdict {
        Verdict::Better => ("better", Mark::Disc),
        Verdict::Worse => ("worse", Mark::Diamond),
        Verdict::Same => ("same", Mark::Ring),
        Verdict::Unclear => ("unclear", Mark::Cross),
    }
}
