//! A kernel device before the fabric: a thread sends into a veth pair or a card, and AF_XDP
//! receives at the other end.
//!
//! ```text
//!  outside, on its own CPU                inside, on the measured CPU
//!   gen ─► packet:w0 ══ veth, or a cable ═► xdp:w1, ring ─► [blocks] ─► memif ═► another process
//!                                            none posted, or none taken: missed, by cause
//! ```
//!
//! The ends of a veth pair are in namespaces without a name, cards stay where they are. The device
//! writes into frames whatever the side: with general buffers a stage then moves each packet into a
//! block of the allocator's, as a driver does that copies out of its ring.

use std::io;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use linerate_datapath::{Engine, EngineBuilder, Stage, Stats, Turn, Worker};
use linerate_skb::{Batch, Data, Local, Pool};
use linerate_sys::netif::Interface;
use linerate_sys::netns::Netns;
use linerate_sys::rtnl::HostUse;

use super::beyond::Beyond;
use super::config::{Cards, Config, Size};
use super::path::{Gauge, MEET, apart, tuned};
use super::turning::{Beat, Done, Receiving, Turning};
use crate::scenario::crew::{Crew, Duty};
use crate::scenario::host::wait_for_carrier;
use crate::settings::wrong;
use crate::{Code, Error, Result};

/// Frames of the pool of the sending engine.
const OUTSIDE_FRAMES: u32 = 2048;

/// The pairs of cards that links of this process use.
static USED: Mutex<Vec<Cards>> = Mutex::new(Vec::new());

/// A veth pair between two namespaces, removed with this value, or a pair of cards; and the thread
/// that keeps the other process alive.
pub(super) struct Link {
    cards: Cards,
    /// The namespaces of a veth pair: the sender's and the receiver's.
    apart: Option<[Netns; 2]>,
    /// A sender that keeps the thread alive; dropping it ends the thread.
    _keeps: Option<Sender<()>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.apart.is_none() {
            let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
            used.retain(|cards| *cards != self.cards);
        }
    }
}

impl Link {
    /// Makes a veth pair and its namespaces, or takes the first of `cards` that no other link uses.
    ///
    /// # Errors
    /// `E-PERM` without the privilege, `E-UNSUPPORTED` without `ip` or without veth, `E-BUSY` if all
    /// cards are used.
    pub fn new(cards: &[Cards]) -> Result<Link> {
        if !cards.is_empty() {
            return Link::of_cards(cards);
        }
        let (outside, inside) = (Netns::new()?, Netns::new()?);
        outside.quiet()?;
        inside.quiet()?;
        let to = inside.path();
        outside.ip(&format!("link add dev w0 type veth peer name w1 netns {to}"))?;
        outside.ip("link set dev w0 up")?;
        inside.ip("link set dev w1 up")?;
        wait_for_carrier(&outside, "w0")?;
        wait_for_carrier(&inside, "w1")?;
        let cards = Cards { sender: "w0".into(), receiver: "w1".into() };
        Ok(Link { cards, apart: Some([outside, inside]), _keeps: None })
    }

