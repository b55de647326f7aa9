//! Examination of a port by `doctor`, before it is opened for use: findings, each with a remedy.
//!
//! A driver's [`Plan::examine`](crate::Plan::examine) tries the real operations and undoes them.
//! Nothing is inferred that can be tried, and a finding says so if it was not tried. These modules
//! serve more than one driver:
//!
//! ```text
//!   finding.rs, fix.rs   what was found, and what to do about it, tried where that changes nothing
//!   trial.rs             a port, opened for a moment
//!   ask.rs               a neighbour, asked through it; the link meanwhile
//!   interface.rs         an interface: there, up, with a carrier
//!   flow.rs              the ports of udp= and tcp=: free, or whose
//!   kernel.rs, proc.rs   what the kernel has, and says
//! ```

use std::net::Ipv4Addr;

pub(crate) mod ask;
mod finding;
mod fix;
pub(crate) mod flow;
pub(crate) mod interface;
pub mod kernel;
#[doc(hidden)]
pub mod proc;
pub(crate) mod trial;

pub use finding::{Finding, Findings, Level, worst};
pub(crate) use fix::full_trial;
pub use fix::{Fix, Proof, is_here};
pub use trial::FILTERS;

/// The extent of an examination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Trial {
    /// Only trials that others do not notice.
    #[default]
    Careful,
    /// Also trials that others notice; a port on an Ethernet interface probes a neighbour, if one
    /// is known.
    Full,
    /// As `Full`, and the neighbour to probe has this address.
    Asking(Ipv4Addr),
}

impl Trial {
    /// Returns true if others may notice the examination.
    #[must_use]
    pub fn is_full(self) -> bool {
        self != Trial::Careful
    }
}
