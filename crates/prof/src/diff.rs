//! What changed between two profiles, ranked by what was saved.
//!
//! ```text
//! without (the baseline)   f 3358   g 900   h 494        smallest listed: 494
//! with    (the change)              g 300   h 584        smallest listed: 300
//!
//! saved                    f > 3058 g 600   h -90        f: fewer than 300, not 0
//! ```
//! A function that a cut-off listing leaves out was seen fewer times than the cut-off, which is a
//! bound and not a count: so is what was saved of it. What cannot be compared is told by a
//! [`Warning`], and a difference is made all the same: its reader decides.

mod scale;
mod sum;
mod warning;

use std::collections::HashMap;

use serde::Serialize;

use crate::conditions::Conditions;
use crate::profile::{Event, Origin, OwnCost, Profile, Space};
use crate::stage::{self, Part, Stage};
use crate::{Code, Error, Result};

pub use scale::{By, Scale};
pub use sum::{Figures, Saving, Sum};
pub use warning::{About, Warning};

/// Two profiles, held against each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Diff {
    /// Functions that are listed on either side, by falling saving.
    pub rows: Vec<Row>,
    /// The baseline.
    pub without: Side,
    /// With the change.
    pub with: Side,
    /// What counts are multiplied by before they are compared.
    pub scale: Scale,
    /// Why the two may not be comparable. To be printed before any figure.
    pub warnings: Vec<Warning>,
    /// What the reader must be told, in sentences.
    pub remarks: Vec<String>,
}

/// A function on both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its name.
    pub symbol: String,
    /// File that it is in, if a side says.
    pub object: Option<String>,
    /// Where in the path it is.
    pub stage: Stage,
    /// Seen in the baseline, as listed.
    pub without: Count,
    /// Seen with the change, as listed.
    pub with: Count,
}

/// How often a function was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// As listed, or 0 where a listing leaves nothing out.
    Is(u64),
    /// Not listed, hence fewer than this.
    Below(u64),
}

/// One of the two profiles, without its rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// What was looked for.
    pub event: Event,
    /// By what.
    pub origin: Origin,
    /// Functions listed, each name once.
    pub functions: u64,
    /// Sum of what is listed.
    pub counted: u64,
    /// What its maker gives as the total.
    pub total: Option<u64>,
    /// Absent is fewer than this; `None`: absent is 0.
    pub cutoff: Option<u64>,
    /// Samples that the kernel could not deliver.
    pub lost: u64,
    /// Where, when and under what load.
    pub conditions: Conditions,
    /// What the instrument itself took.
    pub own_cost: Option<OwnCost>,
    /// What its maker tells.
    pub remarks: Vec<String>,
}

impl Diff {
    /// Compares counts as they are: the baseline first, then the profile with the change.
    #[must_use]
    pub fn between(without: &Profile, with: &Profile) -> Diff {
        Diff::with_scale(without, with, Scale::as_they_are())
    }

    /// Compares what is left when differences of time, load or total are divided out.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if a side does not say by what it would have to be divided.
    pub fn scaled(without: &Profile, with: &Profile, by: By) -> Result<Diff> {
        let scale = Scale::new(by, without, with).map_err(|missing| {
            Error::new(Code::Unsupported, format!("cannot compare {by}"), missing)
                .fix("compare as they are, or record both with `linerate profile record`")
        })?;
        Ok(Diff::with_scale(without, with, scale))
    }

    fn with_scale(without: &Profile, with: &Profile, scale: Scale) -> Diff {
        let mut remarks = Vec::new();
        let rows = merge(without, with, &mut remarks);
        let warnings = warning::warnings(without, with, scale);
        let listed = |seen: fn(&Row) -> Count| {
            rows.iter().filter(|row| matches!(seen(row), Count::Is(n) if n > 0)).count() as u64
        };
        let sides = [
            Side::new(without, listed(|row| row.without)),
            Side::new(with, listed(|row| row.with)),
        ];
        let [without, with] = sides;
        let mut diff = Diff { rows, without, with, scale, warnings, remarks };
        diff.rank();
        diff
    }

    /// By falling saving, absent taken as 0, as the post does. Among equals what is known goes
    /// before what is a bound, then the smaller baseline, then the name.
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

    /// Sum of the rows that `keep` keeps.
    #[must_use]
    pub fn sum_of(&self, keep: impl Fn(&Row) -> bool) -> Sum {
        self.rows.iter().filter(|row| keep(row)).map(Row::sum).fold(Sum::default(), Sum::plus)
    }

    /// Sum of all rows.
    #[must_use]
    pub fn sum(&self) -> Sum {
        self.sum_of(|_| true)
    }

    /// Sum of the rows that are not idle.
    #[must_use]
    pub fn sum_without_idle(&self) -> Sum {
        self.sum_of(|row| row.stage.part() != Part::Idle)
    }

