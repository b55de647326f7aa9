use super::*;
use crate::profile::{Row as Seen, Space, Total, Unit};
use crate::stage::Part;
use proptest::prelude::*;

fn profile(rows: &[(&str, u64)]) -> Profile {
    let event = Event { name: "L2_LINES_OUT".into(), unit: Unit::Samples, period: None, raw: None };
    let mut profile = Profile::new(event, Origin::Counter);
    profile.rows = rows.iter().map(|&(symbol, count)| Seen::new(symbol, count)).collect();
    profile
}

fn about(diff: &Diff) -> Vec<About> {
    diff.warnings.iter().map(|w| w.about).collect()
}

#[test]
fn absent_from_a_cut_off_listing_is_a_bound_and_from_a_whole_one_is_0() {
    let without = profile(&[("f", 3358), ("g", 900)]);
    let mut with = profile(&[("g", 216)]);
    assert_eq!(Diff::between(&without, &with).rows[0].with, Count::Below(1), "no sample");
    with.event.unit = Unit::Events;
    assert_eq!(Diff::between(&without, &with).rows[0].with, Count::Is(0), "every event is counted");
    with.cutoff = Some(216);
    assert_eq!(Diff::between(&without, &with).rows[0].with, Count::Below(216));
    with.cutoff = Some(1);
    assert_eq!(Diff::between(&without, &with).rows[0].with, Count::Is(0), "fewer than 1 is 0");
    let sum = Diff::between(&without, &profile(&[])).sum();
    assert!(sum.is_exact(), "nothing is hidden from a sum of samples: {sum:?}");
}

#[test]
fn counts_of_an_unknown_unit_are_compared_as_samples() {
    let mut listing = profile(&[("f", 100)]);
    listing.event.unit = Unit::Unknown;
    let mut other = listing.clone();
    other.rows[0].count = 101;
    let diff = Diff::between(&listing, &other);
    assert_eq!(diff.change(&diff.rows[0]), Change::Noise);
}

#[test]
fn rows_are_ranked_by_saving_and_among_equals_what_is_known_goes_first() {
    let without = profile(&[("rose", 1), ("hidden", 600), ("large", 1124), ("first", 601)]);
    let mut with = profile(&[("rose", 9), ("large", 524), ("first", 1), ("new", 7)]);
    with.cutoff = Some(216);
    let diff = Diff::between(&without, &with);
    let order: Vec<&str> = diff.rows.iter().map(|row| row.symbol.as_str()).collect();
    assert_eq!(order, ["first", "large", "hidden", "new", "rose"]);
}

#[test]
fn rows_of_one_name_are_summed_and_it_is_told() {
    let without = profile(&[("init", 5), ("f", 1), ("init", 7), ("init", 1)]);
    let diff = Diff::between(&without, &profile(&[("init", 3)]));
    assert_eq!(diff.rows.len(), 2);
    assert_eq!((diff.rows[0].without, diff.rows[0].with), (Count::Is(13), Count::Is(3)));
    assert_eq!(diff.remarks.len(), 1, "{:?}", diff.remarks);
    assert!(diff.remarks[0].contains("the name init; they"), "{:?}", diff.remarks);
}

#[test]
fn copies_by_programs_of_the_whole_machine_are_not_the_packet_path_s() {
    let mut machine = profile(&[("memcpy", 700), ("linerate_wire::checksum::sum", 5)]);
    for row in &mut machine.rows {
        (row.object, row.space) = (Some("/lib/libc.so.6".into()), Space::User);
    }
    let on_path = |profile: &Profile| {
        let diff = Diff::between(profile, profile);
        diff.sum_of(|row| row.stage.part() == Part::Path).with
    };
    assert_eq!(on_path(&machine), 705);
    machine.conditions.whole_machine = true;
    assert_eq!(on_path(&machine), 5);
    let runs = [machine.clone(), machine];
    let (diff, _) = Diff::of_runs(&runs, &runs, By::AsTheyAre).unwrap();
    assert_eq!(diff.sum_of(|row| row.stage.part() == Part::Path).with, 10);
}

