//! The posts' tables, read and printed again byte for byte, and the same tables in the full forms.

use std::path::Path;

use proptest::prelude::*;

use linerate_prof::conditions::Netdev;
use linerate_prof::diff::{By, Change, Diff};
use linerate_prof::print::{Chains, Kernprof, Ranked, Readprofile, Table, csv, json};
use linerate_prof::profile::{Event, Load, Origin, Profile, Row, Space, Stack, Total, Unit};
use linerate_prof::stage::{Part, Stage, is_buffer, stage_of};
use linerate_prof::{Code, flame, read};

const POST_000: &str = "000_5d94cdb1dc74f564.txt";
const POST_003: &str = "003_5ab5121f9d39ea70.txt";

fn post(name: &str) -> (Vec<Profile>, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/seeds").join(name);
    let profiles = read::open(&path).expect("the post is read").profiles;
    assert_eq!(profiles.len(), 2, "{name} has two listings");
    (profiles, std::fs::read_to_string(path).expect("the post is text"))
}

/// Returns the difference of the post on affinity, with and without it.
fn affinity() -> (Diff, String) {
    let (profiles, text) = post(POST_003);
    (Diff::between(&profiles[0], &profiles[1]), text)
}

/// Returns the lines of `text` without marks of quoting that `keep` keeps.
fn lines(text: &str, keep: fn(&str) -> bool) -> Vec<String> {
    let bare = text.lines().map(|line| line.trim_start_matches('>'));
    bare.filter(|line| keep(line)).map(str::to_owned).collect()
}

fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok()
}

#[test]
fn both_tables_of_000_are_printed_as_posted() {
    let (profiles, text) = post(POST_000);
    let posted = lines(&text, |line| {
        let words: Vec<&str> = line.split(' ').collect();
        words.len() == 3 && is_number(words[0]) && is_number(words[2])
    });
    assert_eq!(posted.len(), 40);
    let printed = format!("{}{}", Readprofile(&profiles[0]), Readprofile(&profiles[1]));
    assert_eq!(printed, posted.join("\n") + "\n");
}

#[test]
fn both_lists_of_003_are_printed_as_posted() {
    let (profiles, text) = post(POST_003);
    let posted = lines(&text, |line| line.contains("]: "));
    assert_eq!(posted.len(), 68 + 54);
    let printed = format!("{}{}", Kernprof(&profiles[0]), Kernprof(&profiles[1]));
    assert_eq!(printed, posted.join("\n") + "\n");
}

#[test]
fn listing_is_by_falling_count() {
    let listing = Kernprof(&profile(&[("f", 10), ("kfree", 30)])).to_string();
    assert_eq!(listing, "kfree [00000000]: 30\nf [00000000]: 10\n");
}

#[test]
fn the_difference_of_003_is_mckenneys_line_for_line() {
    let (diff, text) = affinity();
    let posted = lines(&text, |line| {
        let words: Vec<&str> = line.split(' ').collect();
        words.len() == 4 && words[1..].iter().all(|word| is_number(word))
    });
    assert_eq!(posted.len(), 68);
    let printed = Ranked::new(&diff).as_posted(true).to_string();
    assert_eq!(printed, posted.join("\n") + "\n");
}

#[test]
fn in_full_003_has_bounds_for_zeros_and_idle_apart() {
    let (diff, _) = affinity();
    let text = Ranked::new(&diff).to_string();
    println!("{text}");
    assert!(text.contains("in all -53.0 %, without idle -61.8 %"), "{text}");
    let row = |name: &str| -> Vec<String> {
        let starts = |line: &&str| line.split(' ').next() == Some(name);
        let line = text.lines().find(starts).unwrap_or_else(|| panic!("{name} in {text}"));
        line.split("  ").map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect()
    };
    assert_eq!(row("speedo_rx"), ["speedo_rx", "driver", "< 216", "3,358", "> 3,142", "≥ 93.6"]);
    let worse = ["do_check_pgt_cache", "memory", "584", "494", "-90", "-18.2", "rose"];
    assert_eq!(row("do_check_pgt_cache"), worse);
    assert_eq!(text.matches("< 216").count(), 14);
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in {text}"));
    assert!(text.contains("not listed by the maker: n/a, no total is given"), "{text}");
    // The 62 rows sum to 101,750, of which 14 absent functions may have had 216 each.
    let verdict = "\
beyond sampling, 62 functions of the packet path fell by at least 98,726 samples
cost moved to, or grew in, 1 function: 90 samples
within sampling, 2 functions: -58 samples in all
beyond sampling: more than 2·√(with + without) samples; of what did not change 1 in 20 is
one run a side: what differs from run to run is not in this
";
    assert!(text.contains(verdict), "{text}");
    assert!(at("sys_socketcall ") < at("programs, apart:"));
    assert!(at("programs, apart:") < at("USER ") && at("USER ") < at("the instrument's own"));
    assert!(at("the instrument's own") < at("mcount ") && at("mcount ") < at("idle, apart:"));
    assert!(at("idle, apart:") < at("poll_idle "));
    let heads = text.lines().filter(|line| line.trim_start().starts_with("samples")).count();
    assert_eq!(heads, 2, "every table has its units");
    assert!(text.lines().all(|line| !line.ends_with(' ')));
    let wide = text.lines().filter(|l| !l.contains(": ")).map(|l| l.chars().count()).max();
    assert!(wide <= Some(100), "{wide:?}");
}

