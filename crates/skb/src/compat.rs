//! The kernel's names for packet buffers, with the semantics that posts 000 and 004 assume.
//!
//! For code that was written against `struct sk_buff`, and for experiments that follow the posts to
//! the letter. Each function is a few lines over [`Local`], [`Skb`] and [`Batch`], which new code
//! calls itself. What holds for all of them:
//!
//! - There is no `gfp_mask`: memory comes from the [`Local`] at hand, at once or not at all.
//! - Where the kernel ends in `BUG()` (`skb_over_panic`, `skb_under_panic`), nothing happens and
//!   the answer is `None` or `false`.
//! - A new packet has the headroom of its pool, where the kernel's has none.
//!
//! *Kernel* below is Linux 2.4.18 and 2.5.25, net/core/skbuff.c and include/linux/skbuff.h.

use std::iter::Skip;
use std::sync::atomic::Ordering;

use crate::batch::Batch;
use crate::chain;
use crate::local::Local;
use crate::segments::Segments;
use crate::skb::{Shared, Skb};

/// Headroom that `dev_alloc_skb` leaves for a driver to align headers and push one more header.
const DEVICE_HEADROOM_BYTES: usize = 16;

/// Allocates an empty packet with room for `size` bytes.
///
/// Kernel: takes the header from the CPU's hot list and the data from `kmalloc`; no headroom, and a
/// tailroom of `size` rounded up to a cache line. `NULL` if either cannot be allocated; the
/// `nodata` path gives the header back.
/// Here:   header and data in one from the hot list, of the smallest size class that fits; in
///         general mode the data from the system's allocator, as there. What fits no class is
///         refused: [`Local::alloc_copy`] makes a list of fragments of bytes that are there.
/// Errors: `None` if the pool has no frame, or none that large, or in general mode the allocator
///         no memory; nothing is left taken.
pub fn alloc_skb(mem: &mut Local, size: usize) -> Option<Skb> {
    mem.alloc_len(size)
}

/// Allocates an empty packet in a frame of the pool's fixed size.
///
/// Kernel: the function of post 000, never merged: header and a data area of 1514 bytes stay
///         together on the hot list, so that no `kmalloc` or `kfree` is called for a packet.
/// Here:   the same; the frame's size is the pool's, 2048 bytes with headroom unless told. In
///         general mode the allocator gives a block of that size.
/// Errors: as [`alloc_skb`].
pub fn alloc_skb_frame(mem: &mut Local) -> Option<Skb> {
    mem.alloc_one()
}

/// Allocates an empty packet for a device to receive into, with at least 16 bytes of headroom and
/// room for `length` bytes.
///
/// Kernel: `alloc_skb(length + 16)`, then `skb_reserve(16)`, in interrupt context.
/// Here:   the pool's headroom if that is more.
/// Errors: as [`alloc_skb`].
pub fn dev_alloc_skb(mem: &mut Local, length: usize) -> Option<Skb> {
    let short = DEVICE_HEADROOM_BYTES.saturating_sub(mem.pool().headroom());
    let mut skb = alloc_skb(mem, length.checked_add(short)?)?;
    skb_reserve(&mut skb, short).then_some(skb)
}

/// Appends up to `n` empty packets to `ring`, in place of those that a device's receive ring has
/// used; returns how many.
///
/// Kernel: each driver's own loop over its empty slots (`speedo_refill_rx_buffers` of post 003),
///         one `dev_alloc_skb` for each; it ends at the first `NULL`, and the next interrupt
///         tries again.
/// Here:   one call for all of them.
/// Errors: none; fewer if the batch has no room or the pool no frame.
/// Cost:   as [`Local::alloc`].
pub fn dev_alloc_skb_refill(mem: &mut Local, ring: &mut Batch, n: usize) -> usize {
    mem.alloc(ring, n)
}

/// Frees a packet that the program is done with.
///
/// Kernel: gives `users` down; at the last one releases `dst`, calls the destructor, puts
///         conntrack, initialises the header for its next life (which the patch of post 004 ends),
///         frees the data at the last `dataref`, and puts the header on the CPU's hot list.
/// Here:   a plain drop: the packet is consumed, what it holds is released with the last handle,
///         and the frame goes to this thread's list. [`Batch::consume`] frees onto a hot list.
pub fn kfree_skb<S>(skb: Skb<S>) {
    drop(skb);
}

