//! Shared parts of the end-to-end tests: network namespaces, processes that cannot outlive a test,
//! the `linerate` command and its reports.
//!
//! ```text
//! netns     a network namespace, held by a descriptor: nothing to clean up, whatever happens
//! topology  hosts in namespaces of their own, and what joins them
//! scenario  what joined hosts do with each other
//! process   a program with a deadline
//! command   `linerate forward …`, and the document it prints
//! traffic   TCP and UDP between namespaces, from this process
//! capture   the bytes of capture files, good and bad
//! setting   settings of a machine that hold for a process and its children
//! wait      bounded polling
//! ```
//!
//! A test that cannot run here returns early by [`or_skip!`], which says so.

use linerate::{Code, Kind};
use linerate_sys::thread::{allowed_cpus, is_filtered, try_cpus};
use linerate_sys::xdp::{is_limit_of_locked_memory, is_refused};

use crate::process::Finished;

pub mod capture;
pub mod command;
pub mod idle;
pub mod netns;
pub mod process;
pub mod sampling;
pub mod scenario;
pub mod setting;
pub mod topology;
pub mod traffic;
pub mod wait;

/// Returns the value of a `Result<T, String>`; for `Err(why)` prints `skipped: why` and returns
/// from the test.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(why) => {
                eprintln!("skipped: {why}");
                return;
            }
        }
    };
}

/// Returns the path of an example's program, for the examples' own tests.
#[macro_export]
macro_rules! example {
    ($name:literal) => {
        env!(concat!("CARGO_BIN_EXE_", $name))
    };
}

/// Checks that the program `name` is installed.
///
/// # Errors
/// The reason to skip, if it is not.
pub fn installed(name: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(name).is_file()) {
        Ok(())
    } else {
        Err(format!("there is no `{name}` command"))
    }
}

/// The words of the reason where a cgroup allows too little packet memory.
const LIMIT_OF_CGROUP: &str = "this process's cgroup has";
/// The words of the reason where the kernel refuses a port to this process: a packet socket, a tap,
/// or packets of several frames by AF_XDP.
const NO_PORT: [&str; 4] = [
    "socket(AF_PACKET): ",
    "open(/dev/net/tun): ",
    "TUNSETIFF: ",
    "packets longer than a frame need Linux 6.6",
];

/// Returns true if the reason of an `E-PERM` or `E-UNSUPPORTED` is that the kernel refuses a port.
fn is_port_refused(why: &str) -> bool {
    is_refused(why) || NO_PORT.iter().any(|words| why.contains(words))
}

/// Returns true if the reason of an `E-MEMORY` is a limit of packet memory. That of locked memory
/// does not apply to a process with CAP_IPC_LOCK.
fn is_limited(why: &str) -> bool {
    is_limit_of_locked_memory(why) || why.contains(LIMIT_OF_CGROUP)
}

/// Returns the value of `opened`, the result of opening a port or building an engine.
///
/// # Errors
/// The reason to skip, if the machine does not allow it: `E-UNSUPPORTED` or `E-PERM` because the
/// kernel refuses a port, or `E-MEMORY` because of a limit of locked memory (`ulimit -l`) or of the
/// cgroup.
///
/// # Panics
/// If it failed for any other reason, which is no property of the machine.
pub fn available<T>(opened: linerate::Result<T>) -> Result<T, String> {
    opened.map_err(|e| {
        let is_reason = match e.kind() {
            Kind::Unsupported => is_port_refused(&e.why),
            _ => e.code == Code::Memory && is_limited(&e.why),
        };
        assert!(is_reason, "this is no reason to skip: {e:?}");
        e.to_string()
    })
}

/// Returns `done`, a command that has ended.
///
/// # Errors
/// The reason to skip, if the machine does not allow what the command does: the errors of
/// [`available`], in the command's words, and those of a recording that cannot sample.
pub fn possible(done: Finished) -> Result<Finished, String> {
    let said = done.stderr.as_str();
    let is_reason = match done.code() {
        UNSUPPORTED => is_port_refused(said) || sampling::is_refused(said),
        _ if said.contains("error[E-MEMORY]") => {
            is_limited(said) || sampling::is_limit_of_rings(said)
        }
        _ => false,
    };
    if !is_reason {
        return Ok(done);
    }
    let lines: Vec<&str> = done.stderr.lines().map(str::trim).collect();
    Err(lines.join("; "))
}

