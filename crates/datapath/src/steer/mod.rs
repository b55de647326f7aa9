//! Division of a single-queue device's packets among workers, as a device with several queues would
//! divide them. Flows can move between workers without reordering.
//!
//! ```text
//!            ┌─ ring ─► worker 1 ─ ring ─┐
//!   device ──┤  (stages that cost)       ├──► the other device, by the worker that has it
//!            └─ ring ─► worker 2 ─ ring ─┘
//! ```
//!
//! A flow's hash selects one of 256 buckets, and a table has the output of each bucket. Any thread
//! may change the table ([`Steering`]). The stage moves a bucket to its new output only when the
//! bucket's packets have left the old worker, so that nothing can delay them any more (hand.rs).
//! Until then it sends the bucket's packets to the old output.
//!
//! Owner: the worker that has the device. Other threads write the table; other workers publish
//! which packets have left them (clear.rs).
//!
//! Source: Documentation/networking/scaling.rst, "RFS: Receive Flow Steering", whose rule it is.

mod clear;
mod hand;
mod outside;
mod pause;
mod plan;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use linerate_port::{Code, Error, Result, Views};
use linerate_skb::{Batch, Verdict};
use linerate_wire::Toeplitz;

pub(crate) use clear::{Clear, Clearing};
pub(crate) use hand::{Hand, Reader};
pub(crate) use outside::outside;
use pause::Signals;
pub(crate) use plan::{Fan, Steered, fans, link};

use crate::knob::BUDGET;
use crate::stage::{PortId, Stage, Turn};

/// Number of buckets, the entries of the table.
const BUCKETS: usize = 256;
/// Most outputs of a division.
const OUTPUTS_MAX: usize = 32;

/// A division of one port's packets by flow among several ports, which are rings to other workers.
/// Any thread can change the division through this handle while packets pass.
///
/// The device is polled for at most as many packets as fit into each output, because the output of
/// a packet is known only after it was received: one slow output slows down the whole device.
///
/// The program's stages run on the workers behind the rings, once on each packet of a wire, and not
/// on the device's worker, unless they [ask for it](crate::Stage::runs_at_division). What the
/// program takes from rings that it [keeps](crate::EngineBuilder::keep) has passed no stage.
///
/// Given to [`EngineBuilder::steer`](crate::EngineBuilder::steer). Both ways of a flow are in one
/// bucket, and what is not IP is in the first. At the start the buckets are dealt out evenly.
///
/// ```
/// # use linerate_datapath as linerate;
/// use linerate::{Engine, Steering};
///
/// # fn main() -> linerate::Result<()> {
/// // Two devices of one queue each, and two workers that do the work between them, for both ways.
/// let west = Steering::new("west", &["w1", "w2"])?;
/// let east = Steering::new("east", &["e1", "e2"])?;
/// let engine = Engine::builder()
///     .port("west", "null:").port("east", "null:")
///     .port("w1", "ring:rw1").port("w2", "ring:rw2").port("e1", "ring:re1").port("e2", "ring:re2")
///     .port("1w", "ring:rw1").port("2w", "ring:rw2").port("1e", "ring:re1").port("2e", "ring:re2")
///     // Workers 0 and 1 have a device and its rings each, workers 2 and 3 one ring of either.
///     .steer(&west).steer(&east).wire("1w", "1e").wire("2w", "2e")
///     .build()?;
/// let running = engine.start()?;
/// // All flows to the second, each as soon as the first has nothing of it any more.
/// west.give(0..256, 1)?;
/// # drop(running);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Steering {
    from: Arc<str>,
    outputs: Arc<[String]>,
    toeplitz: Toeplitz,
    table: Arc<Table>,
}

/// State shared by the threads that change a division and the stage that executes it.
#[derive(Debug)]
struct Table {
    /// The wanted output of each bucket.
    wanted: [AtomicU8; BUCKETS],
    /// Number of changes of the table.
    version: AtomicU32,
    /// Number of buckets that have still to move, and of moves so far. Only the stage writes both.
    waiting: AtomicU64,
    moved: AtomicU64,
    /// Time of all pauses.
    paused_ns: AtomicU64,
}

