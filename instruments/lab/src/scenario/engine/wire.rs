//! The wire of an adapter: it puts packets into posted buffers at line rate.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use linerate_datapath::Worker;
use linerate_port::Queue;
use linerate_port::clock::monotonic_ns;
use linerate_skb::Batch;
use linerate_wire::stamp;

use super::adapter::Shared;
use super::crew::{Done, Duty};
use super::turning::{Beat, nanos};

/// A wire that puts packets into posted buffers at their arrival times.
pub(super) struct Wire {
    pub queue: Queue,
    pub posted: Batch,
    pub filled: Batch,
    pub beat: Beat,
    pub burst: u64,
    pub line_pps: f64,
    /// Arrivals at one look from which on the wire itself was late.
    pub late: u64,
    pub size: usize,
    pub touch: bool,
    /// True if every byte is written, as a generator does, and packets are numbered.
    pub stamped: bool,
    pub seq: u64,
    pub windows: u64,
    pub shared: Arc<Shared>,
}

impl Wire {
    /// Waits for the receiver, which may wake up later: packets sent earlier would overrun only
    /// because of the order of two wake-ups. The wait spins on the wire's own CPU and ends with the
    /// window.
    fn meet(&self, until: Instant) {
        while self.shared.begun.load(Ordering::Acquire) < self.windows && Instant::now() < until {
            std::hint::spin_loop();
        }
    }

    /// One burst, each packet at its moment. If at some look too many had come due, the wire was late,
    /// and the whole burst is set apart, whatever was lost of it: the ring recovers in the pause.
    fn burst(&mut self, start: Instant, done: &mut Done) {
        let (mut gone, mut late) = (0, false);
        let (mut ring_full, mut no_frame) = (0, 0);
        while gone < self.burst {
            let passed_ns = nanos(start.elapsed()) as f64;
            let arrived = ((passed_ns * self.line_pps / 1e9) as u64 + 1).min(self.burst);
            if arrived == gone {
                std::hint::spin_loop();
                continue;
            }
            let due = arrived - gone;
            let lost = self.arrive(due);
            if self.shared.starving.load(Ordering::Relaxed) {
                no_frame += lost;
            } else {
                ring_full += lost;
            }
            late |= due >= self.late;
            gone = arrived;
        }
        done.offered += self.burst;
        if late {
            done.late += self.burst;
            done.wire_late += ring_full + no_frame;
        } else {
            done.ring_full += ring_full;
            done.no_frame += no_frame;
        }
    }

    /// `due` packets arrive: into posted buffers, or nowhere. Returns how many of them were lost.
    fn arrive(&mut self, due: u64) -> u64 {
        if (self.posted.len() as u64) < due {
            self.queue.rx(&mut self.posted);
        }
        let n = self.posted.move_to(&mut self.filled, due.min(u64::from(u32::MAX)) as usize);
        if self.stamped {
            let now_ns = monotonic_ns();
            for skb in self.filled.iter_mut() {
                if let Some(bytes) = skb.put(self.size) {
                    // Cannot fail: sizes are at least what a stamp needs.
                    let _ = stamp::write(bytes, 0, self.seq, now_ns);
                    self.seq += 1;
                }
            }
        } else if self.touch {
            for skb in self.filled.iter_mut() {
                if let Some(bytes) = skb.put(self.size) {
                    bytes.fill(due as u8);
                }
            }
        } else {
            self.filled.commit_behind(0, self.size);
        }
        // As many as were posted at most, so that there is room for them.
        self.queue.xmit(&mut self.filled);
        due - n as u64
    }
}

impl Duty for Wire {
    fn run(&mut self, until: Instant) -> io::Result<Done> {
        self.windows += 1;
        self.meet(until);
        self.beat.restart();
        let mut done = Done::default();
        let outcome = loop {
            match self.beat.next(until) {
                Ok(Some(start)) => self.burst(start, &mut done),
                Ok(None) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        self.shared.ended.fetch_add(1, Ordering::Release);
        outcome?;
        // Its own sleeps are no cost of the side's.
        let Done { due, late_ns, .. } = self.beat.done(until, self.burst as usize);
        Ok(Done { due, late_ns, ..done })
    }

    fn workers(mut self: Box<Self>) -> Vec<Worker> {
        // Posted and never filled: they were no packets.
        loop {
            self.posted.truncate(0);
            if self.queue.rx(&mut self.posted) == 0 {
                return Vec::new();
            }
        }
    }
}
