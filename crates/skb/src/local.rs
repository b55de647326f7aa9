//! A queue's, worker's or task's own list of free frames: the hot list.
//!
//! `Send`, so that it moves with its task; not `Sync` and `&mut` throughout, so that nothing on its
//! path needs a lock. It trades with the depot half a list at a time, the cold half first.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::batch::Batch;
use crate::chain;
use crate::ledger::{Fate, LOCAL, Page};
use crate::pool::Pool;
use crate::segments::write_frame;
use crate::skb::Skb;
use crate::thread;
use crate::umem::{FLAG, ID_SHIFT, Umem};

/// Frames moved at once when the list is off.
const UNLISTED: usize = 64;

/// Access to a pool for one owner.
///
/// Dropping it sends its frames home; skbs allocated from it live on.
#[derive(Debug)]
pub struct Local {
    pool: Pool,
    /// Free frames; the top is the one freed last.
    list: Vec<u32>,
    hot_list_len: usize,
    page: Arc<Page>,
    /// One owner at a time: `Send`, not `Sync`.
    owner: PhantomData<Cell<()>>,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Page").field("level", &self.level.value()).finish_non_exhaustive()
    }
}

impl Local {
    pub(crate) fn new(pool: Pool, hot_list_len: usize) -> Local {
        let page = pool.umem().books.open(LOCAL);
        let (list, owner) = (Vec::new(), PhantomData);
        let mut local = Local { pool, list, hot_list_len: 0, page, owner };
        local.set_hot_list_len(hot_list_len);
        local
    }

