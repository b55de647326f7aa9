//! The ranked difference: savings by function.

use std::fmt;

use linerate_show::grid::Grid;
use linerate_show::number;

use super::figures::{change, digits, functions, more_functions, saving};
use super::{Mark, harmless, preface, short};
use crate::diff::{By, Change, Count, Diff, Row, SIGMAS, Scale, Side, Sum, is_sampled};
use crate::stage::Part;
use crate::text::wrapped;

const NAME_WIDTH: usize = 36;

/// A difference as a table: for people, or in the plain layout of McKenney's post.
#[derive(Debug, Clone, Copy)]
pub struct Ranked<'a> {
    diff: &'a Diff,
    as_posted: bool,
    top: Option<usize>,
}

impl<'a> Ranked<'a> {
    /// Returns a table of all rows, for people.
    #[must_use]
    pub fn new(diff: &'a Diff) -> Ranked<'a> {
        Ranked { diff, as_posted: false, top: None }
    }

    /// Prints only `function with without difference`: 0 for an absent count, all rows in one list,
    /// counts without scale.
    #[must_use]
    pub fn as_posted(self, as_posted: bool) -> Ranked<'a> {
        Ranked { as_posted, ..self }
    }

    /// Shows only the `top` largest savings and the `top` largest rises of each part; the other
    /// functions are summed by class: fell, within sampling noise, rose.
    #[must_use]
    pub fn top(self, top: Option<usize>) -> Ranked<'a> {
        Ranked { top, ..self }
    }

    fn post(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.diff.rows {
            let (with, without) = (row.with.as_posted(), row.without.as_posted());
            let saved = row.sum().saved_counts();
            writeln!(f, "{} {with} {without} {saved}", harmless(&row.symbol))?;
        }
        Ok(())
    }

    /// Builds the table of functions: the path's first, then the others.
    fn functions(&self) -> Grid {
        let unit = preface::unit_of(self.diff);
        let mut grid = Grid::new("llrrrrrl");
        let [head, packets] = match self.packets() {
            Some(_) => ["difference".to_owned(), format!("{unit}{}", By::KiloPacket.suffix())],
            None => [String::new(), String::new()],
        };
        let head =
            ["function", "stage", "with", "without", "difference", "saving", &head, "change"];
        grid.cells(head);
        grid.cells(["", "", &unit, &unit, &unit, "%", &packets, ""]);
        for &part in Part::ALL {
            let rows: Vec<&Row> = self.diff.rows_of(part).collect();
            if rows.is_empty() {
                continue;
            }
            if let Some(head) = head_of(part) {
                grid.text("");
                grid.text(head);
            }
            self.rows(&rows, &mut grid);
        }
        grid
    }

    fn rows(&self, rows: &[&Row], grid: &mut Grid) {
        let top = self.top.unwrap_or(rows.len()).min(rows.len());
        let (first, below) = rows.split_at(top);
        let (rising, others): (Vec<&Row>, Vec<&Row>) =
            below.iter().partition(|row| self.diff.change(row).is_rise());
        let (noise, fell): (Vec<&Row>, Vec<&Row>) =
            others.into_iter().partition(|row| self.diff.change(row) == Change::Noise);
        // Rows are ranked by saving, so the largest rises are at the end.
        let (risen, last) = rising.split_at(rising.len().saturating_sub(top));
        first.iter().for_each(|row| grid.cells(self.row(row)));
        self.rest(&fell, more_functions, grid);
        self.rest(&noise, |n| format!("({} more within noise)", number::count(n)), grid);
        self.rest(risen, |n| format!("({} more that rose, or may have)", number::count(n)), grid);
        last.iter().for_each(|row| grid.cells(self.row(row)));
    }

    /// Adds a row with the sum of `rows`, which are not shown.
    fn rest(&self, rows: &[&Row], name: fn(u64) -> String, grid: &mut Grid) {
        if rows.is_empty() {
            return;
        }
        let rest = self.diff.sum_rows(rows.iter().copied());
        let [with, without, saved] = self.sum(rest);
        let saving = saving(rest.figures(self.diff.scale));
        let packets = self.packets().map(|scale| real(rest.saved(scale), scale));
        let packets = packets.unwrap_or_default();
        let none = String::new;
        let name = name(rest.functions);
        grid.cells([name, none(), with, without, saved, saving, packets, none()]);
    }

    fn row(&self, row: &Row) -> [String; 8] {
        let scale = self.diff.scale;
        [
            short(&row.symbol, NAME_WIDTH),
            row.stage.as_str().to_owned(),
            self.count(row.with, scale.with_factor),
            self.count(row.without, scale.without_factor),
            difference(row, scale),
            saving(row.sum().figures(scale)),
            self.packets().map(|scale| difference(row, scale)).unwrap_or_default(),
            self.diff.change(row).mark(),
        ]
    }

    fn count(&self, count: Count, factor: f64) -> String {
        let scale = self.diff.scale;
        let real = |n: u64| match scale.by {
            By::AsTheyAre => number::count(n),
            _ => number::real(n as f64 * factor, digits(scale)),
        };
        match count {
            Count::Is(n) => real(n),
            Count::Below(n) => format!("< {}", real(n)),
        }
    }

    /// Formats listed counts: with, without and their difference.
    fn sum(&self, sum: Sum) -> [String; 3] {
        let scale = self.diff.scale;
        [
            self.count(Count::Is(sum.with), scale.with_factor),
            self.count(Count::Is(sum.without), scale.without_factor),
            real(sum.saved(scale), scale),
        ]
    }

    /// Returns the scale for a column of counts for each thousand packets, if both sides counted
    /// packets and nothing is scaled yet.
    fn packets(&self) -> Option<Scale> {
        let factor =
            |side: &Side| side.conditions.packets.filter(|n| *n > 0).map(|n| 1e3 / n as f64);
        let (without_factor, with_factor) = (factor(&self.diff.without)?, factor(&self.diff.with)?);
        let scale = Scale { by: By::KiloPacket, without_factor, with_factor };
        (self.diff.scale.by == By::AsTheyAre).then_some(scale)
    }

    /// Builds the table of the stages' subtotals and the totals.
    fn totals(&self) -> Grid {
        let diff = self.diff;
        let unit = preface::unit_of(self.diff);
        let mut grid = Grid::new("lrrrrrr");
        let is_exact = diff.sum().is_exact();
        let bound = if is_exact { ["", ""] } else { ["at least", "%"] };
        grid.cells([
            "of what is listed on either side",
            "functions",
            "with",
            "without",
            "difference",
            "saving",
            bound[0],
        ]);
        grid.cells(["", "", &unit, &unit, &unit, "%", bound[1]]);
        for (stage, sum) in diff.stages() {
            grid.cells(self.total(stage.as_str(), sum));
        }
        grid.text("");
        for &part in Part::ALL {
            let sum = diff.sum_of(|row| row.stage.part() == part);
            if sum.functions > 0 {
                grid.cells(self.total(part.as_str(), sum));
            }
        }
        grid.cells(self.total("total without idle", diff.sum_without_idle()));
        grid.cells(self.total("total", diff.sum()));
        if let Some(sum) = diff.makers_total() {
            grid.cells(self.total("total of the makers, listed or not", sum));
        }
        grid
    }

    fn total(&self, name: &str, sum: Sum) -> Vec<String> {
        let scale = self.diff.scale;
        let pct = |pct: Option<f64>| pct.map_or_else(|| "n/a".to_owned(), |x| number::real(x, 1));
        let functions = match sum.functions {
            0 => String::new(),
            n => number::count(n),
        };
        let [with, without, saved] = self.sum(sum);
        let mut cells = vec![name.to_owned(), functions, with, without, saved];
        cells.push(pct(sum.saving_as_listed(scale)));
        if !sum.is_exact() {
            cells.push(pct(sum.figures(scale).saving_pct_at_least));
        }
        cells
    }

    /// Writes the result in sentences.
    fn verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let diff = self.diff;
        let scale = diff.scale;
        let pct = |sum: Sum| change(sum.saving_as_listed(scale));
        writeln!(
            f,
            "in all {}, without idle {}, of what is listed",
            pct(diff.sum()),
            pct(diff.sum_without_idle())
        )?;
        let moved = diff.moved();
        let unit = preface::unit_of(self.diff);
        // Below a cut-off, only the least fall or rise is known.
        let by = |sum: Sum, least: f64| {
            let bound = if sum.is_exact() { "" } else { "at least " };
            format!("{bound}{} {unit}", real(least.abs(), scale))
        };
        let beyond = match self.chance() {
            Some(chance) => format!("beyond {chance}, "),
            None => String::new(),
        };
        let fell = functions(moved.fell.functions);
        let by_fall = by(moved.fell, moved.fell.saved_least(scale));
        writeln!(f, "{beyond}{fell} of the packet path fell by {by_fall}")?;
        let rose = functions(moved.rose.functions);
        let by_rise = by(moved.rose, moved.rose.saved_most(scale));
        writeln!(f, "cost moved to, or grew in, {rose}: {by_rise}")?;
        if moved.unclear.functions > 0 {
            let of = functions(moved.unclear.functions);
            writeln!(f, "a cut-off hides whether {of} rose or fell")?;
        }
        self.chance().map_or(Ok(()), |chance| self.noise(chance, moved.noise, f))
    }

    /// Returns the name of what a difference has to exceed; `None` for events of one run a side.
    fn chance(&self) -> Option<&'static str> {
        match (self.diff.has_spread(), self.diff.is_sampled()) {
            (true, _) => Some("noise"),
            (false, true) => Some("sampling"),
            (false, false) => None,
        }
    }

    fn noise(&self, chance: &str, noise: Sum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (diff, scale) = (self.diff, self.diff.scale);
        let of = functions(noise.functions);
        let change = real(-noise.saved(scale), scale);
        writeln!(f, "within {chance}, {of}: {change} {} in all", preface::unit_of(diff))?;
        let unit = preface::unit(self.diff.with.event.unit);
        let scaled = if scale.by == By::AsTheyAre { "" } else { ", scaled as they are" };
        let rule = format!("more than {SIGMAS}·√(with + without) {unit}{scaled}");
        let (without, with) = (diff.without.runs, diff.with.runs);
        let spread = format!("the spread of {without} and {with} runs explains (Student's t)");
        let rule = match (diff.has_spread(), diff.is_sampled()) {
            (true, true) => format!("{rule}, and more than {spread}"),
            (true, false) => format!("more than {spread}"),
            (false, _) => rule,
        };
        // Sides whose spreads and numbers of runs differ are not covered (diff/runs.rs).
        let most = if diff.has_spread() && diff.is_sampled() { "at most " } else { "" };
        writeln!(f, "beyond {chance}: {rule}; of what did not change {most}1 in 20 is")?;
        match (diff.has_spread(), without.max(with)) {
            (true, _) => Ok(()),
            (false, 1) => {
                writeln!(f, "one run a side: what differs from run to run is not in this")
            }
            (false, _) => {
                writeln!(f, "one side has one run: what differs from run to run is not in this")
            }
        }
    }
}

