//! Parsing of an experiment's TOML file, with the line number in each error, and of its grid of
//! cells.
//!
//! Everything in it is bounded before it is kept, as a file is not trusted: its bytes, its
//! names, its factors and their product.

use std::collections::BTreeSet;

use super::document::{self, Document, unknown};
use super::{Cell, Experiment, Factor, Level, Metric, Plan, Side};
use crate::scenario::{Scenario, named};
use crate::settings::{Setting, Settings, Value, in_file, wrong};
use crate::{Result, window};

/// The largest size of a file, in bytes.
pub(super) const FILE_MAX: usize = 1 << 20;

/// Parses the text of a file; errors call the file `name`.
pub(super) fn parse(text: &str, name: &str) -> Result<Experiment> {
    experiment(text).map_err(|e| in_file(e, name))
}

fn experiment(text: &str) -> Result<Experiment> {
    if text.len() > FILE_MAX {
        return Err(wrong(0, format!("the file has more than {FILE_MAX} bytes")));
    }
    let (file, lines) = document::read(text)?;
    let Document { id, title, question, reproduces: post, device, profiles, .. } = file;
    let scenario = file.scenario.unwrap_or_default();
    let plan = plan(file.plan);
    let in_lines = |settings: Settings| settings.in_lines(|byte| lines.line(byte));
    let both = in_lines(file.settings);
    let side = |Side { name, settings }| Side { name, settings: both.and(&in_lines(settings)) };
    let (a, b) = (side(file.a), side(file.b));
    let first = file.factors.first().map_or(0, |first| lines.line(first.span().start));
    let mut factors = Vec::new();
    for spanned in file.factors {
        let line = lines.line(spanned.span().start);
        let mut factor = spanned.into_inner();
        for level in &mut factor.levels {
            for settings in [&mut level.both, &mut level.a, &mut level.b] {
                *settings = in_lines(std::mem::take(settings));
            }
        }
        check_factor(&factor, &factors, line)?;
        factors.push(factor);
    }
    let grid = Grid { scenario: &scenario, a: &a, b: &b, plan: &plan, factors: &factors };
    let cells = cells(&grid, first)?;
    differ(&cells, a.settings != b.settings)?;
    let used: BTreeSet<&str> = cells.iter().map(|cell| cell.scenario.as_str()).collect();
    let used: Vec<_> = used.into_iter().filter_map(named).collect();
    let known = figures(&used, &cells);
    let mut metrics: Vec<Metric> = Vec::new();
    for metric in file.metrics {
        let line = lines.line(metric.span().start);
        check_metric(metric.get_ref(), &metrics, &factors, &known, line)?;
        metrics.push(metric.into_inner());
    }
    if metrics.is_empty() {
        return Err(wrong(1, "there is no [[metric]], so that nothing is measured"));
    }
    Ok(Experiment {
        id,
        title,
        question,
        post,
        scenario,
        device,
        a,
        b,
        factors,
        cells,
        metrics,
        fixed_points: file.fixed_points,
        plan,
        profiles,
        toml: text.into(),
    })
}

/// Refuses a cell in which a level makes both sides equal, if the file's sides differ.
fn differ(cells: &[Cell], sides_do: bool) -> Result<()> {
    let same = |cell: &&Cell| cell.a.iter().map(said).eq(cell.b.iter().map(said));
    let some_do = sides_do || cells.iter().any(|cell| !same(&cell));
    let Some(cell) = cells.iter().find(same).filter(|_| some_do) else { return Ok(()) };
    let line = cell.b.iter().map(|(_, setting)| setting.line).max().unwrap_or(0);
    let why = format!("in cell {:?} both sides have the same settings", cell.name());
    Err(wrong(line, why).fix("a level's `set` is for both sides; `a` and `b` are for one"))
}

/// Returns a setting without its position in the file.
fn said<'a>((name, setting): (&'a str, &'a Setting)) -> (&'a str, &'a Value) {
    (name, &setting.value)
}

fn plan(plan: document::Plan) -> Plan {
    let window_ns = plan.window.unwrap_or(50_000_000);
    Plan {
        window_ns,
        warmup: plan.warmup.unwrap_or(3),
        fresh: plan.fresh,
        looks: plan.looks.unwrap_or_else(|| vec![15, 30, 60]),
        half_width_pct: plan.half_width_pct.unwrap_or(1.0),
        family: plan.family,
        // With fewer than 9 pairs, no difference could be distinguished from chance over a grid of
        // a dozen cells.
        quick_pairs: plan.quick.pairs.unwrap_or(9),
        quick_window_ns: plan.quick.window.unwrap_or(window_ns),
    }
}

/// Checks a factor that begins on `line`.
fn check_factor(factor: &Factor, before: &[Factor], line: usize) -> Result<()> {
    let Factor { name, levels, .. } = factor;
    once("factor", name, before.iter().map(|factor| factor.name.as_str()), line)?;
    for (i, level) in levels.iter().enumerate() {
        once("level", &level.name, levels[..i].iter().map(|level| level.name.as_str()), line)?;
    }
    if levels.is_empty() {
        return Err(wrong(line, format!("factor {name:?} has no [[factor.level]]")));
    }
    if !levels.iter().any(|level| level.quick) {
        let why = format!("no level of factor {name:?} is quick, so that a quick run is empty");
        return Err(wrong(line, why).fix("quick = true"));
    }
    Ok(())
}

