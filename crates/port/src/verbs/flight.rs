//! The packets that a send queue has: in order, each until the device has sent it.
//!
//! ```text
//!        head: oldest that the device has         tail: next
//!   ──────┬──────────────────────────────────────────┬──────    indices count up for ever, and wrap
//!         └ the completion of one ends all before it ┘
//! ```
//!
//! A device completes the requests of a send queue in their order, so the completion of one says
//! that all before it are done, whether they made a completion or not.

use linerate_skb::{Batch, DropReason, Moved};

/// The packets of a send queue.
#[derive(Debug)]
pub(super) struct Flight {
    handles: Box<[u32]>,
    head: u32,
    tail: u32,
    /// First index, and the one after the last, of the newest packets that make no completion.
    silent: [u32; 2],
}

impl Flight {
    /// Creates a flight for `len` packets, a power of two; its first index is `at`.
    pub fn new(len: u32, at: u32) -> Flight {
        Flight { handles: vec![0; len as usize].into(), head: at, tail: at, silent: [at; 2] }
    }

    /// Returns the number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Returns the number of packets for which there is room.
    #[inline]
    pub fn room(&self) -> usize {
        self.handles.len() - self.len()
    }

    /// Returns the index that the next packet gets.
    #[inline]
    pub fn next(&self) -> u32 {
        self.tail
    }

    /// Takes the first `n` packets of `batch`, for which there is room; the device has them.
    pub fn take(&mut self, batch: &mut Batch, n: usize) {
        let n = n.min(self.room()).min(batch.len());
        for &handle in &batch.handles()[..n] {
            let place = self.place(self.tail);
            self.handles[place] = handle;
            self.tail = self.tail.wrapping_add(1);
        }
        // SAFETY: the flight has the handles; `done` takes each out once and adopts it.
        unsafe { batch.took(n) };
    }

    /// Notes that the device took only the first `n` packets of the last chain. The last packet of
    /// a chain makes its completion, so these make none. Returns true if no packet that the device
    /// has makes one.
    #[cold]
    pub fn cut_chain(&mut self, n: usize) -> bool {
        let first = self.tail.wrapping_sub(n as u32);
        if self.silent[1] != first {
            self.silent[0] = first;
        }
        self.silent[1] = self.tail;
        self.len() <= self.tail.wrapping_sub(self.silent[0]) as usize
    }

    /// Returns true if the device has the packet of `index`.
    #[inline]
    pub fn has(&self, index: u32) -> bool {
        (index.wrapping_sub(self.head) as usize) < self.len()
    }

    /// Moves the packets up to and with that of `index`, which the device has, to `done`, at most
    /// as many as that has room for; returns true if that were all.
    pub fn done(&mut self, index: u32, done: &mut Batch) -> bool {
        while self.has(index) {
            if done.spare() == 0 {
                return false;
            }
            let handle = self.handles[self.place(self.head)];
            self.head = self.head.wrapping_add(1);
            // SAFETY: `take` put the handle here, and it is out of the flight now.
            unsafe { done.adopt(&[handle]) };
        }
        true
    }

    fn place(&self, index: u32) -> usize {
        index as usize & (self.handles.len() - 1)
    }

    /// Counts the packets and their bytes.
    pub fn count(&self) -> Moved {
        let (mut some, mut moved) =
            (Batch::<linerate_skb::Unique>::with_capacity(1), Moved::default());
        for i in 0..self.len() as u32 {
            let handle = self.handles[self.place(self.head.wrapping_add(i))];
            // SAFETY: the flight keeps the handle, and the batch gives it up before the next step.
            unsafe { some.adopt(&[handle]) };
            moved += some.count_from(0);
            // SAFETY: as above.
            unsafe { some.took(1) };
        }
        moved
    }

