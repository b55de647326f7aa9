//! Opening of an engine's ports, and distribution of their queues among the workers.

use std::ops::Range;
use std::sync::Arc;

use linerate_port::{
    Capabilities, Code, Direction, DriverFlags, Error, Moderation, OpenContext, Opened, Queue,
    QueueStats, Result, open_plan,
};
use linerate_skb::Pool;

use crate::egress::Egress;
use crate::memory::Memory;
use crate::napi::{NOT_QUEUED, Napi};
use crate::plan::{Sizes, Wire};
use crate::ports::Planned;
use crate::stats::{Entry, Way};
use crate::steer::Fan;
use crate::wrapping::Meters;

/// Length of packets that only a port with superframes has.
const SUPERFRAME_BYTES: usize = 32_768;
/// Length of a packet of 1500 bytes with its Ethernet header.
const ETH_FRAME_LEN: usize = 1514;
/// Length of a VLAN tag, for which a port has room.
const VLAN_TAG_BYTES: usize = 4;

/// Opens every port with its pool, and connects the two ends of each pair.
pub(crate) fn open_all(ports: &[Planned], pools: &[&Pool]) -> Result<Vec<Opened>> {
    let needed = ports.iter().map(|port| port.needs.capabilities);
    let capabilities = needed.fold(Capabilities::NONE, Capabilities::and);
    let Some(first) = pools.first() else { return Ok(Vec::new()) };
    let mut cx = OpenContext::new(first);
    let mut all = Vec::new();
    for (port, pool) in ports.iter().zip(pools) {
        cx.set_pool(pool);
        let mut device = open_plan(&*port.plan, &port.spec, capabilities, &mut cx)?;
        if port.copies_for_stage {
            let why =
                "zero copy: a stage or steering reads packets in place; a peer could write them";
            device.obtained = device.obtained.refused(why);
        }
        let (opened, planned) = (device.queues.len(), port.needs.queues.max(1));
        if opened < planned {
            let why = format!("it opened {opened} of {planned} planned queues");
            return Err(port.spec.error(why));
        }
        all.push(device);
    }
    Ok(all)
}

/// Takes the queues of the ports that the program keeps out of `opened`; returns them with the
/// ports' names.
pub(crate) fn keep(
    kept: &[usize],
    ports: &[Planned],
    opened: &mut [Opened],
    memory: &Memory,
    moderation: Moderation,
) -> Vec<(String, Vec<Queue>)> {
    let pools = memory.pools_of_ports();
    let take = |&port: &usize| {
        let (pool, Planned { spec, needs, .. }) = (pools[port], &ports[port]);
        let queues = std::mem::take(&mut opened[port].queues);
        let hot_list_len = pool.hot_list_len_for(needs.ring_frames.div_ceil(queues.len().max(1)));
        let queue = |(i, ops)| {
            let mem = pool.local_named(&format!("{}/{i}", spec.name), hot_list_len);
            let mut queue = Queue::new(ops, mem);
            queue.set_moderation(spec.moderation.unwrap_or(moderation));
            queue
        };
        (spec.name.clone(), queues.into_iter().enumerate().map(queue).collect())
    };
    kept.iter().map(take).collect()
}

/// Refuses a wire from a port whose packets have unwritten bytes to an interface, because these
/// bytes may belong to another packet.
pub(crate) fn check_bytes(ports: &[Planned], wires: &[Wire]) -> Result<()> {
    let ways = wires.iter().flat_map(|&(a, b)| [(&ports[a], &ports[b]), (&ports[b], &ports[a])]);
    let mut unwritten = ways.filter(|(from, to)| from.flags.unwritten && to.flags.interface);
    match unwritten.next() {
        None => Ok(()),
        Some((from, to)) => {
            let (from, to) = (&from.spec.name, &to.spec.name);
            let why = format!(
                "'{to}' would send what '{from}' makes: packets with unwritten bytes, as fast as it can"
            );
            let error = Error::new(Code::Topology, "cannot build the engine", why);
            Err(error.fix("use sink:blind to free packets unread, or gen: to send written packets"))
        }
    }
}

