//! The three affinities, each set separately and temporarily: where a device's interrupt work runs,
//! where a worker polls, where an application's thread runs. Dropping a guard restores the previous
//! CPUs.
//!
//! ```text
//!   interrupt    a device's own irq               /proc/irq/N/smp_affinity_list
//!                NAPI's threads, if it is threaded    sched_setaffinity(2)
//!                of veth, which has no irq: NAPI's thread, which the interface is given meanwhile, if asked
//!   poller       a worker of an engine            Control::set_cpus
//!   process      any thread, by its number        sched_setaffinity(2)
//! ```
//!
//! No affinity changes without a request: interrupts belong to the machine, and a program that
//! balances them (irqbalance) may move them again ([`InterruptGuard::notes`] reports it).
//!
//! Source: Documentation/core-api/irq/irq-affinity.rst, Documentation/networking/napi.rst
//!         ("Threaded NAPI").

mod interrupts;
mod irqs;
mod napi;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::{Control, PendingOrder, Pinned};
use linerate_port::{Code, Error, Result};
use linerate_sys::thread;

pub use interrupts::InterruptGuard;
pub use queue::{QueuePin, Was};

/// Longest wait for a worker to obey; long, because a worker that shares its CPU may obey late.
const OBEYS: Duration = Duration::from_secs(10);
/// Longest such wait once the run ends.
const OBEYS_AT_END: Duration = Duration::from_millis(100);
/// Interval at which the answer of a worker that is put back is looked for, if the worker wakes
/// nobody.
const ANSWER_INTERVAL: Duration = Duration::from_millis(10);

/// Something that can be pinned to CPUs: the interface of guards and of `placement`.
pub trait Pin {
    /// Returns the name for a reader: `worker 1`, `interrupts of eth0`.
    fn name(&self) -> String;

    /// Restricts it to these CPUs until the next call; returns the CPUs on which it could run
    /// before.
    ///
    /// # Errors
    /// `E-CPU` if it may run on none of these CPUs, `E-PERM` for an irq if the process is not root;
    /// then nothing has changed.
    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>>;

    /// Restores the CPUs `before`, which the first call of [`Pin::pin`] returned.
    ///
    /// # Errors
    /// Those of [`Pin::pin`].
    fn put_back(&mut self, before: &[usize]) -> Result<()> {
        self.pin(before).map(drop)
    }
}

/// A worker of a running engine.
#[derive(Debug, Clone)]
pub struct WorkerPin {
    control: Control,
    worker: usize,
    /// Set when the run ends: a worker that has ended does not obey.
    over: Arc<AtomicBool>,
}

impl WorkerPin {
    /// Returns a pin for the worker with this number.
    #[must_use]
    pub fn new(control: &Control, worker: usize) -> WorkerPin {
        WorkerPin { control: control.clone(), worker, over: Arc::default() }
    }

    /// Returns a pin that no longer waits for its worker once `over` is set.
    pub(crate) fn until(self, over: &Arc<AtomicBool>) -> WorkerPin {
        WorkerPin { over: over.clone(), ..self }
    }

    /// Waits until the worker has answered; returns false if it does not in time.
    fn is_answered(&self, order: &PendingOrder<Pinned>) -> bool {
        let start = Instant::now();
        loop {
            if order.answer().is_some() {
                return true;
            }
            let patience = if self.over.load(Ordering::Relaxed) { OBEYS_AT_END } else { OBEYS };
            if start.elapsed() >= patience {
                return false;
            }
            // The worker wakes this thread.
            std::thread::park_timeout(ANSWER_INTERVAL);
        }
    }
}

impl Pin for WorkerPin {
    fn name(&self) -> String {
        format!("worker {}", self.worker)
    }

    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>> {
        let order = self.control.set_cpus(self.worker, cpus)?;
        if self.is_answered(&order) || !order.withdraw() {
            return Ok(order.wait(OBEYS_AT_END)?.before);
        }
        let what = format!("worker {} was not moved", self.worker);
        let (why, fix) = match self.over.load(Ordering::Relaxed) {
            true => ("the run ended first".to_owned(), "a longer run"),
            false => (format!("it did not finish a poll within {OBEYS:?}"), "end what keeps it"),
        };
        Err(Error::new(Code::Busy, what, why).fix(fix))
    }

