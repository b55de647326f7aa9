//! Ports that cannot be opened, or are removed: a clear error, a counted drop, a balanced ledger.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use linerate::{Code, Engine, Health};
use linerate_tests::capture::{Folder, Pcap, frame};
use linerate_tests::command::{Forward, Refusal, Report, copy_into, linerate};
use linerate_tests::netns::Netns;
use linerate_tests::topology::{EAST, Hosts, WEST};
use linerate_tests::traffic::reaches;
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{available, installed, or_skip};

#[test]
fn a_text_that_is_no_port_is_refused_with_what_would_be_one() {
    for (left, right, code, word) in [
        ("veth0", "null:", "E-PORT-SYNTAX", "driver"),
        ("packt:veth0", "null:", "E-PORT-SYNTAX", "packet:veth0"),
        ("warp:9", "null:", "E-PORT-SYNTAX", "packet"),
        ("", "null:", "E-PORT-SYNTAX", "driver"),
        (":", "null:", "E-PORT-SYNTAX", "driver"),
        ("=null:", "null:", "E-PORT-SYNTAX", "name"),
        ("gen:,rat=1kpps", "sink:", "E-PORT-SYNTAX", "rate"),
        ("gen:,rate=1", "sink:", "E-PORT-SYNTAX", "rate"),
        ("gen:,size=1", "sink:", "E-PORT-SYNTAX", "60"),
        ("gen:,count=1,count=2", "sink:", "E-PORT-SYNTAX", "twice"),
        ("packet:a-name-too-long-for-linux", "null:", "E-PORT-SYNTAX", "15"),
        ("packet:../etc", "null:", "E-PORT-SYNTAX", "slash"),
        ("tap:", "null:", "E-PORT-SYNTAX", "interface"),
        ("pcap:", "null:", "E-PORT-SYNTAX", "pcap:"),
        ("ring:r", "null:", "E-TOPOLOGY", "two ends"),
        ("gen:", "gen:", "E-TOPOLOGY", "read"),
        ("sink:", "sink:", "E-TOPOLOGY", "written"),
        // An interface that every network namespace has.
        ("packet:lo", "null:", "E-TOPOLOGY", "sink:blind"),
        ("null:", "xdp:lo,all", "E-TOPOLOGY", "unwritten bytes"),
        ("null:", "tap:t0", "E-TOPOLOGY", "gen:"),
    ] {
        let refusal = Refusal::of(&[left, right], 2, code);
        let all = format!("{refusal:?}");
        assert!(all.contains(word), "{left} {right}: no '{word}' in {all}");
    }
}

#[test]
fn a_missing_interface_is_refused() {
    let netns = or_skip!(Netns::new());
    for port in ["packet:nosuch0", "xdp:nosuch0,icmp"] {
        let refusal = Refusal::inside(&netns, &[port, "sink:blind"], 1, "E-NODEV");
        assert!(refusal.what.contains("nosuch0") && !refusal.fix.is_empty(), "{refusal:?}");
    }
}

#[test]
fn an_interface_in_another_namespace_is_refused_with_the_command_to_type() {
    or_skip!(installed("unshare"));
    let netns = or_skip!(Netns::new());
    for words in
        ["forward packet:v7,udp=7 sink:blind", "forward xdp:v7,udp=7 sink:blind", "doctor v7"]
    {
        // The names of namespaces are private to the shell.
        let script = format!(
            "mkdir -p /run/netns && mount -t tmpfs none /run/netns || exit 77
             ip netns add west && ip -n west link add v7 type veth || exit 77
             {} {words}; status=$?; ip netns del west; exit $status",
            linerate().display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]);
        let done = netns.start(command).finish(SOON);
        if done.code() == 77 {
            return eprintln!("skipped: no namespace with a name: {}", done.stderr);
        }
        let said = done.stdout.clone() + &done.stderr;
        assert_eq!(done.code(), if words.starts_with("doctor") { 3 } else { 1 }, "{done:?}");
        assert!(
            said.contains("it is not here, and one of that name is in namespace west"),
            "{done:?}"
        );
        let typed = format!("fix: ip netns exec west linerate {words}\n");
        assert!(said.contains(&typed), "no {typed} in {done:?}");
    }
}

