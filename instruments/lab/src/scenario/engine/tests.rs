//! Tests of the scenario through the runner's interface. No test judges a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use linerate_prof::pmu;
use linerate_testing::unless;

use super::Engine;
use super::turning::Done;
use crate::Kind;
use crate::scenario::crew::{Crew, Duty};
use crate::scenario::{Bench, Finished, Place, Scenario, is_missing_here};
use crate::settings::{Setting, Settings, Value};
use crate::window::Window;

const SHORT: Duration = Duration::from_millis(10);

/// Returns a place with the machine's CPUs, at most `most`.
fn place(most: usize) -> Place {
    let mut cpus = linerate_port::thread::allowed_cpus().unwrap();
    cpus.truncate(most);
    Place { cpus, ..Place::default() }
}

/// Returns a side on as many CPUs as it needs; prints a note and returns `None` if the machine has
/// fewer, or lacks something else for the side.
fn open(settings: &Settings) -> Option<Box<dyn Bench>> {
    unless(Engine.open(settings, &place(2)), is_missing_here)
}

fn ring() -> Settings {
    Settings::new().with("path", "ring").with("sample_every", 7)
}

/// Returns the windows of a side, and its end.
fn run(settings: &Settings, windows: usize) -> Option<(Vec<Window>, Finished)> {
    let mut bench = open(settings)?;
    let windows = (0..windows).map(|_| window(bench.as_mut(), |_| true)).collect();
    Some((windows, bench.finish().unwrap()))
}

/// Runs windows until one is `enough`: on a busy machine the threads may have no CPU in the first.
/// Returns that window.
fn window(bench: &mut dyn Bench, enough: impl Fn(&Window) -> bool) -> Window {
    for _ in 0..1000 {
        let window = bench.window(SHORT).unwrap();
        if window.packets > 0 && enough(&window) {
            return window;
        }
    }
    panic!("its threads never had a CPU for long enough");
}

fn figure(window: &Window, name: &str) -> f64 {
    window.figure(name).unwrap_or_else(|| panic!("no {name} in {window:?}"))
}

fn sum(windows: &[Window], name: &str) -> f64 {
    windows.iter().map(|window| figure(window, name)).sum()
}

#[test]
fn a_window_adds_up_and_the_end_is_balanced() {
    for path in ["null", "ring"] {
        let (windows, end) = run(&ring().with("path", path), 3).unwrap();
        for window in &windows {
            let n = window.packets as f64;
            assert!(n > 0.0 && window.bytes == Some(60 * window.packets), "{path}: {window:?}");
            let out = figure(window, "allocs") - figure(window, "frees");
            assert_eq!(out, figure(window, "in_flight"), "{path}");
            let dropped = figure(window, "dropped") + figure(window, "overruns");
            let went = n + dropped + figure(window, "in_flight");
            assert_eq!(figure(window, "offered"), went, "{path}");
            assert_eq!(figure(window, "allocs"), figure(window, "hits") + figure(window, "misses"));
        }
        let all: u64 = windows.iter().map(|window| window.packets).sum();
        assert!(end.ledger.balanced && end.ledger.in_flight == 0, "{path}: {end:?}");
        assert!(end.ledger.sent >= all && end.totals["outstanding_at_rest"] == 0.0, "{end:?}");
        let freed: u64 = end.matrices["free_matrix"].iter().flatten().sum();
        assert!(freed >= all, "{path}: {end:?}");
    }
}

#[test]
fn a_longer_hot_list_serves_what_a_list_of_none_cannot() {
    // The worker allocates and frees: every freed frame is allocated again, if a hot list keeps
    // any.
    let of = |list: i64| {
        let settings = Settings::new().with("hot_list", list).with("sample_every", 7);
        let (windows, end) = run(&settings, 2).unwrap();
        (windows[1].clone(), end)
    };
    let (none, end) = of(0);
    assert_eq!(figure(&none, "hits"), 0.0);
    assert!(figure(&none, "discards") > 0.0 && end.ledger.balanced);
    let (long, end) = of(1024);
    assert_eq!((figure(&long, "misses"), figure(&long, "locks")), (0.0, 0.0));
    assert!(figure(&long, "hits") > 0.0 && figure(&none, "locks") > 0.0);
    assert_eq!(end.totals["hot_list_len: worker 0"], 1024.0);
}

