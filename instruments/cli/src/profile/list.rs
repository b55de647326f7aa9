//! `linerate profile list`, `diff` and `events`: print profiles, their changes, and the events that
//! can be counted.

use linerate_prof::diff::{By, Diff as Difference};
use linerate_prof::print::{self, csv, json};
use linerate_prof::{flame, pmu, read};

use super::args::{ChainForm, Csv, Diff, Form, List, Per};
use super::file::{self, Place};
use crate::errors::{Failure, USAGE};
use crate::screen::Screen;

/// Runs the command; returns the exit status.
pub fn list(args: &List, screen: &Screen) -> Result<u8, Failure> {
    let profile = args.file.read(screen)?;
    if let Some(svg) = &args.flame {
        file::write(svg, &flame::svg(&profile)?)?;
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

/// Runs the command; returns the exit status.
pub fn diff(args: &Diff, screen: &Screen) -> Result<u8, Failure> {
    let sides = sides(args)?;
    let read = |places: &[Place]| places.iter().map(|place| place.read(screen)).collect();
    let [without, with]: [Result<Vec<_>, Failure>; 2] = sides.map(read);
    let (without, with) = (without?, with?);
    let (diff, [without, with]) = Difference::of_runs(&without, &with, by(args.per))?;
    if let Some(svg) = &args.flame {
        file::write(svg, &flame::diff_svg(&without, &with, diff.scale.by)?)?;
        screen.note(&format!("drawn into {}\n", svg.display()));
    }
    let chains = match args.chains {
        None => None,
        Some(ChainForm::Tree) => Some(print::Chains::between(&without, &with, &diff)?.to_string()),
        Some(ChainForm::Folded) => {
            Some(flame::FoldedDiff::between(&without, &with, diff.scale.by)?.to_string())
        }
    };
    let table = || {
        if let Some(chains) = chains {
            return chains;
        }
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

/// Returns the profiles of both sides: two, or those before and behind `--with`.
fn sides(args: &Diff) -> Result<[&[Place]; 2], Failure> {
    let refused = |what: &str, why: &str, fix: &str| {
        Err(Failure::new(USAGE, "E-USAGE", what, why.to_owned(), fix))
    };
    let sides = match args.files.split_at(args.files.len().min(1)) {
        _ if !args.with.is_empty() => [args.files.as_slice(), args.with.as_slice()],
        (without, with) if with.len() == 1 => [without, with],
        _ => {
            let why = "without --with, it takes two: one without the change, one with it";
            let fix = "linerate profile diff before*.json --with after*.json";
            return refused("cannot tell which profiles are with the change", why, fix);
        }
    };
    if sides.iter().copied().flatten().filter(|place| place.is_stdin()).count() > 1 {
        let why = "two profiles would be read from stdin, which can be read only once";
        return refused("cannot compare stdin with itself", why, "save one of them in a file");
    }
    Ok(sides)
}

fn by(per: Per) -> By {
    match per {
        Per::Run => By::AsTheyAre,
        Per::Second => By::Second,
        Per::Kpacket => By::KiloPacket,
        Per::Share => By::Share,
    }
}

/// Runs the command; returns the exit status. A machine without counters is no failure.
pub fn events(screen: &Screen) -> Result<u8, Failure> {
    let described = pmu::describe();
    screen.result(|| described.to_string(), || super::document(&described))?;
    Ok(0)
}
