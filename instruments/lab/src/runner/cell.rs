//! The life of a cell: its sides are set up, warmed up, run pair by pair until the pairs suffice,
//! profiled and ended; also the estimate of the remaining time.

use std::time::{Duration, Instant};

use linerate_prof::profile::{Profile, Row, Stack, Unit};

use super::unit::{Benches, Left, PlacedBench, Role, order, setup_order};
use super::{Progress, Request, Running};
use crate::analysis::Look;
use crate::experiment::{Cell, Clock, Experiment};
use crate::record::{
    CellEnd, Effect, Ledgers, PairRecord, ProfileRecord, ProfileRow, Status, Total, Warning, title,
    unbalanced,
};
use crate::scenario::{Finished, Scenario};
use crate::settings::wrong;
use crate::{Error, Kind, Result, analysis};

/// The length of a side's profile.
const PROFILE: Duration = Duration::from_secs(2);
/// Length of a profile in a quick run.
const QUICK_PROFILE: Duration = Duration::from_millis(300);
/// Time after which a quick run, which has 60 s, no longer repeats rejected pairs.
const QUICK_AGAIN: Duration = Duration::from_secs(40);

impl Running<'_> {
    /// Runs the unfinished part of `cells`; returns false if it was interrupted.
    pub(super) fn cells(&mut self, cells: &[(usize, &Cell)]) -> Result<bool> {
        for (number, (index, cell)) in cells.iter().enumerate() {
            self.pace.cell(cell);
            if self.state.is_finished(*index) {
                continue;
            }
            if self.observer.interrupted() {
                return Ok(false);
            }
            let place = Place { index: *index, number: number + 1, cells: cells.len(), cell };
            let ran = self.open(*index, cell).and_then(|benches| self.cell(place, benches));
            match ran {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // The user ended the run, and what was waited for failed because of that.
                Err(e) if self.observer.interrupted() => {
                    self.observer.note(&format!("{} was ended: {e}", title(cell)));
                    return Ok(false);
                }
                // Only the first window can show that a scenario is unsupported. After a pair has
                // run, the same error has another cause and ends the run.
                Err(e) if e.kind() == Kind::Unsupported && self.state.pairs(*index).is_empty() => {
                    self.unsupported(place, &e)?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Checks and sets up both sides, and the first side a second time as the control.
    fn open(&self, index: usize, cell: &Cell) -> Result<Benches> {
        let name = &cell.scenario;
        let scenario: &dyn Scenario = self
            .world
            .scenario(name)
            .ok_or_else(|| wrong(0, format!("there is no scenario {name:?}")))?;
        let place = &self.request.place;
        scenario.check(&cell.a, place)?;
        scenario.check(&cell.b, place)?;
        let open = |settings| Ok(PlacedBench::new(scenario.open(settings, place)?, &place.cpus));
        let order = setup_order(self.request.seed, index, self.state.pairs(index).len());
        Benches::open(order, |role| match role {
            Role::A | Role::Control => open(&cell.a),
            Role::B => open(&cell.b),
        })
    }

    /// Runs one cell from its present state to its end; returns false if it was interrupted.
    fn cell(&mut self, place: Place<'_>, mut benches: Benches) -> Result<bool> {
        let Place { index, cell, .. } = place;
        let finished = loop {
            let (outcome, end) = self.session(place, benches)?;
            // Store each session's ledgers, so that an error in a later session does not lose them.
            self.store.cell(&end)?;
            self.state.end(end);
            match outcome {
                Outcome::Complete => break true,
                Outcome::Interrupted => break false,
                Outcome::Reopen => benches = self.open(index, cell)?,
            }
        };
        self.store.sync()?;
        // Only unbalanced ledgers are reported at once; the sides' notes are many and not urgent,
        // and appear in the report.
        for warning in self.state.ledgers(index).into_iter().flat_map(|all| unbalanced(cell, all)) {
            self.observer.note(&format!("{}: {}", warning.code, warning.text));
        }
        Ok(finished)
    }

    /// Runs one session: warms up a set-up, runs its pairs, and ends it.
    fn session(&mut self, place: Place<'_>, mut benches: Benches) -> Result<(Outcome, CellEnd)> {
        let Place { index, cell, .. } = place;
        let plan = &self.request.experiment.plan;
        let before = self.state.pairs(index).len();
        let time = Duration::from_nanos(cell.window_ns(self.request.quick));
        let outcome = if benches.warm_up(plan.warmup, time, self.observer)? {
            self.pairs(place, &mut benches, time)?
        } else {
            Outcome::Interrupted
        };
        let finished = matches!(outcome, Outcome::Complete);
        let mut end = CellEnd { cell: index, finished, ..CellEnd::default() };
        end.pairs = self.state.pairs(index).len().saturating_sub(before);
        if finished && self.request.experiment.profiles {
            self.profiles(cell, &mut benches, &mut end);
        }
        end.take(cell, benches.finish()?);
        Ok((outcome, end))
    }

    /// Runs pairs until they suffice, or until the sides must be set up again.
    fn pairs(
        &mut self,
        place: Place<'_>,
        benches: &mut Benches,
        time: Duration,
    ) -> Result<Outcome> {
        let Place { index, cell, .. } = place;
        let quick = self.request.quick;
        let per = self.request.experiment.pairs_per_set_up(cell, quick).map(|per| per as usize);
        // A pair with its own set-up needs no set-up number.
        let set_up = per.filter(|_| !cell.fresh).map(|_| {
            let before = self.state.pairs(index).last().and_then(|pair| pair.set_up);
            before.map_or(0, |before| before + 1)
        });
        while !self.enough(place) {
            let number = self.state.pairs(index).len();
            let order = order(self.request.seed, index, number);
            let pair = benches.pair(order, time, self.world, self.observer)?;
            let Some(pair) = pair else { return Ok(Outcome::Interrupted) };
            let pair = PairRecord { set_up, ..pair };
            self.store.pair(index, number, &pair)?;
            self.state.pair(index, pair);
            self.pace.pair(cell);
            self.tell(place);
            let is_last = per.is_some_and(|per| (number + 1).is_multiple_of(per));
            if is_last && !self.enough(place) {
                return Ok(Outcome::Reopen);
            }
        }
        Ok(Outcome::Complete)
    }

    /// Returns true if a cell needs no more pairs. The number of admitted pairs decides at any
    /// time, the pairs' results only at the planned looks.
    ///
    /// Apart from the time limit of a quick run, the result depends only on the pairs, so that a
    /// continued run ends at the same pair as an uninterrupted one.
    fn enough(&self, place: Place<'_>) -> bool {
        let pairs = self.state.pairs(place.index);
        let accepted = self.accepted(pairs);
        let wanted = self.looks.last().map_or(0, |last| *last as usize);
        let most = self.request.attempts as usize * wanted;
        if accepted >= wanted || pairs.len() >= most {
            return true;
        }
        if self.request.quick && pairs.len() >= wanted && self.pace.passed() > QUICK_AGAIN {
            return true;
        }
        let is_look = self.looks.iter().any(|look| *look as usize == accepted);
        // If the last pair was rejected, the look at this number of pairs was already made: do not
        // repeat it.
        let ours = self.admitted(pairs);
        let is_new =
            pairs.last().zip(ours.last()).is_some_and(|(one, last)| std::ptr::eq(one, *last));
        let effect = if is_look && is_new { self.effect(place.cell, pairs) } else { None };
        // With fewer set-ups than a verdict needs, do not stop, however narrow the interval is.
        let experiment = &self.request.experiment;
        let needed = analysis::pairs_needed(experiment.family(self.request.quick));
        let narrow =
            |effect: &Effect| analysis::half_width_pct(effect) <= experiment.plan.half_width_pct;
        // A cell that ends while most of its pairs are disturbed is inconclusive: go on to the next
        // look, unless it would be inconclusive even if all further pairs were admitted.
        let is_noisy =
            |more| analysis::stays_disturbed(self.clock(), pairs, self.request.attempts, more);
        let more = (wanted - accepted).min(most - pairs.len());
        let may_change = is_noisy(0) && !is_noisy(more);
        let enough = !may_change && analysis::set_ups(&ours) >= needed;
        enough && effect.is_some_and(|effect| narrow(&effect))
    }

    /// Computes the headline's effect from `pairs`, as of the next look.
    fn effect(&self, cell: &Cell, pairs: &[PairRecord]) -> Option<Effect> {
        let headline = self.request.experiment.headline()?;
        let accepted = self.accepted(pairs);
        let last = self.looks.len().saturating_sub(1);
        let index = self.looks.iter().position(|look| *look as usize >= accepted).unwrap_or(last);
        let family = self.request.experiment.family(self.request.quick);
        let look = Look { index, of: self.looks.len(), family };
        analysis::effect(headline, &cell.at, pairs, look)
    }

    fn accepted(&self, pairs: &[PairRecord]) -> usize {
        self.admitted(pairs).len()
    }

    /// Returns the pairs for the headline's effect: those admitted for its clock, of the most
    /// frequent placement class.
    fn admitted<'p>(&self, pairs: &'p [PairRecord]) -> Vec<&'p PairRecord> {
        analysis::admitted(self.clock(), pairs)
    }

    /// Returns the headline's clock.
    fn clock(&self) -> Clock {
        self.request.experiment.headline().map_or(Clock::Wall, |metric| metric.clock)
    }

    fn tell(&mut self, place: Place<'_>) {
        let Place { index, number, cells, cell } = place;
        let pairs = self.state.pairs(index);
        let (accepted, attempted) = (self.accepted(pairs), pairs.len());
        let effect = self.effect(cell, pairs);
        self.observer.progress(&Progress {
            cell: &cell.name(),
            cell_number: number,
            cells,
            accepted,
            attempted,
            effect: effect.as_ref(),
            left: self.pace.left(cell, accepted),
        });
    }

    fn unsupported(&mut self, place: Place<'_>, e: &Error) -> Result<()> {
        let Place { index, cell, .. } = place;
        let text = format!("{} cannot be run here: {}: {}", title(cell), e.what, e.why);
        self.observer.note(&format!("{}: {text}", e.code));
        let fix = (!e.fix.is_empty()).then(|| e.fix.clone());
        let warnings = vec![Warning { code: e.code.to_string(), text, fix }];
        // Keep the cell unfinished: the run may be continued later with the missing privilege.
        let status = Status::Unsupported;
        let end = CellEnd { cell: index, status, warnings, ..CellEnd::default() };
        self.store.cell(&end)?;
        self.store.sync()?;
        self.state.end(end);
        Ok(())
    }

    /// Profiles both sides. If that fails, the cell stays valid and gets a remark.
    fn profiles(&self, cell: &Cell, benches: &mut Benches, end: &mut CellEnd) {
        let time = if self.request.quick { QUICK_PROFILE } else { PROFILE };
        for (side, placed) in [("a", &mut benches.a), ("b", &mut benches.b)] {
            match placed.bench.profile(time) {
                Ok(profiles) => {
                    let records = profiles.into_iter().map(|one| record(side, &cell.name(), one));
                    end.profiles.extend(records.collect::<Vec<ProfileRecord>>());
                }
                Err(e) => {
                    let text = format!("{}: no profile of side {side}: {e}", title(cell));
                    end.warn("W-PROFILE", text);
                }
            }
        }
    }
}

/// The result of a session: one set-up of both sides and the control.
#[derive(Clone, Copy)]
enum Outcome {
    /// The cell has its pairs.
    Complete,
    /// The cell needs more pairs, with the sides set up again.
    Reopen,
    /// The user ended the run.
    Interrupted,
}

/// A cell, with its progress.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Index of the cell in the experiment's grid, from 0.
    index: usize,
    /// Number of the cell in this run, from 1.
    number: usize,
    /// Number of cells in this run.
    cells: usize,
    cell: &'a Cell,
}