#[test]
fn stage_that_a_source_gives_is_kept_and_separates_functions_of_one_name() {
    let row = |name: &str, stage, count| Seen { stage, ..Seen::new(name, count) };
    let mut given = profile(&[("ip_rcv", 1)]);
    given.rows.push(row("frobnicate", Some(Stage::Driver), 70));
    given.rows.push(row("memcpy", Some(Stage::Copy), 3));
    given.rows.push(row("memcpy", Some(Stage::User), 700));
    let diff = Diff::between(&given, &given);
    let mut found: Vec<_> = diff.rows.iter().map(|row| (row.stage, row.with)).collect();
    found.sort_by_key(|&(stage, _)| stage);
    let expected = [
        (Stage::Driver, Count::Is(70)),
        (Stage::Ip, Count::Is(1)),
        (Stage::Copy, Count::Is(3)),
        (Stage::User, Count::Is(700)),
    ];
    assert_eq!(found, expected);
    assert!(diff.remarks.is_empty(), "{:?}", diff.remarks);
    let runs = [given.clone(), given];
    let (sums, _) = Diff::of_runs(&runs, &runs, By::AsTheyAre).unwrap();
    assert_eq!(sums.sum_of(|row| row.stage == Stage::User).with, 1400);
}

#[test]
fn a_name_in_the_kernel_and_in_a_program_is_two_functions() {
    let row = |name: &str, object: &str, space, count| Seen {
        object: Some(object.into()),
        space,
        ..Seen::new(name, count)
    };
    let mut a = profile(&[]);
    a.rows = vec![
        row("memcpy", "/lib/libc.so.6", Space::User, 700),
        row("memcpy", "[kernel]", Space::Kernel, 3),
        row("[unknown]", "/lib/libc.so.6", Space::User, 50),
        row("[unknown]", "/bin/x", Space::User, 5),
        row("init", "/lib/a", Space::User, 1),
        row("init", "/lib/b", Space::User, 1),
    ];
    let diff = Diff::between(&a, &a);
    let of = |name: &str| -> Vec<_> {
        let rows = diff.rows.iter().filter(|row| row.symbol == name);
        let mut found: Vec<_> = rows.map(|r| (r.object.as_deref().unwrap(), r.with)).collect();
        found.sort_by_key(|&(object, _)| object);
        found
    };
    assert_eq!(of("memcpy"), [("/lib/libc.so.6", Count::Is(700)), ("[kernel]", Count::Is(3))]);
    assert_eq!(of("[unknown]"), [("/bin/x", Count::Is(5)), ("/lib/libc.so.6", Count::Is(50))]);
    assert_eq!(diff.rows_of(Part::Path).count(), 2);
    assert!(
        diff.remarks[0].contains("the name init (in /lib/a, /lib/b); they"),
        "{:?}",
        diff.remarks
    );
}

#[test]
fn a_listing_that_does_not_say_where_a_function_is_means_the_one_that_is_known() {
    let mut known = profile(&[("tcp_v4_rcv", 5), ("main", 3)]);
    known.rows[0].space = Space::Kernel;
    known.rows[1].space = Space::User;
    let diff = Diff::between(&profile(&[("tcp_v4_rcv", 9), ("main", 3)]), &known);
    assert_eq!(diff.rows.len(), 2, "{:?}", diff.rows);
}

#[test]
fn functions_below_both_cut_offs_are_in_no_total() {
    let (without, mut with) = (profile(&[("f", 1000)]), profile(&[("f", 100)]));
    let whole = Diff::between(&without, &with);
    assert_eq!(whole.figures_of(whole.sum()).saved, Some(900.0));
    with.cutoff = Some(50);
    let diff = Diff::between(&without, &with);
    let figures = diff.figures_of(diff.sum());
    assert_eq!((figures.saved, figures.saved_least, figures.saving_pct), (None, None, None));
    assert_eq!((figures.saved_as_listed, figures.saving_as_listed_pct), (900.0, Some(90.0)));
    assert_eq!(
        diff.rows[0].sum().figures(diff.scale).saved,
        Some(900.0),
        "a row is of one function"
    );
}

