//! Receiving: copies packets from the kernel's blocks, or from a batch that one call has received,
//! into frames of the pool.

use std::os::fd::AsFd;
use std::time::Duration;

use linerate_skb::{Batch, DropReason, Local, Moved, Offload, PacketType, Skb};
use linerate_sys::netif::Interface;
use linerate_sys::packet::{
    BlockRing, PKTTYPE_BROADCAST, PKTTYPE_MULTICAST, PKTTYPE_OTHERHOST, PacketSocket, RecvBatch,
    RxFrame, STATUS_CSUM_NOT_READY, Vlan,
};
use linerate_sys::wait::poll_readable;
use linerate_wire::VLAN_BYTES;
use rustix::io::Errno;

use crate::host::offload::{self, TAG_AT};
use crate::host::{Retry, partial};

/// Bytes of a ring before each frame: TPACKET3_HDRLEN, the offload header, and their alignment.
const FRAME_HEADER_BYTES: u64 = 96;
/// Bytes that the kernel charges for a packet in a socket beside its own: its sk_buff and the end
/// of its memory, which is the least that a driver's buffer has.
const BUFFER_BYTES: u64 = 768;

/// The place where received frames wait.
pub(super) enum Source {
    /// In the mapped ring of the socket: the kernel hands over full blocks, others after a time.
    Ring(BlockRing),
    /// In the socket, each as soon as it has arrived.
    Socket(RecvBatch),
}

/// The source of received frames, and the state of receiving.
pub(super) struct Rx {
    source: Source,
    /// Bytes of the ring, or of the socket's receive buffer.
    bytes: usize,
    /// Packets received so far.
    pub received: Moved,
    /// Lengths of the longest packets.
    limits: Limits,
    /// Buffer in which a frame and its VLAN tag are joined; only tagged frames cost this second
    /// copy.
    scratch: Vec<u8>,
    /// The next attempt while the pool has no frame, or after an error of the socket; meanwhile the
    /// socket may be readable although nothing can be received.
    pub starved: Retry,
    /// Number of receives that ended early because the pool had no frame.
    pub rx_nombuf: u64,
    /// Number of frames that the kernel dropped because the offload header cannot say their
    /// offload.
    refused: u64,
    /// True if the socket was in error since the last look at the link.
    pub is_broken: bool,
}

/// Lengths of the longest packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Length of the longest packet that the port delivers.
    pub longest: usize,
    /// The interface's MTU: without an offload header, a longer packet of TCP whose checksum is
    /// unfinished is a superframe.
    pub mtu_bytes: usize,
}

/// Outcome for one frame.
enum RxOutcome {
    Received(Skb),
    /// The frame was dropped and counted.
    Dropped,
    /// No frame of the pool is free for it now.
    NoFrame,
}

impl Rx {
    /// Creates the state of a queue whose ring or receive buffer has `bytes`.
    pub fn new(source: Source, bytes: usize, limits: Limits) -> Rx {
        Rx {
            source,
            bytes,
            received: Moved::default(),
            limits,
            scratch: Vec::with_capacity(limits.longest),
            starved: Retry::default(),
            rx_nombuf: 0,
            refused: 0,
            is_broken: false,
        }
    }

    /// Reads the MTU of `interface` again, by which superframes are recognised without an offload
    /// header. The longest packet stays: the pool and the blocks are sized for it.
    ///
    /// Cost: two syscalls, which take no lock of the kernel's network settings.
    pub fn look(&mut self, interface: &Interface) {
        if let Ok(mtu) = interface.mtu_bytes() {
            self.limits.mtu_bytes = mtu as usize;
        }
    }

    /// Copies up to `budget` frames into `out`, and keeps its position in the block or batch.
    ///
    /// Shape:  kernel's frames -> out[len..len+n], n <= budget, in order of arrival. A block goes
    ///         back to the kernel with its last frame. Without a free frame in the pool, frames
    ///         stay where they are.
    /// Errors: none. Malformed and too long frames are dropped with their reason, and count as
    ///         looked at, so that a visit ends. `is_broken` tells an error of the socket.
    /// Cost:   one copy of the frame, two if it has a VLAN tag. From a ring no syscall; from the
    ///         socket one for each [`RECEIVED_MAX`] frames, which copies them, too, and one more
    ///         for the last batch.
    ///
    /// [`RECEIVED_MAX`]: linerate_sys::packet::RECEIVED_MAX
    pub fn receive(
        &mut self,
        socket: &PacketSocket,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        let left = budget.min(out.spare());
        let (scratch, limits) = (&mut self.scratch, self.limits);
        let mut visit = Visit { mem, out, scratch, limits, left, moved: Moved::default() };
        let is_fed = match &mut self.source {
            Source::Ring(ring) => visit.take_blocks(ring),
            Source::Socket(batch) => loop {
                if visit.left == 0 {
                    break true;
                }
                let end = batch.fill(socket, visit.left);
                let is_fed = visit.take_batch(batch);
                match end {
                    None => {}
                    // The kernel has dropped a frame.
                    Some(Errno::INVAL) => {
                        self.refused += 1;
                        visit.left = visit.left.saturating_sub(1);
                    }
                    Some(errno) => {
                        self.is_broken = errno != Errno::AGAIN;
                        break is_fed;
                    }
                }
                if !is_fed {
                    break false;
                }
            },
        };
        // A socket in error may stay readable.
        let is_paused = !is_fed || self.is_broken;
        self.starved = if is_paused { Retry::later() } else { Retry::default() };
        self.rx_nombuf += u64::from(!is_fed);
        self.received += visit.moved;
        visit.moved
    }

