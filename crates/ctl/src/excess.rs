//! The cost besides cycles: locks, calls and waits for each packet, which the title of post 000
//! calls excessive.
//!
//! All of them are counted always. The pool counts an allocation and a free with the batch, a lock
//! when it is taken; a worker counts its calls of drivers with the batch, its sleeps when it wakes.
//! A packet is one that left by a port other than a ring, as in [`Cost`](crate::Cost): one that
//! was dropped on its way increases the figures of the others.
//!
//! **Which locks.** Those of the pool's depots are the only ones on the path: one for half a hot
//! list of frames. Off it are, and are not counted: the list of the pool's pages (taken when a
//! thread first drops a packet, and when it ends), a device's report (the worker only tries that
//! lock, at most ten times a second unless there is news), unread packets of a closed ring, and the
//! engine's own wait for its end. The locks of the kernel and of the system's
//! allocator, where buffers are `general`, cannot be seen from here.

use linerate_datapath::{Flushes, PortStats, Stopped, WorkerStats};
use linerate_port::Copies;

#[cfg(feature = "json")]
use serde::Serialize;

use crate::report::Spent;

/// Locks that workers and other threads of the path took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct Locks {
    /// Times that a lock was taken.
    pub taken: u64,
    /// Times that a lock was taken while another thread held it.
    pub contended: u64,
    /// Time that threads waited for locks; `None` if a thread waited and the tick rate is unknown.
    pub wait_ns: Option<u64>,
    /// Locks taken for each packet; `None` without packets.
    pub taken_per_packet: Option<f64>,
    /// Contended locks for each packet.
    pub contended_per_packet: Option<f64>,
    /// Time that threads waited for locks, for each packet.
    pub wait_ns_per_packet: Option<f64>,
}

/// Calls that allocate, free and copy packets, and those of drivers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct Calls {
    /// Buffers allocated on any thread, including those that never became packets.
    pub allocs: u64,
    /// Buffers freed on any thread.
    pub frees: u64,
    /// Times that a packet's bytes were copied between a frame of the pool and other memory, for
    /// ports whose drivers copy. `None` with a driver that does not report copies, or that copies
    /// only some packets and reports only their bytes. Additional copies by a driver (to insert a
    /// VLAN tag, or from memory that a peer may write) and by the kernel are not included.
    pub copies: Option<u64>,
    /// Bytes copied; `None` with a driver that does not report them.
    pub copied_bytes: Option<u64>,
    /// Calls of drivers, one for each queue and batch: calls of `rx`, even without packets, and of
    /// `xmit`. A call is not a syscall: a driver with mapped rings may need none for a call, and
    /// another driver several.
    pub device_calls: u64,
    /// Buffers allocated for each packet; `None` without packets.
    pub allocs_per_packet: Option<f64>,
    /// Buffers freed for each packet.
    pub frees_per_packet: Option<f64>,
    /// Copies for each packet.
    pub copies_per_packet: Option<f64>,
    /// Calls of drivers for each packet: few if batches are full, more than one if most polls
    /// return no packet.
    pub device_calls_per_packet: Option<f64>,
    /// Time in which the calls above were counted: from the start of the workers to the end of the
    /// last one, including the drain, by the workers' clocks. It is longer than the run's duration,
    /// which ends with the order to drain. `None` if a worker has not reported.
    pub counted_seconds: Option<f64>,
    /// Buffers allocated in each second of `counted_seconds`; `None` without it.
    pub allocs_per_second: Option<f64>,
    /// Buffers freed in each second of that time.
    pub frees_per_second: Option<f64>,
    /// Copies in each second of that time.
    pub copies_per_second: Option<f64>,
    /// Mean number of buffers allocated by one call, from the timed calls; `None` if none was
    /// timed.
    pub buffers_per_alloc_call: Option<f64>,
    /// Mean number of buffers freed by one call, from the timed calls. Plain drops of packets do
    /// not count as calls.
    pub buffers_per_free_call: Option<f64>,
}

