//! AF_XDP sockets: one queue of one interface, with frames in memory that the kernel reads and
//! writes.
//!
//! ```text
//!   fill ──► kernel ──► rx        addresses of frames to receive into, then descriptors of packets
//!   tx   ──► kernel ──► completion   descriptors to send, then addresses of frames that were sent
//! ```
//!
//! Owner: [`XdpSocket`] owns the descriptor, each [`RingMap`] one mapping of it; a mapping keeps
//! the ring alive without the socket. One thread at a time.
//!
//! Source: Documentation/networking/af_xdp.rst, net/xdp/xsk.c, include/uapi/linux/if_xdp.h.

mod map;
mod refused;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpMmapOffsets,
    XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, getrlimit};

use crate::error::Result;
use crate::error::check;
use crate::mem::{Huge, Region};

pub use map::RingMap;
pub use refused::{is_limit_of_locked_memory, is_refused};
pub use rustix::net::xdp::XdpStatistics;

use refused::{beyond_limit, check_cgroup, refused};

/// Number of counts of SO_MEMINFO; the next is the index of the bytes that wait to be sent.
///
/// Source: include/uapi/linux/sock_diag.h `SK_MEMINFO_VARS`, `SK_MEMINFO_WMEM_ALLOC`.
const MEMINFO_VARS: usize = 9;
const WMEM_ALLOC: usize = 2;
/// Bytes that the kernel keeps free before a received packet, in addition to the requested
/// headroom.
///
/// Source: `XDP_PACKET_HEADROOM`, include/uapi/linux/bpf.h.
pub const HEADROOM_BYTES: u32 = 256;
/// Flag: the packet continues in the next descriptor.
pub const CONTINUED: u32 = 1;
/// The remedy for a kernel that does not poll devices within a socket's system calls.
const BUSY_POLL_FIX: &str = "Linux 5.11 or later, built with CONFIG_NET_RX_BUSY_POLL";

/// A packet, or a part of one, in a receive or transmit ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Desc {
    /// Offset of the first byte from the start of the memory.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// [`CONTINUED`] or 0.
    pub options: u32,
}

/// One of the four rings of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// The ring of frames to receive into: addresses.
    Fill,
    /// The ring of frames that were sent: addresses.
    Completion,
    /// The ring of received packets.
    Rx,
    /// The ring of packets to send.
    Tx,
}

/// The options for binding a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// Index of the interface.
    pub interface: u32,
    /// Number of the queue.
    pub queue: u32,
    /// True if the device reads and writes the frames itself; else the kernel copies.
    pub zero_copy: bool,
    /// True if a packet may have several frames.
    pub several: bool,
}

/// An AF_XDP socket, which may be bound to a queue or not.
#[derive(Debug)]
pub struct XdpSocket {
    fd: OwnedFd,
}

