//! The text printed before a run: the modes that ports obtained, and the settings in effect.

use std::io::{IsTerminal, stdout};

use linerate::{Data, Engine, Init, Pages, Pool, PortStats, Return};
use linerate_ctl::pool::{INIT, RETURN, word};
use linerate_sys::text::thousands;

use crate::args::{Memory, Run};
use crate::report::obtained;
use crate::run::Path;

/// Returns the text printed before a run: the modes that ports obtained, and the options in effect.
pub fn preface(engine: &Engine, path: &Path, run: &Run) -> String {
    let stats = engine.stats();
    let ports = stats.ports();
    let workers = match stats.workers().len() {
        1 => "1 worker".into(),
        n => format!("{n} workers"),
    };
    let cpus: Vec<String> = run.cpu.iter().map(usize::to_string).collect();
    let cpus = if cpus.is_empty() { "any CPU".into() } else { format!("CPU {}", cpus.join(",")) };
    obtained(ports.iter().map(|p| (p.name.as_str(), &p.obtained)), stdout().is_terminal())
        + &format!("options  {}, budget {}, {workers} on {cpus}\n", path.until, run.budget)
        + &format!("memory   {}\n", memory(engine, &run.memory))
        + &copies(&ports)
        + "\n"
}

/// Returns the line that names the interfaces whose packets are copied; the lines of the ports have
/// the reasons.
fn copies(ports: &[PortStats]) -> String {
    let is_copied = |mode: &str| mode.split([' ', ',']).any(|word| word == "copy");
    let copied = ports.iter().filter(|p| p.flags.interface && is_copied(&p.obtained.mode));
    let names: Vec<&str> = copied.map(|p| p.name.as_str()).collect();
    match names.join(", ").as_str() {
        "" => String::new(),
        names => {
            format!(
                "copies   {names}: each packet once, between the kernel's memory and the pool\n"
            )
        }
    }
}

/// Returns the size of a pool's pages, as printed.
fn pages(pool: &Pool) -> &'static str {
    match pool.pages() {
        Pages::Huge2M => ", in 2 MiB pages",
        Pages::Base => ", in ordinary pages",
        _ => ", in huge pages",
    }
}

/// Describes the pool: its frames, their size, and settings other than the defaults.
fn memory(engine: &Engine, asked: &Memory) -> String {
    let stats = engine.stats();
    let pool = stats.pool();
    let all: u64 = stats.pools().iter().map(|pool| pool.frames() as u64).sum();
    let (frames, needed) = (pool.frames() as u64, engine.holders().iter().map(|h| h.frames).sum());
    let needed = match needed {
        n if n == all => String::new(),
        n => format!(" ({} needed)", thousands(n)),
    };
    let (frames, bytes) = (thousands(frames), pool.frame_size());
    let mut text = match asked.buffers {
        Data::Frames => format!("{frames} frames of {bytes} bytes{needed}"),
        Data::General => {
            format!("{frames} headers{needed}, {bytes} bytes a packet from the system's allocator")
        }
    };
    if pool.jumbo_frames() > 0 {
        let bytes = pool.jumbo_room() + pool.headroom();
        text += &format!(" and {} of {bytes}", thousands(pool.jumbo_frames() as u64));
    }
    if asked.buffers == Data::Frames {
        text += pages(pool);
    }
    for apart in stats.pools().iter().skip(1) {
        let frames = thousands(apart.frames() as u64);
        text += &format!(", and {frames} that a peer may write{}", pages(apart));
    }
    if asked.init != Init::default() {
        text += &format!(", init {}", word(&INIT, asked.init));
    }
    if asked.return_to != Return::default() {
        text += &format!(", return {}", word(&RETURN, asked.return_to));
    }
    text
}
