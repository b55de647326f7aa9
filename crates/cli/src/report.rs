//! The tables at the end of a run. An unknown figure is printed as `-`.

mod cost;
mod figures;

use std::fmt::Write;

use linerate::{Obtained, Verified};
use linerate_ctl::report::{FarReport, LedgerReport, PhaseReport, PortReport, QueuePassed};
use linerate_ctl::{ForwardReport, GenReport};
use linerate_sys::tsc;

use crate::{pool, sends, troubles};
use cost::{cost, excess, irqs};
use figures::{fine, late};

pub use figures::rate;
pub use linerate_sys::text::thousands;

/// Returns the ledger: packets of each port, drops, troubles and balance; `--quiet` prints nothing
/// else.
pub fn ledger(report: &ForwardReport) -> String {
    let mut text = ports(report) + &troubles::lines(&report.ports) + &balance(&report.ledger);
    text += &dropped_at_reception(report);
    if let Some(verify) = &report.verify {
        text += &verified(verify);
    }
    text
}

/// Returns the result of `forward`; `whole_pool` adds each worker's use of the pool.
pub fn forward(report: &ForwardReport, whole_pool: bool) -> String {
    let mut text = ledger(report);
    if let Some(process) = &report.far {
        text += &far(report, process);
    }
    text += &pace(report);
    text += &phases(&report.phases);
    text += &pool::line(&report.pool, tsc::timing_ticks);
    text += &cost(report);
    text += &irqs(&report.ports);
    text += &queues(&report.ports);
    text += &sends::lines(&report.ports);
    for port in report.ports.iter().filter(|port| !port.registers.is_empty()) {
        let _ = writeln!(text, "toll     {}: {}", port.name, port.registers);
    }
    text += &excess(report);
    if whole_pool { text + &pool::table(&report.pool) } else { text }
}

/// Formats the result of `gen`; `whole_pool` as for `forward`.
pub fn generated(report: &GenReport, whole_pool: bool) -> String {
    let p = &report.pace;
    let number = |n: Option<u64>| n.map_or("-".into(), thousands);
    let limit = if p.unsent.is_some_and(|n| n > 0) { "   <- below the rate" } else { "" };
    let line = format!(
        "asked {}  sent {}  unsent {}  late p50 {}  p99 {}{limit}\n",
        number(p.asked),
        thousands(p.sent),
        number(p.unsent),
        late(p.late_p50_ns),
        late(p.late_p99_ns),
    );
    line + &forward(&report.path, whole_pool)
}

/// Formats a line for each port: its name and properties; for a reader at a terminal with each
/// property that was not obtained on a line of its own.
pub fn obtained<'a>(
    ports: impl Iterator<Item = (&'a str, &'a Obtained)> + Clone,
    is_terminal: bool,
) -> String {
    let width = ports.clone().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, obtained) in ports {
        let mut shown = obtained.clone();
        let apart = if is_terminal { std::mem::take(&mut shown.refused) } else { Vec::new() };
        let full = shown.to_string();
        // The device's name is at the start of the line already.
        let device = format!("{name} ");
        let said = full.strip_prefix(&device).unwrap_or(&full);
        let _ = writeln!(text, "{name:width$}  {said}");
        // The terminal wraps a long line: commands in it can be pasted.
        for refused in apart {
            let _ = writeln!(text, "{:width$}  - {refused}", "");
        }
    }
    text
}

/// Formats the rows of the ports, then those of the drops, which have a reason instead of a port.
fn ports(report: &ForwardReport) -> String {
    let mut rows = vec![["ports", "rx pkts", "tx pkts", "dropped", "reason"].map(str::to_owned)];
    for port in &report.ports {
        let (rx, tx) = (thousands(port.rx.packets), thousands(port.tx.packets));
        rows.push([port.name.clone(), rx, tx, String::new(), String::new()]);
    }
    let dropped = &report.ledger.dropped;
    for (reason, n) in dropped {
        rows.push(["all".into(), String::new(), String::new(), thousands(*n), (*reason).into()]);
    }
    if dropped.is_empty() {
        rows.push(["all", "", "", "0", ""].map(str::to_owned));
    }
    table(&rows)
}

