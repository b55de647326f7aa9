//! A table: the same rows as text, as CSV and as JSON, with the unit of every column.
//!
//! A value below a bound, or one that could not be read, is a cell of its own kind: it is never 0,
//! in none of the three forms.

mod csv;
mod fit;
mod html;
mod text;

use serde::ser::{SerializeMap, SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

pub use csv::quoted;
pub use html::csv_link;

/// Rows of figures under headings with units.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Short name, for files and documents: `profile`.
    pub name: &'static str,
    /// The title of the table, one line.
    pub title: String,
    /// The table's columns.
    pub columns: Vec<Column>,
    /// The table's rows, in order of printing.
    pub rows: Vec<Row>,
    /// Remarks that readers must know, in sentences.
    pub notes: Vec<String>,
}

/// The head of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Column {
    /// Key in documents and CSV, with its unit last: `cpu_napi_pct`.
    pub key: &'static str,
    /// The printed heading; a line break splits it.
    pub head: &'static str,
    /// The printed unit below the head; empty for names.
    pub unit: &'static str,
}

/// A line of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// Figures, one for each column.
    Cells(Vec<Cell>),
    /// The name of a group, in the text only.
    Heading(String),
    /// A line between rows, in the text only.
    Rule,
}

/// A figure, or the reason for its absence.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// A name.
    Text(String),
    /// A count.
    Count(u64),
    /// A difference of counts, printed with its sign.
    Gain(i128),
    /// A number with its original digits.
    Printed(String),
    /// A number, with the number of decimals for printing it.
    Real(f64, u8),
    /// A change, printed with its sign and this number of decimals.
    Change(f64, u8),
    /// An exclusive upper bound of a count, possibly 0: the list was cut off there.
    Below(u64),
    /// An upper bound of a figure for which no event was counted, with the number of decimals.
    Under(f64, u8),
    /// A lower bound of a difference, because the other side has an upper bound only.
    AtLeast(f64, u8),
    /// An upper bound of a difference, because this side has an upper bound only.
    AtMost(f64, u8),
    /// No figure, for a reason.
    Absent(&'static str),
    /// A cell that has no value by design.
    Empty,
}

impl Table {
    /// Returns a table without rows.
    #[must_use]
    pub fn new(name: &'static str, title: impl Into<String>, columns: &[Column]) -> Table {
        Table {
            name,
            title: title.into(),
            columns: columns.to_vec(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row of figures; missing cells are empty.
    pub fn row(&mut self, mut cells: Vec<Cell>) {
        cells.resize(self.columns.len(), Cell::Empty);
        self.rows.push(Row::Cells(cells));
    }

    /// Adds a note.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Returns the rows that hold figures.
    pub fn figures(&self) -> impl Iterator<Item = &[Cell]> {
        self.rows.iter().filter_map(|row| match row {
            Row::Cells(cells) => Some(cells.as_slice()),
            Row::Heading(_) | Row::Rule => None,
        })
    }
}

impl Column {
    /// Returns a column.
    #[must_use]
    pub const fn new(key: &'static str, head: &'static str, unit: &'static str) -> Column {
        Column { key, head, unit }
    }
}

impl Cell {
    /// Returns a cell with a name.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    /// Returns a cell with a number and its decimals, or with the reason `why` there is none.
    #[must_use]
    pub fn real(value: Option<f64>, digits: u8, why: &'static str) -> Cell {
        value.map_or(Cell::Absent(why), |value| Cell::Real(value, digits))
    }

    /// Returns a cell with a change and its decimals, or with the reason `why` there is none.
    #[must_use]
    pub fn change(value: Option<f64>, digits: u8, why: &'static str) -> Cell {
        value.map_or(Cell::Absent(why), |value| Cell::Change(value, digits))
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = serializer.serialize_struct("Table", 5)?;
        table.serialize_field("name", self.name)?;
        table.serialize_field("title", &self.title)?;
        table.serialize_field("columns", &self.columns)?;
        table.serialize_field("rows", &Rows(self))?;
        table.serialize_field("notes", &self.notes)?;
        table.end()
    }
}

struct Rows<'a>(&'a Table);

struct Record<'a>(&'a [Column], &'a [Cell]);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(Some(self.0.figures().count()))?;
        for cells in self.0.figures() {
            rows.serialize_element(&Record(&self.0.columns, cells))?;
        }
        rows.end()
    }
}

