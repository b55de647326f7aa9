//! Tests that the kernel ends perf after `linerate profile record` was killed with SIGKILL.

use std::fs::{self, DirEntry};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use linerate_sys::process::end_with_this_thread;
use linerate_testing::eventually;

use crate::command::command;
use crate::{Scratch, ended, possible};

/// A process to sample, killed when dropped.
struct Sleep(Child);

impl Sleep {
    fn start() -> Sleep {
        let mut sleep = Command::new("sleep");
        Sleep(end_with_this_thread(sleep.arg("600")).spawn().unwrap())
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_recorder_that_is_killed_leaves_no_perf() {
    let (scratch, sleep) = (Scratch::new(), Sleep::start());
    let file = scratch.word("p.json");
    let mut recorder = command(&format!("profile record -o {file} --pid {}", sleep.0.id()));
    recorder.env("TMPDIR", &scratch.0).stdin(Stdio::null());
    recorder.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = recorder.spawn().unwrap();
    let records = || count_perfs(&scratch.0) > 0;
    eventually(|| records() || child.try_wait().unwrap().is_some());
    if !records() {
        let told = possible(ended(child));
        assert!(told.is_none(), "it ended before the sampled process: {told:?}");
        return;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    eventually(|| !records());
}

/// Returns the number of processes with an argument that is a file of perf below `folder`. A
/// process that has ended has no arguments.
fn count_perfs(folder: &Path) -> usize {
    let is_perf = |entry: &DirEntry| {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        words.any(|word| {
            let path = Path::new(&*word);
            path.starts_with(folder) && path.ends_with("perf.data")
        })
    };
    fs::read_dir("/proc").unwrap().flatten().filter(is_perf).count()
}