    fn umem(&self) -> &'static Umem {
        self.pool.umem()
    }

    /// The pool it serves.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Most frames it keeps for itself.
    #[must_use]
    pub fn hot_list_len(&self) -> usize {
        self.hot_list_len
    }

    /// Changes the length of the hot list; 0 turns it off. What no longer fits goes home.
    pub fn set_hot_list_len(&mut self, frames: usize) {
        let frames = frames.min(self.umem().frames() as usize);
        self.hot_list_len = frames;
        if self.list.len() > frames {
            let home = self.list.split_off(frames);
            self.publish();
            self.umem().put_home(&home);
        }
        // Staging for a list that is off, and never an allocation later.
        self.list.reserve_exact(frames.max(UNLISTED) - self.list.len());
        self.publish();
    }

    fn publish(&self) {
        self.page.level.set(self.list.len() as u64);
    }

    /// Appends up to `want` empty packets to `out`; returns how many.
    ///
    /// Shape:  hot list (then thread cache, then depot) -> out[len..len+n]; the caller owns them.
    ///         Every field of each has its default, whatever the frame was before.
    /// Errors: none; fewer than `want` if `out` has no room or the pool no frame.
    /// Cost:   one cache line written a frame; the depot's lock once in half a hot list.
    pub fn alloc(&mut self, out: &mut Batch, want: usize) -> usize {
        let want = want.min(out.spare());
        let mut n = 0;
        while n < want {
            if self.list.is_empty() && !self.refill(want - n) {
                self.page.starved.add(1);
                break;
            }
            let take = (want - n).min(self.list.len());
            let at = self.list.len() - take;
            let umem = self.umem();
            // SAFETY: the frames are on this free list, leave it below, and are then initialised.
            unsafe {
                self.list[at..].iter().for_each(|&handle| umem.init(handle));
                out.extend_raw(&self.list[at..]);
            }
            self.list.truncate(at);
            n += take;
        }
        self.page.alloc.add(n as u64);
        self.publish();
        n
    }

    /// One empty packet, or `None` if the pool has no frame.
    pub fn alloc_one(&mut self) -> Option<Skb> {
        if self.list.is_empty() && !self.refill(1) {
            self.page.starved.add(1);
            return None;
        }
        let handle = self.list.pop()?;
        self.page.alloc.add(1);
        self.publish();
        // SAFETY: just taken off the free list, and initialised before it is an skb.
        unsafe {
            self.umem().init(handle);
            Some(Skb::from_raw(handle))
        }
    }

    /// A packet that holds a copy of `bytes`, in as many frames as it takes.
    ///
    /// Errors: `None` if the pool has too few frames, or no chain can be that long; counted as an
    ///         allocation that found nothing.
    /// Cost:   one copy; one cache line written a frame.
    pub fn alloc_copy(&mut self, bytes: &[u8]) -> Option<Skb> {
        let (umem, headroom) = (self.umem(), self.umem().headroom() as usize);
        let room = umem.frame_bytes() as usize - headroom;
        let mut head = self.alloc_one()?;
        let (first, rest) = bytes.split_at(bytes.len().min(room));
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
                    if let Some(Err(fragment)) = rejected {
                        self.free_raw(&[fragment.into_raw()], Fate::Unused);
                    }
                    self.page.starved.add(1);
                    self.free_raw(&[head.into_raw()], Fate::Unused);
                    return None;
                }
            }
        }
        Some(head)
    }

    /// Gets frames onto an empty list; false if there are none.
    fn refill(&mut self, want: usize) -> bool {
        let most = self.hot_list_len.max(UNLISTED);
        let n = if self.hot_list_len == 0 {
            want.min(most)
        } else {
            want.max(self.hot_list_len.div_ceil(2)).min(most)
        };
        // Within the capacity that `set_hot_list_len` reserved: no allocation.
        self.list.resize(n, 0);
        let mut got = thread::take(self.umem(), &mut self.list);
        if got < n {
            got += self.umem().depot.take(&mut self.list[got..]);
        }
        self.list.truncate(got);
        got > 0
    }

    /// Frees packets, counted as `fate`.
    pub(crate) fn free_raw(&mut self, handles: &[u32], fate: Fate) {
        let Some(&first) = handles.first() else { return };
        let umem = self.umem();
        // Equal top bits in all handles: one umem, ours, none flagged.
        let (or, and) = handles.iter().fold((0, u32::MAX), |(or, and), h| (or | h, and & h));
        let plain = or & FLAG == 0 && or >> ID_SHIFT == and >> ID_SHIFT;
        if !plain || first >> ID_SHIFT != umem.id() {
            return self.free_mixed(handles, fate);
        }
        if let Fate::Dropped(reason) = fate {
            umem.books.name(reason);
        }
        self.page.count(fate, handles.len() as u64);
        self.keep(handles);
    }

    /// Frees packets of which some are shared, chained or of another pool.
    #[cold]
    fn free_mixed(&mut self, handles: &[u32], fate: Fate) {
        let umem = self.umem();
        if let Fate::Dropped(reason) = fate {
            umem.books.name(reason);
        }
        for &h in handles {
            if (h & !FLAG) >> ID_SHIFT != umem.id() {
                thread::free_slow(&[h], fate);
                continue;
            }
            self.page.count(fate, 1);
            if h & FLAG == 0 {
                self.keep(&[h]);
            } else {
                chain::unlink(umem, h, |frames| self.keep(frames));
            }
        }
    }

    /// Puts plain free frames of this pool on the list, the cold half home first if need be.
    fn keep(&mut self, frames: &[u32]) {
        if self.list.len() + frames.len() > self.hot_list_len {
            let n = self.list.len().min(self.hot_list_len.div_ceil(2));
            if n > 0 {
                // First, so that no frame is found in two places.
                self.page.level.set((self.list.len() - n) as u64);
                self.umem().put_home(&self.list[..n]);
                self.list.drain(..n);
            }
            if self.list.len() + frames.len() > self.hot_list_len {
                self.umem().put_home(frames);
                return self.publish();
            }
        }
        self.list.extend_from_slice(frames);
        self.publish();
    }

    /// Notes that `n` of the packets it allocated came in by a device.
    pub fn count_received(&mut self, n: usize) {
        self.page.received.add(n as u64);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let umem = self.umem();
        // In this order: the page is closed while the pool that this Local holds keeps the umem.
        let frames = std::mem::take(&mut self.list);
        self.page.level.set(0);
        umem.books.close(&self.page);
        if !frames.is_empty() {
            umem.put_home(&frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DropReason, PacketType};

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
    fn a_frame_keeps_nothing_of_its_former_life() {
        let pool = pool(1);
        let mut mem = pool.local_with(1);
        let mut skb = mem.alloc_one().unwrap();
        assert!(skb.put_slice(b"old") && skb.push(4).is_some());
        skb.set_stamp_ns(7);
        skb.set_packet_type(PacketType::OtherHost);
        skb.set_offload(crate::Offload { flags: 1, ..Default::default() });
        drop(skb);
        let skb = mem.alloc_one().unwrap();
        assert_eq!((skb.len(), skb.headroom(), skb.fragments()), (0, pool.headroom(), 0));
        assert_eq!(skb.stamp_ns(), None);
        assert_eq!(skb.packet_type(), PacketType::Host);
        assert_eq!(skb.offload(), crate::Offload::NONE);
    }

    #[test]
    fn the_hot_list_is_1024_frames_long_unless_told_otherwise() {
        assert_eq!(pool(4096).local().hot_list_len(), 1024);
        // A small pool would be one hot list and nothing else.
        assert_eq!(pool(1024).local().hot_list_len(), 256);
        assert_eq!(pool(4096).local_with(128).hot_list_len(), 128);
    }

    #[test]
    fn the_hot_list_can_be_turned_off_and_on_while_frames_are_out() {
        let pool = pool(256);
        let mut mem = pool.local_with(128);
        let mut batch = Batch::with_capacity(64);
        for len in [128, 0, 1, 7, 1000, 0, 64] {
            mem.set_hot_list_len(len);
            assert_eq!(mem.alloc(&mut batch, 64), 64, "hot list {len}");
            batch.consume(&mut mem);
            let ledger = pool.ledger();
            assert_eq!((ledger.difference(), ledger.in_flight), (0, 0), "{ledger}");
        }
    }

    #[test]
    fn frames_of_another_pool_go_home_to_it() {
        let (a, b) = (pool(64), pool(64));
        let (mut mem_a, mut mem_b) = (a.local(), b.local());
        let mut batch = Batch::with_capacity(64);
        mem_a.alloc(&mut batch, 5);
        mem_b.alloc(&mut batch, 5);
        batch.sent(10, &mut mem_b);
        for pool in [&a, &b] {
            let ledger = pool.ledger();
            assert_eq!((ledger.sent, ledger.in_flight, ledger.difference()), (5, 0, 0));
        }
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
        assert!(mem.alloc_copy(&[0; 8000]).is_some());
    }

    #[test]
    fn a_local_is_send_and_packets_outlive_their_pool() {
        fn send<T: Send>() {}
        send::<Local>();
        let skb = {
            let pool = pool(4);
            let mut mem = pool.local();
            mem.alloc_copy(b"still here").unwrap()
        };
        assert_eq!(skb.data(), b"still here");
    }
}
