//! Runs the commands on machines with other settings than this one: each command works, or reports what is missing
//! and what to do. Settings of a whole machine (huge pages, overcommit, clock source) are varied in guests:
//! docs/qemu.md.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use linerate_tests::capture::Folder;
use linerate_tests::command::linerate;
use linerate_tests::netns::Netns;
use linerate_tests::process::Finished;
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{installed, or_skip};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::Value;

/// Time for a command: a few seconds on a machine that is busy with other things.
const TIME: Duration = Duration::from_secs(60);

/// The commands to run: the README's first command, and a short one for each port that needs much from the kernel.
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

/// A folder of cgroups in which one is made, and removed at the end.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup with `settings`: of version 1 with `controller`, or of version 2.
    fn new(controller: &str, settings: &[(&str, &str, &str)]) -> Result<Cgroup, String> {
        let all = PathBuf::from("/sys/fs/cgroup");
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("linerate-{controller}-{}-{number}", std::process::id());
        let first = all.join(controller);
        let is_first = first.is_dir();
        let group = Cgroup(if is_first { first.join(name) } else { all.join(name) });
        let failed = |e: std::io::Error| format!("no cgroup of {controller}: {e}");
        fs::create_dir(&group.0).map_err(failed)?;
        for (first, second, value) in settings {
            let file = if is_first { first } else { second };
            if !file.is_empty() {
                fs::write(group.0.join(file), value).map_err(failed)?;
            }
        }
        Ok(group)
    }

    /// Returns the shell command that runs a command in the cgroup.
    fn wrap(&self) -> String {
        format!("echo $$ >{}/cgroup.procs && exec \"$0\" \"$@\"", self.0.display())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its programs have ended; the kernel may take a moment to see it.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A function that runs in a new process before its program starts.
type Before = fn() -> std::io::Result<()>;

/// A namespace with a pair of devices, and a copy of the program that every user may execute.
struct Bench {
    netns: Netns,
    folder: Folder,
    before: Before,
}

impl Bench {
    fn new(before: Before) -> Result<Bench, String> {
        let netns = Netns::new()?;
        netns.try_ip("link add dev v0 type veth peer name v1")?;
        netns.ip("link set v0 up");
        netns.ip("link set v1 up");
        let folder = Folder::new();
        // Copy with another process: a child forked meanwhile would inherit our descriptor for writing, and the copy
        // could not be executed.
        let copied = Command::new("cp").arg(linerate()).arg(folder.path("linerate")).status();
        copied.map_err(|e| format!("cp: {e}"))?;
        Ok(Bench { netns, folder, before })
    }

    fn run(&self, wrap: &[&str], args: &[&str]) -> Finished {
        let program = self.folder.path("linerate");
        let words = [wrap, &[program.as_str()], args].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        if !wrap.is_empty() {
            // SAFETY: the functions passed as `before` make system calls and allocate no memory.
            unsafe { command.pre_exec(self.before) };
        }
        self.netns.start(command).finish(TIME)
    }

    /// Runs one of [`COMMANDS`], and returns how it ended.
    ///
    /// # Panics
    /// If it neither worked nor said why not and what to do.
    fn ended(&self, wrap: &[&str], args: &[&str]) -> Result<(), String> {
        let done = self.run(wrap, &[args, &["--json"]].concat());
        assert!(!done.stderr.contains("panicked"), "{wrap:?} {done:?}");
        let document: Value = serde_json::from_str(&done.stdout)
            .unwrap_or_else(|e| panic!("{wrap:?}: not JSON: {e}: {done:?}"));
        if done.code() == 0 {
            assert!(document["ledger"]["sent"].as_u64() >= Some(1000), "{wrap:?} {done:?}");
            assert_eq!(document["ledger"]["balanced"], true, "{wrap:?} {done:?}");
            return Ok(());
        }
        let error = &document["error"];
        let word = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        for key in ["what", "why", "fix"] {
            assert!(!word(key).is_empty(), "{wrap:?}: no {key}: {done:?}");
        }
        Err(word("code"))
    }
}

/// Runs each command and the doctor with the prefix `wrap`, and checks how they end.
fn on(wrap: &[&str], expected: [Ends; 3]) {
    after(|| Ok(()), wrap, expected);
}

/// Runs the commands as [`on`] does, with `before` executed in each new process.
fn after(before: Before, wrap: &[&str], expected: [Ends; 3]) {
    let bench = or_skip!(commands(before, wrap, expected));
    let doctor = bench.run(wrap, &["doctor"]);
    assert!(matches!(doctor.code(), 0 | 3), "{wrap:?} {doctor:?}");
    assert!(!doctor.stderr.contains("panicked") && doctor.stdout.contains("CPU"), "{doctor:?}");
}

/// Runs each command, and checks how it ends.
fn commands(before: Before, wrap: &[&str], expected: [Ends; 3]) -> Result<Bench, String> {
    installed(wrap[0])?;
    let bench = Bench::new(before)?;
    let probe = bench.run(wrap, &["--version"]);
    if probe.code() != 0 {
        return Err(format!("{}: {}", wrap[0], probe.stderr.trim()));
    }
    for (args, expected) in COMMANDS.iter().zip(expected) {
        let is = match bench.ended(wrap, args) {
            Ok(()) => Well,
            Err(code) if matches!(expected, Refused(as_told) if as_told == code) => expected,
            Err(code) => match bench.ended(&[], args) {
                // Refused here as well: the tested setting is not the reason.
                Err(here) if here == code => {
                    eprintln!("skipped in part: {args:?}: {code} without the setting, too");
                    continue;
                }
                _ => panic!("{wrap:?} {args:?} ended by {code}, not {expected:?}"),
            },
        };
        assert_eq!(is, expected, "{wrap:?} {args:?}");
    }
    Ok(bench)
}

#[test]
fn commands_end_as_told_with_64_kib_to_lock() {
    let wrap = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"];
    on(&[&wrap[..], &["prlimit", "--memlock=65536"]].concat(), [Well, Well, Refused("E-MEMORY")]);
}

/// Returns the first CPU that this process may use.
fn first_cpu() -> String {
    let allowed = sched_getaffinity(None).expect("it has some");
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    cpus.next().expect("it runs on one").to_string()
}

#[test]
fn commands_work_on_one_cpu() {
    on(&["taskset", "--cpu-list", &first_cpu()], [Well; 3]);
}

#[test]
fn commands_work_in_a_cpuset_of_one() {
    let cpu = first_cpu();
    let settings = [("cpuset.cpus", "cpuset.cpus", cpu.as_str()), ("cpuset.mems", "", "0")];
    let group = or_skip!(Cgroup::new("cpuset", &settings));
    on(&["sh", "-c", &group.wrap()], [Well; 3]);
}

#[test]
fn a_cpu_that_the_cpuset_loses_is_told_and_one_outside_is_refused() {
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
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let told = |child: Child| {
        let ended = child.wait_with_output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let running = start(&format!("forward gen:,rate=10kpps sink: -q --cpu {last} --for 3s"));
    let tasks = format!("/proc/{}/task", running.id());
    let is_pinned = || {
        let tasks = fs::read_dir(&tasks).into_iter().flatten().flatten();
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status"));
        // The main thread tries the CPU before it starts the worker. The worker's own call may still fail if the
        // cpuset changes before it returns, so wait until the worker has slept between packets.
        let is_worker = |status: &str| status.starts_with("Name:\tlinerate-");
        let sleeps = |status: &str| {
            let line =
                status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.and_then(|count| count.trim().parse::<u32>().ok()).unwrap_or(0)
        };
        let only = format!("Cpus_allowed_list:\t{last}\n");
        let mut told = tasks.filter_map(|task| status(task).ok());
        told.any(|status| is_worker(&status) && status.contains(&only) && sleeps(&status) >= 10)
    };
    until_true("a pinned worker", SOON, is_pinned);
    fs::write(group.0.join("cpuset.cpus"), &first).unwrap();
    let (exit, err) = told(running);
    assert_eq!(exit, Some(0), "{err}");
    let lost = format!("warning: a worker pinned to CPU {last} runs on CPU {first}: ");
    assert!(err.contains(&lost), "{err}");
    let (exit, err) = told(start(&format!("forward gen: sink: --cpu {last}")));
    assert!(exit == Some(2) && err.starts_with("error[E-CPU]"), "{exit:?} {err}");
    assert!(err.contains("why: it is outside the cpuset of this process"), "{err}");
    // With one CPU there is nothing to place, which is no error.
    let (exit, err) = told(start("forward gen: sink: -q --place auto --for 300ms"));
    assert!(exit == Some(0) && err.contains("the run ended first"), "{exit:?} {err}");
}

/// Returns a cgroup with a memory limit of `bytes`.
fn memory(bytes: &str) -> Result<Cgroup, String> {
    Cgroup::new("memory", &[("memory.limit_in_bytes", "memory.max", bytes)])
}

#[test]
fn commands_work_in_a_cgroup_of_64_mib() {
    let group = or_skip!(memory("64M"));
    on(&["sh", "-c", &group.wrap()], [Well; 3]);
}

#[test]
fn memory_that_must_stay_is_refused_where_a_cgroup_has_less() {
    // The frames of AF_XDP's default rings take 20 MiB.
    let group = or_skip!(memory("16M"));
    let expected = [Well, Well, Refused("E-MEMORY")];
    let _ = or_skip!(commands(|| Ok(()), &["sh", "-c", &group.wrap()], expected));
}

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

#[test]
fn commands_end_as_told_without_root() {
    on(&NOBODY, [Well, Refused("E-PERM"), Refused("E-PERM")]);
}

#[test]
fn commands_end_as_told_with_cap_net_raw_alone() {
    let sets = ["--inh-caps=", "--ambient-caps=", "--bounding-set="];
    let sets = sets.map(|set| format!("{set}-all,+net_raw"));
    let wrap: Vec<&str> = NOBODY.into_iter().chain(sets.iter().map(String::as_str)).collect();
    on(&wrap, [Well, Well, Refused("E-PERM")]);
}

/// Runs a command in a mount namespace of its own, after `commands`.
fn with_mounts(commands: &str, expected: [Ends; 3]) {
    let commands = format!("{commands} && exec \"$0\" \"$@\"");
    on(&["unshare", "--mount", "sh", "-c", &commands], expected);
}

#[test]
fn commands_work_where_proc_is_hidden() {
    with_mounts("mount -t tmpfs none /proc", [Well; 3]);
}

#[test]
fn commands_work_where_tmp_is_read_only() {
    with_mounts("mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp", [Well; 3]);
}

#[test]
fn commands_end_as_told_under_the_filter_of_a_container() {
    after(refuse_as_containers_do, &["env"], [Well, Well, Refused("E-PERM")]);
}

#[test]
fn affinity_that_a_system_call_filter_refuses_is_named_and_nothing_else_needs_it() {
    after(refuse_affinity, &["env"], [Well; 3]);
    let bench = or_skip!(Bench::new(refuse_affinity));
    let pinned = bench.run(&["env"], &["forward", "gen:", "sink:", "--cpu", &first_cpu()]);
    assert_eq!(pinned.code(), 2, "{pinned:?}");
    assert!(pinned.stderr.starts_with("error[E-CPU]: cannot pin a thread to CPU"), "{pinned:?}");
    let why = "why: a system call filter refuses it (sched_setaffinity: EPERM)";
    assert!(pinned.stderr.contains(why) && pinned.stderr.contains("name no CPU"), "{pinned:?}");
    let args = ["forward", "gen:", "sink:", "--place", "auto", "--for", "1s"];
    let placed = bench.run(&["env"], &args);
    let names_a_cpu = placed.stderr.contains("worker 0 on CPU");
    assert!(placed.code() == 0 && !names_a_cpu, "{placed:?}");
}

#[test]
fn commands_work_where_ipv6_is_off() {
    let off = "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1";
    on(&["sh", "-c", &format!("{off}; exec \"$0\" \"$@\"")], [Well; 3]);
}

#[test]
fn commands_work_on_a_kernel_built_without_ipv6() {
    after(refuse_ipv6, &["env"], [Well; 3]);
}

#[test]
fn commands_work_without_what_came_to_the_kernel_after_5_11() {
    after(refuse_what_came_after_5_11, &["env"], [Well; 3]);
}

const ALLOW: libc::sock_filter = instruction(libc::BPF_RET, 0, libc::SECCOMP_RET_ALLOW);

const fn instruction(code: u32, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf, k }
}

/// An instruction that loads the number of the system call.
const CALL: libc::sock_filter = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0);

