//! Lending of frames to a device's rings; the device returns them as received packets, sent packets
//! or unused frames.
//!
//! ```text
//!   hot list ──lend──► fill ring ──► device ──receive──► packets            lent: neither free nor
//!      ▲                                 │                                  a packet
//!      └───────────── reclaim ───────────┘   what it never filled
//!
//!   packets ──Batch::took──► transmit ring ──► device ──Batch::adopt──► freed as sent
//! ```
//!
//! A frame is known to a device by the offset of its bytes in the pool's memory. A packet in a
//! transmit ring stays a packet, in flight, until the device is done with it: its handle is kept by
//! the driver, and the frame cannot be allocated meanwhile.

use std::marker::PhantomData;

use crate::batch::Batch;
use crate::handle;
use crate::local::Local;
use crate::policy::Data;
use crate::skb::Skb;
use crate::umem::Umem;

/// Most frames that one step of the loop handles.
const STRIDE: usize = 64;

/// Part of a packet, in one frame, that a device wrote or that a device is to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Offset of the span's first byte from the start of the pool's memory.
    pub offset: u64,
    /// Length of the span in bytes.
    pub len: u32,
}

impl Local {
    /// Lends up to `frames.len()` free frames to a device and returns how many. Each is written to
    /// `frames` as the offset of its first byte.
    ///
    /// Shape:  hot list (then depot) -> frames[0..n]; lent until they come back by
    ///         [`Local::receive`] or [`Local::reclaim`], and lost to the pool if they never do.
    /// Errors: none; fewer if the pool has no more, or takes its data from the allocator.
    /// Cost:   as [`Local::alloc`], without the cache line.
    pub fn lend(&mut self, frames: &mut [u64]) -> usize {
        if self.umem().data_from() == Data::General {
            return 0;
        }
        let shift = self.umem().frame_bytes().trailing_zeros();
        let mut n = 0;
        while n < frames.len() {
            if self.list.is_empty() && !self.refill(frames.len() - n) {
                self.page.starved.add(1);
                break;
            }
            let take = (frames.len() - n).min(self.list.len());
            let at = self.list.len() - take;
            for (frame, handle) in frames[n..].iter_mut().zip(&self.list[at..]) {
                *frame = u64::from(handle::frame(*handle)) << shift;
            }
            self.list.truncate(at);
            n += take;
        }
        // Set the level first, so that a reader does not find a frame in two places.
        self.publish();
        self.page.lent.add(n as u64);
        n
    }

    /// Makes a packet of each span in a lent frame; a span that does not lie within the data of one
    /// frame of this pool is skipped, and its frame stays lent. Returns the number of packets.
    ///
    /// Shape:  spans -> out[len..len+n]; the caller owns them.
    /// Errors: none; see above.
    /// Cost:   one cache line written a packet.
    ///
    /// # Safety
    /// Each frame in which a span begins was lent by a `Local` of this pool, has not come back
    /// since, and no device writes it any more. `out` has room for all.
    pub unsafe fn receive(&mut self, spans: &[Span], out: &mut Batch) -> usize {
        let (umem, tag, before) = (self.umem(), self.tag, out.len());
        let (shift, ordinary) = (umem.frame_bytes().trailing_zeros(), u64::from(umem.frames()));
        for spans in spans.chunks(STRIDE) {
            let (mut frames, mut places, mut n) = ([0; STRIDE], [(0, 0); STRIDE], 0);
            for span in spans {
                let (frame, off) = (span.offset >> shift, span.offset as u32 & ((1 << shift) - 1));
                if frame < ordinary && span.len <= (1 << shift) - off {
                    (frames[n], places[n]) = (frame as u32, (off, span.len));
                    n += 1;
                }
            }
            let (frames, page) = (&frames[..n], &*self.page);
            // SAFETY: the caller owns the frames: they are on no list and in no packet.
            let begun = unsafe { out.fill(n, |slots| umem.begin(frames, slots, tag, page)) };
            if !begun {
                // `begin` fails only if the allocator has no memory, and frames with such data are
                // never lent.
                break;
            }
            for (frame, (off, len)) in frames.iter().zip(places) {
                // SAFETY: as above; the line was written by `begin`.
                let meta = unsafe { umem.meta(*frame).as_mut() };
                (meta.off, meta.len) = (off, len);
            }
            self.page.alloc.add(n as u64);
            self.page.lent.subtract(n as u64);
        }
        out.len() - before
    }

