//! The paths of sides: an engine's workers or an adapter's two ends, each on its thread, with
//! readings before and after a window.

use std::sync::Arc;
use std::time::Duration;

use linerate_datapath::{Engine, EngineBuilder, Stats};
use linerate_skb::{Data, Ledger, Pool, PoolStats};

use super::beyond::Beyond;
use super::config::{Config, Kind, Size};
use super::irq::{Irq, Taken};
use super::turning::{Beat, Done, Receiving, Turning};
use super::{adapter, device};
use crate::scenario::crew::{Crew, Duty};
use crate::scenario::{Figure, figures, joined, pool_figures};
use crate::window::Window;
use crate::{Code, Error, Result};

/// The longest time for two processes to connect.
pub(super) const MEET: Duration = Duration::from_secs(5);

/// The source of a path's readings.
pub(super) enum Gauge {
    /// A path of the engine, with its statistics.
    Engine(Stats),
    /// An engine with a device, and the pool of blocks into which packets of the given length are
    /// moved.
    Device(Stats, Option<(Pool, u64)>),
    /// A loop of the lab, with its pool and its number of polls.
    Pool(Pool, adapter::Polls),
}

impl Gauge {
    /// Returns the pool of the path's packets.
    pub fn pool(&self) -> &Pool {
        match self {
            Gauge::Engine(stats) | Gauge::Device(stats, _) => stats.pool(),
            Gauge::Pool(pool, _) => pool,
        }
    }

    /// Returns the engine's statistics.
    pub fn engine(&self) -> Option<&Stats> {
        match self {
            Gauge::Engine(stats) | Gauge::Device(stats, _) => Some(stats),
            Gauge::Pool(..) => None,
        }
    }

    /// Returns the pool of the blocks into which packets are moved, and their length in bytes.
    fn blocks(&self) -> Option<&(Pool, u64)> {
        match self {
            Gauge::Device(_, blocks) => blocks.as_ref(),
            Gauge::Engine(_) | Gauge::Pool(..) => None,
        }
    }

    /// Returns true if packets' bytes come from the system's allocator.
    pub fn has_general(&self) -> bool {
        self.blocks().is_some() || self.pool().data_from() == Data::General
    }

    /// Returns the statistics of all pools of the path.
    pub fn memory(&self) -> PoolStats {
        let all = self.pool().stats();
        self.blocks().map_or_else(|| all.clone(), |(blocks, _)| all.clone().plus(&blocks.stats()))
    }

    /// Returns the ledger of the path's packets.
    pub fn ledger(&self) -> Ledger {
        let all = self.pool().ledger();
        match self.blocks() {
            Some((blocks, _)) => all.plus(&blocks.ledger()),
            None => all,
        }
    }
}

/// Sets up a side's path and its threads, without running it.
pub(super) fn build(
    config: &Config,
    cpus: &[usize],
    beyond: Option<&Beyond>,
    link: Option<&device::Link>,
    irq: Option<&Arc<Irq>>,
) -> Result<(Crew<Duration, Done>, Gauge)> {
    match config.path {
        Kind::Null => engine(config, cpus, null(config)),
        Kind::Ring => engine(config, cpus, ring(config, irq)),
        Kind::Adapter => adapter::build(config, cpus, beyond.map(Beyond::port), irq),
        Kind::Fabric => engine(config, cpus, fabric(config, beyond)),
        Kind::Device => match beyond.zip(link) {
            Some((beyond, link)) => device::build(config, cpus, beyond, link),
            None => Err(Error::new(Code::System, "cannot run `engine`", "it has no device")),
        },
    }
}

fn null(config: &Config) -> EngineBuilder {
    let text = format!("null:,size={}", size(config.size));
    Engine::builder().port("in", &text).port("out", &text).wire("in", "out")
}

