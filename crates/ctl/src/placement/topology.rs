//! The topology of a machine's CPUs, from /sys.
//!
//! Source: Documentation/admin-guide/cputopology.rst,
//!         Documentation/ABI/testing/sysfs-devices-system-cpu.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs};

use linerate_port::{Code, Error, Result};
use linerate_sys::thread;

/// Capacity of the largest core.
const FULL: u32 = 1024;
/// Capacity assumed for a small core whose kernel reports none.
const SMALL: u32 = FULL / 2;
/// Most caches of a CPU that are looked at; present CPUs have up to five, of data and of code.
const CACHES_MAX: usize = 10;

/// A CPU and its position in the topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cpu {
    /// The CPU's number.
    pub number: usize,
    /// The number of the first CPU of the core; siblings have the same number.
    pub core: usize,
    /// The number of the first CPU that shares the L3 cache; `None` if the kernel does not describe
    /// such a cache.
    pub cache: Option<usize>,
    /// The CPU's socket.
    pub socket: usize,
    /// Relative capacity of the core; the largest core has 1024.
    pub capacity: u32,
}

/// Nearness of two CPUs, in ascending order of distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "json", derive(serde::Serialize), serde(rename_all = "lowercase"))]
pub enum Near {
    /// The same CPU.
    Same,
    /// Two hardware threads of the same core.
    Sibling,
    /// Two cores that share an L3 cache.
    Cache,
    /// Two cores of the same socket, of which the kernel describes no common L3 cache.
    Socket,
    /// Two cores of different sockets.
    Machine,
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Near::Same => "the same",
            Near::Sibling => "one core",
            Near::Cache => "one cache",
            Near::Socket => "one socket",
            Near::Machine => "two sockets",
        })
    }
}

/// The CPUs that can be used, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    cpus: Vec<Cpu>,
}

impl Topology {
    /// Reads the topology of this machine, limited to CPUs that the calling thread may use.
    ///
    /// # Errors
    /// `E-SYSTEM` if the kernel reports no CPU.
    pub fn here() -> Result<Topology> {
        Topology::read(Path::new("/sys/devices"), &thread::allowed_cpus()?)
    }

    /// Reads the CPUs of `allowed` that are online, from a folder like `/sys/devices`. A CPU that
    /// the kernel does not describe is taken for a core of its own, on the first socket, with full
    /// capacity.
    ///
    /// # Errors
    /// `E-SYSTEM` if none of these CPUs is online.
    pub fn read(devices: &Path, allowed: &[usize]) -> Result<Topology> {
        let text = |file: &str| fs::read_to_string(devices.join(file)).ok();
        let online =
            text("system/cpu/online").map_or(allowed.to_vec(), |list| thread::listed(&list));
        let small = text("cpu_atom/cpus").map_or(Vec::new(), |list| thread::listed(&list));
        let number = |file: String| text(&file)?.trim().parse::<u32>().ok();
        let l3 = |caches: &str| {
            let is_l3 = |i: &usize| number(format!("{caches}/index{i}/level")) == Some(3);
            text(&format!("{caches}/index{}/shared_cpu_list", (0..CACHES_MAX).find(is_l3)?))
        };
        let cpu = |cpu: usize| {
            let of = |file: &str| format!("system/cpu/cpu{cpu}/{file}");
            let siblings = text(&of("topology/core_cpus_list"));
            let siblings = siblings.or_else(|| text(&of("topology/thread_siblings_list")));
            let siblings = siblings.map_or(Vec::new(), |list| thread::listed(&list));
            let shared = l3(&of("cache")).map_or(Vec::new(), |list| thread::listed(&list));
            let otherwise = if small.contains(&cpu) { SMALL } else { FULL };
            Cpu {
                number: cpu,
                core: siblings.into_iter().min().unwrap_or(cpu),
                cache: shared.into_iter().min(),
                // The value is -1 if the firmware does not report the socket.
                socket: number(of("topology/physical_package_id")).unwrap_or(0) as usize,
                capacity: number(of("cpu_capacity")).unwrap_or(otherwise).clamp(1, FULL),
            }
        };
        let usable = allowed.iter().copied().filter(|cpu| online.contains(cpu));
        let mut cpus: Vec<Cpu> = usable.map(cpu).collect();
        cpus.sort_unstable_by_key(|cpu| cpu.number);
        cpus.dedup_by_key(|cpu| cpu.number);
        if cpus.is_empty() {
            let why = format!("of CPUs {allowed:?} none is online: {online:?}");
            return Err(Error::new(Code::Cpu, "cannot place anything", why)
                .fix("grep Cpus_allowed_list /proc/self/status"));
        }
        Ok(Topology { cpus })
    }

    /// Returns the CPUs.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Returns the CPU with this number.
    #[must_use]
    pub fn cpu(&self, number: usize) -> Option<&Cpu> {
        self.cpus.iter().find(|cpu| cpu.number == number)
    }

    /// Returns the nearness of two CPUs.
    #[must_use]
    pub fn near(&self, a: usize, b: usize) -> Near {
        match (self.cpu(a), self.cpu(b)) {
            _ if a == b => Near::Same,
            (Some(a), Some(b)) if a.socket != b.socket => Near::Machine,
            (Some(a), Some(b)) if a.core == b.core => Near::Sibling,
            (Some(a), Some(b)) if a.cache.is_some() && a.cache == b.cache => Near::Cache,
            _ => Near::Socket,
        }
    }

    /// Returns the CPUs in the order in which threads that work together should use them if nothing
    /// was measured: large cores first, one hardware thread of each core before the second ones,
    /// one socket before the next, and in it one L3 cache before the next. With `apart`, sockets
    /// alternate, and in each of them its caches.
    #[must_use]
    pub fn order(&self, apart: bool) -> Vec<usize> {
        let (mut threads, mut cores) = (BTreeMap::new(), BTreeMap::new());
        let mut caches: BTreeMap<usize, Vec<Option<usize>>> = BTreeMap::new();
        let mut ranked: Vec<_> = self
            .cpus
            .iter()
            .map(|cpu| {
                let (socket, small) = (cpu.socket, FULL - cpu.capacity);
                let thread = next(&mut threads, cpu.core);
                let core = next(&mut cores, (small, thread, socket, cpu.cache));
                let caches = caches.entry(socket).or_default();
                let cache =
                    caches.iter().position(|cache| *cache == cpu.cache).unwrap_or_else(|| {
                        caches.push(cpu.cache);
                        caches.len() - 1
                    });
                let rank = if apart { [core, cache, socket] } else { [socket, cache, core] };
                (small, thread, rank, cpu.number)
            })
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., number)| number).collect()
    }
}

/// Returns how often `key` was counted before, and counts it.
fn next<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) -> usize {
    let count = counts.entry(key).or_default();
    *count += 1;
    *count - 1
}
