//! The free path of a [`Local`]: frames go onto its hot list in bulk, and their metadata is read
//! only if necessary.

use linerate_sys::tsc::ticks;

use crate::bulk::FLAGS_MAX;
use crate::chain;
use crate::handle::{self, Common, FLAG};
use crate::local::{AWAY, FREE, Local};
use crate::page::Fate;
use crate::policy::Return;
use crate::thread;

impl Local {
    /// Frees packets, counted as `fate`.
    pub(crate) fn free_raw(&mut self, handles: &[u32], fate: Fate) {
        if handles.is_empty() {
            return;
        }
        let since = self.sample_begins(FREE);
        let umem = self.umem();
        let common = umem.common(handles);
        if common.flagged() || common.umem() != Some(umem.id() as usize) {
            self.free_mixed(handles, fate, common);
        } else {
            if let Fate::Dropped(reason) = fate {
                umem.books.name(reason);
            }
            self.page.freed(fate, handles, common);
            self.keep(handles);
        }
        if let Some(since) = since {
            self.page.timed_free.add(ticks().wrapping_sub(since), handles.len() as u64);
        }
    }

    /// Frees packets of which some are flagged or belong to another pool.
    #[cold]
    fn free_mixed(&mut self, handles: &[u32], fate: Fate, common: Common) {
        let id = self.umem().id() as usize;
        if let Fate::Dropped(reason) = fate {
            self.umem().books.name(reason);
        }
        if common.umem() == Some(id) {
            self.page.freed(fate, handles, common);
            return self.keep_mixed(handles, fate.lived());
        }
        for run in handles.chunk_by(|a, b| handle::same_umem(*a, *b)) {
            if handle::umem(run[0]) == id {
                self.page.freed(fate, run, Common::of(run));
                self.keep_mixed(run, fate.lived());
            } else {
                thread::free_slow(run, fate);
            }
        }
    }

    /// Puts the frames of this pool's packets on the list; the packets have been counted already.
    ///
    /// Without a branch a handle: which ones are flagged is random, and a wrong guess costs more
    /// than freeing a packet. All go on the list in one copy, and the flagged ones are then taken
    /// out of it: a small store followed by a large load of the same bytes would stall.
    fn keep_mixed(&mut self, handles: &[u32], lived: bool) {
        for chunk in handles.chunks(FLAGS_MAX) {
            let flagged = self.umem().flagged(chunk);
            let mixed = flagged.count_ones() < chunk.len() as u32 && self.umem().frees_plainly();
            let fits = self.list.len() + chunk.len() <= self.hot_list_len;
            if !mixed || !fits && !self.make_room(chunk.len()) {
                self.keep_each(chunk, lived);
                continue;
            }
            let start = self.list.len();
            self.list.extend_from_slice(chunk);
            let mut on_list = flagged;
            while on_list != 0 {
                // Go from the last to the first, because `swap_remove` fills a removed place with
                // the last element, which is then a free frame.
                let at = on_list.ilog2() as usize;
                on_list ^= 1 << at;
                self.list.swap_remove(start + at);
            }
            self.publish();
            // Release the flagged handles only now. If a chain overfills the list, the cold half is
            // returned, and that half must hold free frames only.
            let mut left = flagged;
            while left != 0 {
                let at = left.ilog2() as usize;
                left ^= 1 << at;
                self.put_down(chunk[at], lived);
            }
        }
        self.publish();
    }

    /// Puts the frames on the list one by one.
    fn keep_each(&mut self, handles: &[u32], lived: bool) {
        for &handle in handles {
            match handle & FLAG {
                0 => self.keep(&[handle]),
                _ => self.put_down(handle, lived),
            }
        }
    }

    /// Releases a flagged handle, and puts the frames that this frees on the list.
    fn put_down(&mut self, handle: u32, lived: bool) {
        let umem = self.umem();
        for frame in chain::put_down(umem, handle, &self.page, lived).into_iter().flatten() {
            if umem.is_jumbo(frame) {
                self.keep_jumbo(frame);
            } else if umem.frees_plainly() && self.list.len() < self.hot_list_len {
                self.list.push(frame);
            } else {
                self.keep(&[frame]);
            }
        }
    }

