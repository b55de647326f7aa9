//! Fields of a packet apart from its bytes.
//!
//! The fields of the hot lane are always there; a field of a cold lane is `None` until it is set,
//! and then costs one more cache line. Setting any of them fails, and does nothing, if the packet
//! is shared and the pool has no frame [for a copy](Skb#copies).

use std::sync::Arc;

use crate::lanes::{Cold, Offload, Release, Vlan, lane};
use crate::meta::{CB_BYTES, Meta, PacketType};
use crate::skb::{Skb, Unique};

/// Ethernet's number among link types.
const ETHERNET: u16 = 1;

impl<S> Skb<S> {
    /// Returns a field of a cold lane, if the field was set.
    fn cold<T>(&self, lane: u16, read: impl FnOnce(&Cold) -> T) -> Option<T> {
        if self.meta().lanes & lane == 0 {
            return None;
        }
        // SAFETY: as for the hot line, no handle writes the cold line while other handles can read
        // it; the lane's bit is set, so the field was written.
        Some(read(unsafe { self.umem().cold(self.raw()).as_ref() }))
    }

    /// Returns the time at which the packet was captured, in nanoseconds of the epoch, if it was
    /// set.
    #[must_use]
    pub fn stamp_ns(&self) -> Option<u64> {
        self.cold(lane::STAMP, |cold| cold.stamp_ns)
    }

    /// Returns the mark that a classifier gave the packet: `skb->mark`, formerly `nfmark`.
    #[must_use]
    pub fn mark(&self) -> Option<u32> {
        self.cold(lane::MARK, |cold| cold.mark)
    }

    /// Returns the class that a traffic classifier assigned to the packet.
    #[must_use]
    pub fn tc_index(&self) -> Option<u16> {
        self.cold(lane::TC_INDEX, |cold| cold.tc_index)
    }

    /// Returns the flow hash of the packet, as a device or a stage computed it.
    #[must_use]
    pub fn hash(&self) -> Option<u32> {
        self.cold(lane::HASH, |cold| cold.hash)
    }

    /// Returns the VLAN tag that is kept in the metadata instead of in the packet's bytes.
    #[must_use]
    pub fn vlan(&self) -> Option<Vlan> {
        self.cold(lane::VLAN, |cold| Vlan { tci: cold.vlan.0, protocol: cold.vlan.1 })
    }

    /// Returns the work on the packet that is left to the device.
    #[must_use]
    pub fn offload(&self) -> Offload {
        self.cold(lane::OFFLOAD, |cold| cold.offload).unwrap_or(Offload::NONE)
    }

    /// Returns the class of the packet's link-layer destination: this host, broadcast, multicast,
    /// another host.
    #[must_use]
    pub fn packet_type(&self) -> PacketType {
        self.meta().packet_type
    }

    /// Returns the link type of the packet's first header, a number of the registry of captures'
    /// link types: 1 (Ethernet), unless the packet comes from a capture of another type.
    #[must_use]
    pub fn link_type(&self) -> u16 {
        self.meta().link.wrapping_add(ETHERNET)
    }

    /// Returns the number of bytes that the capture cut off the packet's end; 0 for a whole packet.
    #[must_use]
    pub fn snapped_bytes(&self) -> u32 {
        self.meta().snapped_bytes
    }

    /// Returns the packet's priority, for a qdisc; 0 unless it was set.
    #[must_use]
    pub fn priority(&self) -> u32 {
        self.meta().priority
    }

    /// Returns the control block: bytes for the packet's owner, which are zeroed when the packet is
    /// allocated.
    #[must_use]
    pub fn cb(&self) -> &[u8; CB_BYTES] {
        &self.meta().cb
    }

    /// Returns true if the packet [holds](Skb::hold) an object.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.meta().lanes & lane::HELD != 0
    }
}

impl Skb<Unique> {
    /// Returns the offload of this packet after `fragment` is appended; `None` if both packets have
    /// one, because a device does only one.
    pub(crate) fn offload_with(&self, fragment: &Skb) -> Option<Offload> {
        let (ours, other) = (self.offload(), fragment.offload());
        match (ours.is_pending(), other.is_pending()) {
            (_, false) => Some(ours),
            (true, true) => None,
            (false, true) => other.pushed(self.len()),
        }
    }

