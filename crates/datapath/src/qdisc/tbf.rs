//! The token bucket: limits packets to a rate and a burst, exact to the nanosecond.
//!
//! A token is a billionth of a bit, so that each nanosecond adds a whole number of tokens at any
//! whole rate in bits a second: nothing is rounded, and the sum over any time matches the rate
//! exactly.

use std::time::Instant;

use linerate_port::segment;
use linerate_skb::{Batch, DropReason, Local, Moved, Skb};

use super::cut::Cuts;
use super::time::Clock;
use super::{BitRate, Qdisc, QdiscCounts};

/// Number of tokens for a byte.
const BYTE: u64 = 8_000_000_000;
/// Greatest rate, 10 Tbit/s: the arithmetic does not overflow up to it.
pub const RATE_MAX_BPS: u64 = 10_000_000_000_000;
/// Greatest burst: the tokens of two full buckets and a nanosecond fit in 64 bits.
pub(super) const BURST_MAX_BYTES: u64 = 1 << 30;
/// Duration of the default burst: longer than a worker's sleep between turns.
const BURST_NS: u64 = 2_000_000;
/// Least default burst: longer than any packet that is no superframe. Interfaces of the host may
/// have an MTU of 64 KiB, and a packet longer than the burst is dropped.
const BURST_MIN_BYTES: u64 = (1 << 16) + (1 << 11);
/// Time that a superframe may take as a whole.
const WHOLE_NS: u64 = 1_000_000;

/// A rate and a burst, in tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    /// Rate in bits a second, which is also the number of tokens a nanosecond.
    bps: u64,
    full: u64,
    /// Time in which an empty bucket becomes full.
    fill_ns: u64,
}

/// The number of tokens at a given time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    tokens: u64,
    at_ns: u64,
}

impl Rate {
    /// Creates a rate, limited to 1 bit/s to 10 Tbit/s, and a burst, limited to 1 byte to 1 GiB.
    pub fn new(bps: u64, burst_bytes: u64) -> Rate {
        let bps = bps.clamp(1, RATE_MAX_BPS);
        let full = burst_bytes.clamp(1, BURST_MAX_BYTES) * BYTE;
        Rate { bps, full, fill_ns: full.div_ceil(bps) }
    }

    /// Creates the rate of a port; by default its burst is 2 ms at that rate, and at least 66 KiB.
    pub fn of_port(bps: u64, burst_bytes: Option<u64>) -> Rate {
        let usual = || (bps.min(RATE_MAX_BPS) / 8 * BURST_NS / 1_000_000_000).max(BURST_MIN_BYTES);
        Rate::new(bps, burst_bytes.unwrap_or_else(usual))
    }

    /// Returns the length in bytes up to which a superframe is sent as a whole: it takes up to 1
    /// ms, and is no longer than the burst.
    pub fn whole_bytes(&self) -> u64 {
        (self.bps / 8 * WHOLE_NS / 1_000_000_000).min(self.burst_bytes())
    }

    /// Returns a full bucket.
    pub fn bucket(&self, now_ns: u64) -> Bucket {
        Bucket { tokens: self.full, at_ns: now_ns }
    }

    /// Returns the number of bytes for which a full bucket has tokens.
    pub fn burst_bytes(&self) -> u64 {
        self.full / BYTE
    }
}

impl Bucket {
    /// Adds the tokens for the time since the last call.
    #[inline]
    pub fn refill(&mut self, rate: &Rate, now_ns: u64) {
        let time = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        self.tokens = match time < rate.fill_ns {
            true => (self.tokens + time * rate.bps).min(rate.full),
            false => rate.full,
        };
    }

