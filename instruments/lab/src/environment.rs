//! Description of the environment of a run: the `env` of its document.
//!
//! Everything is read from /proc and /sys, outside any window. What cannot be read is `null` or
//! left out; nothing is guessed. Of the kernel's command line only what bears on a measurement is
//! kept: the rest is the machine's own business, and may hold secrets.

use std::fs;
use std::path::Path;

use linerate_prof::conditions::Conditions;
use linerate_prof::pmu::{Event, Quantity, capacity};
use serde_json::{Map, Value, json};

use crate::scenario::Place;

/// Most bytes that are read of a file; /proc/cpuinfo is about 1.5 KiB for each CPU.
const FILE_BYTES_MAX: usize = 4 << 20;

/// The largest number of interrupts to list.
const IRQS_MAX: usize = 1024;

/// Prefixes of the kernel parameters that affect a measurement: placement of work, CPU sleep states
/// and clocks, mitigations, pages, timers, IOMMU, preemption.
///
/// Source: Documentation/admin-guide/kernel-parameters.txt.
const PARAMETERS: &str = "\
    amd_iommu amd_pstate audit clocksource cpufreq cpuidle default_hugepagesz \
    gather_data_sampling haltpoll hpet hugepages idle indirect_target_selection \
    init_on_alloc init_on_free intel_idle intel_iommu intel_pstate iommu irqaffinity \
    irqpoll isolcpus kpti kvm l1d_flush l1tf maxcpus mce mds mem_encrypt mem_sleep \
    mitigations mmio_stale_data nmi_watchdog nohalt nohz nopti nosmp nosmt nospectre \
    nowatchdog nr_cpus numa_balancing page_poison pcie_aspm preempt processor.max_cstate \
    psi pti rcu_nocb rcupdate rcutree reg_file_data_sampling retbleed skew_tick slub_debug \
    spec srbds swiotlb threadirqs transparent_hugepage tsc tsx";

/// Describes the present environment on this machine, as the document's `env`. A run replaces the
/// member `noise` by its own noise figures.
///
/// Cost: reads some ten files, and one for each interrupt; where there are counters, the first call
/// of a process tries them for some milliseconds.
#[must_use]
pub fn here(place: &Place) -> Value {
    let conditions = Conditions::here();
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let unknown = || "unknown".to_owned();
    let governor = place.cpus.first().and_then(|cpu| {
        line(&format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"))
    });
    let clocksource = line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let thp = line("/sys/kernel/mm/transparent_hugepage/enabled");
    let mut env = json!({
        "kernel": conditions.kernel.unwrap_or_else(unknown),
        "cmdline": parameters(&read("/proc/cmdline").unwrap_or_default()),
        "cpu": conditions.cpu.map_or_else(unknown, |name| cpu(&name, &cpuinfo)),
        "microcode": field(&cpuinfo, "microcode"),
        "virt": conditions.hypervisor,
        "governor": governor,
        "clocksource": clocksource.unwrap_or_else(unknown),
        "thp": thp.as_deref().and_then(chosen).map_or_else(unknown, str::to_owned),
        "mitigations": mitigations(),
        "cpus": cpus(place),
        "cpus_online": conditions.cpus,
        "irq_affinity": irq_affinity(),
        "pmu": pmu(),
        "noise": noise(),
        "mhz": conditions.mhz,
        "load": line("/proc/loadavg"),
        "psi": psi(),
        "memory_total_kib": kib(&meminfo, "MemTotal"),
        "memory_available_kib": kib(&meminfo, "MemAvailable"),
        "hugepages_free": kib(&meminfo, "HugePages_Free"),
    });
    // Leave out unknown values, except for those members that the document's schema allows to be
    // null.
    if let Some(object) = env.as_object_mut() {
        let may_be_null = ["microcode", "virt", "governor"];
        object.retain(|name, value| !value.is_null() || may_be_null.contains(&name.as_str()));
    }
    env
}

/// Returns the CPU's name with its family and model, as far as /proc/cpuinfo has them: a virtual
/// machine often gives CPUs of several generations one name.
fn cpu(name: &str, cpuinfo: &str) -> String {
    match (field(cpuinfo, "cpu family"), field(cpuinfo, "model")) {
        (Some(family), Some(model)) => format!("{name}, family {family} model {model}"),
        _ => name.to_owned(),
    }
}

/// Returns the parameters that affect a measurement, and the number of the others.
fn parameters(cmdline: &str) -> String {
    // The kernel passes the words after `--` to init, so they are not kernel parameters.
    let words = cmdline.split_ascii_whitespace().take_while(|word| *word != "--");
    let bears = |word: &&str| {
        let name = word.split('=').next().unwrap_or_default();
        PARAMETERS.split(' ').any(|known| name.starts_with(known))
    };
    let (kept, others): (Vec<&str>, Vec<&str>) = words.partition(bears);
    match others.len() {
        0 => kept.join(" "),
        n => format!("{} (and {n} others)", kept.join(" ")).trim_start().to_owned(),
    }
}

fn mitigations() -> Map<String, Value> {
    let said = |name: String| {
        let text = line(&format!("/sys/devices/system/cpu/vulnerabilities/{name}"))?;
        Some((name, text.into()))
    };
    names("/sys/devices/system/cpu/vulnerabilities").into_iter().filter_map(said).collect()
}

/// Returns the CPUs of the run, each with its purpose and with the CPUs that share its core.
fn cpus(place: &Place) -> Vec<Value> {
    let role = |at| match at {
        0 => "dut",
        1 => "gen",
        _ => "free",
    };
    let one = |(at, &cpu): (usize, &usize)| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let sibling = line(&path).and_then(|list| other_than(cpu, &list));
        json!({ "id": cpu, "role": role(at), "sibling": sibling })
    };
    place.cpus.iter().enumerate().map(one).collect()
}

