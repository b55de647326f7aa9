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
    /// `None` if ports with fewer than 30 timed calls have more than a hundredth of all calls, or if
    /// no port has 30.
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
mod tests {
    use super::*;
    use linerate_datapath::{Engine, EngineBuilder};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(20);

    /// Runs an engine until it ends by itself, and returns the result.
    fn ran(build: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Stopped {
        let running = build(Engine::builder()).build().unwrap().start().unwrap();
        assert!(running.wait(LONG).unwrap());
        running.stop(LONG)
    }

    /// Returns `gen → ring → sink`.
    fn trial(packets: u64) -> Stopped {
        let generator = format!("gen:,count={packets}");
        ran(|engine| {
            let engine = engine.port("gen", &generator).port("r0", "ring:r").port("r1", "ring:r");
            engine.port("sink", "sink:").wire("gen", "r0").wire("r1", "sink")
        })
    }

    fn spent(ticks_per_second: Option<f64>) -> Spent {
        Spent { ticks_per_second, ..Spent::default() }
    }

    /// Returns the run's result with the given duration.
    fn lasted(mut stopped: Stopped, seconds: u64) -> Stopped {
        stopped.workers.iter_mut().for_each(|w| w.ran_ns = Some(seconds * 1_000_000_000));
        stopped
    }

    #[test]
    fn a_packet_of_the_trial_takes_few_locks_and_no_copy() {
        let stopped = lasted(trial(100_000), 2);
        let locks = Locks::of(&stopped, &spent(Some(1e9)));
        // One lock for half a hot list of frames at each end: one worker allocates and the other
        // frees, both through the depot.
        assert!(locks.taken > 0 && locks.taken_per_packet.unwrap() < 1.0 / 16.0, "{locks:?}");
        let calls = Calls::of(&stopped);
        assert_eq!((calls.allocs, calls.frees), (100_000, 100_000));
        assert_eq!((calls.allocs_per_packet, calls.copies), (Some(1.0), Some(0)));
        assert_eq!((calls.counted_seconds, calls.allocs_per_second), (Some(2.0), Some(50_000.0)));
        assert_eq!((calls.buffers_per_alloc_call, calls.buffers_per_free_call), (None, None));
        // Each of the two workers makes at least one call to receive a budget of 64, and one to
        // send a backlog of 256.
        let least = 2 * (100_000_u64.div_ceil(64) + 100_000_u64.div_ceil(256));
        assert!(calls.device_calls >= least, "{calls:?}");
        // Frees are divided, and not allocations, whose number differs here.
        let mut freed_more = stopped;
        freed_more.pool.cores[0].frees += 50_000;
        let calls = Calls::of(&freed_more);
        assert_eq!((calls.frees_per_packet, calls.frees_per_second), (Some(1.5), Some(75_000.0)));
    }

    #[test]
    fn locks_that_were_waited_for_are_told_a_packet_with_the_time() {
        let mut stopped = trial(1000);
        let pool = &mut stopped.pool.locks;
        (pool.taken, pool.contended, pool.wait_ticks) = (500, 40, 3000);
        let locks = Locks::of(&stopped, &spent(Some(2e9)));
        let each = (locks.taken_per_packet, locks.contended_per_packet, locks.wait_ns_per_packet);
        assert_eq!(locks.taken, 500);
        assert_eq!(locks.contended, 40);
        assert_eq!(locks.wait_ns, Some(1500));
        assert_eq!(each, (Some(0.5), Some(0.04), Some(1.5)));
        // If the ticks' rate is unknown, the time of a wait is unknown, and not 0.
        let locks = Locks::of(&stopped, &spent(None));
        assert_eq!((locks.contended, locks.wait_ns, locks.wait_ns_per_packet), (40, None, None));
    }

    #[test]
    fn what_is_allocated_and_not_freed_is_outstanding() {
        let engine =
            Engine::builder().port("gen", "gen:").port("r0", "ring:r").port("r1", "ring:r");
        let engine = engine.port("sink", "sink:").wire("gen", "r0").wire("r1", "sink");
        let engine = engine.build().unwrap();
        let stats = engine.stats();
        let calls = || {
            let cores = stats.pool().stats().cores;
            cores.iter().fold((0, 0), |(a, f), core| (a + core.allocs, f + core.frees))
        };
        let mut workers = engine.into_workers();
        let now = std::time::Instant::now();
        workers[0].turn(now);
        let (allocs, frees) = calls();
        assert_eq!((allocs, frees, stats.ledger().in_flight), (64, 0, 64));
        workers[1].turn(now);
        let (allocs, frees) = calls();
        assert_eq!((allocs, frees + stats.ledger().in_flight), (64, 64));
    }

    #[test]
    fn a_port_that_copies_shows_a_copy_a_packet() {
        let path = std::env::temp_dir().join(format!("linerate-ctl-{}.pcap", std::process::id()));
        let file = format!("pcap:{}", path.display());
        let write = ran(|e| {
            e.port("gen", "gen:,count=500,size=60").port("file", &file).wire("gen", "file")
        });
        let calls = Calls::of(&write);
        assert_eq!((calls.copies, calls.copied_bytes), (Some(500), Some(500 * 60)));
        let read = ran(|e| e.port("file", &file).port("sink", "sink:").wire("file", "sink"));
        std::fs::remove_file(&path).unwrap();
        let read = lasted(read, 2);
        let calls = Calls::of(&read);
        assert_eq!(calls.copies, Some(500));
        assert_eq!(calls.copies_per_packet, Some(1.0));
        assert_eq!(calls.copies_per_second, Some(250.0));
        let mut strange = read;
        strange.ports[1].copies = Copies::Sometimes;
        let calls = Calls::of(&strange);
        assert_eq!((calls.copies, calls.copies_per_packet), (None, None), "unknown");
        assert_eq!(calls.copied_bytes, None);
    }

    #[test]
    fn a_driver_that_copies_where_it_must_is_believed() {
        let mut stopped = trial(1000);
        let mut copied = |bytes: [Option<u64>; 2]| {
            for (port, bytes) in stopped.ports.iter_mut().zip(bytes) {
                port.copies = Copies::Sometimes;
                port.driver_counts.copied_bytes = bytes;
            }
            let calls = Calls::of(&stopped);
            (calls.copies, calls.copies_per_packet, calls.copied_bytes)
        };
        assert_eq!(copied([Some(0), Some(0)]), (Some(0), Some(0.0), Some(0)));
        // Bytes are reported without the number of packets.
        assert_eq!(copied([Some(0), Some(300)]), (None, None, Some(300)));
        assert_eq!(copied([Some(0), None]), (None, None, None));
    }

    #[test]
    fn without_a_packet_nothing_is_a_packet_and_everything_is_counted() {
        let mut stopped = trial(1000);
        stopped.ports.iter_mut().for_each(|p| p.counts.tx_packets = 0);
        let locks = Locks::of(&stopped, &Spent::default());
        let (calls, waits) = (Calls::of(&stopped), Waits::of(&stopped, &locks));
        assert_eq!((locks.taken_per_packet, locks.wait_ns_per_packet), (None, None));
        assert_eq!((calls.allocs, calls.allocs_per_packet), (1000, None));
        assert!(calls.allocs_per_second.is_some(), "a second needs no packet");
        assert_eq!((waits.asleep_ns_per_packet, waits.flush_ns_per_packet), (None, None));
        assert!(waits.flushes >= 2 * 1000_u64.div_ceil(256), "{waits:?}");
    }

    #[test]
    fn a_wait_in_ticks_of_an_unknown_rate_is_unknown() {
        let mut stopped = trial(1000);
        stopped.pool.locks.wait_ticks = 3000;
        let wait_ns = |rate| Locks::of(&stopped, &spent(rate)).wait_ns;
        assert_eq!(
            (wait_ns(Some(2e9)), wait_ns(None), wait_ns(Some(0.0))),
            (Some(1500), None, None)
        );
        stopped.pool.locks.wait_ticks = 0;
        assert_eq!(Locks::of(&stopped, &spent(None)).wait_ns_per_packet, Some(0.0));
    }

    #[test]
    fn a_worker_that_waits_for_a_slow_source_sleeps_most_of_its_time() {
        let stopped = ran(|e| {
            e.port("gen", "gen:,count=20,rate=50pps").port("sink", "sink:").wire("gen", "sink")
        });
        let waits = Waits::of(&stopped, &Locks::default());
        assert!(waits.sleeps > 0 && waits.asleep_ns > 0, "{waits:?}");
        let (worker, awake) = (stopped.workers[0], awake_ns(&stopped.workers).unwrap());
        assert_eq!(worker.ran_ns, Some(awake + worker.asleep_ns));
        assert!(worker.asleep_ns > awake, "{worker:?}");
        // With at most 20 calls none is timed, so there is no estimate.
        assert_eq!((waits.flushes_timed, waits.flush_ns), (0, None));
    }

    #[test]
    fn waits_for_locks_flushes_and_wake_ups_are_told_a_packet() {
        let mut stopped = trial(1000);
        stopped.pool.locks.wait_ticks = 3000;
        for (worker, (asleep_ns, run_delay_ns)) in
            stopped.workers.iter_mut().zip([(4000, 200), (1000, 300)])
        {
            (worker.asleep_ns, worker.run_delay_ns) = (asleep_ns, Some(run_delay_ns));
        }
        for port in &mut stopped.ports {
            port.flushes = Flushes::default();
        }
        let last = &mut stopped.ports[3].flushes;
        (last.calls, last.timed, last.timed_ns) = (1000, 40, 400);
        let waits = Waits::of(&stopped, &Locks::of(&stopped, &spent(Some(2e9))));
        assert_eq!((waits.lock_ns, waits.lock_ns_per_packet), (Some(1500), Some(1.5)));
        assert_eq!((waits.flush_ns, waits.flush_ns_per_packet), (Some(10_000), Some(10.0)));
        assert_eq!((waits.asleep_ns, waits.asleep_ns_per_packet), (5000, Some(5.0)));
        assert_eq!((waits.run_delay_ns, waits.run_delay_ns_per_packet), (Some(500), Some(0.5)));
    }

    #[test]
    fn a_port_of_which_no_flush_was_timed_hides_the_time_unless_it_is_small() {
        let flushes = |calls, timed, timed_ns| {
            let mut flushes = Flushes::default();
            (flushes.calls, flushes.timed, flushes.timed_ns) = (calls, timed, timed_ns);
            flushes
        };
        let mut stopped = trial(1000);
        let mut time_ns = |few: Flushes| {
            stopped.ports.iter_mut().for_each(|port| port.flushes = Flushes::default());
            stopped.ports[0].flushes = few;
            stopped.ports[1].flushes = flushes(100_000, 390, 3900);
            flushed(&stopped.ports).1
        };
        assert_eq!(time_ns(flushes(0, 0, 0)), Some(1_000_000));
        assert_eq!(time_ns(flushes(500, 0, 0)), Some(1_000_000));
        // With a single timed flush on a port, there is no estimate for the port's other flushes.
        assert_eq!(time_ns(flushes(500, 1, 1_000_000)), Some(1_000_000));
        assert_eq!(time_ns(flushes(7000, 27, 270)), None);
        assert_eq!(time_ns(flushes(8000, 31, 310)), Some(1_080_000));
    }

    #[test]
    fn rates_count_packets_and_time_to_the_end_of_the_drain() {
        let stopped = trial(1000);
        let calls = Calls::of(&stopped);
        let longest = stopped.workers.iter().filter_map(|w| w.ran_ns).max().unwrap();
        assert_eq!(calls.counted_seconds, Some(longest as f64 / 1e9));
        // Rates use the workers' own time, not the duration that the caller measured.
        assert_eq!(Calls::of(&lasted(stopped, 10)).allocs_per_second, Some(100.0));
    }

    #[test]
    fn a_worker_that_did_not_come_back_makes_the_sum_unknown() {
        let mut stopped = trial(1000);
        assert!(awake_ns(&stopped.workers).is_some());
        stopped.workers[1] = WorkerStats::default();
        assert_eq!(awake_ns(&stopped.workers), None);
        let calls = Calls::of(&stopped);
        assert_eq!(calls.counted_seconds, None);
        assert_eq!(calls.allocs_per_second, None);
        assert_eq!(Waits::of(&stopped, &Locks::default()).run_delay_ns, None);
    }
}
