//! Receiving: from the kernel's blocks into frames of the pool, one copy, no syscall.

use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, PacketType, Skb};
use linerate_sys::packet::{
    BlockRing, PKTTYPE_BROADCAST, PKTTYPE_MULTICAST, PKTTYPE_OTHERHOST, RxFrame, Vlan,
};
use linerate_sys::vnet::VnetHdr;

use crate::host::offload::{self, TAG_AT, TAG_BYTES};
use crate::host::{CHAIN_FRAMES_MAX, RETRY};

/// The receive ring and where it stands.
pub(super) struct Rx {
    ring: BlockRing,
    /// Longest packet handed over.
    longest: usize,
    /// A frame and its tag are put together here. One such copy is what tagged frames cost.
    scratch: Vec<u8>,
    /// The pool had no frame: when to try again.
    retry_at: Option<Instant>,
    no_frame: u64,
}

/// Outcome for one frame.
enum Taken {
    Received(Skb),
    /// Dropped, and counted.
    Dropped,
    /// There is no place for it now.
    NoFrame,
}

impl Rx {
    pub fn new(ring: BlockRing, longest: usize) -> Rx {
        let scratch = Vec::with_capacity(longest);
        Rx { ring, longest, scratch, retry_at: None, no_frame: 0 }
    }

    /// Copies up to `budget` frames into `out`, and remembers its place in the block.
    ///
    /// Shape:  kernel's blocks -> out[len..len+n], n <= budget, in order of arrival. A block goes
    ///         back to the kernel with its last frame. Without a free frame in the pool, frames
    ///         stay in the ring.
    /// Errors: none. Malformed and too long frames are dropped with their reason, and count as
    ///         looked at, so that a visit ends.
    /// Cost:   no syscall; one copy of the frame, two if it has a VLAN tag.
    pub fn receive(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        self.retry_at = None;
        let Rx { ring, scratch, longest, .. } = self;
        let (mut received, mut left) = (Moved::default(), budget.min(out.spare()));
        while left > 0
            && let Some(mut block) = ring.next_block()
        {
            while left > 0
                && let Some(frame) = block.next_frame()
            {
                match take(mem, &frame, scratch, *longest) {
                    Taken::Received(skb) => {
                        received += Moved { packets: 1, bytes: skb.len() as u64 };
                        // There is room: `left` started as what is spare.
                        let _ = out.push(skb);
                    }
                    Taken::Dropped => {}
                    Taken::NoFrame => {
                        block.unread();
                        self.no_frame += 1;
                        self.retry_at = Instant::now().checked_add(RETRY);
                        return received;
                    }
                }
                left -= 1;
            }
        }
        received
    }

    /// Returns true if a frame waits and there may be a place for it.
    pub fn is_waiting(&mut self) -> bool {
        if self.retry_at.is_some_and(|at| Instant::now() >= at) {
            self.retry_at = None;
        }
        self.retry_at.is_none() && self.ring.next_block().is_some()
    }

    /// Returns true while frames wait for the pool: the ring's readiness says nothing then.
    pub fn is_starved(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Returns the time of the next attempt, if the pool had no frame.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Receives that the pool ended early.
    pub fn no_frame(&self) -> u64 {
        self.no_frame
    }

    /// Blocks given back unread: a packet each, at least.
    pub fn lost(&self) -> u64 {
        self.ring.bad_blocks()
    }
}

fn take(mem: &mut Local, frame: &RxFrame<'_>, scratch: &mut Vec<u8>, longest: usize) -> Taken {
    // The kernel takes tags off whole headers only; a shorter frame has no place for one.
    let vlan = frame.vlan.filter(|_| frame.data.len() >= TAG_AT);
    let bytes = match vlan {
        Some(_) if frame.data.len() + TAG_BYTES > longest => {
            return refuse(mem, DropReason::TOO_LONG);
        }
        Some(vlan) => {
            insert(vlan, frame.data, scratch);
            &scratch[..]
        }
        None => frame.data,
    };
    let frames = bytes.len().div_ceil(mem.pool().data_room());
    let cut = frame.len as usize > frame.data.len();
    if cut || bytes.len() > longest || frames > mem.pool().frames().min(CHAIN_FRAMES_MAX) {
        return refuse(mem, DropReason::TOO_LONG);
    }
    let header = frame.vnet.unwrap_or(VnetHdr::NONE);
    // A tag that was put in is in front of what is still to be done.
    let moved = bytes.len() - frame.data.len();
    let left = offload::received(&header, frame.data.len()).and_then(|left| left.pushed(moved));
    let Some(left) = left else { return refuse(mem, DropReason::MALFORMED) };
    let Some(mut skb) = mem.alloc_copy(bytes) else { return Taken::NoFrame };
    skb.set_offload(left);
    skb.set_stamp_ns(u64::from(frame.sec) * 1_000_000_000 + u64::from(frame.nsec));
    skb.set_packet_type(packet_type(frame.pkttype));
    Taken::Received(skb)
}

/// Drops a frame for `reason`: a packet that came, in the ledger, without its bytes.
#[cold]
fn refuse(mem: &mut Local, reason: DropReason) -> Taken {
    let Some(skb) = mem.alloc_one() else { return Taken::NoFrame };
    mem.count_received(1);
    skb.discard(reason);
    Taken::Dropped
}

/// Writes `data` to `to` with the tag back in its place, behind the two MAC addresses.
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