/// Extends the data by `len` bytes at its end, and returns them.
///
/// Kernel: a pointer to the first of them; `skb_over_panic` if the tailroom is too short, `BUG()`
///         on a packet with fragments.
/// Here:   the bytes as they were in the frame; `None`, and nothing done, in those cases, or if
///         the packet is shared and could not be copied.
pub fn skb_put(skb: &mut Skb, len: usize) -> Option<&mut [u8]> {
    skb.put(len)
}

/// Extends the data by `len` bytes at its start, and returns them.
///
/// Kernel: a pointer to the new start; `skb_under_panic` if the headroom is too short.
/// Here:   `None`, and nothing done, then, or if the packet is shared and could not be copied.
pub fn skb_push(skb: &mut Skb, len: usize) -> Option<&mut [u8]> {
    skb.push(len)
}

/// Removes `len` bytes from the start of the data, and returns the remaining bytes of the first
/// frame.
///
/// Kernel: a pointer to the new start; `NULL` if the packet is shorter, `BUG()` if only its first
///         part is.
/// Here:   `None`, and nothing done, if the first frame has fewer bytes, or if the packet is shared
///         and could not be copied. A clone's pull copies the bytes, see [`skb_clone`].
pub fn skb_pull(skb: &mut Skb, len: usize) -> Option<&mut [u8]> {
    skb.pull(len).then(|| skb.data_mut())
}

/// Moves the start of an empty packet `len` bytes up: more headroom, less tailroom.
///
/// Kernel: adds to `data` and `tail`, unchecked: on a packet that has data, or beyond the end, it
///         breaks the packet.
/// Here:   false, and nothing done, in those cases, or if the packet is shared and could not be
///         copied. Adds to the headroom of the pool; [`Skb::reserve`] says what the headroom is to
///         be.
pub fn skb_reserve(skb: &mut Skb, len: usize) -> bool {
    let headroom = skb.headroom().checked_add(len);
    headroom.is_some_and(|headroom| skb.reserve(headroom))
}

/// Cuts the packet to `len` bytes; a packet that is not longer stays as it is.
///
/// Kernel: the same; of a packet with fragments it cuts those, and `BUG()` if it is cloned, too.
/// Here:   false, and nothing done, for a longer packet with fragments, or one that is shared and
///         could not be copied.
pub fn skb_trim(skb: &mut Skb, len: usize) -> bool {
    skb.len() <= len || skb.trim(len)
}

/// Returns an additional handle on the same bytes.
///
/// Kernel: a header of its own, copied, on data that both must not write. Each may push, pull and
///         trim its own, and has its own `cb`; the clone has no socket and no destructor. `NULL`
///         without memory for the header.
/// Here:   a second handle on the same header *and* data, so it cannot fail; the type says that it
///         is only read. The first write of either, metadata included, copies the packet, and
///         from then on each has its own. What the packet holds is released with the last handle.
pub fn skb_clone(skb: &mut Skb) -> Skb<Shared> {
    skb.share()
}

/// Copies the bytes and the metadata into a new packet that may be written at once.
///
/// Kernel: one linear buffer, however many fragments there were.
/// Here:   the same frames again: as many fragments. What the packet holds stays with the original.
/// Errors: `None` if the pool has too few frames; counted as an allocation that found nothing.
/// Cost:   takes frames from the thread's list and the depot, not from a hot list.
pub fn skb_copy<S>(skb: &Skb<S>) -> Option<Skb> {
    // Copy the packet directly. A clone that is then written would count as a packet even if its
    // copy failed.
    let copy = chain::copy(skb.umem(), skb.raw())?;
    // SAFETY: `chain::copy` returns the only handle on the copy.
    Some(unsafe { Skb::from_raw(copy) })
}

/// Returns the number of bytes free before the data.
pub fn skb_headroom<S>(skb: &Skb<S>) -> usize {
    skb.headroom()
}

/// Returns the number of bytes free behind the data: 0 for a packet with fragments, as in the
/// kernel.
pub fn skb_tailroom<S>(skb: &Skb<S>) -> usize {
    if skb.is_linear() { skb.tailroom() } else { 0 }
}

