//! Checksums that a virtual device leaves to hardware that its packets never reach.
//!
//! AF_XDP has no header that marks packets without a checksum, and their next receiver refuses them. If the
//! other end of a veth is in sight, its checksum offload is turned off; if it is in another network
//! namespace, such packets are recognised by what stands in the checksum's place.
//!
//! Where hardware is to fill a checksum in, the kernel leaves the sum of the pseudo header there
//! (virtio says so in a header; AF_XDP has none). A packet whose field holds just that sum is taken
//! for unfinished, and marked. One that was finished and holds it by chance, one of 65,536, comes to
//! no harm: computed again, its checksum is the same. SCTP has no pseudo header: where its CRC is to be
//! filled in, the kernel leaves 0.

use linerate_skb::{Offload, Result, Skb};
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::LinkInfo;

use super::config::Config;
use crate::driver::Change;
use crate::host::filter::Filter;
use crate::host::headers::{self, IP_HEADERS_MAX, IPV6_BYTES, IpHeader, SCTP, TCP, UDP, u16_at};

/// Offset of the checksum in TCP's header.
const TCP_CHECK: usize = 16;
/// Offset of the CRC, of 32 bits, in SCTP's header.
const SCTP_CHECK: usize = 8;
/// virtio's kinds of superframes.
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// virtio's flag for a checksum that is still to be computed.
const NEEDS_CHECKSUM: u8 = 1;

/// State of the checksums of packets from an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksums {
    /// All checksums are complete.
    Whole,
    /// Some checksums are still to be computed, and some packets are longer than the MTU and still
    /// to be cut.
    Partial { mtu_bytes: usize },
}

/// Makes the other end of `interface` complete its packets, if there is one in this namespace;
/// returns the state of packets after that, and a note.
pub(super) fn prepare(config: &Config, interface: &Interface) -> Result<Prepared> {
    let whole = |said, off| Prepared { checksums: Checksums::Whole, said, off };
    let other = match (config.filter == Filter::Nothing, other_end(interface)) {
        // This port receives nothing, so no receiver gets an incomplete checksum of the other end.
        (true, _) | (_, OtherEnd::None) => return Ok(whole(None, None)),
        (_, OtherEnd::Here(other)) => Some(other),
        (_, OtherEnd::Elsewhere) => None,
    };
    // In another namespace it has a number for us, but no name.
    let at = match (&other, LinkInfo::of(interface).ok().and_then(|info| info.other)) {
        (Some(other), _) => (String::new(), other.name().to_string()),
        (None, Some(index)) => {
            let number = format!(" on the other end (interface number {index} in its namespace)");
            (number, "IFACE".to_owned())
        }
        (None, None) => (" on the other end".to_owned(), "IFACE".to_owned()),
    };
    let why = match other {
        Some(other) if matches!(other.checksum_offload(), Ok(false)) => {
            return Ok(whole(None, None));
        }
        // Another port on the interface may live longer than this one, and need the offload off.
        Some(other) if config.map.is_some() => {
            format!("the checksum offload of {} is on", other.name())
        }
        Some(other) => match OffloadOff::of(other) {
            Ok(off) => {
                let name = off.0.name();
                let said =
                    format!("checksums: the offload of {name} is off while the port is open");
                return Ok(whole(Some(said), Some(off)));
            }
            Err(why) => why,
        },
        None => "the other end is in another namespace".to_owned(),
    };
    let (at, name) = at;
    let said = format!(
        "checksums: {why}, so this port completes them. To avoid this cost, turn the offload off{at}: \
         ethtool -K {name} tx off"
    );
    let mtu_bytes = interface.mtu_bytes()? as usize;
    Ok(Prepared { checksums: Checksums::Partial { mtu_bytes }, said: Some(said), off: None })
}

/// Returns the settings that [`prepare`] will change.
pub(super) fn changes(config: &Config) -> Vec<Change> {
    if config.filter == Filter::Nothing || config.map.is_some() {
        return Vec::new();
    }
    match Interface::open(&config.interface).map(|interface| other_end(&interface)) {
        Ok(OtherEnd::Here(other)) if matches!(other.checksum_offload(), Ok(true)) => {
            vec![Change::ChecksumOffload(other.name().to_string())]
        }
        _ => Vec::new(),
    }
}

