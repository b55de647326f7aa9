//! The cost of a pool on each core: hot lists, locks, frees across cores, dwell, cycles.

use std::fmt;

use crate::depot::Locks;
use crate::handle::CORES;
use crate::page::{CoreKind, DWELLS, Page, Timed};
use crate::umem::Umem;

/// Timed calls: a sample of all calls.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Sampled {
    /// Number of timed calls; 0 unless [sampling](crate::Pool::set_sampling) is on.
    pub calls: u64,
    /// Packets of the timed calls.
    pub packets: u64,
    /// TSC ticks of the timed calls.
    pub ticks: u64,
}

impl Sampled {
    fn of(timed: &Timed) -> Sampled {
        let (calls, packets) = (timed.calls.value(), timed.packets.value());
        Sampled { calls, packets, ticks: timed.ticks.value() }
    }

    /// Returns the TSC ticks for each packet, including the clock readings; `None` if no call was
    /// timed.
    #[must_use]
    pub fn ticks_per_packet(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.ticks as f64 / self.packets as f64)
    }
}

/// The counts of one core: a queue, worker or task with its hot list, or a thread that dropped
/// packets.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CoreStats {
    /// The name given on creation.
    pub name: String,
    /// The kind of core.
    pub kind: CoreKind,
    /// The core's number in the pool; 0 for cores without one.
    pub core: usize,
    /// False after the core has ended: the entry then sums up all ended cores of that name and
    /// number.
    pub alive: bool,
    /// The CPU on which the core last visited the depot.
    pub cpu: Option<usize>,
    /// Number of times that the core was seen on another CPU than before.
    pub moves: u64,
    /// Frames allocated: packets, their fragments, and frames that were freed unused.
    pub allocs: u64,
    /// Packets freed, whichever core allocated them, with frames that were freed unused or became
    /// fragments of a packet.
    pub frees: u64,
    /// Most free frames that the core keeps.
    pub hot_list_len: u64,
    /// Free frames that the core holds now.
    pub level: u64,
    /// Number of allocated frames that had been freed onto the hot list.
    pub hits: u64,
    /// Number of allocated frames that were fetched from the depot, half a list at a time; on a
    /// core that frees nothing, all frames are.
    pub misses: u64,
    /// Number of freed frames that did not fit on the hot list and went to the depot.
    pub discards: u64,
    /// Number of visits to the depot that fetched frames, and of those that returned frames.
    pub visits: (u64, u64),
    /// Number of allocations that found no free frame.
    pub starved: u64,
    /// Panics of objects that packets [held](crate::Skb::hold), caught when the objects were
    /// released.
    pub release_panics: u64,
    /// Timed calls of allocation.
    pub alloc_time: Sampled,
    /// Timed calls of freeing. A drop of a plain packet is counted, but not timed.
    pub free_time: Sampled,
    /// Packets freed, by the core that allocated them.
    used: [u64; CORES],
}

impl CoreStats {
    fn of(page: &Page, alive: bool) -> CoreStats {
        let allocs = page.alloc.value();
        let misses = page.refilled.value().min(allocs);
        CoreStats {
            name: page.name.clone(),
            kind: page.kind,
            core: page.core,
            alive,
            cpu: page.cpu(),
            moves: page.moves.value(),
            allocs,
            frees: page.freed_by_core().iter().sum(),
            hot_list_len: page.hot_list_len.value(),
            level: page.held(),
            hits: allocs - misses,
            misses,
            discards: page.spilled.value(),
            visits: (page.refills.value(), page.spills.value()),
            starved: page.starved.value(),
            release_panics: page.release_panics.value(),
            alloc_time: Sampled::of(&page.timed_alloc),
            free_time: Sampled::of(&page.timed_free),
            used: page.used_by_core(),
        }
    }
}

/// Packets by their lifetime from allocation to free, in powers of two of TSC ticks.
#[derive(Debug, Clone, PartialEq)]
pub struct Dwell {
    counts: [u64; DWELLS],
}

impl Dwell {
    /// Returns the number of packets that carried the time of their allocation.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the lifetime, in TSC ticks rounded up to a power of two, that the given share of the
    /// packets did not exceed; `None` if no packet was timed.
    #[must_use]
    pub fn quantile_ticks(&self, share: f64) -> Option<u64> {
        let (all, mut seen) = (self.packets(), 0);
        let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        self.counts.iter().enumerate().find_map(|(power, n)| {
            seen += n;
            (all > 0 && seen >= wanted).then_some(1 << power)
        })
    }
}

/// Number of freed packets, by the CPU that freed them and the CPU that had allocated them.
///
/// Without what was never a packet: frames that were freed unused, and fragments.
#[derive(Debug, Clone, PartialEq)]
pub struct FreeMatrix {
    cpus: Vec<usize>,
    frees: Vec<Vec<u64>>,
    unknown: u64,
}

impl FreeMatrix {
    /// Returns the CPUs, in the order of rows and columns.
    #[must_use]
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Returns the number of packets that `from` allocated and `to` freed.
    #[must_use]
    pub fn frees(&self, from: usize, to: usize) -> u64 {
        let at = |cpu| self.cpus.iter().position(|c| *c == cpu);
        at(from).zip(at(to)).map_or(0, |(row, column)| self.frees[row][column])
    }