#[test]
fn an_interface_that_is_renamed_while_it_runs_carries_on() {
    for driver in ["packet", "xdp"] {
        let hosts = or_skip!(Hosts::new());
        let (w0, e0) = (format!("{driver}:w0"), format!("{driver}:e0"));
        let opens = || linerate::Port::open(&w0).map(drop);
        if let Err(why) = available(hosts.middle.run(opens)) {
            eprintln!("skipped in part: {why}");
            continue;
        }
        let forward = Forward::start(&hosts.middle, &[&w0, &e0]);
        until_true("west to reach east", 2 * SOON, || reaches(&hosts.west, EAST));
        // Before Linux 6.2 one that is up keeps its name.
        for change in ["w0 down", "w0 name x0", "x0 up"] {
            hosts.middle.ip(&format!("link set dev {change}"));
        }
        until_true("west to reach east again", 2 * SOON, || reaches(&hosts.west, EAST));
        let _ = forward.interrupt();
    }
}

#[test]
fn a_filter_that_lets_nothing_in_is_told_in_the_report_and_its_document() {
    // Each has hosts of its own: only one port in a namespace can have this filter at a time.
    let (one, other) = (or_skip!(Hosts::new()), or_skip!(Hosts::new()));
    let run = |hosts: &Hosts, json: bool| {
        let mut command = Command::new(linerate());
        command.args(["forward", "packet:w0,udp=7777", "sink:blind", "--for", "5100ms"]);
        command.args(json.then_some("--json"));
        hosts.middle.start(command)
    };
    let (text, document) = (run(&one, false), run(&other, true));
    let told = text.finish(3 * SOON);
    assert_eq!(told.code(), 0, "{told:?}");
    assert!(told.stdout.contains("w0 received no packet through udp=7777"), "{told:?}");
    let report = Report::of(&document.finish(3 * SOON));
    assert_eq!(report.0["ports"][0]["silent"], "udp=7777", "{report:?}");
    assert!(report.0["ports"][1]["silent"].is_null(), "{report:?}");
}

#[test]
fn a_port_that_a_socket_of_the_host_has_is_refused_with_whose_it_may_be() {
    let hosts = or_skip!(Hosts::new());
    let theirs = hosts.middle.run(|| std::net::UdpSocket::bind(("0.0.0.0", 7777)).unwrap());
    let refusal =
        Refusal::inside(&hosts.middle, &["packet:w0,udp=7777", "sink:blind"], 1, "E-BUSY");
    assert!(refusal.fix.contains("ss -ulpn 'sport = :7777'"), "{refusal:?}");
    drop(theirs);
}

#[test]
fn an_interface_that_is_down_is_refused_with_the_command_that_cures_it() {
    let hosts = or_skip!(Hosts::new());
    hosts.middle.ip("link set dev w0 down");
    let refusal = Refusal::inside(&hosts.middle, &["packet:w0", "packet:e0"], 1, "E-DEVICE-DOWN");
    assert!(refusal.what.contains("w0"), "{refusal:?}");
    let cure = refusal.fix.strip_prefix("ip ").unwrap_or_else(|| panic!("{refusal:?}"));
    hosts.middle.ip(cure);
    let _ = hosts.join_by_packet().interrupt();
}

#[test]
fn an_interface_that_is_deleted_ends_the_run_with_a_whole_ledger() {
    let hosts = or_skip!(Hosts::new());
    let forward = hosts.join_by_packet();
    hosts.middle.ip("link delete dev w0");
    let done = forward.0.finish(SOON);
    assert_eq!(done.code(), 1, "{done:?}");
    assert!(!done.stderr.contains("panicked"), "{done:?}");
    let report = Report::of(&done);
    report.assert_whole();
    let error = &report.0["error"];
    assert_eq!(error["code"], "E-NODEV", "{error}");
    assert!(error["what"].as_str().is_some_and(|what| what.contains("w0")), "{error}");
}

