//! The setup of a trial (two ends, packets, CPUs), refused early if no packet could get from A to
//! B; and the trial itself: a generator before the path, a verifying sink after it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, EngineBuilder, PortStats, Running, Stopped, WorkerStats};
use linerate_port::{Health, Spec, Verified, parse, ring};
use linerate_sys::thread::pin_to_cpu;

use super::bounds::Trial;
use super::search::{Prober, Step};
use crate::scenario::pause::pause;
use crate::watch::{self, Watch};
use crate::window::Window;
use crate::{Code, Error, Result};

/// Longest wait for packets that are in flight at the end of a trial.
pub(super) const DRAIN: Duration = Duration::from_secs(1);
/// The length of the trial of the generator alone.
const ALONE: Duration = Duration::from_millis(500);
/// Drivers of devices that other programs can connect to.
const DEVICES: [&str; 5] = ["memif", "packet", "tap", "verbs", "xdp"];
const FIX: &str = "linerate ndr ring:a ring:b, or linerate ndr packet:veth0 packet:veth1";

/// The setup of a trial.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The port that sends into the path, as text.
    pub a: String,
    /// The port that receives from the path, as text.
    pub b: String,
    /// Length of a packet in bytes without FCS.
    pub size: u32,
    /// Number of flows.
    pub flows: u32,
    /// CPUs of the generator and the sink, and of the path if it consists of our own workers.
    pub cpus: Vec<usize>,
}

impl Setup {
    /// Checks the setup, and returns a description of the path. Nothing is opened.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX`; `E-TOPOLOGY` for a port that is no end of a path, a ring at one end only,
    /// or one ring at both.
    pub fn check(&self) -> Result<&'static str> {
        let (a, b) = (parse(&self.a)?, parse(&self.b)?);
        for (text, spec) in [(&self.a, &a), (&self.b, &b)] {
            if let Some(why) = no_end(spec) {
                return bad(format!("{text} {why}: no path ends there"));
            }
        }
        match [&a, &b].map(|spec| spec.driver == ring::NAME) {
            [true, true] if a.arg == b.arg => bad(
                "both ends belong to the same ring; use two rings, with the path's worker between them",
            ),
            [true, true] => Ok("a worker of linerate between two rings"),
            [false, false] => Ok("whatever joins the two ports"),
            _ => bad("the other end of a ring is in this process, and that of a device is not"),
        }
    }

    /// Opens the ports as a trial does and closes them again, so that an error that would stop
    /// every trial is reported before the first.
    ///
    /// # Errors
    /// Whatever opening them fails with; `E-DEVICE-DOWN` as the device says it; `E-TOPOLOGY` for
    /// packets longer than it takes.
    pub fn open(&self) -> Result<()> {
        for port in self.trial(1, 1)?.stats().ports() {
            if let Health::Down(e) | Health::Failed(e) = port.health {
                return Err(e);
            }
            let most = port.obtained.packet_max_bytes;
            if is_end(&port.name) && most < self.size as usize {
                let why = format!("{} takes {most} B at most", port.obtained.device);
                let what = format!("cannot send packets of {} B", self.size);
                return Err(Error::new(Code::Topology, what, why).fix(format!("--size {most}")));
            }
        }
        Ok(())
    }

    /// Returns the packets a second that generator and sink handle without a path between them,
    /// which is the limit of every measurement.
    ///
    /// # Errors
    /// What the engine fails with.
    pub fn generator_alone_pps(&self) -> Result<f64> {
        let engine = Engine::builder()
            .port("gen", &format!("gen:,size={},flows={}", self.size, self.flows))
            .port("sink", "sink:")
            .wire("gen", "sink")
            .cpus(&self.cpus[self.cpus.len().saturating_sub(1)..])
            .build()?;
        let running = engine.start()?;
        let wall = wait(&running, &AtomicBool::new(false), ALONE);
        let stopped = settled(running.stop(DRAIN))?;
        Ok(verified(&stopped).0 as f64 / wall.as_secs_f64())
    }

    /// Returns true if the path consists of our own workers.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        parse(&self.a).is_ok_and(|spec| spec.driver == ring::NAME)
    }
    /// Returns the engine of one trial. The generator's worker is the last: it starts when all
    /// others run.
    pub(super) fn trial(&self, load_pps: u64, offered: u64) -> Result<Engine> {
        let source = format!(
            "gen:,size={},flows={},rate={load_pps}pps,burst=1,count={offered}",
            self.size, self.flows
        );
        let builder = Engine::builder().port("gen", &source).port("sink", "sink:");
        let (near, far) = (self.cpus.first().copied(), self.cpus.last().copied());
        let [near, far] = [near, far].map(Option::into_iter);
        if !self.is_ours() {
            let cpus: Vec<usize> = far.clone().chain(far).collect();
            return self.devices(builder).cpus(&cpus).build();
        }
        let cpus: Vec<usize> = near.chain(far.clone()).chain(far).collect();
        builder
            .port("a-in", &self.a)
            .port("a-out", &self.a)
            .port("b-in", &self.b)
            .port("b-out", &self.b)
            .wire("a-out", "b-in")
            .wire("b-out", "sink")
            .wire("gen", "a-in")
            .cpus(&cpus)
            .build()
    }

    fn devices(&self, builder: EngineBuilder) -> EngineBuilder {
        builder.port("a", &self.a).port("b", &self.b).wire("b", "sink").wire("gen", "a")
    }
}

