//! Which threads a process has, where /proc tells of it, and which CPUs there are for them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use linerate_sys::{Code, Error, Result};

/// The directory of /proc that is of the process; of our own also if /proc counts otherwise than
/// we do.
///
/// # Errors
/// [`FOREIGN`] of another one, as its number is somebody else's there.
pub(super) fn directory(pid: u32) -> io::Result<String> {
    if pid == std::process::id() {
        Ok("/proc/self".to_owned())
    } else if proc_is_ours() {
        Ok(format!("/proc/{pid}"))
    } else {
        Err(io::Error::other(FOREIGN))
    }
}

/// Whether /proc has the numbers of our PID namespace. In a namespace of its own a process sees the
/// /proc of its parent's until one is mounted.
pub(super) fn proc_is_ours() -> bool {
    let own = std::process::id().to_string();
    fs::read_link("/proc/self").is_ok_and(|name| name == Path::new(&own))
}

/// The threads of a process at this moment.
///
/// # Errors
/// `E-SYSTEM` if there is no such process, `E-UNSUPPORTED` if /proc is of another PID namespace:
/// also our own threads have other numbers there.
pub(super) fn of_process(pid: u32) -> Result<BTreeSet<u32>> {
    if !proc_is_ours() {
        let what = format!("cannot sample process {pid}");
        return Err(Error::new(Code::Unsupported, what, FOREIGN).fix(
            "mount -t proc proc /proc, in a mount namespace of one's own: unshare --mount-proc",
        ));
    }
    let path = format!("/proc/{pid}/task");
    let gone = |e: std::io::Error| no_such_process(pid, &format!("{path}: {e}"));
    let mut threads = BTreeSet::new();
    for entry in fs::read_dir(&path).map_err(gone)? {
        // An entry that cannot be read is of a process that is just ending.
        let Ok(entry) = entry else { continue };
        threads.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(threads)
}

pub(super) fn no_such_process(pid: u32, why: &str) -> Error {
    let what = format!("cannot sample process {pid}");
    Error::new(Code::System, what, format!("there is none: {why}"))
        .fix("pgrep -a NAME shows the processes of that name")
}

/// CPUs on line.
///
/// # Errors
/// `E-SYSTEM` if the kernel does not say.
pub(super) fn cpus_on_line() -> Result<Vec<usize>> {
    const PATH: &str = "/sys/devices/system/cpu/online";
    let unclear = |why: String| Error::new(Code::System, "cannot tell which CPUs there are", why);
    let text = fs::read_to_string(PATH).map_err(|e| unclear(format!("{PATH}: {e}")))?;
    list(&text).ok_or_else(|| unclear(format!("{PATH} holds {text:?}")))
}

/// A list as in `0-3,8`.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= CPUS_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    (!numbers.is_empty()).then_some(numbers)
}

/// Why a number means nothing there.
pub(super) const FOREIGN: &str =
    "/proc is missing or of another PID namespace, where processes have other numbers";
/// The kernel can be built for 8,192 CPUs at most (CONFIG_NR_CPUS).
const CPUS_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(list("0-1\n"), Some(vec![0, 1]));
        assert_eq!(list("0,2-4"), Some(vec![0, 2, 3, 4]));
        for broken in ["", "\n", "a", "0-", "0-99999999999"] {
            assert_eq!(list(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_process_is_looked_up_by_its_number_and_this_one_by_none() {
        assert_eq!(directory(std::process::id()).unwrap(), "/proc/self");
        match directory(1) {
            Ok(path) => assert!(proc_is_ours() && path == "/proc/1", "{path}"),
            Err(e) => assert!(!proc_is_ours() && e.to_string() == FOREIGN, "{e}"),
        }
    }

    #[test]
    fn this_thread_is_one_of_this_process() {
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        assert!(of_process(std::process::id()).unwrap().contains(&own));
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error_with_its_remedy() {
        let e = of_process(1 << 30).unwrap_err();
        assert_eq!(e.code, Code::System);
        assert!(e.fix.contains("pgrep"), "{e}");
    }
}
