//! The arguments of `linerate lab`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Rerun experiments, and check ourselves on the posts that they come from
#[derive(Debug, Parser)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Lab {
    #[command(subcommand)]
    pub command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    List(List),
    Show(Show),
    Run(Run),
    Report(Report),
    Compare(Compare),
    Triage(Triage),
    Export(Export),
    Seeds(Seeds),
    /// One window of a benchmark beside a peer's, for the experiment that runs both in turn
    #[command(hide = true)]
    Sample(Sample),
    /// The process at the far side of a fabric, which looks at packets where their sender has them
    #[command(hide = true)]
    Look(Look),
    /// A sender of the scenario `host`, in a process of its own
    #[command(hide = true)]
    Play,
    /// A generator in the kernel, for the script that puts packets through a program
    #[command(hide = true)]
    Flood(Flood),
}

/// List the experiments, how long they take, and which can be run on this machine
#[derive(Debug, Parser)]
pub struct List {
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
}

/// Print an experiment: its question, its method, the expected results and their sources
#[derive(Debug, Parser)]
#[command(after_long_help = SHOW)]
pub struct Show {
    /// One of ours by its name, or a file of your own by its path
    #[arg(value_name = "ID|FILE")]
    pub experiment: String,
    /// Print its file, to start one of your own from
    #[arg(long, conflicts_with = "json")]
    pub toml: bool,
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
}

/// Run an experiment, and keep every window of it
///
/// Both sides, and the first a second time as a control, run in adjacent windows in random order.
/// A cell ends at the first analysis whose interval is narrow enough. Pairs that the machine disturbed are
/// run again and kept, marked; none is left out for what it says.
#[derive(Debug, Parser)]
#[command(after_long_help = RUN)]
pub struct Run {
    /// One of ours by its name, or a file of your own by its path
    #[arg(value_name = "ID|FILE", required_unless_present = "resume")]
    pub experiment: Option<String>,
    /// Run the quick subset only, in at most a minute; what it says is marked as quick
    #[arg(long)]
    pub quick: bool,
    /// Run only cells that have these factor values
    #[arg(long, value_name = "FACTOR=LEVEL,..", value_delimiter = ',', value_parser = level)]
    pub only: Vec<(String, String)>,
    /// Start the order of sides and the traffic from this number, to do the same again
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// CPUs to run on: the measured one, then its peer's; the last two that we may use unless given
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub cpu: Vec<usize>,
    /// The folder in which runs are kept
    #[arg(long, value_name = "DIR", default_value = "lab")]
    pub dir: PathBuf,
    /// Go on with a run that was interrupted: its name, its directory, or last
    #[arg(long, value_name = "RUN", conflicts_with_all = ["quick", "only", "seed", "cpu", "note"])]
    pub resume: Option<String>,
    /// A remark for the record
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Print the run as one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
    /// Print the result only: no options, no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// The directory in which runs are looked up.
#[derive(Debug, clap::Args)]
pub struct Kept {
    /// The folder in which runs are kept
    #[arg(long, value_name = "DIR", default_value = "lab")]
    pub dir: PathBuf,
}

/// Print a run, as text or as one HTML file that needs no network
#[derive(Debug, Parser)]
#[command(after_long_help = REPORT)]
pub struct Report {
    /// A run's name, its directory, or last; of several the first is printed, and all are drawn over
    /// time
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,
    #[command(flatten)]
    pub kept: Kept,
    /// Write it as one HTML file, with its figures and plots
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub html: Option<PathBuf>,
    /// Print the run as one JSON document on stdout, a list if there are several
    #[arg(long)]
    pub json: bool,
}

/// Compare the changed side of a run with that of another, to see what a version changed
///
/// Counts are compared between any machines, times only between those that are alike; and both only
/// where the distance between the CPUs was the same. With --allow-env all of it is compared.
#[derive(Debug, Parser)]
#[command(after_long_help = COMPARE)]
pub struct Compare {
    /// The baseline: a run's name, its directory, or last
    #[arg(value_name = "RUN")]
    pub baseline: String,
    /// Runs to compare with the baseline, each by itself
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,
    #[command(flatten)]
    pub kept: Kept,
    /// Fail if a metric changed by more, as in 'instructions_per_packet>+1%'; may be given again
    #[arg(long, value_name = "EXPR")]
    pub fail_on: Vec<String>,
    /// Compare also where the machines differ, or how far their CPUs were from each other
    #[arg(long)]
    pub allow_env: bool,
    /// Print one JSON document on stdout, a list if there are several comparisons
    #[arg(long)]
    pub json: bool,
}

/// Name the cause of losses and disorder in a run of batches: core, driver, device or receiver
///
/// The cell is taken in which TCP sent most again with batches. Each part of the way has a count of what
/// entered it less what left it. What a run does not tell, --extra may: windows with a second device, with
/// a cap of 2, and of numbered datagrams, for half a minute.
#[derive(Debug, Parser)]
#[command(after_long_help = TRIAGE)]
pub struct Triage {
    /// A run's name, its directory, or last
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Look only at cells that have these factor values
    #[arg(long, value_name = "FACTOR=LEVEL,..", value_delimiter = ',', value_parser = level)]
    pub only: Vec<(String, String)>,
    /// Run windows for it, as root
    #[arg(long)]
    pub extra: bool,
    /// CPUs of these windows; the last two that we may use unless given
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "extra")]
    pub cpu: Vec<usize>,
    #[command(flatten)]
    pub kept: Kept,
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
}

