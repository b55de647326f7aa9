//! A TAP interface: this port receives what the host sends to it, and the host receives what the port sends.
//!
//! ```text
//!   host's stack ──► t0 ──► readv │ header │ frame of the pool ········ │ the rest: copied on │
//!                                                rx.rs                    (a chain)
//!   host's stack ◄── t0 ◄── writev │ header │ segment │ segment … │      one packet a call
//!                                                tx.rs
//! ```
//!
//! Owner: the queue owns the descriptor, which is one end of the interface, and an epoll set around
//! it. An interface that was created here goes with its last queue; one that was there stays. Several
//! queues are several descriptors of a multi-queue interface, among which the host divides the flows.
//!
//! TAP has no way to pass several packets in one call: a system call for each packet, each way, is
//! inherent. What amortises it are superframes: 64 KiB of TCP are one packet here.
//!
//! Nothing is set up on the interface but what creating it needs; it is down until somebody says
//! `ip link set NAME up`, or the port text has the flag `up`. docs/ports/tap.md has the limits.
//!
//! Source: Documentation/networking/tuntap.rst, drivers/net/tun.c.

mod config;
mod examine;
mod rx;
mod setup;
#[cfg(test)]
mod tests;
mod tx;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use linerate_skb::{Batch, Local, Moved, Result};
use linerate_sys::capability::Capabilities;
use linerate_sys::tun;

use crate::caps::{Caps, Copies, TxOffload};
use crate::doctor::{Findings, Trial};
use crate::driver::{Driver, DriverHelp, Needs, OnMachine, OpenContext, Opened, Plan};
use crate::host::{Bell, Link, PACKET_BYTES_MAX};
use crate::queue::{Health, QueueOps, Want};
use crate::spec::Spec;
use crate::stats::Counters;

use config::Config;
use rx::Rx;
use tx::Tx;

/// The driver of `tap:NAME[,up][,queues=1]`.
#[derive(Debug)]
pub struct Tap;

impl Driver for Tap {
    fn name(&self) -> &'static str {
        "tap"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "tap:NAME",
            text: "a tap device of that name, made if it is not there (needs root)",
        }
    }

    fn on_machine(&self) -> OnMachine {
        OnMachine { trial: "tap:t0", kernels: &[((6, 2), "superframes of UDP by tap need 6.2")] }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        Ok(Box::new(Config::of(spec)?))
    }
}

impl Plan for Config {
    fn needs(&self) -> Result<Needs> {
        let capabilities = Capabilities::NET_ADMIN;
        Ok(Needs { packet_max_bytes: PACKET_BYTES_MAX, capabilities, ..Needs::default() })
    }

    fn examine(&self, spec: &Spec, how: Trial, found: &mut Findings) {
        examine::examine(spec, how, found);
    }

    fn open(&self, _: &mut OpenContext<'_>) -> Result<Opened> {
        setup::open(self)
    }
}

struct TapQueue {
    tap: tun::Tap,
    rx: Rx,
    tx: Tx,
    link: Link,
    bell: Bell,
    /// `arm` said that there was nothing, and what woke the caller has not been looked at.
    armed: bool,
}

impl TapQueue {
    /// Finds out whether the descriptor is in error: its interface is gone.
    ///
    /// Cost: one syscall.
    fn look(&mut self) {
        self.armed = false;
        if self.bell.look() {
            self.link.lost();
        }
    }

    /// A descriptor without an interface is in error for ever and would wake for ever.
    fn forget_if_gone(&mut self) {
        if self.link.is_gone() {
            self.bell.forget(&self.tap);
        }
    }
}

impl QueueOps for TapQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let moved = self.rx.receive(&self.tap, &mut self.link, mem, out, budget);
        if moved.packets > 0 {
            self.bell.busy(&self.tap);
            self.armed = false;
        } else {
            self.link.refresh();
            if self.armed {
                self.look();
            }
        }
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.link.refresh();
        self.bell.busy(&self.tap);
        self.tx.send(&self.tap, &mut self.link, mem, batch)
    }

    fn arm(&mut self, want: Want) -> bool {
        self.link.refresh();
        if self.armed {
            self.look();
        }
        self.forget_if_gone();
        // A device that is not up takes, and drops, whatever it is offered.
        let room = !self.link.is_up() || !self.tx.is_blocked();
        let frames = want.frames() && self.rx.is_waiting(&self.tap);
        if self.link.take_news() || frames || (want.room() && room) {
            return false;
        }
        let watch = (want.frames() && !self.rx.is_starved()).then_some(Want::Frames);
        let alarm = [
            self.link.look_at(),
            self.rx.retry_at().filter(|_| want.frames()),
            self.tx.retry_at().filter(|_| want.room()),
        ];
        self.bell.watch(&self.tap, watch, alarm.into_iter().flatten().min());
        self.armed = true;
        true
    }

    fn alarm(&mut self, at: Instant) -> bool {
        self.bell.no_later(at)
    }

    fn health(&self) -> Health {
        self.link.health().clone()
    }

    fn counters(&mut self) -> Counters {
        Counters { rx_nombuf: self.rx.no_frame(), ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        let offload = TxOffload::Untunnelled;
        Caps { copies: Copies::Always, checksum: offload, gso: offload, ..Caps::default() }
    }
}

impl AsFd for TapQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
