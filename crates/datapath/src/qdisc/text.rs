//! Disciplines described in a port's text: `xdp:eth0,qdisc=fq_codel,target=2ms`,
//! `tap:t0,shape=10Mbit`, `xdp:eth0,qdisc=flow_tbf,flow_rate=10Mbit`.

use std::fmt;
use std::time::Duration;

use linerate_port::{Error, Result, Spec, units};
use linerate_skb::Moved;

use super::fq_codel::{FqCodelConfig, QUANTUM_MIN};
use super::tbf::{BURST_MAX_BYTES, Rate};
use super::{BitRate, Fifo, FlowTbf, FqCodel, Key, Limit, PACKETS_MAX, PfifoFast, Qdisc, Tbf};

/// Disciplines that a text can name.
const NAMES: &str = "fifo pfifo_fast fq_codel flow_tbf";
/// Options that only a discipline has (`mtu=` rather means the interface's), unless the driver has
/// one of the same name.
const OF_DISCIPLINES: [&str; 12] = [
    "limit",
    "limit_bytes",
    "flows",
    "quantum",
    "target",
    "interval",
    "ecn",
    "burst",
    "flow_key",
    "flow_rate",
    "flow_burst",
    "flow_limit",
];
/// Default limit in packets of a discipline without CoDel: Linux's txqueuelen.
const LIMIT: u64 = 1000;
/// Least default number of flows that can have a rate each. By default it is twice the number of
/// packets that may wait, because a flow with waiting packets keeps its place.
const FLOWS: usize = 65_536;
/// Greatest limit in packets of a discipline, as for the option `backlog`.
const LIMIT_MAX: u64 = PACKETS_MAX as u64;

/// A discipline as described by a port text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    kind: Kind,
    /// The rate, and the burst in bytes if the text has one.
    shape: Option<(BitRate, Option<u64>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fifo(Limit),
    PfifoFast(Limit),
    FqCodel(FqCodelConfig),
    FlowTbf(FlowSetup),
}

/// The settings of a rate for each flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FlowSetup {
    key: Key,
    rate: BitRate,
    burst_bytes: u64,
    flows: usize,
    limit: Limit,
    /// Most packets of one flow.
    flow_packets: u32,
}

impl Setup {
    /// Removes the discipline from a port's text and returns it; `None` if it has neither `qdisc=`
    /// nor `shape=`.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` with the invalid value and the valid ones.
    pub fn of(spec: &mut Spec) -> Result<Option<Setup>> {
        let name = spec.take("qdisc", |text| Ok::<_, Error>(text.to_owned()))?;
        let shape = spec.take("shape", BitRate::read)?;
        if name.is_none() && shape.is_none() {
            spec.hint(&OF_DISCIPLINES, "it is an option of a discipline: add qdisc= or shape=");
            return Ok(None);
        }
        let kind = match name.as_deref().unwrap_or("fifo") {
            "fifo" => Kind::Fifo(limit(spec, Limit::packets(LIMIT as usize))?),
            "pfifo_fast" => Kind::PfifoFast(limit(spec, Limit::packets(LIMIT as usize))?),
            "fq_codel" => Kind::FqCodel(fq_codel(spec)?),
            "flow_tbf" => Kind::FlowTbf(flow_tbf(spec)?),
            other => {
                let near = linerate_port::nearest(other, NAMES.split(' '));
                let fix = near.map_or(format!("disciplines: {NAMES}"), |near| {
                    format!("did you mean qdisc={near}? disciplines: {NAMES}")
                });
                return Err(spec.error(format!("there is no discipline '{other}'")).fix(fix));
            }
        };
        let shape = match shape {
            Some(rate) => Some((rate, spec.take("burst", burst)?)),
            None => None,
        };
        Ok(Some(Setup { kind, shape }))
    }

