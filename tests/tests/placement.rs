//! Four adapters, as in post 003, each served where it is told to be, whatever the others are told.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use linerate_datapath::{Engine, Running};
use linerate_port::thread::allowed_cpus;
use linerate_tests::netns::Netns;
use linerate_tests::or_skip;
use linerate_tests::topology::wait_for_carrier;
use linerate_tests::wait::{SOON, until_true};

const ADAPTERS: usize = 4;
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

/// An engine that takes in what comes by each adapter, the `i`-th on `cpus[i]`.
fn adapters(cpus: &[usize]) -> Result<Engine, String> {
    let mut builder = Engine::builder().cpus(cpus);
    for i in 0..ADAPTERS {
        let (adapter, end) = (format!("a{i}"), format!("end{i}"));
        builder = builder
            .port(&adapter, &format!("xdp:{adapter},ring=256"))
            .port(&end, "sink:,blind")
            .wire(&adapter, &end);
    }
    builder.build().map_err(|e| e.to_string())
}

/// Sends packets to every adapter, from one worker.
fn send() -> Running {
    let mut builder = Engine::builder().workers(1);
    for i in 0..ADAPTERS {
        let (source, out) = (format!("gen{i}"), format!("b{i}"));
        builder = builder
            .port(&source, &format!("gen:,count={PACKETS},rate=20kpps"))
            .port(&out, &format!("packet:{out}"))
            .wire(&source, &out);
    }
    builder.build().unwrap().start().unwrap()
}

fn threads() -> BTreeSet<PathBuf> {
    fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path()).collect()
}

/// Where each of `workers` may run, and where it last did, in the order of their numbers.
fn places(workers: &BTreeSet<PathBuf>) -> Vec<(String, usize)> {
    let place = |path: &PathBuf| {
        let [status, stat] =
            ["status", "stat"].map(|file| fs::read_to_string(path.join(file)).unwrap());
        let said = |what: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(what));
            line.unwrap().trim().to_owned()
        };
        // The 39th field; the second, the name, is the only one with a bracket.
        let last = stat.rsplit(')').next().unwrap().split_whitespace().nth(36).unwrap();
        (said("Name:"), said("Cpus_allowed_list:"), last.parse().unwrap())
    };
    let mut all: Vec<_> = workers.iter().map(place).collect();
    all.sort();
    all.into_iter().map(|(_, allowed, last)| (allowed, last)).collect()
}

#[test]
fn four_adapters_are_placed_on_cpus_independently() {
    let netns = or_skip!(links());
    let allowed = allowed_cpus().unwrap();
    let [one, other] = [allowed[0], allowed[allowed.len() - 1]];
    // All together; apart; and one of them moved alone.
    for cpus in [[one; 4], [one, other, one, other], [one, other, other, other]] {
        let engine = or_skip!(netns.run(|| adapters(&cpus)));
        let before = threads();
        let running = engine.start().unwrap();
        let workers = threads().difference(&before).cloned().collect();
        let sending = netns.run(send);
        let stats = running.stats();
        let all_came = || {
            let ports = stats.ports();
            let mut adapters = ports.iter().filter(|port| port.driver == "xdp");
            adapters.all(|port| port.counts.rx_packets >= PACKETS)
        };
        until_true("every adapter's packets", SOON, all_came);
        let wanted: Vec<_> = cpus.iter().map(|cpu| (cpu.to_string(), *cpu)).collect();
        assert_eq!(places(&workers), wanted);
        drop((sending.stop(SOON), running.stop(SOON)));
    }
}
