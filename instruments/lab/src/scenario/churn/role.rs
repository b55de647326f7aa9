//! Roles of the CPUs: each allocates and frees, or one allocates and the other frees, with a queue
//! between them.

use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use linerate_datapath::Worker;
use linerate_prof::ticks;
use linerate_skb::{Batch, Local, PacketType, Pool, Skb};

use super::config::{COMMITTED_BYTES, Config, Consumer};
use super::stopwatch::{Probe, Split, Way, consume, measure_cold};
use super::stopwatch::{Stopwatch, Timed};
use crate::scenario::crew::Duty;

/// The work that a thread repeats.
pub(super) trait Role: Send + 'static {
    /// Repeats the role's work until `stop` is set; returns the counts.
    fn turn(&mut self, stop: &AtomicBool, watch: &Stopwatch) -> Counts;

    /// Ends the role; packets that it still holds are handed over or freed as in a window.
    fn end(self);
}

/// A role on its thread, with the stopwatch of its CPU.
pub(super) struct Timing<R> {
    role: R,
    settled: bool,
    batch: usize,
    ticks_hz: f64,
    watch: Option<Stopwatch>,
}

impl<R: Role> Timing<R> {
    /// Creates the duty of a role whose calls are of at most `batch` packets.
    pub fn boxed(role: R, settled: bool, batch: usize, ticks_hz: f64) -> Box<Timing<R>> {
        Box::new(Timing { role, settled, batch, ticks_hz, watch: None })
    }
}

impl<R: Role> Duty<Arc<AtomicBool>, (Counts, Stopwatch)> for Timing<R> {
    fn settle(&mut self) {
        self.watch = Some(Stopwatch::calibrated(self.settled, self.batch, self.ticks_hz));
    }

    fn run(&mut self, stop: Arc<AtomicBool>) -> io::Result<(Counts, Stopwatch)> {
        let watch = self.watch.ok_or_else(|| io::Error::other("it was not settled"))?;
        Ok((self.role.turn(&stop, &watch), watch))
    }

    fn end(self: Box<Self>) -> Vec<Worker> {
        self.role.end();
        Vec::new()
    }
}

/// The work of a thread in a window.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub alloc: Timed,
    pub produce: Timed,
    pub consume: Timed,
    pub free: Timed,
    /// Packets put into the queue, and packets taken from it.
    pub handed: u64,
    pub taken: u64,
    /// Ticks of waiting for the queue or for a frame.
    pub wait_ticks: u64,
    /// Allocations that found no free frame.
    pub starved: u64,
    pub split: Split,
}

impl Counts {
    /// Adds the counts of both windows. The split is the later window's: its loops cover one window
    /// each.
    pub fn plus(&self, later: &Counts) -> Counts {
        Counts {
            alloc: self.alloc.plus(&later.alloc),
            produce: self.produce.plus(&later.produce),
            consume: self.consume.plus(&later.consume),
            free: self.free.plus(&later.free),
            handed: self.handed + later.handed,
            taken: self.taken + later.taken,
            wait_ticks: self.wait_ticks + later.wait_ticks,
            starved: self.starved + later.starved,
            split: later.split,
        }
    }
}

/// Role of a CPU that allocates and frees.
pub(super) struct Both {
    mem: Local,
    batch: Batch,
    touch: Touch,
    probe: Probe,
}

/// Role of a CPU that allocates, and hands packets to another that frees.
pub(super) struct Near {
    mem: Local,
    batch: Batch,
    full: SyncSender<Batch>,
    empty: Receiver<Batch>,
    touch: Touch,
    probe: Probe,
    way: Way,
}

/// Role of a CPU that frees packets which another CPU allocated.
pub(super) struct Far {
    mem: Local,
    batch: Batch,
    full: Receiver<Batch>,
    empty: SyncSender<Batch>,
    touch: Touch,
    way: Way,
}

