//! What a side is told.

use linerate_datapath::{Data, Init, Return};

use crate::scenario::{Knob, Place};
use crate::settings::{Settings, Value, wrong};
use crate::{Code, Error, Result};

/// Messages or requests a second that a connection may be asked for: each that is due is counted,
/// however few of them are sent.
const PER_SECOND_MAX: f64 = 1e6;

pub(super) const KNOBS: [Knob; 17] = [
    knob(
        "topology",
        "\"joined\" | \"split\"",
        "joined",
        "joined: a pair of ports is served by one worker, on one CPU; split: one worker receives and, behind a ring, another one sends, on the other CPU",
    ),
    knob(
        "adapters",
        "1..=2",
        "1",
        "pairs of packet ports, each between two hosts of its own addresses",
    ),
    knob(
        "workload",
        "\"stream\" | \"web\"",
        "stream",
        "stream: bulk TCP one way, as netperf's TCP_STREAM; web: many short responses of mixed sizes, files of the sizes and shares that we know of SPECweb99; connections stay open for as many requests as we draw",
    ),
    knob(
        "rate",
        "\"max\" | a number above 0",
        "max",
        "bytes a second (stream) or requests a second (web) over all connections, sent at their times whatever the answers; max: as fast as TCP takes them",
    ),
    knob(
        "connections",
        "1..=64",
        "1 (stream), 16 (web)",
        "TCP connections at a time through each pair of ports",
    ),
    knob("message", "1..=1048576", "4096", "bytes of a stream's write"),
    knob(
        "sockbuf",
        "4096..=16777216",
        "65536",
        "bytes asked for each socket buffer (SO_SNDBUF, SO_RCVBUF); the kernel doubles it for its own accounts",
    ),
    knob(
        "offload",
        "\"on\" | \"off\"",
        "off",
        "off: packets as a wire carries them, one buffer each; on: superframes of up to 64 KiB, which hide what a buffer costs a packet",
    ),
    knob(
        "probes",
        "0..=10000",
        "1250",
        "small datagrams a second from west to east whose way is timed; 0: none",
    ),
    knob(
        "buffers",
        "\"frames\" | \"general\"",
        "frames",
        "where packets' bytes come from: frames of a pool, or the system's allocator once a packet",
    ),
    knob("hot_list", "0..=65536", "1024", "free frames that a worker keeps for itself"),
    knob(
        "init",
        "\"at_alloc\" | \"at_free\"",
        "at_alloc",
        "when a packet's metadata is initialised",
    ),
    knob("return", "\"local\" | \"home\"", "local", "where a frame goes that another core frees"),
    knob("budget", "1..=1024", "64", "packets from one queue in one turn"),
    knob(
        "ring_len",
        "a power of two, 2..=65536",
        "1024",
        "packets each way in the ring between two workers",
    ),
    knob(
        "sample_every",
        "0..=1000000",
        "0",
        "times every n-th call that allocates or frees; 0: none",
    ),
    knob(
        "ring_bytes",
        "524288..=1073741824, a power of two",
        "8388608",
        "bytes of each port's receive ring in the kernel",
    ),
];

/// What the connections carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    /// Bulk TCP.
    Stream,
    /// Short responses.
    Web,
}

/// How an engine is to be made.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Engineering {
    pub data: Data,
    pub hot_list: usize,
    pub init: Init,
    pub return_to: Return,
    pub budget: usize,
    pub ring_len: u64,
    pub ring_bytes: u64,
    pub sample_every: u32,
}

/// A side, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    pub split: bool,
    pub adapters: usize,
    pub workload: Workload,
    /// Bytes or requests a second over all connections; `None`: as fast as it goes.
    pub rate: Option<f64>,
    /// Through each pair of ports.
    pub connections: usize,
    pub message: usize,
    pub sockbuf: usize,
    pub offload: bool,
    pub probes: u32,
    pub engine: Engineering,
    /// CPU of each worker.
    pub workers: Vec<usize>,
    /// CPU of the hosts' programs.
    pub traffic: usize,
    pub seed: u64,
}

