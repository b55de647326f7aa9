//! Settings of a side of the scenario `host`.

use std::path::PathBuf;

use linerate_ctl::pool::{BUFFERS, INIT, RETURN};
use linerate_datapath::knob::BUDGET;
use linerate_datapath::{Data, Init, Moderation, Return, TxBatch};
use linerate_port::wrap::toll::Toll;
use linerate_skb::knob::HOT_LIST;

use super::arrivals::Arrivals;
use super::datagrams;
use super::fault::Faults;
use crate::knobs::{Choice, Reading, knobs};
use crate::scenario::Place;
use crate::settings::{Settings, Value, wrong};
use crate::{Code, Error, Result};

/// Most messages or requests a second on a connection: each that is due is counted, even if few are
/// sent.
const PER_SECOND_MAX: f64 = 1e6;
/// Fewest messages or requests a second on a connection: far fewer would be due at a time beyond
/// what the clock can represent.
const PER_SECOND_MIN: f64 = 1e-3;

/// Frames of 1514 bytes a second on Gigabit Ethernet, with FCS, preamble and gap.
const LINK_FRAMES: f64 = 1e9 / (8.0 * 1538.0);
/// Payload bytes of a stream in a full frame: without the headers of IP and TCP, with timestamps.
const TCP_BYTES: f64 = 1448.0;

const TOPOLOGY: Choice<bool, 2> = [("joined", false), ("split", true)];
const EAST: Choice<bool, 2> = [("kernel", false), ("smoltcp", true)];
const PORT: Choice<Port, 3> = [("packet", Port::Packet), ("xdp", Port::Xdp), ("tap", Port::Tap)];
const CPUS: Choice<Cpus, 3> =
    [("spread", Cpus::Spread), ("apart", Cpus::Apart), ("one", Cpus::One)];
const PLACEMENT: Choice<Placement, 5> = [
    ("fixed", Placement::Fixed),
    ("none", Placement::None),
    ("irq", Placement::Irq),
    ("process", Placement::Process),
    ("both", Placement::Both),
];
const WORKLOAD: Choice<Workload, 4> = [
    ("stream", Workload::Stream),
    ("web", Workload::Web),
    ("rpc", Workload::Rpc),
    ("load", Workload::Load),
];
const SENDERS: Choice<bool, 2> = [("threads", false), ("processes", true)];
/// The words that a rate accepts in addition to numbers.
const RATE: Choice<Option<f64>, 1> = [("max", None)];
const SYSCTL: Choice<bool, 2> = [("post-002", true), ("system", false)];
const SAMPLED: Choice<bool, 2> = [("workers", false), ("machine", true)];
const OFFLOAD: Choice<bool, 2> = [("on", true), ("off", false)];

/// The traffic of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    /// Bulk transfer over TCP.
    Stream,
    /// Short responses over HTTP.
    Web,
    /// Requests over TCP, each answered.
    Rpc,
    /// Datagrams, each sent at its time.
    Load,
}

/// The driver of the engine's ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Port {
    Packet,
    Xdp,
    Tap,
}

/// The CPUs of the engine and of the hosts' programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cpus {
    /// A worker for each pair of ports, alternating between two CPUs; the programs on a third CPU
    /// if there is one.
    Spread,
    /// The engine runs on the first CPU, the programs on the second.
    Apart,
    /// The engine and the programs run on the first CPU.
    One,
}

/// The parts of an adapter's path that are bound to a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// The CPUs that `cpus` lists.
    Fixed,
    /// No placement: the kernel's scheduler decides.
    None,
    /// The interrupts of the engine's devices, and the worker that polls them.
    Irq,
    /// The program that reads in the east.
    Process,
    /// The interrupts, the workers and the programs.
    Both,
}

