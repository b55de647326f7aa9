//! The lines above the figures: event, conditions, and caveats.

use std::fmt::Write as _;

use linerate_show::number;

use super::{harmless, short};
use crate::conditions::{Conditions, Netdev};
use crate::diff::{By, Diff};
use crate::profile::{Event, Origin, OwnCost, Unit};

/// Most characters of a text from a profile that are printed on one line.
const TEXT_WIDTH: usize = 200;
/// Most characters of the line about the memory bus, which has two events with their limits.
const BUS_WIDTH: usize = 800;

/// Returns the description of an event: `L2_LINES_OUT (r0226), one sample for each 10,000: counter
/// of the CPU`.
pub(super) fn event(event: &Event, origin: Origin) -> String {
    let mut text = match event.name.as_str() {
        "unknown" => "event unknown (the maker does not say)".to_owned(),
        name => short(name, 60),
    };
    if let Some(raw) = &event.raw {
        let _ = write!(text, " ({})", short(raw, 20));
    }
    match (event.unit, event.period) {
        (Unit::Samples, Some(period)) => {
            let unit = event.period_unit();
            let _ = write!(text, ", one sample for each {}{unit}", number::count(period));
        }
        (unit, _) => {
            let _ = write!(text, ", in {}", unit.as_str());
        }
    }
    let _ = write!(text, ": {}", origin.as_str());
    text
}

/// Returns the unit at the head of a column: `samples`, or `counts` if the source does not name the
/// unit.
pub(crate) const fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Unknown => "counts",
        known => known.as_str(),
    }
}

/// Returns the unit of a difference's counts after scaling: `samples/s`.
#[must_use]
pub fn unit_of(diff: &Diff) -> String {
    match diff.scale.by {
        By::Share => By::Share.suffix().to_owned(),
        by => format!("{}{}", unit(diff.with.event.unit), by.suffix()),
    }
}

/// Returns the known conditions, a line for each kind.
pub(super) fn conditions(conditions: &Conditions) -> Vec<String> {
    let c = conditions;
    let clean = |text: &Option<String>| text.as_deref().map(|text| short(text, TEXT_WIDTH));
    let machine = [
        clean(&c.kernel),
        clean(&c.cpu),
        c.mhz.map(|mhz| format!("{} MHz", number::real(mhz, 0))),
        c.cpus.map(|n| format!("{n} CPUs")),
        clean(&c.hypervisor).map(|h| format!("virtual ({h})")),
    ];
    let run = [
        clean(&c.workload),
        c.wall_ns.map(|ns| format!("{} s", number::real(seconds(ns), 3))),
        c.cpu_ns.map(|ns| format!("{} s of CPU time", number::real(seconds(ns), 3))),
        c.packets.map(|n| format!("{} packets", number::count(n))),
        clean(&c.started).map(|t| format!("from {t}")),
    ];
    let tool = [clean(&c.tool), clean(&c.measures)];
    let netdevs: Vec<Option<String>> =
        c.netdevs.iter().map(|dev| Some(netdev(dev, c.wall_ns))).collect();
    let bus = [c.bus.as_ref().map(|bus| short(&bus.told(c.packets), BUS_WIDTH))];
    let lines = [
        ("machine", &machine[..]),
        ("run", &run[..]),
        ("made by", &tool[..]),
        ("devices", &netdevs[..]),
        ("bus", &bus[..]),
    ];
    let line = |(head, parts): (&str, &[Option<String>])| {
        let parts: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
        (!parts.is_empty()).then(|| format!("{head}: {}", parts.join(", ")))
    };
    lines.into_iter().filter_map(line).collect()
}

/// Returns the traffic of a device, with its rate if the duration is known.
fn netdev(dev: &Netdev, wall_ns: Option<u64>) -> String {
    let driver = dev.driver.as_deref().map(|d| format!(" ({})", short(d, 30))).unwrap_or_default();
    let rate = |bytes: u64| match wall_ns.filter(|ns| *ns > 0) {
        Some(ns) => format!(" at {} Mbit/s", number::real(bytes as f64 * 8e3 / ns as f64, 1)),
        None => String::new(),
    };
    format!(
        "{}{driver} rx {} packets{}, tx {} packets{}",
        short(&dev.name, 30),
        number::count(dev.rx_packets),
        rate(dev.rx_bytes),
        number::count(dev.tx_packets),
        rate(dev.tx_bytes)
    )
}

