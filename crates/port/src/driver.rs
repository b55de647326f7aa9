//! The contract of a driver: a port's text becomes a plan once, and the plan says what it needs, is
//! examined, and is opened.
//!
//! ```text
//!   Spec ── Driver::parse ──► Plan ─┬─ needs ──► Needs    plain data: pools and wires are made by it
//!                                   └─ open ───► Opened   queues, and what they are
//! ```

use linerate_skb::{Pool, Result, Trust};
use linerate_sys::capability::Capabilities;

use crate::doctor::{Findings, Trial};
use crate::obtained::{Direction, Obtained};
use crate::queue::QueueOps;
use crate::spec::Spec;
use crate::wrap::toll::{Toll, Tolled};

/// The queues and the properties of an opened device.
pub struct Opened {
    /// Its queues.
    pub queues: Vec<Box<dyn QueueOps>>,
    /// The properties of the device as it was opened.
    pub obtained: Obtained,
}

impl Opened {
    /// Returns a device of one queue.
    #[must_use]
    pub fn single(queue: impl QueueOps + 'static, obtained: Obtained) -> Opened {
        Opened { queues: vec![Box::new(queue)], obtained }
    }

    /// Puts the price of register access around each queue, if there is one.
    #[must_use]
    pub fn tolled(mut self, toll: Option<Toll>) -> Opened {
        if let Some(toll) = toll {
            let around = |ops| Box::new(Tolled::new(ops, toll)) as Box<dyn QueueOps>;
            self.queues = self.queues.into_iter().map(around).collect();
        }
        self
    }
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("obtained", &self.obtained).finish_non_exhaustive()
    }
}

/// Facts that hold for every port of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DriverFlags {
    /// A port opens nothing by name: what stands behind the colon of its text is its first option.
    pub nameless: bool,
    /// A port is either read or written, as the flags `read` and `write` say.
    pub directed: bool,
    /// A port may be told by the flag `write` to take nothing in. An engine sets the flag where no wire
    /// would get what comes in.
    pub can_only_write: bool,
    /// A port is one of two ends that are opened by the same name in one process: they
    /// [meet](OpenContext::meet), and what one sends stays in the process.
    pub paired: bool,
    /// A port can come to an end without anything being wrong.
    pub ends: bool,
    /// A port makes numbered packets, and ends after `count=N` of them.
    pub generates: bool,
    /// The name `-` stands for the standard input or output.
    pub pipes: bool,
    /// Nobody wrote the bytes of packets that come by a port: they are what a frame of the pool held before. An engine
    /// joins such a port with none that has an `interface`.
    pub unwritten: bool,
    /// What is sent leaves by an interface of this machine.
    pub interface: bool,
}

/// The lines of a driver in the help of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DriverHelp {
    /// The text of a port, with its options: `tap:NAME`.
    pub usage: &'static str,
    /// Explains it, in lines of at most 76 characters.
    pub text: &'static str,
}

/// Requirements of a driver on the machine, which `doctor` checks without a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OnMachine {
    /// The text of a port that can be opened in a network namespace where `v0` and `v1` are the ends of a
    /// veth; empty if there is nothing to be tried.
    pub trial: &'static str,
    /// Options of a port that tries the link of an interface and takes no one's traffic. With them, an
    /// interface's name alone stands for such a port; trying it may take the link down, and a neighbour can
    /// be asked. Empty if no link is tried.
    pub link_trial: &'static str,
    /// Versions of Linux that ports make use of, each with what an older one lacks.
    pub kernels: &'static [((u32, u32), &'static str)],
}

/// Reads the texts of ports of one kind.
pub trait Driver: Sync {
    /// Returns what stands before the colon of a port text.
    fn name(&self) -> &'static str;

    /// Returns the driver's lines in the help of a command.
    fn help(&self) -> DriverHelp {
        DriverHelp { usage: self.name(), text: "" }
    }

    /// Returns what holds for every port of this driver.
    fn flags(&self) -> DriverFlags {
        DriverFlags::default()
    }

    /// Returns what a machine is to have for ports of this driver.
    fn on_machine(&self) -> OnMachine {
        OnMachine::default()
    }

    /// Returns the texts of two ports that meet at `place`, each in a process of its own: one that listens, and
    /// one whose packets the first sees where they lie. `None` if ports reach no other process.
    fn between_processes(&self, _place: &str) -> Option<[String; 2]> {
        None
    }

    /// Reads `spec`, all of whose options it takes or refuses ([`Spec::finish`]); opens nothing.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX`, with what would be right.
    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>>;
}

