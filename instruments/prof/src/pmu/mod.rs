//! The CPU's event counters: what this CPU can count, how much of it at once, and counts over a
//! window.
//!
//! | part | says |
//! |---|---|
//! | [`family`] | which CPU this is |
//! | [`table`] | which of its events count what we want to know, how sure that is, what to mind |
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
pub mod family;
mod open;
pub mod table;
pub mod window;

pub use capacity::{Capacity, capacity};
pub use describe::{Described, DescribedEvent, Refusal, describe};
pub use event::{Event, Fallback, Quantity};
pub use family::Family;
pub use table::Standing;
pub use window::{Count, Counting, Counts};

/// The privilege levels whose work is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The program's, and the kernel's on its behalf.
    UserAndKernel,
    /// The program's only: the kernel does not let us see more.
    User,
}

impl Scope {
    /// Returns the scope as printed: `user+kernel` or `user`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::UserAndKernel => "user+kernel",
            Scope::User => "user",
        }
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
