//! The kernel's statistics of one thread: time on a CPU, time ready without one, preemptions.
//!
//! Time on a CPU is the thread's clock and not the first number of schedstat: that one is brought
//! up to date by the timer's tick, and a window of 10 ms would be wrong by up to 4. The run delay
//! is added when the thread is put on a CPU again, so it is exact for a thread that reads its own.
//!
//! Source: clock_gettime(2), getrusage(2), Documentation/scheduler/sched-stats.rst,
//! `proc_pid_schedstat` in fs/proc/base.c.

use std::fs::File;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;

use super::times_of;
use crate::clock::thread_cpu_ns;
use crate::error::{Code, Error, Result};

const PATH: &str = "/proc/thread-self/schedstat";
/// Text of the file where the kernel's account is switched off.
const NO_ACCOUNT: &str = "0 0 0\n";
const WHAT: &str = "cannot read what the kernel accounts to this thread";
/// Three numbers of 20 digits, two spaces and a newline.
const SCHEDSTAT_BYTES_MAX: usize = 64;

/// Open files with the calling thread's statistics. Only that thread can use the value.
#[derive(Debug)]
pub struct Account {
    schedstat: File,
    _of_one_thread: PhantomData<*const ()>,
}

/// The kernel's statistics of a thread since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accounted {
    /// Time on a CPU, in nanoseconds.
    pub cpu_ns: u64,
    /// Time ready but without a CPU, in nanoseconds.
    pub run_delay_ns: u64,
    /// Number of times that the thread was given a CPU.
    pub runs: u64,
    /// Number of times that the thread was preempted.
    pub preemptions: u64,
}

impl Account {
    /// Opens the calling thread's statistics.
    ///
    /// # Errors
    /// `E-FILE` without /proc, and from a kernel built without `CONFIG_SCHED_INFO`; `E-UNSUPPORTED`
    /// where its account is switched off.
    pub fn of_this_thread() -> Result<Account> {
        let account = Account::open()?;
        account.run_delay_ns()?;
        Ok(account)
    }

    pub(super) fn open() -> Result<Account> {
        let schedstat =
            File::open(PATH).map_err(|e| Error::new(Code::File, WHAT, format!("{PATH}: {e}")))?;
        Ok(Account { schedstat, _of_one_thread: PhantomData })
    }

    /// Reads all statistics. Cost: three system calls, about 1 µs.
    ///
    /// # Errors
    /// `E-FILE` if it cannot be read any more.
    pub fn read(&self) -> Result<Accounted> {
        let [_, run_delay_ns, runs] = self.times()?;
        Ok(Accounted { cpu_ns: thread_cpu_ns(), run_delay_ns, runs, preemptions: preemptions() })
    }

    /// Returns how long the thread was ready but had no CPU. Cost: one read(2) of 64 bytes.
    ///
    /// # Errors
    /// As [`Account::read`].
    pub fn run_delay_ns(&self) -> Result<u64> {
        self.times().map(|[_, run_delay_ns, _]| run_delay_ns)
    }

    /// Returns the time on a CPU, the time ready but without one, and how often it got one.
    fn times(&self) -> Result<[u64; 3]> {
        let mut bytes = [0; SCHEDSTAT_BYTES_MAX];
        let read = self.schedstat.read_at(&mut bytes, 0);
        let len = read.map_err(|e| Error::new(Code::File, WHAT, format!("{PATH}: {e}")))?;
        // read(2) never returns more than the buffer's length.
        let text = std::str::from_utf8(&bytes[..len]).unwrap_or("");
        let Some(times) = times_of(text) else {
            let why = format!("{PATH} holds {text:?}: the kernel keeps no account of it");
            return Err(
                Error::new(Code::Unsupported, WHAT, why).fix("a kernel with CONFIG_SCHED_INFO")
            );
        };
        Ok(times)
    }
}

/// Returns true if `e` says that the kernel keeps no account of threads. Tests skip by it.
#[doc(hidden)]
#[must_use]
pub fn keeps_no_account(e: &Error) -> bool {
    let is_absent = e.code == Code::File && e.why.contains("No such file or directory");
    let is_off = e.why.starts_with(&format!("{PATH} holds {NO_ACCOUNT:?}: "));
    is_absent || (e.code == Code::Unsupported && is_off)
}

/// Returns the number of times that the calling thread was preempted.
#[must_use]
pub fn preemptions() -> u64 {
    // SAFETY: rusage consists of numbers, for which all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a local variable of the size that the call expects. The call fails only
    // for an unknown `who`, and then leaves the zeroes.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::unless;
    use std::time::{Duration, Instant};

    /// Returns the thread's account; `None`, with a message, if the kernel keeps none.
    fn account() -> Option<Account> {
        unless(Account::of_this_thread(), keeps_no_account)
    }

    #[test]
    fn a_thread_that_sleeps_takes_no_cpu_and_one_that_spins_does() {
        let Some(account) = account() else { return };
        let before = account.read().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        let slept = account.read().unwrap();
        while thread_cpu_ns() < slept.cpu_ns + 20_000_000 {
            std::hint::spin_loop();
        }
        let spun = account.read().unwrap();
        assert!(slept.cpu_ns - before.cpu_ns < 20_000_000, "{before:?} {slept:?}");
        assert!(spun.cpu_ns - slept.cpu_ns >= 20_000_000, "{slept:?} {spun:?}");
    }

    #[test]
    fn two_threads_on_one_cpu_wait_for_each_other_and_the_account_says_how_long() {
        let cpu = super::super::allowed_cpus().unwrap()[0];
        let spin = move || {
            unless(super::super::pin_to_cpu(cpu), super::super::is_filtered)?;
            let account = account()?;
            let (before, start) = (account.read().unwrap(), Instant::now());
            while thread_cpu_ns() < before.cpu_ns + 60_000_000 {
                std::hint::spin_loop();
            }
            let (after, wall) = (account.read().unwrap(), start.elapsed());
            Some((before, after, wall))
        };
        let both = [std::thread::spawn(spin), std::thread::spawn(spin)];
        let both = both.map(|thread| thread.join().unwrap());
        let [Some(one), Some(two)] = both else { return };
        // One of them, at the least, ran beside the other.
        let delay = |(before, after, _): (Accounted, Accounted, Duration)| {
            after.run_delay_ns - before.run_delay_ns
        };
        assert!(delay(one) + delay(two) > 20_000_000, "{one:?} {two:?}");
        let preempted = |(before, after, _): (Accounted, Accounted, Duration)| {
            after.preemptions - before.preemptions
        };
        assert!(preempted(one) + preempted(two) > 0, "{one:?} {two:?}");
    }
}
