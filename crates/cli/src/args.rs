//! The command line: its commands, options and help.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use linerate::knob::{self, Knob};
use linerate::{Data, Init, Moderation, Registry, Return, TxBatch, units, wire};
use linerate_ctl::pool::{BUFFERS, INIT, RETURN};

use crate::errors::{self, Failure, USAGE};
use crate::screen::{self, Screen};

#[derive(Debug, Parser)]
#[command(
    name = "linerate",
    version,
    about = "Moves packets between ports, and accounts for each of them",
    long_about = "Moves packets between ports, and accounts for each of them.\n\n\
        Start with `linerate forward`: without ports it runs a self-test, which needs no privilege and \
        no device. Then `linerate doctor IFACE` lists what works on an interface.",
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Forward(Forward),
    Gen(Gen),
    Doctor(crate::doctor::Doctor),
    Tune(crate::tune::Tune),
    /// Print version
    Version,
    #[command(external_subcommand)]
    Outside(Vec<OsString>),
}

/// Move packets between two ports, both ways
///
/// Packets received by A leave by B, and packets received by B leave by A, except where a port can
/// only be read (gen, a capture on the left) or only be written (sink, a capture on the right).
///
/// Without ports the command runs a self-test of 3 s: gen -> path -> memif. A second process reads the
/// packets of the memif without a copy and verifies them. The rate is 124 MB/s in frames of 1514 bytes
/// first, then the highest possible. If no second process can be started, the test is
/// gen -> path -> ring -> sink.
///
/// The run ends when its sources have ended, when --for or --count is reached, or on Ctrl-C. Then it
/// sends the packets still in flight, for up to 2 s, and prints the ledger: every packet that came in
/// was sent, consumed, or dropped for a reason.
#[derive(Debug, Parser)]
#[command(after_long_help = FORWARD)]
pub struct Forward {
    /// A port: driver:arg[,key=value]
    #[arg(value_name = "A", requires = "right")]
    pub left: Option<String>,
    /// The port at the other end
    #[arg(value_name = "B")]
    pub right: Option<String>,
    #[command(flatten)]
    pub limits: Limits,
    #[command(flatten)]
    pub run: Run,
    /// Report when the ports are open, and end when standard input ends: for a process that a run starts
    #[arg(long, hide = true, requires = "left")]
    pub beside: bool,
}

/// Send numbered packets to a port at a fixed rate
///
/// Each packet has a scheduled time. The report counts requested packets, sent packets and their delay
/// after the schedule; it counts received and lost packets separately.
#[derive(Debug, Parser)]
#[command(after_long_help = GEN)]
pub struct Gen {
    /// The port to send to: driver:arg[,key=value]; a verifying sink reads the other end of a ring
    pub port: String,
    /// Packets or bits a second, as in 1.5Mpps or 4Gbps; by default the highest possible rate, for which
    /// --for or --count is needed on an interface that the host itself uses
    #[arg(long, value_parser = rate)]
    pub rate: Option<String>,
    /// Packets sent together at each wake-up, 1 to 1024; by default chosen by the rate, so that wake-ups
    /// cost little CPU time and are at most 1 ms apart
    #[arg(long, value_name = "N", requires = "rate",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub burst: Option<u16>,
    /// Send UDP datagrams to this address and port, as in 192.0.2.7:7777 or [2001:db8::7]:7777; routes and
    /// neighbours of the port's interface give the MAC and source addresses, unless --mac and --from are given
    #[arg(long, value_name = "ADDR:PORT", value_parser = receiver)]
    pub to: Option<SocketAddr>,
    /// MAC address of the next hop to the address of --to
    #[arg(long, requires = "to")]
    pub mac: Option<wire::Mac>,
    /// Source address of the datagrams, and source port of the first flow: 192.0.2.1 or 192.0.2.1:5000
    #[arg(long, value_name = "ADDR[:PORT]", requires = "to")]
    pub from: Option<String>,
    /// Bytes of a frame without FCS, or imix: 7 of 60, 4 of 590 and 1 of 1514 in every 12; by default the
    /// shortest: 60, or 70 and 90 for datagrams of IPv4 and IPv6
    #[arg(long)]
    pub size: Option<String>,
    /// Number of flows; each has its own sequence numbers and, for datagrams, its own source port
    #[arg(long, default_value = "1", value_parser = units::count)]
    pub flows: u64,
    #[command(flatten)]
    pub limits: Limits,
    #[command(flatten)]
    pub run: Run,
}

