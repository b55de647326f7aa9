//! One output of a division: how many of the packets handed to it have left.
//!
//! ```text
//!   stage ─► near end of the ring ─► far end ─► far worker ─► rings out of it ─► their readers
//!          own page: given, sent       far page: received       far page: sent     received
//! ```
//!
//! The dividing stage hands packets to the output; [`Hand`] counts them. A packet has left when
//! nothing can delay it any more: it has passed the far worker, and the ring out of that worker.
//! Its flow may then use another output, and stays in order.
//!
//! This is known from the pages of the workers (clear.rs), in two steps. First, the far worker was
//! clear after it had received the packets. Second, the readers of the rings out of that worker
//! have received all packets that these rings had been sent by then. A mark keeps the count of the
//! first step until the second one is done; one mark is pending at a time. If a worker was dropped,
//! its page says that it has received `u64::MAX` packets, so that it is not waited for.

use std::sync::Arc;

use linerate_port::QueueStats;

use super::Clear;

/// An output of a division, with counts of the packets sent to it and gone. Only the stage uses it.
pub(crate) struct Hand {
    /// Counters of the ring's near end.
    near: Arc<QueueStats>,
    /// The page of this worker, and the index of the ring's near end there; `None` if the output is
    /// no ring.
    own: Option<(Arc<Clear>, usize)>,
    /// The worker at the ring's far end; `None` if the output is no ring, so that a packet has left
    /// once it is sent.
    far: Option<Far>,
    /// Packets handed to the output: those that the near end had sent when last no packet waited
    /// for the outputs, and those handed over since. Dropped packets are included until no packet
    /// waits again.
    handed: u64,
    /// Packets that the near end had sent then.
    sent: u64,
    /// The value of `sent` before that.
    sent_before: u64,
    /// Packets that all stages had given to the near end by then.
    given: u64,
    /// Packets of `sent` that are known to have left.
    left: u64,
    /// Packets that the far worker had received when it was clear; they have left when the readers
    /// of the rings out of it have received enough. `None` if no mark is pending.
    mark: Option<u64>,
    /// True if a packet's number in `handed` may be less than its number in the ring: other stages
    /// send to the output, too, a wrapper of the near end may lose and double packets, or its
    /// discipline may reorder and cut them.
    shared: bool,
}

/// The worker at the far end of an output's ring.
#[derive(Debug)]
pub(crate) struct Far {
    pub page: Arc<Clear>,
    /// The index of the ring's end on that worker's page.
    pub end: usize,
    /// For each ring out of that worker: its end at the worker, its reader, and the number of
    /// packets that the reader must have received.
    pub out: Vec<(usize, Reader, u64)>,
}

impl Far {
    /// Returns how many packets of the ring have passed the worker; notes what the readers of the
    /// rings out of it must receive until all these packets have left.
    pub fn mark(&mut self) -> u64 {
        let received = self.page.received(self.end);
        self.out.iter_mut().for_each(|(end, _, due)| *due = self.page.sent(*end));
        received
    }

    /// Returns true if the readers have received what was noted.
    pub fn is_read(&self) -> bool {
        self.out.iter().all(|(_, reader, due)| reader.received() >= *due)
    }
}

/// The reader of a ring.
#[derive(Debug)]
pub(crate) enum Reader {
    /// The counters of the reader's end, the page of its worker, and the index of the end there.
    Plain(Arc<QueueStats>, Arc<Clear>, usize),
    /// The page of its worker, and the index of the end there: the end has a wrapper, which may
    /// withhold packets.
    Wrapped(Arc<Clear>, usize),
}

impl Reader {
    /// Returns how many packets of the ring have certainly passed the reader's end; `u64::MAX` if
    /// its worker was dropped, because the others are never received.
    fn received(&self) -> u64 {
        match self {
            Reader::Plain(counters, page, end) => {
                counters.counts().rx_packets.max(page.received(*end))
            }
            Reader::Wrapped(page, end) => page.received(*end),
        }
    }
}

impl Hand {
    /// Creates an output to which no packet was handed over; `shared` is true if its near end has a
    /// wrapper or a discipline.
    pub fn new(
        near: Arc<QueueStats>,
        own: Option<(Arc<Clear>, usize)>,
        far: Option<Far>,
        shared: bool,
    ) -> Hand {
        let (handed, sent, sent_before, given, left, mark) = (0, 0, 0, 0, 0, None);
        Hand { near, own, far, handed, sent, sent_before, given, left, mark, shared }
    }

    /// Counts a packet handed over; returns the packet's number.
    pub fn handed(&mut self) -> u64 {
        self.handed += 1;
        self.handed
    }

