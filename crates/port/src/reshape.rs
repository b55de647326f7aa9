//! Changes of a packet's length: adds and removes headers, resizes payloads.
//!
//! ```text
//!  frame   [ headroom | data .......... | tailroom ]    a header takes headroom, a payload tailroom
//! ```
//!
//! The bytes are written by `linerate-wire`. A checksum that is left to a device stays left to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_skb::{DropReason, Offload, Skb, Vlan};
use linerate_sys::vnet::F_NEEDS_CSUM;
use linerate_wire::{
    EtherType, Head, HeadMut, IPV4_BYTES, IPV6_BYTES, IcmpError, Inner, Malformed, Protocol,
    Tunnel, VLAN_BYTES, VlanTag, checksum,
};

use crate::host::headers::{self, UDP_CHECK};
use crate::host::offload::{self, TAG_AT};
use crate::host::place;
use crate::segment::Cutter;
use crate::view::{Views, ViewsMut, head_mut, private};

/// The UDP port of VXLAN.
const VXLAN_PORT: u16 = 4789;

/// Bytes of an Ethernet header and the longest packet that an IP header's length field can express.
const LONGEST_BYTES: usize = 14 + u16::MAX as usize;
/// Offset of a tunnel's UDP header over IPv6.
const TUNNEL_V6_UDP: u16 = 54;

