//! Table of the pool's frames in a queue's rings, with the use of each.
//!
//! The kernel is trusted to follow the rings' protocol, but it may have bugs, and a frame that came
//! back twice would be in two packets. So every frame that comes back is looked up here first: in a
//! table with a place for each frame of the pool's memory, private to the queue.

use linerate_skb::Batch;

// No handle has umem 0, so these values are no handles.
/// In no ring of this queue.
const FREE: u32 = 0;
/// State of a frame in the fill ring, or received from it and not reported yet.
const POSTED: u32 = 1;
/// State of a frame in the transmit ring that is not the last of its packet.
const PART: u32 = 2;

/// The table of a queue's frames in the rings.
pub(super) struct Held {
    /// For each frame [`FREE`], [`POSTED`], [`PART`], or the handle of the packet whose last frame
    /// it is.
    places: Box<[u32]>,
    shift: u32,
    /// Frames in the fill ring.
    pub posted: usize,
    /// Packets in the transmit ring.
    pub sending: usize,
    /// Frames that the device returned although the queue had not given them to it for that use.
    pub bad_descs: u64,
}

/// Result of checking a frame that the device reports as filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    /// A valid packet, or a part of one.
    Packet,
    /// A posted frame whose reported bytes do not lie within it; the number is the offset of its
    /// first byte.
    Outside(u64),
    /// A frame that had not been posted.
    Bad,
}

impl Held {
    /// Makes the table for memory of `bytes`, in frames of `frame_bytes`, a power of two.
    pub fn new(bytes: usize, frame_bytes: usize) -> Held {
        let shift = frame_bytes.trailing_zeros();
        let places = vec![FREE; bytes >> shift].into();
        Held { places, shift, posted: 0, sending: 0, bad_descs: 0 }
    }

    /// Notes that the frame at `offset` is in the fill ring now.
    pub fn post(&mut self, offset: u64) {
        if let Some(place) = self.place(offset) {
            *place = POSTED;
            self.posted += 1;
        }
    }

    /// Takes back a frame whose `len` bytes at `offset` the device reports as a packet's.
    pub fn filled(&mut self, offset: u64, len: u32) -> Filled {
        let (bytes, shift) = (1 << self.shift, self.shift);
        match self.place(offset) {
            Some(place) if *place == POSTED => {
                *place = FREE;
                self.posted -= 1;
                let within = offset & (bytes - 1);
                if within + u64::from(len) <= bytes {
                    Filled::Packet
                } else {
                    self.bad_descs += 1;
                    Filled::Outside(offset >> shift << shift)
                }
            }
            _ => {
                self.bad_descs += 1;
                Filled::Bad
            }
        }
    }

    /// Returns true if the frame that contains `offset` is in no ring of this queue.
    pub fn is_free(&self, offset: u64) -> bool {
        let index = usize::try_from(offset >> self.shift).ok();
        index.and_then(|index| self.places.get(index)) == Some(&FREE)
    }

    /// Keeps the first packet of `batch`, whose frames have these offsets, until the device returns
    /// the last of them. All these frames are free in the table.
    pub fn send(&mut self, offsets: impl Iterator<Item = u64>, batch: &mut Batch) {
        let Some(handle) = batch.handles().first().copied() else { return };
        let mut last = None;
        for offset in offsets {
            if let Some(place) = self.place(offset) {
                *place = PART;
                last = Some(offset);
            }
        }
        let Some(place) = last.and_then(|last| self.place(last)) else { return };
        *place = handle;
        self.sending += 1;
        // SAFETY: the table has the handle; `sent` and `take_all` take each out once and adopt it.
        unsafe { batch.took(1) };
    }

    /// Takes back the frame that contains `offset`; with the last frame of a packet, moves the
    /// packet to `done`, which has room for it.
    pub fn sent(&mut self, offset: u64, done: &mut Batch) {
        match self.place(offset) {
            Some(place) if *place > PART => {
                let handle = std::mem::replace(place, FREE);
                self.sending -= 1;
                // SAFETY: `send` took it out of a batch and put it here; it is out of the table
                // now.
                unsafe { done.adopt(&[handle]) };
            }
            Some(place) if *place == PART => *place = FREE,
            _ => self.bad_descs += 1,
        }
    }

    /// Takes back everything in the rings, after the kernel has stopped using them: passes the
    /// offsets of posted frames to `posted` and the packets to `packet`, one at a time.
    pub fn take_all(&mut self, mut posted: impl FnMut(u64), mut packet: impl FnMut(&mut Batch)) {
        let mut one = Batch::with_capacity(1);
        for (i, place) in self.places.iter_mut().enumerate() {
            match std::mem::replace(place, FREE) {
                FREE | PART => {}
                POSTED => posted((i as u64) << self.shift),
                handle => {
                    // SAFETY: as in `sent`.
                    unsafe { one.adopt(&[handle]) };
                    packet(&mut one);
                    one.clear();
                }
            }
        }
        (self.posted, self.sending) = (0, 0);
    }

    fn place(&mut self, offset: u64) -> Option<&mut u32> {
        self.places.get_mut(usize::try_from(offset >> self.shift).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_skb::Pool;

    #[test]
    fn a_frame_comes_back_once_and_for_what_it_was_given() {
        let mut held = Held::new(8 << 11, 2048);
        held.post(2048);
        assert_eq!((held.posted, held.is_free(2048 + 256)), (1, false));
        assert_eq!(held.filled(4096, 60), Filled::Bad);
        assert_eq!(held.filled(2048 + 256, 60), Filled::Packet);
        assert_eq!(held.filled(2048 + 256, 60), Filled::Bad);
        held.post(2048);
        assert_eq!(held.filled(2048 + 256, 1792), Filled::Packet);
        held.post(2048);
        assert_eq!(held.filled(2048 + 256, 1793), Filled::Outside(2048));
        assert_eq!(held.filled(u64::MAX, 60), Filled::Bad);
        assert_eq!((held.posted, held.bad_descs), (0, 4));
    }

    #[test]
    fn a_packet_comes_back_with_the_last_of_its_frames() {
        let pool = Pool::builder().frames(8).build().unwrap();
        let (mut mem, mut held) = (pool.local(), Held::new(8 << 11, 2048));
        let (mut batch, mut done) = (Batch::with_capacity(2), Batch::with_capacity(2));
        mem.alloc(&mut batch, 2);
        held.send([300, 2048 + 256].into_iter(), &mut batch);
        held.send([4096].into_iter(), &mut batch);
        assert_eq!((batch.len(), held.sending), (0, 2));
        held.sent(300, &mut done);
        assert!(done.is_empty() && held.is_free(300) && !held.is_free(2048));
        held.sent(300, &mut done);
        held.sent(6144, &mut done);
        assert_eq!((done.len(), held.bad_descs), (0, 2));
        held.sent(2048 + 256, &mut done);
        assert_eq!((done.len(), held.sending), (1, 1));
        held.post(0);
        let (mut frames, mut packets) = (Vec::new(), 0);
        held.take_all(|frame| frames.push(frame), |packet| packets += packet.len());
        assert_eq!((frames, packets, held.posted, held.sending), (vec![0], 1, 0, 0));
        done.clear();
        assert_eq!(pool.ledger().in_flight, 0);
    }
}
