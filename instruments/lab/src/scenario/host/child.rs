//! A sender in a separate process: a second instance of this program, in the namespace of the
//! thread that starts it.
//!
//! ```text
//!  thread in west, asleep                     process in west
//!  stdin:  its part, once        ───────────► connects
//!          a round's begin and end ─────────► sends
//!  stdout: ◄────────────────── one line of JSON for each of these: ready, or what the round came to
//! ```
//!
//! It ends when its standard input does, and with the thread that has started it at the latest.
//! Between rounds it sleeps.

use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use linerate_port::wait::poll_readable;
use linerate_sys::clock::{now_and_ns, thread_cpu_ns};
use linerate_sys::process::end_with_this_thread;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::crew::{Part, Player, Round, Told, settle_down};
use super::tcp::PATIENCE;
use crate::{Code, Error, Result};

/// The first line to a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Setup {
    cpu: usize,
    part: Part,
}

/// A round by the clock that all processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Order {
    number: u64,
    from_ns: u64,
    until_ns: u64,
}

/// A process that sends. Dropping the value ends it.
#[derive(Debug)]
pub(super) struct Child {
    child: process::Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// Bytes read that are not a complete line yet.
    read: Vec<u8>,
}

impl Child {
    /// Starts the process on `cpu`, in the namespace of the calling thread. It is ready when this
    /// returns, and ends when the calling thread ends.
    pub fn start(program: &Path, cpu: usize, part: &Part) -> io::Result<Child> {
        let mut command = Command::new(program);
        command.args(["lab", "play"]);
        // A process group of its own keeps Ctrl-C from the child: the run handles Ctrl-C and ends
        // the child in order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = end_with_this_thread(&mut command).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout = stdout.ok_or_else(|| io::Error::other("it has no output"))?;
        let mut child = Child { child, stdin, stdout, read: Vec::new() };
        let setup = Setup { cpu, part: part.clone() };
        let ready: std::result::Result<(), String> =
            child.ask(&setup, Instant::now() + 2 * PATIENCE)?;
        ready.map_err(io::Error::other)?;
        Ok(child)
    }

    /// Sends a line to the process, and waits until the deadline for a line in reply.
    fn ask<T: DeserializeOwned>(&mut self, line: &impl Serialize, until: Instant) -> io::Result<T> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let gone = || io::Error::other("its process accepts no more orders");
        self.stdin.as_mut().ok_or_else(gone)?.write_all(&text)?;
        let answer = self.line(until);
        if answer.is_err() {
            // After an error, send nothing more: a late answer would be taken for the answer to the
            // next line.
            self.stdin = None;
        }
        Ok(serde_json::from_slice(&answer?)?)
    }

    fn line(&mut self, until: Instant) -> io::Result<Vec<u8>> {
        // Bytes already searched: a line may have megabytes, and comes in many reads.
        let mut searched = 0;
        loop {
            if let Some(end) = self.read[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(searched + end + 1);
                return Ok(std::mem::replace(&mut self.read, rest));
            }
            searched = self.read.len();
            let left = until.saturating_duration_since(Instant::now());
            if !poll_readable(&[self.stdout.as_fd()], Some(left))? {
                return Err(io::Error::other(self.silence()));
            }
            let mut bytes = [0; 1 << 16];
            match rustix::io::read(&self.stdout, &mut bytes)? {
                0 => return Err(io::Error::other("its process has ended")),
                n => self.read.extend_from_slice(&bytes[..n]),
            }
        }
    }

    /// Returns why the process does not answer.
    fn silence(&self) -> String {
        let id = self.child.id();
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        if stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')) {
            // A user can stop the child without this process, because it has a process group of its
            // own.
            return format!("its process {id} was stopped (kill -CONT {id})");
        }
        "its process does not answer".into()
    }
}

impl Player for Child {
    fn play(&mut self, round: Round) -> Told {
        match self.ask(&Order::of(round), round.until + 2 * PATIENCE) {
            Ok(told) => told,
            Err(e) => Told { failed: 1, failure: Some(format!("west: {e}")), ..Told::default() },
        }
    }

