//! The end of a run: in order if it is asked to stop, and without remains if it is killed.

use std::os::unix::net::UnixStream;
use std::process::Command;

use linerate_tests::capture::Folder;
use linerate_tests::command::{Forward, Report, linerate};
use linerate_tests::or_skip;
use linerate_tests::topology::{EAST, Hosts};
use linerate_tests::traffic::reaches;
use linerate_tests::wait::{SOON, until_true};
use rustix::process::Signal;

/// Ticks of CPU time, a tenth of a second, after which a worker has moved packets.
const WORKED: u64 = 10;

/// Time after a first signal in which a second one is taken for the same request, and some more.
const SAME: std::time::Duration = std::time::Duration::from_millis(400);

/// Starts a run that moves packets as fast as it can, and waits until it has moved some.
fn busy(args: &[&str]) -> Forward {
    let process = Forward::here(Forward::command(args, true));
    let tasks = format!("/proc/{}/task", process.id());
    until_true("the worker's thread", SOON, || {
        let comm = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        let mut tasks = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        tasks.any(|task| comm(task).is_ok_and(|name| name.starts_with("linerate-")))
    });
    // The worker's thread is there, and may not have run yet.
    let since = process.cpu_ticks();
    until_true("its CPU time", SOON, || process.cpu_ticks() >= since + WORKED);
    Forward(process)
}

#[test]
fn sigint_under_load_drains_and_prints_the_report() {
    let report = busy(&["gen:", "sink:"]).end(Signal::INT, 130);
    assert!(report.ledger("sent") > 0, "{report:?}");
    assert_eq!(report.0["verify"]["lost"], 0, "{report:?}");
}

#[test]
fn sigterm_under_load_drains_and_prints_the_report() {
    let report = busy(&["gen:", "sink:"]).end(Signal::TERM, 143);
    assert!(report.ledger("sent") > 0, "{report:?}");
    assert_eq!(report.0["verify"]["lost"], 0, "{report:?}");
}

#[test]
fn signal_that_is_delivered_twice_is_one_request() {
    for _ in 0..5 {
        let forward = busy(&["gen:,size=1514", "sink:"]);
        forward.0.signal(Signal::TERM);
        let report = forward.end(Signal::TERM, 143);
        assert_eq!(report.0["ledger"]["balanced"], true, "{report:?}");
    }
}

#[test]
fn a_second_interrupt_ends_it_all_the_same() {
    let folder = Folder::new();
    let socket = folder.path("control.sock");
    // The packets that wait for the rate take longer to leave than the two seconds of the drain.
    let args = ["gen:,size=1514", "sink:blind,shape=1Mbit", "--control", &socket];
    // A test that gets no CPU during the drain sends its second signal too late.
    for _ in 0..5 {
        let forward = busy(&args);
        forward.0.signal(Signal::INT);
        // The run closes its socket before it drains.
        until_true("the drain", SOON, || UnixStream::connect(&socket).is_err());
        std::thread::sleep(SAME);
        forward.0.signal(Signal::INT);
        let done = forward.0.finish(SOON);
        assert_eq!(done.code(), 130, "{done:?}");
        // After a whole drain there is a report.
        if done.stdout.is_empty() {
            return;
        }
        assert_eq!(Report::of(&done).0["ledger"]["balanced"], true, "{done:?}");
    }
    panic!("no second interrupt has ended a drain");
}

#[test]
fn the_ledger_is_printed_for_people_too() {
    let mut command = Command::new(linerate());
    command.args(["forward", "gen:,rate=10kpps", "sink:", "--for", "60s"]);
    let process = Forward::here(command);
    until_true("the first words", SOON, || process.stdout().contains("options"));
    process.signal(Signal::INT);
    let done = process.finish(SOON);
    assert_eq!(done.code(), 130, "{done:?}");
    let balance = done.stdout.lines().find(|line| line.starts_with("balance"));
    assert!(balance.is_some_and(|line| line.ends_with("OK")), "{done:?}");
}

#[test]
fn run_that_ends_by_itself_exits_with_zero() {
    for limit in [["--count", "1000"], ["--for", "100ms"]] {
        let done = Forward::run(&["gen:,rate=100kpps", "sink:", limit[0], limit[1]]);
        assert_eq!(done.code(), 0, "{done:?}");
        let report = Report::of(&done);
        report.assert_whole();
        assert!(report.ledger("sent") > 0, "{report:?}");
    }
    let done = Forward::run(&["gen:,count=123", "sink:"]);
    assert_eq!((done.code(), Report::of(&done).ledger("sent")), (0, 123), "{done:?}");
}

#[test]
fn a_port_that_is_down_does_not_make_an_interrupt_a_failure() {
    let hosts = or_skip!(Hosts::new());
    let forward = hosts.join_by_packet();
    hosts.middle.ip("link set dev e0 down");
    // The port has had enough time to notice it many times.
    assert!(!reaches(&hosts.west, EAST));
    let _ = forward.interrupt();
}

#[test]
fn a_killed_run_leaves_nothing_behind_and_the_next_starts_at_once() {
    let hosts = or_skip!(Hosts::new());
    let start = || {
        let forward = Forward::start(&hosts.middle, &["packet:w0", "tap:te,up"]);
        hosts.wait_for_packet_port("w0");
        until_true("a tap", SOON, || hosts.middle.interfaces().iter().any(|name| name == "te"));
        forward
    };
    let before = hosts.middle.interfaces();
    for _ in 0..3 {
        let forward = start();
        let pid = forward.0.id();
        forward.0.signal(Signal::KILL);
        assert_eq!(forward.0.finish(SOON).code(), 137);
        assert!(!std::path::Path::new("/proc").join(pid.to_string()).exists());
        // The kernel removes a killed process's interfaces before its parent is notified.
        assert_eq!(hosts.middle.interfaces(), before);
        assert_eq!(hosts.middle.packet_sockets("w0"), 0);
        let shown = hosts.middle.ip("-details link show dev w0");
        assert!(shown.contains("promiscuity 0"), "{shown}");
        let ours = |name: &String| name.contains("linerate");
        assert!(
            !names_in("/dev/shm").iter().any(ours) && !names_in("/dev/hugepages").iter().any(ours)
        );
    }
    let _ = start().interrupt();
    assert_eq!(hosts.middle.interfaces(), before);
}

/// Returns the names in a folder; none if there is no such folder.
fn names_in(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
