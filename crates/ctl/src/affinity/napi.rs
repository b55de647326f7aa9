//! The threads of an interface's NAPI: found by netdev-genl, or by their names.

use std::fs;
use std::path::Path;

use linerate_sys::netif::Interface;
use linerate_sys::rtnl::Napi;

/// Returns the ids of an interface's NAPI threads in the order of its queues, as the kernel reports
/// them; if it does not report them, the threads with the interface's name, in any network
/// namespace.
pub(super) fn threads(interface: &Interface) -> Vec<i32> {
    reported(interface).unwrap_or_else(|| all_named(interface))
}

/// Returns the NAPI threads that the kernel reports for an interface, since Linux 6.8.
pub(super) fn reported(interface: &Interface) -> Option<Vec<i32>> {
    let all = Napi::of(interface).ok().flatten()?;
    let threads: Vec<i32> = all.iter().filter_map(|napi| napi.thread).collect();
    let named = all_named(interface);
    // In another PID namespace, the kernel's numbers belong to other processes.
    threads.iter().all(|thread| named.contains(thread)).then_some(threads)
}

fn all_named(interface: &Interface) -> Vec<i32> {
    let named = named(Path::new("/proc"), &interface.name().to_string());
    named.into_iter().map(|(thread, _)| thread).collect()
}

/// Returns the threads with an interface's name if they can only be its own: as many of them
/// receive as it has queues. A thread of another network namespace's interface of that name is one
/// too many.
///
/// Source: net/core/dev.c, `napi_hash_add`: an instance that only transmits has the id 0.
pub(super) fn own_of(named: Vec<(i32, Option<u32>)>, queues: usize) -> Option<Vec<i32>> {
    let receive = named.iter().filter(|(_, id)| *id != Some(0)).count();
    (receive == queues).then(|| named.into_iter().map(|(thread, _)| thread).collect())
}

/// Returns the kernel's NAPI threads for interfaces of that name with NAPI's ids, in the order of
/// the ids. An id is `None` if the kernel has cut it off.
pub(super) fn named(proc: &Path, interface: &str) -> Vec<(i32, Option<u32>)> {
    let prefix = format!("napi/{interface}-");
    let thread = |(thread, name): (i32, String)| {
        let id = name.strip_prefix(&prefix).unwrap_or_default();
        // More than an id: an interface such as eth0-x.
        let is_id = id.chars().all(|c| c.is_ascii_digit());
        is_id.then(|| (thread, id.parse().ok()))
    };
    let mut all: Vec<_> = processes(proc, &prefix).into_iter().filter_map(thread).collect();
    all.sort_unstable_by_key(|(thread, id)| (*id, *thread));
    all
}

/// Returns the processes whose names begin with `name`, with their names.
pub(super) fn processes(proc: &Path, name: &str) -> Vec<(i32, String)> {
    // Kernels before 5.17 cut longer names.
    let cut = name.get(..15).unwrap_or(name);
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let process = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
        let comm = comm.trim_end();
        let is_it = comm.starts_with(name) || (comm == cut && cut.len() < name.len());
        is_it.then(|| (number, comm.to_owned()))
    };
    let mut all: Vec<(i32, String)> = entries.filter_map(process).collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_an_interface_are_known_by_name_only_if_no_other_has_them() {
        let proc = linerate_testing::Scratch::new();
        // Neither those of eth01 nor those of eth0-x and eth0-1 belong to eth0.
        for (thread, name) in
            [(70, "0-12"), (71, "0-9"), (72, "0-10"), (73, "01-8"), (74, "0-x-7"), (75, "0-1-6")]
        {
            proc.file(&format!("{thread}/comm"), &format!("napi/eth{name}\n"));
        }
        let threads = named(&proc.0, "eth0");
        assert_eq!(threads, [(71, Some(9)), (72, Some(10)), (70, Some(12))]);
        assert_eq!(own_of(threads.clone(), 3), Some(vec![71, 72, 70]));
        for queues in [0, 1, 2, 4] {
            assert_eq!(own_of(threads.clone(), queues), None, "{queues}");
        }
        // One thread that receives and one that transmits.
        assert_eq!(own_of(vec![(7, Some(0)), (8, Some(900))], 1), Some(vec![7, 8]));
        // The ids of longer names are cut off.
        assert_eq!(own_of(vec![(7, None), (8, None)], 2), Some(vec![7, 8]));
        assert_eq!(own_of(vec![(7, None), (8, None)], 1), None);
    }
}
