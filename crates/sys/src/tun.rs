//! TAP: a network interface of the host whose other end is a descriptor.
//!
//! Owner: [`Tap`], of the descriptor; of the interface as well if it was created here and nobody
//! made it persistent: then it goes when the descriptor is closed. One thread at a time reads.
//!
//! A multi-queue interface has several descriptors, a queue each. The host chooses the queue by the
//! flow, and one that it has received from a queue is sent to the same: a hash otherwise. A queue
//! is detached by closing it; what waits in it is lost, and the others have its flows from then on.
//!
//! Each read and each write is one frame behind its offload header, or without one:
//!
//! ```text
//! | VnetHdr 10 | destination MAC ... |
//! ```
//!
//! The header is virtio's first form, of 10 bytes. The 12-byte form adds a count of buffers that
//! means something to a virtqueue only; with 10 the same header serves TAP and packet sockets.
//!
//! Source: Documentation/networking/tuntap.rst; drivers/net/tun.c.

use std::ffi::{c_int, c_short, c_uint, c_ulong};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{self, Errno};

use crate::capability::Capabilities;
use crate::error::check;
use crate::error::{Code, Error, Result};
use crate::netif::{IfName, Interface, NetFolder, ioctl};
use crate::packet::MESSAGE_SEGMENTS_MAX;
use crate::vnet::VNET_HDR_BYTES;

#[cfg(test)]
mod tests;

const DEVICE: &str = "/dev/net/tun";
const OPEN: &str = "open(/dev/net/tun)";

/// Work that the kernel may leave undone in frames that are read. Frames that are written may leave
/// any of it to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TapOffloads {
    /// Checksums (`TUN_F_CSUM`).
    pub csum: bool,
    /// Cutting TCP superframes (`TUN_F_TSO4`, `TSO6`, `TSO_ECN`).
    pub tso: bool,
    /// Cutting UDP superframes (`TUN_F_USO4`, `USO6`); Linux 6.2 or later.
    pub uso: bool,
}

impl TapOffloads {
    /// Every offload that this crate has a name for.
    pub const ALL: TapOffloads = TapOffloads { csum: true, tso: true, uso: true };
    /// No offloads: all frames are complete.
    pub const NONE: TapOffloads = TapOffloads { csum: false, tso: false, uso: false };

    fn bits(self) -> c_uint {
        let mut bits = 0;
        if self.csum {
            bits |= libc::TUN_F_CSUM;
        }
        if self.tso {
            bits |= libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        }
        if self.uso {
            bits |= libc::TUN_F_USO4 | libc::TUN_F_USO6;
        }
        bits
    }

    /// Returns the next smaller set to try, if there is one; superframes require checksum offload,
    /// so checksums are dropped last.
    fn less(self) -> Option<Self> {
        match self {
            TapOffloads { uso: true, .. } => Some(TapOffloads { uso: false, ..self }),
            TapOffloads { tso: true, .. } => Some(TapOffloads { tso: false, ..self }),
            TapOffloads { csum: true, .. } => Some(TapOffloads::NONE),
            _ => None,
        }
    }
}

/// Most queues of a multi-queue interface.
pub const TAP_QUEUES_MAX: u32 = 256;

/// The descriptor end of a TAP interface, or of one of its queues; nonblocking.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    name: IfName,
    created: bool,
    offloads: TapOffloads,
}

impl Tap {
    /// Attaches to the TAP interface called `name`, or creates it; the first free number replaces
    /// `%d` in `name`. Sets the offload header, its length and the offloads, which are one for the
    /// interface with all its queues; all other settings, such as up or down, stay as they are.
    ///
    /// Of `wanted` the kernel may know less: [`Tap::offloads`] says what was obtained.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for an impossible name, `E-UNSUPPORTED` without the tun driver, `E-PERM`
    /// without CAP_NET_ADMIN (or being the interface's owner), `E-BUSY` if another descriptor is
    /// attached, the interface is a multi-queue one, or the name is that of another kind.
    pub fn open(name: &str, wanted: TapOffloads) -> Result<Self> {
        Self::open_as(name, Some(wanted), 0)
    }

    /// Attaches `queues` descriptors to the TAP interface called `name`, or creates it, as
    /// [`Tap::open`] does with one and [`Tap::open_queues`] with several. Frames have no offload
    /// header, so that all are complete: the interface gets no offloads.
    ///
    /// # Errors
    /// As [`Tap::open`] and [`Tap::open_queues`]; `E-BUSY` as well if queues of others have an
    /// offload header.
    pub fn open_plain(name: &str, queues: usize) -> Result<Vec<Self>> {
        match queues {
            1 => Ok(vec![Self::open_as(name, None, 0)?]),
            n => Self::open_all(name, None, n),
        }
    }