impl CellEnd {
    /// Stores the results of the cell's benches.
    fn take(&mut self, cell: &Cell, left: Left) {
        let Left { a, b, control } = left;
        self.ledger =
            Ledgers { a: a.ledger.clone(), b: b.ledger.clone(), control: Some(control.ledger) };
        for (side, finished) in [("a", a), ("b", b)] {
            self.take_side(cell, side, finished);
        }
        for note in control.notes {
            self.warn("W-NOTE", format!("{}, the control of a: {note}", title(cell)));
        }
    }

    fn take_side(&mut self, cell: &Cell, side: &str, finished: Finished) {
        let under = |name: String| match cell.name() {
            at if at.is_empty() => format!("{side}/{name}"),
            at => format!("{at}/{side}/{name}"),
        };
        self.matrices.extend(finished.matrices.into_iter().map(|(name, m)| (under(name), m)));
        let totals = finished.totals.into_iter().filter(|(_, total)| total.is_finite());
        self.totals.extend(totals.map(|(name, total)| (under(name), Total::of(total))));
        for note in finished.notes {
            self.warn("W-NOTE", format!("{}, side {side}: {note}", title(cell)));
        }
    }

    fn warn(&mut self, code: &str, text: String) {
        self.warnings.push(Warning { code: code.into(), text, fix: None });
    }
}

