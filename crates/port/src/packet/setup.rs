//! Opening: the interface, the socket, and what they gave.

use std::os::fd::AsFd;
use std::sync::Arc;

use linerate_skb::{Code, Error, Result};
use linerate_sys::cbpf::DROP_ALL;
use linerate_sys::netif::{HARDWARE_ETHERNET, HARDWARE_LOOPBACK, Interface};
use linerate_sys::packet::{BlockRing, Options, PacketSocket, RingSize};

use crate::driver::Opened;
use crate::host::{Bell, Link, PACKET_BYTES_MAX, Reservation};
use crate::obtained::Obtained;
use crate::queue::{Health, QueueOps};

use super::PacketQueue;
use super::config::{self, Config};
use super::filter;
use super::rx::Rx;
use super::tx::Tx;

/// Frames on their way out; the kernel's default of 200 KB holds three superframes.
const SEND_BUFFER_BYTES: u32 = 4 << 20;
/// A block must hold the longest frame, and the kernel takes powers of two at no loss.
const BLOCK_BYTES_MIN: usize = 32 << 10;
/// Bytes that the kernel writes around the first frame of a block, rounded up.
const BLOCK_OVERHEAD_BYTES: usize = 256;
/// Ethernet header and one VLAN tag.
const LINK_HEADER_BYTES: usize = 18;
/// Longest frame of an interface of the usual MTU, tag included.
const FRAME_BYTES_MIN: usize = 1518;

/// Longest packet that the port hands over.
pub(super) fn packet_max_bytes(config: &Config) -> Result<usize> {
    if config.vnet {
        return Ok(PACKET_BYTES_MAX);
    }
    longest_frame(&Interface::open(&config.interface)?)
}

fn longest_frame(interface: &Interface) -> Result<usize> {
    let longest = interface.mtu_bytes()? as usize + LINK_HEADER_BYTES;
    Ok(longest.clamp(FRAME_BYTES_MIN, PACKET_BYTES_MAX))
}

/// Opens the port.
pub(super) fn open(config: &Config) -> Result<Opened> {
    let link = up(config)?;
    let mtu = link.interface().mtu_bytes()?;
    // Before anything is received that the host would answer.
    let reserve = |flow| Reservation::of(flow, link.interface());
    let reservation = config.flow.as_ref().map(reserve).transpose()?.map(Arc::new);
    let Sockets { sockets, vnet, refused } = open_sockets(link.interface(), config)?;
    let longest = if vnet { PACKET_BYTES_MAX } else { longest_frame(link.interface())? };
    let mut obtained = Obtained::new(config.interface.clone(), mode(config, mtu, vnet), longest);
    obtained.queues = sockets.len();
    obtained.refused = refused;
    obtained.refused.extend(sockets.first().and_then(|(socket, _)| short_send_buffer(socket)));
    let mut queues: Vec<Box<dyn QueueOps>> = Vec::with_capacity(sockets.len());
    for (socket, ring) in sockets {
        let bell = Bell::new(&socket)?;
        queues.push(Box::new(PacketQueue {
            socket,
            rx: Rx::new(ring, longest),
            tx: Tx::new(vnet),
            link: up(config)?,
            bell,
            missed: 0,
            armed: false,
            _reservation: reservation.clone(),
        }));
    }
    Ok(Opened { queues, obtained })
}

/// The interface, which must be up.
fn up(config: &Config) -> Result<Link> {
    let interface = Interface::open(&config.interface)?;
    check_frames(&interface)?;
    let link = Link::new(interface);
    match link.health() {
        Health::Down(e) | Health::Failed(e) => Err(e.clone()),
        _ => Ok(link),
    }
}

/// Refuses an interface whose packets do not start with an Ethernet header.
fn check_frames(interface: &Interface) -> Result<()> {
    let kind = interface.hardware()?.kind;
    if kind == HARDWARE_ETHERNET || kind == HARDWARE_LOOPBACK {
        return Ok(());
    }
    let what = format!("cannot open a packet socket on {}", interface.name());
    let why = format!("its packets have no Ethernet header (hardware type {kind})");
    Err(Error::new(Code::Unsupported, what, why)
        .fix(format!("an interface of link/ether, see: ip link show {}", interface.name())))
}

