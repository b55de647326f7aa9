//! The contract of a driver: it parses a port's text into a plan, and the plan reports its needs,
//! examines the port and opens it.
//!
//! ```text
//!   Spec ── Driver::parse ──► Plan ─┬─ needs ──► Needs    plain data: pools and wires are made by it
//!                                   └─ open ───► Opened   queues, and what they are
//! ```

use std::time::Duration;

use linerate_skb::{Pool, Result, Trust};
use linerate_sys::capability::Capabilities;
use linerate_sys::netif::{DeviceOffload, Interface, NapiHold};

use crate::doctor::{Findings, Trial};
use crate::moderation::Moderation;
use crate::obtained::{Direction, Obtained};
use crate::queue::QueueOps;
use crate::spec::Spec;
use crate::wrap::toll::{Toll, Tolled};

/// The queues and the properties of an opened device.
pub struct Opened {
    /// The queues of the device.
    pub queues: Vec<Box<dyn QueueOps>>,
    /// The properties of the opened device.
    pub obtained: Obtained,
}

impl Opened {
    /// Returns a device with one queue.
    #[must_use]
    pub fn single(queue: impl QueueOps + 'static, obtained: Obtained) -> Opened {
        Opened { queues: vec![Box::new(queue)], obtained }
    }

    /// Wraps each queue in a wrapper that adds the price of register access, if the port has one.
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

/// Properties that every port of a driver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DriverFlags {
    /// True if a port opens nothing by name: the text after its colon is its first option.
    pub nameless: bool,
    /// True if a port is either read or written, selected by its flags `read` and `write`.
    pub directed: bool,
    /// True if the flag `write` makes a port receive nothing. An engine sets the flag if no wire
    /// takes the packets that the port receives.
    pub can_only_write: bool,
    /// True if a port is one of two ends that one process opens by the same name:
    /// [`OpenContext::meet`] connects them, and packets between them stay in the process.
    pub paired: bool,
    /// True if a port can finish, such as at the end of a file.
    pub ends: bool,
    /// True if a port generates numbered packets and ends after `count=N` of them.
    pub generates: bool,
    /// True if the name `-` means the standard input or output.
    pub pipes: bool,
    /// True if a port leaves the bytes of its packets unwritten: they are the previous content of
    /// the frame. An engine does not join such a port with one that has an `interface`.
    pub unwritten: bool,
    /// True if a port sends through a network interface of this machine.
    pub interface: bool,
}

/// The lines of a driver in the help of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DriverHelp {
    /// The text of a port, with its options: `tap:NAME`.
    pub usage: &'static str,
    /// Help text of the port, in lines of at most 76 characters.
    pub text: &'static str,
}

/// Requirements of a driver on the machine, which `doctor` checks without opening a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OnMachine {
    /// The text of a port for a trial, to be opened in a network namespace where `v0` and `v1` are
    /// the ends of a veth; empty if a trial is impossible.
    pub trial: &'static str,
    /// Options of a port that tries the link of an interface and takes no traffic from others. A
    /// text that is only an interface's name gets these options; the trial may take the link down,
    /// and may send a request to a neighbour. Empty if the driver tries no link.
    pub link_trial: &'static str,
    /// Versions of Linux whose features ports use, each with what an older version lacks.
    pub kernels: &'static [((u32, u32), &'static str)],
}

/// A driver: parses the texts of ports of one kind.
pub trait Driver: Sync {
    /// Returns the driver's name, which stands before the colon of a port text.
    fn name(&self) -> &'static str;

    /// Returns the driver's lines in the help of a command.
    fn help(&self) -> DriverHelp {
        DriverHelp { usage: self.name(), text: "" }
    }

    /// Returns the properties that every port of this driver has.
    fn flags(&self) -> DriverFlags {
        DriverFlags::default()
    }

    /// Returns what a machine must provide for ports of this driver.
    fn on_machine(&self) -> OnMachine {
        OnMachine::default()
    }

    /// Returns the texts of two ports that connect two processes at `place`: the first port
    /// listens, and reads the packets of the second without a copy. `None` if ports reach no other
    /// process.
    fn between_processes(&self, _place: &str) -> Option<[String; 2]> {
        None
    }

    /// Parses `spec`, and refuses options that it does not know ([`Spec::finish`]); opens nothing.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX`, with what would be right.
    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>>;
}

/// A parsed port that is not open yet. It can move to the thread that opens it.
pub trait Plan: Send {
    /// Returns the needs of the port that are known before it is open.
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

