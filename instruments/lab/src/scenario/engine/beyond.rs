//! The second process of a side: a second instance of this program, which reads the side's packets
//! in shared memory.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use linerate_sys::process::end_with_this_thread;
use linerate_sys::seqpacket::secret_name;

use crate::far::{Answer, BEGIN, END, Refusal, Seen};
use crate::window::Window;
use crate::{Code, Error, Result};

/// The longest time for the process to start or to answer: far more than it needs on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that reads the packets of this process. Dropping the value ends the other process.
#[derive(Debug)]
pub(super) struct Beyond {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    place: String,
    cpu: usize,
}

impl Beyond {
    /// Starts the process on `cpu`; when this returns, the process is listening.
    pub fn start(program: &Path, cpu: usize, verify: bool) -> Result<Beyond> {
        // An abstract socket name belongs to the network namespace, so no file remains after a
        // crash. Both processes check the identity of their peer.
        let name =
            secret_name("linerate-lab").map_err(|e| failed(&format!("no name for it: {e}")))?;
        let place = format!("memif:{name}");
        let mut command = Command::new(program);
        let how = if verify { "verify" } else { "look" };
        // The limit allows the process to map all memory of this one, however large the pool is.
        let from = format!("{place},memory=8192");
        command.args(["lab", "look", &from, &cpu.to_string(), how]);
        // A process group of its own keeps Ctrl-C from the child: the run handles Ctrl-C and ends
        // the child in order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let spawned = end_with_this_thread(&mut command).spawn();
        let mut child = spawned.map_err(|e| failed(&format!("it cannot be started: {e}")))?;
        let (line, lines) = channel();
        let stdout = child.stdout.take().map(BufReader::new);
        let orders = child.stdin.take();
        let beyond = Beyond { child, orders, lines, place, cpu };
        let read = move || {
            let all = stdout.into_iter().flat_map(BufRead::lines);
            all.map_while(std::result::Result::ok)
                .take_while(|text| line.send(text.clone()).is_ok())
                .count()
        };
        let reader = thread::Builder::new().name("lab far".into()).spawn(read);
        reader.map_err(|e| failed(&e.to_string()))?;
        beyond.answer()?;
        Ok(beyond)
    }

    /// Returns the text of a port that sends packets to the process; options can be appended.
    pub fn port(&self) -> &str {
        &self.place
    }

    /// Returns the CPU that the process runs on.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Begins a window; returns the results since the last one.
    pub fn begin(&mut self) -> Result<Seen> {
        self.order(BEGIN)
    }

    /// Ends a window whose packets have all been sent; returns its results.
    pub fn end(&mut self) -> Result<Seen> {
        self.order(END)
    }

    fn order(&mut self, word: u8) -> Result<Seen> {
        let gone = || failed("it takes no orders any more");
        let orders = self.orders.as_mut().ok_or_else(gone)?;
        let answer = orders.write_all(&[word]).map_err(|_| gone()).and_then(|()| self.answer());
        if answer.is_err() {
            // After an error, send no more orders: a late answer would be taken for the answer to
            // the next order.
            self.orders = None;
        }
        answer
    }

    fn answer(&self) -> Result<Seen> {
        let line = self.lines.recv_timeout(PATIENCE).map_err(|e| match e {
            RecvTimeoutError::Timeout => failed("it does not answer"),
            RecvTimeoutError::Disconnected => failed("it has ended"),
        })?;
        parsed(&line)
    }
}

impl Drop for Beyond {
    fn drop(&mut self) {
        self.orders = None;
        // The process may be killed: it holds no data that is still needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Adds the other process's results to `window`.
pub(super) fn tell(seen: Seen, window: &mut Window) {
    let mut figures = vec![
        ("far_packets", seen.packets as f64),
        ("far_copied_out", seen.copied_out as f64),
        ("receipt_count", seen.receipt_count as f64),
    ];
    if seen.is_verified {
        figures.push(("far_verified", seen.verified as f64));
        figures.push(("far_lost", seen.lost as f64));
        figures.push(("far_corrupted", (seen.corrupted + seen.foreign) as f64));
    }
    figures.extend(seen.receipt_p50_ns.map(|ns| ("receipt_p50_ns", ns as f64)));
    figures.extend(seen.receipt_p99_ns.map(|ns| ("receipt_p99_ns", ns as f64)));
    figures.extend(seen.slowest_pct.map(|pct| ("slowest_pct", pct)));
    if let Some(time) = seen.time {
        figures.push(("far_cpu_ns", time.cpu_ns as f64));
        // CPU time of the other process, which belongs to this side and is not in this process's
        // own CPU time.
        window.beside_cpu_ns = Some(time.cpu_ns);
        window.threads.push(time);
    }
    window.figures.extend(figures.into_iter().map(|(name, value)| (name.to_owned(), value)));
}

/// Returns the results in a line of the process.
///
/// # Errors
/// The error of the process; `E-SYSTEM` for a line that makes no sense.
fn parsed(line: &str) -> Result<Seen> {
    let answer = serde_json::from_str::<Answer>(line);
    let answer = answer.map_err(|e| failed(&format!("it says {line:?}: {e}")))?;
    answer.map_err(Refusal::error)
}

fn failed(why: &str) -> Error {
    Error::new(Code::System, "the process at the far side of the fabric failed", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_or_is_another_is_told() {
        let why = |program: &str| Beyond::start(Path::new(program), 0, true).unwrap_err().why;
        assert!(why("/nonexistent/linerate").starts_with("it cannot be started: No such file"));
        assert_eq!(why("/bin/true"), "it has ended");
        assert!(why("/bin/echo").starts_with("it says \"lab look memif:@linerate-lab-"));
    }

    #[test]
    fn an_error_of_the_process_has_its_code_its_reason_and_its_fix() {
        let refused = Error::new(Code::Cpu, "cannot pin a thread to CPU 0", "EPERM").fix("no CPU");
        let line = serde_json::to_string(&Answer::Err(Refusal::of(&refused))).unwrap();
        let e = parsed(&line).unwrap_err();
        assert_eq!((e.code, &e.what, &e.fix), (Code::Cpu, &refused.what, &refused.fix));
        assert_eq!(e.why, "in the process at the far side of the fabric: EPERM");
        let seen = Seen { packets: 7, ..Seen::default() };
        assert_eq!(parsed(&serde_json::to_string(&Answer::Ok(seen.clone())).unwrap()), Ok(seen));
    }
}
