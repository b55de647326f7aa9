//! One end of a port: the queues that its driver made, with checks around every call.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Local, Moved, Pool};
use linerate_sys::wait::poll_readable;

use crate::caps::Origin;
use crate::driver::Opened;
use crate::obtained::{Direction, Obtained};
use crate::queue::{Health, QueueOps, Want};

use super::traffic::{Arrivals, id_of};

/// Packets of a batch.
pub(super) const BATCH: usize = 64;
/// Number of attempts at a call that may first have to report earlier events.
pub(super) const TRIES: usize = 1000;

struct Slot {
    ops: Box<dyn QueueOps>,
    mem: Local,
    fd: RawFd,
}

/// Packets that passed an end, as counted by its calls and as counted in the batches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Passed {
    /// Packets that left a batch offered to `xmit`.
    pub taken: u64,
    /// Those of these packets that `xmit` reported as moved.
    pub sent: u64,
    /// Number of packets that `rx` appended.
    pub received: u64,
    /// Packets that the suite freed at this end, as consumed.
    pub consumed: u64,
}

pub(super) struct End {
    slots: Vec<Slot>,
    /// The queue that sends.
    sends_by: usize,
    /// Event for which the queues were armed the last time.
    armed: Want,
    obtained: Obtained,
    pub passed: Passed,
}

impl End {
    pub fn new(opened: Opened, pool: &Pool) -> End {
        let Opened { queues, obtained } = opened;
        assert!(!queues.is_empty(), "an opened port has at least one queue");
        assert_eq!(
            obtained.queues,
            queues.len(),
            "queues that obtained() says, and that there are"
        );
        assert!(obtained.packet_max_bytes > 0, "obtained() says no longest packet: {obtained}");
        let slot = |ops: Box<dyn QueueOps>| {
            let fd = ops.as_fd().as_raw_fd();
            Slot { ops, mem: pool.local_with(256.min(pool.hot_list_len_for(0))), fd }
        };
        let slots = queues.into_iter().map(slot).collect();
        End { slots, sends_by: 0, armed: Want::Frames, obtained, passed: Passed::default() }
    }

    /// Returns the number of queues.
    pub fn queues(&self) -> usize {
        self.slots.len()
    }

    /// Makes queue `queue` send, and no longer the first one.
    pub fn send_by(&mut self, queue: usize) {
        self.sends_by = queue;
    }

    pub fn obtained(&self) -> &Obtained {
        &self.obtained
    }

    pub fn sends(&self) -> bool {
        self.obtained.direction != Direction::Source
    }

    pub fn receives(&self) -> bool {
        self.obtained.direction != Direction::Sink
    }

    pub fn origin(&self) -> Origin {
        self.slots[0].ops.caps().origin
    }

    /// Returns the memory from which the end allocates packets to send.
    pub fn mem(&mut self) -> &mut Local {
        &mut self.slots[self.sends_by].mem
    }

    /// Offers `batch` to the queue that sends; returns the packets that the queue reports as moved.
    pub fn xmit(&mut self, batch: &mut Batch) -> Moved {
        let ids: Vec<_> = batch.iter().map(id_of).collect();
        let lens: Vec<_> = batch.iter().map(|skb| skb.len() as u64).collect();
        let Slot { ops, mem, .. } = &mut self.slots[self.sends_by];
        let moved = ops.xmit(mem, batch);
        let taken = ids.len().checked_sub(batch.len()).expect("xmit() added to the batch");
        assert!(
            batch.iter().map(id_of).eq(ids[taken..].iter().copied()),
            "xmit() took {taken} of {} packets, and left other packets in the batch than the remaining ones in order",
            ids.len()
        );
        assert!(
            moved.packets <= taken,
            "xmit() says that it moved {} packets, and {taken} left the batch",
            moved.packets
        );
        let bytes: u64 = lens[..taken].iter().sum();
        let agree =
            if moved.packets == taken { moved.bytes == bytes } else { moved.bytes <= bytes };
        assert!(agree, "xmit() says {moved:?}; {taken} packets of {bytes} bytes left the batch");
        self.passed.taken += taken as u64;
        self.passed.sent += moved.packets as u64;
        moved
    }

    /// Receives up to `budget` packets from all queues, and appends them to `out`.
    pub fn rx(&mut self, out: &mut Batch, budget: usize) -> usize {
        let start = out.len();
        for slot in &mut self.slots {
            let budget = (budget - (out.len() - start)).min(out.spare());
            let ids: Vec<_> = out.iter().map(id_of).collect();
            let before = out.len();
            let moved = slot.ops.rx(&mut slot.mem, out, budget);
            let n = out.len().checked_sub(before).expect("rx() took from the batch");
            assert!(out.iter().map(id_of).take(before).eq(ids), "rx() changed what was there");
            assert!(n <= budget, "rx() was given a budget of {budget}, and appended {n}");
            assert_eq!(moved, out.count_from(before), "what rx() says, and what it appended");
            if slot.ops.caps().origin == Origin::Device {
                slot.mem.count_received(n);
            }
            self.passed.received += n as u64;
        }
        out.len() - start
    }

    /// Receives once, up to `budget` packets, and checks them; returns how many arrived.
    pub fn take(&mut self, arrivals: &mut Arrivals, budget: usize) -> usize {
        let mut batch = Batch::with_capacity(budget.max(1));
        let n = self.rx(&mut batch, budget);
        batch.iter().for_each(|skb| arrivals.take(skb));
        self.consume(&mut batch);
        n
    }

