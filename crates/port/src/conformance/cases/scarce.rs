//! Cases for budgets, for a pool without frames, and for a device without room.

use std::time::Duration;

use linerate_skb::{Batch, Moved};

use super::STORED;
use crate::conformance::bench::Bench;
use crate::conformance::end::{BATCH, TRIES};
use crate::conformance::traffic::{Arrivals, Packet, of_lengths};
use crate::conformance::{Ran, Rig};
use crate::queue::Want;

/// Number of packets after which a device is treated as never full.
const FLOOD: u32 = 20_000;
/// Time without room after which a device that works by itself is full.
const SETTLING: Duration = Duration::from_millis(200);
/// The outcome of a case that needs a full device, on a port whose device is never full.
const NEVER_FULL: Ran = Ran::DoesNotApply("its device is never full");

/// Checks that `rx` appends at most its budget, nothing for a budget of 0, and the remaining
/// packets at the next call, and that `xmit` of an empty batch does nothing.
pub fn budgets_are_kept(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        if bench.is_stored() {
            return STORED;
        }
        let mut empty = Batch::with_capacity(1);
        assert_eq!(bench.sender().xmit(&mut empty), Moved::default(), "xmit() of an empty batch");
        let packets = of_lengths(0, [bench.limits.shortest_bytes.max(60); 12]);
        let (mut arrivals, patience) = (bench.arrivals(&packets), bench.patience());
        let batch = bench.batch(&packets);
        bench.send(batch, &mut arrivals);
        // `rx` itself asserts that the budget was kept.
        for budget in [0, 1, 0, 3].into_iter().chain([0, 1, 2].into_iter().cycle()).take(TRIES) {
            if arrivals.came() == packets.len() {
                break;
            }
            assert!(bench.receiver().wait(Want::Frames, patience), "{}", arrivals.missing());
            bench.receiver().take(&mut arrivals, budget);
        }
        assert_eq!(arrivals.came(), packets.len(), "{}", arrivals.missing());
        Ran::Passed
    })
}

/// Checks that without a free frame packets wait in the device, and that their receiver can sleep
/// and is woken when frames are free again.
pub fn a_dry_pool_loses_nothing_and_recovers(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        if bench.is_stored() {
            return STORED;
        }
        let packets = of_lengths(0, [bench.limits.shortest_bytes.max(60); 12]);
        let (mut arrivals, patience) = (bench.arrivals(&packets), bench.patience());
        let batch = bench.batch(&packets);
        bench.send(batch, &mut arrivals);
        let (frames, early) = (bench.pool.frames(), arrivals.came());
        let receiver = bench.receiver();
        assert!(receiver.wait(Want::Frames, patience), "{}", arrivals.missing());
        let hoard = receiver.hoard(frames);
        // Hold packets that arrive nevertheless, in frames that the device had: no frame is free
        // again.
        let mut held = Batch::with_capacity(packets.len() + BATCH);
        let mut slept = false;
        for _ in 0..TRIES {
            receiver.rx(&mut held, BATCH);
            if receiver.arm(Want::Frames) {
                slept = true;
                break;
            }
        }
        assert!(slept, "without a free frame arm() returns false for ever: a worker spins");
        let waiting = packets.len() - early - held.len().min(packets.len() - early);
        if waiting > 0 && held.is_empty() {
            assert!(receiver.rx_nombuf() > 0, "a receive that the pool ended is in rx_nombuf");
        }
        held.iter().for_each(|skb| arrivals.take(skb));
        receiver.consume(&mut held);
        receiver.release(hoard);
        let woken = arrivals.came() == packets.len() || receiver.readable(patience);
        assert!(woken, "there are frames again, packets wait, and the poller is not woken");
        receiver.collect(&mut arrivals, packets.len(), patience);
        Ran::Passed
    })
}

