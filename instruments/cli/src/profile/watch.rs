//! `linerate profile watch`.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use linerate_prof::proc::{Column, Feed, Options, Replay, Sampler, Summary, Writer};

use super::args::Watch;
use super::file;
use super::glance::Glance;
use crate::errors::{Failure, RUNTIME};
use crate::screen::Screen;
use crate::signals::{Signals, status};

/// Time between two looks at the signals.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the command; returns the exit status.
///
/// # Errors
/// The error of reading or saving the figures.
pub fn watch(args: &Watch, screen: &Screen) -> Result<u8, Failure> {
    let (signal, stop) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
    let mut source = Source::open(args, &signal, &stop)?;
    let feed = source.feed();
    let mut saved = match &args.output {
        Some(path) => Some(Writer::start(create(path)?, feed.header())?),
        None => None,
    };
    // Who saves goes on when nobody looks any more.
    let mut out = Out { closed: false, stop: saved.is_none().then(|| Arc::clone(&stop)) };
    let mut document = match args.json {
        true => Some(Writer::start(out.clone(), feed.header())?),
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
            // A full disk behind stdout is seen when the result is printed.
            let _ = out.write_all(line.as_bytes());
        }
        Ok(())
    })?;
    let end = feed.end().unwrap_or(summary.end);
    saved.map(|file| file.finish(end)).transpose()?;
    document.map(|out| out.finish(end)).transpose()?;
    source.say_what_was_left_out(args, screen);
    summary.columns.retain(|changed| chosen(args, &changed.column));
    if summary.columns.is_empty() && !args.json {
        screen.note(NAMES);
    }
    if !args.json {
        screen.result(|| format!("\n{summary}"), String::new)?;
    }
    let signal = signal.load(Ordering::Relaxed);
    Ok(if signal == 0 { 0 } else { status(signal) })
}

/// The source of the figures.
enum Source {
    Machine(Sampler),
    File(Replay<BufReader<File>>),
}

impl Source {
    fn open(
        args: &Watch,
        signal: &Arc<AtomicI32>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Source, Failure> {
        if let Some(path) = &args.replay {
            return Ok(Source::File(replay(path)?));
        }
        let looks =
            args.time.map(|time| 1 + (time.as_nanos() / args.every.as_nanos().max(1)) as u64);
        tell_of_signals(signal, stop)?;
        let stop = Arc::clone(stop);
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
            screen.note(&format!(
                "{name}: {all} lines left out, the rest read; the first: {first}\n"
            ));
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
    let what = || format!("cannot replay {}", path.display());
    let fix = "linerate profile watch -o FILE saves what can be replayed";
    let file = File::open(path)
        .map_err(|e| Failure::new(RUNTIME, "E-FILE", &what(), e.to_string(), fix))?;
    Ok(Replay::open(BufReader::new(file)).map_err(|mut e| {
        e.what = what();
        e.fix(fix)
    })?)
}

fn chosen(args: &Watch, column: &Column) -> bool {
    let named = |text: &String| column.name.contains(text.as_str());
    (args.only.is_empty() || args.only.iter().any(named))
        && args.unit.as_ref().is_none_or(|unit| *unit == column.rate_unit())
}

/// The error text that describes the names that can be chosen.
const NAMES: &str = "\
no figure has such a name and unit: names begin with interrupts/, softirqs/, stat/, net/dev/,
net/softnet_stat/ or schedstat/, and units are such as interrupts/s, packets/s, bytes/s or %
";

/// Standard output until its reader closes it; then the command can end.
#[derive(Clone)]
struct Out {
    closed: bool,
    /// Told that it is closed, if that ends the watch.
    stop: Option<Arc<AtomicBool>>,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.closed {
            return Ok(bytes.len());
        }
        match io::stdout().write(bytes) {
            Err(e) => self.close(e).map(|()| bytes.len()),
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        io::stdout().flush().or_else(|e| self.close(e))
    }
}

impl Out {
    /// Stops quietly if the reader closed the pipe (`linerate … | head`); returns any other error.
    fn close(&mut self, e: io::Error) -> io::Result<()> {
        if e.kind() != io::ErrorKind::BrokenPipe {
            return Err(e);
        }
        self.closed = true;
        if let Some(stop) = &self.stop {
            stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
