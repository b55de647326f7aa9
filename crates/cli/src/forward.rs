//! `linerate forward`.

use std::time::Duration;

use linerate::{Code, Error};
use linerate_ctl::json;

use crate::args::Forward;
use crate::errors::Failure;
use crate::report;
use crate::run::{Path, run};
use crate::screen::Screen;

/// Time of a run without ports, unless told.
const TRIAL: Duration = Duration::from_secs(3);

/// Runs the command; returns the exit status.
///
/// # Errors
/// Whatever keeps it from giving a result.
pub fn forward(args: &Forward, screen: &Screen) -> Result<u8, Failure> {
    let path = match (&args.left, &args.right) {
        (Some(left), Some(right)) => between(left, right, args)?,
        _ => trial(args),
    };
    let ran = run(&path, &args.run, screen)?;
    screen.result(|| report::forward(&ran.report), || json::forward(&ran.report))?;
    ran.notes(screen);
    Ok(ran.exit())
}

/// The two ports that were named, joined.
fn between(left: &str, right: &str, args: &Forward) -> Result<Path, Failure> {
    let (a, b) = (linerate::parse(left)?, linerate::parse(right)?);
    // Of two ports that were not named, and so are called alike, the second gets a number.
    let named = right.split(':').next().is_some_and(|front| front.contains('='));
    let other = if a.name == b.name && !named { format!("{}-2", b.name) } else { b.name };
    if a.name == other {
        let why = format!("both are named '{other}'");
        return Err(Error::new(Code::Topology, "cannot join two ports", why).into());
    }
    let limits = &args.limits;
    let generated = |text: &str, driver: &str| match limits.count {
        Some(count) if driver == "gen" => format!("{text},count={count}"),
        _ => text.to_owned(),
    };
    let counted = a.driver == "gen" || b.driver == "gen";
    Ok(Path {
        ports: vec![
            (a.name.clone(), generated(left, &a.driver)),
            (other.clone(), generated(right, &b.driver)),
        ],
        wires: vec![(a.name, other)],
        time: limits.time,
        count: limits.count.filter(|_| !counted),
        until: until(limits.time, limits.count),
    })
}

/// What is run when no port is named: it shows the whole path, and needs nothing.
fn trial(args: &Forward) -> Path {
    let limits = &args.limits;
    let time = limits.time.or_else(|| limits.count.is_none().then_some(TRIAL));
    let source = limits.count.map_or("gen:".into(), |count| format!("gen:,count={count}"));
    let texts =
        [("gen", source.as_str()), ("in", "ring:r0"), ("out", "ring:r0"), ("sink", "sink:")];
    let owned = |(a, b): (&str, &str)| (a.to_owned(), b.to_owned());
    Path {
        ports: texts.map(owned).to_vec(),
        wires: [("gen", "in"), ("out", "sink")].map(owned).to_vec(),
        time,
        count: None,
        until: until(time, limits.count),
    }
}

/// When the run ends, in the words of its options.
pub fn until(time: Option<Duration>, count: Option<u64>) -> String {
    match (time, count) {
        (Some(time), Some(count)) => format!("for {time:?} or {count} packets"),
        (Some(time), None) => format!("for {time:?}"),
        (None, Some(count)) => format!("for {count} packets"),
        (None, None) => "until the sources end or Ctrl-C".into(),
    }
}
