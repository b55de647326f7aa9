//! Computation of a run from the contents of its directory.
//!
//! A run that ends, one that is interrupted and one that was killed are put together by this code
//! from the same lines.

use std::collections::BTreeMap;

use serde_json::Value;

use super::state::CellState;
use super::{
    CellEnd, CellRecord, Compared, Head, Ledger, Ledgers, PairRecord, QUICK_NOTE, Resumed, Run,
    RunState, SCHEMA, Status, Total, Warning,
};
use crate::compare::deciding;
use crate::experiment::{Cell, Clock, Experiment, Factor, Plan};
use crate::scenario::named;
use crate::{Code, Error, Result, analysis};

/// The warning of a ledger that does not balance.
const UNBALANCED: &str = "W-LEDGER";

/// The warning of a run that was resumed in another environment or by another build.
const RESUMED: &str = "W-MACHINE";

/// The words of that warning's text if the build differs.
const BY_BUILD: &str = "by another build";

impl RunState {
    /// Returns the run with all computed results.
    pub(crate) fn run(
        &self,
        experiment: &Experiment,
        finished: String,
        after: Option<&Value>,
        complete: bool,
    ) -> Result<Run> {
        let mut run = Run {
            schema: SCHEMA.into(),
            run: self.head(experiment, finished, complete),
            env: before_and_after(&self.request.env, after),
            experiment: compared(experiment, self.request.quick),
            verdict: "inconclusive".into(),
            warnings: self.warnings.clone(),
            ..Run::default()
        };
        run.warnings.extend(self.resumed.iter().flat_map(|later| {
            moved(&self.request.env, later).chain(rebuilt(&self.request.tool, later))
        }));
        for (index, state) in &self.cells {
            let cell = experiment.cells.get(*index).ok_or_else(|| {
                let why = format!("it has pairs of cell {index}, of {}", experiment.cells.len());
                Error::new(Code::Run, format!("cannot use run {}", self.request.id), why)
            })?;
            state.add_to(&mut run, cell, self.request.attempts);
        }
        analyse_conserved(experiment, &mut run);
        for (index, state) in &self.cells {
            let (Some(cell), Some(end)) = (experiment.cells.get(*index), &state.end) else {
                continue;
            };
            run.warnings.extend(unbalanced(cell, &end.ledger));
        }
        Ok(run)
    }

    /// Numbers the set-ups of pairs that an older version stored without a number, so that the
    /// pairs of a continued run have other numbers.
    pub(crate) fn know_set_ups(&mut self, experiment: &Experiment) {
        for (index, state) in &mut self.cells {
            if let Some(cell) = experiment.cells.get(*index) {
                know_set_ups(cell, &mut state.pairs);
            }
        }
    }

    /// Returns a run's head, the part without cells.
    pub(super) fn head(&self, experiment: &Experiment, finished: String, complete: bool) -> Head {
        let request = &self.request;
        let quick = request.quick.then(|| QUICK_NOTE.to_owned());
        let warmup = experiment.plan.warmup.max(1);
        let warmup = format!("{warmup} warm-up windows of each side were discarded in each set-up");
        let note: Vec<String> =
            request.note.clone().into_iter().chain(quick).chain([warmup]).collect();
        Head {
            id: request.id.clone(),
            started: request.started.clone(),
            finished,
            tool: request.tool.clone(),
            argv: request.argv.clone(),
            seed: request.seed,
            complete,
            note: Some(note.join("; ")),
            config_toml: Some(self.toml.clone()),
        }
    }
}

