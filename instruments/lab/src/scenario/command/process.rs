//! One run of a program: bounded in time and output, and always ended.
//!
//! It is the leader of a process group, which is killed with it; and the kernel kills it if the
//! thread ends that started it, however this program ends. A process that has left the group is not
//! killed; if it keeps the program's output open, the run fails a moment after the program's end.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

use linerate_sys::process::{children_cpu_ns, end_with_this_thread};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::{Code, Error, Result};

/// Interval at which a waiting run checks whether it must stop.
const LOOK: Duration = Duration::from_millis(100);
/// Time for reading the rest of the output after the program's end.
const GRACE: Duration = Duration::from_secs(1);
/// The limit of a program's standard output; a program that prints more is refused.
const STDOUT_BYTES_MAX: u64 = 16 << 20;

/// Bytes kept from the end of the standard error.
const STDERR_BYTES_KEPT: usize = 4096;

/// The error of an output that is still open after [`GRACE`].
const KEPT_OPEN: &str = "a process that it started keeps its output open: let the program wait for \
                         that process, or redirect the process's output";

/// The result of a run.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) stdout: Vec<u8>,
    pub(super) wall_ns: u64,
    /// CPU time of the process and of all its descendants that were waited for.
    pub(super) cpu_ns: u64,
    /// Run delay of the first thread, because the kernel keeps no sum for a process.
    pub(super) run_delay_ns: u64,
}

/// Runs a program to its end.
///
/// # Errors
/// `E-SYSTEM` if it cannot be started, does not end in time, leaves a process that keeps its output
/// open, prints too much, or fails: with the end of its complaint.
pub(super) fn run(
    program: &Path,
    args: &[OsString],
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<Ran> {
    run_telling(program, args, timeout, stop, 1)
}

/// Runs a program to its end; if it fails, the error contains the last `lines` of its standard
/// error.
///
/// # Errors
/// As [`run`].
pub(super) fn run_telling(
    program: &Path,
    args: &[OsString],
    timeout: Duration,
    stop: &AtomicBool,
    lines: usize,
) -> Result<Ran> {
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
    let failed = |why: String| Error::new(Code::System, format!("{name} failed"), why);
    let mut command = Command::new(program);
    command.args(args).process_group(0).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (cpu_ns, start) = (children_cpu_ns(), Instant::now());
    let mut child =
        end_with_this_thread(&mut command).spawn().map_err(|e| failed(e.to_string()))?;
    let pipes = (child.stdout.take(), child.stderr.take());
    let over = AtomicBool::new(false);
    let (stdout, stderr, ended) = scope(|s| {
        let mut started = Started { child, reaped: false, over: &over };
        let stdout = Builder::new().spawn_scoped(s, || whole(Output::of(pipes.0, &over)))?;
        // Read stderr on a thread: a full pipe would block the program until its deadline kills it.
        let stderr = Builder::new().spawn_scoped(s, || tail(Output::of(pipes.1, &over)))?;
        let ended = started.wait(start + timeout, start, stop);
        let (stdout, stderr) = (joined(stdout), joined(stderr));
        // If the program was killed, an output that stays open is not the cause to report.
        let ended = ended?;
        Ok((stdout, stderr?, ended))
    })
    .map_err(|e: io::Error| match e.kind() {
        io::ErrorKind::Interrupted => failed("it was killed, because the run was ended".into()),
        io::ErrorKind::TimedOut => {
            failed(format!("it did not end within {} s and was killed", timeout.as_secs()))
        }
        _ => failed(e.to_string()),
    })?;
    let Ended { status, wall_ns, run_delay_ns } = ended;
    // A program that prints too much is killed by SIGPIPE, which is not the cause to report.
    if stdout.as_ref().is_ok_and(|stdout| stdout.len() as u64 > STDOUT_BYTES_MAX) {
        return Err(failed(format!("it printed more than {} MiB", STDOUT_BYTES_MAX >> 20)));
    }
    if !status.success() {
        return Err(failed(complaint(status, &stderr, lines)));
    }
    let stdout = stdout.map_err(|e| failed(e.to_string()))?;
    Ok(Ran { stdout, wall_ns, cpu_ns: children_cpu_ns().saturating_sub(cpu_ns), run_delay_ns })
}

/// A child process and its process group, killed when this is dropped unless it has ended.
struct Started<'a> {
    child: Child,
    reaped: bool,
    /// Set when the child is ended, so that the readers of its output end, too.
    over: &'a AtomicBool,
}

/// The exit status and end time of a process.
struct Ended {
    status: ExitStatus,
    wall_ns: u64,
    run_delay_ns: u64,
}

