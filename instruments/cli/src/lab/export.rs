//! `linerate lab export`.

use std::path::Path;

use linerate_lab::record::{csv, effects_csv};

use super::args::Export;
use super::report::write;
use super::runs;
use crate::errors::Failure;
use crate::screen::Screen;

/// Writes a run's figures; returns the exit status.
///
/// # Errors
/// A run that cannot be read, a file that cannot be written.
pub fn export(asked: &Export, screen: &Screen) -> Result<u8, Failure> {
    let run = runs::read(&asked.run, &asked.kept.dir)?;
    let text = if asked.effects { effects_csv(&run) } else { csv(&run) };
    match &asked.csv {
        Some(file) if file != Path::new("-") => {
            write(file, &text)?;
            screen.result(|| format!("{}\n", file.display()), String::new)?;
        }
        _ => screen.result(|| text, String::new)?,
    }
    Ok(runs::exit([&run], 0))
}