knobs! {
    /// The settings of a side.
    Told of "host", told as told:
    "port" port: Port = choice(PORT), "packet", "packet: AF_PACKET on veth; xdp: AF_XDP on veth, where the kernel copies; tap: the hosts' interfaces are TAP devices of the engine, without a veth";
    "topology" split: bool = choice(TOPOLOGY), "joined", "joined: a pair of ports is served by one worker; split: one worker receives and, behind a ring, another one sends, on the other CPU if cpus = \"spread\"";
    "adapters" adapters: usize = count(1, 4), "1", "pairs of ports, each between two hosts of its own addresses";
    "east" user_space: bool = choice(EAST), "kernel", "kernel: the eastern hosts' TCP is the kernel's; smoltcp: it is in user space, on the thread of the program that reads or serves, which has the other end of a ring from the worker (stream or web, joined)";
    "cpus" cpus: Cpus = choice(CPUS), "spread", "spread: a worker for each pair of ports, in turn on two CPUs, and the hosts' programs on a third if there is one; apart: the engine on the first CPU, one worker for all pairs if joined, and the programs on the second; one: both on the first";
    "placement" placement: Placement = choice(PLACEMENT), "fixed", "fixed: as cpus says; otherwise an adapter's parts run anywhere unless they are bound, adapters in turn to the CPUs that are given: irq: the interrupts of the engine's devices, which are NAPI's threads, and the worker; process: the program that reads in the east; both; or none. Senders are bound on every side (xdp, joined, spread; stream, rpc)";
    "moderation" moderation: Moderation = other("a mode of docs/moderation.md", told.parsed("moderation")?), "adaptive:latency=250us", "interrupt moderation of the engine's ports";
    "hold" hold: Option<u32> = count_if_set(1, 10_000), "none", "microseconds for which the kernel leaves the device of each port alone after a poll that found packets (xdp)";
    "tx_batch" tx_batch: TxBatch = other("1..=1024 | \"auto\"", told.parsed("tx_batch")?), "auto", "packets sent to a device with one doorbell; 1: a doorbell for each packet";
    "toll" toll: Option<Toll> = other("WRITE/READ[/BUS], as \"100ns/1us/4Gbps\"", toll(&told)?), "none", "MODEL: prices of register access, paid by the engine at each of its ports as if it were a NIC (docs/ports/wrap.md)";
    "qdisc" qdisc: Option<String> = other("options of a port, as \"shape=20Mbit,qdisc=fq_codel\"", told.text("qdisc")?), "none", "a queueing discipline in front of the engine's eastern ports (docs/howto-batching.md)";
    "check" check: bool = flag(), "false", "number packets at the receiving port, and check their order at the sending port (core_late)";
    "fault" fault: Faults = other("faults of docs/howto-triage.md", fault(&told)?), "none", "faults to plant, with a blank between them: core:reorder=N, core:prefer=N, xdp:lose=N, xdp:reorder=N, packet:lose=N, packet:reorder=N, device:lose=N (one packet in N), receiver:sleep=MICROSECONDS or receiver:overrun=N (packets of a doorbell)";
    "workload" workload: Workload = choice(WORKLOAD), "stream", "stream: bulk TCP one way, as netperf's TCP_STREAM; rpc: requests over TCP that are answered by as many bytes, as its TCP_RR, or by as many as answer says; load: datagrams, each at its time; web: many short responses of mixed sizes, files of the sizes and shares that we know of SPECweb99; connections stay open for as many requests as we draw";
    "rate" rate: Option<f64> = other("\"max\" | a number above 0", rate(&told)?), "max", "bytes a second (stream), requests a second (web, rpc) or datagrams a second (load, which has no max) over all connections, sent at their times whatever the answers; max: as fast as TCP takes them";
    "link_pct" link_pct: Option<u32> = count_if_set(1, 100), "none", "in place of a rate: so much of 1 Gbit/s in frames of 1514 bytes, 81,274 a second at 100, by what they carry (not web)";
    "burst" burst: u64 = count(1, 1024), "1", "datagrams of a flow that are due at once (load); the rate stays";
    "arrivals" arrivals: Arrivals = other("\"constant\" | \"poisson\" | \"bursts\" | \"steps\" | \"tcp\" | a capture's path", arrivals(&told)?), "constant", "when the datagrams of a load are due: at equal gaps; at random; 10 ms of every 50 at five times the rate; in quarters of a window at 0.4, 1.6, 0.8 and 1.2 times the rate; with the gaps of a capture of bulk TCP that we bring, or of one by its path, stretched to the rate, from the directory that linerate is started in";
    "connections" connections: usize = count(1, 64) or workload.connections(), "1 (stream, rpc, load), 16 (web)", "TCP connections at a time, or flows of datagrams, through each pair of ports";
    "senders" processes: bool = choice(SENDERS), "threads", "threads: those who send are threads of the lab; processes: each is a process of its own (not web)";
    "message" message: usize = count(1, 1_048_576) or workload.message(), "4096 (stream), 64 (rpc), 1472 (load)", "bytes of a stream's write, of a request, or of a datagram";
    "answer" answer: Option<usize> = count_if_set(1, 1_048_576), "as many as message", "bytes of the answer to a request (rpc): message = 128 and answer = 8192 are reads of NFS, message = 8192 and answer = 128 its writes";
    "nodelay" nodelay: bool = flag(), "false", "TCP_NODELAY at both ends of a stream and of rpc: a short write does not wait for the answer to the one before it; web has it always";
    "sockbuf" sockbuf: usize = count(0, 16_777_216), "65536", "bytes asked for each socket buffer of TCP (SO_SNDBUF, SO_RCVBUF); the kernel doubles it for its own accounts; 0: the kernel's own, which grow";
    "sysctl" tuned: bool = choice(SYSCTL), "system", "system: the kernel's settings of TCP and its buffers; post-002: those of that post, as far as they are a namespace's, and its send queue";
    "offload" offload: bool = choice(OFFLOAD), "off", "off: packets as a wire carries them, one buffer each; on: superframes of up to 64 KiB, which hide what a buffer costs a packet (not xdp)";
    "probes" probes: u32 = count(0, 10_000), "1250", "small datagrams a second from west to east whose way is timed; 0: none";
    "buffers" data: Data = choice(BUFFERS), "frames", "where packets' bytes come from: frames of a pool, or the system's allocator once a packet";
    "hot_list" hot_list: usize = core(HOT_LIST), "", "free frames that a worker keeps for itself";
    "pool_frames" pool_frames: Option<u32> = count_if_set(64, 1_048_576), "as many as the path can hold", "frames of the pool";
    "init" init: Init = choice(INIT), "at_alloc", "when a packet's metadata is initialised";
    "return" return_to: Return = choice(RETURN), "local", "where a frame goes that another core frees";
    "budget" budget: usize = core(BUDGET), "", "packets from one queue in one turn";
    "ring_len" ring_len: u64 = power_of_two(2, 65_536), "1024", "packets each way in the ring between two workers";
    "sampled" machine: bool = choice(SAMPLED), "workers", "what is in a profile: workers: the engine's threads; machine: every thread, interrupts and idle time, also of adapters that are placed (of other processes, as the senders', the functions of the kernel)";
    "sample_every" sample_every: u32 = count(0, 1_000_000), "0", "times every n-th call that allocates or frees; 0: none";
    "ring" ring: u64 = power_of_two(64, 65_536), "1024", "packets of each port's receive and transmit ring (xdp)";
    "ring_bytes" ring_bytes: u64 = power_of_two(524_288, 1_073_741_824), "8388608", "bytes of each port's receive ring in the kernel (packet)";
}

