//! A worker that gets ten times more packets than it can process keeps processing: excess packets
//! are lost before any work is spent on them, a second wire is served, and orders are obeyed
//! between two turns. Flows of a device that is divided among workers move away from a worker that
//! gets too much.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use linerate_datapath::{Engine, Moderation, Running, Stage, StageContext, Steering, Turn};
use linerate_skb::Batch;
use linerate_sys::clock::{monotonic_ns, thread_cpu_ns};
use linerate_tests::netns::Netns;
use linerate_tests::topology::Hosts;
use linerate_tests::wait::until_true;
use linerate_tests::{available, or_skip};

/// CPU time that a packet of the first wire takes: a whole CPU can process 5000 in a second.
const WORK_NS: u64 = 200_000;
const BUDGET: usize = 16;
/// Packets of the second wire, which come in half a second.
const SERVED: u64 = 1000;
const ORDERS: usize = 51;
const LONG: Duration = Duration::from_secs(60);

/// The work so far: packets of the first wire, CPU time of the worker's thread, and the time.
type Done = Arc<Mutex<[u64; 3]>>;

/// A stage that works for `WORK_NS` on each packet that is longer than a probe.
struct Work(Done);

impl Stage for Work {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        let packets = batch.iter().filter(|skb| skb.len() > 100).count() as u64;
        for _ in 0..packets {
            let until = thread_cpu_ns() + WORK_NS;
            while thread_cpu_ns() < until {
                std::hint::spin_loop();
            }
        }
        let mut done = self.0.lock().unwrap();
        *done = [done[0] + packets, thread_cpu_ns(), monotonic_ns()];
    }
}

/// Sends numbered packets from a host.
fn send(from: &Netns, what: &str) -> Running {
    from.ip("addr flush dev eth0");
    from.run(|| {
        let builder = Engine::builder().port("gen", &format!("gen:{what}"));
        let builder = builder.port("out", "packet:eth0").wire("gen", "out");
        builder.build().unwrap().start().unwrap()
    })
}

/// Returns the share of the worker's CPU time that was spent on packets between two readings.
fn share(before: [u64; 3], after: [u64; 3]) -> f64 {
    ((after[0] - before[0]) * WORK_NS) as f64 / (after[1] - before[1]) as f64
}

/// Returns the packets a second that the worker processed between two readings.
fn rate(before: [u64; 3], after: [u64; 3]) -> f64 {
    (after[0] - before[0]) as f64 * 1e9 / (after[2] - before[2]) as f64
}

#[test]
fn a_worker_with_ten_times_its_load_delivers_serves_a_second_wire_and_obeys() {
    let hosts = or_skip!(Hosts::new());
    let done = Done::default();
    let read = || *done.lock().unwrap();
    let worker = hosts.middle.run(|| {
        let work = done.clone();
        let builder =
            Engine::builder().workers(1).budget(BUDGET).stage(move |_| Work(work.clone()));
        let builder = builder.port("flood", "xdp:w0").port("far", "sink:,blind");
        let builder = builder.port("second", "xdp:e0").port("sink", "sink:");
        builder.wire("flood", "far").wire("second", "sink").build().map(|e| e.start().unwrap())
    });
    let worker = or_skip!(available(worker));
    let (stats, control) = (worker.stats(), worker.control());

    // A rate somewhat above the worker's capacity.
    let sender = send(&hosts.west, "rate=8kpps,size=1000");
    until_true("packets", LONG, || read()[0] > 100);
    let before = read();
    until_true("a peak", LONG, || read()[0] > 2000);
    let after = read();
    let (peak, peak_rate) = (share(before, after), rate(before, after));
    let _ = sender.stop(LONG);

    let before = read();
    let sender = send(&hosts.west, "size=1000");
    let came = || sender.stats().ports()[1].counts.tx_packets;
    let times = || came() / (read()[0] - before[0]).max(1);
    until_true("ten times the load", LONG, || read()[0] > before[0] + 500 && times() > 10);
    let probes = send(&hosts.east, &format!("rate=2kpps,size=60,count={SERVED}"));
    let (mut meanwhile, mut took): (Vec<u64>, Vec<Duration>) = Default::default();
    for i in 0..ORDERS {
        let mode = if i % 2 == 0 { Moderation::Napi } else { Moderation::default() };
        let answer = control.set_moderation("flood", None, mode).unwrap().wait(LONG).unwrap();
        meanwhile.push(answer.packets);
        took.push(answer.took);
        std::thread::sleep(Duration::from_millis(1));
    }
    until_true("the second wire", LONG, || stats.ports()[3].counts.tx_packets >= SERVED);
    let after = read();
    let (flooded, flooded_rate, times) = (share(before, after), rate(before, after), times());
    println!(
        "{times} times the load; of the CPU time: {peak:.3} at the peak, {flooded:.3} flooded; \
         packets a second: {peak_rate:.0} and {flooded_rate:.0}"
    );

    meanwhile.sort_unstable();
    took.sort_unstable();
    println!("packets between an order and its answer: {meanwhile:?}, in {took:?}");
    assert!(meanwhile[ORDERS / 2] <= 2 * BUDGET as u64, "{meanwhile:?}");
    assert!(took[ORDERS / 2] <= Duration::from_millis(100), "{took:?}");
    let _ = (sender.stop(LONG), probes.stop(LONG));
    let stopped = worker.stop(LONG);
    stopped.check().unwrap();
    let (flood, second, sink) = (&stopped.ports[0], &stopped.ports[2], &stopped.ports[3]);
    assert!(flood.counts.rx_missed > 9 * flood.counts.rx_packets, "no overload: {stopped}");
    assert_eq!(second.counts.rx_missed, 0, "{stopped}");
    assert_eq!(sink.verified.unwrap().packets, SERVED, "{stopped}");
    assert!(flooded >= 0.95 * peak, "{peak} at the peak, {flooded} flooded");
}

