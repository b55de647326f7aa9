//! A program that takes, copies, holds and drops frames as fuzzed bytes demand, while a fuzzed
//! producer writes its ring and its buffers. For the fuzz target and the tests.
//!
//! No socket, and so no [`Reader`](super::Reader): a ring is called in the order in which a reader
//! calls it.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::Counts;
use super::frame::Frame;
use super::held::{Held, Waker};
use super::window::Window;
use crate::memif::config::PACKET_BYTES_MAX;
use crate::memif::ring::Checked;
use crate::memif::server::MappedRing;

/// A program with one ring of a producer.
pub(in crate::memif) struct Program {
    window: Window,
    /// The frames that outlived the loop that took them.
    held: Vec<Held>,
    /// The counts that the ring should have. A copy is counted when its frame is released.
    counts: Counts,
    /// Number of slots of all frames that were taken, which wraps as an index does.
    slots: u16,
}

impl Program {
    /// Returns a program that reads `ring`; `None` if no doorbell can be created.
    pub fn new(ring: MappedRing) -> Option<Program> {
        let window = Window::new(ring, Arc::new(Waker::new().ok()?));
        window.want_bell(false);
        Some(Program { window, held: Vec::new(), counts: Counts::default(), slots: 0 })
    }

    /// Executes one step of the program.
    pub fn work(&mut self, [op, a, b, c]: [u8; 4]) -> Checked<()> {
        let from = usize::from(c) * 33;
        let done = match op % 8 {
            0 | 1 => self.take(u32::from(a % 16), b, from),
            _ => {
                (0..b % 4).for_each(|_| self.release(usize::from(a), from));
                Ok(())
            }
        };
        self.window.check(self.slots);
        done
    }

    /// Takes up to `budget` frames in one loop, and reads them. By two bits of `fates` each is
    /// dropped in the loop, held, dropped after the loop, or forgotten.
    fn take(&mut self, budget: u32, fates: u8, from: usize) -> Checked<()> {
        self.window.settle(true);
        self.window.look()?;
        self.window.begin();
        let (mut late, mut end) = (Vec::new(), Ok(()));
        for i in 0..budget {
            let taken = match self.window.take() {
                Ok(Some(taken)) => taken,
                Ok(None) => break,
                Err(error) => {
                    end = Err(error);
                    break;
                }
            };
            self.counts.frames += 1;
            self.counts.bytes += taken.len as u64;
            self.slots = self.slots.wrapping_add(taken.slots);
            let frame = Frame { window: &self.window, taken };
            assert_reads(frame.len(), from, |from, to| frame.copy_to(from, to));
            assert_eq!(frame.u16_be(from).is_some(), from + 2 <= frame.len());
            match fates.rotate_right(2 * i) & 3 {
                0 => drop(frame),
                1 => self.held.push(frame.hold()),
                2 => late.push(frame),
                _ => _ = ManuallyDrop::new(frame),
            }
        }
        self.window.end_taking();
        late.into_iter().rev().for_each(drop);
        end
    }

    /// Reads a held frame, selected by `which`, and releases it.
    fn release(&mut self, which: usize, from: usize) {
        let Some(i) = which.checked_rem(self.held.len()) else { return };
        let held = self.held.swap_remove(i);
        assert_reads(held.len(), from, |from, to| held.copy_to(from, to));
        assert!(!held.is_gone());
        self.counts.copied_out += u64::from(held.is_copied());
    }

    /// Ends the connection while one frame is held, and checks that the producer has got back all
    /// slots before that frame's, and that the frame can still be read.
    pub fn end(mut self) {
        let last = self.held.pop();
        while !self.held.is_empty() {
            self.release(0, 0);
        }
        self.window.settle(true);
        let is_copied = last.as_ref().is_some_and(Held::is_copied);
        self.counts.copied_out += u64::from(is_copied);
        assert_eq!(self.window.check(self.slots) == 0, last.is_none() || is_copied);
        let (counts, memory) = self.window.end();
        assert_eq!(counts, self.counts);
        drop(memory);
        if let Some(held) = last {
            assert_eq!(held.is_gone(), !is_copied);
            assert_reads(held.len(), 0, |from, to| held.copy_to(from, to));
        }
    }
}

/// Checks that copies from `from`, and from other places, end where the packet of `len` bytes ends,
/// and that they write nothing behind what they return.
fn assert_reads(len: usize, from: usize, copy_to: impl Fn(usize, &mut [u8]) -> usize) {
    assert!(len <= PACKET_BYTES_MAX);
    for from in [from, len.saturating_sub(from), len, usize::MAX] {
        let mut to = [0x5a; 96];
        let n = copy_to(from, &mut to);
        assert_eq!(n, len.saturating_sub(from).min(to.len()));
        assert!(to[n..].iter().all(|byte| *byte == 0x5a));
    }
}