/// A side's settings after all checks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    told: Told,
    /// CPU of each worker.
    pub workers: Vec<usize>,
    /// CPU of the hosts' programs.
    pub traffic: usize,
    /// The CPUs that adapters are assigned to, or move among; empty for a side with a fixed
    /// placement.
    pub roamed: Vec<usize>,
    pub seed: u64,
    /// The path of this program, which a sender's process runs.
    pub program: Option<PathBuf>,
}

impl std::ops::Deref for Config {
    type Target = Told;

    fn deref(&self) -> &Told {
        &self.told
    }
}

impl Config {
    /// Reads `settings`, and assigns the CPUs of `place`.
    ///
    /// # Errors
    /// `E-EXPERIMENT` with the line of what is wrong; `E-UNSUPPORTED` with too few CPUs.
    pub fn of(settings: &Settings, place: &Place) -> Result<Config> {
        let mut told = Told::read(settings)?;
        told.rate = told.rate_of_link(settings)?;
        let bytes = if told.workload == Workload::Stream { told.message } else { 1 };
        let each = (bytes * told.adapters * told.connections) as f64;
        told.rate.map_or(Ok(()), |rate| possible(settings, rate / each))?;
        fitting(settings, &told)?;
        if told.hold.is_some() && told.port != Port::Xdp {
            let why = "packets that wait for NAPI's hold are those of AF_XDP";
            return Err(Error::new(Code::Unsupported, "cannot hold the device", why)
                .fix("port = \"xdp\", or leave hold out"));
        }
        let program = place.program.clone();
        if told.processes && program.is_none() {
            let why = "they are processes of this program, and its path is unknown";
            return Err(Error::new(Code::Unsupported, "cannot start the senders", why)
                .fix("senders = \"threads\""));
        }
        let (workers, traffic) = cpus(&told, &place.cpus)?;
        let is_placed = told.placement != Placement::Fixed;
        let roamed = if is_placed { place.cpus.clone() } else { Vec::new() };
        Ok(Config { told, workers, traffic, roamed, seed: place.seed, program })
    }

