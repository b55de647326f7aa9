//! The five posts, figure by figure: this file alone has the expected results.

use linerate_seeds::{Outcome, POSTS, Part, Post, Report};
use serde_json::Value;

fn report(id: &str) -> Report {
    Post::named(id).unwrap().report().unwrap()
}

/// Returns the document of a post's table, or of its difference.
fn part(report: &Report, name: &str) -> Value {
    let named = |part: &&Part| match part {
        Part::Table(table) => table.name == name,
        Part::Profile(printed) => printed.name == name,
        Part::Headline(_) | Part::Remarks { .. } => false,
    };
    let part = report.parts.iter().find(named).unwrap_or_else(|| panic!("no part {name}"));
    serde_json::to_value(part).unwrap()
}

/// Returns the row of `part` whose `key` is `name`.
fn row(part: &Value, key: &str, name: &str) -> Value {
    let rows = part["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row[key] == name);
    found.unwrap_or_else(|| panic!("no row {name} in {part}")).clone()
}

#[track_caller]
fn near(value: &Value, expected: f64, within: f64) {
    let is = value.as_f64().unwrap_or_else(|| panic!("{value} is no number"));
    assert!((is - expected).abs() < within, "{is}, not {expected}");
}

/// Returns the lines `first` to `last` of a post.
fn lines(id: &str, first: usize, last: usize) -> String {
    let post = Post::named(id).unwrap();
    let lines = post.text.lines().skip(first - 1).take(last + 1 - first);
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn every_posted_table_is_printed_again_byte_for_byte() {
    let listings = lines("000", 55, 79) + &lines("000", 83, 108);
    assert_eq!(report("000").as_posted, listings);
    assert_eq!(report("001").as_posted, lines("001", 62, 73));
    assert_eq!(report("002").as_posted, lines("002", 88, 126));
    assert_eq!(report("003").as_posted, lines("003", 6, 73));
    assert_eq!(report("004").as_posted, lines("004", 28, 48));
}

#[test]
fn every_check_is_as_expected_and_every_error_is_found() {
    let reports: Vec<Report> = POSTS.iter().map(|post| post.report().unwrap()).collect();
    let outcome = Outcome::of(&reports);
    assert_eq!(outcome.failed, []);
    let checks: Vec<usize> = reports.iter().map(|report| report.checks.len()).collect();
    assert_eq!(checks, [7, 2, 13, 2, 3]);
    let errata: Vec<usize> = reports.iter().map(|report| report.errata.len()).collect();
    assert_eq!(errata, [6, 4, 4, 6, 6]);
    let text = outcome.to_string();
    assert!(
        text.starts_with("27 checks, all as expected; 26 errors and misleading statements"),
        "{text}"
    );
}

#[test]
fn post_000_cost_moved_and_vanished_are_told_apart_and_disks_are_in_neither() {
    let report = report("000");
    let moved = part(&report, "moved");
    let change = |of| row(&moved, "part", of)["change_ticks"].clone();
    assert_eq!(change("the path: vanished"), -2014);
    assert_eq!(change("the path: moved to, or grown"), 510);
    assert_eq!(change("  eth_type_trans"), 167);
    assert_eq!(change("  alloc_skb_frame"), 335);
    assert_eq!(change("disks, in the background"), -227);
    assert_eq!(change("idle"), 537);
    assert_eq!(change("all"), -1444);
    let buffers = part(&report, "buffers");
    let ticks = row(&buffers, "figure", "ticks, what is not listed as 0");
    assert_eq!((&ticks["as_is"], &ticks["frames"]), (&2833.into(), &1388.into()));
    near(&ticks["change_pct"], -51.0, 0.05);
    let hidden = row(&buffers, "figure", "the same, with all that the cut-off may hide");
    assert_eq!(hidden["frames"]["below"], 1388 + 2 * 43);
    near(&hidden["change_pct"]["at_most"], -48.0, 0.05);
    let share = row(&buffers, "figure", "share of all ticks");
    near(&share["as_is"], 7.8, 0.05);
    near(&share["frames"], 4.0, 0.05);
    let share = row(&buffers, "figure", "share of ticks not idle");
    near(&share["as_is"], 34.2, 0.05);
    near(&share["frames"], 22.0, 0.05);
}

#[test]
fn post_000_the_listings_stand_side_by_side_with_code_loads_and_stages() {
    let report = report("000");
    let loads = part(&report, "loads");
    assert_eq!(loads["rows"].as_array().unwrap().len(), 21);
    let row_of = |name| row(&loads, "function", name);
    let eth = row_of("eth_type_trans");
    assert_eq!((&eth["as_is_ticks"], &eth["frames_ticks"]), (&927.into(), &1094.into()));
    assert_eq!(eth["code_bytes"], 208);
    near(&eth["as_is_load"], 4.4567, 1e-9);
    assert_eq!(row_of("__make_request")["code_bytes"], 1456);
    assert_eq!(row_of("kmalloc")["frames_ticks"]["below"], 43);
    assert_eq!(row_of("alloc_skb_frame")["as_is_ticks"]["below"], 72);
    let profile = &part(&report, "profile")["document"];
    let stages = profile["stages"].as_array().unwrap();
    let disk = stages.iter().find(|stage| stage["stage"] == "disk").unwrap();
    assert_eq!((&disk["without"], &disk["with"]), (&1667.into(), &1440.into()));
}

#[test]
fn post_000_memory_held_stands_beside_the_gain() {
    let top = part(&report("000"), "top");
    let of = |name| row(&top, "figure", name);
    near(&of("CPU system")["difference"], -5.3, 1e-9);
    assert_eq!(of("processes")["difference"], -2);
    assert_eq!(of("memory used")["difference"], 841_280 - 869_248);
    assert_eq!(of("memory free")["difference"], 56_624 - 28_656);
    assert_eq!(of("memory in buffers")["difference"], 2220 - 3724);
    assert_eq!(of("memory in cached files")["difference"], 22_292 - 46_596);
    assert_eq!(of("swap")["as_is"], 1_052_216);
}

#[test]
fn post_000_two_instruments_that_disagree_are_both_printed_and_flagged() {
    let report = report("000");
    let held: Vec<Value> = report
        .parts
        .iter()
        .filter(|part| matches!(part, Part::Headline(_)))
        .map(|part| serde_json::to_value(part).unwrap())
        .collect();
    let [as_is, frames] = &held[..] else { panic!("{held:?}") };
    for (held, profile, top) in [(as_is, 22.8, 32.8), (frames, 18.1, 27.5)] {
        near(&held["by"][0]["value"], profile, 0.05);
        near(&held["by"][1]["value"], top, 1e-9);
        assert_eq!(held["verdict"], "disagree");
        let likely = held["likely"].to_string();
        assert!(likely.contains("windows") && likely.contains("interrupts disabled"), "{likely}");
    }
    let text = report.to_string();
    assert!(text.contains("DISAGREE  by 10.0 points, 30.5 % of the larger"), "{text}");
}

#[test]
fn post_001_both_ratios_stand_in_every_row_and_what_was_not_reached_has_none() {
    let loads = part(&report("001"), "packets_per_interrupt");
    let rows = loads["rows"].as_array().unwrap();
    let packets = [1.75, 1.5, 1.5, 1.75, 1.67, 2.67, 2.29];
    let cpu = [2.65, 1.73, 1.67, 1.83, 2.22, 2.25, 2.22];
    for ((row, packets), cpu) in rows.iter().zip(packets).zip(cpu) {
        near(&row["packets_ratio"], packets, 0.005);
        near(&row["cpu_ratio"], cpu, 0.005);
    }
    let links: Vec<&Value> = rows.iter().map(|row| &row["link_pct"]).collect();
    assert_eq!(links, [25, 40, 50, 60, 70, 80, 85, 100]);
    let full = rows.last().unwrap();
    for key in ["napi_packets_per_interrupt", "napi_cpu_pct", "packets_ratio", "cpu_ratio"] {
        assert!(full[key]["absent"].is_string(), "{key}: {full}");
    }
    assert_eq!(full["coalescing_packets_per_interrupt"], 17);
    let csv: Vec<(&str, String)> = report("001").csv().collect();
    let (_, csv) = csv.iter().find(|(name, _)| *name == "packets_per_interrupt").unwrap();
    assert_eq!(csv.lines().last(), Some("100,,17,,,50,"));
}

#[test]
fn post_001_says_with_what_and_when_it_was_taken_and_keeps_what_it_leans_on() {
    let report = report("001");
    let fact = |about| {
        let fact = report.taken.iter().find(|fact| fact.about == about);
        fact.unwrap_or_else(|| panic!("no fact {about}")).is.as_str()
    };
    assert_eq!(fact("kernel"), "2.6.5");
    assert_eq!(fact("machine"), "Altix with 1GHz CPUs");
    assert_eq!(fact("driver"), "tg3");
    assert_eq!(fact("workload"), "bulk data transfer using nttcp");
    assert_eq!(fact("age"), "pretty old by now");
    assert!(fact("how rough").contains("eyeballing"));
    let tools = part(&report, "tools");
    let names: Vec<&Value> =
        tools["rows"].as_array().unwrap().iter().map(|row| &row["tool"]).collect();
    assert_eq!(names, ["/proc/", "PCP", "kernprof", "q-tools", "get_cycles()"]);
    let references = part(&report, "references").to_string();
    for kept in [
        "m=107183822710263",
        "m=109848080827969",
        "20050419113657.7290d26e",
        "20050419055535.GA12211",
    ] {
        assert!(references.contains(kept), "{kept}");
    }
}

#[test]
fn post_002_each_change_is_the_posts_to_the_last_digit() {
    let tests = part(&report("002"), "tests");
    let changes: Vec<f64> = tests["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["change_pct"].as_f64().unwrap())
        .collect();
    let posted = [
        55.66, 44.77, 93.19, 1.51, 18.21, 29.72, -4.93, -6.44, 30.99, 9.26, -11.06, -6.98, 0.72,
        -8.65, 2.84, 5.37, 320.80, 281.58, 203.06, 20.62, 83.65, 62.58, 98.40, 17.38,
    ];
    assert_eq!(changes, posted);
    assert!(report("002").as_posted.contains("1944           .72\n"));
}

#[test]
fn post_002_the_whole_is_summed_in_three_ways_and_by_group() {
    let groups = part(&report("002"), "groups");
    let of = |name| row(&groups, "group", name);
    let all = of("all");
    assert_eq!((&all["org_rate"], &all["new_rate"]), (&2_340_962.0.into(), &2_826_340.0.into()));
    near(&all["sums_pct"], 20.73, 0.005);
    near(&all["geometric_pct"], 39.4, 0.05);
    assert_eq!((&all["better"], &all["worse"], &all["same"]), (&19.into(), &5.into(), &0.into()));
    near(&of("TCP")["sums_pct"], 0.84, 0.005);
    near(&of("TCP")["geometric_pct"], 17.8, 0.05);
    assert_eq!((&of("TCP")["better"], &of("TCP")["tests"]), (&8.into(), &12.into()));
    near(&of("TCP No Delay")["sums_pct"], 54.8, 0.05);
    near(&of("TCP No Delay")["geometric_pct"], 65.0, 0.05);
    assert_eq!(of("TCP No Delay")["worse"], 1);
}

#[test]
fn post_002_what_it_cost_where_it_ran_and_what_was_dropped_are_kept() {
    let report = report("002");
    let retransmissions = part(&report, "retransmissions");
    let new = row(&retransmissions, "code", "NEW");
    assert_eq!((&new["retransmissions"], &new["ratio"]), (&1_365_716.into(), &18_456.into()));
    assert!(report.errata.iter().any(|e| e.says.contains("18500") && e.gives.contains("18456")));
    let environment = part(&report, "environment");
    let value = |name| row(&environment, "setting", name)["value"].clone();
    assert_eq!(value("ib_ipoib send_queue_size"), "512");
    assert_eq!(value("net.ipv4.tcp_rmem"), "4096 1048576 4194304");
    assert_eq!(value("net.core.netdev_max_backlog"), "120000");
    let remarks: Vec<usize> = report
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::Remarks { remarks, .. } => Some(remarks.len()),
            _ => None,
        })
        .collect();
    assert_eq!(remarks, [11, 3]);
    let text = report.to_string();
    assert!(text.contains("This reduces performance (~ 1%)"), "{text}");
}

#[test]
fn post_003_mckenneys_table_comes_out_of_malas_lists() {
    let report = report("003");
    assert_eq!(report.checks[0].computed, "68 of 68");
    let document = &part(&report, "difference")["document"];
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 68);
    let below: Vec<&Value> = rows.iter().filter(|row| row["with"]["below"] == 216).collect();
    assert_eq!(below.len(), 14);
    let total = &document["total"];
    assert_eq!((&total["without"], &total["with"]), (&291_873.into(), &137_182.into()));
    let no_idle = &document["total_without_idle"];
    assert_eq!((&no_idle["without"], &no_idle["with"]), (&170_130.into(), &64_941.into()));
    let text = report.to_string();
    for part in ["< 216", "-53.0 %", "-61.8 %", "event samples", "USER", "mcount", "rose"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("NOT COMPARABLE"), "{text}");
}

