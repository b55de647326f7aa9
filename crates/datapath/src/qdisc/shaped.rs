//! A port with a discipline before it, for programs with a loop of their own.

use std::time::{Duration, Instant};

use linerate_port::Port;
use linerate_port::moderation::SLEEP_MIN;
use linerate_skb::{Batch, DropReason, Local, Moved};

use super::{Qdisc, QdiscCounts};

/// Most packets between the discipline and the device.
const FIFO: usize = 64;
/// Frames of dropped packets that are kept for reuse.
const HOT_LIST: usize = 64;
/// Interval of checks whether a device has room again.
const LOOK_FOR_ROOM: Duration = SLEEP_MIN;

/// A port with a discipline. Dropping the pair drops the waiting packets as `stopped`.
///
/// The loop waits on the shaped port, too, because its driver offers packets again that the kernel
/// did not send. It comes first: [`wait_any`](linerate_port::wait_any) looks only at the ports up
/// to one that has packets. The port is opened with `write`, or its received packets would end each
/// wait, because the loop does not take them.
///
/// ```no_run
/// use std::time::Instant;
/// # mod linerate {
/// #     pub use linerate_datapath::*; pub use linerate_port::{Port, wait_any}; pub use linerate_skb::Batch;
/// # }
/// use linerate::qdisc::{FlowTbf, Key, Shaped};
/// use linerate::{Batch, Port, wait_any};
///
/// # fn main() -> linerate::Result<()> {
/// let mut lan = Port::open("xdp:lan0")?;
/// // 10 Mbit/s a source, bursts of 64 KiB, up to 100,000 sources.
/// let limit = FlowTbf::new(Key::SrcIp, 10_000_000, 65_536, 100_000);
/// let mut wan = Shaped::new(Port::open("xdp:wan0,write")?, limit);
/// let mut batch = Batch::with_capacity(64);
/// loop {
///     let time = wan.timeout(Instant::now());
///     wait_any(&mut [wan.port(), &mut lan], time)?;
///     lan.rx(&mut batch);
///     wan.xmit(&mut batch, Instant::now());
/// }
/// # }
/// ```
///
/// A loop that limits both directions receives from both shaped ports, so it opens neither with
/// `write`. It sleeps until the first of both disciplines has something to send:
///
/// ```no_run
/// # use std::time::Instant;
/// # mod linerate {
/// #     pub use linerate_datapath::*; pub use linerate_port::{Port, wait_any};
/// #     pub use linerate_skb::{Batch, Pool};
/// # }
/// # use linerate::qdisc::{FlowTbf, Key, Shaped};
/// # use linerate::{Batch, Pool, Port, wait_any};
/// # fn main() -> linerate::Result<()> {
/// // One pool, so that packets pass without a copy.
/// let pool = Pool::builder().frames(65_536).build()?;
/// let limit = |key| FlowTbf::new(key, 10_000_000, 65_536, 100_000);
/// let mut lan = Shaped::new(Port::open_with("xdp:lan0", &pool)?, limit(Key::DstIp));
/// let mut wan = Shaped::new(Port::open_with("xdp:wan0", &pool)?, limit(Key::SrcIp));
/// let mut batch = Batch::with_capacity(64);
/// loop {
///     let now = Instant::now();
///     let time = [lan.timeout(now), wan.timeout(now)].into_iter().flatten().min();
///     wait_any(&mut [lan.port(), wan.port()], time)?;
///     let now = Instant::now();
///     lan.port().rx(&mut batch);
///     wan.xmit(&mut batch, now); // takes the whole batch
///     wan.port().rx(&mut batch);
///     lan.xmit(&mut batch, now);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Shaped<Q: Qdisc> {
    port: Port,
    waiting: Waiting<Q>,
}

/// The waiting packets. Dropping the value drops these packets as `stopped`.
#[derive(Debug)]
struct Waiting<Q: Qdisc> {
    qdisc: Q,
    fifo: Batch,
    mem: Local,
}

impl<Q: Qdisc> Drop for Waiting<Q> {
    fn drop(&mut self) {
        self.qdisc.purge(DropReason::STOPPED, &mut self.mem);
        self.fifo.discard(DropReason::STOPPED);
    }
}

impl<Q: Qdisc> Shaped<Q> {
    /// Puts a discipline before a port. The packets' pool must have enough frames for the
    /// discipline's limit. The segments of superframes that a [`Tbf`](super::Tbf) or
    /// [`FlowTbf`](super::FlowTbf) cuts are in frames of the port's pool.
    #[must_use]
    pub fn new(port: Port, qdisc: Q) -> Shaped<Q> {
        let mem = port.pool().local_named("qdisc", HOT_LIST);
        Shaped { port, waiting: Waiting { qdisc, fifo: Batch::with_capacity(FIFO), mem } }
    }

    /// Enqueues all packets of `batch` in the discipline, and sends packets that are due; returns
    /// the number of packets sent.
    ///
    /// Shape:  batch -> the discipline; due packets -> device. Those that the device has no room
    ///         for go first next time. If it took none, others that are due go behind them. An
    ///         empty batch sends what is due.
    /// Errors: none; the discipline's drops are in the ledger.
    /// Cost:   a doorbell for each 64 packets.
    pub fn xmit(&mut self, batch: &mut Batch, now: Instant) -> usize {
        let Waiting { qdisc, fifo, mem } = &mut self.waiting;
        qdisc.enqueue(batch, batch.len(), now, mem);
        let (mut sent, most) = (0, Moved { packets: FIFO, bytes: u64::MAX });
        loop {
            if fifo.is_empty() {
                qdisc.dequeue(fifo, most, now, mem);
            }
            let before = fifo.len();
            sent += self.port.xmit(fifo);
            if before > 0 && fifo.len() == before {
                // A driver may learn only from a packet behind a refused one that the device never
                // takes that one.
                let most = Moved { packets: fifo.spare(), ..most };
                qdisc.dequeue(fifo, most, now, mem);
            }
            let has_due = qdisc.deadline().is_some_and(|due| due <= now);
            // A discipline that had nothing is asked again only by the next call, whatever its
            // deadline.
            if before == 0 || !fifo.is_empty() || self.port.waiting() > 0 || !has_due {
                return sent;
            }
        }
    }

    /// Returns the time until [`Shaped::xmit`] has something to send; `None` while no packet waits.
    ///
    /// Packets that the driver has accepted do not count: wait on [`Shaped::port`] as well.
    #[must_use]
    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        if !self.waiting.fifo.is_empty() || self.port.waiting() > 0 {
            return Some(LOOK_FOR_ROOM);
        }
        self.waiting.qdisc.deadline().map(|due| due.saturating_duration_since(now))
    }

    /// Returns the discipline's counts.
    #[must_use]
    pub fn counts(&self) -> QdiscCounts {
        self.waiting.qdisc.counts()
    }

    /// Returns the discipline, to read or change its settings, as by
    /// [`Tbf::set_rate`](super::Tbf::set_rate).
    pub fn qdisc(&mut self) -> &mut Q {
        &mut self.waiting.qdisc
    }

    /// Returns the port, to receive from it and to wait on it.
    pub fn port(&mut self) -> &mut Port {
        &mut self.port
    }

    /// Drops the waiting packets as `stopped`, and returns the port.
    #[must_use]
    pub fn into_port(self) -> Port {
        self.port
    }
}
