//! The paths, built: an engine's workers or an adapter's two ends, each on its thread.

use std::time::Duration;

use linerate_datapath::{Builder, Engine, Stats};
use linerate_skb::Pool;

use super::adapter;
use super::beyond::Beyond;
use super::config::{Config, Kind, Size};
use super::turning::{Beat, Done, Receiving, Turning};
use crate::scenario::crew::{Crew, Duty};
use crate::{Code, Error, Result};

/// The longest time for two processes to agree.
pub(super) const MEET: Duration = Duration::from_secs(5);

/// The source of a path's readings.
pub(super) enum Gauge {
    /// An engine's.
    Engine(Stats),
    /// A loop of the lab's own: its pool, and how often it looked for packets.
    Pool(Pool, adapter::Polls),
}

impl Gauge {
    /// The pool of all its packets.
    pub fn pool(&self) -> &Pool {
        match self {
            Gauge::Engine(stats) => stats.pool(),
            Gauge::Pool(pool, _) => pool,
        }
    }
}

/// Sets up a side's path and its threads; nothing runs yet.
pub(super) fn build(
    config: &Config,
    cpus: &[usize],
    beyond: Option<&Beyond>,
) -> Result<(Crew<Duration, Done>, Gauge)> {
    match config.path {
        Kind::Null => engine(config, cpus, null(config)),
        Kind::Ring => engine(config, cpus, ring(config)),
        Kind::Adapter => adapter::build(config, cpus, beyond.map(Beyond::port)),
        Kind::Fabric => engine(config, cpus, fabric(config, beyond)),
    }
}

fn null(config: &Config) -> Builder {
    let text = format!("null:,size={}", size(config.size));
    Engine::builder().port("in", &text).port("out", &text).wire("in", "out")
}

fn ring(config: &Config) -> Builder {
    let ring = format!("ring:r,len={}", config.ring_len);
    let sink = if config.verify { "sink:" } else { "sink:,blind" };
    Engine::builder()
        .port("gen", &format!("gen:,size={}", size(config.size)))
        .port("r0", &ring)
        .port("r1", &ring)
        .port("sink", sink)
        .wire("gen", "r0")
        .wire("r1", "sink")
}

fn fabric(config: &Config, beyond: Option<&Beyond>) -> Builder {
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

/// Two processes that share no memory, and why, as the port says it.
pub(super) fn apart(said: Option<Error>) -> Error {
    let said = said.map_or("it does not answer".into(), |e| e.why);
    let why = format!("the process at the far side does not come to terms with this one: {said}");
    Error::new(Code::System, "cannot run `engine`", why)
}

fn engine(
    config: &Config,
    cpus: &[usize],
    builder: Builder,
) -> Result<(Crew<Duration, Done>, Gauge)> {
    let builder = builder
        .budget(config.budget)
        .backlog(config.budget)
        .hot_list_len(config.hot_list)
        .frame_size(config.frame_size)
        .data(config.data)
        .init(config.init)
        .return_to(config.return_to)
        .sampling(config.sample_every);
    let engine = match config.pool_frames {
        Some(frames) => builder.pool_frames(frames),
        None => builder,
    };
    let mut engine = engine.build()?;
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
