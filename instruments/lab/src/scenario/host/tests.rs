//! Tests with real TCP between real namespaces; they need root and are skipped otherwise. They
//! check counts only, never times.

use std::fs;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linerate_prof::pmu;
use linerate_prof::stage::{Stage, stage_of};
use linerate_sys::thread::allowed_cpus;
use linerate_testing::unless;

use super::config::Workload;
use super::*;
use crate::experiment::builtin;
use crate::scenario::is_missing_here;
use crate::window::Window;
use threads::{cpus_of, napi, numbered, ours, running};

// If this machine cannot run these tests, they print a note, which only a test may do.
#[cfg(test)]
mod answers;
#[cfg(test)]
mod killed;
#[cfg(test)]
mod post_004;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod threads;
#[cfg(test)]
mod watched;

const WINDOW: Duration = Duration::from_millis(150);

/// Lock that runs these tests one at a time, because each uses every CPU.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns a side ready to run; prints the reason and returns `None` if this machine cannot run it.
fn open(settings: &Settings) -> Option<(MutexGuard<'static, ()>, Box<dyn Bench>)> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let place =
        Place { cpus: allowed_cpus().unwrap(), seed: 7, program: None, stop: Arc::default() };
    let opened = Host.check(settings, &place).and_then(|()| Host.open(settings, &place));
    Some((alone, unless(opened, is_missing_here)?))
}

fn settings(pairs: &[(&str, &str)]) -> Settings {
    // Time every call, so that ticks are known even with few calls.
    let settings = Settings::new().with("sample_every", 1);
    pairs.iter().fold(settings, |settings, (name, value)| match value.parse::<i64>() {
        Ok(number) => settings.with(name, number),
        Err(_) if *value == "true" => settings.with(name, true),
        Err(_) => settings.with(name, *value),
    })
}

fn figure(window: &Window, name: &str) -> f64 {
    window.figure(name).unwrap_or_else(|| panic!("no {name} in {window:?}"))
}

#[test]
fn a_stream_carries_bytes_and_every_packet_is_accounted_for() {
    let Some((_alone, mut bench)) = open(&settings(&[("adapters", "1")])) else { return };
    let mut packets = 0;
    for _ in 0..2 {
        let window = bench.window(WINDOW).unwrap();
        let figure = |name: &str| figure(&window, name);
        assert_eq!(window.disturbed, None);
        // One acknowledgement acknowledges several packets, and each packet carries at most 1448
        // bytes.
        assert!(figure("goodput_bytes") > 4096.0 && figure("sent") >= 1.0, "{window:?}");
        assert!(figure("packets") * 1500.0 >= figure("goodput_bytes"), "{window:?}");
        assert!(figure("bytes") > figure("goodput_bytes") * 0.9, "{window:?}");
        assert!(figure("allocs") > 0.0 && figure("timed_calls") > 0.0);
        assert!(figure("free_ticks") > 0.0 && figure("free_ticks") < figure("total_ticks"));
        assert!(figure("cpu_share") > 0.0 && figure("probes") > 0.0);
        let measured: Vec<_> = window.threads.iter().map(|thread| thread.role.as_str()).collect();
        assert_eq!(measured, ["worker 0"]);
        packets += window.packets;
    }
    let ended = bench.finish().unwrap();
    assert!(ended.ledger.balanced && ended.ledger.in_flight == 0, "{ended:?}");
    assert!(ended.ledger.sent >= packets && ended.ledger.retransmitted.is_some(), "{ended:?}");
    assert_eq!(ended.totals["outstanding"], 0.0);
}

