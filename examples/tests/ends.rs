//! Every program ends, and says why, when its interface is deleted under it.

use std::process::Command;

use linerate_tests::or_skip;
use linerate_tests::process::Process;
use linerate_tests::topology::Hosts;
use linerate_tests::wait::{SOON, until_true};

const ECHO: &str = env!("CARGO_BIN_EXE_echo");
const ECHO_TOKIO: &str = env!("CARGO_BIN_EXE_echo_tokio");
const GEN: &str = env!("CARGO_BIN_EXE_gen");
const MACSWAP: &str = env!("CARGO_BIN_EXE_macswap");
const README: &str = env!("CARGO_BIN_EXE_readme");
const WIRE: &str = env!("CARGO_BIN_EXE_wire");

#[test]
fn a_program_whose_interface_is_deleted_ends_with_its_error() {
    let hosts = or_skip!(Hosts::new());
    let (middle, west) = (&hosts.middle, &hosts.west);
    // Its interface is the other end of w0, and goes with it.
    let readme = west.start(Command::new(README));
    until_true("README's port", SOON, || readme.stdout().ends_with('\n'));
    let mut programs = vec![("readme", readme)];
    for (i, (name, program, args)) in [
        ("echo", ECHO, &["7777", "packet:w0"][..]),
        ("echo_tokio", ECHO_TOKIO, &["packet:w0", "120s"]),
        ("macswap", MACSWAP, &["packet:w0"]),
        ("wire", WIRE, &["packet:w0", "packet:e0", "null:", "120s"]),
        ("gen", GEN, &["packet:w0", "120s"]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut command = Command::new(program);
        command.args(args);
        programs.push((name, middle.start(command)));
        until_true("its socket", SOON, || middle.packet_sockets("w0") > i);
    }
    middle.ip("link delete dev w0");
    for (name, program) in programs {
        assert_failed(name, program);
    }
}

fn assert_failed(name: &str, program: Process) {
    let done = program.finish(SOON);
    assert_eq!(done.code(), 1, "{name}: {done:?}");
    assert!(done.stderr.contains("E-NODEV"), "{name}: {done:?}");
    // An engine's books name the port that failed.
    let engine = matches!(name, "macswap" | "wire");
    assert_eq!(done.stdout.contains("\nFAILED: port '"), engine, "{name}: {done:?}");
}
