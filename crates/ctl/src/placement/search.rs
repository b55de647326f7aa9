//! The search: tries places one after the other, and judges them by the spread of repeated readings
//! at the start.

use linerate_port::Result;

use super::Places;
use super::topology::Topology;

/// Readings of the start, whose spread is the floor for differences.
const FLOOR_TIMES: usize = 6;
/// Readings of each side for the final comparison.
const CONFIRM_TIMES: usize = 5;
/// Lowest floor, as a share: the precision of clocks and counters.
const FLOOR_LEAST: f64 = 0.01;

/// The things to place, and the way to measure them.
pub trait Gauge {
    /// Moves each thing to its chosen CPU, or back to where it was found.
    ///
    /// # Errors
    /// A thing that cannot run there: the places are left out.
    fn place(&mut self, places: &[Option<usize>]) -> Result<()>;

    /// Takes a reading; `None` if too few packets passed.
    ///
    /// # Errors
    /// What ends the search: it is over, and the start is put back.
    fn read(&mut self) -> Result<Option<Reading>>;
}

/// A reading, for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "json", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Reading {
    /// The deciding figure: nanoseconds of CPU, or cycles if the CPU counts them.
    pub cost: f64,
    /// Packets a second: among places of equal cost, a higher rate is better.
    pub rate: f64,
    /// Frees on another core than the allocating one.
    pub remote_frees: f64,
    /// Packets passed from one worker to another.
    pub handed_over: f64,
}

impl Reading {
    /// Makes a reading of a cost, a rate and two shares.
    #[must_use]
    pub fn new(cost: f64, rate: f64, remote_frees: f64, handed_over: f64) -> Reading {
        Reading { cost, rate, remote_frees, handed_over }
    }

    /// Returns true if the reading is better than `other` by more than the floors, in cost or in
    /// rate, and worse in neither.
    fn is_better(&self, other: &Reading, floor: &Floor) -> bool {
        let (cheaper, dearer) = (1.0 - floor.cost, 1.0 + floor.cost);
        let (slower, faster) = (1.0 - floor.rate, 1.0 + floor.rate);
        let gains = self.cost < other.cost * cheaper || self.rate > other.rate * faster;
        gains && self.cost <= other.cost * dearer && self.rate >= other.rate * slower
    }
}

/// Places that were tried.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Tried {
    /// The places that were tried.
    pub places: Places,
    /// The reading at these places; `None` if it failed, or too few packets passed.
    pub reading: Option<Reading>,
    /// True if the places were better than all before.
    pub kept: bool,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "json", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Found {
    /// The final places: as found, unless better ones were found.
    pub places: Places,
    /// Median of readings at the original places, taken alternately with those after.
    pub before: Reading,
    /// Median of readings at the new places.
    pub after: Reading,
    /// The spread of readings at the start, as a share.
    pub floor: f64,
    /// All that was tried, in order.
    pub tried: Vec<Tried>,
}

/// A search for places.
#[derive(Debug)]
pub struct Search<'a> {
    topology: &'a Topology,
    things: usize,
    /// Things of one lane belong together: a worker, and the interrupts of its queue.
    lanes: Vec<usize>,
    readings_max: usize,
}

impl<'a> Search<'a> {
    /// Describes a search for places of `things` threads.
    #[must_use]
    pub fn new(topology: &'a Topology, things: usize) -> Search<'a> {
        Search { topology, things, lanes: (0..things).collect(), readings_max: 400 }
    }

    /// Says which things belong together, by a number for each: they are tried on one CPU, and beside each other.
    /// Unless it is said, none do.
    #[must_use]
    pub fn lanes(mut self, lanes: &[usize]) -> Self {
        let lanes = lanes.iter().copied().chain(lanes.len()..);
        self.lanes = lanes.take(self.things).collect();
        self
    }

    /// Sets the most readings that the search takes.
    #[must_use]
    pub fn readings_max(mut self, most: usize) -> Self {
        self.readings_max = most;
        self
    }

    /// Runs the search; afterwards everything is at [`Found::places`], or as it was found after an
    /// error. Returns `None` if too few packets passed for a result.
    ///
    /// # Errors
    /// Those of [`Gauge::read`], and of putting things back.
    pub fn run(&self, gauge: &mut dyn Gauge) -> Result<Option<Found>> {
        let start: Places = vec![None; self.things];
        let done = self.try_all(&start, gauge);
        if !matches!(done, Ok(Some(_))) {
            gauge.place(&start)?;
        }
        done
    }

    fn try_all(&self, start: &Places, gauge: &mut dyn Gauge) -> Result<Option<Found>> {
        let Some((before, floor)) = floor(gauge)? else { return Ok(None) };
        let mut state = State { best: start.clone(), reading: before, floor, tried: Vec::new() };
        for places in self.proposals() {
            self.judge(places, &mut state, gauge)?;
        }
        // From the best one on: every step to its neighbours, until none helps.
        let mut helped = self.things > 0;
        while helped && state.tried.len() < self.readings_max {
            helped = false;
            for places in self.neighbours(&state.best) {
                if state.tried.len() >= self.readings_max {
                    break;
                }
                // A better one has neighbours of its own: those of the last are looked at no more.
                helped = self.judge(places, &mut state, gauge)?;
                if helped {
                    break;
                }
            }
        }
        let State { best, floor, tried, .. } = state;
        // The last word: both in turn, so that a load that changed meanwhile is on both sides.
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
            Err(_) => None,
        };
        let is_better = |reading: &Reading| reading.is_better(&state.reading, &state.floor);
        let mut kept = reading.as_ref().is_some_and(is_better);
        if kept {
            // A second look: one lucky reading of many is no news.
            reading = gauge.read()?;
            kept = reading.as_ref().is_some_and(is_better);
        }
        if let Some(reading) = reading.filter(|_| kept) {
            (state.best, state.reading) = (places.clone(), reading);
        }
        state.tried.push(Tried { places, reading, kept });
        Ok(kept)
    }

    /// Returns places by what the topology alone says: near each other, apart, in pairs of siblings, all on one,
    /// and what belongs together on CPUs that follow each other.
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
        // Whom a thing belongs with stands on the next CPU.
        let before = |i: usize| {
            let rank = |i: usize| (self.lanes[i], i);
            (0..self.things).filter(|other| rank(*other) < rank(i)).count()
        };
        all.insert(1, (0..self.things).map(|i| at(&near, before(i))).collect());
        all
    }

    /// Returns places that differ by one thing on another CPU, two things changed for each other, or two things
    /// moved together, one after the other: of many things on many CPUs only the first are looked at.
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
        // Both to one CPU, or to two that follow each other: a pair that is only good together.
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

/// The spread of readings at the start, as shares.
#[derive(Debug, Clone, Copy)]
struct Floor {
    cost: f64,
    rate: f64,
}

/// Reads the start several times; returns the median and the spread.
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