impl CellState {
    fn add_to(&self, run: &mut Run, cell: &Cell, attempts: u32) {
        let end = self.end.clone().unwrap_or_default();
        if self.pairs.len() > end.pairs {
            run.warnings.push(Warning {
                code: "W-LEDGER-LOST".into(),
                text: format!(
                    "{}: {} of {} pairs are in no ledger, since their run failed or was killed",
                    title(cell),
                    self.pairs.len() - end.pairs,
                    self.pairs.len()
                ),
                fix: None,
            });
        }
        let mut pairs = self.pairs.clone();
        know_set_ups(cell, &mut pairs);
        run.cells.push(CellRecord {
            at: cell.at.iter().cloned().collect(),
            status: end.status,
            pairs,
            attempts: (attempts != Plan::ATTEMPTS).then_some(attempts),
            is_unfinished: !end.finished && end.status == Status::Ok,
            metrics: BTreeMap::new(),
            ledger: end.ledger,
        });
        run.profiles.extend(end.profiles);
        run.matrices.extend(end.matrices);
        run.totals.extend(end.totals.into_iter().map(|(name, total)| (name, total.mean)));
        run.warnings.extend(end.warnings);
    }
}

/// Marks the first pairs of `cell` as sharing one set-up if its sides lived longer than a pair and
/// no set-up is recorded, as in runs of older versions. If a newer version continued such a run and
/// began with the same number, later numbers are raised by one.
pub(super) fn know_set_ups(cell: &Cell, pairs: &mut [PairRecord]) {
    let outlive = !cell.fresh && named(&cell.scenario).is_none_or(|one| !one.sets_up_each_window());
    let unknown = pairs.iter().take_while(|pair| pair.set_up.is_none()).count();
    if !outlive || unknown == 0 {
        return;
    }
    let (old, new) = pairs.split_at_mut(unknown);
    old.iter_mut().for_each(|pair| pair.set_up = Some(0));
    if new.first().is_some_and(|pair| pair.set_up == Some(0)) {
        let numbers = new.iter_mut().filter_map(|pair| pair.set_up.as_mut());
        numbers.for_each(|number| *number = number.saturating_add(1));
    }
}

/// Returns the name of a cell for a sentence.
pub(crate) fn title(cell: &Cell) -> String {
    if cell.at.is_empty() { "the only cell".into() } else { cell.name() }
}

/// Analyses the cells whose packets are all accounted for. The other cells keep their pairs and get
/// no results.
fn analyse_conserved(experiment: &Experiment, run: &mut Run) {
    let mut aside = Vec::new();
    for (index, cell) in run.cells.iter_mut().enumerate() {
        if !cell.ledger.balanced() {
            aside.push((index, std::mem::take(&mut cell.pairs)));
        }
    }
    analysis::analyse(experiment, run);
    for (index, pairs) in aside {
        let cell = &mut run.cells[index];
        cell.pairs = pairs;
        cell.metrics.clear();
        cell.status = Status::Inconclusive;
    }
}

/// Returns a warning for each ledger of a cell that does not balance, with its sums and with the
/// packets that were left.
pub(crate) fn unbalanced(cell: &Cell, ledgers: &Ledgers) -> Vec<Warning> {
    let all = [("side a", Some(&ledgers.a)), ("side b", Some(&ledgers.b))];
    let all = all.into_iter().chain([("the control of a", ledgers.control.as_ref())]);
    let all = all.filter_map(|(side, ledger)| Some((side, ledger.filter(|one| !one.balanced)?)));
    all.map(|(side, ledger)| {
        let total = |counts: &[u64]| counts.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let dropped = ledger.dropped.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let came = total(&[ledger.received, ledger.created]);
        let went = total(&[ledger.sent, ledger.consumed, dropped, ledger.in_flight]);
        let left = match ledger.in_flight {
            0 => String::new(),
            n => format!("; {n} packets still in flight after the drain"),
        };
        let text = format!(
            "{}: packets of {side} are not accounted for, and the cell's results are withheld: \
             received {} + created {} {} sent {} + consumed {} + dropped {dropped} \
             + in flight {}{left}",
            title(cell),
            ledger.received,
            ledger.created,
            if came == went { "=" } else { "≠" },
            ledger.sent,
            ledger.consumed,
            ledger.in_flight
        );
        Warning { code: UNBALANCED.into(), text, fix: None }
    })
    .collect()
}

