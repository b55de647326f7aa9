//! A TAP interface: this port receives what the host sends to it, and the host receives what the
//! port sends.
//!
//! ```text
//!   host's stack ──► t0 ──► readv │ header │ frame of the pool ········ │ the rest: copied on │
//!                                                rx.rs                    (a chain)
//!   host's stack ◄── t0 ◄── writev │ header │ segment │ segment … │      one packet a call
//!                                                tx.rs
//! ```
//!
//! Owner: the queue owns the descriptor, which is one end of the interface, and an epoll set around
//! it. An interface that was created here goes with its last queue; one that was there stays.
//! Several queues are several descriptors of a multi-queue interface, among which the host divides
//! the flows.
//!
//! TAP has no way to pass several packets in one call: a system call for each packet, each way, is
//! inherent. What amortises it are superframes: 64 KiB of TCP are one packet here. Without the
//! offload header there are none, and each packet is complete.
//!
//! What the host loses, because it finds a descriptor's queue full, the interface counts: the first
//! queue has these as `rx_missed`.
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
use linerate_sys::netif::{Interface, NetFolder, NetNumber};
use linerate_sys::tun;
use linerate_sys::wait::EventFlags;

use crate::caps::{Caps, Copies, TxOffload};
use crate::doctor::{Findings, Trial};
use crate::driver::{Driver, DriverFlags, DriverHelp, Needs, OnMachine, OpenContext, Opened, Plan};
use crate::host::{Bell, Host, HostDevice, Link, Losses};
use crate::queue::Want;
use crate::spec::Spec;
use crate::stats::{Counters, DriverCounts};

use config::Config;
use rx::Rx;
use tx::Tx;

/// The driver of `tap:NAME[,up][,queues=1][,vnet=on|off]`.
#[derive(Debug)]
pub struct Tap;

impl Driver for Tap {
    fn name(&self) -> &'static str {
        "tap"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp { usage: "tap:NAME", text: "a TAP device, created if it does not exist" }
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { interface: true, ..DriverFlags::default() }
    }

    fn on_machine(&self) -> OnMachine {
        let kernels = &[((6, 2), "superframes of UDP by tap need 6.2")];
        OnMachine { trial: "tap:t0", kernels, ..OnMachine::default() }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        Ok(Box::new(Config::of(spec)?))
    }
}

impl Plan for Config {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs {
            queues: self.queues,
            packet_max_bytes: setup::packet_max_bytes(self)?,
            capabilities: Capabilities::NET_ADMIN,
            ..Needs::default()
        })
    }

    fn examine(&self, spec: &Spec, how: Trial, found: &mut Findings) {
        examine::examine(spec, how, found);
    }

    fn open(&self, _: &mut OpenContext<'_>) -> Result<Opened> {
        setup::open(self)
    }
}

/// The device of a queue: its descriptor, with the packets in flight on it.
struct Device {
    tap: tun::Tap,
    rx: Rx,
    tx: Tx,
    /// Packets that the host lost before the port, of the first queue. `None` for the others, and
    /// if the interface's counter could not be opened.
    dropped: Option<Dropped>,
}

/// The packets that the host sent to the interface and lost, by the interface's own count: most
/// found no room in a descriptor's queue.
struct Dropped {
    counter: NetNumber,
    /// The counter's value when the port was opened.
    before: u64,
    /// Length of the queue of each descriptor in packets.
    queue_packets: u32,
    /// Number of the port's queues. The count is that of the interface, so with several it is not
    /// known which thread was late.
    queues: usize,
    packets: u64,
    losses: Losses,
}

impl Dropped {
    /// Opens the counter of `interface`; `None` without a sysfs that shows it.
    fn open(interface: &Interface, queues: usize) -> Option<Dropped> {
        let folder = NetFolder::open(interface).ok()?;
        let counter = folder.number("statistics/tx_dropped").ok()?;
        let queue_packets = folder.read("tx_queue_len")?.parse().ok()?;
        let (before, losses) = (counter.read()?, Losses::default());
        Some(Dropped { counter, before, queue_packets, queues, packets: 0, losses })
    }

    /// Reads the counter, which keeps its last value after the interface is gone.
    fn read(&mut self, rx: &Rx) {
        if let Some(now) = self.counter.read() {
            self.packets = now.saturating_sub(self.before);
        }
        let ring = if self.queues == 1 { self.queue_packets } else { u32::MAX };
        self.losses.read(rx.packets, self.packets, rx.rx_nombuf, ring);
    }
}

impl HostDevice for Device {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.tap.as_fd())
    }

    fn rx(&mut self, host: &mut Host, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        self.rx.receive(&self.tap, &mut host.link, mem, out, budget)
    }

    fn xmit(&mut self, host: &mut Host, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.tx.send(&self.tap, &mut host.link, mem, batch)
    }

    /// Checks the descriptor for an error, which it has after its interface was deleted, and for a
    /// packet, which an `rx` without room in its batch leaves there.
    ///
    /// Cost: one syscall.
    fn look(&mut self, host: &mut Host) {
        let pending = host.bell.pending();
        if pending.intersects(Bell::TROUBLE) {
            host.link.lost();
        }
        self.rx.drained &= !pending.contains(EventFlags::IN);
    }

    fn is_ready(&mut self, host: &mut Host, want: Want) -> bool {
        // Stop watching a descriptor without an interface: its error is permanent and would wake
        // the caller without end.
        if host.link.is_gone() {
            host.bell.forget(&self.tap);
        }
        let room = !self.tx.retry.is_pending();
        (want.frames() && self.rx.is_waiting(&self.tap)) || (want.room() && room)
    }

    fn awaits(&mut self, _: &Link, want: Want) -> (Option<Want>, Option<Instant>) {
        let frames = self.rx.starved.at().filter(|_| want.frames());
        let room = self.tx.retry.at().filter(|_| want.room());
        let watch = (want.frames() && frames.is_none()).then_some(Want::Frames);
        (watch, [frames, room].into_iter().flatten().min())
    }

    fn counters(&mut self) -> Counters {
        let (rx_nombuf, mut rx_missed) = (self.rx.rx_nombuf, 0);
        let mut driver = DriverCounts {
            doorbells: Some(self.tx.doorbells),
            longer_ring: Some("ip link set IFACE txqueuelen 4000"),
            ..DriverCounts::default()
        };
        if let Some(dropped) = &mut self.dropped {
            dropped.read(&self.rx);
            (rx_missed, driver) = (dropped.packets, dropped.losses.counts(driver));
        }
        Counters { rx_missed, rx_nombuf, driver, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        let (checksum, gso) = match (self.tx.has_vnet(), self.tap.offloads().uso) {
            (true, true) => (TxOffload::Untunnelled, TxOffload::Untunnelled),
            // The kernel refuses a superframe of UDP that it does not know.
            (true, false) => (TxOffload::Untunnelled, TxOffload::UntunnelledTcp),
            (false, _) => (TxOffload::None, TxOffload::None),
        };
        Caps { copies: Copies::Always, checksum, gso, ..Caps::default() }
    }
}
