//! Tests of the moderator with simulated devices: streams, bursts, and peers that wait for an
//! answer.

use super::super::moderated::poor_use;
use super::*;

/// A hold of 50 µs, a fifth of 250 µs.
const TIME: Duration = Duration::from_micros(50);
const BUDGET: usize = 64;

mod blocked;
mod loads;
mod rounds;
mod saving;
mod unmet;
mod waiting;

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// Arrivals of packets.
enum Load {
    /// Packets that arrive at these times.
    At(Vec<Duration>),
    /// So many packets at once, each time this long after the last ones were received.
    Answers(u32, Duration),
    /// The next packet of each peer, which sends one this long after its last one was received.
    Peers(Vec<Duration>, Duration),
    /// The same, in the first half of each of these times, in milliseconds.
    Pausing(Vec<Duration>, Duration, u32),
}

/// Packets as they were received, and their delays.
#[derive(Debug, Default)]
struct Seen {
    packets: u64,
    irqs: u64,
    delays: Vec<Duration>,
    most_at_once: u32,
    /// The begin and the length of each hold.
    holds: Vec<(Duration, Duration)>,
    line: String,
}

impl Seen {
    fn each(&self) -> f64 {
        self.packets as f64 / self.irqs as f64
    }

    fn delay(&mut self, percentile: usize) -> Duration {
        self.delays.sort_unstable();
        self.delays[(self.delays.len() - 1) * percentile / 100]
    }
}

/// Lets a moderator serve a load for `time`: a wake-up by the device takes 10 µs, a timer is late
/// by `late`, a poll takes 1 µs.
fn simulate(m: &mut Moderator, load: Load, time: Duration, late: Duration) -> Seen {
    simulate_at(Cost::default(), m, load, time, late)
}

/// Works as [`simulate`], with another cost of a wake-up and of a packet.
fn simulate_at(cost: Cost, m: &mut Moderator, load: Load, time: Duration, late: Duration) -> Seen {
    simulate_all(Instant::now(), cost, m, load, time, late)
}

/// Works as [`simulate`] with timers that are 5 µs late, from `start` on.
fn simulate_from(start: Instant, m: &mut Moderator, load: Load, time: Duration) -> Seen {
    simulate_all(start, Cost::default(), m, load, time, us(5))
}

fn simulate_all(
    start: Instant,
    cost: Cost,
    m: &mut Moderator,
    mut load: Load,
    time: Duration,
    late: Duration,
) -> Seen {
    let mut seen = Seen::default();
    let (mut now, mut at, mut next) = (Duration::ZERO, 0, us(100));
    while now < time {
        let mut n = 0;
        match &mut load {
            Load::At(times) => {
                while at < times.len() && times[at] <= now && n < BUDGET {
                    seen.delays.push(now - times[at]);
                    (at, n) = (at + 1, n + 1);
                }
                next = times.get(at).copied().unwrap_or(time);
            }
            Load::Peers(due, trip) => {
                for at in due.iter_mut().filter(|at| **at <= now).take(BUDGET) {
                    seen.delays.push(now - *at);
                    (*at, n) = (now + *trip, n + 1);
                }
                next = due.iter().min().copied().unwrap_or(time);
            }
            Load::Pausing(due, trip, ms) => {
                let peers = due.iter_mut().zip(0_u64..).filter(|(at, _)| **at <= now);
                for (at, peer) in peers.take(BUDGET) {
                    let again = now + *trip;
                    let next_burst = us(1000) * (again.as_millis() as u32 / *ms * *ms + *ms);
                    let is_pause = again.as_millis() as u32 % *ms >= *ms / 2;
                    (*at, n) = (if is_pause { next_burst + us(20 * peer) } else { again }, n + 1);
                }
                next = due.iter().min().copied().unwrap_or(time);
            }
            Load::Answers(together, trip) => {
                if next <= now {
                    n = *together as usize;
                    seen.delays.push(now - next);
                    next = now + *trip;
                }
            }
        }
        seen.packets += n as u64;
        seen.most_at_once = seen.most_at_once.max(n as u32);
        m.received(n, 100 * n as u64, BUDGET);
        match m.rest(start + now) {
            Rest::Look => now += us(1),
            Rest::Hold { until, spin } => {
                seen.holds.push((now, until - (start + now)));
                let woken = (until - start).max(now) + if spin { us(0) } else { late };
                (now, seen.irqs) = (woken.max(now + us(1)), seen.irqs + u64::from(!spin));
                m.irq();
                m.learned(cost, start + now);
            }
            Rest::Device => {
                (now, seen.irqs) = ((next + us(10)).max(now + us(1)), seen.irqs + 1);
                m.irq();
                m.learned(cost, start + now);
            }
        }
    }
    seen.line = m.moderated().to_string();
    seen
}