#[test]
fn cost_that_moved_stands_beside_cost_that_vanished_and_disks_are_in_neither() {
    let without = profile(&[("alloc_skb", 382), ("eth_type_trans", 927), ("scsi_request_fn", 184)]);
    let with = profile(&[("alloc_skb", 43), ("eth_type_trans", 1094), ("default_idle", 500)]);
    let moved = Diff::between(&without, &with).moved();
    assert_eq!(moved.fell.saved_counts(), 339);
    assert_eq!(moved.rose.saved_counts(), -167);
    assert_eq!((moved.fell.functions, moved.rose.functions), (1, 1));
}

#[test]
fn incomparable_profiles_are_warned_about_and_models_stay_models() {
    let a = profile(&[("f", 1)]);
    assert!(Diff::between(&a, &a).warnings.is_empty());
    let mut b = a.clone();
    b.event.name = "cycles".into();
    b.event.unit = Unit::Ticks;
    b.origin = Origin::Model;
    let diff = Diff::between(&a, &b);
    assert_eq!(about(&diff), [About::Event, About::Unit, About::ModelAgainstMeasurement]);
    assert!(diff.is_doubtful());

    let (mut a, mut b) = (a, b);
    (a.event.name, b.event.name) = ("L2_LINES_OUT".into(), "L2_CACHE_LINES_OUT".into());
    (b.event.unit, b.origin) = (a.event.unit, a.origin);
    let diff = Diff::between(&a, &b);
    assert_eq!((about(&diff), diff.is_doubtful()), (vec![About::Spelling], false));

    let mut b = a.clone();
    b.lost = 12;
    b.cutoff = Some(9);
    let diff = Diff::between(&a, &b);
    assert_eq!(about(&diff), [About::Lost, About::Cutoff]);
    assert!(!diff.is_doubtful());
    let text = diff.warnings[0].to_string();
    assert_eq!(text, "lost samples: without 0, with 12. They are in no row.");
}

#[test]
fn another_machine_is_told_and_a_silent_listing_is_not_another_machine() {
    let mut a = profile(&[("f", 1)]);
    a.conditions.kernel = Some("Linux 6.18.0".into());
    a.conditions.cpu = Some("x".into());
    a.conditions.mhz = Some(2700.0);
    assert!(Diff::between(&a, &profile(&[("f", 1)])).warnings.is_empty());
    let mut b = a.clone();
    b.conditions.mhz = Some(2710.0);
    assert!(Diff::between(&a, &b).warnings.is_empty(), "a clock moves by a little");
    b.conditions.mhz = Some(3700.0);
    b.conditions.kernel = Some("Linux 6.12.0".into());
    b.conditions.hypervisor = Some("KVM".into());
    assert_eq!(about(&Diff::between(&a, &b)), [About::Kernel, About::Machine, About::Machine]);
}

#[test]
fn clocks_with_different_periods_are_not_comparable() {
    let at = |hz: u64| {
        let mut profile = profile(&[("f", hz)]);
        profile.event.period = Some(1_000_000_000 / hz);
        profile
    };
    let diff = Diff::between(&at(100), &at(1000));
    assert_eq!((about(&diff), diff.is_doubtful()), (vec![About::Period], true));
}

