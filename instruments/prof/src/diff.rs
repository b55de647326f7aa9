//! Differences between two profiles, ranked by saving.
//!
//! ```text
//! without (the baseline)   f 3358   g 900   h 494        smallest listed: 494
//! with    (the change)              g 300   h 584        smallest listed: 300
//!
//! saved                    f > 3058 g 600   h -90        f: fewer than 300, not 0
//! ```
//! A function that a cut-off listing leaves out was seen fewer times than the cut-off, which is a
//! bound and not a count, so the saving is a bound, too. What is below both cut-offs is in no row
//! and in no sum: sums are of the functions that are listed on either side. Small differences of
//! samples are chance, as [`Change`] tells. A [`Warning`] names what cannot be compared, and a
//! difference is made all the same: its reader decides.

mod change;
#[cfg(test)]
mod golden;
mod merge;
mod runs;
mod scale;
mod sum;
mod warning;

use std::borrow::Cow;

use serde::Serialize;

use crate::conditions::Conditions;
use crate::profile::{Event, Origin, OwnCost, Profile, Unit};
use crate::stage::{Part, Stage};
use crate::{Code, Error, Result};

pub use change::{Change, SIGMAS};
pub use scale::{By, Scale};
pub use sum::{Figures, Sum};
pub(crate) use warning::warnings;
pub use warning::{About, Warning};

/// Names of the two sides in errors.
const SIDES: [&str; 2] = ["without the change", "with the change"];

/// A comparison of two profiles.
#[derive(Debug, Clone, PartialEq)]
pub struct Diff {
    /// Functions that at least one of the profiles lists, by falling saving.
    pub rows: Vec<Row>,
    /// The profile without the change.
    pub without: Side,
    /// The profile with the change.
    pub with: Side,
    /// Factors by which counts are multiplied before the comparison.
    pub scale: Scale,
    /// Reasons why the two profiles may not be comparable, to be printed before any figure.
    pub warnings: Vec<Warning>,
    /// Remarks for the reader, in sentences.
    pub remarks: Vec<String>,
}

/// A function, with its counts in both profiles.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The function's name.
    pub symbol: String,
    /// The function's file, if at least one of the profiles names it.
    pub object: Option<String>,
    /// Stage of the packet path.
    pub stage: Stage,
    /// The count in the baseline, as listed.
    pub without: Count,
    /// The count with the change, as listed.
    pub with: Count,
    /// The scaled difference up to which the spread of the runs explains it; 0 with one run a side.
    pub noise: f64,
}

/// The count of a function, or the bound of a count that was not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// A listed count, or 0 if every event was counted.
    Is(u64),
    /// Exclusive upper bound of a count that is not listed. `Below(1)` stands for a function
    /// without a sample, which may have run for less time than one sample stands for.
    Below(u64),
}

/// One of the two profiles, without its rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// Number of runs that were added up.
    pub runs: u64,
    /// The event counted.
    pub event: Event,
    /// The means by which the profile was made.
    pub origin: Origin,
    /// Number of listed functions; each name counts once.
    pub functions: u64,
    /// Sum of the listed counts.
    pub counted: u64,
    /// Total according to the profile's source.
    pub total: Option<u64>,
    /// Functions below this count are not listed; `None` if all are.
    pub cutoff: Option<u64>,
    /// Samples that the kernel could not deliver.
    pub lost: u64,
    /// Place, time and load of the recording.
    pub conditions: Conditions,
    /// Cost of the instrument itself.
    pub own_cost: Option<OwnCost>,
    /// Remarks of the profile's source.
    pub remarks: Vec<String>,
}

impl Diff {
    /// Compares counts without scaling: `without` is the baseline, `with` the profile with the
    /// change.
    #[must_use]
    pub fn between(without: &Profile, with: &Profile) -> Diff {
        Diff::with_scale(without, with, Scale::as_they_are())
    }

    /// Compares counts after dividing out differences of time, load or total.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if a side does not say by what it would have to be divided.
    pub fn scaled(without: &Profile, with: &Profile, by: By) -> Result<Diff> {
        let scale = Scale::between(by, without, with)?;
        Ok(Diff::with_scale(without, with, scale))
    }

