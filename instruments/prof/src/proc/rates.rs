//! Rates: the growth of a counter from one sample to the next.

use super::series::{Column, Kind, Sample};

/// A converter of samples into rates, which stores the previous sample.
#[derive(Debug, Default)]
pub struct Rates {
    before: Option<Sample>,
}

/// The rate of a column between two samples.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rate {
    /// End of the interval: the time of the later sample.
    pub t_ns: u64,
    /// Time between the samples; longer than a period if periods were missed.
    pub span_ns: u64,
    /// For each column, in its [`rate_unit`](Column::rate_unit): a counter's rate, a gauge's value
    /// at the end. `None` where a sample had no value, and where the counter wrapped or restarted,
    /// so that its growth is unknown.
    pub values: Vec<Option<f64>>,
    /// Number of counters that wrapped or restarted.
    pub resets: u64,
}

impl Rates {
    /// Stores the rates between the previous sample and this one in `rate`; returns false for the
    /// first sample.
    pub fn step(&mut self, columns: &[Column], sample: &Sample, rate: &mut Rate) -> bool {
        let Some(before) = &mut self.before else {
            self.before = Some(sample.clone());
            return false;
        };
        let span_ns = sample.t_ns.saturating_sub(before.t_ns);
        (rate.t_ns, rate.span_ns, rate.resets) = (sample.t_ns, span_ns, 0);
        rate.values.clear();
        for (at, (column, &now)) in columns.iter().zip(&sample.values).enumerate() {
            let then = before.values.get(at).copied().flatten();
            let value = match (column.kind, now, then) {
                (Kind::Gauge, Some(now), _) => Some(now as f64),
                (Kind::Counter, Some(now), Some(then)) if now < then => {
                    rate.resets += 1;
                    None
                }
                (Kind::Counter, Some(now), Some(then)) if span_ns > 0 => {
                    Some(column.rate(now - then, span_ns))
                }
                _ => None,
            };
            rate.values.push(value);
        }
        before.clone_from(sample);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(unit: &str, kind: Kind) -> Column {
        Column { name: "x".into(), unit: unit.into(), kind, about: String::new() }
    }

    fn sample(t_ns: u64, values: [Option<u64>; 3]) -> Sample {
        Sample { t_ns, values: values.to_vec(), ..Sample::default() }
    }

    #[test]
    fn a_counter_has_a_rate_time_a_share_and_a_gauge_its_value() {
        let columns = [
            column("packets", Kind::Counter),
            column("ns", Kind::Counter),
            column("packets", Kind::Gauge),
        ];
        let units = columns.each_ref().map(Column::rate_unit);
        assert_eq!(units, ["packets/s", "%", "packets"]);
        let (mut rates, mut rate) = (Rates::default(), Rate::default());
        assert!(!rates.step(&columns, &sample(0, [Some(10), Some(0), Some(3)]), &mut rate));
        let later = sample(500_000_000, [Some(60), Some(100_000_000), Some(2)]);
        assert!(rates.step(&columns, &later, &mut rate));
        assert_eq!(rate.values, [Some(100.0), Some(20.0), Some(2.0)]);
        assert_eq!((rate.span_ns, rate.resets), (500_000_000, 0));
    }

    #[test]
    fn a_wrap_or_a_value_that_is_missing_is_a_gap_and_never_a_negative_rate() {
        let columns = [(); 3].map(|()| column("packets", Kind::Counter));
        let (mut rates, mut rate) = (Rates::default(), Rate::default());
        rates.step(&columns, &sample(0, [Some(10), None, Some(5)]), &mut rate);
        rates.step(&columns, &sample(1, [Some(9), Some(1), None]), &mut rate);
        assert_eq!((rate.values.as_slice(), rate.resets), ([None; 3].as_slice(), 1));
        rates.step(&columns, &sample(1_000_000_001, [Some(10), Some(1), Some(7)]), &mut rate);
        assert_eq!(
            (rate.values.as_slice(), rate.resets),
            ([Some(1.0), Some(0.0), None].as_slice(), 0)
        );
    }

    #[test]
    fn a_column_that_came_later_has_no_rate_at_first() {
        let columns = [(); 2].map(|()| column("packets", Kind::Counter));
        let (mut rates, mut rate) = (Rates::default(), Rate::default());
        let first = Sample { values: vec![Some(1)], ..Sample::default() };
        rates.step(&columns[..1], &first, &mut rate);
        let second = Sample { t_ns: 1, values: vec![Some(1), Some(9)], ..Sample::default() };
        rates.step(&columns, &second, &mut rate);
        assert_eq!(rate.values, [Some(0.0), None]);
    }
}
