//! What a side was asked for.

use std::ops::RangeInclusive;

use linerate_ctl::pool::{BUFFERS, INIT, RETURN};
use linerate_datapath::{Data, Init, Return};
use linerate_port::units;

use crate::scenario::Place;
use crate::settings::{Reading, Setting, Settings, Value, wrong};
use crate::{Code, Error, Result};

/// Most packets of a burst, buffers of a ring, frames of a hot list.
const MANY: u64 = 1 << 16;
/// Gigabit Ethernet's packets a second: 60 bytes, FCS, preamble and gap.
const LINE_PPS: f64 = 1_488_095.0;
/// Packets a second that can be told apart.
const PPS: RangeInclusive<f64> = 1.0..=1e9;
/// Of 12 packets, 7 have 60 bytes, 4 have 590 and 1 has 1514.
const IMIX_MEAN_BYTES: f64 = (7.0 * 60.0 + 4.0 * 590.0 + 1514.0) / 12.0;
/// Ethernet's shortest frame without FCS, and the shortest that a generator numbers.
const SIZE_MIN: u64 = 60;

/// What packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Ring,
    Adapter,
    Fabric,
}

impl Kind {
    /// Packets that a turn of a source's worker offers; `None` without a worker.
    pub fn turn(self, budget: usize) -> Option<usize> {
        match self {
            // Both ports are sources.
            Kind::Null => Some(2 * budget),
            Kind::Ring | Kind::Fabric => Some(budget),
            Kind::Adapter => None,
        }
    }
}

/// What becomes of packets beyond this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Out {
    /// Another process sees them where they lie.
    CutThrough,
    /// Another process sees them where they were copied to.
    Copy,
}

impl Out {
    /// The options of the port that they leave by.
    pub fn options(self, ring_len: u32) -> String {
        let sharing = match self {
            // Its pool is sealed against writing, and stays private.
            Out::CutThrough => "read",
            Out::Copy => "no",
        };
        format!("role=client,size={ring_len},zerocopy={sharing}")
    }
}

/// Sizes of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Bytes(u64),
    Imix,
}

impl Size {
    /// Of a packet in the long run.
    fn mean_bytes(self) -> f64 {
        match self {
            Size::Bytes(bytes) => bytes as f64,
            Size::Imix => IMIX_MEAN_BYTES,
        }
    }
}

/// What a side was asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked {
    pub path: Kind,
    pub ring_len: u32,
    pub burst: usize,
    /// Packets offered in a second; `None` without a pause.
    pub pps: Option<f64>,
    pub line_pps: f64,
    pub size: Size,
    pub data: Data,
    pub hot_list: usize,
    pub init: Init,
    pub return_to: Return,
    pub budget: usize,
    pub pool_frames: Option<u32>,
    pub frame_size: u32,
    pub sample_every: u32,
    pub threads: usize,
    pub verify: bool,
    pub out: Option<Out>,
    /// Descriptors of the ring to the other process.
    pub out_len: u32,
    pub reap: usize,
    pub touch: bool,
    pub spin: bool,
}

