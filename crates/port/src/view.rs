//! Parsed headers of a packet: `skb.udp_mut()?.swap_ends()`.
//!
//! The views are those of `linerate-wire`; what they refuse becomes the drop reason that a
//! [`Batch::retain`](linerate_skb::Batch::retain) closure returns.

use linerate_skb::{DropReason, Offload, Skb, Trust};
use linerate_wire::{
    ArpMut, ArpPacket, EthMut, EthRef, Head, HeadMut, IcmpMut, IcmpRef, IpRef, Ipv4Mut, Ipv4Ref,
    Ipv6Mut, Ipv6Ref, NdMut, Partial, TcpMut, TcpRef, Toeplitz, TransportMut, TransportRef, UdpMut,
    UdpRef,
};

use crate::host::offload;

/// Typed views of a packet's headers, for reading; [`ViewsMut`] writes.
///
/// A shared packet has them, too. They see the bytes of the packet's first frame, which must hold
/// all headers: of a chain, `payload()` is what that frame has of it, and `behind()` is what
/// follows in the others. All bytes of a payload are reached by `payload_at()` and
/// [`Skb::copy_to`].
///
/// Errors are [`DropReason::UNWANTED`] for a packet of another kind, which is also each fragment of
/// a datagram and a frame with more than two VLAN tags; [`DropReason::MALFORMED`] for one whose
/// headers contradict each other, whose source route does not end here, or with more than eight
/// extension headers; [`DropReason::NO_FRAME`] if it had to be copied to be written and could not;
/// [`DropReason::UNSUPPORTED`] for memory that a peer writes: what a view says must stay true. A
/// filter that passes on what is unwanted passes fragments uninspected, unless it asks
/// [`Views::ip`] for them.
///
/// From a host's own interfaces (veth, tap) packets come whose checksum is left to a device, as
/// [`Skb::offload`] says. The views know: such a checksum is ok if the device makes the right one
/// of it, and what is changed or filled stays for the device to complete. The same is true of
/// the outer UDP checksum of a superframe in a tunnel. Call [`ViewsMut::complete_checksum`] before
/// you read or write a checksum without a view.
pub trait Views {
    /// Returns the Ethernet header.
    ///
    /// # Errors
    /// See the trait.
    fn eth(&self) -> Result<EthRef<'_>, DropReason>;
    /// Returns the ARP packet.
    ///
    /// # Errors
    /// See the trait.
    fn arp(&self) -> Result<&ArpPacket, DropReason>;
    /// Returns the IP packet, of either version.
    ///
    /// # Errors
    /// See the trait.
    fn ip(&self) -> Result<IpRef<'_>, DropReason>;
    /// Returns the IPv4 packet.
    ///
    /// # Errors
    /// See the trait.
    fn ipv4(&self) -> Result<Ipv4Ref<'_>, DropReason>;
    /// Returns the IPv6 packet.
    ///
    /// # Errors
    /// See the trait.
    fn ipv6(&self) -> Result<Ipv6Ref<'_>, DropReason>;
    /// Returns the UDP datagram.
    ///
    /// # Errors
    /// See the trait.
    fn udp(&self) -> Result<UdpRef<'_>, DropReason>;
    /// Returns the TCP segment.
    ///
    /// # Errors
    /// See the trait.
    fn tcp(&self) -> Result<TcpRef<'_>, DropReason>;
    /// Returns the UDP datagram or TCP segment.
    ///
    /// # Errors
    /// See the trait.
    fn transport(&self) -> Result<TransportRef<'_>, DropReason>;
    /// Returns the ICMP or ICMPv6 message.
    ///
    /// # Errors
    /// See the trait.
    fn icmp(&self) -> Result<IcmpRef<'_>, DropReason>;
    /// Returns the number of the network of a VXLAN packet to UDP port `port`, so that a packet of
    /// another network can pass unchanged: [`Head::vxlan_vni`].
    ///
    /// # Errors
    /// See the trait; [`DropReason::UNWANTED`] also for a packet to another port, and for one
    /// without a network's number.
    fn vxlan_vni(&self, port: u16) -> Result<u32, DropReason>;
    /// Returns a hash of the packet's flow, equal in both directions: [`Head::flow_hash`]. Returns
    /// 0 if a peer can write the packet's memory.
    fn flow_hash(&self) -> u32;
    /// Returns the RSS hash that a device computes for the packet: [`Head::rss_hash`]. Returns 0 if
    /// a peer can write the packet's memory.
    fn rss_hash(&self, toeplitz: &Toeplitz) -> u32;
}