impl Both {
    pub fn new(config: &Config, pool: &Pool, probe: Probe) -> Both {
        let mem = pool.local_named("both", config.hot_list);
        Both { mem, batch: Batch::with_capacity(config.batch), touch: Touch::of(config), probe }
    }
}

impl Role for Both {
    fn turn(&mut self, stop: &AtomicBool, watch: &Stopwatch) -> Counts {
        let mut counts = Counts::default();
        let (mem, batch) = (&mut self.mem, &mut self.batch);
        while !stop.load(Ordering::Relaxed) {
            let want = batch.spare();
            if watch.count(&mut counts.alloc, || mem.alloc(batch, want)) == 0 {
                counts.starved += 1;
            }
            self.touch.produce(batch, &mut counts.produce, watch);
            self.touch.consume(batch, &mut counts.consume, watch);
            watch.count(&mut counts.free, || consume(batch, mem));
        }
        counts.split = self.probe.measure(watch);
        counts
    }

    fn end(mut self) {
        self.batch.consume(&mut self.mem);
    }
}

/// Creates both ends of a path from one CPU to another.
///
/// The queue holds batches and is not a port: a port counts bytes and reads the length of every
/// packet, so even a consumer that touches nothing would pay for that. Handles are copied, untimed,
/// from the CPU's own batch to one that travels and back: the handles' cache lines are the queue's
/// cost.
pub(super) fn across(config: &Config, pool: &Pool, probe: Probe) -> (Near, Far) {
    let depth = config.ring_len / config.batch;
    let ((full, received), (emptied, empty)) = (sync_channel(depth), sync_channel(depth));
    for _ in 0..depth {
        // Cannot fail: the receiver `empty` lives in this function, and the channel has room for
        // `depth` batches.
        let _ = emptied.try_send(Batch::with_capacity(config.batch));
    }
    let ((forth, there), (back, here)) = (sync_channel(1), sync_channel(1));
    let batch = || Batch::with_capacity(config.batch);
    let touch = Touch::of(config);
    let near = Near {
        mem: pool.local_named("near", config.hot_list),
        batch: batch(),
        full,
        empty,
        touch,
        probe,
        way: Way { to: forth, from: here },
    };
    let far = Far {
        mem: pool.local_named("far", config.hot_list),
        batch: batch(),
        full: received,
        empty: emptied,
        touch,
        way: Way { to: back, from: there },
    };
    (near, far)
}

impl Near {
    /// Allocates packets until the batch is full; returns true once it is.
    fn fill(&mut self, counts: &mut Counts, watch: &Stopwatch) -> bool {
        let (mem, batch) = (&mut self.mem, &mut self.batch);
        let want = batch.spare();
        if watch.count(&mut counts.alloc, || mem.alloc(batch, want)) == 0 {
            counts.starved += 1;
        }
        let full = self.batch.spare() == 0;
        if full {
            self.touch.produce(&mut self.batch, &mut counts.produce, watch);
        }
        full
    }

    /// Puts a full batch into the queue; returns false if the queue has no room.
    fn hand_over(&mut self, counts: &mut Counts) -> bool {
        let Ok(mut travels) = self.empty.try_recv() else { return false };
        let moved = self.batch.move_to(&mut travels, usize::MAX);
        counts.handed += moved as u64;
        // Sending cannot block: there are as many batches as places in the queue. If the other
        // thread has ended, the packets are freed.
        let _ = self.full.send(travels);
        true
    }
}

impl Role for Near {
    fn turn(&mut self, stop: &AtomicBool, watch: &Stopwatch) -> Counts {
        let (mut counts, mut wait) = (Counts::default(), Wait::default());
        while !stop.load(Ordering::Relaxed) {
            // The batch is already full if the last window ended before the queue had room for it.
            let ready = self.batch.spare() == 0 || self.fill(&mut counts, watch);
            wait.note(ready && self.hand_over(&mut counts));
        }
        counts.wait_ticks = wait.end();
        counts.split = self.probe.measure(watch);
        self.probe.serve(&self.way);
        counts
    }

