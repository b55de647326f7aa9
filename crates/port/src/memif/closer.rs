//! Threads that close objects received from peers.
//!
//! close(2) can wait: for the unsent data of a TCP socket that lingers, for the owner of a file
//! system, for the pages of a large mapping. So descriptors, sockets with unread descriptors in
//! them and mappings are dropped by threads for which no other thread waits.
//!
//! ```text
//!   dispose ──► waiting: [user a][user a][user b]… ──► 8 threads, of which 2 at most drop objects of one user, and
//!                                                      7 at most objects of users
//! ```
//!
//! A peer can keep a thread for as long as it likes, by a file of a file system that it serves. So
//! a user cannot take all threads.
//!
//! Objects that wait take places in this process's table of descriptors, and a message brings up to
//! 253. In a full table the kernel itself closes what a message brings, in the thread that receives
//! it. So descriptors that wait are counted: peers of a user with many are refused and not heard,
//! and those of all users if there are too many in all of the process.
//!
//! The socket of a refused peer has taken no descriptors, so its close does not wait, and the
//! control thread closes it itself ([`super::turn::Turn::close`]). Before Linux 6.16 every socket
//! takes descriptors, so a user that is refused often enough takes all places.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, getrlimit};

/// An object whose drop may block.
pub(super) struct Waste {
    /// The user of the peer that it came from; `None` for an object that no peer can keep from
    /// being dropped.
    user: Option<u32>,
    /// Number of descriptors in the object; at least 1.
    weight: usize,
    object: Box<dyn Send>,
}

impl Waste {
    /// Returns an object of our own, or a mapping of a peer's memory.
    pub fn own(object: impl Send + 'static) -> Waste {
        Waste { user: None, weight: 1, object: Box::new(object) }
    }

    /// Returns the rings of a queue, with a doorbell in each direction.
    pub fn rings(object: impl Send + 'static) -> Waste {
        Waste { weight: 2, ..Waste::own(object) }
    }

    /// Returns an object with so many descriptors that came from a peer of this user; as
    /// [`Waste::own`] without a user.
    pub fn of(
        user: impl Into<Option<u32>>,
        descriptors: usize,
        object: impl Send + 'static,
    ) -> Waste {
        Waste { user: user.into(), weight: descriptors.max(1), object: Box::new(object) }
    }
}

/// Descriptors from a peer that are of no use. Only a closing thread drops them, because each call
/// on them may block: a thread of the peer that is stuck in send(2) holds the socket's lock.
pub(super) struct Useless(pub Vec<OwnedFd>);

impl Drop for Useless {
    fn drop(&mut self) {
        for fd in self.0.drain(..) {
            // Without a linger time, closing the socket does not wait for data that its peer does
            // not read. The call fails for other files, whose close does not wait.
            let _ = set_socket_linger(&fd, None);
        }
    }
}

/// Limit of the number of threads, because each may be blocked.
const THREADS_MAX: usize = 8;
/// Most threads that drop objects of one user at a time.
const THREADS_OF_USER: usize = 2;
/// The same for all users together. One thread is left for the objects that no peer can keep from
/// being dropped.
const THREADS_OF_USERS: usize = THREADS_MAX - 1;
/// Largest limit of the number of descriptors that are not closed yet, see [`share`]. At the limit
/// no more peers are accepted or heard.
const PENDING_MAX: usize = 1024;
/// Number of descriptors of one user that are not closed yet, at which no more peers of that user
/// are accepted.
pub(super) const PENDING_OF_USER: usize = 32;
/// Number of descriptors of one user that are not closed yet, at which no more messages of its
/// peers are received. It is larger, because the files of a peer that keeps to the protocol wait
/// for a moment, too.
const HEARD_MAX: usize = 2 * PENDING_OF_USER;

/// The closing threads, each started when it is needed.
pub(super) struct Closer {
    shared: Arc<Shared>,
    threads: usize,
    /// Number of descriptors that are not closed yet, of all closers that share it; the next field
    /// is its limit.
    total: &'static AtomicUsize,
    pub most: usize,
}