fn compared(experiment: &Experiment, quick: bool) -> Compared {
    let levels = |factor: &Factor| {
        (factor.name.clone(), factor.levels.iter().map(|level| level.name.clone()).collect())
    };
    Compared {
        id: experiment.id.clone(),
        seed_post: experiment.post.clone().unwrap_or_default(),
        a: experiment.a.name.clone(),
        b: experiment.b.name.clone(),
        factors: experiment.factors.iter().map(levels).collect(),
        quick,
        definitions: experiment
            .metrics
            .iter()
            .map(|metric| (metric.name.clone(), metric.about.clone()))
            .collect(),
    }
}

fn before_and_after(before: &Value, after: Option<&Value>) -> Value {
    let mut env = match before {
        Value::Object(env) => env.clone(),
        _ => serde_json::Map::new(),
    };
    if let Some(Value::Object(after)) = after {
        let changed = after.iter().filter(|(name, value)| env.get(*name) != Some(value));
        let changed = changed.map(|(name, value)| (name.clone(), value.clone())).collect();
        env.insert("after".into(), Value::Object(changed));
    }
    Value::Object(env)
}

/// Returns a warning for each property of the machine that must be equal in two parts of a run and
/// differs.
fn moved<'a>(first: &'a Value, later: &'a Resumed) -> impl Iterator<Item = Warning> + 'a {
    deciding(first, &later.env).map(move |(name, was, is)| Warning {
        code: RESUMED.into(),
        text: format!(
            "resumed at {} on a machine that differs: {name} {was}, now {is}",
            later.started
        ),
        fix: Some("run the experiment again from the start".into()),
    })
}

/// Returns a warning if another build of the program resumed the run: the program's own
/// measurements then come from two programs.
fn rebuilt(first: &BTreeMap<String, String>, later: &Resumed) -> Option<Warning> {
    let differing = ["build_id", "commit", "rustc", "target_cpu"].into_iter().filter_map(|name| {
        let (was, is) = (first.get(name)?, later.tool.get(name)?);
        (was != is).then(|| format!("{name} {was}, now {is}"))
    });
    let differing: Vec<String> = differing.collect();
    (!differing.is_empty()).then(|| Warning {
        code: RESUMED.into(),
        text: format!("resumed at {} {BY_BUILD}: {}", later.started, differing.join("; ")),
        fix: Some("run the experiment again from the start".into()),
    })
}

/// Returns the parts of a run whose windows make values of `clock` those of two programs or
/// environments; `None` if there are none. Counts do not depend on the environment.
pub(crate) fn resumed_parts(run: &Run, clock: Clock) -> Option<&'static str> {
    let resumed = || run.warnings.iter().filter(|warning| warning.code == RESUMED);
    if resumed().any(|warning| warning.text.contains(BY_BUILD)) {
        return Some("two builds");
    }
    (clock != Clock::Count && resumed().next().is_some()).then_some("two environments")
}

impl CellEnd {
    /// Merges the results of a cell that ran in two parts: ledgers and matrices are added, totals
    /// are averaged over the sides' lives, and other values are taken from the later part. Notes of
    /// both parts appear once.
    pub(crate) fn and(self, later: CellEnd) -> CellEnd {
        // A part in which the cell did not run has counted nothing: unknown is not 0.
        let is_empty = |part: &CellEnd| {
            part.status == Status::Unsupported && part.ledger == Ledgers::default()
        };
        let (earlier_is_empty, later_is_empty) = (is_empty(&self), is_empty(&later));
        let mut matrices = self.matrices;
        for (name, matrix) in later.matrices {
            let sum = matrices.remove(&name).map_or(matrix.clone(), |one| added(one, matrix));
            matrices.insert(name, sum);
        }
        let mut totals = self.totals;
        for (name, total) in later.totals {
            totals.entry(name).and_modify(|one| *one = one.and(total)).or_insert(total);
        }
        let earlier_ledger = self.ledger.clone();
        let ledger = Ledgers {
            a: self.ledger.a.and(&later.ledger.a),
            b: self.ledger.b.and(&later.ledger.b),
            control: both(self.ledger.control, later.ledger.control.clone(), |a, b| a.and(&b)),
        };
        let ledger = match (earlier_is_empty, later_is_empty) {
            (true, _) => later.ledger.clone(),
            (false, true) => earlier_ledger,
            (false, false) => ledger,
        };
        // If an earlier part of the run could not run the cell and this part could, drop the
        // warning with the earlier reason.
        let earlier = self.warnings.into_iter().filter(|_| self.status != Status::Unsupported);
        let mut warnings: Vec<Warning> = earlier.collect();
        let new = later.warnings.into_iter().filter(|one| !warnings.contains(one));
        let new: Vec<Warning> = new.collect();
        warnings.extend(new);
        let pairs = self.pairs.saturating_add(later.pairs);
        CellEnd { matrices, totals, ledger, warnings, pairs, ..later }
    }
}

