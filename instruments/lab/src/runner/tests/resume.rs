//! Tests of runs that were interrupted or killed, and continued.

use std::fs;

use super::*;
use crate::record::{Ledgers, PairRecord, Status, Verdict, find, read};
use crate::runner::beside;
use linerate_testing::Scratch;

fn interrupted_at(world: &Simulated, request: &Request, look: usize) -> Run {
    let mut follower = Follower { until: Some(look), ..Follower::default() };
    run_in(world, request, &mut follower).unwrap()
}

fn resumed(request: &Request) -> Request {
    Request { resume: Some(find(&request.dir, "last").unwrap()), ..request.clone() }
}

fn pairs(run: &Run) -> Vec<&[PairRecord]> {
    run.cells.iter().map(|cell| &cell.pairs[..]).collect()
}

#[test]
fn resumed_run_has_the_pairs_of_an_uninterrupted_run() {
    let scratch = Scratch::new();
    let mut experiment = grid();
    // No interval is narrower than this limit, so every cell runs to its last look.
    experiment.plan.half_width_pct = -1.0;
    experiment.plan.looks = vec![4, 8];
    ends_as_if_it_had_not_been_interrupted(
        &request_in(&scratch.0.join("whole"), experiment.clone()),
        // One check precedes the cells, and one each window. These checks lie in the warm-up,
        // within a pair, between two pairs, between the cells, and in the second cell.
        &[1, 5, 13, 14, 15, 23, 35, 36, 40, 55],
    );
    experiment.cells.iter_mut().for_each(|cell| cell.fresh = true);
    // Nine checks for each warm-up, three for each pair.
    let looks = [1, 5, 13, 14, 15, 20, 23, 26, 90, 97, 100, 140];
    let scratch = Scratch::new();
    let request = request_in(&scratch.0.join("whole"), experiment);
    ends_as_if_it_had_not_been_interrupted(&request, &looks);
}

fn ends_as_if_it_had_not_been_interrupted(request: &Request, looks: &[usize]) {
    let root = request.dir.parent().unwrap();
    let whole = Simulated::new().run(request).unwrap();
    for look in looks {
        let request = Request { dir: root.join(look.to_string()), ..request.clone() };
        let part = interrupted_at(&Simulated::new(), &request, *look);
        assert!(!part.run.complete && part.conserved(), "{look}");
        let rest = Simulated::new().run(&resumed(&request)).unwrap();
        assert!(rest.run.complete);
        assert_eq!(pairs(&rest), pairs(&whole), "interrupted at {look}");
        assert_eq!(rest.cells[0].metrics, whole.cells[0].metrics);
        assert_eq!((&rest.run.id, codes(&rest)), (&part.run.id, codes(&whole)), "{look}");
    }
}

#[test]
fn a_run_that_a_name_alone_denotes_is_in_the_working_directory() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    interrupted_at(&Simulated::new(), &request, 18);
    let dir = find(&scratch.0, "last").unwrap();
    assert_eq!(Request::resuming(&dir).unwrap().dir, scratch.0);
    assert_eq!(beside(Path::new("run")), Path::new("."));
    assert_eq!(beside(Path::new("/")), Path::new("."));
}

/// Ends a run within its first cell, whose pairs show a large difference, and resumes it.
#[test]
fn cell_that_is_not_finished_has_no_verdict() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    // 1 check before the cell, 9 in the warm-up, 3 for each of 14 pairs.
    let part = interrupted_at(&Simulated::new(), &request, 53);
    let verdict = |run: &Run| run.cells[0].metrics["cost_ns_per_packet"].verdict;
    assert!(part.cells[0].is_unfinished && part.cells[0].pairs.len() >= 6);
    assert_eq!(verdict(&part), Verdict::Unclear);
    let rest = Simulated::new().run(&resumed(&request)).unwrap();
    assert!(!rest.cells[0].is_unfinished);
    assert_eq!(verdict(&rest), Verdict::Better);
}

#[test]
fn the_ledgers_of_the_parts_of_a_cell_are_added() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    // 1 check before the cell, 9 in the warm-up, 3 for each of 2 pairs, 1 in the third pair.
    let part = interrupted_at(&Simulated::new(), &request, 18);
    assert_eq!((part.cells.len(), part.cells[0].pairs.len()), (1, 2));
    let rest = Simulated::new().run(&resumed(&request)).unwrap();
    let Ledgers { a, control, .. } = &rest.cells[0].ledger;
    // The side that ran first in the interrupted pair has one more window.
    let windows = (3 + 2) + (7 * 3 + 13);
    let created = a.created + control.as_ref().unwrap().created + rest.cells[0].ledger.b.created;
    assert!((3 * windows * 100..=(3 * windows + 2) * 100).contains(&created), "{created}");
    assert_eq!(rest.matrices["size=small/a/free_matrix"][0][0], a.created);
}