    /// Creates the described discipline.
    #[must_use]
    pub fn build(&self) -> Box<dyn Qdisc> {
        fn shaped<Q: Qdisc + 'static>(
            shape: Option<(BitRate, Option<u64>)>,
            inner: Q,
        ) -> Box<dyn Qdisc> {
            match shape {
                Some((rate, burst)) => Box::new(Tbf::new(rate.bps(), burst, inner)),
                None => Box::new(inner),
            }
        }
        match self.kind {
            Kind::Fifo(limit) => shaped(self.shape, Fifo::new(limit)),
            Kind::PfifoFast(limit) => shaped(self.shape, PfifoFast::new(limit)),
            Kind::FqCodel(config) => shaped(self.shape, FqCodel::new(config)),
            Kind::FlowTbf(FlowSetup { key, rate, burst_bytes, flows, limit, flow_packets }) => {
                let flows = FlowTbf::new(key, rate.bps(), burst_bytes, flows);
                shaped(self.shape, flows.limits(limit, flow_packets))
            }
        }
    }

    /// Returns true if the options name a rate, of the port or of each flow.
    #[must_use]
    pub fn is_shaped(&self) -> bool {
        self.shape.is_some() || matches!(self.kind, Kind::FlowTbf(_))
    }

    /// Returns the option with the shortest burst, and its bytes; longer packets are dropped.
    pub(crate) fn burst(&self) -> Option<(&'static str, u64)> {
        let of_port = self.shape.and_then(|(_, burst)| burst).map(|bytes| ("burst", bytes));
        let of_flow = match self.kind {
            Kind::FlowTbf(flow) => Some(("flow_burst", flow.burst_bytes)),
            _ => None,
        };
        of_port.into_iter().chain(of_flow).min_by_key(|(_, bytes)| *bytes)
    }

    /// Returns the length in bytes above which the discipline cuts superframes; `None` if it cuts
    /// none.
    pub(crate) fn cuts_above(&self) -> Option<u64> {
        let of_port = self.shape.map(|(rate, burst)| Rate::of_port(rate.bps(), burst));
        let of_flow = match self.kind {
            Kind::FlowTbf(flow) => Some(Rate::new(flow.rate.bps(), flow.burst_bytes)),
            _ => None,
        };
        of_port.into_iter().chain(of_flow).map(|rate| rate.whole_bytes()).min()
    }

    /// Returns the most packets and bytes that the discipline may hold, for which the pool needs
    /// frames; `u64::MAX` bytes without a limit of bytes.
    #[must_use]
    pub fn most(&self) -> Moved {
        let (limit, queues) = match self.kind {
            Kind::Fifo(limit) => (limit, 1),
            // Each band has the limit.
            Kind::PfifoFast(limit) => (limit, 3),
            Kind::FqCodel(config) => (config.limit, 1),
            Kind::FlowTbf(flow) => (flow.limit, 1),
        };
        Moved { packets: queues * limit.packets, bytes: limit.bytes.saturating_mul(queues as u64) }
    }
}

/// Displays the discipline as `tc` would: `fq_codel limit 10240p target 5ms`.
impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Fifo(limit) => write!(f, "fifo limit {}p", limit.packets)?,
            Kind::PfifoFast(limit) => write!(f, "pfifo_fast limit {}p a band", limit.packets)?,
            Kind::FqCodel(FqCodelConfig { limit, target, .. }) => {
                write!(f, "fq_codel limit {}p target {target:?}", limit.packets)?;
            }
            Kind::FlowTbf(FlowSetup { key, rate, flows, limit, .. }) => {
                let limit = limit.packets;
                write!(f, "flow_tbf {rate} for each {key}, {flows} flows limit {limit}p")?;
            }
        }
        self.shape.map_or(Ok(()), |(rate, _)| write!(f, ", shaped to {rate}"))
    }
}

/// Reads `limit=` and `limit_bytes=`.
fn limit(spec: &mut Spec, usual: Limit) -> Result<Limit> {
    let packets =
        spec.take("limit", |text| within(units::count(text)?, 1, LIMIT_MAX, "packets"))?;
    let bytes =
        spec.take("limit_bytes", |text| within(units::count(text)?, 1, u64::MAX, "bytes"))?;
    Ok(Limit {
        packets: packets.map_or(usual.packets, |packets| packets as usize),
        bytes: bytes.unwrap_or(usual.bytes),
    })
}

/// Reads the options of fq_codel.
fn fq_codel(spec: &mut Spec) -> Result<FqCodelConfig> {
    let usual = FqCodelConfig::default();
    let flows = spec.take("flows", |text| within(units::count(text)?, 1, 1 << 16, "queues"))?;
    let least = u64::from(QUANTUM_MIN);
    let quantum =
        spec.take("quantum", |text| within(units::count(text)?, least, 1 << 20, "bytes"))?;
    let mtu = spec.take("mtu", |text| within(units::count(text)?, 64, 1 << 16, "bytes"))?;
    let no_ecn = spec.take("ecn", |text| match text {
        "on" => Ok(false),
        "off" => Ok(true),
        _ => Err("use on or off"),
    })?;
    let config = FqCodelConfig {
        limit: limit(spec, usual.limit)?,
        flows: flows.map_or(usual.flows, |flows| flows as usize),
        quantum_bytes: quantum.map_or(usual.quantum_bytes, |bytes| bytes as u32),
        mtu_bytes: mtu.map_or(usual.mtu_bytes, |bytes| bytes as u32),
        target: time(spec, "target")?.unwrap_or(usual.target),
        interval: time(spec, "interval")?.unwrap_or(usual.interval),
        ecn: !no_ecn.unwrap_or(!usual.ecn),
    };
    if config.target >= config.interval {
        let why = format!("target={:?} is not below interval={:?}", config.target, config.interval);
        let fix =
            "choose the interval as a round trip, and the target as 5 to 10 % of it: 5ms of 100ms";
        return Err(spec.error(why).fix(fix));
    }
    Ok(config)
}