#[test]
fn twice_the_time_is_told_and_can_be_divided_out() {
    let mut a = profile(&[("f", 100), ("g", 10)]);
    let mut b = profile(&[("f", 200), ("g", 10)]);
    a.conditions.wall_ns = Some(1_000_000_000);
    b.conditions.wall_ns = Some(2_000_000_000);
    assert_eq!(about(&Diff::between(&a, &b)), [About::Duration]);
    let moved = |profile: &Profile| {
        let mut of = profile.clone();
        of.conditions.packets = Some(1000);
        of
    };
    assert!(
        Diff::between(&moved(&a), &moved(&b)).warnings.is_empty(),
        "the same work in less time"
    );
    let diff = Diff::scaled(&a, &b, By::Second).unwrap();
    assert!(diff.warnings.is_empty());
    assert_eq!(diff.rows[0].symbol, "g");
    let saving = |row: usize| diff.rows[row].sum().figures(diff.scale).saving_pct;
    assert_eq!((saving(0), saving(1)), (Some(50.0), Some(0.0)));
    let refused = Diff::scaled(&a, &b, By::KiloPacket).unwrap_err();
    assert!(refused.why.contains("how many packets"), "{refused}");
    assert!(refused.to_string().contains("--packets N"), "{refused}");
}

#[test]
fn a_share_says_that_it_is_one() {
    let diff = Diff::scaled(&profile(&[("f", 4)]), &profile(&[("f", 2)]), By::Share).unwrap();
    assert_eq!(about(&diff), [About::Shares]);
    assert_eq!(diff.rows[0].sum().saved(diff.scale), 0.0);
    assert!(Diff::scaled(&profile(&[]), &profile(&[("f", 2)]), By::Share).is_err());
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let count = prop_oneof![0u64..1000, 0u64..=u64::MAX];
    let row = (prop::sample::select(vec!["a", "b", "kfree", "USER", "poll_idle", "f"]), count);
    (prop::collection::vec(row, 0..12), prop::option::of(0u64..300))
        .prop_map(|(rows, cutoff)| Profile { cutoff, ..profile(&rows) })
}

proptest! {
    #[test]
    fn nothing_is_lost_between_the_profiles_and_their_difference(
        without in any_profile(), with in any_profile(),
    ) {
        let diff = Diff::between(&without, &with);
        let sum = diff.sum();
        prop_assert_eq!(sum.without, without.counted());
        prop_assert_eq!(sum.with, with.counted());
        let stages = diff.stages().into_iter().map(|(_, s)| s).fold(Sum::default(), Sum::plus);
        prop_assert_eq!(stages, sum);
        let parts = Part::ALL.iter().map(|&part| diff.rows_of(part).count());
        prop_assert_eq!(parts.sum::<usize>(), diff.rows.len());
    }

    #[test]
    fn the_other_way_round_every_saving_is_its_negative(
        without in any_profile(), with in any_profile(),
    ) {
        let (there, back) = (Diff::between(&without, &with), Diff::between(&with, &without));
        prop_assert_eq!(there.rows.len(), back.rows.len());
        for row in &there.rows {
            let same = back.rows.iter().find(|r| r.symbol == row.symbol).unwrap();
            prop_assert_eq!(row.sum().saved_counts(), -same.sum().saved_counts());
            prop_assert_eq!(row.sum().saved_least(there.scale), -same.sum().saved_most(back.scale));
            prop_assert_eq!(row.stage, same.stage);
        }
        let ranked = there.rows.windows(2).all(|pair| {
            pair[0].sum().saved(there.scale) >= pair[1].sum().saved(there.scale)
        });
        prop_assert!(ranked);
    }
}

#[test]
fn difference_between_several_runs_must_exceed_their_spread() {
    let run = |f, g| profile(&[("f", f), ("g", g), ("g", 0)]);
    let without = [run(1000, 1000), run(1400, 1010), run(1200, 990)];
    let with = [run(1300, 1300), run(1500, 1310), run(1350, 1290)];
    let (diff, _) = Diff::of_runs(&without, &with, By::AsTheyAre).unwrap();
    let remarks = &diff.remarks;
    assert!(remarks.len() == 1 && remarks[0].contains("the name g; they"), "{remarks:?}");
    let change = |diff: &Diff, name: &str| {
        diff.change(diff.rows.iter().find(|row| row.symbol == name).unwrap())
    };
    assert_eq!((change(&diff, "f"), change(&diff, "g")), (Change::Noise, Change::Rose));
    assert!(diff.has_spread() && (diff.without.runs, diff.with.counted) == (3, 8050));
    let (one, _) = Diff::of_runs(&without[..1], &with[..1], By::AsTheyAre).unwrap();
    assert_eq!((change(&one, "f"), one.has_spread()), (Change::Rose, false), "1000 and 1300");
    assert_eq!(one, Diff::between(&without[0], &with[0]));
    let unequal = Diff::of_runs(&without, &with[..2], By::AsTheyAre).unwrap_err();
    assert!(unequal.why.contains("3 are without the change, 2 with it"), "{unequal}");
    assert!(Diff::of_runs(&without, &with[..2], By::Share).unwrap().0.has_spread());
}