/// A port that has been read and is not open yet.
pub trait Plan {
    /// Returns what the port asks of others, as far as that can be known before it is open.
    ///
    /// # Errors
    /// As [`Plan::open`], if it cannot be known.
    fn needs(&self) -> Result<Needs>;

    /// Opens the device; its queues receive into the context's pool.
    ///
    /// A device that reads or writes frames itself needs them in the pool's umem. Its driver
    /// refuses a pool whose data is the system allocator's
    /// ([`Data::General`](linerate_skb::Data::General)) with `E-UNSUPPORTED`; one that copies takes
    /// any pool.
    ///
    /// # Errors
    /// What, why and what to do; nothing is left behind.
    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened>;

    /// Returns a plan of the same port that copies, so that its pool's frames stay private. It is asked for where
    /// [`Needs::trust`] is exported, and a stage reads packets in place.
    ///
    /// # Errors
    /// The text that would let the port copy, or the port to use instead.
    fn by_copies(&self) -> std::result::Result<Box<dyn Plan>, &'static str> {
        Err("use a port that copies")
    }

    /// Returns what opening the port changes on interfaces, until it is closed: nothing is changed before that is known.
    fn changes(&self) -> Vec<Change> {
        Vec::new()
    }

    /// Looks whether the port of `spec` can be opened here and how well, going as far as `how` says, and
    /// leaves everything as it was. A port that has nothing to say is tried by opening it.
    fn examine(&self, _spec: &Spec, _how: Trial, _found: &mut Findings) {}
}

/// A setting of an interface that a port changes while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The checksum offload of the interface of that name, which is on, is turned off.
    ChecksumOffload(String),
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::ChecksumOffload(name) => {
                write!(f, "the checksum offload of {name} is turned off")
            }
        }
    }
}

/// Requirements of a port on memory, workers, directions and privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Queues that it will have at least: an engine deals them out to workers before it is open.
    pub queues: usize,
    /// Largest packet it may hand over, in bytes; a pool is sized by it before the device is open.
    pub packet_max_bytes: usize,
    /// Frames of the pool that the device's own rings can hold, over all its queues; hot lists and
    /// the pool are sized by it. None for a driver that copies: its rings are not of the pool. Two
    /// ends of a pair say the same: the packets of both ways.
    pub ring_frames: usize,
    /// Writers of the frames of a pool that is made for this port. A driver that shares frames with a peer
    /// sets it; all others leave the frames private.
    pub trust: Trust,
    /// The way packets can go, as far as the text says it.
    pub direction: Direction,
    /// Capabilities that opening the port takes.
    pub capabilities: Capabilities,
}

impl Default for Needs {
    /// Returns the needs of a port of one queue, both ways, that asks for nothing else.
    fn default() -> Needs {
        Needs {
            queues: 1,
            packet_max_bytes: 0,
            ring_frames: 0,
            trust: Trust::default(),
            direction: Direction::default(),
            capabilities: Capabilities::default(),
        }
    }
}

/// Context in which ports are opened: the pool that they receive into, and the second ends of
/// pairs, which wait to be opened.
#[derive(Debug)]
pub struct OpenContext<'a> {
    pool: &'a Pool,
    /// Second ends, by driver and name.
    waiting: Vec<(&'static str, String, Opened)>,
}

impl<'a> OpenContext<'a> {
    /// Returns a context in which no end waits for its other end.
    #[must_use]
    pub fn new(pool: &'a Pool) -> OpenContext<'a> {
        OpenContext { pool, waiting: Vec::new() }
    }

    /// Sets the pool that the queues of ports opened from now on receive into.
    pub fn set_pool(&mut self, pool: &'a Pool) {
        self.pool = pool;
    }

    /// Returns the pool that queues receive into.
    #[must_use]
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// Returns one end of a pair. Who asks first for `name` has both made and gets one; who asks next
    /// gets the other.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn meet(
        &mut self,
        driver: &'static str,
        name: &str,
        make: impl FnOnce(&Pool) -> Result<(Opened, Opened)>,
    ) -> Result<Opened> {
        let is_other = |(of, called, _): &(&str, String, Opened)| *of == driver && called == name;
        if let Some(at) = self.waiting.iter().position(is_other) {
            return Ok(self.waiting.remove(at).2);
        }
        let (first, second) = make(self.pool)?;
        self.waiting.push((driver, name.to_owned(), second));
        Ok(first)
    }
}
