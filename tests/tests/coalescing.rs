//! Ends of holds on a real device. The test is the clock: it says when a turn is, and sends what
//! has come by then, so the counts are the same on every machine, whatever else runs there.

use std::fs;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Stats, Turned, Worker};
use linerate_port::QueueCounts;
use linerate_sys::netif::{Interface, NapiHold};
use linerate_tests::topology::{EAST, Hosts, WEST};
use linerate_tests::wait::{SOON, until, until_true};
use linerate_tests::{available, or_skip};

/// Time between two packets: 20,000 a second.
const GAP: Duration = Duration::from_micros(50);
/// Holds that are judged for each setting.
const HOLDS: usize = 12;
/// Longest time for a case that is tried again when the machine was too slow for it.
const LONG: Duration = Duration::from_secs(60);

/// A worker with an AF_XDP port on a veth, and a socket at the other end.
struct Wire {
    hosts: Hosts,
    worker: Worker,
    stats: Stats,
    socket: UdpSocket,
    sent: u64,
}

impl Wire {
    fn new() -> Result<Wire, String> {
        let hosts = Hosts::new()?;
        // A fixed neighbour, so that no ARP is among the packets.
        hosts.west.ip(&format!("neigh add {EAST} lladdr 02:00:00:00:00:02 dev eth0"));
        let socket = hosts.west.run(|| UdpSocket::bind((WEST, 0))).unwrap();
        let build = || {
            let ports = Engine::builder().budget(256).port("in", "xdp:w0,ring=1024");
            ports.port("sink", "sink:,blind").wire("in", "sink").build()
        };
        let engine = available(hosts.middle.run(build))?;
        let (stats, worker) = (engine.stats(), engine.into_workers().remove(0));
        Ok(Wire { hosts, worker, stats, socket, sent: 0 })
    }

    fn counts(&self) -> QueueCounts {
        self.stats.ports()[0].counts
    }