/// Refuses a wire on which no packet can pass, because both ends can only be read or only be
/// written, by the direction of each port.
pub(crate) fn check_directions(
    ports: &[Planned],
    wires: &[Wire],
    direction: impl Fn(usize) -> Direction,
) -> Result<()> {
    for &(a, b) in wires {
        let word = match (direction(a), direction(b)) {
            (Direction::Source, Direction::Source) => "read",
            (Direction::Sink, Direction::Sink) => "written",
            _ => continue,
        };
        let why = format!(
            "'{}' and '{}' can both only be {word}",
            ports[a].spec.name, ports[b].spec.name
        );
        return Err(Error::new(Code::Topology, "no packet can pass between the two ports", why));
    }
    Ok(())
}

/// Refuses a rate for a port with several queues, because each queue would send at that rate.
pub(crate) fn check_rates(ports: &[Planned], opened: &[Opened]) -> Result<()> {
    let is_shaped = |port: &Planned| port.qdisc.is_some_and(|qdisc| qdisc.is_shaped());
    let several = |(port, device): &(&Planned, &Opened)| is_shaped(port) && device.queues.len() > 1;
    match ports.iter().zip(opened).find(several) {
        None => Ok(()),
        Some((port, device)) => {
            let why = format!(
                "a rate (shape= or flow_rate=) on {} queues: each queue would send at that rate",
                device.queues.len()
            );
            Err(port
                .spec
                .error(why)
                .fix("take one queue: queues=0 of xdp, which is its number, or queues=1"))
        }
    }
}

/// The queues of one worker, with their ports.
#[derive(Default)]
pub(crate) struct Group {
    /// The port's name of each queue.
    pub names: Vec<String>,
    /// The number that each queue has in its port.
    pub numbers: Vec<usize>,
    pub napis: Vec<Napi>,
}

impl Group {
    /// Returns the indices of a port's queues, which are consecutive.
    fn queues_of(&self, port: &str) -> Range<usize> {
        let is_its = |name: &&String| *name == port;
        let first = self.names.iter().position(|name| name == port).unwrap_or_default();
        first..first + self.names[first..].iter().take_while(is_its).count()
    }

    /// Directs packets received by the queues of one port to the queues of another port.
    fn join(&mut self, from: &str, to: &str) {
        let (from, to) = (self.queues_of(from), self.queues_of(to));
        for (i, napi) in from.enumerate() {
            let peer = to.start + i % to.len().max(1);
            if !to.is_empty() && self.napis[peer].writes() {
                self.napis[napi].peer = Some(peer);
            }
        }
    }

    /// Connects the ends of the wires and divisions that the worker serves.
    fn join_all(&mut self, ports: &[Planned], wires: &[Wire], fans: &[Fan]) {
        for &(a, b) in wires {
            let [a, b] = [a, b].map(|port| &ports[port].spec.name);
            self.join(a, b);
            self.join(b, a);
        }
        for fan in fans {
            let name = |port: &usize| &*ports[*port].spec.name;
            fan.outputs.iter().for_each(|output| self.join(name(output), name(&fan.from)));
            let outputs = fan.outputs.iter().flat_map(|output| self.queues_of(name(output)));
            let outputs: Vec<usize> = outputs.collect();
            if let Some(from) = self.queues_of(name(&fan.from)).next() {
                self.napis[from].fan = outputs;
            }
        }
    }
}

/// The assignment of queues to workers, and the pairs of ports that are joined.
pub(crate) struct Groups<'a> {
    pub ports: &'a [Planned],
    pub wires: &'a [Wire],
    pub fans: &'a [Fan],
    /// The worker of each queue of each port.
    pub workers: &'a [Vec<usize>],
    pub memory: &'a Memory,
    /// The counters below each port's wrappers.
    pub meters: Vec<Meters>,
}

