//! A UNIX socket that listens at a path: the ownership of its file, and the identity of its peers.
//!
//! A path that begins with `@` is a name in the network namespace, and no file.
//!
//! Source: unix(7), `SO_PEERCRED`; flock(2).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags};

use crate::error::{Code, Error, Result, check};
use crate::wait::poll_readable;

pub use rustix::net::SocketType;

/// `SO_PASSRIGHTS`: descriptors may be sent to the socket. Source:
/// include/uapi/asm-generic/socket.h, Linux 6.16.
const PASS_RIGHTS: libc::c_int = 83;
/// Longest wait for another process that replaces the file of a dead process at the same time.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes of a socket's path, or of a name with its `@`: the size of `sun_path`. The longest
/// path is without the NUL at its end, which Linux does not need.
const PATH_BYTES_MAX: usize = 108;
/// Most connections that wait to be accepted.
const WAITING_MAX: i32 = 512;

/// A socket that listens. Its file is removed when the socket is dropped.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    /// The file to remove with the socket, and the numbers that distinguish it from another file of
    /// its name.
    file: Option<(PathBuf, [u64; 2])>,
}

impl Listener {
    /// Listens at `path`. The file belongs to this process's user, and processes that may write it
    /// by `mode` can connect. A socket of this user at `path` on which no process listens is
    /// replaced; a link is not followed.
    ///
    /// Peers can send no descriptors, where the kernel knows that (6.16).
    ///
    /// # Errors
    /// `E-BUSY` if something else is at the path, `E-SYSTEM` for a path that cannot be used.
    pub fn bind(path: &Path, mode: u32, kind: SocketType) -> Result<Listener> {
        let what = || format!("cannot listen at {}", path.display());
        let fail = |call: &'static str| move |e| Error::os(Code::System, what(), call, e);
        let address = address(path).map_err(|e| match e {
            Errno::NAMETOOLONG => too_long(path, what()),
            e => fail("address")(e),
        })?;
        let fd = socket(kind).map_err(fail("socket"))?;
        // On a kernel without this option, any process can send descriptors; the receiving code
        // closes them.
        let _ = pass_rights(&fd, false);
        // Set the mode on the socket, so that the file has it from the start.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode)).map_err(fail("fchmod"))?;
        // Hold the lock from the check of an existing file until this socket listens.
        let lock = if is_abstract(path) { None } else { Some(lock_folder(path)) };
        let mut bound = rustix::net::bind(&fd, &address);
        if bound == Err(Errno::ADDRINUSE)
            && matches!(lock, Some(Ok(_)))
            && taken_by(path, &address).is_none()
        {
            let _ = std::fs::remove_file(path);
            bound = rustix::net::bind(&fd, &address);
        }
        bound.map_err(|e| match e {
            Errno::ADDRINUSE => {
                let (why, fix) = taken_by(path, &address)
                    .map_or_else(|| left(&lock), |(why, fix)| (why.to_owned(), fix));
                Error::new(Code::Busy, what(), format!("{why} (EADDRINUSE from bind)")).fix(fix)
            }
            e => fail("bind")(e).fix("name a path in an existing directory that this user owns"),
        })?;
        let file = std::fs::symlink_metadata(path).ok().filter(|_| !is_abstract(path));
        let file = file.map(|at| (absolute(path), inode(&at)));
        let listener = Listener { fd, file };
        rustix::net::listen(&listener.fd, WAITING_MAX).map_err(fail("listen"))?;
        Ok(listener)
    }

