//! The server's side of the handshake: it checks what a client shares, and maps it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use linerate_sys::peer::{Access, PeerMemory};
use linerate_sys::wait::EventFd;

use super::super::config::Config;
use super::super::message::{Message, RingPlace, SECRET_BYTES, VERSION};
use super::super::ring::{self, DESC_BYTES, POWER_MAX, REGION_BYTES_MAX, ServerRing, Shared};
use super::super::rings::{Rings, RxRing, TxRing};
use super::super::server::{MappedRing, Regions};
use super::Ending;

/// Most regions of a client: the limit of DPDK's driver.
const REGIONS_MAX: usize = 256;

/// The server's reaction to a message.
pub(in crate::memif) enum Reply {
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
    /// The regions after all of them have arrived. Rings keep them mapped; without rings they are
    /// unmapped where this value is dropped.
    mapped: Regions,
}

impl Server {
    pub fn new(config: &Config) -> Server {
        Server { rings: config.rings, ..Server::default() }
    }

    /// Returns true if the client has presented the secret but has not completed the handshake.
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Returns the number of doorbells that the client has sent, before it is connected.
    pub(in crate::memif) fn doorbells(&self) -> usize {
        self.from_client.len() + self.to_client.len()
    }

    /// Returns the regions of a client that has sent all of them.
    #[cfg(test)]
    pub(super) fn mapped(&self) -> &Regions {
        &self.mapped
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
    pub(in crate::memif) fn on(
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
        if place.private_bytes != 0 {
            // As VPP does: nothing here would tell such a header from the packet behind it.
            return Err(Ending::Refused("a ring with private headers"));
        }
        let rings = match place.from_client {
            true => &mut self.from_client,
            false => &mut self.to_client,
        };
        if usize::from(place.index) != rings.len() || place.index >= self.rings {
            return Err(Ending::Refused("a ring out of order, or too many"));
        }
        rings.push((place, doorbell(fds, DESCRIPTORS)?));
        Ok(())
    }

    fn connect(&mut self, config: &Config) -> Result<Vec<Option<Rings>>, Ending> {
        if self.from_client.is_empty() && self.to_client.is_empty() {
            return Err(Ending::Refused("no rings"));
        }
        let places = || self.from_client.iter().chain(&self.to_client).map(|(place, _)| place);
        for (i, region) in self.regions.iter_mut().enumerate() {
            let has_rings = places().any(|place| usize::from(place.region) == i);
            if config.reads_in_place && !has_rings {
                region.restrict().map_err(|e| Ending::Unfit(e.why))?;
            }
        }
        self.mapped = self.regions.drain(..).map(Arc::new).collect();
        let map = |rings: &mut Vec<(RingPlace, EventFd)>| -> Result<Vec<MappedRing>, Ending> {
            let rings = rings.drain(..);
            rings.map(|(place, bell)| mapped_ring(&self.mapped, place, bell)).collect()
        };
        let rx = map(&mut self.from_client)?;
        let tx = map(&mut self.to_client)?;
        let rx = rx.into_iter().map(|ring| Box::new(ring) as Box<dyn RxRing>);
        let tx = tx.into_iter().map(|ring| Box::new(ring) as Box<dyn TxRing>);
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
    let wanted = config.secret.0.as_bytes();
    match () {
        () if version != VERSION => Err(Ending::Refused("incompatible version")),
        () if id != config.id => Err(Ending::Refused("id not found")),
        () if mode != 0 => Err(Ending::Refused("only Ethernet mode")),
        // The comparison need not take constant time: a process that can connect can try any number
        // of secrets.
        () if !wanted.is_empty() && text_of(&secret) != wanted => {
            Err(Ending::Refused("incorrect secret"))
        }
        () => Ok(()),
    }
}

/// Returns the bytes of a secret, which a zero ends. VPP's client leaves bytes of earlier messages
/// after the zero.
fn text_of(secret: &[u8; SECRET_BYTES]) -> &[u8] {
    let end = secret.iter().position(|byte| *byte == 0).unwrap_or(SECRET_BYTES);
    &secret[..end]
}

fn mapped_ring(regions: &Regions, place: RingPlace, bell: EventFd) -> Result<MappedRing, Ending> {
    let memory = regions.get(usize::from(place.region));
    if memory.is_some_and(|memory| !memory.is_writable()) {
        return Err(Ending::Refused("a ring in memory that is read-only"));
    }
    let shared = memory
        .and_then(|memory| Shared::new(memory, place.offset as usize, place.power))
        .filter(Shared::is_one)
        .ok_or(Ending::Refused("a ring that does not exist"))?;
    Ok(MappedRing::new(ServerRing::new(shared), bell, regions.clone()))
}

/// This process's descriptors, each a link to its file.
pub(super) const DESCRIPTORS: &str = "/proc/self/fd";

/// Takes a ring's doorbell from `fds`, which must be an eventfd: writing a signal to another kind
/// of file could block without end. Another file stays in `fds`, because closing it could block,
/// too.
pub(super) fn doorbell(fds: &mut Vec<OwnedFd>, descriptors: &str) -> Result<EventFd, Ending> {
    const NONE: Ending = Ending::Refused("a doorbell that is not an eventfd");
    let fd = fds.last().ok_or(NONE)?;
    let file = std::fs::read_link(format!("{descriptors}/{}", fd.as_raw_fd()));
    let file =
        file.map_err(|e| Ending::Unfit(format!("a doorbell: {descriptors}: {e}; mount /proc")))?;
    if file.as_os_str() != "anon_inode:[eventfd]" {
        return Err(NONE);
    }
    fds.pop().and_then(|fd| EventFd::from_fd(fd).ok()).ok_or(NONE)
}
