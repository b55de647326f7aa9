//! Network namespaces without a name, which exist while a thread is inside or a descriptor refers
//! to them.
//!
//! A thread makes one and ends; the descriptor of [`Netns`] holds it. There is no mount and no file
//! of `ip netns` to be left behind: the kernel removes the namespace with everything in it, links
//! too, once the process has ended, however that came about.
//!
//! A namespace is a property of a thread, not of the process. What a thread opens inside (a socket,
//! a ring of packets, `/proc/thread-self/net`) stays the namespace's wherever it is used later.
//!
//! Source: network_namespaces(7), unshare(2), setns(2).

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle, scope};

use libc::c_int;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::error::{Code, Error, Kind, Result, check};

/// Returns the cookie of the calling thread's network namespace, which no other one gets before the
/// next boot; `None` before Linux 5.14, and where no socket can be opened.
///
/// Cost: three syscalls.
#[must_use]
pub fn cookie() -> Option<u64> {
    const SO_NETNS_COOKIE: c_int = 71;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).ok()?;
    let (mut cookie, mut len) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes to `cookie`, whose size `len` is, and the
    // length to `len`; both are exclusively borrowed for the call.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    })
    .ok()?;
    Some(cookie)
}

/// A network namespace. It exists until this value is dropped, and no thread or socket is inside
/// any more.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
}

impl Netns {
    /// Creates an empty namespace, in which even `lo` is down. The calling thread stays in its
    /// namespace.
    ///
    /// # Errors
    /// `E-PERM` without CAP_SYS_ADMIN, `E-UNSUPPORTED` from a kernel without namespaces, and where
    /// there are as many as it allows, which may be none.
    pub fn new() -> Result<Netns> {
        scope(|scope| {
            let thread = Builder::new().spawn_scoped(scope, make).map_err(|e| no_thread(&e))?;
            thread.join().unwrap_or_else(|panic| resume_unwind(panic)).map(|fd| Netns { fd })
        })
    }

    /// Creates a namespace with a veth pair, whose ends `v0` and `v1` are up and send nothing by
    /// themselves.
    ///
    /// # Errors
    /// As [`Netns::new`] and [`Netns::ip`].
    pub fn with_pair() -> Result<Netns> {
        let netns = Netns::new()?;
        netns.quiet()?;
        netns.ip("link add v0 type veth peer name v1")?;
        netns.ip("link set v0 up")?;
        netns.ip("link set v1 up")?;
        Ok(netns)
    }

    /// Returns a path to the namespace, valid while this value lives: `ip link set … netns PATH`.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }

    /// Runs `inside` on a new thread in the namespace, and waits for its result. A panic of
    /// `inside` continues in the caller.
    ///
    /// # Errors
    /// `E-SYSTEM` if the thread cannot be started, `E-PERM` if it may not enter.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T> {
        scope(|scope| {
            let body = || enter(self.fd.as_fd()).map(|()| inside());
            let thread = Builder::new().spawn_scoped(scope, body).map_err(|e| no_thread(&e))?;
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Starts `inside` on a thread called `name` in the namespace. The thread is in the namespace
    /// when this returns.
    ///
    /// # Errors
    /// As [`Netns::run`].
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        inside: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Option<T>>> {
        let fd = self.fd.try_clone().map_err(|e| no_thread(&e))?;
        let (entered, entering) = sync_channel(1);
        let body = move || {
            let outcome = enter(fd.as_fd());
            // The thread keeps the namespace alive, so it does not need the descriptor any more.
            drop(fd);
            let go = outcome.is_ok();
            let _ = entered.send(outcome);
            go.then(inside)
        };
        let thread = Builder::new().name(name.into()).spawn(body).map_err(|e| no_thread(&e))?;
        entering.recv().unwrap_or(Ok(()))?;
        Ok(thread)
    }

    /// Turns IPv6 off in the namespace, so that interfaces do not send router solicitations or
    /// duplicate address detection by themselves. Interfaces made later have IPv6 off as well.
    ///
    /// # Errors
    /// As [`Netns::run`].
    pub fn quiet(&self) -> Result<()> {
        self.run(|| {
            for which in ["all", "default"] {
                // A kernel without IPv6 does not have this file, and needs no change.
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
            }
        })
    }

    /// Runs `ip` with `args` in the namespace, and returns its output.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` without that program, `E-SYSTEM` with what it says if it fails.
    pub fn ip(&self, args: &str) -> Result<String> {
        self.iproute2("ip", args)
    }

    /// Runs `tc` with `args` in the namespace, and returns its output.
    ///
    /// # Errors
    /// Those of [`Netns::ip`].
    pub fn tc(&self, args: &str) -> Result<String> {
        self.iproute2("tc", args)
    }

    fn iproute2(&self, program: &str, args: &str) -> Result<String> {
        let what = || format!("cannot run {program} {args}");
        let run = || Command::new(program).args(args.split_whitespace()).output();
        let done = self.run(run)?.map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                Error::new(Code::Unsupported, what(), NO_IP).fix("apt install iproute2")
            }
            _ => Error::new(Code::System, what(), e.to_string()),
        })?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(Error::new(
                Code::System,
                what(),
                format!("{}: {}", done.status, said.trim()),
            ));
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }
}

