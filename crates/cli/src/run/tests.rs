//! Tests of what a run ends with.

use super::ran::last_lost;
use super::watch::PoorPorts;
use super::*;
use crate::errors::{CHECK, UNBALANCED};
use linerate::{Code, DropReason, Error, Health, Stopped, Verified};
use linerate_ctl::report::{FarReport, Passed};

/// Returns a run of ten packets, whose results `spoil` may change.
fn ran(spoil: impl FnOnce(&mut Stopped, &mut Option<Verified>), ended: Ended) -> Ran {
    ran_to("sink:", spoil, ended)
}

/// Returns a run of ten packets to the port `to`.
fn ran_to(to: &str, spoil: impl FnOnce(&mut Stopped, &mut Option<Verified>), ended: Ended) -> Ran {
    let mut engine = Engine::builder();
    for (name, text) in [("gen", "gen:,count=10"), ("sink", to)] {
        engine = engine.port(name, text);
    }
    let engine = engine.wire("gen", "sink").build().unwrap();
    let (stats, running) = (engine.stats(), engine.start().unwrap());
    assert!(running.wait(Duration::from_secs(20)).unwrap());
    let mut stopped = running.stop(DRAIN);
    let report = |stopped: &Stopped| ForwardReport::new(stopped, &stats, &Spent::default());
    let mut verify = report(&stopped).verify;
    spoil(&mut stopped, &mut verify);
    let mut report = ForwardReport { verify, ..report(&stopped) };
    if report.error.is_none() {
        report.error = unverified(&report).or_else(|| last_lost(&report));
    }
    Ran { report, stopped, ended, uncounted: None, _signals: None }
}

#[test]
fn few_packets_to_an_irq_are_told_once_while_a_run_goes_on() {
    let mut ports = ran(|_, _| (), Ended::Done).stopped.ports;
    ports[0].queues[0].moderation.gathers = true;
    (ports[0].counts.rx_packets, ports[0].counts.wakeups) = (9000, 8000);
    let (second, mut poor) = (Duration::from_secs(1), PoorPorts::default());
    assert!(poor.check(ports.clone(), second / 2).is_empty(), "too early to say");
    let [note] = &poor.check(ports.clone(), second)[..] else { panic!("{poor:?}") };
    assert!(note.starts_with("note: port 'gen': poor use of the CPU: 1.1 packets"), "{note}");
    (ports[0].counts.rx_packets, ports[0].counts.wakeups) = (18_000, 16_000);
    assert!(poor.check(ports, 2 * second).is_empty(), "once");
}

#[test]
fn port_that_was_used_well_for_an_hour_is_told_by_its_irqs_since_the_last_check() {
    let mut ports = ran(|_, _| (), Ended::Done).stopped.ports;
    ports[0].queues[0].moderation.gathers = true;
    let (mut at, mut poor) = (Duration::ZERO, PoorPorts::default());
    let mut check = |time: Duration, packets: u64, irqs: u64| {
        at += time;
        let counts = &mut ports[0].counts;
        counts.rx_packets += packets;
        counts.wakeups += irqs / 2;
        counts.hold_ends += irqs - irqs / 2;
        poor.check(ports.clone(), at)
    };
    let second = Duration::from_secs(1);
    assert!(check(3600 * second, 64 * 28_800_000, 28_800_000).is_empty(), "an hour");
    assert!(check(second, 64 * 8000, 8000).is_empty(), "as well as before");
    assert!(check(second, 500, 500).is_empty(), "too few irqs");
    assert!(check(second / 2, 4000, 4000).is_empty(), "too early to say");
    let [note] = &check(second / 2, 4000, 4000)[..] else { panic!("no note") };
    assert!(note.contains(" 1.0 packets an irq at 8000 irqs a second "), "{note}");
}

#[test]
fn port_that_is_down_was_never_met_if_it_passed_nothing_and_was_never_reset() {
    let mut ports = ran(|_, _| (), Ended::Done).stopped.ports;
    let down = Error::new(Code::NoDevice, "cannot use v0", "it is down");
    for passed in 0..4 {
        ports[1].health = Health::Down(down.clone());
        let counts = [0, 1, 2].map(|i| u64::from(passed == i + 1));
        (ports[1].counts.rx_packets, ports[1].counts.tx_packets) = (counts[0], counts[1]);
        ports[1].driver_counts.resets = counts[2];
        let why = never_met(&ports).map(|e| e.why);
        let never = "it is down; nothing came or left by port 'sink' in the whole run";
        assert_eq!(why, (passed == 0).then(|| never.into()), "{counts:?}");
    }
}

#[test]
fn every_packet_was_dropped_only_if_none_was_sent_or_consumed() {
    let Ran { mut report, stopped, .. } = ran(|_, _| (), Ended::Done);
    report.ledger.dropped.insert(DropReason::TOO_LONG.name(), 10);
    for (sent, consumed) in [(0, 0), (1, 0), (0, 1)] {
        (report.ledger.sent, report.ledger.consumed) = (sent, consumed);
        let why = none_sent(&report, &stopped.ports).map(|e| e.why);
        let all = "every packet was dropped: 10 too_long";
        assert_eq!(why, (sent + consumed == 0).then(|| all.into()));
    }
}

