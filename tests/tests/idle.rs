//! Idle means idle: what a path without traffic costs.

use std::fs;
use std::time::{Duration, Instant};

use linerate_tests::command::Forward;
use linerate_tests::or_skip;
use linerate_tests::process::Process;
use linerate_tests::topology::Hosts;
use linerate_tests::wait::{SOON, until, until_true};

/// How long it is looked at.
const WINDOW: Duration = Duration::from_secs(5);
/// Wake-ups that are allowed in that time: two a second.
const WAKEUPS_MAX: u64 = 10;
/// CPU time that is allowed in that time: one in a hundred.
const CPU_MAX: Duration = WINDOW.checked_div(100).expect("a hundred is not zero");

/// What a process has used, over all its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Used {
    /// Times it went to sleep: each ends in a wake-up.
    sleeps: u64,
    /// Time on a CPU.
    cpu: Duration,
}

fn used(process: &Process) -> Used {
    let mut used = Used { sleeps: 0, cpu: Duration::ZERO };
    let threads = fs::read_dir(format!("/proc/{}/task", process.id())).expect("it runs");
    for thread in threads {
        let path = thread.expect("it runs").path();
        let status = fs::read_to_string(path.join("status")).expect("the thread lives");
        let sleeps = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        used.sleeps += sleeps.and_then(|n| n.trim().parse::<u64>().ok()).expect("a number");
        // Finer than the ticks in `stat`: nanoseconds on a CPU come first.
        let schedstat = fs::read_to_string(path.join("schedstat")).expect("the thread lives");
        let ns = schedstat.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        used.cpu += Duration::from_nanos(ns);
    }
    used
}

/// Waits until it has done nothing for a while: opening is over.
fn settle(process: &Process) {
    let (mut before, mut since) = (used(process), Instant::now());
    until("a second without a wake-up", SOON, || {
        let now = used(process);
        if now.sleeps > before.sleeps + 2 {
            (before, since) = (now, Instant::now());
        }
        (since.elapsed() > Duration::from_secs(1)).then_some(())
    });
}

fn assert_idle(process: &Process) {
    settle(process);
    let before = used(process);
    // The measurement itself: there is nothing to poll for.
    std::thread::sleep(WINDOW);
    let after = used(process);
    let (sleeps, cpu) = (after.sleeps - before.sleeps, after.cpu - before.cpu);
    assert!(sleeps <= WAKEUPS_MAX, "{sleeps} wake-ups in {WINDOW:?}");
    assert!(cpu <= CPU_MAX, "{cpu:?} of CPU in {WINDOW:?}");
}

#[test]
fn two_packet_ports_without_traffic_sleep() {
    let hosts = or_skip!(Hosts::new());
    let forward = Forward::start(&hosts.middle, &["packet:w0", "packet:e0"]);
    hosts.wait_for_packet_port("w0");
    hosts.wait_for_packet_port("e0");
    assert_idle(&forward.0);
    let _ = forward.interrupt();
}

#[test]
fn two_packet_ports_sleep_again_after_traffic() {
    let hosts = or_skip!(Hosts::new());
    let forward = hosts.join_by_packet();
    // The neighbours confirm each other's address once more, seconds after the last packet.
    for (host, peer) in [(&hosts.west, "10.7.0.2"), (&hosts.east, "10.7.0.1")] {
        host.ip(&format!("neigh change {peer} dev eth0 nud permanent"));
    }
    assert_idle(&forward.0);
    let _ = forward.interrupt();
}

#[test]
fn two_taps_without_traffic_sleep() {
    let hosts = or_skip!(Hosts::new());
    let forward = Forward::start(&hosts.middle, &["tap:t0", "tap:t1"]);
    for tap in ["t0", "t1"] {
        until_true("a tap", SOON, || hosts.middle.interfaces().iter().any(|name| name == tap));
        hosts.middle.ip(&format!("link set dev {tap} up"));
    }
    assert_idle(&forward.0);
    let _ = forward.interrupt();
}
