//! Tests the search on models of machines, and compares its result with all possible places.

mod readings;
mod table;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_port::thread::is_filtered;
use linerate_port::{Code, Error, Result};

use super::*;
use linerate_testing::{Scratch, may_pin, unless};

/// A folder like `/sys/devices`.
struct Machine(Scratch);

impl Machine {
    /// Writes a machine with `sockets` sockets of `cores` cores of `threads` threads each; the last
    /// `small` cores have a small capacity.
    fn new(sockets: usize, cores: usize, threads: usize, small: usize) -> Machine {
        let (at, all_cores) = (Scratch::new(), sockets * cores);
        let write = |file: String, text: String| drop(at.file(&file, &(text + "\n")));
        // Siblings as most machines number them: first threads of all cores, then second ones.
        for cpu in 0..all_cores * threads {
            let core = cpu % all_cores;
            let siblings = (0..threads).map(|thread| (core + thread * all_cores).to_string());
            let of = |file: &str| format!("system/cpu/cpu{cpu}/{file}");
            write(of("topology/thread_siblings_list"), siblings.collect::<Vec<_>>().join(","));
            write(of("topology/physical_package_id"), (core / cores).to_string());
            let capacity = if core >= all_cores - small { 400 } else { 1024 };
            write(of("cpu_capacity"), capacity.to_string());
        }
        write("system/cpu/online".into(), format!("0-{}", all_cores * threads - 1));
        Machine(at)
    }

    /// Describes the caches: CPUs of a socket whose numbers modulo `groups` are equal share an L3.
    fn caches(self, groups: usize) -> Machine {
        let topology = self.topology();
        let key = |cpu: &Cpu| (cpu.socket, cpu.number % groups);
        for cpu in topology.cpus() {
            let shared = topology.cpus().iter().filter(|other| key(other) == key(cpu));
            let shared: Vec<_> = shared.map(|other| other.number.to_string()).collect();
            for (index, level, list) in [(0, 1, cpu.number.to_string()), (3, 3, shared.join(","))] {
                let of = |file| format!("system/cpu/cpu{}/cache/index{index}/{file}", cpu.number);
                self.0.file(&of("level"), &format!("{level}\n"));
                self.0.file(&of("shared_cpu_list"), &(list + "\n"));
            }
        }
        self
    }

    fn topology(&self) -> Topology {
        Topology::read(&self.0.0, &(0..64).collect::<Vec<_>>()).unwrap()
    }
}

/// A model of cost: a chain of things, each with its own work, that hand packets to the next thing.
struct Chain<'a> {
    topology: &'a Topology,
    /// Work of each thing; the next field is the cost of a hand-over, by nearness.
    work: Vec<f64>,
    hand_over: [f64; 5],
    /// Pairs of things of which the first hands packets to the second.
    hands: Vec<(usize, usize)>,
    /// The CPU of each thing that is not placed.
    found: Vec<usize>,
    now: Places,
    noise: u64,
    /// A CPU that refuses threads; the next field is the number of readings until the run ends.
    refused: Option<usize>,
    left: usize,
}

impl Chain<'_> {
    fn new(topology: &Topology, things: usize, found: Vec<usize>) -> Chain<'_> {
        Chain {
            topology,
            work: (0..things).map(|i| 100.0 + 30.0 * i as f64).collect(),
            hands: (1..things).map(|i| (i - 1, i)).collect(),
            hand_over: [10.0, 25.0, 40.0, 60.0, 240.0],
            found,
            now: vec![None; things],
            noise: 1,
            refused: None,
            left: usize::MAX,
        }
    }

    fn cost(&self, places: &[Option<usize>]) -> f64 {
        let at: Vec<usize> = places.iter().zip(&self.found).map(|(p, f)| p.unwrap_or(*f)).collect();
        let mut cost = 0.0;
        for (i, cpu) in at.iter().enumerate() {
            let capacity = f64::from(self.topology.cpu(*cpu).unwrap().capacity) / 1024.0;
            let beside = |near: Near| {
                at.iter()
                    .enumerate()
                    .filter(move |(j, o)| *j != i && self.topology.near(*cpu, **o) == near)
            };
            // A thing that shares a CPU or a core is slower.
            let crowd = 1.0
                + 0.8 * beside(Near::Same).count() as f64
                + 0.35 * beside(Near::Sibling).count() as f64;
            cost += self.work[i] * crowd / capacity;
            for (_, to) in self.hands.iter().filter(|(from, _)| *from == i) {
                cost += self.hand_over[self.topology.near(*cpu, at[*to]) as usize];
            }
        }
        cost
    }

    /// Returns the least and the greatest cost of all possible places.
    fn exhaustive(&self, things: usize) -> (f64, (f64, Vec<usize>)) {
        let cpus: Vec<usize> = self.topology.cpus().iter().map(|cpu| cpu.number).collect();
        let (mut least, mut most) = (f64::MAX, (0.0, Vec::new()));
        for n in 0..cpus.len().pow(things as u32) {
            let cpu = |i: usize| cpus[n / cpus.len().pow(i as u32) % cpus.len()];
            let at: Vec<usize> = (0..things).map(cpu).collect();
            let cost = self.cost(&at.iter().copied().map(Some).collect::<Vec<_>>());
            least = least.min(cost);
            if cost > most.0 {
                most = (cost, at);
            }
        }
        (least, most)
    }
}

