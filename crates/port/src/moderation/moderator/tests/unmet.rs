//! Tests of the line of a goal that cannot be met, and of a hold that the ring ends.

use super::*;

/// Returns the number that follows `before` in `line`.
fn number(line: &str, before: &str) -> f64 {
    let found = line.split_once(before).and_then(|(_, rest)| rest.split([' ', ',']).next());
    found.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {before:?}: {line}"))
}

/// Lets a moderator with a ring of `ring` serve a packet each `gap` for a second.
fn stream(mode: &str, ring: u32, cost: Cost, gap: Duration, late: Duration) -> String {
    let mut m = Moderator::new(mode.parse().unwrap(), true);
    m.set_ring_len(Some(ring));
    simulate_at(cost, &mut m, every(gap, SECOND), SECOND, late).line
}

/// Checks the arithmetic of a hold that a ring of 128 ends early at a packet each 2 us.
fn told_with_the_arithmetic(line: &str, wanted: f64) {
    let rate = number(line, "because ");
    let half = number(line, "packets a second fill half of the ring of 128 in ");
    assert!((495_000.0..505_000.0).contains(&rate) && (half - 64e6 / rate).abs() <= 1.0, "{line}");
    assert_eq!(number(line, "holding "), half, "{line}");
    assert!((number(line, "instead of ") / wanted - 1.0).abs() < 0.02, "{line}");
}

#[test]
fn share_that_packets_alone_take_is_told_beside_the_goal_of_cpu() {
    // 100,000 packets of 0.5 us take 5 % of a CPU; 100 wake-ups of 12 us take 0.1 %.
    let line = stream("adaptive:cpu=2%", 4096, Cost::default(), us(10), us(1));
    let taken = number(&line, "us; takes ");
    assert!((5.0..5.4).contains(&taken), "{line}");
    let end = " % of a CPU, 5.0 % for the packets alone, more than adaptive:cpu=2%";
    assert!(line.ends_with(end), "{line}");
    // Of 20 %, wake-ups take what the packets leave.
    let line = stream("adaptive:cpu=20%", 4096, Cost::default(), us(10), us(1));
    assert!(line.contains("holding ") && !line.contains("more than"), "{line}");
}

#[test]
fn hold_that_gathers_less_than_two_packets_is_extended_where_the_goal_of_cpu_needs_it() {
    // 1,500 packets take 0.1 % of a CPU, and their wake-ups 1.8 %; holds of 1.3 ms, which would
    // gather 1.95 packets, leave 1 %.
    let line = stream("adaptive:cpu=1%", 4096, Cost::default(), us(667), us(1));
    assert!(number(&line, "holding ") >= 1300.0 && !line.contains("more than"), "{line}");
    for gap in 600..1150 {
        let line = stream("adaptive:cpu=1%", 4096, Cost::default(), us(gap), us(1));
        assert!(line.contains("holding ") && !line.contains("more than"), "{gap}: {line}");
    }
    // 700 wake-ups of 12 us take 0.8 %.
    let line = stream("adaptive:cpu=1%", 4096, Cost::default(), us(1429), us(1));
    assert!(!line.contains("holding ") && !line.contains("more than"), "{line}");
}

#[test]
fn share_that_a_short_ring_forces_is_told_with_the_arithmetic_of_the_ring() {
    // 500,000 packets of 20 ns take 1 %. Of 5 %, 4 % are left for wake-ups of 12 us, each 300 us;
    // half of the ring allows 128 us.
    let cost = Cost { packet_ns: 20.0, ..Cost::default() };
    let line = stream("adaptive:cpu=5%", 128, cost, us(2), us(1));
    told_with_the_arithmetic(&line, 300.0);
    assert!((9.0..11.0).contains(&number(&line, "; takes ")), "{line}");
    assert!(line.ends_with(" % of a CPU, more than adaptive:cpu=5%"), "{line}");
    let line = stream("adaptive:cpu=5%", 4096, cost, us(2), us(1));
    assert!(!line.contains("ring") && !line.contains("more than"), "{line}");
}

#[test]
fn share_of_a_peer_that_is_not_held_is_told_beside_the_goal_of_cpu() {
    // An answer each 50 us, for 12 us of CPU time.
    let mut m = Moderator::new("adaptive:cpu=5%".parse().unwrap(), true);
    let line = simulate(&mut m, Load::Answers(1, us(40)), SECOND, us(5)).line;
    let taken = number(&line, "not held: a trial collected too few packets; takes ");
    assert!((20.0..26.0).contains(&taken), "{line}");
    assert!(line.ends_with(" % of a CPU, more than adaptive:cpu=5%"), "{line}");
}

