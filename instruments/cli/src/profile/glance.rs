//! Summary of the machine in one line for each sample.

use linerate_prof::proc::{Column, Rate, Rates, Sample, Split};

use crate::report::thousands;

/// Lines between two headings.
const PAGE: u64 = 20;

/// Shows samples, a line each.
#[derive(Debug, Default)]
pub struct Glance {
    rates: Rates,
    rate: Rate,
    before: Sample,
    lines: u64,
}

impl Glance {
    /// Formats `sample` as a line, with a heading at intervals; returns `None` for the first
    /// sample, which has no rates.
    pub fn line(&mut self, columns: &[Column], sample: &Sample) -> Option<String> {
        let before = std::mem::replace(&mut self.before, sample.clone());
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
        let splits = Split::between(columns, &before, sample);
        let split = splits.iter().find(|(cpu, _)| cpu == "cpu").map(|(_, split)| split);
        let cpu = |kinds: &[&str]| match split {
            Some(split) => {
                let of = |(kind, pct): &(&str, Option<f64>)| pct.filter(|_| kinds.contains(kind));
                format!("{:.1}", split.parts().iter().filter_map(of).sum::<f64>())
            }
            None => "n/a".into(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_prof::proc::Kind;

    #[test]
    fn a_guests_time_is_in_user_already_and_counts_once() {
        let fields = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
        let name = |field: &str| format!("stat/cpu/{field}");
        let column =
            |name| Column { name, unit: "ns".into(), kind: Kind::Counter, about: String::new() };
        let names = fields.into_iter().chain(["guest", "guest_nice"]);
        let columns: Vec<Column> = names.map(|field| column(name(field))).collect();
        let sample = |t_ns, user, idle| {
            let mut values = vec![Some(0); 10];
            (values[0], values[3], values[8]) = (Some(user), Some(idle), Some(user));
            Sample { t_ns, values, ..Sample::default() }
        };
        let mut glance = Glance::default();
        assert_eq!(glance.line(&columns, &sample(0, 0, 0)), None);
        let line = glance.line(&columns, &sample(1_000_000_000, 500_000_000, 500_000_000)).unwrap();
        let figures: Vec<&str> = line.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(figures[1..4], ["50.0", "0.0", "50.0"], "{line}");
    }
}
