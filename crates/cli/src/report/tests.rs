//! Tests of the text of reports.

use super::cost::{calls, time, waits};
use super::*;
use linerate_ctl::pool::{CoreReport, RemoteFrees};
use linerate_ctl::report::{Cost, PaceReport, Passed, PortReport};
use linerate_ctl::{Calls, Locks, PoolReport, Waits};
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
        sent_in_duration: 8_000_000,
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
fn each_property_that_was_not_obtained_has_a_line_at_a_terminal() {
    let port = Obtained::new("v0", "AF_XDP native copy", 1514);
    let port = port.refused("zero-copy: the driver has none").refused("VLAN tags: a; b");
    let text = |is_terminal| obtained([("v0", &port), ("sink", &port)].into_iter(), is_terminal);
    let line = "v0    AF_XDP native copy (zero-copy: the driver has none; VLAN tags: a; b)\n";
    assert!(text(false).starts_with(line), "{}", text(false));
    let lines = "v0    AF_XDP native copy\n      - zero-copy: the driver has none\n      - VLAN tags: a; b\nsink  ";
    assert!(text(true).starts_with(lines), "{}", text(true));
}

#[test]
fn packets_dropped_at_reception_explain_the_balance() {
    let mut report = report();
    let line = "dropped at reception";
    assert!(!ledger(&report).contains(line));
    report.ports[0].rx.packets -= 1331;
    let told =
        "OK\n         1,331 of rx were dropped at reception and are not in the ports' rx pkts\n";
    assert!(ledger(&report).contains(told), "{}", ledger(&report));
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
    assert!(text.contains("cost     - cyc/pkt  - instr/pkt  - pkt/irq  CPU 0.1 s\ntime     - "));
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
    assert!(text.contains("\n         the two clocks differ by 50 %, probable cause: starting, "));
    let text = time(Some(50.0), Some(100.0));
    assert!(text.ends_with("busy, and another thread ran on the CPU\n"), "{text}");
    assert!(text.contains(" differ by 50 %, "), "of the larger one: {text}");
    let alone = "time     50.0 ns CPU/pkt by the kernel  - ns awake/pkt by the workers' clocks\n";
    assert_eq!(time(Some(50.0), None), alone);
}

#[test]
fn value_too_small_to_show_is_not_zero() {
    for (n, text) in [(0.0, "0.000"), (0.0004, "<0.001"), (0.0006, "0.001"), (1.0, "1.000")] {
        assert_eq!(fine(Some(n), 3), text);
    }
    assert_eq!((fine(Some(999.94), 1), fine(Some(1234.5), 1)), ("999.9".into(), "1,235".into()));
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
    assert!(calls(&some).ends_with("\n         64.0 buffers/alloc call  - buffers/free call\n"));
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

#[test]
fn port_with_several_queues_has_a_line_with_the_packets_of_each() {
    let queue = |packets| QueuePassed {
        rx: Passed { packets, bytes: 60 * packets },
        tx: Passed::default(),
    };
    let mut report = report();
    report.ports[0].queues = vec![queue(8_000_000), queue(12_331)];
    report.ports[1].queues = vec![queue(5)];
    let text = forward(&report, false);
    assert!(text.contains("queues   veth0: rx 8,000,000 + 12,331, tx 0 + 0\n"), "{text}");
    assert!(!text.contains("veth1: rx"), "{text}");
}

#[test]
fn line_of_a_sink_names_what_it_found_beside_losses() {
    let mut found = linerate::Verified::default();
    (found.lost, found.duplicated, found.late, found.foreign) = (1, 2, 3, 4_000);
    let line = "verify   lost 1, reordered 0, corrupted 0, duplicated 2, late 3, foreign 4,000\n";
    assert_eq!(verified(&found), line);
}
