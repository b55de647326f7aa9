//! A table as text: names to the left, figures to the right, units below the heads.

use std::fmt;
use std::iter;

use super::{Cell, Row, Table};
use crate::number::grouped;
use crate::words::{length, wrapped};

const INDENT: &str = "  ";
const GAP: &str = "  ";

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = self.heads();
        let printed: Vec<Option<Vec<String>>> = self.rows.iter().map(cells).collect();
        let all = || heads.iter().chain(printed.iter().flatten());
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| all().filter_map(|line| line.get(i)).map(|t| length(t)).max().unwrap_or(0))
            .collect();
        let names: Vec<bool> = (0..self.columns.len()).map(|i| self.is_of_names(i)).collect();
        for line in &heads {
            write_line(f, line, &widths, &names)?;
        }
        for (row, cells) in self.rows.iter().zip(&printed) {
            match (row, cells) {
                (_, Some(cells)) => write_line(f, cells, &widths, &names)?,
                (Row::Heading(text), None) => writeln!(f, "{INDENT}{text}")?,
                (_, None) => {
                    let full =
                        widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
                    writeln!(f, "{INDENT}{}", "-".repeat(full))?;
                }
            }
        }
        self.notes.iter().try_for_each(|note| f.write_str(&wrapped(note, INDENT, INDENT)))
    }
}

impl Table {
    /// The lines of the heads, the units last; empty lines are left out.
    fn heads(&self) -> Vec<Vec<String>> {
        let parts: Vec<Vec<&str>> =
            self.columns.iter().map(|column| column.head.split('\n').collect()).collect();
        let tallest = parts.iter().map(Vec::len).max().unwrap_or(0);
        let line = |i: usize| {
            // The heads stand on a common line: a short one starts lower.
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

    /// A column of names is set to the left.
    fn is_of_names(&self, column: usize) -> bool {
        let mut filled = self.figures().filter_map(|cells| cells.get(column));
        filled.all(|cell| matches!(cell, Cell::Text(_) | Cell::Empty))
    }
}

fn cells(row: &Row) -> Option<Vec<String>> {
    match row {
        Row::Cells(cells) => Some(cells.iter().map(Cell::to_string).collect()),
        Row::Heading(_) | Row::Rule => None,
    }
}

/// Formats the cell as in a table; an absent value is a dash.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let real = |x: &f64, digits: &u8| grouped(&format!("{x:.*}", usize::from(*digits)));
        match self {
            Cell::Text(text) => f.write_str(text),
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

/// Formats a change with its sign, unless it is printed as 0.
fn changed(change: f64, digits: usize) -> String {
    let zero = format!("{:.digits$}", 0.0);
    let text = format!("{change:+.digits$}");
    if text.trim_start_matches(['+', '-']) == zero { zero } else { grouped(&text) }
}

fn write_line(
    f: &mut fmt::Formatter<'_>,
    texts: &[String],
    widths: &[usize],
    names: &[bool],
) -> fmt::Result {
    let mut line = String::from(INDENT);
    for (i, ((text, width), name)) in texts.iter().zip(widths).zip(names).enumerate() {
        line.push_str(if i > 0 { GAP } else { "" });
        let pad = " ".repeat(width.saturating_sub(length(text)));
        let (before, after) = if *name { ("", pad.as_str()) } else { (pad.as_str(), "") };
        line.extend([before, text, after]);
    }
    writeln!(f, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_a_sign_unless_there_is_none() {
        let texts = [changed(1.25, 1), changed(-0.04, 1), changed(0.0, 0), changed(-12345.6, 1)];
        assert_eq!(texts, ["+1.2", "0.0", "0", "-12,345.6"]);
    }
}