    fn is_elsewhere(&self) -> bool {
        true
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.stdin = None;
        // The process may be killed: it holds no data that is still needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Order {
    fn of(round: Round) -> Order {
        let (at, ns) = now_and_ns();
        let on_the_clock = |time: Instant| match time.checked_duration_since(at) {
            Some(later) => ns.saturating_add(nanos(later)),
            None => ns.saturating_sub(nanos(at.saturating_duration_since(time))),
        };
        let (from_ns, until_ns) = (on_the_clock(round.from), on_the_clock(round.until));
        Order { number: round.number, from_ns, until_ns }
    }

    fn round(self) -> Round {
        let (at, ns) = now_and_ns();
        let instant = |time_ns: u64| match time_ns.checked_sub(ns) {
            Some(later) => at + Duration::from_nanos(later),
            None => at.checked_sub(Duration::from_nanos(ns - time_ns)).unwrap_or(at),
        };
        let (from, until) = (instant(self.from_ns), instant(self.until_ns));
        Round { number: self.number, from, until }
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Plays the part described in the first line of standard input, in the rounds of the further
/// lines.
///
/// # Errors
/// `E-EXPERIMENT` for a line that makes no sense; whatever its pipes say.
pub fn serve() -> Result<()> {
    let mut lines = io::stdin().lock().lines();
    let failed = |e: io::Error| Error::new(Code::System, "a sender cannot go on", e.to_string());
    let Some(first) = lines.next() else { return Err(unasked("it has no part")) };
    let Setup { cpu, part } = parse(&first.map_err(failed)?)?;
    settle_down(&[cpu]);
    let player = part.open();
    answer(&player.as_ref().map(drop).map_err(io::Error::to_string)).map_err(failed)?;
    let Ok(mut player) = player else { return Ok(()) };
    for line in lines {
        let order: Order = parse(&line.map_err(failed)?)?;
        let before = thread_cpu_ns();
        let mut told = player.play(order.round());
        told.cpu_ns += thread_cpu_ns().saturating_sub(before);
        answer(&told).map_err(failed)?;
    }
    Ok(())
}

fn answer(what: &impl Serialize) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, what)?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

fn parse<T: DeserializeOwned>(line: &str) -> Result<T> {
    serde_json::from_str(line).map_err(|e| unasked(&format!("{line:.80?}: {e}")))
}

fn unasked(why: &str) -> Error {
    Error::new(Code::Experiment, "cannot send", why)
        .fix("only `linerate lab run` starts this process")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_the_same_in_another_process() {
        let from = Instant::now();
        let round = Round { number: 7, from, until: from + Duration::from_secs(2) };
        let text = serde_json::to_string(&Order::of(round)).unwrap();
        let told = parse::<Order>(&text).unwrap().round();
        assert_eq!(told.number, 7);
        for (one, other) in [(round.from, told.from), (round.until, told.until)] {
            let apart = one.max(other) - one.min(other);
            assert!(apart < Duration::from_secs(1), "{apart:?}");
        }
        assert!(parse::<Order>("hello").unwrap_err().why.contains("hello"));
    }

    /// Returns a child that answers with what it is sent.
    fn echo() -> Child {
        let mut cat = Command::new("cat");
        let mut child = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Child { child, stdin, stdout, read: Vec::new() }
    }

    #[test]
    fn a_line_of_many_reads_and_the_one_behind_it_are_told_apart() {
        let mut child = echo();
        let long = "x".repeat(100_000);
        child.stdin.as_mut().unwrap().write_all(format!("{long}\nend\n").as_bytes()).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        assert_eq!(child.line(until).unwrap().len(), long.len() + 1);
        assert_eq!(child.line(until).unwrap(), b"end\n");
    }

    #[test]
    fn a_process_that_was_stopped_is_told_from_one_that_does_not_answer() {
        let mut child = echo();
        let id = rustix::process::Pid::from_child(&child.child);
        let mut silence = || child.line(Instant::now()).unwrap_err().to_string();
        assert_eq!(silence(), "its process does not answer");
        rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while !silence().contains("was stopped") {
            assert!(Instant::now() < until, "{}", silence());
        }
    }

    #[test]
    fn a_program_that_is_another_is_told() {
        let part = Part::Tcp(super::super::tcp::Connected::for_tests());
        let why =
            |program: &str| Child::start(Path::new(program), 0, &part).unwrap_err().to_string();
        assert!(why("/nonexistent/linerate").starts_with("No such file"));
        let ended = why("/bin/true");
        assert!(ended.contains("has ended") || ended.contains("Broken pipe"), "{ended}");
    }
}
