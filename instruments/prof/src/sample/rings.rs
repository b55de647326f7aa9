//! The open events and their rings, one for each CPU.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use perf_event::data::Record;
use perf_event::{Builder, Counter, Sampler};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::ioctl::{IntegerSetter, Opcode, ioctl, opcode};

use crate::pmu::open::ns;
use crate::profile::Space;

/// Open events with their rings. Dropping them closes the events and frees the kernel's memory.
#[derive(Default)]
pub(super) struct Rings {
    /// Rings by CPU; `None` is the ring of an event that follows its thread to any CPU.
    rings: BTreeMap<Option<usize>, Ring>,
    /// Events of the other threads, with the thread's index; each writes into the ring of its CPU.
    others: Vec<(usize, Counter)>,
    /// Number of threads; of CPUs, if the events are of whole CPUs. Each has an index below this.
    threads: usize,
}

struct Ring {
    sampler: Sampler,
    thread: usize,
    bytes: usize,
    /// True if the first thread has ended, so that the kernel no longer wakes us for this ring.
    hung_up: bool,
}

/// The step that the kernel refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Opening or redirecting the event failed.
    Event(io::Error),
    /// Allocating memory for a ring failed.
    Ring(io::Error),
}

/// Counts of the events.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    /// CPU time of the threads, in nanoseconds.
    pub(super) cpu_ns: u64,
    /// Part of that time in which the event had a counter.
    pub(super) running_ns: u64,
    /// Records for which a ring had no room; 0 if the kernel (before 6.0) does not report them.
    pub(super) lost: u64,
}

impl Rings {
    /// Opens the event of `builder` for one thread, once for each CPU, or for everything that runs
    /// on a single CPU. A CPU that went offline since the list was read is skipped.
    ///
    /// # Errors
    /// As perf_event_open, the ioctl or mmap says.
    pub(super) fn add(
        &mut self,
        builder: &mut Builder<'static>,
        cpus: &[Option<usize>],
        ring_bytes: usize,
    ) -> Result<(), Refusal> {
        let (mut off_line, thread) = (None, self.threads);
        for &cpu in cpus {
            match cpu {
                Some(cpu) => builder.one_cpu(cpu),
                None => builder.any_cpu(),
            };
            let counter = match builder.build() {
                Err(e) if cpu.is_some() && e.raw_os_error() == Some(ENODEV) => {
                    off_line = Some(e);
                    continue;
                }
                built => built.map_err(Refusal::Event)?,
            };
            self.threads = thread + 1;
            if let Some(ring) = self.rings.get(&cpu) {
                redirect(&counter, &ring.sampler).map_err(Refusal::Event)?;
                self.others.push((thread, counter));
            } else {
                let sampler = counter.sampled(ring_bytes).map_err(Refusal::Ring)?;
                let ring = Ring { sampler, thread, bytes: ring_bytes, hung_up: false };
                self.rings.insert(cpu, ring);
            }
        }
        let refused = off_line.filter(|_| self.threads == thread);
        refused.map_or(Ok(()), |e| Err(Refusal::Event(e)))
    }

    /// Returns the number of threads whose events are open; of CPUs, for events of whole CPUs.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Enables the events.
    ///
    /// # Errors
    /// As the ioctl says.
    pub(super) fn enable(&mut self) -> io::Result<()> {
        self.counters().try_for_each(|(_, counter)| counter.enable())
    }

    /// Disables the events.
    ///
    /// # Errors
    /// As the ioctl says.
    pub(super) fn disable(&mut self) -> io::Result<()> {
        self.counters().try_for_each(|(_, counter)| counter.disable())
    }

