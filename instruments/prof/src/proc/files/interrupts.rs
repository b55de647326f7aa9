//! Parsers of /proc/interrupts and /proc/softirqs, which have a line for each interrupt and a
//! column for each CPU.
//!
//! A machine of 256 CPUs has 300 lines of interrupts: as many columns as that would leave no room
//! for anything else. Where lines times CPUs are more than [`BY_CPU_MAX`], a line is one column,
//! the sum over the CPUs, and says so.
//!
//! Source: kernel/irq/proc.c, fs/proc/softirqs.c.

use super::{Kind, Readings};

/// Most columns for interrupts by CPU: a quarter of the columns that a series can have.
const BY_CPU_MAX: usize = 1 << 14;

/// Reads interrupts by line and CPU. A line without columns for CPUs (`ERR`, `MIS`) counts for the
/// whole machine.
pub(crate) fn interrupts(text: &str, readings: &mut Readings) {
    // Decide this once for a series, or one more line in the file could replace all columns by
    // others.
    let cells = || {
        let cpus = text.lines().next().and_then(cpus).map_or(0, |cpus| cpus.len());
        cpus.saturating_mul(text.lines().count().saturating_sub(1))
    };
    let by_cpu = *readings.interrupts_by_cpu.get_or_insert_with(|| cells() <= BY_CPU_MAX);
    table(text, "interrupts", by_cpu, readings);
}

/// Reads soft interrupts by kind and CPU.
pub(crate) fn softirqs(text: &str, readings: &mut Readings) {
    table(text, "softirqs", true, readings);
}

fn table(text: &str, unit: &'static str, by_cpu: bool, readings: &mut Readings) {
    let mut lines = text.lines();
    let Some(cpus) = lines.next().and_then(cpus) else {
        readings.unread += u64::from(!text.is_empty());
        return;
    };
    for line in lines {
        let Some((key, rest)) = line.split_once(':') else {
            readings.unread += 1;
            continue;
        };
        if row(key.trim(), rest, &cpus, (unit, by_cpu), readings).is_none() {
            readings.unread += 1;
        }
    }
}

/// Returns the CPUs in the heading: `CPU0 CPU2`. An offline CPU has no column.
fn cpus(head: &str) -> Option<Vec<u32>> {
    let names = head.split_ascii_whitespace().map(|name| name.strip_prefix("CPU")?.parse().ok());
    names.collect::<Option<Vec<u32>>>().filter(|cpus| !cpus.is_empty())
}

fn row(
    key: &str,
    rest: &str,
    cpus: &[u32],
    (unit, by_cpu): (&'static str, bool),
    readings: &mut Readings,
) -> Option<()> {
    let mut rest = rest.trim_start();
    let first = number(&mut rest).filter(|_| !key.is_empty())?;
    let mut counts = vec![first];
    while counts.len() < cpus.len() {
        match number(&mut rest) {
            Some(count) => counts.push(count),
            None => break,
        }
    }
    // With one CPU, `ERR: 0` looks like that CPU's count. Unlike a count for each CPU, it has no
    // description after it.
    let named = key.bytes().any(|b| !b.is_ascii_digit());
    let of_machine = unit == "interrupts" && named && rest.trim_end().is_empty();
    if counts.len() == 1 && (cpus.len() > 1 || of_machine) {
        readings.counter(format_args!("{unit}/{key}"), unit, first);
        return Some(());
    }
    if counts.len() < cpus.len() {
        return None;
    }
    if !by_cpu {
        let sum = counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        let about = format!("sum of {} CPUs: {}", cpus.len(), rest.trim_end());
        readings.put(format_args!("{unit}/{key}"), unit, Kind::Counter, &about, sum);
        return Some(());
    }
    for (cpu, count) in cpus.iter().zip(counts) {
        let name = format_args!("{unit}/{key}/cpu{cpu}");
        readings.put(name, unit, Kind::Counter, rest.trim_end(), count);
    }
    Some(())
}

/// Removes the number at the start of `rest`, with the blanks after it, and returns the number.
fn number(rest: &mut &str) -> Option<u64> {
    let end = rest.find(|c: char| c.is_ascii_whitespace()).unwrap_or(rest.len());
    let (word, behind) = rest.split_at(end);
    let number = word.parse().ok()?;
    *rest = behind.trim_start();
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::*;

    const TEXT: &str = "           CPU0       CPU2       \n\
        \x2036:          1     980306 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0\n\
        LOC:    8660607    8755097   Local timer interrupts\n\
        ERR:          7\n";

    #[test]
    fn a_line_of_interrupts_has_a_column_for_each_cpu_on_line_and_says_whose_it_is() {
        let (said, unread) = found(interrupts, TEXT);
        let expected = [
            "interrupts/36/cpu0 1 interrupts",
            "interrupts/36/cpu2 980306 interrupts",
            "interrupts/LOC/cpu0 8660607 interrupts",
            "interrupts/LOC/cpu2 8755097 interrupts",
            "interrupts/ERR 7 interrupts",
        ];
        assert_eq!((said, unread), (expected.map(str::to_owned).to_vec(), 0));
        let mut readings = Readings::default();
        interrupts(TEXT, &mut readings);
        let about = &readings.columns()[0].about;
        assert_eq!(about, "PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0");
    }

    #[test]
    fn with_one_cpu_errors_are_still_the_machines() {
        let text = "CPU0\n 36: 7 PCI-MSI eth0\nLOC: 9 Local timer interrupts\nERR: 3\n";
        let (said, _) = found(interrupts, text);
        assert_eq!(said[1], "interrupts/LOC/cpu0 9 interrupts");
        assert_eq!(said[2], "interrupts/ERR 3 interrupts");
        assert_eq!(found(softirqs, "CPU0\nHI: 3\n").0, ["softirqs/HI/cpu0 3 softirqs"]);
        // Two lines of one name are added up.
        let (said, _) = found(interrupts, "CPU0\nLOC: 5 for the timer\nLOC: 6 for others\n");
        assert_eq!(said, ["interrupts/LOC/cpu0 11 interrupts"]);
    }

    #[test]
    fn many_cpus_share_one_column_that_stays_one() {
        let text = |lines: usize| {
            let cpus: String = (0..256).map(|cpu| format!("CPU{cpu} ")).collect();
            let line = |irq| format!("{irq}: {}PCI-MSI nic-q{irq}\n", "2 ".repeat(256));
            format!("{cpus}\n{}ERR: 0\n", (0..lines).map(line).collect::<String>())
        };
        let mut readings = Readings::default();
        interrupts(&text(300), &mut readings);
        assert_eq!((readings.columns().len(), readings.refused), (301, 0));
        let first = &readings.columns()[0];
        assert_eq!((first.name.as_str(), readings.values()[0]), ("interrupts/0", Some(512)));
        assert_eq!(first.about, "sum of 256 CPUs: PCI-MSI nic-q0");
        readings.begin();
        interrupts(&text(3), &mut readings);
        assert_eq!(readings.columns().len(), 301);
        assert_eq!(found(interrupts, &text(3)).0.len(), 3 * 256 + 1);
    }

    #[test]
    fn a_line_with_fewer_numbers_than_cpus_is_counted_and_not_guessed_at() {
        let text = "CPU0 CPU1 CPU2\nNET_RX: 1 2\nTIMER: 1 2 3\nnothing\n: 1 2 3\nHI: x\n";
        let (said, unread) = found(softirqs, text);
        assert_eq!(said.len(), 3);
        assert_eq!(unread, 4);
        assert_eq!(found(softirqs, "no head\nTIMER: 1\n"), (vec![], 1));
    }
}
