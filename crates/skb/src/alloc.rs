//! The allocation path of a [`Local`]: packets in one frame or several, from its hot list.

use linerate_sys::tsc::ticks;

use crate::batch::Batch;
use crate::chain::PACKET_MAX_BYTES;
use crate::handle::{self, FLAG};
use crate::lanes::lane;
use crate::local::{ALLOC, JUMBO_LISTED, Local};
use crate::page::Fate;
use crate::policy::Data;
use crate::segments::write_frame;
use crate::skb::Skb;

impl Local {
    /// Appends up to `want` empty packets to `out`; returns how many.
    ///
    /// Shape:  hot list (then thread cache, then depot) -> out[len..len+n]; the caller owns them.
    ///         Every field of each has its default, whatever the frame was before.
    /// Errors: none; fewer than `want` if `out` has no room or the pool no frame.
    /// Cost:   one cache line written a frame; the depot's lock once in half a hot list.
    pub fn alloc(&mut self, out: &mut Batch, want: usize) -> usize {
        let since = self.sample_begins(ALLOC);
        let want = want.min(out.spare());
        let mut n = 0;
        while n < want {
            if self.list.is_empty() && !self.refill(want - n) {
                self.page.starved.add(1);
                break;
            }
            let take = (want - n).min(self.list.len());
            let at = self.list.len() - take;
            let (umem, tag, page) = (self.umem(), self.tag, &*self.page);
            let frames = &self.list[at..];
            // SAFETY: the frames are on this local's free list and initialised; they are removed
            // from the list below.
            let begun = unsafe { out.fill(take, |slots| umem.begin(frames, slots, tag, page)) };
            if !begun {
                self.page.starved.add(1);
                break;
            }
            self.list.truncate(at);
            n += take;
        }
        self.page.alloc.add(n as u64);
        self.publish();
        if let Some(since) = since {
            self.alloc_sampled(since, n, out);
        }
        n
    }

    /// Allocates one empty packet; returns `None` if the pool has no frame, or if its data comes
    /// from the allocator, which has no memory.
    pub fn alloc_one(&mut self) -> Option<Skb> {
        let bytes = self.umem().frame_bytes();
        self.alloc_bytes(bytes)
    }

    /// Allocates one empty packet in one frame with room for `bytes`, of the smallest class that
    /// has that room.
    ///
    /// Errors: `None` if no class has it, the pool has no frame of the class, or the data comes
    ///         from the allocator, which has no memory.
    pub fn alloc_len(&mut self, bytes: usize) -> Option<Skb> {
        let umem = self.umem();
        let longest = PACKET_MAX_BYTES as usize;
        let wanted = u32::try_from(bytes).ok().filter(|_| bytes <= longest)? + umem.headroom();
        if umem.data_from() == Data::General || wanted <= umem.frame_bytes() {
            return self.alloc_bytes(wanted);
        }
        if wanted > umem.jumbo().1 {
            return None;
        }
        self.alloc_jumbo().or_else(|| {
            self.page.starved.add(1);
            None
        })
    }

    /// Allocates the first frame of a packet of more `bytes` than an ordinary frame has room for: a
    /// block or a jumbo frame with all the room, else an ordinary frame.
    ///
    /// Errors: `None` if there is none, or no packet can be that long; counted once.
    #[cold]
    fn alloc_head(&mut self, bytes: usize) -> Option<Skb> {
        let general = self.umem().data_from() == Data::General;
        let most = if general { PACKET_MAX_BYTES as usize } else { self.pool().packet_max_bytes() };
        if bytes > most {
            self.page.starved.add(1);
            return None;
        }
        if general {
            return self.alloc_len(bytes);
        }
        // An empty jumbo class is not counted, because a chain may have the room.
        let jumbo = if bytes <= self.pool().jumbo_room() { self.alloc_jumbo() } else { None };
        jumbo.or_else(|| self.alloc_one())
    }

