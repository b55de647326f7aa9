//! The packet path of a core: receives packets, runs stages on them, and sends, queues or drops
//! them.
//!
//! Read [`Worker::turn`] first: it moves a batch from the ring of one device to the ring of
//! another, and names each step. [`Stage`]s change packets and give verdicts, a napi is a queue of
//! a device with the queue in front of its transmit ring, and an [`Engine`] joins ports and runs
//! one worker on each thread.
#![forbid(unsafe_code)]

mod control;
mod demand;
mod egress;
mod engine;
pub mod knob;
mod mailbox;
mod memory;
mod napi;
mod notice;
mod opening;
mod park;
mod plan;
mod poll_order;
mod ports;
pub mod qdisc;
mod queue_slot;
mod running;
mod settings;
mod sizes;
mod stage;
mod stats;
mod steer;
mod sync;
pub mod testing;
mod turns;
mod tx_batch;
mod waits;
mod watch;
mod worker;
mod worker_slot;
mod wrapping;

pub use control::{Applied, Control, PendingOrder, Pinned, Setting};
pub use engine::{Engine, EngineBuilder};
pub use ports::driver_text;
pub use running::{Running, RunningWaker, Stopped};
pub use settings::QueueSettings;
pub use sizes::BatchSizes;
pub use stage::{PortId, Stage, StageContext, Turn, Xconnect};
pub use stats::{PortStats, QueueReading, Stats};
pub use steer::Steering;
pub use tx_batch::TxBatch;
pub use waits::{Flushes, WorkerStats};
pub use watch::Watch;
pub use worker::{Turned, Worker};

pub use linerate_port::moderation::DeviceHold;
pub use linerate_port::{Code, Error, Goal, Kind, Moderated, Moderation, Result};
pub use linerate_skb::{CoreStats, Data, Dwell, Holder, Init, PoolStats, Return};
