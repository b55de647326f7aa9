//! A table as CSV (RFC 4180, but with line feeds only): the columns' keys in the first line, and
//! figures with all digits.

use super::{Cell, Table};

impl Table {
    /// Formats the rows with figures as CSV, under the columns' keys. A bound is `<n` or `>=n`, an
    /// absent value is empty.
    #[must_use]
    pub fn csv(&self) -> String {
        let keys = self.columns.iter().map(|column| quoted(column.key)).collect();
        let rows = self.figures().map(|cells| cells.iter().map(field).collect());
        std::iter::once(keys).chain(rows).map(|line: Vec<String>| line.join(",") + "\n").collect()
    }
}

fn field(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => quoted(text),
        Cell::Count(n) => n.to_string(),
        Cell::Gain(n) => n.to_string(),
        Cell::Printed(number) => number.clone(),
        Cell::Real(x, _) | Cell::Change(x, _) => x.to_string(),
        Cell::Below(bound) => format!("<{bound}"),
        Cell::Under(bound, _) => format!("<{bound}"),
        Cell::AtLeast(bound, _) => format!(">={bound}"),
        Cell::AtMost(bound, _) => format!("<={bound}"),
        Cell::Absent(_) | Cell::Empty => String::new(),
    }
}

/// Formats a CSV field, in quotes if necessary.
#[must_use]
pub fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}
