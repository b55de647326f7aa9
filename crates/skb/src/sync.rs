//! The synchronisation types of the depot, which a model checker can replace: tests/loom.rs
//! compiles depot.rs with loom's types.

pub(crate) use linerate_sys::tsc::ticks;
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
