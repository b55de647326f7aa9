//! `linerate profile watch`.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use linerate_prof::proc::{Column, Feed, Options, Replay, Sampler, Summary, Writer, plot};

use super::args::Watch;
use super::file;
use super::glance::Glance;
use crate::errors::{Failure, RUNTIME, USAGE};
use crate::screen::Screen;
use crate::signals::{Signals, status};

/// Time between two looks at the signals.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the command; returns the exit status.
///
/// # Errors
/// Whatever keeps it from reading, saving or drawing the figures.
pub fn watch(args: &Watch, screen: &Screen) -> Result<u8, Failure> {
    if args.svg.is_some() && args.output.is_none() && args.replay.is_none() {
        let why = "a picture is drawn from a file".to_owned();
        let fix = "give --output FILE, too, or --replay FILE";
        return Err(Failure::new(USAGE, "E-USAGE", "cannot draw what is not saved", why, fix));
    }
    let signal = Arc::new(AtomicI32::new(0));
    let mut source = Source::open(args, &signal)?;
    let feed = source.feed();
    let mut saved = match &args.output {
        Some(path) => Some(Writer::start(create(path)?, feed.header())?),
        None => None,
    };
    let mut document = match args.json {
        true => Some(Writer::start(io::stdout(), feed.header())?),
        false => None,
    };
    let mut glance = Glance::default();
    let mut summary = Summary::watching(feed, |columns, sample| {
        if let Some(saved) = &mut saved {
            saved.write(columns, sample)?;
        }
        if let Some(document) = &mut document {
            return document.write(columns, sample);
        }
        if let Some(line) = glance.line(columns, sample) {
            // A closed terminal is seen when the result is printed.
            let _ = io::stdout().write_all(line.as_bytes());
        }
        Ok(())
    })?;
    let end = feed.end().unwrap_or(summary.end);
    saved.map(|file| file.finish(end)).transpose()?;
    document.map(|out| out.finish(end)).transpose()?;
    source.say_what_was_left_out(args, screen);
    if !args.json {
        summary.columns.retain(|changed| chosen(args, &changed.column));
        screen.result(|| format!("\n{summary}"), String::new)?;
    }
    if let Some(svg) = &args.svg {
        draw(args, svg)?;
        screen.note(&format!("drawn into {}\n", svg.display()));
    }
    let signal = signal.load(Ordering::Relaxed);
    Ok(if signal == 0 { 0 } else { status(signal) })
}

/// Where the figures come from.
enum Source {
    Machine(Sampler),
    File(Replay<BufReader<File>>),
}

impl Source {
    fn open(args: &Watch, signal: &Arc<AtomicI32>) -> Result<Source, Failure> {
        if let Some(path) = &args.replay {
            return Ok(Source::File(replay(path)?));
        }
        let looks = args.time.map(|time| 1 + (time.as_nanos() / args.every.as_nanos().max(1)) as u64);
        let stop = Arc::new(AtomicBool::new(false));
        tell_of_signals(signal, &stop)?;
        let options = Options { period: args.every, samples: looks, stop, ..Options::default() };
        Ok(Source::Machine(Sampler::start(options)?))
    }

    fn feed(&mut self) -> &mut dyn Feed {
        match self {
            Source::Machine(sampler) => sampler,
            Source::File(replay) => replay,
        }
    }

    fn say_what_was_left_out(&self, args: &Watch, screen: &Screen) {
        let (Source::File(replay), Some(path)) = (self, &args.replay) else { return };
        if let Some(first) = replay.complaints().first() {
            let (all, name) = (replay.complaints_total(), path.display());
            screen.note(&format!("{name}: {all} lines left out, the rest read; the first: {first}\n"));
        }
    }
}

/// Sets `stop` when the first signal comes, and keeps its number.
fn tell_of_signals(signal: &Arc<AtomicI32>, stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let failed = |e: io::Error| {
        Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
    };
    let signals = Signals::watch().map_err(failed)?;
    let (signal, stop) = (Arc::clone(signal), Arc::clone(stop));
    let watching = move || {
        loop {
            if let Some(number) = signals.wait(LOOK) {
                signal.store(number, Ordering::Relaxed);
                stop.store(true, Ordering::Relaxed);
                return;
            }
        }
    };
    thread::Builder::new().name("stop".into()).spawn(watching).map_err(failed)?;
    Ok(())
}

/// A new file; one of that name is kept as `FILE.old`.
fn create(path: &Path) -> Result<File, Failure> {
    file::keep(path)?;
    File::create(path).map_err(|e| file::failure("save to", path, &e))
}

fn replay(path: &Path) -> Result<Replay<BufReader<File>>, Failure> {
    let file = File::open(path).map_err(|e| file::failure("replay", path, &e))?;
    Ok(Replay::open(BufReader::new(file))?)
}

fn draw(args: &Watch, svg: &Path) -> Result<(), Failure> {
    let Some(path) = args.output.as_ref().or(args.replay.as_ref()) else { return Ok(()) };
    let title = match args.only.as_slice() {
        [] => path.display().to_string(),
        only => only.join(", "),
    };
    let picture = plot::svg(&mut replay(path)?, &title, |column| chosen(args, column))?;
    file::draw(svg, &picture)
}

fn chosen(args: &Watch, column: &Column) -> bool {
    args.only.is_empty() || args.only.iter().any(|text| column.name.contains(text.as_str()))
}
