//! The threads of a side, and those of the kernel for its devices, as /proc lists them.

use std::fs::{self, DirEntry};

use linerate_sys::thread::allowed_cpus_of;

/// Returns true if a thread of that name belongs to a side.
pub(super) fn ours(name: &str) -> bool {
    ["host-worker", "west-", "east-", "client-", "server-", "probe-"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Returns the names of the threads of this process.
pub(super) fn names() -> Vec<String> {
    tasks("comm").into_iter().map(|name| name.trim().to_owned()).collect()
}

/// Returns the voluntary and involuntary context switches of each thread of a side.
pub(super) fn running() -> Vec<String> {
    let status = tasks("status").into_iter().filter(|status| {
        status.lines().next().and_then(|line| line.strip_prefix("Name:\t")).is_some_and(ours)
    });
    status
        .map(|status| {
            let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
            switches.map(|line| format!("{line} ")).collect()
        })
        .collect()
}

/// Returns the ids of the threads of this process with that name.
pub(super) fn numbered(name: &str) -> Vec<i32> {
    listed("/proc/self/task", |comm| comm == name)
}

/// Returns the ids of NAPI's threads of interfaces of that name, in all network namespaces.
pub(super) fn napi(interface: &str) -> Vec<i32> {
    let prefix = format!("napi/{interface}-");
    listed("/proc", |comm| comm.starts_with(&prefix))
}

/// Returns the allowed CPUs of each of these threads; one that has ended is left out.
pub(super) fn cpus_of(threads: &[i32]) -> Vec<Vec<usize>> {
    threads.iter().filter_map(|thread| allowed_cpus_of(*thread).ok()).collect()
}

/// Returns the threads or processes in a folder of /proc whose names are wanted.
fn listed(folder: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<i32> {
    let has_name = |entry: &DirEntry| {
        fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| is_wanted(comm.trim_end()))
    };
    let entries = fs::read_dir(folder).unwrap().flatten().filter(has_name);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn tasks(file: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter_map(|task| fs::read_to_string(task.path().join(file)).ok()).collect()
}
