//! The examination of ports and of the machine: whether a port can be opened, in which mode, and
//! how to solve problems.
//!
//! It tries the real operations and undoes them: a socket, a map and a program are made and closed,
//! a port is opened as it will be, and the finding says what it obtained. Nothing is inferred where
//! it can be tried, and what was not tried says so.
//!
//! ```text
//!   check("xdp:eth0,udp=7777")
//!     the text ─► its driver's plan: the interface, privileges, memory, queues, offloads, a trial
//!   machine()
//!     kernel, CPUs, memory ─► a port of each device of the host in a network namespace of its own
//! ```
//!
//! **What a trial does to a live interface.** A port of `xdp` is tried with a filter that takes
//! nothing but Ethernet type 0x88b6, one of those for local experiments: all other traffic passes
//! as before. On a virtual interface that is all. A hardware driver may, as usual, take its link
//! down for a moment when a program is attached or detached: there, and on a TAP that exists
//! already, whose flags would change, it is tried only with [`Trial::Full`].
//!
//! A port of memif connects to its server, or listens for its client, and leaves again.
//!
//! **Cost.** Some ten system calls, and those of opening the port once. It waits for a queue or a
//! program that is being closed, for 1.2 s at most. A recommended command of `ip` or `ethtool` is
//! run first, in a network namespace that is made for it; `machine` runs `ip` three times.
//!
//! ```
//! # use linerate_ctl as linerate;
//! use linerate::doctor::{self, Level};
//!
//! for f in doctor::check("null:") {
//!     assert_eq!(f.level, Level::Ok, "{f:?}");
//! }
//! assert_eq!(doctor::worst(&doctor::check("nul:")), Level::Miss);
//! ```

mod machine;
#[cfg(test)]
mod tests;

#[doc(hidden)] // For the command, which announces the changes of a trial.
pub use linerate_port::doctor::FILTERS;
pub use linerate_port::doctor::{Finding, Findings, Fix, Level, Proof, Trial, worst};
pub use machine::machine;

use linerate_datapath::driver_text;
use linerate_port::{Kind, Port, Registry, Result};

/// Checks whether a port can be opened and in which mode; changes nothing that others could notice.
#[must_use]
pub fn check(port: &str) -> Vec<Finding> {
    check_with(port, Trial::Careful, &Registry::default())
}

/// Checks a port as [`check`] does, as far as `trial` allows; the text can name any of `drivers`.
#[must_use]
pub fn check_with(port: &str, trial: Trial, drivers: &Registry) -> Vec<Finding> {
    let mut found = Findings::default();
    if let Err(e) = examine(port, trial, drivers, &mut found) {
        found.miss(&e);
    }
    found.into_vec()
}

/// Examines a port, and stops at a finding that makes further checks pointless.
fn examine(port: &str, trial: Trial, drivers: &Registry, found: &mut Findings) -> Result<()> {
    let port = &driver_text(drivers, port)?;
    let spec = drivers.parse(port)?;
    let driver = drivers.driver(&spec)?;
    let plan = driver.parse(&spec)?;
    if driver.flags().paired {
        found.ok(format!("{port}: one of two ends in one process, which are opened together"));
        return Ok(());
    }
    // Refusals by the machine are reported by later checks.
    if let Err(e) = plan.needs()
        && e.kind() == Kind::Usage
    {
        return Err(e);
    }
    plan.examine(&spec, trial, found);
    if found.is_empty() {
        found.opened(Port::open_driver(driver, port)?.obtained().clone());
    }
    Ok(())
}
