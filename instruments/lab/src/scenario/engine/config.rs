//! Settings of a side of the scenario `engine`.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use linerate_ctl::pool::{BUFFERS, INIT, RETURN};
use linerate_datapath::knob::BUDGET;
use linerate_datapath::{Data, Init, Moderation, Return};
use linerate_port::units;
use linerate_skb::knob::HOT_LIST;

use crate::knobs::{Choice, Reading, knobs};
use crate::scenario::Place;
use crate::settings::{Setting, Settings, Value, wrong};
use crate::{Code, Error, Result};

/// Gigabit Ethernet's packets a second: 60 bytes, FCS, preamble and gap.
const LINE_PPS: f64 = 1_488_095.0;
/// Range of valid rates, in packets a second.
const PPS: RangeInclusive<f64> = 1.0..=1e9;
/// The mean packet size of an IMIX: of 12 packets, 7 have 60 bytes, 4 have 590 and 1 has 1514.
const IMIX_MEAN_BYTES: f64 = (7.0 * 60.0 + 4.0 * 590.0 + 1514.0) / 12.0;
/// Ethernet's shortest frame without FCS, which is also the shortest that a generator can number.
const SIZE_MIN: u64 = 60;
const SIZE_MAX: u64 = 65_536;
/// Ethernet's longest frame without FCS.
const ETHERNET_MAX: u64 = 1514;
/// The shortest ring that `xdp:` accepts.
const XDP_RING_MIN: u32 = 64;

const PATH: Choice<Kind, 5> = [
    ("null", Kind::Null),
    ("ring", Kind::Ring),
    ("adapter", Kind::Adapter),
    ("fabric", Kind::Fabric),
    ("device", Kind::Device),
];
const OUT: Choice<Option<Out>, 3> =
    [("none", None), ("cut-through", Some(Out::CutThrough)), ("copy", Some(Out::Copy))];

/// The kind of path that packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Ring,
    Adapter,
    Fabric,
    Device,
}

impl Kind {
    /// Returns true if the source is a thread with a CPU of its own.
    fn has_wire(self) -> bool {
        matches!(self, Kind::Adapter | Kind::Device)
    }

    /// Returns true if packets can only leave to another process.
    fn needs_out(self) -> bool {
        matches!(self, Kind::Fabric | Kind::Device)
    }

    /// Returns the number of packets that a turn of the source's worker offers; `None` without a
    /// worker.
    pub fn turn(self, budget: usize) -> Option<usize> {
        match self {
            // Both ports of this path are sources, so a turn offers two bursts.
            Kind::Null => Some(2 * budget),
            Kind::Ring | Kind::Fabric | Kind::Device => Some(budget),
            Kind::Adapter => None,
        }
    }
}

/// The way in which packets reach another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Out {
    /// The other process reads packets in the sender's memory.
    CutThrough,
    /// The other process reads copies of packets.
    Copy,
}

impl Out {
    /// Returns the options of the port through which packets leave.
    pub fn options(self, ring_len: u32) -> String {
        let sharing = match self {
            // With `read`, the other process can read the pool's memory, but not write it.
            Out::CutThrough => "read",
            Out::Copy => "no",
        };
        format!("role=client,size={ring_len},zerocopy={sharing}")
    }
}

/// The sizes of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Bytes(u64),
    Imix,
}

impl Size {
    /// Returns the mean size of a packet in the long run.
    fn mean_bytes(self) -> f64 {
        match self {
            Size::Bytes(bytes) => bytes as f64,
            Size::Imix => IMIX_MEAN_BYTES,
        }
    }
}

