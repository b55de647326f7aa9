//! `linerate profile record` on a forwarder that carries packets, on a stripped program, and on one
//! that ends.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use linerate_tests::capture::Folder;
use linerate_tests::command::{Forward, linerate};
use linerate_tests::netns::Netns;
use linerate_tests::process::Process;
use linerate_tests::topology::{EAST, Hosts};
use linerate_tests::traffic::iperf3;
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{installed, or_skip, possible};
use rustix::process::Signal;
use serde_json::Value;

/// Longest time for a recording to end and to name its functions.
const LONG: Duration = Duration::from_secs(60);
/// Packets that the hosts may send by themselves before or after a recording: ARP requests and
/// replies.
const UNASKED: u64 = 10;

/// Starts `linerate profile record args`.
fn record(args: &[&str]) -> Process {
    let mut command = Command::new(linerate());
    command.args(["profile", "record"]).args(args);
    Forward::here(command)
}

/// Waits until the recorder's perf has opened its events, or the recorder has ended because it
/// cannot.
fn until_it_samples(recorder: &mut Process) {
    let id = recorder.id();
    let text = |path: String| fs::read_to_string(path).unwrap_or_default();
    let tasks = || fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let children = || {
        let of = |task: fs::DirEntry| text(format!("{}/children", task.path().display()));
        let all: String = tasks().map(of).collect();
        all.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let is_event = |link: &Path| link.to_string_lossy().contains("perf_event");
    let samples = |pid: &String| {
        let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        links.into_iter().any(|at| fs::read_link(at.path()).is_ok_and(|link| is_event(&link)))
    };
    until_true("an event of perf", SOON, || children().iter().any(samples) || !recorder.runs());
}

fn read(file: &str) -> Value {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{file}: {e}"));
    let profile: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(profile["schema"], "linerate-profile/1");
    profile
}

fn counted(profile: &Value, which: impl Fn(&Value) -> bool) -> u64 {
    let rows = profile["rows"].as_array().expect("rows are a list").iter();
    rows.filter(|row| which(row)).filter_map(|row| row["count"].as_u64()).sum()
}

fn remarks(profile: &Value) -> String {
    let all = profile["remarks"].as_array().into_iter().flatten().filter_map(Value::as_str);
    all.collect::<Vec<_>>().join("\n")
}

/// Returns the samples in each stage, as `linerate profile diff --csv=stages` adds them up.
fn stages(file: &str) -> Vec<(String, u64)> {
    let mut command = Command::new(linerate());
    command.args(["profile", "diff", file, file, "--csv=stages"]);
    let done = Forward::here(command).finish(SOON);
    let stage = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        Some(((*cells.first()?).to_owned(), cells.get(3)?.parse().ok()?))
    };
    // The head has commas of its own.
    done.stdout.lines().skip(1).filter_map(stage).collect()
}

/// Returns the number of packets that device `name` has received and sent since it was made.
fn packets(netns: &Netns, name: &str) -> (u64, u64) {
    let text = netns.ip(&format!("-statistics -json link show dev {name}"));
    let shown: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let of = |way: &str| shown[0]["stats64"][way]["packets"].as_u64().expect("ip counts packets");
    (of("rx"), of("tx"))
}

/// Returns the time that the host of a virtual machine has stolen from its CPUs, in hundredths of a
/// second.
fn stolen_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = stat.lines().next().unwrap_or_default();
    all.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// Stolen time that is tolerated: 3 % of a recording of three seconds.
const STOLEN_MAX: u64 = 10;

