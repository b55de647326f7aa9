//! CPU time of ksoftirqd, the kernel's thread that takes a CPU's soft interrupts when they are
//! many.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Returns the CPU time of ksoftirqd by CPU. Those of which this process sees no file are left out,
/// as all are in a PID namespace.
///
/// Cost: reads a file for each CPU; the first call, one for each process.
pub(super) fn times_ns() -> BTreeMap<usize, u64> {
    static FOUND: OnceLock<Vec<(usize, PathBuf)>> = OnceLock::new();
    let found = FOUND.get_or_init(|| find(Path::new("/proc")));
    found.iter().filter_map(|(cpu, at)| Some((*cpu, cpu_ns(at)?))).collect()
}

/// Returns the folder of each CPU's ksoftirqd.
fn find(proc: &Path) -> Vec<(usize, PathBuf)> {
    let of = |entry: DirEntry| {
        let at = entry.path();
        let name = fs::read_to_string(at.join("comm")).ok()?;
        let cpu = name.trim_end().strip_prefix("ksoftirqd/")?.parse().ok()?;
        // A program may take this name, but it has a command line.
        fs::read(at.join("cmdline")).ok()?.is_empty().then_some((cpu, at))
    };
    fs::read_dir(proc).into_iter().flatten().flatten().filter_map(of).collect()
}

/// Source: Documentation/scheduler/sched-stats.rst.
fn cpu_ns(at: &Path) -> Option<u64> {
    let text = fs::read_to_string(at.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_thread_of_a_cpu_is_found_and_a_program_of_its_name_is_not() {
        let proc = linerate_testing::Scratch::new();
        for (id, name, line) in
            [("14", "ksoftirqd/3", ""), ("15", "ksoftirqd/4", "ksoftirqd/4\0"), ("16", "sh", "")]
        {
            proc.file(&format!("{id}/comm"), &format!("{name}\n"));
            proc.file(&format!("{id}/cmdline"), line);
            proc.file(&format!("{id}/schedstat"), "1700 20 3\n");
        }
        let found = find(&proc.0);
        assert_eq!(found, [(3, proc.0.join("14"))]);
        assert_eq!(cpu_ns(&found[0].1), Some(1700));
    }
}
