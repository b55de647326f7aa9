//! TAP: a network interface of the host whose other end is a descriptor.
//!
//! Owner: [`Tap`], of the descriptor; of the interface as well if it was created here and nobody
//! made it persistent: then it goes when the descriptor is closed. One thread at a time reads.
//!
//! A multi-queue interface has several descriptors, a queue each. The host chooses the queue by the
//! flow, and one that it has received from a queue is sent to the same: a hash otherwise. A queue is
//! detached by closing it; what waits in it is lost, and the others have its flows from then on.
//!
//! Each read and each write is one frame behind its offload header:
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
use crate::vnet::VNET_HDR_BYTES;

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
        Self::open_as(name, wanted, 0)
    }

    /// Attaches `queues` descriptors to the multi-queue TAP interface called `name`, or creates it,
    /// as [`Tap::open`] does with one. Queues that other processes have attached to the interface
    /// receive their share of the packets.
    ///
    /// # Errors
    /// As [`Tap::open`]; `E-BUSY` as well if the interface is one of a single queue, has not as many
    /// of its [`TAP_QUEUES_MAX`] queues left, or has queues of others whose offload headers have
    /// another length.
    pub fn open_queues(name: &str, wanted: TapOffloads, queues: usize) -> Result<Vec<Self>> {
        let multi = libc::IFF_MULTI_QUEUE;
        let first = Self::open_as(name, wanted, multi)?;
        let (name, created, offloads) = (first.name, first.created, first.offloads);
        let mut all = vec![first];
        while all.len() < queues {
            let fd = open_device(&name)?;
            attach(&fd, &name, multi).map_err(|e| refused(&name, "TUNSETIFF", e, multi))?;
            // The header and the offloads are properties of the interface, not of a queue.
            all.push(Tap { fd, name, created, offloads });
        }
        Ok(all)
    }

    fn open_as(name: &str, wanted: TapOffloads, kind: c_int) -> Result<Self> {
        let asked = IfName::new(name)?;
        let fd = open_device(&asked)?;
        // Try exclusively first: success means that the interface was created, and EBUSY that it
        // exists. TUN has no other means to distinguish the two.
        let (name, created) = match attach(&fd, &asked, kind | libc::IFF_TUN_EXCL) {
            Err(Errno::BUSY) => (attach(&fd, &asked, kind), false),
            other => (other, true),
        };
        let name = name.map_err(|e| refused(&asked, "TUNSETIFF", e, kind))?;
        if !created {
            check_header_bytes(&fd, &name, kind)?;
        }
        let fail = |call| move |e| refused(&name, call, e, kind);
        set_header_bytes(&fd, VNET_HDR_BYTES).map_err(fail("TUNSETVNETHDRSZ"))?;
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

    /// Reads one frame that the host sent: its header and data, into `bufs` in order.
    ///
    /// Shape:  returns n: the first n bytes of `bufs` are written. A longer frame is cut and the
    ///         rest lost, which shows only in n being the whole room: offer 10 + 65,550 bytes.
    /// Errors: EAGAIN if there is no frame; EBADFD once the interface was deleted.
    /// Cost:   one syscall.
    /// Source: drivers/net/tun.c tun_do_read.
    pub fn read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        io::readv(&self.fd, bufs)
    }

    /// Writes one frame to the host: its header and data, from `bufs` in order.
    ///
    /// Shape:  a frame is taken whole or not at all.
    /// Errors: EINVAL for a header that contradicts the frame; EIO while the interface is down;
    ///         EBADFD once it was deleted. EAGAIN if the host cannot take it now.
    /// Cost:   one syscall, in which the host's stack receives the frame.
    /// Source: drivers/net/tun.c tun_get_user.
    pub fn write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
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

/// Attaches `fd` to the interface called `name`; returns its actual name.
fn attach(fd: &OwnedFd, name: &IfName, more: c_int) -> io::Result<IfName> {
    let mut request = name.request();
    // The kernel reads the flags as an unsigned 16-bit number.
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | more;
    request.ifr_ifru.ifru_flags = flags as u16 as c_short;
    // SAFETY: TUNSETIFF takes an ifreq, and follows no address in it.
    unsafe { ioctl(fd, libc::TUNSETIFF, &mut request) }?;
    Ok(IfName::of_request(&request))
}

/// Refuses an interface on which queues of others have headers of another length than ours: the
/// length is one for the interface, and a change would garble what they read and write.
fn check_header_bytes(fd: &OwnedFd, name: &IfName, kind: c_int) -> Result<()> {
    let bytes = header_bytes(fd).map_err(|e| refused(name, "TUNGETVNETHDRSZ", e, kind))?;
    // The header of an interface of one queue concerns no other program: only one descriptor can be attached.
    if bytes == VNET_HDR_BYTES as c_int || kind == 0 || is_alone(name) {
        return Ok(());
    }
    let why = format!(
        "others have attached queues with offload headers of {bytes} bytes; this program's have \
         {VNET_HDR_BYTES}, and the length is one for the interface"
    );
    Err(Error::new(Code::Busy, format!("cannot open TAP interface {name}"), why)
        .fix("end the program that has the queues, or choose another name"))
}

