//! Threads that have handles on one packet: they share, read, write and free it.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

use crate::{explore, refs};

const BEFORE: u32 = 1;
const WRITTEN: u32 = 7;
const FREED: u32 = u32::MAX;

/// A thread's counter on its page, which lies in memory that may be unmapped when the packet is
/// freed.
pub(crate) struct Counter {
    value: AtomicU64,
    memory: Arc<UnsafeCell<()>>,
}

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.memory.with(|_| ());
        self.value.store(self.value.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, n: u64) {
        self.add(n.wrapping_neg());
    }
}

/// A model of a packet, its frame, and the pages of two threads.
struct Packet {
    refs: AtomicU32,
    /// The bytes. loom reports a read or a write that no order separates from a write.
    bytes: UnsafeCell<u32>,
    extra: [Counter; 2],
    memory: Arc<UnsafeCell<()>>,
    freed: AtomicU32,
}

impl Packet {
    fn new() -> Arc<Packet> {
        let memory = Arc::new(UnsafeCell::new(()));
        let extra = || Counter { value: AtomicU64::new(0), memory: memory.clone() };
        Arc::new(Packet {
            refs: AtomicU32::new(1),
            bytes: UnsafeCell::new(BEFORE),
            extra: [extra(), extra()],
            memory: memory.clone(),
            freed: AtomicU32::new(0),
        })
    }

    /// Returns a handle for each thread, the second one made by `Skb::share`.
    fn shared() -> (Handle, Handle) {
        let first = Handle { packet: Packet::new(), thread: 0 };
        refs::add(&first.packet.refs, true);
        first.packet.extra[0].add(1);
        let second = Handle { packet: first.packet.clone(), thread: 1 };
        (first, second)
    }

    /// Asserts, when no thread has a handle, that the packet was freed once and that `extra` is 0
    /// again.
    fn assert_freed_once(&self) {
        assert_eq!(self.freed.load(Ordering::Relaxed), 1, "times that the frame was freed");
        let extra = self.extra.each_ref().map(|one| one.value.load(Ordering::Relaxed));
        assert_eq!(extra[0].wrapping_add(extra[1]), 0, "handles beyond the first");
    }
}

/// A handle on the packet, which a thread has.
struct Handle {
    packet: Arc<Packet>,
    thread: usize,
}

impl Handle {
    /// Returns one more handle for the same thread, as `Clone` and a later `share` do.
    fn share(&self) -> Handle {
        refs::add(&self.packet.refs, false);
        self.packet.extra[self.thread].add(1);
        Handle { packet: self.packet.clone(), thread: self.thread }
    }

    fn read(&self) -> u32 {
        // SAFETY: no thread writes while there are several handles; if one does, loom reports it.
        let value = self.packet.bytes.with(|bytes| unsafe { *bytes });
        assert_ne!(value, FREED, "read after the free");
        value
    }

    /// Writes the bytes, as `Skb::data_mut` does: in place with the only handle, else into a copy,
    /// whose reader must find the bytes of before. Returns the handle if it is still on this
    /// packet.
    fn write(self) -> Option<Handle> {
        if !refs::is_only(&self.packet.refs) {
            assert_eq!(self.read(), BEFORE);
            self.free();
            return None;
        }
        // SAFETY: this is the only handle; if it is not, loom reports the race.
        self.packet.bytes.with_mut(|bytes| unsafe { *bytes = WRITTEN });
        Some(self)
    }

    /// Releases the handle, as `chain::put_down` does, and frees and unmaps the frame after the
    /// last one.
    fn free(self) {
        let Handle { packet, thread } = self;
        if !refs::release(&packet.refs, &packet.extra[thread]) {
            return;
        }
        // SAFETY: the last handle was released; if it was not, loom reports the race.
        packet.bytes.with_mut(|bytes| unsafe { *bytes = FREED });
        // SAFETY: no other thread changes the count; if one does, loom reports it.
        assert_eq!(unsafe { packet.refs.unsync_load() } & !1, 0, "handles on a freed packet");
        packet.freed.fetch_add(1, Ordering::Relaxed);
        packet.memory.with_mut(|_| ());
    }
}

/// Explores two threads, each with a handle on one packet.
fn explore_two(first: fn(Handle), second: fn(Handle)) {
    explore(move || {
        let (mine, other) = Packet::shared();
        let packet = mine.packet.clone();
        let other = thread::spawn(move || second(other));
        first(mine);
        other.join().unwrap();
        packet.assert_freed_once();
    });
}

fn read_and_free(handle: Handle) {
    assert_eq!(handle.read(), BEFORE, "written beside a reader");
    handle.free();
}

fn write_and_free(handle: Handle) {
    if let Some(handle) = handle.write() {
        assert_eq!(handle.read(), WRITTEN);
        handle.free();
    }
}

fn share_read_and_free(handle: Handle) {
    let another = handle.share();
    read_and_free(handle);
    read_and_free(another);
}

#[test]
fn shared_packet_is_freed_once_after_its_last_reader() {
    explore_two(read_and_free, read_and_free);
}

#[test]
fn handles_shared_again_keep_the_packet() {
    explore_two(share_read_and_free, share_read_and_free);
}

#[test]
fn packet_is_written_by_its_only_owner_and_copied_by_others() {
    explore_two(write_and_free, read_and_free);
    explore_two(write_and_free, write_and_free);
}

#[test]
fn packet_that_is_shared_again_is_not_written() {
    explore_two(write_and_free, share_read_and_free);
}