#[test]
fn stages_of_003_have_the_totals_of_their_functions_and_their_share() {
    let (diff, _) = affinity();
    let text = Ranked::new(&diff).to_string();
    // Sums of the post's lines by hand: functions listed on either side, with affinity, without,
    // saving.
    for (stage, functions, with, without, saving) in [
        ("driver", 6, "7,108", "16,821", "57.7"),
        ("core", 7, "1,335", "7,394", "81.9"),
        ("IP", 5, "3,482", "7,967", "56.3"),
        ("TCP/UDP", 11, "7,219", "26,365", "72.6"),
        ("socket", 9, "3,027", "7,429", "59.3"),
        ("copy", 7, "15,743", "32,998", "52.3"),
        ("scheduler", 7, "12,480", "34,135", "63.4"),
        ("memory", 8, "3,048", "8,376", "63.6"),
    ] {
        let (_, totals) = text.split_once("of what is listed on either side").expect("totals");
        let line = totals.lines().find(|line| line.split("  ").next() == Some(stage));
        let line = line.unwrap_or_else(|| panic!("{stage} in {text}"));
        let cells: Vec<&str> = line.split_whitespace().skip(1).collect();
        let functions = functions.to_string();
        assert_eq!(cells[..3], [functions.as_str(), with, without], "{stage}: {line}");
        assert!(cells.contains(&saving), "{stage}: {line}");
    }
}

#[test]
fn a_shortened_table_sums_the_rest_and_keeps_what_rose() {
    let (diff, _) = affinity();
    let text = Ranked::new(&diff).top(Some(5)).to_string();
    assert!(text.contains("do_check_pgt_cache") && text.contains("(57 more functions)"), "{text}");
    assert!(text.contains("(2 more within noise)"), "{text}");
    let (profiles, _) = post(POST_003);
    let text = Table::new(&profiles[0]).top(Some(3)).to_string();
    assert!(text.contains("(65 more functions)"), "{text}");
    assert!(text.contains("117,326"), "the rest of 291,873 in {text}");
}

#[test]
fn the_percentages_of_003_are_the_arithmetic_s() {
    let (diff, _) = affinity();
    let pct = |name: &str| {
        let row = diff.rows.iter().find(|row| row.symbol == name).expect(name);
        let figures = row.sum().figures(diff.scale);
        let least = || figures.saving_pct_at_least.map(|pct| format!("≥{pct:.1}"));
        figures.saving_pct.map(|pct| format!("{pct:.1}")).or_else(least).expect(name)
    };
    let known = [
        ("schedule", "63.6"),
        ("csum_partial_copy_generic", "50.5"),
        ("tcp_v4_rcv", "90.2"),
        ("kfree_skbmem", "43.8"),
        ("speedo_rx", "≥93.6"),
        ("eth_type_trans", "≥84.0"),
        ("pfifo_fast_dequeue", "≥28.9"),
        ("do_check_pgt_cache", "-18.2"),
    ];
    for (name, expected) in known {
        assert_eq!(pct(name), expected, "{name}");
    }
}

