//! Register access with a price: adds to any port the CPU time that a NIC's register writes and
//! reads would take. All results that are measured with it are of a MODEL.
//!
//! ```text
//!  an irq, by the device or by a timer   write mask, read cause … write unmask, read it back
//!  a sleep that did not come to be       write unmask, read it back
//!  rx that found packets                 write the tail of the receive ring
//!  xmit that sent packets                write the tail of the transmit ring
//! ```
//!
//! A write is *posted*: the CPU goes on once it is in a buffer. A read *flushes*: it waits until
//! all posted writes before it are through, and spins meanwhile, the longer the busier the bus is:
//! `read / (1 - load)`, where load is the packets' bytes of the last millisecond over what the bus
//! carries, and 15/16 at most.
//!
//! A caller that polls without sleeping (`moderation=busy`) looks for packets by arming the queue,
//! so each wait that finds some costs it as much as a cancelled sleep, which a NIC would not
//! charge. An engine's worker in this mode polls without arming.
//!
//! Owner: the queue. It reads the clock and spins a few times a call, never a packet.
//!
//! Source: post 001 ("we're spinning, waiting for PIOs to flush (this can take an impressively long
//! time when the PCI bus/bridge is busy.)"); docs/adr/0017-a-toll-for-registers.md.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Local, Moved};

use super::{Layer, Wrapped};
use crate::queue::{QueueOps, Want};
use crate::stats::{Counters, Registers};
use crate::units::{self, ParseError, Rate};

/// Highest price of one access.
const ACCESS_MAX: Duration = Duration::from_micros(100);
/// Period over which the load of the bus is measured.
const SPAN: Duration = Duration::from_millis(1);
/// Highest load: a read then takes 16 times as long as on an idle bus.
const LOAD_MAX: f64 = 15.0 / 16.0;

/// Prices of register access: the option `toll=WRITE/READ[/BUS]` of a port text, as
/// `toll=100ns/1us/4Gbps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toll {
    /// Time of a posted write.
    pub write: Duration,
    /// Time of a flushing read on an idle bus.
    pub read: Duration,
    /// Capacity of the bus in bits a second; `None` if reads take the same time under load.
    pub bus_bps: Option<u64>,
}

impl FromStr for Toll {
    type Err = ParseError;

    /// Parses `WRITE/READ` or `WRITE/READ/BUS`.
    ///
    /// # Errors
    /// Says what is wrong and how it is written.
    fn from_str(text: &str) -> Result<Toll, ParseError> {
        let form = |why: String| {
            ParseError::new(format!("{why}; write WRITE/READ[/BUS], as 100ns/1us/4Gbps"))
        };
        let mut parts = text.split('/');
        let mut time = |what: &str| {
            let part =
                parts.next().ok_or_else(|| form(format!("there is no price of a {what}")))?;
            let time = units::duration(part).map_err(|e| form(e.into()))?;
            match time <= ACCESS_MAX {
                true => Ok(time),
                false => Err(form(format!("a {what} takes at most {ACCESS_MAX:?}, not {part}"))),
            }
        };
        let (write, read) = (time("write")?, time("read")?);
        let bus = |part: &str| match units::rate(part) {
            Ok(Rate::Bps(bps)) if bps >= 1.0 => Ok(bps as u64),
            Ok(_) => Err(form(format!("a bus carries bits a second, not {part}"))),
            Err(e) => Err(form(e.into())),
        };
        let bus_bps = parts.next().map(bus).transpose()?;
        match parts.next() {
            Some(more) => Err(form(format!("there is nothing behind the bus, not {more}"))),
            None => Ok(Toll { write, read, bus_bps }),
        }
    }
}

/// Displays the price in the syntax of port texts.
impl fmt::Display for Toll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.write, self.read)?;
        self.bus_bps.map_or(Ok(()), |bps| write!(f, "/{}", Rate::Bps(bps as f64)))
    }
}

/// A queue whose register accesses have a price.
pub type Tolled = Wrapped<Booth>;

impl Tolled {
    /// Wraps a queue so that it pays the prices of `toll`.
    #[must_use]
    pub fn new(inner: Box<dyn QueueOps>, toll: Toll) -> Tolled {
        let bus = Bus { toll, bytes: 0, since: Instant::now(), load: 0.0 };
        Wrapped::around(inner, Booth { bus, taken: Registers::default() })
    }
}

/// The layer that spends the CPU time of a queue's register accesses.
#[derive(Debug)]
pub struct Booth {
    bus: Bus,
    taken: Registers,
}

impl Booth {
    /// Spends the CPU time of `writes` and `reads` accesses.
    fn charge(&mut self, writes: u32, reads: u32) {
        let begun = Instant::now();
        let read = self.bus.read(begun);
        let price = writes * self.bus.toll.write + reads * read;
        while begun.elapsed() < price {
            std::hint::spin_loop();
        }
        self.taken.writes += u64::from(writes);
        self.taken.reads += u64::from(reads);
        self.taken.write_ns += nanos(writes * self.bus.toll.write);
        self.taken.read_ns += nanos(reads * read);
    }
}

impl Layer for Booth {
    fn rx(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        let moved = below.rx(mem, out, budget);
        if moved.packets > 0 {
            self.bus.bytes += moved.bytes;
            self.charge(1, 0);
        }
        moved
    }

    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        let moved = below.xmit(mem, batch);
        if moved.packets > 0 {
            self.bus.bytes += moved.bytes;
            self.charge(1, 0);
        }
        moved
    }

    fn arm(&mut self, below: &mut dyn QueueOps, want: Want) -> bool {
        let armed = below.arm(want);
        if !armed {
            self.charge(1, 1);
        }
        armed
    }

    fn irq(&mut self, below: &mut dyn QueueOps) {
        below.irq();
        self.charge(2, 2);
    }

    fn counters(&mut self, below: &mut dyn QueueOps) -> Counters {
        let mut counters = below.counters();
        counters.driver.registers = Some(self.taken);
        counters
    }
}

/// The modelled bus, with its load.
#[derive(Debug)]
struct Bus {
    toll: Toll,
    /// Bytes that crossed the bus since the start of the period.
    bytes: u64,
    since: Instant,
    load: f64,
}

impl Bus {
    /// Returns the time of a flushing read at the load of the last period.
    fn read(&mut self, now: Instant) -> Duration {
        let Some(bus_bps) = self.toll.bus_bps else { return self.toll.read };
        let time = now.saturating_duration_since(self.since);
        if time >= SPAN {
            let bps = self.bytes as f64 * 8.0 / time.as_secs_f64();
            self.load = (bps / bus_bps as f64).min(LOAD_MAX);
            (self.bytes, self.since) = (0, now);
        }
        self.toll.read.div_f64(1.0 - self.load)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