#[test]
fn pairs_that_an_older_version_left_without_a_set_up_share_one_that_is_not_continued() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    // 1 check before the cell, 9 in the warm-up, 3 for each of 2 pairs.
    let part = interrupted_at(&Simulated::new(), &request, 18);
    assert_eq!(part.cells[0].pairs.len(), 2);
    let pairs = find(&request.dir, "last").unwrap().join("pairs.ndjson");
    let text = fs::read_to_string(&pairs).unwrap();
    assert_eq!(text.matches("\"set_up\":0,").count(), 2, "{text}");
    fs::write(&pairs, text.replace("\"set_up\":0,", "")).unwrap();
    let rest = Simulated::new().run(&resumed(&request)).unwrap();
    let told: Vec<_> = rest.cells[0].pairs.iter().map(|pair| pair.set_up.unwrap()).collect();
    assert_eq!(told, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]);
}

#[test]
fn a_run_that_failed_says_where_its_pairs_are_and_is_gone_on_with() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    let mut world = Simulated::new();
    // A set-up has 15 windows: 9 to warm up, and 3 for each of 2 pairs. The last pair of the third
    // set-up fails.
    world.scenario.fails_after = Some(43);
    let e = world.run(&request).unwrap_err();
    let dir = find(&scratch.0, "last").unwrap();
    let state = format!("it is one window too many; the pairs so far are in {}", dir.display());
    assert_eq!(e.why, state);
    assert_eq!(e.fix, format!("linerate lab run --resume {}", dir.display()));
    let run = Simulated::new().run(&resumed(&request)).unwrap();
    assert_eq!(run.cells[0].pairs.len(), 15);
    let lost = run.warnings.iter().find(|warning| warning.code == "W-LEDGER-LOST").unwrap();
    let text = "size=small: 1 of 15 pairs are in no ledger, since their run failed or was killed";
    assert_eq!(lost.text, text);
}

#[test]
fn ledgers_of_the_set_ups_before_a_failure_are_kept_and_withhold_results() {
    let scratch = Scratch::new();
    let mut leaking = grid();
    told(&mut leaking, 0, "leak", "b");
    let request = request_in(&scratch.0, leaking);
    let mut world = Simulated::new();
    // The third set-up fails while it warms up, so that no pair of it is stored.
    world.scenario.fails_after = Some(36);
    world.run(&request).unwrap_err();
    // The packets of the later set-ups are all accounted for.
    let again = Request { experiment: grid(), ..resumed(&request) };
    let run = Simulated::new().run(&again).unwrap();
    let cell = &run.cells[0];
    assert_eq!((cell.pairs.len(), cell.status), (15, Status::Inconclusive));
    assert_eq!(cell.ledger.b.created - cell.ledger.b.consumed, 2, "one for each set-up");
    assert!(!codes(&run).contains(&"W-LEDGER-LOST"), "{:?}", run.warnings);
}

#[test]
fn an_error_after_an_interruption_ends_the_run_as_the_interruption_does() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    let mut world = Simulated::new();
    // One check precedes the cell and one each window; the check after the error is the 8th.
    world.scenario.fails_after = Some(5);
    let mut follower = Follower { until: Some(8), ..Follower::default() };
    let run = run_in(&world, &request, &mut follower).unwrap();
    assert!(!run.run.complete && run.cells.is_empty(), "{run:?}");
    assert_eq!(follower.notes, ["size=small was ended: cannot wait: it is one window too many"]);
    assert!(Simulated::new().run(&resumed(&request)).unwrap().run.complete);
}

#[test]
fn pairs_of_a_killed_run_are_read_and_its_cut_line_reported() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    let mut world = Simulated::new();
    world.scenario.fails_after = Some(40);
    world.run(&request).unwrap_err();
    let dir = find(&scratch.0, "last").unwrap();
    let pairs = dir.join("pairs.ndjson");
    let text = fs::read_to_string(&pairs).unwrap();
    fs::write(&pairs, &text[..text.len() - 9]).unwrap();
    let run = read(&dir).unwrap();
    assert_eq!((run.cells.len(), run.cells[0].pairs.len(), run.run.complete), (1, 3, false));
    assert!(codes(&run).contains(&"W-CUT"), "{:?}", run.warnings);
    assert_eq!(run.cells[0].metrics["cost_ns_per_packet"].n_pairs, 3);
    let mut follower = Follower::default();
    let run = run_in(&Simulated::new(), &resumed(&request), &mut follower).unwrap();
    assert_eq!(run.cells[0].pairs.len(), 15);
    assert!(follower.notes[0].starts_with("W-CUT: the last line of pairs.ndjson was cut off"));
    assert_eq!(read(&dir), Ok(run));
}