/// Formats rows: the first and last column left-aligned, the others right-aligned.
fn table(rows: &[[String; 5]]) -> String {
    let mut widths = [0; 5];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    // The first column is as wide as the labels of the lines below the table.
    widths[0] = widths[0].max(7);
    let mut text = String::new();
    for [name, rx, tx, dropped, reason] in rows {
        let [a, b, c, d, _] = widths;
        let line = format!("{name:a$}  {rx:>b$}  {tx:>c$}  {dropped:>d$}  {reason}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Formats a line for each port with several queues: the packets of each.
fn queues(ports: &[PortReport]) -> String {
    let mut text = String::new();
    for port in ports.iter().filter(|port| port.queues.len() > 1) {
        let each = |packets: fn(&QueuePassed) -> u64| {
            let each: Vec<_> = port.queues.iter().map(|queue| thousands(packets(queue))).collect();
            each.join(" + ")
        };
        let (rx, tx) = (each(|queue| queue.rx.packets), each(|queue| queue.tx.packets));
        let _ = writeln!(text, "queues   {}: rx {rx}, tx {tx}", port.name);
    }
    text
}

fn balance(ledger: &LedgerReport) -> String {
    let created = match ledger.created {
        0 => String::new(),
        n => format!(" + created {}", thousands(n)),
    };
    let consumed = match ledger.consumed {
        0 => String::new(),
        n => format!(" + consumed {}", thousands(n)),
    };
    let verdict = if ledger.balanced { "OK" } else { "NOT BALANCED" };
    format!(
        "balance  rx {}{created} = tx {}{consumed} + drop {} + in flight {}   {verdict}\n",
        thousands(ledger.received),
        thousands(ledger.sent),
        thousands(ledger.dropped_total()),
        thousands(ledger.in_flight),
    )
}

/// Returns a line if the balance has more received packets than the rows of the ports: packets that
/// a port dropped before it gave them to the path, for instance because no chain of frames holds
/// them.
fn dropped_at_reception(report: &ForwardReport) -> String {
    let from_devices = report.ports.iter().filter(|p| !p.flags.generates && !p.flags.paired);
    let passed: u64 = from_devices.map(|port| port.rx.packets).sum();
    match report.ledger.received.saturating_sub(passed) {
        0 => String::new(),
        n => format!(
            "         {} of rx were dropped at reception and are not in the ports' rx pkts\n",
            thousands(n)
        ),
    }
}

fn verified(v: &Verified) -> String {
    let mut text = format!(
        "verify   lost {}, reordered {}, corrupted {}",
        thousands(v.lost),
        thousands(v.reordered),
        thousands(v.corrupted)
    );
    for (n, what) in [(v.duplicated, "duplicated"), (v.late, "late"), (v.foreign, "foreign")] {
        if n > 0 {
            let _ = write!(text, ", {what} {}", thousands(n));
        }
    }
    text + "\n"
}

/// Returns the lines about packets received by the second process.
fn far(report: &ForwardReport, far: &FarReport) -> String {
    let copied = |n: Option<u64>| n.map_or("-".into(), thousands);
    let here = report.ports.iter().filter_map(|port| port.copied_bytes).reduce(|a, b| a + b);
    format!(
        "far      process {} took {} packets, {} bytes, and verified {}\n\
         copied   {} bytes on this side, {} by the far process to verify them\n",
        far.process,
        thousands(far.received.packets),
        thousands(far.received.bytes),
        thousands(far.verified),
        copied(here),
        copied(far.copied_bytes),
    )
}

/// Formats the lines with the rate, throughput and CPU share of each phase.
fn phases(phases: &[PhaseReport]) -> String {
    let mut text = String::new();
    for phase in phases {
        let each = |n: f64| Some(n / phase.seconds).filter(|n| n.is_finite());
        let pps = each(phase.sent.packets as f64).map_or("-".into(), rate);
        let megabytes = each(phase.sent.bytes as f64 / 1e6);
        let cpu = |seconds: f64| each(seconds * 100.0).map_or("-".into(), |n| format!("{n:.0} %"));
        let far = phase.far_cpu_seconds.map_or("-".into(), cpu);
        let post = phase.post_cpu_pct.map_or(String::new(), |pct| format!(", {pct} % in post 000"));
        let _ = writeln!(
            text,
            "{:<8} {pps}  {} MB/s over {:.2} s  CPU {} here, {far} there{post}",
            phase.name,
            fine(megabytes, 1),
            phase.seconds,
            cpu(phase.cpu_seconds),
        );
        if phase.late_p50_ns.is_some() {
            let (p50, p99) = (late(phase.late_p50_ns), late(phase.late_p99_ns));
            let _ = writeln!(
                text,
                "         late p50 {p50}  p99 {p99}: packets wait until a batch is full"
            );
        }
    }
    text
}

fn pace(report: &ForwardReport) -> String {
    let seconds = report.duration_seconds;
    let pps = report.sent_in_duration as f64 / seconds;
    let pps = if pps.is_finite() { rate(pps) } else { "-".into() };
    format!("rate     {pps} over {seconds:.2} s\n")
}

#[cfg(test)]
mod tests;
