//! What `doctor` says of a port before it is opened in earnest: findings, each with a remedy.
//!
//! A driver's [`Plan::examine`](crate::Plan::examine) tries the real operations and undoes them. Nothing
//! is inferred where it can be tried, and what was not tried says so. What is here serves more than
//! one of them:
//!
//! ```text
//!   finding.rs, fix.rs   what was found, and what to do about it, tried where that changes nothing
//!   trial.rs             a port, opened for a moment
//!   interface.rs         an interface: there, up, with a carrier
//!   flow.rs              the ports of udp= and tcp=: free, or whose
//!   kernel.rs, proc.rs   what the kernel has, and says
//! ```

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

/// How far an examination goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trial {
    /// Not where it could be noticed by others.
    #[default]
    Careful,
    /// Also there.
    Full,
}
