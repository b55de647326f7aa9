//! Conditions that fail a comparison: `instr_per_packet>+1%`.

use std::fmt;

use serde::Serialize;

use super::row::NOTHING;
use super::{Comparison, Row, Withheld};
use crate::experiment::Experiment;
use crate::{Code, Error, Result};

/// Most cells that a sentence lists by name.
const CELLS_NAMED: usize = 4;

/// A condition on a metric's change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FailOn {
    /// Factor values of the cells that the condition covers; all cells if empty.
    pub cell: Vec<String>,
    /// The metric that the condition is about.
    pub metric: String,
    /// The side of the bound on which a change fails.
    pub over: Over,
    /// The bound, in per cent.
    pub bound_pct: f64,
}

/// A side of a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// `>`: changes above the bound fail.
    Above,
    /// `<`: changes below the bound fail.
    Below,
}

impl FailOn {
    /// Parses a condition: a metric, `>` or `<`, and a signed change in per cent; before these,
    /// factor values and a colon restrict it to some cells: `rate=max change=both:cycles>+1%`.
    ///
    /// # Errors
    /// `E-EXPERIMENT` with what is wrong.
    pub fn parse(text: &str) -> Result<FailOn> {
        let wrong = |why: &str| {
            Error::new(Code::Experiment, format!("cannot fail on {text:?}"), why)
                .fix("--fail-on 'instr_per_packet>+1%'")
        };
        let at = text.find(['>', '<']).ok_or_else(|| wrong("it has neither > nor <"))?;
        let (name, bound) = text.split_at(at);
        let over = if bound.starts_with('>') { Over::Above } else { Over::Below };
        let bound = bound[1..].trim();
        let number = bound.strip_suffix('%').ok_or_else(|| wrong("its bound is not in %"))?;
        let signed = number.starts_with(['+', '-']);
        let bound_pct = number.trim_end().parse::<f64>().ok().filter(|n| signed && n.is_finite());
        let bound_pct = bound_pct.ok_or_else(|| wrong("its bound is no signed number"))?;
        let (cell, metric) = name.rsplit_once(':').unwrap_or(("", name));
        let metric = metric.trim();
        if metric.is_empty() {
            return Err(wrong("it names no metric"));
        }
        let cell = cell.split([' ', ',']).filter(|one| !one.is_empty()).map(str::to_owned);
        let cell: Vec<String> = cell.collect();
        if let Some(odd) = cell.iter().find(|one| !one.contains('=')) {
            return Err(wrong(&format!("{odd:?} before the colon is not FACTOR=LEVEL"))
                .fix("--fail-on 'rate=max:instr_per_packet>+1%'"));
        }
        Ok(FailOn { cell, metric: metric.into(), over, bound_pct })
    }

    /// Returns true if the condition covers a metric of a cell; a condition without a cell covers
    /// all of them.
    pub(super) fn looks_at(&self, metric: &str, cell: Option<&str>) -> bool {
        let has = |one: &String| cell.is_none_or(|cell| cell.split(' ').any(|other| other == one));
        self.metric == metric && self.cell.iter().all(has)
    }

    /// Judges a row by the condition: the whole interval must be on one side of the bound, and the
    /// change must exceed the difference between identical code. Counts are judged in the same way,
    /// because counts of sleeps or hits are as random as times; an exact count has an interval of
    /// width 0.
    fn judge(&self, row: &Row) -> Judged {
        let beyond = |pct: f64| match self.over {
            Over::Above => pct > self.bound_pct,
            Over::Below => pct < self.bound_pct,
        };
        if row.disturbed {
            return Judged::Undecided(
                "most pairs of a run were disturbed, or it ended before the cell did".into(),
            );
        }
        if row.too_few {
            return Judged::Undecided("a run has too few set-ups of its sides".into());
        }
        if row.below == (true, true) && beyond(0.0) {
            return Judged::Undecided(NOTHING.into());
        }
        let (low, high) = row.ci95_pct;
        // If the first side counted nothing, the change has no upper end.
        let high = if row.below.0 && !row.below.1 { f64::INFINITY } else { high };
        match (beyond(low), beyond(high)) {
            (false, false) => Judged::Held,
            (true, true) if beyond(0.0) || row.change_pct.abs() > row.floor_pct => Judged::Failed,
            (true, true) => Judged::Undecided(format!(
                "{:+.2}% is within the difference measured between identical code, ±{:.2}%",
                row.change_pct, row.floor_pct
            )),
            _ => Judged::Undecided(format!("the bound is within [{low:+.2}%, {high:+.2}%]")),
        }
    }

