//! Runs a stage on a capture: in one thread, with the capture's clock, on the same path as in
//! production.
//!
//! The stage sits on a wire from `west`, which gives the capture's packets, to `east`;
//! [`run_ports`] gives packets to several ports. The time of a turn,
//! [`Turn::now`](crate::Turn::now), is the stamp of the packets that it delivers; packets with
//! different stamps are delivered in different turns.
//!
//! The run is repeated with batches of 1, 7 and 64 packets; a stage whose result depends on how
//! packets are grouped fails. To have so many packets in a batch, these runs are made twice: by the
//! stamps, and with 64 consecutive packets at the time of the last of them, as a worker reads
//! packets that have gathered. The result of a run is the one by the stamps.
//!
//! Between the packets, and up to a second after the last one, the stage is called at the times of
//! its alarms ([`Stage::alarm`]): before the packets of the same time, and exactly at the time,
//! where a worker is late. A run calls at most 100,000.
//!
//! Packets from veth and tap have partial checksums, and superframes that are not cut into
//! segments: the kernel leaves both to a device. So the run is repeated with partial checksums of
//! UDP and TCP, and with TCP segments as superframes. A stage fails if its packets, once completed,
//! are not equal byte for byte.
//!
//! A stage that declares [`Stage::reads_exported`] is also run on packets that a peer may write;
//! the result must be equal.

mod tape;
mod unfinished;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use linerate_port::pcap::{self, Frame};
use linerate_port::{Direction, Moderation};
use linerate_skb::{Ledger, Pool, Trust};

use crate::egress::Egress;
use crate::napi::Napi;
use crate::stage::{Stage, StageContext, Xconnect};
use crate::worker::{StageAlarms, Worker};
use crate::worker_slot::WorkerSlot;
use tape::{Collected, Schedule, Tape, Times};
use unfinished::Left;

/// Batch sizes with which every run is repeated.
const BATCHES: [usize; 3] = [1, 7, BUDGET];
/// Number of packets that a turn may receive, and that a stage may send beside a batch of any size.
const BUDGET: usize = 64;
/// Number of frames of the test's pool: 14 MB of data, where a capture's frame has at most 256 KiB.
const FRAMES: u32 = 8192;
/// Time after the last frame in which alarms are called.
const AFTER: Duration = Duration::from_secs(1);
/// Most turns of a run that are made for alarms.
const ALARMS_MAX: usize = 100_000;
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
/// the stage keeps so many packets that the test's pool has no frame for the next one or has more
/// than 100,000 alarms, or if the ledger does not balance: the function is for tests.
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
    run_ports(make, &[("west", frames)])
}

