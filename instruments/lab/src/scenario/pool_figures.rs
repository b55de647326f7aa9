//! Counts of an engine and its pool between two readings, by the names that formulas use.
//!
//! Every scenario that runs an engine reads it twice, while its workers stand still, and so counts
//! the same things under the same names.

use std::collections::BTreeMap;

use linerate_datapath::{BatchSizes, CoreStats, PoolStats, PortStats, Stats};
use linerate_port::Registers;
use linerate_prof::region::Region;
use linerate_skb::{Data, Pool, Sampled};

use super::{Figure, dropped, figures};
use crate::window::Window;

/// The figures that [`Reading::since`] adds to a window.
pub(super) const FIGURES: &[Figure] = figures! {
    "dropped" "packets" "Packets that the engine dropped for any reason; `dropped_REASON` are those of one reason.";
    "missed" "packets" "Packets lost in a device's ring before the engine saw them.";
    "in_flight" "packets" "Packets in the path at the end, less those at the start.";
    "allocs" "buffers" "Buffers allocated.";
    "allocs_most" "buffers" "Of these, those of the CPU that allocated most.";
    "frees" "buffers" "Buffers freed.";
    "hits" "buffers" "Allocations served by a hot list with frames freed to that list.";
    "misses" "buffers" "Allocations for which the depot was visited.";
    "discards" "buffers" "Frees that a hot list had no room for.";
    "depot_visits" "visits" "Visits to the depot, for frames and with frames.";
    "starved" "allocations" "Allocations that found no frame anywhere.";
    "local_frees" "buffers" "Buffers freed on the CPU that allocated them.";
    "remote_frees" "buffers" "Buffers freed on another CPU.";
    "alloc_ticks" "TSC ticks" "Time in allocation: ticks a packet of the calls that were timed, times all allocations, worker by worker.";
    "free_ticks" "TSC ticks" "Time in freeing, likewise.";
    "buffer_ticks" "TSC ticks" "Sum of both estimates.";
    "timed_calls" "calls" "Calls that were timed: what the estimate rests on.";
    "sampling_ticks" "TSC ticks" "What timing them took: their number, times the ticks between two readings of the clock with nothing between.";
    "allocator_calls" "calls" "Calls of the system's allocator: one to allocate and one to free a general buffer, none for a frame. Derived from the pool's counts, not counted in the allocator.";
    "locks" "locks" "Times that a lock of the pool was taken.";
    "locks_contended" "locks" "Of these, times that another thread had it.";
    "lock_wait_ticks" "TSC ticks" "How long takers waited.";
    "polls" "calls" "Calls that polled for packets.";
    "polls_empty" "calls" "Of these, those that found none.";
    "sleeps" "times" "Times that a worker slept: without work, or to let packets accumulate.";
    "asleep_ns" "ns" "Time in these, added up, to the moment at which it was on a CPU again.";
    "memory_bytes" "bytes" "Memory held for packets when the window ended.";
    "allocs_w0" "buffers" "Buffers that worker 0 allocated; `_w1` and so on are the others'.";
    "frees_w0" "buffers" "Buffers that it freed.";
    "alloc_ticks_w0" "TSC ticks" "Its time in allocation, estimated as `alloc_ticks`.";
    "free_ticks_w0" "TSC ticks" "Its time in freeing.";
};

/// The counts of an engine and its pool so far.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pool: PoolStats,
    ports: Vec<PortStats>,
    dropped: BTreeMap<String, u64>,
    in_flight: u64,
    sleeps: u64,
    asleep_ns: u64,
    hold_ns: u64,
    /// Number of calls of the system's allocator.
    allocator_calls: u64,
}

impl Reading {
    /// Reads the counts of an engine. The workers must be stopped, because otherwise the parts are
    /// of different moments.
    pub fn of(stats: &Stats) -> Reading {
        Reading {
            ports: stats.ports(),
            sleeps: stats.workers().iter().map(|worker| worker.sleeps).sum(),
            asleep_ns: stats.workers().iter().map(|worker| worker.asleep_ns).sum(),
            hold_ns: stats.workers().iter().map(|worker| worker.hold_off_ns).sum(),
            ..Reading::new(stats.pool(), &stats.ledger())
        }
    }

