//! The work of a queue with holds and without: whether holding saves any.
//!
//! ```text
//!   a burst each millisecond      without a hold    wake, poll
//!                                 with holds        wake, poll, hold: empty
//! ```
//!
//! A rate does not tell this: over bursts and the pauses between them it promises packets in each
//! hold. So wake-ups are counted, and polls that found packets: a thread that does not sleep without
//! holds, because packets come fast, takes a few with each poll, and holds save it polls instead.

/// Cost of a poll, in wake-ups.
const POLL: f64 = 0.125;
/// Factor by which the cost of a packet must fall with holds, if its wake-ups rise.
const LEAST: f64 = 1.25;
/// Number of packets after which those of earlier times weigh half as much.
const MEMORY: f64 = 256.0;

/// Packets, with the wake-ups that they took, and the polls that found them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Work {
    packets: f64,
    irqs: f64,
    polls: f64,
}

impl Work {
    fn add(&mut self, by: SoFar) {
        if self.packets > MEMORY {
            let Work { packets, irqs, polls } = self;
            [packets, irqs, polls].into_iter().for_each(|sum| *sum /= 2.0);
        }
        self.packets += by.packets as f64;
        self.irqs += by.irqs as f64;
        self.polls += by.polls as f64;
    }
}

/// A queue's packets, wake-ups, and polls that found packets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct SoFar {
    pub packets: u64,
    pub irqs: u64,
    pub polls: u64,
    /// True if another queue's wake-up ended the last hold.
    pub is_cut: bool,
}

/// The state of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Doing {
    /// It waits for the device.
    Free,
    /// It holds packets as the mode wants.
    Held,
    /// It compares holds with shorter ones.
    Probe,
}

/// The work of a queue with holds and without.
#[derive(Debug, Default)]
pub(super) struct Gain {
    /// At the last call; `None` before the first one.
    last: Option<SoFar>,
    free: Work,
    held: Work,
}

impl Gain {
    /// Adds the work since the last call, in which the queue was `doing` this. Work that does not
    /// show its own cost is left out: packets that were found without a wake-up of the queue while
    /// it was not held, because the thread was awake for another reason, and those of a hold that
    /// another queue's wake-up ended.
    pub fn add(&mut self, so_far: SoFar, doing: Doing) {
        let Some(last) = self.last.replace(so_far) else { return };
        if so_far.is_cut {
            return;
        }
        let by = SoFar {
            packets: so_far.packets.saturating_sub(last.packets),
            irqs: so_far.irqs.saturating_sub(last.irqs),
            polls: so_far.polls.saturating_sub(last.polls),
            is_cut: false,
        };
        match doing {
            Doing::Free if by.irqs > 0 => self.free.add(by),
            Doing::Held => self.held.add(by),
            Doing::Free | Doing::Probe => {}
        }
    }

    /// Lets the next work without holds count most, because traffic may have changed meanwhile.
    pub fn begin_free(&mut self) {
        let Work { packets, irqs, polls } = &mut self.free;
        [packets, irqs, polls].into_iter().for_each(|sum| *sum /= 4.0);
    }

    /// Forgets the work with holds so far, after a decision by it.
    pub fn forget_held(&mut self) {
        self.held = Work::default();
    }

    /// Returns false if packets take more wake-ups with holds than without, and hardly less work in
    /// all.
    pub fn is_there(&self) -> bool {
        let (free, held) = (self.free, self.held);
        let [without, with] = [free, held].map(|work| work.irqs + POLL * work.polls);
        held.irqs * free.packets <= free.irqs * held.packets
            || held.packets * without >= LEAST * free.packets * with
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gain(free: [u64; 3], held: [u64; 3]) -> bool {
        let (mut gain, mut so_far) = (Gain::default(), SoFar::default());
        gain.add(so_far, Doing::Free);
        for ([packets, irqs, polls], doing) in
            [(free, Doing::Free), ([7, 900, 900], Doing::Probe), (held, Doing::Held)]
        {
            so_far.packets += packets;
            so_far.irqs += irqs;
            so_far.polls += polls;
            gain.add(so_far, doing);
        }
        gain.is_there()
    }

    #[test]
    fn holds_gain_nothing_if_they_bring_wake_ups_and_save_no_polls() {
        // One packet a wake-up, and 2.5 in a hold.
        assert!(gain([10, 10, 10], [20, 8, 8]));
        // A burst of 12 in one poll, and an empty hold behind each.
        assert!(!gain([12, 1, 1], [24, 4, 2]));
        // A thread that hardly sleeps takes four packets with each poll, and 90 in a hold.
        assert!(gain([400, 1, 100], [90, 1, 1]));
        assert!(gain([400, 1, 100], [500, 3, 80]) && !gain([400, 1, 100], [500, 4, 80]));
        // A thread that never sleeps does not show what packets cost without holds.
        assert!(gain([400, 0, 100], [90, 9, 9]));
        // Holds for which the CPU waits busily bring no wake-up.
        assert!(gain([10, 0, 10], [10, 0, 10]));
        assert!(gain([0; 3], [1, 9, 9]) && gain([9, 1, 1], [0; 3]), "nothing is known");
    }

    #[test]
    fn earlier_work_weighs_less() {
        let (mut gain, mut so_far) = (Gain::default(), SoFar::default());
        gain.add(so_far, Doing::Free);
        // A backlog that few polls found, and then a packet a wake-up.
        for (packets, steps) in [(6400, 10), (600, 600)] {
            for _ in 0..10 {
                so_far.packets += packets / 10;
                so_far.irqs += steps / 10;
                so_far.polls += steps / 10;
                gain.add(so_far, Doing::Free);
            }
        }
        so_far.packets += 12;
        so_far.irqs += 6;
        so_far.polls += 6;
        gain.add(so_far, Doing::Held);
        assert!(gain.is_there(), "{gain:?}");
    }
}