/// Waits of the path, over all workers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct Waits {
    /// Time that threads waited for locks, as in [`Locks`].
    pub lock_ns: Option<u64>,
    /// Calls that send to a device, each with one doorbell, or several if superframes are cut in
    /// front of the device.
    pub flushes: u64,
    /// Number of these calls that were timed: one in 256.
    pub flushes_timed: u64,
    /// Time in all these calls, estimated from the timed ones; includes the device's own copying.
    /// `None` if ports with fewer than 30 timed calls have more than a hundredth of all calls, or
    /// if no port has 30.
    pub flush_ns: Option<u64>,
    /// Times that a worker slept, including holds, in which packets gathered.
    pub sleeps: u64,
    /// Time that workers were asleep, until they ran again; it includes idle time, holds and late
    /// wake-ups.
    pub asleep_ns: u64,
    /// Time that workers were ready but had no CPU, by the kernel's accounting: late wake-ups,
    /// which `asleep_ns` includes, and preemption, which `asleep_ns` does not include. `None` if a
    /// worker could not read it.
    pub run_delay_ns: Option<u64>,
    /// Time waiting for locks, for each packet; `None` without packets.
    pub lock_ns_per_packet: Option<f64>,
    /// Time in flushes, for each packet.
    pub flush_ns_per_packet: Option<f64>,
    /// Time asleep, for each packet.
    pub asleep_ns_per_packet: Option<f64>,
    /// Time ready without a CPU, for each packet.
    pub run_delay_ns_per_packet: Option<f64>,
}

/// The number of packets by which the counts of a run are divided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PerPacket(pub u64);

impl PerPacket {
    /// Returns the packets that left by ports other than rings.
    pub fn leaving(ports: &[PortStats]) -> PerPacket {
        let outside = ports.iter().filter(|p| !p.flags.paired);
        PerPacket(outside.map(|p| p.counts.tx_packets).sum())
    }

    /// Returns `n` divided by the number of packets; `None` without packets.
    pub fn of(self, n: u64) -> Option<f64> {
        (self.0 > 0).then(|| n as f64 / self.0 as f64)
    }

    fn of_known(self, n: Option<u64>) -> Option<f64> {
        n.and_then(|n| self.of(n))
    }
}

impl Locks {
    pub(crate) fn of(stopped: &Stopped, spent: &Spent) -> Locks {
        let (locks, each) = (stopped.pool.locks, PerPacket::leaving(&stopped.ports));
        let wait_ns = match (locks.wait_ticks, spent.ticks_per_second) {
            (0, _) => Some(0),
            (ticks, Some(rate)) if rate > 0.0 => Some((ticks as f64 / rate * 1e9) as u64),
            _ => None,
        };
        Locks {
            taken: locks.taken,
            contended: locks.contended,
            wait_ns,
            taken_per_packet: each.of(locks.taken),
            contended_per_packet: each.of(locks.contended),
            wait_ns_per_packet: each.of_known(wait_ns),
        }
    }
}

impl Calls {
    pub(crate) fn of(stopped: &Stopped) -> Calls {
        let (ports, cores) = (&stopped.ports, &stopped.pool.cores);
        let each = PerPacket::leaving(ports);
        let seconds = ran_ns(&stopped.workers).map(|ns| ns as f64 / 1e9);
        let a_second = |n: u64| seconds.map(|seconds| n as f64 / seconds);
        let (allocs, frees) =
            cores.iter().fold((0, 0), |(allocs, frees), c| (allocs + c.allocs, frees + c.frees));
        // The sum is known only if every port reports its copies.
        let copies: Option<u64> = ports.iter().map(|port| copied(port).packets).sum();
        let copied_bytes = ports.iter().map(|port| copied(port).bytes).sum();
        let device_calls = ports.iter().map(|p| p.counts.polls + p.flushes.calls).sum();
        let sampled = |of: fn(&linerate_datapath::CoreStats) -> (u64, u64)| {
            let sum = |(packets, calls), (p, c)| (packets + p, calls + c);
            let (packets, calls) = cores.iter().map(of).fold((0, 0), sum);
            (calls > 0).then(|| packets as f64 / calls as f64)
        };
        Calls {
            allocs,
            frees,
            copies,
            copied_bytes,
            device_calls,
            allocs_per_packet: each.of(allocs),
            frees_per_packet: each.of(frees),
            copies_per_packet: each.of_known(copies),
            device_calls_per_packet: each.of(device_calls),
            counted_seconds: seconds,
            allocs_per_second: a_second(allocs),
            frees_per_second: a_second(frees),
            copies_per_second: copies.and_then(a_second),
            buffers_per_alloc_call: sampled(|c| (c.alloc_time.packets, c.alloc_time.calls)),
            buffers_per_free_call: sampled(|c| (c.free_time.packets, c.free_time.calls)),
        }
    }
}