#[test]
fn general_buffers_are_the_allocators_and_frames_are_not() {
    for (buffers, calls) in [("general", 2.0), ("frames", 0.0)] {
        let (windows, end) = run(&ring().with("buffers", buffers), 1).unwrap();
        let packets = windows[0].packets as f64;
        assert_eq!(figure(&windows[0], "allocator_calls"), calls * packets, "{buffers}");
        assert!(end.ledger.balanced);
    }
}

#[test]
fn every_figure_that_is_named_is_there_once_calls_were_timed() {
    let mut bench = open(&ring().with("path", "null")).unwrap();
    let timed = window(bench.as_mut(), |window| window.figure("buffer_ticks").is_some());
    // Skip the figures of a second process, which cli/tests/fabric.rs tests.
    let beyond = ["far_", "receipt_", "slowest_"];
    let of_this = |name: &str| !beyond.iter().any(|prefix| name.starts_with(prefix));
    for known in Engine.figures().iter().filter(|known| of_this(known.name)) {
        assert!(timed.figure(known.name).is_some(), "{} of {timed:?}", known.name);
    }
    assert!(figure(&timed, "buffer_ticks") > 0.0 && figure(&timed, "tick_hz") > 0.0);
    let (windows, _) = run(&ring().with("sample_every", 0), 1).unwrap();
    assert_eq!(windows[0].figure("buffer_ticks"), None, "a figure that was not timed is unknown");
}

#[test]
fn at_a_fixed_rate_what_is_due_is_offered_and_the_thread_sleeps() {
    let (windows, end) = run(&ring().with("rate", "64kpps"), 3).unwrap();
    for window in &windows {
        // 640 are due in 10 ms, in bursts of 64; one burst more if another program delayed the end.
        assert!(figure(window, "due") <= 704.0, "{window:?}");
        let offered = figure(window, "offered");
        assert!(offered <= figure(window, "due") && offered % 64.0 == 0.0, "{window:?}");
        assert_eq!(figure(window, "unsent"), figure(window, "due") - offered, "{window:?}");
        let late = figure(window, "late_ns") > 0.01 * window.wall_ns as f64;
        assert_eq!(window.disturbed.is_some(), late, "{window:?}");
    }
    assert!(sum(&windows, "sleeps") > 0.0 && sum(&windows, "asleep_ns") > 0.0);
    assert!(end.ledger.balanced);
}

