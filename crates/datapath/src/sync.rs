//! The synchronisation types of the mailbox and of the turns. A model checker can replace them:
//! tests/loom.rs compiles mailbox.rs and turns.rs with loom's types.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Mutex, PoisonError, TryLockError};
