//! The open events and the rings that they write into, one for each CPU.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use perf_event::{Builder, Counter, Sampler};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::ioctl::{IntegerSetter, Opcode, ioctl, opcode};

use super::note::Note;

/// Open events and their rings. Closed, and the kernel's memory given back, when dropped.
#[derive(Default)]
pub(super) struct Rings {
    /// By CPU; `None` is the ring of an event that follows its thread to any CPU.
    rings: BTreeMap<Option<usize>, Ring>,
    /// Events of further threads, which write into the ring of their CPU.
    others: Vec<Other>,
    threads: u32,
}

struct Ring {
    sampler: Sampler,
    thread: u32,
    bytes: u64,
    /// The first thread has ended: the kernel no longer wakes us for this ring.
    hung_up: bool,
}

struct Other {
    thread: u32,
    counter: Counter,
}

/// The step that the kernel refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// To open the event, or to redirect it.
    Event(io::Error),
    /// To lend memory for a ring.
    Ring(io::Error),
}

/// Counts of the events.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    /// Time that the threads had a CPU, in nanoseconds.
    pub(super) cpu_ns: u64,
    /// Time of it in which the event had a counter.
    pub(super) running_ns: u64,
    /// Records that found no room; `None` if the kernel (before 6.0) does not say.
    pub(super) lost: Option<u64>,
}

impl Rings {
    /// Opens the event that `builder` describes for one thread, once for each CPU. One that has gone
    /// off line since the CPUs were listed is left out.
    ///
    /// # Errors
    /// As perf_event_open, the ioctl or mmap says.
    pub(super) fn add(
        &mut self,
        builder: &mut Builder<'static>,
        cpus: &[Option<usize>],
        ring_bytes: usize,
    ) -> Result<(), Refusal> {
        let mut off_line = None;
        let mut opened = false;
        for &cpu in cpus {
            match cpu {
                Some(cpu) => builder.one_cpu(cpu),
                None => builder.any_cpu(),
            };
            let counter = match builder.build() {
                Ok(counter) => counter,
                Err(e) if cpu.is_some() && e.raw_os_error() == Some(ENODEV) => {
                    off_line = Some(e);
                    continue;
                }
                Err(e) => return Err(Refusal::Event(e)),
            };
            opened = true;
            if let Some(ring) = self.rings.get(&cpu) {
                redirect(&counter, &ring.sampler).map_err(Refusal::Event)?;
                self.others.push(Other { thread: self.threads, counter });
            } else {
                let sampler = counter.sampled(ring_bytes).map_err(Refusal::Ring)?;
                let bytes = ring_bytes.next_power_of_two() as u64;
                let thread = self.threads;
                self.rings.insert(cpu, Ring { sampler, thread, bytes, hung_up: false });
            }
        }
        if let Some(e) = off_line.filter(|_| !opened) {
            return Err(Refusal::Event(e));
        }
        self.threads += 1;
        Ok(())
    }

    /// Threads whose events are open.
    pub(super) fn threads(&self) -> u32 {
        self.threads
    }

