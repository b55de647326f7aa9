//! The ledger: the fate of every packet and the place of every frame.

use std::fmt;

use crate::books::Sums;
use crate::reason::DropReason;
use crate::umem::Umem;

impl Ledger {
    /// Returns the ledger of a umem, summed over its pages. If frames move meanwhile, the sum is
    /// repeated a few times.
    pub(crate) fn of(umem: &Umem) -> Ledger {
        let mut settled = false;
        let look = || (umem.books.sums(), umem.home_level());
        let mut snap = look();
        for _ in 0..4 {
            let again = look();
            settled = again == snap;
            snap = again;
            if settled {
                break;
            }
        }
        let (sums, depot) = snap;
        Ledger::write(umem, sums, depot, settled)
    }

    fn write(umem: &Umem, s: Sums, depot: u64, settled: bool) -> Ledger {
        let names = umem.books.names();
        let mut dropped = Vec::new();
        for (i, &n) in s.dropped.iter().enumerate().filter(|(_, n)| **n > 0) {
            let named = || names.iter().copied().find(|r| r.index() == i);
            // The name can be missing, because another thread may be about to set it.
            let reason = DropReason::ours(i).or_else(named).unwrap_or(DropReason::unnamed(i));
            dropped.push((reason, n));
        }
        let frames = u64::from(umem.frames()) + u64::from(umem.jumbo().0);
        let home = depot.wrapping_add(s.levels[0]).wrapping_add(s.levels[1]);
        // Frames that are neither free nor lent belong to packets; the number of live handles
        // follows from their number.
        let away = frames as i64 - home as i64 - s.lent as i64;
        let found = (away - s.linked + s.extra).max(0) as u64;
        let ended = s.unused + s.sent + s.dropped.iter().sum::<u64>();
        let created = (s.alloc + s.cloned) as i64 - (s.unused + s.received) as i64;
        let tallied: u64 = s.tallies.iter().map(|(_, n)| n).sum();
        let mut held = s.tallies;
        held.push((PROGRAM.into(), found.saturating_sub(tallied)));
        let outstanding = (0..).zip(s.outstanding).filter(|(_, n)| *n != 0).collect();
        Ledger {
            received: s.received,
            created: created.max(0) as u64,
            sent: s.sent,
            // A received packet that became part of another packet has ended, too: `created` is
            // negative then.
            consumed: s.freed.saturating_sub(ended) + created.min(0).unsigned_abs(),
            dropped,
            in_flight: found,
            starved: s.starved,
            frames,
            holders: vec![
                ("depot", depot),
                ("hot lists", s.levels[0]),
                ("thread caches", s.levels[1]),
                // One page counts what is lent, another what comes back: a sum that is read
                // meanwhile can be negative.
                ("device rings", (s.lent as i64).max(0) as u64),
                ("fragments", s.linked.max(0) as u64),
            ],
            held,
            outstanding,
            settled,
        }
    }
}

/// The name for the packets in flight that no holder reports.
const PROGRAM: &str = "the program";

/// The fate of every packet of a pool, and the place of every frame.
///
/// `received + created = sent + consumed + dropped + in flight`: the left side and the drops are
/// counted as packets pass, `in flight` is found by looking where the frames are.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ledger {
    /// Packets that a device received.
    pub received: u64,
    /// Packets that the program made, by allocation or by sharing a packet.
    pub created: u64,
    /// Packets that a device or a peer took.
    pub sent: u64,
    /// Packets that the program freed without a drop reason, because it had finished with them.
    pub consumed: u64,
    /// Packets dropped, counted for each reason; reasons with a count of zero are left out.
    pub dropped: Vec<(DropReason, u64)>,
    /// Packets that exist at this time.
    pub in_flight: u64,
    /// Number of allocations that found no frame.
    pub starved: u64,
    /// Number of frames in the pool.
    pub frames: u64,
    holders: Vec<(&'static str, u64)>,
    held: Vec<(String, u64)>,
    outstanding: Vec<(usize, i64)>,
    settled: bool,
}