    /// Waits until a ring is half full or the time is over.
    ///
    /// # Errors
    /// As poll says; an interrupted wait is none.
    pub(super) fn wait(&mut self, timeout: &Timespec) -> io::Result<()> {
        let awake = || self.rings.values().filter(|ring| !ring.hung_up);
        let mut fds: Vec<PollFd<'_>> = awake()
            .map(|ring| PollFd::from_borrowed_fd(descriptor(&ring.sampler), PollFlags::IN))
            .collect();
        match rustix::event::poll(&mut fds, Some(timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ended: Vec<bool> = fds.iter().map(|fd| fd.revents().intersects(ENDED)).collect();
        let awake = self.rings.values_mut().filter(|ring| !ring.hung_up);
        awake.zip(ended).for_each(|(ring, ended)| ring.hung_up = ended);
        Ok(())
    }

    /// Passes every record to `take` with its space; an invalid record is `None`. Takes at most
    /// each ring's size, so that a fast target cannot keep this function busy.
    pub(super) fn drain(&mut self, mut take: impl FnMut(Space, Option<Record<'_>>)) {
        for ring in self.rings.values_mut() {
            let mut left = ring.bytes;
            while let Some(record) = ring.sampler.next_record() {
                let size = record.len() + HEADER_BYTES;
                take(space(record.misc()), record.parse_record().ok());
                match left.checked_sub(size) {
                    Some(rest) => left = rest,
                    None => break,
                }
            }
        }
    }

    /// Returns the counts so far, including those of inherited events.
    ///
    /// # Errors
    /// As read says.
    pub(super) fn counted(&mut self) -> io::Result<Counted> {
        let (mut times, mut lost) = (Vec::new(), 0u64);
        for (index, counter) in self.counters() {
            let data = counter.read_full()?;
            times.push((index, ns(data.time_enabled()), ns(data.time_running())));
            lost = lost.saturating_add(data.lost().unwrap_or(0));
        }
        let (cpu_ns, running_ns) = sums(&times);
        Ok(Counted { cpu_ns, running_ns, lost })
    }

    /// Returns every event, with the index of its thread or CPU.
    fn counters(&mut self) -> impl Iterator<Item = (usize, &mut Counter)> {
        let rings = self.rings.values_mut().map(|ring| (ring.thread, &mut *ring.sampler));
        rings.chain(self.others.iter_mut().map(|(thread, counter)| (*thread, counter)))
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (cpus, others) = (self.rings.keys(), self.others.len());
        write!(f, "Rings {{ cpus: {cpus:?}, others: {others}, threads: {} }}", self.threads)
    }
}

/// Returns the CPU time, and the part of it in which the event had a counter, from each event's
/// index, enabled time and running time.
///
/// An event's enabled time is that of its thread on any CPU, but the kernel updates it only when it
/// uses the event. So the largest enabled time of each index counts.
fn sums(times: &[(usize, u64, u64)]) -> (u64, u64) {
    let (mut enabled_ns, mut running_ns) = (BTreeMap::<usize, u64>::new(), 0u64);
    for &(index, enabled, running) in times {
        let largest = enabled_ns.entry(index).or_default();
        *largest = enabled.max(*largest);
        running_ns = running_ns.saturating_add(running);
    }
    let enabled = enabled_ns.values().fold(0u64, |sum, &ns| sum.saturating_add(ns));
    (enabled.max(running_ns), running_ns)
}

/// Redirects the samples of `counter` into the ring of `to`.
fn redirect(counter: &Counter, to: &Sampler) -> io::Result<()> {
    // PERF_EVENT_IOC_SET_OUTPUT, include/uapi/linux/perf_event.h.
    const SET_OUTPUT: Opcode = opcode::none(b'$', 5);
    let target = usize::try_from(to.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: the opcode takes an integer: the descriptor of the event whose ring is to be used.
    // The kernel checks the descriptor and keeps the ring alive. The call writes no memory of ours.
    unsafe { ioctl(descriptor(counter), IntegerSetter::<SET_OUTPUT>::new_usize(target)) }?;
    Ok(())
}

fn descriptor(counter: &Counter) -> BorrowedFd<'_> {
    // SAFETY: the counter owns the descriptor and is borrowed for as long as the result lives.
    unsafe { BorrowedFd::borrow_raw(counter.as_raw_fd()) }
}

/// Returns the space, kernel or user, of a record.
///
/// Source: include/uapi/linux/perf_event.h, PERF_RECORD_MISC_CPUMODE_MASK.
const fn space(misc: u16) -> Space {
    match misc & 7 {
        1 => Space::Kernel,
        2 => Space::User,
        _ => Space::Unknown,
    }
}

const HEADER_BYTES: usize = 8;
/// Error for an event of one CPU that is offline (Linux kernel/events/core.c, perf_event_open).
const ENODEV: i32 = 19;
/// Flags that poll returns permanently for an event whose threads have ended, or that failed.
const ENDED: PollFlags = PollFlags::HUP.union(PollFlags::ERR);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_cpus_are_added_up_and_of_one_thread_s_events_the_largest_counts() {
        assert_eq!(sums(&[(0, 1000, 500), (1, 1000, 500)]), (2000, 1000), "half was multiplexed");
        assert_eq!(sums(&[(0, 1000, 600), (0, 900, 400)]), (1000, 1000), "a thread on two CPUs");
        assert_eq!(sums(&[(0, 10, 10), (0, 10, 5)]), (15, 15), "it ran longer than was updated");
        assert_eq!(sums(&[]), (0, 0));
    }
}