#[test]
fn smoltcp_on_a_thread_behind_a_ring_reads_and_checks_every_byte() {
    for port in ["packet", "xdp", "tap"] {
        let told = [("east", "smoltcp"), ("probes", "0"), ("connections", "2"), ("port", port)];
        let Some((_alone, mut bench)) = open(&settings(&told)) else { return };
        let mut packets = 0;
        for _ in 0..2 {
            let window = bench.window(WINDOW).unwrap();
            let figure = |name: &str| figure(&window, name);
            assert!(figure("goodput_bytes") > 4096.0 && figure("sent") >= 1.0, "{window:?}");
            assert!(figure("packets") * 1500.0 >= figure("goodput_bytes"), "{window:?}");
            assert_eq!((window.figure("core_lost"), figure("receiver_lost")), (None, 0.0));
            packets += window.packets;
        }
        let ended = bench.finish().unwrap();
        assert!(ended.ledger.balanced && ended.ledger.in_flight == 0, "{ended:?}");
        // What the programs take from their rings is consumed, and what they send leaves by a
        // device.
        assert!(ended.ledger.consumed + ended.ledger.sent >= packets, "{ended:?}");
        assert_eq!(ended.totals["outstanding"], 0.0);
    }
}

#[test]
fn smoltcp_has_only_what_it_can_do() {
    let place = Place { cpus: vec![0, 1], seed: 7, program: None, stop: Arc::default() };
    for (told, fix) in [
        (&[("workload", "rpc")][..], "workload = \"stream\" or \"web\", or east = \"kernel\""),
        (&[("qdisc", "qdisc=fifo")], "leave topology, offload, qdisc and fault out"),
        (&[("topology", "split")], "leave topology, offload, qdisc and fault out"),
        (&[], "probes = 0, or east = \"kernel\""),
    ] {
        let told = [&[("east", "smoltcp")], told].concat();
        let e = Host.check(&settings(&told), &place).unwrap_err();
        assert!(e.fix.contains(fix), "{e}");
    }
}

#[test]
fn a_web_answers_every_request_and_every_packet_is_accounted_for() {
    for (rate, east) in
        [("max", "kernel"), ("500", "kernel"), ("max", "smoltcp"), ("500", "smoltcp")]
    {
        let mut told = vec![("workload", "web"), ("rate", rate), ("connections", "4")];
        if east == "smoltcp" {
            told.extend([("east", east), ("probes", "0")]);
        }
        let Some((_alone, mut bench)) = open(&settings(&told)) else { return };
        let window = bench.window(2 * WINDOW).unwrap();
        let figure = |name: &str| figure(&window, name);
        assert!(figure("responses") >= 1.0, "{window:?}");
        // Each client has at most one request without a response when the window ends.
        assert!(figure("requests") - figure("responses") <= 4.0, "{window:?}");
        assert!(figure("request_count") <= figure("due"));
        assert!(figure("request_pending") <= figure("request_count") && figure("failed") == 0.0);
        assert_eq!(window.figure("offered_pct").is_some(), rate != "max");
        assert!(figure("goodput_bytes") > 102.0 * figure("responses"));
        // Each client may send one while the counts at the window's end are read.
        assert!((figure("sent") - figure("requests")).abs() <= 4.0, "{window:?}");
        assert!(figure("due") >= figure("sent"));
        assert!(rate != "max" || figure("due") == figure("sent"), "{window:?}");
        let ended = bench.finish().unwrap();
        assert!(ended.ledger.balanced && ended.ledger.in_flight == 0, "{ended:?}");
    }
}

/// Returns NAPI's threads of each of the engine's devices of an adapter.
fn napi_of(adapter: usize, east: &str) -> Vec<Vec<i32>> {
    // With smoltcp the engine has no device in the east.
    let ends = if east == "kernel" { 2 } else { 1 };
    ["w", "e"].iter().take(ends).map(|end| napi(&format!("{end}{adapter}"))).collect()
}

