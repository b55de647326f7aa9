//! The reasons for which `linerate profile record` cannot sample on a machine. The tests of
//! linerate-lab-cli include this file, too.

/// The words of the reason where the kernel refuses events, perf is missing, or perf opens no
/// event.
const NO_SAMPLES: [&str; 6] = [
    "perf_event_open: Operation not permitted",
    "perf_event_open: Permission denied",
    "perf_event_open: Function not implemented",
    "perf_event_open: No such device",
    "needs perf, which does not run here",
    "and no data; see its messages",
];

/// Returns true if a command that was refused as unsupported `said` that nothing can be sampled.
pub fn is_refused(said: &str) -> bool {
    NO_SAMPLES.iter().any(|words| said.contains(words))
}

/// Returns true for the error of a ring that exceeds what this user may lock, as text or JSON.
pub fn is_limit_of_rings(said: &str) -> bool {
    ["E-MEMORY", "RLIMIT_MEMLOCK", "kernel.perf_event_mlock_kb"].iter().all(|it| said.contains(it))
}
