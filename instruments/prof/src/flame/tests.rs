use super::*;
use crate::profile::{Origin, Row, Stack, Unit};

fn profile(stacks: &[(&[&str], u64)]) -> Profile {
    let event = Event { name: "cpu-clock".into(), unit: Unit::Samples, period: None, raw: None };
    let mut profile = Profile::new(event, Origin::Clock);
    let own = |frames: &[&str]| frames.iter().map(|s| (*s).to_owned()).collect();
    profile.stacks =
        stacks.iter().map(|&(frames, count)| Stack { frames: own(frames), count }).collect();
    profile
}

#[test]
fn equal_stacks_are_one_line_and_lines_are_in_order() {
    let profile = profile(&[(&["b", "c"], 2), (&["a"], 1), (&["b", "c"], 40), (&[], 3)]);
    assert_eq!(Folded(&profile).to_string(), "[unknown] 3\na 1\nb;c 42\n");
}

#[test]
fn of_an_endless_stack_the_innermost_frames_are_kept() {
    let frames: Vec<&str> = std::iter::repeat_n("f", 5000).chain(["last"]).collect();
    let text = Folded(&profile(&[(frames.as_slice(), 7)])).to_string();
    assert!(text.starts_with("[cut off];f;f;") && text.ends_with(";f;last 7\n"), "{text}");
    assert_eq!(text.matches(';').count(), FRAMES_MAX);
    let whole = Folded(&profile(&[(&frames[..FRAMES_MAX], 7)])).to_string();
    assert_eq!((whole.matches(';').count(), whole.contains(CUT_OFF)), (FRAMES_MAX - 1, false));
}

#[test]
fn a_name_stays_one_frame_of_one_line() {
    let profile = profile(&[(&["<[u8; 8] as T>::f", "a\nb 1", "g 7"], 5), (&["# x", " "], 1)]);
    let text = Folded(&profile).to_string();
    assert_eq!(text, "#_x;[unknown] 1\n<[u8\\u{3b} 8] as T>::f;a\\u{a}b_1;g_7 5\n");
}

#[test]
fn a_picture_says_what_it_shows() {
    let svg = svg(&profile(&[(&["main", "f"], 70), (&["main", "g"], 30)])).unwrap();
    assert!(svg.contains("cpu-clock: 100 samples"), "title");
    let mut clock = profile(&[(&["main"], 7)]);
    clock.event.period = Some(1_000_000);
    let title = "cpu-clock, a sample for each 1000000 ns: 7 samples";
    assert!(super::svg(&clock).unwrap().contains(title));
    assert!(svg.contains("f (70 samples, 70.00%)"), "boxes have counts and their unit");
    for loads in ["href=\"http", "src=", "@import", "url(http"] {
        assert!(!svg.contains(loads), "it needs nothing else, but has {loads}");
    }
}

#[test]
fn without_stacks_it_is_one_level_and_says_so() {
    let mut flat = profile(&[]);
    flat.rows = vec![Row::new("ip_rcv", 3), Row::new("kfree", 1)];
    let picture = svg(&flat).unwrap();
    assert!(picture.contains("no stacks were recorded") && picture.contains("ip_rcv (3 samples"));
    assert_eq!(Folded(&flat).to_string(), "ip_rcv 3\nkfree 1\n");
    let stacked = profile(&[(&["main", "ip_rcv"], 9)]);
    let both: Vec<_> = fold_both([&stacked, &flat]).into_iter().collect();
    let rows = [("ip_rcv".to_owned(), [0, 3]), ("kfree".to_owned(), [0, 1])];
    assert_eq!(both, rows, "stacks and rows do not mix");
}

#[test]
fn an_empty_profile_is_an_error_and_two_units_are_not_subtracted() {
    assert_eq!(svg(&profile(&[])).unwrap_err().code, Code::File);
    let (a, mut b) = (profile(&[(&["a"], 9)]), profile(&[(&["a"], 4)]));
    let plain = diff_svg(&a, &b, By::AsTheyAre).unwrap();
    assert!(plain.contains("9 samples without, 4 with") && plain.contains("counts as they are"));
    b.event.name = "cycles".into();
    let refused = diff_svg(&a, &b, By::AsTheyAre).unwrap_err();
    assert!(refused.why.contains("different events"), "{refused}");
    b = profile(&[(&["a"], 4)]);
    b.origin = Origin::Model;
    assert_eq!(diff_svg(&a, &b, By::AsTheyAre).unwrap_err().code, Code::Unsupported);
}

#[test]
fn other_periods_are_refused_and_what_is_missing_is_not_said_to_have_vanished() {
    let (mut a, mut b) = (profile(&[(&["a"], 9), (&["b"], 5)]), profile(&[(&["a"], 4)]));
    let text = diff_svg(&a, &b, By::AsTheyAre).unwrap();
    assert!(text.contains("1 stacks were not seen with the change: they"), "{text}");
    b.cutoff = Some(4);
    let text = diff_svg(&a, &b, By::AsTheyAre).unwrap();
    assert!(text.contains("not seen with the change (or below the cut-off)"), "{text}");
    (a.event.period, b.event.period) = (Some(1000), Some(10_000));
    let refused = diff_svg(&a, &b, By::AsTheyAre).unwrap_err();
    assert!(refused.why.contains("different periods"), "{refused}");
}

#[test]
fn ten_times_the_time_is_told_and_can_be_divided_out() {
    let (mut a, mut b) = (profile(&[(&["f"], 100)]), profile(&[(&["f"], 1000)]));
    a.conditions.wall_ns = Some(1_000_000_000);
    b.conditions.wall_ns = Some(10_000_000_000);
    let text = diff_svg(&a, &b, By::AsTheyAre).unwrap();
    assert!(text.contains("different durations: without 1.000 s, with 10.000 s"), "{text}");
    assert!(text.contains("f (1,000 samples, 100.00%; +90.00%)"), "{text}");
    let text = diff_svg(&a, &b, By::Second).unwrap();
    assert!(text.contains("f (1,000 samples, 100.00%; 0.00%)"), "neither rose nor fell: {text}");
    assert!(text.contains("compared per second: counts without are multiplied by 10.0000"));
    assert!(diff_svg(&a, &b, By::KiloPacket).is_err(), "packets were not counted");
}