impl Started<'_> {
    /// Waits for the child's end until `deadline`; then kills it with all processes that it
    /// started.
    fn wait(&mut self, deadline: Instant, start: Instant, stop: &AtomicBool) -> io::Result<Ended> {
        let in_time = self.has_ended_by(deadline, stop);
        let wall_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // The ended process is not yet reaped, so its accounting in /proc still exists and its pid
        // is not reused.
        let run_delay_ns = self.run_delay_ns().unwrap_or(0);
        let status = self.end()?;
        match in_time? {
            true => Ok(Ended { status, wall_ns, run_delay_ns }),
            false if stop.load(Ordering::Relaxed) => Err(io::ErrorKind::Interrupted.into()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Waits until the process ends, `deadline` passes or `stop` is set; returns true if it ended.
    fn has_ended_by(&self, deadline: Instant, stop: &AtomicBool) -> io::Result<bool> {
        let pid = self.pid().ok_or(Errno::SRCH)?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_over = left.is_zero() || stop.load(Ordering::Relaxed);
            let left = Timespec::try_from(left.min(LOOK)).map_err(|_| Errno::INVAL)?;
            let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(0) | Err(Errno::INTR) if !is_over => {}
                Err(Errno::INTR) => return Ok(false),
                ended => return Ok(ended? > 0),
            }
        }
    }

    /// Kills the rest of the process group, so that none of its processes keeps the pipes open, and
    /// reaps the child.
    fn end(&mut self) -> io::Result<ExitStatus> {
        self.over.store(true, Ordering::Relaxed);
        if let Some(pid) = self.pid() {
            // An error means that no process of the group is left to kill.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let status = self.child.wait()?;
        self.reaped = true;
        Ok(status)
    }

    fn run_delay_ns(&self) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.child.id())).ok()?;
        text.split(' ').nth(1)?.parse().ok()
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if !self.reaped {
            // Ignore the error: this value is dropped because of another error, which is reported.
            let _ = self.end();
        }
    }
}

/// The output of a program. Once the program has ended and [`GRACE`] is over, reads fail with
/// [`KEPT_OPEN`]: a process in another process group may keep the pipe open for any time.
struct Output<'a, P> {
    pipe: P,
    /// True once the program is ended.
    over: &'a AtomicBool,
    /// The end of the grace, once the program is ended.
    until: Option<Instant>,
}

impl<'a, P: Read + AsFd> Output<'a, P> {
    fn of(pipe: Option<P>, over: &'a AtomicBool) -> Option<Output<'a, P>> {
        pipe.map(|pipe| Output { pipe, over, until: None })
    }

    /// Returns the time since the end of the grace; `None` before it.
    fn late(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let is_over = self.over.load(Ordering::Relaxed);
        let until = is_over.then(|| *self.until.get_or_insert(now + GRACE));
        until.and_then(|until| now.checked_duration_since(until))
    }
}

impl<P: Read + AsFd> Read for Output<'_, P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let look = Timespec::try_from(LOOK).map_err(|_| Errno::INVAL)?;
        loop {
            let late = self.late();
            let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
            match poll(&mut fds, Some(&look)) {
                // What still comes is read for as long again.
                _ if late.is_some_and(|late| late >= GRACE) => break,
                Ok(0) | Err(Errno::INTR) if late.is_some() => break,
                Ok(0) | Err(Errno::INTR) => {}
                ready => {
                    ready?;
                    return self.pipe.read(buffer);
                }
            }
        }
        Err(io::Error::other(KEPT_OPEN))
    }
}

/// Reads the output, up to one byte beyond the limit.
fn whole(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // The pipe is dropped at the end of this block, so a program that writes more gets EPIPE.
        pipe.take(STDOUT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Returns the end of the output, so far if it stays open.
fn tail(pipe: Option<impl Read>) -> io::Result<VecDeque<u8>> {
    let (mut kept, mut piece) = (VecDeque::new(), [0; STDERR_BYTES_KEPT]);
    let Some(mut pipe) = pipe else { return Ok(kept) };
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => return Ok(kept),
            // Cannot panic: a read returns at most the length of its buffer.
            Ok(n) => kept.extend(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // It is still open: the end so far is all that is needed.
            Err(e) if e.kind() == io::ErrorKind::Other => return Ok(kept),
            Err(e) => return Err(e),
        }
        kept.drain(..kept.len().saturating_sub(STDERR_BYTES_KEPT));
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that reads it panicked")))
}

/// Describes the exit status and the last `lines` of the standard error.
fn complaint(status: ExitStatus, stderr: &VecDeque<u8>, lines: usize) -> String {
    let bytes: Vec<u8> = stderr.iter().copied().collect();
    let text = String::from_utf8_lossy(&bytes);
    let mut last: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    last.drain(..last.len().saturating_sub(lines));
    let last = if last.is_empty() { "it gave no reason".into() } else { last.join("\n  ") };
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    };
    format!("{how}: {last}")
}
