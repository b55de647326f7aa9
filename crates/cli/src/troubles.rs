//! Problems of ports other than their packets: losses before reception, an empty pool, copies,
//! resets.

use std::fmt::Write;

use linerate_ctl::report::PortReport;

use linerate_sys::text::thousands;

/// Formats the lines of the ports with problems.
pub fn lines(ports: &[PortReport]) -> String {
    let mut text = String::new();
    for port in ports.iter().filter(|p| p.rx_missed > 0) {
        let (n, why) = (thousands(port.rx_missed), causes(port));
        let said = format!("{} {n}{why}", port.name);
        let _ = writeln!(text, "missed   {said}   (lost before the port, not in the balance)");
        if let Some(fix) = port.driver_counts.missed_fix() {
            let _ = writeln!(text, "         {fix}");
        }
    }
    for port in ports.iter().filter(|p| p.rx_nombuf > 0) {
        let (name, n) = (&port.name, thousands(port.rx_nombuf));
        let _ = writeln!(text, "no frame {name} {n} times   (the pool was empty: packets waited)");
    }
    for port in ports {
        let Some(filter) = &port.silent else { continue };
        let said = format!("{} received no packet through {filter}", port.name);
        let _ = writeln!(
            text,
            "silent   {said}   (to see the interface's traffic: tcpdump -nei IFACE)"
        );
    }
    for port in ports {
        let mut said = vec![(port.copied_bytes.unwrap_or(0), "bytes copied")];
        said.extend(counts(port, false));
        let said = counted(&said);
        if !said.is_empty() {
            let _ = writeln!(text, "driver   {} {said}", port.name);
        }
    }
    text
}

/// Returns the driver's counts with their names: the causes of lost packets, or the other counts.
fn counts(port: &PortReport, causes: bool) -> impl Iterator<Item = (u64, &'static str)> {
    let counts = port.driver_counts.named().into_iter();
    let counts = counts.filter(move |(key, ..)| key.starts_with("missed_") == causes);
    counts.map(|(_, words, n)| (n, words))
}

/// Formats the causes of lost packets, as far as the driver knows them: `: 300,000 ring full,
/// 47,457 no frame`.
fn causes(port: &PortReport) -> String {
    let mut causes: Vec<_> = counts(port, true).collect();
    let known = causes.iter().fold(0u64, |sum, (n, _)| sum.saturating_add(*n));
    if known == 0 {
        return String::new();
    }
    causes.push((port.rx_missed.saturating_sub(known), "of unknown cause"));
    format!(": {}", counted(&causes))
}

/// Formats the counts that are not 0, with their names.
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
        let line = |rx_missed, ring_full, no_frame| {
            let mut report = PortReport { rx_missed, ..port("v0") };
            report.driver_counts.longer_ring = Some("ring=4096");
            report.driver_counts.missed_ring_full = ring_full;
            report.driver_counts.missed_no_frame = no_frame;
            lines(&[report])
        };
        let told = |causes: &str| {
            let fix = match causes {
                causes if causes.contains("ring full") => "         a longer ring: ring=4096\n",
                causes if causes.contains("no frame") => {
                    "         a larger pool, or packets given back sooner\n"
                }
                _ => "",
            };
            format!("missed   v0 {causes}   (lost before the port, not in the balance)\n{fix}")
        };
        let both = "347,457: 300,000 ring full, 47,457 no frame";
        assert_eq!(line(347_457, 300_000, 47_457), told(both));
        assert_eq!(line(36, 36, 0), told("36: 36 ring full"));
        assert_eq!(line(36, 0, 30), told("36: 30 no frame, 6 of unknown cause"));
        assert_eq!(line(36, 0, 0), told("36"));
    }

    #[test]
    fn packets_lost_while_the_thread_had_no_cpu_are_told_with_their_own_remedy() {
        let mut report = PortReport { rx_missed: 36, ..port("v0") };
        report.driver_counts.longer_ring = Some("ring=4096");
        report.driver_counts.missed_ring_full = 6;
        report.driver_counts.missed_no_cpu = 30;
        let line = "missed   v0 36: 6 ring full, 30 no CPU in time   (lost before the port, not in the balance)\n         \
                    a CPU that other programs do not use, or a longer ring: ring=4096\n";
        assert_eq!(lines(&[report]), line);
    }

    #[test]
    fn a_port_that_found_the_pool_empty_says_so() {
        let line = "no frame v0 1,234 times   (the pool was empty: packets waited)\n";
        assert_eq!(lines(&[PortReport { rx_nombuf: 1234, ..port("v0") }]), line);
    }

    #[test]
    fn a_filter_that_let_nothing_in_is_told() {
        let silent = PortReport { silent: Some("udp=7777".into()), ..port("v0") };
        let line = "silent   v0 received no packet through udp=7777   (to see the interface's traffic: tcpdump -nei IFACE)\n";
        assert_eq!(lines(&[silent]), line);
    }

    #[test]
    fn a_port_that_copied_was_reset_or_was_lied_to_says_so_in_a_line() {
        let copied = PortReport { copied_bytes: Some(18_245), ..port("v0") };
        let mut reset = port("v1");
        (reset.driver_counts.resets, reset.driver_counts.bad_descs) = (2, 3);
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