    /// Returns the number of whole bytes for which the bucket has tokens.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.tokens / BYTE
    }

    /// Takes the tokens for `bytes`, at most a burst; returns false, and takes none, if there are
    /// too few tokens.
    #[inline]
    pub fn take(&mut self, bytes: u64) -> bool {
        let left = self.tokens.checked_sub(bytes.saturating_mul(BYTE));
        left.inspect(|left| self.tokens = *left).is_some()
    }

    /// Returns this bucket without the tokens for more bytes than a burst: it is in debt, and is
    /// refilled once the rate has paid the rest. `None` if this bucket is not full, or `bytes` are
    /// at most a burst.
    #[cold]
    pub fn borrowed(self, rate: &Rate, bytes: u64) -> Option<Bucket> {
        let tokens = bytes.saturating_mul(BYTE);
        if self.tokens < rate.full || tokens <= rate.full {
            return None;
        }
        let missing = tokens - rate.full;
        let ns = missing.div_ceil(rate.bps);
        // What the last nanosecond adds beyond the debt is not given: it could be spent before the
        // debt is paid.
        Some(Bucket { tokens: 0, at_ns: self.at_ns.saturating_add(ns) })
    }

    /// Returns this bucket at another rate: with its tokens, as far as they fit, or with its debt,
    /// which the new rate pays.
    #[cold]
    fn at_rate(mut self, old: &Rate, new: &Rate, now_ns: u64) -> Bucket {
        self.refill(old, now_ns);
        let missing = self.at_ns.saturating_sub(now_ns).saturating_mul(old.bps);
        let at_ns = now_ns.saturating_add(missing.div_ceil(new.bps));
        // A full bucket in debt could borrow again at once.
        let most = if missing > 0 { new.full - 1 } else { new.full };
        Bucket { tokens: self.tokens.min(most), at_ns }
    }

    /// Returns true if the rate has not paid yet for what was borrowed.
    pub fn is_in_debt(&self, now_ns: u64) -> bool {
        self.at_ns > now_ns
    }

    /// Returns the time at which the bucket will have tokens for `bytes`, or be full for more bytes
    /// than a burst.
    #[inline]
    pub fn due_ns(&self, rate: &Rate, bytes: u64) -> u64 {
        let missing = bytes.saturating_mul(BYTE).min(rate.full).saturating_sub(self.tokens);
        self.at_ns.saturating_add(missing.div_ceil(rate.bps))
    }
}

/// A rate limit before a port, over another discipline that orders the waiting packets: the
/// kernel's tbf.
///
/// A superframe that takes longer than 1 ms at the rate, or is longer than the burst, is cut into
/// its segments before `inner` takes it: limits and counts see the segments, and packets of other
/// flows pass between them. It stays whole if it cannot be cut (its kind is unknown, or it
/// contradicts its headers), if a segment is longer than the burst, or if the pool has no frames
/// for all segments.
///
/// In any time `t` it sends no more than `rate * t` and a burst, or `rate * t` and one whole
/// superframe if that is longer than a burst. A packet counts with the bytes of
/// [`Skb::len`](linerate_skb::Skb::len), without preamble, FCS and gap; a whole superframe with
/// those of its segments ([`segment::wire_bytes`]). A packet longer than the burst that is no
/// superframe is dropped as `too_long`. A whole superframe that is longer leaves once a whole burst
/// is free, and the next packets wait until the rate has paid for it.
#[derive(Debug)]
pub struct Tbf<Q> {
    inner: Q,
    rate: Rate,
    /// The burst that was requested; `None` for the default of each rate.
    burst_bytes: Option<u64>,
    cuts: Cuts,
    bucket: Option<Bucket>,
    /// The packet that waits for tokens.
    ahead: Batch,
    ahead_bytes: u64,
    /// The bytes that are sent for it: of a superframe those of its segments.
    ahead_wire_bytes: u64,
    /// Length of the longest packet so far, which no held packet exceeds. If it reaches or exceeds
    /// the burst, packets leave one by one, until none is held: then it is set to 0.
    longest_bytes: u64,
    /// Packets dropped because they are longer than the burst; `inner` does not count them.
    too_long: Moved,
    /// Packets dropped while they waited for tokens; `inner` counts them as dequeued.
    purged: Moved,
    clock: Clock,
}

