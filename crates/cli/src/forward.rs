//! The command `linerate forward`: moves packets between two ports, or runs a self-test.

use std::time::Duration;

use linerate::{Code, Driver, Engine, Error, Registry, Spec, Stats, Verified, units};
use linerate_ctl::{ErrorReport, json};
use linerate_sys::netif::Interface;
use linerate_sys::text::thousands;
use linerate_sys::thread::try_cpus;

use crate::args::Forward;
use crate::circle::{circle, joins_networks};
use crate::errors::Failure;
use crate::far::Far;
use crate::flood;
use crate::report;
use crate::run::{Ended, Path, Ran, open, run, run_opened};
use crate::screen::{Screen, is_pipe};

/// Default duration of the self-test, a run without ports.
const TRIAL: Duration = Duration::from_secs(3);
/// Rate of the self-test's first phase: the 124 MB/s of post 000's system on 1 Gbit/s, in full
/// frames.
const TRIAL_RATE: &str = "992Mbps";
const TRIAL_BYTES: usize = 1514;
/// Longest time for a second process to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs the command; returns the exit status.
///
/// # Errors
/// The failure because of which there is no result.
pub fn forward(args: &Forward, drivers: &Registry, screen: &Screen) -> Result<u8, Failure> {
    try_cpus(&args.run.cpu)?;
    let ran = match (&args.left, &args.right) {
        (Some(left), Some(right)) => {
            let path = between([left, right], args, drivers)?;
            let ends = [left.as_str(), right.as_str()];
            let warning = circle(ends, drivers).or_else(|| joins_networks(ends, drivers));
            warning.iter().for_each(|text| screen.note(&format!("warning: {text}\n")));
            let ran = run(&path, &args.run, screen);
            let mut ran = ran.map_err(|e| of_itself(e, [left, right], drivers))?;
            ran.report.warnings.extend(warning);
            ran
        }
        _ => trial(args, drivers, screen)?,
    };
    let table = || match args.run.quiet {
        true => report::ledger(&ran.report),
        false => report::forward(&ran.report, args.run.pool),
    };
    let mut written = screen.result(table, || json::forward(&ran.report));
    ran.notes(screen);
    if args.left.is_none()
        && !screen.json
        && written.is_ok()
        && let Some(verdict) = verdict(ran.report.error.as_ref(), ran.report.verify, ran.ended)
    {
        written = screen.line(&verdict);
    }
    ran.status(written, screen)
}

/// Returns the last line of a self-test: what it found; `None` if nothing was verified.
fn verdict(error: Option<&ErrorReport>, verify: Option<Verified>, ended: Ended) -> Option<String> {
    if let Some(error) = error {
        return Some(format!("FAIL: {}", error.what));
    }
    if ended == Ended::Failed {
        return Some("FAIL: a port or a worker failed before the end".into());
    }
    let packets = verify.map(|v| v.packets).filter(|packets| *packets > 0)?;
    Some(format!("PASS: {} packets, every byte verified", thousands(packets)))
}

/// Returns the path between the two given ports.
fn between([left, right]: [&str; 2], args: &Forward, drivers: &Registry) -> Result<Path, Failure> {
    let (a, b) = (drivers.parse(left)?, drivers.parse(right)?);
    apart([&a, &b], drivers)?;
    flood::check([&a, &b], &args.limits, drivers)?;
    // If neither port has a name of its own and both get the same default name, the second gets a
    // number.
    let (name, other) = (called(&a, "stdin", drivers), called(&b, "stdout", drivers));
    let other = if name == other && !is_named(&b) { format!("{other}-2") } else { other };
    if name == other {
        let why = format!("both are named '{other}'");
        let shown = b.shown_text();
        let unnamed = shown.split_once('=').map_or(&*shown, |(_, text)| text);
        return Err(Error::new(Code::Topology, "cannot join two ports", why)
            .fix(format!("name one of them: other={unnamed}"))
            .into());
    }
    let limits = &args.limits;
    let counted = [&a, &b].iter().any(|port| drivers.flags(port).generates);
    Ok(Path {
        ports: vec![
            (name.clone(), counting(&a, limits.count, drivers)?),
            (other.clone(), counting(&b, limits.count, drivers)?),
        ],
        wires: vec![(name, other)],
        time: limits.time,
        count: limits.count.filter(|_| !counted),
        until: until(limits.time, limits.count),
        beside: args.beside,
        drivers: drivers.clone(),
        ..Path::default()
    })
}

