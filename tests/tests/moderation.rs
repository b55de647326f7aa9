//! Moderation while packets pass: a change of mode loses, duplicates and reorders nothing; every
//! mode that sleeps is idle without traffic; and packets are also held when tokio sleeps on the
//! descriptor.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Moderation, Running, Setting, TxBatch};
use linerate_port::{Port, Queue, QueueCounts, Want};
use linerate_skb::Batch;
use linerate_tests::idle::{assert_idle, child, role, turn_port};
use linerate_tests::process::Process;
use linerate_tests::topology::Hosts;
use linerate_tests::wait::until_true;
use linerate_tests::{available, or_skip};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const CHANGES: usize = 10_000;
const MODES: [&str; 7] =
    ["interrupt", "napi", "fixed:usecs=60,frames=8", "dim", "adaptive", "adaptive:cpu=10%", "busy"];
/// Time between two changes: four packets.
const PAUSE: Duration = Duration::from_micros(200);
/// Longest time in which a worker must obey an order under load, on a machine that others use.
const OBEYED: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);

fn mode(i: usize) -> Moderation {
    MODES[i % MODES.len()].parse().unwrap()
}

/// Starts to send numbered packets from one end of a veth pair to a verifying sink at the other
/// end; returns the hosts, the receiver and the sender.
fn under_load(driver: &str) -> Result<(Hosts, Running, Running), String> {
    let hosts = Hosts::new()?;
    let (text, far) = (format!("{driver}:w0"), format!("{driver}:eth0"));
    available(hosts.middle.run(|| Port::open(&text).map(drop)))?;
    let receive = || {
        let builder = Engine::builder().port("in", &text).port("sink", "sink:").wire("in", "sink");
        builder.build().unwrap().start().unwrap()
    };
    hosts.west.ip("addr flush dev eth0");
    let receiver = hosts.middle.run(receive);
    let sender = hosts.west.run(|| {
        let builder = Engine::builder().port("gen", "gen:rate=20kpps,flows=4").port("out", &far);
        builder.wire("gen", "out").build().unwrap().start().unwrap()
    });
    Ok((hosts, receiver, sender))
}

/// Changes the moderation of the receiving port and the batch cap of the sending one, each
/// [`CHANGES`] times.
fn changed_under_load(driver: &str) -> Result<(), String> {
    let (_hosts, receiver, sender) = under_load(driver)?;
    let (control, of_sender) = (receiver.control(), sender.control());
    let [one, two, many, odd] = [1, 2, 64, 7].map(TxBatch::Packets);
    let caps = [one, two, TxBatch::Auto, many, odd];
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    for i in 0..CHANGES {
        let asked = control.set_moderation("in", Some(0), mode(i)).unwrap();
        let applied = asked.wait(OBEYED).unwrap();
        assert_eq!(
            (applied.asked, applied.applied),
            (Setting::Moderation(mode(i)), Setting::Moderation(mode(i)))
        );
        longest = longest.max(applied.took);
        let cap = caps[i % caps.len()];
        let asked = of_sender.set_tx_batch("out", None, cap).unwrap();
        assert_eq!(asked.wait(OBEYED).unwrap().applied, Setting::TxBatch(cap));
        // Packets arrive between two changes.
        std::thread::sleep(PAUSE);
    }
    println!(
        "{driver}: {CHANGES} changes of each in {:?}, the slowest took {longest:?}",
        start.elapsed()
    );
    let sent = sender.stop(OBEYED);
    std::thread::sleep(Duration::from_millis(100));
    let received = receiver.stop(OBEYED);
    let (out, sink) = (&sent.ports[1], &received.ports[1]);
    let verified = sink.verified.unwrap();
    sent.check().unwrap();
    received.check().unwrap();
    assert!(verified.packets > 2 * CHANGES as u64, "{received}");
    assert_eq!(
        (verified.duplicated, verified.reordered, verified.corrupted),
        (0, 0, 0),
        "{verified:?}"
    );
    // The kernel counts the packets for which it had no room; no other packet is missing.
    let missed = received.ports[0].counts.rx_missed;
    assert_eq!(verified.packets + missed, out.counts.tx_packets, "{received}\n{sent}");
    println!("{driver}: {missed} of {} packets found the ring full", out.counts.tx_packets);
    assert!(20 * missed <= out.counts.tx_packets, "{received}\n{sent}");
    Ok(())
}

#[test]
fn ten_thousand_changes_under_load_lose_double_and_reorder_nothing_on_xdp() {
    or_skip!(changed_under_load("xdp"));
}

