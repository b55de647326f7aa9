//! What an engine will be, decided before anything is opened: workers, wires, and who can hold
//! frames.

use linerate_port::{Code, Direction, Driver, Error, Result, Spec, driver_of, ring};
use linerate_skb::{Holders, Trust};

/// Sizes that a builder settles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub budget: usize,
    pub backlog: usize,
    pub rx_usecs: u32,
}

/// A wire between two ports, by their places in the builder.
pub(crate) type Wire = (usize, usize);

/// The port of this name; `what` says in an error who asks for it.
pub(crate) fn find(specs: &[Spec], name: &str, what: &str) -> Result<usize> {
    specs.iter().position(|s| s.name == name).ok_or_else(|| {
        let known: Vec<&str> = specs.iter().map(|s| s.name.as_str()).collect();
        let why = format!("{what} '{name}', and there is no such port");
        Error::new(Code::Topology, "cannot build the engine", why)
            .fix(format!("ports: {}", known.join(" ")))
    })
}

/// The wires, by the ports' names.
pub(crate) fn find_wires(specs: &[Spec], names: &[(String, String)]) -> Result<Vec<Wire>> {
    let end = |name| find(specs, name, "a wire ends at");
    names.iter().map(|(a, b)| Ok((end(a)?, end(b)?))).collect()
}

/// Gives a port that is either read or written its mode: the left end of a wire is read. Between two
/// of these packets of any link type pass, unless somebody `looks` at them, who takes them for Ethernet.
pub(crate) fn direct(specs: &mut [Spec], wires: &[Wire], looks: bool) {
    let is_directed = |spec: &Spec| driver_of(spec).is_ok_and(Driver::directed);
    for &(a, b) in wires.iter().filter(|_| !looks) {
        if is_directed(&specs[a]) && is_directed(&specs[b]) {
            specs[a].options.set_default("link", Some("any"));
            specs[b].options.set_default("link", Some("any"));
        }
    }
    for (i, spec) in specs.iter_mut().enumerate() {
        let directed = is_directed(spec);
        let said = spec.flag("read").unwrap_or(false) || spec.flag("write").unwrap_or(false);
        if directed && !said {
            let left = wires.iter().any(|(a, _)| *a == i);
            spec.options.set_default(if left { "read" } else { "write" }, None);
        }
    }
    spare(specs, wires);
}

/// Tells a port that takes packets from others to take none, where its wire's other end would get
/// none: it can only be read.
fn spare(specs: &mut [Spec], wires: &[Wire]) {
    for (i, other) in wires.iter().flat_map(|&(a, b)| [(a, b), (b, a)]) {
        let source = |driver: &dyn Driver| driver.direction(&specs[other]) == Direction::Source;
        let for_nobody = driver_of(&specs[other]).is_ok_and(source);
        if for_nobody && driver_of(&specs[i]).is_ok_and(Driver::can_only_write) {
            specs[i].options.set_default("write", None);
        }
    }
}

/// Checks that every wire joins two different ports and no port is on two wires.
pub(crate) fn check_wires(specs: &[Spec], wires: &[Wire]) -> Result<()> {
    let bad = |why: String| Err(Error::new(Code::Topology, "cannot build the engine", why));
    let twice = |i: &usize| specs[..*i].iter().any(|s| s.name == specs[*i].name);
    if let Some(i) = (0..specs.len()).find(twice) {
        return bad(format!("two ports are named '{}'", specs[i].name));
    }
    for (i, spec) in specs.iter().enumerate() {
        let ends = wires.iter().flat_map(|(a, b)| [a, b]).filter(|end| **end == i).count();
        if ends > 1 {
            return bad(format!("'{}' is on more than one wire", spec.name));
        }
        let same = |s: &&Spec| s.driver == ring::NAME && s.arg == spec.arg;
        let others = specs.iter().filter(same).count();
        if spec.driver == ring::NAME && others != 2 {
            let why = format!("ring:{} has {others} of the two ends it needs", spec.arg);
            return bad(why);
        }
    }
    Ok(())
}

/// Which worker serves each port: ports that a wire joins are served by one, so that a packet stays
/// on its core; each further wire gets a worker of its own, as long as there are fewer than `most`,
/// and then they are dealt out. Ports on no wire go to the first.
pub(crate) fn workers(ports: usize, wires: &[Wire], most: usize) -> Vec<usize> {
    let mut group: Vec<Option<usize>> = vec![None; ports];
    for (n, (a, b)) in wires.iter().enumerate() {
        // No port is on two wires, so each wire is a group.
        group[*a] = Some(n % most.max(1));
        group[*b] = Some(n % most.max(1));
    }
    group.into_iter().map(Option::unwrap_or_default).collect()
}

/// What a port asks of the engine's memory.
#[derive(Debug)]
pub(crate) struct Demand {
    pub name: String,
    pub worker: usize,
    /// Longest packet that it hands over; 0 if it only passes on what others made.
    pub packet_max_bytes: usize,
    /// Who may write the frames of a pool that serves it.
    pub trust: Trust,
    pub rings: Rings,
}

