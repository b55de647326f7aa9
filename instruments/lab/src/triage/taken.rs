//! The windows for a triage: those of a stored run, and those run for the triage.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Cap, LATE_AFTER, Seen, Triage, judge};
use crate::analysis::admitted;
use crate::experiment::{Cell, Clock, Experiment};
use crate::record::{CellRecord, PairRecord, Run};
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
    /// Open questions of windows that could not be run.
    untold: Vec<String>,
    /// Number of stored pairs that are in no sum, because they were not admitted or had their CPUs
    /// at another distance.
    left_out: usize,
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
    /// all of `only`. Its observations are sums over the admitted pairs.
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
        // A cell without admitted pairs is the last choice.
        let resent = |cell: &CellRecord| match counted(cell).is_empty() {
            true => -1.0,
            false => sum(cell, |pair| &pair.b).per_million(RESENT).unwrap_or(0.0),
        };
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
        let (mut seen, mut left_out) = (Vec::new(), 0);
        for one in &run.cells {
            let others = |cell: &CellRecord| {
                let mut at = cell.at.clone();
                at.remove(DEVICE);
                at
            };
            let Some(kept) = told(one).filter(|_| others(one) == others(worst)) else { continue };
            let (device, own) = (port_of(&kept.b), std::ptr::eq(one, worst));
            left_out += one.pairs.len() - counted(one).len();
            let [a, b] = [&one.ledger.a, &one.ledger.b].map(|ledger| ledger.balanced);
            for (cap, balanced, sums) in
                [(Cap::One, a, sum(one, |pair| &pair.a)), (Cap::Batch, b, sum(one, |pair| &pair.b))]
            {
                seen.push(Seen { device: device.clone(), own, cap, balanced, ..sums });
            }
        }
        let (run, at) = (run.run.id.clone(), worst.at.clone());
        Ok(Case { run, at, settings: cell.b.clone(), seen, untold: Vec::new(), left_out })
    }

    /// Creates a case without a run, from a side's settings, without observations.
    #[must_use]
    pub fn new(settings: &Settings) -> Case {
        let (run, settings, at) = ("-".into(), settings.clone(), BTreeMap::new());
        Case { run, at, settings, seen: Vec::new(), untold: Vec::new(), left_out: 0 }
    }

    /// Runs windows for the case, with its own workload and with datagrams in bursts; the new
    /// observations replace the stored ones. `told` is called with the name of each next step.
    ///
    /// If the other device cannot run them and something is wrong, the result says so.
    ///
    /// # Errors
    /// Those of the scenario with the case's own device: `E-PERM` without root.
    pub fn look(&mut self, extra: &Extra, place: &Place, mut told: impl FnMut(&str)) -> Result<()> {
        let own = port_of(&self.settings);
        let second = if own == "xdp" { "packet" } else { "xdp" };
        let (mut seen, mut untold) = (Vec::new(), Vec::new());
        for (device, is_own) in [(&*own, true), (second, false)] {
            let caps = extra.caps.iter().filter(|cap| is_own || **cap == Cap::One);
            for cap in [Cap::Batch].into_iter().chain(caps.copied()) {
                if !is_own && !extra.second {
                    continue;
                }
                told(&format!("{device}, {cap:?}"));
                let side = if is_own { self.settings.clone() } else { elsewhere(&self.settings) };
                match both(&side.with("port", device), cap, extra, place) {
                    Ok(all) => seen.push(Seen { device: device.into(), own: is_own, ..all }),
                    Err(e) if is_own => return Err(e),
                    // The windows of the case's own device remain, and most answers need no others.
                    Err(e) => {
                        untold.push(format!("The other device, `{device}`, did not run: {e}"));
                        break;
                    }
                }
            }
        }
        (self.seen, self.untold, self.left_out) = (seen, untold, 0);
        Ok(())
    }

    /// Returns the case with its result.
    #[must_use]
    pub fn answer(self) -> Triage {
        let mut verdict = judge(&self.seen);
        // If nothing is wrong, no other device is needed to say so.
        if !verdict.causes.is_empty() || !verdict.untold.is_empty() {
            verdict.untold.extend(self.untold);
        }
        let Case { run, at, seen, left_out, .. } = self;
        Triage { run, at, verdict, seen, left_out }
    }
}

/// Runs the windows of both workloads with a cap, and sums them up.
fn both(side: &Settings, cap: Cap, extra: &Extra, place: &Place) -> Result<Seen> {
    let side = side.clone().with("check", true);
    let side = match cap {
        Cap::One => side.with("tx_batch", "1"),
        Cap::Two => side.with("tx_batch", "2"),
        Cap::Batch => side,
    };
    let mut all = Seen::none(cap);
    for (settings, is_load) in [(side.clone(), false), (datagrams(&side), true)] {
        take(&settings, is_load, extra, place, &mut all)?;
    }
    Ok(all)
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
            all.load_packets = all.load_packets.saturating_add(window.packets);
            *all.sums.entry(LATE_AFTER.into()).or_default() += late.max(0.0);
        }
    }
    all.balanced &= bench.finish()?.ledger.balanced;
    Ok(())
}

/// The settings of a workload, which a load in bursts replaces: its own, those of TCP's sockets,
/// and those of programs that only a stream has.
const OF_A_WORKLOAD: [&str; 13] = [
    "workload",
    "rate",
    "link_pct",
    "burst",
    "arrivals",
    "connections",
    "message",
    "answer",
    "nodelay",
    "sockbuf",
    "probes",
    "east",
    "placement",
];

