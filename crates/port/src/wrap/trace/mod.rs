//! A trace of the packets that passed a queue: each packet's length and first bytes, and refused packets.
//!
//! ```text
//!   path thread    rx, xmit ──► ring of records, one Release store a call
//!   any thread                        └──► Trace::next
//! ```
//!
//! A full ring takes nothing more until it is read: the first records stay, which are those that
//! were waited for, and the others are counted as lost. The path never waits.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use linerate_ring::{Consumer, Heap, Producer, heap};
use linerate_skb::{Batch, Code, Error, Local, Moved, Result, Skb};

use super::{Layer, Way, Wrapped, epoch_ns};
use crate::queue::QueueOps;

/// Most bytes of a packet that a record has.
pub const HEAD_BYTES: usize = 64;
/// Most records of a trace; they take 104 MiB.
const RECORDS_MAX: u32 = 1 << 20;

/// The event that a record describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A packet that passed, with its length.
    Packet {
        /// The packet's length; the record may have fewer of its bytes.
        len_bytes: u32,
    },
    /// Packets of an `xmit` that the queue could not accept at that time.
    Refused {
        /// Number of packets that stayed with the caller.
        packets: u32,
    },
    /// Packets of an `xmit` that were dropped instead of sent: the ledger has the reasons.
    Dropped {
        /// Number of dropped packets.
        packets: u32,
    },
}

/// One record of a trace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Time of the call, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The number of the call, which records of one batch share.
    pub call: u64,
    /// The packet's direction.
    pub way: Way,
    /// The event that the record describes.
    pub what: What,
    /// Number of packets that the call received, or that were passed to it.
    pub batch: u32,
    head_len: u8,
    head: [u8; HEAD_BYTES],
}

impl Record {
    /// Returns the packet's first bytes, at most [`HEAD_BYTES`].
    #[must_use]
    pub fn head(&self) -> &[u8] {
        self.head.get(..usize::from(self.head_len)).unwrap_or(&[])
    }

    fn of(call: Call, what: What, batch: u32) -> Record {
        let Call { time_ns, number, way } = call;
        Record { time_ns, call: number, way, what, batch, head_len: 0, head: [0; HEAD_BYTES] }
    }

