//! A series as a table: the changed columns, with lowest, mean and highest rate.

use std::fmt;

use linerate_show::grid::Grid;
use linerate_show::number;

use super::rates::{Rate, Rates};
use super::series::{Column, End, Feed, Header, Kind, Sample};
use super::split::Split;
use crate::Result;
use crate::text::figure;

/// The summary of a series. Its size is that of the columns, however long the series is.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Description that precedes the samples.
    pub header: Header,
    /// Columns, changed or not.
    pub columns: Vec<Changed>,
    /// Use of CPU time for each CPU between the first sample and the last.
    pub cpus: Vec<(String, Split)>,
    /// Numbers of samples, also of late and missed ones, and the cost of sampling.
    pub end: End,
    /// True if the series has no end, because its writer was killed or failed.
    pub cut_off: bool,
    /// Time from the first sample to the last.
    pub span_ns: u64,
}

/// The change of a column.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Changed {
    /// The column that is summarised.
    pub column: Column,
    /// True if any two values differ.
    pub changed: bool,
    /// Number of intervals, or of a gauge's values, from which the figures are computed.
    pub count: u64,
    /// Lowest rate or value, in the column's [`rate_unit`](Column::rate_unit).
    pub min: Option<f64>,
    /// Mean over the intervals, weighted by time; for a gauge, the mean of its values.
    pub mean: Option<f64>,
    /// Highest rate or value.
    pub max: Option<f64>,
    /// Times that the rate was unknown: a value was missing, or the counter wrapped or restarted.
    pub gaps: u64,
    /// Sums for the mean: value times weight, and weight.
    sums: (f64, f64),
    last: Option<u64>,
}

impl Summary {
    /// Reads all samples of `feed`.
    ///
    /// # Errors
    /// What `feed` failed with.
    pub fn of(feed: &mut dyn Feed) -> Result<Summary> {
        Summary::watching(feed, |_, _| Ok(()))
    }

    /// Reads all samples of `feed`, and passes each to `watch`, for instance to a
    /// [`Writer`](super::Writer). `end` does not include the cost of `watch`, which
    /// [`Writer::finish`](super::Writer::finish) returns.
    ///
    /// # Errors
    /// What `feed` or `watch` failed with.
    pub fn watching(
        feed: &mut dyn Feed,
        mut watch: impl FnMut(&[Column], &Sample) -> Result<()>,
    ) -> Result<Summary> {
        let mut summary = Summary {
            header: feed.header().clone(),
            columns: Vec::new(),
            cpus: Vec::new(),
            end: End::default(),
            cut_off: false,
            span_ns: 0,
        };
        let (mut rates, mut rate) = (Rates::default(), Rate::default());
        let (mut sample, mut first) = (Sample::default(), None);
        while feed.next(&mut sample)? {
            watch(feed.columns(), &sample)?;
            let since = rates.step(feed.columns(), &sample, &mut rate).then_some(&rate);
            summary.add(feed.columns(), &sample, since);
            if first.is_none() {
                first = Some(sample.clone());
            }
        }
        summary.cut_off = feed.end().is_none();
        if let Some(End { own_ns, unread, refused, .. }) = feed.end() {
            // Use the larger cost: the one in the file includes the cost of writing it.
            let own_ns = own_ns.max(summary.end.own_ns);
            summary.end = End { own_ns, unread, refused, ..summary.end };
        }
        if let Some(first) = first {
            summary.span_ns = sample.t_ns.saturating_sub(first.t_ns);
            summary.cpus = Split::between(feed.columns(), &first, &sample);
        }
        Ok(summary)
    }

    fn add(&mut self, columns: &[Column], sample: &Sample, rate: Option<&Rate>) {
        self.end.count(sample, self.header.period_ns);
        let new = columns.iter().skip(self.columns.len()).cloned();
        self.columns.extend(new.map(|column| Changed { column, ..Changed::default() }));
        for (at, (changed, &value)) in self.columns.iter_mut().zip(&sample.values).enumerate() {
            let of_time = rate.map(|rate| (rate.values.get(at).copied().flatten(), rate.span_ns));
            changed.add(value, of_time);
        }
    }
}

impl Changed {
    fn add(&mut self, value: Option<u64>, rate: Option<(Option<f64>, u64)>) {
        self.changed |= self.last.zip(value).is_some_and(|(last, now)| last != now);
        self.last = value.or(self.last);
        let (said, weight) = match (self.column.kind, rate) {
            (Kind::Gauge, _) => (value.map(|value| value as f64), 1.0),
            (Kind::Counter, Some((rate, span_ns))) => (rate, span_ns as f64),
            // The first sample ends no interval.
            (Kind::Counter, None) => return,
        };
        let Some(said) = said else {
            self.gaps += 1;
            return;
        };
        self.count += 1;
        self.min = Some(self.min.map_or(said, |min| min.min(said)));
        self.max = Some(self.max.map_or(said, |max| max.max(said)));
        self.sums = (self.sums.0 + said * weight, self.sums.1 + weight);
        self.mean = (self.sums.1 > 0.0).then(|| self.sums.0 / self.sums.1);
    }