    /// Allocates an ordinary frame; if the data comes from the allocator, the packet gets `bytes`
    /// of it.
    fn alloc_bytes(&mut self, bytes: u32) -> Option<Skb> {
        let since = self.sample_begins(ALLOC);
        if self.list.is_empty() && !self.refill(1) {
            self.page.starved.add(1);
            return None;
        }
        let frame = *self.list.last()?;
        // SAFETY: the frame is on this local's free list and initialised; it is removed from the
        // list below.
        let begun = unsafe { self.umem().begin_one(frame, bytes, &self.page) };
        if !begun {
            // The frame, and with it the packet's metadata, stays on the list, as the header does
            // at `nodata` of post 004.
            self.page.starved.add(1);
            self.publish();
            return None;
        }
        self.list.pop();
        self.page.alloc.add(1);
        self.publish();
        if let Some(since) = since {
            self.page.timed_alloc.add(ticks().wrapping_sub(since), 1);
        }
        // SAFETY: the frame was just taken off the free list and initialised.
        Some(unsafe { Skb::from_raw(handle::retag(frame, self.tag)) })
    }

    /// Allocates a jumbo frame; `None`, which is not counted, if there is none.
    ///
    /// Cost: no lock for a frame of the list, nor while the depot has none.
    #[cold]
    fn alloc_jumbo(&mut self) -> Option<Skb> {
        if self.jumbo.is_empty() {
            let mut frames = [0; JUMBO_LISTED / 2];
            let half = (self.jumbo_listed() / 2).clamp(1, frames.len());
            let got = self.umem().take_jumbo(&mut frames[..half]);
            if got == 0 {
                return None;
            }
            self.jumbo.extend_from_slice(&frames[..got]);
            self.page.refilled(got);
        }
        let frame = self.jumbo.pop()?;
        // SAFETY: the frame was just taken off a free list, and is initialised here before an skb
        // uses it.
        unsafe { self.umem().begin_one(frame, 0, &self.page) };
        self.page.alloc.add(1);
        self.publish();
        // SAFETY: as above. The handle is flagged, because a jumbo frame is not freed as an
        // ordinary frame is.
        Some(unsafe { Skb::from_raw(handle::retag(frame, self.tag) | FLAG) })
    }

    /// Allocates a packet with a copy of `bytes`: in one frame of the smallest class with enough
    /// room, else in a chain of ordinary frames.
    ///
    /// Errors: `None` if the pool has too few frames, no chain can be that long, or the data comes
    ///         from the allocator, which has no such block; counted as an allocation that found
    ///         nothing.
    /// Cost:   one copy; one cache line written a frame.
    pub fn alloc_copy(&mut self, bytes: &[u8]) -> Option<Skb> {
        let (umem, headroom) = (self.umem(), self.umem().headroom() as usize);
        let room = umem.frame_bytes() as usize - headroom;
        let long = bytes.len() > room;
        let mut head = if long { self.alloc_head(bytes.len())? } else { self.alloc_one()? };
        let (first, rest) = bytes.split_at(bytes.len().min(head.tailroom()));
        write_frame(umem, head.raw(), headroom, first);
        head.commit(first.len());
        for piece in rest.chunks(room) {
            let fragment = self.alloc_one().map(|mut skb| {
                write_frame(umem, skb.raw(), headroom, piece);
                skb.commit(piece.len());
                skb
            });
            match fragment.map(|skb| head.append(skb)) {
                Some(Ok(())) => {}
                rejected => {
                    // An allocation without a frame is counted already.
                    if let Some(Err(fragment)) = rejected {
                        self.free_raw(&[fragment.into_raw()], Fate::Unused);
                        self.page.starved.add(1);
                    }
                    self.free_raw(&[head.into_raw()], Fate::Unused);
                    return None;
                }
            }
        }
        Some(head)
    }

