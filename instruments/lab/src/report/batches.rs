//! The table of what post 002 leaves out, for each of its rows and each side: lost packets, how
//! often the device accepted no packet, and how many packets a transmit call gave to the device.
//!
//! The figures are sums over windows, and not medians: most are 0 in most windows.

use linerate_show::number::count;
use linerate_show::table::{Cell, Table};

use super::tables;
use super::view::{Side, View};
use crate::experiment::Clock;
use crate::record::CellRecord;
use crate::scenario::RECEIVER_COUNTERS;
use crate::settings::Value;
use crate::window::Window;

/// The meaning of the columns.
pub(super) const LEGEND: &str = "lost: between the hosts, in a device's queue, in a ring or in the engine; with what was lost until all had \
     arrived after the window. receiver: received and dropped by a host's \
     kernel. full: share of the transmit calls in which the device accepted no packet. 1 to 64+: share \
     of the calls in which the device took so many packets. Over all windows whose rates count; calls by \
     packets, whose costs count.";

/// Smallest number of packets in each printed range of transmit calls; the last range has no end.
const RANGES: [u64; 6] = [1, 2, 4, 16, 32, 64];

/// Figures of the losses of all parts of the path between the hosts.
const LOST: [&str; 4] = ["inlet_lost", "core_lost", "driver_lost", "outlet_lost"];
const NO_WINDOW: &str = "no undisturbed window has it";
const NO_BATCHES: &str = "each packet is a write";

/// Returns the table for the rows `cells`, whose first columns are the levels of `factors`; `None`
/// if no window has counts of transmit calls.
pub(super) fn table(view: &View<'_>, cells: &[&CellRecord], factors: [&str; 3]) -> Option<Table> {
    let columns = tables::columns(
        "test=test, procs=procs, size=size [bytes], side=side, lost=lost [/million], \
         receiver=receiver [/million], full=full [%], calls_1=1 [%], calls_2=2-3 [%], calls_4=4-15 [%], \
         calls_16=16-31 [%], calls_32=32-63 [%], calls_64=64+ [%]",
    );
    let title =
        "Beside each row: losses, calls that sent nothing, and calls by the number of packets sent";
    let mut table = Table::new("batches", title, &columns);
    let (mut any, mut taps) = (false, 0);
    for cell in cells {
        for (side, name) in [(Side::A, "A"), (Side::B, "B")] {
            let [rates, counts] = [Clock::Wall, Clock::Count]
                .map(|clock| side.windows(cell, clock).collect::<Vec<&Window>>());
            any |= counts.iter().any(|window| window.figure("tx_calls").is_some());
            let is_tap = port(view, cell, side).as_deref() == Some("tap");
            taps += usize::from(is_tap);
            let level = |factor: &&str| cell.at.get(*factor).map_or("", String::as_str);
            let mut row: Vec<Cell> = factors.iter().map(|one| Cell::text(level(one))).collect();
            if name == "B" {
                row.fill(Cell::Empty);
            }
            row.push(Cell::text(name));
            row.extend(losses(&rates));
            row.extend(calls(&counts, is_tap));
            table.row(row);
        }
    }
    table.note(counters(cells));
    if taps > 0 {
        table.note("On tap, calls by packets are n/a (–): each packet is a write, so that a cap has no effect.");
    }
    any.then_some(table)
}

/// Returns lost packets and those that the receiver dropped for a million packets, and the share of
/// calls in which the device accepted no packet.
fn losses(windows: &[&Window]) -> [Cell; 3] {
    let share = |scale: f64, over: &[&str], under: &str| {
        let sum = |names: &[&str]| names.iter().map(|name| sum(windows, name)).sum::<Option<f64>>();
        let value = sum(over).zip(sum(&[under])).map(|(over, under)| scale * over / under);
        value.filter(|value| value.is_finite())
    };
    let on_the_way = share(1e6, &LOST, "packets");
    [
        // Without the kernel's counts of both hosts, only the ring and the engine tell.
        Cell::real(
            on_the_way.or_else(|| share(1e6, &["missed", "dropped"], "packets")),
            0,
            NO_WINDOW,
        ),
        Cell::real(share(1e6, &["receiver_lost"], "packets"), 0, NO_WINDOW),
        Cell::real(share(100.0, &["tx_calls_full"], "tx_calls"), 1, NO_WINDOW),
    ]
}

