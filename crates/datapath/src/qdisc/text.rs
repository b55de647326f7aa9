//! Disciplines described in a port's text: `xdp:eth0,qdisc=fq_codel,target=2ms`,
//! `tap:t0,shape=10Mbit`.

use std::fmt;
use std::time::Duration;

use linerate_port::{Error, Result, Spec, units};
use linerate_skb::Moved;

use super::fq_codel::{FqCodelConfig, QUANTUM_MIN};
use super::tbf::{BURST_MAX_BYTES, RATE_MAX_BPS, Rate};
use super::{Fifo, FqCodel, Limit, PACKETS_MAX, PfifoFast, Qdisc, Tbf};

/// Disciplines that a text can name.
const NAMES: &str = "fifo pfifo_fast fq_codel";
/// Options that only a discipline has (`mtu=` rather means the interface's), unless the driver has
/// one of the same name.
const OF_DISCIPLINES: [&str; 8] =
    ["limit", "limit_bytes", "flows", "quantum", "target", "interval", "ecn", "burst"];
/// Default limit in packets of a discipline without CoDel: Linux's txqueuelen.
const LIMIT: u64 = 1000;
/// Greatest limit in packets of a discipline, as for the option `backlog`.
const LIMIT_MAX: u64 = PACKETS_MAX as u64;

/// A discipline as described by a port text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    kind: Kind,
    /// The rate in bits a second, and the burst in bytes if the text has one.
    shape: Option<(u64, Option<u64>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fifo(Limit),
    PfifoFast(Limit),
    FqCodel(FqCodelConfig),
}

impl Setup {
    /// Removes the discipline from a port's text and returns it; `None` if it has neither `qdisc=`
    /// nor `shape=`.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` with the invalid value and the valid ones.
    pub fn of(spec: &mut Spec) -> Result<Option<Setup>> {
        let name = spec.take("qdisc", |text| Ok::<_, Error>(text.to_owned()))?;
        let shape = spec.take("shape", rate)?;
        if name.is_none() && shape.is_none() {
            spec.hint(&OF_DISCIPLINES, "it is an option of a discipline: add qdisc= or shape=");
            return Ok(None);
        }
        let kind = match name.as_deref().unwrap_or("fifo") {
            "fifo" => Kind::Fifo(limit(spec, Limit::packets(LIMIT as usize))?),
            "pfifo_fast" => Kind::PfifoFast(limit(spec, Limit::packets(LIMIT as usize))?),
            "fq_codel" => Kind::FqCodel(fq_codel(spec)?),
            other => {
                let near = linerate_port::nearest(other, NAMES.split(' '));
                let fix = near.map_or(format!("disciplines: {NAMES}"), |near| {
                    format!("did you mean qdisc={near}? disciplines: {NAMES}")
                });
                return Err(spec.error(format!("there is no discipline '{other}'")).fix(fix));
            }
        };
        let shape = match shape {
            Some(bps) => Some((bps, spec.take("burst", burst)?)),
            None => None,
        };
        Ok(Some(Setup { kind, shape }))
    }

    /// Creates the described discipline.
    #[must_use]
    pub fn build(&self) -> Box<dyn Qdisc> {
        fn shaped<Q: Qdisc + 'static>(
            shape: Option<(u64, Option<u64>)>,
            inner: Q,
        ) -> Box<dyn Qdisc> {
            match shape {
                Some((bps, burst)) => Box::new(Tbf::new(bps, burst, inner)),
                None => Box::new(inner),
            }
        }
        match self.kind {
            Kind::Fifo(limit) => shaped(self.shape, Fifo::new(limit)),
            Kind::PfifoFast(limit) => shaped(self.shape, PfifoFast::new(limit)),
            Kind::FqCodel(config) => shaped(self.shape, FqCodel::new(config)),
        }
    }

    /// Returns true if the options name a rate.
    #[must_use]
    pub fn is_shaped(&self) -> bool {
        self.shape.is_some()
    }

    /// Returns the burst that the text sets, in bytes; longer packets are dropped.
    pub(crate) fn burst_bytes(&self) -> Option<u64> {
        self.shape.and_then(|(_, burst)| burst)
    }

    /// Returns the length in bytes above which the discipline cuts superframes; `None` if it cuts
    /// none.
    pub(crate) fn cuts_above(&self) -> Option<u64> {
        self.shape.map(|(bps, burst)| Rate::of_port(bps, burst).whole_bytes())
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
        }
        self.shape.map_or(Ok(()), |(bps, _)| write!(f, ", shaped to {bps} bit/s"))
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

/// Reads a rate in bits a second: `10Mbit`, `2.5Gbit`.
fn rate(text: &str) -> std::result::Result<u64, String> {
    const WANTED: &str = "say a rate in bits a second, as 10Mbit or 2.5Gbit";
    // One reader takes it for bits a second, and another for tc's bytes a second.
    const UNCLEAR: &str = "bps is bytes a second in tc: say 10Mbit for bits, or 80Mbit for 10 MB";
    if text.ends_with("bps") {
        return Err(UNCLEAR.into());
    }
    let number = text.strip_suffix("bit").ok_or(WANTED)?;
    let (number, scale) = match number.strip_suffix(|c: char| c.is_ascii_alphabetic()) {
        None => (number, 1.0),
        Some(rest) => match &number[rest.len()..] {
            "k" | "K" => (rest, 1e3),
            "M" | "m" => (rest, 1e6),
            "G" | "g" => (rest, 1e9),
            "T" | "t" => (rest, 1e12),
            _ => return Err(WANTED.into()),
        },
    };
    let plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let bps = number.parse::<f64>().ok().filter(|_| plain).ok_or(WANTED)? * scale;
    if bps < 1000.0 || bps >= RATE_MAX_BPS as f64 {
        return Err(
            "say a rate from 1kbit to below 10Tbit; without shape= the port is not shaped".into()
        );
    }
    Ok(bps.round() as u64)
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
        assert_eq!(show("shape=2.5Gbit"), "fifo limit 1000p, shaped to 2500000000 bit/s");
        let both =
            show("shape=10Mbit,burst=16k,qdisc=fq_codel,limit=100,flows=1k,quantum=300,mtu=9014");
        assert_eq!(both, "fq_codel limit 100p target 5ms, shaped to 10000000 bit/s");
        assert_eq!(setup("size=64").unwrap(), None);
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
            ("qdisc=htb", "fifo pfifo_fast fq_codel"),
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
