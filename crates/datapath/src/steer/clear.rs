//! The page on which a worker publishes how many packets have left it. The stage that divides
//! packets among workers reads the pages of all of them.
//!
//! A worker is *clear* after a turn if no packet waits in it, or in the wrappers of its queues: all
//! packets received so far have left it. After each such turn the worker copies the number of
//! packets that its ring ends received to its page. So a reader that finds that an end has received
//! 1000 packets knows that the first 1000 packets of that ring have left the worker.
//!
//! [`Clear`] is the page, which other threads read. [`Clearing`] is the handle with which the
//! worker writes it.
//!
//! When a worker is dropped, the packets in the rings to it are lost. They are not waited for, so
//! the page then has `u64::MAX` as the number of packets received by each end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use linerate_port::QueueCounts;

use super::pause::Pause;
use crate::napi::Napi;

/// The page of one worker. Only the worker writes it.
#[derive(Debug, Default)]
pub(crate) struct Clear {
    /// The counts of the worker's ring ends, in the order of its queues.
    ends: Box<[EndPage]>,
}

/// Packets that have passed one end of a ring, below its wrappers.
#[derive(Debug, Default)]
struct EndPage {
    /// Packets that had been received when the worker was last clear.
    received: AtomicU64,
    sent: AtomicU64,
    /// Packets that the worker had given to the end, to send or to drop.
    given: AtomicU64,
}

impl Clear {
    pub fn new(ends: usize) -> Arc<Clear> {
        Arc::new(Clear { ends: (0..ends).map(|_| EndPage::default()).collect() })
    }

    /// Returns how many packets received by a ring's end have certainly left the worker; `u64::MAX`
    /// once the worker was dropped. Read it before `sent`.
    pub fn received(&self, end: usize) -> u64 {
        self.ends.get(end).map_or(0, |end| end.received.load(Ordering::Acquire))
    }

    /// Returns the number of packets that a ring's end had sent after the last turn.
    pub fn sent(&self, end: usize) -> u64 {
        self.ends.get(end).map_or(0, |end| end.sent.load(Ordering::Relaxed))
    }

    /// Returns the number of packets that the worker had given to a ring's end after the last turn.
    /// Only the worker reads it.
    pub fn given(&self, end: usize) -> u64 {
        self.ends.get(end).map_or(0, |end| end.given.load(Ordering::Relaxed))
    }

    /// Creates a page of one end, with these packets received and given.
    #[cfg(test)]
    pub fn of(received: u64, given: u64) -> Arc<Clear> {
        let page = Clear::new(1);
        page.ends[0].received.store(received, Ordering::Relaxed);
        page.ends[0].given.store(given, Ordering::Relaxed);
        page
    }

    /// Sets the number of packets that the page's end has received.
    #[cfg(test)]
    pub fn receives(&self, received: u64) {
        self.ends[0].received.store(received, Ordering::Relaxed);
    }
}

/// A worker's handle for writing its page.
#[derive(Debug)]
pub(crate) struct Clearing {
    page: Arc<Clear>,
    /// The indices of the worker's queues that are ends of rings.
    ends: Vec<usize>,
    /// The pauses of the divided devices that the worker serves.
    pauses: Vec<Pause>,
}

impl Clearing {
    pub fn new(page: Arc<Clear>, ends: Vec<usize>, pauses: Vec<Pause>) -> Clearing {
        Clearing { page, ends, pauses }
    }

    /// Writes the page after a turn, and begins or ends pauses.
    // Not inlined, so that the turns of workers without a division cost the same.
    #[inline(never)]
    pub fn turned(&mut self, napis: &[Napi], now: Instant) {
        self.write_sent(napis);
        if napis.iter().all(is_clear) {
            for (page, at) in self.page.ends.iter().zip(&self.ends) {
                page.received.store(counts(*at, napis).rx_packets, Ordering::Release);
            }
        }
        self.pauses.iter_mut().for_each(|pause| pause.turned(napis, now));
    }

    /// Returns true if the device of queue `at` is in a pause, in which nothing is read from it.
    pub fn is_paused(&self, at: usize) -> bool {
        self.pauses.iter().any(|pause| pause.queue == at && pause.begun.is_some())
    }

    /// Writes that the worker is dropped: it receives nothing more, so no one waits for packets in
    /// the rings to it. Call it after the worker's waiting packets were dropped.
    pub fn ended(&self, napis: &[Napi]) {
        self.write_sent(napis);
        for page in &self.page.ends {
            page.received.store(u64::MAX, Ordering::Release);
        }
    }

    /// Writes the packets sent and given. Call it before the received ones are written: writers
    /// count sent packets before received ones, so a reader in the opposite order gets at least the
    /// packets that were sent for those received.
    fn write_sent(&self, napis: &[Napi]) {
        for (page, at) in self.page.ends.iter().zip(&self.ends) {
            page.sent.store(counts(*at, napis).tx_packets, Ordering::Relaxed);
            page.given.store(napis.get(*at).map_or(0, Napi::given), Ordering::Relaxed);
        }
    }
}

/// Returns true if no packet waits in a queue or its wrappers.
pub(crate) fn is_clear(napi: &Napi) -> bool {
    napi.waiting() == 0 && napi.withheld() == 0
}

/// Returns the counts of the packets in the ring of queue `at`.
fn counts(at: usize, napis: &[Napi]) -> QueueCounts {
    napis.get(at).map(|napi| napi.in_ring().counts()).unwrap_or_default()
}