    /// Attaches `queues` descriptors to the multi-queue TAP interface called `name`, or creates it,
    /// as [`Tap::open`] does with one. Queues that other processes have attached to the interface
    /// receive their share of the packets, and have the offloads of this call from then on: a
    /// process that wanted fewer may then read superframes.
    ///
    /// # Errors
    /// As [`Tap::open`]; `E-BUSY` as well if the interface is one of a single queue, has not as
    /// many of its [`TAP_QUEUES_MAX`] queues left, or has queues of others whose frames have no
    /// offload header, one of another length, or packet information before it.
    pub fn open_queues(name: &str, wanted: TapOffloads, queues: usize) -> Result<Vec<Self>> {
        Self::open_all(name, Some(wanted), queues)
    }

    /// Opens several queues; without `wanted` their frames have no offload header.
    fn open_all(name: &str, wanted: Option<TapOffloads>, queues: usize) -> Result<Vec<Self>> {
        let multi = libc::IFF_MULTI_QUEUE;
        let first = Self::open_as(name, wanted, multi)?;
        let (name, created, offloads) = (first.name, first.created, first.offloads);
        let mut all = vec![first];
        while all.len() < queues {
            let fd = open_device(&name)?;
            attach(&fd, &name, multi | header_flag(wanted))
                .map_err(|e| refused(&name, "TUNSETIFF", e, multi))?;
            // The header and the offloads are properties of the interface, not of a queue.
            all.push(Tap { fd, name, created, offloads });
        }
        Ok(all)
    }

    /// Opens an interface of `kind`: 0, or with the flag for many queues.
    fn open_as(name: &str, wanted: Option<TapOffloads>, kind: c_int) -> Result<Self> {
        let (asked, format) = (IfName::new(name)?, kind | header_flag(wanted));
        let fd = open_device(&asked)?;
        // Try exclusively first: success means that the interface was created, and EBUSY that it
        // exists. TUN has no other means to distinguish the two.
        let (name, created) = match attach(&fd, &asked, format | libc::IFF_TUN_EXCL) {
            Err(Errno::BUSY) => (attach(&fd, &asked, format), false),
            other => (other, true),
        };
        let name = name.map_err(|e| refused(&asked, "TUNSETIFF", e, kind))?;
        if !created {
            check_format(&fd, &name, kind, wanted.is_some())?;
        }
        let fail = |call| move |e| refused(&name, call, e, kind);
        if wanted.is_some() {
            set_header_bytes(&fd, VNET_HDR_BYTES).map_err(fail("TUNSETVNETHDRSZ"))?;
        }
        // The last user of an interface that stays may have left it with offloads.
        let wanted = wanted.unwrap_or(TapOffloads::NONE);
        let offloads = set_offloads(&fd, wanted).map_err(fail("TUNSETOFFLOAD"))?;
        Ok(Tap { fd, name, created, offloads })
    }

    /// Returns the interface's name: the requested one, with its number.
    #[must_use]
    pub fn name(&self) -> IfName {
        self.name
    }

    /// Returns true if this call created the interface, which is then removed when this descriptor
    /// is closed.
    #[must_use]
    pub fn created(&self) -> bool {
        self.created
    }

    /// Returns the work that the kernel may leave undone in the frames that are read.
    #[must_use]
    pub fn offloads(&self) -> TapOffloads {
        self.offloads
    }

    /// Reads one frame that the host sent: its header, if it has one, and data, into the first
    /// 1,024 of `bufs` in order.
    ///
    /// Shape:  returns n: the first n bytes of `bufs` are written. A longer frame is cut and the
    ///         rest lost, which shows only in n being the whole room: offer 10 + 65,550 bytes.
    /// Errors: EAGAIN if there is no frame; EBADFD once the interface was deleted.
    /// Cost:   one syscall.
    /// Source: drivers/net/tun.c tun_do_read.
    pub fn read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        io::readv(&self.fd, bufs)
    }

    /// Writes one frame to the host: its header, if frames have one, and data, from `bufs` in
    /// order.
    ///
    /// Shape:  a frame is taken whole or not at all.
    /// Errors: EINVAL for a header that contradicts the frame; EIO while the interface is down;
    ///         EBADFD once it was deleted. EAGAIN if the host cannot take it now. EMSGSIZE for more
    ///         than 1,024 of `bufs`, which a call cannot write whole.
    /// Cost:   one syscall, in which the host's stack receives the frame.
    /// Source: drivers/net/tun.c tun_get_user.
    pub fn write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if bufs.len() > MESSAGE_SEGMENTS_MAX {
            return Err(Errno::MSGSIZE);
        }
        io::writev(&self.fd, bufs)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open_device(name: &IfName) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|e| refused(name, OPEN, e, 0))
}

