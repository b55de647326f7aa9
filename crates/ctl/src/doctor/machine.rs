//! The examination of the machine, independent of a port.

use std::collections::BTreeMap;
use std::thread::available_parallelism;

use linerate_port::doctor::{Finding, Findings, is_here, kernel as host, proc};
use linerate_port::thread::allowed_cpus;
use linerate_port::{Driver, Obtained, Port, Registry, Result};
use linerate_sys::mem::{Huge, Region};
use linerate_sys::netns::Netns;

/// Frames of the memory that is registered for a trial: 64 MiB, enough for a path of several
/// queues.
const FRAMES: usize = 32 << 10;
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of that memory.
const PATH_BYTES: usize = FRAMES / 1024 * HUGE_PAGE_BYTES;
/// Share of the time since boot, in per cent, that the host may take without a warning.
const STEAL_PCT: f64 = 1.0;
/// Programs that are used in the remedies of our pages, each with its package.
const PROGRAMS: [(&str, &str); 3] =
    [("ip", "iproute2"), ("ss", "iproute2"), ("ethtool", "ethtool")];

/// Checks the machine. Trials that change something run in a network namespace of their own.
#[must_use]
pub fn machine() -> Vec<Finding> {
    let mut found = Findings::default();
    examine_kernel(&mut found);
    programs(&mut found);
    drivers(&mut found);
    host::memory(FRAMES, &mut found);
    huge_pages(&mut found);
    jit(&mut found);
    cpus(&mut found);
    governor(&mut found);
    noise(&mut found);
    found.into_vec()
}

/// Opens a port of each driver for host interfaces in a network namespace of its own.
fn drivers(found: &mut Findings) {
    let registry = Registry::default();
    let with_trial = |driver: &&&dyn Driver| !driver.on_machine().trial.is_empty();
    let drivers: Vec<_> = registry.drivers().iter().filter(with_trial).collect();
    let netns = match Netns::with_pair() {
        Ok(netns) => netns,
        Err(e) => {
            host::privileges(found);
            let finding = found.lack(&e);
            let names: Vec<&str> = drivers.iter().map(|driver| driver.name()).collect();
            let (last, names) = names.split_last().unwrap_or((&"", &[]));
            finding.what = format!("{} and {last} were not opened", names.join(", "));
            return;
        }
    };
    for driver in drivers {
        let open = || Port::open(driver.on_machine().trial).map(|port| port.obtained().clone());
        let opened: Result<Obtained> = netns.run(open).and_then(|opened| opened);
        match opened {
            Ok(obtained) => {
                let driver = driver.name();
                found.ok(format!("{driver} opens on a test device: {}", obtained.mode));
            }
            Err(e) => {
                found.miss(&e);
            }
        }
    }
}

/// Tries to map a huge page.
fn huge_pages(found: &mut Findings) {
    let meminfo = proc::text("/proc/meminfo").unwrap_or_default();
    let free = proc::labelled(&meminfo, "HugePages_Free:").unwrap_or(0);
    match Region::new("linerate trial", HUGE_PAGE_BYTES, Huge::Require) {
        Ok(_) => found.ok(format!("2 MiB pages are available ({free} free)")),
        // A limit prevents it, or other programs have reserved the free pages.
        Err(e) if free > 0 => found
            .warn("a 2 MiB page cannot be allocated: pools use ordinary pages")
            .why(e.why)
            .fix(e.fix),
        Err(e) => {
            // The setting is the machine's total: the error's remedy includes the pages in use.
            let whole = Region::new("linerate trial", PATH_BYTES, Huge::Require);
            found
                .warn("there are no free 2 MiB pages: pools use ordinary pages")
                .why("address translation takes more CPU time")
                .fix(reserving(&whole.err().unwrap_or(e).fix))
        }
    };
}

/// Returns the part of the remedy that makes huge pages: pools have ordinary ones already.
fn reserving(fix: &str) -> &str {
    fix.strip_prefix("allow ordinary pages, or: ").unwrap_or(fix)
}

/// Warns if the kernel interprets a filter's program because it has no JIT.
fn jit(found: &mut Findings) {
    if proc::number("/proc/sys/net/core/bpf_jit_enable") == Some(0) {
        found
            .warn("BPF programs are interpreted")
            .why("net.core.bpf_jit_enable is 0")
            .fix("sysctl -w net.core.bpf_jit_enable=1");
    }
}

