//! The memory of an engine: its pools, a hot list for each worker, and warnings about their sizes.
//!
//! Wires that lead to a peer which may write their frames have a pool of their own, so that the
//! peer sees no other packets. A worker that serves wires of several pools has a hot list of each.
//! docs/adr/0012-what-a-peer-may-write.md.

use linerate_port::{Code, Error, Result};
use linerate_skb::{Data, Holder, Holders, Huge, Init, Local, Pool, PoolBuilder, Return, Trust};

use linerate_skb::knob::{FRAME_SIZE, HOT_LIST};

use crate::demand::{self, Demand};
use crate::plan::Sizes;
use crate::ports::ReadsInPlace;

/// Largest frame that a pool can have, as a power of two.
const FRAME_POWER_MAX: u32 = 16;

/// The requested memory settings. A setting that is `None` takes the pool's default.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryConfig {
    /// A pool that the program created; the settings for a new pool are ignored then.
    pub pool: Option<Pool>,
    pub frames: Option<u32>,
    pub frame_bytes: Option<u32>,
    /// Number of jumbo frames, and their size in bytes.
    pub jumbo: Option<(u32, u32)>,
    /// True if a frame must hold the longest packet of any port.
    pub fit: bool,
    pub data: Data,
    pub init: Init,
    pub return_to: Return,
    pub huge: Huge,
    pub hot_list_len: Option<usize>,
    pub sampling: Option<u32>,
}

/// The memory of an engine.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The engine's pools; if one is private, it is the first.
    pub pools: Vec<Pool>,
    /// For each port, the index of its pool in `pools`.
    pub of_ports: Vec<usize>,
    /// Holders of frames, of all pools together.
    pub holders: Vec<Holder>,
    /// Length of each worker's hot list in each pool; `None` for a pool that the worker does not
    /// use.
    hot_lists: Vec<Vec<Option<usize>>>,
    /// Warnings about settings whose effect differs from the request.
    pub warnings: Vec<String>,
}

impl Memory {
    /// Returns each port's pool.
    pub fn pools_of_ports(&self) -> Vec<&Pool> {
        self.of_ports.iter().map(|pool| &self.pools[*pool]).collect()
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.hot_lists.first().map_or(0, Vec::len)
    }

    /// Creates the packet memory of a worker, one for each pool that it uses.
    pub fn of_worker(&self, worker: usize) -> Vec<Local> {
        let local = |(i, (pool, hot_lists)): (usize, (&Pool, &Vec<Option<usize>>))| {
            let apart = if i == 0 { String::new() } else { format!(", pool {i}") };
            Some(pool.local_named(&format!("worker {worker}{apart}"), hot_lists[worker]?))
        };
        self.pools.iter().zip(&self.hot_lists).enumerate().filter_map(local).collect()
    }

    /// Returns the index of `pool` among the pools that `worker` uses.
    pub fn place(&self, pool: usize, worker: usize) -> usize {
        self.hot_lists[..pool].iter().filter(|hot_lists| hot_lists[worker].is_some()).count()
    }
}

impl MemoryConfig {
    /// Determines the holders of frames, and creates a pool for them; creates a second pool for
    /// wires to a peer that can write their frames, if there are other wires.
    pub fn get(&self, demands: &[Demand], sizes: Sizes) -> Result<Memory> {
        let of_ports: Vec<_> = demands.iter().map(|demand| demand.pool).collect();
        let (pools, hot_lists) = (Vec::new(), Vec::new());
        let (holders, warnings) = (Vec::new(), Vec::new());
        let mut memory = Memory { pools, of_ports, holders, hot_lists, warnings };
        self.check_frame_size()?;
        for pool in 0..=memory.of_ports.iter().copied().max().unwrap_or(0) {
            self.add(&mut memory, demands, pool, sizes)?;
        }
        Ok(memory)
    }

    /// Refuses the program's own pool if a peer can write it, because `reader` reads packets in
    /// place.
    pub fn check_private(&self, reader: ReadsInPlace) -> Result<()> {
        if self.pool.as_ref().is_none_or(|pool| pool.trust() == Trust::Private) {
            return Ok(());
        }
        let by = reader.name();
        let why = format!("a peer may write the engine's pool while {by} reads the packets");
        Err(Error::new(Code::Unsupported, "cannot build the engine", why)
            .fix(reader.fix("make the pool private")))
    }

