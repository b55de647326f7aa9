//! A signal to an eventfd that never blocks, even if another holder of the eventfd has filled its
//! counter or made it blocking.
//!
//! write(2) waits at a counter that is full, if another holder has made the open file blocking. The
//! completion of an asynchronous request signals an eventfd as the kernel's own drivers do: a full
//! counter stays full, and no one waits. The request is a read of no bytes, which is complete when
//! it is submitted.
//!
//! Source: io_submit(2), include/uapi/linux/aio_abi.h, fs/aio.c and fs/eventfd.c
//!         (`eventfd_signal`).

use std::cell::{Cell, OnceCell};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::MemfdFlags;

const PREAD: u16 = 0;
const SIGNAL: u32 = 1;
/// Number of signals after which a thread without a context tries again to get one.
const RETRY_SIGNALS: u32 = 1024;

/// A request: `struct iocb`, on a little-endian machine.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}
const _: () = assert!(size_of::<Request>() == 64);

/// The first fields of the completion ring: `struct aio_ring`.
#[repr(C)]
struct Ring {
    id: u32,
    entries: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
}
const RING_MAGIC: u32 = 0xa10a_10a1;

/// A thread's AIO context, and the file for its empty reads.
struct Context {
    ring: NonNull<Ring>,
    file: OwnedFd,
}

/// A thread's context, if it has got one.
struct Slot {
    context: OnceCell<Context>,
    /// Number of calls until the next attempt to get one.
    wait: Cell<u32>,
}

thread_local! {
    static SLOT: Slot = const { Slot::new() };
}

/// Signals `eventfd`; returns false, and does nothing, if the kernel lacks AIO requests that signal
/// an eventfd, or the thread has no context because the machine has none left (fs.aio-max-nr).
///
/// Cost: one syscall; two more on a thread's first call. Without a context none, but three on the
/// first call and on every 1025th after it.
pub(crate) fn signal(eventfd: BorrowedFd<'_>) -> bool {
    let submit =
        |slot: &Slot| slot.get(Context::new).is_some_and(|context| context.signal(eventfd));
    SLOT.try_with(submit).unwrap_or(false)
}

impl Slot {
    const fn new() -> Slot {
        Slot { context: OnceCell::new(), wait: Cell::new(0) }
    }

    /// Returns the context, which `make` makes at the first call, or at a later one if it fails:
    /// another process may have given contexts back.
    fn get(&self, make: impl FnOnce() -> Option<Context>) -> Option<&Context> {
        if let Some(context) = self.context.get() {
            return Some(context);
        }
        let wait = self.wait.get();
        self.wait.set(wait.checked_sub(1).unwrap_or(RETRY_SIGNALS));
        let made = if wait == 0 { make() } else { None };
        made.map(|context| self.context.get_or_init(|| context))
    }
}

impl Context {
    fn new() -> Option<Context> {
        // Miri has no AIO, and the structures above are those of a little-endian machine. A ring of
        // another layout, by its magic below, is not used either.
        if cfg!(any(miri, not(target_endian = "little"))) {
            return None;
        }
        let file = rustix::fs::memfd_create("linerate-doorbell", MemfdFlags::CLOEXEC).ok()?;
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's id to `id`, a local variable of the size that it
        // expects.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 1, &mut id) };
        let ring =
            NonNull::new(std::ptr::with_exposed_provenance_mut::<Ring>(usize::try_from(id).ok()?))
                .filter(|_| made == 0)?;
        let context = Context { ring, file };
        // SAFETY: the id is the address of the ring, which stays mapped until io_destroy. The
        // kernel made the mapping, so no Rust object lies in it.
        (unsafe { ring.as_ref() }.magic == RING_MAGIC).then_some(context)
    }

    fn signal(&self, eventfd: BorrowedFd<'_>) -> bool {
        let mut request = Request {
            opcode: PREAD,
            file: self.file.as_raw_fd().cast_unsigned(),
            flags: SIGNAL,
            eventfd: eventfd.as_raw_fd().cast_unsigned(),
            ..Request::default()
        };
        let requests = [&raw mut request];
        // SAFETY: the kernel reads the only request, and writes its key, before the call returns;
        // the request reads no bytes into memory.
        let submitted = unsafe {
            libc::syscall(libc::SYS_io_submit, self.ring.as_ptr().addr(), 1, requests.as_ptr())
        };
        // SAFETY: the ring is mapped while the context lives; its words that change are atomics,
        // and only this thread uses them.
        let ring = unsafe { self.ring.as_ref() };
        // Advance the head to free the entry; the completion itself is not needed.
        ring.head.store(ring.tail.load(Ordering::Acquire), Ordering::Release);
        submitted == 1
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: this value owns the context, and nothing reads the ring any more.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.ring.as_ptr().addr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::EventFd;
    use std::os::fd::AsFd;

    /// Returns true, with a message, if the kernel has no asynchronous requests, or no context left
    /// for them.
    fn has_no_contexts() -> bool {
        if cfg!(any(miri, not(target_endian = "little"))) {
            println!("skipped: asynchronous requests are for machines that are little-endian");
            return true;
        }
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's id to `id`, a local variable of the size that it
        // expects.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 1, &mut id) };
        let error = std::io::Error::last_os_error();
        if made == 0 {
            // SAFETY: the id is that of the new context, which has no other user.
            unsafe { libc::syscall(libc::SYS_io_destroy, id) };
            return false;
        }
        assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EAGAIN)), "{error}");
        println!("skipped: no asynchronous requests: {error}");
        true
    }

    #[test]
    fn a_thread_without_a_context_tries_again_seldom() {
        let (slot, tries) = (Slot::new(), Cell::new(0));
        let refused = || {
            tries.set(tries.get() + 1);
            None
        };
        for _ in 0..3 * RETRY_SIGNALS {
            assert!(slot.get(refused).is_none());
        }
        assert_eq!(tries.get(), 3);
        if has_no_contexts() {
            return;
        }
        let mut context = Context::new();
        let got = (0..=RETRY_SIGNALS).any(|_| slot.get(|| context.take()).is_some());
        assert!(got, "the failure is not kept");
    }

    #[test]
    fn any_number_of_signals_is_taken_by_one_context() {
        let bell = EventFd::new().unwrap();
        if has_no_contexts() {
            return;
        }
        for _ in 0..10_000 {
            assert!(signal(bell.as_fd()));
        }
        assert!(bell.drain() && !bell.drain());
        // Full and blocking: a write would wait for a reader.
        rustix::io::write(bell.as_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::io::ioctl_fionbio(bell.as_fd(), false).unwrap();
        let start = std::time::Instant::now();
        (0..1000).for_each(|_| assert!(signal(bell.as_fd())));
        assert!(start.elapsed() < std::time::Duration::from_secs(5) && bell.drain());
        let no_bell = rustix::fs::memfd_create("none", MemfdFlags::CLOEXEC).unwrap();
        assert!(!signal(no_bell.as_fd()));
    }
}