impl Serialize for Record<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut record = serializer.serialize_map(Some(self.0.len()))?;
        for (column, cell) in self.0.iter().zip(self.1) {
            record.serialize_entry(column.key, cell)?;
        }
        record.end()
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Text(text) => serializer.serialize_str(text),
            Cell::Count(n) => serializer.serialize_u64(*n),
            Cell::Gain(n) => match i64::try_from(*n) {
                Ok(n) => serializer.serialize_i64(n),
                Err(_) => serializer.serialize_f64(*n as f64),
            },
            Cell::Printed(number) => match number.parse() {
                Ok(whole) => serializer.serialize_i64(whole),
                Err(_) => serializer.serialize_f64(number.parse().unwrap_or(f64::NAN)),
            },
            Cell::Real(x, _) | Cell::Change(x, _) => serializer.serialize_f64(*x),
            Cell::Below(bound) => one(serializer, "below", bound),
            Cell::Under(bound, _) => one(serializer, "below", bound),
            Cell::AtLeast(bound, _) => one(serializer, "at_least", bound),
            Cell::AtMost(bound, _) => one(serializer, "at_most", bound),
            Cell::Absent(why) => one(serializer, "absent", why),
            Cell::Empty => serializer.serialize_none(),
        }
    }
}

/// Makes `{"key": value}`
fn one<S: Serializer>(serializer: S, key: &str, value: &impl Serialize) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(key, value)?;
    map.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let columns = [
            Column::new("function", "function", ""),
            Column::new("with_samples", "with", "samples"),
            Column::new("change_pct", "change", "%"),
        ];
        let mut table = Table::new("t", "Two functions, \"a\" and b", &columns);
        table.row(vec![
            Cell::text("a, the first"),
            Cell::Count(12_345),
            Cell::Change(1.0 / 3.0, 1),
        ]);
        table.rows.push(Row::Heading("the others".into()));
        table.row(vec![Cell::text("b"), Cell::Below(216), Cell::Absent("no figure")]);
        table.rows.push(Row::Rule);
        table.row(vec![Cell::text("sum"), Cell::Gain(-7), Cell::AtLeast(12.5, 1)]);
        table
    }

    #[test]
    fn unknown_value_is_explicit_in_every_form() {
        let json = serde_json::to_value(table()).unwrap();
        assert_eq!(json["rows"][1]["with_samples"]["below"], 216);
        assert_eq!(json["rows"][1]["change_pct"]["absent"], "no figure");
        assert_eq!(json["rows"][2]["change_pct"]["at_least"], 12.5);
        assert_eq!(json["rows"].as_array().unwrap().len(), 3);
        let csv = table().csv();
        assert_eq!(csv.lines().nth(2), Some("b,<216,"));
        let text = table().to_string();
        assert!(text.contains("< 216") && text.contains("–"), "{text}");
    }

    #[test]
    fn documents_hold_all_digits_and_the_text_holds_some() {
        let csv = table().csv();
        let expected =
            "function,with_samples,change_pct\n\"a, the first\",12345,0.3333333333333333";
        assert!(csv.starts_with(expected), "{csv}");
        assert!(table().to_string().contains("12,345    +0.3"), "{}", table());
    }

    #[test]
    fn the_text_is_aligned_with_the_unit_below_every_head() {
        let expected = [
            "  function         with  change",
            "                samples       %",
            "  a, the first   12,345    +0.3",
            "  the others",
            "  b               < 216       –",
            "  -----------------------------",
            "  sum                -7  ≥ 12.5",
        ];
        assert_eq!(table().to_string().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_short_row_is_filled_and_a_long_one_cut() {
        let mut table = table();
        table.row(vec![]);
        table.row(vec![Cell::Count(1); 9]);
        assert!(table.figures().all(|cells| cells.len() == 3));
        assert_eq!(table.csv().lines().nth(4), Some(",,"));
    }
}
