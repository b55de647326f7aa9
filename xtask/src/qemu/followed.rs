//! The figures of [`super::bounce`]: counts of the runs of both sides, their tables, and the document
//! in `results/` from which pages are rendered.
//!
//! Nothing was measured: every line of figures has MODEL on it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::qemu::names::{self, Name};
use crate::results::{Documents, number};

/// Name of the document.
pub const EXPERIMENT: &str = "guest-bounce";
/// Schema of the document.
pub const SCHEMA: &str = "linerate-guest-bounce/1";
/// The sides: the baseline and the side with the change.
pub const SIDES: [&str; 2] = ["none", "both"];

/// Post 003, with Linux 2.4.17's listing and McKenney's differences.
const POST: &str = include_str!("../../../instruments/seeds/posts/003_5ab5121f9d39ea70.txt");
/// Index in [`names::EVENTS`] of the event that counts accesses to a line that is not in the CPU's
/// cache.
const LINES_IN: usize = 1;
/// Functions of 2.4.17 in the table of a page: those that S3.23 names, and the idle loop.
const IN_PAGE: [&str; 16] = [
    names::IDLE,
    "schedule",
    "csum_partial_copy_generic",
    "tcp_v4_rcv",
    "mod_timer",
    "do_softirq",
    "__wake_up",
    "__kfree_skb",
    "alloc_skb",
    "skb_release_data",
    "kmalloc",
    "kfree",
    "kfree_skbmem",
    "speedo_rx",
    "speedo_refill_rx_buf",
    "eth_type_trans",
];

/// The counts of one run of a side.
pub struct Ran {
    /// Counts by function, for each of the model's events.
    counts: [Counts; names::EVENTS.len()],
    packets: u64,
}

type Counts = BTreeMap<String, u64>;

/// The runs of both sides.
pub type Runs = [Vec<Ran>; 2];

impl Ran {
    /// Reads one document for each of the model's events.
    pub fn of(documents: &[Value]) -> Result<Ran> {
        let mut counts: [Counts; names::EVENTS.len()] = Default::default();
        let mut packets = 0;
        for (document, counts) in documents.iter().zip(&mut counts) {
            packets =
                document["conditions"]["packets"].as_u64().context("no packet was counted")?;
            for row in document["rows"].as_array().context("no rows")? {
                // Remove the suffixes with which the compiler names a part of a function, or a copy
                // with fewer arguments.
                let name = row["symbol"].as_str().unwrap_or_default().split('.').next();
                let count = counts.entry(name.unwrap_or_default().to_owned()).or_insert(0);
                *count += row["count"].as_u64().unwrap_or(0);
            }
        }
        Ok(Ran { counts, packets })
    }

    /// Returns the counts as the document has them.
    fn to_json(&self) -> Value {
        let counts: BTreeMap<_, _> = names::EVENTS.iter().zip(&self.counts).collect();
        json!({ "packets": self.packets, "counts": counts })
    }

    /// Reads the counts of a run from the document.
    fn from_json(ran: &Value) -> Result<Ran> {
        let packets = ran["packets"].as_u64().filter(|n| *n > 0).context("a run has no packets")?;
        let mut counts: [Counts; names::EVENTS.len()] = Default::default();
        for (event, counts) in names::EVENTS.iter().zip(&mut counts) {
            *counts = serde_json::from_value(ran["counts"][event].clone())
                .with_context(|| format!("a run has no counts of {event}"))?;
        }
        Ok(Ran { counts, packets })
    }

    /// Returns the rate of an event for each 1000 packets, in functions that `keep` accepts.
    fn rate(&self, event: usize, keep: impl Fn(&str) -> bool) -> f64 {
        let kept = self.counts[event].iter().filter(|(name, _)| keep(name));
        1000.0 * kept.map(|(_, n)| n).sum::<u64>() as f64 / self.packets as f64
    }
}

/// Returns the packets of all runs of a side.
pub fn packets(rans: &[Ran]) -> u64 {
    rans.iter().map(|ran| ran.packets).sum()
}

/// Returns the median of an event's rate over the runs of a side.
fn middle(rans: &[Ran], event: usize, keep: impl Fn(&str) -> bool) -> f64 {
    median(rans.iter().map(|ran| ran.rate(event, &keep)).collect())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    let half = rates.len() / 2;
    if rates.len() % 2 == 1 { rates[half] } else { (rates[half - 1] + rates[half]) / 2.0 }
}

