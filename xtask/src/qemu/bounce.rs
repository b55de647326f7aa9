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
//! every boot (nokaslr). Nothing is measured: every line of figures has MODEL on it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo;
use crate::qemu::guest::Root;
use crate::qemu::kernel::{self, Kernel};
use crate::qemu::names::{self, Name};
use crate::qemu::{boot, impossible, programs};
use crate::steps::Done;

/// The options, as `--help` prints them.
pub const USAGE: &str = "\
usage: cargo xtask qemu bounce [--runs N] [--event EVENT] [--kib N] [--path kernel|linerate]

  --runs N        runs a side, alternating; 1 unless told
  --event EVENT   by which today's functions are ranked: L2_LINES_OUT unless told; or L2_LINES_IN,
                  LINES_FROM_OTHER_CORE. The list beside the post's has all three
  --kib N         KiB that the first stream receives while lines are counted; 1024 unless told, as many go before
  --path PATH     kernel: the adapters' packets go to the kernel's TCP, unless told; linerate: a linerate for each adapter
                  is between, packet: to tap:, bound to the same CPU with affinity
";

const INIT: &str = include_str!("bounce.sh");
/// Post 003, with Linux 2.4.17's listing and McKenney's differences.
const POST: &str = include_str!("../../../instruments/seeds/posts/003_5ab5121f9d39ea70.txt");
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

/// Index in [`names::EVENTS`] of the event that counts accesses to a line that is not in the CPU's
/// cache.
const LINES_IN: usize = 1;

/// The sides: the baseline and the side with the change.
const SIDES: [&str; 2] = ["none", "both"];

struct Asked {
    runs: usize,
    event: String,
    kib: u32,
    /// True if linerate is between the adapters and the kernel's TCP.
    linerate: bool,
}

/// The guest, its kernel and the plugin.
struct Bounce {
    kernel: Kernel,
    root: PathBuf,
    folder: PathBuf,
    plugin: PathBuf,
    kallsyms: PathBuf,
}

/// One run of a side, with the file of its results.
struct Ran {
    file: PathBuf,
    /// Counts by function, for each of the model's events.
    counts: [Counts; names::EVENTS.len()],
    packets: u64,
}

type Counts = BTreeMap<String, u64>;

/// Runs both sides and prints the tables.
pub fn run(root: &Path, args: &[String]) -> Result<Done> {
    let asked = Asked::read(args)?;
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
    let mut rans = SIDES.map(|_| Vec::new());
    for run in 0..asked.runs {
        for (side, rans) in SIDES.iter().zip(&mut rans) {
            eprintln!("qemu: bounce, run {} of {}, {side} ...", run + 1, asked.runs);
            let tries = (1..=TRIES).map(|_| bounce.follow(&target, side, run, &asked));
            let ran = tries.inspect(complain).find(Result::is_ok);
            rans.push(ran.context("no run passed")??);
        }
    }
    let [none, both] = &rans;
    let ranked = bounce.ranked(&target, &none[0], &both[0], &asked)?;
    print!("{ranked}\n{}\n{}", beside(none, both), spread(&rans));
    print!("\n{}", stages(none)?);
    Ok(Done::from(format!("{} packets followed", packets(none) + packets(both))))
}

