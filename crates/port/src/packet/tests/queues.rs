//! Tests of several queues on one interface.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use linerate_skb::{Offload, Pool};

use crate::host::testing::*;
use crate::{Port, Queue};

/// Creates a pool for the packets that wait in `Seen::take`, and queues that receive into it.
fn queues(text: &str) -> (Pool, Vec<Queue>) {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let port = Port::open_with(text, &pool).unwrap();
    (pool, port.into_queues())
}

#[test]
fn every_queue_sends_and_none_receives_what_this_machine_sent() {
    in_netns(|| {
        if !stays_on_one_cpu() {
            return;
        }
        veth(1500);
        let mut a = queue("packet:v0");
        let (_pool, mut queues) = queues("packet:v1,queues=3,fanout=lb");
        for (seq, queue) in queues.iter_mut().enumerate() {
            send(queue, &round(seq as u32), Offload::NONE);
        }
        let mut other = queue("packet:v1");
        send(&mut other, &round(3), Offload::NONE);
        let mut there = Seen::default();
        there.wait(std::slice::from_mut(&mut a), 4 * usize::from(FLOWS));
        there.assert_once(4);
        // Only this round may arrive at `queues`: an earlier frame would be one that this machine
        // sent.
        send(&mut a, &round(4), Offload::NONE);
        let mut here = Seen::default();
        here.wait(&mut queues, FLOWS.into());
        assert!(here.frames.iter().all(|(_, _, seq)| *seq == 4), "{:?}", here.frames);
        assert!(queues.iter_mut().all(|q| q.counts().tx_packets == FLOWS.into()));
    });
}

#[test]
fn each_packet_comes_once_however_they_are_divided() {
    in_netns(|| {
        veth(1500);
        let mut a = queue("packet:v0");
        for fanout in ["cpu", "lb", "qm"] {
            let text = format!("packet:v1,queues=4,fanout={fanout}");
            let port = Port::open(&text).unwrap();
            assert_eq!(port.obtained().queues, 4);
            let said = port.obtained().to_string();
            assert!(said.ends_with(&format!("fanout {fanout}, 4 queues")), "{said}");
            let mut queues = port.into_queues();
            let mut seen = Seen::default();
            for seq in 0..10 {
                send(&mut a, &round(seq), Offload::NONE);
            }
            seen.wait(&mut queues, 640);
            seen.assert_once(10);
            if fanout == "lb" {
                assert!(queues.iter_mut().all(|q| q.counts().rx_packets == 160));
            }
        }
    });
}

#[test]
fn two_ports_on_an_interface_are_two_groups() {
    in_netns(|| {
        veth(1500);
        let mut a = queue("packet:v0");
        let (_one, mut one) = queues("packet:v1,queues=2");
        let (_other, mut other) = queues("packet:v1,queues=3,fanout=lb");
        for seq in 0..10 {
            send(&mut a, &round(seq), Offload::NONE);
        }
        for queues in [&mut one, &mut other] {
            let mut seen = Seen::default();
            seen.wait(queues, 640);
            seen.assert_once(10);
        }
    });
}

/// Stops a sender when it is dropped, also if the test fails.
struct Stop<'a>(&'a Sender);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

/// A thread that sends rounds, and is never many rounds ahead of the receiver.
#[derive(Default)]
struct Sender {
    sent: AtomicU32,
    allowed: AtomicU32,
    stop: AtomicBool,
}