    /// Returns the packets that the kernel has passed on from the veth to the ring.
    fn in_ring(&self) -> u64 {
        let read = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let text = self.hosts.middle.run(read);
        let line = text.lines().find_map(|line| line.trim().strip_prefix("w0:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Sends packets, and waits until they are in the ring.
    fn send(&mut self, packets: u64) {
        let there = self.in_ring() + packets;
        for _ in 0..packets {
            self.socket.send_to(&[0; 18], (EAST, 9)).unwrap();
        }
        self.sent += packets;
        until_true("packets in the ring", SOON, || self.in_ring() >= there);
    }

    /// Returns the time from a packet to the ring that follows another packet there.
    fn delay_after_another(&mut self) -> Duration {
        self.worker.turn(Instant::now());
        self.send(1);
        let there = self.in_ring() + 1;
        let sent_at = Instant::now();
        self.socket.send_to(&[0; 18], (EAST, 9)).unwrap();
        until("a packet in the ring", SOON, || (self.in_ring() >= there).then(|| sent_at.elapsed()))
    }

    /// Returns the hold of the interface, as the kernel has it.
    fn napi_hold(&self) -> Option<Duration> {
        self.hosts.middle.run(|| NapiHold::now(&Interface::open("w0").unwrap()).unwrap().time())
    }

    /// Changes the mode by [`Control`](linerate_datapath::Control), with a turn at `now`.
    fn set(&mut self, mode: &str, now: Instant) -> Turned {
        let asked = self.worker.control().set_moderation("in", Some(0), mode.parse().unwrap());
        let turned = self.worker.turn(now);
        assert_eq!(asked.unwrap().wait(SOON).unwrap().note, None);
        turned
    }

    /// Changes the mode while packets come, one each [`GAP`]; returns the time of each hold and its
    /// packets from the second on, which is the first with a measured rate. `None` if a turn found
    /// a part of what was sent: the kernel passed on the rest later.
    fn holds(&mut self, mode: &str) -> Option<Vec<(Duration, u64)>> {
        let (start, mut come, mut holds) = (Instant::now(), 1, Vec::new());
        // What an earlier try has left goes with the first turn.
        self.send(1);
        let (mut now, mut turned) = (start, self.set(mode, start));
        loop {
            if self.counts().rx_packets != self.sent {
                return None;
            }
            let Turned::Until(until) = turned else { panic!("{mode}: {turned:?}, not held") };
            if holds.len() == HOLDS + 1 {
                return Some(holds.split_off(1));
            }
            let due = 1 + ((until - start + GAP / 2).as_nanos() / GAP.as_nanos()) as u64;
            self.send(due - come);
            holds.push((until - now, due - come));
            (now, come) = (until, due);
            turned = self.worker.turn(now);
        }
    }
}

/// S1.2.
#[test]
fn a_hold_ends_by_its_time_or_by_its_number_both_set_while_packets_come() {
    let mut wire = or_skip!(Wire::new());
    // In 4 ms 80 packets come, in 0.4 ms 8.
    for (usecs, frames) in [(4000, 500), (400, 500), (4000, 40), (4000, 10), (400, 40)] {
        let mode = format!("fixed:usecs={usecs},frames={frames}");
        let holds = until(&mode, LONG, || wire.holds(&mode));
        println!("{mode}: {holds:?}");
        let by_time = Duration::from_micros(usecs);
        let in_time = (by_time.as_nanos() / GAP.as_nanos()) as u64;
        if in_time <= frames {
            assert_eq!(holds, [(by_time, in_time); HOLDS], "{mode}");
        } else {
            // The number is a time at the measured rate, which ends just before or just after a
            // packet.
            assert!(holds.iter().all(|(_, packets)| packets.abs_diff(frames) <= 1), "{holds:?}");
            assert!(holds.iter().all(|(time, _)| *time < by_time / 4 * 3), "{mode}: {holds:?}");
        }
    }
}

/// S1.2.
#[test]
fn packets_wake_nobody_before_a_hold_has_ended() {
    let mut wire = or_skip!(Wire::new());
    wire.send(1);
    // The longest time, and a number that no rate of this test reaches in it.
    let turned = wire.set("fixed:usecs=10000,frames=500", Instant::now());
    // The order has rung the worker's bell, which ends a hold.
    wire.worker.park(turned, None).unwrap();
    until_true("a hold that was slept through", LONG, || {
        wire.send(1);
        let now = Instant::now();
        let turned = wire.worker.turn(now);
        assert_eq!(turned, Turned::Until(now + Duration::from_millis(10)));
        let before = wire.counts();
        for _ in 0..20 {
            wire.socket.send_to(&[0; 18], (EAST, 9)).unwrap();
        }
        wire.worker.park(turned, None).unwrap();
        assert!(now.elapsed() >= Duration::from_millis(10), "{:?}", now.elapsed());
        let after = wire.counts();
        assert_eq!((after.wakeups, after.rechecks), (before.wakeups, before.rechecks));
        // There was no sleep if this thread waited for its CPU until then.
        after.hold_ends == before.hold_ends + 1
    });
}

/// S1.2.
#[test]
fn device_holds_packets_from_the_order_to_the_end_of_the_port() {
    let mut wire = or_skip!(Wire::new());
    let (control, time) = (wire.worker.control(), Duration::from_millis(10));
    for _ in 0..2 {
        control.set_hold("in", "10ms".parse().unwrap()).unwrap();
        assert_eq!((wire.napi_hold(), control.hold("in").unwrap().time), (Some(time), time));
        // A delay is shorter if this thread sent the second packet after the hold.
        until_true("ten packets that were held", LONG, || {
            (0..10).all(|_| wire.delay_after_another() > time / 2)
        });
        control.set_hold("in", "off".parse().unwrap()).unwrap();
        assert_eq!((wire.napi_hold(), control.hold("in").unwrap().time), (None, Duration::ZERO));
        // A delay is longer if this thread waited for its CPU.
        until_true("a packet that nothing held", LONG, || wire.delay_after_another() < time / 2);
    }
    let e = control.set_hold("in", "10ms,frames=8".parse().unwrap()).unwrap_err();
    assert!(e.why.contains("NAPI counts no packets"), "{e}");
    for (port, why) in [("sink", "has no hold that can be changed"), ("on", "no such port")] {
        let e = control.set_hold(port, "10ms".parse().unwrap()).unwrap_err();
        assert!(e.why.contains(why), "{e}");
    }
    control.set_hold("in", "1ms".parse().unwrap()).unwrap();
    let Wire { hosts, worker, .. } = wire;
    drop(worker);
    let left = hosts.middle.run(|| NapiHold::now(&Interface::open("w0").unwrap()).unwrap());
    assert_eq!((left.time(), control.hold("in")), (None, None));
}
