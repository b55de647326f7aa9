//! A run's tables, which the text and the HTML page share.

use std::collections::BTreeMap;

use linerate_show::number::{self, change, figure, interval};
use linerate_show::table::{Cell, Column, Row, Table};

use super::view::Shown;
use super::view::View;
use super::words::{counts, overall_changes, said, short, shown};
use crate::record::{CellRecord, Effect, Elsewhere, Ledger};

/// Largest number of cells for which there is a table for each cell; with more cells there is a
/// table for each metric.
const CELLS_A_TABLE_EACH: usize = 2;

/// Most cells and metrics shown; the document has the others.
pub(super) const ROWS_MAX: usize = 400;

const NONE: &str = "the cell has no figures";

/// Words of the note on pairs of the less frequent placement class.
pub(super) const ELSEWHERE: &str = "whose CPUs were";

/// Returns true if there are so few cells that tables by cell are clearer than tables by metric.
pub(super) fn are_few_cells(view: &View<'_>) -> bool {
    view.told().count() <= CELLS_A_TABLE_EACH
}

/// Returns the table of one metric in every cell that has it.
pub(super) fn of_metric(view: &View<'_>, metric: &Shown) -> Table {
    let unit = if metric.unit.is_empty() { "no unit" } else { &metric.unit };
    let (names, cells): (Vec<&str>, Vec<&CellRecord>) = view.told().unzip();
    let (names, shared) = apart(&names);
    let at = if shared.is_empty() { String::new() } else { format!(", all at {shared}") };
    let title = format!("{}, in {unit}{at}", metric.label);
    let mut table = Table::new(
        "effect",
        title,
        &columns(
            "cell, a=A, b=B, change_pct=change [%], ci95_pct=95 % CI [%], verdict, expected=exp., pairs",
        ),
    );
    for (name, cell) in aligned(&names).into_iter().zip(&cells).take(ROWS_MAX) {
        table.row(effect_row(name, None, cell.metrics.get(&metric.name)));
    }
    for line in view.groups(&metric.name).take(ROWS_MAX) {
        let (sum, mean) = overall_changes(line);
        let group = short(&line.group);
        table.note(format!("{group}: sum {sum}, geometric mean {mean} ({})", counts(line)));
    }
    for (name, cell) in names.iter().zip(&cells).take(ROWS_MAX) {
        let Some(effect) = cell.metrics.get(&metric.name) else { continue };
        elsewhere(name, effect).into_iter().for_each(|note| table.note(note));
    }
    more(cells.len(), "cells", &mut table);
    without_empty(table)
}

/// Describes the effect in the pairs of the less frequent placement class.
fn elsewhere(name: &str, effect: &Effect) -> Option<String> {
    let Elsewhere { class, n_pairs, change_pct, ci95_pct } = effect.elsewhere.as_ref()?;
    let (pct, ci, class) = (change(*change_pct), interval(*ci95_pct), short(class));
    Some(format!(
        "{name}: {pct} % {ci} in {n_pairs} pairs {ELSEWHERE} {class}, not included in the figures above"
    ))
}

/// Returns the table of one cell, with the metrics that it has.
pub(super) fn of_cell(name: &str, cell: &CellRecord, metrics: &[&Shown]) -> Table {
    let title = if name.is_empty() { "Effects".into() } else { format!("Effects, {name}") };
    let mut table = Table::new(
        "effects",
        title,
        &columns(
            "metric, unit, a=A, b=B, change_pct=change [%], ci95_pct=95 % CI [%], verdict, expected=exp., pairs",
        ),
    );
    let mut all = 0;
    for metric in metrics {
        let Some(effect) = cell.metrics.get(&metric.name) else { continue };
        all += 1;
        if all <= ROWS_MAX {
            table.row(effect_row(metric.label.clone(), Some(&metric.unit), Some(effect)));
            elsewhere(&metric.label, effect).into_iter().for_each(|note| table.note(note));
        }
    }
    more(all, "metrics", &mut table);
    without_empty(table)
}

