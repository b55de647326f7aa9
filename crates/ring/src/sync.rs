//! The synchronisation primitives, with the same names for std and for loom.
//!
//! Everything in this crate that two threads share goes through these names, so that the model
//! checker sees the code that ships. The exception is [`Mapped`](crate::Mapped): loom's atomics
//! carry state and cannot lie in a mapping. The protocol it follows is the code that loom checks
//! over [`Heap`](crate::Heap); only the addresses differ.
//!
//! loom ignores `SeqCst` on loads and stores (it models them as acquire and release), hence the
//! waiter's protocol is written with `fence(SeqCst)`, which loom does model.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicU32, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering, fence},
};

/// The cell of `std` with loom's interface: code accesses the value in closures, so that loom can
/// observe each access.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    #[inline]
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
        access(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}

/// A value with two cache lines of its own.
///
/// 128 and not 64 bytes: x86's spatial prefetcher fetches lines in pairs, and several arm64 cores
/// have 128-byte lines. Without it each store of one index would take the other's line away.
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line<AtomicU32>>() == 128);
