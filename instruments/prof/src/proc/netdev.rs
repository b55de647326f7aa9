//! /proc/net/dev: what passed each network device.
//!
//! Source: net/core/net-procfs.c, `dev_seq_printf_stats`.

/// Fields of a line behind the name, in order: eight received, eight sent.
pub const FIELDS: [&str; 16] = [
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
pub struct Device {
    /// Its name.
    pub name: String,
    /// Counters, in the order of [`FIELDS`].
    pub counts: [u64; FIELDS.len()],
}

impl Device {
    /// Bytes received.
    #[must_use]
    pub fn rx_bytes(&self) -> u64 {
        self.counts[0]
    }

    /// Packets received.
    #[must_use]
    pub fn rx_packets(&self) -> u64 {
        self.counts[1]
    }

    /// Bytes sent.
    #[must_use]
    pub fn tx_bytes(&self) -> u64 {
        self.counts[8]
    }

    /// Packets sent.
    #[must_use]
    pub fn tx_packets(&self) -> u64 {
        self.counts[9]
    }
}

/// The devices of a file, and how many lines behind the two of its head were not understood.
#[must_use]
pub fn devices(text: &str) -> (Vec<Device>, u64) {
    let mut devices = Vec::new();
    let mut unread = 0;
    for line in text.lines().skip(2) {
        match device(line) {
            Some(device) => devices.push(device),
            None => unread += 1,
        }
    }
    (devices, unread)
}

fn device(line: &str) -> Option<Device> {
    // A name may hold a colon (eth0:1 did), a count does not.
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
        assert_eq!((devices[1].rx_bytes(), devices[1].rx_packets()), (533_520_935, 24_671));
        assert_eq!((devices[1].tx_bytes(), devices[1].tx_packets()), (1_373_115, 15_194));
    }

    #[test]
    fn a_line_with_too_few_counts_or_none_is_counted_and_the_rest_read() {
        let text =
            format!("{TEXT}eth1: 1 2 3\nnonsense\n: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n");
        let (devices, unread) = devices(&text);
        assert_eq!((devices.len(), unread), (2, 3));
    }
}