/// The settings that one kind of device has and another may refuse.
const OF_A_DEVICE: [&str; 3] = ["hold", "placement", "offload"];

/// Returns settings for a load in bursts with the same engine: datagrams are numbered, so that the
/// reading program knows their order.
fn datagrams(side: &Settings) -> Settings {
    let load = without(side, &OF_A_WORKLOAD).with("workload", "load").with("probes", 0);
    load.with("rate", 16_000).with("burst", 32).with("message", 256).with("connections", 2)
}

/// Returns the settings that a side can have with any device.
fn elsewhere(side: &Settings) -> Settings {
    without(side, &OF_A_DEVICE)
}

fn without(side: &Settings, names: &[&str]) -> Settings {
    let mut kept = Settings::new();
    for (name, setting) in side.iter().filter(|(name, _)| !names.contains(name)) {
        kept.set(name, setting.clone());
    }
    kept
}

/// Returns the pairs of a cell whose counts may be used: those whose rates count, because packets
/// are also lost when another program takes a CPU.
fn counted(cell: &CellRecord) -> Vec<&PairRecord> {
    admitted(Clock::Wall, &cell.pairs)
}

/// Adds up the windows of one side of a cell, of the admitted pairs.
fn sum(cell: &CellRecord, side: impl Fn(&PairRecord) -> &Window) -> Seen {
    let mut all = Seen::none(Cap::One);
    counted(cell).into_iter().for_each(|pair| all.add(side(pair)));
    all
}

impl Seen {
    /// Returns an observation of no window.
    fn none(cap: Cap) -> Seen {
        let (device, sums) = (String::new(), BTreeMap::new());
        Seen { device, own: false, cap, packets: 0, load_packets: 0, sums, balanced: true }
    }

    fn add(&mut self, window: &Window) {
        self.packets = self.packets.saturating_add(window.packets);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn text(settings: &Settings, name: &str) -> Option<String> {
        settings.get(name).map(|setting| setting.value.to_string())
    }

    #[test]
    fn datagrams_have_the_engine_of_the_case_and_a_workload_of_their_own() {
        let engine = [
            ("port", "xdp"),
            ("topology", "split"),
            ("moderation", "napi"),
            ("toll", "100ns/1us"),
            ("qdisc", "qdisc=fq_codel"),
            ("sysctl", "post-002"),
            ("buffers", "general"),
        ];
        let numbers: [(&str, i64); 4] =
            [("ring", 4096), ("hold", 200), ("budget", 32), ("pool_frames", 65_536)];
        let side = engine.iter().fold(Settings::new(), |side, (name, text)| side.with(name, *text));
        let side = numbers.iter().fold(side, |side, (name, n)| side.with(name, *n));
        let side = side.with("link_pct", 50).with("message", 4096).with("nodelay", true);
        let load = datagrams(&side);
        for (name, value) in engine {
            assert_eq!(text(&load, name).as_deref(), Some(value));
        }
        for (name, value) in numbers {
            assert_eq!(text(&load, name), Some(value.to_string()));
        }
        assert_eq!(text(&load, "workload").as_deref(), Some("load"));
        assert_eq!(text(&load, "message").as_deref(), Some("256"));
        assert!(["link_pct", "nodelay"].iter().all(|name| load.get(name).is_none()));
    }

    #[test]
    fn the_other_device_is_given_no_setting_that_it_refuses() {
        let place = Place { cpus: vec![0, 1], seed: 7, ..Place::default() };
        let check = |settings: &Settings| named(SCENARIO).unwrap().check(settings, &place);
        let stream = Settings::new().with("workload", "stream");
        for (other, side) in [
            ("packet", stream.clone().with("port", "xdp").with("hold", 200)),
            ("packet", stream.clone().with("port", "xdp").with("placement", "irq")),
            ("xdp", stream.with("port", "packet").with("offload", "on")),
        ] {
            assert!(check(&side.clone().with("port", other)).is_err(), "{other}");
            let side = elsewhere(&side).with("port", other);
            for side in [datagrams(&side), side] {
                // Without root, only the privilege is missing.
                let refused = check(&side).err().filter(|e| e.code != Code::Permission);
                assert!(refused.is_none_or(|e| e.kind() != Kind::Usage), "{side:?}");
            }
        }
    }

    #[test]
    fn sum_of_packets_that_exceeds_a_number_is_the_largest_one() {
        let mut all = Seen::none(Cap::One);
        for packets in [u64::MAX, 7] {
            all.add(&Window { packets, ..Window::default() });
        }
        assert_eq!(all.packets, u64::MAX);
    }

    #[test]
    fn a_device_that_did_not_run_is_told_unless_nothing_is_wrong() {
        let told = |late: f64| {
            let mut case = Case::new(&Settings::new());
            case.untold.push("The other device did not run.".into());
            let counts = [
                (LATE_AFTER, late),
                ("inlet_lost", 0.0),
                ("core_lost", 0.0),
                ("driver_lost", 0.0),
                ("receiver_lost", 0.0),
            ];
            let sums = counts.map(|(name, n)| (name.to_owned(), n)).into();
            let seen = Seen {
                own: true,
                packets: 1000,
                load_packets: 1000,
                sums,
                ..Seen::none(Cap::Batch)
            };
            case.seen = vec![seen];
            case.answer().verdict.untold
        };
        assert!(told(0.0).is_empty());
        assert_eq!(told(72.0).len(), 2, "what another device would tell, and why it did not");
    }
}