impl Sender {
    fn run(&self, queue: &mut Queue) {
        assert!(stays_on_one_cpu(), "its test has tried it");
        while !self.stop.load(Ordering::Acquire) {
            let sent = self.sent.load(Ordering::Relaxed);
            if sent < self.allowed.load(Ordering::Acquire) {
                send(queue, &round(sent), Offload::NONE);
                self.sent.store(sent + 1, Ordering::Release);
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Receives from `queues` until the sender has sent `rounds` more rounds.
    fn go_on(&self, seen: &mut Seen, queues: &mut [Queue], rounds: u32) {
        let until = self.sent.load(Ordering::Acquire) + rounds;
        loop {
            let sent = self.sent.load(Ordering::Acquire);
            if sent >= until {
                return;
            }
            self.allowed.store(until.min(sent + 4), Ordering::Release);
            seen.take(queues);
        }
    }
}

#[test]
fn the_share_of_a_queue_that_is_closed_under_load_goes_to_the_others() {
    in_netns(|| {
        if !std::thread::spawn(stays_on_one_cpu).join().unwrap() {
            return;
        }
        veth(1500);
        let mut a = queue("packet:v0");
        let (pool, mut queues) = queues("packet:v1,queues=4");
        let (sender, mut seen) = (Sender::default(), Seen::default());
        let mut closed: Vec<u16> = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.run(&mut a));
            let _stop = Stop(&sender);
            sender.go_on(&mut seen, &mut queues, 1);
            seen.wait(&mut queues, FLOWS.into());
            closed = seen.frames.iter().filter(|(i, ..)| *i == 1).map(|f| f.1).collect();
            sender.go_on(&mut seen, &mut queues, 20);
            // Send more packets, so that the kernel chooses this queue while it is closed.
            sender.allowed.fetch_add(20, Ordering::Release);
            drop(queues.remove(1));
            let whole = |seen: &Seen, round| {
                let its = seen.frames.iter().filter(|(.., seq)| *seq == round);
                its.count() == usize::from(FLOWS)
            };
            eventually(|| {
                sender.go_on(&mut seen, &mut queues, 20);
                for queue in &mut queues {
                    queue.wait(Some(Duration::from_millis(5))).unwrap();
                }
                seen.take(&mut queues);
                let sent = sender.sent.load(Ordering::Acquire);
                (sent - 15..sent).all(|round| whole(&seen, round))
            });
        });
        while queues.iter_mut().any(|q| q.wait(Some(Duration::from_millis(20))).unwrap()) {
            seen.take(&mut queues);
        }
        let mut came: Vec<_> = seen.frames.iter().map(|&(_, flow, seq)| (flow, seq)).collect();
        came.sort_unstable();
        assert!(came.windows(2).all(|w| w[0] != w[1]), "some came twice");
        assert!(!closed.is_empty(), "it had no share");
        for flow in 0..FLOWS {
            let lost = (0..sender.sent.load(Ordering::Acquire))
                .filter(|&seq| came.binary_search(&(flow, seq)).is_err());
            assert!(closed.contains(&flow) || lost.count() == 0, "{flow} was another queue's");
        }
        let missed: u64 = queues.iter_mut().map(|q| q.counts().rx_missed).sum();
        assert_eq!(missed, 0);
        drop(queues);
        assert_settled(&pool);
        assert_eq!(pool.ledger().received, seen.frames.len() as u64);
    });
}

#[test]
fn queues_that_are_opened_under_load_receive_nothing_twice_and_leave_nothing_out() {
    in_netns(|| {
        if !std::thread::spawn(stays_on_one_cpu).join().unwrap() {
            return;
        }
        veth(1500);
        let mut a = queue("packet:v0");
        let (sender, mut seen) = (Sender::default(), Seen::default());
        let mut opened = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.run(&mut a));
            let _stop = Stop(&sender);
            sender.allowed.store(u32::MAX, Ordering::Release);
            eventually(|| sender.sent.load(Ordering::Acquire) > 20);
            let (_pool, mut queues) = queues("packet:v1,queues=4");
            sender.go_on(&mut seen, &mut queues, 50);
            opened = queues;
        });
        while opened.iter_mut().any(|q| q.wait(Some(Duration::from_millis(20))).unwrap()) {
            seen.take(&mut opened);
        }
        assert!(opened.iter_mut().all(|q| q.counts().rx_missed == 0));
        // From some number on, every frame of each flow must have arrived.
        let sent = sender.sent.load(Ordering::Acquire);
        for flow in 0..FLOWS {
            let mut its: Vec<_> =
                seen.frames.iter().filter(|(_, of, _)| *of == flow).map(|f| f.2).collect();
            its.sort_unstable();
            let first = *its.first().unwrap();
            assert!(first > 20 && its.iter().copied().eq(first..sent), "{flow}: {its:?}, {sent}");
        }
    });
}

#[test]
fn an_interface_that_comes_back_up_serves_all_queues_again() {
    in_netns(|| {
        if !stays_on_one_cpu() {
            return;
        }
        veth(1500);
        let mut a = queue("packet:v0");
        let (_pool, mut queues) = queues("packet:v1,queues=4");
        ip("link set v1 down");
        ip("link set v1 up");
        wait_running("v0");
        wait_running("v1");
        let mut seen = Seen::default();
        for seq in 0..10 {
            send(&mut a, &round(seq), Offload::NONE);
        }
        seen.wait(&mut queues, 640);
        seen.assert_once(10);
        seen.assert_divided(4);
    });
}
