//! Tests of a run's reports as text and data, and that no document can break them.

#[path = "report/files.rs"]
mod files;
#[path = "report/fixture.rs"]
mod fixture;
#[path = "report/posts.rs"]
mod posts;
#[path = "report/sentences.rs"]
mod sentences;
#[path = "report/triaged.rs"]
mod triaged;

use fixture::{batch, coalesce, coalesce_bus, pool, skbinit};
use linerate_lab::record::{Effect, Ledgers, ProfileRecord, ProfileRow, Run, Status, Verdict};
use linerate_lab::report::{html, text};
use linerate_prof::agree::{Checked, Headline, Means, Reading, Tolerance};
use linerate_prof::profile::Stack;
use linerate_show::words::WIDTH;
use proptest::prelude::*;

#[test]
fn the_text_says_what_was_measured_and_never_0_for_what_was_not_seen() {
    let text = text(&pool());
    for wanted in [
        "frames is better than malloc in 4 of 5 cells; 1 inconclusive (not run here)",
        "A/A floor",
        "NOT met, which is a result",
        "post 000: rows of buffer functions fell by 51 %",
        "< 0.000310",
        "[-57.3, -55.1]",
        "tx_ring_full",
        "profiles (8)",
        "linerate lab seeds 000",
        "Absolute values are not compared",
        "fix: sudo linerate lab run pool",
        "! W-UNSUPPORTED packet ports need CAP_NET_RAW (change=both rate=host)",
        "packet ports need CAP_NET_RAW",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    let line = "all: sum -40.4 % [-41.4, -39.4], geometric mean -41.1 % (4 better)";
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains(line), "{text}");
    let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > WIDTH).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn loads_of_post_001_are_told_in_its_layout_with_the_latency_beside_and_a_dash_where_not_reached() {
    let text = text(&coalesce());
    let page = html(&[coalesce()]);
    for wanted in [
        "coalescing: mode=fixed, port=xdp",
        "   Link util [%]  Packets/Interrupt     CPU utilization [%]\n",
        "    25             2.0        3.5       45.0         17.0\n",
        "    100            -          3.5       -            17.0\n",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
        assert!(
            page.contains(wanted.trim_start_matches("coalescing: ")),
            "no {wanted:?} in the page"
        );
    }
    let beside = text.lines().rfind(|line| line.contains(" 83.0 ")).unwrap();
    for wanted in ["100", "99.5", "40.0", "140.0", "80.0", "290.0", "90.0", "60.0"] {
        assert!(beside.contains(wanted), "no {wanted} in {beside:?}");
    }
    assert!(!html(&[skbinit()]).contains("Link util"));
}

#[test]
fn the_price_from_which_coalescing_pays_has_a_line_of_its_own() {
    let line = "MODEL: crossover of cpu_pct, load=25, mode=fixed: less from a flushing read of 0.5 us on \
                [0.4 us, 0.5 us]";
    let words: Vec<String> = text(&coalesce_bus()).split_whitespace().map(String::from).collect();
    assert!(words.join(" ").contains(line), "{}", words.join(" "));
    assert!(html(&[coalesce_bus()]).contains(line));
    assert!(!text(&coalesce()).contains("crossover"));
}

