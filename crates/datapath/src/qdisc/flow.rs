//! The flow that a packet belongs to.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use linerate_skb::Skb;
use linerate_wire::{EtherType, Head, IpRef, Protocol};

/// Number of bytes that are copied from a peer's memory to parse a packet's headers.
const HEADERS: usize = 128;

/// The key by which packets are assigned to flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Key {
    /// All packets from one address are a flow.
    SrcIp,
    /// All packets to one address are a flow.
    DstIp,
    /// All packets of one connection are a flow: one protocol, from one address and port to one
    /// address and port.
    Connection,
}

impl FromStr for Key {
    type Err = &'static str;

    /// Reads `src_ip`, `dst_ip` or `connection`.
    fn from_str(text: &str) -> Result<Key, &'static str> {
        match text {
            "src_ip" => Ok(Key::SrcIp),
            "dst_ip" => Ok(Key::DstIp),
            "connection" => Ok(Key::Connection),
            _ => Err("say src_ip, dst_ip or connection"),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Key::SrcIp => "src_ip",
            Key::DstIp => "dst_ip",
            Key::Connection => "connection",
        })
    }
}

/// A secret from which flow numbers are computed, so that no sender can choose packets that share a
/// number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed([u64; 2]);

impl Seed {
    /// Draws a random seed.
    pub fn random() -> Seed {
        let draw = |n| {
            let mut hasher = RandomState::new().build_hasher();
            hasher.write_u8(n);
            hasher.finish() | 1
        };
        Seed([draw(0), draw(1)])
    }

    /// Returns the number of a packet's flow, which is equal for all packets of the flow; two flows
    /// have equal numbers only with a probability of 2^-64. Packets other than IP, and those with a
    /// malformed IPv4 header, are one flow. An IPv6 packet whose extension headers are malformed,
    /// too many or not in its first frame belongs to its addresses, as a fragment does.
    ///
    /// Cost: two or three multiplications, and the headers' cache line.
    #[inline]
    pub fn flow(&self, key: Key, skb: &Skb) -> u64 {
        let bytes = skb.data();
        if bytes.is_empty() {
            return self.flow_of_copy(key, skb);
        }
        self.flow_of_plain(key, bytes)
            .unwrap_or_else(|| self.flow_of(key, Head::new(bytes, skb.len() - bytes.len())))
    }

    /// Returns the flow number of a packet that a peer can write, from a copy of its headers.
    #[cold]
    fn flow_of_copy(&self, key: Key, skb: &Skb) -> u64 {
        let mut bytes = [0; HEADERS];
        let n = skb.copy_to(0, &mut bytes);
        self.flow_of(key, Head::new(&bytes[..n], skb.len().saturating_sub(n)))
    }

    #[inline]
    fn flow_of(&self, key: Key, head: Head<'_>) -> u64 {
        let (src, dst, rest) = match head.ip() {
            Ok(ip) if key == Key::Connection => (ip.src(), ip.dst(), protocol_and_ports(&ip)),
            Ok(ip) => (ip.src(), ip.dst(), 0),
            Err(_) => match ipv6_addresses(head) {
                Some((src, dst)) => (src.into(), dst.into(), 0),
                None => return 0,
            },
        };
        let Seed([hash, _]) = *self;
        match key {
            Key::SrcIp => self.address(hash, src),
            Key::DstIp => self.address(hash, dst),
            Key::Connection => self.mix(self.address(self.address(hash, src), dst), rest),
        }
    }

    /// Returns the flow number of the most frequent packets: TCP and UDP in IPv4 without tags,
    /// options and fragments, and with ports in the packet; `None` for others.
    #[inline]
    fn flow_of_plain(&self, key: Key, bytes: &[u8]) -> Option<u64> {
        let head = bytes.first_chunk::<38>()?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let is_plain = word(12) >> 8 == 0x0008_0045 && word(20) & 0x3fff_0000 == 0;
        // Behind a total length of less than 24 bytes there is padding where the ports would be.
        let has_ports =
            word(16) >= 24 << 16 && matches!(Protocol(head[23]), Protocol::TCP | Protocol::UDP);
        if !is_plain || !has_ports {
            return None;
        }
        let Seed([hash, _]) = *self;
        let mix = |hash, at| self.mix(hash, word(at).into());
        Some(match key {
            Key::SrcIp => mix(hash, 26),
            Key::DstIp => mix(hash, 30),
            Key::Connection => self.mix(mix(mix(hash, 26), 30), word_of(head[23], word(34))),
        })
    }

