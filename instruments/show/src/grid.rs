//! Columns as wide as their widest cell: the layout of every text table.

use std::fmt;

use crate::words::length;

/// Lines of cells, and lines of text between them.
#[derive(Debug)]
pub struct Grid {
    indent: &'static str,
    sides: Vec<Side>,
    lines: Vec<Line>,
}

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Left, for names.
    Left,
    /// Right, for figures.
    Right,
}

#[derive(Debug)]
enum Line {
    Cells(Vec<String>),
    Text(String),
    Rule,
}

const GAP: &str = "  ";

impl Grid {
    /// Returns a grid without lines. `sides` has a letter for each column: `l` or `r`.
    #[must_use]
    pub fn new(sides: &str) -> Grid {
        let side = |c| if c == 'r' { Side::Right } else { Side::Left };
        Grid::indented("", sides.chars().map(side).collect())
    }

    /// Returns a grid without lines, each of which will start with `indent`.
    #[must_use]
    pub fn indented(indent: &'static str, sides: Vec<Side>) -> Grid {
        Grid { indent, sides, lines: Vec::new() }
    }

    /// Adds a line of cells.
    pub fn cells<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.lines.push(Line::Cells(cells.into_iter().map(Into::into).collect()));
    }

    /// Adds a line of text, which does not affect the columns' widths.
    pub fn text(&mut self, text: impl Into<String>) {
        self.lines.push(Line::Text(text.into()));
    }

    /// Adds a rule below all columns.
    pub fn rule(&mut self) {
        self.lines.push(Line::Rule);
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.sides.len()];
        for line in &self.lines {
            let Line::Cells(cells) = line else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(length(cell));
            }
        }
        widths
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for line in &self.lines {
            let mut text = String::from(self.indent);
            match line {
                Line::Text(line) => text.push_str(line),
                Line::Rule => {
                    let columns = widths.iter().filter(|width| **width > 0).count();
                    let gaps = GAP.len() * columns.saturating_sub(1);
                    text.push_str(&"-".repeat(widths.iter().sum::<usize>() + gaps));
                }
                Line::Cells(cells) => {
                    let mut gap = "";
                    for ((cell, &width), side) in cells.iter().zip(&widths).zip(&self.sides) {
                        // An empty column takes no space, and no gap.
                        if width == 0 {
                            continue;
                        }
                        text.push_str(gap);
                        gap = GAP;
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
        grid.rule();
        assert_eq!(grid.to_string(), "a      12  x\nbetween\nlong  ≥ 1\n------------\n");
    }
}
