//! Pairs: their order, their control, how many of them, and which of them count.

use super::*;
use crate::record::{Order, PairRecord, Status};
use crate::runner::unit::{Role, setup_order};
use linerate_testing::Scratch;

fn orders(run: &Run, cell: usize) -> Vec<Order> {
    run.cells[cell].pairs.iter().map(|pair| pair.order).collect()
}

#[test]
fn the_first_side_runs_between_the_second_and_its_control_in_the_order_that_is_recorded() {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    let run = world.run(&request_in(&scratch.0, grid())).unwrap();
    let orders = [orders(&run, 0), orders(&run, 1)];
    let unit = |order: &Order| if *order == Order::AB { "cab" } else { "bac" };
    // Two cells need 7 set-ups, which they have by the first look of 15 pairs. A random choice
    // decides which bench of the first side is the control; the order of the first warm-up shows
    // it.
    let mut windows = world.windows();
    for pairs in orders.iter().flat_map(|cell| cell.chunks(2)) {
        let later = windows.split_off(9 + 3 * pairs.len());
        let roles: Vec<char> = windows.chars().take(3).collect();
        let role = |name| ['a', 'b', 'c'][roles.iter().position(|one| *one == name).unwrap()];
        let units: String = pairs.iter().map(unit).collect();
        assert_eq!(windows.chars().map(role).collect::<String>(), "abc".repeat(3) + &units);
        windows = later;
    }
    assert_eq!(windows, "");
    let told: Vec<_> = run.cells[1].pairs.iter().map(|pair| pair.set_up.unwrap()).collect();
    assert_eq!(told, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]);
    assert_eq!(run.cells[0].metrics["cost_ns_per_packet"].n_set_ups, Some(8));
    for order in [Order::AB, Order::BA] {
        assert!(orders.iter().all(|cell| cell.contains(&order)), "{orders:?}");
    }
    let window = &run.cells[0].pairs[0];
    let control = window.control.as_ref().unwrap();
    assert_eq!((window.a.cost_ns(), window.b.cost_ns()), (100_000, 50_000));
    assert_eq!((control.cost_ns(), control.figures["asked_ns"]), (100_000, 5e7));
}

