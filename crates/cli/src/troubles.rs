//! Troubles of ports beside their packets: losses before them, an empty pool, copies, resets.

use std::fmt::Write;

use linerate_ctl::report::PortReport;

use crate::report::thousands;

/// Lines of the ports that have something to say; none of the others.
pub fn lines(ports: &[PortReport]) -> String {
    let mut text = String::new();
    for port in ports.iter().filter(|p| p.rx_missed > 0) {
        let (n, why) = (thousands(port.rx_missed), causes(port));
        let said = format!("{} {n}{why}", port.name);
        let _ = writeln!(text, "missed   {said}   (lost before the port, not in the balance)");
    }
    for port in ports.iter().filter(|p| p.rx_nombuf > 0) {
        let (name, n) = (&port.name, thousands(port.rx_nombuf));
        let _ = writeln!(text, "no frame {name} {n} times   (the pool was empty: packets waited)");
    }
    for port in ports {
        let copied = port.copied_bytes.unwrap_or(0);
        let said = [
            (copied, "bytes copied"),
            (port.resets, "resets"),
            (port.bad_descs, "bad descriptors"),
        ];
        let said = counted(&said);
        if !said.is_empty() {
            let _ = writeln!(text, "driver   {} {said}", port.name);
        }
    }
    text
}

/// Formats the causes of lost packets, as far as the driver knows:
/// `: 300,000 ring full, 47,457 no frame`.
fn causes(port: &PortReport) -> String {
    let (ring_full, no_frame) = (port.missed_ring_full_packets, port.missed_no_frame_packets);
    let known = ring_full.saturating_add(no_frame);
    if known == 0 {
        return String::new();
    }
    let rest = port.rx_missed.saturating_sub(known);
    let causes = [(ring_full, "ring full"), (no_frame, "no frame"), (rest, "of unknown cause")];
    format!(": {}", counted(&causes))
}

/// Those that are not 0, with what they count.
fn counted(counts: &[(u64, &str)]) -> String {
    let some = counts.iter().filter(|(n, _)| *n > 0);
    some.map(|(n, what)| format!("{} {what}", thousands(*n))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str) -> PortReport {
        PortReport { name: name.into(), copied_bytes: Some(0), ..PortReport::default() }
    }

    #[test]
    fn packets_missed_are_told_with_their_causes_as_far_as_they_are_known() {
        let line = |rx_missed, missed_ring_full_packets, missed_no_frame_packets| {
            let counts = PortReport {
                rx_missed,
                missed_ring_full_packets,
                missed_no_frame_packets,
                ..port("v0")
            };
            lines(&[counts])
        };
        let told = |causes: &str| {
            format!("missed   v0 {causes}   (lost before the port, not in the balance)\n")
        };
        let both = "347,457: 300,000 ring full, 47,457 no frame";
        assert_eq!(line(347_457, 300_000, 47_457), told(both));
        assert_eq!(line(36, 36, 0), told("36: 36 ring full"));
        assert_eq!(line(36, 0, 30), told("36: 30 no frame, 6 of unknown cause"));
        assert_eq!(line(36, 0, 0), told("36"));
    }

    #[test]
    fn a_port_that_found_the_pool_empty_says_so() {
        let line = "no frame v0 1,234 times   (the pool was empty: packets waited)\n";
        assert_eq!(lines(&[PortReport { rx_nombuf: 1234, ..port("v0") }]), line);
    }

    #[test]
    fn a_port_that_copied_was_reset_or_was_lied_to_says_so_in_a_line() {
        let copied = PortReport { copied_bytes: Some(18_245), ..port("v0") };
        let reset = PortReport { resets: 2, bad_descs: 3, ..port("v1") };
        let told = "\
driver   v0 18,245 bytes copied
driver   v1 2 resets, 3 bad descriptors
";
        assert_eq!(lines(&[copied, reset]), told);
    }

    #[test]
    fn a_port_without_anything_to_say_has_no_line() {
        assert_eq!(lines(&[port("v0"), PortReport { copied_bytes: None, ..port("v1") }]), "");
    }
}
