//! The locks and atomics of [`super::handover`], which a model checker replaces with its own.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub use std::sync::{Mutex, MutexGuard};

use std::sync::{PoisonError, TryLockError};

/// Locks `mutex`, even after a panic of a thread that held it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `mutex`; `None` if another thread has it.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
