//! Post 004: cycles for initialising an skb's header on each CPU, before the patch and with it.

use linerate_prof::Result;
use linerate_show::table::{Cell, Column, Row, Table};

use super::{Post, Report, Text};
use crate::decimal::Decimal;
use crate::stats::{self, Pair};

mod parse;

use parse::{Call, Kernel, Measured};

const NO_RATIO: &str = "a ratio of nothing";
const NOT_POSTED: &str = "the post does not give it";

/// Recomputes the post's figures.
///
/// # Errors
/// `E-FILE` with the line that is not as it should be.
pub(super) fn report(post: &'static Post, text: &str) -> Result<Report> {
    let text = Text::new(post.id, text)?;
    let measured = parse::measured(&text)?;
    let mut report = Report::new(post);
    taken(&mut report, &text)?;
    report.table(table(&measured));
    report.table(summary(&measured));
    report.table(owners(&measured));
    checks(&mut report, &text, &measured)?;
    errata(&mut report, &text, &measured)?;
    report.as_posted = as_posted(&measured);
    Ok(report)
}

impl Call {
    /// Returns the number of calls on all CPUs.
    fn calls(&self) -> u64 {
        self.calls.iter().sum()
    }

    /// Returns the mean cycles of a call, in which all calls have equal weight.
    fn weighted(&self) -> Option<f64> {
        let cycles = self.cycles.iter().map(|cycles| cycles.to_f64());
        let calls = self.calls.iter().map(|calls| *calls as f64);
        stats::weighted_mean(&cycles.zip(calls).collect::<Vec<_>>())
    }
}

impl Kernel {
    /// Returns for each CPU the cycles to allocate and free an skb.
    fn totals(&self) -> Vec<Decimal> {
        let free = |i: usize| self.free.as_ref().and_then(|free| free.cycles.get(i).copied());
        let sum = |(i, alloc): (usize, &Decimal)| match free(i) {
            Some(free) => alloc.plus(free),
            None => Some(*alloc),
        };
        // No CPU is left out: parsed numbers are too short for their sum to overflow.
        self.alloc.cycles.iter().enumerate().filter_map(sum).collect()
    }

    /// Returns the cycles for an skb, as the mean of the CPUs' means.
    fn unweighted(&self) -> Option<f64> {
        stats::mean(&self.totals().iter().map(|d| d.to_f64()).collect::<Vec<_>>())
    }

    /// Returns the cycles for an skb, with equal weight for all calls.
    fn weighted(&self) -> Option<f64> {
        let free = self.free.as_ref().map_or(Some(0.0), Call::weighted)?;
        Some(self.alloc.weighted()? + free)
    }

    /// Returns the lowest possible number of skbs that were freed on another CPU than the
    /// allocating one: a CPU that freed more than it allocated must have received the rest.
    fn freed_elsewhere(&self) -> Option<u64> {
        let free = self.free.as_ref()?;
        let surplus = free.calls.iter().zip(&self.alloc.calls);
        Some(surplus.map(|(freed, allocated)| freed.saturating_sub(*allocated)).sum())
    }
}

fn taken(report: &mut Report, text: &Text<'_>) -> Result<()> {
    let mut fact = |about, from, to| {
        text.between(from, to).map(|said| report.taken(about, said.is, Some(said.line)))
    };
    fact("kernel", "Baseline on", "kernel:")?;
    fact("change", "systems [for netperf]. The patch", ". Since")?;
    fact("measured", "I measured", ".")?;
    fact("workload", "at the end of running", ".")?;
    fact("machines", "on a 2-way system.", " are used")?;
    fact("where", "The cycles are collected at", ".")?;
    report.taken("runs, spread", "not said; nor what reading the cycles cost", None);
    Ok(())
}

fn table(measured: &Measured) -> Table {
    let columns = [
        Column::new("kernel", "kernel", ""),
        Column::new("function", "function", ""),
        Column::new("cpu0_cycles", "CPU 0", "cycles"),
        Column::new("cpu1_cycles", "CPU 1", "cycles"),
        Column::new("weighted_cycles", "by calls", "cycles"),
        Column::new("cpu0_calls", "CPU 0", "calls"),
        Column::new("cpu1_calls", "CPU 1", "calls"),
        Column::new("calls", "all", "calls"),
    ];
    let title = "Cycles in the initialisation, average of a call; \"by calls\": every call weighs \
        the same";
    let mut table = Table::new("cycles", title, &columns);
    for (name, kernel) in measured.kernels() {
        for (function, call) in
            [("alloc_skb", Some(&kernel.alloc)), ("__kfree_skb", kernel.free.as_ref())]
        {
            table.row(row(name, function, call));
        }
        let mut sum = vec![Cell::text(name), Cell::text("both, per skb")];
        let exact = |d: Decimal| bounded(kernel, Cell::from(d), d.to_f64(), 2);
        sum.extend(kernel.totals().into_iter().map(exact));
        let weighted = kernel.weighted().map(|x| bounded(kernel, Cell::Real(x, 2), x, 2));
        sum.push(weighted.unwrap_or(Cell::Absent(NO_RATIO)));
        table.row(sum);
        table.rows.push(Row::Rule);
    }
    table.rows.pop();
    table.note("–: the post does not give it. ≥: the sum without that side.");
    table
}

