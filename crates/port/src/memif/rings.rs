//! The rings of one queue: the operations that client and server share.

use std::time::Duration;

use linerate_skb::{Batch, Local, Moved};
use linerate_sys::wait::EventFd;

use super::copies::{Copies, Stop};
use super::ring::{Checked, Shared};
use super::server::MappedRing;

/// The rings of one queue on one connection.
#[derive(Default)]
pub(super) struct Rings {
    pub tx: Option<Box<dyn TxRing>>,
    pub rx: Option<Box<dyn RxRing>>,
}

impl Rings {
    /// Distributes rings among queues: each queue gets one ring of each direction. A queue that
    /// gets no ring at all is `None`.
    pub fn distribute(
        queues: u16,
        mut tx: impl Iterator<Item = Box<dyn TxRing>>,
        mut rx: impl Iterator<Item = Box<dyn RxRing>>,
    ) -> Vec<Option<Rings>> {
        let pair = |_| {
            let (tx, rx) = (tx.next(), rx.next());
            (tx.is_some() || rx.is_some()).then_some(Rings { tx, rx })
        };
        (0..queues).map(pair).collect()
    }

    /// Returns the frames in the rings to the pool after the connection has ended; returns the
    /// packets that the peer had not taken, which are dropped.
    pub fn close(&mut self, home: &mut Local) -> Moved {
        if let Some(rx) = &mut self.rx {
            rx.close(home);
        }
        let Some(tx) = &mut self.tx else { return Moved::default() };
        // Packets that the peer has taken count as sent, even if it disconnected right after. A
        // wrong index is ignored here, because the connection has already ended.
        let _ = tx.reap(home);
        tx.close()
    }
}

/// Rings of a closed queue whose connection has not ended yet. They are closed when they are
/// dropped.
pub(super) struct LateRings {
    pub rings: Rings,
    pub home: Local,
}

impl Drop for LateRings {
    fn drop(&mut self) {
        self.rings.close(&mut self.home);
    }
}

/// A ring to the peer.
pub(super) trait TxRing: Send {
    /// Puts packets from the front of `batch` into the ring, which frees each packet as sent, now
    /// or later; returns the packets' number and bytes, and the reason why the ring took no more.
    fn put(
        &mut self,
        batch: &mut Batch,
        copies: &mut Copies,
        mem: &mut Local,
    ) -> Checked<(Moved, Stop)>;

    /// Publishes the packets in the ring to the peer, and wakes the peer if it sleeps. Returns
    /// false if nothing was to be published.
    ///
    /// Cost: a Release store and a full fence; a syscall or two if the peer sleeps.
    fn post(&mut self) -> bool;

    /// Takes back the slots that the peer has processed.
    ///
    /// Cost: an Acquire load while something is in the ring.
    fn reap(&mut self, mem: &mut Local) -> Checked<()>;

    /// Returns the number of free descriptors at the last reading of the peer's index.
    fn room(&self) -> u16;

    /// Returns the number of slots, all of which can be free at once.
    fn size(&self) -> usize;

    /// Returns true if a packet can be put into the ring.
    fn has_room(&mut self) -> Checked<bool>;

    /// Returns the time for which a packet waits for more slots than are free, while their number
    /// stays the same; `None` for a peer that frees each slot when it has processed the packet.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Returns the number of buffers that the peer had not taken at the last reading of its index.
    fn under_way(&self) -> usize;

    /// Returns the number of packets that will be freed when the peer has processed them.
    fn sending(&self) -> usize {
        0
    }

    /// Drops packets that a disconnected peer had not taken; returns what it dropped.
    fn close(&mut self) -> Moved {
        Moved::default()
    }
}

/// A ring from the peer.
pub(super) trait RxRing: Send {
    /// Returns the part of the ring that the peer sees.
    fn shared(&self) -> &Shared;

    /// Returns the doorbell that the peer rings.
    fn bell(&self) -> &EventFd;

    /// Returns the number of filled buffers: packets or parts of packets.
    fn ready(&mut self) -> Checked<u16>;

    /// Returns the number of complete packets that have not been received; 0 if the peer's index is
    /// impossible.
    fn unread(&mut self) -> usize;

    /// Receives up to `budget` packets, and posts new buffers.
    fn receive(
        &mut self,
        copies: &mut Copies,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> (Moved, Checked<()>);

    /// Posts empty buffers in all free slots, or in fewer if the pool lacks frames.
    ///
    /// Shape:  hot list -> ring.
    fn refill(&mut self, _: &mut Local, _: &mut Copies) {}

    /// Returns true if the peer fills frames of the pool, so that receiving a packet takes no
    /// frame.
    fn has_frames(&self) -> bool {
        false
    }

    /// Returns posted frames to the pool after the peer has disconnected.
    fn close(&mut self, _: &mut Local) {}

    /// Returns the ring for a reader, if the ring is in the peer's memory.
    fn into_mapped(self: Box<Self>) -> Option<MappedRing> {
        None
    }
}
