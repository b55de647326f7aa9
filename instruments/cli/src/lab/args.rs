//! The arguments of `linerate lab`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use linerate_lab::experiment::Plan;

/// Run experiments, and recompute the figures of the posts that they are based on
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
    /// Run one window of a benchmark, for an experiment that compares it with another program's
    #[command(hide = true)]
    Sample(Sample),
    /// Run the receiving process of a fabric, which reads packets in the sender's memory
    #[command(hide = true)]
    Look(Look),
    /// Run a sender of the scenario `host`
    #[command(hide = true)]
    Play,
    /// Run a generator in the kernel, for the script that sends packets through a program
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
    /// The name of a built-in experiment, or the path of a file
    #[arg(value_name = "ID|FILE")]
    pub experiment: String,
    /// Print the experiment's file, as a template for your own
    #[arg(long, conflicts_with = "json")]
    pub toml: bool,
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
}

/// Run an experiment, and save all its windows
///
/// The two sides, and the first side again as a control, run in adjacent windows in random order.
/// Results are analysed during the run, and a cell ends when its interval is narrow enough. Pairs
/// that other processes disturbed are repeated; the disturbed ones are kept and marked. No pair is
/// left out because of its result.
#[derive(Debug, Parser)]
#[command(after_long_help = RUN)]
pub struct Run {
    /// The name of a built-in experiment, or the path of a file
    #[arg(value_name = "ID|FILE", required_unless_present = "resume")]
    pub experiment: Option<String>,
    /// Run the quick subset only; `linerate lab list` has its time, without set-ups and repeated
    /// pairs. The results are marked as quick
    #[arg(long)]
    pub quick: bool,
    /// Run only cells that have these factor values; a factor may be named again, for another level
    #[arg(long, value_name = "FACTOR=LEVEL,..", value_delimiter = ',', value_parser = level)]
    pub only: Vec<(String, String)>,
    /// Most pairs to run, as a multiple of the pairs that must be undisturbed: more on a noisy
    /// machine
    #[arg(long, value_name = "N", default_value_t = Plan::ATTEMPTS, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub attempts: u32,
    /// Seed of the random order of sides and of the traffic, to repeat a run
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// CPUs to run on: the measured one, then its peer's; by default the last two that this process
    /// may use
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = linerate_cli::cpu)]
    pub cpu: Vec<usize>,
    /// The folder in which runs are kept
    #[arg(long, value_name = "DIR", default_value = "lab")]
    pub dir: PathBuf,
    /// Resume an interrupted run: its name, its directory, or last
    #[arg(long, value_name = "RUN", conflicts_with_all = ["quick", "only", "attempts", "seed", "cpu", "note"])]
    pub resume: Option<String>,
    /// A remark for the record
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Print the run as one JSON document on stdout, errors included; the exit status stays the
    /// same
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
    /// A run's name, its directory, or last; with several, all are printed, and --html shows the
    /// first, with a plot of all over time
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,
    #[command(flatten)]
    pub kept: Kept,
    /// Write the report as one HTML file, with figures and plots
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub html: Option<PathBuf>,
    /// Print the run as one JSON document on stdout, a list if there are several
    #[arg(long)]
    pub json: bool,
}

/// Compare the changed sides of two runs, to see the effect of a new version
///
/// Counts are compared between any two machines, times only between equal machines, and both only
/// if the settings and the distance between the CPUs were the same. With --allow-env all metrics
/// are compared.
#[derive(Debug, Parser)]
#[command(after_long_help = COMPARE)]
pub struct Compare {
    /// The baseline: a run's name, its directory, or last
    #[arg(value_name = "RUN")]
    pub baseline: String,
    /// Runs to compare with the baseline, one by one
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,
    #[command(flatten)]
    pub kept: Kept,
    /// Fail if a metric changed by more, as in 'locks_per_packet>+1%'; may be repeated
    #[arg(long, value_name = "EXPR")]
    pub fail_on: Vec<String>,
    /// Compare also if the machines, the distances between their CPUs or the settings differ
    #[arg(long)]
    pub allow_env: bool,
    /// Print one JSON document on stdout, a list if there are several comparisons
    #[arg(long)]
    pub json: bool,
}