/// State of the checksums of packets from an interface, and the changes made for it.
pub(super) struct Prepared {
    pub checksums: Checksums,
    /// Text for the report.
    pub said: Option<String>,
    /// The other end's offload, turned off for as long as this lives.
    pub off: Option<OffloadOff>,
}

/// The other end of an interface.
enum OtherEnd {
    None,
    Here(Interface),
    Elsewhere,
}

fn other_end(interface: &Interface) -> OtherEnd {
    // If the kernel reports no other end, none is known.
    let info = LinkInfo::of(interface).unwrap_or_default();
    if info.kind != "veth" {
        return OtherEnd::None;
    }
    let here = info.other.filter(|_| !info.other_is_elsewhere);
    here.and_then(|index| Interface::by_index(index).ok())
        .map_or(OtherEnd::Elsewhere, OtherEnd::Here)
}

/// A checksum offload that was on; it stays off until this is dropped.
#[derive(Debug)]
pub(super) struct OffloadOff(Interface);

impl OffloadOff {
    /// Turns the offload of `other` off; returns the reason if it cannot.
    fn of(other: Interface) -> std::result::Result<OffloadOff, String> {
        match other.set_checksum_offload(false) {
            Ok(()) => Ok(OffloadOff(other)),
            Err(e) => Err(format!("{}: {}", other.name(), e.why)),
        }
    }
}

impl Drop for OffloadOff {
    fn drop(&mut self) {
        // A process that could turn the offload off can turn it on; otherwise the interface was
        // deleted.
        let _ = self.0.set_checksum_offload(true);
    }
}

/// An unfinished packet: its innermost IP header, and the offset of the checksum after it.
#[derive(Debug, PartialEq, Eq)]
struct Unfinished {
    ip: IpHeader,
    offset: usize,
}

/// Marks a packet whose checksum is still to be computed, also one in an IP tunnel; a TCP packet
/// longer than the interface's MTU is marked as a superframe to be cut.
///
/// Cost: its headers are read.
pub(super) fn mark(skb: &mut Skb, mtu_bytes: usize) {
    let len = skb.len();
    if let Some(offload) = headers::of(skb, |data| left(data, len, mtu_bytes)) {
        skb.set_offload(offload);
    }
}

/// Returns the work that is left to a device for a packet of `len` bytes.
fn left(data: &[u8], len: usize, mtu_bytes: usize) -> Option<Offload> {
    let Unfinished { ip, offset } = unfinished(data)?;
    let (csum_start, csum_offset) = (ip.end as u16, offset as u16);
    let partial = Offload { flags: NEEDS_CHECKSUM, csum_start, csum_offset, ..Offload::NONE };
    let longest = headers::network(data)? + mtu_bytes;
    let whole = len <= longest || offset != TCP_CHECK;
    Some(if whole { partial } else { superframe(partial, data, ip, longest) })
}

