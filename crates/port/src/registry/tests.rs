//! Tests of mistyped port texts on every driver: no mistake is accepted with another meaning.

use linerate_skb::Code;
use rustix::thread::{CapabilitySet, capabilities as held, set_capabilities};

use super::*;
use crate::Port;
use crate::driver::OpenContext;
use crate::host::testing::{eventually, in_netns, in_netns_with_xdp, ip, veth, wait_running};

/// The arguments of a driver: a name if it takes one, and one of its options with a valid and an
/// invalid value.
struct Sample {
    name: &'static str,
    key: &'static str,
    value: Option<&'static str>,
    wrong: &'static str,
}

/// Returns the sample of `driver`. A driver without a sample fails, so that a new driver cannot be
/// forgotten.
fn sample(driver: &str) -> Sample {
    let (name, key, value, wrong) = match driver {
        "gen" => ("", "rate", Some("1kpps"), "1kpp"),
        "memif" => ("@x", "role", Some("server"), "sever"),
        "null" => ("", "size", Some("60"), "60B"),
        "packet" => ("v0", "retire", Some("2ms"), "2mss"),
        "pcap" => ("x", "write", None, "maybe"),
        "ring" => ("r", "len", Some("64"), "sixty"),
        "sink" => ("", "blind", None, "maybe"),
        "tap" => ("t0", "queues", Some("2"), "two"),
        "verbs" => ("rxe0", "listen", Some("10.0.0.1"), "eth0"),
        "xdp" => ("v0", "queues", Some("0"), "one"),
        other => panic!("a driver without a sample: {other}"),
    };
    Sample { name, key, value, wrong }
}

/// Parses a text up to the step that would open a device.
fn read(text: &str) -> Result<usize> {
    plan(text)?.needs().map(|needs| needs.packet_max_bytes)
}

fn is_refused(text: &str) -> linerate_skb::Error {
    match read(text) {
        Ok(_) => panic!("{text} was taken"),
        Err(e) => {
            assert_eq!(e.code, Code::PortSyntax, "{text}: {e}");
            e
        }
    }
}

#[test]
fn docs_list_the_drivers_in_their_order() {
    let docs =
        include_str!("../registry.rs").lines().filter_map(|line| line.strip_prefix("/// | `"));
    let listed: Vec<&str> = docs.filter_map(|text| text.split(':').next()).collect();
    let drivers = Registry::default();
    let drivers: Vec<&str> = drivers.drivers().iter().map(|driver| driver.name()).collect();
    assert_eq!(listed, drivers);
}

#[test]
fn a_mistyped_port_text_is_refused_by_every_driver() {
    for driver in Registry::default().drivers() {
        let flags = driver.flags();
        let (kind, s) = (driver.name(), sample(driver.name()));
        let option = s.value.map_or(s.key.into(), |value| format!("{}={value}", s.key));
        let head = format!("{kind}:{}", s.name);
        let right = format!("{head},{option}");
        match read(&right) {
            Err(e) if e.code == Code::PortSyntax => panic!("{right}: {e}"),
            // The interface may not exist.
            _ => {}
        }
        let (key, wrong) = (s.key, s.wrong);
        // A misspelt option, in capitals or after a colon, must be reported with the intended one.
        let mut misspelt = option.clone();
        misspelt.remove(1);
        for typo in [misspelt, option.to_uppercase(), option.replace('=', ":") + ":"] {
            let e = is_refused(&format!("{head},{typo}"));
            assert!(e.fix.contains(&format!("did you mean {key}?")), "{typo}: {e}");
        }
        is_refused(&format!("{head},{key}={wrong}"));
        is_refused(&format!("{head},={wrong}"));
        is_refused(&format!("{head},{wrong}"));
        is_refused(&format!("{head},{option},{option}"));
        is_refused(&format!("{head},{option},"));
        is_refused(&format!("{head},,{option}"));
        is_refused(&format!("{head},speed=64"));
        is_refused(&format!("{},{option}", head.to_uppercase()));
        if s.value.is_some() {
            is_refused(&format!("{head},{key}"));
            is_refused(&format!("{head},{key}="));
        }
        for separator in [";", " ", ":"] {
            is_refused(&format!("{head}{separator}{option}{separator}{option}"));
            is_refused(&format!("{head},{option}{separator}{option}"));
        }
        if flags.nameless {
            let e = is_refused(&format!("{kind}:somebody"));
            assert!(e.why.contains("no option 'somebody'"), "{e}");
            is_refused(&format!("{kind}:{option},{option}"));
            let (one, other) = (format!("{kind}:{option}"), format!("{kind}:,{option}"));
            assert_eq!(read(&one).unwrap(), read(&other).unwrap());
            assert_eq!(parse(&one).unwrap().name, kind);
        } else if !flags.paired {
            is_refused(&format!("{kind}:"));
            is_refused(&format!("{kind}:,{option}"));
        }
        if !flags.nameless && s.value.is_some() {
            let e = is_refused(&format!("{kind}:{option}"));
            assert!(e.why.contains("is an option") || e.why.contains("which"), "{e}");
        }
    }
}

