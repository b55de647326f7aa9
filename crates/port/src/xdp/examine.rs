//! Examination of an xdp port: privileges, attached programs, memory, queues, offloads, a trial.

use std::net::Ipv4Addr;
use std::time::Duration;

use linerate_skb::{Code, Error, Result};
use linerate_sys::netif::DeviceOffload;
use linerate_sys::rtnl::Neighbours;

use super::config::{Config, Map};
use super::{attach, checks, foreign, hold, setup, spread, vlan};
use crate::doctor::ask::{self, LinkWatch};
use crate::doctor::interface::{self, InterfaceInfo};
use crate::doctor::kernel::{self, FRAME_BYTES, too_much};
use crate::doctor::{Findings, Trial, flow, full_trial, trial};
use crate::host::LINK_HEADER_BYTES;
use crate::host::filter::Filter;
use crate::obtained::Obtained;
use crate::spec::Spec;

/// Bytes of a frame that a packet can use.
const FRAME_ROOM: usize = FRAME_BYTES - linerate_sys::xdp::HEADROOM_BYTES as usize;
/// Frames of a port's pool that its rings do not use.
const PROGRAM_FRAMES: usize = 4096;

/// First version of Linux in which AF_XDP supports packets in several frames.
pub(super) const FRAGS: (u32, u32) = (6, 6);

/// Checks a port of xdp.
pub(super) fn examine(config: &Config, spec: &Spec, how: Trial, found: &mut Findings) {
    match interface::examine(&spec.arg, found) {
        Ok(of) => examine_on(config, spec, &of, how, found),
        Err(e) => {
            found.miss(&e);
            kernel::privileges(found);
        }
    }
}

/// Checks the options on an interface that exists.
fn examine_on(config: &Config, spec: &Spec, of: &InterfaceInfo, how: Trial, found: &mut Findings) {
    if let Err(e) = checks::check_host_use(config, &of.interface) {
        found.miss(&e);
    } else if spec.text().ends_with(trial::NOBODYS)
        && let Err(e) = checks::check_host_use(&config.without_filter(), &of.interface)
    {
        // Doctor's own filter, which shows nothing about the port that will be opened.
        found.warn("a port here needs a filter of its own").why(e.why).fix(e.fix);
    } else if config.map.is_none()
        && let Ok(Some(used)) = checks::needed(&config.filter, &of.interface)
    {
        let (name, filter) = (of.interface.name(), &config.filter);
        found
            .warn(format!("{filter} takes packets that this host needs"))
            .why(format!(
                "{used}; while the port is open, ssh and the rest of its traffic may stop"
            ))
            .fix(format!("take your packets only, as xdp:{name},udp=7777 does"));
    }
    let (is_free, may) = match &config.map {
        Some(map) => (true, foreign::examine(config, map, of, found)),
        None => {
            let may = kernel::privileges(found);
            (program(of, found), may)
        }
    };
    interface::features(of, found);
    let options = (config.filter != Filter::Nothing).then(|| options(config, spec));
    interface::standing(of, "xdp", options.as_deref(), found);
    queues(config, of, found);
    let divides = spread::examine(config, of, found);
    let holds = hold::examine(config, of, found);
    offloads(of, found);
    if config.map.is_none() {
        vlan::examine(config, &of.interface, found);
    }
    if of.is_up {
        flow::examine(spec, found);
    }
    // A map given by the program is not in the text.
    let is_given = matches!(config.map, Some(Map::Given(_)));
    let can = of.is_up && is_free && may && divides && holds && !is_given;
    if can && (how.is_full() || !of.reaches_hardware()) {
        return tried(config, spec, of, how, found);
    }
    several(of, found);
    if let Some(why) = setup::copied_for_host(config, &of.interface) {
        found.warn("zero-copy will not be taken").why(why).fix(
            "if copies are too slow: mode=zerocopy, with queues= on which the host has nothing",
        );
    }
    let taken = setup::queues(config).map_or(0, |queues| queues.len());
    kernel::memory(taken * config.ring_frames() + PROGRAM_FRAMES, found);
    if can {
        let finding = found.warn("opening was not tried, so the mode is unknown");
        finding
            .why("a driver may take its link down for a moment when a program comes or goes, for a bond each of its members")
            .fix(full_trial(spec.text()));
    }
}

