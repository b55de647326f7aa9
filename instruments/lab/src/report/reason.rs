//! Why a cell has few figures, or none.

use std::collections::BTreeMap;

use super::folded::{Folded, Numbers};
use super::remarks::warned;
use super::tables::ROWS_MAX;
use super::view::View;
use super::words::{cells, n, shown};
use crate::experiment::Clock;
use crate::record::{CellRecord, PairRecord, Status};

/// The largest number of kinds of disturbance that are named, most rejections first.
const KINDS_MAX: usize = 4;

/// Why.
pub(super) struct Reason {
    /// In a word or two.
    pub short: &'static str,
    /// In a sentence.
    pub long: String,
}

/// Why a cell has few figures, or none; `None` if nothing is wrong with it.
pub(super) fn reason(view: &View<'_>, cell: &CellRecord) -> Option<Reason> {
    let reason = |short, long: &str| Some(Reason { short, long: long.to_owned() });
    match cell.status {
        _ if !cell.ledger.balanced() => {
            reason("withheld", "its packets are not conserved: what was measured is withheld")
        }
        Status::Ok => None,
        Status::Unreachable => reason("not reached", "the load that it names was not reached"),
        Status::Unsupported => reason("not run here", "it cannot be run here"),
        Status::Inconclusive => {
            Some(Reason { short: "disturbed", long: disturbed(view, &cell.pairs) })
        }
    }
}

/// Returns the cells that need a remark, with their reasons; cells with the same reason are
/// grouped. Reasons that a warning already gives are left out.
pub(super) fn reasons(view: &View<'_>) -> Vec<(String, String)> {
    let mut alike: Vec<(String, Vec<&str>)> = Vec::new();
    let warned = warned(view);
    for (place, (name, cell)) in view.named().enumerate() {
        let Some(Reason { long, .. }) = reason(view, cell) else { continue };
        let is_plain = matches!(cell.status, Status::Unreachable | Status::Unsupported);
        if is_plain && cell.ledger.balanced() && warned.contains(&place) {
            continue;
        }
        let known = alike.iter().position(|(same, _)| *same == long).unwrap_or(alike.len());
        match alike.get_mut(known) {
            Some((_, names)) => names.push(name),
            None if known < ROWS_MAX => alike.push((long, vec![name])),
            None => {}
        }
    }
    let all = view.cells.len();
    alike.into_iter().map(|(long, names)| (cells(&names, all), long)).collect()
}

/// `0 of 18 pairs were undisturbed: run delay up to 71.4 % (limit 1 %) in 17 …`, by the headline's
/// clock.
fn disturbed(view: &View<'_>, pairs: &[PairRecord]) -> String {
    let is_rate = view.headline().is_some_and(|metric| metric.clock == Some(Clock::Wall));
    let is_rejected =
        |pair: &&PairRecord| if is_rate { !pair.accepted } else { !pair.cost_accepted };
    let mut kinds: BTreeMap<String, (Folded, usize)> = BTreeMap::new();
    let rejected: Vec<&PairRecord> = pairs.iter().filter(is_rejected).collect();
    for reason in rejected.iter().filter_map(|pair| pair.reject_reason.as_deref()) {
        let mut of_pair: BTreeMap<String, Folded> = BTreeMap::new();
        for part in reason.split("; ").take(ROWS_MAX) {
            fold(&mut of_pair, Folded::new(&kind(part)));
        }
        for (key, folded) in of_pair {
            match kinds.get_mut(&key) {
                Some((all, count)) => {
                    all.take(folded);
                    *count += 1;
                }
                None => drop(kinds.insert(key, (folded, 1))),
            }
        }
    }
    let mut kinds: Vec<(Folded, usize)> = kinds.into_values().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let each = kinds
        .iter()
        .take(KINDS_MAX)
        .map(|(folded, count)| format!("{} in {}", shown(&folded.told(Numbers::Most)), n(*count)));
    let why = each.collect::<Vec<_>>().join("; ");
    let undisturbed = n(pairs.len() - rejected.len());
    let said = format!("{undisturbed} of {} pairs were undisturbed", n(pairs.len()));
    if why.is_empty() { said } else { format!("{said}: {why}") }
}

fn fold(all: &mut BTreeMap<String, Folded>, one: Folded) {
    match all.get_mut(&one.key()) {
        Some(same) => same.take(one),
        None => drop(all.insert(one.key(), one)),
    }
}

/// A disturbance less what does not matter for its kind: whose window it was in, and that others had
/// *at least* as much, which its largest figure says too.
fn kind(part: &str) -> String {
    let part = part.replacen("others had at least ", "others had ", 1);
    let of_thread = part.split_once(" of ").zip(part.split_once(" (limit "));
    match of_thread {
        Some(((delay, _), (_, limit))) if delay.starts_with("run delay ") => {
            format!("{delay} (limit {limit}")
        }
        _ => part,
    }
}
