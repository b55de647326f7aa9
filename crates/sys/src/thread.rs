//! The calling thread: its CPU, its name, and the delay of its wake-ups.
//!
//! Everything here acts on the calling thread alone and belongs to its setup.
//!
//! Source: sched_setaffinity(2), prctl(2), Documentation/scheduler/sched-stats.rst.

mod account;

use std::ffi::CStr;
use std::num::NonZeroU64;

use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid};

use crate::error::{Code, Error, Result};

pub use account::{Account, Accounted, keeps_no_account};

/// Most bytes of a thread's name (`TASK_COMM_LEN` without the NUL).
pub const NAME_BYTES_MAX: usize = 15;

/// Binds the calling thread to one CPU. The thread runs on that CPU when this returns.
///
/// # Errors
/// `E-CPU` if the machine has no such CPU, it is offline, or the process may not use it.
pub fn pin_to_cpu(cpu: usize) -> Result<()> {
    run_on(&[cpu])
}

/// Restricts the calling thread to those of `cpus` that its cpuset allows. The thread runs on one
/// of them when this returns.
///
/// # Errors
/// `E-CPU` if not one of them is there, online and in the cpuset: then nothing has changed.
pub fn run_on(cpus: &[usize]) -> Result<()> {
    set_affinity(None, cpus)
}

/// Tries each of these CPUs on a thread of its own, so that a request for an unusable CPU is
/// refused before anything else is done. The calling thread's CPUs do not change.
///
/// # Errors
/// `E-CPU` of the first that is absent, offline or outside the cpuset.
pub fn try_cpus(cpus: &[usize]) -> Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let try_each = || cpus.iter().try_for_each(|cpu| pin_to_cpu(*cpu));
    std::thread::scope(|scope| match std::thread::Builder::new().spawn_scoped(scope, try_each) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(e) => Err(Error::new(Code::System, "cannot start a thread", e.to_string())),
    })
}

/// Restricts another thread, of this process or of the kernel, to CPUs as [`run_on`] does.
///
/// # Errors
/// `E-CPU` as there, or if it may not be moved; `E-SYSTEM` if there is no such thread.
pub fn run_thread_on(thread: i32, cpus: &[usize]) -> Result<()> {
    set_affinity(Some(pid(thread)?), cpus)
}

/// The reason of an error where a filter of system calls refuses to pin the calling thread.
const FILTERED: &str = "a system call filter refuses it (sched_setaffinity: EPERM)";

/// Returns true if the error says that a filter of system calls refuses to pin threads.
#[must_use]
pub fn is_filtered(e: &Error) -> bool {
    e.code == Code::Cpu && e.why == FILTERED
}

fn set_affinity(thread: Option<Pid>, cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    rustix::thread::sched_setaffinity(thread, &set).map_err(|e| {
        let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
        let what = format!("cannot pin a thread to CPU {}", list.join(","));
        let allowed = "grep Cpus_allowed_list /proc/self/status";
        match cpus.iter().find_map(|cpu| why_not(*cpu)) {
            _ if e == Errno::SRCH => Error::os(Code::System, what, "sched_setaffinity", e),
            Some(why) => Error::new(Code::Cpu, what, why).fix(allowed),
            None if e == Errno::INVAL && thread.is_none() => {
                let why = "it is outside the cpuset of this process (sched_setaffinity: EINVAL)";
                Error::new(Code::Cpu, what, why).fix(allowed)
            }
            None if e == Errno::PERM && thread.is_none() => {
                let why = FILTERED;
                let fix = "allow the call (systemd: SystemCallFilter=@resources), or name no CPU";
                Error::new(Code::Cpu, what, why).fix(fix)
            }
            None if e == Errno::INVAL => {
                let why =
                    "the kernel keeps the thread where it is, or it is outside the thread's cpuset";
                let thread = Pid::as_raw(thread);
                Error::new(Code::Cpu, what, why).fix(format!("taskset -cp {thread}"))
            }
            None if e == Errno::PERM => Error::os(Code::Cpu, what, "sched_setaffinity", e)
                .fix("run as the thread's user or root, or with CAP_SYS_NICE"),
            None => Error::os(Code::Cpu, what, "sched_setaffinity", e).fix(allowed),
        }
    })
}

fn pid(thread: i32) -> Result<Pid> {
    // 0 means the calling thread, which this function does not accept.
    let pid = if thread > 0 { Pid::from_raw(thread) } else { None };
    pid.ok_or_else(|| {
        Error::new(Code::System, format!("cannot pin thread {thread}"), "there is no such thread")
    })
}

/// Returns the calling thread's id, for [`run_thread_on`].
#[must_use]
pub fn id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns the CPUs that another thread may run on, in ascending order.
///
/// # Errors
/// `E-SYSTEM` if there is no such thread.
pub fn allowed_cpus_of(thread: i32) -> Result<Vec<usize>> {
    affinity(Some(pid(thread)?))
}