fn every(gap: Duration, time: Duration) -> Load {
    Load::At((1..).map(|i| gap * i).take_while(|at| *at < time).collect())
}

/// Returns a load whose gaps have an exponential distribution, by a fixed seed.
fn poisson(mean: Duration, time: Duration) -> Load {
    let (mut seed, mut at, mut times) = (0x2545_f491_4f6c_dd1d_u64, Duration::ZERO, Vec::new());
    while at < time {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let even = (seed >> 11) as f64 / (1_u64 << 53) as f64;
        at += mean.mul_f64(-(1.0 - even).ln());
        times.push(at);
    }
    Load::At(times)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_stream_is_held_as_long_as_the_goal_allows_whatever_its_arrivals() {
    for (gap, least) in [(105, 2.0), (100, 2.1), (20, 11.0), (5, 40.0)] {
        for load in [every(us(gap), SECOND), poisson(us(gap), SECOND)] {
            let mut m = Moderator::new(Moderation::default(), true);
            m.set_ring_len(Some(1024));
            let mut seen = simulate(&mut m, load, SECOND, us(5));
            // A tenth is for packets that arrive singly while the rate is measured, and for the
            // first probes.
            assert!(seen.each() > 0.85 * least, "{gap} us: {} an irq: {}", seen.each(), seen.line);
            assert!(seen.delay(99) <= us(265), "{gap} us: {:?}: {}", seen.delay(99), seen.line);
            assert!(seen.line.contains("holding 2"), "{}", seen.line);
        }
    }
}

#[test]
fn packets_are_held_only_if_that_gathers_more_than_the_device_does() {
    let line = |mode: &str, ring: Option<u32>, gap, bytes| {
        let mut m = Moderator::new(mode.parse().unwrap(), true);
        m.set_ring_len(ring);
        m.set_gathers(Gathers { time: us(1_000), bytes });
        simulate(&mut m, every(gap, SECOND), SECOND, us(5)).line
    };
    let reason = "not held: the device itself gathers them for up to 1000 us";
    for (mode, holds) in [
        ("adaptive:latency=250us", false),
        ("adaptive:latency=5ms", true),
        ("fixed:usecs=200,frames=64", false),
        ("fixed:usecs=2000,frames=64", true),
        ("dim", false),
    ] {
        let line = line(mode, Some(4096), us(100), 1 << 17);
        assert_eq!(line.contains("holding "), holds, "{mode}: {line}");
        assert_eq!(line.contains(reason), !holds, "{mode}: {line}");
    }
    // A ring that is full sooner ends a hold before the device signals.
    assert!(line("fixed:usecs=2000,frames=1024", None, us(5), 1 << 17).contains(reason));
    // Blocks that are full sooner than after the time are signalled at once: these in 24 us.
    assert!(line("adaptive:latency=250us", Some(4096), us(20), 120).contains("holding 2"));
    assert!(line("adaptive:latency=250us", Some(4096), us(50_000), 1 << 17).contains("too rarely"));
}

#[test]
fn packets_that_wait_for_their_time_gather_as_long_as_the_mode_holds_and_waking_costs() {
    let gap = |mode: &str, wake_ns: f64| {
        let mut m = Moderator::new(mode.parse().unwrap(), false);
        m.learned(Cost { wake_ns, packet_ns: 100.0 }, Instant::now());
        m.gap().as_micros()
    };
    for (mode, cheap, dear) in [
        ("interrupt", 0, 0),
        ("napi", 0, 0),
        ("busy", 0, 0),
        ("fixed:usecs=60,frames=8", 20, 60),
        ("dim", 20, 250),
        ("adaptive:latency=150us", 20, 141),
        ("adaptive:cpu=10%", 20, 250),
    ] {
        assert_eq!((gap(mode, 2_000.0), gap(mode, 40_000.0)), (cheap, dear), "{mode}");
    }
}

#[test]
fn late_timers_shorten_the_hold_of_packets_that_would_find_the_thread_awake() {
    // A thread that gets the CPU late after a timer gets it as late after a device's wake-up:
    // holding does not add to this, for a packet that would have to wake the thread.
    let longest = us(250) * 16 / 17;
    for (gap, least, most) in [
        (us(100), longest - us(8), longest),
        (us(20), longest - us(24), longest - us(5)),
        (us(2), longest * 3 / 4 - us(1), longest - us(30)),
    ] {
        let mut m = Moderator::new(Moderation::default(), true);
        m.set_ring_len(Some(4096));
        let mut seen = simulate(&mut m, every(gap, SECOND), SECOND, us(60));
        assert!(seen.delay(99) <= us(250 + 60 + 5), "{gap:?}: {:?}", seen.delay(99));
        let hold = m.moderated().cut.wanted;
        assert!(hold >= least && hold <= most, "{gap:?}: {:?}", m.moderated());
    }
    // A thread that is late by 10 ms misses every goal, but nothing fails.
    let mut m = Moderator::new(Moderation::default(), true);
    let seen = simulate(&mut m, every(us(20), SECOND), SECOND, us(10_000));
    assert!(seen.packets > 45_000, "{}", seen.line);
}

#[test]
fn no_hold_of_a_probe_is_too_short_for_a_packet() {
    for (gap, shortest) in [(us(100), us(234)), (us(50), us(58))] {
        let mut m = Moderator::new(Moderation::default(), true);
        m.set_ring_len(Some(1024));
        let seen = simulate(&mut m, every(gap, SECOND), SECOND, us(5));
        let holds = seen.holds.iter().map(|(_, hold)| *hold);
        let least = holds.clone().min().unwrap();
        assert!((shortest..shortest + us(2)).contains(&least), "{gap:?}: {least:?}");
        assert!(holds.count() > 2500, "{gap:?}: {}", seen.line);
    }
}

#[test]
fn hold_is_over_when_an_alarm_ends_its_last_quarter() {
    for (left, is_over) in [(0, true), (25, true), (26, false), (100, false)] {
        let mut m = Moderator::new("fixed:usecs=100".parse().unwrap(), true);
        m.received(10, 0, BUDGET);
        let Rest::Hold { until, .. } = m.rest(Instant::now()) else { panic!("packets came") };
        assert_eq!(m.hold_ended(until - us(left)), is_over, "{left} us are left");
        assert_eq!(m.moderated().late, Duration::ZERO);
        assert_eq!(m.holds.time_ns, 1000 * (100 - left), "only the time of the hold counts");
    }
}

#[test]
fn work_after_the_end_of_a_hold_is_not_lateness_if_the_end_is_recorded() {
    let late = |records: bool| {
        let mut m = Moderator::new("fixed:usecs=100".parse().unwrap(), true);
        let mut now = Instant::now();
        for _ in 0..50 {
            m.received(10, 0, BUDGET);
            let Rest::Hold { until, .. } = m.rest(now) else { panic!("packets came") };
            now = until + us(5);
            assert!(!records || m.hold_ended(now));
            now += us(500);
        }
        m.moderated().late
    };
    assert!(late(true) <= us(5), "{:?}", late(true));
    assert!(late(false) > us(100), "{:?}", late(false));
    // A sleep that ended before the hold was not late.
    let mut m = Moderator::new("fixed:usecs=100".parse().unwrap(), true);
    m.received(10, 0, BUDGET);
    let now = Instant::now();
    assert!(is_held(&m.rest(now)) && !m.hold_ended(now + us(20)) && !m.hold_ended(now + us(500)));
}

#[test]
fn a_peer_that_waits_for_each_answer_is_hardly_ever_held() {
    for trip in [40, 100] {
        let mut m = Moderator::new(Moderation::default(), true);
        let mut seen = simulate(&mut m, Load::Answers(1, us(trip)), 3 * SECOND, us(5));
        assert!(seen.delay(99) <= us(11), "{trip}: {:?}", seen.delay(99));
        let got = seen.packets as f64 * (trip as f64 + 10.0) / 3e6;
        assert!(got > 0.95, "{trip}: {got} of the answers: {}", seen.line);
    }
}

#[test]
fn peers_that_wait_for_several_answers_are_held_for_no_more_than_their_round_trip() {
    for (together, trip) in [(2, 40), (8, 40), (32, 40)] {
        let mut m = Moderator::new(Moderation::default(), true);
        let load = Load::Answers(together, us(trip));
        let mut seen = simulate(&mut m, load, 3 * SECOND, us(5));
        assert!(seen.delay(90) <= us(90), "{together}: {:?}: {}", seen.delay(90), seen.line);
        let got = seen.packets as f64 / f64::from(together) * (trip as f64 + 10.0) / 3e6;
        assert!(got > 0.45, "{together}: {got} of the answers: {}", seen.line);
    }
}

#[test]
fn a_packet_that_comes_alone_is_never_held_in_any_mode() {
    for text in ["interrupt", "napi", "fixed", "dim", "adaptive", "adaptive:cpu=20%", "busy"] {
        let mut m = Moderator::new(text.parse().unwrap(), true);
        let mut seen = simulate(&mut m, every(us(2000), SECOND), SECOND, us(5));
        assert!(seen.delay(100) <= us(10), "{text}: {:?}", seen.delay(100));
    }
}

#[test]
fn a_burst_is_held_and_the_packet_after_quiet_is_not() {
    let burst = |n: u64| (0..400).map(move |i| us(20_000 * n + 20 * i));
    let firsts: Vec<usize> = (0..40).map(|n| 400 * n).collect();
    let mut m = Moderator::new(Moderation::default(), true);
    let load = Load::At((1..41).flat_map(burst).collect());
    let seen = simulate(&mut m, load, SECOND, us(5));
    assert!(seen.each() > 5.0, "{} an irq", seen.each());
    for first in firsts {
        assert!(seen.delays[first] <= us(11), "burst {first}: {:?}", seen.delays[first]);
    }
}

#[test]
fn a_ring_bounds_every_hold_at_the_rate_of_the_moment() {
    // 1 packet in 2 us would be 125 in 250 us, and 5000 in 10 ms.
    for text in ["adaptive", "adaptive:latency=10ms", "fixed:usecs=10000,frames=65536", "dim"] {
        let mut m = Moderator::new(text.parse().unwrap(), true);
        m.set_ring_len(Some(128));
        let seen = simulate(&mut m, every(us(2), SECOND), SECOND, us(5));
        let (rest, line) = (m.moderated().hold.unwrap_or_default(), &seen.line);
        assert!(rest <= us(130), "{text}: {rest:?}, {line}");
        assert!(seen.irqs > 5000, "{text}: {}", seen.irqs);
    }
}

#[test]
fn a_goal_of_cpu_holds_just_long_enough() {
    // 12 us a wake-up: of 20 %, 5 % are for 100,000 packets of 0.5 us, and the rest allows 12,500
    // wake-ups.
    let mut m = Moderator::new("adaptive:cpu=20%".parse().unwrap(), true);
    m.set_ring_len(Some(1024));
    let seen = simulate(&mut m, every(us(10), SECOND), SECOND, us(1));
    assert!((11_000..14_500).contains(&seen.irqs), "{}: {}", seen.irqs, seen.line);
}

#[test]
fn a_dearer_wake_up_brings_more_packets_to_each_irq() {
    // The time of register accesses at an irq is a part of its cost.
    for (mode, goal_us) in [("adaptive:latency=10ms", 10_050), ("adaptive:cpu=20%", 10_050)] {
        let each = [8_000.0, 40_000.0, 120_000.0].map(|wake_ns| {
            let mut m = Moderator::new(mode.parse().unwrap(), true);
            m.set_ring_len(Some(4096));
            let cost = Cost { wake_ns, packet_ns: 1000.0 };
            let mut seen = simulate_at(cost, &mut m, every(us(10), SECOND), SECOND, us(5));
            assert!(seen.delay(99) <= us(goal_us), "{mode}: {:?}: {}", seen.delay(99), seen.line);
            seen.each()
        });
        println!("{mode}: {each:?} packets an irq");
        assert!(each[1] > 2.0 * each[0] && each[2] > 2.0 * each[1], "{mode}: {each:?}");
    }
}

#[test]
fn the_hold_does_not_move_with_noise() {
    let mut m = Moderator::new(Moderation::default(), true);
    m.set_ring_len(Some(1024));
    let start = Instant::now();
    let (mut now, mut holds) = (start, Vec::new());
    let full = us(250) * 16 / 17;
    let mut passed = full;
    for i in 0..4000 {
        let packets = if passed == full { 10 } else { 2 };
        m.received(packets + i % 2, 0, BUDGET);
        passed = full;
        if let Rest::Hold { until, .. } = m.rest(now) {
            passed = until - now;
            holds.push(passed);
        }
        now += passed;
    }
    // The holds of probes are a quarter as long, and few.
    let short = holds.iter().filter(|hold| **hold == full / 4).count();
    assert!((100..1000).contains(&short), "{short} of {}", holds.len());
    holds.retain(|hold| *hold != full / 4);
    holds.dedup();
    assert_eq!(holds, [full]);
}

#[test]
fn a_hold_that_is_not_slept_is_no_round_of_a_trial() {
    // A peer that waits would fail a trial. Beside a busy queue its turns follow each other at
    // once.
    let turns = |forgets: bool| {
        let mut m = Moderator::new(Moderation::default(), true);
        let mut now = Instant::now();
        let mut turn = |m: &mut Moderator, packets, passed| {
            m.received(packets, 0, BUDGET);
            now += passed;
            let rest = m.rest(now);
            if forgets {
                m.forget_hold();
            }
            rest
        };
        for i in 0..1000 {
            turn(&mut m, usize::from(i % 4 == 0), us(3));
        }
        (m.moderated().over(40, 1), format!("{:?}", m.adaptive))
    };
    let (slept, forgotten) = (turns(false), turns(true));
    assert!(slept.1.contains("phase: Held"), "{slept:?}");
    assert!(
        forgotten.1.contains("phase: Free") && forgotten.1.contains("failed: false"),
        "{forgotten:?}"
    );
    assert_ne!(slept.0.hold, None);
    assert!(forgotten.0.holds.count <= 1, "{forgotten:?}");
}

/// Polls every `every`, with the next of `found` packets each; returns the decision after each
/// poll.
fn looks(m: &mut Moderator, start: Instant, every: Duration, found: &[usize]) -> Vec<Rest> {
    let look = |(i, &packets): (usize, &usize)| {
        m.received(packets, 0, BUDGET);
        m.rest(start + every * i as u32)
    };
    found.iter().enumerate().map(look).collect()
}

fn is_held(rest: &Rest) -> bool {
    matches!(rest, Rest::Hold { .. })
}

#[test]
fn hold_that_would_overflow_the_ring_is_spent_on_the_cpu() {
    let start = Instant::now();
    let last = |ring, found: usize, every| {
        let mut m = Moderator::new(Moderation::default(), true);
        m.set_ring_len(Some(ring));
        let rests = looks(&mut m, start, every, &[found; 120]);
        let Rest::Hold { until, spin } = rests[119] else { panic!("{rests:?}") };
        (until - (start + 119 * every), spin)
    };
    let near = |(hold, spin): (Duration, bool), us: f64, spins: bool| {
        assert!((hold.as_secs_f64() * 1e6 - us).abs() < 1.0 && spin == spins, "{hold:?} {spin}");
    };
    // 60 packets in 10 us give 128 in 21 us. 38 give 190 of 256 in 50 us. 16 in 1 us give 512 of
    // 1024 in 32 us.
    near(last(256, 60, TIME / 5), 21.3, true);
    near(last(256, 38, TIME / 5), 50.0, false);
    near(last(1024, 16, us(1)), 32.0, false);
    // 10 packets in 50 us fill a ring of 2, which must not keep a CPU busy.
    assert!(!last(2, 10, TIME).1);
}

#[test]
fn a_queue_that_has_more_is_looked_at_again() {
    let mut m = Moderator::new(Moderation::default(), true);
    let rests = looks(&mut m, Instant::now(), TIME, &[BUDGET; 10]);
    assert_eq!(rests, [Rest::Look; 10]);
}

#[test]
fn arrival_rate_is_not_the_rate_of_draining_a_backlog() {
    let mut m = Moderator::new(Moderation::default(), true);
    m.set_ring_len(Some(1024));
    let mut now = Instant::now();
    looks(&mut m, now, TIME, &[1]);
    // 10 packets in each microsecond: after a sleep of 50 us, receiving takes 60 us more; 1098
    // packets in all.
    for _ in 0..5 {
        now += TIME;
        let mut found = [BUDGET; 18];
        found[17] = 10;
        let rests = looks(&mut m, now, TIME / 15, &found);
        let Rest::Hold { until, .. } = rests[17] else { panic!("{rests:?}") };
        let hold = until - (now + TIME / 15 * 17);
        assert!((us(45)..us(60)).contains(&hold), "{hold:?}");
        now += TIME / 15 * 17;
    }
}

#[test]
fn packets_that_wait_in_no_device_are_never_held() {
    for text in ["fixed", "dim", "adaptive", "napi", "interrupt"] {
        let mut m = Moderator::new(text.parse().unwrap(), false);
        assert_eq!(looks(&mut m, Instant::now(), TIME, &[10, 0]), [Rest::Look, Rest::Device]);
        assert!(m.moderated().to_string().ends_with("n/a, no device queues its packets"));
    }
}

#[test]
fn each_plain_mode_does_what_it_says() {
    let rests = |text: &str| {
        let mut m = Moderator::new(text.parse().unwrap(), true);
        looks(&mut m, Instant::now(), us(100), &[10, 10, 0])
    };
    assert_eq!(rests("interrupt"), [Rest::Device; 3]);
    assert_eq!(rests("napi"), [Rest::Look, Rest::Look, Rest::Device]);
    assert_eq!(rests("busy"), [Rest::Look; 3]);
    let fixed = rests("fixed:usecs=70,frames=5");
    assert!(is_held(&fixed[0]) && is_held(&fixed[1]) && fixed[2] == Rest::Device, "{fixed:?}");
    let mut m = Moderator::new("fixed:usecs=70,frames=5".parse().unwrap(), true);
    looks(&mut m, Instant::now(), us(100), &[10, 10]);
    assert_eq!(m.moderated().hold, Some(us(50)), "5 come in 50 us");
}

#[test]
fn quiet_queue_is_armed_in_a_mode_that_has_no_longest_delay_of_its_own() {
    for gathers in [true, false] {
        let patience = |mode: &str| Moderator::new(mode.parse().unwrap(), gathers).patience();
        let cpu = ["adaptive:cpu=1%", "adaptive:cpu=100%"];
        // The last ones never hold.
        let short = ["fixed:usecs=19", "adaptive:latency=10us"];
        for mode in ["interrupt", "napi", "busy"].into_iter().chain(cpu).chain(short) {
            let expected = (!gathers).then_some(us(250));
            assert_eq!(patience(mode), expected, "{mode}, gathers: {gathers}");
        }
        let times = ["fixed:usecs=70", "dim", "adaptive:latency=1ms"].map(patience);
        assert_eq!(times, [us(70), us(250), us(1000) * 16 / 17].map(Some), "gathers: {gathers}");
    }
}

#[test]
fn a_change_of_mode_takes_effect_at_the_next_decision() {
    let mut m = Moderator::new(Moderation::default(), true);
    let now = Instant::now();
    assert!(is_held(&looks(&mut m, now, TIME, &[20, 20])[1]));
    m.set_mode(Moderation::Napi);
    assert_eq!(looks(&mut m, now + 2 * TIME, TIME, &[20, 0]), [Rest::Look, Rest::Device]);
    m.set_mode(Moderation::default());
    assert!(!is_held(&looks(&mut m, now + 4 * TIME, TIME, &[20])[0]), "it begins anew");
}

#[test]
fn moderator_explains_its_decision_in_a_line() {
    let moderated = Moderated {
        hold: Some(us(180)),
        gathers: true,
        packets_per_irq: 8.24,
        waking_percent: 61.2,
        why: Why::Held,
        ..Moderated::default()
    };
    let line = "8.2 packets an irq, wake-ups took 61 % of the CPU time: holding 180 us";
    assert_eq!(moderated.to_string(), line);
}

#[test]
fn a_whole_run_is_explained_by_its_mean_and_not_by_its_last_moments() {
    let mut m = Moderator::new(Moderation::default(), true);
    let seen = simulate(&mut m, every(us(20), 4 * SECOND), 5 * SECOND, us(5));
    assert_eq!(seen.line, "no packets arrived", "quiet at its end");
    let line = m.moderated().over(seen.packets, seen.irqs).to_string();
    // The goal is 250 us, and the holds of probes are a quarter as long.
    let near = ["holding 22", "holding 23"].iter().any(|hold| line.contains(hold));
    assert!(line.starts_with("11.") && near, "{line}");
    // A port that always has packets is polled without end; a port that woke its worker once is not
    // reported as too thin.
    let line = |packets, irqs| m.moderated().over(packets, irqs);
    assert_eq!(line(1 << 20, 0).to_string(), "no irq: no packet woke a worker");
    assert_eq!(line(0, 7).to_string(), "no packets arrived");
    let once = Moderated { hold: None, ..line(1 << 20, 1) }.to_string();
    assert!(once.ends_with("of the CPU time: not held: wake-ups take little CPU time"), "{once}");
}

#[test]
fn few_packets_to_many_irqs_are_poor_use_and_the_rule_is_told() {
    let poor = poor_use(9600, 9500, SECOND).unwrap();
    assert!(
        poor.contains("1.0 packets an irq at 9500 irqs a second (rule: fewer than 2"),
        "{poor}"
    );
    assert_eq!(poor_use(900, 900, SECOND), None);
    assert_eq!(poor_use(19_000, 9500, SECOND), None);
    assert_eq!(poor_use(0, 0, Duration::ZERO), None);
}
