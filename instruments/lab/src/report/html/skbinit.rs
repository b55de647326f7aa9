//! Figures in the post's layout: the cost of calls to allocate and to free for each worker, each
//! bar as thick as its number of calls; and the cost of a packet, in which every call has the same
//! weight.

use linerate_show::escape::escape;
use linerate_show::number::{self, count, figure};
use linerate_show::svg::Axis;
use linerate_show::table::{Cell, Table};

use super::{figure_of, more, rows};
use crate::record::CellRecord;
use crate::report::tables;
use crate::report::view::{Side, View, workers};

/// Most cells that are drawn.
const CELLS_MAX: usize = 24;

/// Most workers of a cell that are drawn.
const WORKERS_MAX: usize = 8;

/// Pixels of the thickest bar.
const THICK: f64 = 20.0;

const NOT_TIMED: &str = "its calls were not timed";

/// Calls of one kind by one worker, on both sides.
struct Group {
    name: String,
    /// Ticks and number of calls, of A and of B.
    sides: [Option<(f64, f64)>; 2],
}

/// Returns a chart and a table for each cell whose workers were timed separately; empty if none
/// was.
pub(super) fn calls(view: &View<'_>) -> String {
    let timed =
        |groups: &[Group]| groups.iter().any(|group| group.sides.iter().any(Option::is_some));
    let cells = view.named().map(|(name, cell)| (name, cell, groups(cell)));
    let cells: Vec<_> = cells.filter(|(_, _, groups)| timed(groups)).collect();
    let drawn = cells.iter().take(CELLS_MAX);
    let all: String = drawn.map(|(name, cell, groups)| one(view, name, cell, groups)).collect();
    let left_out = more(cells.len().saturating_sub(CELLS_MAX), ["cell", "cells"]);
    if all.is_empty() {
        all
    } else {
        format!("<h3>Allocate and free, worker by worker</h3>\n{all}{left_out}")
    }
}

fn one(view: &View<'_>, name: &str, cell: &CellRecord, groups: &[Group]) -> String {
    let at = if name.is_empty() { String::new() } else { format!(", {name}") };
    let desc = format!(
        "Ticks of a call{at}; a bar is as thick as its calls were many. A packet is allocated once \
         and freed once, wherever that is."
    );
    let [a, b] = view.sides();
    let legend = format!(
        "<p class=\"legend\"><span class=\"key\"><i class=\"side-a\"></i>A {}</span> \
         <span class=\"key\"><i class=\"side-b\"></i>B {}</span></p>",
        escape(&a),
        escape(&b)
    );
    let chart = figure_of(&bars(groups, &desc), &desc);
    let table = figures(cell, groups, &format!("Ticks of a call{at}")).html();
    let left_out = workers(cell).len().saturating_sub(WORKERS_MAX);
    let left_out = more(left_out, ["worker", "workers"]);
    format!("<article>{legend}{chart}{table}{left_out}</article>\n")
}

fn groups(cell: &CellRecord) -> Vec<Group> {
    let mut groups = Vec::new();
    for (kind, ticks, calls) in
        [("allocate", "alloc_ticks", "allocs"), ("free", "free_ticks", "frees")]
    {
        for worker in workers(cell).into_iter().take(WORKERS_MAX) {
            let of = |side: Side| {
                let calls = side.sum(cell, &format!("{calls}_w{worker}"))?;
                let ticks = side.sum(cell, &format!("{ticks}_w{worker}"))?;
                (calls > 0.0).then_some((ticks, calls))
            };
            let name = format!("{kind}, worker {worker}");
            // Leave out a group without calls: a worker that only frees has no allocations.
            let sides = [of(Side::A), of(Side::B)];
            groups.extend(sides.iter().any(Option::is_some).then_some(Group { name, sides }));
        }
    }
    groups
}

