//! The hot list: how long it was, how often it had what was asked for, and what was dropped.

use super::figure_of;
use super::forest::cut;
use crate::experiment::Experiment;
use crate::record::CellRecord;
use crate::report::figure::{count, figure};
use crate::report::svg::{Anchor, Axis, LETTERS, Svg};
use crate::report::tables;
use crate::report::view::{Shown, View};
use crate::settings::Settings;

const ROW: f64 = 44.0;
const ROWS_MAX: usize = 60;

/// A side of a cell.
struct Side {
    name: String,
    hit_pct: f64,
    dropped: u64,
    class: &'static str,
}

/// Bars of hits for each cell and side, by the list's length; nothing if hits were not measured.
pub(super) fn hot_list(view: &View<'_>) -> String {
    let Some(hits) = view.metrics.iter().find(|metric| is_hits(metric)) else {
        return String::new();
    };
    let mut sides: Vec<(u64, Side)> = Vec::new();
    for (name, cell) in view.named() {
        sides.extend(of_cell(view, hits, name, cell));
    }
    sides.sort_by_key(|(length, _)| *length);
    sides.truncate(ROWS_MAX);
    if sides.is_empty() {
        return String::new();
    }
    let desc = "Packets whose buffer the hot list had, in per cent of those asked for, by the list's \
                length; and what was dropped in the same cell.";
    let mut svg = Svg::new("Hot list", desc);
    let axis = Axis::over([0.0, 100.0], 4.0, " %");
    let bottom = 6.0 + ROW * sides.len() as f64;
    svg.grid_x(&axis, (6.0, bottom));
    for (i, (_, side)) in sides.iter().enumerate() {
        let top = 6.0 + ROW * i as f64;
        let said = format!("{} %, {} dropped", figure(side.hit_pct), count(side.dropped));
        let left = LETTERS.saturating_sub(said.chars().count() + 2);
        svg.label((0.0, top + 14.0), 0.0, Anchor::Start, "name", &cut(&side.name, left));
        svg.label((1.0, top + 14.0), 0.0, Anchor::End, "value", &said);
        let tip = format!("{}: {said}", side.name);
        svg.bar((axis.at(0.0), axis.at(side.hit_pct)), (top + 20.0, top + 36.0), side.class, &tip);
    }
    format!(
        "<h3>Hot list: length, hits, drops</h3>\n{}",
        figure_of(&svg.finish(bottom + 22.0), desc)
    )
}

fn is_hits(metric: &Shown) -> bool {
    metric.name.contains("hit") && metric.unit.starts_with('%')
}

fn of_cell(view: &View<'_>, hits: &Shown, name: &str, cell: &CellRecord) -> Vec<(u64, Side)> {
    let Some(effect) = cell.metrics.get(&hits.name) else { return Vec::new() };
    let lengths = lengths(view.experiment.as_ref(), cell);
    let sides = view.sides().into_iter().zip(lengths);
    let values = [(effect.a, &cell.ledger.a, "side-a"), (effect.b, &cell.ledger.b, "side-b")];
    sides
        .zip(values)
        .filter(|(_, (hit_pct, ..))| hit_pct.is_finite())
        .map(|((side, length), (hit_pct, ledger, class))| {
            let long = length.map_or(String::new(), |n| format!("{} · ", count(n)));
            let name = format!("{long}{side} {name}");
            let side = Side { name, hit_pct, dropped: tables::dropped(ledger), class };
            (length.unwrap_or(0), side)
        })
        .collect()
}

/// The lists' lengths that the experiment's file gives the cell's sides.
fn lengths(experiment: Option<&Experiment>, cell: &CellRecord) -> [Option<u64>; 2] {
    let is_it = |of: &&crate::experiment::Cell| {
        of.at.len() == cell.at.len()
            && of.at.iter().all(|(factor, level)| cell.at.get(factor) == Some(level))
    };
    let found = experiment.and_then(|experiment| experiment.cells.iter().find(is_it));
    let length = |settings: &Settings| match settings.get("hot_list")?.value {
        crate::settings::Value::Int(n) => u64::try_from(n).ok(),
        _ => None,
    };
    found.map_or([None; 2], |found| [length(&found.a), length(&found.b)])
}