    /// Reads the counts of a pool outside an engine, such as the pool of a scenario's own loop,
    /// without ports.
    pub fn of_pool(pool: &Pool) -> Reading {
        Reading::new(pool, &pool.ledger())
    }

    fn new(pool: &Pool, ledger: &linerate_skb::Ledger) -> Reading {
        let general = pool.data_from() == Data::General;
        let pool = pool.stats();
        let calls = pool.cores.iter().map(|core| core.allocs + core.frees).sum();
        Reading {
            pool,
            ports: Vec::new(),
            dropped: dropped(ledger),
            in_flight: ledger.in_flight,
            sleeps: 0,
            asleep_ns: 0,
            hold_ns: 0,
            allocator_calls: if general { calls } else { 0 },
        }
    }

    /// Adds the counts of a pool that is not one of the engine's pools.
    pub fn plus(mut self, other: &Reading) -> Reading {
        self.pool = self.pool.plus(&other.pool);
        for (reason, n) in &other.dropped {
            *self.dropped.entry(reason.clone()).or_default() += n;
        }
        self.in_flight += other.in_flight;
        self.allocator_calls += other.allocator_calls;
        self
    }

    /// Returns the ports.
    pub fn ports(&self) -> &[PortStats] {
        &self.ports
    }

    /// Returns the traffic that left the engine.
    pub fn sent(&self) -> Sent {
        sent(&self.ports)
    }

    /// Returns the packets that the engine's devices received.
    pub fn received(&self) -> u64 {
        let devices = self.ports.iter().filter(|port| !port.flags.paired);
        devices.map(|port| port.counts.rx_packets).sum()
    }

    /// Returns the packets for which the devices' rings had no room.
    pub fn missed(&self) -> u64 {
        let devices = self.ports.iter().filter(|port| !port.flags.paired);
        devices.map(|port| port.counts.rx_missed).sum()
    }

    /// Returns the sizes of all calls that gave packets to a device.
    fn sizes(&self) -> BatchSizes {
        let mut sizes = BatchSizes::default();
        let devices = self.ports.iter().filter(|port| !port.flags.paired);
        devices.for_each(|port| sizes += port.flushes.sizes);
        sizes
    }

    /// Returns the counts of the core that `of` has, if it existed at this reading.
    fn core(&self, of: &CoreStats) -> Option<&CoreStats> {
        self.pool.cores.iter().find(|core| core.name == of.name && core.core == of.core)
    }

    /// Adds the counts since `before` to `window`.
    pub fn since(&self, before: &Reading, window: &mut Window) {
        let mut add = |name: &str, value: f64| {
            window.figures.insert(name.into(), value);
        };
        let calls = |of: fn(&CoreStats) -> u64| {
            let sum = |reading: &Reading| reading.pool.cores.iter().map(of).sum::<u64>();
            sum(self).saturating_sub(sum(before)) as f64
        };
        add("allocs", calls(|core| core.allocs));
        add("allocs_most", self.allocs_most(before) as f64);
        add("frees", calls(|core| core.frees));
        add("hits", calls(|core| core.hits));
        add("misses", calls(|core| core.misses));
        add("discards", calls(|core| core.discards));
        add("starved", calls(|core| core.starved));
        add("depot_visits", calls(|core| core.visits.0 + core.visits.1));
        let (now, then) = (self.pool.locks, before.pool.locks);
        add("locks", now.taken.saturating_sub(then.taken) as f64);
        add("locks_contended", now.contended.saturating_sub(then.contended) as f64);
        add("lock_wait_ticks", now.wait_ticks.saturating_sub(then.wait_ticks) as f64);
        let (now, then) = (&self.pool.matrix, &before.pool.matrix);
        add("local_frees", now.local().saturating_sub(then.local()) as f64);
        add("remote_frees", now.remote().saturating_sub(then.remote()) as f64);
        let passed = |of: fn(&PortStats) -> u64| {
            let sum = |reading: &Reading| reading.ports.iter().map(of).sum::<u64>();
            sum(self).saturating_sub(sum(before)) as f64
        };
        add("polls", passed(|port| port.counts.polls));
        add("polls_empty", passed(|port| port.counts.polls_empty));
        add("missed", passed(|port| port.counts.rx_missed));
        let mut dropped = 0;
        for (reason, n) in &self.dropped {
            let n = n.saturating_sub(before.dropped.get(reason).copied().unwrap_or(0));
            add(&format!("dropped_{reason}"), n as f64);
            dropped += n;
        }
        add("dropped", dropped as f64);
        let alloc = self.timed(before, |core| (core.alloc_time, core.allocs));
        let free = self.timed(before, |core| (core.free_time, core.frees));
        add("timed_calls", (alloc.timed + free.timed) as f64);
        add(
            "sampling_ticks",
            (alloc.timed + free.timed) as f64 * Region::new("call").timing().cost_ticks as f64,
        );
        add("in_flight", self.in_flight as f64 - before.in_flight as f64);
        add("sleeps", self.sleeps.saturating_sub(before.sleeps) as f64);
        add("memory_bytes", self.pool.memory_bytes() as f64);
        let calls = self.allocator_calls.saturating_sub(before.allocator_calls);
        add("allocator_calls", calls as f64);
        // Leave out the ticks of calls that were not timed: 0 would be taken for a cost.
        alloc.ticks.into_iter().for_each(|ticks| add("alloc_ticks", ticks));
        free.ticks.into_iter().for_each(|ticks| add("free_ticks", ticks));
        if let Some((alloc, free)) = alloc.ticks.zip(free.ticks) {
            add("buffer_ticks", alloc + free);
        }
        self.by_worker(before, window);
    }

