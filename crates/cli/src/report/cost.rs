//! The lines of a run's cost: cycles, irqs, time, locks, calls and waits for each packet.

use std::fmt::Write;

use linerate_ctl::report::{Cost, PortReport};
use linerate_ctl::{Calls, ForwardReport, Locks, TSC, Waits};
use linerate_sys::text::thousands;

use super::figures::{estimated, fine, scaled};
use crate::run::{PACKETS_MIN, has_costs};

/// Difference between two measurements of CPU time, in per cent of the larger one, from which both
/// are marked. Each omits a part that the other includes, a few per cent on a busy path.
const AGREE_PCT: f64 = 10.0;

pub(super) fn cost(report: &ForwardReport) -> String {
    let cost = &report.cost;
    if !has_costs(report) {
        let (cpu, few) = (cost.cpu_seconds, thousands(PACKETS_MIN));
        return format!(
            "cost     CPU {cpu:.1} s; fewer than {few} packets: no costs for each packet\n"
        );
    }
    let whole = |n: Option<f64>| n.map_or("-".into(), |n| thousands(n.round() as u64));
    let tenths = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.1}"));
    let scope = if cost.scope == Some("user") { " (without the kernel's)" } else { "" };
    let unit = if cost.scope == Some(TSC) { "TSC ticks/pkt" } else { "cyc/pkt" };
    format!(
        "cost     {} {unit}  {} instr/pkt{scope}  {} pkt/irq  CPU {:.1} s\n",
        whole(cost.cycles_per_packet),
        whole(cost.instructions_per_packet),
        tenths(cost.packets_per_irq),
        cost.cpu_seconds
    )
}

/// Formats a line for each port with moderation: the packets for each irq, and a note if they are
/// too few.
pub(super) fn irqs(ports: &[PortReport]) -> String {
    let mut text = String::new();
    for port in ports.iter().filter(|port| !port.moderation.is_empty()) {
        for (queue, line) in port.moderation.iter().enumerate() {
            let queue =
                if port.moderation.len() > 1 { format!(" queue {queue}") } else { String::new() };
            let _ = writeln!(text, "irqs     {}{queue}: {line}", port.name);
        }
        if let Some(poor) = &port.poor_use {
            let _ = writeln!(text, "         {poor}");
        }
    }
    text
}

/// Formats the two measurements of CPU time for each packet; then locks, calls and waits for each
/// packet.
pub(super) fn excess(report: &ForwardReport) -> String {
    if !has_costs(report) {
        return String::new();
    }
    time(&report.cost) + &locks(&report.locks) + &calls(&report.calls) + &waits(&report.waits)
}

/// Formats the CPU time for each packet: by the kernel's accounting of the process, and by the
/// workers' clocks.
pub(super) fn time(cost: &Cost) -> String {
    let (cpu, awake) = (cost.cpu_ns_per_packet, cost.awake_ns_per_packet);
    let (agree, apart) = match (cpu, awake) {
        (Some(cpu), Some(awake)) => {
            let pct = 100.0 * (cpu - awake).abs() / cpu.max(awake);
            let likely = if cpu > awake {
                "starting, going to sleep and waking up take CPU time that the workers' clocks do not count"
            } else {
                "the machine was busy, and another thread ran on the CPU"
            };
            let line = || {
                format!("         the two clocks differ by {pct:.0} %, probable cause: {likely}\n")
            };
            if pct <= AGREE_PCT { ("  agree", String::new()) } else { ("", line()) }
        }
        _ => ("", String::new()),
    };
    let (cpu, awake) = (fine(cpu, 1), fine(awake, 1));
    let line =
        format!("{cpu} ns CPU/pkt by the kernel  {awake} ns awake/pkt by the workers' clocks");
    format!("time     {line}{agree}\n{apart}")
}

fn locks(locks: &Locks) -> String {
    format!(
        "locks    {} taken/pkt  {} contended/pkt  {} ns waited/pkt\n",
        fine(locks.taken_per_packet, 3),
        fine(locks.contended_per_packet, 3),
        fine(locks.wait_ns_per_packet, 1)
    )
}

pub(super) fn calls(calls: &Calls) -> String {
    let rate = |n: Option<f64>| n.map_or("-".into(), |n| scaled(n, ""));
    let mut text = format!(
        "calls    {} alloc/pkt  {} free/pkt  {} copies/pkt  {} rx+xmit calls/pkt\n",
        fine(calls.allocs_per_packet, 3),
        fine(calls.frees_per_packet, 3),
        fine(calls.copies_per_packet, 3),
        fine(calls.device_calls_per_packet, 3),
    );
    let over = calls.counted_seconds.map(|s| format!("  over {s:.2} s, including the drain"));
    let _ = writeln!(
        text,
        "         {} alloc/s  {} free/s  {} copies/s{}",
        rate(calls.allocs_per_second),
        rate(calls.frees_per_second),
        rate(calls.copies_per_second),
        over.unwrap_or_default(),
    );
    if calls.buffers_per_alloc_call.or(calls.buffers_per_free_call).is_some() {
        let (alloc, free) = (calls.buffers_per_alloc_call, calls.buffers_per_free_call);
        let _ = writeln!(
            text,
            "         {} buffers/alloc call  {} buffers/free call",
            fine(alloc, 1),
            fine(free, 1)
        );
    }
    text
}

pub(super) fn waits(waits: &Waits) -> String {
    format!(
        "waits    {} ns lock/pkt  {} ns flush/pkt ({} timed)  {} ns asleep/pkt  \
         {} ns run delay/pkt\n",
        fine(waits.lock_ns_per_packet, 1),
        estimated(waits.flush_ns_per_packet, 1),
        thousands(waits.flushes_timed),
        fine(waits.asleep_ns_per_packet, 1),
        fine(waits.run_delay_ns_per_packet, 1)
    )
}