#[test]
fn in_full_000_shows_what_moved_and_keeps_the_disks_apart() {
    let (profiles, _) = post(POST_000);
    let diff = Diff::between(&profiles[0], &profiles[1]);
    let text = Ranked::new(&diff).to_string();
    println!("{text}");
    let of = |change| -> Vec<&str> {
        let rows = diff.rows_of(Part::Path).filter(|row| diff.change(row) == change);
        rows.map(|row| row.symbol.as_str()).collect()
    };
    assert_eq!(of(Change::Rose), ["eth_type_trans", "alloc_skb_frame"]);
    assert_eq!(of(Change::Noise), ["ip_rcv", "__wake_up", "__kfree_skb", "__rdtsc_delay"]);
    assert!(text.contains("by the maker: 1,156 ticks") && text.contains(": 906 ticks"), "{text}");
    // 1,971 less 43 of kmalloc and of kfree each; 502 less 72 of alloc_skb_frame.
    assert!(text.contains("8 functions of the packet path fell by at least 1,885 ticks"), "{text}");
    assert!(text.contains("grew in, 2 functions: at least 430 ticks"), "{text}");
    let disks: Vec<&str> = diff.rows_of(Part::Background).map(|r| r.symbol.as_str()).collect();
    assert_eq!(disks.len(), 6, "{disks:?}");
    assert_eq!(diff.makers_total().map(|sum| sum.saved_counts()), Some(1444));
    let buffers = diff.sum_of(|row| is_buffer(&row.symbol));
    let pct = buffers.saving_as_listed(diff.scale).expect("a baseline");
    assert_eq!((buffers.without, buffers.with, format!("{pct:.0}")), (2833, 1388, "51".into()));
}

#[test]
fn every_function_of_the_posts_has_a_stage() {
    let profiles = [post(POST_000).0, post(POST_003).0].concat();
    for row in profiles.iter().flat_map(|profile| &profile.rows) {
        let stage = stage_of(&row.symbol, None, Space::Unknown);
        assert_ne!(stage, Stage::Other, "{}", row.symbol);
    }
}

fn profile(rows: &[(&str, u64)]) -> Profile {
    let event = Event {
        name: "LLC-misses".into(),
        unit: Unit::Samples,
        period: Some(1000),
        raw: Some("r412e".into()),
    };
    let mut profile = Profile::new(event, Origin::Counter);
    profile.rows = rows.iter().map(|&(name, count)| Row::new(name, count)).collect();
    profile
}

/// Returns a profile with call chains, whose functions have `;` between them, and idle time.
fn chained(chains: &[(&str, u64)], idle: u64) -> Profile {
    let mut profile = profile(&[("default_idle", idle)]);
    let stack = |&(chain, count): &(&str, u64)| Stack {
        frames: chain.split(';').map(str::to_owned).collect(),
        count,
    };
    profile.stacks = chains.iter().map(stack).collect();
    profile.stacks.push(stack(&("start;default_idle", idle)));
    profile
}

#[test]
fn call_chains_are_indented_below_their_callers_with_the_change_of_each() {
    let without = [("main;ip_rcv;kfree", 600), ("main;ip_rcv", 300), ("main;poll", 100)];
    let with = [("main;poll", 100), ("main;ip_rcv;kfree", 300), ("main;ip_rcv", 400), ("rare", 5)];
    let (without, with) = (chained(&without, 7000), chained(&with, 50));
    let diff = Diff::between(&without, &with);
    let chains = Chains::between(&without, &with, &diff).unwrap();
    let expected = "
   with  without  difference  change  call chain
samples  samples     samples
    805    1,000         195  fell    (all without idle)
    800    1,000         200  fell    main
    700      900         200  fell     ip_rcv
    300      600         300  fell      kfree
    100      100           0  noise    poll
(functions below 1 % of the larger side are not listed)
";
    assert_eq!(format!("\n{}", chains.clone().bare(true)), expected);
    let text = chains.to_string();
    assert!(text.starts_with("LLC-misses") && text.ends_with(expected), "{text}");
    let folded = flame::FoldedDiff::between(&without, &with, By::AsTheyAre).unwrap();
    let expected = "\
main;ip_rcv 300 400
main;ip_rcv;kfree 600 300
main;poll 100 100
rare 0 5
start;default_idle 7000 50
";
    assert_eq!(folded.to_string(), expected);
    let refused = Chains::between(&without, &profile(&[("main", 7)]), &diff).unwrap_err();
    assert!(
        refused.code == Code::Unsupported && refused.fix.contains("--call-chains"),
        "{refused}"
    );
}