knobs! {
    /// The settings of a side.
    Config of "engine", told as told:
    "path" path: Kind = choice(PATH), "\"null\"", "What packets pass.";
    "ring_len" ring_len: u32 = power_of_two(2, 65_536), "256", "Packets that the ring holds, of fabric that to the other process; of an adapter, buffers that are posted; of a device its receive ring.";
    "size" size: Size = other("60..=65536 | \"imix\"", size(&told)?), "60", "Bytes of a packet, without FCS.";
    "budget" budget: usize = core(BUDGET), "", "Packets from one queue in one turn; a burst is a multiple.";
    "burst" burst: usize = count(1, 65_536) or path.turn(budget).unwrap_or(64), "a turn's: 128 of null, 64 of a ring; 64", "Packets offered in a row: on one thread before the receiver is turned, at a fixed rate and by an adapter before the next pause.";
    "rate" pps: Option<f64> = other("\"max\" | a rate as \"100kpps\" or \"100Mbps\" | bytes a second", rate(&told, "rate", Some("max"), size.mean_bytes())?), "\"max\"", "How much is offered, a burst at a time.";
    "line_rate" line_pps: f64 = other("a rate", rate(&told, "line_rate", None, size.mean_bytes())?.unwrap_or(LINE_PPS)), "\"1488095pps\"", "Packets a second within an adapter's burst: gigabit Ethernet's for the shortest frames.";
    "buffers" data: Data = choice(BUFFERS), "\"frames\"", "Where packets' bytes come from.";
    "hot_list" hot_list: usize = core(HOT_LIST), "", "Free frames that each worker keeps.";
    "init" init: Init = choice(INIT), "\"at_alloc\"", "When metadata is initialised.";
    "return" return_to: Return = choice(RETURN), "\"local\"", "Where a frame goes that another worker frees than the one that allocated it.";
    "pool_frames" pool_frames: Option<u32> = count_if_set(64, 4_194_304), "as many as the path can hold", "Frames of the pool.";
    "frame_size" frame_size: u32 = power_of_two(512, 65_536), "2048", "Bytes of a frame.";
    "sample_every" sample_every: u32 = count(0, 1_048_576), "61", "One in so many calls that allocate or free is timed; 0: none. A prime keeps it out of step with the visits to the depot.";
    "threads" threads: usize = count(1, 2) or 1 + usize::from(path.has_wire()), "1; of an adapter or a device 2", "2: the source has a thread of its own.";
    "out" out: Option<Out> = choice(OUT) or path.needs_out().then_some(Out::CutThrough), "of fabric and device \"cut-through\", else \"none\"", "Whether a second process sees packets where they lie, or in buffers that they are copied into (fabric, adapter, device).";
    "out_len" out_len: u32 = power_of_two(2, 16_384) or ring_len.min(1 << 14), "ring_len", "Packets that the ring to the second process holds.";
    "verify" verify: bool = flag() or out.is_some(), "false; with out true", "Whether every byte is checked where packets end (ring, fabric, adapter, device).";
    "reap" reap: usize = count(1, 65_536), "64", "Packets that an adapter's transmitter keeps before it gives their buffers back, all at once; with out those that wait for room at most, beyond which they are lost.";
    "hold_usecs" hold_usecs: Option<u32> = count_if_set(1, 10_000), "no hold", "MODEL: microseconds after an interrupt for which an adapter holds the next (adapter, ring with threads = 2).";
    "hold_frames" hold_frames: u32 = count(1, 65_536), "32", "MODEL: waiting packets that end that hold early.";
    "moderation" moderation: Moderation = other("a mode of docs/moderation.md", told.parsed("moderation")?), "napi", "When a device is polled again (device).";
    "cards" cards: Vec<Cards> = other("a list of \"SENDER,RECEIVER\"", cards(&told)?), "a veth pair", "Pairs of network interfaces that the host does not use, each pair joined by a cable; three pairs are needed, because both sides and the control are open at once.";
    "spin" spin: bool = flag(), "false", "Whether an adapter's receiver looks without a pause instead of sleeping until it is woken.";
}

/// Two interfaces that a cable joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cards {
    pub sender: String,
    pub receiver: String,
}

impl Config {
    /// Reads a side's settings.
    pub fn of(settings: &Settings) -> Result<Config> {
        let config = Config::read(settings)?;
        config.agree(settings)?;
        Ok(config)
    }

    /// Returns the CPUs of the threads, the measured thread's first.
    pub fn placed(&self, place: &Place) -> Result<Vec<usize>> {
        let mut cpus = place.cpus.clone();
        cpus.truncate(self.threads);
        if cpus.len() == self.threads {
            return Ok(cpus);
        }
        let why = format!(
            "its {} threads need a CPU each, and there are {} to run on",
            self.threads,
            cpus.len()
        );
        Err(Error::new(Code::Unsupported, "cannot run this side of `engine`", why)
            .fix("grep Cpus_allowed_list /proc/self/status; or threads = 1"))
    }

    /// Returns the CPU of the other process: a separate CPU if there is one, else the CPU of the
    /// last thread.
    pub fn beyond(&self, place: &Place) -> Option<usize> {
        let cpu = place.cpus.get(self.threads).or(place.cpus.last()).copied();
        self.out.and(cpu)
    }

