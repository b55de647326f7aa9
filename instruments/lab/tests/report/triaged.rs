//! Tests the triage of a run that was kept: its worst cell, beside the same test on the other
//! device.

use linerate_lab::record::{CellRecord, PairRecord, Run, Window};
use linerate_lab::triage::{Case, Cause, Triage};

use crate::fixture::batch;

/// Packets of a window.
const PACKETS: u64 = 500_000;
/// Parts of the way, none of which has lost a packet.
const CLEAN: [&str; 6] =
    ["inlet_lost", "core_lost", "driver_lost", "outlet_lost", "receiver_lost", "tcp_retrans_segs"];

/// Returns a cell of the experiment `batch` with two pairs, whose windows with batches have these
/// counts.
fn cell(device: &str, size: &str, counts: &[(&str, f64)]) -> CellRecord {
    let at = [("device", device), ("cpus", "one"), ("cap", "64"), ("test", "NoDelay")];
    let at = [&at[..], &[("procs", "8"), ("size", size)]].concat();
    let window = |counts: &[(&str, f64)]| {
        let all = CLEAN.map(|name| (name, 0.0)).into_iter().chain(counts.iter().copied());
        let figures = all.map(|(name, n)| (name.to_owned(), n)).collect();
        Window { packets: PACKETS, figures, ..Window::default() }
    };
    let (a, b) = (window(&[]), window(counts));
    let pair = PairRecord { a, b, accepted: true, cost_accepted: true, ..PairRecord::default() };
    CellRecord {
        at: at.iter().map(|(name, level)| ((*name).to_owned(), (*level).to_owned())).collect(),
        pairs: vec![pair; 2],
        ..CellRecord::default()
    }
}

fn run(cells: Vec<CellRecord>) -> Run {
    let mut run = batch();
    run.run.config_toml = Some(include_str!("../../experiments/batch.toml").into());
    run.cells = cells;
    run
}

fn triage(run: &Run, only: &[(&str, &str)]) -> Triage {
    let only: Vec<_> =
        only.iter().map(|(name, level)| ((*name).to_owned(), (*level).to_owned())).collect();
    Case::of(run, &only).unwrap().answer()
}

#[test]
fn kept_run_names_the_part_that_loses_in_the_test_that_sends_most_again() {
    let lost = [("driver_lost", 800.0), ("tcp_retrans_segs", 900.0)];
    let few = [("receiver_lost", 300.0), ("tcp_retrans_segs", 310.0)];
    let worst = cell("xdp", "4096", &lost);
    let run = run(vec![cell("xdp", "32", &few), worst.clone(), cell("packet", "4096", &[])]);
    let told = triage(&run, &[]);
    assert_eq!(told.at, worst.at);
    let [found] = told.verdict.causes.as_slice() else { panic!("{told}") };
    assert_eq!(found.cause, Cause::Driver);
    let rates = (found.per_million, found.without_per_million, found.elsewhere_per_million);
    assert_eq!(rates, (1600.0, Some(0.0), Some(0.0)), "of a million packets");
    let text = told.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    for wanted in [
        "cause: driver ",
        "Of a million with batches 1,600, with a cap of 1 0, on the other device 0.",
        "not looked at: whether packets come late behind the engine (--extra)",
        "not looked at: whether the engine itself reorders packets (--extra)",
        "Counters of the hosts with packet and batches: all 0.",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in {text}");
    }
    // Each other cell has its own answer.
    assert_eq!(triage(&run, &[("size", "32")]).in_short(), "cause: receiver");
    assert_eq!(triage(&run, &[("device", "packet")]).in_short(), "cause: none");
}

#[test]
fn pairs_that_were_not_admitted_are_in_no_sum_and_are_counted() {
    let mut cell = cell("xdp", "4096", &[("driver_lost", 800.0), ("tcp_retrans_segs", 900.0)]);
    let clean = triage(&run(vec![cell.clone()]), &[]);
    assert_eq!((clean.left_out, clean.to_string().contains("left out")), (0, false));
    let mut disturbed = cell.pairs[0].clone();
    disturbed.b.figures.insert("driver_lost".into(), 400_000.0);
    // Losses are rates: a pair whose costs alone count is in no sum either.
    for (cost_accepted, left_out) in [
        (false, "left out: 1 pair that was not admitted or had its CPUs at another distance"),
        (true, "left out: 2 pairs that were not admitted or had their CPUs at another distance"),
    ] {
        cell.pairs.push(PairRecord { accepted: false, cost_accepted, ..disturbed.clone() });
        let told = triage(&run(vec![cell.clone()]), &[]);
        assert_eq!((&told.seen, told.left_out), (&clean.seen, cell.pairs.len() - 2));
        assert!(told.to_string().contains(left_out), "{told}");
    }
    cell.pairs.iter_mut().for_each(|pair| pair.accepted = false);
    let none = triage(&run(vec![cell]), &[]);
    assert_eq!((none.in_short().as_str(), none.left_out), ("cause: cannot be told", 4));
    let text = none.to_string();
    assert!(text.contains("All pairs with batches were left out"), "{text}");
    assert!(!text.contains("was not counted") && !text.contains("all 0"), "{text}");
}

#[test]
fn cell_whose_ledger_does_not_balance_is_told_and_triage_is_not_balanced() {
    let mut cell = cell("xdp", "4096", &[("core_lost", -800.0)]);
    assert!(triage(&run(vec![cell.clone()]), &[]).balanced());
    cell.ledger.b.balanced = false;
    let told = triage(&run(vec![cell]), &[]);
    assert!(!told.balanced());
    assert_eq!(told.in_short(), "cause: cannot be told");
    let why = "The engine's ledger does not balance with `xdp` and batches";
    assert!(told.verdict.untold[0].starts_with(why), "{told}");
}

#[test]
fn kept_run_without_these_counts_or_without_a_side_of_one_packet_is_not_guessed_at() {
    let mut old = cell("xdp", "4096", &[]);
    old.pairs.iter_mut().for_each(|pair| pair.b.figures.clear());
    let told = triage(&run(vec![old]), &[]);
    assert_eq!((told.in_short().as_str(), told.verdict.untold.len()), ("cause: cannot be told", 4));
    let one = run(vec![cell("xdp", "4096", &[])]);
    let e = Case::of(&one, &[("size".into(), "512".into())]).unwrap_err();
    assert!(e.why.contains("no such cell"), "{e}");
    let mut both = one;
    let toml = both.run.config_toml.take().unwrap();
    both.run.config_toml = Some(toml.replace("tx_batch = \"1\"", "tx_batch = \"2\""));
    let e = Case::of(&both, &[]).unwrap_err();
    assert!(e.why.contains("not one packet a doorbell"), "{e}");
}
