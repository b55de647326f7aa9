//! AF_PACKET sockets: frames of one interface, received through a mapped ring or by calls, sent in
//! batches.
//!
//! Owner: [`PacketSocket`] owns the descriptor, [`BlockRing`] the mapping of its receive ring;
//! they are independent, and either may be dropped first. A socket without a ring is read by a
//! [`RecvBatch`]. One thread at a time.
//!
//! The socket is created for protocol 0, which receives nothing; options and ring come next, and
//! the last step binds it to the interface and to all protocols. So the ring never holds a frame of
//! another interface, never one in another format, and never one that its filter refuses.
//!
//! Sockets on one interface can form a group ([`PacketSocket::join_fanout`]), each of whose frames
//! one of them receives. A socket joins after it was bound: one that lets nothing pass until all
//! have joined receives nothing twice.
//!
//! Source: packet(7), Documentation/networking/packet_mmap.rst, net/packet/af_packet.c.

mod block_ring;
mod fanout;
mod recv_batch;
mod rx_frame;
mod send_batch;
#[cfg(test)]
mod tests;

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

pub use block_ring::{Block, BlockRing};
pub use fanout::{FANOUT_SOCKETS_MAX, Fanout, FanoutGroup};
pub use recv_batch::{RECEIVED_MAX, RecvBatch};
pub use rx_frame::{RxFrame, Vlan};
pub use send_batch::{MESSAGE_SEGMENTS_MAX, MESSAGES_MAX, SEGMENTS_MAX, SendBatch, Sending};

use crate::capability::Capabilities;
use crate::cbpf::{self, Insn};
use crate::error::check;
use crate::error::{Code, Error, Result};
use crate::netif::Interface;

/// Name of the call that requests the offload header; the reason of its error begins with it.
pub const VNET_HDR_CALL: &str = "PACKET_VNET_HDR";
/// Name of the call that makes the receive ring; the reason of its error begins with it.
pub const RX_RING_CALL: &str = "PACKET_RX_RING";

/// Frame status: the checksum field has only the pseudo-header sum (sent by this machine).
pub const STATUS_CSUM_NOT_READY: u32 = libc::TP_STATUS_CSUMNOTREADY;

/// Packet type: link-layer broadcast.
pub const PKTTYPE_BROADCAST: u8 = libc::PACKET_BROADCAST;
/// Packet type: link-layer multicast.
pub const PKTTYPE_MULTICAST: u8 = libc::PACKET_MULTICAST;
/// Packet type: addressed to another machine, received in promiscuous mode.
pub const PKTTYPE_OTHERHOST: u8 = libc::PACKET_OTHERHOST;
/// Packet type: sent by this machine; never received here, see [`PacketSocket::open`].
pub const PKTTYPE_OUTGOING: u8 = libc::PACKET_OUTGOING;

/// Longest frame of a socket without a ring.
const FRAME_BYTES_MAX: usize = 16 << 20;

/// Dimensions of a receive ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSize {
    /// Length of a block in bytes, a multiple of the page size. A frame longer than a block minus
    /// about 150 bytes is cut, so 256 KiB hold even three of the largest superframes (64 KiB).
    pub block_bytes: u32,
    /// Number of blocks in the ring, at least 1.
    pub blocks: u32,
    /// Time after which a partly filled block is delivered, at least 1; it bounds how long a single
    /// frame waits.
    pub retire_ms: u32,
}

impl Default for RingSize {
    /// Returns 16 blocks of 256 KiB (4 MiB), delivered after 1 ms at the latest.
    fn default() -> Self {
        RingSize { block_bytes: 256 << 10, blocks: 16, retire_ms: 1 }
    }
}

/// Dimensions of a receive buffer, for a socket without a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferSize {
    /// Longest frame that is received whole; the rest of a longer one is cut off.
    pub frame_bytes: usize,
    /// Bytes of memory that frames may use until they are received, with the kernel's overhead of
    /// some hundred bytes each. A value above twice `net.core.rmem_max` requires CAP_NET_ADMIN;
    /// without it, the value is reduced to that.
    pub buffer_bytes: u32,
}

