//! The ranked difference: what was saved, function by function.

use std::fmt;

use super::figures::{change, digits, grouped, grouped_real, more_functions, saving};
use super::grid::Grid;
use super::names::{harmless, short};
use super::preface;
use super::wrap::wrapped;
use crate::diff::{By, Count, Diff, Row, Scale, Side, Sum};
use crate::profile::Unit;
use crate::stage::Part;

const NAME_WIDTH: usize = 36;

/// A difference as a table: for people, or bare as McKenney posted his.
#[derive(Debug, Clone, Copy)]
pub struct Ranked<'a> {
    diff: &'a Diff,
    as_posted: bool,
    top: Option<usize>,
}

impl<'a> Ranked<'a> {
    /// All of its rows, for people.
    #[must_use]
    pub fn new(diff: &'a Diff) -> Ranked<'a> {
        Ranked { diff, as_posted: false, top: None }
    }

    /// Whether to print `function with without difference` and nothing else, absent as 0, all rows
    /// in one list and counts as they are, whatever the scale.
    #[must_use]
    pub fn as_posted(self, as_posted: bool) -> Ranked<'a> {
        Ranked { as_posted, ..self }
    }

    /// Of each part only the `top` largest savings and the `top` largest rises; what is between them
    /// is summed in a row of its own.
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

