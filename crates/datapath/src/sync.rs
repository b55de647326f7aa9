//! The synchronisation types of the mailbox, by names under which a model checker can put its own:
//! tests/loom.rs compiles mailbox.rs with loom's.

pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
pub(crate) use std::sync::{Mutex, PoisonError, TryLockError};
