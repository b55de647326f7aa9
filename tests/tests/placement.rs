//! Four adapters, as in post 003, each served on the CPU given for it, independently of the others.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use linerate_datapath::{Engine, Running};
use linerate_port::Port;
use linerate_port::thread::allowed_cpus;
use linerate_tests::netns::Netns;
use linerate_tests::or_skip;
use linerate_tests::topology::wait_for_carrier;
use linerate_tests::wait::{SOON, until_true};

const ADAPTERS: usize = 4;
/// The packets of a tenth of a second.
const PACKETS: u64 = 2_000;

/// Pairs `a0 ═ b0` to `a3 ═ b3`.
fn links() -> Result<Netns, String> {
    let netns = Netns::new()?;
    for i in 0..ADAPTERS {
        netns.try_ip(&format!("link add dev a{i} type veth peer name b{i}"))?;
        for end in ["a", "b"] {
            netns.ip(&format!("link set dev {end}{i} up"));
        }
        wait_for_carrier(&netns, &format!("a{i}"));
        wait_for_carrier(&netns, &format!("b{i}"));
    }
    Ok(netns)
}

/// Builds an engine that receives from each adapter, from the `i`-th on `cpus[i]`.
fn adapters(cpus: &[usize]) -> Engine {
    let mut builder = Engine::builder().cpus(cpus);
    for i in 0..ADAPTERS {
        let (adapter, end) = (format!("a{i}"), format!("end{i}"));
        builder = builder
            .port(&adapter, &format!("xdp:{adapter},ring=256"))
            .port(&end, "sink:,blind")
            .wire(&adapter, &end);
    }
    builder.build().unwrap()
}

/// Sends packets to one adapter, on a CPU of its own choice, until it is dropped.
fn send(adapter: usize) -> Running {
    let engine = Engine::builder()
        .port("source", "gen:,rate=20kpps,burst=1")
        .port("out", &format!("packet:b{adapter}"))
        .wire("source", "out");
    engine.build().unwrap().start().unwrap()
}

fn threads() -> BTreeSet<PathBuf> {
    fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path()).collect()
}

/// A worker's thread.
#[derive(Debug)]
struct Served {
    name: String,
    /// The CPUs on which it may run, and the one on which it last ran.
    allowed: String,
    last: usize,
    /// Times that it has slept.
    sleeps: u64,
}

impl Served {
    fn read(path: &Path) -> Served {
        let [status, stat] =
            ["status", "stat"].map(|file| fs::read_to_string(path.join(file)).unwrap());
        let said = |what: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(what));
            line.unwrap().trim().to_owned()
        };
        // The 39th field; the second, the name, is the only one with a bracket.
        let last = stat.rsplit(')').next().unwrap().split_whitespace().nth(36).unwrap();
        Served {
            name: said("Name:"),
            allowed: said("Cpus_allowed_list:"),
            last: last.parse().unwrap(),
            sleeps: said("voluntary_ctxt_switches:").parse().unwrap(),
        }
    }
}

#[test]
fn four_adapters_are_placed_on_cpus_independently() {
    let netns = or_skip!(links());
    or_skip!(netns.run(|| Port::open("xdp:a0").map(drop)));
    let allowed = allowed_cpus().unwrap();
    let [one, other] = [allowed[0], allowed[allowed.len() - 1]];
    if one == other {
        eprintln!("skipped: with one CPU there is nothing to choose");
        return;
    }
    // All together; apart; and one of them moved alone.
    for cpus in [[one; ADAPTERS], [one, other, one, other], [one, other, other, other]] {
        let engine = netns.run(|| adapters(&cpus));
        let before = threads();
        let running = engine.start().unwrap();
        let workers: Vec<_> = threads().difference(&before).cloned().collect();
        let read = || {
            let mut all: Vec<_> = workers.iter().map(|path| Served::read(path)).collect();
            all.sort_by(|a, b| a.name.cmp(&b.name));
            all
        };
        for (i, cpu) in cpus.into_iter().enumerate() {
            let idle = read();
            let sending = netns.run(|| send(i));
            let came = || running.stats().ports()[2 * i].counts.rx_packets >= PACKETS;
            until_true("an adapter's packets", SOON, came);
            drop(sending.stop(SOON));
            let worked = read();
            // It has slept between them; the others had nothing to wake for, or a stray packet.
            let woken = |j: usize| worked[j].sleeps - idle[j].sleeps;
            assert_eq!((0..ADAPTERS).max_by_key(|j| woken(*j)), Some(i), "{idle:?} {worked:?}");
            assert_eq!((&worked[i].allowed, worked[i].last), (&cpu.to_string(), cpu));
        }
        drop(running.stop(SOON));
    }
}
