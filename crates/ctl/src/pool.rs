//! A pool's settings and cost: memory, hot lists, locks, frees on other CPUs, lifetimes of packets.

use linerate_datapath::{CoreStats, Data, Dwell, Init, Return, Stats, Stopped};

#[cfg(feature = "json")]
use serde::Serialize;

/// Names of the memories for packets' bytes.
pub const BUFFERS: [(&str, Data); 2] = [("frames", Data::Frames), ("general", Data::General)];
/// Names of the times at which a packet's metadata is initialised.
pub const INIT: [(&str, Init); 2] = [("at_alloc", Init::AtAlloc), ("at_free", Init::AtFree)];
/// Names of the lists to which a frame returns when another core frees it.
pub const RETURN: [(&str, Return); 2] = [("local", Return::Local), ("home", Return::Home)];

/// The pool of a run.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct PoolReport {
    /// Number of ordinary frames, of all pools.
    pub frames: u64,
    /// Size of an ordinary frame in bytes, headroom included.
    pub frame_bytes: u64,
    /// Number of frames of the jumbo class.
    pub jumbo_frames: u64,
    /// Size of a jumbo frame in bytes, headroom included; 0 if there are none.
    pub jumbo_bytes: u64,
    /// Memory held for packets at the end of the run: mapped memory, and memory from the system's
    /// allocator.
    pub memory_bytes: u64,
    /// Memory for packets' bytes, one of [`BUFFERS`].
    pub buffers: &'static str,
    /// Time at which packets' metadata is initialised, one of [`INIT`].
    pub init: &'static str,
    /// List to which frames freed by another core return, one of [`RETURN`].
    #[cfg_attr(feature = "json", serde(rename = "return"))]
    pub return_to: &'static str,
    /// Use of the pool by each worker, and by each thread that dropped packets.
    pub cores: Vec<CoreReport>,
    /// The cost of the depot's locks.
    pub locks: LocksReport,
    /// Frees on another CPU than the allocating one.
    pub remote_frees: RemoteFrees,
    /// Lifetimes of packets; `None` if no calls were sampled.
    pub dwell: Option<DwellReport>,
}

/// Use of the pool by one worker, or by one thread that dropped packets.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct CoreReport {
    /// The worker's or thread's name.
    pub name: String,
    /// The CPU on which the worker or thread last ran.
    pub cpu: Option<usize>,
    /// Packets that it allocated.
    pub allocs: u64,
    /// Packets that it freed, allocated on any CPU.
    pub frees: u64,
    /// Allocations that its hot list served.
    pub hits: u64,
    /// Allocations that the depot served.
    pub misses: u64,
    /// Frees for which its hot list had no room.
    pub discards: u64,
    /// Allocations that failed because no frame was free.
    pub no_frame: u64,
    /// Length of its hot list.
    pub hot_list_len: u64,
    /// TSC ticks to allocate a packet; `None` unless calls were sampled.
    pub ticks_per_alloc: Option<f64>,
    /// TSC ticks to free a packet.
    pub ticks_per_free: Option<f64>,
    /// Number of timed calls: of those that allocate, and of those that free.
    pub calls_timed: [u64; 2],
}

/// Cost of the depot's locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct LocksReport {
    /// Times that a lock was taken.
    pub taken: u64,
    /// Times that a lock was taken while another thread held it.
    pub contended: u64,
    /// TSC ticks that threads waited for locks.
    pub wait_ticks: u64,
}

/// Packets freed on another CPU, by the CPU that allocated and the one that freed.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct RemoteFrees {
    /// Packets freed on another CPU than the one that allocated them.
    pub count: u64,
    /// Share of these packets among all packets with a known allocating CPU; `None` before the
    /// first packet.
    pub share: Option<f64>,
    /// The CPUs, in the order of the matrix.
    pub cpus: Vec<usize>,
    /// A row for each CPU that allocated, with a column for each that freed.
    pub matrix: Vec<Vec<u64>>,
}

