//! The search for CPUs on a running engine, whose workers share a CPU at the start. This is a
//! process of its own, so that its CPU time is that of the workers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use linerate_ctl::affinity::ThreadPin;
use linerate_ctl::placement::{EngineGauge, Topology};
use linerate_datapath::{Engine, Running};
use linerate_port::Code;
use linerate_sys::clock::cpu_time;
use linerate_sys::thread::{self as own, allowed_cpus_of, is_filtered, run_on};
use linerate_testing::unless;

const LONG: Duration = Duration::from_secs(30);
/// Length of one count of packets.
const WINDOW: Duration = Duration::from_millis(500);
/// Least ratio of the rate after the search to the rate before it: two CPUs give 1.8
/// (docs/placement.md).
const GAIN_MIN: f64 = 1.3;
/// Least share of its CPUs that the engine gets on a machine that no other program disturbs.
const SHARE_MIN: f64 = 0.9;
const ATTEMPTS: usize = 5;

/// Two CPUs, and an engine of two workers that are pinned to the first of them. No other test runs
/// meanwhile.
struct Crowded {
    running: Running,
    cpus: [usize; 2],
    _alone: MutexGuard<'static, ()>,
}

impl Crowded {
    /// Starts the engine; returns `None`, with a message, on a machine of one CPU, and if a filter
    /// of system calls refuses to pin threads, as `no-affinity` of tests/src/setting.rs does.
    fn start() -> Option<Crowded> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let [first, second, ..] = Topology::here().unwrap().order(true)[..] else {
            println!("skipped: one CPU");
            return None;
        };
        // A search tries the CPUs that the calling thread may use.
        unless(run_on(&[first, second]), is_filtered)?;
        let builder = Engine::builder().port("a", "null:,queues=2").port("b", "null:,queues=2");
        let engine = builder.wire("a", "b").cpus(&[first, first]).build().unwrap();
        let running = engine.start().unwrap();
        let crowded = Crowded { running, cpus: [first, second], _alone: alone };
        crowded.wait_until(|pinned| pinned == [first, first]);
        Some(crowded)
    }

    /// Returns the CPU to which each worker is pinned.
    fn pinned(&self) -> Vec<usize> {
        self.running.stats().workers().iter().filter_map(|worker| worker.pinned).collect()
    }

    fn wait_until(&self, done: impl Fn(&[usize]) -> bool) {
        let until = Instant::now() + LONG;
        while !done(&self.pinned()) {
            assert!(Instant::now() < until, "{:?}", self.pinned());
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn gauge(&self, over: &Arc<AtomicBool>) -> EngineGauge {
        EngineGauge::new(&self.running.control(), self.running.stats(), over)
    }

    /// Counts packets for one window; returns also the share of `cpus` CPUs that the engine got.
    fn count(&self, cpus: usize) -> (f64, f64) {
        let packets =
            || self.running.stats().ports().iter().map(|p| p.counts.rx_packets).sum::<u64>();
        let (begun, start, used) = (Instant::now(), packets(), cpu_time());
        thread::sleep(WINDOW);
        let (rate, used) = ((packets() - start) as f64, cpu_time() - used);
        let wall = begun.elapsed().as_secs_f64();
        (rate / wall, used.as_secs_f64() / wall / cpus as f64)
    }

    fn stop(self) {
        self.running.stop(LONG).check().unwrap();
    }
}

/// S3.24: the search finds the second CPU by itself, its table has both sides, and packets that are
/// counted without the search confirm the gain.
#[test]
fn workers_that_share_a_cpu_are_moved_apart_and_the_rate_rises() {
    let mut failures = Vec::new();
    for _ in 0..ATTEMPTS {
        let Some(crowded) = Crowded::start() else { return };
        let ([first, second], (before, share_before)) = (crowded.cpus, crowded.count(1));
        let report = crowded.gauge(&Arc::default()).search().unwrap();
        let found = report.found.clone().unwrap();
        let is_apart = |at: &[usize]| at == [first, second] || at == [second, first];
        let tried = found.tried.iter().any(|tried| {
            let at: Vec<usize> = tried.places.iter().map(|cpu| cpu.unwrap_or(first)).collect();
            is_apart(&at) && tried.reading.is_some()
        });
        assert!(tried, "the search did not measure the second CPU: {found:#?}");
        let pinned = crowded.pinned();
        let moved = is_apart(&pinned);
        let (after, share_after) = crowded.count(if moved { 2 } else { 1 });
        crowded.stop();
        let text = report.to_string();
        let gains = [after / before, found.after.rate / found.before.rate];
        if moved && gains.iter().all(|gain| *gain >= GAIN_MIN) {
            for part in ["worker 0 ", "worker 1 ", "before     after", "packets a second"] {
                assert!(text.contains(part), "{part}: {text}");
            }
            return;
        }
        let is_quiet = share_before.min(share_after) >= SHARE_MIN;
        failures
            .push((is_quiet, format!("gains {gains:.2?} on CPUs {pinned:?}: {text}{found:#?}")));
    }
    let quiet: Vec<&String> =
        failures.iter().filter(|(is_quiet, _)| *is_quiet).map(|(_, told)| told).collect();
    // A search can be disturbed between two quiet counts, so a few failures on quiet CPUs prove
    // nothing.
    if quiet.len() * 2 <= failures.len() {
        return println!("skipped: other programs used the CPUs: {failures:?}");
    }
    panic!("{} of {} attempts on quiet CPUs: {}", quiet.len(), failures.len(), quiet[0]);
}

#[test]
fn a_search_that_ends_after_a_move_puts_the_workers_back() {
    let Some(crowded) = Crowded::start() else { return };
    let (over, at_start) = (Arc::default(), [crowded.cpus[0]; 2]);
    let gauge = crowded.gauge(&over);
    let ended = thread::scope(|scope| {
        let search = scope.spawn(|| gauge.search());
        crowded.wait_until(|pinned| pinned != at_start);
        over.store(true, Ordering::Relaxed);
        search.join().unwrap()
    });
    assert_eq!(ended.unwrap_err().code, Code::Busy);
    assert_eq!(crowded.pinned(), at_start);
    crowded.stop();
}

#[test]
fn a_thread_of_the_program_is_placed_with_the_workers() {
    let Some(crowded) = Crowded::start() else { return };
    let (ends, (tell, told)) = (Arc::<AtomicBool>::default(), channel());
    let beside = thread::spawn({
        let ends = ends.clone();
        move || {
            tell.send(own::id()).unwrap();
            while !ends.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let id = told.recv().unwrap();
    let (before, seen) = (allowed_cpus_of(id).unwrap(), Arc::<Mutex<Vec<Vec<usize>>>>::default());
    let meter = {
        let seen = seen.clone();
        move || {
            seen.lock().unwrap().push(allowed_cpus_of(id).unwrap());
            cpu_time().as_secs_f64() * 1e9
        }
    };
    let gauge = crowded.gauge(&Arc::default()).beside(ThreadPin::of(id), 0);
    let report = gauge.meter("ns", Box::new(meter)).search().unwrap();
    assert_eq!(report.names, ["worker 0".into(), "worker 1".into(), format!("thread {id}")]);
    let seen = seen.lock().unwrap();
    assert!(crowded.cpus.iter().all(|cpu| seen.contains(&vec![*cpu])), "{seen:?}");
    let placed = report.found.unwrap().places[2].map_or(before, |cpu| vec![cpu]);
    assert_eq!(allowed_cpus_of(id).unwrap(), placed);
    ends.store(true, Ordering::Relaxed);
    beside.join().unwrap();
    crowded.stop();
}
