//! The command in a process of its own, with a device that is ready again after each packet.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use linerate::{
    Batch, Caps, Driver, Local, Moved, Needs, Obtained, OpenContext, Opened, Plan, QueueOps,
    Registry, Spec, Want,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::args::{self, Args};
use crate::forward::forward;
use crate::screen::Screen;

/// Longest wait for a note or an end, on a machine that is busy with other programs.
const LONG: Duration = Duration::from_secs(60);
/// Name of the test that the child process runs.
const CHILD: &str = "run::live::command_with_a_restless_device";

/// The driver of `restless:`, whose device has one packet at each poll and whose descriptor is
/// always readable: one packet an irq, as many irqs as the worker's share of a CPU allows.
struct Restless;

impl Driver for Restless {
    fn name(&self) -> &'static str {
        "restless"
    }

    fn parse(&self, spec: &Spec) -> linerate::Result<Box<dyn Plan>> {
        spec.finish().map(|()| Box::new(Device) as Box<dyn Plan>)
    }
}

struct Device;

impl Plan for Device {
    fn needs(&self) -> linerate::Result<Needs> {
        Ok(Needs { packet_max_bytes: 60, ..Needs::default() })
    }

    fn open(&self, _: &mut OpenContext<'_>) -> linerate::Result<Opened> {
        // A stream without a second end is at its end, which a reader is told again and again.
        let (ready, _) = UnixStream::pair().unwrap();
        Ok(Opened::single(Ready(ready), Obtained::new("restless", "a packet a poll", 60)))
    }
}

struct Ready(UnixStream);

impl QueueOps for Ready {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let start = out.len();
        mem.alloc(out, budget.min(1));
        out.iter_mut().skip(start).for_each(|skb| skb.commit(60));
        out.count_from(start)
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }

    fn caps(&self) -> Caps {
        Caps::default()
    }
}

impl AsFd for Ready {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
#[ignore = "another test starts it in a process of its own"]
fn command_with_a_restless_device() {
    let drivers = Registry::with(&[&Restless]);
    let words = "linerate forward restless:x sink:,blind --moderation interrupt --quiet";
    let args::Command::Forward(args) = Args::parse_from(words.split(' ')).command else { panic!() };
    let screen = Screen::new(false, true, &args.ports(), &drivers);
    forward(&args, &drivers, &screen).unwrap();
}

/// A process that is killed when the test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// S1.7. The device is ready at once, so that a hundredth of a CPU is enough for 1000 irqs a
/// second.
#[test]
fn a_port_with_few_packets_to_an_irq_is_told_once_while_the_command_runs() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", CHILD, "--ignored", "--nocapture"]).stdout(Stdio::null());
    let mut child = Killed(child.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(child.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let (sender, notes) = channel();
    thread::spawn(move || lines.for_each(|line| drop(sender.send(line))));
    let is_note = |line: &String| line.starts_with("note: port 'x': poor use of the CPU: ");
    let until = Instant::now() + LONG;
    let note = std::iter::from_fn(|| {
        notes.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    });
    let note = note.into_iter().find(is_note).expect("a note while the run goes on");
    assert!(note.contains(" 1.0 packets an irq at "), "{note}");
    assert!(note.ends_with(" (rule: fewer than 2 at 1000 or more)"), "{note}");
    assert!(child.0.try_wait().unwrap().is_none(), "it runs");
    // Wait for one more check, which must not print the note again.
    let more = notes.recv_timeout(super::watch::CHECK_SELDOM + Duration::from_millis(500));
    kill_process(Pid::from_child(&child.0), Signal::INT).unwrap();
    let rest: Vec<String> = more.into_iter().chain(notes).collect();
    assert!(!rest.iter().any(is_note), "{rest:?}");
    assert!(child.0.wait().unwrap().success(), "it ends in order: {rest:?}");
}