/// A driver of a program, which converts its text into that of another driver.
struct Twice;

impl Driver for Twice {
    fn name(&self) -> &'static str {
        "twice"
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        spec.finish()?;
        plan(&format!("null:size={0}{0}", spec.arg))
    }
}

#[test]
fn a_registry_knows_the_drivers_that_are_added_and_each_name_once() {
    let drivers = Registry::with(&[&Twice, &Twice]);
    assert_eq!(drivers.drivers().len(), Registry::default().drivers().len() + 1);
    assert_eq!(drivers.plan("twice:7").unwrap().needs().unwrap().packet_max_bytes, 77);
    assert!(drivers.plan("twice:7,size=1").is_err());
    assert!(drivers.parse("twise:7").unwrap_err().fix.contains("did you mean twice:7?"));
    let e = plan("frobnicate:7").err().unwrap();
    assert!(e.fix.ends_with("drivers: gen memif null packet pcap ring sink tap verbs xdp"), "{e}");
}

#[test]
fn both_ends_of_a_pair_meet_in_a_context_and_only_there() {
    let pool = linerate_skb::Pool::builder().frames(64).build().unwrap();
    let end = |cx: &mut OpenContext<'_>, text: &str| plan(text).unwrap().open(cx).unwrap();
    let (mut one, mut other) = (OpenContext::new(&pool), OpenContext::new(&pool));
    let (mut a, mut stranger) = (end(&mut one, "ring:r"), end(&mut other, "ring:r"));
    let (mut elsewhere, mut b) = (end(&mut one, "ring:s"), end(&mut one, "ring:r"));
    let (mut mem, mut batch) = (pool.local(), linerate_skb::Batch::with_capacity(2));
    mem.alloc(&mut batch, 1);
    assert_eq!(a.queues[0].xmit(&mut mem, &mut batch).packets, 1);
    for opened in [&mut stranger, &mut elsewhere, &mut a] {
        assert_eq!(opened.queues[0].rx(&mut mem, &mut batch, 2).packets, 0);
    }
    assert_eq!(b.queues[0].rx(&mut mem, &mut batch, 2).packets, 1);
    let e = Port::open("ring:r").unwrap_err();
    assert!(
        e.why == "both ends of a ring are opened together" && e.fix.contains("ring:NAME"),
        "{e}"
    );
}

#[test]
fn an_option_in_the_place_of_a_name_does_what_it_says() {
    let port = Port::open("gen:rate=1kpps,count=3").unwrap();
    assert_eq!(port.obtained().to_string(), "gen gen at 1kpps, read only");
    assert_eq!(Port::open("sink:blind").unwrap().obtained().mode, "sink");
    assert_eq!(Port::open("null:size=70").unwrap().obtained().mode, "null, 70 B");
    assert_eq!(parse("g=gen:count=3").unwrap().name, "g");
    // The options of every port are accepted, too.
    assert!(parse("null:toll=1us/20us").unwrap().toll.is_some());
    let held = parse("null:moderation=fixed:usecs=5,frames=3,size=70").unwrap().moderation;
    assert_eq!(held.unwrap().to_string(), "fixed:usecs=5,frames=3");
    assert!(parse("null:toll=1us/20us,toll=1us/1us").is_err());
}

/// Drops all capabilities of this thread, opens `text`, and returns the capabilities that the error
/// advises.
fn advised(text: &str) -> String {
    let before = held(None).unwrap();
    let none = CapabilitySet::empty();
    set_capabilities(None, rustix::thread::CapabilitySets { effective: none, ..before }).unwrap();
    let e = Port::open(text).unwrap_err();
    set_capabilities(None, before).unwrap();
    assert_eq!(e.code, Code::Permission, "{text}: {e}");
    let (_, command) = e.fix.split_once(": setcap ").unwrap_or_else(|| panic!("{text}: {e}"));
    assert!(!command.contains('\n') && !command.contains("setcap"), "{e}");
    command.split_once("+ep /").unwrap().0.to_owned()
}