    /// Compares the sums of several runs of each side, and returns these, too. The spread of the
    /// runs is noise, too, if both sides have several.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` for runs of a side that do not count the same on one machine, for listings
    /// with a cut-off, for sums of unequal numbers of runs, and if a run does not say by what it
    /// would have to be divided.
    pub fn of_runs<'a>(
        without: &'a [Profile],
        with: &'a [Profile],
        by: By,
    ) -> Result<(Diff, [Cow<'a, Profile>; 2])> {
        let sums = [runs::joined(without, SIDES[0])?, runs::joined(with, SIDES[1])?];
        if by == By::AsTheyAre && without.len() != with.len() {
            let (what, advice) =
                ("cannot compare sums of runs", "compare per second, or per packet");
            let why = format!("{} are without the change, {} with it", without.len(), with.len());
            return Err(Error::new(Code::Unsupported, what, why).fix(advice));
        }
        let factors = runs::factors([without, with], by)?;
        let scale = Scale::between(by, &sums[0], &sums[1])?;
        let diff = Diff::of([&sums[0], &sums[1]], [without, with], factors.as_ref(), scale);
        Ok((diff, sums))
    }

    fn with_scale(without: &Profile, with: &Profile, scale: Scale) -> Diff {
        let runs = [std::slice::from_ref(without), std::slice::from_ref(with)];
        Diff::of([without, with], runs, None, scale)
    }

    /// Compares two sides, each of them the sum of its `runs`; `factors` are those of the runs.
    fn of(
        [without, with]: [&Profile; 2],
        runs: [&[Profile]; 2],
        factors: Option<&[Vec<f64>; 2]>,
        scale: Scale,
    ) -> Diff {
        let mut remarks = Vec::new();
        let noise = |counts: &[Vec<u64>; 2]| {
            factors.map_or(0.0, |factors| runs::noise(counts, factors, scale.by))
        };
        let rows = merge::merge([without, with], runs, noise, &mut remarks);
        let warnings = warnings(without, with, scale);
        let listed = |seen: fn(&Row) -> Count| {
            rows.iter().filter(|row| matches!(seen(row), Count::Is(n) if n > 0)).count() as u64
        };
        let (of_without, of_with) = (listed(|row| row.without), listed(|row| row.with));
        let of = |i: usize, side, listed| Side::new(side, listed, runs[i].len() as u64);
        let (without, with) = (of(0, without, of_without), of(1, with, of_with));
        let mut diff = Diff { rows, without, with, scale, warnings, remarks };
        diff.rank();
        diff
    }

    /// Sorts rows by falling saving, where an absent count is 0, as in the post. Among rows with
    /// equal savings, exact savings precede bounds; then follow the smaller baseline and the name.
    fn rank(&mut self) {
        let scale = self.scale;
        self.rows.sort_by(|a, b| {
            let (x, y) = (a.sum(), b.sum());
            (y.saved(scale).total_cmp(&x.saved(scale)))
                .then_with(|| y.is_exact().cmp(&x.is_exact()))
                .then_with(|| x.without.cmp(&y.without))
                .then_with(|| a.symbol.cmp(&b.symbol))
        });
    }

    /// Returns the sum of the rows that `keep` accepts.
    #[must_use]
    pub fn sum_of(&self, keep: impl Fn(&Row) -> bool) -> Sum {
        self.sum_rows(self.rows.iter().filter(|row| keep(row)))
    }

    /// Returns the sum of `rows`. The bound of an unlisted count is added only for a side with a
    /// cut-off.
    #[must_use]
    pub fn sum_rows<'a>(&self, rows: impl IntoIterator<Item = &'a Row>) -> Sum {
        let sum = rows.into_iter().map(Row::sum).fold(Sum::default(), Sum::plus);
        let hidden = |side: &Side, n: u64| if side.is_cut_off() { n } else { 0 };
        Sum {
            hidden_without: hidden(&self.without, sum.hidden_without),
            hidden_with: hidden(&self.with, sum.hidden_with),
            ..sum
        }
    }

    /// Returns the figures of a sum of functions. If a listing was cut off, the sum lacks the
    /// functions that are not listed, so only the figures as listed are known.
    #[must_use]
    pub fn figures_of(&self, sum: Sum) -> Figures {
        let figures = sum.figures(self.scale);
        if self.is_cut_off() { figures.as_listed() } else { figures }
    }

    /// Returns true if at least one of the listings leaves out functions with a count.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.without.is_cut_off() || self.with.is_cut_off()
    }

    /// Returns the class of a function's change.
    #[must_use]
    pub fn change(&self, row: &Row) -> Change {
        Change::of(row, self.scale, self.is_sampled())
    }

    /// Returns true if at least one of the profiles counts samples, so that a small difference may
    /// be chance.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        [&self.without, &self.with].iter().any(|side| is_sampled(&side.event))
    }

    /// Returns true if the noise of a row includes the spread of several runs.
    #[must_use]
    pub fn has_spread(&self) -> bool {
        self.without.runs > 1 && self.with.runs > 1
    }

    /// Returns the sum of all rows.
    #[must_use]
    pub fn sum(&self) -> Sum {
        self.sum_of(|_| true)
    }

    /// Returns the sum of the rows that are not idle.
    #[must_use]
    pub fn sum_without_idle(&self) -> Sum {
        self.sum_of(|row| row.stage.part() != Part::Idle)
    }

    /// Returns the rows of a part, by falling saving.
    pub fn rows_of(&self, part: Part) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.stage.part() == part)
    }

    /// Returns the subtotals of the stages that have rows, in the order of [`Stage::ALL`].
    #[must_use]
    pub fn stages(&self) -> Vec<(Stage, Sum)> {
        let sums = Stage::ALL.iter().map(|&stage| (stage, self.sum_of(|row| row.stage == stage)));
        sums.filter(|(_, sum)| sum.functions > 0).collect()
    }

    /// Returns the falls and rises of the packet path's cost by function, because a saving in one
    /// function may only move the cost to another.
    #[must_use]
    pub fn moved(&self) -> Moved {
        let of = |is: fn(Change) -> bool| {
            self.sum_rows(self.rows_of(Part::Path).filter(|row| is(self.change(row))))
        };
        Moved {
            fell: of(|change| change == Change::Fell),
            rose: of(|change| change == Change::Rose),
            unclear: of(|change| matches!(change, Change::MayHaveFallen | Change::MayHaveRisen)),
            noise: of(|change| matches!(change, Change::Noise | Change::Unchanged)),
        }
    }

    /// Returns the totals of both sides as their sources give them; `None` if at least one source
    /// gives no total.
    #[must_use]
    pub fn makers_total(&self) -> Option<Sum> {
        let sum = |without, with| Sum { functions: 0, without, with, ..Sum::default() };
        Some(sum(self.without.total?, self.with.total?))
    }

    /// Returns true if a warning makes the difference meaningless.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.warnings.iter().any(Warning::is_grave)
    }
}

