//! Tests of the moderator with loads for which it was not tuned: steps of the rate, and captured
//! TCP.

use super::*;

/// Gaps in ns between frames of 1514 bytes of a bulk TCP connection (iperf3) over veth, behind tbf
/// at 1 Gbit/s with bursts of 64 KB: the first ones of the lab's `arrivals = "tcp"`.
#[rustfmt::skip]
const TCP: [u64; 224] = [
    1452, 1282, 1412, 1262, 1382, 1632, 1543, 1372, 1502, 1242, 18998, 2955, 1512, 1883, 1251, 1292,
    1412, 1433, 1452, 1642, 1352, 1352, 1623, 1201, 1563, 1472, 1162, 1552, 1292, 1452, 1342, 1462,
    1553, 1312, 306396, 20731, 1492, 1282, 1412, 1192, 1101, 1412, 1563, 1682, 1513, 1342, 1412, 1442,
    1282, 1582, 1252, 1192, 1452, 1152, 1442, 1272, 1402, 1492, 1352, 1132, 1532, 1322, 1532, 1242,
    1202, 1342, 1262, 1241, 1493, 507095, 3685, 2053, 1443, 1492, 1682, 1312, 1633, 1392, 1272, 1682,
    1372, 1573, 1332, 1342, 1562, 1412, 1422, 1773, 1472, 1632, 1753, 1252, 2664, 1492, 1492, 1703,
    1492, 1452, 1783, 1522, 1552, 1733, 1562, 1482, 1713, 1552, 1613, 1192, 1352, 1532, 1472, 1652,
    1493, 1542, 1843, 588516, 4487, 2413, 2204, 1592, 1873, 1422, 1422, 1412, 1593, 1722, 1633, 1802,
    1793, 1672, 1503, 1672, 1452, 1503, 1682, 1853, 1742, 1823, 1332, 1372, 1422, 1793, 1422, 1372,
    1723, 1682, 1482, 1833, 1633, 1852, 1783, 1873, 1502, 1572, 1362, 1172, 1442, 1192, 1402, 1212,
    1292, 1342, 1152, 1352, 1712, 1162, 1342, 1202, 1181, 267298, 19029, 1863, 1522, 1542, 2043, 1562,
    1523, 2103, 2534, 1502, 1502, 1212, 1122, 1241, 1062, 1042, 1322, 1071, 1082, 1262, 1131, 1402,
    1182, 1302, 1022, 1392, 1862, 1843, 1833, 1983, 465633, 5358, 2524, 1382, 1412, 2624, 1733, 1752,
    1472, 1362, 1813, 1502, 1803, 1613, 2453, 1973, 1793, 1502, 1773, 1552, 1292, 1552, 1392, 1613,
];

/// Times at which packets arrive, and the places of those that come alone after a quiet time.
#[derive(Default)]
struct Script {
    at: Vec<Duration>,
    alone: Vec<usize>,
}

impl Script {
    fn end(&self) -> Duration {
        self.at.last().copied().unwrap_or_default()
    }

    /// Adds a packet each `gap` for `time`.
    fn stream(mut self, gap: Duration, time: Duration) -> Script {
        let (from, packets) = (self.end(), time.as_nanos() / gap.as_nanos());
        self.at.extend((1..=packets as u32).map(|i| from + gap * i));
        self
    }

    /// Adds a packet with 50 ms of nothing before it and after it.
    fn alone(mut self) -> Script {
        self.alone.push(self.at.len());
        self.at.push(self.end() + us(50_000));
        self.alone.push(self.at.len());
        self.at.push(self.end() + us(50_000));
        self
    }

    /// Adds the captured arrivals, over and over for `time`.
    fn tcp(mut self, time: Duration) -> Script {
        let until = self.end() + time;
        for gap in TCP.iter().cycle() {
            let at = self.end() + Duration::from_nanos(*gap);
            if at > until {
                break;
            }
            self.at.push(at);
        }
        self
    }

    fn serve(&self, mode: &str, cost: Cost) -> Seen {
        let mut m = Moderator::new(mode.parse().unwrap(), true);
        m.set_ring_len(Some(4096));
        simulate_at(cost, &mut m, Load::At(self.at.clone()), self.end() + us(1000), us(5))
    }
}

/// Returns the CPU time of a run by the costs that the moderator was told.
fn cpu_ns(seen: &Seen, cost: Cost) -> f64 {
    seen.irqs as f64 * cost.wake_ns + seen.packets as f64 * cost.packet_ns
}