/// Most rows of a profile that are stored.
const ROWS_MAX: usize = 500;

/// Most bytes of a profile's call chains that are stored: the profiles of both sides are on one
/// line of a file, together with those of a second event.
const STACKS_MAX_BYTES: usize = 512 << 10;

/// The function in whose place the chains that are not stored are counted.
const RARER: &str = "[rarer call chains]";

/// Returns the profile of one side of a cell.
///
/// A function that is not in it was seen fewer times than its cut-off says.
pub(super) fn record(side: &str, cell: &str, mut profile: Profile) -> ProfileRecord {
    profile.sort();
    // Without a cut-off the profile lists every function that was seen.
    let cutoff = profile.cutoff.unwrap_or(1);
    let left_out = profile.rows.get(ROWS_MAX).map_or(0, |row| row.count.saturating_add(1));
    profile.rows.truncate(ROWS_MAX);
    let rows = profile.rows.iter().map(|one| row(&profile, one)).collect();
    ProfileRecord {
        side: side.into(),
        cell: cell.into(),
        event: profile.event.name,
        unit: unit(profile.event.unit).into(),
        packets: profile.conditions.packets.unwrap_or(0),
        cutoff: cutoff.max(left_out),
        remarks: profile.remarks,
        own_cost: profile.own_cost,
        checked: profile.checked,
        stacks: stacks(profile.stacks),
        rows,
    }
}

