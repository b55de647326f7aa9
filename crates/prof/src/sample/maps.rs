//! The code that a process has mapped, and where in which file it comes from.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};

use super::identity::Identity;
use super::note::Mapped;

/// What a process has mapped, by address; no two overlap.
#[derive(Debug, Clone, Default)]
pub(super) struct Maps {
    maps: BTreeMap<u64, Map>,
}

/// A stretch of code of the object with that index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) end: u64,
    pub(super) offset: u64,
    pub(super) object: u32,
}

impl Maps {
    /// Maps `map` at `start`, over whatever was there.
    pub(super) fn insert(&mut self, start: u64, map: Map) {
        if start >= map.end || self.maps.len() >= MAPS_MAX {
            return;
        }
        if let Some((&below, &old)) = self.maps.range(..start).next_back()
            && old.end > start
        {
            self.maps.insert(below, Map { end: start, ..old });
            self.insert_rest(map.end, below, old);
        }
        while let Some((&at, &old)) = self.maps.range(start..map.end).next() {
            self.maps.remove(&at);
            self.insert_rest(map.end, at, old);
        }
        self.maps.insert(start, map);
    }

    /// Keeps what of `old`, which began at `at`, lies above `end`.
    fn insert_rest(&mut self, end: u64, at: u64, old: Map) {
        if old.end > end {
            let offset = old.offset.wrapping_add(end - at);
            self.maps.insert(end, Map { offset, ..old });
        }
    }

    /// The object at `address`, and where in its file that is.
    pub(super) fn find(&self, address: u64) -> Option<(u32, u64)> {
        let (&start, map) = self.maps.range(..=address).next_back()?;
        let offset = map.offset.wrapping_add(address - start);
        (address < map.end).then_some((map.object, offset))
    }
}

/// What the process has mapped now, as /proc says.
///
/// # Errors
/// As reading the file fails, most often because the process is gone.
pub(super) fn of_process(pid: u32) -> io::Result<Vec<Mapped>> {
    let mut bytes = Vec::new();
    fs::File::open(format!("/proc/{pid}/maps"))?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).lines().filter_map(executable).collect())
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
