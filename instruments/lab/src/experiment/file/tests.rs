use linerate_seeds::stats::Goal;
use proptest::prelude::*;

use super::*;
use crate::experiment::Clock;
use crate::experiment::{Estimate, Family};
use crate::settings::{Settings, Value};

const GOOD: &str = r#"version = 1
id = "mine"
title = "Frames against the general allocator"
question = """
Which is cheaper?"""
reproduces = "000"
scenario = "engine"
profiles = true
[settings]
ring_len = 256
hot_list = 1
[a]
name = "malloc"
set = { buffers = "general", hot_list = 2 }
[b]
name = "frames"
set = { buffers = "frames" }
[plan]
window = "50ms"
warmup = 3
looks = [15, 30, 60]
half_width_pct = 1.5
quick = { pairs = 6, window = "20ms" }
[[factor]]
name = "change"
about = "What is changed."
[[factor.level]]
name = "both"
quick = true
a = { hot_list = 128 }
b = { hot_list = 1024 }
[[factor.level]]
name = "frames"
set = { hot_list = 7, weights = [1, 2.5, "x", true] }
[[factor]]
name = "path"
about = "Where the packets go."
[[factor.level]]
name = "ring"
quick = true
[[factor.level]]
name = "tcp"
scenario = "host"
window = "1s"
set = { hot_list = 9 }
[[metric]]
name = "cost"
unit = "ns/packet"
about = "What a packet costs."
value = "cost_ns / packets"
better = "lower"
clock = "cost"
[[metric.expect]]
at = { change = "both" }
change_pct = [-100, -51]
source = "post 000: alloc_skb + __kfree_skb"
[[fixed]]
name = "alloc + free"
unit = "ticks"
a = 2833
b = 1388.5
source = "post 000"
"#;

fn good() -> Experiment {
    Experiment::parse(GOOD, "mine.toml").unwrap()
}

/// Replaces `from` by `to` in the file; returns the reason why it is refused, and the remedy.
fn refused(from: &str, to: &str) -> (String, String) {
    assert!(GOOD.contains(from), "{from}");
    let e = Experiment::parse(&GOOD.replacen(from, to, 1), "mine.toml").unwrap_err();
    assert_eq!(e.code, crate::Code::Experiment);
    (e.why, e.fix)
}

fn why(from: &str, to: &str) -> String {
    refused(from, to).0
}

#[test]
fn a_file_is_read_whole() {
    let mine = good();
    assert_eq!((mine.id.as_str(), mine.post.as_deref()), ("mine", Some("000")));
    assert_eq!(mine.question, "Which is cheaper?");
    assert!(mine.profiles);
    assert_eq!((mine.plan.looks(false), mine.plan.looks(true)), (vec![15, 30, 60], vec![6]));
    assert_eq!((mine.plan.warmup, mine.plan.half_width_pct), (3, 1.5));
    assert!(mine.cells.iter().all(|cell| !cell.fresh));
    // Four cells need 8 set-ups. If each pair has its own set-up, the first look of 15 pairs has
    // enough.
    assert_eq!(mine.windows(&mine.cells[0], false, 60), (3 + 1) * 60);
    let longer = GOOD.replacen("looks = [15, 30, 60]", "looks = [60, 240]", 1);
    let longer = Experiment::parse(&longer, "mine.toml").unwrap();
    assert_eq!(longer.pairs_per_set_up(&longer.cells[0], false), Some(60 / 8));
    assert_eq!(longer.windows(&longer.cells[0], false, 60), 60 + 9 * 3);
    let fresh = GOOD.replacen("warmup = 3", "warmup = 3\nfresh = true", 1);
    let fresh = Experiment::parse(&fresh, "mine.toml").unwrap();
    assert_eq!(fresh.windows(&fresh.cells[0], false, 60), (3 + 1) * 60);
    let [cost] = mine.metrics.as_slice() else { panic!("{:?}", mine.metrics) };
    assert_eq!((cost.formula.to_string().as_str(), cost.clock), ("cost_ns / packets", Clock::Cost));
    assert_eq!(cost.goal, Some(Goal::Less));
    let expected = cost.expected_at(&mine.cells[0].at).unwrap();
    assert_eq!(expected.change_pct, (-100.0, -51.0));
    assert_eq!(cost.expected_at(&mine.cells[2].at), None);
    assert_eq!((mine.fixed_points[0].a, mine.fixed_points[0].b), (2833.0, 1388.5));
    assert_eq!(mine.toml, GOOD);
}

