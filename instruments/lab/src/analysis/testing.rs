//! Experiments and runs for tests.

use linerate_seeds::stats::Goal;

use crate::experiment::{
    Cell, Clock, Expectation, Experiment, Factor, Formula, Level, Metric, Plan, Side,
};
use crate::record::{CellRecord, Order, PairRecord, Run, SCHEMA};
use crate::settings::Settings;
use crate::window::Window;

/// A cost, of which less is better, as `over` for each packet.
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
        expected: vec![expected],
    }
}

/// An experiment with one metric and two cells, `rate=max` and `rate=fixed`.
pub(crate) fn experiment() -> Experiment {
    let side = |name: &str| Side { name: name.into(), settings: Settings::new() };
    let level = |name: &str| Level { name: name.into(), quick: true, ..Level::default() };
    let cell = |name: &str| Cell {
        at: vec![("rate".into(), name.into())],
        scenario: "engine".into(),
        window_ns: 1,
        quick_window_ns: 1,
        fresh: false,
        a: Settings::new(),
        b: Settings::new(),
        quick: true,
    };
    Experiment {
        id: "pool".into(),
        title: String::new(),
        question: String::new(),
        post: None,
        scenario: "engine".into(),
        a: side("malloc"),
        b: side("frames"),
        factors: vec![Factor {
            name: "rate".into(),
            about: String::new(),
            levels: vec![level("max"), level("fixed")],
        }],
        cells: vec![cell("max"), cell("fixed")],
        metrics: vec![metric("cost")],
        fixed_points: Vec::new(),
        plan: Plan {
            window_ns: 1,
            warmup: 0,
            fresh: false,
            looks: vec![15, 30, 60],
            half_width_pct: 1.0,
            quick_pairs: 5,
            quick_window_ns: 1,
        },
        profiles: false,
        toml: String::new(),
    }
}

/// A run of [`experiment`], of its first cells.
pub(crate) fn run_of(cells: &[Vec<PairRecord>]) -> Run {
    let records = cells.iter().zip(["max", "fixed"]).map(|(pairs, rate)| CellRecord {
        at: [("rate".to_owned(), rate.to_owned())].into(),
        pairs: pairs.clone(),
        ..CellRecord::default()
    });
    Run {
        schema: SCHEMA.into(),
        run: Default::default(),
        env: serde_json::Value::Null,
        experiment: Default::default(),
        cells: records.collect(),
        overall: Vec::new(),
        profiles: Vec::new(),
        matrices: Default::default(),
        totals: Default::default(),
        verdict: String::new(),
        warnings: Vec::new(),
    }
}

/// A pair of windows of 1000 packets that cost this much, with their control.
pub(crate) fn pair(a: f64, b: f64, control: f64) -> PairRecord {
    PairRecord {
        order: Order::AB,
        a: window(a),
        b: window(b),
        control: Some(window(control)),
        accepted: true,
        cost_accepted: true,
        reject_reason: None,
        placement: None,
    }
}

fn window(cost: f64) -> Window {
    let figures = [("cost".to_owned(), cost)].into();
    Window { wall_ns: 50_000_000, packets: 1000, figures, ..Window::default() }
}
