//! The time of a side by what it was spent on, for each load of post 001 and each side.

use linerate_show::table::{Cell, Table};

use super::tables;
use super::view::Side;
use crate::record::CellRecord;

/// The meaning of the columns.
pub(super) const LEGEND: &str = "register: MODEL, with a price of register access (toll); else these ports have none. polling: \
     workers in user space, without register. empty: ESTIMATE, at most so much of polling found no \
     packet, if such a poll takes no longer than one that finds some. protocol: workers in the kernel, with IP \
     and TCP of the host that a packet goes to. applic., sockets: the hosts' programs in user space and \
     in the kernel. hold: asleep so that packets gather; sleep: asleep until something came. delay: \
     ready without a CPU; after a wake-up it is also in hold or sleep. User and kernel time are counted \
     in ticks.";

const NO_WINDOW: &str = "no undisturbed window has it";
const NO_REGISTER: &str = "these ports have no registers";
const NOT_APART: &str = "this document has holds and other sleep in one figure";

/// Returns the table for the rows `cells`, whose first column is the level of `factor`; `None` if
/// no window has the CPU times.
pub(super) fn table(cells: &[&CellRecord], factor: &str) -> Option<Table> {
    let columns = tables::columns(
        "load=load [%], side=side, register=register [%], polling=polling [%], empty=empty [%], \
         protocol=protocol [%], application=applic. [%], sockets=sockets [%], interrupts=irqs [%], \
         hold=hold [%], sleep=sleep [%], delay=delay [%]",
    );
    let title = "Where the time went, as a share of one CPU";
    let mut table = Table::new("split", title, &columns);
    let mut known = 0;
    for cell in cells {
        for (side, name) in [(Side::A, "A"), (Side::B, "B")] {
            let level = cell.at.get(factor).map_or("", String::as_str);
            let level = if name == "A" { Cell::text(level) } else { Cell::Empty };
            let shares = shares(side, cell);
            known += usize::from(shares[1] != Cell::Absent(NO_WINDOW));
            table.row([level, Cell::text(name)].into_iter().chain(shares).collect());
        }
    }
    if cells.iter().any(|cell| Side::A.sum(cell, "hold_ns").is_none()) {
        table.note("hold is n/a (–): this document does not tell holds from other sleep, and sleep has both.");
    }
    (known > 0).then_some(table)
}

/// Returns a side's shares of the wall time in a cell, in the order of the columns.
fn shares(side: Side, cell: &CellRecord) -> [Cell; 10] {
    let wall = side.sum(cell, "wall_ns").filter(|wall| *wall > 0.0);
    let pct = |name: &str| Some(100.0 * side.sum(cell, name)? / wall?);
    let is_split = is_split(pct("workers_user_ns"), pct("workers_system_ns"), pct("cpu_ns"));
    let split = |name: &str| pct(name).filter(|_| is_split);
    let real = |value: Option<f64>| Cell::real(value, 1, NO_WINDOW);
    let register = pct("register_ns");
    let polling = split("workers_user_ns").map(|user| (user - register.unwrap_or(0.0)).max(0.0));
    let polls = side.sum(cell, "polls").filter(|polls| *polls > 0.0);
    let empty = || Some(polling? * side.sum(cell, "polls_empty")? / polls?);
    let (asleep, hold) = (pct("asleep_ns"), pct("hold_ns"));
    [
        Cell::real(register, 1, NO_REGISTER),
        real(polling),
        empty().map_or(Cell::Absent(NO_WINDOW), |pct| Cell::AtMost(pct, 1)),
        real(split("workers_system_ns")),
        real(split("programs_user_ns")),
        real(split("programs_system_ns")),
        real(split("interrupts_ns")),
        Cell::real(hold, 1, NOT_APART),
        real(asleep.map(|asleep| asleep - hold.unwrap_or(0.0))),
        real(pct("run_delay_ns")),
    ]
}

/// Returns true if the workers' time by ticks is not more than the same by the scheduler's clock,
/// apart from the roughness of ticks. Early documents have times of all threads in it.
fn is_split(user: Option<f64>, system: Option<f64>, cpu: Option<f64>) -> bool {
    let times = user.zip(system).zip(cpu);
    times.is_some_and(|((user, system), cpu)| user + system <= 1.25 * cpu + 2.0)
}
