//! A cgroup for a setting.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Errors where cgroups, or this controller, are not mounted, or not for this process.
const REASONS: [ErrorKind; 3] =
    [ErrorKind::NotFound, ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem];

/// A cgroup, which is removed when this value is dropped.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup with `settings`: of version 1 with `controller`, or of version 2. Each
    /// setting is the file of version 1, the file of version 2 (none if empty) and the value.
    ///
    /// # Errors
    /// The reason to skip, if the machine has no such controller, or refuses it to this process.
    ///
    /// # Panics
    /// If it failed for any other reason.
    pub fn new(controller: &str, settings: &[(&str, &str, &str)]) -> Result<Cgroup, String> {
        let all = PathBuf::from("/sys/fs/cgroup");
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let first = all.join(controller);
        let is_first = first.is_dir();
        let parent = if is_first { first } else { all };
        let prefix = format!("linerate-{controller}-");
        remove_orphans(&parent, &prefix);
        let name = format!("{prefix}{}-{number}", std::process::id());
        let group = Cgroup(parent.join(name));
        let failed = |e: io::Error| {
            let is_reason = REASONS.contains(&e.kind());
            assert!(is_reason, "this is no reason to skip: a cgroup of {controller}: {e}");
            format!("no cgroup of {controller}: {e}")
        };
        // Numbers are used once: a cgroup of this name is of an earlier process with our id.
        let _ = fs::remove_dir(&group.0);
        fs::create_dir(&group.0).map_err(failed)?;
        for (first, second, value) in settings {
            let file = if is_first { first } else { second };
            if !file.is_empty() {
                fs::write(group.0.join(file), value).map_err(failed)?;
            }
        }
        Ok(group)
    }

    /// Creates a cgroup with a memory limit of `bytes`.
    ///
    /// # Errors
    /// As [`Cgroup::new`].
    pub fn of_memory(bytes: &str) -> Result<Cgroup, String> {
        Cgroup::new("memory", &[("memory.limit_in_bytes", "memory.max", bytes)])
    }

    /// Returns the folder of the cgroup.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Returns the shell command that runs a command in the cgroup.
    #[must_use]
    pub fn wrap(&self) -> String {
        format!("echo $$ >{}/cgroup.procs && exec \"$0\" \"$@\"", self.0.display())
    }
}

/// Removes the cgroups of tests that were killed; the kernel keeps those in which programs run.
fn remove_orphans(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix(prefix).unwrap_or_default();
        let owner = rest.split('-').next().and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its programs have ended; the kernel may take a moment to see it.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::or_skip;

    #[test]
    fn leftover_of_an_earlier_process_with_our_id_is_replaced() {
        let group = or_skip!(Cgroup::new("memory", &[]));
        let name = group.folder().to_string_lossy().into_owned();
        let (prefix, number) = name.rsplit_once('-').unwrap();
        let next = number.parse::<u32>().unwrap() + 1;
        fs::create_dir(format!("{prefix}-{next}")).unwrap();
        Cgroup::new("memory", &[]).unwrap();
    }
}