/// Returns the flag of an offload header, if frames have one because offloads are `wanted`.
fn header_flag(wanted: Option<TapOffloads>) -> c_int {
    if wanted.is_some() { libc::IFF_VNET_HDR } else { 0 }
}

/// Attaches `fd` to the interface called `name`, without packet information; returns its actual
/// name.
fn attach(fd: &OwnedFd, name: &IfName, more: c_int) -> io::Result<IfName> {
    attach_as(fd, name, libc::IFF_TAP | libc::IFF_NO_PI | more)
}

/// Attaches `fd` to the interface called `name`; returns its actual name.
fn attach_as(fd: &OwnedFd, name: &IfName, flags: c_int) -> io::Result<IfName> {
    let mut request = name.request();
    // The kernel reads the flags as an unsigned 16-bit number.
    request.ifr_ifru.ifru_flags = flags as u16 as c_short;
    // SAFETY: TUNSETIFF takes an ifreq, and follows no address in it.
    unsafe { ioctl(fd, libc::TUNSETIFF, &mut request) }?;
    Ok(IfName::of_request(&request))
}

/// Refuses an interface, to which `fd` is attached, if queues of others have another frame format
/// than ours, because the format is one for the interface: our flags take effect only if `fd` is
/// its only queue, and another length of the header would garble what others read and write. Our
/// frames have a header if `has_header` is true.
fn check_format(fd: &OwnedFd, name: &IfName, kind: c_int, has_header: bool) -> Result<()> {
    if kind == 0 {
        // An interface of one queue has only this descriptor, so its format concerns no other
        // program.
        return Ok(());
    }
    let flags = flags(fd, name).map_err(|e| refused(name, "TUNGETIFF", e, kind))?;
    let bytes = header_bytes(fd).map_err(|e| refused(name, "TUNGETVNETHDRSZ", e, kind))?;
    let folder = Interface::open(name.as_str()).and_then(|of| NetFolder::open(&of)).ok();
    let folder = folder.as_ref();
    let busy = |why: String, fix: String| {
        Err(Error::new(Code::Busy, format!("cannot open TAP interface {name}"), why).fix(fix))
    };
    let others = |format: String| {
        let why =
            format!("others have attached queues {format}; the interface has one frame format");
        busy(why, "end the program that has the queues, or choose another name".to_owned())
    };
    match (flags & libc::IFF_VNET_HDR != 0, has_header) {
        (true, false) => return others("with an offload header".to_owned()),
        (false, true) => return others("without an offload header".to_owned()),
        _ => {}
    }
    if folder.is_some_and(has_packet_info) {
        let before = if has_header { "the offload header" } else { "each frame" };
        return others(format!("with packet information before {before}"));
    }
    if !has_header || bytes == VNET_HDR_BYTES as c_int {
        return Ok(());
    }
    let header = format!("an offload header of {bytes} bytes instead of {VNET_HDR_BYTES}");
    match folder.and_then(is_alone) {
        Some(true) => Ok(()),
        Some(false) => others(format!("with {header}")),
        None => busy(
            format!("it has {header}, and the number of its queues cannot be read"),
            format!(
                "make it anew: ip tuntap del {name} mode tap multi_queue && \
                 ip tuntap add {name} mode tap multi_queue"
            ),
        ),
    }
}

/// Returns the flags of the interface to which `fd` is attached. They do not show whether
/// `IFF_NO_PI` is set, whose bit is that of `IFF_NOFILTER` in an answer.
///
/// Source: drivers/net/tun.c __tun_chr_ioctl.
fn flags(fd: &OwnedFd, name: &IfName) -> io::Result<c_int> {
    let mut request = name.request();
    // SAFETY: TUNGETIFF writes an ifreq, and follows no address in it.
    unsafe { ioctl(fd, libc::TUNGETIFF, &mut request) }?;
    // SAFETY: the request succeeded, so the kernel wrote the flags; every bit pattern is a valid
    // integer.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(c_int::from(flags as u16))
}

/// Returns true if packet information precedes each frame of the interface; false if that is
/// unknown.
fn has_packet_info(folder: &NetFolder) -> bool {
    let text = folder.read("tun_flags").unwrap_or_default();
    let flags = c_int::from_str_radix(text.trim_start_matches("0x"), 16);
    flags.is_ok_and(|flags| flags & libc::IFF_NO_PI == 0)
}

