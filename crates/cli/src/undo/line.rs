//! One line of a record: a change on an interface, and the run that made it.

use std::os::unix::fs::MetadataExt;
use std::{fmt, fs, io, mem};

use linerate::Error;
use linerate_ctl::doctor::{Finding, Level};
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::LinkInfo;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::ends::{detached, is_free_soon, other_end};
use super::left::{Left, Undone};
use super::netns::Netns;
use crate::screen::Screen;

/// The form of a record's line.
const FORM: &str = "linerate-undo/3";
/// The form before, in which a network namespace has no cookie.
const SECOND_FORM: &str = "linerate-undo/2";
/// The first form, in which a line has no PID namespace either.
const FIRST_FORM: &str = "linerate-undo/1";

/// Returns the number of the PID namespace of this process; `None` if the kernel has none.
pub(super) fn pidns() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino())
}

/// Returns the number of a process, and its start time, which distinguishes it from a later one
/// with the same number; `process` is its folder in /proc. The number of `self` is that of the
/// PID namespace that /proc shows, which may be another one than that of getpid(2).
///
/// Source: proc_pid_stat(5), fields 1 and 22; field 2 is a name in parentheses, which may contain
/// any character.
pub(super) fn identity(process: &str) -> Option<(u32, u64)> {
    identity_in(&stat(process).ok()?)
}

fn stat(process: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{process}/stat"))
}

fn identity_in(stat: &str) -> Option<(u32, u64)> {
    let (front, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace();
    // A process in state Z has ended and waits for its parent: it makes no more changes.
    fields.next().filter(|state| *state != "Z")?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((front.split_whitespace().next()?.parse().ok()?, start))
}

/// The state of the run that wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    Lives,
    Ended,
    /// The run is of another PID namespace, whose processes are unknown here.
    Elsewhere,
    /// There is a process of the run's number, and /proc does not show its start time.
    Hidden,
}

impl Run {
    /// Returns the state of the run that was the process `pid` of this PID namespace, started at
    /// `start`.
    pub fn of(pid: u32, start: u64) -> Run {
        Run::in_proc(stat(&pid.to_string()), start, |e| exists(pid, e))
    }

    /// Returns the state from the process's file in /proc; if it cannot be read, `exists` says if
    /// there may be such a process.
    pub fn in_proc(
        stat: io::Result<String>,
        start: u64,
        exists: impl FnOnce(&io::Error) -> bool,
    ) -> Run {
        match stat {
            Ok(stat) if identity_in(&stat).map(|(_, start)| start) == Some(start) => Run::Lives,
            Ok(_) => Run::Ended,
            // The option `hidepid` of /proc hides a process with file capabilities also from its
            // own user.
            Err(e) if exists(&e) => Run::Hidden,
            Err(_) => Run::Ended,
        }
    }
}

/// Returns true if a process has the number that /proc would show for it, or may have; `unread` is
/// the error of reading its file there.
pub(super) fn exists(pid: u32, unread: &io::Error) -> bool {
    // The numbers in a /proc of another PID namespace are not those of kill(2).
    if identity("self").is_some_and(|(own, _)| own != std::process::id()) {
        return !matches!(Errno::from_io_error(unread), Some(Errno::NOENT | Errno::SRCH));
    }
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// One line of a record: a change on an interface.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub pid: u32,
    pub start: u64,
    /// The PID namespace of the process; `None` in the first form, and if the kernel has none.
    pub pidns: Option<u64>,
    pub netns: Netns,
    pub index: u32,
    pub interface: String,
    pub left: Left,
}

impl Line {
    /// Returns the line of a change by this process in this network namespace.
    pub fn here(interface: &str, left: Left) -> Result<Line, Errno> {
        let index = Interface::open(interface).map_or(0, |found| found.index());
        Line::of_index(index, interface, left)
    }

    /// Returns the line of a change by this process of the interface of that index, which has this
    /// name now.
    pub fn of_index(index: u32, interface: &str, left: Left) -> Result<Line, Errno> {
        let (pid, start) = identity("self").ok_or(Errno::SRCH)?;
        let netns = Netns::here().ok_or(Errno::NOENT)?;
        let (pidns, interface) = (pidns(), interface.to_owned());
        Ok(Line { pid, start, pidns, netns, index, interface, left })
    }

