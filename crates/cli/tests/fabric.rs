//! Tests the lab's experiments with a second process, which reads the packets of one side.

mod command;
mod pin;

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use command::{Ended, command, finish, run};
use linerate_sys::xdp;
use linerate_testing::Scratch;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Returns the windows of both sides of a quick run with one cell, and the run's document; `None`,
/// with a message, if threads may not be pinned.
fn ran(experiment: &str, only: &str) -> Option<(Vec<[Value; 2]>, Value)> {
    let dir = Scratch::new();
    // Every window is checked, also a disturbed one, so disturbed pairs are not repeated.
    let how = "--quick --attempts 1 --json";
    let ended = run(&format!("lab run {experiment} {how} {only} --dir {}", dir.0.display()));
    if pin::is_refused(&ended) {
        return None;
    }
    let document = ended.document();
    // The machine's noise decides between the two exit statuses.
    assert!(matches!(ended.exit, Some(0 | 4)), "{}{}", ended.out, ended.err);
    let cell = &document["cells"][0];
    let ledgers = cell["ledger"].as_object().unwrap();
    assert!(ledgers.values().all(|ledger| ledger["balanced"] == true), "{ledgers:?}");
    let pairs = cell["pairs"].as_array().unwrap().iter();
    let pairs = pairs.map(|pair| [pair["a"].clone(), pair["b"].clone()]).collect();
    Some((pairs, document))
}

