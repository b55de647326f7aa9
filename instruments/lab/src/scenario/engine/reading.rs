//! Counts of a side so far, and the figures of a window: the differences of two readings.

use super::path::Gauge;
use super::turning::Done;
use crate::scenario::{Figure, figures, joined, pool_figures};
use crate::window::Window;

/// The figures of a window, without those of the pool and the ports.
const OWN: &[Figure] = figures! {
    "offered" "packets" "Packets that the source made, or the wire had.";
    "due" "packets" "Packets whose time had come; 0 without a rate.";
    "unsent" "packets" "Due and not offered: what the path held up, or the source did not come to.";
    "overruns" "packets" "Offered packets that were lost, by any of these causes.";
    "overruns_ring_full" "packets" "Lost: no buffer was posted, and the pool had frames.";
    "overruns_no_frame" "packets" "Lost: the pool had no frame to post.";
    "overruns_wire_late" "packets" "Lost, of bursts for which the wire's own thread was late.";
    "overruns_fabric_full" "packets" "Lost: the receiver had them, and the ring to the other process was full.";
    "late" "packets" "Packets, lost or not, of bursts for which the wire's own thread was late.";
    "late_ns" "ns" "The latest that a sleep for the next burst ended.";
    "buffer_ns" "ns" "`buffer_ticks`, by the rate of the ticks in this window.";
    "total_ticks" "TSC ticks" "CPU time of the measured threads, in ticks.";
    "asleep_ns" "ns" "How long threads slept, until they were on a CPU again.";
    "tick_hz" "ticks/s" "Rate of the ticks in this window.";
    "copied_bytes" "bytes" "Bytes of packets that ports of this process copied.";
    "far_packets" "packets" "Packets that the other process saw, those on their way at the end among them.";
    "far_verified" "packets" "Of these, those of which it checked every byte.";
    "far_lost" "packets" "Packets whose number it missed: lost once they had been numbered.";
    "far_corrupted" "packets" "Packets that were not as they were sent: the window is void then.";
    "far_copied_out" "packets" "Packets that it copied out to give their slots back.";
    "far_cpu_ns" "ns" "CPU time of the other process: it is no cost of the side's.";
    "receipt_count" "packets" "Packets whose receipt latency is known.";
    "receipt_p50_ns" "ns" "From a packet's arrival, when the generator made its batch or the wire wrote it, until the other process looked at it, median; of the first 262,144 of a window.";
    "receipt_p99_ns" "ns" "The same, 99th percentile.";
    "slowest_pct" "%" "The slowest tenth of a second at the far side, as a share of the mean: of windows of 0.2 s and more.";
};

/// All figures of a window.
pub(super) static FIGURES: [Figure; OWN.len() + pool_figures::FIGURES.len()] =
    joined(OWN, pool_figures::FIGURES);

/// The counts since the start.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pool: pool_figures::Reading,
    /// Packets that left by ports other than rings, and their bytes.
    packets: u64,
    bytes: u64,
    wakeups: u64,
    offered: u64,
    /// The number of polls of the lab's own loop, and of those that found nothing.
    polls: [u64; 2],
    asleep_ns: u64,
    copied_bytes: u64,
}

impl Reading {
    /// Reads a side that is at rest.
    pub fn of(gauge: &Gauge) -> Reading {
        let mut reading = Reading {
            pool: match gauge {
                Gauge::Engine(stats) => pool_figures::Reading::of(stats),
                Gauge::Pool(pool, _) => pool_figures::Reading::of_pool(pool),
            },
            packets: 0,
            bytes: 0,
            wakeups: 0,
            offered: 0,
            polls: [0; 2],
            asleep_ns: 0,
            copied_bytes: 0,
        };
        match gauge {
            Gauge::Engine(stats) => {
                for port in reading.pool.ports() {
                    reading.wakeups += port.counts.wakeups;
                    reading.copied_bytes += port.driver_counts.copied_bytes.unwrap_or(0);
                    if !port.flags.paired {
                        reading.offered += port.counts.rx_packets;
                        reading.packets += port.counts.tx_packets;
                        reading.bytes += port.counts.tx_bytes;
                    }
                }
                reading.asleep_ns = stats.workers().iter().map(|worker| worker.asleep_ns).sum();
            }
            Gauge::Pool(_, polls) => {
                let counts = polls.counts();
                reading.polls = [counts.polls, counts.polls_empty];
                reading.wakeups = counts.wakeups;
            }
        }
        reading
    }

    /// Adds the activity since `before` to `window`, whose threads have been measured.
    pub fn since(&self, before: &Reading, done: &Done, tick_hz: f64, window: &mut Window) {
        let d = |now: u64, then: u64| now.saturating_sub(then);
        self.pool.since(&before.pool, window);
        window.packets = d(self.packets, before.packets) + done.packets;
        window.bytes = Some(d(self.bytes, before.bytes) + done.bytes);
        window.wakeups = Some(d(self.wakeups, before.wakeups));
        let cpu_ns = window.cpu_ns.unwrap_or(0) as f64;
        let overruns = done.ring_full + done.no_frame + done.wire_late + done.fabric_full;
        let copied_bytes = d(self.copied_bytes, before.copied_bytes) + done.copied_bytes;
        let figure = |name: &str| window.figures.get(name).copied();
        // What the engine's workers counted, and what a loop of the lab's own did beside.
        let more = |name: &str, n: u64| figure(name).unwrap_or(0.0) + n as f64;
        let [polls, empty] = [0, 1].map(|i| d(self.polls[i], before.polls[i]));
        let offered = d(self.offered, before.offered) + done.offered;
        let mut own = vec![
            ("offered", offered as f64),
            ("due", done.due as f64),
            ("unsent", done.due.saturating_sub(offered) as f64),
            ("overruns", overruns as f64),
            ("overruns_ring_full", done.ring_full as f64),
            ("overruns_no_frame", done.no_frame as f64),
            ("overruns_wire_late", done.wire_late as f64),
            ("overruns_fabric_full", done.fabric_full as f64),
            ("copied_bytes", copied_bytes as f64),
            ("late", done.late as f64),
            ("late_ns", done.late_ns as f64),
            ("total_ticks", cpu_ns * tick_hz / 1e9),
            ("asleep_ns", (d(self.asleep_ns, before.asleep_ns) + done.asleep_ns) as f64),
            ("tick_hz", tick_hz),
            ("polls", more("polls", polls)),
            ("polls_empty", more("polls_empty", empty)),
            ("sleeps", more("sleeps", done.sleeps)),
        ];
        own.extend(figure("buffer_ticks").map(|ticks| ("buffer_ns", ticks * 1e9 / tick_hz)));
        window.figures.extend(own.into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
}
