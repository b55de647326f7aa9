//! A turn of the control thread for one port: the interface of the port's side of the socket, and
//! what it gets.

use std::os::fd::OwnedFd;

use linerate_sys::wait::Epoll;

use super::channel::Channel;
use super::closer::{Closer, Waste};
use super::config::Config;
use super::handshake::Ending;
use super::link::Event;
use super::listener::CLOSING;
use super::message::Message;

/// The side of a socket: a client's or a server's.
pub(super) trait Protocol: Send {
    /// Returns the descriptor that is readable when there is work.
    fn watch(&self) -> &Epoll;

    /// Processes the events of the socket.
    fn turn(&mut self, turn: &mut Turn<'_>) -> Option<Event>;

    /// Ends the connection, and sends the peer the reason.
    fn hang_up(&mut self, why: &'static str, turn: &mut Turn<'_>);

    /// Ends all connections, because the port is closed.
    fn close(&mut self, turn: &mut Turn<'_>);
}

/// The context of a [`Protocol`]'s turn.
pub(super) struct Turn<'a> {
    pub config: &'a Config,
    /// Mappings and descriptors for the closing threads, so that no worker waits for their close.
    pub waste: &'a mut Vec<Waste>,
    /// The closing threads, which say whether more peers can be accepted.
    pub closer: &'a Closer,
}

impl Turn<'_> {
    /// Receives from the socket of a peer of `user` as [`Channel::recv`] does. While many
    /// descriptors of that user, or in all, wait for their close, no message is received that can
    /// bring more: if one has arrived, the connection ends.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn recv(
        &self,
        channel: &Channel,
        user: u32,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Option<Message>, Ending> {
        let may_hear = self.closer.may_hear(user, self.waste.as_slice());
        if may_hear || channel.close_user().is_none() {
            channel.recv(fds)
        } else if channel.is_readable() {
            Err(Ending::Refused(CLOSING))
        } else {
            Ok(None)
        }
    }

    /// Has a closing thread close a peer's socket and the `rest` of its objects, which has so many
    /// `descriptors`. Closes a socket that takes no descriptors at once: its close does not wait,
    /// nothing in `rest` came from the peer, and sockets that wait for a thread would use up the
    /// places of other peers.
    pub fn close(&mut self, channel: Channel, rest: impl Send + 'static, descriptors: usize) {
        if let Some(user) = channel.close_user() {
            self.waste.push(Waste::of(user, 1 + descriptors, (channel, rest)));
        }
    }
}
