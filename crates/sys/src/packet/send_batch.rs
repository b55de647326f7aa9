//! A batch of frames, each in segments, sent by one system call.
//!
//! Owner: [`SendBatch`] owns the arrays that `sendmmsg` reads, allocated once. A [`Sending`] is one
//! use of them; it borrows the segments, so that they cannot go away before they are sent.
//!
//! ```text
//! msgs     | msg 0      | msg 1 | msg 2 |      up to MESSAGES_MAX
//!            |   .------'
//! iov      | hdr seg seg seg | hdr seg | ...   up to SEGMENTS_MAX in all, any share to a message
//!            |
//! headers  | 10 bytes | 10 bytes | ...         one a message
//! ```
//!
//! Source: sendmmsg(2), net/packet/af_packet.c packet_snd.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::error::check;
use crate::vnet::{VNET_HDR_BYTES, VnetHdr};

/// Most messages in one batch.
pub const MESSAGES_MAX: usize = 64;

/// Most segments in one batch, headers included: 64 frames of 20 segments, or 37 superframes of 64
/// KiB in 2 KiB frames (33 segments and the header each).
pub const SEGMENTS_MAX: usize = MESSAGES_MAX * 20;

/// Most segments that the kernel accepts in one message (`UIO_MAXIOV`), including the header.
pub const MESSAGE_SEGMENTS_MAX: usize = 1024;

/// The arrays of a batch, which are reused for every batch.
pub struct SendBatch {
    msgs: Vec<libc::mmsghdr>,
    iov: Vec<libc::iovec>,
    headers: Vec<[u8; VNET_HDR_BYTES]>,
}

// SAFETY: only `Sending::flush` follows the pointers in `msgs` and `iov`, while the Sending holds
// the borrows from which they were made; `start` discards them before the next use. Between uses
// they are only numbers.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// Creates an empty batch; allocates all memory that it will use (about 25 KB).
    #[must_use]
    pub fn new() -> Self {
        SendBatch {
            msgs: Vec::with_capacity(MESSAGES_MAX),
            iov: Vec::with_capacity(SEGMENTS_MAX),
            headers: Vec::with_capacity(MESSAGES_MAX),
        }
    }

    /// Begins a batch; discards messages of an earlier batch that were not sent.
    pub fn start<'seg>(&mut self) -> Sending<'_, 'seg> {
        self.msgs.clear();
        self.iov.clear();
        self.headers.clear();
        Sending { batch: self, first: 0, segments: PhantomData }
    }
}

impl Default for SendBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendBatch").field("messages", &self.msgs.len()).finish_non_exhaustive()
    }
}

/// A batch that is being filled and sent.
#[derive(Debug)]
pub struct Sending<'a, 'seg> {
    batch: &'a mut SendBatch,
    /// Index of the first message that was not sent or skipped.
    first: usize,
    segments: PhantomData<&'seg [u8]>,
}