impl Gauge for Chain<'_> {
    fn place(&mut self, places: &[Option<usize>]) -> Result<()> {
        if self.refused.is_some_and(|cpu| places.contains(&Some(cpu))) {
            return Err(Error::new(Code::Cpu, "a thing", "not there"));
        }
        self.now = places.to_vec();
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Reading>> {
        self.left =
            self.left.checked_sub(1).ok_or_else(|| Error::new(Code::System, "the run", "ended"))?;
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Readings vary by one per cent.
        let noise = 0.995 + (self.noise >> 40) as f64 / f64::from(1 << 24) * 0.01;
        Ok(Some(Reading::new(self.cost(&self.now) * noise, 0.0, 0.0, 0.0)))
    }
}

#[test]
fn from_the_worst_start_it_comes_within_5_percent_of_the_best_of_all_places() {
    for (name, sockets, cores, threads, small, things) in [
        ("two", 1, 2, 1, 0, 2),
        ("one-core", 1, 1, 1, 0, 3),
        ("smt", 1, 4, 2, 0, 4),
        ("sockets", 2, 4, 2, 0, 4),
        ("big-little", 1, 8, 1, 4, 4),
        ("three", 3, 2, 2, 2, 4),
    ] {
        let machine = Machine::new(sockets, cores, threads, small);
        let topology = machine.topology();
        let model = Chain::new(&topology, things, vec![topology.cpus()[0].number; things]);
        let (best, (worst, start)) = model.exhaustive(things);
        let mut chain = Chain::new(&topology, things, start);
        let found = Search::new(&topology, things).run(&mut chain).unwrap().unwrap();
        let cost = chain.cost(&found.places);
        assert_eq!(chain.now, found.places, "{name}");
        assert!(cost <= best * 1.05, "{name}: {cost} of {best}..{worst}: {found:#?}");
        assert!(cost <= worst && (found.after.cost - cost).abs() < cost * 0.01);
    }
}

#[test]
fn things_that_work_together_share_a_cache_although_its_cpus_have_distant_numbers() {
    // Each fourth of 16 CPUs shares an L3 cache.
    let machine = Machine::new(1, 16, 1, 0).caches(4);
    let topology = machine.topology();
    for things in [3, 4] {
        let mut model = Chain::new(&topology, things, vec![0; things]);
        model.hand_over[Near::Socket as usize] = 180.0;
        let (best, (worst, start)) = model.exhaustive(things);
        let mut chain = Chain { found: start, ..model };
        let search = Search::new(&topology, things).tries_max(engine::TRIES_MAX);
        let found = search.run(&mut chain).unwrap().unwrap();
        let cost = chain.cost(&found.places);
        assert!(cost <= best * 1.05, "{things}: {cost} of {best}..{worst}: {:?}", found.places);
    }
}

#[test]
fn interrupts_of_queues_are_placed_with_their_workers_from_the_worst_start() {
    for (name, sockets, cores, threads, lanes) in [
        ("two-lanes", 1, 2, 1, vec![0, 1, 0, 1]),
        ("smt-lanes", 1, 2, 2, vec![0, 1, 0, 1]),
        ("sockets-lanes", 2, 2, 2, vec![0, 1, 0, 1]),
        ("one-worker", 2, 2, 1, vec![0, 0, 0]),
        ("two-devices", 1, 4, 1, vec![0, 1, 0, 1, 0]),
    ] {
        let machine = Machine::new(sockets, cores, threads, 0);
        let (topology, things) = (machine.topology(), lanes.len());
        let mut model = Chain::new(&topology, things, vec![0; things]);
        // An irq hands packets to the worker of its queue, which is the first thing of its lane.
        let worker = |i: usize| lanes.iter().position(|lane| *lane == lanes[i]).unwrap();
        model.hands = (0..things).map(|i| (i, worker(i))).filter(|(i, to)| i != to).collect();
        let (best, (worst, start)) = model.exhaustive(things);
        let mut chain = Chain { found: start, ..model };
        let search = Search::new(&topology, things).lanes(&lanes).tries_max(40);
        let found = search.run(&mut chain).unwrap().unwrap();
        let cost = chain.cost(&found.places);
        let tried = found.tried.len();
        assert!(cost <= best * 1.05, "{name}: {cost} of {best}..{worst}, {tried} tried");
    }
}