#[test]
fn a_process_beyond_needs_a_program_and_packets_that_it_can_see() {
    let why = |settings: &Settings| Engine.check(settings, &place(2)).unwrap_err().why;
    let fabric = Settings::new().with("path", "fabric");
    assert!(
        why(&fabric).starts_with("it needs a second process of this program"),
        "{}",
        why(&fabric)
    );
    let general = fabric.clone().with("buffers", "general");
    assert!(why(&general).starts_with("out = \"cut-through\" needs frames"), "{}", why(&general));
    assert!(
        why(&fabric.clone().with("out", "none"))
            .starts_with("path = \"fabric\" and \"device\" have")
    );
    assert!(why(&fabric.clone().with("threads", 2)).contains("one worker, and a process beyond"));
    assert!(
        why(&ring().with("out", "copy")).starts_with("out is for path = \"fabric\", \"adapter\"")
    );
    assert!(why(&fabric.with("out_len", 3)).starts_with("out_len = 3 is not a power of two"));
    let device = || Settings::new().with("path", "device");
    assert!(why(&device().with("size", 1515)).starts_with("size: a device carries"));
    assert!(why(&device().with("ring_len", 32)).starts_with("ring_len: a ring of AF_XDP has"));
    assert!(why(&device().with("threads", 1)).contains("have a wire"));
    let cards = |text: &str| Value::List(vec![text.into()]);
    for text in ["a", "a,a", "a, a", "a,", ",b", ""] {
        let refused = why(&device().with("cards", cards(text)));
        assert_eq!(refused, format!("cards: {text:?} is not \"SENDER,RECEIVER\", each named once"));
    }
    let twice = Value::List(vec!["a,b".into(), "a,c".into()]);
    assert!(why(&device().with("cards", twice)).starts_with("cards: \"a,c\" is not"));
    assert!(why(&ring().with("cards", cards("a,b"))).starts_with("cards is for path"));
    assert!(why(&device().with("buffers", "general")).starts_with("out = \"cut-through\" needs"));
    // A program that does not answer is reported.
    let other = Place { program: Some("/bin/true".into()), ..place(1) };
    let e = Engine.open(&Settings::new().with("path", "fabric"), &other).err().unwrap();
    assert_eq!(e.why, "it has ended");
}

#[test]
fn two_threads_pass_packets_between_their_cpus() {
    let Some((windows, end)) = run(&ring().with("threads", 2), 3) else { return };
    let went = sum(&windows, "in_flight") + windows.iter().map(|w| w.packets as f64).sum::<f64>();
    assert_eq!(sum(&windows, "offered"), went);
    assert!(windows.iter().all(|window| window.threads.len() == 2), "{windows:?}");
    assert!(end.ledger.balanced && end.ledger.in_flight == 0, "{end:?}");
    assert_eq!(end.ledger.dropped.get("stopped"), None, "{end:?}");
}

fn adapter() -> Settings {
    let slow = Settings::new().with("path", "adapter").with("rate", "500kpps");
    slow.with("hot_list", 128).with("sample_every", 3).with("reap", 128)
}

#[test]
fn packets_of_an_adapter_are_received_or_counted_by_overrun_cause() {
    // With a ring of 16 and bursts of 400, some packets are lost on any machine.
    let settings = adapter().with("ring_len", 16).with("burst", 400);
    let Some((windows, end)) = run(&settings.with("line_rate", "500Mpps"), 3) else { return };
    for window in &windows {
        let causes = ["overruns_ring_full", "overruns_no_frame", "overruns_wire_late"];
        let causes: f64 = causes.iter().map(|name| figure(window, name)).sum();
        assert_eq!(figure(window, "overruns"), causes);
        assert_eq!(figure(window, "offered"), window.packets as f64 + causes, "{window:?}");
        assert_eq!(window.threads.iter().filter(|thread| thread.measured).count(), 1);
        let late = figure(window, "late");
        assert!(late >= figure(window, "overruns_wire_late"), "{window:?}");
        // Bursts so large and fast may be late at every check: such a window must be disturbed.
        let most = late > figure(window, "offered") / 2.0;
        assert!(!most || window.disturbed.is_some(), "{window:?}");
    }
    assert!(sum(&windows, "overruns") > 0.0);
    let ledger = &end.ledger;
    assert!(ledger.balanced && ledger.in_flight == 0, "{end:?}");
    assert_eq!((ledger.created, ledger.offered), (0, Some(ledger.received)), "{end:?}");
    let dropped: u64 = ledger.dropped.values().sum();
    assert_eq!(ledger.received, ledger.sent + dropped, "{end:?}");
    assert!(end.totals["outstanding"] >= 16.0, "the ring is full again: {end:?}");
}

