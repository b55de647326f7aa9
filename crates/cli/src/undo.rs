//! The record of a run's changes on interfaces, for `doctor --undo` after the run was killed.
//!
//! The library undoes its changes when a port is closed, and writes no file. A run that is killed cannot: so the
//! command writes down what opening its ports will change before it opens them, and what a request changes while it
//! runs before that is changed, and removes that file at its end. A record is used only if this user owns the file and
//! its folder, and no other user can write them.

mod record;

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, fs};

use linerate::{Change, Error, Registry};
use linerate_ctl::affinity::{InterruptGuard, Was};
use linerate_ctl::doctor::{Finding, Level};
use linerate_sys::netif::{Interface, NapiHold, Rss};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, mkdir, open, openat, unlinkat};
use rustix::io::Errno;

use crate::screen::Screen;

pub use record::{Record, is_recorded, record, record_moves};

const FORM: &str = "linerate-undo/1";
/// The command that undoes the changes of killed runs.
pub const UNDO: &str = "linerate doctor --undo";
/// Greatest size of a record, which has a line for each change.
const BYTES_MAX: u64 = 1 << 20;

/// Opens the folder of the records: it must not be a link, and only this user may own and write it.
fn folder(make: bool) -> Result<(PathBuf, OwnedFd), Errno> {
    let user = rustix::process::geteuid();
    let base = if user.is_root() {
        PathBuf::from("/run")
    } else {
        let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        set.filter(|path| path.is_absolute()).ok_or(Errno::NOENT)?
    };
    let path = base.join("linerate");
    if make {
        match mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(&path, flags, Mode::empty())?;
    is_own(&folder, FileType::Directory).then_some((path, folder)).ok_or(Errno::PERM)
}

/// Returns true if `object` is of that kind, and only this user owns and can write it.
fn is_own(object: impl AsFd, kind: FileType) -> bool {
    fstat(object).is_ok_and(|stat| {
        let is_private =
            Mode::from_raw_mode(stat.st_mode) & (Mode::WGRP | Mode::WOTH) == Mode::empty();
        let is_mine = stat.st_uid == rustix::process::geteuid().as_raw();
        is_private && is_mine && FileType::from_raw_mode(stat.st_mode) == kind
    })
}

/// Returns the number of the network namespace of this process.
fn netns() -> Option<u64> {
    fs::metadata("/proc/thread-self/ns/net").ok().map(|found| found.ino())
}

/// Returns the start time of a process, which distinguishes it from a later one with the same
/// number.
///
/// Source: proc_pid_stat(5), field 22; field 2 is a name in parentheses, which may contain any character.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    // A process in state Z has ended and waits for its parent: it makes no more changes.
    fields.next().filter(|state| *state != "Z")?;
    fields.nth(18)?.parse().ok()
}

/// The kind of a change, as it is written at the end of a record's line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Left {
    Checksums,
    Interrupts(Was),
    /// The hold is one of `sets`: the last one, or the one before it if the run was killed meanwhile.
    Hold {
        sets: Vec<NapiHold>,
        before: NapiHold,
    },
    Rss {
        set: Rss,
        before: Rss,
    },
}

impl Left {
    fn of(word: &str) -> Option<Left> {
        match word {
            "checksum-offload" => Some(Left::Checksums),
            word => match word.split_once('=') {
                Some(("hold", holds)) => Left::of_holds(holds),
                Some(("rss", divisions)) => Left::of_divisions(divisions),
                _ => Was::read(word).map(Left::Interrupts),
            },
        }
    }

    /// Reads holds: `250000/1=0/0` is one of 250,000 ns and 1 poll, in place of none; `250000/1,0/0=20000/2` is that
    /// or none, in place of one of 20,000 ns and 2 polls.
    fn of_holds(text: &str) -> Option<Left> {
        let hold = |text: &str| {
            let (time_ns, polls) = text.split_once('/')?;
            Some(NapiHold { time_ns: time_ns.parse().ok()?, polls: polls.parse().ok()? })
        };
        let (sets, before) = text.split_once('=')?;
        let sets = sets.split(',').map(hold).collect::<Option<_>>()?;
        Some(Left::Hold { sets, before: hold(before)? })
    }