    /// Checks that the settings are consistent.
    fn agree(&self, settings: &Settings) -> Result<()> {
        let line = |name| settings.get(name).map_or(0, |setting| setting.line);
        let refuse = |name, why: String| Err(wrong(line(name), why));
        let turn = self.path.turn(self.budget).unwrap_or(1);
        let whole = self.burst.is_multiple_of(turn);
        match self.path {
            _ if !whole => refuse(
                "burst",
                format!("burst = {} is no multiple of {turn}, a turn's packets", self.burst),
            ),
            Kind::Ring if self.burst > self.ring_len as usize => refuse(
                "burst",
                format!(
                    "burst = {} is more than a ring of {} takes, and the generator waits for room: \
                     path = \"adapter\" loses what does not fit",
                    self.burst, self.ring_len
                ),
            ),
            Kind::Null if self.threads != 1 => {
                refuse("threads", "path = \"null\" has one worker, and so one thread".into())
            }
            path if path.has_wire() && self.threads != 2 => {
                let why = "path = \"adapter\" and \"device\" have a wire, on a thread of its own";
                refuse("threads", why.into())
            }
            Kind::Null | Kind::Adapter if self.size == Size::Imix => {
                refuse("size", "size = imix is for path = \"ring\" and \"fabric\"".into())
            }
            Kind::Device if !matches!(self.size, Size::Bytes(..=ETHERNET_MAX)) => {
                let why = format!("size: a device carries packets of up to {ETHERNET_MAX} bytes");
                refuse("size", why)
            }
            Kind::Device if self.ring_len < XDP_RING_MIN => {
                refuse("ring_len", format!("ring_len: a ring of AF_XDP has at least {XDP_RING_MIN}"))
            }
            _ if self.hold_usecs.is_none() && settings.get("hold_frames").is_some() => {
                refuse("hold_frames", "hold_frames ends a hold of hold_usecs".into())
            }
            path if self.hold_usecs.is_some() && (path, self.threads) != (Kind::Ring, 2) && path != Kind::Adapter => {
                let why = "hold_usecs is for path = \"adapter\", and for \"ring\" with threads = 2";
                refuse("hold_usecs", why.into())
            }
            path if path != Kind::Device && settings.get("moderation").is_some() => {
                refuse("moderation", "moderation is for path = \"device\"".into())
            }
            path if path != Kind::Device && !self.cards.is_empty() => {
                refuse("cards", "cards is for path = \"device\"".into())
            }
            Kind::Fabric if self.threads != 1 => {
                let why = "path = \"fabric\" has one worker, and a process beyond it";
                refuse("threads", why.into())
            }
            path if path.needs_out() && self.out.is_none() => {
                refuse("out", "path = \"fabric\" and \"device\" have nowhere else to send to".into())
            }
            Kind::Null | Kind::Ring if self.out.is_some() => {
                refuse("out", "out is for path = \"fabric\", \"adapter\" and \"device\"".into())
            }
            _ if self.out == Some(Out::CutThrough) && self.data == Data::General => refuse(
                "out",
                "out = \"cut-through\" needs frames: the allocator's blocks are in no memory that another \
                 process sees"
                    .into(),
            ),
            _ => Ok(()),
        }
    }
}

/// Parses a rate, given as `"100kpps"`, `"100Mbps"` or a number of bytes a second, for packets of
/// `bytes`; `None` if the setting is absent or is `unbound`.
fn rate(told: &Reading<'_>, name: &str, unbound: Option<&str>, bytes: f64) -> Result<Option<f64>> {
    let Some(Setting { value, line }) = told.said(name) else { return Ok(None) };
    let pps = match value {
        Value::Text(_) => {
            let text = told.text(name)?.unwrap_or_default();
            if unbound == Some(text.as_str()) {
                return Ok(None);
            }
            let rate = units::rate(&text).map_err(|why| wrong(*line, format!("{name}: {why}")))?;
            rate.pps(bytes)
        }
        _ => told.number(name)?.unwrap_or_default() / bytes,
    };
    if PPS.contains(&pps) {
        return Ok(Some(pps));
    }
    Err(wrong(*line, format!("{name} = {value} is not from 1pps to 1Gpps")))
}

fn cards(told: &Reading<'_>) -> Result<Vec<Cards>> {
    let line = told.said("cards").map_or(0, |setting| setting.line);
    let mut known = BTreeSet::new();
    let mut pair = |text: String| {
        let (sender, receiver) = text.split_once(',').unwrap_or_default();
        let [sender, receiver] = [sender, receiver].map(|name| name.trim().to_owned());
        // An interface is named once.
        let mut is_new = |name: &String| !name.is_empty() && known.insert(name.clone());
        if is_new(&sender) && is_new(&receiver) {
            return Ok(Cards { sender, receiver });
        }
        Err(wrong(line, format!("cards: {text:?} is not \"SENDER,RECEIVER\", each named once")))
    };
    told.texts("cards")?.unwrap_or_default().into_iter().map(&mut pair).collect()
}

fn size(told: &Reading<'_>) -> Result<Size> {
    let Some(Setting { value, line }) = told.said("size") else { return Ok(Size::Bytes(SIZE_MIN)) };
    match value {
        Value::Int(bytes)
            if (SIZE_MIN..=SIZE_MAX).contains(&bytes.unsigned_abs()) && *bytes > 0 =>
        {
            Ok(Size::Bytes(bytes.unsigned_abs()))
        }
        Value::Text(text) if text == "imix" => Ok(Size::Imix),
        _ => {
            let wanted = format!("a whole number from {SIZE_MIN} to {SIZE_MAX} or \"imix\"");
            Err(wrong(*line, format!("size = {value} is not {wanted}")))
        }
    }
}
