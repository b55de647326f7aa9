//! The division of packets among a device's queues: reported, and changed if the port text asks for
//! it.

use linerate_skb::{Code, Error, Result};
use linerate_sys::netif::{Interface, NetFolder, Rss, RssGuard};

use super::config::Config;
use super::setup;
use crate::doctor::Findings;
use crate::doctor::interface::InterfaceInfo;
use crate::driver::Change;
use crate::host::filter::Filter;

/// Bytes whose repetition is a key with the same hash for both directions of a flow, as
/// `Toeplitz::SYMMETRIC`.
const SYMMETRIC: [u8; 2] = [0x6d, 0x5a];

/// A requested division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spread {
    /// As many table entries for each queue in use, and none for the others.
    Even,
    /// Even, with a key that hashes both directions of a flow alike.
    Symmetric,
}

/// Reads the value of `rss=`.
pub(super) fn spread(text: &str) -> std::result::Result<Spread, String> {
    match text {
        "even" => Ok(Spread::Even),
        "symmetric" => Ok(Spread::Symmetric),
        _ => Err("one of even, symmetric".into()),
    }
}

/// Returns the requested division, unless the port receives nothing.
pub(super) fn wanted_by(config: &Config) -> Option<Spread> {
    config.spread.filter(|_| config.filter != Filter::Nothing)
}

/// Divides the packets of `interface` among `queues`, until the guard is dropped.
pub(super) fn set(spread: Spread, interface: &str, queues: &[u32]) -> Result<RssGuard> {
    let name = interface;
    let interface = Interface::open(name)?;
    let now = interface.rss()?;
    if let Some(why) = one_way(spread, &now) {
        return Err(refusal(name, why));
    }
    let (table, key) = wanted(spread, &now, queues);
    let guard = interface.set_rss(&table, &key)?;
    // Dropped on an error, the guard restores the former division.
    match unmet(&table, &key, guard.written()) {
        Some(why) => Err(refusal(name, why)),
        None => Ok(guard),
    }
}

/// Returns the reason why no key makes the hash of a device symmetric, if that is asked for.
fn one_way(spread: Spread, now: &Rss) -> Option<String> {
    let is_symmetric = spread == Spread::Symmetric;
    if is_symmetric && now.key.is_empty() {
        return Some("its driver does not report the key of its hash".into());
    }
    // Bits of the functions Toeplitz and XOR.
    (is_symmetric && !matches!(now.function, 1 | 2)).then(|| {
        let function = now.function_name();
        format!("its hash function ({function}) is not known to be symmetric with any key")
    })
}

/// Returns the reason why a device does not divide packets by the table and the key that were
/// written; an empty key was not.
fn unmet(table: &[u32], key: &[u8], now: &Rss) -> Option<String> {
    let is_other_key = !key.is_empty() && now.key != key;
    let stored = |part: &str| format!("its driver stored another {part} than was written");
    match (now.table != table, is_other_key) {
        (true, _) => Some(stored("table")),
        (false, true) => Some(stored("key")),
        (false, false) => None,
    }
}

fn refusal(name: &str, why: String) -> Error {
    let what = format!("cannot use the receive-side scaling of {name}");
    Error::new(Code::Unsupported, what, why)
        .fix(format!("omit rss= (rss=even needs no key); the present table: ethtool -x {name}"))
}

/// Returns the change that [`set`] will make; `None` if it will fail because the interface has no
/// division.
pub(super) fn change(config: &Config) -> Option<Change> {
    let (spread, interface) = (wanted_by(config)?, config.interface.clone());
    let now = Interface::open(&interface).ok()?.rss().ok()?;
    let (table, key) = wanted(spread, &now, &setup::queues(config).ok()?);
    Some(Change::Rss { interface, table, key })
}

fn wanted(spread: Spread, now: &Rss, queues: &[u32]) -> (Vec<u32>, Vec<u8>) {
    let table = queues.iter().copied().cycle().take(now.table.len()).collect();
    let key_bytes = if spread == Spread::Symmetric { now.key.len() } else { 0 };
    (table, SYMMETRIC.into_iter().cycle().take(key_bytes).collect())
}

