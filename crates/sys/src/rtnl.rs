//! The kernel's answers about an interface by rtnetlink: its kind, its other end, its program;
//! and the host's own use of it (host_use.rs).
//!
//! One request, one answer. The answer is the kernel's, and is not trusted: every
//! length is checked against what came.
//!
//! Source: rtnetlink(7), include/uapi/linux/{netlink,rtnetlink,if_link}.h.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::error::{Code, Error, Result};
use crate::netif::{IfName, Interface};

mod host_use;

pub use host_use::HostUse;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
/// The kind of an attribute, without its flags.
const TYPE_MASK: u16 = 0x3fff;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
/// An answer about one interface is a few KiB.
const ANSWER_BYTES: usize = 32 << 10;

/// An interface as rtnetlink describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkInfo {
    /// Its kind, as `veth`; empty for hardware.
    pub kind: String,
    /// Index of the interface that it belongs to: a veth's other end, the parent of a VLAN.
    pub other: Option<u32>,
    /// True if that one is in another network namespace, where its index says nothing here.
    pub other_is_elsewhere: bool,
    /// Ids of the XDP programs that are attached to it.
    pub xdp_programs: Vec<u32>,
}

impl LinkInfo {
    /// Asks about `interface`.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone, `E-SYSTEM` if the kernel does not answer.
    pub fn of(interface: &Interface) -> Result<LinkInfo> {
        let refused = |call: &str, e| refused(interface.name(), call, e);
        // Protocol 0 is NETLINK_ROUTE.
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)
            .map_err(|e| refused("socket(AF_NETLINK)", e))?;
        send(&socket, &request(interface.index()), SendFlags::empty())
            .map_err(|e| refused("RTM_GETLINK", e))?;
        let mut answer = vec![0; ANSWER_BYTES];
        let (n, _) = recv(&socket, &mut answer[..], RecvFlags::empty())
            .map_err(|e| refused("RTM_GETLINK", e))?;
        read(&answer[..n.min(ANSWER_BYTES)]).map_err(|e| refused("RTM_GETLINK", e))
    }
}

fn request(index: u32) -> [u8; HEADER_BYTES + LINK_BYTES] {
    let mut request = [0; HEADER_BYTES + LINK_BYTES];
    let len = request.len() as u32;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    request[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&index.to_ne_bytes());
    request
}

/// Reads an answer: a message about a link, or an error.
fn read(answer: &[u8]) -> std::result::Result<LinkInfo, Errno> {
    let len = u32_at(answer, 0).ok_or(Errno::PROTO)? as usize;
    let message = answer.get(..len).ok_or(Errno::PROTO)?;
    match u16_at(message, 4) {
        Some(RTM_NEWLINK) => {}
        Some(NLMSG_ERROR) => {
            let code = u32_at(message, HEADER_BYTES).unwrap_or(0) as i32;
            return Err(Errno::from_raw_os_error(code.checked_neg().unwrap_or(0)));
        }
        _ => return Err(Errno::PROTO),
    }
    let mut info = LinkInfo::default();
    for (kind, value) in attributes(message.get(HEADER_BYTES + LINK_BYTES..).unwrap_or_default()) {
        match kind {
            IFLA_LINK => info.other = u32_at(value, 0).filter(|index| *index > 0),
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
            }
            _ => {}
        }
    }
    info.xdp_programs.sort_unstable();
    info.xdp_programs.dedup();
    Ok(info)
}

fn is_program(kind: u16) -> bool {
    let kinds = [IFLA_XDP_PROG_ID, IFLA_XDP_DRV_PROG_ID, IFLA_XDP_SKB_PROG_ID, IFLA_XDP_HW_PROG_ID];
    kinds.contains(&kind)
}

/// The attributes that `bytes` begin with; ends at one that is not whole.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(ATTRIBUTE_BYTES..len)?;
        // Each begins at a multiple of four.
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
            Error::os(Code::NoDevice, what, call, errno).fix("ip -br link")
        }
        _ => Error::os(Code::System, what, call, errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_netns, ip};

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
    fn what_is_cut_off_or_senseless_is_no_answer() {
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
            attribute(IFLA_LINKINFO, &attribute(IFLA_INFO_KIND, b"veth\0")),
            attribute(IFLA_XDP | 0x8000, &program),
        ]
        .concat();
        let mut answer = request(1).to_vec();
        answer[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        answer.extend(&body);
        let len = answer.len();
        answer[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        let whole = read(&answer).unwrap();
        assert_eq!((whole.kind.as_str(), whole.other), ("veth", Some(3)));
        assert_eq!(whole.xdp_programs, [7]);
        assert_eq!(read(&answer[..len - 1]).unwrap_err(), Errno::PROTO);
        for cut in HEADER_BYTES + LINK_BYTES..len {
            answer[..4].copy_from_slice(&(cut as u32).to_ne_bytes());
            let _ = read(&answer);
        }
        // An attribute of no length would be looked at for ever.
        answer[HEADER_BYTES + LINK_BYTES..HEADER_BYTES + LINK_BYTES + 2].fill(0);
        answer[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        assert_eq!(read(&answer).unwrap(), LinkInfo::default());
        assert_eq!(read(&[]).unwrap_err(), Errno::PROTO);
    }
}
