//! The handshake that sets up shared memory: the messages allowed in each state, and their checks.
//!
//! Two state machines without a socket: messages in, messages out. Everything that a peer sends is
//! checked here; whatever does not fit ends the connection with a reason.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use linerate_sys::peer::{Access, PeerMemory};
use linerate_sys::wait::EventFd;

use super::config::{Config, Secret, Sharing};
use super::message::{Message, RingPlace, SECRET_BYTES, VERSION};
use super::ring::{self, DESC_BYTES, POWER_MAX, REGION_BYTES_MAX, ServerRing, Shared};
use super::rings::{Rings, RxRing, TxRing};
use super::server::{MappedRing, Regions};

/// Most regions of a client: the limit of DPDK's driver.
const REGIONS_MAX: usize = 256;

/// The reason why a connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The peer violates the protocol, or requests something that it is not allowed to have; the
    /// text is sent to it.
    Refused(&'static str),
    /// An object of the peer is unusable; the text is sent to it, cut at 95 bytes.
    Unfit(String),
    /// The peer has ended the connection, for this reason.
    ByPeer(String),
}

/// The server's reaction to a message.
pub(super) enum Reply {
    /// The peer acknowledges.
    Ack,
    /// The server has mapped the client's rings and reports them as connected; the value holds the
    /// rings of each queue that gets some.
    Connected(Vec<Option<Rings>>),
}

/// The server's side of one connection.
#[derive(Debug, Default)]
pub struct Server {
    admitted: bool,
    regions: Vec<PeerMemory>,
    /// Rings from the client, each with its doorbell; the next field has those to the client.
    from_client: Vec<(RingPlace, EventFd)>,
    to_client: Vec<(RingPlace, EventFd)>,
    rings: u16,
}

impl Server {
    pub fn new(config: &Config) -> Server {
        Server { rings: config.rings, ..Server::default() }
    }

