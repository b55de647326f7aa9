//! A handle with which another thread, or a signal handler, ends the waits of a port's owner.
//!
//! Owner: each queue owns its end; handles keep the doorbell open, so that a handle that outlives
//!        its port does nothing.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use linerate_skb::Result;
use linerate_sys::wait::EventFd;

/// A handle that ends waits: see [`Port::waker`](crate::Port::waker).
#[derive(Debug, Clone)]
pub struct Waker {
    bells: Arc<[Arc<WakeBell>]>,
}

/// A doorbell with a count of its rings, by which the owner notices a ring without a syscall.
#[derive(Debug)]
pub(crate) struct WakeBell {
    rung: AtomicU32,
    fd: EventFd,
}

impl Waker {
    pub(crate) fn of(bells: impl Iterator<Item = Arc<WakeBell>>) -> Waker {
        Waker { bells: bells.collect() }
    }

    /// Ends the owner's present or next wait, which returns `Ok(false)`. Several calls before that
    /// count as one.
    ///
    /// It may be called by a signal's handler.
    ///
    /// Cost: a syscall for each queue. It never blocks and never fails.
    pub fn wake(&self) {
        // Count at all queues before the first doorbell rings: an owner that it wakes takes all of
        // the counts, so that no later wait ends for the same use.
        for bell in self.bells.iter() {
            bell.rung.fetch_add(1, Ordering::Release);
        }
        self.bells.iter().for_each(|bell| bell.fd.signal());
    }
}

/// The owner's end of a waker.
#[derive(Debug)]
pub(crate) struct WakeEnd {
    bell: Arc<WakeBell>,
    seen: u32,
}

impl WakeEnd {
    pub fn new() -> Result<WakeEnd> {
        Ok(WakeEnd {
            bell: Arc::new(WakeBell { rung: AtomicU32::new(0), fd: EventFd::new()? }),
            seen: 0,
        })
    }

    pub fn bell(&self) -> Arc<WakeBell> {
        self.bell.clone()
    }

    /// Returns true if the waker was used since the last call that returned true.
    ///
    /// Cost: a load; a syscall if it was.
    pub fn take(&mut self) -> bool {
        let rung = self.bell.rung.load(Ordering::Acquire);
        if rung == self.seen {
            return false;
        }
        self.seen = rung;
        self.bell.fd.drain();
        true
    }

    /// Returns the result of `take`, after a poll(2), and clears the doorbell even if the count is
    /// unchanged, as after a ring that comes later than the call that returned true for it.
    pub fn take_polled(&mut self) -> bool {
        self.bell.fd.drain();
        self.take()
    }
}

impl AsFd for WakeEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use linerate_skb::{Batch, Pool};

    use crate::{Moderation, Port, wait_any};

    const LONG: Option<Duration> = Some(Duration::from_secs(20));

    fn pair(pool: &Pool) -> (Port, Port) {
        Port::pair(64, pool).unwrap()
    }

    fn pool() -> Pool {
        Pool::builder().frames(1024).build().unwrap()
    }

    #[test]
    fn a_wake_ends_the_wait_under_way_or_the_next_one_and_no_other() {
        let pool = pool();
        let (mut port, _other) = pair(&pool);
        let waker = port.waker().unwrap();
        waker.wake();
        waker.clone().wake();
        let start = Instant::now();
        assert_eq!(port.wait(None), Ok(false));
        assert_eq!(port.wait(Some(Duration::from_millis(1))), Ok(false));
        assert!(start.elapsed() >= Duration::from_millis(1), "the second one was left");
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        assert_eq!(port.wait(None), Ok(false));
        thread.join().unwrap();
    }

    #[test]
    fn packets_come_as_before_and_a_wake_is_noticed_among_them() {
        let pool = pool();
        let (mut port, mut other) = pair(&pool);
        let waker = port.waker().unwrap();
        let mut batch = Batch::with_capacity(8);
        other.alloc(&mut batch, 8);
        other.xmit(&mut batch);
        assert_eq!(port.wait(LONG), Ok(true));
        waker.wake();
        assert_eq!(port.wait(LONG), Ok(false), "although packets wait");
        assert_eq!(port.wait(LONG), Ok(true));
        assert_eq!(port.rx(&mut batch), 8);
    }

    #[test]
    fn any_of_several_ports_is_woken_and_each_queue_of_a_port() {
        let pool = pool();
        let ((mut a, _a_end), (mut b, _b_end)) = (pair(&pool), pair(&pool));
        let waker = b.waker().unwrap();
        waker.wake();
        assert_eq!(wait_any(&mut [&mut a, &mut b], None), Ok(false));
        b.set_moderation(Moderation::Busy);
        waker.wake();
        assert_eq!(b.wait(None), Ok(false), "while it spins");
        waker.wake();
        assert_eq!(b.into_queues()[0].wait(None), Ok(false));

        let mut port = Port::open_with("null:,queues=2", &pool).unwrap();
        let waker = port.waker().unwrap();
        waker.wake();
        for mut one in port.split() {
            assert_eq!(one.wait_for(crate::Want::Frames, None), Ok(false));
        }
    }

    #[test]
    fn a_doorbell_that_rings_after_its_wait_has_returned_ends_no_other() {
        let pool = pool();
        let ((mut a, _a_end), (mut b, _b_end)) = (pair(&pool), pair(&pool));
        let (waker, time) = (a.waker().unwrap(), Duration::from_millis(20));
        let late = || waker.bells[0].fd.signal();
        let start = Instant::now();
        late();
        assert_eq!(a.wait(Some(time)), Ok(false), "nothing came");
        late();
        assert_eq!(wait_any(&mut [&mut a, &mut b], Some(time)), Ok(false), "nothing came");
        assert!(start.elapsed() >= 2 * time, "a wait has ended too early");
        assert_eq!(a.counts().irqs() + b.counts().irqs(), 0);
        waker.wake();
        assert_eq!(a.wait(None), Ok(false));
    }

    #[test]
    fn a_use_that_is_counted_at_some_queues_ends_one_wait_once_all_have_it() {
        let pool = pool();
        let mut port = Port::open_with("null:,queues=2", &pool).unwrap();
        let waker = port.waker().unwrap();
        // Packets always wait, so that a wait returns at once.
        waker.bells[0].rung.fetch_add(1, Ordering::Release);
        assert_eq!(port.wait(LONG), Ok(true), "the use is not complete");
        waker.bells[1].rung.fetch_add(1, Ordering::Release);
        assert_eq!(port.wait(LONG), Ok(false));
        assert_eq!(port.wait(LONG), Ok(true), "it ended a wait already");
        waker.wake();
        assert_eq!((port.wait(LONG), port.wait(LONG)), (Ok(false), Ok(true)));
    }
}
