//! The drivers that port texts can name: those of this crate, and those that a program adds.

use linerate_skb::Result;

use crate::driver::{Driver, DriverFlags, Plan};
use crate::spec::Spec;
use crate::{r#gen, memif, null, packet, pcap, ring, sink, tap, verbs, xdp};

/// The drivers of this crate, in the order of the command's help; of other lists only the docs of
/// [`Registry`] have all of them.
static DRIVERS: [&dyn Driver; 10] = [
    &xdp::XDP,
    &packet::Packet,
    &tap::Tap,
    &pcap::Pcap,
    &memif::Memif,
    &verbs::Verbs,
    &ring::Ring,
    &r#gen::Gen,
    &sink::Sink,
    &null::Null,
];

/// The drivers that port texts can name. The default registry has those of this crate:
///
/// | text | port |
/// |---|---|
/// | `xdp:eth0,udp=7777` | the packets of a network interface that match a filter, by AF_XDP; `xdp:eth0,all` takes all packets |
/// | `packet:eth0` | a network interface, shared with the kernel, by AF_PACKET |
/// | `tap:t0` | a TAP device: the other side is the host |
/// | `pcap:FILE`, `pcap:FILE,write` | a capture file, read or written |
/// | `memif:PATH` | memory that is shared with another process: linerate, VPP, DPDK |
/// | `verbs:DEVICE,connect=ADDRESS` | another host, by an RDMA device |
/// | `ring:NAME` | in an engine: one of two ends in this process; in a program see [`Port::pair`](crate::Port::pair) |
/// | `gen:rate=1Mpps,size=60,count=10k` | a source of numbered packets, which are no IP packets without `to=ADDRESS:PORT,dev=eth0` |
/// | `sink:`, `sink:blind` | frees all packets; without `blind` verifies those of `gen` |
/// | `null:` | frees all packets, and returns packets with unwritten bytes: shows the cost of the path itself |
///
/// A name before the text names the port: `west=xdp:eth0`. docs/which-port.md says when to use
/// which, and docs/ports has all options. [`Registry::add`] adds a driver of the program's own.
#[derive(Clone)]
pub struct Registry(Vec<&'static dyn Driver>);

impl Default for Registry {
    fn default() -> Registry {
        Registry(DRIVERS.to_vec())
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Registry {
    /// Returns the drivers of this crate, and `more`.
    #[must_use]
    pub fn with(more: &[&'static dyn Driver]) -> Registry {
        let mut registry = Registry::default();
        more.iter().for_each(|driver| registry.add(*driver));
        registry
    }

    /// Adds a driver, replacing one of the same name.
    pub fn add(&mut self, driver: &'static dyn Driver) {
        self.0.retain(|known| known.name() != driver.name());
        self.0.push(driver);
    }

    /// Returns the drivers, in the order of a command's help.
    #[must_use]
    pub fn drivers(&self) -> &[&'static dyn Driver] {
        &self.0
    }

    /// Parses a port text.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX`, with what would be right.
    pub fn parse(&self, text: &str) -> Result<Spec> {
        let spec = Spec::split(text, &self.names())?;
        let spec = if self.flags(&spec).nameless { spec.without_arg()? } else { spec };
        spec.of_every_port()
    }

    /// Returns the driver that `spec` names.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` if it was parsed against others.
    pub fn driver(&self, spec: &Spec) -> Result<&'static dyn Driver> {
        let found = self.0.iter().copied().find(|driver| driver.name() == spec.driver);
        found.ok_or_else(|| spec.error(format!("there is no driver '{}'", spec.driver)))
    }

    /// Returns the facts that hold for every port of the driver that `spec` names.
    #[must_use]
    pub fn flags(&self, spec: &Spec) -> DriverFlags {
        self.driver(spec).map(Driver::flags).unwrap_or_default()
    }

    /// Parses a port text and its options into a plan.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX`, with what would be right.
    pub fn plan(&self, text: &str) -> Result<Box<dyn Plan>> {
        let spec = self.parse(text)?;
        self.driver(&spec)?.parse(&spec)
    }

    /// Returns the first driver that can try the link of an interface
    /// ([`OnMachine::link_trial`](crate::OnMachine)).
    #[must_use]
    pub fn of_links(&self) -> Option<&'static dyn Driver> {
        self.0.iter().copied().find(|driver| !driver.on_machine().link_trial.is_empty())
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.0.iter().map(|driver| driver.name()).collect();
        names.sort_unstable();
        names
    }
}

/// Parses a port text against the drivers of this crate.
///
/// # Errors
/// `E-PORT-SYNTAX`, with what would be right.
pub fn parse(text: &str) -> Result<Spec> {
    Registry::default().parse(text)
}

/// Parses a port text and its options into a plan, for the drivers of this crate.
///
/// # Errors
/// `E-PORT-SYNTAX`, with what would be right.
pub fn plan(text: &str) -> Result<Box<dyn Plan>> {
    Registry::default().plan(text)
}

/// Opens a single port by its text.
#[cfg(any(test, feature = "conformance"))]
pub(crate) fn open(text: &str, pool: &linerate_skb::Pool) -> Result<crate::Opened> {
    plan(text)?.open(&mut crate::OpenContext::new(pool))
}

#[cfg(test)]
mod tests;
