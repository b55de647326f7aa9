//! The client's side of the handshake: it offers what the server allows.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use super::super::config::{Config, Sharing};
use super::super::message::{Message, VERSION};
use super::{Ending, padded};

/// Limits on what a client can share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of rings to the server.
    pub from_client: u16,
    /// Number of rings to the client.
    pub to_client: u16,
    /// Descriptors of each ring, as a power of two.
    pub power: u8,
    /// Number of regions.
    pub regions: u32,
}

impl Limits {
    /// Returns what a client with these options shares, if its server allows it: one region for
    /// rings and buffers, and one for its pool if the peer maps that.
    pub fn wanted(config: &Config) -> Limits {
        let power = config.size.trailing_zeros() as u8;
        let regions = if config.sharing == Sharing::Nothing { 1 } else { 2 };
        Limits { from_client: config.rings, to_client: config.rings, power, regions }
    }
}

/// The client's reaction to a message.
#[derive(Debug)]
pub enum Step {
    /// The caller creates rings within these limits, and sends the message of [`Client::offer`].
    Make(Limits),
    /// The caller sends this message.
    Send(Message, Option<OwnedFd>),
    /// The handshake is complete: both sides use the shared memory now.
    Connected,
}

/// The client's side of one connection.
#[derive(Debug)]
pub struct Client {
    init: Message,
    limits: Limits,
    state: State,
    to_send: VecDeque<(Message, Option<OwnedFd>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The server's first message has not arrived.
    Greeting,
    /// The secret was sent.
    Admission(Limits),
    /// The regions and rings are being sent, each after the server has acknowledged the last one.
    Offering,
    /// The client has sent all regions and rings and waits for the server.
    Connecting,
}

impl Client {
    pub fn new(config: &Config) -> Client {
        let secret = padded(&config.secret);
        let init = Message::Init { version: VERSION, id: config.id, mode: 0, secret };
        let limits = Limits::wanted(config);
        Client { init, limits, state: State::Greeting, to_send: VecDeque::new() }
    }

    /// Returns the number of messages that are not sent yet. Each but one has a descriptor.
    pub(in crate::memif) fn unsent(&self) -> usize {
        self.to_send.len()
    }

    /// Processes a message, and returns the client's next step; a descriptor that came with the
    /// message is an error.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn on(&mut self, message: &Message, fds: &[OwnedFd]) -> Result<Step, Ending> {
        if !fds.is_empty() {
            return Err(Ending::Refused("an unexpected descriptor"));
        }
        match (message, self.state) {
            (Message::Disconnect(why), _) => Err(Ending::ByPeer(why.clone())),
            (
                Message::Hello {
                    versions,
                    region_max,
                    to_client_max,
                    from_client_max,
                    ring_power_max,
                },
                State::Greeting,
            ) => {
                if !(versions.0..=versions.1).contains(&VERSION) {
                    return Err(Ending::Refused("incompatible version"));
                }
                let rings = |ours: u16, max: u16| ours.min(max.saturating_add(1));
                self.state = State::Admission(Limits {
                    from_client: rings(self.limits.from_client, *from_client_max),
                    to_client: rings(self.limits.to_client, *to_client_max),
                    power: self.limits.power.min(*ring_power_max).max(1),
                    regions: self.limits.regions.min(u32::from(*region_max) + 1),
                });
                Ok(Step::Send(self.init.clone(), None))
            }
            // Only now resources are allocated: a server that refuses the client costs none.
            (Message::Ack, State::Admission(limits)) => Ok(Step::Make(limits)),
            (Message::Ack, State::Offering) => self.next(),
            (Message::Connected, State::Connecting) => Ok(Step::Connected),
            _ => Err(Ending::Refused("unexpected message")),
        }
    }

    /// Queues the messages about all regions and rings, regions first, each with its descriptor;
    /// returns the first message.
    ///
    /// # Errors
    /// If nothing was made.
    pub fn offer(&mut self, all: Vec<(Message, OwnedFd)>) -> Result<Step, Ending> {
        self.state = State::Offering;
        self.to_send = all.into_iter().map(|(message, fd)| (message, Some(fd))).collect();
        self.to_send.push_back((Message::Connect, None));
        self.next()
    }

    fn next(&mut self) -> Result<Step, Ending> {
        let Some((message, fd)) = self.to_send.pop_front() else {
            return Err(Ending::Refused("unexpected message"));
        };
        if self.to_send.is_empty() {
            self.state = State::Connecting;
        }
        Ok(Step::Send(message, fd))
    }
}