    fn put_back(&mut self, cpus: &[usize]) -> Result<()> {
        let order = self.control.set_cpus(self.worker, cpus)?;
        self.is_answered(&order);
        // Not withdrawn: a worker that is turned again later must not stay where it is.
        order.answer().map_or(Ok(()), |answer| answer.map(drop))
    }
}

/// A thread, identified by the kernel's thread id.
#[derive(Debug, Clone, Copy)]
pub struct ThreadPin(i32);

impl ThreadPin {
    /// Returns a pin for the calling thread.
    #[must_use]
    pub fn current() -> ThreadPin {
        ThreadPin(thread::id())
    }

    /// Returns a pin for the thread with this id, as `ps -L` shows it.
    #[must_use]
    pub fn of(thread: i32) -> ThreadPin {
        ThreadPin(thread)
    }
}

impl Pin for ThreadPin {
    fn name(&self) -> String {
        format!("thread {}", self.0)
    }

    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>> {
        let before = thread::allowed_cpus_of(self.0)?;
        move_thread(self.0, cpus)?;
        Ok(before)
    }
}

/// Restricts a thread to these CPUs.
///
/// # Errors
/// Those of [`thread::run_thread_on`]. If a filter of system calls refuses the call, the reason is
/// that filter.
fn move_thread(id: i32, cpus: &[usize]) -> Result<()> {
    thread::run_thread_on(id, cpus).map_err(|e| {
        // Every thread may pin itself to a CPU that it may use: only a filter refuses that.
        let own = thread::allowed_cpus().unwrap_or_default();
        match thread::try_cpus(own.get(..1).unwrap_or_default()) {
            Err(mut filtered) if e.code == Code::Cpu && thread::is_filtered(&filtered) => {
                filtered.what = e.what;
                filtered
            }
            _ => e,
        }
    })
}

/// A guard of an affinity: dropping it restores the CPUs of before.
#[derive(Debug)]
#[must_use = "dropping it restores the affinity"]
pub struct PinGuard<P: Pin> {
    pin: P,
    before: Vec<usize>,
}

impl<P: Pin> PinGuard<P> {
    /// Restricts `pin` to these CPUs.
    ///
    /// # Errors
    /// Those of [`Pin::pin`].
    pub fn new(mut pin: P, cpus: &[usize]) -> Result<PinGuard<P>> {
        let before = pin.pin(cpus)?;
        Ok(PinGuard { pin, before })
    }

    /// Moves it to other CPUs; the CPUs to restore do not change.
    ///
    /// # Errors
    /// Those of [`Pin::pin`].
    pub fn move_to(&mut self, cpus: &[usize]) -> Result<()> {
        self.pin.pin(cpus).map(drop)
    }

    /// Returns the CPUs that the guard will restore.
    #[must_use]
    pub fn before(&self) -> &[usize] {
        &self.before
    }
}

impl<P: Pin> Drop for PinGuard<P> {
    fn drop(&mut self) {
        // An error is ignored: a thread that has ended needs no restoring.
        let _ = self.pin.put_back(&self.before);
    }
}

#[cfg(test)]
mod tests {
    use linerate_port::Code;

    use super::*;
    use linerate_testing::unless;

    #[test]
    fn a_thread_is_pinned_while_the_guard_is_there() {
        std::thread::spawn(|| {
            let all = thread::allowed_cpus().unwrap();
            let pinned = PinGuard::new(ThreadPin::current(), &all[..1]);
            let Some(mut pinned) = unless(pinned, thread::is_filtered) else { return };
            assert_eq!(
                (thread::allowed_cpus().unwrap(), pinned.before()),
                (all[..1].to_vec(), &all[..])
            );
            let last = all[all.len() - 1];
            pinned.move_to(&[last]).unwrap();
            assert_eq!(thread::current_cpu(), last);
            let e = pinned.move_to(&[60_000]).unwrap_err();
            assert_eq!(e.code, Code::Cpu);
            assert_eq!(thread::allowed_cpus().unwrap(), [last]);
            drop(pinned);
            assert_eq!(thread::allowed_cpus().unwrap(), all);
            let e = PinGuard::new(ThreadPin::of(i32::MAX), &[last]).unwrap_err();
            assert!(e.code == Code::System, "{e}");
        })
        .join()
        .unwrap();
    }
}