    /// Returns the next peer, if one is waiting. Calls on its descriptor never block.
    ///
    /// # Errors
    /// The system's own, without descriptors or memory.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::accept_with(&self.fd, flags) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some((path, ours)) = &self.file else { return };
        if std::fs::symlink_metadata(path).is_ok_and(|at| inode(&at) == *ours) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the user of the process at the other end, as it was when that process connected or began
/// to listen.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_user(socket: impl AsFd) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Returns this process's effective user.
#[must_use]
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Connects to the socket of type `kind` that listens at `path`; calls on the descriptor never
/// block. The peer can send no descriptors, where the kernel knows that (6.16).
///
/// # Errors
/// ECONNREFUSED or ENOENT if none does, EAGAIN if too many wait to be accepted, EPROTOTYPE if it is
/// of another type.
pub fn connect(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let fd = socket(kind)?;
    // As in `Listener::bind`. Set it before the peer knows the socket, so that none is under way.
    let _ = pass_rights(&fd, false);
    rustix::net::connect(&fd, &address(path)?)?;
    Ok(fd)
}

/// Returns a path that names the same socket after the process has changed its working directory.
/// It is `path` itself if the absolute one would be too long for a socket.
#[must_use]
pub fn lasting(path: &Path) -> PathBuf {
    let lasting = if is_abstract(path) { path.to_owned() } else { absolute(path) };
    if lasting.as_os_str().len() > PATH_BYTES_MAX { path.to_owned() } else { lasting }
}

/// Returns the absolute path, or `path` itself if the working directory cannot be read.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Makes a socket whose calls never block.
fn socket(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
}

/// Sets whether peers may send descriptors to a socket.
pub(crate) fn pass_rights(fd: &OwnedFd, wanted: bool) -> io::Result<()> {
    let value = libc::c_int::from(wanted);
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of a local variable.
    let done = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, PASS_RIGHTS, value, len)
    };
    Ok(check(done).map(drop)?)
}

/// Returns whether peers may send descriptors to a socket.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.16, where they always may.
pub(crate) fn passes_rights(fd: &OwnedFd) -> io::Result<bool> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to one local variable, and the length to
    // another.
    let done = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, PASS_RIGHTS, value, &raw mut len)
    };
    check(done)?;
    Ok(value != 0)
}

/// Locks the folder of `path` against another process that checks the same leftover file.
fn lock_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder.unwrap_or(Path::new(".")), flags, Mode::empty())?;
    let until = Instant::now() + TAKEOVER_TIMEOUT;
    loop {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(folder),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                let _ = poll_readable(&[], Some(Duration::from_millis(1)));
            }
            Err(e) => return Err(e),
        }
    }
}

fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().first() == Some(&b'@')
}

fn address(path: &Path) -> rustix::io::Result<SocketAddrUnix> {
    match path.as_os_str().as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
        path => SocketAddrUnix::new(path),
    }
}

/// Returns the error of a path that is too long for a socket.
fn too_long(path: &Path, what: String) -> Error {
    let bytes = path.as_os_str().len();
    let why = format!(
        "its path has {bytes} bytes, and that of a UNIX socket has at most {PATH_BYTES_MAX}"
    );
    let fix = format!(
        "name a path of at most {PATH_BYTES_MAX} bytes, as one relative to the working directory"
    );
    Error::new(Code::System, what, why).fix(fix)
}

/// The reason and the remedy if a process listens at the path.
const LISTENED: (&str, &str) = ("another process listens there", "end it, or use another path");

/// Returns the reason why a socket that no process listens on was not replaced, and the remedy.
fn left(lock: &Option<rustix::io::Result<OwnedFd>>) -> (String, &'static str) {
    let what = "an ended process of this user left that socket";
    let why = match lock {
        Some(Err(e)) => format!("{what}, and its folder cannot be locked to replace it: {e}"),
        _ => format!("{what}, and it cannot be removed"),
    };
    (why, "remove the file, or use another path")
}

/// Returns the reason why an existing file must not be replaced, and the remedy; `None` for a
/// socket of this process's user on which no process listens.
fn taken_by(path: &Path, address: &SocketAddrUnix) -> Option<(&'static str, &'static str)> {
    let other = "use another path, or remove the file if no program needs it";
    let file = std::fs::symlink_metadata(path).ok().filter(|_| !is_abstract(path));
    let Some(file) = file else { return Some(LISTENED) };
    if !file.file_type().is_socket() {
        return Some(("that file is not a socket", other));
    }
    let refused = || socket(SocketType::STREAM).and_then(|fd| rustix::net::connect(&fd, address));
    if refused() != Err(Errno::CONNREFUSED) {
        return Some(LISTENED);
    }
    let is_own = file.uid() == own_user();
    (!is_own).then_some(("an ended process of another user left that socket", other))
}

fn inode(at: &std::fs::Metadata) -> [u64; 2] {
    [at.dev(), at.ino()]
}

#[cfg(test)]
pub(crate) mod testing {
    use std::path::PathBuf;

