//! Changes of a packet, made by this crate's setters and in etherparse's headers.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::{IcmpEchoHeader, Icmpv4Type, Icmpv6Type, TransportHeader};
use linerate_wire::{HeadMut, TcpFlags, TransportMut};

use super::{Net, Packet};

/// A change of a header: the kind of field, and a value, of which the field takes its low bits.
pub type Edit = (u8, u128);

/// The number of kinds.
pub const KINDS: u8 = 13;

/// Makes a change by this crate's setters; does nothing if the packet has no such field.
pub fn edit_ours(head: HeadMut<'_>, (kind, value): Edit) {
    let port = value as u16;
    match kind {
        1 => {
            let Ok(mut view) = head.transport() else { return };
            let v4 = view.src_addr().is_ipv4();
            let other = if v4 { "[::1]:1" } else { "1.2.3.4:1" };
            assert!(view.set_dst(other.parse().unwrap()).is_err());
            assert!(view.set_src(other.parse().unwrap()).is_err());
            view.set_src(addr(v4, value)).unwrap();
            view.set_dst(addr(v4, !value)).unwrap();
            assert_eq!((view.src_addr(), view.dst_addr()), (addr(v4, value), addr(v4, !value)));
        }
        2 => match head.transport() {
            Ok(TransportMut::Udp(mut udp)) => {
                udp.set_src_port(port);
                udp.set_dst_port(!port);
            }
            Ok(TransportMut::Tcp(mut tcp)) => {
                tcp.set_src_port(port);
                tcp.set_dst_port(!port);
            }
            Err(_) => {}
        },
        3 => {
            if let Ok(mut tcp) = head.tcp() {
                tcp.set_seq(value as u32);
                tcp.set_ack((value >> 32) as u32);
                tcp.set_window(port);
                tcp.set_flags(TcpFlags((value >> 64) as u16));
            }
        }
        4 => {
            if let Ok(mut icmp) = head.icmp() {
                icmp.set_ident(port);
                icmp.set_seq(!port);
            }
        }
        5 => _ = head.icmp().map(|mut icmp| icmp.reply()),
        7 => _ = head.set_udp_payload_len(value as usize % 64),
        8 => {
            for tag in head.eth().unwrap().tags_mut() {
                tag.set_vid(value as u16);
                tag.set_pcp((value >> 16) as u8);
            }
        }
        9 => _ = head.transport().map(|mut view| view.swap_ends()),
        10 => match head.transport() {
            Ok(TransportMut::Udp(mut udp)) => assert!(udp.fill_checksum()),
            Ok(TransportMut::Tcp(mut tcp)) => assert!(tcp.fill_checksum()),
            Err(_) => {}
        },
        _ => edit_ip(head, (kind, value)),
    }
}

/// Changes a field of the IP header.
fn edit_ip(mut head: HeadMut<'_>, (kind, value): Edit) {
    let (dscp, ecn) = ((value >> 8) as u8, (value >> 16) as u8);
    if let Ok(mut ip) = head.reborrow().ipv4() {
        match kind {
            0 => ip.set_src((value as u32).into()),
            11 => ip.set_dst((value as u32).into()),
            12 => _ = ip.dec_ttl(),
            _ => {
                ip.set_ttl(value as u8);
                ip.set_dscp(dscp);
                ip.set_ecn(ecn);
                assert_eq!((ip.dscp(), ip.ecn()), (dscp & 63, ecn & 3));
            }
        }
    } else if let Ok(mut ip) = head.ipv6() {
        match kind {
            0 => ip.set_src(value.into()),
            11 => ip.set_dst(value.into()),
            12 => _ = ip.dec_hop_limit(),
            _ => {
                ip.set_hop_limit(value as u8);
                ip.set_dscp(dscp);
                ip.set_ecn(ecn);
                assert_eq!((ip.dscp(), ip.ecn()), (dscp & 63, ecn & 3));
            }
        }
    }
}

fn addr(v4: bool, value: u128) -> SocketAddr {
    let port = (value >> 64) as u16;
    if v4 {
        (Ipv4Addr::from(value as u32), port).into()
    } else {
        (Ipv6Addr::from(value), port).into()
    }
}

