//! Packets that are taken out of tunnels: IP in IP, VXLAN, Geneve.
//!
//! ```text
//! pop_ip      | MACs | IPv4 | IPv6 .. |                ->   | 20 spare bytes | MACs 0x86dd | IPv6 .. |
//! pop_vxlan   | MACs | IPv4 | UDP | VXLAN | frame |    ->   | 50 spare bytes | frame |
//! ```
//!
//! The caller takes the spare bytes away, and what follows the inner packet.
//!
//! Source: RFC 2003 and RFC 2473 (IP in IP), RFC 6040 section 4.2 (congestion marks), RFC 7348
//! section 5 (VXLAN), RFC 8926 section 3 (Geneve).

use zerocopy::Ref;

use crate::ecn::CE;
use crate::ip::{self, HeaderMut};
use crate::outer::{GENEVE_ETHERNET, GENEVE_PORT, TUNNEL_BYTES, VXLAN_PORT};
use crate::{EtherType, Head, HeadMut, Malformed, Protocol, UdpRef, eth, ipv4, ipv6, partial};

/// The flag of VXLAN's first byte for a network identifier, and that of its second byte for an
/// inner checksum that the receiver is to compute (Linux's `remcsumtx`).
const VXLAN_HAS_VNI: u8 = 0x08;
const VXLAN_UNFINISHED: u8 = 0x20;
/// The flags of Geneve's second byte for a message of the tunnel's own, and for options that must
/// be understood.
const GENEVE_CONTROL: u8 = 0x80;
const GENEVE_CRITICAL: u8 = 0x40;

/// The place of a frame in a VXLAN or Geneve packet, and the number of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inner {
    /// Bytes of headers before the frame.
    pub spare: usize,
    /// Length of the frame, including bytes behind the slice. What the packet has after it is no
    /// part of the frame.
    pub len: usize,
    /// Number of the virtual network.
    pub vni: u32,
}

impl Head<'_> {
    /// Returns the number of the network of a VXLAN packet to UDP port `port`, which
    /// [`HeadMut::pop_vxlan_at`] also returns.
    ///
    /// Errors: [`Malformed::NotTunnel`], [`Malformed::Short`] and those of [`crate::udp()`], as
    ///         [`HeadMut::pop_vxlan`]. The frame inside is not checked.
    /// Cost:   constant.
    pub fn vxlan_vni(self, port: u16) -> Result<u32, Malformed> {
        Ok(Outer::read(self, port, vxlan_bytes)?.vni)
    }

    /// Returns the offset of the frame in a VXLAN packet to UDP port `port`, which is
    /// [`Inner::spare`] of [`HeadMut::pop_vxlan_at`].
    ///
    /// Errors: as [`Head::vxlan_vni`].
    /// Cost:   constant.
    pub fn vxlan_frame_at(self, port: u16) -> Result<usize, Malformed> {
        Ok(Outer::read(self, port, vxlan_bytes)?.frame_at())
    }

    /// Returns the offset of the frame in a Geneve packet, which is [`Inner::spare`] of
    /// [`HeadMut::pop_geneve`].
    ///
    /// Errors: as [`HeadMut::pop_geneve`] for the tunnel's header. The frame is not checked.
    /// Cost:   constant.
    pub fn geneve_frame_at(self) -> Result<usize, Malformed> {
        Ok(Outer::read(self, GENEVE_PORT, geneve_bytes)?.frame_at())
    }
}

