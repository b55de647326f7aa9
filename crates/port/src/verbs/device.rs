//! The RDMA device of a port: its objects for the queue, and those for the control thread.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use linerate_skb::{Code, Data, Error, Pool, Result};
use linerate_sys::verbs::{
    Address, Completion, Completions, Device, Domain, Endpoint, Events, Memory, PortState,
    QueuePair, Receive, Route, Send as Message, Setup, To as Destination,
};
use rustix::net::sockopt;

use super::config::Config;
use super::hello::Hello;
use super::nic::{Fabric, Nic, To};
use super::rx::ROUTE_BYTES;

/// Keys of which the highest bit is set are the administrator's.
const KEY_BITS: u32 = 0x7fff_ffff;

/// A device's port, as it was found.
pub(super) struct Found {
    pub device: Arc<Device>,
    pub state: PortState,
    pub gid: [u8; 16],
    pub gid_index: u8,
    /// The version of RoCE, or InfiniBand.
    pub kind: String,
}

/// The objects of a queue that its control thread shares with it.
struct Objects {
    // Dropped in this order: what requests use goes after what executes them.
    sent: Arc<Completions>,
    received: Arc<Completions>,
    events: Arc<Events>,
    memory: Arc<Memory>,
    domain: Arc<Domain>,
    port: u8,
    gid_index: u8,
    rx_len: u32,
    tx_len: u32,
}

impl Objects {
    /// Creates the objects of queue `n`, with completion queues for the requests of all its pairs.
    fn new(
        n: usize,
        config: &Config,
        found: &Found,
        domain: &Arc<Domain>,
        memory: &Arc<Memory>,
    ) -> Result<Objects> {
        let events = Events::new(&found.device)?;
        let pairs = config.pairs() as u32;
        let shorter = |e: Error| {
            let (peers, queues) = (config.peers(), config.queues);
            let fix = format!(
                "shorter queues of requests (rx=, tx=), or fewer than {peers} peers or {queues} queues"
            );
            if peers > 1 || queues > 1 || e.fix.is_empty() { e.fix(fix) } else { e }
        };
        Ok(Objects {
            sent: Completions::new(&events, config.tx_len * pairs, n).map_err(shorter)?,
            received: Completions::new(&events, config.rx_len * pairs, n).map_err(shorter)?,
            events,
            memory: memory.clone(),
            domain: domain.clone(),
            port: config.port,
            gid_index: found.gid_index,
            rx_len: config.rx_len,
            tx_len: config.tx_len,
        })
    }

    fn setup(&self) -> Setup<'_> {
        Setup {
            domain: &self.domain,
            memory: &self.memory,
            sent: &self.sent,
            received: &self.received,
            rx_len: self.rx_len,
            tx_len: self.tx_len,
            port: self.port,
        }
    }
}

/// The part of a queue that makes ways.
pub(super) struct Rdma {
    objects: Arc<Objects>,
    /// The hello for every peer, without a connection.
    hello: Hello,
    is_connected: bool,
    mtu_bytes: usize,
}

/// The part of a queue that moves packets.
pub(super) struct RdmaNic {
    datagrams: QueuePair,
    /// The port's group.
    group: Option<Arc<Group>>,
    /// True if this queue is the port's member of the group.
    is_member: bool,
    objects: Arc<Objects>,
}

/// The group of the fabric.
struct Group {
    address: Address,
    gid: [u8; 16],
    key: u32,
    /// Makes the host's stack take the group's packets.
    _member: Option<UdpSocket>,
}

/// A way to a peer.
#[derive(Debug)]
pub(super) struct Way {
    connection: Option<QueuePair>,
    address: Address,
    pair: u32,
    key: u32,
}