/// Tests S3.2 and S3.18. Where NAPI has no threads, such a side does not open, and the test prints
/// why.
#[test]
fn each_placement_binds_its_own_threads_and_counts_what_all_of_them_took() {
    let all = allowed_cpus().unwrap();
    if all.len() < 2 {
        return println!("skipped: with one CPU there is nothing to choose");
    }
    for (placement, east, worker, reader) in [
        ("none", "kernel", false, false),
        ("irq", "kernel", true, false),
        ("process", "kernel", false, true),
        ("both", "kernel", true, true),
        ("irq", "smoltcp", true, false),
        ("process", "smoltcp", false, true),
    ] {
        let told = [("port", "xdp"), ("adapters", "2"), ("probes", "0")];
        let told = [&told[..], &[("placement", placement), ("east", east)]].concat();
        // Another program's devices may have the same names, in a namespace of its own.
        let others = [0, 1].map(|number| napi_of(number, east));
        let Some((_alone, mut bench)) = open(&settings(&told)) else { return };
        let bound =
            |number: usize, is_bound| if is_bound { vec![all[number]] } else { all.clone() };
        for number in [0, 1] {
            let of = |name: &str| cpus_of(&numbered(&format!("{name}-{number}")));
            assert_eq!(of("host-worker"), [bound(number, worker)], "{placement}");
            assert_eq!(of("east"), [bound(number, reader)], "{placement}");
            for (found, others) in napi_of(number, east).iter().zip(&others[number]) {
                let own: Vec<i32> =
                    found.iter().filter(|thread| !others.contains(thread)).copied().collect();
                assert_eq!(cpus_of(&own), [bound(number, worker)], "{placement}: NAPI");
            }
        }
        let window = bench.window(WINDOW).unwrap();
        assert!(window.packets > 0, "{window:?}");
        let figure = |name: &str| figure(&window, name);
        assert!(figure("napi_cpu_ns") > 0.0 && figure("readers_cpu_ns") > 0.0, "{window:?}");
        assert!(figure("path_cpu_ns") > figure("napi_cpu_ns") + figure("readers_cpu_ns"));
        let told = window.figure("switches").zip(window.figure("migrations"));
        assert!(told.is_none_or(|(switches, _)| switches > 0.0), "{window:?}");
        let cpus: Vec<_> = window.threads.iter().map(|thread| thread.cpu.is_some()).collect();
        assert_eq!(cpus, [worker; 2], "one that roams has no CPU of its own");
        if placement == "both" {
            profiled(bench.as_mut());
        }
        let ended = bench.finish().unwrap();
        assert!(ended.ledger.balanced && ended.ledger.in_flight == 0, "{ended:?}");
    }
}

/// Checks that a profile of the whole machine contains the kernel's path, with callers, its own
/// cost, and the CPU time of the path by two instruments.
fn profiled(bench: &mut dyn Bench) {
    // On a busy machine few packets may pass in one window, so try several.
    for _ in 0..20 {
        let Some(profiles) = unless(bench.profile(2 * WINDOW), pmu::is_refused) else { return };
        let profile = &profiles[0];
        let is_hidden = |remark: &String| remark.contains("left out") || remark.contains("hides");
        if profile.remarks.iter().any(is_hidden) {
            return println!("skipped: {:?}", profile.remarks);
        }
        assert!(profile.own_cost.is_some() && profile.conditions.packets.is_some(), "{profile:?}");
        let is_called =
            |frames: &[String]| frames.iter().skip(1).any(|name| name.starts_with("tcp_"));
        let by = &profile.checked.as_ref().expect("the path's CPU time").headline.by;
        let [samples, scheduler] = by.as_slice() else { panic!("{by:?}") };
        assert!(scheduler.value > Some(0.0), "{by:?}");
        if profile.rows.iter().any(|row| row.symbol.starts_with("tcp_"))
            && profile.stacks.iter().any(|stack| is_called(&stack.frames))
            && !samples.measures.starts_with("0 x ")
        {
            return;
        }
    }
    panic!("no sample in TCP, none with its caller, or none of the path");
}

