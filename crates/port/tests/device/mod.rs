//! Interfaces for tests, and the reasons to skip a test that cannot have them.

use std::process::Command;

use linerate_port::{Code, Kind, Result};

/// The limits that allow too little packet memory, as the reason of an error names them.
const LIMITS: [&str; 2] = ["RLIMIT_MEMLOCK", "this process's cgroup has"];

/// Runs `ip` with `args`; returns its output if it succeeds.
pub fn ip(args: &str) -> Option<String> {
    let out = Command::new("ip").args(args.split(' ')).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Returns the value of `opened`; else the reason to skip, if the machine does not allow it. Panics
/// if it failed for any other reason.
pub fn available<T>(opened: Result<T>) -> std::result::Result<T, String> {
    opened.map_err(|e| {
        let is_limited =
            e.code == Code::Memory && LIMITS.into_iter().any(|limit| e.why.contains(limit));
        assert!(is_limited || e.kind() == Kind::Unsupported, "this is no reason to skip: {e:?}");
        e.to_string()
    })
}