/// Reads the options of a rate for each flow.
fn flow_tbf(spec: &mut Spec) -> Result<FlowSetup> {
    let rate = spec.take("flow_rate", BitRate::read)?.ok_or_else(|| {
        spec.error("qdisc=flow_tbf names no rate").fix("add flow_rate=, as flow_rate=10Mbit")
    })?;
    let key = spec.take("flow_key", str::parse::<Key>)?;
    let burst_bytes = spec.take("flow_burst", burst)?;
    let most = super::flow_tbf::FLOWS_MAX as u64;
    let flows = spec.take("flows", |text| within(units::count(text)?, 1, most, "flows"))?;
    let packets =
        spec.take("flow_limit", |text| within(units::count(text)?, 1, LIMIT_MAX, "packets"))?;
    let limit = limit(spec, Limit::packets(super::flows::PACKETS))?;
    let usual = FLOWS.max(2 * limit.packets).min(super::flow_tbf::FLOWS_MAX);
    Ok(FlowSetup {
        key: key.unwrap_or(Key::SrcIp),
        rate,
        burst_bytes: burst_bytes.unwrap_or_else(|| Rate::of_port(rate.bps(), None).burst_bytes()),
        flows: flows.map_or(usual, |flows| flows as usize),
        limit,
        flow_packets: packets.map_or(super::flows::FLOW_PACKETS, |packets| packets as u32),
    })
}

fn within(n: u64, min: u64, max: u64, unit: &str) -> std::result::Result<u64, String> {
    match (min..=max).contains(&n) {
        true => Ok(n),
        false if max == u64::MAX => Err(format!("say {min} {unit} or more")),
        false => Err(format!("say {min} to {max} {unit}")),
    }
}

/// Reads a time for CoDel.
fn time(spec: &mut Spec, key: &str) -> Result<Option<Duration>> {
    spec.take(key, |text| {
        let range = Duration::from_micros(1)..=Duration::from_secs(4);
        let time = units::duration(text)?;
        if range.contains(&time) { Ok(time) } else { Err("say 1us to 4s".to_owned()) }
    })
}

