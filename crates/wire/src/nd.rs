//! Neighbour discovery of IPv6: a solicitation, and the advertisement that is made from it in
//! place.
//!
//! ```text
//! | ICMPv6 135 | .. | target 16 | 1 | 1 | MAC of the sender 6 | other options
//! | ICMPv6 136 | SO | target 16 | 2 | 1 | MAC of the target 6 | other options
//! ```
//!
//! Source: RFC 4861 sections 4.3, 4.4, 7.1.1 and 7.2.4.

use std::net::{IpAddr, Ipv6Addr};

use crate::icmp::{self, IcmpMut};
use crate::{HeadMut, IpRef, Mac, Malformed};

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Hop limit of a message that no router has forwarded.
const HOPS: u8 = 255;
/// The flags "solicited" and "override" of an advertisement, in the first word after the checksum.
const SOLICITED_OVERRIDE: u16 = 0x6000;
/// First byte of a multicast address.
const MULTICAST: u8 = 0xff;
/// Length of the target address; options follow it.
const TARGET_BYTES: usize = 16;
/// The option with a sender's MAC address, and next the one with a target's: kind, and length in
/// units of 8 bytes.
const SENDERS_MAC: [u8; 2] = [1, 1];
const TARGETS_MAC: [u8; 2] = [2, 1];

/// Returns a view for answering the neighbour solicitation in `frame`.
///
/// Errors: [`Malformed::NotNd`] for another message, for one that a node must not answer (forwarded
///         by a router, checksum wrong, an option that is cut off, a multicast target), and for one
///         without the sender's MAC address, as duplicate address detection sends it: the answer
///         would be longer.
/// Cost:   reads the whole message.
pub fn nd_mut(frame: &mut [u8]) -> Result<NdMut<'_>, Malformed> {
    write(HeadMut::new(frame, 0))
}

pub(crate) fn write(head: HeadMut<'_>) -> Result<NdMut<'_>, Malformed> {
    let whole = icmp::read(head.as_head())?;
    let mac_at = mac_option(whole.payload()).ok_or(Malformed::NotNd)?;
    let IpRef::V6(ip) = whole.ip() else { return Err(Malformed::NotNd) };
    let sound = ip.hop_limit() == HOPS && !ip.src().is_unspecified() && whole.checksum_ok();
    if (whole.icmp_type(), whole.code()) != (SOLICITATION, 0) || !sound {
        return Err(Malformed::NotNd);
    }
    Ok(NdMut { icmp: icmp::write(head)?, mac_at })
}

/// Returns the offset in the payload of the first option with the sender's MAC address; `None` also
/// if the target is a multicast address, or if any option has no length or is cut off.
fn mac_option(payload: &[u8]) -> Option<usize> {
    let (mut at, mut found) = (TARGET_BYTES, None);
    let is_multicast = *payload.first()? == MULTICAST;
    while at < payload.len() {
        let option = &payload[at..];
        let len = 8 * usize::from(*option.get(1)?);
        if len == 0 || len > option.len() {
            return None;
        }
        if option[..2] == SENDERS_MAC {
            found = found.or(Some(at));
        }
        at += len;
    }
    found.filter(|_| !is_multicast)
}

/// A neighbour solicitation: a request for the MAC address of an IPv6 address.
#[derive(Debug)]
pub struct NdMut<'a> {
    icmp: IcmpMut<'a>,
    /// Offset in the payload of the option with the sender's MAC address.
    mac_at: usize,
}

impl NdMut<'_> {
    /// Returns the requested address.
    #[must_use]
    pub fn target(&self) -> Ipv6Addr {
        let bytes = self.icmp.payload().first_chunk().copied();
        Ipv6Addr::from(bytes.unwrap_or([0; TARGET_BYTES]))
    }

    /// Turns the solicitation into an advertisement, which gives `mac` as the requested address's
    /// MAC address.
    ///
    /// Errors: [`Malformed::NotRequest`], and nothing changed, if it is one already; one message
    ///         has one answer.
    /// Cost:   reads the whole message.
    pub fn reply(&mut self, mac: Mac) -> Result<(), Malformed> {
        if self.icmp.icmp_type() != SOLICITATION {
            return Err(Malformed::NotRequest);
        }
        let (asker, target) = (self.icmp.src(), self.target());
        self.icmp.set_icmp_type(ADVERTISEMENT);
        self.icmp.set_ident(SOLICITED_OVERRIDE);
        self.icmp.set_seq(0);
        let option = &mut self.icmp.payload_mut()[self.mac_at..];
        option[..2].copy_from_slice(&TARGETS_MAC);
        option[2..8].copy_from_slice(&mac.0);
        self.icmp.set_addrs(target.into(), asker)?;
        self.icmp.ends.turn(mac);
        // The whole message is in the slice, because its checksum was verified.
        let filled = self.icmp.fill_checksum();
        debug_assert!(filled);
        Ok(())
    }

    /// Returns the address of the node that sent the solicitation.
    #[must_use]
    pub fn src(&self) -> IpAddr {
        self.icmp.src()
    }
}
