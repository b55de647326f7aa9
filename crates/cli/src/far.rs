//! The second process of a self-test: it runs this program again, and maps the packet memory of the
//! first process.
//!
//! ```text
//!   this process                                   the far one: forward memif:… sink: --beside
//!   gen ──► path ──► memif (client) ══ memory ══► memif (server) ──► sink, verifies
//!        stdin ──────────── its end: finish ─────────►
//!        stdout ◄─────────── "ready", then its document
//! ```
//!
//! It ends at the end of its standard input, so that it cannot outlive the first process.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use linerate::{Registry, Verified};
use linerate_ctl::report::{FarReport, Passed};
use linerate_sys::seqpacket::secret_name;
use serde_json::Value;

/// The line that the second process prints once its ports are open.
pub const READY: &str = "ready";
/// The path of this program, which stays valid if its file is replaced.
const SELF: &str = "/proc/self/exe";
/// Longest time for the second process to get ready, and to end: much more than it needs on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that receives this process's packets in shared memory. Dropping the handle ends the
/// process.
#[derive(Debug)]
pub struct Far {
    child: Child,
    lines: Receiver<String>,
    port: String,
    /// True if it was told to end, and has reported.
    has_reported: bool,
}

impl Far {
    /// Starts the second process; returns when it listens.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    pub fn start(drivers: &Registry) -> Result<Far, String> {
        Far::start_as(SELF, drivers)
    }

    fn start_as(program: &str, drivers: &Registry) -> Result<Far, String> {
        // An abstract socket name leaves no file, however the process ends. Both sides check the
        // peer's process.
        let socket = secret_name("linerate-forward")
            .map_err(|e| format!("cannot choose a name for its socket: {e}"))?;
        let mut pairs = drivers.drivers().iter().filter_map(|it| it.between_processes(&socket));
        let [server, port] = pairs.next().ok_or("no driver connects to another process")?;
        let mut command = Command::new(program);
        command.args(["forward", &server, "sink:", "--beside", "--json"]);
        // A group of its own: Ctrl-C reaches only the first process, which then ends the second one
        // in order.
        command.arg0("linerate").process_group(0);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("a second process cannot be started: {e}"))?;
        let (line, lines) = channel();
        let stdout = child.stdout.take().map(BufReader::new);
        // If the thread cannot be started, the channel is closed, and the receive below fails.
        let _ = thread::Builder::new().name("far".into()).spawn(move || {
            let all = stdout.into_iter().flat_map(BufRead::lines);
            all.map_while(Result::ok).take_while(|text| line.send(text.clone()).is_ok()).count()
        });
        let far = Far { child, lines, port, has_reported: false };
        match far.lines.recv_timeout(PATIENCE) {
            Ok(line) if line == READY => Ok(far),
            Ok(line) => Err(format!("the second process reported: {}", why(&line))),
            Err(_) => Err("the second process did not open its ports in time".into()),
        }
    }

    /// Returns the text of a port whose packets the second process reads in place.
    pub fn port(&self) -> &str {
        &self.port
    }

    /// Returns the second process's id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Orders the process to end, and waits for its result.
    ///
    /// # Errors
    /// The reason why there is no result.
    pub fn finish(mut self) -> Result<(FarReport, Verified), String> {
        drop(self.child.stdin.take());
        let line = self.lines.recv_timeout(PATIENCE);
        let line = line.map_err(|_| match self.child.try_wait() {
            Ok(Some(status)) => format!("the second process has ended: {status}"),
            _ => "the second process did not end in time".to_owned(),
        })?;
        self.has_reported = true;
        report(self.process(), &line)
            .ok_or_else(|| format!("the second process reported: {}", why(&line)))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // A process that has reported ends by itself, and then the thread that reads its output;
        // any other is killed.
        let ends = || self.lines.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Disconnected);
        if !(self.has_reported && ends()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Returns the CPU time of all threads of a process so far; `None` if the kernel does not report
/// it.
///
/// Source: Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat: the first number is time
///         on a CPU.
pub fn cpu_time(process: u32) -> Option<Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut sum = None;
    for task in tasks.flatten() {
        // A thread may have ended since; its time is not known then.
        let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
        let ns: u64 = text.split_whitespace().next()?.parse().ok()?;
        *sum.get_or_insert(0) += ns;
    }
    sum.map(Duration::from_nanos)
}

/// Extracts the report from the process's JSON document; `None` if it is not the document of a run.
fn report(process: u32, document: &str) -> Option<(FarReport, Verified)> {
    let document: Value = serde_json::from_str(document).ok()?;
    let (ledger, port, found) =
        (document.get("ledger")?, document.get("ports")?.get(0)?, document.get("verify")?);
    let n = |of: &Value, key: &str| of.get(key)?.as_u64();
    let mut verify = Verified::default();
    verify.packets = n(found, "packets")?;
    verify.lost = n(found, "lost")?;
    verify.reordered = n(found, "reordered")?;
    verify.duplicated = n(found, "duplicated")?;
    verify.late = n(found, "late")?;
    verify.corrupted = n(found, "corrupted")?;
    verify.foreign = n(found, "foreign")?;
    let rx = port.get("rx")?;
    let received = Passed { packets: n(rx, "packets")?, bytes: n(rx, "bytes")? };
    let far = FarReport {
        process,
        received,
        // All received packets must have been sent to the sink.
        whole: ledger.get("balanced")?.as_bool()? && n(ledger, "sent")? == received.packets,
        verified: verify.packets,
        copied_bytes: n(port, "copied_bytes"),
        cpu_seconds: document.get("cost")?.get("cpu_seconds")?.as_f64()?,
    };
    Some((far, verify))
}

/// Returns the error's cause in a line that is not a result.
fn why(line: &str) -> String {
    let document: Option<Value> = serde_json::from_str(line).ok();
    let part = |key| Some(document.as_ref()?.get("error")?.get(key)?.as_str()?.to_owned());
    match (part("what"), part("why")) {
        (Some(what), Some(why)) => format!("{what}: {why}"),
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_or_says_something_else_is_told() {
        let start = |program| Far::start_as(program, &Registry::default());
        let why = start("/nonexistent/linerate").unwrap_err();
        assert!(why.starts_with("a second process cannot be started: No such file"), "{why}");
        let why = start("/bin/echo").unwrap_err();
        assert!(why.starts_with("the second process reported: forward memif:@"), "{why}");
        assert_eq!(
            start("/bin/true").unwrap_err(),
            "the second process did not open its ports in time"
        );
    }

    #[test]
    fn a_refusal_is_told_in_its_own_words_and_is_no_result() {
        let line =
            r#"{"schema":"linerate-error/1","error":{"code":"E","what":"a","why":"b","fix":""}}"#;
        assert_eq!((why(line).as_str(), report(1, line)), ("a: b", None));
        assert_eq!(why("Killed"), "Killed");
    }

    #[test]
    fn cpu_time_is_that_of_all_threads() {
        // /proc may be hidden, or the kernel without this file: nothing to measure.
        if std::path::Path::new("/proc/self/schedstat").exists() {
            assert!(cpu_time(std::process::id()).unwrap() > Duration::ZERO);
        }
        assert_eq!(cpu_time(u32::MAX), None);
    }
}