    /// Changes the hot line; returns false if the line is shared and could not be copied.
    fn set(&mut self, change: impl FnOnce(&mut Meta)) -> bool {
        self.meta_mut().map(change).is_some()
    }

    /// Writes a field of a cold lane and marks the lane as used.
    fn set_cold(&mut self, lane: u16, write: impl FnOnce(&mut Cold)) -> bool {
        if !self.set(|meta| meta.lanes |= lane) {
            return false;
        }
        // SAFETY: `set` made this the only handle on the frame, and `&mut self` borrows it.
        write(unsafe { self.umem().cold(self.raw()).as_mut() });
        true
    }

    /// Sets the capture time, in nanoseconds of the epoch.
    ///
    /// Returns false, and does nothing, if the packet is shared and the pool has no frame [for a
    /// copy](Skb#copies).
    pub fn set_stamp_ns(&mut self, stamp_ns: u64) -> bool {
        self.set_cold(lane::STAMP, |cold| cold.stamp_ns = stamp_ns)
    }

    /// Sets the packet's mark.
    ///
    /// Returns false, and does nothing, if the packet is shared and the pool has no frame [for a
    /// copy](Skb#copies).
    pub fn set_mark(&mut self, mark: u32) -> bool {
        self.set_cold(lane::MARK, |cold| cold.mark = mark)
    }

    /// Sets the packet's traffic class index.
    ///
    /// Returns false, and does nothing, if the packet is shared and the pool has no frame [for a
    /// copy](Skb#copies).
    pub fn set_tc_index(&mut self, tc_index: u16) -> bool {
        self.set_cold(lane::TC_INDEX, |cold| cold.tc_index = tc_index)
    }

    /// Sets the hash of the packet's flow.
    ///
    /// Returns false, and does nothing, if the packet is shared and the pool has no frame [for a
    /// copy](Skb#copies).
    pub fn set_hash(&mut self, hash: u32) -> bool {
        self.set_cold(lane::HASH, |cold| cold.hash = hash)
    }

    /// Sets or removes the VLAN tag that is kept in the metadata.
    ///
    /// A port that leads out of the process inserts the tag into the packet, after the two MAC
    /// addresses, when it sends the packet; the packet's other tags follow it. Ports within the
    /// process (`ring`, `sink`) leave it in the metadata. Ports do not set it: the tags of received
    /// packets are in their bytes.
    ///
    /// Returns false, and does nothing, if the packet is shared and the pool has no frame [for a
    /// copy](Skb#copies).
    pub fn set_vlan(&mut self, vlan: Option<Vlan>) -> bool {
        match vlan {
            Some(tag) => self.set_cold(lane::VLAN, |cold| cold.vlan = (tag.tci, tag.protocol)),
            None => self.set(|meta| meta.lanes &= !lane::VLAN),
        }
    }

    /// Sets the work on the packet that is left to the device.
    ///
    /// Returns false, and does nothing, if the packet is shared and the pool has no frame [for a
    /// copy](Skb#copies).
    pub fn set_offload(&mut self, offload: Offload) -> bool {
        if offload == Offload::NONE {
            return self.set(|meta| meta.lanes &= !lane::OFFLOAD);
        }
        self.set_cold(lane::OFFLOAD, |cold| cold.offload = offload)
    }

    /// Sets the class of the packet's link-layer destination.
    ///
    /// Returns false, and does nothing, if the packet is shared and the pool has no frame [for a
    /// copy](Skb#copies).
    pub fn set_packet_type(&mut self, packet_type: PacketType) -> bool {
        self.set(|meta| meta.packet_type = packet_type)
    }

    /// Sets the link type of the packet's first header, a number of the registry of captures' link
    /// types.
    ///
    /// Returns false, and does nothing, if the packet is shared and the pool has no frame [for a
    /// copy](Skb#copies).
    pub fn set_link_type(&mut self, link_type: u16) -> bool {
        self.set(|meta| meta.link = link_type.wrapping_sub(ETHERNET))
    }

    /// Sets the number of bytes that the capture cut off the packet's end.
    ///
    /// Returns false, and does nothing, if the packet is shared and the pool has no frame [for a
    /// copy](Skb#copies).
    pub fn set_snapped_bytes(&mut self, bytes: u32) -> bool {
        self.set(|meta| meta.snapped_bytes = bytes)
    }

