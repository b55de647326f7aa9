//! A comparison as printed, for a screen of 100 columns.

use std::fmt;

use linerate_show::number;
use linerate_show::table::{Cell, Column, Row as Line, Table};
use linerate_show::words::elided;
use linerate_show::words::harmless;
use linerate_show::words::{WIDTH, wrapped};

use super::row::NOTHING;
use super::{Comparison, Row, Withheld};
use crate::report::words::within;

/// Smallest number of letters of a metric's name that remain in a shortened line.
const NAME_MIN: usize = 8;
/// The maximum length of a run's label, of a unit, and of two distances, in letters.
const LABEL_MAX: usize = 40;
const UNIT_MAX: usize = 14;
const CPUS_MAX: usize = 9;

const COLUMNS: [Column; 9] = [
    Column::new("metric", "metric", ""),
    Column::new("unit", "unit", ""),
    Column::new("first", "first", ""),
    Column::new("second", "second", ""),
    Column::new("change_pct", "change", "%"),
    Column::new("ci95_pct", "95 % CI", "%"),
    Column::new("windows", "windows", ""),
    Column::new("cpus", "CPUs", ""),
    Column::new("verdict", "verdict", ""),
];

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = [&self.a, &self.b].map(|label| elided(&harmless(label), LABEL_MAX));
        let head = format!("{}: first {a}, second {b}; of both the changed side", self.experiment);
        f.write_str(&wrapped(&head, "", "  "))?;
        write!(f, "{}", fitted(self.table()))?;
        for (what, metrics) in grouped(&self.withheld) {
            f.write_str(&wrapped(&format!("not compared, as {what}: {metrics}"), "", "  "))?;
        }
        let told = self.environment.iter().filter(|difference| !difference.decides);
        let told: Vec<String> = told.map(ToString::to_string).collect();
        if !self.differing().is_empty() {
            let differs = format!(
                "env differs: {} (use --allow-env to compare times)",
                harmless(&self.differing())
            );
            f.write_str(&wrapped(&differs, "", "  "))?;
        }
        if !told.is_empty() {
            f.write_str(&wrapped(&format!("also: {}", harmless(&told.join(", "))), "", "  "))?;
        }
        for note in &self.notes {
            f.write_str(&wrapped(note, "", "  "))?;
        }
        for undecided in &self.undecided {
            f.write_str(&wrapped(&format!("not decided: {undecided}"), "", "  "))?;
        }
        for failed in &self.failed {
            f.write_str(&wrapped(&format!("failed: {failed}"), "", "  "))?;
        }
        Ok(())
    }
}

impl Comparison {
    /// Returns the table of rows, grouped under the name of their cell. The column of distances is
    /// present if a distance is known.
    fn table(&self) -> Table {
        let mut table = Table::new("comparison", "", &COLUMNS);
        let mut heading = "";
        let has_cycles = self.environment.iter().any(|difference| difference.name == "mhz");
        for row in &self.rows {
            if row.cell != heading {
                heading = &row.cell;
                table.rows.push(Line::Heading(elided(heading, WIDTH - 4)));
            }
            table.row(cells(row));
            let cycles = row.a_cycles.zip(row.b_cycles).filter(|_| has_cycles);
            if let Some((a, b)) = cycles {
                // The row in cycles is present only if the clock rates differ: at equal rates it
                // would repeat the change in time.
                table.row(vec![
                    Cell::text("  at the clocks' rates"),
                    Cell::text("cycles"),
                    number::cell(a),
                    number::cell(b),
                    number::change_cell(100.0 * (b / a - 1.0)),
                ]);
            }
        }
        let is_known = |row: &Row| row.placement.0.is_some() || row.placement.1.is_some();
        match table.columns.iter().position(|column| column.key == "cpus") {
            Some(at) if !self.rows.iter().any(is_known) => without(table, at),
            _ => table,
        }
    }
}

