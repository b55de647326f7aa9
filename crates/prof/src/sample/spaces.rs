//! Which file an address of a process belongs to, while processes start, run other programs and end.
//!
//! A sample is put in its place, a file and an offset, as soon as it is read: from then on it no
//! longer matters whether its process still lives.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::sync::Arc;

use super::identity::Identity;
use super::maps::{self, Map, Maps};
use super::note::{Mapped, Said};

/// Where a sample fell, whatever the process: an object and an offset into its file. An object
/// without a file has offset 0, the kernel its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) object: u32,
    pub(super) offset: u64,
}

/// A file that holds code, or what stands for one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Object {
    /// Its path, or a name in brackets.
    pub(super) name: String,
    pub(super) identity: Identity,
}

/// The processes that are sampled, and the files that they have mapped.
#[derive(Debug)]
pub(super) struct Spaces {
    processes: HashMap<u32, Arc<Maps>>,
    /// Ended ones: late samples of them may still come.
    ended: VecDeque<u32>,
    /// Read again from /proc since the last drain.
    read_again: HashSet<u32>,
    objects: Vec<Object>,
    indexes: HashMap<Object, u32>,
    /// The process that mapped each object first, where a container's path may be looked up.
    mapped_by: Vec<Mapper>,
}

/// A process that has mapped an object.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mapper {
    pub(super) pid: u32,
    /// Whether it saw the same files as we do, so that its paths are ours.
    pub(super) mounts_ours: bool,
}

impl Object {
    pub(super) fn is_file(&self) -> bool {
        self.identity != Identity::None
    }
}

impl Spaces {
    /// No process yet.
    pub(super) fn new() -> Spaces {
        let fixed = |name: &str| Object { name: name.to_owned(), identity: Identity::None };
        let objects = vec![fixed("[kernel]"), fixed("[unknown]"), fixed("[beyond]")];
        let indexes = objects.iter().cloned().zip(0..).collect();
        Spaces {
            processes: HashMap::new(),
            ended: VecDeque::new(),
            read_again: HashSet::new(),
            mapped_by: vec![Mapper::default(); objects.len()],
            objects,
            indexes,
        }
    }

    /// Takes in what the process has mapped by now. Nothing if it is gone.
    pub(super) fn read(&mut self, pid: u32) {
        for map in maps::of_process(pid).unwrap_or_default() {
            self.map(pid, map);
        }
    }

    /// Follows a process.
    pub(super) fn follow(&mut self, said: Said) {
        match said {
            Said::Map { pid, map } => self.map(pid, map),
            Said::Exec { pid } => {
                self.processes.insert(pid, Arc::default());
            }
            Said::Fork { pid, parent } => {
                if let Some(maps) = self.processes.get(&parent).cloned() {
                    self.processes.insert(pid, maps);
                }
            }
            Said::End { pid } => self.end(pid),
            Said::Sample(_) | Said::Lost(_) | Said::Throttled | Said::Other => {}
        }
    }

    /// Where `address` of that process is.
    pub(super) fn place(&mut self, pid: u32, address: u64) -> Place {
        let found = self.find(pid, address).or_else(|| {
            // Its map was lost, or is older than the recording: once for each drain we ask again.
            self.read_again.insert(pid).then(|| self.read(pid))?;
            self.find(pid, address)
        });
        found.unwrap_or(Place { object: UNKNOWN, offset: 0 })
    }

    /// A drain begins.
    pub(super) fn begin(&mut self) {
        self.read_again.clear();
    }

    pub(super) fn object(&self, index: u32) -> Option<&Object> {
        self.objects.get(index as usize)
    }

    /// The process that mapped the object first.
    pub(super) fn mapped_by(&self, index: u32) -> Option<Mapper> {
        self.mapped_by.get(index as usize).copied()
    }

    fn find(&self, pid: u32, address: u64) -> Option<Place> {
        let (object, offset) = self.processes.get(&pid)?.find(address)?;
        let file = self.object(object)?.is_file();
        Some(Place { object, offset: if file { offset } else { 0 } })
    }

    fn map(&mut self, pid: u32, map: Mapped) {
        if !self.processes.contains_key(&pid) && self.processes.len() >= PROCESSES_MAX {
            return;
        }
        let object = self.index(pid, &map);
        let maps = Arc::make_mut(self.processes.entry(pid).or_default());
        maps.insert(map.start, Map { end: map.end, offset: map.offset, object });
    }