#[test]
fn ten_thousand_changes_under_load_lose_double_and_reorder_nothing_on_packet_sockets() {
    or_skip!(changed_under_load("packet"));
}

/// S1.3: the same engine, device and traffic; the modes are told apart by what ends a sleep.
#[test]
fn irqs_of_a_running_device_are_those_of_the_mode_that_was_set_last() {
    let (_hosts, receiver, sender) = or_skip!(under_load("xdp"));
    let counts = || {
        let counts = receiver.stats().ports()[0].counts;
        (counts.rx_packets, counts.wakeups, counts.hold_ends)
    };
    // Number of irqs by the device and by a timer: `None` if both may occur.
    for (mode, device, timer) in [
        ("busy", Some(false), Some(false)),
        ("napi", Some(true), Some(false)),
        ("fixed:usecs=2000,frames=64", None, Some(true)),
        ("adaptive:cpu=10%", None, Some(true)),
        ("interrupt", Some(true), Some(false)),
        ("busy", Some(false), Some(false)),
    ] {
        let asked = receiver.control().set_moderation("in", Some(0), mode.parse().unwrap());
        asked.unwrap().wait(OBEYED).unwrap();
        let passed = |from: u64| until_true(mode, OBEYED, || counts().0 >= from + 200);
        // The counts of the previous mode are published with the packets after the change.
        passed(counts().0);
        let before = counts();
        passed(before.0);
        let irqs = || (counts().1 - before.1, counts().2 - before.2);
        until_true(mode, OBEYED, || {
            let (by_device, by_timer) = irqs();
            (device != Some(true) || by_device > 0) && (timer != Some(true) || by_timer > 0)
        });
        let (by_device, by_timer) = irqs();
        assert!(device != Some(false) || by_device == 0, "{mode}: {by_device} irqs by the device");
        assert!(timer != Some(false) || by_timer == 0, "{mode}: {by_timer} irqs by a timer");
    }
    sender.stop(OBEYED).check().unwrap();
    receiver.stop(OBEYED).check().unwrap();
}

#[test]
fn every_sleeping_mode_is_idle_after_traffic_that_it_held_and_so_is_tokio() {
    let roles: Vec<String> = ["interrupt", "napi", "fixed", "dim", "adaptive", "adaptive:cpu=20%"]
        .iter()
        .flat_map(|mode| ["port", "engine"].map(|depth| format!("{depth} {mode}")))
        .chain(["tokio adaptive".into(), "tokio fixed".into()])
        .collect();
    let hosts = or_skip!(Hosts::new());
    let mut programs: Vec<(&str, Process)> = roles
        .iter()
        .enumerate()
        .map(|(i, role)| (&**role, child(&hosts.middle, &format!("{role} tap:m{i},up"))))
        .collect();
    for i in 0..programs.len() {
        let tap = format!("m{i}");
        until_true("a tap", LONG, || hosts.middle.interfaces().contains(&tap));
        hosts.middle.ip(&format!("link set dev {tap} up"));
        let sender = hosts.middle.run(|| {
            let builder = Engine::builder().port("gen", "gen:rate=20kpps,count=2000");
            let builder = builder.port("out", &format!("packet:{tap}"));
            builder.wire("gen", "out").build().unwrap().start().unwrap()
        });
        assert!(sender.wait(LONG).unwrap());
        sender.stop(LONG).check().unwrap();
    }
    assert_idle(&mut programs);
}

#[test]
#[ignore = "it is what the others look at, and never ends"]
fn a_program_at_rest() {
    let role = role();
    let role: Vec<&str> = role.split(' ').collect();
    let [depth, mode, text] = role[..] else { panic!("{role:?}") };
    let text = format!("{text},moderation={mode}");
    match depth {
        "port" => turn_port(Port::open(&text).unwrap()),
        "engine" => {
            let builder = Engine::builder().port("a", &text).port("sink", "sink:,blind");
            let running = builder.wire("a", "sink").build().unwrap().start().unwrap();
            assert!(!running.wait(Duration::from_secs(3600)).unwrap());
        }
        _ => by_tokio(Port::open(&text).unwrap().into_queues().remove(0), |_| false),
    }
}