impl Steering {
    /// Creates a division of the packets of port `from`, a device with one queue, among `outputs`.
    ///
    /// # Errors
    /// `E-TOPOLOGY` without an output, or with more than 32.
    pub fn new(from: &str, outputs: &[&str]) -> Result<Steering> {
        if outputs.is_empty() || outputs.len() > OUTPUTS_MAX {
            let what = format!("cannot divide the packets from '{from}'");
            let why = format!("among {} outputs", outputs.len());
            return Err(Error::new(Code::Topology, what, why).fix(format!("1 to {OUTPUTS_MAX}")));
        }
        let evenly = |bucket| AtomicU8::new((bucket * outputs.len() / BUCKETS) as u8);
        let table = Table {
            wanted: std::array::from_fn(evenly),
            version: AtomicU32::new(0),
            waiting: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            paused_ns: AtomicU64::new(0),
        };
        let outputs = outputs.iter().map(|name| (*name).to_owned()).collect();
        let toeplitz = Toeplitz::SYMMETRIC;
        Ok(Steering { from: from.into(), outputs, toeplitz, table: Arc::new(table) })
    }

    /// Uses another hash key, for instance the key of a device whose queues must be matched: a
    /// bucket has all hashes with the same upper 8 bits.
    #[must_use]
    pub fn by(mut self, toeplitz: Toeplitz) -> Steering {
        self.toeplitz = toeplitz;
        self
    }

    /// Orders that some buckets, of 256, go to output number `output`. A bucket moves once its
    /// packets have left its present output.
    ///
    /// If packets of such a bucket leave no gap in which it could move, as under overload, the
    /// worker of the device reads nothing from it after 10 ms, until all packets that it handed
    /// over have left: for at most 100 ms, and at most a tenth of the time. Packets gather in the
    /// device's ring meanwhile, and the device may lose some. If the packets that wait need longer
    /// to leave, the bucket stays (docs/placement.md).
    ///
    /// This keeps flows in order over rings between workers. Packets that lie unread in a ring that
    /// the program [keeps](crate::EngineBuilder::keep) are not waited for, so a move can reorder a
    /// flow there, unless the program's thread has read them before. Flows move away from a worker
    /// that has ended, too.
    ///
    /// # Errors
    /// `E-TOPOLOGY` if there is no such bucket or output: then nothing has changed.
    pub fn give(&self, buckets: std::ops::Range<usize>, output: usize) -> Result<()> {
        let count = self.outputs.len();
        let Some(entries) = self.table.wanted.get(buckets.clone()).filter(|_| output < count)
        else {
            let what = format!("cannot move flows of '{}'", self.from);
            let why = format!("buckets {buckets:?} to output {output}");
            return Err(Error::new(Code::Topology, what, why)
                .fix(format!("buckets 0..{BUCKETS}, outputs 0..{count}")));
        };
        entries.iter().for_each(|entry| entry.store(output as u8, Ordering::Relaxed));
        self.table.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Returns the number of buckets that have still to move, as of the last packets that the stage
    /// got. A bucket moves with its next packet: one without packets is counted until then.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.table.waiting.load(Ordering::Relaxed)
    }

    /// Returns the number of moves of buckets so far.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.table.moved.load(Ordering::Relaxed)
    }

    /// Returns the time for which the device was not read, so that buckets could move.
    #[must_use]
    pub fn paused(&self) -> Duration {
        Duration::from_nanos(self.table.paused_ns.load(Ordering::Relaxed))
    }

    /// Counts a pause of the device.
    fn count_pause(&self, lasted: Duration) {
        let ns = u64::try_from(lasted.as_nanos()).unwrap_or(u64::MAX);
        self.table.paused_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the bucket of a hash.
    fn bucket(hash: u32) -> usize {
        (hash >> 24) as usize
    }
}

/// A bucket: the output of its packets, and the number of its last packet.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    to: u8,
    wanted: u8,
    /// Number of the bucket's last packet, in the count of packets handed to that output.
    last: u64,
    /// The value of `Steer::clears` when that packet was handed over.
    clears: u64,
}