    /// Checks that the experiment has the metric and the cell that the condition names.
    pub(super) fn is_of(&self, experiment: &Experiment) -> Result<()> {
        let wrong = |why: String, fix: String| {
            Err(Error::new(Code::Experiment, format!("cannot fail on {self}"), why).fix(fix))
        };
        if !experiment.metrics.iter().any(|metric| metric.name == self.metric) {
            let names: Vec<&str> =
                experiment.metrics.iter().map(|metric| metric.name.as_str()).collect();
            let why = format!("{} has no metric {:?}", experiment.id, self.metric);
            return wrong(why, format!("it has: {}", names.join(", ")));
        }
        for one in &self.cell {
            // [`FailOn::parse`] has checked that each entry contains a `=`.
            let (name, level) = one.split_once('=').unwrap_or((one, ""));
            let Some(factor) = experiment.factors.iter().find(|factor| factor.name == name) else {
                let names: Vec<&str> = experiment.factors.iter().map(|f| f.name.as_str()).collect();
                let fix = match names.is_empty() {
                    true => format!("it has no factors: --fail-on '{}'", self.bare()),
                    false => format!("its factors are: {}", names.join(", ")),
                };
                return wrong(format!("{} has no factor {name:?}", experiment.id), fix);
            };
            if !factor.levels.iter().any(|known| known.name == level) {
                let levels: Vec<&str> = factor.levels.iter().map(|l| l.name.as_str()).collect();
                let why = format!("factor {name:?} has no level {level:?}");
                return wrong(why, format!("its levels are: {}", levels.join(", ")));
            }
        }
        let has = |name: &str| self.cell.iter().all(|one| name.split(' ').any(|part| part == one));
        match experiment.cells.iter().any(|cell| has(&cell.name())) {
            true => Ok(()),
            false => wrong(
                format!("no cell of {} is {}", experiment.id, self.cell.join(" ")),
                format!("--fail-on '{}'", self.bare()),
            ),
        }
    }

    /// Returns the condition without its cells, so that it covers all cells.
    fn bare(&self) -> FailOn {
        FailOn { cell: Vec::new(), ..self.clone() }
    }
}

/// The judgement of a row by a condition.
#[derive(Debug, PartialEq)]
enum Judged {
    /// The condition is not met: the row passes.
    Held,
    /// The row meets the condition.
    Failed,
    /// The row cannot decide the condition, for this reason.
    Undecided(String),
}

impl fmt::Display for FailOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.cell.is_empty() {
            write!(f, "{}:", self.cell.join(" "))?;
        }
        let over = if self.over == Over::Above { '>' } else { '<' };
        write!(f, "{}{over}{:+}%", self.metric, self.bound_pct)
    }
}

/// Marks the rows that conditions cover, those that fail, and those that are undecided. A withheld
/// metric is also undecided, so that a condition never passes for lack of data.
pub(super) fn judge(conditions: &[FailOn], comparison: &mut Comparison) {
    for condition in conditions {
        let mut untold: Vec<(String, Vec<String>)> = Vec::new();
        let mut any = false;
        let looked_at = |row: &&mut Row| condition.looks_at(&row.metric, Some(&row.cell));
        for row in comparison.rows.iter_mut().filter(looked_at) {
            any = true;
            row.gate = true;
            match condition.judge(row) {
                Judged::Held => {}
                Judged::Failed => {
                    row.failed = true;
                    let (change, at) = (row.change_pct, at(std::slice::from_ref(&row.cell)));
                    comparison.failed.push(format!("{condition}: {change:+.2}%{at}"));
                }
                Judged::Undecided(why) => {
                    row.undecided = true;
                    add(&mut untold, why, row.cell.clone());
                }
            }
        }
        let looked_at = |one: &&Withheld| condition.looks_at(&one.metric, one.cell.as_deref());
        for one in comparison.withheld.iter().filter(looked_at) {
            any = true;
            add(&mut untold, one.why.clone(), one.cell.clone().unwrap_or_default());
        }
        if !any {
            add(&mut untold, "no cell of both runs has it".into(), String::new());
        }
        let told = untold.iter().map(|(why, cells)| format!("{condition}: {why}{}", at(cells)));
        comparison.undecided.extend(told);
    }
}