/// Returns the most frequent call chains that fit into [`STACKS_MAX_BYTES`], and the sum of the
/// others as one chain.
fn stacks(all: Vec<Stack>) -> Vec<Stack> {
    let (mut room, mut kept, mut rarer) = (STACKS_MAX_BYTES, Vec::new(), 0);
    for stack in all {
        // A frame has quotes and a comma beside its name, and a stack two keys and a number.
        let bytes = stack.frames.iter().map(|name| name.len() + 3).sum::<usize>() + 45;
        room = room.saturating_sub(bytes);
        match room {
            0 => rarer += stack.count,
            _ => kept.push(stack),
        }
    }
    let rest = Stack { frames: vec![RARER.into()], count: rarer };
    kept.extend((rarer > 0).then_some(rest));
    kept
}

fn row(profile: &Profile, row: &Row) -> ProfileRow {
    ProfileRow {
        symbol: row.symbol.clone(),
        count: row.count,
        code_bytes: row.code_bytes,
        stage: Some(profile.stage_of(row).as_str().into()),
    }
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Ticks => "ticks",
        Unit::Samples => "samples",
        Unit::Events => "events",
        Unit::Unknown => "unknown",
    }
}

/// Number of windows in a pair: two sides and the control.
const WINDOWS: u64 = 3;

