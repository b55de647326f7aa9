//! The events that count the traffic of the memory bus on this machine.
//!
//! Source: Linux Documentation/ABI/testing/sysfs-bus-event_source-devices-{events,format}; the
//! names of the events are those of arch/x86/events/intel/uncore_snb.c and uncore_snbep.c; AMD's
//! events are umc_cas_cmd.rd and .wr of
//! tools/perf/pmu-events/arch/x86/amdzen4/memory-controller.json.

use std::fs;
use std::path::Path;

use crate::conditions::listed;
use crate::pmu::table::{self, Entry};
use crate::pmu::{Event, Family, Quantity};

/// An event that counts traffic in one direction.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Source {
    pub is_write: bool,
    pub event: Event,
    /// CPUs on which the event is opened: one for each socket, or each core.
    pub cpus: Vec<usize>,
    /// Bytes for each count.
    pub bytes: f64,
    pub caveat: &'static str,
}

/// Names of the events for reads and writes. Only the first pair that a machine has is used,
/// because the same controllers may be shown by two kinds of counters.
const NAMES: [[&str; 2]; 4] = [
    ["cas_count_read", "cas_count_write"],
    ["data_read", "data_write"],
    ["data_reads", "data_writes"],
    ["umc_cas_cmd.rd", "umc_cas_cmd.wr"],
];
/// AMD's controllers (Zen 4 and later) list no events: the terms of the last pair of names.
const AMD_UMC: [&str; 2] = ["event=0x0a,rdwrmask=0x1", "event=0x0a,rdwrmask=0x2"];
const LINE_BYTES: f64 = 64.0;
const MIB_BYTES: f64 = 1024.0 * 1024.0;

/// Returns the events of the memory controllers in the folder of the kernel's event sources, or the
/// reason why there are none.
pub(super) fn of_controllers(pmus: &Path) -> Result<Vec<Source>, String> {
    let entries = fs::read_dir(pmus).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    for pair in NAMES {
        let both = |pmu: &String| {
            let [read, write] = [0, 1].map(|way| controller(&pmus.join(pmu), pmu, way, pair[way]));
            Some([read?, write?])
        };
        let found: Vec<Source> = names.iter().filter_map(both).flatten().collect();
        if !found.is_empty() {
            return Ok(found);
        }
    }
    names.retain(|name| name.contains("imc") || name.contains("umc") || name.ends_with("_df"));
    Err(match names.first() {
        Some(name) => format!("{name} names no event of bytes read and written"),
        None => "the kernel shows no counters of memory controllers".into(),
    })
}

/// Returns the event `name` of a controller; `None` if it has none, or one in unknown terms.
fn controller(folder: &Path, pmu: &str, way: usize, name: &str) -> Option<Source> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let (terms, bytes) = match read(&format!("events/{name}")) {
        Some(terms) => {
            let scale: f64 = read(&format!("events/{name}.scale"))?.trim().parse().ok()?;
            let unit = read(&format!("events/{name}.unit"))?;
            (terms, (unit.trim() == "MiB").then_some(scale * MIB_BYTES)?)
        }
        None if pmu.starts_with("amd_umc") && name.starts_with("umc") => {
            (AMD_UMC[way].to_owned(), LINE_BYTES)
        }
        None => return None,
    };
    let type_ = read("type")?.trim().parse().ok()?;
    let config = config(folder, &terms)?;
    Some(Source {
        is_write: way == 1,
        event: Event::new(format!("{pmu}/{name}/"), type_, config),
        cpus: listed(read("cpumask")?.trim())?,
        bytes,
        caveat: "",
    })
}

/// Returns the value of `config` for terms such as `event=0x04,umask=0x03`, whose bits are
/// described in the folder `format`; `None` for a term that has no such description.
fn config(folder: &Path, terms: &str) -> Option<u64> {
    terms.trim().split(',').try_fold(0, |config, term| {
        let (name, value) = term.split_once('=').unwrap_or((term, "1"));
        let value = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok()?,
            None => value.parse().ok()?,
        };
        let format = fs::read_to_string(folder.join("format").join(name)).ok()?;
        let bits = listed(format.trim().strip_prefix("config:")?)?;
        bits.iter().zip(0..u64::BITS).try_fold(config, |config, (bit, from)| {
            Some(config | ((value >> from) & 1).checked_shl(u32::try_from(*bit).ok()?)?)
        })
    })
}

