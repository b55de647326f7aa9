//! The plan of an engine, made before anything is opened: workers, wires, and the holders of
//! frames.

use linerate_port::{Code, Error, Result};
use linerate_skb::{Holders, Trust};

use crate::ports::{Named, Planned};
use crate::tx_batch::TxBatch;

/// Sizes that a builder settles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub budget: usize,
    pub backlog: usize,
    pub tx_batch: TxBatch,
}

/// A wire between two ports, by their places in the builder.
pub(crate) type Wire = (usize, usize);

/// The port of this name; `what` says in an error who asks for it.
pub(crate) fn find(ports: &[Named], name: &str, what: &str) -> Result<usize> {
    ports.iter().position(|port| port.spec.name == name).ok_or_else(|| {
        let known: Vec<&str> = ports.iter().map(|port| port.spec.name.as_str()).collect();
        let why = format!("{what} '{name}', and there is no such port");
        Error::new(Code::Topology, "cannot build the engine", why)
            .fix(format!("ports: {}", known.join(" ")))
    })
}

/// The wires, by the ports' names.
pub(crate) fn find_wires(ports: &[Named], names: &[(String, String)]) -> Result<Vec<Wire>> {
    let end = |name| find(ports, name, "a wire ends at");
    names.iter().map(|(a, b)| Ok((end(a)?, end(b)?))).collect()
}

/// Checks that every wire joins two different ports and no port is on two wires.
pub(crate) fn check_wires(ports: &[Named], wires: &[Wire]) -> Result<()> {
    let bad = |why: String| Err(Error::new(Code::Topology, "cannot build the engine", why));
    let twice = |i: &usize| ports[..*i].iter().any(|port| port.spec.name == ports[*i].spec.name);
    if let Some(i) = (0..ports.len()).find(twice) {
        return bad(format!("two ports are named '{}'", ports[i].spec.name));
    }
    for (i, port) in ports.iter().enumerate() {
        let ends = wires.iter().flat_map(|(a, b)| [a, b]).filter(|end| **end == i).count();
        if ends > 1 {
            return bad(format!("'{}' is on more than one wire", port.spec.name));
        }
        let others = ports.iter().filter(|other| port.is_paired_with(other)).count();
        if port.flags().paired && others != 2 {
            let (driver, name) = (&port.spec.driver, &port.spec.arg);
            return bad(format!("{driver}:{name} has {others} of the two ends it needs"));
        }
    }
    Ok(())
}

/// Returns the worker of each port: ports that a wire joins are served by one, so that a packet
/// stays on its core; each further wire gets a worker of its own, as long as there are fewer than
/// `most`, and then they are dealt out. Ports on no wire go to the first.
pub(crate) fn workers(ports: usize, wires: &[Wire], most: usize) -> Vec<usize> {
    let mut group: Vec<Option<usize>> = vec![None; ports];
    for (n, (a, b)) in wires.iter().enumerate() {
        // No port is on two wires, so each wire is a group.
        group[*a] = Some(n % most.max(1));
        group[*b] = Some(n % most.max(1));
    }
    group.into_iter().map(Option::unwrap_or_default).collect()
}

/// A port's demand on the engine's memory.
#[derive(Debug)]
pub(crate) struct Demand {
    pub name: String,
    pub worker: usize,
    /// Longest packet that it hands over; 0 if it only passes on what others made.
    pub packet_max_bytes: usize,
    /// The trust that a pool needs to serve it: private, or exported to a peer that may write.
    pub trust: Trust,
    pub rings: Rings,
    /// Packets that its discipline holds.
    pub qdisc_packets: usize,
}

/// The rings behind a port.
#[derive(Debug)]
pub(crate) enum Rings {
    /// A device's own, which hold frames of the pool.
    Device { frames: usize },
    /// A pair of this process, which holds packets; named, with its driver, at the first of its ends.
    Pair { name: Option<String>, packets: usize },
}

impl Rings {
    /// Frames in them that a hot list has to serve.
    pub fn frames(&self) -> usize {
        match self {
            Rings::Device { frames } => *frames,
            Rings::Pair { packets, .. } => *packets,
        }
    }
}