/// Exit code of a command for `E-UNSUPPORTED` and `E-PERM`.
const UNSUPPORTED: i32 = 5;

/// Checks that threads may be pinned to CPUs.
///
/// # Errors
/// The reason to skip, if a filter of system calls refuses it, as the setting `no-affinity` does.
///
/// # Panics
/// If it failed for any other reason.
pub fn may_pin() -> Result<(), String> {
    let allowed = allowed_cpus().expect("it has some");
    try_cpus(&allowed[..1]).map_err(|e| {
        assert!(is_filtered(&e), "this is no reason to skip: {e:?}");
        e.to_string()
    })
}

/// Checks that this process may use some CPUs.
///
/// # Errors
/// The reason to skip.
pub fn may_use(cpus: &[usize]) -> Result<(), String> {
    let allowed = allowed_cpus().expect("it has some");
    let is_allowed = cpus.iter().all(|cpu| allowed.contains(cpu));
    is_allowed.then_some(()).ok_or_else(|| format!("needs CPUs {cpus:?}, and has {allowed:?}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use linerate::Error;

    use super::*;

    fn failed(code: Code, why: &str) -> Result<(), String> {
        available(Err(Error::new(code, "cannot open v0", why)))
    }

    #[test]
    fn what_the_machine_lacks_is_a_reason_to_skip() {
        assert_eq!(available(Ok(7)), Ok(7));
        for (code, why) in [
            (Code::Permission, "BPF_MAP_CREATE: Operation not permitted (os error 1)"),
            (Code::Unsupported, "socket(AF_XDP): Address family not supported by protocol"),
            (Code::Unsupported, "open(/dev/net/tun): No such file or directory (os error 2)"),
            (Code::Memory, "RLIMIT_MEMLOCK lets this user lock 9 KiB"),
            (Code::Memory, "this process's cgroup has 9 KiB"),
        ] {
            assert_eq!(failed(code, why), Err(format!("cannot open v0: {why}")));
        }
    }

    #[test]
    fn a_command_that_the_machine_does_not_allow_is_a_reason_to_skip() {
        let ended = |code: i32, stderr: &str| {
            let (stdout, stderr) = (String::new(), stderr.to_owned());
            let done = Finished { status: ExitStatus::from_raw(code << 8), stdout, stderr };
            possible(done).map(|done| done.code())
        };
        let refused = ended(5, "error[E-PERM]: cannot open v0\n  why: BPF_MAP_CREATE: x\n");
        assert_eq!(
            refused,
            Err("error[E-PERM]: cannot open v0; why: BPF_MAP_CREATE: x".to_owned())
        );
        let perf = |errno: &str| ended(5, &format!("error: x\n  why: perf_event_open: {errno}\n"));
        assert!(perf("Permission denied (os error 13)").is_err());
        assert_eq!(perf("Invalid argument (os error 22)"), Ok(5));
        for why in [
            "RLIMIT_MEMLOCK lets this user lock 9 KiB",
            "kernel.perf_event_mlock_kb, and RLIMIT_MEMLOCK of this process",
        ] {
            assert!(ended(1, &format!("error[E-MEMORY]: x\n  why: {why}\n")).is_err(), "{why}");
        }
        for other in ["", "error[E-MEMORY]: x\n  why: a reason\n", "error[E-SYSTEM]: x\n"] {
            assert_eq!(ended(1, other), Ok(1), "{other}");
        }
        assert_eq!(ended(5, "error[E-UNSUPPORTED]: x\n  why: a reason\n"), Ok(5));
        assert_eq!(ended(0, ""), Ok(0));
    }

    #[test]
    #[should_panic(expected = "[E-MEMORY] cannot open v0: a reason")]
    fn memory_that_is_used_up_without_a_limit_is_a_failure() {
        let _ = failed(Code::Memory, "a reason");
    }

    #[test]
    #[should_panic(expected = "[E-UNSUPPORTED] cannot open v0: a reason")]
    fn a_refusal_for_an_unknown_reason_is_a_failure() {
        let _ = failed(Code::Unsupported, "a reason");
    }

    #[test]
    #[should_panic(expected = "[E-SYSTEM] cannot open v0: a reason")]
    fn any_other_error_is_a_failure() {
        let _ = failed(Code::System, "a reason");
    }
}