/// Returns the events of lines into and out of the L2 of the cores of a CPU of `family`, or the
/// reason why there are none.
pub(super) fn of_cores(family: Family, cpus: &[usize]) -> Result<Vec<Source>, String> {
    let source = |(is_write, quantity)| {
        let entry: &Entry = table::entry(family, quantity)?;
        let (event, cpus) = (entry.event(), cpus.to_vec());
        Ok(Source { is_write, event, cpus, bytes: LINE_BYTES, caveat: entry.caveat })
    };
    let ways = [(false, Quantity::L2LinesIn), (true, Quantity::L2LinesOut)];
    ways.into_iter().map(source).collect::<Result<_, &str>>().map_err(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::tests::Pmus;

    #[test]
    fn controllers_are_read_as_the_kernel_describes_them() {
        let pmus = Pmus::new();
        for n in 0..2 {
            let name = format!("uncore_imc_{n}");
            pmus.write(&name, &[("type", &format!("{}\n", 13 + n)), ("cpumask", "0,2\n")]);
            pmus.write(
                &name,
                &[("format/event", "config:0-7"), ("format/umask", "config:8-15,32")],
            );
            pmus.event(&name, "cas_count_read", "event=0x04,umask=0x103", "6.103515625e-5");
            pmus.event(&name, "cas_count_write", "event=0x04,umask=0x0c", "6.103515625e-5");
        }
        // The same controllers by other counters, and an event of another unit.
        pmus.write("uncore_imc_free_running_0", &[("type", "20"), ("cpumask", "0")]);
        pmus.write("uncore_imc_free_running_0", &[("format/event", "config:0-7")]);
        pmus.event("uncore_imc_free_running_0", "data_read", "event=0xff", "1");
        pmus.event("uncore_imc_free_running_0", "data_write", "event=0xff", "1");
        let found = of_controllers(&pmus.0.0).unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|s| (s.event.name.as_str(), s.event.type_, s.event.config, s.is_write))
            .collect();
        let expected = [
            ("uncore_imc_0/cas_count_read/", 13, 0x1_0000_0304, false),
            ("uncore_imc_0/cas_count_write/", 13, 0x0c04, true),
            ("uncore_imc_1/cas_count_read/", 14, 0x1_0000_0304, false),
            ("uncore_imc_1/cas_count_write/", 14, 0x0c04, true),
        ];
        assert_eq!(told, expected);
        assert!(found.iter().all(|source| source.cpus == [0, 2] && source.bytes == 64.0));
    }

    #[test]
    fn amd_s_controllers_count_lines_by_the_codes_of_zen_4() {
        let pmus = Pmus::new();
        pmus.write("amd_umc_0", &[("type", "22"), ("cpumask", "0")]);
        pmus.write(
            "amd_umc_0",
            &[("format/event", "config:0-7"), ("format/rdwrmask", "config:8-9")],
        );
        let found = of_controllers(&pmus.0.0).unwrap();
        let told: Vec<_> = found.iter().map(|s| (s.event.config, s.bytes, s.is_write)).collect();
        assert_eq!(told, [(0x10a, 64.0, false), (0x20a, 64.0, true)]);
    }

    #[test]
    fn without_events_of_bytes_the_reason_is_told() {
        let pmus = Pmus::new();
        let none = "the kernel shows no counters of memory controllers";
        assert_eq!(of_controllers(&pmus.0.0).unwrap_err(), none);
        pmus.write("amd_df", &[("type", "11"), ("cpumask", "0"), ("format/event", "config:0-7")]);
        let why = of_controllers(&pmus.0.0).unwrap_err();
        assert_eq!(why, "amd_df names no event of bytes read and written");
        // Terms and formats that are not understood are left out.
        let name = "uncore_imc";
        pmus.write(name, &[("type", "12"), ("cpumask", "0"), ("format/event", "config1:0-7")]);
        pmus.event(name, "data_reads", "event=0x01", "1");
        pmus.event(name, "data_writes", "event=0x02", "1");
        assert!(of_controllers(&pmus.0.0).is_err());
        for format in ["config:60-70", "config:7-0", "config:", ""] {
            pmus.write(name, &[("format/event", format)]);
            let bits = config(&pmus.0.0.join(name), "event=0xffffffffffffffff");
            assert_eq!(bits, None, "{format}");
        }
    }

    #[test]
    fn cores_have_events_only_if_the_table_has() {
        let found = of_cores(Family::Amd1Ah, &[0, 1]).unwrap();
        let told: Vec<_> = found.iter().map(|s| (s.event.to_string(), s.is_write)).collect();
        assert_eq!(
            told,
            [("L2_LINES_IN (r0864)".into(), false), ("L2_LINES_OUT (rff66)".into(), true)]
        );
        assert!(found.iter().all(|source| source.cpus == [0, 1] && !source.caveat.is_empty()));
        assert!(of_cores(Family::Unknown, &[0]).unwrap_err().starts_with("no code of this CPU"));
    }

    #[test]
    fn events_of_another_unit_than_mib_are_none_and_a_term_without_a_value_is_one() {
        let pmus = Pmus::new();
        let (name, pmu) = ("uncore_imc", pmus.0.0.join("uncore_imc"));
        pmus.write(name, &[("type", "12"), ("cpumask", "0"), ("format/event", "config:0-7")]);
        pmus.write(name, &[("format/edge", "config:18")]);
        pmus.event(name, "data_reads", "event=0x01,edge", "1");
        pmus.event(name, "data_writes", "event=0x02", "1");
        let configs: Vec<u64> =
            of_controllers(&pmus.0.0).unwrap().iter().map(|source| source.event.config).collect();
        assert_eq!(configs, [0x4_0001, 2]);
        assert_eq!(config(&pmu, "edge=0,event=3"), Some(3));
        pmus.write(name, &[("events/data_writes.unit", "Joules\n")]);
        assert!(of_controllers(&pmus.0.0).is_err());
    }
}
