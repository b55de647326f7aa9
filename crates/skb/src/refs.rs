//! The count of the handles on a packet, in the packet's meta line.
//!
//! Memory order: the thread that finds itself the only owner has seen all that other owners read
//! and wrote. Each of them released its handle with `Release`, and all changes of a count that
//! several threads can reach are read-modify-writes, so an Acquire load of the last one is enough.
//! tests/loom.rs compiles this file over loom's atomics.

use crate::page::Counter;
use crate::sync::{AtomicU32, Ordering, fence};

/// Counts one more handle; `first` is true if the caller has the only one and no other thread can
/// reach the count.
#[inline]
pub(crate) fn add(refs: &AtomicU32, first: bool) {
    if first {
        refs.store(2, Ordering::Relaxed);
    } else if refs.fetch_add(1, Ordering::Relaxed) > u32::MAX / 2 {
        // Abort, as Arc does, because two billion forgotten handles could make the count wrap.
        std::process::abort();
    }
}

/// Returns true if the caller's handle is the only one, so that it may write the packet.
#[inline]
pub(crate) fn is_only(refs: &AtomicU32) -> bool {
    refs.load(Ordering::Acquire) == 1
}

/// Releases a handle; returns true if it was the last one, so that the caller frees the packet.
/// `extra` counts the handles of packets beyond their first.
#[inline]
pub(crate) fn release(refs: &AtomicU32, extra: &Counter) -> bool {
    if is_only(refs) {
        return true;
    }
    // Change the page before the handle is released: afterwards the umem may be unmapped.
    extra.subtract(1);
    if refs.fetch_sub(1, Ordering::Release) != 1 {
        return false;
    }
    // The owners of the other handles released them after the load above, and each subtracted 1
    // from `extra`: this handle is the last one and adds 1 back.
    fence(Ordering::Acquire);
    extra.add(1);
    true
}
