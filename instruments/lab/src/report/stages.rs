//! The busy CPU time of the whole machine by stage of the packet path, from samples, for each load
//! of post 001 and each side.

use linerate_prof::stage::{Part, Stage};
use linerate_show::table::{Cell, Table};

use super::profiles::of_cell;
use super::tables;
use super::view::View;
use crate::record::CellRecord;

/// The stages of each column of shares, in order; the last column has all others.
const SHARES: [&[Stage]; 9] = [
    &[Stage::Driver, Stage::Core],
    &[Stage::Irq],
    &[Stage::Ip],
    &[Stage::Tcp],
    &[Stage::Socket],
    &[Stage::Copy],
    &[Stage::Memory],
    &[Stage::Scheduler, Stage::Syscall, Stage::Lock],
    &[Stage::User],
];

const NOTE: &str = "Samples of all CPUs in a window of their own, without idle time. polling: drivers, NAPI, queues and the \
     engine. TCP: and UDP. kernel: scheduler, entry of system calls, locks. applic.: programs, all of the machine's. other: functions \
     of no known stage, disks, and the sampling itself.";
const NO_SAMPLE: &str = "no sample";

/// Returns the table for the rows `cells`, whose first column is the level of `factor`; `None` if
/// no cell was sampled.
pub(super) fn table(view: &View<'_>, cells: &[&CellRecord], factor: &str) -> Option<Table> {
    let columns = tables::columns(
        "load=load [%], side=side, samples=samples, polling=polling [%], irqs=irqs [%], ip=IP [%], \
         tcp=TCP [%], socket=socket [%], copy=copy [%], memory=memory [%], kernel=kernel [%], \
         application=applic. [%], other=other [%]",
    );
    let mut table = Table::new("stages", "Busy CPU time by stage, by samples", &columns);
    let is_row = |cell: &CellRecord| cells.iter().any(|row| std::ptr::eq(*row, cell));
    for (name, cell) in view.told().filter(|(_, cell)| is_row(cell)) {
        let Some(profiles) = of_cell(view.run, name) else { continue };
        let level = cell.at.get(factor).map_or("", String::as_str);
        for (side, name) in ["A", "B"].into_iter().enumerate() {
            let count = |is_of: &dyn Fn(Stage) -> bool| {
                let sum = profiles.diff.sum_of(|row| is_of(row.stage));
                [sum.without, sum.with][side]
            };
            let busy = count(&|stage| stage.part() != Part::Idle);
            let share = |n: u64| (busy > 0).then(|| 100.0 * n as f64 / busy as f64);
            let known: Vec<u64> =
                SHARES.iter().map(|stages| count(&|stage| stages.contains(&stage))).collect();
            let other = busy.saturating_sub(known.iter().sum());
            let level = if side == 0 { Cell::text(level) } else { Cell::Empty };
            let shares = known.into_iter().chain([other]);
            let shares = shares.map(|n| Cell::real(share(n), 1, NO_SAMPLE));
            let head = [level, Cell::text(name), Cell::Count(busy)];
            table.row(head.into_iter().chain(shares).collect());
        }
    }
    table.note(NOTE);
    (!table.rows.is_empty()).then_some(table)
}