#[test]
fn post_004_the_gain_is_weighted_by_calls_and_who_frees_is_counted() {
    let report = report("004");
    let gain = part(&report, "gain");
    let unweighted = row(&gain, "mean", "mean of the CPUs' averages, as in the post");
    near(&unweighted["before_cycles"], 311.965, 1e-6);
    near(&unweighted["after_cycles"]["at_least"], 234.06, 1e-6);
    near(&unweighted["change_pct"]["at_least"], -24.97, 0.005);
    let weighted = row(&gain, "mean", "every call weighing the same");
    near(&weighted["before_cycles"], 326.9, 0.05);
    near(&weighted["after_cycles"]["at_least"], 234.1, 0.05);
    near(&weighted["change_pct"]["at_least"], -28.4, 0.05);
    let owners = part(&report, "owners");
    let before = |name| row(&owners, "figure", name)["before"].clone();
    assert_eq!(before("allocated"), 2_295_900);
    assert_eq!(before("outstanding at the end: allocated - freed"), 265);
    assert_eq!(before("freed on another CPU than allocated, at least"), 1_827_798);
    near(&before("the same, of those allocated"), 79.6, 0.05);
    let imbalance = row(&owners, "figure", "imbalance: most / fewest allocations of a CPU");
    near(&imbalance["before"], 2_060_422.0 / 235_478.0, 1e-9);
    near(&imbalance["after"], 1_226_594.0 / 1_213_327.0, 1e-9);
    let cycles = part(&report, "cycles");
    let patched: Vec<&Value> = cycles["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["kernel"] == "with patch" && row["function"] == "__kfree_skb")
        .collect();
    assert!(patched[0]["cpu0_cycles"]["absent"].is_string(), "{patched:?}");
    let text = report.to_string();
    assert!(text.contains("64.05 -> 237.21 cycles"), "{text}");
}

#[test]
fn the_text_is_as_it_was_when_it_was_last_read_by_a_person() {
    for post in &POSTS {
        let path = format!("{}/tests/golden/{}.txt", env!("CARGO_MANIFEST_DIR"), post.id);
        let text = post.report().unwrap().to_string();
        if std::env::var_os("LINERATE_GOLDEN").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, golden, "read it, then run with LINERATE_GOLDEN=1");
    }
}

#[test]
fn no_line_is_wider_than_the_screen() {
    for post in &POSTS {
        for line in post.report().unwrap().to_string().lines() {
            assert!(line.chars().count() <= 100, "{}: {line}", post.id);
        }
    }
}