impl Groups<'_> {
    /// Distributes the opened queues to their workers, connects the ends of wires, and adds a
    /// warning for each moderation that has less effect than requested, and for each burst that is
    /// too short.
    pub fn split(
        self,
        opened: Vec<Opened>,
        sizes: Sizes,
        moderation: Moderation,
        warnings: &mut Vec<String>,
    ) -> (Vec<Entry>, Vec<Group>) {
        let count = self.workers.iter().flatten().max().map_or(0, |w| w + 1);
        let mut groups: Vec<Group> = (0..count).map(|_| Group::default()).collect();
        let mut entries = Vec::new();
        // The counters of the packets in each port's rings to other workers.
        let mut ends: Vec<Vec<Arc<QueueStats>>> = Vec::new();
        let devices = opened.into_iter().zip(self.meters);
        let dealt = self.ports.iter().zip(self.workers).zip(&self.memory.of_ports);
        for (((port, workers), &pool_number), (device, meters)) in dealt.zip(devices) {
            if workers.is_empty() {
                // The program keeps this port.
                ends.push(Vec::new());
                continue;
            }
            let pool = &self.memory.pools[pool_number];
            let (spec, flags) = (&port.spec, port.flags);
            let to_program = is_paired_with_kept(port, self.ports, self.workers);
            let direction = device.obtained.direction;
            warnings.extend(short_burst(port, device.obtained.packet_max_bytes));
            let mut queues = Vec::new();
            // If a driver did not report its number of queues before opening, one worker serves all
            // of them.
            let dealt = device.queues.into_iter().zip(workers.iter().cycle());
            for (number, (ops, &worker)) in dealt.enumerate() {
                let group = &mut groups[worker];
                let known = group.queues_of(&spec.name);
                let id = Napi::id(if known.is_empty() { group.napis.len() } else { known.start });
                let tally = pool.tally(&format!("{} backlog", spec.name));
                let mut egress = Egress::new(sizes.backlog, port.qdisc.map(|qdisc| qdisc.build()));
                egress.set_cap(port.tx_batch.unwrap_or(sizes.tx_batch));
                let mut napi = Napi::new(ops, direction, id, egress, tally);
                napi.mem = self.memory.place(pool_number, worker);
                (napi.from_program, napi.meter) = (to_program, meters.get(number).cloned());
                if self.memory.pools.len() > 1 {
                    napi.keep_to(pool);
                }
                let note = napi.set_moderation(spec.moderation.unwrap_or(moderation));
                // Warn once for each port, and of a port without moderation only if its text
                // requests one.
                let is_asked = |note: &String| spec.moderation.is_some() || note != NOT_QUEUED;
                if let Some(note) = note.filter(|note| queues.is_empty() && is_asked(note)) {
                    warnings.push(format!("port '{}': moderation: {note}", spec.name));
                }
                queues.push(napi.readings());
                group.napis.push(napi);
                group.names.push(spec.name.clone());
                group.numbers.push(number);
            }
            ends.push(match flags.paired {
                // Packets in a ring to the program have left the engine.
                true if to_program => Vec::new(),
                true if meters.is_empty() => queues.iter().map(|(live, _)| live.clone()).collect(),
                _ => meters,
            });
            let flags = DriverFlags { paired: flags.paired && !to_program, ..flags };
            entries.push(Entry {
                name: spec.name.clone(),
                driver: spec.driver.clone(),
                flags,
                obtained: device.obtained,
                queues,
                rings: Vec::new(),
            });
        }
        let served = (0..self.ports.len()).filter(|port| !self.workers[*port].is_empty());
        for (entry, port) in entries.iter_mut().zip(served) {
            entry.rings = ways_to(port, self.ports, self.workers, &ends);
        }
        for group in &mut groups {
            group.join_all(self.ports, self.wires, self.fans);
        }
        (entries, groups)
    }
}

/// Returns a warning if the port's discipline drops packets that the port may send, because its
/// burst is shorter.
fn short_burst(port: &Planned, packet_max_bytes: usize) -> Option<String> {
    let (option, burst) = port.qdisc.and_then(|qdisc| qdisc.burst())?;
    // A port with superframes, which are cut, does not tell its MTU: Ethernet's is assumed.
    let longest =
        if packet_max_bytes < SUPERFRAME_BYTES { packet_max_bytes } else { ETH_FRAME_LEN };
    (burst < longest.saturating_sub(VLAN_TAG_BYTES) as u64).then(|| {
        format!("port '{}': {option}={burst}: packets of more than {burst} bytes are dropped, and the port may get packets of {longest}", port.spec.name)
    })
}

