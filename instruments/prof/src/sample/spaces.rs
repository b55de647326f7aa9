//! Which file an address of a process belongs to, while processes start, run other programs and end.
//!
//! A sample is put in its place, a file and an offset, as soon as it is read: from then on it no
//! longer matters whether its process still lives.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::sync::Arc;

use super::identity::Identity;
use super::maps::{self, Map, Maps, SPLIT};
use super::note::{Mapped, Said};
use super::threads;

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
    /// A process shares its parent's until it maps something itself.
    processes: HashMap<u32, Arc<Maps>>,
    /// Maps of all processes, what they share counted once.
    maps: usize,
    /// Ended ones: late samples of them may still come.
    ended: VecDeque<u32>,
    /// Read again from /proc since the last drain.
    read_again: HashSet<u32>,
    objects: Vec<Arc<Object>>,
    indexes: HashMap<Arc<Object>, u32>,
    /// Bytes of their names.
    names_bytes: usize,
    /// The process that mapped each object first, where a container's path may be looked up.
    mapped_by: Vec<Mapper>,
    /// Whether /proc has the processes by the numbers that we know.
    proc_is_ours: bool,
    beyond: Beyond,
}

/// A process that has mapped an object.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mapper {
    pub(super) pid: u32,
    /// Whether it saw the same files as we do, so that its paths are ours.
    pub(super) mounts_ours: bool,
}

/// What there was no room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Beyond {
    /// Maps that are not followed: of one process too many, or all together.
    maps: u64,
    /// How often a process's were read anew or the older half forgotten, because it had too many.
    processes_full: u64,
    /// Maps of files that have no name of their own.
    objects: u64,
}

impl Object {
    pub(super) fn is_file(&self) -> bool {
        self.identity != Identity::None
    }
}

impl Spaces {
    /// No process yet.
    pub(super) fn new() -> Spaces {
        let fixed =
            |name: &str| Arc::new(Object { name: name.to_owned(), identity: Identity::None });
        let objects = vec![fixed("[kernel]"), fixed("[unknown]"), fixed("[beyond]")];
        let indexes = objects.iter().cloned().zip(0..).collect();
        Spaces {
            processes: HashMap::new(),
            maps: 0,
            ended: VecDeque::new(),
            read_again: HashSet::new(),
            mapped_by: vec![Mapper::default(); objects.len()],
            objects,
            indexes,
            names_bytes: 0,
            proc_is_ours: threads::proc_is_ours(),
            beyond: Beyond::default(),
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
                if self.has_room(pid) {
                    self.set(pid, Arc::default());
                }
            }
            Said::Fork { pid, parent } => {
                if self.has_room(pid)
                    && let Some(maps) = self.processes.get(&parent).cloned()
                {
                    self.set(pid, maps);
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
            let again = self.has_room(pid) && self.read_again.insert(pid);
            again.then(|| self.read(pid))?;
            self.find(pid, address)
        });
        found.unwrap_or(Place { object: UNKNOWN, offset: 0 })
    }

    /// A drain begins.
    pub(super) fn begin(&mut self) {
        self.read_again.clear();
    }

    pub(super) fn object(&self, index: u32) -> Option<&Object> {
        self.objects.get(index as usize).map(|object| &**object)
    }

    /// The process that mapped the object first; `None` if /proc does not have it by that number.
    pub(super) fn mapped_by(&self, index: u32) -> Option<Mapper> {
        self.mapped_by.get(index as usize).copied().filter(|_| self.proc_is_ours)
    }

    /// What is to be said of what there was no room for.
    pub(super) fn remarks(&self) -> Vec<String> {
        let Beyond { maps, processes_full, objects } = self.beyond;
        let mut remarks = Vec::new();
        if processes_full > 0 {
            remarks.push(format!(
                "{processes_full} times a process had mapped code too often to follow, as one does \
                 that makes code while it runs: what it had unmapped before was forgotten, and \
                 samples in it may have no name"
            ));
        }
        if maps > 0 {
            remarks.push(format!(
                "{maps} mappings of code are left out: the processes have more than {MAPS_ALL_MAX} \
                 in all, or are more than {PROCESSES_MAX}; samples in them have no name"
            ));
        }
        if objects > 0 {
            remarks.push(format!(
                "{objects} mappings are of further files than the first {}, for whose names there \
                 was room: samples in them are [beyond]",
                self.objects.len()
            ));
        }
        remarks
    }

    fn find(&self, pid: u32, address: u64) -> Option<Place> {
        let (object, offset) = self.processes.get(&pid)?.find(address)?;
        let file = self.object(object)?.is_file();
        Some(Place { object, offset: if file { offset } else { 0 } })
    }