/// Returns true if `e` says that the kernel refuses a network namespace to this process, or that
/// there is no iproute2. Tests skip by it.
#[doc(hidden)]
#[must_use]
pub fn is_refused(e: &Error) -> bool {
    e.kind() == Kind::Unsupported && (e.why.starts_with(UNSHARE) || e.why == NO_IP)
}

/// Moves the calling thread, which must end soon, into a new namespace.
fn make() -> Result<OwnedFd> {
    // SAFETY: NEWNET only changes which interfaces this thread sees: the thread still shares
    // memory, descriptors and directories with the others. The function is unsafe because of FILES,
    // which would separate this thread's descriptors from their owners.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|e| refused(UNSHARE, e))?;
    let path = "/proc/thread-self/ns/net";
    let file =
        File::open(path).map_err(|e| Error::new(Code::File, WHAT, format!("{path}: {e}")))?;
    Ok(file.into())
}

/// Moves the calling thread into a namespace permanently.
pub(crate) fn enter(fd: BorrowedFd<'_>) -> Result<()> {
    move_into_link_name_space(fd, Some(LinkNameSpaceType::Network)).map_err(|e| refused("setns", e))
}

fn refused(call: &str, errno: Errno) -> Error {
    match errno {
        Errno::PERM => Error::os(Code::Permission, WHAT, call, errno)
            .fix("run it as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN"),
        Errno::INVAL | Errno::NOSYS => {
            Error::os(Code::Unsupported, WHAT, call, errno).fix("a kernel with CONFIG_NET_NS")
        }
        Errno::NOSPC => Error::os(Code::Unsupported, WHAT, call, errno)
            .fix("cat /proc/sys/user/max_net_namespaces"),
        _ => Error::os(Code::System, WHAT, call, errno),
    }
}

fn no_thread(e: &std::io::Error) -> Error {
    Error::new(Code::System, "cannot have a thread in a network namespace", e.to_string())
}

const WHAT: &str = "cannot have a network namespace";
const UNSHARE: &str = "unshare";
const NO_IP: &str = "there is no iproute2, the programs `ip` and `tc`";

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::{eventually, unless};

    /// Returns a namespace; prints why if it cannot be created.
    fn netns() -> Option<Netns> {
        unless(Netns::new(), is_refused)
    }

    fn here() -> std::path::PathBuf {
        fs::read_link("/proc/thread-self/ns/net").unwrap()
    }

    #[test]
    fn its_threads_are_inside_and_ours_is_not() {
        let Some(netns) = netns() else { return };
        let ours = here();
        let inside = netns.run(here).unwrap();
        assert_ne!(inside, ours);
        assert_eq!(netns.spawn("inside", here).unwrap().join().unwrap(), Some(inside.clone()));
        assert_eq!(here(), ours);
        assert_eq!(fs::read_link(netns.path()).unwrap(), inside);
        assert_ne!(Netns::new().unwrap().run(here).unwrap(), inside);
    }

    #[test]
    fn links_can_be_made_and_have_no_ipv6() {
        let Some(netns) = netns() else { return };
        netns.quiet().unwrap();
        if unless(netns.ip("link add dev v0 type veth peer name v1"), is_refused).is_none() {
            return;
        }
        netns.ip("link set dev v0 up").unwrap();
        netns.ip("link set dev v1 up").unwrap();
        assert!(netns.ip("-o link").unwrap().contains("v0@v1"));
        assert_eq!(netns.ip("-6 -o addr").unwrap(), "");
        let e = netns.ip("link add dev v0 type veth").unwrap_err();
        assert!(e.what.contains("dev v0 type veth") && e.why.contains("File exists"), "{e}");
    }

    #[test]
    fn namespace_ends_with_its_last_handle() {
        let Some(netns) = netns() else { return };
        if unless(netns.ip("-V"), is_refused).is_none() {
            return;
        }
        let other = Netns::new().unwrap();
        let pair = format!("link add dev v0 type veth peer name v1 netns {}", other.path());
        netns.ip(&pair).unwrap();
        drop(other);
        // The peer of a link goes with it, as soon as the kernel's worker has come to it.
        eventually(|| !netns.ip("-o link").unwrap().contains("v0"));
    }

    #[test]
    fn a_panic_inside_goes_on_outside() {
        let Some(netns) = netns() else { return };
        let run = || netns.run(|| panic!("inside"));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"inside"));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        for (errno, code, fix) in [
            (Errno::PERM, Code::Permission, "CAP_SYS_ADMIN"),
            (Errno::INVAL, Code::Unsupported, "CONFIG_NET_NS"),
            (Errno::NOSPC, Code::Unsupported, "max_net_namespaces"),
        ] {
            let e = refused(UNSHARE, errno);
            assert!(e.code == code && e.fix.contains(fix) && is_refused(&e), "{e}");
        }
        for (call, errno) in [(UNSHARE, Errno::NOMEM), ("setns", Errno::PERM)] {
            let e = refused(call, errno);
            assert!(!is_refused(&e), "a test must not skip by it: {e}");
        }
    }
}