#[test]
fn call_chains_of_several_runs_have_no_class_of_change() {
    let runs = |a, b| [a, b].map(|count| chained(&[("main;kfree", count)], 7));
    let (without, with) = (runs(600, 610), runs(300, 310));
    let (diff, [without, with]) = Diff::of_runs(&without, &with, By::AsTheyAre).unwrap();
    let text = Chains::between(&without, &with, &diff).unwrap().bare(true).to_string();
    assert!(text.ends_with("\n(the spread of the runs is not in this list)\n"), "{text}");
    assert!(text.contains("610") && !text.contains("fell"), "{text}");
    let text = Ranked::new(&diff).to_string();
    assert!(text.contains("; of what did not change at most 1 in 20 is\n"), "{text}");
}

#[test]
fn two_loads_are_compared_for_each_thousand_packets() {
    let (mut without, mut with) = (profile(&[("ip_rcv", 300)]), profile(&[("ip_rcv", 400)]));
    without.conditions.packets = Some(100_000);
    with.conditions.packets = Some(200_000);
    let text = Ranked::new(&Diff::between(&without, &with)).to_string();
    assert!(text.starts_with("! different loads"), "warnings go first: {text}");
    assert!(text.contains("/1000 packets"), "{text}");
    let row = |text: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with("ip_rcv")).expect("a row");
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row(&text), ["ip_rcv", "IP", "400", "300", "-100", "-33.3", "1.000", "rose"]);
    let diff = Diff::scaled(&without, &with, By::KiloPacket).expect("both have packets");
    let text = Ranked::new(&diff).to_string();
    assert!(text.contains("samples/1000 packets"), "{text}");
    assert_eq!(row(&text), ["ip_rcv", "IP", "2.000", "3.000", "1.000", "33.3"]);
}

/// S3.17.
#[test]
fn throughput_and_cpu_time_of_each_side_stand_above_its_counts() {
    let side = |wall_ns, cpu_ns| {
        let mut profile = profile(&[("ip_rcv", 300)]);
        let (name, rx_bytes) = ("eth0".to_owned(), 2_500_000);
        let netdev = Netdev { name, rx_packets: 2000, rx_bytes, ..Netdev::default() };
        let it = &mut profile.conditions;
        (it.wall_ns, it.cpu_ns, it.packets) = (Some(wall_ns), Some(cpu_ns), Some(2000));
        it.netdevs = vec![netdev];
        profile
    };
    let (without, with) = (side(2_000_000_000, 900_000_000), side(1_000_000_000, 400_000_000));
    let told = |seconds: &str, cpu: &str, rate: &str| {
        format!(
            "run: {seconds} s, {cpu} s of CPU time, 2,000 packets devices: eth0 rx 2,000 packets at {rate} \
             Mbit/s, tx 0 packets at 0.0 Mbit/s "
        )
    };
    let of = [told("2.000", "0.900", "10.0"), told("1.000", "0.400", "20.0")];
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = words(&Ranked::new(&Diff::between(&without, &with)).to_string());
    let [first, second] = of.each_ref().map(|told| text.find(told).expect(&text));
    let at = |what: &str| text.find(what).expect(&text);
    assert!(at("without: ") < first && first < at(" with: ") && at(" with: ") < second, "{text}");
    assert!(second < at(" function stage "), "{text}");
    let listed = words(&Table::new(&without).to_string());
    assert!(listed.find(&of[0]).expect(&listed) < listed.find(" function ").unwrap(), "{listed}");
}

#[test]
fn a_model_against_a_counter_is_told_before_any_figure() {
    let (without, mut with) = (profile(&[("f", 2)]), profile(&[("f", 1)]));
    with.origin = Origin::Model;
    let text = Ranked::new(&Diff::between(&without, &with)).to_string();
    assert!(text.starts_with("! NOT COMPARABLE: a model against a measurement"), "{text}");
    assert!(text.contains("model, not a measurement"), "{text}");
}

#[test]
fn a_profile_s_table_has_units_shares_of_the_maker_s_total_and_what_was_lost() {
    let mut profile = profile(&[("f", 10), ("kfree", 30)]);
    profile.rows[1].code_bytes = Some(60);
    profile.total = Some(linerate_prof::profile::Total { count: 80, load: None });
    profile.lost = 5;
    let text = Table::new(&profile).to_string();
    let expected = "\
LLC-misses (r412e), one sample for each 1,000: counter of the CPU
! lost: 5 samples are in no row

  count  share          load  function                   stage   object
samples      %  samples/byte
     30   37.5        0.5000  kfree                      memory  n/a
     10   12.5           n/a  f                          other   n/a
     40   50.0                (not listed by the maker)
     80  100.0                total
";
    assert_eq!(text, expected);
}