#[test]
fn placements_that_make_no_sense_are_refused_with_the_way_out() {
    let place = Place { cpus: vec![0, 1], seed: 7, program: None, stop: Arc::default() };
    for (told, fix) in [
        (&[("placement", "irq")][..], "port = \"xdp\""),
        (&[("placement", "both"), ("port", "xdp"), ("topology", "split")], "topology"),
        (&[("placement", "none"), ("port", "xdp"), ("cpus", "one")], "cpus"),
        (&[("placement", "none"), ("port", "xdp"), ("workload", "web")], "workload"),
    ] {
        let e = Config::of(&settings(told), &place).unwrap_err();
        assert!(e.code == Code::Experiment && e.fix.contains(fix), "{e}");
    }
}

#[test]
fn packets_are_freed_on_another_cpu_behind_a_ring_and_only_there() {
    for (topology, adapters) in [("joined", "1"), ("split", "1"), ("split", "2")] {
        let told = settings(&[("topology", topology), ("adapters", adapters), ("probes", "0")]);
        let Some((_alone, mut bench)) = open(&told) else { return };
        // On a busy machine a worker may have no CPU during a whole window.
        let worked = |window: &Window| topology == "joined" || figure(window, "remote_frees") > 0.0;
        let mut windows = (0..20).map(|_| bench.window(WINDOW).unwrap());
        let window = windows.find(worked).expect("a window in which both workers ran");
        drop(windows);
        let figure = |name: &str| figure(&window, name);
        let (local, remote) = (figure("local_frees"), figure("remote_frees"));
        let workers = window.threads.len();
        let ended = bench.finish().unwrap();
        let matrix = &ended.matrices["free_matrix"];
        if topology == "joined" {
            assert!(local > 0.0 && remote == 0.0 && workers == 1, "{window:?}");
            assert_eq!(matrix.len(), 1);
        } else {
            assert!(remote > 0.0 && local < remote / 10.0, "{local} {remote}");
            // Data pass in one direction, acknowledgements in the other.
            assert!(matrix[0][1] > matrix[1][0] && matrix[1][0] > 0, "{matrix:?}");
            assert!(figure("allocs_w0") > figure("allocs_w1"), "{window:?}");
            assert_eq!(workers, if adapters == "2" { 4 } else { 2 });
            assert!(ended.totals["remote_share_pct"] > 90.0, "{:?}", ended.totals);
        }
        assert!(ended.ledger.balanced && ended.ledger.in_flight == 0, "{ended:?}");
    }
}

