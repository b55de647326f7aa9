//! CoDel: drops packets from the head of a queue whose delay has exceeded a target for longer than
//! an interval.
//!
//! In a queue that drains regularly, the delay falls below the target at least once in an interval.
//! Otherwise it is a standing queue: CoDel drops a packet, and further ones at intervals that
//! shrink with the square root of the number of drops, until the standing queue is gone.
//!
//! Source: RFC 8289 section 5, with marks in place of drops as Linux include/net/codel_impl.h has
//!         them.

/// Longest interval: 4.3 s, whose square fits in 64 bits.
pub(super) const INTERVAL_MAX_NS: u64 = (1 << 32) - 1;

/// CoDel's settings, common to all queues.
#[derive(Debug, Clone, Copy)]
pub(super) struct Params {
    /// The delay that is always acceptable.
    pub target_ns: u64,
    /// Time for which the delay may exceed the target: the longest round trip of most connections.
    pub interval_ns: u64,
    /// Most waiting bytes that are never a standing queue: those of the longest packet that the
    /// device sends.
    pub mtu_bytes: u64,
}

/// CoDel's state of one queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Codel {
    dropping: bool,
    count: u32,
    last_count: u32,
    /// The time at which the delay will have exceeded the target for an interval; 0 if the last
    /// packet's delay did not exceed it.
    first_above_ns: u64,
    drop_next_ns: u64,
}

/// The queue that CoDel controls.
pub(super) trait Source {
    /// The type of the queue's packets.
    type Packet;
    /// Takes the first packet, with the time at which it was enqueued.
    fn take(&mut self) -> Option<(Self::Packet, u64)>;
    /// Returns the number of bytes that wait for the device, in this queue and in those that share
    /// the device.
    fn bytes(&self) -> u64;
    /// Marks a packet as having experienced congestion (ECN); returns false if the packet cannot be
    /// marked.
    fn mark(&mut self, packet: &mut Self::Packet) -> bool;
    /// Drops a packet.
    fn drop(&mut self, packet: Self::Packet);
}

/// A packet, if there is one, and true if the delay has exceeded the target for longer than an
/// interval.
type Dequeued<P> = (Option<P>, bool);

impl Codel {
    /// Counts a packet of the queue that was dropped for lack of room, so that the next drops follow
    /// sooner, as in Linux.
    pub fn lost(&mut self) {
        self.count = self.count.wrapping_add(1);
    }

    /// Takes the next packet to send from `queue`, and drops or marks packets whose delay has
    /// exceeded the target for too long.
    pub fn next<S: Source>(
        &mut self,
        params: &Params,
        now: u64,
        queue: &mut S,
    ) -> Option<S::Packet> {
        let (mut packet, late) = self.take(params, now, queue);
        if self.dropping {
            self.dropping = late;
            while self.dropping && now >= self.drop_next_ns {
                let mut first = packet.take()?;
                self.count = self.count.wrapping_add(1);
                if queue.mark(&mut first) {
                    self.drop_next_ns = control_law(self.drop_next_ns, self.count, params);
                    return Some(first);
                }
                queue.drop(first);
                (packet, self.dropping) = self.take(params, now, queue);
                if self.dropping {
                    self.drop_next_ns = control_law(self.drop_next_ns, self.count, params);
                }
            }
        } else if let Some(mut first) = packet.take_if(|_| late) {
            if queue.mark(&mut first) {
                packet = Some(first);
            } else {
                queue.drop(first);
                packet = self.take(params, now, queue).0;
            }
            self.begin(params, now);
        }
        packet
    }

    /// Takes the first packet, and returns whether the delay has exceeded the target for an
    /// interval.
    fn take<S: Source>(&mut self, params: &Params, now: u64, queue: &mut S) -> Dequeued<S::Packet> {
        let Some((packet, at_ns)) = queue.take() else {
            self.first_above_ns = 0;
            return (None, false);
        };
        let waited_ns = now.saturating_sub(at_ns);
        if waited_ns < params.target_ns || queue.bytes() <= params.mtu_bytes {
            self.first_above_ns = 0;
        } else if self.first_above_ns == 0 {
            self.first_above_ns = now + params.interval_ns;
        } else {
            return (Some(packet), now >= self.first_above_ns);
        }
        (Some(packet), false)
    }

