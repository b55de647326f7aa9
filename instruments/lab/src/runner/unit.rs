//! A unit of three adjacent windows, and the interface through which the machine's activity is
//! observed, which a test can replace.

use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::Value;

use super::Observer;
use crate::random::Random;
use crate::record::{Order, PairRecord, PlacementRecord};
use crate::scenario::{self, Bench, Finished, Place, Scenario};
use crate::watch::{self, Admission, Watch};
use crate::window::Window;
use crate::{Result, environment, place};

/// The benches of the first side, the second side, and the control. All are set up; one runs at a
/// time.
pub(super) struct Benches {
    pub(super) a: PlacedBench,
    pub(super) b: PlacedBench,
    pub(super) control: PlacedBench,
}

/// A bench and its CPUs.
pub(super) struct PlacedBench {
    pub(super) bench: Box<dyn Bench>,
    /// The CPUs that the bench may use, as assigned by the run.
    told: Vec<usize>,
    /// The CPUs of the bench's threads: as the bench reports them, else those to which its threads
    /// were pinned.
    pinned: Vec<usize>,
}

/// The results of the three benches.
pub(super) struct Left {
    pub(super) a: Finished,
    pub(super) b: Finished,
    pub(super) control: Finished,
}

/// Length of windows within which the host often moves the CPUs: their distance is measured after
/// each of them, and each is repeated by itself. Of shorter ones the whole pair is repeated.
const LONG: Duration = Duration::from_millis(500);

/// Number of times that a long window is run until the CPUs have not moved within it.
const WINDOW_TRIES: usize = 4;

/// Number of checks, [`World::pause`] apart, whether the CPUs are back at their distance before the
/// pair.
const RETURN_CHECKS: usize = 50;

/// Number of pairs in a block; each side runs first in half of them.
const BLOCK: usize = 4;

/// Returns the side that runs first in a pair, at random in balanced blocks. It follows from the
/// pair's number, so that a continued run gets the same order as an uninterrupted one.
pub(super) fn order(seed: u64, cell: usize, number: usize) -> Order {
    let mut coins = coins(seed, cell, number / BLOCK);
    let mut block = [Order::AB, Order::AB, Order::BA, Order::BA];
    for last in (1..BLOCK).rev() {
        block.swap(last, coins.below(last + 1));
    }
    block[number % BLOCK]
}

/// Returns a random order in which the three benches are set up for a fresh pair: memory depends on
/// the order, so a fixed order would favour one bench.
pub(super) fn setup_order(seed: u64, cell: usize, number: usize) -> [Role; 3] {
    // Invert the seed, so that these random numbers are independent of those of [`order`].
    let mut coins = coins(!seed, cell, number);
    let mut roles = [Role::A, Role::B, Role::Control];
    roles.swap(2, coins.below(3));
    roles.swap(1, coins.below(2));
    roles
}

fn coins(seed: u64, cell: usize, number: usize) -> Random {
    let of_cell = Random::new(seed).next() ^ cell as u64;
    Random::new(Random::new(of_cell).next() ^ number as u64)
}

/// The role of a bench in a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    A,
    B,
    Control,
}

impl Benches {
    /// Sets up the three benches in the given order.
    pub(super) fn open(
        order: [Role; 3],
        mut open: impl FnMut(Role) -> Result<PlacedBench>,
    ) -> Result<Benches> {
        let [first, second, third] = order;
        let mut benches = [(first, open(first)?), (second, open(second)?), (third, open(third)?)];
        benches.sort_by_key(|(role, _)| *role);
        let [(_, a), (_, b), (_, control)] = benches;
        Ok(Benches { a, b, control })
    }

    /// Runs each bench for some windows that do not count, and records its CPUs.
    ///
    /// False if it was interrupted.
    pub(super) fn warm_up(
        &mut self,
        windows: u32,
        time: Duration,
        observer: &dyn Observer,
    ) -> Result<bool> {
        // Run at least one window: the CPUs of a bench's threads are known only after it.
        for _ in 0..windows.max(1) {
            for placed in [&mut self.a, &mut self.b, &mut self.control] {
                if observer.interrupted() {
                    return Ok(false);
                }
                let window = placed.bench.window(time)?;
                placed.learn(&window);
            }
        }
        Ok(true)
    }

