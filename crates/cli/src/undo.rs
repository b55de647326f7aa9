//! The record of a run's changes on interfaces, for `doctor --undo` after the run was killed.
//!
//! The library undoes its changes when a port is closed, and writes no file. A run that is killed
//! cannot: so the command writes down what opening its ports will change before it opens them, and
//! what a request changes while it runs before that is changed, and removes that file at its end. A
//! record is used only if this user owns the file and its folder, and no other user can write them.

mod ends;
mod left;
mod line;
mod lock;
mod netns;
mod record;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate::{Error, Registry};
use linerate_ctl::doctor::{Finding, Level};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, mkdir, open, openat, unlinkat};
use rustix::io::Errno;

use crate::screen::Screen;
use ends::{detached, ends, is_free_soon};
use left::Left;
use line::{Line, Run};
use lock::{LOCK_WAIT, Lock};

pub use record::{Record, is_recorded, record, record_moves};

/// The command that undoes the changes of killed runs.
pub const UNDO: &str = "linerate doctor --undo";
/// Start of a record's name; the numbers of its process follow.
const RECORD: &str = "run-";
/// The beginning of the name of a file that is to replace a record.
const NEW: &str = "new-";
/// Greatest size of a record, which has a line for each change.
const BYTES_MAX: u64 = 1 << 20;
/// Age at which an unfinished file is removed that does not say which PID namespace it is from.
const ABANDONED: Duration = Duration::from_secs(60);
/// Interval at which a state is read again that is waited for.
const STEP: Duration = Duration::from_millis(5);
const CANNOT_READ: &str = "cannot read the records of runs";

/// Returns the folder that has the folder of the records: for users other than root, the one that
/// the value of `XDG_RUNTIME_DIR` names; `None` if that is no folder.
fn base(is_root: bool, runtime_dir: Option<OsString>) -> Option<PathBuf> {
    if is_root {
        return Some(PathBuf::from("/run"));
    }
    runtime_dir.map(PathBuf::from).filter(|path| path.is_absolute() && path.is_dir())
}

/// Returns the [`base`] of this process's user.
fn base_here() -> Option<PathBuf> {
    base(rustix::process::geteuid().is_root(), std::env::var_os("XDG_RUNTIME_DIR"))
}

/// Opens the folder of the records: it must not be a link, and only this user may own and write it.
fn folder(make: bool) -> Result<(PathBuf, OwnedFd), Errno> {
    let path = base_here().ok_or(Errno::NOENT)?.join("linerate");
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

/// Decision about a line of a record.
enum Wanted {
    Keep,
    Undo,
    /// It is restored already, or was changed since: the next such change is not the run's.
    Forget,
}

/// A record that was read.
struct Recorded {
    name: String,
    lines: Vec<Line>,
    /// The text of the lines that cannot be read.
    unread: String,
}

/// The files in a folder of records.
#[derive(Default)]
struct Records {
    path: PathBuf,
    /// Those of later runs first, because a run may have changed what an earlier one left.
    read: Vec<Recorded>,
    /// The names of records that cannot be read, or not all of them.
    unreadable: Vec<String>,
    /// The names of empty records, and of files that are to replace records.
    unfinished: Vec<String>,
}

impl Records {
    fn of(path: &Path, folder: &OwnedFd) -> io::Result<Records> {
        let mut records = Records { path: path.to_owned(), ..Records::default() };
        for entry in fs::read_dir(path)?.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            // A folder, or a link to one, is no record, whatever its name is.
            if entry.path().is_dir() {
                continue;
            }
            if name.starts_with(NEW) {
                records.unfinished.push(name);
            } else if name.starts_with(RECORD) {
                records.add(name, folder);
            }
        }
        let start = |record: &Recorded| record.lines.first().map(|line| line.start);
        records.read.sort_by_key(|record| std::cmp::Reverse(start(record)));
        Ok(records)
    }

    fn add(&mut self, name: String, folder: &OwnedFd) {
        let text = match read(folder, &name) {
            Ok(text) => text,
            // Its run has ended meanwhile.
            Err(Errno::NOENT) => return,
            Err(_) => return self.unreadable.push(name),
        };
        // A process that was killed before it wrote its record has changed nothing.
        if text.is_empty() {
            return self.unfinished.push(name);
        }
        let (mut lines, mut unread) = (Vec::new(), String::new());
        for text in text.lines() {
            match Line::of(text) {
                Some(line) => lines.push(line),
                None => unread += &format!("{text}\n"),
            }
        }
        if !unread.is_empty() {
            self.unreadable.push(name.clone());
        }
        self.read.push(Recorded { name, lines, unread });
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.read.iter().flat_map(|record| &record.lines)
    }

    /// Undoes or forgets the changes as `wanted` says, and removes them from their records, and the
    /// records of which no line is left; returns findings about those that it undid.
    fn undo(
        &self,
        folder: &OwnedFd,
        wanted: impl Fn(&Line) -> Wanted,
        screen: &Screen,
    ) -> Vec<Finding> {
        let (all, mut found): (Vec<&Line>, _) = (self.lines().collect(), Vec::new());
        for Recorded { name, lines, unread } in &self.read {
            let path = self.path.join(name);
            // A run that ends meanwhile removes its record by itself.
            let has_lived = lines.first().is_some_and(|line| line.run() == Run::Lives);
            let mut kept: Vec<&Line> = Vec::new();
            // The last change first, and also the others if one cannot be undone.
            for line in lines.iter().rev() {
                match wanted(line) {
                    Wanted::Keep => {
                        kept.push(line);
                        continue;
                    }
                    Wanted::Forget => continue,
                    Wanted::Undo => {}
                }
                let mut finding = line.undo(&all, screen);
                if finding.level != Level::Ok {
                    kept.push(line);
                    name_record(&mut finding, &path);
                }
                found.push(finding);
            }
            if has_lived || kept.len() == lines.len() {
                continue;
            }
            let kept = kept.iter().rev().map(|line| format!("{line}\n"));
            match keep(folder, name, &kept.fold(unread.clone(), |text, line| text + &line)) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => {
                    let what = "cannot remove from a record what is restored";
                    let e = Error::os(linerate::Code::File, what, &path.to_string_lossy(), e);
                    found.push(Finding::of(Level::Miss, &e));
                }
            }
        }
        found
    }
}