impl HeadMut<'_> {
    /// Removes the outer IP header, with its options or extension headers, from a packet that
    /// carries an IP packet; returns the header's length, which is the number of unused bytes at
    /// the start afterwards.
    ///
    /// Shape:  congestion that the outer packet met is marked on the inner one.
    /// Errors: [`Malformed::NotTunnel`], [`Malformed::Fragment`], [`Malformed::SourceRoute`] if the
    ///         outer packet has hops left, [`Malformed::Congestion`] if there is a mark to carry
    ///         over and the inner packet does not take it, those of [`crate::ip()`] for either
    ///         packet: an inner one ends within the outer one. Nothing changed.
    /// Cost:   constant.
    pub fn pop_ip(self) -> Result<usize, Malformed> {
        let frame = self.bytes.as_ptr().addr();
        let outer = ip::read(self.as_head())?;
        let ether_type = match outer.protocol() {
            Protocol::IPIP => EtherType::IPV4,
            Protocol::IPV6 => EtherType::IPV6,
            _ => return Err(Malformed::NotTunnel),
        };
        outer.whole()?;
        let (inner_at, behind) = (partial::offset_in(frame, outer.payload()), outer.behind());
        let inner_end = inner_at + outer.payload().len();
        let ecn = outer.ecn();
        let eth = partial::offset_in(frame, eth::eth(self.bytes)?.payload());
        // The outer length bounds the inner packet: Ethernet padding is no part of either.
        carry_mark(ecn, ether_type, &mut self.bytes[inner_at..inner_end], behind)?;
        let spare = inner_at - eth;
        self.bytes.copy_within(..eth, spare);
        self.bytes[inner_at - 2..inner_at].copy_from_slice(&ether_type.0.to_be_bytes());
        Ok(spare)
    }

    /// Takes the frame out of a VXLAN packet to port 4789; the first [`Inner::spare`] bytes are
    /// unused afterwards.
    ///
    /// Shape:  congestion that the outer packet met is marked on an IP packet inside. Neither the
    ///         outer checksum nor the sender is checked: check them before with [`Head::udp`] and
    ///         [`UdpRef::checksum_ok`].
    /// Errors: [`Malformed::NotTunnel`], also without a network identifier, and with an inner
    ///         checksum that the receiver is to compute (Linux's `remcsumtx`);
    ///         [`Malformed::Congestion`] as [`HeadMut::pop_ip`]; [`Malformed::Short`] for a frame
    ///         without an Ethernet header; those of [`crate::udp()`]. Nothing changed.
    /// Cost:   constant.
    pub fn pop_vxlan(self) -> Result<Inner, Malformed> {
        self.pop_vxlan_at(VXLAN_PORT)
    }

    /// Takes the frame out of a VXLAN packet to UDP port `port`, as [`HeadMut::pop_vxlan`]. Linux's
    /// default is 8472.
    pub fn pop_vxlan_at(self, port: u16) -> Result<Inner, Malformed> {
        self.pop_tunnel(port, vxlan_bytes)
    }

    /// Takes the frame out of a Geneve packet to port 6081, and skips the tunnel's options; as
    /// [`HeadMut::pop_vxlan`].
    ///
    /// Errors: [`Malformed::NotTunnel`] also for another payload than Ethernet, for a control
    ///         message, and for options that must be understood.
    pub fn pop_geneve(self) -> Result<Inner, Malformed> {
        self.pop_tunnel(GENEVE_PORT, geneve_bytes)
    }

    /// Takes the frame out of a UDP packet to `port`, behind a tunnel header whose length
    /// `header_bytes` returns.
    fn pop_tunnel(
        self,
        port: u16,
        header_bytes: impl FnOnce(&[u8; TUNNEL_BYTES]) -> Result<usize, Malformed>,
    ) -> Result<Inner, Malformed> {
        let outer = Outer::read(self.as_head(), port, header_bytes)?;
        let spare = outer.frame_at();
        let Outer { udp, header_len, vni } = outer;
        let here = udp.payload().get(header_len..).ok_or(Malformed::Short)?.len();
        let (ecn, behind) = (udp.ip().ecn(), udp.behind());
        let frame = eth::split(&mut self.bytes[spare..spare + here])?;
        match carry_mark(ecn, frame.ether_type, frame.payload, behind) {
            Err(Malformed::Congestion) => return Err(Malformed::Congestion),
            // The header that takes the mark is not all in the slice.
            Err(Malformed::Short) if ecn == CE && behind > 0 => return Err(Malformed::Short),
            // A frame of another protocol, or with headers that contradict each other, has no mark.
            _ => {}
        }
        Ok(Inner { spare, len: here + behind, vni })
    }
}