/// When to end.
#[derive(Debug, clap::Args)]
pub struct Limits {
    /// End after this time, as in 10s or 500ms
    #[arg(long = "for", value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub time: Option<Duration>,
    /// End after this many packets were sent, as in 1000 or 10M: exactly as many from gen,
    /// at least as many from other sources
    #[arg(long, value_name = "N", value_parser = packets)]
    pub count: Option<u64>,
}

/// Options of a run.
#[derive(Debug, clap::Args)]
pub struct Run {
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
    /// Print the ledger only: packets of each port, drops, balance and problems; no port lines, no rates,
    /// no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// CPUs to pin the workers to, as in 0,1: the first worker to the first CPU. Each queue number has one
    /// worker, which serves that queue of every port
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = cpu)]
    pub cpu: Vec<usize>,
    /// Search for better CPUs during the run, which takes seconds. The search measures the CPU time of a packet in
    /// several placements. It measures the first placement repeatedly, and keeps another one only if its gain
    /// exceeds the spread of these measurements. workers: moves the workers only; auto: also moves the interrupts (irqs
    /// or NAPI threads) of the ports' interfaces; napi: as auto, and starts NAPI threads where there are none
    #[arg(long, value_name = "WHAT", value_parser = ["auto", "napi", "workers"])]
    pub place: Option<String>,
    #[arg(long, value_name = "N", help = effect(&knob::BUDGET), value_parser = number(&knob::BUDGET),
        default_value_t = knob::BUDGET.default)]
    pub budget: u64,
    /// Interrupt moderation of ports without the option `moderation=`: interrupt, napi,
    /// fixed[:usecs=100,frames=32], dim, adaptive[:latency=250us|:cpu=20%] or busy
    #[arg(long, value_name = "MODE", default_value = "adaptive", value_parser = moderation)]
    pub moderation: Moderation,
    /// Packets sent to a port's device with one doorbell, for ports without the option `tx_batch=`: 1 (a
    /// doorbell for each packet) to 1024, or auto
    #[arg(long, value_name = "N", default_value = "auto", value_parser = tx_batch)]
    pub tx_batch: TxBatch,
    /// Create a socket at this path, through which `linerate tune PATH` shows and changes the settings of the
    /// run; it answers only this user and root
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print the cost of the pool for each worker
    #[arg(long)]
    pub pool: bool,
    #[command(flatten)]
    pub memory: Memory,
}

/// Options of packets' memory.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Memory")]
pub struct Memory {
    /// Frames of the packet pool; by default the sum of the frames that rings, queues and workers can hold
    #[arg(long, value_name = "N", value_parser = frames)]
    pub pool_frames: Option<u32>,
    #[arg(long, value_name = "BYTES", help = effect(&knob::FRAME_SIZE), value_parser = frames)]
    pub frame_size: Option<u32>,
    /// Frames of a second class, for packets longer than an ordinary frame; BYTES is 16384 by default
    #[arg(long, value_name = "FRAMES[:BYTES]", value_parser = jumbo)]
    pub jumbo: Option<(u32, u32)>,
    /// Make frames as large as the longest packet of any port, up to 64 KiB, so that each packet is in one frame
    #[arg(long)]
    pub fit: bool,
    #[arg(long, value_name = "N", help = effect(&knob::HOT_LIST), value_parser = frames)]
    pub hot_list: Option<u32>,
    /// Source of the memory for packet data: frames of the pool, or one allocation a packet from the system's
    /// allocator
    #[arg(long, value_name = "WHICH", default_value = "frames", value_parser = one_of(&BUFFERS))]
    pub buffers: Data,
    /// Time at which packets' metadata is initialised
    #[arg(long, value_name = "WHEN", default_value = "at_alloc", value_parser = one_of(&INIT))]
    pub init: Init,
    /// Worker that gets a frame freed by another worker: local, the one that freed it; home, the one that
    /// allocated it
    #[arg(long = "return", value_name = "WHERE", default_value = "local",
        value_parser = one_of(&RETURN))]
    pub return_to: Return,
    #[arg(long, value_name = "N", help = effect(&knob::SAMPLE), default_value_t = 0)]
    pub sample: u32,
}

impl Forward {
    /// Returns the ports given on the command line.
    pub fn ports(&self) -> Vec<&str> {
        [&self.left, &self.right].into_iter().flatten().map(String::as_str).collect()
    }
}

