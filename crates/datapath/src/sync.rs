//! The synchronisation types of the mailbox. A model checker can replace them: tests/loom.rs
//! compiles mailbox.rs with loom's types.

pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
pub(crate) use std::sync::{Mutex, PoisonError, TryLockError};