/// Methods that add and remove headers and change the length of payloads.
///
/// Errors, beside those of [`Views`]: [`DropReason::TOO_LONG`] if the first frame has no room, or
/// the packet would be over 64 KiB, as a superframe of nearly 64 KiB is with a header (`ip link set
/// tun0 gso_max_size 65000 gso_ipv4_max_size 65000` makes the host's shorter);
/// [`DropReason::UNSUPPORTED`] for a superframe that no port could cut then. After an error the
/// packet is as it was, except that SCTP's CRC, if it was left to a device, may be complete.
///
/// A VLAN tag that is kept in the metadata ([`Skb::vlan`]) is the outermost tag. What
/// [`Reshape::push_vlan`], [`Reshape::push_vxlan`] and [`Reshape::push_geneve`] add lies outside of
/// it, so they move it into the bytes first. The headers of [`Reshape::push_ipv4`] and
/// [`Reshape::push_ipv6`] lie inside it, so they leave it in the metadata.
///
/// A header for which there is no method is pushed and pulled as bytes. This puts IP packets into
/// UDP datagrams, without their Ethernet headers, and takes them out again:
///
/// ```
/// # mod linerate {
/// #     pub use linerate_port::{Views, ViewsMut}; pub use linerate_skb::{DropReason, Pool, Skb};
/// #     pub use linerate_wire as wire;
/// # }
/// use linerate::wire::{EtherType, Mac, UdpEnds};
/// use linerate::{DropReason, Skb, Views, ViewsMut};
///
/// fn into_udp(skb: &mut Skb, ends: &UdpEnds, mtu: usize) -> Result<(), DropReason> {
///     skb.ip()?; // ARP stays outside
///     let ip_bytes = skb.eth()?.payload().len();
///     let eth_bytes = skb.data().len() - ip_bytes; // with VLAN tags
///     if !skb.is_linear() || ip_bytes + ends.header_bytes() - 14 > mtu {
///         return Err(DropReason::TOO_LONG); // an MTU does not count Ethernet's 14
///     }
///     skb.complete_checksum()?; // refuses superframes; the new checksum covers this one
///     skb.push(ends.header_bytes() - eth_bytes).ok_or(DropReason::TOO_LONG)?;
///     Ok(ends.write(skb.data_mut())?)
/// }
///
/// fn out_of_udp(skb: &mut Skb, src: Mac, dst: Mac) -> Result<(), DropReason> {
///     let udp = skb.udp()?;
///     let ether_type = match udp.payload().first().map(|byte| byte >> 4) {
///         Some(4) => EtherType::IPV4,
///         Some(6) => EtherType::IPV6,
///         _ => return Err(DropReason::UNWANTED),
///     };
///     let (outer_bytes, bytes) = (udp.payload_at(), udp.payload().len() + udp.behind());
///     let is_whole = skb.is_linear() || skb.len() == outer_bytes + bytes;
///     if skb.offload().is_gso() || !is_whole {
///         return Err(DropReason::UNSUPPORTED); // outer datagrams that GRO has joined
///     }
///     let mut eth = [0; 14];
///     eth[..6].copy_from_slice(&dst.0);
///     eth[6..12].copy_from_slice(&src.0);
///     eth[12..].copy_from_slice(&ether_type.0.to_be_bytes());
///     // Pull all of the outer headers, so that a checksum which they left to a device is dropped.
///     // What follows the datagram goes, too, and so does a VLAN tag in the metadata.
///     let is_taken = skb.pull(outer_bytes) && (skb.len() == bytes || skb.trim(bytes));
///     let room = is_taken.then(|| skb.push(14)).flatten().ok_or(DropReason::NO_FRAME)?;
///     room.copy_from_slice(&eth);
///     skb.set_vlan(None);
///     Ok(())
/// }
/// # let mut local = linerate::Pool::builder().frames(64).build().unwrap().local();
/// # let ends = |src: &str, dst: &str| UdpEnds {
/// #     src_mac: Mac([2; 6]), dst_mac: Mac([4; 6]),
/// #     src: src.parse().unwrap(), dst: dst.parse().unwrap(),
/// # };
/// # for [src, dst] in [["10.0.0.1:1", "10.0.0.2:2"], ["[fd00::1]:1", "[fd00::2]:2"]] {
/// #     let mut inner = vec![7; 200];
/// #     ends(src, dst).write(&mut inner).unwrap();
/// #     for outer in [ends("192.0.2.1:3", "192.0.2.2:4"), ends("[fd00::3]:3", "[fd00::4]:4")] {
/// #         let mut skb = local.alloc_copy(&inner).unwrap();
/// #         let bytes = 200 + outer.header_bytes() - 28;
/// #         assert_eq!(into_udp(&mut skb, &outer, bytes - 1), Err(DropReason::TOO_LONG));
/// #         into_udp(&mut skb, &outer, bytes).unwrap();
/// #         assert_eq!(skb.len(), bytes + 14);
/// #         assert_eq!(skb.udp().unwrap().dst_addr(), outer.dst);
/// #         assert!(skb.udp().unwrap().checksum_ok());
/// #         // The outer checksum is left to a device, and a trailer follows.
/// #         skb.set_offload(linerate_skb::Offload {
/// #             flags: 1, csum_start: (outer.header_bytes() - 8) as u16, csum_offset: 6,
/// #             ..Default::default()
/// #         });
/// #         skb.put(3).unwrap();
/// #         out_of_udp(&mut skb, Mac([2; 6]), Mac([4; 6])).unwrap();
/// #         skb.complete_checksum().unwrap();
/// #         assert_eq!(skb.data(), &inner[..]);
/// #     }
/// # }
/// ```
pub trait Reshape {
    /// Adds `tag` as the outermost VLAN tag.
    ///
    /// # Errors
    /// See the trait.
    fn push_vlan(&mut self, tag: VlanTag) -> Result<(), DropReason>;
    /// Removes the outermost VLAN tag, and returns it.
    ///
    /// # Errors
    /// [`DropReason::UNWANTED`] without a tag; [`DropReason::UNSUPPORTED`] also for a tag in the
    /// metadata that has another type than 802.1Q's or 802.1ad's; see the trait.
    fn pop_vlan(&mut self) -> Result<VlanTag, DropReason>;
    /// Inserts an IPv4 header between the Ethernet header and its payload. The payload must be an
    /// IPv4 packet for [`Protocol::IPIP`] and an IPv6 packet for [`Protocol::IPV6`]; for other
    /// protocols it can be anything, and Ethernet padding at its end counts to it: trim it before.
    /// See [`HeadMut::push_ipv4`].
    ///
    /// # Errors
    /// See the trait.
    fn push_ipv4(
        &mut self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        protocol: Protocol,
    ) -> Result<(), DropReason>;
    /// Inserts an IPv6 header, by the rules of [`Reshape::push_ipv4`].
    ///
    /// # Errors
    /// See the trait.
    fn push_ipv6(
        &mut self,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        protocol: Protocol,
    ) -> Result<(), DropReason>;
    /// Removes the outer IP header of a packet that carries an IP packet: [`HeadMut::pop_ip`].
    ///
    /// # Errors
    /// [`DropReason::UNWANTED`] without a packet inside; see the trait.
    fn pop_ip(&mut self) -> Result<(), DropReason>;
    /// Puts the frame into a VXLAN tunnel: [`HeadMut::push_vxlan`]. Over IPv6 the outer UDP
    /// checksum is computed, or left to the device if no other checksum is left to it.
    ///
    /// # Errors
    /// See the trait; [`DropReason::UNSUPPORTED`] also for a superframe without a checksum that is
    /// left to a device.
    fn push_vxlan(&mut self, tunnel: &Tunnel) -> Result<(), DropReason>;
    /// Puts the frame into a Geneve tunnel, by the rules of [`Reshape::push_vxlan`].
    ///
    /// # Errors
    /// See the trait.
    fn push_geneve(&mut self, tunnel: &Tunnel) -> Result<(), DropReason>;
    /// Takes the frame out of a VXLAN packet to port 4789, and returns the number of its network.
    /// The outer headers go, with their VLAN tags and a checksum that they left to a device; so do
    /// bytes after the datagram. Congestion that the outer packet met is marked on an IP packet
    /// inside. The caller checks before who sent the packet (`skb.udp()?.src_addr()`) and that its
    /// checksum is right (`skb.udp()?.checksum_ok()`), because this method does not. See
    /// [`HeadMut::pop_vxlan`].
    ///
    /// # Errors
    /// [`DropReason::UNWANTED`] without such a frame; [`DropReason::CONGESTED`] if the packet
    /// inside does not take the mark; [`DropReason::UNSUPPORTED`] for a superframe of the outer
    /// datagrams, and for a chain with bytes after the datagram; see the trait.
    fn pop_vxlan(&mut self) -> Result<u32, DropReason>;
    /// Takes the frame out of a VXLAN packet to UDP port `port`, as [`Reshape::pop_vxlan`]: Linux's
    /// default is 8472. [`Views::vxlan_vni`] returns the number of the network before.
    ///
    /// # Errors
    /// As [`Reshape::pop_vxlan`].
    fn pop_vxlan_at(&mut self, port: u16) -> Result<u32, DropReason>;
    /// Takes the frame out of a Geneve packet to port 6081, as [`Reshape::pop_vxlan`]; its options
    /// are skipped.
    ///
    /// # Errors
    /// As [`Reshape::pop_vxlan`].
    fn pop_geneve(&mut self) -> Result<u32, DropReason>;
    /// Turns a received packet into the ICMP error about it, from the IP address `from` to its
    /// sender, ready to be sent by the port that received it: the MAC addresses are swapped, VLAN
    /// tags stay, and as much of the packet is quoted as the standards allow. A checksum that the
    /// packet leaves to a device is completed first; nothing is left to a device afterwards. How
    /// often errors are sent is for the caller to limit. See [`HeadMut::push_icmp_error`].
    ///
    /// ```
    /// # mod linerate { pub use linerate_port::{Reshape, Views, ViewsMut};
    /// #     pub use linerate_skb::{DropReason, Skb}; pub use linerate_wire as wire; }
    /// use std::net::IpAddr;
    ///
    /// use linerate::wire::IcmpError;
    /// use linerate::{DropReason, Reshape, Skb, Views, ViewsMut};
    ///
    /// /// Returns true for an error, which goes back, and false for a packet to forward.
    /// fn route(skb: &mut Skb, router: IpAddr, mtu: usize) -> Result<bool, DropReason> {
    ///     let is_long = skb.ipv4()?.total_len() > mtu && !skb.offload().is_gso();
    ///     if is_long && skb.ipv4()?.dont_fragment() {
    ///         skb.reply_icmp_error(router, IcmpError::TooBig(mtu as u32))?;
    ///         return Ok(true);
    ///     }
    ///     let has_hop = skb.ipv4_mut()?.dec_ttl();
    ///     if !has_hop {
    ///         skb.reply_icmp_error(router, IcmpError::TimeExceeded)?;
    ///     }
    ///     Ok(!has_hop)
    /// }
    /// # let pool = linerate_skb::Pool::builder().frames(64).build().unwrap();
    /// # let ends = wire::UdpEnds { src_mac: wire::Mac([2; 6]), dst_mac: wire::Mac([4; 6]),
    /// #     src: "10.0.0.1:1".parse().unwrap(), dst: "10.0.0.2:2".parse().unwrap() };
    /// # use linerate_wire as wire;
    /// # let mut frame = [0; 900];
    /// # ends.write(&mut frame).unwrap();
    /// # let mut skb = pool.local().alloc_copy(&frame).unwrap();
    /// # let router = "10.0.0.254".parse().unwrap();
    /// # assert_eq!(route(&mut skb, router, 1400), Ok(false));
    /// # assert_eq!(route(&mut skb, router, 800), Ok(true));
    /// # assert!(skb.icmp().unwrap().checksum_ok() && skb.ip().unwrap().src() == router);
    /// # let mut frame = [0; 5000];
    /// # ends.write(&mut frame).unwrap();
    /// # let mut chain = pool.local().alloc_copy(&frame).unwrap();
    /// # assert!(chain.data().len() < 4000);
    /// # assert_eq!(route(&mut chain, router, 4000), Err(DropReason::UNSUPPORTED));
    /// ```
    ///
    /// # Errors
    /// [`DropReason::UNWANTED`] if the packet is one about which no error may be sent, such as
    /// another ICMP error, a packet to a group or a later fragment, or of the version that `from`
    /// is not; [`DropReason::UNSUPPORTED`] for a chain and for a superframe; those of
    /// [`ViewsMut::complete_checksum`]; see the trait.
    fn reply_icmp_error(&mut self, from: IpAddr, error: IcmpError) -> Result<(), DropReason>;
    /// Sets the length of a UDP datagram's payload, and corrects every length and checksum; new
    /// bytes are zero. See [`HeadMut::set_udp_payload_len`].
    ///
    /// # Errors
    /// See the trait; [`DropReason::UNSUPPORTED`] also for a chain.
    fn set_udp_payload_len(&mut self, bytes: usize) -> Result<(), DropReason>;
}

