//! The CPU time of a side in user space and in the kernel: of its workers, of the hosts' programs,
//! and of soft interrupts.
//!
//! ```text
//!  workers   user    looking for packets and moving them       system  device, and IP and TCP of the host that a packet goes to
//!  programs  user    the application                           system  its sockets: IP and TCP, the device to the engine
//!  CPUs      softirq what the kernel does for neither, NAPI's threads and interrupts
//! ```
//!
//! The kernel tells it in ticks (proc(5): utime, stime), and divides a thread's time by what the
//! ticks met: of a single window it is rough.

use std::fs;
use std::path::Path;

use linerate_prof::proc::CpuTimes;

use crate::watch::tick_ns;

/// CPU times so far, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Split {
    /// User and system time of the workers; the next field has that of all other threads of this
    /// process and of its children.
    workers: [u64; 2],
    programs: [u64; 2],
    /// Hard and soft interrupts, of all CPUs.
    interrupts: u64,
    /// Nanoseconds in which the programs' threads were ready and had no CPU.
    delayed_ns: u64,
}

impl Split {
    /// Reads the CPU times so far; `workers` are the ids of the workers' threads.
    pub fn read(workers: &[i32]) -> Split {
        Split::read_at(Path::new("/proc"), workers)
    }

    fn read_at(proc: &Path, workers: &[i32]) -> Split {
        let mut split = Split::default();
        for thread in fs::read_dir(proc.join("self/task")).into_iter().flatten().flatten() {
            let name = thread.file_name();
            let is_worker = workers.iter().any(|worker| name == *worker.to_string());
            // Read the thread's own folder in task/: /proc/TID/stat has the time of the whole
            // process.
            if is_worker {
                add(&mut split.workers, &thread.path());
            } else {
                split.add_program(&thread.path());
            }
            // Add the senders' processes; a kernel without `children` files does not list them, and
            // they are left out.
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace();
            children.for_each(|id| split.add_program(&proc.join(id)));
        }
        let stat = fs::read_to_string(proc.join("stat")).unwrap_or_default();
        let all = stat.lines().find_map(|line| CpuTimes::parse(line.strip_prefix("cpu ")?));
        let interrupts = all.iter().flat_map(CpuTimes::fields);
        let interrupts = interrupts.filter(|(name, _)| ["irq", "softirq"].contains(name));
        split.interrupts = interrupts.map(|(_, ticks)| ticks).sum();
        split
    }

    /// Adds a thread or a process of the hosts' programs, by its folder in /proc.
    fn add_program(&mut self, of: &Path) {
        add(&mut self.programs, of);
        // The second number is the run delay. Source: Documentation/scheduler/sched-stats.rst.
        let text = fs::read_to_string(of.join("schedstat")).unwrap_or_default();
        let delay_ns = text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok());
        self.delayed_ns += delay_ns.unwrap_or(0);
    }

    /// Returns the figures of a window that began with `before`.
    pub fn since(&self, before: &Split) -> [(String, f64); 6] {
        let ns = |now: u64, then: u64| now.saturating_sub(then) as f64 * tick_ns() as f64;
        [
            ("workers_user_ns", ns(self.workers[0], before.workers[0])),
            ("workers_system_ns", ns(self.workers[1], before.workers[1])),
            ("programs_user_ns", ns(self.programs[0], before.programs[0])),
            ("programs_system_ns", ns(self.programs[1], before.programs[1])),
            ("interrupts_ns", ns(self.interrupts, before.interrupts)),
            ("programs_delay_ns", self.delayed_ns.saturating_sub(before.delayed_ns) as f64),
        ]
        .map(|(name, ns)| (name.to_owned(), ns))
    }
}

/// Adds the ticks of a thread or of a process, by its folder in /proc.
fn add(sum: &mut [u64; 2], of: &Path) {
    let stat = fs::read_to_string(of.join("stat")).unwrap_or_default();
    if let Some(ticks) = ticks(&stat) {
        sum.iter_mut().zip(ticks).for_each(|(sum, ticks)| *sum += ticks);
    }
}

/// Returns utime and stime of a line as the kernel prints it; the name in it may have spaces and
/// parentheses.
fn ticks(stat: &str) -> Option<[u64; 2]> {
    let mut fields = stat.rsplit_once(") ")?.1.split_whitespace().skip(11);
    Some([fields.next()?.parse().ok()?, fields.next()?.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use linerate_sys::clock::thread_cpu_ns;

    use super::*;

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "7 (a) R 1 (b) S 1 7 7 0 -1 4194560 1 0 0 0 12 34 5 6 20 0 1 0 99 1 2";
        assert_eq!(ticks(stat), Some([12, 34]));
        assert_eq!(
            (ticks(""), ticks("7 (a) S 1"), ticks("7 (a) S 1 1 1 1 1 1 1 1 1 1 x 2")),
            (None, None, None)
        );
    }

    /// Keeps the CPU busy until `done` returns true.
    fn work_until(mut done: impl FnMut() -> bool) {
        while !done() {
            std::hint::black_box((0..1_000_000).sum::<u64>());
        }
    }

    #[test]
    fn each_thread_and_each_child_is_in_one_share_only() {
        let proc = linerate_testing::Scratch::new();
        // Threads of a worker and of another program with a child, and the child: user and system
        // ticks.
        for (id, ticks) in [("11", "1 2"), ("12", "10 20"), ("30", "100 200")] {
            let stat = format!("{id} (x) R 1 7 7 0 -1 4194560 1 0 0 0 {ticks} 5 6 20 0 1 0 99");
            let folder = if id == "30" { "" } else { "self/task/" };
            proc.file(&format!("{folder}{id}/stat"), &stat);
        }
        proc.file("self/task/11/children", "");
        proc.file("self/task/12/children", "30 ");
        proc.file("stat", "cpu  1 2 3 4 5 6000 70000 8 9 10\n");
        let split = Split::read_at(&proc.0, &[11]);
        assert_eq!((split.workers, split.programs, split.interrupts), ([1, 2], [110, 220], 76_000));
        let ns = split.since(&Split::default()).map(|(_, ns)| ns / tick_ns() as f64);
        assert_eq!(ns, [1.0, 2.0, 110.0, 220.0, 76_000.0, 0.0]);
    }

    #[test]
    fn work_of_a_thread_is_met_by_the_kernels_ticks() {
        let me = linerate_sys::thread::id();
        let before = Split::read(&[me]);
        let mut now = before;
        // Wait until the kernel has accounted a tick, without a time limit.
        work_until(|| {
            now = Split::read(&[me]);
            now.workers != before.workers
        });
        let figures = now.since(&before);
        assert!(figures[0].1 + figures[1].1 >= tick_ns() as f64, "{figures:?}");
        // A worker that waits has none of the CPU time of another thread.
        let ticks = 10;
        let other = std::thread::spawn(move || {
            let before = thread_cpu_ns();
            work_until(|| thread_cpu_ns() - before > (ticks + 2) * tick_ns());
        });
        other.join().unwrap();
        let after = Split::read(&[me]);
        let of_me = after.workers.iter().sum::<u64>() - now.workers.iter().sum::<u64>();
        assert!(of_me < ticks / 2, "{of_me} ticks of a thread that waited");
        assert_eq!(Split::read(&[]).workers, [0, 0]);
    }
}