    /// Corrects `handed` to the packets actually sent; called when no packet waits for the outputs.
    ///
    /// The packets given tell whether other stages send to the output, too: those sent do not,
    /// because a drop may hide a packet of another stage. Every packet handed over is also given,
    /// because the worker runs the stages of divisions last, before only `Xconnect`, and these drop
    /// none.
    pub fn sent(&mut self) {
        let own = self.handed - self.sent;
        let given = self.own.as_ref().map_or(0, |(page, end)| page.given(*end));
        self.sent_before = self.sent;
        self.sent = self.near.counts().tx_packets;
        self.shared |= self.sent > self.handed || given.saturating_sub(self.given) > own;
        (self.given, self.handed) = (given, self.sent);
    }

    /// Updates how many of the packets handed over have left.
    pub fn advance(&mut self) {
        let Some(far) = &mut self.far else {
            self.left = self.sent;
            return;
        };
        // Once for the pending mark, and once more because a newer mark may already hold.
        for _ in 0..2 {
            let mark = *self.mark.get_or_insert_with(|| far.mark());
            if !far.is_read() {
                return;
            }
            self.left = mark;
            self.mark = None;
        }
    }

    /// Returns true if the packet with that number, and all packets before it, have left. Call it
    /// only if at some time after the packet was handed over no packet waited for the outputs;
    /// `is_new` is true unless [`Hand::sent`] was called twice since then.
    pub fn has_left(&self, number: u64, is_new: bool) -> bool {
        let number = match (self.shared, is_new) {
            // The number of a dropped packet is never reached; then compare with all sent packets,
            // which have left by then.
            (false, _) => number.min(self.sent),
            // Whatever its number in the ring, the packet was sent before the next call of `sent`.
            (true, true) => self.sent,
            (true, false) => self.sent_before,
        };
        self.left >= number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_of_another_stage_is_not_hidden_by_a_drop() {
        // Of two packets handed over, one is dropped. The packet of another stage before them has
        // left.
        let has_left = |given| {
            let near = Arc::<QueueStats>::default();
            let far = Far { page: Clear::of(1, 0), end: 0, out: Vec::new() };
            let mut hand =
                Hand::new(near.clone(), Some((Clear::of(0, given), 0)), Some(far), false);
            let (first, _) = (hand.handed(), hand.handed());
            near.count_tx(2, 120);
            hand.sent();
            hand.advance();
            hand.has_left(first, true)
        };
        assert!(has_left(2), "without the other stage it is the first that left");
        assert!(!has_left(3));
    }

    #[test]
    fn packet_after_a_doubled_one_has_not_left_before_its_place_in_the_ring_has() {
        // A wrapper doubles the first of three packets and drops the third: the second one is the
        // third in the ring.
        let of = |received, is_wrapped| {
            let near = Arc::<QueueStats>::default();
            let far = Far { page: Clear::of(received, 0), end: 0, out: Vec::new() };
            let own = Some((Clear::of(0, 3), 0));
            let mut hand = Hand::new(near.clone(), own, Some(far), is_wrapped);
            let (_, second, _) = (hand.handed(), hand.handed(), hand.handed());
            near.count_tx(3, 180);
            hand.sent();
            hand.advance();
            (near, hand, second)
        };
        let has_left = |received, is_wrapped| {
            let (_, hand, second) = of(received, is_wrapped);
            hand.has_left(second, true)
        };
        assert!(has_left(2, false), "without a wrapper it is the second in the ring");
        assert!(!has_left(2, true) && has_left(3, true));
        // Packets that are sent later do not delay the answer.
        let (near, mut hand, second) = of(3, true);
        hand.handed();
        near.count_tx(1, 60);
        hand.sent();
        assert!(!hand.has_left(second, true) && hand.has_left(second, false));
    }

    #[test]
    fn more_sent_than_handed_is_of_another_sender() {
        let near = Arc::<QueueStats>::default();
        let far = Far { page: Clear::of(1, 0), end: 0, out: Vec::new() };
        let mut hand = Hand::new(near.clone(), Some((Clear::of(0, 1), 0)), Some(far), false);
        let first = hand.handed();
        near.count_tx(2, 120);
        hand.sent();
        hand.advance();
        assert!(!hand.has_left(first, true), "the second packet in the ring may be this one");
    }

    #[test]
    fn a_newer_mark_that_holds_is_seen_by_the_same_call() {
        let near = Arc::<QueueStats>::default();
        let page = Clear::of(0, 0);
        let far = Far { page: page.clone(), end: 0, out: Vec::new() };
        let mut hand = Hand::new(near, None, Some(far), false);
        hand.mark = Some(0);
        page.receives(5);
        hand.advance();
        assert_eq!(hand.left, 5);
    }
}
