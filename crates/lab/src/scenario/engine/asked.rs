//! What a side was asked for.

use linerate_ctl::pool::{BUFFERS, INIT, RETURN};
use linerate_datapath::{Data, Init, Return};
use linerate_port::units;

use crate::scenario::Place;
use crate::settings::{Reading, Settings, Value, wrong};
use crate::{Code, Error, Result};

/// Most packets of a burst, buffers of a ring, frames of a hot list.
const MANY: u64 = 1 << 16;
/// Gigabit Ethernet's packets a second: 60 bytes, FCS, preamble and gap.
const LINE_PPS: f64 = 1_488_095.0;
/// Ethernet's shortest frame without FCS, and the shortest that a generator numbers.
const SIZE_MIN: u64 = 60;

/// What packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Ring,
    Adapter,
}

/// Sizes of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Bytes(u64),
    Imix,
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
        let paths = [("null", Kind::Null), ("ring", Kind::Ring), ("adapter", Kind::Adapter)];
        let path = told.choice("path", &paths)?.unwrap_or(Kind::Null);
        let count = |n: Option<u64>, default: usize| n.map_or(default, |n| n as usize);
        let asked = Asked {
            path,
            ring_len: count(told.count("ring_len", 2..=MANY)?, 256) as u32,
            burst: count(told.count("burst", 1..=MANY)?, 64),
            pps: rate(settings, &mut told, "rate", Some("max"))?,
            line_pps: rate(settings, &mut told, "line_rate", None)?.unwrap_or(LINE_PPS),
            size: size(settings, &mut told)?,
            data: told.choice("buffers", &BUFFERS)?.unwrap_or_default(),
            hot_list: count(told.count("hot_list", 0..=MANY)?, 1024),
            init: told.choice("init", &INIT)?.unwrap_or_default(),
            return_to: told.choice("return", &RETURN)?.unwrap_or_default(),
            budget: count(told.count("budget", 1..=1024)?, 64),
            pool_frames: told.count("pool_frames", 64..=1 << 22)?.map(|n| n as u32),
            frame_size: count(told.count("frame_size", 256..=MANY)?, 2048) as u32,
            sample_every: count(told.count("sample_every", 0..=1 << 20)?, 61) as u32,
            threads: count(told.count("threads", 1..=2)?, 1 + usize::from(path == Kind::Adapter)),
            verify: told.flag("verify")?.unwrap_or(false),
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

    /// Whether what was said goes together.
    fn agree(&self, settings: &Settings) -> Result<()> {
        let line = |name| settings.get(name).map_or(0, |setting| setting.line);
        let refuse = |name, why: String| Err(wrong(line(name), why));
        for (name, n) in [("ring_len", self.ring_len), ("frame_size", self.frame_size)] {
            if !n.is_power_of_two() {
                return refuse(name, format!("{name} = {n} is no power of two"));
            }
        }
        let both_ways = if self.path == Kind::Null { 2 } else { 1 };
        let turn = both_ways * self.budget;
        let whole = self.path == Kind::Adapter || self.burst.is_multiple_of(turn);
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
                refuse("size", "size = imix is for path = \"ring\"".into())
            }
            _ => Ok(()),
        }
    }
}

/// A rate as `"100kpps"`; `None` if it is not said, or said to be `unbound`.
fn rate(
    settings: &Settings,
    told: &mut Reading<'_>,
    name: &'static str,
    unbound: Option<&str>,
) -> Result<Option<f64>> {
    let Some(text) = told.text(name)? else { return Ok(None) };
    if unbound == Some(text.as_str()) {
        return Ok(None);
    }
    let line = settings.get(name).map_or(0, |setting| setting.line);
    match units::rate(&text) {
        Ok(units::Rate::Pps(pps)) if (1.0..=1e9).contains(&pps) => Ok(Some(pps)),
        Ok(_) => Err(wrong(line, format!("{name} = {text} is not from 1pps to 1Gpps"))),
        Err(why) => Err(wrong(line, format!("{name}: {why}"))),
    }
}

fn size(settings: &Settings, told: &mut Reading<'_>) -> Result<Size> {
    if let Some(Value::Text(_)) = settings.get("size").map(|setting| &setting.value) {
        return Ok(told.choice("size", &[("imix", Size::Imix)])?.unwrap_or(Size::Bytes(SIZE_MIN)));
    }
    Ok(Size::Bytes(told.count("size", SIZE_MIN..=MANY)?.unwrap_or(SIZE_MIN)))
}