impl Ledger {
    /// Returns the number of packets dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.iter().find(|(r, _)| r.index() == reason.index()).map_or(0, |(_, n)| *n)
    }

    /// Returns the number of packets dropped, over all reasons.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().map(|(_, n)| n).sum()
    }

    /// Returns the packets received and created, less those accounted for; 0 if all are accounted
    /// for.
    #[must_use]
    pub fn difference(&self) -> i64 {
        let came = self.received.wrapping_add(self.created);
        let went = [self.sent, self.consumed, self.dropped_total(), self.in_flight];
        came.wrapping_sub(went.iter().fold(0, |sum: u64, n| sum.wrapping_add(*n))) as i64
    }

    /// Returns true if every packet is accounted for. The answer is exact only at rest.
    ///
    /// While packets move, the two sides are read at slightly different moments; an unsettled
    /// reading counts as balanced. A thread that is interrupted between two counts looks settled
    /// and is not: before you believe an imbalance, stop what moves.
    #[must_use]
    pub fn balanced(&self) -> bool {
        self.difference() == 0 || !self.settled
    }

    /// Returns true if no packet is in flight and every packet received is accounted for.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.in_flight == 0 && self.difference() == 0
    }

    /// Returns true if no packet moved while the ledger was read, so that its figures are
    /// consistent.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.settled
    }

    /// Returns the number of frames at each holder; a frame at no holder is in flight.
    #[must_use]
    pub fn holders(&self) -> &[(&'static str, u64)] {
        &self.holders
    }

    /// Returns the number of packets in flight for each [`Tally`](crate::Tally); the last entry is
    /// the program, with the packets that no tally reports.
    #[must_use]
    pub fn held(&self) -> &[(String, u64)] {
        &self.held
    }

    /// Returns the packets in flight by the core that allocated them; cores without any are left
    /// out.
    ///
    /// Counted, not found: allocations less frees. [`Pool::stats`](crate::Pool::stats) has the
    /// names.
    #[must_use]
    pub fn outstanding(&self) -> &[(usize, i64)] {
        &self.outstanding
    }

    /// Returns the sum of two ledgers, of different pools.
    #[must_use]
    pub fn plus(mut self, other: &Ledger) -> Ledger {
        self.received += other.received;
        self.created = self.created.wrapping_add(other.created);
        self.sent += other.sent;
        self.consumed += other.consumed;
        self.in_flight += other.in_flight;
        self.starved += other.starved;
        self.frames += other.frames;
        for (reason, n) in &other.dropped {
            match self.dropped.iter_mut().find(|(r, _)| r.index() == reason.index()) {
                Some((_, sum)) => *sum += n,
                None => self.dropped.push((*reason, *n)),
            }
        }
        for (sum, (_, n)) in self.holders.iter_mut().zip(&other.holders) {
            sum.1 += n;
        }
        // Each pool numbers its own cores, so one number can mean different cores in two pools.
        self.outstanding.clear();
        for (name, n) in &other.held {
            match self.held.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += n,
                None => self.held.insert(0, (name.clone(), *n)),
            }
        }
        self.settled &= other.settled;
        self
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "received {}", self.received)?;
        if self.created != 0 {
            write!(f, " + created {}", self.created)?;
        }
        write!(f, " = sent {} + consumed {}", self.sent, self.consumed)?;
        write!(f, " + dropped {}", self.dropped_total())?;
        for (i, (reason, n)) in self.dropped.iter().enumerate() {
            write!(f, "{}{reason} {n}", if i == 0 { " (" } else { ", " })?;
        }
        f.write_str(if self.dropped.is_empty() { "" } else { ")" })?;
        write!(f, " + in flight {}   ", self.in_flight)?;
        match (self.difference(), self.settled) {
            (0, _) => f.write_str("OK")?,
            (_, false) => f.write_str("moving")?,
            (d, true) => {
                write!(f, "NOT BALANCED: {d} packets; frames {}:", self.frames)?;
                self.holders.iter().try_for_each(|(name, n)| write!(f, " {name} {n}"))?;
            }
        }
        if f.alternate() { self.explain(f) } else { Ok(()) }
    }
}