/// Runs a stage as [`run_frames`] does, on packets that several ports receive: each input is the
/// name of a port and its packets, which may be none.
///
/// Wires join the ports in pairs, in the order given: the first with the second, the third with the
/// fourth; the last of an odd number is joined with `east`. The packets are delivered in the order
/// of their stamps, and port by port, in the order given, if their stamps are equal. A batch has
/// packets of one port.
///
/// ```
/// # mod linerate { pub use linerate_datapath::*; pub use linerate_port::pcap; }
/// use linerate::{Xconnect, pcap::Frame, testing};
///
/// let frame = |ms: u64, byte| Frame { stamp_ns: ms * 1_000_000, bytes: vec![byte; 60] };
/// let (inside, outside) = ([frame(0, 1), frame(2, 2)], [frame(1, 3)]);
/// let run = testing::run_ports(|_| Xconnect, &[("inside", &inside), ("outside", &outside)]);
/// assert_eq!((run.out("inside").len(), run.out("outside").len()), (1, 2));
/// ```
///
/// # Panics
/// As [`run_frames`], and if there is no input or two have one name.
#[must_use]
pub fn run_ports<S: Stage + 'static>(
    make: impl Fn(&mut StageContext<'_>) -> S,
    inputs: &[(&str, &[Frame])],
) -> Run {
    let exact = Kind {
        batch: BATCHES[1],
        times: Times::Stamps,
        left: Left::Nothing,
        trust: Trust::Private,
    };
    let run = |kind: Kind, what: &str| {
        let run = run_once(&make, inputs, kind);
        assert!(run.ledger.balanced(), "with {what}: {}", run.ledger);
        run
    };
    for times in [Times::Stamps, Times::Gathered(BUDGET)] {
        let [one, others @ ..] = BATCHES
            .map(|batch| run(Kind { batch, times, ..exact }, &format!("batches of {batch}")));
        for (other, batch) in others.iter().zip(&BATCHES[1..]) {
            one.assert_same_batches(other, *batch);
        }
    }
    let first = run(exact, "complete packets");
    for left in [Left::Checksums, Left::Superframes] {
        let run = run(Kind { left, ..exact }, &format!("{} in a packet", left.as_str()));
        let what = format!("the stage leaves {} wrong", left.as_str());
        first.assert_same(&run, &what);
    }
    if S::reads_exported() {
        let run = run(Kind { trust: Trust::Exported, ..exact }, "packets that a peer may write");
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

/// One of the runs that are compared.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// Most packets of a batch.
    batch: usize,
    times: Times,
    left: Left,
    trust: Trust,
}

fn run_once<S: Stage + 'static>(
    make: &impl Fn(&mut StageContext<'_>) -> S,
    inputs: &[(&str, &[Frame])],
    kind: Kind,
) -> Run {
    let wired = wired(inputs);
    let (stage, names) = make_stage(make, &wired);
    let pool = match Pool::builder().name("stage test").frames(FRAMES).trust(kind.trust).build() {
        Ok(pool) => pool,
        Err(e) => panic!("{e}"),
    };
    let (mut napis, mut admitted, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for (i, name) in names.into_iter().enumerate() {
        let (collected, admits) = (Collected::default(), Arc::<AtomicUsize>::default());
        let (given, direction) = match inputs.get(i) {
            Some((_, frames)) => (frames.to_vec(), Direction::Both),
            None => (Vec::new(), Direction::Sink),
        };
        let ops = match Tape::new(given, kind.left, admits.clone(), collected.clone()) {
            Ok(tape) => Box::new(tape),
            Err(e) => panic!("{e}"),
        };
        let tally = pool.tally(&format!("{name} backlog"));
        let mut napi = Napi::new(ops, direction, Napi::id(i), Egress::new(4 * BUDGET, None), tally);
        // The clock is the capture's: no moderation may wait by the real clock.
        let _ = napi.set_moderation(Moderation::Napi);
        napi.peer = (i < wired.len()).then_some(i ^ 1);
        napis.push(napi);
        admitted.push(admits);
        outputs.push((name, collected));
    }
    let stages: Vec<Box<dyn Stage>> = vec![Box::new(stage), Box::new(Xconnect)];
    let worker = WorkerSlot::new(&Arc::default(), Vec::new())
        .and_then(|slot| Worker::new(napis, stages, vec![pool.local()], BUDGET, slot));
    let mut worker = match worker {
        Ok(worker) => worker,
        Err(e) => panic!("{e}"),
    };
    worker.stage_alarms = StageAlarms::of_first(1);
    deliver(&mut worker, Schedule::new(inputs, kind.times), kind.batch, &admitted);
    drop(worker);
    let take = |(name, frames): (String, Collected)| {
        (name, std::mem::take(&mut *frames.lock().unwrap_or_else(PoisonError::into_inner)))
    };
    Run { ledger: pool.ledger(), outputs: outputs.into_iter().map(take).collect() }
}

/// Delivers all frames, in batches of at most `batch`, each in a turn at its time; the turns of
/// alarms come between them.
fn deliver(
    worker: &mut Worker,
    mut schedule: Schedule,
    batch: usize,
    admitted: &[Arc<AtomicUsize>],
) {
    let (begin, start) = (schedule.next_ns().unwrap_or(0), Instant::now());
    let at = |stamp_ns| start + Duration::from_nanos(stamp_ns - begin);
    let end = at(schedule.last_ns().unwrap_or(0)) + AFTER;
    let (mut now, mut alarms) = (start, 0);
    loop {
        let until = schedule.next_ns().map_or(end, at);
        if let Some(alarm) = worker.stage_alarms.next.filter(|alarm| *alarm <= until) {
            alarms += 1;
            assert!(alarms <= ALARMS_MAX, "the stage has more than {ALARMS_MAX} alarms");
            now = now.max(alarm);
            worker.turn(now);
            continue;
        }
        let Some((stamp_ns, port, n)) = schedule.take(batch) else { break };
        admitted[port].store(n, Ordering::Relaxed);
        now = at(stamp_ns);
        worker.turn(now);
    }
    let mut read = worker.napis.iter().filter(|napi| napi.reads());
    assert!(read.all(Napi::ended), "the run left frames unread");
}

/// Returns the names of the ports on wires: consecutive ones are joined.
fn wired(inputs: &[(&str, &[Frame])]) -> Vec<String> {
    assert!(!inputs.is_empty(), "there is no input");
    let mut names: Vec<String> = Vec::new();
    for (name, _) in inputs {
        assert!(!names.iter().any(|n| n == name), "two inputs have the name {name}");
        names.push((*name).to_owned());
    }
    if names.len() % 2 == 1 {
        let other = ["east", "west"].into_iter().find(|other| !names.iter().any(|n| n == other));
        let Some(other) = other else { panic!("the last input has no other end of a wire") };
        names.push(other.to_owned());
    }
    names
}

/// Creates the stage, and returns it with the list of ports: those on wires, and those that it
/// asked for.
fn make_stage<S: Stage>(
    make: &impl Fn(&mut StageContext<'_>) -> S,
    wired: &[String],
) -> (S, Vec<String>) {
    let mut names = wired.to_vec();
    loop {
        let mut cx = StageContext::new(&names, 0, &[]);
        let stage = make(&mut cx);
        match cx.missing().first().cloned() {
            None => return (stage, names),
            Some(name) => names.push(name),
        }
    }
}

#[cfg(test)]
mod tests;