/// Replaces a record by one with this text, or removes it if the text is empty.
fn keep(folder: &OwnedFd, name: &str, text: &str) -> Result<(), Errno> {
    match text {
        "" => unlinkat(folder, name, AtFlags::empty()),
        text => record::replace(folder, name, text),
    }
}

/// Adds the command that removes the record to a remedy that names the record.
fn name_record(finding: &mut Finding, path: &Path) {
    let remove = "remove the record";
    if let Some(fix) = &mut finding.fix {
        fix.text = fix.text.replace(remove, &format!("{remove} (rm {})", path.display()));
    }
}

/// Returns warnings about the records that this process cannot read.
pub fn unread() -> Vec<Finding> {
    match folder(false) {
        Ok((path, folder)) => unread_in(&path, &folder),
        // There are no records.
        Err(Errno::NOENT) => Vec::new(),
        Err(e) => vec![Finding::of(Level::Warn, &unopened(e))],
    }
}

/// Returns warnings about the records of a folder that cannot be read.
fn unread_in(path: &Path, folder: &OwnedFd) -> Vec<Finding> {
    match Records::of(path, folder) {
        Ok(records) => {
            let names = records.unreadable.iter();
            names.map(|name| unreadable(Level::Warn, &path.join(name))).collect()
        }
        Err(e) => vec![Finding::of(Level::Warn, &unlisted(path, &e))],
    }
}

/// Returns a description of each change that a killed run has left in this network namespace.
pub fn pending() -> Vec<String> {
    let Ok((path, folder)) = folder(false) else { return Vec::new() };
    let records = Records::of(&path, &folder).unwrap_or_default();
    records.lines().filter_map(Line::pending).collect()
}

/// Undoes what killed runs have changed on the interfaces of a run's ports, prints what they have
/// left otherwise, and records what opening the ports will change; locks the records meanwhile.
pub fn begin<'a, I>(ports: impl Fn() -> I, drivers: &Registry, screen: &Screen) -> Record
where
    I: Iterator<Item = &'a str>,
{
    let found = folder(false);
    let lock = found.as_ref().ok().map(|(_, folder)| Lock::of(folder, LOCK_WAIT, screen));
    // Without the lock another run may record a setting while it is restored.
    if let (Ok((path, folder)), true) = (&found, lock.as_ref().is_some_and(Lock::is_held)) {
        recover(path, folder, ports(), drivers, screen);
    }
    for left in pending() {
        screen.change(&format!("note: {left}; to restore it: {UNDO}\n"));
    }
    for finding in unread() {
        let why = finding.why.unwrap_or_default();
        screen.change(&format!(
            "note: {}: {why}; for the remedy, and to restore the others: {UNDO}\n",
            finding.what
        ));
    }
    record::record_locked(lock.is_some(), "until the run ends", ports(), drivers, screen)
}

/// Undoes what killed runs have changed on the interfaces of `ports` and on their other ends, so
/// that the next run on them finds, records and restores their own settings. Interrupts stay as
/// they are, and so does what the owner of an attached XDP program may need as it is.
fn recover<'a>(
    path: &Path,
    folder: &OwnedFd,
    ports: impl Iterator<Item = &'a str>,
    drivers: &Registry,
    screen: &Screen,
) {
    let records = Records::of(path, folder).unwrap_or_default();
    if records.read.is_empty() {
        return;
    }
    let (ends, until) = (ends(ports, drivers), detached());
    let wanted = |line: &Line| {
        let is_read = !matches!(line.left, Left::Interrupts(_));
        let is_of_path = ends.contains(&line.index);
        match is_read && is_of_path && line.is_of_ended_run_here() {
            false => Wanted::Keep,
            true if !line.may_be_left(true) => Wanted::Forget,
            true if is_free_soon(line, until) => Wanted::Undo,
            true => Wanted::Keep,
        }
    };
    for finding in records.undo(folder, wanted, screen) {
        // What is left is in the notes of pending changes.
        if finding.level == Level::Ok {
            screen.change(&format!("note: {}\n", finding.what));
        }
    }
}

