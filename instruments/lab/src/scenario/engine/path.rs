//! The paths, built: an engine's workers or an adapter's two ends, each on its thread.

use std::time::Duration;

use linerate_datapath::{Builder, Engine, Stats};
use linerate_skb::Pool;

use super::adapter;
use super::asked::{Asked, Kind, Size};
use super::beyond::Beyond;
use super::crew::{Crew, Duty};
use super::turning::{Beat, Receiving, Turning};
use crate::{Code, Error, Result};

/// How long two processes may take to come to terms.
pub(super) const MEET: Duration = Duration::from_secs(5);

/// What a path can be read by.
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
///
/// # Errors
/// What keeps its pool, ports or threads from being had.
pub(super) fn build(
    asked: &Asked,
    cpus: &[usize],
    beyond: Option<&Beyond>,
) -> Result<(Crew, Gauge)> {
    match asked.path {
        Kind::Null => engine(asked, cpus, null(asked)),
        Kind::Ring => engine(asked, cpus, ring(asked)),
        Kind::Adapter => adapter::build(asked, cpus, beyond.map(Beyond::port)),
        Kind::Fabric => engine(asked, cpus, fabric(asked, beyond)),
    }
}

fn null(asked: &Asked) -> Builder {
    let text = format!("null:,size={}", size(asked.size));
    Engine::builder().port("in", &text).port("out", &text).wire("in", "out")
}

fn ring(asked: &Asked) -> Builder {
    let ring = format!("ring:r,len={}", asked.ring_len);
    let sink = if asked.verify { "sink:" } else { "sink:,blind" };
    Engine::builder()
        .port("gen", &format!("gen:,size={}", size(asked.size)))
        .port("r0", &ring)
        .port("r1", &ring)
        .port("sink", sink)
        .wire("gen", "r0")
        .wire("r1", "sink")
}

fn fabric(asked: &Asked, beyond: Option<&Beyond>) -> Builder {
    let options = asked.out.map(|out| out.options(asked.out_len)).unwrap_or_default();
    let memif = format!("{},{options}", beyond.map_or("memif:", Beyond::port));
    Engine::builder()
        .port("gen", &format!("gen:,size={}", size(asked.size)))
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

fn engine(asked: &Asked, cpus: &[usize], builder: Builder) -> Result<(Crew, Gauge)> {
    let builder = builder
        .budget(asked.budget)
        .backlog(asked.budget)
        .hot_list_len(asked.hot_list)
        .frame_size(asked.frame_size)
        .data(asked.data)
        .init(asked.init)
        .return_to(asked.return_to)
        .sampling(asked.sample_every);
    let engine = match asked.pool_frames {
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
    let beat = Beat::new(asked.burst, asked.pps)?;
    let turns = asked.path.turn(asked.budget).map_or(0, |turn| asked.burst / turn);
    let shared = asked.threads == 2 || asked.path == Kind::Fabric;
    let receiver = workers.next();
    let mut crew = Crew::default();
    let mut hire = |role, cpu: usize, duty: Box<dyn Duty>| crew.hire(role, cpu, true, duty);
    match (receiver, cpus) {
        (Some(receiver), &[first, second]) if shared => {
            hire("receiver", first, Box::new(Receiving(receiver)))?;
            let source =
                Turning { source, receiver: None, turns, burst: asked.burst, beat, shared };
            hire("source", second, Box::new(source))?;
        }
        (receiver, &[first, ..]) => {
            let all = Turning { source, receiver, turns, burst: asked.burst, beat, shared };
            hire("worker", first, Box::new(all))?;
        }
        _ => return Err(Error::new(Code::Cpu, "cannot run `engine`", "there is no CPU for it")),
    }
    Ok((crew, Gauge::Engine(stats)))
}