    /// Parses a line of any form.
    pub fn of(text: &str) -> Option<Line> {
        let words: Vec<&str> = text.split(' ').collect();
        let (pidns, [pid, start, netns, index, interface, left]) = match words[..] {
            [FORM | SECOND_FORM, pid, start, pidns, netns, index, interface, left] => {
                (Some(pidns.parse().ok()?), [pid, start, netns, index, interface, left])
            }
            [FIRST_FORM, pid, start, netns, index, interface, left] => {
                (None, [pid, start, netns, index, interface, left])
            }
            _ => return None,
        };
        let (interface, left) = (interface.to_owned(), Left::of(left)?);
        let (pid, start) = (pid.parse().ok()?, start.parse().ok()?);
        let (netns, index) = (Netns::of(netns)?, index.parse().ok()?);
        Some(Line { pid, start, pidns, netns, index, interface, left })
    }

    /// Returns the state of the run.
    pub fn run(&self) -> Run {
        match self.pidns {
            Some(_) if self.pidns != pidns() => Run::Elsewhere,
            _ => Run::of(self.pid, self.start),
        }
    }

    /// Returns true if the run has ended, and its change can be undone in this network namespace.
    pub fn is_of_ended_run_here(&self) -> bool {
        self.run() == Run::Ended && self.netns.is_here()
    }

    /// Returns true if the run may still need the setting that `other`, of an ended run, changed
    /// too.
    fn needs_same_as(&self, other: &Line) -> bool {
        let is_same_kind = match (&self.left, &other.left) {
            (Left::Offload(own), Left::Offload(other)) => own == other,
            (own, other) => mem::discriminant(own) == mem::discriminant(other),
        };
        let is_same = is_same_kind && self.netns.is_same(other.netns) && self.index == other.index;
        // What the ended run has found is what a run that started earlier has set.
        let is_restored_to = matches!(other.left, Left::Hold { .. } | Left::Rss { .. });
        is_same
            && match self.run() {
                Run::Lives => !is_restored_to || self.start >= other.start,
                Run::Elsewhere | Run::Hidden => true,
                Run::Ended => false,
            }
    }

