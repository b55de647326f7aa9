//! Results in the layout of the post that an experiment reproduces, so that both can be read side
//! by side.
//!
//! Post 001 has a row for each load of the link, and a column for each of two modes. A run of ours
//! has such a table for every level of the other factors, and what the post leaves out beside it:
//! what packets paid, and where the time went. Post 002 has a row for each size of a write, in
//! groups by processes and by TCP's delay. Post 003 has a row for each function, with and without
//! affinity, and neither throughput nor CPU time, which stand beside.

use linerate_prof::print::{Chains, Ranked};
use linerate_seeds::{BatchRow, in_the_layout_of_001, in_the_layout_of_002};
use linerate_show::table::{Cell, Table};

use super::batches;
use super::profiles::{Profiles, profiles};
use super::split;
use super::stages;
use super::tables;
use super::view::{Side, View};
use super::words::short;
use crate::analysis::{ACHIEVED, LOAD, REACHED_PCT, figures, is_valid};
use crate::experiment::Clock;
use crate::percentile::P99;
use crate::record::{CellRecord, Status, Verdict};

/// The factors whose levels are the rows of post 002, outermost first.
const TESTS: [&str; 3] = ["test", "procs", "size"];
/// The metric that fills post 002's columns.
const RATE: &str = "goodput_kb_s";
/// The metric of the column `p99`.
const P99_US: &str = "receipt_p99_us";
/// Most rows that a note names.
const ROWS_NAMED: usize = 4;
/// Blanks before the name of a group of tests.
const GROUP_INDENT: usize = 31;

/// Most functions listed for each direction: those whose counts fell most, and those that rose
/// most.
const FUNCTIONS_MAX: usize = 12;

/// A table in the post's layout, with additional figures.
pub(super) struct Posted {
    /// The post's names of both sides.
    pub sides: [&'static str; 2],
    /// The levels of the other factors, as `port=xdp, mode=fixed`.
    pub title: String,
    /// The table in the post's columns.
    pub text: String,
    /// Tables of additional figures: the loads that were reached, the latency, the CPU time of
    /// other programs, losses.
    pub beside: Vec<Table>,
    /// The meaning of the columns of `beside`, in sentences; may be empty.
    pub legend: &'static str,
    /// Call chains of both sides, indented; may be empty. A page draws them instead.
    pub chains: String,
}

/// Returns the tables of a run that reproduces post 001, 002 or 003; none for other runs.
pub(super) fn of(view: &View<'_>) -> Vec<Posted> {
    let tables = |rows: &[&str], posted: fn(&View<'_>, String, &[&CellRecord]) -> Posted| {
        let groups = groups(view, rows).into_iter();
        groups.map(|(title, cells)| posted(view, title, &cells)).collect()
    };
    match &*view.run.experiment.seed_post {
        "001" => tables(&[LOAD], loads),
        "002" => tables(&TESTS, tests),
        "003" => profiles(view.run).iter().map(|profiles| functions(profiles, view)).collect(),
        _ => Vec::new(),
    }
}

/// Returns the cells that have a level of each factor of `rows`, grouped by the levels of the other
/// factors; cells without figures only if a side did not reach their load, or if most of their
/// pairs were disturbed.
pub(super) fn groups<'a>(view: &'a View<'_>, rows: &[&str]) -> Vec<(String, Vec<&'a CellRecord>)> {
    // A cell whose packets are not accounted for is inconclusive as well, and its results are
    // withheld.
    grouped(view, rows, |cell| match cell.status {
        Status::Unreachable => true,
        Status::Inconclusive if cell.ledger.balanced() => true,
        _ => !cell.metrics.is_empty(),
    })
}

/// Returns the cells among those with `is_row` that have a level of each factor of `rows`, grouped
/// by the levels of the other factors.
pub(super) fn grouped<'a>(
    view: &'a View<'_>,
    rows: &[&str],
    is_row: impl Fn(&CellRecord) -> bool,
) -> Vec<(String, Vec<&'a CellRecord>)> {
    let mut groups: Vec<(String, Vec<&CellRecord>)> = Vec::new();
    for (_, cell) in view.named().filter(|(_, cell)| is_row(cell)) {
        if rows.iter().any(|factor| !cell.at.contains_key(*factor)) {
            continue;
        }
        let others = cell.at.iter().filter(|(factor, _)| !rows.contains(&factor.as_str()));
        let others: Vec<String> = others.map(|(name, level)| format!("{name}={level}")).collect();
        let title = others.join(", ");
        match groups.iter_mut().find(|(known, _)| *known == title) {
            Some((_, cells)) => cells.push(cell),
            None => groups.push((title, vec![cell])),
        }
    }
    groups
}

