//! Two hosts joined by AF_XDP ports, or by an AF_XDP port and a port of another kind. The hosts'
//! offloads have their defaults: AF_XDP gets no partial checksums, without any setting by the user.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_sys::netif::{DeviceOffload, Interface, NapiHold};
use linerate_sys::thread::{allowed_cpus, keeps_no_account, run_delay_ns, run_on};
use linerate_tests::capture::Folder;
use linerate_tests::command::{Forward, Refusal, Report, linerate};
use linerate_tests::netns::Netns;
use linerate_tests::scenario;
use linerate_tests::topology::{EAST, Hosts, WEST, wait_for_carrier};
use linerate_tests::traffic::{Session, ping, reaches, transfer};
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{may_pin, or_skip};
use rustix::process::Signal;

/// Joins the hosts by a port on `w0` and one on `e0`; returns the reason to skip if AF_XDP is not
/// available.
fn join(hosts: &Hosts, west: &str, east: &str) -> Result<Forward, String> {
    available(hosts)?;
    let forward = Forward::start(&hosts.middle, &[west, east]);
    for (text, name) in [(west, "w0"), (east, "e0")] {
        if text.starts_with("tap:") {
            hosts.bridge("te", name);
        } else if text.starts_with("packet:") {
            hosts.wait_for_packet_port(name);
        } else {
            wait_for_xdp_port(&hosts.middle, name);
        }
    }
    hosts.wait_until_joined();
    Ok(forward)
}

fn available(hosts: &Hosts) -> Result<(), String> {
    let opened = hosts.middle.run(|| linerate_port::Port::open("xdp:w0").map(drop));
    linerate_tests::available(opened)
}

fn wait_for_xdp_port(netns: &Netns, name: &str) {
    let show = format!("link show dev {name}");
    until_true("an XDP program", SOON, || netns.ip(&show).contains("prog/xdp"));
}

fn carry(west: &str, east: &str) -> Option<Report> {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(why) => {
            eprintln!("skipped: {why}");
            return None;
        }
    };
    let forward = match join(&hosts, west, east) {
        Ok(forward) => forward,
        Err(why) => {
            eprintln!("skipped: {why}");
            return None;
        }
    };
    let ran = scenario::pings(&hosts)
        .and_then(|()| scenario::tcp_both_ways(&hosts))
        .and_then(|()| scenario::udp(&hosts));
    if ran.is_ok() {
        transfer(&hosts.west, &hosts.east, EAST, 100_000_000);
        transfer(&hosts.east, &hosts.west, WEST, 20_000_000);
    }
    let report = forward.interrupt();
    if let Err(why) = ran {
        eprintln!("skipped: {why}");
        return None;
    }
    let bytes = report.port(0, "rx", "bytes") + report.port(1, "rx", "bytes");
    assert!(bytes > 120_000_000, "{report:?}");
    Some(report)
}

/// The address of the middle where a test gives it one.
const MIDDLE: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 3);

#[test]
fn a_generator_takes_nothing_in_and_the_host_still_answers() {
    let hosts = or_skip!(Hosts::new());
    or_skip!(available(&hosts));
    hosts.middle.ip(&format!("addr add {MIDDLE}/24 dev w0"));
    let mut command = Command::new(linerate());
    command.args(["gen", "xdp:w0", "--rate", "1kpps", "--for", "60s", "--quiet"]);
    let process = hosts.middle.start(command);
    wait_for_xdp_port(&hosts.middle, "w0");
    until_true("the generator to send", SOON, || received(&hosts.west) > 100);
    for _ in 0..3 {
        assert!(reaches(&hosts.west, MIDDLE));
    }
    process.signal(Signal::INT);
    assert_eq!(process.finish(SOON).code(), 130);
}

/// Returns the number of packets received by `eth0`.
fn received(netns: &Netns) -> u64 {
    let path = "/proc/thread-self/net/dev";
    let text = netns.run(|| std::fs::read_to_string(path)).expect("proc is mounted");
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
    let packets = line.and_then(|line| line.split_whitespace().nth(1));
    packets.and_then(|n| n.parse().ok()).expect("a count of packets")
}

