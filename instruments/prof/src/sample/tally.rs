//! Samples added up: how many fell where, by which callers. Bounded, whatever is sampled.

use std::collections::{HashMap, HashSet};

use super::note::Hit;
use crate::profile::Space;

/// A place in which a sample fell, or through which it was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Place {
    /// An address of the kernel's.
    Kernel(u64),
    /// An address of ours.
    User(u64),
    /// Neither.
    Unknown,
    /// All places for which there was no room.
    Beyond,
}

/// Counts of samples by place and by call chain.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) samples: u64,
    pub(super) places: HashMap<Place, u64>,
    /// From where the sample fell to the outermost caller.
    pub(super) stacks: HashMap<Box<[Place]>, u64>,
    /// The places of all stacks.
    pub(super) callers: HashSet<Place>,
    /// Callers for which there was no room.
    pub(super) callers_beyond: u64,
    /// Samples with a chain for which there was no room.
    pub(super) stacks_beyond: u64,
    /// Samples with a chain that fell in user code.
    pub(super) user_chains: u64,
    /// Those of them in which at most one caller was found.
    pub(super) shallow_chains: u64,
    chain: Vec<Place>,
}

impl Tally {
    /// Adds a sample.
    pub(super) fn add(&mut self, hit: &Hit) {
        self.samples += 1;
        let place = place(hit.space, hit.address);
        if self.places.len() < PLACES_MAX || self.places.contains_key(&place) {
            *self.places.entry(place).or_default() += 1;
        } else {
            *self.places.entry(Place::Beyond).or_default() += 1;
        }
        if !hit.chain.is_empty() {
            self.add_chain(place, hit);
        }
    }

    fn add_chain(&mut self, first: Place, hit: &Hit) {
        let mut space = hit.space;
        let mut user_frames = 0u32;
        self.chain.clear();
        self.chain.push(first);
        // The first address of the first space is the sample's own.
        let mut own = true;
        for &entry in &hit.chain {
            if let Some(mark) = mark(entry) {
                space = mark;
                continue;
            }
            user_frames += u32::from(space == Space::User);
            if std::mem::take(&mut own) && entry == hit.address {
                continue;
            }
            // A return address is behind the call, perhaps in the next function already; but the
            // first in user space, if the sample fell in the kernel, is where it was called from.
            let at = if user_frames == 1 && space == Space::User { entry } else { entry - 1 };
            self.chain.push(place(space, at));
        }
        if hit.space == Space::User {
            self.user_chains += 1;
            self.shallow_chains += u64::from(user_frames <= 2);
        }
        if let Some(count) = self.stacks.get_mut(self.chain.as_slice()) {
            *count += 1;
        } else if self.stacks.len() < STACKS_MAX {
            self.add_stack();
        } else {
            self.stacks_beyond += 1;
        }
    }

    /// A program may make up its callers, and new ones for each sample.
    fn add_stack(&mut self) {
        for place in &mut self.chain {
            if self.callers.len() < CALLERS_MAX || self.callers.contains(place) {
                self.callers.insert(*place);
            } else {
                self.callers_beyond += 1;
                *place = Place::Beyond;
            }
        }
        if self.callers_beyond > 0 {
            self.callers.insert(Place::Beyond);
        }
        *self.stacks.entry(self.chain.as_slice().into()).or_default() += 1;
    }
}

fn place(space: Space, address: u64) -> Place {
    match space {
        Space::Kernel => Place::Kernel(address),
        Space::User => Place::User(address),
        Space::Unknown => Place::Unknown,
    }
}

/// Returns the space of the next entries if `entry` is the mark of one and no address.
///
/// Source: include/uapi/linux/perf_event.h, `enum perf_callchain_context`.
fn mark(entry: u64) -> Option<Space> {
    const MARKS: u64 = -4095i64 as u64;
    const KERNEL: u64 = -128i64 as u64;
    const USER: u64 = -512i64 as u64;
    match entry {
        KERNEL => Some(Space::Kernel),
        USER => Some(Space::User),
        // An address of 0 ends a chain that went astray.
        MARKS.. | 0 => Some(Space::Unknown),
        _ => None,
    }
}

/// A place takes about 32 bytes, a stack of 20 callers 350, the longest 2,000: 100 MiB at the most.
const PLACES_MAX: usize = 1 << 20;
/// A name for each is what they cost most.
const CALLERS_MAX: usize = 1 << 18;
const STACKS_MAX: usize = 1 << 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(space: Space, address: u64, chain: &[u64]) -> Hit {
        Hit { space, address, chain: chain.into() }
    }

    const IN_KERNEL: u64 = -128i64 as u64;
    const IN_USER: u64 = -512i64 as u64;

    #[test]
    fn a_chain_crosses_from_the_kernel_to_its_caller() {
        let mut tally = Tally::default();
        let chain = [IN_KERNEL, 0xffff_1000, 0xffff_2000, IN_USER, 0x1000, 0x2000];
        tally.add(&hit(Space::Kernel, 0xffff_1000, &chain));
        let (kernel, user) = (Place::Kernel, Place::User);
        let stack: &[Place] =
            &[kernel(0xffff_1000), kernel(0xffff_1fff), user(0x1000), user(0x1fff)];
        assert_eq!(tally.stacks.get(stack), Some(&1), "{:?}", tally.stacks);
        assert_eq!(tally.places.get(&kernel(0xffff_1000)), Some(&1));
        assert_eq!((tally.user_chains, tally.shallow_chains), (0, 0));
    }

    #[test]
    fn chains_that_end_at_once_are_counted_as_shallow() {
        let mut tally = Tally::default();
        tally.add(&hit(Space::User, 0x1000, &[IN_USER, 0x1000, 0x2000]));
        tally.add(&hit(Space::User, 0x1000, &[IN_USER, 0x1000, 0x2000, 0x3000]));
        assert_eq!((tally.user_chains, tally.shallow_chains), (2, 1));
    }

    #[test]
    fn absurd_chains_are_taken_as_they_come() {
        let mut tally = Tally::default();
        for entry in [0, 1, u64::MAX, u64::MAX - 4095, 1 << 63] {
            tally.add(&hit(Space::Unknown, entry, &[entry; 40]));
        }
        assert_eq!(tally.samples, 5);
    }

    #[test]
    fn more_stacks_than_there_is_room_for_are_counted() {
        let mut tally = Tally::default();
        let more = STACKS_MAX as u64 + 10;
        for n in 0..more {
            let chain = [IN_KERNEL, 0xffff_0000_0000, 0xffff_0000_0001 + n];
            tally.add(&hit(Space::Kernel, 0xffff_0000_0000, &chain));
        }
        assert_eq!((tally.stacks.len(), tally.stacks_beyond), (STACKS_MAX, 10));
        assert_eq!(tally.places.values().sum::<u64>(), more);
    }

    #[test]
    fn more_callers_than_there_is_room_for_are_one() {
        let mut tally = Tally::default();
        let deep = 100u64;
        let stacks = CALLERS_MAX as u64 / deep + 100;
        for n in 0..stacks {
            let callers = (0..deep).map(|at| 0xffff_0000_0000 + n * deep + at);
            let chain: Vec<u64> =
                [IN_KERNEL, 0xffff_ffff_0000].into_iter().chain(callers).collect();
            tally.add(&hit(Space::Kernel, 0xffff_ffff_0000, &chain));
        }
        assert_eq!(tally.callers.len(), CALLERS_MAX + 1);
        let all = stacks * deep + 1;
        assert_eq!(tally.callers_beyond, all - CALLERS_MAX as u64);
        assert_eq!(tally.stacks.values().sum::<u64>(), stacks);
    }
}
