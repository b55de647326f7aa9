//! Runs a stage on a capture: in one thread, with the capture's clock, on the same path as in
//! production.
//!
//! The stage sits on a wire from `west`, which gives the capture's packets, to `east`. The run is
//! repeated with batches of 1, 7 and 64 packets; a stage whose result depends on how packets are
//! grouped fails.
//!
//! Packets from veth and tap have partial checksums, and superframes that are not cut into
//! segments: the kernel leaves both to a device. So the run is repeated with partial checksums of
//! UDP and TCP, and with TCP segments as superframes. A stage fails if its packets, once completed,
//! are not equal byte for byte.
//!
//! A stage that declares [`Stage::reads_exported`] is also run on packets that a peer may write;
//! the result must be equal.

mod unfinished;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use linerate_port::pcap::{self, Frame};
use linerate_port::wait::EventFd;
use linerate_port::{Caps, Direction, Health, Moderation, QueueOps, Want};
use linerate_skb::{Batch, Ledger, Local, Moved, Pool, Trust};

use crate::egress::Egress;
use crate::napi::Napi;
use crate::stage::Xconnect;
use crate::stage::{Stage, StageContext};
use crate::worker::{Turned, Worker};
use crate::worker_slot::WorkerSlot;
use unfinished::Left;

/// Batch sizes with which every run is repeated.
const BATCHES: [usize; 3] = [1, 7, 64];
/// Number of frames of the test's pool: 14 MB of data, where a capture's frame has at most 256 KiB.
const FRAMES: u32 = 8192;
/// Number of bytes shown of two frames that differ.
const SHOWN: usize = 96;

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Run {
    ledger: Ledger,
    outputs: BTreeMap<String, Vec<Frame>>,
}

/// Runs a stage on the packets of a capture.
///
/// `make` creates the stage, once for each run; a port exists as soon as `make` asks its context
/// for it.
///
/// # Panics
/// If the capture cannot be read, if two batch sizes give different results (the first difference
/// is shown), if unfinished packets or packets that a peer may write are treated differently, if
/// the stage keeps so many packets that the test's pool has no frame for the next one, or if the
/// ledger does not balance: the function is for tests.
#[must_use]
pub fn run<S: Stage + 'static>(
    make: impl Fn(&mut StageContext<'_>) -> S,
    capture: impl AsRef<Path>,
) -> Run {
    let path = capture.as_ref();
    let frames = match pcap::read_all(path) {
        Ok(frames) => frames,
        Err(e) => panic!("{e}"),
    };
    run_frames(make, &frames)
}

/// Runs a stage as [`run`] does, on packets made by the test.
///
/// # Panics
/// As [`run`]; there is no capture that could be unreadable.
#[must_use]
pub fn run_frames<S: Stage + 'static>(
    make: impl Fn(&mut StageContext<'_>) -> S,
    frames: &[Frame],
) -> Run {
    let mut first: Option<Run> = None;
    for batch in BATCHES {
        let run = run_once(&make, frames, batch, Left::Nothing, Trust::Private);
        assert!(run.ledger.balanced(), "batches of {batch}: {}", run.ledger);
        match &first {
            None => first = Some(run),
            Some(one) => one.assert_same_batches(&run, batch),
        }
    }
    let Some(first) = first else { unreachable!("there is a batch size") };
    for left in [Left::Checksums, Left::Superframes] {
        let run = run_once(&make, frames, BATCHES[1], left, Trust::Private);
        assert!(run.ledger.balanced(), "with {} in a packet: {}", left.as_str(), run.ledger);
        let what = format!("the stage leaves {} wrong", left.as_str());
        first.assert_same(&run, &what);
    }
    if S::reads_exported() {
        let run = run_once(&make, frames, BATCHES[1], Left::Nothing, Trust::Exported);
        assert!(run.ledger.balanced(), "with packets that a peer may write: {}", run.ledger);
        first.assert_same(&run, "the stage does not read packets that a peer may write");
    }
    first
}

