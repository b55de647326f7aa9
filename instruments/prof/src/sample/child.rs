//! The program that was started to be sampled: whether it still runs, and what CPU time it had.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use super::threads;

/// The program that was started to be sampled. It lives on when this is dropped.
#[derive(Debug)]
pub(super) struct Started {
    child: Child,
    /// Tells of its end at once. A kernel, or a container, may refuse it; then we look now and then.
    descriptor: Option<OwnedFd>,
    /// As /proc said before it was reaped.
    cpu_ns: Option<u64>,
}

impl Started {
    pub(super) fn new(child: Child) -> Started {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let descriptor = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Started { child, descriptor, cpu_ns: None }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// How it ended, if it has. What CPU time it had is known only until it is reaped.
    ///
    /// # Errors
    /// As wait says: somebody else may have reaped it.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid
            && let Ok(None) = waitid(WaitId::Pid(pid), look)
        {
            return Ok(None);
        }
        self.look_at_cpu_time();
        self.child.try_wait()
    }

    /// Brings [`Started::cpu_ns`] up to date, while it runs.
    pub(super) fn look_at_cpu_time(&mut self) {
        self.cpu_ns = cpu_ns(self.id()).or(self.cpu_ns);
    }

    /// CPU time that it had with those of its children that it has waited for, when last looked at.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        self.cpu_ns
    }

    /// The child, and what still tells of its end.
    pub(super) fn into_parts(self) -> (Child, Option<OwnedFd>) {
        (self.child, self.descriptor)
    }
}

/// What is far more than the events counted: the program had twice their time, and ten of the
/// kernel's units of 10 ms more. A program whose rights are not its caller's is the usual reason.
pub(super) fn out_of_sight(had_ns: u64, counted_ns: u64) -> Option<String> {
    const LEAST_NS: u64 = 100_000_000;
    let missing_ns = had_ns.checked_sub(counted_ns).filter(|&ns| ns >= LEAST_NS)?;
    (missing_ns > counted_ns).then(|| {
        format!(
            "the program had {:.2} s of CPU time, of which {:.2} s were sampled: most likely it \
             ran a set-user-ID program, at which the kernel ends the sampling; as root it does not",
            had_ns as f64 / 1e9,
            counted_ns as f64 / 1e9
        )
    })
}

fn cpu_ns(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("{}/stat", threads::directory(pid).ok()?)).ok()?;
    let ticks_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    Some(ticks(&stat)?.saturating_mul(ticks_ns))
}

/// utime, stime, cutime and cstime: fields 14 to 17 of proc_pid_stat(5), in which the second is a
/// name of any characters in parentheses.
fn ticks(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    (0..4).try_fold(0u64, |sum, _| Some(sum.saturating_add(fields.next()?.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_is_found_behind_any_name() {
        let stat = b"7 (a) b) R 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1 0";
        assert_eq!(ticks(stat), Some(127));
        for broken in [&b""[..], b"7 a R 1", b"7 (a) R 1 2 3 4 5 6 7 8 9 10 100 20 3", b"7 (a)"] {
            assert_eq!(ticks(broken), None);
        }
    }

    #[test]
    fn a_child_without_a_descriptor_is_seen_to_end_and_its_cpu_time_is_kept() {
        let child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let mut started = Started { child, descriptor: None, cpu_ns: None };
        let status = loop {
            if let Some(status) = started.ended().unwrap() {
                break status;
            }
            std::thread::yield_now();
        };
        assert_eq!(status.code(), Some(3));
        assert_eq!(started.cpu_ns().is_some(), threads::proc_is_ours());
    }

    #[test]
    fn cpu_time_that_nobody_counted_is_told_if_it_is_most_of_it() {
        let second = 1_000_000_000;
        let said = out_of_sight(2 * second, second / 10).unwrap();
        assert!(said.starts_with("the program had 2.00 s of CPU time, of which 0.10 s"), "{said}");
        assert!(said.contains("set-user-ID"), "{said}");
        for (had, counted) in [(second, second), (second, 2 * second), (9 * second / 5, second)] {
            assert_eq!(out_of_sight(had, counted), None);
        }
        // Of so little the kernel's units are as much.
        assert_eq!(out_of_sight(second / 20, 0), None);
    }
}
