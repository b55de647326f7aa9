//! The values of a change: parsed from a request, sent to workers as orders, and their results.

use std::time::Duration;

use linerate_datapath::qdisc::BitRate;
use linerate_datapath::{
    Applied, DeviceHold, Moderation, PendingOrder, Pinned, Setting, TxBatch, knob,
};
use linerate_port::{Code, Error};
use serde::Serialize;

use super::request::Change;
use super::reverts::Outcome;
use super::setting::cpu;
use super::{SETTINGS, SettingRow, USAGE, refusal, unknown};
use crate::report::ErrorReport;

/// A value that workers are ordered to set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ordered {
    Moderation(Moderation),
    /// The hold of the port's device, which no worker sets.
    Hold(DeviceHold),
    TxBatch(TxBatch),
    Shape(BitRate),
    /// The CPU of a worker; `None` for any that the process may use.
    Cpu(Option<usize>),
}

/// The order for one value.
#[derive(Debug)]
pub(super) enum Order {
    Setting(PendingOrder<Applied>),
    Cpu(PendingOrder<Pinned>),
    /// A device's hold that was set, in this time.
    Hold(Duration),
    /// An order that one of several workers or devices did not accept, after another had executed
    /// it.
    Refused(Error),
}

/// The result of setting one value.
#[derive(Debug, Serialize)]
pub(super) struct SetShown {
    name: &'static str,
    /// The previous value of each queue.
    before: Vec<String>,
    asked: String,
    applied: String,
    note: Option<String>,
    /// Packets that the queues received between the order and the change; not counted for `cpu` and
    /// `hold`.
    packets: Option<u64>,
    took_us: f64,
}

impl Order {
    /// Withdraws the order; returns true if no worker has executed it or will.
    pub fn withdraw(&self) -> bool {
        match self {
            Order::Setting(order) => order.withdraw(),
            Order::Cpu(order) => order.withdraw(),
            Order::Hold(_) => false,
            Order::Refused(_) => true,
        }
    }

    /// Withdraws orders of a value of which one was refused with `e`; returns those that were
    /// executed, and the refused one.
    ///
    /// # Errors
    /// `e` if none was executed.
    pub fn refused(mut orders: Vec<Order>, e: Error) -> Result<Vec<Order>, Error> {
        orders.retain(|order| !order.withdraw());
        if orders.is_empty() {
            return Err(e);
        }
        orders.push(Order::Refused(e));
        Ok(orders)
    }

    /// Returns true if every worker has answered.
    pub fn is_answered(&self) -> bool {
        match self {
            Order::Setting(order) => order.answer().is_some(),
            Order::Cpu(order) => order.answer().is_some(),
            Order::Hold(_) | Order::Refused(_) => true,
        }
    }

    /// Returns the first error among the answers to the orders of a value.
    pub fn failure(orders: &[Order]) -> Option<Error> {
        orders.iter().find_map(|order| match order {
            Order::Setting(order) => order.answer()?.err(),
            Order::Cpu(order) => order.answer()?.err(),
            Order::Hold(_) => None,
            Order::Refused(e) => Some(e.clone()),
        })
    }

    /// Withdraws the orders of a value, and returns what has become of them.
    pub fn end(orders: &[Order]) -> Outcome {
        let end = |order: &Order| match order {
            Order::Setting(order) => match order.answer() {
                Some(Ok(_)) => Outcome::Made,
                // Its workers have ended, and none has executed it.
                Some(Err(_)) if order.withdraw() => Outcome::NotMade,
                // One of several workers has not accepted it.
                Some(Err(_)) => Outcome::InPart,
                None if order.withdraw() => Outcome::NotMade,
                None => Outcome::InPart,
            },
            Order::Cpu(order) => match order.answer() {
                Some(Ok(_)) => Outcome::Made,
                Some(Err(_)) => Outcome::NotMade,
                None if order.withdraw() => Outcome::NotMade,
                None => Outcome::InPart,
            },
            Order::Hold(_) => Outcome::Made,
            Order::Refused(_) => Outcome::NotMade,
        };
        let join = |one: Outcome, other| if one == other { one } else { Outcome::InPart };
        orders.iter().map(end).reduce(join).unwrap_or(Outcome::NotMade)
    }
}

impl Ordered {
    /// Returns the name of the value's setting.
    pub fn name(&self) -> &'static str {
        match self {
            Ordered::Moderation(_) => "moderation",
            Ordered::Hold(_) => "hold",
            Ordered::TxBatch(_) => "tx_batch",
            Ordered::Shape(_) => "shape",
            Ordered::Cpu(_) => "cpu",
        }
    }

    fn text(&self) -> String {
        match self {
            Ordered::Moderation(mode) => mode.to_string(),
            Ordered::Hold(hold) => hold.to_string(),
            Ordered::TxBatch(cap) => cap.to_string(),
            Ordered::Shape(rate) => rate.to_string(),
            Ordered::Cpu(cpu) => cpu.map_or("any".into(), |cpu| cpu.to_string()),
        }
    }
}

