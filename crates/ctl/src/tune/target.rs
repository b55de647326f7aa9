//! The part of the control socket that works on the run: shows and changes settings, and reverts
//! changes that are not kept.

mod reverting;
mod show;

use std::time::{Duration, Instant};

use linerate_datapath::{Control, DeviceHold, PortStats, Stats};
use linerate_port::{Code, Error};
use linerate_sys::text::queues;
use serde::Serialize;

use super::request::{Change, SCHEMA};
use super::reverts::{Key, Outcome, Reverts};
use super::setting::{ELSEWHERE, cpus};
use super::value::{Order, Ordered, SetShown, parse};
use super::{USAGE, refusal, unknown};
use crate::report::ErrorReport;

use reverting::Reverting;

/// Longest time in which a worker must execute an order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(1);
/// Remedy if the handle does not have the worker of a queue.
const OTHER_SOCKET: &str = "use the socket that controls its worker";

/// The function that is called with an interface's index before the hold of that interface is
/// changed.
pub(super) type BeforeHold = Box<dyn Fn(u32, DeviceHold) + Send>;

/// A run, with the handles that the socket's thread uses.
pub(super) struct Target {
    control: Control,
    stats: Stats,
    before_hold: BeforeHold,
    started: Instant,
    reverts: Reverts,
    /// Reverts that were ordered and not answered yet.
    reverting: Vec<Reverting>,
    /// Time of the next attempt to order reverts, after a worker had too many orders.
    paused: Option<Instant>,
}

/// A change that was ordered, and that some workers may not have made yet.
#[derive(Debug)]
pub(super) struct Pending {
    port: String,
    queues: Vec<usize>,
    /// Each new value with the previous value of each queue, and its orders.
    values: Vec<(Ordered, Vec<Ordered>, Vec<Order>)>,
    /// The number of the change in [`Reverts`].
    serial: u64,
    until: Instant,
}

impl Target {
    pub fn new(control: Control, stats: Stats, before_hold: BeforeHold) -> Target {
        let (started, reverts, reverting) = (Instant::now(), Reverts::default(), Vec::new());
        Target { control, stats, before_hold, started, reverts, reverting, paused: None }
    }

    fn port(&self, name: &str, what: &str) -> Result<PortStats, ErrorReport> {
        let ports = self.stats.ports();
        let found = ports.iter().find(|port| port.name == name).cloned();
        found.ok_or_else(|| unknown(what, "port", name, ports.iter().map(|port| &*port.name)))
    }

    /// Returns the change with the port's whole name, if what was read as a queue's number is the
    /// end of that name, as in `/run/memif/1`.
    fn whole_name(&self, change: &Change) -> Option<Change> {
        let whole = format!("{}/{}", change.port, change.queue?);
        let ports = self.stats.ports();
        let exists = |name: &str| ports.iter().any(|port| port.name == name);
        let is_meant = exists(&whole) && !exists(&change.port);
        is_meant.then(|| Change { port: whole, queue: None, ..change.clone() })
    }

    /// Returns the queues of a port that a change concerns: queue number `queue`, or all whose
    /// workers the handle has.
    ///
    /// # Errors
    /// `E-USAGE` if there is no such queue, `E-TOPOLOGY` if the handle does not have its worker.
    fn chosen(
        &self,
        port: &PortStats,
        queue: Option<usize>,
        what: &str,
    ) -> Result<Vec<usize>, ErrorReport> {
        let all = port.queues.len();
        if let Some(queue) = queue.filter(|queue| *queue >= all) {
            let fix = format!("{} has {}", port.name, queues(all));
            return Err(refusal(USAGE, what, format!("it has no queue {queue}"), fix));
        }
        let is_here = |queue: &usize| self.control.worker_of(&port.name, *queue).is_some();
        let mut here: Vec<usize> = (0..all).filter(is_here).collect();
        let is_missing = here.is_empty() || queue.is_some_and(|queue| !here.contains(&queue));
        if all > 0 && is_missing {
            let listed: Vec<String> = here.iter().map(usize::to_string).collect();
            let fix = match here.is_empty() {
                true => OTHER_SOCKET.to_owned(),
                false => format!("name a queue that it controls: {}", listed.join(", ")),
            };
            return Err(refusal(Code::Topology.as_str(), what, ELSEWHERE, fix));
        }
        here.retain(|number| queue.is_none_or(|queue| queue == *number));
        Ok(here)
    }

