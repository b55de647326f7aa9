//! A program that runs beside the campaign, and not a moment longer.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use linerate_sys::process::end_with_this_thread;

use crate::veth::figures::Time;

/// Interval and number of looks for a program's progress: testpmd takes 2 s
/// to start. Not a time: a campaign may be stopped and go on later, with its programs.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 1500;

/// Killed when dropped, and by the kernel when the thread ends that started it: also if the campaign
/// is interrupted or killed.
pub struct Running {
    child: Child,
    name: String,
    log: PathBuf,
    /// Dropped last: what it cannot do without.
    beside: Option<Box<Running>>,
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
        Ok(Running { child, name: name.to_owned(), log, beside: None })
    }

    /// It with `other`, which ends after it.
    pub fn beside(mut self, other: Running) -> Running {
        self.beside = Some(Box::new(other));
        self
    }

    /// Fails with what it said last if it has ended.
    pub fn still(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let said: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = match &said[said.len().saturating_sub(3)..] {
            [] => "nothing".to_owned(),
            last => last.join("\n  "),
        };
        bail!("{} ended: {status}; {} says: {last}", self.name, self.log.display());
    }

    /// Returns true if a fault of its own has ended it.
    pub fn has_crashed(&mut self) -> Result<bool> {
        const SIGSEGV: i32 = 11;
        Ok(self.child.try_wait()?.is_some_and(|status| status.signal() == Some(SIGSEGV)))
    }

    /// Waits until `done`, which it does in its own time as long as it lives.
    pub fn until(&mut self, does: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        for _ in 0..LOOKS {
            if done()? {
                return Ok(());
            }
            self.still()?;
            sleep(LOOK);
        }
        let (log, waited) = (self.log.display(), LOOK * LOOKS);
        bail!("{}: waited {} s until it {does}; {log}", self.name, waited.as_secs());
    }

    /// Returns the time of its threads. Those that have ended are not in it.
    pub fn time(&self) -> Result<Time> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let mut sum = Time::default();
        for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
            // A thread may end between the two.
            let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            let time = Time::of(&text).unwrap_or_default();
            sum.on_cpu_ns += time.on_cpu_ns;
            sum.waiting_ns += time.waiting_ns;
        }
        Ok(sum)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.beside = None;
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
        while child.time().unwrap().on_cpu_ns == 0 {
            std::thread::yield_now();
        }
        child.still().unwrap();
        let (proc, log) = (format!("/proc/{}", child.child.id()), child.log.clone());
        drop(child);
        let _ = fs::remove_file(log);
        assert!(!Path::new(&proc).exists());
    }
}
