//! Each port's demand on the engine's memory: its pool, and the frames that its rings, backlogs and
//! disciplines hold.

use linerate_port::segment::SEGMENTS_MAX;
use linerate_skb::knob::HOT_LIST;
use linerate_skb::{Holders, Moved, Trust};

use crate::plan::{Sizes, Wire};
use crate::ports::Planned;
use crate::steer::Fan;
use crate::tx_batch::AUTO_PACKETS;

/// Frames of the pool for a program that keeps a port: the batches, and the packets that wait.
const PROGRAM_FRAMES: u64 = 4096;
/// Packets between a discipline and the device, whatever the backlog is: those in the fifo, and one
/// that waits for tokens.
const AFTER_QDISC: usize = AUTO_PACKETS + 1;
/// Payload in bytes of the shortest segments for which the pool has frames: less than the smallest
/// that TCP sends.
const SEGMENT_BYTES_MIN: usize = 32;

/// A port's demand on the engine's memory.
#[derive(Debug)]
pub(crate) struct Demand {
    pub name: String,
    /// The number of the port's queues, also of a port that the program keeps.
    pub queues: usize,
    /// The worker of each of the port's queues.
    pub workers: Vec<usize>,
    /// Longest packet that the port receives or makes; 0 if it only passes on packets of other
    /// ports.
    pub packet_max_bytes: usize,
    /// The trust that the port's pool needs: private, or exported if a peer can write its frames.
    pub trust: Trust,
    /// The number of the port's pool.
    pub pool: usize,
    pub rings: Rings,
    /// Most packets and bytes that the discipline of each of the port's queues holds; no packets
    /// without a discipline.
    pub qdisc: Moved,
    /// Length in bytes above which the discipline cuts superframes; `None` if it cuts none.
    pub cuts_above: Option<u64>,
    /// True if the program serves the port, and no worker does.
    pub kept: bool,
}

/// The rings of a port.
#[derive(Debug)]
pub(crate) enum Rings {
    /// The rings of a device, which hold frames of the pool.
    Device { frames: usize },
    /// A pair within this process, which holds packets; only the first end has the pair's name,
    /// which includes the driver.
    Pair { name: Option<String>, packets: usize },
}

impl Rings {
    /// Returns the number of frames in the rings that a hot list has to serve.
    pub fn frames(&self) -> usize {
        match self {
            Rings::Device { frames } => *frames,
            Rings::Pair { packets, .. } => *packets,
        }
    }
}

/// Returns the number of each port's pool, chosen so that a peer that can write a pool sees only
/// packets of wires that lead to it.
///
/// The ports of a wire or a division have one pool together, and so have wires that a pair joins.
/// If a peer shares the frames of one of these ports, no other ports use their pool. All other
/// ports have the first pool together.
pub(crate) fn pools(ports: &[Planned], wires: &[Wire], fans: &[Fan]) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..ports.len()).collect();
    let pairs = ports.iter().enumerate().filter_map(|(i, port)| {
        ports[..i].iter().position(|other| port.is_paired_with(other)).map(|other| (other, i))
    });
    let divided = fans.iter().flat_map(Fan::wires);
    for (a, b) in wires.iter().copied().chain(divided).chain(pairs) {
        let (one, other) = (groups[a], groups[b]);
        groups.iter_mut().filter(|group| **group == other).for_each(|group| *group = one);
    }
    let is_exported = |group| {
        let mut exporting =
            ports.iter().zip(&groups).filter(|(p, _)| p.needs.trust == Trust::Exported);
        exporting.any(|(_, of)| *of == group)
    };
    // `None` means the private pool, which comes first.
    let kinds: Vec<_> =
        groups.iter().map(|group| Some(*group).filter(|g| is_exported(*g))).collect();
    let mut known = kinds.clone();
    known.sort_unstable();
    known.dedup();
    kinds.iter().map(|kind| known.iter().take_while(|other| *other < kind).count()).collect()
}