#[test]
fn missing_capability_error_names_all_that_the_port_needs() {
    in_netns(|| {
        veth(1500);
        assert_eq!(advised("packet:v0"), "cap_net_raw");
        assert_eq!(advised("packet:v0,udp=7777"), "cap_net_raw");
        assert_eq!(advised("packet:v0,tcp=80"), "cap_net_bind_service,cap_net_raw");
        assert_eq!(advised("tap:t0"), "cap_net_admin");
        let xdp = "cap_net_admin,cap_net_raw,cap_ipc_lock,cap_bpf";
        for text in ["xdp:v0", "xdp:v0,udp=7777", "xdp:v0,not=udp:53", "xdp:v0,write"] {
            assert_eq!(advised(text), xdp, "{text}");
        }
        assert_eq!(advised("xdp:v0,udp=53"), format!("cap_net_bind_service,{xdp}"));
    });
}

#[test]
fn everything_of_an_interface_that_the_host_uses_is_taken_only_if_it_is_said() {
    in_netns_with_xdp(|| {
        veth(1500);
        drop(Port::open("xdp:v0").unwrap());
        ip("addr add 192.0.2.7/24 dev v0");
        let e = Port::open("xdp:v0,mode=generic").unwrap_err();
        assert_eq!(e.code, Code::Busy);
        assert!(e.why.contains("ssh included: v0 has the address 192.0.2.7"), "{e}");
        assert!(e.fix.contains("xdp:v0,udp=7777;") && e.fix.ends_with("xdp:v0,all"), "{e}");
        // A child that another test forks may hold the first port's descriptors for a moment.
        eventually(|| !ip("link show v0").contains("prog/xdp"));
        ip("addr flush dev v0");
        ip("link add br0 type bridge");
        ip("link set v0 master br0");
        let e = Port::open("xdp:v0").unwrap_err();
        assert!(e.why.ends_with("v0 is a member of br0, which forwards its packets"), "{e}");
        ip("link set v0 nomaster");
        ip("route add 192.0.2.7/32 dev v0");
        let e = Port::open("xdp:v0").unwrap_err();
        assert!(e.why.ends_with("v0 carries the route to 192.0.2.7/32"), "{e}");
        ip("route del 192.0.2.7/32");
        ip("route add default dev v0");
        let e = Port::open("xdp:v0").unwrap_err();
        assert!(e.why.ends_with("v0 carries a default route"), "{e}");
        for filter in ["not=tcp:22", "arp", "ethertype=0x0800"] {
            let e = Port::open(&format!("xdp:v0,{filter}")).unwrap_err();
            assert!(e.why.contains("without which ssh to this host ends: v0 carries"), "{e}");
            assert!(
                e.fix.ends_with(&format!(
                    "xdp:v0,{},all",
                    filter.replace("arp", "ethertype=0x0806")
                )),
                "{e}"
            );
        }
        assert!(Port::open("xdp:v0,all,udp=7777").unwrap_err().why.contains("at once"));
        for (words, diverts) in [
            ("all", "diverts every packet"),
            ("udp=7777", "diverts udp=7777"),
            ("not=tcp:22,all", "diverts every packet but tcp=22"),
            ("all,arp", "diverts ethertype=0x0806"),
            ("write", "takes nothing in"),
        ] {
            let port = Port::open(&format!("xdp:v0,{words}")).unwrap();
            let mode = &port.obtained().mode;
            assert!(mode.contains(&format!(" copy, {diverts}, queue 0")), "{mode}");
            drop(port);
        }
        ip("addr add 192.0.2.7/24 dev v1");
        let e = Port::open("xdp:v0,dst=192.0.2.7").unwrap_err();
        assert_eq!(e.code, Code::Busy);
        assert!(e.why.starts_with("192.0.2.7 is an address of this host"), "{e}");
        assert!(e.fix.ends_with("xdp:v0,all"), "{e}");
        drop(Port::open("xdp:v0,dst=192.0.2.8").unwrap());
        drop(Port::open("xdp:v0,dst=192.0.2.7,write").unwrap());
        let both = Port::open("xdp:v0,udp=7777,write").unwrap();
        let told = both.obtained().to_string();
        assert!(
            told.contains("write only") && told.contains("udp=7777: this port only sends"),
            "{told}"
        );
        assert!(std::net::UdpSocket::bind("0.0.0.0:7777").is_ok(), "it is not reserved");
        wait_running("v0");
    });
}
