//! Two programs in turn under the same packets, and what may be said of the two.
//!
//! A machine changes while it is measured, and slower than a round: the ratio within a round is
//! nearer to the programs than that of two runs one after the other.

use std::fmt::{self, Write as _};

use anyhow::Result;

use crate::veth::figures::{median, range, ratio};
use crate::veth::options::Asked;
use crate::veth::programs::{Dut, Generator, Place};
use crate::veth::progress::Progress;
use crate::veth::window::{Bed, LETS_OUT, Window};

/// Restarts of a peer that sends nothing, in one comparison.
const STARTS_IN_VAIN: u32 = 5;

/// Ours, a peer, and where the packets come from.
pub struct Comparison {
    /// Name on the command line.
    pub name: &'static str,
    /// Ours, and the peer.
    pub sides: [Dut; 2],
    generator: Generator,
    bed: Bed,
}

/// Every comparison, in the order in which they run.
pub const COMPARISONS: [Comparison; 4] = [
    Comparison {
        name: "xdp",
        sides: [
            Dut::Linerate(["xdp:v0", "xdp:w0"]),
            Dut::Testpmd(["net_af_xdp0,iface=v0", "net_af_xdp1,iface=w0"]),
        ],
        generator: Generator::Kernel,
        bed: Bed::Veth,
    },
    Comparison {
        name: "packet",
        sides: [
            Dut::Linerate(["packet:v0", "packet:w0"]),
            Dut::Testpmd(["net_af_packet0,iface=v0", "net_af_packet1,iface=w0"]),
        ],
        generator: Generator::Packet("a0", None),
        bed: Bed::Veth,
    },
    Comparison {
        name: "tap",
        sides: [
            Dut::Linerate(["tap:t0", "tap:t1"]),
            Dut::Testpmd(["net_tap0,iface=t0", "net_tap1,iface=t1"]),
        ],
        generator: Generator::Packet("t0", None),
        bed: Bed::Tap,
    },
    Comparison {
        name: "ovs",
        sides: [Dut::Linerate(["xdp:v0", "xdp:w0"]), Dut::Vswitch(["v0", "w0"])],
        generator: Generator::Kernel,
        bed: Bed::Veth,
    },
];

/// One window of each side, next to each other in time.
pub type Round = [Window; 2];

/// Why a comparison was not measured.
pub struct Failed {
    /// The side that could not be measured.
    pub side: Dut,
    /// The reason.
    pub why: anyhow::Error,
}

/// A comparison that was measured.
pub struct Compared<'a> {
    of: &'a Comparison,
    rounds: Vec<Round>,
    /// Starts of the peer after which it forwarded nothing.
    vain: u32,
}

impl Comparison {
    /// A program that a side of it takes and that is not there, and Debian's package of it.
    pub fn missing(&self) -> Option<(&'static str, &'static str)> {
        self.sides.iter().find_map(|side| side.missing())
    }

    /// Measures every round of it.
    pub fn run(
        &self,
        asked: &Asked,
        place: &Place<'_>,
        progress: &mut Progress,
    ) -> Result<Compared<'_>, Failed> {
        let (mut rounds, mut vain) = (Vec::with_capacity(asked.rounds), 0);
        for n in 1..=asked.rounds {
            let mut round = [Window::default(); 2];
            for (window, side) in round.iter_mut().zip(self.sides) {
                progress.begin(&format!(
                    "{} round {n} of {}, {}",
                    self.name,
                    asked.rounds,
                    side.name()
                ));
                *window = self
                    .window(side, asked, place, &mut vain)
                    .map_err(|why| Failed { side, why })?;
            }
            rounds.push(round);
        }
        Ok(Compared { of: self, rounds, vain })
    }

    /// One window of a side. Started under load, testpmd's `net_af_xdp` now and then forwards nothing: it is
    /// started anew, and that is counted in `vain`. Ours has one start.
    fn window(
        &self,
        side: Dut,
        asked: &Asked,
        place: &Place<'_>,
        vain: &mut u32,
    ) -> Result<Window> {
        loop {
            let generator = Some(self.generator);
            let window = Window::measure(self.bed, side, generator, asked.window, place);
            let again = matches!(side, Dut::Testpmd(_)) && *vain < STARTS_IN_VAIN;
            match window {
                Err(why) if again && why.to_string().contains(LETS_OUT) => {
                    eprintln!("again: {why:#}")
                }
                window => return window,
            }
            *vain += 1;
        }
    }
}

