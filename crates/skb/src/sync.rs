//! The synchronisation types of the depot, by names under which a model checker can put its own:
//! tests/loom.rs compiles depot.rs with loom's.

pub(crate) use linerate_sys::tsc::ticks;
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
