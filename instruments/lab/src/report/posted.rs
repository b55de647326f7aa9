//! Results in the layout of the post that an experiment reproduces, so that both can be read side by side.
//!
//! Post 001 has a row for each load of the link, and a column for each of two modes. A run of ours has such
//! a table for every level of the other factors, and what the post leaves out beside it: what packets paid.

use linerate_seeds::in_the_layout_of_001;
use linerate_show::table::{Cell, Table};

use super::tables;
use super::view::View;
use crate::record::CellRecord;

/// The factor whose levels are the rows.
const LOAD: &str = "load";
/// Part of what was due that has to arrive for a load to be reached, in per cent.
const REACHED_PCT: f64 = 98.0;

/// A table in the post's layout, and what stands beside it.
pub(super) struct Posted {
    /// The levels of the other factors, as `port=xdp, mode=fixed`.
    pub title: String,
    /// The post's columns.
    pub text: String,
    /// The loads that were reached, the latency and the CPU time of others.
    pub beside: Table,
}

/// Returns the tables of a run that reproduces post 001; none of another.
pub(super) fn of(view: &View<'_>) -> Vec<Posted> {
    if view.run.experiment.seed_post != "001" {
        return Vec::new();
    }
    let mut groups: Vec<(String, Vec<(&str, &CellRecord)>)> = Vec::new();
    for (_, cell) in view.told() {
        let Some(load) = cell.at.get(LOAD) else { continue };
        let others = cell.at.iter().filter(|(factor, _)| *factor != LOAD);
        let others: Vec<String> = others.map(|(name, level)| format!("{name}={level}")).collect();
        let title = others.join(", ");
        match groups.iter_mut().find(|(known, _)| *known == title) {
            Some((_, cells)) => cells.push((load, cell)),
            None => groups.push((title, vec![(load, cell)])),
        }
    }
    groups.into_iter().map(|(title, cells)| posted(title, &cells)).collect()
}

fn posted(title: String, cells: &[(&str, &CellRecord)]) -> Posted {
    let row = |(load, cell): &(&str, &CellRecord)| {
        let [packets, cpu] = ["packets_per_irq", "cpu_pct"].map(|metric| both(cell, metric));
        let [a, b] = packets;
        let [c, d] = cpu;
        [(*load).to_owned(), a, b, c, d]
    };
    Posted { title, text: in_the_layout_of_001(cells.iter().map(row)), beside: beside(cells) }
}

/// The values of a metric on both sides, as the post prints them.
fn both(cell: &CellRecord, metric: &str) -> [String; 2] {
    let effect = cell.metrics.get(metric);
    let [a, b] = reached(cell);
    let text = |reached: bool, value: Option<f64>| match (reached, value) {
        (false, _) => "-".to_owned(),
        (true, value) => value.map_or("n/a".to_owned(), |value| format!("{value:.1}")),
    };
    [text(a, effect.map(|effect| effect.a)), text(b, effect.map(|effect| effect.b))]
}

/// Returns true for each side that reached the load, as far as is known.
fn reached(cell: &CellRecord) -> [bool; 2] {
    let achieved = cell.metrics.get("achieved_pct");
    achieved.map_or([true; 2], |effect| [effect.a, effect.b].map(|pct| pct >= REACHED_PCT))
}

/// The figures that the post does not have.
fn beside(cells: &[(&str, &CellRecord)]) -> Table {
    let columns = tables::columns(
        "load=load [%], a_achieved=reached A [%], b_achieved=reached B [%], a_p50=p50 A [us], b_p50=p50 B [us], \
         a_p99=p99 A [us], b_p99=p99 B [us], a_all=all CPU A [%], b_all=all CPU B [%]",
    );
    let mut table = Table::new("beside", "", &columns);
    for (load, cell) in cells {
        let mut row = vec![Cell::text(*load)];
        for metric in ["achieved_pct", "receipt_p50_us", "receipt_p99_us", "all_cpu_pct"] {
            let effect = cell.metrics.get(metric);
            for value in [effect.map(|effect| effect.a), effect.map(|effect| effect.b)] {
                row.push(Cell::real(value, 1, "no undisturbed window has it"));
            }
        }
        table.row(row);
    }
    table
}
