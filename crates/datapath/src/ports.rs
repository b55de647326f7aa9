//! The ports of an engine before they are opened: first named by their texts, then planned by their
//! drivers.

use linerate_port::{Direction, Driver, DriverFlags, Error, Needs, Plan, Registry, Result, Spec};
use linerate_skb::Trust;

use crate::plan::Wire;
use crate::qdisc::Setup;
use crate::tx_batch::TxBatch;

/// The remedy for a stage that cannot read packets that a peer can write.
pub(crate) const DECLARE: &str =
    "return true from Stage::reads_exported if the stage reads packets only through Skb::copy_to";

/// A port's text, with its driver.
pub(crate) struct Named {
    pub spec: Spec,
    driver: &'static dyn Driver,
    qdisc: Option<Setup>,
    tx_batch: Option<TxBatch>,
}

/// A port that can be opened.
pub(crate) struct Planned {
    pub spec: Spec,
    pub flags: DriverFlags,
    pub needs: Needs,
    pub plan: Box<dyn Plan>,
    /// The port's discipline, if its text has one.
    pub qdisc: Option<Setup>,
    /// The cap on packets for one doorbell, if the text has one.
    pub tx_batch: Option<TxBatch>,
    /// True if the port copies because a stage reads packets in place.
    pub copies_for_stage: bool,
}

impl Named {
    /// Parses the text of the port called `name`.
    pub fn new(drivers: &Registry, name: &str, text: &str) -> Result<Named> {
        let mut spec = drivers.parse(text)?;
        spec.name = name.to_owned();
        let (driver, qdisc) = (drivers.driver(&spec)?, Setup::of(&mut spec)?);
        let tx_batch = spec.take("tx_batch", |text| text.parse().map_err(|e: Error| e.fix))?;
        Ok(Named { driver, spec, qdisc, tx_batch })
    }

    /// Returns the flags that hold for every port of the driver.
    pub fn flags(&self) -> DriverFlags {
        self.driver.flags()
    }

    /// Checks that the port's text asks for nothing that only a worker does.
    pub fn without_worker(&self) -> Result<()> {
        let option = match (self.qdisc, self.tx_batch) {
            (Some(_), _) => "a queueing discipline",
            (None, Some(_)) => "tx_batch=",
            (None, None) => return Ok(()),
        };
        let why = format!("the program keeps the port, and {option} is a worker's");
        Err(self.spec.error(why).fix("leave it out, or put it on a port that a worker serves"))
    }

    /// Returns true if both ports are ends of one pair.
    pub fn is_paired_with(&self, other: &Named) -> bool {
        self.flags().paired && open_the_same(&self.spec, &other.spec)
    }
}

/// Returns a port's text without the options that an engine reads itself, for its driver: those of
/// a discipline, and `tx_batch=`.
///
/// # Errors
/// `E-PORT-SYNTAX`, with what would be right.
pub fn driver_text(drivers: &Registry, text: &str) -> Result<String> {
    let all = drivers.parse(text)?;
    let rest = Named::new(drivers, &all.name, text)?.spec;
    let has = |spec: &Spec, key: &str| !matches!(spec.value(key, |_| Ok::<_, &str>(())), Ok(None));
    let is_engines = |part: &str| {
        let key = part.split('=').next().unwrap_or_default();
        has(&all, key) && !has(&rest, key)
    };
    // The first part is an option only of a driver that opens nothing by name.
    let names = usize::from(!drivers.flags(&all).nameless);
    let (front, parts) = text.split_once(':').unwrap_or((text, ""));
    let kept = parts.split(',').enumerate().filter(|(i, part)| *i < names || !is_engines(part));
    let kept: Vec<&str> = kept.map(|(_, part)| part).collect();
    Ok(format!("{front}:{}", kept.join(",")))
}

impl Planned {
    /// Returns true if both ports are ends of one pair.
    pub fn is_paired_with(&self, other: &Planned) -> bool {
        self.flags.paired && open_the_same(&self.spec, &other.spec)
    }
}

/// Returns true if two texts name the same driver and what it opens.
fn open_the_same(one: &Spec, other: &Spec) -> bool {
    one.driver == other.driver && one.arg == other.arg
}

