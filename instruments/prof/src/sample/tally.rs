//! Sums of samples by place and by call chain, with bounded memory.

use std::collections::HashMap;

use perf_event::data::Record;

use crate::profile::Space;

/// An address at which a sample was taken, or which is in its call chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// An address in the kernel.
    Kernel(u64),
    /// An address in this process's user space.
    User(u64),
    /// An address in another program.
    Other,
    /// An unknown address.
    Unknown,
    /// Any address beyond the limit of stored places.
    Beyond,
}

/// The contents of the rings: samples by place and by call chain, and counts of other records.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// This process, if others are sampled as well, because their addresses cannot be named.
    pub(super) own: Option<u32>,
    pub(super) samples: u64,
    /// Records for which a ring had no room, as the kernel reports.
    pub(super) lost: u64,
    /// Number of times that the kernel paused an event that was too frequent.
    pub(super) throttled: u64,
    /// Records that are invalid.
    pub(super) broken: u64,
    pub(super) places: HashMap<Place, u64>,
    /// Samples by thread, of at most [`THREADS_MAX`] threads.
    pub(super) threads: HashMap<u32, u64>,
    /// Call chains, from the sampled place to the outermost caller.
    pub(super) stacks: HashMap<Box<[Place]>, u64>,
    /// Samples whose call chain is beyond the limit of stored chains.
    pub(super) stacks_beyond: u64,
    /// Samples in this process's user code that have a call chain.
    pub(super) user_chains: u64,
    /// Those of them whose call chain has at most one caller.
    pub(super) shallow_chains: u64,
}

impl Tally {
    /// Adds a record from code in `space`; `None` is an invalid record.
    pub(super) fn take(&mut self, space: Space, record: Option<Record<'_>>) {
        match record {
            Some(Record::Sample(sample)) => {
                let chain = sample.callchain().unwrap_or_default();
                let is_ours = self.own.is_none_or(|own| sample.pid() == Some(own));
                self.sample((space, is_ours), sample.ip().unwrap_or(0), chain);
                let thread = sample.tid().unwrap_or(0);
                if self.threads.len() < THREADS_MAX || self.threads.contains_key(&thread) {
                    *self.threads.entry(thread).or_default() += 1;
                }
            }
            Some(Record::Lost(lost)) => self.lost = self.lost.saturating_add(lost.lost),
            Some(Record::LostSamples(lost)) => self.lost = self.lost.saturating_add(lost.lost),
            Some(Record::Throttle(_)) => self.throttled += 1,
            Some(_) => {}
            None => self.broken += 1,
        }
    }

    /// Adds a sample to its place and call chain. The chain is in the kernel's format, with marks
    /// between the spaces; it is empty if none was requested.
    fn sample(&mut self, (space, is_ours): (Space, bool), address: u64, chain: &[u64]) {
        let place = |space, address| match place(space, address) {
            Place::User(_) if !is_ours => Place::Other,
            place => place,
        };
        self.samples += 1;
        let first = place(space, address);
        let has_room = self.places.len() < PLACES_MAX || self.places.contains_key(&first);
        *self.places.entry(if has_room { first } else { Place::Beyond }).or_default() += 1;
        if chain.is_empty() {
            return;
        }
        let (mut now, mut user_frames, mut places) = (space, 0u32, vec![first]);
        // The first address of the chain may be the sample's own address; skip it then.
        let mut own = true;
        for &entry in chain {
            if let Some(mark) = mark(entry) {
                now = mark;
                continue;
            }
            user_frames += u32::from(now == Space::User);
            if std::mem::take(&mut own) && entry == address {
                continue;
            }
            // A return address is behind the call instruction, perhaps in the next function, so
            // subtract 1. Only the first user address below a kernel sample is no return address:
            // it is where the kernel was entered.
            let at = if user_frames == 1 && now == Space::User { entry } else { entry - 1 };
            let caller = place(now, at);
            // Frames of another program have no names of their own, so its callers are one frame.
            if caller != Place::Other || places.last() != Some(&Place::Other) {
                places.push(caller);
            }
        }
        // Frames of another program are one, so the length of its chain says nothing.
        if space == Space::User && is_ours {
            self.user_chains += 1;
            self.shallow_chains += u64::from(user_frames <= 2);
        }
        if self.stacks.len() < STACKS_MAX || self.stacks.contains_key(places.as_slice()) {
            *self.stacks.entry(places.into()).or_default() += 1;
        } else {
            self.stacks_beyond += 1;
        }
    }
}

fn place(space: Space, address: u64) -> Place {
    match space {
        Space::Kernel => Place::Kernel(address),
        Space::User => Place::User(address),
        Space::Unknown => Place::Unknown,
    }
}

