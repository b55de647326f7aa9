//! `cargo xtask qemu bounce`: a reproduction of post 003 by a model. It shows the kernel's
//! functions that lose cache lines while four adapters each receive a TCP stream, with and without
//! affinity of interrupts and processes.
//!
//! ```text
//! host: 4 senders ── QEMU's user network ── 4 × i82559 ── Debian's kernel, 4 CPUs, idle=poll ── 4 × lines-load receive
//!                                           plugin: lines followed from the first byte, counted between two marks
//! ```
//!
//! The first boot has no plugin: it tells the kernel's symbols, whose addresses are the same in
//! every boot (nokaslr). Nothing is measured: every line of figures has MODEL on it ([`followed`]).

use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cargo;
use crate::qemu::followed::{self, Ran};
use crate::qemu::guest::Root;
use crate::qemu::kernel::{self, Kernel};
use crate::qemu::names;
use crate::qemu::{boot, impossible, programs};
use crate::results;
use crate::steps::Done;

/// The options, as `--help` prints them.
pub const USAGE: &str = "\
usage: cargo xtask qemu bounce [--runs N] [--event EVENT] [--kib N] [--path kernel|linerate] [--keep MACHINE]

  --runs N        runs a side, alternating; 1 unless told
  --event EVENT   by which today's functions are ranked: L2_LINES_OUT unless told; or L2_LINES_IN,
                  LINES_FROM_OTHER_CORE. The list beside the post's has all three
  --kib N         KiB that the first stream receives while lines are counted; 1024 unless told, as many go before
  --path PATH     kernel: the adapters' packets go to the kernel's TCP, unless told; linerate: a linerate for each adapter
                  is between, packet: to tap:, bound to the same CPU with affinity
  --keep MACHINE  writes the counts to results/MACHINE/guest-bounce.json.gz, for cargo xtask tables;
                  refused unless all sources are committed
";

const INIT: &str = include_str!("bounce.sh");
/// Kernel modules of the adapters, and of the taps for linerate.
const MODULES: [&str; 2] = ["e100", "tun"];
const ADAPTERS: u16 = 4;
/// Bytes of the buffer that the driver gives a device for a packet, after the driver's own 16:
/// RFD_BUF_LEN.
const BUFFER: u64 = 0x602;
/// Size and ways of the model's caches: the post's CPUs had caches of 1 MB. `MACHINE` runs all CPUs
/// in turn in one thread of QEMU: with several threads, this kernel died in code that it rewrites
/// while another CPU runs it.
const L2: &str = "1048576x8";
const MACHINE: &str = "-accel tcg,thread=single -cpu max -smp 4 -m 1024 -M q35 -nodefaults -no-user-config \
    -display none -monitor none -serial stdio -no-reboot";
/// Kernel options: 2.4 did not clear pages on allocation, as Debian's kernels do by default. On a
/// busy machine the emulated timer may be late, and without `no_timer_check` the kernel would
/// conclude that the timer is not connected.
const KERNEL_OPTIONS: &str = "console=ttyS0 panic=-1 loglevel=4 mitigations=off nokaslr \
    init_on_alloc=0 init_on_free=0 no_timer_check";

/// Most attempts of a run. An attempt in which the driver is at another address than in the first
/// boot does not count.
const TRIES: u32 = 3;

struct Asked {
    runs: usize,
    event: String,
    kib: u32,
    /// True if linerate is between the adapters and the kernel's TCP.
    linerate: bool,
    /// Machine of whose results the document is to be.
    keep: Option<String>,
}

/// The guest, its kernel and the plugin.
struct Bounce {
    kernel: Kernel,
    root: PathBuf,
    folder: PathBuf,
    plugin: PathBuf,
    kallsyms: PathBuf,
}

