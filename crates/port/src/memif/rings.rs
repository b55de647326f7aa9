//! The rings of one queue: the operations that client and server share.

use linerate_skb::{Batch, Local, Moved};
use linerate_sys::wait::EventFd;

use super::copies::{Copies, Stop};
use super::ring::{Checked, Shared};
use super::server::MappedRing;

/// The rings of one queue, of one connection.
#[derive(Default)]
pub(super) struct Rings {
    pub tx: Option<Box<dyn TxRing>>,
    pub rx: Option<Box<dyn RxRing>>,
}

impl Rings {
    /// Distributes rings among queues, one of each direction for each; a queue without either gets
    /// `None`.
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
}

/// A ring to the peer.
pub(super) trait TxRing: Send {
    /// Puts packets from the front of `batch` into the ring, which frees each as sent, now or
    /// later; returns their number and bytes, and the reason why it stopped.
    fn put(
        &mut self,
        batch: &mut Batch,
        copies: &mut Copies,
        mem: &mut Local,
    ) -> Checked<(Moved, Stop)>;

    /// Makes the packets put so far visible to the peer, and wakes the peer if it sleeps.
    ///
    /// Cost: a Release store and a full fence; a syscall or two if the peer sleeps.
    fn post(&mut self);

    /// Takes back the slots that the peer has processed.
    ///
    /// Cost: an Acquire load while something is in the ring.
    fn reap(&mut self, mem: &mut Local) -> Checked<()>;

    /// Returns the number of free descriptors for packets, as last known.
    fn room(&self) -> u16;

    /// Returns the number of slots, all of which can be free at once.
    fn size(&self) -> usize;

    /// Returns true if a packet can be put into the ring.
    fn has_room(&mut self) -> Checked<bool>;

    /// Returns the number of buffers that the peer has not taken yet, as far as known.
    fn under_way(&self) -> usize;

    /// Returns the number of packets that will be freed when the peer has processed them.
    fn sending(&self) -> usize {
        0
    }

    /// Drops packets that a disconnected peer had not taken.
    fn close(&mut self) {}
}

/// A ring from the peer.
pub(super) trait RxRing: Send {
    /// Returns the part of the ring that the peer sees.
    fn shared(&self) -> &Shared;

    /// Returns the doorbell that the peer rings.
    fn bell(&self) -> &EventFd;

    /// Returns the number of filled buffers: packets or parts of packets.
    fn ready(&mut self) -> Checked<u16>;

    /// Receives up to `budget` packets, and posts new buffers.
    fn receive(
        &mut self,
        copies: &mut Copies,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> (Moved, Checked<()>);

    /// Posts empty buffers in all free slots, as far as the pool has frames.
    ///
    /// Shape:  hot list -> ring.
    fn refill(&mut self, _: &mut Local, _: &mut Copies) {}

    /// Returns posted frames to the pool after the peer has disconnected.
    fn close(&mut self, _: &mut Local) {}

    /// Returns the ring for a reader, if it is in the peer's memory.
    fn into_mapped(self: Box<Self>) -> Option<MappedRing> {
        None
    }
}