impl Run {
    /// Returns the account of every packet.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the frames that were sent by a port, in order.
    #[must_use]
    pub fn out(&self, port: &str) -> &[Frame] {
        self.outputs.get(port).map_or(&[], Vec::as_slice)
    }

    /// Fails unless the frames sent by `port` are, byte for byte, those of the capture.
    ///
    /// # Panics
    /// If a frame differs; the message shows the first one.
    pub fn assert_out(&self, port: &str, expected: impl AsRef<Path>) {
        let path = expected.as_ref();
        let expected = match pcap::read_all(path) {
            Ok(frames) => frames,
            Err(e) => panic!("{e}"),
        };
        if let Some(difference) = differ(self.out(port), &expected) {
            panic!("{port} against {}: {difference}", path.display());
        }
    }

    fn assert_same_batches(&self, other: &Run, batch: usize) {
        let with = format!("batches of {} and of {batch}", BATCHES[0]);
        self.assert_same(other, &format!("the result depends on the batch: {with}"));
    }

    fn assert_same(&self, other: &Run, otherwise: &str) {
        for port in self.outputs.keys().chain(other.outputs.keys()) {
            if let Some(difference) = differ(other.out(port), self.out(port)) {
                panic!("{otherwise}: port {port}: {difference}");
            }
        }
        let (a, b) = (&self.ledger.dropped, &other.ledger.dropped);
        assert_eq!(a, b, "{otherwise}: the drops differ");
    }
}

/// Describes the first difference between two lists of frames, for a reader; `None` if they are
/// equal.
fn differ(found: &[Frame], expected: &[Frame]) -> Option<String> {
    let same = |(f, e): &(&Frame, &Frame)| f.bytes == e.bytes;
    if let Some(i) = found.iter().zip(expected).position(|pair| !same(&pair)) {
        let (f, e) = (&found[i].bytes, &expected[i].bytes);
        let at = f.iter().zip(e).take_while(|(a, b)| a == b).count();
        return Some(format!(
            "frame {i} differs from byte {at} on\n  found    {}\n  expected {}",
            hex(f),
            hex(e)
        ));
    }
    let (f, e) = (found.len(), expected.len());
    (f != e).then(|| format!("{f} frames where {e} are expected; the first {} agree", f.min(e)))
}

fn hex(bytes: &[u8]) -> String {
    let mut text = format!("({} bytes)", bytes.len());
    for (i, byte) in bytes.iter().take(SHOWN).enumerate() {
        let _ = write!(text, "{}{byte:02x}", if i % 8 == 0 { " " } else { "" });
    }
    text
}

type Collected = Arc<Mutex<Vec<Frame>>>;

fn run_once<S: Stage + 'static>(
    make: &impl Fn(&mut StageContext<'_>) -> S,
    frames: &[Frame],
    batch: usize,
    left: Left,
    trust: Trust,
) -> Run {
    let (stage, names) = make_stage(make);
    let pool = match Pool::builder().name("stage test").frames(FRAMES).trust(trust).build() {
        Ok(pool) => pool,
        Err(e) => panic!("{e}"),
    };
    let begin = frames.first().map_or(0, |f| f.stamp_ns);
    let clock = Arc::new(Mutex::new(begin));
    let (mut napis, mut outputs) = (Vec::new(), Vec::new());
    for (i, name) in names.iter().enumerate() {
        let collected = Collected::default();
        let given = if i == 0 { frames.to_vec() } else { Vec::new() };
        let direction = if i == 0 { Direction::Both } else { Direction::Sink };
        let ops = match Tape::new(given, left, clock.clone(), collected.clone()) {
            Ok(tape) => Box::new(tape),
            Err(e) => panic!("{e}"),
        };
        let tally = pool.tally(&format!("{name} backlog"));
        let mut napi = Napi::new(ops, direction, Napi::id(i), Egress::new(4 * batch, None), tally);
        // The clock is the tape's: no moderation may wait by the real clock.
        let _ = napi.set_moderation(Moderation::Napi);
        napi.peer = (i == 0).then_some(1);
        napis.push(napi);
        outputs.push((name.clone(), collected));
    }
    let stages: Vec<Box<dyn Stage>> = vec![Box::new(stage), Box::new(Xconnect)];
    let worker = WorkerSlot::new(&Arc::default(), Vec::new())
        .and_then(|slot| Worker::new(napis, stages, vec![pool.local()], batch, slot));
    let mut worker = match worker {
        Ok(worker) => worker,
        Err(e) => panic!("{e}"),
    };
    let start = Instant::now();
    loop {
        let at = *clock.lock().unwrap_or_else(PoisonError::into_inner);
        let now = start + Duration::from_nanos(at.saturating_sub(begin));
        if worker.turn(now) != Turned::Again {
            break;
        }
    }
    assert!(worker.napis.first().is_some_and(Napi::ended), "the run left frames unread");
    drop(worker);
    let take = |(name, frames): (String, Collected)| {
        (name, std::mem::take(&mut *frames.lock().unwrap_or_else(PoisonError::into_inner)))
    };
    Run { ledger: pool.ledger(), outputs: outputs.into_iter().map(take).collect() }
}

