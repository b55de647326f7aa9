//! A worker's page that says what has left it: it is written at the end of each turn that leaves nothing waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::napi::Napi;

/// The page of one worker. Only the worker writes it.
#[derive(Debug, Default)]
pub(crate) struct Clear {
    /// Turns that left nothing waiting.
    times: AtomicU64,
    /// The rings' ends that the worker has, in the order of its queues.
    ends: Box<[EndPage]>,
}

/// Packets that passed one end of a ring by the end of the last such turn.
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

    /// Returns how many turns have left nothing waiting.
    pub fn times(&self) -> u64 {
        self.times.load(Ordering::Acquire)
    }

    /// Returns the packets received by an end of which everything has left: it is read before `sent`.
    pub fn received(&self, end: usize) -> u64 {
        self.ends.get(end).map_or(0, |end| end.received.load(Ordering::Acquire))
    }

    /// Returns the packets that were sent by an end by then, or later.
    pub fn sent(&self, end: usize) -> u64 {
        self.ends.get(end).map_or(0, |end| end.sent.load(Ordering::Relaxed))
    }
}

/// A worker's side of its page.
#[derive(Debug)]
pub(crate) struct Clearing {
    page: Arc<Clear>,
    /// Its queues that are ends of rings.
    ends: Vec<usize>,
}

impl Clearing {
    pub fn new(page: Arc<Clear>, ends: Vec<usize>) -> Clearing {
        Clearing { page, ends }
    }

    /// Says what has left, if nothing waits.
    pub fn turned(&self, napis: &[Napi]) {
        if napis.iter().any(|napi| napi.waiting() > 0) {
            return;
        }
        let counts = |at: &usize| napis.get(*at).map(Napi::counts).unwrap_or_default();
        // All that was sent before anything that was received: who reads the other way round believes too
        // little has left, and never too much.
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
