//! A model of private L2 caches: what would move between cores and memory, for accesses that one
//! lists. Where there is no counter, it answers questions of kind, never of size.
//!
//! Each core has one set-associative cache of 64-byte lines that forgets the least recently used;
//! the caches agree by MESI. That is all: no first cache, no L3, no prefetcher, no time, no two
//! accesses at once. What is counted, for each tag (a function, say):
//! - lines in: fills, from wherever;
//! - lines out: lines that a fill pushed out. A line that another core takes is not pushed out;
//! - from another core: fills from a core that had the line for itself, modified or not. A line
//!   that several cores share is served from outside.
//!
//! Its figures leave as a [`Profile`] of [`Origin::Model`] and in no other form that anybody prints
//! beside a counter's.

use std::collections::BTreeMap;
use std::fmt;

use linerate_sys::{Code, Error, Result};
use serde::Serialize;

use super::Quantity;
use crate::profile::{Event, Origin, Profile, Row, Unit};

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;

/// Size of each core's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Bytes of data.
    pub bytes: u64,
    /// Places that a line may be in.
    pub ways: usize,
}

/// What a core does to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads from it.
    Read,
    /// Stores to it.
    Write,
}

/// Caches of several cores, and what has moved so far.
#[derive(Debug)]
pub struct Caches {
    cores: Vec<Cache>,
    geometry: Geometry,
    sets: u64,
    tallies: BTreeMap<String, Tally>,
}

/// What moved: a model's figures, and nobody else's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Modelled {
    geometry: Geometry,
    cores: usize,
    tallies: BTreeMap<String, Tally>,
}

/// What moved on behalf of one tag, in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Tally {
    /// Accesses.
    pub accesses: u64,
    /// Lines that came in.
    pub lines_in: u64,
    /// Lines that were pushed out.
    pub lines_out: u64,
    /// Of the lines that came in, those that another core had.
    pub from_other_core: u64,
}

/// Lines of one core: for each set its lines, the most recently used first.
type Cache = Vec<Vec<Line>>;

#[derive(Debug, Clone, Copy)]
struct Line {
    /// Address divided by the bytes of a line.
    number: u64,
    state: State,
}

/// MESI; invalid is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Modified,
    Exclusive,
    Shared,
}

impl Geometry {
    /// An L2 of today: 1 MiB, 16 ways.
    pub const L2: Geometry = Geometry { bytes: 1 << 20, ways: 16 };

    /// Sets of a cache, if it can be cut into them.
    fn sets(self) -> Option<u64> {
        let ways = u64::try_from(self.ways).ok().filter(|&ways| ways > 0)?;
        let set_bytes = ways.checked_mul(LINE_BYTES)?;
        let whole = self.bytes.is_multiple_of(set_bytes);
        (whole && self.bytes > 0).then_some(self.bytes / set_bytes)
    }
}

impl Caches {
    /// Empty caches of `cores` cores.
    ///
    /// # Errors
    /// `E-MEMORY` for sizes that do not divide into sets, for no core, and for more than
    /// 4 million lines in all, which no question needs.
    pub fn new(cores: usize, geometry: Geometry) -> Result<Caches> {
        let lines = u64::try_from(cores).ok().and_then(|cores| cores.checked_mul(geometry.bytes));
        let fits = lines.is_some_and(|bytes| bytes > 0 && bytes / LINE_BYTES <= LINES_MAX);
        let Some(sets) = geometry.sets().filter(|_| fits) else {
            let what = format!("cannot model {cores} caches of {} bytes", geometry.bytes);
            let why = format!("bytes must be sets x {} ways x {LINE_BYTES}", geometry.ways);
            let fix = format!("1 core or more, {LINES_MAX} lines or fewer in all");
            return Err(Error::new(Code::Memory, what, why).fix(fix));
        };
        let empty = vec![Vec::new(); usize::try_from(sets).unwrap_or(usize::MAX)];
        Ok(Caches { cores: vec![empty; cores], geometry, sets, tallies: BTreeMap::new() })
    }

