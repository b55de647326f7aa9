//! Time on a CPU, as the kernel accounts for it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time that all threads of this process, ended ones included, have had a CPU.
#[must_use]
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn work_takes_cpu_time_and_sleep_does_not() {
        let before = cpu_time();
        std::thread::sleep(Duration::from_millis(50));
        // Other tests of this process may run meanwhile, so sleep is only bounded from above by
        // what two CPUs can do.
        let slept = cpu_time() - before;
        let end = Instant::now() + Duration::from_millis(50);
        let before = cpu_time();
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        assert!(cpu_time() - before > Duration::from_millis(5));
        assert!(slept < Duration::from_secs(1));
    }
}
