//! Tests when the lines of frames are initialised, and which lanes are touched.

use crate::meta::{CB_BYTES, PacketType};
use crate::{Batch, Data, DropReason, Init, Pool};

/// Returns the priority fields in the hot lines after a packet with priority 7 was freed, once in
/// each way.
fn priorities_after_free(init: Init, frames: u32) -> [u32; 5] {
    [0, 1, 2, 3, 4].map(|way| {
        let pool = Pool::builder().frames(frames).init(init).build().unwrap();
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(1));
        let mut skb = mem.alloc_one().unwrap();
        let handle = skb.raw();
        assert!(skb.set_priority(7));
        match way {
            0 => drop(skb),
            1 => skb.discard(DropReason::NO_ROUTE),
            2 => std::thread::scope(|s| s.spawn(|| drop(skb)).join().unwrap()),
            3 => {
                let shared = skb.share();
                drop((skb, shared));
            }
            _ => {
                assert!(batch.push(skb).is_ok());
                batch.consume(&mut mem);
            }
        }
        assert!(pool.ledger().is_drained());
        // SAFETY: the frame is free, and its line initialised memory.
        unsafe { pool.umem().meta(handle).as_ref().priority }
    })
}

#[test]
fn a_free_initialises_nothing_unless_the_pool_was_told_to() {
    assert_eq!(Pool::builder().frames(8).build().unwrap().init(), Init::AtAlloc);
    assert_eq!(priorities_after_free(Init::AtAlloc, 8), [7; 5]);
    assert_eq!(priorities_after_free(Init::AtFree, 8), [0; 5]);
}

/// Compares whole lines: `frames` frames are freed one way, and no field but the count and the link
/// of a free list may have changed.
#[test]
fn a_free_writes_no_field_of_the_packet() {
    let pool = Pool::builder().frames(8).build().unwrap();
    let mut mem = pool.local();
    let fields = |handle: u32| {
        // SAFETY: the line is initialised memory, and no thread writes it now.
        let line = unsafe { pool.umem().meta(handle).as_ref() };
        let lengths = (line.off, line.len, line.data_len, line.snapped_bytes);
        (lengths, line.priority, line.packet_type as u8, line.link, line.cb)
    };
    for way in 0..3 {
        let mut skb = mem.alloc_copy(&[9; 100]).unwrap();
        let handle = skb.raw();
        // SAFETY: the test has the only packet on this frame.
        let line = unsafe { pool.umem().meta(handle).as_mut() };
        (line.priority, line.link, line.snapped_bytes) = (7, 113, 5);
        (line.packet_type, line.cb) = (PacketType::OtherHost, [0xa5; CB_BYTES]);
        assert!(skb.pull(14));
        let before = fields(handle);
        match way {
            0 => drop(skb),
            1 => skb.discard(DropReason::NO_ROUTE),
            _ => {
                let mut batch = Batch::with_capacity(1);
                assert!(batch.push(skb).is_ok());
                batch.consume(&mut mem);
            }
        }
        assert_eq!(fields(handle), before, "way {way}");
    }
    assert!(pool.ledger().is_drained());
}

#[test]
fn frames_dropped_onto_a_threads_list_are_initialised_when_they_leave_it() {
    // A drop, a discard and the drop of the last shared handle put the frame on the list. The
    // end of the other thread empties its list, and a batch is consumed onto a hot list.
    assert_eq!(priorities_after_free(Init::AtFree, 1024), [7, 7, 0, 7, 0]);
    let pool = Pool::builder().frames(1024).init(Init::AtFree).build().unwrap();
    // Without a hot list, an allocation takes the frame that the thread dropped last.
    let mut mem = pool.local_with(0);
    let mut skbs: Vec<_> = (0..65).map(|_| mem.alloc_one().unwrap()).collect();
    assert!(skbs.iter_mut().all(|skb| skb.set_priority(7)));
    let handles: Vec<u32> = skbs.iter().map(|skb| skb.raw()).collect();
    let priorities = || -> Vec<u32> {
        // SAFETY: the lines are initialised memory, and no thread writes them now.
        let priority = |&h: &u32| unsafe { pool.umem().meta(h).as_ref().priority };
        handles.iter().map(priority).collect()
    };
    skbs.into_iter().for_each(drop);
    // The list has 64 places: the last drop sent the 32 frames that were dropped first to the
    // depot.
    assert_eq!(priorities(), [[0u32; 32].as_slice(), &[7; 33]].concat());
    let skb = mem.alloc_one().unwrap();
    assert_eq!(skb.raw(), handles[64]);
    assert_eq!(priorities(), [[0u32; 32].as_slice(), &[7; 32], &[0]].concat());
}

