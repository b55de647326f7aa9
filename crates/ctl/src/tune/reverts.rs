//! Changes that are not kept: the values to which settings will be set back, each at its time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::value::Ordered;

/// Identifier of a setting: of one queue of a port, or the CPUs of a worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Queue(String, usize, &'static str),
    Worker(usize),
}

/// The value that a setting had before its first temporary change, and the time of the revert.
#[derive(Debug, Clone)]
pub(super) struct Revert {
    pub to: Ordered,
    pub at: Instant,
}

/// All pending reverts.
#[derive(Debug, Default)]
pub(super) struct Reverts(BTreeMap<Key, Revert>);

impl Reverts {
    /// Prepares a change of a setting, which workers make before `until` or never; returns the revert that was
    /// pending before.
    ///
    /// A temporary change is reverted to the value that the setting had before the first of them. A pending revert
    /// waits until a permanent change has been made or has failed.
    pub fn begin(
        &mut self,
        key: &Key,
        before: &Ordered,
        revert_after: Option<Duration>,
        until: Instant,
    ) -> Option<Revert> {
        let known = self.0.get(key).cloned();
        if let Some(time) = revert_after {
            let to = known.as_ref().map_or(before, |known| &known.to).clone();
            self.0.insert(key.clone(), Revert { to, at: until + time });
        } else if let Some(known) = self.0.get_mut(key) {
            known.at = known.at.max(until);
        }
        known
    }

    /// Counts the time from now, when a temporary change of these settings was made; cancels their reverts if the
    /// change is permanent. Settings that were kept meanwhile have no revert.
    pub fn made<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a Key>,
        revert_after: Option<Duration>,
        now: Instant,
    ) {
        for key in keys {
            match (revert_after, self.0.get_mut(key)) {
                (Some(time), Some(revert)) => revert.at = now + time,
                (Some(_), None) => {}
                (None, _) => _ = self.0.remove(key),
            }
        }
    }

    /// Makes reverts pending as they were before [`Reverts::begin`], unless they were kept or done meanwhile.
    pub fn restore(&mut self, known: Vec<(Key, Option<Revert>)>) {
        for (key, before) in known {
            match (self.0.get_mut(&key), before) {
                (Some(revert), Some(before)) => *revert = before,
                (Some(_), None) => _ = self.0.remove(&key),
                (None, _) => {}
            }
        }
    }

    /// Makes a revert pending that could not be ordered.
    pub fn again(&mut self, key: Key, revert: Revert) {
        self.0.insert(key, revert);
    }

    /// Cancels all reverts; returns their number.
    pub fn keep(&mut self) -> usize {
        std::mem::take(&mut self.0).len()
    }

    /// Returns the time of the next revert.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().map(|revert| revert.at).min()
    }

    /// Removes and returns the reverts whose time has come.
    pub fn due(&mut self, now: Instant) -> BTreeMap<Key, Revert> {
        let due = self.0.iter().filter(|(_, revert)| revert.at <= now);
        let due: Vec<Key> = due.map(|(key, _)| key.clone()).collect();
        due.iter().filter_map(|key| self.0.remove_entry(key)).collect()
    }
}
