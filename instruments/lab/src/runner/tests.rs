//! A simulated machine for tests: benches that do nothing, with scripted activity and distances.

mod directory;
// These three test modules print a note if this machine cannot run them; only tests may print.
#[cfg(test)]
mod document;
#[cfg(test)]
mod full;
mod pairs;
#[cfg(test)]
mod resume;

use std::cell::{Cell as Counter, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linerate_prof::profile::{Event, Origin, Profile, Row, Stack, Unit};
use serde_json::{Value as Json, json};

use super::unit::{RunWindow, World};
use crate::experiment::{Clock, Experiment, Plan};
use crate::knobs::Knob;
use crate::record::{Run, SCHEMA};
use crate::runner::{Observer, Progress, Request, run_in};
use crate::scenario::{Bench, Figure, Finished, Ledger, Place, Scenario};
use crate::settings::{Settings, Value};
use crate::watch::Admission;
use crate::window::{ThreadTime, Window};
use crate::{Code, Error, Result};

/// Nanoseconds that the first side takes for a packet; the second takes half.
const COST_NS: u64 = 1000;
const PACKETS: u64 = 100;

/// A simulated scenario. The cost of its windows is set by the side's settings, plus or minus
/// `noise_pct`.
pub(super) struct Simulated {
    scenario: Sides,
    /// Decides if a pair is admitted for rates and for costs, by the number of pairs before it.
    admits: fn(usize) -> (bool, bool),
    admitted: Counter<usize>,
    kernel: &'static str,
    /// Ticks of a round trip, in reverse order: the last reading is first; 0 means that it cannot
    /// be measured.
    distances: RefCell<Vec<f64>>,
}

/// The scenario that sets up the simulated sides.
#[derive(Default)]
struct Sides {
    noise_pct: u64,
    /// Windows that may run before one fails.
    fails_after: Option<usize>,
    log: Arc<Mutex<Log>>,
}

/// The order of the windows that ran: `a`, `b`, and `c` for the second bench of the first side.
#[derive(Default)]
struct Log {
    windows: Vec<char>,
    opened: BTreeMap<String, usize>,
}

struct Simulation {
    name: char,
    cost_ns: u64,
    noise_pct: u64,
    fails_after: Option<usize>,
    leaks: bool,
    packets: u64,
    log: Arc<Mutex<Log>>,
}

/// An observer that records all calls, and interrupts on request.
#[derive(Default)]
pub(super) struct Follower {
    seen: Vec<(String, usize, usize, Option<Duration>)>,
    notes: Vec<String>,
    /// Number of the check for an interruption that returns true; one check precedes each window.
    until: Option<usize>,
    looks: Counter<usize>,
    on_pair: Option<Box<dyn Fn(usize)>>,
}

impl Simulated {
    fn new() -> Simulated {
        Simulated {
            scenario: Sides::default(),
            admits: |_| (true, true),
            admitted: Counter::new(0),
            kernel: "Linux 6.18",
            distances: RefCell::default(),
        }
    }

    fn noisy(noise_pct: u64) -> Simulated {
        let mut world = Simulated::new();
        world.scenario.noise_pct = noise_pct;
        world
    }

    fn run(&self, request: &Request) -> Result<Run> {
        run_in(self, request, &mut Follower::default())
    }

    fn windows(&self) -> String {
        self.scenario.log.lock().unwrap().windows.iter().collect()
    }
}

impl World for Simulated {
    fn scenario(&self, name: &str) -> Option<&dyn Scenario> {
        (name == "engine").then_some(&self.scenario)
    }

    fn here(&self, _place: &Place) -> Json {
        json!({
            "kernel": self.kernel, "cpu": "simulated", "virt": null, "clocksource": "tsc",
            "cpus": [{"id": 0, "role": "dut"}],
            "pmu": {"available": false, "max_unmultiplexed": 0},
        })
    }

    fn watched(&self, cpus: &[usize], window: &mut RunWindow<'_>) -> Result<Window> {
        assert_eq!(cpus, [4, 5], "the CPUs that the threads are pinned to");
        window(&mut || ())
    }

    fn admit(&self, windows: &[&Window]) -> Admission {
        assert_eq!(windows.len(), 3);
        let number = self.admitted.replace(self.admitted.get() + 1);
        let (rate, cost) = (self.admits)(number);
        let reason = (!rate || !cost).then(|| "foreign CPU 31 %".to_owned());
        Admission { rate, cost, reason }
    }

    fn round_trip_ticks(&self, one: usize, other: usize) -> Result<f64> {
        assert_eq!((one, other), (4, 5));
        match self.distances.borrow_mut().pop() {
            Some(0.0) => Err(Error::new(Code::Cpu, "cannot measure", "they met for 3 readings")),
            ticks => Ok(ticks.unwrap_or(100.0)),
        }
    }

    fn pause(&self) {}
}

impl Scenario for Sides {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn about(&self) -> &'static str {
        "Simulated."
    }

    fn knobs(&self) -> &'static [Knob] {
        &[]
    }

    fn figures(&self) -> &'static [Figure] {
        &[]
    }

    fn check(&self, settings: &Settings, _place: &Place) -> Result<()> {
        match settings.get("check").map(|setting| setting.value.to_string()).as_deref() {
            Some("root") => {
                let e = Error::new(Code::Permission, "cannot open a port", "needs CAP_NET_RAW");
                Err(e.fix("sudo linerate lab run grid"))
            }
            Some("wrong") => Err(crate::settings::wrong(7, "burst = 0 is not above 0")),
            _ => Ok(()),
        }
    }

    fn open(&self, settings: &Settings, _place: &Place) -> Result<Box<dyn Bench>> {
        let text = |name| settings.get(name).map(|setting| setting.value.to_string());
        let side = text("side").unwrap_or_default();
        let mut log = self.log.lock().unwrap();
        let before = log.opened.entry(side.clone()).or_default();
        *before += 1;
        let is_control = side == "a" && before.is_multiple_of(2);
        let name = if is_control { 'c' } else { side.chars().next().unwrap_or('?') };
        Ok(Box::new(Simulation {
            name,
            cost_ns: if side == "b" { COST_NS / 2 } else { COST_NS },
            noise_pct: self.noise_pct,
            fails_after: self.fails_after,
            leaks: text("leak").is_some_and(|who| who.contains(name)),
            packets: 0,
            log: Arc::clone(&self.log),
        }))
    }
}