/// Formats the post's list beside ours, function by function, with the totals of both.
pub fn beside([none, both]: &Runs) -> String {
    let heads = names::EVENTS.map(|event| format!("{event:>24}"));
    let under = format!("{:>8} {:>8} {:>6}", "without", "with", "%");
    let mut text = format!(
        "MODEL  post 003's list beside this kernel's: events in 1000 packets without and with affinity, and the saving\n\
         MODEL  {:<31} {:>6} {}\n\
         MODEL  {:<31} {:>6} {under} {under} {under}  today\n",
        "",
        "post",
        heads.join(" "),
        "Linux 2.4.17",
        "%"
    );
    let mut row = |name: &str, post: f64, today: &str, keep: &dyn Fn(&str) -> bool| {
        text += &format!("MODEL  {name:<31} {post:>6.1}");
        for event in 0..names::EVENTS.len() {
            let (without, with) = (middle(none, event, keep), middle(both, event, keep));
            let saved = saved(without, with).map_or("n/a".to_owned(), |pct| format!("{pct:.1}"));
            text += &format!(" {without:>8.1} {with:>8.1} {saved:>6}");
        }
        text += &format!("  {today}\n");
    };
    let all = names::posted(POST);
    for Name { old, .. } in &all {
        let post = posted(&all, |name| name == *old);
        match names::today(old) {
            [] => row(old, post, "(gone)", &|_| false),
            today => row(old, post, &today.join(" "), &|name| today.contains(&name)),
        }
    }
    row("total", posted(&all, |_| true), "", &|_| true);
    let without_idle = posted(&all, |old| old != names::IDLE);
    row("total without idle", without_idle, "", &|name| !names::is_idle(name));
    text
}

/// Formats the stages of the post's profile, each with its functions that moved cache lines.
///
/// # Errors
/// A stage of which no run has a function: then it is not the post's path that was followed.
pub fn stages([rans, _]: &Runs) -> Result<String> {
    let mut text =
        "MODEL  stages of the post's profile: functions here, with L2_LINES_IN in 1000 packets\n"
            .to_owned();
    for (stage, olds) in names::STAGES {
        let functions = olds.iter().flat_map(|old| names::today(old));
        let counted = functions.map(|name| (middle(rans, LINES_IN, |of| of == *name), name));
        let mut counted: Vec<_> = counted.filter(|(rate, _)| *rate > 0.0).collect();
        counted.sort_by(|a, b| b.0.total_cmp(&a.0));
        ensure!(!counted.is_empty(), "{stage}: no function of the kernel's was followed");
        let most = counted.iter().take(3).map(|(rate, name)| format!("{name} {rate:.0}"));
        text += &format!("MODEL    {stage}: {}\n", most.collect::<Vec<_>>().join(", "));
    }
    Ok(text)
}

/// Returns the share that `with` saves of `without`, in per cent.
fn saved(without: f64, with: f64) -> Option<f64> {
    (without > 0.0).then(|| 100.0 * (without - with) / without)
}

/// Returns what the post's functions that `keep` accepts save together, in per cent.
fn posted(all: &[Name], keep: impl Fn(&str) -> bool) -> f64 {
    let kept = all.iter().filter(|name| keep(name.old));
    let (with, without) = kept.fold((0, 0), |(a, b), name| (a + name.with, b + name.without));
    saved(without as f64, with as f64).unwrap_or(0.0)
}

/// Returns the document of a complete run of the command; `made` has the command, its start and
/// what it ran on.
pub fn document(rans: &Runs, mut made: Value) -> Value {
    made["schema"] = SCHEMA.into();
    for (side, rans) in SIDES.iter().zip(rans) {
        made["sides"][side] = rans.iter().map(Ran::to_json).collect();
    }
    made
}

/// Returns the runs in a document.
fn runs(document: &Value) -> Result<Runs> {
    let mut runs: Runs = Default::default();
    for (side, runs) in SIDES.iter().zip(&mut runs) {
        let of = document["sides"][side].as_array().filter(|of| !of.is_empty());
        let of = of.with_context(|| format!("no run of {side}"))?;
        *runs = of.iter().map(Ran::from_json).collect::<Result<_>>()?;
    }
    Ok(runs)
}

/// Returns what a mark in a page asks for and of which machine; `None` if it is of an experiment.
pub fn asked(mark: &str) -> Option<(&str, &str)> {
    let words = mark.strip_prefix(EXPERIMENT)?.strip_suffix(" -->")?;
    words.trim_start().split_once(' ')
}

/// Returns what a page has between the marks for `what` of a machine's document.
pub fn block(
    page: &str,
    what: &str,
    machine: &str,
    documents: &mut Documents<'_>,
) -> Result<String> {
    let link = Documents::link(page, machine, EXPERIMENT);
    rendered(documents.get(machine, EXPERIMENT)?, what, &link)
}

