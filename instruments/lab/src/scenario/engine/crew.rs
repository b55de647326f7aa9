//! The threads of one side: each owns its part of the path, and waits on a channel between windows.
//!
//! ```text
//!  bench ── time ──► thread, pinned: meter starts, duty runs, meter stops ── report ──► bench
//! ```

use std::io;
use std::ops::AddAssign;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_datapath::Worker;
use linerate_port::thread;

use crate::meter::Meter;
use crate::window::ThreadTime;
use crate::{Code, Error, Result};

/// The duty of a thread in a window.
pub(super) trait Duty: Send {
    /// Does it until then.
    ///
    /// # Errors
    /// Whatever a wait says.
    fn run(&mut self, until: Instant) -> io::Result<Done>;

    /// Gives out the workers that it has turned, to be drained.
    fn workers(self: Box<Self>) -> Vec<Worker>;
}

/// The counts of a duty in a window that no counter of the engine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Done {
    /// Packets whose time had come; 0 without a rate.
    pub due: u64,
    /// Packets that a wire of the lab's own offered.
    pub offered: u64,
    /// Offered packets that found no posted buffer although the receiver had frames.
    pub ring_full: u64,
    /// Those that found none because the receiver's pool had no frame.
    pub no_frame: u64,
    /// Packets of `late` that were lost: the receiver may not be the cause.
    pub wire_late: u64,
    /// Packets that the receiver had, but the ring behind it had no room for.
    pub fabric_full: u64,
    /// Packets, lost or not, of bursts in which many came due together because the wire's own thread
    /// was late.
    pub late: u64,
    /// The latest that a sleep for the next burst ended. Not of one that a full ring held up.
    pub late_ns: u64,
    /// Packets that a loop of the lab's own passed on.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that the port behind it copied.
    pub copied_bytes: u64,
    /// Times that it slept in a wait of its own.
    pub sleeps: u64,
    /// The total time of those sleeps.
    pub asleep_ns: u64,
}

/// The cost of a thread in a window, and its counts.
pub(super) type Report = Result<(ThreadTime, Done)>;

/// A thread at the bench's service.
struct Hand {
    /// Dropped to end it.
    orders: Sender<Duration>,
    reports: Receiver<Report>,
    thread: JoinHandle<Box<dyn Duty>>,
}

/// All threads of a side.
#[derive(Default)]
pub(super) struct Crew(Vec<Hand>);

impl Crew {
    /// Starts one more, pinned to `cpu`.
    ///
    /// # Errors
    /// `E-SYSTEM` without a thread, `E-CPU` if it cannot be pinned there.
    pub fn hire(
        &mut self,
        role: &'static str,
        cpu: usize,
        measured: bool,
        duty: Box<dyn Duty>,
    ) -> Result<()> {
        let (orders, inbox) = channel();
        let (outbox, reports) = channel();
        let (ready, started) = sync_channel(1);
        let body = move || {
            let pinned = thread::pin_to_cpu(cpu);
            let go = pinned.is_ok();
            let _ = ready.send(pinned);
            if go {
                serve(Meter::of_this_thread(role, Some(cpu), measured), duty, &inbox, &outbox)
            } else {
                duty
            }
        };
        let thread = std::thread::Builder::new().name(format!("lab {role}")).spawn(body);
        let thread = thread.map_err(|e| lost(role, &e.to_string()))?;
        started.recv().map_err(|e| lost(role, &e.to_string()))??;
        self.0.push(Hand { orders, reports, thread });
        Ok(())
    }

    /// Has each of them work for so long, from its own start: one that is woken late has its window
    /// nevertheless.
    pub fn order(&self, time: Duration) {
        for hand in &self.0 {
            // A thread that is gone is missed in `collect`.
            let _ = hand.orders.send(time);
        }
    }

    /// Waits for all reports; returns the cost of each thread in order of hiring, and the sum of
    /// the counts.
    ///
    /// # Errors
    /// Of the first that failed; the others have ended their window too.
    pub fn collect(&self) -> Result<(Vec<ThreadTime>, Done)> {
        let reports: Vec<Report> = self
            .0
            .iter()
            .map(|hand| hand.reports.recv().unwrap_or_else(|e| Err(lost("a side", &e.to_string()))))
            .collect();
        let (mut times, mut all) = (Vec::new(), Done::default());
        for report in reports {
            let (time, done) = report?;
            times.push(time);
            all += done;
        }
        Ok((times, all))
    }

    /// Ends the threads, and gives out their workers.
    ///
    /// # Errors
    /// `E-SYSTEM` if one of them panicked.
    pub fn dismiss(self) -> Result<Vec<Worker>> {
        let mut workers = Vec::new();
        for Hand { orders, reports, thread } in self.0 {
            drop((orders, reports));
            let duty = thread.join().map_err(|_| lost("a side", "it panicked"))?;
            workers.extend(duty.workers());
        }
        Ok(workers)
    }
}

/// Runs windows until no requester is left.
fn serve(
    mut meter: Meter,
    mut duty: Box<dyn Duty>,
    orders: &Receiver<Duration>,
    reports: &Sender<Report>,
) -> Box<dyn Duty> {
    for time in orders {
        let mut window = || {
            meter.start()?;
            let done = duty.run(Instant::now() + time);
            let time = meter.stop()?;
            let done = done.map_err(|e| lost("a side", &e.to_string()))?;
            Ok((time, done))
        };
        if reports.send(window()).is_err() {
            break;
        }
    }
    duty
}

fn lost(role: &str, why: &str) -> Error {
    Error::new(Code::System, format!("the thread of {role} cannot go on"), why)
}

impl AddAssign for Done {
    fn add_assign(&mut self, more: Done) {
        self.due += more.due;
        self.offered += more.offered;
        self.ring_full += more.ring_full;
        self.no_frame += more.no_frame;
        self.wire_late += more.wire_late;
        self.fabric_full += more.fabric_full;
        self.late += more.late;
        self.late_ns = self.late_ns.max(more.late_ns);
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.copied_bytes += more.copied_bytes;
        self.sleeps += more.sleeps;
        self.asleep_ns += more.asleep_ns;
    }
}