    fn index(&mut self, pid: u32, map: &Mapped) -> u32 {
        let object = Object { name: name(&map.path), identity: map.identity };
        if let Some(&index) = self.indexes.get(&object) {
            return index;
        }
        match u32::try_from(self.objects.len()) {
            Ok(index) if self.objects.len() < OBJECTS_MAX => {
                self.indexes.insert(object.clone(), index);
                let mounts_ours = object.is_file() && mounts_ours(pid);
                self.objects.push(object);
                self.mapped_by.push(Mapper { pid, mounts_ours });
                index
            }
            _ => UNKNOWN,
        }
    }

    fn end(&mut self, pid: u32) {
        self.ended.push_back(pid);
        if self.ended.len() > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
            && !self.ended.contains(&oldest)
        {
            self.processes.remove(&oldest);
        }
    }
}

/// Whether the process sees the files that we see. False of one that is gone.
fn mounts_ours(pid: u32) -> bool {
    let mounts = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    mounts("self").is_some_and(|own| mounts(&pid.to_string()) == Some(own))
}

/// What the code's memory is called: its file, or what it is.
fn name(path: &str) -> String {
    match path {
        "" | "//anon" => "[anonymous memory]".to_owned(),
        path => path.to_owned(),
    }
}

/// The index of the kernel.
pub(super) const KERNEL: u32 = 0;
/// The index of what no map covers.
pub(super) const UNKNOWN: u32 = 1;
/// The index of what there was no room to tell apart.
pub(super) const BEYOND: u32 = 2;

/// Threads of an ended first thread may live on, and records of two CPUs may cross.
const ENDED_MAX: usize = 256;
const PROCESSES_MAX: usize = 1 << 14;
const OBJECTS_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(start: u64, path: &str, inode: u64) -> Mapped {
        let identity = Identity::of_inode(8, 1, inode);
        Mapped { start, end: start + 0x1000, offset: 0x4000, identity, path: path.into() }
    }

    /// No process of this system has it: pid_max is at most 2^22.
    const PID: u32 = 1 << 30;

    fn named(spaces: &mut Spaces, pid: u32, address: u64) -> (String, u64) {
        let place = spaces.place(pid, address);
        (spaces.object(place.object).unwrap().name.clone(), place.offset)
    }

    #[test]
    fn a_child_has_what_its_parent_mapped_until_it_runs_another_program() {
        let mut spaces = Spaces::new();
        spaces.follow(Said::Map { pid: PID, map: mapped(0x1000, "/sh", 5) });
        spaces.follow(Said::Fork { pid: PID + 1, parent: PID });
        assert_eq!(named(&mut spaces, PID + 1, 0x1010), ("/sh".into(), 0x4010));
        spaces.follow(Said::Exec { pid: PID + 1 });
        assert_eq!(named(&mut spaces, PID + 1, 0x1010), ("[unknown]".into(), 0));
        spaces.follow(Said::Map { pid: PID + 1, map: mapped(0x1000, "/ls", 6) });
        assert_eq!(named(&mut spaces, PID + 1, 0x1010), ("/ls".into(), 0x4010));
        assert_eq!(named(&mut spaces, PID, 0x1010), ("/sh".into(), 0x4010));
    }

    #[test]
    fn memory_without_a_file_is_one_place() {
        let mut spaces = Spaces::new();
        spaces.follow(Said::Map { pid: PID, map: mapped(0x1000, "//anon", 0) });
        spaces.follow(Said::Map { pid: PID, map: mapped(0x3000, "[vdso]", 0) });
        assert_eq!(named(&mut spaces, PID, 0x1010), ("[anonymous memory]".into(), 0));
        assert_eq!(spaces.place(PID, 0x1010), spaces.place(PID, 0x1020));
        assert_eq!(named(&mut spaces, PID, 0x3010), ("[vdso]".into(), 0));
    }

    #[test]
    fn processes_that_come_and_go_take_bounded_memory() {
        let mut spaces = Spaces::new();
        for pid in PID..PID + 10_000 {
            spaces.follow(Said::Map { pid, map: mapped(0x1000, "/sh", 5) });
            spaces.follow(Said::End { pid });
        }
        assert!(spaces.processes.len() <= ENDED_MAX + 1, "{}", spaces.processes.len());
        let last = PID + 9_999;
        assert_eq!(named(&mut spaces, last, 0x1010), ("/sh".into(), 0x4010));
    }
}