impl<Q: Qdisc> Tbf<Q> {
    /// Limits `inner` to `rate_bps`, 1 bit/s to 10 Tbit/s, after bursts of up to `burst_bytes`, 1
    /// byte to 1 GiB; by default 2 ms at that rate, and at least 66 KiB.
    #[must_use]
    pub fn new(rate_bps: u64, burst_bytes: impl Into<Option<u64>>, inner: Q) -> Tbf<Q> {
        let burst_bytes = burst_bytes.into();
        let rate = Rate::of_port(rate_bps, burst_bytes);
        Tbf {
            inner,
            rate,
            burst_bytes,
            cuts: Cuts::new(rate.whole_bytes(), rate.burst_bytes()),
            bucket: None,
            ahead: Batch::with_capacity(1),
            ahead_bytes: 0,
            ahead_wire_bytes: 0,
            longest_bytes: 0,
            too_long: Moved::default(),
            purged: Moved::default(),
            clock: Clock::default(),
        }
    }

    /// Changes the rate and the burst, in the ranges of [`Tbf::new`], while packets wait. Those
    /// stay in order; one that is longer than the new burst leaves once a whole burst is free.
    /// Tokens and debts are kept, and the time before `now` gives tokens at the old rate.
    ///
    /// Cost: an allocation if superframes are cut into longer segments than before.
    pub fn set_rate(&mut self, rate_bps: u64, burst_bytes: impl Into<Option<u64>>, now: Instant) {
        self.burst_bytes = burst_bytes.into();
        let (old, new) = (self.rate, Rate::of_port(rate_bps, self.burst_bytes));
        let now_ns = self.clock.read(now);
        self.bucket = self.bucket.map(|bucket| bucket.at_rate(&old, &new, now_ns));
        self.cuts.set_limits(new.whole_bytes(), new.burst_bytes());
        if self.longest_bytes >= old.burst_bytes() {
            // A whole superframe may be held: packets still leave one by one.
            self.note_longest(new.burst_bytes(), false);
        }
        self.rate = new;
    }

    /// Returns the number (0 or 1) and the bytes of the packet that waits for tokens.
    fn waiting(&self) -> Moved {
        let bytes = if self.ahead.is_empty() { 0 } else { self.ahead_bytes };
        Moved { packets: self.ahead.len(), bytes }
    }

    /// Returns true if no packet is held.
    fn is_empty(&self) -> bool {
        self.ahead.is_empty() && self.inner.counts().queued.packets == 0
    }

    /// Notes the length of the longest packet that `inner` gets. While `inner` may have a whole
    /// superframe, which counts with more bytes than it has, every packet leaves alone.
    fn note_longest(&mut self, bytes: u64, is_superframe: bool) {
        let least = if is_superframe { self.rate.burst_bytes() } else { 0 };
        self.longest_bytes = self.longest_bytes.max(bytes).max(least);
    }

    /// Enqueues the first `n` packets in `inner` one by one: long superframes as their segments.
    /// Drops packets that are longer than the burst and no superframes.
    #[cold]
    fn enqueue_each(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        for _ in 0..n {
            let Some(skb) = batch.iter().next() else { return };
            if !self.inner.is_full_for(skb)
                && let Some(segments) = self.cuts.cut_first(batch, mem)
            {
                let n = segments.len();
                let (longest, _) = look_at(segments, n);
                self.inner.enqueue(segments, n, now, mem);
                self.note_longest(longest, false);
                continue;
            }
            let Some(skb) = batch.iter().next() else { return };
            let (bytes, is_superframe) = (skb.len() as u64, skb.offload().is_gso());
            if bytes > self.rate.burst_bytes() && !is_superframe {
                self.too_long += Moved { packets: 1, bytes };
                batch.discard_first(1, DropReason::TOO_LONG, mem);
            } else {
                self.note_longest(bytes, is_superframe);
                self.inner.enqueue(batch, 1, now, mem);
            }
        }
    }
}

