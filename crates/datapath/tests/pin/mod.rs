//! Tells tests that pin threads whether they may.

use linerate_port::thread::{allowed_cpus, is_filtered, try_cpus};

/// Returns true if threads may be pinned; false, with a message, if a filter of system calls refuses it, as
/// `no-affinity` of tests/src/setting.rs does.
pub fn may_pin() -> bool {
    match try_cpus(&allowed_cpus().unwrap()[..1]) {
        Err(e) if is_filtered(&e) => {
            eprintln!("skipped: {e}");
            false
        }
        tried => {
            tried.unwrap();
            true
        }
    }
}
