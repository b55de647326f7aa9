//! What a side has counted so far, and the figures of a window: all of them differences.

use linerate_port::ring;
use linerate_skb::Data;

use super::crew::Done;
use super::path::Gauge;
use crate::scenario::{Figure, pool_figures};
use crate::window::Window;

/// What its windows count beside the pool's and the ports'.
const OWN: [Figure; 14] = [
    figure("offered", "packets", "packets that the source made, or the wire had"),
    figure("due", "packets", "packets whose time had come; 0 without a rate"),
    figure("overruns", "packets", "offered packets that were lost before the ring, by any cause"),
    figure("overruns_ring_full", "packets", "lost: no buffer was posted, and the pool had frames"),
    figure("overruns_no_frame", "packets", "lost: the pool had no frame to post"),
    figure("overruns_wire_late", "packets", "lost: the wire's own thread was late"),
    figure("in_flight", "packets", "packets in the path at the end, less those at the start"),
    figure("buffer_ns", "ns", "`buffer_ticks`, by the rate of the ticks in this window"),
    figure("total_ticks", "ticks", "CPU time of the measured threads, in ticks"),
    figure(
        "allocator_calls",
        "calls",
        "calls of the system's allocator: one to allocate and one to free a general buffer, none for \
         a frame; derived from the pool's counts, not counted in the allocator",
    ),
    figure("sleeps", "times", "times that a thread slept: for work, for room, for its time"),
    figure("asleep_ns", "ns", "how long, until it was on a CPU again"),
    figure("memory_bytes", "bytes", "memory held for packets when the window ended"),
    figure("tick_hz", "ticks/s", "rate of the ticks in this window"),
];

/// What its windows count.
pub(super) static FIGURES: [Figure; OWN.len() + pool_figures::FIGURES.len()] = {
    let mut all = [OWN[0]; OWN.len() + pool_figures::FIGURES.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < OWN.len() { OWN[i] } else { pool_figures::FIGURES[i - OWN.len()] };
        i += 1;
    }
    all
};

const fn figure(name: &'static str, unit: &'static str, about: &'static str) -> Figure {
    Figure { name, unit, about }
}

/// What has been counted since the start.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pool: pool_figures::Reading,
    /// Packets that left by ports other than rings, and their bytes.
    packets: u64,
    bytes: u64,
    wakeups: u64,
    offered: u64,
    in_flight: u64,
    polls: [u64; 2],
    sleeps: u64,
    asleep_ns: u64,
    general: bool,
}

impl Reading {
    /// Reads a side that is at rest.
    pub fn of(gauge: &Gauge) -> Reading {
        let pool = match gauge {
            Gauge::Engine(stats) => pool_figures::Reading::of(stats),
            Gauge::Pool(pool, _) => pool_figures::Reading::of_pool(pool),
        };
        let mut reading = Reading {
            pool,
            packets: 0,
            bytes: 0,
            wakeups: 0,
            offered: 0,
            in_flight: gauge.pool().ledger().in_flight,
            polls: [0; 2],
            sleeps: 0,
            asleep_ns: 0,
            general: gauge.pool().data_from() == Data::General,
        };
        match gauge {
            Gauge::Engine(stats) => {
                for port in reading.pool.ports() {
                    reading.wakeups += port.counts.wakeups;
                    if port.driver != ring::NAME {
                        reading.offered += port.counts.rx_packets;
                        reading.packets += port.counts.tx_packets;
                        reading.bytes += port.counts.tx_bytes;
                    }
                }
                for worker in stats.workers() {
                    reading.sleeps += worker.sleeps;
                    reading.asleep_ns += worker.asleep_ns;
                }
            }
            Gauge::Pool(_, polls) => {
                let counts = polls.counts();
                reading.polls = [counts.polls, counts.polls_empty];
                reading.wakeups = counts.wakeups;
            }
        }
        reading
    }

    /// Adds to `window`, whose threads have been measured, what was done from `before` on.
    pub fn since(&self, before: &Reading, done: &Done, tick_hz: f64, window: &mut Window) {
        let d = |now: u64, then: u64| now.saturating_sub(then);
        self.pool.since(&before.pool, window);
        window.packets = d(self.packets, before.packets) + done.packets;
        window.bytes = Some(d(self.bytes, before.bytes) + done.bytes);
        window.wakeups = Some(d(self.wakeups, before.wakeups));
        let cpu_ns = window.cpu_ns.unwrap_or(0) as f64;
        let figure = |name: &str| window.figures.get(name).copied();
        let buffers = figure("allocs").zip(figure("frees")).map_or(0.0, |(a, f)| a + f);
        let buffer_ticks = figure("buffer_ticks");
        let overruns = done.ring_full + done.no_frame + done.wire_late;
        let mut own = vec![
            ("offered", (d(self.offered, before.offered) + done.offered) as f64),
            ("due", done.due as f64),
            ("overruns", overruns as f64),
            ("overruns_ring_full", done.ring_full as f64),
            ("overruns_no_frame", done.no_frame as f64),
            ("overruns_wire_late", done.wire_late as f64),
            ("in_flight", self.in_flight as f64 - before.in_flight as f64),
            ("total_ticks", cpu_ns * tick_hz / 1e9),
            ("allocator_calls", if self.general { buffers } else { 0.0 }),
            ("sleeps", (d(self.sleeps, before.sleeps) + done.sleeps) as f64),
            ("asleep_ns", (d(self.asleep_ns, before.asleep_ns) + done.asleep_ns) as f64),
            ("memory_bytes", self.pool.pool().memory_bytes() as f64),
            ("tick_hz", tick_hz),
        ];
        own.extend(buffer_ticks.map(|ticks| ("buffer_ns", ticks * 1e9 / tick_hz)));
        // A loop of the lab's own has no port of an engine to count its polls.
        for (name, i) in [("polls", 0), ("polls_empty", 1)] {
            let engine = figure(name).unwrap_or(0.0);
            own.push((name, engine + d(self.polls[i], before.polls[i]) as f64));
        }
        window.figures.extend(own.into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
}