#[test]
fn the_grid_is_every_combination_and_the_first_factor_turns_slowest() {
    let mine = good();
    let names: Vec<String> = mine.cells.iter().map(|cell| cell.name()).collect();
    assert_eq!(
        names,
        [
            "change=both path=ring",
            "change=both path=tcp",
            "change=frames path=ring",
            "change=frames path=tcp"
        ]
    );
    let quick: Vec<usize> = mine.cells(true).map(|(i, _)| i).collect();
    assert_eq!(quick, [0]);
    let scenarios: Vec<&str> = mine.cells.iter().map(|cell| cell.scenario.as_str()).collect();
    assert_eq!(scenarios, ["engine", "host", "engine", "host"]);
    let windows: Vec<u64> = mine.cells.iter().map(|cell| cell.window_ns / 1_000_000).collect();
    assert_eq!(windows, [50, 1000, 50, 1000]);
    // The quick window of 20 ms applies to cells whose window is the plan's.
    let windows: Vec<u64> =
        mine.cells.iter().map(|cell| cell.quick_window_ns / 1_000_000).collect();
    assert_eq!(windows, [20, 1000, 20, 1000]);
}

#[test]
fn specific_setting_overrides_a_general_one() {
    let mine = good();
    let hot_list = |settings: &Settings| settings.get("hot_list").unwrap().clone();
    let told: Vec<(Value, Value)> =
        mine.cells.iter().map(|cell| (hot_list(&cell.a).value, hot_list(&cell.b).value)).collect();
    let ints = |a, b| (Value::Int(a), Value::Int(b));
    assert_eq!(told, [ints(128, 1024), ints(128, 1024), ints(7, 7), ints(9, 9)]);
    assert_eq!(hot_list(&mine.cells[0].a).line, 30);
    assert_eq!(hot_list(&mine.a.settings).value, Value::Int(2));
    assert_eq!(mine.b.settings.get("ring_len").unwrap().line, 10);
    let weights = &mine.cells[2].a.get("weights").unwrap().value;
    assert_eq!(weights.to_string(), "[1, 2.5, x, true]");
}

#[test]
fn a_syntax_error_is_told_with_its_line() {
    assert_eq!(
        why("warmup = 3", "warmup = "),
        "mine.toml:20: string values must be quoted, expected literal string"
    );
    assert_eq!(why("warmup = 3", "warmup = 3\nwarmup = 4"), "mine.toml:21: duplicate key");
    assert_eq!(
        why("name = \"malloc\"", "name = \"malloc"),
        "mine.toml:13: invalid basic string, expected `\"`"
    );
}

#[test]
fn an_unknown_key_is_told_with_the_one_that_was_meant() {
    let (why, fix) = refused("warmup = 3", "warm_up = 3");
    assert_eq!(why, "mine.toml:20: [plan] has no key \"warm_up\"");
    assert_eq!(fix, "did you mean \"warmup\"?");
    let (why, fix) = refused("quick = true", "fast = true");
    assert_eq!(why, "mine.toml:29: [factor.level] has no key \"fast\"");
    assert_eq!(fix, "there are: name, scenario, window, fresh, set, a, b, quick, quick_window");
    let (why, _) = refused("profiles = true", "profile = true");
    assert_eq!(why, "mine.toml:8: the file has no key \"profile\"");
}

