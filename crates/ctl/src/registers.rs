//! The line of a report about modelled register accesses, for ports with the option `toll=`.

use std::time::Duration;

use linerate_port::{QueueCounts, Registers};

/// Formats the modelled register accesses for each irq and packet, and their share of the run's
/// time.
pub(crate) fn register_line(taken: Registers, counts: &QueueCounts, time: Duration) -> String {
    let packets = counts.rx_packets + counts.tx_packets;
    let kind = |n: u64, ns: u64, what: &str| {
        let by = |of: u64| match of {
            0 => "-".to_owned(),
            of => format!("{:.2}", n as f64 / of as f64),
        };
        let part = ns as f64 * 100.0 / time.as_nanos().max(1) as f64;
        let (irq, packet) = (by(counts.irqs()), by(packets));
        format!("{n} {what} ({irq} an irq, {packet} a packet) busy-waited {part:.1} % of a CPU")
    };
    format!(
        "MODEL: {}, {}",
        kind(taken.writes, taken.write_ns, "posted writes"),
        kind(taken.reads, taken.read_ns, "flushing reads")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_access_is_told_by_irq_and_by_packet_and_labelled() {
        let taken = Registers { writes: 30, reads: 20, write_ns: 1_000, read_ns: 250_000 };
        let counts = |wakeups: u64| {
            let mut counts = QueueCounts::default();
            (counts.wakeups, counts.rx_packets, counts.tx_packets) = (wakeups, 60, 40);
            counts
        };
        assert_eq!(
            register_line(taken, &counts(10), Duration::from_millis(1)),
            "MODEL: 30 posted writes (3.00 an irq, 0.30 a packet) busy-waited 0.1 % of a CPU, \
             20 flushing reads (2.00 an irq, 0.20 a packet) busy-waited 25.0 % of a CPU"
        );
        let none = register_line(taken, &counts(0), Duration::from_millis(1));
        assert!(none.contains("(- an irq, 0.30 a packet)"), "{none}");
    }
}
