//! Remarks on the windows of a side, in sentences for its reader.

use crate::scenario::host::config::{Config, Port, Workload};
use crate::scenario::host::crew::Told;
use crate::scenario::host::datagrams::NOTED;
use crate::scenario::host::latencies::Latencies;

/// Share of due messages below which senders have not reached the rate, in per cent.
const REACHED_PCT: f64 = 98.0;

/// The events of a side's windows so far that need a remark.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    windows: u64,
    /// Number of windows below the rate; the next field is the smallest share of it, in per cent.
    short: u64,
    least_pct: Option<f64>,
    requests: Sum,
    probes: Sum,
    failed: u64,
    lost: u64,
    load_lost: u64,
    /// Number of windows in which not all latencies of the load were kept.
    capped: u64,
    failure: Option<String>,
}

/// Numbers of latencies and of unanswered requests over all windows.
#[derive(Debug, Default)]
struct Sum {
    count: u64,
    pending: u64,
}

impl Sum {
    fn add(&mut self, latencies: &Latencies) {
        self.count += latencies.count();
        self.pending += latencies.pending();
    }
}

/// Returns the sent share of the requests that were due, in per cent; `None` if none were due.
pub(super) fn offered_pct(told: &Told) -> Option<f64> {
    (told.due > 0).then(|| told.sent as f64 * 100.0 / told.due as f64)
}

impl Remarks {
    /// Adds a window's figures to the sum.
    pub fn note(&mut self, config: &Config, told: &Told, probed: Option<&Told>) {
        self.windows += 1;
        let pct = offered_pct(told).filter(|_| config.rate.is_some());
        if let Some(pct) = pct.filter(|pct| *pct < REACHED_PCT) {
            self.short += 1;
            self.least_pct = Some(self.least_pct.map_or(pct, |least| least.min(pct)));
        }
        self.requests.add(&told.latencies);
        match config.workload {
            Workload::Load => {
                self.load_lost += told.failed;
                self.capped += u64::from(told.capped);
            }
            Workload::Stream | Workload::Web | Workload::Rpc => self.failed += told.failed,
        }
        if self.failure.is_none() {
            self.failure.clone_from(&told.failure);
        }
        if let Some(probed) = probed {
            self.probes.add(&probed.latencies);
            self.lost += probed.failed;
        }
    }

    /// Returns all remarks, in sentences.
    pub fn tell(&self, config: &Config) -> Vec<String> {
        let mut notes = of_the_side(config);
        let requests = match config.workload {
            Workload::Load => "datagrams of the load",
            Workload::Stream | Workload::Web | Workload::Rpc => "requests",
        };
        let windows = self.windows;
        if let (Some(rate), Some(pct)) = (config.rate, self.least_pct) {
            let unit = config.workload.unit();
            notes.push(format!(
                "The rate of {} {unit} was not reached: in {} of {windows} windows, warm-up \
                 included, the senders sent less than {REACHED_PCT} % of what was due, {pct:.1} % in \
                 the worst. Figures for each packet hold; those for each wall time are not those of \
                 the rate.",
                if rate < 100.0 { rate } else { rate.round() },
                self.short
            ));
        }
        for (what, sum) in [(requests, &self.requests), ("probes", &self.probes)] {
            if sum.pending > 0 {
                notes.push(format!(
                    "{} of {} {what} had no answer when their window ended. Each counts as the time \
                     from when it was due until then, the least that it took.",
                    sum.pending, sum.count
                ));
            }
        }
        if self.failed > 0 {
            let why = self.failure.as_deref().unwrap_or("n/a");
            notes.push(format!("{} requests failed; the first: {why}.", self.failed));
        }
        if self.load_lost > 0 {
            notes.push(format!("{} datagrams of the load were lost.", self.load_lost));
        }
        if self.lost > 0 {
            notes.push(format!("{} probes were lost.", self.lost));
        }
        if self.capped > 0 {
            notes.push(format!(
                "In {} of {windows} windows a flow had more datagrams than the lab keeps: latencies \
                 and duplicates are those of the first {NOTED} of each flow, other counts are of all.",
                self.capped
            ));
        }
        notes
    }
}

