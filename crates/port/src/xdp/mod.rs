//! One network interface through AF_XDP sockets: packets that a filter takes arrive in frames of the
//! pool before the kernel has made an sk_buff of them; all others go on to the kernel.
//!
//! ```text
//!   hot list ──► fill ring ──► driver ──► receive ring ──► Skb        rx.rs
//!   hot list ◄── completion ring ◄── driver ◄── transmit ring ◄── Skb tx.rs
//!                                 │
//!                 the filter's program: take | pass to the kernel      filter.rs, program.rs
//! ```
//!
//! Owner: a queue owns its socket, its four rings and its descriptor, which is an epoll set around
//! the socket; all queues of a port own the program's link, so that the last one to go detaches it,
//! also by SIGKILL. Frames in a ring are lent: neither free nor a packet; packets in the transmit ring
//! are in flight until the device gives them back. Sockets on one pool share its memory: what is
//! forwarded from one to the other is not copied.
//!
//! docs/ports/xdp.md has the options, and the limits each with its cause.
//!
//! Source: Documentation/networking/af_xdp.rst, net/xdp/xsk.c.

mod binding;
mod config;
mod examine;
mod filter;
mod held;
mod partial;
mod program;
mod queue;
mod rings;
mod rx;
mod setup;
#[cfg(test)]
mod tests;
mod tx;

use linerate_skb::Result;
use linerate_sys::capability::Capabilities;

use crate::doctor::{Findings, Trial};
use crate::driver::{Driver, DriverFlags, DriverHelp, Needs, OnMachine, OpenContext, Opened, Plan};
use crate::host::flow::Flow;
use crate::obtained::Direction;
use crate::spec::Spec;

use config::Config;
use examine::FRAGS;
use filter::Filter;

/// The driver of `xdp:IFACE[,FILTER][,mode=auto|zerocopy|native|generic][,queues=0-3][,ring=1024]`
/// `[,rx=1024][,tx=1024][,busy][,write]`, with `all`, `arp`, `icmp`, `dst=10.0.0.9`, `ethertype=0x88b5`,
/// `udp=7777`, `tcp=80+443` or `not=tcp:22` for FILTER; `write` takes nothing in.
#[derive(Debug)]
pub struct Xdp;

impl Driver for Xdp {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "xdp:IFACE,udp=7777",
            text: "what a filter takes of a network interface (AF_XDP; needs root);\n\
                   xdp:IFACE,all takes everything, ssh included",
        }
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { can_only_write: true, ..DriverFlags::default() }
    }

    fn on_machine(&self) -> OnMachine {
        const KERNELS: [((u32, u32), &str); 2] =
            [((5, 9), "xdp needs 5.9"), (FRAGS, "packets longer than a frame by xdp need 6.6")];
        OnMachine { trial: "xdp:v0", kernels: &KERNELS }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        Ok(Box::new(Config::of(spec)?))
    }
}

impl Plan for Config {
    fn needs(&self) -> Result<Needs> {
        let flow = self.filter.flow().map_or(Capabilities::NONE, Flow::capabilities);
        let queues = setup::queues(self)?.len();
        Ok(Needs {
            queues,
            packet_max_bytes: setup::packet_max_bytes(self)?,
            ring_frames: queues * self.ring_frames(),
            direction: match self.filter {
                Filter::Nothing => Direction::Sink,
                _ => Direction::Both,
            },
            capabilities: Capabilities::XDP.and(flow),
            ..Needs::default()
        })
    }

    fn examine(&self, spec: &Spec, how: Trial, found: &mut Findings) {
        examine::examine(self, spec, how, found);
    }

    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        setup::open(self, cx.pool())
    }
}