/// Adds a cell to the cells with the same reason.
pub(super) fn add(all: &mut Vec<(String, Vec<String>)>, why: String, cell: String) {
    match all.iter_mut().find(|(same, _)| *same == why) {
        Some((_, cells)) => cells.push(cell),
        None => all.push((why, vec![cell])),
    }
}

/// Returns ` at rate=max, rate=fixed`, or the number of cells if they are many.
pub(super) fn at(cells: &[String]) -> String {
    let named: Vec<&str> =
        cells.iter().map(String::as_str).filter(|cell| !cell.is_empty()).collect();
    match named.len() {
        0 => String::new(),
        1..=CELLS_NAMED => format!(" at {}", named.join(", ")),
        many => format!(" at {many} cells"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_read() {
        let on = FailOn::parse("instr_per_packet>+1%").unwrap();
        assert_eq!(
            (on.metric.as_str(), on.over, on.bound_pct),
            ("instr_per_packet", Over::Above, 1.0)
        );
        let on = FailOn::parse("rate=max,change=both: rate_mpps < -2.5 %").unwrap();
        assert_eq!(on.cell, ["rate=max", "change=both"]);
        assert_eq!((on.metric.as_str(), on.over, on.bound_pct), ("rate_mpps", Over::Below, -2.5));
        assert_eq!(on.to_string(), "rate=max change=both:rate_mpps<-2.5%");
        assert_eq!(FailOn::parse(&on.to_string()), Ok(on));
    }

    #[test]
    fn malformed_condition_is_refused_with_the_reason() {
        let cases = [
            ("instr", "it has neither > nor <"),
            ("instr>1", "its bound is not in %"),
            ("instr>1%", "its bound is no signed number"),
            ("instr>+nan%", "its bound is no signed number"),
            ("instr>+%", "its bound is no signed number"),
            (">+1%", "it names no metric"),
            ("rate=max:>+1%", "it names no metric"),
            ("max:instr>+1%", "\"max\" before the colon is not FACTOR=LEVEL"),
        ];
        for (text, why) in cases {
            assert_eq!(FailOn::parse(text).unwrap_err().why, why, "{text}");
        }
    }

    /// Returns a row of a change of 400 % with an interval from 300 to 500 %.
    fn row(below: (bool, bool)) -> Row {
        Row {
            cell: "rate=max".into(),
            metric: "losses".into(),
            unit: "packets".into(),
            a: 1.0,
            b: 5.0,
            a_cycles: None,
            b_cycles: None,
            change_pct: 400.0,
            ci95_pct: (300.0, 500.0),
            n_windows: (15, 15),
            placement: (None, None),
            floor_pct: 1.0,
            same_pct: 1.0,
            too_few: false,
            below,
            disturbed: false,
            verdict: crate::record::Verdict::Worse,
            gate: false,
            failed: false,
            undecided: false,
        }
    }

    #[test]
    fn a_change_from_nothing_has_no_upper_end_and_holds_no_bound_above_it() {
        let judged = |text, below| FailOn::parse(text).unwrap().judge(&row(below));
        assert_eq!(judged("losses>+1000%", (false, false)), Judged::Held);
        assert!(matches!(judged("losses>+1000%", (true, false)), Judged::Undecided(_)));
        assert_eq!(judged("losses>+200%", (true, false)), Judged::Failed);
        assert_eq!(judged("losses>+1000%", (true, true)), Judged::Held, "neither counted any");
        for text in ["losses<+1000%", "losses>-10%"] {
            assert_eq!(judged(text, (true, true)), Judged::Undecided(NOTHING.into()), "{text}");
        }
        assert!(matches!(judged("losses<+1000%", (true, false)), Judged::Undecided(_)));
        assert_eq!(judged("losses<+1000%", (false, false)), Judged::Failed);
    }
}