#[test]
fn tests_of_post_002_are_told_in_its_layout_with_the_sums_and_the_price_beside() {
    let text = text(&batch());
    for wanted in [
        "org for its ORG and new for its NEW: device=xdp",
        "Test Case                 ORG         NEW          % Change\n",
        "                               TCP\n                               ---\n",
        "Size:32 Procs:1           1000        1500           50.00\n\nSize:32 Procs:8 ",
        "Overall:                  3000        4400           46.67%\n",
        "[Summary: 2 Better cases, 1 worse]\n",
        "Geometric mean of 3 changes: +39.2 %.",
        "0.031",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    let row = text.lines().find(|line| line.trim_start().starts_with("NoDelay ")).unwrap();
    assert!(row.contains(" 74 ") && row.contains(" 91 "), "retransmissions in {row:?}");
}

#[test]
fn functions_of_post_003_are_told_ranked_with_throughput_and_cpu_beside() {
    let mut run = pool();
    run.experiment.seed_post = "003".into();
    let idle = |record: &mut ProfileRecord| {
        record.rows.push(ProfileRow { symbol: "USER".into(), ..record.rows[0].clone() });
        record.remarks.push("being sampled took about 2.5 %".into());
    };
    run.profiles.iter_mut().for_each(idle);
    let told = text(&run);
    for wanted in [
        "for its without and",
        "note: being sampled took about 2.5 %",
        // The text has the four columns, a bound, the rises, idle time and programs separately, and
        // the stages' totals.
        "function                              stage",
        "< 0.0250",
        "rose",
        "programs, apart:",
        "idle, apart:",
        "total without idle",
        "packet path",
        "(all without idle)\n",
        "  start_thread\n",
        "   Worker::turn\n",
    ] {
        assert!(told.contains(wanted), "no {wanted:?} in\n{told}");
    }
    let (_, posted) = told.split_once("for its without and").unwrap();
    let beside = posted.split_whitespace().collect::<Vec<_>>().join(" ");
    for wanted in [
        "cost_ns_per_packet 412.70 352.86 ns/packet",
        "packets_per_second 2,412,700.00 2,422,350.80 packets/s",
    ] {
        assert!(beside.contains(wanted), "no {wanted:?} in\n{posted}");
    }
    let toml = fixture::POOL.replace("\"packets / seconds\"", "\"pmu.L2_LINES_OUT / packets\"");
    for cell in &mut run.cells {
        cell.metrics.remove("packets_per_second");
    }
    run.run.config_toml = Some(toml);
    let told = text(&run).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("not a measurement: linerate lines,"), "{told}");
}

#[test]
fn a_quick_or_interrupted_run_is_marked_in_its_first_line() {
    let mut run = skbinit();
    assert!(!text(&run).lines().next().unwrap().contains("QUICK"));
    run.run.argv.push("--quick".into());
    run.run.complete = false;
    let first = text(&run).lines().next().unwrap().to_owned();
    assert!(first.contains("QUICK") && first.contains("INCOMPLETE"), "{first}");
    let page = html(&[run]);
    assert!(page.contains("class=\"mark\">QUICK") && page.contains("class=\"mark\">INCOMPLETE"));
}

#[test]
fn a_cell_without_figures_is_a_dash_with_its_reason() {
    let mut run = skbinit();
    run.cells[0].metrics.clear();
    run.cells[0].status = Status::Inconclusive;
    let told = text(&run);
    let why = "14 of 15 pairs were undisturbed: foreign CPU 31 % of the window in 1\n";
    assert_eq!(told.matches("foreign CPU").count(), 1, "{told}");
    assert!(told.contains(why), "{told}");
    assert!(told.starts_with("at_alloc against at_free: no result (disturbed)"), "{told}");
    let mut run = pool();
    run.cells[4].status = Status::Unreachable;
    run.warnings.clear();
    assert!(text(&run).contains("the load that it names was not reached"));
    run.cells[4].ledger.b.balanced = false;
    let told = text(&run);
    assert!(told.contains("its results are withheld") && told.contains("UNBALANCED"));
}

#[test]
fn a_verdict_of_some_cells_does_not_speak_for_all() {
    let mut run = pool();
    run.cells.truncate(4);
    assert!(text(&run).starts_with("frames is better than malloc in all 4 cells."));
    for cell in &mut run.cells[..2] {
        cell.status = Status::Inconclusive;
        cell.metrics.clear();
    }
    let worse = run.cells[3].metrics.get_mut("buffer_ticks_per_packet").unwrap();
    worse.verdict = Verdict::Worse;
    run.run.complete = false;
    let told = text(&run);
    let sentence = "Interrupted run: frames is better than malloc in 1 of 4 cells, worse than malloc \
                    in 1 of 4 cells; 2 inconclusive (disturbed).";
    let flat = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(sentence), "{told}");
}

