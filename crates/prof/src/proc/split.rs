//! CPU time, by what it went to.

use serde::{Deserialize, Serialize};

use super::series::{Column, Sample};

/// What a line `cpu` of /proc/stat holds, in its order and its ticks of 1/100 s.
///
/// The kernel has `guest` in `user` too, and `guest_nice` in `nice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes(pub [u64; 10]);

/// Names of what a line holds.
const FIELDS: [&str; 10] =
    ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"];

/// Fields that sum to all time: the rest is in these already.
const PARTS: usize = 8;

/// Shares of CPU time, in per cent; they sum to 100.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Split {
    /// Programs.
    pub user_pct: f64,
    /// Programs that were made nice.
    pub nice_pct: f64,
    /// The kernel on behalf of programs, and its own threads.
    pub system_pct: f64,
    /// Nothing.
    pub idle_pct: f64,
    /// Nothing, while a disk was waited for.
    pub iowait_pct: f64,
    /// Interrupts.
    pub irq_pct: f64,
    /// Soft interrupts: where packets are received.
    pub softirq_pct: f64,
    /// Another machine of the same host; what a hypervisor does not tell is not in it.
    pub steal_pct: f64,
}

impl CpuTimes {
    /// The numbers behind the name. Kernels before 2.6 have four of them, and none of the rest.
    #[must_use]
    pub fn parse(numbers: &str) -> Option<CpuTimes> {
        let mut times = [0; FIELDS.len()];
        let mut count = 0;
        for (time, word) in times.iter_mut().zip(numbers.split_ascii_whitespace()) {
            *time = word.parse().ok()?;
            count += 1;
        }
        (count >= 4).then_some(CpuTimes(times))
    }

    /// Names and ticks.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        FIELDS.into_iter().zip(self.0)
    }

    /// What went by since `before`. The kernel takes back idle time now and then: then it is 0.
    #[must_use]
    pub fn since(&self, before: &CpuTimes) -> CpuTimes {
        let mut since = self.0;
        since.iter_mut().zip(before.0).for_each(|(now, then)| *now = now.saturating_sub(then));
        CpuTimes(since)
    }

    /// Shares of it; `None` if it is no time at all.
    #[must_use]
    pub fn split(&self) -> Option<Split> {
        let whole: u128 = self.0.iter().take(PARTS).map(|&ticks| u128::from(ticks)).sum();
        if whole == 0 {
            return None;
        }
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] =
            self.0.map(|ticks| 100.0 * ticks as f64 / whole as f64);
        Some(Split {
            user_pct: user,
            nice_pct: nice,
            system_pct: system,
            idle_pct: idle,
            iowait_pct: iowait,
            irq_pct: irq,
            softirq_pct: softirq,
            steal_pct: steal,
        })
    }
}

impl Split {
    /// Shares in the order and by the names of /proc/stat.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, f64); PARTS] {
        [
            ("user", self.user_pct),
            ("nice", self.nice_pct),
            ("system", self.system_pct),
            ("idle", self.idle_pct),
            ("iowait", self.iowait_pct),
            ("irq", self.irq_pct),
            ("softirq", self.softirq_pct),
            ("steal", self.steal_pct),
        ]
    }

    /// What each CPU did between two samples: `cpu` for the machine, `cpuN` for each. A CPU that was
    /// not on line at both, or whose time went backwards, is left out.
    #[must_use]
    pub fn between(columns: &[Column], before: &Sample, after: &Sample) -> Vec<(String, Split)> {
        // `None` once a field could not be told.
        let mut cpus: Vec<(&str, Option<CpuTimes>)> = Vec::new();
        let values = before.values.iter().zip(&after.values);
        for (column, (then, now)) in columns.iter().zip(values) {
            let Some((cpu, field)) = cpu_field(&column.name) else { continue };
            if cpus.last().is_none_or(|(last, _)| *last != cpu) {
                cpus.push((cpu, Some(CpuTimes::default())));
            }
            let since = now.zip(*then).and_then(|(now, then)| now.checked_sub(then));
            if let Some((_, times)) = cpus.last_mut() {
                *times = times.zip(since).map(|(mut times, ns)| {
                    times.0[field] = ns;
                    times
                });
            }
        }
        let split = |(cpu, times): (&str, Option<CpuTimes>)| Some((cpu.into(), times?.split()?));
        cpus.into_iter().filter_map(split).collect()
    }
}

/// `stat/cpu0/user` as CPU and index of the field.
fn cpu_field(name: &str) -> Option<(&str, usize)> {
    let (cpu, field) = name.strip_prefix("stat/cpu")?.rsplit_once('/')?;
    let at = FIELDS.iter().position(|&known| known == field)?;
    // With the `cpu` that was stripped.
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
        assert_eq!((split.user_pct, split.system_pct, split.idle_pct), (30.0, 20.0, 50.0));
        assert!((split.parts().iter().map(|(_, pct)| pct).sum::<f64>() - 100.0).abs() < 1e-9);
        assert_eq!(CpuTimes::default().split(), None);
    }

    #[test]
    fn an_old_kernels_four_numbers_are_read_and_three_are_not() {
        assert_eq!(CpuTimes::parse(" 1 2 3 4").unwrap().0[..5], [1, 2, 3, 4, 0]);
        assert_eq!(CpuTimes::parse("1 2 3"), None);
        let most = u64::MAX.to_string();
        let whole = CpuTimes::parse(&[most.as_str(); 8].join(" ")).unwrap();
        assert!((whole.split().unwrap().user_pct - 12.5).abs() < 1e-9);
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
        (after.values[16], after.values[13]) = (Some(101), Some(100));
        (after.values[20], after.values[21]) = (Some(99), Some(101));
        (before.values[30], after.values[31]) = (None, Some(101));
        let split = Split::between(&columns, &before, &after);
        let [(all, machine), (first, cpu0)] = &split[..] else { panic!("{split:?}") };
        assert_eq!((all.as_str(), machine.user_pct, machine.idle_pct), ("cpu", 25.0, 75.0));
        assert_eq!((first.as_str(), cpu0.softirq_pct), ("cpu0", 100.0));
    }
}
