//! Columns, as wide as what stands in them.

use std::fmt;

/// Lines of cells, and lines of text between them.
pub(super) struct Grid {
    sides: Vec<Side>,
    lines: Vec<Line>,
}

/// To which side a column is set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

enum Line {
    Cells(Vec<String>),
    Text(String),
}

/// Between two columns.
const GAP: usize = 2;

impl Grid {
    /// An empty one. `sides` has a letter for each column: `l` or `r`.
    pub(super) fn new(sides: &str) -> Grid {
        let side = |c| if c == 'r' { Side::Right } else { Side::Left };
        Grid { sides: sides.chars().map(side).collect(), lines: Vec::new() }
    }

    pub(super) fn cells<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.lines.push(Line::Cells(cells.into_iter().map(Into::into).collect()));
    }

    pub(super) fn text(&mut self, text: impl Into<String>) {
        self.lines.push(Line::Text(text.into()));
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.sides.len()];
        for line in &self.lines {
            let Line::Cells(cells) = line else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let mut text = String::new();
        for line in &self.lines {
            text.clear();
            match line {
                Line::Text(line) => text.push_str(line),
                Line::Cells(cells) => {
                    for ((cell, &width), side) in cells.iter().zip(&widths).zip(&self.sides) {
                        // A column that is empty throughout takes no room.
                        if width == 0 {
                            continue;
                        }
                        if !text.is_empty() {
                            text.extend([' '; GAP]);
                        }
                        match side {
                            Side::Left => text.push_str(&format!("{cell:<width$}")),
                            Side::Right => text.push_str(&format!("{cell:>width$}")),
                        }
                    }
                }
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_no_line_ends_in_a_blank() {
        let mut grid = Grid::new("lrlr");
        grid.cells(["a", "12", "", "x"]);
        grid.text("between");
        grid.cells(["long", "≥ 1", "", ""]);
        assert_eq!(grid.to_string(), "a      12  x\nbetween\nlong  ≥ 1\n");
    }
}