    fn of_cards(all: &[Cards]) -> Result<Link> {
        let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cards) = all.iter().find(|cards| !used.contains(cards)) else {
            let why = format!(
                "all {} pairs of cards are used: a side, the other side and the control need one each",
                all.len()
            );
            return Err(Error::new(Code::Busy, "cannot open cards", why).fix("name three pairs"));
        };
        used.push(cards.clone());
        Ok(Link { cards: cards.clone(), apart: None, _keeps: None })
    }

    /// Returns true if the link is a veth pair.
    pub fn is_veth(&self) -> bool {
        self.apart.is_some()
    }

    /// Runs `there` where the end number `end` is: 0 is the sender's, 1 the receiver's.
    fn run<T: Send>(&self, end: usize, there: impl FnOnce() -> T + Send) -> Result<T> {
        match self.apart.as_ref().map(|ends| &ends[end]) {
            Some(netns) => Ok(netns.run(there)?),
            None => Ok(there()),
        }
    }

    /// Starts the other process inside the namespace, where the engine finds its socket: an
    /// abstract name is valid in one namespace only. The kernel ends the process together with the
    /// thread that started it, so that thread lives as long as the link.
    pub fn start(
        &mut self,
        start: impl FnOnce() -> Result<Beyond> + Send + 'static,
    ) -> Result<Beyond> {
        let (keeps, kept) = channel::<()>();
        let (started, starting) = sync_channel(1);
        let body = move || {
            let _ = started.send(start());
            let _ = kept.recv();
        };
        match &self.apart {
            Some([_, inside]) => drop(inside.spawn("lab keeper", body)?),
            None => drop(Builder::new().name("lab keeper".into()).spawn(body)?),
        }
        self._keeps = Some(keeps);
        let gone = |_| Error::new(Code::System, "cannot run `engine`", "its keeper has ended");
        starting.recv().map_err(gone)?
    }
}

/// Checks that each interface exists and is not used by the host, whose packets AF_XDP would take.
///
/// # Errors
/// `E-EXPERIMENT` for an interface that the host uses; that of a missing one.
pub(super) fn check(cards: &[Cards]) -> Result<()> {
    for name in cards.iter().flat_map(|cards| [&cards.sender, &cards.receiver]) {
        if let Some(used) = HostUse::of(&Interface::open(name)?)? {
            let why =
                format!("the host itself uses {name} ({used}), and its packets would be taken");
            return Err(Error::new(Code::Experiment, "cannot use cards", why)
                .fix("name interfaces without addresses and routes"));
        }
    }
    Ok(())
}

/// Sets up the measured engine, and the engine that sends to it.
pub(super) fn build(
    config: &Config,
    cpus: &[usize],
    beyond: &Beyond,
    link: &Link,
) -> Result<(Crew<Duration, Done>, Gauge)> {
    let &[first, second] = cpus else {
        return Err(Error::new(Code::Cpu, "cannot run `engine`", "a device needs two CPUs"));
    };
    let Size::Bytes(bytes) = config.size else {
        return Err(wrong(0, "a device's packets have one size"));
    };
    let blocks = (config.data == Data::General).then(|| blocks(config)).transpose()?;
    let (far, of_stage) = (beyond.port(), blocks.clone());
    let Cards { sender, receiver } = &link.cards;
    let mut engine = link.run(1, || inside(config, receiver, far, of_stage).build())??;
    if !link.run(1, || engine.wait_until_up(MEET))? {
        return Err(apart(engine.stats().down()));
    }
    let outside = |bytes: u64| {
        Engine::builder()
            .port("gen", &format!("gen:,size={bytes}"))
            .port("w0", &format!("packet:{sender},vnet=off"))
            .wire("gen", "w0")
            .budget(config.budget)
            .backlog(config.budget)
            .pool_frames(OUTSIDE_FRAMES)
            .build()
    };
    let wire = link.run(0, || outside(bytes))??;
    let (stats, wire_stats) = (engine.stats(), wire.stats());
    let worker = |engine: Engine| {
        let none = || Error::new(Code::System, "cannot run `engine`", "it has no worker");
        engine.into_workers().into_iter().next().ok_or_else(none)
    };
    let turns = config.path.turn(config.budget).map_or(0, |turn| config.burst / turn);
    let beat = Beat::new(config.burst, config.pps)?;
    let source = worker(wire)?;
    let turning =
        Turning { source, receiver: None, turns, burst: config.burst, beat, shared: true };
    let mut crew = Crew::new();
    crew.hire("receiver", first, true, Box::new(Receiving(worker(engine)?)))?;
    crew.hire("wire", second, false, Box::new(Sending { turning, stats: wire_stats }))?;
    Ok((crew, Gauge::Device(stats, blocks.map(|pool| (pool, bytes)))))
}

