//! The rings of one queue, whichever the role.

use std::os::fd::{AsFd, BorrowedFd};

use linerate_skb::{Batch, Local, Moved};

use super::client;
use super::copies::{Copies, Stop};
use super::ring::Lie;
use super::server::Side;

/// The rings of one queue, of one connection.
pub(super) struct Session {
    pub tx: Option<Sender>,
    pub rx: Option<Receiver>,
}

/// A ring to the peer.
pub(super) enum Sender {
    Client(client::Tx),
    Server(Side),
}

/// A ring from the peer.
pub(super) enum Receiver {
    Client(client::Rx),
    Server(Side),
}

impl Sender {
    pub fn put(
        &mut self,
        batch: &mut Batch,
        copies: &mut Copies,
        mem: &mut Local,
    ) -> std::result::Result<(Moved, Stop), Lie> {
        match self {
            Sender::Client(tx) => tx.put(batch, copies, mem),
            Sender::Server(side) => side.put(batch, copies, mem),
        }
    }

    pub fn post(&mut self) {
        match self {
            Sender::Client(tx) => tx.post(),
            Sender::Server(side) => side.post(),
        }
    }

    pub fn reap(&mut self, mem: &mut Local) -> std::result::Result<(), Lie> {
        match self {
            Sender::Client(tx) => tx.reap(mem),
            Sender::Server(side) => side.ready().map(drop),
        }
    }

    /// Descriptors that a packet can be put into, as far as is known.
    pub fn room(&self) -> u16 {
        match self {
            Sender::Client(tx) => tx.ring.free(),
            Sender::Server(side) => side.ring.known(),
        }
    }

    /// Slots of the ring, of which all can be free.
    pub fn size(&self) -> usize {
        match self {
            Sender::Client(tx) => tx.ring.shared.len().into(),
            Sender::Server(side) => side.most().into(),
        }
    }

    /// True if a packet can be put into the ring.
    pub fn has_room(&mut self) -> std::result::Result<bool, Lie> {
        match self {
            Sender::Client(tx) => {
                // Not for a single slot; and half of a short ring may be held by a peer that is slow.
                let enough = tx.ring.shared.len().min(client::DESCS_MAX as u16) / 2;
                Ok(tx.ring.free() >= enough)
            }
            Sender::Server(side) => Ok(side.ready()? > 0),
        }
    }

    /// Buffers with what the peer has not taken yet, as far as that can be known.
    pub fn under_way(&self) -> usize {
        match self {
            Sender::Client(tx) => tx.ring.posted().into(),
            Sender::Server(side) => side.under_way(),
        }
    }

    /// Packets that the peer has and that are freed when it is done with them.
    pub fn sending(&self) -> usize {
        match self {
            Sender::Client(tx) => tx.sending,
            Sender::Server(_) => 0,
        }
    }
}

impl Receiver {
    pub fn receive(
        &mut self,
        copies: &mut Copies,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> (Moved, std::result::Result<(), Lie>) {
        match self {
            Receiver::Client(rx) => rx.receive(copies, mem, out, budget),
            Receiver::Server(side) => side.receive(copies, mem, out, budget),
        }
    }

    pub fn ready(&mut self) -> std::result::Result<u16, Lie> {
        match self {
            Receiver::Client(rx) => rx.ready(),
            Receiver::Server(side) => side.ready(),
        }
    }

    /// Slots of the ring.
    pub fn size(&self) -> u16 {
        match self {
            Receiver::Client(rx) => rx.ring.shared.len(),
            Receiver::Server(side) => side.ring.shared.len(),
        }
    }

    /// Says whether the peer is to ring for what it sends.
    pub fn want_bell(&self, wanted: bool) {
        match self {
            Receiver::Client(rx) => rx.ring.shared.want_bell(wanted),
            Receiver::Server(side) => side.ring.shared.want_bell(wanted),
        }
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        match self {
            Receiver::Client(rx) => rx.bell.as_fd(),
            Receiver::Server(side) => side.bell.as_fd(),
        }
    }
}
