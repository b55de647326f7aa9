//! What an engine tells whoever asks, without its workers noticing.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linerate_port::r#gen::Pace;
use linerate_port::sink::Verified;
use linerate_port::wait::EventFd;
use linerate_port::{Health, Obtained, QueueCounts, QueueStats, Result};
use linerate_skb::{Ledger, Pool};

/// What a worker is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Everything.
    Run,
    /// Take nothing in any more, send what is there.
    Drain,
    /// Return.
    Halt,
}

/// Between one worker and the rest of the program: words to read, a bell to ring.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    phase: AtomicU8,
    ended: AtomicBool,
    bell: EventFd,
}

impl WorkerSlot {
    pub fn new() -> Result<Arc<WorkerSlot>> {
        let (phase, ended) = (AtomicU8::new(Phase::Run as u8), AtomicBool::new(false));
        Ok(Arc::new(WorkerSlot { phase, ended, bell: EventFd::new()? }))
    }

    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Run,
            1 => Phase::Drain,
            _ => Phase::Halt,
        }
    }

    /// Changes the phase, and wakes the worker for it.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
        self.bell.signal();
    }

    pub fn bell(&self) -> &EventFd {
        &self.bell
    }

    pub fn publish(&self, ended: bool) {
        self.ended.store(ended, Ordering::Release);
    }

    /// True once every source of the worker has ended and nothing waits to be sent.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// What only a queue's owner can ask the device; written when the worker has time.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    missed: AtomicU64,
    said: Mutex<Said>,
}

#[derive(Debug, Default, Clone)]
struct Said {
    health: Health,
    verified: Option<Verified>,
    pace: Option<Pace>,
}

impl Slot {
    /// Never waits: if a reader has the lock, the news come next time.
    pub fn publish(
        &self,
        health: Health,
        missed: u64,
        verified: Option<Verified>,
        pace: Option<Pace>,
    ) {
        if missed > 0 {
            self.missed.fetch_add(missed, Ordering::Relaxed);
        }
        if let Ok(mut said) = self.said.try_lock() {
            *said = Said { health, verified, pace };
        }
    }

    fn said(&self) -> Said {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One port of an engine.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub name: String,
    pub driver: String,
    pub obtained: Obtained,
    pub queues: Vec<(Arc<QueueStats>, Arc<Slot>)>,
}

/// A handle to read a running engine by. A reading costs the workers nothing.
#[derive(Debug, Clone)]
pub struct Stats {
    pub(crate) ports: Arc<Vec<Entry>>,
    pub(crate) pool: Pool,
}

/// A reading of one port.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PortStats {
    /// Its name in the engine.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// What the device gave.
    pub obtained: Obtained,
    /// What passed, over all queues.
    pub counts: QueueCounts,
    /// How it is: the first queue in trouble.
    pub health: Health,
    /// What a verifying sink found.
    pub verified: Option<Verified>,
    /// How a paced source kept its pace.
    pub pace: Option<Pace>,
}

impl Stats {
    /// Every port, in the order in which they were named.
    #[must_use]
    pub fn ports(&self) -> Vec<PortStats> {
        self.ports.iter().map(PortStats::read).collect()
    }

    /// Where every packet went.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.pool.ledger()
    }
}

impl PortStats {
    fn read(entry: &Entry) -> PortStats {
        let mut stats = PortStats {
            name: entry.name.clone(),
            driver: entry.driver.clone(),
            obtained: entry.obtained.clone(),
            counts: QueueCounts::default(),
            health: Health::Up,
            verified: None,
            pace: None,
        };
        for (live, slot) in &entry.queues {
            let (c, said) = (live.counts(), slot.said());
            stats.counts += c;
            stats.counts.missed += slot.missed.load(Ordering::Relaxed);
            if stats.health == Health::Up {
                stats.health = said.health;
            }
            stats.verified = stats.verified.or(said.verified);
            stats.pace = stats.pace.or(said.pace);
        }
        stats
    }
}