    /// Returns the CPUs of a worker and, if adapters are placed, of its devices' interrupts.
    pub fn worker_cpus(&self, worker: usize) -> Vec<usize> {
        let fixed = self.workers.get(worker).copied().unwrap_or(self.traffic);
        self.seat(worker, fixed, matches!(self.placement, Placement::Irq | Placement::Both))
    }

    /// Returns the CPUs of the program that reads on the eastern host.
    pub fn reader_cpus(&self, adapter: usize) -> Vec<usize> {
        let is_bound = matches!(self.placement, Placement::Process | Placement::Both);
        self.seat(adapter, self.traffic, is_bound)
    }

    /// Returns the CPU of the program that sends on the western host, which placement does not
    /// change.
    pub fn sender_cpu(&self, adapter: usize) -> usize {
        self.seat(adapter, self.traffic, true)[0]
    }

    fn seat(&self, adapter: usize, fixed: usize, is_bound: bool) -> Vec<usize> {
        match self.roamed.get(adapter % self.roamed.len().max(1)) {
            None => vec![fixed],
            Some(cpu) if is_bound => vec![*cpu],
            Some(_) => self.roamed.clone(),
        }
    }

    /// Returns the CPUs of the workers and of the traffic, without repetition.
    pub fn cpus(&self) -> Vec<usize> {
        let mut cpus = Vec::new();
        for cpu in self.workers.iter().chain([&self.traffic]).chain(&self.roamed) {
            if !cpus.contains(cpu) {
                cpus.push(*cpu);
            }
        }
        cpus
    }

    /// Returns true if a worker shares its CPU with the hosts' programs.
    pub fn crowded(&self) -> bool {
        !self.roamed.is_empty() || self.workers.contains(&self.traffic)
    }
}

impl Told {
    /// Returns the bytes of the answer to a request; 0 for a workload other than rpc.
    pub fn answer_bytes(&self) -> usize {
        match self.workload {
            Workload::Rpc => self.answer.unwrap_or(self.message),
            Workload::Stream | Workload::Web | Workload::Load => 0,
        }
    }

    /// Returns the rate: a share of the link's rate, or the configured one.
    fn rate_of_link(&self, settings: &Settings) -> Result<Option<f64>> {
        let Some(link_pct) = self.link_pct else { return Ok(self.rate) };
        let line = settings.get("link_pct").map_or(0, |setting| setting.line);
        if self.rate.is_some() {
            return Err(wrong(line, "link_pct and rate both set the sending rate").fix("say one"));
        }
        let frames = LINK_FRAMES * f64::from(link_pct) / 100.0;
        let message = self.message.max(self.answer_bytes()) as f64;
        match self.workload {
            Workload::Stream => Ok(Some(frames * TCP_BYTES)),
            Workload::Rpc => Ok(Some(frames * TCP_BYTES / message)),
            Workload::Load => Ok(Some(frames * datagrams::BYTES_MAX as f64 / message)),
            Workload::Web => {
                let why = "responses of the web have sizes of their own, and no share of a link";
                Err(wrong(line, why).fix("workload = \"rpc\", or a rate"))
            }
        }
    }
}

