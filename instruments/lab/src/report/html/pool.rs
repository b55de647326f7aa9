//! The hot list: its length, its hit rate, and drops.

use linerate_show::number::{self, count, figure};
use linerate_show::svg::{Axis, Svg, head_height};
use linerate_show::table::{Cell, Column, Table};

use super::figure_of;
use crate::experiment::Experiment;
use crate::record::CellRecord;
use crate::report::tables;
use crate::report::view::Side;
use crate::report::view::View;
use crate::settings::Settings;

/// A bar, and what is left free below it.
const BAR: (f64, f64) = (16.0, 8.0);
const ROWS_MAX: usize = 60;

/// A side of a cell.
struct Bar {
    name: String,
    hit_pct: f64,
    dropped: u64,
    class: &'static str,
}

/// Bars of hits for each cell and side, by the list's length; nothing if hits were not counted.
pub(super) fn hot_list(view: &View<'_>) -> String {
    let mut bars: Vec<(u64, Bar)> = Vec::new();
    // Factors that are the same everywhere would take the room of those that are not.
    let all: Vec<&str> = view.cells.iter().map(String::as_str).collect();
    let (names, shared) = tables::apart(&all);
    for (name, cell) in names.iter().zip(&view.run.cells) {
        bars.extend(of_cell(view, name, cell));
    }
    bars.sort_by_key(|(length, _)| *length);
    bars.truncate(ROWS_MAX);
    if bars.is_empty() {
        return String::new();
    }
    let at = if shared.is_empty() { shared } else { format!(" All at {shared}.") };
    let desc = format!(
        "Allocations that the hot list served, in per cent of all, by the list's length; and what was \
         dropped in the same cell.{at}"
    );
    let mut svg = Svg::new("Hot list", &desc);
    let axis = Axis::over([0.0, 100.0], 4.0, " %");
    let said = |bar: &Bar| format!("{} %, {} dropped", figure(bar.hit_pct), count(bar.dropped));
    let heads: Vec<f64> = bars.iter().map(|(_, bar)| head_height(&bar.name, &said(bar))).collect();
    let bottom = 6.0 + heads.iter().map(|head| head + BAR.0 + BAR.1).sum::<f64>();
    svg.grid_x(&axis, (6.0, bottom));
    let mut top = 6.0;
    for ((_, bar), head) in bars.iter().zip(heads) {
        svg.head(top, &bar.name, &said(bar));
        top += head;
        let tip = format!("{}: {}", bar.name, said(bar));
        svg.bar((axis.at(0.0), axis.at(bar.hit_pct)), (top, top + BAR.0), bar.class, &tip);
        top += BAR.0 + BAR.1;
    }
    let chart = figure_of(&svg.finish(bottom + 22.0), &desc);
    format!("<h3>Hot list: length, hits, drops</h3>\n{chart}{}", figures(&bars).html())
}

fn figures(bars: &[(u64, Bar)]) -> Table {
    let columns = [
        Column::new("side", "side and cell", ""),
        Column::new("hits_pct", "hits", "%"),
        Column::new("dropped", "dropped", "packets"),
    ];
    let mut table = Table::new("hot_list", "Hot list", &columns);
    for (_, bar) in bars {
        let hits = number::cell(bar.hit_pct);
        table.row(vec![Cell::text(&*bar.name), hits, Cell::Count(bar.dropped)]);
    }
    table
}

fn of_cell(view: &View<'_>, name: &str, cell: &CellRecord) -> Vec<(u64, Bar)> {
    let lengths = lengths(view.experiment.as_ref(), cell);
    let ledgers = [(Side::A, &cell.ledger.a, "side-a"), (Side::B, &cell.ledger.b, "side-b")];
    let mut bars = Vec::new();
    for ((named, length), (side, ledger, class)) in
        view.sides().into_iter().zip(lengths).zip(ledgers)
    {
        let (hits, allocs) = (side.sum(cell, "hits"), side.sum(cell, "allocs"));
        let Some((hits, allocs)) = hits.zip(allocs).filter(|(_, allocs)| *allocs > 0.0) else {
            continue;
        };
        let long = length.map_or(String::new(), |n| format!("{} · ", count(n)));
        let name = format!("{long}{named} {name}").trim_end().to_owned();
        let hit_pct = 100.0 * hits / allocs;
        bars.push((
            length.unwrap_or(0),
            Bar { name, hit_pct, dropped: tables::dropped(ledger), class },
        ));
    }
    bars
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
