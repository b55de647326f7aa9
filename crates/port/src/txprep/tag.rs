//! Insertion of a VLAN tag that is in a packet's metadata.
//!
//! ```text
//!   headroom │ MACs │ type …          the MAC addresses move by 4 bytes into the headroom
//!    │ MACs │ tag │ type …
//! ```
//!
//! Source: Linux include/linux/if_vlan.h `__vlan_insert_tag`, net/core/dev.c `validate_xmit_vlan`.

use linerate_skb::{DropReason, Local, Skb, Vlan};
use linerate_wire::VLAN_BYTES;

use crate::host::copy_out;
use crate::host::offload::TAG_AT;
use crate::segment::copy_fields;

/// Moves the VLAN tag from the metadata of `skb` into its bytes; returns the number of bytes that
/// were copied because the packet has no headroom, or is in memory that a peer can write.
///
/// # Errors
/// `MALFORMED` if the packet has no MAC addresses, `NO_FRAME` if it had to be copied and there was
/// no frame, `TOO_LONG` if no port takes a packet of its length, or the pool can never hold its
/// copy.
pub(super) fn insert(
    skb: &mut Skb,
    tag: Vlan,
    mem: &mut Local,
    scratch: &mut Vec<u8>,
) -> Result<u64, DropReason> {
    if skb.len() < TAG_AT {
        return Err(DropReason::MALFORMED);
    }
    let tag = tag.bytes();
    if skb.data().len() >= TAG_AT && skb.push(VLAN_BYTES).is_some() {
        // The packet is this one's own now, and has at least 16 bytes in its first frame.
        let data = skb.data_mut();
        data.copy_within(VLAN_BYTES..VLAN_BYTES + TAG_AT, 0);
        data[TAG_AT..TAG_AT + VLAN_BYTES].copy_from_slice(&tag);
        skb.set_vlan(None);
        return Ok(0);
    }
    copy_out(skb, scratch).ok_or(DropReason::TOO_LONG)?;
    scratch.splice(TAG_AT..TAG_AT, tag);
    if scratch.len() > mem.pool().packet_max_bytes() {
        return Err(DropReason::TOO_LONG);
    }
    let offload = skb.offload().pushed(VLAN_BYTES).ok_or(DropReason::MALFORMED)?;
    let mut copy = mem.alloc_copy(scratch).ok_or(DropReason::NO_FRAME)?;
    copy_fields(skb, &mut copy);
    copy.set_offload(offload);
    copy.set_vlan(None);
    *skb = copy;
    Ok(scratch.len() as u64)
}

#[cfg(test)]
mod tests {
    use linerate_skb::{Batch, Offload, Pool, Trust};

    use super::*;
    use crate::caps::{Caps, TxOffload};
    use crate::host::testing::{self, PARTIAL, assert_settled, bytes, ipv4};
    use crate::txprep::TxPrep;
    use crate::txprep::tests::Device;

    const TAG: Vlan = Vlan { tci: 0x2005, protocol: 0x88a8 };

    /// Returns `frame` with the tag in its bytes.
    fn tagged(frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        frame.splice(12..12, [0x88, 0xa8, 0x20, 0x05]);
        frame
    }

    /// Sends `frame` with the tag in its metadata; returns what leaves.
    fn leave(pool: &Pool, caps: Caps, frame: &[u8], offload: Offload) -> Vec<Vec<u8>> {
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(3));
        for tag in [None, Some(TAG), None] {
            let mut skb = mem.alloc_copy(frame).unwrap();
            skb.set_vlan(tag);
            skb.set_offload(offload);
            batch.push(skb).unwrap();
        }
        let (mut prep, mut device) = (TxPrep::new(&caps), Device::with(caps));
        prep.xmit(&mut device, &mut mem, &mut batch);
        assert!(batch.is_empty() && !prep.is_busy());
        drop((prep, batch, mem));
        assert_settled(pool);
        device.sent
    }

    #[test]
    fn tag_of_the_metadata_is_inserted_before_a_packet_leaves() {
        let frame = ipv4(17, 100);
        for (headroom, trust) in [(64, Trust::Private), (0, Trust::Private), (64, Trust::Exported)]
        {
            let pool = Pool::builder().frames(64).headroom(headroom).trust(trust).build().unwrap();
            for stops_at_offloads in [false, true] {
                let caps = Caps { stops_at_offloads, ..Caps::default() };
                let long = [frame.clone(), vec![7; 4000]].concat();
                for frame in [&frame, &long] {
                    let sent = leave(&pool, caps, frame, Offload::NONE);
                    assert!(sent == [frame.clone(), tagged(frame), frame.clone()], "{headroom}");
                }
            }
            let short = leave(&pool, Caps::default(), &[7; 11], Offload::NONE);
            assert_eq!((short.len(), pool.ledger().dropped(DropReason::MALFORMED)), (2, 1));
        }
    }

    #[test]
    fn work_on_a_tagged_packet_is_found_behind_its_tag() {
        let pool = Pool::builder().frames(256).build().unwrap();
        let sent = leave(&pool, Caps::default(), &ipv4(17, 100), PARTIAL);
        assert_eq!(sent[1], tagged(&sent[0]));
        let segments = leave(&pool, Caps::default(), &ipv4(6, 4000), testing::SUPERFRAME);
        assert_eq!(segments.len(), 9);
        for i in 0..3 {
            assert_eq!(segments[3 + i], tagged(&segments[i]), "segment {i}");
        }
        let does = TxOffload::Untunnelled;
        let caps = Caps { checksum: does, gso: does, ..Caps::default() };
        assert_eq!(leave(&pool, caps, &ipv4(17, 100), PARTIAL)[1], tagged(&ipv4(17, 100)));
        // Without headroom the packet with its tag is a copy.
        let bare = Pool::builder().frames(256).headroom(0).build().unwrap();
        assert_eq!(leave(&bare, Caps::default(), &ipv4(17, 100), PARTIAL), sent);
        assert_eq!(leave(&bare, Caps::default(), &ipv4(6, 4000), testing::SUPERFRAME), segments);
    }

    #[test]
    fn queue_within_the_process_gets_the_tag_in_the_metadata() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let frame = ipv4(17, 100);
        let sent = leave(&pool, Caps::IN_PROCESS, &frame, Offload::NONE);
        assert_eq!(sent, [frame.clone(), frame.clone(), frame]);
    }

    #[test]
    fn packet_that_the_pool_can_never_hold_with_its_tag_is_too_long() {
        let [pool, small] = [64, 4].map(|n| Pool::builder().frames(n).headroom(0).build().unwrap());
        let longest = small.packet_max_bytes() - VLAN_BYTES;
        let insert = |len| {
            let mut skb = pool.local().alloc_copy(&vec![7; len]).unwrap();
            insert(&mut skb, TAG, &mut small.local(), &mut Vec::new())
        };
        assert!(insert(longest).is_ok());
        assert_eq!(insert(longest + 1), Err(DropReason::TOO_LONG));
    }

    #[test]
    fn tag_of_a_shared_packet_is_inserted_into_a_copy() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let mut mem = pool.local();
        let mut skb = mem.alloc_copy(&ipv4(17, 100)).unwrap();
        skb.set_vlan(Some(TAG));
        let other = skb.share();
        insert(&mut skb, TAG, &mut mem, &mut Vec::new()).unwrap();
        assert_eq!((bytes(&skb), skb.vlan()), (tagged(&ipv4(17, 100)), None));
        assert_eq!(other.data(), ipv4(17, 100));
        assert_eq!(other.vlan(), Some(TAG));
    }
}
