//! Settings of a side of `churn`.

use linerate_ctl::pool::{BUFFERS, INIT, RETURN};
use linerate_skb::{Data, Huge, Init, Pool, Return};

use linerate_skb::knob::HOT_LIST;

use crate::knobs::{Choice, knobs};
use crate::settings::{Settings, wrong};
use crate::{Error, Result};

pub(super) const NAME: &str = "churn";

const FREE: Choice<Free, 2> = [("local", Free::Local), ("remote", Free::Remote)];
const PRODUCER: Choice<bool, 2> = [("none", false), ("commits", true)];
const CONSUMER: Choice<Consumer, 3> =
    [("none", Consumer::None), ("reads", Consumer::Reads), ("writes", Consumer::Writes)];
const TIMING: Choice<bool, 2> = [("settled", true), ("plain", false)];

/// Bytes of a packet that a producer commits: Ethernet's shortest frame, without its checksum.
pub(super) const COMMITTED_BYTES: usize = 60;

/// The CPU that frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Free {
    Local,
    Remote,
}

/// Access to a packet's metadata by the side that frees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consumer {
    None,
    Reads,
    Writes,
}

knobs! {
    /// The settings of a side.
    Config of "churn", told as told:
    "init" init: Init = choice(INIT), "at_alloc", "when a packet's line is initialised";
    "free" free: Free = choice(FREE), "remote", "which CPU frees: the first, or the second";
    "producer" commits: bool = choice(PRODUCER), "commits", "whether the length is set where a packet was allocated";
    "consumer" consumer: Consumer = choice(CONSUMER), "reads", "what is done to the metadata where a packet is freed: reads length, type, priority and stamp; writes priority, type, mark and control block besides, as a forwarder does";
    "buffers" data: Data = choice(BUFFERS), "frames", "where the bytes of packets come from";
    "return" return_to: Return = choice(RETURN), "local", "where a frame goes that another CPU freed";
    "timing" settled: bool = choice(TIMING), "settled", "whether a call ends when its stores are in the cache, or when it returns";
    "batch" batch: usize = count(1, 1024), "32", "packets of a call";
    "hot_list" hot_list: usize = core(HOT_LIST), "", "free frames that a CPU keeps";
    "pool_frames" pool_frames: u32 = count(64, 1_048_576), "8191", "frames";
    "ring_len" ring_len: usize = count(1, 65_536), "1024", "packets on their way to the second CPU, at most";
}

impl Config {
    /// Reads a side's settings.
    pub fn of(settings: &Settings) -> Result<Config> {
        let config = Config::read(settings)?;
        config.fits(settings)?;
        Ok(config)
    }

    /// Refuses settings that would block the traffic: a queue without room for a batch, or a pool
    /// whose frames can all be on lists or in flight while a CPU waits for one.
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
            let enough = match self.return_to {
                Return::Home => (8 * self.frames_held_by_cpus()).div_ceil(7),
                Return::Local => held,
            };
            return Err(refuse("pool_frames", why).fix(format!("pool_frames = {enough}")));
        }
        Ok(())
    }

    /// Returns the number of frames that may be outside the depot: lists, ring, a batch on each
    /// CPU, and under [`Return::Home`] an eighth of the pool on its way.
    fn frames_held(&self) -> usize {
        let away = match self.return_to {
            Return::Home => self.pool_frames as usize / 8,
            Return::Local => 0,
        };
        self.frames_held_by_cpus() + away
    }

    fn frames_held_by_cpus(&self) -> usize {
        match self.free {
            Free::Local => self.hot_list + 2 * self.batch,
            Free::Remote => 2 * self.hot_list + self.ring_len + 4 * self.batch,
        }
    }

    /// Returns the number of CPUs that the side uses.
    pub fn cpus(&self) -> usize {
        match self.free {
            Free::Local => 1,
            Free::Remote => 2,
        }
    }

    /// Returns a pool with the side's policies.
    pub fn pool(&self, frames: u32) -> Result<Pool> {
        let builder = Pool::builder().name(NAME).frames(frames).huge_pages(Huge::Try);
        builder.data(self.data).init(self.init).return_to(self.return_to).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Setting, Value};

    #[test]
    fn a_pool_that_could_run_dry_for_ever_is_refused_with_one_that_cannot() {
        let mut settings = Settings::new().with("hot_list", 4000);
        settings.set("pool_frames", Setting { value: Value::Int(8000), line: 5 });
        let e = Config::of(&settings).unwrap_err();
        assert!(e.why.starts_with("line 5: pool_frames = 8000 are fewer"), "{e}");
        assert_eq!(e.fix, "pool_frames = 9152");
        assert!(Config::of(&settings.clone().with("pool_frames", 9152)).is_ok());
        assert!(Config::of(&settings.clone().with("free", "local")).is_ok());
        // A larger pool has more frames on their way home.
        let home = settings.with("return", "home");
        let e = Config::of(&home).unwrap_err();
        assert_eq!(e.fix, "pool_frames = 10460");
        assert!(Config::of(&home.with("pool_frames", 10_460)).is_ok());
        let e = Config::of(&Settings::new().with("ring_len", 16)).unwrap_err();
        assert_eq!(e.fix, "ring_len = 32");
    }
}