/// Runs both sides and prints the tables.
pub fn run(root: &Path, args: &[String]) -> Result<Done> {
    let asked = Asked::read(args)?;
    let commit = asked.keep.is_some().then(|| commit(root)).transpose()?;
    let started = cargo::quiet(Command::new("date").args(["-u", "+%FT%TZ"]))?;
    if let Some(skipped) = impossible() {
        return Ok(skipped);
    }
    let target = std::path::absolute(cargo::target_dir(root))?;
    let series = &kernel::SERIES[1];
    let kernel = match Kernel::obtain(&kernel::cache(&target), series) {
        Ok(kernel) => kernel,
        Err(e) => return Ok(Done::skipped(&format!("no Linux {}: {e:#}", series.name), "--help")),
    };
    let mut build = cargo::cargo(root);
    cargo::quiet(build.args([
        "build",
        "--locked",
        "--package=linerate-lines",
        "--package=linerate-lab-cli",
        "--package=linerate-cli",
    ]))?;
    let folder = target.join("qemu");
    fs::create_dir_all(&folder)?;
    let bounce = Bounce::new(kernel, &target, folder, asked.linerate)?;
    let mut rans = followed::Runs::default();
    for run in 0..asked.runs {
        for (side, rans) in followed::SIDES.iter().zip(&mut rans) {
            eprintln!("qemu: bounce, run {} of {}, {side} ...", run + 1, asked.runs);
            let tries = (1..=TRIES).map(|_| bounce.follow(&target, side, run, &asked));
            let ran = tries.inspect(complain).find(Result::is_ok);
            rans.push(ran.context("no run passed")??);
        }
    }
    let all: u64 = rans.iter().map(|rans| followed::packets(rans)).sum();
    let mut note = format!("{all} packets followed");
    if let Some((machine, commit)) = asked.keep.as_deref().zip(commit) {
        let made = made(&commit, started.trim(), args, &bounce.kernel)?;
        let document = followed::document(&rans, made);
        results::store(root, machine, followed::EXPERIMENT, &document)?;
        note += "; now: cargo xtask tables";
    }
    let ranked = bounce.ranked(&target, &asked)?;
    print!("{ranked}\n{}\n{}", followed::beside(&rans), followed::spread(&rans));
    print!("\n{}", followed::stages(&rans)?);
    Ok(Done::from(note))
}

/// Returns the hash of the last commit.
///
/// # Errors
/// Sources that are not committed: a run of them cannot be repeated.
fn commit(root: &Path) -> Result<String> {
    let git = |words: &str| {
        let mut git = Command::new("git");
        git.args(["-c", "safe.directory=*"]).args(words.split(' ')).current_dir(root);
        cargo::quiet(&mut git)
    };
    let changed = git("status --porcelain --untracked-files=no")?;
    ensure!(
        changed.trim().is_empty(),
        "--keep needs all sources committed; changed are:\n{changed}"
    );
    Ok(git("rev-parse HEAD")?.trim().to_owned())
}

/// Returns what the document says of the command and what it ran on.
fn made(commit: &str, started: &str, args: &[String], kernel: &Kernel) -> Result<Value> {
    let qemu = cargo::quiet(Command::new(boot::QEMU).arg("--version"))?;
    let qemu = qemu.lines().next().unwrap_or_default().split(" (").next().unwrap_or_default();
    Ok(json!({
        "run": {
            "command": format!("cargo xtask qemu bounce {}", args.join(" ")),
            "started": started,
            "tool": { "commit": commit },
        },
        "env": { "guest": kernel.version, "qemu": qemu },
    }))
}

impl Asked {
    fn read(args: &[String]) -> Result<Asked> {
        let event = "L2_LINES_OUT".into();
        let mut asked = Asked { runs: 1, event, kib: 1024, linerate: false, keep: None };
        for pair in args.chunks(2) {
            let (option, value) = match pair {
                [option, value] => (option.as_str(), value),
                _ => bail!("{}: nothing follows\n{USAGE}", pair[0]),
            };
            let number = || value.parse().ok().filter(|n| (1..=1 << 20).contains(n));
            match (option, number()) {
                ("--runs", Some(n)) => asked.runs = n as usize,
                ("--kib", Some(n)) => asked.kib = n,
                ("--path", _) if value == "kernel" || value == "linerate" => {
                    asked.linerate = value == "linerate";
                }
                ("--event", _) if names::EVENTS.contains(&value.as_str()) => {
                    asked.event.clone_from(value);
                }
                ("--keep", _) if results::is_plain(value) => asked.keep = Some(value.clone()),
                _ => bail!("{option} {value}: cannot be asked for\n{USAGE}"),
            }
        }
        ensure!(
            !asked.linerate || asked.keep.is_none(),
            "--keep is for the kernel's path: the document of the other would replace it"
        );
        Ok(asked)
    }
}

