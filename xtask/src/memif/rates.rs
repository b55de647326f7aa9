//! Ours and testpmd in turn, against the same testpmd.

use std::fs;
use std::thread::sleep;
use std::time::Instant;

use anyhow::{Context, Result};

use super::Asked;
use super::peers::{Device, Role, ours, printed, testpmd};
use crate::eta;
use crate::veth::child::Running;
use crate::veth::figures::{Ticks, median, range, ratio};
use crate::veth::programs::{DUT_CPU, GENERATOR_CPU};

/// A window of which the host took more than this is set apart.
const THEFT_PCT: f64 = 5.0;
/// Seconds that testpmd's figures are left out: it starts, they meet, memory becomes warm.
const SETTLE: usize = 2;

/// A case of the comparison, the same for both programs.
struct Case {
    name: &'static str,
    /// The role of the program under test.
    role: Role,
    /// Command of the generator, and the name of the figure to read from it.
    generator: &'static str,
    label: &'static str,
    /// Our options; whether packets come back.
    options: &'static str,
    back: bool,
}

const CASES: [Case; 5] = [
    Case {
        name: "macswap, server (by copies)",
        role: Role::Server,
        generator: "flowgen",
        label: "Rx-pps:",
        options: "",
        back: true,
    },
    Case {
        name: "macswap, client (ours zero copy)",
        role: Role::Client,
        generator: "flowgen",
        label: "Rx-pps:",
        options: "",
        back: true,
    },
    Case {
        name: "macswap, client (by copies)",
        role: Role::Client,
        generator: "flowgen",
        label: "Rx-pps:",
        options: ",zerocopy=no",
        back: true,
    },
    Case {
        name: "one way, to a server (by copies)",
        role: Role::Server,
        generator: "txonly",
        label: "Tx-pps:",
        options: "",
        back: false,
    },
    Case {
        name: "one way, to a client (ours zero copy)",
        role: Role::Client,
        generator: "txonly",
        label: "Tx-pps:",
        options: "",
        back: false,
    },
];

/// Counts of one program in a window.
#[derive(Debug, Clone, Copy)]
struct Window {
    pps: f64,
    cpu_ns_per_packet: f64,
    theft_pct: f64,
}

/// Measures every case, and prints it.
pub fn run(asked: &Asked) -> Result<()> {
    println!(
        "memif rates: {} rounds of {} s for each side in turn; 64-byte frames of testpmd's; the \
         program under test on CPU {DUT_CPU}, testpmd on CPU {GENERATOR_CPU}; ours sleeps when it \
         can, testpmd polls",
        asked.rounds,
        asked.window.as_secs()
    );
    let (total, begun, mut done) = (CASES.len() * asked.rounds * 2, Instant::now(), 0);
    for case in &CASES {
        let mut rounds: Vec<[Window; 2]> = Vec::new();
        let mut apart = 0;
        for round in 1..=asked.rounds {
            let mut windows = Vec::new();
            for side in ["ours", "testpmd"] {
                let left = eta::told(begun.elapsed(), done, total);
                eprintln!("{}, round {round}, {side}{left}", case.name);
                windows.push(measure(asked, case, side).with_context(|| case.name)?);
                done += 1;
            }
            let both = [windows[0], windows[1]];
            if both.iter().any(|window| window.theft_pct > THEFT_PCT) {
                apart += 1;
            } else {
                rounds.push(both);
            }
        }
        print(case, &rounds, apart);
    }
    Ok(())
}

fn measure(asked: &Asked, case: &Case, side: &str) -> Result<Window> {
    let socket = asked.folder.join("rates.sock");
    let _ = fs::remove_file(&socket);
    let generator = || {
        let device = Device { socket: &socket, role: case.role.other(), zero_copy: false };
        testpmd("generator", &[device], case.generator, GENERATOR_CPU, &asked.folder)
    };
    let under_test = || -> Result<Running> {
        if side == "testpmd" {
            let device = Device { socket: &socket, role: case.role, zero_copy: false };
            let forward = if case.back { "macswap" } else { "rxonly" };
            return testpmd("under-test", &[device], forward, DUT_CPU, &asked.folder);
        }
        let (role, path) = (case.role.as_str(), socket.display());
        let port = format!("memif:{path},role={role}{}", case.options);
        match case.back {
            true => ours(asked, "macswap", &[&port], DUT_CPU, "under-test"),
            // What it receives is freed.
            false => {
                let args = ["forward", &port, "sink:,blind", "--quiet", "--for", "1h"];
                ours(asked, "linerate", &args, DUT_CPU, "under-test")
            }
        }
    };
    // A client of testpmd's connects once, when it starts.
    let (mut generator, mut dut) = match case.role {
        Role::Server => {
            let mut dut = under_test()?;
            dut.until("listens", || Ok(socket.exists()))?;
            (generator()?, dut)
        }
        Role::Client => {
            let mut generator = generator()?;
            generator.until("listens", || Ok(socket.exists()))?;
            (generator, under_test()?)
        }
    };
    let rates = || -> Result<Vec<u64>> {
        let all = printed(case.label, "generator", &asked.folder)?;
        Ok(all.into_iter().skip_while(|pps| *pps == 0).collect())
    };
    generator.until("sends", || Ok(rates()?.len() > SETTLE))?;
    let first = rates()?.len();
    let (before, begun, ticks) = (dut.time()?, Instant::now(), stolen()?);
    sleep(asked.window);
    let (cpu_ns, lasted) = (dut.time()?.on_cpu_ns - before.on_cpu_ns, begun.elapsed());
    let theft_pct = stolen()?.into_iter().zip(ticks).map(|(now, then)| now.theft_pct(then));
    let theft_pct = theft_pct.fold(0.0, f64::max);
    let wanted = first + asked.window.as_secs() as usize;
    generator.until("has told its rates", || Ok(rates()?.len() >= wanted))?;
    dut.still()?;
    let rates = rates()?;
    let within = &rates[first..wanted];
    let pps = within.iter().sum::<u64>() as f64 / within.len().max(1) as f64;
    let packets = pps * lasted.as_secs_f64();
    Ok(Window { pps, cpu_ns_per_packet: cpu_ns as f64 / packets.max(1.0), theft_pct })
}

fn stolen() -> Result<Vec<Ticks>> {
    let stat = fs::read_to_string("/proc/stat")?;
    Ok([DUT_CPU, GENERATOR_CPU].iter().filter_map(|cpu| Ticks::of(&stat, *cpu)).collect())
}

fn print(case: &Case, rounds: &[[Window; 2]], apart: usize) {
    let of = |side: usize| median(rounds.iter().map(|round| round[side].pps / 1e6)).unwrap_or(0.0);
    let ratios = || rounds.iter().filter_map(|[ours, theirs]| ratio(ours.pps, theirs.pps));
    let cost = rounds
        .iter()
        .filter_map(|[ours, theirs]| ratio(ours.cpu_ns_per_packet, theirs.cpu_ns_per_packet));
    let (low, high) = range(ratios()).unwrap_or_default();
    println!(
        "{:<38} ours {:>6.2} Mpps  testpmd {:>6.2} Mpps  ratio {:.2} [{low:.2}, {high:.2}]  CPU a \
         packet {:.2}  rounds {} and {apart} apart",
        case.name,
        of(0),
        of(1),
        median(ratios()).unwrap_or(0.0),
        median(cost).unwrap_or(0.0),
        rounds.len(),
    );
}
