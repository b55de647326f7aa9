//! Which threads a process has, and which CPUs there are for them.

use std::collections::BTreeSet;
use std::fs;

use linerate_sys::{Code, Error, Result};

/// The threads of a process at this moment.
///
/// # Errors
/// `E-SYSTEM` if there is no such process.
pub(super) fn of_process(pid: u32) -> Result<BTreeSet<u32>> {
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