/// Returns the shares of transmit calls by the packets that the device took.
fn calls(windows: &[&Window], is_tap: bool) -> [Cell; RANGES.len()] {
    let all = sum(windows, "tx_calls").filter(|all| *all > 0.0);
    std::array::from_fn(|i| {
        if is_tap {
            return Cell::Absent(NO_BATCHES);
        }
        let to = RANGES.get(i + 1).copied().unwrap_or(u64::MAX);
        let is_in = |name: &str| {
            let least = name.strip_prefix("tx_calls_").and_then(|least| least.parse().ok());
            least.is_some_and(|least: u64| (RANGES[i]..to).contains(&least))
        };
        let figures = windows.iter().flat_map(|window| &window.figures);
        let calls =
            figures.filter(|(name, _)| is_in(name)).fold(0.0, |sum, (_, calls)| sum + calls);
        Cell::real(all.map(|all| 100.0 * calls / all), 1, NO_WINDOW)
    })
}

/// Returns the sum of a figure; `None` if a window lacks it, or there is no window.
fn sum(windows: &[&Window], name: &str) -> Option<f64> {
    let figures = windows.iter().map(|window| window.figure(name));
    figures.reduce(|sum, figure| Some(sum? + figure?)).flatten()
}

/// Names the receivers' counters of drops and errors that are not 0, with their sums over all rows.
fn counters(cells: &[&CellRecord]) -> String {
    let total = |side: Side, name: &str| {
        let windows = cells.iter().flat_map(|cell| side.windows(cell, Clock::Wall));
        let figures: Vec<f64> = windows.filter_map(|window| window.figure(name)).collect();
        (!figures.is_empty()).then(|| figures.iter().sum::<f64>())
    };
    let sums = RECEIVER_COUNTERS.map(|name| (name, total(Side::A, name), total(Side::B, name)));
    let known = sums.iter().filter(|(_, a, b)| a.is_some() || b.is_some()).count();
    let some: Vec<String> = sums
        .iter()
        .filter(|(_, a, b)| a.unwrap_or(0.0) + b.unwrap_or(0.0) > 0.0)
        .map(|(name, a, b)| {
            let [a, b] = [a, b].map(|sum| sum.map_or("n/a".into(), |sum| count(sum as u64)));
            format!("{name} {a} and {b}")
        })
        .collect();
    let rest = match known.saturating_sub(some.len()) {
        0 => String::new(),
        rest => format!("; the other {rest} are 0"),
    };
    match (known, some.join(", ")) {
        (0, _) => {
            "The receivers' counters of drops and errors are n/a: no window's rates count.".into()
        }
        (_, some) if some.is_empty() => {
            format!("The receivers' {known} counters of drops and errors are all 0.")
        }
        (_, some) => format!("The receivers' counters of drops and errors, A and B: {some}{rest}."),
    }
}

/// Returns the driver of a side's ports; without the experiment's file, the one that a level names.
fn port(view: &View<'_>, cell: &CellRecord, side: Side) -> Option<String> {
    let tap = || cell.at.values().find(|level| *level == "tap").cloned();
    let Some(experiment) = &view.experiment else { return tap() };
    let is_same = |at: &[(String, String)]| {
        at.len() == cell.at.len() && at.iter().all(|(k, v)| cell.at.get(k) == Some(v))
    };
    let Some(known) = experiment.cells.iter().find(|known| is_same(&known.at)) else {
        return tap();
    };
    let settings = match side {
        Side::A => &known.a,
        Side::B => &known.b,
    };
    match &settings.get("port")?.value {
        Value::Text(port) => Some(port.clone()),
        _ => None,
    }
}
