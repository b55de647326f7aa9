//! Programs of `examples/` use almost no CPU when idle, as do the APIs that they use.
//!
//! `gen` is not among them: it never rests. `stage_test` is a test, and `compat` ends by itself.
//! `own_driver` is the `linerate` command, which tests/tests/idle.rs measures.

use std::process::Command;

use linerate::Port;
use linerate_tests::capture::Folder;
use linerate_tests::idle::assert_idle;
use linerate_tests::netns::Netns;
use linerate_tests::process::Process;
use linerate_tests::topology::Hosts;
use linerate_tests::{available, example, or_skip};

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
        ("readme", start(west, example!("readme"), &[])),
        ("fabric_reader", start(middle, example!("fabric_reader"), &[&socket])),
        ("macswap memif", start(middle, example!("macswap"), &[&fabric])),
        ("macswap packet", start(middle, example!("macswap"), &["packet:w0"])),
        ("macswap tap", start(middle, example!("macswap"), &["tap:t0,up"])),
        ("echo packet", start(middle, example!("echo"), &["7777", "packet:w0"])),
        ("echo_mio packet", start(middle, example!("echo_mio"), &["packet:w0"])),
        ("echo_tokio packet", start(middle, example!("echo_tokio"), &["packet:w0", "120s"])),
        ("bridge packet", start(middle, example!("bridge"), &["packet:w0", "packet:e0", "120s"])),
        (
            "wire packet",
            start(middle, example!("wire"), &["packet:w0", "packet:e0", "null:", "120s"]),
        ),
        ("pool", start(middle, example!("pool"), &["127.0.0.1:0"])),
        ("responder", start(middle, example!("responder"), &["packet:w0", "10.7.0.9", "fd00::9"])),
        ("nat", start(middle, example!("nat"), &["packet:w0", "packet:e0", "10.7.0.254"])),
        (
            "balancer",
            start(middle, example!("balancer"), &["packet:w0", "packet:e0", "10.7.0.100", SERVER]),
        ),
        ("decap", start(middle, example!("decap"), &["packet:w0", "packet:e0", "10.9.0.1"])),
        ("dns", start(middle, example!("dns"), &["packet:w0"])),
        ("smoltcp", start(middle, example!("smoltcp"), &["packet:w0", "10.7.0.9/24"])),
        ("splitter", start(middle, example!("splitter"), &["packet:w0", &parts[0], &parts[1]])),
    ];
    // Two AF_XDP sockets cannot share a queue, so each program has its own hosts.
    let other = or_skip!(Hosts::new());
    match available(other.middle.run(|| Port::open("xdp:w0").map(drop))) {
        Err(why) => eprintln!("skipped in part: {why}"),
        Ok(()) => {
            programs
                .push(("echo xdp", start(&other.middle, example!("echo"), &["7777", "xdp:w0"])));
            programs.push(("macswap xdp", start(&other.middle, example!("macswap"), &["xdp:e0"])));
        }
    }
    assert_idle(&mut programs);
}

fn start(netns: &Netns, program: &str, args: &[&str]) -> Process {
    let mut command = Command::new(program);
    command.args(args);
    netns.start(command)
}