/// A tunnel's outer headers.
struct Outer<'a> {
    udp: UdpRef<'a>,
    /// Length of the tunnel header behind UDP's.
    header_len: usize,
    vni: u32,
}

impl Outer<'_> {
    /// Reads the headers of a UDP packet to `port`; `header_bytes` returns the length of the tunnel
    /// header.
    fn read(
        head: Head<'_>,
        port: u16,
        header_bytes: impl FnOnce(&[u8; TUNNEL_BYTES]) -> Result<usize, Malformed>,
    ) -> Result<Outer<'_>, Malformed> {
        let udp = head.udp()?;
        if udp.dst_port() != port {
            return Err(Malformed::NotTunnel);
        }
        let header = udp.payload().first_chunk().ok_or(Malformed::Short)?;
        let header_len = header_bytes(header)?;
        let [.., a, b, c, _] = *header;
        Ok(Outer { udp, header_len, vni: u32::from_be_bytes([0, a, b, c]) })
    }

    /// Returns the offset of the frame behind the headers.
    fn frame_at(&self) -> usize {
        self.udp.payload_at() + self.header_len
    }
}

/// Returns the length of a Geneve header, with options, that can be taken off.
fn geneve_bytes(header: &[u8; TUNNEL_BYTES]) -> Result<usize, Malformed> {
    let [first, flags, protocol @ .., _, _, _, _] = *header;
    let is_ethernet = u16::from_be_bytes(protocol) == GENEVE_ETHERNET;
    let is_refused = flags & (GENEVE_CONTROL | GENEVE_CRITICAL) != 0;
    match first >> 6 {
        0 if is_ethernet && !is_refused => Ok(TUNNEL_BYTES + 4 * usize::from(first & 0x3f)),
        _ => Err(Malformed::NotTunnel),
    }
}

/// Returns the length of a VXLAN header that can be taken off.
fn vxlan_bytes(header: &[u8; TUNNEL_BYTES]) -> Result<usize, Malformed> {
    let is_plain = header[0] & VXLAN_HAS_VNI != 0 && header[1] & VXLAN_UNFINISHED == 0;
    if is_plain { Ok(TUNNEL_BYTES) } else { Err(Malformed::NotTunnel) }
}

