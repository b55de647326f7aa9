//! SIGINT and SIGTERM: the first signal ends the run in order, the second ends it immediately.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals as Incoming;

use crate::errors::SIGNAL;

/// Number that represents the end of the standard input where a signal's number is expected.
pub const HANGUP: i32 = 0;

/// A watch for the signals that end a run.
#[derive(Debug)]
pub struct Signals(Receiver<i32>, Sender<i32>);

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
        let flag = flag.clone();
        let mut incoming = Incoming::new([SIGINT, SIGTERM])?;
        let (first, signals) = channel();
        let another = first.clone();
        thread::Builder::new().name("signals".into()).spawn(move || {
            for (i, signal) in incoming.forever().enumerate() {
                flag.store(true, Ordering::Relaxed);
                if i > 0 || first.send(signal).is_err() {
                    std::process::exit(status(signal).into());
                }
            }
        })?;
        Ok(Signals(signals, another))
    }

    /// Sends [`HANGUP`], like a signal, at the end of the standard input, which means that the
    /// process at its other end has died or wants the run to end.
    ///
    /// # Errors
    /// The error of starting the thread.
    pub fn watch_stdin(&self) -> io::Result<()> {
        let ended = self.1.clone();
        thread::Builder::new().name("stdin".into()).spawn(move || {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            let _ = ended.send(HANGUP);
        })?;
        Ok(())
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

/// Returns the exit status of a run that `signal` ended.
pub fn status(signal: i32) -> u8 {
    SIGNAL + u8::try_from(signal).unwrap_or(0)
}
