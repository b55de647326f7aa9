//! Sending: up to 64 packets for each `sendmmsg`, directly from their frames.
//!
//! The kernel answers ENOBUFS for a full queue, and also for a packet that it always drops (a `tc`
//! rule, the smaller MTU of a veth's other end). To tell them apart, a packet behind one that was
//! refused for long is offered alone:
//!
//! ```text
//!   refused  ? ? ?      taken: there is room, so all before it are refused for themselves: dropped
//!      1     2 3 4      refused: perhaps no room: all wait, and the next one is offered 100 ms later
//! ```
//!
//! If none of them is taken for 2 s, the first one is dropped, so that it does not hold up for ever
//! what its caller cannot offer yet.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Local, Moved, Skb};
use linerate_sys::packet::{PacketSocket, SendBatch};
use linerate_sys::wait::is_writable;
use rustix::io::Errno;

use crate::host::{Link, Retry, copy_out, is_exported, offload};

use super::query;

/// Time after which a superframe that bypasses the qdisc and is still refused is treated as one
/// that the device never accepts.
const SUPERFRAME_PATIENCE: Duration = Duration::from_millis(2);
/// Time after which refusals on an interface without a carrier are no longer treated as a full
/// queue.
const CARRIER_PATIENCE: Duration = Duration::from_millis(100);
/// Time after which a packet behind a refused one is offered, and interval of such offers.
const PROBE_PATIENCE: Duration = Duration::from_millis(100);
/// The same for a packet that is shorter than one before it: it may fit into a queue that has no
/// room for the longer one. In this time a queue that drains at 12.5 kbit/s has room for any packet
/// of 1514 bytes.
const SHORT_PROBE_PATIENCE: Duration = Duration::from_secs(1);
/// Time after which the first packet is dropped if no packet was taken: its caller may have no
/// other one to offer, or refused ones only.
const GIVE_UP_PATIENCE: Duration = Duration::from_secs(2);

/// Most time between two refusals of the first packet that counts as time in which it was refused.
/// A caller offers refused packets again every millisecond, or makes a pause of which nothing is
/// known.
const PAUSE_COUNTED: Duration = Duration::from_millis(100);

/// The arrays for sendmmsg, and the state after the kernel's last reply.
pub(super) struct Tx {
    messages: SendBatch,
    /// True if packets are sent with an offload header.
    pub has_vnet: bool,
    /// True if the socket's buffer is full; the socket becomes writable when it has room.
    pub is_full: bool,
    /// The next attempt while the device's queue or its qdisc is full: neither signals room.
    pub retry: Retry,
    /// True if packets bypass the qdisc, which would cut superframes.
    bypass: bool,
    /// Time since which the device has refused all packets.
    refused_since: Option<Instant>,
    /// Time of the last refusal for lack of room.
    refused_at: Option<Instant>,
    /// The superframe that was refused last with `bypass`, by its handle, and the time of its first
    /// refusal.
    superframe: Option<(u32, Instant)>,
    /// State of the first packets of the batch, while they are refused for lack of room.
    held: Option<Held>,
    /// Their handles, by which they are recognised when the same batch comes again, together with a
    /// note in the packets: the caller may have dropped one, and its frame is soon used again.
    refused: Vec<u32>,
    /// Buffer for packets whose frames a peer can write: the kernel gets a copy that the peer
    /// cannot write.
    scratch: Vec<u8>,
    /// Number of system calls that sent packets.
    pub doorbells: u64,
}

/// The first packets of a batch while they are refused for lack of room.
#[derive(Debug)]
struct Held {
    since: Instant,
    /// Time of the last probe, or of the first refusal.
    probed: Instant,
}

/// Action after the kernel has refused a packet.
enum Then {
    Retry,
    Stop,
    /// The kernel has taken the packet with this index, and will never take those before it.
    Skip(usize),
}

/// Result of an offer of another packet than the first one.
enum Probe {
    /// Nothing new is known: the packets may wait for room.
    Unknown,
    /// The kernel has taken the packet with this index.
    Taken(usize),
    /// No packet was taken for so long that the first one is given up.
    GiveUp,
}

impl Tx {
    pub fn new(has_vnet: bool, bypass: bool) -> Tx {
        Tx {
            messages: SendBatch::new(),
            has_vnet,
            is_full: false,
            retry: Retry::default(),
            bypass,
            refused_since: None,
            refused_at: None,
            superframe: None,
            held: None,
            refused: Vec::new(),
            scratch: Vec::new(),
            doorbells: 0,
        }
    }

    /// Forgets refusals, after which the next one is treated as the first.
    fn forget(&mut self) {
        (self.refused_since, self.superframe, self.held) = (None, None, None);
    }

