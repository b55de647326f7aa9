//! The control channel of a connection: messages on a socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linerate_sys::seqpacket::Seqpacket;

use super::NAME;
use super::handshake::Ending;
use super::message::{BYTES, Message};

/// One end of the channel.
pub(super) struct Channel(pub Seqpacket);

impl Channel {
    /// Returns the next message with its descriptors; `Ok(None)` if there is none yet.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn recv(&self) -> Result<Option<(Message, Vec<OwnedFd>)>, Ending> {
        let mut bytes = [0; BYTES];
        match self.0.receive(&mut bytes) {
            Ok(None) => Ok(None),
            Ok(Some(got)) if got.len == 0 => Err(Ending::ByPeer("the peer is gone".into())),
            Ok(Some(got)) if got.cut => {
                Err(Ending::Refused("a message or its descriptors are too many"))
            }
            Ok(Some(got)) => match Message::decode(&bytes[..got.len]) {
                Some(message) => Ok(Some((message, got.fds))),
                None => Err(Ending::Refused("there is no such message")),
            },
            Err(e) => Err(Ending::ByPeer(e.to_string())),
        }
    }

    /// Sends `message`, with a descriptor or none.
    ///
    /// # Errors
    /// Those of [`Seqpacket::send`].
    pub fn send(&self, message: &Message, fd: Option<OwnedFd>) -> io::Result<()> {
        self.0.send(&message.encode(NAME), fd.as_ref().map(AsFd::as_fd))
    }

    /// Tells the peer why the connection ends, unless the peer has ended it; returns the reason in words for us.
    pub fn refuse(&self, ending: Ending) -> String {
        let why = match ending {
            Ending::Refused(why) => why.to_owned(),
            Ending::Unfit(why) => why,
            Ending::ByPeer(why) => return format!("the peer has disconnected: {why}"),
        };
        let text = format!("the peer was disconnected: {why}");
        let _ = self.send(&Message::Disconnect(why), None);
        text
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
