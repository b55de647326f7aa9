//! The interrupts of an interface: finds them, moves them together or by queue, and restores their
//! CPUs.
//!
//! ```text
//!   /sys/class/net/X/device/msi_irqs ─► irqs with a handler (/proc/interrupts) ─► smp_affinity_list
//!   NAPI is threaded: netdev-genl, or threads called napi/X-N                  ─► sched_setaffinity(2)
//! ```

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use linerate_port::wait::poll_readable;
use linerate_port::{Code, Error, Result};
use linerate_sys::netif::{Interface, NetFolder};
use linerate_sys::thread;

use super::Pin;
use super::irqs::{balancer, irqs};
use super::napi::{named, own_of, reported, threads};
use super::queue::{QueuePin, Was, cpus_of, list_of, refused};

/// Longest wait for the kernel to start NAPI's threads.
const SOON: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(1);
/// Reason if NAPI's threads of an interface cannot be told from those of another.
const UNKNOWN: &str = "its NAPI threads cannot be told from others of the same name";

/// A guard of all interrupts of an interface, which can be moved together. Dropping it restores the
/// CPUs of those that it has moved, unless another program has moved them since, and whether NAPI
/// has threads. Drop it while the port is open, because a veth's NAPI may end with the port.
#[derive(Debug)]
#[must_use = "dropping it restores the interrupts"]
pub struct InterruptGuard {
    name: String,
    folder: NetFolder,
    /// Interrupts of each queue, irqs before threads.
    queues: Vec<QueuePin>,
    /// True if this guard made NAPI of the interface threaded.
    is_threaded_by_us: bool,
    notes: Vec<String>,
}

impl InterruptGuard {
    /// Finds an interface's irqs. If it has none, the kernel moves its packets in soft interrupts
    /// of the sender's CPU; then this gives each NAPI instance a thread. The interface is looked up
    /// in the calling thread's network namespace, and its port must be open, because a veth may
    /// have no NAPI before.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if the interface has neither irqs nor NAPI, `E-PERM` if the process is not
    /// root, who owns the files in /proc and /sys, `E-NODEV` if the interface does not exist,
    /// `E-CPU` if none of its irqs can be moved.
    pub fn of(interface: &str) -> Result<InterruptGuard> {
        let (found, mut guard) = InterruptGuard::look(interface)?;
        if guard.queues.is_empty() {
            guard.have_threads(&found)?;
        }
        Ok(guard)
    }

    /// Finds the interrupts that an interface already has, without starting threads: its irqs, and
    /// NAPI's threads if NAPI is threaded.
    ///
    /// # Errors
    /// Those of [`InterruptGuard::of`].
    pub fn found(interface: &str) -> Result<InterruptGuard> {
        let (_, guard) = InterruptGuard::look(interface)?;
        if guard.queues.is_empty() {
            return Err(guard.unsupported(match guard.is_threaded() {
                true => UNKNOWN,
                false => "it has no irq, and its NAPI has no threads",
            }));
        }
        Ok(guard)
    }

    fn look(interface: &str) -> Result<(Interface, InterruptGuard)> {
        let found = Interface::open(interface)?;
        let mut guard =
            InterruptGuard::at(Path::new("/proc"), NetFolder::open(&found)?, interface)?;
        if guard.is_threaded() {
            let named = || named(Path::new("/proc"), interface);
            let threads = reported(&found).or(own_of(named(), found.rx_queues()? as usize));
            guard.take(threads)?;
        }
        Ok((found, guard))
    }

    /// Returns true if NAPI of the interface has threads.
    fn is_threaded(&self) -> bool {
        self.folder.read("threaded").is_some_and(|now| now != "0")
    }

    /// Finds an interface's irqs in the given `/proc` and the interface's folder in sysfs.
    fn at(proc: &Path, folder: NetFolder, interface: &str) -> Result<InterruptGuard> {
        let mut guard = InterruptGuard {
            name: interface.to_owned(),
            queues: Vec::new(),
            is_threaded_by_us: false,
            notes: balancer(proc).into_iter().collect(),
            folder,
        };
        let mut fixed = Ok(());
        for (irq, queue) in irqs(proc, &guard.folder) {
            // Write the irq's present CPUs again, as a trial: the kernel refuses that too if the
            // controller cannot move the irq.
            let path = list_of(proc, irq);
            let list = fs::read_to_string(&path).map(|list| list.trim().to_owned());
            match list.and_then(|list| fs::write(&path, &list).map(|()| list)) {
                Ok(list) => guard.add(proc, queue, Was::Irq(irq, list)),
                Err(e) => {
                    guard.notes.push(format!("irq {irq} of {interface} stays on its CPUs: {e}"));
                    fixed = Err(refused(interface, irq, &e));
                }
            }
        }
        if guard.queues.is_empty() { fixed.map(|()| guard) } else { Ok(guard) }
    }

