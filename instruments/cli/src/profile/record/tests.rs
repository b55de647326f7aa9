use clap::Parser as _;

use super::*;

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