/// The progress of a run in time: the planned windows, the finished windows, and the start time.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    /// Upper bound of the window time planned for the cells after this one.
    later_ns: u64,
    /// Window time so far: a warm-up counts together with the pair after it.
    done_ns: u64,
    /// Number of pairs of this cell that were run.
    ran: u32,
    pairs: u32,
    experiment: Experiment,
    quick: bool,
}

impl Pace {
    /// Creates the pace of a run of `cells`, each up to the last of `looks`.
    pub(super) fn of(cells: &[(usize, &Cell)], request: &Request, looks: &[u32]) -> Pace {
        let (pairs, quick) = (looks.last().copied().unwrap_or(0), request.quick);
        let (began, experiment) = (Instant::now(), request.experiment.clone());
        let mut pace = Pace { began, later_ns: 0, done_ns: 0, ran: 0, pairs, experiment, quick };
        pace.later_ns = cells
            .iter()
            .fold(0, |sum: u64, (_, cell)| sum.saturating_add(pace.window_ns(cell, pairs)));
        pace
    }

    /// Notes that `cell` begins or is skipped, so that it no longer counts as a later cell.
    pub(super) fn cell(&mut self, cell: &Cell) {
        self.later_ns = self.later_ns.saturating_sub(self.window_ns(cell, self.pairs));
        self.ran = 0;
    }

    /// Notes that a pair of `cell` is done.
    pub(super) fn pair(&mut self, cell: &Cell) {
        let before_ns = self.window_ns(cell, self.ran);
        self.ran = self.ran.saturating_add(1);
        let pair_ns = self.window_ns(cell, self.ran).saturating_sub(before_ns);
        self.done_ns = self.done_ns.saturating_add(pair_ns);
    }

    /// Returns the time since the start of the run.
    pub(super) fn passed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns an upper bound of the time left after `accepted` pairs of `cell`; `None` before the
    /// first pair.
    pub(super) fn left(&self, cell: &Cell, accepted: usize) -> Option<Duration> {
        self.left_after(self.began.elapsed(), cell, accepted)
    }

    fn left_after(&self, passed: Duration, cell: &Cell, accepted: usize) -> Option<Duration> {
        // Rejected pairs are run again, so only accepted ones count; the warm-up is not repeated.
        let accepted = u32::try_from(accepted).unwrap_or(u32::MAX);
        let here_ns = self.window_ns(cell, self.pairs);
        let left_ns = here_ns.saturating_sub(self.window_ns(cell, accepted.max(1)));
        let first_ns = if accepted == 0 { self.first_ns(cell) } else { 0 };
        let left_ns = left_ns.saturating_add(first_ns).saturating_add(self.later_ns);
        let done_ns = (self.done_ns > 0).then_some(self.done_ns as f64)?;
        Duration::try_from_secs_f64(passed.as_secs_f64() * left_ns as f64 / done_ns).ok()
    }

    /// Returns the window time of one more pair of `cell`.
    fn first_ns(&self, cell: &Cell) -> u64 {
        self.window_ns(cell, 2).saturating_sub(self.window_ns(cell, 1))
    }