impl Workload {
    /// Returns the default number of connections.
    fn connections(self) -> usize {
        match self {
            Workload::Stream | Workload::Rpc | Workload::Load => 1,
            Workload::Web => 16,
        }
    }

    /// Returns the default length of a message in bytes.
    fn message(self) -> usize {
        match self {
            Workload::Stream | Workload::Web => 4096,
            Workload::Rpc => 64,
            Workload::Load => datagrams::BYTES_MAX,
        }
    }

    /// Returns the unit of the workload's rate.
    pub fn unit(self) -> &'static str {
        match self {
            Workload::Stream => "bytes/s",
            Workload::Web | Workload::Rpc => "requests/s",
            Workload::Load => "datagrams/s",
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

/// Reads the shape of a load.
fn arrivals(told: &Reading<'_>) -> Result<Arrivals> {
    let line = told.said("arrivals").map_or(0, |setting| setting.line);
    let named = |text: String| {
        Arrivals::named(&text).map_err(|e| wrong(line, format!("arrivals: {}", e.why)).fix(e.fix))
    };
    told.text("arrivals")?.map_or(Ok(Arrivals::Constant), named)
}

/// Reads the prices of register access.
fn toll(told: &Reading<'_>) -> Result<Option<Toll>> {
    let Some(text) = told.text("toll")? else { return Ok(None) };
    let line = told.said("toll").map_or(0, |setting| setting.line);
    text.parse().map(Some).map_err(|why| wrong(line, format!("toll = {text}: {why}")))
}

/// Reads the faults to plant.
fn fault(told: &Reading<'_>) -> Result<Faults> {
    let Some(text) = told.text("fault")? else { return Ok(Faults::default()) };
    let line = told.said("fault").map_or(0, |setting| setting.line);
    Faults::parse(&text).map_err(|why| wrong(line, format!("fault = {text:?}: {why}")))
}

/// Returns the CPU of each worker, and that of the hosts' programs.
fn cpus(told: &Told, cpus: &[usize]) -> Result<(Vec<usize>, usize)> {
    let what = "cannot place the workers";
    let few = |why: &str| Error::new(Code::Unsupported, what, why);
    let Some(&first) = cpus.first() else { return Err(few("no CPU is given")) };
    let (split, adapters) = (told.split, told.adapters);
    if told.cpus != Cpus::Spread {
        let workers = vec![first; if split { 2 * adapters } else { 1 }];
        let traffic = match (told.cpus, cpus.get(1)) {
            (Cpus::One, _) => first,
            (_, Some(&second)) => second,
            (_, None) => {
                let why = "the hosts' programs need a CPU of their own, and one CPU is given";
                return Err(few(why).fix("cpus = \"one\""));
            }
        };
        return Ok((workers, traffic));
    }
    let workers = match (split, adapters, cpus.get(1)) {
        (false, 1, _) => vec![first],
        (_, _, None) => {
            let why = "two workers need two CPUs, and one CPU is given";
            return Err(few(why).fix("topology = \"joined\" and adapters = 1, or cpus = \"one\""));
        }
        (false, _, Some(&second)) => [first, second].into_iter().cycle().take(adapters).collect(),
        // In each pair of ports, the port that receives from west is first, the one that sends to
        // east second.
        (true, _, Some(&second)) => [first, second].repeat(adapters),
    };
    // Prefer a CPU without a worker for the traffic.
    let free = cpus.iter().find(|cpu| !workers.contains(cpu));
    let traffic = free.or(cpus.last()).copied().unwrap_or(first);
    Ok((workers, traffic))
}

/// Refuses settings that contradict each other.
fn fitting(settings: &Settings, told: &Told) -> Result<()> {
    let refuse = |name: &str, why: &str, fix: &str| {
        let line = settings.get(name).map_or(0, |setting| setting.line);
        Err(wrong(line, why).fix(fix))
    };
    let sizes = datagrams::BYTES_MIN..=datagrams::BYTES_MAX;
    match told.workload {
        Workload::Load if told.rate.is_none() => {
            let why = "a load has no other side that could slow it down: it needs a rate";
            refuse("rate", why, "rate = 10000, in datagrams a second")
        }
        Workload::Load if !sizes.contains(&told.message) => {
            let why = format!("a datagram has {} to {} bytes", sizes.start(), sizes.end());
            refuse("message", &why, "leave message out for frames of 1514 bytes")
        }
        Workload::Stream | Workload::Web | Workload::Rpc if told.arrivals != Arrivals::Constant => {
            let why = "TCP decides when it sends: a shape is for datagrams";
            refuse("arrivals", why, "workload = \"load\"")
        }
        _ if told.answer.is_some() && told.workload != Workload::Rpc => {
            refuse("answer", "only requests of rpc are answered by it", "workload = \"rpc\"")
        }
        Workload::Web if told.processes => {
            refuse("senders", "the clients of the web are threads", "workload = \"rpc\"")
        }
        _ if told.placement != Placement::Fixed && told.port != Port::Xdp => {
            let why = "a veth has interrupts that can be bound, which are NAPI's threads, under AF_XDP only";
            refuse("placement", why, "port = \"xdp\"")
        }
        _ if told.placement != Placement::Fixed && (told.split || told.cpus != Cpus::Spread) => {
            let why = "each adapter is placed with a worker of its own";
            refuse("placement", why, "leave topology and cpus out")
        }
        Workload::Web | Workload::Load if told.placement != Placement::Fixed => {
            let why = "a program that is placed reads a stream of its adapter";
            refuse("placement", why, "workload = \"stream\", or \"rpc\"")
        }
        _ if told.user_space => in_user_space(&refuse, told),
        _ if told.port == Port::Xdp && told.offload => {
            let why = "superframes do not fit into frames of AF_XDP";
            refuse("offload", why, "offload = \"off\", or port = \"packet\"")
        }
        _ => Ok(()),
    }
}

/// Refuses what TCP in user space does not have.
fn in_user_space(refuse: &impl Fn(&str, &str, &str) -> Result<()>, told: &Told) -> Result<()> {
    let kernel = "or east = \"kernel\"";
    if !matches!(told.workload, Workload::Stream | Workload::Web) {
        let why = "the programs with TCP in user space read a stream or serve the web";
        return refuse("east", why, &format!("workload = \"stream\" or \"web\", {kernel}"));
    }
    if told.split || told.offload || told.qdisc.is_some() || told.fault != Faults::default() {
        let why = "TCP in user space has a ring from the worker, without a device in the east";
        let fix = format!("leave topology, offload, qdisc and fault out, {kernel}");
        return refuse("east", why, &fix);
    }
    if told.probes > 0 {
        let why = "the programs with TCP in user space read no probes";
        return refuse("east", why, &format!("probes = 0, {kernel}"));
    }
    Ok(())
}

/// Refuses a rate beyond the limits of messages a second on a connection.
fn possible(settings: &Settings, per_second: f64) -> Result<()> {
    let line = settings.get("rate").map_or(0, |setting| setting.line);
    let limit = match per_second {
        _ if per_second > PER_SECOND_MAX => format!("more than {PER_SECOND_MAX}"),
        _ if per_second < PER_SECOND_MIN => format!("fewer than {PER_SECOND_MIN}"),
        _ => return Ok(()),
    };
    Err(wrong(line, format!("rate asks for {limit} messages a second over a connection")))
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
        let held = Settings::new().with("hold", 200);
        let e = Config::of(&held, &place(&[0, 1])).unwrap_err();
        assert!(e.code == Code::Unsupported && e.fix.contains("xdp"), "{e}");
        let held = Config::of(&held.with("port", "xdp"), &place(&[0, 1])).unwrap();
        assert_eq!(held.hold, Some(200));
    }

    #[test]
    fn a_bad_setting_is_refused_with_its_line() {
        for (name, value, why) in [
            ("rate", Value::Text("fast".into()), "rate = fast is not one of \"max\""),
            ("rate", Value::Int(0), "rate = 0 is not a number above 0"),
            ("rate", Value::Float(1e18), "rate asks for more than 1000000 messages a second"),
            ("rate", Value::Float(1e-14), "rate asks for fewer than 0.001 messages a second"),
            ("ring_len", Value::Int(1000), "ring_len = 1000 is not a power of two from 2 to 65536"),
            ("adapters", Value::Int(5), "adapters = 5 is not a whole number from 1 to 4"),
            (
                "moderation",
                Value::Text("napy".into()),
                "moderation = napy: there is no mode 'napy'",
            ),
            ("tx_batch", Value::Int(0), "tx_batch = 0: '0' is not a number of packets"),
            ("toll", Value::Text("1us".into()), "toll = 1us: there is no price of a read"),
            ("arrivals", Value::Text("fractal".into()), "arrivals: fractal is no shape of a load"),
            ("arrivals", Value::Text("./no.pcap".into()), "arrivals: "),
            ("senders", Value::Text("many".into()), "senders = many is not one of"),
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
    fn settings_that_do_not_go_together_are_refused_with_what_to_write() {
        let web = Settings::new().with("workload", "web").with("senders", "processes");
        let load = Settings::new().with("workload", "load");
        let long = load.clone().with("rate", 1000).with("message", 1473);
        let xdp = Settings::new().with("port", "xdp").with("offload", "on");
        let twice = Settings::new().with("link_pct", 50).with("rate", 1000);
        let web_link = Settings::new().with("link_pct", 50).with("workload", "web");
        let shaped = Settings::new().with("arrivals", "poisson");
        let unasked = Settings::new().with("answer", 8192);
        for (settings, why, fix) in [
            (shaped, "TCP decides", "load"),
            (unasked, "only requests of rpc", "rpc"),
            (web, "clients of the web are threads", "rpc"),
            (load, "needs a rate", "rate = 10000"),
            (long, "has 16 to 1472 bytes", "leave message out"),
            (xdp, "do not fit", "packet"),
            (twice, "both set", "say one"),
            (web_link, "sizes of their own", "rpc"),
        ] {
            let e = Config::of(&settings, &place(&[0, 1])).unwrap_err();
            assert!(e.why.contains(why) && e.fix.contains(fix), "{e}");
        }
        let processes = Settings::new().with("senders", "processes");
        let e = Config::of(&processes, &place(&[0, 1])).unwrap_err();
        assert!(e.code == Code::Unsupported && e.fix.contains("threads"), "{e}");
    }

    #[test]
    fn part_of_a_link_is_a_rate_of_the_frames_that_it_carries() {
        let rate = |settings: Settings| {
            let settings = settings.with("link_pct", 50);
            Config::of(&settings, &place(&[0, 1])).unwrap().rate.unwrap()
        };
        let of = |workload: &str| Settings::new().with("workload", workload);
        assert_eq!(rate(of("load")).round(), 40_637.0);
        assert_eq!((rate(of("stream")) / 1448.0).round(), 40_637.0);
        assert_eq!(rate(of("rpc").with("message", 1448)).round(), 40_637.0);
        assert_eq!(rate(of("rpc").with("message", 724)).round(), 81_274.0);
        assert_eq!(rate(of("rpc").with("answer", 1448)).round(), 40_637.0);
    }

    #[test]
    fn engine_and_programs_are_apart_or_on_one_cpu_as_told() {
        let told = |cpus: &str| Settings::new().with("cpus", cpus).with("adapters", 4);
        let config = Config::of(&told("apart"), &place(&[3, 5])).unwrap();
        assert_eq!((config.workers.as_slice(), config.traffic), (&[3][..], 5));
        let config = Config::of(&told("one"), &place(&[3, 5])).unwrap();
        assert_eq!((config.workers.as_slice(), config.traffic), (&[3][..], 3));
        assert!(config.crowded());
        let config = Config::of(&told("spread"), &place(&[3, 5])).unwrap();
        assert_eq!(config.workers, [3, 5, 3, 5]);
        let e = Config::of(&told("apart"), &place(&[3])).unwrap_err();
        assert!(e.fix.contains("one"), "{e}");
    }
}
