//! Disciplines in front of real devices, between two hosts; and packets that a device never takes.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Stage, Turn};
use linerate_skb::{Batch, DropReason};
use linerate_sys::netif::{Interface, NetFolder};
use linerate_tests::capture::frame;
use linerate_tests::command::Forward;
use linerate_tests::netns::Netns;
use linerate_tests::topology::{EAST, Hosts, wait_for_carrier};
use linerate_tests::traffic::iperf3;
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{available, installed, or_skip};

/// Number of pings sent next to the streams.
const PINGS: &str = "200";
/// Fewest answers beside streams in a fifo, which loses pings as it loses other packets.
const FIFO_ANSWERS: usize = 50;
/// Fewest answers with fq_codel, in which a ping has a queue of its own.
const FQ_CODEL_ANSWERS: usize = 190;

/// Returns the sorted round trip times in milliseconds of pings next to eight TCP streams that fill
/// a link of 10 Mbit/s. The streams are sent in superframes, each of which would take up to 50 ms
/// on such a link.
fn round_trips(qdisc: &str) -> Result<Vec<f64>, String> {
    let hosts = Hosts::new()?;
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
    let report = forward.interrupt();
    report.assert_whole();
    let (packets, bytes) = (report.port(0, "rx", "packets"), report.port(0, "rx", "bytes"));
    assert!(bytes > 1514 * packets, "no superframes: {report:?}");
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
        // At the same time, between hosts of their own: both wires are slow and take little CPU.
        let (fifo, fq_codel) = std::thread::scope(|scope| {
            let fifo = scope.spawn(|| round_trips("qdisc=fifo,limit=200"));
            let fq_codel = round_trips("qdisc=fq_codel,limit=200");
            (fifo.join().expect("the fifo's thread"), fq_codel)
        });
        let (fifo, fq_codel) = (or_skip!(fifo), or_skip!(fq_codel));
        // The p99 of the answers that came: without most of them it says nothing.
        let has_answers = fifo.len() >= FIFO_ANSWERS && fq_codel.len() >= FQ_CODEL_ANSWERS;
        let told = [&fifo, &fq_codel].map(|times| (times.len(), p99(times)));
        eprintln!("answers and p99 of a ping in ms, fifo and fq_codel: {told:?}");
        if has_answers && p99(&fq_codel) <= p99(&fifo) / 5.0 {
            return;
        }
        seen.push(told);
    }
    panic!("answers and p99 of a ping in ms, fifo and fq_codel: {seen:?}");
}

/// Returns a namespace in which `v1` drops what is longer than 1400 bytes, and `v0` sends up to
/// 1500.
fn narrow() -> Result<Netns, String> {
    let netns = Netns::new()?;
    netns.try_ip("link add dev v0 type veth peer name v1")?;
    netns.ip("link set dev v1 mtu 1400");
    for name in ["v0", "v1"] {
        netns.ip(&format!("link set dev {name} up"));
    }
    wait_for_carrier(&netns, "v0");
    Ok(netns)
}

/// Returns a namespace with two veth pairs, of `v0` and `v1`, and of `w0` and `w1`.
fn two_pairs() -> Result<Netns, String> {
    let netns = narrow()?;
    netns.ip("link set dev v1 mtu 1500");
    netns.ip("link add dev w0 type veth peer name w1");
    for name in ["w0", "w1"] {
        netns.ip(&format!("link set dev {name} up"));
    }
    wait_for_carrier(&netns, "w0");
    Ok(netns)
}

/// Returns true if the kernel says that it takes a frame of 1514 bytes on interface `name`.
fn kernel_takes_long_frame(name: &str) -> bool {
    let index = Interface::open(name).unwrap().index();
    // SAFETY: socket(2) takes numbers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call has returned this descriptor, which no other value owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeroes is a valid sockaddr_ll.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    (to.sll_family, to.sll_ifindex) = (libc::AF_PACKET as u16, index as i32);
    let (frame, to_len) = (frame(0, 1514), size_of::<libc::sockaddr_ll>() as u32);
    let (bytes, to) = (frame.as_ptr().cast(), (&raw const to).cast());
    // SAFETY: both pointers are valid for the lengths given with them during the call.
    let sent = unsafe { libc::sendto(socket.as_raw_fd(), bytes, frame.len(), 0, to, to_len) };
    sent > 0
}

/// Packets wait in the backlog and in a discipline when the interface goes.
#[test]
fn interface_that_is_deleted_under_load_leaves_no_packet_in_backlog_or_discipline() {
    for driver in ["packet", "xdp"] {
        for options in ["tx_batch=2", "shape=10Mbit,qdisc=fifo", "shape=10Mbit,qdisc=fq_codel"] {
            let netns = or_skip!(narrow());
            netns.ip("link set dev v1 mtu 1500");
            let text = format!("{driver}:v0,{options}");
            let opened = netns.run(|| {
                let engine = Engine::builder().port("gen", "gen:,flows=4").port("v0", &text);
                engine.wire("gen", "v0").build()
            });
            let running = or_skip!(available(opened)).start().unwrap();
            let sent = || running.stats().ports()[1].counts.tx_packets;
            until_true("packets", SOON, || sent() >= 200);
            if options.starts_with("shape") {
                let queued =
                    || running.stats().ports()[1].qdisc.map_or(0, |counts| counts.queued.packets);
                until_true("packets in the discipline", SOON, || queued() > 0);
            }
            netns.ip("link del dev v0");
            let e = running.wait(SOON).unwrap_err();
            assert_eq!(e.code, linerate::Code::NoDevice, "{text}: {e}");
            let stopped = running.stop(SOON);
            assert!(stopped.ledger.is_drained(), "{stopped}");
            let gone = [DropReason::DEVICE_DOWN, DropReason::STOPPED];
            let dropped: u64 = gone.into_iter().map(|reason| stopped.ledger.dropped(reason)).sum();
            assert!(dropped > 0, "{text}: {stopped}");
        }
    }
}

