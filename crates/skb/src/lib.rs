//! Owns packet memory, and the only handle on it.
//!
//! ```text
//!  Pool ── Umem: one region, frames of one size        Skb: u32 handle, dropped exactly once
//!   │        frame 0 │ frame 1 │ … │ frame n-1          Batch: many of them, one call
//!   │        meta 0  │ meta 1  │ … (apart: a peer never maps it)
//!   ├─ Depot         frames at home, behind a lock, moved half a list at a time
//!   ├─ Local …       one a queue, worker or task: its hot list, no lock
//!   └─ thread cache  where a plain `drop` goes, no lock, given back at thread exit
//! ```
//!
//! Every frame is in exactly one of: the depot, a hot list, a thread cache, a port's ring, or an
//! [`Skb`]. The [`Ledger`] proves it: `received + created = sent + consumed + dropped + in flight`.
//!
//! docs/adr/0001-ownership-and-trust.md says why it is so and what else was measured.

mod batch;
mod chain;
mod depot;
mod ledger;
mod local;
mod meta;
mod pool;
mod reason;
mod segments;
mod skb;
mod snapshot;
mod thread;
mod umem;

pub use batch::{Batch, Drain, Moved, Verdict};
pub use ledger::Ledger;
pub use local::Local;
pub use meta::{Offload, PacketType};
pub use pool::{Builder, Pool};
pub use reason::DropReason;
pub use segments::Segments;
pub use skb::{Shared, Skb, Unique};
pub use umem::Trust;

pub use linerate_sys::mem::{Huge, Pages};
pub use linerate_sys::{Code, Error, Kind, Result};
