//! perf(1), which samples other processes: where it is, what it is asked, and what it has found.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use linerate_prof::profile::Profile;
use linerate_prof::read::{self, Form};

use crate::errors::{Failure, RUNTIME, UNSUPPORTED};

/// A perf that works on this machine.
#[derive(Debug)]
pub struct Perf {
    program: PathBuf,
    /// As it says itself: `6.1.192`.
    pub version: String,
}

/// A private folder for what perf records; gone when dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Perf {
    /// Finds the first perf that runs: by PATH, then where distributions put one for each kernel.
    /// A `perf` may be a wrapper that refuses to run unless there is one for the running kernel.
    pub fn find() -> Result<Perf, Failure> {
        let mut tried = Vec::new();
        let beside = versioned(Path::new("/usr/bin"), "perf_", "");
        let ubuntu = versioned(Path::new("/usr/lib/linux-tools"), "", "perf");
        for program in [PathBuf::from("perf")].into_iter().chain(beside).chain(ubuntu) {
            match Command::new(&program).arg("--version").stdin(Stdio::null()).output() {
                Ok(said) if said.status.success() => {
                    let text = String::from_utf8_lossy(&said.stdout);
                    let version = text.trim().trim_start_matches("perf version ").to_owned();
                    return Ok(Perf { program, version });
                }
                Ok(said) => tried.push(format!("{} {}", program.display(), said.status)),
                Err(e) => tried.push(format!("{}: {e}", program.display())),
            }
        }
        let why =
            format!("perf samples other processes, and none runs here ({})", tried.join("; "));
        let fix = "apt-get install linux-perf (Debian), linux-tools-generic (Ubuntu), or perf";
        Err(Failure::new(UNSUPPORTED, "E-UNSUPPORTED", "cannot record", why, fix))
    }

    /// Returns `perf record` of `event` into the folder. The target is still to be added.
    pub fn record(&self, event: &str, period: u64, chains: bool, folder: &Folder) -> Command {
        let mut command = Command::new(&self.program);
        // Without a copy of every program in ~/.debug.
        command.args(["record", "--quiet", "--no-buildid-cache", "--event", event]);
        command.args(["--count", &period.to_string()]);
        if chains {
            command.args(["--call-graph", "fp"]);
        }
        command.arg("--output").arg(folder.data());
        command
    }

    /// Returns the profile that was recorded; `None` if there is no sample in it.
    pub fn script(&self, folder: &Folder) -> Result<Option<Profile>, Failure> {
        let failed = |why: String| {
            Failure::new(RUNTIME, "E-SYSTEM", "cannot read what perf has recorded", why, "")
        };
        let io = |e: io::Error| failed(e.to_string());
        let complaints = folder.0.join("complaints");
        let mut command = Command::new(&self.program);
        command.args(["script", "--no-inline", "--show-lost-events"]);
        command.args(["--fields", "comm,tid,time,period,event,ip,sym,symoff,dso"]);
        command.arg("--input").arg(folder.data());
        // Neither a user's own form of output nor symbols from the network.
        command.env("PERF_CONFIG", "/dev/null").env_remove("DEBUGINFOD_URLS");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&complaints).map_err(io)?);
        let mut child = command.spawn().map_err(io)?;
        let text = child.stdout.take().map(|text| BufReader::with_capacity(1 << 16, text));
        let read = text.map(|text| read::parse(text, Some(Form::PerfScript)));
        let status = child.wait().map_err(io)?;
        if !status.success() {
            let said = fs::read_to_string(&complaints).unwrap_or_default();
            let last = said.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
            return Err(failed(format!("perf script: {status}: {last}")));
        }
        // A text without a sample is an error of its reader.
        Ok(read.and_then(Result::ok).and_then(|read| read.one(1).ok()))
    }
}

impl Folder {
    /// Makes one among the system's temporary files, which no other user can look into.
    pub fn new() -> Result<Folder, Failure> {
        let folder = std::env::temp_dir().join(format!("linerate-profile-{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|e| super::file::failure("keep what perf records in", &folder, &e))?;
        Ok(Folder(folder))
    }

    /// Returns perf's own file.
    pub fn data(&self) -> PathBuf {
        self.0.join("perf.data")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is the system's to clean, as all that is there.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the entries of `folder` that begin so, newest kernel first, with `inside` behind each.
fn versioned(folder: &Path, begin: &str, inside: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<OsString> = entries.map(|entry| entry.file_name()).collect();
    names.retain(|name| name.to_string_lossy().starts_with(begin));
    names.sort();
    let path = |name: OsString| match inside {
        "" => folder.join(name),
        inside => folder.join(name).join(inside),
    };
    names.into_iter().rev().map(path).collect()
}