/// The stage that executes a [`Steering`], on the worker of its device.
pub(crate) struct Steer {
    from: PortId,
    ports: Vec<PortId>,
    hands: Vec<Hand>,
    steering: Steering,
    buckets: Box<[Bucket; BUCKETS]>,
    signals: Arc<Signals>,
    /// The number of turns after which no packet waited for an output, as last read.
    clears: u64,
    /// The number that was read before `clears`.
    clears_before: u64,
    version: u32,
    waiting: u64,
    /// Hashes of a batch's packets, allocated for the longest batch.
    hashes: Vec<u32>,
}

impl Steer {
    pub fn new(
        steering: &Steering,
        from: PortId,
        outputs: Vec<(PortId, Hand)>,
        signals: Arc<Signals>,
    ) -> Steer {
        let (ports, hands) = outputs.into_iter().unzip();
        let first = |bucket: usize| {
            let to = steering.table.wanted[bucket].load(Ordering::Relaxed);
            Bucket { to, wanted: to, ..Bucket::default() }
        };
        Steer {
            from,
            ports,
            hands,
            steering: steering.clone(),
            buckets: Box::new(std::array::from_fn(first)),
            signals,
            clears: 0,
            clears_before: 0,
            version: 0,
            waiting: 0,
            hashes: Vec::with_capacity(BUDGET.max as usize),
        }
    }

    /// Reads the wanted outputs, and which packets have left since the last batch.
    fn look(&mut self) {
        let clears = self.signals.clears.load(Ordering::Relaxed);
        let version = self.steering.table.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            for (bucket, wanted) in self.buckets.iter_mut().zip(&self.steering.table.wanted) {
                bucket.wanted = wanted.load(Ordering::Relaxed);
            }
            self.count();
        }
        if clears != self.clears {
            (self.clears_before, self.clears) = (self.clears, clears);
            self.hands.iter_mut().for_each(Hand::sent);
        }
        if self.waiting > 0 {
            self.hands.iter_mut().for_each(Hand::advance);
        }
    }

    fn count(&mut self) {
        let waits = |bucket: &&Bucket| bucket.to != bucket.wanted;
        self.set_waiting(self.buckets.iter().filter(waits).count() as u64);
    }

    fn set_waiting(&mut self, buckets: u64) {
        self.waiting = buckets;
        self.steering.table.waiting.store(buckets, Ordering::Relaxed);
    }

    /// Moves a bucket to its wanted output, if its packets have left; called when one of its
    /// packets is to be sent.
    #[cold]
    fn follow(&mut self, at: usize) {
        let bucket = &mut self.buckets[at];
        let is_gone = bucket.clears < self.signals.gone.load(Ordering::Relaxed);
        let is_new = bucket.clears >= self.clears_before;
        let has_left =
            |hand: &Hand| bucket.clears < self.clears && hand.has_left(bucket.last, is_new);
        if is_gone || self.hands.get(usize::from(bucket.to)).is_none_or(has_left) {
            bucket.to = bucket.wanted;
            self.steering.table.moved.fetch_add(1, Ordering::Relaxed);
            self.set_waiting(self.waiting.saturating_sub(1));
        } else {
            self.signals.refused.store(true, Ordering::Relaxed);
        }
    }
}

impl Stage for Steer {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        if self.from != turn.port() {
            return;
        }
        self.look();
        self.hashes.clear();
        let toeplitz = &self.steering.toeplitz;
        self.hashes.extend(batch.iter().map(|skb| skb.rss_hash(toeplitz)));
        for i in 0..self.hashes.len() {
            // Another stage has decided where this packet goes.
            if batch.verdict(i) != Verdict::NONE {
                continue;
            }
            let at = Steering::bucket(self.hashes[i]);
            if self.buckets[at].to != self.buckets[at].wanted {
                self.follow(at);
            }
            let bucket = &mut self.buckets[at];
            let to = usize::from(bucket.to);
            if let (Some(hand), Some(port)) = (self.hands.get_mut(to), self.ports.get(to)) {
                bucket.last = hand.handed();
                // The packet may wait in this worker until `self.clears` is incremented.
                bucket.clears = self.clears;
                batch.set_verdict(i, port.verdict());
            }
        }
    }
}
