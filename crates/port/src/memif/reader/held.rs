//! A packet that the program can keep after the loop that received it, on any thread.
//!
//! ```text
//!   holder, any thread     reads the producer's memory, then: is there a copy?  ──► reads that instead
//!   reader                 makes the copy ──► gives the slot back ──► producer may write it
//! ```
//!
//! No lock: bytes that a producer wrote into a slot that was given back can only be read after the
//! copy was made, so a thread that read them finds it, and takes its bytes from there.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};

use linerate_skb::Result;
use linerate_sys::wait::EventFd;

use super::window::{Piece, copy};
use crate::memif::server::Regions;

/// Declares methods that read one number with a bounds check, for each type with `copy_to`.
macro_rules! single_reads {
    () => {
        /// Returns the byte at `at`; `None` if it is not in the packet.
        #[inline]
        #[must_use]
        pub fn u8(&self, at: usize) -> Option<u8> {
            self.array(at).map(u8::from_be_bytes)
        }

        /// Returns the 16-bit number at `at`, in network byte order; `None` if it is not entirely
        /// in the packet.
        #[inline]
        #[must_use]
        pub fn u16_be(&self, at: usize) -> Option<u16> {
            self.array(at).map(u16::from_be_bytes)
        }

        /// Returns the 32-bit number at `at`, in network byte order; `None` if it is not entirely
        /// in the packet.
        #[inline]
        #[must_use]
        pub fn u32_be(&self, at: usize) -> Option<u32> {
            self.array(at).map(u32::from_be_bytes)
        }

        /// Returns the 64-bit number at `at`, in network byte order; `None` if it is not entirely
        /// in the packet.
        #[inline]
        #[must_use]
        pub fn u64_be(&self, at: usize) -> Option<u64> {
            self.array(at).map(u64::from_be_bytes)
        }

        #[inline]
        fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
            let mut bytes = [0; N];
            (self.copy_to(at, &mut bytes) == N).then_some(bytes)
        }
    };
}
pub(super) use single_reads;

/// A held packet. Its bytes are in the producer's memory until it is dropped, or in a copy if it is
/// held for too long.
///
/// It is read as a [`Frame`](super::Frame) is, from any thread, and keeps the producer's memory
/// mapped.
///
/// Cost: after the producer has disconnected, the drop of its last held packet unmaps its memory,
/// on the thread that drops it.
pub struct Held {
    hold: Arc<Hold>,
}

/// The state that a [`Held`] and its reader share.
pub(super) struct Hold {
    regions: Regions,
    pieces: Box<[Piece]>,
    len: usize,
    /// A copy of the packet, which the reader makes before it gives the slots back.
    copy: OnceLock<Box<[u8]>>,
    released: AtomicBool,
    gone: AtomicBool,
    waker: Arc<Waker>,
}

/// Wakes a reader that sleeps when the program releases a frame.
pub(super) struct Waker {
    asleep: AtomicBool,
    pub bell: EventFd,
}

impl Held {
    pub(super) fn new(hold: Arc<Hold>) -> Held {
        Held { hold }
    }

    /// Returns the packet's length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.hold.len
    }

    /// Returns true for a packet of zero bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hold.len == 0
    }

    /// Copies bytes, from offset `from`, into `to`; returns how many: fewer than `to.len()` only at
    /// the packet's end.
    ///
    /// Cost: the copy; it never waits.
    pub fn copy_to(&self, from: usize, to: &mut [u8]) -> usize {
        if let Some(copied) = self.copied(from, to) {
            return copied;
        }
        let n = self.hold.read(from, to);
        // This check must follow the reads: if the reads saw bytes that were written after the slot
        // was given back, then the copy exists.
        fence(Ordering::Acquire);
        self.copied(from, to).unwrap_or(n)
    }

    /// Returns true if the packet was copied into this process's memory, because it was held for
    /// too long.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.hold.copy.get().is_some()
    }

    /// Returns true if the reader has noticed that the producer disconnected before the packet was
    /// copied: reading the packet is safe, but its bytes may be another packet's. Call this after
    /// reading. False is no proof: the producer may use its memory again before the reader notices.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.hold.gone.load(Ordering::Acquire)
    }

    single_reads!();

    fn copied(&self, from: usize, to: &mut [u8]) -> Option<usize> {
        let bytes = self.hold.copy.get()?.get(from..).unwrap_or_default();
        let n = bytes.len().min(to.len());
        to[..n].copy_from_slice(&bytes[..n]);
        Some(n)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.hold.released.store(true, Ordering::Release);
        self.hold.waker.ring();
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (copied, gone) = (self.is_copied(), self.is_gone());
        let mut f = f.debug_struct("Held");
        f.field("len", &self.len()).field("copied", &copied).field("gone", &gone).finish()
    }
}

impl Hold {
    pub fn new(regions: Regions, pieces: Box<[Piece]>, len: usize, waker: Arc<Waker>) -> Hold {
        let (released, gone) = (AtomicBool::new(false), AtomicBool::new(false));
        Hold { regions, pieces, len, copy: OnceLock::new(), released, gone, waker }
    }

    pub fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Copies the packet into our memory; its slots can be given back after that.
    #[cold]
    pub fn copy_out(&self) {
        let mut bytes = vec![0; self.len].into_boxed_slice();
        self.read(0, &mut bytes);
        // `set` cannot fail: only the reader makes the copy, once.
        let _ = self.copy.set(bytes);
    }

    /// Records that the producer has taken back the frames of the packet.
    pub fn end(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn read(&self, from: usize, to: &mut [u8]) -> usize {
        copy(&self.regions, self.pieces.iter().copied(), from, to)
    }
}

impl Waker {
    pub fn new() -> Result<Waker> {
        Ok(Waker { asleep: AtomicBool::new(false), bell: EventFd::new()? })
    }

    /// Makes later releases wake the reader; the caller then checks for earlier releases.
    pub fn sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub fn wake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Wakes the reader if it sleeps; pairs with the fence in `sleep`.
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.bell.signal();
        }
    }
}
