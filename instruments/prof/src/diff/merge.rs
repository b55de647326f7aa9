//! Merging of the rows of two profiles.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Count, Row};
use crate::profile::{self, Profile, Space};
use crate::stage::{Stage, side_of, stage_in};

/// Most objects that a remark names.
const NAMED: usize = 3;

/// The key of a function: its name alone is not unique, because the kernel and programs, and two
/// files, may have functions of the same name.
#[derive(PartialEq, Eq, Hash)]
struct Key<'a> {
    symbol: &'a str,
    side: Space,
    object: Option<&'a str>,
    /// The stage that the profile's source gives.
    stage: Option<Stage>,
}

/// A function and its counts while the two profiles are merged.
#[derive(Default)]
struct Seen<'a> {
    without: Option<u64>,
    with: Option<u64>,
    object: Option<&'a str>,
    /// The counts of each run without the change, and of each with it.
    runs: [Vec<u64>; 2],
}

/// Merges rows into one for each name and space, and each stage that a source gives. Static
/// functions with the same name are summed, because they cannot be distinguished between two
/// kernels, where all addresses differ.
///
/// Each of the two is the sum of its `runs`; `noise` is of a function's counts in each of them.
pub(super) fn merge(
    [without, with]: [&Profile; 2],
    runs: [&[Profile]; 2],
    noise: impl Fn(&[Vec<u64>; 2]) -> f64,
    remarks: &mut Vec<String>,
) -> Vec<Row> {
    let sides = sides([without, with]);
    let mut seen: HashMap<Key<'_>, Seen<'_>> = HashMap::new();
    let mut repeated: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (profile, is_with) in [(without, false), (with, true)] {
        for row in &profile.rows {
            let entry = seen.entry(key(row, &sides)).or_default();
            entry.object = entry.object.or(row.object.as_deref());
            let count = if is_with { &mut entry.with } else { &mut entry.without };
            *count = Some(count.unwrap_or(0).saturating_add(row.count));
        }
    }
    for (side, runs) in runs.into_iter().enumerate() {
        for (i, row) in
            runs.iter().enumerate().flat_map(|(i, run)| run.rows.iter().map(move |row| (i, row)))
        {
            let entry = seen.entry(key(row, &sides)).or_default();
            let counts = &mut entry.runs[side];
            // In the sum of several runs, a name in a file has only one row.
            if counts.len() > i {
                let objects = repeated.entry(&row.symbol).or_default();
                objects.extend(entry.object.into_iter().chain(row.object.as_deref()));
            }
            counts.resize(i + 1, 0);
            counts[i] = counts[i].saturating_add(row.count);
        }
    }
    tell_of(&repeated, remarks);
    let whole = [without, with].iter().any(|profile| profile.conditions.whole_machine);
    let row = |(key, seen): (Key<'_>, Seen<'_>)| Row {
        symbol: key.symbol.to_owned(),
        object: seen.object.map(str::to_owned),
        stage: key.stage.unwrap_or_else(|| stage_in(whole, key.symbol, seen.object, key.side)),
        noise: noise(&seen.runs),
        without: Count::of(seen.without, without),
        with: Count::of(seen.with, with),
    };
    seen.into_iter().map(row).collect()
}

/// Returns the space of each name, if all rows with a known space agree; rows without one are
/// assumed to be in that space.
fn sides(profiles: [&Profile; 2]) -> HashMap<&str, Option<Space>> {
    let mut sides: HashMap<&str, Option<Space>> = HashMap::new();
    for row in profiles.into_iter().flat_map(|profile| &profile.rows) {
        let side = side_of(row.object.as_deref(), row.space);
        if side != Space::Unknown {
            let known = sides.entry(&row.symbol).or_insert(Some(side));
            *known = known.filter(|known| *known == side);
        }
    }
    sides
}

fn key<'a>(row: &'a profile::Row, sides: &HashMap<&str, Option<Space>>) -> Key<'a> {
    let symbol = row.symbol.as_str();
    let side = match side_of(row.object.as_deref(), row.space) {
        Space::Unknown => sides.get(symbol).copied().flatten().unwrap_or_default(),
        known => known,
    };
    // `[unknown]` or an address identifies no function without its file.
    let is_nameless = symbol.starts_with('[') || symbol.starts_with("0x");
    let object = row.object.as_deref().filter(|_| is_nameless);
    Key { symbol, side, object, stage: row.stage }
}

fn tell_of(repeated: &BTreeMap<&str, BTreeSet<&str>>, remarks: &mut Vec<String>) {
    let Some((first, objects)) = repeated.first_key_value() else { return };
    let others = match repeated.len() {
        1 => String::new(),
        2 => " and 1 other".to_owned(),
        n => format!(" and {} others", n - 1),
    };
    let mut places = objects.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    if objects.len() > NAMED {
        places.push_str(&format!(" and {} more", objects.len() - NAMED));
    }
    if !places.is_empty() {
        places = format!(" (in {places})");
    }
    remarks.push(format!(
        "several rows of a listing have the name {first}{places}{others}; they are summed"
    ));
}