/// Returns a value, marked as a lower bound if one side was not posted.
fn bounded(kernel: &Kernel, exact: Cell, value: f64, digits: u8) -> Cell {
    if kernel.free.is_some() { exact } else { Cell::AtLeast(value, digits) }
}

fn row(kernel: &str, function: &str, call: Option<&Call>) -> Vec<Cell> {
    let mut cells = vec![Cell::text(kernel), Cell::text(function)];
    let Some(call) = call else {
        cells.extend(std::iter::repeat_n(Cell::Absent(NOT_POSTED), 6));
        return cells;
    };
    cells.extend(call.cycles.iter().map(|d| Cell::from(*d)));
    cells.push(Cell::real(call.weighted(), 2, NO_RATIO));
    cells.extend(call.calls.iter().map(|n| Cell::Count(*n)));
    cells.push(Cell::Count(call.calls()));
    cells
}

fn change(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    Pair { before: before?, after: after? }.change_pct()
}

fn summary(measured: &Measured) -> Table {
    let columns = [
        Column::new("mean", "cycles of an skb, allocated and freed", ""),
        Column::new("before_cycles", "before", "cycles"),
        Column::new("after_cycles", "with patch", "cycles"),
        Column::new("change_pct", "change", "%"),
    ];
    let kernel = &measured.after;
    let title = match kernel.free {
        Some(_) => "The gain, in two ways",
        None => "The gain, in two ways (with the patch: allocation only)",
    };
    let mut table = Table::new("gain", title, &columns);
    let mut row = |name: &str, digits, mean: fn(&Kernel) -> Option<f64>| {
        let (before, after) = (mean(&measured.before), mean(kernel));
        let changed = change(before, after).map(|x| bounded(kernel, Cell::Change(x, 2), x, 2));
        let with = after.map(|x| bounded(kernel, Cell::Real(x, digits), x, digits));
        table.row(vec![
            Cell::text(name),
            Cell::real(before, digits, NO_RATIO),
            with.unwrap_or(Cell::Absent(NO_RATIO)),
            changed.unwrap_or(Cell::Absent(NO_RATIO)),
        ]);
    };
    row("mean of the CPUs' averages, as in the post", 3, Kernel::unweighted);
    row("every call weighing the same", 1, Kernel::weighted);
    if kernel.free.is_none() {
        table.note("Freeing with the patch was not posted: the gain is at most this.");
    }
    table
}

fn owners(measured: &Measured) -> Table {
    let columns = [
        Column::new("figure", "whose skbs they are", ""),
        Column::new("before", "before", ""),
        Column::new("after", "with patch", ""),
        Column::new("unit", "unit", ""),
    ];
    let title = "Who allocates and who frees";
    let mut table = Table::new("owners", title, &columns);
    let mut row = |name: &str, unit: &str, figure: &dyn Fn(&Kernel) -> Cell| {
        let [before, after] = [&measured.before, &measured.after].map(figure);
        table.row(vec![Cell::text(name), before, after, Cell::text(unit)]);
    };
    let count = |n: Option<u64>| n.map_or(Cell::Absent(NOT_POSTED), Cell::Count);
    row("allocated", "skbs", &|k| Cell::Count(k.alloc.calls()));
    row("freed", "skbs", &|k| count(k.free.as_ref().map(Call::calls)));
    row("outstanding at the end: allocated - freed", "skbs", &|k| {
        let free = k.free.as_ref().map(Call::calls);
        let difference = |free| Cell::Gain(i128::from(k.alloc.calls()) - i128::from(free));
        free.map_or(Cell::Absent(NOT_POSTED), difference)
    });
    row("freed on another CPU than allocated, at least", "skbs", &|k| count(k.freed_elsewhere()));
    row("the same, of those allocated", "%", &|k| {
        let share = k.freed_elsewhere().map(|n| 100.0 * n as f64 / k.alloc.calls() as f64);
        Cell::real(share, 1, NOT_POSTED)
    });
    row("imbalance: most / fewest allocations of a CPU", "x", &|k| {
        let calls: Vec<f64> = k.alloc.calls.iter().map(|n| *n as f64).collect();
        let ratio =
            stats::range(&calls).and_then(|(low, high)| Pair { before: low, after: high }.ratio());
        Cell::real(ratio, 2, NO_RATIO)
    });
    table
}

