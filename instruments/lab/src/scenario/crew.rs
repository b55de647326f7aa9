//! The threads of one side: each owns its part of the path, and waits on a channel between windows.
//!
//! ```text
//!  bench ── order ──► thread, pinned: meter starts, duty runs, meter stops ── report ──► bench
//! ```

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

use linerate_datapath::Worker;
use linerate_sys::thread;

use crate::meter::Meter;
use crate::window::ThreadTime;
use crate::{Code, Error, Result};

/// The duty of a thread: in each window it executes an order `O` and reports `T`.
pub(super) trait Duty<O, T>: Send {
    /// Prepares the duty once, on the CPU of its thread.
    fn settle(&mut self) {}

    /// Executes an order.
    fn run(&mut self, order: O) -> io::Result<T>;

    /// Ends the duty, and returns its workers, to be drained.
    fn end(self: Box<Self>) -> Vec<Worker> {
        Vec::new()
    }
}

type Report<T> = Result<(ThreadTime, T)>;

/// A thread of a crew, with its channels.
struct Hand<O, T> {
    /// Sender of orders; dropping it ends the thread.
    orders: Sender<O>,
    reports: Receiver<Report<T>>,
    thread: JoinHandle<Vec<Worker>>,
}

/// All threads of a side.
pub(super) struct Crew<O, T>(Vec<Hand<O, T>>);

impl<O: Clone + Send + 'static, T: Send + 'static> Crew<O, T> {
    /// Creates a crew without threads.
    pub fn new() -> Crew<O, T> {
        Crew(Vec::new())
    }

    /// Adds a thread, pinned to `cpu`; it is ready when this returns.
    pub fn hire(
        &mut self,
        role: &'static str,
        cpu: usize,
        measured: bool,
        mut duty: Box<dyn Duty<O, T>>,
    ) -> Result<()> {
        let (orders, inbox) = channel();
        let (outbox, reports) = channel();
        let (ready, started) = sync_channel(1);
        let body = move || {
            let pinned = thread::pin_to_cpu(cpu);
            let go = pinned.is_ok();
            if go {
                duty.settle();
            }
            let _ = ready.send(pinned);
            if go {
                let meter = Meter::of_this_thread(role, Some(cpu), measured);
                serve(meter, duty.as_mut(), &inbox, &outbox);
            }
            duty.end()
        };
        let thread = std::thread::Builder::new().name(format!("lab {role}")).spawn(body);
        let thread = thread.map_err(|e| lost(role, &e.to_string()))?;
        started.recv().map_err(|e| lost(role, &e.to_string()))??;
        self.0.push(Hand { orders, reports, thread });
        Ok(())
    }

    /// Sends `order` to every thread. A window counts from the thread's own start, so that a thread
    /// that wakes late has a full window.
    pub fn order(&self, order: &O) {
        for hand in &self.0 {
            // Ignore the error if the thread has ended: [`Crew::collect`] reports it.
            let _ = hand.orders.send(order.clone());
        }
    }

    /// Waits for all reports; returns the cost and the report of each thread, in the order of
    /// hiring.
    ///
    /// An error is that of the first that failed; the others have ended their window too.
    pub fn collect(&self) -> Result<(Vec<ThreadTime>, Vec<T>)> {
        let heard = |hand: &Hand<O, T>| {
            hand.reports.recv().unwrap_or_else(|e| Err(lost("a side", &e.to_string())))
        };
        let reports: Vec<Report<T>> = self.0.iter().map(heard).collect();
        Ok(reports.into_iter().collect::<Result<Vec<_>>>()?.into_iter().unzip())
    }

    /// Ends all threads, and returns their workers.
    pub fn dismiss(self) -> Result<Vec<Worker>> {
        let hands = self.0.into_iter().map(|hand| (hand.orders, hand.thread));
        let (orders, threads): (Vec<_>, Vec<_>) = hands.unzip();
        drop(orders);
        let mut workers = Vec::new();
        for thread in threads {
            workers.extend(thread.join().map_err(|_| lost("a side", "it panicked"))?);
        }
        Ok(workers)
    }
}

/// Runs a window for each order, until the sender of orders is dropped.
fn serve<O, T>(
    mut meter: Meter,
    duty: &mut dyn Duty<O, T>,
    orders: &Receiver<O>,
    reports: &Sender<Report<T>>,
) {
    for order in orders {
        let begun = meter.start();
        // Run the duty even if the meter failed to start: another thread of the side may wait for
        // this one.
        let done = duty.run(order).map_err(|e| lost("a side", &e.to_string()));
        let time = begun.and_then(|()| meter.stop());
        if reports.send(time.and_then(|time| Ok((time, done?)))).is_err() {
            break;
        }
    }
}

fn lost(role: &str, why: &str) -> Error {
    Error::new(Code::System, format!("the thread of {role} cannot continue"), why)
}