/// Typed views of a packet's headers, for writing.
///
/// See [`Views`] for what they see, and for their errors.
pub trait ViewsMut: Views {
    /// Returns the Ethernet header, for writing.
    ///
    /// # Errors
    /// See [`Views`].
    fn eth_mut(&mut self) -> Result<EthMut<'_>, DropReason>;
    /// Returns the ARP packet, for writing: `skb.arp_mut()?.reply(mac)`.
    ///
    /// # Errors
    /// See [`Views`].
    fn arp_mut(&mut self) -> Result<ArpMut<'_>, DropReason>;
    /// Returns the neighbour solicitation of IPv6, for answering: `skb.nd_mut()?.reply(mac)`.
    ///
    /// # Errors
    /// See [`Views`].
    fn nd_mut(&mut self) -> Result<NdMut<'_>, DropReason>;
    /// Returns the IPv4 packet, for writing; its checksum is kept correct.
    ///
    /// # Errors
    /// See [`Views`].
    fn ipv4_mut(&mut self) -> Result<Ipv4Mut<'_>, DropReason>;
    /// Returns the IPv6 packet, for writing.
    ///
    /// # Errors
    /// See [`Views`].
    fn ipv6_mut(&mut self) -> Result<Ipv6Mut<'_>, DropReason>;
    /// Returns the UDP datagram, for writing; its checksum is kept correct.
    ///
    /// # Errors
    /// See [`Views`].
    fn udp_mut(&mut self) -> Result<UdpMut<'_>, DropReason>;
    /// Returns the TCP segment, for writing; its checksum is kept correct.
    ///
    /// # Errors
    /// See [`Views`].
    fn tcp_mut(&mut self) -> Result<TcpMut<'_>, DropReason>;
    /// Returns the UDP datagram or TCP segment, for writing; its checksum is kept correct.
    ///
    /// # Errors
    /// See [`Views`].
    fn transport_mut(&mut self) -> Result<TransportMut<'_>, DropReason>;
    /// Returns the ICMP or ICMPv6 message, for writing; its checksum is kept correct.
    ///
    /// # Errors
    /// See [`Views`].
    fn icmp_mut(&mut self) -> Result<IcmpMut<'_>, DropReason>;
    /// Completes the checksum that is left to a device, if there is one: for any protocol, at any
    /// depth of headers, over all frames, in private or exported memory.
    ///
    /// Cost: reads all behind the header, if there is something to do.
    ///
    /// # Errors
    /// [`DropReason::UNSUPPORTED`] for a superframe, whose segments have a checksum each;
    /// [`DropReason::MALFORMED`] if the checksum's place is not in the packet;
    /// [`DropReason::NO_FRAME`] if it had to be copied to be written and could not.
    fn complete_checksum(&mut self) -> Result<(), DropReason>;
}

/// Returns the head of the packet: its first frame, and the number of bytes in the frames after it.
fn head<S>(skb: &Skb<S>) -> Result<Head<'_>, DropReason> {
    private(skb)?;
    let (bytes, left) = (skb.data(), skb.offload());
    let head = Head::new(bytes, skb.len() - bytes.len());
    Ok(head.with_partial(partial(left)).with_superframe(left.is_gso()))
}

/// Returns the first frame for writing, as [`head`].
pub(crate) fn head_mut(skb: &mut Skb) -> Result<HeadMut<'_>, DropReason> {
    private(skb)?;
    let (len, left) = (skb.len(), skb.offload());
    let bytes = skb.data_mut();
    // The packet has bytes but none can be written: its frame is shared, and no frame was free for
    // a copy.
    if bytes.is_empty() && len > 0 {
        return Err(DropReason::NO_FRAME);
    }
    let behind = len - bytes.len();
    let head = HeadMut::new(bytes, behind);
    Ok(head.with_partial(partial(left)).with_superframe(left.is_gso()))
}

/// Returns the checksum that a packet with the offload `left` leaves to a device, if there is one.
fn partial(left: Offload) -> Option<Partial> {
    let partial = Partial { start: left.csum_start.into(), offset: left.csum_offset.into() };
    left.needs_checksum().then_some(partial)
}

