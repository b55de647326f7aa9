//! The threads of this process, and the CPUs that they may run on.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use linerate_sys::{Code, Error, Result};

/// Returns the numbers of this process's threads at this moment.
///
/// # Errors
/// `E-UNSUPPORTED` if /proc is missing or of another PID namespace, where our threads have other
/// numbers.
pub(super) fn own() -> Result<BTreeSet<u32>> {
    let own = std::process::id();
    let refused = || {
        let why = "/proc is missing or of another PID namespace, where threads have other numbers";
        Error::new(Code::Unsupported, "cannot sample this process", why).fix(
            "mount -t proc proc /proc, in a mount namespace of one's own: unshare --mount-proc",
        )
    };
    let name = fs::read_link("/proc/self").map_err(|_| refused())?;
    if name != Path::new(&own.to_string()) {
        return Err(refused());
    }
    let entries = fs::read_dir("/proc/self/task").map_err(|_| refused())?;
    // An entry that cannot be read is of a thread that is just ending.
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(number).collect())
}

/// Returns the CPUs on line.
///
/// # Errors
/// `E-SYSTEM` if the kernel does not say.
pub(super) fn cpus_on_line() -> Result<Vec<usize>> {
    const PATH: &str = "/sys/devices/system/cpu/online";
    let unclear = |why: String| Error::new(Code::System, "cannot tell which CPUs there are", why);
    let text = fs::read_to_string(PATH).map_err(|e| unclear(format!("{PATH}: {e}")))?;
    list(&text).ok_or_else(|| unclear(format!("{PATH} holds {text:?}")))
}

/// Reads a list as in `0-3,8`.
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
    fn this_thread_is_one_of_this_process() {
        let this = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        assert!(own().unwrap().contains(&this));
    }
}
