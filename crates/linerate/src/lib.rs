//! Line rate in your own Rust program, with CPU to spare.
//!
//! Three depths, one code path: a [`Port`] in your own loop, a [`Worker`] on your own thread, an
//! [`Engine`] on threads of its own. Packets are owned [`Skb`]s in [`Batch`]es, their memory comes
//! from a [`Pool`], whose [`Ledger`] accounts for every packet.
//!
//! ```
//! use linerate::prelude::*;
//! use std::time::Duration;
//!
//! # fn main() -> linerate::Result<()> {
//! let engine = Engine::builder()
//!     .port("in", "gen:,count=10k,size=imix") // or packet:eth0, tap:t0, pcap:in.pcapng
//!     .port("out", "sink:")
//!     .wire("in", "out")
//!     .build()?;
//! let running = engine.start()?;
//! assert!(running.wait(Duration::from_secs(10))?);
//! let stopped = running.stop(Duration::from_secs(1));
//! println!("{stopped}"); // received 0 + created 10000 = sent 10000 + …   OK
//! stopped.check()?; // a stage that panicked, a port that failed, a ledger that does not balance
//! # Ok(())
//! # }
//! ```
//!
//! The library prints nothing, opens nothing without a request and installs no signal handler;
//! ARCHITECTURE.md names its global state. This crate has no code: it re-exports the others.
//!
//! `docs/…`, ARCHITECTURE.md and SPECIFICATION.md are files of the repository. *Post 000* to *post
//! 004* are five posts to Linux' network lists: the sections S0 to S4 of SPECIFICATION.md.
#![forbid(unsafe_code)]

pub use linerate_ctl::{affinity, doctor, placement};
pub use linerate_datapath::{
    Applied, BatchSizes, Control, Engine, EngineBuilder, Flushes, Holder, PendingOrder, Pinned,
    PortId, PortStats, QueueReading, QueueSettings, Running, RunningWaker, Setting, Stage,
    StageContext, Stats, Steering, Stopped, Turn, Turned, TxBatch, Watch, Worker, WorkerStats,
    Xconnect, qdisc, testing,
};
#[cfg(feature = "conformance")]
pub use linerate_port::conformance;
pub use linerate_port::r#gen::{Pacer, mean_frame_bytes};
pub use linerate_port::moderation::{DeviceHold, HoldControl};
pub use linerate_port::{
    Bell, Capabilities, Caps, Change, Code, Copies, Counters, DeviceOffload, Direction, Driver,
    DriverCounts, DriverFlags, DriverHelp, Error, Gathers, Goal, Health, HealthKind, Kind,
    Moderated, Moderation, Needs, NextHop, Obtained, OnMachine, OpenContext, Opened, Options,
    Origin, Pace, Plan, Port, Queue, QueueCounts, QueueOps, QueueStats, Registers, Registry,
    Reshape, Result, Spec, TxOffload, Verified, Views, ViewsMut, Waker, Want, memif, next_hop,
    pcap, units, wait_any, wrap, xdp,
};
pub use linerate_skb::{
    Batch, BatchIter, BatchIterMut, CoreKind, CoreStats, Data, Drain, DropReason, Dwell,
    FreeMatrix, Holders, Huge, Init, Ledger, Local, Locks, Moved, Offload, PacketType, Pages, Pool,
    PoolBuilder, PoolStats, Release, Return, Sampled, Segments, Shared, Skb, Span, Spans, Tally,
    Trust, Unique, Verdict, Vlan, compat,
};
pub use linerate_wire as wire;

/// Waits for descriptors, and the doorbell that makes one readable: for drivers and loops of your
/// own.
pub mod wait {
    pub use linerate_port::wait::{EventFd, POLL_FDS_MAX, is_writable, poll_each, poll_readable};
}

/// Port texts without opening them: for a program that reads its ports from a command line, and for
/// a driver that is made of another. [`Registry`] does the same with drivers of your own.
///
/// ```
/// use linerate::text;
///
/// # fn main() -> linerate::Result<()> {
/// let spec = text::parse("west=xdp:eth0,udp=7777")?;
/// assert_eq!([&*spec.name, &*spec.driver, &*spec.arg], ["west", "xdp", "eth0"]);
/// assert!(text::plan("tap:t0,queue=2").is_err()); // it is queues=2
/// assert_eq!(text::nearest("packt", ["packet", "pcap"].into_iter()), Some("packet"));
/// # Ok(())
/// # }
/// ```
pub mod text {
    pub use linerate_port::{nearest, parse, plan};
}

/// The numeric settings, with their ranges, defaults and effects.
pub mod knob {
    pub use linerate_datapath::knob::*;
    pub use linerate_port::knob::*;
    pub use linerate_skb::knob::*;
}

/// The names that nearly every program needs: `use linerate::prelude::*;`.
///
/// It leaves out `Result` and `Error`, which programs have of their own.
pub mod prelude {
    pub use crate::{
        Batch, DropReason, Engine, Health, Ledger, Local, Offload, Pacer, Pool, Port, PortId,
        Queue, Reshape, Shared, Skb, Stage, StageContext, Turn, Unique, Verdict, Views, ViewsMut,
        Want, wait_any, wire,
    };
}
