//! A batch of frames, received by one system call from a socket without a ring: each frame can be
//! read as soon as it has arrived.
//!
//! Owner: [`RecvBatch`] owns the arrays and the memory that `recvmmsg` writes, allocated once.
//! Between two calls only this process writes them, which is why frames can be lent as slices.
//!
//! ```text
//! slot      | .. | vnet 10 | data ...            |     slot_bytes, one a message
//!                ^ iov      ^ FRAME_AT
//! control   | cmsghdr, tpacket_auxdata | cmsghdr, timespec |
//! ```
//!
//! Source: recvmmsg(2), packet(7) PACKET_AUXDATA, net/packet/af_packet.c packet_recvmsg.

use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;

use rustix::io::Errno;

use super::PacketSocket;
use super::rx_frame::{RxFrame, Vlan};
use crate::error::check;
use crate::vnet::{VNET_HDR_BYTES, VnetHdr};

/// Most frames of one batch.
pub const RECEIVED_MAX: usize = 32;

/// Offset of the data in a slot, so that it is aligned with and without an offload header.
const FRAME_AT: usize = 16;
/// Frames begin at a multiple of this.
const SLOT_ALIGN: usize = 64;
const CMSG_HDR_BYTES: usize = size_of::<libc::cmsghdr>();
const CONTROL_BYTES: usize = 128;
const NAME_BYTES: usize = size_of::<libc::sockaddr_ll>();
const _: () = assert!(VNET_HDR_BYTES <= FRAME_AT);
const _: () = assert!(
    2 * CMSG_HDR_BYTES
        + size_of::<libc::tpacket_auxdata>().next_multiple_of(8)
        + size_of::<libc::timespec>().next_multiple_of(8)
        <= CONTROL_BYTES
);
const _: () = assert!(align_of::<libc::cmsghdr>() <= 8);

/// Memory for what the kernel reports of a frame beside its data; aligned as a `cmsghdr`.
#[repr(C, align(8))]
struct Ancillary {
    /// The bytes of two control messages, each a multiple of 8 bytes long.
    control: [u8; CONTROL_BYTES],
    /// The bytes of a `sockaddr_ll`.
    name: [u8; NAME_BYTES],
}

/// The arrays and the memory of a batch, which are reused for every batch.
pub struct RecvBatch {
    msgs: Vec<libc::mmsghdr>,
    iov: Vec<libc::iovec>,
    ancillary: Vec<Ancillary>,
    data: Vec<u8>,
    frame_bytes: usize,
    slot_bytes: usize,
    vnet: bool,
    /// Frames of the batch, and the index of the next one to read.
    filled: usize,
    next: usize,
}

// SAFETY: only `recvmmsg` in `fill` follows the pointers in `msgs` and `iov`, which `fill` has made
// from exclusive borrows of the memory that `self` owns. Between calls they are only numbers.
unsafe impl Send for RecvBatch {}

impl RecvBatch {
    /// Creates an empty batch for frames of up to `frame_bytes` bytes.
    pub(super) fn new(frame_bytes: usize, vnet: bool) -> RecvBatch {
        let slot_bytes = (FRAME_AT + frame_bytes).next_multiple_of(SLOT_ALIGN);
        let ancillary = || Ancillary { control: [0; CONTROL_BYTES], name: [0; NAME_BYTES] };
        // SAFETY: mmsghdr consists of integers and pointers, for which all zeroes is a valid value.
        let msg = || unsafe { std::mem::zeroed::<libc::mmsghdr>() };
        let segment = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        RecvBatch {
            msgs: std::iter::repeat_with(msg).take(RECEIVED_MAX).collect(),
            iov: vec![segment; RECEIVED_MAX],
            ancillary: std::iter::repeat_with(ancillary).take(RECEIVED_MAX).collect(),
            data: vec![0; slot_bytes * RECEIVED_MAX],
            frame_bytes,
            slot_bytes,
            vnet,
            filled: 0,
            next: 0,
        }
    }