/// Creates the stage, and returns it with the list of ports that it asked for.
fn make_stage<S: Stage>(make: &impl Fn(&mut StageContext<'_>) -> S) -> (S, Vec<String>) {
    let mut names = vec!["west".to_owned(), "east".to_owned()];
    loop {
        let mut cx = StageContext::new(&names, 0);
        let stage = make(&mut cx);
        match cx.missing().first().cloned() {
            None => return (stage, names),
            Some(name) => names.push(name),
        }
    }
}

/// A device in memory: delivers frames, and records the frames sent to it.
struct Tape {
    bell: EventFd,
    frames: std::vec::IntoIter<Frame>,
    /// The work on each frame that the tape leaves to a device.
    left: Left,
    /// Capture time of the last frame delivered.
    clock: Arc<Mutex<u64>>,
    collected: Collected,
}

impl Tape {
    fn new(
        frames: Vec<Frame>,
        left: Left,
        clock: Arc<Mutex<u64>>,
        collected: Collected,
    ) -> linerate_port::Result<Tape> {
        Ok(Tape { bell: EventFd::new()?, frames: frames.into_iter(), left, clock, collected })
    }
}

impl QueueOps for Tape {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let mut moved = Moved::default();
        while moved.packets < budget
            && let Some(mut frame) = self.frames.next()
        {
            let offload = self.left.of(&mut frame.bytes);
            let Some(mut skb) = mem.alloc_copy(&frame.bytes) else {
                panic!("the test's pool has no frame: the stage keeps all {FRAMES}")
            };
            skb.set_stamp_ns(frame.stamp_ns);
            skb.set_offload(offload);
            *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = frame.stamp_ns;
            if out.push(skb).is_err() {
                break;
            }
            moved += Moved { packets: 1, bytes: frame.bytes.len() as u64 };
        }
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        let mut collected = self.collected.lock().unwrap_or_else(PoisonError::into_inner);
        batch.retain(unfinished::finish);
        for skb in batch.iter() {
            let mut bytes = vec![0; skb.len()];
            skb.copy_to(0, &mut bytes);
            collected.push(Frame { stamp_ns: skb.stamp_ns().unwrap_or(0), bytes });
        }
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }

    // Declared as in-process, so that partial checksums and superframes reach `xmit`, which checks
    // and completes them; VLAN tags in the metadata are inserted, as before any device.
    fn caps(&self) -> Caps {
        Caps { keeps_vlan: false, ..Caps::IN_PROCESS }
    }

    fn health(&self) -> Health {
        if self.frames.len() == 0 { Health::Finished } else { Health::Up }
    }
}

impl AsFd for Tape {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PortId, Turn};
    use linerate_skb::{DropReason, Skb, Vlan};

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
}
