//! Sending: one packet a `writev`, from its frames as they lie.

use std::io::IoSlice;
use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Skb};
use linerate_sys::tun::Tap;
use rustix::io::Errno;

use crate::host::{CHAIN_FRAMES_MAX, Link, PACKET_BYTES_MAX, RETRY, is_exported, offload};

/// A chain and its header.
const SEGMENTS_MAX: usize = CHAIN_FRAMES_MAX + 1;

/// Transmit state, from the kernel's last answer.
pub(super) struct Tx {
    /// The host had no memory for a packet: when to try again.
    retry_at: Option<Instant>,
    /// For packets whose frames a peer can write: the kernel gets a copy that it cannot.
    scratch: Vec<u8>,
}

impl Tx {
    pub fn new() -> Tx {
        Tx { retry_at: None, scratch: Vec::new() }
    }

    /// Returns true if the last packet offered was not taken for want of room.
    pub fn is_blocked(&mut self) -> bool {
        if self.retry_at.is_some_and(|at| Instant::now() >= at) {
            self.retry_at = None;
        }
        self.retry_at.is_some()
    }

    /// Returns the time of the next attempt, if the host had no room.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Sends from the front of `batch`.
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
        let mut moved = Moved::default();
        self.retry_at = None;
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
                    // With the send buffer that TAP has, nobody would announce room.
                    self.retry_at = Instant::now().checked_add(RETRY);
                    break;
                }
                // Down, or gone: the rest meets the link's new state. If it has none, the refusal
                // was of the moment, and has cost one packet.
                Errno::IO => {
                    link.refused();
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
        let header = offload::header(skb.offload()).to_bytes();
        let header = IoSlice::new(&header);
        if is_exported(skb) {
            if skb.len() > PACKET_BYTES_MAX {
                return Err(Errno::MSGSIZE);
            }
            self.scratch.resize(skb.len(), 0);
            let n = skb.copy_to(0, &mut self.scratch);
            return tap.write_vectored(&[header, IoSlice::new(&self.scratch[..n])]).map(drop);
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
