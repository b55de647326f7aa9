//! The description of an engine: ports, wires, stages and settings.

use linerate_port::{Driver, Moderation, QueueOps, Registry, Result};
use linerate_skb::{Data, Huge, Init, Pool, Return};

use crate::knob::{BACKLOG, BUDGET};
use crate::memory::MemoryConfig;
use crate::plan::Sizes;
use crate::stage::{Maker, Stage, StageContext};
use crate::steer::Steering;
use crate::tx_batch::TxBatch;
use crate::wrapping::Around;

/// Describes an engine: its ports, wires, stages and settings. It can move to another thread and be
/// built there.
pub struct EngineBuilder {
    pub(super) drivers: Registry,
    pub(super) ports: Vec<(String, String)>,
    pub(super) wires: Vec<(String, String)>,
    pub(super) steerings: Vec<Steering>,
    pub(super) beside: Vec<(String, String)>,
    /// Names of the ports that the program serves itself.
    pub(super) kept: Vec<String>,
    pub(super) wraps: Vec<(String, Around)>,
    /// Makes each stage; true if the stage also runs at divisions.
    pub(super) makers: Vec<(Maker, bool)>,
    /// True if all stages can work on packets that a peer may write.
    pub(super) reads_exported: bool,
    pub(super) sizes: Sizes,
    pub(super) moderation: Moderation,
    pub(super) memory: MemoryConfig,
    pub(super) workers: Option<usize>,
    pub(super) cpus: Vec<usize>,
}

impl EngineBuilder {
    pub(super) fn new() -> EngineBuilder {
        EngineBuilder {
            drivers: Registry::default(),
            ports: Vec::new(),
            wires: Vec::new(),
            steerings: Vec::new(),
            beside: Vec::new(),
            kept: Vec::new(),
            wraps: Vec::new(),
            makers: Vec::new(),
            reads_exported: true,
            sizes: Sizes {
                budget: BUDGET.default as usize,
                backlog: BACKLOG.default as usize,
                tx_batch: TxBatch::Auto,
            },
            moderation: Moderation::default(),
            memory: MemoryConfig::default(),
            workers: None,
            cpus: Vec::new(),
        }
    }

    /// Adds a driver that port texts can name; it replaces a driver of the same name.
    #[must_use]
    pub fn driver(mut self, driver: &'static dyn Driver) -> Self {
        self.drivers.add(driver);
        self
    }

    /// Adds a port: `name` is used by wires, stages and reports, `text` is `driver:arg[,k=v]`.
    #[must_use]
    pub fn port(mut self, name: &str, text: &str) -> Self {
        self.ports.push((name.into(), text.into()));
        self
    }

    /// Adds a wire: packets received by one end are sent by the other, in both directions if the
    /// ports can.
    ///
    /// A capture on the left is read; on the right, or on no wire, it is written. One that the
    /// program keeps is read, unless its text says `write`.
    #[must_use]
    pub fn wire(mut self, left: &str, right: &str) -> Self {
        self.wires.push((left.into(), right.into()));
        self
    }

    /// Adds a wire that divides a device with one queue among several ports, which are rings to
    /// other workers. A flow's packets from the device go to one of these ports; packets from all
    /// of these ports go to the device. The device waits until all of them have room.
    ///
    /// It is the last stage on its worker; divisions have the first workers. The handle moves flows
    /// later.
    #[must_use]
    pub fn steer(mut self, steering: &Steering) -> Self {
        self.steerings.push(steering.clone());
        self
    }

