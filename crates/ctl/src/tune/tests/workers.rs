//! Tests changes of the workers on a program's own threads: of one of two workers, and of one that
//! has ended.

use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Worker};
use serde_json::Value;

use super::{Change, change, unturned};
use crate::tune::target::Target;
use linerate_testing::may_pin;

const SECOND: Duration = Duration::from_secs(1);

/// Returns two workers, each with one queue of the port `west`, and the target of a socket that
/// controls the second worker only.
fn second_of_two() -> (Target, Vec<Worker>) {
    let engine = Engine::builder().port("east", "null:,queues=2").port("west", "null:,queues=2");
    let engine = engine.wire("east", "west").workers(2).build().unwrap();
    let stats = engine.stats();
    let workers = engine.into_workers();
    (Target::new(workers[1].control(), stats, Box::new(|_, _| ())), workers)
}

/// Turns a worker on a thread of its own, because an order for CPUs moves that thread.
fn turn(worker: &mut Worker, now: Instant) {
    std::thread::scope(|scope| scope.spawn(|| worker.turn(now)).join().map(drop).unwrap());
}

/// Returns the row of a setting of a queue of the port `west`.
fn row(target: &Target, queue: usize, name: &str) -> Value {
    let all: Value = serde_json::from_str(&target.show(Some("west")).unwrap()).unwrap();
    let rows = all["ports"]["west"]["queues"][queue]["settings"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap().clone()
}

#[test]
fn queue_of_a_worker_that_the_socket_does_not_control_is_refused_and_not_reported_as_set() {
    let ((mut target, mut workers), now) = (second_of_two(), Instant::now());
    for setting in [("tx_batch", "2"), ("cpu", "any")] {
        let first = Change { queue: Some(0), ..change("west", setting, Some(SECOND)) };
        let e = target.begin(&first, now).unwrap_err();
        assert_eq!((&*e.code, &*e.why), ("E-TOPOLOGY", "this socket does not control its worker"));
        assert_eq!(e.fix, "name a queue that it controls: 1");
        assert_eq!(target.revert_at(), None);
    }
    let pending = target.begin(&change("west", ("tx_batch", "2"), None), now).unwrap();
    turn(&mut workers[1], now);
    let answer: Value =
        serde_json::from_str(&target.finish(&pending, now).unwrap().unwrap()).unwrap();
    assert_eq!(answer["queues"], serde_json::json!([1]), "{answer}");
    assert_eq!(answer["set"][0]["before"], serde_json::json!(["auto"]), "{answer}");
    let batches = [0, 1].map(|queue| row(&target, queue, "tx_batch")["value"].clone());
    assert_eq!(batches, ["auto", "2"]);
    let cpu = row(&target, 0, "cpu");
    assert!(cpu["value"].is_null() && cpu["why"] == "this socket does not control its worker");
}

#[test]
fn one_value_of_a_fixed_hold_is_refused_for_queues_that_differ_in_the_other() {
    let engine = Engine::builder().port("east", "null:,queues=2").port("west", "null:,queues=2");
    let engine = engine.wire("east", "west").build().unwrap();
    let stats = engine.stats();
    let mut worker = engine.into_workers().remove(0);
    let mut target = Target::new(worker.control(), stats, Box::new(|_, _| ()));
    let now = Instant::now();
    let mut set = |queue, settings: &[(&str, &str)]| {
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let port = "west".to_owned();
        let change = Change { port, queue, settings: settings.collect(), revert_after: None };
        let pending = target.begin(&change, now).map_err(|e| e.why)?;
        turn(&mut worker, now);
        target.finish(&pending, now).unwrap().map(drop).map_err(|e| e.why)
    };
    assert_eq!(set(None, &[("rx_usecs", "50")]), Ok(()));
    assert_eq!(set(Some(1), &[("rx_frames", "8")]), Ok(()));
    let differ = "its queues differ in the other value";
    assert_eq!(set(None, &[("rx_usecs", "70")]), Err(differ.into()));
    assert_eq!(set(Some(1), &[("rx_usecs", "70")]), Ok(()));
    assert_eq!(set(None, &[("rx_usecs", "70"), ("rx_frames", "8")]), Ok(()));
    assert_eq!(set(None, &[("rx_frames", "9")]), Ok(()));
}

#[test]
fn cpu_of_the_second_worker_is_shown_and_reverted_to_as_its_own() {
    let all = linerate_port::thread::allowed_cpus().unwrap();
    let [first, .., last] = all[..] else { return println!("skipped: one CPU") };
    if !may_pin() {
        return;
    }
    let ((mut target, mut workers), now) = (second_of_two(), Instant::now());
    let order = workers[0].control().set_cpus(0, &[first]).unwrap();
    turn(&mut workers[0], now);
    assert_eq!(order.answer().unwrap().unwrap().cpus, [first]);
    assert_eq!(row(&target, 1, "cpu")["value"], "any", "not the CPU of the first worker");
    let last = last.to_string();
    let pending = target.begin(&change("west", ("cpu", &last), Some(SECOND)), now).unwrap();
    turn(&mut workers[1], now);
    let answer: Value =
        serde_json::from_str(&target.finish(&pending, now).unwrap().unwrap()).unwrap();
    assert_eq!(answer["set"][0]["before"], serde_json::json!(["any"]), "{answer}");
    assert_eq!(row(&target, 1, "cpu")["value"], *last);
    target.revert(now + SECOND, SECOND);
    turn(&mut workers[1], now);
    assert_eq!(row(&target, 1, "cpu")["value"], "any");
}

#[test]
fn change_that_an_ended_worker_did_not_execute_is_not_made_and_has_no_revert() {
    let ((mut target, worker), now) = (unturned(), Instant::now());
    let pending = target.begin(&change("west", ("tx_batch", "2"), Some(SECOND)), now).unwrap();
    drop(worker);
    let e = target.finish(&pending, now).unwrap().unwrap_err();
    assert_eq!((&*e.code, &*e.what), ("E-BUSY", "the order was not executed"));
    assert_eq!(e.why, "its worker has ended");
    assert_eq!(target.revert_at(), None, "nothing is to be reverted");
}
