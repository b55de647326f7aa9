//! Tests changes of one setting that overlap: which value stays, and to which value a temporary one
//! is reverted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Running, Stage, Turn, Worker};
use linerate_port::{Code, Error};
use linerate_skb::Batch;
use serde_json::Value;

use super::{Change, LONG, change, shown, unturned};
use crate::tune::reverts::{Key, Outcome, Reverts};
use crate::tune::target::{Pending, Target};
use crate::tune::value::{Order, Ordered};
use linerate_testing::may_pin;

const SECOND: Duration = Duration::from_secs(1);

/// Orders another `tx_batch` of the port `west`.
fn begin(target: &mut Target, to: &str, revert_after: Option<Duration>, at: Instant) -> Pending {
    target.begin(&change("west", ("tx_batch", to), revert_after), at).unwrap()
}

/// Sets `tx_batch`, which the worker executes at once.
fn set(
    (target, worker): (&mut Target, &mut Worker),
    to: &str,
    revert_after: Option<Duration>,
    at: Instant,
) {
    let pending = begin(target, to, revert_after, at);
    worker.turn(at);
    target.finish(&pending, at).unwrap().unwrap();
}

#[test]
fn temporary_change_is_reverted_to_the_permanent_one_ordered_just_before_it() {
    for is_first_answered_first in [true, false] {
        let ((mut target, mut worker), now) = (unturned(), Instant::now());
        let permanent = begin(&mut target, "8", None, now);
        let temporary = begin(&mut target, "1", Some(5 * SECOND), now);
        worker.turn(now);
        let mut both = [permanent, temporary];
        if !is_first_answered_first {
            both.reverse();
        }
        for pending in &both {
            target.finish(pending, now).unwrap().unwrap();
        }
        assert_eq!(
            (shown(&target, "tx_batch"), target.revert_at()),
            ("1".into(), Some(now + 5 * SECOND))
        );
        target.revert(now + 6 * SECOND, SECOND);
        worker.turn(now);
        assert_eq!((shown(&target, "tx_batch"), target.revert_at()), ("8".into(), None));
    }
}

#[test]
fn temporary_change_after_a_permanent_one_that_was_withdrawn_is_reverted_to_the_value_before_both()
{
    let ((mut target, mut worker), now) = (unturned(), Instant::now());
    let permanent = begin(&mut target, "8", None, now);
    let temporary = begin(&mut target, "1", Some(5 * SECOND), now + SECOND / 2);
    assert_eq!(target.finish(&permanent, now + SECOND).unwrap().unwrap_err().code, "E-BUSY");
    worker.turn(now);
    target.finish(&temporary, now + SECOND).unwrap().unwrap();
    target.revert(now + 7 * SECOND, SECOND);
    worker.turn(now);
    assert_eq!(shown(&target, "tx_batch"), "auto");
}

#[test]
fn withdrawn_change_leaves_the_revert_of_a_later_one() {
    let ((mut target, mut worker), now) = (unturned(), Instant::now());
    let first = begin(&mut target, "2", Some(60 * SECOND), now);
    let second = begin(&mut target, "4", Some(5 * SECOND), now + SECOND / 2);
    assert_eq!(target.finish(&first, now + SECOND).unwrap().unwrap_err().code, "E-BUSY");
    worker.turn(now);
    target.finish(&second, now + SECOND).unwrap().unwrap();
    assert_eq!(
        (shown(&target, "tx_batch"), target.revert_at()),
        ("4".into(), Some(now + 6 * SECOND))
    );
    target.revert(now + 6 * SECOND, SECOND);
    worker.turn(now);
    assert_eq!((shown(&target, "tx_batch"), target.revert_at()), ("auto".into(), None));
}

