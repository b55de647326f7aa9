//! The irqs of an interface's device, and the program that balances them.

use std::fs;
use std::path::Path;

use linerate_sys::netif::NetFolder;

use super::napi::processes;

/// Returns the irqs of an interface's device with their queues: the device's own MSI irqs, or those
/// of the device below a virtio device, or the shared interrupt line. Irqs without a handler are
/// left out.
pub(super) fn irqs(proc: &Path, folder: &NetFolder) -> Vec<(u32, usize)> {
    let messages = || ["device/msi_irqs", "device/../msi_irqs"].map(|at| folder.names(at));
    let line = || ["device/irq", "device/../irq"].into_iter().filter_map(|at| folder.read(at));
    let found = messages().into_iter().find(|names| !names.is_empty());
    let names = found.unwrap_or_else(|| line().collect());
    let known = fs::read_to_string(proc.join("interrupts")).unwrap_or_default();
    let irqs = names.iter().filter_map(|name| name.parse().ok());
    let mut irqs: Vec<(u32, usize)> =
        irqs.filter_map(|irq| Some((irq, handled(&known, irq)?))).collect();
    irqs.sort_unstable_by_key(|(irq, queue)| (*queue, *irq));
    irqs
}

/// Returns the queue of an irq from /proc/interrupts, if the irq carries packets and does not only
/// report configuration changes. Drivers put the queue's number at the end of the irq's name; an
/// irq without a number has queue 0.
fn handled(text: &str, irq: u32) -> Option<usize> {
    let number = irq.to_string();
    let of_irq = |line: &&str| line.split(':').next().is_some_and(|n| n.trim() == number);
    let line = text.lines().find(of_irq).filter(|line| !line.ends_with("-config"))?;
    let name = line.split_whitespace().last()?;
    // Example of a name: mlx5_comp3@pci:0000:3b:00.0
    let (name, is_cut) = name.split_once('@').map_or((name, false), |(name, _)| (name, true));
    let before = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_a_queue = is_cut || before.ends_with(['-', '.', '_']);
    Some(name[before.len()..].parse().ok().filter(|_| is_a_queue).unwrap_or(0))
}

/// Returns a note about the program that balances interrupts, if it runs.
pub(super) fn balancer(proc: &Path) -> Option<String> {
    let (process, _) = processes(proc, "irqbalance").into_iter().next()?;
    Some(format!(
        "irqbalance (process {process}) may move interrupts again: systemctl stop irqbalance"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_irq_that_carries_packets_is_told_from_others() {
        let text = "    CPU0 CPU1\n 37:  0 0 PCI-MSIX-0000:00:03.0 0-edge virtio2-config\n \
                    38:  0 9 PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0\nNMI: 0 0 x\n";
        assert_eq!([37, 38, 3, 39].map(|irq| handled(text, irq)), [None, Some(0), None, None]);
        assert_eq!(handled("", 1), None);
        for (name, queue) in [
            ("virtio2-output.1", 1),
            ("eth0-TxRx-13", 13),
            ("eth3", 0),
            ("ens5-Tx-Rx-2", 2),
            ("mlx5_comp3@pci:0000:3b:00.7", 3),
            ("e1000-99999999999999999999", 0),
        ] {
            assert_eq!(handled(&format!(" 5:  1 2 PCI-MSIX 1-edge {name}\n"), 5), Some(queue));
        }
    }
}
