//! ARP between Ethernet and IPv4, read only.
//!
//! Source: RFC 826.

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{EtherType, Mac, Malformed, eth};

/// Returns the ARP packet in `frame`.
///
/// Errors: [`Malformed::NotArp`], also for other address families; [`Malformed::Short`].
pub fn arp(frame: &[u8]) -> Result<&ArpPacket, Malformed> {
    let eth = eth::eth(frame)?;
    if eth.ether_type() != EtherType::ARP {
        return Err(Malformed::NotArp);
    }
    let (packet, _padding) =
        ArpPacket::ref_from_prefix(eth.payload()).map_err(|_| Malformed::Short)?;
    let families = (packet.hardware.get(), packet.protocol.get(), packet.address_lens);
    if families != (1, EtherType::IPV4.0, [6, 4]) {
        return Err(Malformed::NotArp);
    }
    Ok(packet)
}

/// One request or reply: who has this IPv4 address?
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ArpPacket {
    hardware: U16,
    protocol: U16,
    address_lens: [u8; 2],
    op: U16,
    sender_mac: Mac,
    sender_ip: [u8; 4],
    target_mac: Mac,
    target_ip: [u8; 4],
}

const _: () = assert!(size_of::<ArpPacket>() == 28);

impl ArpPacket {
    /// Returns the operation: request or reply.
    #[must_use]
    pub fn op(&self) -> ArpOp {
        ArpOp(self.op.get())
    }

    /// Returns the MAC address of the sender.
    #[must_use]
    pub fn sender_mac(&self) -> Mac {
        self.sender_mac
    }

    /// Returns the IP address of the sender.
    #[must_use]
    pub fn sender_ip(&self) -> Ipv4Addr {
        self.sender_ip.into()
    }

    /// Returns the MAC address of the target; it means nothing in a request.
    #[must_use]
    pub fn target_mac(&self) -> Mac {
        self.target_mac
    }

    /// Returns the IP address of the target: the one asked for, or the one answered.
    #[must_use]
    pub fn target_ip(&self) -> Ipv4Addr {
        self.target_ip.into()
    }
}

/// The operation of an ARP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArpOp(pub u16);

impl ArpOp {
    /// A request: who has this address?
    pub const REQUEST: ArpOp = ArpOp(1);
    /// A reply: the sender has the address.
    pub const REPLY: ArpOp = ArpOp(2);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1, 0x08, 0x06]);
        frame.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
        frame.resize(60, 0);
        frame
    }

    #[test]
    fn a_request_reads_as_written() {
        let frame = request();
        let packet = arp(&frame).unwrap();
        assert_eq!((packet.op(), packet.sender_mac()), (ArpOp::REQUEST, Mac([2, 0, 0, 0, 0, 1])));
        assert_eq!(packet.sender_ip(), Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(packet.target_mac(), Mac([0; 6]));
        assert_eq!(packet.target_ip(), Ipv4Addr::new(10, 0, 0, 2));
    }

    #[test]
    fn other_families_and_cut_frames_are_refused() {
        let mut frame = request();
        assert_eq!(arp(&frame[..41]).unwrap_err(), Malformed::Short);
        frame[18] = 8;
        assert_eq!(arp(&frame).unwrap_err(), Malformed::NotArp);
        frame[13] = 0;
        assert_eq!(arp(&frame).unwrap_err(), Malformed::NotArp);
    }
}