    /// Returns true if a frame waits and a pool frame may be free for it.
    ///
    /// Cost: for a socket without a ring, one syscall.
    pub fn is_waiting(&mut self, socket: &PacketSocket) -> bool {
        !self.starved.is_pending()
            && match &mut self.source {
                Source::Ring(ring) => ring.next_block().is_some(),
                Source::Socket(batch) => {
                    batch.frames_left() > 0
                        || poll_readable(&[socket.as_fd()], Some(Duration::ZERO)).unwrap_or(false)
                }
            }
    }

    /// Returns the number of packets of the mean length so far that fill the ring or the receive
    /// buffer: an estimate.
    pub fn ring_packets(&self) -> u32 {
        let beside = match &self.source {
            Source::Ring(_) => FRAME_HEADER_BYTES,
            Source::Socket(_) => BUFFER_BYTES,
        };
        let mean = self.received.bytes.checked_div(self.received.packets as u64).unwrap_or(0);
        let packets = self.bytes as u64 / mean.saturating_add(beside);
        u32::try_from(packets).unwrap_or(u32::MAX)
    }

    /// Returns the number of frames that were lost between the kernel and the port: those with an
    /// offload that the header cannot say, and the unread frames of blocks with inconsistent
    /// contents.
    pub fn lost(&self) -> u64 {
        self.refused
            + match &self.source {
                Source::Ring(ring) => ring.lost_frames(),
                Source::Socket(_) => 0,
            }
    }
}

/// One call of [`Rx::receive`].
struct Visit<'a> {
    mem: &'a mut Local,
    out: &'a mut Batch,
    scratch: &'a mut Vec<u8>,
    limits: Limits,
    /// Frames that may still be looked at.
    left: usize,
    moved: Moved,
}

impl Visit<'_> {
    /// Takes frames of the blocks of `ring`; returns false if the pool has no frame for one.
    fn take_blocks(&mut self, ring: &mut BlockRing) -> bool {
        while self.left > 0
            && let Some(mut block) = ring.next_block()
        {
            while self.left > 0
                && let Some(frame) = block.next_frame()
            {
                if !self.take(&frame) {
                    block.unread();
                    return false;
                }
            }
        }
        true
    }

    /// Takes the frames of `batch`; returns false if the pool has no frame for one.
    fn take_batch(&mut self, batch: &mut RecvBatch) -> bool {
        while self.left > 0
            && let Some(frame) = batch.next_frame()
        {
            if !self.take(&frame) {
                batch.unread();
                return false;
            }
        }
        true
    }

    fn take(&mut self, frame: &RxFrame<'_>) -> bool {
        match take(self.mem, frame, self.scratch, self.limits) {
            RxOutcome::Received(skb) => {
                self.moved += Moved { packets: 1, bytes: skb.len() as u64 };
                // `push` cannot fail: `left` started as the spare room of `out`.
                let _ = self.out.push(skb);
            }
            RxOutcome::Dropped => {}
            RxOutcome::NoFrame => return false,
        }
        self.left -= 1;
        true
    }
}

fn take(mem: &mut Local, frame: &RxFrame<'_>, scratch: &mut Vec<u8>, limits: Limits) -> RxOutcome {
    let longest = limits.longest;
    // The kernel removes tags only from complete headers; a shorter frame has no place for one.
    let vlan = frame.vlan.filter(|_| frame.data.len() >= TAG_AT);
    let bytes = match vlan {
        Some(_) if frame.data.len() + VLAN_BYTES > longest => {
            return refuse(mem, DropReason::TOO_LONG);
        }
        Some(vlan) => {
            insert(vlan, frame.data, scratch);
            &scratch[..]
        }
        None => frame.data,
    };
    let cut = frame.len as usize > frame.data.len();
    if cut || bytes.len() > longest.min(mem.pool().packet_max_bytes()) {
        return refuse(mem, DropReason::TOO_LONG);
    }
    let left = match &frame.vnet {
        Some(header) => {
            // An inserted tag moves the headers behind it, so add its length to the offload's
            // offsets.
            let moved = bytes.len() - frame.data.len();
            let left = offload::received(header, frame.data, frame.data.len());
            left.and_then(|left| left.pushed(moved)).ok_or(DropReason::MALFORMED)
        }
        None if frame.status & STATUS_CSUM_NOT_READY != 0 => unfinished(bytes, limits),
        None => Ok(Offload::NONE),
    };
    let left = match left {
        Ok(left) => left,
        Err(reason) => return refuse(mem, reason),
    };
    let Some(mut skb) = mem.alloc_copy(bytes) else { return RxOutcome::NoFrame };
    skb.set_offload(left);
    skb.set_stamp_ns(u64::from(frame.sec) * 1_000_000_000 + u64::from(frame.nsec));
    skb.set_packet_type(packet_type(frame.pkttype));
    RxOutcome::Received(skb)
}

