//! A network interface by name: its index, flags, MTU and address.
//!
//! Owner: [`Interface`], which holds a socket only to ask the kernel through; the interface is
//! neither created nor kept. Answers are those of the network namespace the thread was in when it
//! opened the interface.
//!
//! Source: netdevice(7).

use std::ffi::{c_int, c_short};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::capability::Capabilities;
use crate::error::check;
use crate::error::{Code, Error, Result};

mod elsewhere;
mod ethtool;
mod folder;
mod hold;
mod name;
mod rss;

pub use ethtool::{DeviceOffload, Merging, TxQueues};
pub use folder::{NetFolder, NetNumber};
pub use hold::{NapiHold, NapiHoldGuard};
pub use name::{IfName, NAME_BYTES_MAX};
pub use rss::{Rss, RssGuard};

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

/// The link type and address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    /// `ARPHRD_*`: [`HARDWARE_ETHERNET`], or a type without Ethernet frames.
    pub kind: u16,
    /// The interface's own MAC address; valid for Ethernet only.
    pub mac: [u8; 6],
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
        // SAFETY: SIOCGIFINDEX takes an ifreq, and follows no address in it.
        unsafe { ioctl(&socket, libc::SIOCGIFINDEX as libc::Ioctl, &mut request) }
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
        let failed = |call: &str, e: Errno| Error {
            what: format!("cannot use the network interface of index {index}"),
            ..refused(&IfName([0; libc::IFNAMSIZ]), call, e)
        };
        let socket = socket().map_err(|e| failed("socket", e))?;
        let request = request_of(&socket, index).map_err(|e| failed("SIOCGIFNAME", e))?;
        Ok(Interface { socket, name: IfName::of_request(&request), index })
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
    /// `E-NODEV` if it is gone, `E-SYSTEM` while it is being renamed.
    pub fn flags(&self) -> Result<u16> {
        let request = self.ask(Property::Flags)?;
        // SAFETY: the request succeeded, so the kernel wrote the flags; every bit pattern is a
        // valid integer.
        Ok(unsafe { request.ifr_ifru.ifru_flags } as u16)
    }

    /// Returns the longest packet that the interface sends, in bytes without the Ethernet header.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone, `E-SYSTEM` while it is being renamed.
    pub fn mtu_bytes(&self) -> Result<u32> {
        let request = self.ask(Property::Mtu)?;
        // SAFETY: the request succeeded, so the kernel wrote the MTU; every bit pattern is a valid
        // integer.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(u32::try_from(mtu).unwrap_or(0))
    }

    /// Reads the interface's link type and address.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone, `E-SYSTEM` while it is being renamed.
    pub fn hardware(&self) -> Result<Hardware> {
        let request = self.ask(Property::Hardware)?;
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
    /// `E-PERM` without CAP_NET_ADMIN, `E-NODEV` if it is gone, `E-SYSTEM` while it is being
    /// renamed.
    pub fn set_up(&self) -> Result<()> {
        let mut request = self.ask(Property::Flags)?;
        // SAFETY: the request succeeded, so the kernel wrote the flags; every bit pattern is a
        // valid integer.
        let flags = unsafe { request.ifr_ifru.ifru_flags } as u16;
        request.ifr_ifru.ifru_flags = (flags | FLAG_UP) as c_short;
        // SAFETY: SIOCSIFFLAGS takes an ifreq, and follows no address in it.
        unsafe { ioctl(&self.socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut request) }
            .map_err(|e| refused(&self.name, "SIOCSIFFLAGS", e))
    }

    /// Restricts `socket`, which is of the interface's network namespace, to packets of this
    /// interface, whatever its present name.
    ///
    /// # Errors
    /// The system's own: EPERM without CAP_NET_RAW before Linux 5.7, ENODEV if the interface is
    /// gone.
    ///
    /// Source: net/core/sock.c `SO_BINDTOIFINDEX` (Linux 5.0).
    pub fn bind(&self, socket: impl AsFd) -> io::Result<()> {
        // The option itself accepts the index of an interface that is gone.
        request_of(&self.socket, self.index)?;
        let index = self.index as c_int;
        let (fd, at) = (socket.as_fd().as_raw_fd(), (&raw const index).cast());
        let (level, bytes) = (libc::SOL_SOCKET, size_of::<c_int>() as libc::socklen_t);
        // SAFETY: the kernel reads the bytes of `index`, which outlives the call.
        check(unsafe { libc::setsockopt(fd, level, libc::SO_BINDTOIFINDEX, at, bytes) }).map(drop)
    }

    /// Reads a property of the opened interface by its present name, and so not one of another
    /// interface that has taken its old name before. The limit of [`Interface::named`] applies.
    fn ask(&self, property: Property) -> Result<libc::ifreq> {
        let mut request = self.named()?;
        let (number, call) = property.request();
        // SAFETY: the requests for properties take an ifreq, and follow no address in it.
        let asked = unsafe { ioctl(&self.socket, number, &mut request) };
        asked.map(|()| request).map_err(|e| self.failed(call, e))
    }

    /// Returns the error of a request by name.
    ///
    /// An interface that is being renamed has no name for some milliseconds. It is not gone: the
    /// error is EAGAIN then. Requests of ethtool keep ENODEV, which they also give for a device that
    /// is being reset.
    ///
    /// Source: net/core/dev.c `netif_change_name`, which waits for readers between both names.
    fn failed(&self, call: &str, errno: Errno) -> Error {
        match errno {
            Errno::NODEV if self.named().is_ok() => refused(&self.name, call, Errno::AGAIN),
            e => refused(&self.name, call, e),
        }
    }

    /// Returns a request with the interface's present name.
    ///
    /// The request itself is another system call, and has no index: if another interface takes the
    /// name between both calls, the request reads or changes that interface.
    fn named(&self) -> Result<libc::ifreq> {
        request_of(&self.socket, self.index).map_err(|e| refused(&self.name, "SIOCGIFNAME", e))
    }
}

