//! The queue of a generator, which writes each packet when it is due.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Local, Moved, Result, Skb, Trust};
use linerate_sys::clock::now_and_ns;
use linerate_sys::wait::TimerFd;
use linerate_wire::{UdpEnds, stamp};

use super::burst::Burst;
use super::pacer::Pacer;
use super::target;
use super::traffic::Traffic;
use super::{GENERATOR, RECEIVER};
use crate::caps::{Caps, Origin};
use crate::host::Retry;
use crate::queue::{Health, QueueOps, Want};
use crate::stats::{Counters, Pace};

pub(super) struct GenQueue {
    traffic: Traffic,
    /// The addresses of the first flow's datagrams, if packets are datagrams.
    ends: Option<UdpEnds>,
    longest: usize,
    pacer: Option<Pacer>,
    burst: Burst,
    /// The pacer whose time has ended, kept for the report.
    paced: Option<Pacer>,
    /// Time up to which packets of the pacer were due at the last request.
    due_until: Option<Instant>,
    /// True if more packets were due at the last request than were made.
    more_due: bool,
    /// Buffer in which a packet is built if a peer can write its frame; the finished packet is
    /// copied to the frame.
    scratch: Vec<u8>,
    timer: TimerFd,
    made: u64,
    /// Index of the next size; the next field is the index of the next flow.
    size: usize,
    flow: usize,
    /// Next sequence number of each flow.
    seq: Vec<u64>,
    /// A moment, with its value on the monotonic clock, which all processes of the machine share.
    epoch: Instant,
    epoch_ns: u64,
    /// The next attempt, after the pool had no frame.
    starved: Retry,
    rx_nombuf: u64,
    /// True if `arm` has reported the end.
    told_end: bool,
}

impl GenQueue {
    pub fn new(traffic: Traffic, ends: Option<UdpEnds>) -> Result<GenQueue> {
        let timer = TimerFd::new()?;
        let (epoch, epoch_ns) = now_and_ns();
        // Start readable, for callers that wait before they arm. Setting the timer cannot fail.
        let _ = timer.set_at(Some(Instant::now()));
        Ok(GenQueue {
            ends,
            longest: traffic.longest(),
            pacer: traffic.pps().map(Pacer::rate),
            burst: Burst::new(traffic.burst, traffic.pps().unwrap_or_default()),
            paced: None,
            due_until: None,
            more_due: false,
            scratch: Vec::new(),
            timer,
            made: 0,
            size: 0,
            flow: 0,
            seq: vec![0; traffic.flows as usize],
            epoch,
            epoch_ns,
            starved: Retry::default(),
            rx_nombuf: 0,
            told_end: false,
            traffic,
        })
    }

    fn left(&self) -> u64 {
        self.traffic.count - self.made
    }

    /// Appends up to `want` empty packets, each in one frame with room for its size.
    fn alloc(&self, mem: &mut Local, out: &mut Batch, want: usize) -> usize {
        if self.longest <= mem.pool().data_room() {
            return mem.alloc(out, want);
        }
        // Allocate packets that need a longer frame than the usual one by one.
        let sizes = self.traffic.sizes.iter().cycle().skip(self.size).take(want);
        sizes.map_while(|&size| mem.alloc_len(size).and_then(|skb| out.push(skb).ok())).count()
    }

    /// Returns the time up to which packets of the pacer are due: `now`, or the end of the time for
    /// which the rate holds. After that end, removes the pacer once its late packets are made.
    fn pace(&mut self, now: Instant) -> Instant {
        let Some(pacer) = &mut self.pacer else { return now };
        let mut until = now;
        if let Some(end) = rate_end(pacer, self.traffic.rate_for)
            && now >= end
        {
            // A packet that is due exactly at the end does not belong to the paced packets.
            until = end.checked_sub(Duration::from_nanos(1)).unwrap_or(end);
            if pacer.peek(until, 1) == 0 {
                self.paced = self.pacer.take();
            }
        }
        self.due_until = Some(until);
        until
    }

    /// Returns how the pace was kept. Packets that were due at the last request, and for which
    /// there was no room or no frame, are unsent so far.
    fn report(&mut self) -> Option<Pace> {
        let left = usize::try_from(self.left()).unwrap_or(usize::MAX);
        let unsent = match (&mut self.pacer, self.due_until) {
            (Some(pacer), Some(until)) => pacer.peek(until, left) as u64,
            _ => 0,
        };
        let pacer = self.pacer.as_ref().or(self.paced.as_ref())?;
        // Every packet that is issued is made, and leaves the source.
        let sent = pacer.issued();
        Some(Pace { asked: sent.saturating_add(unsent), sent, unsent, ..pacer.report() })
    }

    /// Returns the time to write into packet `i` of the pacer: its intended time, or the present
    /// time without a pacer.
    #[inline(always)]
    fn time_ns(&self, i: u64, now_ns: u64) -> u64 {
        let meant = self.pacer.as_ref().and_then(|pacer| pacer.intended(i));
        meant.map_or(now_ns, |at| self.clock_ns(at))
    }

