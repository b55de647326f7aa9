//! An experiment's file: TOML, with the line of whatever is wrong.
//!
//! Everything in it is bounded before it is kept, as a file may come from anybody: its bytes, its
//! names, its factors and their product.

use std::collections::BTreeSet;
use std::time::Duration;

use toml::de::DeTable;

use super::formula::Formula;
use super::grid::{self, Choice, Grid};
use super::section::{Lines, Said, Section, unknown};
use super::{Cell, Clock, Expectation, Experiment, Factor, FixedPoint, Level, Metric, Plan, Side};
use crate::scenario::{SCENARIOS, Scenario, named};
use crate::seeds::POSTS;
use crate::settings::{Setting, Value, in_file, wrong};
use crate::stats::Goal;
use crate::{Error, Result, window};

/// Bytes of a file.
pub(super) const FILE_MAX: usize = 1 << 20;
const FACTORS_MAX: usize = 16;
const LEVELS_MAX: usize = 256;
const METRICS_MAX: usize = 64;
const EXPECTATIONS_MAX: usize = 64;
const FIXED_MAX: usize = 256;
/// Pairs of a cell: beyond it a window is too short, not their number too small.
const PAIRS_MAX: u32 = 10_000;
const WINDOW_MIN: Duration = Duration::from_millis(1);
const WINDOW_MAX: Duration = Duration::from_mins(1);

const CLOCKS: [(&str, Clock); 3] =
    [("cost", Clock::Cost), ("wall", Clock::Wall), ("count", Clock::Count)];
const GOALS: [(&str, Goal); 2] = [("higher", Goal::More), ("lower", Goal::Less)];

/// Reads a file that is called `name`.
pub(super) fn parse(text: &str, name: &str) -> Result<Experiment> {
    experiment(text).map_err(|e| in_file(e, name))
}

