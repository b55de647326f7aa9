//! Sending: one `writev` for each packet, directly from its frames.

use std::io::IoSlice;

use linerate_skb::{Batch, CHAIN_FRAMES_MAX, DropReason, Local, Moved, Skb};
use linerate_sys::tun::Tap;
use linerate_sys::vnet::VNET_HDR_BYTES;
use rustix::io::Errno;

use crate::host::{Link, Retry, copy_out, is_exported, offload};

/// Most segments of a write: the frames of a chain, and a header.
const SEGMENTS_MAX: usize = CHAIN_FRAMES_MAX + 1;

/// The transmit state after the kernel's last reply.
pub(super) struct Tx {
    /// Length of the offload header before each packet: 0 if there is none.
    header_bytes: usize,
    /// The next attempt while the host has no memory for a packet.
    pub retry: Retry,
    /// Buffer for packets whose frames a peer can write: the kernel gets a copy that the peer
    /// cannot write.
    scratch: Vec<u8>,
    /// Number of system calls that sent, one for each packet.
    pub doorbells: u64,
}

impl Tx {
    /// Creates the state of a queue whose packets have an offload header if `vnet` is true.
    pub fn new(vnet: bool) -> Tx {
        let header_bytes = if vnet { VNET_HDR_BYTES } else { 0 };
        Tx { header_bytes, retry: Retry::default(), scratch: Vec::new(), doorbells: 0 }
    }

    /// Returns true if packets are sent with an offload header.
    pub fn has_vnet(&self) -> bool {
        self.header_bytes > 0
    }

    /// Sends packets from the front of `batch`.
    ///
    /// Shape:  batch[0..n) is copied by the kernel and freed as sent; what the kernel will never
    ///         take is dropped with its reason; the rest stays, in order.
    /// Cost:   one syscall a packet, in which the host's stack receives it.
    pub fn send(
        &mut self,
        tap: &Tap,
        link: &mut Link,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Moved {
        let (mut moved, mut downs) = (Moved::default(), 0);
        self.retry = Retry::default();
        while !batch.is_empty() {
            if !link.is_up() {
                batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
                break;
            }
            let mut refusal = None;
            moved += batch.send_prefix(mem, |skb| {
                refusal = self.write(tap, skb).err();
                refusal.is_none()
            });
            let Some(refusal) = refusal else { continue };
            let reason = match refusal {
                Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => {
                    // Try again later: with a TAP's send buffer the kernel does not signal room.
                    self.retry = Retry::later();
                    break;
                }
                // The interface is down or gone: the remaining packets are handled by the link's
                // new state.
                Errno::IO => {
                    link.refused();
                    downs += 1;
                    // The interface was down for a moment, and is up again: try again, once.
                    if link.is_up() && downs == 1 {
                        continue;
                    }
                    DropReason::DEVICE_DOWN
                }
                Errno::BADFD | Errno::NODEV => {
                    link.lost();
                    DropReason::DEVICE_DOWN
                }
                Errno::INVAL => DropReason::MALFORMED,
                Errno::MSGSIZE => DropReason::TOO_LONG,
                _ => DropReason::WRITE_FAILED,
            };
            batch.discard_first(1, reason, mem);
        }
        moved
    }

    /// Writes one packet.
    fn write(&mut self, tap: &Tap, skb: &Skb) -> rustix::io::Result<()> {
        self.doorbells += 1;
        let header = offload::header(skb.offload()).to_bytes();
        let header = IoSlice::new(&header[..self.header_bytes]);
        if is_exported(skb) {
            let bytes = copy_out(skb, &mut self.scratch).ok_or(Errno::MSGSIZE)?;
            return tap.write_vectored(&[header, IoSlice::new(bytes)]).map(drop);
        }
        if skb.is_linear() {
            return tap.write_vectored(&[header, IoSlice::new(skb.data())]).map(drop);
        }
        let mut segments = [IoSlice::new(&[]); SEGMENTS_MAX];
        let mut n = 0;
        for segment in std::iter::once(header).chain(skb.segments().map(IoSlice::new)) {
            *segments.get_mut(n).ok_or(Errno::MSGSIZE)? = segment;
            n += 1;
        }
        tap.write_vectored(&segments[..n]).map(drop)
    }
}
