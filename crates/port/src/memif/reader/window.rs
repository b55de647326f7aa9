//! A ring of the producer, with those of its frames that the program holds.
//!
//! ```text
//!   tail ── back │ held │ back │ lent ── out ── taken next ── posted ── head
//!     └── moves over what is back, in order; over what is held once that is copied
//! ```
//!
//! A frame that is lent is borrowed from the reader: with the reader's next call that changes it,
//! none is left, whether it was dropped or forgotten. So only what is held can block the tail.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use linerate_sys::peer::PeerMemory;
use linerate_sys::wait::EventFd;

use super::Counts;
use super::held::{Held, Hold, Waker};
use crate::memif::config::{CHAIN_MAX, PACKET_BYTES_MAX};
use crate::memif::ring::{Checked, NEXT, ProtocolError, ServerRing};
use crate::memif::server::{MappedRing, Regions};

/// A part of a frame: its descriptor, which was checked when it was read, in our memory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Piece {
    region: u16,
    len: u32,
    offset: u32,
}

/// A ring of the producer, with those of its frames that the program holds.
pub(super) struct Window {
    pub bell: EventFd,
    regions: Regions,
    waker: Arc<Waker>,
    /// The piece in each slot whose frame the program has.
    pieces: Box<[Cell<Piece>]>,
    /// True while the program takes frames: frames dropped meanwhile are given back at the end.
    taking: Cell<bool>,
    /// The state. Only functions of this file borrow it, and they call no code of the program, so
    /// that it is never borrowed twice at once.
    state: RefCell<State>,
}

struct State {
    ring: ServerRing,
    /// Number of posted slots after the tail, at the last reading of the producer's index.
    posted: u16,
    /// Number of posted slots whose frames the program has.
    taken: u16,
    /// The frames that the program has, oldest first.
    out: VecDeque<Out>,
    /// The number of the oldest frame in `out`.
    first: u64,
    /// The producer's index at the last attempt, if the end of the next frame had not arrived;
    /// `None` otherwise.
    torn: Option<u16>,
    counts: Counts,
}

struct Out {
    slots: u16,
    state: Holder,
}

/// The holder of a frame.
enum Holder {
    /// The program has the frame borrowed within its loop.
    Lent,
    /// The frame was dropped.
    Back,
    /// The program holds the frame beyond its loop.
    Held(Arc<Hold>),
}

/// The slots of a frame that the program has taken.
pub(super) struct FrameSlots {
    /// The frame's number among all frames of the ring.
    pub number: u64,
    /// The index of the frame's first slot.
    pub at: u16,
    pub slots: u16,
    pub len: usize,
}

impl Window {
    pub fn new(side: MappedRing, waker: Arc<Waker>) -> Window {
        let MappedRing { ring, bell, regions, .. } = side;
        let pieces = (0..ring.shared.len()).map(|_| Cell::default()).collect();
        let state = State {
            ring,
            posted: 0,
            taken: 0,
            out: VecDeque::new(),
            first: 0,
            torn: None,
            counts: Counts::default(),
        };
        let (taking, state) = (Cell::new(false), RefCell::new(state));
        Window { bell, regions, waker, pieces, taking, state }
    }

    pub fn counts(&self) -> Counts {
        self.state.borrow().counts
    }

    /// Sets whether the producer should ring when it sends.
    pub fn want_bell(&self, wanted: bool) {
        self.state.borrow().ring.shared.want_bell(wanted);
    }

    /// Reads the producer's index; returns true if there may be a frame to take.
    pub fn look(&mut self) -> Checked<bool> {
        let state = self.state.get_mut();
        state.posted = state.ring.poll()?;
        // While the end of a frame is missing, do not read its parts again before more slots are
        // posted.
        Ok(state.posted > state.taken && state.torn != Some(state.ring.at(state.posted)))
    }

    /// Takes the next frame; returns `None` if its end has not arrived.
    pub fn take(&self) -> Checked<Option<FrameSlots>> {
        let state = &mut *self.state.borrow_mut();
        let ready = state.posted - state.taken;
        let at = state.ring.at(state.taken);
        if state.torn.is_some_and(|torn| torn == state.ring.at(state.posted)) {
            return Ok(None);
        }
        let (mut slots, mut len) = (0, 0);
        loop {
            if slots == ready {
                if ready == state.ring.shared.len() {
                    return Err(ProtocolError::Chain);
                }
                state.torn = (ready > 0).then(|| state.ring.at(state.posted));
                return Ok(None);
            }
            let slot = at.wrapping_add(slots);
            let desc = state.ring.shared.desc(slot);
            let piece = Piece { region: desc.region, len: desc.len, offset: desc.offset };
            let memory =
                self.regions.get(usize::from(piece.region)).ok_or(ProtocolError::Outside)?;
            if !memory.has(piece.offset as usize, piece.len as usize) {
                return Err(ProtocolError::Outside);
            }
            len += piece.len as usize;
            if len > PACKET_BYTES_MAX {
                return Err(ProtocolError::TooLong);
            }
            self.piece(slot).set(piece);
            slots += 1;
            if desc.flags & NEXT == 0 {
                break;
            }
            if slots == CHAIN_MAX {
                return Err(ProtocolError::TooLong);
            }
        }
        let number = state.first + state.out.len() as u64;
        state.out.push_back(Out { slots, state: Holder::Lent });
        state.taken += slots;
        state.torn = None;
        state.counts.frames += 1;
        state.counts.bytes += len as u64;
        Ok(Some(FrameSlots { number, at, slots, len }))
    }