fn ring(config: &Config, irq: Option<&Arc<Irq>>) -> EngineBuilder {
    let ring = format!("ring:r,len={}", config.ring_len);
    let sink = if config.verify { "sink:" } else { "sink:,blind" };
    let ports = Engine::builder()
        .port("gen", &format!("gen:,size={}", size(config.size)))
        .port("r0", &ring)
        .port("r1", &ring)
        .port("sink", sink)
        .wire("gen", "r0")
        .wire("r1", "sink");
    match irq {
        Some(irq) => irq.between_ports(ports, "r0", "r1"),
        None => ports,
    }
}

fn fabric(config: &Config, beyond: Option<&Beyond>) -> EngineBuilder {
    let options = config.out.map(|out| out.options(config.out_len)).unwrap_or_default();
    let memif = format!("{},{options}", beyond.map_or("memif:", Beyond::port));
    Engine::builder()
        .port("gen", &format!("gen:,size={}", size(config.size)))
        .port("memif", &memif)
        .wire("gen", "memif")
}

fn size(size: Size) -> String {
    match size {
        Size::Bytes(n) => n.to_string(),
        Size::Imix => "imix".into(),
    }
}

/// Returns the error of two processes that share no memory, with the port's reason.
pub(super) fn apart(said: Option<Error>) -> Error {
    let said = said.map_or("it does not answer".into(), |e| e.why);
    let why = format!("the receiving process did not connect to this one: {said}");
    Error::new(Code::System, "cannot run `engine`", why)
}

/// Returns the builder of an engine with a side's settings.
pub(super) fn tuned(builder: EngineBuilder, config: &Config) -> EngineBuilder {
    let builder = builder
        .budget(config.budget)
        .backlog(config.budget)
        .hot_list_len(config.hot_list)
        .frame_size(config.frame_size)
        .data(config.data)
        .init(config.init)
        .return_to(config.return_to)
        .sampling(config.sample_every);
    match config.pool_frames {
        Some(frames) => builder.pool_frames(frames),
        None => builder,
    }
}

fn engine(
    config: &Config,
    cpus: &[usize],
    builder: EngineBuilder,
) -> Result<(Crew<Duration, Done>, Gauge)> {
    let mut engine = tuned(builder, config).build()?;
    if !engine.wait_until_up(MEET) {
        return Err(apart(engine.stats().down()));
    }
    let stats = engine.stats();
    let mut workers = engine.into_workers().into_iter();
    let none = || Error::new(Code::System, "cannot run `engine`", "it has no worker");
    let source = workers.next().ok_or_else(none)?;
    let beat = Beat::new(config.burst, config.pps)?;
    let turns = config.path.turn(config.budget).map_or(0, |turn| config.burst / turn);
    let shared = config.threads == 2 || config.path == Kind::Fabric;
    let receiver = workers.next();
    let mut crew = Crew::new();
    let mut hire =
        |role, cpu: usize, duty: Box<dyn Duty<Duration, Done>>| crew.hire(role, cpu, true, duty);
    match (receiver, cpus) {
        (Some(receiver), &[first, second]) if shared => {
            hire("receiver", first, Box::new(Receiving(receiver)))?;
            let source =
                Turning { source, receiver: None, turns, burst: config.burst, beat, shared };
            hire("source", second, Box::new(source))?;
        }
        (receiver, &[first, ..]) => {
            let all = Turning { source, receiver, turns, burst: config.burst, beat, shared };
            hire("worker", first, Box::new(all))?;
        }
        _ => return Err(Error::new(Code::Cpu, "cannot run `engine`", "there is no CPU for it")),
    }
    Ok((crew, Gauge::Engine(stats)))
}