/// Returns the number of descriptors that may wait for their close in a process that may have
/// `limit` in all. One message more, of 253, leaves room in the usual table of 1024.
fn share(limit: Option<u64>) -> usize {
    let half = limit.and_then(|limit| usize::try_from(limit / 2).ok());
    half.map_or(PENDING_MAX, |half| half.min(PENDING_MAX))
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when an object arrives, when one is dropped, and at the end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Waste, Counted)>,
    /// Users and weights of the objects that threads are dropping.
    dropping: Vec<(Option<u32>, usize)>,
    ended: bool,
}

/// A part of the total, subtracted when it is dropped.
struct Counted(&'static AtomicUsize, usize);

impl Counted {
    fn new(total: &'static AtomicUsize, weight: usize) -> Counted {
        total.fetch_add(weight, Ordering::Relaxed);
        Counted(total, weight)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl State {
    /// Removes and returns the oldest object whose user has a thread left.
    fn next(&mut self) -> Option<(Waste, Counted)> {
        let dropping = &self.dropping;
        let threads_of = |user| dropping.iter().filter(|(other, _)| *other == user).count();
        let of_users = dropping.iter().filter(|(user, _)| user.is_some()).count();
        let has_room = of_users < THREADS_OF_USERS;
        let may_go = |waste: &Waste| {
            waste.user.is_none() || (has_room && threads_of(waste.user) < THREADS_OF_USER)
        };
        let place = self.waiting.iter().position(|(waste, _)| may_go(waste))?;
        self.waiting.remove(place)
    }

    /// Returns the number of descriptors of `user` not closed yet, with those of `more`.
    fn pending(&self, user: u32, more: &[Waste]) -> usize {
        let waiting = self.waiting.iter().map(|(waste, _)| waste).chain(more);
        let all = waiting.map(|waste| (waste.user, waste.weight)).chain(self.dropping.clone());
        all.filter(|(other, _)| *other == Some(user)).map(|(_, weight)| weight).sum()
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
            if let Some((Waste { user, weight, object }, counted)) = state.next() {
                let entry = (user, weight);
                state.dropping.push(entry);
                drop(state);
                drop((object, counted));
                state = self.lock();
                if let Some(place) = state.dropping.iter().position(|other| *other == entry) {
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
    /// Creates a closer that adds to `total` what is not closed yet.
    pub fn new(total: &'static AtomicUsize) -> Closer {
        let most = share(getrlimit(Resource::Nofile).current);
        Closer { shared: Arc::default(), threads: 0, total, most }
    }

    /// Passes `waste` to a free thread to drop; starts one if possible.
    pub fn dispose(&mut self, waste: Waste) {
        let counted = Counted::new(self.total, waste.weight);
        let mut state = self.shared.lock();
        state.waiting.push_back((waste, counted));
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

    /// Returns true if so many descriptors wait, with those of `more`, of `user` or in all, that
    /// the caller should accept no more peers, of `user` or at all.
    pub fn is_full(&self, user: Option<u32>, more: &[Waste]) -> bool {
        let own = user.map_or(0, |user| self.shared.lock().pending(user, more));
        self.all(more) >= self.most || own >= PENDING_OF_USER
    }

    /// Returns true if the caller may receive a message of a peer of `user`, which can have many
    /// descriptors, while those of `more` wait, too.
    pub fn may_hear(&self, user: u32, more: &[Waste]) -> bool {
        let own = self.shared.lock().pending(user, more);
        self.all(more) < self.most && own < HEARD_MAX
    }

    /// Returns the number of descriptors of all users not closed yet, with those of `more`.
    fn all(&self, more: &[Waste]) -> usize {
        let more: usize = more.iter().map(|waste| waste.weight).sum();
        self.total.load(Ordering::Relaxed) + more
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

    impl Closer {
        /// Creates a closer with a total of its own.
        pub fn alone() -> Closer {
            Closer::new(Box::leak(Box::default()))
        }
    }

    /// A test object whose drop blocks until the other end of the channel is gone.
    struct Lingering(Receiver<()>);

    impl Drop for Lingering {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    /// Disposes of an object of `user` with so many descriptors, which blocks until the returned
    /// sender is dropped.
    pub fn block_one(closer: &mut Closer, user: u32, descriptors: usize) -> SyncSender<()> {
        let (sender, receiver) = sync_channel::<()>(0);
        closer.dispose(Waste::of(user, descriptors, Lingering(receiver)));
        sender
    }

    /// Disposes of `n` objects of `user`, each with a descriptor, that block until the returned
    /// senders are dropped.
    pub fn block(closer: &mut Closer, user: u32, n: usize) -> Vec<SyncSender<()>> {
        (0..n).map(|_| block_one(closer, user, 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{block, block_one};
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(10);

    /// A test object that reports its drop to the other end.
    struct Quick(#[allow(dead_code, reason = "dropped")] SyncSender<()>);

    /// Returns true if a quick object is dropped.
    fn drops(closer: &mut Closer, user: Option<u32>) -> bool {
        let (sender, dropped) = sync_channel::<()>(0);
        closer.dispose(Waste::of(user, 1, Quick(sender)));
        dropped.recv_timeout(LONG) == Err(RecvTimeoutError::Disconnected)
    }

    #[test]
    fn objects_of_a_user_that_block_hold_up_no_others() {
        let mut closer = Closer::alone();
        closer.most = 4 * PENDING_OF_USER;
        let mut blocked = block(&mut closer, 1, PENDING_OF_USER - 1);
        assert!(!closer.is_full(Some(1), &[]));
        blocked.extend(block(&mut closer, 1, 1));
        assert!(
            closer.is_full(Some(1), &[])
                && !closer.is_full(Some(2), &[])
                && !closer.is_full(None, &[])
        );
        assert!(drops(&mut closer, Some(2)) && drops(&mut closer, None));
        blocked.extend(block(&mut closer, 2, PENDING_OF_USER));
        assert!(drops(&mut closer, Some(3)) && drops(&mut closer, None));
        blocked.extend((3..5).flat_map(|user| block(&mut closer, user, PENDING_OF_USER)));
        assert!(closer.is_full(None, &[]) && closer.is_full(Some(9), &[]));
        // The objects of four users could keep eight threads.
        assert!(drops(&mut closer, None));
        drop(blocked);
        let start = Instant::now();
        while closer.total.load(Ordering::Relaxed) > 0 {
            assert!(start.elapsed() < LONG);
            std::thread::yield_now();
        }
    }

    #[test]
    fn objects_weigh_as_much_as_they_have_descriptors() {
        /// Most descriptors of a message.
        const MESSAGE: usize = 253;
        assert_eq!([Some(1024), Some(256), None].map(share), [512, 128, PENDING_MAX]);
        let mut closer = Closer::alone();
        closer.most = share(Some(1024));
        let mut blocked = vec![block_one(&mut closer, 1, MESSAGE)];
        assert!(closer.is_full(Some(1), &[]) && !closer.may_hear(1, &[]));
        assert!(
            !closer.is_full(Some(2), &[]) && closer.may_hear(2, &[]) && !closer.is_full(None, &[])
        );
        let more = [Waste::of(2_u32, MESSAGE, ())];
        assert!(!closer.may_hear(2, &more) && closer.may_hear(3, &more));
        blocked.push(block_one(&mut closer, 2, MESSAGE));
        assert!(!closer.is_full(None, &[]) && closer.may_hear(3, &[]));
        blocked.push(block_one(&mut closer, 3, 512 - 2 * MESSAGE));
        assert!(closer.is_full(None, &[]) && !closer.may_hear(4, &[]));
        let other = Closer { shared: Arc::default(), threads: 0, ..closer };
        assert!(other.is_full(None, &[]) && !other.may_hear(4, &[]), "of all closers");
        assert!(drops(&mut closer, None));
    }

    #[test]
    fn threads_end_after_the_last_object() {
        let mut closer = Closer::alone();
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
