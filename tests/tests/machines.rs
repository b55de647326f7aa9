//! Runs the commands on machines with other settings than this one: each command works, or reports
//! what is missing and what to do. `cargo xtask machines` runs the README's two commands under the
//! same settings. Settings of a whole machine (huge pages, overcommit, clock source) are varied in
//! guests: docs/qemu.md.

use std::fs;
use std::process::Command;
use std::time::Duration;

use linerate_tests::capture::Folder;
use linerate_tests::command::{Forward, copy_into, linerate};
use linerate_tests::netns::Netns;
use linerate_tests::process::{Finished, Process};
use linerate_tests::setting::{self, Cgroup, Entered, first_cpu};
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{may_pin, or_skip};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::Value;

/// Time for a command: a few seconds on a machine that is busy with other things.
const TIME: Duration = Duration::from_secs(60);

/// The commands to run: the README's first command, and a short one for each port that needs much
/// from the kernel.
const COMMANDS: [&[&str]; 3] = [
    &["forward", "--for", "300ms"],
    &["forward", "gen:,count=1000", "packet:v0"],
    &["forward", "gen:,count=1000", "xdp:v0"],
];

/// The expected end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Well,
    /// Refused with this code, a reason and a remedy.
    Refused(&'static str),
}
use Ends::{Refused, Well};

/// A namespace with a pair of devices, and a copy of the program that every user may execute.
struct Bench {
    netns: Netns,
    program: String,
    _folder: Folder,
}

impl Bench {
    fn new() -> Result<Bench, String> {
        let netns = Netns::new()?;
        netns.try_ip("link add dev v0 type veth peer name v1")?;
        netns.ip("link set v0 up");
        netns.ip("link set v1 up");
        let folder = Folder::new();
        Ok(Bench { netns, program: copy_into(&folder), _folder: folder })
    }

    /// Runs the program under a setting, or as the test itself runs.
    fn run(&self, setting: Option<&Entered>, args: &[&str]) -> Finished {
        let plain = || Command::new(&self.program);
        let mut command = setting.map_or_else(plain, |setting| setting.command(&self.program));
        command.args(args);
        self.netns.start(command).finish(TIME)
    }

    /// Runs one of [`COMMANDS`], and returns how it ended.
    ///
    /// # Panics
    /// If it neither worked nor said why not and what to do.
    fn ended(&self, setting: Option<&Entered>, args: &[&str]) -> Result<(), String> {
        let done = self.run(setting, &[args, &["--json"]].concat());
        assert!(!done.stderr.contains("panicked"), "{setting:?} {done:?}");
        let document: Value = serde_json::from_str(&done.stdout)
            .unwrap_or_else(|e| panic!("{setting:?}: not JSON: {e}: {done:?}"));
        if done.code() == 0 {
            assert!(document["ledger"]["sent"].as_u64() >= Some(1000), "{setting:?} {done:?}");
            assert_eq!(document["ledger"]["balanced"], true, "{setting:?} {done:?}");
            return Ok(());
        }
        let error = &document["error"];
        let word = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        for key in ["what", "why", "fix"] {
            assert!(!word(key).is_empty(), "{setting:?}: no {key}: {done:?}");
        }
        Err(word("code"))
    }
}

/// Runs each command and the doctor under the setting `name`, and checks how they end.
fn on(name: &str, expected: [Ends; 3]) {
    let setting = setting::named(name).expect("a setting of that name");
    let setting = or_skip!(setting.enter());
    let bench = or_skip!(commands(&setting, expected));
    let doctor = bench.run(Some(&setting), &["doctor"]);
    assert!(matches!(doctor.code(), 0 | 3), "{setting:?} {doctor:?}");
    assert!(!doctor.stderr.contains("panicked") && doctor.stdout.contains("CPU"), "{doctor:?}");
}

/// Runs each command, and checks how it ends.
fn commands(setting: &Entered, expected: [Ends; 3]) -> Result<Bench, String> {
    let bench = Bench::new()?;
    let probe = bench.netns.start(setting.command("true")).finish(TIME);
    if probe.code() != 0 {
        return Err(format!("the machine does not have the setting: {}", probe.stderr.trim()));
    }
    let version = bench.run(Some(setting), &["--version"]);
    assert_eq!(version.code(), 0, "{setting:?} {version:?}");
    for (args, expected) in COMMANDS.iter().zip(expected) {
        let is = match bench.ended(Some(setting), args) {
            Ok(()) => Well,
            Err(code) if matches!(expected, Refused(as_told) if as_told == code) => expected,
            Err(code) => match bench.ended(None, args) {
                // Refused here as well: the tested setting is not the reason.
                Err(here) if here == code => {
                    eprintln!("skipped in part: {args:?}: {code} without the setting, too");
                    continue;
                }
                _ => panic!("{setting:?} {args:?} ended by {code}, not {expected:?}"),
            },
        };
        assert_eq!(is, expected, "{setting:?} {args:?}");
    }
    Ok(bench)
}

#[test]
fn commands_end_as_told_with_64_kib_to_lock() {
    on("memlock-64k", [Well, Well, Refused("E-MEMORY")]);
}

#[test]
fn commands_work_on_one_cpu() {
    on("one-cpu", [Well; 3]);
}