/// Returns the builder of the measured engine. By default its worker polls until no packets are
/// left, so that the latencies contain only the path.
fn inside(config: &Config, card: &str, far: &str, blocks: Option<Pool>) -> EngineBuilder {
    let options = config.out.map(|out| out.options(config.out_len)).unwrap_or_default();
    let mut engine = tuned(Engine::builder(), config)
        .data(Data::Frames)
        .moderation(config.moderation)
        .port("w1", &format!("xdp:{card},all,ring={}", config.ring_len))
        .port("memif", &format!("{far},{options}"))
        .wire("w1", "memif");
    if let Some(pool) = blocks {
        let (hot_list, budget) = (config.hot_list, config.budget);
        engine = engine.stage(move |_| Blocks {
            mem: pool.local_named("blocks", hot_list),
            fresh: Batch::with_capacity(budget),
        });
    }
    engine
}

/// Returns the pool of the allocator's blocks: as many blocks as there are frames.
fn blocks(config: &Config) -> Result<Pool> {
    let pool = Pool::builder().frames(config.pool_frames.unwrap_or(32_768)).data(Data::General);
    let pool = pool.name("blocks").frame_size(config.frame_size).init(config.init);
    let pool = pool.return_to(config.return_to).build()?;
    pool.set_sampling(config.sample_every);
    Ok(pool)
}

/// Stage that moves each packet into a block of the system's allocator.
struct Blocks {
    mem: Local,
    fresh: Batch,
}

impl Stage for Blocks {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        self.mem.alloc(&mut self.fresh, batch.len());
        for (block, skb) in self.fresh.iter_mut().zip(batch.iter()) {
            let fits = block.put_slice(skb.data());
            debug_assert!(fits, "a block is as large as the frame in which the packet arrived");
        }
        batch.clear();
        self.fresh.move_to(batch, self.fresh.len());
    }
}

/// The duty of the sending thread: the packets that it has sent count as offered.
struct Sending {
    turning: Turning,
    stats: Stats,
}

impl Sending {
    fn sent(&self) -> u64 {
        self.stats.ports().iter().map(|port| port.counts.tx_packets).sum()
    }
}

impl Duty<Duration, Done> for Sending {
    fn run(&mut self, time: Duration) -> io::Result<Done> {
        let before = self.sent();
        let done = self.turning.run(time)?;
        // Leave out the sleeps of the sending thread, which are not a cost of the side.
        let Done { due, late_ns, .. } = done;
        let offered = self.sent().saturating_sub(before);
        Ok(Done { due, late_ns, offered, ..Done::default() })
    }

    fn end(self: Box<Self>) -> Vec<Worker> {
        Box::new(self.turning).end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_that_the_host_uses_or_that_is_not_there_is_refused() {
        let pair = |sender: &str| [Cards { sender: sender.into(), receiver: "none-0".into() }];
        let e = check(&pair("lo")).unwrap_err();
        assert!(e.why.starts_with("the host itself uses lo"), "{e}");
        let e = check(&pair("none-1")).unwrap_err();
        assert_eq!(e.code, Code::NoDevice, "{e}");
    }

    #[test]
    fn a_pair_of_cards_belongs_to_one_link_at_a_time() {
        let pair = |sender: &str| Cards { sender: sender.into(), receiver: "in".into() };
        let all = [pair("test0"), pair("test1")];
        let first = Link::new(&all).unwrap();
        let second = Link::new(&all).unwrap();
        assert_eq!((&first.cards, &second.cards), (&all[0], &all[1]));
        assert!(!first.is_veth());
        let refused = Link::new(&all).err().unwrap();
        assert_eq!(refused.code, Code::Busy);
        drop(first);
        assert_eq!(Link::new(&all).unwrap().cards, all[0]);
    }
}