    /// Adds an irq to the other irqs of its queue; a NAPI thread gets an entry of its own.
    fn add(&mut self, proc: &Path, queue: usize, was: Was) {
        let is_same = |pin: &&mut QueuePin| {
            pin.queue == queue
                && matches!((&was, &pin.found[..]), (Was::Irq(..), [Was::Irq(..), ..]))
        };
        if let Some(pin) = self.queues.iter_mut().find(is_same) {
            return pin.found.push(was);
        }
        self.queues.push(QueuePin::new(proc, &self.name, queue, was));
    }

    /// Adds NAPI's threads, or a note if they are not known.
    fn take(&mut self, threads: Option<Vec<i32>>) -> Result<()> {
        let Some(threads) = threads else {
            self.notes.push(format!("NAPI of {} stays on its CPUs: {UNKNOWN}", self.name));
            return Ok(());
        };
        for (queue, thread) in threads.into_iter().enumerate() {
            let was = Was::Thread(thread, thread::allowed_cpus_of(thread)?);
            self.add(Path::new("/proc"), queue, was);
        }
        Ok(())
    }

    /// Describes the interrupts that are moved, for a reader.
    #[must_use]
    pub fn moved(&self) -> String {
        let join = |all: Vec<String>| all.join(",");
        let threads = join(self.threads().iter().map(i32::to_string).collect());
        let irqs = join(self.irqs().iter().map(u32::to_string).collect());
        match (irqs.as_str(), threads.as_str()) {
            ("", threads) => format!("NAPI threads {threads} of {}", self.name),
            (irqs, "") => format!("irqs {irqs} of {}", self.name),
            (irqs, threads) => format!("irqs {irqs} and NAPI threads {threads} of {}", self.name),
        }
    }

    /// Returns the interrupts of each queue, which can be placed separately. The guard restores
    /// them.
    #[must_use]
    pub fn queues(&self) -> &[QueuePin] {
        &self.queues
    }

    /// Returns the original state of everything that the guard may change.
    pub fn was(&self) -> impl Iterator<Item = &Was> {
        self.queues.iter().flat_map(|pin| &pin.found)
    }

    /// Returns the ids of NAPI's threads, if the guard moves threads.
    #[must_use]
    pub fn threads(&self) -> Vec<i32> {
        let thread =
            |was: &Was| if let Was::Thread(thread, _) = was { Some(*thread) } else { None };
        self.was().filter_map(thread).collect()
    }

    fn irqs(&self) -> Vec<u32> {
        let irq = |was: &Was| if let Was::Irq(irq, _) = was { Some(*irq) } else { None };
        self.was().filter_map(irq).collect()
    }

    /// Returns notes on what limits the move: a program that balances interrupts, and irqs that
    /// cannot be moved.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Restores a setting of an interface that a killed program has left, in the calling thread's
    /// namespace. NAPI's threads keep the name that the interface had when they were started:
    /// `former` is the name that the program used. Returns false if the irq or the thread no longer
    /// exists, or belongs to another interface: then nothing has changed.
    ///
    /// # Errors
    /// `E-NODEV` if the interface does not exist, `E-PERM` if the process is not root, `E-CPU` if
    /// the interrupt cannot be moved, `E-UNSUPPORTED` if the interface has NAPI only while a port
    /// is open.
    pub fn put_back(interface: &str, former: &str, was: &Was) -> Result<bool> {
        let found = Interface::open(interface)?;
        let folder = NetFolder::open(&found)?;
        put_back_in(Path::new("/proc"), &folder, [interface, former], was)
    }

    /// Restores what dropping the guard restores.
    ///
    /// # Errors
    /// `E-CPU` for an interrupt that cannot be restored, `E-PERM` if NAPI keeps its threads, or if
    /// the process is no longer root; the others are restored. An irq or a thread that no longer
    /// exists is no error.
    pub fn end(mut self) -> Result<()> {
        self.restore()
    }