#[test]
fn of_many_interrupts_on_many_cpus_only_as_many_places_are_made_as_are_tried() {
    let machine = Machine::new(2, 16, 2, 0);
    let topology = machine.topology();
    let mut chain = Chain::new(&topology, 200, vec![0; 200]);
    let found = Search::new(&topology, 200).tries_max(8).run(&mut chain).unwrap().unwrap();
    assert!(found.tried.len() <= 8, "{}", found.tried.len());
}

#[test]
fn places_that_follow_from_the_topology_count_as_tries() {
    let machine = Machine::new(2, 2, 2, 0);
    let topology = machine.topology();
    for most in [0, 1, 2] {
        let mut chain = Chain::new(&topology, 3, vec![0; 3]);
        let found = Search::new(&topology, 3).tries_max(most).run(&mut chain).unwrap().unwrap();
        assert_eq!(found.tried.len(), most);
    }
}

#[test]
fn from_the_best_start_nothing_is_changed_and_a_worse_one_is_never_left() {
    let machine = Machine::new(2, 2, 2, 0);
    let topology = machine.topology();
    let all: Vec<usize> = topology.cpus().iter().map(|cpu| cpu.number).collect();
    for n in 0..all.len().pow(3) {
        let start = vec![all[n % 8], all[n / 8 % 8], all[n / 64]];
        let mut chain = Chain::new(&topology, 3, start);
        let before = chain.cost(&[None; 3]);
        let found = Search::new(&topology, 3).tries_max(12).run(&mut chain).unwrap().unwrap();
        assert!(chain.cost(&chain.now) <= before * 1.000_001, "{found:?}");
        if found.places == vec![None; 3] {
            assert_eq!(found.before, found.after);
        }
    }
}

#[test]
fn a_cpu_that_is_refused_is_left_out_and_an_end_puts_everything_back() {
    let machine = Machine::new(1, 3, 1, 0);
    let topology = machine.topology();
    let mut chain = Chain::new(&topology, 2, vec![0, 0]);
    chain.refused = Some(2);
    let found = Search::new(&topology, 2).run(&mut chain).unwrap().unwrap();
    assert!(!found.places.contains(&Some(2)) && found.places != [None, None], "{found:?}");
    assert!(found.tried.iter().any(|t| t.places.contains(&Some(2)) && t.reading.is_none()));
    for left in [0, 6, 7, 9, 14] {
        let mut chain = Chain::new(&topology, 2, vec![0, 0]);
        chain.left = left;
        let e = Search::new(&topology, 2).run(&mut chain).unwrap_err();
        assert!(e.why == "ended" && chain.now == [None, None], "{e}");
    }
}

/// A gauge of two things, which has one reading if both are on CPU 0, and another one if they are
/// not.
struct Apart {
    is_apart: bool,
    reading: Reading,
}

impl Gauge for Apart {
    fn place(&mut self, places: &[Option<usize>]) -> Result<()> {
        self.is_apart = places.iter().any(|cpu| cpu.unwrap_or(0) != 0);
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Reading>> {
        Ok(Some(if self.is_apart { self.reading } else { Reading::new(100.0, 1e6, 0.0, 0.0) }))
    }
}

#[test]
fn more_cost_is_accepted_only_for_a_rate_that_gains_four_times_as_much() {
    let machine = Machine::new(1, 2, 1, 0);
    let topology = machine.topology();
    for (cost, rate, is_moved) in [
        (108.0, 1.84e6, true),
        (108.0, 1.2e6, false),
        (140.0, 1.84e6, false),
        (95.0, 1e6, true),
        (50.0, 0.9e6, false),
    ] {
        let reading = Reading::new(cost, rate, 0.0, 0.0);
        let mut gauge = Apart { is_apart: false, reading };
        let found = Search::new(&topology, 2).run(&mut gauge).unwrap().unwrap();
        assert_eq!(gauge.is_apart, is_moved, "{cost}, {rate}: {found:?}");
    }
}

/// A gauge through which no packet passes.
struct Silent;

impl Gauge for Silent {
    fn place(&mut self, places: &[Option<usize>]) -> Result<()> {
        assert_eq!(places, [None]);
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Reading>> {
        Ok(None)
    }
}

#[test]
fn where_nothing_passes_nothing_is_placed() {
    let topology = Topology::here().unwrap();
    assert_eq!(Search::new(&topology, 1).run(&mut Silent).unwrap(), None);
}

/// A gauge that fails to read, and to restore the original places.
struct Failing;

impl Gauge for Failing {
    fn place(&mut self, _: &[Option<usize>]) -> Result<()> {
        Err(Error::new(Code::Cpu, "a thing", "not moved"))
    }

