//! A network interface by name: its index, flags, MTU and address.
//!
//! Owner: [`Interface`], which holds a socket only to ask the kernel through; the interface is
//! neither created nor kept. Answers are those of the network namespace the thread was in when it
//! opened the interface.
//!
//! Source: netdevice(7).

use std::ffi::{c_char, c_int, c_short};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::capability::Capabilities;
use crate::error::check;
use crate::error::{Code, Error, Result};

mod elsewhere;
mod folder;
mod hold;
mod rss;

pub use folder::NetFolder;
pub use hold::{NapiHold, NapiHoldGuard};
pub use rss::{Rss, RssGuard};

/// Bytes of the longest interface name (`IFNAMSIZ` without the NUL).
pub const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

/// Flag of an interface that is administratively up (`IFF_UP`).
pub const FLAG_UP: u16 = libc::IFF_UP as u16;
/// Flag of an operational interface (`IFF_RUNNING`): it has a carrier, as far as the kernel knows.
/// A kernel worker tracks the carrier and starts the transmit queues; until it has run, frames sent
/// on an interface that just came up may be refused with ENOBUFS.
pub const FLAG_RUNNING: u16 = libc::IFF_RUNNING as u16;

/// Hardware type of Ethernet and of devices like it (veth, TAP).
pub const HARDWARE_ETHERNET: u16 = libc::ARPHRD_ETHER;
/// Hardware type of `lo`, whose frames have Ethernet headers with zero addresses.
pub const HARDWARE_LOOPBACK: u16 = libc::ARPHRD_LOOPBACK;

/// A name that an interface can have: 1 to 15 bytes, no NUL, slash or space.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IfName([u8; libc::IFNAMSIZ]);

impl IfName {
    /// Checks `name` and converts it.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for a name that no interface can have.
    pub fn new(name: &str) -> Result<Self> {
        let fault = |why: String| {
            let what = format!("{name:?} cannot be the name of a network interface");
            Err(Error::new(Code::PortSyntax, what, why).fix("ip -br link"))
        };
        if name.is_empty() {
            return fault("it is empty".into());
        }
        if name.len() > NAME_BYTES_MAX {
            return fault(format!("it has {} bytes, at most {NAME_BYTES_MAX} fit", name.len()));
        }
        if name.bytes().any(|b| b == 0 || b == b'/' || b == b':' || b.is_ascii_whitespace()) {
            return fault("it contains a slash, a colon, a space or a NUL".into());
        }
        let mut bytes = [0; libc::IFNAMSIZ];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(IfName(bytes))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        str::from_utf8(&self.0[..len]).unwrap_or("?")
    }

    /// Returns a request for this interface, with all other fields zero.
    pub(crate) fn request(&self) -> libc::ifreq {
        // SAFETY: ifreq consists of integers and a union of them, for which all zeroes is a valid
        // value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.0) {
            *to = from as c_char;
        }
        request
    }

    /// Reads the name that the kernel wrote into `request`.
    pub(crate) fn of_request(request: &libc::ifreq) -> Self {
        let mut bytes = request.ifr_name.map(|c| c as u8);
        bytes[NAME_BYTES_MAX] = 0;
        IfName(bytes)
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IfName({})", self.as_str())
    }
}

/// The link type and address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    /// `ARPHRD_*`: [`HARDWARE_ETHERNET`], or a type without Ethernet frames.
    pub kind: u16,
    /// The interface's own MAC address; valid for Ethernet only.
    pub mac: [u8; 6],
}

/// The merging of received packets into superframes, by the kernel or by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Merging {
    /// True if the kernel merges packets so that they can be divided into the original ones again
    /// (GRO).
    pub by_kernel: bool,
    /// True if the device merges packets, which then cannot be divided into the original ones again
    /// (LRO).
    pub by_device: bool,
}

/// An existing network interface.
#[derive(Debug)]
pub struct Interface {
    socket: OwnedFd,
    name: IfName,
    index: u32,
}