const PROGRAMS: &str = "\
Commands for measurement (linerate runs the program linerate-lab for them):
  lab      repeat an experiment on this machine, with a control and statistics
  profile  show the CPU time of each function
  lines    show which functions move cache lines between CPUs, by a MODEL
  ndr      find the highest rate without loss

PORT is [name=]driver:arg[,key=value]…
";
/// Column at which the description of a driver begins.
const PORT_COLUMNS: usize = 24;

/// Remedy for a time of a run that is not above 0.
const TIME: &str = "write a time above 0, as in 10s or 500ms";

const STATUS: &str = "
Exit status: 0 done, 1 failed while running, 2 wrong request, 3 a check failed, 5 not possible on
this machine, 6 the ledger does not balance, 130 or 143 ended by SIGINT or SIGTERM.";

const FORWARD: &str = "\
Examples:
  linerate forward                                  self-test, without privilege
  linerate forward xdp:eth0 xdp:eth1                connect two interfaces, in the driver
  linerate forward packet:eth0 packet:eth1          connect any two interfaces, with copies; faster
                                                    for TCP over veth: superframes stay whole
  linerate forward packet:eth0 pcap:out.pcapng --for 10s
  linerate forward pcap:in.pcap pcap:out.pcapng     copy a capture
  linerate forward xdp:eth0 memif:/run/x.sock       an interface into another process's memory
  linerate forward memif:/run/x.sock,role=server sink:   that other process: listens and verifies
  linerate forward null: null: --for 2s --json      the cost of the path
  linerate forward null: null: --for 2s --pool      the cost of packet memory, too

The line `cost` has totals divided by the packets that left by ports other than rings. Cycles and
instructions are those of the whole process; a figure that is not available is printed as `-`.
In the line `calls`, rx+xmit counts calls of the ports' drivers: one for each batch and queue, empty
polls included. These calls are not syscalls; one call may make no syscall or several.

`linerate --help` lists the ports.";

const GEN: &str = "\
Examples:
  linerate gen ring:r0 --rate 1Mpps --size imix --flows 1000 --for 5s
  linerate gen packet:veth0 --rate 100kpps --count 1M
  linerate gen xdp:veth0 --rate 1Mpps --for 5s      sends only
  linerate gen xdp:eth0 --to 192.0.2.7:7777 --rate 1Mpps --flows 16 --for 10s

A UDP socket at 192.0.2.7, port 7777, receives the datagrams. To verify them there, run
`linerate forward xdp:eth0,udp=7777 sink:`, which checks every byte and counts reordered and lost packets.

`linerate --help` lists the ports.";

impl Args {
    /// Reads the arguments of this process; the help lists `drivers`.
    ///
    /// # Errors
    /// The error or the help text that clap returns.
    pub fn read(drivers: &Registry) -> Result<Args, clap::Error> {
        let mut command = definition(drivers);
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        Args::from_arg_matches(&matches).map_err(|e| e.format(&mut command))
    }
}

/// Returns the command line's definition; its help lists `drivers`.
pub fn definition(drivers: &Registry) -> clap::Command {
    Args::command().after_help(after_help(drivers))
}

/// Returns the text after the options: the programs, the ports and the exit statuses.
fn after_help(drivers: &Registry) -> String {
    let mut text = PROGRAMS.to_owned();
    for driver in drivers.drivers() {
        let help = driver.help();
        let mut head = format!("  {}", help.usage);
        for line in help.text.lines() {
            // Put the description on the next line if the usage is too long, or if this is not the
            // first line.
            if head.len() + 2 > PORT_COLUMNS {
                text += &head;
                text.push('\n');
                head.clear();
            }
            text += &format!("{head:PORT_COLUMNS$}{line}\n");
            head.clear();
        }
        if help.text.is_empty() {
            text += &format!("{head}\n");
        }
    }
    text + STATUS
}

/// Prints the version; returns the exit status.
pub fn version() -> u8 {
    let text = format!("linerate {}\n", env!("CARGO_PKG_VERSION"));
    // An error is ignored: as with --version, a closed terminal is no failure.
    let _ = io::stdout().write_all(text.as_bytes());
    0
}

/// Prints the requested help, or clap's error in the form of any other error; returns the exit status.
pub fn refuse(e: &clap::Error) -> u8 {
    let words = errors::words();
    let json = words.iter().any(|word| word == "--json");
    let help = match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Some(0),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if !json => Some(USAGE),
        _ => None,
    };
    if let Some(status) = help {
        // An error is ignored: there is no other place for the help if the terminal is closed.
        let _ = e.print();
        return status;
    }
    Screen::plain(json).failure(&usage(e, &words).error);
    USAGE
}