/// Returns the second number of a line of `ip -s link`, the packets.
fn packets(line: &str) -> u64 {
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[test]
fn interface_that_is_deleted_under_load_leaves_a_whole_ledger_of_what_waited_for_it() {
    let hosts = or_skip!(Hosts::new());
    for port in ["packet:e0,tx_batch=2", "xdp:w0,all,tx_batch=2,shape=20Mbit,qdisc=fq_codel"] {
        let forward = Forward::start(&hosts.middle, &["gen:,rate=200kpps,size=1000", port]);
        let interface = if port.starts_with("packet") { "e0" } else { "w0" };
        // The last part of the line has the numbers of what was sent.
        let show = format!("-s -o link show dev {interface}");
        let sent = || hosts.middle.ip(&show).rsplit('\\').next().map_or(0, packets);
        until_true("packets", SOON, || sent() > 1000);
        hosts.middle.ip(&format!("link delete dev {interface}"));
        let done = forward.0.finish(SOON);
        assert_eq!(done.code(), 1, "{done:?}");
        assert!(!done.stderr.contains("panicked"), "{done:?}");
        let report = Report::of(&done);
        report.assert_whole();
        assert_eq!(report.0["error"]["code"], "E-NODEV", "{port}: {report:?}");
        // The rate lets a tenth leave: the others waited, and were dropped with a reason.
        let dropped = report.0["ledger"]["dropped"].as_object().map_or(0, |all| all.len());
        assert!(dropped > 0 || port.starts_with("packet"), "{port}: {report:?}");
    }
}

#[test]
fn a_tap_that_is_deleted_ends_the_run_with_a_whole_ledger() {
    let hosts = or_skip!(Hosts::new());
    let forward = Forward::start(&hosts.middle, &["packet:w0", "tap:te"]);
    hosts.wait_for_packet_port("w0");
    hosts.bridge("te", "e0");
    hosts.wait_until_joined();
    hosts.middle.ip("link delete dev te");
    let done = forward.0.finish(SOON);
    assert_eq!(done.code(), 1, "{done:?}");
    let report = Report::of(&done);
    report.assert_whole();
    assert_eq!(report.0["error"]["code"], "E-NODEV", "{report:?}");
}

#[test]
fn an_interface_that_goes_down_and_comes_back_carries_again() {
    let hosts = or_skip!(Hosts::new());
    let forward = hosts.join_by_packet();
    hosts.middle.ip("link set dev e0 down");
    // Not even an ARP request arrives: the other end has no carrier either.
    assert!(!reaches(&hosts.west, EAST));
    hosts.middle.ip("link set dev e0 up");
    hosts.wait_until_joined();
    until_true("east to reach west", SOON, || reaches(&hosts.east, WEST));
    let _ = forward.interrupt();
}

#[test]
fn the_owner_of_an_engine_is_told_of_ports_that_go_down_come_back_and_are_deleted() {
    let hosts = or_skip!(Hosts::new());
    let engine = || {
        let builder = Engine::builder().port("w", "packet:w0").port("e", "packet:e0");
        builder.wire("w", "e").build().unwrap().start().unwrap()
    };
    let running = hosts.middle.run(engine);
    let mut watch = running.watch();
    assert!(watch.next(Duration::from_millis(10)).is_empty(), "all is well");
    let mut told = || {
        let mut news = watch.next(2 * SOON);
        assert_eq!(news.len(), 1, "{news:?}");
        let (port, health) = news.remove(0);
        assert_eq!(port, "w", "{health:?}");
        health
    };
    hosts.middle.ip("link set dev w0 down");
    assert!(matches!(told(), Health::Down(e) if e.code == Code::DeviceDown));
    assert_eq!(running.wait(Duration::ZERO), Ok(false), "it may come back");
    hosts.middle.ip("link set dev w0 up");
    assert_eq!(told(), Health::Up);
    hosts.middle.ip("link delete dev w0");
    // The interface goes down first, which may be reported separately.
    let gone = |health: &Health| matches!(health, Health::Failed(e) if e.code == Code::NoDevice);
    let health = told();
    assert!(gone(&health) || gone(&told()), "{health:?}");
    assert_eq!(running.wait(2 * SOON).unwrap_err().code, Code::NoDevice);
    assert!(running.stop(SOON).check().is_err());
}

/// Uses a port that is only written, so not polled, and sends nothing.
#[test]
fn the_owner_of_an_engine_is_told_that_the_interface_of_an_idle_output_is_down_or_deleted() {
    let hosts = or_skip!(Hosts::new());
    let engine = || {
        let builder = Engine::builder().port("near", "ring:idle").port("mine", "ring:idle");
        let builder = builder.port("out", "xdp:w0,write").wire("near", "out").keep("mine");
        builder.build().map(|mut engine| (engine.take("mine"), engine.start().unwrap()))
    };
    let (_idle, running) = or_skip!(available(hosts.middle.run(engine)));
    let mut watch = running.watch();
    assert!(watch.next(Duration::from_millis(300)).is_empty(), "all is well");
    let mut told = |what: &str| {
        hosts.middle.ip(what);
        let news = watch.next(SOON);
        assert!(news.iter().any(|(port, _)| port == "out"), "{what}: {news:?}");
    };
    told("link set dev w0 down");
    told("link set dev w0 up");
    told("link delete dev w0");
    assert_eq!(running.wait(2 * SOON).unwrap_err().code, Code::NoDevice);
}

#[test]
fn without_privilege_the_capability_is_named() {
    or_skip!(installed("setpriv"));
    let hosts = or_skip!(Hosts::new());
    // Another user may have no access to the folder in which the command was built.
    let folder = Folder::new();
    let copy = copy_into(&folder);
    for (port, capability) in
        [("packet:w0", "CAP_NET_RAW"), ("tap:t0", "CAP_NET_ADMIN"), ("xdp:w0", "CAP_BPF")]
    {
        let run = |json| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &copy]);
            command.args(["forward", port, "sink:blind", "--for", "10s"]);
            if json {
                command.arg("--json");
            }
            hosts.middle.start(command)
        };
        let refusal = Refusal::expect(run, 5, "E-PERM");
        assert!(format!("{refusal:?}").contains(capability), "{refusal:?}");
        assert!(!refusal.fix.is_empty(), "{refusal:?}");
    }
}