impl Bench for Simulation {
    fn window(&mut self, time: Duration) -> Result<Window> {
        let mut log = self.log.lock().unwrap();
        if Some(log.windows.len()) == self.fails_after {
            return Err(Error::new(Code::System, "cannot wait", "it is one window too many"));
        }
        log.windows.push(self.name);
        let draw = crate::random::Random::new(log.windows.len() as u64).below(200) as u64;
        self.packets += PACKETS;
        let cost_ns = self.cost_ns * PACKETS * (100 + self.noise_pct * draw / 100) / 100;
        let thread = |role: &str, cpu, measured| ThreadTime {
            role: role.into(),
            cpu: Some(cpu),
            wall_ns: cost_ns,
            cpu_ns: cost_ns,
            measured,
            ..ThreadTime::default()
        };
        let mut window = Window::of(vec![thread("worker 0", 4, true), thread("traffic", 5, false)]);
        window.packets = PACKETS;
        window.figures.insert("asked_ns".into(), time.as_nanos() as f64);
        Ok(window)
    }

    fn profile(&mut self, _time: Duration) -> Result<Vec<Profile>> {
        if self.name == 'b' {
            return Err(Error::new(Code::Unsupported, "cannot sample", "no clock"));
        }
        let name = "cpu-clock".into();
        let event = Event { name, unit: Unit::Samples, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Clock);
        profile.rows.push(Row::new("skb_alloc", 12));
        let frames = vec!["main".to_owned(), "skb_alloc".to_owned()];
        profile.stacks.push(Stack { frames, count: 12 });
        Ok(vec![profile])
    }

    fn finish(self: Box<Self>) -> Result<Finished> {
        let ledger = Ledger {
            created: self.packets,
            consumed: self.packets - u64::from(self.leaks),
            balanced: !self.leaks,
            ..Ledger::default()
        };
        Ok(Finished {
            ledger,
            matrices: [("free_matrix".into(), vec![vec![self.packets]])].into(),
            totals: [("memory_bytes".into(), 4096.0)].into(),
            notes: vec![],
        })
    }
}

impl Observer for Follower {
    fn progress(&mut self, progress: &Progress<'_>) {
        let Progress { cell, accepted, attempted, left, .. } = *progress;
        self.seen.push((cell.into(), accepted, attempted, left));
        if let Some(on_pair) = &self.on_pair {
            on_pair(attempted);
        }
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.into());
    }

    fn interrupted(&self) -> bool {
        self.looks.set(self.looks.get() + 1);
        self.until.is_some_and(|until| self.looks.get() >= until)
    }
}

/// The part of the file of [`grid`] that readers of a run need.
const TOML: &str = r#"version = 1
id = "grid"
title = "Two cells"
question = "Is it half?"
scenario = "engine"
[a]
name = "one"
[b]
name = "other"
[plan]
window = "50ms"
warmup = 3
looks = [15, 30, 60]
half_width_pct = 1.0
quick = { pairs = 5, window = "20ms" }
[[factor]]
name = "size"
about = "Of a packet."
[[factor.level]]
name = "small"
quick = true
[[factor.level]]
name = "large"
[[metric]]
name = "cost_ns_per_packet"
unit = "ns/packet"
about = "What a packet costs."
value = "cost_ns / packets"
better = "lower"
clock = "cost"
"#;

/// Returns an experiment of two cells, of which the first is the quick subset.
pub(super) fn grid() -> Experiment {
    let mut grid = Experiment::parse(TOML, "grid.toml").unwrap();
    for cell in &mut grid.cells {
        (cell.a, cell.b) = (cell.a.clone().with("side", "a"), cell.b.clone().with("side", "b"));
    }
    grid
}

/// Adds the setting `name = value` to both sides of a cell.
fn told(experiment: &mut Experiment, cell: usize, name: &str, value: impl Into<Value>) {
    let more = Settings::new().with(name, value);
    let cell = &mut experiment.cells[cell];
    (cell.a, cell.b) = (cell.a.and(&more), cell.b.and(&more));
}

/// Returns a request for a run of the whole experiment.
pub(super) fn request(experiment: Experiment) -> Request {
    Request {
        experiment,
        quick: false,
        only: Vec::new(),
        attempts: Plan::ATTEMPTS,
        seed: 7,
        place: Place { cpus: vec![4, 5], seed: 7, program: None, stop: Arc::default() },
        dir: std::path::PathBuf::new(),
        resume: None,
        argv: vec!["linerate".into(), "lab".into(), "run".into(), "grid".into()],
        note: None,
        built: Default::default(),
    }
}

fn request_in(dir: &Path, experiment: Experiment) -> Request {
    Request { dir: dir.into(), ..request(experiment) }
}

fn codes(run: &Run) -> Vec<&str> {
    assert_eq!(run.schema, SCHEMA);
    run.warnings.iter().map(|warning| warning.code.as_str()).collect()
}