#[test]
fn commands_work_in_a_cpuset_of_one() {
    on("cpuset-of-one", [Well; 3]);
}

#[test]
fn a_cpu_that_the_cpuset_loses_is_told_and_one_outside_is_refused() {
    or_skip!(may_pin());
    let allowed = sched_getaffinity(None).expect("it has some");
    let last = (0..CpuSet::MAX_CPU).rfind(|&cpu| allowed.is_set(cpu)).unwrap().to_string();
    let (first, both) = (first_cpu(), format!("{},{last}", first_cpu()));
    if first == last {
        return eprintln!("skipped: with one CPU none can be taken away");
    }
    let settings = [("cpuset.cpus", "cpuset.cpus", both.as_str()), ("cpuset.mems", "", "0")];
    let group = or_skip!(Cgroup::new("cpuset", &settings));
    let start = |words: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &group.wrap()]).arg(linerate()).args(words.split(' '));
        Forward::here(command)
    };
    let told = |process: Process| {
        let ended = process.finish(TIME);
        (ended.code(), ended.stderr)
    };
    let running = start(&format!("forward gen:,rate=10kpps sink: -q --cpu {last} --for 3s"));
    let tasks = format!("/proc/{}/task", running.id());
    let is_pinned = || {
        let tasks = fs::read_dir(&tasks).into_iter().flatten().flatten();
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status"));
        // The main thread tries the CPU before it starts the worker.
        let is_worker = |status: &str| status.starts_with("Name:\tlinerate-");
        let only = format!("Cpus_allowed_list:\t{last}\n");
        let mut told = tasks.filter_map(|task| status(task).ok());
        told.any(|status| is_worker(&status) && status.contains(&only))
    };
    until_true("a pinned worker", SOON, is_pinned);
    fs::write(group.folder().join("cpuset.cpus"), &first).unwrap();
    let (exit, err) = told(running);
    assert_eq!(exit, 0, "{err}");
    let lost = format!("warning: a worker pinned to CPU {last} runs on CPU {first}: ");
    assert!(err.contains(&lost), "{err}");
    let (exit, err) = told(start(&format!("forward gen: sink: --cpu {last}")));
    assert!(exit == 2 && err.starts_with("error[E-CPU]"), "{exit:?} {err}");
    assert!(err.contains("why: it is outside the cpuset of this process"), "{err}");
    // With one CPU there is nothing to place, which is no error.
    let (exit, err) = told(start("forward gen: sink: -q --place auto --for 300ms"));
    assert!(exit == 0 && err.contains("the run ended first"), "{exit:?} {err}");
}

#[test]
fn commands_work_in_a_cgroup_of_64_mib() {
    on("memory-64m", [Well; 3]);
}

#[test]
fn memory_that_must_stay_is_refused_where_a_cgroup_has_less() {
    // The frames of AF_XDP's default rings take 20 MiB.
    let setting = or_skip!(Cgroup::of_memory("16M").and_then(setting::inside));
    let _ = or_skip!(commands(&setting, [Well, Well, Refused("E-MEMORY")]));
}

#[test]
fn commands_end_as_told_without_root() {
    on("no-root", [Well, Refused("E-PERM"), Refused("E-PERM")]);
}

#[test]
fn commands_end_as_told_with_cap_net_raw_alone() {
    on("net-raw-alone", [Well, Well, Refused("E-PERM")]);
}

#[test]
fn commands_work_where_proc_is_hidden() {
    on("proc-hidden", [Well; 3]);
}

#[test]
fn commands_work_where_tmp_is_read_only() {
    on("tmp-read-only", [Well; 3]);
}

#[test]
fn commands_end_as_told_under_the_filter_of_a_container() {
    on("container", [Well, Well, Refused("E-PERM")]);
}

#[test]
fn affinity_that_a_system_call_filter_refuses_is_named_and_nothing_else_needs_it() {
    on("no-affinity", [Well; 3]);
    let setting = or_skip!(setting::named("no-affinity").unwrap().enter());
    let bench = or_skip!(Bench::new());
    let pinned = bench.run(Some(&setting), &["forward", "gen:", "sink:", "--cpu", &first_cpu()]);
    assert_eq!(pinned.code(), 2, "{pinned:?}");
    assert!(pinned.stderr.starts_with("error[E-CPU]: cannot pin a thread to CPU"), "{pinned:?}");
    let why = "why: a system call filter refuses it (sched_setaffinity: EPERM)";
    assert!(pinned.stderr.contains(why) && pinned.stderr.contains("name no CPU"), "{pinned:?}");
    let args = ["forward", "gen:", "sink:", "--place", "auto", "--for", "1s"];
    let placed = bench.run(Some(&setting), &args);
    let names_a_cpu = placed.stderr.contains("worker 0 on CPU");
    assert!(placed.code() == 0 && !names_a_cpu, "{placed:?}");
}

#[test]
fn commands_work_where_ipv6_is_off() {
    on("ipv6-off", [Well; 3]);
}

#[test]
fn commands_work_on_a_kernel_built_without_ipv6() {
    on("no-ipv6", [Well; 3]);
}

#[test]
fn commands_work_without_what_came_to_the_kernel_after_5_11() {
    on("linux-5.11", [Well; 3]);
}
