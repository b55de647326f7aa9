//! The kinds of rendered tables.

/// The contents of a table's cell.
#[derive(Clone, Copy, PartialEq)]
pub enum Style {
    Change,
    Ratio,
    Values,
    Plain,
    Scatter,
    Columns,
}

impl Style {
    /// Returns the kind of that name in a mark.
    pub fn named(name: &str) -> Option<Style> {
        Some(match name {
            "change" => Style::Change,
            "ratio" => Style::Ratio,
            "values" => Style::Values,
            "plain" => Style::Plain,
            "scatter" => Style::Scatter,
            "columns" => Style::Columns,
            _ => return None,
        })
    }

    /// Returns true for a table of several metrics.
    pub fn has_many(self) -> bool {
        matches!(self, Style::Scatter | Style::Columns)
    }

    /// Returns true for a table of one machine.
    pub fn is_of_one(self) -> bool {
        self.has_many() || self == Style::Plain
    }
}