/// Finds the device, its port and our address.
///
/// # Errors
/// `E-NODEV` without the device, `E-DEVICE-DOWN` if its port is down or has no address.
pub(super) fn find(config: &Config) -> Result<Found> {
    let device = Device::open(&config.device)?;
    let state = device.port(config.port)?;
    let what = || cannot(config);
    if !state.is_active {
        let why = format!("port {} is not active", config.port);
        return Err(Error::new(Code::DeviceDown, what(), why)
            .fix(format!("rdma link show {}/{}", config.device, config.port)));
    }
    let gid_index = match config.gid {
        Some(index) => index,
        None => best_gid(config, &device, &state),
    };
    let Some(gid) = device.gid(config.port, gid_index) else {
        let why = format!("its port {} has no address number {gid_index}", config.port);
        let fix = "give its network interface an IP address, or name a number by gid=";
        return Err(Error::new(Code::DeviceDown, what(), why).fix(fix));
    };
    let kind = match (state.is_ethernet, gid_attribute(config, "types", gid_index)) {
        (true, Some(kind)) => kind,
        (true, None) => "RoCE".to_owned(),
        (false, _) => "InfiniBand".to_owned(),
    };
    Ok(Found { device, state, gid, gid_index, kind })
}

/// Returns the GID index of the address to use: of RoCE version 2 and of IPv4 if there is one,
/// otherwise the first.
fn best_gid(config: &Config, device: &Device, state: &PortState) -> u8 {
    let all = 0..=u8::try_from(state.gids.saturating_sub(1)).unwrap_or(u8::MAX);
    let rank = |index: &u8| {
        let gid = device.gid(config.port, *index)?;
        let routed = gid_attribute(config, "types", *index).is_some_and(|kind| kind.contains("v2"));
        Some((routed, is_v4(gid)))
    };
    let mut best = (0, None);
    for index in all {
        let rank = rank(&index);
        if rank > best.1 {
            best = (index, rank);
        }
    }
    best.0
}

fn is_v4(gid: [u8; 16]) -> bool {
    Ipv6Addr::from(gid).to_ipv4_mapped().is_some()
}