    /// Counts the time of an allocation, and stores the current time in one of its packets as the
    /// time of its allocation.
    #[cold]
    fn alloc_sampled(&mut self, since: u64, n: usize, out: &mut Batch) {
        let now = ticks();
        if n == 0 {
            return;
        }
        self.page.timed_alloc.add(now.wrapping_sub(since), n as u64);
        // Take the first frame: a device that received fewer packets returns the last frames.
        if let Some(handle) = out.flag(out.len() - n) {
            let umem = self.umem();
            // SAFETY: the packet was allocated above, and no other owner has its handle yet.
            unsafe {
                umem.meta(handle).as_mut().lanes |= lane::BORN;
                umem.cold(handle).as_mut().born = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DropReason, Pool};

    fn pool(frames: u32) -> Pool {
        Pool::builder().frames(frames).build().unwrap()
    }

    #[test]
    fn an_exhausted_pool_gives_what_there_is_and_recovers() {
        let pool = pool(64);
        let mut mem = pool.local();
        let mut batch = Batch::with_capacity(100);
        assert_eq!(mem.alloc(&mut batch, 100), 64);
        assert_eq!(mem.alloc(&mut batch, 1), 0);
        assert!(mem.alloc_one().is_none());
        assert_eq!(pool.ledger().starved, 3);
        batch.consume(&mut mem);
        assert_eq!(mem.alloc(&mut batch, 100), 64);
    }

    #[test]
    fn packets_that_are_allocated_one_by_one_are_timed_too() {
        let pool = pool(64);
        pool.set_sampling(4);
        // A Local notices within 1024 calls.
        let mut mem = pool.local();
        let mut copy = |n: u64| (0..n).for_each(|_| drop(mem.alloc_copy(&[7; 60])));
        copy(1024);
        let before = pool.stats().cores.iter().map(|core| core.alloc_time.calls).sum::<u64>();
        copy(400);
        let after = pool.stats().cores.iter().map(|core| core.alloc_time.calls).sum::<u64>();
        assert_eq!(after - before, 100);
    }

    #[test]
    fn a_long_packet_becomes_a_chain_and_comes_back_whole() {
        let pool = pool(64);
        let mut mem = pool.local();
        let bytes: Vec<u8> = (0..65_550u32).map(|i| (i * 7) as u8).collect();
        let skb = mem.alloc_copy(&bytes).unwrap();
        assert_eq!(skb.len(), bytes.len());
        assert_eq!(skb.fragments(), bytes.len().div_ceil(pool.data_room()) - 1);
        let joined: Vec<u8> = skb.segments().flatten().copied().collect();
        assert!(joined == bytes);
        let mut middle = vec![0; 5000];
        assert_eq!(skb.copy_to(3000, &mut middle), 5000);
        assert!(middle == bytes[3000..8000]);
        assert_eq!(skb.copy_to(bytes.len() - 3, &mut middle), 3);
        assert_eq!(pool.ledger().in_flight, 1);
        skb.discard(DropReason::TX_FULL);
        let ledger = pool.ledger();
        assert_eq!((ledger.in_flight, ledger.difference(), ledger.created), (0, 0, 1), "{ledger}");
    }

    #[test]
    fn a_packet_that_the_pool_cannot_carry_is_refused_without_a_leak() {
        let pool = pool(8);
        let mut mem = pool.local();
        assert!(mem.alloc_copy(&[0; 65_536]).is_none());
        let ledger = pool.ledger();
        assert_eq!((ledger.in_flight, ledger.created, ledger.difference()), (0, 0, 0), "{ledger}");
        assert_eq!((ledger.starved, mem.page.alloc.value()), (1, 0), "no frame was tried");
        assert!(mem.alloc_copy(&[0; 8000]).is_some());
        assert!(mem.alloc_copy(&vec![0; pool.packet_max_bytes() + 1]).is_none());
        assert!(mem.alloc_copy(&vec![0; pool.packet_max_bytes()]).is_some());
    }

    #[test]
    fn a_copy_for_which_the_allocator_gives_no_packet_is_counted_once() {
        let pool = Pool::builder().frames(2).data(Data::General).build().unwrap();
        let mut mem = pool.local();
        let taken = [(); 2].map(|()| mem.alloc_copy(&[1; 5000]).unwrap());
        assert!(mem.alloc_copy(&[2; 5000]).is_none());
        assert_eq!(pool.ledger().starved, 1);
        drop(taken);
        assert!(mem.alloc_copy(&[2; 5000]).is_some_and(|skb| skb.is_linear()));
    }
}