    /// Rows of a part, ranked.
    pub fn rows_of(&self, part: Part) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.stage.part() == part)
    }

    /// Subtotals of the stages that have rows, in the order of [`Stage::ALL`].
    #[must_use]
    pub fn stages(&self) -> Vec<(Stage, Sum)> {
        let sums = Stage::ALL.iter().map(|&stage| (stage, self.sum_of(|row| row.stage == stage)));
        sums.filter(|(_, sum)| sum.functions > 0).collect()
    }

    /// Cost of the path that vanished, and cost that moved to other functions or grew in them: a
    /// change that saves in one place may only have put it off to another.
    #[must_use]
    pub fn moved(&self) -> Moved {
        let of = |sign: fn(f64) -> bool| {
            let on_path = |row: &Row| row.stage.part() == Part::Path;
            self.sum_of(|row| on_path(row) && sign(row.sum().saved(self.scale)))
        };
        Moved { fell: of(|saved| saved > 0.0), rose: of(|saved| saved < 0.0) }
    }

    /// Makers' totals of both sides, listed or not; `None` unless both give one.
    #[must_use]
    pub fn makers_total(&self) -> Option<Sum> {
        let sum = |without, with| Sum { functions: 0, without, with, ..Sum::default() };
        Some(sum(self.without.total?, self.with.total?))
    }

    /// Whether a warning says that the difference means nothing.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.warnings.iter().any(Warning::is_grave)
    }
}

/// Where the cost of the path went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Functions that were seen less often.
    pub fell: Sum,
    /// Functions that were seen more often.
    pub rose: Sum,
}

impl Row {
    /// Its figures.
    #[must_use]
    pub fn sum(&self) -> Sum {
        let (without, hidden_without) = self.without.parts();
        let (with, hidden_with) = self.with.parts();
        Sum { functions: 1, without, with, hidden_without, hidden_with }
    }
}

impl Count {
    fn absent(cutoff: Option<u64>) -> Count {
        // Fewer than 1 is 0, and a cut-off of 0 is none.
        cutoff.filter(|n| *n > 1).map_or(Count::Is(0), Count::Below)
    }

    /// What is listed, and what may be hidden below a cut-off.
    const fn parts(self) -> (u64, u64) {
        match self {
            Count::Is(n) => (n, 0),
            Count::Below(n) => (0, n),
        }
    }

    /// As a post prints it: absent is 0.
    #[must_use]
    pub const fn as_posted(self) -> u64 {
        self.parts().0
    }
}

impl Side {
    fn new(profile: &Profile, functions: u64) -> Side {
        Side {
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
}

/// A function while the two sides are merged.
#[derive(Default)]
struct Seen<'a> {
    without: Option<u64>,
    with: Option<u64>,
    object: Option<&'a str>,
    space: Space,
}

/// One row for each name: static functions of one name in several places cannot be told apart
/// between two kernels, where all addresses differ.
fn merge(without: &Profile, with: &Profile, remarks: &mut Vec<String>) -> Vec<Row> {
    let mut seen: HashMap<&str, Seen<'_>> = HashMap::new();
    let mut repeated: Vec<&str> = Vec::new();
    for (profile, is_with) in [(without, false), (with, true)] {
        for row in &profile.rows {
            let entry = seen.entry(&row.symbol).or_default();
            entry.object = entry.object.or(row.object.as_deref());
            if row.space != Space::Unknown {
                entry.space = row.space;
            }
            let count = if is_with { &mut entry.with } else { &mut entry.without };
            if count.is_some() {
                repeated.push(&row.symbol);
            }
            *count = Some(count.unwrap_or(0).saturating_add(row.count));
        }
    }
    tell_of(repeated, remarks);
    let count = |n: Option<u64>, cutoff| n.map_or(Count::absent(cutoff), Count::Is);
    let row = |(symbol, seen): (&str, Seen<'_>)| Row {
        symbol: symbol.to_owned(),
        object: seen.object.map(str::to_owned),
        stage: stage::stage_of(symbol, seen.object, seen.space),
        without: count(seen.without, without.cutoff),
        with: count(seen.with, with.cutoff),
    };
    seen.into_iter().map(row).collect()
}

fn tell_of(mut repeated: Vec<&str>, remarks: &mut Vec<String>) {
    repeated.sort_unstable();
    repeated.dedup();
    let Some(first) = repeated.first() else { return };
    let others = match repeated.len() {
        1 => String::new(),
        2 => " and 1 other".to_owned(),
        n => format!(" and {} others", n - 1),
    };
    remarks
        .push(format!("several rows of a listing have the name {first}{others}; they are summed"));
}

#[cfg(test)]
mod tests;