    /// Returns true if the client has presented the secret but has not completed the handshake.
    pub fn is_admitted(&self) -> bool {
        self.admitted
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

    /// Processes a message, and takes from `fds` the descriptors that belong to it.
    ///
    /// # Errors
    /// Why the connection ends.
    pub(super) fn on(
        &mut self,
        message: Message,
        fds: &mut Vec<OwnedFd>,
        config: &Config,
    ) -> Result<Reply, Ending> {
        let needed = matches!(message, Message::AddRegion { .. } | Message::AddRing(_));
        match (fds.len(), needed && self.admitted) {
            (0, false) | (1, true) => {}
            (0, true) => return Err(Ending::Refused("a descriptor is missing")),
            _ => return Err(Ending::Refused("an unexpected descriptor")),
        }
        match message {
            Message::Disconnect(why) => return Err(Ending::ByPeer(why)),
            Message::Init { version, id, mode, secret } if !self.admitted => {
                admit(config, version, id, mode, secret)?;
                self.admitted = true;
            }
            Message::AddRegion { index, bytes } if self.admitted => {
                self.add_region(index, bytes, fds, config)?;
            }
            Message::AddRing(place) if self.admitted => self.add_ring(place, fds)?,
            Message::Connect if self.admitted => return self.connect(config).map(Reply::Connected),
            _ => return Err(Ending::Refused("unexpected message")),
        }
        Ok(Reply::Ack)
    }

    /// Maps a region that the client has added, after which the region's file is closed.
    fn add_region(
        &mut self,
        index: u16,
        bytes: u64,
        fds: &[OwnedFd],
        config: &Config,
    ) -> Result<(), Ending> {
        if usize::from(index) != self.regions.len() || self.regions.len() == REGIONS_MAX {
            return Err(Ending::Refused("a region out of order, or too many"));
        }
        if bytes > REGION_BYTES_MAX {
            return Err(Ending::Refused(
                "a region of more than 4 GiB, which no descriptor can reach",
            ));
        }
        // Check before mapping: each page of a file with holes that is touched would count as this
        // process's memory.
        let all = self.regions.iter().map(|region| region.len() as u64).sum::<u64>() + bytes;
        if all > config.memory {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            let (all, most) = (mib(all), mib(config.memory));
            return Err(Ending::Unfit(format!(
                "regions of {all} MiB, {most} MiB allowed; say memory={all} to the server"
            )));
        }
        let map = |access| PeerMemory::map(&fds[0], bytes, access, config.trust);
        // A client can give us read-only access to a region.
        let mapped = map(Access::Write).or_else(|_| map(Access::Read));
        self.regions.push(mapped.map_err(|e| {
            // Only errors that trust=yes avoids have a `fix`.
            let remedy = if e.fix.is_empty() { "" } else { "; add trust=yes" };
            Ending::Unfit(format!("region {index}: {}{remedy}", e.why))
        })?);
        Ok(())
    }

    fn add_ring(&mut self, place: RingPlace, fds: &mut Vec<OwnedFd>) -> Result<(), Ending> {
        let Some(region) = self.regions.get(usize::from(place.region)) else {
            return Err(Ending::Refused("a ring in no region"));
        };
        if !(1..=POWER_MAX).contains(&place.power)
            || !(place.offset as usize).is_multiple_of(DESC_BYTES)
        {
            return Err(Ending::Refused("a ring of an impossible length or place"));
        }
        if !region.has(place.offset as usize, ring::bytes(place.power)) {
            return Err(Ending::Refused("a ring outside its region"));
        }
        let rings = match place.from_client {
            true => &mut self.from_client,
            false => &mut self.to_client,
        };
        if usize::from(place.index) != rings.len() || place.index >= self.rings {
            return Err(Ending::Refused("a ring out of order, or too many"));
        }
        rings.push((place, doorbell(fds.pop(), DESCRIPTORS)?));
        Ok(())
    }

    fn connect(&mut self, config: &Config) -> Result<Vec<Option<Rings>>, Ending> {
        let Server { regions, from_client, to_client, .. } = std::mem::take(self);
        if from_client.is_empty() && to_client.is_empty() {
            return Err(Ending::Refused("no rings"));
        }
        let places = || from_client.iter().chain(&to_client).map(|(place, _)| place);
        let regions = regions.into_iter().enumerate().map(|(i, mut region)| {
            if config.sharing == Sharing::Read
                && !places().any(|place| usize::from(place.region) == i)
            {
                region.restrict().map_err(|e| Ending::Unfit(e.why))?;
            }
            Ok(Arc::new(region))
        });
        let regions: Regions = regions.collect::<Result<Vec<_>, Ending>>()?.into();
        let map = |rings: Vec<(RingPlace, EventFd)>| -> Result<Vec<MappedRing>, Ending> {
            rings.into_iter().map(|(place, bell)| mapped_ring(&regions, place, bell)).collect()
        };
        let rx = map(from_client)?.into_iter().map(|ring| Box::new(ring) as Box<dyn RxRing>);
        let tx = map(to_client)?.into_iter().map(|ring| Box::new(ring) as Box<dyn TxRing>);
        Ok(Rings::distribute(config.rings, tx, rx))
    }
}

/// Checks a client's first message.
fn admit(
    config: &Config,
    version: u16,
    id: u32,
    mode: u8,
    secret: [u8; SECRET_BYTES],
) -> Result<(), Ending> {
    let wanted = padded(&config.secret);
    match () {
        () if version != VERSION => Err(Ending::Refused("incompatible version")),
        () if id != config.id => Err(Ending::Refused("id not found")),
        () if mode != 0 => Err(Ending::Refused("only Ethernet mode")),
        // The comparison need not take constant time: a process that can connect can try any number
        // of secrets.
        () if wanted != [0; SECRET_BYTES] && secret != wanted => {
            Err(Ending::Refused("incorrect secret"))
        }
        () => Ok(()),
    }
}

fn mapped_ring(regions: &Regions, place: RingPlace, bell: EventFd) -> Result<MappedRing, Ending> {
    let memory = regions.get(usize::from(place.region)).filter(|memory| memory.is_writable());
    let shared = memory
        .and_then(|memory| Shared::new(memory, place.offset as usize, place.power))
        .filter(Shared::is_one)
        .ok_or(Ending::Refused("a ring that does not exist"))?;
    Ok(MappedRing::new(ServerRing::new(shared), bell, regions.clone()))
}

/// This process's descriptors, each a link to its file.
const DESCRIPTORS: &str = "/proc/self/fd";

/// Returns a ring's doorbell, which must be an eventfd: writing a signal to another kind of file could block without
/// end.
fn doorbell(fd: Option<OwnedFd>, descriptors: &str) -> Result<EventFd, Ending> {
    const NONE: Ending = Ending::Refused("a doorbell that is not an eventfd");
    let fd = fd.ok_or(NONE)?;
    let file = std::fs::read_link(format!("{descriptors}/{}", fd.as_raw_fd()));
    let file =
        file.map_err(|e| Ending::Unfit(format!("a doorbell: {descriptors}: {e}; mount /proc")))?;
    let is_eventfd = file.as_os_str() == "anon_inode:[eventfd]";
    is_eventfd.then(|| EventFd::from_fd(fd).ok()).flatten().ok_or(NONE)
}

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
        let power = config.size.trailing_zeros() as u8;
        let limits =
            Limits { from_client: config.rings, to_client: config.rings, power, regions: 0 };
        Client { init, limits, state: State::Greeting, to_send: VecDeque::new() }
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
                    regions: u32::from(*region_max) + 1,
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

fn padded(secret: &Secret) -> [u8; SECRET_BYTES] {
    let (mut bytes, secret) = ([0; SECRET_BYTES], secret.0.as_bytes());
    let n = secret.len().min(SECRET_BYTES - 1);
    bytes[..n].copy_from_slice(&secret[..n]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;
    use rustix::event::EventfdFlags;
    use rustix::fs::{MemfdFlags, SealFlags};

    fn config(text: &str) -> Config {
        Config::of(&Spec::parse(text, &["memif"]).unwrap()).unwrap()
    }

    fn bell() -> OwnedFd {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn a_doorbell_is_not_blamed_for_a_proc_that_is_hidden() {
        assert!(doorbell(Some(bell()), DESCRIPTORS).is_ok());
        for none in [None, Some(memory(4096))] {
            let refused = Ending::Refused("a doorbell that is not an eventfd");
            assert_eq!(doorbell(none, DESCRIPTORS).err(), Some(refused));
        }
        let Some(Ending::Unfit(why)) = doorbell(Some(bell()), "/nonexistent").err() else {
            panic!("of the peer's or none")
        };
        assert!(
            why.contains("/nonexistent: No such file") && why.ends_with("mount /proc"),
            "{why}"
        );
    }

    /// Returns a memory file that contains rings of 16 descriptors, one page apart.
    fn memory(bytes: u64) -> OwnedFd {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        for page in 0..bytes / 4096 {
            rustix::io::pwrite(&fd, &ring::COOKIE.to_ne_bytes(), page * 4096).unwrap();
        }
        fd
    }

    fn place(index: u16, from_client: bool) -> RingPlace {
        RingPlace { from_client, index, region: 0, offset: 0, power: 4 }
    }

    /// Returns the reaction of a server with the options `text` to `message` with `fds`.
    fn reply(
        server: &mut Server,
        text: &str,
        message: Message,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Reply, Ending> {
        server.on(message, &mut fds, &config(text))
    }

    /// Runs the handshake of both sides; returns the limits for the client's rings, and the
    /// server's rings.
    fn meet(client: &str, server_text: &str) -> Result<(Limits, Vec<Option<Rings>>), Ending> {
        let (mut client, mut server) =
            (Client::new(&config(client)), Server::new(&config(server_text)));
        let (mut limits, mut to_client) = (None, server.hello());
        loop {
            let step = match client.on(&to_client, &[])? {
                Step::Make(made) => {
                    limits = Some(made);
                    let region = Message::AddRegion { index: 0, bytes: 4096 };
                    let mut all = vec![(region, memory(4096))];
                    for (n, from) in [(made.from_client, true), (made.to_client, false)] {
                        all.extend((0..n).map(|i| (Message::AddRing(place(i, from)), bell())));
                    }
                    client.offer(all)?
                }
                step => step,
            };
            let Step::Send(message, fd) = step else {
                panic!("before the server has mapped anything")
            };
            match reply(&mut server, server_text, message, fd.into_iter().collect())? {
                Reply::Ack => to_client = Message::Ack,
                Reply::Connected(rings) => {
                    assert!(matches!(client.on(&Message::Connected, &[]), Ok(Step::Connected)));
                    return Ok((limits.unwrap(), rings));
                }
            }
        }
    }

    #[test]
    fn two_sides_agree_on_the_lesser_of_what_they_can() {
        let (limits, rings) = meet("memif:x,rings=3", "memif:x,role=server,rings=2").unwrap();
        assert_eq!((limits.from_client, limits.to_client), (2, 2));
        assert!(rings.iter().flatten().all(|rings| rings.tx.is_some() && rings.rx.is_some()));
        let (limits, rings) =
            meet("memif:x,rings=1,secret=s", "memif:x,role=server,rings=4,secret=s").unwrap();
        assert_eq!((limits.from_client, rings.iter().flatten().count()), (1, 1));
    }

    #[test]
    fn server_refuses_wrong_id_or_secret_with_a_reason() {
        let refused = |client, server| match meet(client, server) {
            Err(Ending::Refused(why)) => why,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("taken"),
        };
        assert_eq!(refused("memif:x,id=1", "memif:x,role=server"), "id not found");
        let keen = "memif:x,role=server,secret=s";
        assert_eq!(refused("memif:x", keen), "incorrect secret");
        assert_eq!(refused("memif:x,secret=t", keen), "incorrect secret");
        assert!(meet("memif:x,secret=s", "memif:x,role=server").is_ok(), "who asks for none");
    }

    const SERVER: &str = "memif:x,role=server,rings=2";

    /// Returns a server that has admitted a client with a region of 4096 bytes.
    fn admitted() -> Server {
        let mut server = Server::new(&config(SERVER));
        let init = Message::Init { version: VERSION, id: 0, mode: 0, secret: [0; 24] };
        assert!(matches!(reply(&mut server, SERVER, init, vec![]), Ok(Reply::Ack)));
        let region = Message::AddRegion { index: 0, bytes: 4096 };
        assert!(matches!(reply(&mut server, SERVER, region, vec![memory(4096)]), Ok(Reply::Ack)));
        server
    }

    /// Returns the reason why a server with the options `text` refuses a region of `bytes` after
    /// one of a page.
    fn refused_region(text: &str, bytes: u64) -> Option<Ending> {
        let mut server = admitted();
        let region = Message::AddRegion { index: 1, bytes };
        reply(&mut server, text, region, vec![memory(4096)]).err()
    }

    #[test]
    fn memory_of_a_client_is_bounded_before_it_is_mapped() {
        let Some(Ending::Refused(why)) = refused_region(SERVER, (4 << 30) + 1) else { panic!() };
        assert!(why.contains("4 GiB"));
        // The region is longer than the file, so it is refused for its size and not for a property
        // of the file.
        let Some(Ending::Unfit(why)) = refused_region(SERVER, 256 << 20) else { panic!() };
        assert_eq!(why, "regions of 257 MiB, 256 MiB allowed; say memory=257 to the server");
        let Some(Ending::Unfit(why)) = refused_region(SERVER, 1 << 20) else { panic!() };
        assert_eq!(why, "region 1: its file has 4096 bytes");
        assert_eq!(refused_region(SERVER, 4096), None);
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
            let is_region = matches!(message, Message::AddRegion { .. });
            let fds = (0..fds).map(|_| if is_region { memory(4096) } else { bell() }).collect();
            let said = format!("{message:?}");
            let reply = reply(&mut admitted(), SERVER, message, fds);
            assert!(matches!(reply, Err(Ending::Refused(_))), "{said}");
        }
        for (message, why) in [
            (init(0x0100, 0).0, "incompatible version"),
            (init(VERSION, 1).0, "only Ethernet mode"),
        ] {
            let mut server = Server::new(&config(SERVER));
            let refused = reply(&mut server, SERVER, message, vec![]).err();
            assert_eq!(refused, Some(Ending::Refused(why)));
        }
        let mut stranger = Server::new(&config(SERVER));
        let region = Message::AddRegion { index: 0, bytes: 4096 };
        assert!(reply(&mut stranger, SERVER, region, vec![memory(4096)]).is_err());
        let bye = reply(&mut admitted(), SERVER, Message::Disconnect("bye".into()), vec![]).err();
        assert_eq!(bye, Some(Ending::ByPeer("bye".into())));
    }

    #[test]
    fn what_a_server_may_not_say_ends_the_connection() {
        let hello = Server::new(&config("memif:x,role=server")).hello();
        for message in [Message::Ack, Message::Connected, Message::Connect] {
            assert!(Client::new(&config("memif:x")).on(&message, &[]).is_err());
        }
        let mut client = Client::new(&config("memif:x"));
        assert!(matches!(client.on(&hello, &[]), Ok(Step::Send(Message::Init { .. }, None))));
        assert!(client.on(&hello, &[]).is_err());
        let mut client = Client::new(&config("memif:x"));
        assert!(client.on(&hello, &[bell()]).is_err());
        let old = Message::Hello {
            versions: (0x0100, 0x0100),
            region_max: 0,
            to_client_max: 0,
            from_client_max: 0,
            ring_power_max: 0,
        };
        assert_eq!(client.on(&old, &[]).unwrap_err(), Ending::Refused("incompatible version"));
    }
}