impl Bounce {
    /// Packs the guest and determines its kernel's symbols.
    fn new(kernel: Kernel, target: &Path, folder: PathBuf, linerate: bool) -> Result<Bounce> {
        let root = folder.join("bounce.cpio");
        let guest = Root::new(&root)?;
        let own: &[&str] = if linerate { &["lines-load", "linerate"] } else { &["lines-load"] };
        for name in own {
            let program = programs::stripped(&target.join("debug").join(name), &folder);
            guest.program(&program, &format!("bin/{name}"))?;
        }
        guest.modules(&kernel, if linerate { &MODULES } else { &MODULES[..1] })?;
        guest.pack(INIT, &root)?;
        let plugin = target.join("debug/liblinerate_lines.so");
        let kallsyms = folder.join("bounce.kallsyms");
        let bounce = Bounce { kernel, root, folder, plugin, kallsyms };
        eprintln!("qemu: bounce, the kernel's symbols ...");
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let options = format!("side=kallsyms kallsyms={}", address.port());
        let mut list = fs::File::create(&bounce.kallsyms)?;
        // The thread ends when the guest closes its connection, or with our process.
        let copy = thread::spawn(move || io::copy(&mut listener.accept()?.0, &mut list));
        let said = bounce.boot("bounce.symbols", &options, "", |_| {})?;
        ensure!(said.iter().any(|line| line == "done 0"), "the first boot did not end");
        // Without a connection of the guest, the thread would wait for one: end its wait.
        let _ = TcpStream::connect(address);
        let bytes = copy.join().map_err(|_| anyhow::anyhow!("no symbols came"))??;
        ensure!(bytes > 100_000, "{bytes} bytes of symbols came");
        Ok(bounce)
    }

    /// Boots the guest, and returns the output of its first process.
    fn boot(
        &self,
        log: &str,
        options: &str,
        plugin: &str,
        mut seen: impl FnMut(&str),
    ) -> Result<Vec<String>> {
        let mut command = boot::within_limit();
        command.args(MACHINE.split_whitespace());
        for i in 0..ADAPTERS {
            let (net, forward) = (i + 2, BASE_PORT + i);
            let netdev = format!(
                "user,id=n{i},net=10.0.{net}.0/24,hostfwd=tcp:127.0.0.1:{forward}-10.0.{net}.15:500{i}"
            );
            // Use a slot for each card, so that each card has a line of the IO-APIC to itself.
            let device =
                format!("i82559c,netdev=n{i},mac=02:00:00:00:03:0{i},addr={},romfile=", 4 + i);
            command.args(["-netdev", &netdev, "-device", &device]);
        }
        if !plugin.is_empty() {
            command.args(["-plugin", plugin]);
        }
        command.arg("-kernel").arg(self.kernel.image()).arg("-initrd").arg(&self.root);
        command.args(["-append", &format!("{KERNEL_OPTIONS} {options}")]);
        let (log, mut said) = (self.folder.join(format!("{log}.log")), Vec::new());
        boot::run(command, &log, |line| {
            if let Some(line) = line.strip_prefix("guest: ") {
                seen(line);
                said.push(line.to_owned());
            }
        })?;
        if said.last().is_none_or(|last| last != "done 0") {
            bail!("the guest did not end; its console is {}", log.display());
        }
        Ok(said)
    }

