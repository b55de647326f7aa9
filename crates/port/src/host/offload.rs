//! Offloads of a packet: conversion between the kernel's header and an skb's field.
//!
//! Both have virtio's fields, so that a partial checksum or a superframe passes from one interface
//! to another untouched. Where no header can travel, [`finish_one`] computes the checksum.
//!
//! The header cannot say that a checksum is SCTP's CRC32c: the kernel would write an Internet
//! checksum in its place. So SCTP's CRC never travels unfinished; the place of the field and the IP
//! header tell it.

use linerate_skb::{DropReason, Offload, Skb};
use linerate_sys::vnet::{F_NEEDS_CSUM, VnetHdr};
use linerate_wire::checksum;

use super::headers::{SCTP_CHECK, UDP_CHECK};
use super::{crc32c, headers, place};
use crate::segment::SEGMENTS_MAX;

/// Bytes of a chain that are summed in one step. The number is even, so that the sums can be added.
const BLOCK_BYTES: usize = 512;
/// Offset of the transport header after Ethernet and IPv4; the next constant is the offset after
/// Ethernet and IPv6.
pub(crate) const IPV4_TRANSPORT: u16 = 34;
pub(super) const IPV6_TRANSPORT: u16 = 54;
/// Offset of a VLAN tag, which follows the MAC addresses.
pub(crate) const TAG_AT: usize = 12;

/// Returns the kernel's offload header for sending a packet, without the flag for a verified
/// checksum, which only received packets have.
pub(crate) fn header(offload: Offload) -> VnetHdr {
    VnetHdr {
        flags: offload.flags & F_NEEDS_CSUM,
        gso_type: offload.gso_type,
        hdr_len: offload.hdr_len,
        gso_size: offload.gso_size,
        csum_start: offload.csum_start,
        csum_offset: offload.csum_offset,
    }
}

/// Converts the kernel's header of a received packet of `len` bytes that begins with `data`;
/// returns `None` if the header contradicts the packet, leaves a checksum where none can be, or has
/// the packet cut into more than [`SEGMENTS_MAX`] segments.
pub(crate) fn received(header: &VnetHdr, data: &[u8], len: usize) -> Option<Offload> {
    let offload = Offload {
        flags: header.flags,
        gso_type: header.gso_type,
        hdr_len: header.hdr_len,
        gso_size: header.gso_size,
        csum_start: header.csum_start,
        csum_offset: header.csum_offset,
    };
    let field_end = usize::from(header.csum_start) + usize::from(header.csum_offset) + 2;
    let fits = !offload.needs_checksum() || (field_end <= len && place::is_possible(data, offload));
    let is_cut = || {
        let gso_size = usize::from(header.gso_size);
        // A device that makes more segments than any sender would pass the limit of a rate.
        gso_size > 0 && len.div_ceil(gso_size) <= SEGMENTS_MAX && usize::from(header.hdr_len) <= len
    };
    let cuts = !offload.is_gso() || is_cut();
    (fits && cuts).then_some(offload)
}

/// Returns true if the offload is not at the first transport header, is a CRC of SCTP, or cuts a
/// superframe behind extension headers of IPv6: the kernel does none of them. It drops some of
/// those superframes without an error.
///
/// Source: net/ipv6/ip6_offload.c `ipv6_gso_pull_exthdrs`.
#[inline]
pub(crate) fn is_tunnelled(skb: &Skb, offload: Offload) -> bool {
    if is_usual(skb, offload) {
        return false;
    }
    is_not_first(skb, offload)
}

/// Parses the headers, and returns true if the kernel does not do the offload.
#[cold]
fn is_not_first(skb: &Skb, offload: Offload) -> bool {
    let found = headers::of(skb, headers::transport);
    if offload.is_gso() && found.is_some_and(|found| found.is_extended) {
        return true;
    }
    match offload.needs_checksum() {
        true if is_sctp(skb, offload) => true,
        true => found.is_none_or(|found| found.at != usize::from(offload.csum_start)),
        false => found.is_some_and(|found| !matches!(found.protocol, headers::TCP | headers::UDP)),
    }
}

/// Returns true for a checksum that starts at the usual offset. The transport header of a tunnel's
/// inner packet is always farther from the start.
#[inline]
fn is_usual(skb: &Skb, offload: Offload) -> bool {
    offload.needs_checksum()
        && offload.csum_offset != SCTP_CHECK
        && match offload.csum_start {
            IPV4_TRANSPORT => true,
            IPV6_TRANSPORT => is_ipv6(skb.data()),
            _ => false,
        }
}

