//! An adapter with a ring of posted buffers, as in post 000: bursts at line rate, and overruns if
//! the receiving thread does not refill the ring in time.
//!
//! ```text
//!  wire (its own CPU)                                   receiver (the measured CPU)
//!   arrivals at line rate                                take, post as many new buffers, pass on
//!     │ none posted: overrun                               │ alloc: hot list, depot, allocator
//!     ▼                                                    ▼
//!   buffer ◄───────── ring "back": posted buffers ◄──── fresh ones
//!     └──────────────► ring "forth": packets ──────────► held ── reap ──► freed, all at once
//!                                                          └── or, at once ──► memif ═► another process
//! ```
//!
//! Both rings are a pair of `ring` ports: never more than `ring_len` buffers are on them together,
//! so that a packet always finds room and a shortage shows as a missing buffer, as on a real one.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::Worker;
use linerate_port::clock::monotonic_ns;
use linerate_port::wait::poll_readable;
use linerate_port::{Health, Port, Queue, QueueCounts, QueueStats, Want};
use linerate_skb::{Batch, DropReason, Holders, Local, Pool};
use linerate_wire::stamp;

use super::config::{Config, Size};
use super::irq::Irq;
use super::path::{Gauge, MEET, apart};
use super::turning::{Beat, Done, nanos};
use crate::scenario::crew::{Crew, Duty};
use crate::settings::wrong;
use crate::{Code, Error, Result};

/// The longest time that the receiver waits for the wire to end its window.
const GRACE: Duration = Duration::from_secs(2);

/// Interval at which a receiver without a free frame for its ring tries again.
const STARVED: Duration = Duration::from_millis(1);

/// The number of polls of the receiver.
pub(super) struct Polls(Arc<QueueStats>);

impl Polls {
    pub fn counts(&self) -> QueueCounts {
        self.0.counts()
    }
}

/// State shared between both threads.
#[derive(Default)]
pub(super) struct Shared {
    /// True if the receiver could not refill the ring, because its pool had no frame.
    pub starving: AtomicBool,
    /// Windows that the receiver has begun.
    pub begun: AtomicU64,
    /// Windows that the wire has ended.
    pub ended: AtomicU64,
}

/// Sets up both ends, with the ring full of buffers for the first window.
pub(super) fn build(
    config: &Config,
    cpus: &[usize],
    out: Option<&str>,
    irq: Option<&Arc<Irq>>,
) -> Result<(Crew<Duration, Done>, Gauge)> {
    let &[first, second] = cpus else {
        return Err(Error::new(Code::Cpu, "cannot run `engine`", "an adapter needs two CPUs"));
    };
    let pool = pool(config)?;
    let Size::Bytes(size) = config.size else {
        return Err(wrong(0, "an adapter's packets have one size"));
    };
    let size = size as usize;
    if size > pool.data_room() {
        let why = format!("size = {size}: a frame holds {} bytes", pool.data_room());
        return Err(wrong(0, why));
    }
    let (wire, receiver) = Port::pair(config.ring_len, &pool)?;
    let queue = |port: Port| {
        let none = || Error::new(Code::System, "cannot run `engine`", "a ring has no queue");
        port.into_queues().pop().ok_or_else(none)
    };
    let (wire, receiver) = (queue(wire)?, queue(receiver)?);
    let (wire, receiver) = match irq {
        Some(irq) => irq.between(wire, receiver)?,
        None => (wire, receiver),
    };
    let (shared, len) = (Arc::new(Shared::default()), config.ring_len as usize);
    let polls = Polls(receiver.stats());
    let out = out.map(|port| leave_by(port, config, &pool)).transpose()?;
    let stamped = out.is_some();
    let mut receiver = Receiver {
        queue: receiver,
        end: match out {
            Some(out) => End::Fabric(Box::new(out)),
            None => End::Transmitter(pool.local_named("receiver", config.hot_list)),
        },
        told_bytes: 0,
        inbox: Batch::with_capacity(config.budget),
        fresh: Batch::with_capacity(len),
        held: Batch::with_capacity(config.reap + config.budget),
        owed: len,
        reap: config.reap,
        spin: config.spin,
        windows: 0,
        shared: shared.clone(),
    };
    receiver.post(&mut Done::default());
    let wire = Wire {
        queue: wire,
        posted: Batch::with_capacity(len),
        filled: Batch::with_capacity(len),
        beat: Beat::new(config.burst, config.pps)?,
        burst: config.burst as u64,
        line_pps: config.line_pps,
        late: (len as u64 / 4).max(1),
        size,
        stamped,
        seq: 0,
        windows: 0,
        shared,
    };
    let mut crew = Crew::new();
    crew.hire("receiver", first, true, Box::new(receiver))?;
    crew.hire("wire", second, false, Box::new(wire))?;
    Ok((crew, Gauge::Pool(pool, polls)))
}