#[test]
fn a_value_of_another_kind_is_told_with_what_is_wanted() {
    let at = |line, why| format!("mine.toml:{line}: {why}");
    for (from, to, expected) in [
        ("warmup = 3", "warmup = \"3\"", at(20, "\"warmup\" is not a whole number from 0 to 1000")),
        ("warmup = 3", "warmup = 0x", at(20, "integer number overflowed")),
        (
            "window = \"50ms\"",
            "window = 50",
            at(19, "\"window\" is not a time from 1ms to 60s, as \"50ms\""),
        ),
        (
            "looks = [15, 30, 60]",
            "looks = [15, 60, 30]",
            at(21, "\"looks\" is not a list of 1 to 16 whole numbers from 1 to 10000, ascending"),
        ),
        (
            "half_width_pct = 1.5",
            "half_width_pct = 0",
            at(22, "\"half_width_pct\" is not a number above 0"),
        ),
        (
            "half_width_pct = 1.5",
            "half_width_pct = nan",
            at(22, "\"half_width_pct\" is not a number above 0"),
        ),
        ("clock = \"cost\"", "clock = \"cpu\"", at(52, "\"clock\" cannot be \"cpu\"")),
        (
            "[-100, -51]",
            "[-51, -100]",
            at(55, "\"change_pct\" is not two numbers, the lower first, as [-100, -51]"),
        ),
        (
            "[-100, -51]",
            "[-51]",
            at(55, "\"change_pct\" is not two numbers, the lower first, as [-100, -51]"),
        ),
        (
            "ring_len = 256",
            "ring_len = 1979-05-27",
            at(10, "\"ring_len\" is not a text, a number, true, false, or a list of up to 64"),
        ),
        (
            "ring_len = 256",
            "ring_len = [[1]]",
            at(10, "\"ring_len\" is not a text, a number, true, false, or a list of up to 64"),
        ),
        ("[[fixed]]", "[fixed]", at(57, "\"fixed\": invalid type: map, expected a sequence")),
        (
            "name = \"both\"",
            "name = \"a=b\"",
            at(28, "\"name\" is not a name of 1 to 48 characters without spaces, commas, = and /"),
        ),
        (
            "profiles = true",
            "measures = [\"crates/skb\"]",
            at(8, "\"measures\" is not a list of 1 to 16 names of crates, as \"skb\""),
        ),
        ("version = 1", "version = 2", at(1, "version 2 of experiments' files is not known")),
    ] {
        assert_eq!(why(from, to), expected);
    }
}

#[test]
fn unknown_name_is_refused_with_the_known_ones() {
    let (why, fix) = refused("scenario = \"host\"", "scenario = \"hosts\"");
    assert_eq!(
        (why.as_str(), fix.as_str()),
        ("mine.toml:43: there is no scenario \"hosts\"", "did you mean \"host\"?")
    );
    let (why, fix) = refused("reproduces = \"000\"", "reproduces = \"005\"");
    assert_eq!(
        (why.as_str(), fix.as_str()),
        ("mine.toml:6: there is no post \"005\"", "did you mean \"000\"?")
    );
    let (why, fix) = refused("{ change = \"both\" }", "{ chance = \"both\" }");
    assert_eq!(
        (why.as_str(), fix.as_str()),
        ("mine.toml:46: there is no factor \"chance\"", "did you mean \"change\"?")
    );
    let (why, fix) = refused("{ change = \"both\" }", "{ change = \"none\" }");
    assert_eq!(why, "mine.toml:46: factor \"change\" has no level \"none\"");
    assert_eq!(fix, "there are: both, frames");
}

#[test]
fn a_formula_that_does_not_parse_is_told_with_its_line() {
    assert_eq!(
        why("cost_ns / packets", "cost_ns packets"),
        "mine.toml:50: formula \"cost_ns packets\": expected a figure's name, or a sum of them in \
         parentheses"
    );
}

#[test]
fn names_that_are_there_twice_are_refused() {
    assert_eq!(
        why("name = \"frames\"\nset = { hot_list", "name = \"both\"\nset = { hot_list"),
        "mine.toml:24: there are two of level \"both\""
    );
    assert_eq!(
        why("name = \"path\"", "name = \"change\""),
        "mine.toml:35: there are two of factor \"change\""
    );
    let metric = &GOOD[GOOD.find("[[metric]]").unwrap()..GOOD.find("[[metric.expect]]").unwrap()];
    assert_eq!(
        why("[[metric]]", &format!("{metric}[[metric]]")),
        "mine.toml:53: there are two of metric \"cost\""
    );
}

/// Returns the file's expectation, for the cells `at` and down from `to` per cent.
fn expectation(at: &str, to: &str) -> String {
    let part = &GOOD[GOOD.find("[[metric.expect]]").unwrap()..GOOD.find("[[fixed]]").unwrap()];
    part.replacen("{ change = \"both\" }", at, 1).replacen("-51", to, 1)
}