impl XdpSocket {
    /// Returns a socket that is not bound to an interface yet.
    ///
    /// # Errors
    /// `E-PERM` without CAP_NET_RAW, `E-UNSUPPORTED` in a kernel without AF_XDP.
    pub fn new() -> Result<XdpSocket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None);
        fd.map(|fd| XdpSocket { fd }).map_err(|e| refused("socket(AF_XDP)", e))
    }

    /// Registers the memory that contains the rings' frames; the region's pages stay resident.
    ///
    /// # Errors
    /// `E-MEMORY` beyond what may be locked, which names the limit, and what helps against it;
    /// `E-SYSTEM` for chunks that the kernel does not take.
    ///
    /// # Safety
    /// While the socket or a socket that shares its memory is open, the kernel writes to every
    /// chunk whose address was put into a fill ring, until the chunk comes back: no code may read
    /// or write it meanwhile, nor write one that is in a transmit ring.
    pub unsafe fn register(
        &self,
        region: &Region,
        chunk_bytes: u32,
        headroom_bytes: u32,
    ) -> Result<()> {
        check_cgroup(region)?;
        let umem = XdpUmemReg {
            addr: region.base().as_ptr().expose_provenance() as u64,
            len: region.len() as u64,
            chunk_size: chunk_bytes,
            headroom: headroom_bytes,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&self.fd, umem).map_err(|e| match e {
            Errno::NOBUFS => beyond_limit(region.len(), &getrlimit(Resource::Memlock)),
            e => refused("XDP_UMEM_REG", e),
        })
    }

    /// Makes a ring of `len` descriptors, a power of two. Fill and completion rings belong to the
    /// interface's queue, and must exist before the socket is bound.
    ///
    /// # Errors
    /// `E-SYSTEM`, `E-MEMORY`.
    pub fn make(&self, ring: Ring, len: u32) -> Result<()> {
        match ring {
            Ring::Fill => sockopt::set_xdp_umem_fill_ring_size(&self.fd, len),
            Ring::Completion => sockopt::set_xdp_umem_completion_ring_size(&self.fd, len),
            Ring::Rx => sockopt::set_xdp_rx_ring_size(&self.fd, len),
            Ring::Tx => sockopt::set_xdp_tx_ring_size(&self.fd, len),
        }
        .map_err(|e| refused("setsockopt(SOL_XDP)", e))
    }

    /// Sets the number of packets that one call of [`XdpSocket::wake_tx`] sends in copy mode,
    /// instead of 32: at most the length of the transmit ring, which must exist already. Kernels
    /// before 6.17 do not support this and send 32.
    ///
    /// Source: net/xdp/xsk.c, `XDP_MAX_TX_SKB_BUDGET`.
    pub fn set_tx_budget(&self, packets: u32) {
        const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
        let (at, bytes) = ((&raw const packets).cast(), size_of::<u32>() as libc::socklen_t);
        let (fd, level) = (self.fd.as_raw_fd(), libc::SOL_XDP);
        // If the kernel refuses this, the budget stays as it was.
        // SAFETY: the kernel reads the four bytes of `packets`, which outlives the call.
        let _ = unsafe { libc::setsockopt(fd, level, XDP_MAX_TX_SKB_BUDGET, at, bytes) };
    }

    /// Maps a ring of `len` descriptors, made by [`XdpSocket::make`].
    ///
    /// # Errors
    /// `E-SYSTEM`, `E-MEMORY`. Once the socket is bound, EBUSY: Linux 6.1 maps rings before that
    /// only.
    ///
    /// Source: net/xdp/xsk.c, `xsk_mmap`.
    pub fn map(&self, ring: Ring, len: u32) -> Result<RingMap> {
        let offsets: XdpMmapOffsets =
            sockopt::xdp_mmap_offsets(&self.fd).map_err(|e| refused("XDP_MMAP_OFFSETS", e))?;
        let (at, page, entry) = match ring {
            Ring::Fill => (offsets.fr, XDP_UMEM_PGOFF_FILL_RING, size_of::<u64>()),
            Ring::Completion => (offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, size_of::<u64>()),
            Ring::Rx => (offsets.rx, XDP_PGOFF_RX_RING, size_of::<Desc>()),
            Ring::Tx => (offsets.tx, XDP_PGOFF_TX_RING, size_of::<Desc>()),
        };
        let bytes = at.desc as usize + len as usize * entry;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other mapping.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                prot,
                flags | MapFlags::POPULATE,
                &self.fd,
                page,
            )
        };
        let base = base.map_err(|e| refused("mmap", e))?;
        let base = NonNull::new(base).ok_or_else(|| refused("mmap", Errno::FAULT))?;
        Ok(RingMap { base, bytes, at })
    }

    /// Binds the socket, with the memory that was registered with it or with `shared`.
    ///
    /// # Errors
    /// The system's own: EBUSY while another socket has the queue, EOPNOTSUPP or EINVAL for a mode
    /// that the driver does not have.
    pub fn bind(&self, to: &Binding, shared: Option<&XdpSocket>) -> rustix::io::Result<()> {
        let mut flags = SocketAddrXdpFlags::empty();
        if shared.is_some() {
            // The kernel takes the mode and the wake-up flag from the first socket, and refuses
            // them here.
            flags |= SocketAddrXdpFlags::XDP_SHARED_UMEM;
        } else {
            flags |= SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
            flags |= match to.zero_copy {
                true => SocketAddrXdpFlags::XDP_ZEROCOPY,
                false => SocketAddrXdpFlags::XDP_COPY,
            };
            flags.set(SocketAddrXdpFlags::XDP_USE_SG, to.several);
        }
        let addr = SocketAddrXdp::new(flags, to.interface, to.queue);
        match shared {
            None => rustix::net::bind(&self.fd, &addr),
            Some(first) => {
                let shared_umem_fd = first.fd.as_fd();
                rustix::net::bind(&self.fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd })
            }
        }
    }

    /// Returns true if the device reads and writes the frames itself.
    ///
    /// # Errors
    /// None that an open socket can give.
    pub fn is_zero_copy(&self) -> rustix::io::Result<bool> {
        let options = sockopt::xdp_options(&self.fd)?;
        Ok(options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Makes the kernel poll the device within this socket's system calls, for `usecs` and at most
    /// `budget` packets. Between the calls the device's interrupts stay off only with
    /// `gro_flush_timeout` and `napi_defer_hard_irqs`.
    ///
    /// # Errors
    /// `E-PERM` without CAP_NET_ADMIN, `E-UNSUPPORTED` before Linux 5.11.
    ///
    /// Source: Documentation/networking/napi.rst, "busy polling".
    pub fn prefer_busy_poll(&self, usecs: u32, budget: u32) -> Result<()> {
        let options = [
            (libc::SO_PREFER_BUSY_POLL, 1),
            (libc::SO_BUSY_POLL, usecs),
            (libc::SO_BUSY_POLL_BUDGET, budget),
        ];
        for (option, value) in options {
            let (at, bytes) = ((&raw const value).cast(), size_of::<u32>() as libc::socklen_t);
            let fd = self.fd.as_raw_fd();
            // SAFETY: the kernel reads the four bytes of `value`, which outlives the call.
            let done = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, at, bytes) };
            check(done).map_err(|e| {
                let error = refused("setsockopt(SO_BUSY_POLL)", e);
                match e {
                    Errno::NOPROTOOPT => error.fix(BUSY_POLL_FIX),
                    _ => error,
                }
            })?;
        }
        Ok(())
    }

    /// Returns the kernel's counts since the socket was opened.
    ///
    /// # Errors
    /// None that an open socket can give.
    pub fn statistics(&self) -> rustix::io::Result<XdpStatistics> {
        sockopt::xdp_statistics(&self.fd)
    }

    /// Returns true while the kernel holds packets of this socket that it took from the transmit
    /// ring in copy mode and has not completed; also if the number is unknown.
    ///
    /// Where a device takes packets in pages (IFF_TX_SKB_NO_LINEAR, as virtio_net), these are read
    /// where they lie in the umem until then.
    ///
    /// Source: net/xdp/xsk.c `xsk_build_skb_zerocopy`, `xsk_destruct_skb`; net/core/sock.c
    ///         `sk_get_meminfo`.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        let (mut counts, size) = ([0u32; MEMINFO_VARS], size_of::<[u32; MEMINFO_VARS]>());
        let (fd, option, mut len) =
            (self.fd.as_raw_fd(), libc::SO_MEMINFO, size as libc::socklen_t);
        let at = (&raw mut counts).cast();
        // SAFETY: the kernel writes at most `len` bytes to `counts`, whose size `len` is, and the
        // length to `len`; both are exclusively borrowed for the call.
        let done = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, at, &raw mut len) };
        check(done).is_err() || counts[WMEM_ALLOC] > 0
    }

    /// Notifies the kernel of the transmit ring.
    ///
    /// In copy mode a call sends up to as many packets as [`XdpSocket::set_tx_budget`] has set, 32
    /// before Linux 6.17, and says EAGAIN with more to come; EBUSY says that the device dropped a
    /// packet, ENOBUFS that it has no place now.
    ///
    /// # Errors
    /// Those, and ENETDOWN or ENXIO for an interface that is down or gone.
    ///
    /// Source: net/xdp/xsk.c `__xsk_generic_xmit`.
    pub fn wake_tx(&self) -> rustix::io::Result<()> {
        rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT).map(drop)
    }

    /// Notifies the kernel of the fill ring.
    ///
    /// # Errors
    /// ENETDOWN or ENXIO for an interface that is down or gone.
    pub fn wake_rx(&self) -> rustix::io::Result<()> {
        rustix::net::recv(&self.fd, &mut [0u8; 0][..], RecvFlags::DONTWAIT).map(drop)
    }

    /// Returns the pending error of the socket, and clears it.
    #[must_use]
    pub fn take_error(&self) -> Option<Errno> {
        match sockopt::socket_error(&self.fd) {
            Ok(Ok(())) => None,
            Ok(Err(e)) | Err(e) => Some(e),
        }
    }
}

/// Registers `bytes` of memory in frames of 2048 bytes, and releases them: tests whether the kernel
/// accepts a pool of that size.
///
/// # Errors
/// As [`XdpSocket::new`]; `E-MEMORY` beyond what may be locked, or there is.
///
/// Cost: every page is made and zeroed. The kernel may take a moment longer to give them back.
pub fn try_memory(bytes: usize) -> Result<()> {
    const FRAME_BYTES: u32 = 2048;
    let socket = XdpSocket::new()?;
    let region = Region::new("linerate trial", bytes, Huge::Try)?;
    // SAFETY: the socket has no ring, so no ring can name a frame. The socket is dropped in this
    // function, before the region is unmapped, and no other code gets it.
    let done = unsafe { socket.register(&region, FRAME_BYTES, 0) };
    drop(socket);
    done
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