/// Receives with tokio until `is_over` returns true.
fn by_tokio(queue: Queue, mut is_over: impl FnMut(&mut Queue) -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // SAFETY: the queue owns its descriptor, which stays open with a constant number as long as
        // the queue exists; AsyncFd owns the queue.
        let fd = unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE) };
        let (mut fd, mut batch) = (fd.unwrap(), Batch::with_capacity(64));
        loop {
            let mut ready = fd.readable_mut().await.unwrap();
            let queue = ready.get_inner_mut();
            queue.rx(&mut batch);
            if is_over(queue) {
                return;
            }
            batch.clear();
            if queue.arm(Want::Frames) {
                ready.clear_ready();
            }
        }
    });
}

/// Receives with mio, which reports only changes, until `is_over` returns true.
fn by_mio(mut queue: Queue, mut is_over: impl FnMut(&mut Queue) -> bool) {
    let (mut poll, fd) = (mio::Poll::new().unwrap(), queue.as_raw_fd());
    let mut source = mio::unix::SourceFd(&fd);
    poll.registry().register(&mut source, mio::Token(0), mio::Interest::READABLE).unwrap();
    let (mut events, mut batch) = (mio::Events::with_capacity(4), Batch::with_capacity(64));
    loop {
        queue.rx(&mut batch);
        if is_over(&mut queue) {
            return;
        }
        batch.clear();
        if queue.arm(Want::Frames) {
            poll.poll(&mut events, Some(LONG)).unwrap();
            assert!(!events.is_empty(), "it slept on: {:?}", queue.counts());
        }
    }
}

/// Returns the condition that most sleeps among the last 500 packets of a queue were holds, and
/// gathered packets.
fn held() -> impl FnMut(&mut Queue) -> bool {
    let (start, mut before) = (Instant::now(), QueueCounts::default());
    move |queue| {
        let now = queue.counts();
        let packets = now.rx_packets - before.rx_packets;
        if packets < 500 {
            return false;
        }
        let (irqs, hold_ends) = (now.irqs() - before.irqs(), now.hold_ends - before.hold_ends);
        before = now;
        assert!(start.elapsed() < LONG, "{packets} packets, {irqs} irqs, {hold_ends} by holds");
        2 * hold_ends > irqs && packets > 2 * irqs
    }
}

/// Starts to send 20,000 packets a second from the western host, each by itself.
fn stream(hosts: &Hosts) -> Running {
    hosts.west.ip("addr flush dev eth0");
    hosts.west.run(|| {
        let builder =
            Engine::builder().port("gen", "gen:rate=20kpps,burst=1").port("out", "packet:eth0");
        builder.wire("gen", "out").build().unwrap().start().unwrap()
    })
}

/// Lets `receive` have a queue at which a stream arrives.
fn stream_to(receive: impl FnOnce(Queue)) -> Result<(), String> {
    let hosts = Hosts::new()?;
    let port = available(hosts.middle.run(|| Port::open("xdp:w0")))?;
    let sender = stream(&hosts);
    receive(port.into_queues().remove(0));
    let _ = sender.stop(OBEYED);
    Ok(())
}

#[test]
fn a_stream_is_held_by_the_one_descriptor_that_tokio_sleeps_on() {
    or_skip!(stream_to(|queue| by_tokio(queue, held())));
}

#[test]
fn a_stream_is_held_by_the_one_descriptor_that_mio_sleeps_on() {
    or_skip!(stream_to(|queue| by_mio(queue, held())));
}

/// Holds of memif are by the driver itself, which no veth shows.
#[test]
fn a_stream_by_memif_is_held_by_the_one_descriptor_that_mio_sleeps_on() {
    let socket = format!("memif:@linerate-held-{}", std::process::id());
    let port = Port::open(&format!("{socket},role=server")).unwrap();
    let sender = Engine::builder()
        .port("gen", "gen:rate=20kpps,burst=1")
        .port("out", &format!("{socket},role=client"))
        .wire("gen", "out");
    let sender = sender.build().unwrap().start().unwrap();
    by_mio(port.into_queues().remove(0), held());
    let _ = sender.stop(OBEYED);
}

