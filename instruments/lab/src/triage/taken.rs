//! The windows for a triage: those of a stored run, and those run for the triage.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Cap, LATE_AFTER, Seen, Triage, judge};
use crate::experiment::{Cell, Experiment};
use crate::record::{CellRecord, Run};
use crate::scenario::{Place, named};
use crate::settings::{Settings, Value};
use crate::window::Window;
use crate::{Code, Error, Result};

/// The scenario whose figures the rules know.
const SCENARIO: &str = "host";
/// The factor whose values are a run's devices.
const DEVICE: &str = "device";
/// The figure that selects the worst cell.
const RESENT: &str = "tcp_retrans_segs";

/// A cell of a stored run, with its settings and observations.
#[derive(Debug, Clone)]
pub struct Case {
    run: String,
    at: BTreeMap<String, String>,
    settings: Settings,
    seen: Vec<Seen>,
}

/// The windows that are run for a triage, with each device and each cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extra {
    /// Number of windows of each workload; one more window before them does not count.
    pub windows: u32,
    /// Length of a window.
    pub window: Duration,
    /// True if the other device is run as well.
    pub second: bool,
    /// Caps to run in addition to the case's own.
    pub caps: Vec<Cap>,
}

impl Default for Extra {
    fn default() -> Extra {
        let window = Duration::from_millis(500);
        Extra { windows: 3, window, second: true, caps: vec![Cap::One, Cap::Two] }
    }
}

impl Case {
    /// Selects the cell of `run` with the most retransmissions with batches, among those that match
    /// all of `only`.
    ///
    /// # Errors
    /// `E-RUN` if there is none, or if the sides are not a cap of one packet and a longer one.
    pub fn of(run: &Run, only: &[(String, String)]) -> Result<Case> {
        let refuse = |why: String, fix: &str| {
            Err(Error::new(Code::Run, format!("cannot triage {}", run.run.id), why).fix(fix))
        };
        let toml = run.run.config_toml.as_deref().unwrap_or_default();
        let experiment = Experiment::parse(toml, &run.run.id)?;
        let has = |cell: &&CellRecord| {
            let is = |(name, level): &(String, String)| cell.at.get(name) == Some(level);
            only.iter().all(is) && !cell.pairs.is_empty()
        };
        let resent =
            |cell: &CellRecord| sum(cell, |pair| &pair.b).per_million(RESENT).unwrap_or(0.0);
        let cells = run.cells.iter().filter(has);
        let Some(worst) = cells.max_by(|a, b| resent(a).total_cmp(&resent(b))) else {
            return refuse("it has no such cell with windows".into(), "see `linerate lab report`");
        };
        let told = |cell: &CellRecord| {
            let same = |one: &&Cell| one.at.iter().cloned().collect::<BTreeMap<_, _>>() == cell.at;
            experiment.cells.iter().find(same)
        };
        let Some(cell) = told(worst).filter(|cell| cell.scenario == SCENARIO) else {
            return refuse("it is not of the scenario `host`".into(), "a run of `batch`, say");
        };
        let caps = [&cell.a, &cell.b].map(cap_of);
        if caps != [Cap::One, Cap::Batch] {
            let why = "its sides are not one packet a doorbell, and more".into();
            return refuse(why, "[a] tx_batch = \"1\", and [b] another, as `batch` has them");
        }
        let mut seen = Vec::new();
        for one in &run.cells {
            let others = |cell: &CellRecord| {
                let mut at = cell.at.clone();
                at.remove(DEVICE);
                at
            };
            let Some(kept) = told(one).filter(|_| others(one) == others(worst)) else { continue };
            let (device, own) = (port_of(&kept.b), std::ptr::eq(one, worst));
            for (cap, sums) in
                [(Cap::One, sum(one, |pair| &pair.a)), (Cap::Batch, sum(one, |pair| &pair.b))]
            {
                seen.push(Seen { device: device.clone(), own, cap, ..sums });
            }
        }
        let (run, at) = (run.run.id.clone(), worst.at.clone());
        Ok(Case { run, at, settings: cell.b.clone(), seen })
    }

    /// Creates a case without a run, from a side's settings, without observations.
    #[must_use]
    pub fn new(settings: &Settings) -> Case {
        let settings = settings.clone();
        Case { run: "-".into(), at: BTreeMap::new(), settings, seen: Vec::new() }
    }