    /// Refuses frames of a new pool whose size no frame can have, or that leave no room beside the
    /// headroom. Without room, the number of frames that the holders need would be of no use.
    fn check_frame_size(&self) -> Result<()> {
        let asked = self.frame_bytes.filter(|_| self.pool.is_none());
        let is_size = |bytes: u32| FRAME_SIZE.allows(bytes.into()) && bytes.is_power_of_two();
        match asked.filter(|bytes| !is_size(*bytes)) {
            None => Ok(()),
            Some(bytes) => {
                let why = format!(
                    "a frame of {bytes} bytes; it must be a power of two, {} to {}",
                    FRAME_SIZE.min, FRAME_SIZE.max
                );
                Err(Error::new(Code::PoolSize, "cannot build the engine", why)
                    .fix("2048 carries a full Ethernet frame, 16384 one of 9000 bytes"))
            }
        }
    }

    /// Creates and adds the pool with this number.
    fn add(
        &self,
        memory: &mut Memory,
        demands: &[Demand],
        number: usize,
        sizes: Sizes,
    ) -> Result<()> {
        let frame_bytes = self.frame_bytes(demands);
        let new = self.describe(Pool::builder(), frame_bytes);
        let data_room = self.pool.as_ref().map_or(new.data_room(), Pool::data_room);
        let frames = match &self.pool {
            Some(pool) => Some(pool.frames() as u64),
            None => self.frames.map(u64::from),
        };
        let rings = rings(demands, number);
        let none: Vec<_> = rings.iter().map(|rings| rings.map(|_| 0)).collect();
        let others = demand::holders(demands, number, sizes, &none, data_room);
        let workers = rings.iter().flatten().count();
        let applied_len =
            self.hot_list_len.map(|asked| applied(asked, frames, &others, workers, sizes));
        let default = |served: usize| HOT_LIST.clamp(HOT_LIST.default.max(served as u64)) as usize;
        let hot_list = |n: &Option<usize>| n.map(|n| applied_len.unwrap_or_else(|| default(n)));
        let hot_lists: Vec<_> = rings.iter().map(hot_list).collect();
        let holders = demand::holders(demands, number, sizes, &hot_lists, data_room);
        let holders = holders.with_thread_caches();
        if let Some(frames) = frames.filter(|frames| *frames < holders.sum()) {
            return Err(too_small(frames, &holders));
        }
        let its: Vec<_> = demands.iter().filter(|demand| demand.pool == number).collect();
        let trust = trust(&its);
        let pool = match (&self.pool, self.frames) {
            (Some(pool), _) => pool.clone(),
            (None, Some(frames)) => new.frames(frames).trust(trust).build()?,
            (None, None) => {
                self.describe(Pool::sized_for(&holders), frame_bytes).trust(trust).build()?
            }
        };
        if let Some(every) = self.sampling.filter(|_| self.pool.is_none()) {
            pool.set_sampling(every);
        }
        let cut = self.hot_list_len.zip(applied_len).and_then(|(asked, len)| cut(asked, len));
        let short = hot_lists.iter().zip(&rings).enumerate().filter_map(|(worker, lists)| {
            let (len, n) = ((*lists.0)?, (*lists.1)?);
            Holders::short_hot_list(len, n as u64).map(|text| format!("worker {worker}: {text}"))
        });
        let pieces = its.iter().filter(|_| self.fit).filter_map(|d| in_pieces(d, &pool));
        memory.warnings.extend(cut.into_iter().chain(short).chain(pieces));
        memory.pools.push(pool);
        memory.hot_lists.push(hot_lists);
        memory.holders.extend(Vec::from(holders));
        Ok(())
    }

    /// Returns the frame size in bytes: as requested, or enough for the longest packet of any port.
    fn frame_bytes(&self, demands: &[Demand]) -> Option<u32> {
        let room = |bytes| self.describe(Pool::builder(), bytes).data_room();
        let longest = demands.iter().map(|d| d.packet_max_bytes).max().unwrap_or(0);
        if !self.fit || room(self.frame_bytes) >= longest {
            return self.frame_bytes;
        }
        let mut sizes = (0..FRAME_POWER_MAX).map(|power| 1 << power);
        sizes.find(|&bytes| room(Some(bytes)) >= longest).or(Some(1 << FRAME_POWER_MAX))
    }

