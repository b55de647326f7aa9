//! Stages: processing steps of the program on the path, and the last stage of every wire.

use std::time::Instant;

use linerate_port::Obtained;
use linerate_skb::{Batch, DropReason, Local, Skb, Verdict};

use crate::stats::Entry;

/// A port's identifier for the stages of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortId(pub(crate) u8);

impl PortId {
    /// The identifier that no port has.
    pub(crate) const NONE: PortId = PortId(u8::MAX);

    /// Returns the verdict that sends a packet to the port.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        Verdict::to(usize::from(self.0))
    }
}

/// A step on the path of every batch. Each worker has its own instance, which is `Send` and never
/// shared.
pub trait Stage: Send {
    /// Processes a batch of packets that one port received.
    ///
    /// Shape:  packets it takes out of `batch` are its own; the others go on, in order. A packet
    ///         without a verdict after the last stage goes to the other end of the wire that it
    ///         came in by; one that came in by no wire is dropped as `no_route`.
    ///         The call is not made without packets: for what is to happen after a time, see
    ///         [`Stage::alarm`].
    /// Cost:   one dynamic call a batch. It must not block: it runs on the packet path.
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>);

    /// Returns the time at which the stage wants to be called without packets: to forget flows, to
    /// repeat a request, to report. `None`, the default, if it does not.
    ///
    /// Shape:  the worker asks in its first turn, after the packets of each turn in which it
    ///         received some, and after calls of [`Stage::alarmed`]. It does not notice a change of
    ///         the answer at another time until then. The earliest answer of the worker's stages
    ///         limits its sleep, and that of a program on the worker's descriptor after
    ///         [`Worker::arm`].
    /// Cost:   one dynamic call for each turn that received packets. It must be as cheap as reading
    ///         a field: keep the time.
    ///
    /// [`Worker::arm`]: crate::Worker::arm
    fn alarm(&self) -> Option<Instant> {
        None
    }

    /// Runs without packets, in the first turn at or after the time of [`Stage::alarm`], after the
    /// packets of that turn. The stage may send with [`Turn::send`], and then returns a later time,
    /// or none, from [`Stage::alarm`].
    ///
    /// Shape:  called once for each time, and at most once in a millisecond. The call is as late
    ///         as the worker's thread wakes, usually less than 0.1 ms, or as the turn under load is
    ///         long. A worker that drains or ends makes no such calls, and an engine whose sources
    ///         have all ended ends without waiting for the time.
    /// Cost:   a wake-up of a worker that sleeps. It must not block.
    fn alarmed(&mut self, turn: &mut Turn<'_>) {
        let _ = turn;
    }

    /// Returns true if the stage can process packets that a peer may write at the same time
    /// ([`Trust::Exported`](linerate_skb::Trust)): it reads bytes only with [`Skb::copy_to`] and
    /// each byte once, or reads none. `data()` of such a packet is empty, and the packet has no
    /// header views.
    ///
    /// Unless all stages of an engine return true, its ports copy packets instead of sharing their
    /// frames with a peer that writes; their [`Obtained`](linerate_port::Obtained) shows it.
    fn reads_exported() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Returns true if the stage is to run on packets between a divided device and the rings that
    /// divide it ([`Steering`](crate::Steering)), too: to send some elsewhere or to drop them
    /// before they are divided. It then runs up to three times on a packet.
    ///
    /// Otherwise such packets pass the stage only on the workers behind the rings, which share its
    /// cost.
    fn runs_at_division() -> bool
    where
        Self: Sized,
    {
        false
    }
}

/// A stage that is chosen when the engine is built. Its type declares neither
/// [`Stage::reads_exported`] nor [`Stage::runs_at_division`].
impl Stage for Box<dyn Stage> {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        (**self).run(batch, turn);
    }

    fn alarm(&self) -> Option<Instant> {
        (**self).alarm()
    }

    fn alarmed(&mut self, turn: &mut Turn<'_>) {
        (**self).alarmed(turn);
    }
}

