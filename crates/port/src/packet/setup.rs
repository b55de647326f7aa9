//! Opening: the interface, the socket, and what they gave.

use std::os::fd::AsFd;

use linerate_skb::{Code, Error, Result};
use linerate_sys::netif::{HARDWARE_ETHERNET, HARDWARE_LOOPBACK, Interface};
use linerate_sys::packet::{BlockRing, Options, PacketSocket, RingSize};

use crate::driver::Opened;
use crate::host::{Bell, Link, PACKET_BYTES_MAX};
use crate::obtained::Obtained;
use crate::queue::Health;

use super::PacketQueue;
use super::config::Config;
use super::rx::Rx;
use super::tx::Tx;

/// Frames on their way out; the kernel's default of 200 KB holds three superframes.
const SEND_BUFFER_BYTES: u32 = 4 << 20;
/// A block must hold the longest frame, and the kernel takes powers of two at no loss.
const BLOCK_BYTES_MIN: usize = 32 << 10;
/// What the kernel writes around the first frame of a block, rounded up.
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
    let interface = Interface::open(&config.interface)?;
    check_frames(&interface)?;
    let link = Link::new(interface);
    if let Health::Down(e) | Health::Failed(e) = link.health() {
        return Err(e.clone());
    }
    let mtu = link.interface().mtu_bytes()?;
    let (socket, ring, vnet, refused) = open_socket(link.interface(), config)?;
    let longest = if vnet { PACKET_BYTES_MAX } else { longest_frame(link.interface())? };
    let mode = mode(config, mtu, vnet);
    let mut obtained = Obtained::new(config.interface.clone(), mode, longest);
    obtained.refused = refused;
    obtained.refused.extend(short_send_buffer(&socket));
    let bell = Bell::new(&socket)?;
    let queue = PacketQueue {
        socket,
        rx: Rx::new(ring, longest),
        tx: Tx::new(vnet),
        link,
        bell,
        armed: false,
    };
    Ok(Opened::single(queue, obtained))
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

/// Opens the socket, without offload headers if the kernel does not give them.
fn open_socket(
    interface: &Interface,
    config: &Config,
) -> Result<(PacketSocket, BlockRing, bool, Vec<String>)> {
    let longest = if config.vnet { PACKET_BYTES_MAX } else { longest_frame(interface)? };
    let size = ring_size(config, longest);
    let options = Options {
        vnet_hdr: config.vnet,
        qdisc_bypass: config.bypass,
        promiscuous: config.promisc,
        send_buffer_bytes: SEND_BUFFER_BYTES,
    };
    let first = match PacketSocket::open(interface, &options, &size) {
        Ok((socket, ring)) => return Ok((socket, ring, config.vnet, Vec::new())),
        Err(e) => e,
    };
    // Only what another format of the frames could cure.
    if !config.vnet || !matches!(first.code, Code::Unsupported | Code::System) {
        return Err(first);
    }
    let options = Options { vnet_hdr: false, ..options };
    // If that fails too, the first reason is the one to report.
    let Ok((socket, ring)) = PacketSocket::open(interface, &options, &size) else {
        return Err(first);
    };
    Ok((socket, ring, false, vec![format!("vnet_hdr: {}", first.why)]))
}

/// What to say if the send buffer is smaller than asked for.
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
    mode
}