    fn map(&mut self, pid: u32, map: Mapped) {
        if !self.has_room(pid) {
            self.beyond.maps += 1;
            return;
        }
        if self.processes.get(&pid).is_some_and(|maps| maps.is_full()) {
            self.clear_out(pid);
        }
        let object = self.index(pid, &map);
        self.change(pid, |maps| {
            maps.insert(map.start, Map { end: map.end, offset: map.offset, object });
        });
    }

    /// Changes a process's maps, which may have to be copied for it; or counts it as beyond.
    fn change(&mut self, pid: u32, change: impl FnOnce(&mut Maps)) {
        let shared = self.processes.get(&pid).filter(|maps| Arc::strong_count(maps) > 1);
        let more = shared.map_or(0, |maps| maps.len()) + SPLIT;
        if self.maps + more > MAPS_ALL_MAX {
            self.forget_ended(pid);
        }
        if self.maps + more > MAPS_ALL_MAX {
            self.beyond.maps += 1;
            return;
        }
        let maps = self.processes.entry(pid).or_default();
        let own = if Arc::strong_count(maps) > 1 { 0 } else { maps.len() };
        let maps = Arc::make_mut(maps);
        change(maps);
        self.maps = self.maps - own + maps.len();
    }

    /// A process has too many: most are unmapped by now, if it maps code all the time. Once for
    /// each drain /proc tells which are not.
    fn clear_out(&mut self, pid: u32) {
        self.beyond.processes_full += 1;
        let now = self.read_again.insert(pid).then(|| maps::of_process(pid).ok()).flatten();
        let Some(now) = now.filter(|now| !now.is_empty()) else {
            return self.change(pid, Maps::forget_older_half);
        };
        self.set(pid, Arc::default());
        for map in now {
            let object = self.index(pid, &map);
            self.change(pid, |maps| {
                maps.insert(map.start, Map { end: map.end, offset: map.offset, object });
            });
        }
        if self.processes.get(&pid).is_some_and(|maps| maps.is_full()) {
            self.change(pid, Maps::forget_older_half);
        }
    }

    /// The index of the object; [`BEYOND`] if there is no room for one more.
    fn index(&mut self, pid: u32, map: &Mapped) -> u32 {
        let object = Object { name: name(&map.path), identity: map.identity };
        if let Some(&index) = self.indexes.get(&object) {
            return index;
        }
        let names_bytes = self.names_bytes + object.name.len();
        match u32::try_from(self.objects.len()) {
            Ok(index) if self.objects.len() < OBJECTS_MAX && names_bytes <= NAMES_BYTES_MAX => {
                let mounts_ours = object.is_file() && mounts_ours(pid);
                let object = Arc::new(object);
                self.indexes.insert(object.clone(), index);
                self.objects.push(object);
                self.mapped_by.push(Mapper { pid, mounts_ours });
                self.names_bytes = names_bytes;
                index
            }
            _ => {
                self.beyond.objects += 1;
                BEYOND
            }
        }
    }

    /// Whether the process is followed, or one more can be.
    fn has_room(&self, pid: u32) -> bool {
        self.processes.len() < PROCESSES_MAX || self.processes.contains_key(&pid)
    }

    fn set(&mut self, pid: u32, maps: Arc<Maps>) {
        // The new ones are none, or the parent's, which are counted already.
        let old = self.processes.insert(pid, maps);
        self.release(old);
    }

    fn end(&mut self, pid: u32) {
        self.ended.push_back(pid);
        if self.ended.len() > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
            && !self.ended.contains(&oldest)
        {
            let old = self.processes.remove(&oldest);
            self.release(old);
        }
    }

    /// Late samples of ended processes are the first to lose their names.
    fn forget_ended(&mut self, but: u32) {
        let mut ended = std::mem::take(&mut self.ended);
        ended.retain(|&pid| {
            if pid != but {
                let old = self.processes.remove(&pid);
                self.release(old);
            }
            pid == but
        });
        self.ended = ended;
    }

    /// Takes what nobody shares out of the count.
    fn release(&mut self, maps: Option<Arc<Maps>>) {
        self.maps -= maps.and_then(Arc::into_inner).map_or(0, |maps| maps.len());
    }
}