    fn of_packet(call: Call, skb: &Skb, batch: u32) -> Record {
        let mut record = Record::of(call, What::Packet { len_bytes: count(skb.len()) }, batch);
        record.head_len = skb.copy_to(0, &mut record.head) as u8; // at most HEAD_BYTES
        record
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.way == Way::Rx { "rx" } else { "tx" };
        let (s, ns) = (self.time_ns / 1_000_000_000, self.time_ns % 1_000_000_000);
        write!(f, "{s}.{ns:09} call {} {way} of {}: ", self.call, self.batch)?;
        match self.what {
            What::Refused { packets } => write!(f, "refused {packets}"),
            What::Dropped { packets } => write!(f, "dropped {packets}"),
            What::Packet { len_bytes } => {
                write!(f, "{len_bytes} bytes")?;
                self.head().iter().try_for_each(|byte| write!(f, " {byte:02x}"))
            }
        }
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A call of the queue.
#[derive(Clone, Copy)]
struct Call {
    time_ns: u64,
    number: u64,
    way: Way,
}

/// The state that the path and the reader of the trace share.
#[derive(Debug, Default)]
struct Shared {
    on: AtomicBool,
    lost: AtomicU64,
}

/// The reading side of a traced queue. A trace is off until [`Trace::set_on`].
pub struct Trace {
    records: Consumer<Heap<Record>>,
    shared: Arc<Shared>,
}

impl Trace {
    /// Turns the trace on or off, while the path runs.
    pub fn set_on(&self, on: bool) {
        self.shared.on.store(on, Ordering::Relaxed);
    }

    /// Returns the next record, if there is one.
    #[expect(clippy::should_implement_trait, reason = "there may be more after a None")]
    pub fn next(&mut self) -> Option<Record> {
        if self.records.peek(1) == 0 {
            return None;
        }
        let record = self.records.read(0);
        self.records.release(1);
        Some(record)
    }

    /// Returns the number of records that were lost because the trace was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// A queue whose packets are recorded while its [`Trace`] is on.
pub type Traced = Wrapped<Recorder>;

impl Traced {
    /// Wraps a queue in a trace with room for at least `records` records.
    ///
    /// # Errors
    /// `E-MEMORY` for more than a million records, or if there is no memory for them.
    pub fn new(inner: Box<dyn QueueOps>, records: u32) -> Result<(Traced, Trace)> {
        let fail = |why: String| {
            Error::new(Code::Memory, format!("cannot trace with {records} records"), why)
        };
        if records > RECORDS_MAX {
            let e = fail(format!("a trace has at most {RECORDS_MAX}"));
            return Err(e.fix("fewer records, and read them while they come"));
        }
        let ring = heap(records.max(1).next_power_of_two());
        let (producer, consumer) = ring.map_err(|e| {
            fail(e.to_string()).fix("trace with fewer records, or free some memory")
        })?;
        let shared = Arc::new(Shared::default());
        let trace = Trace { records: consumer, shared: shared.clone() };
        let recorder = Recorder { records: producer, shared, calls: 0 };
        Ok((Wrapped::around(inner, recorder), trace))
    }
}

/// The writing side of a trace.
pub struct Recorder {
    records: Producer<Heap<Record>>,
    shared: Arc<Shared>,
    calls: u64,
}

impl Recorder {
    /// Begins the record of a call, if the trace is on.
    fn begin(&mut self, way: Way) -> Option<Call> {
        if !self.shared.on.load(Ordering::Relaxed) {
            return None;
        }
        self.calls += 1;
        Some(Call { time_ns: epoch_ns(), number: self.calls, way })
    }

    /// Publishes `records`, and counts those that find no room as lost.
    fn publish(&mut self, records: impl ExactSizeIterator<Item = Record>) {
        let n = count(records.len());
        let room = self.records.reserve(n);
        for (i, record) in (0..room).zip(records) {
            self.records.write(i, record);
        }
        self.records.submit(room);
        self.lose(n - room);
    }

    fn lose(&self, records: u32) {
        if records > 0 {
            self.shared.lost.fetch_add(records.into(), Ordering::Relaxed);
        }
    }

    /// Sends as `xmit` does, and records the packets. It writes the records before sending, while
    /// the packets exist, and publishes them after, when their results are known.
    #[cold]
    fn xmit_recorded(
        &mut self,
        call: Call,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Moved {
        let offered = count(batch.len());
        let room = self.records.reserve(offered);
        for (i, skb) in (0..room).zip(batch.iter()) {
            self.records.write(i, Record::of_packet(call, skb, offered));
        }
        let moved = below.xmit(mem, batch);
        let stayed = count(batch.len());
        let left = offered.saturating_sub(stayed);
        let published = room.min(left);
        self.records.submit(published);
        self.lose(left - published);
        let dropped = left.saturating_sub(count(moved.packets));
        let dropped = (dropped > 0).then_some(What::Dropped { packets: dropped });
        let refused = (stayed > 0).then_some(What::Refused { packets: stayed });
        for what in dropped.into_iter().chain(refused) {
            self.publish(std::iter::once(Record::of(call, what, offered)));
        }
        moved
    }
}

impl Layer for Recorder {
    fn rx(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        let call = self.begin(Way::Rx);
        let before = out.len();
        let moved = below.rx(mem, out, budget);
        if let Some(call) = call {
            let batch = count(out.len().saturating_sub(before));
            let packets = out.iter().skip(before);
            self.publish(packets.map(|skb| Record::of_packet(call, skb, batch)));
        }
        moved
    }

    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        match self.begin(Way::Tx) {
            Some(call) => self.xmit_recorded(call, below, mem, batch),
            None => below.xmit(mem, batch),
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("shared", &self.shared).finish_non_exhaustive()
    }
}
