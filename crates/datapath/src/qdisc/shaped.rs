//! A port with a discipline in front of it, for programs with a loop of their own.

use std::time::{Duration, Instant};

use linerate_port::Port;
use linerate_skb::{Batch, DropReason, Local, Moved};

use super::{Qdisc, QdiscCounts};

/// Most packets between the discipline and the device.
const FIFO: usize = 64;
/// Frames of dropped packets that are kept for reuse.
const HOT_LIST: usize = 64;
/// Time between two checks of a device without room.
const LOOK_FOR_ROOM: Duration = Duration::from_micros(50);

/// A port and its discipline.
///
/// ```no_run
/// use std::time::Instant;
/// use linerate_datapath::qdisc::{FlowTbf, Key, Shaped};
/// use linerate_port::{Port, wait_any};
/// use linerate_skb::Batch;
///
/// # fn main() -> linerate_datapath::Result<()> {
/// let mut lan = Port::open("xdp:lan0")?;
/// // 10 Mbit/s a source, bursts of 64 KiB, up to 100,000 sources.
/// let limit = FlowTbf::new(Key::SrcIp, 10_000_000, 65_536, 100_000);
/// let mut wan = Shaped::new(Port::open("xdp:wan0")?, limit);
/// let mut batch = Batch::with_capacity(64);
/// loop {
///     wait_any(&mut [&mut lan], wan.timeout(Instant::now()))?;
///     lan.rx(&mut batch);
///     wan.xmit(&mut batch, Instant::now());
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Shaped<Q> {
    port: Port,
    qdisc: Q,
    fifo: Batch,
    mem: Local,
}

impl<Q: Qdisc> Shaped<Q> {
    /// Puts a discipline in front of a port. What it may hold must fit into the pool that the packets are of.
    #[must_use]
    pub fn new(port: Port, qdisc: Q) -> Shaped<Q> {
        let mem = port.pool().local_named("qdisc", HOT_LIST);
        Shaped { port, qdisc, fifo: Batch::with_capacity(FIFO), mem }
    }

    /// Enqueues all packets of `batch` in the discipline, and sends those that are due; returns how
    /// many were sent.
    ///
    /// Shape:  batch -> the discipline; due packets -> device. Those that the device has no room for go first
    ///         next time. An empty batch sends what is due.
    /// Errors: none; the discipline's drops are in the ledger.
    /// Cost:   a doorbell for each 64 packets.
    pub fn xmit(&mut self, batch: &mut Batch, now: Instant) -> usize {
        self.qdisc.enqueue(batch, batch.len(), now, &mut self.mem);
        let (mut sent, most) = (0, Moved { packets: FIFO, bytes: u64::MAX });
        loop {
            if self.fifo.is_empty() {
                self.qdisc.dequeue(&mut self.fifo, most, now, &mut self.mem);
            }
            sent += self.port.xmit(&mut self.fifo);
            if !self.fifo.is_empty() || !self.has_due(now) {
                return sent;
            }
        }
    }

    /// Returns true if the discipline has a packet that may leave.
    fn has_due(&self, now: Instant) -> bool {
        self.qdisc.deadline().is_some_and(|due| due <= now)
    }

    /// Returns the time until [`Shaped::xmit`] has something to send; `None` while nothing waits.
    #[must_use]
    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        if !self.fifo.is_empty() {
            return Some(LOOK_FOR_ROOM);
        }
        self.qdisc.deadline().map(|due| due.saturating_duration_since(now))
    }

    /// Returns the discipline's counts.
    #[must_use]
    pub fn counts(&self) -> QdiscCounts {
        self.qdisc.counts()
    }

    /// Returns the port, to receive from it.
    pub fn port(&mut self) -> &mut Port {
        &mut self.port
    }

    /// Drops the waiting packets as `stopped`, and returns the port.
    #[must_use]
    pub fn into_port(mut self) -> Port {
        self.qdisc.purge(DropReason::STOPPED, &mut self.mem);
        self.fifo.discard(DropReason::STOPPED);
        self.port
    }
}
