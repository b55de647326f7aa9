//! `linerate profile list`.

use linerate_prof::print::{self, csv};
use linerate_prof::{flame, read};

use super::args::{Form, List};
use super::file;
use crate::errors::Failure;
use crate::screen::Screen;

/// Runs the command; returns the exit status.
///
/// # Errors
/// A file that is no profile, or a result that cannot be written.
pub fn list(args: &List, screen: &Screen) -> Result<u8, Failure> {
    let profile = args.file.read(screen)?;
    if let Some(svg) = &args.flame {
        file::draw(svg, &flame::svg(&profile)?)?;
        screen.note(&format!("drawn into {}\n", svg.display()));
    }
    let mut document = Vec::new();
    if args.json {
        read::json::write(&profile, &mut document)?;
    }
    let text = || match args.form {
        _ if args.csv => csv::Profile(&profile).to_string(),
        Form::Table => print::Table::new(&profile).top(Some(args.top)).to_string(),
        Form::Readprofile => print::Readprofile(&profile).to_string(),
        Form::Kernprof => print::Kernprof(&profile).to_string(),
        Form::Folded => flame::Folded(&profile).to_string(),
    };
    screen.result(text, || String::from_utf8_lossy(document.trim_ascii_end()).into_owned())?;
    Ok(0)
}