/// Whether the process sees the files that we see. False of one that is gone.
fn mounts_ours(pid: u32) -> bool {
    let mounts = |process: &str| fs::read_link(format!("{process}/ns/mnt")).ok();
    let theirs = threads::directory(pid).ok().and_then(|process| mounts(&process));
    theirs.is_some() && theirs == mounts("/proc/self")
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
/// A map takes some 40 bytes: 40 MiB at the most.
const MAPS_ALL_MAX: usize = 1 << 20;
const OBJECTS_MAX: usize = 1 << 16;
/// A path may have 4 KiB.
const NAMES_BYTES_MAX: usize = 16 << 20;

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

    /// The count of all maps must be what it says.
    fn assert_counted(spaces: &Spaces) {
        let distinct: HashMap<*const Maps, usize> =
            spaces.processes.values().map(|maps| (Arc::as_ptr(maps), maps.len())).collect();
        assert_eq!(spaces.maps, distinct.values().sum::<usize>());
    }

    fn map_many(spaces: &mut Spaces, pid: u32, maps: u64) {
        for at in 0..maps {
            spaces.follow(Said::Map { pid, map: mapped(at << 13, "/many", 5) });
        }
    }

    #[test]
    fn a_process_that_maps_code_for_ever_keeps_the_names_of_what_it_mapped_last() {
        let mut spaces = Spaces::new();
        map_many(&mut spaces, PID, 70_000);
        spaces.follow(Said::Map { pid: PID, map: mapped(1 << 40, "/last", 6) });
        assert_eq!(named(&mut spaces, PID, (1 << 40) + 1), ("/last".into(), 0x4001));
        assert_eq!(named(&mut spaces, PID, 69_999 << 13), ("/many".into(), 0x4000));
        assert_eq!(named(&mut spaces, PID, 0), ("[unknown]".into(), 0));
        let remarks = spaces.remarks();
        assert!(
            remarks[0].starts_with("1 times a process had mapped code too often"),
            "{remarks:?}"
        );
        assert_eq!(remarks.len(), 1, "{remarks:?}");
        assert_counted(&spaces);
    }

    /// This process can be asked what of it is still mapped.
    #[test]
    fn what_is_mapped_is_asked_for_again_when_there_are_too_many() {
        let mut spaces = Spaces::new();
        let pid = std::process::id();
        map_many(&mut spaces, pid, 70_000);
        assert!(spaces.processes[&pid].len() < 10_000, "{}", spaces.processes[&pid].len());
        let here = assert_counted as *const () as u64;
        let own = std::env::current_exe().unwrap();
        assert_eq!(named(&mut spaces, pid, here).0, own.to_str().unwrap());
        assert_counted(&spaces);
    }

    #[test]
    fn children_that_change_what_they_inherit_take_bounded_memory_and_are_told() {
        let mut spaces = Spaces::new();
        map_many(&mut spaces, PID, 60_000);
        for child in PID + 1..PID + 100 {
            spaces.follow(Said::Fork { pid: child, parent: PID });
            assert_eq!(named(&mut spaces, child, 1), ("/many".into(), 0x4001));
            spaces.follow(Said::Map { pid: child, map: mapped(1 << 40, "/own", 6) });
        }
        assert!(spaces.maps <= MAPS_ALL_MAX, "{}", spaces.maps);
        assert_counted(&spaces);
        // The first had room for a copy of all, with the parent's.
        let copies = MAPS_ALL_MAX as u64 / 60_000 - 1;
        assert_eq!(spaces.beyond.maps, 99 - copies);
        assert!(spaces.remarks()[0].contains("more than 1048576 in all"), "{:?}", spaces.remarks());
        assert_eq!(named(&mut spaces, PID + 1, 1 << 40).0, "/own");
        for child in PID..PID + 100 {
            spaces.follow(Said::Exec { pid: child });
        }
        assert_eq!(spaces.maps, 0);
    }

    #[test]
    fn more_processes_than_there_is_room_for_are_left_out() {
        let mut spaces = Spaces::new();
        spaces.follow(Said::Map { pid: PID, map: mapped(0x1000, "/sh", 5) });
        for pid in PID + 1..PID + 2 * PROCESSES_MAX as u32 {
            spaces.follow(Said::Fork { pid, parent: PID });
            spaces.follow(Said::Exec { pid });
        }
        assert_eq!(spaces.processes.len(), PROCESSES_MAX);
        let last = PID + 2 * PROCESSES_MAX as u32;
        spaces.follow(Said::Map { pid: last, map: mapped(0x1000, "/sh", 5) });
        assert_eq!(spaces.beyond.maps, 1);
        assert_eq!(named(&mut spaces, PID, 0x1010).0, "/sh");
    }

    #[test]
    fn long_names_without_end_take_bounded_memory_and_are_told() {
        let mut spaces = Spaces::new();
        let long = "x".repeat(4000);
        for n in 0..10_000u64 {
            let path = format!("/{long}/{n}");
            spaces.follow(Said::Map { pid: PID, map: mapped(n << 13, &path, 5) });
        }
        let bytes: usize = spaces.objects.iter().map(|object| object.name.len()).sum();
        assert!((NAMES_BYTES_MAX / 2..NAMES_BYTES_MAX + 100).contains(&bytes), "{bytes}");
        assert_eq!(spaces.beyond.objects, 10_000 + 3 - spaces.objects.len() as u64);
        assert_eq!(named(&mut spaces, PID, 9_999 << 13), ("[beyond]".into(), 0));
        assert!(spaces.remarks()[0].contains("[beyond]"), "{:?}", spaces.remarks());
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