/// Name the cause of losses and disorder in a run of batches: core, driver, device or receiver
///
/// Triage reads the cell in which TCP retransmitted most with batches. For each part of the path it
/// subtracts the packets that left from the packets that entered. If the run does not show the
/// cause, --extra runs more windows for half a minute: with a second device, with a batch limit of
/// 2, and with numbered datagrams.
#[derive(Debug, Parser)]
#[command(after_long_help = TRIAGE)]
pub struct Triage {
    /// A run's name, its directory, or last
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Read only cells that have these factor values
    #[arg(long, value_name = "FACTOR=LEVEL,..", value_delimiter = ',', value_parser = level)]
    pub only: Vec<(String, String)>,
    /// Run more windows, as root
    #[arg(long)]
    pub extra: bool,
    /// CPUs of these windows; by default the last two that this process may use
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = linerate_cli::cpu, requires = "extra")]
    pub cpu: Vec<usize>,
    #[command(flatten)]
    pub kept: Kept,
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
}

/// Write a run's figures in a format for other programs
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
    /// Write the findings of each cell, instead of every window
    #[arg(long)]
    pub effects: bool,
}

/// Recompute the figures of the five posts, and list their errors
///
/// This program is based on five posts of 2002 to 2007. The command reads the original posts with
/// the same parsers as profiles of today, and recomputes every figure: changes, sums, differences,
/// and which CPU freed which buffers. If a recomputed figure should equal the post's and does not,
/// the check fails, and the exit status is 3.
#[derive(Debug, Parser)]
#[command(after_long_help = SEEDS)]
pub struct Seeds {
    /// Posts, by number or by experiment: 000 or pool, 001 or coalesce, 002 or batch, 003 or
    /// bounce, 004 or skbinit; by default all
    #[arg(value_name = "POST")]
    pub posts: Vec<String>,
    /// Print only the recomputed tables, in the form of the posts
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub as_posted: bool,
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Write every table as CSV, one file each in this directory, or all to stdout with -
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
    let (factor, level) = text.split_once('=').ok_or("write FACTOR=LEVEL")?;
    Ok((factor.trim().to_owned(), level.trim().to_owned()))
}

const SHOW: &str = "\
Examples:
  linerate lab show skbinit
  linerate lab show skbinit --toml > mine.toml     a template for your own
  linerate lab show ./mine.toml

Exit status: 0 printed, 2 no such experiment, or its file has an error.";

const RUN: &str = "\
Examples:
  linerate lab run skbinit --quick                 a first look
  linerate lab run skbinit                         the whole grid
  linerate lab run skbinit --only case=remote      one cell of it
  linerate lab run ./mine.toml --cpu 1,0           your own, measured on CPU 1
  linerate lab run --resume last                   after an interruption

Exit status: 0 done, 1 failed, 2 wrong request or experiment, 4 inconclusive: the machine was too
noisy, 5 no cell can be run on this machine, 6 packets are unaccounted for, and results are
withheld; 129, 130 or 143 if SIGHUP, SIGINT or SIGTERM ended it: the pairs so far are saved, and
--resume continues with them.";

const REPORT: &str = "\
Examples:
  linerate lab report last
  linerate lab report last --html report.html
  linerate lab report 20261121T101500Z-skbinit 20261128T090000Z-skbinit --html trend.html

Exit status: 0 printed, 1 the run cannot be read, 2 wrong request, 6 packets are unaccounted for.";

const COMPARE: &str = "\
Examples:
  linerate lab compare 20261121T101500Z-pool last
  linerate lab compare main/ pr/ --fail-on 'locks_per_packet>+1%'
  linerate lab compare main/ pr/ --fail-on 'rate=max:cost_ns_per_packet>+5%' --allow-env

Exit status: 0 compared, and no --fail-on condition is met; 1 they cannot be compared;
2 wrong request; 3 a --fail-on condition is met; 4 none is met, and one cannot be decided;
6 packets are unaccounted for, whatever the conditions say.";

const TRIAGE: &str = "\
Examples:
  linerate lab triage last                          from a saved run of batch
  sudo linerate lab triage last --extra             with more windows
  linerate lab triage last --only device=packet

Exit status: 0 a cause is named, or there is none; 1 the run cannot be read; 2 wrong request;
4 the cause is unknown, and the output says how to find it; 6 packets are unaccounted for.";

const EXPORT: &str = "\
Examples:
  linerate lab export last --csv windows.csv       every window, as it was measured
  linerate lab export last --effects --csv -       the findings of each cell

Exit status: 0 written, 1 the run cannot be read or the file not written, 2 wrong request,
6 packets are unaccounted for.";

const SEEDS: &str = "\
Examples:
  linerate lab seeds                    all five
  linerate lab seeds 003                lines that left the L2 cache, with and without affinity
  linerate lab seeds batch --as-posted  post 002's table, as posted
  linerate lab seeds --csv seeds/       every table as a file

Exit status: 0 all as expected, 1 a post cannot be read, 2 wrong request, 3 a check failed.";
