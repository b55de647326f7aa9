//! An experiment's file: TOML, with the line of whatever is wrong.
//!
//! Everything in it is bounded before it is kept, as a file may come from anybody: its bytes, its
//! names, its factors and their product.

use std::collections::BTreeSet;

use toml::Spanned;

use super::document::{self, Document, Lines, unknown};
use super::formula::Formula;
use super::grid::{self, Choice, Grid};
use super::{Cell, Expectation, Experiment, Factor, Level, Metric, Plan, Side};
use crate::scenario::{Scenario, named};
use crate::settings::{Setting, Value, in_file, wrong};
use crate::{Result, window};

/// Bytes of a file.
pub(super) const FILE_MAX: usize = 1 << 20;

/// Reads a file that is called `name`.
pub(super) fn parse(text: &str, name: &str) -> Result<Experiment> {
    experiment(text).map_err(|e| in_file(e, name))
}

fn experiment(text: &str) -> Result<Experiment> {
    if text.len() > FILE_MAX {
        return Err(wrong(0, format!("the file has more than {FILE_MAX} bytes")));
    }
    let (file, lines) = document::read(text)?;
    let Document { id, title, question, reproduces: post, profiles, .. } = file;
    let scenario = file.scenario.unwrap_or_default();
    let plan = plan(file.plan);
    let both = file.settings.settings(&lines);
    let side = |side: document::Side| Side {
        settings: both.and(&side.set.settings(&lines)),
        name: side.name,
    };
    let (a, b) = (side(file.a), side(file.b));
    let mut choices = Vec::new();
    let mut names = Names::of("factor");
    for factor in file.factors {
        let line = lines.line(factor.span().start);
        choices.push(choice(factor.into_inner(), line, &lines, &mut names)?);
    }
    let sides = (a.settings.clone(), b.settings.clone());
    let grid = Grid { scenario: &scenario, sides: &sides, plan: &plan, factors: &choices };
    let cells = grid::cells(&grid)?;
    differ(&cells, sides.0 != sides.1)?;
    let used: BTreeSet<&str> = cells.iter().map(|cell| cell.scenario.as_str()).collect();
    let used: Vec<_> = used.into_iter().filter_map(named).collect();
    let factors: Vec<Factor> = choices.into_iter().map(|choice| choice.factor).collect();
    let metrics = metrics(file.metrics, &factors, &figures(&used, &cells), &lines)?;
    Ok(Experiment {
        id,
        title,
        question,
        post,
        scenario,
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

/// Refuses a cell in which a level has made both sides the same, in a file whose sides are not.
fn differ(cells: &[Cell], sides_do: bool) -> Result<()> {
    let same = |cell: &&Cell| cell.a.iter().map(said).eq(cell.b.iter().map(said));
    let some_do = sides_do || cells.iter().any(|cell| !same(&cell));
    let Some(cell) = cells.iter().find(same).filter(|_| some_do) else { return Ok(()) };
    let line = cell.b.iter().map(|(_, setting)| setting.line).max().unwrap_or(0);
    let why = format!("in cell {:?} both sides are told the same", cell.name());
    Err(wrong(line, why).fix("a level's `set` is for both sides; `a` and `b` are for one"))
}

/// A setting without the place where it was said.
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
        // Fewer cannot tell any difference from chance, over a grid of a dozen cells.
        quick_pairs: plan.quick.pairs.unwrap_or(9),
        quick_window_ns: plan.quick.window.unwrap_or(window_ns),
    }
}

/// Checks a factor that begins on `line`.
fn choice(
    factor: document::Factor,
    line: usize,
    lines: &Lines,
    names: &mut Names,
) -> Result<Choice> {
    let name = names.add(factor.name, lines)?;
    let (mut levels, mut quick_windows_ns) = (Vec::new(), Vec::new());
    let mut level_names = Names::of("level");
    for level in factor.levels {
        quick_windows_ns.push(level.quick_window.or(level.window));
        levels.push(Level {
            name: level_names.add(level.name, lines)?,
            scenario: level.scenario,
            window_ns: level.window,
            fresh: level.fresh,
            both: level.set.settings(lines),
            a: level.a.settings(lines),
            b: level.b.settings(lines),
            quick: level.quick,
        });
    }
    if levels.is_empty() {
        return Err(wrong(line, format!("factor {name:?} has no [[factor.level]]")));
    }
    if !levels.iter().any(|level| level.quick) {
        let why = format!("no level of factor {name:?} is quick, so that a quick run is empty");
        return Err(wrong(line, why).fix("quick = true"));
    }
    Ok(Choice { line, factor: Factor { name, about: factor.about, levels }, quick_windows_ns })
}

fn metrics(
    metrics: Vec<document::Metric>,
    factors: &[Factor],
    figures: &BTreeSet<&str>,
    lines: &Lines,
) -> Result<Vec<Metric>> {
    let mut names = Names::of("metric");
    let each = metrics.into_iter().map(|metric| {
        let expected = metric.expected.into_iter().map(|one| expectation(one, factors, lines));
        Ok(Metric {
            name: names.add(metric.name, lines)?,
            unit: metric.unit,
            about: metric.about,
            formula: formula(metric.value, figures, lines)?,
            goal: metric.better,
            clock: metric.clock,
            expected: expected.collect::<Result<_>>()?,
        })
    });
    let metrics: Vec<Metric> = each.collect::<Result<_>>()?;
    match metrics.is_empty() {
        true => Err(wrong(1, "there is no [[metric]], so that nothing is measured")),
        false => Ok(metrics),
    }
}

/// Returns the names of all figures that the windows of all cells count: the common ones, those of
/// their scenarios, and those that a cell's own settings name (`json` of the scenario `command`:
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

/// Refuses a formula that has a figure which there is not.
fn formula(formula: Spanned<Formula>, figures: &BTreeSet<&str>, lines: &Lines) -> Result<Formula> {
    let there = |name: &str| {
        let event = name.strip_prefix("pmu.").is_some_and(|event| !event.is_empty());
        event || figures.contains(name)
    };
    if let Some(name) = formula.get_ref().figures().find(|name| !there(name)) {
        let (line, known) = (lines.line(formula.span().start), figures.iter().copied());
        return Err(unknown(line, "no scenario of a cell has a figure", name, known));
    }
    Ok(formula.into_inner())
}

fn expectation(
    expected: document::Expectation,
    factors: &[Factor],
    lines: &Lines,
) -> Result<Expectation> {
    let mut at = Vec::new();
    for (factor, level) in expected.at {
        let line = lines.line(level.span().start);
        let names = factors.iter().map(|factor| factor.name.as_str());
        let Some(known) = factors.iter().find(|known| known.name == factor) else {
            return Err(unknown(line, "there is no factor", &factor, names));
        };
        let names = known.levels.iter().map(|level| level.name.as_str());
        if !names.clone().any(|name| name == level.get_ref()) {
            let what = format!("factor {factor:?} has no level");
            return Err(unknown(line, &what, level.get_ref(), names));
        }
        at.push((factor, level.into_inner()));
    }
    Ok(Expectation { at, change_pct: expected.change_pct, source: expected.source })
}

/// Names that must differ.
struct Names {
    of: &'static str,
    seen: BTreeSet<String>,
}

impl Names {
    fn of(of: &'static str) -> Names {
        Names { of, seen: BTreeSet::new() }
    }

    fn add(&mut self, name: Spanned<String>, lines: &Lines) -> Result<String> {
        if self.seen.insert(name.get_ref().clone()) {
            return Ok(name.into_inner());
        }
        let why = format!("there are two of {} {:?}", self.of, name.get_ref());
        Err(wrong(lines.line(name.span().start), why))
    }
}

#[cfg(test)]
mod tests;
