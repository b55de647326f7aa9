//! Replays a capture of real traffic, taken by tcpdump, into another file.

use std::process::Command;
use std::time::Duration;

use linerate_tests::capture::{Folder, Pcap, frame};
use linerate_tests::command::{Forward, Report, linerate};
use linerate_tests::process::Finished;
use linerate_tests::scenario;
use linerate_tests::topology::{EAST, Hosts};
use linerate_tests::traffic::transfer;
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{installed, or_skip};
use rustix::process::Signal;

/// Returns tcpdump's text for `file`: every byte of every frame, every time stamp to the
/// nanosecond.
fn reading(file: &str) -> String {
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-r", file, "-nn", "-e", "-xx", "-tt", "--nano"]);
    let done = Forward::here(tcpdump).finish(Duration::from_secs(60));
    assert_eq!(done.code(), 0, "{}", done.stderr);
    done.stdout
}

/// Fails with the first line that differs, instead of megabytes of text.
fn assert_same(left: &str, right: &str) {
    let differs = left.lines().zip(right.lines()).position(|(l, r)| l != r);
    if let Some(i) = differs {
        let (l, r) = (left.lines().nth(i), right.lines().nth(i));
        panic!("line {i} differs:\n{l:?}\n{r:?}");
    }
    assert_eq!(left.lines().count(), right.lines().count());
}

/// Replays `from` into `to`, and checks that every packet was written.
fn replay(from: &str, to: &str) -> Report {
    let done: Finished = Forward::run(&[&format!("pcap:{from}"), &format!("pcap:{to}")]);
    assert_eq!(done.code(), 0, "{done:?}");
    let report = Report::of(&done);
    report.assert_whole();
    assert_eq!(report.ledger("received"), report.ledger("sent"), "{report:?}");
    report
}

#[test]
fn a_capture_of_superframes_is_replayed_byte_for_byte() {
    or_skip!(installed("tcpdump"));
    let hosts = or_skip!(Hosts::new());
    let folder = Folder::new();
    let (taken, once, twice) =
        (folder.path("taken.pcap"), folder.path("once.pcapng"), folder.path("twice.pcapng"));
    let forward = hosts.join_by_packet();
    let mut tcpdump = Command::new("tcpdump");
    // Run as root: by default tcpdump writes as a user who may not enter the folder.
    tcpdump.args(["-i", "eth0", "-w", &taken, "-s", "0", "-Z", "root", "-B", "16384"]);
    tcpdump.arg("--time-stamp-precision=nano");
    let mut capturing = hosts.east.start(tcpdump);
    until_true("tcpdump to listen", SOON, || {
        assert!(capturing.runs(), "{}", capturing.stderr());
        capturing.stderr().contains("listening on")
    });
    transfer(&hosts.west, &hosts.east, EAST, 5_000_000);
    if let Err(why) = scenario::pings(&hosts) {
        eprintln!("skipped in part: {why}");
    }
    let _ = forward.interrupt();
    capturing.signal(Signal::INT);
    let captured = capturing.finish(SOON);
    assert_eq!(captured.code(), 0, "{captured:?}");

    let original = reading(&taken);
    let longest = original.lines().filter_map(length).max();
    assert!(longest > Some(1514), "the longest frame has {longest:?} bytes");
    let report = replay(&taken, &once);
    let frames = original.lines().filter(|line| !line.starts_with('\t')).count() as u64;
    assert_eq!(report.ledger("sent"), frames);
    assert_same(&original, &reading(&once));
    // What linerate wrote, linerate reads, too.
    let _ = replay(&once, &twice);
    assert_same(&original, &reading(&twice));
}

#[test]
fn a_capture_that_starts_at_zero_keeps_its_times() {
    or_skip!(installed("tcpdump"));
    let folder = Folder::new();
    let capture = Pcap::new().record(0, &frame(0, 60)).record(1, &frame(1, 60));
    let (from, to) = (folder.file("zero.pcap", &capture.0), folder.path("replayed.pcapng"));
    let _ = replay(&from, &to);
    assert_same(&reading(&from), &reading(&to));
}

#[test]
fn a_capture_passes_through_pipes() {
    or_skip!(installed("tcpdump"));
    let folder = Folder::new();
    let mut capture = Pcap::new();
    for i in 1..5000_u32 {
        capture = capture.record(i, &frame(i as u8, 60 + i as usize * 7 % 9000));
    }
    let taken = folder.file("taken.pcap", &capture.0);
    let piped = folder.path("piped.pcapng");
    let script = format!(
        "cat {taken} | {} forward pcap:- b=pcap:- --json | cat > {piped}",
        linerate().display()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    let done = Forward::here(shell).finish(Duration::from_secs(30));
    assert_eq!(done.code(), 0, "{done:?}");
    // Stdout has the packets, so the report is on stderr.
    assert!(done.stderr.contains("linerate-forward/1"), "{done:?}");
    assert_same(&reading(&taken), &reading(&piped));
}

/// Returns the length that tcpdump prints of a frame.
fn length(line: &str) -> Option<u32> {
    let (_, rest) = line.split_once("), length ").or_else(|| line.split_once(", length "))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