#[test]
fn expectation_that_names_the_most_factors_wins_wherever_it_stands_and_of_equals_the_first() {
    let only = expectation("{ change = \"both\" }", "-51");
    let general = expectation("{}", "-40");
    let specific = expectation("{ change = \"both\", path = \"tcp\" }", "-70");
    let equal = expectation("{ path = \"tcp\" }", "-30");
    // The cells are both/ring, both/tcp, frames/ring and frames/tcp.
    let highest = [-51.0, -70.0, -40.0, -30.0].map(Some);
    for order in [
        [&general, &only, &specific, &equal],
        [&equal, &specific, &only, &general],
        [&specific, &general, &equal, &only],
    ] {
        assert_eq!(highest_of(&only, &order), highest, "{order:?}");
    }
    assert_eq!(highest_of(&only, &[&only, &equal])[1], Some(-51.0));
    assert_eq!(highest_of(&only, &[&equal, &only])[1], Some(-30.0));
}

/// Returns the highest expected change of each cell, with `others` in place of the file's `only`
/// expectation.
fn highest_of(only: &str, others: &[&String]) -> [Option<f64>; 4] {
    let others: String = others.iter().map(|one| one.as_str()).collect();
    let mine = Experiment::parse(&GOOD.replacen(only, &others, 1), "mine.toml").unwrap();
    let expected = |cell: usize| mine.metrics[0].expected_at(&mine.cells[cell].at);
    [0, 1, 2, 3].map(|cell| Some(expected(cell)?.change_pct.1))
}

#[test]
fn two_expectations_for_the_same_cells_are_refused_with_the_line_of_their_metric() {
    let only = expectation("{ change = \"both\" }", "-51");
    let one = expectation("{ change = \"both\", path = \"tcp\" }", "-70");
    let other = expectation("{ path = \"tcp\", change = \"both\" }", "-60");
    let (why, fix) = refused(&only, &format!("{only}{one}{other}"));
    let same = "mine.toml:46: metric \"cost\" has two expectations for the same cells";
    assert_eq!(why, format!("{same}: change=both path=tcp"));
    assert_eq!(fix, "remove one of them, or name more factors in one");
    let all = only.replacen("at = { change = \"both\" }\n", "", 1);
    assert_eq!(refused(&only, &format!("{all}{all}")).0, format!("{same}: all cells"));
}

#[test]
fn expectation_over_all_cells_is_read_and_needs_a_better_direction() {
    let table = "[metric.overall]\nsum_pct = [20.73, 1000]\ngeomean_pct = [39.4, 2000]\n\
                 source = \"post 002\"\n[[fixed]]";
    let text = GOOD.replacen("[[fixed]]", table, 1);
    let mine = Experiment::parse(&text, "mine.toml").unwrap();
    let overall = mine.metrics[0].expected_overall.as_ref().unwrap();
    assert_eq!((overall.sum_pct, overall.geomean_pct), ((20.73, 1000.0), (39.4, 2000.0)));
    let text = text.replacen("better = \"lower\"\n", "", 1);
    let e = Experiment::parse(&text, "mine.toml").unwrap_err();
    let why = "mine.toml:46: metric \"cost\" has [metric.overall], but no line over all cells";
    assert_eq!(e.why, why);
    assert_eq!(e.fix, "better = \"higher\", or better = \"lower\"");
}

#[test]
fn missing_key_is_reported_with_the_line_of_its_table() {
    assert_eq!(
        why("source = \"post 000: alloc_skb + __kfree_skb\"\n", ""),
        "mine.toml:53: [metric.expect] has no \"source\""
    );
    assert_eq!(
        why("\"post 000: alloc_skb + __kfree_skb\"", "\" \""),
        "mine.toml:56: \"source\" is empty"
    );
    assert_eq!(
        why("[a]\nname = \"malloc\"\nset = { buffers = \"general\", hot_list = 2 }\n", ""),
        "mine.toml:1: the file has no \"a\""
    );
    assert_eq!(why("clock = \"cost\"\n", ""), "mine.toml:46: [metric] has no \"clock\"");
    assert_eq!(why("version = 1\n", ""), "mine.toml:1: the file has no \"version\"");
    let cut = &GOOD[..GOOD.find("[[metric]]").unwrap()];
    let e = Experiment::parse(cut, "mine.toml").unwrap_err();
    assert_eq!(e.why, "mine.toml:1: the file has no \"metric\"");
}

