//! Divides the packets that a receive ring lost by cause: the queue's thread waited for its CPU,
//! the pool had no frame, or the thread received too slowly.
//!
//! Each cause fills the receive ring of `packet` and `tap`; `xdp` counts packets without a frame
//! apart. Between two readings, lost packets count as late if the thread's waits for a CPU together
//! were at least as long as the ring takes to fill at the mean rate of that time. This is an
//! estimate, because the kernel does not say when a packet was lost: many short waits count as one
//! long one, and a burst after a quiet time may count as a full ring.

use std::thread::ThreadId;

use linerate_sys::clock::monotonic_ns;
use linerate_sys::thread::run_delay_ns;

use crate::stats::DriverCounts;

/// Shortest time between two readings without losses.
const APART_NS: u64 = 10_000_000;

/// A reading of a queue's counters, with the wait of its thread.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// The thread that reads.
    thread: ThreadId,
    /// Time of the monotonic clock.
    ns: u64,
    /// Time for which that thread was ready and had no CPU, since its start.
    run_delay_ns: u64,
    /// Packets received so far.
    received: u64,
    /// Packets that found the receive ring full so far.
    ring_full: u64,
}

/// Counts the packets of a queue that were lost while its thread waited for its CPU.
#[derive(Debug, Default)]
pub(crate) struct Late {
    before: Option<Reading>,
    packets: u64,
    /// True after the run delay could not be read: then it is never asked for again.
    blind: bool,
}

impl Late {
    /// Reads the clocks of the calling thread if it is time, and adds the packets lost since the
    /// last reading if the thread was late. `received` and `ring_full` are the packets so far,
    /// `ring` is the ring's length in packets.
    ///
    /// Cost: a clock read; if a reading is due, a read of a file in /proc.
    pub fn observe(&mut self, received: u64, ring_full: u64, ring: u32) {
        let ns = monotonic_ns();
        if !self.is_due(ns, ring_full) {
            return;
        }
        let Ok(run_delay_ns) = run_delay_ns() else {
            // The kernel keeps no account of it.
            self.blind = true;
            return;
        };
        let thread = std::thread::current().id();
        self.read(Reading { thread, ns, run_delay_ns, received, ring_full }, ring);
    }

    /// Returns true if a reading is due: a packet was lost since the last one, or it is long ago.
    fn is_due(&self, ns: u64, ring_full: u64) -> bool {
        let is_over = |before: Reading| {
            ring_full != before.ring_full || ns.saturating_sub(before.ns) >= APART_NS
        };
        !self.blind && self.before.is_none_or(is_over)
    }

    /// Adds the packets lost since the last reading if the thread was late; a reading by another
    /// thread adds none.
    fn read(&mut self, now: Reading, ring: u32) {
        let Some(before) = self.before.replace(now).filter(|b| b.thread == now.thread) else {
            return;
        };
        let lost = now.ring_full.saturating_sub(before.ring_full);
        let arrived = now.received.saturating_sub(before.received).saturating_add(lost);
        let passed_ns = now.ns.saturating_sub(before.ns);
        let waited_ns = now.run_delay_ns.saturating_sub(before.run_delay_ns);
        // waited >= ring / rate, where rate = arrived / passed.
        let fills = u128::from(waited_ns) * u128::from(arrived);
        if waited_ns > 0 && fills >= u128::from(ring) * u128::from(passed_ns) {
            self.packets = self.packets.saturating_add(lost);
        }
    }

    /// Returns the packets counted so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }
}

/// The packets that found a queue's receive ring full, for a device that counts these together: the
/// thread that copies them into the pool may have found no frame there, or may have been late.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    late: Late,
    lost: u64,
    no_frame: u64,
    /// Receives so far that found no frame in the pool.
    starved: u64,
}

impl Losses {
    /// Adds the packets lost since the last reading to their cause. All numbers are those so far:
    /// packets received, packets lost, and receives that found no frame in the pool. `ring` is the
    /// ring's length in packets.
    ///
    /// Cost: that of [`Late::observe`].
    pub fn read(&mut self, received: u64, lost: u64, starved: u64, ring: u32) {
        if starved > self.starved {
            self.no_frame = self.no_frame.saturating_add(lost.saturating_sub(self.lost));
        }
        (self.lost, self.starved) = (lost, starved);
        self.late.observe(received, lost.saturating_sub(self.no_frame), ring);
    }