/// Returns the ways of rings between workers that lead to `port`, one for each of its queues;
/// `ends` has the counters of each port's ends of such rings.
fn ways_to(
    port: usize,
    ports: &[Planned],
    workers: &[Vec<usize>],
    ends: &[Vec<Arc<QueueStats>>],
) -> Vec<Way> {
    let is_other = |other: &usize| *other != port && ports[port].is_paired_with(&ports[*other]);
    let Some(other) = (0..ports.len()).find(is_other) else { return Vec::new() };
    let ways = ends[other].iter().zip(&ends[port]).zip(workers[port].iter().cycle());
    ways.map(|((from, to), &reader)| Way { from: from.clone(), to: to.clone(), reader }).collect()
}

/// Returns true if the program keeps the other end of the pair to which `port` belongs.
fn is_paired_with_kept(port: &Planned, ports: &[Planned], workers: &[Vec<usize>]) -> bool {
    let mut kept = ports.iter().zip(workers).filter(|(_, workers)| workers.is_empty());
    kept.any(|(other, _)| port.is_paired_with(other))
}

#[cfg(test)]
mod tests {
    use crate::Engine;
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    #[test]
    fn burst_below_the_longest_packet_is_warned_about() {
        let warnings = |options: &str| {
            let to = format!("sink:{options}");
            let engine = Engine::builder().port("a", "gen:count=1").port("b", &to).wire("a", "b");
            engine.build().unwrap().warnings().to_vec()
        };
        for fits in ["blind", "blind,shape=1Mbit", "blind,shape=1Mbit,burst=1514"] {
            assert_eq!(warnings(fits).len(), 0, "{fits}");
        }
        let told = warnings("blind,shape=1Mbit,burst=1000");
        assert!(
            told.len() == 1 && told[0].contains("more than 1000 bytes are dropped"),
            "{told:?}"
        );
    }

    #[test]
    fn frames_beyond_the_ring_are_warned_about_whichever_way_they_are_requested() {
        let Some(netns) = linerate_testing::netns_with_pair() else { return };
        let warnings = |options: &str, moderation: &str| {
            let engine = Engine::builder()
                .port("a", &format!("xdp:v0,all,ring=256{options}"))
                .port("b", "sink:")
                .wire("a", "b")
                .moderation(moderation.parse().unwrap());
            netns.run(|| engine.build().map(|engine| engine.warnings().to_vec())).unwrap()
        };
        let mode = "fixed:usecs=100,frames=65536";
        for (options, moderation) in [(format!(",moderation={mode}"), "napi"), ("".into(), mode)] {
            let told = match warnings(&options, moderation) {
                Ok(told) => told,
                Err(e) => return println!("skipped: {e}"),
            };
            let moderations = told.iter().filter(|warning| warning.contains("moderation"));
            let [one] = moderations.collect::<Vec<_>>()[..] else { panic!("{told:?}") };
            assert!(one.contains("port 'a'") && one.contains("half of a ring of 256"), "{one}");
        }
    }

    #[test]
    fn missing_capability_error_lists_those_of_all_ports() {
        let Some(netns) = linerate_testing::netns_with_pair() else { return };
        let refused = netns.run(|| {
            // This thread ends after the test: changing its capabilities affects no other test.
            let held = capabilities(None).unwrap();
            let none = CapabilitySets { effective: CapabilitySet::empty(), ..held };
            set_capabilities(None, none).unwrap();
            let engine = Engine::builder().port("a", "packet:v0,udp=53").port("b", "xdp:v1,all");
            engine.wire("a", "b").build().map(drop)
        });
        let e = refused.unwrap().unwrap_err();
        let all = "setcap cap_net_bind_service,cap_net_admin,cap_net_raw,cap_ipc_lock,cap_bpf+ep /";
        assert!(e.fix.contains(all), "{e}");
    }
}