/// Checks a metric that begins on `line`: its figures and its expectations.
fn check_metric(
    metric: &Metric,
    before: &[Metric],
    factors: &[Factor],
    figures: &BTreeSet<&str>,
    line: usize,
) -> Result<()> {
    once("metric", &metric.name, before.iter().map(|metric| metric.name.as_str()), line)?;
    let there = |name: &str| {
        let event = name.strip_prefix("pmu.").is_some_and(|event| !event.is_empty());
        event || figures.contains(name)
    };
    if let Some(name) = metric.formula.figures().find(|name| !there(name)) {
        let known = figures.iter().copied();
        return Err(unknown(line, "no scenario of a cell has a figure", name, known));
    }
    for (factor, level) in metric.expected.iter().flat_map(|expected| &expected.at) {
        let Some(known) = factors.iter().find(|known| known.name == *factor) else {
            let names = factors.iter().map(|factor| factor.name.as_str());
            return Err(unknown(line, "there is no factor", factor, names));
        };
        let mut names = known.levels.iter().map(|level| level.name.as_str());
        if !names.clone().any(|name| name == level) {
            let what = format!("factor {factor:?} has no level");
            return Err(unknown(
                line,
                &what,
                level,
                names.by_ref().collect::<Vec<_>>().into_iter(),
            ));
        }
    }
    check_expectations(metric, line)
}

/// Refuses two expectations for the same cells, and an expectation over all cells of a metric that
/// has no line over all cells, because neither direction is better.
fn check_expectations(metric: &Metric, line: usize) -> Result<()> {
    let Metric { name, expected, .. } = metric;
    let is_again = |i: &usize| expected[..*i].iter().any(|before| before.at == expected[*i].at);
    if let Some(again) = (0..expected.len()).find(is_again) {
        let at = &expected[again].at;
        let at: Vec<String> = at.iter().map(|(name, level)| format!("{name}={level}")).collect();
        let at = if at.is_empty() { "all cells".into() } else { at.join(" ") };
        let why = format!("metric {name:?} has two expectations for the same cells: {at}");
        return Err(wrong(line, why).fix("remove one of them, or name more factors in one"));
    }
    if metric.expected_overall.is_some() && metric.goal.is_none() {
        let why = format!("metric {name:?} has [metric.overall], but no line over all cells");
        return Err(wrong(line, why).fix("better = \"higher\", or better = \"lower\""));
    }
    Ok(())
}

/// Refuses a duplicate name.
fn once<'a>(
    of: &str,
    name: &str,
    mut before: impl Iterator<Item = &'a str>,
    line: usize,
) -> Result<()> {
    match before.any(|other| other == name) {
        true => Err(wrong(line, format!("there are two of {of} {name:?}"))),
        false => Ok(()),
    }
}

/// Returns the names of all figures that windows of the cells have: the common ones, those of their
/// scenarios, and those that a cell's own settings name (`json` of the scenario `command`:
/// `name=/pointer`).
fn figures<'a>(scenarios: &[&'a dyn Scenario], cells: &'a [Cell]) -> BTreeSet<&'a str> {
    let common = window::COMMON.iter().map(|(name, _)| *name);
    let own = scenarios.iter().flat_map(|scenario| scenario.figures()).map(|figure| figure.name);
    let sides = cells.iter().flat_map(|cell| [&cell.a, &cell.b]);
    let lists = sides.filter_map(|side| match &side.get("json")?.value {
        Value::List(list) => Some(list),
        _ => None,
    });
    let named = lists.flatten().filter_map(|one| match one {
        Value::Text(text) => text.split_once('=').map(|(name, _)| name),
        _ => None,
    });
    common.chain(own).chain(named).collect()
}

/// Most cells of a grid.
const CELLS_MAX: usize = 4096;
/// Limit of the settings of all cells, in bytes: each cell has a full copy of its settings.
const BYTES_MAX: usize = 64 << 20;

/// The parts that a grid is made from.
struct Grid<'a> {
    scenario: &'a str,
    a: &'a Side,
    b: &'a Side,
    plan: &'a Plan,
    factors: &'a [Factor],
}

/// Builds the cells of every combination; the first factor, which begins on `line`, varies slowest.
fn cells(grid: &Grid<'_>, line: usize) -> Result<Vec<Cell>> {
    let sizes = grid.factors.iter().map(|factor| factor.levels.len());
    let count = sizes.clone().try_fold(1_usize, |product, size| product.checked_mul(size));
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
    /// Returns the cell with this number, counted from 0.
    fn cell(&self, number: usize) -> Cell {
        let mut levels: Vec<&Level> = Vec::with_capacity(self.factors.len());
        let mut rest = number;
        for factor in self.factors.iter().rev() {
            levels.push(&factor.levels[rest % factor.levels.len()]);
            rest /= factor.levels.len();
        }
        // `levels` begins with the last factor: the last factor that sets a value wins.
        let scenario = levels.iter().find_map(|level| level.scenario.as_deref());
        let window_ns = levels.iter().find_map(|level| level.window_ns);
        let quick_ns = levels.iter().find_map(|level| level.quick_window_ns.or(level.window_ns));
        let fresh = levels.iter().find_map(|level| level.fresh);
        levels.reverse();
        let at = self.factors.iter().zip(&levels);
        Cell {
            at: at.map(|(factor, level)| (factor.name.clone(), level.name.clone())).collect(),
            scenario: scenario.unwrap_or(self.scenario).to_owned(),
            window_ns: window_ns.unwrap_or(self.plan.window_ns),
            quick_window_ns: quick_ns.unwrap_or(self.plan.quick_window_ns),
            fresh: fresh.unwrap_or(self.plan.fresh),
            a: told(&self.a.settings, &levels, |level| &level.a),
            b: told(&self.b.settings, &levels, |level| &level.b),
            quick: levels.iter().all(|level| level.quick),
        }
    }
}

/// Merges the settings of a side: a more specific setting overrides a general one, and among equals
/// the later one wins.
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

#[cfg(test)]
mod tests;