/// Returns an instruction that loads the lower half of an argument of the call.
const fn argument(index: u32) -> libc::sock_filter {
    let offset = 16 + 8 * index + if cfg!(target_endian = "big") { 4 } else { 0 };
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, offset)
}

/// Returns an instruction that skips the next `n` instructions unless the loaded value is `k` (or
/// at least `k`).
const fn unless_is(k: u32, n: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, n, k)
}
const fn unless_from(k: u32, n: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, n, k)
}

const fn refuse(errno: i32) -> libc::sock_filter {
    instruction(libc::BPF_RET, 0, libc::SECCOMP_RET_ERRNO | errno as u32)
}

/// Forbids this process and its children the system calls for BPF, performance counters and page faults.
///
/// Source: seccomp(2), its example; Docker's default profile refuses these to who has no CAP_SYS_ADMIN.
fn refuse_as_containers_do() -> std::io::Result<()> {
    filtered(&mut [
        CALL,
        unless_is(libc::SYS_bpf as u32, 1),
        refuse(libc::EPERM),
        unless_is(libc::SYS_perf_event_open as u32, 1),
        refuse(libc::EPERM),
        unless_is(libc::SYS_userfaultfd as u32, 1),
        refuse(libc::EPERM),
        ALLOW,
    ])
}

