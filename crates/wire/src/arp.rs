//! ARP between Ethernet and IPv4: requests, and replies that are made from them in place.
//!
//! Source: RFC 826.

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice, Unaligned};

use crate::{EthEnds, EtherType, Mac, Malformed, eth};

/// Length of a frame made by [`arp_request`]; the device pads it to Ethernet's minimum.
const REQUEST_BYTES: usize = 42;

/// Returns the ARP packet in `frame`.
///
/// Errors: [`Malformed::NotArp`], also for other address families; [`Malformed::Short`].
pub fn arp(frame: &[u8]) -> Result<&ArpPacket, Malformed> {
    split(frame).map(|(_ends, packet)| Ref::into_ref(packet))
}

/// Returns a view for changing the ARP packet in `frame`.
///
/// Errors: as [`arp`].
pub fn arp_mut(frame: &mut [u8]) -> Result<ArpMut<'_>, Malformed> {
    let (ends, packet) = split(frame)?;
    Ok(ArpMut { ends: Ref::into_mut(ends), packet: Ref::into_mut(packet) })
}

/// Returns a broadcast frame that requests the MAC address of `target`.
#[must_use]
pub fn arp_request(sender: Mac, sender_ip: Ipv4Addr, target: Ipv4Addr) -> [u8; REQUEST_BYTES] {
    let packet = ArpPacket {
        hardware: ETHERNET.into(),
        protocol: EtherType::IPV4.0.into(),
        address_lens: [6, 4],
        op: ArpOp::REQUEST.0.into(),
        sender_mac: sender,
        sender_ip: sender_ip.octets(),
        target_mac: Mac([0; 6]),
        target_ip: target.octets(),
    };
    let mut frame = [0; REQUEST_BYTES];
    let head = [&Mac::BROADCAST.0[..], &sender.0, &EtherType::ARP.0.to_be_bytes()];
    let bytes = head.into_iter().chain([packet.as_bytes()]).flatten();
    frame.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    frame
}

/// Number of Ethernet among ARP's link types.
const ETHERNET: u16 = 1;

type Split<B> = (Ref<B, EthEnds>, Ref<B, ArpPacket>);

fn split<B: SplitByteSlice>(frame: B) -> Result<Split<B>, Malformed> {
    let eth = eth::split(frame)?;
    if eth.ether_type != EtherType::ARP {
        return Err(Malformed::NotArp);
    }
    let (packet, _padding) =
        Ref::<B, ArpPacket>::from_prefix(eth.payload).map_err(|_| Malformed::Short)?;
    let families = (packet.hardware.get(), packet.protocol.get(), packet.address_lens);
    if families != (ETHERNET, EtherType::IPV4.0, [6, 4]) {
        return Err(Malformed::NotArp);
    }
    Ok((eth.ends, packet))
}

/// An ARP packet, to be changed in place.
#[derive(Debug)]
pub struct ArpMut<'a> {
    ends: &'a mut EthEnds,
    packet: &'a mut ArpPacket,
}

impl ArpMut<'_> {
    /// Turns the request into a reply, which gives `mac` as the requested address's MAC address.
    ///
    /// Errors: [`Malformed::NotRequest`], and nothing changed.
    /// Source: RFC 826, "Packet Reception".
    pub fn reply(&mut self, mac: Mac) -> Result<(), Malformed> {
        if self.packet.op() != ArpOp::REQUEST {
            return Err(Malformed::NotRequest);
        }
        self.packet.op.set(ArpOp::REPLY.0);
        self.packet.target_mac = std::mem::replace(&mut self.packet.sender_mac, mac);
        std::mem::swap(&mut self.packet.sender_ip, &mut self.packet.target_ip);
        self.ends.turn(mac);
        Ok(())
    }
}

derefs!(ArpMut => packet ArpPacket);

/// A request or a reply.
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

    /// Returns the MAC address of the target; it has no meaning in a request.
    #[must_use]
    pub fn target_mac(&self) -> Mac {
        self.target_mac
    }

    /// Returns the IP address of the target: in a request the requested address, in a reply the
    /// requester's.
    #[must_use]
    pub fn target_ip(&self) -> Ipv4Addr {
        self.target_ip.into()
    }
}

/// The operation of an ARP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArpOp(pub u16);

impl ArpOp {
    /// A request for the MAC address of an IP address.
    pub const REQUEST: ArpOp = ArpOp(1);
    /// A reply: the sender has the requested IP address.
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
    fn a_made_request_reads_as_asked_and_its_reply_goes_to_the_asker() {
        let (asker, ours) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 9]));
        let mut frame = arp_request(asker, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        assert_eq!(frame[..], request()[..42]);
        let mut view = arp_mut(&mut frame).unwrap();
        view.reply(ours).unwrap();
        assert_eq!((view.op(), view.sender_mac(), view.target_mac()), (ArpOp::REPLY, ours, asker));
        assert_eq!(view.sender_ip(), Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(view.target_ip(), Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(view.reply(ours), Err(Malformed::NotRequest));
        assert_eq!(frame[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9]);
    }

    #[test]
    fn other_families_and_cut_frames_are_refused() {
        let mut frame = request();
        assert_eq!(arp(&frame[..41]).unwrap_err(), Malformed::Short);
        // EtherType, hardware type, protocol type and the two address lengths.
        for at in 13..20 {
            frame[at] ^= 2;
            assert_eq!(arp(&frame).unwrap_err(), Malformed::NotArp, "{at}");
            frame[at] ^= 2;
        }
        assert!(arp(&frame).is_ok());
    }
}
