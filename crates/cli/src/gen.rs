//! The command `linerate gen`: sends numbered packets at a rate.

use std::net::SocketAddr;
use std::time::Duration;

use linerate::{Code, Error, Registry, Spec, mean_frame_bytes, units};
use linerate_ctl::{GenReport, json};
use linerate_sys::netif::Interface;
use linerate_sys::thread::try_cpus;

use crate::args::Gen;
use crate::errors::Failure;
use crate::flood;
use crate::forward::{called, until};
use crate::report;
use crate::run::{Ended, Path, Ran, run};
use crate::screen::Screen;

/// Start of the source's text.
const SOURCE: &str = "gen:,";
/// Extra time for the last packets, which are due exactly at the end.
const GRACE: Duration = Duration::from_millis(20);

/// Runs the command; returns the exit status.
///
/// # Errors
/// The failure because of which there is no result.
pub fn generate(args: &Gen, drivers: &Registry, screen: &Screen) -> Result<u8, Failure> {
    try_cpus(&args.run.cpu)?;
    check_bounded(args, drivers)?;
    let asked = asked(args);
    let ran = run(&path(args, asked, drivers)?, &args.run, screen).map_err(in_flags)?;
    let report = kept(&ran, asked);
    let table = || match args.run.quiet {
        true => report::ledger(&report.path),
        false => report::generated(&report, args.run.pool),
    };
    let written = screen.result(table, || json::generated(&report));
    ran.notes(screen);
    ran.status(written, screen)
}

/// Options of the source's text, and the flags of this command from which they come.
const FLAGS: [(&str, &str); 8] = [
    ("from=", "--from "),
    ("mac=", "--mac "),
    ("size=", "--size "),
    ("burst=", "--burst "),
    ("count=", "--count "),
    ("flows=", "--flows "),
    ("rate=", "--rate "),
    ("to=", "--to "),
];

/// Rewrites a failure about the source's text, which users have not typed, from its options to
/// flags of this command.
fn in_flags(mut failure: Failure) -> Failure {
    let error = &mut failure.error;
    let is_of_source = error.what.starts_with(&format!("port '{SOURCE}"));
    let flagged = |text: &str, flags: &[(&str, &str)]| {
        flags.iter().fold(text.to_owned(), |text, (option, flag)| text.replace(option, flag))
    };
    if is_of_source {
        (error.what, error.why) = ("cannot generate packets".into(), flagged(&error.why, &FLAGS));
    }
    // Other failures name only the options of addresses and of the size.
    error.fix = flagged(&error.fix, if is_of_source { &FLAGS } else { &FLAGS[..3] });
    failure
}

/// Returns the report of a run, with the number of packets that were requested.
fn kept(ran: &Ran, asked: Option<u64>) -> GenReport {
    let pace = ran.stopped.ports.iter().find_map(|p| p.pace);
    let asked = match (ran.ended, pace) {
        // The run ended early, or the request has no end: report the packets that were due until
        // then.
        (Ended::Signal(_) | Ended::Failed, pace) => pace.map(|p| p.asked),
        (Ended::Done, pace) => asked.or(pace.map(|p| p.asked)),
    };
    GenReport::new(ran.report.clone(), asked, pace)
}

