//! The arguments of `linerate profile`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use linerate::units;
use linerate_prof::proc::PERIOD_MIN;

use super::file::Place;

/// Find out where the CPU's time or events go, by function
///
/// A profile is a file of numbers: record makes one, list prints it, diff ranks what changed between
/// two. Listings of others are read, too: kernprof's and readprofile's, quoted in mail or not, and
/// the text of `perf script`.
#[derive(Debug, Subcommand)]
pub enum Profile {
    Record(Record),
    List(List),
    Diff(Diff),
    Events(Events),
    Watch(Watch),
}

/// Sample a process, a command or the whole machine, and save the profile
///
/// It runs perf, which must be installed. It ends with the process or command, when --for is over, or on
/// Ctrl-C; what was sampled until then is saved. A command does not outlive its recording: perf sends
/// it SIGTERM, and waits for it. Where no counter counts an event of cache lines, a command runs under the
/// MODEL of `linerate lines` instead, which every line says.
#[derive(Debug, Parser)]
#[command(after_long_help = RECORD, override_usage = RECORD_USAGE)]
pub struct Record {
    /// The event to sample: time; an event that `linerate profile events` lists, as in cycles or
    /// page-faults; a raw code of this CPU, as in r1643; or a name of `perf list` with a colon, slash
    /// or dot in it, as in irq_vectors:local_timer_entry
    #[arg(long, value_name = "EVENT", default_value = "time")]
    pub event: String,
    /// Samples for each second of CPU time, if time is sampled: 1000 unless told
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: Option<u32>,
    /// Events for each sample, if an event is: 10007 unless told; a prime keeps it out of step with
    /// loops
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub period: Option<u64>,
    /// Process to sample: all of its threads, and those that it will start
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "command")]
    pub pid: Option<u32>,
    /// All that runs on any CPU, idle time and interrupts included, as root: while the command runs, or, without
    /// one, for as long as told
    #[arg(short, long, conflicts_with_all = ["pid", "user"])]
    pub all_cpus: bool,
    /// End after this time, as in 10s or 500ms
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub time: Option<Duration>,
    /// Record the chain of callers with each sample, by frame pointers: for flame graphs
    #[arg(short = 'g', long)]
    pub call_chains: bool,
    /// Leave the kernel's functions out
    #[arg(long)]
    pub user: bool,
    /// Packets that went through meanwhile, if you know: `linerate profile diff` then compares per
    /// packet, too
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub packets: Option<u64>,
    /// The file to save it in; a file that is there is kept as FILE.old
    #[arg(short, long, value_name = "FILE", default_value = "profile.json")]
    pub output: PathBuf,
    /// Functions to print
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print the profile as one JSON document on stdout instead of saving it; what the command
    /// prints goes to stderr
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
    /// Command to start and to sample from its first instruction, with all that it starts
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Print a profile
#[derive(Debug, Parser)]
#[command(after_long_help = LIST)]
pub struct List {
    /// A profile or a listing; FILE#2 is the second in the file, - is stdin
    #[arg(value_name = "FILE[#N]")]
    pub file: Place,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Form::Table)]
    pub form: Form,
    /// Functions to print; the rest is summed up in one row
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top: usize,
    /// Draw a flame graph into this SVG file
    #[arg(long, value_name = "FILE")]
    pub flame: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long, conflicts_with = "form")]
    pub json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with_all = ["form", "json"])]
    pub csv: bool,
}

/// The output format of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// With share, stage, file, conditions and what it cost to take
    Table,
    /// Ticks, function, ticks for each byte of its code, as readprofile
    Readprofile,
    /// `function [address]: count`, as kernprof
    Kernprof,
    /// Call chains, one a line, for other tools' flame graphs
    Folded,
}

/// Rank what changed between two profiles
///
/// The first is the baseline, the second is with the change. A function that one side does not list
/// was seen fewer times than that side's smallest row, and is printed so: as `< 216`, not as 0.
#[derive(Debug, Parser)]
#[command(after_long_help = DIFF)]
pub struct Diff {
    /// The baseline: without the change
    #[arg(value_name = "WITHOUT[#N]")]
    pub without: Place,
    /// With the change
    #[arg(value_name = "WITH[#N]")]
    pub with: Place,
    /// The unit that counts are scaled to before they are compared
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Per::Run)]
    pub per: Per,
    /// Functions to print: so many that fell most, and as many that rose most; the rest is summed up
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top: usize,
    /// Print function, with, without, difference, and nothing else, absent as 0
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub as_posted: bool,
    /// Draw a differential flame graph into this SVG file
    #[arg(long, value_name = "FILE")]
    pub flame: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Print comma-separated values: of the functions, or the subtotals of the stages
    #[arg(long, value_enum, value_name = "OF", num_args = 0..=1, require_equals = true,
        default_missing_value = "functions", conflicts_with = "json")]
    pub csv: Option<Csv>,
}