fn experiment(text: &str) -> Result<Experiment> {
    if text.len() > FILE_MAX {
        return Err(wrong(0, format!("the file has more than {FILE_MAX} bytes")));
    }
    let lines = Lines::of(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    // Recovery reports what follows from an error too, and not in the order of the file.
    if let Some(e) = errors.iter().min_by_key(|e| e.span().map_or(0, |span| span.start)) {
        let line = e.span().map_or(1, |span| lines.line(span.start));
        return Err(wrong(line, e.message()));
    }
    let mut file = Section::root(&document, &lines);
    version(&mut file)?;
    let (id, title, question) =
        (id(&mut file)?, file.sentence("title")?, file.sentence("question")?);
    let post = post(&mut file)?;
    let scenario = scenario(&mut file)?;
    let scenario = file.required("scenario", scenario)?.value;
    let profiles = file.flag("profiles")?.unwrap_or(false);
    let both = file.settings("settings")?;
    let (a, b) = (side(&mut file, "a")?, side(&mut file, "b")?);
    let plan = plan(&mut file)?;
    let choices = factors(&mut file)?;
    let sides = (both.and(&a.settings), both.and(&b.settings));
    let cells = grid::cells(&Grid { scenario, sides: &sides, plan: &plan, factors: &choices })?;
    differ(&cells, sides.0 != sides.1)?;
    let used: BTreeSet<&str> = cells.iter().map(|cell| cell.scenario.as_str()).collect();
    let used: Vec<_> = used.into_iter().filter_map(named).collect();
    let factors: Vec<Factor> = choices.into_iter().map(|choice| choice.factor).collect();
    let metrics = metrics(&mut file, &factors, &figures(&used, &cells))?;
    let fixed_points = fixed_points(&mut file)?;
    file.finish()?;
    Ok(Experiment {
        id,
        title: title.value,
        question: question.value,
        post,
        scenario: scenario.into(),
        a: Side { settings: sides.0, ..a },
        b: Side { settings: sides.1, ..b },
        factors,
        cells,
        metrics,
        fixed_points,
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

fn version(file: &mut Section<'_>) -> Result<()> {
    let version = file.count("version", 0..=u32::MAX)?;
    match file.required("version", version)? {
        Said { value: 1, .. } => Ok(()),
        Said { value, line } => {
            let why = format!("version {value} of experiments' files is not known");
            Err(wrong(line, why).fix("this program reads version = 1"))
        }
    }
}

fn id(file: &mut Section<'_>) -> Result<String> {
    let id = file.name("id")?;
    let mut letters = id.value.chars();
    let begins = letters.next().is_some_and(|c| c.is_ascii_lowercase());
    if begins && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') {
        return Ok(id.value);
    }
    let why = format!("id {:?} is not a lower-case letter, then such letters, digits, -", id.value);
    Err(wrong(id.line, why))
}

fn post(file: &mut Section<'_>) -> Result<Option<String>> {
    let Some(post) = file.text("reproduces")? else { return Ok(None) };
    let ids = POSTS.iter().map(|post| post.id);
    match ids.clone().any(|id| id == post.value) {
        true => Ok(Some(post.value)),
        false => Err(unknown(post.line, "there is no post", &post.value, ids)),
    }
}

/// A scenario's name, where one is said.
fn scenario(section: &mut Section<'_>) -> Result<Option<Said<&'static str>>> {
    let Some(said) = section.text("scenario")? else { return Ok(None) };
    match named(&said.value) {
        Some(scenario) => Ok(Some(Said { value: scenario.name(), line: said.line })),
        None => {
            let names = SCENARIOS.iter().map(|scenario| scenario.name());
            Err(unknown(said.line, "there is no scenario", &said.value, names))
        }
    }
}

fn side(file: &mut Section<'_>, key: &'static str) -> Result<Side> {
    let section = file.section(key)?.ok_or_else(|| wrong(1, format!("there is no side [{key}]")));
    let mut section = section?;
    let name = section.sentence("name")?.value;
    let settings = section.settings("set")?;
    section.finish()?;
    Ok(Side { name, settings })
}

fn plan(file: &mut Section<'_>) -> Result<Plan> {
    let mut plan = Plan {
        window_ns: 50_000_000,
        warmup: 3,
        fresh: false,
        looks: vec![15, 30, 60],
        half_width_pct: 1.0,
        // Fewer cannot tell any difference from chance, over a grid of a dozen cells.
        quick_pairs: 9,
        quick_window_ns: 50_000_000,
    };
    let Some(mut section) = file.section("plan")? else { return Ok(plan) };
    plan.window_ns = section.time_ns("window", WINDOW_MIN..=WINDOW_MAX)?.unwrap_or(plan.window_ns);
    plan.quick_window_ns = plan.window_ns;
    plan.warmup = section.count("warmup", 0..=1000)?.map_or(plan.warmup, |said| said.value);
    plan.fresh = section.flag("fresh")?.unwrap_or(plan.fresh);
    plan.looks = section.ascending("looks", 1..=PAIRS_MAX)?.map_or(plan.looks, |said| said.value);
    if let Some(half_width) = section.number("half_width_pct")? {
        if half_width.value <= 0.0 {
            return Err(wrong(half_width.line, "\"half_width_pct\" is not above 0"));
        }
        plan.half_width_pct = half_width.value;
    }
    if let Some(mut quick) = section.section("quick")? {
        let pairs = quick.count("pairs", 1..=PAIRS_MAX)?;
        plan.quick_pairs = pairs.map_or(plan.quick_pairs, |said| said.value);
        let window = quick.time_ns("window", WINDOW_MIN..=WINDOW_MAX)?;
        plan.quick_window_ns = window.unwrap_or(plan.window_ns);
        quick.finish()?;
    }
    section.finish()?;
    Ok(plan)
}

fn factors(file: &mut Section<'_>) -> Result<Vec<Choice>> {
    let mut factors = Vec::new();
    let mut names = Names::of("factor");
    for mut section in file.sections("factor", FACTORS_MAX)? {
        let name = names.add(section.name("name")?)?;
        let about = section.sentence("about")?.value;
        let mut level_names = Names::of("level");
        let mut levels = Vec::new();
        let mut quick_windows_ns = Vec::new();
        for level in section.sections("level", LEVELS_MAX)? {
            let (level, quick_window_ns) = self::level(level, &mut level_names)?;
            levels.push(level);
            quick_windows_ns.push(quick_window_ns);
        }
        let line = section.line;
        section.finish()?;
        if levels.is_empty() {
            return Err(wrong(line, format!("factor {name:?} has no [[factor.level]]")));
        }
        if !levels.iter().any(|level| level.quick) {
            let why = format!("no level of factor {name:?} is quick, so that a quick run is empty");
            return Err(wrong(line, why).fix("quick = true"));
        }
        factors.push(Choice { line, factor: Factor { name, about, levels }, quick_windows_ns });
    }
    Ok(factors)
}

/// A level, and the length of its cells' windows in a quick run.
fn level(mut section: Section<'_>, names: &mut Names) -> Result<(Level, Option<u64>)> {
    let level = Level {
        name: names.add(section.name("name")?)?,
        scenario: scenario(&mut section)?.map(|said| said.value.into()),
        window_ns: section.time_ns("window", WINDOW_MIN..=WINDOW_MAX)?,
        fresh: section.flag("fresh")?,
        both: section.settings("set")?,
        a: section.settings("a")?,
        b: section.settings("b")?,
        quick: section.flag("quick")?.unwrap_or(false),
    };
    let quick_window_ns = section.time_ns("quick_window", WINDOW_MIN..=WINDOW_MAX)?;
    section.finish()?;
    let quick_window_ns = quick_window_ns.or(level.window_ns);
    Ok((level, quick_window_ns))
}

fn metrics(
    file: &mut Section<'_>,
    factors: &[Factor],
    figures: &BTreeSet<&str>,
) -> Result<Vec<Metric>> {
    let mut metrics = Vec::new();
    let mut names = Names::of("metric");
    for mut section in file.sections("metric", METRICS_MAX)? {
        let clock = section.choice("clock", &CLOCKS)?;
        let mut expected = Vec::new();
        for each in section.sections("expect", EXPECTATIONS_MAX)? {
            expected.push(expectation(each, factors)?);
        }
        metrics.push(Metric {
            name: names.add(section.name("name")?)?,
            unit: section.sentence("unit")?.value,
            about: section.sentence("about")?.value,
            formula: formula(section.sentence("value")?, figures)?,
            goal: section.choice("better", &GOALS)?.map(|said| said.value),
            clock: section.required("clock", clock)?.value,
            expected,
        });
        section.finish()?;
    }
    match metrics.is_empty() {
        true => Err(wrong(1, "there is no [[metric]], so that nothing is measured")),
        false => Ok(metrics),
    }
}

/// What the windows of all cells count: what all windows do, what their scenarios do, and what a
/// cell's own settings name (`json` of the scenario `command`: `name=/pointer`).
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

/// A formula whose figures there are.
fn formula(said: Said<String>, figures: &BTreeSet<&str>) -> Result<Formula> {
    let formula = Formula::parse(&said.value).map_err(|e| wrong(said.line, e.why))?;
    let there = |name: &str| {
        let event = name.strip_prefix("pmu.").is_some_and(|event| !event.is_empty());
        event || figures.contains(name)
    };
    if let Some(name) = formula.figures().find(|name| !there(name)) {
        let known = figures.iter().copied();
        return Err(unknown(said.line, "no scenario of a cell has a figure", name, known));
    }
    Ok(formula)
}

fn expectation(mut section: Section<'_>, factors: &[Factor]) -> Result<Expectation> {
    let mut at = Vec::new();
    for (factor, level) in section.texts("at")? {
        let names = factors.iter().map(|factor| factor.name.as_str());
        let Some(known) = factors.iter().find(|known| known.name == factor) else {
            return Err(unknown(level.line, "there is no factor", &factor, names));
        };
        let names = known.levels.iter().map(|level| level.name.as_str());
        if !names.clone().any(|name| name == level.value) {
            let what = format!("factor {factor:?} has no level");
            return Err(unknown(level.line, &what, &level.value, names));
        }
        at.push((factor, level.value));
    }
    let change_pct = section.range("change_pct")?;
    let change_pct = section.required("change_pct", change_pct)?.value;
    let source = section.sentence("source")?.value;
    section.finish()?;
    Ok(Expectation { at, change_pct, source })
}

fn fixed_points(file: &mut Section<'_>) -> Result<Vec<FixedPoint>> {
    let mut points = Vec::new();
    for mut section in file.sections("fixed", FIXED_MAX)? {
        let (a, b) = (section.number("a")?, section.number("b")?);
        points.push(FixedPoint {
            name: section.sentence("name")?.value,
            unit: section.sentence("unit")?.value,
            a: section.required("a", a)?.value,
            b: section.required("b", b)?.value,
            source: section.sentence("source")?.value,
        });
        section.finish()?;
    }
    Ok(points)
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

    fn add(&mut self, name: Said<String>) -> Result<String> {
        match self.seen.insert(name.value.clone()) {
            true => Ok(name.value),
            false => Err(self.twice(&name)),
        }
    }

    fn twice(&self, name: &Said<String>) -> Error {
        wrong(name.line, format!("there are two of {} {:?}", self.of, name.value))
    }
}

#[cfg(test)]
mod tests;
