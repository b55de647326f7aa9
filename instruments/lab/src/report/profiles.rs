//! A run's profiles, as the profiler's printers take them.

use linerate_prof::diff::{By, Diff};
use linerate_prof::profile::{Event, Origin, Profile, Row, Unit};

use crate::record::{ProfileRecord, Run};

/// Both sides' profiles of one event in one cell, and their difference.
pub(super) struct Profiles {
    /// The cell, as the run names it.
    pub cell: String,
    /// Of the first side.
    pub a: Profile,
    /// Of the second.
    pub b: Profile,
    /// What moved and what vanished, per packet where packets were counted.
    pub diff: Diff,
}

/// Every pair of profiles of a run. One without its other side is left out.
pub(super) fn profiles(run: &Run) -> Vec<Profiles> {
    let of_a = run.profiles.iter().filter(|record| record.side == "a");
    let other = |a: &ProfileRecord| {
        let same = |b: &&ProfileRecord| b.side == "b" && b.cell == a.cell && b.event == a.event;
        run.profiles.iter().find(same)
    };
    let both = |a: &ProfileRecord| {
        let (cell, a, b) = (a.cell.clone(), profile(a), profile(other(a)?));
        // Where packets were not counted, counts are compared as they are: the printer says which.
        let diff = Diff::scaled(&a, &b, By::KiloPacket).unwrap_or_else(|_| Diff::between(&a, &b));
        Some(Profiles { cell, a, b, diff })
    };
    of_a.filter_map(both).collect()
}

fn profile(record: &ProfileRecord) -> Profile {
    let unit = match record.unit.as_str() {
        "ticks" => Unit::Ticks,
        "samples" => Unit::Samples,
        "events" => Unit::Events,
        _ => Unit::Unknown,
    };
    let event = Event { name: record.event.clone(), unit, period: None, raw: None };
    let mut profile = Profile::new(event, Origin::Listing);
    profile.cutoff = (record.cutoff > 0).then_some(record.cutoff);
    profile.conditions.packets = (record.packets > 0).then_some(record.packets);
    let row = |row: &crate::record::ProfileRow| Row {
        code_bytes: row.code_bytes,
        ..Row::new(row.symbol.clone(), row.count)
    };
    profile.rows = record.rows.iter().map(row).collect();
    profile.sort();
    profile
}
