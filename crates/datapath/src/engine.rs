//! Ports, wires and stages put together; nothing runs yet.

use std::sync::Arc;

use linerate_port::{Code, Direction, Error, Opened, Queue, Result, Spec, open, parse, ring};
use linerate_skb::{Huge, Pool, Verdict};

use crate::napi::Napi;
use crate::plan::{self, Holder, Holders, Sizes, Wire};
use crate::running::Running;
use crate::stage::{Maker, Stage, StageContext};
use crate::stats::{Entry, Slot, Stats, WorkerSlot};
use crate::worker::Worker;
use crate::xconnect::Xconnect;

/// Packets from one queue in one turn. NAPI's weight, and DPDK's and VPP's order of magnitude.
const BUDGET: usize = 64;
/// Packets that may wait for a transmit ring.
const BACKLOG: usize = 256;
const BACKLOG_MAX: usize = 1 << 16;
/// Post 000's recommendation.
const HOT_LIST_LEN: usize = 1024;
const HOT_LIST_MAX: usize = 1 << 16;
/// Frames of a pool that nobody sized are rounded up to a multiple of this.
const FRAMES_STEP: u64 = 1024;

/// Describes an engine.
pub struct Builder {
    ports: Vec<(String, String)>,
    wires: Vec<(String, String)>,
    makers: Vec<Maker>,
    sizes: Sizes,
    frames: Option<u32>,
    pool: Option<Pool>,
    huge: Huge,
    cpus: Vec<usize>,
}

impl Builder {
    fn new() -> Builder {
        Builder {
            ports: Vec::new(),
            wires: Vec::new(),
            makers: Vec::new(),
            sizes: Sizes { budget: BUDGET, backlog: BACKLOG, hot_list_len: HOT_LIST_LEN },
            frames: None,
            pool: None,
            huge: Huge::Try,
            cpus: Vec::new(),
        }
    }

    /// A port, by the name that wires, stages and reports use, and its text `driver:arg[,k=v]`.
    #[must_use]
    pub fn port(mut self, name: &str, text: &str) -> Self {
        self.ports.push((name.into(), text.into()));
        self
    }

    /// A wire: what comes in by one end leaves by the other, both ways, as far as the ports can.
    ///
    /// A capture on the left is read; on the right, or on no wire, it is written.
    #[must_use]
    pub fn wire(mut self, left: &str, right: &str) -> Self {
        self.wires.push((left.into(), right.into()));
        self
    }

    /// A stage on the path of every packet; `make` is called once for each worker.
    #[must_use]
    pub fn stage<S: Stage + 'static>(
        mut self,
        mut make: impl FnMut(&mut StageContext<'_>) -> S + 'static,
    ) -> Self {
        self.makers.push(Box::new(move |cx| Box::new(make(cx))));
        self
    }

    /// Packets from one queue in one turn, 1 to 1024.
    #[must_use]
    pub fn budget(mut self, packets: usize) -> Self {
        self.sizes.budget = packets.clamp(1, 1024);
        self
    }

    /// Packets that may wait for a port's transmit ring; at least a budget, at most 65536.
    #[must_use]
    pub fn backlog(mut self, packets: usize) -> Self {
        self.sizes.backlog = packets.min(BACKLOG_MAX);
        self
    }

    /// Length of each worker's hot list, in frames, at most 65536; 0 turns it off.
    #[must_use]
    pub fn hot_list_len(mut self, frames: usize) -> Self {
        self.sizes.hot_list_len = frames.min(HOT_LIST_MAX);
        self
    }

    /// Frames of the pool, instead of the sum of its holders.
    #[must_use]
    pub fn pool_frames(mut self, frames: u32) -> Self {
        self.frames = Some(frames);
        self
    }

    /// A pool of the program's own, instead of one made for the engine.
    #[must_use]
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// Whether the pool's memory is to be of huge pages.
    #[must_use]
    pub fn huge_pages(mut self, huge: Huge) -> Self {
        self.huge = huge;
        self
    }

    /// CPUs to pin the workers' threads to, the first worker to the first; none unless told.
    #[must_use]
    pub fn cpus(mut self, cpus: &[usize]) -> Self {
        self.cpus = cpus.to_vec();
        self
    }

