//! A worker's page that counts the packets that have left it, written after each turn that leaves none
//! waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::napi::Napi;

/// The page of one worker. Only the worker writes it.
#[derive(Debug, Default)]
pub(crate) struct Clear {
    /// Turns that left no packet waiting.
    times: AtomicU64,
    /// The worker's ends of rings, in the order of its queues.
    ends: Box<[EndPage]>,
}

/// Packets that passed one end of a ring up to the end of the last such turn.
#[derive(Debug, Default)]
struct EndPage {
    received: AtomicU64,
    sent: AtomicU64,
}

impl Clear {
    pub fn new(ends: usize) -> Arc<Clear> {
        Arc::new(Clear {
            times: AtomicU64::new(0),
            ends: (0..ends).map(|_| EndPage::default()).collect(),
        })
    }

    /// Returns how many turns have left no packet waiting.
    pub fn times(&self) -> u64 {
        self.times.load(Ordering::Acquire)
    }

    /// Returns the packets received by an end that have all left the worker; to be read before
    /// `sent`.
    pub fn received(&self, end: usize) -> u64 {
        self.ends.get(end).map_or(0, |end| end.received.load(Ordering::Acquire))
    }

    /// Returns the packets that an end had sent by that turn, or later.
    pub fn sent(&self, end: usize) -> u64 {
        self.ends.get(end).map_or(0, |end| end.sent.load(Ordering::Relaxed))
    }
}

/// A worker's handle for writing its page.
#[derive(Debug)]
pub(crate) struct Clearing {
    page: Arc<Clear>,
    /// The worker's queues that are ends of rings.
    ends: Vec<usize>,
}

impl Clearing {
    pub fn new(page: Arc<Clear>, ends: Vec<usize>) -> Clearing {
        Clearing { page, ends }
    }

    /// Writes the page, if no packet waits.
    pub fn turned(&self, napis: &[Napi]) {
        if napis.iter().any(|napi| napi.waiting() > 0) {
            return;
        }
        let counts = |at: &usize| napis.get(*at).map(Napi::counts).unwrap_or_default();
        // Writers count sent packets before received ones. A reader in the opposite order may see too few
        // packets as sent, and never too many.
        for (page, at) in self.page.ends.iter().zip(&self.ends) {
            page.sent.store(counts(at).tx_packets, Ordering::Relaxed);
        }
        for (page, at) in self.page.ends.iter().zip(&self.ends) {
            page.received.store(counts(at).rx_packets, Ordering::Release);
        }
        let times = self.page.times.load(Ordering::Relaxed);
        self.page.times.store(times + 1, Ordering::Release);
    }
}