/// Returns clap's error as a failure; `words` are the arguments.
fn usage(e: &clap::Error, words: &[String]) -> Failure {
    let text = e.render().to_string();
    let until = |text: &str, end| text.split(end).next().unwrap_or_default().to_owned();
    let (why, usage) = match e.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => ("no command is named", ""),
        _ => text.split_once("\nUsage: ").unwrap_or((&text, "")),
    };
    let why = screen::one_line(why.strip_prefix("error: ").unwrap_or(why));
    let why = plain(until(&until(&why, " tip: "), " For more information"));
    // A command with several forms has one on each line.
    let forms = until(usage, "For more information");
    let forms = forms.lines().map(str::trim).filter(|form| !form.is_empty());
    let forms: Vec<&str> = forms.collect();
    let usage = forms.join(", or ");
    let fix = match near(e) {
        Some(word) => format!("did you mean {word}?"),
        // clap's only form then has the words that cannot be used together.
        None if e.kind() == ErrorKind::ArgumentConflict && forms.len() == 1 => {
            format!("use one of the two; {} lists the options", help_for(words))
        }
        None if usage.is_empty() => help_for(words),
        None => usage,
    };
    Failure::new(USAGE, "E-USAGE", "cannot understand the command", why, &fix)
}

/// Replaces the standard library's words for text that is no number.
fn plain(mut why: String) -> String {
    for (theirs, ours) in [
        ("invalid digit found in string", "write a whole number"),
        ("cannot parse integer from empty string", "write a whole number"),
        ("number too large to fit in target type", "the number is too large"),
    ] {
        why = why.replace(theirs, ours);
    }
    why
}

/// Parses the number of a CPU in a list.
///
/// # Errors
/// A text that says how to write the list.
pub fn cpu(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "write CPU numbers separated by commas, as in 0,1".into())
}

/// Returns the word that clap suggests for a misspelt one.
fn near(e: &clap::Error) -> Option<String> {
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedValue, ContextKind::SuggestedSubcommand];
    suggested.into_iter().find_map(|kind| match e.get(kind)? {
        ContextValue::String(word) => Some(word.clone()),
        ContextValue::Strings(words) => words.first().cloned(),
        _ => None,
    })
}

/// Returns the command that prints help for these arguments.
fn help_for(words: &[String]) -> String {
    let is_command = |word: &&String| word.bytes().all(|byte| byte.is_ascii_lowercase());
    let commands = words.iter().take(2).take_while(is_command);
    commands.fold("linerate".to_owned(), |text, word| text + " " + word) + " --help"
}

/// Returns the help text of a knob's flag.
fn effect(knob: &Knob) -> String {
    let default = if knob.or.is_empty() {
        String::new()
    } else {
        format!(", by default {}", knob.default_text())
    };
    format!("{} ({knob} {}{default})", knob.effect, knob.unit)
}

/// Returns a parser for numbers in the knob's range.
fn number(knob: &'static Knob) -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(knob.min..=knob.max)
}

fn moderation(text: &str) -> Result<Moderation, String> {
    text.parse().map_err(|e: linerate::Error| format!("{} ({})", e.why, e.fix))
}

fn tx_batch(text: &str) -> Result<TxBatch, String> {
    text.parse().map_err(|e: linerate::Error| format!("{} ({})", e.why, e.fix))
}

/// Parses the time of a run; refuses 0, and the option that follows if the time was forgotten.
fn time(text: &str) -> Result<Duration, String> {
    match units::duration(text) {
        Err(_) if text.starts_with('-') => Err(TIME.into()),
        Ok(Duration::ZERO) => Err(TIME.into()),
        parsed => parsed,
    }
}

fn rate(text: &str) -> Result<String, String> {
    units::rate(text).map(|_| text.to_owned())
}

fn receiver(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "an address and a port: 192.0.2.7:7777 or [2001:db8::7]:7777".into())
}

/// Returns a parser that accepts one of two words and returns its value.
fn one_of<T>(words: &'static [(&'static str, T); 2]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let [first, second] = words;
    PossibleValuesParser::new([first.0, second.0])
        .map(|word| if word == first.0 { first.1 } else { second.1 })
}

