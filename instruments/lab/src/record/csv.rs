//! A run's tables as CSV: its raw windows and its effects.
//!
//! As the tables' own CSV: RFC 4180, with bare line feeds; what is not known is empty. Columns have
//! an order that does not depend on the run beyond which of them there are.

use std::collections::BTreeSet;

use linerate_show::table::quoted;

use crate::record::{CellRecord, Effect, Elsewhere, Expected, Order, PairRecord, Run};
use crate::window::{COMMON, Window};

/// Formats the windows: a line for each window of each pair, in the order of the run. The columns
/// are what admission decided and saw, the common figures, the CPU's events, and the scenario's own
/// figures. Pairs of one cell with the same `set_up` share their sides.
#[must_use]
pub fn csv(run: &Run) -> String {
    let factors = factors(run);
    let figures = figures(run);
    let fixed = ["pair", "order", "side", "accepted", "cost_accepted", "reason", "class", "set_up"];
    let seen = ["disturbed", "cpus", "foreign_cpu_ns", "steal_ticks"];
    let head = factors.iter().map(|factor| quoted(factor));
    let head = head.chain(fixed.map(str::to_owned)).chain(seen.map(str::to_owned));
    let mut out = line(head.chain(figures.iter().map(|figure| quoted(figure))));
    for cell in &run.cells {
        for (number, pair) in cell.pairs.iter().enumerate() {
            for (side, window) in windows(pair) {
                let at = at(&factors, cell);
                let of_pair = pair_fields(number + 1, side, pair);
                let values = figures.iter().map(|name| number_or_empty(window.figure(name)));
                out += &line(at.chain(of_pair).chain(seen_fields(window)).chain(values));
            }
        }
    }
    out
}

/// Formats the effects: a line for each cell and metric. A cell without effects has a line with its
/// status. `a_at_least` and `b_at_least` are true for a value that is a lower bound. The change and
/// its interval are empty if neither side counted anything.
#[must_use]
pub fn effects_csv(run: &Run) -> String {
    let factors = factors(run);
    let head = effect_fields(&CellRecord::default(), None).map(|(name, _)| name.to_owned());
    let mut out = line(factors.iter().map(|factor| quoted(factor)).chain(head));
    for cell in &run.cells {
        let none = cell.metrics.is_empty().then_some(None);
        for effect in cell.metrics.iter().map(Some).chain(none) {
            let fields = effect_fields(cell, effect).map(|(_, value)| value);
            out += &line(at(&factors, cell).chain(fields));
        }
    }
    out
}

