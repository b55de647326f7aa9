//! The three affinities, each alone and for a time: where a device's interrupt work runs, where a worker polls,
//! where an application's thread runs. Dropping a guard puts back what it found.
//!
//! ```text
//!   interrupt    a device's own irq               /proc/irq/N/smp_affinity_list
//!                NAPI's threads, if it is threaded    sched_setaffinity(2)
//!                of veth, which has no irq: NAPI's thread, which the interface is given meanwhile, if asked
//!   poller       a worker of an engine            Control::set_cpus
//!   process      any thread, by its number        sched_setaffinity(2)
//! ```
//!
//! Nothing here is done unasked: interrupts belong to the machine, and a program that balances them
//! (irqbalance) moves them again ([`InterruptGuard::notes`] says so).
//!
//! Source: Documentation/core-api/irq/irq-affinity.rst, Documentation/networking/napi.rst ("Threaded NAPI").

mod interrupts;
mod queue;

use std::time::Duration;

use linerate_datapath::Control;
use linerate_port::Result;
use linerate_sys::thread;

pub use interrupts::InterruptGuard;
pub use queue::{QueuePin, Was};

/// Longest wait for a worker to obey: one that shares its CPU with much else may take its time.
const OBEYS: Duration = Duration::from_secs(10);

/// Something that can be pinned, for the guards and for `placement`.
pub trait Pin {
    /// Returns its name for a reader: `worker 1`, `interrupts of eth0`.
    fn name(&self) -> String;

    /// Has it run on these CPUs alone, until told otherwise; returns those on which it could before.
    ///
    /// # Errors
    /// `E-CPU` if it may run on none of them: then it stays where it was.
    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>>;

    /// Has it run where it did before, which is what its first [`Pin::pin`] returned.
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
}

impl WorkerPin {
    /// Names a worker by its number.
    #[must_use]
    pub fn new(control: &Control, worker: usize) -> WorkerPin {
        WorkerPin { control: control.clone(), worker }
    }
}

impl Pin for WorkerPin {
    fn name(&self) -> String {
        format!("worker {}", self.worker)
    }

    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>> {
        Ok(self.control.set_cpus(self.worker, cpus)?.wait(OBEYS)?.before)
    }
}

/// A thread, by the number that the kernel has for it.
#[derive(Debug, Clone, Copy)]
pub struct ThreadPin(i32);

impl ThreadPin {
    /// Names the calling thread.
    #[must_use]
    pub fn current() -> ThreadPin {
        ThreadPin(thread::id())
    }

    /// Names a thread by its number, as `ps -L` shows it.
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
        thread::run_thread_on(self.0, cpus)?;
        Ok(before)
    }
}

/// An affinity that is put back when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it restores the affinity"]
pub struct Pinned<P: Pin> {
    pin: P,
    before: Vec<usize>,
}

impl<P: Pin> Pinned<P> {
    /// Has something run on these CPUs alone.
    ///
    /// # Errors
    /// Those of [`Pin::pin`].
    pub fn new(mut pin: P, cpus: &[usize]) -> Result<Pinned<P>> {
        let before = pin.pin(cpus)?;
        Ok(Pinned { pin, before })
    }

    /// Moves it on; what is put back stays the same.
    ///
    /// # Errors
    /// Those of [`Pin::pin`].
    pub fn move_to(&mut self, cpus: &[usize]) -> Result<()> {
        self.pin.pin(cpus).map(drop)
    }

    /// Returns the CPUs that the guard will put back.
    #[must_use]
    pub fn before(&self) -> &[usize] {
        &self.before
    }
}

impl<P: Pin> Drop for Pinned<P> {
    fn drop(&mut self) {
        // What is gone needs no putting back.
        let _ = self.pin.put_back(&self.before);
    }
}

#[cfg(test)]
mod tests {
    use linerate_port::Code;

    use super::*;

    #[test]
    fn a_thread_is_pinned_while_the_guard_is_there() {
        std::thread::spawn(|| {
            let all = thread::allowed_cpus().unwrap();
            let mut pinned = Pinned::new(ThreadPin::current(), &all[..1]).unwrap();
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
            let e = Pinned::new(ThreadPin::of(i32::MAX), &[last]).unwrap_err();
            assert!(e.code == Code::System, "{e}");
        })
        .join()
        .unwrap();
    }
}
