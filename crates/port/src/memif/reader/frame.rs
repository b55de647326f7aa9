//! A packet in its producer's memory, borrowed by the program.

use std::fmt;

use super::Reader;
use super::held::Held;
use super::window::{FrameSlots, Window};

/// An iterator over the frames of one call. Frames that are dropped meanwhile are given back to the
/// producer when it ends.
///
/// A loop that takes long for each frame asks for few at a time.
pub struct Frames<'a> {
    reader: &'a Reader,
    /// The ring that contains the next frame.
    window: Option<&'a Window>,
    left: usize,
    /// Number of rings that are exhausted in this call.
    seen: usize,
}

impl<'a> Frames<'a> {
    pub(super) fn new(reader: &'a Reader, max: usize) -> Frames<'a> {
        reader.windows.iter().for_each(Window::begin);
        let mut frames = Frames { reader, window: None, left: max, seen: 0 };
        frames.window = frames.window_at(0);
        frames
    }

    /// Returns the ring that is read after `seen` other rings.
    fn window_at(&self, seen: usize) -> Option<&'a Window> {
        let (first, later) = self.reader.windows();
        first.get(seen).or_else(|| later.get(seen.checked_sub(first.len())?))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        while self.left > 0 {
            let window = self.window?;
            match window.take() {
                Ok(Some(taken)) => {
                    self.left -= 1;
                    return Some(Frame { window, taken });
                }
                Ok(None) => {
                    self.seen += 1;
                    self.window = self.window_at(self.seen);
                }
                Err(error) => {
                    self.left = 0;
                    self.reader.end.disconnect(error);
                }
            }
        }
        None
    }
}

impl Drop for Frames<'_> {
    fn drop(&mut self) {
        self.reader.windows.iter().for_each(Window::end_taking);
    }
}

impl fmt::Debug for Frames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("left", &self.left).finish_non_exhaustive()
    }
}

/// A packet in its producer's memory, in one or more pieces. Dropping it returns its slots to the
/// producer.
///
/// Its bytes may change while it is read: see [`Reader`](super::Reader)'s module.
pub struct Frame<'a> {
    pub(super) window: &'a Window,
    pub(super) taken: FrameSlots,
}

impl Frame<'_> {
    /// Returns the frame's length in bytes, from the destination MAC, without FCS.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.taken.len
    }

    /// Returns true for a packet of zero bytes, which a producer can send.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken.len == 0
    }

    /// Copies bytes, from offset `from`, into `to`; returns how many: fewer than `to.len()` only at
    /// the packet's end.
    ///
    /// Cost: the copy.
    #[inline]
    pub fn copy_to(&self, from: usize, to: &mut [u8]) -> usize {
        self.window.copy(&self.taken, from, to)
    }

    /// Converts the frame into one that can outlive the loop and be used on any thread.
    ///
    /// Shape:  the producer gets its slots back when the [`Held`] is dropped; earlier if it blocks
    ///         more than half of the ring: it is copied then.
    /// Cost:   two allocations.
    #[must_use]
    pub fn hold(self) -> Held {
        // `self` is dropped at the end of this function, but the window has recorded it as held and
        // keeps its slots.
        self.window.hold(&self.taken)
    }

    super::held::single_reads!();
}

impl Drop for Frame<'_> {
    #[inline]
    fn drop(&mut self) {
        self.window.release(self.taken.number);
    }
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("len", &self.len()).finish_non_exhaustive()
    }
}
