//! A sink that verifies stamped packets (sequence, order and every byte) and drops all packets.

use std::os::fd::{AsFd, BorrowedFd};

use linerate_skb::{Batch, Local, Moved, Result, Skb};
use linerate_sys::wait::EventFd;
use linerate_wire::stamp::{self, Stamp, StampError};

use crate::caps::Caps;
use crate::driver::{Driver, DriverFlags, DriverHelp, Needs, OpenContext, Opened, Plan};
use crate::r#gen::FLOWS_MAX;
use crate::obtained::{Direction, Obtained};
use crate::queue::{QueueOps, Want};
use crate::spec::Spec;
use crate::stats::Counters;
use crate::stats::Verified;

const PACKET_MAX_BYTES: usize = 1 << 16;

/// The driver of `sink:[blind]`: with `blind` the sink does not read the packets.
#[derive(Debug)]
pub struct Sink;

impl Driver for Sink {
    fn name(&self) -> &'static str {
        "sink"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "sink:[blind]",
            text: "verifies numbered packets and frees all packets",
        }
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { nameless: true, ..DriverFlags::default() }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        let blind = spec.flag("blind")?;
        spec.finish()?;
        Ok(Box::new(SinkPlan { name: spec.name.clone(), blind }))
    }
}

struct SinkPlan {
    name: String,
    blind: bool,
}

impl Plan for SinkPlan {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs { direction: Direction::Sink, ..Needs::default() })
    }

    fn open(&self, _: &mut OpenContext<'_>) -> Result<Opened> {
        let mode = if self.blind { "sink" } else { "sink, verifies sequence, order and payload" };
        let obtained = Obtained::new(&self.name, mode, PACKET_MAX_BYTES).direction(Direction::Sink);
        let verifier = (!self.blind).then(Verifier::default);
        let bell = EventFd::new()?;
        bell.signal();
        Ok(Opened::single(SinkQueue { bell, verifier }, obtained))
    }
}

/// A flow: the next sequence number, and a bit for each of the 64 numbers before it that has
/// arrived.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    next: u64,
    window: u64,
}

/// Verifier of stamped packets, one packet at a time.
#[derive(Debug, Default)]
pub struct Verifier {
    found: Verified,
    flows: Vec<Flow>,
    scratch: Vec<u8>,
}

impl Verifier {
    /// Returns the findings so far.
    #[must_use]
    pub fn found(&self) -> Verified {
        self.found
    }

    /// Checks one packet.
    pub fn check(&mut self, skb: &Skb) {
        // Copy a packet that cannot be borrowed in one piece: a chain, or memory that a peer can
        // write.
        let whole = skb.data();
        let read = if whole.len() == skb.len() {
            stamp::read(whole)
        } else {
            self.scratch.resize(skb.len(), 0);
            let n = skb.copy_to(0, &mut self.scratch);
            stamp::read(&self.scratch[..n])
        };
        match read {
            Ok(stamp) if u64::from(stamp.flow) < FLOWS_MAX => self.place(stamp),
            Ok(_) | Err(StampError::Header | StampError::Payload) => self.found.corrupted += 1,
            Err(_) => self.found.foreign += 1,
        }
    }

    /// Checks one packet's bytes; returns its stamp if no byte has changed.
    pub fn check_frame(&mut self, frame: &[u8]) -> Option<Stamp> {
        match stamp::read(frame) {
            Ok(stamp) if u64::from(stamp.flow) < FLOWS_MAX => {
                self.place(stamp);
                return Some(stamp);
            }
            Ok(_) | Err(StampError::Header | StampError::Payload) => self.found.corrupted += 1,
            Err(_) => self.found.foreign += 1,
        }
        None
    }

    // Inlining this saves 4 % of the instructions from a generator to a sink.
    #[inline(always)]
    fn place(&mut self, stamp: Stamp) {
        self.found.packets += 1;
        let flow = stamp.flow as usize;
        if flow >= self.flows.len() {
            self.flows.resize(flow + 1, Flow::default());
        }
        let flow = &mut self.flows[flow];
        if stamp.seq >= flow.next {
            let gap = stamp.seq - flow.next;
            self.found.lost = self.found.lost.saturating_add(gap);
            let shift = gap.saturating_add(1);
            flow.window = if shift < 64 { flow.window << shift } else { 0 } | 1;
            flow.next = stamp.seq.saturating_add(1);
            return;
        }
        let back = flow.next - 1 - stamp.seq;
        if back >= 64 {
            self.found.late += 1;
            return;
        }
        if flow.window >> back & 1 == 1 {
            self.found.duplicated += 1;
            return;
        }
        flow.window |= 1 << back;
        // The packet was counted as lost when a later one arrived.
        self.found.reordered += 1;
        self.found.lost = self.found.lost.saturating_sub(1);
    }
}

