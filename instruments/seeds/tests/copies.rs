//! Tests of other copies of the posts: changed, cut, broken. No result is built in, and no copy
//! causes a panic.

use linerate_seeds::{POSTS, Post, Report};

/// Returns the report of the post with `from`, which must be in it, replaced by `to`.
fn changed(id: &str, from: &str, to: &str) -> Report {
    let post = Post::named(id).unwrap();
    assert!(post.text.contains(from), "{from}");
    post.report_of(&post.text.replacen(from, to, 1)).unwrap()
}

#[test]
fn a_changed_figure_fails_its_check_with_its_line_and_no_other() {
    for (id, from, to, failed) in [
        (
            "000",
            "52 processes",
            "53 processes",
            vec![(76, "processes, sum of their states, as is")],
        ),
        ("000", "645 kmalloc 2.5195", "645 kmalloc 2.5195", vec![]),
        (
            "000",
            "1094 eth_type_trans 5.2596",
            "1095 eth_type_trans 5.2596",
            vec![(55, "has one size")],
        ),
        ("000", "(@ 7%)", "(@ 9%)", vec![(53, "share of the buffer functions")]),
        (
            "001",
            "40             4          6 ",
            "40             7          6 ",
            vec![(45, "loads with fewer")],
        ),
        ("002", "320.80", "320.81", vec![(93, "last digit"), (115, "Size:32 Procs:8")]),
        ("002", "19 Better", "18 Better", vec![(126, "got better")]),
        ("002", "(8/12)", "(9/12)", vec![(62, "better among TCP")]),
        ("002", "2340962", "2340963", vec![(125, "sum of ORG")]),
        ("002", "or 18500", "or 18600", vec![(68, "retransmissions for every 1")]),
        (
            "003",
            "fget 300 901 601",
            "fget 300 902 601",
            vec![(6, "own"), (43, "row 38"), (6, "without - with")],
        ),
        (
            "003",
            ">kfree [c012e1a0]: 556",
            ">kfree [c012e1a0]: 557",
            vec![(6, "own"), (52, "row 47")],
        ),
        ("004", "191.59", "191.60", vec![(36, "total cycles, CPU 0")]),
        ("004", "by 25%", "by 28%", vec![(26, "cycles saved")]),
    ] {
        let report = changed(id, from, to);
        let found: Vec<(usize, &str)> =
            report.failed().map(|check| (check.line, check.what.as_str())).collect();
        assert_eq!(found.len(), failed.len(), "{id} {to}: {found:?}");
        for ((line, what), (at, part)) in found.iter().zip(&failed) {
            assert!(line == at && what.contains(part), "{id} {to}: {found:?}");
        }
    }
}

#[test]
fn corrected_copy_has_no_erratum_for_it() {
    let says = |report: &Report, part: &str| report.errata.iter().any(|e| e.says.contains(part));
    assert!(!says(&changed("002", "or 18500", "or 18456"), "retransmissions"));
    assert!(!says(&changed("003", "L2_CACHE_LINES_OUT", "L2_LINES_OUT"), "L2_CACHE_LINES_OUT"));
    let (from, to) = (">poll_idle [c0105280]: 72241", ">poll_idle [c0105280]: 121742");
    assert!(!says(&changed("003", from, to), "leads the table"));
    let post = Post::named("000").unwrap();
    let copy = post.text.replace("32.8% system", "22.8% system");
    let copy = copy.replace("27.5% system", "18.1% system");
    assert!(!says(&post.report_of(&copy).unwrap(), "top disagree"));
}

/// Returns the reason why a copy, whose lines `change` makes of each line and its number, is
/// refused.
fn refused(id: &str, change: impl Fn(usize, &str) -> String) -> String {
    let post = Post::named(id).unwrap();
    let lines = post.text.lines().enumerate().map(|(i, line)| change(i + 1, line));
    post.report_of(&lines.collect::<Vec<_>>().join("\n")).unwrap_err().why
}

#[test]
fn a_copy_without_a_common_row_has_nothing_to_compare() {
    let why = refused("000", |line, row| match line {
        85..=103 => row.replacen(' ', " other_", 1),
        _ => row.to_owned(),
    });
    assert!(why.contains("nothing to compare: no function"), "{why}");
    let why = refused("001", |line, row| match line {
        66..=72 => "    100            -          17        -            50".to_owned(),
        _ => row.to_owned(),
    });
    assert!(why.contains("nothing to compare: no load"), "{why}");
}

#[test]
fn a_broken_copy_is_refused_with_the_line_and_the_reason() {
    for (id, from, to, why) in [
        ("000", "32.8% system", "32.8 system", "line 77: "),
        ("000", "645 kmalloc 2.5195", "64x5 kmalloc 2.5195", "line 60: "),
        ("001", "3.5       45", "3.5.1     45", "line 66: "),
        ("001", "-            50", "7            50", "line 73: packets without CPU"),
        ("002", "Size:32 Procs:1           2709", "Size:32 Procs:1           none", "line 93: "),
        ("003", "fput 524 1124 600", "fput 524 1124", "line 44: "),
        ("003", ">fput [c0136f40]: 524", ">fput [c0136f40]: 99999999999999999999", "line 188: "),
        ("004", "235,478 2,060,422", "235,478", "line 39: "),
        ("004", "Baseline on Linux", "Base", "\"Baseline on Linux\""),
    ] {
        let post = Post::named(id).unwrap();
        assert!(post.text.contains(from), "{from}");
        let refused = post.report_of(&post.text.replacen(from, to, 1)).unwrap_err();
        assert!(refused.why.contains(why), "{id} {to}: {refused}");
        assert_eq!(refused.what, format!("cannot read post {id}"), "{refused}");
    }
}

/// Removes, doubles, garbles or lengthens each line, and cuts the post off after it.
#[test]
fn no_copy_makes_us_fall() {
    const NONSENSE: [&str; 4] = [
        "999999999999999 999999999999999 999999999999999 -999999999999999 0.000000001",
        ">f [ffffffffffffffff]: 18446744073709551615",
        "18446744073709551615 total 0.0000",
        "Size:1 Procs:1 1 999999999999999 .",
    ];
    let mut refused = 0;
    for post in &POSTS {
        let lines: Vec<&str> = post.text.lines().collect();
        for at in 0..lines.len() {
            let (before, after) = (lines[..at].join("\n"), lines[at + 1..].join("\n"));
            let mut copies = vec![
                format!("{before}\n{after}"),
                format!("{before}\n{0}\n{0}\n{after}", lines[at]),
                before.clone(),
            ];
            copies.extend(NONSENSE.map(|line| format!("{before}\n{line}\n{after}")));
            for copy in copies {
                match post.report_of(&copy) {
                    // Printing must not fall either.
                    Ok(report) => drop((report.to_string(), report.csv().count())),
                    Err(e) => {
                        refused += 1;
                        assert!(!e.why.is_empty(), "{}", post.id);
                    }
                }
            }
        }
    }
    assert!(refused > 500, "{refused}");
}
