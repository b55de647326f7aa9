//! The durations of consecutive parts of a run.

use std::time::Duration;

/// The parts of a run in order, each with its name and its duration.
#[derive(Debug)]
pub struct Laps {
    name: String,
    since: Duration,
    done: Vec<(String, Duration)>,
}

impl Laps {
    /// Creates the laps of a run; the first lap started with the run.
    pub fn from_the_start(name: &str) -> Laps {
        Laps { name: name.to_owned(), since: Duration::ZERO, done: Vec::new() }
    }

    /// Ends the current lap at time `at` and begins the next lap; with an empty name, no lap
    /// begins.
    pub fn next(&mut self, name: &str, at: Duration) {
        let ended = std::mem::replace(&mut self.name, name.to_owned());
        if !ended.is_empty() {
            self.done.push((ended, at.saturating_sub(self.since)));
        }
        self.since = at;
    }

    /// Formats all laps that ended, in order.
    pub fn all(&self) -> String {
        shown(self.done.iter())
    }

    /// Returns the `n` laps that took longest.
    pub fn longest(&self, n: usize) -> String {
        let mut laps: Vec<_> = self.done.iter().collect();
        laps.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        shown(laps.into_iter().take(n))
    }
}

fn shown<'a>(laps: impl Iterator<Item = &'a (String, Duration)>) -> String {
    let each = laps.map(|(name, took)| format!("{name} {:.1} s", took.as_secs_f64()));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_step_is_named_first() {
        let mut laps = Laps::from_the_start("boot");
        for (name, at) in [("a", 2), ("b", 5), ("", 6), ("c", 8), ("d", 9)] {
            laps.next(name, Duration::from_secs(at));
        }
        assert_eq!(laps.all(), "boot 2.0 s, a 3.0 s, b 1.0 s, c 1.0 s");
        assert_eq!(laps.longest(2), "a 3.0 s, boot 2.0 s");
        assert_eq!(Laps::from_the_start("").all(), "");
    }
}
