//! One trial on a real path: a generator before it, a verifying sink behind it.

use std::time::{Duration, Instant};

use linerate_datapath::{Builder, Engine, PortStats, Stopped, WorkerStats};
use linerate_port::{parse, ring};

use super::search::{Prober, Step};
use super::trial::Trial;
use crate::watch::{self, Watch};
use crate::window::Window;
use crate::{Code, Error, Result};

/// What is due at the very end may leave so much later. It hides an overload of a thousandth of a
/// trial of 1 s, which is a fifth of the width that is searched for.
const GRACE: Duration = Duration::from_millis(1);
/// A trial that was told to end so much too late has hidden more than that.
const LATE: Duration = Duration::from_millis(2);
/// Time that packets under way are given to come out.
const DRAIN: Duration = Duration::from_secs(1);
/// How long the generator is tried alone.
const ALONE: Duration = Duration::from_millis(500);
/// Engines run on their own threads, and a trial waits for them at most so long at a time.
const LOOK: Duration = Duration::from_millis(20);

/// What is tried.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Where packets go in: a port's text.
    pub a: String,
    /// Where they come out.
    pub b: String,
    /// Bytes of a packet without FCS.
    pub size: u32,
    /// Flows.
    pub flows: u32,
    /// CPUs: of the path, if it is ours, and of the generator and the sink.
    pub cpus: Vec<usize>,
}

/// A path, and who follows the trials on it.
pub struct Path<'a> {
    setup: &'a Setup,
    follow: &'a mut dyn FnMut(&Step<'_>) -> bool,
}

impl<'a> Path<'a> {
    /// A path to be searched; `follow` is told of each trial, and ends the search by returning
    /// false.
    pub fn new(setup: &'a Setup, follow: &'a mut dyn FnMut(&Step<'_>) -> bool) -> Path<'a> {
        Path { setup, follow }
    }
}

impl std::fmt::Debug for Path<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Path").field("setup", self.setup).finish_non_exhaustive()
    }
}

impl Setup {
    /// Packets a second that the generator makes and the sink verifies when nothing is between
    /// them: no path is faster by this instrument.
    ///
    /// # Errors
    /// What the engine fails with.
    pub fn generator_alone_pps(&self) -> Result<f64> {
        let engine = self
            .engine()
            .port("gen", &format!("gen:,size={},flows={}", self.size, self.flows))
            .port("sink", "sink:")
            .wire("gen", "sink")
            .cpus(&self.cpus[self.cpus.len().saturating_sub(1)..])
            .build()?;
        let start = Instant::now();
        let running = engine.start()?;
        let _ = running.wait(ALONE);
        let wall = start.elapsed();
        let stopped = settled(running.stop(DRAIN))?;
        Ok(verified(&stopped).0 as f64 / wall.as_secs_f64())
    }

    /// Whether it makes sense, and what the path is.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX`; `E-TOPOLOGY` for a ring at one end only, or one ring at both.
    pub fn check(&self) -> Result<&'static str> {
        let (a, b) = (parse(&self.a)?, parse(&self.b)?);
        let rings = [&a, &b].map(|spec| spec.driver == ring::NAME);
        let bad = |why: &str| {
            let fix = "linerate ndr ring:a ring:b, or linerate ndr packet:veth0 packet:veth1";
            Err(Error::new(Code::Topology, "cannot search this path", why).fix(fix))
        };
        match rings {
            [true, true] if a.arg == b.arg => bad("both ends are of the same ring"),
            [true, true] => Ok("a worker of ours between two rings"),
            [false, false] => Ok("whatever joins the two ports"),
            _ => bad("a ring's other end is in this process, and a device's is not"),
        }
    }

    /// Whether the path is a worker of ours.
    fn is_ours(&self) -> bool {
        parse(&self.a).is_ok_and(|spec| spec.driver == ring::NAME)
    }

    fn engine(&self) -> Builder {
        Engine::builder()
    }

    /// The engine of one trial. The generator's worker is the last: it starts when all others run.
    fn build(&self, load_pps: u64, offered: u64) -> Result<Engine> {
        let source = format!(
            "gen:,size={},flows={},rate={load_pps}pps,count={offered}",
            self.size, self.flows
        );
        let builder = self.engine().port("gen", &source).port("sink", "sink:");
        let near = self.cpus.first().copied();
        let far = self.cpus.last().copied();
        let on =
            |cpus: &[Option<usize>]| -> Vec<usize> { cpus.iter().copied().flatten().collect() };
        if !self.is_ours() {
            let builder = builder.port("a", &self.a).port("b", &self.b);
            let wired = builder.wire("b", "sink").wire("gen", "a");
            return wired.cpus(&on(&[far, far])).build();
        }
        builder
            .port("a-in", &self.a)
            .port("a-out", &self.a)
            .port("b-in", &self.b)
            .port("b-out", &self.b)
            .wire("a-out", "b-in")
            .wire("b-out", "sink")
            .wire("gen", "a-in")
            .cpus(&on(&[near, far, far]))
            .build()
    }
}

