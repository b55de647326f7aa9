//! A profile out of what was taken: rows, stacks, and under what conditions.

use std::collections::HashMap;
use std::time::{Instant, SystemTime};

use super::What;
use super::rings::Counted;
use super::symbols::{Name, Names};
use super::tally::Tally;
use crate::conditions::{Conditions, rfc3339};
use crate::profile::{Event, Origin, OwnCost, Profile, Row, Stack, Unit};

/// All that is known of a recording at its start.
#[derive(Debug)]
pub(super) struct Began {
    pub(super) at: Instant,
    pub(super) wall: SystemTime,
    pub(super) workload: String,
    pub(super) sample_ns: Option<f64>,
    /// The kernel's functions are sampled.
    pub(super) kernel: bool,
    /// Threads that started while the recorder attached and may be sampled twice.
    pub(super) late: usize,
}

/// Counts of what the rings told.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heard {
    pub(super) samples: u64,
    pub(super) lost: u64,
    pub(super) throttled: u64,
    /// Records that make no sense.
    pub(super) broken: u64,
}

/// All that a recording has come to.
pub(super) struct Taken<'a> {
    pub(super) what: &'a What,
    pub(super) call_chains: bool,
    pub(super) kernel_wanted: bool,
    pub(super) began: &'a Began,
    pub(super) tally: &'a Tally,
    pub(super) heard: Heard,
    pub(super) counted: Counted,
    pub(super) wall_ns: u64,
}

impl Taken<'_> {
    /// Returns the samples that were lost. The events' own count has what was lost last, too, of
    /// which no record tells.
    pub(super) fn lost(&self) -> u64 {
        self.counted.lost.unwrap_or(0).max(self.heard.lost)
    }
}

/// Returns the profile, without remarks and without the recorder's own CPU time, and the samples whose
/// stacks are left out because their names are too long.
pub(super) fn profile(taken: &Taken<'_>, names: &Names) -> (Profile, u64) {
    let (event, origin) = event(taken.what);
    let mut profile = Profile::new(event, origin);
    profile.rows = rows(taken.tally, names);
    let (stacks, stacks_unnamed) = stacks(taken.tally, names);
    profile.stacks = stacks;
    profile.sort();
    profile.lost = taken.lost();
    profile.own_cost = Some(OwnCost {
        recorder_cpu_ns: 0,
        sample_ns: taken.began.sample_ns,
        target_cpu_ns: taken.counted.cpu_ns,
        samples: taken.heard.samples,
    });
    profile.conditions = conditions(taken);
    (profile, stacks_unnamed)
}

fn event(what: &What) -> (Event, Origin) {
    match what {
        What::Time { .. } => {
            let name = "cpu-clock".to_owned();
            (Event { name, unit: Unit::Samples, period: None, raw: None }, Origin::Clock)
        }
        What::Event { trigger, period } => {
            let event = Event {
                name: trigger.name.clone(),
                unit: Unit::Samples,
                period: Some(*period),
                raw: trigger.raw.clone(),
            };
            (event, if trigger.of_the_kernel() { Origin::Kernel } else { Origin::Counter })
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
        symbol: name.symbol.clone(),
        address: name.address,
        count,
        code_bytes: name.code_bytes,
        load: None,
        object: name.object.as_deref().map(str::to_owned),
        space: name.space,
    };
    by_function.into_iter().map(row).collect()
}

/// With the samples of stacks whose names are longer, all together, than any reader can use.
fn stacks(tally: &Tally, names: &Names) -> (Vec<Stack>, u64) {
    let mut by_names: HashMap<Vec<&str>, u64> = HashMap::new();
    for (places, &count) in &tally.stacks {
        let frames = frames(places.iter().rev().map(|&place| names.find(place)));
        *by_names.entry(frames).or_default() += count;
    }
    let mut sorted: Vec<_> = by_names.into_iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let (mut stacks, mut bytes, mut unnamed) = (Vec::new(), 0, 0);
    for (frames, count) in sorted {
        bytes += frames.iter().map(|frame| frame.len() + FRAME_BYTES).sum::<usize>();
        if bytes > STACKS_BYTES_MAX {
            unnamed += count;
            continue;
        }
        stacks.push(Stack { frames: frames.into_iter().map(str::to_owned).collect(), count });
    }
    (stacks, unnamed)
}

/// A function may call itself; an object without symbols is said once.
fn frames<'a>(names: impl Iterator<Item = Option<&'a Name>>) -> Vec<&'a str> {
    let named = |name: Option<&'a Name>| {
        name.map_or(("[unknown]", false), |name| (name.symbol.as_str(), name.function))
    };
    let mut frames: Vec<(&str, bool)> = names.map(named).collect();
    frames.dedup_by(|frame, before| frame == before && !frame.1);
    frames.into_iter().map(|(symbol, _)| symbol).collect()
}

fn conditions(taken: &Taken<'_>) -> Conditions {
    let measures = match taken.what {
        What::Time { hz } => format!("where threads are, {hz} times in each second of CPU time"),
        What::Event { trigger, period } if trigger.is_clock() => {
            format!("where threads are, once in every {period} ns of {}", trigger.name)
        }
        What::Event { trigger, period } => {
            format!("where threads are, once in every {period} {}", trigger.name)
        }
    };
    Conditions {
        tool: Some(concat!("linerate ", env!("CARGO_PKG_VERSION")).to_owned()),
        measures: Some(measures),
        workload: Some(taken.began.workload.clone()),
        started: Some(rfc3339(taken.began.wall)),
        wall_ns: Some(taken.wall_ns),
        cpu_ns: Some(taken.counted.cpu_ns),
        ..Conditions::here()
    }
}

/// A name in memory, beside its letters.
const FRAME_BYTES: usize = 40;
const STACKS_BYTES_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Space;

    #[test]
    fn callers_without_names_are_one_frame_and_a_recursion_is_as_many_as_it_has() {
        let name = |symbol: &str, function| Name {
            symbol: symbol.to_owned(),
            address: None,
            code_bytes: None,
            object: None,
            space: Space::User,
            function,
        };
        let (libc, f) = (name("[libc: no symbol]", false), name("f", true));
        let chain = [None, None, Some(&libc), Some(&libc), Some(&f), Some(&f), Some(&libc)];
        let expected = ["[unknown]", "[libc: no symbol]", "f", "f", "[libc: no symbol]"];
        assert_eq!(frames(chain.into_iter()), expected);
    }
}
