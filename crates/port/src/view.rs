//! Headers of a packet, on the packet: `skb.udp_mut()?.swap_ends()`.
//!
//! The views are those of `linerate-wire`; what they refuse becomes the drop reason that a
//! [`Batch::retain`](linerate_skb::Batch::retain) closure returns.

use linerate_skb::{DropReason, Skb};
use linerate_wire::{
    EthMut, EthRef, Ipv4Mut, Ipv4Ref, Ipv6Mut, Malformed, UdpMut, UdpRef, eth, eth_mut, ipv4,
    ipv4_mut, ipv6_mut, udp, udp_mut,
};

/// Typed views of a packet's headers.
///
/// They see the bytes of the packet's first frame, which hold all headers. Errors are
/// [`DropReason::UNWANTED`] for a packet of another kind, [`DropReason::MALFORMED`] for one that
/// lies, [`DropReason::NO_FRAME`] if it had to be copied to be written and could not.
pub trait Views {
    /// The Ethernet header.
    ///
    /// # Errors
    /// See the trait.
    fn eth(&self) -> Result<EthRef<'_>, DropReason>;
    /// The Ethernet header, for writing.
    ///
    /// # Errors
    /// See the trait.
    fn eth_mut(&mut self) -> Result<EthMut<'_>, DropReason>;
    /// The IPv4 packet.
    ///
    /// # Errors
    /// See the trait.
    fn ipv4(&self) -> Result<Ipv4Ref<'_>, DropReason>;
    /// The IPv4 packet, for writing; its checksum stays right.
    ///
    /// # Errors
    /// See the trait.
    fn ipv4_mut(&mut self) -> Result<Ipv4Mut<'_>, DropReason>;
    /// The IPv6 packet, for writing.
    ///
    /// # Errors
    /// See the trait.
    fn ipv6_mut(&mut self) -> Result<Ipv6Mut<'_>, DropReason>;
    /// The UDP datagram.
    ///
    /// # Errors
    /// See the trait.
    fn udp(&self) -> Result<UdpRef<'_>, DropReason>;
    /// The UDP datagram, for writing; its checksum stays right.
    ///
    /// # Errors
    /// See the trait.
    fn udp_mut(&mut self) -> Result<UdpMut<'_>, DropReason>;
}

/// The drop reason for a frame that a view refused.
fn reason(malformed: Malformed) -> DropReason {
    match malformed {
        Malformed::NotIp
        | Malformed::NotIpv4
        | Malformed::NotIpv6
        | Malformed::NotUdp
        | Malformed::NotTcp
        | Malformed::NotArp
        | Malformed::Fragment => DropReason::UNWANTED,
        _ => DropReason::MALFORMED,
    }
}

/// The bytes of a packet's first frame, for writing.
fn writable(skb: &mut Skb) -> Result<&mut [u8], DropReason> {
    let len = skb.len();
    let data = skb.data_mut();
    if data.is_empty() && len > 0 { Err(DropReason::NO_FRAME) } else { Ok(data) }
}

impl Views for Skb {
    fn eth(&self) -> Result<EthRef<'_>, DropReason> {
        eth(self.data()).map_err(reason)
    }

    fn eth_mut(&mut self) -> Result<EthMut<'_>, DropReason> {
        eth_mut(writable(self)?).map_err(reason)
    }

    fn ipv4(&self) -> Result<Ipv4Ref<'_>, DropReason> {
        ipv4(self.data()).map_err(reason)
    }

    fn ipv4_mut(&mut self) -> Result<Ipv4Mut<'_>, DropReason> {
        let partial = self.offload().needs_checksum();
        let view = ipv4_mut(writable(self)?).map_err(reason)?;
        Ok(if partial { view.with_partial_checksum() } else { view })
    }

    fn ipv6_mut(&mut self) -> Result<Ipv6Mut<'_>, DropReason> {
        ipv6_mut(writable(self)?).map_err(reason)
    }

    fn udp(&self) -> Result<UdpRef<'_>, DropReason> {
        udp(self.data()).map_err(reason)
    }

    fn udp_mut(&mut self) -> Result<UdpMut<'_>, DropReason> {
        udp_mut(writable(self)?).map_err(reason)
    }
}
