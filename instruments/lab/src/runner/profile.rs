//! A side's profile as a run keeps it: its largest rows.

use linerate_prof::profile::{Profile, Row, Unit};
use linerate_prof::stage::stage_of;

use crate::record::{ProfileRecord, ProfileRow};

/// Rows that are kept.
const ROWS_MAX: usize = 500;

/// The profile of one side of a cell.
///
/// A function that is not in it was seen fewer times than its cut-off says, whoever left it out.
pub(super) fn record(side: &str, cell: &str, mut profile: Profile) -> ProfileRecord {
    profile.sort();
    // What nobody cut off was seen: absent is fewer than once.
    let cutoff = profile.cutoff.unwrap_or(1);
    let left_out = profile.rows.get(ROWS_MAX).map_or(0, |row| row.count.saturating_add(1));
    profile.rows.truncate(ROWS_MAX);
    ProfileRecord {
        side: side.into(),
        cell: cell.into(),
        event: profile.event.name,
        unit: unit(profile.event.unit).into(),
        packets: profile.conditions.packets.unwrap_or(0),
        cutoff: cutoff.max(left_out),
        rows: profile.rows.into_iter().map(row).collect(),
    }
}

fn row(row: Row) -> ProfileRow {
    let stage = stage_of(&row.symbol, row.object.as_deref(), row.space);
    ProfileRow {
        stage: Some(stage.as_str().into()),
        symbol: row.symbol,
        count: row.count,
        code_bytes: row.code_bytes,
    }
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Ticks => "ticks",
        Unit::Samples => "samples",
        Unit::Events => "events",
        Unit::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use linerate_prof::profile::{Event, Origin};

    use super::*;

    fn profile(counts: std::ops::RangeInclusive<u64>) -> Profile {
        let event =
            Event { name: "cpu-clock".into(), unit: Unit::Samples, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Clock);
        profile.rows = counts.map(|n| Row::new(format!("f{n}"), n)).collect();
        profile
    }

    #[test]
    fn the_largest_rows_are_kept_and_the_cut_off_is_above_the_largest_that_is_not() {
        let state = record("a", "change=both", profile(1..=ROWS_MAX as u64 + 2));
        assert_eq!(state.rows.len(), ROWS_MAX);
        assert_eq!(
            (state.rows[0].count, state.rows[ROWS_MAX - 1].count, state.cutoff),
            (502, 3, 3)
        );
        assert_eq!((state.unit.as_str(), state.cell.as_str()), ("samples", "change=both"));
    }

    #[test]
    fn of_a_whole_profile_nothing_that_was_seen_is_missing() {
        assert_eq!(record("a", "", profile(1..=2)).cutoff, 1);
        let listing = Profile { cutoff: Some(7), ..profile(7..=9) };
        assert_eq!(record("a", "", listing).cutoff, 7);
    }
}
