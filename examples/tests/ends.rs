//! Every program ends with an error that names the cause when its interface is deleted, and not before, because it was
//! stopped for a while.

use std::fs;
use std::process::Command;

use linerate_tests::capture::Folder;
use linerate_tests::or_skip;
use linerate_tests::process::{Process, Signal};
use linerate_tests::topology::Hosts;
use linerate_tests::wait::{SOON, until_true};

const BALANCER: &str = env!("CARGO_BIN_EXE_balancer");
const BRIDGE: &str = env!("CARGO_BIN_EXE_bridge");
const DECAP: &str = env!("CARGO_BIN_EXE_decap");
const DNS: &str = env!("CARGO_BIN_EXE_dns");
const ECHO: &str = env!("CARGO_BIN_EXE_echo");
const ECHO_MIO: &str = env!("CARGO_BIN_EXE_echo_mio");
const ECHO_TOKIO: &str = env!("CARGO_BIN_EXE_echo_tokio");
const GEN: &str = env!("CARGO_BIN_EXE_gen");
const MACSWAP: &str = env!("CARGO_BIN_EXE_macswap");
const NAT: &str = env!("CARGO_BIN_EXE_nat");
const README: &str = env!("CARGO_BIN_EXE_readme");
const RESPONDER: &str = env!("CARGO_BIN_EXE_responder");
const SMOLTCP: &str = env!("CARGO_BIN_EXE_smoltcp");
const SPLITTER: &str = env!("CARGO_BIN_EXE_splitter");
const WIRE: &str = env!("CARGO_BIN_EXE_wire");
const SERVER: &str = "02:00:00:00:01:01=10.9.0.1";

#[test]
fn a_program_whose_interface_is_deleted_ends_with_its_error() {
    let hosts = or_skip!(Hosts::new());
    let (middle, west) = (&hosts.middle, &hosts.west);
    let folder = Folder::new();
    let parts = ["one.pcapng", "other.pcapng"].map(|name| folder.path(name));
    // Its interface is the other end of w0, and is deleted with it.
    let readme = west.start(Command::new(README));
    until_true("README's port", SOON, || readme.stdout().ends_with('\n'));
    let mut programs = vec![("readme", readme)];
    for (i, (name, program, args)) in [
        ("echo", ECHO, &["7777", "packet:w0"][..]),
        ("echo_mio", ECHO_MIO, &["packet:w0"]),
        ("echo_tokio", ECHO_TOKIO, &["packet:w0", "120s"]),
        ("macswap", MACSWAP, &["packet:w0"]),
        ("wire", WIRE, &["packet:w0", "packet:e0", "null:", "120s"]),
        ("bridge", BRIDGE, &["packet:w0", "packet:e0", "120s"]),
        ("gen", GEN, &["packet:w0", "120s"]),
        ("responder", RESPONDER, &["packet:w0", "10.7.0.9", "fd00::9"]),
        ("nat", NAT, &["packet:w0", "packet:e0", "10.7.0.254"]),
        ("balancer", BALANCER, &["packet:w0", "packet:e0", "10.7.0.100", SERVER]),
        ("decap", DECAP, &["packet:w0", "packet:e0", "10.9.0.1"]),
        ("dns", DNS, &["packet:w0"]),
        ("smoltcp", SMOLTCP, &["packet:w0", "10.7.0.9/24"]),
        ("splitter", SPLITTER, &["packet:w0", &parts[0], &parts[1]]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut command = Command::new(program);
        command.args(args);
        programs.push((name, middle.start(command)));
        until_true("its socket", SOON, || middle.packet_sockets("w0") > i);
    }
    for (name, program) in &programs {
        stop_and_continue(name, program);
    }
    middle.ip("link delete dev w0");
    for (name, program) in programs {
        assert_failed(name, program);
    }
}

/// Stops a program and lets it go on: some system calls, such as epoll_wait(2), then end early (signal(7)).
fn stop_and_continue(name: &str, program: &Process) {
    program.signal(Signal::STOP);
    let state = format!("/proc/{}/stat", program.id());
    until_true(&format!("{name}'s stop"), SOON, || {
        fs::read_to_string(&state).is_ok_and(|stat| stat.contains(") T "))
    });
    program.signal(Signal::CONT);
}

fn assert_failed(name: &str, program: Process) {
    let done = program.finish(SOON);
    assert_eq!(done.code(), 1, "{name}: {done:?}");
    assert!(done.stderr.contains("E-NODEV"), "{name}: {done:?}");
    // The ledger of an engine names the port that failed.
    let engine = matches!(name, "balancer" | "decap" | "macswap" | "nat" | "wire");
    assert_eq!(done.stdout.contains("\nFAILED: port '"), engine, "{name}: {done:?}");
}