#[test]
fn a_hostile_name_is_harmless_for_people_and_whole_for_programs() {
    let name = format!("evil\u{1b}[2J\n{}", "x".repeat(5000));
    let (without, with) = (profile(&[(&name, 7)]), profile(&[(&name, 3)]));
    let diff = Diff::between(&without, &with);
    for text in [
        Ranked::new(&diff).to_string(),
        Ranked::new(&diff).as_posted(true).to_string(),
        Table::new(&with).to_string(),
        Kernprof(&with).to_string(),
        Readprofile(&with).to_string(),
        flame::Folded(&with).to_string(),
        flame::svg(&with).expect("drawn"),
    ] {
        assert!(!text.contains('\u{1b}'), "{text:.200}");
    }
    let longest = Ranked::new(&diff).to_string().lines().map(|l| l.chars().count()).max();
    assert!(longest < Some(120), "{longest:?}");
    assert!(csv::Profile(&with).to_string().contains(&name));
    assert!(csv::Ranked(&diff).to_string().contains(&name));
    let json: serde_json::Value =
        serde_json::from_str(&json::Diff(&diff).to_string()).expect("JSON");
    assert_eq!(json["rows"][0]["symbol"], name.as_str());
}

/// Returns two profiles drawn from the same means, as samples would be: by xorshift, and by Knuth's
/// method for the Poisson distribution.
fn twice_the_same(means: &[f64]) -> [Profile; 2] {
    let mut state = 88_172_645_463_325_252u64;
    let mut unit = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut poisson = move |mean: f64| {
        let (least, mut count, mut product) = ((-mean).exp(), 0, unit());
        while product > least {
            count += 1;
            product *= unit();
        }
        count
    };
    let names: Vec<String> = (0..means.len()).map(|i| format!("tcp_f{i}")).collect();
    [(); 2].map(|()| {
        let rows = names.iter().zip(means).map(|(name, mean)| (name.as_str(), poisson(*mean)));
        profile(&rows.filter(|&(_, count)| count > 0).collect::<Vec<_>>())
    })
}

#[test]
fn two_samplings_of_the_same_are_mostly_noise_and_top_bounds_the_table() {
    let means: Vec<f64> = (0..600).map(|i| 300.0 / (1.0 + f64::from(i) * 0.5)).collect();
    let [without, with] = twice_the_same(&means);
    let diff = Diff::between(&without, &with);
    let marked = |change| diff.rows.iter().filter(|row| diff.change(row) == change).count();
    let (noise, rose) = (marked(Change::Noise), marked(Change::Rose));
    assert!(noise > diff.rows.len() * 9 / 10 && rose < diff.rows.len() / 20, "{noise}, {rose}");
    let text = Ranked::new(&diff).top(Some(40)).to_string();
    assert!(text.lines().count() < 40 + 40 + 30, "{text}");
    assert!(text.contains("more within noise)"), "{text}");
    let small = Ranked::new(&diff).top(Some(1)).to_string();
    assert!(small.contains("more that rose, or may have)"), "{small}");
    let json: serde_json::Value =
        serde_json::from_str(&json::Diff(&diff).to_string()).expect("JSON");
    assert_eq!(json["noise"]["functions"], noise);
}