#[test]
fn every_port_carries_every_workload_and_accounts_for_every_packet() {
    for (port, workload, adapters, more) in [
        ("xdp", "stream", "4", ("nodelay", "true")),
        ("xdp", "load", "1", ("burst", "4")),
        ("packet", "load", "1", ("arrivals", "steps")),
        ("tap", "rpc", "1", ("cpus", "one")),
        ("tap", "load", "2", ("tx_batch", "1")),
        ("packet", "rpc", "1", ("moderation", "busy")),
        ("xdp", "rpc", "1", ("moderation", "napi")),
        ("packet", "stream", "1", ("tx_batch", "auto")),
        ("tap", "stream", "1", ("nodelay", "true")),
    ] {
        let rate = if workload == "load" { "2000" } else { "max" };
        let told = [("port", port), ("workload", workload), ("rate", rate), ("adapters", adapters)];
        let told = settings(&[&told[..], &[("cpus", "apart"), more]].concat());
        let Some((_alone, mut bench)) = open(&told) else { return };
        let window = bench.window(2 * WINDOW).unwrap();
        let figure = |name: &str| figure(&window, name);
        assert!(figure("goodput_bytes") > 0.0 && figure("rx_packets") > 0.0, "{window:?}");
        assert!(figure("senders_cpu_ns") > 0.0 && figure("doorbells") > 0.0, "{window:?}");
        assert_eq!(window.threads.len(), 1, "one worker serves all adapters");
        if more.1 == "busy" {
            assert!(figure("workers_user_ns") + figure("workers_system_ns") > 0.0, "{window:?}");
            // The kernel counts these in ticks, and programs that mostly sleep may have none in a
            // window.
            let ticks = |window: &Window| {
                self::figure(window, "programs_user_ns")
                    + self::figure(window, "programs_system_ns")
            };
            let ran = ticks(&window) > 0.0
                || (0..20).any(|_| ticks(&bench.window(2 * WINDOW).unwrap()) > 0.0);
            assert!(ran, "programs that answer requests take CPU time");
            assert_eq!((figure("irqs_device"), figure("irqs_timer")), (0.0, 0.0), "{window:?}");
        }
        match workload {
            "load" => {
                // 0.3 s × 2000 a second are due, over all four adapters, with and without bursts.
                assert!((596.0..=612.0).contains(&figure("due")), "{window:?}");
                assert!(figure("load_count") >= 500.0 && figure("load_p50_ns") > 0.0, "{window:?}");
                assert!(figure("lost") + figure("sent") <= figure("due"), "{window:?}");
            }
            "rpc" => assert!(figure("responses") > 0.0 && figure("request_count") > 0.0),
            _ => {
                // A stream without a CPU in one window gets one in another.
                let starved = |window: &Window| self::figure(window, "starved_connections");
                let all_went_on = (0..20).any(|_| starved(&bench.window(WINDOW).unwrap()) == 0.0);
                assert!(figure("sent") > 0.0 && all_went_on, "a stream on each adapter");
            }
        }
        let ended = bench.finish().unwrap();
        assert!(ended.ledger.balanced && ended.ledger.in_flight == 0, "{port} {ended:?}");
    }
}

#[test]
fn a_cap_of_one_gives_each_packet_a_doorbell() {
    for port in ["packet", "xdp"] {
        let told = settings(&[("port", port), ("tx_batch", "1"), ("cpus", "apart")]);
        let Some((_alone, mut bench)) = open(&told) else { return };
        let window = bench.window(WINDOW).unwrap();
        let figure = |name: &str| figure(&window, name);
        assert!(figure("doorbells") >= 0.99 * figure("packets"), "{port} {window:?}");
        assert!(figure("tx_calls_1") >= 0.99 * figure("packets"), "{port} {window:?}");
        bench.finish().unwrap();
    }
}

#[test]
fn settings_of_post_002_are_applied_or_said_to_be_none_of_a_hosts_and_drops_are_told() {
    let Some((_alone, mut bench)) = open(&settings(&[("sysctl", "post-002")])) else { return };
    bench.window(WINDOW).unwrap();
    let notes = bench.finish().unwrap().notes;
    let note = |start: &str| notes.iter().find(|note| note.starts_with(start)).unwrap();
    let tuned = note("Settings of post 002");
    for told in [
        "tcp_wmem = 4096 524288 4194304;",
        "tcp_rmem = 4096 1048576 4194304;",
        "net.core.rmem_max ",
        "net.core.wmem_max ",
        "netdev_max_backlog n/a: it is the machine's",
        "send queue = 512 (pfifo_fast;",
        "receive queue of 4096",
    ] {
        assert!(tuned.contains(told), "{tuned}");
    }
    let drops = note("Drops and errors of both hosts' kernels over all windows: InHdrErrors 0,");
    assert!(drops.contains("TCPRcvQDrop ") && drops.contains("refused by"), "{drops}");
    assert!(drops.contains(", rx_errs 0, rx_drop "), "{drops}");
}

/// Tests S2.31: TCP sends again what a device loses, and both the window and the run count it.
#[test]
fn segments_that_are_sent_again_are_counted_by_window_and_by_run() {
    let told = [("fault", "device:lose=37"), ("port", "packet"), ("cpus", "one"), ("probes", "0")];
    let Some((_alone, mut bench)) = open(&settings(&told)) else { return };
    let mut windows = (0..20).map(|_| figure(&bench.window(WINDOW).unwrap(), "retransmits"));
    let again = windows.find(|again| *again > 0.0).expect("one of 37 packets is lost");
    drop(windows);
    let ended = bench.finish().unwrap();
    assert!(ended.ledger.retransmitted >= Some(again as u64), "{again}: {ended:?}");
}