    /// `core` accesses the line of `address`, on behalf of `tag`.
    ///
    /// # Errors
    /// `E-CPU` for a core that the model does not have.
    pub fn access(&mut self, core: usize, address: u64, access: Access, tag: &str) -> Result<()> {
        if core >= self.cores.len() {
            let why = format!("it has {} cores", self.cores.len());
            return Err(Error::new(Code::Cpu, format!("cannot model core {core}"), why));
        }
        let number = address / LINE_BYTES;
        let mut moved = Tally { accesses: 1, ..Tally::default() };
        match self.take_out(core, number) {
            Some(state) => {
                let state = match access {
                    Access::Read => state,
                    Access::Write => {
                        self.others_lose(core, number);
                        State::Modified
                    }
                };
                self.put_first(core, Line { number, state });
            }
            None => {
                let (state, was_owned) = self.fetch(core, number, access);
                moved.lines_in = 1;
                moved.from_other_core = u64::from(was_owned);
                moved.lines_out = u64::from(self.put_first(core, Line { number, state }));
            }
        }
        if !self.tallies.contains_key(tag) {
            self.tallies.insert(tag.into(), Tally::default());
        }
        if let Some(tally) = self.tallies.get_mut(tag) {
            tally.add(moved);
        }
        Ok(())
    }

    /// What has moved so far.
    #[must_use]
    pub fn modelled(&self) -> Modelled {
        let (geometry, cores) = (self.geometry, self.cores.len());
        Modelled { geometry, cores, tallies: self.tallies.clone() }
    }

    /// The state in which `core` gets a line that it does not have, and whether another core had it
    /// for itself.
    fn fetch(&mut self, core: usize, number: u64, access: Access) -> (State, bool) {
        let set = self.set_of(number);
        let (mut had, mut was_owned) = (false, false);
        for (_, cache) in self.cores.iter_mut().enumerate().filter(|(other, _)| *other != core) {
            for line in cache[set].iter_mut().filter(|line| line.number == number) {
                had = true;
                was_owned |= line.state != State::Shared;
                line.state = State::Shared;
            }
        }
        let state = match access {
            Access::Read if had => State::Shared,
            Access::Read => State::Exclusive,
            Access::Write => {
                self.others_lose(core, number);
                State::Modified
            }
        };
        (state, was_owned)
    }

    /// Takes a line out of its place in the order of use.
    fn take_out(&mut self, core: usize, number: u64) -> Option<State> {
        let set = self.set_of(number);
        let lines = &mut self.cores[core][set];
        let at = lines.iter().position(|line| line.number == number)?;
        Some(lines.remove(at).state)
    }

    /// Puts a line first in the order of use; whether that pushed the last one out.
    fn put_first(&mut self, core: usize, line: Line) -> bool {
        let set = self.set_of(line.number);
        let lines = &mut self.cores[core][set];
        let is_full = lines.len() == self.geometry.ways;
        if is_full {
            lines.pop();
        }
        lines.insert(0, line);
        is_full
    }

    fn others_lose(&mut self, core: usize, number: u64) {
        let set = self.set_of(number);
        for (_, cache) in self.cores.iter_mut().enumerate().filter(|(other, _)| *other != core) {
            cache[set].retain(|line| line.number != number);
        }
    }

    /// Below the number of sets, of which there is one list each: it indexes any core's cache.
    fn set_of(&self, number: u64) -> usize {
        usize::try_from(number % self.sets).unwrap_or(0)
    }
}

impl Modelled {
    /// One of its figures for each tag, as a profile whose origin is a model.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` for a quantity that the model does not have.
    pub fn profile(&self, quantity: Quantity) -> Result<Profile> {
        let figure: fn(&Tally) -> u64 = match quantity {
            Quantity::L2LinesIn => |tally| tally.lines_in,
            Quantity::L2LinesOut => |tally| tally.lines_out,
            Quantity::LinesFromOtherCore => |tally| tally.from_other_core,
            other => {
                let what = format!("cannot model {other}");
                return Err(Error::new(Code::Unsupported, what, "the model has lines only"));
            }
        };
        let name = format!("{quantity} (model)");
        let event = Event { name, unit: Unit::Events, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Model);
        profile.rows =
            self.tallies.iter().map(|(tag, tally)| Row::new(tag, figure(tally))).collect();
        profile.remarks.push(format!("{self}: not a measurement"));
        profile.sort();
        Ok(profile)
    }

