//! The plan of an engine, made before any port is opened: its wires, and the worker of each queue.

use linerate_port::{Code, Error, Result};

use crate::ports::Named;
use crate::steer::Fan;
use crate::tx_batch::TxBatch;

/// Sizes that the builder has decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub budget: usize,
    pub backlog: usize,
    pub tx_batch: TxBatch,
}

/// A wire between two ports, by their indices in the builder.
pub(crate) type Wire = (usize, usize);

/// Returns the index of the port called `name`; an error names `what` requested it.
pub(crate) fn find(ports: &[Named], name: &str, what: &str) -> Result<usize> {
    ports.iter().position(|port| port.spec.name == name).ok_or_else(|| {
        let known: Vec<&str> = ports.iter().map(|port| port.spec.name.as_str()).collect();
        let why = format!("{what} '{name}', and there is no such port");
        Error::new(Code::Topology, "cannot build the engine", why)
            .fix(format!("ports: {}", known.join(" ")))
    })
}

/// Returns the wires, by the ports' names.
pub(crate) fn find_wires(ports: &[Named], names: &[(String, String)]) -> Result<Vec<Wire>> {
    let end = |name| find(ports, name, "a wire ends at");
    names.iter().map(|(a, b)| Ok((end(a)?, end(b)?))).collect()
}

/// Checks that every wire joins two different ports, and that no port is on two wires.
pub(crate) fn check_wires(ports: &[Named], wires: &[Wire], fans: &[Fan]) -> Result<()> {
    let bad = |why: String| Err(Error::new(Code::Topology, "cannot build the engine", why));
    let twice = |i: &usize| ports[..*i].iter().any(|port| port.spec.name == ports[*i].spec.name);
    if let Some(i) = (0..ports.len()).find(twice) {
        return bad(format!("two ports are named '{}'", ports[i].spec.name));
    }
    if let Some((port, _)) = wires.iter().find(|(a, b)| a == b) {
        let why = format!("a wire joins '{}' to itself", ports[*port].spec.name);
        return Err(Error::new(Code::Topology, "cannot build the engine", why)
            .fix("name two different ports"));
    }
    for (i, port) in ports.iter().enumerate() {
        // The first output of a division is on a wire already, which the check includes.
        let more = fans.iter().flat_map(|fan| fan.outputs.iter().skip(1));
        let ends = wires.iter().flat_map(|(a, b)| [a, b]).chain(more);
        let ends = ends.filter(|end| **end == i).count();
        if ends > 1 {
            let why = format!("'{}' is on more than one wire", port.spec.name);
            return Err(Error::new(Code::Topology, "cannot build the engine", why)
                .fix("a wire carries packets both ways: leave out the second wire"));
        }
        let others = ports.iter().filter(|other| port.is_paired_with(other)).count();
        if port.flags().paired && others != 2 {
            let (driver, name) = (&port.spec.driver, &port.spec.arg);
            let why = format!("{driver}:{name} has {others} of the two ends it needs");
            return Err(Error::new(Code::Topology, "cannot build the engine", why).fix(format!(
                "give {driver}:{name} to two ports of this process; to another process: memif:PATH"
            )));
        }
    }
    Ok(())
}

/// Returns the ports that the program keeps, by the ports' names.
///
/// # Errors
/// `E-TOPOLOGY` for a port that does not exist, or that a worker serves because it is on a wire.
pub(crate) fn find_kept(
    ports: &[Named],
    names: &[String],
    wires: &[Wire],
    fans: &[Fan],
) -> Result<Vec<usize>> {
    let divided = fans.iter().flat_map(Fan::wires);
    let mut served = wires.iter().copied().chain(divided).flat_map(|(a, b)| [a, b]);
    let kept = names.iter().map(|name| find(ports, name, "the program keeps"));
    let kept = kept.collect::<Result<Vec<_>>>()?;
    if let Some(port) = served.find(|port| kept.contains(port)) {
        let why = format!("the program keeps '{}', and it is on a wire", ports[port].spec.name);
        return Err(Error::new(Code::Topology, "cannot build the engine", why)
            .fix("keep the other end of a ring whose one end is on the wire: ring:NAME"));
    }
    kept.iter().try_for_each(|port| ports[*port].without_worker())?;
    Ok(kept)
}

