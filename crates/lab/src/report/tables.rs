//! A run's tables: the same for text and for HTML.

use std::collections::BTreeMap;

use super::figure::{self, change, figure, interval, range};
use super::view::{Shown, View, counts, short, shown, verdict};
use crate::record::{CellRecord, Effect, Ledger};
use crate::table::{Cell, Column, Table};

/// More cells than this make a table for each metric, fewer one for each cell.
const CELLS_A_TABLE_EACH: usize = 2;

/// Cells and metrics that are told; what is beyond stays in the document.
pub(super) const ROWS_MAX: usize = 400;

const NONE: &str = "the cell has no figures";

/// The effects: a table for each cell, or for each metric if the cells are many.
pub(super) fn effects(view: &View<'_>) -> Vec<Table> {
    if view.run.cells.len() <= CELLS_A_TABLE_EACH {
        return view.named().map(|(name, cell)| of_cell(view, name, cell)).collect();
    }
    view.metrics.iter().take(ROWS_MAX).map(|metric| of_metric(view, metric)).collect()
}

/// One metric in every cell.
pub(super) fn of_metric(view: &View<'_>, metric: &Shown) -> Table {
    let unit = if metric.unit.is_empty() { "no unit" } else { &metric.unit };
    let about = if metric.about.is_empty() { "" } else { ": " };
    let title = format!("{}, in {unit}{about}{}", metric.label, metric.about);
    let mut table = Table::new("effect", title, &columns("cell", "cell"));
    let names = aligned(&view.cells);
    for ((cell, name), plain) in view.run.cells.iter().zip(names).zip(&view.cells).take(ROWS_MAX) {
        table.row(effect_row(name, None, cell.metrics.get(&metric.name)));
        if let Some(reason) = view.reason(plain, cell) {
            table.note(format!("{plain}: {reason}"));
        }
    }
    expectations(view, std::slice::from_ref(metric), &mut table);
    for line in view.overall(&metric.name).take(ROWS_MAX) {
        let (sum, mean) = (change(line.sum_ratio_pct), change(line.geomean_pct));
        let group = short(&line.group);
        table.note(format!("{group}: sum {sum} %, geometric mean {mean} %  [{}]", counts(line)));
    }
    more(view.run.cells.len(), "cells", &mut table);
    table
}

/// Every metric of one cell.
pub(super) fn of_cell(view: &View<'_>, name: &str, cell: &CellRecord) -> Table {
    let title = if name.is_empty() { "Effects".into() } else { format!("Effects, {name}") };
    let mut table = Table::new("effects", title, &columns("metric", "metric"));
    for metric in view.metrics.iter().take(ROWS_MAX) {
        let effect = cell.metrics.get(&metric.name);
        table.row(effect_row(metric.label.clone(), Some(&metric.unit), effect));
    }
    if let Some(reason) = view.reason(name, cell) {
        table.note(reason);
    }
    expectations(view, &view.metrics, &mut table);
    more(view.metrics.len(), "metrics", &mut table);
    if let [_] = view.run.cells.as_slice() {
        return table;
    }
    for line in view.run.overall.iter().take(ROWS_MAX) {
        let (sum, mean) = (change(line.sum_ratio_pct), change(line.geomean_pct));
        let (metric, group) = (short(&line.metric), short(&line.group));
        let counts = counts(line);
        table.note(format!("{metric}, {group}: sum {sum} %, geometric mean {mean} %  [{counts}]"));
    }
    table
}

/// Where every packet went, side by side, a row for each cell and side.
pub(super) fn ledgers(view: &View<'_>) -> Table {
    let columns = [
        Column::new("cell", "cell", ""),
        Column::new("side", "side", ""),
        Column::new("offered", "offered", ""),
        Column::new("unsent", "unsent", ""),
        Column::new("received", "received", ""),
        Column::new("created", "created", ""),
        Column::new("sent", "sent", ""),
        Column::new("consumed", "consumed", ""),
        Column::new("dropped", "dropped", ""),
        Column::new("in_flight", "in flight", ""),
        Column::new("reordered", "reordered", ""),
        Column::new("duplicated", "duplicated", ""),
        Column::new("retransmitted", "sent again", ""),
        Column::new("balance", "balance", ""),
    ];
    let title =
        "Where every packet went: received + created = sent + consumed + dropped + in flight";
    let mut table = Table::new("ledger", title, &columns);
    let optional = |n: Option<u64>| n.map_or(Cell::Absent("not counted"), Cell::Count);
    for (name, cell) in view.named().take(ROWS_MAX) {
        for (side, ledger) in view.ledgers(cell) {
            table.row(vec![
                Cell::text(name),
                Cell::text(side),
                optional(ledger.offered),
                optional(ledger.unsent),
                Cell::Count(ledger.received),
                Cell::Count(ledger.created),
                Cell::Count(ledger.sent),
                Cell::Count(ledger.consumed),
                Cell::Count(dropped(ledger)),
                Cell::Count(ledger.in_flight),
                optional(ledger.reordered),
                optional(ledger.duplicated),
                optional(ledger.retransmitted),
                Cell::text(balance(ledger)),
            ]);
        }
    }
    more(view.run.cells.len(), "cells", &mut table);
    table
}