    /// Begins a loop: frames that are dropped from now on are given back by `end_taking`.
    pub fn begin(&self) {
        self.taking.set(true);
    }

    /// Gives back to the producer the frames that the program dropped while it took frames.
    pub fn end_taking(&self) {
        self.taking.set(false);
        self.settle(false);
    }

    /// Records that the program has dropped a frame.
    pub fn release(&self, number: u64) {
        self.change(number, Holder::Back);
        if !self.taking.get() {
            self.settle(false);
        }
    }

    /// Converts a frame into one that can outlive the loop, and records its new holder.
    ///
    /// Cost: two allocations.
    pub fn hold(&self, taken: &FrameSlots) -> Held {
        let pieces = self.pieces_of(taken).collect();
        let hold = Hold::new(self.regions.clone(), pieces, taken.len, self.waker.clone());
        let hold = Arc::new(hold);
        self.change(taken.number, Holder::Held(hold.clone()));
        Held::new(hold)
    }

    /// Copies bytes of a borrowed frame; returns the number of bytes copied.
    #[inline]
    pub fn copy(&self, taken: &FrameSlots, from: usize, to: &mut [u8]) -> usize {
        copy(&self.regions, self.pieces_of(taken), from, to)
    }

    /// Moves the tail past dropped frames. Copies held frames that block more than half of the
    /// ring, and moves the tail past them too. `over` is true if the program borrows no frame any
    /// more.
    ///
    /// Cost: a Release store if it moves.
    pub fn settle(&self, over: bool) {
        let state = &mut *self.state.borrow_mut();
        let len = state.ring.shared.len();
        // The ring is full and the next frame has no end: the rest of that frame can arrive only if
        // all held slots are given back.
        let stuck = state.torn.is_some() && state.posted == len;
        let blocked_max = if stuck { 0 } else { len / 2 };
        let mut slots = 0;
        while let Some(oldest) = state.out.front() {
            match &oldest.state {
                Holder::Back => {}
                Holder::Lent if over => {}
                Holder::Held(hold) if hold.is_released() => {}
                Holder::Held(hold) if state.taken - slots > blocked_max => {
                    hold.copy_out();
                    state.counts.copied_out += 1;
                }
                Holder::Lent | Holder::Held(_) => break,
            }
            for part in 1..oldest.slots {
                state.ring.shared.unchain(state.ring.at(slots + part - 1));
            }
            slots += oldest.slots;
            state.out.pop_front();
            state.first += 1;
        }
        if slots > 0 {
            state.taken -= slots;
            state.posted -= slots;
            state.ring.give_back(slots);
        }
    }

    /// Detaches held frames, because the producer has disconnected; returns the counters, and
    /// objects to drop.
    pub fn end(self) -> (Counts, impl Send + 'static) {
        let State { out, counts, ring, .. } = self.state.into_inner();
        for frame in out {
            if let Holder::Held(hold) = frame.state {
                hold.end();
            }
        }
        (counts, (ring, self.bell, self.regions))
    }

    /// Checks that the slots which are not given back are those of the program's frames, after
    /// frames of `taken` slots in all were taken; returns their number.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn check(&self, taken: u16) -> u16 {
        let state = self.state.borrow();
        let slots: u16 = state.out.iter().map(|frame| frame.slots).sum();
        assert!(slots == state.taken && slots <= state.posted);
        assert!(state.posted == state.ring.known() && state.posted <= state.ring.shared.len());
        assert_eq!(state.ring.at(slots), taken);
        slots
    }

    fn change(&self, number: u64, to: Holder) {
        let state = &mut *self.state.borrow_mut();
        let i = number.checked_sub(state.first).and_then(|i| usize::try_from(i).ok());
        if let Some(frame) = i.and_then(|i| state.out.get_mut(i))
            && matches!(frame.state, Holder::Lent)
        {
            frame.state = to;
        }
    }

    fn pieces_of(&self, taken: &FrameSlots) -> impl Iterator<Item = Piece> {
        let at = taken.at;
        (0..taken.slots).map(move |i| self.piece(at.wrapping_add(i)).get())
    }

    fn piece(&self, slot: u16) -> &Cell<Piece> {
        // The mask keeps the index in range: `pieces` is as long as the ring, which is a power of
        // two.
        &self.pieces[usize::from(slot) & (self.pieces.len() - 1)]
    }
}

/// Copies bytes of `pieces`, from offset `from`; returns the number of bytes copied.
pub(super) fn copy(
    regions: &[Arc<PeerMemory>],
    pieces: impl Iterator<Item = Piece>,
    from: usize,
    to: &mut [u8],
) -> usize {
    let (mut skip, mut done) = (from, 0);
    for piece in pieces {
        let len = piece.len as usize;
        if skip >= len {
            skip -= len;
            continue;
        }
        let n = (len - skip).min(to.len() - done);
        let memory = regions.get(usize::from(piece.region));
        let offset = piece.offset as usize + skip;
        // The read cannot fail: each piece was checked to lie in its region, which does not shrink.
        if !memory.is_some_and(|memory| memory.read(offset, &mut to[done..done + n])) {
            break;
        }
        (skip, done) = (0, done + n);
        if done == to.len() {
            break;
        }
    }
    done
}