fn level<'a>(cell: &'a CellRecord, factor: &str) -> &'a str {
    cell.at.get(factor).map_or("", String::as_str)
}

fn loads(view: &View<'_>, title: String, cells: &[&CellRecord]) -> Posted {
    let row = |cell: &&CellRecord| {
        let [packets, cpu] = ["packets_per_irq", "cpu_pct"].map(|metric| both(view, cell, metric));
        let [a, b] = packets;
        let [c, d] = cpu;
        [level(cell, LOAD).to_owned(), a, b, c, d]
    };
    let (text, sides) = (in_the_layout_of_001(cells.iter().map(row)), ["NAPI", "coalescing"]);
    let split = split::table(cells, LOAD);
    let legend = if split.is_some() { split::LEGEND } else { "" };
    let stages = stages::table(view, cells, LOAD);
    let beside = [beside_loads(view, cells)].into_iter().chain(split).chain(stages).collect();
    Posted { sides, title, text, beside, legend, chains: String::new() }
}

fn tests(view: &View<'_>, title: String, cells: &[&CellRecord]) -> Posted {
    let (mut sums, mut counts, mut any) = ([0.0; 2], [0; 2], false);
    let mut rows = Vec::new();
    for cell in cells {
        let effect = cell.metrics.get(RATE);
        let text = |value: Option<f64>| value.map_or("n/a".into(), |value| format!("{value:.0}"));
        if let Some(effect) = effect.filter(|_| is_quiet(view, cell)) {
            (sums, any) = ([sums[0] + effect.a, sums[1] + effect.b], true);
            counts[0] += usize::from(effect.verdict == Verdict::Better);
            counts[1] += usize::from(effect.verdict == Verdict::Worse);
        }
        let [group, processes, size] = TESTS.map(|factor| level(cell, factor).to_owned());
        rows.push(BatchRow {
            label: format!("Size:{size} Procs:{processes}"),
            group,
            processes,
            org: text(effect.map(|effect| effect.a)),
            new: text(effect.map(|effect| effect.b)),
            change: effect.map_or("n/a".into(), |effect| format!("{:.2}", effect.change_pct)),
        });
    }
    let [a, b] = sums;
    let sums = [a, b].map(|sum| if any { format!("{sum:.0}") } else { "n/a".into() });
    let change = if a > 0.0 { format!("{:.2}", 100.0 * (b / a - 1.0)) } else { "n/a".into() };
    let [org, new] = sums;
    let text = in_the_layout_of_002(&rows, &[org, new, change], counts, |_| GROUP_INDENT);
    let batches = batches::table(view, cells, TESTS);
    let legend = if batches.is_some() { batches::LEGEND } else { "" };
    let beside = [beside_tests(view, cells)].into_iter().chain(batches).collect();
    Posted { sides: ["ORG", "NEW"], title, text, beside, legend, chains: String::new() }
}

/// Returns the difference between both sides' profiles, with additional figures.
fn functions(profiles: &Profiles, view: &View<'_>) -> Posted {
    let Profiles { cell, a, b, diff } = profiles;
    let at = view.told().find(|(name, _)| *name == short(cell));
    let columns = tables::columns("figure, a=without, b=with, unit");
    let mut beside = Table::new("beside", "", &columns);
    for (_, cell) in at.iter() {
        for metric in view.measured() {
            let mut row = vec![Cell::text(&metric.label)];
            row.extend(cells_of(view, cell, &metric.name, 2));
            row.push(Cell::text(&metric.unit));
            beside.row(row);
        }
    }
    let title = format!("{}, {}", short(cell), short(&a.event.name));
    // Both sides are sampled for the same time, in which the CPUs are busy: only for each packet do
    // their totals differ. The post's sides had equal throughput.
    let text = Ranked::new(diff).top(Some(FUNCTIONS_MAX)).to_string();
    let chains = Chains::between(a, b, diff).map(|chains| chains.bare(true).to_string());
    let (sides, chains) = (["without", "with"], chains.unwrap_or_default());
    Posted { sides, title, text, beside: vec![beside], legend: "", chains }
}

