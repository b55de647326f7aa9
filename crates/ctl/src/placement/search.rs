//! The search: tries places one after the other, and compares them with the spread of repeated
//! readings of the original places.

use linerate_port::{Code, Result};

use super::Places;
use super::topology::Topology;

/// Number of readings of the original places, whose spread is the smallest difference that counts.
const FLOOR_TIMES: usize = 6;
/// Number of readings of the original and of the best places for the final comparison.
const CONFIRM_TIMES: usize = 5;
/// Lower limit of the spread, as a share: the precision of clocks and counters.
const FLOOR_LEAST: f64 = 0.01;
/// Gain in rate, as a share, for which one more share of cost is accepted. Workers on two CPUs instead of one have 1.8
/// times the rate at a cost of 8 % more (docs/placement.md).
const RATE_FOR_COST: f64 = 4.0;

/// The things to place, and the way to measure them.
pub trait Gauge {
    /// Moves each thing to its CPU in `places`, or back to its original CPUs for `None`.
    ///
    /// # Errors
    /// If a thing cannot run on its CPU; the search then skips these places. `E-BUSY` ends it: a worker does not obey.
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
    /// Packets a second: of places with equal cost, the one with the higher rate is better, and so is a much higher
    /// rate at a little more cost.
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

    /// Returns true if the reading is better than `other` by more than the spread in cost or in
    /// rate, and worse in neither. A higher cost is not worse if the rate gains [`RATE_FOR_COST`] times as much.
    fn is_better(&self, other: &Reading, floor: &Floor) -> bool {
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
    /// The spread of the readings at the original places, as a share of their median.
    pub floor: f64,
    /// All places that were tried, in order.
    pub tried: Vec<Tried>,
}

/// A search for places.
#[derive(Debug)]
pub struct Search<'a> {
    topology: &'a Topology,
    things: usize,
    /// The lane of each thing. Things with equal lanes belong together: a worker, and the
    /// interrupts of its queue.
    lanes: Vec<usize>,
    tries_max: usize,
}

impl<'a> Search<'a> {
    /// Describes a search for places of `things` threads.
    #[must_use]
    pub fn new(topology: &'a Topology, things: usize) -> Search<'a> {
        Search { topology, things, lanes: (0..things).collect(), tries_max: 400 }
    }

    /// Sets the lane of each thing. Things with equal lanes belong together: they are also tried on one CPU, and on
    /// adjacent CPUs. By default each thing has a lane of its own.
    #[must_use]
    pub fn lanes(mut self, lanes: &[usize]) -> Self {
        let lanes = lanes.iter().copied().chain(lanes.len()..);
        self.lanes = lanes.take(self.things).collect();
        self
    }

    /// Sets the most places that the search tries, including those that follow from the topology. Each takes one
    /// reading, and a second one if the first is better than all before. In addition there are 6 readings of the
    /// original places, and 10 for the final comparison.
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
        let Some((before, floor)) = floor(gauge)? else { return Ok(None) };
        let mut state = State { best: start.clone(), reading: before, floor, tried: Vec::new() };
        for places in self.proposals() {
            if state.tried.len() >= self.tries_max {
                break;
            }
            self.judge(places, &mut state, gauge)?;
        }
        // From the best places so far, try all neighbours, until none is better.
        let mut helped = self.things > 0;
        while helped && state.tried.len() < self.tries_max {
            helped = false;
            for places in self.neighbours(&state.best) {
                if state.tried.len() >= self.tries_max {
                    break;
                }
                // Better places have other neighbours: stop trying those of the previous places.
                helped = self.judge(places, &mut state, gauge)?;
                if helped {
                    break;
                }
            }
        }
        let State { best, floor, tried, .. } = state;
        // Final comparison: read both places in turn, so that a change of load affects both.
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..if best == *start { 0 } else { CONFIRM_TIMES } {
            for (places, readings) in [(start, &mut a), (&best, &mut b)] {
                gauge.place(places)?;
                readings.extend(gauge.read()?);
            }
        }
        let before = median(&a).unwrap_or(before);
        let is_better = |after: &Reading| after.is_better(&before, &floor);
        let (places, after) = match median(&b).filter(is_better) {
            Some(after) => (best, after),
            None => (start.clone(), before),
        };
        gauge.place(&places)?;
        Ok(Some(Found { places, before, after, floor: floor.cost, tried }))
    }

