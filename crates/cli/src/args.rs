//! The command line: its commands and options.

mod help;
mod refusal;
mod values;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use linerate::{Data, Init, Moderation, Registry, Return, TxBatch, knob, units, wire};
use linerate_ctl::pool::{BUFFERS, INIT, RETURN};

use help::{FORWARD, GEN, after_help};
use values::{
    effect, frame_bytes, frames, jumbo, number, one_of, one_value, packets, rate, receiver,
    setting, time,
};

pub use refusal::refuse;
pub use values::cpu;

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
/// Do not join two interfaces of one network: packets would circulate, because this is a bridge
/// without spanning tree.
///
/// Without ports the command runs a self-test of 3 s: gen -> path -> memif. A second process reads
/// the packets of the memif without a copy and verifies them. The rate is 124 MB/s in frames of
/// 1514 bytes first, then the highest possible. If no second process can be started, the test is
/// gen -> path -> ring -> sink.
///
/// The run ends when its sources have ended, when --for or --count is reached, or on Ctrl-C. Then
/// it sends the packets still in flight, for up to 2 s, and prints the ledger: every packet that
/// came in was sent, consumed, or dropped for a reason.
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
    /// Report when the ports are open, and end when standard input ends: for a process that a run
    /// starts
    #[arg(long, hide = true, requires = "left")]
    pub beside: bool,
}

/// Send numbered packets to a port at a fixed rate
///
/// Each packet has a scheduled time. The report counts requested packets, sent packets and their
/// delay after the schedule; it counts received and lost packets separately.
#[derive(Debug, Parser)]
#[command(after_long_help = GEN)]
pub struct Gen {
    /// The port to send to: driver:arg[,key=value]; a verifying sink reads the other end of a ring
    pub port: String,
    /// Packets or bits a second, as in 1.5Mpps or 4Gbps; by default the highest possible rate, for
    /// which --for, --count, or shape= in the text of the port is needed on an interface that the
    /// host itself uses
    #[arg(long, value_parser = rate)]
    pub rate: Option<String>,
    /// Packets sent together at each wake-up, 1 to 1024; by default chosen by the rate, so that
    /// wake-ups cost little CPU time and are at most 1 ms apart
    #[arg(long, value_name = "N", requires = "rate",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub burst: Option<u16>,
    /// Send UDP datagrams to this address and port, as in 192.0.2.7:7777 or [2001:db8::7]:7777;
    /// routes and neighbours of the port's interface give the MAC and source addresses, unless
    /// --mac and --from are given
    #[arg(long, value_name = "ADDR:PORT", value_parser = receiver)]
    pub to: Option<SocketAddr>,
    /// MAC address of the next hop to the address of --to
    #[arg(long, requires = "to")]
    pub mac: Option<wire::Mac>,
    /// Source address of the datagrams, and source port of the first flow: 192.0.2.1 or
    /// 192.0.2.1:5000
    #[arg(long, value_name = "ADDR[:PORT]", requires = "to", value_parser = one_value)]
    pub from: Option<String>,
    /// Bytes of a frame without FCS, or imix: 7 of 60, 4 of 590 and 1 of 1514 in every 12; by
    /// default the shortest: 60, or 70 and 90 for datagrams of IPv4 and IPv6
    #[arg(long, value_parser = one_value)]
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
    /// Print the ledger only: packets of each port, drops, balance and problems; no port lines, no
    /// rates, no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// CPUs to pin the workers to, as in 0,1: the first worker to the first CPU. Each wire has one
    /// worker; workers beyond the CPUs named are not pinned. With more CPUs than wires, a wire may
    /// have several workers, and queue i of both ends belongs to one of them
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = cpu)]
    pub cpu: Vec<usize>,
    /// Search for better CPUs during the run, which takes up to 14 s, with interrupts 46 s. The
    /// search measures the CPU time of a packet in several placements, then the first and the best
    /// ones in turn, and keeps another one only if its gain exceeds the spread of these
    /// measurements. workers: moves the workers only; auto: also moves the interrupts (irqs or NAPI
    /// threads) of the ports' interfaces; napi: as auto, and starts NAPI threads where there are
    /// none
    #[arg(long, value_name = "WHAT", value_parser = ["auto", "napi", "workers"])]
    pub place: Option<String>,
    #[arg(long, value_name = "N", help = effect(&knob::BUDGET), value_parser = number(&knob::BUDGET),
        default_value_t = knob::BUDGET.default)]
    pub budget: u64,
    /// Interrupt moderation of ports without the option `moderation=`: interrupt, napi,
    /// fixed[:usecs=100,frames=32], dim, adaptive[:latency=250us|:cpu=20%] or busy
    #[arg(long, value_name = "MODE", default_value = "adaptive", value_parser = setting::<Moderation>)]
    pub moderation: Moderation,
    /// Packets sent to a port's device with one doorbell, for ports without the option `tx_batch=`:
    /// 1 (a doorbell for each packet) to 1024, or auto
    #[arg(long, value_name = "N", default_value = "auto", value_parser = setting::<TxBatch>)]
    pub tx_batch: TxBatch,
    /// Create a socket at this path, through which `linerate tune PATH` shows and changes the
    /// settings of the run; it answers only this user and root
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
    /// Frames of the packet pool; by default the sum of the frames that rings, queues and workers
    /// can hold
    #[arg(long, value_name = "N", value_parser = frames)]
    pub pool_frames: Option<u32>,
    #[arg(long, value_name = "BYTES", help = effect(&knob::FRAME_SIZE), value_parser = frame_bytes)]
    pub frame_size: Option<u32>,
    /// Frames of a second class, for packets longer than an ordinary frame; BYTES is 16384 by
    /// default
    #[arg(long, value_name = "FRAMES[:BYTES]", value_parser = jumbo)]
    pub jumbo: Option<(u32, u32)>,
    /// Make frames as large as the longest packet of any port, up to 64 KiB, so that each packet is
    /// in one frame
    #[arg(long)]
    pub fit: bool,
    #[arg(long, value_name = "N", help = effect(&knob::HOT_LIST), value_parser = frames)]
    pub hot_list: Option<u32>,
    /// Source of the memory for packet data: frames of the pool, or one allocation a packet from
    /// the system's allocator
    #[arg(long, value_name = "WHICH", default_value = "frames", value_parser = one_of(&BUFFERS))]
    pub buffers: Data,
    /// Time at which packets' metadata is initialised
    #[arg(long, value_name = "WHEN", default_value = "at_alloc", value_parser = one_of(&INIT))]
    pub init: Init,
    /// Worker that gets a frame freed by another worker: local, the one that freed it; home, the
    /// one that allocated it
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
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
