//! The Internet checksum: sums, incremental updates and pseudo headers.
//!
//! A *sum* is the 16-bit ones' complement sum of big-endian words, not complemented; a *check* is
//! what a header field holds, its complement. Sums add up in any order and any grouping of even
//! length, which is what makes every shortcut here correct.
//!
//! Source: RFC 1071 (sum, byte order independence), RFC 1624 equation 3 (update).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Protocol;

/// Returns the sum of `bytes`; an odd last byte counts as if a zero followed it.
///
/// Cost: one load and one add for each 4 bytes; compilers widen them to vectors.
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    // Fewer than 2^32 32-bit words cannot overflow a 64-bit sum. That is 16 GiB, more than the
    // slice of a frame can hold.
    let words: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let last = match *rest {
        [a] => [a, 0, 0, 0],
        [a, b] => [a, b, 0, 0],
        [a, b, c] => [a, b, c, 0],
        _ => [0; 4],
    };
    let total = words + u64::from(u32::from_ne_bytes(last));
    // Sum in the machine's byte order, and swap the bytes once at the end: RFC 1071 section 2 (B).
    u16::from_be(fold(fold64(total)))
}

/// Returns the one's complement sum of two sums.
#[must_use]
pub const fn add(a: u16, b: u16) -> u16 {
    fold(a as u32 + b as u32)
}

/// Returns the checksum for a header whose words, with the checksum field as zero, have this `sum`.
#[must_use]
pub const fn finish(sum: u16) -> u16 {
    !sum
}

/// Returns the checksum after one of the 16-bit words that it covers changed from `old` to `new`.
///
/// Source: RFC 1624 equation 3, which unlike RFC 1141 never turns a 0x0000 into a 0xffff.
#[must_use]
pub const fn update16(check: u16, old: u16, new: u16) -> u16 {
    !resum16(!check, old, new)
}

/// Returns the checksum after one of the 32-bit words that it covers changed from `old` to `new`.
#[must_use]
pub(crate) const fn update32(check: u16, old: u32, new: u32) -> u16 {
    !resum32(!check, old, new)
}

/// Returns the sum after one of its 16-bit words changed from `old` to `new`.
#[must_use]
const fn resum16(sum: u16, old: u16, new: u16) -> u16 {
    fold(sum as u32 + !old as u32 + new as u32)
}

/// Returns the sum after one of its 32-bit words changed from `old` to `new`.
#[must_use]
pub(crate) const fn resum32(sum: u16, old: u32, new: u32) -> u16 {
    let high = resum16(sum, (old >> 16) as u16, (new >> 16) as u16);
    resum16(high, old as u16, new as u16)
}

/// Returns the sum of the IPv4 pseudo header of a segment of `len_bytes`, transport header
/// included.
///
/// Source: RFC 768, RFC 9293 section 3.1.
#[must_use]
pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, len_bytes: u16) -> u16 {
    let ends = fold64(u64::from(src.to_bits()) + u64::from(dst.to_bits()));
    fold(ends + u32::from(protocol.0) + u32::from(len_bytes))
}

/// Returns the sum of the IPv6 pseudo header of a segment of `len_bytes`, transport header
/// included.
///
/// Source: RFC 8200 section 8.1.
#[must_use]
pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: Protocol, len_bytes: u32) -> u16 {
    let ends = u32::from(sum(&src.octets())) + u32::from(sum(&dst.octets()));
    let len = (len_bytes >> 16) + (len_bytes & 0xffff);
    fold(ends + len + u32::from(protocol.0))
}

/// Folds a wide sum to at most 18 bits, so that several such sums fit into 32 bits.
const fn fold64(sum: u64) -> u32 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    ((sum >> 32) + ((sum >> 16) & 0xffff) + (sum & 0xffff)) as u32
}

const fn fold(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the sum word by word, as RFC 1071 defines it.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            sum += u32::from(word);
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn the_example_of_rfc_1071_adds_up() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624_updates_to_zero() {
        assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn a_frame_of_ones_does_not_overflow() {
        for len in [1, 7, 8, 9, 1500, 9000, 65_535, 262_144] {
            let bytes = vec![0xff; len];
            assert_eq!(sum(&bytes), naive(&bytes), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn a_sum_equals_the_naive_one(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(sum(&bytes), naive(&bytes));
        }

        #[test]
        fn an_update_equals_a_new_sum(
            mut bytes in prop::collection::vec(any::<u8>(), 6..64),
            old: u32,
            new: u32,
        ) {
            bytes[0] = 1; // RFC 1624: a header is never all zero
            bytes[2..6].copy_from_slice(&old.to_be_bytes());
            let before = finish(sum(&bytes));
            bytes[2..6].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update32(before, old, new), finish(sum(&bytes)));
        }

        #[test]
        fn pseudo_headers_equal_their_bytes(src: [u8; 16], dst: [u8; 16], proto: u8, len: u32) {
            let mut v6 = [src, dst].concat();
            v6.extend(len.to_be_bytes());
            v6.extend([0, 0, 0, proto]);
            let got = pseudo_v6(src.into(), dst.into(), Protocol(proto), len);
            prop_assert_eq!(got, naive(&v6));

            let [src, dst] = [src, dst].map(|a| [a[0], a[1], a[2], a[3]]);
            let mut v4 = [src, dst].concat();
            v4.extend([0, proto]);
            v4.extend((len as u16).to_be_bytes());
            let got = pseudo_v4(src.into(), dst.into(), Protocol(proto), len as u16);
            prop_assert_eq!(got, naive(&v4));
        }
    }
}
