//! The CPU's event counters: which events they can count, how many together, and counts in a
//! window.
//!
//! | part | says |
//! |---|---|
//! | [`table`] | which CPU this is, which of its events count what we want to know, how sure that is |
//! | [`Event`] | one event, as a user types it and as the kernel wants it |
//! | [`capacity()`] | how many count at once, found out by counting |
//! | [`window`] | counts of one thread between two edges |
//! | [`describe()`] | all of that, for a person |
//! | [`Fallback`] | what there is instead where an event cannot be counted |
//!
//! Counting is switched on once and read at the edges of a window: between them runs no code of
//! ours. An edge is a system call and costs thousands of cycles, so a window is a batch or a run,
//! never a packet.
//!
//! Source: perf_event_open(2); codes of events by family in [`table`].

pub mod capacity;
mod describe;
mod event;
pub(crate) mod open;
pub mod table;
pub mod window;

pub use capacity::{Capacity, capacity};
pub use describe::{Described, describe};
pub use event::{Event, Fallback, Quantity};
#[doc(hidden)]
pub use open::is_refused;
pub use table::{Family, Standing};
pub use window::{Count, Counting, Counts};

named! {
    /// The privilege levels whose work is counted.
    pub enum Scope {
        /// The program's work, and the kernel's on its behalf.
        UserAndKernel = "user+kernel",
        /// The program's work only: the kernel does not allow more.
        User = "user",
    }
}