impl Reshape for Skb {
    fn push_vlan(&mut self, tag: VlanTag) -> Result<(), DropReason> {
        around_tag(self, |skb| {
            prepare(skb, headers::takes_tag)?;
            push(skb, VLAN_BYTES, |head| head.push_vlan(tag))
        })
    }

    fn pop_vlan(&mut self) -> Result<VlanTag, DropReason> {
        if let Some(tag) = self.vlan() {
            return pop_kept(self, tag);
        }
        let left = self.offload();
        if left.needs_checksum()
            && !self.eth()?.tags().is_empty()
            && !headers::of(self, |data| place::is_possible_untagged(data, left))
        {
            return Err(DropReason::MALFORMED);
        }
        let tag = head_mut(self)?.pop_vlan()?;
        removed(self.pull(VLAN_BYTES))?;
        Ok(tag)
    }

    fn push_ipv4(
        &mut self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        protocol: Protocol,
    ) -> Result<(), DropReason> {
        prepare(self, |data| takes_ip(protocol, data))?;
        push(self, IPV4_BYTES, |head| head.push_ipv4(src, dst, protocol))
    }

    fn push_ipv6(
        &mut self,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        protocol: Protocol,
    ) -> Result<(), DropReason> {
        prepare(self, |data| takes_ip(protocol, data))?;
        push(self, IPV6_BYTES, |head| head.push_ipv6(src, dst, protocol))
    }

