//! Tests the errors of orders.

use std::time::Instant;

use linerate_port::QueueStats;
use linerate_port::moderation::HoldControl;

use super::*;
use crate::Engine;
use crate::worker_slot::QueueOf;

#[test]
fn late_order_says_what_became_of_it() {
    // How many workers have begun the order, and how many have finished it.
    let said = |workers: usize, begun: usize, done: usize| {
        let answers: Vec<_> = (0..workers).map(|_| Answer::<u8>::new(0)).collect();
        assert!(answers[..begun].iter().all(|answer| answer.claim()));
        answers[..done].iter().for_each(|answer| answer.give(Ok(1)));
        let pending = PendingOrder { answers: answers.clone(), join: |one, _| one };
        let e = pending.wait(Duration::from_millis(1)).unwrap_err();
        assert_eq!(e.code, Code::Busy);
        let open = answers.iter().filter(|answer| answer.claim()).count();
        assert_eq!(open, begun, "it is withdrawn from the others");
        (e.what, e.why)
    };
    let (what, why) = said(2, 0, 0);
    assert_eq!(what, "the order was not executed");
    assert_eq!(why, "its worker did not finish a poll within 1ms");
    for done in [0, 1] {
        let (what, why) = said(2, 1, done);
        assert_eq!(what, "the order was executed in part");
        assert_eq!(why, "1 of its 2 workers did not finish a poll within 1ms");
    }
    for (workers, done) in [(1, 0), (2, 1)] {
        let (what, why) = said(workers, workers, done);
        assert_eq!(what, "the order is not finished");
        assert_eq!(why, "a worker began it and did not finish it within 1ms");
    }
}

#[test]
fn order_that_a_worker_executed_before_another_refused_it_stays_pending() {
    let error = |what: &str| Error::new(Code::Busy, what, "");
    for is_executed in [true, false] {
        let (first, second) = (Answer::<u8>::new(0), Answer::new(0));
        let answers = vec![first.clone(), second.clone()];
        let pending = PendingOrder { answers, join: |one, _| one };
        if is_executed {
            assert!(first.claim());
        }
        let refused = pending.refused(error("nowhere"), error("in part"));
        assert!(!second.claim(), "it is withdrawn");
        if !is_executed {
            assert_eq!(refused.unwrap_err().what, "nowhere");
            continue;
        }
        let pending = refused.unwrap();
        assert!(pending.answer().is_none() && !pending.withdraw());
        first.give(Ok(1));
        assert_eq!(pending.answer().unwrap().unwrap_err().what, "in part");
    }
}

#[test]
fn rate_of_a_port_without_one_is_refused_and_another_s_is_changed_at_the_next_turn() {
    let engine = Engine::builder().port("gen", "gen:").port("sink", "sink:,shape=1Mbit");
    let engine = engine.wire("gen", "sink").build().unwrap();
    let stats = engine.stats();
    let mut worker = engine.into_workers().remove(0);
    let shape =
        || stats.ports().iter().map(|port| port.queues[0].settings.shape).collect::<Vec<_>>();
    assert_eq!(shape(), [None, Some(BitRate::from_bps(1_000_000))]);
    let rate = BitRate::from_bps(20_000_000);
    let orders = ["gen", "sink"].map(|port| worker.control().set_shape(port, None, rate).unwrap());
    worker.turn(Instant::now());
    let [refused, set] = orders.map(|order| order.answer().unwrap());
    let e = refused.unwrap_err();
    assert_eq!((e.code, &*e.fix), (Code::Unsupported, "open the port with shape="));
    assert_eq!(set.unwrap().applied, Setting::Shape(rate));
    assert_eq!(shape(), [None, Some(rate)]);
}

#[test]
fn answer_has_the_packets_that_came_between_the_order_and_the_change() {
    let engine = Engine::builder().port("gen", "gen:").port("sink", "sink:").wire("gen", "sink");
    let mut worker = engine.build().unwrap().into_workers().remove(0);
    worker.turn(Instant::now());
    let queues = worker.slot.queues_of("gen", None);
    let received = worker.slot.packets(queues.clone());
    // An order that was given before these packets came, and one that is given now.
    let (setting, answer) = (Setting::Moderation(Moderation::Napi), Answer::new(0));
    let early = PendingOrder { answers: vec![answer.clone()], join: Applied::join };
    assert!(worker.slot.order(Order::Set { queues, setting, answer }).is_ok());
    let late = worker.control().set_moderation("gen", None, Moderation::Napi).unwrap();
    worker.turn(Instant::now());
    let [early, late] = [early, late].map(|order| order.answer().unwrap().unwrap().packets);
    assert!(received > 0);
    assert_eq!([early, late], [received, 0]);
}

/// A device that has a hold, or refuses one.
#[derive(Debug)]
struct Holding(bool);

impl HoldControl for Holding {
    fn hold(&self) -> Option<DeviceHold> {
        None
    }

    fn interface(&self) -> Option<u32> {
        self.0.then_some(7)
    }

    fn set_hold(&self, _: DeviceHold) -> Result<()> {
        let e = || Error::new(Code::Permission, "cannot set the hold of eth0", "not permitted");
        if self.0 { Ok(()) } else { Err(e()) }
    }
}

/// Returns a handle to one worker that has these queues of port `a`, each with its device's hold.
fn control(queues: &[(usize, &Arc<dyn HoldControl>)]) -> Control {
    let queue = |(number, hold): &(usize, &Arc<dyn HoldControl>)| QueueOf {
        port: "a".into(),
        number: *number,
        stats: Arc::<QueueStats>::default(),
        hold: Some(Arc::downgrade(hold)),
    };
    let slot = WorkerSlot::new(&Arc::default(), queues.iter().map(queue).collect()).unwrap();
    Control { first: 0, slots: [slot].into() }
}

