//! Disciplines in front of real devices, between two hosts.

use std::process::Command;
use std::time::Duration;

use linerate_tests::command::Forward;
use linerate_tests::topology::{EAST, Hosts};
use linerate_tests::traffic::iperf3;
use linerate_tests::{installed, or_skip};

/// Number of pings sent next to the streams.
const PINGS: &str = "200";

/// Returns the sorted round trip times in milliseconds of pings next to eight TCP streams that fill a link of 10
/// Mbit/s.
fn round_trips(qdisc: &str) -> Result<Vec<f64>, String> {
    let hosts = Hosts::new()?;
    // No superframes: one would take 50 ms on such a link.
    for host in [&hosts.west, &hosts.east] {
        host.ip("link set dev eth0 gso_max_segs 1");
    }
    let ports = ["packet:w0,shape=10Mbit", &format!("packet:e0,shape=10Mbit,{qdisc}")];
    let forward = Forward::start(&hosts.middle, &ports);
    hosts.wait_for_packet_port("w0");
    hosts.wait_for_packet_port("e0");
    let pinged = std::thread::scope(|scope| {
        let streams = scope
            .spawn(|| iperf3(&hosts.west, &hosts.east, EAST, &["--time", "9", "--parallel", "8"]));
        std::thread::sleep(Duration::from_secs(3));
        let mut ping = Command::new("ping");
        ping.args(["-n", "-i", "0.02", "-c", PINGS, &EAST.to_string()]);
        let pinged = hosts.west.start(ping).finish(Duration::from_secs(30));
        streams.join().expect("the streams' thread").map(|_| pinged)
    })?;
    forward.interrupt().assert_whole();
    let time = |line: &str| line.split_once("time=")?.1.split_whitespace().next()?.parse().ok();
    let mut times: Vec<f64> = pinged.stdout.lines().filter_map(time).collect();
    times.sort_by(f64::total_cmp);
    Ok(times)
}

#[test]
fn fq_codel_keeps_pings_short_beside_streams_that_fill_the_wire() {
    or_skip!(installed("ping"));
    or_skip!(installed("iperf3"));
    let p99 = |times: &[f64]| times.get(times.len() * 99 / 100).copied().unwrap_or(f64::MAX);
    let mut seen = Vec::new();
    // A host that gets no CPU for a while answers late in any queue.
    for _ in 0..3 {
        let fifo = p99(&or_skip!(round_trips("qdisc=fifo,limit=200")));
        let fq_codel = p99(&or_skip!(round_trips("qdisc=fq_codel,limit=200")));
        eprintln!("p99 of a ping: fifo {fifo} ms, fq_codel {fq_codel} ms");
        if fifo < f64::MAX && fq_codel <= fifo / 5.0 {
            return;
        }
        seen.push((fifo, fq_codel));
    }
    panic!("p99 of a ping, fifo and fq_codel: {seen:?} ms");
}