#[test]
fn an_interface_with_an_address_is_taken_only_with_a_filter_or_all() {
    let hosts = or_skip!(Hosts::new());
    or_skip!(available(&hosts));
    hosts.middle.ip(&format!("addr add {MIDDLE}/24 dev w0"));
    let refusal = Refusal::inside(&hosts.middle, &["xdp:w0", "packet:e0"], 1, "E-BUSY");
    assert!(refusal.why.contains("ssh included: w0 has the address 10.7.0.3"), "{refusal:?}");
    assert!(refusal.fix.contains("xdp:w0,udp=7777") && refusal.fix.contains("xdp:w0,all"));
    assert!(reaches(&hosts.west, MIDDLE));
    let forward = Forward::start(&hosts.middle, &["xdp:w0,all", "xdp:e0"]);
    wait_for_xdp_port(&hosts.middle, "w0");
    hosts.wait_until_joined();
    let _ = forward.interrupt();
}

#[test]
fn ping_iperf_and_a_file_pass_from_xdp_to_xdp() {
    let Some(report) = carry("xdp:w0", "xdp:e0") else { return };
    assert_eq!(report.ledger("created"), 0, "nothing was copied: {report:?}");
    assert_eq!(report.ledger("received"), report.ledger("sent"), "{report:?}");
}

#[test]
fn ping_iperf_and_a_file_pass_from_xdp_to_packet() {
    let Some(report) = carry("xdp:w0", "packet:e0") else { return };
    // Superframes of the other host were cut here.
    assert!(report.ledger("created") > 0, "{report:?}");
}

#[test]
fn ping_iperf_and_a_file_pass_from_xdp_to_tap() {
    carry("xdp:w0", "tap:te");
}

#[test]
fn ping_iperf_and_a_file_pass_from_generic_xdp_to_xdp() {
    carry("xdp:w0,mode=generic", "xdp:e0");
}

#[test]
fn frames_of_nine_thousand_bytes_pass() {
    let hosts = or_skip!(Hosts::new());
    for (netns, name) in
        [(&hosts.west, "eth0"), (&hosts.east, "eth0"), (&hosts.middle, "w0"), (&hosts.middle, "e0")]
    {
        netns.ip(&format!("link set dev {name} mtu 9000"));
        wait_for_carrier(netns, name);
    }
    let forward = or_skip!(join(&hosts, "xdp:w0", "xdp:e0"));
    for size in [1472, 1765, 3000, 8972] {
        or_skip!(ping(&hosts.west, EAST, size, 50));
    }
    transfer(&hosts.west, &hosts.east, EAST, 50_000_000);
    let report = forward.interrupt();
    let (packets, bytes) = (report.port(0, "rx", "packets"), report.port(0, "rx", "bytes"));
    assert!(bytes > 2000 * packets, "{bytes} bytes in {packets} packets: {report:?}");
}

#[test]
fn two_paths_carry_at_once() {
    let (one, other) = (or_skip!(Hosts::new()), or_skip!(Hosts::new()));
    or_skip!(available(&one));
    let joins = [
        Forward::start(&one.middle, &["xdp:w0", "xdp:e0"]),
        Forward::start(&other.middle, &["xdp:w0", "xdp:e0"]),
    ];
    one.wait_until_joined();
    other.wait_until_joined();
    std::thread::scope(|scope| {
        for hosts in [&one, &other] {
            scope.spawn(|| transfer(&hosts.west, &hosts.east, EAST, 20_000_000));
        }
    });
    for join in joins {
        assert!(join.interrupt().ledger("sent") > 10_000);
    }
}