    /// Reads two divisions: `0,0/=0,1/6d5a` is a table of two entries that lead to queue 0, with any key, in place of
    /// a table that leads to queues 0 and 1, with a key of two bytes.
    fn of_divisions(text: &str) -> Option<Left> {
        let division = |text: &str| {
            let (table, key) = text.split_once('/')?;
            let mut rss = Rss::default();
            rss.table = table.split(',').map(|queue| queue.parse().ok()).collect::<Option<_>>()?;
            let bytes = key.as_bytes().chunks(2).map(|two| {
                let digits = two.iter().all(u8::is_ascii_hexdigit) && two.len() == 2;
                u8::from_str_radix(std::str::from_utf8(two).ok().filter(|_| digits)?, 16).ok()
            });
            rss.key = bytes.collect::<Option<_>>()?;
            Some(rss)
        };
        let (set, before) = text.split_once('=')?;
        Some(Left::Rss { set: division(set)?, before: division(before)? })
    }

    /// Returns the record of a change that a port is about to make, with the interface's name;
    /// `None` if opening the port will fail, because its present state cannot be read.
    fn by(change: Change) -> Option<(String, Left)> {
        match change {
            Change::ChecksumOffload(name) => Some((name, Left::Checksums)),
            Change::Hold { interface, time } => {
                let before = Interface::open(&interface).and_then(|found| NapiHold::now(&found));
                let left = Left::Hold { sets: vec![napi_hold(time)], before: before.ok()? };
                Some((interface, left))
            }
            Change::Rss { interface, table, key } => {
                let before = Interface::open(&interface).and_then(|found| found.rss()).ok()?;
                let mut set = Rss::default();
                (set.table, set.key) = (table, key);
                Some((interface, Left::Rss { set, before }))
            }
        }
    }

    /// Describes the changed state of the interface, and its restored state.
    fn descriptions(&self) -> (String, String) {
        match self {
            Left::Checksums => {
                ("its checksum offload is off".into(), "its checksum offload is on again".into())
            }
            Left::Interrupts(Was::Irq(irq, cpus)) => {
                (format!("irq {irq} is moved"), format!("irq {irq} is on CPU {cpus} again"))
            }
            Left::Interrupts(Was::NotThreaded) => {
                ("its NAPI has threads".into(), "its NAPI has no threads again".into())
            }
            Left::Interrupts(Was::Thread(thread, cpus)) => {
                let cpus: Vec<_> = cpus.iter().map(usize::to_string).collect();
                let again = format!("NAPI thread {thread} is on CPU {} again", cpus.join(","));
                (format!("NAPI thread {thread} is moved"), again)
            }
            Left::Hold { before, .. } => {
                let again = match before.time() {
                    Some(_) => format!("NAPI holds it for {before} again"),
                    None => "NAPI no longer holds it".into(),
                };
                ("its hold is that of a port".into(), again)
            }
            Left::Rss { .. } => {
                ("its RSS table is that of a port".into(), "its RSS table is the former one".into())
            }
            Left::Interrupts(_) => {
                ("an interrupt moved".into(), "its interrupt is on its former CPU again".into())
            }
        }
    }

    /// Returns false if the interface is restored already, or was changed since; the state of interrupts is not read.
    fn is_left(&self, interface: &Interface) -> linerate::Result<bool> {
        Ok(match self {
            Left::Checksums => !interface.checksum_offload()?,
            Left::Hold { sets, before } => {
                let now = NapiHold::now(interface)?;
                now != *before && sets.contains(&now)
            }
            Left::Rss { set, before } => set.undone(before, &interface.rss()?).is_some(),
            Left::Interrupts(_) => true,
        })
    }

