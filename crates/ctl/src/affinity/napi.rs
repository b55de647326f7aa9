//! The threads of an interface's NAPI: found by netdev-genl, or by their names.

use std::fs;
use std::path::Path;

use linerate_sys::netif::Interface;
use linerate_sys::rtnl::Napi;

/// Returns the ids of an interface's NAPI threads in the order of its queues, as the kernel reports
/// them; if it does not report them, the threads with the interface's name, in any network
/// namespace. Threads that only transmit are left out.
pub(super) fn threads(interface: &Interface) -> Vec<i32> {
    let named = || named(Path::new("/proc"), &interface.name().to_string());
    reported(interface).unwrap_or_else(|| receiving(named()))
}

/// Returns the NAPI threads that the kernel reports for an interface, since Linux 6.8. It reports
/// none that only transmits, or reports it without an id, which [`Napi::of`] leaves out.
///
/// Source: net/core/netdev-genl.c, `netdev_nl_napi_dump_one`.
pub(super) fn reported(interface: &Interface) -> Option<Vec<i32>> {
    let all = Napi::of(interface).ok().flatten()?;
    let threads: Vec<i32> = all.iter().filter_map(|napi| napi.thread).collect();
    let named = named(Path::new("/proc"), &interface.name().to_string());
    // In another PID namespace, the kernel's numbers belong to other processes.
    let is_named = |thread: &i32| named.iter().any(|(other, _)| other == thread);
    threads.iter().all(is_named).then_some(threads)
}

/// Returns the threads with an interface's name that receive, if they can only be its own: as many
/// as it has queues. A thread of another network namespace's interface of that name is one too
/// many.
pub(super) fn own_of(named: Vec<(i32, Option<u32>)>, queues: usize) -> Option<Vec<i32>> {
    let threads = receiving(named);
    (threads.len() == queues).then_some(threads)
}

/// Returns the threads that receive. Nothing tells the queue of one that only transmits: its id
/// is 0, and the kernel starts threads in ascending or in descending order of the queues.
///
/// Source: net/core/dev.c, `napi_hash_add`, `dev_set_threaded`, `netif_napi_add`.
fn receiving(named: Vec<(i32, Option<u32>)>) -> Vec<i32> {
    let receives = named.into_iter().filter(|(_, id)| *id != Some(0));
    receives.map(|(thread, _)| thread).collect()
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
        // The ids of longer names are cut off.
        assert_eq!(own_of(vec![(7, None), (8, None)], 2), Some(vec![7, 8]));
        assert_eq!(own_of(vec![(7, None), (8, None)], 1), None);
    }

    #[test]
    fn threads_that_only_transmit_do_not_shift_the_queues_of_those_that_receive() {
        let proc = linerate_testing::Scratch::new();
        for (thread, id) in [(70, 0), (71, 0), (72, 900), (73, 901)] {
            proc.file(&format!("{thread}/comm"), &format!("napi/eth0-{id}\n"));
        }
        assert_eq!(own_of(named(&proc.0, "eth0"), 2), Some(vec![72, 73]));
        assert_eq!(receiving(named(&proc.0, "eth0")), [72, 73]);
    }
}