/// Packets and bytes that a port copied, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Copied {
    packets: Option<u64>,
    bytes: Option<u64>,
}

fn copied(port: &PortStats) -> Copied {
    let (c, bytes) = (&port.counts, port.driver_counts.copied_bytes);
    let all = |packets, bytes| Copied { packets: Some(packets), bytes: Some(bytes) };
    match port.copies {
        Copies::Always => all(c.rx_packets + c.tx_packets, c.rx_bytes + c.tx_bytes),
        Copies::Never => all(0, 0),
        // If no byte was copied, no packet was; if some were, the number of packets is unknown.
        Copies::Sometimes => Copied { packets: bytes.filter(|&n| n == 0), bytes },
    }
}

impl Waits {
    pub(crate) fn of(stopped: &Stopped, locks: &Locks) -> Waits {
        let (workers, each) = (&stopped.workers, PerPacket::leaving(&stopped.ports));
        let (flushes, flush_ns) = flushed(&stopped.ports);
        let asleep_ns = workers.iter().map(|w| w.asleep_ns).sum();
        let run_delay_ns = workers.iter().map(|w| w.run_delay_ns).sum();
        Waits {
            lock_ns: locks.wait_ns,
            flushes: flushes.calls,
            flushes_timed: flushes.timed,
            flush_ns,
            sleeps: workers.iter().map(|w| w.sleeps).sum(),
            asleep_ns,
            run_delay_ns,
            lock_ns_per_packet: locks.wait_ns_per_packet,
            flush_ns_per_packet: each.of_known(flush_ns),
            asleep_ns_per_packet: each.of(asleep_ns),
            run_delay_ns_per_packet: each.of_known(run_delay_ns),
        }
    }
}

/// Sums all flushes and their time; the time is `None` if more than one flush in a hundred was on a
/// port with too few timed flushes.
///
/// Ports differ too much to estimate one from another, so each port's time is estimated separately.
/// A port that sent only a few packets does not invalidate the figure of ports that sent millions.
fn flushed(ports: &[PortStats]) -> (Flushes, Option<u64>) {
    let (mut all, mut known, mut time_ns) = (Flushes::default(), 0, 0);
    for port in ports {
        all += port.flushes;
        if let Some(ns) = port.flushes.estimate_ns() {
            known += port.flushes.calls;
            time_ns += ns;
        }
    }
    (all, (known > 0 && (all.calls - known) * 100 <= all.calls).then_some(time_ns))
}

/// Returns the longest running time of a worker, the time over which all counts were taken; `None`
/// if it is zero, or if a worker has not reported.
///
/// Workers start together, and end together unless one fails.
fn ran_ns(workers: &[WorkerStats]) -> Option<u64> {
    let all: Option<Vec<u64>> = workers.iter().map(|w| w.ran_ns).collect();
    all?.into_iter().max().filter(|&ns| ns > 0)
}

/// Returns the time that the workers were awake, by their own clocks; `None` if a worker has not
/// reported.
///
/// This measurement is independent of the kernel's account of CPU time, and is greater by the time
/// for which awake workers were preempted.
pub(crate) fn awake_ns(workers: &[WorkerStats]) -> Option<u64> {
    workers.iter().map(|w| Some(w.ran_ns?.saturating_sub(w.asleep_ns))).sum()
}

#[cfg(test)]
mod tests;