    /// Adds the counts of the engine's devices, without rings inside the engine.
    pub fn by_device(&self, before: &Reading, window: &mut Window) {
        let mut add = |name: &str, value: f64| {
            window.figures.insert(name.into(), value);
        };
        let device = |port: &PortStats, n: u64| if port.flags.paired { 0 } else { n };
        let came = |of: fn(&PortStats) -> u64| {
            let sum = |reading: &Reading| -> u64 {
                reading.ports.iter().map(|port| device(port, of(port))).sum()
            };
            sum(self).saturating_sub(sum(before)) as f64
        };
        add("rx_packets", came(|port| port.counts.rx_packets));
        add("irqs_device", came(|port| port.counts.wakeups));
        add("irqs_timer", came(|port| port.counts.hold_ends));
        add("rechecks", came(|port| port.counts.rechecks));
        add("tx_calls", came(|port| port.flushes.calls));
        if self.ports.iter().any(|port| port.driver_counts.doorbells.is_some()) {
            add("doorbells", came(|port| port.driver_counts.doorbells.unwrap_or(0)));
        }
        if self.ports.iter().any(|port| port.driver_counts.registers.is_some()) {
            add("posted_writes", came(|port| registers(port).writes));
            add("flushing_reads", came(|port| registers(port).reads));
            add("flushing_ns", came(|port| registers(port).read_ns));
            add("register_ns", came(|port| registers(port).write_ns + registers(port).read_ns));
        }
        let sizes = self.sizes();
        add("tx_calls_full", sizes.calls[0].saturating_sub(before.sizes().calls[0]) as f64);
        for (range, (now, then)) in sizes.calls.iter().zip(before.sizes().calls).enumerate() {
            if *now > then {
                add(&format!("tx_calls_{}", BatchSizes::least(range)), (now - then) as f64);
            }
        }
        add("asleep_ns", self.asleep_ns.saturating_sub(before.asleep_ns) as f64);
        add("hold_ns", self.hold_ns.saturating_sub(before.hold_ns) as f64);
    }

