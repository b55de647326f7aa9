//! A live capture: copies of passing packets in a pcapng file, started and stopped while the path
//! runs.
//!
//! ```text
//! mod.rs     Tee, which a program holds, and the queue that copies
//! copies.rs  the bounded queue of copies: bytes, one Release store a call
//! writer.rs  TeeWriter: copies -> pcapng, on a thread of the program's
//!
//!   path thread     rx, xmit ──copy──► ring of bytes ─┐
//!   path thread     rx, xmit ──copy──► ring of bytes ─┴─► TeeWriter ──► file, pipe, socket
//! ```
//!
//! The path copies and goes on: it neither writes nor waits, and while the tee is off it is one
//! load a call. Where the writer is too slow, copies are left out and counted; packets never are.

mod copies;
#[cfg(test)]
mod tests;
mod writer;

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_ring::{Events, Waiter, Waker, waiter};
use linerate_skb::{Batch, Code, Error, Local, Moved, Result};
use linerate_sys::wait::EventFd;

pub use writer::TeeWriter;

use super::{Layer, Wrapped};
use crate::pcap::epoch_ns;
use crate::pcap::format::PACKET_LEN_MAX;
use crate::queue::QueueOps;
use copies::{Copies, CopyCounts, HEADER_BYTES, Inbox, Way};

/// Most sent packets that are copied before the device has taken them. Packets that it refuses are
/// offered again, and copied again.
const STRIDE: usize = 64;

/// Upper limits of a tee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes copied of each packet, from its start; by default 65,535, at most 256 KiB.
    pub snaplen_bytes: usize,
    /// Memory for copies of each queue, in bytes; by default 4 MiB, at most 1 GiB. Rounded up to a
    /// power of two, and to two packets.
    pub queue_bytes: usize,
    /// Longest capture file in bytes; by default 1 GiB.
    pub file_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { snaplen_bytes: 65_535, queue_bytes: 4 << 20, file_bytes: 1 << 30 }
    }
}

/// Counts of a tee so far, over all its queues and captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TeeCounts {
    /// Packets copied; their copies are written, wait to be written, or were given up.
    pub copied: u64,
    /// Packets that were not copied, because the queue of copies was full.
    pub dropped: u64,
    /// Copies written to the file.
    pub written: u64,
    /// Copies given up, because the file was full, writing failed, or the capture had ended.
    pub unwritten: u64,
}

/// The state that the paths, the writer and the program share.
struct Shared {
    limits: Limits,
    /// The number of the running capture; 0 if none runs.
    capture: AtomicU32,
    /// Number of captures so far.
    captures: AtomicU32,
    /// True while a thread writes the capture.
    busy: AtomicBool,
    copied: AtomicU64,
    dropped: AtomicU64,
    written: AtomicU64,
    unwritten: AtomicU64,
    /// Doorbell of a sleeping writer.
    bell: EventFd,
    waker: Waker,
    reading: Mutex<Reading>,
}

/// The writer's side of the captures, behind a lock that no path ever takes.
struct Reading {
    inboxes: Vec<Inbox>,
    waiter: Waiter,
}

impl Shared {
    fn reading(&self) -> MutexGuard<'_, Reading> {
        // Ignore the poison: rings and names are valid even after a panic.
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue of copies, and removes those of queues that are gone: with copies only if no
    /// writer is there, because a later capture would not contain them.
    fn add(&self, inbox: Inbox) {
        let mut reading = self.reading();
        let (has_writer, mut scratch) = (self.busy.load(Ordering::Acquire), Vec::new());
        reading.inboxes.retain_mut(|inbox| {
            if !has_writer && inbox.is_gone() {
                let copies = inbox.discard(&mut scratch);
                self.unwritten.fetch_add(copies, Ordering::Relaxed);
            }
            !inbox.is_over()
        });
        reading.inboxes.push(inbox);
    }

    /// Ends capture `number`, if it is the running one.
    fn end(&self, number: u32) {
        let _ = self.capture.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
        self.bell.signal();
    }
}

/// A tee for any number of queues. A clone is a handle of the same tee.
///
/// ```
/// # use linerate_port as linerate;
/// use linerate::{Port, wrap::tee::{Limits, Tee}};
///
/// # fn main() -> linerate::Result<()> {
/// let tee = Tee::new(Limits::default())?;
/// let port = Port::open("null:")?.wrap(|ops, i| tee.wrap(ops, &format!("null/{i}")))?;
/// // Later, while it runs, on a thread that may wait for a disk:
/// let mut writer = tee.start(std::io::sink())?;
/// writer.write_pending()?;
/// let packets = writer.finish()?;
/// # assert_eq!(packets, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tee {
    shared: Arc<Shared>,
}

impl Tee {
    /// Returns a tee that wraps no queue yet.
    ///
    /// # Errors
    /// `E-SYSTEM` without descriptors.
    pub fn new(limits: Limits) -> Result<Tee> {
        let snaplen_bytes = limits.snaplen_bytes.clamp(1, PACKET_LEN_MAX);
        let least = 2 * (snaplen_bytes + HEADER_BYTES);
        let queue_bytes = limits.queue_bytes.clamp(least, 1 << 30).next_power_of_two();
        let (waiter, waker) = waiter();
        let shared = Shared {
            limits: Limits { snaplen_bytes, queue_bytes, ..limits },
            capture: AtomicU32::new(0),
            captures: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            copied: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            written: AtomicU64::new(0),
            unwritten: AtomicU64::new(0),
            bell: EventFd::new()?,
            waker,
            reading: Mutex::new(Reading { inboxes: Vec::new(), waiter }),
        };
        Ok(Tee { shared: Arc::new(shared) })
    }

