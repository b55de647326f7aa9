//! Ports whose interface goes down, is deleted, or is moved to another network namespace and back.

use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Offload, Pool};

use crate::host::testing::*;
use crate::{Health, Queue};

/// A caller that sleeps when nothing arrives, and one that calls `rx` again at once.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    Waits,
    NeverWaits,
}

fn is_failed(health: &Health) -> bool {
    matches!(health, Health::Failed(_))
}

/// Receives until the queue's health is as `wanted` requires.
fn receive_until(queue: &mut Queue, reader: Reader, wanted: impl Fn(&Health) -> bool) {
    let (mut batch, deadline) = (Batch::with_capacity(8), Instant::now() + LONG);
    while !wanted(&queue.health()) {
        assert!(Instant::now() < deadline, "{:?}", queue.health());
        if reader == Reader::Waits {
            // An error is that of the queue, which its health has, too.
            let _ = queue.wait(Some(Duration::from_millis(20)));
        }
        queue.rx(&mut batch);
        batch.clear();
    }
}

#[test]
fn a_reader_that_never_waits_notices_that_the_interface_is_down_and_up_again() {
    for text in ["packet:v0", "packet:v0,retire=0"] {
        in_netns(move || {
            veth(1500);
            let mut near = queue(text);
            for _ in 0..2 {
                ip("link set v0 down");
                let is_down = |health: &Health| matches!(health, Health::Down(_));
                receive_until(&mut near, Reader::NeverWaits, is_down);
                ip("link set v0 up");
                receive_until(&mut near, Reader::NeverWaits, |health| *health == Health::Up);
            }
        });
    }
}

#[test]
fn a_reader_that_never_waits_notices_that_its_interface_was_deleted() {
    for text in ["packet:v0", "packet:v0,retire=0"] {
        in_netns(move || {
            veth(1500);
            let mut near = queue(text);
            ip("link del v0");
            receive_until(&mut near, Reader::NeverWaits, is_failed);
        });
    }
}

/// Asserts that a port of each kind has failed when its interface was moved to another network
/// namespace and back, and the queue was used by `before` and `after`.
fn assert_move_is_noticed(before: fn(&mut Queue), after: fn(&mut Queue)) {
    for text in ["packet:v0", "packet:v0,retire=0", "packet:v0,queues=2"] {
        in_netns(move || {
            veth(1500);
            let pool = Pool::builder().frames(64).build().unwrap();
            let mut near = queue_in(text, &pool);
            before(&mut near);
            move_away_and_back("v0");
            after(&mut near);
            let Health::Failed(e) = near.health() else { panic!("{text}: {:?}", near.health()) };
            assert!(e.code == Code::NoDevice && e.why.contains("was moved"), "{text}: {e}");
            drop(near);
            assert_settled(&pool);
        });
    }
}

#[test]
fn a_reader_that_waits_notices_that_its_interface_was_moved_away_and_back() {
    let after = |queue: &mut Queue| receive_until(queue, Reader::Waits, is_failed);
    assert_move_is_noticed(|_| (), after);
}

#[test]
fn a_reader_that_never_waits_notices_that_its_interface_was_moved_away_and_back() {
    let after = |queue: &mut Queue| receive_until(queue, Reader::NeverWaits, is_failed);
    assert_move_is_noticed(|_| (), after);
}

#[test]
fn an_interface_that_was_down_before_it_was_moved_away_and_back_does_not_count_as_up() {
    let before = |queue: &mut Queue| {
        ip("link set v0 down");
        receive_until(queue, Reader::Waits, |health| *health != Health::Up);
    };
    let after = |queue: &mut Queue| receive_until(queue, Reader::Waits, is_failed);
    assert_move_is_noticed(before, after);
}

#[test]
fn a_sender_notices_that_its_interface_was_moved_away_and_back() {
    let after = |queue: &mut Queue| {
        send(queue, &[stamped(0, 60), stamped(1, 60)], Offload::NONE);
        assert_eq!(queue.pool().ledger().dropped(DropReason::DEVICE_DOWN), 2);
    };
    assert_move_is_noticed(|_| (), after);
}