#[test]
fn an_adapter_whose_pool_is_too_small_for_its_ring_says_so() {
    let settings = adapter().with("ring_len", 1024).with("pool_frames", 64).with("burst", 200);
    let settings = settings.with("line_rate", "10Mpps").with("hot_list", 16).with("rate", "1Mpps");
    let Some((windows, end)) = run(&settings, 2) else { return };
    assert!(sum(&windows, "starved") > 0.0 && sum(&windows, "overruns") > 0.0, "{windows:?}");
    assert_eq!(sum(&windows, "overruns_ring_full"), 0.0, "the pool is the cause: {windows:?}");
    assert!(end.ledger.balanced, "{end:?}");
}

#[test]
fn general_buffers_of_an_adapter_are_held_from_the_allocator() {
    for (buffers, of_allocator) in [("general", true), ("frames", false)] {
        let Some((_, end)) = run(&adapter().with("buffers", buffers), 1) else { return };
        let held = end.totals["memory_bytes"] - end.totals["mapped_bytes"];
        // 256 buffers are posted, and each has room for more than an Ethernet frame.
        assert_eq!(held > 256.0 * 1514.0, of_allocator, "{buffers}: {held}");
    }
}

/// A duty that records the id of its thread.
struct Noted(Arc<AtomicI32>);

impl Duty<Duration, Done> for Noted {
    fn run(&mut self, _: Duration) -> std::io::Result<Done> {
        self.0.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        Ok(Done { packets: 1, ..Done::default() })
    }
}

#[test]
fn between_windows_a_thread_is_not_on_a_cpu() {
    let (tid, mut crew) = (Arc::new(AtomicI32::new(0)), Crew::new());
    crew.hire("noted", place(1).cpus[0], true, Box::new(Noted(tid.clone()))).unwrap();
    crew.order(&Duration::ZERO);
    let (times, done) = crew.collect().unwrap();
    assert_eq!((times.len(), done[0].packets), (1, 1));
    // Time on a CPU, run delay, and the number of times that the thread was put on a CPU.
    let task = format!("/proc/self/task/{}/schedstat", tid.load(Ordering::Relaxed));
    let mut before = match std::fs::read_to_string(&task) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return println!("skipped: no {task}");
        }
        text => text.unwrap(),
    };
    // The thread may still be on its way to the channel on which it waits.
    let rests = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let now = std::fs::read_to_string(&task).unwrap();
        std::mem::replace(&mut before, now.clone()) == now
    });
    assert!(rests, "{before}");
    assert!(crew.dismiss().unwrap().is_empty());
}

#[test]
fn a_setting_that_makes_no_sense_is_refused_with_its_line() {
    let cases: [(&str, Value, &str); 14] = [
        ("moderation", "napi".into(), "moderation is for path = \"device\""),
        ("moderation", "often".into(), "moderation = often: "),
        ("path", "wire".into(), "path = wire is not one of"),
        ("ring_len", 100.into(), "ring_len = 100 is not a power of two"),
        ("burst", 100.into(), "burst = 100 is no multiple of 64, a turn's packets"),
        ("burst", 512.into(), "burst = 512 is more than a ring of 256 takes"),
        ("rate", "fast".into(), "rate: 'fast' does not start with a number"),
        ("rate", 59.into(), "rate = 59 is not from 1pps to 1Gpps"),
        ("size", 59.into(), "size = 59 is not a whole number from 60"),
        ("size", "mix".into(), "size = mix is not a whole number from 60 to 65536 or \"imix\""),
        ("hot_list", 65_537.into(), "hot_list = 65537 is not a whole number from 0 to 65536"),
        ("frame_size", 3000.into(), "frame_size = 3000 is not a power of two"),
        ("threads", 3.into(), "threads = 3 is not a whole number from 1 to 2"),
        ("hotlist", 1.into(), "has no setting \"hotlist\""),
    ];
    for (name, value, why) in cases {
        let mut settings = Settings::new().with("path", "ring");
        settings.set(name, Setting { value, line: 12 });
        let e = Engine.check(&settings, &place(1)).unwrap_err();
        assert!(e.why.starts_with("line 12: ") && e.why.contains(why), "{e}");
    }
    for (path, name, value) in [("null", "threads", 2), ("adapter", "threads", 1)] {
        let settings = Settings::new().with("path", path).with(name, value);
        assert!(Engine.check(&settings, &place(2)).is_err(), "{path} {name}");
    }
}