/// Returns the offload header that cuts a superframe into packets that the interface accepts.
fn superframe(partial: Offload, data: &[u8], ip: IpHeader, longest: usize) -> Offload {
    let header = data.get(ip.end + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    let piece = longest.saturating_sub(ip.end + header);
    Offload {
        gso_type: if ip.v6 { GSO_TCPV6 } else { GSO_TCPV4 },
        hdr_len: (ip.end + header) as u16,
        gso_size: piece.min(usize::from(u16::MAX)) as u16,
        ..partial
    }
}

/// Returns the unfinished checksum of a packet, if any: that of the innermost header found.
fn unfinished(data: &[u8]) -> Option<Unfinished> {
    let mut ip = IpHeader::first(data)?;
    for _ in 1..IP_HEADERS_MAX {
        let Some(inner) = ip.inner(data) else { break };
        ip = inner;
    }
    let offset = match ip.protocol {
        TCP => TCP_CHECK,
        UDP => 6,
        SCTP => {
            let field = data.get(ip.end + SCTP_CHECK..)?.first_chunk::<4>()?;
            return (*field == [0; 4]).then_some(Unfinished { ip, offset: SCTP_CHECK });
        }
        _ => return None,
    };
    let field = u16_at(data, ip.end + offset)?;
    let (len, header_bytes) = match ip.v6 {
        true => (u16_at(data, ip.at + 4)?, ip.end - ip.at - IPV6_BYTES),
        false => (u16_at(data, ip.at + 2)?, ip.end - ip.at),
    };
    let pseudo = ip.pseudo(data, len.checked_sub(header_bytes as u16)?)?;
    (field != 0 && field == pseudo).then_some(Unfinished { ip, offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{chains, ipip, ipv4 as frame, ipv6};
    use linerate_wire::checksum;

    fn unfinished(data: &[u8]) -> Option<(usize, usize)> {
        super::unfinished(data).map(|found| (found.ip.end, found.offset))
    }

    #[test]
    fn a_packet_with_the_sum_of_its_pseudo_header_is_unfinished() {
        for (protocol, offset) in [(TCP, 16), (UDP, 6)] {
            let mut packet = frame(protocol, 100);
            assert_eq!(unfinished(&packet), Some((34, offset)));
            let mut tagged = packet.clone();
            tagged.splice(12..12, [0x81, 0, 0, 5]);
            assert_eq!(unfinished(&tagged), Some((38, offset)));
            // The checksum is complete here.
            let check = checksum::finish(checksum::sum(&packet[34..]));
            packet[34 + offset..36 + offset].copy_from_slice(&check.to_be_bytes());
            assert_eq!(unfinished(&packet), None);
        }
        assert_eq!(unfinished(&frame(1, 100)), None);
    }

    #[test]
    fn a_packet_behind_two_vlan_tags_is_found_unfinished() {
        for (protocol, offset) in [(TCP, 16), (UDP, 6), (SCTP, 8)] {
            let mut packet = frame(protocol, 100);
            if protocol == SCTP {
                assert_eq!(unfinished(&packet), None, "its CRC is complete");
                packet[42..46].fill(0);
            }
            packet.splice(12..12, [0x88, 0xa8, 0, 7, 0x81, 0, 0, 5]);
            assert_eq!(unfinished(&packet), Some((42, offset)));
        }
    }

    #[test]
    fn packet_behind_extension_headers_is_found_unfinished() {
        for (protocol, offset) in [(TCP, 16), (UDP, 6), (SCTP, 8)] {
            for (first, chain) in chains(protocol) {
                let packet = ipv6(first, &chain, protocol, 64);
                assert_eq!(unfinished(&packet), Some((54 + chain.len(), offset)), "{first}");
            }
            let fragment = ipv6(44, &[protocol, 0, 0, 1, 0, 0, 0, 1], protocol, 64);
            assert_eq!(unfinished(&fragment), None);
        }
    }

    #[test]
    fn tcp_that_is_longer_than_the_interface_takes_is_a_superframe() {
        let pool = linerate_skb::Pool::builder().frames(16).build().unwrap();
        let mut mem = pool.local();
        let mut marked = |frame: &[u8]| {
            let mut skb = mem.alloc_copy(frame).unwrap();
            mark(&mut skb, 1500);
            skb.offload()
        };
        let long = marked(&frame(TCP, 3000));
        assert_eq!((long.gso_type, long.hdr_len, long.gso_size), (GSO_TCPV4, 54, 1460));
        assert!(!marked(&frame(TCP, 1460)).is_gso() && marked(&frame(TCP, 1461)).is_gso());
        assert!(marked(&frame(UDP, 1460)).needs_checksum());
    }

    #[test]
    fn the_packet_in_a_tunnel_is_found_unfinished_and_its_superframe_fits_with_all_headers() {
        let tunnelled = ipip(frame(UDP, 100));
        assert_eq!(unfinished(&tunnelled), Some((54, 6)));
        assert_eq!(unfinished(&ipip(tunnelled.clone())), Some((74, 6)));
        assert_eq!(unfinished(&ipip(ipip(tunnelled))), None, "as deep as that nobody looks");
        let pool = linerate_skb::Pool::builder().frames(16).build().unwrap();
        let mut skb = pool.local().alloc_copy(&ipip(frame(TCP, 3000))).unwrap();
        mark(&mut skb, 1500);
        let offload = skb.offload();
        assert_eq!((offload.csum_start, offload.hdr_len, offload.gso_size), (54, 74, 1440));
    }

    #[test]
    fn fragments_and_what_is_cut_short_are_left_alone() {
        let packet = frame(UDP, 100);
        let mut fragment = packet.clone();
        fragment[20] = 0x20;
        assert_eq!(unfinished(&fragment), None);
        for len in 0..42 {
            assert_eq!(unfinished(&packet[..len]), None, "{len}");
        }
        let mut no_checksum = packet;
        no_checksum[40..42].fill(0);
        assert_eq!(unfinished(&no_checksum), None);
    }
}
