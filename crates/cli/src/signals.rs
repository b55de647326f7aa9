//! SIGINT, SIGTERM and SIGHUP, the end of a terminal: the first signal ends the run in order, a
//! later one ends it immediately.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals as Incoming;

use crate::errors::SIGNAL;
use crate::{progress, undo};

/// Number that represents the end of the standard input where a signal's number is expected.
pub const HANGUP: i32 = 0;

/// Time after the first signal in which another is taken for the same request: timeout(1) and some
/// service managers signal a process and its process group, and a terminal that closes may send two
/// signals.
const SAME: Duration = Duration::from_millis(300);

/// Temporary folders to remove when a later signal ends the process, which then drops no value.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Number of a signal in the masks of /proc/self/status.
const SIGHUP_BIT: u64 = 1 << (SIGHUP - 1);

/// A watch for the signals that end a run.
#[derive(Debug)]
pub struct Signals(Receiver<i32>);

impl Signals {
    /// Starts to watch for the signals, on a thread of its own.
    ///
    /// # Errors
    /// Errors of sigaction(2), or of starting the thread.
    pub fn watch() -> io::Result<Signals> {
        Signals::telling(&Arc::default())
    }

    /// Watches as [`Signals::watch`] does, and sets `flag` at the first signal: for code that
    /// polls.
    ///
    /// # Errors
    /// As above.
    pub fn telling(flag: &Arc<AtomicBool>) -> io::Result<Signals> {
        let incoming = Incoming::new([SIGINT, SIGTERM])?;
        // A program under nohup(1) does not end with its terminal.
        if !ignores_hangup() {
            incoming.add_signal(SIGHUP)?;
        }
        Signals::of(incoming, flag.clone()).map(|(signals, _)| signals)
    }

    /// Watches SIGINT and the standard input, whose end gives [`HANGUP`]: the process at its other
    /// end has died or wants the run to end. SIGTERM and SIGHUP are left to that process, because a
    /// service's manager and a terminal send them to both.
    ///
    /// # Errors
    /// Errors of sigaction(2), or of starting a thread.
    pub fn beside() -> io::Result<Signals> {
        for signal in [SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::default())?;
        }
        let (signals, ended) = Signals::of(Incoming::new([SIGINT])?, Arc::default())?;
        thread::Builder::new().name("stdin".into()).spawn(move || {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            let _ = ended.send(HANGUP);
        })?;
        Ok(signals)
    }

    /// Starts the thread that receives signals; returns a sender for other ends of the run, too.
    fn of(mut incoming: Incoming, flag: Arc<AtomicBool>) -> io::Result<(Signals, Sender<i32>)> {
        let (first, signals) = channel();
        let another = first.clone();
        thread::Builder::new().name("signals".into()).spawn(move || {
            let mut since = None;
            for signal in incoming.forever() {
                flag.store(true, Ordering::Relaxed);
                let is_first = since.is_none();
                let since = *since.get_or_insert_with(Instant::now);
                if !is_first && since.elapsed() < SAME {
                    continue;
                }
                if !is_first || first.send(signal).is_err() {
                    if undo::is_recorded() {
                        let left = "the interfaces stay changed; restore them by";
                        // Not `note`: another thread may wait for a terminal that is stopped.
                        progress::note_soon(&format!("note: {left}: {}\n", undo::UNDO));
                    }
                    remove_folders();
                    std::process::exit(status(signal).into());
                }
            }
        })?;
        Ok((Signals(signals), another))
    }

    /// Waits for a signal, or for `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<i32> {
        match self.0.recv_timeout(timeout) {
            Ok(signal) => Some(signal),
            Err(RecvTimeoutError::Timeout) => None,
            // Unreachable while the process runs, because the watching thread never ends; keep
            // waiting.
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(timeout);
                None
            }
        }
    }
}

/// Registers a temporary folder, which a signal that ends the process immediately removes with its
/// contents.
pub fn register_folder(folder: &Path) {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(folder.to_owned());
}

/// Ends the registration of a folder, because its owner removes it.
pub fn unregister_folder(folder: &Path) {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| path != folder);
}

/// Removes the registered folders.
fn remove_folders() {
    for folder in FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // A folder that cannot be removed is left to the system, as by its owner.
        let _ = fs::remove_dir_all(folder);
    }
}

/// Lets a write beyond the limit of file sizes (RLIMIT_FSIZE) fail: its signal would end a process
/// that has changed an interface, and would end it without a message.
///
/// Source: setrlimit(2).
pub fn survive_file_limit() {
    // Without a handler the signal keeps its effect, and the command can run.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Returns true if this process was started with SIGHUP ignored.
///
/// Source: proc_pid_status(5), SigIgn.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & SIGHUP_BIT != 0)
}

/// Returns the exit status of a run that `signal` ended.
pub fn status(signal: i32) -> u8 {
    SIGNAL + u8::try_from(signal).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_are_registered_are_removed_by_a_signal_that_ends_the_process() {
        let at = |n| {
            let name = format!("linerate-signals-{}-{n}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("data"), b"1").unwrap();
            register_folder(&folder);
            folder
        };
        let (left, kept) = (at(1), at(2));
        unregister_folder(&kept);
        remove_folders();
        assert!(!left.exists() && kept.exists());
        fs::remove_dir_all(&kept).unwrap();
    }
}