impl SetShown {
    /// Returns the result of a value's orders; `None` until all of them are answered.
    pub fn of(
        (value, before, orders): &(Ordered, Vec<Ordered>, Vec<Order>),
    ) -> Option<Result<SetShown, ErrorReport>> {
        let mut shown = SetShown {
            name: value.name(),
            before: before.iter().map(Ordered::text).collect(),
            asked: value.text(),
            applied: value.text(),
            note: None,
            packets: None,
            took_us: 0.0,
        };
        for order in orders {
            let done = match order {
                Order::Setting(order) => order.answer()?.map(|answer| {
                    shown.applied = match answer.applied {
                        Setting::Moderation(mode) => mode.to_string(),
                        Setting::TxBatch(cap) => cap.to_string(),
                        Setting::Shape(rate) => rate.to_string(),
                        _ => String::new(),
                    };
                    shown.note = answer.note;
                    shown.packets = Some(answer.packets);
                    answer.took
                }),
                Order::Cpu(order) => order.answer()?.map(|answer| {
                    let one = if let [cpu] = answer.cpus[..] { Some(cpu) } else { None };
                    shown.applied = Ordered::Cpu(one).text();
                    answer.took
                }),
                Order::Hold(took) => Ok(*took),
                Order::Refused(e) => Err(e.clone()),
            };
            match done {
                Ok(took) => shown.took_us = shown.took_us.max(took.as_secs_f64() * 1e6),
                Err(e) => return Some(Err(ErrorReport::from(&e))),
            }
        }
        Some(Ok(shown))
    }
}

/// Parses every value of a change, in the order in which they are set; `now` is the present
/// moderation of the first queue.
pub(super) fn parse(
    what: &str,
    change: &Change,
    now: Moderation,
) -> Result<Vec<Ordered>, ErrorReport> {
    for name in change.settings.keys() {
        let names = SETTINGS.iter().map(|row| row.name);
        let row = SettingRow::find(name).ok_or_else(|| unknown(what, "setting", name, names))?;
        if !row.fixed.is_empty() {
            let why = format!("{name} cannot be changed while packets pass");
            return Err(refusal(Code::Unsupported.as_str(), what, why, row.fixed));
        }
    }
    let asked = |name: &str| change.settings.get(name).map(String::as_str);
    let mut values = Vec::new();
    // First, because the device may refuse it, at once: then no worker has changed anything.
    let hold: Option<DeviceHold> = asked("hold").map(str::parse).transpose()?;
    if hold.is_some() && change.queue.is_some() {
        let fix = format!("name the port without a queue: {}", change.port);
        return Err(refusal(USAGE, what, "a device holds all its queues for the same time", fix));
    }
    values.extend(hold.map(Ordered::Hold));
    let mode: Option<Moderation> = asked("moderation").map(str::parse).transpose()?;
    let number = |knob: &'static knob::Knob, name: &str| match asked(name) {
        None => Ok(None),
        Some(text) => match text.parse::<u64>().ok().filter(|n| knob.allows(*n)) {
            Some(n) => Ok(Some(n as u32)),
            None => {
                let why = format!("{name} is {knob} {}, not {text:?}", knob.unit);
                Err(refusal(USAGE, what, why, format!("{} is usual", knob.default)))
            }
        },
    };
    let (usecs, frames) = (number(&knob::USECS, "rx_usecs")?, number(&knob::FRAMES, "rx_frames")?);
    if usecs.is_some() || frames.is_some() {
        let (old_usecs, old_frames) = match (mode, now) {
            (Some(Moderation::Fixed { usecs, frames }), _)
            | (None, Moderation::Fixed { usecs, frames }) => (usecs, frames),
            (None, _) => (knob::USECS.default as u32, knob::FRAMES.default as u32),
            (Some(other), _) => {
                let why = format!("moderation {other} has no rx_usecs and no rx_frames");
                return Err(refusal(USAGE, what, why, "leave one of the two out"));
            }
        };
        let (usecs, frames) = (usecs.unwrap_or(old_usecs), frames.unwrap_or(old_frames));
        values.push(Ordered::Moderation(Moderation::Fixed { usecs, frames }));
    } else {
        values.extend(mode.map(Ordered::Moderation));
    }
    let cap: Option<TxBatch> = asked("tx_batch").map(str::parse).transpose()?;
    values.extend(cap.map(Ordered::TxBatch));
    let rate: Option<BitRate> = asked("shape").map(str::parse).transpose()?;
    values.extend(rate.map(Ordered::Shape));
    if let Some(text) = asked("cpu") {
        let cpu = cpu(text).map_err(|why| {
            let fix = format!("grep Cpus_allowed_list /proc/{}/status", std::process::id());
            refusal(Code::Cpu.as_str(), what, why, fix)
        })?;
        values.push(Ordered::Cpu(cpu));
    }
    Ok(values)
}