/// Returns for each port the one beside which it is served, by the ports' names; `None` for most.
///
/// # Errors
/// `E-TOPOLOGY` for a port that does not exist, that is on a wire or kept, or beside a port that is
/// itself beside another.
pub(crate) fn find_beside(
    ports: &[Named],
    names: &[(String, String)],
    (wires, fans, kept): (&[Wire], &[Fan], &[usize]),
) -> Result<Vec<Option<usize>>> {
    let mut beside = vec![None; ports.len()];
    for (name, other) in names {
        let port = find(ports, name, "a port is served")?;
        let other = find(ports, other, "a port is served beside")?;
        let divided = fans.iter().flat_map(Fan::wires);
        let mut ends = wires.iter().copied().chain(divided).flat_map(|(a, b)| [a, b]);
        if kept.contains(&port) || kept.contains(&other) || ends.any(|end| end == port) {
            let why = format!("'{name}' cannot be served beside '{}'", ports[other].spec.name);
            return Err(Error::new(Code::Topology, "cannot build the engine", why)
                .fix("a port on no wire, beside one of a worker; the program keeps neither"));
        }
        beside[port] = Some(other);
    }
    for (port, other) in beside.iter().enumerate() {
        let Some(third) = other.and_then(|other| beside[other]) else { continue };
        let [name, other, third] =
            [port, other.unwrap_or(port), third].map(|i| &ports[i].spec.name);
        let why = format!("'{name}' is beside '{other}', which is itself beside '{third}'");
        return Err(Error::new(Code::Topology, "cannot build the engine", why)
            .fix("each of them beside a port of a wire"));
    }
    Ok(beside)
}

/// Returns the worker of each queue of each port.
///
/// One worker serves both ends of a wire, so that a packet stays on its core; packets of one queue
/// are sent by one queue, so that a flow stays in order. With at most as many workers as wires, the
/// wires are assigned to the workers in turn. With more workers, each wire is divided: queue `i` of
/// one end and queue `i` of the other end are a lane, and the lanes are assigned in the order of
/// their numbers. A wire has as many lanes as the end with fewer queues. Ports on no wire go to the
/// workers of the port `beside` which they are served, or to the first worker; where wires are
/// divided, their queues go to one worker each, and ports of one queue beside the same wire go to
/// its workers in turn. The worker of a divided device also serves all outputs of the division.
pub(crate) fn workers(
    queues: &[usize],
    (wires, fans): (&[Wire], &[Fan]),
    beside: &[Option<usize>],
    most: usize,
) -> Vec<Vec<usize>> {
    let (most, divided) = (most.max(1), most > wires.len());
    let lanes = |&(a, b): &Wire| if divided { queues[a].min(queues[b]) } else { 1 };
    let mut of_wires: Vec<Vec<usize>> = vec![Vec::new(); wires.len()];
    let mut count = 0;
    // Assign the first lane of every wire before the second lanes: with a worker for each wire, no
    // wire is divided.
    for lane in 0..wires.iter().map(lanes).max().unwrap_or(0) {
        for (of_wire, _) in of_wires.iter_mut().zip(wires).filter(|(_, w)| lane < lanes(w)) {
            of_wire.push(count % most);
            count += 1;
        }
    }
    let loose: Vec<usize> = if divided { (0..count.clamp(1, most)).collect() } else { vec![0] };
    // The number of ports of one queue beside each wire so far.
    let mut placed = vec![0; wires.len()];
    let of_port = |(port, &queues): (usize, &usize)| {
        let other = beside.get(port).copied().flatten();
        let port = other.unwrap_or(port);
        let fan = fans.iter().find(|fan| fan.outputs.contains(&port));
        let port = fan.map_or(port, |fan| fan.from);
        let wire = wires.iter().position(|&(a, b)| a == port || b == port);
        let workers = wire.map_or(&loose, |wire| &of_wires[wire]);
        let mut first = 0;
        if let (Some(wire), Some(_), 1) = (wire, other, queues) {
            first = placed[wire];
            placed[wire] += 1;
        }
        (first..first + queues).map(|queue| workers[queue % workers.len()]).collect()
    };
    queues.iter().enumerate().map(of_port).collect()
}