/// The options of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// True if each frame has a [`VnetHdr`](crate::vnet::VnetHdr), in both directions. Without the
    /// header, only [`STATUS_CSUM_NOT_READY`] reports a missing checksum, superframes arrive
    /// without their segment size, and packets of neither kind can be sent.
    pub vnet_hdr: bool,
    /// True if frames are sent to the device's queue directly, without a qdisc. A full device then
    /// refuses frames, and `tc` and other packet sockets do not see them. The kernel does not
    /// segment superframes either: a superframe that the device cannot segment, or of its
    /// `gso_max_size` (65,536 bytes with the Ethernet header) or more, is refused with ENOBUFS at
    /// each attempt.
    pub qdisc_bypass: bool,
    /// True if the interface also receives frames for other stations while the socket is open.
    pub promiscuous: bool,
    /// Bytes of frames that may wait to be sent; 0 keeps the default (about 200 KB: three
    /// superframes). A value above `net.core.wmem_max` requires CAP_NET_ADMIN; without it, the
    /// value is reduced to that limit.
    pub send_buffer_bytes: u32,
}

/// Counts of a socket since the previous reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingStats {
    /// Frames that arrived, including dropped ones.
    pub packets: u32,
    /// Frames dropped because every block, or the receive buffer, was full.
    pub drops: u32,
    /// Number of times that the ring became full.
    pub freezes: u32,
}