    /// Runs a pair in the order `control a b` or `b a control`; returns `None` if it was
    /// interrupted.
    pub(super) fn pair(
        &mut self,
        order: Order,
        time: Duration,
        world: &dyn World,
        observer: &dyn Observer,
    ) -> Result<Option<PairRecord>> {
        let mut ticks = Vec::from_iter(self.a.distance(world));
        let mut next =
            |benches: &mut Benches, role| benches.window(role, time, &mut ticks, world, observer);
        let windows = match order {
            Order::AB => {
                let control = next(self, Role::Control)?;
                let a = next(self, Role::A)?;
                (a, next(self, Role::B)?, control)
            }
            Order::BA => {
                let b = next(self, Role::B)?;
                (next(self, Role::A)?, b, next(self, Role::Control)?)
            }
        };
        let (Some(a), Some(b), Some(control)) = windows else { return Ok(None) };
        if time < LONG {
            ticks.extend(self.a.distance(world));
        }
        let placement = self.alike().and_then(|()| placed(ticks));
        let (placement, admission) = match placement {
            Ok(placement) => (placement, world.admit(&[&a, &b, &control])),
            Err(reason) => (None, Admission { rate: false, cost: false, reason: Some(reason) }),
        };
        let Admission { rate: accepted, cost: cost_accepted, reason: reject_reason } = admission;
        let control = Some(control);
        Ok(Some(PairRecord {
            order,
            set_up: None,
            a,
            b,
            control,
            accepted,
            cost_accepted,
            reject_reason,
            placement,
        }))
    }

    /// Runs a window of a bench, and after a long one adds the distance of the CPUs to `ticks`,
    /// whose first reading is that before the pair. If the host has moved the CPUs, a long window
    /// is run again as soon as they are as far apart as before the pair.
    fn window(
        &mut self,
        role: Role,
        time: Duration,
        ticks: &mut Vec<Result<f64>>,
        world: &dyn World,
        observer: &dyn Observer,
    ) -> Result<Option<Window>> {
        let before = ticks.first().and_then(|first| first.as_ref().ok()).copied();
        let moved = |now: &Result<f64>| {
            let both = before.zip(now.as_ref().ok());
            both.is_some_and(|(before, now)| place::placement(before, *now).is_none())
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let window = self.role(role).window(time, world, observer)?;
            let now = if time < LONG { None } else { self.a.distance(world) };
            let Some(now) = now else { return Ok(window) };
            let is_last = window.is_none() || tries == WINDOW_TRIES;
            if is_last || !moved(&now) || !self.come_back(moved, world) {
                ticks.push(now);
                return Ok(window);
            }
        }
    }

    /// Waits until the CPUs are no longer `moved`; returns false if that takes too long.
    fn come_back(&self, moved: impl Fn(&Result<f64>) -> bool, world: &dyn World) -> bool {
        (0..RETURN_CHECKS).any(|_| {
            world.pause();
            self.a.distance(world).is_none_or(|now| !moved(&now))
        })
    }

    fn role(&mut self, role: Role) -> &mut PlacedBench {
        match role {
            Role::A => &mut self.a,
            Role::B => &mut self.b,
            Role::Control => &mut self.control,
        }
    }

    /// Checks that all benches have the same page size; an error has the reason why they cannot be
    /// compared. A bench with the last huge pages would have fewer TLB misses independent of its
    /// side.
    fn alike(&self) -> std::result::Result<(), String> {
        let pages = [&self.a, &self.b, &self.control].map(|placed| placed.bench.pages());
        let [Some(a), b, Some(control)] = pages else { return Ok(()) };
        let b = b.unwrap_or_else(|| a.clone());
        if a == b && a == control {
            return Ok(());
        }
        Err(format!(
            "pages of {a} for a, {b} for b, {control} for the control: not the same memory"
        ))
    }

    /// Ends all three benches.
    pub(super) fn finish(self) -> Result<Left> {
        Ok(Left {
            a: self.a.bench.finish()?,
            b: self.b.bench.finish()?,
            control: self.control.bench.finish()?,
        })
    }
}

impl PlacedBench {
    /// Creates a bench with its assigned CPUs.
    pub(super) fn new(bench: Box<dyn Bench>, cpus: &[usize]) -> PlacedBench {
        let pinned = bench.cpus();
        PlacedBench { bench, told: cpus.to_vec(), pinned }
    }

    fn window(
        &mut self,
        time: Duration,
        world: &dyn World,
        observer: &dyn Observer,
    ) -> Result<Option<Window>> {
        if observer.interrupted() {
            return Ok(None);
        }
        self.bench.lead_in()?;
        let cpus = if self.pinned.is_empty() { &self.told } else { &self.pinned };
        world.watched(cpus, &mut |end| self.bench.window_until(time, end)).map(Some)
    }

    /// Records the CPUs to which a window's threads were pinned, in the threads' order; a bench
    /// that reports its CPUs itself overrides them.
    fn learn(&mut self, window: &Window) {
        if !self.bench.cpus().is_empty() {
            return;
        }
        for cpu in window.threads.iter().filter_map(|thread| thread.cpu) {
            if !self.pinned.contains(&cpu) {
                self.pinned.push(cpu);
            }
        }
    }

    /// Measures the distance between the bench's first two CPUs; `None` if it has only one.
    fn distance(&self, world: &dyn World) -> Option<Result<f64>> {
        match self.pinned[..] {
            [one, other, ..] => Some(world.round_trip_ticks(one, other)),
            _ => None,
        }
    }
}

