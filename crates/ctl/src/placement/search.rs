//! The search: tries places one after the other, and then reads the best of them and the original
//! ones in turn.

use linerate_port::{Code, Result};

use super::Places;
use super::comparison::{Final, in_turn, judge_all};
use super::topology::Topology;

/// Number of readings of the original places before others are tried.
const FLOOR_TIMES: usize = 6;
/// Most places that are compared with the original ones at the end.
const CANDIDATES: usize = 4;
/// Lower limit of the spread, as a share: the precision of clocks and counters.
const FLOOR_LEAST: f64 = 0.01;
/// Gain in rate, as a share, for which one more share of cost is accepted. Workers on two CPUs
/// instead of one have 1.8 times the rate at a cost of 8 % more (docs/placement.md).
const RATE_FOR_COST: f64 = 4.0;

/// The things to place, and the way to measure them.
pub trait Gauge {
    /// Moves each thing to its CPU in `places`, or back to its original CPUs for `None`.
    ///
    /// # Errors
    /// If a thing cannot run on its CPU; the search then skips these places. `E-BUSY` ends it: a
    /// worker does not obey.
    fn place(&mut self, places: &[Option<usize>]) -> Result<()>;

    /// Takes a reading; `None` if too few packets passed.
    ///
    /// # Errors
    /// An error ends the search, which restores the original places.
    fn read(&mut self) -> Result<Option<Reading>>;
}

/// The figures of one reading, each for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "json", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Reading {
    /// The figure that decides: nanoseconds of CPU time, or cycles if the CPU counts them.
    pub cost: f64,
    /// Packets a second: of places with equal cost, the one with the higher rate is better, and so
    /// is a much higher rate at a little more cost.
    pub rate: f64,
    /// Frees on another core than the allocating one.
    pub remote_frees: f64,
    /// Packets passed from one worker to another.
    pub handed_over: f64,
}

impl Reading {
    /// Creates a reading from a cost, a rate, and the shares of remote frees and of packets handed
    /// over.
    #[must_use]
    pub fn new(cost: f64, rate: f64, remote_frees: f64, handed_over: f64) -> Reading {
        Reading { cost, rate, remote_frees, handed_over }
    }

    /// Returns a figure that is less the better the reading is, without a spread: the cost at a
    /// rate to which [`RATE_FOR_COST`] converts.
    fn rank(&self) -> f64 {
        self.cost / self.rate.max(f64::MIN_POSITIVE).powf(1.0 / RATE_FOR_COST)
    }

    /// Returns true if the reading is better than `other` by more than the spread in cost or in
    /// rate, and worse in neither. A higher cost is not worse if the rate gains [`RATE_FOR_COST`]
    /// times as much.
    pub(super) fn is_better(&self, other: &Reading, floor: &Floor) -> bool {
        let (cheaper, dearer) = (1.0 - floor.cost, 1.0 + floor.cost);
        let (slower, faster) = (1.0 - floor.rate, 1.0 + floor.rate);
        let gains = self.cost < other.cost * cheaper || self.rate > other.rate * faster;
        let gain = (self.rate / other.rate - faster).max(0.0);
        let affordable = other.cost * (dearer + gain / RATE_FOR_COST);
        gains && self.cost <= affordable && self.rate >= other.rate * slower
    }
}

/// Places that were tried, with their reading.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Tried {
    /// The places that were tried.
    pub places: Places,
    /// The reading at these places; `None` if it failed, or if too few packets passed.
    pub reading: Option<Reading>,
    /// True if these places were better than all tried before.
    pub kept: bool,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Found {
    /// The final places: the original ones, unless better places were found.
    pub places: Places,
    /// Median of the readings at the original places, taken in turn with those at the new places.
    pub before: Reading,
    /// Median of readings at the new places.
    pub after: Reading,
    /// The spread of the readings at the original places, the distance of their quartiles, as a
    /// share of their median.
    pub floor: f64,
    /// All places that were tried, in order.
    pub tried: Vec<Tried>,
}