fn bars(groups: &[Group], desc: &str) -> String {
    let known = || groups.iter().flat_map(|group| group.sides).flatten();
    let axis = Axis::over(known().map(|(ticks, calls)| ticks / calls).chain([0.0]), 4.0, "");
    let most = known().map(|(_, calls)| calls).fold(1.0, f64::max);
    let mean = |side: &Option<(f64, f64)>| {
        side.map_or("–".to_owned(), |(ticks, calls)| figure(ticks / calls))
    };
    let head = |group: &Group| {
        let [a, b] = &group.sides;
        (group.name.clone(), format!("{} → {}", mean(a), mean(b)))
    };
    let high = 4.0 + 2.0 * (THICK + 2.0);
    rows(("Ticks of a call", desc), Some(&axis), high, groups, head, |svg, group, top| {
        for (place, (side, class)) in group.sides.iter().zip(["side-a", "side-b"]).enumerate() {
            let Some((ticks, calls)) = side else { continue };
            let y = top + (THICK + 2.0) * place as f64;
            let high = (THICK * calls / most).max(1.5);
            let tip =
                format!("{}: {} ticks, {} calls", group.name, figure(ticks / calls), whole(*calls));
            svg.bar((axis.at(0.0), axis.at(ticks / calls)), (y, y + high), class, &tip);
        }
    })
}

fn figures(cell: &CellRecord, groups: &[Group], title: &str) -> Table {
    let columns = tables::columns(
        "what, a_ticks_per_call=A [ticks], b_ticks_per_call=B [ticks], change_pct=change [%], a_calls=calls A, b_calls=calls B",
    );
    let mut table = Table::new("calls", title, &columns);
    for group in groups {
        let [a, b] = group.sides.map(|side| side.map(|(ticks, calls)| ticks / calls));
        let calls = group.sides.map(|side| {
            side.map_or(Cell::Absent(NOT_TIMED), |(_, calls)| Cell::Count(calls as u64))
        });
        table.row(row(&group.name, a, b).into_iter().chain(calls).collect());
    }
    table.rows.push(linerate_show::table::Row::Rule);
    let averages = |side: Side| mean_of_averages(cell, side);
    table.row(row(
        "a packet, mean of the workers' averages, as in the post",
        averages(Side::A),
        averages(Side::B),
    ));
    let weighted = |side: Side| {
        let ticks = side.sum(cell, "alloc_ticks")? + side.sum(cell, "free_ticks")?;
        side.sum(cell, "allocs").filter(|calls| *calls > 0.0).map(|calls| ticks / calls)
    };
    table.row(row("a packet, every call weighing the same", weighted(Side::A), weighted(Side::B)));
    table
}

fn row(name: &str, a: Option<f64>, b: Option<f64>) -> Vec<Cell> {
    let known = |value: Option<f64>| value.map_or(Cell::Absent(NOT_TIMED), number::cell);
    let change = a.zip(b).map(|(a, b)| 100.0 * (b / a - 1.0));
    let change = change.map_or(Cell::Absent(NOT_TIMED), number::change_cell);
    vec![Cell::text(name), known(a), known(b), change]
}

/// Returns the cost of allocating and of freeing, each the mean of the workers' averages; `None`
/// unless every worker that called was timed.
fn mean_of_averages(cell: &CellRecord, side: Side) -> Option<f64> {
    let of = |ticks: &str, calls: &str| {
        let mut averages = Vec::new();
        for worker in workers(cell) {
            let calls = side.sum(cell, &format!("{calls}_w{worker}")).filter(|n| *n > 0.0);
            if let Some(calls) = calls {
                averages.push(side.sum(cell, &format!("{ticks}_w{worker}"))? / calls);
            }
        }
        linerate_seeds::stats::mean(&averages)
    };
    Some(of("alloc_ticks", "allocs")? + of("free_ticks", "frees")?)
}

fn whole(n: f64) -> String {
    // The conversion saturates; counts of a run are far smaller than `u64::MAX`.
    count(n as u64)
}