impl Asked {
    fn read(args: &[String]) -> Result<Asked> {
        let mut asked = Asked { runs: 1, event: "L2_LINES_OUT".into(), kib: 1024, linerate: false };
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
                _ => bail!("{option} {value}: cannot be asked for\n{USAGE}"),
            }
        }
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
        let file = self.folder.join(format!("bounce.{side}.{run}.lines"));
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
        Ran::of(file, &documents)
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

    /// Returns the difference of two runs, ranked.
    fn ranked(&self, target: &Path, none: &Ran, both: &Ran, asked: &Asked) -> Result<String> {
        let profile = none.file.with_extension("json");
        cargo::quiet(self.lines(target, &none.file, &asked.event).arg("-o").arg(&profile))?;
        let mut command = self.lines(target, &both.file, &asked.event);
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

impl Ran {
    /// Reads one document for each of the model's events.
    fn of(file: PathBuf, documents: &[Value]) -> Result<Ran> {
        let mut counts: [Counts; names::EVENTS.len()] = Default::default();
        let mut packets = 0;
        for (document, counts) in documents.iter().zip(&mut counts) {
            packets =
                document["conditions"]["packets"].as_u64().context("no packet was counted")?;
            for row in document["rows"].as_array().context("no rows")? {
                // Remove the suffixes with which the compiler names a part of a function, or a copy
                // with fewer arguments.
                let name = row["symbol"].as_str().unwrap_or_default().split('.').next();
                let count = counts.entry(name.unwrap_or_default().to_owned()).or_insert(0);
                *count += row["count"].as_u64().unwrap_or(0);
            }
        }
        Ok(Ran { file, counts, packets })
    }

    /// Returns the rate of an event for each 1000 packets, in functions that `keep` accepts.
    fn rate(&self, event: usize, keep: impl Fn(&str) -> bool) -> f64 {
        let kept = self.counts[event].iter().filter(|(name, _)| keep(name));
        1000.0 * kept.map(|(_, n)| n).sum::<u64>() as f64 / self.packets as f64
    }
}

fn packets(rans: &[Ran]) -> u64 {
    rans.iter().map(|ran| ran.packets).sum()
}

/// Returns the median of an event's rate over the runs of a side.
fn middle(rans: &[Ran], event: usize, keep: impl Fn(&str) -> bool) -> f64 {
    median(rans.iter().map(|ran| ran.rate(event, &keep)).collect())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    let half = rates.len() / 2;
    if rates.len() % 2 == 1 { rates[half] } else { (rates[half - 1] + rates[half]) / 2.0 }
}

/// Formats the post's list beside ours, function by function, with the totals of both.
fn beside(none: &[Ran], both: &[Ran]) -> String {
    let heads = names::EVENTS.map(|event| format!("{event:>24}"));
    let under = format!("{:>8} {:>8} {:>6}", "without", "with", "%");
    let mut text = format!(
        "MODEL  post 003's list beside this kernel's: events in 1000 packets without and with affinity, and the saving\n\
         MODEL  {:<31} {:>6} {}\n\
         MODEL  {:<31} {:>6} {under} {under} {under}  today\n",
        "",
        "post",
        heads.join(" "),
        "Linux 2.4.17",
        "%"
    );
    let mut row = |name: &str, post: f64, today: &str, keep: &dyn Fn(&str) -> bool| {
        text += &format!("MODEL  {name:<31} {post:>6.1}");
        for event in 0..names::EVENTS.len() {
            let (without, with) = (middle(none, event, keep), middle(both, event, keep));
            let saved = match without > 0.0 {
                true => format!("{:.1}", 100.0 * (without - with) / without),
                false => "n/a".to_owned(),
            };
            text += &format!(" {without:>8.1} {with:>8.1} {saved:>6}");
        }
        text += &format!("  {today}\n");
    };
    let all = names::posted(POST);
    for Name { old, with, without } in &all {
        let post = 100.0 * (*without as f64 - *with as f64) / *without as f64;
        match names::today(old) {
            [] => row(old, post, "(gone)", &|_| false),
            today => row(old, post, &today.join(" "), &|name| today.contains(&name)),
        }
    }
    let post = |keep: fn(&str) -> bool| {
        let kept = all.iter().filter(|name| keep(name.old));
        let (with, without) = kept.fold((0, 0), |(a, b), name| (a + name.with, b + name.without));
        100.0 * (without as f64 - with as f64) / without as f64
    };
    row("total", post(|_| true), "", &|_| true);
    row("total without idle", post(|old| old != names::IDLE), "", &|name| !names::is_idle(name));
    text
}

/// Formats the stages of the post's profile, each with its functions that moved cache lines.
///
/// # Errors
/// A stage of which no run has a function: then it is not the post's path that was followed.
fn stages(rans: &[Ran]) -> Result<String> {
    let mut text =
        "MODEL  stages of the post's profile: functions here, with L2_LINES_IN in 1000 packets\n"
            .to_owned();
    for (stage, olds) in names::STAGES {
        let functions = olds.iter().flat_map(|old| names::today(old));
        let counted = functions.map(|name| (middle(rans, LINES_IN, |of| of == *name), name));
        let mut counted: Vec<_> = counted.filter(|(rate, _)| *rate > 0.0).collect();
        counted.sort_by(|a, b| b.0.total_cmp(&a.0));
        ensure!(!counted.is_empty(), "{stage}: no function of the kernel's was followed");
        let most = counted.iter().take(3).map(|(rate, name)| format!("{name} {rate:.0}"));
        text += &format!("MODEL    {stage}: {}\n", most.collect::<Vec<_>>().join(", "));
    }
    Ok(text)
}

/// Formats the spread between the runs of a side.
fn spread(rans: &[Vec<Ran>; 2]) -> String {
    let mut text = String::new();
    for (side, rans) in SIDES.iter().zip(rans) {
        text += &format!("MODEL  {side}: {} runs, {} packets\n", rans.len(), packets(rans));
        for (i, event) in names::EVENTS.iter().enumerate() {
            let mut rates: Vec<f64> = rans.iter().map(|ran| ran.rate(i, |_| true)).collect();
            rates.sort_by(f64::total_cmp);
            let (least, most) = (rates[0], rates[rates.len() - 1]);
            let middle = median(rates.clone());
            let without = |left: usize| {
                let rest = rates.iter().enumerate().filter(|(i, _)| *i != left);
                median(rest.map(|(_, rate)| *rate).collect())
            };
            let moves = (0..rates.len()).filter(|_| rates.len() > 1).map(without);
            let moves = moves.map(|one| (one - middle).abs()).fold(0.0, f64::max);
            let of = |difference: f64| 100.0 * difference / middle;
            text += &format!(
                "MODEL    {event}: median {middle:.0} in 1000 packets, {least:.0} to {most:.0}, {:.1} % apart; \
                 by any one run left out it moves {:.1} %\n",
                of(most - least),
                of(moves)
            );
        }
    }
    text
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
        for wrong in ["--runs", "--runs 0", "--event cycles", "--kib x", "--path tap", "5"] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_run_that_is_far_off_does_not_move_the_median() {
        assert_eq!(median(vec![900.0, 101.0, 99.0, 100.0, 98.0]), 100.0);
        assert_eq!(median(vec![2.0, 1.0]), 1.5);
    }

    /// A run with the same counts of the first two events.
    fn ran(rows: &[(&str, u64)]) -> Ran {
        let rows: Vec<_> = rows
            .iter()
            .map(|(symbol, count)| serde_json::json!({ "symbol": symbol, "count": count }))
            .collect();
        let document = serde_json::json!({ "conditions": { "packets": 1000 }, "rows": rows });
        Ran::of(PathBuf::new(), &[document.clone(), document]).unwrap()
    }

    #[test]
    fn a_stage_that_no_function_was_followed_of_is_an_error() {
        let first = |(_, olds): &(_, &[&str])| (names::today(olds[0])[0], 7);
        let mut rows: Vec<_> = names::STAGES.iter().map(first).collect();
        let text = stages(&[ran(&rows)]).unwrap();
        assert!(text.contains("MODEL    irq: e100_intr 7\n"), "{text}");
        rows.retain(|(name, _)| *name != "e100_tx_clean");
        let e = stages(&[ran(&rows)]).unwrap_err().to_string();
        assert!(e.starts_with("clean-up: no function"), "{e}");
    }

    #[test]
    fn the_post_s_list_stands_beside_ours_with_both_totals() {
        let none = [ran(&[("cpu_idle_poll.isra.0", 100), ("tcp_v4_rcv", 50), ("other", 10)])];
        let both = [ran(&[("cpu_idle_poll.isra.0", 60), ("tcp_v4_rcv", 5), ("other", 10)])];
        let text = beside(&none, &both);
        let words = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let row = ["90.2", "50.0", "5.0", "90.0", "50.0", "5.0", "90.0", "0.0", "0.0", "n/a"];
        assert_eq!(words(" tcp_v4_rcv ")[2..12], row);
        assert_eq!(words(" poll_idle ")[2..6], ["40.7", "100.0", "60.0", "40.0"]);
        assert_eq!(words(" total  ")[1..6], ["total", "53.0", "160.0", "75.0", "53.1"]);
        assert_eq!(words(" without idle ")[4..8], ["61.8", "60.0", "15.0", "75.0"]);
        assert!(text.lines().all(|line| line.starts_with("MODEL")));
        assert!(spread(&[none.into(), both.into()]).contains("160 to 160, 0.0 % apart"));
    }
}
