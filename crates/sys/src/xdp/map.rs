//! The mapping of one ring: its indices, its flags, and the address of its descriptors.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::xdp::XdpRingOffset;

/// One ring of a socket, mapped.
#[derive(Debug)]
pub struct RingMap {
    pub(super) base: NonNull<c_void>,
    pub(super) bytes: usize,
    pub(super) at: XdpRingOffset,
}

// SAFETY: a mapping is valid on every thread; the type reads one word of it, atomically, and only
// gives out addresses of the rest.
unsafe impl Send for RingMap {}
// SAFETY: as above; no method changes the value.
unsafe impl Sync for RingMap {}

impl RingMap {
    /// Returns the address of the producer's index.
    #[must_use]
    pub fn producer(&self) -> *mut u32 {
        self.byte(self.at.producer).cast()
    }

    /// Returns the address of the consumer's index.
    #[must_use]
    pub fn consumer(&self) -> *mut u32 {
        self.byte(self.at.consumer).cast()
    }

    /// Returns the address of the first descriptor: a [`Desc`](super::Desc) in receive and transmit
    /// rings, else a `u64`.
    #[must_use]
    pub fn slots<T>(&self) -> *mut T {
        self.byte(self.at.desc).cast()
    }

    /// Returns true if a system call must notify the kernel of entries in the ring; also if the
    /// kernel does not report it.
    #[must_use]
    pub fn wants_wakeup(&self) -> bool {
        let Some(flags) = self.flags() else { return true };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Sets or clears the kernel's request in its place, in tests of drivers that make it late.
    #[doc(hidden)]
    pub fn set_wakeup(&self, wanted: bool) {
        if let Some(flags) = self.flags() {
            flags.store(u32::from(wanted) * libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
        }
    }

    fn flags(&self) -> Option<&AtomicU32> {
        let flags: *mut u32 = self.byte(self.at.flags?).cast();
        // SAFETY: the kernel gave the offset, which is aligned for a u32 and within the mapping
        // that `self` keeps; both the kernel and this process access the word atomically.
        Some(unsafe { AtomicU32::from_ptr(flags) })
    }

    fn byte(&self, at: u64) -> *mut u8 {
        self.base.as_ptr().cast::<u8>().wrapping_add(at as usize)
    }
}

impl Drop for RingMap {
    fn drop(&mut self) {
        // SAFETY: base and bytes are those of the mapping made in `map`, which is unmapped only
        // here. Users of its addresses guarantee, in their own SAFETY comments, that they do not
        // outlive it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.bytes) };
    }
}