    fn restore(&mut self) -> Result<()> {
        let queues = std::mem::take(&mut self.queues);
        let done = queues.iter().map(QueuePin::restore_existing).fold(Ok(()), Result::and);
        if !std::mem::take(&mut self.is_threaded_by_us) {
            return done;
        }
        done.and(match self.folder.write("threaded", "0") {
            // The interface no longer exists.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            written => written.map_err(|e| not_threaded(&self.name, &e)),
        })
    }

    fn unsupported(&self, why: &str) -> Error {
        unsupported(&self.name, why)
    }

    fn have_threads(&mut self, interface: &Interface) -> Result<()> {
        let why = match self.folder.read("threaded").as_deref() {
            Some("0") => None,
            Some(_) => Some(UNKNOWN),
            None => Some("it has no irq, and NAPI has no threads before Linux 5.12"),
        };
        if let Some(why) = why {
            return Err(self.unsupported(why));
        }
        let others = threads(interface);
        match self.folder.write("threaded", "1") {
            Ok(()) => self.is_threaded_by_us = true,
            Err(e) => return Err(not_threaded(&self.name, &e)),
        }
        let (until, queues) = (Instant::now() + SOON, interface.rx_queues()? as usize);
        loop {
            let mut threads = threads(interface);
            threads.retain(|thread| !others.contains(thread));
            if !threads.is_empty() && threads.len() <= queues {
                return self.take(Some(threads));
            }
            if Instant::now() >= until {
                return Err(self.unsupported(match threads.len() {
                    0 => "it has no irq and no NAPI",
                    _ => UNKNOWN,
                }));
            }
            // The kernel starts the threads some time later, without a notification.
            let _ = poll_readable(&[], Some(STEP));
        }
    }
}

/// Restores a setting of the interface with this folder and these names, if its irq or thread still
/// belongs to it; returns false if it does not.
fn put_back_in(proc: &Path, folder: &NetFolder, names: [&str; 2], was: &Was) -> Result<bool> {
    let [interface, _] = names;
    let is_there = match was {
        Was::NotThreaded => {
            let off = folder.write("threaded", "0").map_err(|e| not_threaded(interface, &e));
            return off.map(|()| true);
        }
        Was::Irq(irq, _) => irqs(proc, folder).iter().any(|(now, _)| now == irq),
        // Not only among the reported threads: the kernel may not report them to this process, and
        // the record is of this interface.
        Was::Thread(thread, _) => {
            names.iter().flat_map(|name| named(proc, name)).any(|(now, _)| now == *thread)
        }
    };
    if !is_there {
        return Ok(false);
    }
    QueuePin::new(proc, interface, 0, was.clone()).put_all().map(|()| true)
}

fn unsupported(interface: &str, why: &str) -> Error {
    let what = format!("cannot move the interrupts of {interface}");
    let fix = format!("open its port first; see: ip -d link show {interface}");
    Error::new(Code::Unsupported, what, why).fix(fix)
}

fn not_threaded(interface: &str, e: &std::io::Error) -> Error {
    // Source: net/core/dev.c, `dev_set_threaded`.
    if e.kind() == std::io::ErrorKind::Unsupported {
        return unsupported(interface, "it has no irq and no NAPI");
    }
    let what = format!("cannot change whether NAPI of {interface} has threads");
    Error::new(Code::Permission, what, e.to_string()).fix("run as root, who owns the file in /sys")
}

impl Pin for InterruptGuard {
    fn name(&self) -> String {
        format!("interrupts of {}", self.name)
    }

    /// Moves the interrupts of all queues, or none.
    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>> {
        let mut moved: Vec<(&QueuePin, Vec<Was>)> = Vec::new();
        for pin in &self.queues {
            match pin.move_all(cpus) {
                Ok(before) => moved.push((pin, before)),
                Err(e) => {
                    moved.iter().for_each(|(pin, before)| pin.set_all(before));
                    return Err(e);
                }
            }
        }
        let before: Vec<Was> = moved.into_iter().flat_map(|(_, before)| before).collect();
        Ok(cpus_of(&before))
    }

    /// Restores the interrupts of all queues, also after one that cannot be restored.
    fn put_back(&mut self, _before: &[usize]) -> Result<()> {
        self.queues.iter().map(QueuePin::restore).fold(Ok(()), Result::and)
    }
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}

#[cfg(test)]
mod tests;
