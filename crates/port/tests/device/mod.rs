//! Interfaces for tests, and the reasons to skip a test that cannot have them.

use std::io::ErrorKind;
use std::process::Command;

use linerate_port::{Code, Kind, Result};
use linerate_sys::xdp::{is_limit_of_locked_memory, is_refused};
use rustix::io::Errno;
use rustix::thread::UnshareFlags;

/// The words of the reason where the cgroup allows too little packet memory.
const LIMIT_OF_CGROUP: &str = "this process's cgroup has";

/// Moves the calling thread into a network namespace of its own; returns false, and says why, if the kernel refuses it
/// or there is no `ip`.
pub fn enters_netns() -> bool {
    // SAFETY: NEWNET changes only which interfaces this thread sees; its descriptors stay shared.
    match unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) } {
        // As `linerate_sys::netns::is_refused`.
        Err(e @ (Errno::PERM | Errno::INVAL | Errno::NOSYS | Errno::NOSPC)) => {
            eprintln!("skipped: no network namespace: {e}");
            return false;
        }
        done => done.unwrap(),
    }
    match Command::new("ip").arg("-V").output() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: there is no `ip` command");
            false
        }
        said => {
            drop(said.unwrap());
            true
        }
    }
}

/// Runs `ip` with `args`; returns its output if it succeeds.
pub fn ip(args: &str) -> Option<String> {
    let out = Command::new("ip").args(args.split(' ')).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Returns the value of `opened`, an AF_XDP port; else the reason to skip, if the machine refuses AF_XDP or limits
/// its memory. Panics if it failed for any other reason.
pub fn available<T>(opened: Result<T>) -> std::result::Result<T, String> {
    opened.map_err(|e| {
        let is_limited = is_limit_of_locked_memory(&e.why) || e.why.contains(LIMIT_OF_CGROUP);
        let is_reason = match e.kind() {
            Kind::Unsupported => is_refused(&e.why),
            _ => e.code == Code::Memory && is_limited,
        };
        assert!(is_reason, "this is no reason to skip: {e:?}");
        e.to_string()
    })
}