    /// Adds the counts of each worker, such as `allocs_w0`, because post 004 has a column for each
    /// CPU.
    fn by_worker(&self, before: &Reading, window: &mut Window) {
        for core in &self.pool.cores {
            let Some(worker) = core.name.strip_prefix("worker ") else { continue };
            let then = before.core(core);
            let since = |of: fn(&CoreStats) -> u64| of(core).saturating_sub(then.map_or(0, of));
            let mut add = |name: &str, value: f64| {
                window.figures.insert(format!("{name}_w{worker}"), value);
            };
            let (allocs, frees) = (since(|core| core.allocs), since(|core| core.frees));
            add("allocs", allocs as f64);
            add("frees", frees as f64);
            let timed = since(|core| core.alloc_time.packets);
            if timed > 0 {
                let ticks = since(|core| core.alloc_time.ticks) as f64;
                add("alloc_ticks", ticks * (allocs as f64 / timed as f64));
            }
            let timed = since(|core| core.free_time.packets);
            if timed > 0 {
                let ticks = since(|core| core.free_time.ticks) as f64;
                add("free_ticks", ticks * (frees as f64 / timed as f64));
            }
        }
    }

    /// Returns the allocations since `before` on the CPU that has most of them.
    fn allocs_most(&self, before: &Reading) -> u64 {
        let mut by_cpu: BTreeMap<Option<usize>, u64> = BTreeMap::new();
        for core in &self.pool.cores {
            let then = before.core(core).map_or(0, |core| core.allocs);
            *by_cpu.entry(core.cpu).or_default() += core.allocs.saturating_sub(then);
        }
        by_cpu.into_values().max().unwrap_or(0)
    }

    /// Sums up the timed calls of one kind over all cores. Each core is extrapolated separately, so
    /// that it counts in proportion to its packets.
    fn timed(&self, before: &Reading, of: fn(&CoreStats) -> (Sampled, u64)) -> Timed {
        let mut sum = Timed { timed: 0, ticks: Some(0.0) };
        for core in &self.pool.cores {
            let (then, then_all) = before.core(core).map(of).unwrap_or_default();
            let (now, now_all) = of(core);
            let timed = now.packets.saturating_sub(then.packets);
            let ticks = now.ticks.saturating_sub(then.ticks);
            let all = now_all.saturating_sub(then_all);
            sum.timed += now.calls.saturating_sub(then.calls);
            if timed > 0 {
                let ticks = ticks as f64 * (all as f64 / timed as f64);
                sum.ticks = sum.ticks.map(|sum| sum + ticks);
            } else if all > 0 {
                // A core made calls and none was timed, so the sum is unknown.
                sum.ticks = None;
            }
        }
        sum.ticks = sum.ticks.filter(|_| sum.timed > 0);
        sum
    }
}

fn registers(port: &PortStats) -> Registers {
    port.driver_counts.registers.unwrap_or_default()
}

/// Timed calls of one kind, with the extrapolated cost of all calls.
struct Timed {
    timed: u64,
    ticks: Option<f64>,
}

/// The traffic that has left an engine so far, without rings inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sent {
    pub packets: u64,
    pub bytes: u64,
    /// Number of times that a port woke a worker.
    pub wakeups: u64,
}

/// Sums up the traffic that has left an engine through these ports.
pub(super) fn sent(ports: &[PortStats]) -> Sent {
    let mut sent = Sent::default();
    for port in ports {
        sent.wakeups += port.counts.wakeups;
        if !port.flags.paired {
            sent.packets += port.counts.tx_packets;
            sent.bytes += port.counts.tx_bytes;
        }
    }
    sent
}

/// Returns the figures of a whole side: memory held, frees on another CPU. To be called before the
/// workers end, because their hot lists are part of the memory.
pub(super) fn totals(stats: &Stats) -> BTreeMap<String, f64> {
    let pool = stats.pool().stats();
    let mut totals = BTreeMap::new();
    totals.insert("memory_bytes".into(), pool.memory_bytes() as f64);
    if let Some(share) = pool.matrix.remote_share() {
        totals.insert("remote_share_pct".into(), share * 100.0);
    }
    totals
}

/// Returns the outstanding packets by holder. To be called after the workers have ended, when there
/// should be none.
pub(super) fn outstanding(stats: &Stats) -> BTreeMap<String, f64> {
    let ledger = stats.ledger();
    let mut totals = BTreeMap::from([("outstanding".into(), ledger.in_flight as f64)]);
    for (holder, packets) in ledger.held().iter().filter(|(_, packets)| *packets > 0) {
        totals.insert(format!("outstanding: {holder}"), *packets as f64);
    }
    totals
}