/// Refuses memory that a peer can write.
pub(crate) fn private<S>(skb: &Skb<S>) -> Result<(), DropReason> {
    match skb.trust() {
        Trust::Private => Ok(()),
        Trust::Exported => Err(DropReason::UNSUPPORTED),
    }
}

impl<S> Views for Skb<S> {
    fn eth(&self) -> Result<EthRef<'_>, DropReason> {
        Ok(head(self)?.eth()?)
    }

    fn arp(&self) -> Result<&ArpPacket, DropReason> {
        Ok(head(self)?.arp()?)
    }

    fn ip(&self) -> Result<IpRef<'_>, DropReason> {
        Ok(head(self)?.ip()?)
    }

    fn ipv4(&self) -> Result<Ipv4Ref<'_>, DropReason> {
        Ok(head(self)?.ipv4()?)
    }

    fn ipv6(&self) -> Result<Ipv6Ref<'_>, DropReason> {
        Ok(head(self)?.ipv6()?)
    }

    fn udp(&self) -> Result<UdpRef<'_>, DropReason> {
        Ok(head(self)?.udp()?)
    }

    fn tcp(&self) -> Result<TcpRef<'_>, DropReason> {
        Ok(head(self)?.tcp()?)
    }

    fn transport(&self) -> Result<TransportRef<'_>, DropReason> {
        Ok(head(self)?.transport()?)
    }

    fn icmp(&self) -> Result<IcmpRef<'_>, DropReason> {
        Ok(head(self)?.icmp()?)
    }

    fn vxlan_vni(&self, port: u16) -> Result<u32, DropReason> {
        Ok(head(self)?.vxlan_vni(port)?)
    }

    fn flow_hash(&self) -> u32 {
        head(self).map_or(0, Head::flow_hash)
    }

    fn rss_hash(&self, toeplitz: &Toeplitz) -> u32 {
        head(self).map_or(0, |head| head.rss_hash(toeplitz))
    }
}