impl<'seg> Sending<'_, 'seg> {
    /// Appends one message: the header if the socket expects one, then `segments` in order.
    ///
    /// Shape:  the segments stay the caller's and are borrowed until the `Sending` ends; false
    ///         leaves the batch as it was.
    /// Errors: false if the batch is full. A message of more than [`MESSAGE_SEGMENTS_MAX`]
    ///         segments, the header included, fits in no batch, not even an empty one.
    /// Cost:   16 bytes written a segment, 64 a message; no allocation, no syscall.
    #[must_use]
    pub fn add(
        &mut self,
        vnet: Option<&VnetHdr>,
        segments: impl IntoIterator<Item = &'seg [u8]>,
    ) -> bool {
        let SendBatch { msgs, iov, headers } = &mut *self.batch;
        // If `segments` panics, a header without a message stays: `headers` must not grow for it.
        if msgs.len() == MESSAGES_MAX || headers.len() == MESSAGES_MAX {
            return false;
        }
        let start = iov.len();
        let limit = SEGMENTS_MAX.min(start + MESSAGE_SEGMENTS_MAX);
        if let Some(vnet) = vnet {
            if start == limit {
                return false;
            }
            headers.push(vnet.to_bytes());
            let header = headers.as_ptr().wrapping_add(headers.len() - 1);
            iov.push(libc::iovec { iov_base: header.cast_mut().cast(), iov_len: VNET_HDR_BYTES });
        }
        for segment in segments {
            if iov.len() == limit {
                iov.truncate(start);
                headers.truncate(headers.len() - usize::from(vnet.is_some()));
                return false;
            }
            let base = segment.as_ptr().cast_mut().cast();
            iov.push(libc::iovec { iov_base: base, iov_len: segment.len() });
        }
        // SAFETY: mmsghdr consists of integers and pointers, for which all zeroes is a valid value.
        let mut msg: libc::mmsghdr = unsafe { std::mem::zeroed() };
        msg.msg_hdr.msg_iov = iov.as_mut_ptr().wrapping_add(start);
        msg.msg_hdr.msg_iovlen = (iov.len() - start) as _;
        msgs.push(msg);
        true
    }

    /// Returns the number of messages that wait to be sent.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.batch.msgs.len() - self.first
    }

    /// Sends pending messages in order, until all are sent or the kernel refuses one.
    ///
    /// Shape:  returns how many messages were sent now; those leave the batch.
    /// Errors: why the first pending message was refused; it stays pending. EAGAIN (the send buffer
    ///         is full) passes: wait until the socket can be written. ENOBUFS (the device or its
    ///         qdisc is full) passes too, except for a superframe that bypasses the qdisc, see
    ///         [`Options::qdisc_bypass`](super::Options::qdisc_bypass). Others are the message's
    ///         (EMSGSIZE, EINVAL) or the interface's (ENETDOWN, ENXIO): see [`Sending::skip`].
    /// Cost:   one syscall, one more for each time the kernel stops early.
    /// Source: sendmmsg(2).
    pub fn flush(&mut self, socket: impl AsFd) -> (usize, Option<Errno>) {
        let fd = socket.as_fd().as_raw_fd();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let mut sent = 0;
        while self.pending() > 0 {
            let msgs = self.batch.msgs.as_mut_ptr().wrapping_add(self.first);
            let count = self.pending() as libc::c_uint;
            // SAFETY: `count` messages lie at `msgs`. Their iovecs lie in `iov` and their headers
            // in `headers`; neither moves, because they never grow beyond their capacity. The
            // segments are borrowed for 'seg, which this Sending keeps alive. The kernel writes
            // only `msg_len`.
            let ret = check(unsafe { libc::sendmmsg(fd, msgs, count, flags as _) });
            match ret {
                // Nothing was sent, without an error. This result is not documented, so do not
                // repeat the call.
                Ok(0) => return (sent, Some(Errno::AGAIN)),
                Ok(n) => {
                    self.first += n as usize;
                    sent += n as usize;
                }
                Err(e) => return (sent, Some(e)),
            }
        }
        (sent, None)
    }

    /// Drops the first pending message, which [`Sending::flush`] reported as refused.
    pub fn skip(&mut self) {
        self.first = self.batch.msgs.len().min(self.first + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_takes_its_most_messages_and_no_more() {
        let mut batch = SendBatch::new();
        let frame = [0; 60];
        for _ in 0..2 {
            let mut sending = batch.start();
            for _ in 0..MESSAGES_MAX {
                assert!(sending.add(Some(&VnetHdr::NONE), [&frame[..]]));
            }
            assert!(!sending.add(Some(&VnetHdr::NONE), [&frame[..]]));
            assert_eq!(sending.pending(), MESSAGES_MAX);
        }
    }

    #[test]
    fn a_message_that_does_not_fit_leaves_the_batch_as_it_was() {
        let mut batch = SendBatch::new();
        let segment = [0; 1];
        let mut sending = batch.start();
        let most = MESSAGE_SEGMENTS_MAX - 1;
        assert!(!sending.add(Some(&VnetHdr::NONE), vec![&segment[..]; most + 1]));
        assert_eq!((sending.pending(), sending.batch.iov.len()), (0, 0));
        assert!(sending.add(Some(&VnetHdr::NONE), vec![&segment[..]; most]));
        assert!(!sending.add(None, vec![&segment[..]; SEGMENTS_MAX - MESSAGE_SEGMENTS_MAX + 1]));
        assert!(sending.add(None, vec![&segment[..]; SEGMENTS_MAX - MESSAGE_SEGMENTS_MAX]));
        assert!(!sending.add(Some(&VnetHdr::NONE), []));
        assert_eq!((sending.pending(), sending.batch.headers.len()), (2, 1));
    }

    #[test]
    fn segments_that_panic_do_not_move_the_headers_of_other_messages() {
        let mut batch = SendBatch::new();
        let frame = [0; 60];
        let mut sending = batch.start();
        assert!(sending.add(Some(&VnetHdr::NONE), [&frame[..]]));
        for _ in 0..MESSAGES_MAX {
            let broken = std::iter::once_with(|| -> &[u8] { std::panic::panic_any(()) });
            let add = || sending.add(Some(&VnetHdr::NONE), broken);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(add));
        }
        let first = sending.batch.headers.as_ptr().cast_mut().cast();
        assert_eq!(sending.batch.iov[0].iov_base, first);
        assert!(sending.batch.headers.len() <= MESSAGES_MAX && sending.pending() == 1);
    }

    #[test]
    fn a_refused_message_stays_first_until_it_is_skipped() {
        let mut batch = SendBatch::new();
        let (a, b) = (*b"abc", *b"de");
        let (tx, rx) = std::os::unix::net::UnixDatagram::pair().unwrap();
        rx.set_nonblocking(true).unwrap();
        let mut sending = batch.start();
        // Larger than any send buffer: the kernel refuses it and sends neither it nor those behind.
        let huge = vec![0; 64 << 20];
        assert!(sending.add(None, [&a[..], &b[..]]));
        assert!(sending.add(None, [&huge[..]]));
        assert!(sending.add(Some(&VnetHdr::NONE), [&b[..]]));
        assert_eq!(sending.flush(&tx), (1, Some(Errno::MSGSIZE)));
        assert_eq!(sending.flush(&tx), (0, Some(Errno::MSGSIZE)));
        sending.skip();
        assert_eq!(sending.flush(&tx), (1, None));
        assert_eq!(sending.pending(), 0);
        let mut got = [0; 64];
        assert_eq!(rx.recv(&mut got).unwrap(), 5);
        assert_eq!(&got[..5], b"abcde");
        assert_eq!(rx.recv(&mut got).unwrap(), 12);
        assert_eq!(&got[..12], b"\0\0\0\0\0\0\0\0\0\0de");
        assert!(rx.recv(&mut got).is_err());
    }

    #[test]
    fn messages_left_by_a_send_are_not_sent_by_the_next() {
        let mut batch = SendBatch::new();
        let (tx, rx) = std::os::unix::net::UnixDatagram::pair().unwrap();
        rx.set_nonblocking(true).unwrap();
        let gone = vec![1; 8];
        assert!(batch.start().add(None, [&gone[..]]));
        drop(gone);
        assert_eq!(batch.start().flush(&tx), (0, None));
        assert!(rx.recv(&mut [0; 8]).is_err());
    }
}
