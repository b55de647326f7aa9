//! One output of a division: how many of the packets sent to it have left.
//!
//! ```text
//!   handed ─► near end of the ring ─► far end ─► its worker ─► rings out of it ─► their readers
//!          own worker clear: sent()        page: received ≥     page: sent          received ≥
//! ```
//!
//! What was handed first has left when the far worker was clear after receiving it, and the readers of the rings
//! out of that worker have received all that was in them then. It is known by marks, one at a time: an account
//! of what is to come true, and what is known once it has.

use std::sync::Arc;

use linerate_port::QueueStats;

use super::Clear;

/// An output of a division, with the progress of its packets. Only the stage has it.
pub(crate) struct Hand {
    /// Counters of the ring's near end.
    near: Arc<QueueStats>,
    /// The worker at the ring's far end; `None` if the output is no ring, so that a sent packet has
    /// left.
    far: Option<Far>,
    /// Packets handed to the output: those that the near end had sent when its worker was last
    /// clear, and those since. Packets dropped on the way are included until the worker is clear
    /// again.
    handed: u64,
    /// Packets that the near end had sent at that time.
    sent: u64,
    /// Packets of these that are known to have left.
    left: u64,
    mark: Option<u64>,
    /// True if other stages send there as well, so that the counts are only a bound.
    shared: bool,
}

/// The worker at the far end of an output's ring.
pub(crate) struct Far {
    pub page: Arc<Clear>,
    /// The index of the ring's end on that worker's page.
    pub end: usize,
    /// For each ring out of that worker: its end there, the counters of the other end, and how many
    /// packets that end must have received.
    pub out: Vec<(usize, Arc<QueueStats>, u64)>,
}

impl Hand {
    pub fn new(near: Arc<QueueStats>, far: Option<Far>) -> Hand {
        Hand { near, far, handed: 0, sent: 0, left: 0, mark: None, shared: false }
    }

    /// Counts a packet handed over; returns its number.
    pub fn handed(&mut self) -> u64 {
        self.handed += 1;
        self.handed
    }

    /// Corrects the count to the packets actually sent, when the own worker is clear.
    pub fn sent(&mut self) {
        self.sent = self.near.counts().tx_packets;
        self.shared |= self.sent > self.handed;
        self.handed = self.sent;
    }

    /// Updates how many of the packets handed over have left.
    pub fn advance(&mut self) {
        let Some(far) = &mut self.far else {
            self.left = self.sent;
            return;
        };
        // Once for the present mark, and once for a newer mark.
        for _ in 0..2 {
            let mark = *self.mark.get_or_insert_with(|| {
                let received = far.page.received(far.end);
                far.out.iter_mut().for_each(|(end, _, due)| *due = far.page.sent(*end));
                received
            });
            if far.out.iter().any(|(_, reader, due)| reader.counts().rx_packets < *due) {
                return;
            }
            self.left = mark;
            self.mark = None;
        }
    }

    /// Returns true if the packet with that number, and all before it, have left. The own worker
    /// has been clear since it was handed.
    pub fn has_left(&self, number: u64) -> bool {
        // A dropped packet has a number that is never reached; but all sent packets have left by then.
        let number = if self.shared { self.sent } else { number.min(self.sent) };
        self.left >= number
    }
}
