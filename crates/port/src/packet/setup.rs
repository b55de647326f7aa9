//! Opening of the port: the interface, the sockets, and their properties.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use linerate_skb::{Code, Error, Result};
use linerate_sys::cbpf::{DROP_ALL, Insn};
use linerate_sys::netif::{HARDWARE_LOOPBACK, IfName, Interface};
use linerate_sys::packet::{
    BufferSize, Options, PacketSocket, RX_RING_CALL, RingSize, VNET_HDR_CALL,
};
use linerate_sys::rtnl::LinkInfo;
use linerate_wire::VLAN_BYTES;

use crate::caps::Gathers;
use crate::doctor::interface::other_end;
use crate::doctor::kernel;
use crate::driver::Opened;
use crate::host::filter::Filter;
use crate::host::{
    Bell, HostQueue, Link, Losses, PACKET_BYTES_MAX, Reservation, check_ethernet, longest_frame,
};
use crate::obtained::Obtained;
use crate::queue::QueueOps;

use super::config::{self, Config};
use super::filter;
use super::rx::{Limits, Rx, Source};
use super::tx::Tx;
use super::{Device, Idle};

/// Send buffer for outgoing frames; the kernel's default of 200 KB holds three superframes.
const SEND_BUFFER_BYTES: u32 = 4 << 20;
/// Smallest block length: a block must hold the longest frame, and the kernel allocates powers of
/// two without waste.
const BLOCK_BYTES_MIN: usize = 32 << 10;
/// Bytes that the kernel writes around the first frame of a block, rounded up.
const BLOCK_OVERHEAD_BYTES: usize = 256;
/// Kernel from which on the offload header can say superframes of UDP.
///
/// Source: include/linux/virtio_net.h `virtio_net_hdr_to_skb`, VIRTIO_NET_HDR_GSO_UDP_L4.
const USO: (u32, u32) = (6, 2);
/// Calls that may fail because of the offload header: the one that requests it, and the one that
/// makes the ring, whose blocks are larger with it.
const HEADER_CALLS: [&str; 2] = [VNET_HDR_CALL, RX_RING_CALL];
/// Settings of an interface that sends no superframes. Those of UDP have a setting of their own,
/// which `gso` does not include.
const SENDS_NONE: &str = "tso off gso off tx-udp-segmentation off";
/// Longest frame of an interface with the usual MTU, including two tags.
const FRAME_BYTES_MIN: usize = 1522;

/// Returns the length of the longest packet that the port delivers.
pub(super) fn packet_max_bytes(config: &Config) -> Result<usize> {
    longest(&Interface::find(&config.interface)?, config.vnet)
}

/// Returns the length of the longest frame of `interface`, which is larger with offload headers.
fn longest(interface: &Interface, vnet: bool) -> Result<usize> {
    if vnet {
        return Ok(PACKET_BYTES_MAX);
    }
    // Devices let two tags pass beyond the MTU: the kernel has taken the outer one out of the
    // frame.
    let longest = longest_frame(interface)? + VLAN_BYTES;
    Ok(longest.clamp(FRAME_BYTES_MIN, PACKET_BYTES_MAX))
}

/// Opens a packet port.
pub(super) fn open(config: &Config) -> Result<Opened> {
    let link = Link::open(&config.interface)?;
    let name = link.interface().name();
    check_ethernet(link.interface(), || format!("cannot open a packet socket on {name}"))?;
    let mtu = link.interface().mtu_bytes()?;
    // Reserve before the port receives packets that the host would answer.
    let reserve = |flow| Reservation::of(flow, link.interface());
    let reservation = config.filter.flow().map(reserve).transpose()?.map(Arc::new);
    let Sockets { sockets, vnet, refused } = open_sockets(link.interface(), config)?;
    let longest = longest(link.interface(), vnet)?;
    let obtained = Obtained::new(config.interface.clone(), mode(config, mtu, vnet), longest);
    let mut obtained = obtained.mac_of(link.interface());
    obtained.queues = sockets.len();
    obtained.filter = config.filter.chosen();
    obtained.refused = refused;
    obtained.refused.extend(superframes(link.interface(), vnet));
    obtained.refused.extend(link.without_carrier());
    if let Some((socket, source)) = sockets.first() {
        obtained.refused.extend(short_send_buffer(socket));
        obtained.refused.extend(short_receive_buffer(socket, source, config));
    }
    // An older kernel may have it by a backport. The port then cuts superframes that the kernel
    // could cut.
    let has_uso = kernel::version().is_some_and(|version| version >= USO);
    let limits = Limits { longest, mtu_bytes: mtu as usize };
    // Without a ring, `retire` is 0: the socket signals each packet.
    let RingSize { block_bytes: bytes, retire_ms, .. } = ring_size(config, longest);
    let gathers = Gathers { time: Duration::from_millis(retire_ms.into()), bytes };
    let mut queues: Vec<Box<dyn QueueOps>> = Vec::with_capacity(sockets.len());
    for (socket, source) in sockets {
        let (link, bell) = (Link::open(&config.interface)?, Bell::new(&socket)?);
        let bytes = receive_bytes(&socket, &source, config);
        let (rx, tx) = (Rx::new(source, bytes, limits), Tx::new(vnet, config.bypass));
        let (idle, _reservation) = (Idle::default(), reservation.clone());
        let (rx_missed, losses) = (0, Losses::default());
        let device =
            Device { socket, rx, tx, has_uso, gathers, rx_missed, losses, idle, _reservation };
        queues.push(Box::new(HostQueue::new(link, bell, device)));
    }
    Ok(Opened { queues, obtained })
}

