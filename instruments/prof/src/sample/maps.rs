//! The code that a process has mapped, and where in which file it comes from.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};

use super::identity::Identity;
use super::note::Mapped;
use super::threads;

/// What a process has mapped, by address; no two overlap.
///
/// The kernel tells what is mapped and never what is unmapped: what is here may be gone.
#[derive(Debug, Clone, Default)]
pub(super) struct Maps {
    maps: BTreeMap<u64, Aged>,
    made: u32,
}

/// A stretch of code of the object with that index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) end: u64,
    pub(super) offset: u64,
    pub(super) object: u32,
}

/// A map, and how many were made before it.
#[derive(Debug, Clone, Copy)]
struct Aged {
    map: Map,
    made: u32,
}

impl Maps {
    pub(super) fn len(&self) -> usize {
        self.maps.len()
    }

    /// Whether one more might be too many: it may split another in two.
    pub(super) fn is_full(&self) -> bool {
        self.maps.len() + SPLIT > MAPS_MAX
    }

    /// Maps `map` at `start`, over whatever was there; if there is room.
    pub(super) fn insert(&mut self, start: u64, map: Map) {
        if start >= map.end || self.is_full() {
            return;
        }
        if let Some((&below, &old)) = self.maps.range(..start).next_back()
            && old.map.end > start
        {
            let map_below = Map { end: start, ..old.map };
            self.maps.insert(below, Aged { map: map_below, ..old });
            self.insert_rest(map.end, below, old);
        }
        while let Some((&at, &old)) = self.maps.range(start..map.end).next() {
            self.maps.remove(&at);
            self.insert_rest(map.end, at, old);
        }
        self.made = self.made.wrapping_add(1);
        self.maps.insert(start, Aged { map, made: self.made });
    }

    /// Keeps what of `old`, which began at `at`, lies above `end`.
    fn insert_rest(&mut self, end: u64, at: u64, old: Aged) {
        if old.map.end > end {
            let offset = old.map.offset.wrapping_add(end - at);
            self.maps.insert(end, Aged { map: Map { offset, ..old.map }, ..old });
        }
    }

    /// Forgets the half that was mapped first. One by one would take a search for each.
    pub(super) fn forget_older_half(&mut self) {
        let newest = self.made;
        let age = |aged: &Aged| newest.wrapping_sub(aged.made);
        let mut ages: Vec<u32> = self.maps.values().map(age).collect();
        let half = ages.len() / 2;
        if half < ages.len() {
            let (_, &mut median, _) = ages.select_nth_unstable(half);
            self.maps.retain(|_, aged| age(aged) < median);
        }
    }

    /// The object at `address`, and where in its file that is.
    pub(super) fn find(&self, address: u64) -> Option<(u32, u64)> {
        let (&start, Aged { map, .. }) = self.maps.range(..=address).next_back()?;
        let offset = map.offset.wrapping_add(address - start);
        (address < map.end).then_some((map.object, offset))
    }
}

/// What the process has mapped now, as /proc says.
///
/// # Errors
/// As reading the file fails, most often because the process is gone.
pub(super) fn of_process(pid: u32) -> io::Result<Vec<Mapped>> {
    let path = format!("{}/maps", threads::directory(pid)?);
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().filter_map(executable).take(MAPS_MAX - SPLIT).collect())
}