/// Lifetimes of packets, from allocation to free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct DwellReport {
    /// Packets freed by the core that allocated them.
    pub local: DwellTimes,
    /// Packets freed by another core.
    pub remote: DwellTimes,
}

/// Lifetimes of packets, each rounded up to a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct DwellTimes {
    /// Number of packets whose lifetime was sampled.
    pub packets: u64,
    /// Median lifetime in TSC ticks.
    pub p50_ticks: Option<u64>,
    /// 99th percentile of the lifetime in TSC ticks.
    pub p99_ticks: Option<u64>,
}

impl PoolReport {
    pub(crate) fn of(stopped: &Stopped, stats: &Stats) -> PoolReport {
        let (pool, cost) = (stats.pool(), &stopped.pool);
        let (matrix, locks) = (&cost.matrix, cost.locks);
        let frees =
            |from: &usize| matrix.cpus().iter().map(|to| matrix.frees(*from, *to)).collect();
        let jumbo_bytes = match pool.jumbo_room() {
            0 => 0,
            room => room + pool.headroom(),
        };
        PoolReport {
            frames: stats.pools().iter().map(|pool| pool.frames() as u64).sum(),
            frame_bytes: pool.frame_size() as u64,
            jumbo_frames: stats.pools().iter().map(|pool| pool.jumbo_frames() as u64).sum(),
            jumbo_bytes: jumbo_bytes as u64,
            memory_bytes: stopped.memory_bytes,
            buffers: word(&BUFFERS, pool.data_from()),
            init: word(&INIT, pool.init()),
            return_to: word(&RETURN, pool.return_to()),
            cores: cost.cores.iter().map(CoreReport::from).collect(),
            locks: LocksReport {
                taken: locks.taken,
                contended: locks.contended,
                wait_ticks: locks.wait_ticks,
            },
            remote_frees: RemoteFrees {
                count: matrix.remote(),
                share: matrix.remote_share(),
                cpus: matrix.cpus().to_vec(),
                matrix: matrix.cpus().iter().map(frees).collect(),
            },
            dwell: DwellReport::of(&cost.dwell),
        }
    }

