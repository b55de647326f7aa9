//! Files of a report's charts: their figures and units.

use linerate_lab::record::Run;
use linerate_lab::report::html;
use linerate_prof::profile::Stack;
use linerate_show::number::figure;

use crate::fixture::{batch, coalesce, pool, skbinit};
use crate::without_documents;

#[test]
fn every_chart_has_a_file_of_its_figures() {
    let page = without_documents(&html(&[skbinit()]));
    for name in ["effect", "aa_strip", "pairs", "free_matrix", "ledger", "calls"] {
        assert!(
            page.contains(&format!("<a download=\"{name}.csv\" href=\"data:text/csv")),
            "{name}"
        );
    }
    assert!(page.contains("data:text/csv;charset=utf-8,235478,1827798%0A12004,220355%0A"));
    assert!(without_documents(&html(&[pool()])).contains("download=\"functions.csv\""));
    for runs in [vec![pool()], vec![skbinit(), skbinit()], vec![coalesce()], vec![batch()]] {
        let page = without_documents(&html(&runs));
        let drawn: Vec<&str> = page.split("<figure>").skip(1).collect();
        assert!(
            !drawn.is_empty() && drawn.iter().all(|rest| rest.contains("download=\"")),
            "{page}"
        );
    }
}

#[test]
fn cells_and_matrices_that_are_not_drawn_are_counted() {
    let mut run = skbinit();
    let cell = run.cells[0].clone();
    let alike = (0..62).map(|n| {
        let mut one = cell.clone();
        one.at.insert("free".into(), n.to_string());
        one
    });
    run.cells = alike.collect();
    let matrix = vec![vec![1; 40]; 40];
    run.matrices = (0..61).map(|n| (format!("free={n}/a/free_matrix"), matrix.clone())).collect();
    let page = without_documents(&html(&[run]));
    let of = |id: &str| {
        let from = &page[page.find(&format!("<section id=\"{id}\">")).expect(id)..];
        &from[..from.find("</section>").unwrap()]
    };
    for (id, sentence) in [
        ("shape", "38 more cells are in the run's document."),
        ("noise", "2 more cells are in the run's document."),
        ("pairs", "2 more cells are in the run's document."),
        ("totals", "1 more matrix is in the run's document."),
        ("totals", "(the first 32 of 40 CPUs)"),
    ] {
        assert!(of(id).contains(sentence), "{id}");
    }
}

/// S1.22 and S3.21.
#[test]
fn files_of_drawn_profiles_have_the_figures_of_their_bars_with_the_unit() {
    let page = without_documents(&html(&[pool()]));
    let file = |name: &str| file(&page, name);
    let (unit, (functions, chains)) = ("samples/1000 packets", (file("functions"), file("chains")));
    assert!(
        functions.starts_with(&format!("function,stage,a ({unit}),b ({unit})\n")),
        "{functions}"
    );
    assert!(file("stages").starts_with(&format!("stage,a ({unit}),b ({unit}),")));
    // The tip of a bar has the rounded figures of both sides.
    let tip = |from: &str, to: &str| {
        let [from, to] = [from, to].map(|text| figure(text.parse().unwrap()));
        format!("{from} → {to}")
    };
    let mut drawn = 0;
    for line in functions.lines().skip(1) {
        let [name, stage, a, b] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
        if a != b && !b.starts_with('<') {
            drawn += 1;
            let tip = format!("<title>{name}, {stage}: {}, fell</title>", tip(a, b));
            assert!(page.contains(&tip), "no {tip} of {line}");
        }
    }
    assert!(drawn >= 4, "{functions}");
    let malloc = chains.lines().find(|line| line.contains(";malloc,")).unwrap();
    let [_, a, b] = malloc.split(',').collect::<Vec<_>>()[..] else { panic!("{malloc}") };
    assert!(
        page.contains(&format!("<title>malloc: {} {unit}, fell</title>", tip(a, b))),
        "{malloc}"
    );
}

/// S1.22.
#[test]
fn file_of_over_1000_call_chains_ends_with_the_number_and_the_sum_of_those_left_out() {
    let mut run = pool();
    for (profile, scale) in run.profiles[..2].iter_mut().zip([1_u64, 2]) {
        let chain = |n: u64| Stack {
            frames: vec!["start_thread".into(), format!("f{n:04}")],
            count: scale * (2000 - n),
        };
        profile.stacks = (0..1200).map(chain).collect();
    }
    let told = |run: &Run| file(&without_documents(&html(std::slice::from_ref(run))), "chains");
    let csv = told(&run);
    let lines: Vec<&str> = csv.lines().skip(1).collect();
    assert_eq!(lines.len(), 1001, "{csv}");
    assert!(lines[0].starts_with("start_thread;f0000,") && !csv.contains("f1000"), "{csv}");
    // The sum of 801 to 1,000, for each of 2,400 thousand packets; side B has the double.
    let [name, a, b] = lines[1000].split(',').collect::<Vec<_>>()[..] else { panic!("{csv}") };
    assert_eq!(name, "[200 more in the run's document]");
    for (value, sum) in [(a, 180_100.0), (b, 360_200.0)] {
        let value: f64 = value.parse().unwrap();
        assert!((value - sum / 2400.0).abs() < 1e-6, "{value}");
    }
    run.profiles[..2].iter_mut().for_each(|profile| profile.stacks.truncate(1000));
    let csv = told(&run);
    assert!(csv.lines().count() == 1001 && !csv.contains("more in the run"), "{csv}");
}

/// Returns the first file of a chart with this name.
fn file(page: &str, name: &str) -> String {
    let begin = format!("<a download=\"{name}.csv\" href=\"data:text/csv;charset=utf-8,");
    let (_, rest) = page.split_once(&begin).unwrap();
    decoded(rest.split('"').next().unwrap())
}

/// Returns the text of a data URI.
fn decoded(uri: &str) -> String {
    let mut parts = uri.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(code, 16).unwrap());
        bytes.extend(rest.bytes());
    }
    String::from_utf8(bytes).unwrap()
}