    /// Has `port`, which is on no wire, served by the workers of `other`, so that stages there can
    /// send to it ([`Turn::send`](crate::Turn::send)): a capture of what they drop, say. Other
    /// ports on no wire belong to the first worker. `other` must not be beside a port itself.
    ///
    /// If several workers serve the wire of `other`, queue i of `port` goes to worker i of them
    /// (`null:,queues=2`), and ports of one queue go to them in turn, in the order in which they
    /// were added. A stage takes the one that its worker has:
    /// `(0..2).find_map(|i| cx.find(&format!("drops{i}")))`.
    ///
    /// ```
    /// # use linerate_datapath as linerate;
    /// use linerate::Engine;
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let engine = Engine::builder()
    ///     .port("a", "null:").port("b", "null:").port("c", "null:").port("d", "null:")
    ///     .wire("a", "b").wire("c", "d")
    ///     // The second worker has a sink of its own.
    ///     .port("drops", "sink:blind").beside("drops", "c")
    ///     .build()?;
    /// # drop(engine);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn beside(mut self, port: &str, other: &str) -> Self {
        self.beside.push((port.into(), other.into()));
        self
    }

    /// Keeps a port for the program, which serves it by a thread of its own: the port is opened
    /// with the others, in their memory, and no worker serves it. It is on no wire.
    /// [`Engine::take`](crate::Engine::take) returns its queues.
    ///
    /// [`Stats::ports`](crate::Stats::ports), [`Stopped::ports`](crate::Stopped::ports) and
    /// [`Engine::wait_until_up`](crate::Engine::wait_until_up) include every port that a worker
    /// serves, and not this one: the program reads its counters and its health from the queues.
    ///
    /// With the other end of a ring, a program receives what a worker passes on, and sends through
    /// it, without a copy:
    ///
    /// ```
    /// # mod linerate { pub use linerate_datapath::*; pub use linerate_skb::Batch; }
    /// use linerate::{Batch, Engine};
    /// # use std::time::Duration;
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let mut engine = Engine::builder()
    ///     .port("in", "gen:,count=1k")
    ///     .port("near", "ring:app").port("app", "ring:app")
    ///     .wire("in", "near")
    ///     .keep("app")
    ///     .build()?;
    /// let mut app = engine.take("app").remove(0);
    /// let running = engine.start()?;
    /// let (mut batch, mut packets) = (Batch::with_capacity(64), 0);
    /// while packets < 1000 && app.wait(Some(Duration::from_secs(10)))? {
    ///     packets += app.rx(&mut batch);
    ///     batch.clear();
    /// }
    /// # assert_eq!(packets, 1000);
    /// # drop(app);
    /// # assert!(running.wait(Duration::from_secs(10))?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn keep(mut self, port: &str) -> Self {
        self.kept.push(port.into());
        self
    }

    /// Wraps each queue of a port when the port is opened: in a tee, faults, or a
    /// [`Layer`](linerate_port::wrap::Layer) of the program's own. The last wrapper added is
    /// nearest to the worker. The program keeps its own handle, such as a
    /// [`Tee`](linerate_port::wrap::tee::Tee), for control while the engine runs.
    ///
    /// A wrapper that withholds packets keeps their frames, for which the default size of the pool
    /// has no room: set [`EngineBuilder::pool_frames`] to the sum of
    /// [`Engine::holders`](crate::Engine::holders) and these. Faults withhold up to 256 packets
    /// each way of each queue, or the number of
    /// [`Plan::hold_packets`](linerate_port::wrap::fault::Plan::hold_packets).
    ///
    /// Shape:  `wrap` gets a queue and its number, and returns what the worker has in its place.
    /// Errors: those of `wrap` are those of [`EngineBuilder::build`].
    /// Cost:   what the wrapper costs, and one dynamic call a batch.
    ///
    /// ```
    /// # mod linerate { pub use linerate_datapath::*; pub use linerate_port::wrap; }
    /// use linerate::Engine;
    /// use linerate::wrap::tee::{Limits, Tee};
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let tee = Tee::new(Limits::default())?;
    /// let on_out = tee.clone();
    /// let engine = Engine::builder()
    ///     .port("in", "gen:,count=1k")
    ///     .port("out", "sink:")
    ///     .wire("in", "out")
    ///     .wrap("out", move |ops, i| on_out.wrap(ops, &format!("out/{i}")))
    ///     .build()?;
    /// let running = engine.start()?;
    /// // Later, on a thread that may wait for a disk:
    /// let mut writer = tee.start(std::io::sink())?;
    /// writer.write_pending()?;
    /// let packets = writer.finish()?;
    /// # assert!(packets <= 1000);
    /// # drop(running);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn wrap(
        mut self,
        port: &str,
        wrap: impl FnMut(Box<dyn QueueOps>, usize) -> Result<Box<dyn QueueOps>> + Send + 'static,
    ) -> Self {
        self.wraps.push((port.into(), Box::new(wrap)));
        self
    }

    /// Adds a stage to the path of every packet, on all wires and in both directions
    /// ([`Turn::port`](crate::Turn::port) returns the port that received the batch); `make` is
    /// called once for each worker. A packet that passes several wires, over rings, passes the
    /// stage on each of them; a division ([`EngineBuilder::steer`]) is none of them, unless the
    /// stage [asks for it](Stage::runs_at_division). The stage gets no packet that a peer may
    /// write, unless its type [declares](Stage::reads_exported) that it can process such packets.
    #[must_use]
    pub fn stage<S: Stage + 'static>(
        mut self,
        mut make: impl FnMut(&mut StageContext<'_>) -> S + Send + 'static,
    ) -> Self {
        self.reads_exported &= S::reads_exported();
        let maker: Maker = Box::new(move |cx| Box::new(make(cx)));
        self.makers.push((maker, S::runs_at_division()));
        self
    }

    /// Sets the most packets received from one queue in one turn, 1 to 1024.
    #[must_use]
    pub fn budget(mut self, packets: usize) -> Self {
        self.sizes.budget = BUDGET.clamp(packets as u64) as usize;
        self
    }

    /// Sets the largest number of workers, each of which gets a thread when the engine starts; the
    /// default is the number of wires, or of the CPUs given with [`EngineBuilder::cpus`]. 0 counts
    /// as 1.
    ///
    /// Fewer than wires serve several wires each. More divide them by queue: what comes by queue
    /// `i` of one end leaves by queue `i` of the other, on one worker, in order. The device decides
    /// which flow comes by which queue, and the ways back of a flow may be on another worker.
    /// docs/placement.md.
    #[must_use]
    pub fn workers(mut self, most: usize) -> Self {
        self.workers = Some(most);
        self
    }

    /// Sets the moderation, which decides when a port is polled again, each number to the nearest
    /// that its knob allows; ports with `moderation=` in their texts keep their own. The default is
    /// `adaptive`, with at most 250 µs for 99 of 100 packets.
    ///
    /// A packet that comes alone after quiet is never held, unless another queue of its worker is.
    /// It can be changed while packets pass ([`Running::control`](crate::Running::control)).
    /// docs/moderation.md says how to choose.
    #[must_use]
    pub fn moderation(mut self, mode: Moderation) -> Self {
        self.moderation = mode.clamped();
        self
    }

    /// Sets how many packets may wait for a port's transmit ring: at least a budget, at most 65536.
    #[must_use]
    pub fn backlog(mut self, packets: usize) -> Self {
        self.sizes.backlog = BACKLOG.clamp(packets as u64) as usize;
        self
    }

    /// Sets the most packets for one doorbell of a device; ports with `tx_batch=` in their texts
    /// keep their own. By default all waiting packets get one doorbell, in parts of 256 KiB
    /// ([`TxBatch::Auto`]); with 1 each packet gets a doorbell.
    ///
    /// It never waits for packets, and can be changed while packets pass
    /// ([`Running::control`](crate::Running::control)). docs/howto-batching.md says how to choose.
    #[must_use]
    pub fn tx_batch(mut self, cap: TxBatch) -> Self {
        self.sizes.tx_batch = cap.clamped();
        self
    }

    /// Sets the length of each worker's hot list, in frames, at most 65536; 0 turns it off.
    ///
    /// By default the list is as long as the rings that the worker serves, and at least 1024. A
    /// shorter list causes a warning ([`Engine::warnings`](crate::Engine::warnings)).
    #[must_use]
    pub fn hot_list_len(mut self, frames: usize) -> Self {
        self.memory.hot_list_len = Some(frames);
        self
    }

    /// Uses the program's own pool for all ports, instead of creating one.
    ///
    /// If a peer may write it ([`Trust::Exported`](linerate_skb::Trust)), the peer can write the
    /// packets of all wires. An engine's own pools keep them apart.
    ///
    /// The builder's settings of frames, policies and sampling are for a pool that the engine
    /// makes; they do not change this one.
    #[must_use]
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.memory.pool = Some(pool.clone());
        self
    }

    /// Sets the number of frames of the pool; the default is the sum over the pool's holders. If
    /// wires to a peer that can write their packets have [a pool of their
    /// own](crate::Stats::pools), each pool gets this number.
    #[must_use]
    pub fn pool_frames(mut self, frames: u32) -> Self {
        self.memory.frames = Some(frames);
        self
    }

    /// Sets the size of a frame in bytes, 256 bytes of headroom included: a power of two from 512
    /// to 65536, by default 2048.
    #[must_use]
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.memory.frame_bytes = Some(bytes);
        self
    }

    /// Adds frames of a second class, for packets longer than an ordinary frame: `bytes` is a power
    /// of two, such as 16384 for frames of 9000 bytes. The default is none.
    #[must_use]
    pub fn jumbo(mut self, frames: u32, bytes: u32) -> Self {
        self.memory.jumbo = Some((frames, bytes));
        self
    }

    /// Makes frames as large as the longest packet of any port, up to 64 KiB, so that every packet
    /// is in one frame. There is a warning for longer packets.
    ///
    /// It trades memory for simplicity: a small packet takes as much as the longest. The pool is
    /// made once, before anything runs, and no piece is allocated later.
    ///
    /// Source: post 000, of NetWare, which "always created ECB's (Event Control Blocks) at the max
    /// size of the network" adapter.
    #[must_use]
    pub fn fit_packets(mut self, fit: bool) -> Self {
        self.memory.fit = fit;
        self
    }

    /// Sets the memory for packets' bytes: frames of the pool by default, or the system's
    /// allocator.
    #[must_use]
    pub fn data(mut self, data: Data) -> Self {
        self.memory.data = data;
        self
    }

    /// Sets the time at which a packet's metadata is initialised.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.memory.init = init;
        self
    }

    /// Sets the list to which a frame returns when it is freed on another core than the one that
    /// allocated it.
    #[must_use]
    pub fn return_to(mut self, return_to: Return) -> Self {
        self.memory.return_to = return_to;
        self
    }

    /// Sets the use of huge pages for the pool's memory.
    #[must_use]
    pub fn huge_pages(mut self, huge: Huge) -> Self {
        self.memory.huge = huge;
        self
    }

    /// Times every n-th call that allocates or frees, as [`Pool::set_sampling`] does; 0 times none.
    #[must_use]
    pub fn sampling(mut self, every: u32) -> Self {
        self.memory.sampling = Some(every);
        self
    }

    /// Sets the CPUs to which the workers' threads are pinned, in order; by default they are not
    /// pinned. If there are more CPUs than wires, the queues of a wire are divided among workers,
    /// as with [`EngineBuilder::workers`].
    #[must_use]
    pub fn cpus(mut self, cpus: &[usize]) -> Self {
        self.cpus = cpus.to_vec();
        self
    }
}

impl std::fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("ports", &self.ports)
            .field("wires", &self.wires)
            .finish_non_exhaustive()
    }
}