    /// Returns the interface, also under another name; `None` if it no longer exists.
    fn there(&self) -> linerate::Result<Option<Interface>> {
        let is_gone = |e: &linerate::Error| e.code == linerate::Code::NoDevice;
        match Interface::by_index(self.index) {
            Ok(there) if there.name().as_str() == self.interface => Ok(Some(there)),
            // Renamed, or recorded by an alternative name. The kernel may give the index to a new
            // interface; if another one has the old name, nothing tells which of the two was
            // changed.
            Ok(there) => match Interface::open(&self.interface) {
                Err(e) if is_gone(&e) => Ok(Some(there)),
                Err(e) => Err(e),
                Ok(found) if found.index() == self.index => Ok(Some(there)),
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

    /// Returns true if the setting is changed, or may be; see [`Left::is_left`].
    pub fn may_be_left(&self, is_killed: bool) -> bool {
        match self.there() {
            Ok(Some(there)) => !matches!(self.left.is_left(&there, is_killed), Ok(Some(false))),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Describes the change, if its run was killed and `--undo` would undo it in this namespace.
    pub fn pending(&self) -> Option<String> {
        if !self.is_of_ended_run_here() {
            return None;
        }
        // What cannot be read may be left.
        let (interface, is_left) = match self.there() {
            Ok(None) => return None,
            Ok(Some(there)) => {
                (there.name().to_string(), self.left.is_left(&there, true).ok().flatten())
            }
            Err(_) => (self.interface.clone(), None),
        };
        let verb = match is_left {
            Some(false) => return None,
            None => "may have left",
            Some(true) => "left",
        };
        let (changed, _) = self.left.descriptions();
        Some(format!("a killed run {verb} {interface} changed: {changed}"))
    }

    /// Undoes the change, and returns what was found: at level `Ok` if nothing is left to be
    /// undone. `all` has the lines of all records.
    pub fn undo(&self, all: &[&Line], screen: &Screen) -> Finding {
        let (run, is_here) = (self.run(), self.netns.is_here());
        let refused = match run {
            Run::Lives => Some((
                "the run that changed it still runs, and will restore it when it ends",
                self.end_command(),
            )),
            Run::Elsewhere => Some((
                "the run that changed it is of another PID namespace, and may still run",
                "repeat it in that namespace; if that no longer exists, restore it by hand, and \
                 remove the record"
                    .into(),
            )),
            Run::Hidden => Some((
                "a process has the number of the run that changed it, and /proc hides when that \
                 process started, so that the run may still run",
                format!(
                    "repeat it when process {} has ended; if that process is no run of linerate, \
                     restore it by hand, and remove the record",
                    self.pid
                ),
            )),
            Run::Ended if !is_here => Some((
                "it is in another network namespace, which may no longer exist",
                // A deleted namespace takes its veths with it; its cards return to the initial one.
                "repeat it in that namespace (ip netns lists them): ip netns exec NAME linerate \
                 doctor --undo; if that namespace was deleted, restore a card of it by hand, and \
                 remove the record"
                    .into(),
            )),
            Run::Ended if all.iter().any(|line| line.needs_same_as(self)) => Some((
                "another run, which may still run, has changed it since, and needs it as it is",
                "repeat it when that run has ended".into(),
            )),
            Run::Ended => self.needed().map(|fix| ("an XDP program may need it as it is", fix)),
        };
        // A run that still runs restores its change itself, and one in another namespace is
        // restored there. Nothing else restores the change of an ended run in this namespace.
        let level = match run {
            Run::Ended if is_here => Level::Miss,
            _ => Level::Warn,
        };
        match refused {
            Some((why, fix)) => self.not_restored(level, &self.left.descriptions().0, why, &fix),
            None => match self.restore(screen) {
                Ok(finding) => finding,
                // What could not be read or restored stays in the record.
                Err(e) => Finding::of(Level::Miss, &e),
            },
        }
    }

    /// Returns the remedy if an offload is off, and an XDP program, which may be that of another
    /// port, may need it off.
    fn needed(&self) -> Option<String> {
        let is_left = matches!(self.left, Left::Offload(_)) && self.may_be_left(true);
        if !is_left || is_free_soon(self, detached()) {
            return None;
        }
        let own = self.there().ok()??;
        let user = match self.left.is_for_other_end() {
            true => Interface::by_index(other_end(&LinkInfo::of(&own).ok()?)?).ok()?,
            false => own,
        };
        Some(format!("repeat it when that program has ended; see: ip -d link show {}", user.name()))
    }

    /// Returns the finding that the change stays; `state` describes the present setting.
    fn not_restored(&self, level: Level, state: &str, why: &str, fix: &str) -> Finding {
        let what = format!("{} was not restored: {state}", self.interface);
        let mut finding = Finding::new(level, what);
        finding.why(why).fix(fix);
        finding
    }

    /// Returns the remedy that ends the run: with a command only if kill(1) knows the process by
    /// the number that /proc shows.
    fn end_command(&self) -> String {
        let is_same = identity("self").is_some_and(|(pid, _)| pid == std::process::id());
        match is_same && self.pid > 1 {
            true => format!("end that run: kill -INT {}", self.pid),
            false => "end that run".into(),
        }
    }

    /// Undoes the change unless another program has changed the setting since; returns what was
    /// found.
    fn restore(&self, screen: &Screen) -> linerate::Result<Finding> {
        let Line { pid, interface, .. } = self;
        let nothing = "so nothing has to be restored";
        let told = match self.there()? {
            None => format!("{interface} no longer exists, {nothing}"),
            Some(there) => match self.left.undo(&there, interface, screen)? {
                Undone::Restored => {
                    let (_, again) = self.left.descriptions();
                    format!("{}: {again}, as before process {pid}", there.name())
                }
                Undone::Changed(setting) => {
                    format!("the {setting} of {interface} was changed since, so it stays as it is")
                }
                Undone::Gone(what) => {
                    format!("{}: {what} no longer exists, {nothing}", there.name())
                }
                Undone::Unknown(fix) => {
                    let state = "its RSS table is neither that of a port nor the former one";
                    let why = "the device stored another table than the run set, or another \
                               program has changed it since";
                    return Ok(self.not_restored(Level::Warn, state, why, &fix));
                }
            },
        };
        Ok(Finding::new(Level::Ok, told))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { pid, start, pidns, netns, index, interface, left } = self;
        match pidns {
            Some(pidns) => write!(f, "{FORM} {pid} {start} {pidns} {netns} ")?,
            None => write!(f, "{FIRST_FORM} {pid} {start} {netns} ")?,
        }
        write!(f, "{index} {interface} {left}")
    }
}
