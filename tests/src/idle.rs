//! The definition of idle that the README, the documentation and all tests of it share.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use linerate::{Batch, Port};

use crate::netns::Netns;
use crate::process::Process;
use crate::wait::SOON;

/// Time for which programs are observed.
const WINDOW: Duration = Duration::from_secs(5);
/// Time without more than two wake-ups, after which a program has opened its ports.
const QUIET: Duration = Duration::from_secs(1);
/// Wake-ups that a program may have in [`WINDOW`], over all its threads: two a second.
const WAKEUPS_MAX: u64 = 2 * WINDOW.as_secs();
/// CPU time that a program may use in [`WINDOW`]: half a per cent.
const CPU_MAX: Duration = WINDOW.checked_div(200).expect("two hundred is not zero");

/// Environment variable that passes a role to a program started by [`child`].
const ROLE: &str = "LINERATE_IDLE_ROLE";

/// Starts the test `a_program_at_rest` of this test binary in `netns` as a separate program with a
/// role.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn child(netns: &Netns, role: &str) -> Process {
    let this = std::env::current_exe().expect("the test runs from a file");
    let mut command = Command::new(this);
    command.args(["--exact", "a_program_at_rest", "--ignored", "--nocapture"]).env(ROLE, role);
    netns.start(command)
}

/// Returns the role that [`child`] passed to this program.
///
/// # Panics
/// If it has none.
#[must_use]
pub fn role() -> String {
    std::env::var(ROLE).expect("the test that starts it says what it is to be")
}

/// Receives from `port` and drops the packets; sleeps while there are none.
///
/// # Panics
/// If it cannot wait.
pub fn turn_port(mut port: Port) {
    let mut batch = Batch::with_capacity(64);
    while port.wait(None).expect("a port that is open") {
        port.rx(&mut batch);
        batch.clear();
    }
}

/// Resources that a process has used, over all its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Used {
    /// Number of times that the process went to sleep; each ends in a wake-up.
    sleeps: u64,
    /// Time on a CPU.
    cpu: Duration,
}

fn used(process: &Process) -> Used {
    let mut used = Used { sleeps: 0, cpu: Duration::ZERO };
    let threads = fs::read_dir(format!("/proc/{}/task", process.id())).expect("it runs");
    for thread in threads {
        let path = thread.expect("it runs").path();
        // Skip a thread that ended since the folder was read.
        let Ok(status) = fs::read_to_string(path.join("status")) else { continue };
        let sleeps = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        used.sleeps += sleeps.and_then(|n| n.trim().parse::<u64>().ok()).expect("a number");
        // `schedstat` is finer than the ticks in `stat`: its first number is the time on a CPU in
        // nanoseconds.
        let Ok(schedstat) = fs::read_to_string(path.join("schedstat")) else { continue };
        let ns = schedstat.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        used.cpu += Duration::from_nanos(ns);
    }
    used
}

/// Waits until every program has had a quiet while, each at its own time, so that the opening of
/// their ports is not measured.
fn settle(programs: &[(&str, Process)]) {
    let mut busy: Vec<_> = programs
        .iter()
        .map(|(name, process)| (*name, process, used(process), Instant::now()))
        .collect();
    let deadline = Instant::now() + SOON;
    while !busy.is_empty() {
        for (_, process, before, since) in &mut busy {
            let now = used(process);
            if now.sleeps > before.sleeps + 2 {
                (*before, *since) = (now, Instant::now());
            }
        }
        busy.retain(|(.., since)| since.elapsed() <= QUIET);
        let names: Vec<&str> = busy.iter().map(|(name, ..)| *name).collect();
        assert!(Instant::now() < deadline, "waited {SOON:?} for {QUIET:?} of quiet of {names:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that each program uses at most 0.5 % of a CPU and 2 wake-ups a second; all programs are
/// observed during the same five seconds.
///
/// # Panics
/// If one takes more, with what every one took, or has ended.
pub fn assert_idle(programs: &mut [(&str, Process)]) {
    settle(programs);
    let before: Vec<Used> = programs.iter().map(|(_, process)| used(process)).collect();
    // This sleep is the measurement, so there is no condition to poll.
    std::thread::sleep(WINDOW);
    let mut busy = 0;
    let mut table = String::new();
    for ((name, process), before) in programs.iter_mut().zip(before) {
        assert!(process.runs(), "{name} has ended: {} {}", process.stdout(), process.stderr());
        let after = used(process);
        let (sleeps, cpu) =
            (after.sleeps.saturating_sub(before.sleeps), after.cpu.saturating_sub(before.cpu));
        let verdict = if sleeps > WAKEUPS_MAX || cpu > CPU_MAX { "BUSY" } else { "idle" };
        busy += usize::from(verdict == "BUSY");
        table += &format!("{name:28} {sleeps:5} wake-ups {cpu:10.2?} of CPU  {verdict}\n");
    }
    println!("in {WINDOW:?}:\n{table}");
    assert!(busy == 0, "in {WINDOW:?}:\n{table}");
}