struct SinkQueue {
    /// Event that is signalled once, for callers that wait before they arm: a sink never delivers a
    /// packet.
    bell: EventFd,
    verifier: Option<Verifier>,
}

impl QueueOps for SinkQueue {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        if let Some(verifier) = &mut self.verifier {
            batch.iter().for_each(|skb| verifier.check(skb));
        }
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, want: Want) -> bool {
        self.bell.drain();
        !want.room()
    }

    fn counters(&mut self) -> Counters {
        let verified = self.verifier.as_ref().map(Verifier::found);
        Counters { verified, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        Caps::IN_PROCESS
    }
}

impl AsFd for SinkQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_skb::{Pool, Trust};

    fn feed(numbers: &[u64]) -> Verified {
        let pool = Pool::builder().frames(8).build().unwrap();
        let mut mem = pool.local();
        let mut verifier = Verifier::default();
        for &seq in numbers {
            let mut skb = mem.alloc_one().unwrap();
            stamp::write(skb.put(64).unwrap(), 1, seq, 0).unwrap();
            verifier.check(&skb);
        }
        verifier.found()
    }

    #[test]
    fn order_loss_and_repetition_are_told_apart() {
        let clean = Verified { packets: 4, ..Verified::default() };
        assert_eq!(feed(&[0, 1, 2, 3]), clean);
        assert_eq!(feed(&[0, 1, 4, 5]), Verified { lost: 2, ..clean });
        assert_eq!(feed(&[0, 2, 1, 3]), Verified { reordered: 1, ..clean });
        assert_eq!(feed(&[0, 1, 1, 2]), Verified { duplicated: 1, ..clean });
        assert_eq!(feed(&[0, 64, 1, 65]), Verified { lost: 62, reordered: 1, ..clean });
    }

    #[test]
    fn late_packets_do_not_hide_a_loss() {
        let found = Verified { packets: 3, lost: 199, late: 1, ..Verified::default() };
        assert_eq!(feed(&[0, 200, 0]), found);
        assert_eq!(feed(&[0, 200, 3]), found);
    }

    #[test]
    fn numbers_at_the_end_of_their_range_are_counted() {
        let pool = Pool::builder().frames(8).build().unwrap();
        let mut mem = pool.local();
        let mut verifier = Verifier::default();
        for (flow, seq) in [(0, u64::MAX), (1, 5), (0, u64::MAX), (0, 0)] {
            let mut skb = mem.alloc_one().unwrap();
            stamp::write(skb.put(64).unwrap(), flow, seq, 0).unwrap();
            verifier.check(&skb);
        }
        assert_eq!((verifier.found().packets, verifier.found().lost), (4, u64::MAX));
    }

    #[test]
    fn memory_that_a_peer_writes_is_verified_from_a_copy() {
        let pool = Pool::builder().frames(8).trust(Trust::Exported).build().unwrap();
        let mut frame = vec![0; 64];
        stamp::write(&mut frame, 0, 0, 0).unwrap();
        let mut verifier = Verifier::default();
        verifier.check(&pool.local().alloc_copy(&frame).unwrap());
        assert_eq!(verifier.found(), Verified { packets: 1, ..Verified::default() });
    }

    #[test]
    fn corrupted_and_unstamped_packets_are_counted() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let mut mem = pool.local();
        let mut verifier = Verifier::default();
        let mut frame = vec![0; 5000];
        stamp::write(&mut frame, 0, 0, 0).unwrap();
        verifier.check(&mem.alloc_copy(&frame).unwrap());
        frame[4000] ^= 1;
        verifier.check(&mem.alloc_copy(&frame).unwrap());
        verifier.check(&mem.alloc_copy(b"ping").unwrap());
        let found = verifier.found();
        assert_eq!((found.packets, found.corrupted, found.foreign), (1, 1, 1));
    }

    #[test]
    fn a_second_copy_of_a_reordered_packet_is_a_duplicate() {
        let found = Verified { packets: 4, reordered: 1, duplicated: 1, ..Verified::default() };
        assert_eq!(feed(&[0, 2, 1, 1]), found);
    }
}
