//! Holds of a thread that compares its CPU time with holds and without.

use super::super::super::saving::{CpuReading, Saving};
use super::*;

/// Serves 50,000 packets a second at equal gaps for three seconds, on a machine where a wake-up by
/// the device takes 5 µs, and one by a timer this long; returns the median delay, and the line.
fn served(timer: Duration) -> (Duration, String) {
    let mut m = Moderator::new(Moderation::default(), true);
    let (mut saving, mut seen, start) = (Saving::default(), Seen::default(), Instant::now());
    let (mut now, mut cpu, gap) = (us(0), us(0), us(20));
    while now < us(3_000_000) {
        let mut n = 0;
        while (seen.packets as u32 + 1) * gap <= now && n < BUDGET {
            seen.packets += 1;
            seen.delays.push(now - seen.packets as u32 * gap);
            n += 1;
        }
        m.received(n, 0, BUDGET);
        let packets = seen.packets;
        let cpu_ns = cpu.as_nanos() as u64;
        let read = || CpuReading { cpu_ns, packets, bytes: 60 * packets };
        if let Some(holding) = saving.decide(start + now, m.holds_for_goal(), read) {
            m.set_holding(holding);
        }
        let rest = m.rest(start + now);
        (now, cpu) = match rest {
            Rest::Look => (now + us(1), cpu + us(1)),
            Rest::Hold { until, .. } => ((until - start).max(now) + us(5), cpu + timer),
            Rest::Device => (now.max((seen.packets as u32 + 1) * gap) + us(5), cpu + us(5)),
        };
        if rest != Rest::Look {
            m.irq();
            m.learned(Cost::default(), start + now);
        }
    }
    (seen.delay(50), m.moderated().to_string())
}

#[test]
fn packets_are_held_where_a_timer_s_wake_up_is_cheap_and_not_where_it_costs_more_than_theirs() {
    let (delay, line) = served(us(15));
    assert!(delay > us(100) && line.ends_with("holding 235 us"), "{delay:?}: {line}");
    let (delay, line) = served(us(100));
    assert!(delay < us(20) && line.ends_with("not held: holds cost CPU time"), "{delay:?}: {line}");
}
