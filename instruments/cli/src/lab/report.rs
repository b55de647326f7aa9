//! `linerate lab report`.

use std::fs;
use std::io;
use std::path::Path;

use linerate_lab::record::Run;
use linerate_lab::report;

use super::args::Report;
use super::runs;
use super::show::document;
use crate::errors::{Failure, RUNTIME};
use crate::screen::Screen;

/// Tells runs; returns the exit status.
///
/// # Errors
/// A run that cannot be read, a file that cannot be written.
pub fn report(asked: &Report, screen: &Screen) -> Result<u8, Failure> {
    let runs = asked.runs.iter().map(|name| runs::read(name, &asked.kept.dir));
    let runs: Vec<Run> = runs.collect::<Result<_, _>>()?;
    match (&asked.html, runs.as_slice()) {
        (Some(file), runs) if file == Path::new("-") => {
            screen.result(|| report::html(runs), String::new)?;
        }
        (Some(file), runs) => {
            write(file, &report::html(runs))?;
            screen.result(|| format!("{}\n", file.display()), String::new)?;
        }
        (None, [run]) => screen.result(|| report::text(run), || document(run))?,
        (None, runs) => {
            let texts = || runs.iter().map(report::text).collect::<Vec<_>>().join("\n");
            screen.result(texts, || document(&runs))?;
        }
    }
    Ok(runs::exit(&runs, 0))
}

/// Writes a file completely, or keeps the old file and returns the reason. A path that is not a
/// regular file is written to directly.
///
/// # Errors
/// `E-FILE`.
pub fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let is_other = fs::metadata(file).is_ok_and(|kind| !kind.is_file());
    let written = if is_other { fs::write(file, text) } else { replace(file, text) };
    written.map_err(|e| {
        let what = format!("cannot write {}", file.display());
        Failure::new(RUNTIME, "E-FILE", &what, e.to_string(), "")
    })
}

/// Writes it beside under another name, and renames that.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let done = fs::write(&part, text).and_then(|()| fs::rename(&part, file));
    if done.is_err() {
        let _ = fs::remove_file(&part);
    }
    done
}