/// Sets the mode of a port that can only be read or only be written: the left end of a wire is
/// read. A port that the program keeps is what its text says alone. Packets of any link type pass
/// between two such ports, unless a stage `looks` at them and assumes Ethernet.
pub(crate) fn direct(ports: &mut [Named], wires: &[Wire], kept: &[usize], looks: bool) {
    for &(a, b) in wires.iter().filter(|_| !looks) {
        if ports[a].flags().directed && ports[b].flags().directed {
            ports[a].spec.options.set_default("link", Some("any"));
            ports[b].spec.options.set_default("link", Some("any"));
        }
    }
    for (i, port) in ports.iter_mut().enumerate().filter(|(i, _)| !kept.contains(i)) {
        let flag = |key| port.spec.flag(key).unwrap_or(false);
        if port.flags().directed && !flag("read") && !flag("write") {
            let left = wires.iter().any(|(a, _)| *a == i);
            port.spec.options.set_default(if left { "read" } else { "write" }, None);
        }
    }
}

/// Makes each port's driver parse its text, and parse it again if the other ports of the plan add
/// options.
///
/// # Errors
/// `E-PORT-SYNTAX`; also the reason why a port's needs cannot be determined.
pub(crate) fn plan(mut ports: Vec<Named>, wires: &[Wire]) -> Result<Vec<Planned>> {
    let parse = |port: &Named| port.driver.parse(&port.spec);
    let mut plans = ports.iter().map(parse).collect::<Result<Vec<_>>>()?;
    let texts: Vec<Spec> = ports.iter().map(|port| port.spec.clone()).collect();
    share(&mut ports)?;
    spare(&mut ports, &plans, wires);
    for ((plan, port), text) in plans.iter_mut().zip(&ports).zip(texts) {
        if port.spec != text {
            *plan = parse(port)?;
        }
    }
    let planned = |(port, plan): (Named, Box<dyn Plan>)| {
        let (flags, needs) = (port.flags(), plan.needs()?);
        let Named { mut spec, qdisc, tx_batch, .. } = port;
        spec.moderation = spec.moderation.or_else(|| plan.moderation());
        let copies_for_stage = false;
        Ok(Planned { spec, flags, needs, plan, qdisc, tx_batch, copies_for_stage })
    };
    ports.into_iter().zip(plans).map(planned).collect()
}

/// A part of an engine that reads packets in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadsInPlace {
    Stage,
    Steering,
}

impl ReadsInPlace {
    /// Returns the part's name, with its article.
    pub fn name(self) -> &'static str {
        match self {
            ReadsInPlace::Stage => "a stage",
            ReadsInPlace::Steering => "Steering",
        }
    }

    /// Returns the remedy: the one that makes the frames private, and what a stage can do instead.
    pub fn fix(self, private: &str) -> String {
        match self {
            ReadsInPlace::Stage => format!("{private}, or {DECLARE}"),
            ReadsInPlace::Steering => private.to_owned(),
        }
    }
}

/// Makes ports copy if they would otherwise share their frames with a peer that writes, because
/// `reader` reads packets in place.
///
/// # Errors
/// `E-PORT-SYNTAX` if a port's text requests shared frames.
pub(crate) fn keep_private(ports: &mut [Planned], reader: ReadsInPlace) -> Result<()> {
    for port in ports.iter_mut().filter(|port| port.needs.trust == Trust::Exported) {
        port.plan = port.plan.by_copies().map_err(|fix| {
            let why = format!("its peer could write packets while {} reads them", reader.name());
            port.spec.error(why).fix(reader.fix(fix))
        })?;
        (port.needs, port.copies_for_stage) = (port.plan.needs()?, true);
    }
    Ok(())
}

/// Gives both ends of a pair the same options: an option of one end also holds for the other.
fn share(ports: &mut [Named]) -> Result<()> {
    for i in 0..ports.len() {
        let (before, rest) = ports.split_at_mut(i);
        let Some(port) = rest.first_mut() else { continue };
        if let Some(other) = before.iter_mut().find(|other| port.is_paired_with(other)) {
            port.spec.agree_with(&other.spec)?;
            other.spec.agree_with(&port.spec)?;
        }
    }
    Ok(())
}

