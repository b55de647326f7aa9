//! Several runs of each side: their counts are added up, and their spread is noise.
//!
//! ```text
//! without  494  510  471  1,475   s = 22 about the means of the sides, 4 degrees of freedom
//! with     584  600  552  1,736   noise of the difference of sums: t·s·√6 = 2.78·22·2.45 = 150
//! ```
//! Samples vary by chance even in one run; the memory that a process got, the CPU on which it ran
//! and what else ran there vary from run to run, which one run does not show. Both sides are taken
//! to spread alike, as two runs a side would otherwise tell nothing. Sides with unequal numbers of
//! runs that spread differently are not covered: of what did not change, more than 1 in 20 may be
//! beyond.

use std::borrow::Cow;

use super::{By, SIDES, Scale, warnings};
use crate::conditions::Conditions;
use crate::profile::{OwnCost, Profile, Row, Stack, Total};
use crate::student::student;
use crate::{Code, Error, Result};

/// The probability with which the difference of what did not change is within the noise.
const LEVEL: f64 = 0.95;

/// Returns the sum of the runs of a side, which `side` names in an error.
///
/// # Errors
/// `E-UNSUPPORTED` for runs that do not count the same on one machine, and for listings with a
/// cut-off, whose absent functions cannot be added up.
pub(super) fn joined<'a>(runs: &'a [Profile], side: &str) -> Result<Cow<'a, Profile>> {
    let refused = |why: String| {
        let fix = "take runs of one event on one machine, as `linerate profile record` saves them";
        Err(Error::new(Code::Unsupported, format!("cannot add up the runs {side}"), why).fix(fix))
    };
    let Some((first, others)) = runs.split_first() else {
        return refused("there is none".to_owned());
    };
    if others.is_empty() {
        return Ok(Cow::Borrowed(first));
    }
    if runs.iter().any(|run| run.cutoff.is_some_and(|n| n > 1)) {
        return refused("a listing leaves out functions with few counts".to_owned());
    }
    let mut sum = Profile::new(first.event.clone(), first.origin);
    for (number, run) in (1..).zip(runs) {
        if let Some(unlike) = unlike(first, run) {
            return refused(format!("runs 1 and {number} are of {unlike}"));
        }
        sum.lost = sum.lost.saturating_add(run.lost);
        let new = run.remarks.iter().filter(|remark| !sum.remarks.contains(remark));
        sum.remarks = [sum.remarks.as_slice(), &new.cloned().collect::<Vec<_>>()].concat();
    }
    sum.rows = rows(runs);
    sum.stacks = runs.iter().flat_map(|run| &run.stacks).cloned().collect::<Vec<Stack>>();
    sum.total = all(runs, |run| run.total.map(|total| total.count))
        .map(|count| Total { count, load: None });
    sum.own_cost = own_cost(runs);
    let mhz = runs.iter().map(|run| run.conditions.mhz).sum::<Option<f64>>();
    sum.conditions = Conditions {
        mhz: mhz.map(|sum| sum / runs.len() as f64),
        netdevs: Vec::new(),
        wall_ns: all(runs, |run| run.conditions.wall_ns),
        cpu_ns: all(runs, |run| run.conditions.cpu_ns),
        packets: all(runs, |run| run.conditions.packets),
        bus: None,
        ..first.conditions.clone()
    };
    Ok(Cow::Owned(sum))
}

/// Returns the property in which two runs of a side differ, with both values.
fn unlike(first: &Profile, run: &Profile) -> Option<String> {
    // Runs of one machine may differ in duration, load, lost samples, and in the CPU's clock, whose
    // frequency is scaled.
    let lasting = |run: &Profile| {
        let conditions = run.conditions.clone();
        let conditions = Conditions { mhz: None, wall_ns: None, packets: None, ..conditions };
        Profile { conditions, ..Profile::new(run.event.clone(), run.origin) }
    };
    let found = warnings(&lasting(first), &lasting(run), Scale::as_they_are());
    let warning = found.into_iter().next()?;
    Some(format!("{}: {} and {}", warning.about, warning.without, warning.with))
}

/// Returns the rows of all runs, one for each function and file.
fn rows(runs: &[Profile]) -> Vec<Row> {
    let mut rows: Vec<Row> = runs.iter().flat_map(|run| &run.rows).cloned().collect();
    let file = |row: &Row| (row.object.clone(), row.space as u8, row.stage);
    rows.sort_by(|a, b| a.symbol.cmp(&b.symbol).then_with(|| file(a).cmp(&file(b))));
    rows.dedup_by(|row, kept| {
        let is_same = row.symbol == kept.symbol && file(row) == file(kept);
        if is_same {
            kept.count = kept.count.saturating_add(row.count);
            (kept.address, kept.load) = (None, None);
        }
        is_same
    });
    rows
}