#[test]
fn rings_of_256_carry_without_a_copy_and_a_hot_list_of_128_is_warned_about() {
    let hosts = or_skip!(Hosts::new());
    or_skip!(available(&hosts));
    let args = ["xdp:w0,ring=256", "xdp:e0,ring=256", "--hot-list", "128"];
    let forward = Forward::start(&hosts.middle, &args);
    hosts.wait_until_joined();
    transfer(&hosts.west, &hosts.east, EAST, 1_000_000);
    let Report(report) = forward.interrupt();
    for port in [0, 1].map(|i| &report["ports"][i]) {
        // One way are acknowledgements, of which the kernel merges as many as it likes.
        assert!(port["rx"]["bytes"].as_u64() > Some(1000), "{report}");
        let said = ["copied_bytes", "bad_descs", "resets"].map(|key| port[key].as_u64());
        assert_eq!(said, [Some(0); 3], "{report}");
    }
    let calls = &report["calls"];
    let copies = ["copies", "copied_bytes"].map(|key| calls[key].as_u64());
    assert_eq!((copies, calls["copies_per_packet"].as_f64()), ([Some(0); 2], Some(0.0)));
    // One worker serves both ports.
    let warning = "worker 0: a hot list of 128 is shorter than the 2048 frames of the rings";
    let first = report["warnings"][0].as_str().unwrap_or_default();
    assert!(first.starts_with(warning), "{report}");
}

#[test]
fn packets_during_a_stall_are_missed_and_the_report_says_why() {
    let hosts = or_skip!(Hosts::new());
    let forward = or_skip!(join(&hosts, "xdp:w0,ring=64", "xdp:e0"));
    forward.0.signal(Signal::STOP);
    until_true("every thread to stop", SOON, || has_stopped(forward.0.id()));
    hosts.west.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        for _ in 0..1000 {
            socket.send_to(&[0; 100], (EAST, 9)).unwrap();
        }
    });
    forward.0.signal(Signal::CONT);
    hosts.wait_until_joined();
    let Report(report) = forward.interrupt();
    let count = |key: &str| report["ports"][0][key].as_u64().unwrap();
    // On a busy machine the process may also wait for a CPU after it was stopped.
    let full = count("missed_ring_full_packets") + count("missed_no_cpu_packets");
    // Its receive ring has 64 descriptors.
    assert!(full >= 1000 - 64, "{report}");
    let others = count("missed_no_frame_packets") + count("missed_unread_packets");
    assert_eq!(count("missed"), full + others, "{report}");
}

#[test]
fn packets_lost_while_the_worker_waits_for_its_cpu_are_counted_apart() {
    or_skip!(may_pin());
    let hosts = or_skip!(Hosts::new());
    or_skip!(available(&hosts));
    or_skip!(run_delay_ns().map_err(|e| {
        assert!(keeps_no_account(&e), "this is no reason to skip: {e:?}");
        e.to_string()
    }));
    let cpu = allowed_cpus().unwrap()[0];
    let ports = ["xdp:w0,ring=64,moderation=napi", "xdp:e0", "--cpu", &cpu.to_string()];
    let forward = Forward::start(&hosts.middle, &ports);
    ["w0", "e0"].iter().for_each(|name| wait_for_xdp_port(&hosts.middle, name));
    hosts.wait_until_joined();
    // Three more programs need the worker's CPU all the time.
    let ends = AtomicBool::new(false);
    let spin = || {
        run_on(&[cpu]).unwrap();
        let start = Instant::now();
        while !ends.load(Ordering::Relaxed) && start.elapsed() < SOON {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(spin)));
        hosts.west.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(2) {
                // A full queue of the sending host is no error of the path.
                let _ = socket.send_to(&[0; 100], (EAST, 9));
            }
        });
        ends.store(true, Ordering::Relaxed);
    });
    let Report(report) = forward.interrupt();
    let counts = ["missed", "missed_ring_full_packets", "missed_no_cpu_packets"];
    let [missed, ring_full, no_cpu] =
        counts.map(|key| report["ports"][0][key].as_u64().unwrap_or_default());
    assert!(no_cpu > ring_full, "{report}");
    assert!(missed >= ring_full + no_cpu, "{report}");
}

/// Returns true if all threads of a process are stopped; the state is the letter after the thread's
/// name.
fn has_stopped(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut states = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("stat")));
    states.all(|stat| stat.is_ok_and(|stat| stat.contains(") T ")))
}