/// Returns the reason why no thread can run on a CPU, because it does not exist or is offline;
/// `None` if threads can.
#[must_use]
pub fn why_not(cpu: usize) -> Option<String> {
    let list = |file| {
        let path = format!("/sys/devices/system/cpu/{file}");
        Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
    };
    let (present, online) = (list("present")?, list("online")?);
    if !is_listed(&present, cpu) {
        return Some(format!("there is no CPU {cpu}: this machine has {present}"));
    }
    (!is_listed(&online, cpu)).then(|| format!("CPU {cpu} is offline; online are {online}"))
}

/// Returns true if a list in the kernel's format, such as `0-3,8`, contains a number.
fn is_listed(list: &str, n: usize) -> bool {
    ranges(list).any(|range| range.contains(&n))
}

/// Returns the numbers of a list in the kernel's format, such as `0-3,8`, in its order, up to the
/// first number that is not below 65,536.
#[must_use]
pub fn listed(list: &str) -> Vec<usize> {
    ranges(list).flatten().take_while(|n| *n < 1 << 16).collect()
}

fn ranges(list: &str) -> impl Iterator<Item = std::ops::RangeInclusive<usize>> + '_ {
    list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    })
}

/// Returns the CPUs that the calling thread may run on, in ascending order.
///
/// # Errors
/// `E-SYSTEM` on a machine with more CPUs than a set can name.
pub fn allowed_cpus() -> Result<Vec<usize>> {
    affinity(None)
}

fn affinity(thread: Option<Pid>) -> Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(thread).map_err(|e| {
        Error::os(Code::System, "cannot list the CPUs of this thread", "sched_getaffinity", e)
    })?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Returns the CPU that runs the calling thread; a pinned thread always has the same CPU.
#[must_use]
pub fn current_cpu() -> usize {
    // Miri has one CPU, and does not support this call.
    if cfg!(miri) { 0 } else { rustix::thread::sched_getcpu() }
}

/// Names the calling thread, as `top -H` shows it; cuts the name at [`NAME_BYTES_MAX`] and at the
/// first NUL.
pub fn set_name(name: &str) {
    let mut cut = name.len().min(NAME_BYTES_MAX);
    while !name.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut bytes = [0; NAME_BYTES_MAX + 1];
    bytes[..cut].copy_from_slice(&name.as_bytes()[..cut]);
    if let Ok(name) = CStr::from_bytes_until_nul(&bytes) {
        // Ignore errors: the name has no effect on the program, and prctl(PR_SET_NAME) fails for an
        // unreadable address only.
        let _ = rustix::thread::set_name(name);
    }
}

/// Lets the kernel delay the calling thread's timeouts by at most `slack_ns`.
///
/// The default of 50 µs is what a sleeping thread overshoots by; 1 ns makes waits punctual at the
/// price of one timer interrupt each.
///
/// # Errors
/// `E-SYSTEM` from a sandbox that forbids prctl.
pub fn set_timer_slack_ns(slack_ns: NonZeroU64) -> Result<()> {
    rustix::thread::set_current_timer_slack(Some(slack_ns)).map_err(|e| {
        Error::os(Code::System, "cannot set the timer slack", "prctl(PR_SET_TIMERSLACK)", e)
    })
}

/// Returns how long the calling thread was ready but not running, since its start.
///
/// Cost: opens, reads and closes a file of /proc: about 10 µs. Not for each packet.
///
/// # Errors
/// `E-FILE` without /proc; `E-UNSUPPORTED` from a kernel built without `CONFIG_SCHED_INFO`.
pub fn run_delay_ns() -> Result<u64> {
    Account::open()?.run_delay_ns()
}