/// Makes the same change in etherparse's headers.
pub fn edit_theirs(packet: &mut Packet, (kind, value): Edit) {
    let port = value as u16;
    let is_transport =
        matches!(packet.transport, TransportHeader::Udp(_) | TransportHeader::Tcp(_));
    let ports = |transport: &mut TransportHeader, src, dst| match transport {
        TransportHeader::Udp(udp) => (udp.source_port, udp.destination_port) = (src, dst),
        TransportHeader::Tcp(tcp) => (tcp.source_port, tcp.destination_port) = (src, dst),
        _ => {}
    };
    if kind == 5 && reply(&mut packet.transport) {
        packet.swap();
        packet.set_hops(64);
    }
    if kind == 9 && is_transport {
        packet.swap();
    }
    match (kind, &mut packet.net, &mut packet.transport) {
        (0, Net::V4(ip), _) => ip.source = (value as u32).to_be_bytes(),
        (0, Net::V6(ip), _) => ip.source = value.to_be_bytes(),
        (1, net, transport) if is_transport => {
            match net {
                Net::V4(ip) => {
                    ip.source = (value as u32).to_be_bytes();
                    ip.destination = (!value as u32).to_be_bytes();
                }
                Net::V6(ip) => {
                    (ip.source, ip.destination) = (value.to_be_bytes(), (!value).to_be_bytes());
                }
            }
            let port = (value >> 64) as u16;
            ports(transport, port, !port);
        }
        (2, _, transport) => ports(transport, port, !port),
        (3, _, TransportHeader::Tcp(tcp)) => {
            tcp.sequence_number = value as u32;
            tcp.acknowledgment_number = (value >> 32) as u32;
            tcp.window_size = port;
            let flags = (value >> 64) as u16;
            let bit = |n: u8| flags >> n & 1 != 0;
            (tcp.fin, tcp.syn, tcp.rst, tcp.psh) = (bit(0), bit(1), bit(2), bit(3));
            (tcp.ack, tcp.urg, tcp.ece, tcp.cwr) = (bit(4), bit(5), bit(6), bit(7));
            tcp.ns = bit(8); // the old name of AE
        }
        (4, _, transport) => {
            if let Some(echo) = echo(transport) {
                (echo.id, echo.seq) = (port, !port);
            }
        }
        (6, Net::V4(ip), _) => {
            ip.time_to_live = value as u8;
            ip.dscp = ((value >> 8) as u8 & 63).try_into().unwrap();
            ip.ecn = ((value >> 16) as u8 & 3).try_into().unwrap();
        }
        (6, Net::V6(ip), _) => {
            ip.hop_limit = value as u8;
            ip.traffic_class = ((value >> 8) as u8) << 2 | (value >> 16) as u8 & 3;
        }
        (7, _, TransportHeader::Udp(_)) => packet.payload.resize(value as usize % 64, 0),
        (8, ..) => {
            if let Some(tag) = &mut packet.vlan {
                *tag = (value as u16 & 0xfff, (value >> 16) as u8 & 7);
            }
        }
        (11, Net::V4(ip), _) => ip.destination = (value as u32).to_be_bytes(),
        (11, Net::V6(ip), _) => ip.destination = value.to_be_bytes(),
        (12, Net::V4(ip), _) => ip.time_to_live -= u8::from(ip.time_to_live > 1),
        (12, Net::V6(ip), _) => ip.hop_limit -= u8::from(ip.hop_limit > 1),
        _ => {}
    }
}

/// Returns the fields of an echo.
fn echo(transport: &mut TransportHeader) -> Option<&mut IcmpEchoHeader> {
    match transport {
        TransportHeader::Icmpv4(icmp) => match &mut icmp.icmp_type {
            Icmpv4Type::EchoRequest(echo) | Icmpv4Type::EchoReply(echo) => Some(echo),
            _ => None,
        },
        TransportHeader::Icmpv6(icmp) => match &mut icmp.icmp_type {
            Icmpv6Type::EchoRequest(echo) | Icmpv6Type::EchoReply(echo) => Some(echo),
            _ => None,
        },
        _ => None,
    }
}

/// Turns the request for an echo into the reply; returns false for other messages.
fn reply(transport: &mut TransportHeader) -> bool {
    match transport {
        TransportHeader::Icmpv4(icmp) => match icmp.icmp_type {
            Icmpv4Type::EchoRequest(echo) => icmp.icmp_type = Icmpv4Type::EchoReply(echo),
            _ => return false,
        },
        TransportHeader::Icmpv6(icmp) => match icmp.icmp_type {
            Icmpv6Type::EchoRequest(echo) => icmp.icmp_type = Icmpv6Type::EchoReply(echo),
            _ => return false,
        },
        _ => return false,
    }
    true
}