/// Returns a ring of as many blocks as possible. The kernel delivers each block after `retire`,
/// even if it is almost empty: with few frames, a reader may sleep for `retire` times the number of
/// blocks before frames are lost.
fn ring_size(config: &Config, longest: usize) -> RingSize {
    let block = (longest + BLOCK_OVERHEAD_BYTES).next_power_of_two().max(BLOCK_BYTES_MIN) as u32;
    RingSize { block_bytes: block, blocks: config.ring_bytes / block, retire_ms: config.retire_ms }
}

/// The opened sockets, with the options that the kernel accepted.
struct Sockets {
    sockets: Vec<(PacketSocket, Source)>,
    vnet: bool,
    refused: Vec<String>,
}

/// Opens the sockets of all queues; if the kernel does not support offload headers, opens them
/// without.
fn open_sockets(interface: &Interface, config: &Config) -> Result<Sockets> {
    let longest = longest(interface, config.vnet)?;
    let options = Options {
        vnet_hdr: config.vnet,
        qdisc_bypass: config.bypass,
        promiscuous: config.promisc,
        send_buffer_bytes: SEND_BUFFER_BYTES,
    };
    let first = match open_group(interface, config, &options, longest) {
        Ok(sockets) => return Ok(Sockets { sockets, vnet: config.vnet, refused: Vec::new() }),
        Err(e) => e,
    };
    if !config.vnet || !may_be_of_header(&first) {
        return Err(first);
    }
    let options = Options { vnet_hdr: false, ..options };
    // If the second attempt fails too, report the error of the first.
    let Ok(sockets) = open_group(interface, config, &options, longest) else {
        return Err(first);
    };
    Ok(Sockets { sockets, vnet: false, refused: vec![format!("vnet_hdr: {}", first.why)] })
}

/// Returns true for an error that the offload header may have caused.
fn may_be_of_header(e: &Error) -> bool {
    let is_of = |call: &str| e.why.strip_prefix(call).is_some_and(|why| why.starts_with(": "));
    matches!(e.code, Code::Unsupported | Code::System) && HEADER_CALLS.into_iter().any(is_of)
}

/// Opens the sockets of all queues; several sockets form a fanout group.
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
    longest: usize,
) -> Result<Vec<(PacketSocket, Source)>> {
    let grouped = config.queues > 1;
    let filter = filter::program(&config.filter, grouped);
    if !grouped {
        return Ok(vec![open_one(interface, config, options, longest, &filter)?]);
    }
    let fail = |call, errno| {
        let what = format!("cannot open {} queues on {}", config.queues, interface.name());
        Error::os(Code::System, what, call, errno)
    };
    let (mut sockets, mut group) = (Vec::with_capacity(config.queues), None);
    for _ in 0..config.queues {
        let (socket, source) = open_one(interface, config, options, longest, DROP_ALL)?;
        let joined = socket.join_fanout(config.fanout, group);
        group = Some(joined.map_err(|errno| fail("PACKET_FANOUT", errno))?);
        sockets.push((socket, source));
    }
    for (socket, _) in &sockets {
        socket.set_filter(&filter).map_err(|errno| fail("SO_ATTACH_FILTER", errno))?;
    }
    Ok(sockets)
}

/// Opens the socket of a queue, with a ring unless `retire` is 0.
fn open_one(
    interface: &Interface,
    config: &Config,
    options: &Options,
    longest: usize,
    filter: &[Insn],
) -> Result<(PacketSocket, Source)> {
    if config.retire_ms == 0 {
        let size = BufferSize { frame_bytes: longest, buffer_bytes: config.ring_bytes };
        let (socket, batch) = PacketSocket::open_unringed(interface, options, &size, filter)?;
        return Ok((socket, Source::Socket(batch)));
    }
    let size = ring_size(config, longest);
    let (socket, ring) = PacketSocket::open_filtered(interface, options, &size, filter)?;
    Ok((socket, Source::Ring(ring)))
}

/// Returns a note on the superframes that arrive at a port without offload headers, with the
/// command that prevents them.
fn superframes(interface: &Interface, vnet: bool) -> Option<String> {
    if vnet {
        return None;
    }
    let info = LinkInfo::of(interface).unwrap_or_default();
    let other = other_end(&info);
    let is_loopback = interface.hardware().is_ok_and(|it| it.kind == HARDWARE_LOOPBACK);
    let sender = if is_loopback { Some(interface) } else { other.as_ref() };
    // A card that merges nothing delivers no superframes.
    let is_card = info.kind.is_empty() && sender.is_none();
    if is_card && interface.merging().is_ok_and(|merging| !merging.by_kernel) {
        return None;
    }
    let command = prevention(&info.kind, interface.name().as_str(), sender.map(Interface::name));
    Some(format!(
        "vnet: it is off, so superframes that arrive are dropped as too_long, and those not longer than the MTU leave as one packet{command}"
    ))
}