/// Returns the text that a page has of a document, `what` of it, with its conditions. `link` is the
/// document's path from the page.
pub fn rendered(document: &Value, what: &str, link: &str) -> Result<String> {
    ensure!(document["schema"] == SCHEMA, "{link} is not of `cargo xtask qemu bounce`");
    let runs = runs(document)?;
    let text = match what {
        "saved" => table(&runs),
        // The first line is a heading.
        "stages" => bullets(stages(&runs)?.split_once('\n').map_or("", |(_, rest)| rest)),
        "spread" => bullets(&spread(&runs)),
        other => bail!("{other}: saved, stages or spread can be rendered of it"),
    };
    let said = |pointer: &str| {
        let said = document.pointer(pointer).and_then(Value::as_str);
        said.with_context(|| format!("{link} does not say {pointer}"))
    };
    let (commit, started) = (said("/run/tool/commit")?, said("/run/started")?);
    Ok(format!(
        "\n{text}\nMODEL. Tool: `{}`. Medians of {} runs a side, {} and {} packets. Device: four emulated i82559.\n\
         From [{EXPERIMENT}]({link}): Linux {}, {}, {started:.10}, commit {commit:.7}.\n\n",
        said("/run/command")?,
        runs[0].len(),
        packets(&runs[0]),
        packets(&runs[1]),
        said("/env/guest")?,
        said("/env/qemu")?,
    ))
}

/// Formats the totals and the functions of [`IN_PAGE`]: what the post and each event here save.
fn table([none, both]: &Runs) -> String {
    let heads = names::EVENTS.map(|event| format!(" `{event}` |")).concat();
    let mut text = format!("| MODEL: saved by both, % | post |{heads}\n|---|---|---|---|---|\n");
    let all = names::posted(POST);
    let mut row = |name: &str, post: f64, keep: &dyn Fn(&str) -> bool| {
        // The post lists no function below its cut-off.
        text += &match post < 100.0 {
            true => format!("| {name} | {post:.1} |"),
            false => format!("| {name} | below the cut-off |"),
        };
        for event in 0..names::EVENTS.len() {
            let (without, with) = (middle(none, event, keep), middle(both, event, keep));
            text += &saved(without, with).map_or(" n/a |".to_owned(), |pct| {
                let pct = format!("{pct:.1}").replace('-', "−");
                format!(" {pct} ({} → {}) |", number(without), number(with))
            });
        }
        text += "\n";
    };
    row("total", posted(&all, |_| true), &|_| true);
    let without_idle = posted(&all, |old| old != names::IDLE);
    row("total without idle", without_idle, &|name| !names::is_idle(name));
    for old in IN_PAGE {
        let today = names::today(old);
        row(old, posted(&all, |name| name == old), &|name| today.contains(&name));
    }
    text
}

/// Turns lines with MODEL before each into a list.
fn bullets(lines: &str) -> String {
    let lines = lines.lines().map(|line| line.trim_start_matches("MODEL").trim());
    // The events of a side are a list of their own.
    let indent = |line: &str| if line.contains(": median ") { "  " } else { "" };
    lines.map(|line| format!("{}- {line}\n", indent(line))).collect()
}

