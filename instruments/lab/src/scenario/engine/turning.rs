//! Duties of threads that own workers: each turns its worker, a burst at a time, with or without a
//! pace, and counts.

use std::io;
use std::ops::AddAssign;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linerate_datapath::{Turned, Worker};
use linerate_port::wait::{TimerFd, poll_readable};

use crate::Result;
use crate::scenario::crew::Duty;

/// The counts of a duty in a window that no counter of the engine has.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub(super) struct Done { $($(#[$doc])* pub $name: u64,)* }

        impl AddAssign for Done {
            fn add_assign(&mut self, more: Done) {
                // Keep the maximum of both: lateness is not a sum.
                let late_ns = self.late_ns.max(more.late_ns);
                $(self.$name += more.$name;)*
                self.late_ns = late_ns;
            }
        }
    };
}

counts! {
    /// Packets that were due; 0 without a rate.
    due
    /// Packets that a wire of the lab offered.
    offered
    /// Offered packets that found no posted buffer although the receiver had frames.
    ring_full
    /// Packets lost because the receiver's pool had no frame.
    no_frame
    /// Lost packets of late bursts, which the receiver may not have caused.
    wire_late
    /// Packets received for which the ring behind the receiver had no room.
    fabric_full
    /// Packets, lost or not, of bursts in which many were due together because the wire's thread
    /// was late.
    late
    /// The largest delay of a wake-up from a sleep before a burst. A burst delayed by a full ring
    /// does not count.
    late_ns
    /// Packets that a loop of the lab passed on.
    packets
    /// Bytes of these packets.
    bytes
    /// Bytes that the port after the loop copied.
    copied_bytes
    /// Number of sleeps of the loop.
    sleeps
    /// The total time of those sleeps.
    asleep_ns
}

/// The schedule of bursts: an open loop from each window's start, or as fast as they are accepted.
#[derive(Debug)]
pub(super) struct Beat {
    timer: TimerFd,
    /// Time from one burst to the next; `None` without a pause.
    interval_ns: Option<f64>,
    start: Instant,
    begun: u64,
    sleeps: u64,
    asleep_ns: u64,
    /// The largest delay of a wake-up from a sleep. If the path delays a burst, the thread does not
    /// sleep, so that this delay does not count.
    late_ns: u64,
}

impl Beat {
    /// Creates a schedule of bursts of `burst` packets each, at `pps` packets a second.
    pub fn new(burst: usize, pps: Option<f64>) -> Result<Beat> {
        let interval_ns = pps.map(|pps| burst as f64 * 1e9 / pps);
        let start = Instant::now();
        let timer = TimerFd::new()?;
        Ok(Beat { timer, interval_ns, start, begun: 0, sleeps: 0, asleep_ns: 0, late_ns: 0 })
    }

    /// Begins a window: packets due before it do not count.
    pub fn restart(&mut self) {
        (self.start, self.begun) = (Instant::now(), 0);
        (self.sleeps, self.asleep_ns, self.late_ns) = (0, 0, 0);
    }

    /// Waits for the next burst; `None` once the window is over.
    ///
    /// Cost: a clock reading for each burst; two system calls for each that is waited for.
    pub fn next(&mut self, until: Instant) -> io::Result<Option<Instant>> {
        let due = self.due_at(self.begun);
        let mut now = Instant::now();
        while now < due && now < until {
            self.timer.set_at(Some(due.min(until)))?;
            poll_readable(&[self.timer.as_fd()], Some(until.saturating_duration_since(now)))?;
            let woken = Instant::now();
            self.sleeps += 1;
            self.asleep_ns += nanos(woken.saturating_duration_since(now));
            self.late_ns = self.late_ns.max(nanos(woken.saturating_duration_since(due.min(until))));
            now = woken;
        }
        if now >= until {
            return Ok(None);
        }
        self.begun += 1;
        Ok(Some(now))
    }

    /// Returns the moment at which burst `i` of this window is due.
    pub fn due_at(&self, i: u64) -> Instant {
        let after = Duration::from_nanos(self.interval_ns.map_or(0.0, |ns| ns * i as f64) as u64);
        self.start.checked_add(after).unwrap_or(self.start)
    }

    /// Returns the waits of this window, and the number of packets due in it in bursts of `burst`.
    pub fn done(&self, until: Instant, burst: usize) -> Done {
        let due = self.interval_ns.map_or(0, |ns| {
            let window = nanos(until.saturating_duration_since(self.start));
            (window as f64 / ns).ceil() as u64 * burst as u64
        });
        Done {
            due,
            sleeps: self.sleeps,
            asleep_ns: self.asleep_ns,
            late_ns: self.late_ns,
            ..Done::default()
        }
    }
}

/// The duty of a source's worker, and of the receiver's worker if it is on the same thread.
pub(super) struct Turning {
    pub source: Worker,
    pub receiver: Option<Worker>,
    /// Turns for each burst; the next field is the number of packets in a burst.
    pub turns: usize,
    pub burst: usize,
    pub beat: Beat,
    /// True if another thread empties a ring behind the source.
    pub shared: bool,
}

impl Duty<Duration, Done> for Turning {
    fn run(&mut self, time: Duration) -> io::Result<Done> {
        let until = Instant::now() + time;
        self.beat.restart();
        while let Some(now) = self.beat.next(until)? {
            let mut turned = Turned::Idle;
            for _ in 0..self.turns {
                turned = self.source.turn(now);
            }
            match &mut self.receiver {
                Some(receiver) => {
                    for _ in 0..self.turns {
                        receiver.turn(now);
                    }
                }
                // The ring is full: park until the port reports room or its next check for room.
                None if self.shared && turned != Turned::Again => {
                    self.source.park(turned, Some(until.saturating_duration_since(now)))?;
                }
                None => {}
            }
        }
        if let Some(receiver) = &mut self.receiver {
            empty(receiver);
        }
        // Publish now, so that the counts of this window are not read with the next one.
        self.source.publish();
        Ok(self.beat.done(until, self.burst))
    }

    fn end(self: Box<Self>) -> Vec<Worker> {
        std::iter::once(self.source).chain(self.receiver).collect()
    }
}

/// The duty of a worker that receives the packets of another thread.
pub(super) struct Receiving(pub Worker);

impl Duty<Duration, Done> for Receiving {
    fn run(&mut self, time: Duration) -> io::Result<Done> {
        let until = Instant::now() + time;
        loop {
            let now = Instant::now();
            let left = until.saturating_duration_since(now);
            if left.is_zero() {
                break;
            }
            let turned = self.0.turn(now);
            self.0.park(turned, Some(left))?;
        }
        empty(&mut self.0);
        // Publish now, so that packets that a device missed in this window count in this window.
        self.0.publish();
        Ok(Done::default())
    }

    fn end(self: Box<Self>) -> Vec<Worker> {
        vec![self.0]
    }
}

/// Turns a receiver until it has no packets left, up to the number of turns that a full ring needs.
pub(super) fn empty(receiver: &mut Worker) {
    let now = Instant::now();
    for _ in 0..TURNS_MAX {
        if receiver.turn(now) != Turned::Again {
            break;
        }
    }
}

/// Turns that suffice to empty the longest ring with the smallest budget.
const TURNS_MAX: usize = 1 << 16;

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
