//! A UNIX socket for whole messages and descriptors: the control channel of memif.
//!
//! A path that begins with `@` is a name in the network namespace, and no file.
//!
//! Source: unix(7), SOCK_SEQPACKET, SCM_RIGHTS; seqpacket sockets keep the bounds of messages.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType,
};

use crate::error::{Code, Result};
use crate::unix::{self, pass_rights, passes_rights};

/// Most descriptors of one message: the kernel's limit (SCM_MAX_FD). With room for all of them,
/// here and in the process's table, the kernel does not close any itself; closing an unknown file
/// could block for ever.
const FDS_MAX: usize = 253;

/// Returns an unused name in the network namespace: `@PREFIX-` and 64 random bits.
///
/// # Errors
/// Those of getrandom(2).
pub fn secret_name(prefix: &str) -> io::Result<String> {
    let mut bits = [0; 8];
    // SAFETY: the kernel writes at most the array's length, and the array is a local variable of
    // this function.
    let n = unsafe { libc::getrandom(bits.as_mut_ptr().cast(), bits.len(), 0) };
    match usize::try_from(n) {
        Ok(8) => Ok(format!("@{prefix}-{:016x}", u64::from_ne_bytes(bits))),
        Ok(_) => Err(Errno::INTR.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// A socket to which peers connect.
#[derive(Debug)]
pub struct Listener(unix::Listener);

impl Listener {
    /// Listens at `path`. The file belongs to this process's user, and processes that may write it
    /// by `mode` can connect. Replaces a file that a dead process has left there.
    ///
    /// Peers can send no descriptors before [`Seqpacket::take_descriptors`], where the kernel knows
    /// that (6.16).
    ///
    /// # Errors
    /// Those of that call.
    pub fn bind(path: &Path, mode: u32) -> Result<Listener> {
        let bound = unix::Listener::bind(path, mode, SocketType::SEQPACKET);
        bound.map(Listener).map_err(|e| match e.code {
            Code::Busy => e.fix("end it, use another path, or connect to it with role=client"),
            _ => e,
        })
    }

    /// Returns the next peer, if one is waiting.
    ///
    /// # Errors
    /// Those of [`unix::Listener::accept`].
    pub fn accept(&self) -> io::Result<Option<Seqpacket>> {
        Ok(self.0.accept()?.map(|fd| Seqpacket { fd }))
    }

    /// Lets no further peer connect. Those that wait can still be accepted.
    pub fn shut(&self) {
        // It fails only for a socket that does not listen.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One end of a connection. Its calls never block.
#[derive(Debug)]
pub struct Seqpacket {
    fd: OwnedFd,
}

/// A received message.
#[derive(Debug, Default)]
pub struct Received {
    /// The message's length; 0 at the end of the connection.
    pub len: usize,
    /// True if the message was longer than the buffer, or had more descriptors than allowed.
    pub cut: bool,
    /// The message's descriptors.
    pub fds: Vec<OwnedFd>,
}

impl Seqpacket {
    /// Returns the user of the process at the other end, as it was when that process connected or
    /// began to listen.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn peer_user(&self) -> io::Result<u32> {
        unix::peer_user(&self.fd)
    }

    /// Allows the peer to send descriptors.
    pub fn take_descriptors(&self) {
        // A kernel without this option always accepts descriptors.
        let _ = pass_rights(&self.fd, true);
    }

    /// Returns true if the kernel refuses the descriptors that the peer sends: from Linux 6.16 on,
    /// before [`Seqpacket::take_descriptors`]. Then no descriptor waits to be received, either.
    ///
    /// Cost: one syscall.
    #[must_use]
    pub fn refuses_descriptors(&self) -> bool {
        passes_rights(&self.fd).is_ok_and(|passes| !passes)
    }

    /// Connects to the socket that listens at `path`.
    ///
    /// The peer can send no descriptors before [`Seqpacket::take_descriptors`], where the kernel
    /// knows that (6.16).
    ///
    /// # Errors
    /// ECONNREFUSED or ENOENT if none does, EAGAIN if too many wait to be accepted.
    pub fn connect(path: &Path) -> io::Result<Seqpacket> {
        unix::connect(path, SocketType::SEQPACKET).map(|fd| Seqpacket { fd })
    }

    /// Sends a message, with a descriptor if there is one.
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

    /// Returns the next message, if one is waiting. A caller that must not block leaves room for
    /// 253 descriptors in the process's table (RLIMIT_NOFILE): in this call, the kernel closes
    /// those for which there is no room.
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

#[cfg(test)]
mod tests {
    use super::*;

    use crate::unix::testing::path;
    use std::path::PathBuf;

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
    fn secret_names_differ() {
        let [a, b] = [(); 2].map(|()| secret_name("linerate-test").unwrap());
        assert!(a != b && a.starts_with("@linerate-test-") && a.len() == 31, "{a}");
    }

    #[test]
    fn descriptors_are_refused_until_they_are_taken() {
        let (_listener, near, far) = pair(&path("rights"));
        assert_eq!(near.peer_user().unwrap(), rustix::process::geteuid().as_raw());
        if let Err(e) = passes_rights(&near.fd) {
            assert_eq!(e.raw_os_error(), Some(libc::ENOPROTOOPT), "{e}");
            assert!(!near.refuses_descriptors() && !far.refuses_descriptors());
            return eprintln!("skipped: no SO_PASSRIGHTS before Linux 6.16");
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        for (from, to) in [(&near, &far), (&far, &near)] {
            assert!(to.refuses_descriptors());
            let refused = from.send(b"x", Some(file.as_fd())).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }
        far.take_descriptors();
        assert!(!far.refuses_descriptors());
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
    fn received_descriptors_are_closed_when_a_program_is_executed() {
        let name = secret_name("exec").unwrap();
        let listener = Listener::bind(Path::new(&name), 0o600).unwrap();
        let client = Seqpacket::connect(Path::new(&name)).unwrap();
        let server = listener.accept().unwrap().unwrap();
        server.take_descriptors();
        client.send(b"x", Some(listener.as_fd())).unwrap();
        let got = server.receive(&mut [0; 8]).unwrap().unwrap();
        let flags = rustix::io::fcntl_getfd(&got.fds[0]).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}
