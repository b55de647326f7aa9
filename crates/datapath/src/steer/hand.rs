//! One output of a division: how far what was handed to it has got.
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

/// An output. Only the stage has it.
pub(crate) struct Hand {
    /// The ring's end here.
    near: Arc<QueueStats>,
    /// The worker at its other end; none if the output is no ring, and what was sent by it has left.
    far: Option<Far>,
    /// Packets handed: as many as were sent by the near end when its worker was last clear, and those since.
    /// What was dropped on the way is in it until then.
    handed: u64,
    /// Packets that the near end had sent by then.
    sent: u64,
    /// Packets of these that are known to have left.
    left: u64,
    mark: Option<u64>,
    /// Others send there as well: numbers say less than they seem to.
    shared: bool,
}

/// The worker at the other end of an output's ring.
pub(crate) struct Far {
    pub page: Arc<Clear>,
    /// The ring's end there, as that page counts.
    pub end: usize,
    /// Each ring out of it: its end there, the counts of its other end, and how many that one is to have received.
    pub out: Vec<(usize, Arc<QueueStats>, u64)>,
}

impl Hand {
    pub fn new(near: Arc<QueueStats>, far: Option<Far>) -> Hand {
        Hand { near, far, handed: 0, sent: 0, left: 0, mark: None, shared: false }
    }

    /// Counts a packet; returns its number.
    pub fn handed(&mut self) -> u64 {
        self.handed += 1;
        self.handed
    }

    /// Learns, when the own worker is clear, how many were really sent.
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
        // Once for the mark that there is, and once for a newer one.
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

    /// Returns true if the packet of that number, and all before it, have left. The own worker has been clear
    /// since it was handed.
    pub fn has_left(&self, number: u64) -> bool {
        // One that was dropped has a number that is not reached; what was sent, all of it, has left then.
        let number = if self.shared { self.sent } else { number.min(self.sent) };
        self.left >= number
    }
}
