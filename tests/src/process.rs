//! A program with a deadline: its output is read as it arrives, and the program is killed with its
//! children when the test ends.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_sys::process::end_with_this_thread;
pub use rustix::process::Signal;
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use crate::wait::until_true;

/// A running program in a process group of its own; the group is killed when this value is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    /// True after the program was waited for: its id, which its group has too, may be that of
    /// another process.
    is_reaped: bool,
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
    /// killed. A terminal's Ctrl-C reaches this process only, whose end then kills the program. The
    /// program's children are killed only if this value is dropped.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(
        mut command: Command,
        spawn: impl FnOnce(Command) -> std::io::Result<Child>,
    ) -> Process {
        let name = format!("{command:?}").replace('"', "");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        end_with_this_thread(&mut command);
        let mut child = spawn(command).unwrap_or_else(|e| panic!("{name}: {e}"));
        let stdout = Output::of(child.stdout.take().expect("it is piped"));
        let stderr = Output::of(child.stderr.take().expect("it is piped"));
        Process { name, child, is_reaped: false, stdout, stderr }
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
        // A program that has ended keeps its id until `finish` waits for it, so the signal reaches
        // no other process.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Returns true while the program runs.
    pub fn runs(&mut self) -> bool {
        // NOWAIT leaves the program's id to it.
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(Pid::from_child(&self.child)), how), Ok(None))
    }

    /// Returns the CPU time that the program has used, in ticks: a hundredth of a second each on
    /// every Linux.
    #[must_use]
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        // The fields start after the name, which may contain blanks; utime and stime are the 12th
        // and 13th.
        let words = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        words.skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum()
    }

    /// Closes the program's input, and waits until the program has ended and its output is
    /// complete.
    ///
    /// # Panics
    /// If it has not ended within `time`, or a child of it keeps the output open for as long again.
    #[must_use]
    pub fn finish(mut self, time: Duration) -> Finished {
        drop(self.child.stdin.take());
        until_true(&format!("the end of `{}`", self.name), time, || !self.runs());
        // The program is waited for only after its output: until then its group can be killed.
        let why = "the program has ended, and a child of it may run on";
        let what = format!("the end of the output of `{}`: {why}", self.name);
        let (stdout, stderr) = (self.stdout.all(&what, time), self.stderr.all(&what, time));
        let status = self.child.wait().expect("it is our child");
        self.is_reaped = true;
        Finished { status, stdout, stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_reaped {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            // The program itself may have changed its group.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
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
    ///
    /// # Panics
    /// If they have not within `time`; the message contains `what`.
    fn all(&mut self, what: &str, time: Duration) -> String {
        if let Some(reader) = self.reader.take() {
            until_true(what, time, || reader.is_finished());
            let _ = reader.join();
        }
        self.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::{SOON, until};

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(command, |mut command| command.spawn())
    }

    /// Returns true if a process has ended, whether or not its parent has waited for it.
    fn has_ended(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    }

    /// Returns the process id that a script has printed.
    fn printed(process: &Process) -> String {
        until("a process id", SOON, || Some(process.stdout().strip_suffix('\n')?.to_owned()))
    }

    #[test]
    fn a_dropped_program_is_killed_with_its_children() {
        let mut process = shell("sleep 100 & echo $!; wait");
        let child = printed(&process);
        assert!(process.runs() && !has_ended(&child));
        drop(process);
        until_true("the end of the child", SOON, || has_ended(&child));
    }

    #[test]
    fn output_that_a_child_keeps_open_is_waited_for_with_a_limit() {
        let mut process = shell("sleep 100 & echo $!");
        let child = printed(&process);
        until_true("the end of the shell", SOON, || !process.runs());
        let finish = move || process.finish(Duration::from_millis(100));
        let why = std::panic::catch_unwind(std::panic::AssertUnwindSafe(finish)).unwrap_err();
        let why = why.downcast::<String>().expect("a message");
        assert!(why.contains("the end of the output of `sh"), "{why}");
        until_true("the end of the child", SOON, || has_ended(&child));
    }
}