/// As many blocks as possible: each is handed over after `retire` with whatever came, so where
/// frames are few, their number times `retire` is how long a reader may sleep before frames are
/// lost.
fn ring_size(config: &Config, longest: usize) -> RingSize {
    let block = (longest + BLOCK_OVERHEAD_BYTES).next_power_of_two().max(BLOCK_BYTES_MIN) as u32;
    RingSize { block_bytes: block, blocks: config.ring_bytes / block, retire_ms: config.retire_ms }
}

/// The sockets that the kernel provided.
struct Sockets {
    sockets: Vec<(PacketSocket, BlockRing)>,
    vnet: bool,
    refused: Vec<String>,
}

/// Opens the sockets of all queues, without offload headers if the kernel does not give them.
fn open_sockets(interface: &Interface, config: &Config) -> Result<Sockets> {
    let longest = if config.vnet { PACKET_BYTES_MAX } else { longest_frame(interface)? };
    let size = ring_size(config, longest);
    let options = Options {
        vnet_hdr: config.vnet,
        qdisc_bypass: config.bypass,
        promiscuous: config.promisc,
        send_buffer_bytes: SEND_BUFFER_BYTES,
    };
    let first = match open_group(interface, config, &options, &size) {
        Ok(sockets) => return Ok(Sockets { sockets, vnet: config.vnet, refused: Vec::new() }),
        Err(e) => e,
    };
    // Only what another format of the frames could cure.
    if !config.vnet || !matches!(first.code, Code::Unsupported | Code::System) {
        return Err(first);
    }
    let options = Options { vnet_hdr: false, ..options };
    // If that fails too, the first reason is the one to report.
    let Ok(sockets) = open_group(interface, config, &options, &size) else {
        return Err(first);
    };
    Ok(Sockets { sockets, vnet: false, refused: vec![format!("vnet_hdr: {}", first.why)] })
}

/// Opens the sockets of all queues; several are a group.
///
/// Each lets nothing pass until all have joined: until a socket has joined it would receive
/// everything, and while some are missing the others would have their share. Fragments are not put
/// together (`PACKET_FANOUT_FLAG_DEFRAG`): those of one datagram go to one queue as they are,
/// because of fragments the kernel takes addresses and protocol only, and a port is to receive what
/// the interface did.
fn open_group(
    interface: &Interface,
    config: &Config,
    options: &Options,
    size: &RingSize,
) -> Result<Vec<(PacketSocket, BlockRing)>> {
    let grouped = config.queues > 1;
    let filter = filter::program(config.flow.as_ref(), grouped);
    if !grouped {
        return Ok(vec![PacketSocket::open_filtered(interface, options, size, &filter)?]);
    }
    let fail = |call, errno| {
        let what = format!("cannot open {} queues on {}", config.queues, interface.name());
        Error::os(Code::System, what, call, errno)
    };
    let (mut sockets, mut group) = (Vec::with_capacity(config.queues), None);
    for _ in 0..config.queues {
        let (socket, ring) = PacketSocket::open_filtered(interface, options, size, DROP_ALL)?;
        let joined = socket.join_fanout(config.fanout, group);
        group = Some(joined.map_err(|errno| fail("PACKET_FANOUT", errno))?);
        sockets.push((socket, ring));
    }
    for (socket, _) in &sockets {
        socket.set_filter(&filter).map_err(|errno| fail("SO_ATTACH_FILTER", errno))?;
    }
    Ok(sockets)
}

/// Returns a message if the send buffer is smaller than requested.
fn short_send_buffer(socket: &PacketSocket) -> Option<String> {
    // The kernel counts its own overhead too and so doubles what it is asked for.
    let bytes = rustix::net::sockopt::socket_send_buffer_size(socket.as_fd()).ok()? / 2;
    (bytes < SEND_BUFFER_BYTES as usize).then(|| {
        let (have, want) = (bytes >> 10, SEND_BUFFER_BYTES >> 10);
        format!("send buffer {have} of {want} KiB: net.core.wmem_max, without CAP_NET_ADMIN")
    })
}

fn mode(config: &Config, mtu: u32, vnet: bool) -> String {
    let mut mode = format!("AF_PACKET TPACKET_V3, copy, MTU {mtu}");
    for (on, word) in
        [(vnet, "vnet_hdr"), (config.promisc, "promiscuous"), (config.bypass, "qdisc bypass")]
    {
        if on {
            mode.push_str(", ");
            mode.push_str(word);
        }
    }
    if let Some(flow) = &config.flow {
        mode.push_str(&format!(", only {flow}, reserved"));
    }
    if config.queues > 1 {
        mode.push_str(&format!(", fanout {}", config::word(config.fanout)));
    }
    mode
}
