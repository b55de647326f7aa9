//! The tables at the end of a run. An unknown figure is printed as `-`.

use std::fmt::Write;

use linerate::{Obtained, Verified};
use linerate_ctl::report::{Cost, FarReport, LedgerReport, PhaseReport, PortReport};
use linerate_ctl::{Calls, ForwardReport, GenReport, Locks, TSC, Waits};
pub use linerate_sys::text::thousands;
use linerate_sys::tsc;

use crate::run::{PACKETS_MIN, has_costs};
use crate::{pool, sends, troubles};

/// Difference between two measurements of CPU time, in per cent of the larger one, from which both
/// are marked. Each omits a part that the other includes, a few per cent on a busy path.
const AGREE_PCT: f64 = 10.0;

/// Returns the ledger: packets of each port, drops, troubles and balance; `--quiet` prints nothing else.
pub fn ledger(report: &ForwardReport) -> String {
    let mut text = ports(report) + &troubles::lines(&report.ports) + &balance(&report.ledger);
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
    let limit = if p.unsent.is_some_and(|n| n > 0) { "   <- generator limit" } else { "" };
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

/// Formats the lateness of packets: `200 us`.
fn late(ns: Option<u64>) -> String {
    ns.map_or("-".into(), |ns| format!("{:.0} us", ns as f64 / 1e3))
}

/// Formats a line for each port: its name and properties.
pub fn obtained<'a>(ports: impl Iterator<Item = (&'a str, &'a Obtained)> + Clone) -> String {
    let width = ports.clone().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, obtained) in ports {
        let full = obtained.to_string();
        // The device's name is at the start of the line already.
        let device = format!("{name} ");
        let said = full.strip_prefix(&device).unwrap_or(&full);
        let _ = writeln!(text, "{name:width$}  {said}");
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

fn verified(v: &Verified) -> String {
    let mut text = format!(
        "verify   lost {}, reordered {}, corrupted {}",
        thousands(v.lost),
        thousands(v.reordered),
        thousands(v.corrupted)
    );
    for (n, what) in [(v.duplicated, "duplicated"), (v.foreign, "not numbered")] {
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
    let pps = report.packets_out() as f64 / seconds;
    let pps = if pps.is_finite() { rate(pps) } else { "-".into() };
    format!("rate     {pps} over {seconds:.2} s\n")
}

fn cost(report: &ForwardReport) -> String {
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
fn irqs(ports: &[PortReport]) -> String {
    let mut text = String::new();
    for port in ports.iter().filter(|port| !port.moderation.is_empty()) {
        for (queue, told) in port.moderation.iter().enumerate() {
            let queue =
                if port.moderation.len() > 1 { format!(" queue {queue}") } else { String::new() };
            let _ = writeln!(text, "irqs     {}{queue}: {told}", port.name);
        }
        if let Some(poor) = &port.poor_use {
            let _ = writeln!(text, "         {poor}");
        }
    }
    text
}

/// Formats the two measurements of CPU time for each packet; then locks, calls and waits for each
/// packet.
fn excess(report: &ForwardReport) -> String {
    if !has_costs(report) {
        return String::new();
    }
    time(&report.cost) + &locks(&report.locks) + &calls(&report.calls) + &waits(&report.waits)
}

/// Formats the CPU time for each packet: by the kernel's accounting of the process, and by the
/// workers' clocks.
fn time(cost: &Cost) -> String {
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

fn calls(calls: &Calls) -> String {
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

fn waits(waits: &Waits) -> String {
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

/// Formats a figure that was estimated from a sample: `~32.1`.
fn estimated(n: Option<f64>, decimals: usize) -> String {
    let text = fine(n, decimals);
    // No `~` before `-` or `<`: an unknown figure or a bound is not an estimate.
    if text.starts_with(|first: char| first.is_ascii_digit()) { format!("~{text}") } else { text }
}

/// Formats a figure with `decimals` digits; a figure that would be rounded to 0 is shown as a
/// bound.
fn fine(n: Option<f64>, decimals: usize) -> String {
    let least = 0.1_f64.powi(decimals as i32);
    match n {
        None => "-".into(),
        Some(n) if n > 0.0 && n < least / 2.0 => format!("<{least:.decimals$}"),
        Some(n) if n >= 1000.0 => thousands(n.round() as u64),
        Some(n) => format!("{n:.decimals$}"),
    }
}

/// Formats a packet rate with about three digits: `4.31 Mpps`.
pub fn rate(pps: f64) -> String {
    scaled(pps, "pps")
}

fn scaled(n: f64, unit: &str) -> String {
    let (n, prefix) = match n {
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e3 => (n / 1e3, "k"),
        n => (n, ""),
    };
    format!("{n:.2} {prefix}{unit}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_ctl::PoolReport;
    use linerate_ctl::pool::{CoreReport, RemoteFrees};
    use linerate_ctl::report::{PaceReport, Passed};
    use std::collections::BTreeMap;

    fn report() -> ForwardReport {
        let port = |name: &str, rx, tx| PortReport {
            name: name.into(),
            driver: name.into(),
            rx: Passed { packets: rx, bytes: 0 },
            tx: Passed { packets: tx, bytes: 0 },
            ..PortReport::default()
        };
        ForwardReport {
            placement: None,
            duration_seconds: 2.0,
            ports: vec![port("veth0", 8_012_331, 0), port("veth1", 0, 8_002_000)],
            ledger: LedgerReport {
                received: 8_012_331,
                created: 0,
                sent: 8_002_000,
                consumed: 0,
                dropped: BTreeMap::from([("tx_full", 10_331)]),
                in_flight: 0,
                balanced: true,
            },
            cost: Cost {
                cycles_per_packet: Some(412.4),
                instructions_per_packet: Some(1021.0),
                packets_per_wakeup: None,
                packets_per_irq: Some(31.64),
                cpu_seconds: 1.23,
                scope: Some("user+kernel"),
                cpu_ns_per_packet: Some(153.71),
                awake_ns_per_packet: Some(160.2),
            },
            locks: Locks {
                taken_per_packet: Some(0.0312),
                contended_per_packet: Some(0.0001),
                wait_ns_per_packet: Some(0.04),
                ..Locks::default()
            },
            calls: Calls {
                allocs_per_packet: Some(1.0013),
                frees_per_packet: Some(1.0013),
                copies_per_packet: Some(2.0),
                device_calls_per_packet: Some(0.046),
                allocs_per_second: Some(4_006_165.5),
                frees_per_second: Some(4_006_165.5),
                copies_per_second: Some(8_007_165.0),
                counted_seconds: Some(2.004),
                ..Calls::default()
            },
            waits: Waits {
                lock_ns_per_packet: Some(0.04),
                flush_ns_per_packet: Some(88.0),
                flushes_timed: 1437,
                asleep_ns_per_packet: Some(1412.3),
                ..Waits::default()
            },
            pool: PoolReport {
                memory_bytes: 18_245_632,
                cores: vec![CoreReport { hits: 8_000_000, misses: 12_331, ..Default::default() }],
                remote_frees: RemoteFrees { share: Some(0.5), ..Default::default() },
                ..PoolReport::default()
            },
            verify: None,
            phases: Vec::new(),
            far: None,
            warnings: Vec::new(),
            error: None,
        }
    }

    #[test]
    fn poor_use_is_printed_with_the_rule_that_fired() {
        let mut report = report();
        report.ports[0].moderation = vec!["1.0 packets an irq: never held by napi".into()];
        report.ports[0].poor_use = Some("poor use of the CPU: 1.0 packets an irq (rule: …)".into());
        let text = forward(&report, false);
        let lines = "irqs     veth0: 1.0 packets an irq: never held by napi\n         \
                     poor use of the CPU: 1.0 packets an irq (rule: …)\n";
        assert!(text.contains(lines), "{text}");
    }

    #[test]
    fn a_run_ends_with_this_screen() {
        let screen = "\
ports      rx pkts    tx pkts  dropped  reason
veth0    8,012,331          0
veth1            0  8,002,000
all                             10,331  tx_full
balance  rx 8,012,331 = tx 8,002,000 + drop 10,331 + in flight 0   OK
rate     4.00 Mpps over 2.00 s
pool     17.4 MiB held  hot list hits 99.8 %  freed on another CPU 50.0 %
cost     412 cyc/pkt  1,021 instr/pkt  31.6 pkt/irq  CPU 1.2 s
time     153.7 ns CPU/pkt by the kernel  160.2 ns awake/pkt by the workers' clocks  agree
locks    0.031 taken/pkt  <0.001 contended/pkt  <0.1 ns waited/pkt
calls    1.001 alloc/pkt  1.001 free/pkt  2.000 copies/pkt  0.046 rx+xmit calls/pkt
         4.01 M alloc/s  4.01 M free/s  8.01 M copies/s  over 2.00 s, including the drain
waits    <0.1 ns lock/pkt  ~88.0 ns flush/pkt (1,437 timed)  1,412 ns asleep/pkt  - ns run delay/pkt
";
        assert_eq!(forward(&report(), false), screen);
    }

    #[test]
    fn a_far_process_is_told_with_its_copies_and_each_part_with_its_cpu() {
        let mut report = report();
        let passed = Passed { packets: 8_002_000, bytes: 12_115_028_000 };
        report.far = Some(FarReport {
            process: 4711,
            received: passed,
            whole: true,
            verified: 8_002_000,
            copied_bytes: Some(12_115_028_000),
            cpu_seconds: 1.5,
        });
        report.ports[1].copied_bytes = Some(0);
        let part = |name, packets, far_cpu_seconds| PhaseReport {
            name,
            seconds: 1.5,
            sent: Passed { packets, bytes: 1514 * packets },
            cpu_seconds: 0.3,
            far_cpu_seconds,
            post_cpu_pct: None,
            late_p50_ns: None,
            late_p99_ns: None,
        };
        report.phases = vec![part("paced", 122_853, Some(0.15)), part("flat out", 1_500_000, None)];
        report.phases[0].post_cpu_pct = Some(27.5);
        report.phases[0].late_p50_ns = Some(201_000);
        let lines = "
far      process 4711 took 8,002,000 packets, 12,115,028,000 bytes, and verified 8,002,000
copied   0 bytes on this side, 12,115,028,000 by the far process to verify them
rate     4.00 Mpps over 2.00 s
paced    81.90 kpps  124.0 MB/s over 1.50 s  CPU 20 % here, 10 % there, 27.5 % in post 000
         late p50 201 us  p99 -: packets wait until a batch is full
flat out 1.00 Mpps  1,514 MB/s over 1.50 s  CPU 20 % here, - there
";
        let text = forward(&report, false);
        assert!(text.contains(lines), "{text}");
    }

    #[test]
    fn remarks_of_a_port_stand_between_table_and_balance() {
        let mut report = report();
        report.ports[0].rx_missed = 7;
        let text = forward(&report, false);
        let (before, after) = text.split_once("\nmissed   veth0 7 ").unwrap();
        assert!(before.ends_with("10,331  tx_full"), "{text}");
        assert!(after.contains("\nbalance  rx 8,012,331 "), "{text}");
    }

    #[test]
    fn unknown_value_is_a_dash() {
        let cost = Cost { cpu_seconds: 0.1, ..Cost::default() };
        let text = forward(&ForwardReport { cost, pool: PoolReport::default(), ..report() }, false);
        assert!(text.contains("pool     0 KiB held  hot list hits -  freed on another CPU -\n"));
        assert!(
            text.contains("cost     - cyc/pkt  - instr/pkt  - pkt/irq  CPU 0.1 s\ntime     - ")
        );
    }

    #[test]
    fn few_packets_have_no_costs_for_each() {
        let mut report = report();
        for (packets, few) in [(0, true), (999, true), (1000, false)] {
            report.ports.iter_mut().for_each(|port| port.tx.packets = 0);
            report.ports[1].tx.packets = packets;
            let text = forward(&report, false);
            let line = "cost     CPU 1.2 s; fewer than 1,000 packets: no costs for each packet\n";
            assert_eq!((text.ends_with(line), text.contains("/pkt")), (few, !few), "{text}");
        }
    }

    #[test]
    fn two_clocks_that_disagree_are_flagged_with_the_likely_reason() {
        let time = |cpu, awake| {
            time(&Cost { cpu_ns_per_packet: cpu, awake_ns_per_packet: awake, ..Cost::default() })
        };
        assert!(time(Some(100.0), Some(91.0)).ends_with("  agree\n"));
        let text = time(Some(100.0), Some(50.0));
        assert!(
            text.contains("\n         the two clocks differ by 50 %, probable cause: starting, ")
        );
        let text = time(Some(50.0), Some(100.0));
        assert!(text.ends_with("busy, and another thread ran on the CPU\n"), "{text}");
        let alone =
            "time     50.0 ns CPU/pkt by the kernel  - ns awake/pkt by the workers' clocks\n";
        assert_eq!(time(Some(50.0), None), alone);
    }

    #[test]
    fn value_too_small_to_show_is_not_zero() {
        for (n, text) in [(0.0, "0.000"), (0.0004, "<0.001"), (0.0006, "0.001"), (1.0, "1.000")] {
            assert_eq!(fine(Some(n), 3), text);
        }
        assert_eq!(
            (fine(Some(999.94), 1), fine(Some(1234.5), 1)),
            ("999.9".into(), "1,235".into())
        );
        assert_eq!(fine(None, 1), "-");
    }

    #[test]
    fn an_estimate_is_told_from_a_figure_and_says_of_how_many() {
        let line = |flush_ns_per_packet, flushes_timed| {
            waits(&Waits { flush_ns_per_packet, flushes_timed, ..Waits::default() })
        };
        assert!(line(Some(32.07), 31).contains("  ~32.1 ns flush/pkt (31 timed)  "));
        assert!(line(Some(0.01), 4000).contains("  <0.1 ns flush/pkt (4,000 timed)  "));
        assert!(line(None, 29).contains("  - ns flush/pkt (29 timed)  "));
    }

    #[test]
    fn calls_that_were_timed_tell_their_size() {
        let some = Calls { buffers_per_alloc_call: Some(63.98), ..Calls::default() };
        assert!(
            calls(&some).ends_with("\n         64.0 buffers/alloc call  - buffers/free call\n")
        );
    }

    #[test]
    fn a_generator_that_could_not_keep_up_is_told_from_a_path_that_lost() {
        let pace = PaceReport {
            asked: Some(8_012_331),
            sent: 8_002_000,
            unsent: Some(10_331),
            late_p50_ns: None,
            late_p99_ns: Some(41_400),
        };
        let text = generated(&GenReport { pace, path: report() }, false);
        let line = "asked 8,012,331  sent 8,002,000  unsent 10,331  late p50 -  p99 41 us   <- ";
        assert!(text.starts_with(line), "{text}");
    }
}
