//! Parser of /proc/net/softnet_stat: work of each CPU's receive path.
//!
//! Numbers in hexadecimal, of 32 bits: at ten million packets a second `processed` wraps every
//! seven minutes. Kernels have added numbers at the end of the line and left those before in place,
//! as 0 where they count them no more. Source: net/core/net-procfs.c, `softnet_seq_show`.

use super::{Kind, Readings};

/// The fields of a line. The fourth to the eighth, for throttling and fast routing, are from Linux
/// 2.4 and have been 0 since.
const FIELDS: [(usize, &str, &str, Kind); 9] = [
    (0, "processed", "packets", Kind::Counter),
    (1, "dropped", "packets", Kind::Counter),
    (2, "time_squeeze", "polls", Kind::Counter),
    (COLLISION_AT, "cpu_collision", "times", Kind::Counter),
    (9, "received_rps", "interrupts", Kind::Counter),
    (10, "flow_limit_count", "packets", Kind::Counter),
    (11, "backlog_len", "packets", Kind::Gauge),
    (13, "input_qlen", "packets", Kind::Gauge),
    (14, "process_qlen", "packets", Kind::Gauge),
];

/// Index of the field with the CPU's number, since 5.10. Before, lines are in the order of online
/// CPUs.
const CPU_AT: usize = 12;

/// Index of the number of times that two CPUs tried to send on one device at once. Kernels that
/// report the CPU's number do not count this.
const COLLISION_AT: usize = 8;

/// Reads for each CPU the packets that it processed and dropped, and how often its time budget
/// ended.
pub(crate) fn softnet_stat(text: &str, readings: &mut Readings) {
    for (line_at, line) in text.lines().enumerate() {
        let words = line.split_ascii_whitespace();
        let numbers: Option<Vec<u64>> =
            words.map(|word| u32::from_str_radix(word, 16).ok().map(u64::from)).collect();
        let Some(numbers) = numbers.filter(|numbers| numbers.len() >= 9) else {
            readings.unread += 1;
            continue;
        };
        let cpu = numbers.get(CPU_AT).copied().unwrap_or(line_at as u64);
        let counted = |at: usize| at != COLLISION_AT || numbers.len() <= CPU_AT;
        for (at, field, unit, kind) in FIELDS.into_iter().filter(|(at, ..)| counted(*at)) {
            if let Some(&value) = numbers.get(at) {
                let name = format_args!("net/softnet_stat/cpu{cpu}/{field}");
                readings.put(name, unit, kind, "", value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::*;

    #[test]
    fn a_new_kernels_line_names_its_cpu_and_an_old_ones_is_counted_off() {
        let new =
            "034198c1 00000001 00000014 0 0 0 0 0 0 00000005 00000006 00000007 0000000a 2 5\n";
        let (said, unread) = found(softnet_stat, new);
        assert_eq!((said.len(), unread), (8, 0));
        assert!(!said.iter().any(|column| column.contains("cpu_collision")), "{said:?}");
        assert_eq!(said[0], "net/softnet_stat/cpu10/processed 54630593 packets");
        assert_eq!(said[2], "net/softnet_stat/cpu10/time_squeeze 20 polls");
        assert_eq!(said[7], "net/softnet_stat/cpu10/process_qlen 5 packets");
        let old = "1 0 0 0 0 0 0 0 3\nff 0 0 0 0 0 0 0 0\n";
        let (said, unread) = found(softnet_stat, old);
        assert_eq!((said.len(), unread), (8, 0));
        assert_eq!(said[3], "net/softnet_stat/cpu0/cpu_collision 3 times");
        assert_eq!(said[4], "net/softnet_stat/cpu1/processed 255 packets");
    }

    #[test]
    fn a_short_line_or_one_that_is_no_number_is_counted() {
        assert_eq!(found(softnet_stat, "1 2 3\nxyz\n\n1ffffffff 0 0 0 0 0 0 0 0\n"), (vec![], 4));
    }
}