/// Refuses one interface at both ends: every packet would return to its sender. Ports of different
/// queues are permitted.
fn apart(ends: [&Spec; 2], drivers: &Registry) -> Result<(), Failure> {
    let [a, b] = ends;
    // Only the driver of links takes the numbers of queues: `queues=` of others is how many sockets
    // share the packets of all.
    let of_links = drivers.of_links().map_or("", Driver::name);
    let has_queues = |port: &Spec| port.driver == of_links && port.text().contains(",queues=");
    let are_interfaces = ends.iter().all(|port| drivers.flags(port).interface);
    // One interface may have several names: `altname` of ip-link(8).
    let index = |port: &Spec| Interface::open(&port.arg).ok().map(|found| found.index());
    let is_one = || a.arg == b.arg || index(a).is_some_and(|one| index(b) == Some(one));
    // The driver refuses a port without a name.
    let is_unnamed = a.arg.is_empty() || b.arg.is_empty();
    if is_unnamed || !are_interfaces || ends.into_iter().all(has_queues) || !is_one() {
        return Ok(());
    }
    let why = match a.arg == b.arg {
        true => format!("both ports are on interface {}", a.arg),
        false => format!("both ports are on one interface: {} and {} are its names", a.arg, b.arg),
    };
    let e = Error::new(Code::Topology, "cannot join two ports", why);
    Err(e.fix("name two different interfaces").into())
}

/// Improves the message of a busy device if both ends are the same device: this command itself uses
/// it.
fn of_itself(mut failure: Failure, ends: [&str; 2], drivers: &Registry) -> Failure {
    if let [Ok(a), Ok(b)] = ends.map(|text| drivers.parse(text))
        && failure.error.code == Code::Busy.as_str()
        && (&a.driver, &a.arg) == (&b.driver, &b.arg)
        && failure.error.what.contains(&format!("{}:{}", a.driver, a.arg))
    {
        failure.error.why = format!("both ends are {}", a.arg);
        failure.error.fix = "name two different devices".into();
    }
    failure
}

/// Returns true if the text contains a name for the port.
fn is_named(port: &Spec) -> bool {
    port.text().split(':').next().is_some_and(|front| front.contains('='))
}

/// Returns the name to print for a port; for a pipe `stdin` or `stdout` instead of `-`.
pub fn called(port: &Spec, pipe: &str, drivers: &Registry) -> String {
    if is_pipe(port, drivers) && !is_named(port) { pipe.into() } else { port.name.clone() }
}

/// Returns the text of a port that ends after `count` packets, if its driver can count; the smaller
/// of this count and the text's own is used.
fn counting(port: &Spec, count: Option<u64>, drivers: &Registry) -> Result<String, Failure> {
    let text = port.text().to_owned();
    let Some(count) = count.filter(|_| drivers.flags(port).generates) else { return Ok(text) };
    if port.value("count", units::count)?.is_some_and(|own| own <= count) {
        return Ok(text);
    }
    let (front, options) = text.split_once(':').unwrap_or((&text, ""));
    let kept = options.split(',').filter(|part| !part.is_empty() && !part.starts_with("count="));
    Ok(kept.fold(format!("{front}:count={count}"), |text, part| text + "," + part))
}

/// Runs the self-test of a command without ports: a complete path into another process, without
/// privileges.
fn trial(args: &Forward, drivers: &Registry, screen: &Screen) -> Result<Ran, Failure> {
    match meet(args, drivers) {
        Ok((engine, path, far)) => {
            let mut ran = run_opened(engine, &path, &args.run, screen)?;
            ran.add_far(far.finish())?;
            Ok(ran)
        }
        Err(why) => alone(args, &why, screen),
    }
}