/// The figures of a window other than those of the pool and the ports.
const OWN: &[Figure] = figures! {
    "offered" "packets" "Packets that the source made, or the wire had.";
    "due" "packets" "Packets whose time had come; 0 without a rate.";
    "unsent" "packets" "Due and not offered: the path held them up, or the source was too slow.";
    "overruns" "packets" "Offered packets that were lost, by any of these causes.";
    "overruns_ring_full" "packets" "Lost: no buffer was posted, and the pool had frames.";
    "overruns_no_frame" "packets" "Lost: the pool had no frame to post.";
    "overruns_no_cpu" "packets" "Lost: the receive ring was full, and the receiver's thread waited for a CPU; an estimate, of an xdp port only.";
    "overruns_wire_late" "packets" "Lost, of bursts for which the wire's own thread was late.";
    "overruns_fabric_full" "packets" "Lost: the receiver had them, and the ring to the other process was full.";
    "late" "packets" "Packets, lost or not, of bursts for which the wire's own thread was late.";
    "late_ns" "ns" "The latest that a sleep for the next burst ended.";
    "buffer_ns" "ns" "`buffer_ticks`, by the rate of the ticks in this window.";
    "total_ticks" "TSC ticks" "CPU time of the measured threads, in ticks.";
    "asleep_ns" "ns" "How long threads slept, until they were on a CPU again.";
    "tick_hz" "ticks/s" "Rate of the ticks in this window.";
    "irqs_by_time" "irqs" "MODEL: interrupts of an adapter with `hold_usecs` that its time raised.";
    "irqs_by_frames" "irqs" "MODEL: those that `hold_frames` waiting packets raised.";
    "copied_bytes" "bytes" "Bytes of packets that ports of this process copied.";
    "far_packets" "packets" "Packets that the other process received, including those in flight at the end.";
    "far_verified" "packets" "Of these, those of which it checked every byte.";
    "far_lost" "packets" "Packets whose number it missed: lost once they had been numbered.";
    "far_corrupted" "packets" "Packets that differ from those sent; any of them makes the window void.";
    "far_copied_out" "packets" "Packets that the other process copied, to return their slots.";
    "far_cpu_ns" "ns" "CPU time of the other process, which does not count as a cost of the side.";
    "receipt_count" "packets" "Packets whose receipt latency is known.";
    "receipt_p50_ns" "ns" "From a packet's arrival, when the generator made its batch or the wire wrote it, until the other process looked at it, median; of every packet of a window, or, of more than 262,143, of every third, ninth and so on.";
    "receipt_p99_ns" "ns" "The same, 99th percentile.";
    "slowest_pct" "%" "The slowest tenth of a second at the far side, as a share of the mean: of windows of 0.2 s and more.";
};

/// All figures of a window.
pub(super) static FIGURES: [Figure; OWN.len() + pool_figures::FIGURES.len()] =
    joined(OWN, pool_figures::FIGURES);

/// The counts since the start.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pool: pool_figures::Reading,
    /// Packets sent by ports other than rings, and their bytes.
    packets: u64,
    bytes: u64,
    wakeups: u64,
    offered: u64,
    /// The number of polls of the lab's loop, and of empty polls.
    polls: [u64; 2],
    asleep_ns: u64,
    copied_bytes: u64,
    /// Packets lost before the engine: in total, for lack of room in the ring, of a frame, and
    /// of a CPU in time.
    missed: [u64; 4],
    irqs: Taken,
}