    /// Returns true if the column changed, or is a gauge other than 0.
    fn says_something(&self) -> bool {
        let stood = self.column.kind == Kind::Gauge && self.max.is_some_and(|max| max > 0.0);
        self.changed || stood
    }

    fn row(&self) -> [String; 7] {
        let said = |value: Option<f64>| value.map_or("n/a".into(), figure);
        [
            self.column.name.clone(),
            said(self.min),
            said(self.mean),
            said(self.max),
            self.column.rate_unit(),
            number::count(self.count),
            number::count(self.gaps),
        ]
    }
}

const CPU_HEAD: [&str; 9] =
    ["CPU time, %", "user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.end.refused > 0 {
            let refused = number::count(self.end.refused);
            writeln!(f, "NOT WHOLE: {refused} values had no column, over all samples\n")?;
        }
        let mut grid = Grid::new("lrrrrrr");
        grid.cells(["column", "min", "mean", "max", "unit", "n", "gaps"]);
        let (shown, same): (Vec<_>, Vec<_>) =
            self.columns.iter().partition(|column| column.says_something());
        shown.into_iter().for_each(|column| grid.cells(column.row()));
        grid.fmt(f)?;
        let same = number::count(same.len() as u64);
        writeln!(f, "not shown: {same} columns, counters that did not change and gauges of 0")?;
        if !self.cpus.is_empty() {
            writeln!(f)?;
            let mut grid = Grid::new("lrrrrrrrr");
            grid.cells(CPU_HEAD);
            for (cpu, split) in &self.cpus {
                let pct = |pct: Option<f64>| pct.map_or("n/a".into(), |pct| format!("{pct:.1}"));
                grid.cells(std::iter::once(cpu.clone()).chain(split.0.map(pct)));
            }
            grid.fmt(f)?;
        }
        self.ending(f)
    }
}

impl Summary {
    fn ending(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let End { samples, late, missed, own_ns, unread, .. } = self.end;
        let ms = |ns: u64| figure(ns as f64 / 1e6);
        let each = own_ns.checked_div(samples).map_or("n/a".into(), ms);
        let share = match self.span_ns {
            0 => "n/a".into(),
            span_ns => figure(100.0 * own_ns as f64 / span_ns as f64),
        };
        writeln!(
            f,
            "\n{} samples, every {} ms: {} late by more than a tenth of that, {} periods missed",
            number::count(samples),
            ms(self.header.period_ns),
            number::count(late),
            number::count(missed)
        )?;
        writeln!(f, "own cost: {each} ms of CPU time a sample, {share} % of a CPU")?;
        for absent in &self.header.absent {
            // Escape these texts: a file may contain control sequences for the terminal.
            let (path, why) = (absent.path.escape_debug(), absent.why.escape_debug());
            writeln!(f, "n/a: {path}: {why}")?;
        }
        if self.cut_off {
            writeln!(f, "the series was cut off: lines not understood are not known")?;
        }
        if unread > 0 {
            writeln!(f, "{} lines were not understood, over all samples", number::count(unread))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Replay;
    use super::*;

    fn summary(samples: [&str; 2], end: &str) -> String {
        let column = |name: &str, kind: &str| {
            format!(r#"{{"name":"{name}","unit":"packets","kind":"{kind}"}}"#)
        };
        let kinds = [("a", "counter"), ("b", "counter"), ("c", "gauge"), ("d", "gauge")];
        let columns = kinds.map(|(name, kind)| column(name, kind)).join(",");
        let mut text = r#"{"schema":"linerate-series/1","period_ns":1000000000}"#.to_owned();
        text += &format!("\n{{\"columns\":[{columns}]}}\n");
        for (at, values) in samples.into_iter().enumerate() {
            let t_ns = at * 1_000_000_000;
            let own = r#""late_ns":0,"missed":0,"own_ns":1"#;
            text += &format!("{{\"sample\":{{\"t_ns\":{t_ns},{own},\"values\":[{values}]}}}}\n");
        }
        Summary::of(&mut Replay::open((text + end).as_bytes()).unwrap()).unwrap().to_string()
    }

    #[test]
    fn a_gauge_that_stood_still_is_shown_with_its_value_and_a_counter_is_not() {
        let text = summary(["1,5,7,0", "3,5,7,0"], "");
        let names: Vec<&str> =
            text.lines().skip(1).map_while(|line| line.split(' ').next()).collect();
        assert_eq!(names[..3], ["a", "c", "not"], "{text}");
        assert!(text.lines().nth(2).unwrap().contains("7.00"), "{text}");
        assert!(text.contains("not shown: 2 columns"), "{text}");
    }

    #[test]
    fn that_values_were_refused_is_said_first() {
        let end = r#"{"end":{"samples":2,"late":0,"missed":0,"own_ns":2,"unread":0,"refused":9}}"#;
        let text = summary(["1,5,7,0", "3,5,7,0"], end);
        assert!(text.starts_with("NOT WHOLE: 9 values had no column"), "{text}");
    }
}
