//! The order in which a worker polls its queues.
//!
//! A queue takes all room that an output has. So of queues with one output, the first in the order
//! gets the most, and the queue that has delivered the fewest packets lately goes first. An order
//! by turns alone would not be fair: a queue that has few packets at a time would be followed by
//! the same other queue, to which it leaves little room. Queues that share no output are polled in
//! the order of their indices, because each finds the same room in any order.

use crate::napi::Napi;

/// Packets that queues which were quiet deliver at most, all together, before the others.
const CREDIT: usize = 1024;

/// The order in which a worker polls its queues.
#[derive(Debug)]
pub(crate) struct PollOrder {
    /// All queues, those that delivered the fewest packets lately in front; empty if no two share
    /// an output.
    queues: Vec<Place>,
}

/// A place in the order.
#[derive(Debug, Clone, Copy)]
struct Place {
    queue: usize,
    /// Packets that the queue delivered lately; 0 of a queue that shares no output, which is always
    /// in front.
    packets: usize,
    shares: bool,
}

impl PollOrder {
    pub fn new(napis: &[Napi]) -> PollOrder {
        let shares = share_outputs(napis);
        if !shares.contains(&true) {
            return PollOrder { queues: Vec::new() };
        }
        let place = |(queue, shares)| Place { queue, packets: 0, shares };
        PollOrder { queues: shares.into_iter().enumerate().map(place).collect() }
    }

    /// Returns true if the queues are polled in the order of their indices.
    #[inline]
    pub fn is_fixed(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns the queue at a place of an order that is not fixed.
    pub fn queue(&self, place: usize) -> usize {
        self.queues[place].queue
    }

    /// Counts packets that the queue at a place has delivered; after the last place, orders the
    /// queues for the next turn.
    #[inline(never)]
    pub fn count(&mut self, place: usize, packets: usize) {
        let is_last = place + 1 == self.queues.len();
        let place = &mut self.queues[place];
        if place.shares {
            place.packets += packets;
        }
        if is_last {
            self.sort();
        }
    }

    fn sort(&mut self) {
        // The index breaks ties, because a stable sort may allocate.
        self.queues.sort_unstable_by_key(|place| (place.packets, place.queue));
        let most = self.queues.last().map_or(0, |last| last.packets);
        let least = most.saturating_sub(CREDIT / self.queues.len().max(1));
        for place in self.queues.iter_mut().filter(|place| place.shares) {
            place.packets = place.packets.max(least);
        }
    }
}

/// Returns, for each queue, true if it shares an output with another queue.
fn share_outputs(napis: &[Napi]) -> Vec<bool> {
    let (mut owners, mut shares) = (vec![None; napis.len()], vec![false; napis.len()]);
    for (i, napi) in napis.iter().enumerate().filter(|(_, napi)| napi.reads()) {
        // The peer of a divided queue is one of its outputs.
        for output in napi.peer.iter().chain(&napi.fan) {
            if let Some(owner) = owners[*output].replace(i).filter(|owner| *owner != i) {
                (shares[owner], shares[i]) = (true, true);
            }
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::Arc;
    use std::time::Instant;

    use linerate_port::wait::EventFd;
    use linerate_port::{Direction, QueueOps, Want};
    use linerate_skb::{Batch, Local, Moved, Pool};

    use super::*;
    use crate::egress::Egress;
    use crate::stage::Xconnect;
    use crate::worker::Worker;
    use crate::worker_slot::WorkerSlot;

    /// A device that has a number of packets at each poll, and that sends 8 packets in every other
    /// call.
    struct Device {
        bell: EventFd,
        packets: usize,
        is_full: bool,
    }

    impl QueueOps for Device {
        fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
            Moved { packets: mem.alloc(out, self.packets.min(budget)), bytes: 0 }
        }

        fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
            self.is_full = !self.is_full;
            batch.sent(if self.is_full { 8.min(batch.len()) } else { 0 }, mem)
        }

        fn arm(&mut self, _: Want) -> bool {
            true
        }
    }

    impl AsFd for Device {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.bell.as_fd()
        }
    }