impl Path<'_> {
    /// What took the CPUs from a trial, if something did: never what came of it.
    ///
    /// The path's own worker, if it has one, is alone on its CPU, so that its waiting for it is a
    /// disturbance. Generator and sink share theirs: of them, only what others took counts.
    fn disturbed(
        &self,
        window: &Window,
        workers: &[WorkerStats],
        late: Duration,
    ) -> Option<String> {
        if late > LATE {
            return Some(format!("it ended {:.1} ms too late", late.as_secs_f64() * 1e3));
        }
        let alone = self.setup.is_ours() && self.setup.cpus.first() != self.setup.cpus.last();
        let delay = workers.first().filter(|_| alone).and_then(|worker| {
            Some(100.0 * worker.run_delay_ns? as f64 / worker.ran_ns?.max(1) as f64)
        });
        if let Some(pct) = delay.filter(|pct| *pct > watch::RUN_DELAY_PCT_MAX) {
            return Some(format!("the path's worker waited for its CPU {pct:.1} % of the time"));
        }
        let admission = watch::admit(&[window]);
        if admission.rate { None } else { admission.reason.or(Some("not admitted".into())) }
    }
}

impl Prober for Path<'_> {
    fn trial(&mut self, load_pps: u64, seconds: f64) -> Result<Trial> {
        let offered = ((load_pps as f64 * seconds) as u64).max(1);
        let engine = self.setup.build(load_pps, offered)?;
        let asked = Duration::from_secs_f64(seconds) + GRACE;
        let watch = Watch::start(&self.setup.cpus)?;
        let running = engine.start()?;
        let start = Instant::now();
        // An engine of devices has no end: their packets never do.
        while !running.finished() && !running.failed() && start.elapsed() < asked {
            let _ = running.wait(asked.saturating_sub(start.elapsed()).min(LOOK));
        }
        let wall = start.elapsed();
        let mut window = Window { wall_ns: wall.as_nanos() as u64, ..Window::default() };
        watch.stop(&mut window)?;
        let stopped = settled(running.stop(DRAIN))?;
        let (forwarded, faults) = verified(&stopped);
        let pace = stopped.ports.iter().find_map(|port| port.pace);
        // What went in at A is what left the generator: there is nothing else on that wire.
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
            disturbed: self.disturbed(&window, &stopped.workers, wall.saturating_sub(asked)),
        })
    }

    fn go_on(&mut self, step: &Step<'_>) -> bool {
        (self.follow)(step)
    }
}

/// A trial that ended whole; its failure if it did not.
fn settled(stopped: Stopped) -> Result<Stopped> {
    if let Some(e) = &stopped.failed {
        return Err(e.clone());
    }
    if let Some((_, e)) = stopped.trouble() {
        return Err(e.clone());
    }
    if stopped.ledger.difference() != 0 {
        let what = "packets of a trial are not accounted for";
        return Err(Error::new(Code::Run, what, stopped.ledger.to_string()));
    }
    Ok(stopped)
}

/// Packets that came out whole, each once; and those that were twice, out of order or damaged.
fn verified(stopped: &Stopped) -> (u64, u64) {
    let found = |port: &PortStats| port.verified;
    let Some(found) = stopped.ports.iter().find_map(found) else { return (0, 0) };
    let bad = found.corrupted + found.duplicated;
    (found.packets.saturating_sub(bad), bad + found.reordered)
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
        for (a, b) in [("ring:a", "ring:a"), ("ring:a", "packet:veth0")] {
            assert_eq!(setup(a, b).check().unwrap_err().code, Code::Topology);
        }
        assert_eq!(setup("ring", "ring:b").check().unwrap_err().code, Code::PortSyntax);
    }

    #[test]
    fn a_trial_through_rings_loses_nothing_at_a_rate_that_anything_carries() {
        let setup = setup("ring:a", "ring:b");
        let mut follow = |_: &Step<'_>| true;
        // A busy machine may stall for longer than the grace: it is asked until one trial is whole.
        let mut trials =
            (0..20).map(|_| Path::new(&setup, &mut follow).trial(10_000, 0.05).unwrap());
        let whole = trials.find(|trial| trial.forwarded == 500);
        let whole = whole.expect("one of 20 trials of 50 ms is not stalled for 1 ms");
        assert_eq!(
            (whole.offered, whole.unsent, whole.faults, whole.loss_ratio()),
            (500, 0, 0, 0.0)
        );
    }
}
