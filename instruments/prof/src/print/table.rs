//! A profile as a table for people.

use std::fmt;

use linerate_show::grid::Grid;
use linerate_show::number;

use super::figures::{more_functions, percent};
use super::{Mark, by_falling_count, file_of, load_of, preface, short};
use crate::profile::{Profile, Row};
use crate::text::wrapped;

const NAME_WIDTH: usize = 44;
const OBJECT_WIDTH: usize = 20;

/// A profile with its conditions, cost and caveats.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    profile: &'a Profile,
    top: Option<usize>,
}

impl<'a> Table<'a> {
    /// Returns a table of all rows.
    #[must_use]
    pub fn new(profile: &'a Profile) -> Table<'a> {
        Table { profile, top: None }
    }

    /// Shows only the `top` largest rows; the others are summed in one row.
    #[must_use]
    pub fn top(self, top: Option<usize>) -> Table<'a> {
        Table { top, ..self }
    }

    fn row(&self, row: &Row) -> [String; 6] {
        let object = row.object.as_deref().map(|object| short(file_of(object), OBJECT_WIDTH));
        [
            number::count(row.count),
            self.share(row.count),
            load_of(row),
            short(&row.symbol, NAME_WIDTH),
            self.profile.stage_of(row).as_str().to_owned(),
            object.unwrap_or_else(|| row.space.to_string()),
        ]
    }

    fn share(&self, count: u64) -> String {
        match self.profile.total_count() {
            0 => "n/a".to_owned(),
            total => percent(100.0 * count as f64 / total as f64),
        }
    }

    /// Returns a row for a sum, which belongs to no function.
    fn sum(&self, count: u64, of: String) -> [String; 6] {
        let none = String::new;
        [number::count(count), self.share(count), none(), of, none(), none()]
    }

    fn grid(&self) -> Grid {
        let profile = self.profile;
        let rows = by_falling_count(profile);
        let shown = self.top.unwrap_or(rows.len()).min(rows.len());
        let (top, rest) = rows.split_at(shown);
        let unit = preface::unit(profile.event.unit);
        let mut grid = Grid::new("rrrlll");
        grid.cells(["count", "share", "load", "function", "stage", "object"]);
        grid.cells([unit, "%", &format!("{unit}/byte"), "", "", ""]);
        for row in top {
            grid.cells(self.row(row));
        }
        if !rest.is_empty() {
            let count = rest.iter().fold(0u64, |sum, row| sum.saturating_add(row.count));
            grid.cells(self.sum(count, more_functions(rest.len() as u64)));
        }
        let (counted, total) = (profile.counted(), profile.total_count());
        if total > counted {
            grid.cells(self.sum(total - counted, "(not listed by the maker)".to_owned()));
        }
        grid.cells(self.sum(total, "total".to_owned()));
        grid
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Mark::of(self.profile.origin).each_line(f, &fmt::from_fn(|f| self.text(f)))
    }
}

impl Table<'_> {
    /// Returns the lines above the functions: event, conditions, and caveats.
    #[must_use]
    pub fn preface(&self) -> String {
        let mark = Mark::of(self.profile.origin);
        fmt::from_fn(|f| mark.each_line(f, &fmt::from_fn(|f| self.head(f)))).to_string()
    }

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        if let Some(head) = &self.profile.head {
            writeln!(f, "\n{}", head.to_string().trim_end())?;
        }
        write!(f, "\n{}", self.grid())
    }

    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = self.profile;
        writeln!(f, "{}", preface::event(&profile.event, profile.origin))?;
        for line in preface::conditions(&profile.conditions) {
            f.write_str(&wrapped("", &line))?;
        }
        if let Some(cutoff) = profile.cutoff.filter(|n| *n > 1) {
            writeln!(f, "a function that is not listed: fewer than {}", number::count(cutoff))?;
        }
        let counted = profile.counted();
        if profile.total_count() < counted {
            writeln!(
                f,
                "! the maker's total is {}, its rows sum to {}",
                number::count(profile.total_count()),
                number::count(counted)
            )?;
        }
        for line in preface::caveats(profile.lost, profile.own_cost.as_ref(), &profile.remarks) {
            f.write_str(&wrapped("", &line))?;
        }
        Ok(())
    }
}