    /// Orders a change after checking all of its values.
    ///
    /// # Errors
    /// `E-USAGE`, `E-TOPOLOGY`, `E-UNSUPPORTED` or `E-CPU`: then nothing was ordered. `E-BUSY` for
    /// a worker that executes no orders.
    pub fn begin(&mut self, change: &Change, now: Instant) -> Result<Pending, ErrorReport> {
        let renamed = self.whole_name(change);
        let change = renamed.as_ref().unwrap_or(change);
        let what = format!("cannot set '{}'", change.port);
        let port = self.port(&change.port, &what)?;
        let queues = self.chosen(&port, change.queue, &what)?;
        let Some(first) = queues.first().and_then(|queue| port.queues.get(*queue)) else {
            return Err(refusal(USAGE, &what, "it has no queue", ""));
        };
        let mode = |queue: &usize| port.queues[*queue].settings.moderation;
        let has = |name: &str| change.settings.contains_key(name);
        let is_half = has("rx_usecs") != has("rx_frames") && !has("moderation");
        if is_half && queues.iter().any(|queue| mode(queue) != first.settings.moderation) {
            let fix = format!("name a queue, as in {}/0, or give both", change.port);
            return Err(refusal(USAGE, &what, "its queues differ in the other value", fix));
        }
        if has("shape") && queues.iter().any(|queue| port.queues[*queue].settings.shape.is_none()) {
            let fix = "a rate is created with its port: add shape= to the port's text";
            return Err(refusal(Code::Unsupported.as_str(), &what, "it has no rate", fix));
        }
        let asked = parse(&what, change, first.settings.moderation)?;
        self.settle(now);
        let (port_name, until) = (change.port.clone(), now + ORDER_TIMEOUT);
        let (values, serial) = (Vec::new(), self.reverts.serial());
        let mut pending = Pending { port: port_name, queues, values, serial, until };
        for value in asked {
            let before: Vec<Ordered> =
                pending.queues.iter().map(|queue| self.now(&port, *queue, &value)).collect();
            // Record the change before the order: a worker may execute it although the answer is
            // late, or no client waits for it. A pending revert is cancelled only when a permanent
            // change was made.
            for (key, before) in self.keys(&change.port, &pending.queues, &value).zip(&before) {
                let until = pending.until;
                self.reverts.begin(serial, &key, [before, &value], change.revert_after, until);
            }
            let start = Instant::now();
            let ordered = self.order(&change.port, change.queue, &pending.queues, &value);
            if matches!(value, Ordered::Hold(_)) {
                // This thread has recorded and set the hold meanwhile, for which it may have
                // waited. That is not the time of the workers.
                pending.until += start.elapsed();
                self.reverts.postpone(serial, pending.until);
            }
            let (orders, refused) = match ordered {
                Ok(orders) => (orders, None),
                Err(e) => (Vec::new(), Some(e)),
            };
            let is_in_part = orders.iter().any(|order| matches!(order, Order::Refused(_)));
            pending.values.push((value, before, orders));
            if let Some(e) = refused {
                let is_made = self.withdraw(&pending, now);
                return Err(pending.failed(e.into(), is_made));
            }
            if is_in_part {
                break;
            }
        }
        Ok(pending)
    }