/// Tests S2.24. A queue that prefers some senders proves that the test would detect a starved one;
/// the same queue without that preference starves few.
#[test]
fn sixty_four_senders_with_forced_batches_all_make_progress_unless_a_queue_is_unfair() {
    let told = |more: &[(&str, &str)]| {
        let many = [("connections", "64"), ("tx_batch", "64"), ("message", "512"), ("cpus", "one")];
        let small = [("sockbuf", "4096"), ("probes", "0"), ("port", "packet"), ("nodelay", "true")];
        // Packets gather while the engine sleeps.
        let gathered = [("moderation", "fixed:usecs=400")];
        settings(&[&many[..], &small, &gathered, more].concat())
    };
    let long = 6 * WINDOW;
    let starved = |window: &Window| figure(window, "starved_connections");
    // Batches are forced if a call has several packets by the mean.
    let are_forced =
        |window: &Window| figure(window, "packets") >= 4.0 * figure(window, "tx_calls");
    let Some((alone, mut bench)) = open(&told(&[])) else { return };
    // On a busy machine a sender may have no CPU in a window, so one of five may be missed. Ten
    // windows without a miss need no more of them.
    let (mut forced, mut all_go_on) = (Vec::new(), 0);
    for _ in 0..15 {
        let window = bench.window(long).unwrap();
        if are_forced(&window) {
            all_go_on += usize::from(starved(&window) == 0.0);
            forced.push(window);
        }
        if forced.len() == 10 && all_go_on == 10 {
            break;
        }
    }
    assert!(forced.len() >= 10 && 5 * all_go_on >= 4 * forced.len(), "{all_go_on}: {forced:?}");
    assert!(bench.finish().unwrap().ledger.balanced);
    drop(alone);
    // The queue has room for all that the senders may have under way, some 250 KB, and sends that
    // in a quarter of a second. So in a window of 0.9 s neither its length nor drops starve a
    // sender.
    let queue = ("qdisc", "shape=8Mbit,qdisc=pfifo_fast,limit=1000");
    // Returns true if many starve in most of five windows, which three that agree decide.
    let starving = |more: &[(&str, &str)]| {
        let (_alone, mut bench) = open(&told(more)).expect("it opened before");
        let mut windows = [0, 0];
        while windows.iter().all(|n| *n < 3) {
            windows[usize::from(starved(&bench.window(long).unwrap()) >= 8.0)] += 1;
        }
        assert!(bench.finish().unwrap().ledger.balanced);
        windows[1] == 3
    };
    assert!(!starving(&[queue]), "the queue starves senders without preferring others");
    let unfair = starving(&[queue, ("fault", "core:prefer=2")]);
    assert!(unfair, "few of the others starve beside those that the queue prefers");
}

#[test]
fn a_toll_is_paid_for_each_irq_and_counted_by_kind() {
    let rate = ("rate", "2000");
    let told = [("port", "xdp"), ("workload", "load"), rate, ("moderation", "napi")];
    let told = settings(&[&told[..], &[("cpus", "apart"), ("toll", "1us/20us")]].concat());
    let Some((_alone, mut bench)) = open(&told) else { return };
    let window = bench.window(2 * WINDOW).unwrap();
    let figure = |name: &str| figure(&window, name);
    let irqs = figure("irqs_device") + figure("irqs_timer");
    let calls = figure("tx_calls") + figure("rx_packets");
    assert!(irqs > 0.0 && figure("flushing_reads") >= 2.0 * irqs, "{window:?}");
    assert!(figure("flushing_reads") <= 2.0 * irqs + figure("rechecks"), "{window:?}");
    let writes = figure("posted_writes") - figure("flushing_reads");
    assert!(writes > 0.0 && writes <= calls, "one for each call that moved packets: {window:?}");
    let paid = 20e3 * figure("flushing_reads") + 1e3 * figure("posted_writes");
    assert_eq!(figure("register_ns"), paid);
    assert_eq!(figure("flushing_ns"), 20e3 * figure("flushing_reads"));
    let notes = bench.finish().unwrap().notes;
    assert!(notes.iter().any(|note| note.starts_with("MODEL")), "{notes:?}");
}