#[test]
fn an_id_is_a_lower_case_name() {
    for bad in ["Mine", "1st", "my_own", "-a", "mïne"] {
        let why = why("id = \"mine\"", &format!("id = {bad:?}"));
        assert!(why.starts_with("mine.toml:2: \"id\" is not a lower-case letter"), "{why}");
    }
    let longest = "a".repeat(48);
    let named = GOOD.replace("id = \"mine\"", &format!("id = {longest:?}"));
    assert_eq!(Experiment::parse(&named, "x").unwrap().id, longest);
}

#[test]
fn a_quick_run_is_never_empty() {
    let (why, fix) = refused("name = \"both\"\nquick = true", "name = \"both\"");
    assert_eq!(
        why,
        "mine.toml:24: no level of factor \"change\" is quick, so that a quick run is empty"
    );
    assert_eq!(fix, "quick = true");
}

#[test]
fn a_grid_that_is_too_large_is_refused_before_it_is_made() {
    let level = |i: usize| format!("[[factor.level]]\nname = \"l{i}\"\nquick = true\n");
    let levels: String = (0..100).map(level).collect();
    let factor = |i: usize| format!("[[factor]]\nname = \"f{i}\"\nabout = \"x\"\n{levels}");
    let factors: String = (0..16).map(factor).collect();
    let start = GOOD.find("[[factor]]").unwrap();
    let metric = &GOOD[GOOD.find("[[metric]]").unwrap()..];
    let e = Experiment::parse(&format!("{}{factors}{metric}", &GOOD[..start]), "f").unwrap_err();
    assert!(e.why.starts_with("f:24: 100 × 100 ×"), "{}", e.why);
    assert!(e.why.ends_with("cells are more than 4096"), "{}", e.why);
}

#[test]
fn settings_that_would_fill_the_memory_cell_by_cell_are_refused() {
    let level = |i: usize| format!("[[factor.level]]\nname = \"l{i}\"\nquick = true\n");
    let levels: String = (0..256).map(level).collect();
    let factors = format!("[[factor]]\nname = \"f\"\nabout = \"x\"\n{levels}[[metric]]");
    let long = format!("ring_len = {:?}", "x".repeat(500_000));
    let text = GOOD.replacen("ring_len = 256", &long, 1).replacen("[[metric]]", &factors, 1);
    let e = Experiment::parse(&text, "f").unwrap_err();
    assert!(e.why.contains("1024 cells have more than 67108864 bytes of settings"), "{}", e.why);
}

#[test]
fn a_file_that_is_too_large_is_refused_unread() {
    let e = Experiment::parse(&"#".repeat(FILE_MAX + 1), "f").unwrap_err();
    assert_eq!(e.why, "f: the file has more than 1048576 bytes");
    let deep = format!("{GOOD}x = {}", "[".repeat(100_000));
    assert!(Experiment::parse(&deep, "f").is_err());
}

#[test]
fn a_formula_has_figures_that_there_are() {
    let value = |formula: &str| format!("value = {formula:?}");
    let read = |formula| {
        let text = GOOD.replacen("value = \"cost_ns / packets\"", &value(formula), 1);
        Experiment::parse(&text, "mine.toml")
    };
    assert!(read("(wall_ns + pmu.r1643) / packets").is_ok());
    let e = read("100 * packet / packets").unwrap_err();
    assert_eq!(e.why, "mine.toml:46: no scenario of a cell has a figure \"packet\"");
    assert_eq!(e.fix, "did you mean \"packets\"?");
    assert!(read("pmu. / packets").is_err());
    assert!(read("packets-packets").is_err(), "a minus needs a space");
}

proptest! {
    #[test]
    fn no_change_of_a_file_makes_its_reader_panic(
        at in 0..GOOD.len(), len in 0..40_usize, with in "[\\PC\n\"=\\[\\]{}0-9.]{0,4}"
    ) {
        let mut text = GOOD.to_owned();
        text.replace_range(at..(at + len).min(GOOD.len()), &with);
        if let Err(e) = Experiment::parse(&text, "f") {
            prop_assert!(e.why.starts_with("f:"), "{}", e.why);
        }
    }
}