/// Returns true if one queue of the interface is attached; false if that is unknown.
fn is_alone(name: &IfName) -> bool {
    let folder = Interface::open(name.as_str()).and_then(|of| NetFolder::open(&of));
    let is_tx = |queue: &&String| queue.starts_with("tx-");
    folder.is_ok_and(|folder| folder.names("queues").iter().filter(is_tx).count() == 1)
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
    let is_tap = Interface::open(name.as_str())
        .and_then(|interface| interface.driver())
        .is_ok_and(|(driver, bus)| driver == "tun" && bus == "tap");
    if !is_tap {
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::packet::{Options, PacketSocket, RingSize, SendBatch};
    use crate::testing::{in_netns, ip};
    use crate::vnet::VnetHdr;
    use crate::wait::poll_readable;

    const WAIT: Duration = Duration::from_secs(5);
    const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

    fn frame(len: usize) -> Vec<u8> {
        let mut f = vec![0xff; 6];
        f.extend([2, 0, 0, 0, 0, 1]);
        f.extend(ETHERTYPE);
        f.extend((f.len()..len).map(|i| i as u8));
        f
    }

    fn ours(data: &[u8]) -> bool {
        data.get(12..14) == Some(&ETHERTYPE)
    }

    fn write(tap: &Tap, frame: &[u8]) -> io::Result<usize> {
        let header = VnetHdr::NONE.to_bytes();
        let (head, tail) = frame.split_at(14);
        tap.write_vectored(&[IoSlice::new(&header), IoSlice::new(head), IoSlice::new(tail)])
    }

    /// Returns the next frame of these tests from the host, with its header.
    fn read(tap: &Tap) -> (VnetHdr, Vec<u8>) {
        let deadline = Instant::now() + WAIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(poll_readable(&[tap.as_fd()], Some(left)).unwrap(), "nothing came");
            let (mut header, mut data) = ([0; VNET_HDR_BYTES], vec![0; 65_550]);
            let mut bufs = [IoSliceMut::new(&mut header), IoSliceMut::new(&mut data)];
            let n = tap.read_vectored(&mut bufs).unwrap();
            data.truncate(n - VNET_HDR_BYTES);
            if ours(&data) {
                return (VnetHdr::from_bytes(header), data);
            }
        }
    }

    #[test]
    fn frames_cross_between_the_descriptor_and_the_interface_both_ways() {
        in_netns(|| {
            let tap = Tap::open("t0", TapOffloads::ALL).unwrap();
            ip("link set t0 mtu 9000 up");
            let interface = Interface::open("t0").unwrap();
            let options = Options { vnet_hdr: true, ..Options::default() };
            let (socket, mut ring) =
                PacketSocket::open(&interface, &options, &RingSize::default()).unwrap();
            let f = frame(5000);

            assert_eq!(write(&tap, &f), Ok(VNET_HDR_BYTES + f.len()));
            let mut got = None;
            while got.is_none() {
                assert!(poll_readable(&[socket.as_fd()], Some(WAIT)).unwrap(), "nothing came");
                while let Some(mut block) = ring.next_block() {
                    while let Some(r) = block.next_frame() {
                        if ours(r.data) {
                            got = Some(r.data.to_vec());
                        }
                    }
                }
            }
            assert_eq!(got.unwrap(), f);

            let mut batch = SendBatch::new();
            let mut sending = batch.start();
            assert!(sending.add(Some(&VnetHdr::NONE), [&f[..]]));
            assert_eq!(sending.flush(&socket), (1, None));
            assert_eq!(read(&tap), (VnetHdr::NONE, f));
        });
    }

    #[test]
    fn the_offloads_obtained_are_told() {
        in_netns(|| {
            let tap = Tap::open("t0", TapOffloads::ALL).unwrap();
            assert!(tap.offloads().csum && tap.offloads().tso, "{:?}", tap.offloads());
            let tap = Tap::open("t1", TapOffloads::NONE).unwrap();
            assert_eq!(tap.offloads(), TapOffloads::NONE);
            // Superframes without checksums are nothing the kernel offers; none is what is left.
            let wanted = TapOffloads { csum: false, ..TapOffloads::ALL };
            assert_eq!(Tap::open("t2", wanted).unwrap().offloads(), TapOffloads::NONE);
        });
    }

    #[test]
    fn a_number_is_filled_in_and_the_interface_goes_with_its_descriptor() {
        in_netns(|| {
            let a = Tap::open("tap%d", TapOffloads::ALL).unwrap();
            let b = Tap::open("tap%d", TapOffloads::ALL).unwrap();
            assert_eq!(a.name().as_str(), "tap0");
            assert_eq!(b.name().as_str(), "tap1");
            assert!(a.created());
            drop(a);
            // A child of another test, between fork and exec, may hold the descriptor a moment.
            let deadline = Instant::now() + WAIT;
            while Interface::open("tap0").is_ok() {
                assert!(Instant::now() < deadline, "tap0 stayed");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(Interface::open("tap0").unwrap_err().code, Code::NoDevice);
            Interface::open("tap1").unwrap();
        });
    }

    #[test]
    fn a_persistent_interface_is_attached_to_and_stays() {
        in_netns(|| {
            ip("tuntap add t0 mode tap");
            let tap = Tap::open("t0", TapOffloads::ALL).unwrap();
            assert!(!tap.created());
            drop(tap);
            Interface::open("t0").unwrap();
        });
    }

    #[test]
    fn an_interface_that_is_taken_is_busy() {
        in_netns(|| {
            let _tap = Tap::open("t0", TapOffloads::ALL).unwrap();
            assert_eq!(Tap::open("t0", TapOffloads::ALL).unwrap_err().code, Code::Busy);
            ip("link add v0 type veth peer name v1");
            let e = Tap::open("v0", TapOffloads::ALL).unwrap_err();
            assert_eq!(e.code, Code::Busy);
            assert!(e.fix.contains("v0"), "{e}");
        });
    }

    #[test]
    fn queues_are_attached_and_detached() {
        in_netns(|| {
            let mut queues = Tap::open_queues("tap%d", TapOffloads::ALL, 3).unwrap();
            assert!(queues.iter().all(|q| q.created() && q.name().as_str() == "tap0"));
            ip("link set tap0 up");
            // Another of its own, which is attached and takes its share.
            let more = Tap::open_queues("tap0", TapOffloads::ALL, 1).unwrap();
            assert!(!more[0].created());
            let said = ip("-d link show tap0");
            assert!(said.contains("multi_queue numqueues 4 "), "{said}");
            // Each of them is the whole interface to the host, and so is the last one left.
            while let Some(queue) = queues.pop() {
                assert_eq!(write(&queue, &frame(60)), Ok(VNET_HDR_BYTES + 60));
            }
            assert_eq!(write(&more[0], &frame(60)), Ok(VNET_HDR_BYTES + 60));
            let e = Tap::open_queues("tap0", TapOffloads::ALL, 256).unwrap_err();
            assert_eq!(e.code, Code::Busy);
            assert!(e.why.contains("256 queues are taken"), "{e}");
        });
    }

    #[test]
    fn queues_of_others_keep_the_length_of_their_headers() {
        in_netns(|| {
            let open = |name| Tap::open_queues(name, TapOffloads::ALL, 1);
            let other = open("m0").unwrap();
            set_header_bytes(&other[0].fd, 12).unwrap();
            let e = open("m0").unwrap_err();
            assert!(e.code == Code::Busy && e.why.contains("of 12 bytes"), "{e}");
            assert_eq!(header_bytes(&other[0].fd), Ok(12));
            // What an ended program has left belongs to no program.
            ip("tuntap add m1 mode tap multi_queue");
            set_header_bytes(&open("m1").unwrap()[0].fd, 12).unwrap();
            assert_eq!(header_bytes(&open("m1").unwrap()[0].fd), Ok(VNET_HDR_BYTES as c_int));
        });
    }

    #[test]
    fn a_tap_of_the_other_kind_is_an_error_that_says_how_to_make_it() {
        in_netns(|| {
            ip("tuntap add s0 mode tap");
            ip("tuntap add m0 mode tap multi_queue");
            ip("link add v0 type veth peer name v1");
            let open = |name, queues| match queues {
                1 => Tap::open(name, TapOffloads::ALL).unwrap_err(),
                n => Tap::open_queues(name, TapOffloads::ALL, n).unwrap_err(),
            };
            let commands = |fix: &str| -> Vec<String> {
                let (_, commands) = fix.split_once(": ip ").unwrap();
                commands.split(" && ip ").map(str::to_owned).collect()
            };
            let e = open("s0", 2);
            assert!(e.code == Code::Busy && e.why.contains("of one queue"), "{e}");
            for args in commands(&e.fix) {
                ip(&args);
            }
            Tap::open_queues("s0", TapOffloads::ALL, 2).unwrap();
            let e = open("m0", 1);
            assert!(e.code == Code::Busy && e.why.contains("multi-queue"), "{e}");
            for args in commands(&e.fix) {
                ip(&args);
            }
            Tap::open("m0", TapOffloads::ALL).unwrap();
            let e = open("v0", 2);
            assert!(e.code == Code::Busy && e.fix.contains("ip -d link show v0"), "{e}");
        });
    }

    #[test]
    fn an_empty_tap_is_not_waited_for_and_one_that_is_down_takes_nothing() {
        in_netns(|| {
            let tap = Tap::open("t0", TapOffloads::ALL).unwrap();
            assert_eq!(write(&tap, &frame(60)), Err(Errno::IO));
            let mut byte = [0; 64];
            assert_eq!(tap.read_vectored(&mut [IoSliceMut::new(&mut byte)]), Err(Errno::AGAIN));
            let lie = VnetHdr { gso_type: 0x7f, gso_size: 1, ..VnetHdr::NONE }.to_bytes();
            ip("link set t0 up");
            let f = frame(60);
            let bufs = [IoSlice::new(&lie), IoSlice::new(&f)];
            assert_eq!(tap.write_vectored(&bufs), Err(Errno::INVAL));
        });
    }
}
