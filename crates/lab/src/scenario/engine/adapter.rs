//! An adapter with a ring of posted buffers, as post 000's: bursts at line rate, and overruns if the
//! receiving thread does not fill the ring in time.
//!
//! ```text
//!  wire (its own CPU)                                   receiver (the measured CPU)
//!   arrivals at line rate                                take, post as many new buffers, pass on
//!     │ none posted: overrun                               │ alloc: hot list, depot, allocator
//!     ▼                                                    ▼
//!   buffer ◄───────── ring "back": posted buffers ◄──── fresh ones
//!     └──────────────► ring "forth": packets ──────────► held ── reap ──► freed, all at once
//! ```
//!
//! Both rings are a pair of `ring` ports: never more than `ring_len` buffers are on them together,
//! so that a packet always finds room and a shortage shows as a missing buffer, as on a real one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::Worker;
use linerate_port::{Port, Queue, QueueCounts, QueueStats};
use linerate_skb::{Batch, Holders, Local, Pool};

use super::asked::{Asked, Size};
use super::crew::{Crew, Done, Duty};
use super::path::Gauge;
use super::turning::{Beat, nanos};
use crate::settings::wrong;
use crate::{Code, Error, Result};

/// How long the receiver waits for a wire that does not end its window.
const GRACE: Duration = Duration::from_secs(2);

/// How often the receiver looked for packets.
pub(super) struct Polls(Arc<QueueStats>);

impl Polls {
    pub fn counts(&self) -> QueueCounts {
        self.0.counts()
    }
}

/// What both threads tell each other.
#[derive(Default)]
struct Shared {
    /// The receiver owes the ring buffers that its pool does not have.
    starving: AtomicBool,
    /// Windows that the receiver has begun.
    begun: AtomicU64,
    /// Windows that the wire has ended.
    ended: AtomicU64,
}

/// Sets up both ends; the ring is full of buffers when the first window begins.
///
/// # Errors
/// `E-EXPERIMENT` if a packet does not fit a frame; what keeps pool, ports or threads from being had.
pub(super) fn build(asked: &Asked, cpus: &[usize]) -> Result<(Crew, Gauge)> {
    let &[first, second] = cpus else {
        return Err(Error::new(Code::Cpu, "cannot run `engine`", "an adapter needs two CPUs"));
    };
    let pool = pool(asked)?;
    let Size::Bytes(size) = asked.size else {
        return Err(wrong(0, "an adapter's packets have one size"));
    };
    let size = size as usize;
    if size > pool.data_room() {
        let why = format!("size = {size}: a frame holds {} bytes", pool.data_room());
        return Err(wrong(0, why));
    }
    let (wire, receiver) = Port::pair(asked.ring_len, &pool)?;
    let queue = |port: Port| {
        let none = || Error::new(Code::System, "cannot run `engine`", "a ring has no queue");
        port.into_queues().pop().ok_or_else(none)
    };
    let (wire, receiver) = (queue(wire)?, queue(receiver)?);
    let (shared, len) = (Arc::new(Shared::default()), asked.ring_len as usize);
    let polls = Polls(receiver.stats());
    let mut receiver = Receiver {
        queue: receiver,
        mem: pool.local_named("receiver", asked.hot_list),
        inbox: Batch::with_capacity(asked.budget),
        fresh: Batch::with_capacity(len),
        held: Batch::with_capacity(asked.reap + asked.budget),
        owed: len,
        reap: asked.reap,
        touch: asked.touch,
        spin: asked.spin,
        windows: 0,
        shared: shared.clone(),
    };
    receiver.post();
    let wire = Wire {
        queue: wire,
        posted: Batch::with_capacity(len),
        filled: Batch::with_capacity(len),
        beat: Beat::new(asked.burst, asked.pps)?,
        burst: asked.burst as u64,
        line_pps: asked.line_pps,
        late: (len as u64 / 4).max(1),
        size,
        touch: asked.touch,
        windows: 0,
        shared,
    };
    let mut crew = Crew::default();
    crew.hire("receiver", first, true, Box::new(receiver))?;
    crew.hire("wire", second, false, Box::new(wire))?;
    Ok((crew, Gauge::Pool(pool, polls)))
}

