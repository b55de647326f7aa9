//! Experiments and runs for tests.

use linerate_seeds::stats::Goal;

use crate::experiment::{Clock, Expectation, Experiment, Formula, Metric};
use crate::record::{CellRecord, PairRecord, Run, SCHEMA};
use crate::window::Window;

/// Returns a metric of cost, whose better direction is lower, with `over` divided by packets.
pub(crate) fn metric(over: &str) -> Metric {
    let expected =
        Expectation { at: Vec::new(), change_pct: (-30.0, -10.0), source: "a post".into() };
    Metric {
        name: "cost_ns_per_packet".into(),
        unit: "ns/packet".into(),
        about: String::new(),
        formula: Formula {
            scale: 1.0,
            over: vec![(true, over.into())],
            under: vec![(true, "packets".into())],
        },
        goal: Some(Goal::Less),
        clock: Clock::Cost,
        estimate: None,
        same_pct: None,
        expected: vec![expected],
        expected_overall: None,
    }
}

/// Returns an experiment with one metric and two cells, `rate=max` and `rate=fixed`.
pub(crate) fn experiment() -> Experiment {
    let text = "version = 1\nid = \"pool\"\ntitle = \"t\"\nquestion = \"q\"\nscenario = \"engine\"\n\
         [a]\nname = \"malloc\"\n[b]\nname = \"frames\"\n[plan]\nquick = { pairs = 5 }\n\
         [[factor]]\nname = \"rate\"\nabout = \"r\"\n[[factor.level]]\nname = \"max\"\nquick = true\n\
         [[factor.level]]\nname = \"fixed\"\nquick = true\n[[metric]]\nname = \"m\"\nunit = \"u\"\n\
         about = \"m\"\nvalue = \"packets\"\nclock = \"cost\"\n";
    let experiment = Experiment::parse(text, "pool.toml").unwrap();
    Experiment { metrics: vec![metric("cost")], ..experiment }
}

/// Returns a run of [`experiment`] in which only the first cells ran, with these pairs.
pub(crate) fn run_of(cells: &[Vec<PairRecord>]) -> Run {
    let records = cells.iter().zip(["max", "fixed"]).map(|(pairs, rate)| CellRecord {
        at: [("rate".to_owned(), rate.to_owned())].into(),
        pairs: pairs.clone(),
        ..CellRecord::default()
    });
    Run { schema: SCHEMA.into(), cells: records.collect(), ..Run::default() }
}

/// Returns a pair of windows of 1000 packets, with these costs of both sides and of the control.
pub(crate) fn pair(a: f64, b: f64, control: f64) -> PairRecord {
    let control = Some(window(control));
    let accepted = PairRecord { accepted: true, cost_accepted: true, ..PairRecord::default() };
    PairRecord { a: window(a), b: window(b), control, ..accepted }
}

fn window(cost: f64) -> Window {
    let figures = [("cost".to_owned(), cost)].into();
    Window { wall_ns: 50_000_000, packets: 1000, figures, ..Window::default() }
}
