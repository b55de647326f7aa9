//! The port that doctor opens as a trial, by the settings that it changes.

use linerate::{Driver, Spec};
use linerate_ctl::doctor::Trial;
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::reaches_hardware;

/// Returns the text of a port that changes the same settings as the port that the trial of `spec`
/// opens; `None` if it opens none, or one that changes nothing.
pub(super) fn tried(spec: &Spec, trial: Trial, of_links: Option<&dyn Driver>) -> Option<String> {
    let text = spec.text();
    if of_links.is_none_or(|driver| driver.name() != spec.driver) {
        return Some(text.to_owned());
    }
    // Doctor opens such an interface with --try only.
    let reaches = |name: &str| Interface::open(name).is_ok_and(|found| reaches_hardware(&found));
    let is = |part: &str, key: &str| part.split('=').next() == Some(key);
    // Beside another owner's program, the trial only sends.
    let is_beside = text.split(',').skip(1).any(|part| is(part, "map"));
    if is_beside || (!trial.is_full() && reaches(&spec.arg)) {
        return None;
    }
    // The filter of the trial stands in place of `write`. A port that only sends ignores `hold=`
    // and `rss=`, so the trial leaves them out.
    let is_written = spec.flag("write").unwrap_or(false);
    let is_left_out = |part: &str| ["write", "hold", "rss"].iter().any(|key| is(part, key));
    let parts = text.split(',').filter(|part| !is_written || !is_left_out(part));
    Some(parts.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use linerate::Registry;

    use super::*;

    #[test]
    fn changes_are_those_of_the_port_that_the_trial_opens() {
        let all = Registry::default();
        for (text, port) in [
            ("xdp:nosuchif0,hold=1ms", Some("xdp:nosuchif0,hold=1ms")),
            ("xdp:nosuchif0,write,hold=1ms", Some("xdp:nosuchif0")),
            ("xdp:nosuchif0,map=/sys/fs/bpf/m,hold=1ms", None),
            ("packet:nosuchif0", Some("packet:nosuchif0")),
        ] {
            let tried = tried(&all.parse(text).unwrap(), Trial::Careful, all.of_links());
            assert_eq!(tried.as_deref(), port, "{text}");
        }
    }
}
