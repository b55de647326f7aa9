//! Completion queues, and the descriptor that is readable when one has a completion.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::abi;
use super::library::{Device, errno_of, status_text};
use crate::error::{Code, Error, Result};

/// A channel of completion events: its descriptor is readable after a completion for which an event
/// was asked.
#[derive(Debug)]
pub struct Events {
    device: Arc<Device>,
    raw: NonNull<abi::CompChannel>,
}

// SAFETY: all calls of libibverbs may be made by several threads at once.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

impl Events {
    /// Creates a channel, whose descriptor never blocks.
    ///
    /// # Errors
    /// `E-SYSTEM` without descriptors.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Events>> {
        // SAFETY: the context is open.
        let raw = unsafe { (device.functions().ibv_create_comp_channel)(device.raw.as_ptr()) };
        let raw = device.made(raw, "ibv_create_comp_channel")?;
        let events = Events { device: device.clone(), raw };
        let fail = |e| Error::os(Code::System, "cannot wait for an RDMA device", "fcntl", e);
        let flags = rustix::fs::fcntl_getfl(&events).map_err(fail)?;
        rustix::fs::fcntl_setfl(&events, flags | OFlags::NONBLOCK).map_err(fail)?;
        Ok(Arc::new(events))
    }

    /// Reads and acknowledges the events that have come; returns how many.
    ///
    /// Cost: a syscall for each event, and one more.
    pub fn drain(&self) -> usize {
        let functions = self.device.functions();
        let mut n = 0;
        loop {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel exists, and its descriptor does not block.
            let ret = unsafe {
                (functions.ibv_get_cq_event)(self.raw.as_ptr(), &mut queue, &mut context)
            };
            if ret != 0 || queue.is_null() {
                return n;
            }
            // SAFETY: the queue is the one of the event, which is acknowledged once. It exists:
            // destroying a queue waits for the acknowledgement of its events.
            unsafe { (functions.ibv_ack_cq_events)(queue, 1) };
            n += 1;
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor for as long as it lives.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: the channel is destroyed once, after all its queues, which hold references to it.
        unsafe { (self.device.functions().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completed request: `struct ibv_wc`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Completion {
    /// The number of the request.
    pub id: u64,
    /// 0 if the request succeeded.
    pub status: u32,
    /// The kind of the request; only of one that succeeded.
    pub opcode: u32,
    /// The device's own number of an error.
    pub vendor_error: u32,
    /// The received bytes; of a datagram, with the 40 bytes of the route in front.
    pub bytes: u32,
    /// A number that the sender of a message has added to it.
    pub immediate: u32,
    /// The number of the queue pair of this side.
    pub pair: u32,
    /// The number of the queue pair that has sent a datagram.
    pub sender: u32,
    /// Bits that say what else is known.
    pub flags: u32,
    /// The place of the partition's key.
    pub key_index: u16,
    /// The number of the sender's port on an InfiniBand fabric.
    pub lid: u16,
    /// The service level of the sender's route, and the bits of our own port's number.
    pub level: [u8; 2],
}
const _: () = assert!(size_of::<Completion>() == 48);

impl Completion {
    /// The status of a request that was not executed, because its queue pair had failed or was
    /// ended before.
    pub const FLUSHED: u32 = 5;
    /// The flag of a datagram whose route is in the 40 bytes in front of it.
    pub const HAS_ROUTE: u32 = 1;

    /// Returns true if the request succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status == 0
    }
}

/// A queue of completions.
#[derive(Debug)]
pub struct Completions {
    device: Arc<Device>,
    pub(super) raw: NonNull<abi::OfContext>,
    _events: Arc<Events>,
}

// SAFETY: as for `Events`.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    /// Creates a queue for `len` completions, whose events go to `events`. Queues of different
    /// numbers `n` interrupt different CPUs, as far as the device has so many interrupts.
    ///
    /// # Errors
    /// `E-SYSTEM` if the device has none so long.
    pub fn new(events: &Arc<Events>, len: u32, n: usize) -> Result<Arc<Completions>> {
        let device = &events.device;
        let len = c_int::try_from(len).unwrap_or(c_int::MAX);
        // SAFETY: the context is open, and the number does not change.
        let vectors = unsafe { (*device.raw.as_ptr()).num_comp_vectors };
        let vectors = usize::try_from(vectors).unwrap_or(0).max(1);
        // SAFETY: the context is open, and the channel exists.
        let raw = unsafe {
            (device.functions().ibv_create_cq)(
                device.raw.as_ptr(),
                len,
                ptr::null_mut(),
                events.raw.as_ptr(),
                (n % vectors) as c_int,
            )
        };
        let raw = device.made(raw, "ibv_create_cq")?;
        Ok(Arc::new(Completions { device: device.clone(), raw, _events: events.clone() }))
    }

    /// Takes the completions that have come, up to the length of `out`; returns how many.
    ///
    /// Cost: a call of the device's driver; no syscall.
    ///
    /// # Errors
    /// The driver's, after which the queue is of no use: it overran, or the device is gone.
    pub fn poll(&self, out: &mut [Completion]) -> rustix::io::Result<usize> {
        let most = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: `Completion` is the header's structure, of which the call writes at most `most`.
        let n = unsafe {
            let context = (*self.raw.as_ptr()).context;
            ((*context).ops.poll_cq)(self.raw.as_ptr().cast(), most, out.as_mut_ptr())
        };
        // The driver's word is bounded, so that no caller looks beyond what it was given.
        usize::try_from(n).map(|n| n.min(out.len())).map_err(|_| Errno::IO)
    }

    /// Asks for an event at the next completion. One that came before makes no event: poll again
    /// afterwards.
    ///
    /// Cost: a call of the device's driver; a syscall with a device that is emulated.
    ///
    /// # Errors
    /// The driver's.
    pub fn arm(&self) -> rustix::io::Result<()> {
        // SAFETY: the queue exists.
        let ret = unsafe {
            let context = (*self.raw.as_ptr()).context;
            ((*context).ops.req_notify_cq)(self.raw.as_ptr().cast(), 0)
        };
        if ret == 0 { Ok(()) } else { Err(errno_of(ret)) }
    }

    /// Returns the library's words for a completion that is not ok.
    #[must_use]
    pub fn text(&self, completion: &Completion) -> String {
        status_text(self.device.library, completion.status)
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // Destroying waits for the acknowledgement of all events, and those that wait are
        // acknowledged here.
        self._events.drain();
        // SAFETY: the queue is destroyed once, after its queue pairs, which hold references to it.
        unsafe { (self.device.functions().ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}