impl Interface {
    /// Finds the interface called `name`.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for an impossible name, `E-NODEV` if there is no such interface here.
    pub fn open(name: &str) -> Result<Self> {
        let name = IfName::new(name)?;
        let socket = socket().map_err(|e| refused(&name, "socket", e))?;
        let mut request = name.request();
        ioctl(&socket, libc::SIOCGIFINDEX as libc::Ioctl, &mut request)
            .map_err(|e| refused(&name, "SIOCGIFINDEX", e))?;
        // SAFETY: the request succeeded, so the kernel wrote the index; every bit pattern is a
        // valid integer.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        let index =
            u32::try_from(index).map_err(|_| refused(&name, "SIOCGIFINDEX", Errno::NODEV))?;
        Ok(Interface { socket, name, index })
    }

    /// Returns the interface with that index.
    ///
    /// # Errors
    /// `E-NODEV` if there is none here.
    pub fn by_index(index: u32) -> Result<Self> {
        let nameless = IfName([0; libc::IFNAMSIZ]);
        let socket = socket().map_err(|e| refused(&nameless, "socket", e))?;
        let mut request = nameless.request();
        request.ifr_ifru.ifru_ifindex = index as c_int;
        ioctl(&socket, libc::SIOCGIFNAME as libc::Ioctl, &mut request)
            .map_err(|e| refused(&nameless, "SIOCGIFNAME", e))?;
        let mut name = nameless;
        for (to, from) in name.0.iter_mut().zip(request.ifr_name) {
            *to = from as u8;
        }
        Ok(Interface { socket, name, index })
    }

    /// Returns the name that the interface had when it was opened.
    #[must_use]
    pub fn name(&self) -> IfName {
        self.name
    }

    /// Returns the interface's present name; the name that it had when it was opened if it no
    /// longer exists.
    ///
    /// Cost: a syscall.
    #[must_use]
    pub fn present_name(&self) -> IfName {
        self.named().map_or(self.name, |request| IfName::of_request(&request))
    }

    /// Returns the interface's index, by which sockets are bound to it; it is above zero.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Reads the interface's `FLAG_*` bits.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone.
    pub fn flags(&self) -> Result<u16> {
        let request = self.ask(libc::SIOCGIFFLAGS as libc::Ioctl, "SIOCGIFFLAGS")?;
        // SAFETY: the request succeeded, so the kernel wrote the flags; every bit pattern is a
        // valid integer.
        Ok(unsafe { request.ifr_ifru.ifru_flags } as u16)
    }

    /// Returns the longest packet that the interface sends, in bytes without the Ethernet header.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone.
    pub fn mtu_bytes(&self) -> Result<u32> {
        let request = self.ask(libc::SIOCGIFMTU as libc::Ioctl, "SIOCGIFMTU")?;
        // SAFETY: the request succeeded, so the kernel wrote the MTU; every bit pattern is a valid
        // integer.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(u32::try_from(mtu).unwrap_or(0))
    }