    /// Puts plain free frames of this pool on the list; if the list is full, moves its cold half to
    /// the depot first.
    #[inline]
    fn keep(&mut self, frames: &[u32]) {
        if self.umem().frees_plainly() { self.keep_here(frames) } else { self.keep_apart(frames) }
    }

    /// Frees frames one by one, where the pool has a policy for each frame or returns a frame to
    /// its core.
    #[cold]
    fn keep_apart(&mut self, frames: &[u32]) {
        let umem = self.umem();
        if umem.retires() {
            // SAFETY: the caller released the last handles on these frames.
            unsafe { umem.retire(frames, &self.page) };
        }
        match umem.return_to() {
            Return::Home => self.keep_own(frames),
            Return::Local => self.keep_here(frames),
        }
    }

    /// Puts free frames on the list, whichever core allocated them.
    fn keep_here(&mut self, frames: &[u32]) {
        if self.list.len() + frames.len() > self.hot_list_len && !self.make_room(frames.len()) {
            self.page.spilled(frames.len());
            self.umem().put_home(frames);
            return self.publish();
        }
        self.list.extend_from_slice(frames);
        self.publish();
    }

    /// Moves the cold half of the list to the depot, or more if `frames` more frames need the room;
    /// returns false, and moves none, if `frames` is more than the list's length limit.
    #[cold]
    fn make_room(&mut self, frames: usize) -> bool {
        if frames > self.hot_list_len {
            return false;
        }
        let over = (self.list.len() + frames).saturating_sub(self.hot_list_len);
        self.send_cold(over.max(self.hot_list_len.div_ceil(2)));
        true
    }

    /// Moves up to `n` frames from the cold end of the list to the depot.
    pub(crate) fn send_cold(&mut self, n: usize) {
        let n = n.min(self.list.len());
        if n == 0 {
            return;
        }
        // Set the level first, so that a reader does not find a frame in two places. It is not
        // reduced by `n`, because the published level may not include all of these frames yet.
        let left = self.list.len() - n + self.jumbo.len() + self.away.len();
        self.page.level.set(left as u64);
        self.page.spilled(n);
        self.umem().put_home(&self.list[..n]);
        self.list.drain(..n);
    }

    /// Puts this core's own frames on the list, and gathers those of other cores to return them.
    ///
    /// List and gathered frames together are at most the list's length, because a pool is sized by
    /// that length, and no other core gets either.
    fn keep_own(&mut self, frames: &[u32]) {
        for run in frames.chunk_by(|a, b| handle::same_core(*a, *b)) {
            if handle::core(run[0]) == self.page.core {
                if self.list.len() + self.away.len() + run.len() > self.hot_list_len {
                    self.send_away();
                }
                self.keep_here(run);
                continue;
            }
            let most = self.away.capacity().min(AWAY).min(self.hot_list_len);
            if self.away.len() + run.len() > most {
                self.send_away();
            }
            if run.len() > most {
                self.page.spilled(run.len());
                self.umem().put_home(run);
                continue;
            }
            // Half of the list goes, so that a full list does not cost a lock for each run.
            let gathered = self.away.len() + run.len();
            if self.list.len() + gathered > self.hot_list_len {
                self.make_room(gathered);
            }
            self.away.extend_from_slice(run);
        }
        self.publish();
    }

    pub(crate) fn send_away(&mut self) {
        let n = self.away.len();
        if n == 0 {
            return;
        }
        // Set the level before the frames go to the depot, so that no frame is counted in both. It
        // is not reduced by `n`, because the published level does not include all of these frames
        // yet.
        self.page.level.set((self.list.len() + self.jumbo.len()) as u64);
        self.page.spilled(n);
        self.umem().put_home(&self.away);
        self.away.clear();
    }

    #[cold]
    fn keep_jumbo(&mut self, frame: u32) {
        let umem = self.umem();
        if umem.retires() {
            // SAFETY: the caller released the last handle on the frame.
            unsafe { umem.retire(&[frame], &self.page) };
        }
        let is_foreign = handle::core(frame) != self.page.core;
        let goes_home = umem.return_to() == Return::Home && is_foreign;
        if goes_home || self.jumbo.len() >= self.jumbo_listed() {
            self.page.spilled(1);
            return umem.put_jumbo_home(&[frame]);
        }
        self.jumbo.push(frame);
        self.publish();
    }
}