/// Returns the columns of [`effects_csv`] after the factors, with their values.
fn effect_fields(
    cell: &CellRecord,
    named: Option<(&String, &Effect)>,
) -> [(&'static str, String); 29] {
    let text = |of: fn(&Effect) -> &str| named.map(|(_, e)| of(e).to_owned()).unwrap_or_default();
    let number = |of: fn(&Effect) -> Option<f64>| number_or_empty(named.and_then(|(_, e)| of(e)));
    let told = named.filter(|(_, e)| !e.is_of_nothing());
    let change = |of: fn(&Effect) -> f64| number_or_empty(told.map(|(_, e)| of(e)));
    let least = |i: usize| named.map(|(_, e)| e.at_least[i].to_string()).unwrap_or_default();
    let met = |expected: &Expected| match expected.certain {
        true => expected.met.to_string(),
        false => "open".to_owned(),
    };
    let met = named.and_then(|(_, e)| e.expected.as_ref()).map(met);
    let elsewhere = named.and_then(|(_, e)| e.elsewhere.as_ref());
    let class = elsewhere.map(|other| quoted(&other.class));
    let other = |of: fn(&Elsewhere) -> f64| number_or_empty(elsewhere.map(of));
    [
        ("status", cell.status.as_str().to_owned()),
        ("metric", named.map(|(name, _)| quoted(name)).unwrap_or_default()),
        ("unit", named.map(|(_, e)| quoted(&e.unit)).unwrap_or_default()),
        ("better_when", text(|e| e.better_when.as_deref().unwrap_or_default())),
        ("a", number(|e| Some(e.a))),
        ("b", number(|e| Some(e.b))),
        ("change_pct", change(|e| e.change_pct)),
        ("ci95_low_pct", change(|e| e.ci95_pct.0)),
        ("ci95_high_pct", change(|e| e.ci95_pct.1)),
        ("pairs", number(|e| Some(e.n_pairs as f64))),
        ("censored_below", number(|e| e.censored_below)),
        ("aa_half_width_pct", number(|e| e.aa_half_width_pct)),
        ("aa_pct", number(|e| Some(e.aa_pct?.0))),
        ("aa_low_pct", number(|e| Some(e.aa_pct?.1))),
        ("aa_high_pct", number(|e| Some(e.aa_pct?.2))),
        ("p_holm", number(|e| e.p_holm)),
        ("expected_low_pct", number(|e| Some(e.expected.as_ref()?.change_pct.0))),
        ("expected_high_pct", number(|e| Some(e.expected.as_ref()?.change_pct.1))),
        ("expected_met", met.unwrap_or_default()),
        ("verdict", text(|e| e.verdict.as_str())),
        ("set_ups", number(|e| Some(e.n_set_ups? as f64))),
        ("same_pct", number(|e| e.same_pct)),
        ("elsewhere_class", class.unwrap_or_default()),
        ("elsewhere_pairs", other(|e| e.n_pairs as f64)),
        ("elsewhere_change_pct", other(|e| e.change_pct)),
        ("elsewhere_ci95_low_pct", other(|e| e.ci95_pct.0)),
        ("elsewhere_ci95_high_pct", other(|e| e.ci95_pct.1)),
        ("a_at_least", least(0)),
        ("b_at_least", least(1)),
    ]
}

/// Returns every factor that a cell has, by name.
fn factors(run: &Run) -> Vec<&str> {
    let all: BTreeSet<&str> =
        run.cells.iter().flat_map(|cell| cell.at.keys()).map(String::as_str).collect();
    all.into_iter().collect()
}

/// Returns the names of all figures in the windows: the common ones in their order, events and the
/// scenario's by name.
fn figures(run: &Run) -> Vec<String> {
    let all = || run.cells.iter().flat_map(|cell| &cell.pairs).flat_map(windows);
    let common = COMMON.iter().map(|(name, _)| *name);
    let common = common.filter(|name| all().any(|(_, window)| window.figure(name).is_some()));
    let events: BTreeSet<&String> = all().flat_map(|(_, window)| window.pmu.keys()).collect();
    // Leave out a scenario's figure with a common name: formulas use the common figure, too.
    let hidden = |name: &&String| COMMON.iter().any(|(common, _)| common == name);
    let own: BTreeSet<&String> = all().flat_map(|(_, window)| window.figures.keys()).collect();
    let own = own.into_iter().filter(|name| !hidden(name)).cloned();
    common.map(str::to_owned).chain(events.iter().map(|e| format!("pmu.{e}"))).chain(own).collect()
}

/// Returns a pair's windows in the order in which they ran.
fn windows(pair: &PairRecord) -> Vec<(&'static str, &Window)> {
    let control = pair.control.as_ref().map(|control| ("control", control));
    let (a, b) = (("a", &pair.a), ("b", &pair.b));
    match pair.order {
        Order::AB => control.into_iter().chain([a, b]).collect(),
        Order::BA => [b, a].into_iter().chain(control).collect(),
    }
}

fn at<'a>(factors: &'a [&str], cell: &'a CellRecord) -> impl Iterator<Item = String> + 'a {
    factors.iter().map(|factor| cell.at.get(*factor).map(|level| quoted(level)).unwrap_or_default())
}

fn pair_fields(number: usize, side: &str, pair: &PairRecord) -> [String; 8] {
    let order = match pair.order {
        Order::AB => "AB",
        Order::BA => "BA",
    };
    let class = pair.placement.as_ref().map(|placement| placement.class.as_str());
    [
        number.to_string(),
        order.to_owned(),
        side.to_owned(),
        pair.accepted.to_string(),
        pair.cost_accepted.to_string(),
        quoted(pair.reject_reason.as_deref().unwrap_or("")),
        quoted(class.unwrap_or("")),
        pair.set_up.map(|set_up| set_up.to_string()).unwrap_or_default(),
    ]
}

/// Returns what admission saw of a window.
fn seen_fields(window: &Window) -> [String; 4] {
    let count = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    [
        quoted(window.disturbed.as_deref().unwrap_or("")),
        count(window.cpus),
        count(window.foreign_cpu_ns),
        count(window.steal_ticks),
    ]
}

fn number_or_empty(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn line(fields: impl Iterator<Item = String>) -> String {
    fields.collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Status;

    fn run() -> Run {
        let window = |packets| Window { wall_ns: 1000, packets, ..Window::default() };
        let mut b = window(7);
        (b.cpus, b.foreign_cpu_ns, b.steal_ticks) = (Some(2), Some(40), Some(0));
        b.figures.insert("hits, hot".into(), 2.5);
        b.pmu.insert("cycles".into(), crate::window::PmuCount { value: 9, running_pct: 100.0 });
        let pair = PairRecord {
            order: Order::BA,
            a: window(5),
            b,
            control: Some(window(6)),
            cost_accepted: true,
            reject_reason: Some("others, \"cc\", took 4 %".into()),
            set_up: Some(3),
            ..PairRecord::default()
        };
        let effect = Effect {
            unit: "ns".into(),
            a: 5.0,
            b: 7.0,
            change_pct: 40.0,
            ci95_pct: (30.0, 50.0),
            n_pairs: 1,
            p_holm: Some(1.0),
            ..Effect::default()
        };
        let cell = CellRecord {
            at: [("rate".to_owned(), "max".to_owned())].into(),
            pairs: vec![pair],
            metrics: [("cost".to_owned(), effect)].into(),
            ..CellRecord::default()
        };
        let unsupported = CellRecord {
            at: [("rate".to_owned(), "fixed".to_owned())].into(),
            status: Status::Unsupported,
            ..CellRecord::default()
        };
        Run { cells: vec![cell, unsupported], ..crate::analysis::testing::run_of(&[]) }
    }

    #[test]
    fn every_window_has_a_line_in_the_order_in_which_it_ran() {
        let head = "rate,pair,order,side,accepted,cost_accepted,reason,class,set_up,disturbed,\
                    cpus,foreign_cpu_ns,steal_ticks,wall_ns,seconds,run_delay_ns,cost_ns,packets,\
                    pmu.cycles,\"hits, hot\"\n";
        let pair = "false,true,\"others, \"\"cc\"\", took 4 %\",,3,";
        let wall = "1000,0.000001,0,1000";
        let expected = format!(
            "{head}max,1,BA,b,{pair},2,40,0,{wall},7,9,2.5\nmax,1,BA,a,{pair},,,,{wall},5,,\n\
             max,1,BA,control,{pair},,,,{wall},6,,\n"
        );
        assert_eq!(csv(&run()), expected);
    }

    #[test]
    fn every_line_has_as_many_fields_as_the_head() {
        let effects = effects_csv(&run());
        let counts: Vec<usize> = effects.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(counts, [30, 30, 30]);
        let line = "max,ok,cost,ns,,5,7,40,30,50,1,,,,,,1,,,,unclear,,,,,,,,false,false\n";
        assert!(effects.contains(line), "{effects}");
        assert!(effects.contains("fixed,unsupported,,"), "{effects}");
    }

    #[test]
    fn expectation_is_met_or_not_only_if_that_is_certain() {
        let line = |met, certain| {
            let mut run = run();
            let effect = run.cells[0].metrics.get_mut("cost").unwrap();
            let source = "a post".into();
            effect.expected = Some(Expected { change_pct: (10.0, 45.0), source, met, certain });
            (effect.n_set_ups, effect.same_pct) = (Some(8), Some(1.5));
            let class = "near".into();
            let other = Elsewhere { class, n_pairs: 6, change_pct: 3.0, ci95_pct: (2.0, 4.0) };
            effect.elsewhere = Some(other);
            effects_csv(&run)
        };
        for (met, certain, said) in
            [(true, true, "true"), (false, true, "false"), (true, false, "open")]
        {
            let wanted = format!(",10,45,{said},unclear,8,1.5,near,6,3,2,4,false,false\n");
            assert!(line(met, certain).contains(&wanted), "{}", line(met, certain));
        }
    }

    #[test]
    fn a_lower_bound_is_marked_and_a_change_of_nothing_is_empty() {
        let of = |a, b, change_pct, at_least| {
            let mut run = run();
            let effect = run.cells[0].metrics.get_mut("cost").unwrap();
            (effect.a, effect.b, effect.change_pct) = (a, b, change_pct);
            effect.at_least = at_least;
            effects_csv(&run)
        };
        let bound = of(5.0, 7.0, 40.0, [false, true]);
        assert!(bound.contains(",unclear,,,,,,,,false,true\n"), "{bound}");
        let nothing = of(0.0, 0.0, 0.0, [false; 2]);
        assert!(nothing.contains("max,ok,cost,ns,,0,0,,,,1,"), "{nothing}");
    }
}