/// Checks that the kernel's own programs on an interface keep working while a port takes its
/// packets.
#[test]
fn a_session_of_the_kernels_lives_beside_a_filter() {
    let hosts = or_skip!(Hosts::new());
    or_skip!(available(&hosts));
    hosts.middle.ip("addr add 10.7.0.5/24 dev w0");
    let address = "10.7.0.5".parse().unwrap();
    let mut session = Session::open(&hosts.west, &hosts.middle, address);
    let forward = Forward::start(&hosts.middle, &["xdp:w0,udp=7777", "xdp:e0,udp=7777"]);
    wait_for_xdp_port(&hosts.middle, "w0");
    or_skip!(ping(&hosts.west, address, 56, 20));
    session.chat();
    transfer(&hosts.west, &hosts.middle, address, 10_000_000);
    let report = forward.interrupt();
    assert_eq!(report.ledger("received"), 0, "{report:?}");
}

#[test]
fn deleted_host_ends_the_run_with_a_balanced_ledger() {
    let hosts = or_skip!(Hosts::new());
    let forward = or_skip!(join(&hosts, "xdp:w0", "xdp:e0"));
    let Hosts { west, middle, east } = hosts;
    // The host's end of the pair is deleted with its namespace, and with it our end.
    drop(west);
    let done = forward.0.finish(SOON);
    assert_eq!(done.code(), 1, "{done:?}");
    let report = Report::of(&done);
    report.assert_whole();
    assert_eq!(report.0["error"]["code"], "E-NODEV", "{report:?}");
    drop((middle, east));
}

#[test]
fn an_interface_that_goes_down_and_comes_back_carries_again() {
    let hosts = or_skip!(Hosts::new());
    let forward = or_skip!(join(&hosts, "xdp:w0", "xdp:e0"));
    hosts.middle.ip("link set dev e0 down");
    assert!(!reaches(&hosts.west, EAST));
    hosts.middle.ip("link set dev e0 up");
    hosts.wait_until_joined();
    transfer(&hosts.west, &hosts.east, EAST, 1_000_000);
    let _ = forward.interrupt();
}

#[test]
fn second_program_on_an_interface_is_refused_until_the_first_ends() {
    let hosts = or_skip!(Hosts::new());
    let first = or_skip!(join(&hosts, "xdp:w0", "xdp:e0"));
    for text in ["xdp:w0", "xdp:w0,udp=7777", "xdp:e0,mode=generic"] {
        let refusal = Refusal::inside(&hosts.middle, &[text, "sink:blind"], 1, "E-BUSY");
        let of = &text[..text.find(',').unwrap_or(text.len())];
        assert!(refusal.what.contains(of), "{refusal:?}");
        assert!(refusal.why.contains("the XDP program \"linerate\" (id "), "{refusal:?}");
        assert!(refusal.fix.contains("close that port, or end its process"), "{refusal:?}");
        transfer(&hosts.west, &hosts.east, EAST, 1_000_000);
    }
    let _ = first.interrupt();
    let second = join(&hosts, "xdp:w0", "xdp:e0").unwrap();
    transfer(&hosts.west, &hosts.east, EAST, 1_000_000);
    let _ = second.interrupt();
}

/// Returns a namespace with the pair `v0` and `v1`, or the reason to skip if AF_XDP is not
/// available.
fn veth() -> Result<Netns, String> {
    let netns = Netns::new()?;
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set dev v0 up");
    netns.ip("link set dev v1 up");
    let opened = netns.run(|| linerate_port::Port::open("xdp:v0").map(drop));
    linerate_tests::available(opened).map(|()| netns)
}

