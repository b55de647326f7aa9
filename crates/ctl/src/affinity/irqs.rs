//! The irqs of an interface's device, and the program that balances them.

use std::fs;
use std::path::Path;

use linerate_sys::netif::NetFolder;

use super::napi::processes;

/// Returns the irqs of an interface's device with their queues: its MSI irqs, or the shared
/// interrupt line. A virtio device has those of the device below it. Irqs without a handler are
/// left out.
pub(super) fn irqs(proc: &Path, folder: &NetFolder) -> Vec<(u32, usize)> {
    // The folder above that of another device is a bus, or a bridge with irqs of its own.
    let is_virtio = folder.read("device/modalias").is_some_and(|of| of.starts_with("virtio:"));
    let device = if is_virtio { "device/.." } else { "device" };
    // A device without a line has the irq 0.
    let line = || folder.read(&format!("{device}/irq")).filter(|irq| irq != "0");
    let mut names = folder.names(&format!("{device}/msi_irqs"));
    if names.is_empty() {
        names.extend(line());
    }
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
    fn irqs_of_a_bridge_above_the_device_are_not_the_device_s() {
        let of = |modalias, line| {
            let scratch = linerate_testing::Scratch::new();
            scratch.file("interrupts", " 0: 1 timer\n 17: 1 x eth0\n 30: 1 x aerdrv, eth0\n");
            scratch.file("pci/msi_irqs/30", "msi");
            scratch.file("pci/dev/irq", line);
            scratch.file("pci/dev/modalias", modalias);
            std::fs::create_dir(scratch.0.join("net")).unwrap();
            std::os::unix::fs::symlink("../pci/dev", scratch.0.join("net/device")).unwrap();
            irqs(&scratch.0, &NetFolder::at(&scratch.0.join("net")).unwrap())
        };
        assert_eq!(of("pci:v8086", "17"), [(17, 0)]);
        assert_eq!(of("pci:v8086", "0"), []);
        assert_eq!(of("virtio:d00000001v00001AF4", "17"), [(30, 0)]);
    }

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