/// Returns the work that is left on a packet without an offload header of which the kernel says
/// that its checksum is unfinished.
///
/// # Errors
/// `UNSUPPORTED` if the place of the checksum is not found, as in an unknown tunnel: delivered, the
/// packet would leave with a wrong one.
#[cold]
fn unfinished(bytes: &[u8], limits: Limits) -> Result<Offload, DropReason> {
    partial::left(bytes, bytes.len(), limits.mtu_bytes).ok_or(DropReason::UNSUPPORTED)
}

/// Drops a received frame for `reason`: the ledger counts a packet, but its bytes are not copied.
#[cold]
fn refuse(mem: &mut Local, reason: DropReason) -> RxOutcome {
    let Some(skb) = mem.alloc_one() else { return RxOutcome::NoFrame };
    mem.count_received(1);
    skb.discard(reason);
    RxOutcome::Dropped
}

/// Writes `data` to `to`, and inserts the VLAN tag after the two MAC addresses.
fn insert(vlan: Vlan, data: &[u8], to: &mut Vec<u8>) {
    to.clear();
    to.extend_from_slice(&data[..TAG_AT]);
    to.extend_from_slice(&vlan.tpid.to_be_bytes());
    to.extend_from_slice(&vlan.tci.to_be_bytes());
    to.extend_from_slice(&data[TAG_AT..]);
}

fn packet_type(pkttype: u8) -> PacketType {
    match pkttype {
        PKTTYPE_BROADCAST => PacketType::Broadcast,
        PKTTYPE_MULTICAST => PacketType::Multicast,
        PKTTYPE_OTHERHOST => PacketType::OtherHost,
        _ => PacketType::Host,
    }
}

#[cfg(test)]
mod tests {
    use linerate_skb::Pool;
    use linerate_sys::vnet::{F_NEEDS_CSUM, VnetHdr};

    use super::*;
    use crate::host::testing::ipv4;

    #[test]
    fn a_packet_that_only_a_jumbo_frame_holds_is_received() {
        let pool = Pool::builder().frames(4).jumbo(1, 16_384).build().unwrap();
        let (mut mem, mut scratch) = (pool.local(), Vec::new());
        let mut received = |len: usize| {
            let data = &vec![7; len][..];
            let (vnet, vlan, pkttype) = (None, None, PKTTYPE_OTHERHOST);
            let (status, sec, nsec) = (0, 0, 0);
            let len = len as u32;
            let frame = RxFrame { data, len, vnet, vlan, status, pkttype, sec, nsec };
            let limits = Limits { longest: 65535, mtu_bytes: 1500 };
            match take(&mut mem, &frame, &mut scratch, limits) {
                RxOutcome::Received(skb) => Some(skb.len()),
                _ => None,
            }
        };
        assert_eq!([9000, 17000].map(&mut received), [Some(9000), None]);
        drop(mem);
        assert_eq!(pool.ledger().dropped(DropReason::TOO_LONG), 1);
    }

    #[test]
    fn a_packet_whose_checksum_is_left_in_an_address_is_dropped_as_malformed() {
        let pool = Pool::builder().frames(4).build().unwrap();
        let (mut mem, mut scratch, data) = (pool.local(), Vec::new(), ipv4(17, 100));
        // The tag was removed, and moves the checksum when it is inserted.
        let tag = Vlan { tpid: 0x8100, tci: 5 };
        let mut starts = |csum_start, csum_offset, vlan| {
            let header = VnetHdr { flags: F_NEEDS_CSUM, csum_start, csum_offset, ..VnetHdr::NONE };
            let (data, len, vnet) = (&data[..], data.len() as u32, Some(header));
            let (pkttype, status, sec, nsec) = (PKTTYPE_OTHERHOST, 0, 0, 0);
            let frame = RxFrame { data, len, vnet, vlan, status, pkttype, sec, nsec };
            let limits = Limits { longest: 65535, mtu_bytes: 1500 };
            match take(&mut mem, &frame, &mut scratch, limits) {
                RxOutcome::Received(skb) => Some(skb.offload().csum_start),
                _ => None,
            }
        };
        assert_eq!(starts(34, 6, None), Some(34));
        assert_eq!(starts(34, 6, Some(tag)), Some(38));
        assert_eq!(starts(30, 0, None), None);
        assert_eq!(starts(30, 0, Some(tag)), None);
        drop(mem);
        assert_eq!(pool.ledger().dropped(DropReason::MALFORMED), 2);
    }
}
