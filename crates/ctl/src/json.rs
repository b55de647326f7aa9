//! The documents of `--json`: one object each, with its schema.
//!
//! Within a version of a schema, no field is removed and no field changes its meaning; fields may
//! be added.

use serde::Serialize;

use crate::doctor::{Finding, Level, worst};
use crate::report::{ErrorReport, ForwardReport, GenReport};

/// Returns the document of a run of `forward`, `linerate-forward/1`.
#[must_use]
pub fn forward(report: &ForwardReport) -> String {
    document("linerate-forward/1", report)
}

/// Returns the document of a run of `gen`, `linerate-gen/1`.
#[must_use]
pub fn generated(report: &GenReport) -> String {
    document("linerate-gen/1", report)
}

/// Returns the document `linerate-doctor/1` of findings on a port, or on the machine if `port` is
/// `None`.
#[must_use]
pub fn doctor(port: Option<&str>, findings: &[Finding]) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        port: Option<&'a str>,
        level: Level,
        findings: &'a [Finding],
    }
    document("linerate-doctor/1", &Body { port, level: worst(findings), findings })
}

/// Returns the document of a command that failed, `linerate-error/1`.
#[must_use]
pub fn error(error: &ErrorReport) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        error: &'a ErrorReport,
    }
    document("linerate-error/1", &Body { error })
}

#[derive(Serialize)]
struct Document<'a, T> {
    schema: &'static str,
    #[serde(flatten)]
    body: &'a T,
}