/// Returns the options that select the port's packets, for the port of another interface; an
/// example if the text has none of its own.
fn options(config: &Config, spec: &Spec) -> String {
    match config.map {
        Some(_) => ",map=FILE".into(),
        None if config.is_said && !spec.text().ends_with(trial::NOBODYS) => config.words(),
        None => ",udp=7777".into(),
    }
}

/// Looks for a program that is attached already; returns true if there is none.
fn program(of: &InterfaceInfo, found: &mut Findings) -> bool {
    let name = of.interface.name();
    let names = attach::program_names(&of.info.xdp_programs);
    if names.is_empty() {
        return true;
    }
    let why = format!("the XDP program {names} is attached to it");
    let e = Error::new(Code::Busy, format!("{name} is taken"), why);
    found.miss(&e.fix(attach::beside(&name.to_string(), &of.info.xdp_programs)));
    false
}

/// Compares the interface's queues with those that the port uses.
fn queues(config: &Config, of: &InterfaceInfo, found: &mut Findings) {
    let name = of.interface.name();
    let Ok(there) = of.interface.rx_queues() else { return };
    let Ok(taken) = setup::queues(config).map(|queues| queues.len()) else { return };
    if taken < there as usize {
        found
            .warn(format!("the port takes {taken} of {there} queues"))
            .why("packets of the other queues go to the kernel")
            .fix(format!(
                "omit queues= to take all queues; to see how packets are divided: ethtool -x {name}"
            ));
    } else {
        found.ok(match there {
            1 => "the port takes the only queue".into(),
            n => format!("the port takes all {n} queues"),
        });
    }
}

/// Reports offloads that affect the port: receive merging by the device, checksum offload of the
/// other end.
fn offloads(of: &InterfaceInfo, found: &mut Findings) {
    interface::lro(of, "most drivers accept no XDP program while LRO is on", found);
    if let Some(other) = interface::other_end(&of.info)
        && matches!(other.offload(DeviceOffload::Checksums), Ok(true))
    {
        let other = other.name();
        found.ok(format!(
            "{other}, its other end, is in this network namespace: while the port is open, {other}'s checksum offload is off"
        ));
    }
}

/// Opens the port as it will be, except for its filter, or its entry in the map of another owner's
/// program.
fn tried(config: &Config, spec: &Spec, of: &InterfaceInfo, how: Trial, found: &mut Findings) {
    // A port that only sends ignores `hold=` and `rss=`: a trial with `write` would report them as
    // refused, and one with another filter would set them.
    let only_sends = trial::with(spec.text(), &["hold", "rss", "write"], "write");
    if config.map.is_some() {
        report_open(trial::open(&only_sends), "takes nothing in", ("write", "map=FILE"), found);
        untried(config, found);
        return;
    }
    let is_sender = config.filter == Filter::Nothing;
    let text = if is_sender { only_sends.as_str() } else { spec.text() };
    let peer = how.is_full().then(|| neighbour(of, how)).flatten();
    let filter = peer.map_or(trial::NOBODYS.to_owned(), |peer| format!("answer={peer}"));
    let watch = how.is_full().then(|| LinkWatch::start(&of.interface).ok()).flatten();
    let mac = of.interface.hardware().map(|hardware| hardware.mac);
    let asked = trial::open_xdp(text, &filter, of, |port| {
        watch.as_ref().map(LinkWatch::wait);
        Some(ask::ask(port, mac.as_ref().ok().copied()?, peer?))
    });
    let (opened, answer) = match asked {
        Ok((obtained, answer)) => (Ok(obtained), answer),
        Err(e) => (Err(e), None),
    };
    let own = match options(config, spec) {
        _ if is_sender => "write".to_owned(),
        options => options.trim_start_matches(',').to_owned(),
    };
    let opens = report_open(opened, &format!("diverts {filter}"), (&filter, &own), found);
    if let Some(watch) = watch.filter(|_| opens) {
        passed(of, peer, answer, found);
        flapped(watch, of, found);
    }
}

