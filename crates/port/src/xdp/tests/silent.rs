//! Queues that only receive, because the interface has no transmit queue of their number.

use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Offload};
use linerate_sys::netif::TxQueues;

use super::super::config::Config;
use super::super::describe::silent;
use super::{frames, pass, pool};
use crate::host::testing::{
    assert_settled, bytes, in_netns_with_xdp, ip, queue_in, receive, send, wait_running,
};
use crate::{Health, Port, Want};

/// Creates v0, with two receive queues and one transmit queue, and v1, with two of each.
fn uneven() {
    let v1 = "v1 numrxqueues 2 numtxqueues 2";
    ip(&format!("link add v0 numrxqueues 2 numtxqueues 1 type veth peer name {v1}"));
    ip("link set v0 up");
    ip("link set v1 up");
    wait_running("v0");
}

#[test]
fn queue_without_a_transmit_queue_receives_and_drops_what_it_is_to_send() {
    in_netns_with_xdp(|| {
        uneven();
        let (pool, theirs) = (pool(16384), pool(16384));
        let port = Port::open_with("xdp:v0,ring=256", &pool).unwrap();
        let said =
            "queues: v0 has 1 transmit queue, so queue 1 only receives: xdp:v0,queues=0".to_owned();
        assert!(port.obtained().refused.contains(&said), "{}", port.obtained());
        let mut near = port.into_queues();
        let far = Port::open_with("xdp:v1,ring=256", &theirs).unwrap();
        let mut far = far.into_queues();
        pass(&mut near[0], &mut far[0], &frames(10, 60));
        let mut batch = Batch::with_capacity(8);
        let mut mem = pool.local();
        for frame in frames(8, 60) {
            batch.push(mem.alloc_copy(&frame).unwrap()).unwrap();
        }
        let silent = &mut near[1];
        assert_eq!(silent.xmit(&mut batch), 0);
        assert!(batch.is_empty());
        assert_eq!(pool.ledger().dropped(DropReason::UNSUPPORTED), 8);
        // Longer than a device may keep packets.
        let until = Instant::now() + Duration::from_millis(1200);
        while Instant::now() < until {
            silent.wait(Some(Duration::from_millis(100))).unwrap();
            assert_eq!((silent.rx(&mut batch), silent.reap()), (0, 0));
        }
        let counts = silent.driver_counts();
        assert_eq!((counts.doorbells, counts.resets), (Some(0), 0));
        assert_eq!((silent.counts().tx_packets, silent.health()), (0, Health::Up));
        assert!(!silent.arm(Want::Room), "there is room for packets that are dropped");
        let sent = frames(10, 60);
        send(&mut far[1], &sent, Offload::NONE);
        let got = receive(silent, sent.len());
        assert!(got.iter().zip(&sent).all(|(skb, frame)| &bytes(skb) == frame));
        drop((near, far, got, mem));
        assert_settled(&pool);
    });
}

#[test]
fn only_queues_that_a_port_takes_are_noted() {
    in_netns_with_xdp(|| {
        uneven();
        let pool = pool(16384);
        for (options, noted) in [("", true), (",queues=1", true), (",queues=0", false)] {
            let port = Port::open_with(&format!("xdp:v0,ring=256{options}"), &pool).unwrap();
            let is_noted = port.obtained().refused.iter().any(|why| why.starts_with("queues: "));
            assert_eq!(is_noted, noted, "{options}: {}", port.obtained());
        }
        drop(queue_in("xdp:v0,ring=256,queues=0", &pool));
    });
}

#[test]
fn note_on_queues_that_send_nothing_has_a_remedy_that_works() {
    let note = |options: &str, queues: &[u32], count, most, is_combined| {
        let spec = crate::parse(&format!("xdp:v0{options}")).unwrap();
        silent(&Config::of(&spec).unwrap(), TxQueues { count, most, is_combined }, queues)
    };
    let two = [0, 1];
    assert_eq!(note("", &two, 2, 2, true), None);
    let has = |text: &str| Some(format!("queues: v0 has {text}"));
    let one = has("1 transmit queue, so queue 1 only receives: ethtool -L v0 tx 2");
    assert_eq!(note("", &two, 1, 2, false), one);
    let none = has("1 transmit queue, so queue 1 sends nothing: xdp:v0,write,queues=0");
    assert_eq!(note(",write", &two, 1, 1, false), none);
    let some = has("2 transmit queues, so queues 2-3 only receive: ethtool -L v0 combined 4");
    assert_eq!(note("", &[0, 1, 2, 3], 2, 8, true), some);
    let all = has("2 transmit queues, so queues [2, 5] only receive: xdp:v0,queues=0-1");
    assert_eq!(note("", &[0, 2, 5], 2, 4, false), all);
}
