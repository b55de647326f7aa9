//! The plan of faults: their kinds, their rates, and the random numbers that choose them.

use std::time::Duration;

/// Default limit of the packets that a faulty queue holds in each direction.
const HOLD_PACKETS: usize = 256;
/// Smallest limit of held packets: room for a packet, its duplicate, and one set aside.
const HOLD_PACKETS_MIN: usize = 4;
/// Largest limit of held packets, because they occupy frames of the pool.
const HOLD_PACKETS_MAX: usize = 1 << 16;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A packet is lost: dropped as `injected`.
    Drop,
    /// A packet arrives twice, the second time directly after the first, unless the first is set
    /// aside. The ledger counts the second as created.
    Duplicate,
    /// A packet arrives after `behind` later packets, or after 16 turns if fewer follow. One that
    /// is delayed for a time as well arrives after that time at the earliest.
    Reorder {
        /// Number of packets that overtake it.
        behind: u32,
    },
    /// A packet and all packets after it are delayed, as on a longer wire.
    Delay(Duration),
    /// A packet is delayed for a number of turns: calls of `rx`, `xmit` or `reap`.
    DelayTurns(u32),
    /// One bit of a packet is flipped.
    Corrupt,
    /// A packet loses some bytes at its end, but not all bytes. A packet with fragments is not
    /// changed.
    Short,
    /// The device stalls for a time: it accepts and delivers nothing and keeps its packets.
    /// `one_in` counts calls; at least one call succeeds between two such faults.
    Stall(Duration),
    /// The queue accepts and delivers nothing for a number of calls, as on ENOBUFS. `one_in` counts
    /// calls, as for [`Fault::Stall`].
    Refuse {
        /// Number of calls that are refused.
        calls: u32,
    },
}

/// A fault, and how often it occurs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub fault: Fault,
    pub one_in: u32,
}

/// A plan of faults for each direction of a queue. The same plan with the same calls gives the same
/// faults.
///
/// ```
/// # use linerate_port as linerate;
/// use linerate::wrap::fault::{Fault, Plan};
/// use std::time::Duration;
///
/// let lossy = Plan::new(7).tx(Fault::Drop, 100).rx(Fault::Delay(Duration::from_millis(2)), 10);
/// ```
#[derive(Debug, Clone)]
pub struct Plan {
    seed: u64,
    hold_packets: usize,
    rx: Vec<Rule>,
    tx: Vec<Rule>,
}

impl Plan {
    /// Creates a plan without faults; `seed` determines the random numbers of faults that are
    /// added. Give each queue of a port its own seed.
    #[must_use]
    pub fn new(seed: u64) -> Plan {
        Plan { seed, hold_packets: HOLD_PACKETS, rx: Vec::new(), tx: Vec::new() }
    }

    /// Adds `fault` to one in `one_in` received packets; 1 means each, 0 none.
    #[must_use]
    pub fn rx(mut self, fault: Fault, one_in: u32) -> Plan {
        self.rx.push(Rule { fault, one_in });
        self
    }

    /// Adds `fault` to one in `one_in` sent packets; 1 means each, 0 none.
    #[must_use]
    pub fn tx(mut self, fault: Fault, one_in: u32) -> Plan {
        self.tx.push(Rule { fault, one_in });
        self
    }

    /// Sets the limit of packets held in each direction, 256 by default: those delayed, and those
    /// that the device has not accepted yet. The limit is kept within 4 to 65,536. An engine's pool
    /// has no frames for them by default: enlarge it by `EngineBuilder::pool_frames`.
    #[must_use]
    pub fn hold_packets(mut self, packets: usize) -> Plan {
        self.hold_packets = packets.clamp(HOLD_PACKETS_MIN, HOLD_PACKETS_MAX);
        self
    }

    /// Returns each direction's rules, random numbers, and limit of held packets.
    pub(super) fn sides(&self) -> [(&[Rule], Dice, usize); 2] {
        let dice = |side: u64| Dice::new(self.seed.wrapping_mul(2).wrapping_add(side));
        [(&self.rx, dice(0), self.hold_packets), (&self.tx, dice(1), self.hold_packets)]
    }
}

/// A stream of random numbers that a seed determines.
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), SplitMix64.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        // The bias of the remainder is below n / 2^64, which is negligible.
        (self.next() % (n.max(1) as u64)) as usize
    }

    /// Returns true at random once in `n` times, and never for 0.
    pub fn one_in(&mut self, n: u32) -> bool {
        n > 0 && self.next().is_multiple_of(n.into())
    }
}