/// Returns the number of bytes in the first frame, without those of the fragments.
pub fn skb_headlen<S>(skb: &Skb<S>) -> usize {
    skb.meta().len as usize
}

/// Returns the fields that all handles on the same bytes share.
///
/// Kernel: it lies behind the data, at `skb->end`, where everybody who shares the data finds it.
/// Here:   put together on request; there is nothing behind the data.
pub fn skb_shinfo<S>(skb: &Skb<S>) -> SharedInfo<'_> {
    let offload = skb.offload();
    SharedInfo {
        dataref: skb.meta().refs.load(Ordering::Relaxed) as usize,
        nr_frags: skb.fragments(),
        frags: skb.segments().skip(1),
        gso_size: offload.gso_size,
        gso_type: offload.gso_type,
    }
}

/// The result of [`skb_shinfo`].
#[derive(Debug)]
#[non_exhaustive]
pub struct SharedInfo<'a> {
    /// Number of handles on the bytes at the time of the call; other threads may change it at any
    /// time.
    pub dataref: usize,
    /// Number of frames behind the first one. The kernel's fragments are parts of pages, at most 6
    /// in 2.4; the fragments here resemble its list of whole packets, `frag_list`, most.
    pub nr_frags: usize,
    /// The bytes of each fragment; empty if a peer can write the memory.
    pub frags: Skip<Segments<'a>>,
    /// Payload bytes of each segment of a superframe, else 0. The posts are older than this field:
    /// the first of its kind was `tso_size` of 2.5.33.
    pub gso_size: u16,
    /// Kind of superframe, 0 for an ordinary packet.
    pub gso_type: u8,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Data, Init, Offload, Pool};

    /// Returns a pool of each kind that the posts compare: the functions give the same results on
    /// all of them.
    fn pools() -> Vec<Pool> {
        let kinds = [Data::Frames, Data::General].into_iter();
        let kinds = kinds.flat_map(|data| [Init::AtAlloc, Init::AtFree].map(|init| (data, init)));
        kinds
            .map(|(data, init)| Pool::builder().frames(64).data(data).init(init).build().unwrap())
            .collect()
    }

    fn settled(pool: &Pool) -> bool {
        let ledger = pool.ledger();
        ledger.in_flight == 0 && ledger.difference() == 0
    }

    #[test]
    fn alloc_skb_has_the_room_that_was_asked_for_and_headroom_besides() {
        for pool in pools() {
            let mut mem = pool.local();
            for size in [0, 1, 60, 1514, pool.data_room()] {
                let mut skb = alloc_skb(&mut mem, size).unwrap();
                assert!(skb_tailroom(&skb) >= size, "{size}");
                assert_eq!((skb.len(), skb_headroom(&skb)), (0, pool.headroom()));
                assert_eq!(skb_put(&mut skb, size).map(|bytes| bytes.len()), Some(size));
                kfree_skb(skb);
            }
            assert!(settled(&pool));
        }
    }

    #[test]
    fn request_above_every_size_class_is_refused_without_a_leak() {
        let frames = Pool::builder().frames(8).build().unwrap();
        assert!(alloc_skb(&mut frames.local(), frames.data_room() + 1).is_none());
        let jumbo = Pool::builder().frames(8).jumbo(2, 16_384).build().unwrap();
        let mut mem = jumbo.local();
        let two = [9000, jumbo.jumbo_room()].map(|size| alloc_skb(&mut mem, size).unwrap());
        assert!(two.iter().all(|skb| skb.is_linear()));
        assert!(alloc_skb(&mut mem, 9000).is_none(), "there were two");
        assert!(alloc_skb(&mut mem, jumbo.jumbo_room() + 1).is_none());
        assert!(alloc_skb(&mut mem, usize::MAX).is_none());
        assert_eq!(jumbo.ledger().in_flight, 2);
        two.into_iter().for_each(kfree_skb);
        assert!(settled(&frames) && settled(&jumbo));
        // The allocator has a block of any size.
        let general = Pool::builder().frames(8).data(Data::General).build().unwrap();
        assert!(alloc_skb(&mut general.local(), 60_000).is_some_and(|skb| skb.is_linear()));
    }

    #[test]
    fn alloc_skb_frame_fits_a_full_ethernet_frame_and_keeps_its_memory() {
        let pool = Pool::builder().frames(1).build().unwrap();
        let mut mem = pool.local();
        let mut skb = alloc_skb_frame(&mut mem).unwrap();
        assert_eq!((skb.headroom(), skb.headroom() + skb.tailroom()), (256, 2048));
        let at = skb_put(&mut skb, 1514).unwrap().as_ptr();
        assert_eq!(at.addr() % 64, 0, "on a line of its own");
        assert!(alloc_skb_frame(&mut mem).is_none());
        kfree_skb(skb);
        let mut again = alloc_skb_frame(&mut mem).unwrap();
        assert_eq!(again.len(), 0);
        assert_eq!(skb_put(&mut again, 1514).unwrap().as_ptr(), at);
    }

    #[test]
    fn dev_alloc_skb_leaves_sixteen_bytes_whatever_the_pools_headroom() {
        for headroom in [0, 2, 16, 256] {
            let pool = Pool::builder().frames(8).headroom(headroom).build().unwrap();
            let skb = dev_alloc_skb(&mut pool.local(), 1518).unwrap();
            assert_eq!(skb_headroom(&skb), headroom.max(16) as usize);
            assert!(skb_tailroom(&skb) >= 1518);
        }
    }

    #[test]
    fn device_gets_the_free_frames_and_later_the_returned_ones() {
        let pool = Pool::builder().frames(200).build().unwrap();
        let (mut mem, mut ring) = (pool.local(), Batch::with_capacity(256));
        assert_eq!(dev_alloc_skb_refill(&mut mem, &mut ring, 256), 200);
        assert_eq!(dev_alloc_skb_refill(&mut mem, &mut ring, 56), 0);
        ring.drain().take(30).for_each(kfree_skb);
        assert_eq!(dev_alloc_skb_refill(&mut mem, &mut ring, 86), 30);
        assert!(ring.iter().all(|skb| skb.is_empty() && skb_tailroom(skb) >= 1514));
    }

    #[test]
    fn calls_on_which_the_kernel_panics_change_nothing() {
        for pool in pools() {
            let mut skb = alloc_skb(&mut pool.local(), 100).unwrap();
            assert!(skb_put(&mut skb, 4096).is_none(), "skb_over_panic");
            assert!(skb_push(&mut skb, pool.headroom() + 1).is_none(), "skb_under_panic");
            assert!(skb_pull(&mut skb, 1).is_none());
            assert_eq!((skb.len(), skb_headroom(&skb)), (0, pool.headroom()));
            skb_put(&mut skb, 7).unwrap().copy_from_slice(b"payload");
            skb_push(&mut skb, 4).unwrap().copy_from_slice(b"head");
            assert_eq!(skb.data(), b"headpayload");
            assert_eq!(skb_pull(&mut skb, 4).unwrap(), b"payload");
            assert!(skb_pull(&mut skb, 8).is_none());
            assert!(skb_trim(&mut skb, 8) && skb_trim(&mut skb, 7), "no longer than it is");
            assert_eq!(skb.data(), b"payload");
            assert!(skb_trim(&mut skb, 3));
            assert_eq!(skb.data(), b"pay");
        }
    }

    #[test]
    fn headroom_is_added_to_an_empty_packet_only() {
        let pool = Pool::builder().frames(8).build().unwrap();
        let mut skb = alloc_skb(&mut pool.local(), 100).unwrap();
        let (head, tail) = (skb_headroom(&skb), skb_tailroom(&skb));
        assert!(skb_reserve(&mut skb, 16) && skb_reserve(&mut skb, 2));
        assert_eq!((skb_headroom(&skb), skb_tailroom(&skb)), (head + 18, tail - 18));
        assert!(!skb_reserve(&mut skb, tail - 17) && !skb_reserve(&mut skb, usize::MAX));
        assert!(skb_put(&mut skb, 1).is_some() && !skb_reserve(&mut skb, 1));
        assert_eq!(skb_headroom(&skb), head + 18);
    }

    #[test]
    fn a_clone_shares_bytes_and_metadata_until_either_is_written() {
        for pool in pools() {
            let mut skb = pool.local().alloc_copy(b"shared").unwrap();
            assert!(skb.set_priority(3));
            let clone = skb_clone(&mut skb);
            assert_eq!(clone.data().as_ptr(), skb.data().as_ptr());
            assert_eq!((skb_shinfo(&skb).dataref, skb_shinfo(&clone).dataref), (2, 2));
            assert_eq!(skb_pull(&mut skb, 2).unwrap(), b"ared");
            assert!(skb.set_priority(5));
            assert_eq!((clone.data(), clone.priority()), (&b"shared"[..], 3));
            assert_eq!((skb_shinfo(&skb).dataref, skb_shinfo(&clone).dataref), (1, 1));
            kfree_skb(skb);
            kfree_skb(clone);
            assert!(settled(&pool));
        }
    }

    #[test]
    fn a_copy_is_its_own_at_once_fields_included() {
        for pool in pools() {
            let mut mem = pool.local();
            let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
            let mut skb = mem.alloc_copy(&bytes).unwrap();
            assert!(skb.set_mark(7));
            let copy = skb_copy(&skb).unwrap();
            assert_eq!((skb_shinfo(&skb).dataref, skb_shinfo(&copy).dataref), (1, 1));
            assert_eq!(
                (copy.mark(), copy.len(), copy.fragments()),
                (Some(7), 5000, skb.fragments())
            );
            skb.data_mut()[0] = 99;
            assert!(copy.segments().flatten().eq(&bytes));
        }
    }

    #[test]
    fn copy_of_a_clone_has_one_owner() {
        for pool in pools() {
            let mut skb = pool.local().alloc_copy(b"shared").unwrap();
            let clone = skb_clone(&mut skb);
            let mut copy = skb_copy(&clone).unwrap();
            let at = copy.data().as_ptr();
            copy.data_mut()[0] = b'S';
            assert_eq!((copy.data(), copy.data().as_ptr()), (&b"Shared"[..], at));
            assert_eq!((skb.data(), clone.data()), (&b"shared"[..], &b"shared"[..]));
            assert_eq!((pool.ledger().created, pool.ledger().in_flight), (3, 3));
            drop((skb, clone, copy));
            assert!(settled(&pool));
        }
    }

    #[test]
    fn failed_copy_is_not_counted_as_a_packet() {
        let pool = Pool::builder().frames(3).build().unwrap();
        // Two frames, and one left for a copy of both.
        let mut skb = pool.local().alloc_copy(&[7; 2000]).unwrap();
        assert!(skb_copy(&skb).is_none());
        let ledger = pool.ledger();
        assert_eq!((ledger.created, ledger.consumed, ledger.starved), (1, 0, 1), "{ledger}");
        assert_eq!((ledger.in_flight, ledger.difference()), (1, 0), "{ledger}");
        assert_eq!((skb.data_mut().len(), skb.len()), (1792, 2000));
        drop(skb);
        assert!(settled(&pool));
        assert!(pool.local().alloc_copy(&[7; 3 * 1792]).is_some(), "all three are home");
    }

    #[test]
    fn shared_info_reports_fragments_as_the_kernel_does() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let mut mem = pool.local();
        let mut skb = mem.alloc_copy(b"first").unwrap();
        for fragment in [&b"second"[..], b"third!!"] {
            assert!(skb.append(mem.alloc_copy(fragment).unwrap()).is_ok());
        }
        assert_eq!((skb.len(), skb_headlen(&skb), skb_tailroom(&skb)), (18, 5, 0));
        let shinfo = skb_shinfo(&skb);
        assert_eq!((shinfo.dataref, shinfo.nr_frags, shinfo.gso_type), (1, 2, 0));
        assert!(shinfo.frags.eq([&b"second"[..], b"third!!"]));
        assert!(skb_pull(&mut skb, 6).is_none(), "the first frame has five");
        assert!(skb_put(&mut skb, 1).is_none() && !skb_trim(&mut skb, 10));
        assert!(skb_trim(&mut skb, 18) && skb_pull(&mut skb, 5).is_some());
        assert_eq!((skb.len(), skb_headlen(&skb)), (13, 0));
        assert!(skb.set_offload(Offload { gso_type: 1, gso_size: 1448, ..Offload::NONE }));
        let shinfo = skb_shinfo(&skb);
        assert_eq!((shinfo.gso_type, shinfo.gso_size), (1, 1448));
    }
}
