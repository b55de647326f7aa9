//! Tells tests of commands that pin threads whether the machine refused it.

use crate::command::Ended;

/// The reason in the command's own error.
const FILTERED: &str = "a system call filter refuses it (sched_setaffinity: EPERM)";

/// Returns true, with a message, if a filter of system calls refused to pin the command's threads,
/// as `no-affinity` of tests/src/setting.rs does.
pub fn is_refused(ended: &Ended) -> bool {
    let is_refused = [&ended.out, &ended.err].into_iter().any(|text| text.contains(FILTERED));
    if is_refused {
        eprintln!("skipped: cannot pin a thread: {FILTERED}");
    }
    is_refused
}
