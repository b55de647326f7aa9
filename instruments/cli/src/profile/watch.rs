//! `linerate profile watch`: a line for each sample, and a summary.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use linerate_prof::proc::{
    Column, Feed, Options, Rate, Rates, Replay, Sample, Sampler, Split, Summary, Writer,
};

use super::args::Watch;
use super::file;
use crate::errors::{Failure, RUNTIME};
use crate::report::thousands;
use crate::screen::Screen;
use crate::signals::{Signals, status};

/// Interval of checks for signals.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the command; returns the exit status.
pub fn watch(args: &Watch, screen: &Screen) -> Result<u8, Failure> {
    let (signal, stop) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
    let mut source = Source::open(args, &signal, &stop)?;
    let feed = source.feed();
    let mut saved = match &args.output {
        Some(path) => Some(Writer::start(file::create(path)?, feed.header())?),
        None => None,
    };
    // If the figures are saved, the watch continues after the reader of stdout has closed it.
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
            // An error such as a full disk is reported when the result is printed.
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
            screen.note(&format!("{name}: {all} lines skipped; the first: {first}\n"));
        }
    }
}

/// Starts a thread that sets `stop` at the first signal, and stores the signal's number.
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

fn replay(path: &Path) -> Result<Replay<BufReader<File>>, Failure> {
    let what = || format!("cannot replay {}", path.display());
    let fix = "linerate profile watch -o FILE writes a file for --replay";
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

/// The part of an error text that describes the possible names of figures.
const NAMES: &str = "\
no figure has that name and unit: names begin with interrupts/, softirqs/, stat/, net/dev/,
net/softnet_stat/ or schedstat/, and units are such as interrupts/s, packets/s, bytes/s or %
";

/// Standard output until its reader closes it.
#[derive(Clone)]
struct Out {
    closed: bool,
    /// Flag to set when the reader closes the output, if that ends the watch.
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

/// Number of lines between two headings.
const PAGE: u64 = 20;

/// A printer of samples, with a line for each sample.
#[derive(Debug, Default)]
pub struct Glance {
    rates: Rates,
    rate: Rate,
    before: Sample,
    lines: u64,
}

impl Glance {
    /// Formats `sample` as a line, with a heading at intervals; returns `None` for the first
    /// sample, which has no rates.
    pub fn line(&mut self, columns: &[Column], sample: &Sample) -> Option<String> {
        let before = std::mem::replace(&mut self.before, sample.clone());
        if !self.rates.step(columns, sample, &mut self.rate) {
            return None;
        }
        let mut text = String::new();
        if self.lines.is_multiple_of(PAGE) {
            text = format!(
                "{:>8} {:>6} {:>6} {:>6} {:>9} {:>9} {:>9} {:>10} {:>10}\n",
                "time s",
                "user %",
                "sys %",
                "idle %",
                "irq/s",
                "softirq/s",
                "switch/s",
                "rx pkt/s",
                "tx pkt/s"
            );
        }
        self.lines += 1;
        let splits = Split::between(columns, &before, sample);
        let split = splits.iter().find(|(cpu, _)| cpu == "cpu").map(|(_, split)| split);
        let cpu = |kinds: &[&str]| match split {
            Some(split) => format!("{:.1}", split.sum(kinds)),
            None => "n/a".into(),
        };
        let rate =
            |of: Option<f64>| of.map_or_else(|| "n/a".into(), |n| thousands(n.round() as u64));
        let net = |key: &str| {
            let key = format!("/{key}");
            rate(self.sum(columns, |name| name.starts_with("net/dev/") && name.ends_with(&key)))
        };
        Some(
            text + &format!(
                "{:>8.1} {:>6} {:>6} {:>6} {:>9} {:>9} {:>9} {:>10} {:>10}\n",
                sample.t_ns as f64 / 1e9,
                cpu(&["user", "nice"]),
                cpu(&["system", "irq", "softirq"]),
                cpu(&["idle", "iowait"]),
                rate(self.sum(columns, |name| name == "stat/intr")),
                rate(self.sum(columns, |name| name == "stat/softirq")),
                rate(self.sum(columns, |name| name == "stat/ctxt")),
                net("rx_packets"),
                net("tx_packets"),
            ),
        )
    }

    /// Returns the sum of the rates of the columns whose names `of` accepts; `None` if there are
    /// none.
    fn sum(&self, columns: &[Column], of: impl Fn(&str) -> bool) -> Option<f64> {
        let of = |(column, rate): (&Column, &Option<f64>)| rate.filter(|_| of(&column.name));
        columns.iter().zip(&self.rate.values).filter_map(of).reduce(|a, b| a + b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_prof::proc::Kind;

    #[test]
    fn a_guests_time_is_in_user_already_and_counts_once() {
        let fields = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
        let name = |field: &str| format!("stat/cpu/{field}");
        let column =
            |name| Column { name, unit: "ns".into(), kind: Kind::Counter, about: String::new() };
        let names = fields.into_iter().chain(["guest", "guest_nice"]);
        let columns: Vec<Column> = names.map(|field| column(name(field))).collect();
        let sample = |t_ns, user, idle| {
            let mut values = vec![Some(0); 10];
            (values[0], values[3], values[8]) = (Some(user), Some(idle), Some(user));
            Sample { t_ns, values, ..Sample::default() }
        };
        let mut glance = Glance::default();
        assert_eq!(glance.line(&columns, &sample(0, 0, 0)), None);
        let line = glance.line(&columns, &sample(1_000_000_000, 500_000_000, 500_000_000)).unwrap();
        let figures: Vec<&str> = line.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(figures[1..4], ["50.0", "0.0", "50.0"], "{line}");
    }
}
