//! Tests that each planted fault is found, with real TCP and numbered datagrams between namespaces;
//! they need root and are skipped otherwise. They check counts only, never times.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linerate_lab::Result;
use linerate_lab::scenario::{Place, is_missing_here};
use linerate_lab::settings::Settings;
use linerate_lab::triage::{Cap, Case, Cause, Extra, Triage};
use linerate_testing::unless;

/// Lock that runs these tests one at a time, because each uses every CPU.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns settings for a low load that still forms batches, so that even a busy machine loses no
/// packets.
fn settings(fault: &str) -> Settings {
    let settings = Settings::new().with("fault", fault).with("moderation", "fixed:usecs=400");
    let settings = settings.with("rate", 1_500_000).with("message", 512).with("nodelay", true);
    settings.with("connections", 2).with("cpus", "one").with("probes", 0).with("port", "packet")
}

fn look(settings: &Settings, windows: u32, second: bool, caps: &[Cap]) -> Result<Triage> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cpus = linerate_sys::thread::allowed_cpus().unwrap();
    let place = Place { cpus, seed: 7, program: None, stop: Arc::default() };
    let window = Duration::from_millis(200);
    let extra = Extra { windows, window, second, caps: caps.to_vec() };
    let mut case = Case::new(settings);
    case.look(&extra, &place, |_| {})?;
    Ok(case.answer())
}

/// Asserts that triage finds exactly these causes for the planted fault, in any order.
fn expect(fault: &str, second: bool, causes: &[Cause]) {
    expect_with(fault, second, &[], causes);
}

/// Asserts the same as [`expect`], with windows run at these caps in addition to the case's own.
fn expect_with(fault: &str, second: bool, caps: &[Cap], causes: &[Cause]) {
    expect_in(1, fault, second, caps, causes);
}

/// Asserts the same as [`expect_with`], with so many windows in addition to the case's own.
fn expect_in(windows: u32, fault: &str, second: bool, caps: &[Cap], causes: &[Cause]) {
    let looked = look(&settings(fault), windows, second, caps);
    let Some(triage) = unless(looked, is_missing_here) else { return };
    let mut found: Vec<Cause> = triage.verdict.causes.iter().map(|one| one.cause).collect();
    found.sort();
    found.dedup();
    assert_eq!(found, causes, "{fault}\n{triage}");
    // No cause is an answer only if all was looked at.
    assert!(!causes.is_empty() || triage.verdict.untold.is_empty(), "{triage}");
}

#[test]
fn clean_run_has_no_cause() {
    expect("none", false, &[]);
}

#[test]
fn stage_that_reorders_batches_is_the_core() {
    expect("core:reorder=13", false, &[Cause::Core]);
}

#[test]
fn driver_that_says_it_sent_what_it_lost_is_the_driver() {
    expect("packet:lose=23", false, &[Cause::Driver]);
}

#[test]
fn driver_that_reorders_batches_is_told_from_the_device_by_another_device() {
    // A triage goes on without the other device, but cannot tell this fault.
    let xdp = settings("none").with("port", "xdp");
    if unless(look(&xdp, 1, false, &[]), is_missing_here).is_some() {
        expect("packet:reorder=9", true, &[Cause::Driver]);
    }
}

#[test]
fn device_that_loses_packets_is_the_device() {
    expect("device:lose=37", false, &[Cause::Device]);
}

#[test]
fn driver_of_the_port_xdp_that_loses_is_the_driver_and_a_clean_one_has_no_cause() {
    for (fault, causes) in [("none", &[][..]), ("xdp:lose=23", &[Cause::Driver])] {
        let xdp = settings(fault).with("port", "xdp");
        let Some(triage) = unless(look(&xdp, 1, false, &[]), is_missing_here) else { return };
        let mut found: Vec<Cause> = triage.verdict.causes.iter().map(|one| one.cause).collect();
        found.sort();
        found.dedup();
        assert_eq!(found, causes, "{fault}\n{triage}");
        assert!(!causes.is_empty() || triage.verdict.untold.is_empty(), "{triage}");
    }
}

#[test]
fn programs_that_read_too_slowly_are_the_receiver() {
    expect("receiver:sleep=1700", false, &[Cause::Receiver]);
}

/// Draws strengths for which the rules were not made: by a fixed seed, or anew in each run with
/// `LINERATE_TRIAGE_SEED=now`. Each draw is printed before it is looked at, so that a failure can be
/// repeated.
#[test]
fn faults_of_strengths_that_are_drawn_are_found() {
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64
    };
    let seed = match std::env::var("LINERATE_TRIAGE_SEED") {
        Ok(text) if text == "now" => now(),
        Ok(text) => text.parse().unwrap(),
        Err(_) => 20_071_005,
    };
    println!("LINERATE_TRIAGE_SEED={seed}");
    let mut random = seed.max(1);
    let mut draw = |from: u64, to: u64| {
        // Xorshift: any spread of the strengths will do.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        from + random % (to - from)
    };
    for (fault, cause) in [
        (format!("core:reorder={}", draw(8, 46)), Cause::Core),
        (format!("packet:lose={}", draw(8, 46)), Cause::Driver),
        (format!("device:lose={}", draw(8, 46)), Cause::Device),
        (format!("receiver:sleep={}", draw(1200, 2500)), Cause::Receiver),
    ] {
        println!("{fault}");
        expect_in(3, &fault, false, &[], &[cause]);
    }
}

#[test]
fn two_faults_at_once_are_both_found_whichever_two_parts_have_them() {
    let faults = [
        (Cause::Core, "core:reorder=11"),
        (Cause::Driver, "packet:lose=19"),
        (Cause::Device, "device:lose=29"),
        (Cause::Receiver, "receiver:sleep=1300"),
    ];
    for (i, (first, fault)) in faults.iter().enumerate() {
        for (second, other) in &faults[i + 1..] {
            expect(&format!("{fault} {other}"), false, &[*first, *second]);
        }
    }
}

#[test]
fn cap_of_two_tells_an_overrun_host_from_a_faulty_driver_and_a_device_that_loses() {
    expect_with("receiver:overrun=5", false, &[Cap::Two], &[Cause::Receiver]);
    expect_with("packet:lose=17", false, &[Cap::Two], &[Cause::Driver]);
    expect_with("device:lose=31", false, &[Cap::Two], &[Cause::Device]);
}

#[test]
fn overrun_host_is_not_told_from_a_device_that_loses_without_a_cap_of_two() {
    expect("receiver:overrun=5", false, &[Cause::Device]);
}