#[test]
fn same_seed_repeats_the_order_of_sides() {
    let scratch = Scratch::new();
    let of = |seed| {
        let request = Request { seed, ..request_in(&scratch.0, grid()) };
        let run = Simulated::noisy(50).run(&request).unwrap();
        [orders(&run, 0), orders(&run, 1)]
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

#[test]
fn a_cell_ends_at_the_first_look_that_is_narrow_enough_and_else_at_the_last() {
    let scratch = Scratch::new();
    let run = Simulated::noisy(0).run(&request_in(&scratch.0, grid())).unwrap();
    assert_eq!(run.cells.iter().map(|cell| cell.pairs.len()).collect::<Vec<_>>(), [15, 15]);
    assert_eq!(run.cells[0].metrics["cost_ns_per_packet"].change_pct.round(), -50.0);
    assert_eq!((run.verdict.as_str(), run.run.complete, run.conserved()), ("better", true, true));
    let run = Simulated::noisy(50).run(&request_in(&scratch.0, grid())).unwrap();
    assert_eq!(run.cells.iter().map(|cell| cell.pairs.len()).collect::<Vec<_>>(), [60, 60]);
}

#[test]
fn rejected_pairs_are_kept_and_run_again() {
    let (scratch, mut world) = (Scratch::new(), Simulated::noisy(50));
    world.admits = |number| (true, number % 3 != 0);
    let run = world.run(&request_in(&scratch.0, grid())).unwrap();
    for cell in &run.cells {
        let accepted = cell.pairs.iter().filter(|pair| pair.cost_accepted).count();
        assert_eq!((accepted, cell.status), (60, Status::Ok));
        assert!((89..=90).contains(&cell.pairs.len()), "{}", cell.pairs.len());
        let rejected = cell.pairs.iter().find(|pair| !pair.cost_accepted).unwrap();
        assert_eq!(rejected.reject_reason.as_deref(), Some("foreign CPU 31 %"));
    }
}

#[test]
fn a_cell_of_which_most_is_rejected_ends_and_is_inconclusive() {
    let (scratch, mut world) = (Scratch::new(), Simulated::new());
    world.admits = |number| (true, number % 4 == 0 && number < 40);
    let run = world.run(&request_in(&scratch.0, grid())).unwrap();
    for cell in &run.cells {
        assert_eq!((cell.pairs.len(), cell.status), (120, Status::Inconclusive));
    }
    assert_eq!(run.verdict, "inconclusive");
}

/// Checks that a narrow interval does not end a cell at a look at which it would be inconclusive,
/// while pairs may still be tried.
#[test]
fn a_cell_does_not_end_at_a_look_while_most_of_its_pairs_are_rejected() {
    let (scratch, mut world) = (Scratch::new(), Simulated::new());
    world.admits = |number| (true, number >= 25);
    let run = world.run(&request_in(&scratch.0, grid())).unwrap();
    let accepted = run.cells[0].pairs.iter().filter(|pair| pair.cost_accepted).count();
    // At the first look 15 of 40 pairs are admitted, at the second 30 of 55.
    assert_eq!((accepted, run.cells[0].status), (30, Status::Ok));
    assert_eq!((run.cells[1].pairs.len(), run.cells[1].status), (15, Status::Ok));
}

#[test]
fn a_cell_that_can_no_longer_become_quiet_ends_at_a_look() {
    let (scratch, mut world) = (Scratch::new(), Simulated::new());
    world.admits = |number| (true, number > 0);
    let request = Request { attempts: 1, ..request_in(&scratch.0, grid()) };
    let cell = world.run(&request).unwrap().cells.remove(0);
    assert_eq!((cell.pairs.len(), cell.status), (16, Status::Inconclusive));
}

#[test]
fn more_attempts_give_a_noisy_machine_a_result() {
    let (scratch, mut world) = (Scratch::new(), Simulated::noisy(50));
    world.admits = |number| (true, number % 4 == 0);
    let ran = |attempts| {
        let run = world.run(&Request { attempts, ..request_in(&scratch.0, grid()) }).unwrap();
        let cell = &run.cells[0];
        (cell.pairs.iter().filter(|pair| pair.cost_accepted).count(), cell.status, cell.attempts)
    };
    assert_eq!(ran(Plan::ATTEMPTS), (30, Status::Inconclusive, None));
    assert_eq!(ran(8), (60, Status::Ok, Some(8)));
}

#[test]
fn costs_are_taken_from_pairs_of_which_rates_cannot_be() {
    let (scratch, mut world) = (Scratch::new(), Simulated::new());
    world.admits = |_| (false, true);
    let run = world.run(&request_in(&scratch.0, grid())).unwrap();
    assert_eq!((run.cells[0].pairs.len(), run.cells[0].status), (15, Status::Ok));
    let mut of_rates = grid();
    of_rates.metrics[0].clock = Clock::Wall;
    let run = world.run(&request_in(&scratch.0, of_rates)).unwrap();
    assert_eq!((run.cells[0].pairs.len(), run.cells[0].status), (120, Status::Inconclusive));
}

#[test]
fn a_pair_during_which_the_cpus_moved_or_could_not_be_placed_is_rejected_for_everything() {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    // Two readings for each pair, in reverse order: the last two are those of the first pair.
    world.distances.replace(vec![0.0, 100.0, 9000.0, 100.0, 100.0, 100.0]);
    let run = world.run(&request_in(&scratch.0, grid())).unwrap();
    let pairs = &run.cells[0].pairs;
    let placed = pairs[0].placement.as_ref().unwrap();
    assert_eq!((placed.before_ticks, pairs[0].cost_accepted), (100.0, true));
    assert_eq!((pairs[1].accepted, pairs[1].cost_accepted), (false, false));
    let why = pairs[1].reject_reason.as_deref().unwrap();
    assert!(
        why.starts_with("the distance of the CPUs changed: ") && why.contains("9000 after"),
        "{why}"
    );
    assert_eq!((pairs[2].accepted, pairs[2].cost_accepted), (false, false));
    assert_eq!(pairs[2].reject_reason.as_deref(), Some("cannot measure: they met for 3 readings"));
    assert_eq!(pairs.len(), 17);
}

/// Runs the first cell with long windows and with these distances; returns its windows, its first
/// pair, and the number of distances that it did not read.
fn long_windows(distances: &[f64]) -> (String, PairRecord, usize) {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    let mut experiment = grid();
    experiment.cells.iter_mut().for_each(|cell| cell.window_ns = 1_000_000_000);
    world.distances.replace(distances.iter().rev().copied().collect());
    let run = world.run(&request_in(&scratch.0, experiment)).unwrap();
    (world.windows(), run.cells[0].pairs[0].clone(), world.distances.borrow().len())
}

#[test]
fn a_long_window_within_which_the_cpus_moved_is_repeated_when_they_are_back() {
    let still = long_windows(&[100.0; 4]);
    // Before the pair; after its first window; once more away, and back; after the window again;
    // then the others.
    let (windows, pair, unread) =
        long_windows(&[100.0, 9000.0, 9000.0, 100.0, 110.0, 100.0, 110.0]);
    assert_eq!((pair.cost_accepted, pair.reject_reason, unread), (true, None, 0));
    assert_eq!(pair.placement.unwrap().after_ticks, 110.0);
    assert_eq!(windows.len(), still.0.len() + 1);
}

#[test]
fn a_pair_whose_cpus_stay_away_or_move_in_each_try_is_rejected() {
    let stays = [vec![100.0], vec![9000.0; 51], vec![100.0; 2]].concat();
    // Four tries of a window, and three times back in between.
    let moves = [vec![100.0], [9000.0, 100.0].repeat(4), vec![100.0; 1]].concat();
    for distances in [stays, moves] {
        let (_, pair, _) = long_windows(&distances);
        assert!(!pair.accepted && !pair.cost_accepted);
        let why = pair.reject_reason.unwrap();
        assert!(why.contains("100 ticks before the pair, 9000 within it"), "{why}");
    }
}

/// Checks that pairs of the other class are in no effect: a look that counted them would end the
/// cell too early.
#[test]
fn a_cell_goes_on_until_pairs_of_one_placement_are_enough() {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    // The readings are used from the end: six pairs are near, the others far.
    let distances = [vec![2000.0; 34], vec![100.0; 12]].concat();
    world.distances.replace([vec![2000.0; 60], distances].concat());
    let run = world.run(&request_in(&scratch.0, grid())).unwrap();
    let cell = &run.cells[0];
    let effect = &cell.metrics["cost_ns_per_packet"];
    assert_eq!((cell.pairs.len(), effect.n_pairs), (6 + 15, 15));
    let near = effect.elsewhere.as_ref().unwrap();
    assert_eq!((near.class.as_str(), near.n_pairs, near.change_pct.round()), ("near", 6, -50.0));
    let told = crate::report::text(&run);
    assert!(
        told.contains("6 pairs whose CPUs were near, not included in the\n    figures above"),
        "{told}"
    );
    let page = crate::report::html(std::slice::from_ref(&run));
    let caption = "15 pairs admitted, 6 with the CPUs at another distance, 0 not.";
    assert!(page.contains(caption), "the page counts the same pairs");
}

#[test]
fn a_cell_that_cannot_be_run_here_is_told_and_the_next_one_is_run() {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    let mut experiment = grid();
    told(&mut experiment, 0, "check", "root");
    let mut follower = Follower::default();
    let request = request_in(&scratch.0, experiment);
    let run = run_in(&world, &request, &mut follower).unwrap();
    assert_eq!((run.cells[0].status, run.cells[1].status), (Status::Unsupported, Status::Ok));
    let warning = run.warnings.iter().find(|warning| warning.code == "E-PERM").unwrap();
    let text = "size=small cannot be run here: cannot open a port: needs CAP_NET_RAW";
    assert_eq!(warning.text, text);
    assert_eq!(warning.fix.as_deref(), Some("sudo linerate lab run grid"));
    assert_eq!(follower.notes, [format!("E-PERM: {text}")]);
}

#[test]
fn settings_that_make_no_sense_end_the_run() {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    let mut experiment = grid();
    told(&mut experiment, 1, "check", "wrong");
    let e = world.run(&request_in(&scratch.0, experiment)).unwrap_err();
    assert_eq!(e.code, Code::Experiment);
    assert!(e.why.starts_with("line 7: burst = 0 is not above 0"), "{e}");
}

#[test]
fn results_are_withheld_where_packets_are_missing_also_the_controls() {
    let scratch = Scratch::new();
    for who in ["a", "b", "c"] {
        let mut experiment = grid();
        told(&mut experiment, 0, "leak", who);
        let run = Simulated::new().run(&request_in(&scratch.0, experiment)).unwrap();
        assert!(!run.conserved(), "{who}");
        let [cell, other] = &run.cells[..] else { panic!("{} cells", run.cells.len()) };
        assert_eq!((cell.status, cell.metrics.len()), (Status::Inconclusive, 0));
        assert_eq!((cell.pairs.len(), other.metrics.len()), (15, 1));
        let warned: Vec<_> = run.warnings.iter().filter(|one| one.code == "W-LEDGER").collect();
        // Each bench of the first side is the control in some set-ups, so both have the warning.
        assert_eq!(warned.len(), if who == "b" { 1 } else { 2 }, "{warned:?}");
        let sums = "received 0 + created 3900 ≠ sent 0 + consumed 3892 + dropped 0 + in flight 0";
        assert!(who != "b" || warned[0].text.ends_with(sums), "{}", warned[0].text);
        assert_eq!(run.overall[0].better, 1);
    }
}

#[test]
fn a_quick_run_is_of_the_quick_subset_and_looks_once() {
    let (scratch, world) = (Scratch::new(), Simulated::noisy(50));
    let request = Request { quick: true, ..request_in(&scratch.0, grid()) };
    let run = world.run(&request).unwrap();
    assert_eq!(run.cells.len(), 1);
    assert_eq!((run.cells[0].pairs.len(), run.cells[0].at["size"].as_str()), (5, "small"));
    assert_eq!(run.cells[0].pairs[0].a.figures["asked_ns"], 2e7);
    let note = "quick: the declared subset, few pairs; 3 warm-up windows of each side were \
                discarded in each set-up";
    assert_eq!(run.run.note.as_deref(), Some(note));
}

#[test]
fn only_some_cells_are_run_if_asked_and_none_is_an_error_that_names_all() {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    let only = |level: &str, quick| {
        let only = vec![("size".into(), level.into())];
        world.run(&Request { only, quick, ..request_in(&scratch.0, grid()) })
    };
    let run = only("large", false).unwrap();
    assert_eq!((run.cells.len(), run.cells[0].at["size"].as_str()), (1, "large"));
    let both = ["small", "large"].map(|level| ("size".into(), level.into())).to_vec();
    let both = Request { only: both, ..request_in(&scratch.0, grid()) };
    assert_eq!(both.cells().unwrap().len(), 2);
    let e = only("huge", false).unwrap_err();
    assert_eq!((e.code, e.why.as_str()), (Code::Experiment, "no cell of grid has size=huge"));
    assert_eq!(e.fix, "it has: size = small | large");
    let e = only("large", true).unwrap_err();
    assert_eq!(e.why, "no cell of the quick subset of grid has size=large");
}

#[test]
fn observer_is_called_after_each_pair_is_on_disk() {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    let dir = scratch.0.clone();
    let on_disk = move |attempted: usize| {
        let run = crate::record::find(&dir, "last").unwrap();
        let lines = std::fs::read_to_string(run.join("pairs.ndjson")).unwrap();
        // Count the lines of the first cell; those of the second cell follow after its 15 pairs.
        let lines = lines.lines().count() - 1;
        assert!(lines == attempted || lines == 15 + attempted, "{lines} of {attempted}");
    };
    let on_pair: Option<Box<dyn Fn(usize)>> = Some(Box::new(on_disk));
    let mut follower = Follower { on_pair, ..Follower::default() };
    run_in(&world, &request_in(&scratch.0, grid()), &mut follower).unwrap();
    assert_eq!(follower.seen.len(), 30);
    let (cell, accepted, attempted, left) = &follower.seen[16];
    assert_eq!((cell.as_str(), *accepted, *attempted), ("size=large", 2, 2));
    assert!(left.is_some());
}

#[test]
fn profiles_matrices_and_totals_are_the_runs_by_cell_and_side() {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    let experiment = Experiment { profiles: true, ..grid() };
    let run = world.run(&request_in(&scratch.0, experiment)).unwrap();
    assert_eq!(run.profiles.len(), 2, "of A in each cell: B's cannot be taken");
    assert_eq!((run.profiles[0].side.as_str(), run.profiles[0].cell.as_str()), ("a", "size=small"));
    assert_eq!(codes(&run).iter().filter(|code| **code == "W-PROFILE").count(), 2);
    assert_eq!(run.matrices["size=small/b/free_matrix"], [[3900]]);
    assert_eq!(run.totals["size=large/a/memory_bytes"], 4096.0);
}

#[test]
fn fresh_sides_are_set_up_for_every_pair_in_an_order_of_its_own_and_every_packet_is_counted() {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    let mut experiment = grid();
    experiment.cells.iter_mut().for_each(|cell| cell.fresh = true);
    experiment.profiles = true;
    let run = world.run(&request_in(&scratch.0, experiment)).unwrap();
    let pairs = run.cells.iter().map(|cell| cell.pairs.len()).sum::<usize>();
    let opened = world.scenario.log.lock().unwrap().opened.clone();
    assert_eq!((pairs, opened["a"], opened["b"]), (30, 60, 30));
    // Each side runs three windows to warm up, and one that counts.
    assert_eq!(world.windows().len(), pairs * 3 * 4);
    for cell in &run.cells {
        let ledger = &cell.ledger;
        assert_eq!((ledger.b.created, ledger.balanced()), (15 * 4 * PACKETS, true));
    }
    assert_eq!(run.profiles.len(), 2, "of what was set up last, in each cell");
    let seatings: Vec<_> = (0..64).map(|n| setup_order(7, 0, n)).collect();
    for role in [Role::A, Role::B, Role::Control] {
        for place in 0..3 {
            let there = seatings.iter().filter(|one| one[place] == role).count();
            assert!((8..=36).contains(&there), "{role:?} in place {place}: {there} of 64");
        }
    }
}

#[test]
fn a_cell_does_not_end_at_a_look_with_fewer_set_ups_than_a_verdict_needs() {
    let (scratch, world) = (Scratch::new(), Simulated::new());
    let mut experiment = grid();
    experiment.plan.looks = vec![5, 15, 60];
    let run = world.run(&request_in(&scratch.0, experiment)).unwrap();
    // Two cells need seven set-ups, of which the look at five pairs has five.
    assert_eq!(run.cells.iter().map(|cell| cell.pairs.len()).collect::<Vec<_>>(), [15, 15]);
}
