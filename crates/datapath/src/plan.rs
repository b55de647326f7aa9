//! What an engine will be, decided before anything is opened: workers, wires, and how many frames.

use std::fmt;

use linerate_port::{Code, Driver, Error, Result, Spec, driver_of, ring};

/// Someone who can hold frames, and how many at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Who: `worker 0 hot list`, `west transmit backlog`.
    pub name: String,
    /// Most frames it holds at once.
    pub frames: u64,
}

/// Holders and their sum, as in `worker 0 batch 64 + west backlog 256 = 320`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holders(pub Vec<Holder>);

impl Holders {
    fn add(&mut self, name: String, frames: u64) {
        self.0.push(Holder { name, frames });
    }

    pub fn sum(&self) -> u64 {
        self.0.iter().map(|h| h.frames).sum()
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, h) in self.0.iter().enumerate() {
            write!(f, "{}{} {}", if i == 0 { "" } else { " + " }, h.name, h.frames)?;
        }
        write!(f, " = {}", self.sum())
    }
}

/// Sizes that a builder settles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub budget: usize,
    pub backlog: usize,
    pub hot_list_len: usize,
}

/// A wire between two ports, by their places in the builder.
pub(crate) type Wire = (usize, usize);

/// Gives a port that is either read or written its mode: the left end of a wire is read.
pub(crate) fn direct(specs: &mut [Spec], wires: &[Wire]) {
    for (i, spec) in specs.iter_mut().enumerate() {
        let directed = driver_of(spec).is_ok_and(Driver::directed);
        let said = spec.flag("read").unwrap_or(false) || spec.flag("write").unwrap_or(false);
        if directed && !said {
            let left = wires.iter().any(|(a, _)| *a == i);
            spec.options.set_default(if left { "read" } else { "write" }, None);
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
/// on its core; each further group gets a worker of its own. Ports on no wire go to the first.
pub(crate) fn workers(ports: usize, wires: &[Wire]) -> Vec<usize> {
    let mut group: Vec<Option<usize>> = vec![None; ports];
    for (n, (a, b)) in wires.iter().enumerate() {
        // No port is on two wires, so each wire is a group.
        group[*a] = Some(n);
        group[*b] = Some(n);
    }
    group.into_iter().map(Option::unwrap_or_default).collect()
}

/// Frames that a packet of `packet_bytes` takes.
pub(crate) fn frames_per_packet(packet_bytes: usize, data_room: usize) -> u64 {
    packet_bytes.div_ceil(data_room).max(1) as u64
}

/// Everyone who can hold frames of the pool.
pub(crate) fn holders(
    specs: &[Spec],
    workers: &[usize],
    sizes: Sizes,
    data_room: usize,
) -> Result<Holders> {
    let mut holders = Holders::default();
    let mut longest = 1;
    for spec in specs.iter().filter(|s| s.driver != ring::NAME) {
        let bytes = driver_of(spec)?.packet_max_bytes(spec)?;
        longest = longest.max(frames_per_packet(bytes, data_room));
    }
    for worker in 0..workers.iter().max().map_or(0, |w| w + 1) {
        // One batch and one outbox.
        let batches = 2 * sizes.budget as u64 * longest;
        holders.add(format!("worker {worker} batches"), batches);
        holders.add(format!("worker {worker} hot list"), sizes.hot_list_len as u64);
    }
    for (i, spec) in specs.iter().enumerate() {
        holders.add(format!("{} backlog", spec.name), sizes.backlog as u64 * longest);
        let first = specs[..i].iter().all(|s| s.driver != ring::NAME || s.arg != spec.arg);
        if spec.driver == ring::NAME && first {
            let len = u64::from(ring_len(spec)?);
            holders.add(format!("ring {} both ways", spec.arg), 2 * len * longest);
        }
    }
    // Thread caches reserve an eighth of the pool at most: a seventh of the others' sum.
    let caches = holders.sum().div_ceil(7);
    holders.add("thread caches".into(), caches);
    Ok(holders)
}

/// Packets each way in a ring.
pub(crate) fn ring_len(spec: &Spec) -> Result<u32> {
    Ok(spec.value("len", str::parse::<u32>)?.unwrap_or(ring::LEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wire_is_a_worker_and_loose_ports_go_to_the_first() {
        assert_eq!(workers(5, &[(0, 1), (3, 2)]), [0, 0, 1, 1, 0]);
        assert_eq!(workers(1, &[]), [0]);
    }

    #[test]
    fn the_sum_names_every_holder() {
        let specs = [
            Spec::parse("a=gen:", &["gen", "ring"]).unwrap(),
            Spec::parse("b=ring:r,len=64", &["gen", "ring"]).unwrap(),
            Spec::parse("c=ring:r,len=64", &["gen", "ring"]).unwrap(),
        ];
        let sizes = Sizes { budget: 32, backlog: 100, hot_list_len: 1024 };
        let h = holders(&specs, &[0, 0, 0], sizes, 1792).unwrap();
        assert_eq!(h.sum() - h.0.last().unwrap().frames, 64 + 1024 + 300 + 128);
        assert!(h.to_string().starts_with("worker 0 batches 64 + worker 0 hot list 1024 + a"));
    }
}