/// Returns the port that sends packets to another process, after that process has connected.
fn leave_by(port: &str, config: &Config, pool: &Pool) -> Result<Queue> {
    let options = config.out.map(|out| out.options(config.out_len)).unwrap_or_default();
    let port = Port::open_with(&format!("{port},{options}"), pool)?;
    let gone = |why: &str| Error::new(Code::System, "cannot run `engine`", why);
    let queue = port.into_queues().pop();
    let mut queue = queue.ok_or_else(|| gone("the fabric has no queue"))?;
    queue.local().set_hot_list_len(config.hot_list);
    let until = Instant::now() + MEET;
    while queue.health() != Health::Up {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(apart(queue.health().check().err()));
        }
        queue.wait(Some(left.min(GRACE))).map_err(|e| gone(&e.to_string()))?;
    }
    Ok(queue)
}

/// Builds the pool: as many frames as all holders need, unless configured otherwise.
fn pool(config: &Config) -> Result<Pool> {
    let mut holders = Holders::new();
    holders.add("posted buffers", u64::from(config.ring_len));
    holders.add("held by the transmitter", (config.reap + config.budget) as u64);
    holders.add("hot list", config.hot_list as u64);
    if config.out.is_some() {
        holders.add("ring to the other process", u64::from(config.out_len));
    }
    let mut pool = Pool::sized_for(&holders.with_thread_caches());
    if let Some(frames) = config.pool_frames {
        pool = Pool::builder().frames(frames);
    }
    let pool = pool.name("linerate").frame_size(config.frame_size).data(config.data);
    let pool = pool.init(config.init).return_to(config.return_to).build()?;
    pool.set_sampling(config.sample_every);
    Ok(pool)
}

/// The end where packets leave, with the hot list onto which they are freed.
enum End {
    /// A transmitter without a device, which holds packets for a while.
    Transmitter(Local),
    /// A ring to another process.
    Fabric(Box<Queue>),
}

impl End {
    fn mem(&mut self) -> &mut Local {
        match self {
            End::Transmitter(mem) => mem,
            End::Fabric(queue) => queue.local(),
        }
    }
}

/// The thread whose cost is measured.
struct Receiver {
    queue: Queue,
    end: End,
    /// Number of bytes that the fabric had copied at the last reading.
    told_bytes: u64,
    inbox: Batch,
    fresh: Batch,
    /// Packets that are still being transmitted.
    held: Batch,
    /// Buffers that are missing from the ring.
    owed: usize,
    reap: usize,
    spin: bool,
    windows: u64,
    shared: Arc<Shared>,
}

impl Receiver {
    /// Receives packets, refills the ring, and passes packets on; returns the number received.
    fn turn(&mut self, done: &mut Done) -> usize {
        let n = self.queue.rx(&mut self.inbox);
        if n > 0 {
            self.end.mem().count_received(n);
            self.owed += n;
        }
        self.post(done);
        if n == 0 {
            // Without new packets, retry packets that wait for room in the ring to the other
            // process.
            if matches!(self.end, End::Fabric(_)) && !self.held.is_empty() {
                self.release(done);
            }
            return 0;
        }
        done.packets += n as u64;
        done.bytes += self.inbox.count_from(0).bytes;
        self.inbox.move_to(&mut self.held, n);
        if self.held.len() >= self.reap || matches!(self.end, End::Fabric(_)) {
            self.release(done);
        }
        n
    }

    /// Posts a new buffer for each one that is missing from the ring.
    fn post(&mut self, done: &mut Done) {
        if self.owed == 0 {
            return;
        }
        let more_come = !self.held.is_empty() || matches!(self.end, End::Fabric(_));
        if self.end.mem().alloc(&mut self.fresh, self.owed) < self.owed && more_come {
            // If the pool has no frame, free the transmitted packets, as a driver does, and try
            // again.
            self.release(done);
            let more = self.owed.saturating_sub(self.fresh.len());
            self.end.mem().alloc(&mut self.fresh, more);
        }
        self.owed -= self.queue.xmit(&mut self.fresh);
        let starving = self.owed > 0;
        if starving != self.shared.starving.load(Ordering::Relaxed) {
            self.shared.starving.store(starving, Ordering::Relaxed);
        }
    }

    /// Frees held packets as transmitted, or sends them to the other process and drops those
    /// without room.
    fn release(&mut self, done: &mut Done) {
        let n = self.held.len();
        match &mut self.end {
            End::Transmitter(mem) => {
                self.held.sent(n, mem);
            }
            End::Fabric(queue) if n == 0 => {
                queue.reap();
            }
            End::Fabric(queue) => {
                queue.xmit(&mut self.held);
                // Up to `reap` packets stay for the next attempt, so `lost` is at most the number
                // just received, and the subtractions below cannot underflow.
                let lost = self.held.len().saturating_sub(self.reap);
                let bytes = self.held.count_from(0).bytes;
                self.held.discard_first(lost, DropReason::TX_FULL, queue.local());
                done.fabric_full += lost as u64;
                done.packets -= lost as u64;
                done.bytes -= bytes - self.held.count_from(0).bytes;
            }
        }
    }

    /// Returns the bytes copied since the last reading.
    fn copied(&mut self) -> u64 {
        let End::Fabric(queue) = &mut self.end else { return 0 };
        let now = queue.driver_counts().copied_bytes.unwrap_or(0);
        now.saturating_sub(std::mem::replace(&mut self.told_bytes, now))
    }