    /// Opens the ports and puts them together. No thread runs yet.
    ///
    /// # Errors
    /// A port that cannot be opened, a wire that makes no sense (`E-TOPOLOGY`), a pool smaller than
    /// the sum of its holders (`E-POOL-TOO-SMALL`, with the sum).
    pub fn build(mut self) -> Result<Engine> {
        self.sizes.backlog = self.sizes.backlog.max(self.sizes.budget);
        let mut specs = Vec::new();
        for (name, text) in &self.ports {
            let mut spec = parse(text)?;
            spec.name.clone_from(name);
            specs.push(spec);
        }
        let wires = self.find_wires(&specs)?;
        plan::check_wires(&specs, &wires)?;
        plan::direct(&mut specs, &wires);
        let workers = plan::workers(specs.len(), &wires);
        let (pool, holders) = self.make_pool(&specs, &workers)?;
        let opened = open_all(&specs, &pool)?;
        check_directions(&specs, &wires, &opened)?;
        let groups = Groups { specs: &specs, wires: &wires, workers: &workers };
        let (entries, mut groups) = groups.split(opened, &pool, self.sizes.backlog);
        let mut made = Vec::new();
        for (i, group) in groups.drain(..).enumerate() {
            if group.napis.len() > Verdict::OUTPUTS_MAX {
                let why = format!("worker {i} would serve {} queues", group.napis.len());
                return Err(Error::new(Code::Topology, "cannot build the engine", why)
                    .fix(format!("at most {} a worker", Verdict::OUTPUTS_MAX)));
            }
            let stages = self.make_stages(i, &group.names)?;
            let slot = WorkerSlot::new()?;
            let mem = pool.local_with(self.sizes.hot_list_len);
            made.push((
                Worker::new(group.napis, stages, mem, self.sizes.budget, slot.clone())?,
                slot,
            ));
        }
        let stats = Stats { ports: Arc::new(entries), pool };
        Ok(Engine { workers: made, stats, holders: holders.0, cpus: self.cpus })
    }

    fn find_wires(&self, specs: &[Spec]) -> Result<Vec<Wire>> {
        let find = |name: &String| {
            specs.iter().position(|s| s.name == *name).ok_or_else(|| {
                let known: Vec<&str> = specs.iter().map(|s| s.name.as_str()).collect();
                let why = format!("a wire ends at '{name}', and there is no such port");
                Error::new(Code::Topology, "cannot build the engine", why)
                    .fix(format!("ports: {}", known.join(" ")))
            })
        };
        self.wires.iter().map(|(a, b)| Ok((find(a)?, find(b)?))).collect()
    }

    fn make_pool(&self, specs: &[Spec], workers: &[usize]) -> Result<(Pool, Holders)> {
        let builder = Pool::builder().name("linerate").huge_pages(self.huge);
        let data_room = self.pool.as_ref().map_or(builder.data_room(), Pool::data_room);
        let holders = plan::holders(specs, workers, self.sizes, data_room)?;
        let frames = match (&self.pool, self.frames) {
            (Some(pool), _) => pool.frames() as u64,
            (None, Some(frames)) => u64::from(frames),
            (None, None) => holders.sum().next_multiple_of(FRAMES_STEP),
        };
        if frames < holders.sum() {
            let what = format!("a pool of {frames} frames cannot serve this engine");
            let fix = format!(
                "give it {} frames, or make batches, backlogs, rings or the hot list shorter",
                holders.sum()
            );
            return Err(Error::new(Code::PoolTooSmall, what, holders.to_string()).fix(fix));
        }
        let pool = match &self.pool {
            Some(pool) => pool.clone(),
            None => builder.frames(u32::try_from(frames).unwrap_or(u32::MAX)).build()?,
        };
        Ok((pool, holders))
    }

    fn make_stages(&mut self, worker: usize, names: &[String]) -> Result<Vec<Box<dyn Stage>>> {
        let mut cx = StageContext::new(names, worker);
        let mut stages: Vec<_> = self.makers.iter_mut().map(|make| make(&mut cx)).collect();
        if let Some(missing) = cx.missing().first() {
            let why = format!("a stage of worker {worker} asks for port '{missing}'");
            return Err(Error::new(Code::Topology, "cannot build the engine", why)
                .fix(format!("its ports: {}", names.join(" "))));
        }
        stages.push(Box::new(Xconnect));
        Ok(stages)
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("ports", &self.ports)
            .field("wires", &self.wires)
            .finish_non_exhaustive()
    }
}