fn checks(report: &mut Report, text: &Text<'_>, measured: &Measured) -> Result<()> {
    for (i, (posted, computed)) in
        measured.totals.is.iter().zip(measured.before.totals()).enumerate()
    {
        report.check(format!("total cycles, CPU {i}"), measured.totals.line, *posted, computed);
    }
    let said = text.number_after("numer of cylces by")?;
    let gain = change(measured.before.unweighted(), measured.after.unweighted());
    let what = "cycles saved, mean of the CPUs' averages, %";
    let computed = Cell::real(gain.map(|gain| -gain), 0, NO_RATIO).to_string();
    report.check(what, said.line, said.is.to_string(), computed);
    Ok(())
}

fn errata(report: &mut Report, text: &Text<'_>, measured: &Measured) -> Result<()> {
    let Measured { before, after, .. } = measured;
    let said = text.number_after("numer of cylces by")?;
    let real = |value, digits| Cell::real(value, digits, NO_RATIO);
    let changed = |a, b, digits| Cell::change(change(a, b), digits, NO_RATIO);
    let calls: Vec<String> = before.alloc.calls.iter().map(u64::to_string).collect();
    let [means, weighted] = [Kernel::unweighted, Kernel::weighted].map(|f| (f(before), f(after)));
    let gives = format!(
        "This is {} -> {}, {} %: the mean of two CPUs' averages, as if they made as many calls \
         (alloc_skb: {}). With every call weighing the same it is {} -> {}, {} %.",
        real(means.0, 3),
        real(means.1, 3),
        changed(means.0, means.1, 2),
        calls.join(" and "),
        real(weighted.0, 1),
        real(weighted.1, 1),
        changed(weighted.0, weighted.1, 1)
    );
    report.erratum(said.line, format!("\"by {}%\"", said.is), gives);
    if after.free.is_none() {
        let gives = "With the patch there is no line for __kfree_skb. Its initialisation is gone, so \
            about 0 is likely, but it was not measured, and neither was how often it was called: \
            what was freed elsewhere with the patch is not known.";
        report.erratum(after.line, "The patched table has no free side", gives);
    }
    for (i, (b, a)) in before.alloc.cycles.iter().zip(&after.alloc.cycles).enumerate() {
        if a.to_f64() > b.to_f64() {
            let free = before.free.as_ref().and_then(|free| free.cycles.get(i));
            let free = free.map_or(String::new(), |free| format!(" and {free} to free"));
            let gives = format!(
                "{b} -> {a} cycles, {:.1} times. What wins is the sum: before, an skb took {b} to \
                 allocate{free} there.",
                a.to_f64() / b.to_f64()
            );
            let says = format!("Nothing is said of allocation, which gets dearer on CPU {i}");
            report.erratum(after.line, says, gives);
        }
    }
    let gives = "The figures are of the initialisation only; what the allocator and the cache misses \
        of the rest cost is not in them, nor is throughput or CPU.";
    report.erratum(None, "Only the initialisation is measured", gives);
    let promised = text.between("I also will collect", ".")?;
    let gives = "This copy of the thread does not have it.";
    report.erratum(promised.line, format!("\"I also will collect {}\"", promised.is), gives);
    Ok(())
}

/// Formats the two tables as posted.
fn as_posted(measured: &Measured) -> String {
    let spaced =
        |values: &[Decimal]| values.iter().map(Decimal::to_string).collect::<Vec<_>>().join(" ");
    let counts = |values: &[u64]| {
        let grouped = |n: &u64| linerate_show::number::grouped(&n.to_string());
        values.iter().map(grouped).collect::<Vec<_>>().join(" ")
    };
    let Measured { before, after, .. } = measured;
    let mut table = format!(
        "{}\n-------------------------------\n\nCPU 0 CPU 1\n------ ------\n",
        before.title
    );
    let alloc = &before.alloc;
    table += &format!("Avg cycles in alloc_skb: {}\n", spaced(&alloc.cycles));
    if let Some(free) = &before.free {
        table += &format!("Avg cycles in __kfree_skb: {}\n------ -------\n", spaced(&free.cycles));
        table += &format!("Total Avg Cycles {}\n------ -------\n\n", spaced(&before.totals()));
        table += &format!("# of times alloc_skb called: {}\n", counts(&alloc.calls));
        table += &format!("# of times __kfree_skb called: {}\n", counts(&free.calls));
    }
    let alloc = &after.alloc;
    table += &format!("\n{}\n--------------------------\nCPU 0 CPU 1\n----- -----\n", after.title);
    table += &format!("Avg cycles in alloc skb: {}\n", spaced(&alloc.cycles));
    if let Some(free) = &after.free {
        table += &format!("Avg cycles in __kfree_skb: {}\n", spaced(&free.cycles));
    }
    table += &format!("\n# of times alloc_skb called: {}\n", counts(&alloc.calls));
    if let Some(free) = &after.free {
        table += &format!("# of times __kfree_skb called: {}\n", counts(&free.calls));
    }
    table
}
