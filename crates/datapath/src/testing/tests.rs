//! Tests of the test kit: what it shows of a stage, and which stages fail.

use super::*;
use crate::{PortId, Turn};
use linerate_skb::{Batch, DropReason, Skb, Vlan};

fn frames(n: u8) -> Vec<Frame> {
    let frame = |i| Frame { stamp_ns: u64::from(i) * 1_000_000, bytes: vec![i; 60] };
    (0..n).map(frame).collect()
}

const ODD: DropReason = DropReason::app(0, "odd");

struct DropOdd;

impl Stage for DropOdd {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        batch.retain(|skb| if skb.data()[0] % 2 == 1 { Err(ODD) } else { Ok(()) });
    }
}

#[test]
fn effects_of_a_stage_are_observed() {
    let run = run_frames(|_| DropOdd, &frames(100));
    assert_eq!((run.ledger().dropped(ODD), run.ledger().sent), (50, 50));
    assert!(run.out("east").iter().enumerate().all(|(i, f)| f.bytes[0] as usize == 2 * i));
}

#[test]
fn a_stage_can_be_chosen_at_run_time() {
    let dropped = |odd: bool| {
        let make = move |_: &mut StageContext<'_>| -> Box<dyn Stage> {
            if odd { Box::new(DropOdd) } else { Box::new(Xconnect) }
        };
        run_frames(make, &frames(10)).ledger().dropped(ODD)
    };
    assert_eq!((dropped(true), dropped(false)), (5, 0));
}

/// A stage that drops odd packets; with `true`, it also reads packets in place that a peer may
/// write.
struct Declares<const IN_PLACE: bool>;

impl<const IN_PLACE: bool> Stage for Declares<IN_PLACE> {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        batch.retain(|skb| {
            let mut first = [0];
            match IN_PLACE {
                true => first[0] = skb.data().first().copied().unwrap_or(0),
                false => assert_eq!(skb.copy_to(0, &mut first), 1),
            }
            if first[0] % 2 == 1 { Err(ODD) } else { Ok(()) }
        });
    }

    fn reads_exported() -> bool {
        true
    }
}

#[test]
fn stage_that_copies_out_reads_packets_that_a_peer_may_write() {
    let run = run_frames(|_| Declares::<false>, &frames(100));
    assert_eq!((run.ledger().dropped(ODD), run.ledger().sent), (50, 50));
}

#[test]
#[should_panic(expected = "does not read packets that a peer may write")]
fn stage_that_reads_nothing_of_what_a_peer_may_write_and_says_it_does_fails() {
    let _ = run_frames(|_| Declares::<true>, &frames(100));
}

struct KeepAll(Vec<Skb>);

impl Stage for KeepAll {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        self.0.extend(batch.drain());
    }
}

#[test]
#[should_panic(expected = "the test's pool has no frame")]
fn stage_that_keeps_more_packets_than_the_pool_has_fails() {
    let frame = Frame { stamp_ns: 0, bytes: vec![7; 60] };
    let _ = run_frames(|_| KeepAll(Vec::new()), &vec![frame; FRAMES as usize + 1]);
}

struct FirstOfBatch;

impl Stage for FirstOfBatch {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        let mut i = 0;
        batch.retain(|_| {
            i += 1;
            if i == 1 { Ok(()) } else { Err(ODD) }
        });
    }
}

#[test]
#[should_panic(expected = "depends on the batch")]
fn a_stage_that_depends_on_the_batch_fails() {
    let _ = run_frames(|_| FirstOfBatch, &frames(10));
}

struct Tag;

impl Stage for Tag {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        let tag = Vlan { tci: 7, protocol: 0x8100 };
        batch.iter_mut().for_each(|skb| assert!(skb.set_vlan(Some(tag))));
    }
}

#[test]
fn tag_that_a_stage_sets_is_in_the_frames_that_leave() {
    let run = run_frames(|_| Tag, &frames(10));
    assert_eq!(run.out("east").len(), 10);
    for (frame, sent) in frames(10).iter().zip(run.out("east")) {
        let (macs, rest) = frame.bytes.split_at(12);
        assert_eq!(sent.bytes, [macs, &[0x81, 0, 0, 7], rest].concat());
    }
}

struct Mirror(PortId);

impl Stage for Mirror {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        for skb in batch.iter_mut() {
            turn.send(self.0, skb.share());
            if let Some(first) = skb.data_mut().first_mut() {
                *first = 255;
            }
        }
    }
}

#[test]
fn a_mirrored_packet_is_copied_on_the_first_write() {
    let run = run_frames(|cx| Mirror(cx.port("tap")), &frames(100));
    assert_eq!((run.ledger().created, run.ledger().sent), (100, 200));
    assert!(run.out("tap").iter().enumerate().all(|(i, f)| f.bytes[0] as usize == i));
    assert!(run.out("east").iter().all(|f| f.bytes[0] == 255));
}

struct Clock(Option<Instant>, Duration);

impl Stage for Clock {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        let start = *self.0.get_or_insert(turn.now());
        assert!(turn.now() - start >= self.1);
        self.1 = turn.now() - start;
        batch.retain(|_| Ok(()));
    }
}

#[test]
fn time_is_the_captures_and_never_goes_back() {
    let run = run_frames(|_| Clock(None, Duration::ZERO), &frames(30));
    assert_eq!(run.ledger().sent, 30);
}

#[test]
fn the_first_difference_is_shown() {
    let (a, mut b) = (frames(3), frames(3));
    assert_eq!(differ(&a, &b), None);
    b[1].bytes[7] = 0xee;
    assert!(differ(&a, &b).unwrap().contains("frame 1 differs from byte 7"));
    b.truncate(1);
    assert!(differ(&a, &b).unwrap().contains("3 frames where 1"));
}

