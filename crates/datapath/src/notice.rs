//! Wake-ups for threads that wait for the end of an engine, so that they need not poll.
//!
//! A worker sends one when it goes to sleep and may be the last worker that does, when the health
//! of one of its ports has changed, and when its thread has ended: never for a packet. The waiting
//! thread then reads the workers' slots.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use linerate_port::Error;

/// The notice of an engine, shared by its workers.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    word: Mutex<Word>,
    given: Condvar,
    /// Workers that have not ended.
    unended: AtomicU32,
    port_failed: AtomicBool,
    /// True if a program has asked to end the wait for the engine.
    woken: AtomicBool,
}

#[derive(Debug, Default)]
struct Word {
    /// Number of notifications so far.
    notices: u64,
    /// Threads that have returned.
    over: usize,
    /// The error of the first thread that failed.
    failed: Option<Error>,
}

impl Notice {
    /// Counts a worker as not ended: a new one, or one that has work again.
    pub fn unended(&self) {
        self.unended.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a worker as ended.
    pub fn ended(&self) {
        self.unended.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns true if every worker has ended.
    ///
    /// A worker counts itself before it calls this, so the last worker to end gets true.
    pub fn all_ended(&self) -> bool {
        self.unended.load(Ordering::Acquire) == 0
    }

    /// Wakes every waiting thread, to check its condition.
    pub fn tell(&self) {
        self.tell_that(|_| ());
    }

    /// Notifies of a port that has failed for good; its error is in the statistics already.
    #[cold]
    pub fn tell_port_failed(&self) {
        self.port_failed.store(true, Ordering::Release);
        self.tell();
    }

    /// Ends the present or next wait for the engine.
    pub fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.tell();
    }

    /// Returns true if [`Notice::wake`] was called since the last time.
    pub fn take_woken(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }

    /// Notifies of the end of a thread, with the error if it failed.
    pub fn tell_over(&self, failed: Option<Error>) {
        self.tell_that(|word| {
            word.over += 1;
            word.failed = word.failed.take().or(failed);
        });
    }

    fn tell_that(&self, what: impl FnOnce(&mut Word)) {
        let mut word = self.word();
        what(&mut word);
        word.notices += 1;
        drop(word);
        self.given.notify_all();
    }

    /// Returns true once a port has failed for good.
    pub fn port_failed(&self) -> bool {
        self.port_failed.load(Ordering::Acquire)
    }

    /// Returns the number of worker threads that have ended.
    pub fn over(&self) -> usize {
        self.word().over
    }

    /// Returns the error of the first thread that failed.
    pub fn failed(&self) -> Option<Error> {
        self.word().failed.clone()
    }

    /// Calls `ask` now and after every notification, until `ask` returns an answer or the time
    /// `until` is reached.
    pub fn wait<T>(&self, until: Option<Instant>, ask: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            // Read the count before the check, so that a notification after the check ends the wait
            // below.
            let known = self.word().notices;
            if let Some(answer) = ask() {
                return Some(answer);
            }
            let nothing_new = |word: &mut Word| word.notices == known;
            let word = self.word();
            let Some(until) = until else {
                drop(self.given.wait_while(word, nothing_new));
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            let woken = self.given.wait_timeout_while(word, left, nothing_new);
            if woken.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                return ask();
            }
        }
    }

    fn word(&self) -> MutexGuard<'_, Word> {
        self.word.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_wait_ends_with_the_word_that_brings_the_answer_and_with_its_time() {
        let notice = Arc::new(Notice::default());
        let soon = Instant::now().checked_add(Duration::from_millis(20));
        assert_eq!(notice.wait(soon, || None::<()>), None);
        let teller = notice.clone();
        let thread = std::thread::spawn(move || {
            for _ in 0..1000 {
                teller.tell();
            }
            teller.tell_over(None);
        });
        let over = || (notice.over() == 1).then_some(());
        assert_eq!(notice.wait(None, over), Some(()));
        thread.join().unwrap();
    }
}
