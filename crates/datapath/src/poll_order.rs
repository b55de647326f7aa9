//! The order in which a worker polls its queues.
//!
//! A queue takes all room that an output has. So of queues with one output, the first in the order gets the most, and
//! a queue that delivered packets goes to the end, as in the kernel's NAPI poll list. Queues that share no output are
//! polled in the order of their indices, because each finds the same room in any order.

use std::ops::Range;

use crate::napi::Napi;

/// The order in which a worker polls its queues.
#[derive(Debug)]
pub(crate) struct PollOrder {
    /// The queues that are polled first.
    first: Range<usize>,
    /// All queues, those that did not deliver for longest in front; empty if no two share an output.
    queues: Vec<usize>,
    /// The place of the queue that is polled now, and the number of queues polled before it in this turn.
    at: usize,
    polled: usize,
}

impl PollOrder {
    pub fn new(napis: &[Napi]) -> PollOrder {
        let queues = if share_outputs(napis) { (0..napis.len()).collect() } else { Vec::new() };
        let first = if queues.is_empty() { 0..napis.len() } else { 0..1 };
        PollOrder { first, queues, at: 0, polled: 0 }
    }

    /// Returns the queues to poll first in a turn.
    #[inline]
    pub fn first(&self) -> Range<usize> {
        self.first.clone()
    }

    /// Returns the queues to poll next in the turn, after those of the last call or of [`PollOrder::first`];
    /// `delivered` is true if one of them delivered packets. `None` ends the turn.
    #[inline]
    pub fn next(&mut self, delivered: bool) -> Option<Range<usize>> {
        if self.queues.is_empty() { None } else { self.next_of_shared(delivered) }
    }

    #[inline(never)]
    fn next_of_shared(&mut self, delivered: bool) -> Option<Range<usize>> {
        // Queues that are still to be polled stay in front of those that have delivered.
        if delivered {
            self.queues[self.at..].rotate_left(1);
        } else {
            self.at += 1;
        }
        self.polled += 1;
        let is_over = self.polled == self.queues.len();
        if is_over {
            (self.at, self.polled) = (0, 0);
        }
        let next = self.queues[self.at];
        self.first = next..next + 1;
        (!is_over).then(|| self.first.clone())
    }
}

/// Returns true if packets of two queues go to one output.
fn share_outputs(napis: &[Napi]) -> bool {
    let mut owners = vec![None; napis.len()];
    let mut read = napis.iter().enumerate().filter(|(_, napi)| napi.reads());
    read.any(|(i, napi)| {
        let outputs = napi.peer.iter().chain(&napi.fan);
        outputs.fold(false, |shared, output| {
            // The peer of a divided queue is one of its outputs.
            let before = owners[*output].replace(i);
            shared || before.is_some_and(|before| before != i)
        })
    })
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

    /// A device that has a number of packets at each poll, and that sends 8 packets in every other call.
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

    /// Returns the packets received by each of some queues after many turns. A queue is given by the packets that
    /// it has at each poll, and all have one output, which is slow.
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
    fn queues_that_always_have_packets_share_a_slow_output() {
        let all: [&[usize]; 5] =
            [&[64, 64], &[64, 0, 64], &[64, 64, 0, 0, 0, 0], &[64; 5], &[64, 2, 64]];
        for queues in all {
            let received = received(queues);
            let full: Vec<u64> =
                received.iter().zip(queues).filter(|(_, n)| **n == 64).map(|(n, _)| *n).collect();
            let (least, most) = (full.iter().min().unwrap(), full.iter().max().unwrap());
            assert!(2 * least > *most, "{queues:?}: {received:?}");
        }
    }

    #[test]
    fn every_queue_is_polled_once_a_turn_and_those_that_deliver_are_last_in_the_next() {
        let mut order = PollOrder { first: 0..1, queues: (0..4).collect(), at: 0, polled: 0 };
        let mut turn = |delivers: &[usize]| {
            let (mut polled, mut next) = (Vec::new(), Some(order.first()));
            while let Some(queues) = next {
                polled.extend(queues.clone());
                next = order.next(delivers.contains(&queues.start));
            }
            polled
        };
        assert_eq!(turn(&[0, 1]), [0, 1, 2, 3]);
        assert_eq!(turn(&[3]), [2, 3, 0, 1]);
        assert_eq!(turn(&[]), [2, 0, 1, 3]);
        assert_eq!(turn(&[0, 1, 2, 3]), [2, 0, 1, 3]);
        assert_eq!(turn(&[]), [2, 0, 1, 3]);
    }
}