/// A stage that makes its worker take at most `BUDGET` packets in a millisecond, if the worker has
/// the port.
struct Slow(bool);

impl Stage for Slow {
    fn run(&mut self, _: &mut Batch, _: &mut Turn<'_>) {
        if self.0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Each of two workers takes less than half of what comes; all flows are ordered to one and to the
/// other in turn.
#[test]
fn flows_of_a_device_leave_an_overloaded_worker_in_order_and_none_of_their_packets_is_lost_inside()
{
    let hosts = or_skip!(Hosts::new());
    let steering = ["in", "sink"].map(|port| {
        let [first, second] = ["1", "2"].map(|number| format!("{port}{number}"));
        Steering::new(port, &[&first, &second]).unwrap()
    });
    let running = hosts.middle.run(|| {
        let mut builder =
            Engine::builder().budget(BUDGET).port("in", "xdp:w0").port("sink", "sink:");
        for name in ["in1", "in2", "sink1", "sink2"] {
            let ring = format!("ring:{name},len=64");
            builder = builder.port(name, &ring).port(&format!("far-{name}"), &ring);
        }
        for steering in &steering {
            builder = builder.steer(steering);
        }
        let builder = builder.wire("far-in1", "far-sink1").wire("far-in2", "far-sink2");
        let is_between = |cx: &mut StageContext<'_>| {
            Slow(["far-in1", "far-in2"].iter().any(|name| cx.find(name).is_some()))
        };
        builder.stage(is_between).build().map(|engine| engine.start().unwrap())
    });
    let running = or_skip!(available(running));
    let to = "to=10.7.0.2:7777,from=10.7.0.1,mac=02:00:00:00:00:09";
    let sender = send(&hosts.west, &format!("rate=60kpps,size=200,flows=64,{to}"));
    let [steering, _] = steering;
    until_true("packets", LONG, || running.stats().ports()[1].counts.tx_packets > 1000);
    for i in 0..10 {
        let before = steering.moved();
        steering.give(0..256, i % 2).unwrap();
        // Of 64 flows, at least 16 are in different buckets.
        until_true("flows move", LONG, || steering.moved() >= before + 16);
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent = sender.stop(LONG);
    std::thread::sleep(Duration::from_millis(200));
    let stopped = running.stop(LONG);
    sent.check().unwrap();
    stopped.check().unwrap();
    println!("{} moves, {:?} without reading: {stopped}", steering.moved(), steering.paused());
    let (device, verified) = (&stopped.ports[0], stopped.ports[1].verified.unwrap());
    assert!(device.counts.rx_missed > device.counts.rx_packets, "no overload: {stopped}");
    assert_eq!((verified.duplicated, verified.reordered, verified.corrupted), (0, 0, 0));
    assert_eq!(verified.packets, device.counts.rx_packets, "{stopped}");
    assert_eq!(verified.packets + device.counts.rx_missed, sent.ports[1].counts.tx_packets);
}
