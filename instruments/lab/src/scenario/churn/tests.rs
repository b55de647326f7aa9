use super::*;
use crate::scenario::is_missing_here;
use crate::settings::{Setting, Value};
use linerate_sys::thread::allowed_cpus;

const WINDOW: Duration = Duration::from_millis(10);
/// Most windows of a test: a busy machine may give the side's threads no time in some of them.
const WINDOWS_MAX: usize = 1000;

fn here() -> Place {
    Place { cpus: allowed_cpus().unwrap(), ..Place::default() }
}

/// Returns a side; prints the reason and returns `None` if this machine cannot run it.
fn side(settings: &Settings) -> Option<Box<dyn Bench>> {
    linerate_testing::unless(Churn.open(settings, &here()), is_missing_here)
}

/// Returns the settings of every combination of policies and accesses.
fn modes() -> Vec<Settings> {
    let mut all = vec![Settings::new().with("pool_frames", 2048).with("hot_list", 128)];
    for (knob, values) in [
        ("init", ["at_alloc", "at_free"].as_slice()),
        ("free", &["local", "remote"]),
        ("consumer", &["none", "reads", "writes"]),
        ("return", &["local", "home"]),
        ("buffers", &["frames", "general"]),
    ] {
        let each =
            |value: &&str| all.iter().map(|s| s.clone().with(knob, *value)).collect::<Vec<_>>();
        all = values.iter().flat_map(each).collect();
    }
    all
}

fn whole(value: f64) -> u64 {
    assert!(value >= 0.0 && value.fract() == 0.0, "{value}");
    value as u64
}

#[test]
fn in_every_mode_each_packet_that_was_allocated_is_freed_or_somewhere() {
    for settings in modes() {
        let Some(mut side) = side(&settings) else { continue };
        let (mut allocs, mut frees, mut windows) = (0, 0, 0);
        while windows < 2 || frees == 0 {
            assert!(windows < WINDOWS_MAX, "its threads never had a CPU: {settings:?}");
            windows += 1;
            let window = side.window(WINDOW).unwrap();
            allocs += whole(window.figures["allocs"]);
            frees += whole(window.figures["frees"]);
            assert_eq!(window.packets, whole(window.figures["frees"]));
            assert!(window.threads.iter().all(|thread| thread.measured && thread.cpu.is_some()));
        }
        let finished = side.finish().unwrap();
        let told = format!("{settings:?}\n{finished:?}");
        assert!(allocs > 0, "{told}");
        assert_eq!(allocs, frees + whole(finished.totals["outstanding"]), "{told}");
        assert!(finished.ledger.balanced && finished.ledger.in_flight == 0, "{told}");
        assert_eq!((finished.ledger.created, finished.ledger.consumed), (allocs, allocs), "{told}");
        assert_eq!(freed(&finished), allocs, "{told}");
    }
}

/// Runs windows until packets were freed in one that is `enough`; returns that window.
fn busy_window(side: &mut dyn Bench, enough: impl Fn(&Window) -> bool) -> Window {
    for _ in 0..WINDOWS_MAX {
        let window = side.window(WINDOW).unwrap();
        if window.packets > 0 && enough(&window) {
            return window;
        }
    }
    panic!("its threads never had a CPU for long enough");
}

fn freed(finished: &Finished) -> u64 {
    finished.matrices["free_matrix"].iter().flatten().sum()
}

#[test]
fn packets_are_freed_elsewhere_all_of_them_or_none() {
    for (free, share) in [("local", 0.0), ("remote", 100.0)] {
        let Some(mut side) = side(&Settings::new().with("free", free)) else { continue };
        busy_window(side.as_mut(), |_| true);
        let finished = side.finish().unwrap();
        assert_eq!(finished.totals.get("remote_share_pct"), Some(&share), "{finished:?}");
        let matrix = &finished.matrices["free_matrix"];
        let diagonal: u64 = matrix.iter().enumerate().map(|(cpu, row)| row[cpu]).sum();
        assert_eq!(diagonal == 0, free == "remote", "{matrix:?}");
    }
}

#[test]
fn each_cpu_counts_only_its_own_work() {
    let Some(mut side) = side(&Settings::new()) else { return };
    // Both threads must have had their CPUs.
    let both_ran = |window: &Window| window.figures.contains_key("buffer_ticks");
    let figures = busy_window(side.as_mut(), both_ran).figures;
    assert_eq!((figures["frees_w0"], figures["allocs_w1"]), (0.0, 0.0));
    assert_eq!(figures["allocs_w0"], figures["allocs"]);
    assert_eq!(figures["free_ticks_w1"], figures["free_ticks"]);
    assert!(!figures.contains_key("alloc_ticks_w1") && !figures.contains_key("free_ticks_w0"));
    // The others are differences of these, which noise may make negative.
    for name in ["timer_ticks", "init_ticks_cold", "init_ticks_warm", "warm_ticks", "buffer_ticks"]
    {
        assert!(figures[name] > 0.0, "{name} {figures:?}");
    }
    for name in ["allocator_ticks", "miss_ticks"] {
        assert!(figures.contains_key(name), "{name} {figures:?}");
    }
    side.finish().unwrap();
}

#[test]
fn a_side_that_is_dropped_without_an_end_leaves_no_thread_behind() {
    let Some(mut side) = side(&Settings::new().with("pool_frames", 8192)) else { return };
    side.window(WINDOW).unwrap();
    drop(side);
    // A side returns its pools when its threads have ended; otherwise this loop would exceed the
    // limit of 31 pools in a process.
    for _ in 0..40 {
        let opened = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            Churn.open(&Settings::new(), &here()).ok()
        });
        drop(opened.expect("a pool becomes free within half a second"));
    }
}

#[test]
fn one_cpu_is_enough_for_local_and_too_few_for_remote() {
    let one = Place { cpus: vec![allowed_cpus().unwrap()[0]], ..Place::default() };
    assert_eq!(Churn.check(&Settings::new().with("free", "local"), &one), Ok(()));
    let e = Churn.check(&Settings::new(), &one).unwrap_err();
    assert_eq!(e.kind(), crate::Kind::Unsupported);
    assert_eq!(e.why, "it needs 2 different CPUs, and may use 1");
    let twice = Place { cpus: vec![one.cpus[0]; 2], ..Place::default() };
    assert!(Churn.check(&Settings::new(), &twice).is_err());
    assert!(Churn.check(&Settings::new().with("free", "local"), &Place::default()).is_err());
}

#[test]
fn a_knob_is_refused_with_its_line_before_the_machine_is_looked_at() {
    let mut settings = Settings::new();
    settings.set("batch", Setting { value: Value::Int(0), line: 7 });
    let e = Churn.check(&settings, &Place::default()).unwrap_err();
    assert_eq!(e.why, "line 7: batch = 0 is not a whole number from 1 to 1024");
}

#[test]
fn a_cpu_that_there_is_not_is_an_error_and_no_hang() {
    let place = Place { cpus: vec![1 << 20, allowed_cpus().unwrap()[0]], ..Place::default() };
    let e = Churn.open(&Settings::new(), &place).map(drop).unwrap_err();
    assert_eq!(e.code, Code::Cpu);
}
