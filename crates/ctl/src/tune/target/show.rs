//! The document of `show`: the ports with their settings and counts, and the drops of the whole
//! run.

use std::collections::BTreeMap;

use linerate_datapath::{PortStats, QueueReading};
use serde::Serialize;

use super::{Target, line};
use crate::report::{ErrorReport, PortReport, by_name};
use crate::tune::request::SCHEMA;
use crate::tune::setting::{Shown, show};

#[derive(Debug, Serialize)]
struct PortShown {
    driver: String,
    device: String,
    mode: String,
    queues: Vec<QueueShown>,
    statistics: PortReport,
}

#[derive(Debug, Serialize)]
struct QueueShown {
    queue: usize,
    worker: Option<usize>,
    settings: Vec<Shown>,
}

impl Target {
    /// Returns the document of a port, or of all ports, with the drops of the whole run.
    ///
    /// # Errors
    /// `E-USAGE` if there is no such port.
    pub fn show(&self, port: Option<&str>) -> Result<String, ErrorReport> {
        let ports = match port {
            Some(name) => vec![self.port(name, &format!("cannot show '{name}'"))?],
            None => self.stats.ports(),
        };
        #[derive(Serialize)]
        struct Document {
            schema: &'static str,
            ports: BTreeMap<String, PortShown>,
            /// Packets that all ports together dropped, by reason.
            dropped: BTreeMap<&'static str, u64>,
            reverts_in_seconds: Option<f64>,
            /// Why the last revert has failed, if it is tried again.
            revert_failed: Option<String>,
        }
        let shown = |port: PortStats| (port.name.clone(), self.shown(&port));
        let ports = ports.into_iter().map(shown).collect();
        let ledger = self.stats.ledger();
        let dropped = by_name(ledger.dropped.iter().map(|(reason, n)| (reason.name(), *n)));
        let reverts_in_seconds = self.reverts_in();
        let revert_failed = self.reverts.failed().map(str::to_owned);
        Ok(line(&Document { schema: SCHEMA, ports, dropped, reverts_in_seconds, revert_failed }))
    }

    fn shown(&self, port: &PortStats) -> PortShown {
        let (workers, hold) = (self.stats.workers(), self.control.hold(&port.name));
        let queue = |(number, queue): (usize, &QueueReading)| {
            let worker = self.control.worker_of(&port.name, number);
            let time = worker.and_then(|worker| workers.get(worker)).copied();
            let settings = show(port, &queue.settings, time, hold);
            QueueShown { queue: number, worker, settings }
        };
        PortShown {
            driver: port.driver.clone(),
            device: port.obtained.device.clone(),
            mode: port.obtained.mode.clone(),
            queues: port.queues.iter().enumerate().map(queue).collect(),
            statistics: PortReport::of(port, self.started.elapsed()),
        }
    }
}