#[test]
fn notes_are_told_once_and_last_and_are_no_warnings() {
    let mut run = pool();
    run.run.argv[0] = "/opt/somewhere/linerate".into();
    for cell in ["change=frames rate=fixed", "rate=max change=frames"] {
        for (n, side) in [(32, "side a"), (7, "side b"), (1056, "the control of a")] {
            run.warnings.push(linerate_lab::record::Warning {
                code: "W-NOTE".into(),
                text: format!("{cell}, {side}: {n} packets were left over"),
                fix: None,
            });
        }
    }
    let told = text(&run);
    let (start, notes) = told.split_once("\nNotes\n").unwrap();
    let note = "7 to 1,056 packets were left over (change=frames rate=fixed · change=frames \
                rate=max: all sides)";
    assert_eq!(notes.split_whitespace().collect::<Vec<_>>().join(" "), note);
    assert!(start.find("! W-UNSUPPORTED").unwrap() < start.find("  experiment").unwrap());
    assert!(!start.contains("W-NOTE") && start.contains("  command     linerate lab run pool"));
    let page = without_documents(&html(&[run]));
    assert_eq!(page.matches("packets were left over").count(), 1);
    assert!(page.find("id=\"conditions\"").unwrap() < page.find("id=\"notes\"").unwrap());
}

#[test]
fn metric_without_values_is_one_line_without_a_table() {
    let mut run = pool();
    for cell in &mut run.cells {
        cell.metrics.remove("packets_per_second");
    }
    let told = text(&run);
    let line = "not counted here: packets_per_second: no cell has a value of it";
    assert!(told.contains(line) && told.matches("packets_per_second").count() == 1, "{told}");
    let toml = fixture::POOL.replace("\"packets / seconds\"", "\"pmu.cycles / packets\"");
    run.run.config_toml = Some(toml);
    assert!(text(&run).contains("this machine cannot count CPU events"));
    let page = without_documents(&html(&[run]));
    assert!(
        page.contains("Not counted here: packets_per_second") && !page.contains("<h3>packets_per")
    );
}

#[test]
fn run_without_packets_has_no_ledger() {
    let mut run = skbinit();
    assert!(text(&run).contains("Where every packet went"));
    run.cells.iter_mut().for_each(|cell| cell.ledger = Ledgers::default());
    assert!(!text(&run).contains("Where every packet went"));
    let page = without_documents(&html(&[run]));
    assert!(!page.contains("Where every packet went"));
}

#[test]
fn metric_of_zeros_is_one_line_without_a_plot() {
    let mut run = skbinit();
    let locks = run.cells[0].metrics.get_mut("locks_per_packet").unwrap();
    (locks.a, locks.b, locks.censored_below) = (0.0, 0.0, None);
    let page = without_documents(&html(&[run]));
    assert!(page.contains("0 on both sides of every cell: locks_per_packet."));
    assert!(!page.contains("<h3>locks_per_packet") && page.contains("<h3>cost_ns_per_packet"));
}

#[test]
fn verdict_same_is_printed_with_its_declared_margin() {
    let mut run = pool();
    for cell in &mut run.cells {
        for effect in cell.metrics.values_mut() {
            (effect.verdict, effect.same_pct) = (Verdict::Same, Some(2.34));
        }
    }
    assert!(text(&run).contains("  same ±2.3 %"), "{}", text(&run));
    assert!(html(&[run]).contains(">same ±2.3 %</td>"));
}

#[test]
fn the_headline_counts_the_cells_that_its_sum_is_of() {
    let mut run = pool();
    assert!(text(&run).contains(", 4 cells: sum "), "{}", text(&run));
    run.cells[0].pairs.iter_mut().for_each(|pair| pair.cost_accepted = false);
    assert!(text(&run).contains(", 3 cells: sum "), "{}", text(&run));
}

#[test]
fn call_chains_are_drawn_for_both_sides_on_one_scale_and_coloured_by_their_change() {
    let page = without_documents(&html(&[pool()]));
    let flames: Vec<&str> = page.split("<div class=\"flame\"").skip(1).collect();
    assert_eq!(flames.len(), 4, "of every cell that has profiles");
    let flame = flames[0].split("</div>").next().unwrap();
    let sides: Vec<&str> = flame.split("<svg class=\"chart\"").skip(1).collect();
    let [a, b] = sides.as_slice() else { panic!("{flame}") };
    for (side, wide) in [(a, "100%"), (b, "66.885%")] {
        for wanted in [
            &format!(
                "width=\"{wide}\" height=\"16\"><title>start_thread: 1.653 → 1.106 samples/1000"
            ),
            "class=\"frame fell\"",
            "<title>malloc: 0.2688 → 0.09583 samples/1000 packets, fell</title>",
            "<title>linerate_datapath::engine::forward: 0.3054 → 0.3054 samples/1000 packets, within noise<",
        ] {
            assert!(side.contains(wanted), "no {wanted:?} in {side}");
        }
        assert!(!side.contains("default_idle"), "idle time is left out");
    }
    assert!(flame.contains("1000%20packets%29%0Astart_thread%3BWorker%3A%3Aturn%3B"), "{flame}");
    let mut run = pool();
    run.profiles.iter_mut().for_each(|profile| profile.stacks.clear());
    assert!(!html(&[run]).contains("class=\"flame\""));
}