#[test]
fn a_figure_that_no_program_is_asked_for_is_unknown() {
    let file = "version = 1\nid = \"x\"\ntitle = \"t\"\nquestion = \"q\"\nscenario = \"command\"\n\
         [settings]\nprogram = \"sh\"\njson = [\"t=/t\"]\n[a]\nname = \"a\"\nset = { args = [\"1\"] }\n\
         [b]\nname = \"b\"\nset = { args = [\"2\"] }\n[[metric]]\nname = \"m\"\nunit = \"s\"\n\
         about = \"m\"\nvalue = \"t\"\nclock = \"cost\"\n";
    assert!(Experiment::parse(file, "x.toml").is_ok());
    let e =
        Experiment::parse(&file.replace("\"t\"\nclock", "\"tt\"\nclock"), "x.toml").unwrap_err();
    assert!(e.why.contains("x.toml:15") && e.why.contains("tt"), "{e}");
}

#[test]
fn a_level_that_makes_both_sides_the_same_is_refused() {
    let file = "version = 1\nid = \"x\"\ntitle = \"t\"\nquestion = \"q\"\nscenario = \"engine\"\n\
         [a]\nname = \"a\"\nset = { burst = 64 }\n[b]\nname = \"b\"\nset = { burst = 128 }\n\
         [[factor]]\nname = \"f\"\nabout = \"f\"\n[[factor.level]]\nname = \"l\"\nquick = true\n\
         set = { burst = 64 }\n[[metric]]\nname = \"m\"\nunit = \"s\"\nabout = \"m\"\n\
         value = \"packets\"\nclock = \"count\"\n";
    let e = Experiment::parse(file, "x.toml").unwrap_err();
    assert!(e.why.contains("both sides have the same settings"), "{e}");
    assert!(Experiment::parse(&file.replace("set = { burst = 64 }\n[[m", "[[m"), "x.toml").is_ok());
}

#[test]
fn margin_family_and_estimate_are_declared_and_have_defaults() {
    let mine = good();
    let [cost] = mine.metrics.as_slice() else { panic!("{:?}", mine.metrics) };
    assert_eq!((cost.same_pct(), cost.estimate()), (1.0, Estimate::Ratios));
    assert_eq!((cost.same_pct, mine.plan.family), (None, None), "not declared");
    assert_eq!((mine.family(false), mine.family(true)), (4, 1));
    let told = GOOD
        .replacen("clock = \"cost\"", "clock = \"wall\"\nestimate = \"events\"\nsame_pct = 2.5", 1)
        .replacen("warmup = 3", "warmup = 3\nfamily = \"experiment\"", 1);
    let told = Experiment::parse(&told, "mine.toml").unwrap();
    let [cost] = told.metrics.as_slice() else { panic!("{:?}", told.metrics) };
    assert_eq!((cost.same_pct, cost.estimate()), (Some(2.5), Estimate::Events));
    assert_eq!(told.plan.family, Some(Family::Experiment));
    let counted = GOOD.replacen("clock = \"cost\"", "clock = \"count\"", 1);
    let counted = Experiment::parse(&counted, "mine.toml").unwrap();
    assert_eq!(counted.metrics[0].estimate(), Estimate::Events);
    for margin in ["0", "-1", "51", "nan"] {
        let wrong = format!("clock = \"cost\"\nsame_pct = {margin}");
        assert!(why("clock = \"cost\"", &wrong).contains("is not a number above 0"), "{margin}");
    }
}

#[test]
fn a_level_says_whether_the_sides_of_its_cells_are_set_up_for_every_pair() {
    let fresh = GOOD.replacen("warmup = 3", "warmup = 3\nfresh = true", 1);
    let once = fresh.replacen("scenario = \"host\"", "scenario = \"host\"\nfresh = false", 1);
    let once = Experiment::parse(&once, "mine.toml").unwrap();
    let each: Vec<bool> = once.cells.iter().map(|cell| cell.fresh).collect();
    assert_eq!(each, [true, false, true, false]);
    let wrong = GOOD.replacen("scenario = \"host\"", "scenario = \"host\"\nfresh = 1", 1);
    assert!(
        Experiment::parse(&wrong, "mine.toml")
            .unwrap_err()
            .why
            .contains("\"fresh\": invalid type: integer `1`, expected a boolean")
    );
}