/// Builds the table of ledgers, with a row for each cell and side.
pub(super) fn ledgers(view: &View<'_>) -> Table {
    let columns = columns(
        "cell, side, offered, unsent, received, created, sent, consumed, dropped, in_flight=in flight, reordered, duplicated, retransmitted=sent again, balance",
    );
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

/// Returns true if any side counted a packet, which external programs do not.
pub(super) fn has_packets(view: &View<'_>) -> bool {
    let mut ledgers = view.run.cells.iter().flat_map(|cell| view.ledgers(cell));
    ledgers.any(|(_, ledger)| *ledger != Ledger::default())
}

/// Returns the sides' ledgers over all cells, with their names; with the control's, if there is
/// one.
pub(super) fn sums(view: &View<'_>) -> Vec<(String, Ledger)> {
    let mut sums: Vec<(String, Ledger)> = Vec::new();
    for cell in &view.run.cells {
        for (i, (side, ledger)) in view.ledgers(cell).enumerate() {
            match sums.get_mut(i) {
                Some((_, sum)) => *sum = sum.and(ledger),
                None => sums.push((side, ledger.clone())),
            }
        }
    }
    sums
}

/// Returns the names of the metrics without a count, grouped by the reason.
pub(super) fn uncounted<'v>(view: &'v View<'_>) -> Vec<(&'static str, Vec<&'v str>)> {
    let (events, others): (Vec<_>, Vec<_>) =
        view.unmeasured().take(ROWS_MAX).partition(|(_, is_event)| *is_event);
    let uncounted = match &*view.run.experiment.seed_post {
        "003" => {
            "this machine cannot count CPU events; a cache model that runs the real code replaces them, and is \
             not a measurement: linerate lines, and for the post's own kernel path cargo xtask qemu bounce \
             (docs/lines.md, docs/qemu.md)"
        }
        _ => "this machine cannot count CPU events",
    };
    let reasons = [(uncounted, events), ("no cell has a value of it", others)];
    let reasons = reasons.into_iter().filter(|(_, metrics)| !metrics.is_empty());
    let names = |metrics: Vec<(&'v Shown, bool)>| {
        metrics.into_iter().map(|(metric, _)| metric.label.as_str()).collect()
    };
    reasons.map(|(why, metrics)| (why, names(metrics))).collect()
}

