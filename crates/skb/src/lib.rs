//! Packet memory, and `Skb`, the only handle on a packet.
//!
//! ```text
//!  Pool ── Umem: one region                            Skb: u32 handle, dropped exactly once
//!   │        frame 0 │ frame 1 │ … │ jumbo 0 │ …        Batch: many of them, one call
//!   │        lines 0 │ lines 1 │ … (apart: a peer never maps them)
//!   ├─ Depot         free frames that all share, behind a lock; half a list moves at a time
//!   ├─ Local …       one for each queue, worker or task: its hot list, no lock
//!   └─ thread cache  where a plain `drop` goes, no lock, given back at thread exit
//! ```
//!
//! Every frame is in exactly one of: the depot, a hot list, a thread cache, a port's ring, or an
//! [`Skb`]. The [`Ledger`] proves it: `received + created = sent + consumed + dropped + in flight`.
//!
//! docs/adr/0001-ownership-and-trust.md has the reasons, and the alternatives that were measured.

mod alloc;
mod batch;
#[cfg(feature = "bench")]
pub mod bench;
mod block;
mod books;
mod bulk;
mod chain;
pub mod compat;
mod depot;
mod fields;
mod frames;
mod free;
mod handle;
pub mod knob;
mod lanes;
mod ledger;
mod lend;
mod local;
mod memory;
mod meta;
mod page;
mod plain;
mod policy;
mod pool;
mod reason;
mod refs;
mod renew;
mod segments;
mod shape;
mod sizing;
mod skb;
mod snapshot;
mod stats;
mod sync;
mod tally;
mod thread;
mod umem;
mod verdict;

pub use batch::{Batch, BatchIter, BatchIterMut, Drain};
pub use chain::CHAIN_FRAMES_MAX;
pub use depot::Locks;
pub use knob::Knob;
pub use lanes::{Offload, Release, Vlan};
pub use ledger::Ledger;
pub use lend::{Span, Spans};
pub use local::Local;
pub use meta::PacketType;
pub use page::CoreKind;
pub use policy::{Data, Init, Return, Trust};
pub use pool::{Pool, PoolBuilder};
pub use reason::DropReason;
pub use segments::Segments;
pub use sizing::{Holder, Holders};
pub use skb::{Shared, Skb, Unique};
pub use stats::{CoreStats, Dwell, FreeMatrix, PoolStats, Sampled};
pub use tally::Tally;
pub use verdict::{Moved, Verdict};

pub use linerate_sys::mem::{Huge, Pages};
pub use linerate_sys::{Code, Error, Kind, Result};
