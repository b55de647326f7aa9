//! CPU time, split into shares: user, system, idle and others.

use super::series::{Column, Sample};

/// The fields of a line `cpu` in /proc/stat, in order, in ticks of 1/100 s.
///
/// The kernel has `guest` in `user` too, and `guest_nice` in `nice`. An old one does not count the
/// later fields; those are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes(pub [Option<u64>; 10]);

/// Names of the fields.
const FIELDS: [&str; 10] =
    ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"];

/// Number of fields that sum to the whole time: the others are already included in these.
const PARTS: usize = 8;

/// Shares of CPU time in the order of /proc/stat, in per cent: user, nice, system, idle, iowait,
/// irq, softirq, steal. They sum to 100. A share that the kernel does not count separately is
/// `None`, and is included in another one; time that the hypervisor does not report is not in
/// steal.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Split(pub [Option<f64>; PARTS]);

impl CpuTimes {
    /// Parses the numbers after the name. Kernels before 2.6 have only the first four.
    #[must_use]
    pub fn parse(numbers: &str) -> Option<CpuTimes> {
        let mut times = [None; FIELDS.len()];
        let mut count = 0;
        for (time, word) in times.iter_mut().zip(numbers.split_ascii_whitespace()) {
            *time = Some(word.parse().ok()?);
            count += 1;
        }
        (count >= 4).then_some(CpuTimes(times))
    }

    /// Returns the name and ticks of each field that the kernel counts.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        FIELDS.into_iter().zip(self.0).filter_map(|(name, ticks)| Some((name, ticks?)))
    }

    /// Returns the times since `before`; `None` if a time decreased, as for a CPU that was offline
    /// in between. A small decrease of idle time, which kernels sometimes report, counts as 0.
    #[must_use]
    pub fn since(&self, before: &CpuTimes) -> Option<CpuTimes> {
        let mut since = CpuTimes::default();
        let times = self.0.into_iter().zip(before.0).zip(FIELDS);
        for (to, ((now, then), field)) in since.0.iter_mut().zip(times) {
            let Some((now, then)) = now.zip(then) else { continue };
            *to = match field {
                "idle" | "iowait" => Some(now.saturating_sub(then)),
                _ => Some(now.checked_sub(then)?),
            };
        }
        Some(since)
    }

    /// Returns the shares of the times; `None` if the times sum to 0.
    #[must_use]
    pub fn split(&self) -> Option<Split> {
        let whole: u128 = self.0.iter().take(PARTS).flatten().map(|&ticks| u128::from(ticks)).sum();
        // Every kernel reports the first four fields.
        if whole == 0 || self.0[..4].contains(&None) {
            return None;
        }
        let mut shares = [None; PARTS];
        for (share, ticks) in shares.iter_mut().zip(self.0) {
            *share = ticks.map(|ticks| 100.0 * ticks as f64 / whole as f64);
        }
        Some(Split(shares))
    }
}

impl Split {
    /// Returns the sum of the shares with these names; a share that the kernel does not separate is
    /// part of another.
    #[must_use]
    pub fn sum(&self, names: &[&str]) -> f64 {
        let named = FIELDS.iter().zip(self.0).filter(|(name, _)| names.contains(name));
        named.filter_map(|(_, pct)| pct).sum()
    }

    /// Returns the time split of each CPU between two samples: `cpu` for the machine, `cpuN` for
    /// each CPU. A CPU that was offline at one of them, or whose time decreased, is left out.
    #[must_use]
    pub fn between(columns: &[Column], before: &Sample, after: &Sample) -> Vec<(String, Split)> {
        let mut cpus: Vec<(&str, CpuTimes, CpuTimes)> = Vec::new();
        let values = before.values.iter().zip(&after.values);
        for (column, (then, now)) in columns.iter().zip(values) {
            let Some((cpu, field)) = cpu_field(&column.name) else { continue };
            if cpus.last().is_none_or(|(last, ..)| *last != cpu) {
                cpus.push((cpu, CpuTimes::default(), CpuTimes::default()));
            }
            if let Some((_, before, after)) = cpus.last_mut() {
                (before.0[field], after.0[field]) = (*then, *now);
            }
        }
        let split = |(cpu, before, after): (&str, CpuTimes, CpuTimes)| {
            Some((cpu.into(), after.since(&before)?.split()?))
        };
        cpus.into_iter().filter_map(split).collect()
    }
}

