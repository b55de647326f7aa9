//! What a side of `churn` is told.

use linerate_skb::{Data, Huge, Init, Pool, Return};

use crate::scenario::Knob;
use crate::settings::{Reading, Settings, wrong};
use crate::{Error, Result};

pub(super) const NAME: &str = "churn";

/// What it can be told.
pub(super) const KNOBS: [Knob; 11] = [
    knob("init", "\"at_alloc\" | \"at_free\"", "at_alloc", "when a packet's line is initialised"),
    knob("free", "\"local\" | \"remote\"", "remote", "which CPU frees: the first, or the second"),
    knob(
        "producer",
        "\"none\" | \"commits\"",
        "commits",
        "whether the length is set where a packet was allocated",
    ),
    knob(
        "consumer",
        "\"none\" | \"reads\" | \"writes\"",
        "reads",
        "what is done to the metadata where a packet is freed: reads length, type, priority and \
         stamp; writes priority, type, mark and control block besides, as a forwarder does",
    ),
    knob("buffers", "\"frames\" | \"general\"", "frames", "where the bytes of packets come from"),
    knob("return", "\"local\" | \"home\"", "local", "where a frame goes that another CPU freed"),
    knob(
        "timing",
        "\"settled\" | \"plain\"",
        "settled",
        "whether a call ends when its stores are in the cache, or when it returns",
    ),
    knob("batch", "1..=1024", "32", "packets of a call"),
    knob("hot_list", "0..=65536", "1024", "free frames that a CPU keeps"),
    knob("pool_frames", "64..=1048576", "8191", "frames"),
    knob("ring_len", "1..=65536", "1024", "packets on their way to the second CPU, at most"),
];

/// Bytes that a producer commits: the shortest frame of Ethernet, without its checksum.
pub(super) const COMMITTED_BYTES: usize = 60;

/// Which CPU frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Free {
    Local,
    Remote,
}

/// What the freeing side does to metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consumer {
    None,
    Reads,
    Writes,
}

/// A side, as it was told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Config {
    pub init: Init,
    pub free: Free,
    pub commits: bool,
    pub consumer: Consumer,
    pub data: Data,
    pub return_to: Return,
    pub settled: bool,
    pub batch: usize,
    pub hot_list: usize,
    pub pool_frames: u32,
    pub ring_len: usize,
}

impl Config {
    /// Reads it.
    pub fn of(settings: &Settings) -> Result<Config> {
        let mut told = settings.reading(NAME);
        let init = [("at_alloc", Init::AtAlloc), ("at_free", Init::AtFree)];
        let free = [("local", Free::Local), ("remote", Free::Remote)];
        let producer = [("none", false), ("commits", true)];
        let consumer =
            [("none", Consumer::None), ("reads", Consumer::Reads), ("writes", Consumer::Writes)];
        let buffers = [("frames", Data::Frames), ("general", Data::General)];
        let return_to = [("local", Return::Local), ("home", Return::Home)];
        let timing = [("settled", true), ("plain", false)];
        let config = Config {
            init: told.choice("init", &init)?.unwrap_or(Init::AtAlloc),
            free: told.choice("free", &free)?.unwrap_or(Free::Remote),
            commits: told.choice("producer", &producer)?.unwrap_or(true),
            consumer: told.choice("consumer", &consumer)?.unwrap_or(Consumer::Reads),
            data: told.choice("buffers", &buffers)?.unwrap_or(Data::Frames),
            return_to: told.choice("return", &return_to)?.unwrap_or(Return::Local),
            settled: told.choice("timing", &timing)?.unwrap_or(true),
            batch: count(&mut told, "batch", 1..=1024, 32)? as usize,
            hot_list: count(&mut told, "hot_list", 0..=65_536, 1024)? as usize,
            // At most 2^20: it fits.
            pool_frames: count(&mut told, "pool_frames", 64..=1 << 20, 8191)? as u32,
            ring_len: count(&mut told, "ring_len", 1..=65_536, 1024)? as usize,
        };
        told.finish()?;
        config.fits(settings)?;
        Ok(config)
    }

