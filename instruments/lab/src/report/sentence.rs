//! Verdict of a run as a sentence, with the number of cells that it holds for.

use linerate_show::number::{change, count, interval};

use super::metric::Shown;
use super::reason::reason;
use super::view::View;
use super::words::n;
use crate::record::{CellRecord, Effect, Verdict};

/// Why a cell with figures tells nothing.
const UNCLEAR: &str = "unclear";

/// Counts of cells by their verdict on the headline.
#[derive(Default)]
struct Tally {
    better: usize,
    worse: usize,
    same: usize,
    /// Why nothing is said, and of how many cells.
    untold: Vec<(&'static str, usize)>,
}

impl View<'_> {
    /// Returns the verdict of the run as a sentence.
    pub fn verdict(&self) -> String {
        let (mut tally, headline) = (Tally::default(), self.headline());
        for cell in &self.run.cells {
            tally.add(self, cell, headline);
        }
        let [a, b] = self.sides();
        let said = tally.said(&a, &b);
        let quick = if self.is_quick() { "Quick run: " } else { "" };
        let cut = if self.run.run.complete { "" } else { "Interrupted run: " };
        match headline.and_then(|headline| self.in_short(headline)) {
            Some(figures) => format!("{quick}{cut}{said}. {figures}"),
            None => format!("{quick}{cut}{said}."),
        }
    }

    /// Returns true if the run covered a declared subset, with few pairs.
    pub fn is_quick(&self) -> bool {
        let head = &self.run.run;
        let said = head.note.as_deref().is_some_and(|note| note.starts_with("quick"));
        said || self.run.experiment.quick || head.argv.iter().any(|arg| arg == "--quick")
    }

    /// Returns the marks of a run that is less than a whole one.
    pub fn marks(&self) -> Vec<&'static str> {
        let marks = [
            (self.is_quick(), "QUICK: a declared subset, few pairs"),
            (!self.run.run.complete, "INCOMPLETE: it was interrupted; the cells so far are valid"),
        ];
        marks.into_iter().filter_map(|(is, mark)| is.then_some(mark)).collect()
    }

    /// A metric's figures in a sentence.
    fn in_short(&self, metric: &Shown) -> Option<String> {
        let Shown { name, label, .. } = metric;
        let all = self.overall(name).find(|line| line.group == "all");
        let effects: Vec<&Effect> =
            self.run.cells.iter().filter_map(|cell| cell.metrics.get(name)).collect();
        match (effects.as_slice(), all) {
            ([], _) | ([_, _, ..], None) => None,
            ([one], _) => Some(format!(
                "{label} {} % {} at {} pairs.",
                change(one.change_pct),
                interval(one.ci95_pct),
                count(one.n_pairs as u64),
            )),
            (many, Some(all)) => Some(format!(
                "{label}, {} cells: sum {} %, geometric mean {} %.",
                n(many.len()),
                change(all.sum_ratio_pct),
                change(all.geomean_pct),
            )),
        }
    }
}

impl Tally {
    fn add(&mut self, view: &View<'_>, cell: &CellRecord, headline: Option<&Shown>) {
        let effect = headline.and_then(|metric| cell.metrics.get(&metric.name));
        let why = match effect.map(|effect| effect.verdict) {
            Some(Verdict::Better) => return self.better += 1,
            Some(Verdict::Worse) => return self.worse += 1,
            Some(Verdict::Same) => return self.same += 1,
            Some(Verdict::Unclear) => UNCLEAR,
            None => "not measured",
        };
        let why = reason(view, cell).map_or(why, |reason| reason.short);
        match self.untold.iter_mut().find(|(same, _)| *same == why) {
            Some((_, cells)) => *cells += 1,
            None => self.untold.push((why, 1)),
        }
    }

    /// `frames is better than malloc in 2 of 4 cells; 2 could not be told (disturbed)`
    fn said(&self, a: &str, b: &str) -> String {
        let told = self.better + self.worse + self.same;
        let untold: usize = self.untold.iter().map(|(_, cells)| cells).sum();
        let all = told + untold;
        let of = |cells: usize| match (cells, all) {
            (_, 1) => String::new(),
            (cells, all) if cells == all => format!(" in all {} cells", n(all)),
            (cells, all) => format!(" in {} of {} cells", n(cells), n(all)),
        };
        let kinds = [
            (self.better, format!("better than {a}")),
            (self.worse, format!("worse than {a}")),
            (self.same, format!("within the noise of {a}")),
        ];
        let each: Vec<String> = kinds
            .into_iter()
            .filter_map(|(cells, what)| (cells > 0).then(|| format!("{what}{}", of(cells))))
            .collect();
        let why: Vec<String> = match self.untold.as_slice() {
            [(why, _)] => vec![(*why).to_owned()],
            many => many.iter().map(|(why, cells)| format!("{} {why}", n(*cells))).collect(),
        };
        match (each.as_slice(), why.join(", ")) {
            ([], why) if why.is_empty() => format!("{b} against {a}: nothing was measured"),
            ([], why) => format!("{b} against {a}: nothing can be said ({why})"),
            (each, why) if why.is_empty() => format!("{b} is {}", each.join(", ")),
            (each, why) => {
                format!("{b} is {}; {} could not be told ({why})", each.join(", "), n(untold))
            }
        }
    }
}