/// Returns each port's demand on the engine's memory.
pub(crate) fn demands(ports: &[Planned], pools: &[usize], workers: &[Vec<usize>]) -> Vec<Demand> {
    let demand = |(i, (port, workers)): (usize, (&Planned, &Vec<usize>))| {
        let (spec, needs) = (&port.spec, port.needs);
        let rings = if port.flags.paired {
            let first = !ports[..i].iter().any(|other| port.is_paired_with(other));
            let name = first.then(|| format!("{} {}", spec.driver, spec.arg));
            Rings::Pair { name, packets: needs.ring_frames }
        } else {
            Rings::Device { frames: needs.ring_frames }
        };
        Demand {
            name: spec.name.clone(),
            queues: needs.queues.max(1),
            workers: workers.clone(),
            packet_max_bytes: needs.packet_max_bytes,
            trust: needs.trust,
            pool: pools[i],
            rings,
            qdisc: port.qdisc.map_or(Moved::default(), |qdisc| qdisc.most()),
            cuts_above: port.qdisc.and_then(|qdisc| qdisc.cuts_above()),
            kept: workers.is_empty(),
        }
    };
    ports.iter().zip(workers).enumerate().map(demand).collect()
}

/// Returns how many ordinary frames a packet of `packet_bytes` needs. Jumbo frames are not
/// considered, because all of them may be in use.
pub(crate) fn frames_per_packet(packet_bytes: usize, data_room: usize) -> u64 {
    packet_bytes.div_ceil(data_room).max(1) as u64
}

/// Returns the frames that a queue of up to `most` needs, whose packets have up to `longest` frames
/// each. A packet of `n` bytes that a driver of ours filled has at most `n / data_room + 1` frames,
/// since all but its last one are full; so a limit of bytes also limits the frames.
fn frames_of_queue(most: Moved, longest: u64, data_room: usize) -> u64 {
    let (packets, full) = (most.packets as u64, most.bytes / data_room as u64);
    packets.saturating_add(full).min(packets * longest)
}

/// Returns the frames for the segments of a superframe of `longest_bytes`, from when they are made
/// until a discipline of `worker` takes them; the worker's batch has the superframe then. 0 if none
/// of its disciplines cuts superframes.
fn frames_of_cut(demands: &[Demand], worker: usize, longest_bytes: usize, data_room: usize) -> u64 {
    let cuts = |demand: &Demand| {
        let is_cut = demand.cuts_above.is_some_and(|bytes| longest_bytes as u64 > bytes);
        is_cut && demand.workers.contains(&worker)
    };
    if !demands.iter().any(cuts) {
        return 0;
    }
    let packets = longest_bytes.div_ceil(SEGMENT_BYTES_MIN).min(SEGMENTS_MAX);
    let segments = Moved { packets, bytes: longest_bytes as u64 };
    frames_of_queue(segments, frames_per_packet(longest_bytes, data_room), data_room)
}