/// Returns the space of the next entries if `entry` is a mark instead of an address.
///
/// Source: include/uapi/linux/perf_event.h, `enum perf_callchain_context`.
fn mark(entry: u64) -> Option<Space> {
    const MARKS: u64 = -4095i64 as u64;
    match entry {
        KERNEL => Some(Space::Kernel),
        USER => Some(Space::User),
        // An address of 0 ends a chain with a wrong frame pointer.
        MARKS.. | 0 => Some(Space::Unknown),
        _ => None,
    }
}

const KERNEL: u64 = -128i64 as u64;
const USER: u64 = -512i64 as u64;
/// Most places. A place takes about 32 bytes, a stack of 20 callers 350, and the longest stack
/// 2,000, so that all together take at most 100 MiB.
const PLACES_MAX: usize = 1 << 20;
const STACKS_MAX: usize = 1 << 15;
const THREADS_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_crosses_from_the_kernel_to_its_caller() {
        let mut tally = Tally::default();
        let chain = [KERNEL, 0xffff_1000, 0xffff_2000, USER, 0x1000, 0x2000];
        tally.sample((Space::Kernel, true), 0xffff_1000, &chain);
        let (kernel, user) = (Place::Kernel, Place::User);
        let stack: &[Place] =
            &[kernel(0xffff_1000), kernel(0xffff_1fff), user(0x1000), user(0x1fff)];
        assert_eq!(tally.stacks.get(stack), Some(&1), "{:?}", tally.stacks);
        assert_eq!(tally.places.get(&kernel(0xffff_1000)), Some(&1));
        assert_eq!(tally.user_chains, 0);
        assert_eq!(tally.shallow_chains, 0);
    }

    #[test]
    fn callers_in_another_program_are_one_frame_without_an_address() {
        let mut tally = Tally::default();
        let chain = [KERNEL, 0xffff_1000, USER, 0x1000, 0x2000];
        tally.sample((Space::Kernel, false), 0xffff_1000, &chain);
        tally.sample((Space::User, false), 0x1000, &[]);
        let stack: &[Place] = &[Place::Kernel(0xffff_1000), Place::Other];
        assert_eq!(tally.stacks.get(stack), Some(&1), "{:?}", tally.stacks);
        assert_eq!(tally.places.get(&Place::Other), Some(&1), "{:?}", tally.places);
        tally.sample((Space::User, false), 0x1000, &[USER, 0x1000]);
        assert_eq!((tally.user_chains, tally.shallow_chains), (0, 0), "they are not ours");
    }

    #[test]
    fn short_chains_are_counted_as_shallow_and_absurd_ones_are_taken_as_they_come() {
        let mut tally = Tally::default();
        tally.sample((Space::User, true), 0x1000, &[USER, 0x1000, 0x2000]);
        tally.sample((Space::User, true), 0x1000, &[USER, 0x1000, 0x2000, 0x3000]);
        for entry in [0, 1, u64::MAX, u64::MAX - 4095, 1 << 63] {
            tally.sample((Space::Unknown, true), entry, &[entry; 40]);
        }
        assert_eq!((tally.samples, tally.user_chains, tally.shallow_chains), (7, 2, 1));
    }

    #[test]
    fn more_stacks_than_there_is_room_for_are_counted() {
        let mut tally = Tally::default();
        let more = STACKS_MAX as u64 + 10;
        for n in 0..more {
            let chain = [KERNEL, 0xffff_0000_0000, 0xffff_0000_0001 + n];
            tally.sample((Space::Kernel, true), 0xffff_0000_0000, &chain);
        }
        assert_eq!((tally.stacks.len(), tally.stacks_beyond), (STACKS_MAX, 10));
        assert_eq!(tally.places.values().sum::<u64>(), more);
    }

    #[test]
    fn a_function_that_calls_itself_is_its_own_caller() {
        let mut tally = Tally::default();
        tally.sample((Space::User, true), 0x1000, &[USER, 0x1000, 0x1000, 0x2000]);
        let stack: &[Place] = &[Place::User(0x1000), Place::User(0xfff), Place::User(0x1fff)];
        assert_eq!(tally.stacks.get(stack), Some(&1), "{:?}", tally.stacks);
    }

    #[test]
    fn samples_that_the_kernel_lost_are_as_many_as_it_says() {
        use perf_event::data::LostSamples;
        let mut tally = Tally::default();
        for lost in [5, 7] {
            tally.take(Space::Unknown, Some(Record::LostSamples(LostSamples { lost })));
        }
        tally.take(Space::Unknown, None);
        assert_eq!((tally.lost, tally.broken, tally.samples), (12, 1, 0));
    }
}