/// Reads a burst in bytes.
fn burst(text: &str) -> std::result::Result<u64, String> {
    within(units::count(text)?, 64, BURST_MAX_BYTES, "bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(options: &str) -> Result<Option<Setup>> {
        Setup::of(&mut linerate_port::parse(&format!("null:,{options}")).unwrap())
    }

    #[test]
    fn text_names_a_discipline_and_its_settings() {
        let show = |options| setup(options).unwrap().unwrap().to_string();
        assert_eq!(show("qdisc=fifo,limit=7"), "fifo limit 7p");
        assert_eq!(show("qdisc=pfifo_fast"), "pfifo_fast limit 1000p a band");
        assert_eq!(show("qdisc=fq_codel,target=2ms,ecn=off"), "fq_codel limit 10240p target 2ms");
        assert_eq!(show("shape=2.5Gbit"), "fifo limit 1000p, shaped to 2.5Gbit");
        let both =
            show("shape=10Mbit,burst=16k,qdisc=fq_codel,limit=100,flows=1k,quantum=300,mtu=9014");
        assert_eq!(both, "fq_codel limit 100p target 5ms, shaped to 10Mbit");
        assert_eq!(setup("size=64").unwrap(), None);
        assert_eq!(
            show("qdisc=flow_tbf,flow_rate=10Mbit,flow_key=dst_ip,flows=100k,limit=500"),
            "flow_tbf 10Mbit for each dst_ip, 100000 flows limit 500p"
        );
        let flows = setup("qdisc=flow_tbf,flow_rate=8Mbit,flow_burst=3000,shape=1Gbit");
        let flows = flows.unwrap().unwrap();
        let few = (flows.burst(), flows.cuts_above(), flows.most().packets);
        assert_eq!(few, (Some(("flow_burst", 3000)), Some(1000), 1024));
        assert!(flows.is_shaped() && flows.build().rate().is_some());
        let many = show("qdisc=flow_tbf,flow_rate=1Mbit,limit=100k");
        assert_eq!(many, "flow_tbf 1Mbit for each src_ip, 200000 flows limit 100000p");
        let usual = setup("qdisc=flow_tbf,flow_rate=8Mbit").unwrap().unwrap();
        assert!(usual.is_shaped() && usual.build().rate().is_none());
        assert_eq!(usual.burst(), Some(("flow_burst", 67_584)));
        let fq_codel = |options: &str| match setup(options).unwrap().unwrap().kind {
            Kind::FqCodel(config) => config,
            kind => panic!("{options}: {kind:?}"),
        };
        assert_eq!(fq_codel("qdisc=fq_codel"), FqCodelConfig::default());
        let all = "qdisc=fq_codel,flows=1k,quantum=300,mtu=9014,target=2ms,interval=50ms,ecn=off,limit=100";
        let wanted = FqCodelConfig {
            limit: Limit { packets: 100, ..FqCodelConfig::default().limit },
            flows: 1000,
            quantum_bytes: 300,
            mtu_bytes: 9014,
            target: Duration::from_millis(2),
            interval: Duration::from_millis(50),
            ecn: false,
        };
        assert_eq!(fq_codel(all), wanted);
        let most = |options| setup(options).unwrap().unwrap().most();
        assert_eq!(most("qdisc=pfifo_fast"), Moved { packets: 3000, bytes: u64::MAX });
        let bands = most("qdisc=pfifo_fast,limit=10,limit_bytes=500");
        assert_eq!(bands, Moved { packets: 30, bytes: 1500 });
        assert_eq!(most("qdisc=fq_codel"), Moved { packets: 10_240, bytes: 32 << 20 });
        let cuts_above = |options| setup(options).unwrap().unwrap().cuts_above();
        assert_eq!(cuts_above("qdisc=fifo"), None);
        assert_eq!(cuts_above("shape=10Mbit"), Some(1250), "1 ms");
        assert_eq!(cuts_above("shape=1Gbit,burst=16k"), Some(16_000), "the burst");
    }

    #[test]
    fn bad_setting_is_refused_with_what_would_fit() {
        for (options, wanted) in [
            ("shape=0bit", "from 1kbit"),
            ("shape=10Tbit", "below 10Tbit"),
            ("shape=1e13bit", "as 10Mbit"),
            ("shape=10", "as 10Mbit"),
            ("shape=tenMbit", "as 10Mbit"),
            ("shape=10Mbps", "say 10Mbit for bits, or 80Mbit for 10 MB"),
            ("shape=-1Mbit", "as 10Mbit"),
            ("shape=1Mbit,burst=0", "64 to"),
            ("shape=1Mbit,burst=2G", "64 to 1073741824 bytes"),
            ("qdisc=fifo,limit=0", "1 to 1048576 packets"),
            ("qdisc=fifo,limit_bytes=0", "1 bytes or more"),
            ("qdisc=fifo,limit=many", "does not start with a number"),
            ("qdisc=fq_codle", "did you mean qdisc=fq_codel"),
            ("qdisc=htb", "fifo pfifo_fast fq_codel flow_tbf"),
            ("qdisc=flow_tbf", "add flow_rate="),
            ("qdisc=flow_tbf,flow_rate=10Mbps", "say 10Mbit for bits"),
            ("qdisc=flow_tbf,flow_rate=1Mbit,flow_key=port", "src_ip, dst_ip or connection"),
            ("qdisc=flow_tbf,flow_rate=1Mbit,flow_burst=0", "64 to"),
            ("qdisc=flow_tbf,flow_rate=1Mbit,flows=0", "1 to 1048576 flows"),
            ("qdisc=flow_tbf,flow_rate=1Mbit,flow_limit=0", "1 to 1048576 packets"),
            ("qdisc", "needs a value"),
            ("qdisc=fq_codel,target=0ms", "1us to 4s"),
            ("qdisc=fq_codel,target=200ms", "not below interval=100ms"),
            ("qdisc=fq_codel,flows=0", "1 to 65536 queues"),
            ("qdisc=fq_codel,quantum=1", "256 to 1048576 bytes"),
            ("qdisc=fq_codel,mtu=1", "64 to 65536 bytes"),
            ("qdisc=fq_codel,ecn=maybe", "on or off"),
        ] {
            let e = setup(options).unwrap_err();
            assert!(e.to_string().contains(wanted), "{options}: {e}");
        }
    }
}