#[test]
fn runs_of_one_machine_are_added_up_at_different_clocks() {
    let run = |mhz| {
        let mut run = profile(&[("f", 7)]);
        (run.conditions.cpus, run.conditions.mhz) = (Some(2), Some(mhz));
        run
    };
    let runs = [run(2400.0), run(3100.0)];
    let (diff, sums) = Diff::of_runs(&runs, &runs, By::AsTheyAre).unwrap();
    assert_eq!((sums[0].conditions.mhz, about(&diff)), (Some(2750.0), vec![]));
    let mut other = run(2400.0);
    other.conditions.cpus = Some(4);
    let refused = Diff::of_runs(&[run(2400.0), other], &runs, By::AsTheyAre).unwrap_err();
    assert!(refused.why.contains("2 CPUs and 4 CPUs"), "{refused}");
}

#[test]
fn error_names_the_run_that_does_not_say_by_what_to_divide() {
    let run = |wall_ns| {
        let mut run = profile(&[("f", 7)]);
        run.conditions.wall_ns = Some(wall_ns);
        run
    };
    let (good, bad) = ([run(5), run(5)], [run(5), run(0)]);
    let refused = Diff::of_runs(&good, &bad, By::Second).unwrap_err();
    assert_eq!(refused.why, "the profile of run 2 with the change does not say how long it lasted");
    let (one, _) = Diff::of_runs(&good[..1], &bad, By::Second).unwrap();
    assert!(!one.has_spread());
}

#[test]
fn runs_that_do_not_count_the_same_are_not_added_up() {
    let good = profile(&[("f", 7)]);
    let (mut cut, mut other) = (good.clone(), good.clone());
    cut.cutoff = Some(5);
    other.event.name = "cycles".into();
    for (bad, why) in [(cut, "leaves out functions"), (other, "L2_LINES_OUT and cycles")] {
        let (without, with) = ([good.clone(), bad], [good.clone(), good.clone()]);
        let e = Diff::of_runs(&without, &with, By::AsTheyAre).unwrap_err();
        assert!(e.why.contains(why) && e.what.contains("without the change"), "{e}");
    }
}

#[test]
fn only_what_both_sides_say_differently_is_warned_about() {
    let a = profile(&[("f", 1)]);
    let warned = |change: fn(&mut Profile)| {
        let mut b = a.clone();
        change(&mut b);
        [about(&Diff::between(&a, &b)), about(&Diff::between(&b, &a))]
    };
    assert_eq!(warned(|b| b.lost = 12), [[About::Lost], [About::Lost]]);
    assert_eq!(warned(|b| b.cutoff = Some(1)), [[], []], "fewer than 1 is 0");
    assert_eq!(warned(|b| b.conditions.hypervisor = Some("KVM".into())), [[], []]);
    let raw = |raw: &str| {
        let mut of = a.clone();
        of.event.raw = Some(raw.into());
        of
    };
    let diff = Diff::between(&raw("r1643"), &raw("r1644"));
    assert_eq!((about(&diff), diff.is_doubtful()), (vec![About::Event], true));
    assert!(about(&Diff::between(&raw("r1643"), &a)).is_empty());
}

