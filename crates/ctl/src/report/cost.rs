//! The CPU time and cycles of a run, and their division by its packets.

use std::time::Duration;

use linerate_datapath::Stopped;

#[cfg(feature = "json")]
use serde::Serialize;

use crate::excess::{PerPacket, awake_ns};

/// Cost of a run. The packets counted are those sent by ports other than rings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct Cost {
    /// Cycles for each packet, of the clock named by `scope`. With the scope [`TSC`] they are
    /// `cpu_ns_per_packet` in another unit, and not an independent measurement.
    pub cycles_per_packet: Option<f64>,
    /// Instructions for each packet.
    pub instructions_per_packet: Option<f64>,
    /// Packets for each wake-up of a worker by a device; `None` without wake-ups. The ends of holds
    /// do not count as wake-ups, unlike in `packets_per_irq`.
    pub packets_per_wakeup: Option<f64>,
    /// Packets for each irq; an irq is the end of a worker's sleep by a device or by a timer.
    /// `None` if no worker slept.
    pub packets_per_irq: Option<f64>,
    /// CPU time of the whole process, in seconds.
    pub cpu_seconds: f64,
    /// Scope of `cycles_per_packet`: `user+kernel` or `user` for cycles of the core; [`TSC`] for
    /// CPU time in ticks.
    pub scope: Option<&'static str>,
    /// CPU time of the whole process for each packet, by the kernel's accounting.
    pub cpu_ns_per_packet: Option<f64>,
    /// Time that the workers were awake for each packet, by their own clocks, as a check of
    /// `cpu_ns_per_packet`. Unlike that figure it includes preemption, which is part of
    /// [`Waits::run_delay_ns`](crate::Waits::run_delay_ns). It excludes the time for going to sleep
    /// and waking up, and the work of other threads. `None` if a worker has not reported.
    pub awake_ns_per_packet: Option<f64>,
}

/// The scope of figures that are CPU time in ticks of the time stamp counter, used if the core's
/// cycles cannot be counted.
pub const TSC: &str = "tsc";

/// CPU time and cycles of the process, as measured around a run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spent {
    /// Wall time from the start of the workers to the order to drain.
    pub wall: Duration,
    /// Packets that ports other than rings sent in that time; `None` if only their number at the
    /// end is known.
    pub sent: Option<u64>,
    /// CPU time of the process.
    pub cpu: Duration,
    /// Cycles, if they can be counted.
    pub cycles: Option<u64>,
    /// Instructions, if they can be counted.
    pub instructions: Option<u64>,
    /// Scope of cycles and instructions, or [`TSC`].
    pub scope: Option<&'static str>,
    /// Ticks a second of the clock that times locks, if known.
    pub ticks_per_second: Option<f64>,
}

impl Cost {
    pub(super) fn of(spent: &Spent, stopped: &Stopped) -> Cost {
        let wakeups: u64 = stopped.ports.iter().map(|p| p.counts.wakeups).sum();
        let irqs: u64 = stopped.workers.iter().map(|worker| worker.sleeps).sum();
        let each = PerPacket::leaving(&stopped.ports);
        let of_known = |n: Option<u64>| n.and_then(|n| each.of(n));
        Cost {
            cycles_per_packet: of_known(spent.cycles),
            instructions_per_packet: of_known(spent.instructions),
            packets_per_wakeup: (wakeups > 0).then(|| each.0 as f64 / wakeups as f64),
            packets_per_irq: (irqs > 0).then(|| each.0 as f64 / irqs as f64),
            cpu_seconds: spent.cpu.as_secs_f64(),
            scope: spent.scope,
            cpu_ns_per_packet: of_known(u64::try_from(spent.cpu.as_nanos()).ok()),
            awake_ns_per_packet: of_known(awake_ns(&stopped.workers)),
        }
    }
}