/// Returns the length in bytes of the longest of the first `n` packets, and true if one is a
/// superframe.
fn look_at(batch: &Batch, n: usize) -> (u64, bool) {
    let look = |(longest, any): (usize, bool), skb: &Skb| {
        (skb.len().max(longest), any | skb.offload().is_gso())
    };
    // Most often it is the whole batch, over which the compiler makes a shorter loop.
    let (longest, any) = match n < batch.len() {
        true => batch.iter().take(n).fold((0, false), look),
        false => batch.iter().fold((0, false), look),
    };
    (longest as u64, any)
}

impl<Q: Qdisc> Qdisc for Tbf<Q> {
    fn enqueue(&mut self, batch: &mut Batch, n: usize, now: Instant, mem: &mut Local) {
        let burst_bytes = self.rate.burst_bytes();
        if self.longest_bytes >= burst_bytes && self.is_empty() {
            // While it is as long as the burst, every packet leaves alone.
            self.longest_bytes = 0;
        }
        let n = n.min(batch.len());
        let (longest, has_superframe) = look_at(batch, n);
        if longest > burst_bytes || has_superframe {
            return self.enqueue_each(batch, n, now, mem);
        }
        self.note_longest(longest, false);
        self.inner.enqueue(batch, n, now, mem);
    }

    fn dequeue(&mut self, out: &mut Batch, most: Moved, now: Instant, mem: &mut Local) -> Moved {
        const ONE: Moved = Moved { packets: 1, bytes: u64::MAX };
        let now_ns = self.clock.read(now);
        let bucket = self.bucket.get_or_insert_with(|| self.rate.bucket(now_ns));
        bucket.refill(&self.rate, now_ns);
        let mut moved = Moved::default();
        let packets = most.packets.min(out.spare());
        while moved.packets < packets && moved.bytes < most.bytes {
            // Packets for which the tokens suffice at any length are sent together; the others one
            // by one.
            let covered = bucket.bytes().saturating_sub(self.longest_bytes);
            if self.ahead.is_empty() && covered > 0 {
                let bytes = covered.min(most.bytes - moved.bytes);
                let most = Moved { packets: packets - moved.packets, bytes };
                let some = self.inner.dequeue(out, most, now, mem);
                bucket.take(some.bytes);
                moved += some;
                if some.bytes < bytes {
                    break;
                }
                continue;
            }
            if self.ahead.is_empty() {
                self.ahead_bytes = self.inner.dequeue(&mut self.ahead, ONE, now, mem).bytes;
                self.ahead_wire_bytes = self.ahead.iter().next().map_or(0, segment::wire_bytes);
            }
            if self.ahead.is_empty() {
                break;
            }
            let bytes = self.ahead_wire_bytes;
            if !bucket.take(bytes) {
                let Some(in_debt) = bucket.borrowed(&self.rate, bytes) else { break };
                *bucket = in_debt;
            }
            moved += Moved { packets: self.ahead.move_to(out, 1), bytes: self.ahead_bytes };
        }
        moved
    }

    fn deadline(&self) -> Option<Instant> {
        match (&self.bucket, self.ahead.is_empty()) {
            (Some(bucket), false) => {
                self.clock.instant(bucket.due_ns(&self.rate, self.ahead_wire_bytes))
            }
            _ => self.inner.deadline(),
        }
    }

    /// Halfway between the deadline and the time at which the bucket is full and loses tokens.
    fn latest(&self) -> Option<Instant> {
        let (Some(bucket), false) = (&self.bucket, self.ahead.is_empty()) else {
            return self.inner.latest();
        };
        let due_ns = bucket.due_ns(&self.rate, self.ahead_wire_bytes);
        let full_ns = bucket.due_ns(&self.rate, self.rate.burst_bytes());
        self.clock.instant(due_ns + full_ns.saturating_sub(due_ns) / 2)
    }

    fn is_full_for(&self, skb: &Skb) -> bool {
        self.inner.is_full_for(skb)
    }

    fn rate(&self) -> Option<BitRate> {
        Some(BitRate::from_bps(self.rate.bps))
    }

