//! A program with a deadline: its output is read as it arrives, and the program is killed when the
//! test ends.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process, set_parent_process_death_signal};

use crate::wait::until;

/// A running program, which is killed when this value is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: Output,
    stderr: Output,
}

/// The exit status and the output of a program that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The exit status that the kernel reports.
    pub status: ExitStatus,
    /// The program's output on stdout.
    pub stdout: String,
    /// The program's output on stderr.
    pub stderr: String,
}

impl Process {
    /// Starts `command` by `spawn` with captured output; its input stays empty and open until
    /// [`Process::finish`].
    ///
    /// The program is killed when the thread on which `spawn` forks ends, even if this process is
    /// killed.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(
        mut command: Command,
        spawn: impl FnOnce(Command) -> std::io::Result<Child>,
    ) -> Process {
        let name = format!("{command:?}").replace('"', "");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: the closure makes only one system call, prctl, between fork and exec, and
        // accesses no memory of this process.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = spawn(command).unwrap_or_else(|e| panic!("{name}: {e}"));
        let stdout = Output::of(child.stdout.take().expect("it is piped"));
        let stderr = Output::of(child.stderr.take().expect("it is piped"));
        Process { name, child, stdout, stderr }
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the program's output on stderr so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Returns the program's output on stdout so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        // A program that has ended keeps its id until it is waited for, so the signal reaches no
        // other process.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Returns true while the program runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Closes the program's input, and waits until the program has ended.
    ///
    /// # Panics
    /// If it has not ended within `time`.
    #[must_use]
    pub fn finish(mut self, time: Duration) -> Finished {
        let child = &mut self.child;
        drop(child.stdin.take());
        let what = format!("the end of `{}`", self.name);
        let status = until(&what, time, || child.try_wait().expect("it is our child"));
        Finished { status, stdout: self.stdout.all(), stderr: self.stderr.all() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("`{}` said:\n{}{}", self.name, self.stdout(), self.stderr());
        }
    }
}

impl Finished {
    /// Returns the exit code; 128 plus the number of the signal if a signal ended the program, as
    /// shells do.
    #[must_use]
    pub fn code(&self) -> i32 {
        let by_signal = || 128 + self.status.signal().unwrap_or(0);
        self.status.code().unwrap_or_else(by_signal)
    }
}

/// A pipe that a thread reads until its end.
#[derive(Debug)]
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    fn of(mut pipe: impl Read + Send + 'static) -> Output {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let to = bytes.clone();
        let reader = std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut some) {
                to.lock().expect("no panic inside").extend_from_slice(&some[..n]);
            }
        });
        Output { bytes, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("no panic inside")).into_owned()
    }

    /// Returns the complete output, once all writers have closed the pipe.
    fn all(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.text()
    }
}