    fn pop_ip(&mut self) -> Result<(), DropReason> {
        let bytes = head_mut(self)?.pop_ip()?;
        removed(self.pull(bytes))
    }

    fn push_vxlan(&mut self, tunnel: &Tunnel) -> Result<(), DropReason> {
        around_tag(self, |skb| push_tunnel(skb, tunnel, |head| head.push_vxlan(tunnel)))
    }

    fn push_geneve(&mut self, tunnel: &Tunnel) -> Result<(), DropReason> {
        around_tag(self, |skb| push_tunnel(skb, tunnel, |head| head.push_geneve(tunnel)))
    }

    fn pop_vxlan(&mut self) -> Result<u32, DropReason> {
        self.pop_vxlan_at(VXLAN_PORT)
    }

    fn pop_vxlan_at(&mut self, port: u16) -> Result<u32, DropReason> {
        pop_tunnel(self, |head| head.vxlan_frame_at(port), |head| head.pop_vxlan_at(port))
    }

    fn pop_geneve(&mut self) -> Result<u32, DropReason> {
        pop_tunnel(self, |head| head.geneve_frame_at(), |head| head.pop_geneve())
    }

    fn reply_icmp_error(&mut self, from: IpAddr, error: IcmpError) -> Result<(), DropReason> {
        if !self.is_linear() || self.offload().is_gso() {
            return Err(DropReason::UNSUPPORTED);
        }
        head_mut(self)?.as_head().check_icmp_error(from, error)?;
        let bytes = IcmpError::header_bytes(from);
        if bytes > self.headroom() || self.len() + bytes > LONGEST_BYTES {
            return Err(DropReason::TOO_LONG);
        }
        // Before the quote cuts off what the checksum covers.
        self.complete_checksum()?;
        let mut len = 0;
        push(self, bytes, |head| {
            len = head.push_icmp_error(from, error)?;
            Ok(())
        })?;
        removed(self.trim(len))?;
        self.set_offload(Offload::NONE); // a checksum that was verified is another packet's
        Ok(())
    }

