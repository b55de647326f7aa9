//! Damaged captures and full disks: the packets before the damage are kept, and the ledger
//! balances.

use std::fs;
use std::process::Command;
use std::time::Duration;

use linerate_tests::capture::{Folder, Pcap, SNAPLEN, frame};
use linerate_tests::command::{Forward, Refusal, Report, linerate};
use linerate_tests::netns::Netns;
use linerate_tests::{installed, or_skip};

/// Returns a capture with two good records, the start of every file here.
fn good() -> Pcap {
    Pcap::new().record(1, &frame(1, 60)).record(2, &frame(2, 1514))
}

/// Returns the number of frames that tcpdump finds in `file`.
fn frames(file: &str) -> usize {
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-r", file, "-nn", "-t"]);
    let done = Forward::here(tcpdump).finish(Duration::from_secs(30));
    assert_eq!(done.code(), 0, "{done:?}");
    // Lines that start with a tab are bytes of the frame above.
    done.stdout.lines().filter(|line| !line.starts_with('\t')).count()
}

/// Replays `bytes`, of which the first two packets are valid and the rest is not.
fn assert_ends_behind_two(name: &str, bytes: &[u8], word: &str) {
    let folder = Folder::new();
    let (from, to) = (folder.file("in.pcap", bytes), folder.path("out.pcapng"));
    let done = Forward::run(&[&format!("pcap:{from}"), &format!("pcap:{to}")]);
    assert_eq!(done.code(), 1, "{name}: {done:?}");
    let report = Report::of(&done);
    report.assert_whole();
    let error = &report.0["error"];
    assert_eq!(error["code"], "E-CAPTURE", "{name}: {error}");
    let why = error["why"].as_str().unwrap_or_default();
    assert!(why.contains("at byte ") && why.contains(word), "{name}: {why}");
    assert_eq!((report.ledger("received"), report.ledger("sent")), (2, 2), "{name}: {report:?}");
    if installed("tcpdump").is_ok() {
        assert_eq!(frames(&to), 2, "{name}");
    }
}

#[test]
fn a_record_that_lies_ends_the_capture_behind_the_good_ones() {
    let data = frame(3, 100);
    assert_ends_behind_two("over snaplen", &good().lying(3, SNAPLEN + 1, 100, &data).0, "262145");
    assert_ends_behind_two("4 GB", &good().lying(3, u32::MAX, u32::MAX, &data).0, "4294967295");
    assert_ends_behind_two("2 GB", &good().lying(3, 1 << 31, 100, &data).0, "2147483648");
    assert_ends_behind_two("cut data", &good().lying(3, 101, 101, &data).0, "100 of 101");
    assert_ends_behind_two("cut to nothing", &good().lying(3, 100, 100, &[]).0, "0 of 100");
    let mut cut = good().record(3, &data).0;
    cut.truncate(cut.len() - 100 - 3);
    assert_ends_behind_two("cut header", &cut, "13 of 16");
}

#[test]
fn every_cut_of_a_capture_ends_in_order() {
    let whole = good().0;
    let folder = Folder::new();
    // At and around each border, and inside of each part.
    for len in [0, 1, 4, 23, 24, 25, 39, 40, 41, 99, 100, 101, 115, 116, 117, whole.len() - 1] {
        let from = folder.file("cut.pcap", &whole[..len]);
        let done = Forward::run(&[&format!("pcap:{from}"), "null:"]);
        let at_border = len == 24 || len == 100;
        assert_eq!(done.code(), if at_border { 0 } else { 1 }, "{len} bytes: {done:?}");
        assert!(!done.stderr.contains("panicked"), "{len} bytes: {done:?}");
        let sound = serde_json::from_str::<serde_json::Value>(&done.stdout).is_ok();
        assert!(sound, "{len} bytes: {done:?}");
    }
}

#[test]
fn an_empty_record_is_a_packet_like_any_other() {
    let folder = Folder::new();
    let (from, to) = (
        folder.file("in.pcap", &good().lying(3, 0, 60, &[]).record(4, &frame(4, 60)).0),
        folder.path("out.pcapng"),
    );
    let done = Forward::run(&[&format!("pcap:{from}"), &format!("pcap:{to}")]);
    assert_eq!(done.code(), 0, "{done:?}");
    let report = Report::of(&done);
    report.assert_whole();
    assert_eq!((report.ledger("received"), report.ledger("sent")), (4, 4), "{report:?}");
}

/// Returns a pcapng block of `kind` with the length `len` in its header.
fn block(kind: u32, len: u32, body: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
}

/// Returns a section header and one Ethernet interface.
fn section() -> Vec<u8> {
    let head = [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255];
    let interface = [1, 0, 0, 0, 0, 0, 4, 0];
    [block(0x0a0d_0d0a, 28, &head), block(1, 20, &interface)].concat()
}

