//! Stations of other interfaces: unicast addresses, other than its own, for which an interface
//! receives. A macvlan that is up adds its address to those of its lower interface. It may be in
//! another network namespace, such as a container's, whose links are not in the dump of links.
//!
//! Source: include/uapi/linux/neighbour.h, net/core/rtnetlink.c (`rtnl_fdb_dump`).

use rustix::io::Errno;

use super::dump;
use crate::rtnl::{Answer, LINK_BYTES, attributes, u16_at, u32_at};

const RTM_GETNEIGH: u16 = 30;
const FAMILY: u8 = libc::AF_BRIDGE as u8;
/// Length of `struct ndmsg`.
const ENTRY_BYTES: usize = 12;
const NDA_DST: u16 = 1;
const NDA_NH_ID: u16 = 13;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
/// Flag of an entry of the interface itself, and not of its bridge.
const NTF_SELF: u8 = 0x02;

/// Returns the first unicast address other than `own` for which the interface `index` receives;
/// `None` if there is none, or if the kernel does not list them.
pub(super) fn first(index: u32, own: Option<[u8; 6]>) -> Answer<Option<[u8; 6]>> {
    // Without strict checking the kernel reads a `struct ifinfomsg`, whose index selects the
    // interface.
    let mut request = [0; LINK_BYTES];
    request[0] = FAMILY;
    request[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut found: Option<[u8; 6]> = None;
    let each = |message: &[u8]| {
        let other = station(message).filter(|(at, mac)| *at == index && Some(*mac) != own);
        found = found.or(other.map(|(_, mac)| mac));
    };
    match dump(RTM_GETNEIGH, &request, each) {
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(None),
        answer => answer.map(|()| found),
    }
}

/// Returns the index of an interface, and a unicast address for which it receives. An entry of a
/// VXLAN is of a remote address, and has a destination; an entry that is not permanent is an
/// address that a switch has learned.
fn station(message: &[u8]) -> Option<(u32, [u8; 6])> {
    let (index, state) = (u32_at(message, 4)?, u16_at(message, 8)?);
    let (family, flags) = (*message.first()?, *message.get(10)?);
    let body = message.get(ENTRY_BYTES..)?;
    let of = |wanted| attributes(body).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let mac = <[u8; 6]>::try_from(of(NDA_LLADDR)?).ok()?;
    let is_unicast = mac[0] & 1 == 0 && mac != [0; 6];
    let is_permanent =
        state & NUD_PERMANENT != 0 && of(NDA_DST).is_none() && of(NDA_NH_ID).is_none();
    let is_itself = family == FAMILY && flags & NTF_SELF != 0;
    (is_unicast && is_permanent && is_itself).then_some((index, mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// Returns an entry of interface 3.
    fn entry(family: u8, state: u16, flags: u8, mac: [u8; 6]) -> Vec<u8> {
        let mut bytes = vec![family, 0, 0, 0];
        bytes.extend(3u32.to_ne_bytes());
        bytes.extend(state.to_ne_bytes());
        bytes.extend([flags, 0]);
        bytes.extend(10u16.to_ne_bytes());
        bytes.extend(NDA_LLADDR.to_ne_bytes());
        bytes.extend(mac);
        bytes
    }

    #[test]
    fn a_permanent_unicast_address_of_the_interface_itself_is_a_station() {
        let whole = entry(FAMILY, NUD_PERMANENT, NTF_SELF, MAC);
        assert_eq!(station(&whole), Some((3, MAC)));
        assert!((0..whole.len()).all(|len| station(&whole[..len]).is_none()));
        for (other, why) in [
            (entry(libc::AF_INET as u8, NUD_PERMANENT, NTF_SELF, MAC), "of another table"),
            (entry(FAMILY, 0x02, NTF_SELF, MAC), "learned"),
            (entry(FAMILY, NUD_PERMANENT, 0, MAC), "of the bridge"),
            (entry(FAMILY, NUD_PERMANENT, NTF_SELF, [0x33, 0x33, 0, 0, 0, 1]), "of a group"),
            (entry(FAMILY, NUD_PERMANENT, NTF_SELF, [0; 6]), "of no station"),
        ] {
            assert_eq!(station(&other), None, "{why}");
        }
        let mut remote = whole;
        remote.extend([0, 0]);
        remote.extend(8u16.to_ne_bytes());
        remote.extend(NDA_DST.to_ne_bytes());
        remote.extend([10, 0, 0, 1]);
        assert_eq!(station(&remote), None, "of a VXLAN");
    }

    #[test]
    fn an_attribute_of_another_length_is_no_address() {
        let mut bytes = entry(FAMILY, NUD_PERMANENT, NTF_SELF, MAC);
        for len in [0u16, 3, 4, 9, 11, u16::MAX] {
            bytes[ENTRY_BYTES..ENTRY_BYTES + 2].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(station(&bytes), None, "{len}");
        }
    }
}