/// A device that is full.
struct Full {
    /// The packets that the device did not accept.
    rest: Batch,
    arrivals: Arrivals,
    /// The number of packets that the device accepted.
    taken: usize,
}

/// Sends without receiving until the device is full; returns `None` if it never becomes full.
fn fill(bench: &mut Bench) -> Option<Full> {
    if bench.limits.blocks_when_full {
        return None;
    }
    let len = bench.limits.shortest_bytes.max(60);
    let mut arrivals = bench.arrivals(&[]);
    for start in (0..FLOOD).step_by(BATCH) {
        let packets: Vec<_> =
            (start..start + BATCH as u32).map(|seq| Packet::new(0, seq, len)).collect();
        let mut rest = bench.batch(&packets);
        if rest.len() < packets.len() {
            // The device can hold more packets than the pool has.
            bench.discard(rest);
            return drained(bench, arrivals, start as usize);
        }
        arrivals.expect(&packets);
        bench.sender().xmit(&mut rest);
        for _ in 0..TRIES {
            let is_busy = bench.limits.works_alone && !rest.is_empty();
            if !is_busy || !bench.sender().wait(Want::Room, SETTLING) {
                break;
            }
            bench.sender().xmit(&mut rest);
        }
        if !rest.is_empty() {
            let taken = start as usize + packets.len() - rest.len();
            return Some(Full { rest, arrivals, taken });
        }
    }
    drained(bench, arrivals, FLOOD.next_multiple_of(BATCH as u32) as usize)
}

/// Receives all packets that a device accepted without becoming full.
fn drained(bench: &mut Bench, mut arrivals: Arrivals, taken: usize) -> Option<Full> {
    if !bench.limits.drops_unread {
        bench.collect(&mut arrivals, taken);
    }
    None
}

/// Checks that a full device returns the packets it does not accept, in order, that its sender can
/// sleep, and that all packets arrive in the end.
pub fn a_full_device_hands_the_rest_back(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        if bench.is_stored() {
            return STORED;
        }
        let Some(Full { mut rest, mut arrivals, taken }) = fill(bench) else { return NEVER_FULL };
        let all = taken + rest.len();
        // `xmit` itself asserts that the remaining packets are in order.
        let mut slept = false;
        for _ in 0..TRIES {
            if rest.is_empty() || bench.sender().arm(Want::Room) {
                slept = true;
                break;
            }
            bench.sender().xmit(&mut rest);
        }
        assert!(slept, "a full device reports room for ever: a worker spins");
        bench.send(rest, &mut arrivals);
        if bench.limits.drops_unread {
            while bench.receiver().take(&mut arrivals, BATCH) > 0 {}
        } else {
            bench.collect(&mut arrivals, all);
        }
        Ran::Passed
    })
}

/// Checks that a sender that sleeps because the device is full is woken after the other end has
/// received packets.
pub fn room_wakes_a_sender(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        if bench.is_stored() {
            return STORED;
        }
        let Some(Full { mut rest, mut arrivals, taken }) = fill(bench) else { return NEVER_FULL };
        let armed = (0..TRIES).any(|_| bench.sender().arm(Want::Room));
        assert!(armed, "a full device reports room for ever: a worker spins");
        if bench.limits.drops_unread {
            while bench.receiver().take(&mut arrivals, BATCH) > 0 {}
        } else {
            bench.collect(&mut arrivals, taken);
        }
        let patience = bench.patience();
        // In a loop this end is also the receiver, and receiving did not show whether there is
        // room.
        let woken = bench.sender().readable(patience);
        assert!(woken, "the other end has read everything, and the sender sleeps on");
        let before = rest.len();
        for _ in 0..TRIES {
            bench.sender().xmit(&mut rest);
            if rest.len() < before {
                break;
            }
            assert!(bench.sender().wait(Want::Room, patience), "room is not announced");
        }
        assert!(rest.len() < before, "a sender that was woken for room finds none");
        bench.discard(rest);
        Ran::Passed
    })
}