/// Opens every port; the two ends of a ring together.
fn open_all(specs: &[Spec], pool: &Pool) -> Result<Vec<Opened>> {
    let mut opened: Vec<Option<Opened>> = specs.iter().map(|_| None).collect();
    for (i, spec) in specs.iter().enumerate() {
        if opened[i].is_some() {
            continue;
        }
        if spec.driver != ring::NAME {
            let device = open(spec, pool)?;
            if device.queues.is_empty() {
                return Err(spec.error("the driver opened a device without queues"));
            }
            opened[i] = Some(device);
            continue;
        }
        let other = (i + 1..specs.len())
            .find(|&j| specs[j].driver == ring::NAME && specs[j].arg == spec.arg);
        // `check_wires` saw both ends.
        let Some(other) = other else { continue };
        let len = plan::ring_len(spec)?;
        let _ = plan::ring_len(&specs[other])?;
        spec.finish()?;
        specs[other].finish()?;
        let (a, b) = ring::pair(&spec.arg, len)?;
        (opened[i], opened[other]) = (Some(a), Some(b));
    }
    Ok(opened.into_iter().flatten().collect())
}

/// Refuses a wire over which nothing can go.
fn check_directions(specs: &[Spec], wires: &[Wire], opened: &[Opened]) -> Result<()> {
    for &(a, b) in wires {
        let (left, right) = (opened[a].obtained.direction, opened[b].obtained.direction);
        let word = match (left, right) {
            (Direction::Source, Direction::Source) => "read",
            (Direction::Sink, Direction::Sink) => "written",
            _ => continue,
        };
        let why = format!("'{}' and '{}' can both only be {word}", specs[a].name, specs[b].name);
        return Err(Error::new(Code::Topology, "nothing can go over the wire", why));
    }
    Ok(())
}

/// The ports of one worker.
#[derive(Default)]
struct Group {
    names: Vec<String>,
    napis: Vec<Napi>,
}

struct Groups<'a> {
    specs: &'a [Spec],
    wires: &'a [Wire],
    workers: &'a [usize],
}

impl Groups<'_> {
    /// Deals the opened queues out to their workers and joins the ends of wires.
    fn split(&self, opened: Vec<Opened>, pool: &Pool, backlog: usize) -> (Vec<Entry>, Vec<Group>) {
        let count = self.workers.iter().max().map_or(0, |w| w + 1);
        let mut groups: Vec<Group> = (0..count).map(|_| Group::default()).collect();
        let mut entries = Vec::new();
        // Where the queues of each port are in their worker.
        let mut places: Vec<std::ops::Range<usize>> = Vec::new();
        for ((spec, &worker), device) in self.specs.iter().zip(self.workers).zip(opened) {
            let group = &mut groups[worker];
            let (first, direction) = (group.napis.len(), device.obtained.direction);
            let port = Napi::id(first);
            let mut queues = Vec::new();
            for ops in device.queues {
                let queue = Queue::new(ops, pool.local_with(0));
                let slot = Arc::new(Slot::default());
                queues.push((queue.stats(), slot.clone()));
                group.napis.push(Napi::new(queue, direction, slot, backlog, port));
                group.names.push(spec.name.clone());
            }
            places.push(first..group.napis.len());
            entries.push(Entry {
                name: spec.name.clone(),
                driver: spec.driver.clone(),
                obtained: device.obtained,
                queues,
            });
        }
        for &(a, b) in self.wires {
            let group = &mut groups[self.workers[a]];
            for (from, to) in [(a, b), (b, a)] {
                let (from, to) = (places[from].clone(), places[to].clone());
                for (i, napi) in from.enumerate() {
                    let peer = to.start + i % to.len().max(1);
                    if group.napis.get(peer).is_some_and(Napi::writes) {
                        group.napis[napi].peer = Some(peer);
                    }
                }
            }
        }
        (entries, groups)
    }
}

/// Ports put together, ready to run: on the engine's threads, or on the program's own.
#[derive(Debug)]
pub struct Engine {
    workers: Vec<(Worker, Arc<WorkerSlot>)>,
    stats: Stats,
    holders: Vec<Holder>,
    cpus: Vec<usize>,
}

impl Engine {
    /// Describes an engine.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A handle to read it by, now and while it runs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// Who can hold frames of the pool, and how many at most: what the pool was sized by.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Runs each worker on a thread of its own, pinned if CPUs were named.
    ///
    /// # Errors
    /// `E-SYSTEM` if a thread cannot be had, `E-CPU` if a CPU cannot.
    pub fn start(self) -> Result<Running> {
        Running::start(self.workers, self.stats, &self.cpus)
    }

    /// Gives out the workers, for a program's own threads: each turns and parks until the program
    /// has had enough, and is then drained ([`Worker::drain`]).
    #[must_use]
    pub fn into_workers(self) -> Vec<Worker> {
        self.workers.into_iter().map(|(worker, _)| worker).collect()
    }
}
