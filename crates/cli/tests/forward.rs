//! `linerate forward` and `linerate gen`: results, documents, signals.

mod command;
mod pin;

use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use command::{Ended, command, finish, run};
use linerate_testing::{Scratch, eventually, netns_with_pair, unless};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Starts the command, and returns once its workers run.
fn start(words: &str) -> Child {
    start_as(command(words))
}

fn start_as(mut command: std::process::Command) -> Child {
    let mut child = command::start(command.stdin(Stdio::null()));
    // Workers' threads have names, and start after the signals are watched.
    let tasks = format!("/proc/{}/task", child.id());
    let runs = || {
        let named = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm"));
        std::fs::read_dir(&tasks).is_ok_and(|entries| {
            entries.flatten().any(|e| named(e).is_ok_and(|name| name.starts_with("linerate-")))
        })
    };
    for _ in 0..2000 {
        if runs() {
            return child;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("no worker runs after 10 s: {:?}", finish(child));
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn interface_that_is_deleted_during_a_run_is_told_with_the_command_to_type() {
    let Some(netns) = netns_with_pair() else { return };
    // Another namespace may have an interface of a common name.
    let near = format!("d{}", std::process::id());
    netns.ip(&format!("link add {near} type veth peer name e{}", std::process::id())).unwrap();
    netns.ip(&format!("link set {near} up")).unwrap();
    let words = &format!("forward packet:{near} sink:blind --for 60s --json");
    let child = netns.run(|| start(words)).unwrap();
    netns.ip(&format!("link del {near}")).unwrap();
    let ended = Ended::from(finish(child));
    let error = &ended.document()["error"];
    assert_eq!((ended.exit, &error["code"]), (Some(1), &"E-NODEV".into()), "{ended:?}");
    let fix = error["fix"].as_str().unwrap();
    assert!(fix.starts_with("start the program again, or open the port again"), "{fix}");
    assert!(fix.ends_with(&format!("ip netns exec NAME linerate {words}")), "{fix}");
}

/// Messages of `ip netns add` where the folder of the names cannot be written.
const NO_NAMES: [&str; 2] = ["/run/netns failed", "Cannot create namespace file"];

/// A namespace of `ip netns`, which is removed after the test.
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::process::Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

#[test]
fn interface_that_is_moved_during_a_run_is_told_with_the_name_of_its_namespace() {
    let Some(netns) = netns_with_pair() else { return };
    let named = Named(format!("linerate-moved-{}", std::process::id()));
    // Other tests may have a named namespace with interfaces of common names.
    let (near, far) = (format!("m{}", std::process::id()), format!("n{}", std::process::id()));
    let added = netns.ip(&format!("netns add {}", named.0));
    if unless(added, |e| NO_NAMES.iter().any(|why| e.why.contains(why))).is_none() {
        return;
    }
    netns.ip(&format!("link add {near} type veth peer name {far}")).unwrap();
    netns.ip(&format!("link set {near} up")).unwrap();
    let words = format!("forward packet:{near} sink:blind --for 60s --json");
    let child = netns.run(|| start(&words)).unwrap();
    netns.ip(&format!("link set {near} netns {}", named.0)).unwrap();
    let ended = Ended::from(finish(child));
    let error = &ended.document()["error"];
    assert_eq!((ended.exit, &error["code"]), (Some(1), &"E-NODEV".into()), "{ended:?}");
    let (why, fix) = (error["why"].as_str().unwrap(), error["fix"].as_str().unwrap());
    assert_eq!(why, format!("it is not here, and one of that name is in namespace {}", named.0));
    assert_eq!(fix, format!("ip netns exec {} linerate {words}", named.0));
}

#[test]
fn ring_called_sink_is_not_taken_for_the_sink_behind_it() {
    let ended = run("gen sink=ring:r0 --count 5 --json");
    assert_eq!((ended.exit, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let d = ended.document();
    let names: Vec<_> = d["ports"].as_array().unwrap().iter().map(|port| &port["name"]).collect();
    assert_eq!(names, ["gen", "sink", "sink-end", "sink-2"]);
    assert_eq!(d["verify"]["packets"], 5);
}

/// S1.6: time in registers is reported separately.
#[test]
fn time_in_registers_is_a_class_of_its_own_on_the_screen_and_in_the_document() {
    // The worker sleeps until each packet is due, so that there are irqs, which read registers.
    let words = "forward gen:,count=500,rate=5kpps,burst=1,toll=1us/20us sink:";
    let shown = run(words).out;
    let line = shown.lines().find(|line| line.starts_with("toll ")).expect("a line of it");
    assert!(line.contains("gen: MODEL: ") && !line.contains(": 0 posted"), "{line}");
    assert_eq!(line.matches(" % of a CPU").count(), 2, "writes and reads: {line}");
    let ports = &run(&format!("{words} --json")).document()["ports"];
    assert!(ports[0]["registers"].as_str().unwrap().starts_with("MODEL: "), "{ports}");
    let taken = &ports[0]["register_accesses"];
    let count = |key: &str| taken[key].as_u64().unwrap();
    assert!(count("writes") > 0 && count("reads") > 0, "{taken}");
    assert_eq!(count("write_ns"), 1_000 * count("writes"), "{taken}");
    assert_eq!(count("read_ns"), 20_000 * count("reads"), "{taken}");
    assert_eq!(ports[1]["registers"], "", "no price, no figure");
    assert!(ports[1]["register_accesses"].is_null(), "{ports}");
}

#[test]
fn without_ports_it_moves_packets_and_accounts_for_each() {
    let ended = run("forward --for 300ms --json");
    assert_eq!((ended.exit, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let d = ended.document();
    assert_eq!(d["schema"], "linerate-forward/1");
    let ledger = &d["ledger"];
    assert!(ledger["created"].as_u64().unwrap() > 1000, "{d}");
    assert_eq!((&ledger["created"], &ledger["balanced"]), (&ledger["sent"], &true.into()), "{d}");
    assert_eq!(ledger["in_flight"], 0);
    assert_eq!(d["ports"][1]["tx"]["packets"], ledger["sent"]);
    // The packets are in shared memory, to which nothing was copied.
    let far = &d["far"];
    assert_eq!((&far["received"]["packets"], &far["whole"]), (&ledger["sent"], &true.into()));
    assert_eq!((&far["verified"], &d["verify"]["packets"]), (&ledger["sent"], &ledger["sent"]));
    assert_eq!((&d["ports"][1]["copied_bytes"], &d["calls"]["copies"]), (&0.into(), &0.into()));
    let phases = d["phases"].as_array().unwrap();
    assert_eq!((&phases[0]["name"], &phases[1]["name"]), (&"paced".into(), &"flat out".into()));
    assert_eq!(
        (&phases[0]["post_cpu_pct"], &phases[1]["post_cpu_pct"]),
        (&27.5.into(), &Value::Null)
    );
    assert!(phases[0]["late_p50_ns"].as_u64().is_some(), "{d}");
    assert!(phases.iter().all(|p| p["sent"]["packets"].as_u64().unwrap() > 0), "{d}");
    assert_eq!((&d["verify"]["lost"], &d["verify"]["corrupted"]), (&0.into(), &0.into()));
    assert!(d["cost"]["cpu_seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_screen_ends_with_the_balance() {
    let ended = run("forward --count 1000");
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(
        lines[0].starts_with("gen    gen at 992Mbps in bursts of up to 1 ms for 1.5s, then"),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("memif  @linerate-"), "{lines:?}");
    assert!(lines[1].ends_with(" memif client, zero copy, rings of 1024"), "{lines:?}");
    assert_eq!(lines[2], "options  for 1000 packets, budget 64, 1 worker on any CPU");
    assert!(lines[3].starts_with("memory   ") && lines[3].contains(" frames of 2048 bytes, in "));
    let far = lines.iter().find(|line| line.starts_with("far      process ")).unwrap();
    assert!(far.ends_with(" took 1,000 packets, 1,514,000 bytes, and verified 1,000"), "{far}");
    let copied = "copied   0 bytes on this side, 1,514,000 by the far process to verify them";
    assert!(lines.contains(&copied), "{lines:?}");
    let sum = "balance  rx 0 + created 1,000 = tx 1,000 + drop 0 + in flight 0   OK";
    assert!(lines.contains(&sum), "{lines:?}");
    assert!(lines.contains(&"verify   lost 0, reordered 0, corrupted 0"), "{lines:?}");
    let at = |label: &str| lines.iter().position(|line| line.starts_with(label));
    let order =
        ["pool     ", "cost     ", "time     ", "locks    ", "calls    ", "waits    "].map(at);
    assert!(order.is_sorted() && order[0].is_some(), "{lines:?}");
    assert!(lines[order[0].unwrap()].contains(" held  hot list hits "), "{lines:?}");
    assert_eq!(order[5], Some(lines.len() - 2), "{lines:?}");
    assert_eq!(lines[lines.len() - 1], "PASS: 1,000 packets, every byte verified");
    let calls = "calls    1.000 alloc/pkt  1.000 free/pkt  0.000 copies/pkt  ";
    assert!(lines[order[4].unwrap()].starts_with(calls), "{lines:?}");
    // Without a terminal there is no progress line, and no control character.
    assert!(!ended.err.contains('\r') && !ended.out.contains('\x1b'), "{ended:?}");
}

#[test]
fn locks_calls_and_waits_are_told_a_packet() {
    let d = run("gen ring:r0 --count 200k --sample 2 --json").document();
    let [locks, calls, waits] = ["locks", "calls", "waits"].map(|key| &d[key]);
    // One lock for half a hot list of 2048, at both ends.
    assert!(locks["taken_per_packet"].as_f64().unwrap() < 1.0 / 16.0, "{d}");
    assert_eq!(locks["taken"], d["pool"]["locks"]["taken"]);
    assert!(locks["wait_ns"].is_u64() && locks["wait_ns"] == waits["lock_ns"], "{d}");
    assert_eq!((&calls["allocs"], &calls["frees"]), (&200_000.into(), &200_000.into()), "{d}");
    assert_eq!((&calls["allocs_per_packet"], &calls["copies"]), (&1.0.into(), &0.into()), "{d}");
    let buffers = calls["buffers_per_alloc_call"].as_f64().unwrap();
    assert!(buffers > 1.0 && buffers <= 64.0, "{d}");
    // Each of two workers sends at most a backlog of 256 in a call.
    assert!(waits["flushes"].as_u64().unwrap() >= 2 * 200_000_u64.div_ceil(256), "{d}");
    assert!(waits["asleep_ns"].is_u64(), "{d}");
    let seconds = calls["counted_seconds"].as_f64().unwrap();
    // The last digit of the seconds is lost in the text.
    let per_second = calls["allocs_per_second"].as_f64().unwrap();
    assert!((per_second * seconds - 200_000.0).abs() < 1e-6, "{d}");
    assert!(d["cost"]["cpu_ns_per_packet"].as_f64().unwrap() > 0.0, "{d}");
    assert!(d["cost"]["awake_ns_per_packet"].as_f64().unwrap() > 0.0, "{d}");
}

#[test]
fn time_in_flushes_is_told_a_packet_once_enough_were_timed() {
    // One flush in 256 is timed, and 30 timed ones are enough: packets leave one by one.
    let d = run("gen ring:r0 --count 40k --budget 1 --json").document();
    let waits = &d["waits"];
    let of = |key: &str| waits[key].as_u64().unwrap_or_else(|| panic!("{key}: {d}"));
    assert!(of("flushes") >= 30 * 256 && of("flushes_timed") >= 30, "{d}");
    assert!(of("flush_ns") > 0, "{d}");
    let each = waits["flush_ns_per_packet"].as_f64().unwrap();
    let sent = d["ledger"]["sent"].as_f64().unwrap();
    assert!((each - of("flush_ns") as f64 / sent).abs() < 1e-6 * each, "{d}");
}

#[test]
fn a_run_without_packets_has_no_figure_a_packet() {
    let d = run("forward gen:,count=0 sink: --json").document();
    assert_eq!(d["ledger"]["sent"], 0, "{d}");
    for (object, key) in [("locks", "taken"), ("calls", "allocs"), ("waits", "asleep_ns")] {
        assert!(d[object][key].is_u64(), "{object} {key}: {d}");
        assert!(d[object][format!("{key}_per_packet")].is_null(), "{object} {key}: {d}");
    }
    let ended = run("forward gen:,count=0 sink:");
    let last = "; fewer than 1,000 packets: no costs for each packet\n";
    assert!(ended.out.ends_with(last) && !ended.out.contains("/pkt"), "{ended:?}");
    assert!(!ended.err.contains("cycles"), "{ended:?}");
}

#[test]
fn quiet_is_the_ledger_only() {
    let ended = run("forward -q --count 10");
    assert!(ended.out.starts_with("ports ") && ended.out.contains("\nbalance "), "{ended:?}");
    for label in ["rate", "pool", "cost", "irqs", "time", "locks", "calls", "waits"] {
        assert!(!ended.out.contains(&format!("\n{label} ")), "{label}: {ended:?}");
    }
}

#[test]
fn the_pool_is_reported_worker_by_worker() {
    let ended = run("forward null: null: --for 20ms --pool");
    let (_, table) = ended.out.split_once("\ncore ").unwrap();
    for part in ["  discards", "\nworker 0 ", "\ndepot lock: "] {
        assert!(table.contains(part), "{part}: {ended:?}");
    }
    let d = run("gen ring:r0 --count 200k --sample 2 --json").document();
    let pool = &d["pool"];
    let core = |name: &str| {
        let cores = pool["cores"].as_array().unwrap();
        cores.iter().find(|core| core["name"] == name).unwrap().clone()
    };
    let (first, second) = (core("worker 0"), core("worker 1"));
    assert_eq!((&first["allocs"], &second["frees"]), (&200_000.into(), &200_000.into()), "{d}");
    // The worker serves two rings of 1024.
    assert_eq!((&first["hot_list_len"], &d["warnings"]), (&2048.into(), &serde_json::json!([])));
    assert!(first["ticks_per_alloc"].as_f64().unwrap() > 0.0, "{d}");
    assert!(pool["dwell"]["remote"]["p99_ticks"].as_u64().unwrap() > 0, "{d}");
    assert!(pool["memory_bytes"].as_u64().unwrap() > 2048 * pool["frames"].as_u64().unwrap());
}

#[test]
fn memory_is_as_it_was_asked_for_and_what_is_not_is_warned_about() {
    let ended = run("forward --count 1000 --hot-list 128 --init at_free --return home");
    let warning = "warning: worker 0: a hot list of 128 is shorter than the 2048 frames";
    assert!(ended.err.starts_with(warning), "{ended:?}");
    assert!(ended.out.contains("pages, init at_free, return home\n"), "{ended:?}");
    assert!(!run("forward --count 10 --hot-list 0").err.contains("warning"));
    let d = run("forward --count 10 --hot-list 70000 --buffers general --json").document();
    assert_eq!(d["warnings"][0], "hot list: asked 70000, applied 65536 (no list is longer)");
    assert_eq!(d["pool"]["buffers"], "general");
    // Memory of that size cannot be mapped.
    let alone = d["warnings"][1].as_str().unwrap();
    assert!(
        alone.starts_with(
            "no second process; the packets go through a ring between two threads instead: "
        ),
        "{d}"
    );
    assert_eq!((&d["far"], &d["ports"][3]["driver"]), (&Value::Null, &"sink".into()), "{d}");
    for (memory, frame_bytes) in [("--fit", 16_384), ("--jumbo 512", 2048)] {
        let d = run(&format!("forward gen:,size=9000 sink: --count 1000 {memory} --json"));
        assert_eq!(d.exit, Some(0), "{d:?}");
        assert_eq!(d.document()["pool"]["frame_bytes"], frame_bytes, "{d:?}");
    }
}

#[test]
fn a_count_is_exact_from_gen_and_at_least_from_others() {
    for (words, exact) in [
        ("forward gen: sink: --count 12345 --json", true),
        ("forward gen: null: --count 12345 --json", true),
        ("forward null: null: --count 12345 --json", false),
    ] {
        let d = run(words).document();
        let sent = d["ledger"]["sent"].as_u64().unwrap();
        assert!(if exact { sent == 12345 } else { sent >= 12345 }, "{words}: {d}");
    }
}

#[test]
fn two_ports_of_one_name_are_told_apart() {
    let d = run("forward null: null: --for 20ms --json").document();
    assert_eq!(
        (&d["ports"][0]["name"], &d["ports"][1]["name"]),
        (&"null".into(), &"null-2".into())
    );
    assert_eq!(d["verify"], Value::Null);
}

#[test]
fn a_signal_ends_a_run_with_its_ledger_and_its_status() {
    for (which, exit) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        for words in ["forward --for 60s --json", "forward null: null: --for 60s --json"] {
            let child = start(words);
            signal(&child, which);
            let ended = Ended::from(finish(child));
            assert_eq!(ended.exit, Some(exit), "{words}: {ended:?}");
            assert_eq!(ended.document()["ledger"]["balanced"], true, "{words}: {ended:?}");
        }
    }
}

#[test]
fn the_end_of_a_terminal_does_not_end_a_run_under_nohup() {
    let words = "forward null: null: --for 700ms --json";
    let mut nohup = std::process::Command::new("nohup");
    nohup.arg(command(words).get_program()).args(words.split_whitespace());
    let child = start_as(nohup);
    signal(&child, Signal::HUP);
    let ended = Ended::from(finish(child));
    assert_eq!(ended.exit, Some(0), "{ended:?}");
}

/// Signals the second process, as a service's manager and a terminal do.
#[test]
fn signals_to_the_second_process_do_not_end_it_before_the_first() {
    let child = start("forward --for 1s --json");
    let far = Pid::from_raw(far_of(child.id())).unwrap();
    for which in [Signal::TERM, Signal::HUP, Signal::TERM] {
        kill_process(far, which).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = Ended::from(finish(child));
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    assert_eq!(ended.document()["far"]["whole"], true, "{ended:?}");
}

#[test]
fn the_second_process_ends_with_the_first_however_that_ends() {
    for which in [Signal::INT, Signal::KILL] {
        let mut child = start("forward --for 60s --json");
        let far = far_of(child.id());
        signal(&child, which);
        // Not `finish`: it waits for the end of stderr, which the second process has, too.
        child.wait().unwrap();
        let there = || std::fs::read_to_string(format!("/proc/{far}/cmdline"));
        let gone = || there().map_or(true, |words| !words.contains("@linerate-forward-"));
        for _ in 0..2000 {
            if gone() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(gone(), "{which:?}: {:?}", there());
    }
}

#[test]
fn a_second_process_that_dies_is_told() {
    let child = start("forward --for 60s --json");
    let far = Pid::from_raw(far_of(child.id())).unwrap();
    kill_process(far, Signal::KILL).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    signal(&child, Signal::INT);
    let ended = Ended::from(finish(child));
    let d = ended.document();
    assert_eq!((ended.exit, &d["ledger"]["balanced"]), (Some(1), &true.into()), "{ended:?}");
    assert!(d["ledger"]["dropped"]["device_down"].as_u64().unwrap() > 0, "{d}");
    let why = d["error"]["why"].as_str().unwrap();
    assert!(why.starts_with("the second process has ended: signal: 9"), "{why}");
}

/// Returns the second process of a trial.
fn far_of(process: u32) -> i32 {
    let children = format!("/proc/{process}/task/{process}/children");
    std::fs::read_to_string(children).unwrap().trim().parse().unwrap()
}

#[test]
fn a_second_signal_ends_at_once_a_run_that_cannot_end_in_order() {
    // The test does not read the pipe: once it is full, the write to it blocks.
    let mut child = start("forward gen: pcap:- --for 60s");
    std::thread::sleep(Duration::from_millis(200));
    signal(&child, Signal::INT);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(child.try_wait().unwrap(), None, "it is given time to drain");
    for _ in 0..1000 {
        if let Some(status) = child.try_wait().unwrap() {
            return assert_eq!(status.code(), Some(130));
        }
        // Send the signal repeatedly: two signals count as one until the first is delivered.
        signal(&child, Signal::INT);
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    panic!("still there after 1 s: {:?}", child.wait());
}

#[test]
fn gen_reports_what_was_asked_and_what_left() {
    let ended = run("gen ring:r0 --rate 10kpps --size imix --flows 100 --for 200ms --json");
    let d = ended.document();
    assert_eq!((ended.exit, &d["schema"]), (Some(0), &"linerate-gen/1".into()), "{ended:?}");
    let pace = |key: &str| d["pace"][key].as_u64().unwrap();
    assert_eq!(pace("asked"), 2000);
    assert_eq!(pace("sent") + pace("unsent"), 2000);
    assert_eq!(d["ports"][3]["tx"]["packets"], d["pace"]["sent"]);
    assert_eq!((&d["ledger"]["balanced"], &d["verify"]["lost"]), (&true.into(), &0.into()));

    let ended = run("gen null: --count 500");
    assert!(ended.out.contains("asked 500  sent 500  unsent 0  late p50 -  p99 -"), "{ended:?}");
}

#[test]
fn a_capture_of_another_link_type_goes_to_another_file_and_nowhere_else() {
    let dir = Scratch::new();
    let file = |name: &str| dir.word(name);
    // A capture of pcap 2.4 with Linux's cooked packets; one packet of 14 bytes, of which 5 were
    // captured.
    let words = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 113, 1, 1, 5, 14_u32];
    let mut cooked: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    cooked.extend(b"hello");
    std::fs::write(file("in.pcap"), cooked).unwrap();
    let copied = run(&format!("forward pcap:{} pcap:{}", file("in.pcap"), file("out.pcapng")));
    assert_eq!(copied.exit, Some(0), "{copied:?}");
    assert!(copied.out.contains("balance  rx 1 = tx 1 "), "{copied:?}");
    let copy = std::fs::read(file("out.pcapng")).unwrap();
    // After the section header, the interface block has the link type; then the packet block has
    // both lengths.
    assert_eq!(copy[28 + 8..28 + 10], [113, 0]);
    let lengths = [5_u32, 14].map(u32::to_le_bytes).concat();
    assert!(copy.windows(13).any(|w| w[..8] == lengths && w[8..] == *b"hello"), "{copy:?}");
    for from in [file("in.pcap"), file("out.pcapng")] {
        let refused = run(&format!("forward pcap:{from} sink:"));
        assert_eq!(refused.exit, Some(1), "{refused:?}");
        let why = "link type 113 (LINUX_SLL), not Ethernet (1)";
        assert!(refused.err.contains(why), "{refused:?}");
    }
}

#[test]
fn a_capture_that_was_written_is_copied_byte_by_byte() {
    let dir = Scratch::new();
    let file = |name: &str| dir.word(name);
    let (first, second) = (file("first.pcapng"), file("second.pcapng"));
    let made = run(&format!("forward gen:,size=imix,flows=7 pcap:{first} --count 5000"));
    assert_eq!(made.exit, Some(0), "{made:?}");
    let copied = run(&format!("forward pcap:{first} pcap:{second} --json"));
    assert_eq!(copied.exit, Some(0), "{copied:?}");
    let document = copied.document();
    assert_eq!(document["ledger"]["received"], 5000);
    // Each packet is copied from one file and to the other.
    assert_eq!(document["calls"]["copies"], 10_000, "{document}");
    assert_eq!(document["calls"]["copies_per_packet"], 2.0, "{document}");
    let frames = |path: &str| -> Vec<Vec<u8>> {
        linerate::pcap::read_all(path).unwrap().into_iter().map(|f| f.bytes).collect()
    };
    assert_eq!(frames(&first).len(), 5000);
    assert!(frames(&first) == frames(&second), "the copy differs");

    // The sink verifies the generator's packets, through a pipe that contains only packets.
    let mut writing = command(&format!("forward pcap:{first} pcap:-"));
    let piped = finish(command::start(writing.stdin(Stdio::null())));
    assert!(String::from_utf8_lossy(&piped.stderr).contains("balance  rx 5,000"), "{piped:?}");
    std::fs::write(&second, &piped.stdout).unwrap();
    let from_file = |words: &str| {
        let file = std::fs::File::open(&second).unwrap();
        finish(command::start(command(words).stdin(Stdio::from(file))))
    };
    let ended = Ended::from(from_file("forward pcap:- sink: --json"));
    let verify = ended.document()["verify"].clone();
    assert_eq!((&verify["packets"], &verify["lost"]), (&5000.into(), &0.into()));

    // From pipe to pipe: text for people goes to stderr.
    let both = from_file("forward pcap:- pcap:-");
    let table = String::from_utf8_lossy(&both.stderr);
    assert!(both.status.success() && table.contains("\nstdout  "), "{table}");
    std::fs::write(&first, &both.stdout).unwrap();
    assert!(frames(&first) == frames(&second), "the copy differs");
}

#[test]
fn a_count_of_the_ports_own_holds_if_it_is_smaller() {
    for (words, created) in [
        ("forward gen:,count=7 sink: --count 100 --json", 7),
        ("forward gen:,count=100 sink: --count 7 --json", 7),
    ] {
        let d = run(words).document();
        assert_eq!(d["ledger"]["created"], created, "{words}: {d}");
    }
}

#[test]
fn a_run_too_short_for_a_search_of_places_says_so() {
    let ended = run("forward null: null: --place auto --for 200ms --json");
    if pin::is_refused(&ended) {
        return;
    }
    let document = ended.document();
    assert_eq!((ended.exit, document["placement"].is_null()), (Some(0), true), "{ended:?}");
    let warnings = document["warnings"].as_array().unwrap();
    let is_said = |w: &serde_json::Value| w.as_str().unwrap().contains("the run ended first");
    assert!(warnings.iter().any(is_said), "{ended:?}");
}

#[test]
fn tune_shows_a_port_by_the_name_of_its_queue_and_says_where_the_socket_stands() {
    let path = std::env::temp_dir().join(format!("linerate-tune-{}.sock", std::process::id()));
    let socket = path.display();
    let child = start(&format!("forward gen:rate=1kpps null: --for 60s --control {socket}"));
    eventually(|| UnixStream::connect(&path).is_ok());
    let [by_queue, swapped, unknown] = ["{} -S null/0", "-S {} null", "{} -S nul/0"]
        .map(|words| run(&format!("tune {words}").replace("{}", &socket.to_string())));
    let _ = kill_process(Pid::from_child(&child), Signal::INT);
    finish(child);
    assert!(by_queue.out.starts_with("Statistics of null:"), "{by_queue:?}");
    let fix = "fix: the socket stands before the letter option: linerate tune SOCKET -S PORT";
    assert!(swapped.exit == Some(1) && swapped.err.contains(fix), "{swapped:?}");
    assert!(unknown.exit == Some(2) && unknown.err.contains("\"nul/0\""), "{unknown:?}");
}
