//! The setup of a trial: two ends, packets, CPUs. It is refused early if no packet could get from A
//! to B.

use std::time::Duration;

use linerate_datapath::{Builder, Engine};
use linerate_port::{Health, Spec, parse, ring};

use super::path::{settled, verified, wait};
use crate::{Code, Error, Result};

/// Time that packets under way are given to come out.
pub(super) const DRAIN: Duration = Duration::from_secs(1);
/// The length of the trial of the generator alone.
const ALONE: Duration = Duration::from_millis(500);
/// Drivers of devices that something else may join.
const DEVICES: [&str; 4] = ["memif", "packet", "tap", "xdp"];
const FIX: &str = "linerate ndr ring:a ring:b, or linerate ndr packet:veth0 packet:veth1";

/// The setup of a trial.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The port that packets go in by, as text.
    pub a: String,
    /// The port that packets come out by, as text.
    pub b: String,
    /// Bytes of a packet without FCS.
    pub size: u32,
    /// Flows.
    pub flows: u32,
    /// CPUs: of the path, if it is ours, and of the generator and the sink.
    pub cpus: Vec<usize>,
}

impl Setup {
    /// Checks the setup, and returns a description of the path. Nothing is opened.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX`; `E-TOPOLOGY` for a port that is no end of a path, a ring at one end only, or
    /// one ring at both.
    pub fn check(&self) -> Result<&'static str> {
        let (a, b) = (parse(&self.a)?, parse(&self.b)?);
        for (text, spec) in [(&self.a, &a), (&self.b, &b)] {
            if let Some(why) = no_end(spec) {
                return bad(format!("{text} {why}: no path ends there"));
            }
        }
        match [&a, &b].map(|spec| spec.driver == ring::NAME) {
            [true, true] if a.arg == b.arg => {
                bad("both ends are of the same ring; two have the path's worker between them")
            }
            [true, true] => Ok("a worker of ours between two rings"),
            [false, false] => Ok("whatever joins the two ports"),
            _ => bad("a ring's other end is in this process, and a device's is not"),
        }
    }

    /// Opens the ports as a trial does and closes them again, so that what keeps every trial from
    /// being made is said before the first.
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

    /// Packets a second that the generator makes and the sink verifies when nothing is between
    /// them: no path is faster by this instrument.
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
        let wall = wait(&running, ALONE);
        let stopped = settled(running.stop(DRAIN))?;
        Ok(verified(&stopped).0 as f64 / wall.as_secs_f64())
    }

    /// Returns true if the path is one of our own workers.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        parse(&self.a).is_ok_and(|spec| spec.driver == ring::NAME)
    }
    /// The engine of one trial. The generator's worker is the last: it starts when all others run.
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

    fn devices(&self, builder: Builder) -> Builder {
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

/// Why a port of this driver is no end of a path; `None` if it is one.
fn no_end(spec: &Spec) -> Option<&'static str> {
    match spec.driver.as_str() {
        ring::NAME => None,
        device if DEVICES.contains(&device) => None,
        "null" => Some("swallows what it is sent, and nothing sent elsewhere comes out of it"),
        "gen" => Some("makes packets of its own, and the search has a generator already"),
        "sink" => Some("keeps what it is sent, and the search has a sink already"),
        "pcap" => Some("is a file: what is written to one does not come out of another"),
        _ => Some("is not known to pass packets on"),
    }
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
    fn what_cannot_be_opened_is_said_by_opening_it() {
        setup("ring:a", "ring:b").open().unwrap();
        let e = setup("packet:nosuchif0", "packet:nosuchif1").open().unwrap_err();
        // Without the privilege to open any, it is that.
        assert!([Code::NoDevice, Code::Permission].contains(&e.code), "{e}");
        let e = setup("ring:a,len=3", "ring:b").open().unwrap_err();
        assert_eq!(e.code, Code::PortSyntax);
    }
}