fn document<T: Serialize>(schema: &'static str, body: &T) -> String {
    // Cannot fail: every key is a string, and a number that is not finite becomes null.
    serde_json::to_string(&Document { schema, body }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::excess::{Calls, Locks, Waits};
    use crate::pool::{CoreReport, DwellReport, DwellTimes, LocksReport, PoolReport, RemoteFrees};
    use crate::report::{
        Cost, FarReport, LedgerReport, PaceReport, Passed, PhaseReport, PortReport, QdiscReport,
        QueuePassed, TxCalls,
    };
    use std::collections::BTreeMap;

    fn paced() -> PhaseReport {
        PhaseReport {
            name: "paced",
            seconds: 0.25,
            sent: Passed { packets: 5, bytes: 300 },
            cpu_seconds: 0.125,
            far_cpu_seconds: None,
            post_cpu_pct: Some(27.5),
            late_p50_ns: Some(200_000),
            late_p99_ns: None,
        }
    }

    fn port(name: &str, rx: u64, tx: u64) -> PortReport {
        let mut driver_counts = linerate_port::DriverCounts::default();
        (driver_counts.missed_ring_full, driver_counts.missed_no_frame) = (9 * rx, rx);
        driver_counts.resets = tx;
        PortReport {
            name: name.into(),
            driver: name.into(),
            flags: linerate_port::DriverFlags::default(),
            device: format!("{name}0"),
            mode: format!("{name} mode"),
            refused: vec!["zero-copy: none".into(); usize::from(name == "sink")],
            rx: Passed { packets: rx, bytes: 60 * rx },
            tx: Passed { packets: tx, bytes: 60 * tx },
            queues: vec![QueuePassed::default(); usize::from(rx > 0)],
            rx_missed: 10 * rx,
            rx_nombuf: 0,
            driver_counts,
            copied_bytes: (tx > 0).then_some(120),
            irqs_by_device: 3,
            irqs_by_timer: 4,
            rechecks: 5,
            moderation: Vec::new(),
            poor_use: None,
            silent: None,
            trouble: (tx > 0).then(|| ErrorReport {
                code: "E-DEVICE-DOWN".into(),
                what: "sink0".into(),
                why: "the peer is gone".into(),
                fix: String::new(),
            }),
            tx_batch: "auto".into(),
            doorbells: Some(5),
            tx_calls: vec![TxCalls { packets: 32, calls: rx }],
            qdisc: (tx > 0).then(QdiscReport::default),
            registers: String::new(),
            register_accesses: (tx > 0).then_some(linerate_port::Registers {
                writes: 3,
                reads: 2,
                write_ns: 30,
                read_ns: 2000,
            }),
        }
    }

    fn report() -> ForwardReport {
        ForwardReport {
            duration_seconds: 0.5,
            sent_in_duration: 8,
            ports: vec![port("gen", 10, 0), port("sink", 0, 9)],
            ledger: LedgerReport {
                received: 0,
                created: 10,
                sent: 9,
                consumed: 0,
                dropped: BTreeMap::from([("tx_full", 1)]),
                in_flight: 0,
                balanced: true,
            },
            cost: Cost {
                cycles_per_packet: Some(412.0),
                instructions_per_packet: None,
                packets_per_wakeup: Some(31.5),
                packets_per_irq: Some(30.5),
                cpu_seconds: 0.25,
                scope: Some("user"),
                cpu_ns_per_packet: Some(250.5),
                awake_ns_per_packet: None,
            },
            locks: Locks { taken: 3, contended: 1, wait_ns: Some(45), ..Locks::default() },
            calls: Calls {
                allocs: 10,
                frees: 9,
                device_calls: 4,
                allocs_per_packet: Some(1.25),
                counted_seconds: Some(0.5),
                allocs_per_second: Some(20.0),
                ..Calls::default()
            },
            waits: Waits { flushes: 2, sleeps: 1, asleep_ns: 77, ..Waits::default() },
            pool: pool(),
            verify: Some(verified()),
            phases: vec![paced()],
            placement: None,
            far: Some(FarReport {
                process: 77,
                received: Passed { packets: 9, bytes: 540 },
                whole: true,
                verified: 9,
                copied_bytes: Some(540),
                cpu_seconds: 0.5,
            }),
            warnings: vec!["worker 0: short".into()],
            error: None,
        }
    }

    fn verified() -> linerate_port::Verified {
        let mut found = linerate_port::Verified::default();
        (found.packets, found.lost) = (9, 1);
        found
    }

    fn pool() -> PoolReport {
        let core = CoreReport {
            name: "worker 0".into(),
            cpu: Some(1),
            allocs: 10,
            frees: 9,
            hits: 8,
            misses: 2,
            hot_list_len: 128,
            ticks_per_alloc: Some(2.5),
            calls_timed: [7, 0],
            ..CoreReport::default()
        };
        PoolReport {
            frames: 512,
            frame_bytes: 2048,
            memory_bytes: 1 << 20,
            buffers: "frames",
            init: "at_alloc",
            return_to: "local",
            cores: vec![core],
            locks: LocksReport { taken: 3, contended: 1, wait_ticks: 90 },
            remote_frees: RemoteFrees {
                count: 1,
                share: Some(0.5),
                cpus: vec![0, 1],
                matrix: vec![vec![1, 0], vec![1, 0]],
            },
            dwell: Some(DwellReport {
                local: DwellTimes { packets: 4, p50_ticks: Some(1024), p99_ticks: Some(2048) },
                remote: DwellTimes::default(),
            }),
            ..PoolReport::default()
        }
    }

    const PATH: &str = concat!(
        r#""duration_seconds":0.5,"sent_in_duration":8,"ports":["#,
        r#"{"name":"gen","driver":"gen","device":"gen0","mode":"gen mode","refused":[],"#,
        r#""rx":{"packets":10,"bytes":600},"tx":{"packets":0,"bytes":0},"#,
        r#""queues":[{"rx":{"packets":0,"bytes":0},"tx":{"packets":0,"bytes":0}}],"missed":100,"no_frame":0,"#,
        r#""missed_ring_full_packets":90,"missed_no_cpu_packets":0,"missed_no_frame_packets":10,"#,
        r#""missed_unread_packets":0,"#,
        r#""resets":0,"bad_descs":0,"copied_bytes":null,"irqs_by_device":3,"irqs_by_timer":4,"rechecks":5,"moderation":[],"poor_use":null,"silent":null,"trouble":null,"#,
        r#""tx_batch":"auto","doorbells":5,"tx_calls":[{"packets":32,"calls":10}],"qdisc":null,"registers":"","register_accesses":null},"#,
        r#"{"name":"sink","driver":"sink","device":"sink0","mode":"sink mode","refused":["zero-copy: none"],"#,
        r#""rx":{"packets":0,"bytes":0},"tx":{"packets":9,"bytes":540},"queues":[],"missed":0,"no_frame":0,"#,
        r#""missed_ring_full_packets":0,"missed_no_cpu_packets":0,"missed_no_frame_packets":0,"#,
        r#""missed_unread_packets":0,"#,
        r#""resets":9,"bad_descs":0,"copied_bytes":120,"irqs_by_device":3,"irqs_by_timer":4,"rechecks":5,"moderation":[],"poor_use":null,"silent":null,"#,
        r#""trouble":{"code":"E-DEVICE-DOWN","what":"sink0","why":"the peer is gone","fix":""},"#,
        r#""tx_batch":"auto","doorbells":5,"tx_calls":[{"packets":32,"calls":0}],"#,
        r#""qdisc":{"taken":{"packets":0,"bytes":0},"left":{"packets":0,"bytes":0},"#,
        r#""dropped":{"packets":0,"bytes":0},"held":{"packets":0,"bytes":0},"marked":0},"registers":"","#,
        r#""register_accesses":{"writes":3,"reads":2,"write_ns":30,"read_ns":2000}}],"#,
        r#""ledger":{"received":0,"created":10,"sent":9,"consumed":0,"#,
        r#""dropped":{"tx_full":1},"in_flight":0,"balanced":true},"#,
        r#""cost":{"cycles_per_packet":412.0,"instructions_per_packet":null,"#,
        r#""packets_per_wakeup":31.5,"packets_per_irq":30.5,"cpu_seconds":0.25,"scope":"user","#,
        r#""cpu_ns_per_packet":250.5,"awake_ns_per_packet":null},"#,
        r#""locks":{"taken":3,"contended":1,"wait_ns":45,"taken_per_packet":null,"#,
        r#""contended_per_packet":null,"wait_ns_per_packet":null},"#,
        r#""calls":{"allocs":10,"frees":9,"copies":null,"copied_bytes":null,"device_calls":4,"#,
        r#""allocs_per_packet":1.25,"frees_per_packet":null,"copies_per_packet":null,"#,
        r#""device_calls_per_packet":null,"counted_seconds":0.5,"#,
        r#""allocs_per_second":20.0,"frees_per_second":null,"copies_per_second":null,"buffers_per_alloc_call":null,"buffers_per_free_call":null},"#,
        r#""waits":{"lock_ns":null,"flushes":2,"flushes_timed":0,"flush_ns":null,"sleeps":1,"#,
        r#""asleep_ns":77,"run_delay_ns":null,"lock_ns_per_packet":null,"#,
        r#""flush_ns_per_packet":null,"asleep_ns_per_packet":null,"run_delay_ns_per_packet":null},"#,
        r#""pool":{"frames":512,"frame_bytes":2048,"jumbo_frames":0,"jumbo_bytes":0,"#,
        r#""memory_bytes":1048576,"buffers":"frames","init":"at_alloc","return":"local","#,
        r#""cores":[{"name":"worker 0","cpu":1,"allocs":10,"frees":9,"hits":8,"misses":2,"#,
        r#""discards":0,"no_frame":0,"hot_list_len":128,"ticks_per_alloc":2.5,"#,
        r#""ticks_per_free":null,"calls_timed":[7,0]}],"#,
        r#""locks":{"taken":3,"contended":1,"wait_ticks":90},"#,
        r#""remote_frees":{"count":1,"share":0.5,"cpus":[0,1],"matrix":[[1,0],[1,0]]},"#,
        r#""dwell":{"local":{"packets":4,"p50_ticks":1024,"p99_ticks":2048},"#,
        r#""remote":{"packets":0,"p50_ticks":null,"p99_ticks":null}}},"#,
        r#""verify":{"packets":9,"lost":1,"reordered":0,"duplicated":0,"late":0,"corrupted":0,"foreign":0},"#,
        r#""phases":[{"name":"paced","seconds":0.25,"sent":{"packets":5,"bytes":300},"#,
        r#""cpu_seconds":0.125,"far_cpu_seconds":null,"post_cpu_pct":27.5,"late_p50_ns":200000,"#,
        r#""late_p99_ns":null}],"#,
        r#""far":{"process":77,"received":{"packets":9,"bytes":540},"whole":true,"verified":9,"#,
        r#""copied_bytes":540,"cpu_seconds":0.5},"#,
        r#""warnings":["worker 0: short"],"error":null}"#
    );

    /// Returns `document` without driver counters that [`PATH`] does not list, so that a new
    /// counter is declared in one place only.
    fn known(mut document: String) -> String {
        for (key, _, _) in linerate_port::DriverCounts::default().named() {
            let key = format!("\"{key}\":");
            if !PATH.contains(&key) {
                document = document.replace(&format!("{key}0,"), "");
            }
        }
        document
    }

    #[test]
    fn the_forward_document_is_this() {
        assert_eq!(known(forward(&report())), format!(r#"{{"schema":"linerate-forward/1",{PATH}"#));
        let plain = ForwardReport { verify: None, phases: Vec::new(), far: None, ..report() };
        let plain = forward(&plain);
        assert!(plain.contains(r#""verify":null,"phases":[],"far":null,"#), "{plain}");
    }

    #[test]
    fn the_gen_document_adds_the_pace() {
        let pace = PaceReport {
            asked: Some(10),
            sent: 9,
            unsent: Some(1),
            late_p50_ns: None,
            late_p99_ns: Some(41_000),
        };
        let head = concat!(
            r#"{"schema":"linerate-gen/1","pace":{"asked":10,"sent":9,"unsent":1,"#,
            r#""late_p50_ns":null,"late_p99_ns":41000},"#
        );
        let document = generated(&GenReport { pace, path: report() });
        assert_eq!(known(document), format!("{head}{PATH}"));
    }

    #[test]
    fn the_doctor_document_has_the_worst_level_and_every_finding() {
        let e = linerate_port::Error::new(linerate_port::Code::Busy, "cannot", "taken");
        let found =
            [Finding::new(Level::Ok, "a"), Finding::of(Level::Miss, &e.fix("ask for less"))];
        let document = concat!(
            r#"{"schema":"linerate-doctor/1","port":"tap:t0","level":"miss","findings":["#,
            r#"{"level":"ok","what":"a","why":null,"fix":null,"code":null},"#,
            r#"{"level":"miss","what":"cannot","why":"taken","#,
            r#""fix":{"text":"ask for less","command":null,"proof":"unverified"},"#,
            r#""code":"E-BUSY"}]}"#
        );
        assert_eq!(doctor(Some("tap:t0"), &found), document);
        let head = r#"{"schema":"linerate-doctor/1","port":null,"level":"ok","findings":[]}"#;
        assert_eq!(doctor(None, &[]), head);
    }

    #[test]
    fn the_error_document_has_the_four_parts() {
        let told = ErrorReport {
            code: "E-NODEV".into(),
            what: "cannot open veth7".into(),
            why: "no such device".into(),
            fix: String::new(),
        };
        let head = r#"{"schema":"linerate-error/1","error":{"code":"E-NODEV","#;
        let rest = r#""what":"cannot open veth7","why":"no such device","fix":""}}"#;
        assert_eq!(error(&told), format!("{head}{rest}"));
    }
}
