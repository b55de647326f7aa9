//! One network interface through an AF_PACKET socket, which every kernel has. The host's own stack
//! keeps its packets, and each frame is copied once in each direction.
//!
//! ```text
//!   kernel ──► block │ frame frame frame … │ ──copy──► Skb, Skb (a chain if longer than a frame)
//!              the ring, mapped: no syscall      rx.rs
//!          socket │ frame frame frame … │ ──recvmmsg, copy──► Skb, with retire=0
//!   kernel ◄── sendmmsg │ header segments │ header segments │ … ◄── Batch, up to 64 a call
//!                                                tx.rs
//! ```
//!
//! Several queues are several such sockets in one group, among which the kernel divides the frames.
//! A filter of the sockets, in the words of `xdp`, refuses everything else; of `udp=` and `tcp=`
//! the kernel is kept from answering on the ports that they take.
//!
//! Owner: the queue owns the socket, its ring and its descriptor, which is an epoll set around the
//! socket. Frames received stay in the kernel's blocks, or in the socket's receive buffer, until
//! they are copied: if the pool has no frame, or no call comes, these fill up and the kernel counts
//! what it drops, which `rx_missed` reports. All queues own the reservation of the ports: the last
//! to go gives them back.
//!
//! Offloads: with the vnet header (the default) partial checksums and superframes pass as they are,
//! both ways. What the header cannot say is done before: see `txprep`. docs/ports/packet.md has the
//! options and the limits, each with its cause.
//!
//! Source: packet(7), Documentation/networking/packet_mmap.rst, net/packet/af_packet.c.

mod config;
mod examine;
mod filter;
mod rx;
mod setup;
#[cfg(test)]
mod tests;
mod tx;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Local, Moved, Result};
use linerate_sys::capability::Capabilities;
use linerate_sys::packet::PacketSocket;

use crate::caps::{Caps, Copies, Gathers, TxOffload};
use crate::doctor::{Findings, Trial};
use crate::driver::{Driver, DriverFlags, DriverHelp, Needs, OnMachine, OpenContext, Opened, Plan};
use crate::host::flow::Flow;
use crate::host::{Host, HostDevice, Link, Losses, Reservation};
use crate::queue::Want;
use crate::spec::Spec;
use crate::stats::{Counters, DriverCounts};

use config::Config;
use rx::Rx;
use tx::Tx;

/// The driver of `packet:IFACE[,FILTER][,queues=1][,fanout=hash|cpu|lb|qm][,bypass]`
/// `[,promisc=on|off][,retire=1ms][,ring=8MiB][,vnet=on|off]`.
#[derive(Debug)]
pub struct Packet;

impl Driver for Packet {
    fn name(&self) -> &'static str {
        "packet"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "packet:IFACE",
            text: "a network interface, shared with the kernel (AF_PACKET)",
        }
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { interface: true, ..DriverFlags::default() }
    }

    fn on_machine(&self) -> OnMachine {
        OnMachine { trial: "packet:v0", ..OnMachine::default() }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        Ok(Box::new(Config::of(spec)?))
    }
}

impl Plan for Config {
    fn needs(&self) -> Result<Needs> {
        let flow = self.filter.flow().map_or(Capabilities::NONE, Flow::capabilities);
        Ok(Needs {
            queues: self.queues,
            packet_max_bytes: setup::packet_max_bytes(self)?,
            capabilities: Capabilities::NET_RAW.and(flow),
            ..Needs::default()
        })
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn examine(&self, spec: &Spec, _: Trial, found: &mut Findings) {
        examine::examine(self, spec, found);
    }

    fn open(&self, _: &mut OpenContext<'_>) -> Result<Opened> {
        setup::open(self)
    }
}

/// Receives without a packet after which the clock is read, to check the interface if it is time.
const EMPTY_POLLS: u16 = 1024;
/// Least interval of these checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Receives without a packet. A caller that neither waits nor sends would not notice that its
/// interface is down or gone, because the ring is read without a syscall: at some of these receives
/// it is checked.
#[derive(Debug, Default)]
struct Idle {
    /// Number of receives without a packet, modulo [`EMPTY_POLLS`].
    polls: u16,
    /// Time from which on the interface is checked again; `None` before the first check.
    check_at: Option<Instant>,
}

impl Idle {
    /// Counts a receive without a packet; returns true if the interface must be checked.
    ///
    /// Cost: a clock read, once in [`EMPTY_POLLS`] calls.
    fn count(&mut self) -> bool {
        self.polls = (self.polls + 1) % EMPTY_POLLS;
        self.polls == 0 && self.take_time()
    }

