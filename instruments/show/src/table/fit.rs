//! Fitting of tables to the width of a screen.

use super::{Cell, Row, Table};
use crate::words::{WIDTH, elided};

impl Table {
    /// Returns the table with lines of limited width: factors in names such as `burst=64` move to
    /// the title, and if that is not enough, the longest names lose their middle. If that is not
    /// enough either, returns the table unchanged.
    #[must_use]
    pub fn fitted(self) -> Table {
        if over(&self).is_none() {
            return self;
        }
        let mut table = self.clone();
        headed(&mut table);
        while let Some(over) = over(&table) {
            let names = table.rows.iter().filter_map(|row| match row {
                Row::Cells(cells) => cells.iter().filter_map(length_of_name).max(),
                Row::Heading(_) | Row::Rule => None,
            });
            let longest = names.max().unwrap_or(0);
            // Shorter names than ten letters could not be distinguished.
            let kept = longest.saturating_sub(over).max(10);
            if kept >= longest {
                return self;
            }
            for row in &mut table.rows {
                let Row::Cells(cells) = row else { continue };
                for cell in cells {
                    if let Cell::Text(name) = cell {
                        *name = elided(name, kept);
                    }
                }
            }
        }
        table
    }
}

/// Returns the number of letters by which the table is too wide.
fn over(table: &Table) -> Option<usize> {
    let widest = table.to_string().lines().map(|line| line.chars().count()).max().unwrap_or(0);
    widest.checked_sub(WIDTH).filter(|over| *over > 0)
}

/// Moves factors that are equal in all rows' names to the title: `buffers burst` over `malloc
/// 1024`. Shortening the names could remove the only difference between two cells.
fn headed(table: &mut Table) {
    let mut names: Vec<&mut String> = Vec::new();
    for row in &mut table.rows {
        match row {
            Row::Cells(cells) => match cells.first_mut() {
                Some(Cell::Text(name)) => names.push(name),
                _ => return,
            },
            Row::Heading(_) | Row::Rule => {}
        }
    }
    let parts = |name: &str| -> Option<Vec<(String, String)>> {
        let part = |part: &str| part.split_once('=').map(|(f, l)| (f.to_owned(), l.to_owned()));
        name.split_whitespace().map(part).collect()
    };
    let Some(all) = names.iter().map(|name| parts(name)).collect::<Option<Vec<_>>>() else {
        return;
    };
    let factors = |row: &Vec<(String, String)>| row.iter().map(|(f, _)| f.clone()).collect();
    let heads: Vec<Vec<String>> = all.iter().map(factors).collect();
    let Some(head) = heads.first().filter(|head| heads.iter().all(|other| other == *head)) else {
        return;
    };
    let length = |text: &str| text.chars().count();
    let width = |i: usize| {
        let levels = all.iter().filter_map(|row| row.get(i)).map(|(_, level)| length(level));
        levels.chain(head.get(i).map(|name| length(name))).max().unwrap_or(0)
    };
    let line = |texts: Vec<&str>| {
        let each = texts.iter().enumerate().map(|(i, text)| format!("{text:<0$}", width(i)));
        each.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    };
    for (name, row) in names.into_iter().zip(&all) {
        *name = line(row.iter().map(|(_, level)| level.as_str()).collect());
    }
    let head = line(head.iter().map(String::as_str).collect());
    table.rows.insert(0, Row::Heading(head));
}

fn length_of_name(cell: &Cell) -> Option<usize> {
    match cell {
        Cell::Text(name) => Some(name.chars().count()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Column;
    use super::*;

    fn table(names: &[&str]) -> Table {
        let mut table =
            Table::new("t", "t", &[Column::new("cell", "cell", ""), Column::new("v", "v", "")]);
        for name in names {
            table.row(vec![Cell::text(*name), Cell::Text("x".repeat(60))]);
        }
        table
    }

    #[test]
    fn levels_stay_whole_where_the_factors_names_can_be_said_once() {
        let names = [
            "buffers=malloc burst=64   receiver=looking",
            "buffers=malloc burst=1024 receiver=woken",
        ];
        let text = table(&names).fitted().to_string();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        for part in ["buffers burst receiver", "malloc  64    looking", "malloc  1024  woken"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains('\u{2026}'), "{text}");
    }

    #[test]
    fn a_table_that_cannot_be_fitted_keeps_its_names() {
        let mut table = Table::new("t", "t", &[Column::new("v", "v", ""); 6]);
        let mut cells = vec![Cell::Count(u64::MAX); 6];
        cells[0] = Cell::text("a".repeat(30) + &"b".repeat(30));
        table.row(cells);
        assert_eq!(table.clone().fitted(), table);
    }

    #[test]
    fn other_names_lose_their_middle_and_short_ones_nothing() {
        let long = "a".repeat(30) + &"b".repeat(30);
        let text = table(&[&long, "factor=level"]).fitted().to_string();
        assert!(text.contains("a\u{2026}b"), "{text}");
        let few = table(&["factor=level"]);
        assert_eq!(few.clone().fitted().to_string(), few.to_string());
    }
}
