//! Lines of a report about transmit calls and queueing disciplines.

use std::fmt::Write;

use linerate_ctl::report::{PortReport, TxCalls};
use linerate_sys::text::thousands;

/// Formats a line for each port with a batch cap or a discipline: its transmit calls by size, and
/// the discipline's drops.
pub fn lines(ports: &[PortReport]) -> String {
    let mut text = String::new();
    let shown = |port: &&PortReport| {
        port.qdisc.is_some() || (port.tx_batch != "auto" && !port.tx_calls.is_empty())
    };
    for port in ports.iter().filter(shown) {
        let calls: u64 = port.tx_calls.iter().map(|range| range.calls).sum();
        let _ = write!(
            text,
            "sends    {}: {} calls, tx_batch {}",
            port.name,
            thousands(calls),
            port.tx_batch
        );
        for TxCalls { packets, calls } in &port.tx_calls {
            let _ = write!(text, "  {packets}+: {}", thousands(*calls));
        }
        text.push('\n');
        if let Some(qdisc) = &port.qdisc {
            let [left, dropped, held] =
                [qdisc.left, qdisc.dropped, qdisc.held].map(|n| thousands(n.packets));
            let marked = thousands(qdisc.marked);
            let _ = writeln!(
                text,
                "         qdisc: {left} left, {dropped} dropped, {marked} marked, {held} held"
            );
        }
    }
    text
}
