//! One measurement: a program between two interfaces, a generator before it, a counter behind it.
//!
//! ```text
//!   generator ── a0 ═ v0 ── program ── w0 ═ b0       veth: counted is what b0 receives
//!   generator ── t0 ── program ── t1                 tap: what the program writes into t1
//! ```
//!
//! Each has a network namespace and processes of its own, which end with it: no socket, no program
//! of the kernel and no queue of one measurement is there in the next.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use linerate_sys::netif::Interface;
use linerate_sys::netns::Netns;

use crate::veth::child::Running;
use crate::veth::figures::{self, Ticks, Time};
use crate::veth::programs::{DUT_CPU, Dut, GENERATOR_CPU, Generator, Place};

/// Description of the condition to wait for after the start of a program.
pub const LETS_OUT: &str = "lets packets out";
/// Between the first packets and the measurement: queues fill, memory becomes warm.
const SETTLE: Duration = Duration::from_secs(1);
/// So many packets are no stray ones.
const FIRST_PACKETS: u64 = 1000;
/// A window that became longer by more than this share was held up.
const LATE: f64 = 0.05;
/// A window of which the host took more than this is set apart.
const THEFT_PCT: f64 = 5.0;

/// The interfaces of a measurement.
#[derive(Debug, Clone, Copy)]
pub enum Bed {
    /// Two pairs of veth.
    Veth,
    /// Two tap devices, which the program makes.
    Tap,
}

/// The counts of a window.
#[derive(Debug, Clone, Copy, Default)]
pub struct Window {
    /// Packets that arrived behind the program.
    pub packets: u64,
    /// Duration by the clock.
    pub elapsed: Duration,
    /// CPU time of the program.
    pub cpu_ns: u64,
    /// Time that its threads waited for a CPU in use by others.
    pub waited_ns: u64,
    /// Share of the program's CPU or of the generator's that the host took, whichever is more.
    pub theft_pct: f64,
    /// The window as it was asked for.
    pub asked: Duration,
}

impl Window {
    /// Measures `dut` for `asked`, with packets from `generator` if there is one.
    pub fn measure(
        bed: Bed,
        dut: Dut,
        generator: Option<Generator>,
        asked: Duration,
        place: &Place<'_>,
    ) -> Result<Window> {
        let netns = Netns::new()?;
        netns.quiet()?;
        bed.make(&netns)?;
        // What the thread inside starts ends with it.
        netns.run(|| {
            let mut dut = dut.start(place)?;
            bed.wait_until_made(&netns, &mut dut)?;
            let mut generator = generator.map(|generator| generator.start(place)).transpose()?;
            match &mut generator {
                Some(generator) => wait_for_packets(bed, &mut dut, generator)?,
                // Nothing shows that it is ready; nothing waits for it, either.
                None => sleep(SETTLE),
            }
            sleep(SETTLE);
            let before = Counters::read(bed, &dut)?;
            sleep(asked);
            let after = Counters::read(bed, &dut)?;
            dut.still()?;
            generator.as_mut().map_or(Ok(()), Running::still)?;
            Ok(after.since(&before, asked))
        })?
    }

    /// Packets a second, in thousands.
    pub fn kpps(&self) -> f64 {
        self.packets as f64 / self.elapsed.as_secs_f64() / 1e3
    }

    /// CPU time of a packet; `None` without one.
    pub fn ns_per_packet(&self) -> Option<f64> {
        figures::ratio(self.cpu_ns as f64, self.packets as f64)
    }

    /// CPU time, in per cent of one CPU.
    pub fn cpu_pct(&self) -> f64 {
        100.0 * self.cpu_ns as f64 / self.elapsed.as_nanos() as f64
    }

    /// Time for which it would have run and did not, in per cent of one CPU.
    pub fn waited_pct(&self) -> f64 {
        100.0 * self.waited_ns as f64 / self.elapsed.as_nanos() as f64
    }

    /// Why it says little, if it does.
    pub fn apart(&self) -> Option<String> {
        let late = self.elapsed.as_secs_f64() / self.asked.as_secs_f64() - 1.0;
        if self.theft_pct > THEFT_PCT {
            Some(format!("the host took {:.1} %", self.theft_pct))
        } else if late > LATE {
            Some(format!("held up, {:.1} s long", self.elapsed.as_secs_f64()))
        } else {
            None
        }
    }
}