/// Returns the remarks that are known before the first window.
fn of_the_side(config: &Config) -> Vec<String> {
    let mut notes = vec![if config.user_space {
        "The TCP of the eastern host is smoltcp's, on its program's thread, and so is part of the program's cost."
            .to_owned()
    } else {
        "The kernel's work for a packet that the engine sends, TCP of the receiving host included, is \
         done in the worker's system call, and so is part of its cost."
            .to_owned()
    }];
    if config.port == Port::Xdp {
        notes.push(
            "On veth the kernel copies packets into AF_XDP's frames, on the sender's CPU."
                .to_owned(),
        );
    }
    if let Some(toll) = config.toll {
        notes.push(format!(
            "MODEL: there is no register. At each port a posted write and a flushing read take what \
             {toll} says, spun on the worker's CPU."
        ));
    }
    if config.crowded() {
        notes.push(format!(
            "CPU {} has the hosts' programs and a worker: there is no other. Costs are measured by \
             the worker's own time; rates and latencies are those of a shared CPU.",
            config.traffic
        ));
    }
    if config.offload {
        notes.push(
            "Offloads are on: a packet is a superframe of up to 64 KiB, which hides what buffers \
             cost."
                .to_owned(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::scenario::Place;
    use crate::settings::Settings;

    fn config(settings: &Settings) -> Config {
        let place = Place { cpus: vec![0, 1], seed: 1, program: None, stop: Arc::default() };
        Config::of(settings, &place).unwrap()
    }

    fn told(due: u64, sent: u64) -> Told {
        Told { due, sent, ..Told::default() }
    }

    #[test]
    fn a_rate_that_was_not_reached_is_told_with_its_worst_window() {
        let config = config(&Settings::new().with("rate", 1000));
        let mut remarks = Remarks::default();
        remarks.note(&config, &told(1000, 980), None);
        let quiet = remarks.tell(&config);
        remarks.note(&config, &told(1000, 713), None);
        remarks.note(&config, &told(1000, 979), None);
        let notes = remarks.tell(&config);
        assert_eq!(notes.len(), quiet.len() + 1);
        let note = notes.last().unwrap();
        assert!(note.contains("1000 bytes/s was not reached: in 2 of 3 windows"), "{note}");
        assert!(note.contains("71.3 % in the worst"), "{note}");
    }

    #[test]
    fn run_without_a_rate_gets_no_rate_remark() {
        let config = config(&Settings::new());
        let mut remarks = Remarks::default();
        remarks.note(&config, &told(0, 0), None);
        remarks.note(&config, &told(1000, 1), None);
        assert_eq!(remarks.tell(&config), of_the_side(&config));
    }

    #[test]
    fn what_failed_or_was_lost_is_told_with_its_count() {
        let config = config(&Settings::new());
        let mut remarks = Remarks::default();
        let failure = Some("timed out".to_owned());
        let failed = Told { failed: 2, failure, ..Told::default() };
        let lost = Told { failed: 7, ..Told::default() };
        remarks.note(&config, &failed, Some(&lost));
        let notes = remarks.tell(&config).join(" ");
        assert!(notes.contains("2 requests failed; the first: timed out."), "{notes}");
        assert!(notes.contains("7 probes were lost."), "{notes}");
    }

    #[test]
    fn latencies_that_are_not_kept_are_told() {
        let load = Settings::new().with("workload", "load").with("rate", 1_000_000);
        let (config, mut remarks) = (config(&load), Remarks::default());
        remarks.note(&config, &Told::default(), None);
        let quiet = remarks.tell(&config).len();
        remarks.note(&config, &Told { capped: true, ..Told::default() }, None);
        let notes = remarks.tell(&config);
        assert_eq!(notes.len(), quiet + 1);
        let note = notes.last().unwrap();
        assert!(note.starts_with("In 1 of 2 windows a flow had more datagrams"), "{note}");
    }
}