    /// Takes the time `beyond` [`PAUSE_COUNTED`] out of the time in which the first packet of
    /// `batch` was refused; forgets the refusals if they were those of another packet.
    fn resume(&mut self, beyond: Duration, batch: &Batch) {
        if self.refused.first() != batch.handles().first() || !Tx::knows(batch, 1) {
            self.forget();
            self.refused.clear();
            return;
        }
        let held = self.held.iter_mut().flat_map(|held| [&mut held.since, &mut held.probed]);
        self.refused_since.iter_mut().chain(held).for_each(|at| *at += beyond);
    }

    /// Returns true if the first `n` packets of the batch, which have the handles of refused ones,
    /// are those packets.
    fn knows(batch: &Batch, n: usize) -> bool {
        batch.iter().take(n).all(Skb::was_refused)
    }

    /// Returns true if the kernel refused the last packet for lack of room.
    fn is_blocked(&mut self) -> bool {
        self.retry.is_pending() || self.is_full
    }

    /// Returns true if packets can be offered. If the socket's buffer was full, this asks the
    /// kernel: an edge-triggered poller may have seen the room already, together with a packet.
    ///
    /// Cost: a syscall if the buffer was full.
    pub fn has_room(&mut self, socket: &PacketSocket) -> bool {
        self.is_full = self.is_full && !is_writable(socket.as_fd());
        !self.is_blocked()
    }

