//! `linerate profile diff`.

use linerate_prof::diff::{By, Diff as Difference};
use linerate_prof::flame;
use linerate_prof::print::{self, csv, json};

use super::args::{Csv, Diff, Per};
use super::file;
use crate::errors::{Failure, USAGE};
use crate::screen::Screen;

/// Runs the command; returns the exit status.
///
/// # Errors
/// Files that are no profiles, a scale that they do not have, or a result that cannot be written.
pub fn diff(args: &Diff, screen: &Screen) -> Result<u8, Failure> {
    if args.without.is_stdin() && args.with.is_stdin() {
        let why = "both are to be read from stdin, which can be read but once".to_owned();
        let fix = "save one of them in a file";
        return Err(Failure::new(USAGE, "E-USAGE", "cannot compare stdin with itself", why, fix));
    }
    let without = args.without.read(screen)?;
    let with = args.with.read(screen)?;
    let diff = Difference::scaled(&without, &with, by(args.per))?;
    if let Some(svg) = &args.flame {
        file::draw(svg, &flame::diff_svg(&without, &with, diff.scale.by)?)?;
        screen.note(&format!("drawn into {}\n", svg.display()));
    }
    let table = || {
        match args.csv {
            Some(Csv::Functions) => return csv::Ranked(&diff).to_string(),
            Some(Csv::Stages) => return csv::Stages(&diff).to_string(),
            None => {}
        }
        let top = (!args.as_posted).then_some(args.top);
        print::Ranked::new(&diff).as_posted(args.as_posted).top(top).to_string()
    };
    screen.result(table, || json::Diff(&diff).to_string())?;
    Ok(0)
}

fn by(per: Per) -> By {
    match per {
        Per::Run => By::AsTheyAre,
        Per::Second => By::Second,
        Per::Kpacket => By::KiloPacket,
        Per::Share => By::Share,
    }
}