    fn undo(&self, interface: &Interface, screen: &Screen) -> linerate::Result<()> {
        let name = interface.name();
        match self {
            Left::Checksums if interface.checksum_offload() == Ok(true) => Ok(()),
            Left::Checksums => {
                screen.change(&format!("restoring the checksum offload of {name}\n"));
                interface.set_checksum_offload(true)
            }
            Left::Hold { before, .. } if NapiHold::now(interface) == Ok(*before) => Ok(()),
            Left::Hold { before, .. } => {
                screen.change(&format!("restoring the hold of {name}\n"));
                before.set(interface)
            }
            Left::Rss { set, before } => {
                screen.change(&format!("restoring the RSS table of {name}\n"));
                let back = set.undone(before, &interface.rss()?);
                back.map_or(Ok(()), |back| back.set(interface))
            }
            Left::Interrupts(was) => {
                screen.change(&format!("restoring the interrupts of {name}: {was}\n"));
                let name = name.to_string();
                match InterruptGuard::put_back(&name, was) {
                    // A veth has NAPI only while a port is open: open one to restore the setting.
                    Err(e) if e.code == linerate::Code::Unsupported => {
                        let driver = Registry::default().of_links().ok_or(e)?;
                        let quiet = driver.on_machine().link_trial;
                        let _open =
                            linerate::Port::open(&format!("{}:{name},{quiet}", driver.name()))?;
                        InterruptGuard::put_back(&name, was)
                    }
                    done => done,
                }
            }
        }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Left::Checksums => f.write_str("checksum-offload"),
            Left::Interrupts(was) => was.fmt(f),
            Left::Hold { sets, before } => {
                let hold = |hold: &NapiHold| format!("{}/{}", hold.time_ns, hold.polls);
                let sets: Vec<_> = sets.iter().map(hold).collect();
                write!(f, "hold={}={}", sets.join(","), hold(before))
            }
            Left::Rss { set, before } => {
                let division = |rss: &Rss| {
                    let table: Vec<_> = rss.table.iter().map(u32::to_string).collect();
                    let key: String = rss.key.iter().map(|byte| format!("{byte:02x}")).collect();
                    format!("{}/{key}", table.join(","))
                };
                write!(f, "rss={}={}", division(set), division(before))
            }
        }
    }
}

/// Returns the hold that a port sets for a time, 0 for none.
fn napi_hold(time: Duration) -> NapiHold {
    if time.is_zero() { NapiHold::default() } else { NapiHold::of_time(time) }
}

/// One line of a record: a change on an interface.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    pid: u32,
    start: u64,
    netns: u64,
    index: u32,
    interface: String,
    left: Left,
}

impl Line {
    /// Returns the line of a change by this process in this network namespace.
    fn here(interface: &str, left: Left) -> Result<Line, Errno> {
        let pid = std::process::id();
        let start = started(pid).ok_or(Errno::SRCH)?;
        let netns = netns().ok_or(Errno::NOENT)?;
        let index = Interface::open(interface).map_or(0, |found| found.index());
        Ok(Line { pid, start, netns, index, interface: interface.to_owned(), left })
    }

    fn of(text: &str) -> Option<Line> {
        let words: Vec<&str> = text.split(' ').collect();
        let [FORM, pid, start, netns, index, interface, left] = words[..] else {
            return None;
        };
        let (interface, left) = (interface.to_owned(), Left::of(left)?);
        let (pid, start) = (pid.parse().ok()?, start.parse().ok()?);
        let (netns, index) = (netns.parse().ok()?, index.parse().ok()?);
        Some(Line { pid, start, netns, index, interface, left })
    }

