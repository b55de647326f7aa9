//! Idle means idle at every depth, over every kind of port: the command, a loop on a port, a worker
//! that is turned by hand, an engine. The programs in `examples/` have the same test there.
//!
//! All of them are observed in the same seconds, each as a process of its own.

use std::time::Duration;

use linerate_datapath::{Engine, EngineBuilder};
use linerate_port::Port;
use linerate_skb::Pool;
use linerate_tests::command::Forward;
use linerate_tests::idle::{assert_idle, child, role, turn_port};
use linerate_tests::topology::Hosts;
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{available, or_skip};

#[test]
fn every_depth_sleeps_without_traffic() {
    let hosts = or_skip!(Hosts::new());
    let middle = &hosts.middle;
    let mut programs = vec![
        ("forward packet", Forward::start(middle, &["packet:w0", "packet:e0"]).0),
        ("forward tap", Forward::start(middle, &["tap:t0", "tap:t1"]).0),
        ("port packet", child(middle, "port packet:w0")),
        ("port tap", child(middle, "port tap:t2,up")),
        ("port ring", child(middle, "pair")),
        ("worker packet", child(middle, "worker packet:w0 packet:e0")),
        ("worker tap", child(middle, "worker tap:t3,up packet:e0")),
        ("engine packet", child(middle, "engine packet:w0 packet:e0")),
        ("engine tap", child(middle, "engine tap:t4,up packet:e0")),
        ("engine ring", child(middle, "rings packet:w0 packet:e0")),
    ];
    for tap in ["t0", "t1", "t2", "t3", "t4"] {
        until_true("a tap", SOON, || middle.interfaces().iter().any(|name| name == tap));
        middle.ip(&format!("link set dev {tap} up"));
    }
    // Two AF_XDP sockets cannot share a queue, so each program has its own hosts.
    let others = [or_skip!(Hosts::new()), or_skip!(Hosts::new()), or_skip!(Hosts::new())];
    match available(others[0].middle.run(|| Port::open("xdp:w0").map(drop))) {
        Err(why) => eprintln!("skipped in part: {why}"),
        Ok(()) => {
            let [a, b, c] = others.each_ref().map(|hosts| &hosts.middle);
            programs.push(("forward xdp", Forward::start(a, &["xdp:w0", "xdp:e0"]).0));
            programs.push(("port xdp", child(b, "port xdp:w0")));
            programs.push(("engine xdp", child(c, "engine xdp:w0 xdp:e0")));
        }
    }
    assert_idle(&mut programs);
}

#[test]
fn two_packet_ports_sleep_again_after_traffic() {
    let hosts = or_skip!(Hosts::new());
    let forward = hosts.join_by_packet();
    // Make neighbour entries permanent: else the hosts send ARP seconds after the last packet,
    // which wakes the program.
    for (host, peer) in [(&hosts.west, "10.7.0.2"), (&hosts.east, "10.7.0.1")] {
        host.ip(&format!("neigh change {peer} dev eth0 nud permanent"));
    }
    let mut programs = [("forward", forward.0)];
    assert_idle(&mut programs);
    let [(_, process)] = programs;
    let _ = Forward(process).interrupt();
}

#[test]
#[ignore = "it is what the others look at, and never ends"]
fn a_program_at_rest() {
    let role = role();
    let role: Vec<&str> = role.split(' ').collect();
    match role[..] {
        ["port", text] => turn_port(Port::open(text).unwrap()),
        ["pair"] => {
            let pool = Pool::builder().frames(1024).build().unwrap();
            let (port, _other) = Port::pair(256, &pool).unwrap();
            turn_port(port);
        }
        ["worker", a, b] => turn_worker(wired(a, b)),
        ["engine", a, b] => run(wired(a, b)),
        ["rings", a, b] => {
            let builder = Engine::builder().port("a", a).port("r0", "ring:r");
            let builder = builder.port("r1", "ring:r").port("b", b);
            run(builder.wire("a", "r0").wire("r1", "b"));
        }
        _ => panic!("what is {role:?}?"),
    }
}

fn wired(a: &str, b: &str) -> EngineBuilder {
    Engine::builder().port("a", a).port("b", b).wire("a", "b")
}

fn turn_worker(builder: EngineBuilder) {
    let mut worker = builder.build().unwrap().into_workers().remove(0);
    loop {
        let turned = worker.turn(std::time::Instant::now());
        worker.park(turned, None).unwrap();
    }
}

fn run(builder: EngineBuilder) {
    let running = builder.build().unwrap().start().unwrap();
    assert!(!running.wait(Duration::from_secs(3600)).unwrap());
}