#[test]
fn change_during_a_revert_is_reverted_to_the_original_value() {
    let ((mut target, mut worker), now) = (unturned(), Instant::now());
    set((&mut target, &mut worker), "64", None, now);
    set((&mut target, &mut worker), "2", Some(SECOND), now);
    target.revert(now + SECOND, SECOND);
    assert_eq!(target.revert_at(), None, "it is ordered");
    set((&mut target, &mut worker), "4", Some(5 * SECOND), now + SECOND);
    assert_eq!(target.revert_at(), Some(now + 6 * SECOND));
    target.revert(now + 7 * SECOND, SECOND);
    worker.turn(now);
    assert_eq!((shown(&target, "tx_batch"), target.revert_at()), ("64".into(), None));
    // A temporary change that is kept is the value to which the next one is reverted.
    let kept = begin(&mut target, "8", Some(5 * SECOND), now);
    assert!(target.keep().contains(r#""kept":1"#));
    set((&mut target, &mut worker), "16", Some(5 * SECOND), now);
    target.finish(&kept, now).unwrap().unwrap();
    assert_eq!(target.revert_at(), Some(now + 5 * SECOND));
    target.revert(now + 6 * SECOND, SECOND);
    worker.turn(now);
    assert_eq!((shown(&target, "tx_batch"), target.revert_at()), ("8".into(), None));
}

/// A stage that stops the second worker until a flag lets it go on.
struct Gate(bool, Arc<AtomicBool>);

impl Stage for Gate {
    fn run(&mut self, _: &mut Batch, _: &mut Turn<'_>) {
        let until = Instant::now() + LONG;
        while self.0 && !self.1.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns a run of two workers, each with one queue of the port `west`. The second worker stands
/// still until the flag is set.
fn two_workers() -> (Target, Running, Arc<AtomicBool>) {
    let open = Arc::<AtomicBool>::default();
    let gate = open.clone();
    let engine = Engine::builder().port("east", "null:,queues=2").port("west", "null:,queues=2");
    let engine = engine.wire("east", "west").workers(2);
    let engine = engine.stage(move |cx| Gate(cx.worker() == 1, gate.clone())).build().unwrap();
    let stats = engine.stats();
    let running = engine.start().unwrap();
    // The second worker has started when it has packets.
    until_true(|| running.stats().ports()[0].queues[1].counts.rx_packets > 0);
    (Target::new(running.control(), stats, Box::new(|_, _| ())), running, open)
}

fn until_true(mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn change_that_one_of_two_workers_has_made_is_reverted() {
    let ((mut target, running, open), now) = (two_workers(), Instant::now());
    let pending = begin(&mut target, "2", Some(5 * SECOND), now);
    until_true(|| shown(&target, "tx_batch") == "2");
    assert!(target.finish(&pending, now).is_none());
    let e = target.finish(&pending, now + SECOND).unwrap().unwrap_err();
    assert_eq!(e.what, "'west' was set in part");
    assert_eq!(target.revert_at(), Some(now + 6 * SECOND));
    target.revert(now + 6 * SECOND, SECOND);
    until_true(|| shown(&target, "tx_batch") == "auto");
    assert_eq!(target.revert_at(), None);
    open.store(true, Ordering::Relaxed);
    running.stop(LONG).check().unwrap();
}

/// The first worker may execute the order before the second one refuses it, or not: this is tried
/// until it does.
#[test]
fn change_that_one_worker_made_before_another_refused_it_is_reverted() {
    let ((mut target, running, open), now) = (two_workers(), Instant::now());
    let second = Change { queue: Some(1), ..change("west", ("moderation", "busy"), None) };
    let _full: Vec<_> = (0..16).map(|_| target.begin(&second, now).unwrap()).collect();
    let first = change("west", ("tx_batch", "2"), Some(5 * SECOND));
    let mut is_made = false;
    for _ in 0..100_000 {
        let pending = match target.begin(&first, now) {
            Ok(pending) => pending,
            Err(e) if e.why.contains("some workers only") => panic!("its revert is lost: {e:?}"),
            // The first worker has not executed it before the second one refused it.
            Err(e) => {
                assert_eq!((&*e.code, target.revert_at()), ("E-BUSY", None));
                continue;
            }
        };
        until_true(|| shown(&target, "tx_batch") == "2");
        let mut answer = None;
        until_true(|| {
            answer = target.finish(&pending, now);
            answer.is_some()
        });
        let e = answer.unwrap().unwrap_err();
        assert_eq!(e.what, "'west' was set in part");
        assert!(e.why.contains("some workers only"), "{e:?}");
        is_made = true;
        break;
    }
    if is_made {
        assert_eq!(
            (shown(&target, "tx_batch"), target.revert_at()),
            ("2".into(), Some(now + 6 * SECOND))
        );
        target.revert(now + 6 * SECOND, SECOND);
        until_true(|| shown(&target, "tx_batch") == "auto");
    } else {
        println!("skipped: the first worker was never so fast");
    }
    open.store(true, Ordering::Relaxed);
    running.stop(LONG).check().unwrap();
}

#[test]
fn value_that_a_worker_refused_after_another_had_executed_it_is_made_in_part() {
    if !may_pin() {
        return;
    }
    let ((_target, mut worker), now) = (unturned(), Instant::now());
    let (control, all) = (worker.control(), linerate_port::thread::allowed_cpus().unwrap());
    for is_executed in [true, false] {
        let order = Order::Cpu(control.set_cpus(0, &all).unwrap());
        if is_executed {
            worker.turn(now);
        }
        let refused = Order::refused(vec![order], Error::new(Code::Busy, "full", ""));
        match refused {
            Ok(orders) => assert!(is_executed && Order::end(&orders) == Outcome::InPart),
            Err(e) => assert!(!is_executed && e.what == "full"),
        }
    }
}

#[test]
fn failed_change_of_the_cpu_of_two_queues_leaves_the_revert_of_the_one_before() {
    if !may_pin() {
        return;
    }
    let cpu = linerate_port::thread::allowed_cpus().unwrap()[0].to_string();
    let engine = Engine::builder().port("east", "null:,queues=2").port("west", "null:,queues=2");
    let engine = engine.wire("east", "west").build().unwrap();
    let (stats, now) = (engine.stats(), Instant::now());
    let mut worker = engine.into_workers().remove(0);
    let mut target = Target::new(worker.control(), stats, Box::new(|_, _| ()));
    let begin = |target: &mut Target, after| {
        target.begin(&change("west", ("cpu", &cpu), Some(after)), now).unwrap()
    };
    let pending = begin(&mut target, 60 * SECOND);
    // Turn the worker on a thread of its own, because that thread is the one that is moved.
    std::thread::scope(|scope| scope.spawn(|| worker.turn(now)).join().map(drop).unwrap());
    target.finish(&pending, now).unwrap().unwrap();
    let pending = begin(&mut target, SECOND);
    let e = target.finish(&pending, now + SECOND).unwrap().unwrap_err();
    assert_eq!((&*e.code, target.revert_at()), ("E-BUSY", Some(now + 60 * SECOND)));
}

#[test]
fn revert_that_its_worker_does_not_execute_is_withdrawn_and_tried_again() {
    let ((mut target, mut worker), now) = (unturned(), Instant::now());
    set((&mut target, &mut worker), "2", Some(SECOND), now);
    // The worker makes no turn: it has ended, or does not run.
    target.revert(now + SECOND, SECOND);
    assert!(target.is_reverting() && target.revert_at().is_none());
    target.settle(now + 3 * SECOND);
    assert!(!target.is_reverting());
    assert_eq!(target.revert_at(), Some(now + 8 * SECOND));
    let document: Value = serde_json::from_str(&target.show(None).unwrap()).unwrap();
    assert!(document["revert_failed"].as_str().unwrap().contains("did not finish a poll"));
    worker.turn(now + 3 * SECOND);
    assert_eq!(shown(&target, "tx_batch"), "2", "the order was withdrawn");
    target.revert(now + 8 * SECOND, SECOND);
    worker.turn(now + 8 * SECOND);
    target.settle(now + 8 * SECOND);
    assert_eq!((shown(&target, "tx_batch"), target.revert_at()), ("auto".into(), None));
}

#[test]
fn revert_that_fails_is_due_again_until_it_is_made_or_replaced() {
    let (now, key) = (Instant::now(), Key::Worker(0));
    let [base, temporary, other] = [3, 1, 2].map(|cpu| Ordered::Cpu(Some(cpu)));
    let set = |reverts: &mut Reverts, [from, to]: [&Ordered; 2], after, at| {
        let serial = reverts.serial();
        reverts.begin(serial, &key, [from, to], after, at);
        reverts.end(serial, [&key], Outcome::Made, at);
    };
    for is_replaced in [false, true] {
        let mut reverts = Reverts::default();
        set(&mut reverts, [&base, &temporary], Some(SECOND), now);
        // First it is refused, then it is ordered and not made.
        reverts.again(&key, None, now + 5 * SECOND, "refused".into());
        assert_eq!((reverts.next(), reverts.failed()), (Some(now + 5 * SECOND), Some("refused")));
        let serial = reverts.ordered(&key, now + 5 * SECOND);
        if is_replaced {
            set(&mut reverts, [&temporary, &other], None, now + 5 * SECOND);
        }
        reverts.again(&key, Some(serial), now + 9 * SECOND, "CPU 3 is off line".into());
        if is_replaced {
            assert_eq!((reverts.next(), reverts.failed()), (None, None), "2 is to stay");
            continue;
        }
        assert_eq!(reverts.due(now + 8 * SECOND), []);
        assert_eq!(reverts.due(now + 9 * SECOND), [(key.clone(), base.clone())]);
        assert_eq!(reverts.failed(), Some("CPU 3 is off line"));
        let serial = reverts.ordered(&key, now + 9 * SECOND);
        reverts.end(serial, [&key], Outcome::Made, now + 9 * SECOND);
        assert_eq!((reverts.next(), reverts.failed()), (None, None));
    }
}

#[test]
fn revert_that_fails_is_due_again_after_a_change_that_was_not_made_and_not_after_it_is_kept() {
    let (now, key) = (Instant::now(), Key::Worker(0));
    let [base, temporary, other] = [3, 1, 2].map(|cpu| Ordered::Cpu(Some(cpu)));
    for is_kept in [false, true] {
        let mut reverts = Reverts::default();
        let serial = reverts.serial();
        reverts.begin(serial, &key, [&base, &temporary], Some(SECOND), now);
        reverts.end(serial, [&key], Outcome::Made, now);
        let revert = reverts.ordered(&key, now + SECOND);
        let change = reverts.serial();
        reverts.begin(change, &key, [&temporary, &other], None, now + 2 * SECOND);
        if is_kept {
            reverts.keep();
        }
        reverts.again(&key, Some(revert), now + 6 * SECOND, "refused".into());
        reverts.end(change, [&key], Outcome::NotMade, now + 2 * SECOND);
        let due = if is_kept { vec![] } else { vec![(key.clone(), base.clone())] };
        assert_eq!(reverts.due(now + 6 * SECOND), due, "kept: {is_kept}");
    }
}

#[test]
fn revert_waits_until_the_orders_of_a_postponed_change_are_over() {
    let (now, key) = (Instant::now(), Key::Worker(0));
    let [base, temporary] = [1, 2].map(|cpu| Ordered::Cpu(Some(cpu)));
    let mut reverts = Reverts::default();
    let [first, second] = [(); 2].map(|()| reverts.serial());
    reverts.begin(first, &key, [&base, &temporary], Some(SECOND), now);
    reverts.postpone(second, now + 9 * SECOND);
    assert_eq!(reverts.next(), Some(now + SECOND), "another change");
    reverts.postpone(first, now + SECOND);
    assert_eq!(reverts.next(), Some(now + 2 * SECOND));
}

/// Returns a setting and values for it: the one before any change, and those with the numbers 1 to
/// 3.
fn values() -> (Key, [Ordered; 4]) {
    (Key::Worker(0), [None, Some(1), Some(2), Some(3)].map(Ordered::Cpu))
}

#[test]
fn next_revert_is_the_first_of_all_settings() {
    let (mut reverts, now, (key, all)) = (Reverts::default(), Instant::now(), values());
    for (key, seconds) in [(&Key::Worker(1), 5), (&key, 2), (&Key::Worker(2), 9)] {
        let serial = reverts.serial();
        reverts.begin(serial, key, [&all[0], &all[1]], Some(seconds * SECOND), now);
        reverts.end(serial, [key], Outcome::Made, now);
    }
    assert_eq!(reverts.next(), Some(now + 2 * SECOND));
    assert_eq!(reverts.due(now + 3 * SECOND), [(key, all[0].clone())]);
}

#[test]
fn revert_waits_for_a_later_change_whose_outcome_is_unknown() {
    let (mut reverts, now, (key, all)) = (Reverts::default(), Instant::now(), values());
    let [temporary, permanent] = [reverts.serial(), reverts.serial()];
    reverts.begin(temporary, &key, [&all[0], &all[1]], Some(SECOND), now);
    reverts.end(temporary, [&key], Outcome::Made, now);
    reverts.begin(permanent, &key, [&all[1], &all[2]], None, now + 5 * SECOND);
    assert_eq!(reverts.next(), Some(now + 5 * SECOND));
    reverts.end(permanent, [&key], Outcome::Made, now + SECOND / 2);
    assert_eq!(reverts.next(), None);
}

/// Records a change of `key` to the value of that number; returns the change's number.
fn changed(
    (reverts, key): (&mut Reverts, &Key),
    value: usize,
    before: usize,
    revert_after: Option<Duration>,
) -> u64 {
    let [before, value] = [before, value].map(|cpu| Ordered::Cpu(Some(cpu)));
    let serial = reverts.serial();
    reverts.begin(serial, key, [&before, &value], revert_after, Instant::now());
    serial
}

/// Returns the values of the reverts that are due within a minute.
fn due(reverts: &Reverts) -> Vec<Ordered> {
    let due = reverts.due(Instant::now() + 60 * SECOND);
    due.into_iter().map(|(_, value)| value).collect()
}

#[test]
fn value_that_is_kept_outlives_an_earlier_change_whose_outcome_comes_later() {
    let (mut reverts, now, key) = (Reverts::default(), Instant::now(), Key::Worker(0));
    let first = changed((&mut reverts, &key), 1, 0, None);
    let second = changed((&mut reverts, &key), 2, 0, Some(SECOND));
    reverts.end(second, [&key], Outcome::Made, now);
    assert_eq!(reverts.keep(), 1);
    let third = changed((&mut reverts, &key), 3, 2, Some(SECOND));
    reverts.end(first, [&key], Outcome::Made, now);
    reverts.end(third, [&key], Outcome::Made, now);
    assert_eq!(due(&reverts), [Ordered::Cpu(Some(2))]);
}

#[test]
fn last_of_several_values_whose_revert_failed_is_kept_and_the_failure_is_forgotten() {
    let (mut reverts, now, key) = (Reverts::default(), Instant::now(), Key::Worker(0));
    for value in [1, 2] {
        changed((&mut reverts, &key), value, 0, Some(SECOND));
    }
    let revert = reverts.ordered(&key, now);
    let later = changed((&mut reverts, &key), 5, 0, Some(SECOND));
    reverts.again(&key, Some(revert), now, "busy".into());
    assert_eq!(reverts.failed(), Some("busy"));
    reverts.keep();
    assert_eq!(reverts.failed(), None);
    let last = changed((&mut reverts, &key), 6, 9, Some(SECOND));
    reverts.end(later, [&key], Outcome::NotMade, now);
    reverts.end(last, [&key], Outcome::Made, now);
    assert_eq!(due(&reverts), [Ordered::Cpu(Some(2))]);
}

#[test]
fn setting_without_pending_changes_is_forgotten_when_it_is_kept() {
    let (mut reverts, now, key) = (Reverts::default(), Instant::now(), Key::Worker(0));
    for (value, before) in [(1, 0), (6, 5)] {
        let change = changed((&mut reverts, &key), value, before, Some(SECOND));
        reverts.end(change, [&key], Outcome::Made, now);
        assert_eq!(due(&reverts), [Ordered::Cpu(Some(before))]);
        reverts.keep();
    }
}
