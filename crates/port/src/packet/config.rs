//! What stands in the port text.

use std::time::Duration;

use linerate_skb::Result;

use crate::spec::Spec;
use crate::units;

const RING_BYTES: u32 = 8 << 20;
const RING_BYTES_MIN: u32 = 512 << 10;
const RING_BYTES_MAX: u32 = 1 << 30;

/// A port text's options, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// The interface.
    pub interface: String,
    /// Send past the qdisc.
    pub bypass: bool,
    /// Receive what is addressed to others.
    pub promisc: bool,
    /// How long the kernel holds a block back that is not full.
    pub retire_ms: u32,
    /// Bytes of the receive ring, a power of two.
    pub ring_bytes: u32,
    /// Exchange offload headers.
    pub vnet: bool,
}

impl Config {
    /// Reads the options of `spec`.
    pub fn of(spec: &Spec) -> Result<Config> {
        let mut spec = spec.clone();
        spec.options.set_default("promisc", Some("on"));
        spec.options.set_default("vnet", Some("on"));
        let config = Config {
            interface: spec.arg.clone(),
            bypass: spec.flag("bypass")?,
            promisc: spec.flag("promisc")?,
            retire_ms: spec.value("retire", retire)?.unwrap_or(1),
            ring_bytes: spec.value("ring", ring)?.unwrap_or(RING_BYTES),
            vnet: spec.flag("vnet")?,
        };
        spec.finish()?;
        if config.interface.is_empty() {
            return Err(spec.error("which interface?").fix("packet:IFACE; list them: ip -br link"));
        }
        Ok(config)
    }
}

fn retire(text: &str) -> std::result::Result<u32, String> {
    let after = units::duration(text)?;
    let whole = after.subsec_nanos() % 1_000_000 == 0;
    if whole && (Duration::from_millis(1)..=Duration::from_secs(1)).contains(&after) {
        Ok(after.as_millis() as u32)
    } else {
        Err("whole milliseconds, 1ms to 1s".into())
    }
}

fn ring(text: &str) -> std::result::Result<u32, String> {
    match u32::try_from(bytes(text)?) {
        Ok(n) if n.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&n) => Ok(n),
        _ => Err("a power of two from 512KiB to 1GiB".into()),
    }
}

fn bytes(text: &str) -> std::result::Result<u64, String> {
    let (number, shift) = [("KiB", 10), ("MiB", 20), ("GiB", 30)]
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
        .ok_or_else(|| format!("'{text}' needs a unit: KiB MiB GiB"))?;
    let number: u64 = number.parse().map_err(|_| format!("'{number}' is not a whole number"))?;
    number.checked_mul(1 << shift).ok_or("it is too large".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config> {
        Config::of(&Spec::parse(text, &["packet"])?)
    }

    #[test]
    fn the_defaults_are_those_of_the_page() {
        let expected = Config {
            interface: "eth0".into(),
            bypass: false,
            promisc: true,
            retire_ms: 1,
            ring_bytes: 8 << 20,
            vnet: true,
        };
        assert_eq!(config("packet:eth0").unwrap(), expected);
        let all = "packet:eth0,bypass,promisc=off,retire=20ms,ring=1MiB,vnet=off";
        let all = config(all).unwrap();
        assert_eq!((all.bypass, all.promisc, all.vnet), (true, false, false));
        assert_eq!((all.retire_ms, all.ring_bytes), (20, 1 << 20));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("packet:", "which interface"),
            ("packet:x,retire=500us", "1ms to 1s"),
            ("packet:x,retire=2s", "1ms to 1s"),
            ("packet:x,ring=4", "needs a unit"),
            ("packet:x,ring=1KiB", "512KiB to 1GiB"),
            ("packet:x,ring=3MiB", "a power of two"),
            ("packet:x,ring=2GiB", "512KiB to 1GiB"),
            ("packet:x,ring=18446744073709551615GiB", "too large"),
            ("packet:x,vnet=maybe", "on or off"),
            ("packet:x,bypas", "no option 'bypas'"),
        ] {
            let e = config(text).unwrap_err();
            assert!(e.why.contains(why), "{text}: {e}");
        }
    }
}