/// Returns the lost samples, the instrument's own cost, and the remarks.
pub(super) fn caveats(lost: u64, own_cost: Option<&OwnCost>, remarks: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    if lost > 0 {
        let are = if lost == 1 { "is" } else { "are" };
        lines.push(format!("! lost: {} {are} in no row", samples(lost)));
    }
    lines.extend(own_cost.map(cost));
    lines.extend(remarks.iter().map(|remark| format!("note: {}", harmless(remark))));
    lines
}

fn cost(cost: &OwnCost) -> String {
    let sampling = match (cost.sampling_pct(), cost.sample_ns) {
        (Some(pct), Some(ns)) => format!(
            "{} % of the target's CPU time ({} of {} ns)",
            number::real(pct, 2),
            samples(cost.samples),
            number::real(ns, 0)
        ),
        (_, Some(ns)) => format!(
            "n/a, {} of {} ns (the target's CPU time is not known)",
            samples(cost.samples),
            number::real(ns, 0)
        ),
        (_, None) => format!(
            "n/a for the target's {} (not calibrated, or not distinguishable from 0)",
            samples(cost.samples)
        ),
    };
    let recorder = number::real(cost.recorder_cpu_ns as f64 / 1e6, 1);
    format!("own cost: {sampling}; recorder {recorder} ms of CPU time")
}

fn samples(n: u64) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} sample{plural}", number::count(n))
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::Bus;

    #[test]
    fn what_was_counted_is_said_with_its_unit_and_a_model_is_called_one() {
        let mut of = Event {
            name: "L2_LINES_OUT".into(),
            unit: Unit::Samples,
            period: Some(10_000),
            raw: Some("r0226".into()),
        };
        let text = event(&of, Origin::Counter);
        assert_eq!(text, "L2_LINES_OUT (r0226), one sample for each 10,000: counter of the CPU");
        let clock = Event { name: "task-clock".into(), raw: None, ..of.clone() };
        let text = event(&clock, Origin::Kernel);
        assert!(text.starts_with("task-clock, one sample for each 10,000 ns: "), "{text}");
        of.unit = Unit::Events;
        let text = event(&of, Origin::Model);
        assert_eq!(text, "L2_LINES_OUT (r0226), in events: model, not a measurement");
    }

    #[test]
    fn a_cost_that_was_not_calibrated_is_not_0() {
        let mut of =
            OwnCost { recorder_cpu_ns: 1_000_000, sample_ns: None, target_cpu_ns: 1, samples: 5 };
        let text = cost(&of);
        assert!(text.contains("n/a for the target's 5 samples (not calibrated, or "), "{text}");
        let text = cost(&OwnCost { sample_ns: Some(2000.0), target_cpu_ns: 0, ..of });
        assert!(text.contains("n/a, 5 samples of 2,000 ns (the target's"), "{text}");
        of = OwnCost { sample_ns: Some(2000.0), target_cpu_ns: 1_000_000, ..of };
        assert_eq!(
            cost(&of),
            "own cost: 1.00 % of the target's CPU time (5 samples of 2,000 ns); recorder 1.0 ms of \
             CPU time"
        );
    }

    #[test]
    fn throughput_stands_beside_what_was_counted() {
        let (rx_packets, rx_bytes) = (1000, 1_250_000);
        let dev = Netdev { name: "eth0".into(), rx_packets, rx_bytes, ..Netdev::default() };
        let text = netdev(&dev, Some(1_000_000_000));
        assert_eq!(text, "eth0 rx 1,000 packets at 10.0 Mbit/s, tx 0 packets at 0.0 Mbit/s");
        assert_eq!(netdev(&dev, None), "eth0 rx 1,000 packets, tx 0 packets");
    }

    #[test]
    fn unknown_conditions_are_not_printed() {
        assert!(conditions(&Conditions::default()).is_empty());
        let bus = Some(Bus::NotAvailable { why: "no counter".into() });
        let some = Conditions { cpus: Some(4), packets: Some(1000), bus, ..Conditions::default() };
        let bus = "bus: memory n/a (no counter); PCI n/a (not counted)";
        assert_eq!(conditions(&some), ["machine: 4 CPUs", "run: 1,000 packets", bus]);
    }
}
