//! The DPDK peer: found by pkg-config, compiled with the user's compiler, run with huge pages of
//! its own and no devices.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use linerate_skb::bench::Sample;

use super::Asked;
use crate::{Code, Error, Result};

const SOURCE: &str = include_str!("../../peers/mbench.c");

/// Arguments for the environment abstraction layer: anonymous huge pages of its own, no devices.
const EAL: [&str; 3] = ["--in-memory", "--no-pci", "--no-telemetry"];

const INSTALL: &str = "apt install libdpdk-dev gcc pkg-config";
const HUGE_PAGES: &str = "sysctl -w vm.nr_hugepages=300";

/// Checks that the peer can run here, without compiling it.
///
/// # Errors
/// `E-UNSUPPORTED` without DPDK, a compiler, or huge pages.
pub(super) fn probe() -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(unsupported("its clock is another one on this architecture").fix(""));
    }
    ran(Command::new("pkg-config").args(["--exists", "libdpdk"]))?;
    ran(Command::new("cc").arg("--version"))?;
    let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    match free.ok().and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(0) | None => Err(unsupported("there are no huge pages left").fix(HUGE_PAGES)),
        Some(_) => Ok(()),
    }
}

/// Runs its case that ours is compared with.
///
/// # Errors
/// As [`probe`], and what the compiler or the program complains of.
pub(super) fn sample(asked: &Asked) -> Result<Sample> {
    probe()?;
    let cpus: Vec<String> = asked.cpus.iter().take(2).map(usize::to_string).collect();
    let mut command = Command::new(compiled()?);
    command.args(["-l", &cpus.join(",")]).args(EAL).args(["--", asked.case.peer]);
    let output = ran(command.args([asked.bursts.to_string(), asked.reps.to_string()]))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // What else DPDK has to say comes before it.
    let line = text.lines().rfind(|line| line.starts_with("case=")).unwrap_or_default();
    Sample::parse(line).map_err(unsupported)
}

/// The program for this machine, as compiled before, or now.
fn compiled() -> Result<PathBuf> {
    let flags = |kind: &str| -> Result<Vec<String>> {
        let output = ran(Command::new("pkg-config").args([kind, "libdpdk"]))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.split_whitespace().map(str::to_owned).collect())
    };
    let (cflags, libs) = (flags("--cflags")?, flags("--libs")?);
    let mut hasher = DefaultHasher::new();
    (SOURCE, &cflags, &libs).hash(&mut hasher);
    let folder = own_folder()?;
    let program = folder.join(format!("mbench-{:016x}", hasher.finish()));
    if program.is_file() {
        return Ok(program);
    }
    let file =
        |e: std::io::Error| Error::new(Code::File, WHAT, format!("{}: {e}", folder.display()));
    let (source, fresh) = (program.with_extension("c"), program.with_extension("new"));
    fs::write(&source, SOURCE).map_err(file)?;
    // pkg-config names a CPU too; the last one counts.
    let mut cc = Command::new("cc");
    cc.arg("-O3").args(cflags).arg("-march=native").arg(&source).arg("-o").arg(&fresh).args(libs);
    ran(&mut cc)?;
    // In one step: another process may be looking for it.
    fs::rename(&fresh, &program).map_err(file)?;
    Ok(program)
}

/// Creates a private folder for temporary files, as programs in it are executed.
fn own_folder() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("linerate-peers-{user}"));
    let file =
        |e: std::io::Error| Error::new(Code::File, WHAT, format!("{}: {e}", folder.display()));
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(file(e)),
        _ => {}
    }
    let is_own = |path: &Path| -> std::io::Result<bool> {
        let there = fs::symlink_metadata(path)?;
        Ok(there.is_dir() && there.uid() == user && there.mode() & 0o077 == 0)
    };
    if is_own(&folder).map_err(file)? {
        return Ok(folder);
    }
    let why = format!("{} is not a folder of this user's alone", folder.display());
    Err(Error::new(Code::Permission, WHAT, why).fix("TMPDIR=$HOME/.cache linerate …"))
}

const WHAT: &str = "cannot run DPDK's side";

fn unsupported(why: impl Into<String>) -> Error {
    Error::new(Code::Unsupported, WHAT, why).fix(INSTALL)
}

/// Runs a command to its end; the last line of its complaint if it fails.
fn ran(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| unsupported(format!("{name}: {e}")))?;
    if output.status.success() {
        return Ok(output);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(unsupported(format!("{name}: {}: {}", output.status, last.trim())))
}