/// A property of an interface that the kernel writes into an `ifreq`.
#[derive(Debug, Clone, Copy)]
enum Property {
    Flags,
    Mtu,
    Hardware,
}

impl Property {
    /// Returns the number and the name of the request that reads the property.
    fn request(self) -> (libc::Ioctl, &'static str) {
        let (number, call) = match self {
            Property::Flags => (libc::SIOCGIFFLAGS, "SIOCGIFFLAGS"),
            Property::Mtu => (libc::SIOCGIFMTU, "SIOCGIFMTU"),
            Property::Hardware => (libc::SIOCGIFHWADDR, "SIOCGIFHWADDR"),
        };
        (number as libc::Ioctl, call)
    }
}

/// Returns a request with the present name of the interface of that index.
fn request_of(socket: &OwnedFd, index: u32) -> io::Result<libc::ifreq> {
    let mut request = IfName([0; libc::IFNAMSIZ]).request();
    request.ifr_ifru.ifru_ifindex = index as c_int;
    // SAFETY: SIOCGIFNAME takes an ifreq, and follows no address in it.
    unsafe { ioctl(socket, libc::SIOCGIFNAME as libc::Ioctl, &mut request) }?;
    Ok(request)
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
/// # Safety
/// `number` is one of those: the SIOC[GS]IF* family, TUN's TUNSETIFF and TUNGETIFF, or SIOCETHTOOL
/// with a pointer to what its command takes, which the kernel may read and write until the call
/// returns.
pub(crate) unsafe fn ioctl(
    fd: impl AsFd,
    number: libc::Ioctl,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: the kernel reads and writes one ifreq at the address, which is exclusively borrowed
    // for the call. The caller guarantees that `number` takes an ifreq, and the memory to which the
    // ifreq points.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, request) }).map(drop)
}

/// The remedy if no interface has the name, or the end of that remedy.
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
    use linerate_testing::{in_netns, ip, wait_running};

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

    /// Returns the index of the interface to which a socket is bound.
    fn bound_to(socket: &OwnedFd) -> u32 {
        let (mut index, mut bytes) = (0_u32, size_of::<u32>() as libc::socklen_t);
        let (level, option) = (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX);
        let (fd, at) = (socket.as_raw_fd(), (&raw mut index).cast());
        // SAFETY: the kernel writes at most `bytes` bytes to `index`.
        check(unsafe { libc::getsockopt(fd, level, option, at, &mut bytes) }).unwrap();
        index
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
            let other = socket().unwrap();
            a.bind(&other).unwrap();
            assert_eq!(bound_to(&other), a.index());
            ip("link del w0");
            assert_eq!(a.mtu_bytes().unwrap_err().code, Code::NoDevice);
            assert_eq!(a.bind(&other), Err(Errno::NODEV));
        });
    }

    #[test]
    fn an_interface_that_is_being_renamed_is_not_reported_as_gone() {
        in_netns(|| {
            ip("link add v0 mtu 1400 type veth peer name v1");
            let a = Interface::open("v0").unwrap();
            let path = std::env::temp_dir().join(format!("renames-{}", std::process::id()));
            std::fs::write(&path, "link set v0 name w0\nlink set w0 name v0\n".repeat(2000))
                .unwrap();
            let mut renaming =
                std::process::Command::new("ip").arg("-batch").arg(&path).spawn().unwrap();
            let mut names = std::collections::BTreeSet::new();
            while renaming.try_wait().unwrap().is_none() {
                match a.mtu_bytes() {
                    Ok(mtu) => assert_eq!(mtu, 1400),
                    Err(e) => assert_eq!(e.code, Code::System, "{e}"),
                }
                names.insert(a.present_name().as_str().to_owned());
            }
            std::fs::remove_file(path).unwrap();
            assert_eq!(names.len(), 2, "{names:?}");
        });
    }

    #[test]
    fn a_missing_interface_is_an_error_with_the_remedy() {
        let e = Interface::open("no-such-dev0").unwrap_err();
        assert_eq!(e.code, Code::NoDevice);
        assert_eq!(e.fix, FIND_INTERFACE);
        assert!(e.what.contains("no-such-dev0"), "{e}");
        let e = Interface::by_index(4_000_000).unwrap_err();
        assert_eq!((e.code, e.fix.as_str()), (Code::NoDevice, FIND_INTERFACE));
        assert_eq!(e.what, "cannot use the network interface of index 4000000");
    }
}