impl Total {
    /// Creates the total of one life of a side.
    pub(crate) fn of(value: f64) -> Total {
        Total { mean: value, lives: 1 }
    }

    fn and(self, later: Total) -> Total {
        let lives = self.lives.saturating_add(later.lives).max(1);
        let mean = self.mean + (later.mean - self.mean) * (later.lives as f64 / lives as f64);
        Total { mean, lives }
    }
}

impl Ledger {
    /// Returns the sum of both ledgers. A count is unknown if one of them lacks it.
    pub(crate) fn and(&self, later: &Ledger) -> Ledger {
        let sum = |a: Option<u64>, b| both(a, b, u64::saturating_add);
        let mut dropped = self.dropped.clone();
        for (reason, n) in &later.dropped {
            let sum = dropped.entry(reason.clone()).or_default();
            *sum = sum.saturating_add(*n);
        }
        Ledger {
            offered: sum(self.offered, later.offered),
            unsent: sum(self.unsent, later.unsent),
            received: self.received.saturating_add(later.received),
            created: self.created.saturating_add(later.created),
            sent: self.sent.saturating_add(later.sent),
            consumed: self.consumed.saturating_add(later.consumed),
            dropped,
            in_flight: self.in_flight.saturating_add(later.in_flight),
            reordered: sum(self.reordered, later.reordered),
            duplicated: sum(self.duplicated, later.duplicated),
            retransmitted: sum(self.retransmitted, later.retransmitted),
            balanced: self.balanced && later.balanced,
        }
    }
}

fn both<T>(a: Option<T>, b: Option<T>, sum: impl Fn(T, T) -> T) -> Option<T> {
    Some(sum(a?, b?))
}