    /// Receives up to `most` frames that wait at `socket`, at most [`RECEIVED_MAX`].
    ///
    /// Shape:  frames of the socket -> the batch; unread frames of the batch stay, and then nothing
    ///         is received. Returns `None` if more frames may wait.
    /// Errors: what ended the batch: EAGAIN if no other frame waits; ENETDOWN once after the
    ///         interface was set down or removed; EINVAL if the next frame was one whose offload
    ///         the header cannot say, which the kernel has dropped; others of recvmmsg(2).
    /// Cost:   one syscall, which copies the frames; a second one if fewer came. No allocation.
    /// Source: net/socket.c do_recvmmsg, which keeps an error behind frames for the socket's next
    ///         call.
    pub fn fill(&mut self, socket: &PacketSocket, most: usize) -> Option<Errno> {
        if self.frames_left() > 0 {
            return None;
        }
        (self.filled, self.next) = (0, 0);
        let most = most.min(RECEIVED_MAX);
        self.point(most);
        // Without MSG_TRUNC, the length of a cut message is that of its received part.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: `msgs` has RECEIVED_MAX entries, and `most` is at most that. `point` made each of
        // the first `most` point to its own segment, control buffer and name in `self`, with their
        // lengths; `&mut self` keeps that memory alive, and no reference to it is used during the
        // call. A null timeout is allowed.
        let received = check(unsafe {
            libc::recvmmsg(
                socket.fd.as_raw_fd(),
                self.msgs.as_mut_ptr(),
                most as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        });
        self.filled = (*received.as_ref().unwrap_or(&0) as usize).min(most);
        match received {
            // A later call of another kind, such as one that sends, would report the error.
            Ok(_) if self.filled < most => Some(socket.take_error().unwrap_or(Errno::AGAIN)),
            Ok(_) => None,
            Err(e) => Some(e),
        }
    }

    /// Points the first `most` messages to their memory: the kernel has overwritten the lengths.
    fn point(&mut self, most: usize) {
        let header = if self.vnet { VNET_HDR_BYTES } else { 0 };
        let slots = self.data.chunks_exact_mut(self.slot_bytes);
        let parts = self.msgs.iter_mut().zip(&mut self.iov).zip(&mut self.ancillary).zip(slots);
        for (((msg, segment), ancillary), slot) in parts.take(most) {
            let bytes = &mut slot[FRAME_AT - header..FRAME_AT + self.frame_bytes];
            segment.iov_base = bytes.as_mut_ptr().cast();
            segment.iov_len = bytes.len();
            let msg = &mut msg.msg_hdr;
            (msg.msg_iov, msg.msg_iovlen) = (std::ptr::from_mut(segment), 1);
            msg.msg_name = ancillary.name.as_mut_ptr().cast();
            msg.msg_namelen = ancillary.name.len() as libc::socklen_t;
            msg.msg_control = ancillary.control.as_mut_ptr().cast();
            msg.msg_controllen = CONTROL_BYTES as _;
            msg.msg_flags = 0;
        }
    }

    /// Returns the next frame, or `None` at the end of the batch.
    ///
    /// Shape:  the frame is lent until the next call.
    /// Errors: none.
    /// Cost:   reads what the kernel reported of the frame (four cache lines); no syscall.
    pub fn next_frame(&mut self) -> Option<RxFrame<'_>> {
        let at = self.next;
        (at < self.filled).then(|| {
            self.next += 1;
            self.frame(at)
        })
    }

    /// Moves back by one frame, so that [`RecvBatch::next_frame`] returns the frame read last
    /// again.
    pub fn unread(&mut self) {
        self.next = self.next.saturating_sub(1);
    }

    /// Returns the number of unread frames.
    #[must_use]
    pub fn frames_left(&self) -> usize {
        self.filled - self.next
    }