/// Returns the command that prevents superframes at the interface `name`, with the words before it;
/// `sender` is the interface that sends them, if it is in this namespace.
fn prevention(kind: &str, name: &str, sender: Option<IfName>) -> String {
    match (kind, sender) {
        (_, Some(sender)) => format!(": ethtool -K {sender} {SENDS_NONE}"),
        ("", None) => format!(": ethtool -K {name} gro off"),
        ("veth" | "netkit" | "tun", None) => {
            format!(". On the other end: ethtool -K IFACE {SENDS_NONE}")
        }
        // On top of other interfaces: those of senders, and cards that merge.
        (_, None) => format!(
            ". On senders of this machine {SENDS_NONE}, and on a card below it: ethtool -K IFACE gro off"
        ),
    }
}

/// Returns the bytes of the ring, or those of the socket's receive buffer.
fn receive_bytes(socket: &PacketSocket, source: &Source, config: &Config) -> usize {
    let asked = config.ring_bytes as usize;
    match source {
        Source::Ring(_) => asked,
        Source::Socket(_) => {
            rustix::net::sockopt::socket_recv_buffer_size(socket.as_fd()).unwrap_or(asked)
        }
    }
}

/// Returns a message if the receive buffer of a socket without a ring is smaller than requested.
fn short_receive_buffer(socket: &PacketSocket, source: &Source, config: &Config) -> Option<String> {
    let bytes = receive_bytes(socket, source, config);
    (bytes < config.ring_bytes as usize).then(|| {
        let (have, want) = (bytes >> 10, config.ring_bytes >> 10);
        format!("receive buffer {have} of {want} KiB: net.core.rmem_max, without CAP_NET_ADMIN")
    })
}

/// Returns a message if the send buffer is smaller than requested.
fn short_send_buffer(socket: &PacketSocket) -> Option<String> {
    // The kernel doubles the requested size for its own overhead, so halve it.
    let bytes = rustix::net::sockopt::socket_send_buffer_size(socket.as_fd()).ok()? / 2;
    (bytes < SEND_BUFFER_BYTES as usize).then(|| {
        let (have, want) = (bytes >> 10, SEND_BUFFER_BYTES >> 10);
        format!("send buffer {have} of {want} KiB: net.core.wmem_max, without CAP_NET_ADMIN")
    })
}

fn mode(config: &Config, mtu: u32, vnet: bool) -> String {
    let ring = if config.retire_ms == 0 { "without a ring" } else { "TPACKET_V3" };
    let mut mode = format!("AF_PACKET {ring}, copy, MTU {mtu}");
    for (on, word) in
        [(vnet, "vnet_hdr"), (config.promisc, "promiscuous"), (config.bypass, "qdisc bypass")]
    {
        if on {
            mode.push_str(", ");
            mode.push_str(word);
        }
    }
    match (&config.filter, config.filter.flow()) {
        (Filter::All | Filter::Nothing, _) => {}
        (_, Some(flow)) => mode.push_str(&format!(", only {flow}, reserved")),
        (Filter::Only(one), _) => {
            mode.push_str(&format!(", only {one}, which the host receives, too"))
        }
        (not, _) => mode.push_str(&format!(", {not}")),
    }
    if config.queues > 1 {
        mode.push_str(&format!(", fanout {}", config::word(config.fanout)));
    }
    mode
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn superframes_are_prevented_where_they_are_made() {
        let off = "tso off gso off tx-udp-segmentation off";
        let sender = Some(IfName::new("v1").unwrap());
        assert_eq!(prevention("veth", "v0", sender), format!(": ethtool -K v1 {off}"));
        assert_eq!(prevention("", "eth0", None), ": ethtool -K eth0 gro off");
        let elsewhere = prevention("veth", "v0", None);
        assert_eq!(elsewhere, format!(". On the other end: ethtool -K IFACE {off}"));
        let bridge = prevention("bridge", "b0", None);
        assert!(bridge.contains(off) && bridge.ends_with(": ethtool -K IFACE gro off"), "{bridge}");
    }

    #[test]
    fn only_errors_of_calls_that_concern_the_offload_header_make_the_port_open_without_it() {
        for (code, call, expected) in [
            (Code::Unsupported, "PACKET_VNET_HDR", true),
            (Code::System, "PACKET_RX_RING", true),
            (Code::Memory, "PACKET_RX_RING", false),
            (Code::System, "PACKET_FANOUT", false),
            (Code::Unsupported, "socket(AF_PACKET)", false),
        ] {
            let e = Error::os(code, "cannot open", call, Errno::INVAL);
            assert_eq!(may_be_of_header(&e), expected, "{e}");
        }
    }
}