#[test]
fn cpu_time_by_two_instruments_is_shown_with_the_verdict_and_the_likely_reason() {
    let checked = |samples: u64, scheduler: f64| {
        let headline = Headline::new("CPU time of the workers", "ns/packet", 0)
            .by(Reading::of_samples(samples, 1000.0, 1e-6))
            .by(Reading::new("scheduler", Means::CpuTime, scheduler, "5 s of CPU time"));
        Some(Checked { headline, tolerance: Tolerance::of_samples(samples) })
    };
    let mut run = pool();
    assert!(!text(&run).contains("two instruments"));
    run.profiles[0].checked = checked(5_000, 5_050.0);
    run.profiles[1].checked = checked(4_000, 5_000.0);
    run.profiles[2].checked = checked(99, 103.0);
    let page = html(std::slice::from_ref(&run));
    let text = text(&run);
    for wanted in [
        "CPU time by two instruments at the same time",
        "change=frames rate=fixed  malloc      5,000      5,050    1.0      5.0  agree\n",
        "change=frames rate=fixed  frames      4,000      5,000   20.0      5.0  DISAGREE\n",
        "change=frames rate=max    malloc          –        103      –     20.0  ALONE\n",
        "ALONE: fewer than 100 samples are not significant.",
        "CPU time of the workers.",
        "DISAGREE: likely: threads that sleep often: the scheduler charges a thread from its wake-up on",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    assert!(page.contains("<a download=\"agreement.csv\"") && page.contains(">DISAGREE</td>"));
}

#[test]
fn the_page_has_its_parts_and_needs_nothing_else() {
    for run in [pool(), skbinit()] {
        let page = html(std::slice::from_ref(&run));
        for part in ["effects", "noise", "pairs", "ledger", "post", "conditions"] {
            assert!(page.contains(&format!("<section id=\"{part}\">")), "no {part}");
        }
        assert_eq!(
            page.matches("<svg class=\"chart\"").count(),
            page.matches("role=\"img\"").count()
        );
        let visible = without_documents(&page);
        assert!(!visible.contains("http:") && !visible.contains("https:"), "a reference");
        assert!(!visible.contains("src=") && !visible.contains("@import"), "a reference");
        assert_balanced(&visible);
    }
    let page = html(&[pool()]);
    assert!(
        page.contains("<p class=\"question\">A buffer for each packet from a general allocator")
    );
    assert!(!without_documents(&page).contains("\\u{a}"), "white space of a paragraph flows");
    assert!(page.contains("<section id=\"profiles\">"));
    assert!(page.contains("locks 0.03667 → &lt; "), "below a cut-off is a bound, not 0");
    let page = html(&[skbinit()]);
    assert!(page.contains("free matrix") && page.contains("<section id=\"shape\">"));
}

#[test]
fn a_report_says_when_its_run_was_made_and_how_rough_it_is() {
    let mut run = pool();
    run.run.started = "2019-03-04T10:15:00Z".into();
    let page = without_documents(&html(std::slice::from_ref(&run)));
    assert!(page.contains(" · 2019-03-04</p>"), "the day of the run, not of the report");
    assert!(
        page.contains("A/A floor of the headline: the difference measured between identical code")
    );
    assert!(text(&run).contains("2019-03-04"), "{}", text(&run));
}

/// S1.16.
#[test]
fn report_names_tool_machine_clock_and_device() {
    let mut run = pool();
    let facts = ["Processor; 2596 MHz; Linux 6", "0.1.0, commit ", "experiment does not say"];
    assert!(facts.iter().all(|fact| text(&run).contains(fact)), "{}", text(&run));
    run.run.config_toml.as_mut().unwrap().insert_str(0, "device = \"veth\"\n");
    assert!(text(&run).contains("device      veth"), "{}", text(&run));
}

#[test]
fn the_document_is_embedded_whole() {
    let run = pool();
    let page = html(std::slice::from_ref(&run));
    let start = page.find("id=\"run-1\">").unwrap() + "id=\"run-1\">".len();
    let json = &page[start..start + page[start..].find("</script>").unwrap()];
    assert_eq!(serde_json::from_str::<Run>(json).unwrap(), run);
}

#[test]
fn several_runs_make_a_trend_in_the_order_of_time() {
    let (mut older, newer) = (skbinit(), skbinit());
    assert!(!html(std::slice::from_ref(&newer)).contains("id=\"trend\""));
    older.run.started = "2025-01-02T10:15:00Z".into();
    older.run.tool.insert("version".into(), "0.0.9".into());
    let page = html(&[newer, older]);
    let trend = &page[page.find("<section id=\"trend\">").unwrap()..];
    assert!(trend.find("0.0.9").unwrap() < trend.find("0.1.0").unwrap());
    let second = &page[page.find("id=\"run-2\">").unwrap()..];
    assert!(second.contains("\"pairs\":[]"), "another run's pairs stay in its own file");
    assert!(html(&[]).contains("There is no run"));
}

#[test]
fn twenty_thousand_pairs_are_thinned() {
    let mut run = skbinit();
    let mut pair = run.cells[0].pairs[0].clone();
    // The charts of pairs use the times alone; the figures would take most of the memory.
    for window in [&mut pair.a, &mut pair.b].into_iter().chain(&mut pair.control) {
        window.figures.clear();
    }
    run.cells[0].pairs = vec![pair.clone(); 15];
    let few = without_documents(&html(std::slice::from_ref(&run))).len();
    run.cells[0].pairs = vec![pair; 20_000];
    let many = without_documents(&html(&[run])).len();
    // 2,000 of the pairs take about 400 kB. All of them would take 500 kB in one file, and more in
    // the other and in each chart.
    assert!(many < few + 600_000, "{few} -> {many} bytes");
}

/// Generates names that a hostile document may contain.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("</script><script>alert(1)</script>".to_owned()),
        Just("\"><img src=x onerror=alert(1)>".to_owned()),
        Just("\u{1b}[2J\u{202e}\u{0}\n=/".to_owned()),
        Just("x".repeat(5_000)),
        Just("]]>--><!--&amp;'".to_owned()),
        "\\PC{0,30}",
    ]
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(0.0),
        Just(-0.0),
        Just(1e308),
        Just(-1e308),
        Just(5e-324),
        -1e6..1e6f64,
    ]
}