/// Formats the spread between the runs of a side.
pub fn spread(rans: &Runs) -> String {
    let mut text = String::new();
    for (side, rans) in SIDES.iter().zip(rans) {
        text += &format!("MODEL  {side}: {} runs, {} packets\n", rans.len(), packets(rans));
        for (i, event) in names::EVENTS.iter().enumerate() {
            let mut rates: Vec<f64> = rans.iter().map(|ran| ran.rate(i, |_| true)).collect();
            rates.sort_by(f64::total_cmp);
            let (least, most) = (rates[0], rates[rates.len() - 1]);
            let middle = median(rates.clone());
            let without = |left: usize| {
                let rest = rates.iter().enumerate().filter(|(i, _)| *i != left);
                median(rest.map(|(_, rate)| *rate).collect())
            };
            let moves = (0..rates.len()).filter(|_| rates.len() > 1).map(without);
            let moves = moves.map(|one| (one - middle).abs()).fold(0.0, f64::max);
            let of = |difference: f64| 100.0 * difference / middle;
            text += &format!(
                "MODEL    {event}: median {middle:.0} in 1000 packets, {least:.0} to {most:.0}, {:.1} % apart; \
                 by any one run left out it moves {:.1} %\n",
                of(most - least),
                of(moves)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_that_is_far_off_does_not_move_the_median() {
        assert_eq!(median(vec![900.0, 101.0, 99.0, 100.0, 98.0]), 100.0);
        assert_eq!(median(vec![2.0, 1.0]), 1.5);
    }

    /// A run with the same counts of the first two events.
    fn ran(rows: &[(&str, u64)]) -> Ran {
        let rows: Vec<_> = rows
            .iter()
            .map(|(symbol, count)| serde_json::json!({ "symbol": symbol, "count": count }))
            .collect();
        let document = serde_json::json!({ "conditions": { "packets": 1000 }, "rows": rows });
        Ran::of(&[document.clone(), document]).unwrap()
    }

    #[test]
    fn a_stage_that_no_function_was_followed_of_is_an_error() {
        let first = |(_, olds): &(_, &[&str])| (names::today(olds[0])[0], 7);
        let mut rows: Vec<_> = names::STAGES.iter().map(first).collect();
        let text = stages(&[vec![ran(&rows)], Vec::new()]).unwrap();
        assert!(text.contains("MODEL    irq: e100_intr 7\n"), "{text}");
        rows.retain(|(name, _)| *name != "e100_tx_clean");
        let e = stages(&[vec![ran(&rows)], Vec::new()]).unwrap_err().to_string();
        assert!(e.starts_with("clean-up: no function"), "{e}");
    }

    #[test]
    fn the_post_s_list_stands_beside_ours_with_both_totals() {
        let none = vec![ran(&[("cpu_idle_poll.isra.0", 100), ("tcp_v4_rcv", 50), ("other", 10)])];
        let both = vec![ran(&[("cpu_idle_poll.isra.0", 60), ("tcp_v4_rcv", 5), ("other", 10)])];
        let runs = [none, both];
        let text = beside(&runs);
        let words = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let row = ["90.2", "50.0", "5.0", "90.0", "50.0", "5.0", "90.0", "0.0", "0.0", "n/a"];
        assert_eq!(words(" tcp_v4_rcv ")[2..12], row);
        assert_eq!(words(" poll_idle ")[2..6], ["40.7", "100.0", "60.0", "40.0"]);
        assert_eq!(words(" total  ")[1..6], ["total", "53.0", "160.0", "75.0", "53.1"]);
        assert_eq!(words(" without idle ")[4..8], ["61.8", "60.0", "15.0", "75.0"]);
        assert!(text.lines().all(|line| line.starts_with("MODEL")));
        assert!(spread(&runs).contains("160 to 160, 0.0 % apart"));
    }

    #[test]
    fn a_page_has_the_figures_and_conditions_of_its_document() {
        let first = |(_, olds): &(_, &[&str])| (names::today(olds[0])[0], 400);
        let rows: Vec<_> = names::STAGES.iter().map(first).collect();
        let halved: Vec<_> = rows.iter().map(|(name, _)| (*name, 100)).collect();
        let runs = [vec![ran(&rows), ran(&rows)], vec![ran(&halved)]];
        let made = json!({
            "run": {"command": "cargo xtask qemu bounce --keep qemu", "started": "2026-11-30T01:02:03Z",
                "tool": {"commit": "ada9edeeca8c"}},
            "env": {"guest": "6.12.95", "qemu": "QEMU emulator version 7.2.22"},
        });
        let document = document(&runs, made);
        let text = rendered(&document, "saved", "../x.json.gz").unwrap();
        assert!(text.contains("| tcp_v4_rcv | 90.2 | 75.0 (400 → 100) |"), "{text}");
        let end = "From [guest-bounce](../x.json.gz): Linux 6.12.95, QEMU emulator version 7.2.22, \
                   2026-11-30, commit ada9ede.\n\n";
        assert!(text.contains("\nMODEL. Tool: `cargo xtask qemu bounce --keep qemu`."), "{text}");
        assert!(text.ends_with(end), "{text}");
        assert!(
            rendered(&document, "stages", "x").unwrap().starts_with("\n- irq: e100_intr 400\n")
        );
        assert!(
            rendered(&document, "spread", "x").unwrap().contains("- none: 2 runs, 2000 packets")
        );
        assert!(rendered(&document, "all", "x").is_err());
        assert_eq!(asked("guest-bounce saved qemu -->"), Some(("saved", "qemu")));
        assert_eq!(asked("bounce cycles change amd -->"), None);
        for pointer in ["/run/tool/commit", "/env/qemu", "/sides/both", "/schema"] {
            let mut without = document.clone();
            *without.pointer_mut(pointer).unwrap() = Value::Null;
            assert!(rendered(&without, "saved", "x").is_err(), "{pointer}");
        }
    }
}