/// Write a run's figures in a form for other programs
#[derive(Debug, Parser)]
#[command(after_long_help = EXPORT)]
pub struct Export {
    /// A run's name, its directory, or last
    #[arg(value_name = "RUN")]
    pub run: String,
    #[command(flatten)]
    pub kept: Kept,
    /// Write comma-separated values to this file, or to stdout with -
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-",
        required = true)]
    pub csv: Option<PathBuf>,
    /// The findings of each cell, instead of every window
    #[arg(long)]
    pub effects: bool,
}

/// Compute the figures of the five posts again, and list their errors
///
/// Five posts, of 2002 to 2007, are where this program comes from. They are read as they were
/// posted, by the readers that read a profile of today, and every figure in them is computed again:
/// changes, sums, differences, who freed what. A figure that differs from the post's where the two
/// should be equal is a failed check, and the exit status is 3.
#[derive(Debug, Parser)]
#[command(after_long_help = SEEDS)]
pub struct Seeds {
    /// Posts, by number or by experiment: 000 or pool, 001 or coalesce, 002 or batch, 003 or bounce,
    /// 004 or skbinit; all of them unless given
    #[arg(value_name = "POST")]
    pub posts: Vec<String>,
    /// Print the posts' tables only, computed again, in the posts' own form
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub as_posted: bool,
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Write every table as CSV, to a file of its own in this directory, or all to stdout with -
    #[arg(long, value_name = "DIR")]
    pub csv: Option<PathBuf>,
    /// Read the posts from this directory, by their archived names, instead of the built-in copies
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
}

/// The arguments of `lab buffers`: a side, a case and options, as [`linerate_lab::buffers::sample`]
/// takes them.
#[derive(Debug, Parser)]
pub struct Sample {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// A memif, a CPU, and how to look, as [`linerate_lab::far::serve`] takes them.
#[derive(Debug, Parser)]
pub struct Look {
    #[arg(allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// An interface and the bytes of a frame, as [`linerate_lab::flood::send`] takes them.
#[derive(Debug, Parser)]
pub struct Flood {
    pub interface: String,
    pub size: usize,
}

/// Parses a factor and its value.
fn level(text: &str) -> Result<(String, String), String> {
    let (factor, level) = text.split_once('=').ok_or("it is not FACTOR=LEVEL")?;
    Ok((factor.trim().to_owned(), level.trim().to_owned()))
}

const SHOW: &str = "\
Examples:
  linerate lab show skbinit
  linerate lab show skbinit --toml > mine.toml     a template for one of your own
  linerate lab show ./mine.toml

Exit status: 0 printed, 2 no such experiment, or something is wrong in its file.";

const RUN: &str = "\
Examples:
  linerate lab run skbinit --quick                 a first look, within a minute
  linerate lab run skbinit                         the whole grid
  linerate lab run skbinit --only case=remote      one cell of it
  linerate lab run ./mine.toml --cpu 1,0           your own, measured on CPU 1
  linerate lab run --resume last                   after an interruption

Exit status: 0 done, 1 failed, 2 wrong request or experiment, 4 inconclusive: the machine was too
noisy, 5 nothing of it can be run on this machine, 6 packets are unaccounted for, and results are
withheld; 130 or 143 if SIGINT or SIGTERM ended it: the pairs so far are kept, and --resume goes on
with them.";

const REPORT: &str = "\
Examples:
  linerate lab report last
  linerate lab report last --html report.html
  linerate lab report 20261121T101500Z-skbinit 20261128T090000Z-skbinit --html trend.html

Exit status: 0 printed, 1 the run cannot be read, 2 wrong request, 6 packets are unaccounted for.";

const COMPARE: &str = "\
Examples:
  linerate lab compare 20261121T101500Z-pool last
  linerate lab compare main/ pr/ --fail-on 'instructions_per_packet>+1%'
  linerate lab compare main/ pr/ --fail-on 'rate=max:cost_ns_per_packet>+5%' --allow-env

Exit status: 0 compared, and no --fail-on condition is met; 1 they cannot be compared;
2 wrong request; 3 a --fail-on condition is met; 4 none is met, and one cannot be decided;
6 packets are unaccounted for.";

const TRIAGE: &str = "\
Examples:
  linerate lab triage last                          what a kept run of batch tells
  sudo linerate lab triage last --extra             windows run for it
  linerate lab triage last --only device=packet

Exit status: 0 a cause is named, or there is none; 1 the run cannot be read; 2 wrong request;
4 it cannot be told, and the output says what would tell it.";

const EXPORT: &str = "\
Examples:
  linerate lab export last --csv windows.csv       every window, as it was measured
  linerate lab export last --effects --csv -       the findings of each cell

Exit status: 0 written, 1 the run cannot be read or the file not written, 2 wrong request.";

const SEEDS: &str = "\
Examples:
  linerate lab seeds                    all five
  linerate lab seeds 003                lines that left the L2 cache, with and without affinity
  linerate lab seeds batch --as-posted  post 002's table, as posted
  linerate lab seeds --csv seeds/       every table as a file

Exit status: 0 all as expected, 1 a post cannot be read, 2 wrong request, 3 a check failed.";
