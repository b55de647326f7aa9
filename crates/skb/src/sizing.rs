//! The number of frames that a pool needs: the sum over all holders, by name.

use std::fmt;

/// A holder of frames, and the most that it can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The holder's name: `worker 0 hot list`, `west transmit backlog`.
    pub name: String,
    /// Most frames that the holder holds at once.
    pub frames: u64,
}

/// Holders and their sum, as in `worker 0 batch 64 + west backlog 256 = 320`.
///
/// A pool with fewer frames than the sum can be drained by holders that merely do their work, and
/// then nothing moves; a pool with the sum cannot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders(Vec<Holder>);

impl Holders {
    /// Returns an empty list.
    #[must_use]
    pub fn new() -> Holders {
        Holders::default()
    }

    /// Adds a holder.
    pub fn add(&mut self, name: impl Into<String>, frames: u64) {
        self.0.push(Holder { name: name.into(), frames });
    }

    /// Adds a holder and returns the list, for chains of calls.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, frames: u64) -> Holders {
        self.add(name, frames);
        self
    }

    /// Adds the caches of threads that drop packets. They reserve at most an eighth of a pool,
    /// which is a seventh of the sum of all other holders.
    #[must_use]
    pub fn with_thread_caches(self) -> Holders {
        let frames = self.sum().div_ceil(7);
        self.with("thread caches", frames)
    }

    /// Returns the number of frames that all holders together can hold.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, h| sum.saturating_add(h.frames))
    }

    /// Returns an iterator over the holders.
    pub fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.0.iter()
    }

    /// Returns a description of the problem if a hot list of `hot_list_len` frames is too short for
    /// rings of `rings` frames; `None` if it is long enough.
    ///
    /// Source: post 000 lost packets with a list of 128 before a ring of 256.
    #[must_use]
    pub fn short_hot_list(hot_list_len: usize, rings: u64) -> Option<String> {
        let short = hot_list_len > 0 && (hot_list_len as u64) < rings;
        short.then(|| {
            format!(
                "a hot list of {hot_list_len} is shorter than the {rings} frames of the rings it \
                 serves: bursts will go to the depot and back"
            )
        })
    }
}

impl From<Holders> for Vec<Holder> {
    fn from(holders: Holders) -> Vec<Holder> {
        holders.0
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, h) in self.0.iter().enumerate() {
            write!(f, "{}{} {}", if i == 0 { "" } else { " + " }, h.name, h.frames)?;
        }
        write!(f, " = {}", self.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_named_and_summed() {
        let holders = Holders::new().with("fill ring", 256).with("batch", 94).with_thread_caches();
        assert_eq!(holders.sum(), 400);
        assert_eq!(holders.to_string(), "fill ring 256 + batch 94 + thread caches 50 = 400");
    }

    #[test]
    fn the_list_of_post_000_is_too_short_for_its_ring() {
        assert!(Holders::short_hot_list(128, 256).is_some());
        assert_eq!(Holders::short_hot_list(1024, 256), None);
        // Off is a choice.
        assert_eq!(Holders::short_hot_list(0, 256), None);
    }
}