#[test]
fn packets_that_waited_at_the_end_are_not_the_dropped_last_ones() {
    let Ran { mut report, .. } = ran(|_, _| (), Ended::Done);
    report.ledger.dropped = [(DropReason::STOPPED.name(), 3)].into();
    assert_eq!(last_lost(&report).map(|e| e.why), None);
    report.ledger.dropped.insert(DropReason::QUEUE_LIMIT.name(), 2);
    let why = last_lost(&report).unwrap().why;
    assert!(why.starts_with("of 10 packets the last were dropped: 2 queue_limit; "), "{why}");
}

#[test]
fn dropped_last_packets_of_a_generator_are_a_fault() {
    // All ten come at once: the last seven do not fit.
    let lost = ran_to("sink:,qdisc=fifo,limit=3", |_, _| (), Ended::Done);
    let verify = lost.report.verify.as_ref().unwrap();
    assert_eq!((verify.packets, verify.lost), (3, 0));
    assert_eq!(lost.exit(), CHECK);
    let why = lost.report.error.unwrap().why;
    assert!(why.starts_with("of 10 packets the last were dropped: 7 queue_limit;"), "{why}");
    let blind = ran_to("sink:blind,qdisc=fifo,limit=3", |_, _| (), Ended::Done);
    assert_eq!(blind.exit(), 0, "a sink that reads nothing verifies nothing");
}

#[test]
fn damaged_packets_of_another_process_are_a_fault_and_lost_ones_are_not() {
    let elsewhere = |s: &mut Stopped| s.ports[0].flags.generates = false;
    let lost = ran(|s, v| (elsewhere(s), v.as_mut().unwrap().lost = 3).1, Ended::Done);
    assert_eq!(lost.exit(), 0);
    let damaged = ran(|s, v| (elsewhere(s), v.as_mut().unwrap().corrupted = 2).1, Ended::Done);
    assert_eq!(damaged.exit(), CHECK);
    assert_eq!(damaged.report.error.unwrap().why, "2 corrupted, beside 10 whole ones");
}

#[test]
fn run_failure_takes_precedence_over_failed_verification() {
    let lost = |v: &mut Option<Verified>| v.as_mut().unwrap().lost = 3;
    let broken = |s: &mut Stopped| s.failed = Some(Error::new(Code::System, "a worker", "died"));
    assert_eq!(ran(|_, _| (), Ended::Done).exit(), 0);
    assert_eq!(ran(|_, v| lost(v), Ended::Done).exit(), CHECK);
    assert_eq!(ran(|_, v| lost(v), Ended::Signal(2)).exit(), CHECK);
    let both = ran(|s, v| (broken(s), lost(v)).0, Ended::Failed);
    assert_eq!(both.exit(), RUNTIME);
    assert!(!both.report.verified());
    assert_eq!(ran(|_, _| (), Ended::Failed).exit(), RUNTIME);
}

/// Returns the result of a second process that received so many packets.
fn far(packets: u64, whole: bool, lost: u64) -> (FarReport, Verified) {
    let received = Passed { packets, bytes: 600 };
    let cpu_seconds = 0.1;
    let far = FarReport {
        process: 1,
        received,
        whole,
        verified: packets,
        copied_bytes: None,
        cpu_seconds,
    };
    let mut verified = Verified::default();
    (verified.packets, verified.lost) = (packets, lost);
    (far, verified)
}

#[test]
fn dropped_last_packets_are_a_fault_although_the_second_process_found_none_lost() {
    let mut ran = ran_to("sink:blind,qdisc=fifo,limit=3", |_, _| (), Ended::Done);
    assert_eq!((ran.exit(), ran.report.ledger.sent), (0, 3));
    ran.add_far(Ok(far(3, true, 0))).unwrap();
    assert_eq!(ran.exit(), CHECK);
}

#[test]
fn packets_that_miss_the_second_process_are_in_no_ledger() {
    let added = |found| {
        let mut ran = ran(|_, _| (), Ended::Done);
        ran.add_far(found).map(|()| ran.exit()).map_err(|failure| failure.exit)
    };
    assert_eq!(added(Ok(far(10, true, 0))), Ok(0));
    assert_eq!(added(Ok(far(10, true, 1))), Ok(CHECK));
    assert_eq!(added(Ok(far(9, true, 1))), Err(UNBALANCED));
    assert_eq!(added(Ok(far(10, false, 0))), Err(UNBALANCED));
    assert_eq!(added(Err("killed".into())), Ok(RUNTIME));
}

#[test]
fn a_packet_too_late_to_tell_is_a_fault() {
    let ran = ran(|_, v| v.as_mut().unwrap().late = 1, Ended::Done);
    assert_eq!(ran.exit(), CHECK);
    assert!(ran.report.error.unwrap().why.ends_with("1 too late to check for duplicates"));
}