/// Reads the CPUs that serve each interrupt, and those that a new interrupt would get.
fn irq_affinity() -> Map<String, Value> {
    let mut affinity = Map::new();
    if let Some(mask) = line("/proc/irq/default_smp_affinity") {
        affinity.insert("default".into(), mask.into());
    }
    let mut irqs: Vec<u32> =
        names("/proc/irq").iter().filter_map(|name| name.parse().ok()).collect();
    irqs.sort_unstable();
    for irq in irqs.into_iter().take(IRQS_MAX) {
        if let Some(list) = line(&format!("/proc/irq/{irq}/smp_affinity_list")) {
            affinity.insert(irq.to_string(), list.into());
        }
    }
    affinity
}

fn pmu() -> Value {
    let capacity = capacity();
    let available = capacity.at_once > 0;
    let transfers = || Event::of(Quantity::LinesFromOtherCore).ok()?.raw;
    json!({
        "available": available,
        "max_unmultiplexed": capacity.at_once + capacity.beside,
        "c2c_event": available.then(transfers).flatten(),
    })
}

fn noise() -> Value {
    let mut noise = json!({
        "aa_half_width_pct": null,
        "pairs_accepted": 0,
        "pairs_attempted": 0,
    });
    if let Some(pct) = read("/proc/pressure/cpu").as_deref().and_then(some_avg10) {
        noise["psi_cpu_some_avg10"] = pct.into();
    }
    noise
}

/// Reads the kernel's pressure stall information: `some avg10=0.00 …`.
fn psi() -> Map<String, Value> {
    let said =
        |what: &str| Some((what.to_owned(), line(&format!("/proc/pressure/{what}"))?.into()));
    ["cpu", "memory", "io"].into_iter().filter_map(said).collect()
}

/// Returns the share over the last ten seconds in a line `some avg10=17.91 avg60=…`.
fn some_avg10(pressure: &str) -> Option<f64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some avg10="))?;
    some.split(' ').next()?.parse().ok().filter(|pct: &f64| pct.is_finite())
}

/// Returns the word in brackets in a list of choices: `madvise` in `always [madvise] never`.
fn chosen(choices: &str) -> Option<&str> {
    Some(choices.split_once('[')?.1.split_once(']')?.0)
}

/// Returns the first CPU other than `cpu` in a list such as `0-1` or `0,64`.
fn other_than(cpu: usize, list: &str) -> Option<usize> {
    list.split(',').find_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first..=last).find(|&other| other != cpu)
    })
}

/// Returns the value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

/// Returns a number of /proc/meminfo, in the unit of that file.
fn kib(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name)?.split(' ').next()?.parse().ok()
}

/// Returns the names in a directory, in order.
fn names(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Reads a file as text; bytes that are not UTF-8 are replaced.
fn read(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = fs::read(path).ok()?;
    bytes.truncate(FILE_BYTES_MAX);
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a file's first line, trimmed; returns `None` if the line is empty.
fn line(path: &str) -> Option<String> {
    let text = read(path)?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relevant_kernel_parameters_are_kept() {
        let cmdline = "root=/dev/vda1 isolcpus=2,3 quiet nohz_full=2,3 token=abc mitigations=off \
                       -- --tsc=key\n";
        let kept = parameters(cmdline);
        assert_eq!(kept, "isolcpus=2,3 nohz_full=2,3 mitigations=off (and 3 others)");
        assert_eq!(parameters("quiet"), "(and 1 others)");
        assert_eq!(parameters(""), "");
    }

    #[test]
    fn a_cpu_has_its_family_and_model_where_the_kernel_tells_them() {
        let x86 = "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n";
        assert_eq!(cpu("AMD EPYC", x86), "AMD EPYC, family 25 model 17");
        let arm = "BogoMIPS\t: 243.75\nCPU architecture: 8\nCPU part\t: 0xd40\n";
        assert_eq!(cpu("Neoverse-V1", arm), "Neoverse-V1");
    }

    #[test]
    fn a_sibling_is_another_cpu_of_the_same_core() {
        assert_eq!(other_than(0, "0-1"), Some(1));
        assert_eq!(other_than(64, "0,64"), Some(0));
        assert_eq!(other_than(3, "3"), None);
        for odd in ["", "a-b", "3-", "9-2"] {
            assert_eq!(other_than(3, odd), None, "{odd:?}");
        }
    }

    #[test]
    fn kernel_files_are_read_and_malformed_text_gives_none() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("always"), None);
        assert_eq!(some_avg10("some avg10=17.91 avg60=35.68\nfull avg10=0.00\n"), Some(17.91));
        assert_eq!(some_avg10("some avg10=NaN avg60=1\n"), None);
        assert_eq!(kib("MemTotal:   24 kB\nHugePages_Free: 7\n", "HugePages_Free"), Some(7));
    }
}