    fn set_udp_payload_len(&mut self, bytes: usize) -> Result<(), DropReason> {
        let at = self.udp()?.payload_at();
        if !self.is_linear() || self.offload().is_gso() {
            return Err(DropReason::UNSUPPORTED);
        }
        let (old, new) = (self.len(), at.checked_add(bytes).ok_or(DropReason::TOO_LONG)?);
        if new > old && self.put(new - old).is_none() {
            return Err(DropReason::TOO_LONG);
        }
        let done = head_mut(self).and_then(|head| Ok(head.set_udp_payload_len(bytes)?));
        removed(self.trim(if done.is_ok() { new } else { old })).and(done)
    }
}

/// Takes the frame out of a packet by `pop`; `frame_at` returns the frame's offset.
///
/// A checksum in the frame whose place the packet's sender chose must be at its place there, too:
/// otherwise filling it in would change an address after a stage has read it.
fn pop_tunnel(
    skb: &mut Skb,
    frame_at: impl FnOnce(Head<'_>) -> Result<usize, Malformed>,
    pop: impl FnOnce(HeadMut<'_>) -> Result<Inner, Malformed>,
) -> Result<u32, DropReason> {
    // Ask before `pop` marks the packet: where UDP's header ends, the frame cannot begin before.
    let udp = skb.udp()?;
    let (tunnel_at, end) =
        (udp.payload_at(), udp.payload_at() + udp.payload().len() + udp.behind());
    let left = skb.offload();
    let is_inside = left.needs_checksum() && usize::from(left.csum_start) > tunnel_at;
    if left.is_gso() && !is_inside || skb.len() > end && !skb.is_linear() {
        return Err(DropReason::UNSUPPORTED);
    }
    if is_inside {
        let frame_at = frame_at(head_mut(skb)?.as_head())?;
        if !headers::of(skb, |data| place::is_possible_without(frame_at, data, left)) {
            return Err(DropReason::MALFORMED);
        }
    }
    let Inner { spare, len, vni } = pop(head_mut(skb)?)?;
    removed(skb.pull(spare) && (skb.len() == len || skb.trim(len)))?;
    skb.set_vlan(None);
    Ok(vni)
}

/// Refuses a packet whose bytes could not be removed. Its first frame was just written, so this
/// handle is the only one on it, and it has the bytes.
fn removed(is_removed: bool) -> Result<(), DropReason> {
    if is_removed { Ok(()) } else { Err(DropReason::MALFORMED) }
}

/// Prepares a packet for one more header, if ports do not find its own headers behind that one, as
/// `is_parsed` tells: completes SCTP's CRC. Other checksums are found by their offset.
///
/// # Errors
/// `UNSUPPORTED` for a superframe, which needs its headers to be cut; those of the CRC.
fn prepare(skb: &mut Skb, is_parsed: impl FnOnce(&[u8]) -> bool) -> Result<(), DropReason> {
    let left = skb.offload();
    let needs_headers = left.is_gso() || offload::is_sctp(skb, left);
    if !needs_headers || headers::of(skb, is_parsed) {
        return Ok(());
    }
    // This refuses a superframe.
    offload::finish_one(skb, left)
}

/// Returns true if ports find the headers of `data` behind an IP header of `protocol`.
fn takes_ip(protocol: Protocol, data: &[u8]) -> bool {
    matches!(protocol, Protocol::IPIP | Protocol::IPV6) && headers::takes_ip(data)
}

/// Removes `tag` from the metadata, and returns it.
#[cold]
fn pop_kept(skb: &mut Skb, tag: Vlan) -> Result<VlanTag, DropReason> {
    if !matches!(EtherType(tag.protocol), EtherType::VLAN | EtherType::QINQ) {
        return Err(DropReason::UNSUPPORTED);
    }
    let popped = VlanTag::from_bytes(tag.bytes());
    if skb.set_vlan(None) { Ok(popped) } else { Err(DropReason::NO_FRAME) }
}

/// Moves a VLAN tag from the metadata into the packet's bytes, and runs `change`, which adds a
/// header outside of it.
fn around_tag(
    skb: &mut Skb,
    change: impl FnOnce(&mut Skb) -> Result<(), DropReason>,
) -> Result<(), DropReason> {
    let Some(tag) = skb.vlan() else { return change(skb) };
    let before = skb.offload();
    push(skb, VLAN_BYTES, |head| head.push_vlan(VlanTag::new(0, 0)))?;
    // The packet's frame is its own now, and has the room of the tag.
    skb.data_mut()[TAG_AT..TAG_AT + VLAN_BYTES].copy_from_slice(&tag.bytes());
    skb.set_vlan(None);
    let done = change(skb);
    if done.is_err() {
        skb.data_mut().copy_within(..TAG_AT, VLAN_BYTES);
        removed(skb.pull(VLAN_BYTES))?;
        skb.set_vlan(Some(tag));
        skb.set_offload(before);
    }
    done
}

/// Extends the packet by `bytes` at its start, for `write` to fill.
fn push(
    skb: &mut Skb,
    bytes: usize,
    write: impl FnOnce(HeadMut<'_>) -> Result<(), Malformed>,
) -> Result<(), DropReason> {
    private(skb)?;
    let before = skb.offload();
    if skb.len() + bytes > LONGEST_BYTES || skb.push(bytes).is_none() {
        return Err(DropReason::TOO_LONG);
    }
    let done = head_mut(skb).and_then(|head| Ok(write(head)?));
    if done.is_err() {
        removed(skb.pull(bytes))?;
        if skb.offload() != before {
            // A pull also forgets that the checksum was verified.
            skb.set_offload(before);
        }
    }
    done
}

fn push_tunnel(
    skb: &mut Skb,
    tunnel: &Tunnel,
    write: impl FnOnce(HeadMut<'_>) -> Result<(), Malformed>,
) -> Result<(), DropReason> {
    if skb.offload().is_gso() {
        return push_around_superframe(skb, tunnel, write);
    }
    prepare(skb, |_| false)?;
    push(skb, tunnel.header_bytes(), write)?;
    if tunnel.src.is_ipv4() {
        return Ok(());
    }
    if !skb.offload().needs_checksum() {
        skb.set_offload(Offload {
            flags: F_NEEDS_CSUM,
            csum_start: TUNNEL_V6_UDP,
            csum_offset: UDP_CHECK,
            ..Offload::NONE
        });
    }
    if skb.udp_mut()?.fill_checksum() {
        return Ok(());
    }
    // The inner checksum's field is not in the first frame: remove the tunnel's headers again.
    removed(skb.pull(tunnel.header_bytes()))?;
    Err(DropReason::UNSUPPORTED)
}

/// Puts a superframe into a tunnel, if ports can cut it there. They give its segments an outer UDP
/// checksum if the field is not 0: over IPv6 it has the sum of the pseudo header, as the kernel
/// leaves it.
///
/// Source: net/ipv6/ip6_checksum.c `udp6_set_csum`.
fn push_around_superframe(
    skb: &mut Skb,
    tunnel: &Tunnel,
    write: impl FnOnce(HeadMut<'_>) -> Result<(), Malformed>,
) -> Result<(), DropReason> {
    let before = skb.offload();
    if !before.needs_checksum() {
        return Err(DropReason::UNSUPPORTED);
    }
    push(skb, tunnel.header_bytes(), write)?;
    if let (IpAddr::V6(src), IpAddr::V6(dst)) = (tunnel.src, tunnel.dst) {
        let at = usize::from(TUNNEL_V6_UDP);
        let sum = checksum::pseudo_v6(src, dst, Protocol::UDP, (skb.len() - at) as u32);
        let at = at + usize::from(UDP_CHECK);
        skb.data_mut()[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    if Cutter::of(skb).is_ok() {
        return Ok(());
    }
    removed(skb.pull(tunnel.header_bytes()))?;
    skb.set_offload(before);
    Err(DropReason::UNSUPPORTED)
}

#[cfg(test)]
mod tests;
