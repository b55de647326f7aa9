//! Opening the ports of an engine, and dealing their queues out to the workers.

use std::ops::Range;

use linerate_port::{
    Capabilities, Code, Direction, Error, Moderation, OpenContext, Opened, Result,
};
use linerate_skb::Pool;

use crate::egress::Egress;
use crate::napi::Napi;
use crate::plan::{Sizes, Wire};
use crate::ports::Planned;
use crate::stats::Entry;
use crate::wrapping::Meters;

/// Opens every port; the two ends of a pair meet.
pub(crate) fn open_all(ports: &[Planned], pool: &Pool) -> Result<Vec<Opened>> {
    let needed = ports.iter().map(|port| port.needs.capabilities);
    let capabilities = needed.fold(Capabilities::NONE, Capabilities::and);
    let mut cx = OpenContext::new(pool);
    let open = |port: &Planned| {
        let device = port.plan.open(&mut cx).map_err(|e| capabilities.added_to(e))?;
        if device.queues.is_empty() {
            return Err(port.spec.error("the driver opened a device without queues"));
        }
        Ok(device)
    };
    ports.iter().map(open).collect()
}

/// Refuses a wire over which nothing can go.
pub(crate) fn check_directions(ports: &[Planned], wires: &[Wire], opened: &[Opened]) -> Result<()> {
    for &(a, b) in wires {
        let (left, right) = (opened[a].obtained.direction, opened[b].obtained.direction);
        let word = match (left, right) {
            (Direction::Source, Direction::Source) => "read",
            (Direction::Sink, Direction::Sink) => "written",
            _ => continue,
        };
        let why = format!(
            "'{}' and '{}' can both only be {word}",
            ports[a].spec.name, ports[b].spec.name
        );
        return Err(Error::new(Code::Topology, "nothing can go over the wire", why));
    }
    Ok(())
}

/// Refuses a rate for a port of several queues: each would have it.
pub(crate) fn check_rates(ports: &[Planned], opened: &[Opened]) -> Result<()> {
    let is_shaped = |port: &Planned| port.qdisc.is_some_and(|qdisc| qdisc.is_shaped());
    let several = |(port, device): &(&Planned, &Opened)| is_shaped(port) && device.queues.len() > 1;
    match ports.iter().zip(opened).find(several) {
        None => Ok(()),
        Some((port, device)) => {
            let why = format!(
                "shape= on {} queues, each of which would send so much",
                device.queues.len()
            );
            Err(port.spec.error(why).fix("say queues=1"))
        }
    }
}

/// The ports of one worker.
#[derive(Default)]
pub(crate) struct Group {
    /// The port of each queue.
    pub names: Vec<String>,
    pub napis: Vec<Napi>,
}

/// The assignment of ports to workers, and the pairs of ports that are joined.
pub(crate) struct Groups<'a> {
    pub ports: &'a [Planned],
    pub wires: &'a [Wire],
    pub workers: &'a [usize],
    /// The counters below what is around each port.
    pub meters: Vec<Meters>,
}

impl Groups<'_> {
    /// Deals the opened queues out to their workers, joins the ends of wires, and warns about moderations
    /// that do less than they say.
    pub fn split(
        self,
        opened: Vec<Opened>,
        pool: &Pool,
        sizes: Sizes,
        moderation: Moderation,
        warnings: &mut Vec<String>,
    ) -> (Vec<Entry>, Vec<Group>) {
        let count = self.workers.iter().max().map_or(0, |w| w + 1);
        let mut groups: Vec<Group> = (0..count).map(|_| Group::default()).collect();
        let mut entries = Vec::new();
        // Where the queues of each port are in their worker.
        let mut places: Vec<Range<usize>> = Vec::new();
        let devices = opened.into_iter().zip(self.meters);
        for ((port, &worker), (device, meters)) in self.ports.iter().zip(self.workers).zip(devices)
        {
            let (spec, flags) = (&port.spec, port.flags);
            let group = &mut groups[worker];
            let (first, direction) = (group.napis.len(), device.obtained.direction);
            let id = Napi::id(first);
            let mut queues = Vec::new();
            for ops in device.queues {
                let tally = pool.tally(&format!("{} backlog", spec.name));
                let mut egress = Egress::new(sizes.backlog, port.qdisc.map(|qdisc| qdisc.build()));
                egress.set_cap(port.tx_batch.unwrap_or(sizes.tx_batch));
                let mut napi = Napi::new(ops, direction, id, egress, tally);
                let note = napi.set_moderation(spec.moderation.unwrap_or(moderation));
                // What was not said of this port is none of its user's concern.
                if let Some(note) = note.filter(|_| queues.is_empty() && spec.moderation.is_some())
                {
                    warnings.push(format!("port '{}': moderation: {note}", spec.name));
                }
                queues.push(napi.readings());
                group.napis.push(napi);
                group.names.push(spec.name.clone());
            }
            places.push(first..group.napis.len());
            let rings = if flags.paired && meters.is_empty() {
                queues.iter().map(|(live, _)| live.clone()).collect()
            } else {
                meters
            };
            entries.push(Entry {
                name: spec.name.clone(),
                driver: spec.driver.clone(),
                flags,
                obtained: device.obtained,
                queues,
                rings,
            });
        }
        for &(a, b) in self.wires {
            let group = &mut groups[self.workers[a]];
            for (from, to) in [(a, b), (b, a)] {
                let (from, to) = (places[from].clone(), places[to].clone());
                for (i, napi) in from.enumerate() {
                    let peer = to.start + i % to.len().max(1);
                    if group.napis.get(peer).is_some_and(Napi::writes) {
                        group.napis[napi].peer = Some(peer);
                    }
                }
            }
        }
        (entries, groups)
    }
}

#[cfg(test)]
mod tests {
    use crate::Engine;
    use linerate_sys::netns::Netns;
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    #[test]
    fn missing_capability_error_lists_those_of_all_ports() {
        let prepared = Netns::new().and_then(|netns| {
            netns.ip("link add v0 type veth peer name v1")?;
            netns.ip("link set v0 up")?;
            netns.ip("link set v1 up")?;
            Ok(netns)
        });
        let netns = match prepared {
            Ok(netns) => netns,
            Err(e) => return eprintln!("skipped: {e}"),
        };
        let refused = netns.run(|| {
            // Those of this thread, which ends.
            let held = capabilities(None).unwrap();
            let none = CapabilitySets { effective: CapabilitySet::empty(), ..held };
            set_capabilities(None, none).unwrap();
            let engine = Engine::builder().port("a", "packet:v0,udp=53").port("b", "xdp:v1,all");
            engine.wire("a", "b").build().map(drop)
        });
        let e = refused.unwrap().unwrap_err();
        let all = "setcap cap_net_bind_service,cap_net_admin,cap_net_raw,cap_bpf+ep /";
        assert!(e.fix.contains(all), "{e}");
    }
}