#[test]
fn delay_that_late_timers_force_is_told_beside_the_goal_of_latency() {
    let line = stream("adaptive:latency=250us", 4096, Cost::default(), us(20), us(10_000));
    let [hold, late, delay] =
        ["holding ", "timers are ", "wait for up to "].map(|s| number(&line, s));
    assert!((9_500.0..=10_000.0).contains(&late) && (hold + late - delay).abs() <= 1.0, "{line}");
    assert!(line.ends_with(" us, more than adaptive:latency=250us"), "{line}");
    // An eighth more than the goal is no miss.
    for late in [5, 30] {
        let line = stream("adaptive:latency=250us", 4096, Cost::default(), us(20), us(late));
        assert!(line.contains("holding ") && !line.contains("timers"), "{line}");
    }
}

#[test]
fn a_timer_that_is_late_once_by_10_ms_changes_the_hold_for_a_moment_only() {
    let mut m = Moderator::new("adaptive:latency=250us".parse().unwrap(), true);
    m.set_ring_len(Some(4096));
    let (mut now, mut held) = (Instant::now(), Vec::new());
    // A packet each 10 us; the alarm of one hold rings 10 ms late. Probes have shorter holds, too.
    for round in 0..400 {
        m.irq();
        let late = if round == 100 { us(10_000) } else { us(5) };
        let Rest::Hold { until, .. } = m.rest(now) else {
            m.received(10, 600, BUDGET);
            now += us(100);
            continue;
        };
        held.push((round, until - now));
        m.received(((until + late - now).as_micros() / 10) as usize, 600, 4096);
        now = until + late;
        assert!(m.hold_ended(now));
    }
    let of = |range: std::ops::Range<u32>| {
        let holds = held.iter().filter(move |(round, _)| range.contains(round));
        holds.map(|(_, hold)| *hold).max().unwrap()
    };
    assert!(m.moderated().late <= us(10), "{:?}", m.moderated().late);
    assert!(of(101..400) >= of(80..100).mul_f64(0.75), "{held:?}");
}

#[test]
fn time_of_a_fixed_hold_beyond_the_ring_is_told_with_the_arithmetic() {
    let line = stream("fixed:usecs=1000,frames=65536", 128, Cost::default(), us(2), us(1));
    told_with_the_arithmetic(&line, 1000.0);
    // The number of frames ends the hold, and not the ring.
    let line = stream("fixed:usecs=1000,frames=32", 128, Cost::default(), us(2), us(1));
    assert!(number(&line, "holding ") < 65.0 && line.ends_with(" us"), "{line}");
}

#[test]
fn the_ring_ends_each_hold_of_packets_that_come_after_a_quiet_time() {
    for mode in ["fixed:usecs=10000,frames=65536", "fixed:usecs=10000,frames=64", "dim"] {
        let mut m = Moderator::new(mode.parse().unwrap(), true);
        m.set_ring_len(Some(128));
        let stream = |from: Duration| (1..100_000).map(move |i| from + us(2) * i);
        let quiet = Duration::from_secs(10);
        let times = [us(100_000)].into_iter().chain(stream(quiet)).chain(stream(3 * quiet));
        let seen = simulate(&mut m, Load::At(times.collect()), 4 * quiet, us(5));
        // Half of the ring is full in 128 us.
        let longest = seen.holds.iter().map(|(_, hold)| *hold).max().unwrap();
        assert!(longest <= us(130), "{mode}: {longest:?}: {}", seen.line);
        assert!((250..20_000).contains(&seen.holds.len()), "{mode}: {}", seen.line);
    }
}

#[test]
fn hold_is_told_as_the_ring_ends_it_when_packets_become_many() {
    let mut m = Moderator::new("fixed:usecs=10000,frames=65536".parse().unwrap(), true);
    m.set_ring_len(Some(128));
    let mut now = Instant::now();
    // The first ones come after a quiet time, and the last ones faster than the mean.
    for (packets, is_after_quiet) in [(10, true), (2, false), (3, false), (60, false)] {
        m.irq();
        m.received(packets, 1000, BUDGET);
        let Rest::Hold { until, .. } = m.rest(now) else { panic!("{packets}") };
        m.learned(Cost::default(), now);
        let (moderated, hold) = (m.moderated(), until - now);
        assert_eq!(moderated.hold, Some(hold), "{packets}: {moderated}");
        let line = moderated.to_string();
        let because = "because 1000000 packets a second may come after a quiet time and fill";
        let is_said = moderated.is_short_by_ring && line.contains(because);
        assert_eq!(is_said, is_after_quiet, "{line}");
        now = until;
    }
}

#[test]
fn the_ring_ends_each_hold_but_the_first_when_packets_become_many() {
    let mut m = Moderator::new("fixed:usecs=10000,frames=65536".parse().unwrap(), true);
    m.set_ring_len(Some(128));
    let few = (1..2000_u32).map(|i| us(100) * i);
    let many = (1..100_000).map(|i| us(200_000) + us(2) * i);
    let seen = simulate(&mut m, Load::At(few.chain(many).collect()), 2 * SECOND, us(5));
    // The stream ends at 400 ms, in the middle of a window.
    let is_long = |(at, hold): &&(Duration, Duration)| {
        (us(200_000)..us(399_500)).contains(at) && *hold > us(130)
    };
    let long = seen.holds.iter().filter(is_long).count();
    assert!(long <= 1, "{long} holds: {}", seen.line);
}

