//! One line for each look at the machine: what it does as a whole.

use linerate_prof::proc::{Column, Rate, Rates, Sample};

use crate::report::thousands;

/// Lines between two headings.
const PAGE: u64 = 20;

/// Shows samples, a line each.
#[derive(Debug, Default)]
pub struct Glance {
    rates: Rates,
    rate: Rate,
    lines: u64,
}

impl Glance {
    /// The line for `sample`, with a heading now and then; `None` for the first, of which there is
    /// no rate.
    pub fn line(&mut self, columns: &[Column], sample: &Sample) -> Option<String> {
        if !self.rates.step(columns, sample, &mut self.rate) {
            return None;
        }
        let mut text = String::new();
        if self.lines.is_multiple_of(PAGE) {
            text = format!(
                "{:>8} {:>6} {:>6} {:>6} {:>9} {:>9} {:>9} {:>10} {:>10}\n",
                "time s",
                "user %",
                "sys %",
                "idle %",
                "irq/s",
                "softirq/s",
                "switch/s",
                "rx pkt/s",
                "tx pkt/s"
            );
        }
        self.lines += 1;
        let cpu = |kinds: &[&str]| {
            let part = self
                .sum(columns, |name| kinds.iter().any(|kind| name == format!("stat/cpu/{kind}")));
            let all = self.sum(columns, |name| name.starts_with("stat/cpu/"));
            match (part, all) {
                (Some(part), Some(all)) if all > 0.0 => format!("{:.1}", 100.0 * part / all),
                _ => "n/a".into(),
            }
        };
        let rate =
            |of: Option<f64>| of.map_or_else(|| "n/a".into(), |n| thousands(n.round() as u64));
        let net = |key: &str| {
            let key = format!("/{key}");
            rate(self.sum(columns, |name| name.starts_with("net/dev/") && name.ends_with(&key)))
        };
        Some(
            text + &format!(
                "{:>8.1} {:>6} {:>6} {:>6} {:>9} {:>9} {:>9} {:>10} {:>10}\n",
                sample.t_ns as f64 / 1e9,
                cpu(&["user", "nice"]),
                cpu(&["system", "irq", "softirq"]),
                cpu(&["idle", "iowait"]),
                rate(self.sum(columns, |name| name == "stat/intr")),
                rate(self.sum(columns, |name| name == "stat/softirq")),
                rate(self.sum(columns, |name| name == "stat/ctxt")),
                net("rx_packets"),
                net("tx_packets"),
            ),
        )
    }

    /// Sum of the rates of the columns of that name; `None` if there is none.
    fn sum(&self, columns: &[Column], of: impl Fn(&str) -> bool) -> Option<f64> {
        let of = |(column, rate): (&Column, &Option<f64>)| rate.filter(|_| of(&column.name));
        columns.iter().zip(&self.rate.values).filter_map(of).reduce(|a, b| a + b)
    }
}