    /// Returns the interface, also under another name; `None` if it no longer exists.
    fn there(&self) -> linerate::Result<Option<Interface>> {
        let is_gone = |e: &linerate::Error| e.code == linerate::Code::NoDevice;
        match Interface::by_index(self.index) {
            Ok(there) if there.name().to_string() == self.interface => Ok(Some(there)),
            // Renamed. The kernel may give the index to a new interface; if another one has the old name, nothing tells
            // which of the two was changed.
            Ok(there) => match Interface::open(&self.interface) {
                Err(e) if is_gone(&e) => Ok(Some(there)),
                Err(e) => Err(e),
                Ok(_) => {
                    let (name, index) = (&self.interface, self.index);
                    let what = format!("{name} was not restored");
                    let why = format!("interface {index} is called {} now", there.name());
                    let fix = "restore it by hand, and remove the record";
                    Err(Error::new(linerate::Code::Busy, what, why).fix(fix))
                }
            },
            Err(e) if is_gone(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Describes the change, if its run was killed and `--undo` would undo it in this namespace.
    fn pending(&self) -> Option<String> {
        if started(self.pid) == Some(self.start) || netns() != Some(self.netns) {
            return None;
        }
        let there = self.there().ok()??;
        // What cannot be read may be left.
        self.left.is_left(&there).unwrap_or(true).then_some(())?;
        let (interface, (changed, _)) = (there.name(), self.left.descriptions());
        let verb = match self.left {
            Left::Interrupts(_) => "may have left",
            _ => "left",
        };
        Some(format!("a killed run {verb} {interface} changed: {changed}"))
    }

    /// Undoes the recorded changes; returns true if all of them are undone.
    fn undo(&self, screen: &Screen, found: &mut Vec<Finding>) -> bool {
        let Line { pid, interface, .. } = self;
        let (changed, _) = self.left.descriptions();
        let mut left = |why: &str, fix: String| {
            let what = format!("{interface} was not restored: {changed}");
            let mut finding = Finding::new(Level::Warn, what);
            finding.why(why).fix(fix);
            found.push(finding);
            false
        };
        if started(*pid) == Some(self.start) {
            return left(
                "the run that changed it still runs, and will restore it when it ends",
                format!("end that run: kill -INT {pid}"),
            );
        }
        if netns() != Some(self.netns) {
            return left(
                "it is in another network namespace, which may no longer exist",
                "repeat it in that namespace (ip netns lists them): ip netns exec NAME linerate doctor --undo"
                    .into(),
            );
        }
        let restored = self.restore(screen);
        // What could not be read or restored stays in the record.
        let is_done = restored.is_ok();
        found.push(match restored {
            Ok(told) => Finding::new(Level::Ok, told),
            Err(e) => Finding::of(Level::Miss, &e),
        });
        is_done
    }

    /// Undoes the change unless another program has changed the setting since; returns what was found.
    fn restore(&self, screen: &Screen) -> linerate::Result<String> {
        let Line { pid, interface, .. } = self;
        let Some(there) = self.there()? else {
            return Ok(format!("{interface} no longer exists, so nothing has to be restored"));
        };
        let setting = match self.left {
            Left::Hold { before, .. } if NapiHold::now(&there)? == before => None,
            Left::Hold { .. } => Some("hold"),
            Left::Rss { .. } => Some("RSS table"),
            _ => None,
        };
        if let Some(setting) = setting
            && !self.left.is_left(&there)?
        {
            return Ok(format!(
                "the {setting} of {interface} was changed since, so it stays as it is"
            ));
        }
        self.left.undo(&there, screen)?;
        let (_, again) = self.left.descriptions();
        Ok(format!("{}: {again}, as before process {pid}", there.name()))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { pid, start, netns, index, interface, left } = self;
        write!(f, "{FORM} {pid} {start} {netns} {index} {interface} {left}")
    }
}

/// Returns a description of each change that a killed run has left in this network namespace.
pub fn pending() -> Vec<String> {
    let Ok((path, folder)) = folder(false) else { return Vec::new() };
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let texts = names.filter_map(|name| read(&folder, &name));
    let pending =
        |text: String| text.lines().filter_map(|line| Line::of(line)?.pending()).collect();
    texts.flat_map::<Vec<_>, _>(pending).collect()
}

/// Undoes the changes of killed runs, and returns findings about them.
pub fn undo(screen: &Screen) -> Vec<Finding> {
    let mut found = Vec::new();
    let (path, folder) = match folder(false) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return nothing(found),
        Err(e) => {
            let what = "cannot read the records of runs";
            let e = Error::os(
                linerate::Code::File,
                what,
                "/run/linerate or $XDG_RUNTIME_DIR/linerate",
                e,
            );
            found.push(Finding::of(Level::Miss, &e));
            return found;
        }
    };
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(e) => {
            let e = Error::new(
                linerate::Code::File,
                "cannot read the records of runs",
                format!("{}: {e}", path.display()),
            );
            found.push(Finding::of(Level::Miss, &e));
            return found;
        }
    };
    for entry in entries.flatten() {
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let Some(text) = read(&folder, &name) else { continue };
        let lines: Vec<Line> = text.lines().filter_map(Line::of).collect();
        // Undo every line, also after one that fails.
        let done: Vec<bool> = lines.iter().map(|line| line.undo(screen, &mut found)).collect();
        let is_whole = lines.len() == text.lines().count();
        if is_whole && !done.is_empty() && done.iter().all(|done| *done) {
            let _ = unlinkat(&folder, &name, AtFlags::empty());
        }
    }
    nothing(found)
}

fn nothing(mut found: Vec<Finding>) -> Vec<Finding> {
    if found.is_empty() {
        found.push(Finding::new(Level::Ok, "no killed run of this user left anything to restore"));
    }
    found
}

/// Reads a record, if only this user owns and can write it.
fn read(folder: &OwnedFd, name: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty()).ok()?;
    if !name.starts_with("run-") || !is_own(&file, FileType::RegularFile) {
        return None;
    }
    let mut text = String::new();
    fs::File::from(file).take(BYTES_MAX + 1).read_to_string(&mut text).ok()?;
    // A record that is too long stays where it is: half of it would restore half.
    (text.len() as u64 <= BYTES_MAX).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn file_that_was_to_replace_a_record_is_none() {
        let path = std::env::temp_dir().join(format!("linerate-undo-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let folder = open(&path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let found = ["run-7-8", "new-run-7-8"].map(|name| {
            fs::write(path.join(name), "half a li").unwrap();
            fs::set_permissions(path.join(name), Permissions::from_mode(0o600)).unwrap();
            read(&folder, name)
        });
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(found, [Some("half a li".to_owned()), None]);
    }

