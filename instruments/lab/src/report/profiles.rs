//! Profiles of a run as pairs: both sides of a cell, and their difference.

use linerate_prof::diff::{By, Diff};
use linerate_prof::profile::{Event, Origin, Profile, Row as ProfRow, Unit};
use linerate_prof::stage::Stage;

use super::words::short;
use crate::record::{ProfileRecord, ProfileRow, Run};

/// The event of a profile of CPU time.
const CPU_TIME: &str = "cpu-clock";

/// Both sides' profiles of one event in one cell, and their difference.
pub(super) struct Profiles {
    /// The cell, as the run names it.
    pub cell: String,
    /// The profile of the first side.
    pub a: Profile,
    /// The profile of the second side.
    pub b: Profile,
    /// The difference, for each packet if packets were counted.
    pub diff: Diff,
}

/// Returns the pairs of profiles of a run. A profile is left out if the other side has none.
pub(super) fn profiles(run: &Run) -> Vec<Profiles> {
    let of_a = run.profiles.iter().filter(|record| record.side == "a");
    of_a.filter_map(|a| pair(run, a)).collect()
}

/// Returns the profiles of CPU time of the cell with this name, as a report prints it.
pub(super) fn of_cell(run: &Run, name: &str) -> Option<Profiles> {
    let is_its = |record: &&ProfileRecord| {
        record.side == "a" && record.event == CPU_TIME && short(&record.cell) == name
    };
    pair(run, run.profiles.iter().find(is_its)?)
}

/// Returns the pair of the first side's profile `a`; `None` if the other side has none.
fn pair(run: &Run, a: &ProfileRecord) -> Option<Profiles> {
    let same = |b: &&ProfileRecord| b.side == "b" && b.cell == a.cell && b.event == a.event;
    let b = run.profiles.iter().find(same)?;
    let (cell, a, b) = (a.cell.clone(), profile(a), profile(b));
    // Without a packet count, compare the counts themselves; the printed table states which of
    // the two was compared.
    let diff = Diff::scaled(&a, &b, By::KiloPacket).unwrap_or_else(|_| Diff::between(&a, &b));
    Some(Profiles { cell, a, b, diff })
}

fn profile(record: &ProfileRecord) -> Profile {
    let unit = match record.unit.as_str() {
        "ticks" => Unit::Ticks,
        "samples" => Unit::Samples,
        "events" => Unit::Events,
        _ => Unit::Unknown,
    };
    let event = Event { name: record.event.clone(), unit, period: None, raw: None };
    let origin = if record.event == CPU_TIME { Origin::Clock } else { Origin::Listing };
    let mut profile = Profile::new(event, origin);
    profile.cutoff = (record.cutoff > 0).then_some(record.cutoff);
    profile.conditions.packets = (record.packets > 0).then_some(record.packets);
    let row = |row: &ProfileRow| ProfRow {
        code_bytes: row.code_bytes,
        stage: stage(row),
        ..ProfRow::new(row.symbol.clone(), row.count)
    };
    profile.remarks.clone_from(&record.remarks);
    profile.rows = record.rows.iter().map(row).collect();
    profile.own_cost = record.own_cost;
    profile.stacks.clone_from(&record.stacks);
    profile.sort();
    profile
}

/// Returns the stored stage of a function, which was found by its file as well as by its name;
/// `None` in a document that has no stages, or one of another version's.
fn stage(row: &ProfileRow) -> Option<Stage> {
    let stored = row.stage.as_deref()?;
    Stage::ALL.iter().copied().find(|stage| stage.as_str() == stored)
}