/// Returns true if a port of this name is an end of the path.
fn is_end(name: &str) -> bool {
    name.starts_with(['a', 'b'])
}

fn bad<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::new(Code::Topology, "cannot search this path", why).fix(FIX))
}

/// Returns the reason why a port of this driver cannot be an end of a path; `None` if it can.
fn no_end(spec: &Spec) -> Option<&'static str> {
    match spec.driver.as_str() {
        ring::NAME => None,
        device if DEVICES.contains(&device) => None,
        "null" => {
            Some("frees the packets that it receives, and outputs no packets of another port")
        }
        "gen" => Some("generates packets, and the search has a generator already"),
        "sink" => Some("is a sink, and the search has a sink already"),
        "pcap" => Some("is a file: packets written to one file do not come out of another"),
        _ => Some("is not known to forward packets"),
    }
}

/// The interval at which a wait checks for a failed worker.
const LOOK: Duration = Duration::from_millis(100);
/// Extra time that packets due at the very end may take to leave. It hides an overload of a
/// thousandth of a trial of 1 s, which is a fifth of the width that is searched for.
const GRACE: Duration = Duration::from_millis(1);
/// The delay of a trial's end that counts as a disturbance.
const LATE: Duration = Duration::from_millis(2);

/// A path, with the function that follows the trials.
pub struct Path<'a> {
    setup: &'a Setup,
    stop: &'a AtomicBool,
    follow: &'a mut dyn FnMut(&Step<'_>) -> bool,
}

impl<'a> Path<'a> {
    /// Creates a path to search; `follow` is called with each trial, and ends the search by
    /// returning false. A true `stop` ends it in the middle of a trial.
    pub fn new(
        setup: &'a Setup,
        stop: &'a AtomicBool,
        follow: &'a mut dyn FnMut(&Step<'_>) -> bool,
    ) -> Path<'a> {
        Path { setup, stop, follow }
    }
}

impl std::fmt::Debug for Path<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Path").field("setup", self.setup).finish_non_exhaustive()
    }
}