    #[inline]
    fn address(&self, hash: u64, address: IpAddr) -> u64 {
        match address {
            IpAddr::V4(ip) => self.mix(hash, u64::from(ip.to_bits())),
            IpAddr::V6(ip) => {
                let bits = ip.to_bits();
                self.mix(self.mix(hash, (bits >> 64) as u64), bits as u64)
            }
        }
    }

    #[inline]
    fn mix(&self, hash: u64, word: u64) -> u64 {
        let product = u128::from(hash ^ word) * u128::from(self.0[1]);
        (product >> 64) as u64 ^ product as u64
    }
}

/// Returns the sender's and the receiver's address of an IPv6 packet from its fixed header,
/// whatever follows it.
#[cold]
fn ipv6_addresses(head: Head<'_>) -> Option<(Ipv6Addr, Ipv6Addr)> {
    let eth = head.eth().ok().filter(|eth| eth.ether_type() == EtherType::IPV6)?;
    let fixed = eth.payload().first_chunk::<40>().filter(|fixed| fixed[0] >> 4 == 6)?;
    let (src, dst) = (*fixed[8..].first_chunk::<16>()?, *fixed[24..].first_chunk::<16>()?);
    Some((src.into(), dst.into()))
}

/// Returns a word that distinguishes connections between two addresses.
fn word_of(protocol: u8, ports: u32) -> u64 {
    u64::from(protocol) << 32 | u64::from(ports)
}