/// Reports the options that a trial which only sends leaves out.
fn untried(config: &Config, found: &mut Findings) {
    let is_divided = spread::wanted_by(config).is_some();
    let is_held = hold::wanted(config).is_some();
    for (option, is_wanted) in [("rss=", is_divided), ("hold=", is_held)] {
        if is_wanted {
            found
                .warn(format!("{option} was not tried"))
                .why("the trial only sends, so that no entry of the map changes");
        }
    }
}

/// Reports the result of opening a port that `taken` describes in place of its filter; returns true
/// if it opened. `with` has the trial's option and the port's own, which a remedy names.
fn report_open(
    opened: Result<Obtained>,
    taken: &str,
    (with, own): (&str, &str),
    found: &mut Findings,
) -> bool {
    match opened {
        Ok(mut obtained) => {
            obtained.mode = obtained.mode.replace(&format!(", {taken}"), "");
            obtained.mode += &format!(" (tried with {with})");
            found.opened(obtained);
            return true;
        }
        Err(e) if e.code == Code::Memory => too_much(&e, found),
        Err(mut e) => {
            e.fix = e.fix.replace(with, own);
            found.miss(&e);
        }
    }
    false
}

/// Returns the neighbour to probe: the one named, the gateway, or one that the kernel knows.
fn neighbour(of: &InterfaceInfo, how: Trial) -> Option<Ipv4Addr> {
    if let Trial::Asking(peer) = how {
        return Some(peer);
    }
    let neighbours = Neighbours::of(&of.interface).unwrap_or_default();
    neighbours.gateway.or(neighbours.known.first().copied())
}

/// Reports whether a packet was sent and its answer received.
fn passed(
    of: &InterfaceInfo,
    peer: Option<Ipv4Addr>,
    answer: Option<Result<Option<Duration>>>,
    found: &mut Findings,
) {
    let name = of.interface.name();
    match (peer, answer) {
        (Some(peer), Some(Ok(Some(after)))) => {
            let ms = after.as_secs_f64() * 1e3;
            found.ok(format!(
                "packets pass both ways: {peer} answered an ARP probe through the socket after {ms:.1} ms"
            ));
        }
        (Some(peer), Some(Ok(None))) => {
            found
                .fail(format!("{peer} answered none of {} ARP probes through the socket", ask::PROBES))
                .why("the neighbour is absent or answers no probes, or packets do not pass, or replies arrive at a queue that the port does not take")
                .fix(format!("check that it answers the kernel: ping -c 3 -I {name} {peer}"));
        }
        (_, Some(Err(e))) => {
            found.miss(&e);
        }
        _ => {
            found
                .warn("no packet was sent: no neighbour is known")
                .why(format!("the kernel knows no IPv4 gateway and no IPv4 neighbour on {name}"))
                .fix("name a neighbour with --peer ADDR");
        }
    }
}

/// Reports how long the link was down.
fn flapped(watch: LinkWatch, of: &InterfaceInfo, found: &mut Findings) {
    let (name, is_back) = (of.interface.name(), watch.wait());
    let down = watch.stop();
    if !is_back {
        let what = format!("the link of {name} has not come back");
        found.fail(what).fix(format!("ip link set {name} up"));
    } else if down.is_zero() {
        found.ok(format!("the link of {name} stayed up"));
    } else {
        found
            .warn(format!("the link of {name} was down for {:.3} s", down.as_secs_f64()))
            .why("its driver resets the device when a program is attached, and again when it is detached");
    }
}

