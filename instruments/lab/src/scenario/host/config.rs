//! Settings of a side.

use linerate_ctl::pool::{BUFFERS, INIT, RETURN};
use linerate_datapath::knob::BUDGET;
use linerate_datapath::{Data, Init, Return};
use linerate_skb::knob::HOT_LIST;

use crate::knobs::{Choice, Reading, knobs};
use crate::scenario::Place;
use crate::settings::{Settings, Value, wrong};
use crate::{Code, Error, Result};

/// Messages or requests a second that a connection may be asked for: each that is due is counted,
/// however few of them are sent.
const PER_SECOND_MAX: f64 = 1e6;

const TOPOLOGY: Choice<bool, 2> = [("joined", false), ("split", true)];
const WORKLOAD: Choice<Workload, 2> = [("stream", Workload::Stream), ("web", Workload::Web)];
/// Beside a number.
const RATE: Choice<Option<f64>, 1> = [("max", None)];
const OFFLOAD: Choice<bool, 2> = [("on", true), ("off", false)];

/// The traffic of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    /// Bulk TCP.
    Stream,
    /// Short responses.
    Web,
}

knobs! {
    /// The settings of a side.
    Told of "host", told as told:
    "topology" split: bool = choice(TOPOLOGY), "joined", "joined: a pair of ports is served by one worker, on one CPU; split: one worker receives and, behind a ring, another one sends, on the other CPU";
    "adapters" adapters: usize = count(1, 2), "1", "pairs of packet ports, each between two hosts of its own addresses";
    "workload" workload: Workload = choice(WORKLOAD), "stream", "stream: bulk TCP one way, as netperf's TCP_STREAM; web: many short responses of mixed sizes, files of the sizes and shares that we know of SPECweb99; connections stay open for as many requests as we draw";
    "rate" rate: Option<f64> = other("\"max\" | a number above 0", rate(&told)?), "max", "bytes a second (stream) or requests a second (web) over all connections, sent at their times whatever the answers; max: as fast as TCP takes them";
    "connections" connections: usize = count(1, 64) or workload.connections(), "1 (stream), 16 (web)", "TCP connections at a time through each pair of ports";
    "message" message: usize = count(1, 1_048_576), "4096", "bytes of a stream's write";
    "sockbuf" sockbuf: usize = count(4096, 16_777_216), "65536", "bytes asked for each socket buffer (SO_SNDBUF, SO_RCVBUF); the kernel doubles it for its own accounts";
    "offload" offload: bool = choice(OFFLOAD), "off", "off: packets as a wire carries them, one buffer each; on: superframes of up to 64 KiB, which hide what a buffer costs a packet";
    "probes" probes: u32 = count(0, 10_000), "1250", "small datagrams a second from west to east whose way is timed; 0: none";
    "buffers" data: Data = choice(BUFFERS), "frames", "where packets' bytes come from: frames of a pool, or the system's allocator once a packet";
    "hot_list" hot_list: usize = core(HOT_LIST), "", "free frames that a worker keeps for itself";
    "pool_frames" pool_frames: Option<u32> = count_if_set(64, 1_048_576), "as many as the path can hold", "frames of the pool";
    "init" init: Init = choice(INIT), "at_alloc", "when a packet's metadata is initialised";
    "return" return_to: Return = choice(RETURN), "local", "where a frame goes that another core frees";
    "budget" budget: usize = core(BUDGET), "", "packets from one queue in one turn";
    "ring_len" ring_len: u64 = power_of_two(2, 65_536), "1024", "packets each way in the ring between two workers";
    "sample_every" sample_every: u32 = count(0, 1_000_000), "0", "times every n-th call that allocates or frees; 0: none";
    "ring_bytes" ring_bytes: u64 = power_of_two(524_288, 1_073_741_824), "8388608", "bytes of each port's receive ring in the kernel";
}

/// A side, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    told: Told,
    /// CPU of each worker.
    pub workers: Vec<usize>,
    /// CPU of the hosts' programs.
    pub traffic: usize,
    pub seed: u64,
}

impl std::ops::Deref for Config {
    type Target = Told;

    fn deref(&self) -> &Told {
        &self.told
    }
}

impl Config {
    /// Reads `settings`, and deals out the CPUs of `place`.
    ///
    /// # Errors
    /// `E-EXPERIMENT` with the line of what is wrong; `E-UNSUPPORTED` with too few CPUs.
    pub fn of(settings: &Settings, place: &Place) -> Result<Config> {
        let told = Told::read(settings)?;
        let bytes = if told.workload == Workload::Stream { told.message } else { 1 };
        let each = (bytes * told.adapters * told.connections) as f64;
        possible(settings, told.rate.unwrap_or(0.0) / each)?;
        let (workers, traffic) = cpus(told.split, told.adapters, &place.cpus)?;
        Ok(Config { told, workers, traffic, seed: place.seed })
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

    /// Returns true if a worker shares its CPU with the hosts' programs.
    pub fn crowded(&self) -> bool {
        self.workers.contains(&self.traffic)
    }
}

impl Workload {
    /// Returns the connections of a side that does not say how many.
    fn connections(self) -> usize {
        match self {
            Workload::Stream => 1,
            Workload::Web => 16,
        }
    }
}

/// Reads the rate: a number, or `max`.
fn rate(told: &Reading<'_>) -> Result<Option<f64>> {
    match told.said("rate").map(|setting| &setting.value) {
        None | Some(Value::Text(_)) => told.choice("rate", &RATE),
        Some(_) => told.number("rate"),
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
            ("ring_len", Value::Int(1000), "ring_len = 1000 is not a power of two from 2 to 65536"),
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
}