impl Config {
    /// Reads `settings`, and deals out the CPUs of `place`.
    ///
    /// # Errors
    /// `E-EXPERIMENT` with the line of what is wrong; `E-UNSUPPORTED` with too few CPUs.
    pub fn of(settings: &Settings, place: &Place) -> Result<Config> {
        let mut reading = settings.reading("host");
        let split = reading.choice("topology", &[("joined", false), ("split", true)])?;
        let adapters = reading.count("adapters", 1..=2)?.unwrap_or(1) as usize;
        let workloads = [("stream", Workload::Stream), ("web", Workload::Web)];
        let workload = reading.choice("workload", &workloads)?.unwrap_or(Workload::Stream);
        let rate = match settings.get("rate").map(|setting| &setting.value) {
            None | Some(Value::Text(_)) => reading.choice("rate", &[("max", ())])?.and(None),
            Some(_) => reading.number("rate")?,
        };
        let connections = match workload {
            Workload::Stream => 1,
            Workload::Web => 16,
        };
        let connections = reading.count("connections", 1..=64)?.unwrap_or(connections);
        let message = reading.count("message", 1..=1 << 20)?.unwrap_or(4096) as usize;
        let sockbuf = reading.count("sockbuf", 4096..=1 << 24)?.unwrap_or(65_536) as usize;
        let offload = reading.choice("offload", &[("on", true), ("off", false)])?;
        let probes = reading.count("probes", 0..=10_000)?.unwrap_or(1250) as u32;
        let engine = Engineering {
            data: reading
                .choice("buffers", &[("frames", Data::Frames), ("general", Data::General)])?
                .unwrap_or_default(),
            hot_list: reading.count("hot_list", 0..=65_536)?.unwrap_or(1024) as usize,
            init: reading
                .choice("init", &[("at_alloc", Init::AtAlloc), ("at_free", Init::AtFree)])?
                .unwrap_or_default(),
            return_to: reading
                .choice("return", &[("local", Return::Local), ("home", Return::Home)])?
                .unwrap_or_default(),
            budget: reading.count("budget", 1..=1024)?.unwrap_or(64) as usize,
            ring_len: reading.count("ring_len", 2..=65_536)?.unwrap_or(1024),
            ring_bytes: reading.count("ring_bytes", 512 << 10..=1 << 30)?.unwrap_or(8 << 20),
            sample_every: reading.count("sample_every", 0..=1_000_000)?.unwrap_or(0) as u32,
        };
        reading.finish()?;
        power_of_two(settings, "ring_len", engine.ring_len)?;
        power_of_two(settings, "ring_bytes", engine.ring_bytes)?;
        let connections = connections as usize;
        let bytes = if workload == Workload::Stream { message } else { 1 };
        possible(settings, rate.unwrap_or(0.0) / (bytes * adapters * connections) as f64)?;
        let split = split.unwrap_or(false);
        let (workers, traffic) = cpus(split, adapters, &place.cpus)?;
        Ok(Config {
            split,
            adapters,
            workload,
            rate,
            connections,
            message,
            sockbuf,
            offload: offload.unwrap_or(false),
            probes,
            engine,
            workers,
            traffic,
            seed: place.seed,
        })
    }

    /// The CPUs of its workers, then that of the traffic, each once.
    pub fn cpus(&self) -> Vec<usize> {
        let mut cpus = Vec::new();
        for cpu in self.workers.iter().chain([&self.traffic]) {
            if !cpus.contains(cpu) {
                cpus.push(*cpu);
            }
        }
        cpus
    }

    /// Whether a worker's CPU also has the hosts' programs.
    pub fn crowded(&self) -> bool {
        self.workers.contains(&self.traffic)
    }
}

/// The CPU of each worker, and that of the hosts' programs: one that no worker has, if there is one.
fn cpus(split: bool, adapters: usize, cpus: &[usize]) -> Result<(Vec<usize>, usize)> {
    let what = "cannot place the workers";
    let few = |why: &str| Error::new(Code::Unsupported, what, why);
    let Some(&first) = cpus.first() else { return Err(few("no CPU is given")) };
    let workers = match (split, adapters, cpus.get(1)) {
        (false, 1, _) => vec![first],
        (_, _, None) => {
            let why = "two workers on two CPUs are asked for, and one CPU is given";
            return Err(few(why).fix("topology = \"joined\" and adapters = 1"));
        }
        (false, _, Some(&second)) => vec![first, second],
        // Each pair of ports: the one that receives from west, then the one that sends to east.
        (true, _, Some(&second)) => [first, second].repeat(adapters),
    };
    let free = cpus.iter().find(|cpu| !workers.contains(cpu));
    let traffic = free.or(cpus.last()).copied().unwrap_or(first);
    Ok((workers, traffic))
}

