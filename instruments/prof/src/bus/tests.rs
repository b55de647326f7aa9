//! Tests of the bus with a folder like the kernel's event sources.

use std::time::Duration;

use linerate_testing::Scratch;

use super::*;

/// A folder like `/sys/bus/event_source/devices`.
pub(super) struct Pmus(pub Scratch);

impl Pmus {
    pub(super) fn new() -> Pmus {
        Pmus(Scratch::new())
    }

    /// Writes files of an event source.
    pub(super) fn write(&self, pmu: &str, files: &[(&str, &str)]) {
        for (file, text) in files {
            self.0.file(&format!("{pmu}/{file}"), text);
        }
    }

    /// Writes an event with its scale in MiB.
    pub(super) fn event(&self, pmu: &str, name: &str, terms: &str, scale: &str) {
        let [event, scaled, unit] =
            ["", ".scale", ".unit"].map(|end| format!("events/{name}{end}"));
        self.write(pmu, &[(&event, terms), (&scaled, scale), (&unit, "MiB\n")]);
    }
}

fn traffic() -> Traffic {
    let way = |bytes, event: &str| Way { bytes, event: event.into(), caveat: String::new() };
    let (read, written) = (way(64_000_000, "imc_0/read/"), way(32_000_000, "imc_0/write/"));
    Traffic { read, written, wall_ns: 500_000_000 }
}

#[test]
fn bytes_are_told_by_second_and_by_packet_with_their_events() {
    let told = Bus::Memory(traffic()).told(Some(1_000_000));
    assert_eq!(
        told,
        "memory 192.0 MB/s, 96.0 bytes/packet; 64000000 bytes read by imc_0/read/; 32000000 bytes written by \
         imc_0/write/; PCI n/a (not counted)"
    );
    let told = Bus::Memory(Traffic { wall_ns: 0, ..traffic() }).told(Some(0));
    assert!(
        told.contains("n/a MB/s (no time passed)") && told.contains("no packet passed"),
        "{told}"
    );
    let told = Bus::Memory(traffic()).told(None);
    assert!(told.contains("n/a bytes/packet (packets were not counted)"), "{told}");
}

#[test]
fn a_proxy_claims_no_bound_and_says_what_its_events_do_not_see() {
    let mut traffic = traffic();
    traffic.read.caveat = "not in it: code".into();
    let told = Bus::Proxy(traffic).told(None);
    assert!(told.contains("by proxy, neither a lower nor an upper bound: 192.0 MB/s"), "{told}");
    assert!(told.contains("imc_0/read/ (not in it: code)"), "{told}");
}

#[test]
fn a_machine_that_cannot_count_says_why() {
    let pmus = Pmus::new();
    let bus = Counting::start_on(&pmus.0.0, Family::Unknown).stop();
    let told = bus.told(None);
    assert!(
        told.starts_with("memory n/a (the kernel shows no counters of memory controllers"),
        "{told}"
    );
    assert!(told.contains("no code of this CPU was tried"), "{told}");
    // The kernel refuses an event source that does not exist.
    let files = [("type", "4000000000"), ("cpumask", "0"), ("format/event", "config:0-7")];
    pmus.write("uncore_imc_0", &files);
    pmus.event("uncore_imc_0", "cas_count_read", "event=0x0", "1");
    pmus.event("uncore_imc_0", "cas_count_write", "event=0x0", "1");
    let told = Counting::start_on(&pmus.0.0, Family::Unknown).stop().told(None);
    assert!(told.starts_with("memory n/a (uncore_imc_0/cas_count_read/: "), "{told}");
    assert!(told.contains("perf_event_open"), "{told}");
    let fixes = ["run on hardware", "linerate profile events", "sysctl", "in a container"];
    assert!(fixes.iter().any(|fix| told.contains(&format!("; {fix}"))), "{told}");
}

#[test]
fn counters_of_each_listed_cpu_are_opened_and_add_up() {
    let cpus = cpus_on_line().unwrap();
    let pmus = Pmus::new();
    // The kernel's clock of a CPU in place of a controller's counter: it counts nanoseconds.
    let list = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    for name in ["uncore_imc_0", "uncore_imc_1"] {
        pmus.write(name, &[("type", "1"), ("cpumask", &list), ("format/event", "config:0-7")]);
        pmus.event(name, "cas_count_read", "event=0x0", "1");
        // Eight times as many bytes for each count.
        pmus.event(name, "cas_count_write", "event=0x0", "8");
    }
    let counting = Counting::start_on(&pmus.0.0, Family::Unknown);
    std::thread::sleep(Duration::from_millis(20));
    let traffic = match counting.stop() {
        Bus::Memory(traffic) => traffic,
        Bus::NotAvailable { why } => {
            let is_shared = why.contains("the counters were ours for");
            assert!(is_shared || open::is_refusal(&why), "{why}");
            return println!("skipped: {why}");
        }
        Bus::Proxy(_) => panic!("a controller is listed"),
    };
    let least = 2.0 * cpus.len() as f64 * 20e6 * f64::from(1 << 20);
    assert!(traffic.read.bytes as f64 >= least, "{traffic:?}");
    assert!(traffic.written.bytes as f64 >= least * 8.0, "{traffic:?}");
    assert_eq!(traffic.read.event, "uncore_imc_0/cas_count_read/ and 1 more");
    let text = serde_json::to_string(&Bus::Memory(traffic.clone())).unwrap();
    assert_eq!(serde_json::from_str::<Bus>(&text).unwrap(), Bus::Memory(traffic));
}
