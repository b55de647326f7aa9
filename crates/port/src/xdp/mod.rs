//! One network interface through AF_XDP sockets: packets that match a filter arrive in frames of
//! the pool before the kernel has made an sk_buff of them; all others go to the kernel.
//!
//! ```text
//!   hot list ──► fill ring ──► driver ──► receive ring ──► Skb        rx.rs
//!   hot list ◄── completion ring ◄── driver ◄── transmit ring ◄── Skb tx.rs
//!                                 │
//!                 the filter's program: take | pass to the kernel      program.rs, or another's: foreign.rs
//! ```
//!
//! Owner: a queue owns its socket, its four rings and its descriptor, which is an epoll set around
//! the socket; all queues of a port own the program's link, so that the last one to go detaches it,
//! also by SIGKILL. Frames in a ring are lent: neither free nor a packet; packets in the transmit
//! ring are in flight until the device gives them back. Sockets on one pool share its memory: what
//! is forwarded from one to the other is not copied.
//!
//! docs/ports/xdp.md has the options, and the limits each with its cause.
//!
//! Source: Documentation/networking/af_xdp.rst, net/xdp/xsk.c.

mod attach;
mod binding;
mod checks;
mod config;
mod describe;
mod examine;
mod foreign;
mod held;
mod hold;
mod partial;
mod program;
mod queue;
mod rings;
mod rx;
mod setup;
mod spread;
#[cfg(test)]
mod tests;
mod tx;
mod vlan;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use linerate_skb::Result;
use linerate_sys::bpf::SocketMap;

use crate::doctor::{Findings, Trial};
use crate::driver::{
    Change, Driver, DriverFlags, DriverHelp, Needs, OnMachine, OpenContext, Opened, Plan,
};
use crate::moderation::Moderation;
use crate::obtained::Direction;
use crate::spec::Spec;

use crate::host::filter::Filter;
use config::Config;
use examine::FRAGS;

/// The driver of
/// `xdp:IFACE[,FILTER|,map=FILE][,mode=auto|zerocopy|native|generic][,queues=0-3][,ring=1024]`
/// `[,promisc=on|off][,rss=even|symmetric][,rx=1024][,tx=1024][,hold=250us][,busy][,write]`, with
/// `all`, `arp`, `icmp`, `dst=10.0.0.9`, `ethertype=0x88b5`, `udp=7777`, `tcp=80+443` or
/// `not=tcp:22` for FILTER; `all` beside a filter permits one that takes what the host needs. With
/// `write` the port receives nothing. With `map` the XDP program is another's: FILE is its map of
/// sockets, pinned to a BPF file system.
#[derive(Debug, Default)]
pub struct Xdp {
    /// Maps that the program has, by interface.
    maps: Vec<(String, Arc<SocketMap>)>,
}

/// The driver without a map.
pub(crate) static XDP: Xdp = Xdp::new();

impl Xdp {
    /// Returns the driver as a registry has it.
    #[must_use]
    pub const fn new() -> Xdp {
        Xdp { maps: Vec::new() }
    }

    /// Returns the driver with the map of sockets of the XDP program on `interface`, in place of an
    /// earlier one: ports of that interface leave the program unchanged, and enter their sockets
    /// into the map. Such ports require CAP_NET_RAW only.
    ///
    /// ```no_run
    /// # use linerate_port as linerate;
    /// use linerate::{Port, xdp::Xdp};
    ///
    /// # fn main() -> linerate::Result<()> {
    /// # let descriptor: std::os::fd::OwnedFd = todo!();
    /// let xdp = Xdp::new().with_map("eth0", descriptor)?; // of aya: map.fd().as_fd().try_clone_to_owned()?
    /// let port = Port::open_driver(&xdp, "xdp:eth0")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` if the descriptor is not that of a map of sockets.
    pub fn with_map(mut self, interface: &str, map: OwnedFd) -> Result<Xdp> {
        let map = Arc::new(SocketMap::of(map)?);
        self.maps.retain(|(known, _)| known != interface);
        self.maps.push((interface.to_owned(), map));
        Ok(self)
    }
}

impl Driver for Xdp {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "xdp:IFACE,udp=7777",
            text: "the packets of a network interface that match a filter (AF_XDP);\n\
                   xdp:IFACE,all takes all packets, ssh included;\n\
                   xdp:IFACE,map=FILE receives from another owner's XDP program",
        }
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { can_only_write: true, interface: true, ..DriverFlags::default() }
    }

    fn on_machine(&self) -> OnMachine {
        const KERNELS: [((u32, u32), &str); 2] =
            [((5, 9), "xdp needs 5.9"), (FRAGS, "packets longer than a frame by xdp need 6.6")];
        OnMachine { trial: "xdp:v0", link_trial: "ethertype=0x88b6", kernels: &KERNELS }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        let mut config = Config::of(spec)?;
        if let Some((_, map)) = self.maps.iter().find(|(interface, _)| *interface == spec.arg) {
            config.give(spec, map)?;
        }
        Ok(Box::new(config))
    }
}

impl Plan for Config {
    fn needs(&self) -> Result<Needs> {
        let queues = setup::queues(self)?.len();
        Ok(Needs {
            queues,
            packet_max_bytes: setup::packet_max_bytes(self)?,
            ring_frames: queues * self.ring_frames(),
            direction: match self.filter {
                Filter::Nothing => Direction::Sink,
                _ => Direction::Both,
            },
            capabilities: self.capabilities(),
            ..Needs::default()
        })
    }

    fn changes(&self) -> Vec<Change> {
        let others = hold::change(self).into_iter().chain(spread::change(self));
        partial::changes(self).into_iter().chain(vlan::change(self)).chain(others).collect()
    }

    fn moderation(&self) -> Option<Moderation> {
        // Packets wait in the device for the time of the hold; a second hold would add to it.
        hold::wanted(self).map(|_| Moderation::Napi)
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn examine(&self, spec: &Spec, how: Trial, found: &mut Findings) {
        examine::examine(self, spec, how, found);
    }

    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        setup::open(self, cx.pool()).map_err(|e| self.least(e))
    }
}
