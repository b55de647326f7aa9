//! Queries about an interface by rtnetlink: its kind, its other end, its program; the host's own
//! use of the interface (host_use.rs); the route to an address through it (route.rs); its driver's
//! XDP features (netdev.rs) and its NAPI instances (napi.rs).
//!
//! One request, one answer. The answer is the kernel's, and is not trusted: every
//! length is checked against what came.
//!
//! Source: rtnetlink(7), include/uapi/linux/{netlink,rtnetlink,if_link}.h.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recvfrom, send,
    socket_with,
};

use crate::bpf::Mode;
use crate::error::{Code, Error, Result};
use crate::netif::{HARDWARE_ETHERNET, IfName, Interface};

mod host_use;
mod napi;
mod neighbours;
mod netdev;
mod route;

pub use host_use::{HostUse, UseKind};
use host_use::{dump, dump_by};
pub use napi::Napi;
pub use neighbours::Neighbours;
pub use netdev::XdpFeatures;
pub use route::Route;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
/// Mask of an attribute's kind, which excludes its flags.
const TYPE_MASK: u16 = 0x3fff;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
/// The largest error number: include/linux/err.h.
const ERRNO_MAX: i32 = 4095;
/// Size of the buffer for an answer about one interface; answers have a few KiB.
const ANSWER_BYTES: usize = 32 << 10;

/// An interface as rtnetlink describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkInfo {
    /// The kind of the interface, such as `veth`; empty for hardware.
    pub kind: String,
    /// Index of the related interface: a veth's other end, the parent of a VLAN.
    pub other: Option<u32>,
    /// Index of the bridge or bond that the interface is a member of.
    pub master: Option<u32>,
    /// True if `other` is an index in another network namespace, and so means no interface in this
    /// one.
    pub other_is_elsewhere: bool,
    /// Ids of the XDP programs attached to the interface.
    pub xdp_programs: Vec<u32>,
    /// The place where these programs run; if there are several places, the first one on a packet's
    /// path.
    pub xdp_mode: Option<Mode>,
}

impl LinkInfo {
    /// Queries `interface`.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone, `E-SYSTEM` if the kernel does not answer.
    pub fn of(interface: &Interface) -> Result<LinkInfo> {
        let refused = |call: &str, e| refused(interface.name(), call, e);
        let mut about = [0; LINK_BYTES];
        about[4..8].copy_from_slice(&interface.index().to_ne_bytes());
        let answer =
            ask(RTM_GETLINK, RTM_NEWLINK, &about).map_err(|e| refused("RTM_GETLINK", e))?;
        Ok(read(&answer))
    }
}

impl LinkInfo {
    /// Returns the present members of `master`, a bridge or bond.
    ///
    /// # Errors
    /// `E-SYSTEM` if the kernel does not answer.
    pub fn members_of(master: &Interface) -> Result<Vec<IfName>> {
        let mut found = Vec::new();
        let each = |message: &[u8]| {
            let is_member = read(message).master == Some(master.index());
            found.extend(u32_at(message, 4).filter(|_| is_member));
        };
        dump(RTM_GETLINK, &[0; LINK_BYTES], each)
            .map_err(|e| refused(master.name(), "RTM_GETLINK", e))?;
        found.sort_unstable();
        found.dedup();
        // An interface that was just deleted is not a member any more.
        let name = |index| Interface::by_index(index).ok().map(|member| member.name());
        Ok(found.into_iter().filter_map(name).collect())
    }
}

/// An interface in the kernel's list of all.
struct Listed {
    index: u32,
    is_ethernet: bool,
    info: LinkInfo,
}

/// Returns true if `interface` is hardware or stands on hardware: a bond, a bridge, a VLAN or the
/// like of it, also over several steps. An XDP program on a bond is attached to each of its
/// members, and one in generic mode turns LRO off in all interfaces below.
///
/// Returns true also if the kernel does not answer, or if what is below is in another network
/// namespace.
#[must_use]
pub fn reaches_hardware(interface: &Interface) -> bool {
    let mut links = Vec::new();
    let each = |message: &[u8]| {
        let Some(index) = u32_at(message, 4) else { return };
        let kind = message.get(2..4).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
        let is_ethernet = kind == Some(HARDWARE_ETHERNET);
        links.push(Listed { index, is_ethernet, info: read(message) });
    };
    match dump(RTM_GETLINK, &[0; LINK_BYTES], each) {
        Ok(()) => stands_on_hardware(interface.index(), &links),
        Err(_) => true,
    }
}

