//! The handshake by which two sides come to share memory: the messages allowed in each state, and
//! the checks on them.
//!
//! Two state machines without a socket: messages in, messages out. Everything that a peer says is
//! checked here or, what concerns its files, where they are mapped; whatever does not fit ends the
//! connection with a reason.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use super::config::Config;
use super::message::{Message, RingPlace, SECRET_BYTES, VERSION};
use super::ring::{self, DESC_BYTES, POWER_MAX};

/// Regions that a client may have: what DPDK's driver allows.
const REGIONS_MAX: usize = 256;

/// The reason why a connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The peer breaks the protocol, or may not have what it asks for; the text is sent to it.
    Refused(&'static str),
    /// A file of the peer's cannot be mapped; the text is sent to it, cut at 95 bytes.
    Unfit(String),
    /// The peer has said so.
    ByPeer(String),
}

/// The memory and rings that a client lets us map.
#[derive(Debug, Default)]
pub struct Offer {
    /// Files, and how much of each.
    pub regions: Vec<(OwnedFd, u64)>,
    /// Rings that it sends by, each with the doorbell that it rings.
    pub from_client: Vec<(RingPlace, OwnedFd)>,
    /// Rings that it receives by, each with the doorbell that it hears.
    pub to_client: Vec<(RingPlace, OwnedFd)>,
}

/// The server's reaction to a message.
#[derive(Debug)]
pub enum Answer {
    /// It sends a reply.
    Send(Message),
    /// It maps the memory offered, and sends `Connected` then.
    Map(Offer),
}

/// The server's side of one connection.
#[derive(Debug)]
pub struct Server {
    id: u32,
    secret: [u8; SECRET_BYTES],
    rings: u16,
    admitted: bool,
    offer: Offer,
}

impl Server {
    pub fn new(config: &Config) -> Server {
        let (id, rings) = (config.id, config.rings);
        Server {
            id,
            secret: padded(&config.secret),
            rings,
            admitted: false,
            offer: Offer::default(),
        }
    }

    /// Returns the server's first message.
    pub fn hello(&self) -> Message {
        Message::Hello {
            versions: (VERSION, VERSION),
            region_max: REGIONS_MAX as u16 - 1,
            to_client_max: self.rings - 1,
            from_client_max: self.rings - 1,
            ring_power_max: POWER_MAX,
        }
    }

    /// Takes a message, and the descriptors that came with it.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn on(&mut self, message: Message, fds: Vec<OwnedFd>) -> Result<Answer, Ending> {
        let fd = one(fds)?;
        match (message, fd) {
            (Message::Disconnect(why), None) => Err(Ending::ByPeer(why)),
            (Message::Init { version, id, mode, secret }, None) if !self.admitted => {
                self.admit(version, id, mode, secret)?;
                Ok(Answer::Send(Message::Ack))
            }
            (Message::AddRegion { index, bytes }, Some(fd)) if self.admitted => {
                if usize::from(index) != self.offer.regions.len()
                    || self.offer.regions.len() == REGIONS_MAX
                {
                    return Err(Ending::Refused("a region out of order, or too many"));
                }
                self.offer.regions.push((fd, bytes));
                Ok(Answer::Send(Message::Ack))
            }
            (Message::AddRing(place), Some(fd)) if self.admitted => {
                self.add_ring(place, fd)?;
                Ok(Answer::Send(Message::Ack))
            }
            (Message::Connect, None) if self.admitted => {
                let offer = std::mem::take(&mut self.offer);
                self.admitted = false;
                if offer.from_client.is_empty() && offer.to_client.is_empty() {
                    return Err(Ending::Refused("no rings"));
                }
                Ok(Answer::Map(offer))
            }
            (Message::AddRegion { .. } | Message::AddRing(_), None) => {
                Err(Ending::Refused("a descriptor is missing"))
            }
            _ => Err(Ending::Refused("unexpected message")),
        }
    }

    fn admit(
        &mut self,
        version: u16,
        id: u32,
        mode: u8,
        secret: [u8; SECRET_BYTES],
    ) -> Result<(), Ending> {
        if version != VERSION {
            return Err(Ending::Refused("incompatible version"));
        }
        if id != self.id {
            return Err(Ending::Refused("id not found"));
        }
        if mode != 0 {
            return Err(Ending::Refused("only Ethernet mode"));
        }
        // Not in constant time: who can connect can try as often as he likes.
        if self.secret != [0; SECRET_BYTES] && secret != self.secret {
            return Err(Ending::Refused("incorrect secret"));
        }
        self.admitted = true;
        Ok(())
    }

    fn add_ring(&mut self, place: RingPlace, fd: OwnedFd) -> Result<(), Ending> {
        let Some((_, bytes)) = self.offer.regions.get(usize::from(place.region)) else {
            return Err(Ending::Refused("a ring in no region"));
        };
        if !(1..=POWER_MAX).contains(&place.power)
            || !(place.offset as usize).is_multiple_of(DESC_BYTES)
        {
            return Err(Ending::Refused("a ring of an impossible length or place"));
        }
        if u64::from(place.offset) + ring::bytes(place.power) as u64 > *bytes {
            return Err(Ending::Refused("a ring outside its region"));
        }
        let rings = match place.from_client {
            true => &mut self.offer.from_client,
            false => &mut self.offer.to_client,
        };
        if usize::from(place.index) != rings.len() || place.index >= self.rings {
            return Err(Ending::Refused("a ring out of order, or too many"));
        }
        rings.push((place, fd));
        Ok(())
    }
}