impl Reading {
    /// Reads the counts of a side between windows, while its threads wait.
    pub fn of(gauge: &Gauge, irq: Option<&Arc<Irq>>) -> Reading {
        let mut reading = Reading {
            pool: match gauge {
                Gauge::Engine(stats) => pool_figures::Reading::of(stats),
                Gauge::Device(stats, blocks) => {
                    let of_frames = pool_figures::Reading::of(stats);
                    let blocks =
                        blocks.as_ref().map(|(pool, _)| pool_figures::Reading::of_pool(pool));
                    match blocks {
                        Some(blocks) => of_frames.plus(&blocks),
                        None => of_frames,
                    }
                }
                Gauge::Pool(pool, _) => pool_figures::Reading::of_pool(pool),
            },
            packets: 0,
            bytes: 0,
            wakeups: 0,
            offered: 0,
            polls: [0; 2],
            asleep_ns: 0,
            copied_bytes: 0,
            missed: [0; 4],
            irqs: irq.map(|irq| irq.taken()).unwrap_or_default(),
        };
        match gauge {
            Gauge::Engine(stats) | Gauge::Device(stats, _) => {
                for port in reading.pool.ports() {
                    let (counts, driver) = (&port.counts, &port.driver_counts);
                    let of_port = [
                        counts.rx_missed,
                        driver.missed_ring_full,
                        driver.missed_no_frame,
                        driver.missed_no_cpu,
                    ];
                    reading.missed.iter_mut().zip(of_port).for_each(|(sum, n)| *sum += n);
                    reading.wakeups += port.counts.wakeups;
                    reading.copied_bytes += port.driver_counts.copied_bytes.unwrap_or(0);
                    if !port.flags.paired {
                        if matches!(gauge, Gauge::Engine(_)) {
                            reading.offered += port.counts.rx_packets;
                        }
                        reading.packets += port.counts.tx_packets;
                        reading.bytes += port.counts.tx_bytes;
                    }
                }
                reading.asleep_ns = stats.workers().iter().map(|worker| worker.asleep_ns).sum();
                if let Some((pool, bytes)) = gauge.blocks() {
                    reading.copied_bytes += pool.ledger().created * bytes;
                }
            }
            Gauge::Pool(_, polls) => {
                let counts = polls.counts();
                reading.polls = [counts.polls, counts.polls_empty];
                reading.wakeups = counts.wakeups;
            }
        }
        reading
    }

    /// Adds the activity since `before` to `window`, whose threads have been measured.
    pub fn since(&self, before: &Reading, done: &Done, tick_hz: f64, window: &mut Window) {
        let d = |now: u64, then: u64| now.saturating_sub(then);
        self.pool.since(&before.pool, window);
        window.packets = d(self.packets, before.packets) + done.packets;
        window.bytes = Some(d(self.bytes, before.bytes) + done.bytes);
        window.wakeups = Some(d(self.wakeups, before.wakeups));
        let cpu_ns = window.cpu_ns.unwrap_or(0) as f64;
        let [missed, ring_full, no_frame, no_cpu] =
            [0, 1, 2, 3].map(|i| d(self.missed[i], before.missed[i]));
        let overruns = missed + done.ring_full + done.no_frame + done.wire_late + done.fabric_full;
        let copied_bytes = d(self.copied_bytes, before.copied_bytes) + done.copied_bytes;
        let figure = |name: &str| window.figures.get(name).copied();
        // Add the counts of the lab's own loop to those of the engine's workers.
        let more = |name: &str, n: u64| figure(name).unwrap_or(0.0) + n as f64;
        let [polls, empty] = [0, 1].map(|i| d(self.polls[i], before.polls[i]));
        let offered = d(self.offered, before.offered) + done.offered;
        let mut own = vec![
            ("offered", offered as f64),
            ("due", done.due as f64),
            ("unsent", done.due.saturating_sub(offered) as f64),
            ("overruns", overruns as f64),
            ("overruns_ring_full", (done.ring_full + ring_full) as f64),
            ("overruns_no_frame", (done.no_frame + no_frame) as f64),
            ("overruns_no_cpu", no_cpu as f64),
            ("overruns_wire_late", done.wire_late as f64),
            ("overruns_fabric_full", done.fabric_full as f64),
            ("copied_bytes", copied_bytes as f64),
            ("irqs_by_time", d(self.irqs.by_time, before.irqs.by_time) as f64),
            ("irqs_by_frames", d(self.irqs.by_frames, before.irqs.by_frames) as f64),
            ("late", done.late as f64),
            ("late_ns", done.late_ns as f64),
            ("total_ticks", cpu_ns * tick_hz / 1e9),
            ("asleep_ns", (d(self.asleep_ns, before.asleep_ns) + done.asleep_ns) as f64),
            ("tick_hz", tick_hz),
            ("polls", more("polls", polls)),
            ("polls_empty", more("polls_empty", empty)),
            ("sleeps", more("sleeps", done.sleeps)),
        ];
        own.extend(figure("buffer_ticks").map(|ticks| ("buffer_ns", ticks * 1e9 / tick_hz)));
        window.figures.extend(own.into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
}