fn effect() -> impl Strategy<Value = Effect> {
    (name(), [number(), number(), number(), number(), number(), number()], any::<bool>()).prop_map(
        |(unit, [a, b, change, low, high, floor], censored)| Effect {
            unit,
            better_when: None,
            a,
            b,
            change_pct: change,
            ci95_pct: (low, high),
            n_pairs: usize::MAX,
            censored_below: censored.then_some(floor),
            at_least: [censored, !censored],
            aa_half_width_pct: Some(floor),
            aa_pct: Some((change, low, high)),
            p_holm: None,
            n_set_ups: None,
            same_pct: None,
            expected: Some(linerate_lab::record::Expected {
                change_pct: (low, floor),
                source: "<b>".into(),
                met: false,
                certain: true,
            }),
            elsewhere: Some(linerate_lab::record::Elsewhere {
                class: "<b>".into(),
                n_pairs: usize::MAX,
                change_pct: low,
                ci95_pct: (high, floor),
            }),
            verdict: Verdict::Unclear,
        },
    )
}

/// Generates runs in which every text and number may be hostile.
fn hostile() -> impl Strategy<Value = Run> {
    let names = prop::collection::vec(name(), 12);
    (any::<bool>(), names, effect(), effect(), [number(), number()], any::<u64>()).prop_map(
        |(is_pool, names, one, other, [x, y], n)| {
            let mut run = if is_pool { pool() } else { skbinit() };
            let [a, b, c, d, e, f, g, h, i, j, k, l] = <[String; 12]>::try_from(names).unwrap();
            run.run.note = Some(e.clone());
            run.run.argv.push(e);
            (run.run.id, run.run.started) = (l.clone(), l);
            (run.experiment.a, run.experiment.b, run.experiment.id) = (a, b, f);
            run.env = serde_json::json!({"kernel": d, "cpus": [{"id": n, "role": k}], "pmu": 3});
            run.verdict = c.clone();
            run.warnings[0].text = d;
            run.overall[0].group = g;
            (run.overall[0].sum_ratio_pct, run.overall[0].geomean_pct) = (x, y);
            run.totals.insert(h.clone(), x);
            run.matrices.insert(h.clone(), vec![vec![n], vec![], vec![n; 40]]);
            let cell = &mut run.cells[0];
            cell.metrics.insert(h, one);
            cell.metrics.insert("buffer_ticks_per_packet".into(), other);
            cell.at.insert(i, j.clone());
            cell.ledger.a.received = n;
            cell.ledger.a.created = u64::MAX;
            cell.ledger.a.dropped.insert(j, u64::MAX);
            for pair in &mut cell.pairs {
                (pair.a.packets, pair.a.wall_ns) = (n % 3, n);
                pair.b.figures.insert("buffer_ticks".into(), x);
                pair.b.figures.insert("allocs_w18446744073709551615".into(), y);
                pair.b.figures.insert("hits".into(), y);
                pair.reject_reason = Some(k.clone());
            }
            for profile in &mut run.profiles {
                profile.rows[0].symbol = c.clone();
                profile.rows[0].count = n;
                profile.rows[1].count = u64::MAX;
                profile.packets = n % 2;
                profile.cutoff = n;
                let by =
                    Reading { value: Some(y), ..Reading::missing(c.clone(), Means::CpuTime, "") };
                let headline =
                    Headline { by: vec![by.clone(), by], ..Headline::new(c.clone(), "", 9) };
                let tolerance = Tolerance { absolute: x, relative_pct: y };
                profile.checked = Some(Checked { headline, tolerance });
                profile.stacks.push(Stack { frames: vec![c.clone(); 200], count: n });
                profile.stacks.push(Stack { frames: vec![], count: u64::MAX });
            }
            run
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_document_breaks_no_report_and_adds_no_markup(run in hostile()) {
        let told = text(&run);
        prop_assert!(told.chars().all(|c| c == '\n' || !c.is_control()));
        let turns = told.contains(char::from_u32(0x202e).unwrap());
        prop_assert!(!turns);
        let page = html(&[run.clone(), run]);
        prop_assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
        prop_assert!(!page.contains("<script>") && !page.contains("<img") && !page.contains("<!--"));
        prop_assert!(!page.contains("NaN") && !page.contains("inf%"));
        assert_balanced(&without_documents(&page));
    }
}

/// Returns the page without the embedded documents.
fn without_documents(page: &str) -> String {
    let end = page.find("<script type=\"application/json\"").unwrap_or(page.len());
    page[..end].to_owned() + "</body></html>"
}

/// Asserts that every element has its own end tag, that quotes are paired, and that no text
/// contains a bare `<` or `&`.
#[track_caller]
fn assert_balanced(page: &str) {
    const VOID: [&str; 2] = ["meta", "br"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!doctype html>").expect("a page");
    while let Some(start) = rest.find('<') {
        let tag = &rest[start + 1..];
        let end = tag.find('>').expect("a tag that ends");
        let (tag, after) = (&tag[..end], &tag[end + 1..]);
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).expect("a name");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed), "in {}", &rest[..start]);
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
        rest = after;
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn a_kept_document_is_read_as_it_is_packed() {
    let kept = "../../results/amd-family26-model2/peers-buffers.json.gz";
    let run = linerate_lab::record::read(kept.as_ref()).unwrap();
    assert!(run.run.complete && !run.cells.is_empty());
    assert!(text(&run).contains("peers-buffers: Packet buffers beside DPDK's mbufs"));
    let broken = std::env::temp_dir().join(format!("linerate-{}.json.gz", std::process::id()));
    std::fs::write(&broken, "not packed").unwrap();
    let e = linerate_lab::record::read(&broken).unwrap_err();
    assert!(e.why.contains("not packed by gzip"), "{e}");
    std::fs::remove_file(&broken).unwrap();
}
