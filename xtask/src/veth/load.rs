//! The CPU time that `linerate forward` takes at a part of the rate that it can carry: a program that
//! polls takes a whole CPU for nothing.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::veth::comparison::shown;
use crate::veth::figures::{median, range};
use crate::veth::options::Asked;
use crate::veth::programs::{Dut, Generator, Place};
use crate::veth::progress::Progress;
use crate::veth::window::{Bed, Window};

/// Parts of the highest rate, in per cent.
const PARTS_PCT: [u32; 6] = [0, 1, 5, 10, 25, 50];
const DUT: Dut = Dut::Linerate(["xdp:v0", "xdp:w0"]);
/// Windows for the highest rate if nobody has measured it.
const HIGHEST_WINDOWS: usize = 3;

/// Returns the number of windows that [`Load::run`] takes.
pub fn windows(asked: &Asked, highest_is_known: bool) -> usize {
    PARTS_PCT.len() * asked.rounds + if highest_is_known { 0 } else { HIGHEST_WINDOWS }
}

/// The windows at each part.
pub struct Load {
    highest_kpps: f64,
    parts: Vec<Part>,
}

struct Part {
    pct: u32,
    windows: Vec<Window>,
}

impl Load {
    /// Measures parts of `highest_kpps`, or of what it first finds out to be the highest rate.
    pub fn run(
        highest_kpps: Option<f64>,
        asked: &Asked,
        place: &Place<'_>,
        progress: &mut Progress,
    ) -> Result<Load> {
        let mut measure = |what: &str, generator, asked: Duration| {
            progress.begin(what);
            Window::measure(Bed::Veth, DUT, generator, asked, place)
        };
        let highest_kpps = match highest_kpps {
            Some(kpps) => kpps,
            None => {
                let kpps: Result<Vec<f64>> = (1..=HIGHEST_WINDOWS)
                    .map(|n| {
                        let what = format!("load: the highest rate, {n} of {HIGHEST_WINDOWS}");
                        Ok(measure(&what, Some(Generator::Kernel), asked.window)?.kpps())
                    })
                    .collect();
                median(kpps?).context("no highest rate")?
            }
        };
        let mut parts = PARTS_PCT.map(|pct| Part { pct, windows: Vec::new() });
        for n in 1..=asked.rounds {
            for part in &mut parts {
                let what = format!("load round {n} of {}, {} %", asked.rounds, part.pct);
                let pps = (highest_kpps * 1e3 * f64::from(part.pct) / 100.0) as u64;
                let generator = (pps > 0).then_some(Generator::Packet("a0", Some(pps)));
                part.windows.push(measure(&what, generator, asked.window)?);
            }
        }
        Ok(Load { highest_kpps, parts: parts.into() })
    }
}

impl Part {
    fn used(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|window| window.apart().is_none())
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let highest = self.highest_kpps;
        writeln!(f, "load: {DUT} alone, generator packet, parts of {highest:.1} kpps")?;
        writeln!(
            f,
            "  {:>6}{:>12}{:>12}{:>8}  {:<16}{:>14}{:>9}{:>6}{:>6}",
            "part %",
            "asked kpps",
            "kpps",
            "CPU %",
            "range",
            "CPU ns/packet",
            "theft %",
            "used",
            "apart"
        )?;
        for part in &self.parts {
            let of = |figure: fn(&Window) -> Option<f64>| median(part.used().filter_map(figure));
            let cpu = range(part.used().map(Window::cpu_pct));
            let cpu = cpu.map(|(low, high)| format!("[{low:.1}, {high:.1}]"));
            let used = part.used().count();
            writeln!(
                f,
                "  {:>6}{:>12.1}{:>12}{:>8}  {:<16}{:>14}{:>9}{:>6}{:>6}",
                part.pct,
                highest * f64::from(part.pct) / 100.0,
                shown(of(|window| Some(window.kpps())), 1),
                shown(of(|window| Some(window.cpu_pct())), 1),
                cpu.unwrap_or_default(),
                shown(of(Window::ns_per_packet), 1),
                shown(of(|window| Some(window.theft_pct)), 1),
                used,
                part.windows.len() - used,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_the_median_of_its_own_windows() {
        let asked = Duration::from_secs(1);
        let window = |cpu_ms: u64| Window {
            packets: 10_000,
            elapsed: asked,
            cpu_ns: cpu_ms * 1_000_000,
            waited_ns: 0,
            theft_pct: 0.0,
            asked,
        };
        let robbed = Window { theft_pct: 50.0, ..window(900) };
        let windows = vec![window(10), window(30), window(20), robbed];
        let load = Load { highest_kpps: 1000.0, parts: vec![Part { pct: 1, windows }] };
        let text = load.to_string();
        let line: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        let expected = ["1", "10.0", "10.0", "2.0", "[1.0,", "3.0]", "2000.0", "0.0", "3", "1"];
        assert_eq!(line, expected, "{text}");
    }
}