    /// Returns a plan of the same port that copies packets, so that its pool's frames stay private.
    /// Called if [`Needs::trust`] is exported and a stage reads packets in place.
    ///
    /// # Errors
    /// The text that would let the port copy, or the port to use instead.
    fn by_copies(&self) -> std::result::Result<Box<dyn Plan>, &'static str> {
        Err("use a port that copies")
    }

    /// Returns the settings of interfaces that the port changes while it is open; callers can
    /// report them before they open it.
    fn changes(&self) -> Vec<Change> {
        Vec::new()
    }

    /// Returns the moderation for a port whose text has none, if the port's own settings call for
    /// one; otherwise the program's moderation holds.
    fn moderation(&self) -> Option<Moderation> {
        None
    }

    /// Returns the name of the interface whose interrupts deliver the port's packets, if there is
    /// one.
    fn interface(&self) -> Option<&str> {
        None
    }

    /// Examines whether the port of `spec` can be opened on this machine and in which mode, by the
    /// trials that `how` allows, and undoes every change. A port without findings is tried by
    /// opening it.
    fn examine(&self, _spec: &Spec, _how: Trial, _found: &mut Findings) {}
}

/// Opens the port of `spec` by its plan, with the register price that its text asks for
/// ([`Opened::tolled`]).
///
/// # Errors
/// Those of [`Plan::open`]; the remedy for a missing capability names all of `capabilities`.
pub fn open_plan(
    plan: &dyn Plan,
    spec: &Spec,
    capabilities: Capabilities,
    cx: &mut OpenContext<'_>,
) -> Result<Opened> {
    let opened = plan.open(cx).map_err(|e| capabilities.added_to(e))?;
    Ok(opened.tolled(spec.toll))
}

/// A setting of an interface that a port changes while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// An offload of an interface is turned off; it was on.
    Offload {
        /// Name of the interface.
        interface: String,
        /// The offload.
        which: DeviceOffload,
    },
    /// NAPI of the interface leaves the device alone for a time after each poll that found packets.
    Hold {
        /// Name of the interface.
        interface: String,
        /// The time between two polls.
        time: Duration,
    },
    /// The division of the interface's packets among its queues is changed.
    Rss {
        /// Name of the interface.
        interface: String,
        /// The new table of queues.
        table: Vec<u32>,
        /// The new key of the hash; empty if the key is kept.
        key: Vec<u8>,
    },
}

impl Change {
    /// Returns the change that turns an offload of `interface` off.
    pub(crate) fn of_offload(interface: &Interface, which: DeviceOffload) -> Change {
        Change::Offload { interface: interface.name().to_string(), which }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::Offload { interface, which } => {
                write!(f, "the {which} of {interface} is turned off")
            }
            Change::Hold { interface, time } => {
                let hold = NapiHold::of_time(*time);
                write!(f, "NAPI of {interface} polls at most every {hold}, for all its packets,")
            }
            Change::Rss { interface, key, .. } if key.is_empty() => {
                write!(f, "the RSS table of {interface} is changed")
            }
            Change::Rss { interface, .. } => {
                write!(f, "the RSS table and the RSS key of {interface} are changed")
            }
        }
    }
}

/// Requirements of a port on memory, workers, directions and privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Least number of the port's queues, which an engine assigns to workers before the port is
    /// open.
    pub queues: usize,
    /// Longest packet that the port may receive, in bytes; it sets the pool's frame size before the
    /// device is open.
    pub packet_max_bytes: usize,
    /// Frames of the pool that the device's own rings can hold, over all its queues; it sets the
    /// sizes of hot lists and of the pool. 0 for a driver that copies, because its rings hold no
    /// frames of the pool. Both ends of a pair report the same number: the packets in both
    /// directions.
    pub ring_frames: usize,
    /// Trust in the writers of frames of the port's pool: exported for a driver that shares
    /// frames with a peer, else private.
    pub trust: Trust,
    /// The directions in which packets can go, as far as the text determines them.
    pub direction: Direction,
    /// Capabilities that opening the port requires.
    pub capabilities: Capabilities,
}

impl Default for Needs {
    /// Returns the needs of a port with one queue in both directions and no special requirement.
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

/// Context in which ports are opened: the pool that they receive into, and second ends of pairs
/// that are made but not opened yet.
#[derive(Debug)]
pub struct OpenContext<'a> {
    pool: &'a Pool,
    /// Second ends that are not opened yet, by driver and name.
    waiting: Vec<(&'static str, String, Opened)>,
}

impl<'a> OpenContext<'a> {
    /// Returns a context without unopened second ends.
    #[must_use]
    pub fn new(pool: &'a Pool) -> OpenContext<'a> {
        OpenContext { pool, waiting: Vec::new() }
    }

    /// Sets the pool that ports opened later receive into.
    pub fn set_pool(&mut self, pool: &'a Pool) {
        self.pool = pool;
    }

    /// Returns the pool that queues receive into.
    #[must_use]
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// Returns one end of the pair `name`. The first call makes both ends and returns one; the
    /// second call returns the other.
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