#[test]
fn a_side_of_two_threads_needs_two_cpus() {
    for settings in [ring().with("threads", 2), adapter()] {
        let e = Engine.check(&settings, &place(1)).unwrap_err();
        assert_eq!(e.code.kind(), Kind::Unsupported);
        assert!(e.why.contains("2 threads need a CPU each, and there are 1"), "{e}");
    }
}

#[test]
fn every_knob_is_told_and_changes_what_it_names() {
    let with = |name: &'static str, value: Value| {
        let mut settings = ring();
        settings.set(name, Setting { value, line: 1 });
        run(&settings, 1).unwrap()
    };
    let (windows, _) = with("size", 100.into());
    assert_eq!(windows[0].bytes, Some(100 * windows[0].packets));
    let (windows, _) = with("size", "imix".into());
    assert!(windows[0].bytes.unwrap() > 300 * windows[0].packets);
    let (windows, end) = with("verify", true.into());
    assert_eq!((end.ledger.reordered, end.ledger.duplicated), (Some(0), Some(0)));
    assert!(windows[0].packets > 0);
    let (_, end) = with("pool_frames", 8192.into());
    assert_eq!(end.totals["pool_frames"], 8192.0);
    let (_, end) = with("frame_size", 4096.into());
    assert_eq!(end.totals["frame_bytes"], 4096.0);
    let (windows, _) = with("budget", 32.into());
    assert!(windows[0].packets.is_multiple_of(32));
    // Frames that return home are allocated again without a visit to the depot.
    for (knob, words) in [("init", ["at_alloc", "at_free"]), ("return", ["local", "home"])] {
        for word in words {
            let (windows, end) = with(knob, word.into());
            assert!(windows[0].packets > 0 && end.ledger.balanced, "{knob} {word}");
        }
    }
}

#[test]
fn a_profile_says_its_packets_or_why_there_is_none() {
    let mut bench = Engine.open(&ring(), &place(1)).unwrap();
    if let Some(profiles) = unless(bench.profile(Duration::from_millis(100)), pmu::is_refused) {
        assert!(profiles[0].conditions.packets.unwrap() > 0, "{profiles:?}");
        assert_eq!(profiles[0].checked.as_ref().unwrap().headline.by.len(), 2);
    }
    bench.finish().unwrap();
}

#[test]
fn an_adapter_that_holds_its_irq_counts_irqs_by_cause_and_loses_nothing() {
    let worker = ring().with("threads", 2).with("rate", "640kpps");
    let of_lab = adapter().with("burst", 64).with("line_rate", "1Mpps");
    for settings in [worker, of_lab] {
        let settings = settings.with("hold_usecs", 2000).with("hold_frames", 8);
        let Some(mut bench) = open(&settings) else { return };
        let irqs =
            |window: &Window| figure(window, "irqs_by_time") + figure(window, "irqs_by_frames");
        let window = window(bench.as_mut(), |window| irqs(window) > 0.0);
        assert!(irqs(&window) <= window.wakeups.unwrap() as f64, "{window:?}");
        let end = bench.finish().unwrap();
        assert!(end.ledger.balanced && end.ledger.in_flight == 0, "{end:?}");
        assert!(end.notes.iter().any(|note| note.starts_with("MODEL")), "{end:?}");
    }
    for settings in [ring(), ring().with("path", "null")] {
        let e = Engine.check(&settings.with("hold_usecs", 100), &place(2)).unwrap_err();
        assert!(e.why.contains("hold_usecs is for path = \"adapter\""), "{e}");
    }
    let e = Engine.check(&adapter().with("hold_frames", 8), &place(2)).unwrap_err();
    assert!(e.why.contains("hold_frames ends a hold of hold_usecs"), "{e}");
}