/// Reports how packets are assigned to queues, for an interface with several queues or a text that
/// asks for a division.
pub(super) fn describe(config: &Config, interface: &Interface) -> Option<String> {
    if config.spread.is_none() && interface.rx_queues().is_ok_and(|queues| queues == 1) {
        return None;
    }
    let Ok(rss) = interface.rss() else {
        return Some(match interface.driver() {
            // Source: drivers/net/veth.c, `veth_xmit`.
            Ok((driver, _)) if driver == "veth" => "by its sender's queue (no RSS)".into(),
            _ => "no RSS".into(),
        });
    };
    let key = match rss.key.as_slice() {
        [] => "key unknown",
        key if key.chunks(2).all(|two| SYMMETRIC.starts_with(two)) => "symmetric key",
        _ => "one-way key",
    };
    let rules = match interface.flow_rules() {
        Ok(rules @ 1..) => format!(", {rules} rules before it"),
        _ => String::new(),
    };
    let (function, entries) = (rss.function_name(), rss.table.len());
    Some(format!("by RSS ({function}, {entries} entries, {key}{rules})"))
}

/// Reports the division of an interface with several queues, and settings that move its packets to
/// other CPUs; returns false if it cannot be divided as the text asks.
pub(super) fn examine(config: &Config, of: &InterfaceInfo, found: &mut Findings) -> bool {
    let name = of.interface.name();
    let (rss, is_wanted) = (of.interface.rss(), wanted_by(config).is_some());
    let lacks = wanted_by(config).zip(rss.as_ref().ok()).and_then(|(by, now)| one_way(by, now));
    if let Some(how) = describe(config, &of.interface) {
        found.ok(format!("packets come to the queues of {name} {how}"));
    }
    match (&rss, setup::queues(config)) {
        (Err(e), _) if is_wanted => {
            found.miss(e);
        }
        (Ok(rss), Ok(taken)) if !is_wanted && config.filter != Filter::Nothing => {
            let astray = rss.table.iter().filter(|queue| !taken.contains(queue)).count();
            if astray > 0 {
                let entries = rss.table.len();
                found
                    .warn(format!(
                        "{astray} of {entries} entries of the RSS table lead to queues that the port does not take"
                    ))
                    .why("their packets go to the kernel")
                    .fix(format!("{},rss=even, or: ethtool -X {name} equal N", config.text()));
            }
        }
        _ => {}
    }
    if let Ok(folder) = NetFolder::open(&of.interface) {
        steered(&folder, found);
    }
    if let Some(why) = &lacks {
        found.miss(&refusal(name.as_str(), why.clone()));
    }
    !is_wanted || (rss.is_ok() && lacks.is_none())
}