    /// Takes back frames that a device did not fill. An offset at which the pool has no ordinary
    /// frame is ignored.
    ///
    /// Cost: the depot's lock once for each 64 frames.
    ///
    /// # Safety
    /// Each was lent by a `Local` of this pool, has not come back since, and no device writes it
    /// any more.
    pub unsafe fn reclaim(&mut self, frames: &[u64]) {
        let umem = self.umem();
        let shift = umem.frame_bytes().trailing_zeros();
        for frames in frames.chunks(STRIDE) {
            let mut handles = [0; STRIDE];
            let known = |frame: &&u64| **frame >> shift < u64::from(umem.frames());
            let mut n = 0;
            for frame in frames.iter().filter(known) {
                handles[n] = handle::retag((frame >> shift) as u32, self.tag);
                n += 1;
            }
            if n > 0 {
                // Reduce the count first, so that a reader does not find a frame in two places.
                self.page.lent.subtract(n as u64);
                self.page.spilled(n);
                umem.put_home(&handles[..n]);
            }
        }
    }
}

impl<S> Skb<S> {
    /// Returns the location of the packet's bytes in its pool's memory, for a device to read: one
    /// span for each frame. Returns none for a packet whose data is the allocator's.
    #[must_use]
    pub fn spans(&self) -> Spans<'_> {
        let lent = self.umem().data_from() == Data::Frames;
        let frames = if lent { 1 + self.fragments() } else { 0 };
        Spans { next: self.raw(), left: frames, packet: PhantomData }
    }
}

/// The frames of a packet, each as the span of its bytes.
#[derive(Debug)]
pub struct Spans<'a> {
    next: u32,
    left: usize,
    packet: PhantomData<&'a [u8]>,
}