    /// # Errors
    /// As the ioctl says.
    pub(super) fn enable(&mut self) -> io::Result<()> {
        self.counters().try_for_each(|(_, counter)| counter.enable())
    }

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
        let mut woken: Vec<&mut Ring> =
            self.rings.values_mut().filter(|ring| !ring.hung_up).collect();
        let mut fds: Vec<PollFd<'_>> = woken
            .iter()
            .map(|ring| PollFd::from_borrowed_fd(descriptor(&ring.sampler), PollFlags::IN))
            .collect();
        match rustix::event::poll(&mut fds, Some(timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let hung_up: Vec<bool> = fds.iter().map(|fd| fd.revents().intersects(ENDED)).collect();
        drop(fds);
        for (ring, hung_up) in woken.iter_mut().zip(hung_up) {
            ring.hung_up = hung_up;
        }
        Ok(())
    }

    /// Hands every record to `take`, `None` for one that makes no sense. At most what each ring
    /// holds: a target that writes faster than we read does not keep us here.
    pub(super) fn drain(&mut self, mut take: impl FnMut(Option<Note>)) {
        let mut bytes = Vec::new();
        for ring in self.rings.values_mut() {
            let config = ring.sampler.config().clone();
            let mut left = ring.bytes;
            while let Some(record) = ring.sampler.next_record() {
                // The parser wants the header, too; a record's size is below 64 KiB by its type.
                bytes.clear();
                bytes.extend(record.ty().to_ne_bytes());
                bytes.extend(record.misc().to_ne_bytes());
                let size = u16::try_from(record.len() + HEADER_BYTES).unwrap_or(u16::MAX);
                bytes.extend(size.to_ne_bytes());
                record.data().iter().for_each(|part| bytes.extend_from_slice(part));
                drop(record);
                take(Note::decode(&bytes, &config).ok());
                match left.checked_sub(u64::from(size)) {
                    Some(rest) => left = rest,
                    None => break,
                }
            }
        }
    }

    /// Returns the counts so far, with those of inherited events.
    ///
    /// # Errors
    /// As read says.
    pub(super) fn counted(&mut self) -> io::Result<Counted> {
        let mut sum = Counted::default();
        let mut enabled_ns = BTreeMap::<u32, u64>::new();
        for (thread, counter) in self.counters() {
            let data = counter.read_full()?;
            let ns = |time: Option<std::time::Duration>| {
                time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
            };
            // An event is enabled while its thread runs, on whatever CPU, but its time is brought up
            // to date only when it is touched: the most of a thread's events is right.
            let enabled = enabled_ns.entry(thread).or_default();
            *enabled = ns(data.time_enabled()).max(*enabled);
            sum.running_ns = sum.running_ns.saturating_add(ns(data.time_running()));
            if let Some(lost) = data.lost() {
                sum.lost = Some(sum.lost.unwrap_or(0).saturating_add(lost));
            }
        }
        let enabled = enabled_ns.values().fold(0u64, |sum, &ns| sum.saturating_add(ns));
        sum.cpu_ns = enabled.max(sum.running_ns);
        Ok(sum)
    }

    /// Every event, with the number of its thread.
    fn counters(&mut self) -> impl Iterator<Item = (u32, &mut Counter)> {
        let rings = self.rings.values_mut().map(|ring| (ring.thread, &mut *ring.sampler));
        rings.chain(self.others.iter_mut().map(|other| (other.thread, &mut other.counter)))
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rings { rings, others, threads } = self;
        f.debug_struct("Rings")
            .field("cpus", &rings.keys())
            .field("others", &others.len())
            .field("threads", threads)
            .finish()
    }
}

/// Lets `counter` write into the ring of `to`.
fn redirect(counter: &Counter, to: &Sampler) -> io::Result<()> {
    // PERF_EVENT_IOC_SET_OUTPUT, include/uapi/linux/perf_event.h.
    const SET_OUTPUT: Opcode = opcode::none(b'$', 5);
    let target = usize::try_from(to.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: the opcode takes an integer, the descriptor of the event whose ring is to be used; the
    // kernel checks that it is one and keeps the ring alive. Nothing of ours is written.
    unsafe { ioctl(descriptor(counter), IntegerSetter::<SET_OUTPUT>::new_usize(target)) }?;
    Ok(())
}

fn descriptor(counter: &Counter) -> BorrowedFd<'_> {
    // SAFETY: the counter owns the descriptor and is borrowed for as long as the result lives.
    unsafe { BorrowedFd::borrow_raw(counter.as_raw_fd()) }
}

const HEADER_BYTES: usize = 8;
/// Error for an event of one CPU that is offline (Linux kernel/events/core.c, perf_event_open).
const ENODEV: i32 = 19;
/// Flags that poll returns from then on for an event whose threads have ended, or that failed.
const ENDED: PollFlags = PollFlags::HUP.union(PollFlags::ERR);
