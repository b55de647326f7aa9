//! Programs of `examples/` use almost no CPU when idle, as do the APIs that they use.
//!
//! `gen` is not among them: it never rests. `stage_test` is a test, and `compat` ends by itself. `own_driver` is the
//! `linerate` command, which tests/tests/idle.rs measures.

use std::process::Command;

use linerate::Port;
use linerate_tests::capture::Folder;
use linerate_tests::idle::assert_idle;
use linerate_tests::netns::Netns;
use linerate_tests::process::Process;
use linerate_tests::topology::Hosts;
use linerate_tests::{available, or_skip};

const BALANCER: &str = env!("CARGO_BIN_EXE_balancer");
const BRIDGE: &str = env!("CARGO_BIN_EXE_bridge");
const DECAP: &str = env!("CARGO_BIN_EXE_decap");
const DNS: &str = env!("CARGO_BIN_EXE_dns");
const ECHO: &str = env!("CARGO_BIN_EXE_echo");
const ECHO_MIO: &str = env!("CARGO_BIN_EXE_echo_mio");
const ECHO_TOKIO: &str = env!("CARGO_BIN_EXE_echo_tokio");
const FABRIC_READER: &str = env!("CARGO_BIN_EXE_fabric_reader");
const MACSWAP: &str = env!("CARGO_BIN_EXE_macswap");
const NAT: &str = env!("CARGO_BIN_EXE_nat");
const POOL: &str = env!("CARGO_BIN_EXE_pool");
const README: &str = env!("CARGO_BIN_EXE_readme");
const RESPONDER: &str = env!("CARGO_BIN_EXE_responder");
const SMOLTCP: &str = env!("CARGO_BIN_EXE_smoltcp");
const SPLITTER: &str = env!("CARGO_BIN_EXE_splitter");
const WIRE: &str = env!("CARGO_BIN_EXE_wire");
const SERVER: &str = "02:00:00:00:01:01=10.9.0.1";

#[test]
fn every_example_sleeps_without_traffic() {
    let hosts = or_skip!(Hosts::new());
    let (middle, west) = (&hosts.middle, &hosts.west);
    let socket = format!("@linerate-idle-{}", std::process::id());
    let fabric = format!("memif:{socket},role=client");
    let folder = Folder::new();
    let parts = ["one.pcapng", "other.pcapng"].map(|name| folder.path(name));
    let mut programs = vec![
        ("readme", start(west, README, &[])),
        ("fabric_reader", start(middle, FABRIC_READER, &[&socket])),
        ("macswap memif", start(middle, MACSWAP, &[&fabric])),
        ("macswap packet", start(middle, MACSWAP, &["packet:w0"])),
        ("macswap tap", start(middle, MACSWAP, &["tap:t0,up"])),
        ("echo packet", start(middle, ECHO, &["7777", "packet:w0"])),
        ("echo_mio packet", start(middle, ECHO_MIO, &["packet:w0"])),
        ("echo_tokio packet", start(middle, ECHO_TOKIO, &["packet:w0", "120s"])),
        ("bridge packet", start(middle, BRIDGE, &["packet:w0", "packet:e0", "120s"])),
        ("wire packet", start(middle, WIRE, &["packet:w0", "packet:e0", "null:", "120s"])),
        ("pool", start(middle, POOL, &["127.0.0.1:0"])),
        ("responder", start(middle, RESPONDER, &["packet:w0", "10.7.0.9", "fd00::9"])),
        ("nat", start(middle, NAT, &["packet:w0", "packet:e0", "10.7.0.254"])),
        ("balancer", start(middle, BALANCER, &["packet:w0", "packet:e0", "10.7.0.100", SERVER])),
        ("decap", start(middle, DECAP, &["packet:w0", "packet:e0", "10.9.0.1"])),
        ("dns", start(middle, DNS, &["packet:w0"])),
        ("smoltcp", start(middle, SMOLTCP, &["packet:w0", "10.7.0.9/24"])),
        ("splitter", start(middle, SPLITTER, &["packet:w0", &parts[0], &parts[1]])),
    ];
    // Two AF_XDP sockets cannot share a queue, so each program has its own hosts.
    let other = or_skip!(Hosts::new());
    match available(other.middle.run(|| Port::open("xdp:w0").map(drop))) {
        Err(why) => eprintln!("skipped in part: {why}"),
        Ok(()) => {
            programs.push(("echo xdp", start(&other.middle, ECHO, &["7777", "xdp:w0"])));
            programs.push(("macswap xdp", start(&other.middle, MACSWAP, &["xdp:e0"])));
        }
    }
    assert_idle(&mut programs);
}

fn start(netns: &Netns, program: &str, args: &[&str]) -> Process {
    let mut command = Command::new(program);
    command.args(args);
    netns.start(command)
}
