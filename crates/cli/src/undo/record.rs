//! The record of this process: written before a change is made, removed at the end.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linerate::{Change, Registry};
use linerate_ctl::affinity::Was;
use linerate_sys::netif::{Interface, NapiHold};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::left::{Left, napi_hold};
use super::line::Line;
use super::lock::{LOCK_WAIT, LOCK_WAIT_SERVING, Lock};
use super::{NEW, RECORD, UNDO, folder};
use crate::run::planned;
use crate::screen::Screen;

/// The record of a run, in a file that is removed when the last clone of this value is dropped, if
/// the changes are undone by then. The state of interrupts is not read: [`Record::restored`] says
/// that they are. A run that changes nothing has no file.
#[derive(Clone, Default)]
pub struct Record(Arc<Mutex<Written>>);

#[derive(Default)]
pub(super) struct Written {
    /// The end of the file's name.
    kind: &'static str,
    pub(super) lines: Vec<Line>,
    /// The folder, and the name of the file in it.
    file: Option<(OwnedFd, String)>,
    /// True if the interrupts were restored, whose state cannot be read.
    is_restored: bool,
}

impl Drop for Written {
    fn drop(&mut self) {
        let Some((folder, name)) = &self.file else { return };
        // A port that could not be closed has restored nothing: its worker may be in a call of the
        // device that does not return.
        let is_left = |line: &Line| match line.left {
            Left::Interrupts(_) => !self.is_restored,
            _ => line.may_be_left(false),
        };
        if self.lines.iter().any(is_left) {
            let left = "an interface may stay changed; once this process has ended, restore it by";
            return Screen::plain(false).change(&format!("note: {left}: {UNDO}\n"));
        }
        let _ = unlinkat(folder, name, AtFlags::empty());
        FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of records that this process has in files.
static FILES: AtomicUsize = AtomicUsize::new(0);

/// Returns true if this process has changed settings of the machine, or may have, and has recorded
/// them.
pub fn is_recorded() -> bool {
    FILES.load(Ordering::Relaxed) > 0
}

/// Records the changes that opening `ports` for a trial will make.
pub fn record<'a>(
    ports: impl IntoIterator<Item = &'a str>,
    drivers: &Registry,
    screen: &Screen,
) -> Record {
    record_locked(false, "during the trial", ports, drivers, screen)
}

/// Records the changes that opening `ports` will make; `lasts` says for how long. `is_locked` is
/// true if the caller has locked the records, or has tried to.
pub(super) fn record_locked<'a>(
    is_locked: bool,
    lasts: &str,
    ports: impl IntoIterator<Item = &'a str>,
    drivers: &Registry,
    screen: &Screen,
) -> Record {
    let mut changes: Vec<Change> = Vec::new();
    for text in ports {
        changes.extend(planned(drivers, text).map(|plan| plan.changes()).unwrap_or_default());
    }
    for change in &changes {
        screen.change(&format!("note: {change} {lasts}\n"));
    }
    Record::of("", is_locked, changes.into_iter().filter_map(Left::by), screen)
}

/// Records interrupts that may be moved.
pub fn record_moves(changes: &[(String, Was)], screen: &Screen) -> Record {
    let left = |(name, was): &(String, Was)| (name.clone(), Left::Interrupts(was.clone()));
    Record::of("-place", false, changes.iter().map(left), screen)
}

impl Record {
    fn of(
        kind: &'static str,
        is_locked: bool,
        changes: impl Iterator<Item = (String, Left)>,
        screen: &Screen,
    ) -> Record {
        let mut written = Written { kind, lines: Vec::new(), file: None, is_restored: false };
        let lines: Result<Vec<Line>, Errno> =
            changes.map(|(name, left)| Line::here(&name, left)).collect();
        let done = lines.and_then(|lines| {
            written.lines = lines;
            written.write((!is_locked).then_some(LOCK_WAIT), screen)
        });
        say(done, screen);
        Record(Arc::new(Mutex::new(written)))
    }

    /// Notes that all recorded interrupts are restored; otherwise the file stays.
    pub fn restored(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_restored = true;
    }

    /// Records that the hold of the interface of that index is about to be changed to `time`, 0 for
    /// none. The hold from before the first change remains the one to restore.
    pub fn hold(&self, index: u32, time: Duration, screen: &Screen) {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = written.note_hold(index, napi_hold(time));
        // The caller is the thread of the control socket, which serves other clients, too.
        say(noted.and_then(|()| written.write(Some(LOCK_WAIT_SERVING), screen)), screen);
    }
}

