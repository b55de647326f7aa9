//! Parts that the tests of several crates share: reasons to skip, network namespaces, folders,
//! bounded polling.
//!
//! Only development dependencies name this crate, so nothing that ships has it. It depends on
//! `linerate-sys` alone, so that the tests of every crate can use it.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use linerate_sys::netns::{Netns, is_refused};
use linerate_sys::thread::{allowed_cpus, is_filtered, try_cpus};
use linerate_sys::{Code, Error, Kind, xdp};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// The longest wait of [`eventually`] and [`wait_running`]; every step of a test takes far less.
const LONG: Duration = Duration::from_secs(20);

/// Returns the value of `tried`; `None`, with a line `skipped: why`, if `is_reason` accepts its
/// error: the machine lacks or refuses what the test needs.
///
/// # Panics
/// If it failed for any other reason.
#[track_caller]
pub fn unless<T, E: Display>(tried: Result<T, E>, is_reason: impl Fn(&E) -> bool) -> Option<T> {
    match tried {
        Err(e) if is_reason(&e) => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("this is no reason to skip: {e}"),
        Ok(value) => Some(value),
    }
}

/// Returns true if `e`, of an AF_XDP port, says that the kernel refuses AF_XDP to this process, or
/// that a limit of locked memory or of the cgroup is too low.
pub fn is_xdp_missing(e: &Error) -> bool {
    if e.kind() == Kind::Unsupported {
        return xdp::is_refused(&e.why);
    }
    let is_limited =
        xdp::is_limit_of_locked_memory(&e.why) || e.why.contains("this process's cgroup has");
    e.code == Code::Memory && is_limited
}

/// Returns true if threads may be pinned; false, with a message, if a filter of system calls
/// refuses it, as the setting `no-affinity` of the end-to-end tests does.
pub fn may_pin() -> bool {
    unless(try_cpus(&allowed_cpus().unwrap()[..1]), is_filtered).is_some()
}

/// Returns a network namespace with a veth pair, whose ends `v0` and `v1` are up and send nothing
/// by themselves; `None`, with a message, if this process may have none.
pub fn netns_with_pair() -> Option<Netns> {
    unless(Netns::with_pair(), is_refused)
}

/// Runs `test` on a thread of its own in a new network namespace, which ends with it.
///
/// Skips the test, with a message, if this process may have no namespace, or there is no `ip`.
pub fn in_netns(test: impl FnOnce() + Send) {
    let made = Netns::new().and_then(|netns| netns.ip("-V").map(|_| netns));
    if let Some(netns) = unless(made, is_refused) {
        netns.run(test).unwrap();
    }
}

/// Turns IPv6 off in the namespace of the calling thread, so that interfaces send nothing by
/// themselves.
pub fn quiet() {
    for which in ["all", "default"] {
        // A kernel without IPv6 has no such file.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
}

/// Runs `ip` with `args` in the namespace of the calling thread, and returns its output.
#[track_caller]
pub fn ip(args: &str) -> String {
    let out = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Waits until the kernel has noticed that interface `name` has a carrier and has started its
/// queues.
pub fn wait_running(name: &str) {
    // Do not test IFF_RUNNING, which the kernel also sets while the state is unknown.
    eventually(|| ip(&format!("-o link show {name}")).contains(" state UP "));
    // The kernel's worker changes the state first and starts the queues next, under a lock. This
    // command changes nothing, but takes the lock and thus waits for the worker.
    ip(&format!("link set {name} up"));
}

/// Polls `done` until it returns true.
///
/// # Panics
/// If it does not soon.
#[track_caller]
pub fn eventually(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "it never was");
        sleep(Duration::from_millis(1));
    }
}

/// A folder that only this user can enter and no other program can predict, deleted with the test.
#[derive(Debug)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Creates an empty folder.
    #[expect(clippy::new_without_default, reason = "a default should not create a folder")]
    pub fn new() -> Scratch {
        let number = RandomState::new().build_hasher().finish();
        let path = std::env::temp_dir().join(format!("linerate-test-{number:x}"));
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        Scratch(path)
    }

    /// Returns the path of `name` in it, as a word of a command line.
    pub fn word(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes the file `name` and the folders that it is in, and returns its path.
    pub fn file(&self, name: &str, bytes: &(impl AsRef<[u8]> + ?Sized)) -> String {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        self.word(name)
    }

    /// Creates a named pipe, and returns its path.
    pub fn fifo(&self) -> String {
        let path = self.word("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