#[test]
fn hold_that_a_killed_run_left_is_undone_by_doctor() {
    let netns = or_skip!(veth());
    let now = || netns.run(|| NapiHold::now(&Interface::open("v0").unwrap()).unwrap().time());
    let run_in = |args: &[&str]| {
        let mut command = Command::new(linerate());
        command.args(args);
        netns.start(command)
    };
    // The engine reads the last two options itself.
    let port = "xdp:v0,hold=250us,qdisc=fifo,tx_batch=1";
    let forward = |time| run_in(&["forward", port, "sink:blind", "--for", time]);
    let done = forward("100ms").finish(SOON);
    assert_eq!((done.code(), now()), (0, None), "a run restores it at its end: {done:?}");
    assert!(done.stderr.contains("note: NAPI of v0 polls at most every 250 us"), "{done:?}");
    let run = forward("120s");
    until_true("v0 is held", SOON, || now() == Some(Duration::from_micros(250)));
    run.signal(Signal::KILL);
    let _ = run.finish(SOON);
    assert!(now().is_some(), "killed, it cannot restore it");
    // Under another name it is the same interface.
    netns.ip("link set dev v0 down");
    netns.ip("link set dev v0 name w0");
    let told = run_in(&["doctor", "--undo"]).finish(SOON);
    assert!(told.code() == 0 && told.stdout.contains("w0: NAPI no longer holds it"), "{told:?}");
    netns.ip("link set dev w0 name v0");
    netns.ip("link set dev v0 up");
    assert_eq!(now(), None);
    // A hold that another program has set since stays.
    let run = forward("120s");
    until_true("v0 is held", SOON, || now().is_some());
    run.signal(Signal::KILL);
    let _ = run.finish(SOON);
    let other = NapiHold::of_time(Duration::from_micros(70));
    netns.run(|| other.set(&Interface::open("v0").unwrap()).unwrap());
    let told = run_in(&["doctor", "--undo"]).finish(SOON);
    assert!(told.code() == 0 && told.stdout.contains("stays as it is"), "{told:?}");
    assert_eq!(now(), other.time());
}

#[test]
fn hold_that_was_set_before_a_run_was_killed_is_undone_by_doctor() {
    let netns = or_skip!(veth());
    let hold = || netns.run(|| NapiHold::now(&Interface::open("v0").unwrap()).unwrap());
    let command = |args: &[&str]| {
        let mut command = Command::new(linerate());
        command.args(args);
        netns.start(command)
    };
    let folder = Folder::new();
    let before = NapiHold { time_ns: 20_000, polls: 2 };
    netns.run(|| before.set(&Interface::open("v0").unwrap()).unwrap());
    for (i, port) in ["xdp:v0", "xdp:v0,hold=250us"].into_iter().enumerate() {
        let socket = folder.path(&format!("{i}.sock"));
        let run = command(&["forward", port, "sink:blind", "--for", "120s", "--control", &socket]);
        until_true("the socket", SOON, || std::path::Path::new(&socket).exists());
        let tune = |time| command(&["tune", &socket, "-C", "v0", "hold", time]).finish(SOON);
        for time in ["1ms", "off", "500us"] {
            let told = tune(time);
            assert_eq!(told.code(), 0, "{told:?}");
        }
        assert_eq!(tune("20ms").code(), 2, "it is longer than the longest hold");
        let told = command(&["doctor", "--undo"]).finish(SOON);
        assert!(told.stdout.contains("the run that changed it still runs"), "{told:?}");
        run.signal(Signal::KILL);
        let _ = run.finish(SOON);
        let last = NapiHold::of_time(Duration::from_micros(500));
        assert_eq!(hold(), last, "killed, it cannot restore it");
        let told = command(&["doctor", "null:"]).finish(SOON);
        let left = "a killed run left v0 changed: its hold is that of a port";
        assert!(told.stdout.contains(left), "{told:?}");
        let told = command(&["doctor", "--undo"]).finish(SOON);
        assert!(told.stdout.contains("v0: NAPI holds it for 20 us again"), "{told:?}");
        assert_eq!(hold(), before);
    }
    // A run that ends by itself restores it, and leaves no record.
    let socket = folder.path("2.sock");
    let run = command(&["forward", "xdp:v0", "sink:blind", "--for", "120s", "--control", &socket]);
    until_true("the socket", SOON, || std::path::Path::new(&socket).exists());
    let told = command(&["tune", &socket, "-C", "v0", "hold", "1ms"]).finish(SOON);
    assert_eq!(told.code(), 0, "{told:?}");
    run.signal(Signal::INT);
    let _ = run.finish(SOON);
    assert_eq!(hold(), before);
    let told = command(&["doctor", "--undo"]).finish(SOON);
    assert!(!told.stdout.contains("v0: NAPI"), "{told:?}");
}