    /// Sends packets from the front of `batch`.
    ///
    /// Shape:  batch[0..n) is copied by the kernel and freed as sent; what the kernel will never
    ///         take is dropped with its reason; the rest stays, in order.
    /// Cost:   one syscall for 64 packets, one more for each that is refused.
    pub fn send(
        &mut self,
        socket: &PacketSocket,
        link: &mut Link,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Moved {
        let (mut moved, mut downs) = (Moved::default(), 0);
        (self.is_full, self.retry) = (false, Retry::default());
        if !link.is_up() {
            batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
            self.forget();
        }
        while !batch.is_empty() {
            let (sent, refusal) = self.send_some(socket, batch);
            if sent > 0 {
                moved += batch.sent(sent, mem);
                self.forget();
            }
            let Some(errno) = refusal else { continue };
            if errno == Errno::NETDOWN || errno == Errno::NXIO || errno == Errno::NODEV {
                downs += 1;
                query(socket, link);
                // If the interface is up again, this is the error of an earlier moment, which the
                // kernel reports once: try again.
                if link.is_up() && downs == 1 {
                    continue;
                }
                batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
                self.forget();
                break;
            }
            match self.refused(errno, socket, link, mem, batch) {
                Then::Retry => {}
                Then::Stop => break,
                Then::Skip(guilty) => {
                    batch.discard_first(guilty, DropReason::WRITE_FAILED, mem);
                    moved += batch.sent(1, mem);
                }
            }
        }
        moved
    }

    /// Offers packets from the front of the batch to the kernel; returns the number accepted, and
    /// the error for the next packet.
    fn send_some(&mut self, socket: &PacketSocket, batch: &Batch) -> (usize, Option<Errno>) {
        let Some(first) = batch.iter().next() else { return (0, None) };
        if is_exported(first) {
            return self.send_alone(socket, first);
        }
        let mut sending = self.messages.start();
        for skb in batch.iter() {
            let header = self.has_vnet.then(|| offload::header(skb.offload()));
            if is_exported(skb) || !sending.add(header.as_ref(), skb.segments()) {
                break;
            }
        }
        if sending.pending() == 0 {
            // The first packet alone has more segments than a message can have.
            return (0, Some(Errno::MSGSIZE));
        }
        self.doorbells += 1;
        sending.flush(socket)
    }

    /// Offers a copy of one packet to the kernel.
    #[cold]
    fn send_alone(&mut self, socket: &PacketSocket, skb: &Skb) -> (usize, Option<Errno>) {
        let header = self.has_vnet.then(|| offload::header(skb.offload()));
        let mut sending = self.messages.start();
        let copy = copy_out(skb, &mut self.scratch);
        if !copy.is_some_and(|bytes| sending.add(header.as_ref(), [bytes])) {
            return (0, Some(Errno::MSGSIZE));
        }
        self.doorbells += 1;
        sending.flush(socket)
    }

    /// Handles the refusal of the first packet: waits, or drops it if it can never be sent.
    ///
    /// Source: net/packet/af_packet.c packet_snd, packet_direct_xmit.
    fn refused(
        &mut self,
        errno: Errno,
        socket: &PacketSocket,
        link: &Link,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Then {
        let reason = match errno {
            Errno::AGAIN => {
                self.is_full = true;
                return Then::Stop;
            }
            Errno::NOBUFS | Errno::NOMEM => return self.no_place(socket, link, mem, batch),
            Errno::MSGSIZE => DropReason::TOO_LONG,
            Errno::INVAL => DropReason::MALFORMED,
            _ => DropReason::WRITE_FAILED,
        };
        batch.discard_first(1, reason, mem);
        (self.held, self.superframe) = (None, None);
        Then::Retry
    }

    /// Handles a device without room: keeps the packet, unless the device never accepts a packet of
    /// this kind.
    fn no_place(
        &mut self,
        socket: &PacketSocket,
        link: &Link,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Then {
        let now = Instant::now();
        let before = self.refused_at.replace(now);
        let pause = before.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        if let Some(beyond) = pause.checked_sub(PAUSE_COUNTED) {
            self.resume(beyond, batch);
        }
        let since = *self.refused_since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        if self.bypass && self.note_superframe(batch, now) {
            self.forget();
            batch.discard_first(1, DropReason::UNSUPPORTED, mem);
            return Then::Retry;
        }
        if waited >= CARRIER_PATIENCE && link.lacks_carrier() {
            batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
            self.forget();
            return Then::Stop;
        }
        match self.probe(socket, batch, now) {
            Probe::Taken(guilty) => {
                self.forget();
                return Then::Skip(guilty);
            }
            Probe::GiveUp => batch.discard_first(1, DropReason::WRITE_FAILED, mem),
            Probe::Unknown => {}
        }
        self.retry = Retry::later();
        Then::Stop
    }

    /// Notes the refusal of the first packet, if it is a superframe; returns true if the device has
    /// refused it for [`SUPERFRAME_PATIENCE`]. Refusals of a packet before it do not count.
    fn note_superframe(&mut self, batch: &Batch, now: Instant) -> bool {
        let is_superframe = batch.iter().next().is_some_and(|skb| skb.offload().is_gso());
        let first = batch.handles().first().copied().filter(|_| is_superframe);
        let is_known = Tx::knows(batch, 1);
        let known = self.superframe.filter(|(handle, _)| is_known && Some(*handle) == first);
        self.superframe = known.or(first.map(|handle| (handle, now)));
        known.is_some_and(|(_, since)| now.saturating_duration_since(since) >= SUPERFRAME_PATIENCE)
    }

    /// Offers a packet behind the first one, if that was refused for long enough.
    ///
    /// All packets before it were refused when they were offered, the first one just now. So a full
    /// queue loses a packet by a probe only if it gets room between these two system calls, and had
    /// none at each offer for 100 ms before. If all are refused, or there is no second packet, they
    /// may wait for room, until one is given up.
    fn probe(&mut self, socket: &PacketSocket, batch: &Batch, now: Instant) -> Probe {
        let handles = batch.handles();
        let Some(first) = handles.first() else { return Probe::Unknown };
        let is_recent = |held: &Held| now.saturating_duration_since(held.probed) < PROBE_PATIENCE;
        let is_known = handles.starts_with(&self.refused) && Tx::knows(batch, self.refused.len());
        let held = match &mut self.held {
            Some(held) if self.refused.is_empty() && is_recent(held) => {
                // The only packet of the batch before was given up: this one waits no longer than
                // others.
                self.refused.push(*first);
                held
            }
            Some(held) if !self.refused.is_empty() && is_known => held,
            held => {
                self.refused.clear();
                self.refused.push(*first);
                held.insert(Held { since: now, probed: now })
            }
        };
        batch.iter().take(1).for_each(Skb::note_refusal);
        if is_recent(held) {
            return Probe::Unknown;
        }
        let waited = now.saturating_duration_since(held.since);
        let offered = self.refused.len();
        let next = batch.iter().nth(offered);
        let is_shorter =
            |skb: &Skb| batch.iter().take(offered).any(|before| before.len() > skb.len());
        if let Some(skb) = next
            && (waited >= SHORT_PROBE_PATIENCE || !is_shorter(skb))
        {
            held.probed = now;
            skb.note_refusal();
            self.refused.push(handles[offered]);
            let (sent, _) = self.send_alone(socket, skb);
            if sent > 0 {
                return Probe::Taken(offered);
            }
        }
        if waited >= GIVE_UP_PATIENCE {
            // The rest has been refused for as long: 100 ms later it is its first packet's turn.
            self.refused.remove(0);
            if let Some(held) = &mut self.held {
                held.probed = now;
            }
            return Probe::GiveUp;
        }
        if next.is_none() {
            // The batch has no further packet: begin again with the second one.
            self.refused.truncate(1);
        }
        Probe::Unknown
    }
}