    fn frame(&self, at: usize) -> RxFrame<'_> {
        let (msg, ancillary) = (&self.msgs[at], &self.ancillary[at]);
        let slot = &self.data[at * self.slot_bytes..][..self.slot_bytes];
        let header = if self.vnet { VNET_HDR_BYTES } else { 0 };
        let len = (msg.msg_len as usize).saturating_sub(header);
        let vnet = slot[FRAME_AT - VNET_HDR_BYTES..].first_chunk().copied();
        // The type of the length differs between C libraries.
        let told: usize = msg.msg_hdr.msg_controllen as _;
        let control = &ancillary.control[..told.min(CONTROL_BYTES)];
        let ControlMessages { aux, time } = ControlMessages::of(control);
        RxFrame {
            data: &slot[FRAME_AT..][..len.min(self.frame_bytes)],
            len: len as u32,
            vnet: vnet.filter(|_| self.vnet).map(VnetHdr::from_bytes),
            vlan: Vlan::of(aux.tp_status, aux.tp_vlan_tci, aux.tp_vlan_tpid),
            status: aux.tp_status,
            pkttype: ancillary.name[offset_of!(libc::sockaddr_ll, sll_pkttype)],
            sec: time.tv_sec as u32,
            nsec: time.tv_nsec as u32,
        }
    }
}

impl std::fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvBatch")
            .field("frames_left", &self.frames_left())
            .finish_non_exhaustive()
    }
}

/// The control messages of a frame; zero if the kernel has sent none.
struct ControlMessages {
    aux: libc::tpacket_auxdata,
    time: libc::timespec,
}

impl ControlMessages {
    /// Reads control messages; a length that reaches beyond `control` ends them.
    fn of(control: &[u8]) -> ControlMessages {
        // SAFETY: both consist of integers, for which all zeroes is a valid value.
        let mut messages: ControlMessages = unsafe { std::mem::zeroed() };
        let mut rest = control;
        while let Some(header) = copy::<libc::cmsghdr>(rest) {
            let len: usize = header.cmsg_len as _;
            let Some(value) = rest.get(CMSG_HDR_BYTES..len) else { break };
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    messages.aux = copy(value).unwrap_or(messages.aux);
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    messages.time = copy(value).unwrap_or(messages.time);
                }
                _ => {}
            }
            rest = rest.get(len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        }
        messages
    }
}

/// A type of integers only.
///
/// # Safety
/// Every bit pattern is a valid value.
unsafe trait Integers: Copy {}
// SAFETY: its fields are integers.
unsafe impl Integers for libc::cmsghdr {}
// SAFETY: as above.
unsafe impl Integers for libc::tpacket_auxdata {}
// SAFETY: as above.
unsafe impl Integers for libc::timespec {}

/// Returns the `T` at the start of `bytes`.
fn copy<T: Integers>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: `bytes` is as long as a T; `Integers` promises that every bit pattern is one, and the
    // read requires no alignment.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a control message with this length field.
    fn message(level: i32, kind: i32, len: usize, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; CMSG_HDR_BYTES];
        let len_at = offset_of!(libc::cmsghdr, cmsg_len);
        bytes[len_at..len_at + size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
        for (at, value) in [
            (offset_of!(libc::cmsghdr, cmsg_level), level),
            (offset_of!(libc::cmsghdr, cmsg_type), kind),
        ] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(size_of::<usize>()), 0);
        bytes
    }

    #[test]
    fn control_messages_are_read_as_far_as_their_lengths_are_right() {
        let aux: Vec<u8> = (1..=20).collect();
        let whole = |len| message(libc::SOL_PACKET, libc::PACKET_AUXDATA, len, &aux);
        let right = CMSG_HDR_BYTES + aux.len();
        let other = message(libc::SOL_SOCKET, libc::SCM_RIGHTS, CMSG_HDR_BYTES + 4, &[9; 4]);
        let both = [other, whole(right)].concat();
        assert_eq!(ControlMessages::of(&both).aux.tp_status.to_ne_bytes(), [1, 2, 3, 4]);
        for cut in 0..both.len() - 4 {
            assert_eq!(ControlMessages::of(&both[..cut]).aux.tp_status, 0, "{cut}");
        }
        for len in [0, 1, CMSG_HDR_BYTES - 1, CMSG_HDR_BYTES, right - 1, 1000, usize::MAX] {
            assert_eq!(ControlMessages::of(&whole(len)).aux.tp_status, 0, "{len}");
        }
    }
}
