//! A program that runs beside the campaign, and not a moment longer.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use linerate_sys::process::end_with_this_thread;

use crate::veth::figures;

/// Killed when dropped, and by the kernel when the thread ends that started it: also if the campaign
/// is interrupted or killed.
pub struct Running {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Running {
    /// Starts `command`, called `name` in what is printed, with its output in a file of `folder`.
    /// Its stdin stays open: programs with a prompt end where that does.
    pub fn start(mut command: Command, name: &str, folder: &Path) -> Result<Running> {
        let log = folder.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("{}", log.display()))?;
        command.stdin(Stdio::piped()).stderr(output.try_clone()?).stdout(output);
        let child = end_with_this_thread(&mut command)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Running { child, name: name.to_owned(), log })
    }

    /// Fails with what it said last if it has ended.
    pub fn still(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let said: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = said[said.len().saturating_sub(3)..].join("\n  ");
        bail!("{} ended: {status}; {} says:\n  {last}", self.name, self.log.display());
    }

    /// Where its output is.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Time that its threads have had on a CPU. Those that have ended are not in it.
    pub fn cpu_ns(&self) -> Result<u64> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let mut sum_ns = 0;
        for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
            // A thread may end between the two.
            let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            sum_ns += figures::on_cpu_ns(&text).unwrap_or(0);
        }
        Ok(sum_ns)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, name: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start(command, name, &std::env::temp_dir()).unwrap()
    }

    #[test]
    fn a_program_that_ended_is_quoted() {
        let name = format!("xtask-veth-child-{}", std::process::id());
        let mut child = shell("echo no such port >&2; exit 3", &name);
        let _ = child.child.wait();
        let error = format!("{:#}", child.still().unwrap_err());
        let _ = fs::remove_file(&child.log);
        assert!(error.contains("exit status: 3") && error.contains("no such port"), "{error}");
    }

    #[test]
    fn a_program_has_cpu_time_and_ends_when_dropped() {
        let name = format!("xtask-veth-cpu-{}", std::process::id());
        let mut child = shell("while :; do :; done", &name);
        while child.cpu_ns().unwrap() == 0 {
            std::thread::yield_now();
        }
        child.still().unwrap();
        let (proc, log) = (format!("/proc/{}", child.child.id()), child.log.clone());
        drop(child);
        let _ = fs::remove_file(log);
        assert!(!Path::new(&proc).exists());
    }
}
