//! Changes that are not kept: the values to which settings will be set back, each at its time.
//!
//! Orders for a setting go to one worker, which executes them in order or not at all. Their answers
//! may be seen later, and in any order. Each change has a serial number, so its answer changes
//! nothing of an earlier or later change.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::value::Ordered;

/// Identifier of a setting: of one queue of a port, or the CPUs of a worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Queue(String, usize, &'static str),
    Worker(usize),
}

/// The outcome of the orders of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All were executed.
    Made,
    /// Some were executed, or may have been.
    InPart,
    /// No order was or will be executed.
    NotMade,
}

/// A change that was ordered, and whose outcome is not known yet.
#[derive(Debug)]
struct Change {
    serial: u64,
    value: Ordered,
    /// Time after which the value is reverted; `None` if it is to stay.
    revert_after: Option<Duration>,
    /// Time after which the order is not executed.
    until: Instant,
}

/// A temporary value that was set.
#[derive(Debug)]
struct Temporary {
    serial: u64,
    value: Ordered,
    at: Instant,
}

/// A setting with a temporary value, or with changes whose outcome is not known.
#[derive(Debug)]
struct Entry {
    /// The value to which temporary changes are reverted.
    base: Ordered,
    temporary: Option<Temporary>,
    /// The temporary value whose revert was ordered.
    reverting: Option<Ordered>,
    /// Why the last revert failed.
    failed: Option<String>,
    /// In the order in which they were ordered.
    changes: Vec<Change>,
}

/// All settings with pending changes and reverts.
#[derive(Debug, Default)]
pub(super) struct Reverts {
    entries: BTreeMap<Key, Entry>,
    serials: u64,
}

impl Entry {
    /// Returns the time of the revert, if one is pending: not before all changes are made or
    /// withdrawn.
    fn at(&self) -> Option<Instant> {
        let time = |change: &Change| change.revert_after.map(|time| change.until + time);
        let set = self.temporary.as_ref().map(|set| set.at);
        let at = set.max(self.changes.iter().filter_map(time).max())?;
        self.changes.iter().map(|change| change.until).chain([at]).max()
    }

    fn made(&mut self, change: Change, at: Option<Instant>) {
        let Change { serial, value, .. } = change;
        // What failed is not tried again.
        self.failed = None;
        // The value of this change replaced those of the changes before it. Of these, a permanent
        // one whose outcome is still unknown may be the base of this one.
        let is_temporary = at.is_some();
        self.changes.retain(|c| c.serial > serial || (is_temporary && c.revert_after.is_none()));
        if let Some(at) = at {
            self.temporary = Some(Temporary { serial, value, at });
        } else {
            self.base = value;
            self.temporary.take_if(|set| set.serial < serial);
        }
    }
}

