//! On what a comparison fails: `instr_per_packet>+1%`.

use std::fmt;

use serde::Serialize;

use super::{Comparison, Row, refused};
use crate::experiment::{Clock, Experiment};
use crate::{Code, Error, Result};

/// A condition on a metric's change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FailOn {
    /// The cells that are looked at: those that have all of these values; all if empty.
    pub cell: Vec<String>,
    /// The metric.
    pub metric: String,
    /// Which side of the bound fails.
    pub over: Over,
    /// The bound, in per cent.
    pub bound_pct: f64,
}

/// Which side of a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// `>`: changes above it.
    Above,
    /// `<`: changes below it.
    Below,
}

impl FailOn {
    /// Reads a condition: a metric, `>` or `<`, and a signed change in per cent; before it, if it is
    /// not of all cells, factor values and a colon: `rate=max change=both:cycles>+1%`.
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
        Ok(FailOn { cell: cell.collect(), metric: metric.into(), over, bound_pct })
    }

    /// Whether a row is looked at.
    fn looks_at(&self, row: &Row) -> bool {
        let has = |one: &String| row.cell.split(' ').any(|other| other == one);
        row.metric == self.metric && self.cell.iter().all(has)
    }

    /// Whether a row fails: its change is beyond the bound, and of what is measured rather than
    /// counted all of its interval too.
    fn fails(&self, row: &Row, clock: Clock) -> bool {
        let (low, high) =
            if clock == Clock::Count { (row.change_pct, row.change_pct) } else { row.ci95_pct };
        match self.over {
            Over::Above => row.change_pct > self.bound_pct && low > self.bound_pct,
            Over::Below => row.change_pct < self.bound_pct && high < self.bound_pct,
        }
    }
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

/// Marks the rows that are looked at, and those that fail.
pub(super) fn judge(
    conditions: &[FailOn],
    experiment: &Experiment,
    comparison: &mut Comparison,
) -> Result<()> {
    for condition in conditions {
        let metric = experiment.metrics.iter().find(|metric| metric.name == condition.metric);
        let Some(metric) = metric else {
            let names: Vec<&str> =
                experiment.metrics.iter().map(|metric| metric.name.as_str()).collect();
            let why = format!("{} has no such metric", experiment.id);
            return Err(Error::new(Code::Experiment, format!("cannot fail on {condition}"), why)
                .fix(format!("it has: {}", names.join(", "))));
        };
        let mut any = false;
        for row in comparison.rows.iter_mut().filter(|row| condition.looks_at(row)) {
            any = true;
            row.gate = true;
            if condition.fails(row, metric.clock) {
                row.failed = true;
                let at =
                    if row.cell.is_empty() { String::new() } else { format!(" at {}", row.cell) };
                let change = row.change_pct;
                comparison.failed.push(format!("{condition}: {change:+.2}%{at}"));
            }
        }
        // A gate that looks at nothing would always let everything through.
        if !any {
            let withheld = comparison.withheld.iter().find(|why| {
                why.strip_prefix(&condition.metric).is_some_and(|rest| rest.starts_with(':'))
            });
            let why = withheld.cloned().unwrap_or_else(|| "no cell of both runs has it".into());
            return Err(refused(format!("{condition} looks at nothing: {why}"))
                .fix("linerate lab compare … --allow-env"));
        }
    }
    Ok(())
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
    fn what_is_no_condition_is_refused_with_the_reason() {
        let cases = [
            ("instr", "it has neither > nor <"),
            ("instr>1", "its bound is not in %"),
            ("instr>1%", "its bound is no signed number"),
            ("instr>+nan%", "its bound is no signed number"),
            ("instr>+%", "its bound is no signed number"),
            (">+1%", "it names no metric"),
            ("rate=max:>+1%", "it names no metric"),
        ];
        for (text, why) in cases {
            assert_eq!(FailOn::parse(text).unwrap_err().why, why, "{text}");
        }
    }
}