    /// Changes the rate as [`Tbf::set_rate`] does, with the burst that was requested last.
    fn change_rate(&mut self, rate: BitRate, now: Instant) -> bool {
        self.set_rate(rate.bps(), self.burst_bytes, now);
        true
    }

    fn counts(&self) -> QdiscCounts {
        let mut counts = self.inner.counts();
        counts.enqueued += self.too_long;
        counts.dropped += self.too_long;
        counts.dropped += self.purged;
        counts.queued += self.waiting();
        for gone in [self.waiting(), self.purged] {
            counts.dequeued.packets -= gone.packets;
            counts.dequeued.bytes -= gone.bytes;
        }
        counts
    }

    fn purge(&mut self, reason: DropReason, mem: &mut Local) {
        self.inner.purge(reason, mem);
        self.purged += self.waiting();
        self.ahead.discard_first(1, reason, mem);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use linerate_skb::{Offload, Pool};

    use super::super::tests::udp;
    use super::super::{Fifo, Limit};
    use super::*;

    #[test]
    fn bucket_that_has_borrowed_waits_even_if_its_burst_is_paid_within_a_nanosecond() {
        let rate = Rate::new(RATE_MAX_BPS, 1);
        let in_debt = rate.bucket(5).borrowed(&rate, 1000).expect("it is full");
        assert!(in_debt.is_in_debt(5) && in_debt.borrowed(&rate, 1000).is_none());
    }

    /// Sends as fast as `tbf` allows from `from` to `until`, checks that the packets are those from
    /// number `next` on, and returns their bytes.
    fn sent(
        tbf: &mut Tbf<Fifo>,
        from: Instant,
        until: Instant,
        next: &mut u16,
        mem: &mut Local,
    ) -> u64 {
        let (mut out, mut bytes, mut now) = (Batch::with_capacity(1), 0, from);
        while now <= until {
            bytes += tbf.dequeue(&mut out, Moved { packets: 1, bytes: u64::MAX }, now, mem).bytes;
            for skb in &out {
                assert_eq!(skb.data()[36..38], next.to_be_bytes());
                *next += 1;
            }
            out.consume(mem);
            now += Duration::from_micros(100);
        }
        bytes
    }

    #[test]
    fn a_changed_rate_holds_from_then_on_and_what_waits_stays_in_order() {
        let pool = Pool::builder().frames(512).build().unwrap();
        let (mut mem, start) = (pool.local(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        // 1 and 2 bytes a microsecond, and a burst that the second change makes shorter than what
        // waits.
        let mut tbf = Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(400)));
        let mut batch = Batch::with_capacity(400);
        (0..400).for_each(|port| batch.push(udp(&mut mem, 1, 200, port, 1000)).unwrap());
        let mut next = 0;
        tbf.enqueue(&mut batch, 400, start, &mut mem);
        assert_eq!(sent(&mut tbf, start, at(0), &mut next, &mut mem), 1000);
        let at_first = sent(&mut tbf, at(0), at(50), &mut next, &mut mem);
        assert!((49_000..=51_000).contains(&at_first), "{at_first}");
        tbf.set_rate(16_000_000, 2000, at(50));
        let at_second = sent(&mut tbf, at(50), at(100), &mut next, &mut mem);
        assert!((99_000..=102_000).contains(&at_second), "{at_second}");
        tbf.set_rate(8_000_000, 500, at(100));
        let at_third = sent(&mut tbf, at(100), at(150), &mut next, &mut mem);
        assert!((49_000..=51_500).contains(&at_third), "{at_third}");
        assert_eq!(u64::from(next) * 1000, 1000 + at_first + at_second + at_third);
        assert_eq!(tbf.counts().dropped, Moved::default());
        tbf.purge(DropReason::STOPPED, &mut mem);
    }

    #[test]
    fn a_rate_changed_alone_keeps_a_burst_that_was_requested_and_has_its_own_otherwise() {
        let (now, rate) = (Instant::now(), BitRate::from_bps(8_000_000_000));
        for (asked, expected) in [(Some(3000), 3000), (None, 2_000_000)] {
            let mut tbf = Tbf::new(8_000_000, asked, Fifo::new(Limit::packets(9)));
            assert!(tbf.change_rate(rate, now));
            assert_eq!((tbf.rate(), tbf.rate.burst_bytes()), (Some(rate), expected));
        }
        assert!(!Fifo::new(Limit::packets(9)).change_rate(rate, now));
    }

    #[test]
    fn a_debt_is_paid_at_the_new_rate() {
        let (slow, fast) = (Rate::new(8, 1000), Rate::new(8_000_000_000, 1000));
        let in_debt = slow.bucket(5).borrowed(&slow, 65_000).expect("it is full");
        assert!(in_debt.is_in_debt(60_000_000_000), "64,000 bytes take 64,000 s");
        let paid = in_debt.at_rate(&slow, &fast, 5);
        assert!(paid.is_in_debt(64_000) && !paid.is_in_debt(64_010), "{paid:?}");
        // It keeps nothing of what the last nanosecond adds, which is more than the new burst.
        let fastest = Rate::new(RATE_MAX_BPS, 2000);
        let in_debt = fastest.bucket(5).borrowed(&fastest, 65_001).expect("it is full");
        assert_eq!(in_debt.bytes(), 0);
        let small = Rate::new(8, 1);
        let still = in_debt.at_rate(&fastest, &small, 5);
        assert!(still.is_in_debt(5) && still.borrowed(&small, 1000).is_none(), "{still:?}");
        let full = fast.bucket(5).at_rate(&fast, &Rate::new(8, 10), 7);
        assert_eq!((full.bytes(), full.is_in_debt(7)), (10, false));
    }

    #[test]
    fn a_whole_superframe_counts_with_its_segments_after_the_burst_grew() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let (mut mem, now) = (pool.local(), Instant::now());
        let mut tbf = Tbf::new(8_000_000, 1000, Fifo::new(Limit::packets(9)));
        let mut batch = Batch::with_capacity(1);
        let mut superframe = udp(&mut mem, 1, 200, 9, 5000);
        assert!(superframe.set_offload(Offload { gso_type: 1, ..Offload::NONE }));
        assert!(batch.push(superframe).is_ok());
        tbf.enqueue(&mut batch, 1, now, &mut mem);
        tbf.set_rate(8_000_000, 100_000, now);
        assert!(tbf.longest_bytes >= 100_000);
        tbf.purge(DropReason::STOPPED, &mut mem);
    }