/// Returns the three numbers of a schedstat file: nanoseconds on a CPU, nanoseconds waiting for
/// one, and the number of times the thread was scheduled.
///
/// A thread that reads this was put on a CPU at least once: three times 0 is what a kernel writes
/// that does not know (`proc_pid_schedstat`, fs/proc/base.c).
fn times_of(schedstat: &str) -> Option<[u64; 3]> {
    let mut words = schedstat.split_ascii_whitespace();
    let mut number = || words.next()?.parse::<u64>().ok();
    let times = [number()?, number()?, number()?];
    (times != [0; 3]).then_some(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::unless;

    /// Runs `f` on a new thread, so that the test runner's thread keeps its affinity and name.
    fn apart(f: impl FnOnce() + Send + 'static) {
        std::thread::spawn(f).join().unwrap();
    }

    /// Runs `f` as [`apart`] does, unless a filter of system calls refuses affinity.
    fn apart_with_affinity(f: impl FnOnce() + Send + 'static) {
        apart(|| {
            if unless(run_on(&allowed_cpus().unwrap()), is_filtered).is_some() {
                f();
            }
        });
    }

    #[test]
    fn a_pinned_thread_runs_where_it_was_pinned() {
        apart_with_affinity(|| {
            for cpu in allowed_cpus().unwrap() {
                pin_to_cpu(cpu).unwrap();
                assert_eq!(current_cpu(), cpu);
                assert_eq!(allowed_cpus().unwrap(), [cpu]);
            }
        });
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error_with_the_remedy() {
        apart(|| {
            for cpu in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
                let e = pin_to_cpu(cpu).unwrap_err();
                assert_eq!(e.code, Code::Cpu);
                assert!(e.fix.contains("Cpus_allowed_list"), "{e}");
                assert!(e.why.contains("this machine has"), "{e}");
            }
        });
    }

    #[test]
    fn cpus_are_tried_and_the_calling_thread_stays_where_it_is() {
        apart_with_affinity(|| {
            let before = allowed_cpus().unwrap();
            try_cpus(&[]).unwrap();
            try_cpus(&before).unwrap();
            let e = try_cpus(&[before[0], 100_000]).unwrap_err();
            assert!(e.code == Code::Cpu && e.what.ends_with("CPU 100000"), "{e}");
            assert_eq!(allowed_cpus().unwrap(), before);
        });
    }

    #[test]
    fn cpus_that_exist_are_kept_of_several() {
        apart_with_affinity(|| {
            let before = allowed_cpus().unwrap();
            run_on(&[before[0], CpuSet::MAX_CPU - 1]).unwrap();
            assert_eq!(allowed_cpus().unwrap(), before[..1]);
            assert_eq!(run_on(&[]).unwrap_err().code, Code::Cpu);
            run_on(&before).unwrap();
            assert_eq!(allowed_cpus().unwrap(), before);
        });
    }

    #[test]
    fn another_thread_is_moved_and_one_that_is_not_there_is_not() {
        apart_with_affinity(another_thread_is_moved);
    }

    fn another_thread_is_moved() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(id()).unwrap();
            let _ = ended.recv();
            current_cpu()
        });
        let (thread_id, all) = (told.recv().unwrap(), allowed_cpus().unwrap());
        let last = all[all.len() - 1];
        run_thread_on(thread_id, &[last]).unwrap();
        assert_eq!(
            (allowed_cpus_of(thread_id).unwrap(), allowed_cpus().unwrap()),
            (vec![last], all)
        );
        assert_eq!(run_thread_on(thread_id, &[4000]).unwrap_err().code, Code::Cpu);
        drop(end);
        assert_eq!(thread.join().unwrap(), last);
        // One that the kernel has bound to its CPU.
        let comm = |id: &i32| std::fs::read_to_string(format!("/proc/{id}/comm"));
        let bound = (1..100).find(|id| comm(id).is_ok_and(|comm| comm == "ksoftirqd/0\n"));
        if let Some(e) = bound.map(|id| run_thread_on(id, &[last]).unwrap_err()) {
            assert!(e.code == Code::Cpu && e.fix.starts_with("taskset -cp "), "{e}");
        }
        for gone in [0, -1, i32::MAX] {
            assert_eq!(run_thread_on(gone, &[last]).unwrap_err().code, Code::System);
        }
    }

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        let listed = |list: &str| (0..9).filter(|n| is_listed(list, *n)).collect::<Vec<_>>();
        assert_eq!(listed("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!((listed("5"), listed(""), listed("2-x")), (vec![5], vec![], vec![]));
        assert_eq!(super::listed("0-2,7\n"), [0, 1, 2, 7]);
        assert_eq!(super::listed("0-18446744073709551615").len(), 1 << 16);
        assert_eq!(super::listed("7,65536,8"), [7]);
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        apart(|| {
            let comm = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            set_name("worker-12345678é");
            assert_eq!(comm(), "worker-12345678\n");
            set_name("worker-1234567é");
            assert_eq!(comm(), "worker-1234567\n");
        });
    }

    #[test]
    fn the_timer_slack_is_what_was_set() {
        apart(|| {
            set_timer_slack_ns(NonZeroU64::MIN).unwrap();
            assert_eq!(rustix::thread::current_timer_slack(), Ok(1));
        });
    }

    #[test]
    fn a_kernel_that_keeps_no_account_of_delays_has_none_and_not_zero() {
        assert_eq!(times_of("0 0 0\n"), None);
        assert_eq!(times_of("51233 0 1\n"), Some([51_233, 0, 1]));
        assert_eq!(times_of("51233 907 2\n"), Some([51_233, 907, 2]));
        for bad in ["", "51233 907", "51233 x 2", "-1 907 2"] {
            assert_eq!(times_of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_run_delay_does_not_go_backwards() {
        apart(|| {
            let Some(before) = unless(run_delay_ns(), keeps_no_account) else { return };
            std::thread::yield_now();
            assert!(run_delay_ns().unwrap() >= before);
        });
    }
}
