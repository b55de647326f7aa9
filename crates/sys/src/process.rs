//! Child programs: their CPU time, and their termination together with this process.
//!
//! Source: getrusage(2), prctl(2) `PR_SET_PDEATHSIG`.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Returns the CPU time, in nanoseconds, of all descendants that have ended and were waited for.
#[must_use]
pub fn children_cpu_ns() -> u64 {
    // SAFETY: rusage consists of numbers, for which all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a local variable of the size that the call expects. The call fails only
    // for an unknown `who`, and then leaves the zeroes.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let ns = |time: libc::timeval| {
        let part = |n| u64::try_from(n).unwrap_or(0);
        part(time.tv_sec).saturating_mul(1_000_000_000) + part(time.tv_usec).saturating_mul(1000)
    };
    ns(usage.ru_utime).saturating_add(ns(usage.ru_stime))
}

/// Makes the kernel kill the program when the *thread* that starts it ends: at the latest when this
/// process ends, for any reason.
///
/// A program whose rights are not its caller's (set-user-ID) is not killed.
pub fn end_with_this_thread(command: &mut Command) -> &mut Command {
    let parent = getpid();
    let bind = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent has ended before this call, the kernel sends no signal.
        match getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::Error::from(rustix::io::Errno::SRCH)),
        }
    };
    // SAFETY: the closure runs in the child between fork and exec: it makes two system calls, and
    // neither allocates nor takes a lock.
    unsafe { command.pre_exec(bind) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Stdio;

    #[test]
    fn a_child_is_killed_when_the_thread_ends_that_started_it() {
        let child = std::thread::spawn(|| {
            let mut sleep = Command::new("sleep");
            end_with_this_thread(sleep.arg("600").stdout(Stdio::piped())).spawn().unwrap()
        });
        let mut child = child.join().unwrap();
        // Its end of the pipe is closed nowhere else.
        let mut said = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }

    #[test]
    fn the_cpu_time_of_a_child_is_known_once_it_was_waited_for() {
        let before = children_cpu_ns();
        let count = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", count]).status().unwrap().success());
        let took_ns = children_cpu_ns() - before;
        assert!(took_ns > 10_000_000, "{took_ns} ns for 200,000 turns of a shell");
    }
}