#[test]
fn hold_that_one_of_several_queues_refuses_is_an_error_that_says_so() {
    let holding = [true, false].map(|holds| Arc::new(Holding(holds)) as Arc<dyn HoldControl>);
    let [holds, refuses] = &holding;
    let hold = DeviceHold { time: Duration::ZERO, frames: None };
    let error = |queues: &[_]| control(queues).set_hold("a", hold).unwrap_err();
    control(&[(0, holds), (1, holds)]).set_hold("a", hold).unwrap();
    let interfaces = |queues: &[_]| control(queues).hold_interfaces("a");
    assert_eq!(interfaces(&[(0, holds), (1, holds), (2, refuses)]), [7]);
    assert_eq!(interfaces(&[(0, refuses)]), [0; 0]);
    let e = error(&[(0, refuses), (1, holds)]);
    assert_eq!((e.code, &*e.what), (Code::Permission, "cannot set the hold of eth0"));
    let e = error(&[(0, holds), (1, refuses)]);
    assert_eq!(
        (e.code, &*e.what),
        (Code::Permission, "the hold of 'a' was set on some queues only")
    );
    assert_eq!(e.why, "not permitted");
}

#[test]
fn withdrawn_orders_of_a_worker_that_takes_none_leave_room_for_others() {
    let control = control(&[]);
    for _ in 0..2 * ORDERS_MAX {
        assert!(control.set_cpus(0, &[0]).unwrap().withdraw());
    }
    let open: Vec<_> = (0..ORDERS_MAX).map(|_| control.set_cpus(0, &[0]).unwrap()).collect();
    assert_eq!(control.set_cpus(0, &[0]).unwrap_err().code, Code::Busy);
    assert!(open[0].withdraw() && control.set_cpus(0, &[0]).is_ok());
}

#[test]
fn queue_that_is_not_there_is_refused_with_the_numbers_of_those_that_are() {
    let hold = Arc::new(Holding(true)) as Arc<dyn HoldControl>;
    for (numbers, fix) in [
        (&[0][..], "a has 1 queue, number 0"),
        (&[3][..], "a has 1 queue here, number 3"),
        (&[1, 0, 2][..], "a has 3 queues, numbers 0 to 2"),
        (&[3, 1][..], "a has 2 queues here, numbers 1, 3"),
    ] {
        let queues: Vec<_> = numbers.iter().map(|number| (*number, &hold)).collect();
        let e = control(&queues).set_tx_batch("a", Some(9), TxBatch::Auto).unwrap_err();
        assert_eq!((&*e.why, &*e.fix), ("it has no queue 9", fix));
    }
}

#[test]
fn worker_that_has_ended_refuses_orders_and_answers_those_that_wait() {
    let control = control(&[]);
    let pending = control.set_cpus(0, &[0]).unwrap();
    let withdrawn = control.set_cpus(0, &[0]).unwrap();
    assert!(withdrawn.withdraw());
    control.slots[0].set_over();
    let e = pending.answer().unwrap().unwrap_err();
    assert_eq!((e.code, &*e.why), (Code::Busy, "its worker has ended"));
    assert!(pending.withdraw(), "it was not executed");
    let e = control.set_cpus(0, &[0]).unwrap_err();
    assert_eq!((&*e.what, &*e.why), ("cannot move worker 0", "its worker has ended"));
}

#[test]
fn order_to_two_workers_of_which_one_has_ended_is_given_to_neither() {
    let hold = Arc::new(Holding(true)) as Arc<dyn HoldControl>;
    let [first, second] = [0, 1].map(|number| control(&[(number, &hold)]).slots[0].clone());
    second.set_over();
    let control = Control { first: 0, slots: [first.clone(), second].into() };
    let e = control.set_tx_batch("a", None, TxBatch::Auto).unwrap_err();
    assert_eq!((e.code, &*e.why), (Code::Busy, "its worker has ended"));
    assert!(first.take_orders().unwrap().is_empty());
    assert!(e.fix.contains("as a/0,"), "{}", e.fix);
}

#[test]
fn order_that_one_worker_executed_and_an_ended_one_did_not_was_executed_in_part() {
    let answers = vec![Answer::<u8>::new(0), Answer::new(0)];
    assert!(answers[0].claim());
    answers[0].give(Ok(1));
    answers[1].refuse();
    let pending = PendingOrder { answers, join: |one, _| one };
    let e = pending.answer().unwrap().unwrap_err();
    assert_eq!((&*e.what, &*e.why), (IN_PART, "its worker has ended"));
}

#[test]
fn orders_that_were_taken_and_not_executed_are_refused() {
    let control = control(&[]);
    let pending = [(); 2].map(|()| control.set_cpus(0, &[0]).unwrap());
    let mut orders = Unexecuted(control.slots[0].take_orders().unwrap().into_iter());
    drop(orders.0.next());
    drop(orders);
    assert!(pending[0].answer().is_none());
    assert_eq!(&*pending[1].answer().unwrap().unwrap_err().why, "its worker has ended");
}

#[test]
fn results_of_two_workers_keep_the_note_and_the_longer_time() {
    let setting = Setting::TxBatch(TxBatch::Auto);
    let one = |note: Option<&str>, packets, ms| Applied {
        asked: setting,
        applied: setting,
        note: note.map(str::to_owned),
        packets,
        took: Duration::from_millis(ms),
    };
    for (a, b) in
        [(one(Some("why"), 1, 9), one(None, 2, 4)), (one(None, 1, 4), one(Some("why"), 2, 9))]
    {
        assert_eq!(a.join(b), one(Some("why"), 3, 9));
    }
}