fn cells(row: &Row) -> Vec<Cell> {
    let value = |below, value| if below { number::under(value) } else { number::cell(value) };
    let gate = if row.gate { "  <- gate" } else { "" };
    let (change, ends) = match row.below {
        (true, true) => (Cell::Absent(NOTHING), Cell::Absent(NOTHING)),
        _ => (number::change_cell(row.change_pct), Cell::Text(number::interval(row.ci95_pct))),
    };
    vec![
        Cell::text(&*row.metric),
        Cell::Text(elided(&row.unit, UNIT_MAX)),
        value(row.below.0, row.a),
        value(row.below.1, row.b),
        change,
        ends,
        Cell::Text(format!("{}, {}", row.n_windows.0, row.n_windows.1)),
        Cell::Text(apart(&row.placement)),
        Cell::Text(format!("{}{gate}", within(row.verdict, row.same_pct))),
    ]
}

/// Formats the distance between the CPUs in both runs; only once if both distances are equal.
fn apart((first, second): &(Option<String>, Option<String>)) -> String {
    let [one, other] = [first, second]
        .map(|class| class.as_ref().map_or("–".into(), |class| harmless(class).into_owned()));
    let both = if one == other { one } else { format!("{one}, {other}") };
    elided(&both, CPUS_MAX)
}

fn without(mut table: Table, column: usize) -> Table {
    table.columns.remove(column);
    for line in &mut table.rows {
        if let Line::Cells(cells) = line {
            cells.remove(column);
        }
    }
    table
}

/// Returns a table that fits the screen: shortens the middle of names, then the words of
/// conditions.
fn fitted(mut table: Table) -> Table {
    let over = |table: &Table| {
        let widest = table.to_string().lines().map(|line| line.chars().count()).max();
        widest.unwrap_or(0).saturating_sub(WIDTH)
    };
    let first = |line: &Line| match line {
        Line::Cells(cells) => cells.first().map_or(0, |name| name.to_string().chars().count()),
        Line::Heading(_) | Line::Rule => 0,
    };
    for shorten in [false, true] {
        let too_many = over(&table);
        if too_many == 0 {
            break;
        }
        let longest = table.rows.iter().map(first).max().unwrap_or(0);
        let kept = longest.saturating_sub(too_many).max(NAME_MIN);
        for line in &mut table.rows {
            let Line::Cells(cells) = line else { continue };
            if let Some(Cell::Text(verdict)) = cells.last_mut().filter(|_| shorten) {
                *verdict = verdict.replace("<- gate", "<-");
            }
            if let Some(Cell::Text(name)) = cells.first_mut() {
                *name = elided(name, kept);
            }
        }
    }
    table
}

/// Groups withheld metrics by reason and cell: each entry is the reason and its metrics.
fn grouped(withheld: &[Withheld]) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for one in withheld {
        let at = match one.cell.as_deref() {
            None | Some("") => String::new(),
            Some(cell) => format!(" (at {cell})"),
        };
        let why = format!("{}{at}", one.why);
        match all.iter_mut().find(|(same, _)| *same == why) {
            Some((_, metrics)) => *metrics += &format!(", {}", one.metric),
            None => all.push((why, one.metric.clone())),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::analyse;
    use crate::analysis::testing::{experiment, pair, run_of};
    use crate::compare::{FailOn, compared};
    use crate::experiment::Clock;
    use crate::record::Verdict;

    #[test]
    fn a_row_in_which_neither_run_counted_anything_has_no_change_is_unclear_and_holds_its_gate() {
        let mut losses = experiment();
        losses.metrics[0].clock = Clock::Count;
        let mut run = run_of(&[vec![pair(0.0, 0.0, 0.0); 15]]);
        analyse(&losses, &mut run);
        let gate = [FailOn::parse("cost_ns_per_packet>+1%").unwrap()];
        let told = compared((&run, &run), (&losses, &losses), &gate, false).unwrap();
        let row = &told.rows[0];
        assert_eq!((row.below, row.verdict), ((true, true), Verdict::Unclear));
        assert!(row.gate && told.failed.is_empty() && told.undecided.is_empty(), "{told:?}");
        let table = told.table();
        let cells = table.figures().next().unwrap();
        assert!(matches!(&cells[4..6], [Cell::Absent(_), Cell::Absent(_)]), "{table}");
    }
}