/// Returns true if the rates of post 002 in `cell` support a conclusion: its totals are of such
/// cells only, as the summary lines of a run are.
fn is_quiet(view: &View<'_>, cell: &CellRecord) -> bool {
    let clock = view.metrics.iter().find(|metric| metric.name == RATE).and_then(|one| one.clock);
    clock.is_none_or(|clock| is_valid(clock, cell))
}

/// Returns the table of the cost of batching, which the post's table lacks, and the mean of its
/// gains.
fn beside_tests(view: &View<'_>, cells: &[&CellRecord]) -> Table {
    let columns = tables::columns(
        "test=test, procs=procs [n], size=size [bytes], a_bells=bells A [/packet], b_bells=bells B [/packet], \
         a_retransmits=resent A [/million], b_retransmits=resent B [/million], a_order=reorder A [/million], \
         b_order=reorder B [/million], a_p99=p99 A [us], b_p99=p99 B [us]",
    );
    let mut table = Table::new("beside", "", &columns);
    for cell in cells {
        let mut row = TESTS.map(|factor| Cell::text(level(cell, factor))).to_vec();
        for (metric, digits) in [
            ("doorbells_per_packet", 3),
            ("retransmits_per_million", 0),
            ("reordered_per_million", 0),
            (P99_US, 0),
        ] {
            row.extend(cells_of(view, cell, metric, digits));
        }
        table.row(row);
    }
    let (quiet, disturbed): (Vec<&CellRecord>, Vec<&CellRecord>) =
        cells.iter().copied().partition(|cell| is_quiet(view, cell));
    let effects = quiet.iter().filter_map(|cell| cell.metrics.get(RATE));
    let gains: Vec<f64> = effects.map(|effect| (1.0 + effect.change_pct / 100.0).ln()).collect();
    if !gains.is_empty() {
        let mean = (gains.iter().sum::<f64>() / gains.len() as f64).exp();
        table.note(format!(
            "Geometric mean of {} changes: {:+.1} %.",
            gains.len(),
            100.0 * (mean - 1.0)
        ));
    }
    let what = match gains.is_empty() {
        false => "The totals and the mean leave out rows",
        true => "There are no totals and no mean. Rows",
    };
    if !disturbed.is_empty() {
        let rows = disturbed.len();
        table.note(format!("{what} of which most pairs were disturbed: {rows}."));
    }
    if let Some(rows) = without_effect(&quiet) {
        table.note(format!("{what} without an effect on {RATE}: {rows}."));
    }
    if !gains.is_empty() {
        table.note(
            "Overall is the ratio of both sums, as in the post; a line's sum is of paired changes.",
        );
    }
    no_percentile(view, cells).into_iter().for_each(|note| table.note(note));
    table
}

/// Returns the names of the rows that have no effect on the rate; `None` if there are none.
fn without_effect(cells: &[&CellRecord]) -> Option<String> {
    let rows = || cells.iter().filter(|cell| !cell.metrics.contains_key(RATE));
    let name = |cell: &&CellRecord| {
        let [test, procs, size] = TESTS.map(|factor| short(level(cell, factor)));
        format!("{test} Size:{size} Procs:{procs}")
    };
    let named: Vec<String> = rows().take(ROWS_NAMED).map(name).collect();
    let more = match rows().count().saturating_sub(ROWS_NAMED) {
        0 => String::new(),
        n => format!(", and {n} more"),
    };
    (!named.is_empty()).then(|| named.join(", ") + &more)
}