/// Reports the CPUs that threads may use, and the share of CPU time that a cgroup allows.
fn cpus(found: &mut Findings) {
    let Ok(cpus) = allowed_cpus() else { return };
    let time_of = available_parallelism().map_or(cpus.len(), usize::from);
    if time_of < cpus.len() {
        found
            .warn(format!("{} CPUs may be used, with the CPU time of {time_of}", cpus.len()))
            .why("the cgroup's cpu.max limits CPU time: the kernel stops a polling worker when the time is used up");
    } else if cpus.len() == 1 {
        found.warn("1 CPU may be used").why("the workers and the kernel share it");
    } else {
        found.ok(format!("{} CPUs may be used", cpus.len()));
    }
}

/// Warns about governors that lower the clock rate, because measurements then depend on it.
fn governor(found: &mut Findings) {
    let Ok(cpus) = allowed_cpus() else { return };
    let read = |cpu: usize, file: &str| {
        let text = proc::text(&format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/{file}"));
        text.map(|text| text.trim().to_owned())
    };
    let of = |cpu| {
        let driver = read(cpu, "scaling_driver").unwrap_or_default();
        Some((cpu, read(cpu, "scaling_governor")?, driver))
    };
    judge_governors(&cpus.into_iter().filter_map(of).collect::<Vec<_>>(), found);
}

/// Judges the governors of CPUs, each with its driver.
fn judge_governors(all: &[(usize, String, String)], found: &mut Findings) {
    let mut lower: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for (cpu, governor, driver) in all.iter().filter(|(_, governor, _)| governor != "performance") {
        lower.entry((governor, clock(governor, driver))).or_default().push(cpu.to_string());
    }
    if all.is_empty() {
        found.ok("no cpufreq: this machine cannot set the CPU clock");
    } else if lower.is_empty() {
        found.ok("the CPUs run at a high clock (governor performance)");
    }
    for ((governor, does), cpus) in lower {
        let whose = match cpus.len() == all.len() {
            true => "the CPUs' clock".to_owned(),
            false => format!("the clock of CPU {}", cpus.join(",")),
        };
        found
            .warn(format!("{whose} {does} (governor {governor})"))
            .why("rates and latencies depend on the clock")
            .fix("cpupower frequency-set -g performance");
    }
}

/// Returns what a governor does with the clock.
///
/// Source: Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst and amd-pstate.rst: a driver
/// in its active mode chooses the clock itself, and these two names are of that mode.
fn clock(governor: &str, driver: &str) -> &'static str {
    match governor {
        "powersave" if !["intel_pstate", "amd-pstate-epp"].contains(&driver) => "is the lowest",
        "userspace" => "is one that a program has set",
        _ => "follows the load",
    }
}

/// Warns if other programs, or the host, use much of the CPUs' time.
fn noise(found: &mut Findings) {
    let cpus = allowed_cpus().map_or(1, |cpus| cpus.len());
    let load = proc::text("/proc/loadavg");
    let load: Option<f64> = load.and_then(|text| text.split(' ').next()?.parse().ok());
    let steal = proc::text("/proc/stat").and_then(|text| steal_pct(&text));
    let mut whys = Vec::new();
    if let Some(load) = load.filter(|load| *load > cpus as f64 / 2.0) {
        whys.push(format!("load {load} on {cpus} CPUs"));
    }
    if let Some(steal) = steal.filter(|steal| *steal > STEAL_PCT) {
        whys.push(format!("the host took {steal:.1} % of the CPUs' time since the start"));
    }
    if load.is_none() && steal.is_none() {
        found
            .warn("the kernel does not report how busy the machine is")
            .why("/proc is not mounted");
    } else if whys.is_empty() {
        found.ok("the machine is quiet");
    } else {
        found
            .warn("the machine is noisy: rates are unreliable; instruction counts a packet are reliable")
            .why(whys.join("; "))
            .fix("ps -eo pcpu,comm --sort=-pcpu");
    }
}

/// Returns the share of all time that the host took.
///
/// Source: proc_stat(5): user nice system idle iowait irq softirq steal, then guests' time, which
/// user and nice already include.
fn steal_pct(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = line.split_whitespace().take(8).map_while(|n| n.parse().ok()).collect();
    let (steal, all) = (*times.get(7)?, times.iter().sum::<u64>());
    (all > 0).then(|| steal as f64 * 100.0 / all as f64)
}