#[test]
fn durations_and_loads_are_apart_beyond_two_per_cent_of_the_larger_and_only_if_not_divided_out() {
    let of = |wall_ns: u64, packets: u64| {
        let mut of = profile(&[("f", 100)]);
        (of.conditions.wall_ns, of.conditions.packets) = (Some(wall_ns), Some(packets));
        of
    };
    let told = |a: &Profile, b: &Profile| about(&Diff::between(a, b));
    assert!(told(&of(100, 100), &of(98, 98)).is_empty());
    assert_eq!(told(&of(100, 100), &of(97, 97)), [About::Duration, About::Load]);
    let diff = Diff::scaled(&of(100, 100), &of(50, 50), By::KiloPacket).unwrap();
    assert!(diff.warnings.is_empty(), "{:?}", diff.warnings);
}

#[test]
fn shares_are_of_the_makers_total_if_there_is_one() {
    let whole = profile(&[("f", 50)]);
    let mut part = profile(&[("f", 50)]);
    part.total = Some(Total { count: 100, load: None });
    let diff = Diff::scaled(&whole, &part, By::Share).unwrap();
    assert_eq!((diff.scale.without_factor, diff.scale.with_factor), (2.0, 1.0));
}

#[test]
fn an_address_is_a_function_of_its_file_and_a_name_in_two_spaces_is_a_third_where_none_is_told() {
    let row = |name: &str, object: Option<&str>, space| Seen {
        object: object.map(str::to_owned),
        space,
        ..Seen::new(name, 5)
    };
    let mut known = profile(&[]);
    known.rows = vec![
        row("0x401000", Some("/bin/a"), Space::User),
        row("0x401000", Some("/bin/b"), Space::User),
    ];
    assert_eq!(Diff::between(&known, &known).rows.len(), 2);
    let both = [Space::Kernel, Space::User];
    known.rows = both.map(|space| row("memcpy", None, space)).to_vec();
    let diff = Diff::between(&known, &profile(&[("memcpy", 9)]));
    assert_eq!(diff.rows.len(), 3, "{:?}", diff.rows);
}

#[test]
fn sum_of_runs_has_their_losses_and_remarks_and_no_address_of_one_of_them() {
    let run = |lost, remark: &str| {
        let mut run = profile(&[("f", 7)]);
        (run.lost, run.remarks) = (lost, vec!["quiet".into(), remark.into()]);
        run.rows[0].address = Some(0x1000);
        run
    };
    let runs = [run(3, "first"), run(4, "second")];
    let (_, [sum, _]) = Diff::of_runs(&runs, &runs, By::AsTheyAre).unwrap();
    assert_eq!((sum.lost, sum.rows[0].count, sum.rows[0].address), (7, 14, None));
    assert_eq!(sum.remarks, ["quiet", "first", "second"]);
}

#[test]
fn error_names_the_runs_that_differ_and_the_smallest_cut_off_is_one() {
    let refused = |change: fn(&mut Profile)| {
        let good = profile(&[("f", 7)]);
        let mut bad = good.clone();
        change(&mut bad);
        let runs = [good.clone(), good, bad];
        Diff::of_runs(&runs, &runs, By::AsTheyAre).map_err(|e| e.why).err()
    };
    let why = refused(|run| run.event.name = "cycles".into()).unwrap();
    assert!(why.starts_with("runs 1 and 3 are of different events: "), "{why}");
    assert!(refused(|run| run.cutoff = Some(2)).unwrap().contains("leaves out functions"));
    assert_eq!(refused(|run| run.cutoff = Some(1)), None);
}

#[test]
fn rows_of_one_name_in_a_run_are_one_count_of_it() {
    let parted = [profile(&[("g", 1000), ("g", 10)]), profile(&[("g", 990), ("g", 40)])];
    let whole = [profile(&[("g", 1010)]), profile(&[("g", 1030)])];
    let noise =
        |runs: &[Profile]| Diff::of_runs(runs, runs, By::AsTheyAre).unwrap().0.rows[0].noise;
    assert!(noise(&whole) > 0.0 && noise(&parted) == noise(&whole));
}