/// Returns the table of drops by reason; `None` if there were none.
pub(super) fn drops(view: &View<'_>) -> Option<Table> {
    let columns = columns("cell, reason, a_packets=A [packets], b_packets=B [packets]");
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

/// Returns the table of figures of whole sides, such as memory held and packets outstanding; `None`
/// if there are none.
pub(super) fn totals(view: &View<'_>) -> Option<Table> {
    let columns = columns("what=of the whole side, cell, a=A, b=B");
    let mut rows: BTreeMap<(&str, &str), [Option<f64>; 2]> = BTreeMap::new();
    for (key, value) in &view.run.totals {
        let (cell, side, name) = keyed(key);
        let place = usize::from(side == "b");
        if let Some(slot) = rows.entry((name, cell)).or_default().get_mut(place) {
            *slot = Some(*value);
        }
    }
    let mut table = Table::new("totals", "Totals of the sides", &columns);
    let known = |value: Option<f64>| value.map_or(Cell::Absent("not told"), number::cell);
    let all = rows.len();
    for ((name, cell), [a, b]) in rows.into_iter().take(ROWS_MAX) {
        table.row(vec![Cell::text(short(name)), Cell::text(short(cell)), known(a), known(b)]);
    }
    more(all, "totals", &mut table);
    (all > 0).then_some(table)
}

/// Builds the table of the published values.
pub(super) fn fixed_points(view: &View<'_>) -> Option<Table> {
    let columns = columns("name=published, a=A, b=B, change_pct=change [%], unit");
    let mut table = Table::new("published", "Values that were published", &columns);
    for point in view.fixed_points().iter().take(ROWS_MAX) {
        let change = 100.0 * (point.b / point.a - 1.0);
        table.row(vec![
            Cell::text(short(&point.name)),
            number::cell(point.a),
            number::cell(point.b),
            number::change_cell(change),
            Cell::text(short(&point.unit)),
        ]);
        let source = format!("{}: {}", short(&point.name), shown(&point.source));
        if !table.notes.contains(&source) {
            table.note(source);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Returns the cell, side and name of a total or of a matrix: `rate=max/a/memory_bytes`.
pub(super) fn keyed(key: &str) -> (&str, &str, &str) {
    let (rest, name) = key.rsplit_once('/').unwrap_or(("", key));
    let (cell, side) = rest.rsplit_once('/').unwrap_or(("", rest));
    (cell, side, name)
}

/// Returns the number of dropped packets, for all reasons.
pub(super) fn dropped(ledger: &Ledger) -> u64 {
    ledger.dropped.values().fold(0, |sum: u64, n| sum.saturating_add(*n))
}

/// Returns the printed mark of a ledger's balance: OK only if the ledger's sums and its stored mark
/// both balance.
pub(super) fn balance(ledger: &Ledger) -> &'static str {
    let sum = |terms: [u64; 4]| terms.iter().map(|n| u128::from(*n)).sum::<u128>();
    let came = sum([ledger.received, ledger.created, 0, 0]);
    let went = sum([ledger.sent, ledger.consumed, dropped(ledger), ledger.in_flight]);
    if came == went && ledger.balanced { "OK" } else { "UNBALANCED" }
}

/// Builds columns from a list of `key`, `key=head` or `key=head [unit]`, separated by commas.
pub(super) fn columns(spec: &'static str) -> Vec<Column> {
    let one = |text: &'static str| {
        let (key, head) = text.split_once('=').unwrap_or((text, text));
        let (head, unit) = head.split_once(" [").unwrap_or((head, ""));
        Column::new(key, head, unit.trim_end_matches(']'))
    };
    spec.split(", ").map(one).collect()
}

/// Returns `table` without the column of expectations if it is empty.
fn without_empty(mut table: Table) -> Table {
    let at = table.columns.iter().position(|column| column.key == "expected");
    let is_empty = |at| table.figures().all(|cells| matches!(cells.get(at), Some(Cell::Empty)));
    let Some(at) = at.filter(|at| is_empty(*at)) else { return table };
    table.columns.remove(at);
    for row in &mut table.rows {
        if let Row::Cells(cells) = row {
            cells.remove(at);
        }
    }
    table
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
        Some(expected) if !expected.certain => Cell::text("open"),
        Some(expected) if expected.met => Cell::text("met"),
        Some(_) => Cell::text("NOT met"),
        None => Cell::Empty,
    };
    row.extend(censored(effect));
    let ends = match effect.is_of_nothing() {
        true => Cell::Absent(NONE),
        false => Cell::Text(interval(effect.ci95_pct)),
    };
    row.extend([
        changed(effect),
        ends,
        Cell::text(said(effect)),
        met,
        Cell::Count(effect.n_pairs as u64),
    ]);
    row
}

/// Formats the sides' values; for a side that counted nothing, the upper bound instead of 0, and a
/// lower bound as one.
pub(super) fn censored(effect: &Effect) -> [Cell; 2] {
    bounded(effect, number::cell)
}

/// Formats the sides' values by `of`, and bounds as [`censored`] does. An upper bound has digits of
/// its own, because with fewer it could be 0.
pub(super) fn bounded(effect: &Effect, of: impl Fn(f64) -> Cell) -> [Cell; 2] {
    let cell = |i: usize, value| match (effect.bounds()[i], effect.at_least[i], of(value)) {
        (true, ..) => number::under(value),
        (_, true, Cell::Real(value, digits)) => Cell::AtLeast(value, digits),
        (.., other) => other,
    };
    [cell(0, effect.a), cell(1, effect.b)]
}

/// Formats the change, or its bound if a side's value is a bound; no change if neither side counted
/// anything.
pub(super) fn changed(effect: &Effect) -> Cell {
    if effect.is_of_nothing() {
        return Cell::Absent(NONE);
    }
    match (number::change_cell(effect.change_pct), effect.bounds(), effect.at_least) {
        (Cell::Change(pct, digits), [_, true], _)
        | (Cell::Change(pct, digits), _, [true, false]) => Cell::AtMost(pct, digits),
        (Cell::Change(pct, digits), [true, _], _)
        | (Cell::Change(pct, digits), _, [false, true]) => Cell::AtLeast(pct, digits),
        (other, ..) => other,
    }
}

/// Returns the names of several cells without the factors that are equal in all of them, and these
/// factors.
pub(super) fn apart(names: &[&str]) -> (Vec<String>, String) {
    let [first, _, ..] = names else {
        return (names.iter().map(|name| (*name).to_owned()).collect(), String::new());
    };
    let is_shared = |part: &&str| names.iter().all(|name| name.split(' ').any(|one| one == *part));
    let shared: Vec<&str> = first.split(' ').filter(is_shared).collect();
    let own = |name: &&str| {
        let own: Vec<&str> = name.split(' ').filter(|part| !shared.contains(part)).collect();
        own.join(" ")
    };
    (names.iter().map(own).collect(), shared.join(" "))
}

/// Returns the names of cells with their values aligned in columns.
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