    /// Measures new places; returns true if they are the best by more than the floor.
    fn judge(&self, places: Places, state: &mut State, gauge: &mut dyn Gauge) -> Result<bool> {
        if state.tried.iter().any(|tried| tried.places == places) || places == state.best {
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

    /// Returns places that follow from the topology alone: near each other, apart, in pairs of siblings, all on one
    /// CPU, and things of one lane on adjacent CPUs.
    fn proposals(&self) -> Vec<Places> {
        let at = |cpus: &[usize], i: usize| cpus.get(i % cpus.len().max(1)).copied();
        let deal = |cpus: &[usize]| -> Places { self.lanes.iter().map(|i| at(cpus, *i)).collect() };
        let (near, apart) = (self.topology.order(false), self.topology.order(true));
        let mut siblings: Vec<_> = self.topology.cpus().to_vec();
        siblings.sort_by_key(|cpu| (u32::MAX - cpu.capacity, cpu.socket, cpu.core, cpu.number));
        let siblings: Vec<usize> = siblings.into_iter().map(|cpu| cpu.number).collect();
        let halves = self.lanes.iter().map(|i| at(&near, i / 2)).collect();
        let mut all = vec![
            deal(&near),
            deal(&apart),
            deal(&siblings),
            halves,
            deal(near.get(..1).unwrap_or_default()),
        ];
        // Sort the things by lane and give them consecutive CPUs, so that things of one lane are on
        // adjacent CPUs.
        let before = |i: usize| {
            let rank = |i: usize| (self.lanes[i], i);
            (0..self.things).filter(|other| rank(*other) < rank(i)).count()
        };
        all.insert(1, (0..self.things).map(|i| at(&near, before(i))).collect());
        all
    }

    /// Returns the neighbours of `places`: one thing on another CPU, two things exchanged, or two things moved
    /// together. With many things and CPUs the search tries only the first of them.
    fn neighbours(&self, places: &Places) -> impl Iterator<Item = Places> + use<> {
        let (cpus, things, places) = (self.topology.order(false), self.things, places.clone());
        let moved = move |places: &Places, to: &[(usize, usize)]| {
            let mut moved = places.clone();
            to.iter().for_each(|(thing, cpu)| moved[*thing] = Some(*cpu));
            moved
        };
        let (start, of_pairs, all) = (places.clone(), places, cpus.clone());
        let near = (0..things).flat_map(move |i| {
            let (one, two) = (start.clone(), start.clone());
            let alone = cpus.clone().into_iter().map(move |cpu| moved(&one, &[(i, cpu)]));
            let swapped = (i + 1..things).map(move |j| {
                let mut swapped = two.clone();
                swapped.swap(i, j);
                swapped
            });
            alone.chain(swapped)
        });
        // Both things on one CPU, or on two adjacent CPUs: such a pair may be better although
        // neither move alone is.
        let pairs = (0..things).flat_map(move |i| (i + 1..things).map(move |j| (i, j)));
        let together = pairs.flat_map(move |(i, j)| {
            let (places, cpus) = (of_pairs.clone(), all.clone());
            (0..2 * cpus.len()).map(move |n| {
                let (cpu, other) = (cpus[n / 2], cpus[(n / 2 + n % 2) % cpus.len()]);
                moved(&places, &[(i, cpu), (j, other)])
            })
        });
        near.chain(together)
    }
}

struct State {
    best: Places,
    reading: Reading,
    floor: Floor,
    tried: Vec<Tried>,
}

/// The spread of the readings at the original places, as shares.
#[derive(Debug, Clone, Copy)]
struct Floor {
    cost: f64,
    rate: f64,
}

/// Reads the original places several times; returns the median and the spread.
fn floor(gauge: &mut dyn Gauge) -> Result<Option<(Reading, Floor)>> {
    let mut readings = Vec::new();
    for _ in 0..FLOOR_TIMES {
        readings.extend(gauge.read()?);
    }
    if readings.len() < FLOOR_TIMES / 2 {
        return Ok(None);
    }
    let Some(middle) = median(&readings).filter(|m| m.cost > 0.0) else { return Ok(None) };
    let spread = |of: fn(&Reading) -> f64| {
        let values = || readings.iter().map(of);
        let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
        let share = (high - low) / of(&middle);
        if share.is_finite() { share.max(FLOOR_LEAST) } else { FLOOR_LEAST }
    };
    let floor =
        Floor { cost: spread(|reading| reading.cost), rate: spread(|reading| reading.rate) };
    Ok(Some((middle, floor)))
}

fn median(readings: &[Reading]) -> Option<Reading> {
    let mut readings = readings.to_vec();
    readings.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    readings.get(readings.len() / 2).copied()
}