/// Starts a second process and opens the path to it, whose packets the process reads in place; else
/// returns the reason.
fn meet(args: &Forward, drivers: &Registry) -> Result<(Engine, Path, Far), String> {
    let far = Far::start(drivers)?;
    let path = Path { drivers: drivers.clone(), ..fabric(args, far.port(), far.process()) };
    let mut engine = open(&path, &args.run).map_err(|failure| failure.error.why)?;
    match engine.wait_until_up(PATIENCE) {
        true => Ok((engine, path, far)),
        false => Err(reason(&engine.stats())),
    }
}

/// Returns the port's reason why the two processes share no memory.
fn reason(stats: &Stats) -> String {
    let said = stats.down().map_or("it did not answer".into(), |e| e.why);
    format!("the second process did not connect to this one: {said}")
}

/// Returns the scenario of post 000: 124 MB/s, then the highest rate, into memory shared with
/// another process.
fn fabric(args: &Forward, far: &str, process: u32) -> Path {
    let limits = &args.limits;
    let time = limits.time.or_else(|| limits.count.is_none().then_some(TRIAL));
    let paced = time.unwrap_or(TRIAL) / 2;
    let count = limits.count.map_or(String::new(), |count| format!(",count={count}"));
    let (rate, ns) = (TRIAL_RATE, paced.as_nanos().max(1));
    let source = format!("gen:,size={TRIAL_BYTES},rate={rate},rate_for={ns}ns{count}");
    let driver = far.split(':').next().unwrap_or(far);
    Path {
        ports: vec![("gen".into(), source), (driver.into(), far.into())],
        wires: vec![("gen".into(), driver.into())],
        time,
        until: until(time, limits.count),
        paced: Some((paced, process)),
        ..Path::default()
    }
}

/// Runs the self-test with two threads and a ring, because a second process is impossible for the
/// reason `why`.
fn alone(args: &Forward, why: &str, screen: &Screen) -> Result<Ran, Failure> {
    let path = through_ring(args);
    let engine = open(&path, &args.run)?;
    let warning = format!(
        "no second process; the packets go through a ring between two threads instead: {why}"
    );
    screen.note(&format!("warning: {warning}\n"));
    let mut ran = run_opened(engine, &path, &args.run, screen)?;
    ran.report.warnings.push(warning);
    Ok(ran)
}

fn through_ring(args: &Forward) -> Path {
    let limits = &args.limits;
    let time = limits.time.or_else(|| limits.count.is_none().then_some(TRIAL));
    let source = limits.count.map_or("gen:".into(), |count| format!("gen:,count={count}"));
    let texts =
        [("gen", source.as_str()), ("in", "ring:r0"), ("out", "ring:r0"), ("sink", "sink:")];
    let owned = |(a, b): (&str, &str)| (a.to_owned(), b.to_owned());
    Path {
        ports: texts.map(owned).to_vec(),
        wires: [("gen", "in"), ("out", "sink")].map(owned).to_vec(),
        time,
        until: until(time, limits.count),
        ..Path::default()
    }
}

