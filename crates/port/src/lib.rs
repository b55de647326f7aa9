//! Ports: each exchanges batches of skbs with the queues of one device.
//!
//! A [`Port`] is a device opened by its text, `driver:arg[,key=value]`; it has one or more
//! [`Queue`]s, each with one descriptor that is readable when there is something to do. A driver is
//! a [`Driver`], which makes a [`Plan`] of a text, and its queues' [`QueueOps`], whose calls are a
//! queue's operations and whose [`Caps`] are its properties. This crate makes what applications see
//! ([`Port`], [`Queue`]) from them, in the same way for all drivers.
//!
//! ```text
//!  Port ─┬─ Queue ── DriverQueue ── Box<dyn QueueOps>   rx, xmit: one dynamic call a batch
//!        │         │             └ TxPrep               what the device does not do: checksums, cuts
//!        │         └ Local                              the queue's hot list
//!        └─ Obtained                     what the device gave, and what not, with the reason
//! ```

mod caps;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod doctor;
mod driver;
mod driver_queue;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod host;
pub mod knob;
pub mod moderation;
mod next_hop;
mod obtained;
mod port;
mod queue;
mod queue_ops;
mod registry;
mod reshape;
pub mod segment;
mod spec;
mod stats;
mod txprep;
pub mod units;
mod view;
mod waker;
mod want;

pub mod r#gen;
pub mod memif;
pub mod null;
pub mod packet;
pub mod pcap;
pub mod ring;
pub mod sink;
pub mod tap;
pub mod verbs;
pub mod wrap;
pub mod xdp;

pub use caps::{Caps, Copies, Gathers, Origin, TxOffload};
pub use driver::{
    Change, Driver, DriverFlags, DriverHelp, Needs, OnMachine, OpenContext, Opened, Plan, open_plan,
};
pub use driver_queue::{DriverQueue, Unprepared};
pub use host::Bell;
pub use moderation::{Goal, Moderated, Moderation};
pub use next_hop::{NextHop, next_hop};
pub use obtained::{Direction, Obtained};
pub use port::{Port, wait_any};
pub use queue::{Health, HealthKind, Queue, QueueOps, Want};
pub use registry::{Registry, parse, plan};
pub use reshape::Reshape;
pub use spec::{Options, Spec, nearest};
pub use stats::{Counters, DriverCounts, Pace, QueueCounts, QueueStats, Registers, Verified};
pub use view::{Views, ViewsMut};
pub use waker::Waker;

pub use linerate_skb::{Code, Error, Kind, Result};
pub use linerate_sys::capability::Capabilities;
pub use linerate_sys::netif::DeviceOffload;
pub use linerate_sys::{clock, thread, wait};
