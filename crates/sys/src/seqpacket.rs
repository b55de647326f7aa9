//! A UNIX socket of whole messages that passes descriptors: the control channel of memif.
//!
//! A path that begins with `@` is a name in the network namespace, and no file.
//!
//! Source: unix(7), SOCK_SEQPACKET, SCM_RIGHTS; seqpacket sockets keep the bounds of messages.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::{Code, Error, Result};
use crate::wait::poll_readable;

/// Descriptors of one message: as many as the kernel lets a sender attach (SCM_MAX_FD). None is left for the
/// kernel to close at once, because to close an unknown file can take for ever.
const FDS_MAX: usize = 253;
/// `SO_PASSRIGHTS`: descriptors may be sent to the socket. Source: include/uapi/asm-generic/socket.h, Linux 6.16.
const PASS_RIGHTS: libc::c_int = 83;
/// Longest time for another process that takes over a file of a dead one at the same moment.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(1);
/// Connections that may wait to be accepted.
const WAITING_MAX: i32 = 16;

/// Returns a name in the network namespace that is not taken: `@PREFIX-` and 64 random bits.
///
/// # Errors
/// Those of getrandom(2).
pub fn secret_name(prefix: &str) -> io::Result<String> {
    let mut bits = [0; 8];
    // SAFETY: the kernel writes as many bytes as there are to an array that is ours.
    let n = unsafe { libc::getrandom(bits.as_mut_ptr().cast(), bits.len(), 0) };
    match usize::try_from(n) {
        Ok(8) => Ok(format!("@{prefix}-{:016x}", u64::from_ne_bytes(bits))),
        Ok(_) => Err(Errno::INTR.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// A place where peers connect.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    /// The file that goes with it, and what tells it from another of its name.
    file: Option<(PathBuf, [u64; 2])>,
}

impl Listener {
    /// Listens at `path`, where those connect whom `mode` lets write the file, which belongs to this process's
    /// user. A file there that a dead process has left behind is replaced.
    ///
    /// Peers can send no descriptors before [`Seqpacket::take_descriptors`], where the kernel knows that (6.16).
    ///
    /// # Errors
    /// `E-BUSY` if another socket listens there, `E-SYSTEM` for a path that cannot be used.
    pub fn bind(path: &Path, mode: u32) -> Result<Listener> {
        let what = || format!("cannot listen at {}", path.display());
        let fail = |call: &'static str| move |e| Error::os(Code::System, what(), call, e);
        let address = address(path).map_err(fail("address"))?;
        let fd = socket().map_err(fail("socket"))?;
        // Without these, descriptors come from strangers, and are closed elsewhere.
        let _ = pass_rights(&fd, false);
        // The file has the mode of the socket from its first moment on.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode)).map_err(fail("fchmod"))?;
        // From the look at a file that is taken to the moment at which this socket listens.
        let lock = if is_abstract(path) { None } else { Some(lock_folder(path)) };
        let mut bound = rustix::net::bind(&fd, &address);
        if bound == Err(Errno::ADDRINUSE)
            && matches!(lock, Some(Ok(_)))
            && is_left_behind(path, &address)
        {
            let _ = std::fs::remove_file(path);
            bound = rustix::net::bind(&fd, &address);
        }
        bound.map_err(|e| match e {
            Errno::ADDRINUSE => {
                let why = "another process listens there (EADDRINUSE from bind)";
                Error::new(Code::Busy, what(), why)
                    .fix("end it, take another path, or connect to it with role=client")
            }
            e => fail("bind")(e).fix("name a path in a directory that exists and is yours"),
        })?;
        let file = std::fs::symlink_metadata(path).ok().filter(|_| !is_abstract(path));
        let file = file.map(|at| (path.to_owned(), inode(&at)));
        let listener = Listener { fd, file };
        rustix::net::listen(&listener.fd, WAITING_MAX).map_err(fail("listen"))?;
        Ok(listener)
    }

    /// Returns the next peer, if one waits.
    ///
    /// # Errors
    /// The system's own, without descriptors or memory.
    pub fn accept(&self) -> io::Result<Option<Seqpacket>> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::accept_with(&self.fd, flags) {
            Ok(fd) => Ok(Some(Seqpacket { fd })),
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

/// One end of a connection. It never blocks.
#[derive(Debug)]
pub struct Seqpacket {
    fd: OwnedFd,
}

/// A message that came.
#[derive(Debug, Default)]
pub struct Received {
    /// Its bytes; 0 at the end of the connection.
    pub len: usize,
    /// It was longer than the room for it, or brought more descriptors than are taken.
    pub cut: bool,
    /// The descriptors that it brought.
    pub fds: Vec<OwnedFd>,
}

impl Seqpacket {
    /// Returns the user of the process at the other end, as it was when it connected or began to listen.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn peer_user(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(&self.fd)?.uid.as_raw())
    }

    /// Lets the peer send descriptors.
    pub fn take_descriptors(&self) {
        // A kernel that does not know it takes them anyway.
        let _ = pass_rights(&self.fd, true);
    }

    /// Connects to the socket that listens at `path`.
    ///
    /// # Errors
    /// ECONNREFUSED or ENOENT if none does, EAGAIN if too many wait to be accepted.
    pub fn connect(path: &Path) -> io::Result<Seqpacket> {
        let fd = socket()?;
        rustix::net::connect(&fd, &address(path)?)?;
        Ok(Seqpacket { fd })
    }

    /// Sends a message, with a descriptor or none.
    ///
    /// # Errors
    /// EAGAIN if the peer does not read, EPIPE if it is gone.
    ///
    /// Cost: one syscall.
    pub fn send(&self, message: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::NOBUFS.into());
        }
        let bytes = [io::IoSlice::new(message)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(&self.fd, &bytes, &mut control, flags)? {
            sent if sent == message.len() => Ok(()),
            _ => Err(Errno::MSGSIZE.into()),
        }
    }

    /// Returns the next message, if one waits.
    ///
    /// # Errors
    /// ECONNRESET if the peer is gone and had not read everything.
    ///
    /// Cost: one syscall.
    pub fn receive(&self, message: &mut [u8]) -> io::Result<Option<Received>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [io::IoSliceMut::new(message)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = match rustix::net::recvmsg(&self.fd, &mut bytes, &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                fds.extend(some);
            }
        }
        let cut = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        Ok(Some(Received { len: got.bytes, cut, fds }))
    }
}

impl AsFd for Seqpacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Says whether descriptors may be sent to a socket.
fn pass_rights(fd: &OwnedFd, wanted: bool) -> io::Result<()> {
    let value = libc::c_int::from(wanted);
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of a number that is ours.
    let done = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, PASS_RIGHTS, value, len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Locks the folder of `path` against another process that looks at the same file that was left behind.
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

/// Returns true if no socket listens at a path that is taken.
fn is_left_behind(path: &Path, address: &SocketAddrUnix) -> bool {
    let is_socket = || {
        use std::os::unix::fs::FileTypeExt;
        std::fs::symlink_metadata(path).is_ok_and(|at| at.file_type().is_socket())
    };
    let refused = || socket().and_then(|fd| rustix::net::connect(&fd, address));
    !is_abstract(path) && is_socket() && refused() == Err(Errno::CONNREFUSED)
}

fn inode(at: &std::fs::Metadata) -> [u64; 2] {
    use std::os::unix::fs::MetadataExt;
    [at.dev(), at.ino()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a path of this test's own.
    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("linerate-{}-{name}.sock", std::process::id()))
    }

    fn pair(path: &Path) -> (Listener, Seqpacket, Seqpacket) {
        let listener = Listener::bind(path, 0o600).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let near = Seqpacket::connect(path).unwrap();
        let far = listener.accept().unwrap().unwrap();
        (listener, near, far)
    }

    #[test]
    fn messages_keep_their_bounds_and_bring_descriptors() {
        let (listener, near, far) = pair(&path("bounds"));
        let file = std::fs::File::open("/dev/null").unwrap();
        far.take_descriptors();
        near.send(&[1; 128], Some(file.as_fd())).unwrap();
        near.send(&[2; 4], None).unwrap();
        let mut bytes = [0; 128];
        let got = far.receive(&mut bytes).unwrap().unwrap();
        assert_eq!((got.len, got.cut, got.fds.len(), bytes), (128, false, 1, [1; 128]));
        let got = far.receive(&mut bytes).unwrap().unwrap();
        assert_eq!((got.len, got.fds.len()), (4, 0));
        assert!(far.receive(&mut bytes).unwrap().is_none());
        near.send(&[3; 129], None).unwrap();
        assert!(far.receive(&mut bytes).unwrap().unwrap().cut);
        drop(near);
        assert_eq!(far.receive(&mut bytes).unwrap().unwrap().len, 0);
        drop(listener);
        assert!(!path("bounds").exists());
    }

    #[test]
    fn socket_of_a_dead_process_is_replaced_and_that_of_a_living_one_is_not() {
        let path = path("left");
        let listener = Listener::bind(&path, 0o600).unwrap();
        let e = Listener::bind(&path, 0o600).unwrap_err();
        assert_eq!(e.code, Code::Busy);
        assert!(e.fix.contains("role=client"), "{e}");
        // As SIGKILL leaves it: the descriptor closed, the file there.
        let mut listener = listener;
        listener.file = None;
        drop(listener);
        assert!(path.exists() && Seqpacket::connect(&path).is_err());
        let listener = Listener::bind(&path, 0o600).unwrap();
        // Its successor's file is not taken away with it.
        std::fs::remove_file(&path).unwrap();
        let successor = Listener::bind(&path, 0o600).unwrap();
        drop(listener);
        assert!(path.exists());
        drop(successor);
        std::fs::write(&path, "a file").unwrap();
        assert!(Listener::bind(&path, 0o600).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn secret_names_differ() {
        let [a, b] = [(); 2].map(|()| secret_name("linerate-test").unwrap());
        assert!(a != b && a.starts_with("@linerate-test-") && a.len() == 31, "{a}");
    }

    #[test]
    fn socket_file_has_its_mode_from_the_first_moment() {
        use std::os::unix::fs::PermissionsExt;
        let path = path("mode");
        let listener = Listener::bind(&path, 0o600).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
    }

    /// Starters that replace the file of a dead process at the same moment: one of them listens, at a file that
    /// is there.
    #[test]
    fn one_of_many_starters_takes_a_left_file_over() {
        for round in 0..50 {
            let path = path("starters");
            let mut dead = Listener::bind(&path, 0o600).unwrap();
            dead.file = None;
            drop(dead);
            let bound: Vec<_> = std::thread::scope(|scope| {
                let bind = || Listener::bind(&path, 0o600).ok();
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(bound.len(), 1, "round {round}");
            assert!(Seqpacket::connect(&path).is_ok(), "round {round}");
        }
    }

    #[test]
    fn descriptors_are_refused_until_they_are_taken() {
        let (listener, near, far) = pair(&path("rights"));
        assert_eq!(near.peer_user().unwrap(), rustix::process::geteuid().as_raw());
        if pass_rights(&listener.fd, false).is_err() {
            return eprintln!("skipped: no SO_PASSRIGHTS before Linux 6.16");
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(near.send(b"x", Some(file.as_fd())).is_err());
        far.take_descriptors();
        near.send(b"x", Some(file.as_fd())).unwrap();
        assert_eq!(far.receive(&mut [0; 8]).unwrap().unwrap().fds.len(), 1);
    }

    #[test]
    fn a_name_with_an_at_is_no_file() {
        let name = PathBuf::from(format!("@linerate-{}", std::process::id()));
        let (_listener, near, far) = pair(&name);
        far.send(b"hello", None).unwrap();
        assert_eq!(near.receive(&mut [0; 8]).unwrap().unwrap().len, 5);
        assert!(!name.exists());
    }

    #[test]
    fn a_path_that_cannot_be_used_is_told_with_the_remedy() {
        let e = Listener::bind(Path::new("/no/such/directory/x.sock"), 0o600).unwrap_err();
        assert!(e.fix.contains("directory"), "{e}");
        let long = "x".repeat(200);
        assert!(Listener::bind(Path::new(&long), 0o600).is_err());
    }
}
