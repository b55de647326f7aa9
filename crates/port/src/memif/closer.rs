//! Threads that close objects received from peers.
//!
//! close(2) can wait: for the unsent data of a TCP socket that lingers, for the owner of a file system, for the
//! pages of a large mapping. So descriptors, sockets with unread descriptors in them and mappings are dropped by
//! threads for which no other thread waits.
//!
//! ```text
//!   dispose ──► waiting: [user a][user a][user b]… ──► 8 threads, of which 2 at most drop objects of one user, and
//!                                                      7 at most objects of users
//! ```
//!
//! A peer can keep a thread for as long as it likes, by a file of a file system that it serves. So a user can neither
//! take all threads nor all places of objects that wait: only the peers of that user are refused.
//!
//! The socket of a refused peer has taken no descriptors, so its close does not wait, and it does not count as an
//! object of the user ([`super::channel::Channel::close_user`]). Before Linux 6.16 every socket takes descriptors, so
//! a user that is refused often enough takes all places.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use rustix::net::sockopt::set_socket_linger;

/// An object whose drop may block.
pub(super) struct Waste {
    /// The user of the peer that it came from; `None` for an object that no peer can keep from being dropped.
    user: Option<u32>,
    object: Box<dyn Send>,
}

impl Waste {
    /// Returns an object of our own, or a mapping of a peer's memory.
    pub fn own(object: impl Send + 'static) -> Waste {
        Waste { user: None, object: Box::new(object) }
    }

    /// Returns an object that came from a peer of this user; as [`Waste::own`] without a user.
    pub fn of(user: impl Into<Option<u32>>, object: impl Send + 'static) -> Waste {
        Waste { user: user.into(), object: Box::new(object) }
    }
}

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
/// Most threads that drop objects of one user at a time.
const THREADS_OF_USER: usize = 2;
/// The same for all users together. One thread is left for the objects that no peer can keep from being dropped.
const THREADS_OF_USERS: usize = THREADS_MAX - 1;
/// Limit of the number of objects that are not dropped yet. At this number no more peers are accepted.
pub(super) const PENDING_MAX: usize = 128;
/// The same for the objects and the peers of one user.
pub(super) const PENDING_OF_USER: usize = 32;

/// The closing threads, each started when it is needed.
pub(super) struct Closer {
    shared: Arc<Shared>,
    threads: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when an object arrives, when one is dropped, and at the end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waste>,
    /// Users of the objects that threads are dropping.
    dropping: Vec<Option<u32>>,
    ended: bool,
}

impl State {
    /// Removes and returns the oldest object whose user has a thread left.
    fn next(&mut self) -> Option<Waste> {
        let dropping = &self.dropping;
        let threads_of = |user| dropping.iter().filter(|other| **other == user).count();
        let has_room = dropping.iter().flatten().count() < THREADS_OF_USERS;
        let may_go = |waste: &Waste| {
            waste.user.is_none() || (has_room && threads_of(waste.user) < THREADS_OF_USER)
        };
        let place = self.waiting.iter().position(may_go)?;
        self.waiting.remove(place)
    }

    /// Returns the number of objects not dropped yet: all, and those of `user`.
    fn pending(&self, user: Option<u32>) -> (usize, usize) {
        let users =
            self.waiting.iter().map(|waste| waste.user).chain(self.dropping.iter().copied());
        (self.waiting.len() + self.dropping.len(), users.filter(|other| *other == user).count())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops objects until the end, without the lock.
    fn run(&self) {
        let mut state = self.lock();
        loop {
            if let Some(Waste { user, object }) = state.next() {
                state.dropping.push(user);
                drop(state);
                drop(object);
                state = self.lock();
                if let Some(place) = state.dropping.iter().position(|other| *other == user) {
                    state.dropping.swap_remove(place);
                }
                self.changed.notify_all();
            } else if state.ended && state.waiting.is_empty() {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Closer {
    pub fn new() -> Closer {
        Closer { shared: Arc::default(), threads: 0 }
    }

    /// Passes `waste` to a free thread to drop; starts one if possible.
    pub fn dispose(&mut self, waste: Waste) {
        let mut state = self.shared.lock();
        state.waiting.push_back(waste);
        let pending = state.waiting.len() + state.dropping.len();
        drop(state);
        if pending > self.threads && self.threads < THREADS_MAX {
            let shared = self.shared.clone();
            let started = Builder::new().name("memif-close".into()).spawn(move || shared.run());
            self.threads += usize::from(started.is_ok());
        }
        // If no thread runs, the object waits for the next call.
        self.shared.changed.notify_one();
    }

    /// Returns true if so many objects wait, of `user` or in all, that the caller should accept no more peers, of
    /// `user` or at all.
    pub fn is_full(&self, user: Option<u32>) -> bool {
        let (all, own) = self.shared.lock().pending(user);
        all >= PENDING_MAX || (user.is_some() && own >= PENDING_OF_USER)
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// A test object whose drop blocks until the other end of the channel is gone.
    struct Lingering(Receiver<()>);

    impl Drop for Lingering {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    /// Disposes of `n` objects of `user` that block until the returned senders are dropped.
    pub fn block(closer: &mut Closer, user: u32, n: usize) -> Vec<SyncSender<()>> {
        let one = |_| {
            let (sender, receiver) = sync_channel::<()>(0);
            closer.dispose(Waste::of(user, Lingering(receiver)));
            sender
        };
        (0..n).map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::block;
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(10);

    /// A test object that reports its drop to the other end.
    struct Quick(#[allow(dead_code, reason = "dropped")] SyncSender<()>);

    /// Returns true if a quick object is dropped.
    fn drops(closer: &mut Closer, user: Option<u32>) -> bool {
        let (sender, dropped) = sync_channel::<()>(0);
        closer.dispose(Waste { user, object: Box::new(Quick(sender)) });
        dropped.recv_timeout(LONG) == Err(RecvTimeoutError::Disconnected)
    }

    #[test]
    fn objects_of_a_user_that_block_hold_up_no_others() {
        let mut closer = Closer::new();
        let mut blocked = block(&mut closer, 1, PENDING_OF_USER - 1);
        assert!(!closer.is_full(Some(1)));
        blocked.extend(block(&mut closer, 1, 1));
        assert!(closer.is_full(Some(1)) && !closer.is_full(Some(2)) && !closer.is_full(None));
        assert!(drops(&mut closer, Some(2)) && drops(&mut closer, None));
        blocked.extend(block(&mut closer, 2, PENDING_OF_USER));
        assert!(drops(&mut closer, Some(3)) && drops(&mut closer, None));
        blocked.extend((3..5).flat_map(|user| block(&mut closer, user, PENDING_OF_USER)));
        assert!(closer.is_full(None) && closer.is_full(Some(9)));
        // The objects of four users could keep eight threads.
        assert!(drops(&mut closer, None));
        drop(blocked);
        let start = Instant::now();
        while closer.shared.lock().pending(None).0 > 0 {
            assert!(start.elapsed() < LONG);
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_end_after_the_last_object() {
        let mut closer = Closer::new();
        let blocked = block(&mut closer, 1, THREADS_OF_USER + 1);
        let shared = Arc::downgrade(&closer.shared);
        drop((closer, blocked));
        let start = Instant::now();
        while shared.strong_count() > 0 {
            assert!(start.elapsed() < LONG);
            std::thread::yield_now();
        }
    }
}