impl Reverts {
    /// Returns the number of a new change.
    pub fn serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }

    /// Records the change `serial` of a setting, which its worker makes before `until` or never.
    ///
    /// A temporary change is reverted to the last value that is to stay. A pending revert waits
    /// until the change has been made or has failed.
    pub fn begin(
        &mut self,
        serial: u64,
        key: &Key,
        [before, value]: [&Ordered; 2],
        revert_after: Option<Duration>,
        until: Instant,
    ) {
        let new = || Entry {
            base: before.clone(),
            temporary: None,
            reverting: None,
            failed: None,
            changes: Vec::new(),
        };
        let changes = &mut self.entries.entry(key.clone()).or_insert_with(new).changes;
        // Several queues have the CPUs of their worker in common.
        if changes.last().is_none_or(|last| last.serial != serial) {
            changes.push(Change { serial, value: value.clone(), revert_after, until });
        }
    }

    /// Sets the time after which the orders of the change `serial` are not executed.
    pub fn postpone(&mut self, serial: u64, until: Instant) {
        let changes = self.entries.values_mut().flat_map(|entry| &mut entry.changes);
        changes.filter(|change| change.serial == serial).for_each(|change| change.until = until);
    }

    /// Records the outcome of a change of these settings. The time of a revert counts from `now` if
    /// it was made.
    pub fn end<'a>(
        &mut self,
        serial: u64,
        keys: impl IntoIterator<Item = &'a Key>,
        outcome: Outcome,
        now: Instant,
    ) {
        for key in keys {
            let Some(entry) = self.entries.get_mut(key) else { continue };
            let Some(i) = entry.changes.iter().position(|change| change.serial == serial) else {
                continue;
            };
            let change = entry.changes.remove(i);
            match (outcome, change.revert_after) {
                (Outcome::Made, time) => entry.made(change, time.map(|time| now + time)),
                // A permanent change that was made in part leaves pending reverts as they are.
                (Outcome::InPart, Some(time)) => {
                    let at = change.until + time;
                    entry.made(change, Some(at));
                }
                (Outcome::InPart, None) | (Outcome::NotMade, _) => {}
            }
            if entry.changes.is_empty() && entry.temporary.is_none() {
                self.entries.remove(key);
            }
        }
    }

    /// Records that the revert of a setting was ordered; returns the number of this change. The
    /// setting's base remains known until [`Reverts::end`].
    pub fn ordered(&mut self, key: &Key, now: Instant) -> u64 {
        let serial = self.serial();
        if let Some(entry) = self.entries.get_mut(key) {
            let last = entry.changes.drain(..).rev().find(|change| change.revert_after.is_some());
            let set = entry.temporary.take().map(|set| set.value);
            entry.reverting = last.map(|change| change.value).or(set);
            let value = entry.base.clone();
            entry.changes.push(Change { serial, value, revert_after: None, until: now });
        }
        serial
    }

    /// Records that a revert was refused, or ordered as `serial` and not made: it is due again at
    /// `at`, unless the setting was changed meanwhile.
    pub fn again(&mut self, key: &Key, serial: Option<u64>, at: Instant, why: String) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.changes.retain(|change| Some(change.serial) != serial);
        match (&mut entry.temporary, entry.reverting.take(), serial) {
            (Some(set), _, _) => set.at = set.at.max(at),
            // A change that was ordered since replaces it once it is made.
            (None, Some(value), Some(serial)) => {
                entry.temporary = Some(Temporary { serial, value, at });
            }
            _ => {}
        }
        entry.failed = Some(why);
        if entry.changes.is_empty() && entry.temporary.is_none() {
            self.entries.remove(key);
        }
    }

    /// Returns why a revert that is due again has failed.
    pub fn failed(&self) -> Option<&str> {
        self.entries.values().find_map(|entry| entry.failed.as_deref())
    }

    /// Cancels all reverts; returns their number. Changes whose outcome is not known become
    /// permanent.
    pub fn keep(&mut self) -> usize {
        let mut kept = 0;
        for entry in self.entries.values_mut() {
            // A revert that fails now is not tried again.
            (entry.reverting, entry.failed) = (None, None);
        }
        for entry in self.entries.values_mut().filter(|entry| entry.at().is_some()) {
            kept += 1;
            if let Some(set) = entry.temporary.take() {
                entry.base = set.value;
                entry.changes.retain(|change| change.serial > set.serial);
            }
            entry.changes.iter_mut().for_each(|change| change.revert_after = None);
        }
        self.entries.retain(|_, entry| !entry.changes.is_empty());
        kept
    }

    /// Returns the time of the next revert.
    pub fn next(&self) -> Option<Instant> {
        self.entries.values().filter_map(Entry::at).min()
    }

    /// Returns the time of the next revert of these settings.
    pub fn next_of(&self, keys: impl IntoIterator<Item = Key>) -> Option<Instant> {
        keys.into_iter().filter_map(|key| self.entries.get(&key)?.at()).min()
    }

    /// Returns the settings whose time has come, with the values to set.
    pub fn due(&self, now: Instant) -> Vec<(Key, Ordered)> {
        let is_due = |entry: &Entry| entry.at().is_some_and(|at| at <= now);
        let due = self.entries.iter().filter(|(_, entry)| is_due(entry));
        due.map(|(key, entry)| (key.clone(), entry.base.clone())).collect()
    }
}
