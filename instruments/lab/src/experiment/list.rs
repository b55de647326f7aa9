//! The list of experiments: a line for each.

use std::fmt;
use std::time::Duration;

use linerate_show::table::{Cell, Column, Table};
use linerate_show::words::{WIDTH, wrapped};
use serde::{Serialize, Serializer};

use super::here::{Here, lasting};
use crate::experiment::Experiment;
use crate::scenario::Place;

/// A list with one line for each experiment: its post, its cells, its time, and if it can run here.
#[derive(Debug)]
pub struct List<'a> {
    /// The experiments to list.
    pub experiments: &'a [Experiment],
    /// The place to check them for.
    pub place: &'a Place,
}

const COLUMNS: [Column; 6] = [
    Column::new("id", "ID", ""),
    Column::new("reproduces", "POST", ""),
    Column::new("cells", "CELLS", ""),
    Column::new("time", "TIME", ""),
    Column::new("quick", "QUICK", ""),
    Column::new("here", "HERE", ""),
];

/// One line of the list.
#[derive(Debug, Serialize)]
struct Line<'a> {
    id: &'a str,
    title: &'a str,
    reproduces: Option<&'a str>,
    cells: usize,
    quick_cells: usize,
    /// The longest planned time; `None` if it is not known.
    planned_s: Option<f64>,
    quick_planned_s: Option<f64>,
    here: Here,
}

impl<'a> List<'a> {
    fn lines(&self) -> Vec<Line<'a>> {
        let line = |one: &'a Experiment| Line {
            id: &one.id,
            title: &one.title,
            reproduces: one.post.as_deref(),
            cells: one.cells.len(),
            quick_cells: one.cells(true).count(),
            planned_s: one.planned(false).map(|time| time.as_secs_f64()),
            quick_planned_s: one.planned(true).map(|time| time.as_secs_f64()),
            here: one.here(self.place),
        };
        self.experiments.iter().map(line).collect()
    }
}

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines();
        let mut table = Table::new("experiments", "", &COLUMNS);
        for (line, one) in lines.iter().zip(self.experiments) {
            table.row(vec![
                Cell::text(line.id),
                Cell::text(line.reproduces.unwrap_or("-")),
                Cell::Count(line.cells as u64),
                time(one.planned(false)),
                time(one.planned(true)),
                Cell::text(line.here.in_short()),
            ]);
        }
        writeln!(f, "{table}")?;
        let widest = lines.iter().map(|line| line.id.len()).max().unwrap_or(0);
        for line in &lines {
            let first = format!("  {:widest$}  ", line.id);
            f.write_str(&wrapped(line.title, &first, &" ".repeat(first.len().min(WIDTH / 2))))?;
        }
        for line in &lines {
            for obstacle in &line.here.obstacles {
                f.write_str("\n")?;
                write!(f, "{}", wrapped(&format!("{}: {obstacle}", line.id), "! ", "  "))?;
            }
        }
        f.write_str(
            "\nTIME and QUICK are at most: a cell ends as soon as enough is known of it.\n",
        )?;
        if self.experiments.iter().any(|one| one.planned(false).is_none()) {
            f.write_str("n/a: a window takes as long as its program does.\n")?;
        }
        Ok(())
    }
}

fn time(planned: Option<Duration>) -> Cell {
    Cell::Text(planned.map_or("n/a".into(), lasting))
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.lines())
    }
}