/// Returns the word of a packet with its protocol, and both ports if it has ports. It is 0 for a
/// fragment, so that all fragments of a datagram are in one flow: only the first has the ports, and
/// the protocol behind extension headers.
#[inline]
fn protocol_and_ports(ip: &IpRef<'_>) -> u64 {
    let is_fragment = match ip {
        IpRef::V4(ip) => ip.is_fragment(),
        IpRef::V6(ip) => ip.is_fragment(),
    };
    if is_fragment {
        return 0;
    }
    let has_ports = matches!(ip.protocol(), Protocol::TCP | Protocol::UDP);
    let first = ip.payload().first_chunk::<4>().filter(|_| has_ports);
    word_of(ip.protocol().0, first.map_or(0, |bytes| u32::from_be_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use linerate_skb::{Pool, Trust};

    use super::super::tests::udp;
    use super::*;

    #[test]
    fn key_says_what_belongs_together() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let (mut mem, seed) = (pool.local(), Seed::random());
        let mut flow = |key, src, dst, port| seed.flow(key, &udp(&mut mem, src, dst, port, 100));
        for (key, same) in [
            (Key::SrcIp, [true, false, true, true]),
            (Key::DstIp, [true, true, false, true]),
            (Key::Connection, [true, false, false, false]),
        ] {
            let first = flow(key, 1, 2, 7);
            let others =
                [flow(key, 1, 2, 7), flow(key, 3, 2, 7), flow(key, 1, 3, 7), flow(key, 1, 2, 8)];
            assert_eq!(others.map(|other| other == first), same, "{key:?}");
        }
        let arp = mem.alloc_copy(&[8; 42]).unwrap();
        assert_eq!(seed.flow(Key::SrcIp, &arp), 0);
    }

    #[test]
    fn flow_is_the_same_behind_a_tag() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let (mut mem, seed) = (pool.local(), Seed::random());
        let plain = udp(&mut mem, 1, 2, 3, 100);
        let (macs, rest) = plain.data().split_at(12);
        let tagged = mem.alloc_copy(&[macs, &[0x81, 0, 0, 7], rest].concat()).unwrap();
        for key in [Key::SrcIp, Key::DstIp, Key::Connection] {
            assert!(seed.flow_of_plain(key, plain.data()).is_some());
            assert!(seed.flow_of_plain(key, tagged.data()).is_none());
            assert_eq!(seed.flow(key, &plain), seed.flow(key, &tagged), "{key:?}");
        }
    }

    #[test]
    fn padding_of_a_packet_without_ports_is_no_port() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let (mut mem, seed) = (pool.local(), Seed::random());
        let mut flow = |total_len: u8, port| {
            let mut skb = udp(&mut mem, 1, 2, port, 60);
            skb.copy_from(16, &[0, total_len]);
            (seed.flow_of_plain(Key::Connection, skb.data()), seed.flow(Key::Connection, &skb))
        };
        for total_len in [20, 23] {
            let (plain, first) = flow(total_len, 3);
            assert_eq!((plain, first), (None, flow(total_len, 4).1), "{total_len} bytes");
        }
        assert_ne!(flow(24, 3), flow(24, 4));
    }

    #[test]
    fn flow_is_the_same_in_a_peers_memory() {
        let seed = Seed::random();
        let flow = |trust| {
            let pool = Pool::builder().frames(64).trust(trust).build().unwrap();
            seed.flow(Key::Connection, &udp(&mut pool.local(), 1, 2, 3, 1000))
        };
        assert_eq!(flow(Trust::Private), flow(Trust::Exported));
    }

    #[test]
    fn fragments_of_ipv6_are_one_flow() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let (mut mem, seed) = (pool.local(), Seed::random());
        let mut flow = |next: u8, offset_and_more: [u8; 2], payload: [u8; 16]| {
            let mut frame = vec![2; 12];
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 44, 64]);
            frame.extend([7; 32]);
            frame.extend([next, 0, offset_and_more[0], offset_and_more[1], 0, 0, 0, 1]);
            frame.extend(payload);
            seed.flow(Key::Connection, &mem.alloc_copy(&frame).unwrap())
        };
        let udp = [0, 1, 0, 2, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(flow(17, [0, 1], udp), flow(17, [0, 16], [9; 16]));
        // Only the first fragment has the extension header, and the protocol behind it.
        let options = [17, 0, 1, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0, 8, 0, 0];
        assert_eq!(flow(60, [0, 1], options), flow(60, [0, 16], [9; 16]));
        // A whole packet: TCP and UDP have ports, and are told apart.
        let ports = [0, 1, 0, 23, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_ne!(flow(17, [0, 0], udp), flow(17, [0, 0], ports));
        assert_ne!(flow(6, [0, 0], ports), flow(17, [0, 0], ports));
        assert_eq!(flow(47, [0, 0], udp), flow(47, [0, 0], ports), "GRE has no ports");
    }

    /// Checks chains that are too long to be parsed, in number and beyond the copied bytes.
    #[test]
    fn ipv6_packet_with_many_extension_headers_belongs_to_its_addresses() {
        let seed = Seed::random();
        for (trust, headers, units) in
            [(Trust::Private, 2, 0), (Trust::Private, 20, 0), (Trust::Exported, 4, 5)]
        {
            let pool = Pool::builder().frames(64).trust(trust).build().unwrap();
            let mut mem = pool.local();
            let mut flow = |key, src: u8, dst: u8| {
                let mut frame = vec![2; 12];
                let len = headers * 8 * (u16::from(units) + 1) + 8;
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 60, 64]);
                frame.extend([[src; 16], [dst; 16]].concat());
                for left in (0..headers).rev() {
                    let options = 4 + 8 * units;
                    frame.extend([if left > 0 { 60 } else { 17 }, units, 1, options]);
                    frame.extend(vec![0; options.into()]);
                }
                frame.extend([0, 1, 0, 2, 0, 8, 0, 0]);
                seed.flow(key, &mem.alloc_copy(&frame).unwrap())
            };
            for (key, same) in [
                (Key::SrcIp, [true, false, true]),
                (Key::DstIp, [true, true, false]),
                (Key::Connection, [true, false, false]),
            ] {
                let first = flow(key, 1, 2);
                let others = [flow(key, 1, 2), flow(key, 3, 2), flow(key, 1, 3)];
                assert_eq!(others.map(|other| other == first), same, "{key:?} {headers}");
            }
            let with_many = flow(Key::SrcIp, 1, 2);
            let mut plain = vec![2; 12];
            plain.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 59, 64]);
            plain.extend([[1; 16], [2; 16]].concat());
            let plain = seed.flow(Key::SrcIp, &mem.alloc_copy(&plain).unwrap());
            assert_eq!(plain, with_many, "{headers}");
        }
    }
}