/// Returns an enhanced packet block whose header has the lengths `captured` and `len`.
fn packet(len: u32, captured: u32, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for word in [0, 0, 1_000_000, captured, captured] {
        body.extend_from_slice(&u32::to_le_bytes(word));
    }
    body.extend_from_slice(data);
    block(6, len, &body)
}

#[test]
fn a_block_that_lies_ends_the_capture_behind_the_good_ones() {
    let good = [section(), packet(92, 60, &frame(1, 60)), packet(92, 60, &frame(2, 60))].concat();
    let data = frame(3, 60);
    for (name, bad, word) in [
        ("length 0", packet(0, 60, &data), "length 0"),
        ("length 4", packet(4, 60, &data), "length 4"),
        ("odd length", packet(93, 60, &data), "length 93"),
        ("4 GB", packet(u32::MAX - 3, 60, &data), "4294967292"),
        ("packet over block", packet(92, 61, &data), "61 bytes"),
        ("packet of 4 GB", packet(92, u32::MAX, &data), "4294967295"),
        ("cut", packet(92, 60, &data[..50]), "74 of 84"),
    ] {
        assert_ends_behind_two(name, &[good.clone(), bad].concat(), word);
    }
}

#[test]
fn file_that_is_no_capture_is_refused() {
    let folder = Folder::new();
    let here = folder.path(".");
    for (from, code, word) in [
        (folder.path("missing.pcap"), "E-FILE", "No such file"),
        (here, "E-FILE", "directory"),
        (folder.file("empty", b""), "E-CAPTURE", "it is empty"),
        (folder.file("text", b"hello, world\n"), "E-CAPTURE", "neither pcap nor pcapng"),
        (folder.file("zipped", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0]), "E-CAPTURE", "neither"),
    ] {
        let refusal = Refusal::of(&[&format!("pcap:{from}"), "null:"], 1, code);
        assert!(refusal.why.contains(word), "{from}: {refusal:?}");
    }
}

#[test]
fn a_capture_of_another_link_type_is_refused_by_its_name_with_the_way_that_is_left() {
    let folder = Folder::new();
    for (link, name) in [(113_u32, "LINUX_SLL"), (101, "RAW"), (105, "IEEE802_11"), (147, "147")] {
        let mut file = good();
        file.0[20..24].copy_from_slice(&link.to_le_bytes());
        let (from, to) = (folder.file("other.pcap", &file.0), folder.path("copy.pcapng"));
        let refusal = Refusal::of(&[&format!("pcap:{from}"), "null:"], 1, "E-CAPTURE");
        let named =
            refusal.why.contains(&format!("link type {link}")) && refusal.why.contains(name);
        assert!(named && refusal.why.contains("not Ethernet"), "{refusal:?}");
        assert!(refusal.fix.contains("linerate forward pcap:IN pcap:OUT"), "{refusal:?}");
        let copied = Forward::run(&[&format!("pcap:{from}"), &format!("pcap:{to}")]);
        assert_eq!(copied.code(), 0, "{name}: {copied:?}");
        assert_eq!(Report::of(&copied).ledger("sent"), 2, "{name}");
    }
}

#[test]
fn a_capture_is_not_written_over_itself() {
    let folder = Folder::new();
    let file = folder.file("one.pcap", &good().0);
    let port = format!("pcap:{file}");
    let _ = Refusal::of(&[&format!("a={port}"), &format!("b={port}")], 1, "E-BUSY");
    assert_eq!(fs::read(&file).unwrap(), good().0);
}

#[test]
fn a_disk_that_is_full_at_the_start_is_refused() {
    let refusal = Refusal::of(&["gen:,count=10", "pcap:/dev/full"], 1, "E-FILE");
    assert!(refusal.why.contains("No space left"), "{refusal:?}");
    assert!(!refusal.fix.is_empty(), "{refusal:?}");
}

#[test]
fn a_disk_that_fills_up_ends_the_run_and_the_file_is_whole() {
    or_skip!(installed("unshare"));
    // A user who may create a network namespace may also create a mount namespace.
    drop(or_skip!(Netns::new()));
    let folder = Folder::new();
    let (disk, saved) = (folder.path("disk"), folder.path("saved.pcapng"));
    fs::create_dir(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=256k none {disk} || exit 77
         {} forward gen:,count=100k pcap:{disk}/out.pcapng --json
         status=$?; cp {disk}/out.pcapng {saved}; exit $status",
        linerate().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let done = Forward::here(command).finish(Duration::from_secs(30));
    if done.code() == 77 {
        return eprintln!("skipped: no tmpfs: {}", done.stderr);
    }
    assert_eq!(done.code(), 1, "{done:?}");
    let report = Report::of(&done);
    report.assert_whole();
    assert_eq!(report.0["error"]["code"], "E-FILE", "{report:?}");
    let (sent, lost) = (report.ledger("sent"), report.dropped_as("write_failed"));
    assert!(sent > 1000 && lost > 0, "{report:?}");
    if installed("tcpdump").is_ok() {
        assert_eq!(frames(&saved) as u64, sent);
    }
}