/// Parses the number of frames, optionally with their size in bytes; the default size is 16384.
fn jumbo(text: &str) -> Result<(u32, u32), String> {
    let (count, bytes) = text.split_once(':').unwrap_or((text, "16384"));
    Ok((frames(count)?, frames(bytes)?))
}

fn packets(text: &str) -> Result<u64, String> {
    units::count(text)?.checked_sub(1).map(|n| n + 1).ok_or_else(|| "at least 1 packet".into())
}

fn frames(text: &str) -> Result<u32, String> {
    let n = units::count(text)?;
    u32::try_from(n).map_err(|_| format!("a pool has at most {} frames", u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_help_names_every_driver_and_no_other() {
        let help = after_help(&Registry::default());
        let listed: Vec<&str> = help
            .lines()
            .filter_map(|line| line.strip_prefix("  ")?.split_once(':'))
            .map(|(driver, _)| driver)
            .filter(|driver| !driver.starts_with(' '))
            .collect();
        let drivers = Registry::default();
        let drivers: Vec<&str> = drivers.drivers().iter().map(|driver| driver.name()).collect();
        assert_eq!(listed, drivers);
    }

    #[test]
    fn a_refusal_is_cut_into_its_parts() {
        for (words, why, fix) in [
            ("forward null:", "the following required arguments", "linerate forward <A> <B>"),
            ("forward --jsn", "unexpected argument '--jsn' found", "did you mean --json?"),
            ("gen sink: --moderate", "unexpected argument", "did you mean --moderation?"),
            ("forward --place aut", "[possible values: auto, napi", "did you mean auto?"),
            ("forward --for 10", "'10' needs a unit: ns us ms s m h", "linerate forward --help"),
            (
                "forward --for 0s",
                "'0s' for '--for <TIME>': write a time above 0",
                "linerate forward",
            ),
            ("forward --for -1s", "'-1s' for '--for <TIME>': write a time above 0", "linerate"),
            ("forward --for --json", "'--json' for '--for <TIME>': write a time", "linerate"),
            (
                "forward --cpu 0-1",
                "'0-1' for '--cpu <N,..>': write CPU numbers separated by commas",
                "linerate forward --help",
            ),
            (
                "forward --sample x",
                "'x' for '--sample <N>': write a whole number",
                "linerate forward --help",
            ),
            (
                "doctor --undo v0",
                "cannot be used with",
                "use one of the two; linerate doctor --help",
            ),
        ] {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let all = ["linerate".to_owned()].into_iter().chain(words.clone());
            let error = usage(&Args::try_parse_from(all).unwrap_err(), &words).error;
            assert!(error.why.contains(why) && error.fix.starts_with(fix), "{error:?}");
            for part in ["tip:", "Usage", "For more", "error:"] {
                assert!(!error.why.contains(part) && !error.fix.contains(part), "{error:?}");
            }
        }
    }

    #[test]
    fn units_are_required_where_they_are_needed() {
        for bad in [
            "--tx-batch=0",
            "--tx-batch=many",
            "--moderation=nappi",
            "--moderation=fixed:frames=0",
            "--for=10",
            "--count=1.5",
            "--count=0",
            "--budget=0",
            "--budget=1025",
            "--pool-frames=5G",
        ] {
            assert!(Args::try_parse_from(["linerate", "forward", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn memory_is_asked_for_in_the_words_of_the_report() {
        let memory = |words: &str| {
            let all = ["linerate", "forward"].into_iter().chain(words.split_whitespace());
            match Args::try_parse_from(all).unwrap().command {
                Command::Forward(forward) => forward.run.memory,
                other => panic!("{other:?}"),
            }
        };
        let m = memory("");
        assert_eq!((m.buffers, m.init, m.return_to), (Data::Frames, Init::AtAlloc, Return::Local));
        let m = memory("--buffers general --init at_free --return home --jumbo 1k --hot-list 0");
        assert_eq!((m.buffers, m.init, m.return_to), (Data::General, Init::AtFree, Return::Home));
        assert_eq!((m.jumbo, m.hot_list), (Some((1000, 16_384)), Some(0)));
        assert_eq!(memory("--jumbo 8:32768").jumbo, Some((8, 32_768)));
        for bad in ["--buffers=malloc", "--init=never", "--return=", "--jumbo=8:", "--sample=-1"] {
            let e = Args::try_parse_from(["linerate", "forward", bad]).unwrap_err();
            assert_eq!(e.exit_code(), 2, "{bad}");
        }
    }
}