#[test]
fn advice_about_capabilities_leads_to_ports_that_open() {
    or_skip!(installed("setpriv").and_then(|()| installed("setcap")));
    let hosts = or_skip!(Hosts::new());
    or_skip!(available(hosts.middle.run(|| linerate_port::Port::open("xdp:w0").map(drop))));
    let folder = Folder::new();
    let copy = copy_into(&folder);
    let run = |port: &str, json: bool| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &copy]);
        command.args(["forward", port, "sink:", "--for", "100ms"]);
        command.args(json.then_some("--json"));
        hosts.middle.start(command)
    };
    // Each remedy keeps the capabilities that the earlier remedies gave.
    let tap_is_open = fs::metadata("/dev/net/tun").is_ok_and(|m| m.permissions().mode() & 6 == 6);
    let between = if tap_is_open { "tap:t0,up" } else { "packet:w0" };
    for port in ["packet:w0,udp=53", between, "packet:w0,udp=53"] {
        let done = run(port, false).finish(SOON);
        if done.code() == 0 {
            continue;
        }
        let fix = Refusal::expect(|json| run(port, json), 5, "E-PERM").fix;
        let (_, command) = fix.split_once(": setcap ").unwrap_or_else(|| panic!("{fix}"));
        let words: Vec<&str> = command.split(' ').collect();
        assert!(Command::new("setcap").args(&words).status().unwrap().success(), "{fix}");
        assert_eq!(run(port, false).finish(SOON).code(), 0, "{port} after {fix}");
    }
    let last = Refusal::expect(|json| run("xdp:w0,udp=53", json), 5, "E-PERM").fix;
    let all = "cap_net_bind_service,cap_net_admin,cap_net_raw,cap_ipc_lock,cap_bpf+ep";
    // The remedy has the capabilities given so far, and the missing ones.
    assert!(last.ends_with(&format!("setcap {all} {copy}")), "{last}");
}

#[test]
fn a_pool_too_small_is_refused_with_the_sum_and_the_sum_is_enough() {
    let run = |frames: &str| {
        let args = ["forward", "gen:", "sink:", "--count", "1000", "--pool-frames", frames];
        let mut command = Command::new(linerate());
        command.args(args);
        command
    };
    let small = |json| {
        let mut command = run("64");
        if json {
            command.arg("--json");
        }
        Forward::here(command)
    };
    let refusal = Refusal::expect(small, 2, "E-POOL-TOO-SMALL");
    assert!(refusal.why.contains("hot list"), "{refusal:?}");
    let sum = refusal.why.rsplit(" = ").next().unwrap();
    assert!(refusal.fix.contains(sum), "{refusal:?}");
    assert_eq!(Forward::here(run(sum)).finish(SOON).code(), 0);
    let less = (sum.parse::<u64>().unwrap() - 1).to_string();
    assert_eq!(Forward::here(run(&less)).finish(SOON).code(), 2);
}

#[test]
fn a_frame_longer_than_a_port_takes_is_dropped_and_counted() {
    let hosts = or_skip!(Hosts::new());
    let folder = Folder::new();
    let file = Pcap::new()
        .record(1, &frame(1, 60))
        // This packet is longer than any that Linux sends, and shorter than a capture's limit.
        .record(2, &frame(2, 200_000))
        .record(3, &frame(3, 1514))
        // Shorter than an Ethernet header.
        .record(4, &frame(4, 14)[..9])
        .record(5, &frame(5, 60));
    let from = format!("pcap:{}", folder.file("long.pcap", &file.0));
    let done = hosts.middle.start(Forward::command(&[&from, "packet:w0"], true)).finish(SOON);
    assert_eq!(done.code(), 0, "{done:?}");
    let report = Report::of(&done);
    report.assert_whole();
    assert_eq!((report.ledger("received"), report.ledger("sent")), (5, 3), "{report:?}");
    assert_eq!(report.dropped_as("too_long"), 1, "{report:?}");
}
