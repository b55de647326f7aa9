//! /proc/interrupts and /proc/softirqs: a line for each, a number for each CPU.
//!
//! Source: kernel/irq/proc.c, fs/proc/softirqs.c.

use super::{Kind, Readings};

/// Interrupts by line and CPU. A line without a CPU's column (`ERR`, `MIS`) is of the machine.
pub(crate) fn interrupts(text: &str, readings: &mut Readings) {
    table(text, "interrupts", readings);
}

/// Soft interrupts by kind and CPU.
pub(crate) fn softirqs(text: &str, readings: &mut Readings) {
    table(text, "softirqs", readings);
}

fn table(text: &str, unit: &'static str, readings: &mut Readings) {
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
        if row(key.trim(), rest, &cpus, unit, readings).is_none() {
            readings.unread += 1;
        }
    }
}

/// The CPUs that the head names: `CPU0 CPU2`. One that is off line has no column.
fn cpus(head: &str) -> Option<Vec<u32>> {
    let names = head.split_ascii_whitespace().map(|name| name.strip_prefix("CPU")?.parse().ok());
    names.collect::<Option<Vec<u32>>>().filter(|cpus| !cpus.is_empty())
}

fn row(
    key: &str,
    rest: &str,
    cpus: &[u32],
    unit: &'static str,
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
    if counts.len() == 1 && cpus.len() > 1 {
        readings.counter(format_args!("{unit}/{key}"), unit, first);
        return Some(());
    }
    if counts.len() < cpus.len() {
        return None;
    }
    for (cpu, count) in cpus.iter().zip(counts) {
        let name = format_args!("{unit}/{key}/cpu{cpu}");
        readings.put(name, unit, Kind::Counter, rest.trim_end(), count);
    }
    Some(())
}

/// Takes a number off the front, with the blanks behind it.
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
    fn a_line_with_fewer_numbers_than_cpus_is_counted_and_not_guessed_at() {
        let text = "CPU0 CPU1 CPU2\nNET_RX: 1 2\nTIMER: 1 2 3\nnothing\n: 1 2 3\nHI: x\n";
        let (said, unread) = found(softirqs, text);
        assert_eq!(said.len(), 3);
        assert_eq!(unread, 4);
        assert_eq!(found(softirqs, "no head\nTIMER: 1\n"), (vec![], 1));
    }
}
