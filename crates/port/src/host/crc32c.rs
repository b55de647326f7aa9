//! CRC32c, the checksum of SCTP.
//!
//! Source: RFC 9260 appendix A; the polynomial is 0x1edc6f41, here with its bits in reverse order.

/// The CRC before the first byte.
pub(crate) const START: u32 = !0;

const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The remainder of each byte.
static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut rest, mut bit) = (byte as u32, 0);
        while bit < 8 {
            rest = (rest >> 1) ^ if rest & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
}

/// Returns the CRC `crc` continued over `bytes`.
///
/// Cost: one load of a 1 KiB table for each byte.
pub(crate) fn add(crc: u32, bytes: &[u8]) -> u32 {
    let next = |crc: u32, byte: &u8| {
        let [low, ..] = crc.to_le_bytes();
        TABLE[usize::from(low ^ byte)] ^ (crc >> 8)
    };
    bytes.iter().fold(crc, next)
}

/// Returns the CRC as a number; SCTP writes its lowest byte first.
pub(crate) fn finish(crc: u32) -> u32 {
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_in_one_piece_and_in_several() {
        // Source: RFC 3720 B.4 for the blocks of 32 bytes.
        let counted: Vec<u8> = (0..32).collect();
        for (bytes, crc) in [
            (&b"123456789"[..], 0xe306_9283),
            (&[][..], 0),
            (&[0; 32][..], 0x8a91_36aa),
            (&[0xff; 32][..], 0x62a8_ab43),
            (&counted[..], 0x46dd_794e),
        ] {
            for cut in 0..bytes.len() {
                let (first, rest) = bytes.split_at(cut);
                assert_eq!(finish(add(add(START, first), rest)), crc, "{bytes:?} at {cut}");
            }
            assert_eq!(finish(add(START, bytes)), crc);
        }
    }
}
