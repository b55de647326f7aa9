//! Threads that close objects received from peers.
//!
//! close(2) can wait: for the unsent data of a TCP socket that lingers, for the owner of a file system, for the
//! pages of a large mapping. So descriptors, sockets with unread descriptors in them and mappings are dropped by
//! threads for which no other thread waits.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use rustix::net::sockopt::set_socket_linger;

/// An object whose drop may block.
pub(super) type Waste = Box<dyn Send>;

/// Descriptors from a peer that are of no use. Only a closing thread drops them, because each call on them may
/// block: a thread of the peer that is stuck in send(2) holds the socket's lock.
pub(super) struct Useless(pub Vec<OwnedFd>);

impl Drop for Useless {
    fn drop(&mut self) {
        for fd in self.0.drain(..) {
            // Without a linger time, closing the socket does not wait for data that its peer does not read. The
            // call fails for other files, whose close does not wait.
            let _ = set_socket_linger(&fd, None);
        }
    }
}

/// Limit of the number of threads, because each may be blocked.
const THREADS_MAX: usize = 8;
/// Limit of the number of objects that wait to be dropped. At this number no more peers are accepted.
const PENDING_MAX: usize = 64;

/// The closing threads, each started when it is needed.
pub(super) struct Closer {
    sender: Sender<Waste>,
    receiver: Arc<Mutex<Receiver<Waste>>>,
    /// Number of objects not dropped yet.
    pending: Arc<AtomicUsize>,
    threads: usize,
}

impl Closer {
    pub fn new() -> Closer {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        Closer { sender, receiver, pending: Arc::default(), threads: 0 }
    }

    /// Passes `waste` to a free thread to drop; starts one if possible.
    pub fn dispose(&mut self, waste: Waste) {
        let pending = self.pending.fetch_add(1, Ordering::Relaxed) + 1;
        if pending > self.threads && self.threads < THREADS_MAX {
            let (receiver, pending) = (self.receiver.clone(), self.pending.clone());
            let started = Builder::new().name("memif-close".into()).spawn(move || {
                let next = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(waste) = next() {
                    drop(waste);
                    pending.fetch_sub(1, Ordering::Relaxed);
                }
            });
            self.threads += usize::from(started.is_ok());
        }
        // If no thread runs, the object waits in the channel: `send` cannot fail, because this
        // struct owns the receiver.
        let _ = self.sender.send(waste);
    }

    /// Returns true if so many objects wait that the caller should accept no more.
    pub fn is_full(&self) -> bool {
        self.pending.load(Ordering::Relaxed) >= PENDING_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{SyncSender, sync_channel};
    use std::time::Duration;

    /// A test object whose drop blocks until the other end of the channel is gone.
    struct Lingering(Receiver<()>);

    impl Drop for Lingering {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    /// A test object that reports its drop to the other end.
    struct Quick(#[allow(dead_code, reason = "dropped")] SyncSender<()>);

    #[test]
    fn waste_that_blocks_does_not_hold_up_other_waste() {
        let mut closer = Closer::new();
        let blocked: Vec<_> = (0..THREADS_MAX - 1)
            .map(|_| {
                let (sender, receiver) = sync_channel::<()>(0);
                closer.dispose(Box::new(Lingering(receiver)));
                sender
            })
            .collect();
        let (sender, dropped) = sync_channel(0);
        closer.dispose(Box::new(Quick(sender)));
        let e = dropped.recv_timeout(Duration::from_secs(10)).unwrap_err();
        assert_eq!(e, std::sync::mpsc::RecvTimeoutError::Disconnected);
        assert!(!closer.is_full());
        let more: Vec<_> = (0..PENDING_MAX)
            .map(|_| {
                let (sender, receiver) = sync_channel::<()>(0);
                closer.dispose(Box::new(Lingering(receiver)));
                sender
            })
            .collect();
        assert!(closer.is_full());
        drop((blocked, more));
        let start = std::time::Instant::now();
        while closer.pending.load(Ordering::Relaxed) > 0 {
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
    }
}