impl Bed {
    fn make(self, netns: &Netns) -> Result<()> {
        if let Bed::Veth = self {
            for [a, b] in [["a0", "v0"], ["w0", "b0"]] {
                netns.ip(&format!("link add {a} type veth peer name {b}"))?;
                netns.ip(&format!("link set {a} up"))?;
                netns.ip(&format!("link set {b} up"))?;
            }
        }
        Ok(())
    }

    /// Waits for the interfaces that the program makes, and turns them on.
    fn wait_until_made(self, netns: &Netns, dut: &mut Running) -> Result<()> {
        let Bed::Tap = self else { return Ok(()) };
        for name in ["t0", "t1"] {
            let made = || Ok(Interface::open(name).is_ok());
            dut.until(&format!("makes an interface {name}"), made)?;
            netns.ip(&format!("link set {name} up"))?;
        }
        Ok(())
    }

    /// Packets that came out behind the program.
    fn received(self) -> Result<u64> {
        let behind = match self {
            Bed::Veth => "b0",
            Bed::Tap => "t1",
        };
        // Not /sys, which shows the namespace in which it was mounted.
        let text = fs::read_to_string("/proc/thread-self/net/dev")?;
        figures::received(&text, behind).with_context(|| format!("there is no interface {behind}"))
    }
}

/// The counters read before and after.
struct Counters {
    packets: u64,
    time: Time,
    ticks: [Ticks; 2],
    at: Instant,
}

impl Counters {
    fn read(bed: Bed, dut: &Running) -> Result<Counters> {
        let stat = fs::read_to_string("/proc/stat")?;
        let ticks = |cpu| Ticks::of(&stat, cpu).with_context(|| format!("there is no CPU {cpu}"));
        Ok(Counters {
            ticks: [ticks(DUT_CPU)?, ticks(GENERATOR_CPU)?],
            time: dut.time()?,
            packets: bed.received()?,
            at: Instant::now(),
        })
    }

    fn since(&self, before: &Counters, asked: Duration) -> Window {
        let theft = self.ticks.iter().zip(before.ticks).map(|(now, before)| now.theft_pct(before));
        Window {
            packets: self.packets.saturating_sub(before.packets),
            elapsed: self.at - before.at,
            cpu_ns: self.time.on_cpu_ns.saturating_sub(before.time.on_cpu_ns),
            waited_ns: self.time.waiting_ns.saturating_sub(before.time.waiting_ns),
            theft_pct: theft.fold(0.0, f64::max),
            asked,
        }
    }
}

fn wait_for_packets(bed: Bed, dut: &mut Running, generator: &mut Running) -> Result<()> {
    let before = bed.received()?;
    dut.until(LETS_OUT, || {
        generator.still()?;
        Ok(bed.received()? >= before + FIRST_PACKETS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window {
        packets: 4_000_000,
        elapsed: Duration::from_millis(2_000),
        cpu_ns: 1_000_000_000,
        waited_ns: 200_000_000,
        theft_pct: 0.5,
        asked: Duration::from_secs(2),
    };

    #[test]
    fn rates_and_costs_are_those_of_the_time_that_it_took() {
        assert_eq!(WINDOW.kpps(), 2000.0);
        assert_eq!(WINDOW.ns_per_packet(), Some(250.0));
        assert_eq!((WINDOW.cpu_pct(), WINDOW.waited_pct()), (50.0, 10.0));
        assert_eq!(Window { packets: 0, ..WINDOW }.ns_per_packet(), None);
    }

    #[test]
    fn a_window_that_was_robbed_or_held_up_is_set_apart() {
        assert_eq!(WINDOW.apart(), None);
        let robbed = Window { theft_pct: 5.1, ..WINDOW };
        assert!(robbed.apart().unwrap().contains("the host took 5.1 %"));
        let late = Window { elapsed: Duration::from_secs(60), ..WINDOW };
        assert!(late.apart().unwrap().contains("60.0 s long"));
    }
}