    /// Returns the builder of a pool with all requested settings but the number of frames.
    fn describe(&self, pool: PoolBuilder, frame_bytes: Option<u32>) -> PoolBuilder {
        let mut pool = pool.name("linerate").huge_pages(self.huge);
        pool = pool.data(self.data).init(self.init).return_to(self.return_to);
        if let Some(bytes) = frame_bytes {
            pool = pool.frame_size(bytes);
        }
        if let Some((frames, bytes)) = self.jumbo {
            pool = pool.jumbo(frames, bytes);
        }
        pool
    }
}

/// Returns `Exported` if any port shares the pool's frames with a peer that can write them.
fn trust(demands: &[&Demand]) -> Trust {
    let exported = demands.iter().any(|demand| demand.trust == Trust::Exported);
    if exported { Trust::Exported } else { Trust::Private }
}

/// Returns, for each worker, the frames of the pool in the rings that the worker serves; `None` for
/// a worker that does not use the pool.
fn rings(demands: &[Demand], pool: usize) -> Vec<Option<usize>> {
    let workers = demands.iter().flat_map(|d| &d.workers).map(|worker| worker + 1).max();
    let mut rings: Vec<Option<usize>> = vec![None; workers.unwrap_or(0)];
    for demand in demands.iter().filter(|demand| demand.pool == pool) {
        let of_queue = demand.rings.frames().div_ceil(demand.workers.len().max(1));
        for &worker in &demand.workers {
            let frames = rings[worker].get_or_insert(0);
            *frames = frames.saturating_add(of_queue);
        }
    }
    rings
}

/// Returns the length of the hot list that each of `workers` workers gets if `asked` frames are
/// requested.
///
/// A request for more frames than the whole pool is cut to the share that the `others` leave, if
/// this share is at least a budget. In all other cases the pool is too small, and is refused later.
fn applied(
    asked: usize,
    frames: Option<u64>,
    others: &Holders,
    workers: usize,
    sizes: Sizes,
) -> usize {
    let most = HOT_LIST.clamp(asked as u64) as usize;
    let Some(frames) = frames.filter(|frames| *frames < asked as u64) else { return most };
    // Thread caches reserve an eighth of the pool.
    let left = (frames - frames.div_ceil(8)).saturating_sub(others.sum());
    let each = left as usize / workers.max(1);
    if each < sizes.budget { most } else { most.min(each) }
}

fn cut(asked: usize, applied: usize) -> Option<String> {
    let why =
        if applied as u64 == HOT_LIST.max { "no list is longer" } else { "the pool has no more" };
    (applied < asked).then(|| format!("hot list: asked {asked}, applied {applied} ({why})"))
}

/// Returns a warning if frames should hold the longest packets of a port and are too small.
fn in_pieces(demand: &Demand, pool: &Pool) -> Option<String> {
    let (longest, room) = (demand.packet_max_bytes, pool.data_room().max(pool.jumbo_room()));
    let framed = pool.data_from() == Data::Frames;
    (framed && longest > room).then(|| {
        format!(
            "{}: packets have up to {longest} bytes and a frame holds {room}: longer packets will use \
             several frames",
            demand.name
        )
    })
}

fn too_small(frames: u64, holders: &Holders) -> Error {
    let what = format!("a pool of {frames} frames cannot serve this engine");
    let fix = format!(
        "use {} frames, or omit the number (--pool-frames), so that the engine sizes the pool; or use \
         shorter batches, backlogs, rings or hot lists",
        holders.sum()
    );
    Error::new(Code::PoolTooSmall, what, holders.to_string()).fix(fix)
}

#[cfg(test)]
mod tests {
    use linerate_skb::Moved;

    use super::*;
    use crate::demand::Rings;
    use crate::ports;
    use crate::tx_batch::TxBatch;

    const SIZES: Sizes = Sizes { budget: 64, backlog: 256, tx_batch: TxBatch::Auto };

    fn port(worker: usize, packet_max_bytes: usize, ring_packets: usize) -> Demand {
        Demand {
            name: format!("port {worker}"),
            queues: 1,
            workers: vec![worker],
            packet_max_bytes,
            trust: Trust::Private,
            pool: 0,
            rings: Rings::Pair { name: None, packets: ring_packets },
            qdisc: Moved::default(),
            cuts_above: None,
            kept: false,
        }
    }

    fn get(asked: &MemoryConfig, demands: &[Demand]) -> Memory {
        asked.get(demands, SIZES).unwrap()
    }

    /// Returns the hot lists of the first pool.
    fn hot_lists(memory: &Memory) -> Vec<usize> {
        memory.hot_lists[0].iter().flatten().copied().collect()
    }

    fn sum(memory: &Memory) -> u64 {
        memory.holders.iter().map(|holder| holder.frames).sum()
    }

