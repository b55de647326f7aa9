use super::*;
use crate::profile::{Row, Stack, Unit};
use proptest::prelude::*;

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
fn a_name_stays_one_frame_of_one_line() {
    let profile = profile(&[(&["<[u8; 8] as T>::f", "a\nb 1", "g 7"], 5), (&["# x", " "], 1)]);
    let text = Folded(&profile).to_string();
    assert_eq!(text, "#_x;[unknown] 1\n<[u8\\u{3b} 8] as T>::f;a\\u{a}b_1;g_7 5\n");
}

#[test]
fn both_counts_stand_on_one_line_and_absent_is_0_there() {
    let (without, with) = (profile(&[(&["a"], 9), (&["b"], 1)]), profile(&[(&["a"], 4)]));
    let text = FoldedDiff { without: &without, with: &with }.to_string();
    assert_eq!(text, "a 9 4\nb 1 0\n");
}

#[test]
fn a_picture_says_what_it_shows() {
    let svg = svg(&profile(&[(&["main", "f"], 70), (&["main", "g"], 30)])).unwrap();
    assert!(svg.contains("cpu-clock: 100 samples"), "title");
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
    let both = FoldedDiff { without: &stacked, with: &flat }.to_string();
    assert_eq!(both, "ip_rcv 0 3\nkfree 0 1\n", "stacks and rows do not mix");
}

#[test]
fn an_empty_profile_is_an_error_and_two_units_are_not_subtracted() {
    assert_eq!(svg(&profile(&[])).unwrap_err().code, Code::File);
    let (a, mut b) = (profile(&[(&["a"], 9)]), profile(&[(&["a"], 4)]));
    assert!(diff_svg(&a, &b).unwrap().contains("9 samples without, 4 with"));
    b.event.name = "cycles".into();
    assert!(diff_svg(&a, &b).unwrap().contains("cpu-clock without against cycles with: 9"));
    b.origin = Origin::Model;
    assert_eq!(diff_svg(&a, &b).unwrap_err().code, Code::Unsupported);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_name_and_no_count_breaks_a_picture(
        stacks in prop::collection::vec((prop::collection::vec(".{0,12}|[ -~\n]{0,9}", 0..4), any::<u64>()), 0..6),
    ) {
        let mut profile = profile(&[]);
        profile.stacks =
            stacks.into_iter().map(|(frames, count)| Stack { frames, count }).collect();
        let text = Folded(&profile).to_string();
        for line in text.lines() {
            prop_assert!(line.rsplit(' ').next().unwrap().parse::<u64>().is_ok(), "{line:?}");
        }
        let _ = (svg(&profile), diff_svg(&profile, &profile));
    }
}