/// Returns the priorities of new packets, one allocated alone and four in bulk, in whose frames'
/// hot lines it was 7.
fn priorities_after_alloc(init: Init, data: Data) -> Vec<u32> {
    let pool = Pool::builder().frames(8).init(init).data(data).build().unwrap();
    let tag = crate::handle::tag(pool.umem().id(), 0);
    for frame in 0..8 {
        // SAFETY: the frame is in no packet, and its line initialised memory that no other thread
        // accesses.
        let line = unsafe { pool.umem().meta(tag | frame).as_mut() };
        line.priority = 7;
    }
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(5));
    assert!(batch.push(mem.alloc_one().unwrap()).is_ok());
    assert_eq!(mem.alloc(&mut batch, 4), 4);
    batch.iter().map(|skb| skb.priority()).collect()
}

#[test]
fn an_allocation_writes_the_whole_header_unless_frees_do() {
    for data in [Data::Frames, Data::General] {
        assert_eq!(priorities_after_alloc(Init::AtAlloc, data), [0; 5], "{data:?}");
        assert_eq!(priorities_after_alloc(Init::AtFree, data), [7; 5], "{data:?}");
    }
}

#[test]
fn the_constructor_has_seen_every_frame_of_a_pool_that_initialises_at_free() {
    for (init, refs) in [(Init::AtAlloc, 0), (Init::AtFree, 1)] {
        let pool = Pool::builder().frames(8).jumbo(1, 4096).init(init).build().unwrap();
        let tag = crate::handle::tag(pool.umem().id(), 0);
        for frame in 0..9 {
            // SAFETY: in no packet, and zeroed memory at least.
            let meta = unsafe { pool.umem().meta(tag | frame).as_ref() };
            assert_eq!(meta.refs.load(std::sync::atomic::Ordering::Relaxed), refs);
        }
    }
}

#[test]
fn a_lane_that_nobody_uses_is_never_touched() {
    const POISON: [u8; 64] = [0xa5; 64];
    for init in [Init::AtAlloc, Init::AtFree] {
        let pool = Pool::builder().frames(16).init(init).build().unwrap();
        let tag = crate::handle::tag(pool.umem().id(), 0);
        for frame in 0..16 {
            // SAFETY: a line of a frame that is in no packet; a lane is valid only while its bit
            // is set.
            unsafe { pool.umem().cold(tag | frame).cast::<[u8; 64]>().write(POISON) };
        }
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(16));
        let cold = |handle: u32| {
            // SAFETY: a cold line is 64 bytes of initialised memory, and no thread writes it
            // now.
            unsafe { pool.umem().cold(handle).cast::<[u8; 64]>().read() }
        };
        let untouched = || (0..16).all(|frame| cold(tag | frame) == POISON);
        let mut skb = mem.alloc_copy(b"plain").unwrap();
        assert!(skb.set_priority(1) && skb.set_offload(crate::Offload::NONE));
        let shared = skb.share();
        skb.data_mut()[0] = b'P';
        drop((skb, shared));
        assert!(untouched(), "{init:?}");
        // All frames in bulk, first those of the hot list.
        assert_eq!(mem.alloc(&mut batch, 16), 16);
        assert!(untouched(), "{init:?}");
        batch.consume(&mut mem);
        assert!(untouched(), "{init:?}");
        let mut skb = mem.alloc_one().unwrap();
        assert!(skb.set_tc_index(0x1234));
        assert_eq!(cold(skb.raw()).iter().filter(|b| **b != 0xa5).count(), 2);
    }
}
