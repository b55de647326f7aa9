//! Verbs: queue pairs and completion queues of RDMA devices, by libibverbs.
//!
//! ```text
//!   Device ─┬─ Domain ─┬─ Memory       a registered region, which requests name by a key
//!           │          ├─ QueuePair    requests to send and to receive; of datagrams, or of a connection
//!           │          └─ Address      where a datagram goes
//!           └─ Events ── Completions  what was done; an event makes the descriptor readable
//! ```
//!
//! Owner: each object owns the library's object, and holds those that it was made of. A request
//! names memory by its address, so posting one is `unsafe`: the device reads or writes the memory
//! until the request is completed.
//!
//! libibverbs is loaded with the first device. Its calls may be made by several threads at once.
//!
//! Source: rdma-core, ibv_post_send(3), ibv_poll_cq(3), ibv_modify_qp(3) and their relatives.

mod abi;
mod completion;
mod domain;
mod library;
mod pair;

pub use completion::{Completion, Completions, Events};
pub use domain::{Address, Domain, Memory};
pub use library::{Device, PortState};
pub use pair::{Endpoint, QueuePair, Receive, Route, Send, Setup, To};