impl fmt::Display for Ranked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.as_posted {
            return self.post(f);
        }
        Mark::between(self.diff).each_line(
            f,
            &fmt::from_fn(|f| {
                write!(f, "{}", preface(self.diff))?;
                self.verdict(f)?;
                write!(f, "\n{}\n{}", self.functions(), self.totals())
            }),
        )
    }
}

fn real(x: f64, scale: Scale) -> String {
    number::real(x, digits(scale))
}

/// Formats the saving of a function; below a cut-off, its bound.
fn difference(row: &Row, scale: Scale) -> String {
    let sum = row.sum();
    match (row.with, row.without) {
        (Count::Is(_), Count::Is(_)) => real(sum.saved(scale), scale),
        (Count::Below(_), Count::Is(_)) => format!("> {}", real(sum.saved_least(scale), scale)),
        (Count::Is(_), Count::Below(_)) => format!("< {}", real(sum.saved_most(scale), scale)),
        // Listed with a count of 0 on one side, absent on the other.
        (Count::Below(_), Count::Below(_)) => "n/a".to_owned(),
    }
}

/// Returns the lines above a difference: warnings, what was compared, and both sides' conditions.
pub(super) fn preface(diff: &Diff) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        for warning in &diff.warnings {
            let head = if warning.is_grave() { "! NOT COMPARABLE: " } else { "! " };
            let warning = harmless(&warning.to_string()).into_owned();
            f.write_str(&wrapped("", &format!("{head}{warning}")))?;
        }
        writeln!(f, "{}", preface::event(&diff.with.event, diff.with.origin))?;
        writeln!(f, "compared: {}; difference is without - with, what was saved", diff.scale.by)?;
        for (name, side) in [("without", &diff.without), ("with", &diff.with)] {
            writeln!(f, "{}", side_line(name, side))?;
            if let Some(line) = not_listed(side) {
                writeln!(f, "  {line}")?;
            }
            for line in preface::conditions(&side.conditions) {
                f.write_str(&wrapped("  ", &line))?;
            }
            for line in preface::caveats(side.lost, side.own_cost.as_ref(), &side.remarks) {
                f.write_str(&wrapped("  ", &line))?;
            }
        }
        for remark in &diff.remarks {
            f.write_str(&wrapped("", &format!("note: {}", harmless(remark))))?;
        }
        Ok(())
    })
}