    #[test]
    fn a_line_is_read_as_it_is_written_and_nothing_else_is() {
        let line = Line {
            pid: 7,
            start: 8,
            netns: 9,
            index: 3,
            interface: "v1".into(),
            left: Left::Checksums,
        };
        let text = "linerate-undo/1 7 8 9 3 v1 checksum-offload";
        assert_eq!((line.to_string().as_str(), Line::of(text)), (text, Some(line)));
        for was in [Was::read("irq=34=0-1").unwrap(), Was::read("thread=5=0,1").unwrap()] {
            let line = Line::of(&format!("linerate-undo/1 7 8 9 3 v1 {was}")).unwrap();
            assert_eq!(line.left, Left::Interrupts(was));
        }
        for text in ["hold=250000/1=20000/2", "hold=250000/1,0/0=20000/2"] {
            let line = Line::of(&format!("linerate-undo/1 7 8 9 3 v0 {text}")).unwrap();
            assert_eq!(line.left.to_string(), text);
            assert_eq!(line.left.descriptions().1, "NAPI holds it for 20 us again");
        }
        let text = "rss=0,2,0,2/=0,1,2,3/6d5a00ff";
        let line = Line::of(&format!("linerate-undo/1 7 8 9 3 eth0 {text}")).unwrap();
        let Left::Rss { set, before } = &line.left else { panic!("{line:?}") };
        assert_eq!((&set.table, &set.key), (&vec![0, 2, 0, 2], &vec![]));
        assert_eq!((&before.table, &before.key), (&vec![0, 1, 2, 3], &vec![0x6d, 0x5a, 0, 0xff]));
        assert_eq!(line.left.to_string(), text);
        for bad in [
            "",
            "linerate-undo/1 7 8 9 3 v1 rss=0,1/",
            "linerate-undo/1 7 8 9 3 v1 rss=0,1/=0,x/",
            "linerate-undo/1 7 8 9 3 v1 rss=0,1/=0,1/6d5",
            "linerate-undo/1 7 8 9 3 v1 rss=/=0,1/",
            "linerate-undo/1 7 8 9 3 v1 queues",
            "linerate-undo/1 7 8 9 3 v1 hold=250000/1",
            "linerate-undo/1 7 8 9 3 v1 hold=250000/1,=0/0",
            "linerate-undo/1 7 8 9 3 v1 hold=250000/1=-1/0",
            "linerate-undo/1 7 8 9 3 v1 irq=34=/../0",
            "linerate-undo/2 7 8 9 3 v1 checksum-offload",
            "linerate-undo/1 -7 8 9 3 v1 checksum-offload",
            "linerate-undo/1 7 8 9 3 v1 checksum-offload more",
        ] {
            assert_eq!(Line::of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_number() {
        assert!(started(std::process::id()).is_some_and(|start| start > 0));
        assert_eq!(started(u32::MAX), None);
        assert!(!is_own(fs::File::open("/dev/null").unwrap(), FileType::RegularFile));
    }
}