/// Returns warnings about numbers of CPUs and workers that do not match; `usable` is the number of
/// CPUs on which the workers may run.
pub(crate) fn misfits(
    workers: usize,
    asked: Option<usize>,
    cpus: &[usize],
    usable: usize,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let wanted = asked.filter(|asked| *asked != usize::MAX).unwrap_or(cpus.len());
    if workers < wanted {
        warnings.push(format!(
            "workers: asked {wanted}, applied {workers}: a wire has one for each queue of its port \
             with fewer queues (queues=); a program divides a device of one queue by Steering \
             (docs/placement.md)"
        ));
    }
    if !cpus.is_empty() && cpus.len() < workers {
        let named = cpus.len();
        warnings.push(format!(
            "CPUs: named {named}, for {workers} workers: those from number {named} are not pinned"
        ));
    }
    // No warning for the default, which is a worker for each wire.
    let chosen = asked.is_some_and(|asked| asked != usize::MAX);
    if chosen && cpus.is_empty() && workers > usable {
        warnings.push(format!(
            "workers: {workers}, CPUs for them: {usable}: they take turns, which costs more than one worker a CPU"
        ));
    }
    let shared = |i: &usize| cpus[..*i].contains(&cpus[*i]);
    if let Some(i) = (0..cpus.len().min(workers)).find(shared) {
        warnings.push(format!("CPUs: {} is named twice: its workers take turns on it", cpus[i]));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wire_is_a_worker_and_loose_ports_go_to_the_first() {
        let one = |workers: &[usize]| workers.iter().map(|w| vec![*w]).collect::<Vec<_>>();
        for most in [2, 64] {
            assert_eq!(
                workers(&[1; 5], (&[(0, 1), (3, 2)], &[]), &[], most),
                one(&[0, 0, 1, 1, 0])
            );
        }
        assert_eq!(workers(&[1], (&[], &[]), &[], 64), [[0]]);
        // With as many workers as wires, no wire is divided.
        assert_eq!(
            workers(&[2; 5], (&[(0, 1), (3, 2)], &[]), &[], 2),
            [0, 0, 1, 1, 0].map(|w| [w; 2])
        );
    }

    #[test]
    fn wires_are_dealt_out_to_as_many_workers_as_are_wanted() {
        let wires = [(0, 1), (2, 3), (4, 5)];
        assert_eq!(workers(&[1; 6], (&wires, &[]), &[], 2), [[0], [0], [1], [1], [0], [0]]);
        assert_eq!(workers(&[1; 6], (&wires, &[]), &[], 1), [[0]; 6]);
        assert_eq!(workers(&[1; 6], (&wires, &[]), &[], 0), [[0]; 6]);
    }

    #[test]
    fn queue_i_of_both_ends_is_on_worker_i() {
        assert_eq!(workers(&[4, 4], (&[(0, 1)], &[]), &[], 4), [[0, 1, 2, 3]; 2]);
        assert_eq!(workers(&[4, 4], (&[(1, 0)], &[]), &[], 9), [[0, 1, 2, 3]; 2]);
        assert_eq!(workers(&[4, 4], (&[(0, 1)], &[]), &[], 2), [[0, 1, 0, 1]; 2]);
        // Two wires and three workers: both wires' first lanes, then the others.
        let three = workers(&[2; 4], (&[(0, 1), (2, 3)], &[]), &[], 3);
        assert_eq!(three, [[0, 2], [0, 2], [1, 0], [1, 0]]);
        // A port on no wire has a queue on each worker, as far as it has queues.
        assert_eq!(
            workers(&[2, 2, 3], (&[(0, 1)], &[]), &[], 2),
            [vec![0, 1], vec![0, 1], vec![0, 1, 0]]
        );
    }

    #[test]
    fn a_wire_has_as_many_lanes_as_the_end_with_fewer_queues() {
        assert_eq!(workers(&[4, 2], (&[(0, 1)], &[]), &[], 4), [vec![0, 1, 0, 1], vec![0, 1]]);
        assert_eq!(workers(&[4, 1], (&[(0, 1)], &[]), &[], 4), [vec![0; 4], vec![0]]);
        let mixed = workers(&[1, 1, 3, 3], (&[(0, 1), (2, 3)], &[]), &[], 8);
        assert_eq!(mixed, [vec![0], vec![0], vec![1, 2, 3], vec![1, 2, 3]]);
    }

    #[test]
    fn port_on_no_wire_is_on_the_workers_of_the_port_beside_it() {
        let wires = [(0, 1), (2, 3)];
        let beside = [None, None, None, None, Some(3), None];
        assert_eq!(workers(&[1; 6], (&wires, &[]), &beside, 2), [[0], [0], [1], [1], [1], [0]]);
        // Beside a divided wire: a queue for each worker, or a port for each.
        let queues = [2, 2, 2, 1, 1, 1];
        let beside = [None, None, Some(0), Some(1), Some(0), Some(0)];
        let placed = workers(&queues, (&[(0, 1)], &[]), &beside, 2);
        assert_eq!(placed[2..], [vec![0, 1], vec![0], vec![1], vec![0]]);
        let lanes =
            workers(&[2, 2, 2, 1, 3], (&[(0, 1)], &[]), &[None, None, None, Some(1), Some(0)], 2);
        assert_eq!(lanes[3..], [vec![0], vec![0, 1, 0]]);
        let fan = Fan { from: 0, outputs: vec![1, 2] };
        let of_rings = workers(
            &[1; 6],
            (&[(0, 1), (3, 4)], &[fan]),
            &[None, None, None, None, None, Some(2)],
            2,
        );
        assert_eq!(of_rings, [[0], [0], [0], [1], [1], [0]]);
    }

    #[test]
    fn workers_and_cpus_that_do_not_go_together_are_warned_about() {
        let misfits = |workers, asked, cpus: &[usize]| misfits(workers, asked, cpus, 2).join(" ");
        assert_eq!(misfits(2, None, &[]) + &misfits(2, Some(2), &[0, 1]), "");
        assert!(misfits(1, None, &[0, 1]).starts_with("workers: asked 2, applied 1: "));
        assert!(misfits(1, Some(4), &[]).starts_with("workers: asked 4, applied 1: "));
        assert!(misfits(3, None, &[0]).ends_with("those from number 1 are not pinned"));
        assert!(misfits(2, None, &[1, 1]).starts_with("CPUs: 1 is named twice"));
        assert!(
            misfits(3, Some(3), &[]).starts_with("workers: 3, CPUs for them: 2: they take turns")
        );
        assert_eq!(misfits(3, None, &[]) + &misfits(3, Some(3), &[0, 1, 2]), "");
    }
}