    /// Returns the packets received by each of some queues after many turns. A queue is given by
    /// the packets that it has at each poll, and all have one output, which is slow.
    fn received(queues: &[usize]) -> Vec<u64> {
        let pool = Pool::builder().frames(1024).build().unwrap();
        let napi = |i, packets, direction| {
            let bell = EventFd::new().unwrap();
            let device = Box::new(Device { bell, packets, is_full: false });
            let (egress, tally) = (Egress::new(256, None), pool.tally("backlog"));
            Napi::new(device, direction, Napi::id(i), egress, tally)
        };
        let mut napis = vec![napi(0, 0, Direction::Sink)];
        for (i, packets) in (1..).zip(queues) {
            let mut napi = napi(i, *packets, Direction::Both);
            napi.peer = Some(0);
            napis.push(napi);
        }
        let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
        let mems = vec![pool.local()];
        let mut worker = Worker::new(napis, vec![Box::new(Xconnect)], mems, 64, slot).unwrap();
        for _ in 0..1000 {
            worker.turn(Instant::now());
        }
        worker.napis[1..].iter().map(|napi| napi.counts().rx_packets).collect()
    }

    #[test]
    fn queues_share_a_slow_output_whatever_they_have_at_a_time() {
        let all: [&[usize]; 8] = [
            &[64, 64],
            &[64, 0, 64],
            &[64, 64, 0, 0, 0, 0],
            &[64; 5],
            &[64, 2, 64],
            &[64, 7, 64],
            &[64, 5, 64],
            &[7, 64, 1, 64],
        ];
        for queues in all {
            let received = received(queues);
            let full: Vec<u64> =
                received.iter().zip(queues).filter(|(_, n)| **n == 64).map(|(n, _)| *n).collect();
            let (least, most) = (*full.iter().min().unwrap(), *full.iter().max().unwrap());
            assert!(10 * least >= 9 * most, "{queues:?}: {received:?}");
        }
    }

    /// Gives each queue a third of the 8 packets of a turn.
    #[test]
    fn queue_with_few_packets_at_a_time_gets_its_share_and_no_more() {
        for packets in [5, 7] {
            let received = received(&[64, packets, 64]);
            let (least, most) = (*received.iter().min().unwrap(), *received.iter().max().unwrap());
            assert!(10 * least >= 9 * most, "{packets}: {received:?}");
        }
    }

    /// Returns an order of queues, all of which share an output.
    fn order(queues: usize) -> PollOrder {
        let place = |queue| Place { queue, packets: 0, shares: true };
        PollOrder { queues: (0..queues).map(place).collect() }
    }

    #[test]
    fn every_queue_is_polled_once_a_turn_and_those_that_deliver_least_are_first_in_the_next() {
        let mut order = order(4);
        let mut turn = |delivers: [usize; 4]| {
            let polled: Vec<usize> = (0..4).map(|place| order.queue(place)).collect();
            (0..4).for_each(|place| order.count(place, delivers[polled[place]]));
            order.sort();
            polled
        };
        assert_eq!(turn([8, 7, 0, 0]), [0, 1, 2, 3]);
        assert_eq!(turn([0, 0, 0, 9]), [2, 3, 1, 0]);
        assert_eq!(turn([0, 0, 0, 0]), [2, 1, 0, 3]);
        assert_eq!(turn([2, 2, 2, 2]), [2, 1, 0, 3]);
        assert_eq!(turn([0, 0, 0, 0]), [2, 1, 0, 3]);
    }

    #[test]
    fn queue_that_was_quiet_is_first_for_a_bounded_number_of_packets() {
        let mut order = order(2);
        for _ in 0..1000 {
            // Queue 0 is the last one, because it delivers in each turn.
            let place = usize::from(order.queue(0) != 0);
            order.count(place, 64);
            order.sort();
        }
        let mut packets = 0;
        while order.queue(0) == 1 {
            order.count(0, 64);
            order.sort();
            packets += 64;
        }
        assert!(packets <= CREDIT + 64, "{packets}");
    }

    #[test]
    fn queues_that_were_quiet_are_together_first_for_a_bounded_number_of_packets() {
        const QUEUES: usize = 8;
        let mut order = order(QUEUES);
        for _ in 0..1000 {
            let place = (0..QUEUES).find(|place| order.queue(*place) == 0).unwrap();
            order.count(place, 64);
            order.sort();
        }
        let mut packets = 0;
        while order.queue(0) != 0 {
            order.count(0, 64);
            order.sort();
            packets += 64;
        }
        assert!(packets <= CREDIT + 64 * QUEUES, "{packets}");
    }

    #[test]
    fn queue_with_an_output_of_its_own_is_not_counted() {
        let mut order = order(3);
        order.queues[2].shares = false;
        order.count(2, 1000);
        order.count(0, 8);
        order.sort();
        assert_eq!([0, 1, 2].map(|place| order.queue(place)), [1, 2, 0]);
    }
}