impl Compared<'_> {
    /// Returns the rate of side `side`, in thousands of packets a second.
    pub fn kpps(&self, side: usize) -> Option<f64> {
        median(self.used().map(|round| round[side].kpps()))
    }

    /// The rounds in which neither side was disturbed.
    fn used(&self) -> impl Iterator<Item = &Round> {
        self.rounds.iter().filter(|round| round.iter().all(|window| window.apart().is_none()))
    }

    /// A line of the table: the median of each side, their ratio, the range of the rounds' ratios.
    fn line(&self, name: &str, digits: usize, of: impl Fn(&Window) -> Option<f64>) -> String {
        let side = |side: usize| median(self.used().filter_map(|round| of(&round[side])));
        let (ours, theirs) = (side(0), side(1));
        let quotient = |pair: Option<(f64, f64)>| pair.and_then(|(a, b)| ratio(a, b));
        let pairs = self.used().filter_map(|[a, b]| quotient(of(a).zip(of(b))));
        let range = range(pairs).map(|(low, high)| format!("[{low:.3}, {high:.3}]"));
        format!(
            "  {name:<14}{:>12}{:>12}{:>9}  {}\n",
            shown(ours, digits),
            shown(theirs, digits),
            shown(quotient(ours.zip(theirs)), 3),
            range.unwrap_or_default()
        )
    }

    /// The rounds that are set apart, each with its reason.
    fn apart(&self) -> String {
        let mut text = String::new();
        for (n, round) in self.rounds.iter().enumerate() {
            let why: Vec<String> = (round.iter().zip(self.of.sides))
                .filter_map(|(window, side)| Some(format!("{}: {}", side.name(), window.apart()?)))
                .collect();
            if !why.is_empty() {
                let [a, b] = round.map(|window| window.kpps());
                let _ = writeln!(
                    text,
                    "  round {} apart: {a:.1} and {b:.1} kpps; {}",
                    n + 1,
                    why.join(", ")
                );
            }
        }
        text
    }
}

impl fmt::Display for Compared<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ours, theirs] = self.of.sides;
        writeln!(f, "{}: {ours} and {theirs}, generator {}", self.of.name, self.of.generator)?;
        writeln!(
            f,
            "  {:<14}{:>12}{:>12}{:>9}  range within rounds",
            "median",
            ours.name(),
            theirs.name(),
            "ratio"
        )?;
        f.write_str(&self.line("kpps", 1, |window| Some(window.kpps())))?;
        f.write_str(&self.line("CPU ns/packet", 1, Window::ns_per_packet))?;
        f.write_str(&self.line("CPU %", 1, |window| Some(window.cpu_pct())))?;
        f.write_str(&self.line("waiting %", 1, |window| Some(window.waited_pct())))?;
        let used = self.used().count();
        let apart = self.rounds.len() - used;
        let theft = range(self.used().flatten().map(|window| window.theft_pct));
        let theft = shown(theft.map(|(_, most)| most), 1);
        writeln!(f, "  rounds: {used} used, theft in them at most {theft} %; {apart} apart")?;
        if self.vain > 0 {
            let peer = self.of.sides[1].name();
            writeln!(
                f,
                "  {peer} forwarded nothing after {} starts, and was started anew",
                self.vain
            )?;
        }
        f.write_str(&self.apart())
    }
}

/// A figure, or that there is none.
pub fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn window(packets: u64, theft_pct: f64) -> Window {
        let asked = Duration::from_secs(1);
        Window { packets, elapsed: asked, cpu_ns: 1_000_000_000, waited_ns: 0, theft_pct, asked }
    }

    #[test]
    fn a_disturbed_round_is_shown_and_not_in_the_median() {
        let rounds = vec![
            [window(1_200_000, 0.0), window(1_000_000, 0.0)],
            [window(10_000, 0.0), window(20_000, 30.0)],
            [window(1_000_000, 1.0), window(1_000_000, 0.0)],
        ];
        let compared = Compared { of: &COMPARISONS[0], rounds, vain: 0 };
        assert_eq!(compared.kpps(0), Some(1100.0));
        let text = compared.to_string();
        assert!(text.contains("1100.0      1000.0    1.100  [1.000, 1.200]"), "{text}");
        assert!(text.contains("rounds: 2 used, theft in them at most 1.0 %; 1 apart"), "{text}");
        let apart = "round 2 apart: 10.0 and 20.0 kpps; testpmd: the host took 30.0 %";
        assert!(text.contains(apart), "{text}");
    }

    #[test]
    fn without_a_usable_round_there_are_no_figures() {
        let rounds = vec![[window(1, 30.0), window(1, 0.0)]];
        let compared = Compared { of: &COMPARISONS[0], rounds, vain: 0 };
        assert_eq!(compared.kpps(0), None);
        assert!(
            compared.to_string().contains("rounds: 0 used, theft in them at most - %; 1 apart")
        );
    }
}
