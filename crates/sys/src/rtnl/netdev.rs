//! The XDP features that a driver reports, by the kernel's `netdev` family of generic netlink.
//! Opens and changes nothing.
//!
//! Two requests: the number of the family by its name, then the device. Both answers are bounded
//! and checked like those of rtnetlink.
//!
//! Source: Documentation/netlink/specs/netdev.yaml, include/uapi/linux/{genetlink,netdev}.h (Linux
//!         6.3; segments 6.6).

use rustix::io::Errno;
use rustix::net::netlink::GENERIC;

use super::{Answer, ask_by, attributes, refused, u16_at, u32_at};
use crate::error::Result;
use crate::netif::Interface;

/// `GENL_ID_CTRL`, which is also the kind of the answers.
const CONTROL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
/// `struct genlmsghdr`: command, version, two unused bytes.
const COMMAND_BYTES: usize = 4;

/// `NETDEV_XDP_ACT_*`, with the names that the kernel's own tools use.
const FEATURES: [(u64, &str); 7] = [
    (1, "basic"),
    (2, "redirect"),
    (4, "ndo-xmit"),
    (8, "xsk-zerocopy"),
    (16, "hw-offload"),
    (32, "rx-sg"),
    (64, "ndo-xmit-sg"),
];

/// The XDP features of a driver, as it reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct XdpFeatures {
    bits: u64,
    /// Most frames of a packet that an AF_XDP socket sends without a copy; `None` if the kernel
    /// does not report it.
    pub zero_copy_frames_max: Option<u32>,
}

impl XdpFeatures {
    /// Queries `interface`; returns `None` before Linux 6.3, which does not support the query.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone, `E-SYSTEM` if the kernel does not answer.
    ///
    /// Cost: two requests. For setup.
    pub fn of(interface: &Interface) -> Result<Option<XdpFeatures>> {
        match ask_device(interface.index()) {
            Ok(features) => Ok(Some(features)),
            Err(Errno::NOENT | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT) => Ok(None),
            Err(e) => Err(refused(interface.name(), "netdev-genl", e)),
        }
    }

    /// Returns true if the driver runs XDP programs itself.
    #[must_use]
    pub fn has_programs(self) -> bool {
        self.bits & 1 != 0
    }

    /// Returns true if the driver reads and writes the frames of AF_XDP sockets in place.
    #[must_use]
    pub fn has_zero_copy(self) -> bool {
        self.bits & 8 != 0
    }

    /// Returns the features with the names that the kernel's tools use; unknown features as
    /// numbers.
    #[must_use]
    pub fn words(self) -> Vec<String> {
        let known = FEATURES.iter().filter(|(bit, _)| self.bits & bit != 0);
        let mut words: Vec<String> = known.map(|(_, word)| (*word).to_owned()).collect();
        let others = FEATURES.iter().fold(self.bits, |bits, (bit, _)| bits & !bit);
        if others != 0 {
            words.push(format!("{others:#x}"));
        }
        words
    }
}

/// Requests the number of the family, which the kernel assigns.
pub(super) fn family() -> Answer<u16> {
    let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let answer = ask_by(Some(GENERIC), CONTROL, CONTROL, &command(CTRL_CMD_GETFAMILY, &name))?;
    find(&answer, CTRL_ATTR_FAMILY_ID).and_then(|value| u16_at(value, 0)).ok_or(Errno::PROTO)
}

fn ask_device(index: u32) -> Answer<XdpFeatures> {
    let family = family()?;
    let about = attribute(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    let answer = ask_by(Some(GENERIC), family, family, &command(NETDEV_CMD_DEV_GET, &about))?;
    read(&answer).ok_or(Errno::PROTO)
}

fn read(answer: &[u8]) -> Option<XdpFeatures> {
    let bits = find(answer, NETDEV_A_DEV_XDP_FEATURES)?;
    let bits = u64::from_ne_bytes(bits.get(..8)?.try_into().ok()?);
    let most = find(answer, NETDEV_A_DEV_XDP_ZC_MAX_SEGS).and_then(|value| u32_at(value, 0));
    Some(XdpFeatures { bits, zero_copy_frames_max: most })
}

pub(super) fn find(answer: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(answer.get(COMMAND_BYTES..)?)
        .find(|(kind, _)| *kind == wanted)
        .map(|(_, value)| value)
}

pub(super) fn command(command: u8, body: &[u8]) -> Vec<u8> {
    [&[command, 1, 0, 0], body].concat()
}

pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use linerate_testing::{in_netns, ip};

    #[test]
    fn a_veth_says_that_it_has_programs_and_no_zero_copy() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            let v0 = Interface::open("v0").unwrap();
            let Some(features) = XdpFeatures::of(&v0).unwrap() else {
                return eprintln!("skipped: this kernel does not say");
            };
            assert!(features.has_programs(), "{features:?}");
            assert!(!features.has_zero_copy(), "{features:?}");
            assert_eq!(features.words()[..2], ["basic", "redirect"]);
            let lo = XdpFeatures::of(&Interface::open("lo").unwrap()).unwrap().unwrap();
            assert!(!lo.has_programs(), "{lo:?}");
            ip("link del v0");
            assert_eq!(XdpFeatures::of(&v0).unwrap_err().code, Code::NoDevice);
        });
    }

    #[test]
    fn an_answer_that_is_cut_off_or_without_end_is_none() {
        let body = [
            attribute(NETDEV_A_DEV_IFINDEX, &7u32.to_ne_bytes()),
            attribute(NETDEV_A_DEV_XDP_ZC_MAX_SEGS, &17u32.to_ne_bytes()),
            attribute(NETDEV_A_DEV_XDP_FEATURES, &0x10bu64.to_ne_bytes()),
        ];
        let whole = command(NETDEV_CMD_DEV_GET, &body.concat());
        let features = read(&whole).unwrap();
        assert_eq!(features.zero_copy_frames_max, Some(17));
        assert_eq!(features.words(), ["basic", "redirect", "xsk-zerocopy", "0x100"]);
        assert!(features.has_zero_copy());
        assert!((0..whole.len()).all(|len| read(&whole[..len]).is_none()));
        let mut endless = whole;
        endless[4..6].fill(0);
        assert_eq!(read(&endless), None);
    }
}