/// Returns each port's demand on the engine's memory.
pub(crate) fn demands(ports: &[Planned], workers: &[usize]) -> Vec<Demand> {
    let demand = |(i, (port, &worker)): (usize, (&Planned, &usize))| {
        let (spec, needs) = (&port.spec, port.needs);
        let is_other = |p: &Planned| p.spec.driver == spec.driver && p.spec.arg == spec.arg;
        let rings = if port.flags.paired {
            let first = !ports[..i].iter().any(is_other);
            let name = first.then(|| format!("{} {}", spec.driver, spec.arg));
            Rings::Pair { name, packets: needs.ring_frames }
        } else {
            Rings::Device { frames: needs.ring_frames }
        };
        let (name, packet_max_bytes) = (spec.name.clone(), needs.packet_max_bytes);
        let qdisc_packets = port.qdisc.map_or(0, |qdisc| qdisc.packets());
        Demand { name, worker, packet_max_bytes, trust: needs.trust, rings, qdisc_packets }
    };
    ports.iter().zip(workers).enumerate().map(demand).collect()
}

/// Frames that a packet of `packet_bytes` takes, of ordinary ones: a jumbo class may be used up.
pub(crate) fn frames_per_packet(packet_bytes: usize, data_room: usize) -> u64 {
    packet_bytes.div_ceil(data_room).max(1) as u64
}

/// Everyone who can hold frames of the pool, but the threads that drop packets; a worker for each
/// of `hot_lists`.
pub(crate) fn holders(
    demands: &[Demand],
    sizes: Sizes,
    hot_lists: &[usize],
    data_room: usize,
) -> Holders {
    let longest = demands.iter().map(|d| d.packet_max_bytes).max().unwrap_or(0);
    let longest = frames_per_packet(longest, data_room);
    let mut holders = Holders::new();
    for (worker, &hot_list_len) in hot_lists.iter().enumerate() {
        // One batch and one outbox.
        holders.add(format!("worker {worker} batches"), 2 * sizes.budget as u64 * longest);
        holders.add(format!("worker {worker} hot list"), hot_list_len as u64);
    }
    for demand in demands {
        holders.add(format!("{} backlog", demand.name), sizes.backlog as u64 * longest);
        if demand.qdisc_packets > 0 {
            holders.add(format!("{} qdisc", demand.name), demand.qdisc_packets as u64 * longest);
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

    #[test]
    fn each_wire_is_a_worker_and_loose_ports_go_to_the_first() {
        assert_eq!(workers(5, &[(0, 1), (3, 2)], 64), [0, 0, 1, 1, 0]);
        assert_eq!(workers(1, &[], 64), [0]);
    }

    #[test]
    fn wires_are_dealt_out_to_as_many_workers_as_are_wanted() {
        let wires = [(0, 1), (2, 3), (4, 5)];
        assert_eq!(workers(6, &wires, 2), [0, 0, 1, 1, 0, 0]);
        assert_eq!(workers(6, &wires, 1), [0; 6]);
        assert_eq!(workers(6, &wires, 0), [0; 6]);
    }

    #[test]
    fn the_sum_names_every_holder() {
        let texts = ["a=gen:,size=3000", "b=ring:r,len=64", "c=ring:r,len=64"];
        let ports = ports::plan(named(&texts), &[]).unwrap();
        let demands = demands(&ports, &[0, 0, 0]);
        assert_eq!(demands.iter().map(|d| d.rings.frames()).collect::<Vec<_>>(), [0, 128, 128]);
        let sizes = Sizes { budget: 32, backlog: 100, tx_batch: TxBatch::Auto };
        let h = holders(&demands, sizes, &[1024], 1792);
        // Two frames a packet.
        let sum = 2 * 64 + 1024 + 2 * 300 + 2 * 128;
        assert_eq!(h.sum(), sum);
        assert!(h.to_string().starts_with("worker 0 batches 128 + worker 0 hot list 1024 + a"));
        assert!(h.to_string().ends_with(" + ring r both ways 256 + c backlog 200 = 2008"), "{h}");
    }
}