/// Reports, without a trial, whether packets longer than a frame can be received.
fn several(of: &InterfaceInfo, found: &mut Findings) {
    if of.mtu + LINK_HEADER_BYTES <= FRAME_ROOM {
        return;
    }
    let (name, most) = (of.interface.name(), FRAME_ROOM - LINK_HEADER_BYTES);
    if kernel::version().is_some_and(|version| version < FRAGS) {
        let what = format!("{name}: with an MTU of {}, a packet needs several frames", of.mtu);
        let e = Error::new(Code::Unsupported, what, "AF_XDP supports that from Linux 6.6 on");
        found.miss(&e.fix(format!("ip link set {name} mtu {most}")));
    } else {
        let what = format!("{name}: with an MTU of {}, a packet needs several frames", of.mtu);
        found
            .warn(what)
            .why("not every driver supports that with XDP, and it was not tried")
            .fix(format!("ip link set {name} mtu {most}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Finding, Level};
    use crate::host::testing::{in_netns_with_xdp, ip, veth};

    #[test]
    fn a_neighbour_is_asked_through_the_socket_and_nothing_else_is_taken() {
        in_netns_with_xdp(|| {
            veth(1500);
            ip("addr add 10.7.0.2/24 dev v1");
            let examined = |how| {
                let spec = crate::parse("xdp:v0,udp=7777").unwrap();
                let mut found = Findings::default();
                examine(&Config::of(&spec).unwrap(), &spec, how, &mut found);
                found.into_vec()
            };
            let level = |found: &[Finding], what: &str| {
                found.iter().find(|f| f.what.contains(what)).map(|f| f.level)
            };
            let peer = Ipv4Addr::new(10, 7, 0, 2);
            let found = examined(Trial::Asking(peer));
            let passes = "packets pass both ways: 10.7.0.2 answered";
            assert_eq!(level(&found, passes), Some(Level::Ok), "{found:#?}");
            assert_eq!(
                level(&found, "(tried with answer=10.7.0.2)"),
                Some(Level::Ok),
                "{found:#?}"
            );
            assert_eq!(level(&found, "the link of v0 "), Some(Level::Ok), "{found:#?}");
            assert!(!ip("link show v0").contains("prog/xdp"));
            let found = examined(Trial::Full);
            assert_eq!(level(&found, "no packet was sent"), Some(Level::Warn), "{found:#?}");
            ip("neigh add 10.7.0.2 lladdr 02:00:00:00:00:05 dev v0");
            let found = examined(Trial::Full);
            assert_eq!(level(&found, passes), Some(Level::Ok), "a neighbour is known: {found:#?}");
            ip("addr del 10.7.0.2/24 dev v1");
            let found = examined(Trial::Asking(peer));
            let silent = "10.7.0.2 answered none of 4 ARP probes";
            assert_eq!(level(&found, silent), Some(Level::Miss), "{found:#?}");
            let found = examined(Trial::Careful);
            assert_eq!(
                level(&found, "packets pass").or(level(&found, "the link of")),
                None,
                "{found:#?}"
            );
        });
    }

    #[test]
    fn an_interface_of_the_host_is_tried_by_nobodys_filter_and_said_to_need_one() {
        in_netns_with_xdp(|| {
            veth(1500);
            ip("addr add 10.7.0.1/24 dev v0");
            let examined = |filter: &str| {
                let spec = crate::parse(&format!("xdp:v0{filter}")).unwrap();
                let mut found = Findings::default();
                examine(&Config::of(&spec).unwrap(), &spec, Trial::Careful, &mut found);
                found.into_vec()
            };
            let needs = |f: &&Finding| f.what == "a port here needs a filter of its own";
            let found = examined(",ethertype=0x88b6");
            assert!(found.iter().all(|f| f.level != Level::Miss), "{found:#?}");
            let note = found.iter().find(needs).unwrap();
            assert!(note.fix.as_ref().unwrap().text.contains("xdp:v0,udp=7777"), "{note:?}");
            assert!(!examined(",udp=7777").iter().any(|f| needs(&f)));
            let cuts = |f: &Finding| f.what.ends_with("takes packets that this host needs");
            for filter in [",not=tcp:22", ",arp", ",ethertype=0x0800", ""] {
                assert!(examined(filter).iter().any(|f| f.level == Level::Miss), "{filter}");
                let found = examined(&format!("{filter},all"));
                assert!(found.iter().any(cuts), "{filter}");
                assert!(found.iter().all(|f| f.level != Level::Miss), "{filter}");
            }
            for filter in [",udp=7777", ",icmp", ",dst=10.7.0.9", ",ethertype=0x88b5", ",write"] {
                assert!(!examined(filter).iter().any(cuts), "{filter}");
            }
        });
    }

    #[test]
    fn port_that_only_sends_is_tried_without_options_that_it_ignores() {
        in_netns_with_xdp(|| {
            veth(1500);
            // A veth has no division of packets: a port that changes it is refused.
            let spec = crate::parse("xdp:v0,rss=even,hold=300us,write").unwrap();
            let mut found = Findings::default();
            examine(&Config::of(&spec).unwrap(), &spec, Trial::Careful, &mut found);
            let found = found.into_vec();
            assert!(found.iter().any(|f| f.what.starts_with("opens: v0 ")), "{found:#?}");
            assert!(found.iter().all(|f| f.level != Level::Miss), "{found:#?}");
            assert!(!found.iter().any(|f| f.what.contains("held for")), "{found:#?}");
        });
    }

    #[test]
    fn remedy_of_a_failed_trial_names_the_filter_of_the_port() {
        in_netns_with_xdp(|| {
            veth(1500);
            for (words, filter) in [
                (",udp=7777", "udp=7777"),
                (",not=tcp:22", "not=tcp:22"),
                ("", "udp=7777"),
                (",ethertype=0x88b6", "udp=7777"),
                (",write", "write"),
            ] {
                let spec = crate::parse(&format!("xdp:v0,mode=zerocopy{words}")).unwrap();
                let mut found = Findings::default();
                examine(&Config::of(&spec).unwrap(), &spec, Trial::Careful, &mut found);
                let found = found.into_vec();
                let failed = found.iter().find(|f| f.what.starts_with("cannot open")).unwrap();
                let fix = &failed.fix.as_ref().unwrap().text;
                assert_eq!(*fix, format!("xdp:v0,{filter},mode=native"), "{words}");
            }
        });
    }

    #[test]
    fn hardware_is_left_alone_unless_asked() {
        in_netns_with_xdp(|| {
            veth(1500);
            let spec = crate::parse("xdp:v0").unwrap();
            let examined = |how| {
                let mut found = Findings::default();
                let mut of = interface::examine("v0", &mut found).unwrap();
                assert!(!of.is_hardware());
                of.info.kind.clear();
                assert!(of.is_hardware());
                examine_on(&Config::of(&spec).unwrap(), &spec, &of, how, &mut found);
                found.into_vec()
            };
            let has = |found: &[Finding], what: &str| {
                found.iter().find(|f| f.what.contains(what)).map(|f| f.level)
            };
            let found = examined(Trial::Careful);
            let untried = "opening was not tried, so the mode is unknown";
            assert_eq!(has(&found, untried), Some(Level::Warn), "{found:#?}");
            let untried = found.iter().find(|f| f.what == untried).unwrap();
            assert_eq!(untried.fix.as_ref().unwrap().text, "linerate doctor --try xdp:v0");
            assert_eq!(has(&found, "of packet memory register"), Some(Level::Ok), "{found:#?}");
            assert_eq!(has(&found, "opens"), None, "{found:#?}");
            let found = examined(Trial::Full);
            assert_eq!(has(&found, "opens: v0"), Some(Level::Ok), "{found:#?}");
            ip("link set lo up");
            assert!(!interface::examine("lo", &mut Findings::default()).unwrap().is_hardware());
        });
    }
}