/// Returns a warning if the records were not looked for, because this user's folder is not known.
pub fn unlooked() -> Option<Finding> {
    base_here().is_none().then(|| {
        let what = "the records of killed runs were not looked for";
        let mut finding = Finding::new(Level::Warn, what);
        let user = rustix::process::geteuid().as_raw();
        let fix = format!("set it as the run had it: export XDG_RUNTIME_DIR=/run/user/{user}");
        finding.why("XDG_RUNTIME_DIR names no folder").fix(fix);
        finding
    })
}

/// Undoes the changes of killed runs, and returns findings about them.
pub fn undo(screen: &Screen) -> Vec<Finding> {
    let mut found = match folder(false) {
        Ok((path, folder)) => undo_in(&path, &folder, screen),
        Err(Errno::NOENT) => unlooked().into_iter().collect(),
        Err(e) => vec![Finding::of(Level::Miss, &unopened(e))],
    };
    if found.is_empty() {
        found.push(Finding::new(Level::Ok, "no killed run of this user left anything to restore"));
    }
    found
}

/// Returns the error of a folder of records that cannot be opened.
fn unopened(e: Errno) -> Error {
    Error::new(linerate::Code::File, CANNOT_READ, record::reason(e, record::folder_name()))
}

/// Returns the error of a folder of records that cannot be listed.
fn unlisted(path: &Path, e: &io::Error) -> Error {
    Error::new(linerate::Code::File, CANNOT_READ, format!("{}: {e}", path.display()))
}

/// Undoes the changes in the records of a folder.
fn undo_in(path: &Path, folder: &OwnedFd, screen: &Screen) -> Vec<Finding> {
    // Without the lock, a run may record a setting as its former one just before it is restored.
    let _lock = match Lock::take(folder, LOCK_WAIT) {
        Ok(lock) => lock,
        Err(e) => return vec![Finding::of(Level::Miss, &e)],
    };
    let records = match Records::of(path, folder) {
        Ok(records) => records,
        Err(e) => return vec![Finding::of(Level::Miss, &unlisted(path, &e))],
    };
    let mut found = records.undo(folder, |_| Wanted::Undo, screen);
    // Several settings of an interface that was deleted.
    found.dedup();
    // What they have may be changed still.
    let unread = records.unreadable.iter();
    found.extend(unread.map(|name| unreadable(Level::Miss, &path.join(name))));
    for name in records.unfinished.iter().filter(|name| is_abandoned(path, folder, name)) {
        let _ = unlinkat(folder, name, AtFlags::empty());
    }
    found
}

/// Returns the finding about a record that cannot be read.
fn unreadable(level: Level, path: &Path) -> Finding {
    let path = path.display();
    let what = format!("the record {path} cannot be read");
    let mut finding = Finding::new(level, what);
    finding
        .why("another user can write it, it is no record, or another version has written it")
        .fix(format!("restore by hand what it has, and remove it; to see what it has: cat {path}"));
    finding
}

/// Returns true if the process has ended that was to finish the file.
fn is_abandoned(path: &Path, folder: &OwnedFd, name: &str) -> bool {
    let record = name.strip_prefix(NEW).unwrap_or(name);
    let mut words = record.strip_prefix(RECORD).unwrap_or_default().split('-');
    let pid = words.next().and_then(|word| word.parse().ok());
    let start = words.next().and_then(|word| word.parse().ok());
    let (Some(pid), Some(start)) = (pid, start) else { return false };
    // The process may be of another PID namespace, which only a line has.
    let text = read(folder, name).unwrap_or_default();
    let lines: Vec<Line> = text.lines().filter_map(Line::of).collect();
    let is_old = || {
        let modified = fs::symlink_metadata(path.join(name)).and_then(|found| found.modified());
        modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age >= ABANDONED))
    };
    Run::of(pid, start) == Run::Ended
        && lines.iter().all(|line| line.run() == Run::Ended)
        && (!lines.is_empty() || is_old())
}

/// Reads a file of the folder, if only this user owns and can write it.
fn read(folder: &OwnedFd, name: &str) -> Result<String, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty())?;
    if !is_own(&file, FileType::RegularFile) {
        return Err(Errno::PERM);
    }
    let mut text = String::new();
    let done = fs::File::from(file).take(BYTES_MAX + 1).read_to_string(&mut text);
    match done {
        // A record that is too long stays where it is: half of it would restore half.
        Ok(_) if text.len() as u64 > BYTES_MAX => Err(Errno::FBIG),
        Ok(_) => Ok(text),
        Err(e) => Err(Errno::from_io_error(&e).unwrap_or(Errno::ILSEQ)),
    }
}

#[cfg(test)]
mod tests;
