//! The synchronisation types of the depot and of the count of handles, which a model checker can
//! replace: tests/loom.rs compiles depot.rs and refs.rs with loom's types.

pub(crate) use linerate_sys::tsc::ticks;
pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