/// As many frames as everyone can hold, unless told otherwise.
fn pool(asked: &Asked) -> Result<Pool> {
    let mut holders = Holders::new();
    holders.add("posted buffers", u64::from(asked.ring_len));
    holders.add("held by the transmitter", (asked.reap + asked.budget) as u64);
    holders.add("hot list", asked.hot_list as u64);
    let mut pool = Pool::sized_for(&holders.with_thread_caches());
    if let Some(frames) = asked.pool_frames {
        pool = Pool::builder().frames(frames);
    }
    let pool = pool.name("linerate").frame_size(asked.frame_size).data(asked.data);
    let pool = pool.init(asked.init).return_to(asked.return_to).build()?;
    pool.set_sampling(asked.sample_every);
    Ok(pool)
}

/// The thread whose cost is measured.
struct Receiver {
    queue: Queue,
    mem: Local,
    inbox: Batch,
    fresh: Batch,
    /// Packets whose transmission is not over.
    held: Batch,
    /// Buffers that are missing from the ring.
    owed: usize,
    reap: usize,
    touch: bool,
    spin: bool,
    windows: u64,
    shared: Arc<Shared>,
}

impl Receiver {
    /// Takes what came, fills the ring again, passes on; returns how many packets.
    fn turn(&mut self, done: &mut Done) -> usize {
        let n = self.queue.rx(&mut self.inbox);
        if n > 0 {
            self.mem.count_received(n);
            self.owed += n;
        }
        self.post();
        if n == 0 {
            return 0;
        }
        if self.touch {
            let bytes = self.inbox.iter().flat_map(linerate_skb::Skb::data);
            let seen: u64 = bytes.map(|byte| u64::from(*byte)).sum();
            std::hint::black_box(seen);
        }
        done.packets += n as u64;
        done.bytes += self.inbox.bytes_behind(0);
        self.inbox.move_to(&mut self.held, n);
        if self.held.len() >= self.reap {
            self.release();
        }
        n
    }

    /// Posts a new buffer for each that is missing.
    fn post(&mut self) {
        if self.owed == 0 {
            return;
        }
        if self.mem.alloc(&mut self.fresh, self.owed) < self.owed && !self.held.is_empty() {
            // Without a frame a driver looks for transmissions that are over.
            self.release();
            let more = self.owed.saturating_sub(self.fresh.len());
            self.mem.alloc(&mut self.fresh, more);
        }
        self.owed -= self.queue.xmit(&mut self.fresh);
        let starving = self.owed > 0;
        if starving != self.shared.starving.load(Ordering::Relaxed) {
            self.shared.starving.store(starving, Ordering::Relaxed);
        }
    }

    /// Gives back what was transmitted.
    fn release(&mut self) {
        let n = self.held.len();
        self.held.sent(n, &mut self.mem);
    }

    /// Sleeps until a packet comes or the window is over.
    fn rest(&mut self, left: Duration, done: &mut Done) -> io::Result<()> {
        let since = Instant::now();
        self.queue.wait(Some(left.max(Duration::from_millis(1))))?;
        done.sleeps += 1;
        done.asleep_ns += nanos(since.elapsed());
        Ok(())
    }
}

impl Duty for Receiver {
    fn run(&mut self, until: Instant) -> io::Result<Done> {
        self.windows += 1;
        self.shared.begun.store(self.windows, Ordering::Release);
        let mut done = Done::default();
        loop {
            // Looked at first: what the wire sent before it ended is then in the ring.
            let ended = self.shared.ended.load(Ordering::Acquire) >= self.windows;
            if self.turn(&mut done) > 0 {
                continue;
            }
            let now = Instant::now();
            let over = now >= until;
            if over && (ended || now >= until + GRACE) {
                return Ok(done);
            }
            if !self.spin || over {
                self.rest(until.saturating_duration_since(now), &mut done)?;
            }
        }
    }

    fn workers(mut self: Box<Self>) -> Vec<Worker> {
        self.release();
        self.fresh.truncate(0);
        Vec::new()
    }
}

/// What puts packets into posted buffers at the moments at which they arrive.
struct Wire {
    queue: Queue,
    posted: Batch,
    filled: Batch,
    beat: Beat,
    burst: u64,
    line_pps: f64,
    /// Arrivals at one look from which on the wire itself was late.
    late: u64,
    size: usize,
    touch: bool,
    windows: u64,
    shared: Arc<Shared>,
}

impl Wire {
    /// Waits for the receiver, which may be woken later: what came before would overrun by the
    /// order in which two threads are woken. On a CPU of its own, and not longer than the window.
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
        if self.touch {
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