#[test]
fn a_forwarder_s_time_is_found_in_its_stages_and_in_the_kernel() {
    or_skip!(installed("iperf3"));
    let hosts = or_skip!(Hosts::new());
    let folder = Folder::new();
    let file = folder.path("profile.json");
    let forward = hosts.join_by_packet();
    let before = ["w0", "e0"].map(|name| packets(&hosts.middle, name));
    let pid = forward.0.id().to_string();
    let stolen_before = stolen_ticks();
    let mut recorder = record(&["--pid", &pid, "--rate", "4000", "-o", &file]);
    until_it_samples(&mut recorder);
    // Short packets: a superframe costs a long copy by the kernel and very little time in linerate.
    let args = ["--udp", "--bitrate", "0", "--length", "64", "--time", "3"];
    or_skip!(iperf3(&hosts.west, &hosts.east, EAST, &args));
    recorder.signal(Signal::INT);
    let done = or_skip!(possible(recorder.finish(LONG)));
    assert_eq!(done.code(), 130, "{done:?}");
    let after = ["w0", "e0"].map(|name| packets(&hosts.middle, name));
    let _ = forward.interrupt();

    let stages = stages(&file);
    let in_stage = |name: &str| stages.iter().find(|(stage, _)| stage == name).map_or(0, |s| s.1);
    for name in ["driver", "core", "memory"] {
        assert!(in_stage(name) > 0, "{name}: {stages:?}");
    }
    let profile = read(&file);
    assert!(counted(&profile, |row| row["space"] == "kernel") > 0, "{profile}");
    let ours = |row: &Value| row["symbol"].as_str().is_some_and(|s| s.contains("linerate_port"));
    assert!(counted(&profile, ours) > 0, "{profile}");
    assert!(done.stdout.contains("CPU time over wall time, %\n"), "{done:?}");
    // Time stolen by the host counts as the threads' time, but has no samples.
    match stolen_ticks() - stolen_before {
        // The forwarder had too little CPU time to check it against the kernel's account.
        _ if done.stdout.contains("accounts it in hundredths") => {
            eprintln!("skipped in part: the forwarder had too little CPU time to compare clocks");
        }
        0..=STOLEN_MAX => assert!(done.stdout.contains("\n  agree     by "), "{done:?}"),
        ticks => eprintln!("skipped in part: the host took {ticks} ticks, the clocks cannot agree"),
    }

    let devices = profile["conditions"]["netdevs"].as_array().expect("devices are a list");
    for ((name, before), after) in ["w0", "e0"].into_iter().zip(before).zip(after) {
        let device = devices.iter().find(|device| device["name"] == name);
        let device = device.unwrap_or_else(|| panic!("{name} in {devices:?}"));
        for (way, n) in [("rx_packets", after.0 - before.0), ("tx_packets", after.1 - before.1)] {
            let said = device[way].as_u64().expect("a number");
            assert!(said <= n && n - said <= UNASKED, "{name} {way}: {said}, the device {n}");
        }
    }
    let carried = devices.iter().filter_map(|device| device["rx_packets"].as_u64()).max();
    assert!(carried > Some(1000), "{devices:?}");
}

#[test]
fn stripped_program_is_profiled_with_a_warning() {
    or_skip!(installed("strip"));
    let folder = Folder::new();
    let (stripped, file) = (folder.path("linerate"), folder.path("profile.json"));
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&stripped).arg(linerate());
    assert_eq!(Forward::here(strip).finish(LONG).code(), 0);
    let work = ["forward", "null:", "null:", "--count", "20M"];
    let done = record(&[&["-o", &file, "--", &stripped][..], &work].concat()).finish(LONG);
    let done = or_skip!(possible(done));
    assert_eq!(done.code(), 0, "{done:?}");
    let profile = read(&file);
    let of_it = |row: &Value| row["object"] == stripped.as_str();
    assert!(counted(&profile, of_it) >= 20, "{profile}");
    let named = |row: &Value| row["symbol"].as_str().is_some_and(|s| s.contains("linerate_"));
    assert_eq!(counted(&profile, named), 0, "{profile}");
    let remarks = remarks(&profile);
    assert!(remarks.contains("have no function symbol"), "{remarks}");
    assert!(remarks.contains(&stripped), "{remarks}");
}

#[test]
fn a_process_that_ends_while_it_is_recorded_leaves_its_profile() {
    let folder = Folder::new();
    let file = folder.path("profile.json");
    let forward = Forward::here(Forward::command(&["null:", "null:"], true));
    let mut recorder = record(&["--pid", &forward.id().to_string(), "-o", &file]);
    until_it_samples(&mut recorder);
    // Wait until the program has used CPU time, which a wait of fixed length would not ensure.
    let since = forward.cpu_ticks();
    until_true("half a second of CPU time", LONG, || forward.cpu_ticks() >= since + 50);
    forward.signal(Signal::TERM);
    let _ = forward.finish(LONG);
    let done = or_skip!(possible(recorder.finish(LONG)));
    assert_eq!(done.code(), 0, "{done:?}");
    let profile = read(&file);
    assert!(counted(&profile, |_| true) > 20, "{profile}");
    assert!(remarks(&profile).contains("the process ended before the recording"), "{profile}");
}