/// The part of a report that is printed as comma-separated values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Csv {
    /// A line for each function
    Functions,
    /// A line for each stage
    Stages,
}

/// The unit that counts are scaled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Per {
    /// As they are
    Run,
    /// A second of wall time
    Second,
    /// A thousand packets
    Kpacket,
    /// Parts of all counts: shares hide what became cheaper as a whole
    Share,
}

/// List the events that this machine counts, how many at once, and substitutes for the others
#[derive(Debug, Parser)]
#[command(after_long_help = EVENTS)]
pub struct Events {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Watch the kernel's counters of the machine, at a fixed period
///
/// Interrupts, softirqs, CPU states, network devices, backlog and scheduler. A saved file can be
/// watched again.
#[derive(Debug, Parser)]
#[command(after_long_help = WATCH)]
pub struct Watch {
    /// Time from one look to the next, as in 1s or 100ms; at least 1ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = period)]
    pub every: Duration,
    /// End after this time; without it, on Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub time: Option<Duration>,
    /// Save every figure, one line a look
    #[arg(short, long, value_name = "FILE", conflicts_with = "replay")]
    pub output: Option<PathBuf>,
    /// Replay a saved file instead, as fast as it can be read
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Sum up only what has this in its name, as in eth0 or softirq; may be given again
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Sum up only what has this unit, as in packets/s
    #[arg(long, value_name = "UNIT")]
    pub unit: Option<String>,
    /// Print the lines of a saved file, a JSON document each, instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Parses a period of the series.
fn period(text: &str) -> Result<Duration, String> {
    let period = units::duration(text)?;
    match period < PERIOD_MIN {
        true => Err(format!("'{text}' is shorter than {PERIOD_MIN:?}")),
        false => Ok(period),
    }
}

const RECORD_USAGE: &str = "\
linerate profile record [OPTIONS] --pid <PID>
       linerate profile record [OPTIONS] -- <COMMAND>...
       linerate profile record [OPTIONS] --all-cpus [-- <COMMAND>...]";

const RECORD: &str = "\
Examples:
  linerate profile record -- linerate forward null: null: --for 3s
  linerate profile record --pid 4711 --for 10s -g -o before.json
  sudo linerate profile record --all-cpus --for 10s
  linerate profile record --event L2_LINES_OUT --pid 4711 --for 10s

Exit status: that of COMMAND if it ended by itself, 128 + N if signal N ended it; 0 if it or the
process was recorded for as long as asked; 130 or 143 if SIGINT or SIGTERM ended the recording. If
there is no profile, stderr says why: 1 failed, 2 wrong request, 5 not possible on this machine.";

const LIST: &str = "\
Examples:
  linerate profile list profile.json
  linerate profile list profile.json --flame flame.svg
  linerate profile list old-mail.txt#2 --form kernprof
  perf script | linerate profile list -

Exit status: 0 printed, 1 no such file or no profile in it, 2 wrong request.";

const DIFF: &str = "\
Examples:
  linerate profile diff before.json after.json
  linerate profile diff before.json after.json --per kpacket --flame diff.svg
  linerate profile diff old-mail.txt#1 old-mail.txt#2 --as-posted

Exit status: 0 compared, even if that means little, which the first lines say; 1 no such file or no
profile in it, 2 wrong request, 5 not comparable in this way.";

const EVENTS: &str = "\
Exit status: 0, also on a machine without counters.";

const WATCH: &str = "\
Examples:
  linerate profile watch --only eth0 --only softirq
  linerate profile watch --every 100ms --for 1m -o load.ndjson
  linerate profile watch --replay load.ndjson --only eth0 --unit packets/s

Exit status: 0 done, 1 a file cannot be read or written, 2 wrong request, 130 or 143
ended by SIGINT or SIGTERM; what was seen until then is saved and summed up.";