#[test]
fn where_no_sample_fell_all_forms_say_fewer_than_one() {
    let diff = Diff::between(&profile(&[("ip_rcv", 400), ("f", 7)]), &profile(&[("f", 7)]));
    let text = Ranked::new(&diff).to_string();
    let line = text.lines().find(|line| line.starts_with("ip_rcv")).expect("a row");
    let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|s| !s.is_empty()).collect();
    assert_eq!(cells, ["ip_rcv", "IP", "< 1", "400", "> 399", "≥ 99.8"]);
    let total = text.lines().find(|line| line.starts_with("total ")).expect("a total");
    assert!(total.ends_with("407         400    98.3"), "a sum of samples is known: {total}");
    assert!(
        csv::Ranked(&diff).to_string().contains("ip_rcv,,IP,,1,400,,,399,400,400,,99.75,100,fell")
    );
    let json: serde_json::Value =
        serde_json::from_str(&json::Diff(&diff).to_string()).expect("JSON");
    assert_eq!(json["rows"][0]["with"], serde_json::json!({"below": 1}));
    assert_eq!(json["total"]["saved"], 400.0);
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let name = prop_oneof![
        ".{0,20}",
        "[\u{0}-\u{ff}\u{61c}\u{fdd0}\u{ffff}<>&;\"'\\]]{0,9}",
        Just("poll_idle".to_owned()),
        Just("kfree".to_owned())
    ];
    let load = (any::<f64>(), any::<u8>()).prop_map(|(value, digits)| Load { value, digits });
    let count = prop_oneof![0u64..2000, any::<u64>(), Just(u64::MAX)];
    let row = (name, count, prop::option::of(any::<u64>()), prop::option::of(load)).prop_map(
        |(name, count, bytes, load)| Row { code_bytes: bytes, load, ..Row::new(name, count) },
    );
    let conditions = (prop::option::of(any::<u64>()), prop::option::of(any::<u64>()));
    let rest = (prop::option::of(any::<u64>()), any::<u64>(), conditions);
    (prop::collection::vec(row, 0..40), rest).prop_map(|(rows, (cutoff, lost, (ns, packets)))| {
        let mut profile = profile(&[]);
        profile.rows = rows;
        profile.cutoff = cutoff;
        profile.lost = lost;
        profile.conditions.wall_ns = ns;
        profile.event.name = "</title>]]>&\u{ffff}".into();
        profile.conditions.packets = packets;
        profile
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_profile_is_printed_without_a_panic(
        without in any_profile(), with in any_profile(), top in prop::option::of(0usize..50),
    ) {
        let mut diffs = vec![Diff::between(&without, &with)];
        for by in [By::Second, By::KiloPacket, By::Share] {
            diffs.extend(Diff::scaled(&without, &with, by));
        }
        for diff in &diffs {
            let lines = Ranked::new(diff).as_posted(true).to_string().lines().count();
            prop_assert_eq!(lines, diff.rows.len());
            let text = Ranked::new(diff).top(top).to_string();
            prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{}", text);
            let parsed = serde_json::from_str::<serde_json::Value>(&json::Diff(diff).to_string());
            prop_assert!(parsed.is_ok());
            let _ = (csv::Ranked(diff).to_string(), csv::Stages(diff).to_string());
            let _ = flame::diff_svg(&without, &with, diff.scale.by);
        }
        prop_assert_eq!(Kernprof(&with).to_string().lines().count(), with.rows.len());
        prop_assert_eq!(Readprofile(&with).to_string().lines().count(), with.rows.len() + 1);
        let _ = flame::svg(&with);
        let _ = (Table::new(&with).top(top).to_string(), csv::Profile(&with).to_string());
    }
}

#[test]
fn what_a_cut_off_hides_is_a_bound_of_the_difference_on_either_side() {
    let (mut without, with) = (profile(&[("ip_rcv", 90)]), profile(&[("tcp_v4_rcv", 335)]));
    without.cutoff = Some(72);
    let text = Ranked::new(&Diff::between(&without, &with)).to_string();
    let line = text.lines().find(|line| line.starts_with("tcp_v4_rcv")).expect("a row");
    let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|s| !s.is_empty()).collect();
    assert_eq!(cells[2..5], ["335", "< 72", "< -263"], "71 at most are hidden: {text}");
}

#[test]
fn rows_beyond_the_makers_total_are_told() {
    let mut listing = profile(&[("f", 30), ("g", 10)]);
    let told = "! the maker's total is 39, its rows sum to 40\n";
    listing.total = Some(Total { count: 39, load: None });
    assert!(Table::new(&listing).to_string().contains(told), "{}", Table::new(&listing));
    listing.total = Some(Total { count: 40, load: None });
    assert!(!Table::new(&listing).to_string().contains("its rows sum to"));
}

#[test]
fn call_chains_list_what_has_one_per_cent_and_two_hundred_functions_at_most() {
    let list = |chains: &[(&str, u64)]| {
        let of = chained(chains, 7);
        Chains::between(&of, &of, &Diff::between(&of, &of)).unwrap().bare(true).to_string()
    };
    let text = list(&[("main", 198), ("seldom", 2)]);
    assert!(text.contains("seldom"), "{text}");
    let text = list(&[("main", 199), ("seldom", 1)]);
    assert!(!text.contains("seldom") && text.contains("below 1 % of"), "{text}");
    let deep: Vec<String> = (0..250).map(|n| format!("f{n}")).collect();
    let text = list(&[(&deep.join(";"), 100)]);
    assert!(text.contains(" f199\n") && !text.contains(" f200\n"), "{text}");
    assert!(text.ends_with("(the first 200 functions)\n"), "{text}");
}
