//! Transfer of a connection's rings from the control thread to the endpoints, and back.
//!
//! ```text
//!   control thread   publish: health, rings for each queue ──► generation + 1 ──► bells
//!   endpoint         generation differs ──► exchange: its old rings for those that are bound to it now
//!   control thread   collect: old rings, to be dropped where no packet waits
//! ```
//!
//! An endpoint never waits: where the lock is taken it comes again with its next call, and its bell
//! stays rung until it has succeeded.

use std::ops::Range;

use super::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock, try_lock};

/// The transferred state; `R` is the type of a queue's rings, `W` that of the objects which an
/// endpoint returns.
pub struct Handover<H, R, W> {
    generation: AtomicU32,
    state: Mutex<State<H, R, W>>,
    /// The last violation of the protocol, with the generation of the peer that made it; 0 if there
    /// is none.
    violation: AtomicU64,
}

/// The part of the state that the lock protects.
pub struct State<H, R, W> {
    pub health: H,
    /// Rings that their queues have not taken yet.
    pub bindings: Vec<Option<R>>,
    /// Mappings and descriptors that endpoints have returned.
    pub retired: Vec<W>,
}

impl<H: Clone, R, W> Handover<H, R, W> {
    pub fn new(health: H, queues: usize) -> Handover<H, R, W> {
        let bindings = (0..queues).map(|_| None).collect();
        let state = Mutex::new(State { health, bindings, retired: Vec::new() });
        Handover { generation: AtomicU32::new(0), state, violation: AtomicU64::new(0) }
    }

    /// Returns the generation: the number of published changes, which endpoints compare with the
    /// number they have seen.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Gives back `retired`, and takes the present state for `queues`: the generation, the health,
    /// and the queues' rings if they are new. Calls `silence` to clear the endpoint's bell. Returns
    /// `None` if another thread has the lock.
    pub fn exchange(
        &self,
        queues: Range<usize>,
        retired: &mut Vec<W>,
        silence: impl FnOnce(),
    ) -> Option<(u32, H, Vec<R>)> {
        let mut state = try_lock(&self.state)?;
        silence();
        state.retired.append(retired);
        let rings = state.bindings[queues].iter_mut().filter_map(Option::take).collect();
        Some((self.generation.load(Ordering::Relaxed), state.health.clone(), rings))
    }

    /// Passes the objects of a closed endpoint to the control thread.
    pub fn give_back(&self, retired: &mut Vec<W>) {
        self.state().retired.append(retired);
    }

    /// Changes the state by `change`; if that returns true, increments the generation and calls
    /// `announce`.
    pub fn publish(
        &self,
        change: impl FnOnce(&mut State<H, R, W>) -> bool,
        announce: impl FnOnce(),
    ) {
        let mut state = self.state();
        if change(&mut state) {
            let next = self.generation.load(Ordering::Relaxed).wrapping_add(1);
            self.generation.store(next, Ordering::Release);
            // Call `announce` under the lock: a thread that takes the state then clears the bell
            // for exactly the changes that it sees.
            announce();
        }
    }

    /// Records that the peer of `generation` has violated the protocol, as `code`, which is not 0;
    /// returns true if this is the first report.
    pub fn accuse(&self, generation: u32, code: u8) -> bool {
        let violation = u64::from(generation) << 8 | u64::from(code);
        self.violation.fetch_max(violation, Ordering::AcqRel) < violation
    }

    /// Returns the last violation by the present peer, and clears it, so that it is returned only
    /// once.
    pub fn take_violation(&self) -> Option<u8> {
        let violation = self.violation.swap(0, Ordering::AcqRel);
        let code = (violation & 0xff) as u8;
        (code > 0 && violation >> 8 == u64::from(self.generation())).then_some(code)
    }

    fn state(&self) -> MutexGuard<'_, State<H, R, W>> {
        lock(&self.state)
    }
}
