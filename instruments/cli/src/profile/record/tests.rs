use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use clap::Parser as _;

use super::*;

#[test]
fn a_full_disk_is_an_error_of_perf_s_file_and_not_of_its_event() {
    let (status, wall) = (ExitStatus::from_raw(255 << 8), Duration::ZERO);
    let ended = Ended { status, asked: false, signal: None, wall, cpu_ns: None, perf_cpu_ns: 0 };
    let failure = |data: &Path| no_data(&ended, Recorder::new(What::Time { hz: RATE }), data);
    let folder = Folder::new().unwrap();
    let failures = [failure(Path::new("/dev/full")), failure(&folder.data())];
    let is_limited = |one: &&Failure| one.error.why.contains("kernel.perf_event_mlock_kb");
    if let Some(limited) = failures.iter().find(is_limited) {
        return println!("skipped: {}", limited.error.why);
    }
    let [full, other] = &failures;
    let e = &full.error;
    assert_eq!((full.exit, e.code.as_str()), (RUNTIME, "E-FILE"), "{full:?}");
    assert!(e.what.ends_with("/dev/full") && e.why.contains("No space left"), "{full:?}");
    assert!(e.fix.starts_with("df -h ") && e.fix.contains("TMPDIR"), "{full:?}");
    assert_eq!(
        (other.exit, other.error.code.as_str()),
        (UNSUPPORTED, "E-UNSUPPORTED"),
        "{other:?}"
    );
}

#[test]
fn samples_of_time_have_their_period_in_nanoseconds() {
    let args = Record::try_parse_from(["record", "--rate", "100", "--", "true"]).unwrap();
    let sampling = sampling(&args).unwrap();
    assert_eq!((sampling.period, sampling.event.period), (10_000_000, Some(10_000_000)));
}

#[test]
fn samples_without_the_kernel_s_functions_are_not_compared_with_all_cpu_time() {
    let (unit, period) = (Unit::Samples, Some(1_000_000));
    let event = Event { name: "cpu-clock".to_owned(), unit, period, raw: None };
    let mut profile = Profile::new(event, Origin::Clock);
    let it = &mut profile.conditions;
    (it.wall_ns, it.cpu_ns) = (Some(2_000_000_000), Some(1_000_000_000));
    assert!(agreement(&profile, 1000.0).is_some());
    profile.remarks.push(KERNEL_LEFT_OUT.to_owned());
    assert_eq!(agreement(&profile, 1000.0), None);
}

#[test]
fn options_that_the_model_does_not_have_are_named() {
    let of = |words: &[&str]| {
        let words = [&["record", "--event", "r1643"][..], words, &["--", "true"]].concat();
        ignored(&Record::try_parse_from(words).unwrap())
    };
    assert!(of(&["--user", "--packets", "10"]).is_empty());
    assert_eq!(of(&["--for", "5s"]), ["--for is ignored: the command runs until it ends"]);
    let both = of(&["-g", "--period", "100"]);
    assert!(both[0].starts_with("--period ") && both[1].starts_with("--call-chains "), "{both:?}");
}
