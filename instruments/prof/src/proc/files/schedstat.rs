//! Parser of /proc/schedstat: time running, and time waiting to run, by CPU.
//!
//! Source: Documentation/scheduler/sched-stats.rst; versions 15 and later.

use super::Readings;

/// Last fields of a line `cpuN`, since version 15.
const FIELDS: [(&str, &str); 3] = [("run", "ns"), ("run_delay", "ns"), ("slices", "slices")];

/// Reads the time that tasks ran and waited on each CPU. A file of an older version has other
/// fields, and is not read.
pub(crate) fn schedstat(text: &str, readings: &mut Readings) {
    let version = text.lines().next().and_then(|line| line.strip_prefix("version "));
    if version.and_then(|n| n.trim().parse().ok()).is_none_or(|n: u32| n < 15) {
        readings.unread += u64::from(!text.is_empty());
        return;
    }
    for line in text.lines().filter(|line| line.starts_with("cpu")) {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next().unwrap_or_default();
        // Skip the six numbers before FIELDS, which count calls of the scheduler.
        let values: Vec<u64> = words.skip(6).map_while(|word| word.parse().ok()).collect();
        if values.len() < FIELDS.len() {
            readings.unread += 1;
            continue;
        }
        for ((field, unit), value) in FIELDS.into_iter().zip(values) {
            readings.counter(format_args!("schedstat/{cpu}/{field}"), unit, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::*;

    #[test]
    fn each_cpu_has_run_waited_and_been_given_slices() {
        let text = "version 17\ntimestamp 42\ncpu0 1 0 2 3 4 5 600 70 8\ndomain0 MC 3 9 9\n";
        let expected = [
            "schedstat/cpu0/run 600 ns",
            "schedstat/cpu0/run_delay 70 ns",
            "schedstat/cpu0/slices 8 slices",
        ];
        assert_eq!(found(schedstat, text), (expected.map(str::to_owned).to_vec(), 0));
    }

    #[test]
    fn an_old_version_and_a_short_line_are_counted_and_not_read() {
        assert_eq!(found(schedstat, "version 12\ncpu0 1 2 3 4 5 6 7 8 9 10 11 12\n"), (vec![], 1));
        assert_eq!(found(schedstat, "version 15\ncpu0 1 2 3\n"), (vec![], 1));
    }
}