/// Returns the name of this user's folder of records, as it is printed.
pub(super) fn folder_name() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => "/run/linerate",
        false => "$XDG_RUNTIME_DIR/linerate",
    }
}

/// Returns the reason why a record could not be written, or no record read, in the folder `at`.
pub(super) fn reason(e: Errno, at: &str) -> String {
    match e {
        Errno::NOENT if at.starts_with('$') => "XDG_RUNTIME_DIR names no folder: set it".into(),
        Errno::PERM => {
            format!("{at} must be a folder of this user that no other user can write")
        }
        // A line names the process as /proc does.
        Errno::SRCH => "/proc is not mounted".into(),
        e => format!("{at}: {e}"),
    }
}

/// Prints that a record is missing, if it could not be written.
fn say(written: Result<(), Errno>, screen: &Screen) {
    if let Err(e) = written {
        let why = reason(e, folder_name());
        screen.change(&format!("note: if this run is killed, linerate doctor --undo cannot restore what it changed: cannot write a record: {why}\n"));
    }
}

impl Written {
    /// Adds the change of a hold to the lines. The index names the interface: since its port was
    /// opened it may have been renamed, and another one may have its former name.
    pub(super) fn note_hold(&mut self, index: u32, set: NapiHold) -> Result<(), Errno> {
        let found = Interface::by_index(index).map_err(|_| Errno::NODEV)?;
        let now = NapiHold::now(&found).map_err(|_| Errno::NODEV)?;
        let sets = self.lines.iter_mut().find_map(|line| match &mut line.left {
            Left::Hold { sets, .. } if line.index == index => Some(sets),
            _ => None,
        });
        match sets {
            Some(sets) => {
                // Keep the present hold: the process may be killed before it sets the new one.
                sets.retain(|earlier| *earlier == now);
                sets.push(set);
            }
            None => {
                let left = Left::Hold { sets: vec![set], before: now };
                self.lines.push(Line::of_index(index, found.name().as_str(), left)?);
            }
        }
        Ok(())
    }

    /// Writes the file, or replaces it by another one. Locks the records first, for which it waits
    /// at most for `wait`; `None` if the caller has locked them.
    fn write(&mut self, wait: Option<Duration>, screen: &Screen) -> Result<(), Errno> {
        let Some(Line { pid, start, .. }) = self.lines.first() else { return Ok(()) };
        let text: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        if let Some((folder, name)) = &self.file {
            let _lock = wait.map(|wait| Lock::of(folder, wait, screen));
            return replace(folder, name, &text);
        }
        let (_, folder) = folder(true)?;
        let name = format!("{RECORD}{pid}-{start}{}", self.kind);
        let lock = wait.map(|wait| Lock::of(&folder, wait, screen));
        create(&folder, &name, &text)?;
        drop(lock);
        self.file = Some((folder, name));
        FILES.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Replaces a record by one with this text.
pub(super) fn replace(folder: &OwnedFd, name: &str, text: &str) -> Result<(), Errno> {
    // Not a record's name: if this process is killed here, the file before it is the record.
    let new = format!("{NEW}{name}");
    // A process that was killed may have left it.
    let _ = unlinkat(folder, &new, AtFlags::empty());
    create(folder, &new, text)?;
    renameat(folder, &new, folder, name).inspect_err(|_| {
        let _ = unlinkat(folder, &new, AtFlags::empty());
    })
}

/// Creates a file in the folder, or nothing.
fn create(folder: &OwnedFd, name: &str, text: &str) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = fs::File::from(openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(text.as_bytes()).map_err(|e| {
        let _ = unlinkat(folder, name, AtFlags::empty());
        Errno::from_io_error(&e).unwrap_or(Errno::IO)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_interrupts_stays_unless_they_were_restored_when_the_run_ends() {
        let scratch = linerate_testing::Scratch::new();
        let path = &scratch.0;
        for (name, is_restored) in [("run-1", false), ("run-2", true)] {
            fs::write(path.join(name), "x").unwrap();
            let folder = OwnedFd::from(fs::File::open(path).unwrap());
            FILES.fetch_add(1, Ordering::Relaxed);
            let moved = Left::Interrupts(Was::read("irq=34=0").unwrap());
            let lines = vec![Line::here("lo", moved).unwrap()];
            let file = Some((folder, name.to_owned()));
            let written = Written { kind: "", lines, file, is_restored: false };
            let record = Record(Arc::new(Mutex::new(written)));
            if is_restored {
                record.restored();
            }
            drop(record);
            assert_eq!(path.join(name).exists(), !is_restored);
        }
    }
}