    /// Returns true if the time of a check has come, and sets that of the next one.
    #[cold]
    fn take_time(&mut self) -> bool {
        let now = Instant::now();
        let is_time = self.check_at.is_none_or(|at| at <= now);
        if is_time {
            self.check_at = now.checked_add(CHECK_INTERVAL);
        }
        is_time
    }
}

/// The device of a queue: its socket, with the packets in flight on it.
struct Device {
    socket: PacketSocket,
    rx: Rx,
    tx: Tx,
    /// True if the kernel cuts superframes of UDP.
    has_uso: bool,
    /// The packets that the kernel gathers in a block of the ring.
    gathers: Gathers,
    /// Number of packets that the kernel has counted as lost.
    rx_missed: u64,
    losses: Losses,
    idle: Idle,
    /// Dropped after the socket, because the host must not answer while the port may still receive.
    _reservation: Option<Arc<Reservation>>,
}

/// Queries the interface, and checks that the socket is still bound to it. The kernel unbinds the
/// socket of an interface that is moved to another namespace. It does not bind it again when the
/// interface is back and up, and reports no error to a socket that only receives.
///
/// Cost: three syscalls; four if the interface is down.
fn query(socket: &PacketSocket, link: &mut Link) {
    link.look();
    if !link.is_gone() && !socket.is_bound_to(link.interface()) {
        link.moved();
    }
}

impl HostDevice for Device {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn rx(&mut self, host: &mut Host, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let moved = self.rx.receive(&self.socket, mem, out, budget);
        let is_check_due = moved.packets == 0 && self.idle.count();
        if std::mem::take(&mut self.rx.is_broken) || is_check_due {
            self.query(host);
        }
        moved
    }

    fn xmit(&mut self, host: &mut Host, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.tx.send(&self.socket, &mut host.link, mem, batch)
    }

    fn query(&mut self, host: &mut Host) {
        query(&self.socket, &mut host.link);
        if !self.tx.has_vnet {
            self.rx.look(host.link.interface());
        }
    }

    /// Checks the socket for an error, which makes it readable without a frame.
    ///
    /// Cost: one syscall; four to seven more if it is.
    fn look(&mut self, host: &mut Host) {
        if host.bell.look() && self.socket.take_error().is_some() {
            self.query(host);
        }
    }

    fn is_ready(&mut self, _: &mut Host, want: Want) -> bool {
        (want.frames() && self.rx.is_waiting(&self.socket))
            || (want.room() && self.tx.has_room(&self.socket))
    }

    fn awaits(&mut self, _: &Link, want: Want) -> (Option<Want>, Option<Instant>) {
        let frames = self.rx.starved.at().filter(|_| want.frames());
        let room = self.tx.retry.at().filter(|_| want.room());
        let watch = match (want.frames() && frames.is_none(), want.room() && self.tx.is_full) {
            (true, true) => Some(Want::Both),
            (true, false) => Some(Want::Frames),
            (false, true) => Some(Want::Room),
            (false, false) => None,
        };
        (watch, [frames, room].into_iter().flatten().min())
    }

    fn counters(&mut self) -> Counters {
        // Add the count to ours, because each reading resets the kernel's count.
        self.rx_missed += self.socket.take_statistics().map_or(0, |stats| stats.drops.into());
        let (rx_missed, rx_nombuf) = (self.rx_missed + self.rx.lost(), self.rx.rx_nombuf);
        let received = self.rx.received.packets as u64;
        self.losses.read(received, self.rx_missed, rx_nombuf, self.rx.ring_packets());
        let driver = self.losses.counts(DriverCounts {
            doorbells: Some(self.tx.doorbells),
            longer_ring: Some("ring=32MiB"),
            ..DriverCounts::default()
        });
        Counters { rx_missed, rx_nombuf, driver, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        let (checksum, gso) = match (self.tx.has_vnet, self.has_uso) {
            (true, true) => (TxOffload::Untunnelled, TxOffload::Untunnelled),
            (true, false) => (TxOffload::Untunnelled, TxOffload::UntunnelledTcp),
            (false, _) => (TxOffload::None, TxOffload::None),
        };
        let copies = Copies::Always;
        Caps { copies, checksum, gso, rx_gathers: self.gathers, ..Caps::default() }
    }
}