/// Reports steering by the kernel: received packets to other CPUs (RPS), sent ones to other queues
/// (XPS).
fn steered(folder: &NetFolder, found: &mut Findings) {
    for (file, what) in [
        ("rps_cpus", "RPS moves packets that the kernel receives to CPUs"),
        ("xps_cpus", "XPS selects this queue for packets sent from CPUs"),
    ] {
        for queue in folder.names("queues") {
            let mask = folder.read(&format!("queues/{queue}/{file}"));
            if let Some(mask) =
                mask.filter(|mask| mask.contains(|c| matches!(c, '1'..='9' | 'a'..='f')))
            {
                found.ok(format!(
                    "{queue}: {what} {mask} (a mask); it does not apply to packets of xdp"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::host::testing::{in_netns, in_netns_with_xdp, ip};

    fn rss(table: &[u32], key: usize) -> Rss {
        let mut rss = Rss::default();
        (rss.table, rss.key) = (table.to_vec(), vec![7; key]);
        rss
    }

    #[test]
    fn entries_are_dealt_to_the_queues_that_are_taken() {
        let now = rss(&[0, 1, 2, 3, 0, 1, 2, 3], 5);
        assert_eq!(wanted(Spread::Even, &now, &[1, 3]), (vec![1, 3, 1, 3, 1, 3, 1, 3], vec![]));
        let (_, key) = wanted(Spread::Symmetric, &now, &[1]);
        assert_eq!(key, [0x6d, 0x5a, 0x6d, 0x5a, 0x6d]);
    }

    #[test]
    fn symmetric_is_refused_without_a_key_or_a_known_function() {
        let device = |key, function| {
            let mut now = rss(&[0, 1], key);
            now.function = function;
            now
        };
        for function in [1, 2] {
            assert_eq!(one_way(Spread::Symmetric, &device(4, function)), None);
        }
        let why = one_way(Spread::Symmetric, &device(0, 1)).unwrap();
        assert!(why.contains("does not report the key"), "{why}");
        let why = one_way(Spread::Symmetric, &device(4, 4)).unwrap();
        assert!(why.contains("CRC32"), "{why}");
        assert!(one_way(Spread::Symmetric, &device(4, 0)).is_some());
        assert_eq!(one_way(Spread::Even, &device(0, 4)), None);
    }

    #[test]
    fn division_that_differs_from_the_written_one_is_refused() {
        let now = rss(&[0, 1], 2);
        assert_eq!(unmet(&[0, 1], &[], &now), None);
        assert_eq!(unmet(&[0, 1], &[7, 7], &now), None);
        let why = |table: &[u32], key: &[u8]| unmet(table, key, &now).unwrap();
        assert!(why(&[1, 0], &[]).contains("another table"));
        assert!(why(&[0, 1], &[7, 8]).contains("another key"));
        let e = refusal("eth0", why(&[1, 0], &[]));
        assert!(e.code == Code::Unsupported && e.what.ends_with("eth0"), "{e}");
    }

    #[test]
    fn doctor_says_what_divides_packets_and_that_a_veth_has_no_rss() {
        in_netns(|| {
            ip("link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1");
            let interface = Interface::open("v0").unwrap();
            let folder = NetFolder::open(&interface).unwrap();
            folder.write("queues/rx-1/rps_cpus", "1").unwrap();
            folder.write("queues/tx-0/xps_cpus", "1").unwrap();
            let has = |text: &str, level: Level, what: &str| {
                let mut found = Findings::default();
                let of = crate::doctor::interface::examine("v0", &mut found).unwrap();
                let config = Config::of(&crate::parse(text).unwrap()).unwrap();
                examine(&config, &of, &mut found);
                let found = found.into_vec();
                let is_it = |f: &crate::doctor::Finding| f.level == level && f.what.contains(what);
                assert!(found.iter().any(is_it), "{what}: {found:#?}");
            };
            has("xdp:v0", Level::Ok, "queues of v0 by its sender's queue (no RSS)");
            has("xdp:v0", Level::Ok, "rx-1: RPS moves");
            has("xdp:v0", Level::Ok, "tx-0: XPS selects this queue for packets sent from CPUs");
            has("xdp:v0,rss=even", Level::Miss, "cannot use the receive-side scaling of v0");
        });
    }

    #[test]
    fn port_that_only_sends_leaves_the_division_as_it_is() {
        in_netns_with_xdp(|| {
            ip("link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1");
            ip("link set v0 up");
            // A veth has no division: a port that changes it is refused.
            let port = crate::Port::open("xdp:v0,rss=even,write").unwrap();
            let refused = &port.obtained().refused;
            assert!(refused.iter().any(|why| why == "rss: this port only sends"), "{refused:?}");
        });
    }

    #[test]
    fn a_division_that_cannot_be_had_is_refused_and_nothing_is_left_behind() {
        in_netns_with_xdp(|| {
            ip("link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1");
            ip("link set v0 up");
            let e = crate::Port::open("xdp:v0,all,rss=symmetric").unwrap_err();
            assert!(e.code == Code::Unsupported && e.fix.contains("Steering"), "{e}");
            let e = crate::Port::open("xdp:v0,all,rss=odd").unwrap_err();
            assert!(e.why.contains("one of even, symmetric"), "{e}");
            let port = crate::Port::open("xdp:v0,all").unwrap();
            let mode = &port.obtained().mode;
            assert!(mode.contains("queues 0-1, by its sender's queue (no RSS)"), "{mode}");
        });
    }
}