/// Returns true if the interface `index` or one below it is hardware.
fn stands_on_hardware(index: u32, links: &[Listed]) -> bool {
    let (mut found, mut next) = (vec![index], 0);
    while let Some(index) = found.get(next).copied() {
        next += 1;
        // An interface that was just deleted has no driver.
        let Some(link) = links.iter().find(|link| link.index == index) else { continue };
        let below: Vec<u32> = match link.info.kind.as_str() {
            "" if link.is_ethernet => return true,
            // The other end of a veth is beside it, not below.
            "" | "veth" => continue,
            "bond" | "team" | "bridge" => {
                let members = links.iter().filter(|link| link.info.master == Some(index));
                members.map(|member| member.index).collect()
            }
            _ if link.info.other.is_some() && link.info.other_is_elsewhere => return true,
            _ => link.info.other.into_iter().collect(),
        };
        found.extend(below.into_iter().filter(|below| !found.contains(below)).collect::<Vec<_>>());
    }
    false
}

type Answer<T> = std::result::Result<T, Errno>;

/// Makes a request by `protocol`, or to rtnetlink without one; returns the socket that will receive
/// the answer.
fn send_by(protocol: Option<Protocol>, kind: u16, flags: u16, body: &[u8]) -> Answer<OwnedFd> {
    let (family, raw) = (AddressFamily::NETLINK, SocketType::RAW);
    let socket = socket_with(family, raw, SocketFlags::CLOEXEC, protocol)?;
    let mut request = vec![0; HEADER_BYTES];
    request[..4].copy_from_slice(&((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    request.extend(body);
    send(&socket, &request, SendFlags::empty())?;
    Ok(socket)
}

/// Sends a request to rtnetlink whose answer is one message of kind `wanted`; returns that
/// message's body.
fn ask(kind: u16, wanted: u16, body: &[u8]) -> Answer<Vec<u8>> {
    ask_by(None, kind, wanted, body)
}

fn ask_by(protocol: Option<Protocol>, kind: u16, wanted: u16, body: &[u8]) -> Answer<Vec<u8>> {
    let socket = send_by(protocol, kind, 0, body)?;
    let mut answer = vec![0; ANSWER_BYTES];
    let n = receive(&socket, &mut answer)?;
    message(&answer[..n], wanted).map(<[u8]>::to_vec)
}

/// Receives the kernel's next message; drops messages of other senders.
fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> Answer<usize> {
    loop {
        let (n, _, from) = match recvfrom(socket, &mut *bytes, RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            got => got?,
        };
        let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
        if from.is_some_and(|from| from.pid() == 0) {
            return Ok(n);
        }
    }
}

/// Returns the body of the first message of kind `wanted` in `answer`, or the error that it
/// contains.
fn message(answer: &[u8], wanted: u16) -> Answer<&[u8]> {
    let len = u32_at(answer, 0).ok_or(Errno::PROTO)? as usize;
    let message = answer.get(..len).ok_or(Errno::PROTO)?;
    match u16_at(message, 4) {
        Some(kind) if kind == wanted => Ok(message.get(HEADER_BYTES..).unwrap_or_default()),
        Some(NLMSG_ERROR) => Err(errno(message)),
        _ => Err(Errno::PROTO),
    }
}

/// Returns the error number in an error message; `PROTO` if it contains none.
fn errno(message: &[u8]) -> Errno {
    let code = u32_at(message, HEADER_BYTES).and_then(|code| (code as i32).checked_neg());
    let code = code.filter(|code| (1..=ERRNO_MAX).contains(code));
    code.map_or(Errno::PROTO, Errno::from_raw_os_error)
}

/// Reads the body of a message about a link.
fn read(link: &[u8]) -> LinkInfo {
    let mut info = LinkInfo::default();
    for (kind, value) in attributes(link.get(LINK_BYTES..).unwrap_or_default()) {
        match kind {
            IFLA_LINK => info.other = u32_at(value, 0).filter(|index| *index > 0),
            IFLA_MASTER => info.master = u32_at(value, 0).filter(|index| *index > 0),
            IFLA_LINK_NETNSID => info.other_is_elsewhere = true,
            IFLA_LINKINFO => {
                let name = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                let name = name.map_or(&[][..], |(_, name)| name);
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                info.kind = String::from_utf8_lossy(name).into_owned();
            }
            IFLA_XDP => {
                let ids = attributes(value).filter(|(kind, _)| is_program(*kind));
                info.xdp_programs.extend(ids.filter_map(|(_, id)| u32_at(id, 0)));
                let mode = attributes(value).find(|(kind, _)| *kind == IFLA_XDP_ATTACHED);
                info.xdp_mode = mode.and_then(|(_, mode)| xdp_mode(*mode.first()?));
            }
            _ => {}
        }
    }
    info.xdp_programs.sort_unstable();
    info.xdp_programs.dedup();
    info
}

/// Returns the mode for the value of the attribute `IFLA_XDP_ATTACHED`; `None` without a program.
fn xdp_mode(attached: u8) -> Option<Mode> {
    match attached {
        0 => None,
        2 => Some(Mode::Generic),
        _ => Some(Mode::Native),
    }
}

fn is_program(kind: u16) -> bool {
    let kinds = [IFLA_XDP_PROG_ID, IFLA_XDP_DRV_PROG_ID, IFLA_XDP_SKB_PROG_ID, IFLA_XDP_HW_PROG_ID];
    kinds.contains(&kind)
}

/// Returns the attributes at the start of `bytes`; ends before an incomplete attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(ATTRIBUTE_BYTES..len)?;
        // Each attribute begins at a multiple of four bytes.
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at.checked_add(2)?)?;
    two.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    four.try_into().ok().map(u32::from_ne_bytes)
}

fn refused(name: IfName, call: &str, errno: Errno) -> Error {
    let what = format!("cannot ask about network interface {name}");
    match errno {
        Errno::NODEV | Errno::NXIO => {
            Error::os(Code::NoDevice, what, call, errno).fix(crate::netif::FIND_INTERFACE)
        }
        _ => Error::os(Code::System, what, call, errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::{in_netns, ip};

    #[test]
    fn a_veth_tells_its_kind_and_its_other_end() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            let (v0, v1) = (Interface::open("v0").unwrap(), Interface::open("v1").unwrap());
            let info = LinkInfo::of(&v0).unwrap();
            assert_eq!((info.kind.as_str(), info.other), ("veth", Some(v1.index())));
            assert!(!info.other_is_elsewhere && info.xdp_programs.is_empty());
            ip("link del v0");
            assert_eq!(LinkInfo::of(&v1).unwrap_err().code, Code::NoDevice);
            let lo = LinkInfo::of(&Interface::open("lo").unwrap()).unwrap();
            assert_eq!(lo, LinkInfo::default());
        });
    }

    #[test]
    fn members_of_a_bridge_and_their_master_are_told() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            ip("link add b0 type bridge");
            let (v0, b0) = (Interface::open("v0").unwrap(), Interface::open("b0").unwrap());
            let members = || LinkInfo::members_of(&b0).unwrap();
            assert_eq!((members().len(), LinkInfo::of(&v0).unwrap().master), (0, None));
            ip("link set v0 master b0");
            assert_eq!(members(), [v0.name()]);
            assert_eq!(LinkInfo::of(&v0).unwrap().master, Some(b0.index()));
            assert_eq!(LinkInfo::of(&b0).unwrap().kind, "bridge");
        });
    }

    #[test]
    fn bond_or_vlan_of_hardware_reaches_it_and_a_veth_with_a_bridge_does_not() {
        let link = |index, kind: &str, other, master| {
            let info = LinkInfo { kind: kind.into(), other, master, ..LinkInfo::default() };
            Listed { index, is_ethernet: true, info }
        };
        let links = [
            link(1, "", None, Some(3)),
            link(2, "", None, Some(3)),
            link(3, "bond", None, None),
            link(4, "vlan", Some(3), None),
            link(5, "bridge", None, None),
            link(6, "veth", Some(7), Some(5)),
            link(7, "veth", Some(6), None),
            link(8, "macvlan", Some(6), None),
            link(9, "bond", None, None),
            // Two interfaces that name each other.
            link(10, "vlan", Some(11), None),
            link(11, "vlan", Some(10), None),
        ];
        let reaching: Vec<u32> = (0..=12).filter(|i| stands_on_hardware(*i, &links)).collect();
        assert_eq!(reaching, [1, 2, 3, 4]);
        let mut elsewhere = link(1, "vlan", Some(2), None);
        elsewhere.info.other_is_elsewhere = true;
        assert!(stands_on_hardware(1, &[elsewhere]));
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            ip("link add b0 type bridge");
            ip("link set v0 master b0");
            for name in ["lo", "v0", "b0"] {
                assert!(!reaches_hardware(&Interface::open(name).unwrap()), "{name}");
            }
        });
    }

    #[test]
    fn error_message_without_an_error_number_is_a_protocol_error() {
        let error = |payload: &[u8]| {
            let mut bytes = vec![0; HEADER_BYTES];
            bytes[..4].copy_from_slice(&((HEADER_BYTES + payload.len()) as u32).to_ne_bytes());
            bytes[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
            bytes.extend(payload);
            message(&bytes, RTM_NEWLINK).unwrap_err()
        };
        assert_eq!(error(&(-libc::ENODEV).to_ne_bytes()), Errno::NODEV);
        assert_eq!(error(&(-4095i32).to_ne_bytes()).raw_os_error(), 4095);
        for code in [0, 1, libc::ENODEV, i32::MAX, -4096, -65_536, i32::MIN] {
            assert_eq!(error(&code.to_ne_bytes()), Errno::PROTO, "{code}");
        }
        assert_eq!((error(&[]), error(&[255; 3])), (Errno::PROTO, Errno::PROTO));
    }

    #[test]
    fn message_of_another_process_is_not_taken_for_the_kernels() {
        use rustix::net::netlink::USERSOCK;
        use rustix::net::{bind, getsockname, sendto};
        let open = || {
            let (family, raw) = (AddressFamily::NETLINK, SocketType::RAW);
            let socket = socket_with(family, raw, SocketFlags::NONBLOCK, Some(USERSOCK)).unwrap();
            bind(&socket, &SocketAddrNetlink::new(0, 0)).unwrap();
            let name = SocketAddrNetlink::try_from(getsockname(&socket).unwrap()).unwrap();
            (socket, name)
        };
        let ((ours, to), (theirs, _)) = (open(), open());
        sendto(&theirs, b"forged", SendFlags::empty(), &to).unwrap();
        assert_eq!(receive(&ours, &mut [0; 64]), Err(Errno::AGAIN));
    }

    #[test]
    fn truncated_or_malformed_answer_is_ignored() {
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let program = attribute(IFLA_XDP_SKB_PROG_ID, &7u32.to_ne_bytes());
        let body = [
            attribute(IFLA_LINK, &3u32.to_ne_bytes()),
            attribute(IFLA_MASTER, &5u32.to_ne_bytes()),
            attribute(IFLA_LINKINFO, &attribute(IFLA_INFO_KIND, b"veth\0")),
            attribute(IFLA_XDP | 0x8000, &program),
        ]
        .concat();
        let link = [vec![0; LINK_BYTES], body].concat();
        let whole = read(&link);
        assert_eq!((whole.kind.as_str(), whole.other), ("veth", Some(3)));
        assert_eq!((whole.xdp_programs.as_slice(), whole.master), (&[7][..], Some(5)));
        for cut in 0..link.len() {
            let _ = read(&link[..cut]);
        }
        let mut answer = vec![0; HEADER_BYTES];
        answer[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        answer.extend(&link);
        let len = answer.len();
        answer[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        assert_eq!(message(&answer, RTM_NEWLINK), Ok(&link[..]));
        assert_eq!(message(&answer[..len - 1], RTM_NEWLINK), Err(Errno::PROTO));
        // An attribute of no length would be looked at for ever.
        let mut endless = link;
        endless[LINK_BYTES..LINK_BYTES + 2].fill(0);
        assert_eq!(read(&endless), LinkInfo::default());
        assert_eq!(message(&[], RTM_NEWLINK), Err(Errno::PROTO));
    }

    #[test]
    fn attributes_of_a_link_say_where_its_other_end_is_and_what_it_belongs_to() {
        let mut link = vec![0; LINK_BYTES];
        for (kind, value) in [(IFLA_LINK, 7u32), (IFLA_MASTER, 0), (IFLA_LINK_NETNSID, 3)] {
            link.extend(8u16.to_ne_bytes());
            link.extend(kind.to_ne_bytes());
            link.extend(value.to_ne_bytes());
        }
        let info = read(&link);
        assert_eq!((info.other, info.other_is_elsewhere, info.master), (Some(7), true, None));
        assert!(!read(&link[..LINK_BYTES + 8]).other_is_elsewhere);
    }
}