fn added(mut a: Vec<Vec<u64>>, b: Vec<Vec<u64>>) -> Vec<Vec<u64>> {
    let shape = |m: &[Vec<u64>]| m.iter().map(Vec::len).collect::<Vec<_>>();
    if shape(&a) != shape(&b) {
        return b;
    }
    for (x, y) in a.iter_mut().flatten().zip(b.iter().flatten()) {
        *x = x.saturating_add(*y);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::builtin;
    use serde_json::json;

    fn later(env: Value, build_id: &str) -> Resumed {
        let tool = [("build_id".to_owned(), build_id.to_owned())].into();
        Resumed { started: "later".into(), argv: Vec::new(), tool, env }
    }

    #[test]
    fn another_microcode_or_build_is_told_with_both() {
        let first = json!({"kernel": "6.18", "microcode": "0x1", "clocksource": "tsc"});
        let now = json!({"kernel": "6.18", "microcode": "0x2", "clocksource": "tsc"});
        let told: Vec<String> =
            moved(&first, &later(now, "ab")).map(|warning| warning.text).collect();
        let expected = "resumed at later on a machine that differs: microcode 0x1, now 0x2";
        assert_eq!(told, [expected]);
        let built = [("build_id".to_owned(), "ab".to_owned())].into();
        assert_eq!(rebuilt(&built, &later(Value::Null, "ab")), None);
        let told = rebuilt(&built, &later(Value::Null, "cd")).unwrap().text;
        assert_eq!(told, "resumed at later by another build: build_id ab, now cd");
        let old: Resumed =
            serde_json::from_str(r#"{"started": "then", "argv": [], "env": {}}"#).unwrap();
        assert_eq!(rebuilt(&built, &old), None, "a line that does not say");
    }

    #[test]
    fn a_property_that_comparisons_need_is_told_also_if_one_part_lacks_it() {
        let first = json!({"cmdline": "nosmt", "mitigations": {"mds": "off", "spec": "on"}});
        let now = json!({"governor": "performance", "mitigations": {"mds": "on", "spec": "on"}});
        let told: Vec<String> =
            moved(&first, &later(now, "ab")).map(|warning| warning.text).collect();
        let expected = [
            "cmdline nosmt, now n/a",
            "governor n/a, now performance",
            "mitigations {\"mds\":\"off\"}, now {\"mds\":\"on\"}",
        ];
        let front = "resumed at later on a machine that differs: ";
        assert_eq!(told, expected.map(|text| format!("{front}{text}")));
    }

    fn end(dropped: &[(&str, u64)], matrix: &[Vec<u64>], late: Option<u64>) -> CellEnd {
        let dropped = dropped.iter().map(|(reason, n)| ((*reason).to_owned(), *n)).collect();
        let a = Ledger { received: u64::MAX - 5, dropped, reordered: late, ..Ledger::default() };
        let matrices = [("free_matrix".to_owned(), matrix.to_vec())].into();
        CellEnd { ledger: Ledgers { a, ..Ledgers::default() }, matrices, ..CellEnd::default() }
    }

    #[test]
    fn sums_hold_their_bounds_and_what_one_part_does_not_know_is_unknown() {
        let one = end(&[("ring_full", 3)], &[vec![1, 2]], Some(1));
        let other = end(&[("ring_full", 4), ("no_frame", 1)], &[vec![10, 20]], None);
        let both = one.and(other);
        let a = &both.ledger.a;
        assert_eq!((a.received, a.reordered, a.balanced), (u64::MAX, None, true));
        assert_eq!((a.dropped["ring_full"], a.dropped["no_frame"]), (7, 1));
        assert_eq!(both.matrices["free_matrix"], [[11, 22]]);
    }

    #[test]
    fn packets_that_were_left_are_told_beside_sums_that_are_equal() {
        let mut cell = builtin("skbinit").unwrap().cells.remove(0);
        cell.at.clear();
        let counts = Ledger { created: 5, consumed: 2, in_flight: 3, ..Ledger::default() };
        let a = Ledger { balanced: false, ..counts };
        let told = unbalanced(&cell, &Ledgers { a, ..Ledgers::default() });
        let text = "the only cell: packets of side a are not accounted for, and the cell's results \
                    are withheld: received 0 + created 5 = sent 0 + consumed 2 + dropped 0 \
                    + in flight 3; 3 packets still in flight after the drain";
        assert_eq!((told.len(), told[0].text.as_str()), (1, text));
    }

    #[test]
    fn totals_are_means_of_every_time_that_a_side_was_set_up() {
        let end = |frees: f64| CellEnd {
            totals: [("frees".to_owned(), Total::of(frees))].into(),
            ..CellEnd::default()
        };
        let three = end(10.0).and(end(20.0)).and(end(60.0));
        assert_eq!(three.totals["frees"], Total { mean: 30.0, lives: 3 });
        let six = three.and(end(0.0).and(end(0.0)).and(end(0.0)));
        assert_eq!(six.totals["frees"], Total { mean: 15.0, lives: 6 });
        assert_eq!(end(7.0).and(CellEnd::default()).totals["frees"], Total::of(7.0));
    }

    #[test]
    fn matrices_of_different_shapes_are_not_added_and_an_imbalance_stays_one() {
        let mut one = end(&[], &[vec![1, 2]], None);
        one.ledger.a.balanced = false;
        let both = one.and(end(&[], &[vec![5]], None));
        assert_eq!(both.matrices["free_matrix"], [[5]]);
        assert!(!both.ledger.balanced());
    }

    #[test]
    fn a_part_that_could_not_run_the_cell_makes_no_count_of_the_other_unknown() {
        let could_not = CellEnd { status: Status::Unsupported, ..CellEnd::default() };
        let ran = end(&[("ring_full", 3)], &[], Some(2));
        for both in [could_not.clone().and(ran.clone()), ran.clone().and(could_not)] {
            assert_eq!(both.ledger, ran.ledger);
        }
    }

    #[test]
    fn a_cell_that_cannot_be_run_here_is_not_one_that_was_cut_off() {
        let cell = builtin("skbinit").unwrap().cells.remove(0);
        let is_unfinished = |status, finished| {
            let end = Some(CellEnd { status, finished, ..CellEnd::default() });
            let mut run = Run::default();
            CellState { pairs: Vec::new(), end }.add_to(&mut run, &cell, Plan::ATTEMPTS);
            run.cells[0].is_unfinished
        };
        assert!(is_unfinished(Status::Ok, false) && !is_unfinished(Status::Ok, true));
        assert!(!is_unfinished(Status::Unsupported, false));
    }

    #[test]
    fn pairs_of_an_older_version_share_one_set_up_which_no_later_pair_has() {
        let mut cell = builtin("skbinit").unwrap().cells.remove(0);
        cell.fresh = false;
        let of = |set_up| PairRecord { set_up, ..PairRecord::default() };
        let known = |later: &[u32]| {
            let old = vec![of(None); 14].into_iter();
            let mut pairs: Vec<PairRecord> =
                old.chain(later.iter().map(|set_up| of(Some(*set_up)))).collect();
            know_set_ups(&cell, &mut pairs);
            let once = pairs.clone();
            know_set_ups(&cell, &mut pairs);
            assert_eq!(pairs, once);
            let numbers: Vec<_> = pairs[13..].iter().map(|pair| pair.set_up.unwrap()).collect();
            (analysis::set_ups(&pairs.iter().collect::<Vec<_>>()), numbers)
        };
        assert_eq!(known(&[]), (1, vec![0]));
        assert_eq!(known(&[0]), (2, vec![0, 1]));
        assert_eq!(known(&[0, 0, 1]), (3, vec![0, 1, 1, 2]));
        assert_eq!(known(&[1, 2]), (3, vec![0, 1, 2]), "as it is continued now");
    }

    #[test]
    fn the_environment_afterwards_has_only_what_changed() {
        let before = json!({"kernel": "6.18", "governor": "powersave"});
        let after = json!({"kernel": "6.18", "governor": "performance", "thp": "never"});
        let changed = json!({"governor": "performance", "thp": "never"});
        let both = before_and_after(&before, Some(&after));
        let expected = json!({"kernel": "6.18", "governor": "powersave", "after": changed});
        assert_eq!(both, expected);
        assert_eq!(before_and_after(&before, None), before);
    }

    #[test]
    fn warnings_of_two_parts_of_a_cell_appear_once_and_those_of_a_part_that_could_not_run_it_never()
    {
        let part = |status, texts: &[&str]| {
            let warning = |text: &&str| Warning {
                code: "W-NOTE".into(),
                text: (*text).to_owned(),
                fix: None,
            };
            let warnings = texts.iter().map(warning).collect();
            CellEnd { status, warnings, ..CellEnd::default() }
        };
        let told = |one: CellEnd, other: CellEnd| -> Vec<String> {
            one.and(other).warnings.into_iter().map(|warning| warning.text).collect()
        };
        let later = || part(Status::Ok, &["a", "b"]);
        assert_eq!(told(part(Status::Ok, &["c", "a"]), later()), ["c", "a", "b"]);
        assert_eq!(told(part(Status::Unsupported, &["no privilege"]), later()), ["a", "b"]);
    }
}