    fn end(self) {
        // The other CPU frees this last batch, as it freed all before.
        let _ = self.full.send(self.batch);
    }
}

impl Role for Far {
    fn turn(&mut self, stop: &AtomicBool, watch: &Stopwatch) -> Counts {
        let (mut counts, mut wait) = (Counts::default(), Wait::default());
        while !stop.load(Ordering::Relaxed) {
            let travelled = match self.full.try_recv() {
                Ok(travelled) => travelled,
                Err(TryRecvError::Empty) => {
                    wait.note(false);
                    continue;
                }
                Err(TryRecvError::Disconnected) => break,
            };
            wait.note(true);
            self.take(travelled, &mut counts);
            let (mem, batch) = (&mut self.mem, &mut self.batch);
            self.touch.consume(batch, &mut counts.consume, watch);
            watch.count(&mut counts.free, || consume(batch, mem));
        }
        counts.wait_ticks = wait.end();
        counts.split.init_cold = measure_cold(&self.way, &mut self.batch, watch);
        counts
    }

    /// Frees the packets that are still in the queue after the other end has closed.
    fn end(mut self) {
        while let Ok(mut batch) = self.full.recv() {
            batch.consume(&mut self.mem);
        }
    }
}

impl Far {
    fn take(&mut self, mut travelled: Batch, counts: &mut Counts) {
        counts.taken += travelled.move_to(&mut self.batch, usize::MAX) as u64;
        // The channel has room: this batch came from it.
        let _ = self.empty.try_send(travelled);
    }
}

/// A timer of the spinning without work.
#[derive(Debug, Default)]
struct Wait {
    since: Option<u64>,
    ticks: u64,
}

impl Wait {
    /// Notes whether there was work.
    #[inline]
    fn note(&mut self, done: bool) {
        if done {
            self.end();
        } else {
            self.since.get_or_insert_with(ticks);
            spin_loop();
        }
    }

    fn end(&mut self) -> u64 {
        if let Some(since) = self.since.take() {
            self.ticks += ticks().saturating_sub(since);
        }
        self.ticks
    }
}

/// The access to metadata between allocation and free.
#[derive(Debug, Clone, Copy)]
struct Touch {
    commits: bool,
    consumer: Consumer,
}

impl Touch {
    fn of(config: &Config) -> Touch {
        Touch { commits: config.commits, consumer: config.consumer }
    }

    #[inline]
    fn produce(self, batch: &mut Batch, timed: &mut Timed, watch: &Stopwatch) {
        if self.commits {
            watch.count(timed, || {
                batch.commit_from(0, COMMITTED_BYTES);
                batch.len()
            });
        }
    }

    #[inline]
    fn consume(self, batch: &mut Batch, timed: &mut Timed, watch: &Stopwatch) {
        match self.consumer {
            Consumer::None => {}
            Consumer::Reads => {
                watch.count(timed, || {
                    black_box(batch.iter().map(read).fold(0, u64::wrapping_add));
                    batch.len()
                });
            }
            Consumer::Writes => {
                watch.count(timed, || {
                    batch.iter_mut().for_each(write);
                    batch.len()
                });
            }
        }
    }
}

/// Reads the fields that a filter or a counter would read: all are on one cache line, unless the
/// packet was stamped.
fn read(skb: &Skb) -> u64 {
    let kind = u64::from(skb.packet_type() != PacketType::Host);
    let stamp = skb.stamp_ns().unwrap_or(0);
    stamp.wrapping_add(skb.len() as u64 + kind + u64::from(skb.priority()))
}

/// Writes the fields that a forwarder would set for later stages: priority, type, control block,
/// and a mark, which has its own cache line.
fn write(skb: &mut Skb) {
    let seen = read(skb) as u32;
    skb.set_priority(seen & 7);
    skb.set_packet_type(PacketType::OtherHost);
    skb.set_mark(seen);
    if let Some(cb) = skb.cb_mut() {
        cb[..4].copy_from_slice(&seen.to_ne_bytes());
    }
}