/// Returns true if one queue of the interface is attached; `None` if the number is unknown.
fn is_alone(folder: &NetFolder) -> Option<bool> {
    let queues = folder.names("queues");
    match queues.iter().filter(|queue| queue.starts_with("tx-")).count() {
        0 => None,
        attached => Some(attached == 1),
    }
}

/// Returns the length of the interface's offload headers.
fn header_bytes(fd: &OwnedFd) -> io::Result<c_int> {
    let mut bytes: c_int = 0;
    // SAFETY: TUNGETVNETHDRSZ writes an int at the address, which is borrowed for the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETVNETHDRSZ, &raw mut bytes) })?;
    Ok(bytes)
}

fn set_header_bytes(fd: &OwnedFd, bytes: usize) -> io::Result<()> {
    let bytes = bytes as c_int;
    // SAFETY: TUNSETVNETHDRSZ reads an int at the address, which is borrowed for the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const bytes) }).map(drop)
}

/// Requests the offloads `wanted`; retries with smaller sets while the kernel refuses a set as
/// unknown.
fn set_offloads(fd: &OwnedFd, wanted: TapOffloads) -> io::Result<TapOffloads> {
    let mut asked = wanted;
    loop {
        let bits = c_ulong::from(asked.bits());
        // SAFETY: TUNSETOFFLOAD takes the bits themselves, and accesses no memory of this program.
        match check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, bits) }) {
            Ok(_) => return Ok(asked),
            Err(Errno::INVAL) => asked = asked.less().ok_or(Errno::INVAL)?,
            Err(e) => return Err(e),
        }
    }
}

/// Returns the error for a `call` that was refused for an interface of `kind`: 0, or with the flag
/// for many queues.
fn refused(name: &IfName, call: &str, errno: Errno, kind: c_int) -> Error {
    let what = format!("cannot open TAP interface {name}");
    let multi = if kind == 0 { "" } else { " multi_queue" };
    match errno {
        // The file's mode refuses the access, and no capability of this process overrides the mode.
        Errno::ACCESS if call == OPEN => {
            Error::os(Code::Permission, what, call, errno).fix(format!(
                "let all users open it (chmod 666 {DEVICE}), and {}",
                Capabilities::NET_ADMIN.remedy()
            ))
        }
        Errno::PERM | Errno::ACCESS => Error::os(Code::Permission, what, call, errno).fix(format!(
            "have root make it (ip tuntap add {name} mode tap{multi} user $USER), or {}",
            Capabilities::NET_ADMIN.remedy()
        )),
        Errno::BUSY => Error::os(Code::Busy, what, call, errno).fix(format!(
            "another process has it open: choose another name, or see: ip tuntap show {name}"
        )),
        Errno::TOOBIG => {
            let why = format!("its {TAP_QUEUES_MAX} queues are taken");
            Error::new(Code::Busy, what, why).fix("ask for fewer queues")
        }
        // This is TUNSETIFF on an interface of another kind than requested, or with a bad `%`.
        Errno::INVAL => other_kind(name, what, call, kind),
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            Error::os(Code::Unsupported, what, call, errno).fix("modprobe tun")
        }
        _ => Error::os(Code::System, what, call, errno),
    }
}

/// Returns the error for an interface that exists and is of another kind than requested.
fn other_kind(name: &IfName, what: String, call: &str, kind: c_int) -> Error {
    let found = Interface::open(name.as_str()).and_then(|interface| interface.driver()).ok();
    let bus = found.filter(|(driver, _)| driver == "tun").map(|(_, bus)| bus);
    if bus.as_deref() == Some("tun") {
        let why = "it is a TUN interface, whose packets have no Ethernet header";
        return Error::new(Code::Busy, what, why).fix(format!(
            "choose another name, or make it anew as a TAP interface: ip tuntap del {name} mode tun && \
             ip tuntap add {name} mode tap"
        ));
    }
    if bus.as_deref() != Some("tap") {
        return Error::os(Code::Busy, what, call, Errno::INVAL)
            .fix(format!("if something else has the name: ip -d link show {name}"));
    }
    let (one, many) = ("mode tap", "mode tap multi_queue");
    let (why, remedy, is, wanted) = match kind {
        0 => ("it is a multi-queue interface", "ask for several queues, or make", many, one),
        _ => ("it is an interface of one queue", "ask for one queue, or make", one, many),
    };
    Error::new(Code::Busy, what, why).fix(format!(
        "{remedy} it anew: ip tuntap del {name} {is} && ip tuntap add {name} {wanted}"
    ))
}