    /// Sets the packet's priority, for a qdisc.
    ///
    /// Returns false, and does nothing, if the packet is shared and the pool has no frame [for a
    /// copy](Skb#copies).
    pub fn set_priority(&mut self, priority: u32) -> bool {
        self.set(|meta| meta.priority = priority)
    }

    /// Returns the control block, for writing; `None` if the packet is shared and the pool has no
    /// frame [for a copy](Skb#copies).
    pub fn cb_mut(&mut self) -> Option<&mut [u8; CB_BYTES]> {
        self.meta_mut().map(|meta| &mut meta.cb)
    }

    /// Attaches `what` to the packet. `what` is released when the last handle is freed, on the
    /// thread that frees it, before the packet's memory is returned. A copy of the packet does not
    /// hold `what`.
    ///
    /// # Errors
    /// Hands it back if the packet holds something already, or if the packet is shared and the pool
    /// has no frame [for a copy](Skb#copies).
    pub fn hold(&mut self, what: Arc<dyn Release>) -> Result<(), Arc<dyn Release>> {
        if self.holds() {
            return Err(what);
        }
        let charge = u32::try_from(self.truesize()).unwrap_or(u32::MAX);
        let mut what = Some(what);
        self.set_cold(lane::HELD, |cold| {
            if let Some(what) = what.take() {
                cold.held.write(what);
                cold.charge_bytes = charge;
            }
        });
        match what {
            Some(what) => Err(what),
            None => {
                self.flag();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{Data, Pool};

    #[derive(Default)]
    struct Budget {
        released: AtomicUsize,
        bytes: AtomicUsize,
    }

    impl Release for Budget {
        fn release(&self, truesize_bytes: usize) {
            self.released.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(truesize_bytes, Ordering::Relaxed);
        }
    }

    #[test]
    fn held_object_is_released_once_on_any_freeing_path() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let (mut mem, budget) = (pool.local(), Arc::new(Budget::default()));
        let mut truesize = 0;
        for way in 0..4 {
            let mut skb = mem.alloc_copy(&[way; 100]).unwrap();
            assert!(skb.hold(budget.clone()).is_ok() && skb.holds());
            assert!(skb.hold(budget.clone()).is_err());
            truesize += skb.truesize();
            match way {
                0 => drop(skb),
                1 => std::thread::scope(|s| s.spawn(|| drop(skb)).join().unwrap()),
                2 => {
                    let mut batch = crate::Batch::with_capacity(1);
                    assert!(batch.push(skb).is_ok());
                    batch.consume(&mut mem);
                }
                _ => {
                    // Behind another one, and shared: told when all of it goes.
                    let mut head = mem.alloc_copy(b"head").unwrap();
                    assert!(head.append(skb).is_ok());
                    let shared = head.share();
                    drop(head);
                    assert_eq!(budget.released.load(Ordering::Relaxed), 3);
                    drop(shared);
                }
            }
        }
        assert_eq!(budget.released.load(Ordering::Relaxed), 4);
        assert_eq!(budget.bytes.load(Ordering::Relaxed), truesize);
        assert_eq!(Arc::strong_count(&budget), 1);
        let ledger = pool.ledger();
        assert!(ledger.is_drained(), "{ledger}");
    }

    /// Looks for free frames, and for the packet's block, while a packet that holds it is freed.
    struct Looks {
        pool: Pool,
        free: AtomicUsize,
        looked: AtomicUsize,
    }

    impl Release for Looks {
        fn release(&self, _: usize) {
            let has_block = self.pool.data_from() == Data::General;
            let block_is_free = has_block && self.pool.stats().blocks_bytes == 0;
            let listed: u64 = self.pool.ledger().holders().iter().map(|(_, n)| n).sum();
            let got = self.pool.local_with(0).alloc_one().is_some();
            let free = listed as usize + usize::from(got) + usize::from(block_is_free);
            self.free.fetch_add(free, Ordering::Relaxed);
            self.looked.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn held_object_is_released_before_the_memory_goes_back() {
        for data in [Data::Frames, Data::General] {
            // The packet has the only frame.
            let pool = Pool::builder().frames(1).data(data).build().unwrap();
            let (free, looked) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let looks = Arc::new(Looks { pool: pool.clone(), free, looked });
            let (mut mem, mut batch) = (pool.local_with(0), crate::Batch::with_capacity(1));
            for way in 0..4 {
                let mut skb = mem.alloc_one().expect("the frame came back");
                assert!(skb.hold(looks.clone()).is_ok());
                match way {
                    0 => drop(skb),
                    1 => skb.discard(crate::DropReason::NO_ROUTE),
                    2 => {
                        let shared = skb.share();
                        drop((skb, shared));
                    }
                    _ => {
                        assert!(batch.push(skb).is_ok());
                        batch.consume(&mut mem);
                    }
                }
                assert_eq!(looks.looked.load(Ordering::Relaxed), way + 1);
                assert_eq!(looks.free.load(Ordering::Relaxed), 0, "{data:?}, way {way}");
            }
        }
    }

    #[test]
    fn a_copy_has_the_fields_and_not_what_the_original_holds() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let (mut mem, budget) = (pool.local(), Arc::new(Budget::default()));
        let mut skb = mem.alloc_copy(b"original").unwrap();
        assert!(skb.hold(budget.clone()).is_ok());
        assert!(skb.set_mark(7) && skb.set_priority(3) && skb.set_hash(9) && skb.set_tc_index(1));
        assert!(skb.set_vlan(Some(Vlan { tci: 5, protocol: 0x8100 })));
        skb.cb_mut().unwrap()[3] = 8;
        let shared = skb.share();
        skb.data_mut()[0] = b'O';
        assert!(shared.holds() && !skb.holds());
        assert_eq!((skb.mark(), skb.priority(), skb.hash()), (Some(7), 3, Some(9)));
        assert_eq!((skb.tc_index(), skb.cb()[3], skb.stamp_ns()), (Some(1), 8, None));
        assert_eq!(skb.vlan(), Some(Vlan { tci: 5, protocol: 0x8100 }));
        drop(skb);
        assert_eq!(budget.released.load(Ordering::Relaxed), 0);
        drop(shared);
        assert_eq!(budget.released.load(Ordering::Relaxed), 1);
    }

    struct Bad;

    impl Release for Bad {
        fn release(&self, _: usize) {
            std::panic::resume_unwind(Box::new("a program's own mistake"));
        }
    }

    #[test]
    fn panicking_release_frees_the_packet_all_the_same() {
        let pool = Pool::builder().frames(32).build().unwrap();
        let (mut mem, budget) = (pool.local(), Arc::new(Budget::default()));
        let mut batch = crate::Batch::with_capacity(8);
        for way in 0..3 {
            mem.alloc(&mut batch, 8);
            let mut fragment = mem.alloc_copy(b"told all the same").unwrap();
            assert!(fragment.hold(budget.clone()).is_ok());
            let first = batch.iter_mut().next().unwrap();
            assert!(first.hold(Arc::new(Bad)).is_ok() && first.append(fragment).is_ok());
            match way {
                0 => batch.clear(),
                1 => batch.consume(&mut mem),
                _ => batch.retain(|_| Err(crate::DropReason::NO_ROUTE)),
            }
            let ledger = pool.ledger();
            assert!(ledger.is_drained(), "{ledger}");
        }
        assert_eq!(budget.released.load(Ordering::Relaxed), 3);
        assert_eq!(pool.stats().cores.iter().map(|c| c.release_panics).sum::<u64>(), 3);
    }

    #[test]
    fn release_gets_the_truesize_at_the_time_of_hold() {
        let pool = Pool::builder().frames(32).build().unwrap();
        let (mut mem, budget) = (pool.local(), Arc::new(Budget::default()));
        let mut chain = mem.alloc_copy(&[1; 5000]).unwrap();
        let truesize = chain.truesize();
        assert!(chain.hold(budget.clone()).is_ok());
        let mut head = mem.alloc_copy(b"head").unwrap();
        assert!(head.append(chain).is_ok());
        drop(head);
        assert_eq!(budget.bytes.load(Ordering::Relaxed), truesize);
    }

    const PARTIAL: Offload = Offload { flags: 1, csum_start: 34, csum_offset: 6, ..Offload::NONE };

    #[test]
    fn a_partial_checksum_stays_with_its_header_when_headers_come_and_go() {
        let pool = Pool::builder().frames(16).build().unwrap();
        let mut skb = pool.local().alloc_copy(&[7; 100]).unwrap();
        skb.set_offload(PARTIAL);
        assert!(skb.push(20).is_some() && skb.offload().csum_start == 54);
        let shared = skb.share();
        assert!(skb.pull(54) && skb.offload().csum_start == 0);
        assert_eq!(shared.offload().csum_start, 54, "the other handle's bytes did not move");
        assert!(!skb.pull(67) && skb.offload().csum_start == 0);
        assert!(skb.trim(8) && skb.offload().needs_checksum());
        assert!(skb.pull(1) && skb.offload() == Offload::NONE);
        let mut skb = pool.local().alloc_copy(&[7; 100]).unwrap();
        skb.set_offload(PARTIAL);
        assert!(skb.trim(41) && skb.offload() == Offload::NONE, "the field is cut off");
        skb.set_offload(Offload { csum_start: u16::MAX, ..PARTIAL });
        assert!(skb.push(1).is_none() && skb.len() == 41, "no offset says where it would be");
    }

    #[test]
    fn a_packet_hung_behind_new_headers_keeps_what_it_leaves_to_the_device() {
        let pool = Pool::builder().frames(16).build().unwrap();
        let mut mem = pool.local();
        let mut outer = mem.alloc_copy(&[1; 50]).unwrap();
        let mut inner = mem.alloc_copy(&[2; 100]).unwrap();
        inner.set_offload(PARTIAL);
        assert!(outer.append(inner).is_ok());
        assert_eq!(outer.offload(), Offload { csum_start: 84, ..PARTIAL });
        let mut second = mem.alloc_copy(&[3; 100]).unwrap();
        second.set_offload(PARTIAL);
        let second = outer.append(second).unwrap_err();
        assert_eq!((second.offload(), outer.len()), (PARTIAL, 150));
        assert!(outer.append(mem.alloc_copy(b"tail").unwrap()).is_ok());
        assert_eq!(outer.offload().csum_start, 84);
    }

    #[test]
    fn a_copy_is_of_the_same_kind_and_time_and_leaves_the_same_to_the_device() {
        let pool = Pool::builder().frames(16).build().unwrap();
        let mut skb = pool.local().alloc_copy(&[7; 60]).unwrap();
        assert!(skb.set_packet_type(PacketType::OtherHost) && skb.set_link_type(101));
        assert!(skb.set_snapped_bytes(40) && skb.set_stamp_ns(u64::MAX - 1));
        assert!(skb.set_offload(PARTIAL));
        let shared = skb.share();
        assert_eq!(skb.copy_from(0, b"copied"), 6);
        assert_ne!(skb.data().as_ptr(), shared.data().as_ptr());
        assert_eq!((skb.packet_type(), skb.link_type()), (PacketType::OtherHost, 101));
        assert_eq!((skb.snapped_bytes(), skb.stamp_ns()), (40, Some(u64::MAX - 1)));
        assert_eq!(skb.offload(), PARTIAL);
    }

    #[test]
    fn a_tag_and_work_that_are_taken_away_are_gone() {
        let pool = Pool::builder().frames(4).build().unwrap();
        let mut skb = pool.local().alloc_copy(&[7; 60]).unwrap();
        let tag = Vlan { tci: 5, protocol: 0x8100 };
        assert!(skb.set_vlan(Some(tag)) && skb.set_offload(PARTIAL) && skb.set_mark(7));
        assert!(skb.set_vlan(None));
        assert_eq!((skb.vlan(), skb.offload(), skb.mark()), (None, PARTIAL, Some(7)));
        assert!(skb.set_vlan(Some(tag)) && skb.set_offload(Offload::NONE));
        assert_eq!((skb.vlan(), skb.offload(), skb.mark()), (Some(tag), Offload::NONE, Some(7)));
    }

    #[test]
    fn a_packet_hung_behind_a_chain_counts_its_offsets_from_the_first_frame() {
        let pool = Pool::builder().frames(16).build().unwrap();
        let mut mem = pool.local();
        let mut outer = mem.alloc_copy(&[1; 50]).unwrap();
        assert!(outer.append(mem.alloc_copy(&[2; 20]).unwrap()).is_ok());
        let mut inner = mem.alloc_copy(&[3; 100]).unwrap();
        inner.set_offload(PARTIAL);
        assert!(outer.append(inner).is_ok());
        assert_eq!(outer.offload(), Offload { csum_start: 50 + 20 + 34, ..PARTIAL });
    }
}