    /// Returns the share of the allocations that hot lists served; `None` before the first.
    #[must_use]
    pub fn hit_share(&self) -> Option<f64> {
        let (hits, misses) =
            self.cores.iter().fold((0, 0), |(hits, misses), c| (hits + c.hits, misses + c.misses));
        (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
    }
}

/// Returns the name of a setting's value, from a table of names and values.
pub fn word<T: PartialEq + Copy>(words: &[(&'static str, T); 2], policy: T) -> &'static str {
    let [(first, named), (second, _)] = words;
    if *named == policy { first } else { second }
}

impl From<&CoreStats> for CoreReport {
    fn from(core: &CoreStats) -> CoreReport {
        CoreReport {
            name: core.name.clone(),
            cpu: core.cpu,
            allocs: core.allocs,
            frees: core.frees,
            hits: core.hits,
            misses: core.misses,
            discards: core.discards,
            no_frame: core.starved,
            hot_list_len: core.hot_list_len,
            ticks_per_alloc: core.alloc_time.ticks_per_packet(),
            ticks_per_free: core.free_time.ticks_per_packet(),
            calls_timed: [core.alloc_time.calls, core.free_time.calls],
        }
    }
}

impl DwellReport {
    fn of([local, remote]: &[Dwell; 2]) -> Option<DwellReport> {
        let report = DwellReport { local: local.into(), remote: remote.into() };
        (local.packets() + remote.packets() > 0).then_some(report)
    }
}

impl From<&Dwell> for DwellTimes {
    fn from(dwell: &Dwell) -> DwellTimes {
        DwellTimes {
            packets: dwell.packets(),
            p50_ticks: dwell.quantile_ticks(0.5),
            p99_ticks: dwell.quantile_ticks(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_datapath::{Engine, EngineBuilder};
    use linerate_sys::thread::allowed_cpus;
    use linerate_testing::may_pin;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(20);

    /// Runs `gen → sink` with `packets`, and returns the report of its pool.
    fn pool(packets: u64, ask: impl FnOnce(EngineBuilder) -> EngineBuilder) -> PoolReport {
        let engine = Engine::builder().port("gen", &format!("gen:,count={packets}"));
        let engine = engine.port("sink", "sink:");
        report(ask(engine.wire("gen", "sink")))
    }

    /// Runs an engine until its sources have ended, and returns the report of its pool.
    fn report(engine: EngineBuilder) -> PoolReport {
        let engine = engine.build().unwrap();
        let stats = engine.stats();
        let running = engine.start().unwrap();
        assert!(running.wait(LONG).unwrap());
        PoolReport::of(&running.stop(LONG), &stats)
    }

    #[test]
    fn a_pool_says_what_it_was_and_what_each_core_did() {
        let pool = pool(10_000, |engine| engine.hot_list_len(512).jumbo(8, 16_384));
        assert_eq!((pool.frame_bytes, pool.jumbo_frames, pool.jumbo_bytes), (2048, 8, 16_384));
        assert!(pool.memory_bytes > pool.frames * 2048 + 8 * 16_384);
        assert_eq!((pool.buffers, pool.init, pool.return_to), ("frames", "at_alloc", "local"));
        let worker = pool.cores.iter().find(|core| core.name == "worker 0").unwrap();
        assert_eq!((worker.allocs, worker.frees, worker.hot_list_len), (10_000, 10_000, 512));
        assert_eq!(worker.hits + worker.misses, 10_000);
        // After the list is filled once, every allocation takes a frame that was freed before.
        assert!(pool.hit_share().unwrap() > 0.9 && pool.locks.taken > 0, "{pool:?}");
        assert_eq!((pool.remote_frees.count, pool.remote_frees.share), (0, Some(0.0)));
        assert_eq!(worker.ticks_per_alloc, None);
        assert_eq!(pool.dwell, None);
    }

    #[test]
    fn policies_are_told_in_words_and_samples_if_there_are_any() {
        // Sampling starts late: a worker checks only every 1024 calls if calls are to be timed.
        let pool = pool(200_000, |engine| {
            engine.data(Data::General).init(Init::AtFree).return_to(Return::Home).sampling(2)
        });
        assert_eq!((pool.buffers, pool.init, pool.return_to), ("general", "at_free", "home"));
        let worker = pool.cores.iter().find(|core| core.name == "worker 0").unwrap();
        assert!(worker.ticks_per_alloc.is_some() && worker.ticks_per_free.is_some());
        let dwell = pool.dwell.unwrap();
        assert!(dwell.local.packets > 0 && dwell.local.p50_ticks <= dwell.local.p99_ticks);
        assert_eq!(dwell.remote, DwellTimes::default());
    }

    #[test]
    fn matrix_has_a_row_for_the_cpu_that_allocated_and_a_column_for_the_one_that_freed() {
        let [from, to, ..] = allowed_cpus().unwrap()[..] else {
            return println!("skipped: one CPU");
        };
        if !may_pin() {
            return;
        }
        // Packets that one worker allocates go over a ring to another worker, which frees them.
        let engine = Engine::builder().port("gen", "gen:,count=10k").port("r0", "ring:r");
        let engine = engine.port("r1", "ring:r").port("sink", "sink:");
        let engine = engine.wire("gen", "r0").wire("r1", "sink").cpus(&[from, to]);
        let frees = report(engine).remote_frees;
        let at = |cpu| frees.cpus.iter().position(|c| *c == cpu).unwrap();
        assert_eq!(frees.matrix[at(from)][at(to)], 10_000, "{frees:?}");
        assert_eq!(frees.matrix.iter().flatten().sum::<u64>(), 10_000, "{frees:?}");
        assert_eq!((frees.count, frees.share), (10_000, Some(1.0)));
    }
}