    /// Adds the packets lost so far to the counts of the driver, each to its cause.
    pub fn counts(&self, driver: DriverCounts) -> DriverCounts {
        let others = self.no_frame.saturating_add(self.late.packets());
        DriverCounts {
            missed_ring_full: self.lost.saturating_sub(others),
            missed_no_cpu: self.late.packets(),
            missed_no_frame: self.no_frame,
            ..driver
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Returns a reading after `ms` by this thread.
    fn reading(ms: u64, waited_ms: u64, received: u64, ring_full: u64) -> Reading {
        let [ns, run_delay_ns] = [ms, waited_ms].map(|ms| ms * 1_000_000);
        Reading { thread: thread::current().id(), ns, run_delay_ns, received, ring_full }
    }

    /// Returns the packets counted between these readings, for a ring of 1000.
    fn counted(readings: &[Reading]) -> u64 {
        let mut late = Late::default();
        readings.iter().for_each(|reading| late.read(*reading, 1000));
        late.packets()
    }

    #[test]
    fn losses_are_late_if_the_thread_waited_for_as_long_as_the_ring_takes_to_fill() {
        // 100,000 packets in 100 ms fill the ring in one millisecond.
        let first = reading(0, 0, 0, 0);
        assert_eq!(counted(&[first, reading(100, 1, 90_000, 10_000)]), 10_000);
        let mut shorter = reading(100, 1, 90_000, 10_000);
        shorter.run_delay_ns -= 1;
        assert_eq!(counted(&[first, shorter]), 0);
        // Later losses without a wait are not added, and earlier ones stay.
        let later = [first, reading(100, 1, 90_000, 10_000), reading(200, 1, 180_000, 20_000)];
        assert_eq!(counted(&later), 10_000);
    }

    #[test]
    fn a_reading_is_due_after_a_loss_or_10_ms_and_never_after_the_end() {
        let mut late = Late::default();
        assert!(late.is_due(0, 0));
        late.read(reading(0, 0, 0, 5), 1000);
        assert!(!late.is_due(APART_NS - 1, 5) && late.is_due(APART_NS, 5) && late.is_due(1, 6));
        late.blind = true;
        assert!(!late.is_due(APART_NS, 6));
    }

    #[test]
    fn readings_by_another_thread_of_nothing_or_of_clocks_that_went_back_add_none() {
        let first = reading(0, 50, 0, 0);
        let another = thread::spawn(|| thread::current().id()).join().unwrap();
        let other = Reading { thread: another, ..reading(100, 90, 90_000, 10_000) };
        assert_eq!(counted(&[first, other]), 0);
        assert_eq!(counted(&[reading(0, 90, 0, 0), reading(100, 190, 0, 0)]), 0);
        assert_eq!(counted(&[reading(100, 90, 90_000, 10_000), reading(0, 50, 0, 0)]), 0);
        let most = Reading { ns: u64::MAX, run_delay_ns: u64::MAX, ..reading(0, 0, 0, u64::MAX) };
        assert_eq!(counted(&[reading(0, 0, 0, 0), most]), u64::MAX);
    }

    #[test]
    fn losses_beside_an_empty_pool_count_as_without_a_frame_and_the_others_as_a_full_ring() {
        let mut losses = Losses::default();
        let causes = |losses: &Losses| {
            let counts = losses.counts(DriverCounts::default());
            (counts.missed_ring_full + counts.missed_no_cpu, counts.missed_no_frame)
        };
        losses.read(1000, 0, 0, 64);
        assert_eq!(causes(&losses), (0, 0));
        losses.read(2000, 50, 3, 64);
        assert_eq!(causes(&losses), (0, 50));
        losses.read(3000, 70, 3, 64);
        assert_eq!(causes(&losses), (20, 50));
        // The kernel's count is smaller only if it was reset.
        losses.read(3000, 10, 4, 64);
        losses.read(3000, 15, 4, 64);
        assert_eq!(causes(&losses).1, 50);
        // A count at the end of its range, and a ring without a length.
        losses.read(u64::MAX, u64::MAX, 5, 0);
        losses.read(u64::MAX, 0, 6, 0);
        losses.read(u64::MAX, u64::MAX, 7, 0);
        assert_eq!(causes(&losses).1, u64::MAX);
    }
}