    /// Refuses what could never move: a queue without room for a batch, and a pool whose frames are
    /// all on a list or on their way while somebody wants one.
    fn fits(&self, settings: &Settings) -> Result<()> {
        let refuse = |name: &str, why: String| -> Error {
            wrong(settings.get(name).map_or(0, |said| said.line), why)
        };
        if self.ring_len < self.batch {
            let why =
                format!("ring_len = {} is less than a batch of {}", self.ring_len, self.batch);
            return Err(refuse("ring_len", why).fix(format!("ring_len = {}", self.batch)));
        }
        let (held, frames) = (self.frames_held(), self.pool_frames as usize);
        if frames < held {
            let why = format!(
                "pool_frames = {frames} are fewer than hot lists, ring and batches can hold, {held}"
            );
            return Err(refuse("pool_frames", why).fix(format!("pool_frames = {held}")));
        }
        Ok(())
    }

    /// Frames that may be elsewhere than in the depot: lists, ring, a batch in each hand, and under
    /// [`Return::Home`] an eighth of the pool on its way.
    fn frames_held(&self) -> usize {
        let away = match self.return_to {
            Return::Home => self.pool_frames as usize / 8,
            Return::Local => 0,
        };
        match self.free {
            Free::Local => self.hot_list + 2 * self.batch + away,
            Free::Remote => 2 * self.hot_list + self.ring_len + 4 * self.batch + away,
        }
    }

    /// CPUs that it runs on.
    pub fn cpus(&self) -> usize {
        match self.free {
            Free::Local => 1,
            Free::Remote => 2,
        }
    }

    /// A pool with its policies.
    pub fn pool(&self, frames: u32) -> Result<Pool> {
        let builder = Pool::builder().name(NAME).frames(frames).huge_pages(Huge::Try);
        builder.data(self.data).init(self.init).return_to(self.return_to).build()
    }
}

fn count(
    told: &mut Reading<'_>,
    name: &'static str,
    range: std::ops::RangeInclusive<u64>,
    default: u64,
) -> Result<u64> {
    Ok(told.count(name, range)?.unwrap_or(default))
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
    use super::*;
    use crate::settings::{Setting, Value};

    #[test]
    fn every_knob_can_be_said_and_its_default_is_the_one_that_is_printed() {
        for knob in KNOBS {
            let value = match knob.default.parse::<i64>() {
                Ok(n) => Value::Int(n),
                Err(_) => Value::Text(knob.default.into()),
            };
            let told = Config::of(&Settings::new().with(knob.name, value)).unwrap();
            let untold = Config::of(&Settings::new()).unwrap();
            assert_eq!(format!("{told:?}"), format!("{untold:?}"), "{}", knob.name);
        }
    }

    #[test]
    fn a_knob_that_there_is_not_is_refused_with_its_line() {
        let mut settings = Settings::new();
        settings.set("consumer", Setting { value: "frees".into(), line: 9 });
        let e = Config::of(&settings).unwrap_err();
        assert!(e.why.starts_with("line 9: consumer = frees is not one of \"none\""), "{e}");
        let mut settings = Settings::new();
        settings.set("metadata", Setting { value: "raw".into(), line: 4 });
        let e = Config::of(&settings).unwrap_err();
        assert_eq!(e.why, "line 4: scenario \"churn\" has no setting \"metadata\"");
    }

    #[test]
    fn a_pool_that_could_run_dry_for_ever_is_refused_with_one_that_cannot() {
        let mut settings = Settings::new().with("hot_list", 4000);
        settings.set("pool_frames", Setting { value: Value::Int(8000), line: 5 });
        let e = Config::of(&settings).unwrap_err();
        assert!(e.why.starts_with("line 5: pool_frames = 8000 are fewer"), "{e}");
        assert_eq!(e.fix, "pool_frames = 9152");
        assert!(Config::of(&settings.clone().with("pool_frames", 9152)).is_ok());
        assert!(Config::of(&settings.with("free", "local")).is_ok());
        let e = Config::of(&Settings::new().with("ring_len", 16)).unwrap_err();
        assert_eq!(e.fix, "ring_len = 32");
    }
}