/// A line of /proc/PID/maps, if it is of code: `start-end perms offset dev inode path`.
fn executable(line: &str) -> Option<Mapped> {
    let mut rest = line;
    let mut word = || {
        let (word, tail) = rest.split_once(' ')?;
        rest = tail;
        Some(word)
    };
    let (start, end) = word()?.split_once('-')?;
    if !word()?.contains('x') {
        return None;
    }
    let offset = word()?;
    let (major, minor) = word()?.split_once(':')?;
    let (major, minor) =
        (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = word().or(Some(rest))?.parse().ok()?;
    let path = if rest.contains('/') || rest.contains('[') { rest.trim_start() } else { "" };
    Some(Mapped {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        identity: Identity::of_inode(major, minor, inode),
        path: path.to_owned(),
    })
}

/// The kernel's own limit is 65,530 by default (vm.max_map_count).
const MAPS_MAX: usize = 1 << 16;
/// By how many a map can make the others more: itself, and the rest of one that it splits.
pub(super) const SPLIT: usize = 2;
const FILE_BYTES_MAX: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn map(end: u64, object: u32) -> Map {
        Map { end, offset: 0, object }
    }

    #[test]
    fn a_map_in_the_middle_of_another_splits_it() {
        let mut maps = Maps::default();
        maps.insert(100, map(200, 1));
        maps.insert(140, map(160, 2));
        assert_eq!(maps.find(99), None);
        assert_eq!(maps.find(139), Some((1, 39)));
        assert_eq!(maps.find(140), Some((2, 0)));
        assert_eq!(maps.find(160), Some((1, 60)));
        assert_eq!(maps.find(200), None);
    }

    #[test]
    fn a_map_over_several_replaces_them() {
        let mut maps = Maps::default();
        maps.insert(100, map(200, 1));
        maps.insert(200, map(300, 2));
        maps.insert(300, map(400, 3));
        maps.insert(150, map(350, 4));
        assert_eq!(maps.find(149), Some((1, 49)));
        assert_eq!(maps.find(150), Some((4, 0)));
        assert_eq!(maps.find(349), Some((4, 199)));
        assert_eq!(maps.find(350), Some((3, 50)));
    }

    #[test]
    fn an_absurd_map_is_left_out() {
        let mut maps = Maps::default();
        maps.insert(200, map(100, 1));
        maps.insert(u64::MAX, map(u64::MAX, 1));
        assert_eq!(maps.find(u64::MAX), None);
        assert_eq!(maps.find(150), None);
    }

    #[test]
    fn the_maps_that_are_forgotten_are_those_that_were_made_first() {
        let mut maps = Maps::default();
        // The higher the older.
        for at in (0..100).rev() {
            maps.insert(at * 10, map(at * 10 + 10, 1));
        }
        maps.forget_older_half();
        assert_eq!(maps.len(), 50);
        assert_eq!(maps.find(499), Some((1, 9)));
        assert_eq!(maps.find(500), None);
        for _ in 0..10 {
            maps.forget_older_half();
        }
        assert_eq!(maps.len(), 0);
    }

    #[test]
    fn a_process_with_as_many_maps_as_we_follow_is_full_and_grows_no_further() {
        let mut maps = Maps::default();
        for at in 0..2 * MAPS_MAX as u64 {
            maps.insert(at * 100, map(at * 100 + 99, 1));
            // In the middle of it: three where there was one.
            maps.insert(at * 100 + 50, map(at * 100 + 60, 2));
        }
        assert!(maps.is_full() && maps.len() <= MAPS_MAX, "{}", maps.len());
    }

    #[test]
    fn lines_of_proc_are_read_with_their_oddities() {
        let line = "7f00-7f80 r-xp 00001000 08:01 42                         /a dir/lib (deleted)";
        let mapped = executable(line).unwrap();
        assert_eq!((mapped.start, mapped.end, mapped.offset), (0x7f00, 0x7f80, 0x1000));
        assert_eq!(mapped.identity, Identity::Inode { major: 8, minor: 1, inode: 42 });
        assert_eq!(mapped.path, "/a dir/lib (deleted)");
        assert_eq!(executable("7f00-7f80 rw-p 00001000 08:01 42   /lib"), None);
        assert_eq!(executable("7f00-7f80 rwxp 00000000 00:00 0 ").unwrap().path, "");
        assert_eq!(executable("7f00-7f80 rwxp 00000000 00:00 0").unwrap().path, "");
        assert_eq!(executable("7f00-7f80 r-xp 0 00:00 0    [vdso]").unwrap().path, "[vdso]");
        for broken in ["", "x", "7f00", "7f00-zz r-xp 0 0 0 /x", "1-2 r-xp", "1-2 r-xp 0 0 x /y"] {
            assert_eq!(executable(broken), None, "{broken}");
        }
    }

    #[test]
    fn this_process_has_its_own_program_mapped() {
        let maps = of_process(std::process::id()).unwrap();
        let here = this_process_has_its_own_program_mapped as *const () as u64;
        let own = maps.iter().find(|map| (map.start..map.end).contains(&here)).unwrap();
        assert_eq!(own.path, std::env::current_exe().unwrap().to_str().unwrap());
    }
}