/// Returns the placement of the CPUs during a pair, from the measurements around its windows; an
/// error has the reason why the pair cannot be compared: the CPUs moved, or were too busy.
fn placed(ticks: Vec<Result<f64>>) -> std::result::Result<Option<PlacementRecord>, String> {
    let ticks: Result<Vec<f64>> = ticks.into_iter().collect();
    let ticks = ticks.map_err(|e| e.to_string())?;
    let &[before, .., after] = ticks.as_slice() else { return Ok(None) };
    let moved = |now: f64, when| {
        format!(
            "the distance of the CPUs changed: a cache line's round trip took {before:.0} ticks before the pair, \
             {now:.0} {when} it"
        )
    };
    let away = ticks.iter().find(|now| place::placement(before, **now).is_none());
    match (place::placement(before, after), away) {
        (Some(placement), None) => Ok(Some(placement)),
        (Some(_), Some(now)) => Err(moved(*now, "within")),
        (None, _) => Err(moved(after, "after")),
    }
}

/// A function that runs a window, and calls its argument once when the window is over.
pub(super) type RunWindow<'a> = dyn FnMut(&mut dyn FnMut()) -> Result<Window> + 'a;

/// The interface to scenarios and to the machine; tests replace it.
pub(super) trait World {
    /// Returns the scenario of that name.
    fn scenario(&self, name: &str) -> Option<&dyn Scenario>;

    /// Describes the current machine.
    fn here(&self, place: &Place) -> Value;

    /// Runs a window, which calls its argument when it is over, and adds to it the activity of the
    /// machine on `cpus` until then.
    fn watched(&self, cpus: &[usize], window: &mut RunWindow<'_>) -> Result<Window>;

    /// Decides whether windows that belong together count, by the machine's activity in them.
    fn admit(&self, windows: &[&Window]) -> Admission;

    /// Measures the distance between two CPUs.
    fn round_trip_ticks(&self, one: usize, other: usize) -> Result<f64>;

    /// Sleeps for a moment, while the host may move the CPUs.
    fn pause(&self);
}

/// The machine on which the program runs.
#[derive(Debug)]
pub(super) struct Machine;

impl World for Machine {
    fn scenario(&self, name: &str) -> Option<&dyn Scenario> {
        scenario::named(name)
    }

    fn here(&self, place: &Place) -> Value {
        environment::here(place)
    }

    fn watched(&self, cpus: &[usize], window: &mut RunWindow<'_>) -> Result<Window> {
        let (watch, mut last) = (Watch::start(cpus)?, None);
        let mut window = window(&mut || last = Some(watch.read()))?;
        let last = last.unwrap_or_else(|| watch.read())?;
        watch.stop_at(last, &mut window)?;
        Ok(window)
    }

    fn admit(&self, windows: &[&Window]) -> Admission {
        watch::admit(windows)
    }

    fn round_trip_ticks(&self, one: usize, other: usize) -> Result<f64> {
        place::round_trip_ticks(one, other)
    }

    fn pause(&self) {
        // Not by parking the thread: the threads that measure a distance unpark it when they end.
        let (_sender, nothing) = channel::<()>();
        let _ = nothing.recv_timeout(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::ThreadTime;

    /// A test bench that measures a thread on CPU 4 and has traffic on CPU 5, which it may report
    /// or not.
    struct Half {
        says: Vec<usize>,
    }

    impl Bench for Half {
        fn window(&mut self, _time: Duration) -> Result<Window> {
            let worker = ThreadTime { cpu: Some(4), measured: true, ..ThreadTime::default() };
            Ok(Window::of(vec![worker]))
        }

        fn cpus(&self) -> Vec<usize> {
            self.says.clone()
        }

        fn finish(self: Box<Self>) -> Result<Finished> {
            Ok(Finished::default())
        }
    }

    #[test]
    fn cpus_reported_by_a_bench_override_those_of_its_windows() {
        for (says, before, after) in
            [(vec![4, 5], [4, 5].as_slice(), [4, 5].as_slice()), (vec![], &[], &[4])]
        {
            let mut placed = PlacedBench::new(Box::new(Half { says }), &[7]);
            assert_eq!(placed.pinned, before);
            let window = placed.bench.window(Duration::ZERO).unwrap();
            placed.learn(&window);
            assert_eq!(placed.pinned, after);
        }
    }

    #[test]
    fn coins_are_of_seed_cell_and_pair_and_no_four_pairs_favour_a_side() {
        let coins = |seed, cell| (0..64).map(|n| order(seed, cell, n)).collect::<Vec<_>>();
        for (seed, cell) in [(0, 0), (0, 1), (7, 0), (u64::MAX, 9)] {
            for block in coins(seed, cell).chunks(4) {
                assert_eq!(block.iter().filter(|one| **one == Order::AB).count(), 2, "{block:?}");
            }
            let first = |one: &Order| *one == Order::AB;
            let heads = (0..400).map(|block| order(seed, cell, 4 * block)).filter(first).count();
            assert!((150..250).contains(&heads), "{heads}");
        }
        assert_eq!(coins(7, 3), coins(7, 3));
        assert_ne!(coins(7, 3), coins(8, 3));
        assert_ne!(coins(7, 3), coins(7, 4));
    }
}