    #[test]
    fn a_pool_is_exported_if_any_port_shares_it_with_a_peer() {
        let mut demands = [port(0, 60, 0), port(0, 60, 0)];
        assert_eq!(get(&MemoryConfig::default(), &demands).pools[0].trust(), Trust::Private);
        demands[1].trust = Trust::Exported;
        for frames in [None, Some(1 << 14)] {
            let asked = MemoryConfig { frames, ..MemoryConfig::default() };
            assert_eq!(get(&asked, &demands).pools[0].trust(), Trust::Exported);
        }
    }

    #[test]
    fn wires_of_a_peer_have_a_pool_and_hot_lists_of_their_own() {
        let exported = Demand { trust: Trust::Exported, pool: 1, ..port(1, 60, 64) };
        let demands =
            [port(0, 60, 0), port(1, 60, 0), Demand { pool: 1, ..port(1, 60, 0) }, exported];
        let memory = get(&MemoryConfig::default(), &demands);
        let trusts: Vec<_> = memory.pools.iter().map(Pool::trust).collect();
        assert_eq!((trusts, memory.workers()), (vec![Trust::Private, Trust::Exported], 2));
        assert_eq!(memory.hot_lists, [[Some(1024); 2], [None, Some(1024)]]);
        let names = |worker| {
            let mems = memory.of_worker(worker).into_iter();
            mems.map(|mem| memory.pools.iter().position(|pool| pool == mem.pool()))
                .collect::<Vec<_>>()
        };
        assert_eq!([names(0), names(1)], [vec![Some(0)], vec![Some(0), Some(1)]]);
        assert_eq!([memory.place(0, 0), memory.place(0, 1), memory.place(1, 1)], [0, 0, 1]);
        let frames = memory.pools.iter().map(|pool| pool.frames() as u64).sum::<u64>();
        assert_eq!(frames, sum(&memory));
    }

    #[test]
    fn a_hot_list_is_as_long_as_the_rings_that_its_worker_serves() {
        let demands = [port(0, 60, 0), port(0, 0, 2048), port(1, 0, 2048), port(1, 0, 512)];
        let memory = get(&MemoryConfig::default(), &demands);
        assert_eq!((hot_lists(&memory), memory.warnings.len()), (vec![2048, 2560], 0));
        assert_eq!(memory.pools[0].frames() as u64, sum(&memory));
        let memory = get(&MemoryConfig::default(), &[port(0, 60, 256)]);
        assert_eq!(hot_lists(&memory), [1024]);
        // Two workers share the port's queues: each serves half of the rings, and each queue has a
        // backlog.
        let divided = Demand { workers: vec![0, 1], ..port(0, 60, 6000) };
        let memory = get(&MemoryConfig::default(), &[divided]);
        assert_eq!(hot_lists(&memory), [3000; 2]);
        let backlog = Holder { name: "port 0 backlog".into(), frames: 512 };
        assert!(memory.holders.contains(&backlog), "{:?}", memory.holders);
    }

    #[test]
    fn a_hot_list_shorter_than_its_rings_is_warned_about() {
        let asked = MemoryConfig { hot_list_len: Some(128), ..MemoryConfig::default() };
        let warnings = get(&asked, &[port(0, 60, 0), port(1, 60, 256)]).warnings;
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(warning.starts_with("worker 1: a hot list of 128 is shorter than"), "{warning}");
        // The request exceeds the longest possible list: it is cut to that length, with a warning.
        let warnings = get(&MemoryConfig::default(), &[port(0, 60, 1 << 17)]).warnings;
        assert!(warnings[0].contains("65536 is shorter than the 131072"), "{warnings:?}");
    }

    #[test]
    fn a_hot_list_shorter_than_the_rings_of_xdp_is_warned_about() {
        let texts = ["xdp:lo,queues=0,ring=256", "xdp:lo,queues=0,rx=512,tx=256"];
        let ports = ports::plan(ports::tests::named(&texts), &[]).unwrap();
        let demands = demand::demands(&ports, &[0, 0], &[vec![0], vec![1]]);
        let asked = MemoryConfig { hot_list_len: Some(1024), ..MemoryConfig::default() };
        let warnings = get(&asked, &demands).warnings;
        // The fill ring has twice as many as the receive ring.
        let text = "worker 1: a hot list of 1024 is shorter than the 1792 frames of the rings";
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(warning.starts_with(text), "{warning}");
        let memory = get(&MemoryConfig::default(), &demands);
        assert_eq!((hot_lists(&memory), memory.warnings.len()), (vec![1024, 1792], 0));
    }

