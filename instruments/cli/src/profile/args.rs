//! The arguments of `linerate profile`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use linerate::units;
use linerate_prof::proc::PERIOD_MIN;

use super::file::Place;

/// Count CPU time or events by function
///
/// A profile is a file of counts: record writes one, list prints it, diff ranks the changes between
/// two profiles. The commands also read the output of kernprof and readprofile, quoted in mail or
/// not, and of `perf script`.
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
/// This command runs perf, which must be installed. Recording ends when the process or command
/// ends, when --for is over, or on Ctrl-C; the samples until then are saved. At the end of the
/// recording perf sends SIGTERM to the command, and waits for it. If no hardware counter counts an
/// event of cache lines, the command runs under the MODEL of `linerate lines` instead, and every
/// line of output says MODEL; --for, --period and --call-chains are then ignored.
#[derive(Debug, Parser)]
#[command(after_long_help = RECORD, override_usage = RECORD_USAGE)]
pub struct Record {
    /// The event to sample: time; an event that `linerate profile events` lists, as in cycles or
    /// page-faults; a raw code of this CPU, as in r1643; or a name of `perf list` with a colon,
    /// slash or dot in it, as in irq_vectors:local_timer_entry
    #[arg(long, value_name = "EVENT", default_value = "time")]
    pub event: String,
    /// Samples for each second of CPU time, if time is sampled: 997 by default; a round
    /// number may run in step with timers of the program
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: Option<u32>,
    /// Events for each sample, if an event is sampled: 10007 by default; a prime number avoids
    /// aliasing with loops
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub period: Option<u64>,
    /// Process to sample: all its threads, including threads that start later
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "command")]
    pub pid: Option<u32>,
    /// Sample all CPUs, including idle time and interrupts, as root: while the command runs, or,
    /// without a command, for the time of --for
    #[arg(short, long, conflicts_with_all = ["pid", "user"])]
    pub all_cpus: bool,
    /// End after this time, as in 10s or 500ms
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub time: Option<Duration>,
    /// Record the chain of callers with each sample, by frame pointers: for flame graphs
    #[arg(short = 'g', long)]
    pub call_chains: bool,
    /// Do not sample kernel functions
    #[arg(long)]
    pub user: bool,
    /// Packets that passed during the recording, if known: `linerate profile diff` then compares
    /// per packet, too
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub packets: Option<u64>,
    /// File for the profile; an existing file is renamed to FILE.old
    #[arg(short, long, value_name = "FILE", default_value = "profile.json")]
    pub output: PathBuf,
    /// Functions to print
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print the profile as one JSON document on stdout instead of saving it; the command's output
    /// goes to stderr
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
    /// Command to start and to sample from its first instruction, with its child processes
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
    /// Functions to print; the others are summed up in one row
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
    /// With share, stage, file, conditions and cost of the recording
    Table,
    /// Ticks, function, ticks for each byte of its code, as readprofile
    Readprofile,
    /// `function [address]: count`, as kernprof
    Kernprof,
    /// Call chains, one a line, for flame graphs of other tools
    Folded,
}

/// Rank the changes between two profiles, or between several runs of each side
///
/// The first profile is the baseline, the second is with the change. A function that one profile
/// does not list had fewer counts than the smallest row of that profile; it is printed as `< 216`,
/// not as 0. With several runs of each side, their counts are added up, and a change must exceed
/// what the runs differ among themselves.
#[derive(Debug, Parser)]
#[command(after_long_help = DIFF, override_usage = DIFF_USAGE)]
pub struct Diff {
    /// The baseline, without the change; the last one is the profile with the change, unless --with
    /// lists those
    #[arg(value_name = "WITHOUT[#N]", required = true)]
    pub files: Vec<Place>,
    /// Profiles with the change: all others are runs without it
    #[arg(long, value_name = "WITH[#N]", num_args = 1..)]
    pub with: Vec<Place>,
    /// The unit that counts are scaled to before they are compared
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Per::Run)]
    pub per: Per,
    /// Functions to print: N with the largest decrease and N with the largest increase; the others
    /// are summed up
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top: usize,
    /// Print only function, with, without and difference, with 0 for an absent function
    #[arg(long, conflicts_with_all = ["json", "csv", "with"])]
    pub as_posted: bool,
    /// Print call chains: indented below their callers, or one a line for flame graphs of other
    /// tools
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, require_equals = true,
        default_missing_value = "tree", conflicts_with_all = ["json", "csv", "as_posted"])]
    pub chains: Option<ChainForm>,
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

/// The form of the call chains of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ChainForm {
    /// A line for each function, its callees indented below it
    Tree,
    /// A line for each chain, with both counts
    Folded,
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
    /// Not scaled
    Run,
    /// A second of wall time
    Second,
    /// A thousand packets
    Kpacket,
    /// Shares of all counts; shares do not show a change of the total
    Share,
}

/// List the events that this machine counts, how many at once, and substitutes for others
#[derive(Debug, Parser)]
#[command(after_long_help = EVENTS)]
pub struct Events {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Read the kernel's counters of the machine at a fixed interval
///
/// The counters are of interrupts, softirqs, CPU states, network devices, backlog and scheduler. A
/// saved file can be replayed.
#[derive(Debug, Parser)]
#[command(after_long_help = WATCH)]
pub struct Watch {
    /// Interval between two readings, as in 1s or 100ms; at least 1ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = period)]
    pub every: Duration,
    /// End after this time; without it, on Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub time: Option<Duration>,
    /// Save every figure, one line a reading
    #[arg(short, long, value_name = "FILE", conflicts_with = "replay")]
    pub output: Option<PathBuf>,
    /// Replay a saved file instead, as fast as it can be read
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Sum up only figures with this text in their name, as in eth0 or softirq; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Sum up only figures of this unit, as in packets/s
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
process was recorded for the given time; 129, 130 or 143 if SIGHUP, SIGINT or SIGTERM ended the
recording. If there is no profile, stderr says why: 1 failed, 2 wrong request, 5 not possible on
this machine.";

const LIST: &str = "\
Examples:
  linerate profile list profile.json
  linerate profile list profile.json --flame flame.svg
  linerate profile list old-mail.txt#2 --form kernprof
  perf script | linerate profile list -

Exit status: 0 printed, 1 no such file or no profile in it, 2 wrong request.";

const DIFF_USAGE: &str = "\
linerate profile diff [OPTIONS] <WITHOUT[#N]> <WITH[#N]>
       linerate profile diff [OPTIONS] <WITHOUT[#N]>... --with <WITH[#N]>...";

const DIFF: &str = "\
Examples:
  linerate profile diff before.json after.json
  linerate profile diff before*.json --with after*.json
  linerate profile diff before.json after.json --per kpacket --flame diff.svg
  linerate profile diff before.json after.json --chains
  linerate profile diff old-mail.txt#1 old-mail.txt#2 --as-posted

Exit status: 0 compared (the first lines say if the comparison means little), 1 no such file or no
profile in it, 2 wrong request, 5 not comparable in this way.";

const EVENTS: &str = "\
Exit status: 0, also on a machine without counters.";

const WATCH: &str = "\
Examples:
  linerate profile watch --only eth0 --only softirq
  linerate profile watch --every 100ms --for 1m -o load.ndjson
  linerate profile watch --replay load.ndjson --only eth0 --unit packets/s

Exit status: 0 done, 1 a file cannot be read or written, 2 wrong request, 129, 130 or
143 ended by SIGHUP, SIGINT or SIGTERM; the readings until then are saved and summed up.";
