//! Packets at the highest rate and without an end: refused on an interface that the host itself
//! uses.

use linerate::{Registry, Spec};
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::HostUse;

use crate::args::Limits;
use crate::errors::{Failure, USAGE};

/// Refuses a wire on which a generator would flood an interface that the host itself uses.
///
/// # Errors
/// `E-USAGE` with what limits the packets; an option of a generator without its value.
pub fn check(ends: [&Spec; 2], limits: &Limits, drivers: &Registry) -> Result<(), Failure> {
    let [a, b] = ends;
    for (from, to) in [(a, b), (b, a)] {
        let floods = drivers.flags(from).generates && !has_end(limits) && !is_limited(from)?;
        if floods {
            let fix = "add --for or --count, or a rate to the generator, as in gen:rate=100kpps";
            refuse(to, drivers, fix)?;
        }
    }
    Ok(())
}

/// Returns true if a run ends by itself.
pub fn has_end(limits: &Limits) -> bool {
    limits.time.is_some() || limits.count.is_some()
}

/// Refuses to send to `to` if the host itself uses that interface, and the port's text does not
/// limit the rate; `fix` says how to limit the packets.
///
/// # Errors
/// `E-USAGE`; `E-SYSTEM` if the kernel does not answer; the option `shape` without its value.
pub fn refuse(to: &Spec, drivers: &Registry, fix: &str) -> Result<(), Failure> {
    if !drivers.flags(to).interface || has(to, "shape")? {
        return Ok(());
    }
    // The driver reports a missing interface.
    let Ok(dev) = Interface::open(&to.arg) else { return Ok(()) };
    let Some(used) = HostUse::of(&dev)? else { return Ok(()) };
    let why = format!(
        "the host itself uses the interface ({used}), and packets at the highest rate would \
         leave by it"
    );
    let what = format!("cannot send to {}", to.shown_text());
    Err(Failure::new(USAGE, "E-USAGE", &what, why, fix))
}

/// Returns true if a generator's text limits its packets: by a count, or by a rate that it keeps to
/// the end.
fn is_limited(port: &Spec) -> Result<bool, Failure> {
    Ok(has(port, "count")? || (has(port, "rate")? && !has(port, "rate_for")?))
}

/// Returns true if the port's text has a value of `key`.
fn has(port: &Spec, key: &str) -> linerate::Result<bool> {
    Ok(port.value(key, |text| Ok::<_, String>(text.to_owned()))?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_is_limited_by_a_count_or_by_a_rate_to_the_end() {
        for (text, limited) in [
            ("gen:", false),
            ("gen:,size=60", false),
            ("gen:count=5", true),
            ("gen:,rate=1kpps", true),
            ("gen:rate=1kpps,rate_for=1s", false),
            ("gen:rate=1kpps,rate_for=1s,count=5", true),
        ] {
            let port = Registry::default().parse(text).unwrap();
            assert_eq!(is_limited(&port).unwrap(), limited, "{text}");
        }
    }

    #[test]
    fn port_that_limits_its_rate_is_not_flooded() {
        let all = Registry::default();
        let is_refused = |text: &str| refuse(&all.parse(text).unwrap(), &all, "").is_err();
        if !is_refused("packet:lo") {
            return eprintln!("skipped: the host does not use its loopback, which is down");
        }
        assert!(!is_refused("packet:lo,shape=1Mbit"));
    }
}