impl Ledger {
    /// Writes the number of frames at each holder, on two more lines.
    fn explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_holders: u64 = self.holders.iter().map(|(_, n)| n).sum();
        write!(f, "\nframes {} =", self.frames)?;
        self.holders.iter().try_for_each(|(name, n)| write!(f, " {name} {n} +"))?;
        write!(f, " packets {}", self.frames.saturating_sub(in_holders))?;
        write!(f, "\nin flight {} =", self.in_flight)?;
        for (i, (name, n)) in self.held.iter().enumerate() {
            write!(f, "{} {name} {n}", if i == 0 { "" } else { " +" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Batch, DropReason, Pool};

    #[test]
    fn frames_that_come_back_while_the_ledger_is_read_are_not_counted_below_zero() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let mem = pool.local();
        mem.page.lent.subtract(3);
        let ledger = pool.ledger();
        assert!(ledger.holders().contains(&("device rings", 0)));
        assert!(format!("{ledger:#}").contains("device rings 0 +"));
        assert_eq!(ledger.clone().plus(&ledger).frames, 128);
        mem.page.lent.add(3);
    }

    #[test]
    fn ledger_separates_what_a_program_does_with_packets() {
        const BLOCKED: DropReason = DropReason::app(3, "blocked");
        let pool = Pool::builder().frames(64).build().unwrap();
        let mut mem = pool.local();
        let mut batch = Batch::with_capacity(10);
        mem.alloc(&mut batch, 10);
        mem.count_received(10);
        let mut i = 0;
        batch.retain(|_| {
            i += 1;
            if i % 2 == 0 { Err(BLOCKED) } else { Ok(()) }
        });
        assert_eq!(batch.send_prefix(&mut mem, |_| true).packets, 5);
        let ledger = pool.ledger();
        assert_eq!((ledger.received, ledger.created, ledger.sent), (10, 0, 5));
        assert_eq!(ledger.dropped(BLOCKED), 5);
        let line = "received 10 = sent 5 + consumed 0 + dropped 5 (blocked 5) + in flight 0   OK";
        assert_eq!(ledger.to_string(), line);
    }

    #[test]
    fn sum_of_two_ledgers_has_the_reasons_of_both() {
        const BLOCKED: DropReason = DropReason::app(3, "blocked");
        let pools = [(); 2].map(|()| Pool::builder().frames(8).build().unwrap());
        let [mut near, mut far] = pools.each_ref().map(crate::Pool::local);
        near.alloc_one().unwrap().discard(DropReason::NO_ROUTE);
        far.alloc_one().unwrap().discard(DropReason::NO_ROUTE);
        far.alloc_one().unwrap().discard(BLOCKED);
        let [one, other] = pools.each_ref().map(crate::Pool::ledger);
        for sum in [one.clone().plus(&other), other.plus(&one)] {
            assert_eq!((sum.dropped(DropReason::NO_ROUTE), sum.dropped(BLOCKED)), (2, 1));
            assert_eq!((sum.dropped_total(), sum.difference()), (3, 0), "{sum}");
        }
    }

    #[test]
    fn sum_of_two_ledgers_has_what_both_hold_and_the_program_last() {
        let pools = [(); 2].map(|()| Pool::builder().frames(4).build().unwrap());
        let [mut near, mut far] = pools.each_ref().map(crate::Pool::local);
        let (mut out, mut batch) = (Batch::with_capacity(8), Batch::with_capacity(8));
        assert_eq!((near.alloc(&mut out, 3), far.alloc(&mut batch, 5)), (3, 4));
        let mut queue = pools[1].tally("queue");
        queue.set(3);
        let [one, other] = pools.each_ref().map(crate::Pool::ledger);
        assert_eq!((one.outstanding().len(), other.outstanding().len()), (1, 1));
        for sum in [one.clone().plus(&other), other.plus(&one)] {
            assert_eq!((sum.in_flight, sum.frames, sum.starved), (7, 8, 1));
            assert_eq!(sum.held(), [("queue".into(), 3), ("the program".into(), 4)]);
            assert!(sum.outstanding().is_empty(), "one number is of two cores");
        }
    }

    #[test]
    fn sum_of_two_ledgers_is_settled_if_both_are() {
        let pool = Pool::builder().frames(4).build().unwrap();
        for settled in [[true, true], [true, false], [false, true], [false, false]] {
            let [one, other] = settled.map(|settled| {
                let mut ledger = pool.ledger();
                ledger.settled = settled;
                ledger
            });
            assert_eq!(one.plus(&other).settled(), settled == [true, true]);
        }
    }
}
