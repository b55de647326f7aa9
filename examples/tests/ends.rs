//! Every program ends with an error that names the cause when its interface is deleted, and not
//! before, because it was stopped for a while.

use std::fs;
use std::process::Command;

use linerate_tests::capture::Folder;
use linerate_tests::process::{Process, Signal};
use linerate_tests::topology::Hosts;
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{example, or_skip};

const SERVER: &str = "02:00:00:00:01:01=10.9.0.1";

#[test]
fn a_program_whose_interface_is_deleted_ends_with_its_error() {
    let hosts = or_skip!(Hosts::new());
    let (middle, west) = (&hosts.middle, &hosts.west);
    let folder = Folder::new();
    let parts = ["one.pcapng", "other.pcapng"].map(|name| folder.path(name));
    // Its interface is the other end of w0, and is deleted with it.
    let readme = west.start(Command::new(example!("readme")));
    until_true("README's port", SOON, || readme.stdout().ends_with('\n'));
    let mut programs = vec![("readme", readme)];
    for (i, (name, program, args)) in [
        ("echo", example!("echo"), &["7777", "packet:w0"][..]),
        ("echo_mio", example!("echo_mio"), &["packet:w0"]),
        ("echo_tokio", example!("echo_tokio"), &["packet:w0", "120s"]),
        ("macswap", example!("macswap"), &["packet:w0"]),
        ("wire", example!("wire"), &["packet:w0", "packet:e0", "null:", "120s"]),
        ("bridge", example!("bridge"), &["packet:w0", "packet:e0", "120s"]),
        ("gen", example!("gen"), &["packet:w0", "120s"]),
        ("responder", example!("responder"), &["packet:w0", "10.7.0.9", "fd00::9"]),
        ("nat", example!("nat"), &["packet:w0", "packet:e0", "10.7.0.254"]),
        ("balancer", example!("balancer"), &["packet:w0", "packet:e0", "10.7.0.100", SERVER]),
        ("decap", example!("decap"), &["packet:w0", "packet:e0", "10.9.0.1"]),
        ("dns", example!("dns"), &["packet:w0"]),
        ("smoltcp", example!("smoltcp"), &["packet:w0", "10.7.0.9/24"]),
        ("splitter", example!("splitter"), &["packet:w0", &parts[0], &parts[1]]),
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

/// Stops a program and lets it go on: some system calls, such as epoll_wait(2), then end early
/// (signal(7)).
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