/// Returns true for an Ethernet header that is directly followed by IPv6, and that directly by TCP
/// or UDP.
fn is_ipv6(data: &[u8]) -> bool {
    let Some(head) = data.first_chunk::<21>() else { return false };
    let transport = matches!(head[20], headers::TCP | headers::UDP);
    (head[12], head[13], head[14] >> 4) == (0x86, 0xdd, 6) && transport
}

/// Returns true if the checksum that is left is SCTP's CRC32c, at a place where [`finish_one`]
/// finds it.
pub(crate) fn is_sctp(skb: &Skb, offload: Offload) -> bool {
    offload.needs_checksum()
        && offload.csum_offset == SCTP_CHECK
        && protocol_of(skb, offload) == Some(headers::SCTP)
}

/// Returns the protocol of the header whose checksum is missing, if an IP header is right before
/// it.
fn protocol_of(skb: &Skb, offload: Offload) -> Option<u8> {
    let start = usize::from(offload.csum_start);
    headers::of(skb, |data| headers::protocol_at(data, start))
}

/// Completes the offload of a packet in software, for a device without offloads.
///
/// # Errors
/// `UNSUPPORTED` for a superframe, `MALFORMED` if the checksum's place is not in the packet,
/// `NO_FRAME` if it had to be copied to be written and could not.
pub(crate) fn finish_one(skb: &mut Skb, offload: Offload) -> Result<(), DropReason> {
    if offload.is_gso() {
        return Err(DropReason::UNSUPPORTED);
    }
    let start = usize::from(offload.csum_start);
    let field = start + usize::from(offload.csum_offset);
    if field + 2 > skb.len() {
        return Err(DropReason::MALFORMED);
    }
    if offload.csum_offset == SCTP_CHECK {
        // Behind headers that are not parsed, nothing tells whether the field has a CRC32c.
        match protocol_of(skb, offload) {
            Some(headers::SCTP) => return finish_sctp(skb, start),
            None => return Err(DropReason::UNSUPPORTED),
            Some(_) => {}
        }
    }
    let sum = sum_from(skb, start);
    // The field holds the sum of the pseudo header. In UDP the checksum 0 means "no checksum", so
    // write its other form, all ones. Source: RFC 768.
    let check = match checksum::finish(sum) {
        0 if offload.csum_offset == UDP_CHECK => u16::MAX,
        check => check,
    };
    // The write fails if the bytes are shared and the pool has no frame for a copy.
    if skb.copy_from(field, &check.to_be_bytes()) < 2 {
        return Err(DropReason::NO_FRAME);
    }
    skb.set_offload(Offload::NONE);
    Ok(())
}

/// Writes the CRC32c of the SCTP packet that begins at `start`; the CRC covers its own field as
/// zero.
///
/// Source: RFC 9260, 6.8 and appendix A; net/core/dev.c `skb_crc32c_csum_help`.
#[cold]
fn finish_sctp(skb: &mut Skb, start: usize) -> Result<(), DropReason> {
    let field = start + usize::from(SCTP_CHECK);
    if field + 4 > skb.len() {
        return Err(DropReason::MALFORMED);
    }
    if skb.copy_from(field, &[0; 4]) < 4 {
        return Err(DropReason::NO_FRAME);
    }
    let (mut crc, mut at, mut block) = (crc32c::START, start, [0; BLOCK_BYTES]);
    loop {
        let n = skb.copy_to(at, &mut block);
        crc = crc32c::add(crc, &block[..n]);
        at += n;
        if n < BLOCK_BYTES {
            break;
        }
    }
    // The previous write made the bytes this packet's own, so this one does not fail.
    if skb.copy_from(field, &crc32c::finish(crc).to_le_bytes()) < 4 {
        return Err(DropReason::NO_FRAME);
    }
    skb.set_offload(Offload::NONE);
    Ok(())
}