/// Describes when the run ends, in the words of the options.
pub fn until(time: Option<Duration>, count: Option<u64>) -> String {
    match (time, count) {
        (Some(time), Some(count)) => format!("for {time:?} or {count} packets"),
        (Some(time), None) => format!("for {time:?}"),
        (None, Some(count)) => format!("for {count} packets"),
        (None, None) => "until the sources end or Ctrl-C".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_self_test_ends_with_what_it_found() {
        let error = |what: &str| Failure::new(3, "", what, String::new(), "").error;
        let verify = |packets| {
            let mut found = Verified::default();
            found.packets = packets;
            Some(found)
        };
        let pass = Some("PASS: 4,084,750 packets, every byte verified");
        let failed = Some("FAIL: a port or a worker failed before the end");
        for (verify, error, ended, told) in [
            (None, None, Ended::Done, None),
            (verify(0), None, Ended::Done, None),
            (verify(4_084_750), None, Ended::Done, pass),
            (verify(4_084_750), None, Ended::Signal(2), pass),
            (verify(4_084_750), None, Ended::Failed, failed),
            (verify(7), Some(error("they differ")), Ended::Done, Some("FAIL: they differ")),
        ] {
            assert_eq!(verdict(error.as_ref(), verify, ended).as_deref(), told);
        }
    }

    #[test]
    fn smaller_of_two_counts_ends_the_run() {
        let all = Registry::default();
        let counting = |text, count| counting(&all.parse(text).unwrap(), count, &all);
        let text = |text, count| counting(text, count).unwrap();
        assert_eq!(text("gen:", Some(10)), "gen:count=10");
        assert_eq!(text("gen:,count=5,size=60", Some(10)), "gen:,count=5,size=60");
        assert_eq!(text("gen:,count=1M,size=60", Some(10)), "gen:count=10,size=60");
        assert_eq!(text("gen:count=1M,size=60", Some(10)), "gen:count=10,size=60");
        assert_eq!(text("count=gen:,count=20", Some(10)), "count=gen:count=10");
        assert_eq!(text("gen:,count=5", None), "gen:,count=5");
        assert_eq!(text("null:", Some(10)), "null:");
        let e = counting("gen:,count=x", Some(1)).unwrap_err();
        assert!(e.error.why.contains("count=x"), "{e:?}");
    }

    #[test]
    fn a_device_that_the_command_itself_has_is_told_as_both_ends() {
        let all = Registry::default();
        let why = |ends, code| {
            let taken =
                Failure::from(Error::new(code, "cannot open xdp:e0", "taken").fix("end it"));
            of_itself(taken, ends, &all).error.why
        };
        assert_eq!(why(["xdp:e0", "b=xdp:e0,all"], Code::Busy), "both ends are e0");
        assert_eq!(why(["xdp:e0", "xdp:w0"], Code::Busy), "taken");
        assert_eq!(why(["xdp:e0", "xdp:e0"], Code::Permission), "taken");
        assert_eq!(why(["null:", "null:"], Code::Busy), "taken", "something else is");
    }

    #[test]
    fn one_interface_at_both_ends_is_refused() {
        let all = Registry::default();
        let apart = |a, b| apart([&all.parse(a).unwrap(), &all.parse(b).unwrap()], &all);
        for (a, b) in [
            ("packet:a0", "packet:a0"),
            ("xdp:a0,udp=7", "b=packet:a0"),
            ("packet:a0,queues=2", "packet:a0,queues=2"),
            ("xdp:a0,queues=0", "packet:a0"),
            ("xdp:a0,queues=0", "b=packet:a0,queues=2"),
            ("xdp:a0,queues=0", "xdp:a0"),
        ] {
            let e = apart(a, b).unwrap_err().error;
            assert_eq!((&*e.code, &*e.why), ("E-TOPOLOGY", "both ports are on interface a0"));
        }
        for (a, b) in [
            ("packet:a0", "packet:b0"),
            ("xdp:a0,queues=0", "xdp:a0,queues=1"),
            ("ring:a0", "ring:a0"),
            ("null:", "null:"),
            ("xdp:", "packet:"),
        ] {
            assert!(apart(a, b).is_ok(), "{a} {b}");
        }
    }

    #[test]
    fn a_pipe_on_either_side_has_a_name_of_its_own() {
        let all = Registry::default();
        let called = |text, pipe| called(&all.parse(text).unwrap(), pipe, &all);
        assert_eq!(called("pcap:-", "stdin"), "stdin");
        assert_eq!(called("x=pcap:-", "stdin"), "x");
        assert_eq!(called("pcap:a.pcap", "stdin"), "a.pcap");
    }
}