/// Passes packets on in `.0` turns, and panics with those of the next one.
struct PanicsAfter(u32);

impl Stage for PanicsAfter {
    fn run(&mut self, _: &mut Batch, _: &mut Turn<'_>) {
        self.0 = self.0.checked_sub(1).expect("a stage's own fault");
    }
}

#[test]
fn stage_that_panics_leaks_no_frame_that_the_kernel_has_or_that_waits_for_a_device() {
    for driver in ["packet", "xdp"] {
        let netns = or_skip!(two_pairs());
        let source = netns.run(|| {
            let engine = Engine::builder().port("gen", "gen:,flows=4").port("v1", "packet:v1");
            engine.wire("gen", "v1").build().unwrap().start().unwrap()
        });
        let [near, far] = ["v0", "w0"].map(|name| format!("{driver}:{name}"));
        let queued = format!("{far},tx_batch=2,qdisc=fq_codel");
        let build = || {
            let engine = Engine::builder().port("near", &near).port("far", &queued);
            engine.wire("near", "far").stage(|_| PanicsAfter(500)).build()
        };
        let running = or_skip!(available(netns.run(build))).start().unwrap();
        let failed = running.wait(SOON).unwrap_err();
        assert!(failed.why.contains("a stage's own fault"), "{queued}: {failed}");
        let stopped = running.stop(SOON);
        assert!(stopped.ports[1].counts.tx_packets > 0, "{queued}: {stopped}");
        assert!(stopped.ledger.is_drained(), "{queued}: {stopped}");
        // The devices are free again.
        for port in [near, far] {
            netns.run(|| linerate::Port::open(&port)).unwrap();
        }
        drop(source);
    }
}

/// Measures by the bytes that the interface at the other end received, not by the engine's count.
#[test]
fn shaped_ports_send_at_their_rate_within_a_percent_by_the_receivers_count() {
    let rates = || -> Result<[f64; 2], String> {
        let (netns, time) = (two_pairs()?, Duration::from_secs(4));
        let counters = netns.run(|| {
            ["v1", "w1"].map(|name| {
                let folder = NetFolder::open(&Interface::open(name).unwrap()).unwrap();
                folder.number("statistics/rx_bytes").unwrap()
            })
        });
        let shape = "shape=10Mbit,burst=15k";
        let opened = netns.run(|| {
            let engine = Engine::builder().port("a", "gen:,size=1514,rate=1650pps");
            let engine = engine.port("packet", &format!("packet:v0,{shape}")).wire("a", "packet");
            let engine = engine.port("b", "gen:,size=1514,rate=1650pps").wire("b", "xdp");
            engine.port("xdp", &format!("xdp:w0,{shape}")).build()
        });
        let running = available(opened)?.start().unwrap();
        // The first burst is not part of the rate.
        std::thread::sleep(time / 4);
        let look = || (Instant::now(), counters.each_ref().map(|counter| counter.read().unwrap()));
        let (start, before) = look();
        std::thread::sleep(time);
        let (end, after) = look();
        running.stop(Duration::ZERO).check().unwrap();
        let seconds = (end - start).as_secs_f64();
        Ok([0, 1].map(|i| (after[i] - before[i]) as f64 * 8.0 / seconds))
    };
    // Other programs may keep the worker from its CPU for longer than a burst lasts.
    let mut seen: Vec<[f64; 2]> = Vec::new();
    for _ in 0..4 {
        let got = or_skip!(rates());
        if got.iter().all(|bps| (bps / 10e6 - 1.0).abs() < 0.01) {
            return;
        }
        seen.push(got);
    }
    panic!("bit/s of packet and xdp, 10 Mbit/s expected: {seen:?}");
}

/// With a cap of one, a `packet` port learns nothing from packets behind one that the kernel always
/// refuses, and gives it up after 2 s. The worker sleeps until each attempt, and serves its other
/// wire.
#[test]
fn packet_that_is_always_refused_holds_up_its_own_wire_and_not_the_worker() {
    or_skip!(narrow()).run(|| {
        if kernel_takes_long_frame("v0") {
            return eprintln!("skipped: this kernel says that it took what veth drops");
        }
        let engine = Engine::builder().workers(1);
        let engine =
            engine.port("long", "gen:,size=1514,count=5").port("v0", "packet:v0,tx_batch=1");
        let engine = engine.port("short", "gen:,rate=1kpps").port("sink", "sink:");
        let engine = engine.wire("long", "v0").wire("short", "sink").build().unwrap();
        let stats = engine.stats();
        let mut worker = engine.into_workers().remove(0);
        let (start, mut turns) = (Instant::now(), 0);
        while stats.ledger().dropped(DropReason::WRITE_FAILED) == 0 {
            let turned = worker.turn(Instant::now());
            worker.park(turned, Some(Duration::from_millis(20))).unwrap();
            turns += 1;
            let taken = stats.ports()[1].counts.tx_packets;
            assert!(taken == 0, "{taken} packets that the kernel refuses count as sent");
            assert!(start.elapsed() < SOON, "it is never given up");
        }
        let others = stats.ports()[3].counts.tx_packets;
        assert!(turns > 100 && others > 100, "{turns} turns, {others} packets of the other wire");
        assert!(start.elapsed() >= Duration::from_secs(2));
    });
}
