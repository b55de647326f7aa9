//! Parts that the tests of this crate share: a network namespace per test.

use std::io::ErrorKind;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

/// Runs `test` on a thread of its own inside a fresh network namespace, which dies with it.
///
/// Skips, saying so, where that takes privileges or tools that are missing.
pub(crate) fn in_netns(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        match Command::new("ip").arg("-V").output() {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return eprintln!("skipped: there is no `ip` command");
            }
            said => drop(said.unwrap()),
        }
        // SAFETY: NEWNET only changes which interfaces this thread sees; the thread still shares
        // its descriptors.
        match unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) } {
            Ok(()) => test(),
            // As `netns::is_refused`.
            Err(e @ (Errno::PERM | Errno::INVAL | Errno::NOSYS | Errno::NOSPC)) => {
                eprintln!("skipped: no network namespace: {e}");
            }
            Err(e) => panic!("unshare: {e}"),
        }
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` with `args` in the namespace of the calling thread, and returns its output.
pub(crate) fn ip(args: &str) -> String {
    let out = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Waits until the kernel noticed that interface `name` has a carrier and started its queues.
pub(crate) fn wait_running(name: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    // Do not wait for IFF_RUNNING: the kernel sets it also while the state is still unknown.
    while !ip(&format!("-o link show {name}")).contains(" state UP ") {
        assert!(Instant::now() < deadline, "{name} got no carrier");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The kernel's worker changes the state first and then starts the queues, under one lock. This
    // command, which changes nothing, takes that lock too, and so waits for the worker.
    ip(&format!("link set {name} up"));
}
