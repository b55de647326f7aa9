//! The peer: DPDK's loops in instruments/lab/peers/mbench.c, compiled when a table is made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/peers/mbench.c");
/// Cargo's folder for what benches leave behind.
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// What the environment abstraction layer is told: anonymous huge pages of its own, no devices.
const EAL: [&str; 3] = ["--in-memory", "--no-pci", "--no-telemetry"];
/// The same for a process under valgrind, which has no room for the address space that DPDK
/// reserves for huge pages.
const EAL_COUNTED: [&str; 6] =
    ["--no-shconf", "--no-huge", "-m", "64", "--no-pci", "--no-telemetry"];

/// The peer's program, for this CPU.
#[derive(Debug, Clone)]
pub struct Peer {
    binary: PathBuf,
    lcores: String,
    pub version: String,
}

impl Peer {
    /// Compiles it and sees whether it runs here with huge pages; the reason if it does not.
    pub fn build(cpus: &[usize]) -> Result<Peer, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err("its clock is another one on this architecture".into());
        }
        let lcores = cpus.iter().take(2).map(usize::to_string).collect::<Vec<_>>().join(",");
        let binary = compile("native")?;
        let mut peer = Peer { binary, lcores, version: String::new() };
        let mut command = Command::new(&peer.binary);
        let output = run(command.args(["-l", &peer.lcores]).args(EAL).args(["--", "version"]))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let field = |name: &str| text.split_whitespace().find_map(|word| word.strip_prefix(name));
        if field("huge=") != Some("1") {
            return Err("DPDK found no huge pages (sysctl -w vm.nr_hugepages=200)".into());
        }
        peer.version = field("version=").unwrap_or("of unknown version").to_owned();
        Ok(peer)
    }

    /// The program and arguments of one run of its case `name`.
    pub fn once(&self, name: &str, bursts: u64, reps: usize) -> Vec<String> {
        let (binary, bursts, reps) =
            (self.binary.display().to_string(), bursts.to_string(), reps.to_string());
        let words = [&[&binary, "-l", &self.lcores], &EAL[..], &["--", name, &bursts, &reps]];
        words.concat().into_iter().map(str::to_owned).collect()
    }

    /// The same for an instruction counter that emulates the CPU: once, without
    /// AVX-512, which valgrind does not know, and without huge pages.
    pub fn emulated(name: &str, bursts: u64) -> Result<Vec<String>, String> {
        let binary = compile("x86-64-v3")?.display().to_string();
        let bursts = bursts.to_string();
        let words = [&[binary.as_str(), "-l", "0"], &EAL_COUNTED[..], &["--", name, &bursts, "1"]];
        Ok(words.concat().into_iter().map(str::to_owned).collect())
    }
}

/// Compiles it for `cpu`; the program's path.
fn compile(cpu: &str) -> Result<PathBuf, String> {
    if !Path::new(SOURCE).exists() {
        return Err("its source, instruments/lab/peers/mbench.c, is in the repository only".into());
    }
    let flags = |kind: &str| -> Result<Vec<String>, String> {
        let output = run(Command::new("pkg-config").args([kind, "libdpdk"]))
            .map_err(|why| format!("no libdpdk (Debian: libdpdk-dev): {why}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.split_whitespace().map(str::to_owned).collect())
    };
    fs::create_dir_all(FOLDER).map_err(|e| format!("{FOLDER}: {e}"))?;
    let binary = Path::new(FOLDER).join(format!("mbench-{cpu}"));
    // pkg-config names a CPU too; the last one counts.
    let mut cc = Command::new("cc");
    cc.arg("-O3").args(flags("--cflags")?).arg(format!("-march={cpu}")).arg(SOURCE);
    cc.arg("-o").arg(&binary).args(flags("--libs")?);
    run(&mut cc)?;
    Ok(binary)
}

/// Runs a command to its end; the last line of its complaint if it fails.
pub fn run(command: &mut Command) -> Result<Output, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(format!("{name}: {}: {}", output.status, last.trim()))
}