    /// Reads the interface's link type and address.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone.
    pub fn hardware(&self) -> Result<Hardware> {
        let request = self.ask(libc::SIOCGIFHWADDR as libc::Ioctl, "SIOCGIFHWADDR")?;
        // SAFETY: the request succeeded, so the kernel wrote the address; every bit pattern is a
        // valid array of integers.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            *to = from as u8;
        }
        Ok(Hardware { kind: address.sa_family, mac })
    }

    /// Sets the interface up. This changes the machine: use it for interfaces that the program
    /// created.
    ///
    /// # Errors
    /// `E-PERM` without CAP_NET_ADMIN, `E-NODEV` if it is gone.
    pub fn set_up(&self) -> Result<()> {
        let mut request = self.ask(libc::SIOCGIFFLAGS as libc::Ioctl, "SIOCGIFFLAGS")?;
        // SAFETY: the request succeeded, so the kernel wrote the flags; every bit pattern is a
        // valid integer.
        let flags = unsafe { request.ifr_ifru.ifru_flags } as u16;
        request.ifr_ifru.ifru_flags = (flags | FLAG_UP) as c_short;
        ioctl(&self.socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut request)
            .map_err(|e| refused(&self.name, "SIOCSIFFLAGS", e))
    }

    /// Turns the offload of outgoing checksums on or off. Without it the interface accepts no
    /// superframes either, and its kernel sends complete packets. This changes the machine.
    ///
    /// # Errors
    /// As [`Interface::set_up`].
    ///
    /// Source: `ETHTOOL_STXCSUM`, include/uapi/linux/ethtool.h.
    pub fn set_checksum_offload(&self, on: bool) -> Result<()> {
        const ETHTOOL_STXCSUM: u32 = 0x17;
        self.ethtool(ETHTOOL_STXCSUM, on.into(), "ETHTOOL_STXCSUM").map(drop)
    }

    /// Returns true if the interface accepts packets whose checksum is still to be computed.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone, `E-SYSTEM` if its driver does not say.
    ///
    /// Source: `ETHTOOL_GTXCSUM`, include/uapi/linux/ethtool.h.
    pub fn checksum_offload(&self) -> Result<bool> {
        const ETHTOOL_GTXCSUM: u32 = 0x16;
        Ok(self.ethtool(ETHTOOL_GTXCSUM, 0, "ETHTOOL_GTXCSUM")? != 0)
    }

    /// Returns whether the kernel, the device, or both merge received packets.
    ///
    /// # Errors
    /// As [`Interface::checksum_offload`].
    ///
    /// Source: `ETHTOOL_GGRO` and `ETHTOOL_GFLAGS`, include/uapi/linux/ethtool.h.
    pub fn merging(&self) -> Result<Merging> {
        const ETHTOOL_GGRO: u32 = 0x2b;
        const ETHTOOL_GFLAGS: u32 = 0x25;
        const FLAG_LRO: u32 = 1 << 15;
        let by_kernel = self.ethtool(ETHTOOL_GGRO, 0, "ETHTOOL_GGRO")? != 0;
        let flags = self.ethtool(ETHTOOL_GFLAGS, 0, "ETHTOOL_GFLAGS")?;
        Ok(Merging { by_kernel, by_device: flags & FLAG_LRO != 0 })
    }

    /// Makes an ethtool request that takes a number and returns a number.
    fn ethtool(&self, cmd: u32, data: u32, call: &str) -> Result<u32> {
        #[repr(C)]
        struct EthtoolValue {
            cmd: u32,
            data: u32,
        }
        let mut value = EthtoolValue { cmd, data };
        let mut request = self.ask(libc::SIOCGIFFLAGS as libc::Ioctl, "SIOCGIFFLAGS")?;
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // For all commands of this function's callers, the pointer in the ifreq is that of an
        // ethtool_value. The kernel reads and writes `value`, which outlives the call.
        ioctl(&self.socket, libc::SIOCETHTOOL as libc::Ioctl, &mut request)
            .map_err(|e| refused(&self.name, call, e))?;
        Ok(value.data)
    }

    /// Returns the number of the interface's receive queues; 1 if its driver does not report it.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone.
    ///
    /// Source: `ETHTOOL_GCHANNELS`, include/uapi/linux/ethtool.h.
    pub fn rx_queues(&self) -> Result<u32> {
        #[repr(C)]
        #[derive(Default)]
        struct EthtoolChannels {
            cmd: u32,
            max: [u32; 4],
            rx: u32,
            tx: u32,
            other: u32,
            combined: u32,
        }
        const ETHTOOL_GCHANNELS: u32 = 0x3c;
        let mut channels = EthtoolChannels { cmd: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
        let mut request = self.ask(libc::SIOCGIFFLAGS as libc::Ioctl, "SIOCGIFFLAGS")?;
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // For this command, the pointer in the ifreq is that of an ethtool_channels. The kernel
        // writes `channels`, which outlives the call.
        match ioctl(&self.socket, libc::SIOCETHTOOL as libc::Ioctl, &mut request) {
            Ok(()) => Ok(channels.rx.saturating_add(channels.combined).max(1)),
            Err(e @ Errno::NODEV) => Err(refused(&self.name, "ETHTOOL_GCHANNELS", e)),
            Err(_) => Ok(1),
        }
    }

    /// Returns the driver of the interface, and its bus address: `tun` on `tap`, `veth`,
    /// `virtio_net` on a PCI address.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone, `E-SYSTEM` if its driver does not say.
    ///
    /// Source: `ETHTOOL_GDRVINFO`, include/uapi/linux/ethtool.h.
    pub fn driver(&self) -> Result<(String, String)> {
        #[repr(C)]
        struct EthtoolDriver {
            cmd: u32,
            driver: [u8; 32],
            versions: [u8; 64],
            bus: [u8; 32],
            rest: [u8; 64],
        }
        const ETHTOOL_GDRVINFO: u32 = 3;
        const _: () = assert!(size_of::<EthtoolDriver>() == 196);
        let mut value = EthtoolDriver {
            cmd: ETHTOOL_GDRVINFO,
            driver: [0; 32],
            versions: [0; 64],
            bus: [0; 32],
            rest: [0; 64],
        };
        let mut request = self.ask(libc::SIOCGIFFLAGS as libc::Ioctl, "SIOCGIFFLAGS")?;
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // For this command, the pointer in the ifreq is that of an ethtool_drvinfo. The kernel
        // writes `value`, which outlives the call.
        ioctl(&self.socket, libc::SIOCETHTOOL as libc::Ioctl, &mut request)
            .map_err(|e| refused(&self.name, "ETHTOOL_GDRVINFO", e))?;
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        Ok((text(&value.driver), text(&value.bus)))
    }

    /// Restricts `socket` to packets of this interface.
    ///
    /// # Errors
    /// The system's own: EPERM without CAP_NET_RAW before Linux 5.7, ENODEV if the interface is gone.
    ///
    /// Source: socket(7), `SO_BINDTODEVICE`.
    pub fn bind(&self, socket: impl AsFd) -> io::Result<()> {
        let name = self.name.0;
        let (fd, at) = (socket.as_fd().as_raw_fd(), name.as_ptr().cast());
        let (level, bytes) = (libc::SOL_SOCKET, name.len() as libc::socklen_t);
        // SAFETY: the kernel reads the name's bytes, which outlive the call.
        check(unsafe { libc::setsockopt(fd, level, libc::SO_BINDTODEVICE, at, bytes) }).map(drop)
    }

    /// Makes a request about the opened interface by its present name, and so never about another
    /// interface that has taken its old name.
    fn ask(&self, number: libc::Ioctl, call: &str) -> Result<libc::ifreq> {
        let mut request = self.named()?;
        ioctl(&self.socket, number, &mut request).map_err(|e| refused(&self.name, call, e))?;
        Ok(request)
    }

    /// Returns a request with the interface's present name.
    fn named(&self) -> Result<libc::ifreq> {
        let mut request = self.name.request();
        request.ifr_ifru.ifru_ifindex = self.index as c_int;
        ioctl(&self.socket, libc::SIOCGIFNAME as libc::Ioctl, &mut request)
            .map_err(|e| refused(&self.name, "SIOCGIFNAME", e))?;
        Ok(request)
    }
}

impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Opens a socket for ioctl requests: any socket works; one of AF_UNIX requires no protocol in the
/// kernel.
fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)
}

/// Makes a request whose argument and result are an `ifreq`.
///
/// `number` must be one of those: the SIOC[GS]IF* family, TUN's TUNSETIFF and TUNGETIFF, or SIOCETHTOOL
/// with a pointer to what its command takes.
pub(crate) fn ioctl(
    fd: impl AsFd,
    number: libc::Ioctl,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: the kernel reads and writes one ifreq at the address, which is exclusively borrowed
    // for the call. The callers, all in this crate, guarantee that `number` takes an ifreq, as
    // stated above.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, request) }).map(drop)
}

/// The remedy if no interface has the name.
pub const FIND_INTERFACE: &str =
    "ip -br link; if it is in another network namespace: ip netns exec NAME PROGRAM …";

fn refused(name: &IfName, call: &str, errno: Errno) -> Error {
    let what = format!("cannot use network interface {name}");
    match errno {
        Errno::NODEV | Errno::NXIO => {
            Error::os(Code::NoDevice, what, call, errno).fix(FIND_INTERFACE)
        }
        Errno::PERM | Errno::ACCESS => {
            Error::os(Code::Permission, what, call, errno).fix(Capabilities::NET_ADMIN.remedy())
        }
        _ => Error::os(Code::System, what, call, errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_netns, ip, wait_running};

    #[test]
    fn an_interface_says_what_it_is() {
        in_netns(|| {
            ip("link add v0 address 02:00:00:00:00:01 mtu 1400 type veth peer name v1");
            let (a, b) = (Interface::open("v0").unwrap(), Interface::open("v1").unwrap());
            assert_ne!(a.index(), b.index());
            assert_eq!(a.name().as_str(), "v0");
            assert_eq!(a.mtu_bytes().unwrap(), 1400);
            let hardware = Hardware { kind: HARDWARE_ETHERNET, mac: [2, 0, 0, 0, 0, 1] };
            assert_eq!(a.hardware().unwrap(), hardware);
            assert_eq!(a.driver().unwrap().0, "veth");
            assert_eq!(a.flags().unwrap() & (FLAG_UP | FLAG_RUNNING), 0);
            a.set_up().unwrap();
            assert_eq!(a.flags().unwrap() & FLAG_UP, FLAG_UP);
            b.set_up().unwrap();
            wait_running("v0");
            assert_eq!(a.flags().unwrap() & FLAG_RUNNING, FLAG_RUNNING);
            ip("link del v0");
            assert_eq!(a.flags().unwrap_err().code, Code::NoDevice);
        });
    }

    #[test]
    fn an_interface_is_not_mistaken_for_another_of_its_name() {
        in_netns(|| {
            ip("link add v0 mtu 1400 type veth peer name v1");
            let a = Interface::open("v0").unwrap();
            ip("link set v0 name w0");
            assert_eq!(a.mtu_bytes().unwrap(), 1400);
            ip("link add v0 mtu 1300 type veth peer name v2");
            assert_eq!(a.mtu_bytes().unwrap(), 1400);
            ip("link del w0");
            assert_eq!(a.mtu_bytes().unwrap_err().code, Code::NoDevice);
        });
    }

    #[test]
    fn an_interface_says_which_packets_are_merged_or_left_unfinished() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            let a = Interface::open("v0").unwrap();
            assert!(a.checksum_offload().unwrap());
            a.set_checksum_offload(false).unwrap();
            assert!(!a.checksum_offload().unwrap());
            a.set_checksum_offload(true).unwrap();
            assert!(a.checksum_offload().unwrap() && !a.merging().unwrap().by_device);
            ip("link del v0");
            assert_eq!(a.merging().unwrap_err().code, Code::NoDevice);
        });
    }

    #[test]
    fn a_missing_interface_is_an_error_with_the_remedy() {
        let e = Interface::open("no-such-dev0").unwrap_err();
        assert_eq!(e.code, Code::NoDevice);
        assert_eq!(e.fix, FIND_INTERFACE);
        assert!(e.what.contains("no-such-dev0"), "{e}");
    }

    #[test]
    fn an_impossible_name_is_a_fault_of_the_request() {
        for name in ["", "sixteen-bytes-ab", "a/b", "a b", "a\0b", "a:b"] {
            assert_eq!(IfName::new(name).unwrap_err().kind(), crate::Kind::Usage, "{name:?}");
        }
        assert_eq!(IfName::new("fifteen-bytes-a").unwrap().as_str(), "fifteen-bytes-a");
    }
}