#[test]
fn a_device_that_the_kernel_holds_wakes_the_worker_for_several_packets() {
    let rate = ("rate", "2000");
    let told = [("port", "xdp"), ("workload", "load"), rate, ("moderation", "napi")];
    let told = settings(&[&told[..], &[("cpus", "apart"), ("hold", "10000")]].concat());
    let Some((_alone, mut bench)) = open(&told) else { return };
    let window = bench.window(2 * WINDOW).unwrap();
    let figure = |name: &str| figure(&window, name);
    assert_eq!(figure("irqs_timer"), 0.0, "the worker sets no timer: {window:?}");
    assert!(figure("rx_packets") > 4.0 * figure("irqs_device"), "{window:?}");
}

#[test]
fn a_rate_is_kept_to_and_probes_arrive() {
    let told = settings(&[("rate", "400000"), ("probes", "400")]);
    let Some((_alone, mut bench)) = open(&told) else { return };
    let window = bench.window(2 * WINDOW).unwrap();
    let figure = |name: &str| figure(&window, name);
    // Due: 0.3 s × 400,000 bytes/s in writes of 4096.
    assert!((29.0..=30.0).contains(&figure("due")) && figure("sent") <= figure("due"));
    assert!(figure("goodput_bytes") <= 30.0 * 4096.0);
    assert_eq!(figure("offered_pct"), figure("sent") * 100.0 / figure("due"));
    // 120 are due in 0.3 s; those of the last tenth never count.
    assert_eq!(figure("receipt_count"), 108.0);
    assert!(figure("receipt_pending") <= 108.0 && figure("probes") <= 120.0);
    assert!(figure("probes_lost") <= figure("probes"));
    // The latency of a probe includes the lateness of its sender.
    assert!(figure("probe_late_p50_ns") <= figure("receipt_p50_ns"), "{window:?}");
    bench.finish().unwrap();
}

#[test]
fn a_rate_that_cannot_be_reached_is_told_and_refuses_no_window() {
    let told = settings(&[("workload", "web"), ("rate", "2000000"), ("connections", "4")]);
    let Some((_alone, mut bench)) = open(&told) else { return };
    let window = bench.window(2 * WINDOW).unwrap();
    let figure = |name: &str| figure(&window, name);
    assert!(figure("offered_pct") < 98.0 && window.disturbed.is_none(), "{window:?}");
    // Requests that were due and not sent count as unanswered.
    assert!(figure("request_pending") >= 1.0, "{window:?}");
    assert!(figure("request_count") > figure("sent"), "{window:?}");
    assert!(figure("request_p50_ns") > 0.0, "{window:?}");
    let notes = bench.finish().unwrap().notes;
    for told in ["2000000 requests/s was not reached: in 1 of 1 windows", "requests had no answer"]
    {
        assert!(notes.iter().any(|note| note.contains(told)), "{notes:?}");
    }
}

