//! Receiving: copies packets once, from the kernel's blocks into frames of the pool, without a syscall.

use linerate_skb::{Batch, DropReason, Local, Moved, PacketType, Skb};
use linerate_sys::packet::{
    BlockRing, PKTTYPE_BROADCAST, PKTTYPE_MULTICAST, PKTTYPE_OTHERHOST, RxFrame, Vlan,
};
use linerate_sys::vnet::VnetHdr;

use crate::host::Retry;
use crate::host::offload::{self, TAG_AT, TAG_BYTES};

/// The receive ring, and the position in it.
pub(super) struct Rx {
    ring: BlockRing,
    /// Length of the longest packet that the port delivers.
    longest: usize,
    /// Buffer in which a frame and its VLAN tag are joined; only tagged frames cost this second copy.
    scratch: Vec<u8>,
    /// The next attempt while the pool has no frame; meanwhile the ring may be readable although
    /// nothing can be received.
    pub starved: Retry,
    /// Number of receives that ended early because the pool had no frame.
    pub rx_nombuf: u64,
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
    pub fn new(ring: BlockRing, longest: usize) -> Rx {
        let scratch = Vec::with_capacity(longest);
        Rx { ring, longest, scratch, starved: Retry::default(), rx_nombuf: 0 }
    }

    /// Copies up to `budget` frames into `out`, and keeps its position in the block.
    ///
    /// Shape:  kernel's blocks -> out[len..len+n], n <= budget, in order of arrival. A block goes
    ///         back to the kernel with its last frame. Without a free frame in the pool, frames
    ///         stay in the ring.
    /// Errors: none. Malformed and too long frames are dropped with their reason, and count as
    ///         looked at, so that a visit ends.
    /// Cost:   no syscall; one copy of the frame, two if it has a VLAN tag.
    pub fn receive(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        self.starved = Retry::default();
        let Rx { ring, scratch, longest, .. } = self;
        let (mut received, mut left) = (Moved::default(), budget.min(out.spare()));
        while left > 0
            && let Some(mut block) = ring.next_block()
        {
            while left > 0
                && let Some(frame) = block.next_frame()
            {
                match take(mem, &frame, scratch, *longest) {
                    RxOutcome::Received(skb) => {
                        received += Moved { packets: 1, bytes: skb.len() as u64 };
                        // `push` cannot fail: `left` started as the spare room of `out`.
                        let _ = out.push(skb);
                    }
                    RxOutcome::Dropped => {}
                    RxOutcome::NoFrame => {
                        block.unread();
                        self.rx_nombuf += 1;
                        self.starved = Retry::later();
                        return received;
                    }
                }
                left -= 1;
            }
        }
        received
    }

    /// Returns true if a frame waits and a pool frame may be free for it.
    pub fn is_waiting(&mut self) -> bool {
        !self.starved.is_pending() && self.ring.next_block().is_some()
    }

    /// Returns the number of blocks that were returned to the kernel unread; each had at least one packet.
    pub fn lost(&self) -> u64 {
        self.ring.bad_blocks()
    }
}

fn take(mem: &mut Local, frame: &RxFrame<'_>, scratch: &mut Vec<u8>, longest: usize) -> RxOutcome {
    // The kernel removes tags only from complete headers; a shorter frame has no place for one.
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
    let cut = frame.len as usize > frame.data.len();
    if cut || bytes.len() > longest.min(mem.pool().packet_max_bytes()) {
        return refuse(mem, DropReason::TOO_LONG);
    }
    let header = frame.vnet.unwrap_or(VnetHdr::NONE);
    // An inserted tag moves the headers behind it, so add its length to the offload's offsets.
    let moved = bytes.len() - frame.data.len();
    let left = offload::received(&header, frame.data.len()).and_then(|left| left.pushed(moved));
    let Some(left) = left else { return refuse(mem, DropReason::MALFORMED) };
    let Some(mut skb) = mem.alloc_copy(bytes) else { return RxOutcome::NoFrame };
    skb.set_offload(left);
    skb.set_stamp_ns(u64::from(frame.sec) * 1_000_000_000 + u64::from(frame.nsec));
    skb.set_packet_type(packet_type(frame.pkttype));
    RxOutcome::Received(skb)
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

    use super::*;

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
            match take(&mut mem, &frame, &mut scratch, 65535) {
                RxOutcome::Received(skb) => Some(skb.len()),
                _ => None,
            }
        };
        assert_eq!([9000, 17000].map(&mut received), [Some(9000), None]);
        drop(mem);
        assert_eq!(pool.ledger().dropped(DropReason::TOO_LONG), 1);
    }
}