    /// Functions, the path's first, then what is apart from it.
    fn functions(&self) -> Grid {
        let unit = self.unit();
        let per_packet = self.per_kilopacket(Sum::default()).is_some();
        let mut grid = Grid::new("llrrrrrl");
        let packets = if per_packet { "difference" } else { "" };
        grid.cells(["function", "stage", "with", "without", "difference", "saving", packets, ""]);
        let packets = if per_packet { "/1000 packets" } else { "" };
        grid.cells(["", "", &unit, &unit, &unit, "%", packets, ""]);
        for part in Part::ALL {
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

    /// The first `top` and the last that rose; what is between them is summed in their place.
    fn rows(&self, rows: &[&Row], grid: &mut Grid) {
        let scale = self.diff.scale;
        let top = self.top.unwrap_or(rows.len()).min(rows.len());
        let (fell, below) = rows.split_at(top);
        let rising = below.iter().rev().take_while(|row| row.sum().saved_most(scale) < 0.0);
        let (between, rose) = below.split_at(below.len() - rising.take(top).count());
        fell.iter().for_each(|row| grid.cells(self.row(row)));
        if !between.is_empty() {
            let rest = between.iter().fold(Sum::default(), |sum, row| sum.plus(row.sum()));
            grid.cells(self.rest(rest));
        }
        rose.iter().for_each(|row| grid.cells(self.row(row)));
    }

    /// Functions that are not shown, summed.
    fn rest(&self, rest: Sum) -> [String; 8] {
        let [with, without, saved] = self.sum(rest);
        let saving = saving(rest.saving(self.diff.scale));
        let packets = self.per_kilopacket(rest).unwrap_or_default();
        let none = String::new;
        [more_functions(rest.functions), none(), with, without, saved, saving, packets, none()]
    }

    fn row(&self, row: &Row) -> [String; 8] {
        let scale = self.diff.scale;
        let sum = row.sum();
        let real = |x| grouped_real(x, digits(scale));
        let difference = match (row.with, row.without) {
            (Count::Is(_), Count::Is(_)) => real(sum.saved(scale)),
            (Count::Below(_), Count::Is(_)) => format!("> {}", real(sum.saved_least(scale))),
            (_, Count::Below(_)) => format!("< {}", real(sum.saved_most(scale))),
        };
        let mark = if sum.saved_most(scale) < 0.0 {
            "rose"
        } else if sum.saved_least(scale) < 0.0 {
            "may have risen"
        } else {
            ""
        };
        [
            short(&row.symbol, NAME_WIDTH),
            row.stage.as_str().to_owned(),
            self.seen(row.with, &self.diff.with, scale.with_factor),
            self.seen(row.without, &self.diff.without, scale.without_factor),
            difference,
            saving(sum.saving(scale)),
            self.per_kilopacket(sum).unwrap_or_default(),
            mark.to_owned(),
        ]
    }

    /// A function's count. No sample says fewer than one, and not that there was nothing to sample.
    fn seen(&self, count: Count, side: &Side, factor: f64) -> String {
        match count {
            Count::Is(0) if is_sampled(side) => self.count(Count::Below(1), factor),
            count => self.count(count, factor),
        }
    }

    fn count(&self, count: Count, factor: f64) -> String {
        let scale = self.diff.scale;
        let real = |n: u64| match scale.by {
            By::AsTheyAre => grouped(n),
            _ => grouped_real(n as f64 * factor, digits(scale)),
        };
        match count {
            Count::Is(n) => real(n),
            Count::Below(n) => format!("< {}", real(n)),
        }
    }

    /// With, without and their difference, of what is listed.
    fn sum(&self, sum: Sum) -> [String; 3] {
        let scale = self.diff.scale;
        let real = |x| grouped_real(x, digits(scale));
        [
            self.count(Count::Is(sum.with), scale.with_factor),
            self.count(Count::Is(sum.without), scale.without_factor),
            real(sum.saved(scale)),
        ]
    }

    /// Saved for each thousand packets, if both sides counted theirs and nothing is scaled yet.
    fn per_kilopacket(&self, sum: Sum) -> Option<String> {
        let diff = self.diff;
        let packets = |side: &Side| side.conditions.packets.filter(|n| *n > 0).map(|n| n as f64);
        let (without, with) = (packets(&diff.without)?, packets(&diff.with)?);
        if diff.scale.by != By::AsTheyAre {
            return None;
        }
        let scale =
            Scale { by: By::KiloPacket, without_factor: 1e3 / without, with_factor: 1e3 / with };
        let saved = scale.without(sum.without) - scale.with(sum.with);
        let sign = match (sum.hidden_without, sum.hidden_with) {
            (0, 0) => "",
            // The listed part only: the bounds stand in the columns of counts.
            _ => "~ ",
        };
        Some(format!("{sign}{}", grouped_real(saved, digits(scale))))
    }

    /// Subtotals of the stages, then the totals.
    fn totals(&self) -> Grid {
        let diff = self.diff;
        let unit = self.unit();
        let mut grid = Grid::new("lrrrrrr");
        let is_exact = diff.sum().is_exact();
        let bound = if is_exact { ["", ""] } else { ["at least", "%"] };
        grid.cells([
            "of what is listed",
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
        for part in Part::ALL {
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
        let pct = |pct: Option<f64>| pct.map_or_else(|| "n/a".to_owned(), |x| grouped_real(x, 1));
        let functions = match sum.functions {
            0 => String::new(),
            n => grouped(n),
        };
        let [with, without, saved] = self.sum(sum);
        let mut cells = vec![name.to_owned(), functions, with, without, saved];
        cells.push(pct(sum.saving_as_listed(scale)));
        if !sum.is_exact() {
            let least = (sum.without > 0)
                .then(|| 100.0 * sum.saved_least(scale) / scale.without(sum.without));
            cells.push(pct(least));
        }
        cells
    }

    fn unit(&self) -> String {
        let (with, by) = (&self.diff.with.event, self.diff.scale.by);
        match by {
            By::Share => by.suffix().to_owned(),
            _ => format!("{}{}", preface::unit(with.unit), by.suffix()),
        }
    }

    fn preface(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let diff = self.diff;
        for warning in &diff.warnings {
            let head = if warning.is_grave() { "! NOT COMPARABLE: " } else { "! " };
            let warning = harmless(&warning.to_string()).into_owned();
            writeln!(f, "{}", wrapped("", &format!("{head}{warning}")))?;
        }
        writeln!(f, "{}", preface::event(&diff.with.event, diff.with.origin))?;
        writeln!(f, "compared: {}; difference is without - with, what was saved", diff.scale.by)?;
        for (name, side) in [("without", &diff.without), ("with", &diff.with)] {
            writeln!(f, "{}", side_line(name, side))?;
            for line in preface::conditions(&side.conditions) {
                writeln!(f, "{}", wrapped("  ", &line))?;
            }
            for line in preface::caveats(side.lost, side.own_cost.as_ref(), &side.remarks) {
                writeln!(f, "{}", wrapped("  ", &line))?;
            }
        }
        for remark in &diff.remarks {
            writeln!(f, "{}", wrapped("", &format!("note: {}", harmless(remark))))?;
        }
        Ok(())
    }

    /// The result in sentences.
    fn verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let diff = self.diff;
        let scale = diff.scale;
        let pct = |sum: Sum| change(sum.saving_as_listed(scale));
        let (all, busy) = (diff.sum(), diff.sum_without_idle());
        let moved = diff.moved();
        let sum = |sum: Sum| grouped_real(sum.saved(scale).abs(), digits(scale));
        let functions = |sum: Sum| match sum.functions {
            1 => "1 function".to_owned(),
            n => format!("{} functions", grouped(n)),
        };
        writeln!(f, "in all {}, without idle {}, of what is listed", pct(all), pct(busy))?;
        writeln!(
            f,
            "of the packet path {} fell by {} {unit}; cost moved to, or grew in, {}: {} {unit}",
            functions(moved.fell),
            sum(moved.fell),
            functions(moved.rose),
            sum(moved.rose),
            unit = self.unit(),
        )
    }
}

impl fmt::Display for Ranked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.as_posted {
            return self.post(f);
        }
        self.preface(f)?;
        self.verdict(f)?;
        write!(f, "\n{}\n{}", self.functions(), self.totals())
    }
}

/// Whether a count is of samples of something that happens more often.
const fn is_sampled(side: &Side) -> bool {
    matches!(side.event.unit, Unit::Samples | Unit::Ticks)
}

fn side_line(name: &str, side: &Side) -> String {
    let absent = match side.cutoff.filter(|n| *n > 1) {
        Some(cutoff) => format!("one that is not: fewer than {}", grouped(cutoff)),
        None if is_sampled(side) => "one that is not: fewer than 1".to_owned(),
        None => "one that is not: 0".to_owned(),
    };
    format!(
        "{name}: {} functions listed with {} {} in all; {absent}",
        grouped(side.functions),
        grouped(side.counted),
        preface::unit(side.event.unit),
    )
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