/// Drops by reason; `None` if nothing was dropped.
pub(super) fn drops(view: &View<'_>) -> Option<Table> {
    let columns = [
        Column::new("cell", "cell", ""),
        Column::new("reason", "reason", ""),
        Column::new("a_packets", "A", "packets"),
        Column::new("b_packets", "B", "packets"),
    ];
    let mut table = Table::new("drops", "Dropped, by reason", &columns);
    for (name, cell) in view.named().take(ROWS_MAX) {
        let (a, b) = (&cell.ledger.a.dropped, &cell.ledger.b.dropped);
        let reasons: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for reason in reasons.into_iter().take(ROWS_MAX) {
            let of = |side: &BTreeMap<String, u64>| side.get(reason).copied().unwrap_or(0);
            let counts = [Cell::Count(of(a)), Cell::Count(of(b))];
            table.row(
                [Cell::text(name), Cell::text(short(reason))].into_iter().chain(counts).collect(),
            );
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Figures of whole sides: memory held, packets outstanding; `None` without any.
pub(super) fn totals(view: &View<'_>) -> Option<Table> {
    let columns = [
        Column::new("what", "of the whole side", ""),
        Column::new("cell", "cell", ""),
        Column::new("a", "A", ""),
        Column::new("b", "B", ""),
    ];
    let mut rows: BTreeMap<(&str, &str), [Option<f64>; 2]> = BTreeMap::new();
    for (key, value) in &view.run.totals {
        let (cell, side, name) = keyed(key);
        let place = usize::from(side == "b");
        if let Some(slot) = rows.entry((name, cell)).or_default().get_mut(place) {
            *slot = Some(*value);
        }
    }
    let mut table = Table::new("totals", "Totals of the sides", &columns);
    let known = |value: Option<f64>| value.map_or(Cell::Absent("not told"), figure::cell);
    let all = rows.len();
    for ((name, cell), [a, b]) in rows.into_iter().take(ROWS_MAX) {
        table.row(vec![Cell::text(short(name)), Cell::text(short(cell)), known(a), known(b)]);
    }
    more(all, "totals", &mut table);
    (all > 0).then_some(table)
}

/// Values that somebody has published, for their shape.
pub(super) fn fixed_points(view: &View<'_>) -> Option<Table> {
    let columns = [
        Column::new("name", "published", ""),
        Column::new("a", "A", ""),
        Column::new("b", "B", ""),
        Column::new("change_pct", "change", "%"),
        Column::new("unit", "unit", ""),
    ];
    let mut table = Table::new("published", "Values that were published", &columns);
    for point in view.fixed_points().iter().take(ROWS_MAX) {
        let change = 100.0 * (point.b / point.a - 1.0);
        table.row(vec![
            Cell::text(short(&point.name)),
            figure::cell(point.a),
            figure::cell(point.b),
            figure::change_cell(change),
            Cell::text(short(&point.unit)),
        ]);
        let source = format!("{}: {}", short(&point.name), shown(&point.source));
        if !table.notes.contains(&source) {
            table.note(source);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Cell, side and name of a total or of a matrix: `rate=max/a/memory_bytes`.
pub(super) fn keyed(key: &str) -> (&str, &str, &str) {
    let (rest, name) = key.rsplit_once('/').unwrap_or(("", key));
    let (cell, side) = rest.rsplit_once('/').unwrap_or(("", rest));
    (cell, side, name)
}

/// Dropped in all.
pub(super) fn dropped(ledger: &Ledger) -> u64 {
    ledger.dropped.values().fold(0, |sum: u64, n| sum.saturating_add(*n))
}

/// Whether a ledger is in balance, as printed: by its own figures, whatever its mark says.
pub(super) fn balance(ledger: &Ledger) -> &'static str {
    let sum = |terms: [u64; 4]| terms.iter().map(|n| u128::from(*n)).sum::<u128>();
    let came = sum([ledger.received, ledger.created, 0, 0]);
    let went = sum([ledger.sent, ledger.consumed, dropped(ledger), ledger.in_flight]);
    if came == went && ledger.balanced { "OK" } else { "UNBALANCED" }
}

fn columns(key: &'static str, head: &'static str) -> Vec<Column> {
    let mut columns = vec![
        Column::new(key, head, ""),
        Column::new("unit", "unit", ""),
        Column::new("a", "A", ""),
        Column::new("b", "B", ""),
        Column::new("change_pct", "change", "%"),
        Column::new("ci95_pct", "95 % CI", "%"),
        Column::new("verdict", "verdict", ""),
        Column::new("expected", "exp.", ""),
        Column::new("pairs", "pairs", ""),
    ];
    if key == "cell" {
        columns.retain(|column| column.key != "unit");
    }
    columns
}

fn effect_row(name: String, unit: Option<&str>, effect: Option<&Effect>) -> Vec<Cell> {
    let mut row = vec![Cell::Text(name)];
    row.extend(unit.map(Cell::text));
    let Some(effect) = effect else {
        row.extend([const { Cell::Absent(NONE) }; 4]);
        row.extend([Cell::text("–"), Cell::Empty, Cell::Absent(NONE)]);
        return row;
    };
    let met = match &effect.expected {
        Some(expected) if expected.met => Cell::text("met"),
        Some(_) => Cell::text("NOT met"),
        None => Cell::Empty,
    };
    row.extend([
        censored(effect.a, effect),
        censored(effect.b, effect),
        changed(effect),
        Cell::Text(interval(effect.ci95_pct)),
        Cell::text(verdict(effect.verdict)),
        met,
        Cell::Count(effect.n_pairs as u64),
    ]);
    row
}

/// A side's value, or that it is below what could have been seen: never 0 then.
pub(super) fn censored(value: f64, effect: &Effect) -> Cell {
    match effect.censored_below {
        Some(bound) if value < bound => match figure::cell(bound) {
            Cell::Real(bound, digits) => Cell::Under(bound, digits),
            other => other,
        },
        _ => figure::cell(value),
    }
}

/// The change, or its bound if a side's value is one.
pub(super) fn changed(effect: &Effect) -> Cell {
    let is_below = |value: f64| effect.censored_below.is_some_and(|bound| value < bound);
    match figure::change_cell(effect.change_pct) {
        Cell::Change(pct, digits) if is_below(effect.b) => Cell::AtMost(pct, digits),
        Cell::Change(pct, digits) if is_below(effect.a) => Cell::AtLeast(pct, digits),
        other => other,
    }
}

/// What was expected of `metrics`, by whom, and where it is not so. A disagreement is a result.
fn expectations(view: &View<'_>, metrics: &[Shown], table: &mut Table) {
    let mut said: BTreeMap<(String, bool), Vec<&str>> = BTreeMap::new();
    for metric in metrics {
        for (name, cell) in view.named().take(ROWS_MAX) {
            let effect = cell.metrics.get(&metric.name);
            let Some(expected) = effect.and_then(|effect| effect.expected.as_ref()) else {
                continue;
            };
            let what = format!(
                "{}: expected {} % ({})",
                metric.label,
                range(expected.change_pct),
                shown(&expected.source)
            );
            said.entry((what, expected.met)).or_default().push(name);
        }
    }
    for ((what, met), cells) in said {
        let cells: Vec<&str> = cells.into_iter().filter(|name| !name.is_empty()).collect();
        let at = match cells.as_slice() {
            [] => String::new(),
            _ if table.name == "effects" => String::new(),
            few => format!(", at {}", few.join(" · ")),
        };
        let outcome = if met { "met" } else { "NOT met, which is a result" };
        table.note(format!("{what}: {outcome}{at}"));
    }
}

/// Names of cells with their values below each other.
fn aligned(names: &[String]) -> Vec<String> {
    let parts: Vec<Vec<&str>> = names.iter().map(|name| name.split(' ').collect()).collect();
    let same = parts.windows(2).all(|two| matches!(two, [a, b] if a.len() == b.len()));
    if !same {
        return names.to_vec();
    }
    let width = |i: usize| {
        parts.iter().filter_map(|p| p.get(i)).map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let line = |p: &Vec<&str>| {
        let each = p.iter().enumerate().map(|(i, text)| format!("{text:<0$}", width(i)));
        each.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    };
    parts.iter().map(line).collect()
}

fn more(all: usize, what: &str, table: &mut Table) {
    if all > ROWS_MAX {
        table.note(format!(
            "{} more {what} are in the run's document only",
            figure(all as f64 - ROWS_MAX as f64)
        ));
    }
}
