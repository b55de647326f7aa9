//! Cases for `arm` and the descriptor: it is not readable while no packet waits, and readable as
//! soon as one does.

use std::sync::mpsc;
use std::time::Duration;

use super::STORED;
use crate::conformance::bench::Bench;
use crate::conformance::end::{End, TRIES};
use crate::conformance::traffic::{Packet, of_lengths};
use crate::conformance::{Ran, Rig};
use crate::queue::Want;

/// Number of packets, each of which the receiver waits for.
const ROUNDS: u32 = 200;
/// Number of holds in a row, and the time of each.
const HOLDS: u32 = 4;
const HOLD: Duration = Duration::from_micros(500);

/// Checks `arm` and the descriptor. With no packet waiting, `arm` returns true and the descriptor
/// is not readable. With a packet waiting, in every call `arm` returns false or the descriptor is
/// readable at once. For packets left from an earlier call `arm` must return false, because a
/// poller of an edge-triggered epoll has already seen the change. The descriptor becomes readable
/// at the end of a hold.
pub fn arm_tells_what_is_there(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        if bench.is_stored() {
            return STORED;
        }
        let lengths = [bench.limits.shortest_bytes.max(60); 4];
        let packets = of_lengths(0, lengths.into_iter().take(bench.limits.window_packets));
        let (mut arrivals, patience) = (bench.arrivals(&packets), bench.patience());
        bench.receiver().reap();
        // Wait for a moment: even a timer that is due already fires only after an interrupt.
        let fresh = bench.receiver().readable(patience);
        assert!(fresh, "a queue that was never armed is not readable");
        assert!(!bench.sender().arm(Want::Room), "a device that is empty says that it has no room");
        assert!(!bench.sender().arm(Want::Both), "a device that is empty says that it has no room");
        silent(bench);
        let batch = bench.batch(&packets);
        bench.send(batch, &mut arrivals);
        let receiver = bench.receiver();
        // A device that is read in between would be correct too, but this case does not test it.
        assert_eq!(arrivals.came(), 0, "the device took no {} packets at once", packets.len());
        assert!(receiver.readable(patience), "packets came, and the descriptor is silent");
        for want in [Want::Frames, Want::Both, Want::Frames] {
            // If only the kernel knows of a packet, `arm` would need a syscall to learn of it; the
            // descriptor must report it then.
            let is_reported = !receiver.arm(want) || receiver.readable(Duration::ZERO);
            assert!(
                is_reported,
                "arm() is true, packets wait, and the poller is not woken: they are slept on"
            );
        }
        for budget in [0, 1] {
            receiver.take(&mut arrivals, budget);
            if arrivals.came() == packets.len() {
                break;
            }
            // A device that delivers by blocks may have delivered only a part: then the other
            // packets arrive later, which is a change that the descriptor reports.
            let comes =
                |receiver: &End| !receiver.readable(Duration::ZERO) && receiver.readable(patience);
            let is_reported = !receiver.arm(Want::Frames) || comes(receiver);
            assert!(
                is_reported,
                "arm() is true of packets that rx({budget}) left: who polls for changes sleeps on"
            );
        }
        receiver.collect(&mut arrivals, packets.len(), patience);
        silent(bench);
        for _ in 0..HOLDS {
            let holds_end = bench.receiver().holds_end(HOLD, patience);
            assert!(holds_end, "hold() begins a hold that does not end");
        }
        silent(bench);
        Ran::Passed
    })
}

/// Asserts that the receiver, armed for packets, is not woken.
///
/// Tried more than once: a packet of another program may come just then.
fn silent(bench: &mut Bench) {
    let (mut arrivals, patience) = (bench.arrivals(&[]), bench.patience());
    let receiver = bench.receiver();
    for _ in 0..TRIES {
        receiver.settle(&mut arrivals, patience);
        if !receiver.readable(Duration::ZERO) {
            return;
        }
    }
    panic!("arm() says that there is nothing, and the descriptor is readable, again and again");
}

/// Checks that single packets wake a receiver that sleeps, and one that is about to sleep.
pub fn no_wake_up_is_lost(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        if bench.is_stored() {
            return STORED;
        }
        let len = bench.limits.shortest_bytes.max(60);
        for seq in 0..ROUNDS {
            wake_a_sleeper(bench, Packet::new(0, seq, len));
        }
        let packets: Vec<_> = (0..ROUNDS).map(|seq| Packet::new(1, seq, len)).collect();
        if bench.is_pair() {
            wake_by_turns(bench, &packets);
        }
        Ran::Passed
    })
}

fn wake_a_sleeper(bench: &mut Bench, packet: Packet) {
    let (mut arrivals, patience) = (bench.arrivals(&[packet]), bench.patience());
    bench.receiver().settle(&mut arrivals, patience);
    let mut batch = bench.batch(&[packet]);
    bench.sender().xmit(&mut batch);
    assert!(batch.is_empty(), "a device that is empty takes no packet");
    let receiver = bench.receiver();
    let woken = receiver.readable(patience);
    assert!(woken, "packet {} came to a receiver that sleeps, and does not wake it", packet.id.1);
    receiver.collect(&mut arrivals, 1, patience);
}

/// Exchanges packets between two threads: each sends as soon as the other, which is about to sleep,
/// has received the last packet.
fn wake_by_turns(bench: &mut Bench, packets: &[Packet]) {
    // Build the batches now, because both ends are borrowed below.
    let batches: Vec<_> = packets.iter().map(|packet| bench.batch(&[*packet])).collect();
    let (mut arrivals, patience) = (bench.arrivals(packets), bench.patience());
    let (done, next) = mpsc::channel();
    let Some((sender, receiver)) = bench.split() else { return };
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            for count in 1..=packets.len() {
                receiver.collect(&mut arrivals, count, patience);
                if done.send(()).is_err() {
                    return;
                }
            }
        });
        for mut batch in batches {
            sender.xmit(&mut batch);
            assert!(batch.is_empty(), "a device that is empty takes no packet");
            // The receiver has ended because it found a fault, which it reports itself.
            if next.recv().is_err() {
                break;
            }
        }
        drop(next);
        if let Err(panic) = reader.join() {
            std::panic::resume_unwind(panic);
        }
    });
}
