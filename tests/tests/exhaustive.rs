//! The search for CPUs beside every placement of four things on two CPUs, with real packets: all 16
//! placements are measured, then the search starts from the worst one.
//!
//! ```text
//!   chains     gen ─► worker ─ ring ─► worker ─► sink             twice
//!   devices    sender ─ veth ─► NAPI's thread ─► worker ─► sink   twice; the senders are not moved
//! ```
//!
//! docs/campaigns.md has the command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate::affinity::{InterruptGuard, Pin};
use linerate::placement::{EngineGauge, Gauge, Places, Reading};
use linerate::{Engine, Running};
use linerate_sys::thread::{allowed_cpus, allowed_cpus_of, run_on};
use linerate_tests::netns::Netns;
use linerate_tests::topology::wait_for_carrier;
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{available, may_pin, or_skip};

/// Packets that have come before the first reading.
const PACKETS: u64 = 10_000;
/// Readings of every placement, of which the worst and the best one are chosen.
const ROUNDS: usize = 9;
/// Searches for each workload, all from the worst placement.
const SEARCHES: usize = 3;
/// Readings of the worst, the best and the found placement after each search.
const ROUNDS_AT_END: usize = 15;
/// Share by which the found placement may cost more than the best one.
const WITHIN: f64 = 0.05;
/// Gain in rate, as a share, for which one more share of cost is accepted, and the least spread, as
/// a share, that counts: the search's (docs/placement.md).
const RATE_FOR_COST: f64 = 4.0;
const SPREAD_MIN: f64 = 0.01;
/// Ends of the veth pairs: the engine's, and its sender's. No other test has these names, because
/// the names of NAPI's threads are not per namespace.
const PAIRS: [[&str; 2]; 2] = [["best0", "feed0"], ["best1", "feed1"]];

/// Lets one campaign run at a time, because each measures the CPU time of the process or of the
/// machine.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Restricts the calling thread, and the engines that it starts, to two CPUs.
///
/// # Errors
/// The reason to skip.
fn two_cpus() -> Result<[usize; 2], String> {
    may_pin()?;
    let [first, second, ..] = allowed_cpus().unwrap()[..] else {
        return Err("with one CPU there is nothing to choose".into());
    };
    run_on(&[first, second]).unwrap();
    Ok([first, second])
}

/// The spread of readings of one placement, as shares.
#[derive(Debug, Clone, Copy)]
struct Spread {
    cost: f64,
    rate: f64,
}

impl Spread {
    /// Returns the distance of the quartiles, as the search does.
    fn of(readings: &[Reading]) -> Spread {
        let share = |of: fn(&Reading) -> f64| {
            let mut values: Vec<f64> = readings.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            let [low, center, high] =
                [1, 2, 3].map(|quarter| values[quarter * (values.len() - 1) / 4]);
            ((high - low) / center).max(SPREAD_MIN)
        };
        Spread { cost: share(|reading| reading.cost), rate: share(|reading| reading.rate) }
    }