    /// What moved on behalf of `tag`; nothing if it made no access.
    #[must_use]
    pub fn tally(&self, tag: &str) -> Tally {
        self.tallies.get(tag).copied().unwrap_or_default()
    }
}

impl Tally {
    fn add(&mut self, moved: Tally) {
        self.accesses += moved.accesses;
        self.lines_in += moved.lines_in;
        self.lines_out += moved.lines_out;
        self.from_other_core += moved.from_other_core;
    }
}

impl fmt::Display for Modelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Geometry { bytes, ways } = self.geometry;
        let kib = bytes / 1024;
        write!(f, "model of {} private L2 caches, {kib} KiB, {ways} ways, MESI, LRU", self.cores)
    }
}

const LINES_MAX: u64 = 1 << 22;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Access::{Read, Write};
    use super::*;

    const SMALL: Geometry = Geometry { bytes: 4096, ways: 4 };

    fn walk(caches: &mut Caches, bytes: u64, tag: &str) {
        for address in (0..bytes).step_by(LINE_BYTES as usize) {
            caches.access(0, address, Read, tag).unwrap();
        }
    }

    #[test]
    fn a_line_that_is_bounced_n_times_shows_n_transfers_and_no_eviction() {
        const N: u64 = 1000;
        let mut caches = Caches::new(2, SMALL).unwrap();
        caches.access(0, 0x1000, Write, "start").unwrap();
        for turn in 1..=N {
            let core = (turn % 2) as usize;
            // As a spinning consumer does it: sees the other's store, then stores itself.
            caches.access(core, 0x1000, Read, "bounce").unwrap();
            caches.access(core, 0x1008, Write, "bounce").unwrap();
        }
        let bounced = caches.modelled().tally("bounce");
        assert_eq!(bounced.from_other_core, N);
        assert_eq!(bounced.lines_in, N);
        assert_eq!(bounced.lines_out, 0);
    }

    #[test]
    fn a_private_line_comes_in_once_and_from_no_other_core() {
        let mut caches = Caches::new(2, SMALL).unwrap();
        for turn in 0..1000 {
            caches.access(0, 0x1000, Write, "mine").unwrap();
            caches.access(1, 0x2000 + turn % 64, Write, "theirs").unwrap();
        }
        let modelled = caches.modelled();
        for tag in ["mine", "theirs"] {
            let private = modelled.tally(tag);
            assert_eq!((private.lines_in, private.from_other_core), (1, 0), "{tag}");
            assert_eq!(private.accesses, 1000);
        }
    }

    #[test]
    fn a_walk_over_eight_times_the_cache_evicts_each_line_once() {
        const WALK: u64 = 8 << 20;
        let mut caches = Caches::new(1, Geometry::L2).unwrap();
        walk(&mut caches, WALK, "first");
        walk(&mut caches, WALK, "again");
        let modelled = caches.modelled();
        let held = Geometry::L2.bytes / LINE_BYTES;
        assert_eq!(modelled.tally("first").lines_out, WALK / LINE_BYTES - held);
        assert_eq!(modelled.tally("again").lines_out, WALK / LINE_BYTES);
        assert_eq!(modelled.tally("again").lines_in, WALK / LINE_BYTES);
        assert_eq!(modelled.tally("again").from_other_core, 0);
    }

    #[test]
    fn what_fits_stays_and_the_least_recently_used_goes_first() {
        let mut caches = Caches::new(1, SMALL).unwrap();
        walk(&mut caches, SMALL.bytes, "fill");
        walk(&mut caches, SMALL.bytes, "hit");
        assert_eq!(caches.modelled().tally("hit").lines_in, 0);
        // One set: 16 sets of 64 bytes are 1024 apart. Line 0 is used again, so line 1024 goes.
        caches.access(0, 0, Read, "use").unwrap();
        caches.access(0, 4096, Read, "push").unwrap();
        caches.access(0, 0, Read, "kept").unwrap();
        caches.access(0, 1024, Read, "gone").unwrap();
        let modelled = caches.modelled();
        assert_eq!(modelled.tally("push").lines_out, 1);
        assert_eq!(modelled.tally("kept").lines_in, 0);
        assert_eq!(modelled.tally("gone").lines_in, 1);
    }

    #[test]
    fn a_line_that_both_only_read_is_taken_once() {
        let mut caches = Caches::new(3, SMALL).unwrap();
        for turn in 0..99 {
            caches.access(turn % 3, 64, Read, "read").unwrap();
        }
        let read = caches.modelled().tally("read");
        // The first has it for itself, the second takes it from there, the third gets a shared one.
        assert_eq!((read.lines_in, read.from_other_core), (3, 1));
        // A store to a shared line moves nothing, but costs the others theirs.
        caches.access(0, 64, Write, "store").unwrap();
        caches.access(1, 64, Read, "reread").unwrap();
        let modelled = caches.modelled();
        assert_eq!(modelled.tally("store").lines_in, 0);
        assert_eq!(modelled.tally("reread").from_other_core, 1);
    }

    #[test]
    fn its_profile_is_a_models_by_origin_name_and_remark() {
        let mut caches = Caches::new(2, SMALL).unwrap();
        caches.access(0, 0, Write, "f").unwrap();
        caches.access(1, 0, Write, "g").unwrap();
        let profile = caches.modelled().profile(Quantity::LinesFromOtherCore).unwrap();
        assert_eq!(profile.origin, Origin::Model);
        assert!(profile.event.name.ends_with("(model)"));
        assert!(profile.event.raw.is_none());
        assert!(profile.remarks[0].contains("not a measurement"));
        assert_eq!((profile.rows[0].symbol.as_str(), profile.rows[0].count), ("g", 1));
        assert!(caches.modelled().profile(Quantity::Cycles).is_err());
    }

    proptest! {
        #[test]
        fn a_line_has_one_owner_or_sharers_and_no_line_is_made_up(
            steps in prop::collection::vec((0..3usize, 0..200u64, any::<bool>()), 1..400)
        ) {
            let mut caches = Caches::new(3, SMALL).unwrap();
            for (core, line, is_write) in steps {
                let access = if is_write { Write } else { Read };
                caches.access(core, line * LINE_BYTES, access, "f").unwrap();
                let copy = |cache: &Cache| -> Vec<State> {
                    let copies = cache.iter().flatten().filter(|copy| copy.number == line);
                    copies.map(|copy| copy.state).collect()
                };
                let copies: Vec<Vec<State>> = caches.cores.iter().map(copy).collect();
                prop_assert!(copies.iter().all(|copies| copies.len() <= 1));
                let held = copies.concat();
                let are_shared = held.iter().all(|state| *state == State::Shared);
                prop_assert!(held.len() <= 1 || are_shared, "{line}: {held:?}");
            }
            let tally = caches.modelled().tally("f");
            let held = caches.cores.iter().flatten().map(Vec::len).sum::<usize>() as u64;
            prop_assert!(tally.lines_in >= tally.lines_out + held);
            prop_assert!(tally.from_other_core <= tally.lines_in);
        }
    }

    #[test]
    fn impossible_caches_and_cores_are_refused() {
        for (cores, bytes, ways) in [
            (0, 4096, 4),
            (1, 0, 4),
            (1, 4096, 0),
            (1, 100, 1),
            (2, 1 << 40, 16),
            (1, 64, usize::MAX),
        ] {
            assert!(
                Caches::new(cores, Geometry { bytes, ways }).is_err(),
                "{cores} {bytes} {ways}"
            );
        }
        let mut caches = Caches::new(1, SMALL).unwrap();
        assert_eq!(caches.access(1, 0, Read, "f").unwrap_err().code, Code::Cpu);
    }
}