/// Forbids this process and its children to set the CPUs of threads.
///
/// Source: systemd.exec(5): `SystemCallFilter=~@resources` with `SystemCallErrorNumber=EPERM`.
fn refuse_affinity() -> std::io::Result<()> {
    filtered(&mut [
        CALL,
        unless_is(libc::SYS_sched_setaffinity as u32, 1),
        refuse(libc::EPERM),
        ALLOW,
    ])
}

/// Forbids this process and its children to create IPv6 sockets.
fn refuse_ipv6() -> std::io::Result<()> {
    filtered(&mut [
        CALL,
        unless_is(libc::SYS_socket as u32, 3),
        argument(0),
        unless_is(libc::AF_INET6 as u32, 1),
        refuse(libc::EAFNOSUPPORT),
        ALLOW,
    ])
}

/// Lets it have none of the system calls since Linux 5.12, of the advice of madvise(2) since 5.14, of the options of
/// sockets since 5.14 and of AF_XDP's since 6.17, and of the names of memory since 5.17.
///
/// Source: include/uapi of Linux 5.11 (asm-generic/unistd.h, mman-common.h, socket.h, linux/if_xdp.h, prctl.h).
fn refuse_what_came_after_5_11() -> std::io::Result<()> {
    const FIRST_CALL: u32 = 442;
    const FIRST_ADVICE: u32 = 22;
    const FIRST_OPTION: u32 = 71;
    const FIRST_OF_XDP: u32 = 9;
    filtered(&mut [
        CALL,
        unless_from(FIRST_CALL, 1),
        refuse(libc::ENOSYS),
        unless_is(libc::SYS_madvise as u32, 4),
        argument(2),
        unless_from(FIRST_ADVICE, 1),
        refuse(libc::EINVAL),
        ALLOW,
        unless_is(libc::SYS_prctl as u32, 4),
        argument(0),
        unless_is(libc::PR_SET_VMA as u32, 1),
        refuse(libc::EINVAL),
        ALLOW,
        unless_is(libc::SYS_setsockopt as u32, 9),
        argument(1),
        unless_is(libc::SOL_SOCKET as u32, 3),
        argument(2),
        unless_from(FIRST_OPTION, 1),
        refuse(libc::ENOPROTOOPT),
        unless_is(libc::SOL_XDP as u32, 3),
        argument(2),
        unless_from(FIRST_OF_XDP, 1),
        refuse(libc::ENOPROTOOPT),
        ALLOW,
    ])
}

/// Installs a seccomp filter for this process and its children.
fn filtered(filter: &mut [libc::sock_filter]) -> std::io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: prctl(2) gets numbers, and a pointer to a filter program that outlives the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
