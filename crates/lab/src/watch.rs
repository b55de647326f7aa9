//! What the machine did beside a window, and whether that window may be used.

use crate::Result;
use crate::window::Window;

/// A look at the machine.
#[derive(Debug)]
pub struct Watch {
    _cpus: Vec<usize>,
}

/// What admits a window or a pair, and what does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Rates may be taken from it.
    pub rate: bool,
    /// Costs and counts may be.
    pub cost: bool,
    /// Why not.
    pub reason: Option<String>,
}

impl Watch {
    /// Begins to look at `cpus`.
    ///
    /// # Errors
    /// `E-FILE` without /proc.
    pub fn start(cpus: &[usize]) -> Result<Watch> {
        Ok(Watch { _cpus: cpus.to_vec() })
    }

    /// Ends, and adds what it saw to `window`.
    ///
    /// # Errors
    /// As above.
    pub fn stop(self, _window: &mut Window) -> Result<()> {
        Ok(())
    }
}

/// Judges windows that belong together, by their environment and never by their results.
#[must_use]
pub fn admit(_windows: &[&Window]) -> Admission {
    Admission { rate: true, cost: true, reason: None }
}