/// Largest numbers that a client may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rings to the server.
    pub from_client: u16,
    /// Rings to the client.
    pub to_client: u16,
    /// Descriptors of each, as a power of two.
    pub power: u8,
    /// Regions.
    pub regions: u32,
}

/// The client's reaction to a message.
#[derive(Debug)]
pub enum Step {
    /// It makes rings within these limits, and sends them: [`Client::offer`].
    Make(Limits),
    /// It sends the next message.
    Send(Message, Option<OwnedFd>),
    /// They share memory.
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

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The server's first message has not come.
    Greeting,
    /// Each message sent must be acknowledged.
    Offering,
    /// All was sent.
    Connecting,
}

impl Client {
    pub fn new(config: &Config) -> Client {
        let secret = padded(&config.secret);
        let init = Message::Init { version: VERSION, id: config.id, mode: 0, secret };
        let power = config.size.trailing_zeros() as u8;
        let limits =
            Limits { from_client: config.rings, to_client: config.rings, power, regions: 0 };
        Client { init, limits, state: State::Greeting, to_send: VecDeque::new() }
    }

    /// Takes a message, and the descriptors that came with it, of which there are none.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn on(&mut self, message: &Message, fds: &[OwnedFd]) -> Result<Step, Ending> {
        if !fds.is_empty() {
            return Err(Ending::Refused("a descriptor that nobody asked for"));
        }
        match (message, &self.state) {
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
                self.state = State::Offering;
                Ok(Step::Make(Limits {
                    from_client: rings(self.limits.from_client, *from_client_max),
                    to_client: rings(self.limits.to_client, *to_client_max),
                    power: self.limits.power.min(*ring_power_max).max(1),
                    regions: u32::from(*region_max) + 1,
                }))
            }
            (Message::Ack, State::Offering) => self.next(),
            (Message::Connected, State::Connecting) => Ok(Step::Connected),
            _ => Err(Ending::Refused("unexpected message")),
        }
    }

    /// Queues the messages about `all` that was made, regions, then rings, each with its
    /// descriptor; returns the first message to send.
    pub fn offer(&mut self, all: Vec<(Message, OwnedFd)>) -> Message {
        self.to_send = all.into_iter().map(|(message, fd)| (message, Some(fd))).collect();
        self.to_send.push_back((Message::Connect, None));
        self.init.clone()
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

fn padded(secret: &str) -> [u8; SECRET_BYTES] {
    let mut bytes = [0; SECRET_BYTES];
    let n = secret.len().min(SECRET_BYTES - 1);
    bytes[..n].copy_from_slice(&secret.as_bytes()[..n]);
    bytes
}

fn one(mut fds: Vec<OwnedFd>) -> Result<Option<OwnedFd>, Ending> {
    match fds.len() {
        0 | 1 => Ok(fds.pop()),
        _ => Err(Ending::Refused("more than one descriptor")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;
    use proptest::prelude::*;

    fn config(text: &str) -> Config {
        Config::of(&Spec::parse(text, &["memif"]).unwrap()).unwrap()
    }

    fn fd() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn place(index: u16, from_client: bool) -> RingPlace {
        RingPlace { from_client, index, region: 0, offset: 0, power: 4 }
    }

    /// Both machines, joined; what the server was offered.
    fn meet(client: &str, server: &str) -> Result<Offer, Ending> {
        let (mut client, mut server) = (Client::new(&config(client)), Server::new(&config(server)));
        let mut limits = None;
        let mut to_client = server.hello();
        loop {
            let (message, fd) = match client.on(&to_client, &[])? {
                Step::Make(made) => {
                    limits = Some(made);
                    let mut all = vec![(Message::AddRegion { index: 0, bytes: 1 << 20 }, fd())];
                    let both = [(made.from_client, true), (made.to_client, false)];
                    for (n, from) in both {
                        all.extend((0..n).map(|i| (Message::AddRing(place(i, from)), fd())));
                    }
                    (client.offer(all), None)
                }
                Step::Send(message, fd) => (message, fd),
                Step::Connected => panic!("before the server has mapped anything"),
            };
            match server.on(message, fd.into_iter().collect())? {
                Answer::Send(message) => to_client = message,
                Answer::Map(offer) => {
                    assert!(matches!(client.on(&Message::Connected, &[]), Ok(Step::Connected)));
                    assert_eq!(limits.unwrap().from_client as usize, offer.from_client.len());
                    return Ok(offer);
                }
            }
        }
    }

    #[test]
    fn two_sides_agree_on_the_lesser_of_what_they_can() {
        let offer = meet("memif:x,rings=3", "memif:x,role=server,rings=2").unwrap();
        assert_eq!((offer.from_client.len(), offer.to_client.len()), (2, 2));
        let offer =
            meet("memif:x,rings=1,secret=s", "memif:x,role=server,rings=4,secret=s").unwrap();
        assert_eq!((offer.regions.len(), offer.from_client.len()), (1, 1));
    }

    #[test]
    fn server_refuses_wrong_id_or_secret_with_a_reason() {
        let refused = |client, server| match meet(client, server) {
            Err(Ending::Refused(why)) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused("memif:x,id=1", "memif:x,role=server"), "id not found");
        let keen = "memif:x,role=server,secret=s";
        assert_eq!(refused("memif:x", keen), "incorrect secret");
        assert_eq!(refused("memif:x,secret=t", keen), "incorrect secret");
        assert!(meet("memif:x,secret=s", "memif:x,role=server").is_ok(), "who asks for none");
    }

    /// A server that has admitted a client, with a region of 4096 bytes.
    fn admitted() -> Server {
        let mut server = Server::new(&config("memif:x,role=server,rings=2"));
        let init = Message::Init { version: VERSION, id: 0, mode: 0, secret: [0; 24] };
        assert!(matches!(server.on(init, vec![]), Ok(Answer::Send(Message::Ack))));
        let region = Message::AddRegion { index: 0, bytes: 4096 };
        assert!(matches!(server.on(region, vec![fd()]), Ok(Answer::Send(Message::Ack))));
        server
    }

    #[test]
    fn what_a_client_may_not_say_ends_the_connection() {
        let good = place(0, true);
        let ring = |place| (Message::AddRing(place), 1);
        let init = |version, mode| (Message::Init { version, id: 0, mode, secret: [0; 24] }, 0);
        for (message, fds) in [
            init(VERSION, 0),
            (Message::AddRegion { index: 0, bytes: 4096 }, 1),
            (Message::AddRegion { index: 2, bytes: 4096 }, 1),
            (Message::AddRegion { index: 1, bytes: 4096 }, 0),
            (Message::AddRegion { index: 1, bytes: 4096 }, 2),
            ring(RingPlace { index: 1, ..good }),
            ring(RingPlace { region: 1, ..good }),
            ring(RingPlace { power: 0, ..good }),
            ring(RingPlace { power: 15, ..good }),
            ring(RingPlace { power: 255, ..good }),
            ring(RingPlace { power: 8, ..good }),
            ring(RingPlace { offset: 8, ..good }),
            ring(RingPlace { offset: 4096, ..good }),
            ring(RingPlace { offset: 0xffff_fff0, ..good }),
            (Message::AddRing(good), 0),
            (Message::Connect, 0),
            (Message::Connect, 1),
            (Message::Connected, 0),
            (Message::Ack, 0),
            (Server::new(&config("memif:x,role=server")).hello(), 0),
        ] {
            let fds = (0..fds).map(|_| fd()).collect();
            let said = format!("{message:?}");
            assert!(matches!(admitted().on(message, fds), Err(Ending::Refused(_))), "{said}");
        }
        for (message, why) in [
            (init(0x0100, 0).0, "incompatible version"),
            (init(VERSION, 1).0, "only Ethernet mode"),
        ] {
            let mut server = Server::new(&config("memif:x,role=server"));
            assert_eq!(server.on(message, vec![]).unwrap_err(), Ending::Refused(why));
        }
        let mut stranger = Server::new(&config("memif:x,role=server"));
        let region = Message::AddRegion { index: 0, bytes: 4096 };
        assert!(stranger.on(region, vec![fd()]).is_err());
        let told = admitted().on(Message::Disconnect("bye".into()), vec![]);
        assert_eq!(told.unwrap_err(), Ending::ByPeer("bye".into()));
    }

    #[test]
    fn what_a_server_may_not_say_ends_the_connection() {
        let hello = Server::new(&config("memif:x,role=server")).hello();
        for message in [Message::Ack, Message::Connected, Message::Connect] {
            assert!(Client::new(&config("memif:x")).on(&message, &[]).is_err());
        }
        let mut client = Client::new(&config("memif:x"));
        assert!(matches!(client.on(&hello, &[]), Ok(Step::Make(_))));
        assert!(client.on(&hello, &[]).is_err());
        let mut client = Client::new(&config("memif:x"));
        assert!(client.on(&hello, &[fd()]).is_err());
        let old = Message::Hello {
            versions: (0x0100, 0x0100),
            region_max: 0,
            to_client_max: 0,
            from_client_max: 0,
            ring_power_max: 0,
        };
        assert_eq!(client.on(&old, &[]).unwrap_err(), Ending::Refused("incompatible version"));
    }

    proptest! {
        /// Any messages in any order, with any descriptors, get an answer or end the connection.
        #[test]
        fn no_order_of_messages_is_too_much(
            said in prop::collection::vec((prop::collection::vec(any::<u8>(), 24), 1u8..9, 0usize..3), 0..40),
        ) {
            let mut server = Server::new(&config("memif:x,role=server,rings=2"));
            let mut client = Client::new(&config("memif:x"));
            for (mut bytes, kind, fds) in said {
                bytes.resize(super::super::message::BYTES, 0);
                (bytes[0], bytes[1]) = (kind, 0);
                if kind == 3 {
                    bytes[2..9].copy_from_slice(&[0, 2, 0, 0, 0, 0, 0]);
                    bytes[9..33].fill(0);
                }
                let message = Message::decode(&bytes).unwrap();
                let _ = client.on(&message, &[]);
                let fds = (0..fds).map(|_| fd()).collect();
                if server.on(message, fds).is_err() {
                    break;
                }
                prop_assert!(server.offer.from_client.len() <= 2);
            }
        }
    }
}