/// Returns true if the checksum offload of `v1` in `netns` or its VLAN offload is on.
fn offload_of_v1(netns: &Netns) -> bool {
    netns.run(|| {
        let v1 = Interface::open("v1").unwrap();
        let is_on = |which| v1.offload(which).unwrap();
        is_on(DeviceOffload::Checksums) || is_on(DeviceOffload::VlanInsertion)
    })
}

#[test]
fn what_a_killed_run_left_changed_is_undone_by_doctor() {
    let netns = or_skip!(veth());
    assert!(offload_of_v1(&netns), "closed, the port has turned it on again");
    let forward = |time: &str, form: &[&str]| {
        let mut command = Command::new(linerate());
        command.args(["forward", "xdp:v0", "sink:blind", "--for", time]).args(form);
        netns.start(command)
    };
    let doctor = |arg| {
        let mut command = Command::new(linerate());
        command.args(["doctor", arg]);
        netns.start(command).finish(SOON)
    };
    let undo = || doctor("--undo");
    let left = "a killed run left v1 changed: its checksum offload is off";
    let run = forward("120s", &[]);
    until_true("the offload is off", SOON, || !offload_of_v1(&netns));
    assert!(
        run.stderr().contains("note: the checksum offload of v1 is turned off until the run ends")
    );
    let told = undo();
    assert!(told.stdout.contains("the run that changed it still runs"), "{told:?}");
    assert!(!offload_of_v1(&netns) && !doctor("null:").stdout.contains(left));
    run.signal(Signal::KILL);
    let _ = run.finish(SOON);
    assert!(!offload_of_v1(&netns), "killed, it cannot turn it on");
    let told = doctor("packet:v0");
    let has = |word: &str| told.stdout.contains(word);
    assert!(has(&format!("warn  {left}\n")) && has(": linerate doctor --undo\n"), "{told:?}");
    let told = undo();
    assert_eq!(told.code(), 0, "{told:?}");
    assert!(told.stdout.contains("v1: its checksum offload is on again"), "{told:?}");
    let vlan = "v1: its VLAN offload of sent packets (txvlan) is on again";
    assert!(told.stdout.contains(vlan), "{told:?}");
    assert!(netns.run(|| {
        let v1 = Interface::open("v1").unwrap();
        v1.offload(DeviceOffload::VlanInsertion).unwrap()
    }));
    let again = undo();
    assert!(!again.stdout.contains("is on again"), "{again:?}");
    assert!(!doctor("packet:v0").stdout.contains(left));
    // The next run on the interface restores it first, and again at its own end.
    let run = forward("120s", &[]);
    until_true("the offload is off", SOON, || !offload_of_v1(&netns));
    run.signal(Signal::KILL);
    let _ = run.finish(SOON);
    assert!(!offload_of_v1(&netns), "killed, it cannot turn it on");
    let told = forward("10ms", &[]).finish(SOON);
    let restored = told.stderr.find("note: v1: its checksum offload is on again");
    let off = told.stderr.find("of v1 is turned off until the run ends");
    assert!(restored.is_some() && restored < off, "{told:?}");
    assert!(!told.stderr.contains(left) && offload_of_v1(&netns), "{told:?}");
    assert!(!undo().stdout.contains("is on again"), "it left no record");
    // A run restores the offload by itself at its end.
    for form in [&[][..], &["--json"]] {
        let done = forward("100ms", form).finish(SOON);
        assert!(done.stderr.contains("of v1 is turned off until the run ends"), "{done:?}");
        if form.is_empty() {
            assert!(done.stdout.contains("\ncopies   v0: each packet once"), "{done:?}");
        } else {
            let refused = Report::of(&done).0["ports"][0]["refused"].to_string();
            assert!(refused.contains("zero-copy: "), "{refused}");
        }
    }
    assert!(offload_of_v1(&netns));
}