/// S1.3: NAPI and a device that holds its irqs, together; each is switched while packets pass.
#[test]
fn napi_polls_more_packets_for_an_irq_while_the_device_holds_them() {
    let (_hosts, receiver, sender) = or_skip!(under_load("xdp"));
    let control = receiver.control();
    let asked = control.set_moderation("in", Some(0), Moderation::Napi).unwrap();
    asked.wait(OBEYED).unwrap();
    let counts = || receiver.stats().ports()[0].counts;
    let packets_per_irq = || {
        let before = counts();
        until_true("packets", OBEYED, || counts().rx_packets >= before.rx_packets + 500);
        let after = counts();
        assert_eq!(after.hold_ends, before.hold_ends, "napi itself holds nothing");
        let irqs = (after.wakeups - before.wakeups).max(1);
        (after.rx_packets - before.rx_packets) as f64 / irqs as f64
    };
    // In 5 ms 100 packets come. Without a hold, a worker that waits for its CPU may have as many
    // once, but not in every window of a row.
    for _ in 0..2 {
        control.set_hold("in", "off".parse().unwrap()).unwrap();
        until_true("few packets an irq", LONG, || packets_per_irq() < 40.0);
        control.set_hold("in", "5ms".parse().unwrap()).unwrap();
        until_true("many packets an irq", LONG, || (0..20).all(|_| packets_per_irq() > 60.0));
    }
    sender.stop(OBEYED).check().unwrap();
    receiver.stop(OBEYED).check().unwrap();
}

#[test]
fn registers_that_cost_much_bring_more_packets_to_an_irq() {
    let hosts = or_skip!(Hosts::new());
    // MODEL: two reads for each irq. With a fifth of a CPU in total, 0.1 ms for waking allows one
    // irq in half a millisecond.
    let text = "xdp:w0,toll=0ns/50us,moderation=adaptive:cpu=20%";
    let receiver = or_skip!(hosts.middle.run(|| {
        let builder = Engine::builder().port("in", text).port("sink", "sink:").wire("in", "sink");
        available(builder.build()).map(|engine| engine.start().unwrap())
    }));
    let sender = stream(&hosts);
    let read = || receiver.stats().ports().remove(0).queues[0];
    let is_held = || read().moderation.hold >= Some(Duration::from_micros(400));
    until_true("a hold that is worth its price", LONG, is_held);
    let before = read().counts;
    until_true("packets", LONG, || read().counts.rx_packets > before.rx_packets + 5000);
    let after = read();
    let irqs = after.counts.irqs() - before.irqs();
    let each = (after.counts.rx_packets - before.rx_packets) as f64 / irqs as f64;
    println!("{each:.1} packets an irq: {}", after.moderation);
    // Without a price one of 12 us is worth 60 us: at most 2.
    assert!(each > 4.0, "{each}: {}", after.moderation);
    let _ = (sender.stop(OBEYED), receiver.stop(OBEYED));
}

#[test]
fn quiet_direction_of_a_wire_shortens_no_hold_of_a_limit_of_cpu_time() {
    let hosts = or_skip!(Hosts::new());
    // The hosts themselves send nothing then.
    for host in [&hosts.west, &hosts.east] {
        host.ip("addr flush dev eth0");
    }
    // MODEL: two reads for each irq, so that a wake-up has the same price on each machine. With a
    // twentieth of a CPU in total, 0.1 ms for waking allows 500 irqs a second.
    let mode: Moderation = "adaptive:cpu=5%".parse().unwrap();
    let [west, east] = ["w0", "e0"].map(|name| format!("xdp:{name},toll=0ns/50us"));
    let forward = or_skip!(hosts.middle.run(|| {
        let builder = Engine::builder().moderation(mode).port("w", &west).port("e", &east);
        available(builder.wire("w", "e").build()).map(|engine| engine.start().unwrap())
    }));
    let receiver = hosts.east.run(|| {
        let builder = Engine::builder().port("in", "packet:eth0").port("sink", "sink:");
        builder.wire("in", "sink").build().unwrap().start().unwrap()
    });
    let sender = stream(&hosts);
    let read = || forward.stats().ports();
    let is_held = || read()[0].queues[0].moderation.hold >= Some(Duration::from_micros(500));
    until_true("a long hold", LONG, is_held);
    let counts = || {
        let ports = read();
        (ports[0].counts.rx_packets, ports[0].counts.irqs() + ports[1].counts.irqs())
    };
    let before = counts();
    until_true("the packets of a second", LONG, || counts().0 >= before.0 + 20_000);
    let after = counts();
    let (packets, irqs) = (after.0 - before.0, after.1 - before.1);
    println!("{packets} packets, {irqs} irqs: {}", read()[0].queues[0].moderation);
    // A timer of 250 us ends 4000 sleeps a second, with 5 packets each.
    assert!(packets > 10 * irqs, "{packets} packets, {irqs} irqs");

    for running in [sender, forward, receiver] {
        running.stop(OBEYED).check().unwrap();
    }
}