/// Returns the sum of the bytes of `skb` from `start` on, over all of its frames.
fn sum_from(skb: &Skb, start: usize) -> u16 {
    let first = skb.data().get(start..).unwrap_or_default();
    if first.len() == skb.len().saturating_sub(start) {
        return checksum::sum(first);
    }
    let (mut sum, mut at, mut block) = (0, start, [0; BLOCK_BYTES]);
    loop {
        let n = skb.copy_to(at, &mut block);
        sum = checksum::add(sum, checksum::sum(&block[..n]));
        at += n;
        if n < BLOCK_BYTES {
            return sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing;
    use linerate_skb::{Batch, Pool};

    const PARTIAL: Offload = Offload { flags: 3, csum_start: 14, csum_offset: 6, ..Offload::NONE };

    #[test]
    fn a_header_passes_through_but_for_what_only_receivers_say() {
        let gso = Offload { flags: 3, gso_type: 0x81, ..testing::SUPERFRAME };
        let (header, frame) = (header(gso), testing::ipv4(headers::TCP, 2000));
        assert_eq!(header.flags, 1);
        assert_eq!(received(&header, &frame, 2054), Some(Offload { flags: 1, ..gso }));
    }

    #[test]
    fn a_header_that_contradicts_its_packet_is_refused() {
        let (partial, frame) = (header(testing::PARTIAL), testing::ipv4(headers::UDP, 100));
        assert!(received(&partial, &frame, 42).is_some());
        assert_eq!(received(&partial, &frame, 41), None);
        let in_address = VnetHdr { csum_start: 30, csum_offset: 0, ..partial };
        assert_eq!(received(&in_address, &frame, 142), None);
        let gso = VnetHdr { gso_type: 1, hdr_len: 54, gso_size: 0, ..VnetHdr::NONE };
        assert_eq!(received(&gso, &frame, 2000), None);
        assert!(received(&VnetHdr { gso_size: 1, ..gso }, &frame, 2000).is_some());
        assert_eq!(received(&VnetHdr { gso_size: 1, ..gso }, &frame, 53), None);
        assert_eq!(received(&VnetHdr { gso_size: 1, ..gso }, &frame, SEGMENTS_MAX + 1), None);
    }

    #[test]
    fn a_missing_checksum_is_filled_in_and_what_cannot_be_done_is_dropped() {
        let pool = Pool::builder().frames(16).build().unwrap();
        let mut mem = pool.local();
        let mut batch = Batch::with_capacity(8);
        let frame: Vec<u8> = (0..61).collect();
        for offload in [
            Offload::NONE,
            PARTIAL,
            Offload { csum_start: 60, ..PARTIAL },
            Offload { gso_type: 1, gso_size: 10, ..Offload::NONE },
        ] {
            let mut skb = mem.alloc_copy(&frame).unwrap();
            skb.set_offload(offload);
            batch.push(skb).unwrap();
        }
        let long: Vec<u8> = (0..5001u32).map(|i| i as u8).collect();
        let mut chain = mem.alloc_copy(&long).unwrap();
        chain.set_offload(PARTIAL);
        batch.push(chain).unwrap();
        batch.retain(|skb| match skb.offload() {
            left if left.is_pending() => finish_one(skb, left),
            _ => Ok(()),
        });
        assert_eq!(batch.len(), 3);
        let mut chain = crate::host::testing::bytes(batch.iter().nth(2).unwrap());
        let check = u16::from_be_bytes([chain[20], chain[21]]);
        chain[20..22].copy_from_slice(&long[20..22]);
        assert_eq!(checksum::add(checksum::sum(&chain[14..]), check), u16::MAX);
        let frames: Vec<_> = batch.iter().map(|skb| skb.data().to_vec()).collect();
        assert_eq!(frames[0], frame);
        // The packet's sum with a correct checksum is all ones, minus the pseudo header, which the
        // field contained.
        let pseudo = u16::from_be_bytes([frame[20], frame[21]]);
        let mut whole = frames[1][14..].to_vec();
        let check = u16::from_be_bytes([whole[6], whole[7]]);
        whole[6..8].copy_from_slice(&pseudo.to_be_bytes());
        assert_eq!(checksum::add(checksum::sum(&whole), check), u16::MAX);
        assert!(batch.iter().all(|skb| skb.offload() == Offload::NONE));
        let ledger = pool.ledger();
        assert_eq!(ledger.dropped(DropReason::UNSUPPORTED), 1);
        assert_eq!(ledger.dropped(DropReason::MALFORMED), 1);
    }

    #[test]
    fn checksum_of_a_datagram_that_comes_out_as_zero_is_written_as_ones() {
        let pool = Pool::builder().frames(16).build().unwrap();
        let finished = |frame: &[u8], offload| {
            let mut skb = pool.local().alloc_copy(frame).unwrap();
            skb.set_offload(offload);
            finish_one(&mut skb, offload).unwrap();
            testing::bytes(&skb)
        };
        for (protocol, offload, zero) in [
            (headers::UDP, testing::PARTIAL, [0xff, 0xff]),
            (headers::TCP, Offload { csum_offset: 16, ..testing::PARTIAL }, [0, 0]),
        ] {
            let at = usize::from(offload.csum_start + offload.csum_offset);
            let mut frame = testing::ipv4(protocol, 100);
            let check = finished(&frame, offload)[at..at + 2].to_vec();
            // Added to the last bytes, the checksum leaves nothing.
            let end = frame.len() - 2;
            let word = checksum::add(checksum::sum(&frame[end..]), checksum::sum(&check));
            frame[end..].copy_from_slice(&word.to_be_bytes());
            assert_eq!(finished(&frame, offload)[at..at + 2], zero);
        }
    }

    /// An SCTP packet with an INIT chunk, and the CRC that a foreign implementation wrote into it.
    fn sctp_init() -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[8..16].copy_from_slice(&[0x40, 0x2c, 0x0b, 0x5f, 1, 0, 0, 0x1c]);
        packet[32..].copy_from_slice(&[0, 5, 0, 8, 127, 0, 0, 1]);
        packet
    }

    const SCTP_PARTIAL: Offload =
        Offload { flags: 1, csum_start: 34, csum_offset: 8, ..Offload::NONE };

    #[test]
    fn sctp_gets_a_crc_over_all_frames_of_its_chain() {
        let pool = Pool::builder().frames(16).build().unwrap();
        let mut mem = pool.local();
        let mut finish = |frame: &[u8], offload: Offload| -> Result<Vec<u8>, DropReason> {
            let mut skb = mem.alloc_copy(frame).unwrap();
            skb.set_offload(offload);
            finish_one(&mut skb, offload)?;
            assert_eq!(skb.offload(), Offload::NONE);
            Ok(testing::bytes(&skb))
        };
        let header = |protocol| testing::ipv4(protocol, 0)[..34].to_vec();
        let right = [header(132), sctp_init()].concat();
        // The kernel leaves 0 in the field; other contents must not change the result.
        for left in [[0; 4], [1, 2, 3, 4]] {
            let mut frame = right.clone();
            frame[42..46].copy_from_slice(&left);
            assert_eq!(finish(&frame, SCTP_PARTIAL), Ok(right.clone()));
            let mut tagged = frame.clone();
            tagged.splice(12..12, [0x81, 0, 0, 5]);
            let done = finish(&tagged, SCTP_PARTIAL.pushed(4).unwrap()).unwrap();
            assert_eq!(done[38..], right[34..]);
            let done = finish(&testing::ipip(frame), SCTP_PARTIAL.pushed(20).unwrap()).unwrap();
            assert_eq!(done[54..], right[34..]);
        }
        let long: Vec<u8> = (0..5001u32).map(|i| i as u8).collect();
        let done = finish(&[header(132), long.clone()].concat(), SCTP_PARTIAL).unwrap();
        // This is the CRC of another implementation for these bytes.
        assert_eq!(done[42..46], [0x90, 0xb4, 0x3f, 0xa9]);
        assert!(done[34..42] == long[..8] && done[46..] == long[12..]);
        let short = &right[..45];
        assert_eq!(finish(short, SCTP_PARTIAL), Err(DropReason::MALFORMED));
        // Another protocol with its checksum at the same place has an Internet checksum.
        let done = finish(&[header(253), long].concat(), SCTP_PARTIAL).unwrap();
        assert_eq!(checksum::finish(checksum::sum(&done[34..])), 0x0809);
    }

    #[test]
    fn sctp_behind_extension_headers_gets_its_crc_and_other_checksums_are_left_to_the_kernel() {
        let pool = Pool::builder().frames(16).build().unwrap();
        let mut mem = pool.local();
        for (protocol, csum_offset) in [(headers::SCTP, 8), (headers::UDP, 6), (headers::TCP, 16)] {
            for (first, chain) in testing::chains(protocol) {
                let csum_start = 54 + chain.len() as u16;
                let left = Offload { flags: 1, csum_start, csum_offset, ..Offload::NONE };
                let frame = testing::ipv6(first, &chain, protocol, 64);
                let mut skb = mem.alloc_copy(&frame).unwrap();
                skb.set_offload(left);
                assert_eq!(is_tunnelled(&skb, left), protocol == headers::SCTP, "{first}");
                assert_eq!(finish_one(&mut skb, left), Ok(()), "{first}");
                if protocol == headers::SCTP {
                    let start = usize::from(csum_start);
                    let crc = crc32c::finish(crc32c::add(crc32c::START, &frame[start..]));
                    let field = start + 8;
                    assert_eq!(skb.data()[field..field + 4], crc.to_le_bytes());
                }
            }
        }
    }

    #[test]
    fn the_crc_of_sctp_is_not_left_to_the_kernel() {
        let pool = Pool::builder().frames(16).build().unwrap();
        let mut mem = pool.local();
        let mut left = |frame: &[u8], offload| {
            let skb = mem.alloc_copy(frame).unwrap();
            is_tunnelled(&skb, offload)
        };
        let header = |protocol| testing::ipv4(protocol, 0)[..34].to_vec();
        assert!(left(&[header(132), sctp_init()].concat(), SCTP_PARTIAL));
        assert!(!left(&[header(253), sctp_init()].concat(), SCTP_PARTIAL));
    }
}