#[test]
fn a_corrupt_pair_in_the_middle_and_one_that_is_missing_are_refused_with_their_lines() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    interrupted_at(&Simulated::new(), &request, 30);
    let dir = find(&scratch.0, "last").unwrap();
    let pairs = dir.join("pairs.ndjson");
    let text = fs::read_to_string(&pairs).unwrap();
    let refused = |text: String| {
        fs::write(&pairs, text).unwrap();
        let e = Simulated::new().run(&resumed(&request)).unwrap_err();
        assert_eq!(e.code, Code::Run);
        e.why
    };
    let why = refused(text.replacen("\"order\"", "\"odour\"", 1));
    assert!(why.contains("pairs.ndjson:2: missing field `order`"), "{why}");
    let lines: Vec<&str> =
        text.lines().enumerate().filter(|(i, _)| *i != 2).map(|(_, l)| l).collect();
    let why = refused(lines.join("\n") + "\n");
    assert!(why.ends_with("pairs.ndjson:3: pair 2 of cell 0, which has 1"), "{why}");
}

#[test]
fn a_run_is_not_gone_on_with_otherwise_nor_beyond_its_end() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    interrupted_at(&Simulated::new(), &request, 30);
    let again = resumed(&request);
    // A child of another test may hold the lock between its fork and its exec.
    let why = |request: Request| loop {
        let why = Simulated::new().run(&request).unwrap_err().why;
        if !why.contains("another process writes it") {
            break why;
        }
    };
    let refused = |what| format!("a resumed run keeps its settings: {what} cannot be changed");
    assert_eq!(why(Request { seed: 8, ..again.clone() }), refused("the seed"));
    assert_eq!(why(Request { quick: true, ..again.clone() }), refused("--quick"));
    let only = vec![("size".into(), "small".into())];
    assert_eq!(why(Request { only, ..again.clone() }), refused("--only"));
    assert_eq!(why(Request { attempts: 8, ..again.clone() }), refused("--attempts"));
    let mut other = grid();
    other.toml += "# changed\n";
    let other = Request { experiment: other, ..again.clone() };
    assert_eq!(why(other), refused("the experiment's file"));
    Simulated::new().run(&again).unwrap();
    assert_eq!(why(again), "it is complete");
}

#[test]
fn a_run_is_not_gone_on_with_by_another_version_of_a_side() {
    let scratch = Scratch::new();
    let mut experiment = grid();
    for cell in &mut experiment.cells {
        cell.scenario = "command".into();
        cell.a = Settings::new().with("program", "sh");
        cell.b = Settings::new().with("commit", "HEAD");
    }
    let request = request_in(&scratch.0, experiment);
    let (_, mut state) = request.begin(Json::Null).unwrap();
    let Some(head) = state.request.commits.get_mut("HEAD") else {
        return println!("skipped: the working directory is in no repository");
    };
    assert!(head.len() >= 40, "{head}");
    *head = "0".repeat(40);
    let e = request.is_of(&state, &scratch.0).unwrap_err();
    let why = "a resumed run keeps its settings: the commit of HEAD cannot be changed";
    assert_eq!((e.code, e.why.as_str()), (Code::Run, why));
    // A commit that is unknown here cannot be compared, and its side cannot be built.
    state.request.commits = [("no-such".to_owned(), "0".repeat(40))].into();
    assert_eq!(request.is_of(&state, &scratch.0), Ok(()));
}

#[test]
fn another_machine_is_told_and_a_cell_that_could_not_be_run_is_tried_again() {
    let scratch = Scratch::new();
    let mut experiment = grid();
    told(&mut experiment, 0, "check", "root");
    let request = request_in(&scratch.0, experiment);
    // One check precedes each cell, and one each window of the second cell.
    let part = interrupted_at(&Simulated::new(), &request, 20);
    assert_eq!(part.cells[0].status, Status::Unsupported);
    // Now the machine allows the cell; the experiment is unchanged.
    let again = Request { experiment: grid(), ..resumed(&request) };
    let mut world = Simulated::new();
    world.kernel = "Linux 6.19";
    let run = world.run(&again).unwrap();
    assert_eq!((run.cells[0].status, run.cells[0].pairs.len()), (Status::Ok, 15));
    let machine = run.warnings.iter().find(|warning| warning.code == "W-MACHINE").unwrap();
    assert!(machine.text.ends_with(": kernel Linux 6.18, now Linux 6.19"), "{}", machine.text);
    assert!(!codes(&run).contains(&"E-PERM"), "{:?}", run.warnings);
    assert_eq!(run.env["after"]["kernel"], "Linux 6.19");
}

#[test]
fn a_run_is_not_gone_on_with_by_other_traffic_or_on_other_cpus() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    let (_, state) = request.begin(Json::Null).unwrap();
    let why = |seed: u64, cpus: Vec<usize>| {
        let place = Place { seed, cpus, ..request.place.clone() };
        let other = Request { place, ..request.clone() };
        other.is_of(&state, &scratch.0).map_err(|e| e.why)
    };
    let refused = |what| Err(format!("a resumed run keeps its settings: {what} cannot be changed"));
    assert_eq!(why(7, vec![4, 5]), Ok(()));
    assert_eq!(why(8, vec![4, 5]), refused("the seed"));
    assert_eq!(why(7, vec![5, 4]), refused("the CPUs"));
}
