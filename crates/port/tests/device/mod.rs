//! Interfaces for tests, and the reasons to skip a test that cannot have them.

use std::process::Command;

use linerate_port::{Code, Kind, Result};
use linerate_sys::xdp::{is_limit_of_locked_memory, is_refused};

/// The words of the reason where the cgroup allows too little packet memory.
const LIMIT_OF_CGROUP: &str = "this process's cgroup has";

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
