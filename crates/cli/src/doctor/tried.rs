//! The port that doctor opens as a trial, by the settings that it changes.

use linerate::{Driver, Spec};
use linerate_ctl::doctor::{FILTERS, Trial};
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::reaches_hardware;

/// Returns the text of a port that changes the same settings as the port that the trial of `spec`
/// opens; `None` if it opens none, or one that changes nothing.
pub(super) fn tried(spec: &Spec, trial: Trial, of_links: Option<&dyn Driver>) -> Option<String> {
    let text = spec.text();
    let Some(driver) = of_links.filter(|driver| driver.name() == spec.driver) else {
        return Some(text.to_owned());
    };
    // Doctor opens such an interface with --try only.
    let reaches = |name: &str| Interface::open(name).is_ok_and(|found| reaches_hardware(&found));
    let key = |part: &str| part.split('=').next().unwrap_or_default().to_owned();
    // Beside another owner's program, the trial only sends.
    let is_beside = text.split(',').skip(1).any(|part| key(part) == "map");
    if is_beside || (!trial.is_full() && reaches(&spec.arg)) {
        return None;
    }
    // A port that only sends ignores `hold=` and `rss=`, so the trial leaves them out.
    let is_written = spec.flag("write").unwrap_or(false);
    let is_left_out =
        |key: &str| FILTERS.contains(&key) || (is_written && ["hold", "rss"].contains(&key));
    // The first part is the driver and its argument.
    let (head, options) = text.split_once(',').unwrap_or((text, ""));
    let kept = options.split(',').filter(|part| !part.is_empty() && !is_left_out(&key(part)));
    let all = std::iter::once(head).chain(kept);
    // The filter of the trial takes no traffic, so that the port changes less.
    let tried = [driver.on_machine().link_trial, "promisc=off"];
    Some(all.chain(tried).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use linerate::Registry;

    use super::*;

    #[test]
    fn changes_are_those_of_the_port_that_the_trial_opens() {
        let all = Registry::default();
        let quiet = "ethertype=0x88b6,promisc=off";
        let with = |text: &str| Some(format!("{text},{quiet}"));
        for (text, port) in [
            ("xdp:nosuchif0", with("xdp:nosuchif0")),
            ("xdp:nosuchif0,hold=1ms", with("xdp:nosuchif0,hold=1ms")),
            ("xdp:nosuchif0,write,hold=1ms", with("xdp:nosuchif0")),
            ("a=xdp:nosuchif0,udp=7777,hold=1ms,promisc", with("a=xdp:nosuchif0,hold=1ms")),
            ("xdp:all,all,ring=64,not=tcp:22", with("xdp:all,ring=64")),
            ("xdp:nosuchif0,map=/sys/fs/bpf/m,hold=1ms", None),
            ("packet:nosuchif0,udp=7777", Some("packet:nosuchif0,udp=7777".into())),
        ] {
            let tried = tried(&all.parse(text).unwrap(), Trial::Careful, all.of_links());
            assert_eq!(tried, port, "{text}");
        }
        let tried = tried(&all.parse("xdp:x,udp=7777").unwrap(), Trial::Careful, all.of_links());
        assert!(crate::run::planned(&all, &tried.unwrap()).is_ok(), "its changes can be read");
    }
}