    fn read(&mut self) -> Result<Option<Reading>> {
        Err(Error::new(Code::Unsupported, "the meter", "not read"))
    }
}

#[test]
fn error_that_ended_a_search_precedes_that_of_restoring_the_places() {
    let topology = Topology::here().unwrap();
    assert_eq!(Search::new(&topology, 1).run(&mut Failing).unwrap_err().why, "not read");
}

#[test]
fn a_topology_is_read_from_what_the_kernel_says_and_gaps_are_taken_to_be_alike() {
    let machine = Machine::new(2, 2, 2, 1);
    let topology = machine.topology();
    let near = |a, b| topology.near(a, b);
    assert_eq!(
        [near(0, 0), near(0, 4), near(0, 1), near(0, 2)],
        [Near::Same, Near::Sibling, Near::Socket, Near::Machine]
    );
    // The small core, with CPUs 3 and 7, is last; second threads of cores follow the first threads.
    assert_eq!(topology.order(false), [0, 1, 2, 4, 5, 6, 3, 7]);
    assert_eq!(topology.cpu(3).unwrap().capacity, 400);
    let some = Topology::read(&machine.0.0, &[1, 5, 60]).unwrap();
    assert_eq!(some.order(true), [1, 5]);
    fs::write(machine.0.0.join("system/cpu/online"), "0-3,5").unwrap();
    fs::create_dir_all(machine.0.0.join("cpu_atom")).unwrap();
    fs::write(machine.0.0.join("cpu_atom/cpus"), "1").unwrap();
    fs::remove_dir_all(machine.0.0.join("system/cpu/cpu1")).unwrap();
    let gaps = Topology::read(&machine.0.0, &[1, 5, 7]).unwrap();
    let one = gaps.cpu(1).unwrap();
    assert_eq!((gaps.cpus().len(), one.core, one.socket, one.capacity), (2, 1, 0, 512));
    let e = Topology::read(&machine.0.0, &[7]).unwrap_err();
    assert!(e.code == Code::Cpu && e.why.contains("none is online"), "{e}");
}

#[test]
fn cpus_of_a_cache_are_in_sequence_and_alternate_if_they_are_to_be_apart() {
    // Two sockets of CPUs 0-3 and 4-7: the even CPUs of each share a cache, and the odd ones do.
    let topology = |groups| Machine::new(2, 4, 1, 0).caches(groups).topology();
    let two = topology(2);
    assert_eq!(two.order(false), [0, 2, 1, 3, 4, 6, 5, 7]);
    assert_eq!(two.order(true), [0, 4, 1, 5, 2, 6, 3, 7]);
    let near = |b| two.near(5, b);
    assert_eq!([near(7), near(4), near(1)], [Near::Cache, Near::Socket, Near::Machine]);
    let one = topology(1);
    assert_eq!(one.order(false), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(one.order(true), [0, 4, 1, 5, 2, 6, 3, 7]);
}

#[test]
fn round_trips_of_this_machine_are_measured_for_each_nearness() {
    let topology = Topology::here().unwrap();
    let Some(trips) = unless(round_trips(&topology), is_filtered) else { return };
    assert!(trips.len() <= 4);
    for trip in trips {
        assert!(trip.ns > 0 && trip.near == topology.near(trip.cpus.0, trip.cpus.1), "{trip:?}");
    }
}

#[test]
fn pair_of_cpus_of_which_one_is_gone_is_left_out() {
    let mut cpus: Vec<usize> = Topology::here().unwrap().cpus().iter().map(|c| c.number).collect();
    cpus.truncate(2);
    // The last CPU, alone on its socket, does not exist.
    let devices = Scratch::new();
    devices.file("system/cpu/cpu60000/topology/physical_package_id", "1");
    let topology = Topology::read(&devices.0, &[&cpus[..], &[60_000]].concat()).unwrap();
    assert_eq!(topology.near(cpus[0], 60_000), Near::Machine);
    let Some(trips) = unless(round_trips(&topology), is_filtered) else { return };
    assert!(trips.iter().all(|trip| [trip.cpus.0, trip.cpus.1] == cpus[..]), "{trips:?}");
}

#[test]
fn time_for_which_cpus_are_not_idle_is_counted() {
    let (start, begun) = (engine::busy_ns(), Instant::now());
    while engine::busy_ns() < start + 5e7 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{start} to {}", engine::busy_ns());
        // This thread keeps one CPU busy, unless the hypervisor takes it away.
        let until = Instant::now() + Duration::from_millis(60);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn workers_of_a_running_engine_are_where_the_report_says_and_a_search_after_the_end_is_refused() {
    if !may_pin() {
        return;
    }
    let engine = linerate_datapath::Engine::builder().port("a", "null:,queues=2");
    let engine = engine.port("b", "null:,queues=2").wire("a", "b").workers(2).build().unwrap();
    let running = engine.start().unwrap();
    let (control, over) = (running.control(), Arc::new(AtomicBool::new(true)));
    let gauge = || EngineGauge::new(&control, running.stats(), &over);
    let e = gauge().search().unwrap_err();
    assert!(e.code == Code::Busy && e.why == "the run ended first", "{e}");
    over.store(false, Ordering::Relaxed);
    let report = gauge().search().unwrap();
    assert_eq!(report.names, ["worker 0", "worker 1"]);
    let places = report.found.as_ref().map_or(vec![None; 2], |found| found.places.clone());
    let pinned: Vec<_> = running.stats().workers().iter().map(|worker| worker.pinned).collect();
    let one_cpu = Topology::here().unwrap().cpus().len() == 1;
    assert!(one_cpu || pinned == places, "{pinned:?}: {report}");
    let text = report.to_string();
    assert!(text.starts_with("placement: "), "{text}");
    running.stop(Duration::from_secs(20)).check().unwrap();
}

#[test]
fn a_counter_that_is_withdrawn_in_mid_run_ends_the_search_and_everything_is_put_back() {
    if !may_pin() {
        return;
    }
    let engine = linerate_datapath::Engine::builder().port("a", "null:").port("b", "null:");
    let running = engine.wire("a", "b").build().unwrap().start().unwrap();
    let all = linerate_sys::thread::allowed_cpus().unwrap();
    // The meter counts while the start is read; afterwards it stands still, or cannot be read.
    for (last, fault) in
        [(None, " cycles counted nothing"), (Some(f64::NAN), " cycles did not count all the time")]
    {
        let (over, mut calls) = (Arc::default(), 0.0);
        let meter = move || {
            calls += 1.0;
            if calls <= 12.0 { calls * 1e9 } else { last.unwrap_or(12e9) }
        };
        let gauge = EngineGauge::new(&running.control(), running.stats(), &over);
        let e = gauge.meter("cycles", Box::new(meter)).search().unwrap_err();
        assert_eq!(e.code, Code::Unsupported, "{e}");
        assert!(e.why.ends_with(fault) && !e.fix.is_empty(), "{e}");
        let before = running.control().set_cpus(0, &all).unwrap().wait(Duration::from_secs(20));
        assert_eq!(before.unwrap().before, all);
    }
    running.stop(Duration::from_secs(20)).check().unwrap();
}

#[test]
fn a_report_has_before_and_after_side_by_side() {
    let found = Found {
        places: vec![Some(1), None],
        before: Reading::new(200.0, 1e6, 0.5, 1.0),
        after: Reading::new(150.0, 1.2e6, 0.0, 1.0),
        floor: 0.02,
        tried: Vec::new(),
    };
    let names = ["worker 0", "worker 1"].map(str::to_owned).to_vec();
    let mut report =
        PlacementReport { names, unit: "ns", round_trips: Vec::new(), found: Some(found) };
    assert_eq!(
        report.to_string(),
        "placement: worker 0 on CPU 1, worker 1 as it was (0 tried; the middle half of repeated measurements of the first one is 2.0 % wide)\n  \
         a packet                  before     after\n  \
         CPU, ns                    200.0     150.0   -25.0 %\n  \
         packets a second         1000000   1200000   +20.0 %\n  \
         freed on another CPU       0.500     0.000\n  \
         handed to a worker         1.000     1.000\n"
    );
    report.found = None;
    assert!(report.to_string().contains("unchanged: too few packets"));
}