    /// Drops all packets for `reason`, when the device has none of them any more; returns how many,
    /// and their bytes.
    pub fn discard(&mut self, reason: DropReason) -> Moved {
        let (mut some, mut moved) = (Batch::with_capacity(64), Moved::default());
        while self.len() > 0 {
            self.done(self.tail.wrapping_sub(1), &mut some);
            moved += some.count_from(0);
            some.discard(reason);
        }
        moved
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.discard(DropReason::PEER_GONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_skb::{Local, Pool};
    use proptest::prelude::*;

    fn pool() -> (Pool, Local) {
        let pool = Pool::builder().frames(64).build().unwrap();
        let mem = pool.local();
        (pool, mem)
    }

    #[test]
    fn a_completion_ends_all_before_it_across_the_end_of_the_numbers() {
        let (pool, mut mem) = pool();
        let mut flight = Flight::new(8, u32::MAX - 3);
        let (mut batch, mut done) = (Batch::with_capacity(16), Batch::with_capacity(16));
        mem.alloc(&mut batch, 10);
        flight.take(&mut batch, 10);
        assert_eq!((flight.len(), flight.room(), batch.len()), (8, 0, 2));
        assert!(
            flight.has(u32::MAX) && flight.has(3) && !flight.has(4) && !flight.has(u32::MAX - 4)
        );
        assert!(flight.done(0, &mut done));
        assert_eq!((done.len(), flight.len(), flight.next()), (5, 3, 4));
        assert!(flight.done(u32::MAX, &mut done), "those are done already");
        assert_eq!(done.len(), 5);
        drop(flight);
        done.clear();
        batch.clear();
        assert_eq!(pool.ledger().in_flight, 0);
        assert_eq!(pool.ledger().dropped(DropReason::PEER_GONE), 3);
    }

    #[test]
    fn only_a_chain_that_was_taken_whole_makes_a_completion() {
        let (_pool, mut mem) = pool();
        let mut flight = Flight::new(32, u32::MAX - 6);
        assert!(flight.cut_chain(0), "it has nothing");
        let (mut batch, mut done) = (Batch::with_capacity(32), Batch::with_capacity(32));
        mem.alloc(&mut batch, 32);
        let mut take = |flight: &mut Flight, n| flight.take(&mut batch, n);
        take(&mut flight, 4);
        assert!(!flight.cut_chain(0), "four that make a completion");
        take(&mut flight, 5);
        assert!(!flight.cut_chain(5));
        flight.done(u32::MAX - 3, &mut done);
        assert!(flight.cut_chain(0), "five of a chain alone");
        take(&mut flight, 2);
        assert!(flight.cut_chain(2) && flight.cut_chain(0), "and two of the next");
        take(&mut flight, 1);
        assert!(!flight.cut_chain(0), "one that makes a completion for all");
        flight.done(flight.next().wrapping_sub(1), &mut done);
        assert!(flight.cut_chain(0), "it has nothing");
        done.clear();
    }

    #[test]
    fn packets_that_are_left_are_counted_with_their_bytes() {
        let (pool, mut mem) = pool();
        let (mut flight, mut batch) = (Flight::new(8, u32::MAX), Batch::with_capacity(3));
        for len in [60, 70, 80] {
            assert!(batch.push(mem.alloc_copy(&vec![0; len]).unwrap()).is_ok());
        }
        flight.take(&mut batch, 3);
        let all = Moved { packets: 3, bytes: 210 };
        assert_eq!((flight.count(), flight.len()), (all, 3));
        assert_eq!(flight.discard(DropReason::DEVICE_DOWN), all);
        assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 3);
    }

    proptest! {
        /// Any order of takes and completions, from any index: each packet comes back once, in
        /// order.
        #[test]
        fn packets_come_back_once_and_in_order(
            at in any::<u32>(),
            steps in prop::collection::vec((any::<bool>(), 0..12usize), 1..60),
        ) {
            let (pool, mut mem) = pool();
            let mut flight = Flight::new(16, at);
            let (mut batch, mut done) = (Batch::with_capacity(16), Batch::with_capacity(5));
            let mut model = std::collections::VecDeque::new();
            for (sends, n) in steps {
                if sends {
                    mem.alloc(&mut batch, n);
                    let n = n.min(flight.room()).min(batch.len());
                    model.extend(batch.handles()[..n].to_vec());
                    flight.take(&mut batch, n);
                    batch.clear();
                } else if n > 0 && n <= flight.len() {
                    let index = flight.next().wrapping_sub((flight.len() - n) as u32 + 1);
                    loop {
                        let all = flight.done(index, &mut done);
                        for handle in done.handles() {
                            prop_assert_eq!(model.pop_front(), Some(*handle));
                        }
                        done.clear();
                        if all {
                            break;
                        }
                    }
                }
                prop_assert_eq!(flight.len(), model.len());
            }
            drop(flight);
            prop_assert_eq!(pool.ledger().in_flight, 0);
        }
    }
}