    /// Wraps a queue in the tee; captures name the queue by the first 63 characters of `name`.
    ///
    /// # Errors
    /// `E-MEMORY` if there is none for the copies.
    pub fn wrap(&self, inner: Box<dyn QueueOps>, name: &str) -> Result<Box<dyn QueueOps>> {
        let Limits { snaplen_bytes, queue_bytes, .. } = self.shared.limits;
        let (copies, inbox) = copies::queue(name, queue_bytes, snaplen_bytes).map_err(|e| {
            Error::new(Code::Memory, format!("cannot tee {name}"), e.to_string())
                .fix("set fewer bytes in Limits::queue_bytes, or free some memory")
        })?;
        self.shared.add(inbox);
        let copying = Copying { copies, shared: self.shared.clone() };
        let copier = Copier { copying, part: Batch::with_capacity(STRIDE) };
        Ok(Box::new(Wrapped::around(inner, copier)))
    }

    /// Starts a capture into `sink`: packets are copied from now on. Dropping the writer ends the
    /// capture.
    ///
    /// # Errors
    /// `E-BUSY` while the writer of another capture is there.
    pub fn start<W: Write>(&self, sink: W) -> Result<TeeWriter<W>> {
        if self.shared.busy.swap(true, Ordering::AcqRel) {
            let e = Error::new(Code::Busy, "cannot start a capture", "one runs on this tee");
            return Err(e.fix("finish it first, or put another tee around the port"));
        }
        let number = match self.shared.captures.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
            0 => self.shared.captures.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
            number => number,
        };
        let writer = TeeWriter::new(self.shared.clone(), number, sink);
        self.shared.capture.store(number, Ordering::Release);
        Ok(writer)
    }

    /// Ends the running capture: copying stops, and existing copies are still written. A call in
    /// progress still copies its packets.
    pub fn stop(&self) {
        self.shared.end(self.shared.capture.load(Ordering::Acquire));
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> TeeCounts {
        let value = |n: &AtomicU64| n.load(Ordering::Relaxed);
        TeeCounts {
            copied: value(&self.shared.copied),
            dropped: value(&self.shared.dropped),
            written: value(&self.shared.written),
            unwritten: value(&self.shared.unwritten),
        }
    }
}

impl std::fmt::Debug for Tee {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tee").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// The wrapper that copies packets of a queue while a capture runs.
struct Copier {
    copying: Copying,
    /// The part of a long batch that is sent next; empty between two calls.
    part: Batch,
}

/// The copies of a queue.
struct Copying {
    copies: Copies,
    shared: Arc<Shared>,
}

impl Copying {
    /// Returns the running capture, if there is one.
    fn capture(&self) -> Option<u32> {
        Some(self.shared.capture.load(Ordering::Relaxed)).filter(|number| *number != 0)
    }

    /// Counts copies, and wakes the writer if it sleeps.
    fn count(&self, taken: CopyCounts) {
        if taken.copied > 0 {
            self.shared.copied.fetch_add(taken.copied, Ordering::Relaxed);
            if self.shared.waker.should_wake(Events::FRAMES) {
                self.shared.bell.signal();
            }
        }
        if taken.dropped > 0 {
            self.shared.dropped.fetch_add(taken.dropped, Ordering::Relaxed);
        }
    }

    /// Sends `batch` while `capture` runs, and copies the packets that leave.
    fn send(
        &mut self,
        capture: u32,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Moved {
        // Copy before sending, because the packets are gone after it; publish after sending,
        // because only then it is known which were sent.
        self.copies.stage(capture, Way::Tx, epoch_ns(), batch.iter());
        let offered = batch.len();
        let moved = below.xmit(mem, batch);
        let taken = self.copies.publish(offered.saturating_sub(batch.len()));
        self.count(taken);
        moved
    }
}

impl Copier {
    /// Sends a long batch in parts while each part leaves completely, so that of the packets that
    /// the device refuses only those of one part are copied.
    fn send_in_parts(
        &mut self,
        capture: u32,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Moved {
        let Copier { copying, part } = self;
        let mut moved = Moved::default();
        while part.is_empty() && batch.move_to(part, STRIDE) > 0 {
            moved += copying.send(capture, below, mem, part);
        }
        // Return the refused packets to the front: append them, then move the others behind them.
        let (refused, mut others) = (part.len(), batch.len());
        part.move_to(batch, refused);
        while refused > 0 && others > 0 {
            let n = batch.move_to(part, others.min(STRIDE));
            part.move_to(batch, n);
            others -= n;
        }
        moved
    }
}

impl Layer for Copier {
    fn rx(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        let before = out.len();
        let moved = below.rx(mem, out, budget);
        let came = out.len().saturating_sub(before);
        if came > 0
            && let Some(capture) = self.copying.capture()
        {
            let copying = &mut self.copying;
            copying.copies.stage(capture, Way::Rx, epoch_ns(), out.iter().skip(before));
            let taken = copying.copies.publish(came);
            copying.count(taken);
        }
        moved
    }

    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        let Some(capture) = self.copying.capture() else { return below.xmit(mem, batch) };
        if batch.len() <= STRIDE {
            self.copying.send(capture, below, mem, batch)
        } else {
            self.send_in_parts(capture, below, mem, batch)
        }
    }
}