    /// Returns a moment as a value of CLOCK_MONOTONIC, which the packet's receiver can read as
    /// well.
    #[inline(always)]
    fn clock_ns(&self, at: Instant) -> u64 {
        self.epoch_ns + at.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    /// Writes the next packet into `frame`, which has the right size, and counts the packet.
    #[inline(always)]
    fn write(&mut self, frame: &mut [u8], time_ns: u64) {
        let (flow, seq) = (self.flow as u32, self.seq[self.flow]);
        // These writes cannot fail: sizes are at least those that traffic.rs allows.
        if let Some(ends) = &self.ends {
            target::write(ends, frame, flow, seq, time_ns);
        } else {
            frame[..6].copy_from_slice(&RECEIVER);
            frame[6..12].copy_from_slice(&GENERATOR);
            let _ = stamp::write(frame, flow, seq, time_ns);
        }
        self.step();
    }

    /// Writes packets directly into their frames; returns the sum of their bytes.
    fn write_in_place<'a>(
        &mut self,
        packets: impl Iterator<Item = &'a mut Skb>,
        first: u64,
        now_ns: u64,
    ) -> u64 {
        let mut bytes = 0;
        for (i, skb) in packets.enumerate() {
            let size = self.traffic.sizes[self.size];
            let time_ns = self.time_ns(first + i as u64, now_ns);
            let Some(frame) = skb.put(size) else { continue };
            self.write(frame, time_ns);
            bytes += size as u64;
        }
        bytes
    }

    /// Writes packets whose frames a peer can write: builds each in a buffer and copies it.
    #[cold]
    fn write_apart<'a>(
        &mut self,
        packets: impl Iterator<Item = &'a mut Skb>,
        first: u64,
        now_ns: u64,
    ) -> u64 {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(self.longest, 0);
        let mut bytes = 0;
        for (i, skb) in packets.enumerate() {
            let size = self.traffic.sizes[self.size];
            let time_ns = self.time_ns(first + i as u64, now_ns);
            let frame = &mut scratch[..size];
            self.write(frame, time_ns);
            skb.commit(size);
            bytes += skb.copy_from(0, frame) as u64;
        }
        self.scratch = scratch;
        bytes
    }

    /// Counts a packet, and advances to the next size and flow.
    fn step(&mut self) {
        self.seq[self.flow] += 1;
        self.made += 1;
        self.size = if self.size + 1 < self.traffic.sizes.len() { self.size + 1 } else { 0 };
        self.flow = if self.flow + 1 < self.seq.len() { self.flow + 1 } else { 0 };
    }
}

/// Returns the end of the time for which the rate is kept; `None` without one, or before the first
/// packet was due.
fn rate_end(pacer: &Pacer, rate_for: Option<Duration>) -> Option<Instant> {
    pacer.intended(0)?.checked_add(rate_for?)
}

impl QueueOps for GenQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        self.burst.asked();
        let now = Instant::now();
        let until = self.pace(now);
        let most = budget.min(out.spare()).min(usize::try_from(self.left()).unwrap_or(usize::MAX));
        let first = self.pacer.as_ref().map_or(0, Pacer::issued);
        let all_due = match &mut self.pacer {
            Some(pacer) => pacer.peek(until, most.saturating_add(1)),
            None => most,
        };
        let due = all_due.min(most);
        let before = out.len();
        let n = self.alloc(mem, out, due);
        self.more_due = all_due > n;
        // Packets without a frame stay due; their lateness is recorded once, when they are made.
        if let Some(pacer) = &mut self.pacer {
            pacer.issue(n, now);
        }
        self.rx_nombuf += u64::from(n < due);
        self.starved = if n == 0 && due > 0 { Retry::later() } else { Retry::default() };
        let now_ns = self.clock_ns(now);
        let packets = out.iter_mut().skip(before);
        let bytes = match mem.pool().trust() {
            Trust::Private => self.write_in_place(packets, first, now_ns),
            Trust::Exported => self.write_apart(packets, first, now_ns),
        };
        if n > 0 && self.pacer.is_some() {
            self.burst.made();
        }
        Moved { packets: n, bytes }
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.discard_first(batch.len(), DropReason::UNSUPPORTED, mem);
        Moved::default()
    }

    fn arm(&mut self, want: Want) -> bool {
        self.timer.drain();
        // There is always room, also after the end: `xmit` drops all packets.
        if want.room() {
            return false;
        }
        if self.left() == 0 {
            return std::mem::replace(&mut self.told_end, true);
        }
        if self.starved.is_pending() {
            return self.timer.set_at(self.starved.at()).is_ok();
        }
        if self.more_due {
            return false;
        }
        let now = Instant::now();
        let together = self.burst.packets().min(self.left());
        let wait = self.pacer.as_ref().map(|pacer| {
            let next = pacer.next_of(together, now);
            // After the end of the rate, packets are made without a pause.
            let end = rate_end(pacer, self.traffic.rate_for);
            end.map_or(next, |end| next.min(end.saturating_duration_since(now)))
        });
        match wait {
            None => false,
            Some(after) if after.is_zero() => false,
            Some(after) => {
                self.burst.sleeps();
                // If the timer cannot be set, return false, so that the caller polls too often and
                // not too rarely.
                self.timer.set_at(now.checked_add(after)).is_ok()
            }
        }
    }

    fn health(&self) -> Health {
        if self.left() == 0 { Health::Finished } else { Health::Up }
    }

    fn counters(&mut self) -> Counters {
        let pace = self.report();
        Counters { rx_nombuf: self.rx_nombuf, pace, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        Caps { origin: Origin::Created, ..Caps::IN_PROCESS }
    }
}

impl AsFd for GenQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
