//! Common parts of the tests: whether threads may be pinned here, and the message of a test that is skipped.

use linerate_port::Result;
use linerate_port::thread::{allowed_cpus, is_filtered, try_cpus};

/// Returns the value of `pinned`, the result of pinning a thread; `None`, with a message, if a filter of system calls
/// refuses that, as `no-affinity` of tests/src/setting.rs does.
pub(crate) fn unless_filtered<T>(pinned: Result<T>) -> Option<T> {
    match pinned {
        Err(e) if is_filtered(&e) => {
            eprintln!("skipped: {e}");
            None
        }
        pinned => Some(pinned.unwrap()),
    }
}

/// Returns true if threads may be pinned; false, with a message, if a filter of system calls refuses it.
pub(crate) fn may_pin() -> bool {
    unless_filtered(try_cpus(&allowed_cpus().unwrap()[..1])).is_some()
}