/// Warns of each missing program that remedies of other findings use.
fn programs(found: &mut Findings) {
    for (program, package) in PROGRAMS {
        if !is_here(program) {
            found
                .warn(format!("there is no program {program}"))
                .why("commands that doctor proposes use it")
                .fix(format!("apt install {package}"));
        }
    }
}

/// Compares the kernel's version with the features that ports use.
fn examine_kernel(found: &mut Findings) {
    match host::version() {
        Some(version) => judge_kernel(version, found),
        None => {
            found.warn("the kernel does not report its version").why("/proc is not mounted");
        }
    }
}

fn judge_kernel((major, minor): (u32, u32), found: &mut Findings) {
    let drivers = Registry::default();
    let needs = drivers.drivers().iter().flat_map(|driver| driver.on_machine().kernels);
    let mut lacks: Vec<_> = needs.filter(|(from, _)| (major, minor) < *from).collect();
    lacks.sort_unstable();
    if lacks.is_empty() {
        found.ok(format!("Linux {major}.{minor}: has every feature that linerate uses"));
    } else {
        let lacks: Vec<&str> = lacks.into_iter().map(|(_, what)| *what).collect();
        found.warn(format!("Linux {major}.{minor} is old")).why(lacks.join("; "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_port::doctor::Level;

    #[test]
    fn the_share_that_the_host_took_is_that_of_all_time() {
        let stat = "cpu  10 0 10 70 0 0 5 5 3 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(steal_pct(stat), Some(5.0));
        assert_eq!((steal_pct("cpu  1 2"), steal_pct("intr 5"), steal_pct("")), (None, None, None));
        assert_eq!(steal_pct("cpu  0 0 0 0 0 0 0 0"), None);
    }

    #[test]
    fn governor_powersave_follows_the_load_only_where_the_driver_chooses_the_clock() {
        for (governor, driver, does) in [
            ("powersave", "intel_pstate", "follows the load"),
            ("powersave", "amd-pstate-epp", "follows the load"),
            ("powersave", "intel_cpufreq", "is the lowest"),
            ("powersave", "acpi-cpufreq", "is the lowest"),
            ("userspace", "acpi-cpufreq", "is one that a program has set"),
            ("schedutil", "amd-pstate", "follows the load"),
        ] {
            assert_eq!(clock(governor, driver), does, "{governor} {driver}");
        }
    }

    #[test]
    fn governors_other_than_performance_are_reported_with_their_cpus() {
        let of = |governors: &[&str]| {
            let mut found = Findings::default();
            let cpus = governors.iter().enumerate();
            let cpus = cpus.map(|(cpu, name)| (cpu, (*name).to_owned(), "acpi-cpufreq".to_owned()));
            judge_governors(&cpus.collect::<Vec<_>>(), &mut found);
            let found = found.into_vec().into_iter();
            found.map(|finding| (finding.level, finding.what)).collect::<Vec<_>>()
        };
        let [fast, saves] = ["performance", "powersave"];
        assert_eq!(of(&[fast, fast])[0].0, Level::Ok);
        assert!(of(&[])[0].1.starts_with("no cpufreq"));
        let all = "the CPUs' clock is the lowest (governor powersave)";
        assert_eq!(of(&[saves, saves]), [(Level::Warn, all.to_owned())]);
        let found = of(&[fast, "schedutil", saves, fast, saves]);
        let some = [
            "the clock of CPU 2,4 is the lowest (governor powersave)",
            "the clock of CPU 1 follows the load (governor schedutil)",
        ];
        assert_eq!(found, some.map(|what| (Level::Warn, what.to_owned())));
    }

    #[test]
    fn a_release_is_judged_by_what_drivers_use() {
        let of = |version| {
            let mut found = Findings::default();
            judge_kernel(version, &mut found);
            found.into_vec().remove(0)
        };
        assert_eq!(of((6, 6)).level, Level::Ok);
        let old = of((5, 15));
        assert_eq!(old.level, Level::Warn);
        assert!(old.why.unwrap().starts_with("superframes of UDP"));
        assert!(of((5, 4)).why.unwrap().starts_with("xdp needs 5.9"));
    }
}