/// Returns the holders of the `pool`'s frames, except threads that drop packets; `hot_lists` has
/// the length for each worker that uses the pool, which includes the frames that the worker
/// gathers for other cores.
///
/// A stage may send packets to the other ports of its worker, whose backlogs then hold them.
pub(crate) fn holders(
    demands: &[Demand],
    pool: usize,
    sizes: Sizes,
    hot_lists: &[Option<usize>],
    data_room: usize,
) -> Holders {
    let its = demands.iter().filter(|demand| demand.pool == pool);
    let longest_bytes = its.map(|d| d.packet_max_bytes).max().unwrap_or(0);
    let longest = frames_per_packet(longest_bytes, data_room);
    // A peer that fills frames decides how full they are.
    let is_filled_by_peer =
        |demand: &Demand| demand.pool == pool && demand.trust == Trust::Exported;
    let by_peer = demands.iter().any(is_filled_by_peer);
    let mut holders = Holders::new();
    for (worker, hot_list_len) in hot_lists.iter().enumerate() {
        let Some(hot_list_len) = *hot_list_len else { continue };
        // The batch of received packets, and the packets that stages add.
        holders.add(format!("worker {worker} batches"), 2 * sizes.budget as u64 * longest);
        holders.add(format!("worker {worker} hot list"), hot_list_len as u64);
        let segments = frames_of_cut(demands, worker, longest_bytes, data_room);
        if segments > 0 {
            holders.add(format!("worker {worker} segments"), segments);
        }
    }
    for demand in demands {
        // Each queue has a backlog of its own.
        let queues = demand.workers.iter().filter(|worker| hot_lists[**worker].is_some()).count();
        if demand.kept && demand.pool == pool {
            // Each of its queues has a hot list of the default length.
            let rings = demand.rings.frames().div_ceil(demand.queues) as u64;
            let hot_list_len = HOT_LIST.clamp(HOT_LIST.default.max(rings));
            let frames = PROGRAM_FRAMES + demand.queues as u64 * hot_list_len;
            holders.add(format!("{}: the program's batches and hot lists", demand.name), frames);
        } else if queues == 0 {
            continue;
        } else {
            let after_qdisc = if demand.qdisc.packets > 0 { AFTER_QDISC } else { 0 };
            let backlogs = (queues * sizes.backlog.max(after_qdisc)) as u64;
            holders.add(format!("{} backlog", demand.name), backlogs * longest);
        }
        if demand.qdisc.packets > 0 {
            // A discipline that takes a packet before it drops another one has it from the worker's
            // batch, which is counted above.
            let frames = match by_peer {
                true => demand.qdisc.packets as u64 * longest,
                false => frames_of_queue(demand.qdisc, longest, data_room),
            };
            holders.add(format!("{} qdisc", demand.name), queues as u64 * frames);
        }
        if demand.pool != pool {
            continue;
        }
        match &demand.rings {
            Rings::Device { frames: 0 } | Rings::Pair { name: None, .. } => {}
            Rings::Device { frames } => {
                holders.add(format!("{} rings", demand.name), *frames as u64);
            }
            Rings::Pair { name: Some(name), packets } => {
                holders.add(format!("{name} both ways"), *packets as u64 * longest);
            }
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{self, tests::named};
    use crate::tx_batch::TxBatch;

    #[test]
    fn a_peer_that_may_write_a_pool_sees_the_packets_of_its_wires_alone() {
        let pools_of = |texts: &[&str], wires: &[Wire]| {
            pools(&ports::plan(named(texts), wires).unwrap(), wires, &[])
        };
        let texts = ["null:", "null:", "null:", "memif:d", "memif:e,zerocopy=no"];
        assert_eq!(pools_of(&texts, &[(0, 1), (2, 3)]), [0, 0, 1, 1, 0]);
        assert_eq!(pools_of(&texts, &[(3, 0), (1, 2)]), [1, 0, 0, 1, 0]);
        // A single pool is the first one, even if a peer may write it.
        assert_eq!(pools_of(&["null:", "memif:b"], &[(0, 1)]), [0, 0]);
        assert_eq!(pools_of(&["null:", "memif:b,zerocopy=read"], &[]), [0, 0]);
        // Two peers have different pools, unless a wire joins their ports.
        let texts = ["memif:a", "null:", "memif:c", "null:"];
        assert_eq!(pools_of(&texts, &[(0, 1), (2, 3)]), [0, 0, 1, 1]);
        assert_eq!(pools_of(&texts, &[(0, 2), (1, 3)]), [1, 0, 1, 0]);
        // Rings between workers continue a wire: they get its pool.
        let texts = ["null:", "ring:r", "null:", "memif:b", "ring:r", "ring:s", "ring:s"];
        assert_eq!(pools_of(&texts, &[(0, 1), (4, 3)]), [1, 1, 0, 1, 1, 0, 0]);
    }

    #[test]
    fn a_worker_of_two_pools_holds_frames_of_each() {
        let texts = ["gen:", "sink:", "null:", "memif:d,size=64"];
        let wires = [(0, 1), (2, 3)];
        let ports = ports::plan(named(&texts), &wires).unwrap();
        let sizes = Sizes { budget: 32, backlog: 100, tx_batch: TxBatch::Auto };
        let sum = |workers: [usize; 2], pool| {
            let [a, b] = workers.map(|w| vec![w]);
            let demands = demands(&ports, &[0, 0, 1, 1], &[a.clone(), a, b.clone(), b]);
            let hot_lists: Vec<_> =
                (0..2).map(|w| workers[pool..=pool].contains(&w).then_some(50)).collect();
            holders(&demands, pool, sizes, &hot_lists, usize::MAX).sum()
        };
        assert_eq!([sum([0, 1], 0), sum([0, 1], 1)], [64 + 50 + 200, 64 + 50 + 200 + 128]);
        // Packets that a stage sends to the unwired port wait in that port's backlog.
        assert_eq!([sum([0, 0], 0), sum([0, 0], 1)], [64 + 50 + 400, 64 + 50 + 400 + 128]);
    }

    #[test]
    fn a_discipline_has_a_fifo_whatever_the_backlog_is() {
        let texts = ["a=gen:,size=60", "b=sink:,qdisc=fifo,limit=10"];
        let ports = ports::plan(named(&texts), &[(0, 1)]).unwrap();
        let demands = demands(&ports, &[0; 2], &[vec![0], vec![0]]);
        for (backlog, after) in [(1, 65), (100, 100)] {
            let sizes = Sizes { budget: 1, backlog, tx_batch: TxBatch::Auto };
            let h = holders(&demands, 0, sizes, &[Some(50)], usize::MAX).to_string();
            let expected = format!("a backlog {backlog} + b backlog {after} + b qdisc 10");
            assert!(h.contains(&expected), "{h}");
        }
    }

    #[test]
    fn a_discipline_has_frames_for_its_bytes_and_not_for_a_superframe_in_each_packet() {
        let sizes = Sizes { budget: 64, backlog: 256, tx_batch: TxBatch::Auto };
        for (qdisc, frames) in [
            // A superframe of 65,550 bytes has 37 frames.
            ("fq_codel", 10_240 + (32 << 20) / 1792),
            ("fifo,limit=10", 10 * 37),
            ("fifo,limit=10,limit_bytes=1G", 10 * 37),
            // A whole frame for each packet's end, whatever the others are.
            ("fifo,limit=10,limit_bytes=1792", 10 + 1),
            ("fifo,limit=10,limit_bytes=1791", 10),
            ("pfifo_fast,limit=100,limit_bytes=17920", 3 * (100 + 10)),
        ] {
            let text = format!("b=packet:lo,shape=18Mbit,qdisc={qdisc}");
            let ports = ports::plan(named(&["a=packet:lo", &text]), &[(0, 1)]).unwrap();
            let demands = demands(&ports, &[0; 2], &[vec![0], vec![0]]);
            let h = holders(&demands, 0, sizes, &[Some(1024)], 1792).to_string();
            assert!(h.contains(&format!(" + b qdisc {frames} = ")), "{qdisc}: {h}");
        }
    }

    #[test]
    fn worker_of_a_port_that_cuts_superframes_has_frames_for_the_segments_of_one() {
        let sizes = Sizes { budget: 64, backlog: 256, tx_batch: TxBatch::Auto };
        let texts = ["a=packet:lo", "b=packet:lo,shape=18Mbit", "c=null:", "d=null:,shape=1Mbit"];
        let ports = ports::plan(named(&texts), &[(0, 1), (2, 3)]).unwrap();
        let of = |ports: &[Planned], workers: [usize; 4]| {
            let demands = demands(ports, &[0; 4], &workers.map(|worker| vec![worker]));
            let h = holders(&demands, 0, sizes, &[Some(50); 2], 1792).to_string();
            h.split(" + ").filter(|one| one.contains("segments")).collect::<Vec<_>>().join(", ")
        };
        // 65,550 bytes are more than 2,048 segments of 32, and need 36 more frames if all but the
        // last are full.
        let each = ["worker 0 segments 2084", "worker 1 segments 2084"];
        assert_eq!(of(&ports, [0, 0, 1, 1]), each.join(", "));
        assert_eq!(of(&ports, [0; 4]), each[0], "one superframe at a time");
        let texts = ["a=packet:lo", "b=packet:lo,shape=1Gbit", "c=null:", "d=null:,qdisc=fifo"];
        let ports = ports::plan(named(&texts), &[(0, 1), (2, 3)]).unwrap();
        assert_eq!(of(&ports, [0, 0, 1, 1]), "", "none that is cut");
        let texts = ["a=null:,size=1514", "b=null:,shape=1Mbit", "c=null:", "d=null:"];
        let ports = ports::plan(named(&texts), &[(0, 1), (2, 3)]).unwrap();
        assert_eq!(of(&ports, [0, 0, 1, 1]), "worker 0 segments 48");
    }

    #[test]
    fn frames_that_a_peer_fills_may_have_a_byte_each() {
        let sizes = Sizes { budget: 64, backlog: 256, tx_batch: TxBatch::Auto };
        let texts = ["a=packet:lo", "b=packet:lo,shape=18Mbit,qdisc=fq_codel"];
        let ports = ports::plan(named(&texts), &[(0, 1)]).unwrap();
        let mut demands = demands(&ports, &[0; 2], &[vec![0], vec![0]]);
        demands[0].trust = Trust::Exported;
        let h = holders(&demands, 0, sizes, &[Some(1024)], 1792).to_string();
        assert!(h.contains(&format!(" + b qdisc {} = ", 10_240 * 37)), "{h}");
    }

    #[test]
    fn each_queue_that_the_program_keeps_has_a_hot_list() {
        let texts = ["a=null:,queues=8", "b=ring:r,len=4096", "c=ring:r,len=4096"];
        let ports = ports::plan(named(&texts), &[]).unwrap();
        let demands = demands(&ports, &[0; 3], &[vec![], vec![], vec![]]);
        let sizes = Sizes { budget: 32, backlog: 100, tx_batch: TxBatch::Auto };
        let h = holders(&demands, 0, sizes, &[], usize::MAX).to_string();
        for (name, lists) in [("a", 8 * 1024), ("b", 8192)] {
            let held = format!("{name}: the program's batches and hot lists {}", 4096 + lists);
            assert!(h.contains(&held), "{h}");
        }
    }

    #[test]
    fn the_sum_names_every_holder() {
        let texts = ["a=gen:,size=3000", "b=ring:r,len=64", "c=ring:r,len=64"];
        let ports = ports::plan(named(&texts), &[]).unwrap();
        let demands = demands(&ports, &[0; 3], &[vec![0], vec![0], vec![0]]);
        assert_eq!(demands.iter().map(|d| d.rings.frames()).collect::<Vec<_>>(), [0, 128, 128]);
        let sizes = Sizes { budget: 32, backlog: 100, tx_batch: TxBatch::Auto };
        let h = holders(&demands, 0, sizes, &[Some(1024)], 1792);
        // Each packet needs two frames.
        let sum = 2 * 64 + 1024 + 2 * 300 + 2 * 128;
        assert_eq!(h.sum(), sum);
        assert!(h.to_string().starts_with("worker 0 batches 128 + worker 0 hot list 1024 + a"));
        assert!(h.to_string().ends_with(" + ring r both ways 256 + c backlog 200 = 2008"), "{h}");
    }

    #[test]
    fn each_queue_of_a_port_has_a_discipline_of_its_own() {
        let texts = ["a=null:", "b=null:,queues=2,qdisc=fifo,limit=10"];
        let ports = ports::plan(named(&texts), &[(0, 1)]).unwrap();
        let demands = demands(&ports, &[0; 2], &[vec![0], vec![0, 1]]);
        let sizes = Sizes { budget: 32, backlog: 100, tx_batch: TxBatch::Auto };
        let h = holders(&demands, 0, sizes, &[Some(50); 2], usize::MAX).to_string();
        assert!(h.contains(" + b qdisc 20"), "{h}");
    }

    #[test]
    fn ports_of_a_division_have_one_pool() {
        let ports = ports::plan(named(&["null:", "memif:b", "null:"]), &[]).unwrap();
        let fan = Fan { from: 0, outputs: vec![1] };
        assert_eq!(pools(&ports, &[], &[fan]), [1, 1, 0]);
    }
}