    /// Returns the number of packets freed on the CPU that allocated them.
    #[must_use]
    pub fn local(&self) -> u64 {
        (0..self.cpus.len()).map(|i| self.frees[i][i]).sum()
    }

    /// Returns the number of packets freed on another CPU than the one that allocated them: the
    /// case of post 004.
    #[must_use]
    pub fn remote(&self) -> u64 {
        self.frees.iter().flatten().sum::<u64>() - self.local()
    }

    /// Returns the number of freed packets whose allocating core had no number, such as copies made
    /// on the first write.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Returns the share of packets freed on another CPU; `None` if no packet was freed.
    #[must_use]
    pub fn remote_share(&self) -> Option<f64> {
        let all = self.local() + self.remote();
        (all > 0).then(|| self.remote() as f64 / all as f64)
    }

    /// Returns the sum of two matrices, of different pools.
    fn plus(&self, other: &FreeMatrix) -> FreeMatrix {
        let mut cpus = [self.cpus.as_slice(), &other.cpus].concat();
        cpus.sort_unstable();
        cpus.dedup();
        let row = |from: &usize| {
            cpus.iter().map(|to| self.frees(*from, *to) + other.frees(*from, *to)).collect()
        };
        let frees = cpus.iter().map(row).collect();
        FreeMatrix { frees, cpus, unknown: self.unknown + other.unknown }
    }

    fn of(cores: &[CoreStats]) -> FreeMatrix {
        let mut cpus: Vec<usize> = cores.iter().filter_map(|c| c.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        // The CPU of each core number: the CPU of its owner, or of its last owner.
        let mut home = [None; CORES];
        // Ended cores come in the order of their ends; the CPU of a living one replaces theirs.
        let (living, ended): (Vec<_>, Vec<_>) = cores.iter().partition(|c| c.alive);
        for c in ended.into_iter().chain(living).filter(|c| c.core != 0) {
            home[c.core] = c.cpu;
        }
        let mut matrix =
            FreeMatrix { frees: vec![vec![0; cpus.len()]; cpus.len()], cpus, unknown: 0 };
        let at = |cpu: Option<usize>| matrix.cpus.iter().position(|c| Some(*c) == cpu);
        let places: Vec<_> = cores.iter().map(|c| at(c.cpu)).collect();
        let homes = home.map(at);
        for (c, column) in cores.iter().zip(places) {
            for (core, n) in c.used.iter().enumerate() {
                match homes[core].zip(column) {
                    Some((row, column)) => matrix.frees[row][column] += n,
                    None => matrix.unknown += n,
                }
            }
        }
        matrix
    }
}

/// The cost of a pool so far, core by core.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PoolStats {
    /// The counts of each core, those of living cores first.
    pub cores: Vec<CoreStats>,
    /// The counts of the depot's lock.
    pub locks: Locks,
    /// Number of freed packets, by freeing and allocating CPU.
    pub matrix: FreeMatrix,
    /// Lifetimes of packets that were freed by the core that allocated them, and of packets that
    /// another core freed.
    pub dwell: [Dwell; 2],
    /// Memory mapped for the pool: frames, lines, tables.
    pub mapped_bytes: usize,
    /// Memory from the system's allocator that packets hold, in bytes; 0 in a pool of frames.
    pub blocks_bytes: u64,
}

impl PoolStats {
    pub(crate) fn of(umem: &Umem) -> PoolStats {
        let mut cores = Vec::new();
        let mut dwell = [(); 2].map(|()| Dwell { counts: [0; DWELLS] });
        let mut blocks_bytes = 0u64;
        umem.books.each(|page, alive| {
            cores.push(CoreStats::of(page, alive));
            // One thread's page may subtract bytes that another thread's page added.
            blocks_bytes = blocks_bytes.wrapping_add(page.blocks_bytes.value());
            for (sum, counts) in dwell.iter_mut().zip(&page.dwell) {
                sum.counts.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n.value());
            }
        });
        PoolStats {
            matrix: FreeMatrix::of(&cores),
            cores,
            locks: umem.locks(),
            dwell,
            mapped_bytes: umem.mapped_bytes(),
            // The pages are read one by one while packets move, so the sum can be negative for a
            // moment.
            blocks_bytes: (blocks_bytes as i64).max(0) as u64,
        }
    }

    /// Returns the sum of the statistics of two pools; a core that uses both pools appears twice.
    #[must_use]
    pub fn plus(mut self, other: &PoolStats) -> PoolStats {
        self.matrix = self.matrix.plus(&other.matrix);
        self.cores.extend_from_slice(&other.cores);
        self.cores.sort_by_key(|core| !core.alive);
        self.locks = self.locks.plus(other.locks);
        for (sum, dwell) in self.dwell.iter_mut().zip(&other.dwell) {
            sum.counts.iter_mut().zip(dwell.counts).for_each(|(sum, n)| *sum += n);
        }
        self.mapped_bytes += other.mapped_bytes;
        self.blocks_bytes += other.blocks_bytes;
        self
    }

    /// Returns the memory for packets in bytes: [`mapped_bytes`](PoolStats::mapped_bytes) plus the
    /// memory from the system's allocator.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.mapped_bytes as u64 + self.blocks_bytes
    }

    /// Returns the hits, misses and discards of all hot lists together.
    #[must_use]
    pub fn hot_lists(&self) -> (u64, u64, u64) {
        self.cores.iter().fold((0, 0, 0), |(hits, misses, discards), c| {
            (hits + c.hits, misses + c.misses, discards + c.discards)
        })
    }
}

impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<20} {:>4} {:>6} {:>12} {:>12} {:>12} {:>10} {:>10} {:>12} {:>12}",
            "core",
            "cpu",
            "list",
            "allocs",
            "frees",
            "hits",
            "misses",
            "discards",
            "ticks/alloc",
            "ticks/free"
        )?;
        for c in &self.cores {
            let cpu = c.cpu.map_or("–".into(), |cpu| cpu.to_string());
            let ticks =
                |s: &Sampled| s.ticks_per_packet().map_or("–".into(), |t| format!("{t:.1}"));
            writeln!(
                f,
                "{:<20} {cpu:>4} {:>6} {:>12} {:>12} {:>12} {:>10} {:>10} {:>12} {:>12}",
                c.name,
                c.hot_list_len,
                c.allocs,
                c.frees,
                c.hits,
                c.misses,
                c.discards,
                ticks(&c.alloc_time),
                ticks(&c.free_time)
            )?;
        }
        write!(f, "depot lock: {} taken, {} contended", self.locks.taken, self.locks.contended)?;
        writeln!(f, ", {} ticks waited", self.locks.wait_ticks)?;
        if let Some(share) = self.matrix.remote_share() {
            let (remote, local) = (self.matrix.remote(), self.matrix.local());
            writeln!(
                f,
                "freed on another CPU: {remote} of {} ({:.1} %)",
                remote + local,
                share * 100.0
            )?;
        }
        write!(f, "memory: {} KiB", self.memory_bytes() / 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_power_of_two_that_covers_it() {
        let mut counts = [0; DWELLS];
        (counts[4], counts[10]) = (90, 10);
        let dwell = Dwell { counts };
        assert_eq!(dwell.packets(), 100);
        assert_eq!(dwell.quantile_ticks(0.5), Some(16));
        assert_eq!(dwell.quantile_ticks(0.9), Some(16));
        assert_eq!(dwell.quantile_ticks(0.901), Some(1024));
        assert_eq!(dwell.quantile_ticks(0.99), Some(1024));
        assert_eq!(Dwell { counts: [0; DWELLS] }.quantile_ticks(0.5), None);
    }

    #[test]
    fn home_cpu_of_a_core_number_is_that_of_its_last_owner() {
        let core = |cpu, alive, freed| {
            let mut core = CoreStats::of(&Page::new(CoreKind::Local, "owner", 1), alive);
            core.cpu = Some(cpu);
            core.used[1] = freed;
            core
        };
        // In the order of closing, after the living one.
        let [first, last] = [core(3, false, 0), core(5, false, 7)];
        let ended = FreeMatrix::of(&[first.clone(), last.clone()]);
        assert_eq!((ended.frees(5, 5), ended.frees(3, 5)), (7, 0));
        let owned = FreeMatrix::of(&[core(4, true, 0), first, last]);
        assert_eq!((owned.frees(4, 5), owned.frees(5, 5)), (7, 0));
    }

    #[test]
    fn ended_cores_are_in_the_order_in_which_they_ended() {
        let pool = crate::Pool::builder().frames(4).build().unwrap();
        for name in ["a", "b", "a"] {
            drop(pool.local_named(name, 0));
        }
        let names: Vec<_> = pool.stats().cores.into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["b", "a"]);
    }

    #[test]
    fn sum_of_two_pools_has_the_cores_and_the_memory_of_both() {
        let builder = crate::Pool::builder().data(crate::Data::General);
        let pools = [4, 8].map(|frames| builder.clone().frames(frames).build().unwrap());
        let _packets = pools.each_ref().map(|pool| {
            let mut mem = pool.local_named("worker", 0);
            drop(mem.alloc_one());
            mem.alloc_one()
        });
        let [one, other] = pools.each_ref().map(crate::Pool::stats);
        assert!(one.blocks_bytes > 0 && other.blocks_bytes > 0);
        let sum = one.clone().plus(&other);
        assert_eq!(sum.cores.len(), one.cores.len() + other.cores.len());
        assert_eq!(sum.memory_bytes(), one.memory_bytes() + other.memory_bytes());
        assert_eq!(sum.locks.taken, one.locks.taken + other.locks.taken);
        let frees = |stats: &PoolStats| {
            stats.matrix.local() + stats.matrix.remote() + stats.matrix.unknown()
        };
        assert_eq!((frees(&sum), frees(&one)), (2, 1));
    }
}