    /// Runs a side under the plugin.
    fn follow(&self, target: &Path, side: &str, run: usize, asked: &Asked) -> Result<Ran> {
        let file = self.file(side, run);
        let plugin = format!(
            "{},out={},marked=on,l2={L2},arm={:x}-{:x}-{BUFFER:x}",
            self.plugin.display(),
            file.display(),
            self.function("e100_rx_alloc_skb")?.0,
            self.function("e100_rx_alloc_skb")?.1
        );
        let bytes = u64::from(asked.kib) << 10;
        let path = if asked.linerate { "linerate" } else { "kernel" };
        let options = format!("idle=poll side={side} path={path} warm={bytes} count={bytes}");
        let over = Arc::new(AtomicBool::new(false));
        let said = self.boot(&format!("bounce.{side}.{run}"), &options, &plugin, |line| {
            if line == "ready" {
                (0..ADAPTERS).for_each(|i| send(BASE_PORT + i, &over));
            } else if line.starts_with("counted") {
                over.store(true, Ordering::Relaxed);
            }
        });
        over.store(true, Ordering::Relaxed);
        let said = said?;
        ensure!(said.iter().any(|line| line == "counted 0"), "the first stream was not received");
        let address = format!("address {:016x}", self.function("e100_rx_alloc_skb")?.0);
        ensure!(said.iter().any(|line| line.starts_with(&address)), "the driver is elsewhere now");
        let mut documents = Vec::new();
        for event in names::EVENTS {
            let document = cargo::quiet(self.lines(target, &file, event).arg("--json"))?;
            documents.push(serde_json::from_str(&document)?);
        }
        Ran::of(&documents)
    }

    /// Returns the path of the plugin's output.
    fn file(&self, side: &str, run: usize) -> PathBuf {
        self.folder.join(format!("bounce.{side}.{run}.lines"))
    }

    /// Returns start and end of a function of the guest's kernel.
    fn function(&self, name: &str) -> Result<(u64, u64)> {
        let list = fs::read_to_string(&self.kallsyms)?;
        let rows = list.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((u64::from_str_radix(words.next()?, 16).ok()?, words.nth(1)?))
        });
        let rows: Vec<(u64, &str)> = rows.collect();
        let start =
            rows.iter().find(|(_, known)| *known == name).with_context(|| name.to_owned())?;
        let end = rows.iter().map(|row| row.0).filter(|at| *at > start.0).min();
        Ok((start.0, end.with_context(|| name.to_owned())?))
    }

    /// Returns the command that reads the plugin's output.
    fn lines(&self, target: &Path, file: &Path, event: &str) -> Command {
        let mut command = Command::new(target.join("debug/linerate-lab"));
        command.args(["lines", "--event", event, "--kallsyms"]).arg(&self.kallsyms);
        command.arg("--read").arg(file);
        command
    }

    /// Returns the difference of the first runs of both sides, ranked.
    fn ranked(&self, target: &Path, asked: &Asked) -> Result<String> {
        let [none, both] = followed::SIDES.map(|side| self.file(side, 0));
        let profile = none.with_extension("json");
        cargo::quiet(self.lines(target, &none, &asked.event).arg("-o").arg(&profile))?;
        let mut command = self.lines(target, &both, &asked.event);
        cargo::quiet(command.args(["--top", "60", "--without"]).arg(&profile))
    }
}

/// Prints the reason why a run is repeated.
fn complain(ran: &Result<Ran>) {
    if let Err(e) = ran {
        eprintln!("qemu: bounce: {e:#}");
    }
}

/// First port of the host for the adapters' streams.
const BASE_PORT: u16 = 28_430;

/// Sends a stream until `over` is set.
fn send(port: u16, over: &Arc<AtomicBool>) {
    let over = Arc::clone(over);
    thread::spawn(move || {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return };
        let block = [b'x'; 16 << 10];
        while !over.load(Ordering::Relaxed) && stream.write_all(&block).is_ok() {}
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &str) -> Result<Asked> {
        Asked::read(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn runs_an_event_and_an_amount_can_be_asked_for() {
        let all = asked("--runs 5 --event L2_LINES_IN --kib 512").unwrap();
        assert_eq!((all.runs, all.event.as_str(), all.kib), (5, "L2_LINES_IN", 512));
        assert_eq!(asked("").unwrap().event, "L2_LINES_OUT");
        assert!(asked("--path linerate").unwrap().linerate);
        assert_eq!(asked("--keep qemu").unwrap().keep.as_deref(), Some("qemu"));
        for wrong in [
            "--runs",
            "--runs 0",
            "--event cycles",
            "--kib x",
            "--path tap",
            "--keep ../x",
            "--keep q --path linerate",
            "5",
        ] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }
}