/// Returns the requested number of packets, if it is known before the run.
fn asked(args: &Gen) -> Option<u64> {
    let paced = paced(args);
    match (paced, args.limits.count) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Returns the packets that are due within `--for`, at `--rate`; `None` without one of them, or for
/// too many to count.
fn paced(args: &Gen) -> Option<u64> {
    // Both were checked when they were parsed; the driver refuses an invalid size.
    let rate = units::rate(args.rate.as_deref()?).ok()?;
    let mean = mean_frame_bytes(args.size.as_deref(), args.to).ok()?;
    // Packet i is due at i / rate; the first packet is due at once.
    let packets = whole(rate.pps(mean) * args.limits.time?.as_secs_f64());
    // A generator is not told a greater number than a count can be: then the time alone ends the
    // run.
    units::count(&packets.to_string()).is_ok().then_some(packets)
}

/// Returns `n` rounded up; a product that exceeds a whole number by its rounding error only is that
/// number.
fn whole(n: f64) -> u64 {
    let near = n.round();
    // Each factor was rounded, and so was the product.
    let is_near = (n - near).abs() <= n * 4.0 * f64::EPSILON;
    (if is_near { near } else { n.ceil() }) as u64
}

/// Refuses to send without a rate and without an end through an interface that the host itself
/// uses.
fn check_bounded(args: &Gen, drivers: &Registry) -> Result<(), Failure> {
    if args.rate.is_some() || flood::has_end(&args.limits) {
        return Ok(());
    }
    let fix = "add --rate, --for or --count, as in --rate 100kpps --for 3s";
    flood::refuse(&drivers.parse(&args.port)?, drivers, fix)
}

/// Refuses datagrams through a port that is no interface, without both of their addresses.
fn no_route(port: &Spec, to: SocketAddr) -> Failure {
    let port = port.shown_text();
    let why = format!("{port} is no interface, so no route gives the datagrams' addresses");
    let fix =
        "add both --mac MAC and --from ADDRESS, or send through an interface, as in packet:eth0";
    Error::new(Code::PortSyntax, format!("cannot send to {to}"), why).fix(fix).into()
}

fn path(args: &Gen, asked: Option<u64>, drivers: &Registry) -> Result<Path, Failure> {
    let to = drivers.parse(&args.port)?;
    let mut source = format!("{SOURCE}flows={}", args.flows);
    let mut say = |key, value: Option<String>| {
        source += &value.map_or(String::new(), |value| format!(",{key}={value}"));
    };
    say("size", args.size.clone());
    say("rate", args.rate.clone());
    say("burst", args.burst.map(|n| n.to_string()));
    say("count", asked.map(|n| n.to_string()));
    say("to", args.to.map(|to| to.to_string()));
    say("mac", args.mac.map(|mac| mac.to_string()));
    say("from", args.from.clone());
    let is_asked = drivers.flags(&to).interface && (args.mac.is_none() || args.from.is_none());
    // If the port's argument is the name of an interface, datagrams leave by that interface,
    // whatever the driver.
    let leaves_by = args.to.and_then(|_| match Interface::open(&to.arg) {
        Ok(dev) => Some(dev.name().to_string()),
        // The driver then reports the missing interface; if the port creates it, the user must give
        // both addresses.
        Err(_) => is_asked.then(|| to.arg.clone()),
    });
    if let (Some(receiver), None) = (args.to, &leaves_by)
        && (args.mac.is_none() || args.from.is_none())
    {
        return Err(no_route(&to, receiver));
    }
    say("dev", leaves_by);
    let is_paired = drivers.flags(&to).paired;
    let name = match called(&to, "stdout", drivers) {
        name if name == "gen" => "gen-2".to_owned(),
        name => name,
    };
    let mut path = Path {
        ports: vec![("gen".into(), source), (name.clone(), args.port.clone())],
        wires: vec![("gen".into(), name.clone())],
        time: args.limits.time.map(|time| if args.rate.is_some() { time + GRACE } else { time }),
        count: None,
        until: until(args.limits.time, args.limits.count),
        drivers: drivers.clone(),
        ..Path::default()
    };
    if is_paired {
        // The ring has two ends, and no other port of this process takes the second one.
        let end = format!("{name}-end");
        path.ports.push((end.clone(), args.port.clone()));
        let sink = if name == "sink" { "sink-2" } else { "sink" };
        path.ports.push((sink.into(), "sink:".into()));
        path.wires.push((end, sink.into()));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;
    use linerate::{Batch, Port};

    fn gen_args(words: &[&str]) -> Gen {
        let all = ["linerate", "gen", "null:"].iter().chain(words);
        match Args::try_parse_from(all).unwrap().command {
            Command::Gen(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_amounts_to_packets_due_within_its_time() {
        let n = |words: &[&str]| asked(&gen_args(words));
        assert_eq!(n(&["--rate=1Mpps", "--for=5s"]), Some(5_000_000));
        assert_eq!(n(&["--rate=8Mbps", "--size=1000", "--for=1s"]), Some(1000));
        assert_eq!(n(&["--rate=1Mpps", "--for=5s", "--count=10"]), Some(10));
        assert_eq!(n(&["--rate=3pps", "--for=100ms"]), Some(1));
        // As floating-point numbers, 100,000 times 0.07 is a little more than 7000.
        assert_eq!(n(&["--rate=100kpps", "--for=70ms"]), Some(7000));
        assert_eq!(n(&["--rate=1kpps", "--for=2007ms"]), Some(2007));
        assert_eq!(n(&["--rate=10pps", "--for=701ms"]), Some(8));
        assert_eq!(n(&["--for=5s"]), None);
        // More packets than a count can be.
        assert_eq!(n(&["--rate=10Mpps", "--for=1000000h"]), None);
        assert_eq!(n(&["--rate=10Mpps", "--for=1000000h", "--count=10"]), Some(10));
    }

    #[test]
    fn only_packets_that_are_due_at_the_end_prolong_the_time() {
        let time = |words: &[&str]| {
            let args = gen_args(words);
            path(&args, asked(&args), &Registry::default()).unwrap().time
        };
        let asked = Duration::from_millis(10);
        assert_eq!(time(&["--for=10ms"]), Some(asked));
        assert_eq!(time(&["--for=10ms", "--count=1G"]), Some(asked));
        assert_eq!(time(&["--for=10ms", "--rate=1Mpps"]), Some(asked + GRACE));
        assert_eq!(time(&["--count=5", "--rate=1Mpps"]), None);
    }

    #[test]
    fn standard_output_is_named_as_by_forward() {
        let name = |port: &str| {
            let args = Gen { port: port.into(), ..gen_args(&[]) };
            path(&args, None, &Registry::default()).unwrap().ports[1].0.clone()
        };
        assert_eq!(name("pcap:-"), "stdout");
        assert_eq!(name("x=pcap:-"), "x");
        assert_eq!(name("gen=null:"), "gen-2");
    }

    #[test]
    fn a_receiver_is_asked_for_with_its_port() {
        for (words, says) in [
            (&["--to=192.0.2.7"][..], "an address and a port: 192.0.2.7:7777"),
            (&["--to=2001:db8::7:7777"], "[2001:db8::7]:7777"),
            (&["--mac=02:00:00:00:00:09"], "--to"),
            (&["--to=192.0.2.7:7", "--mac=02"], "--mac"),
        ] {
            let e = Args::try_parse_from(["linerate", "gen", "null:"].iter().chain(words));
            assert!(e.unwrap_err().to_string().contains(says), "{words:?}");
        }
    }

    #[test]
    fn the_mean_of_imix_is_what_the_generator_makes() {
        let to = "to=[2001:db8::7]:9,mac=02:00:00:00:00:09,from=2001:db8::1";
        for (to, addr) in [("", None), (to, Some("[2001:db8::7]:9".parse().unwrap()))] {
            let text = format!("gen:size=imix,{to}");
            let mut port = Port::open(text.trim_end_matches(',')).unwrap();
            let mut batch = Batch::with_capacity(12);
            port.rx(&mut batch);
            let bytes: usize = batch.iter().map(|skb| skb.len()).sum();
            let mean = mean_frame_bytes(Some("imix"), addr).unwrap();
            assert!((bytes as f64 / 12.0 - mean).abs() < 1e-9);
        }
    }
}