    #[test]
    fn a_hot_list_longer_than_any_or_than_the_pool_is_cut_and_said_so() {
        let cut = |asked: &MemoryConfig, demands: &[Demand]| {
            let memory = get(asked, demands);
            (hot_lists(&memory), memory.warnings.concat())
        };
        let asked = MemoryConfig { hot_list_len: Some(70_000), ..MemoryConfig::default() };
        let text = "hot list: asked 70000, applied 65536 (no list is longer)".to_owned();
        assert_eq!(cut(&asked, &[port(0, 60, 0)]), (vec![65_536], text));
        // Two workers' batches and backlogs are 2 × (128 + 256), thread caches 256 of 2048.
        let asked = MemoryConfig { frames: Some(2048), hot_list_len: Some(2049), ..asked };
        let text = "hot list: asked 2049, applied 512 (the pool has no more)".to_owned();
        assert_eq!(cut(&asked, &[port(0, 60, 0), port(1, 60, 0)]), (vec![512; 2], text));
        // A list as long as the pool is not cut: the pool is refused as too small.
        let asked = MemoryConfig { hot_list_len: Some(2048), ..asked };
        let e = asked.get(&[port(0, 60, 0)], SIZES).unwrap_err();
        assert!(e.code == Code::PoolTooSmall && e.why.contains("hot list 2048"), "{e}");
        // A list is not cut to less than a batch.
        let asked = MemoryConfig { frames: Some(500), ..asked };
        let e = asked.get(&[port(0, 60, 0)], SIZES).unwrap_err();
        assert!(e.code == Code::PoolTooSmall && e.why.contains("hot list 2048"), "{e}");
    }

    #[test]
    fn frames_that_fit_are_of_the_longest_packets() {
        let fit = MemoryConfig { fit: true, ..MemoryConfig::default() };
        for (longest, frame_bytes) in [(60, 2048), (1792, 2048), (1793, 4096), (9000, 16_384)] {
            let memory = get(&fit, &[port(0, 60, 0), port(0, longest, 0)]);
            assert_eq!((memory.pools[0].frame_size(), memory.warnings.len()), (frame_bytes, 0));
        }
        let larger = MemoryConfig { frame_bytes: Some(4096), ..fit.clone() };
        assert_eq!(get(&larger, &[port(0, 60, 0)]).pools[0].frame_size(), 4096);
        let memory = get(&fit, &[port(0, 65_550, 0)]);
        assert_eq!(memory.pools[0].frame_size(), 65_536);
        let text = "port 0: packets have up to 65550 bytes and a frame holds 65280: longer";
        assert!(memory.warnings[0].starts_with(text), "{:?}", memory.warnings);
        // The system's allocator returns buffers of the requested length: no warning.
        let general = MemoryConfig { data: Data::General, ..fit };
        assert!(get(&general, &[port(0, 65_550, 0)]).warnings.is_empty());
    }

    #[test]
    fn frames_of_a_size_that_cannot_be_are_refused_with_the_range_of_sizes() {
        for bytes in [0, 256, 768, 3000, 1 << 17] {
            let asked = MemoryConfig { frame_bytes: Some(bytes), ..MemoryConfig::default() };
            let e = asked.get(&[port(0, 60, 0)], SIZES).unwrap_err();
            let text = format!("a frame of {bytes} bytes; it must be a power of two, 512 to 65536");
            assert_eq!((e.code, e.why), (Code::PoolSize, text));
        }
        let asked = MemoryConfig { frame_bytes: Some(512), ..MemoryConfig::default() };
        assert_eq!(get(&asked, &[port(0, 60, 0)]).pools[0].data_room(), 256);
    }

    #[test]
    fn the_pool_is_as_it_was_asked_for() {
        let asked = MemoryConfig {
            jumbo: Some((8, 16_384)),
            init: Init::AtFree,
            return_to: Return::Home,
            ..MemoryConfig::default()
        };
        let pool = get(&asked, &[port(0, 60, 0)]).pools.remove(0);
        assert_eq!(
            (pool.jumbo_frames(), pool.init(), pool.return_to()),
            (8, Init::AtFree, Return::Home)
        );
        let asked = MemoryConfig { data: Data::General, ..MemoryConfig::default() };
        assert_eq!(get(&asked, &[port(0, 60, 0)]).pools[0].data_from(), Data::General);
    }
}