#[test]
fn clocks_that_jump_change_the_hold_for_a_moment_only() {
    let hour = Duration::from_secs(3600);
    let load = |time: Duration| every(us(10), time);
    for mode in ["fixed:usecs=250,frames=65536", "dim", "adaptive", "adaptive:cpu=20%"] {
        let moderator = || {
            let mut m = Moderator::new(mode.parse().unwrap(), true);
            m.set_ring_len(Some(1024));
            m
        };
        let usual = simulate(&mut moderator(), load(SECOND), SECOND, us(5)).each();
        // The clock jumps in a trial of `adaptive`, and later.
        for before in [us(7_000), us(300_000)] {
            let (mut m, mut now) = (moderator(), Instant::now() + 2 * hour);
            for jump in [Some(10 * SECOND), Some(hour), None] {
                simulate_from(now, &mut m, load(before), before);
                // Without a jump forward, the clock goes back.
                now = jump.map_or(now - SECOND, |jump| now + jump);
                let seen = simulate_from(now, &mut m, load(SECOND), SECOND);
                now += SECOND;
                assert!(seen.packets > 99_000, "{mode}: {}", seen.line);
                // A disturbed sample may park dim at another profile, as it does net_dim.
                let is_as_usual = mode == "dim" || seen.each() > 0.8 * usual;
                assert!(is_as_usual, "{mode}: {usual} and {}", seen.each());
                assert!(m.moderated().late <= us(30), "{mode}: {}", seen.line);
            }
        }
    }
}

#[test]
fn share_of_a_whole_run_is_told_instead_of_the_recent_one() {
    // Packets come in the first half of the time.
    let mut m = Moderator::new("adaptive:cpu=2%".parse().unwrap(), true);
    m.set_ring_len(Some(4096));
    let seen = simulate(&mut m, every(us(10), SECOND / 2), SECOND, us(1));
    let line = m.moderated().over(seen.packets, seen.irqs).to_string();
    assert!((2.5..2.8).contains(&number(&line, "us; takes ")), "{line}");
    assert!((2.4..2.6).contains(&number(&line, "of a CPU, ")), "{line}");
}

#[test]
fn ring_that_ended_most_holds_of_a_run_is_told_after_a_quiet_end() {
    let mut m = Moderator::new("fixed:usecs=1000,frames=65536".parse().unwrap(), true);
    m.set_ring_len(Some(128));
    let seen = simulate(&mut m, every(us(2), SECOND / 2), SECOND, us(1));
    let moderated = m.moderated();
    assert!(!moderated.is_short_by_ring, "the end is quiet: {moderated}");
    let line = moderated.over(seen.packets, seen.irqs).to_string();
    assert!(
        line.contains(" instead of 1000, because ") && line.contains("the ring of 128"),
        "{line}"
    );
    assert_eq!(moderated.cut_by_ring(), None, "not now");
}

#[test]
fn ring_that_ends_a_fixed_hold_is_a_warning_with_the_arithmetic() {
    let reading = |mode: &str| {
        let mut m = Moderator::new(mode.parse().unwrap(), true);
        m.set_ring_len(Some(128));
        simulate(&mut m, every(us(2), SECOND), SECOND, us(1));
        m.moderated().cut_by_ring()
    };
    let told = reading("fixed:usecs=1000,frames=65536").unwrap();
    assert!(told.starts_with("fixed:usecs=1000,frames=65536: holding "), "{told}");
    told_with_the_arithmetic(&told, 1000.0);
    // The mode chooses its own holds.
    assert_eq!(reading("adaptive:latency=1ms"), None);
}

#[test]
fn a_summary_is_of_the_time_since_the_last_change_of_the_mode() {
    let mut m = Moderator::new(Moderation::default(), true);
    let seen = simulate(&mut m, every(us(20), SECOND), SECOND, us(5));
    assert!(m.moderated().over(seen.packets, seen.irqs).hold.is_some());
    // No decision follows a poll that used its budget.
    m.received(64, 0, 64);
    m.set_mode(Moderation::Napi);
    let moderated = m.moderated().over(seen.packets + 164, seen.irqs + 50);
    assert_eq!((moderated.hold, moderated.packets_per_irq), (None, 2.0));
}

#[test]
fn packets_an_irq_are_told_of_a_queue_of_which_nothing_is_learned() {
    let mut m = Moderator::new(Moderation::default(), true);
    for _ in 0..3 {
        m.irq();
        m.received(4, 240, 64);
    }
    assert_eq!(m.moderated().packets_per_irq, 4.0);
}
