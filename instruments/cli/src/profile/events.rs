//! `linerate profile events`.

use linerate_prof::pmu;

use crate::errors::Failure;
use crate::screen::Screen;

/// Runs the command; returns the exit status. That there is no counter is a result, too.
///
/// # Errors
/// A result that nobody can be shown.
pub fn events(screen: &Screen) -> Result<u8, Failure> {
    let described = pmu::describe();
    screen.result(|| described.to_string(), || super::document(&described))?;
    Ok(0)
}