    #[test]
    fn packets_leave_together_again_after_a_superframe_longer_than_the_burst() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let (mut mem, now) = (pool.local(), Instant::now());
        let later = now + Duration::from_secs(1);
        let mut tbf = Tbf::new(8_000_000, 1000, Fifo::new(Limit::packets(9)));
        let (mut batch, mut out) = (Batch::with_capacity(2), Batch::with_capacity(2));
        let mut superframe = udp(&mut mem, 1, 200, 9, 5000);
        assert!(superframe.set_offload(Offload { gso_type: 1, ..Offload::NONE }));
        assert!(batch.push(superframe).is_ok());
        tbf.enqueue(&mut batch, 1, now, &mut mem);
        assert!(batch.push(udp(&mut mem, 1, 200, 9, 300)).is_ok());
        tbf.enqueue(&mut batch, 1, now, &mut mem);
        assert_eq!(tbf.longest_bytes, 5000, "the superframe is held");
        for now in [now, later] {
            let most = Moved { packets: 1, bytes: u64::MAX };
            assert_eq!(tbf.dequeue(&mut out, most, now, &mut mem).packets, 1);
            out.consume(&mut mem);
        }
        assert!(batch.push(udp(&mut mem, 1, 200, 9, 300)).is_ok());
        tbf.enqueue(&mut batch, 1, later, &mut mem);
        assert_eq!(tbf.longest_bytes, 300);
        tbf.purge(DropReason::STOPPED, &mut mem);
    }
}
