//! A table as text: names on the left, figures on the right, units below the headings.

use std::fmt;
use std::iter;

use super::{Cell, Row, Table};
use crate::grid::{Grid, Side};
use crate::number::{self, grouped};
use crate::words::{harmless, wrapped};

const INDENT: &str = "  ";

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |i| if self.is_of_names(i) { Side::Left } else { Side::Right };
        let mut grid = Grid::indented(INDENT, (0..self.columns.len()).map(side).collect());
        self.heads().into_iter().for_each(|line| grid.cells(line));
        for row in &self.rows {
            match row {
                Row::Cells(cells) => grid.cells(cells.iter().map(Cell::to_string)),
                Row::Heading(text) => grid.text(harmless(text)),
                Row::Rule => grid.rule(),
            }
        }
        grid.fmt(f)?;
        self.notes.iter().try_for_each(|note| {
            // Line breaks and tabs of a note are blanks.
            let note = note.split_whitespace().collect::<Vec<_>>().join(" ");
            f.write_str(&wrapped(&harmless(&note), INDENT, INDENT))
        })
    }
}

impl Table {
    /// Returns the lines of the headings, with the units last, without empty lines.
    fn heads(&self) -> Vec<Vec<String>> {
        let parts: Vec<Vec<&str>> =
            self.columns.iter().map(|column| column.head.split('\n').collect()).collect();
        let tallest = parts.iter().map(Vec::len).max().unwrap_or(0);
        let line = |i: usize| {
            // Headings end on the same line: a heading with fewer lines starts lower.
            let at = |p: &[&str]| {
                let i = (i + p.len()).checked_sub(tallest)?;
                p.get(i).map(|text| (*text).to_owned())
            };
            parts.iter().map(|p| at(p).unwrap_or_default()).collect::<Vec<_>>()
        };
        let units = self.columns.iter().map(|column| column.unit.to_owned()).collect();
        let lines = (0..tallest).map(line).chain(iter::once(units));
        lines.filter(|line| line.iter().any(|text| !text.is_empty())).collect()
    }

    /// Returns true for a column of names, which is aligned to the left.
    fn is_of_names(&self, column: usize) -> bool {
        let mut filled = self.figures().filter_map(|cells| cells.get(column));
        filled.all(|cell| matches!(cell, Cell::Text(_) | Cell::Empty))
    }
}

/// Formats the cell as in a table, with control characters escaped; an absent value is a dash.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let real = |x: &f64, digits: &u8| number::real(*x, usize::from(*digits));
        match self {
            Cell::Text(text) => f.write_str(&harmless(text)),
            Cell::Count(n) => f.write_str(&grouped(&n.to_string())),
            Cell::Gain(0) => f.write_str("0"),
            Cell::Gain(n) => f.write_str(&grouped(&format!("{n:+}"))),
            Cell::Printed(number) => f.write_str(&grouped(number)),
            Cell::Real(x, digits) => f.write_str(&real(x, digits)),
            Cell::Change(x, digits) => f.write_str(&changed(*x, usize::from(*digits))),
            Cell::Below(bound) => write!(f, "< {}", grouped(&bound.to_string())),
            Cell::Under(x, digits) => write!(f, "< {}", real(x, digits)),
            Cell::AtLeast(x, digits) => write!(f, "≥ {}", real(x, digits)),
            Cell::AtMost(x, digits) => write!(f, "≤ {}", real(x, digits)),
            Cell::Absent(_) => f.write_str("–"),
            Cell::Empty => Ok(()),
        }
    }
}

/// Formats a change with its sign; a change that is printed as 0 has no sign.
fn changed(change: f64, digits: usize) -> String {
    let zero = format!("{:.digits$}", 0.0);
    let text = format!("{change:+.digits$}");
    if text.trim_start_matches(['+', '-']) == zero { zero } else { grouped(&text) }
}

#[cfg(test)]
mod tests {
    use super::super::Column;
    use super::*;

    #[test]
    fn control_characters_are_escaped_before_the_columns_are_measured() {
        let columns = [Column::new("name", "name", ""), Column::new("n", "n", "")];
        let mut table = Table::new("t", "t", &columns);
        table.row(vec![Cell::text("a\u{1b}[31m\n"), Cell::Count(1)]);
        table.rows.push(Row::Heading("b\u{7}".into()));
        table.row(vec![Cell::text("c"), Cell::Count(2)]);
        table.note("d\te\n\u{1b}f");
        let expected = [
            "  name              n",
            r"  a\u{1b}[31m\u{a}  1",
            r"  b\u{7}",
            "  c                 2",
            r"  d e \u{1b}f",
        ];
        assert_eq!(table.to_string().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_rounded_figure_is_never_minus_0() {
        let cells = [Cell::Real(-0.04, 1), Cell::AtMost(-0.4, 0), Cell::Real(-1234.5, 1)];
        assert_eq!(cells.map(|cell| cell.to_string()), ["0.0", "≤ 0", "-1,234.5"]);
    }

    #[test]
    fn a_change_has_a_sign_unless_there_is_none() {
        let texts = [changed(1.25, 1), changed(-0.04, 1), changed(0.0, 0), changed(-12345.6, 1)];
        assert_eq!(texts, ["+1.2", "0.0", "0", "-12,345.6"]);
    }
}
