//! The grid: every combination of the factors' levels, and its settings for the two sides.

use super::{Cell, Factor, Level, Plan};
use crate::Result;
use crate::settings::{Settings, Value, wrong};

/// Cells of a grid.
const CELLS_MAX: usize = 4096;
/// The limit of the settings of all cells, in bytes: each cell holds its settings in full.
const BYTES_MAX: usize = 64 << 20;

/// A factor, as its file says it.
pub(super) struct Choice {
    pub factor: Factor,
    /// The line that it begins on.
    pub line: usize,
    /// Length of a window in a quick run, level by level, if it is not the plan's.
    pub quick_windows_ns: Vec<Option<u64>>,
}

/// The parts that a grid is made from.
pub(super) struct Grid<'a> {
    pub scenario: &'a str,
    /// The settings of both sides without any factor.
    pub sides: &'a (Settings, Settings),
    pub plan: &'a Plan,
    pub factors: &'a [Choice],
}

/// Builds the cells of every combination; the first factor varies slowest.
pub(super) fn cells(grid: &Grid<'_>) -> Result<Vec<Cell>> {
    let sizes = grid.factors.iter().map(|choice| choice.factor.levels.len());
    let count = sizes.clone().try_fold(1_usize, |product, size| product.checked_mul(size));
    let line = grid.factors.first().map_or(0, |choice| choice.line);
    let Some(count) = count.filter(|count| *count <= CELLS_MAX) else {
        let product: Vec<String> = sizes.map(|size| size.to_string()).collect();
        let why = format!("{} cells are more than {CELLS_MAX}", product.join(" × "));
        return Err(wrong(line, why));
    };
    let mut cells = Vec::with_capacity(count);
    let mut bytes = 0;
    for number in 0..count {
        let cell = grid.cell(number);
        bytes += [&cell.a, &cell.b].into_iter().map(size_bytes).sum::<usize>();
        if bytes > BYTES_MAX {
            let why = format!("{count} cells have more than {BYTES_MAX} bytes of settings");
            return Err(wrong(line, why));
        }
        cells.push(cell);
    }
    Ok(cells)
}

impl Grid<'_> {
    /// The cell of that number, from 0.
    fn cell(&self, number: usize) -> Cell {
        let mut chosen: Vec<(&Choice, usize)> = Vec::with_capacity(self.factors.len());
        let mut rest = number;
        for choice in self.factors.iter().rev() {
            let levels = choice.factor.levels.len();
            chosen.push((choice, rest % levels));
            rest /= levels;
        }
        chosen.reverse();
        let levels: Vec<&Level> =
            chosen.iter().map(|(choice, i)| &choice.factor.levels[*i]).collect();
        let last_window_ns = levels.iter().rev().find_map(|level| level.window_ns);
        let fresh = levels.iter().rev().find_map(|level| level.fresh);
        let quick = chosen.iter().rev().find_map(|(choice, i)| choice.quick_windows_ns[*i]);
        let scenario = levels.iter().rev().find_map(|level| level.scenario.as_deref());
        let (a, b) = self.sides;
        Cell {
            at: chosen
                .iter()
                .zip(&levels)
                .map(|((choice, _), level)| (choice.factor.name.clone(), level.name.clone()))
                .collect(),
            scenario: scenario.unwrap_or(self.scenario).to_owned(),
            window_ns: last_window_ns.unwrap_or(self.plan.window_ns),
            quick_window_ns: quick.unwrap_or(self.plan.quick_window_ns),
            fresh: fresh.unwrap_or(self.plan.fresh),
            a: told(a, &levels, |level| &level.a),
            b: told(b, &levels, |level| &level.b),
            quick: levels.iter().all(|level| level.quick),
        }
    }
}

/// Merges the settings of a side: a more specific setting overrides a general one, and of equals
/// the later wins.
fn told(side: &Settings, levels: &[&Level], own: fn(&Level) -> &Settings) -> Settings {
    let both = levels.iter().fold(side.clone(), |told, level| told.and(&level.both));
    levels.iter().fold(both, |told, level| told.and(own(level)))
}

fn size_bytes(settings: &Settings) -> usize {
    settings.iter().map(|(name, setting)| name.len() + 64 + value_bytes(&setting.value)).sum()
}

fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len(),
        Value::List(list) => list.iter().map(|one| 32 + value_bytes(one)).sum(),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => 0,
    }
}