    /// Starts a series of drops; continues at the rate of the last series if that was recent.
    fn begin(&mut self, params: &Params, now: u64) {
        self.dropping = true;
        let delta = self.count.wrapping_sub(self.last_count);
        let recent = now.saturating_sub(self.drop_next_ns) < 16 * params.interval_ns;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next_ns = control_law(now, self.count, params);
    }
}

/// Returns the time of the drop that follows the drop at `ns`, the `count`th in a row: an interval
/// later, divided by the square root of `count`.
fn control_law(ns: u64, count: u32, params: &Params) -> u64 {
    // The square of an interval fits in 64 bits: see `INTERVAL_MAX_NS`.
    ns + (params.interval_ns * params.interval_ns / u64::from(count.max(1))).isqrt()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const MTU: u64 = 1500;
    const PARAMS: Params =
        Params { target_ns: 5_000_000, interval_ns: 100_000_000, mtu_bytes: MTU };

    /// A queue of packets with their number and time; each packet has the length of an MTU.
    #[derive(Default, Clone)]
    struct Queue {
        packets: VecDeque<(u32, u64)>,
        dropped: Vec<u32>,
        marks: bool,
        marked: Vec<u32>,
    }

    impl Source for Queue {
        type Packet = u32;

        fn take(&mut self) -> Option<(u32, u64)> {
            self.packets.pop_front()
        }

        fn bytes(&self) -> u64 {
            MTU * self.packets.len() as u64
        }

        fn mark(&mut self, packet: &mut u32) -> bool {
            if self.marks {
                self.marked.push(*packet);
            }
            self.marks
        }

        fn drop(&mut self, packet: u32) {
            self.dropped.push(packet);
        }
    }

    /// The pseudo-code of RFC 8289 section 5, line by line, in seconds.
    #[derive(Default)]
    struct Rfc {
        first_above_time: f64,
        drop_next: f64,
        count: u32,
        lastcount: u32,
        dropping: bool,
    }

    const TARGET: f64 = 0.005;
    const INTERVAL: f64 = 0.1;

    impl Rfc {
        fn control_law(t: f64, count: u32) -> f64 {
            t + INTERVAL / f64::from(count).sqrt()
        }

        fn dodequeue(&mut self, now: f64, queue: &mut Queue) -> (Option<u32>, bool) {
            let Some((p, at)) = queue.take() else {
                self.first_above_time = 0.0;
                return (None, false);
            };
            let mut ok_to_drop = false;
            let sojourn_time = now - at as f64 / 1e9;
            if sojourn_time < TARGET || queue.bytes() <= MTU {
                self.first_above_time = 0.0;
            } else if self.first_above_time == 0.0 {
                self.first_above_time = now + INTERVAL;
            } else if now >= self.first_above_time {
                ok_to_drop = true;
            }
            (Some(p), ok_to_drop)
        }

        fn dequeue(&mut self, now: f64, queue: &mut Queue) -> Option<u32> {
            let (mut p, mut ok_to_drop) = self.dodequeue(now, queue);
            if self.dropping {
                if !ok_to_drop {
                    self.dropping = false;
                }
                while now >= self.drop_next && self.dropping {
                    queue.drop(p.unwrap());
                    self.count += 1;
                    (p, ok_to_drop) = self.dodequeue(now, queue);
                    if !ok_to_drop {
                        self.dropping = false;
                    } else {
                        self.drop_next = Rfc::control_law(self.drop_next, self.count);
                    }
                }
            } else if ok_to_drop {
                queue.drop(p.unwrap());
                (p, _) = self.dodequeue(now, queue);
                self.dropping = true;
                let delta = self.count - self.lastcount;
                self.count = 1;
                if delta > 1 && now - self.drop_next < 16.0 * INTERVAL {
                    self.count = delta;
                }
                self.drop_next = Rfc::control_law(now, self.count);
                self.lastcount = self.count;
            }
            p
        }
    }

    proptest! {
        #[test]
        fn drops_are_those_of_the_pseudo_code(
            steps in prop::collection::vec((0u64..40, 0usize..4, 0usize..4), 1..600),
        ) {
            let (mut ours, mut theirs) = (Queue::default(), Queue::default());
            let (mut codel, mut rfc) = (Codel::default(), Rfc::default());
            let (mut now_ns, mut number) = (1_000_000_007, 0);
            for (ms, came, go) in steps {
                for _ in 0..came {
                    ours.packets.push_back((number, now_ns));
                    theirs.packets.push_back((number, now_ns));
                    number += 1;
                }
                now_ns += ms * 1_000_000 + 100_003;
                for _ in 0..go {
                    let sent = codel.next(&PARAMS, now_ns, &mut ours);
                    prop_assert_eq!(sent, rfc.dequeue(now_ns as f64 / 1e9, &mut theirs));
                }
                prop_assert_eq!(&ours.dropped, &theirs.dropped);
            }
        }
    }

    /// Runs a queue that always has 20 packets: one arrives and one leaves in each millisecond.
    fn standing(marks: bool, ms: u64) -> (Queue, usize) {
        let mut queue = Queue { marks, ..Queue::default() };
        let (mut codel, mut sent) = (Codel::default(), 0);
        for number in 0..ms {
            while queue.packets.len() < 20 {
                queue.packets.push_back((number as u32, number * 1_000_000));
            }
            sent += usize::from(codel.next(&PARAMS, number * 1_000_000, &mut queue).is_some());
        }
        (queue, sent)
    }

    #[test]
    fn standing_queue_is_dropped_from_at_a_rising_pace() {
        let drops: Vec<usize> =
            [100, 320, 520, 1020].map(|ms| standing(false, ms).0.dropped.len()).into();
        assert!(drops[0] == 0 && drops[1] >= 2, "{drops:?}");
        assert!(drops[2] - drops[1] > drops[1] && drops[3] > 2 * drops[2], "{drops:?}");
    }

    #[test]
    fn packets_lost_for_lack_of_room_bring_the_next_drops_sooner() {
        let drops = |lost: usize| {
            let (mut queue, mut codel, mut lost) = (Queue::default(), Codel::default(), lost);
            for ms in 0..1000 {
                while queue.packets.len() < 20 {
                    queue.packets.push_back((0, ms * 1_000_000));
                }
                let _ = codel.next(&PARAMS, ms * 1_000_000, &mut queue);
                if !queue.dropped.is_empty() {
                    (0..lost).for_each(|_| codel.lost());
                    lost = 0;
                }
            }
            queue.dropped.len()
        };
        assert!(drops(20) > drops(0) + 5, "{} {}", drops(20), drops(0));
    }

    #[test]
    fn marked_packets_are_sent_and_counted_like_drops() {
        let (queue, sent) = standing(true, 1000);
        assert_eq!((queue.dropped.len(), sent), (0, 1000));
        assert!(queue.marked.len().abs_diff(standing(false, 1000).0.dropped.len()) <= 2);
    }

    #[test]
    fn control_law_divides_by_the_square_root() {
        let step = |count| control_law(0, count, &PARAMS);
        assert_eq!([1, 4, 100].map(step), [100_000_000, 50_000_000, 10_000_000]);
        for count in [2, 3, 7, 1000, u32::MAX] {
            let exact = 1e8 / f64::from(count).sqrt();
            assert!((step(count) as f64 - exact).abs() <= 1.0, "{count}");
        }
        assert_eq!(step(0), step(1), "a count that has wrapped");
    }
}