    /// Withdraws all orders of a change, and records which of its settings have changed; returns
    /// true if some have.
    pub fn withdraw(&mut self, pending: &Pending, now: Instant) -> bool {
        let mut is_made = false;
        for (value, _, orders) in &pending.values {
            let outcome = Order::end(orders);
            is_made |= outcome != Outcome::NotMade;
            let keys: Vec<Key> = self.keys(&pending.port, &pending.queues, value).collect();
            self.reverts.end(pending.serial, &keys, outcome, now);
        }
        is_made
    }

    /// Returns the identifiers of the settings that `value` changes, one for each queue.
    fn keys<'a>(
        &self,
        port: &'a str,
        queues: &'a [usize],
        value: &'a Ordered,
    ) -> impl Iterator<Item = Key> + use<'a> {
        let control = self.control.clone();
        queues.iter().map(move |queue| match value {
            // Each queue of a change has its worker here: see `Target::chosen`.
            Ordered::Cpu(_) => Key::Worker(control.worker_of(port, *queue).unwrap_or_default()),
            // One hold for all queues.
            Ordered::Hold(_) => Key::Queue(port.to_owned(), 0, value.name()),
            _ => Key::Queue(port.to_owned(), *queue, value.name()),
        })
    }

    /// Returns a queue's present value of the setting that `like` belongs to.
    fn now(&self, port: &PortStats, queue: usize, like: &Ordered) -> Ordered {
        match like {
            Ordered::Moderation(_) => Ordered::Moderation(port.queues[queue].settings.moderation),
            Ordered::Hold(_) => Ordered::Hold(self.control.hold(&port.name).unwrap_or_default()),
            Ordered::TxBatch(_) => Ordered::TxBatch(port.queues[queue].settings.tx_batch),
            // Each queue of a change has a rate: see `Target::begin`.
            Ordered::Shape(rate) => {
                Ordered::Shape(port.queues[queue].settings.shape.unwrap_or(*rate))
            }
            Ordered::Cpu(_) => {
                let worker = self.control.worker_of(&port.name, queue).unwrap_or_default();
                Ordered::Cpu(self.stats.workers().get(worker).and_then(|worker| worker.pinned))
            }
        }
    }

    /// Orders one new value for queues of a port.
    fn order(
        &self,
        port: &str,
        queue: Option<usize>,
        queues: &[usize],
        value: &Ordered,
    ) -> Result<Vec<Order>, Error> {
        let setting = |order| vec![Order::Setting(order)];
        match value {
            Ordered::Moderation(mode) => {
                self.control.set_moderation(port, queue, *mode).map(setting)
            }
            Ordered::Hold(hold) => {
                // A hold that is refused changes nothing, so there is nothing to record.
                self.control.check_hold(port, *hold)?;
                let before = self.control.hold(port);
                if before.is_some() {
                    let interfaces = self.control.hold_interfaces(port);
                    interfaces.into_iter().for_each(|index| (self.before_hold)(index, *hold));
                }
                let start = Instant::now();
                let set = self.control.set_hold(port, *hold);
                let order = Order::Hold(start.elapsed());
                match set {
                    Ok(()) => Ok(vec![order]),
                    // The device of an earlier queue has the new hold already.
                    Err(e) if self.control.hold(port) != before => {
                        Ok(vec![order, Order::Refused(e)])
                    }
                    Err(e) => Err(e),
                }
            }
            Ordered::TxBatch(cap) => self.control.set_tx_batch(port, queue, *cap).map(setting),
            Ordered::Shape(rate) => self.control.set_shape(port, queue, *rate).map(setting),
            Ordered::Cpu(cpu) => {
                let cpus = cpus(*cpu)?;
                let workers =
                    queues.iter().filter_map(|queue| self.control.worker_of(port, *queue));
                let mut workers: Vec<usize> = workers.collect();
                workers.sort_unstable();
                workers.dedup();
                if workers.is_empty() {
                    let what = format!("cannot set the cpu of '{port}'");
                    return Err(Error::new(Code::Topology, what, ELSEWHERE).fix(OTHER_SOCKET));
                }
                let mut orders = Vec::new();
                for worker in workers {
                    match self.control.set_cpus(worker, &cpus) {
                        Ok(order) => orders.push(Order::Cpu(order)),
                        Err(e) => return Order::refused(orders, e),
                    }
                }
                Ok(orders)
            }
        }
    }

    /// Returns the answer to a change once every worker has executed it, or the time for that is
    /// over; `None` before.
    pub fn finish(
        &mut self,
        pending: &Pending,
        now: Instant,
    ) -> Option<Result<String, ErrorReport>> {
        let answers = |pending: &Pending| pending.values.iter().map(SetShown::of).collect();
        let mut results: Option<Vec<_>> = answers(pending);
        if results.is_none() {
            if now < pending.until {
                return None;
            }
            let orders = pending.values.iter().flat_map(|(_, _, orders)| orders);
            orders.for_each(|order| _ = order.withdraw());
            // A worker may have answered meanwhile.
            results = answers(pending);
        }
        let is_made = self.withdraw(pending, now);
        let Some(results) = results else {
            let why = format!("its worker did not finish a poll within {ORDER_TIMEOUT:?}");
            let (what, fix) = match is_made {
                false => (format!("'{}' was not set", pending.port), "repeat the request"),
                true => (
                    format!("'{}' was set in part", pending.port),
                    "show the setting: some workers have applied it",
                ),
            };
            return Some(Err(ErrorReport::from(&Error::new(Code::Busy, what, why).fix(fix))));
        };
        let set: Result<Vec<SetShown>, ErrorReport> = results.into_iter().collect();
        Some(match set {
            Ok(set) => Ok(self.document(pending, &set)),
            Err(e) => Err(pending.failed(e, is_made)),
        })
    }

    fn document(&self, pending: &Pending, set: &[SetShown]) -> String {
        #[derive(Serialize)]
        struct Document<'a> {
            schema: &'static str,
            port: &'a str,
            queues: &'a [usize],
            set: &'a [SetShown],
            /// Time until the next revert of any setting.
            reverts_in_seconds: Option<f64>,
            /// Time until the revert of this change.
            this_reverts_in_seconds: Option<f64>,
        }
        let Pending { port, queues, values, .. } = pending;
        let keys = values.iter().flat_map(|(value, ..)| self.keys(port, queues, value));
        let this_reverts_in_seconds = self.reverts.next_of(keys).map(seconds_until);
        let reverts_in_seconds = self.reverts_in();
        let schema = SCHEMA;
        line(&Document { schema, port, queues, set, reverts_in_seconds, this_reverts_in_seconds })
    }

    /// Cancels all pending reverts; returns the document with the number of settings kept.
    pub fn keep(&mut self) -> String {
        #[derive(Serialize)]
        struct Document {
            schema: &'static str,
            kept: usize,
        }
        let kept = self.reverts.keep();
        line(&Document { schema: SCHEMA, kept })
    }

    fn reverts_in(&self) -> Option<f64> {
        self.reverts.next().map(seconds_until)
    }
}

fn seconds_until(at: Instant) -> f64 {
    at.saturating_duration_since(Instant::now()).as_secs_f64()
}

impl Pending {
    /// Returns the error of a change: with another headline if some of it was made.
    fn failed(&self, e: ErrorReport, is_made: bool) -> ErrorReport {
        if !is_made {
            return e;
        }
        let (what, why) =
            (format!("'{}' was set in part", self.port), format!("{}: {}", e.what, e.why));
        ErrorReport { what, why, ..e }
    }
}

impl From<Error> for ErrorReport {
    fn from(e: Error) -> ErrorReport {
        ErrorReport::from(&e)
    }
}

/// Serialises a document as a line.
fn line(document: &impl Serialize) -> String {
    // Cannot fail: every key is a string, and a number that is not finite becomes null.
    serde_json::to_string(document).unwrap_or_default() + "\n"
}
