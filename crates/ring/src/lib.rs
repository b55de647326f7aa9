//! Moves fixed-size entries between two owners without locks.
//!
//! A ring has one producer, one consumer, a power-of-two number of slots and two indices that run
//! freely through `u32` and wrap. A slot belongs to the side between whose marks it lies:
//!
//! ```text
//!   slot = index & (len - 1)
//!
//!          consumer                producer              consumer + len
//!             |<----- published ----->|<------- free ------->|
//!   ..........|d d d d d d d d d d d d|. . . . . . . . . . . |..........
//!             | peek, read, release ->| reserve, write, submit ->
//! ```
//!
//! The verbs are those of the kernel's AF_XDP rings. [`Producer`] and [`Consumer`] are generic over
//! the [`Memory`] in which indices and slots lie. [`Heap`] is process memory ([`heap()`] makes both
//! halves), [`Mapped`] is memory that a kernel or a peer process maps too.
//!
//! - **Owner**: each half owns its side; an entry is plain data (`Copy`), and the code that gives
//!   it its meaning drains the ring before the halves go.
//! - **Thread**: each half is `Send` and used by one thread at a time; neither is `Sync` or
//!   `Clone`.
//! - **Invariants**: `0 <= producer - consumer <= len` in wrapping arithmetic, as each half sees it
//!   and whatever the peer writes; an index that breaks it is counted (`corrupt`) and not used. A
//!   slot is never published unwritten and never read unpublished.
//! - **Cost**: each half caches the other's index and reads it again only when it is short of
//!   slots; one Release store a batch. No syscall, no allocation. [`waiter()`] adds sleeping.
//!
//! ```
//! let (mut producer, mut consumer) = linerate_ring::heap::<u32>(256)?;
//! assert_eq!(producer.push_slice(&[10, 11, 12]), 3);
//!
//! let n = consumer.peek(64);
//! let sum: u32 = (0..n).map(|i| consumer.read(i)).sum();
//! consumer.release(n);
//! assert_eq!((n, sum), (3, 33));
//! # Ok::<(), linerate_ring::RingError>(())
//! ```
//!
//! Source: Linux v6.12 net/xdp/xsk_queue.h (verbs, cached indices, which side orders what); VPP
//! src/plugins/memif/memif.h (the ring of a shared-memory peer).

mod consumer;
mod cursor;
mod error;
mod heap;
mod mapped;
mod memory;
mod producer;
mod sync;
mod waiter;

pub use consumer::Consumer;
pub use error::RingError;
pub use heap::{Halves, Heap, heap, heap_from};
pub use mapped::{Addresses, Mapped};
pub use memory::Memory;
pub use producer::Producer;
pub use waiter::{Events, Waiter, Waker, waiter};