/// The rings behind a port.
#[derive(Debug)]
pub(crate) enum Rings {
    /// A device's own, which hold frames of the pool.
    Device { frames: usize },
    /// A pair of this process, which holds packets; named at the first of its ends.
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

/// What each port asks of the engine's memory.
pub(crate) fn demands(specs: &[Spec], workers: &[usize]) -> Result<Vec<Demand>> {
    let demand = |(i, (spec, &worker)): (usize, (&Spec, &usize))| {
        let name = spec.name.clone();
        if spec.driver == ring::NAME {
            let first = specs[..i].iter().all(|s| s.driver != ring::NAME || s.arg != spec.arg);
            let packets = ring::frames(ring_len(specs, &spec.arg)?);
            let rings = Rings::Pair { name: first.then(|| spec.arg.clone()), packets };
            let trust = Trust::Private;
            return Ok(Demand { name, worker, packet_max_bytes: 0, trust, rings });
        }
        let driver = driver_of(spec)?;
        let packet_max_bytes = driver.packet_max_bytes(spec)?;
        let rings = Rings::Device { frames: driver.ring_frames(spec)? };
        let trust = driver.trust(spec)?;
        Ok(Demand { name, worker, packet_max_bytes, trust, rings })
    };
    specs.iter().zip(workers).enumerate().map(demand).collect()
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
        match &demand.rings {
            Rings::Device { frames: 0 } | Rings::Pair { name: None, .. } => {}
            Rings::Device { frames } => {
                holders.add(format!("{} rings", demand.name), *frames as u64);
            }
            Rings::Pair { name: Some(name), packets } => {
                holders.add(format!("ring {name} both ways"), *packets as u64 * longest);
            }
        }
    }
    holders
}

/// Packets each way in the ring called `name`, as one of its ends says, or both.
pub(crate) fn ring_len(specs: &[Spec], name: &str) -> Result<u32> {
    let mut said = None;
    for end in specs.iter().filter(|spec| spec.driver == ring::NAME && spec.arg == name) {
        let len = ring::len_of(end)?;
        if let (Some(one), Some(other)) = (said, len)
            && one != other
        {
            let why = format!("the ring's other end says len={one}");
            return Err(end.error(why).fix("the same at both ends, or at one of them"));
        }
        said = said.or(len);
    }
    Ok(said.unwrap_or(ring::LEN))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_rings_length_is_said_at_either_end_and_never_ignored() {
        let len = |a: &str, b: &str| {
            let end = |options| Spec::parse(&format!("ring:r{options}"), &["ring"]).unwrap();
            ring_len(&[end(a), end(b)], "r")
        };
        assert_eq!(len("", "").unwrap(), ring::LEN);
        assert_eq!((len(",len=64", "").unwrap(), len("", ",len=64").unwrap()), (64, 64));
        assert_eq!(len(",len=64", ",len=64").unwrap(), 64);
        assert!(len(",len=64", ",len=128").unwrap_err().why.contains("len=64"));
        assert!(len("", ",lne=64").unwrap_err().fix.contains("len"));
    }

    #[test]
    fn a_port_whose_wire_is_only_read_takes_nothing_in() {
        let texts =
            ["gen:", "xdp:a", "xdp:b,udp=7", "pcap:in", "xdp:c", "pcap:out", "xdp:d", "null:"];
        let mut specs = texts.map(|text| linerate_port::parse(text).unwrap());
        direct(&mut specs, &[(0, 1), (3, 2), (4, 5), (6, 7)], true);
        let written = specs.map(|spec| spec.flag("write").unwrap());
        assert_eq!(written, [false, true, true, false, false, true, false, false]);
    }

    #[test]
    fn the_sum_names_every_holder() {
        let specs = [
            Spec::parse("a=gen:,size=3000", &["gen", "ring"]).unwrap(),
            Spec::parse("b=ring:r,len=64", &["gen", "ring"]).unwrap(),
            Spec::parse("c=ring:r,len=64", &["gen", "ring"]).unwrap(),
        ];
        let demands = demands(&specs, &[0, 0, 0]).unwrap();
        assert_eq!(demands.iter().map(|d| d.rings.frames()).collect::<Vec<_>>(), [0, 128, 128]);
        let h = holders(&demands, Sizes { budget: 32, backlog: 100, rx_usecs: 0 }, &[1024], 1792);
        // Two frames a packet.
        let sum = 2 * 64 + 1024 + 2 * 300 + 2 * 128;
        assert_eq!(h.sum(), sum);
        assert!(h.to_string().starts_with("worker 0 batches 128 + worker 0 hot list 1024 + a"));
        assert!(h.to_string().ends_with(" + ring r both ways 256 + c backlog 200 = 2008"), "{h}");
    }
}