/// Changes of the packet path's cost, summed by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Functions whose count fell.
    pub fell: Sum,
    /// Functions whose count rose.
    pub rose: Sum,
    /// Functions whose change has an unknown direction, because a count is below a cut-off.
    pub unclear: Sum,
    /// Functions whose change may be sampling noise; for exact events, those without a change.
    pub noise: Sum,
}

impl Row {
    /// Returns the row's counts as the sum of one function.
    #[must_use]
    pub fn sum(&self) -> Sum {
        let (without, hidden_without) = self.without.parts();
        let (with, hidden_with) = self.with.parts();
        Sum { functions: 1, without, with, hidden_without, hidden_with }
    }
}

impl Count {
    /// Returns `listed` as a count of `profile`; `None` is a function that the profile leaves out.
    fn of(listed: Option<u64>, profile: &Profile) -> Count {
        // A function without a sample may still have run, so its count is a bound, not 0.
        let none = if is_sampled(&profile.event) { Count::Below(1) } else { Count::Is(0) };
        match (listed, profile.cutoff.filter(|n| *n > 1)) {
            (Some(0), _) | (None, None) => none,
            (Some(n), _) => Count::Is(n),
            (None, Some(cutoff)) => Count::Below(cutoff),
        }
    }

    /// Returns the listed count, and the bound of a count that is not listed; the other of the two
    /// is 0.
    const fn parts(self) -> (u64, u64) {
        match self {
            Count::Is(n) => (n, 0),
            Count::Below(n) => (0, n),
        }
    }

    /// Returns a count as a post prints it, where an absent count is 0.
    #[must_use]
    pub const fn as_posted(self) -> u64 {
        self.parts().0
    }
}

impl Side {
    fn new(profile: &Profile, functions: u64, runs: u64) -> Side {
        Side {
            runs,
            event: profile.event.clone(),
            origin: profile.origin,
            functions,
            counted: profile.counted(),
            total: profile.total.map(|total| total.count),
            cutoff: profile.cutoff,
            lost: profile.lost,
            conditions: profile.conditions.clone(),
            own_cost: profile.own_cost,
            remarks: profile.remarks.clone(),
        }
    }

    /// Returns true if functions with a count may be missing from the list.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.cutoff.is_some_and(|n| n > 1)
    }
}

/// Returns true if the counts are samples, each of which stands for several occurrences of the
/// event, or may be: a unit that the source does not name.
pub(crate) const fn is_sampled(event: &Event) -> bool {
    !matches!(event.unit, Unit::Events)
}

#[cfg(test)]
mod tests;