impl Iterator for Spans<'_> {
    type Item = Span;

    #[inline]
    fn next(&mut self) -> Option<Span> {
        if self.left == 0 || self.next == 0 {
            return None;
        }
        let umem = Umem::of(self.next);
        let start = u64::from(handle::frame(self.next)) << umem.frame_bytes().trailing_zeros();
        // SAFETY: `spans` borrowed the packet for as long as this value lives. The packet owns the
        // chain, so the line is initialised and no thread writes it meanwhile.
        let meta = unsafe { umem.meta(self.next).as_ref() };
        self.next = meta.next;
        self.left -= 1;
        Some(Span { offset: start + u64::from(meta.off), len: meta.len })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Init, PacketType, Pool, Return};
    use proptest::prelude::*;

    fn pool(frames: u32) -> Pool {
        Pool::builder().frames(frames).build().unwrap()
    }

    #[test]
    fn frames_that_are_lent_are_neither_free_nor_packets() {
        let pool = pool(8);
        let mut mem = pool.local_with(4);
        let mut frames = [0; 6];
        assert_eq!(mem.lend(&mut frames), 6);
        let ledger = pool.ledger();
        assert!(ledger.is_drained(), "{ledger}");
        assert!(ledger.holders().contains(&("device rings", 6)), "{ledger}");
        let mut out = Batch::with_capacity(8);
        assert_eq!(mem.alloc(&mut out, 8), 2, "the others are lent");
        let spans: Vec<Span> =
            frames[..3].iter().map(|at| Span { offset: at + 256, len: 60 }).collect();
        // SAFETY: lent above, and these are not taken back again.
        assert_eq!(unsafe { mem.receive(&spans, &mut out) }, 3);
        assert_eq!(pool.ledger().in_flight, 5);
        assert!(out.iter().skip(2).all(|skb| skb.len() == 60 && skb.headroom() == 256));
        // SAFETY: lent above, and not received.
        unsafe { mem.reclaim(&frames[3..]) };
        out.clear();
        drop((out, mem));
        let ledger = pool.ledger();
        assert!(ledger.is_drained(), "{ledger}");
        assert_eq!(free(&pool), 8);
    }

    #[test]
    fn received_packet_has_no_field_of_its_frame_s_last_packet() {
        for init in [Init::AtAlloc, Init::AtFree] {
            let pool = Pool::builder().frames(8).init(init).build().unwrap();
            let (mut mem, mut out) = (pool.local_with(8), Batch::with_capacity(8));
            assert_eq!(mem.alloc(&mut out, 8), 8);
            for skb in out.iter_mut() {
                assert!(skb.set_priority(7) && skb.set_packet_type(PacketType::OtherHost));
                assert!(skb.set_mark(3) && skb.set_stamp_ns(4) && skb.set_hash(5));
                skb.cb_mut().unwrap().fill(9);
            }
            out.consume(&mut mem);
            let mut frames = [0; 8];
            assert_eq!(mem.lend(&mut frames), 8);
            let spans = frames.map(|at| Span { offset: at + 256, len: 60 });
            // SAFETY: lent above, once.
            assert_eq!(unsafe { mem.receive(&spans, &mut out) }, 8);
            for skb in out.iter() {
                let hot = (skb.priority(), skb.packet_type(), *skb.cb(), skb.fragments());
                assert_eq!(hot, (0, PacketType::Host, [0; 24], 0), "{init:?}");
                let kept = (skb.mark(), skb.stamp_ns(), skb.hash());
                assert_eq!(kept, (None, None, None), "{init:?}");
            }
        }
    }

    #[test]
    fn frames_that_are_reclaimed_are_a_visit_to_the_depot_and_unknown_ones_are_none() {
        let pool = pool(8);
        let (mut mem, mut frames) = (pool.local_with(0), [0; 3]);
        assert_eq!(mem.lend(&mut frames), 3);
        let looked = |pool: &Pool| {
            let stats = pool.stats();
            (stats.locks.taken, stats.cores[0].visits.1, stats.cores[0].discards)
        };
        let (locks, ..) = looked(&pool);
        // SAFETY: no frame begins there.
        unsafe { mem.reclaim(&[8 * 2048, u64::MAX]) };
        assert_eq!(looked(&pool), (locks, 0, 0));
        // SAFETY: lent above, and given to no device.
        unsafe { mem.reclaim(&frames) };
        assert_eq!(looked(&pool), (locks + 1, 1, 3));
        assert!(pool.ledger().holders().contains(&("device rings", 0)));
    }

    #[test]
    fn reclaimed_frames_return_to_the_core_that_reclaimed_them() {
        let pool = Pool::builder().frames(8).return_to(Return::Home).build().unwrap();
        let (mut mem, mut frames) = (pool.local_with(0), [0; 8]);
        assert_eq!(mem.lend(&mut frames), 8);
        // SAFETY: lent above, and given to no device.
        unsafe { mem.reclaim(&frames) };
        let locks = pool.stats().locks.taken;
        assert_eq!(mem.lend(&mut frames[..6]), 6);
        assert_eq!(pool.stats().locks.taken, locks + 1, "only its own depot was asked");
        // SAFETY: as above.
        unsafe { mem.reclaim(&frames[..6]) };
    }

    /// Returns the number of free frames that a new local can get: lends them all and reclaims
    /// them.
    fn free(pool: &Pool) -> usize {
        let (mut mem, mut frames) = (pool.local(), [0; 256]);
        let n = mem.lend(&mut frames);
        // SAFETY: just lent.
        unsafe { mem.reclaim(&frames[..n]) };
        n
    }

    #[test]
    fn packets_of_the_allocator_have_no_spans_to_lend() {
        let pool = Pool::builder().frames(8).data(Data::General).build().unwrap();
        let mut mem = pool.local();
        assert_eq!(mem.lend(&mut [0; 4]), 0);
        let skb = mem.alloc_copy(&[1; 60]).unwrap();
        assert_eq!(skb.spans().count(), 0);
    }

    #[test]
    fn the_spans_of_a_packet_are_its_bytes_in_order() {
        let pool = pool(16);
        let mut mem = pool.local();
        let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        let skb = mem.alloc_copy(&bytes).unwrap();
        // SAFETY: no thread writes the memory meanwhile; the packet is read only.
        let region = unsafe { pool.region() }.unwrap();
        let read = |span: Span| {
            // SAFETY: the span lies in the region, as the assertion below checks, and the packet
            // that owns it is not written.
            let at = unsafe { region.base().as_ptr().add(span.offset as usize) };
            assert!(span.offset as usize + span.len as usize <= region.len());
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(at.cast_const(), span.len as usize) }.to_vec()
        };
        let all: Vec<u8> = skb.spans().flat_map(read).collect();
        assert_eq!(all, bytes);
    }

    /// One operation on a pool with a device.
    #[derive(Debug, Clone)]
    enum Step {
        Lend(usize),
        Receive(usize),
        Reclaim(usize),
        Free(usize),
        Alloc(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let n = 1..100usize;
        prop_oneof![
            n.clone().prop_map(Step::Lend),
            n.clone().prop_map(Step::Receive),
            n.clone().prop_map(Step::Reclaim),
            n.clone().prop_map(Step::Free),
            n.prop_map(Step::Alloc),
        ]
    }

    proptest! {
        /// Checks that every frame is in one place after any sequence of steps.
        #[test]
        fn no_frame_is_ever_in_two_places(
            steps in prop::collection::vec(step(), 1..60),
            home in any::<bool>(),
            hot_list in 0usize..80,
        ) {
            let return_to = if home { Return::Home } else { Return::Local };
            let pool = Pool::builder().frames(128).return_to(return_to).build().unwrap();
            let mut mem = pool.local_with(hot_list);
            let mut lent: Vec<u64> = Vec::new();
            let mut packets = Batch::with_capacity(256);
            for step in steps {
                match step {
                    Step::Lend(n) => {
                        let mut frames = vec![0; n];
                        let got = mem.lend(&mut frames);
                        lent.extend(&frames[..got]);
                    }
                    Step::Receive(n) => {
                        let at = lent.len().saturating_sub(n);
                        let spans: Vec<Span> =
                            lent.drain(at..).map(|at| Span { offset: at + 256, len: 64 }).collect();
                        // SAFETY: out of `lent`, where each was once.
                        let got = unsafe { mem.receive(&spans, &mut packets) };
                        prop_assert_eq!(got, spans.len());
                    }
                    Step::Reclaim(n) => {
                        let at = lent.len().saturating_sub(n);
                        let frames: Vec<u64> = lent.drain(at..).collect();
                        // SAFETY: as above.
                        unsafe { mem.reclaim(&frames) };
                    }
                    Step::Free(n) => {
                        packets.sent(n.min(packets.len()), &mut mem);
                    }
                    Step::Alloc(n) => { mem.alloc(&mut packets, n); }
                }
                let mut all: Vec<u64> = lent.clone();
                all.extend(packets.iter().flat_map(Skb::spans).map(|span| span.offset & !2047));
                let count = all.len();
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), count, "a frame is in two places");
                let ledger = pool.ledger();
                prop_assert_eq!((ledger.difference(), ledger.in_flight), (0, packets.len() as u64));
            }
            // SAFETY: as above.
            unsafe { mem.reclaim(&lent) };
            drop((packets, mem));
            prop_assert_eq!(free(&pool), 128);
        }
    }
}