    /// Runs windows for the case, with its own workload and with datagrams in bursts; the new
    /// observations replace the stored ones. `told` is called with the name of each next step.
    ///
    /// # Errors
    /// Those of the scenario: `E-PERM` without root.
    pub fn look(&mut self, extra: &Extra, place: &Place, mut told: impl FnMut(&str)) -> Result<()> {
        let own = port_of(&self.settings);
        let second = if own == "xdp" { "packet" } else { "xdp" };
        let mut seen = Vec::new();
        for (device, is_own) in [(&*own, true), (second, false)] {
            let caps = extra.caps.iter().filter(|cap| is_own || **cap == Cap::One);
            for cap in [Cap::Batch].into_iter().chain(caps.copied()) {
                if !is_own && !extra.second {
                    continue;
                }
                told(&format!("{device}, {cap:?}"));
                let side = self.settings.clone().with("port", device).with("check", true);
                let side = match cap {
                    Cap::One => side.with("tx_batch", "1"),
                    Cap::Two => side.with("tx_batch", "2"),
                    Cap::Batch => side,
                };
                let mut all = Seen {
                    device: device.into(),
                    own: is_own,
                    cap,
                    packets: 0,
                    sums: BTreeMap::new(),
                };
                for (settings, is_load) in [(side.clone(), false), (datagrams(&side), true)] {
                    take(&settings, is_load, extra, place, &mut all)?;
                }
                seen.push(all);
            }
        }
        self.seen = seen;
        Ok(())
    }

    /// Returns the case with its result.
    #[must_use]
    pub fn answer(self) -> Triage {
        let verdict = judge(&self.seen);
        Triage { run: self.run, at: self.at, verdict, seen: self.seen }
    }
}

/// Runs the windows of one workload, and sums them up.
fn take(
    settings: &Settings,
    is_load: bool,
    extra: &Extra,
    place: &Place,
    all: &mut Seen,
) -> Result<()> {
    let scenario =
        named(SCENARIO).ok_or_else(|| Error::new(Code::Run, "cannot triage", SCENARIO))?;
    scenario.check(settings, place)?;
    let mut bench = scenario.open(settings, place)?;
    for number in 0..=extra.windows {
        let window = bench.window(extra.window)?;
        if number == 0 {
            continue;
        }
        let figure = |name: &str| window.figure(name).unwrap_or(0.0);
        let late = figure("reordered") - figure("core_late");
        all.add(&window);
        if is_load {
            *all.sums.entry(LATE_AFTER.into()).or_default() += late.max(0.0);
        }
    }
    bench.finish().map(drop)
}

/// Returns settings for a load in bursts with the same engine: datagrams are numbered, so that the
/// reading program knows their order.
fn datagrams(side: &Settings) -> Settings {
    let kept = ["port", "cpus", "moderation", "tx_batch", "senders", "check", "fault", "hot_list"];
    let mut load = Settings::new().with("workload", "load").with("probes", 0);
    for (name, setting) in side.iter().filter(|(name, _)| kept.contains(name)) {
        load.set(name, setting.clone());
    }
    load.with("rate", 16_000).with("burst", 32).with("message", 256).with("connections", 2)
}

/// Adds up the windows of one side of a cell.
fn sum(cell: &CellRecord, side: impl Fn(&crate::record::PairRecord) -> &Window) -> Seen {
    let (packets, sums) = (0, BTreeMap::new());
    let mut all = Seen { device: String::new(), own: false, cap: Cap::One, packets, sums };
    cell.pairs.iter().for_each(|pair| all.add(side(pair)));
    all
}

impl Seen {
    fn add(&mut self, window: &Window) {
        self.packets += window.packets;
        for (name, value) in &window.figures {
            *self.sums.entry(name.clone()).or_default() += value;
        }
    }
}

fn cap_of(settings: &Settings) -> Cap {
    match settings.get("tx_batch").map(|setting| setting.value.to_string()).as_deref() {
        Some("1") => Cap::One,
        _ => Cap::Batch,
    }
}

fn port_of(settings: &Settings) -> String {
    let port = settings.get("port").and_then(|setting| match &setting.value {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    });
    port.unwrap_or_else(|| "packet".into())
}
