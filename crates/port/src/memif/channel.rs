//! The control channel of a connection: messages on a socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use linerate_sys::seqpacket::Seqpacket;
use linerate_sys::wait::poll_readable;
use rustix::net::Shutdown;

use super::NAME;
use super::config::Config;
use super::handshake::Ending;
use super::message::{BYTES, Message};

/// A number that no user has.
pub(super) const NO_USER: u32 = u32::MAX;

/// One end of the channel.
pub(super) struct Channel(pub Seqpacket);

impl Channel {
    /// Checks that the process at the other end belongs to a user that the configuration allows.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn check_peer(&self, config: &Config) -> Result<u32, Ending> {
        let user = self.0.peer_user().map_err(|e| Ending::Unfit(format!("its user: {e}")))?;
        match config.peer.allows(user) {
            true => Ok(user),
            false => Err(Ending::Unfit(format!(
                "the peer belongs to user {user}; to accept that user, add peer={user}"
            ))),
        }
    }

    /// Returns the user of the process at the other end; [`NO_USER`] if the kernel does not say.
    pub fn user(&self) -> u32 {
        self.0.peer_user().unwrap_or(NO_USER)
    }

    /// Returns the user who can keep a thread that closes this socket: the peer's, or `None` if the
    /// kernel has refused all of the peer's descriptors. A socket without them is closed without a
    /// wait.
    ///
    /// Cost: one or two syscalls.
    pub fn close_user(&self) -> Option<u32> {
        if self.0.refuses_descriptors() { None } else { Some(self.user()) }
    }

    /// Returns true if a message has arrived, or the connection has ended.
    ///
    /// Cost: one syscall.
    pub fn is_readable(&self) -> bool {
        poll_readable(&[self.as_fd()], Some(Duration::ZERO)).unwrap_or(true)
    }

    /// Ends the connection, so that the peer knows it before the socket is closed, which can take
    /// long.
    pub fn shut(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }

    /// Returns the next message, and appends its descriptors to `fds`; returns `Ok(None)` if none
    /// has arrived. A descriptor that is of no use must be dropped as a [`super::closer::Useless`],
    /// because its peer can block calls on it, such as setsockopt(2) and close(2).
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn recv(&self, fds: &mut Vec<OwnedFd>) -> Result<Option<Message>, Ending> {
        let mut bytes = [0; BYTES];
        let received = match self.0.receive(&mut bytes) {
            // The peer has closed its end before it had read everything. This is reported once,
            // before its last message, which has the reason.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => self.0.receive(&mut bytes),
            received => received,
        };
        let mut got = match received {
            Ok(None) => return Ok(None),
            Ok(Some(got)) => got,
            Err(e) => return Err(Ending::ByPeer(e.to_string())),
        };
        fds.append(&mut got.fds);
        if got.len == 0 {
            return Err(Ending::ByPeer("the peer is gone".into()));
        }
        if got.cut {
            return Err(Ending::Refused("too many messages or descriptors"));
        }
        let message = Message::decode(&bytes[..got.len]);
        message.map(Some).ok_or(Ending::Refused("unknown message type"))
    }

    /// Sends `message`, with its descriptor if it has one.
    ///
    /// # Errors
    /// Those of [`Seqpacket::send`].
    pub fn send(&self, message: &Message, fd: Option<OwnedFd>) -> io::Result<()> {
        self.0.send(&message.encode(NAME), fd.as_ref().map(AsFd::as_fd))
    }

    /// Sends the peer the reason why the connection ends, unless the peer ended it; returns the
    /// reason as text.
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

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_sys::seqpacket::Listener;
    use std::path::Path;

    #[test]
    fn reason_of_a_peer_that_has_not_read_everything_is_received() {
        let name = format!("@linerate-channel-{}", std::process::id());
        let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
        let ours = Channel(Seqpacket::connect(Path::new(&name)).unwrap());
        let theirs = Channel(listener.accept().unwrap().unwrap());
        ours.send(&Message::Disconnect("not read".into()), None).unwrap();
        let _ = theirs.refuse(Ending::Unfit("no".into()));
        drop(theirs);
        let told = ours.recv(&mut Vec::new());
        assert!(matches!(&told, Ok(Some(Message::Disconnect(why))) if why == "no"));
        assert!(ours.recv(&mut Vec::new()).is_err());
    }
}