#[test]
fn nothing_runs_between_windows_and_nothing_is_left() {
    let links = || fs::read_to_string("/proc/self/net/dev").unwrap().lines().count();
    let (links_before, names_before) = (links(), named());
    let told = settings(&[("workload", "web"), ("connections", "2")]);
    let Some((_alone, mut bench)) = open(&told) else { return };
    bench.window(WINDOW).unwrap();
    let (before, names) = (running(), threads::names());
    assert!(names.iter().any(|name| name.starts_with("host-worker-")), "{names:?}");
    crate::scenario::pause::pause(Duration::from_millis(300));
    // No thread of the side ran meanwhile: compare the numbers of context switches instead of CPU
    // times.
    assert_eq!(running(), before);
    bench.finish().unwrap();
    assert_eq!((links(), named()), (links_before, names_before));
    let left: Vec<_> = threads::names().into_iter().filter(|name| ours(name)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_profile_names_functions_and_packets() {
    let Some((_alone, mut bench)) = open(&settings(&[("topology", "split")])) else { return };
    // On a busy machine a worker may have no CPU during a whole profile, so try several.
    let mut is_sampled = false;
    for _ in 0..20 {
        let profiles = bench.profile(Duration::from_millis(300));
        let Some(profiles) = unless(profiles, pmu::is_refused) else {
            is_sampled = true;
            break;
        };
        let [profile] = profiles.as_slice() else { panic!("{}", profiles.len()) };
        assert!(profile.rows.is_sorted_by(|a, b| a.count >= b.count));
        is_sampled = profile.conditions.packets.unwrap() > 0 && !profile.rows.is_empty();
        if is_sampled {
            break;
        }
    }
    assert!(is_sampled, "no profile has packets and functions");
    // The side still works, and its ledger still balances.
    assert!(bench.window(WINDOW).unwrap().packets > 0);
    assert!(bench.finish().unwrap().ledger.balanced);
}

#[test]
fn a_profile_of_the_machine_has_the_kernels_path_of_senders_and_engine() {
    let told = settings(&[("sampled", "machine"), ("cpus", "apart"), ("port", "xdp")]);
    let Some((_alone, mut bench)) = open(&told) else { return };
    let mut stages: Vec<Stage> = Vec::new();
    // On a busy machine few packets may pass in one window, so try several.
    for _ in 0..20 {
        let Some(profiles) = unless(bench.profile(2 * WINDOW), pmu::is_refused) else { return };
        let [profile] = profiles.as_slice() else { panic!("{}", profiles.len()) };
        if profile.remarks.iter().any(|remark| remark.contains("left out")) {
            return println!("skipped: {:?}", profile.remarks);
        }
        assert!(profile.stacks.is_empty() && profile.conditions.packets.is_some(), "{profile:?}");
        let headline = &profile.checked.as_ref().expect("the workers' CPU time").headline;
        assert!(headline.name.ends_with("the workers"), "{headline:?}");
        stages.extend(profile.rows.iter().map(|row| stage_of(&row.symbol, None, row.space)));
        let has = |stage| stages.contains(&stage);
        // `User` is code of programs that is not of the workers' crates.
        if [Stage::Tcp, Stage::Ip, Stage::Core, Stage::User].into_iter().all(has) {
            assert!(bench.finish().unwrap().ledger.balanced);
            return;
        }
    }
    panic!("no sample in TCP, in IP, in the core, or in a program: {stages:?}");
}

#[test]
fn every_figure_of_a_window_has_a_name_and_a_unit() {
    let names: Vec<&str> = Host.figures().iter().map(|figure| figure.name).collect();
    assert!(names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)), "{names:?}");
    let Some((_alone, mut bench)) = open(&settings(&[("topology", "split")])) else { return };
    let window = bench.window(WINDOW).unwrap();
    for name in window.figures.keys() {
        let family =
            name.rsplit_once("_w").map_or(name.clone(), |(front, _)| format!("{front}_w0"));
        let family = family.rsplit_once("_calls_").map_or(family.clone(), |_| "tx_calls_1".into());
        let known = names.contains(&name.as_str()) || names.contains(&family.as_str());
        assert!(known || name.starts_with("dropped_"), "{name}");
    }
    bench.finish().unwrap();
}

/// Returns the named network namespaces.
fn named() -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