/// Reads what the kernel knows of an address: its `types`, or the interface that has it (`ndevs`).
fn gid_attribute(config: &Config, what: &str, index: u8) -> Option<String> {
    let Config { device, port, .. } = config;
    let file = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/{what}/{index}");
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

pub(super) fn cannot(config: &Config) -> String {
    format!("cannot open verbs:{}", config.device)
}

/// Opens the objects of a port on `pool`: two parts for each queue.
///
/// # Errors
/// `E-UNSUPPORTED` or `E-POOL-SIZE` for a pool that the device cannot use; the device's own.
pub(super) fn open(config: &Config, found: &Found, pool: &Pool) -> Result<Vec<(Rdma, RdmaNic)>> {
    check(config, found, pool)?;
    // SAFETY: the device fills only frames that a `Local` has lent, and reads only packets.
    let region = unsafe { pool.region() }.ok_or_else(|| no_frames(config))?;
    let domain = Domain::new(&found.device)?;
    // SAFETY: the region stays mapped while the pool lives. The caller has the pool until the
    // queues have it. Their field `pool` is behind `control`, so that the last queue drops it after
    // the control thread, the last that shares the registration, has ended.
    let memory = Arc::new(unsafe { Memory::register(&domain, region.base(), region.len()) }?);
    let key = match config.group {
        Some(group) => group_key(group),
        None => random()? & KEY_BITS,
    };
    let queue = |n| {
        let objects = Arc::new(Objects::new(n, config, found, &domain, &memory)?);
        let datagrams = QueuePair::datagrams(&objects.setup(), key)?;
        let mtu_bytes = found.state.mtu_bytes;
        let hello = Hello {
            pair: datagrams.number(),
            key,
            mtu_bytes: mtu_bytes as u32,
            lid: found.state.lid,
            gid: found.gid,
            ..Hello::default()
        };
        let (group, is_member) = (None, false);
        let nic = RdmaNic { datagrams, group, is_member, objects: objects.clone() };
        Ok((Rdma { objects, hello, is_connected: config.is_connected, mtu_bytes }, nic))
    };
    let mut queues = (0..config.queues).map(queue).collect::<Result<Vec<_>>>()?;
    if let (Some(ip), Some((_, first))) = (config.group, queues.first_mut()) {
        // One member: every member gets each packet.
        let group = Arc::new(join(config, found, ip, &domain, &first.datagrams, key)?);
        first.is_member = true;
        queues.iter_mut().for_each(|(_, nic)| nic.group = Some(group.clone()));
    }
    Ok(queues)
}

fn no_frames(config: &Config) -> Error {
    let why = "the device writes into the pool's frames, and this pool has none: its data is in the allocator's memory";
    Error::new(Code::Unsupported, cannot(config), why)
        .fix("a pool of frames: --buffers frames, Pool::builder().data(Data::Frames)")
}

/// Refuses a pool whose frames have no room for a packet, or for the route of a datagram in front
/// of it.
fn check(config: &Config, found: &Found, pool: &Pool) -> Result<()> {
    if pool.data_from() == Data::General {
        return Err(no_frames(config));
    }
    let longest = longest(config, found);
    if pool.headroom() < ROUTE_BYTES {
        let why =
            format!("a headroom of {} bytes, where datagrams need {ROUTE_BYTES}", pool.headroom());
        return Err(Error::new(Code::PoolSize, cannot(config), why)
            .fix("Pool::builder().headroom(64), or leave it at its default"));
    }
    if pool.data_room() < longest {
        let why =
            format!("frames with room for {} bytes, and packets of {longest}", pool.data_room());
        let fix = format!(
            "larger frames: --frame-size {}, Pool::builder().frame_size(..), or a smaller packet_mtu=",
            (longest + pool.headroom()).next_power_of_two()
        );
        return Err(Error::new(Code::PoolSize, cannot(config), why).fix(fix));
    }
    Ok(())
}

/// Returns the longest packet that the port receives.
pub(super) fn longest(config: &Config, found: &Found) -> usize {
    if config.is_connected {
        config.longest_bytes
    } else {
        config.longest_bytes.min(found.state.mtu_bytes)
    }
}

/// Makes `datagrams` a member of `group`.
fn join(
    config: &Config,
    found: &Found,
    group: IpAddr,
    domain: &Arc<Domain>,
    datagrams: &QueuePair,
    key: u32,
) -> Result<Group> {
    if !found.state.is_ethernet {
        let why = "groups of an InfiniBand fabric are joined through its subnet manager";
        return Err(Error::new(Code::Unsupported, cannot(config), why)
            .fix("leave group out: packets for several receivers go to each peer"));
    }
    let gid = match group {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    if is_v4(gid) != is_v4(found.gid) {
        let why = format!(
            "the group {group} is of another version of IP than address number {}",
            found.gid_index
        );
        return Err(Error::new(Code::PortSyntax, cannot(config), why)
            .fix("a group of the other version, or another address by gid="));
    }
    let member = member(config, found, group).map_err(|e| {
        let what = format!("{}: cannot join {group}", cannot(config));
        Error::new(Code::System, what, e.to_string())
    })?;
    datagrams.join(gid)?;
    let route = Route { gid, lid: 0, gid_index: found.gid_index, port: config.port };
    let address = Address::new(domain, &route);
    let address = address.inspect_err(|_| datagrams.leave(gid))?;
    Ok(Group { address, gid, key, _member: member })
}

/// Makes the host's stack take the packets of a group on the device's network interface, as far as
/// it has one: the device's driver only sets the interface's filter.
fn member(config: &Config, found: &Found, group: IpAddr) -> io::Result<Option<UdpSocket>> {
    let Some(interface) = gid_attribute(config, "ndevs", found.gid_index) else { return Ok(None) };
    let index = linerate_sys::netif::Interface::find(&interface).map_err(io::Error::from)?.index();
    let socket = match group {
        IpAddr::V4(ip) => {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            let any = &std::net::Ipv4Addr::UNSPECIFIED;
            sockopt::set_ip_add_membership_with_ifindex(&socket, &ip, any, index)?;
            socket
        }
        IpAddr::V6(ip) => {
            let socket = UdpSocket::bind("[::]:0")?;
            sockopt::set_ipv6_add_membership(&socket, &ip, index)?;
            socket
        }
    };
    Ok(Some(socket))
}

/// Returns the Q_Key that all members of a group have.
fn group_key(group: IpAddr) -> u32 {
    let bytes = match group {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let mix = |key: u32, byte: &u8| (key ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, mix) & KEY_BITS
}

fn random() -> Result<u32> {
    let mut bits = [0; 4];
    let read = fs::File::open("/dev/urandom")
        .and_then(|mut file| io::Read::read_exact(&mut file, &mut bits));
    read.map_err(|e| Error::new(Code::File, "cannot read /dev/urandom", e.to_string()))?;
    Ok(u32::from_ne_bytes(bits))
}

impl Fabric for Rdma {
    type Peer = Way;
    type Half = Option<QueuePair>;

    fn begin(&mut self) -> Result<(Option<QueuePair>, Hello)> {
        if !self.is_connected {
            return Ok((None, self.hello));
        }
        let pair = QueuePair::connection(&self.objects.setup())?;
        let hello =
            Hello { connection: Some(pair.number()), psn: random()? & 0x00ff_ffff, ..self.hello };
        Ok((Some(pair), hello))
    }

    fn complete(&mut self, half: Option<QueuePair>, ours: &Hello, theirs: &Hello) -> Result<Way> {
        let objects = &self.objects;
        let route = Route {
            gid: theirs.gid,
            lid: theirs.lid,
            gid_index: objects.gid_index,
            port: objects.port,
        };
        let address = Address::new(&objects.domain, &route)?;
        if let (Some(pair), Some(other)) = (&half, theirs.connection) {
            let mtu_bytes = self.mtu_bytes.min(theirs.mtu_bytes as usize);
            pair.connect(&Endpoint { route, pair: other, psn: theirs.psn, mtu_bytes }, ours.psn)?;
        }
        Ok(Way { connection: half, address, pair: theirs.pair, key: theirs.key })
    }
}

impl Nic for RdmaNic {
    type Peer = Way;

    fn events(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&*self.objects.events)
    }

    fn drain(&mut self) {
        self.objects.events.drain();
    }

    fn received(&mut self, out: &mut [Completion]) -> io::Result<usize> {
        Ok(self.objects.received.poll(out)?)
    }

    fn sent(&mut self, out: &mut [Completion]) -> io::Result<usize> {
        Ok(self.objects.sent.poll(out)?)
    }

    fn arm_received(&mut self) -> io::Result<()> {
        Ok(self.objects.received.arm()?)
    }

    fn arm_sent(&mut self) -> io::Result<()> {
        Ok(self.objects.sent.arm()?)
    }

    unsafe fn post_receives(&mut self, requests: &[Receive], of: Option<&Way>) -> usize {
        let pair = match of {
            None => &self.datagrams,
            Some(Way { connection: Some(pair), .. }) => pair,
            Some(_) => return 0,
        };
        // SAFETY: as for this function.
        unsafe { pair.post_receives(requests) }
    }

    unsafe fn post(&mut self, messages: &[Message], to: To<'_, Way>) -> usize {
        let datagrams =
            |address, pair, key| (&self.datagrams, Some(Destination { address, pair, key }));
        let (pair, to) = match to {
            To::Datagram(way) => datagrams(&way.address, Some(way.pair), way.key),
            To::Group => match &self.group {
                Some(group) => datagrams(&group.address, None, group.key),
                None => return 0,
            },
            To::Connection(way) => match &way.connection {
                Some(pair) => (pair, None),
                None => return 0,
            },
        };
        // SAFETY: as for this function.
        unsafe { pair.post(messages, to) }
    }

    fn text(&self, completion: &Completion) -> String {
        self.objects.sent.text(completion)
    }
}

impl RdmaNic {
    /// Returns the number of the UD queue pair.
    pub fn pair(&self) -> u32 {
        self.datagrams.number()
    }
}

impl Drop for RdmaNic {
    fn drop(&mut self) {
        if let Some(group) = self.group.as_ref().filter(|_| self.is_member) {
            // A pair that is a member cannot be destroyed.
            self.datagrams.leave(group.gid);
        }
    }
}
