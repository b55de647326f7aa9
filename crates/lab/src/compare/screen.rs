//! A comparison as printed.

use std::fmt;

use super::{Comparison, Row};
use crate::record::Verdict;

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_cycles = self.rows.iter().any(|row| row.a_cycles.is_some());
        let mut lines = vec![self.head(has_cycles)];
        lines.extend(self.rows.iter().map(|row| cells(row, has_cycles)));
        let columns = lines.first().map_or(0, Vec::len);
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut heading = "";
        for (number, line) in lines.iter().enumerate() {
            if let Some(row) = number.checked_sub(1).and_then(|row| self.rows.get(row))
                && row.cell != heading
            {
                heading = &row.cell;
                writeln!(f, "{heading}")?;
            }
            let padded = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                // Names and verdicts to the left, figures to the right.
                let left = column == 0 || column + 1 >= columns;
                if left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        self.tail(f)
    }
}

impl Comparison {
    fn head(&self, has_cycles: bool) -> Vec<String> {
        let mut head = vec!["metric", "unit", &self.a, &self.b];
        if has_cycles {
            head.extend(["cycles", "cycles"]);
        }
        head.extend(["Δ", "95% CI", "windows", "verdict"]);
        head.into_iter().map(str::to_owned).collect()
    }

    fn tail(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for why in &self.withheld {
            writeln!(f, "not compared: {why}")?;
        }
        let told = self.environment.iter().filter(|difference| !difference.decides);
        let told: Vec<String> = told.map(ToString::to_string).collect();
        if !self.differing().is_empty() {
            writeln!(f, "env differs: {} (use --allow-env to compare times)", self.differing())?;
        }
        if !told.is_empty() {
            writeln!(f, "also: {}", told.join(", "))?;
        }
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        self.failed.iter().try_for_each(|failed| writeln!(f, "failed: {failed}"))
    }
}

fn cells(row: &Row, has_cycles: bool) -> Vec<String> {
    let value = |below, value| format!("{}{}", if below { "<" } else { "" }, digits(value));
    let cycles = |value: Option<f64>| value.map_or("n/a".into(), digits);
    let mut cells = vec![
        row.metric.clone(),
        row.unit.clone(),
        value(row.below.0, row.a),
        value(row.below.1, row.b),
    ];
    if has_cycles {
        cells.extend([cycles(row.a_cycles), cycles(row.b_cycles)]);
    }
    let (low, high) = row.ci95_pct;
    cells.push(format!("{:+.1}%", row.change_pct));
    cells.push(format!("[{low:+.1},{high:+.1}]"));
    cells.push(format!("{}, {}", row.n_windows.0, row.n_windows.1));
    let gate = match (row.gate, row.failed) {
        (_, true) => "  <- gate, failed",
        (true, false) => "  <- gate",
        _ => "",
    };
    cells.push(format!("{}{gate}", word(row.verdict)));
    cells
}

/// Four digits, or all of a large number.
fn digits(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size >= 1000.0 || size == 0.0 => 0,
        _ if size >= 0.001 => (3.0 - size.log10().floor()) as usize,
        _ => return format!("{value:.3e}"),
    };
    format!("{value:.decimals$}")
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Same => "same",
        Verdict::Unclear => "unclear",
    }
}
