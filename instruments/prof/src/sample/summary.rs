//! Conversion of a tally into a profile: rows, stacks, and conditions.

use std::collections::HashMap;

use super::rings::Counted;
use super::symbols::{Name, Names};
use super::tally::Tally;
use super::{Recording, What, remarks};
use crate::conditions::{Conditions, rfc3339};
use crate::profile::{Event, Origin, OwnCost, Profile, Row, Stack, Unit};
use crate::read::OTHER;

/// Returns the profile, without the recorder's own CPU time.
pub(super) fn profile(
    recording: &Recording,
    counted: Counted,
    wall_ns: u64,
    names: &Names,
) -> Profile {
    let Recording { recorder, tally, .. } = recording;
    let (event, origin) = event(&recorder.what);
    let mut profile = Profile::new(event, origin);
    profile.rows = rows(tally, names);
    if recorder.call_chains {
        profile.stacks = stacks(tally, names);
    }
    profile.sort();
    profile.lost = counted.lost;
    let cost = OwnCost {
        recorder_cpu_ns: 0,
        sample_ns: recording.sample_ns,
        target_cpu_ns: counted.cpu_ns,
        samples: tally.samples,
    };
    profile.conditions = Conditions {
        measures: Some(measures(&recorder.what)),
        workload: Some(recording.workload.clone()),
        started: Some(rfc3339(recording.wall)),
        wall_ns: Some(wall_ns),
        cpu_ns: Some(counted.cpu_ns),
        ..Conditions::here()
    };
    profile.remarks = remarks::of(recording, &counted, &cost, names);
    profile.own_cost = Some(cost);
    profile
}

fn event(what: &What) -> (Event, Origin) {
    let (name, period, raw, origin) = match what {
        What::Time { hz } => {
            ("cpu-clock", Some(1_000_000_000 / u64::from(*hz)), None, Origin::Clock)
        }
        What::Event { event, period } => {
            let origin = if event.is_software() { Origin::Kernel } else { Origin::Counter };
            (event.name.as_str(), Some(*period), event.raw.clone(), origin)
        }
    };
    (Event { name: name.to_owned(), unit: Unit::Samples, period, raw }, origin)
}

fn measures(what: &What) -> String {
    match what {
        What::Time { hz } => format!("where threads are, {hz} times in each second of CPU time"),
        What::Event { event, period } => {
            let ns = if event.is_clock() { "ns of " } else { "" };
            format!("where threads are, once in every {period} {ns}{}", event.name)
        }
    }
}

fn rows(tally: &Tally, names: &Names) -> Vec<Row> {
    let mut by_function: HashMap<&Name, u64> = HashMap::new();
    for (&place, &count) in &tally.places {
        if let Some(name) = names.find(place) {
            *by_function.entry(name).or_default() += count;
        }
    }
    let row = |(name, count): (&Name, u64)| Row {
        address: name.address,
        code_bytes: name.code_bytes,
        object: name.object.as_deref().map(str::to_owned),
        space: name.space,
        ..Row::new(name.symbol.as_str(), count)
    };
    by_function.into_iter().map(row).collect()
}

/// Returns the call chains. Samples whose chain was not stored are one chain, [`OTHER`], so that
/// the counts of all chains are those of all samples.
fn stacks(tally: &Tally, names: &Names) -> Vec<Stack> {
    let mut by_names: HashMap<Vec<&str>, u64> = HashMap::new();
    for (places, &count) in &tally.stacks {
        let frames = frames(places.iter().rev().map(|&place| names.find(place)));
        *by_names.entry(frames).or_default() += count;
    }
    let mut sorted: Vec<_> = by_names.into_iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let stack = |(frames, count): (Vec<&str>, u64)| Stack {
        frames: frames.into_iter().map(str::to_owned).collect(),
        count,
    };
    let mut stacks: Vec<Stack> = sorted.into_iter().map(stack).collect();
    let stored = stacks.iter().fold(0u64, |sum, stack| sum.saturating_add(stack.count));
    let other = tally.samples.saturating_sub(stored);
    if other > 0 {
        stacks.push(Stack { frames: vec![OTHER.to_owned()], count: other });
    }
    stacks
}

/// Returns the names of frames without repetition: recursion of a function without symbols appears
/// once.
fn frames<'a>(names: impl Iterator<Item = Option<&'a Name>>) -> Vec<&'a str> {
    let named = |name: Option<&'a Name>| {
        name.map_or(("[unknown]", false), |name| (name.symbol.as_str(), name.function))
    };
    let mut frames: Vec<(&str, bool)> = names.map(named).collect();
    frames.dedup_by(|frame, before| frame == before && !frame.1);
    frames.into_iter().map(|(symbol, _)| symbol).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tally::Place;
    use super::*;

    #[test]
    fn a_clock_has_its_period_in_nanoseconds() {
        let (event, origin) = event(&What::Time { hz: 100 });
        assert_eq!((event.period, origin), (Some(10_000_000), Origin::Clock));
    }

    #[test]
    fn samples_without_a_stored_chain_are_one_chain() {
        let mut tally = Tally { samples: 10, ..Tally::default() };
        tally.stacks.insert([Place::Unknown].into(), 7);
        let chain = |name: &str, count| Stack { frames: vec![name.to_owned()], count };
        let expected = [chain("[unknown]", 7), chain(OTHER, 3)];
        assert_eq!(stacks(&tally, &Names::default()), expected);
        tally.samples = 7;
        assert_eq!(stacks(&tally, &Names::default()), expected[..1]);
    }

    #[test]
    fn callers_without_names_are_one_frame_and_a_recursion_is_as_many_as_it_has() {
        let (libc, f) =
            (Name::plain("[libc: no symbol]"), Name { function: true, ..Name::plain("f") });
        let chain = [None, None, Some(&libc), Some(&libc), Some(&f), Some(&f), Some(&libc)];
        let expected = ["[unknown]", "[libc: no symbol]", "f", "f", "[libc: no symbol]"];
        assert_eq!(frames(chain.into_iter()), expected);
    }
}
