//! The traffic to generate, parsed from the port text.

use std::net::SocketAddr;
use std::time::Duration;

use linerate_skb::Result;
use linerate_wire::stamp;

use super::target::{self, Target};
use super::{BURST_MAX, FLOWS_MAX, pacer};
use crate::spec::Spec;
use crate::units::{self, ParseError, Rate};

/// Simple IMIX, in bytes without FCS: 7 small, 4 middle and 1 full frame in every 12.
pub(super) const IMIX: [usize; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 60, 590];

/// The traffic to generate.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Traffic {
    pub rate: Option<Rate>,
    /// Time for which the rate holds; `None` for the whole run.
    pub rate_for: Option<Duration>,
    /// Number of packets that leave together at the given rate, if set.
    pub burst: Option<u64>,
    /// Frame sizes in bytes without FCS, used in turn.
    pub sizes: Vec<usize>,
    pub flows: u64,
    pub count: u64,
    /// The receiver of datagrams; `None` for frames of linerate's own EtherType.
    pub to: Option<Target>,
}

/// Parses a frame size in bytes without FCS, or `imix`; no frame is shorter than `shortest`.
fn sizes(text: &str, shortest: usize) -> std::result::Result<Vec<usize>, String> {
    if text == "imix" {
        return Ok(IMIX.map(|size| size.max(shortest)).to_vec());
    }
    let n = units::count(text).map_err(|why| format!("{why}; write bytes, or imix"))? as usize;
    let longest = 65_536 - (shortest - stamp::FRAME_LEN_MIN);
    if (shortest..=longest).contains(&n) {
        Ok(vec![n])
    } else {
        Err(format!("a frame has {shortest} to {longest} bytes without FCS"))
    }
}

/// Returns the mean frame length of generated traffic, from the options for size and receiver;
/// without a size it is the shortest length.
///
/// Errors: what is wrong with `size`.
/// Units:  bytes without FCS.
pub fn mean_frame_bytes(
    size: Option<&str>,
    to: Option<SocketAddr>,
) -> std::result::Result<f64, ParseError> {
    let shortest = target::shortest(to);
    let sizes = size.map_or(Ok(vec![shortest]), |size| sizes(size, shortest));
    let sizes = sizes.map_err(ParseError::new)?;
    Ok(mean(&sizes))
}

fn mean(sizes: &[usize]) -> f64 {
    sizes.iter().sum::<usize>() as f64 / sizes.len() as f64
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
        let to = Target::of(spec)?;
        let shortest = target::shortest(to.as_ref().map(|to| to.dst));
        let traffic = Traffic {
            rate: spec.value("rate", units::rate)?,
            rate_for: spec.value("rate_for", units::duration)?,
            burst: spec.value("burst", burst)?,
            sizes: spec.value("size", |text| sizes(text, shortest))?.unwrap_or(vec![shortest]),
            flows: spec.value("flows", flows)?.unwrap_or(1),
            count: spec.value("count", units::count)?.unwrap_or(u64::MAX),
            to,
        };
        spec.finish()?;
        if traffic.rate.is_none() && traffic.rate_for.is_some() {
            let why = "rate_for limits the time of rate, and rate is not given";
            return Err(spec.error(why).fix("add rate=1Gbps, or leave rate_for out"));
        }
        if traffic.rate.is_none() && traffic.burst.is_some() {
            let why = "burst needs a rate, and rate is not given";
            return Err(spec.error(why).fix("add rate=1Gbps, or leave burst out"));
        }
        if traffic.pps().is_some_and(|pps| pps > pacer::PPS_MAX) {
            let why = format!("a rate above {:e} packets a second cannot be kept", pacer::PPS_MAX);
            return Err(spec
                .error(why)
                .fix("use a lower rate, or leave rate out for the highest possible"));
        }
        Ok(traffic)
    }

    pub fn longest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(stamp::FRAME_LEN_MIN)
    }

    /// Returns the rate in packets a second, if one is set.
    pub fn pps(&self) -> Option<f64> {
        self.rate.map(|rate| rate.pps(mean(&self.sizes)))
    }
}