fn side_line(name: &str, side: &Side) -> String {
    let unit = preface::unit(side.event.unit);
    let absent = match side.cutoff.filter(|n| *n > 1) {
        Some(cutoff) => format!("fewer than {}", number::count(cutoff)),
        None if is_sampled(&side.event) => "fewer than 1".to_owned(),
        None => "0".to_owned(),
    };
    let runs = match side.runs {
        1 => String::new(),
        n => format!("{n} runs, "),
    };
    format!(
        "{name}: {runs}{} listed with {} {unit} in all; one that is not: {absent}",
        functions(side.functions),
        number::count(side.counted),
    )
}

/// Returns the count that is in the source's total but not listed.
fn not_listed(side: &Side) -> Option<String> {
    let unit = preface::unit(side.event.unit);
    let rest = match side.total {
        Some(total) => format!("{} {unit}", number::count(total.saturating_sub(side.counted))),
        None if side.is_cut_off() => "n/a, no total is given".to_owned(),
        None => return None,
    };
    Some(format!("not listed by the maker: {rest}"))
}

const fn head_of(part: Part) -> Option<&'static str> {
    match part {
        Part::Path => None,
        Part::User => Some("programs, apart:"),
        Part::Background => Some("background, not of the packet path:"),
        Part::Instrument => Some("the instrument's own cost, in the totals:"),
        Part::Idle => Some("idle, apart:"),
    }
}