#[test]
fn steps_and_captured_tcp_take_no_more_cpu_than_fixed_within_the_goal() {
    let (slow, fast) = (us(100), us(10));
    let steps = Script::default().stream(slow, SECOND / 5).stream(fast, SECOND / 5);
    let steps = steps.stream(slow, SECOND / 5).alone().stream(fast, SECOND / 5);
    let steps = steps.stream(slow, SECOND / 5).stream(fast, SECOND / 5).alone();
    let tcp = Script::default().tcp(SECOND).alone().tcp(SECOND);
    for (name, script) in [("steps", steps), ("tcp", tcp)] {
        let cost = Cost::default();
        let [fixed, mut adaptive] = ["fixed", "adaptive"].map(|mode| script.serve(mode, cost));
        let [by_fixed, by_adaptive] = [&fixed, &adaptive].map(|seen| cpu_ns(seen, cost) / 1e6);
        println!("{name}: {by_adaptive:.1} ms of CPU, fixed {by_fixed:.1}");
        assert!(by_adaptive <= by_fixed, "{name}: {by_adaptive:.1} ms, fixed {by_fixed:.1}");
        assert_eq!(adaptive.packets, script.at.len() as u64, "{name}");
        for alone in &script.alone {
            assert!(adaptive.delays[*alone] <= us(11), "{name}: {:?}", adaptive.delays[*alone]);
        }
        // The goal is 250 us, a timer is 5 us late, and a wake-up takes 10 us.
        assert!(adaptive.delay(99) <= us(265), "{name}: {:?}", adaptive.delay(99));
    }
}

/// Sends as a program that sleeps for a millisecond and then sends what is due. A hold behind its
/// packets would find nothing, and end with a wake-up of its own.
#[test]
fn bursts_that_a_hold_does_not_join_take_hardly_more_wake_ups_than_without_holds() {
    for (size, gap) in [(12, us(1000)), (12, us(700)), (40, us(500))] {
        let bursts = (1..2000).map(|i| gap * i);
        let at = bursts.flat_map(|at| (0..size).map(move |i| at + us(1) * i / 2)).collect();
        let script = Script { at, alone: Vec::new() };
        let [napi, adaptive] = ["napi", "adaptive"].map(|mode| {
            let seen = script.serve(mode, Cost::default());
            println!("{size} packets each {gap:?}: {} irqs, {}", seen.irqs, seen.line);
            seen.irqs
        });
        assert!(5 * adaptive <= 6 * napi, "{size}, {gap:?}: {adaptive} irqs, napi {napi}");
    }
}

#[test]
fn bursts_after_an_even_stream_are_no_longer_held_within_some_seconds() {
    let even = Script::default().stream(us(100), 5 * SECOND);
    let start = even.end();
    let bursts =
        (1..=10_000).flat_map(|i| (0..12).map(move |j| start + us(1000) * i + us(1) * j / 2));
    let script = Script { at: even.at.iter().copied().chain(bursts).collect(), alone: Vec::new() };
    let seen = script.serve("adaptive", Cost::default());
    let late = seen.holds.iter().filter(|(at, _)| *at > start + 7 * SECOND).count();
    // There are three seconds of bursts then, of which each had a hold before.
    assert!(late < 300, "{late} holds: {}", seen.line);
}

#[test]
fn hold_follows_a_tenfold_rate_up_and_down_within_32_rounds() {
    // At ten times the rate a cheap wake-up allows a shorter hold, and a goal of CPU requires a
    // longer one.
    for (mode, wake_ns, gap) in
        [("adaptive", 2000.0, us(10)), ("adaptive:cpu=20%", 12_000.0, us(30))]
    {
        let (cost, step) = (Cost { wake_ns, packet_ns: 500.0 }, SECOND / 5);
        let script = Script::default().stream(gap, step).stream(gap / 10, step).stream(gap, step);
        let seen = script.serve(mode, cost);
        let Moderation::Adaptive(goal) = mode.parse().unwrap() else { panic!("{mode}") };
        for (i, gap) in (0..).zip([gap, gap / 10, gap]) {
            let of_step = |at: Duration| at >= step * i && at < step * (i + 1);
            let holds = seen.holds.iter().filter(|(at, _)| of_step(*at)).map(|(_, hold)| *hold);
            let wanted = target(goal, 1.0 / gap.as_nanos() as f64, cost, us(5));
            // A hold that differs from the wanted one by an eighth is not changed, and those of a
            // probe are a quarter as long.
            let late = holds.skip(32).find(|hold| {
                let is_short = (*hold == HOLD_MIN && wanted < 4 * HOLD_MIN)
                    || (4 * *hold).abs_diff(wanted) <= wanted / 6;
                hold.abs_diff(wanted) > wanted / 6 && !is_short
            });
            assert_eq!(late, None, "{mode}: {gap:?}, wanted {wanted:?}");
        }
        assert!(seen.holds.len() > 3 * 500, "{mode}: {}", seen.holds.len());
    }
}
