//! Cases for delivery: packets arrive once, complete and in order, at every length and in every
//! shape.

use linerate_skb::Batch;

use crate::conformance::bench::Bench;
use crate::conformance::traffic::{Packet, of_lengths};
use crate::conformance::{Ran, Rig};

/// Every length up to this one is tested.
const EACH_UP_TO: usize = 2048;
/// Step between tested lengths above [`EACH_UP_TO`]; it is a prime number.
const STEP: usize = 251;

/// Checks that a thousand packets arrive, each once, and that the ledger balances when the port is
/// closed.
pub fn every_packet_is_received_or_counted(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        let longest = bench.longest().min(1514);
        let shortest = bench.limits.shortest_bytes;
        let lengths = (0..1000).map(|i| shortest + i * 7 % (longest - shortest + 1));
        bench.exchange(&of_lengths(0, lengths));
        Ran::Passed
    })
}

/// Checks that packets of eight interleaved flows arrive in the order of their flow.
pub fn packets_of_a_flow_stay_in_order(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        let len = bench.limits.shortest_bytes.max(60);
        // Use runs of uneven length, so that no flow always has the same place in a batch.
        let flow = |i: u32| (i / (1 + i % 5) % 8) as u8;
        let packets: Vec<_> = (0..1000).map(|i| Packet::new(flow(i), i, len)).collect();
        bench.exchange(&packets);
        Ran::Passed
    })
}

/// Checks that packets of every length from the shortest to the longest arrive with this length and
/// with every byte.
///
/// From 2048 bytes on not each: those at the ends of frames, every 251st, and the last 16.
pub fn every_length_passes_whole(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        let (longest, room) = (bench.longest(), bench.pool.data_room());
        let tried = |len: &usize| {
            let at_an_end = (len + 2) % room <= 4;
            *len <= EACH_UP_TO || at_an_end || len.is_multiple_of(STEP) || len + 16 > longest
        };
        let lengths = (bench.limits.shortest_bytes..=longest).filter(tried);
        bench.exchange(&of_lengths(0, lengths));
        Ran::Passed
    })
}

/// Checks that packets in several frames arrive complete, wherever they are cut.
pub fn chains_pass_whole(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        let (longest, shortest) = (bench.longest(), bench.limits.shortest_bytes);
        let mut packets = Vec::new();
        for (flow, piece) in (0..).zip([1, 13, 14, 15, 60, 64, 512, bench.pool.data_room()]) {
            // Use a length of 16 pieces, which most devices accept in one call.
            let most = longest.min(piece * 16);
            let lengths = (0..40).map(|i| most - i * most / 64).filter(|len| *len >= shortest);
            let whole = of_lengths(flow, lengths);
            packets.extend(whole.into_iter().map(|packet| packet.in_pieces(piece)));
        }
        bench.exchange(&packets);
        Ran::Passed
    })
}

/// Checks that packets shorter than a header or too long for the device are sent or dropped with a
/// reason, and that the packets after them arrive.
pub fn strange_lengths_block_nothing(rig: &mut Rig) -> Ran {
    rig.each_way(|bench| {
        let good = of_lengths(0, [bench.limits.shortest_bytes.max(60); 8]);
        let too_long = bench.longest() + 64;
        let mut arrivals = bench.arrivals(&good);
        for (packet, len) in good.iter().zip([0, 1, 13, too_long, 0, too_long, 13, 1]) {
            let mut batch = bench.batch(&[*packet]);
            // Give the packet a flow that no check expects, so that it may arrive or not.
            let strange = strange(bench, len);
            batch = joined(strange, batch);
            bench.send(batch, &mut arrivals);
        }
        // The packets that are stored are not read here, but closing checks that each was sent or
        // dropped.
        if !bench.is_stored() {
            bench.collect(&mut arrivals, good.len());
        }
        Ran::Passed
    })
}

fn strange(bench: &mut Bench, len: usize) -> Batch {
    let bytes = Packet::new(u8::MAX, 0, len).bytes();
    let mut batch = Batch::with_capacity(2);
    let skb = bench.build(&bytes[..len], usize::MAX).expect("the pool has frames");
    assert!(batch.push(skb).is_ok(), "the batch has room for it");
    batch
}

/// Returns one batch: the packets of `first`, which has room for them, then those of `second`.
fn joined(mut first: Batch, mut second: Batch) -> Batch {
    let n = second.len();
    assert_eq!(second.move_to(&mut first, n), n, "the batch has room for each");
    first
}