/// Runs an experiment that needs two CPUs; `None`, with a message, on a machine with one.
fn ran_on_two(experiment: &str, only: &str) -> Option<(Vec<[Value; 2]>, Value)> {
    if cpus() < 2 {
        eprintln!("skipped: a wire needs a CPU of its own");
        return None;
    }
    ran(experiment, only)
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn figure(window: &Value, name: &str) -> f64 {
    window["figures"][name].as_f64().unwrap_or_else(|| panic!("no {name} in {window}"))
}

#[test]
fn cut_through_packets_arrive_whole_and_are_not_copied() {
    let only = "--only change=cut-through,load=fixed-1514";
    let Some((pairs, document)) = ran("fabric", only) else { return };
    assert!(!pairs.is_empty());
    for window in pairs.iter().flatten() {
        let packets = figure(window, "far_packets");
        assert!(packets > 0.0 && packets == figure(window, "far_verified"), "{window}");
        assert_eq!((figure(window, "far_lost"), figure(window, "far_corrupted")), (0.0, 0.0));
        assert!(window["threads"].as_array().unwrap().iter().any(|one| one["role"] == "far"));
        assert!(figure(window, "receipt_p50_ns") > 0.0, "{window}");
    }
    // A driver's counts are read at the end of each window.
    for [copied, cut_through] in &pairs {
        assert_eq!(figure(cut_through, "copied_bytes"), 0.0, "{cut_through}");
        let packets = copied["packets"].as_f64().unwrap();
        assert_eq!(figure(copied, "copied_bytes"), 1514.0 * packets, "{copied}");
    }
    let dropped = document["cells"][0]["ledger"]["b"]["dropped"].as_object().unwrap();
    assert!(dropped.is_empty(), "all had been seen before it ended: {dropped:?}");
}

#[test]
fn an_adapters_packets_are_passed_on_or_lost_by_their_cause() {
    let Some((pairs, _)) = ran_on_two("fabric-bursts", "--only ring=256,out=cut-through") else {
        return;
    };
    assert!(!pairs.is_empty());
    let mut full = 0.0;
    for window in pairs.iter().flatten() {
        let causes = ["ring_full", "no_frame", "wire_late", "fabric_full"];
        let lost: f64 =
            causes.iter().map(|cause| figure(window, &format!("overruns_{cause}"))).sum();
        let passed = window["packets"].as_f64().unwrap();
        assert_eq!(figure(window, "offered"), passed + lost, "{window}");
        assert_eq!(
            figure(window, "far_packets"),
            passed,
            "seen in the window that it is of: {window}"
        );
        assert_eq!(figure(window, "far_lost"), figure(window, "overruns_fabric_full"), "{window}");
        assert_eq!(figure(window, "copied_bytes"), 0.0);
        assert!(figure(window, "far_cpu_ns") > 0.0 && figure(window, "far_copied_out") == 0.0);
        full += figure(window, "overruns_fabric_full");
    }
    // A burst of 1024 finds 256 free places in the ring and 256 before it, unless the other process
    // reads meanwhile, for which it would need a third CPU.
    assert!(full > 0.0 || cpus() > 2, "nothing was lost");
}

/// An experiment with one cell that ends soon, and rings so short that packets are lost.
const BY_A_DEVICE: &str = r#"
version = 1
id = "by-a-device"
title = "t"
question = "q"
scenario = "engine"
settings = { path = "device", size = 1514, burst = 64, rate = 124_000_000, ring_len = 64, out_len = 64, pool_frames = 16384, sample_every = 0 }
[a]
name = "copied"
set = { buffers = "general", out = "copy", hot_list = 128 }
[b]
name = "cut through"
set = { buffers = "frames", out = "cut-through" }
[plan]
window = "300ms"
warmup = 1
looks = [6]
quick = { pairs = 1 }
[[metric]]
name = "cpu_ns_per_packet"
unit = "ns/packet"
about = "a"
value = "cpu_ns / packets"
clock = "cost"
"#;

/// The words of the run, or of its only cell, where the machine lacks something for the device:
/// namespaces with links, the program that makes them, or CPUs.
const LACKS: [&str; 4] = [
    "cannot have a network namespace",
    "cannot make hosts and links of a scenario",
    "cannot run ip",
    "threads need a CPU each",
];

/// Returns what the machine lacks for the device, in the words of the run or of its only cell;
/// `None` if nothing.
fn lacks(document: &Value) -> Option<&Value> {
    let is_of_the_cell = |warning: &&Value| {
        warning["text"].as_str().is_some_and(|text| text.contains("cell cannot be run here"))
    };
    let warning = document["warnings"].as_array().and_then(|all| all.iter().find(is_of_the_cell));
    let found = warning.unwrap_or(&document["error"]);
    let said = found.to_string();
    let is_lack = match found["code"].as_str()? {
        "E-PERM" | "E-UNSUPPORTED" => {
            xdp::is_refused(&said) || LACKS.iter().any(|words| said.contains(words))
        }
        "E-MEMORY" => xdp::is_limit_of_locked_memory(&said),
        _ => false,
    };
    is_lack.then_some(found)
}

#[test]
fn packets_of_a_device_reach_the_other_process_or_are_lost_by_their_cause() {
    // With a third CPU the other process may read fast enough, and so it may where other programs
    // slow the sender.
    let lost = |_| lost_of_a_device().is_none_or(|lost| lost > 0.0);
    assert!((0..5).any(lost) || cpus() > 2, "nothing was lost");
}

/// Passes packets of a device to the other process; returns the number of those that were lost, or
/// `None` if the machine cannot run it.
fn lost_of_a_device() -> Option<f64> {
    let scratch = Scratch::new();
    let file = scratch.file("device.toml", BY_A_DEVICE);
    let ended = run(&format!("lab run {file} --quick --json --dir {}", scratch.word("runs")));
    if pin::is_refused(&ended) {
        return None;
    }
    let document = ended.document();
    if let Some(lack) = lacks(&document) {
        eprintln!("skipped: {lack}");
        return None;
    }
    // The machine's noise decides between the two exit statuses.
    assert!(matches!(ended.exit, Some(0 | 4)), "{}{}", ended.out, ended.err);
    let cell = &document["cells"][0];
    let balanced = cell["ledger"].as_object().unwrap().values().all(|l| l["balanced"] == true);
    assert!(balanced, "{}", cell["ledger"]);
    let pairs = cell["pairs"].as_array().unwrap();
    let sums = |side: &str, name: &str| -> f64 {
        pairs.iter().map(|pair| pair[side]["figures"][name].as_f64().unwrap_or_default()).sum()
    };
    for side in ["a", "b"] {
        let packets: f64 = pairs.iter().map(|pair| pair[side]["packets"].as_f64().unwrap()).sum();
        let (far, lost) = (sums(side, "far_packets"), sums(side, "overruns"));
        assert!(far > 0.0 && far == sums(side, "far_verified"), "{side}: {document}");
        // Packets that are under way at the end of a window, in two rings and a burst, may count in
        // no window.
        let between = (2.0 * 64.0 + 64.0) * pairs.len() as f64;
        let (went, offered) = (packets + lost, sums(side, "offered"));
        assert!((went - offered).abs() <= between, "{side}: {went} of {offered}");
        let causes = ["overruns_ring_full", "overruns_no_frame", "overruns_no_cpu"];
        let by_cause: f64 = causes.iter().map(|cause| sums(side, cause)).sum();
        assert_eq!(by_cause, lost, "{side}");
        // With copies in blocks each byte is copied twice; with frames that are passed on, not at
        // all.
        let copies = if side == "a" { 2.0 } else { 0.0 };
        assert!(
            (sums(side, "copied_bytes") - copies * 1514.0 * packets).abs()
                <= copies * 1514.0 * between
        );
        assert_eq!(sums(side, "allocator_calls") > 0.0, side == "a", "{side}");
    }
    Some(sums("a", "overruns") + sums("b", "overruns"))
}

#[test]
fn steadiness_is_reported_for_long_windows() {
    let Some((pairs, _)) = ran("fabric-steady", "") else { return };
    for window in pairs.iter().flatten() {
        let slowest = figure(window, "slowest_pct");
        assert!((0.0..=100.0).contains(&slowest), "{window}");
        assert!(figure(window, "receipt_p99_ns") >= figure(window, "receipt_p50_ns"), "{window}");
    }
}

/// Returns the process that reads the packets of `run`, once it exists.
fn far_side(run: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{run}/task/{run}/children")).ok()?;
    let looks = |pid: &&str| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.windows(6).any(|word| word == b"\0look\0")
    };
    Pid::from_raw(children.split_whitespace().find(looks)?.parse().ok()?)
}

/// Kills a second process while it works, if one lives long enough.
fn kill_one(run: u32) -> bool {
    sleep(Duration::from_millis(5));
    let Some(far) = far_side(run) else { return false };
    sleep(Duration::from_millis(150));
    far_side(run) == Some(far) && kill_process(far, Signal::KILL).is_ok()
}

#[test]
fn a_far_side_that_is_killed_ends_the_run_which_says_so() {
    let dir = Scratch::new();
    let words = format!("lab run fabric --quick --json --dir {}", dir.0.display());
    let mut run = command::start(command(&words).stdin(Stdio::null()));
    let deadline = Instant::now() + Duration::from_secs(20);
    while !kill_one(run.id()) {
        if Instant::now() > deadline || run.try_wait().unwrap().is_some() {
            let _ = run.kill();
            let ended = Ended::from(finish(run));
            assert!(pin::is_refused(&ended), "no far side: {ended:?}");
            return;
        }
    }
    let killed = Instant::now();
    let ended = Ended::from(finish(run));
    let took = killed.elapsed();
    assert_eq!(ended.exit, Some(1), "{ended:?}");
    assert_eq!(ended.document()["error"]["code"], "E-SYSTEM", "{ended:?}");
    assert!(ended.out.contains("the process at the far side of the fabric failed"), "{ended:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