    /// Receives until `count` packets of `arrivals` have arrived.
    pub fn collect(&mut self, arrivals: &mut Arrivals, count: usize, patience: Duration) {
        self.collect_until(arrivals, |arrivals| arrivals.came() >= count, patience);
    }

    /// Receives packets, and waits for more, until `done` returns true.
    pub fn collect_until(
        &mut self,
        arrivals: &mut Arrivals,
        done: impl Fn(&Arrivals) -> bool,
        patience: Duration,
    ) {
        let mut deadline = Instant::now() + patience;
        while !done(arrivals) {
            let before = arrivals.came();
            if self.take(arrivals, BATCH) > 0 {
                if arrivals.came() > before {
                    deadline = Instant::now() + patience;
                }
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{}", arrivals.missing());
            if !self.wait(Want::Frames, left) {
                let late = self.take(arrivals, BATCH);
                assert_eq!(late, 0, "packets that waited, and the poller was not woken for them");
                panic!("{}", arrivals.missing());
            }
        }
    }

    /// Frees packets as consumed.
    pub fn consume(&mut self, batch: &mut Batch) {
        self.passed.consumed += batch.len() as u64;
        batch.consume(&mut self.slots[0].mem);
    }

    /// Takes frames from the pool until it has none.
    pub fn hoard(&mut self, frames: usize) -> Batch {
        let mut hoard = Batch::with_capacity(frames);
        for slot in &mut self.slots {
            while slot.mem.alloc(&mut hoard, BATCH) > 0 {}
        }
        hoard
    }

    /// Returns frames that were never used as packets.
    pub fn release(&mut self, mut hoard: Batch) {
        hoard.truncate_to(0, &mut self.slots[0].mem);
    }

    /// Takes back the packets that the end's queues have sent.
    pub fn reap(&mut self) -> usize {
        self.slots.iter_mut().map(|slot| slot.ops.reap(&mut slot.mem)).sum()
    }

    /// Arms each queue for packets, and for room only the one that sends: the others have room.
    pub fn arm(&mut self, want: Want) -> bool {
        self.armed = want;
        let sends_by = self.sends_by;
        let silent = self.slots.iter_mut().enumerate().all(|(queue, slot)| {
            if queue == sends_by {
                return slot.ops.arm(want);
            }
            !want.frames() || slot.ops.arm(Want::Frames)
        });
        self.check_descriptors();
        silent
    }

    /// Holds each queue that can be held for `time`, one after the other; returns false if the
    /// descriptor of one does not become readable within `patience`.
    pub fn holds_end(&mut self, time: Duration, patience: Duration) -> bool {
        self.slots.iter_mut().all(|slot| {
            !slot.ops.hold(Instant::now() + time)
                || poll_readable(&[slot.ops.as_fd()], Some(patience)).is_ok_and(|rings| rings)
        })
    }

    /// Returns true if a descriptor of the armed queues becomes readable within `timeout`.
    pub fn readable(&self, timeout: Duration) -> bool {
        let (sending, all) = (&self.slots[self.sends_by..=self.sends_by], &self.slots[..]);
        let armed = if self.armed == Want::Room { sending } else { all };
        let fds: Vec<BorrowedFd<'_>> = armed.iter().map(|slot| slot.ops.as_fd()).collect();
        let readable = poll_readable(&fds, Some(timeout));
        readable.unwrap_or_else(|e| panic!("poll(2) on the port's descriptor: {e}"))
    }

    pub fn wait(&mut self, want: Want, timeout: Duration) -> bool {
        !self.arm(want) || self.readable(timeout)
    }

    /// Receives waiting packets until `arm` reports that none is left.
    pub fn settle(&mut self, arrivals: &mut Arrivals, patience: Duration) {
        let deadline = Instant::now() + patience;
        while !self.arm(Want::Frames) {
            let n = self.take(arrivals, BATCH);
            let late = Instant::now() >= deadline;
            assert!(
                !late,
                "arm() returns false for ever, as if packets waited, and rx() returned {n}"
            );
        }
    }

    /// Returns the worst health of the end's queues.
    pub fn health(&self) -> Health {
        let health = |slot: &Slot| {
            let (health, kind) = (slot.ops.health(), slot.ops.health_kind());
            assert_eq!(health.kind(), kind, "health_kind() is not that of health()");
            health
        };
        Health::worst(self.slots.iter().map(health))
    }

    /// Returns the number of packets that the device reports as lost.
    pub fn rx_missed(&mut self) -> u64 {
        self.slots.iter_mut().map(|slot| slot.ops.counters().rx_missed).sum()
    }

    /// Returns the number of receives that have ended early because the pool had no frame.
    pub fn rx_nombuf(&mut self) -> u64 {
        self.slots.iter_mut().map(|slot| slot.ops.counters().rx_nombuf).sum()
    }

    /// Returns true if the driver reports that it has copied packets.
    pub fn copied(&mut self) -> bool {
        let copied = |slot: &mut Slot| slot.ops.counters().driver.copied_bytes;
        self.slots.iter_mut().filter_map(copied).any(|n| n > 0)
    }

    /// Checks that a queue's descriptor never changes.
    pub fn check_descriptors(&self) {
        for slot in &self.slots {
            assert_eq!(
                slot.ops.as_fd().as_raw_fd(),
                slot.fd,
                "the queue's descriptor, and at first"
            );
        }
    }
}