    /// Returns the window time of `pairs` pairs of `cell`, with their warm-up.
    fn window_ns(&self, cell: &Cell, pairs: u32) -> u64 {
        let windows = if pairs == 0 { 0 } else { self.experiment.windows(cell, self.quick, pairs) };
        cell.window_ns(self.quick).saturating_mul(WINDOWS).saturating_mul(windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_prof::profile::{Event, Origin, Space};

    use crate::runner::tests::{grid, request};

    fn profile(counts: std::ops::RangeInclusive<u64>) -> Profile {
        let event =
            Event { name: "cpu-clock".into(), unit: Unit::Samples, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Clock);
        profile.rows = counts.map(|n| Row::new(format!("f{n}"), n)).collect();
        profile
    }

    #[test]
    fn the_largest_rows_are_kept_and_the_cut_off_is_above_the_largest_that_is_not() {
        let state = record("a", "change=both", profile(1..=ROWS_MAX as u64 + 2));
        assert_eq!(state.rows.len(), ROWS_MAX);
        assert_eq!(
            (state.rows[0].count, state.rows[ROWS_MAX - 1].count, state.cutoff),
            (502, 3, 3)
        );
        assert_eq!((state.unit.as_str(), state.cell.as_str()), ("samples", "change=both"));
    }

    #[test]
    fn the_most_frequent_call_chains_are_kept_and_the_others_are_one() {
        let chain = |count: u64| Stack { frames: vec!["f".repeat(1 << 10); 16], count };
        let stored = |all: &[Stack]| {
            record("a", "", Profile { stacks: all.to_vec(), ..profile(1..=1) }).stacks
        };
        let few: Vec<Stack> = (2..=9).rev().map(chain).collect();
        assert_eq!(stored(&few), few);
        let many: Vec<Stack> = (1..=100).rev().map(chain).collect();
        let kept = stored(&many);
        let bytes = serde_json::to_vec(&kept).unwrap().len();
        assert!((STACKS_MAX_BYTES * 9 / 10..STACKS_MAX_BYTES + 100).contains(&bytes), "{bytes}");
        let (rest, kept) = kept.split_last().unwrap();
        assert_eq!(kept, &many[..kept.len()]);
        assert_eq!(rest.frames, [RARER]);
        let total = |all: &[Stack]| all.iter().map(|stack| stack.count).sum::<u64>();
        assert_eq!(total(kept) + rest.count, total(&many));
    }

    #[test]
    fn stage_is_stored_by_the_functions_file_and_by_the_extent_of_the_profile() {
        let row = |name: &str, object: &str, space| Row {
            object: Some(object.into()),
            space,
            ..Row::new(name, 1)
        };
        let mut one = profile(1..=1);
        one.rows = vec![
            row("frobnicate", "[e1000e]", Space::Kernel),
            row("memcpy", "/lib/libc.so.6", Space::User),
            row("memcpy", "[kernel]", Space::Kernel),
        ];
        let mut machine = one.clone();
        machine.conditions.whole_machine = true;
        let stages = |profile: Profile| -> Vec<String> {
            record("a", "", profile).rows.into_iter().filter_map(|row| row.stage).collect()
        };
        assert_eq!(stages(one), ["driver", "copy", "copy"]);
        assert_eq!(stages(machine), ["driver", "user", "copy"]);
    }

    #[test]
    fn uncut_profile_lists_every_function_seen() {
        assert_eq!(record("a", "", profile(1..=2)).cutoff, 1);
        let listing = Profile { cutoff: Some(7), ..profile(7..=9) };
        assert_eq!(record("a", "", listing).cutoff, 7);
    }

    #[test]
    fn remaining_time_is_the_plan_at_the_pace_so_far() {
        let request = request(grid());
        let cells: Vec<(usize, &Cell)> = request.experiment.cells(false).collect();
        let mut pace = Pace::of(&cells, &request, &[4, 10]);
        let one = cells[0].1;
        pace.cell(one);
        assert_eq!(pace.left_after(Duration::from_secs(6), one, 0), None);
        (0..3).for_each(|_| pace.pair(one));
        // Three pairs and their warm-ups took 2 s a window of each side, whatever was planned. Two
        // pairs were accepted: 8 here and 10 for each other cell remain, with their warm-ups.
        let windows = |pairs: u32| request.experiment.windows(one, false, pairs);
        let passed = Duration::from_secs(2 * windows(3));
        let others = cells.len() as u64 - 1;
        let left = Duration::from_secs(2 * (windows(10) - windows(2) + windows(10) * others));
        assert_eq!(pace.left_after(passed, one, 2), Some(left));
        // One pair was rejected, and is run again without a warm-up.
        let left = Duration::from_secs(2 * (windows(10) - windows(1) + 1 + windows(10) * others));
        assert_eq!(pace.left_after(passed, one, 0), Some(left));
    }
}
