//! The traffic to generate, parsed from the port text.

use std::time::Duration;

use linerate_skb::Result;
use linerate_wire::stamp;

use super::{BURST_MAX, FLOWS_MAX, pacer};
use crate::spec::Spec;
use crate::units::{self, Rate};

/// Simple IMIX: 7 small, 4 middle and 1 full frame of every 12, in bytes without FCS.
pub(super) const IMIX: [usize; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 60, 590];

/// The traffic to generate.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Traffic {
    pub rate: Option<Rate>,
    /// Time for which the rate is kept; `None` for the whole run.
    pub rate_for: Option<Duration>,
    /// Packets that leave together at that rate, if it was said.
    pub burst: Option<u64>,
    /// Bytes of a frame without FCS, in turn.
    pub sizes: Vec<usize>,
    pub flows: u64,
    pub count: u64,
}

/// A frame size in bytes without FCS, or `imix`.
fn sizes(text: &str) -> std::result::Result<Vec<usize>, String> {
    if text == "imix" {
        return Ok(IMIX.to_vec());
    }
    let n = units::count(text)? as usize;
    if (stamp::FRAME_LEN_MIN..=65_536).contains(&n) {
        Ok(vec![n])
    } else {
        Err(format!("a frame has {} to 65536 bytes without FCS", stamp::FRAME_LEN_MIN))
    }
}

fn burst(text: &str) -> std::result::Result<u64, String> {
    let n = units::count(text)?;
    if (1..=BURST_MAX).contains(&n) { Ok(n) } else { Err(format!("1 to {BURST_MAX}")) }
}

fn flows(text: &str) -> std::result::Result<u64, String> {
    let n = units::count(text)?;
    if (1..=FLOWS_MAX).contains(&n) { Ok(n) } else { Err(format!("1 to {FLOWS_MAX}")) }
}

impl Traffic {
    pub fn of(spec: &Spec) -> Result<Traffic> {
        let traffic = Traffic {
            rate: spec.value("rate", units::rate)?,
            rate_for: spec.value("rate_for", units::duration)?,
            burst: spec.value("burst", burst)?,
            sizes: spec.value("size", sizes)?.unwrap_or(vec![stamp::FRAME_LEN_MIN]),
            flows: spec.value("flows", flows)?.unwrap_or(1),
            count: spec.value("count", units::count)?.unwrap_or(u64::MAX),
        };
        spec.finish()?;
        if traffic.rate.is_none() && traffic.rate_for.is_some() {
            let why = "rate_for says how long the rate is kept, and there is no rate";
            return Err(spec.error(why).fix("say rate=1Gbps, or leave rate_for out"));
        }
        if traffic.rate.is_none() && traffic.burst.is_some() {
            let why = "burst says how many packets of a rate leave together, and there is no rate";
            return Err(spec.error(why).fix("say rate=1Gbps, or leave burst out"));
        }
        if traffic.pps().is_some_and(|pps| pps > pacer::PPS_MAX) {
            let why =
                format!("more than {:e} packets a second cannot be told apart", pacer::PPS_MAX);
            return Err(spec.error(why).fix("a lower rate, or none: as fast as they are taken"));
        }
        Ok(traffic)
    }

    pub fn longest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(stamp::FRAME_LEN_MIN)
    }

    fn mean_bytes(&self) -> f64 {
        self.sizes.iter().sum::<usize>() as f64 / self.sizes.len() as f64
    }

    /// Packets a second, if there is a pace to keep.
    pub fn pps(&self) -> Option<f64> {
        self.rate.map(|rate| rate.pps(self.mean_bytes()))
    }
}
