//! Detection of ports that waste CPU time, because their irqs carry too few packets, while they
//! run; and of filters that match no packet.

use std::time::Duration;

use linerate_datapath::PortStats;
use linerate_port::moderation::poor_use;

/// Describes why a port that has run for `time` uses the CPU poorly; `None` if it does not, or if
/// no moderation holds its packets.
#[must_use]
pub fn poorly_used(port: &PortStats, time: Duration) -> Option<String> {
    let counts = &port.counts;
    // Irqs beyond the received packets were for room to send.
    let irqs = counts.irqs().min(counts.rx_packets);
    poor_use(counts.rx_packets, irqs, time).filter(|_| gathers(port))
}

/// Returns true if a moderation of the port holds its packets.
pub(crate) fn gathers(port: &PortStats) -> bool {
    port.queues.iter().any(|queue| queue.moderation.gathers)
}

/// Duration from which a run reports a filter that matched no packet.
const SILENT: Duration = Duration::from_secs(5);

/// Returns the filter of a port that is read if it let no packet in for so long that it may be a
/// mistake.
pub(crate) fn silent(port: &PortStats, time: Duration) -> Option<String> {
    let (filter, counts) = (&port.obtained.filter, &port.counts);
    let is_read = counts.polls > 0;
    let nothing = is_read && counts.rx_packets == 0 && counts.rx_missed == 0;
    (nothing && time >= SILENT && !filter.is_empty()).then(|| filter.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ForwardReport, Spent};
    use linerate_datapath::{Engine, Stopped};

    #[test]
    fn few_packets_to_an_irq_are_poor_use_of_a_port_that_could_hold_them() {
        let engine = Engine::builder().port("gen", "gen:,count=10").port("sink", "sink:");
        let engine = engine.wire("gen", "sink").build().unwrap();
        let (stats, second) = (engine.stats(), Duration::from_secs(1));
        let running = engine.start().unwrap();
        assert!(running.wait(20 * second).unwrap());
        let mut stopped = running.stop(20 * second);
        let port = &mut stopped.ports[0];
        (port.counts.rx_packets, port.counts.wakeups, port.counts.hold_ends) = (9000, 4000, 4000);
        port.queues[0].moderation.gathers = true;
        let told = poorly_used(port, second).unwrap();
        assert!(told.contains("1.1 packets an irq at 8000 irqs a second (rule: "), "{told}");
        assert_eq!(poorly_used(port, 10 * second), None, "fewer irqs a second");
        // The side of a transfer that receives acknowledgements sends more than it receives.
        port.counts.tx_packets = 18_000;
        assert!(poorly_used(port, second).is_some());
        port.counts.rx_packets = 0;
        assert_eq!(poorly_used(port, second), None, "irqs for room to send");
        port.counts.rx_packets = 9000;
        let spent = Spent { wall: second, ..Spent::default() };
        let of_report = |stopped: &Stopped| ForwardReport::new(stopped, &stats, &spent);
        assert!(of_report(&stopped).ports[0].poor_use.is_some());
        stopped.ports[0].queues[0].moderation.gathers = false;
        assert_eq!(of_report(&stopped).ports[0].poor_use, None);
    }

    #[test]
    fn filter_of_a_port_that_is_not_read_is_not_reported_as_silent() {
        let engine = Engine::builder().port("gen", "gen:,count=10").port("sink", "sink:");
        let engine = engine.wire("gen", "sink").build().unwrap();
        let mut port = engine.stats().ports().remove(1);
        port.obtained.filter = "udp=7".into();
        for (polls, told) in [(0, None), (1, Some("udp=7".to_owned()))] {
            port.counts.polls = polls;
            assert_eq!(silent(&port, SILENT), told);
        }
        assert_eq!(silent(&port, SILENT / 2), None);
    }

    #[test]
    fn filter_whose_packets_were_missed_is_not_silent() {
        let engine = Engine::builder().port("gen", "gen:,count=10").port("sink", "sink:");
        let engine = engine.wire("gen", "sink").build().unwrap();
        let mut port = engine.stats().ports().remove(1);
        port.obtained.filter = "udp=7".into();
        port.counts.polls = 1;
        assert!(silent(&port, SILENT).is_some());
        port.counts.rx_missed = 5;
        assert_eq!(silent(&port, SILENT), None);
    }
}
