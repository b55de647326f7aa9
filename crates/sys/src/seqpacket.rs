//! A UNIX socket of whole messages that passes descriptors: the control channel of memif.
//!
//! A path that begins with `@` is a name in the network namespace, and no file.
//!
//! Source: unix(7), SOCK_SEQPACKET, SCM_RIGHTS; seqpacket sockets keep the bounds of messages.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::{Code, Error, Result};

/// Descriptors of one message that are taken; the kernel closes what is beyond.
const FDS_MAX: usize = 2;
/// Connections that may wait to be accepted.
const WAITING_MAX: i32 = 16;

/// A place where peers connect.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    /// The file that goes with it, and what tells it from another of its name.
    file: Option<(PathBuf, [u64; 2])>,
}

impl Listener {
    /// Listens at `path`. A file there that a dead process has left behind is replaced.
    ///
    /// # Errors
    /// `E-BUSY` if somebody listens there, `E-SYSTEM` for a path that cannot be used.
    pub fn bind(path: &Path) -> Result<Listener> {
        let what = || format!("cannot listen at {}", path.display());
        let fail = |call: &'static str| move |e| Error::os(Code::System, what(), call, e);
        let address = address(path).map_err(fail("address"))?;
        let fd = socket().map_err(fail("socket"))?;
        let mut bound = rustix::net::bind(&fd, &address);
        if bound == Err(Errno::ADDRINUSE) && is_left_behind(path, &address) {
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

    /// The next peer, if one waits.
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
    /// Connects to whoever listens at `path`.
    ///
    /// # Errors
    /// ECONNREFUSED or ENOENT if nobody does, EAGAIN if too many wait to be accepted.
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

    /// The next message, if one waits.
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

fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().first() == Some(&b'@')
}

fn address(path: &Path) -> rustix::io::Result<SocketAddrUnix> {
    match path.as_os_str().as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
        path => SocketAddrUnix::new(path),
    }
}

/// True if nobody listens at a path that is taken.
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

    /// A path of this test's own.
    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("linerate-{}-{name}.sock", std::process::id()))
    }

    fn pair(path: &Path) -> (Listener, Seqpacket, Seqpacket) {
        let listener = Listener::bind(path).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let near = Seqpacket::connect(path).unwrap();
        let far = listener.accept().unwrap().unwrap();
        (listener, near, far)
    }

    #[test]
    fn messages_keep_their_bounds_and_bring_descriptors() {
        let (listener, near, far) = pair(&path("bounds"));
        let file = std::fs::File::open("/dev/null").unwrap();
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
    fn what_a_dead_process_left_is_replaced_and_what_lives_is_not() {
        let path = path("left");
        let listener = Listener::bind(&path).unwrap();
        let e = Listener::bind(&path).unwrap_err();
        assert_eq!(e.code, Code::Busy);
        assert!(e.fix.contains("role=client"), "{e}");
        // As SIGKILL leaves it: the descriptor closed, the file there.
        let mut listener = listener;
        listener.file = None;
        drop(listener);
        assert!(path.exists() && Seqpacket::connect(&path).is_err());
        let listener = Listener::bind(&path).unwrap();
        // Its successor's file is not taken away with it.
        std::fs::remove_file(&path).unwrap();
        let successor = Listener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
        drop(successor);
        std::fs::write(&path, "a file").unwrap();
        assert!(Listener::bind(&path).is_err());
        std::fs::remove_file(&path).unwrap();
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
        let e = Listener::bind(Path::new("/no/such/directory/x.sock")).unwrap_err();
        assert!(e.fix.contains("directory"), "{e}");
        let long = "x".repeat(200);
        assert!(Listener::bind(Path::new(&long)).is_err());
    }
}
