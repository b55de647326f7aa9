//! A slot of a thread's table: the list of one umem's frames, in the memory of a page.
//!
//! ```text
//!  page.list   [ ......... | cold ......... hot | ........ ]    a ring: position & mask is the place
//!                           head                tail
//! ```
//!
//! Only the thread whose table has the slot uses it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::page::Page;

/// A thread's list of one umem's frames. Plain numbers and pointers, so that reaching it costs no
/// initialisation check.
///
/// The frames and their number are in the page, where reports find them.
pub(super) struct Slot {
    /// The tail position at which the list is full; 0 if the packets' data comes from the
    /// allocator, so that every drop has a block to free.
    pub limit: Cell<u64>,
    pub serial: Cell<u64>,
    pub list: Cell<*const AtomicU32>,
    /// Length of the list less one.
    pub mask: Cell<u64>,
    pub page: Cell<*const Page>,
}

/// The page of every slot that is closed.
pub(super) static NOBODY: Page = Page::blank();

impl Slot {
    pub const fn closed() -> Slot {
        Slot {
            limit: Cell::new(0),
            serial: Cell::new(0),
            list: Cell::new(std::ptr::null()),
            mask: Cell::new(0),
            page: Cell::new(&raw const NOBODY),
        }
    }

    /// Returns the page with the counts and the list's frames.
    #[inline]
    pub fn page(&self) -> &Page {
        // SAFETY: the page is NOBODY, or the page of an Entry; this thread keeps the Entry, and
        // with it the page, until it closes the slot.
        unsafe { &*self.page.get() }
    }

    pub fn is_open(&self) -> bool {
        !std::ptr::eq(self.page.get(), &raw const NOBODY)
    }

    /// Returns the number of frames on the list.
    pub fn len(&self) -> usize {
        self.page().held() as usize
    }

    /// Appends frames that have been counted; returns false if there is no room.
    pub fn push(&self, frames: &[u32]) -> bool {
        let page = self.page();
        if page.list.len() - self.len() < frames.len() {
            return false;
        }
        // SAFETY: this thread owns the slot, and so its page.
        unsafe { page.settle() };
        let tail = page.tail.value();
        for (at, &frame) in (tail..).zip(frames) {
            page.list[(at & self.mask.get()) as usize].store(frame, Ordering::Relaxed);
        }
        page.counted.set(tail + frames.len() as u64);
        page.tail.set(tail + frames.len() as u64);
        true
    }

    /// Takes up to `out.len()` frames from the hot end; returns how many.
    pub fn pop(&self, out: &mut [u32]) -> usize {
        let (page, n) = (self.page(), self.len().min(out.len()));
        // SAFETY: this thread owns the slot, and so its page.
        unsafe { page.settle() };
        let tail = page.tail.value() - n as u64;
        page.tail.set(tail);
        page.counted.set(tail);
        self.copy(tail, &mut out[..n]);
        n
    }

    /// Takes `n` frames from the cold end; the list must have that many. They stay in its memory,
    /// in two parts because the list is a ring.
    ///
    /// # Safety
    /// The caller does not push to this list while it has these.
    pub unsafe fn shift(&self, n: usize) -> [&[u32]; 2] {
        let page = self.page();
        // SAFETY: this thread owns the slot, and so its page.
        unsafe { page.settle() };
        let head = page.head.value();
        page.head.set(head + n as u64);
        if self.limit.get() > 0 {
            self.limit.set(self.limit.get() + n as u64);
        }
        // SAFETY: this thread owns the slot, and so its page; the caller guarantees that the list
        // is not written meanwhile.
        unsafe { page.own(head, n) }
    }

    /// Copies frames of the list, from position `from`, into `out`.
    fn copy(&self, from: u64, out: &mut [u32]) {
        // SAFETY: this thread owns the slot, and so its page, whose list is not written before the
        // frames are copied.
        let [first, wrapped] = unsafe { self.page().own(from, out.len()) };
        let (start, end) = out.split_at_mut(first.len());
        start.copy_from_slice(first);
        end.copy_from_slice(wrapped);
    }
}