/// A search for places.
#[derive(Debug)]
pub struct Search<'a> {
    pub(super) topology: &'a Topology,
    pub(super) things: usize,
    /// The lane of each thing. Things with equal lanes belong together: a worker, and the
    /// interrupts of its queue.
    pub(super) lanes: Vec<usize>,
    pub(super) tries_max: usize,
}

impl<'a> Search<'a> {
    /// Describes a search for places of `things` threads.
    #[must_use]
    pub fn new(topology: &'a Topology, things: usize) -> Search<'a> {
        Search { topology, things, lanes: (0..things).collect(), tries_max: 400 }
    }

    /// Sets the lane of each thing. Things with equal lanes belong together: they are also tried on
    /// one CPU, and on adjacent CPUs. By default each thing has a lane of its own.
    #[must_use]
    pub fn lanes(mut self, lanes: &[usize]) -> Self {
        let lanes = lanes.iter().copied().chain(lanes.len()..);
        self.lanes = lanes.take(self.things).collect();
        self
    }

    /// Sets the most places that the search tries, including those that follow from the topology.
    /// Each takes one reading, and a second one if the first is better than all before. In addition
    /// there are 6 readings of the original places, and 45 for the final comparison. If there are
    /// no more places than this, all are tried.
    #[must_use]
    pub fn tries_max(mut self, most: usize) -> Self {
        self.tries_max = most;
        self
    }

    /// Runs the search. Afterwards everything is at [`Found::places`], or at its original CPUs
    /// after an error. Returns `None` if too few packets passed for a result.
    ///
    /// # Errors
    /// Those of [`Gauge::read`], and of restoring the original places.
    pub fn run(&self, gauge: &mut dyn Gauge) -> Result<Option<Found>> {
        let start: Places = vec![None; self.things];
        let done = self.try_all(&start, gauge);
        if matches!(done, Ok(Some(_))) {
            return done;
        }
        // The error that ended the search comes first.
        let back = gauge.place(&start);
        done.and_then(|found| back.map(|()| found))
    }

    fn try_all(&self, start: &Places, gauge: &mut dyn Gauge) -> Result<Option<Found>> {
        let Some((before, floor)) = at_start(gauge)? else { return Ok(None) };
        let mut state = State { best: start.clone(), reading: before, floor, tried: Vec::new() };
        self.explore(&mut state, gauge)?;
        let readings = in_turn(start, state.candidates(), gauge)?;
        let Final { places, before, after, floor } = judge_all(&readings).unwrap_or(Final {
            places: start.clone(),
            before,
            after: before,
            floor,
        });
        gauge.place(&places)?;
        Ok(Some(Found { places, before, after, floor: floor.cost, tried: state.tried }))
    }

    /// Measures places that follow from the topology; then all others if there are few, else
    /// neighbours of the best ones.
    fn explore(&self, state: &mut State, gauge: &mut dyn Gauge) -> Result<()> {
        let mut all = self.all().peekable();
        let mut helped = self.things > 0 && all.peek().is_none();
        for places in self.proposals().into_iter().chain(all) {
            self.judge(places, state, gauge)?;
        }
        // From the best places so far, try all neighbours, until none is better.
        while helped && state.tried.len() < self.tries_max {
            helped = false;
            for places in self.neighbours(&state.best) {
                // Better places have other neighbours: stop trying those of the previous places.
                helped = self.judge(places, state, gauge)?;
                if helped || state.tried.len() >= self.tries_max {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Measures new places; returns true if they are the best by more than the floor. Does nothing
    /// if they were tried or are the original ones, or if no more may be tried.
    fn judge(&self, places: Places, state: &mut State, gauge: &mut dyn Gauge) -> Result<bool> {
        let is_known = state.tried.iter().any(|tried| tried.places == places);
        let is_start = places.iter().all(Option::is_none);
        if state.tried.len() >= self.tries_max || is_known || is_start {
            return Ok(false);
        }
        let mut reading = match gauge.place(&places) {
            Ok(()) => gauge.read()?,
            // A worker that does not obey now obeys no further order.
            Err(e) if e.code == Code::Busy => return Err(e),
            Err(_) => None,
        };
        let is_better = |reading: &Reading| reading.is_better(&state.reading, &state.floor);
        let mut kept = reading.as_ref().is_some_and(is_better);
        if kept {
            // Read again: among many readings, one may be good by chance.
            reading = gauge.read()?;
            kept = reading.as_ref().is_some_and(is_better);
        }
        if let Some(reading) = reading.filter(|_| kept) {
            (state.best, state.reading) = (places.clone(), reading);
        }
        state.tried.push(Tried { places, reading, kept });
        Ok(kept)
    }
}

struct State {
    best: Places,
    reading: Reading,
    floor: Floor,
    tried: Vec<Tried>,
}

impl State {
    /// Returns the places for the final comparison: the last ones that were better than all before
    /// them, and the best others by single readings. One reading may be wrong in either direction;
    /// the final comparison takes several.
    fn candidates(&self) -> Vec<Places> {
        let rank = |tried: &Tried| Some((tried.places.clone(), tried.reading?.rank()));
        let mut all: Vec<(Places, f64)> = self.tried.iter().filter_map(rank).collect();
        all.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let best = self.tried.iter().rfind(|tried| tried.kept).map(|tried| tried.places.clone());
        let others = all.into_iter().map(|(places, _)| places);
        let others = others.filter(|places| Some(places) != best.as_ref());
        best.iter().cloned().chain(others).take(CANDIDATES).collect()
    }
}

/// The spread of readings of the same places, as shares.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floor {
    pub cost: f64,
    pub rate: f64,
}

impl Floor {
    /// Returns the distance of the quartiles of readings with this median, so that a disturbed
    /// reading does not count.
    pub fn of(readings: &[Reading], middle: &Reading) -> Floor {
        let spread = |of: fn(&Reading) -> f64| {
            let (values, quarter) = (sorted(readings, of), readings.len() / 4);
            let (low, high) = (values[quarter], values[values.len() - 1 - quarter]);
            let share = (high - low) / of(middle);
            if share.is_finite() { share.max(FLOOR_LEAST) } else { FLOOR_LEAST }
        };
        Floor { cost: spread(|reading| reading.cost), rate: spread(|reading| reading.rate) }
    }

    /// Returns the greater spread of each figure.
    pub fn or(&self, other: &Floor) -> Floor {
        Floor { cost: self.cost.max(other.cost), rate: self.rate.max(other.rate) }
    }
}

/// Reads the original places several times; returns the median and the spread.
fn at_start(gauge: &mut dyn Gauge) -> Result<Option<(Reading, Floor)>> {
    let mut readings = Vec::new();
    for _ in 0..FLOOR_TIMES {
        readings.extend(gauge.read()?);
    }
    if readings.len() < FLOOR_TIMES / 2 {
        return Ok(None);
    }
    let middle = median(&readings).filter(|m| m.cost > 0.0);
    Ok(middle.map(|middle| (middle, Floor::of(&readings, &middle))))
}

/// Returns the median of each figure.
pub(super) fn median(readings: &[Reading]) -> Option<Reading> {
    let middle = |of: fn(&Reading) -> f64| sorted(readings, of).get(readings.len() / 2).copied();
    Some(Reading {
        cost: middle(|reading| reading.cost)?,
        rate: middle(|reading| reading.rate)?,
        remote_frees: middle(|reading| reading.remote_frees)?,
        handed_over: middle(|reading| reading.handed_over)?,
    })
}

fn sorted(readings: &[Reading], of: fn(&Reading) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = readings.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values
}