    /// Returns the median difference of two readings of one placement that were taken in the same
    /// round.
    fn of_identical(a: &[Reading], b: &[Reading]) -> Spread {
        let share = |of: fn(&Reading) -> f64| {
            median(a.iter().zip(b).map(|(a, b)| (of(a) / of(b) - 1.0).abs()))
        };
        Spread { cost: share(|reading| reading.cost), rate: share(|reading| reading.rate) }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the medians of cost and rate.
fn middle(readings: &[Reading]) -> Reading {
    let of = |figure: fn(&Reading) -> f64| median(readings.iter().map(figure));
    Reading::new(of(|reading| reading.cost), of(|reading| reading.rate), 0.0, 0.0)
}

/// Returns true if `a` is better than `b`. This is the order of the search as docs/placement.md
/// describes it, written again: a gain beyond the spread in cost or in rate, and a loss in neither;
/// more cost for a packet is no loss if the rate gains four times as much.
fn is_better(a: &Reading, b: &Reading, spread: Spread) -> bool {
    let (dearer, faster) = (a.cost / b.cost - 1.0, a.rate / b.rate - 1.0);
    let gains = dearer < -spread.cost || faster > spread.rate;
    let paid = (faster - spread.rate).max(0.0) / RATE_FOR_COST;
    gains && faster >= -spread.rate && dearer <= spread.cost + paid
}

/// Returns the numbers of the worst and of the best placement. The worst one has the highest cost.
/// The best one is, of the placements that are better than the worst one, the cheapest to which no
/// other of them is better; if there are none, the worst one is also the best.
fn worst_and_best(all: &[Vec<Reading>]) -> (usize, usize) {
    let middles: Vec<Reading> = all.iter().map(|readings| middle(readings)).collect();
    let by_cost = |a: &usize, b: &usize| middles[*a].cost.total_cmp(&middles[*b].cost);
    let worst = (0..all.len()).max_by(by_cost).unwrap();
    let spread = Spread::of(&all[worst]);
    let beats = |a: usize, b: usize| is_better(&middles[a], &middles[b], spread);
    let better: Vec<usize> = (0..all.len()).filter(|i| beats(*i, worst)).collect();
    let is_unbeaten = |i: &usize| !better.iter().any(|other| beats(*other, *i));
    let best = better.iter().copied().filter(is_unbeaten).min_by(by_cost);
    (worst, best.unwrap_or(worst))
}

/// Returns all placements of `things` on two CPUs.
fn every_placement(cpus: [usize; 2], things: usize) -> Vec<Places> {
    let nth = |n: usize| -> Places { (0..things).map(|i| Some(cpus[(n >> i) & 1])).collect() };
    (0..1 << things).map(nth).collect()
}

fn shown(places: &[Option<usize>]) -> String {
    places.iter().flatten().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

fn print_row(what: &str, reading: &Reading) {
    println!("  {what:<24} {:>12.1} {:>14.0}", reading.cost, reading.rate);
}

/// A running engine whose workers, and their devices' NAPI threads, are placed on two CPUs.
struct Placed {
    /// Dropped before the engine, because a veth's NAPI ends with its port.
    guards: Vec<InterruptGuard>,
    running: Running,
    cpus: [usize; 2],
}

impl Placed {
    /// Returns a gauge for which the present places are the original ones.
    fn gauge(&self) -> EngineGauge {
        let control = self.running.control();
        let gauge = EngineGauge::new(&control, self.running.stats(), &Arc::default());
        self.guards.iter().fold(gauge, EngineGauge::interrupts)
    }

    /// Returns the CPU to which each thing is pinned, by the engine's counters and by the kernel.
    fn now(&self) -> Places {
        let workers = self.running.stats().workers();
        let one = |thread: i32| match allowed_cpus_of(thread).unwrap()[..] {
            [cpu] => Some(cpu),
            _ => None,
        };
        let threads = self.guards.iter().flat_map(InterruptGuard::threads);
        workers.iter().map(|worker| worker.pinned).chain(threads.map(one)).collect()
    }

    /// Reads the placements in turn, `rounds` times each.
    fn in_turn(&self, all: &[Places], rounds: usize) -> Vec<Vec<Reading>> {
        let (mut gauge, mut readings) = (self.gauge(), vec![Vec::new(); all.len()]);
        for round in 0..rounds {
            for i in 0..all.len() {
                // Backwards in every second round, so that none always follows the same one.
                let i = if round % 2 == 1 { all.len() - 1 - i } else { i };
                gauge.place(&all[i]).unwrap();
                readings[i].push(gauge.read().unwrap().expect("packets pass"));
            }
        }
        readings
    }

    /// Searches from the placement `worst`, and then reads it, the found and the best one in turn;
    /// returns the promises that are not kept.
    fn search(&self, worst: &Places, best: &Places) -> Vec<String> {
        self.gauge().place(worst).unwrap();
        let report = self.gauge().search().unwrap();
        print!("\n{report}");
        let found = report.found.expect("packets pass");
        let places = found.places.iter().zip(worst);
        let left: Places = places.map(|(cpu, start)| cpu.or(*start)).collect();
        assert_eq!(self.now(), left, "the search left other places than it reports");
        let in_turn = [worst, &left, best, best].map(Clone::clone);
        let readings = self.in_turn(&in_turn, ROUNDS_AT_END);
        let [at_worst, at_left, at_best, at_best_again] = &readings[..] else { unreachable!() };
        let aa = Spread::of_identical(at_best, at_best_again);
        let (start, end) = (middle(at_worst), middle(at_left));
        let least = middle(&[&at_best[..], &at_best_again[..]].concat());
        print_row(&format!("worst: {}", shown(worst)), &start);
        print_row(&format!("found: {}", shown(&left)), &end);
        print_row(&format!("best: {}", shown(best)), &least);
        // In most cases both have the same rate, and the second part is 0.
        let paid = (end.rate / least.rate - 1.0 - aa.rate).max(0.0) / RATE_FOR_COST;
        let (ratio, most) = (end.cost / least.cost, 1.0 + WITHIN + aa.cost + paid);
        println!(
            "  cost: {ratio:.3} of the best one's, at most {most:.3}; {:.3} of the worst one's; A/A {:.1} %, \
             the search's own spread {:.1} %",
            end.cost / start.cost,
            aa.cost * 100.0,
            found.floor * 100.0
        );
        if aa.cost > WITHIN {
            println!("  no answer: readings of one placement differ by more than {WITHIN}");
        }
        let within = Spread { cost: WITHIN + aa.cost, rate: WITHIN + aa.rate };
        let own = Spread { cost: found.floor.max(aa.cost), rate: found.floor.max(aa.rate) };
        let promises = [
            (ratio <= most, "costs more than 5 % more than the best one"),
            (!is_better(&least, &end, within), "is worse than the best one by more than 5 %"),
            (!is_better(&start, &end, own), "is worse than the start"),
        ];
        let broken = promises.into_iter().filter(|(is_kept, _)| !is_kept);
        let told = |what: &str| format!("{left:?} {what}: {end:?}, {least:?}, {start:?}, {aa:?}");
        broken.map(|(_, what)| told(what)).collect()
    }

    /// Measures every placement, searches from the worst one, and checks what the searches leave.
    fn judge(self, workload: &str) {
        until_true("packets", SOON, || {
            let ports = self.running.stats().ports();
            ports.iter().map(|port| port.counts.rx_packets).sum::<u64>() >= PACKETS
        });
        let workers = self.running.stats().workers().len();
        let mut names: Vec<String> = (0..workers).map(|i| format!("worker {i}")).collect();
        names.extend(self.guards.iter().flat_map(InterruptGuard::queues).map(Pin::name));
        assert_eq!(names.len(), 4, "{names:?}");
        let all = every_placement(self.cpus, names.len());
        println!("\n{workload}\n  CPUs of {}", names.join(", "));
        println!("  {:<24} {:>12} {:>14}", "", "ns a packet", "packets/s");
        let readings = self.in_turn(&all, ROUNDS);
        for (places, readings) in all.iter().zip(&readings) {
            print_row(&shown(places), &middle(readings));
        }
        let (worst, best) = worst_and_best(&readings);
        println!("  worst {}, best {}", shown(&all[worst]), shown(&all[best]));
        if worst == best {
            println!("  no answer: none is better than the worst one by more than its spread");
        }
        let searches = (0..SEARCHES).flat_map(|_| self.search(&all[worst], &all[best]));
        let broken: Vec<String> = searches.collect();
        let Placed { guards, running, .. } = self;
        drop(guards);
        running.stop(SOON).check().unwrap();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}

/// Starts two chains: the packets of a source cross a ring to a second worker, whose sink reads
/// every byte.
fn chains(source: &str) -> Running {
    let mut builder = Engine::builder();
    for i in 0..2 {
        let [from, near, far, end] =
            ["from", "near", "far", "end"].map(|part| format!("{part}{i}"));
        let ring = format!("ring:chain{i}");
        builder = builder.port(&from, source).port(&near, &ring).wire(&from, &near);
        builder = builder.port(&far, &ring).port(&end, "sink:").wire(&far, &end);
    }
    builder.build().unwrap().start().unwrap()
}

/// Creates the veth pairs.
fn links() -> Result<Netns, String> {
    let netns = Netns::new()?;
    for [end, feed] in PAIRS {
        netns.try_ip(&format!("link add dev {end} type veth peer name {feed}"))?;
        for name in [end, feed] {
            netns.ip(&format!("link set dev {name} up"));
        }
        for name in [end, feed] {
            wait_for_carrier(&netns, name);
        }
    }
    Ok(netns)
}

/// Builds an engine that receives from both pairs, each by a worker of its own.
fn devices() -> linerate::Result<Engine> {
    let mut builder = Engine::builder();
    for (i, [end, _]) in PAIRS.into_iter().enumerate() {
        let sink = format!("sink{i}");
        builder = builder.port(end, &format!("xdp:{end}")).port(&sink, "sink:,blind");
        builder = builder.wire(end, &sink);
    }
    builder.build()
}

/// Sends by an interface, from one CPU, until the result is dropped.
fn send(by: &str, cpu: usize) -> Running {
    let engine = Engine::builder().cpus(&[cpu]).port("source", "gen:,rate=100kpps");
    let engine = engine.port("out", &format!("packet:{by}")).wire("source", "out");
    engine.build().unwrap().start().unwrap()
}

#[test]
#[ignore = "a campaign of a minute, which compares CPU time"]
fn search_from_the_worst_placement_of_two_busy_chains_ends_within_5_percent_of_the_best() {
    let _alone = alone();
    let cpus = or_skip!(two_cpus());
    let placed = Placed { guards: Vec::new(), running: chains("gen:"), cpus };
    placed.judge("chains, at the highest rate");
}

#[test]
#[ignore = "a campaign of a minute, which compares CPU time"]
fn search_from_the_worst_placement_of_two_paced_chains_ends_within_5_percent_of_the_best() {
    let _alone = alone();
    let cpus = or_skip!(two_cpus());
    let placed = Placed { guards: Vec::new(), running: chains("gen:,rate=1Mpps"), cpus };
    placed.judge("chains, 1 Mpps each");
}

#[test]
#[ignore = "a campaign of four minutes, which compares CPU time"]
fn search_from_the_worst_placement_of_workers_and_napi_ends_within_5_percent_of_the_best() {
    let _alone = alone();
    let cpus = or_skip!(two_cpus());
    let netns = or_skip!(links());
    let running = or_skip!(available(netns.run(devices))).start().unwrap();
    let guards = netns.run(|| {
        let all = PAIRS.into_iter().map(|[end, _]| InterruptGuard::of(end));
        all.collect::<linerate::Result<Vec<_>>>()
    });
    let guards = or_skip!(available(guards));
    let sending = netns.run(|| [0, 1].map(|i| send(PAIRS[i][1], cpus[i])));
    Placed { guards, running, cpus }.judge("devices, 100 kpps each");
    sending.into_iter().for_each(|sending| drop(sending.stop(SOON)));
}
