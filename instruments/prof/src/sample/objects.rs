//! The file that a process had mapped, opened again: that one, or none.
//!
//! Its path is the target's to choose. What is there now may be another program, a pipe on which an
//! open waits for ever, or a device that does something when it is opened. So the path is looked up
//! without opening what it leads to; only a regular file, and the right one, is then opened.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, major, minor, openat};

use super::elf::Elf;
use super::identity::{BuildId, Identity};
use super::spaces::{Mapper, Object};

/// A file that was mapped.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    /// Neither a build ID nor its inode proves it: it is where it was and no younger than the
    /// recording.
    pub(super) by_age: bool,
}

/// The file of `object`: at its path, at its path as its process sees it, or as the program of that
/// process, even deleted. `None` if it is gone or has changed after `started`.
pub(super) fn open(object: &Object, mapper: Mapper, started: SystemTime) -> Option<Opened> {
    let Mapper { pid, mounts_ours } = mapper;
    let path: &str = &object.name;
    if !path.starts_with('/') {
        return None;
    }
    let candidates =
        [path.to_owned(), format!("/proc/{pid}/root{path}"), format!("/proc/{pid}/exe")];
    let mut files = candidates.iter().map(|path| regular(Path::new(path)));
    let ours = files.next().flatten();
    let ours = match ours {
        Some((file, at)) if is(&file, &at, object.identity, started) => {
            return Some(Opened { file, by_age: false });
        }
        ours => ours,
    };
    let found = files.flatten().find(|(file, at)| is(file, at, object.identity, started));
    if let Some((file, _)) = found {
        return Some(Opened { file, by_age: false });
    }
    // A layered file system may give other numbers for the same file, but not a later change.
    let (file, at) = ours.filter(|(_, at)| mounts_ours && older(at, started))?;
    match object.identity {
        Identity::Inode { inode, .. } => Some(Opened { file, by_age: inode != at.st_ino }),
        Identity::Unknown => Some(Opened { file, by_age: true }),
        Identity::BuildId(_) | Identity::None => None,
    }
}

/// Where the distribution installs the debug information of a file with that build ID.
pub(super) fn debug_file(id: BuildId) -> Option<File> {
    let (first, rest) = id.as_bytes().split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug");
    let (file, _) = regular(Path::new(&path))?;
    (Elf::read(&file).ok()?.build_id() == Some(id)).then_some(file)
}

/// The file at that path, if it is a regular one; whatever else is there is not opened.
fn regular(path: &Path) -> Option<(File, Stat)> {
    let found = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let at = fstat(&found).ok()?;
    if FileType::from_raw_mode(at.st_mode) != FileType::RegularFile {
        return None;
    }
    // The same file, whatever the path leads to by now.
    let opened = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Some((File::from(openat(CWD, opened, flags, Mode::empty()).ok()?), at))
}

fn is(file: &File, at: &Stat, identity: Identity, started: SystemTime) -> bool {
    match identity {
        Identity::BuildId(id) => Elf::read(file).is_ok_and(|elf| elf.build_id() == Some(id)),
        Identity::Inode { major: was_major, minor: was_minor, inode } => {
            at.st_ino == inode
                && (major(at.st_dev), minor(at.st_dev)) == (was_major, was_minor)
                && older(at, started)
        }
        Identity::Unknown | Identity::None => false,
    }
}

/// Whether nothing about the file has changed since: this time cannot be set to another.
fn older(at: &Stat, started: SystemTime) -> bool {
    let started = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let started_ns = i128::try_from(started.as_nanos()).unwrap_or(i128::MAX);
    let changed_ns = i128::from(at.st_ctime) * 1_000_000_000 + i128::from(at.st_ctime_nsec);
    changed_ns.saturating_add(CLOCK_NS) < started_ns
}

/// File systems take the time from the kernel's tick, which comes 100 times a second at the least.
const CLOCK_NS: i128 = 10_000_000;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use super::*;

    const OURS: Mapper = Mapper { pid: 0, mounts_ours: true };

    fn later() -> SystemTime {
        SystemTime::now() + Duration::from_secs(1)
    }

    fn by_inode(path: &Path) -> Object {
        let at = fs::metadata(path).unwrap();
        let identity = Identity::of_inode(major(at.dev()), minor(at.dev()), at.ino());
        Object { name: path.to_str().unwrap().to_owned(), identity }
    }

    fn scratch(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("linerate-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    #[test]
    fn a_file_that_changed_since_is_not_what_ran() {
        let own = by_inode(&std::env::current_exe().unwrap());
        assert!(open(&own, OURS, later()).is_some_and(|opened| !opened.by_age));
        assert!(open(&own, OURS, UNIX_EPOCH).is_none());
        let gone = Object { name: "/gone (deleted)".into(), ..own.clone() };
        assert!(open(&gone, OURS, later()).is_none());
        // The program of a process can be read even if its path is gone.
        let running = Mapper { pid: std::process::id(), mounts_ours: true };
        assert!(open(&gone, running, later()).is_some());
    }

    #[test]
    fn another_inode_is_taken_only_where_paths_are_ours_and_said_to_be() {
        let own = by_inode(&std::env::current_exe().unwrap());
        let Identity::Inode { major, minor, inode } = own.identity else { panic!("{own:?}") };
        let identity = Identity::Inode { major, minor, inode: inode + 1 };
        let other = Object { identity, ..own };
        assert!(open(&other, OURS, later()).is_some_and(|opened| opened.by_age));
        let elsewhere = Mapper { mounts_ours: false, ..OURS };
        assert!(open(&other, elsewhere, later()).is_none());
        assert!(open(&other, OURS, UNIX_EPOCH).is_none());
    }

    #[test]
    fn a_build_id_decides_whatever_the_path_or_the_time() {
        let own = by_inode(&std::env::current_exe().unwrap());
        let file = File::open(&own.name).unwrap();
        let Some(id) = Elf::read(&file).unwrap().build_id() else {
            return println!("skipped: this linker writes no build ID");
        };
        let mapped = |identity| Object { identity, ..own.clone() };
        let elsewhere = Mapper { mounts_ours: false, ..OURS };
        assert!(open(&mapped(Identity::BuildId(id)), elsewhere, UNIX_EPOCH).is_some());
        let other = BuildId::new(&[7; 20]).unwrap();
        assert!(open(&mapped(Identity::BuildId(other)), OURS, later()).is_none());
    }

    /// If it were opened, this test would not end.
    #[test]
    fn a_pipe_and_a_device_are_not_opened() {
        let path = scratch("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert!(open(&by_inode(&path), OURS, later()).is_none());
        assert!(open(&by_inode(Path::new("/dev/zero")), OURS, later()).is_none());
        assert!(open(&by_inode(Path::new("/")), OURS, later()).is_none());
        fs::remove_file(&path).unwrap();
    }
}