/// The present turn, as a stage sees it: its time and ports, and calls that add packets.
#[derive(Debug)]
pub struct Turn<'a> {
    now: Instant,
    port: PortId,
    peer: Option<PortId>,
    outbox: &'a mut Batch,
    mem: &'a mut Local,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(
        now: Instant,
        port: PortId,
        peer: Option<PortId>,
        outbox: &'a mut Batch,
        mem: &'a mut Local,
    ) -> Turn<'a> {
        Turn { now, port, peer, outbox, mem }
    }

    /// Returns the time of this turn: one clock reading for all its packets, or the capture's time
    /// in a test of a stage.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the port that received the batch. In [`Stage::alarmed`], which has no batch, it
    /// equals that of no port, and a packet that is sent there is dropped as `no_route`.
    #[must_use]
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Returns the port at the other end of the wire; `None` in [`Stage::alarmed`].
    #[must_use]
    pub fn peer(&self) -> Option<PortId> {
        self.peer
    }

    /// Returns an empty packet from the worker's memory, for [`Turn::send`]; `None` if the pool has
    /// no frame.
    ///
    /// Shape:  the pool of an engine has frames for a budget of packets a turn that are sent in the
    ///         same turn. A stage that keeps packets needs as many more
    ///         ([`EngineBuilder::pool_frames`](crate::EngineBuilder::pool_frames)).
    /// Cost:   one cache line written; no lock but once in half a hot list.
    pub fn alloc(&mut self) -> Option<Skb> {
        self.mem.alloc_one()
    }

    /// Returns a packet with a copy of `bytes`; otherwise as [`Turn::alloc`].
    ///
    /// Cost: that of [`Turn::alloc`], and a copy.
    pub fn alloc_copy(&mut self, bytes: &[u8]) -> Option<Skb> {
        self.mem.alloc_copy(bytes)
    }

    /// Sends a packet that is not in the batch, such as a copy or a reply, after the batch. It
    /// passes no stage.
    ///
    /// Returns false if the packet was dropped as `tx_full`.
    ///
    /// Errors: at most `budget` packets of all stages are taken for each batch, and of one stage
    ///         for each call of [`Stage::alarmed`]. If `to` has no room for one that was taken, it
    ///         is dropped as `tx_full`, too, after the stages.
    pub fn send(&mut self, to: PortId, skb: impl Into<Skb>) -> bool {
        let pushed = self.outbox.push(skb.into());
        match pushed {
            Ok(()) => {
                self.outbox.set_verdict(self.outbox.len() - 1, to.verdict());
                true
            }
            Err(skb) => {
                skb.discard(DropReason::TX_FULL);
                false
            }
        }
    }
}

/// The context for creating a stage, which happens once for each worker.
#[derive(Debug)]
pub struct StageContext<'a> {
    names: &'a [String],
    missing: Vec<String>,
    worker: usize,
    /// The engine's ports; none in a test of a stage.
    opened: &'a [Entry],
}

impl<'a> StageContext<'a> {
    pub(crate) fn new(names: &'a [String], worker: usize, opened: &'a [Entry]) -> StageContext<'a> {
        StageContext { names, missing: Vec::new(), worker, opened }
    }

    /// Returns the port named `name`. If this worker has no such port, building the engine fails
    /// with an error.
    pub fn port(&mut self, name: &str) -> PortId {
        match self.names.iter().position(|n| n == name) {
            Some(i) => PortId(i as u8),
            None => {
                self.missing.push(name.to_owned());
                PortId::NONE
            }
        }
    }

    /// Returns the port named `name`, or `None` if this worker has no such port: a stage is created
    /// for each worker, and a worker has the ports of its wires, of its lanes of a divided wire,
    /// and those [beside](crate::EngineBuilder::beside) them.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<PortId> {
        self.names.iter().position(|n| n == name).map(|i| PortId(i as u8))
    }

    /// Returns the properties of the port's device, which is open: its MAC address, its longest
    /// packet. `None` for a port that this worker does not have, and in a test of a stage.
    #[must_use]
    pub fn obtained(&self, port: PortId) -> Option<&Obtained> {
        let name = self.names.get(usize::from(port.0))?;
        self.opened.iter().find(|opened| opened.name == *name).map(|opened| &opened.obtained)
    }

    /// Returns the number of the worker that the stage is for, from 0.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.worker
    }

    pub(crate) fn missing(&self) -> &[String] {
        &self.missing
    }
}

/// A function that creates a stage for each worker.
pub(crate) type Maker = Box<dyn FnMut(&mut StageContext<'_>) -> Box<dyn Stage> + Send>;

/// The stage that sends packets without a verdict to the other end of their wire.
#[derive(Debug, Default)]
pub struct Xconnect;

impl Stage for Xconnect {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        let Some(peer) = turn.peer() else { return };
        match batch.run() {
            // The common case: no stage before this one has set a verdict.
            Some((Verdict::NONE, n)) if n == batch.len() => batch.set_verdicts(peer.verdict()),
            _ => {
                for i in 0..batch.len() {
                    if batch.verdict(i) == Verdict::NONE {
                        batch.set_verdict(i, peer.verdict());
                    }
                }
            }
        }
    }
}
