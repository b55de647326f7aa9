//! Two hosts joined through the memory of another process: one program's AF_XDP port receives
//! packets, and another program reads them there and sends them on.

use std::process::Command;
use std::time::Duration;

use linerate_tests::command::{Forward, Report, linerate};
use linerate_tests::scenario;
use linerate_tests::topology::{EAST, Hosts, WEST};
use linerate_tests::traffic::{reaches, transfer};
use linerate_tests::wait::until_true;
use linerate_tests::{available, installed, or_skip};

#[path = "forward_memif/soak.rs"]
mod soak;

/// Returns the driver: AF_XDP if it is available, else packet sockets.
fn driver(hosts: &Hosts) -> &'static str {
    let opened = hosts.middle.run(|| linerate_port::Port::open("xdp:w0").map(drop));
    match available(opened) {
        Ok(()) => "xdp",
        Err(why) => {
            eprintln!("skipped in part: packet sockets take the place of AF_XDP: {why}");
            "packet"
        }
    }
}

/// Starts both programs between the hosts; returns once a packet has passed.
fn join(hosts: &Hosts, ports: [&str; 2]) -> [Forward; 2] {
    let driver = driver(hosts);
    let sides = [("w0", ports[0]), ("e0", ports[1])];
    let joined = sides.map(|(interface, port)| {
        Forward::start(&hosts.middle, &[&format!("{driver}:{interface}"), port])
    });
    until_true("a packet", Duration::from_secs(30), || reaches(&hosts.west, EAST));
    joined
}

/// Sends pings, iperf3 streams and a file in both directions.
fn carry(hosts: &Hosts) -> Result<(), String> {
    scenario::pings(hosts).and_then(|()| scenario::tcp_both_ways(hosts))?;
    transfer(&hosts.west, &hosts.east, EAST, 50_000_000);
    transfer(&hosts.east, &hosts.west, WEST, 20_000_000);
    Ok(())
}

fn copied(report: &Report, port: usize) -> u64 {
    report.0["ports"][port]["copied_bytes"].as_u64().unwrap_or(u64::MAX)
}

#[test]
fn ping_iperf_and_a_file_pass_through_the_memory_of_another_process() {
    let hosts = or_skip!(Hosts::new());
    let joined = join(&hosts, ["memif:@fabric,role=client", "memif:@fabric,role=server"]);
    or_skip!(carry(&hosts));
    let [client, server] = joined.map(Forward::interrupt);
    let bytes = client.port(0, "rx", "bytes");
    assert!(bytes > 50_000_000, "{client:?}");
    if client.0["ports"][0]["driver"] == "xdp" {
        let copies = (copied(&client, 0), copied(&client, 1), client.ledger("created"));
        assert_eq!(copies, (0, 0, 0), "{client:?}");
    } else {
        eprintln!("skipped: no AF_XDP: by packet sockets all bytes are copied");
    }
    assert!(copied(&server, 1) > 70_000_000, "the server has no memory of its own: {server:?}");
}

/// Returns the command that starts Debian's testpmd between the devices `west` and `east`.
fn testpmd(memory: &[&str], west: &str, east: &str) -> Result<Command, String> {
    installed("dpdk-testpmd").map_err(|why| format!("{why} (apt-get install dpdk)"))?;
    let mut command = Command::new("dpdk-testpmd");
    command.args(["--no-pci", "--no-shconf", "-m", "256", "--lcores", "0@0,1@0"]).args(memory);
    command.args(["--file-prefix", &format!("linerate-{}", std::process::id())]);
    command.arg(format!("--vdev=net_memif0,id=0,rsize=10,{west}"));
    command.arg(format!("--vdev=net_memif1,id=0,rsize=10,{east}"));
    command.args(["--", "--auto-start", "--nb-cores=1", "--forward-mode=io"]);
    command.args(["--total-num-mbufs=16384", "--stats-period=1"]);
    Ok(command)
}

#[test]
fn ping_iperf_and_a_file_pass_through_testpmd() {
    let hosts = or_skip!(Hosts::new());
    // The sockets have abstract names and no files, as is testpmd's default.
    let (west, east) = ("role=server,socket=west", "role=server,socket=east");
    let mut between = hosts.middle.start(or_skip!(testpmd(&["--no-huge"], west, east)));
    let joined = join(&hosts, ["memif:@west,role=client", "memif:@east,role=client,zerocopy=no"]);
    let carried = carry(&hosts);
    assert!(between.runs(), "{}", between.stderr());
    or_skip!(carried);
    for report in joined.map(Forward::interrupt) {
        assert!(report.port(1, "rx", "bytes") > 20_000_000, "{report:?}");
    }
}

#[test]
fn ring_that_ends_the_holds_that_a_user_chose_is_noted_with_the_arithmetic() {
    let hosts = or_skip!(Hosts::new());
    let mode = ["--moderation", "fixed:usecs=10000,frames=65536"];
    let ports = ["memif:@short,role=server", "sink:"];
    // With --json there are no notes.
    let mut receiver =
        hosts.middle.start(Forward::command(&[&ports[..], &mode[..]].concat(), false));
    let mut command = Command::new(linerate());
    command.args(["gen", "memif:@short,role=client,size=64", "--rate", "20kpps"]);
    let _sender = hosts.middle.start(command);
    until_true("a note", Duration::from_secs(60), || receiver.stderr().contains("note: port"));
    let said = receiver.stderr();
    let note = said.lines().find(|line| line.starts_with("note: port")).unwrap();
    let parts =
        [": holding ", " us instead of 10000, because ", " fill half of the ring of 64 in "];
    assert!(parts.iter().all(|part| note.contains(part)), "{note}");
    assert!(receiver.runs());
}