    /// Returns a path of this test's own.
    pub fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("linerate-{}-{name}.sock", std::process::id()))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::path;
    use super::*;
    use std::os::unix::fs::symlink;

    fn bind(path: &Path) -> Result<Listener> {
        Listener::bind(path, 0o600, SocketType::STREAM)
    }

    fn connect(path: &Path) -> io::Result<OwnedFd> {
        super::connect(path, SocketType::STREAM)
    }

    /// Leaves a socket behind as SIGKILL does.
    fn leave(path: &Path) {
        let mut dead = bind(path).unwrap();
        dead.file = None;
    }

    #[test]
    fn socket_of_a_dead_process_is_replaced_and_that_of_a_living_one_is_not() {
        let path = path("left");
        let listener = bind(&path).unwrap();
        let e = bind(&path).unwrap_err();
        assert_eq!(e.code, Code::Busy);
        assert!(e.why.contains("another process listens"), "{e}");
        // As SIGKILL leaves it: the descriptor closed, the file there.
        let mut listener = listener;
        listener.file = None;
        drop(listener);
        assert!(path.exists() && connect(&path).is_err());
        let listener = bind(&path).unwrap();
        // Its successor's file is not taken away with it.
        std::fs::remove_file(&path).unwrap();
        let successor = bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
        drop(successor);
    }

    #[test]
    fn a_left_socket_whose_folder_is_locked_is_not_called_a_listener() {
        let folder = std::env::temp_dir().join(format!("linerate-{}-locked", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("left.sock");
        leave(&path);
        let held = lock_folder(&path).unwrap();
        let e = bind(&path).unwrap_err();
        assert!(e.code == Code::Busy && e.why.contains("cannot be locked"), "{e}");
        drop(held);
        drop(bind(&path).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn socket_file_has_its_mode_from_the_first_moment() {
        use std::os::unix::fs::PermissionsExt;
        let path = path("mode");
        let listener = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
    }

    /// Tests several starters that replace the file of a dead process at one time: exactly one
    /// listens, and the file exists.
    #[test]
    fn one_of_many_starters_takes_a_left_file_over() {
        for round in 0..50 {
            let path = path("starters");
            let mut dead = bind(&path).unwrap();
            dead.file = None;
            drop(dead);
            let bound: Vec<_> = std::thread::scope(|scope| {
                let bind = || bind(&path).ok();
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(bound.len(), 1, "round {round}");
            assert!(connect(&path).is_ok(), "round {round}");
        }
    }

    #[test]
    fn a_path_that_cannot_be_used_is_told_with_the_remedy() {
        let e = bind(Path::new("/no/such/directory/x.sock")).unwrap_err();
        assert!(e.fix.contains("directory"), "{e}");
        let name = format!("@{}-", std::process::id());
        for first in ["/no/such/directory/", &name] {
            let of = |bytes: usize| format!("{first}{}", "x".repeat(bytes - first.len()));
            match bind(Path::new(&of(108))) {
                Ok(_) => assert!(first.starts_with('@')),
                Err(e) => assert!(!first.starts_with('@') && e.fix.contains("that this"), "{e}"),
            }
            let e = bind(Path::new(&of(109))).unwrap_err();
            assert!(e.why.contains("has 109 bytes") && e.why.ends_with("at most 108"), "{e}");
            assert!(e.fix.contains("at most 108 bytes"), "{e}");
        }
    }

    #[test]
    fn what_is_not_a_dead_socket_of_this_user_stays_where_it_is() {
        let (path, dead) = (path("other"), path("pointed-at"));
        let refused = |why: &str| {
            let e = bind(&path).unwrap_err();
            assert!(e.code == Code::Busy && e.why.contains(why) && !e.fix.is_empty(), "{e}");
        };
        std::fs::write(&path, "a file").unwrap();
        refused("not a socket");
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        std::fs::remove_file(&path).unwrap();
        leave(&dead);
        symlink(&dead, &path).unwrap();
        refused("not a socket");
        std::fs::remove_file(&dead).unwrap();
        refused("not a socket");
        assert!(path.is_symlink() && !dead.exists(), "a link to nothing is not followed");
        std::fs::remove_file(&path).unwrap();
        leave(&path);
        let another = own_user() ^ 1;
        if let Err(e) = std::os::unix::fs::chown(&path, Some(another), None) {
            std::fs::remove_file(&path).unwrap();
            // A user namespace may have no other user: EINVAL.
            assert!(matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL)), "{e}");
            return eprintln!("skipped: only root can give a socket to another user: {e}");
        }
        refused("another user");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn peer_is_known_by_its_user() {
        let path = path("user");
        let listener = bind(&path).unwrap();
        let _near = connect(&path).unwrap();
        let far = listener.accept().unwrap().unwrap();
        assert_eq!(peer_user(&far).unwrap(), own_user());
    }
}