/// A stage that passes a packet only within 2 ms of the packet before.
struct Idle(Option<Instant>);

impl Stage for Idle {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        batch.retain(|_| {
            let last = self.0.replace(turn.now());
            let idle = last.map_or(Duration::ZERO, |last| turn.now() - last);
            if idle <= Duration::from_millis(2) { Ok(()) } else { Err(ODD) }
        });
    }
}

#[test]
fn stage_that_expires_by_the_time_of_its_turns_sees_the_time_between_packets() {
    let stamps = [0, 1, 2, 5, 6, 9, 9, 9, 30];
    let frame = |ms: u64| Frame { stamp_ns: ms * 1_000_000, bytes: vec![ms as u8; 60] };
    let run = run_frames(|_| Idle(None), &stamps.map(frame));
    let passed: Vec<u8> = run.out("east").iter().map(|f| f.bytes[0]).collect();
    assert_eq!((passed, run.ledger().dropped(ODD)), (vec![0, 1, 2, 6, 9, 9], 3));
}

/// A NAT in small: `inside` gets back only what answers a packet of its own.
struct Answers {
    inside: PortId,
    asked: Vec<u8>,
}

impl Stage for Answers {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        let is_inside = turn.port() == self.inside;
        batch.retain(|skb| match skb.data()[0] {
            flow if is_inside => {
                self.asked.push(flow);
                Ok(())
            }
            flow if self.asked.contains(&flow) => Ok(()),
            _ => Err(ODD),
        });
    }
}

#[test]
fn the_return_path_of_a_stage_is_tested_by_inputs_in_the_order_of_their_stamps() {
    let frame = |(ms, flow): (u64, u8)| Frame { stamp_ns: ms * 1_000_000, bytes: vec![flow; 60] };
    let inside = [(1, 7), (5, 8), (5, 9)].map(frame);
    // The first two are too early; the last one has the stamp of what it answers.
    let outside = [(0, 7), (2, 8), (3, 7), (5, 9)].map(frame);
    let make = |cx: &mut StageContext<'_>| Answers { inside: cx.port("inside"), asked: Vec::new() };
    let run = run_ports(make, &[("inside", &inside), ("outside", &outside)]);
    let flows = |port| run.out(port).iter().map(|f| f.bytes[0]).collect::<Vec<_>>();
    assert_eq!((flows("inside"), flows("outside")), (vec![7, 9], vec![7, 8, 9]));
    assert_eq!(run.ledger().dropped(ODD), 2);
}

#[test]
fn the_last_of_three_inputs_is_joined_with_east() {
    let of = |byte| [Frame { stamp_ns: 0, bytes: vec![byte; 60] }];
    let run = run_ports(|_| Xconnect, &[("a", &of(1)), ("b", &of(2)), ("c", &of(3))]);
    let first = |port| run.out(port)[0].bytes[0];
    assert_eq!(["a", "b", "east"].map(first), [2, 1, 3]);
}

const MS: Duration = Duration::from_millis(1);

/// A stage that reports the end of a flow, 5 ms after its last packet, by a packet with the number
/// of packets of the flow.
struct Reports {
    to: PortId,
    seen: u8,
    end: Option<Instant>,
}

impl Stage for Reports {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        self.seen += batch.len() as u8;
        self.end = Some(turn.now() + 5 * MS);
    }

    fn alarm(&self) -> Option<Instant> {
        self.end
    }

    fn alarmed(&mut self, turn: &mut Turn<'_>) {
        assert_eq!((self.end.take(), turn.peer()), (Some(turn.now()), None));
        assert_ne!(turn.port(), self.to);
        let report = turn.alloc_copy(&[std::mem::take(&mut self.seen); 60]).unwrap();
        assert!(turn.send(self.to, report));
    }
}

#[test]
fn alarms_are_called_between_packets_and_after_the_last_one() {
    let frame = |ms: u64| Frame { stamp_ns: ms * 1_000_000, bytes: vec![100; 60] };
    let frames = [1, 2, 3, 7, 7, 30, 31].map(frame);
    let make = |cx: &mut StageContext<'_>| Reports { to: cx.port("east"), seen: 0, end: None };
    let run = run_frames(make, &frames);
    let sent: Vec<u8> = run.out("east").iter().map(|f| f.bytes[0]).collect();
    assert_eq!(sent, [100, 100, 100, 100, 100, 5, 100, 100, 2]);
}

/// A stage whose alarm is always in the past; it counts its calls.
struct Past(PortId);

impl Stage for Past {
    fn run(&mut self, _: &mut Batch, _: &mut Turn<'_>) {}

    fn alarm(&self) -> Option<Instant> {
        Some(Instant::now() - 100 * MS)
    }

    fn alarmed(&mut self, turn: &mut Turn<'_>) {
        let packet = turn.alloc_copy(&[1; 60]).unwrap();
        turn.send(self.0, packet);
    }
}

#[test]
fn stage_whose_alarm_stays_in_the_past_is_called_once_a_millisecond() {
    let run = run_frames(|cx| Past(cx.port("tap")), &frames(1));
    // From the packet to a second after it, both included.
    assert_eq!(run.out("tap").len(), 1001);
}

#[test]
#[should_panic(expected = "more than 100000 alarms")]
fn stage_with_alarms_without_end_fails() {
    let mut far_apart = frames(2);
    far_apart[1].stamp_ns = 200_000_000_000;
    let _ = run_frames(|cx| Past(cx.port("tap")), &far_apart);
}
