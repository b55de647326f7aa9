//! The reverts of changes that are not kept: orders them when their time has come, and reads their
//! answers.

use std::time::{Duration, Instant};

use linerate_port::Code;

use super::{ORDER_TIMEOUT, Target};
use crate::tune::reverts::Key;
use crate::tune::setting::cpus;
use crate::tune::value::{Order, Ordered};

/// Time until a revert that failed is tried again.
const REVERT_AGAIN: Duration = Duration::from_secs(5);

/// A revert that was ordered.
#[derive(Debug)]
pub(super) struct Reverting {
    key: Key,
    /// The number of the change in [`Reverts`](super::Reverts).
    serial: u64,
    orders: Vec<Order>,
    /// Time after which the orders are withdrawn.
    until: Instant,
}

impl Target {
    /// Returns the time of the next revert.
    pub fn revert_at(&self) -> Option<Instant> {
        self.reverts.next().map(|at| self.paused.map_or(at, |paused| at.max(paused)))
    }

    /// Reverts the changes whose time has come; tries again after `pause` for a worker with too
    /// many orders.
    pub fn revert(&mut self, now: Instant, pause: Duration) {
        self.settle(now);
        if self.paused.is_some_and(|until| now < until) {
            return;
        }
        self.paused = None;
        for (key, to) in self.reverts.due(now) {
            let ordered = match (&key, &to) {
                (Key::Worker(worker), Ordered::Cpu(cpu)) => cpus(*cpu)
                    .and_then(|cpus| self.control.set_cpus(*worker, &cpus))
                    .map(|order| vec![Order::Cpu(order)]),
                (Key::Queue(port, queue, _), _) => self.order(port, Some(*queue), &[*queue], &to),
                // Unreachable: the only setting of a worker is its CPUs.
                (Key::Worker(_), _) => Ok(Vec::new()),
            };
            // A refusal changes nothing if the device has the value already, as one whose next
            // queue refuses each change.
            let ordered = match ordered {
                Err(_) if self.has_hold(&key, &to) => Ok(vec![Order::Hold(Duration::ZERO)]),
                ordered => ordered,
            };
            match ordered {
                Ok(orders) => {
                    let serial = self.reverts.ordered(&key, now);
                    let until = now + ORDER_TIMEOUT;
                    self.reverting.push(Reverting { key, serial, orders, until });
                }
                Err(e) if e.code == Code::Busy && !self.has_ended(&key) => {
                    self.paused = Some(now + pause);
                }
                Err(e) => self.reverts.again(&key, None, now + REVERT_AGAIN, e.to_string()),
            }
        }
    }

    /// Returns true if the worker of a setting has ended.
    fn has_ended(&self, key: &Key) -> bool {
        let worker = match key {
            Key::Worker(worker) => Some(*worker),
            Key::Queue(port, queue, _) => self.control.worker_of(port, *queue),
        };
        worker.is_some_and(|worker| self.control.has_ended(worker))
    }

    /// Returns true if `to` is a hold, and the device of the port has it already.
    fn has_hold(&self, key: &Key, to: &Ordered) -> bool {
        match (key, to) {
            (Key::Queue(port, ..), Ordered::Hold(hold)) => self.control.hold(port) == Some(*hold),
            _ => false,
        }
    }

    /// Returns true if a revert was ordered that the worker has not answered.
    pub fn is_reverting(&self) -> bool {
        !self.reverting.is_empty()
    }

    /// Records the reverts that workers have executed since the last call, and withdraws those that
    /// are late, as of a worker that has ended: they are tried again.
    pub fn settle(&mut self, now: Instant) {
        let reverts = &mut self.reverts;
        self.reverting.retain(|Reverting { key, serial, orders, until }| {
            let is_answered = || orders.iter().all(Order::is_answered);
            let mut is_withdrawn = true;
            if !is_answered() {
                if now < *until {
                    return true;
                }
                for order in orders.iter().filter(|order| !order.is_answered()) {
                    is_withdrawn &= order.withdraw();
                }
            }
            // A worker may have answered meanwhile.
            let why = match Order::failure(orders) {
                Some(e) => Some(e.to_string()),
                None if is_answered() => None,
                None if is_withdrawn => {
                    Some(format!("its worker did not finish a poll within {ORDER_TIMEOUT:?}"))
                }
                None => Some("its worker has begun the revert and not finished it".to_owned()),
            };
            match why {
                None => reverts.end(*serial, [key], Order::end(orders), now),
                Some(why) => reverts.again(key, Some(*serial), now + REVERT_AGAIN, why),
            }
            false
        });
    }
}