    /// Sleeps until a packet arrives, a held packet can be sent, or the window is over.
    fn rest(&mut self, left: Duration, done: &mut Done) -> io::Result<()> {
        let since = Instant::now();
        let left = left.max(Duration::from_millis(1));
        match &mut self.end {
            End::Fabric(out) if !self.held.is_empty() => {
                if !out.arm(Want::Room) || !self.queue.arm(Want::Frames) {
                    return Ok(());
                }
                poll_readable(&[self.queue.as_fd(), out.as_fd()], Some(left))?;
            }
            _ => {
                // No event reports a free frame, so sleep only briefly while buffers are missing.
                let left = if self.owed > 0 { left.min(STARVED) } else { left };
                self.queue.wait(Some(left))?;
            }
        }
        done.sleeps += 1;
        done.asleep_ns += nanos(since.elapsed());
        Ok(())
    }
}

impl Duty<Duration, Done> for Receiver {
    fn run(&mut self, time: Duration) -> io::Result<Done> {
        let until = Instant::now() + time;
        self.windows += 1;
        self.shared.begun.store(self.windows, Ordering::Release);
        let mut done = Done::default();
        loop {
            // Read this flag before the ring: packets that the wire sent before it ended are then
            // in the ring.
            let ended = self.shared.ended.load(Ordering::Acquire) >= self.windows;
            if self.turn(&mut done) > 0 {
                continue;
            }
            let now = Instant::now();
            let over = now >= until;
            let passed_on = self.held.is_empty() || matches!(self.end, End::Transmitter(_));
            if over && (ended && passed_on || now >= until + GRACE) {
                done.copied_bytes = self.copied();
                return Ok(done);
            }
            if !self.spin || over {
                self.rest(until.saturating_duration_since(now), &mut done)?;
            }
        }
    }

    fn end(mut self: Box<Self>) -> Vec<Worker> {
        self.release(&mut Done::default());
        if let End::Fabric(queue) = &mut self.end {
            let until = Instant::now() + GRACE;
            while queue.reap() > 0 && Instant::now() < until {
                std::thread::yield_now();
            }
        }
        self.fresh.truncate(0);
        Vec::new()
    }
}

/// A simulated wire that writes packets into posted buffers at their arrival times.
pub(super) struct Wire {
    pub queue: Queue,
    pub posted: Batch,
    pub filled: Batch,
    pub beat: Beat,
    pub burst: u64,
    pub line_pps: f64,
    /// Number of arrivals at one check from which a burst counts as late by the wire's own fault.
    pub late: u64,
    pub size: usize,
    /// True if the wire writes every byte and numbers the packets, as a generator does.
    pub stamped: bool,
    pub seq: u64,
    pub windows: u64,
    pub shared: Arc<Shared>,
}

impl Wire {
    /// Waits for the receiver to wake up: packets sent earlier would overrun only because of the
    /// order of two wake-ups. The wait spins on the wire's own CPU, and ends with the window.
    fn meet(&self, until: Instant) {
        while self.shared.begun.load(Ordering::Acquire) < self.windows && Instant::now() < until {
            std::hint::spin_loop();
        }
    }

    /// Sends one burst, each packet at its time. If too many packets are due at one check, the wire
    /// was late, and the whole burst is counted separately with its losses: the ring recovers in
    /// the pause.
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

    /// Lets `due` packets arrive: each fills a posted buffer, or is lost if there is none. Returns
    /// the number of lost packets.
    fn arrive(&mut self, due: u64) -> u64 {
        if (self.posted.len() as u64) < due {
            self.queue.rx(&mut self.posted);
        }
        let n = self.posted.move_to(&mut self.filled, due.min(u64::from(u32::MAX)) as usize);
        if self.stamped {
            let now_ns = monotonic_ns();
            for skb in self.filled.iter_mut() {
                if let Some(bytes) = skb.put(self.size) {
                    // Writing cannot fail: the settings require packets that have room for a stamp.
                    let _ = stamp::write(bytes, 0, self.seq, now_ns);
                    self.seq += 1;
                }
            }
        } else {
            self.filled.commit_from(0, self.size);
        }
        // The queue has room: at most as many packets are sent as buffers were posted.
        self.queue.xmit(&mut self.filled);
        due - n as u64
    }
}

impl Duty<Duration, Done> for Wire {
    fn run(&mut self, time: Duration) -> io::Result<Done> {
        let until = Instant::now() + time;
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
        // Leave out the sleeps of the wire's thread, which are not a cost of the side.
        let Done { due, late_ns, .. } = self.beat.done(until, self.burst as usize);
        Ok(Done { due, late_ns, ..done })
    }

    fn end(mut self: Box<Self>) -> Vec<Worker> {
        // Drop buffers that were posted and never filled: they do not count as packets.
        loop {
            self.posted.truncate(0);
            if self.queue.rx(&mut self.posted) == 0 {
                return Vec::new();
            }
        }
    }
}