/// Returns the reason if no row has a 99th percentile.
fn no_percentile(view: &View<'_>, cells: &[&CellRecord]) -> Option<String> {
    if cells.iter().any(|cell| values(view, cell, P99_US) != [None; 2]) {
        return None;
    }
    let windows = || {
        cells.iter().flat_map(|cell| {
            [Side::A, Side::B].into_iter().flat_map(move |side| side.windows(cell, Clock::Wall))
        })
    };
    if windows().any(|window| window.figure("receipt_p99_ns").is_some()) {
        return Some("p99 is n/a (–): windows have it, but no row has an effect on it.".into());
    }
    let counts = windows().filter_map(|window| window.figure("receipt_count"));
    Some(match counts.reduce(f64::max) {
        None if windows().next().is_none() => "p99 is n/a (–): no window's rates count.".into(),
        None => "p99 is n/a (–): no window has probes.".into(),
        Some(most) if most < P99.least as f64 => format!(
            "p99 is n/a (–): a window has at most {most} probes, and a 99th percentile takes {}.",
            P99.least
        ),
        Some(most) => format!(
            "p99 is n/a (–): the program that wrote this document asked for more than the {most} \
             probes of a window."
        ),
    })
}

/// Formats a metric's values on both sides; of an effect, a bound as one.
fn cells_of(view: &View<'_>, cell: &CellRecord, metric: &str, digits: u8) -> [Cell; 2] {
    if let Some(effect) = cell.metrics.get(metric) {
        return tables::bounded(effect, |value| Cell::Real(value, digits));
    }
    let metrics = view.experiment.as_ref().map_or(&[][..], |known| &known.metrics);
    let known = metrics.iter().find(|one| one.name == metric);
    let found = known.map(|metric| figures(metric, &cell.pairs));
    let found = found.map_or([true; 2], |both| both.map(|figure| figure.is_some()));
    let shown = |value, is_found| {
        let why = match is_found {
            true => "the row has no effect on it",
            false => "no undisturbed window has it",
        };
        Cell::real(value, digits, why)
    };
    let ([a, b], [is_in_a, is_in_b]) = (values(view, cell, metric), found);
    [shown(a, is_in_a), shown(b, is_in_b)]
}

/// Returns a metric's values on both sides. A cell whose load a side did not reach has no effect,
/// which would compare unequal work: its values come from the windows of each side.
fn values(view: &View<'_>, cell: &CellRecord, metric: &str) -> [Option<f64>; 2] {
    if let Some(effect) = cell.metrics.get(metric) {
        return [Some(effect.a), Some(effect.b)];
    }
    let is_stripped = match cell.status {
        Status::Unreachable => true,
        // Most pairs may also be disturbed in such a cell, which its status does not tell then.
        Status::Inconclusive => reached(cell) != [true; 2],
        Status::Ok | Status::Unsupported => false,
    };
    let experiment = view.experiment.as_ref().filter(|_| is_stripped);
    let known = experiment.and_then(|known| known.metrics.iter().find(|one| one.name == metric));
    known.map_or([None; 2], |metric| figures(metric, &cell.pairs))
}

/// Formats the values of a metric on both sides as the post prints them.
fn both(view: &View<'_>, cell: &CellRecord, metric: &str) -> [String; 2] {
    let [a, b] = values(view, cell, metric);
    let [reached_a, reached_b] = reached(cell);
    let text = |reached: bool, value: Option<f64>| match (reached, value) {
        (false, _) => "-".to_owned(),
        (true, value) => value.map_or("n/a".to_owned(), |value| format!("{value:.1}")),
    };
    [text(reached_a, a), text(reached_b, b)]
}

/// Returns for each side whether it reached the load; true if that is unknown, and false for both
/// sides if it is unknown which of them did not.
pub(super) fn reached(cell: &CellRecord) -> [bool; 2] {
    let unknown = [cell.status != Status::Unreachable; 2];
    let achieved = cell.metrics.get(ACHIEVED);
    achieved.map_or(unknown, |effect| [effect.a, effect.b].map(|pct| pct >= REACHED_PCT))
}

/// Returns the figures that post 001 does not have.
fn beside_loads(view: &View<'_>, cells: &[&CellRecord]) -> Table {
    let columns = tables::columns(
        "load=load [%], a_achieved=reached A [%], b_achieved=reached B [%], a_p50=p50 A [us], b_p50=p50 B [us], \
         a_p99=p99 A [us], b_p99=p99 B [us], a_all=all CPU A [%], b_all=all CPU B [%]",
    );
    let mut table = Table::new("beside", "", &columns);
    for cell in cells {
        let mut row = vec![Cell::text(level(cell, LOAD))];
        for metric in [ACHIEVED, "receipt_p50_us", P99_US, "all_cpu_pct"] {
            row.extend(cells_of(view, cell, metric, 1));
        }
        table.row(row);
    }
    table
}