/// Returns the sum of a figure; `None` unless every run has it.
fn all(runs: &[Profile], of: impl Fn(&Profile) -> Option<u64>) -> Option<u64> {
    runs.iter().try_fold(0u64, |sum, run| Some(sum.saturating_add(of(run)?)))
}

/// Returns the cost of the instrument in all runs, with the mean of what a sample took.
fn own_cost(runs: &[Profile]) -> Option<OwnCost> {
    let sum = |of: fn(&OwnCost) -> u64| all(runs, |run| run.own_cost.as_ref().map(of));
    let sample = |run: &Profile| run.own_cost?.sample_ns;
    let samples_ns = runs.iter().try_fold(0.0, |sum, run| Some(sum + sample(run)?));
    Some(OwnCost {
        recorder_cpu_ns: sum(|cost| cost.recorder_cpu_ns)?,
        sample_ns: samples_ns.map(|sum: f64| sum / runs.len() as f64),
        target_cpu_ns: sum(|cost| cost.target_cpu_ns)?,
        samples: sum(|cost| cost.samples)?,
    })
}

/// Returns the factors by which the counts of each run are multiplied; `None` if a side has only
/// one run, from which its spread is not known.
///
/// # Errors
/// `E-UNSUPPORTED` if a run does not say by what it would have to be divided.
pub(super) fn factors(sides: [&[Profile]; 2], by: By) -> Result<Option<[Vec<f64>; 2]>> {
    if sides.iter().any(|runs| runs.len() < 2) {
        return Ok(None);
    }
    let of = |runs: &[Profile], side: &str| -> Result<Vec<f64>> {
        (1..).zip(runs).map(|(i, run)| by.factor(run, &format!("of run {i} {side}"))).collect()
    };
    Ok(Some([of(sides[0], SIDES[0])?, of(sides[1], SIDES[1])?]))
}

/// Returns the scaled difference up to which the two sides of a function differ by chance, from its
/// counts in each run and the factors of the runs.
pub(super) fn noise(counts: &[Vec<u64>; 2], factors: &[Vec<f64>; 2], by: By) -> f64 {
    let (mut squares, mut shares, mut freedom) = (0.0, 0.0, 0);
    for (counts, factors) in counts.iter().zip(factors) {
        // A function that a run does not list has no count there.
        let count = |i| counts.get(i).copied().unwrap_or(0) as f64;
        let scaled: Vec<f64> = factors.iter().enumerate().map(|(i, by)| count(i) * by).collect();
        let mean = scaled.iter().sum::<f64>() / scaled.len() as f64;
        squares += scaled.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        let lengths: Vec<f64> = factors.iter().map(|by| by.recip()).collect();
        let whole: f64 = lengths.iter().sum();
        shares += lengths.iter().map(|length| (length / whole).powi(2)).sum::<f64>();
        freedom += scaled.len() - 1;
    }
    // Counts as they are were added up. A scaled one is the sum of the counts over the sum of the
    // durations, loads or totals, in which a run weighs by its length.
    let added = if by == By::AsTheyAre { factors[0].len() as f64 } else { 1.0 };
    added * student(freedom, LEVEL) * (squares / freedom as f64 * shares).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_of_sums_and_of_rates_is_students() {
        let counts = [vec![494, 510, 471], vec![584, 600, 552]];
        let as_they_are = [vec![1.0; 3], vec![1.0; 3]];
        // Squares about the means: 768.7 and 1,194.7; s = 22.15; t(4, 95 %) = 2.776.
        let sums = noise(&counts, &as_they_are, By::AsTheyAre);
        assert!((sums - 2.776 * 22.15 * 6f64.sqrt()).abs() < 0.2, "{sums}");
        let tenth = [vec![0.1; 3], vec![0.1; 3]];
        let rates = noise(&counts, &tenth, By::Second);
        assert!((rates - 0.1 * sums / 3.0).abs() < 1e-9, "{rates}");
        // Rates of 10 and 12 in 1 and 10 seconds: s = √2, t(2, 95 %) = 4.303.
        let lengths = [vec![1.0, 0.1], vec![1.0, 0.1]];
        let weighed = noise(&[vec![10, 120], vec![10, 120]], &lengths, By::Second);
        let shares = 2.0 * (1.0 + 100.0) / 121.0;
        assert!((weighed - 4.303 * (2.0f64 * shares).sqrt()).abs() < 0.01, "{weighed}");
        assert_eq!(noise(&[vec![7, 7], vec![9, 9]], &[vec![1.0; 2], vec![1.0; 2]], By::Share), 0.0);
        assert!(noise(&[vec![7], vec![]], &[vec![1.0; 2], vec![1.0; 2]], By::AsTheyAre) > 0.0);
    }
}
