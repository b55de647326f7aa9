//! Options of a packet port text.

use std::time::Duration;

use linerate_skb::Result;
use linerate_sys::packet::{FANOUT_SOCKETS_MAX, Fanout};

use crate::host::filter::Filter;
use crate::spec::Spec;
use crate::units;

const RING_BYTES: u32 = 8 << 20;
const RING_BYTES_MIN: u32 = 512 << 10;
const RING_BYTES_MAX: u32 = 1 << 30;

/// The kernel's names of the fanout modes.
const FANOUTS: [(&str, Fanout); 4] = [
    ("hash", Fanout::Hash),
    ("cpu", Fanout::Cpu),
    ("lb", Fanout::RoundRobin),
    ("qm", Fanout::DeviceQueue),
];

/// The checked options of a port text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// The name of the interface.
    pub interface: String,
    /// True if frames are sent past the qdisc.
    pub bypass: bool,
    /// Rule that selects a frame's queue, if there are several queues.
    pub fanout: Fanout,
    /// Selection of the packets that the port receives.
    pub filter: Filter,
    /// True if packets to other stations are received.
    pub promisc: bool,
    /// Number of queues, each with a socket and a ring of its own.
    pub queues: usize,
    /// Longest time for which the kernel keeps a partly filled block of the ring; 0 to have no
    /// ring, so that each frame can be received as soon as it has arrived.
    pub retire_ms: u32,
    /// Length of each queue's receive ring or buffer in bytes, a power of two.
    pub ring_bytes: u32,
    /// True to exchange offload headers with the kernel.
    pub vnet: bool,
}

impl Config {
    /// Parses the options of `spec`.
    pub fn of(spec: &Spec) -> Result<Config> {
        let mut spec = spec.clone();
        let filter = Filter::of(&spec)?.unwrap_or(Filter::All);
        // Frames to other stations contain no packets to this host, so promiscuous mode is off for
        // a filter of its packets.
        spec.options.set_default("promisc", Some(if filter.is_of_a_host() { "off" } else { "on" }));
        spec.options.set_default("vnet", Some("on"));
        let config = Config {
            interface: spec.arg.clone(),
            bypass: spec.flag("bypass")?,
            fanout: spec.value("fanout", fanout)?.unwrap_or_default(),
            filter,
            promisc: spec.flag("promisc")?,
            queues: spec.queues(FANOUT_SOCKETS_MAX)?,
            retire_ms: spec.value("retire", retire)?.unwrap_or(1),
            ring_bytes: spec.value("ring", ring)?.unwrap_or(RING_BYTES),
            vnet: spec.flag("vnet")?,
        };
        spec.finish()?;
        if config.queues == 1 && spec.value("fanout", fanout)?.is_some() {
            let e = spec.error("fanout= divides packets among several queues, and there is one");
            return Err(e.fix("add queues=N, or leave fanout= out"));
        }
        if config.interface.is_empty() {
            return Err(spec.error("which interface?").fix("packet:IFACE; list them: ip -br link"));
        }
        Ok(config)
    }
}

fn fanout(text: &str) -> std::result::Result<Fanout, String> {
    let known = FANOUTS.iter().find(|(word, _)| *word == text);
    known.map(|(_, fanout)| *fanout).ok_or_else(|| "one of hash, cpu, lb, qm".into())
}

/// Returns the name of `fanout` in port texts.
pub(super) fn word(fanout: Fanout) -> &'static str {
    FANOUTS.iter().find(|(_, known)| *known == fanout).map_or("?", |(word, _)| word)
}

fn retire(text: &str) -> std::result::Result<u32, String> {
    if text == "0" {
        return Ok(0);
    }
    let after = units::duration(text)?;
    let whole = after.subsec_nanos() % 1_000_000 == 0;
    if whole && (Duration::from_millis(1)..=Duration::from_secs(1)).contains(&after) {
        Ok(after.as_millis() as u32)
    } else {
        Err("whole milliseconds, 1ms to 1s, or 0 for no ring".into())
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
            fanout: Fanout::Hash,
            filter: Filter::All,
            promisc: true,
            queues: 1,
            retire_ms: 1,
            ring_bytes: 8 << 20,
            vnet: true,
        };
        assert_eq!(config("packet:eth0").unwrap(), expected);
        let all = "packet:eth0,bypass,promisc=off,retire=20ms,ring=1MiB,vnet=off";
        let all = config(all).unwrap();
        assert_eq!((all.bypass, all.promisc, all.vnet), (true, false, false));
        assert_eq!(all.retire_ms, 20);
        assert_eq!(config("packet:eth0,retire=0").unwrap().retire_ms, 0);
        assert_eq!(all.ring_bytes, 1 << 20);
    }

    #[test]
    fn fanout_without_several_queues_is_refused_with_the_remedy() {
        let e = config("packet:eth0,fanout=cpu").unwrap_err();
        assert!(e.to_string().contains("several queues"), "{e}");
        assert!(config("packet:eth0,fanout=cpu,queues=2").is_ok());
    }

    #[test]
    fn several_queues_and_a_filter_are_asked_for() {
        for (word, fanout) in FANOUTS {
            let config = config(&format!("packet:x,queues=4,fanout={word}")).unwrap();
            assert_eq!((config.queues, config.fanout), (4, fanout));
            assert_eq!(super::word(fanout), word);
        }
        let udp = config("packet:x,udp=7777").unwrap();
        assert_eq!(udp.filter.to_string(), "udp=7777");
        assert!(!udp.promisc, "other stations' ports are not this host's");
        assert!(config("packet:x,tcp=80+443,promisc=on").unwrap().promisc);
        for words in ["all", "arp", "not=icmp", "dst=10.0.0.9"] {
            assert!(config(&format!("packet:x,{words}")).unwrap().promisc, "{words}");
        }
        assert!(!config("packet:x,icmp").unwrap().promisc);
    }

    #[test]
    fn wrong_option_is_named() {
        for (text, why) in [
            ("packet:", "which interface"),
            ("packet:x,retire=500us", "1ms to 1s"),
            ("packet:x,retire=2s", "1ms to 1s"),
            ("packet:x,retire=0ms", "or 0 for no ring"),
            ("packet:x,ring=4", "needs a unit"),
            ("packet:x,ring=1KiB", "512KiB to 1GiB"),
            ("packet:x,ring=3MiB", "a power of two"),
            ("packet:x,ring=2GiB", "512KiB to 1GiB"),
            ("packet:x,ring=18446744073709551615GiB", "too large"),
            ("packet:x,vnet=maybe", "on or off"),
            ("packet:x,queues=0", "1 to 256"),
            ("packet:x,queues=257", "1 to 256"),
            ("packet:x,queues=0-3", "how many"),
            ("packet:x,fanout=rss", "hash, cpu, lb, qm"),
            ("packet:x,udp=0", "is not a port"),
            ("packet:x,dst=ten", "10.0.0.9 or fd00::9"),
            ("packet:x,icmp,udp=53", "icmp and udp=53 at once"),
            ("packet:x,bypas", "no option 'bypas'"),
        ] {
            let e = config(text).unwrap_err();
            assert!(e.why.contains(why), "{text}: {e}");
        }
    }
}