/// A nonblocking socket for whole Ethernet frames, bound to one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens `interface` to send and to receive: the socket receives every frame that arrives from
    /// now on, but no frame that this machine sends.
    ///
    /// # Errors
    /// `E-PERM` without CAP_NET_RAW, `E-MEMORY` if the ring cannot be mapped, `E-POOL-SIZE` for an
    /// impossible one, `E-NODEV` if the interface is gone, `E-UNSUPPORTED` before Linux 4.20.
    pub fn open(
        interface: &Interface,
        options: &Options,
        size: &RingSize,
    ) -> Result<(PacketSocket, BlockRing)> {
        Self::open_filtered(interface, options, size, &[])
    }

    /// Opens a socket as [`PacketSocket::open`] does, for frames that `filter` passes; an empty
    /// filter passes all.
    ///
    /// # Errors
    /// As [`PacketSocket::open`]; `E-SYSTEM` for a filter that the kernel refuses.
    pub fn open_filtered(
        interface: &Interface,
        options: &Options,
        size: &RingSize,
        filter: &[Insn],
    ) -> Result<(PacketSocket, BlockRing)> {
        let socket = Self::unbound(interface, options)?;
        let ring = socket.ring(interface, options, size)?;
        socket.start(interface, options, filter)?;
        Ok((socket, ring))
    }

    /// Opens a socket as [`PacketSocket::open_filtered`] does, without a ring: a frame can be read
    /// as soon as it has arrived, by a call.
    ///
    /// # Errors
    /// As [`PacketSocket::open_filtered`]; `E-POOL-SIZE` for a frame of more than 16 MiB.
    pub fn open_unringed(
        interface: &Interface,
        options: &Options,
        size: &BufferSize,
        filter: &[Insn],
    ) -> Result<(PacketSocket, RecvBatch)> {
        if size.frame_bytes > FRAME_BYTES_MAX {
            let what = format!("cannot receive from {}", interface.name());
            let why = format!("{size:?}: a frame has at most {FRAME_BYTES_MAX} bytes");
            return Err(Error::new(Code::PoolSize, what, why));
        }
        let fail = |call| move |e| refused(interface, call, e);
        let socket = Self::unbound(interface, options)?;
        socket.set(libc::PACKET_AUXDATA, &1).map_err(fail("PACKET_AUXDATA"))?;
        socket
            .set_at(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)
            .map_err(fail("SO_TIMESTAMPNS"))?;
        // The kernel doubles the value, for its own overhead.
        let bytes = size.buffer_bytes as usize / 2;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket.fd, bytes)
            .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&socket.fd, bytes))
            .map_err(fail("SO_RCVBUF"))?;
        socket.start(interface, options, filter)?;
        Ok((socket, RecvBatch::new(size.frame_bytes, options.vnet_hdr)))
    }

    /// Binds the socket to `interface`: it receives from now on.
    fn start(&self, interface: &Interface, options: &Options, filter: &[Insn]) -> Result<()> {
        if !filter.is_empty() {
            self.set_filter(filter).map_err(|e| refused(interface, "SO_ATTACH_FILTER", e))?;
        }
        self.bind(interface, libc::ETH_P_ALL as u16)?;
        if options.promiscuous {
            self.join_promiscuous(interface)?;
        }
        Ok(())
    }

    /// Opens `interface` for sending only; the socket receives nothing.
    ///
    /// # Errors
    /// As [`PacketSocket::open`].
    pub fn open_sender(interface: &Interface, options: &Options) -> Result<PacketSocket> {
        let socket = Self::unbound(interface, options)?;
        socket.bind(interface, 0)?;
        Ok(socket)
    }

    /// Opens a socket that receives nothing: until it is dropped, `interface` also receives frames
    /// for other stations.
    ///
    /// # Errors
    /// `E-PERM` without CAP_NET_RAW, `E-NODEV` if the interface is gone.
    pub fn promiscuous(interface: &Interface) -> Result<PacketSocket> {
        let socket = Self::unbound(interface, &Options::default())?;
        socket.join_promiscuous(interface)?;
        Ok(socket)
    }

    /// Sets the filter of received packets.
    ///
    /// # Errors
    /// As [`cbpf::attach`].
    pub fn set_filter(&self, filter: &[Insn]) -> rustix::io::Result<()> {
        cbpf::attach(&self.fd, filter)
    }

    /// Returns the ring's counts since the previous call; the kernel's counters restart at 0.
    ///
    /// Cost: one syscall.
    ///
    /// # Errors
    /// None that an open socket can give.
    pub fn take_statistics(&self) -> rustix::io::Result<RingStats> {
        let mut stats = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        let mut len = size_of_val(&stats) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `stats`, whose size `len` is, and the
        // length to `len`; both are exclusively borrowed for the call.
        check(unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        })?;
        Ok(RingStats {
            packets: stats.tp_packets,
            drops: stats.tp_drops,
            freezes: stats.tp_freeze_q_cnt,
        })
    }

    /// Returns the pending error of the socket, and clears it: ENETDOWN once after the interface
    /// was set down or removed. A socket with a pending error is reported as readable.
    ///
    /// Cost: one syscall.
    pub fn take_error(&self) -> Option<Errno> {
        match rustix::net::sockopt::socket_error(&self.fd) {
            Ok(Ok(())) => None,
            Ok(Err(e)) | Err(e) => Some(e),
        }
    }

    /// Returns true if the socket is bound to `interface`, up or down. The kernel unbinds it when
    /// the interface is removed or moved to another network namespace, and does not bind it again
    /// when the interface is back. A socket whose address cannot be read counts as bound.
    ///
    /// Cost: one syscall.
    ///
    /// Source: net/packet/af_packet.c packet_notifier, packet_getname.
    #[must_use]
    pub fn is_bound_to(&self, interface: &Interface) -> bool {
        // SAFETY: sockaddr_ll consists of integers, for which all zeroes is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&address) as libc::socklen_t;
        let (fd, at) = (self.fd.as_raw_fd(), (&raw mut address).cast());
        // SAFETY: the kernel writes at most `len` bytes to `address`, whose size `len` is, and the
        // length to `len`; both are exclusively borrowed for the call.
        let ret = unsafe { libc::getsockname(fd, at, &raw mut len) };
        let is_its = |index: u32| index == interface.index();
        check(ret).is_err() || u32::try_from(address.sll_ifindex).is_ok_and(is_its)
    }

    fn unbound(interface: &Interface, options: &Options) -> Result<Self> {
        let fail = |call| move |e| refused(interface, call, e);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(fail("socket(AF_PACKET)"))?;
        let socket = PacketSocket { fd };
        let version = libc::tpacket_versions::TPACKET_V3 as c_int;
        socket.set(libc::PACKET_VERSION, &version).map_err(fail("PACKET_VERSION"))?;
        socket.set(libc::PACKET_IGNORE_OUTGOING, &1).map_err(fail("PACKET_IGNORE_OUTGOING"))?;
        if options.vnet_hdr {
            // Set this before the ring is made: the kernel refuses to change the header of an
            // existing ring.
            socket.set(libc::PACKET_VNET_HDR, &1).map_err(fail(VNET_HDR_CALL))?;
        }
        if options.qdisc_bypass {
            socket.set(libc::PACKET_QDISC_BYPASS, &1).map_err(fail("PACKET_QDISC_BYPASS"))?;
        }
        if options.send_buffer_bytes > 0 {
            let bytes = options.send_buffer_bytes as usize;
            rustix::net::sockopt::set_socket_send_buffer_size_force(&socket.fd, bytes)
                .or_else(|_| rustix::net::sockopt::set_socket_send_buffer_size(&socket.fd, bytes))
                .map_err(fail("SO_SNDBUF"))?;
        }
        Ok(socket)
    }

    fn ring(&self, interface: &Interface, options: &Options, size: &RingSize) -> Result<BlockRing> {
        let bytes = size.block_bytes as usize;
        let whole_pages = bytes > 0 && bytes.is_multiple_of(rustix::param::page_size());
        let fits = size.block_bytes.checked_mul(size.blocks).is_some_and(|n| n > 0);
        if !whole_pages || !fits || size.retire_ms == 0 {
            let what = format!("cannot make a receive ring for {}", interface.name());
            let why = format!("{size:?}: blocks are whole pages, less than 4 GiB together");
            return Err(Error::new(Code::PoolSize, what, why));
        }
        // Version 3 packs frames of any length into a block. It only checks that the number of
        // frames times their size is the whole ring, so one frame for each block is always right
        // and has no other effect.
        let request = libc::tpacket_req3 {
            tp_block_size: size.block_bytes,
            tp_block_nr: size.blocks,
            tp_frame_size: size.block_bytes,
            tp_frame_nr: size.blocks,
            tp_retire_blk_tov: size.retire_ms,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        self.set(libc::PACKET_RX_RING, &request)
            .map_err(|e| refused(interface, RX_RING_CALL, e))?;
        BlockRing::map(self.fd.as_fd(), bytes, size.blocks, options.vnet_hdr)
            .map_err(|e| refused(interface, "mmap", e))
    }

    fn bind(&self, interface: &Interface, protocol: u16) -> Result<()> {
        // SAFETY: sockaddr_ll consists of integers, for which all zeroes is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = index(interface)?;
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the kernel reads `len` bytes of `address`, whose size `len` is.
        let ret = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) };
        check(ret).map(drop).map_err(|e| refused(interface, "bind", e))
    }

    fn join_promiscuous(&self, interface: &Interface) -> Result<()> {
        let member = libc::packet_mreq {
            mr_ifindex: index(interface)?,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::PACKET_ADD_MEMBERSHIP, &member)
            .map_err(|e| refused(interface, "PACKET_ADD_MEMBERSHIP", e))
    }

    fn set<T: Copy>(&self, option: c_int, value: &T) -> rustix::io::Result<()> {
        self.set_at(libc::SOL_PACKET, option, value)
    }

    fn set_at<T: Copy>(&self, level: c_int, option: c_int, value: &T) -> rustix::io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel reads at most `len` bytes of `value`, whose size `len` is.
        check(unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                len,
            )
        })
        .map(drop)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn index(interface: &Interface) -> Result<c_int> {
    c_int::try_from(interface.index()).map_err(|_| refused(interface, "bind", Errno::NODEV))
}

fn refused(interface: &Interface, call: &str, errno: Errno) -> Error {
    let what = format!("cannot open a packet socket on {}", interface.name());
    match errno {
        Errno::PERM | Errno::ACCESS => {
            Error::os(Code::Permission, what, call, errno).fix(Capabilities::NET_RAW.remedy())
        }
        Errno::NODEV | Errno::NXIO => {
            Error::os(Code::NoDevice, what, call, errno).fix(crate::netif::FIND_INTERFACE)
        }
        Errno::NOMEM | Errno::NOBUFS => Error::os(Code::Memory, what, call, errno)
            .fix("a smaller ring or buffer, or fewer queues"),
        Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT | Errno::NOPROTOOPT => {
            Error::os(Code::Unsupported, what, call, errno)
                .fix("Linux 4.20 or later, built with CONFIG_PACKET")
        }
        _ => Error::os(Code::System, what, call, errno),
    }
}