/// Marks the congestion that an outer packet met, `outside`, on the inner `packet`.
///
/// Errors: [`Malformed::Congestion`] if the packet does not take the mark, [`Malformed::NotIp`],
///         those of the IP header.
fn carry_mark(
    outside: u8,
    ether_type: EtherType,
    packet: &mut [u8],
    behind: usize,
) -> Result<(), Malformed> {
    let (mut inner, inside) = match ether_type {
        EtherType::IPV4 => {
            let header = Ref::into_mut(ipv4::split(packet, behind)?.header);
            let ecn = header.ecn();
            (HeaderMut::V4(header), ecn)
        }
        EtherType::IPV6 => {
            let header = Ref::into_mut(ipv6::split(packet, behind)?.header);
            let ecn = header.ecn();
            (HeaderMut::V6(header), ecn)
        }
        _ => return Err(Malformed::NotIp),
    };
    match (outside, inside) {
        (CE, 0) => return Err(Malformed::Congestion),
        (CE, 1 | 2) | (1, 2) => inner.set_ecn(outside),
        // A mark that is set again would change a checksum of 0xffff to 0.
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::testing::{fix_ipv4, tcp4_frame, udp4_frame, udp6_frame};
    use crate::{Mac, Tunnel, VlanTag, ip, ipv4, udp};

    type Call<T> = fn(HeadMut<'_>) -> Result<T, Malformed>;

    fn tunnel(v6: bool) -> Tunnel {
        let ends = if v6 { ["fd00::a", "fd00::b"] } else { ["192.0.2.1", "192.0.2.2"] };
        let [src, dst] = ends.map(|text| text.parse::<IpAddr>().unwrap());
        Tunnel {
            src_mac: Mac([2; 6]),
            dst_mac: Mac([4; 6]),
            src,
            dst,
            vni: 0x00ab_cdef,
            port: None,
        }
    }

    /// Puts `frame` into a tunnel.
    fn pushed(frame: &[u8], v6: bool, geneve: bool) -> Vec<u8> {
        let tunnel = tunnel(v6);
        let mut packet = vec![0; tunnel.header_bytes()];
        packet.extend(frame);
        let head = HeadMut::new(&mut packet, 0);
        if geneve { head.push_geneve(&tunnel) } else { head.push_vxlan(&tunnel) }.unwrap();
        packet
    }

    fn popping(geneve: bool) -> Call<Inner> {
        if geneve { |head| head.pop_geneve() } else { |head| head.pop_vxlan() }
    }

    /// Returns the error of a pop, after which nothing may have changed.
    fn refused(packet: &[u8], geneve: bool) -> Malformed {
        let mut bytes = packet.to_vec();
        let error = popping(geneve)(HeadMut::new(&mut bytes, 0)).unwrap_err();
        assert_eq!(bytes, packet);
        error
    }

    #[test]
    fn a_frame_comes_out_of_a_tunnel_as_it_went_in_without_what_follows_the_datagram() {
        let frames = [
            udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"inside"),
            udp6_frame(b"inside"),
            tcp4_frame(&[], &[7; 300]),
            // ARP, which has no mark.
            [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6][..], &[0; 28]].concat(),
        ];
        for frame in frames {
            for (v6, geneve) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut packet = pushed(&frame, v6, geneve);
                packet.extend([0x55; 9]);
                // A tag of the outer frame goes with it.
                let mut tagged = [&[0; 4], &packet[..]].concat();
                HeadMut::new(&mut tagged, 0).push_vlan(VlanTag::new(5, 0)).unwrap();
                for (mut packet, spare) in
                    [(packet, tunnel(v6).header_bytes()), (tagged, tunnel(v6).header_bytes() + 4)]
                {
                    let inner = popping(geneve)(HeadMut::new(&mut packet, 0)).unwrap();
                    assert_eq!(inner, Inner { spare, len: frame.len(), vni: 0x00ab_cdef });
                    assert_eq!(packet[inner.spare..][..inner.len], frame);
                }
            }
        }
    }

    #[test]
    fn congestion_outside_is_marked_inside_or_the_packet_is_refused() {
        for (inside, expected) in [(0, None), (1, Some(3)), (2, Some(3)), (3, Some(3))] {
            let mut frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"hi");
            frame[15] = 46 << 2 | inside;
            fix_ipv4(&mut frame);
            let mut packet = pushed(&frame, false, false);
            packet[15] |= CE;
            fix_ipv4(&mut packet);
            let Some(expected) = expected else {
                assert_eq!(refused(&packet, false), Malformed::Congestion);
                continue;
            };
            let Inner { spare, .. } = HeadMut::new(&mut packet, 0).pop_vxlan().unwrap();
            let view = ipv4(&packet[spare..]).unwrap();
            assert_eq!((view.ecn(), view.dscp()), (expected, 46));
            assert!(view.checksum_ok() && udp(&packet[spare..]).unwrap().checksum_ok());
        }
        // The header that takes the mark lies in the next frame of a chain.
        let frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"hi");
        let mut packet = pushed(&frame, false, false);
        packet[15] |= CE;
        fix_ipv4(&mut packet);
        let (len, before) = (packet.len(), packet.clone());
        let head = HeadMut::new(&mut packet[..70], len - 70);
        assert_eq!(head.pop_vxlan(), Err(Malformed::Short));
        assert_eq!(packet, before);
        // ARP takes no mark, and passes.
        let arp = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6][..], &[0; 28]].concat();
        let mut packet = pushed(&arp, false, true);
        packet[15] |= CE;
        fix_ipv4(&mut packet);
        assert!(HeadMut::new(&mut packet, 0).pop_geneve().is_ok());
        // A lie inside is the receiver's to find; the mark has no place.
        let mut frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"hi");
        frame[14] = 0x65;
        let mut packet = pushed(&frame, false, true);
        packet[15] |= CE;
        fix_ipv4(&mut packet);
        assert!(HeadMut::new(&mut packet, 0).pop_geneve().is_ok());
    }

    #[test]
    fn what_is_no_frame_in_such_a_tunnel_is_refused() {
        let frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"hi");
        for geneve in [false, true] {
            assert_eq!(refused(&frame, geneve), Malformed::NotTunnel, "another port");
            let packet = pushed(&frame, false, !geneve);
            assert_eq!(refused(&packet, geneve), Malformed::NotTunnel, "the other tunnel");
            // A datagram that ends in the tunnel's header, or in the Ethernet header behind it.
            for payload in [0, 7, 8, 21] {
                let mut packet = pushed(&frame, false, geneve);
                packet[17] = 28 + payload;
                packet[39] = 8 + payload;
                fix_ipv4(&mut packet);
                assert_eq!(refused(&packet, geneve), Malformed::Short, "{payload}");
            }
        }
        let vxlan = |at: usize, value: u8| {
            let mut packet = pushed(&frame, false, false);
            packet[at] = value;
            packet
        };
        assert_eq!(refused(&vxlan(42, 0), false), Malformed::NotTunnel);
        assert_eq!(refused(&vxlan(43, 0x20), false), Malformed::NotTunnel);
        let geneve = |at: usize, value: u8| {
            let mut packet = pushed(&frame, false, true);
            packet[at] = value;
            packet
        };
        for (at, value) in [(42, 0x40), (43, 0x80), (43, 0x40), (44, 8), (45, 0)] {
            assert_eq!(refused(&geneve(at, value), true), Malformed::NotTunnel, "{at}");
        }
        assert_eq!(refused(&geneve(42, 0x3f), true), Malformed::Short);
        assert_eq!(ip(&geneve(42, 0)).map(|ip| ip.protocol()), Ok(Protocol::UDP));
    }

    #[test]
    fn a_tunnel_is_at_the_port_that_it_says_and_its_network_is_read_without_a_change() {
        let frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"hi");
        for v6 in [false, true] {
            let tunnel = Tunnel { port: Some(8472), ..tunnel(v6) };
            let mut packet = vec![0; tunnel.header_bytes()];
            packet.extend(&frame);
            HeadMut::new(&mut packet, 0).push_vxlan(&tunnel).unwrap();
            assert_eq!(udp(&packet).unwrap().dst_port(), 8472);
            assert_eq!(refused(&packet, false), Malformed::NotTunnel);
            let head = Head::new(&packet, 0);
            assert_eq!(head.vxlan_vni(8472), Ok(tunnel.vni));
            assert_eq!(head.vxlan_vni(4789), Err(Malformed::NotTunnel));
            let inner = HeadMut::new(&mut packet, 0).pop_vxlan_at(8472).unwrap();
            assert_eq!((inner.vni, &packet[inner.spare..]), (tunnel.vni, &frame[..]));
            HeadMut::new(&mut packet, 0).push_geneve(&tunnel).unwrap();
            assert_eq!(udp(&packet).unwrap().dst_port(), 8472);
        }
        let mut packet = pushed(&frame, false, false);
        let vni = |packet: &[u8], behind| Head::new(packet, behind).vxlan_vni(4789);
        assert_eq!(vni(&packet, 0), Ok(0x00ab_cdef));
        packet[42] = 0;
        assert_eq!(vni(&packet, 0), Err(Malformed::NotTunnel), "without a network");
        assert_eq!(vni(&packet[..49], packet.len() - 49), Err(Malformed::Short));
    }

    #[test]
    fn options_of_geneve_are_skipped() {
        let frame = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"hi");
        let mut packet = pushed(&frame, false, true);
        packet.splice(50..50, [1, 2, 3, 1, 0, 0, 0, 0]);
        packet[42] = 2;
        packet[17] += 8;
        packet[39] += 8;
        fix_ipv4(&mut packet);
        let inner = HeadMut::new(&mut packet, 0).pop_geneve().unwrap();
        assert_eq!((inner.spare, &packet[inner.spare..]), (58, &frame[..]));
    }
}