impl Asked {
    /// Reads a side's settings.
    ///
    /// # Errors
    /// `E-EXPERIMENT` for one that is not there, is of another kind, or does not go with another.
    pub fn of(settings: &Settings) -> Result<Asked> {
        let mut told = settings.reading("engine");
        let paths = [
            ("null", Kind::Null),
            ("ring", Kind::Ring),
            ("adapter", Kind::Adapter),
            ("fabric", Kind::Fabric),
        ];
        let path = told.choice("path", &paths)?.unwrap_or(Kind::Null);
        let size = size(settings, &mut told)?;
        let count = |n: Option<u64>, default: usize| n.map_or(default, |n| n as usize);
        let budget = count(told.count("budget", 1..=1024)?, 64);
        let burst = told.count("burst", 1..=MANY)?;
        let outs =
            [("none", None), ("cut-through", Some(Out::CutThrough)), ("copy", Some(Out::Copy))];
        let out = told.choice("out", &outs)?;
        let out = out.unwrap_or((path == Kind::Fabric).then_some(Out::CutThrough));
        let ring_len = count(told.count("ring_len", 2..=MANY)?, 256) as u32;
        let asked = Asked {
            path,
            ring_len,
            burst: count(burst, path.turn(budget).unwrap_or(64)),
            pps: rate(settings, &mut told, "rate", Some("max"), size.mean_bytes())?,
            line_pps: rate(settings, &mut told, "line_rate", None, size.mean_bytes())?
                .unwrap_or(LINE_PPS),
            size,
            data: told.choice("buffers", &BUFFERS)?.unwrap_or_default(),
            hot_list: count(told.count("hot_list", 0..=MANY)?, 1024),
            init: told.choice("init", &INIT)?.unwrap_or_default(),
            return_to: told.choice("return", &RETURN)?.unwrap_or_default(),
            budget,
            pool_frames: told.count("pool_frames", 64..=1 << 22)?.map(|n| n as u32),
            frame_size: count(told.count("frame_size", 256..=MANY)?, 2048) as u32,
            sample_every: count(told.count("sample_every", 0..=1 << 20)?, 61) as u32,
            threads: count(told.count("threads", 1..=2)?, 1 + usize::from(path == Kind::Adapter)),
            verify: told.flag("verify")?.unwrap_or(out.is_some()),
            out,
            out_len: told
                .count("out_len", 2..=1 << 14)?
                .map_or(ring_len.min(1 << 14), |n| n as u32),
            reap: count(told.count("reap", 1..=MANY)?, 64),
            touch: told.flag("touch")?.unwrap_or(false),
            spin: told.flag("spin")?.unwrap_or(false),
        };
        told.finish()?;
        asked.agree(settings)?;
        Ok(asked)
    }

    /// The CPUs of its threads, the measured one's first.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if there are fewer CPUs than threads.
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

    /// The CPU of the process beyond: one of its own if there is one, else the last thread's neighbour's.
    pub fn beyond(&self, place: &Place) -> Option<usize> {
        let cpu = place.cpus.get(self.threads).or(place.cpus.last()).copied();
        self.out.and(cpu)
    }

    /// Whether what was said goes together.
    fn agree(&self, settings: &Settings) -> Result<()> {
        let line = |name| settings.get(name).map_or(0, |setting| setting.line);
        let refuse = |name, why: String| Err(wrong(line(name), why));
        let powers = [
            ("ring_len", self.ring_len),
            ("out_len", self.out_len),
            ("frame_size", self.frame_size),
        ];
        for (name, n) in powers {
            if !n.is_power_of_two() {
                return refuse(name, format!("{name} = {n} is no power of two"));
            }
        }
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
            Kind::Adapter if self.threads != 2 => {
                refuse("threads", "path = \"adapter\" has a wire, on a thread of its own".into())
            }
            Kind::Null | Kind::Adapter if self.size == Size::Imix => {
                refuse("size", "size = imix is for path = \"ring\" and \"fabric\"".into())
            }
            Kind::Fabric if self.threads != 1 => {
                let why = "path = \"fabric\" has one worker, and a process beyond it";
                refuse("threads", why.into())
            }
            Kind::Fabric if self.out.is_none() => {
                refuse("out", "path = \"fabric\" has nowhere else to send to".into())
            }
            Kind::Null | Kind::Ring if self.out.is_some() => {
                refuse("out", "out is for path = \"fabric\" and \"adapter\"".into())
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

/// A rate as `"100kpps"`, `"100Mbps"` or a number of bytes a second, in packets of `bytes`; `None`
/// if it is not said, or said to be `unbound`.
fn rate(
    settings: &Settings,
    told: &mut Reading<'_>,
    name: &'static str,
    unbound: Option<&str>,
    bytes: f64,
) -> Result<Option<f64>> {
    let Some(Setting { value, line }) = settings.get(name) else {
        return told.text(name).map(|_| None);
    };
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

fn size(settings: &Settings, told: &mut Reading<'_>) -> Result<Size> {
    if let Some(Value::Text(_)) = settings.get("size").map(|setting| &setting.value) {
        return Ok(told.choice("size", &[("imix", Size::Imix)])?.unwrap_or(Size::Bytes(SIZE_MIN)));
    }
    Ok(Size::Bytes(told.count("size", SIZE_MIN..=MANY)?.unwrap_or(SIZE_MIN)))
}
