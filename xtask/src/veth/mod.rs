//! Campaign `veth`: `linerate forward` and peers in turn between virtual interfaces, under as many
//! packets as one CPU sends, and what it takes under fewer.
//!
//! Nothing of this machine is touched: every measurement has a network namespace without a name,
//! which the kernel removes with the last process inside, and every process is killed with the
//! thread that started it, however this program ends.

pub mod child;
mod comparison;
pub mod figures;
mod kernel;
mod load;
mod options;
pub mod programs;
mod progress;
mod vswitch;
mod window;

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use linerate_sys::netns::Netns;
use linerate_sys::{Kind, thread};

use crate::cargo;
use crate::steps::Done;
use comparison::{COMPARISONS, Failed};
use load::Load;
use options::{Asked, USAGE};
use programs::{DUT_CPU, Dut, GENERATOR_CPU, Place};
use progress::Progress;

/// Command that builds the measured program, unless another is named.
const BUILD: &str = "cargo build --release --package linerate-cli";

/// Measures what is asked for, and prints a table for each comparison as soon as it is done.
pub fn run(root: &Path, args: &[String]) -> Result<Done> {
    match args {
        [help] if help == "--help" || help == "-h" => {
            print!("{USAGE}");
            return Ok(Done::default());
        }
        [word] if word == kernel::WORD => return kernel::send().map(|()| Done::default()),
        _ => {}
    }
    let target = std::path::absolute(cargo::target_dir(root))?;
    let asked = Asked::read(args, target.join("release/linerate"))?;
    if !asked.program.is_file() {
        bail!("there is no {}: {BUILD}, or --program PATH", asked.program.display());
    }
    if let Some((program, package)) = programs::missing(&programs::TOOLS) {
        return Ok(Done::skipped(&format!("no {program}"), &format!("apt-get install {package}")));
    }
    match (Netns::new(), thread::allowed_cpus()?) {
        (Err(why), _) if why.kind() == Kind::Unsupported => {
            return Ok(Done::skipped(&format!("{}: {}", why.what, why.why), &why.fix));
        }
        (Err(why), _) => return Err(why.into()),
        (_, cpus) if [DUT_CPU, GENERATOR_CPU].iter().any(|cpu| !cpus.contains(cpu)) => {
            let why = format!("CPUs {DUT_CPU} and {GENERATOR_CPU} are not both ours");
            return Ok(Done::skipped(&why, "a machine with two CPUs"));
        }
        _ => {}
    }
    let folder = target.join("veth");
    fs::create_dir_all(&folder)?;
    campaign(&asked, &Place { linerate: &asked.program, folder: &folder })
}

/// Each comparison that is asked for, and the load of ours alone last.
fn campaign(asked: &Asked, place: &Place<'_>) -> Result<Done> {
    let (mut skipped, mut failed) = (Vec::new(), Vec::new());
    let wanted = COMPARISONS.iter().filter(|one| asked.wants(one.name));
    let (missing, there): (Vec<_>, Vec<_>) =
        wanted.map(|one| (one, one.missing())).partition(|(_, missing)| missing.is_some());
    for (one, missing) in missing {
        let (program, package) = missing.unwrap_or_default();
        skipped.push(format!("skipped: {}: no {program} (apt-get install {package})", one.name));
    }
    let with_load = asked.wants("load");
    let for_load = if with_load { load::windows(asked, asked.wants("xdp")) } else { 0 };
    let mut progress = Progress::new(there.len() * 2 * asked.rounds + for_load);
    let mut highest_kpps = None;
    println!("{}", head(asked));
    for (one, _) in there {
        let compared = one.run(asked, place, &mut progress);
        progress.clear();
        match compared {
            Ok(compared) => {
                print!("\n{compared}");
                if one.name == "xdp" {
                    highest_kpps = compared.kpps(0);
                }
            }
            Err(Failed { side: Dut::Linerate(_), why }) => {
                failed.push(format!("{}: {why:#}", one.name));
            }
            // A peer that does not run here is no fault of ours.
            Err(Failed { why, .. }) => skipped.push(format!("skipped: {}: {why:#}", one.name)),
        }
    }
    if with_load {
        let load = Load::run(highest_kpps, asked, place, &mut progress);
        progress.clear();
        match load {
            Ok(load) => print!("\n{load}"),
            Err(why) => failed.push(format!("load: {why:#}")),
        }
    }
    if !failed.is_empty() {
        bail!("not measured: {}", failed.join("\n"));
    }
    Ok(Done::with(String::new(), skipped))
}

fn head(asked: &Asked) -> String {
    format!(
        "veth: rounds of {1} s for each side in turn, {0} of them; frames of 60 bytes, one flow; \
         the program under test on CPU {2}, the generator on CPU {3}",
        asked.rounds,
        asked.window.as_secs_f64(),
        DUT_CPU,
        GENERATOR_CPU
    )
}