/// Opens a port for writing only, if the other end of its wire can only be written too, because
/// packets received by it would have no output.
fn spare(ports: &mut [Named], plans: &[Box<dyn Plan>], wires: &[Wire]) {
    let source = |i: usize| plans[i].needs().is_ok_and(|n| n.direction == Direction::Source);
    for (i, other) in wires.iter().flat_map(|&(a, b)| [(a, b), (b, a)]) {
        if ports[i].flags().can_only_write && source(other) {
            ports[i].spec.options.set_default("write", None);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the ports described by `texts`, with the names in the texts.
    pub(crate) fn named(texts: &[&str]) -> Vec<Named> {
        let name = |text: &&str| {
            let name = linerate_port::parse(text).unwrap().name;
            Named::new(&Registry::default(), &name, text).unwrap()
        };
        texts.iter().map(name).collect()
    }

    #[test]
    fn a_rings_length_is_said_at_either_end_and_never_ignored() {
        let len = |a: &str, b: &str| {
            let texts = [a, b].map(|options| format!("ring:r{options}"));
            let planned = plan(named(&texts.each_ref().map(|text| &text[..])), &[])?;
            Ok::<_, linerate_port::Error>([0, 1].map(|i| planned[i].needs.ring_frames / 2))
        };
        assert_eq!(len("", "").unwrap(), [1024; 2]);
        assert_eq!((len(",len=64", "").unwrap(), len("", ",len=64").unwrap()), ([64; 2], [64; 2]));
        assert_eq!(len(",len=64", ",len=64").unwrap(), [64; 2]);
        let e = len(",len=64", ",len=128").unwrap_err();
        assert_eq!(e.what, "port 'ring:r,len=128'");
        assert_eq!(e.why, "the ring's other end has len=64");
        let e = len("", ",lne=64").unwrap_err();
        assert!(e.what.ends_with(",lne=64'") && e.fix.contains("len"), "{e}");
    }

    #[test]
    fn drivers_text_lacks_the_options_that_the_engine_reads() {
        let of = |text| driver_text(&Registry::default(), text);
        for (text, rest) in [
            ("xdp:v0,hold=250us,qdisc=fq_codel,target=2ms,tx_batch=1", "xdp:v0,hold=250us"),
            ("a=xdp:v0,tx_batch=auto,udp=7", "a=xdp:v0,udp=7"),
            ("tap:limit,shape=1Mbit,burst=64k,limit=9", "tap:limit"),
            ("gen:rate=1kpps,burst=8,flows=2", "gen:rate=1kpps,burst=8,flows=2"),
            ("gen:,flows=2,qdisc=fifo", "gen:,flows=2"),
            ("null:qdisc=fifo", "null:"),
            ("null:qdisc=fifo,size=64", "null:size=64"),
            ("null:", "null:"),
            (
                "xdp:v0,moderation=fixed:usecs=50,frames=4,qdisc=fifo,toll=1us/2us",
                "xdp:v0,moderation=fixed:usecs=50,frames=4,toll=1us/2us",
            ),
        ] {
            assert_eq!(of(text).unwrap(), rest);
            assert!(linerate_port::plan(rest).is_ok(), "{rest}");
        }
        let e = of("xdp:v0,qdisc=htb").unwrap_err();
        assert!(e.why.contains("no discipline 'htb'"), "{e}");
    }

    #[test]
    fn a_port_whose_wire_is_only_read_takes_nothing_in() {
        let texts =
            ["gen:", "xdp:a", "xdp:b,udp=7", "pcap:in", "xdp:c", "pcap:out", "xdp:d", "null:"];
        let (mut ports, wires) = (named(&texts), [(0, 1), (3, 2), (4, 5), (6, 7)]);
        direct(&mut ports, &wires, &[], false);
        let plans: Vec<_> = ports.iter().map(|p| p.driver.parse(&p.spec).unwrap()).collect();
        spare(&mut ports, &plans, &wires);
        let written: Vec<bool> = ports.iter().map(|p| p.spec.flag("write").unwrap()).collect();
        assert_eq!(written, [false, true, true, false, false, true, false, false]);
    }
}
