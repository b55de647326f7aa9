//! Latencies of a window's packets, with equal chances for all of them.

/// Most latencies that are kept for a window: a multiple of [`Sample::FEWER`].
const KEPT: usize = (1 << 18) - 1;
const _: () = assert!(KEPT.is_multiple_of(Sample::FEWER));

/// Latencies of a window: of every packet, and of every third, ninth and so on once there are more
/// than are kept.
///
/// Batches have 32 or 64 packets, so every second, fourth and so on packet would be at the same
/// places of all batches.
pub(super) struct Sample {
    pub(super) kept_ns: Vec<u64>,
    /// The distance of the kept packets, in packets.
    every: u64,
    /// Packets that are skipped before the next one is kept.
    skip: u64,
}

impl Sample {
    /// Factor by which fewer are kept each time there is no room.
    const FEWER: usize = 3;

    pub(super) fn new() -> Sample {
        Sample { kept_ns: Vec::with_capacity(KEPT), every: 1, skip: 0 }
    }

    /// Records a packet's latency, if it is the turn of this packet.
    pub(super) fn note(&mut self, ns: u64) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        if self.kept_ns.len() == KEPT {
            self.thin();
        }
        self.kept_ns.push(ns);
        self.skip = self.every - 1;
    }

    /// Keeps every third of the latencies.
    ///
    /// Cost: moves 87,381 numbers, once each time the number of packets has tripled.
    #[cold]
    fn thin(&mut self) {
        for to in 0..KEPT / Self::FEWER {
            self.kept_ns[to] = self.kept_ns[to * Self::FEWER];
        }
        self.kept_ns.truncate(KEPT / Self::FEWER);
        self.every *= Self::FEWER as u64;
    }

    /// Returns the number of packets, kept or not.
    pub(super) fn count(&self) -> u64 {
        self.kept_ns.len() as u64 * self.every - self.skip
    }

    pub(super) fn clear(&mut self) {
        self.kept_ns.clear();
        (self.every, self.skip) = (1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percentile::{P50, P99};

    /// Returns a sample of so many packets with each of these latencies, one after the other.
    fn sample_of(parts: &[(usize, u64)]) -> Sample {
        let mut sample = Sample::new();
        for (packets, ns) in parts {
            (0..*packets).for_each(|_| sample.note(*ns));
        }
        sample
    }

    #[test]
    fn late_packets_of_a_window_count_as_much_as_early_ones() {
        let mut even = sample_of(&[(KEPT, 1_000), (KEPT, 1_000_000)]);
        assert_eq!(even.count(), 2 * KEPT as u64);
        assert_eq!(even.kept_ns.capacity(), Sample::new().kept_ns.capacity());
        assert_eq!(even.kept_ns.iter().filter(|ns| **ns == 1_000).count(), even.kept_ns.len() / 2);
        assert_eq!(P99.of(&mut even.kept_ns), Some(1_000_000));
        let medians = [(KEPT - 1, 2 * KEPT), (9 * KEPT, 10 * KEPT), (2 * KEPT, KEPT)]
            .map(|(early, late)| P50.of(&mut sample_of(&[(early, 1), (late, 9)]).kept_ns).unwrap());
        assert_eq!(medians, [9, 9, 1]);
    }

    #[test]
    fn sample_keeps_every_packet_at_an_even_distance() {
        for packets in [0, 1, KEPT, KEPT + 1, 3 * KEPT, 3 * KEPT + 1, 10 * KEPT] {
            let mut sample = Sample::new();
            (0..packets as u64).for_each(|number| sample.note(number));
            let (every, n) = (sample.every, sample.kept_ns.len() as u64);
            assert_eq!(sample.count(), packets as u64);
            assert!(sample.kept_ns.iter().copied().eq((0..n).map(|i| i * every)), "{packets}");
            assert!(n * every >= packets as u64, "{packets}: none of the last ones");
        }
        let mut sample = sample_of(&[(KEPT + 1, 1)]);
        sample.clear();
        sample.note(5);
        sample.note(6);
        assert_eq!(sample.kept_ns, [5, 6], "the next window begins with every packet");
    }
}
