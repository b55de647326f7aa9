//! Parsers of the files in /proc that have counters: one function for each file.

mod interrupts;
mod schedstat;
mod softnet;
mod stat;

use std::collections::HashMap;
use std::fmt::{Arguments, Write};

pub(super) use interrupts::{interrupts, softirqs};
pub(super) use schedstat::schedstat;
pub(super) use softnet::softnet_stat;
pub(super) use stat::{cpu_lines, stat};

use super::netdev;
use super::series::{COLUMNS_MAX, Column, Kind};

/// The output of the parsers: values by name.
#[derive(Debug, Default)]
pub(super) struct Readings {
    columns: Vec<Column>,
    /// Value of each column in this sample.
    values: Vec<Option<u64>>,
    by_name: HashMap<String, usize>,
    /// Index of the column that probably comes next, because files keep their order.
    next: usize,
    name: String,
    /// True if each CPU's interrupts have columns of their own, as on machines with few CPUs;
    /// `None` until the first reading.
    interrupts_by_cpu: Option<bool>,
    /// Number of lines that are invalid or unknown.
    pub unread: u64,
    /// Values without a column, because there are too many columns or the name cannot be printed.
    pub refused: u64,
}

impl Readings {
    /// Clears the values, and keeps the columns.
    pub fn begin(&mut self) {
        self.values.fill(None);
        self.next = 0;
    }

    /// Returns the columns so far.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the values so far, one for each column.
    pub fn values(&self) -> &[Option<u64>] {
        &self.values
    }

    /// Stores the value of a counter.
    pub fn counter(&mut self, name: Arguments<'_>, unit: &'static str, value: u64) {
        self.put(name, unit, Kind::Counter, "", value);
    }

    /// Stores a value under its name, and adds a column for a new name. Two values with one name in
    /// one sample are added.
    pub fn put(
        &mut self,
        name: Arguments<'_>,
        unit: &'static str,
        kind: Kind,
        about: &str,
        value: u64,
    ) {
        self.name.clear();
        // Writing to a String does not fail.
        let _ = self.name.write_fmt(name);
        let expected = self.columns.get(self.next).is_some_and(|column| column.name == self.name);
        let at = if expected { Some(self.next) } else { self.by_name.get(&self.name).copied() };
        let Some(at) = at.or_else(|| self.add(unit, kind, about)) else {
            self.refused += 1;
            return;
        };
        // The index is valid: there are as many values as columns.
        self.values[at] = Some(self.values[at].map_or(value, |more| more.saturating_add(value)));
        self.next = at + 1;
    }

    /// Adds a column, if there is room for it and its name can be printed.
    fn add(&mut self, unit: &'static str, kind: Kind, about: &str) -> Option<usize> {
        let (at, name) = (self.columns.len(), self.name.clone());
        let column = Column { name, unit: unit.into(), kind, about: about.into() };
        if at == COLUMNS_MAX || !column.is_sound() {
            return None;
        }
        self.by_name.insert(column.name.clone(), at);
        self.columns.push(column);
        self.values.push(None);
        Some(at)
    }
}

/// Reads the counters of network devices from the text of /proc/net/dev.
pub(super) fn net_dev(text: &str, readings: &mut Readings) {
    let (devices, unread) = netdev::devices(text);
    readings.unread += unread;
    for device in &devices {
        for (field, &count) in netdev::FIELDS.iter().zip(&device.counts) {
            let unit = if field.ends_with("bytes") { "bytes" } else { "packets" };
            readings.counter(format_args!("net/dev/{}/{field}", device.name), unit, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PARSERS: [fn(&str, &mut Readings); 6] =
        [interrupts, softirqs, stat, net_dev, softnet_stat, schedstat];

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(\\PC|[\n\t 0-9a-f:]){0,400}") {
            for parse in PARSERS {
                parse(&text, &mut Readings::default());
            }
        }

        #[test]
        fn any_cut_of_a_good_text_is_read_without_a_panic(at in 0usize..2000) {
            for path in ["interrupts", "softirqs", "stat", "net/dev", "net/softnet_stat"] {
                let text = std::fs::read_to_string(format!("/proc/{path}")).unwrap();
                let cut: String = text.chars().take(at).collect();
                for parse in PARSERS {
                    parse(&cut, &mut Readings::default());
                }
            }
        }
    }

    #[test]
    fn columns_keep_their_place_and_a_device_that_went_has_no_value() {
        let device = |name: &str, n: u64| format!("{name}: {n} {}\n", "0 ".repeat(15));
        let mut readings = Readings::default();
        net_dev(&format!("\n\n{}{}", device("a", 1), device("b", 2)), &mut readings);
        readings.begin();
        net_dev(&format!("\n\n{}{}", device("b", 3), device("c", 4)), &mut readings);
        let at = |name: &str| readings.columns().iter().position(|c| c.name == name).unwrap();
        let value = |name: &str| readings.values()[at(name)];
        assert_eq!(at("net/dev/b/rx_bytes"), 16);
        assert_eq!(value("net/dev/a/rx_bytes"), None);
        assert_eq!(value("net/dev/b/rx_bytes"), Some(3));
        assert_eq!(value("net/dev/c/rx_bytes"), Some(4));
        assert_eq!(readings.columns().len(), 48);
    }

    #[test]
    fn more_columns_than_can_be_are_refused_and_counted() {
        let mut readings = Readings::default();
        for n in 0..COLUMNS_MAX as u64 + 3 {
            readings.counter(format_args!("{n}"), "", n);
        }
        assert_eq!((readings.columns().len(), readings.refused), (COLUMNS_MAX, 3));
        let mut readings = Readings::default();
        let escape = format!("\n\n\x1b[2J: {}\n", "1 ".repeat(16));
        net_dev(&escape, &mut readings);
        assert_eq!((readings.columns().len(), readings.refused), (0, 16));
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Returns the names, units and values that `parse` finds in `text`, and the number of lines
    /// not understood.
    pub fn found(parse: fn(&str, &mut Readings), text: &str) -> (Vec<String>, u64) {
        let mut readings = Readings::default();
        parse(text, &mut readings);
        let pairs = readings.columns.iter().zip(&readings.values);
        let said = pairs.map(|(c, value)| format!("{} {} {}", c.name, value.unwrap(), c.unit));
        (said.collect(), readings.unread)
    }
}