impl ViewsMut for Skb {
    fn eth_mut(&mut self) -> Result<EthMut<'_>, DropReason> {
        Ok(head_mut(self)?.eth()?)
    }

    fn arp_mut(&mut self) -> Result<ArpMut<'_>, DropReason> {
        Ok(head_mut(self)?.arp()?)
    }

    fn nd_mut(&mut self) -> Result<NdMut<'_>, DropReason> {
        Ok(head_mut(self)?.nd()?)
    }

    fn ipv4_mut(&mut self) -> Result<Ipv4Mut<'_>, DropReason> {
        Ok(head_mut(self)?.ipv4()?)
    }

    fn ipv6_mut(&mut self) -> Result<Ipv6Mut<'_>, DropReason> {
        Ok(head_mut(self)?.ipv6()?)
    }

    fn udp_mut(&mut self) -> Result<UdpMut<'_>, DropReason> {
        Ok(head_mut(self)?.udp()?)
    }

    fn tcp_mut(&mut self) -> Result<TcpMut<'_>, DropReason> {
        Ok(head_mut(self)?.tcp()?)
    }

    fn transport_mut(&mut self) -> Result<TransportMut<'_>, DropReason> {
        Ok(head_mut(self)?.transport()?)
    }

    fn icmp_mut(&mut self) -> Result<IcmpMut<'_>, DropReason> {
        Ok(head_mut(self)?.icmp()?)
    }

    fn complete_checksum(&mut self) -> Result<(), DropReason> {
        let left = self.offload();
        if left.is_pending() { offload::finish_one(self, left) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{PARTIAL, bytes, unfinished};
    use linerate_skb::Pool;
    use linerate_wire::{Mac, checksum, udp};

    /// Returns a UDP/IPv4 frame with `payload` zeros, without a UDP checksum and with a right IP
    /// checksum.
    fn datagram(payload: usize) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend((28 + payload as u16).to_be_bytes());
        frame.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([3, 232, 7, 208]);
        frame.extend((8 + payload as u16).to_be_bytes());
        frame.resize(42 + payload, 0);
        let check = checksum::finish(checksum::sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&check.to_be_bytes());
        frame
    }

    #[test]
    fn the_head_of_a_chain_is_viewed_like_a_whole_packet() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let mut skb = pool.local().alloc_copy(&datagram(5000)).unwrap();
        assert!(!skb.is_linear());
        let mut ip = skb.ipv4_mut().unwrap();
        ip.set_dscp(46);
        ip.set_src([192, 0, 2, 9].into());
        assert!(ip.dec_ttl());
        skb.udp_mut().unwrap().swap_ends();

        let mut bytes = vec![0; skb.len()];
        assert_eq!(skb.copy_to(0, &mut bytes), 5042);
        let whole = udp(&bytes).unwrap();
        assert_eq!((whole.src_port(), whole.dst_port()), (2000, 1000));
        assert_eq!(whole.ip().dst().to_string(), "192.0.2.9");
        assert_eq!(bytes[15] >> 2, 46);
        let view = skb.udp().unwrap();
        assert_eq!(view.payload().len() + view.behind(), whole.payload().len());
        assert_eq!((view.payload_at(), skb.transport().unwrap().payload_at()), (42, 42));
        assert!(view.behind() > 0 && skb.ipv4().unwrap().checksum_ok());
        assert_eq!(skb.ip().unwrap().dst(), whole.ip().dst());
        assert_eq!(skb.eth().unwrap().dst(), Mac([2, 0, 0, 0, 0, 2]));
    }

    #[test]
    fn shared_packet_is_read_by_the_same_views() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let mut skb = pool.local().alloc_copy(&datagram(8)).unwrap();
        let (hash, shared) = (skb.flow_hash(), skb.share());
        assert_eq!(shared.udp().unwrap().dst_port(), 2000);
        assert_eq!((shared.flow_hash(), shared.tcp().is_err()), (hash, true));
    }

    #[test]
    fn another_protocol_is_unwanted_and_a_lie_is_malformed() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let mut mem = pool.local();
        let skb = mem.alloc_copy(&datagram(5000)).unwrap();
        assert_eq!(skb.tcp().unwrap_err(), DropReason::UNWANTED);
        assert_eq!(skb.arp().unwrap_err(), DropReason::UNWANTED);
        assert_eq!(skb.ipv6().unwrap_err(), DropReason::UNWANTED);
        let cut = mem.alloc_copy(&datagram(5000)[..5041]).unwrap();
        assert_eq!(cut.ipv4().unwrap_err(), DropReason::MALFORMED);
    }

    #[test]
    fn a_shared_chain_that_cannot_be_copied_is_not_written() {
        let pool = Pool::builder().frames(4).build().unwrap();
        let mut skb = pool.local().alloc_copy(&datagram(5000)).unwrap();
        let shared = skb.share();
        assert_eq!(skb.ipv4_mut().unwrap_err(), DropReason::NO_FRAME);
        drop(shared);
        assert!(skb.ipv4_mut().is_ok());
    }

    #[test]
    fn memory_that_a_peer_writes_has_no_views() {
        let pool = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
        let mut skb = pool.local().alloc_copy(&datagram(5000)).unwrap();
        assert_eq!(skb.ip().unwrap_err(), DropReason::UNSUPPORTED);
        assert_eq!(skb.udp_mut().unwrap_err(), DropReason::UNSUPPORTED);
    }

    #[test]
    fn a_partial_checksum_is_completed_in_memory_that_a_peer_writes() {
        let pool = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
        let mut skb = unfinished(&pool, 5000);
        skb.complete_checksum().unwrap();
        assert!(udp(&bytes(&skb)).unwrap().checksum_ok());
        skb.set_offload(Offload { gso_type: 5, gso_size: 100, ..PARTIAL });
        assert_eq!(skb.complete_checksum(), Err(DropReason::UNSUPPORTED));
    }

    #[test]
    fn an_outer_checksum_filled_over_an_unfinished_packet_leaves_right() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let mut skb = unfinished(&pool, 5000);
        let inner = skb.len() - 14;
        let mut outer = datagram(inner);
        outer.truncate(42);
        assert!(skb.pull(14));
        skb.push(42).unwrap().copy_from_slice(&outer);
        assert_eq!(skb.offload().csum_start, 62);
        assert!(skb.udp_mut().unwrap().fill_checksum());
        skb.ipv4_mut().unwrap().set_dst([192, 0, 2, 7].into());
        assert!(skb.udp().unwrap().checksum_ok());
        skb.complete_checksum().unwrap();
        let sent = bytes(&skb);
        assert!(udp(&sent).unwrap().checksum_ok());
        assert!(udp(&[&sent[..14], &sent[42..]].concat()).unwrap().checksum_ok());
    }
}