/// Splits a name such as `stat/cpu0/user` into its CPU and the index of its field.
fn cpu_field(name: &str) -> Option<(&str, usize)> {
    let (cpu, field) = name.strip_prefix("stat/cpu")?.rsplit_once('/')?;
    let at = FIELDS.iter().position(|&known| known == field)?;
    // The name includes the `cpu` that was stripped.
    Some((&name["stat/".len().."stat/cpu".len() + cpu.len()], at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::Kind;

    #[test]
    fn shares_sum_to_100_and_a_guests_time_is_not_counted_twice() {
        let times = CpuTimes::parse("30 0 20 50 0 0 0 0 30 0").unwrap();
        let split = times.split().unwrap();
        assert_eq!(split.0[..4], [Some(30.0), Some(0.0), Some(20.0), Some(50.0)]);
        assert!((split.sum(&FIELDS) - 100.0).abs() < 1e-9 && split.sum(&["user"]) == 30.0);
        assert_eq!(CpuTimes::default().split(), None);
    }

    #[test]
    fn an_old_kernels_four_numbers_are_read_and_three_are_not() {
        let old = CpuTimes::parse(" 1 2 3 4").unwrap();
        assert_eq!(old.0[..5], [Some(1), Some(2), Some(3), Some(4), None]);
        let split = old.split().unwrap();
        assert_eq!((split.0[3], split.0[4], split.0[7]), (Some(40.0), None, None));
        assert_eq!(CpuTimes::parse("1 2 3"), None);
        let most = u64::MAX.to_string();
        let whole = CpuTimes::parse(&[most.as_str(); 8].join(" ")).unwrap();
        assert!((whole.split().unwrap().sum(&["user"]) - 12.5).abs() < 1e-9);
    }

    #[test]
    fn idle_time_that_is_taken_back_is_0_and_other_time_that_is_cannot_be_told() {
        let times = |text: &str| CpuTimes::parse(text).unwrap();
        let before = times("10 0 10 10 10");
        let since = times("20 0 10 20 9").since(&before).unwrap();
        assert_eq!(since.0[..5], [Some(10), Some(0), Some(0), Some(10), Some(0)]);
        assert_eq!(times("9 0 10 20 10").since(&before), None);
    }

    #[test]
    fn each_cpu_is_split_between_two_samples_and_one_that_cannot_be_told_is_left_out() {
        let cpus = ["cpu", "cpu0", "cpu1", "cpu2"];
        let name = |cpu, field| format!("stat/{cpu}/{field}");
        let names = cpus.into_iter().flat_map(|cpu| FIELDS.map(|field| name(cpu, field)));
        let column =
            |name| Column { name, unit: "ns".into(), kind: Kind::Counter, about: "".into() };
        let columns: Vec<Column> = names.map(column).collect();
        let mut before = Sample { values: vec![Some(100); 40], ..Sample::default() };
        let mut after = before.clone();
        (after.values[0], after.values[3]) = (Some(125), Some(175));
        // The first CPU's time of waiting for a disk is taken back, which is not all of its time.
        after.values[14] = Some(99);
        (after.values[16], after.values[13]) = (Some(101), Some(100));
        (after.values[20], after.values[21]) = (Some(99), Some(101));
        (before.values[30], after.values[31]) = (None, Some(101));
        let split = Split::between(&columns, &before, &after);
        let [(all, machine), (first, cpu0)] = &split[..] else { panic!("{split:?}") };
        assert_eq!((all.as_str(), machine.0[0], machine.0[3]), ("cpu", Some(25.0), Some(75.0)));
        assert_eq!((first.as_str(), cpu0.0[6]), ("cpu0", Some(100.0)));
    }
}
