//! System calls for each batch, counted by strace on ports that make them.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use linerate_tests::capture::Folder;
use linerate_tests::command::{Report, linerate};
use linerate_tests::topology::Hosts;
use linerate_tests::{available, installed, or_skip};

/// Packets of a run.
const PACKETS: u64 = 64_000;
/// Packets of a batch.
const BATCH: u64 = 64;
/// Most calls of any kind for opening, watching and closing.
const ONCE: u64 = 600;

/// Returns the calls by name, as `strace -c` sums them up.
fn counts(summary: &str) -> BTreeMap<String, u64> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (calls, name) = (words.get(3)?.parse().ok()?, words.last()?);
        Some(((*name).to_owned(), calls))
    };
    summary.lines().filter_map(row).filter(|(name, _)| name != "total").collect()
}

/// Sends [`PACKETS`] by `port` in the middle under strace; returns the number of calls by name, and
/// the port's own count of doorbells. Returns `None` if strace cannot trace.
fn sent_by(hosts: &Hosts, port: &str) -> Option<(BTreeMap<String, u64>, u64)> {
    let folder = Folder::new();
    let summary = folder.path("calls");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-o", &summary]).arg(linerate());
    strace.args(["forward", &format!("gen:,count={PACKETS}"), port, "--json"]);
    let done = hosts.middle.start(strace).finish(Duration::from_secs(60));
    let counts = counts(&fs::read_to_string(&summary).unwrap_or_default());
    if done.stderr.contains("PTRACE_") {
        eprintln!("skipped: strace cannot trace here: {}", done.stderr);
        return None;
    }
    assert_eq!((done.code(), counts.is_empty()), (0, false), "{done:?}");
    let report = Report::of(&done);
    report.assert_whole();
    assert_eq!(report.ledger("sent"), PACKETS, "{report:?}");
    let doorbells = report.0["ports"][1]["doorbells"].as_u64();
    Some((counts, doorbells.expect("the driver counts them")))
}

#[test]
fn a_packet_port_sends_a_batch_with_one_call() {
    or_skip!(installed("strace"));
    let hosts = or_skip!(Hosts::new());
    let Some((counts, doorbells)) = sent_by(&hosts, "packet:w0") else { return };
    let sends = counts["sendmmsg"];
    assert_eq!(doorbells, sends, "{counts:?}");
    assert!(sends >= PACKETS / BATCH, "{counts:?}");
    // One more call for each time that the device's queue is full.
    assert!(sends <= PACKETS / BATCH + PACKETS / BATCH / 4, "{counts:?}");
    let all: u64 = counts.values().sum();
    assert!(all <= 3 * PACKETS / BATCH + ONCE, "{all} calls: {counts:?}");
}

#[test]
fn a_cap_of_one_makes_a_call_for_each_packet() {
    or_skip!(installed("strace"));
    let hosts = or_skip!(Hosts::new());
    let Some((counts, doorbells)) = sent_by(&hosts, "packet:w0,tx_batch=1") else { return };
    // One more call for each time that the device's queue is full.
    assert_eq!(doorbells, counts["sendmmsg"], "{counts:?}");
    assert!((PACKETS..PACKETS + PACKETS / 4).contains(&doorbells), "{counts:?}");
}

#[test]
fn an_xdp_port_with_a_cap_of_one_counts_each_doorbell_once() {
    or_skip!(installed("strace"));
    let hosts = or_skip!(Hosts::new());
    or_skip!(available(hosts.middle.run(|| linerate_port::Port::open("xdp:w0").map(drop))));
    let Some((counts, doorbells)) = sent_by(&hosts, "xdp:w0,tx_batch=1") else { return };
    // Opening the interface also sends messages to netlink.
    let sends = counts["sendto"];
    assert!((PACKETS..=sends).contains(&doorbells), "{doorbells} of {sends}");
}

/// Returns the calls that sent packets, by the range of their number, and the doorbells, without
/// strace.
fn tx_calls(hosts: &Hosts, port: &str) -> (BTreeMap<u64, u64>, u64) {
    let mut command = Command::new(linerate());
    command.args(["forward", &format!("gen:,count={PACKETS}"), port, "--json"]);
    let report = Report::of(&hosts.middle.start(command).finish(Duration::from_secs(60)));
    report.assert_whole();
    assert_eq!(report.ledger("sent"), PACKETS, "{report:?}");
    let port = &report.0["ports"][1];
    let number = |range: &serde_json::Value, key: &str| range[key].as_u64().unwrap();
    let ranges = port["tx_calls"].as_array().unwrap().iter();
    let calls = ranges.map(|range| (number(range, "packets"), number(range, "calls")));
    let calls: BTreeMap<u64, u64> = calls.filter(|(packets, n)| *packets > 0 && *n > 0).collect();
    (calls, number(port, "doorbells"))
}

#[test]
fn a_device_takes_a_call_a_packet_with_a_cap_of_one_and_a_doorbell_for_16_with_others() {
    let hosts = or_skip!(Hosts::new());
    let xdp = available(hosts.middle.run(|| linerate_port::Port::open("xdp:w0").map(drop)));
    let drivers = ["packet", "xdp"].into_iter().filter(|driver| *driver != "xdp" || xdp.is_ok());
    for driver in drivers {
        let sent = |cap: &str| tx_calls(&hosts, &format!("{driver}:w0,tx_batch={cap}"));
        let (calls, rung) = sent("1");
        // One more doorbell for each time that the device's queue is full.
        assert!(calls == BTreeMap::from([(1, PACKETS)]) && rung >= PACKETS, "{driver}: {calls:?}");
        for cap in ["64", "auto"] {
            let (calls, rung) = sent(cap);
            assert!(16 * rung <= PACKETS, "{driver}, {cap}: {rung} doorbells, {calls:?}");
        }
    }
    or_skip!(xdp);
}

#[test]
fn an_xdp_port_makes_less_than_a_call_for_sixteen_packets() {
    or_skip!(installed("strace"));
    let hosts = or_skip!(Hosts::new());
    or_skip!(available(hosts.middle.run(|| linerate_port::Port::open("xdp:w0").map(drop))));
    let Some((counts, doorbells)) = sent_by(&hosts, "xdp:w0") else { return };
    let all: u64 = counts.values().sum();
    assert!(all <= PACKETS / 16 + ONCE, "{all} calls: {counts:?}");
    // Opening the interface also sends messages to netlink.
    let sends = counts["sendto"];
    assert!((PACKETS / BATCH..=sends).contains(&doorbells), "{doorbells} of {sends}");
}
