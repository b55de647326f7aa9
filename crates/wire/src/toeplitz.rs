//! The hash by which devices and kernels divide flows among queues (receive-side scaling).

use std::net::IpAddr;

use crate::{Head, Protocol, ip};

/// Length of a key in bytes: room for two IPv6 addresses, two ports, and the 32 bits of the hash.
const KEY_BYTES: usize = 40;
/// Most bytes that are hashed.
const INPUT_BYTES_MAX: usize = KEY_BYTES - 4;

/// A Toeplitz hash with its key, which decides the hash of each flow.
///
/// Source: Microsoft, "RSS Hashing Functions"; the symmetric key is that of Woo and Park, "Scalable
/// TCP Session Monitoring with Symmetric Receive-side Scaling", 2012.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toeplitz([u8; KEY_BYTES]);

impl Toeplitz {
    /// A hash that is equal for both directions of a flow.
    pub const SYMMETRIC: Toeplitz = {
        let mut key = [0x6d; KEY_BYTES];
        let mut i = 1;
        while i < KEY_BYTES {
            key[i] = 0x5a;
            i += 2;
        }
        Toeplitz(key)
    };

    /// Returns the hash with a device's `key`, whose bytes are in the order in which `ethtool -x`
    /// prints them.
    #[must_use]
    pub const fn new(key: [u8; KEY_BYTES]) -> Toeplitz {
        Toeplitz(key)
    }

    /// Returns the hash of at most 36 bytes of `input`.
    ///
    /// Cost: a step for each bit.
    #[must_use]
    pub fn hash(&self, input: &[u8]) -> u32 {
        let (first, rest) = self.0.split_at(8);
        let mut window = first.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let mut hash = 0;
        let next = rest.iter().copied().chain(std::iter::repeat(0));
        for (byte, next) in input.iter().take(INPUT_BYTES_MAX).zip(next) {
            for bit in (0..8).rev() {
                if byte >> bit & 1 == 1 {
                    hash ^= (window >> 32) as u32;
                }
                window <<= 1;
            }
            window |= u64::from(next);
        }
        hash
    }
}

impl Head<'_> {
    /// Returns the hash that a device computes for the packet, from the addresses, and for UDP and
    /// TCP the ports; 0 for packets other than IP.
    ///
    /// Shape: a fragment, which may have no ports, is hashed by its addresses.
    /// Cost:  a step for each of up to 288 bits.
    #[must_use]
    pub fn rss_hash(self, toeplitz: &Toeplitz) -> u32 {
        let Ok(ip) = ip::read(self) else { return 0 };
        let has_ports = matches!(ip.protocol(), Protocol::UDP | Protocol::TCP) && !ip.is_fragment();
        let ports: Option<&[u8; 4]> = ip.payload().first_chunk().filter(|_| has_ports);
        let mut input = [0; INPUT_BYTES_MAX];
        let mut len = 0;
        let mut add = |bytes: &[u8]| {
            if let Some(place) = input.get_mut(len..len + bytes.len()) {
                place.copy_from_slice(bytes);
                len += bytes.len();
            }
        };
        for addr in [ip.src(), ip.dst()] {
            match addr {
                IpAddr::V4(addr) => add(&addr.octets()),
                IpAddr::V6(addr) => add(&addr.octets()),
            }
        }
        add(ports.map_or(&[], |ports| ports));
        toeplitz.hash(&input[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{tcp4_frame, udp4_frame, udp6_frame};
    use crate::transport_mut;

    /// The key of Microsoft's "Verifying the RSS Hash Calculation".
    const PUBLISHED: Toeplitz = Toeplitz::new([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// Hashes of addresses alone, and with ports.
    fn hashes(src: &str, dst: &str, ports: [u16; 2]) -> (u32, u32) {
        let octets = |addr: &str| match addr.parse().unwrap() {
            IpAddr::V4(addr) => addr.octets().to_vec(),
            IpAddr::V6(addr) => addr.octets().to_vec(),
        };
        let addresses = [octets(src), octets(dst)].concat();
        let ports = ports.map(u16::to_be_bytes).concat();
        (PUBLISHED.hash(&addresses), PUBLISHED.hash(&[addresses, ports].concat()))
    }

    #[test]
    fn published_vectors_come_out() {
        for (src, dst, ports, hash) in [
            ("66.9.149.187", "161.142.100.80", [2794, 1766], (0x323e_8fc2, 0x51cc_c178)),
            ("199.92.111.2", "65.69.140.83", [14230, 4739], (0xd718_262a, 0xc626_b0ea)),
            ("24.19.198.95", "12.22.207.184", [12898, 38024], (0xd2d0_a5de, 0x5c2b_394a)),
            ("38.27.205.30", "209.142.163.6", [48228, 2217], (0x8298_9176, 0xafc7_327f)),
            ("153.39.163.191", "202.188.127.2", [44251, 1303], (0x5d18_09c5, 0x10e8_28a2)),
            (
                "3ffe:2501:200:1fff::7",
                "3ffe:2501:200:3::1",
                [2794, 1766],
                (0x2cc1_8cd5, 0x4020_7d3d),
            ),
            (
                "3ffe:501:8::260:97ff:fe40:efab",
                "ff02::1",
                [14230, 4739],
                (0x0f0c_461c, 0xdde5_1bbf),
            ),
            (
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                "fe80::200:f8ff:fe21:67cf",
                [44251, 38024],
                (0x4b61_e985, 0x02d1_feef),
            ),
        ] {
            assert_eq!(hashes(src, dst, ports), hash, "{src} to {dst}");
        }
    }

    #[test]
    fn a_frame_is_hashed_by_its_addresses_and_ports() {
        let frame = udp4_frame([66, 9, 149, 187].into(), [161, 142, 100, 80].into(), b"");
        let (_, expected) = hashes("66.9.149.187", "161.142.100.80", [1000, 2000]);
        assert_eq!(Head::new(&frame, 0).rss_hash(&PUBLISHED), expected);
        let (mut fragment, (expected, _)) =
            (frame.clone(), hashes("66.9.149.187", "161.142.100.80", [0; 2]));
        fragment[20] = 0x20;
        assert_eq!(Head::new(&fragment, 0).rss_hash(&PUBLISHED), expected);
        assert_eq!(Head::new(&frame[..20], 0).rss_hash(&PUBLISHED), 0);
    }

    #[test]
    fn both_ways_of_a_flow_have_one_symmetric_hash() {
        let udp4 = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"payload");
        for mut frame in [udp4, udp6_frame(b"payload"), tcp4_frame(&[], b"payload")] {
            let hash = |frame: &[u8]| Head::new(frame, 0).rss_hash(&Toeplitz::SYMMETRIC);
            let (there, asymmetric) = (hash(&frame), Head::new(&frame, 0).rss_hash(&PUBLISHED));
            transport_mut(&mut frame).unwrap().swap_ends();
            assert_eq!(hash(&frame), there);
            assert_ne!(Head::new(&frame, 0).rss_hash(&PUBLISHED), asymmetric);
        }
    }
}