/// Refuses a rate of more messages a second over a connection than may be asked for.
fn possible(settings: &Settings, per_second: f64) -> Result<()> {
    let line = settings.get("rate").map_or(0, |setting| setting.line);
    if per_second <= PER_SECOND_MAX {
        Ok(())
    } else {
        let why = format!("more than {PER_SECOND_MAX} messages a second over a connection");
        Err(wrong(line, format!("rate asks for {why}")))
    }
}

fn power_of_two(settings: &Settings, name: &str, n: u64) -> Result<()> {
    let line = settings.get(name).map_or(0, |setting| setting.line);
    if n.is_power_of_two() {
        Ok(())
    } else {
        Err(wrong(line, format!("{name} = {n} is not a power of two")))
    }
}

const fn knob(
    name: &'static str,
    values: &'static str,
    default: &'static str,
    about: &'static str,
) -> Knob {
    Knob { name, values, default, about }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::settings::Setting;

    fn place(cpus: &[usize]) -> Place {
        Place { cpus: cpus.to_vec(), seed: 1, program: None, stop: Arc::default() }
    }

    #[test]
    fn the_defaults_are_those_of_post_004() {
        let config = Config::of(&Settings::new(), &place(&[3, 5])).unwrap();
        assert_eq!((config.message, config.sockbuf), (4096, 65_536));
        assert_eq!((config.workers.as_slice(), config.traffic), (&[3][..], 5));
        assert_eq!(config.cpus(), [3, 5]);
        assert!(!config.crowded() && !config.offload && config.rate.is_none());
    }

    #[test]
    fn workers_have_two_cpus_and_traffic_a_third_if_there_is_one() {
        let split = Settings::new().with("topology", "split").with("adapters", 2);
        let config = Config::of(&split, &place(&[0, 1])).unwrap();
        assert_eq!((config.workers.as_slice(), config.traffic), (&[0, 1, 0, 1][..], 1));
        assert_eq!(config.cpus(), [0, 1]);
        assert!(config.crowded());
        let config = Config::of(&split, &place(&[0, 1, 2])).unwrap();
        assert_eq!((config.traffic, config.crowded()), (2, false));
        assert_eq!(config.cpus(), [0, 1, 2]);
        let e = Config::of(&split, &place(&[0])).unwrap_err();
        assert!(e.code == Code::Unsupported && e.fix.contains("joined"), "{e}");
    }

    #[test]
    fn a_bad_setting_is_refused_with_its_line() {
        for (name, value, why) in [
            ("rate", Value::Text("fast".into()), "rate = fast is not one of \"max\""),
            ("rate", Value::Int(0), "rate = 0 is not a number above 0"),
            ("rate", Value::Float(1e18), "rate asks for more than 1000000 messages a second"),
            ("ring_len", Value::Int(1000), "ring_len = 1000 is not a power of two"),
            ("adapters", Value::Int(3), "adapters = 3 is not a whole number from 1 to 2"),
            ("topology", Value::Text("star".into()), "topology = star is not one of"),
            ("hotlist", Value::Int(128), "scenario \"host\" has no setting \"hotlist\""),
        ] {
            let mut settings = Settings::new();
            settings.set(name, Setting { value, line: 7 });
            let e = Config::of(&settings, &place(&[0, 1])).unwrap_err();
            assert_eq!(e.code, Code::Experiment);
            assert!(e.why.starts_with(&format!("line 7: {why}")), "{e}");
        }
    }

    #[test]
    fn every_knob_is_read() {
        let names: Vec<_> = KNOBS.iter().map(|knob| knob.name).collect();
        let e = Config::of(&Settings::new().with("x", 1), &place(&[0])).unwrap_err();
        let asked = e.fix.strip_prefix("it has: ").unwrap();
        assert!(names.iter().all(|name| asked.split(", ").any(|asked| asked == *name)), "{asked}");
        assert_eq!(asked.split(", ").count(), names.len());
    }
}
