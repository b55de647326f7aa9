//! The operations of an RDMA device that a queue and its control thread use: of a real one, or, in
//! tests, of one in memory.

use std::io;
use std::os::fd::BorrowedFd;

use linerate_skb::Result;
use linerate_sys::verbs::{Completion, Receive, Send as Message};

use super::hello::Hello;

/// The part of a device that moves the packets of a queue, for one thread at a time.
pub(super) trait Nic: Send {
    /// The way to a peer.
    type Peer: Send;

    /// Returns the descriptor that is readable after a completion for which an event was asked.
    fn events(&self) -> BorrowedFd<'_>;

    /// Reads the events that have come.
    fn drain(&mut self);

    /// Takes completions of received messages; returns how many.
    fn received(&mut self, out: &mut [Completion]) -> io::Result<usize>;

    /// Takes completions of sent messages; returns how many.
    fn sent(&mut self, out: &mut [Completion]) -> io::Result<usize>;

    /// Asks for an event at the next received message.
    fn arm_received(&mut self) -> io::Result<()>;

    /// Asks for an event at the next sent message.
    fn arm_sent(&mut self) -> io::Result<()>;

    /// Posts requests to receive on the connection with a peer, or datagrams; returns how many the
    /// device took.
    ///
    /// # Safety
    /// As for [`QueuePair::post_receives`](linerate_sys::verbs::QueuePair::post_receives).
    unsafe fn post_receives(&mut self, requests: &[Receive], of: Option<&Self::Peer>) -> usize;

    /// Posts messages as one chain; returns how many the device took.
    ///
    /// # Safety
    /// As for [`QueuePair::post`](linerate_sys::verbs::QueuePair::post).
    unsafe fn post(&mut self, messages: &[Message], to: To<'_, Self::Peer>) -> usize;

    /// Returns the device's words for a completion that failed.
    fn text(&self, completion: &Completion) -> String;
}

/// The way of a message.
#[derive(Debug)]
pub(super) enum To<'a, P> {
    /// A datagram to a peer.
    Datagram(&'a P),
    /// A message on the connection with a peer.
    Connection(&'a P),
    /// A datagram to the group.
    Group,
}

/// The part of a device that makes a queue's ways to peers, for the control thread: its calls may
/// wait.
pub(super) trait Fabric: Send {
    /// The way to a peer.
    type Peer: Send;
    /// A way of which the other end is not known yet.
    type Half: Send;

    /// Begins a way; returns what the peer must know of it.
    fn begin(&mut self) -> Result<(Self::Half, Hello)>;

    /// Completes a way to the peer that has said `theirs`, after we have said `ours`.
    fn complete(&mut self, half: Self::Half, ours: &Hello, theirs: &Hello) -> Result<Self::Peer>;
}