impl Prober for Path<'_> {
    fn trial(&mut self, load_pps: u64, seconds: f64) -> Result<Trial> {
        let (path, stop) = (self.setup, self.stop);
        // Run the trial on a new thread: it pins its thread, and the calling thread must stay
        // unpinned.
        thread::scope(|scope| {
            let body = || {
                if let Some(far) = path.cpus.last() {
                    pin_to_cpu(*far)?;
                }
                one(path, stop, load_pps, seconds)
            };
            let waiting = thread::Builder::new().name("linerate-ndr".into());
            let waiting = waiting.spawn_scoped(scope, body).map_err(|e| lost(e.to_string()))?;
            waiting.join().unwrap_or_else(|_| Err(lost("it panicked")))
        })
    }

    fn go_on(&mut self, step: &Step<'_>) -> bool {
        (self.follow)(step)
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Makes a trial on the calling thread.
///
/// That thread is on the generator's CPU or on none in particular. On the path's it would be what
/// the path's worker waits for.
fn one(setup: &Setup, stop: &AtomicBool, load_pps: u64, seconds: f64) -> Result<Trial> {
    let offered = ((load_pps as f64 * seconds) as u64).max(1);
    let engine = setup.trial(load_pps, offered)?;
    let asked = Duration::from_secs_f64(seconds) + GRACE;
    let watch = Watch::start(&setup.cpus)?;
    let running = engine.start()?;
    let wall = wait(&running, stop, asked);
    let mut window = Window { wall_ns: wall.as_nanos() as u64, ..Window::default() };
    watch.stop(&mut window)?;
    let stopped = settled(running.stop(DRAIN))?;
    let (forwarded, faults) = verified(&stopped);
    let pace = stopped.ports.iter().find_map(|port| port.pace);
    // The transmit count of port A is the number of packets that left the generator, because no
    // other program sends there.
    let into = stopped.ports.iter().find(|port| port.name.starts_with('a'));
    let sent = into.map_or(0, |port| port.counts.tx_packets);
    Ok(Trial {
        load_pps,
        asked_s: seconds,
        offered,
        unsent: offered.saturating_sub(sent),
        forwarded: forwarded.min(offered),
        faults,
        late_p99_ns: pace.and_then(|pace| pace.late_p99_ns),
        path_asleep_pct: stopped.workers.first().filter(|_| setup.is_ours()).and_then(asleep_pct),
        disturbed: disturbed(&window, wall.saturating_sub(asked)),
    })
}

/// Returns the disturbance that took CPU time during a trial, if there was one, independent of the
/// trial's result.
///
/// By the CPUs, not by how long the path's worker waited for its own: one that sleeps between
/// bursts waits a little at every wake-up, about 1 % of a trial that is otherwise undisturbed.
fn disturbed(window: &Window, late: Duration) -> Option<String> {
    if late > LATE {
        return Some(format!("it ended {:.1} ms too late", late.as_secs_f64() * 1e3));
    }
    let admission = watch::admit(&[window]);
    if admission.rate { None } else { admission.reason.or(Some("not admitted".into())) }
}

fn asleep_pct(worker: &WorkerStats) -> Option<f64> {
    Some((100.0 * worker.asleep_ns as f64 / worker.ran_ns?.max(1) as f64).min(100.0))
}

/// Waits for `time`, or until a worker fails or `stop` is true; returns the time waited.
///
/// Not until it has finished, as [`Running::wait`] does: a trial through rings may a moment
/// earlier, and every trial is to be as long.
pub(super) fn wait(running: &Running, stop: &AtomicBool, time: Duration) -> Duration {
    let start = Instant::now();
    while start.elapsed() < time && !running.failed() && !stop.load(Ordering::Relaxed) {
        pause(time.saturating_sub(start.elapsed()).min(LOOK));
    }
    start.elapsed()
}

fn lost(why: impl Into<String>) -> Error {
    Error::new(Code::System, "cannot wait for a trial", why)
}

/// Returns the results of a trial that ended normally, else its error.
pub(super) fn settled(stopped: Stopped) -> Result<Stopped> {
    stopped.check()?;
    if stopped.ledger.difference() != 0 {
        let what = "packets of a trial are not accounted for";
        return Err(Error::new(Code::Run, what, stopped.ledger.to_string()));
    }
    Ok(stopped)
}

/// Returns the number of packets that arrived whole and without duplicates, and the number of
/// packets that arrived twice, out of order or damaged.
pub(super) fn verified(stopped: &Stopped) -> (u64, u64) {
    let found = |port: &PortStats| port.verified;
    stopped.ports.iter().find_map(found).map_or((0, 0), |found| counted(&found))
}

/// Returns the same of a verifier's counts. A damaged packet is not among its `packets`. A late one
/// is, and may be a duplicate, because the verifier knows only the last 64 numbers of a flow.
fn counted(found: &Verified) -> (u64, u64) {
    let again = found.duplicated + found.late;
    (found.packets.saturating_sub(again), found.corrupted + again + found.reordered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(a: &str, b: &str) -> Setup {
        Setup { a: a.into(), b: b.into(), size: 60, flows: 1, cpus: Vec::new() }
    }

    #[test]
    fn a_path_has_two_ends_of_one_kind() {
        assert!(setup("ring:a", "ring:b").check().is_ok());
        assert!(setup("packet:veth0", "packet:veth1").check().is_ok());
        assert!(setup("tap:t0", "packet:veth1").check().is_ok());
        for (a, b) in [("ring:a", "ring:a"), ("ring:a", "packet:veth0")] {
            assert_eq!(setup(a, b).check().unwrap_err().code, Code::Topology);
        }
        assert_eq!(setup("ring", "ring:b").check().unwrap_err().code, Code::PortSyntax);
    }

    #[test]
    fn a_port_that_passes_nothing_on_is_refused_at_either_end_with_what_to_type() {
        for port in ["null:", "gen:", "sink:", "pcap:/tmp/x.pcap"] {
            for (a, b) in [(port, port), (port, "packet:v1"), ("packet:v0", port), ("ring:a", port)]
            {
                let e = setup(a, b).check().unwrap_err();
                assert_eq!(e.code, Code::Topology, "{a} {b}");
                assert!(e.why.starts_with(port) && e.fix.contains("ring:a ring:b"), "{e}");
            }
        }
    }

    #[test]
    fn every_driver_is_an_end_or_has_its_own_reason_not_to_be() {
        for driver in linerate_port::Registry::default().drivers() {
            let spec = parse(&format!("{}:x", driver.name())).unwrap();
            let why = no_end(&spec);
            assert!(why.is_none_or(|why| !why.contains("not known")), "{}", driver.name());
        }
    }

    #[test]
    fn port_that_cannot_be_opened_is_reported_by_opening_it() {
        setup("ring:a", "ring:b").open().unwrap();
        let e = setup("packet:nosuchif0", "packet:nosuchif1").open().unwrap_err();
        // Without the privilege to open a device, the error is that of the privilege.
        assert!([Code::NoDevice, Code::Permission].contains(&e.code), "{e}");
        let e = setup("ring:a,len=3", "ring:b").open().unwrap_err();
        assert_eq!(e.code, Code::PortSyntax);
    }

    #[test]
    fn a_packet_that_came_again_or_late_is_no_forwarded_one_and_a_damaged_one_takes_no_other_away()
    {
        let with = |fault: fn(&mut Verified)| {
            let mut found = Verified::default();
            found.packets = 100;
            fault(&mut found);
            counted(&found)
        };
        assert_eq!(with(|_| {}), (100, 0));
        assert_eq!(with(|found| found.corrupted = 7), (100, 7));
        assert_eq!(with(|found| found.duplicated = 3), (97, 3));
        assert_eq!(with(|found| found.late = 4), (96, 4));
        assert_eq!(with(|found| found.reordered = 5), (100, 5));
    }

    #[test]
    fn a_trial_through_rings_loses_nothing_at_a_rate_that_anything_carries() {
        let setup = setup("ring:a", "ring:b");
        let mut follow = |_: &Step<'_>| true;
        // A busy machine may stall for longer than the grace, so repeat until one trial is
        // complete.
        let mut trials = (0..20).map(|_| {
            Path::new(&setup, &AtomicBool::new(false), &mut follow).trial(10_000, 0.05).unwrap()
        });
        let whole = trials.find(|trial| trial.forwarded == 500);
        let whole = whole.expect("one of 20 trials of 50 ms is not stalled for 1 ms");
        assert_eq!(
            (whole.offered, whole.unsent, whole.faults, whole.loss_ratio()),
            (500, 0, 0, 0.0)
        );
    }

    #[test]
    fn a_trial_that_ends_more_than_two_milliseconds_late_was_disturbed() {
        let late = |us| disturbed(&Window::default(), Duration::from_micros(us));
        assert_eq!((late(0), late(2000)), (None, None));
        assert_eq!(late(3100).as_deref(), Some("it ended 3.1 ms too late"));
        let stalled = Window { disturbed: Some("a peer stalled".into()), ..Window::default() };
        assert_eq!(disturbed(&stalled, Duration::ZERO).as_deref(), Some("a peer stalled"));
    }

    #[test]
    fn a_worker_is_asleep_for_at_most_the_whole_trial() {
        let asleep = |asleep_ns, ran_ns| {
            let mut worker = WorkerStats::default();
            (worker.asleep_ns, worker.ran_ns) = (asleep_ns, ran_ns);
            asleep_pct(&worker)
        };
        assert_eq!((asleep(250, Some(1000)), asleep(1001, Some(1000))), (Some(25.0), Some(100.0)));
        assert_eq!((asleep(0, Some(0)), asleep(7, None)), (Some(0.0), None));
    }
}
