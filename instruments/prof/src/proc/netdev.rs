//! Parser of /proc/net/dev: traffic of each network device.
//!
//! Source: net/core/net-procfs.c, `dev_seq_printf_stats`.

/// Fields of a line after the name, in order: eight received, eight sent.
pub(crate) const FIELDS: [&str; 16] = [
    "rx_bytes",
    "rx_packets",
    "rx_errors",
    "rx_dropped",
    "rx_fifo",
    "rx_frame",
    "rx_compressed",
    "rx_multicast",
    "tx_bytes",
    "tx_packets",
    "tx_errors",
    "tx_dropped",
    "tx_fifo",
    "tx_collisions",
    "tx_carrier",
    "tx_compressed",
];

/// A device and its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    /// The device's name.
    pub(crate) name: String,
    /// Counters, in the order of [`FIELDS`].
    pub(crate) counts: [u64; FIELDS.len()],
}

/// Indices of the fields for a device's traffic.
pub(crate) const RX_BYTES: usize = 0;
pub(crate) const RX_PACKETS: usize = 1;
pub(crate) const TX_BYTES: usize = 8;
pub(crate) const TX_PACKETS: usize = 9;

/// Returns the devices in a file, and the number of invalid lines after the two header lines.
pub(crate) fn devices(text: &str) -> (Vec<Device>, u64) {
    let lines = text.lines().skip(2);
    let devices: Vec<Device> = lines.clone().filter_map(device).collect();
    let unread = lines.count() - devices.len();
    (devices, unread as u64)
}

fn device(line: &str) -> Option<Device> {
    // Split at the last colon: a name may contain a colon (eth0:1 did), a counter may not.
    let (name, counts) = line.rsplit_once(':')?;
    let mut fields = counts.split_ascii_whitespace();
    let mut device = Device { name: name.trim().into(), counts: [0; FIELDS.len()] };
    for count in &mut device.counts {
        *count = fields.next()?.parse().ok()?;
    }
    (!device.name.is_empty()).then_some(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Inter-|   Receive   |  Transmit\n face |bytes packets|bytes packets\n\
        \x20   lo:  242654     407    0    0    0     0          0         0   242654     407    0    0    0     0       0          0\n\
        eth0:533520935   24671 1 2 3 4 5 6 1373115 15194 7 8 9 10 11 12\n";

    #[test]
    fn a_device_is_read_even_where_no_space_follows_its_name() {
        let (devices, unread) = devices(TEXT);
        assert_eq!((devices.len(), unread), (2, 0));
        assert_eq!(devices[1].name, "eth0");
        let field = |name: &str| FIELDS.iter().position(|field| *field == name).unwrap();
        let said = [RX_BYTES, RX_PACKETS, TX_BYTES, TX_PACKETS].map(|at| devices[1].counts[at]);
        assert_eq!(said, [533_520_935, 24_671, 1_373_115, 15_194]);
        assert_eq!((field("rx_packets"), field("tx_packets")), (RX_PACKETS, TX_PACKETS));
    }

    #[test]
    fn a_line_with_too_few_counts_or_none_is_counted_and_the_rest_read() {
        let text =
            format!("{TEXT}eth1: 1 2 3\nnonsense\n: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n");
        let (devices, unread) = devices(&text);
        assert_eq!((devices.len(), unread), (2, 3));
    }
}
