//! Divisions at the time an engine is built: their ports, and the pages on which their workers
//! report.

use std::sync::Arc;

use linerate_port::{Code, Error, QueueStats, Result};

use super::hand::Far;
use super::pause::{Output, Pause, Signals};
use super::{Clear, Clearing, Hand, Reader, Steer, Steering};
use crate::opening::Group;
use crate::plan::{self, Wire};
use crate::ports::{Named, Planned};
use crate::stage::{PortId, Stage};

/// The ports of a division, by their indices in the builder.
#[derive(Debug)]
pub(crate) struct Fan {
    pub from: usize,
    pub outputs: Vec<usize>,
}

impl Fan {
    /// Returns the division as wires: one from its device to each output.
    pub fn wires(&self) -> impl Iterator<Item = Wire> {
        self.outputs.iter().map(|output| (self.from, *output))
    }
}

/// Finds the ports of each division.
///
/// # Errors
/// `E-TOPOLOGY` for a port that does not exist.
pub(crate) fn fans(ports: &[Named], steerings: &[Steering]) -> Result<Vec<Fan>> {
    let fan = |steering: &Steering| {
        let find = |name: &String| plan::find(ports, name, "a division is among");
        let from = plan::find(ports, &steering.from, "a division is of")?;
        let outputs = steering.outputs.iter().map(find).collect::<Result<_>>()?;
        Ok(Fan { from, outputs })
    };
    steerings.iter().map(fan).collect()
}

/// The stages of a worker that divide packets, and the handle to write the worker's page.
pub(crate) type Steered = (Vec<Box<dyn Stage>>, Option<Clearing>);
/// A queue of an engine: its worker, its index there, and the counters of the packets in its ring.
type Place = (usize, usize, Arc<QueueStats>);

/// Creates each worker's page of packets that have left, and its stage that divides packets if it
/// serves a divided port.
///
/// # Errors
/// `E-TOPOLOGY` if the divided port has several queues, or an output is served by another worker.
pub(crate) fn link(
    ports: &[Planned],
    groups: &[Group],
    fans: &[Fan],
    steerings: &[Steering],
) -> Result<Vec<Steered>> {
    if fans.is_empty() {
        return Ok(groups.iter().map(|_| (Vec::new(), None)).collect());
    }
    let paired = |name: &String| ports.iter().any(|p| p.spec.name == *name && p.flags.paired);
    let paired_of = |names: &[String]| (0..names.len()).filter(|i| paired(&names[*i])).collect();
    let ends: Vec<Vec<usize>> = groups.iter().map(|group| paired_of(&group.names)).collect();
    let pages: Vec<Arc<Clear>> = ends.iter().map(|ends| Clear::new(ends.len())).collect();
    let place = |port: usize| -> Option<Place> {
        let name = &ports.get(port)?.spec.name;
        groups.iter().enumerate().find_map(|(worker, group)| {
            let at = group.names.iter().position(|its| its == name)?;
            Some((worker, at, group.napis[at].in_ring().clone()))
        })
    };
    let other_end = |name: &str| -> Option<Place> {
        let port = ports.iter().position(|port| port.spec.name == name)?;
        let its = &ports[port].spec;
        let is_other = |(i, other): &(usize, &Planned)| {
            *i != port && other.spec.driver == its.driver && other.spec.arg == its.arg
        };
        let other = ports.iter().enumerate().find(is_other)?.0;
        place(other).filter(|_| ports[port].flags.paired)
    };
    let end_of = |worker: usize, at: usize| ends[worker].iter().position(|end| *end == at);
    let reader = |name: &str| {
        let (worker, at, counters) = other_end(name)?;
        let (page, end) = (pages[worker].clone(), end_of(worker, at)?);
        Some(match groups[worker].napis[at].meter {
            Some(_) => Reader::Wrapped(page, end),
            None => Reader::Plain(counters, page, end),
        })
    };
    let far = |name: &str| {
        let (worker, at, _) = other_end(name)?;
        let end = end_of(worker, at)?;
        let out = ends[worker].iter().enumerate();
        let out = out.filter_map(|(end, at)| Some((end, reader(&groups[worker].names[*at])?, 0)));
        Some(Far { page: pages[worker].clone(), end, out: out.collect() })
    };
    let mut stages: Vec<Vec<Box<dyn Stage>>> = groups.iter().map(|_| Vec::new()).collect();
    let mut pauses: Vec<Vec<Pause>> = groups.iter().map(|_| Vec::new()).collect();
    for (fan, steering) in fans.iter().zip(steerings) {
        let Some((worker, from, _)) = place(fan.from) else { continue };
        check_queues(groups, steering)?;
        let (mut outputs, mut ways) = (Vec::new(), Vec::new());
        for (port, name) in fan.outputs.iter().zip(&*steering.outputs) {
            match place(*port) {
                Some((by, at, near)) if by == worker => {
                    let own = end_of(worker, at).map(|end| (pages[worker].clone(), end));
                    let napi = &groups[by].napis[at];
                    let renumbers = napi.meter.is_some() || napi.has_qdisc();
                    ways.push(Output::new(at, near.clone(), far(name)));
                    let hand = Hand::new(near, own, far(name), renumbers);
                    outputs.push((PortId(at as u8), hand));
                }
                _ => {
                    let why = format!("'{name}' is on another worker");
                    return Err(refused(steering, why, "rings: ring:NAME"));
                }
            }
        }
        let signals = Signals::new();
        pauses[worker].push(Pause::new(from, ways, signals.clone(), steering));
        let steer = Steer::new(steering, PortId(from as u8), outputs, signals);
        stages[worker].push(Box::new(steer));
    }
    let clearings = pages.into_iter().zip(ends).zip(pauses);
    let clearings = clearings.map(|((page, ends), pauses)| Clearing::new(page, ends, pauses));
    Ok(stages.into_iter().zip(clearings.map(Some)).collect())
}

/// Checks that the divided device has one queue.
fn check_queues(groups: &[Group], steering: &Steering) -> Result<()> {
    let queues = groups.iter().flat_map(|group| &group.names);
    let queues = queues.filter(|name| **name == *steering.from).count();
    if queues <= 1 {
        return Ok(());
    }
    let why = format!("its device divides them already: it has {queues} queues");
    Err(refused(steering, why, "queues=1, or workers by queue: docs/placement.md"))
}

fn refused(steering: &Steering, why: String, fix: &str) -> Error {
    let what = format!("cannot divide the packets from '{}'", steering.from);
    Error::new(Code::Topology, what, why).fix(fix)
}
