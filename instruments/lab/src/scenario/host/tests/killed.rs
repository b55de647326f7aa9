//! Tests that the kernel removes everything after a lab was killed with SIGKILL in the middle of a
//! window.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use linerate_sys::process::end_with_this_thread;

use super::*;
use crate::scenario::pause::look_until;

/// Environment variable that marks the child and its descendants, with the workload and the
/// parent's id.
const MARK: &str = "LINERATE_TEST_KILLED";
const WORKER: &str = "host-worker-0";
/// For each workload, the name of a thread in each of the three namespaces.
const INSIDE: [(&str, [&str; 3]); 2] =
    [("stream", ["west-0", WORKER, "east-0"]), ("web", ["client-0-0", WORKER, "server-0"])];
/// Time limit, much longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_lab_that_is_killed_in_a_window_leaves_no_process_no_namespace_and_no_link() {
    if let Ok(mark) = std::env::var(MARK) {
        return live(mark.split_once(' ').unwrap().0);
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if unless(try_links(), is_missing_here).is_none() {
        return;
    }
    for (workload, inside) in INSIDE {
        kill_and_look(workload, &inside);
    }
}

fn kill_and_look(workload: &str, inside: &[&str]) {
    let links = || fs::read_to_string("/proc/self/net/dev").unwrap().lines().count();
    let before = (links(), named());
    let mark = format!("{MARK}={workload} {}", std::process::id());
    let mut child = start(&mark);
    let pid = child.id();
    assert!(look_until(PATIENCE, || carries(pid)), "{:?}", child.try_wait());
    assert_eq!(marked(&mark), [pid]);

    // An unnamed namespace shows only by its contents: this test holds the other end of a link into
    // it, and the link disappears when the last holder of the namespace ends.
    let outside = Netns::new().unwrap();
    for (number, name) in inside.iter().enumerate() {
        let inside = task(pid, name).unwrap().join("ns/net");
        let peer = format!("peer name left{number} netns {}", inside.display());
        outside.ip(&format!("link add dev seen{number} type veth {peer}")).unwrap();
    }
    let seen = || outside.ip("-o link").unwrap().matches(": seen").count();
    assert_eq!(seen(), inside.len());

    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    // The child can be reaped only after its last thread has ended.
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(look_until(PATIENCE, || marked(&mark).is_empty()), "{:?}", marked(&mark));
    assert!(look_until(PATIENCE, || seen() == 0), "{} namespaces are still there", seen());
    assert_eq!((links(), named()), before);
}

/// Runs the child: one window, during which it is killed.
fn live(workload: &str) {
    if let Some((_alone, mut bench)) = open(&settings(&[("workload", workload)])) {
        bench.window(3 * PATIENCE).unwrap();
    }
}

/// Starts this test again, as the child.
fn start(mark: &str) -> Child {
    let module = module_path!().split_once("::").unwrap().1;
    let test = format!(
        "{module}::a_lab_that_is_killed_in_a_window_leaves_no_process_no_namespace_and_no_link"
    );
    let (name, value) = mark.split_once('=').unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &test]).env(name, value);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // The child also ends if this test fails.
    end_with_this_thread(&mut command).spawn().unwrap()
}

/// Returns true if the worker has carried more packets than the opening of a connection needs, so
/// that its window has begun.
fn carries(pid: u32) -> bool {
    let Some(worker) = task(pid, WORKER) else { return false };
    let dev = fs::read_to_string(worker.join("net/dev")).unwrap_or_default();
    let line = dev.lines().find_map(|line| line.trim().strip_prefix("w0:"));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    bytes.is_some_and(|bytes| bytes > 1 << 20)
}

/// Finds a thread of a process by its name.
fn task(pid: u32, name: &str) -> Option<PathBuf> {
    let mut tasks =
        fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().map(|task| task.path());
    let named = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    tasks.find(named)
}

/// Returns the processes with `mark` in their environment.
fn marked(mark: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_it = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    pids.filter(has_it).collect()
}
